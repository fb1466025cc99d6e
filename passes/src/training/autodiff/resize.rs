//! The gradient of Resize.
//!
//! Every element of the result is a sum of elements of the operand with weights that positions give, axis by
//! axis: y = A·x·Bᵀ for two axes. So dx = Aᵀ·dy·B, and the weights along an axis are the Resize of the identity
//! matrix:
//!
//! ```text
//! Aᵀ = Resize(identity [n, n], sizes [n, m])        n elements become m: row i says where element i went
//! ```

use super::backward::{Backward, Build, Ruled, signed};
use super::dims::extent;
use crate::pass::training_error::RuleError;
use ampc_ir::op::OpKind;
use ampc_ir::views::resize::{AspectRatio, Coordinates, ResizeView, SamplingView, Target};
use ampc_ir::views::{MAX_INTS, constant_of};
use ampc_ir::{AttrValue, Dim, TensorData, Value};

pub(super) fn resize(b: &mut Backward<'_>) -> Ruled {
    let (x, dy) = (b.x(0)?, b.dy0()?);
    let (inputs, outputs) = (b.shape(x)?, b.shape(dy)?);
    let view = ResizeView::read(&b.view()?, inputs.len())?;
    if let Target::Sizes(_, AspectRatio::NotLarger | AspectRatio::NotSmaller) = &view.target {
        return Err(RuleError::Unsupported(
            "with a policy for its aspect ratio it is not differentiated: give the resulting sizes".into(),
        ));
    }
    let sampling = SamplingView::read(&b.view()?)?;
    let crops = sampling.coordinates == Coordinates::CropAndResize;
    let region = if crops {
        let data = b.view()?.constant(1).and_then(|data| data.small_floats(128));
        data.filter(|region| region.len() == 2 * view.axes.len())
    } else {
        None
    };
    let mut d = b.wide(dy)?;
    for (i, &axis) in view.axes.iter().enumerate() {
        let ends = region.as_ref().map(|region| (region[i], region[i + view.axes.len()]));
        let is_whole = if crops { ends == Some((0.0, 1.0)) } else { true };
        let stays = match &view.target {
            Target::Scales { scales, .. } => scales[i].to_bits() == 1f64.to_bits(),
            Target::Sizes(..) => inputs[axis] == outputs[axis] && inputs[axis] != Dim::Unknown,
            Target::Unknown => false,
        };
        if stays && is_whole {
            continue;
        }
        let weights = weights(b, d, axis, (i, view.axes.len()), &view.target, crops)?;
        d = along(b, d, axis, weights)?;
    }
    b.add(0, d)
}

/// The weights along an axis, [n, m], in the type of a value. Extents, scales and regions that are not known are read when
/// it runs; `place` is the number of the axis among those that have a scale, and how many these are.
fn weights(
    b: &mut Backward<'_>,
    like: Value,
    axis: usize,
    place: (usize, usize),
    target: &Target,
    crops: bool,
) -> Ruled<Value> {
    let (x, dtype) = (b.x(0)?, b.dtype(like)?);
    let n = extent(b, x, axis)?;
    let (zero, square) = (b.number(0.0, dtype)?, joined(b, &[n, n])?);
    let zeros = b.op(OpKind::Expand, &[zero, square], &[])?;
    let identity = b.op(OpKind::EyeLike, &[zeros], &[])?;
    let region = if crops { Some(region(b, place)?) } else { None };
    // Both axes of the identity are named by their places.
    let mut spec = b.like_node(&["axes", "extrapolation_value", "keep_aspect_ratio_policy"]);
    let is_old = b.view()?.since() < 11;
    let scales_operand = if is_old { 1 } else { 2 };
    let by_scale = match target {
        Target::Scales { .. } => true,
        Target::Sizes(..) => false,
        Target::Unknown => is_old || b.operand(3).is_none(),
    };
    let scales = match target {
        #[expect(clippy::cast_possible_truncation, reason = "scales are of f32 in files")]
        Target::Scales { scales, .. } => Some(floats(b, &[1.0, scales[place.0] as f32])?),
        Target::Unknown if by_scale => {
            let all = b.x(scales_operand)?;
            let own = element(b, all, place.0)?;
            let one = b.number_like(1.0, all)?;
            let one = b.unsqueeze(one, &[0])?;
            Some(joined(b, &[one, own])?)
        }
        Target::Unknown | Target::Sizes(..) => None,
    };
    spec = if is_old {
        spec.operands(&[Some(identity), scales])
    } else if scales.is_some() {
        spec.operands(&[Some(identity), region, scales])
    } else {
        let m = extent(b, b.y(0)?, axis)?;
        let sizes = joined(b, &[n, m])?;
        spec.operands(&[Some(identity), region, None, Some(sizes)])
    };
    if crops {
        spec = spec.attr("extrapolation_value", AttrValue::Float(0.0));
    }
    let [weights] = b.insert(spec)?;
    Ok(weights)
}

/// The region of the identity: all rows, and the ends of the axis.
fn region(b: &mut Backward<'_>, (i, n): (usize, usize)) -> Ruled<Value> {
    let all = b.x(1)?;
    let (start, end) = (element(b, all, i)?, element(b, all, i + n)?);
    let (zero, one) = (b.number_like(0.0, all)?, b.number_like(1.0, all)?);
    let (zero, one) = (b.unsqueeze(zero, &[0])?, b.unsqueeze(one, &[0])?);
    joined(b, &[zero, start, one, end])
}

/// An element of a list, as a list of one.
fn element(b: &mut Backward<'_>, list: Value, i: usize) -> Ruled<Value> {
    let at = b.ints(&[signed(i)]);
    b.op(OpKind::Gather, &[list, at], &[("axis", AttrValue::Int(0))])
}

/// Lists one behind the other, a constant if all of them are constants of integers.
pub(super) fn joined(b: &mut Backward<'_>, lists: &[Value]) -> Ruled<Value> {
    let known = |&list: &Value| constant_of(b.module(), list)?.small_ints(MAX_INTS);
    if let Some(known) = lists.iter().map(known).collect::<Option<Vec<_>>>() {
        return Ok(b.ints(&known.concat()));
    }
    b.op(OpKind::Concat, lists, &[("axis", AttrValue::Int(0))])
}

fn floats(b: &mut Backward<'_>, list: &[f32]) -> Ruled<Value> {
    let data = TensorData::from_f32(&[list.len() as u64], list);
    let data = data.map_err(|error| RuleError::Internal(format!("{error}")))?;
    Ok(b.constant(data))
}

/// Sums along an axis of m elements: n of them, by weights [n, m].
fn along(b: &mut Backward<'_>, d: Value, axis: usize, weights: Value) -> Ruled<Value> {
    let rank = b.rank(d)?;
    if axis + 2 == rank {
        return b.matmul(weights, d);
    }
    let turned = b.transpose_last(weights)?;
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(axis, rank - 1);
    let d = b.transpose(d, &perm)?;
    let d = b.matmul(d, turned)?;
    b.transpose(d, &perm)
}
