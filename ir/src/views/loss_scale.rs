//! The loss scale of ai.ampc, and the factor by which gradients are clipped.

use super::node::{NodeView, OpError};
use super::optimizer::{double, flag, word};

/// In which type a loss scale is multiplied.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Arith {
    /// In f32, by factors that are rounded to f32.
    F32Product,
    /// In f64, and the product is rounded to f32.
    F64Product,
}

impl Arith {
    /// Parses the attribute `arith`.
    pub fn from_name(name: &str) -> Option<Arith> {
        match name {
            "f32_product" => Some(Arith::F32Product),
            "f64_product" => Some(Arith::F64Product),
            _ => None,
        }
    }

    /// Its spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Arith::F32Product => "f32_product",
            Arith::F64Product => "f64_product",
        }
    }
}

/// UpdateLossScale of ai.ampc.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct UpdateLossScaleView {
    /// In which type products are computed.
    pub arith: Arith,
    /// The factor by which the scale grows.
    pub growth: f64,
    /// The factor by which the scale shrinks after an overflow.
    pub backoff: f64,
    /// After how many steps without an overflow the scale grows.
    pub interval: i64,
    /// After how many steps with an overflow, in a row, the scale backs off.
    pub backoff_every: i64,
    /// The least scale after an overflow.
    pub min: Option<f64>,
    /// The greatest scale that grew; without it the scale stays where it would not be finite.
    pub max: Option<f64>,
    /// True if an overflow ends the count of steps without one.
    pub reset_good: bool,
}

impl UpdateLossScaleView {
    /// Reads an UpdateLossScale.
    ///
    /// # Errors
    /// If an attribute is absent or has a value that the operator does not have, or needs a count that is absent.
    pub fn read(view: &NodeView<'_>) -> Result<UpdateLossScaleView, OpError> {
        let bound = |name| view.attr(name).map(|_| double(view, name)).transpose();
        let backoff_every = count(view, "backoff_every")?;
        if backoff_every != 1 && !view.has(3) {
            return Err(OpError::attr(
                "backoff_every",
                "1 where there is no `bad`",
                backoff_every.to_string(),
            ));
        }
        Ok(UpdateLossScaleView {
            arith: word(view, "arith", "f32_product or f64_product", Arith::from_name)?,
            growth: double(view, "growth")?,
            backoff: double(view, "backoff")?,
            interval: count(view, "interval")?,
            backoff_every,
            min: bound("min")?,
            max: bound("max")?,
            reset_good: flag(view, "reset_good")?,
        })
    }
}

/// True if a number of steps can be counted: from 1 to the largest i32.
pub(crate) fn is_count(n: i64) -> bool {
    (1..=i64::from(i32::MAX)).contains(&n)
}

/// The number of steps in an attribute.
fn count(view: &NodeView<'_>, name: &str) -> Result<i64, OpError> {
    const EXPECTED: &str = "an integer from 1 to 2147483647";
    let found = view.int(name).ok_or_else(|| OpError::attr(name, EXPECTED, "none"))?;
    Some(found).filter(|&n| is_count(n)).ok_or_else(|| OpError::attr(name, EXPECTED, found.to_string()))
}

/// ClipCoef of ai.ampc.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ClipCoefView {
    /// The greatest norm that stays.
    pub max_norm: f64,
    /// The summand of the norm.
    pub epsilon: f64,
}

impl ClipCoefView {
    /// Reads a ClipCoef.
    ///
    /// # Errors
    /// If an attribute is not a scalar of f64.
    pub fn read(view: &NodeView<'_>) -> Result<ClipCoefView, OpError> {
        Ok(ClipCoefView { max_norm: double(view, "max_norm")?, epsilon: double(view, "epsilon")? })
    }
}
