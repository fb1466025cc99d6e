//! The optimizers of ai.ampc.

use super::node::{NodeView, OpError, Part};
use crate::attr::AttrValue;
use crate::dtype::DType;
use crate::op::OpKind;

/// Variant of AdamW.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AdamWMode {
    /// PyTorch's: weights decay before the update, epsilon is added to the corrected root.
    Torch,
    /// That of Hugging Face's transformers: epsilon is added to the root before it is corrected, weights decay after
    /// the update.
    Hf,
}

impl AdamWMode {
    /// The mode that the attribute `mode` spells.
    pub fn from_name(name: &str) -> Option<AdamWMode> {
        match name {
            "torch" => Some(AdamWMode::Torch),
            "hf" => Some(AdamWMode::Hf),
            _ => None,
        }
    }

    /// Its spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            AdamWMode::Torch => "torch",
            AdamWMode::Hf => "hf",
        }
    }
}

/// Adam or AdamW of ai.ampc.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AdamView {
    /// The variant of AdamW; `None` for Adam, whose decay is added to the gradient.
    pub mode: Option<AdamWMode>,
    /// The decay of the mean of gradients.
    pub beta1: f64,
    /// The decay of the mean of their squares.
    pub beta2: f64,
    /// The summand of the root.
    pub epsilon: f64,
    /// The decay of the weights: times the learning rate for AdamW.
    pub weight_decay: f64,
    /// True if means are corrected for having begun at 0.
    pub bias_correction: bool,
    /// The element type of the low copy; `None` if the node makes none.
    pub w_lo: Option<DType>,
}

impl AdamView {
    /// Reads an Adam or AdamW.
    ///
    /// # Errors
    /// If an attribute is absent or has a value that the operator does not have.
    pub fn read(view: &NodeView<'_>) -> Result<AdamView, OpError> {
        let mode = match view.kind() {
            OpKind::Adam => None,
            _ => Some(word(view, "mode", "torch or hf", AdamWMode::from_name)?),
        };
        Ok(AdamView {
            mode,
            beta1: double(view, "beta1")?,
            beta2: double(view, "beta2")?,
            epsilon: double(view, "epsilon")?,
            weight_decay: double(view, "weight_decay")?,
            bias_correction: flag(view, "bias_correction")?,
            w_lo: w_lo(view, 3)?,
        })
    }
}

/// Effect of a gradient that is not finite.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum OnOverflow {
    /// Nothing changes.
    Skip,
    /// The gradient counts as zeros, and the step is taken.
    ZeroGrad,
}

impl OnOverflow {
    /// Parses the attribute `on_overflow`.
    pub fn from_name(name: &str) -> Option<OnOverflow> {
        match name {
            "skip" => Some(OnOverflow::Skip),
            "zero_grad" => Some(OnOverflow::ZeroGrad),
            _ => None,
        }
    }

    /// Its spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            OnOverflow::Skip => "skip",
            OnOverflow::ZeroGrad => "zero_grad",
        }
    }
}

/// Kind of momentum of an SGD.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Momentum {
    /// The gradient: there is no state but the weights.
    Plain,
    /// The momentum.
    Momentum,
    /// The gradient, and the momentum as it is next.
    Nesterov,
}

impl Momentum {
    /// The word by which overloads name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Momentum::Plain => "plain",
            Momentum::Momentum => "momentum",
            Momentum::Nesterov => "nesterov",
        }
    }
}

/// SGD of ai.ampc.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SgdView {
    /// The direction in which the weights move.
    pub direction: Momentum,
    /// The effect of a gradient that is not finite.
    pub on_overflow: OnOverflow,
    /// The decay of the momentum.
    pub momentum: f64,
    /// The share of the gradient that the momentum leaves out.
    pub dampening: f64,
    /// The decay of the weights, which is added to the gradient.
    pub weight_decay: f64,
    /// The element type of the low copy; `None` if the node makes none.
    pub w_lo: Option<DType>,
}

impl SgdView {
    /// Reads an SGD.
    ///
    /// # Errors
    /// If an attribute is absent or has a value that the operator does not have, or the state does not fit them.
    pub fn read(view: &NodeView<'_>) -> Result<SgdView, OpError> {
        let (momentum, nesterov) = (double(view, "momentum")?, flag(view, "nesterov")?);
        let direction = match (view.has(6), nesterov) {
            (true, false) => Momentum::Momentum,
            (true, true) => Momentum::Nesterov,
            (false, false) => Momentum::Plain,
            (false, true) => return Err(OpError::attr("nesterov", "0 where there is no `v`", "1")),
        };
        if direction == Momentum::Plain {
            if momentum != 0.0 {
                return Err(OpError::attr("momentum", "0 where there is no `v`", momentum.to_string()));
            }
            if view.data().result(1).is_some() {
                let expected = "none where there is no `v`".into();
                return Err(OpError { part: Part::Result(1), expected, found: "the next momentum".into() });
            }
        }
        Ok(SgdView {
            direction,
            on_overflow: word(view, "on_overflow", "skip or zero_grad", OnOverflow::from_name)?,
            momentum,
            dampening: double(view, "dampening")?,
            weight_decay: double(view, "weight_decay")?,
            w_lo: w_lo(view, 2)?,
        })
    }
}

/// The element type of the low copy that an optimizer makes, after all its attributes are checked; `None` if it makes
/// no low copy.
///
/// # Errors
/// If an attribute is absent or has a value that the operator does not have, or the states do not fit them.
pub fn low_format(view: &NodeView<'_>) -> Result<Option<DType>, OpError> {
    match view.kind() {
        OpKind::Adam | OpKind::AdamW => Ok(AdamView::read(view)?.w_lo),
        OpKind::SGD => Ok(SgdView::read(view)?.w_lo),
        _ => Ok(None),
    }
}

/// The element type that `w_lo_dtype` names, for the low copy that result `j` is.
fn w_lo(view: &NodeView<'_>, j: usize) -> Result<Option<DType>, OpError> {
    let dtype = view.dtype_attr("w_lo_dtype")?;
    match dtype {
        None if view.data().result(j).is_some() => {
            let expected = "no low copy, or the attribute `w_lo_dtype`".into();
            Err(OpError { part: Part::Result(j), expected, found: "a low copy".into() })
        }
        None | Some(DType::F16 | DType::BF16) => Ok(dtype),
        Some(other) => Err(OpError::attr("w_lo_dtype", "float16 (10) or bfloat16 (16)", other.to_string())),
    }
}

/// Parses an attribute whose value is a word from a list.
pub(super) fn word<T>(
    view: &NodeView<'_>,
    name: &str,
    expected: &str,
    meaning: impl Fn(&str) -> Option<T>,
) -> Result<T, OpError> {
    let found = match view.attr(name) {
        Some(AttrValue::String(text)) => String::from_utf8_lossy(text).into_owned(),
        _ => "none".to_owned(),
    };
    meaning(&found).ok_or_else(|| OpError::attr(name, expected, found))
}

/// Reads an attribute that is 0 or 1.
pub(super) fn flag(view: &NodeView<'_>, name: &str) -> Result<bool, OpError> {
    match view.int(name) {
        Some(0) => Ok(false),
        Some(1) => Ok(true),
        Some(n) => Err(OpError::attr(name, "0 or 1", n.to_string())),
        None => Err(OpError::attr(name, "0 or 1", "none")),
    }
}

/// The number in an attribute that is a scalar tensor of f64.
pub(super) fn double(view: &NodeView<'_>, name: &str) -> Result<f64, OpError> {
    const EXPECTED: &str = "a scalar of f64";
    match view.attr(name) {
        Some(AttrValue::Tensor(data)) if data.dtype() == DType::F64 && data.dims().is_empty() => {
            let number = data.small_floats(1).and_then(|numbers| numbers.first().copied());
            number.ok_or_else(|| OpError::attr(name, EXPECTED, "elements that cannot be read"))
        }
        Some(AttrValue::Tensor(data)) => {
            let found = format!("a tensor of {} with dims {:?}", data.dtype(), data.dims());
            Err(OpError::attr(name, EXPECTED, found))
        }
        Some(other) => {
            Err(OpError::attr(name, EXPECTED, format!("an attribute of kind {}", other.kind().as_str())))
        }
        None => Err(OpError::attr(name, EXPECTED, "none")),
    }
}
