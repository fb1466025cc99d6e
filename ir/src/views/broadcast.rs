//! Broadcasting of the operands of an element-wise operator.

use super::node::{NodeView, OpError};
use crate::op::OpKind;

/// The broadcasting rule of operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broadcast {
    /// All shapes are the same: variadic operators below 8, arithmetic below 7 without `broadcast`.
    Identical,
    /// The second operand is a scalar or a run of axes of the first, from `axis` on or at its end: arithmetic
    /// below 7 with `broadcast`.
    Aligned {
        /// Where the run starts; at the end of the first shape if absent.
        axis: Option<i64>,
    },
    /// NumPy's rule.
    Numpy,
    /// NumPy's rule, and the result has the shape of the first operand.
    IntoFirst,
    /// The second operand has one element, or one per channel of the first: PRelu below 7.
    PerChannel,
}

impl Broadcast {
    /// The rule of an element-wise operator at its version.
    pub fn read(view: &NodeView<'_>) -> Broadcast {
        if view.schema.attr("broadcast").is_some() {
            return match view.int("broadcast") {
                Some(0) | None => Broadcast::Identical,
                Some(_) => Broadcast::Aligned { axis: view.int("axis") },
            };
        }
        match (view.kind(), view.since()) {
            (OpKind::Max | OpKind::Min | OpKind::Sum | OpKind::Mean, 0..8) => Broadcast::Identical,
            (OpKind::SwiGLU, _) => Broadcast::Identical,
            (OpKind::PRelu, 0..7) => Broadcast::PerChannel,
            (OpKind::PRelu, _) => Broadcast::IntoFirst,
            _ => Broadcast::Numpy,
        }
    }
}

/// PhiloxDropout of ai.ampc.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PhiloxDropoutView {
    /// The number of the stream of a seed and offset.
    pub stream: u32,
}

impl PhiloxDropoutView {
    /// Reads a PhiloxDropout.
    ///
    /// # Errors
    /// If `stream` is not a word of 32 bits.
    pub fn read(view: &NodeView<'_>) -> Result<PhiloxDropoutView, OpError> {
        let found = view.int("stream");
        let stream = found.and_then(|n| u32::try_from(n).ok()).ok_or_else(|| {
            let found = found.map_or_else(|| "none".to_owned(), |n| n.to_string());
            OpError::attr("stream", "an integer from 0 to 4294967295", found)
        })?;
        Ok(PhiloxDropoutView { stream })
    }
}

/// Dropout at its versions: ratio and mode as attributes or operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DropoutView {
    /// True if elements may be dropped: `None` if an operand that is not constant decides.
    pub training: Option<bool>,
    /// The operand with the ratio, where it is one.
    pub ratio_operand: Option<usize>,
}

impl DropoutView {
    /// Reads a Dropout.
    pub fn read(view: &NodeView<'_>) -> DropoutView {
        match view.since() {
            0..7 => DropoutView { training: view.int("is_test").map(|v| v == 0), ratio_operand: None },
            7..12 => DropoutView { training: Some(false), ratio_operand: None },
            _ => {
                let training = if view.has(2) {
                    view.constant(2).and_then(|c| c.small_ints(1)).and_then(|v| v.first().map(|&b| b != 0))
                } else {
                    Some(false)
                };
                DropoutView { training, ratio_operand: view.has(1).then_some(1) }
            }
        }
    }
}

/// A bound of Clip, or the value of Pad.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Bound {
    /// No bound but the element type's own.
    None,
    /// An attribute.
    Number(f32),
    /// An operand with one element.
    Operand(usize),
}

/// Clip at its versions: bounds as attributes or operands.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ClipView {
    /// The lower bound.
    pub min: Bound,
    /// The upper bound.
    pub max: Bound,
}

impl ClipView {
    /// Reads a Clip.
    pub fn read(view: &NodeView<'_>) -> ClipView {
        let bound = |name: &str, i: usize| {
            if view.since() < 11 {
                view.float(name).map_or(Bound::None, Bound::Number)
            } else if view.has(i) {
                Bound::Operand(i)
            } else {
                Bound::None
            }
        };
        ClipView { min: bound("min", 1), max: bound("max", 2) }
    }
}

/// The direction of BitShift.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shift {
    /// Towards the high bits.
    Left,
    /// Towards the low bits.
    Right,
}

impl Shift {
    /// Reads the direction of a BitShift.
    ///
    /// # Errors
    /// If it is neither.
    pub fn read(view: &NodeView<'_>) -> Result<Shift, OpError> {
        match view.string("direction") {
            Some("LEFT") => Ok(Shift::Left),
            Some("RIGHT") => Ok(Shift::Right),
            other => Err(OpError::attr("direction", "LEFT or RIGHT", other.unwrap_or("none"))),
        }
    }
}
