//! The optimizers of ai.ampc.

use super::{NodeView, OpError, Part};
use crate::DType;
use crate::attr::AttrValue;

/// Whose AdamW it is.
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

/// AdamW of ai.ampc.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AdamWView {
    /// Whose formula it is.
    pub mode: AdamWMode,
    /// How much of the mean of gradients stays.
    pub beta1: f64,
    /// How much of the mean of their squares stays.
    pub beta2: f64,
    /// What is added to the root.
    pub epsilon: f64,
    /// The decay of the weights, times the learning rate.
    pub weight_decay: f64,
    /// Whether means are corrected for having begun at 0.
    pub bias_correction: bool,
    /// The element type of the low copy; `None` if the node makes none.
    pub w_lo: Option<DType>,
}

impl AdamWView {
    /// Reads an AdamW.
    ///
    /// # Errors
    /// If an attribute is absent or has a value that the operator does not have.
    pub fn read(view: &NodeView<'_>) -> Result<AdamWView, OpError> {
        let mode = match view.attr("mode") {
            Some(AttrValue::String(text)) => String::from_utf8_lossy(text).into_owned(),
            _ => "none".to_owned(),
        };
        Ok(AdamWView {
            mode: AdamWMode::from_name(&mode).ok_or_else(|| OpError::attr("mode", "torch or hf", mode))?,
            beta1: double(view, "beta1")?,
            beta2: double(view, "beta2")?,
            epsilon: double(view, "epsilon")?,
            weight_decay: double(view, "weight_decay")?,
            bias_correction: match view.int("bias_correction") {
                Some(0) => false,
                Some(1) => true,
                Some(n) => return Err(OpError::attr("bias_correction", "0 or 1", n.to_string())),
                None => return Err(OpError::attr("bias_correction", "0 or 1", "none")),
            },
            w_lo: w_lo(view)?,
        })
    }
}

/// The element type that `w_lo_dtype` names.
fn w_lo(view: &NodeView<'_>) -> Result<Option<DType>, OpError> {
    let dtype = view.dtype_attr("w_lo_dtype")?;
    match dtype {
        None if view.data().result(3).is_some() => {
            let expected = "no low copy, or the attribute `w_lo_dtype`".into();
            Err(OpError { part: Part::Result(3), expected, found: "a low copy".into() })
        }
        None | Some(DType::F16 | DType::BF16) => Ok(dtype),
        Some(other) => Err(OpError::attr("w_lo_dtype", "float16 (10) or bfloat16 (16)", other.to_string())),
    }
}

/// The number in an attribute that is a scalar tensor of f64.
fn double(view: &NodeView<'_>, name: &str) -> Result<f64, OpError> {
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
