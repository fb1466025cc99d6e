//! Fourier transforms and windows.

use super::node::{NodeView, OpError, Part};
use crate::views::size::known_scalar;

/// DFT at its versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DftView {
    /// The axis of the signal; `None` if an operand that is not constant says it.
    pub axis: Option<usize>,
    /// The length, where an operand says it and is known.
    pub length: Option<u64>,
    /// True if an operand says the length.
    pub has_length: bool,
    /// True if one side of a symmetric spectrum is left off.
    pub one_sided: bool,
    /// True if it is the inverse.
    pub inverse: bool,
}

impl DftView {
    /// Reads a DFT of a tensor of this rank.
    ///
    /// # Errors
    /// If axis or length are out of range or no single numbers.
    pub fn read(view: &NodeView<'_>, rank: usize) -> Result<DftView, OpError> {
        let (axis, part) = if view.schema.attr("axis").is_some() {
            (Some(view.int("axis").unwrap_or(1)), Part::Attr("axis".into()))
        } else if view.has(2) {
            (known_scalar(view, 2)?, Part::Operand(2))
        } else {
            (Some(-2), Part::Operand(2))
        };
        let axis = axis.map(|axis| {
            let found = super::normalize_axis(axis, rank, part.clone())?;
            if found + 1 < rank {
                Ok(found)
            } else {
                let expected = "another axis than the last, which holds real and imaginary parts".into();
                Err(OpError { part, expected, found: axis.to_string() })
            }
        });
        Ok(DftView {
            axis: axis.transpose()?,
            length: positive_operand(view, 1)?,
            has_length: view.has(1),
            one_sided: view.int("onesided").unwrap_or(0) != 0,
            inverse: view.int("inverse").unwrap_or(0) != 0,
        })
    }
}

/// The one number in an operand, if it is known.
///
/// # Errors
/// If it is not positive.
pub fn positive_operand(view: &NodeView<'_>, operand: usize) -> Result<Option<u64>, OpError> {
    let Some(n) = known_scalar(view, operand)? else { return Ok(None) };
    u64::try_from(n)
        .ok()
        .filter(|&n| n > 0)
        .map(Some)
        .ok_or_else(|| OpError::operand(operand, "a positive number", n.to_string()))
}
