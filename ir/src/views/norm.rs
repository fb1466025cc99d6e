//! Normalisations and softmaxes.

use super::node::{NodeView, OpError, Part, normalize_axis};
use crate::dtype::DType;
use crate::op::OpKind;

/// BatchNormalization at its versions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BatchNormView {
    /// True if mean and variance are computed from the batch.
    pub training: bool,
    /// True if scale, bias, mean and variance are per channel; below 9 they may be per element.
    pub spatial: bool,
    /// Added to the variance.
    pub epsilon: f32,
    /// Weight of the old running mean and variance.
    pub momentum: f32,
    /// Least and greatest number of results in this mode.
    pub n_results: (usize, usize),
}

impl BatchNormView {
    /// Reads a BatchNormalization.
    pub fn read(view: &NodeView<'_>) -> BatchNormView {
        let training = match view.since() {
            0..7 => view.int("is_test").unwrap_or(0) == 0,
            // From 7 on the number of results is the mode; from 14 on an attribute.
            7..14 => view.n_results() > 1,
            _ => view.int("training_mode").unwrap_or(0) != 0,
        };
        BatchNormView {
            training,
            spatial: view.int("spatial").unwrap_or(1) != 0,
            epsilon: view.float("epsilon").unwrap_or(1e-5),
            momentum: view.float("momentum").unwrap_or(0.9),
            n_results: match view.since() {
                14.. if training => (3, 3),
                14.. => (1, 1),
                _ => (1, 5),
            },
        }
    }
}

/// LayerNormalization, RMSNormalization and SimplifiedLayerNormalization.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LayerNormView {
    /// The first normalised axis, from the front, if the rank is known.
    pub axis: Option<usize>,
    /// The element type of the statistics.
    pub stash: DType,
    /// Added to the variance.
    pub epsilon: f32,
}

impl LayerNormView {
    /// Reads a LayerNormalization, RMSNormalization or SimplifiedLayerNormalization.
    ///
    /// # Errors
    /// If the axis is not an axis of the operand or the element type is invalid.
    pub fn read(view: &NodeView<'_>) -> Result<LayerNormView, OpError> {
        Ok(LayerNormView {
            axis: axis(view, "axis", -1)?,
            stash: view.dtype_attr("stash_type")?.unwrap_or(DType::F32),
            epsilon: view.float("epsilon").unwrap_or(1e-5),
        })
    }
}

/// An axis attribute from the front; `None` if the rank of operand 0 is not known.
pub(super) fn axis(view: &NodeView<'_>, name: &str, default: i64) -> Result<Option<usize>, OpError> {
    let Some(rank) = view.rank(0) else { return Ok(None) };
    normalize_axis(view.int(name).unwrap_or(default), rank, Part::Attr(name.into())).map(Some)
}

/// The axes of Softmax, LogSoftmax or Hardmax that are normalized together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SoftmaxAxes {
    /// One axis.
    One(usize),
    /// All from this one on, as if the operand were a matrix: below 13.
    From(usize),
}

/// Softmax, LogSoftmax and Hardmax at their versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SoftmaxView {
    /// The axes over which results sum to 1; `None` if the rank is not known.
    pub axes: Option<SoftmaxAxes>,
}

impl SoftmaxView {
    /// Reads a Softmax, LogSoftmax or Hardmax.
    ///
    /// # Errors
    /// If the axis is not an axis of the operand.
    pub fn read(view: &NodeView<'_>) -> Result<SoftmaxView, OpError> {
        let Some(rank) = view.rank(0) else { return Ok(SoftmaxView { axes: None }) };
        let coerced = view.since() < 13;
        let axis = view.int("axis").unwrap_or(if coerced { 1 } else { -1 });
        // Version 1 lets the axis be one behind the last: a matrix with one column.
        let behind = view.since() < 11 && i64::try_from(rank) == Ok(axis);
        // A scalar has the axes 0 and -1 here, as if it had one element along one axis.
        let as_vector = rank == 0 && matches!(axis, 0 | -1);
        let axis = if behind {
            rank
        } else if as_vector {
            0
        } else {
            normalize_axis(axis, rank, Part::Attr("axis".into()))?
        };
        let axes = if coerced { SoftmaxAxes::From(axis) } else { SoftmaxAxes::One(axis) };
        Ok(SoftmaxView { axes: Some(axes) })
    }
}

/// InstanceNormalization and GroupNormalization at their versions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ChannelNormView {
    /// The number of groups of channels; `None` if each channel is one.
    pub groups: Option<u64>,
    /// True if scale and bias are per group; from 21 on they are per channel.
    pub per_group: bool,
    /// The element type to compute in, at least.
    pub stash: DType,
    /// Added to the variance.
    pub epsilon: f32,
}

impl ChannelNormView {
    /// Reads an InstanceNormalization or GroupNormalization.
    ///
    /// # Errors
    /// If a GroupNormalization has no groups or a number below 1, or the element type is invalid.
    pub fn read(view: &NodeView<'_>) -> Result<ChannelNormView, OpError> {
        let grouped = view.kind() == OpKind::GroupNormalization;
        Ok(ChannelNormView {
            groups: if grouped { Some(groups(view)?) } else { None },
            per_group: grouped && view.since() < 21,
            stash: view.dtype_attr("stash_type")?.unwrap_or(DType::F32),
            epsilon: view.float("epsilon").unwrap_or(1e-5),
        })
    }
}

fn groups(view: &NodeView<'_>) -> Result<u64, OpError> {
    let groups = view.int("num_groups");
    groups.and_then(|g| u64::try_from(g).ok()).filter(|&g| g > 0).ok_or_else(|| {
        let found = groups.map_or_else(|| "none".into(), |g| g.to_string());
        OpError::attr("num_groups", "a positive number", found)
    })
}

/// The axis and order of LpNormalization; the axis is `None` if the rank is not known.
///
/// # Errors
/// If the axis is not an axis of the operand or the order is neither 1 nor 2.
pub fn lp_normalization(view: &NodeView<'_>) -> Result<(Option<usize>, i64), OpError> {
    let p = view.int("p").unwrap_or(2);
    if !(1..=2).contains(&p) {
        return Err(OpError::attr("p", "1 or 2", p.to_string()));
    }
    Ok((axis(view, "axis", -1)?, p))
}
