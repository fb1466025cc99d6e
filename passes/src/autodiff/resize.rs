//! The gradient of Resize.
//!
//! Every element of the result is a sum of elements of the operand with weights that positions give, axis by
//! axis: y = A·x·Bᵀ for two axes. So dx = Aᵀ·dy·B, and the weights along an axis are the Resize of the identity
//! matrix:
//!
//! ```text
//! Aᵀ = Resize(identity [n, n], sizes [n, m])        n elements become m: row i says where element i went
//! ```

use super::RuleError;
use super::backward::{Backward, Build, Ruled};
use super::window::wide;
use ampc_ir::op::OpKind;
use ampc_ir::views::resize::{AspectRatio, Coordinates, ResizeView, SamplingView, Target};
use ampc_ir::{AttrValue, Dim, TensorData, Value};

pub(super) fn resize(b: &mut Backward<'_>) -> Ruled {
    let (x, dy) = (b.x(0)?, b.dy0()?);
    let (inputs, outputs) = (b.shape(x)?, b.shape(dy)?);
    let view = ResizeView::read(&b.view()?, inputs.len())?;
    let sampling = SamplingView::read(&b.view()?)?;
    let mut region = None;
    if sampling.coordinates == Coordinates::CropAndResize {
        let data = b.view()?.constant(1).and_then(|data| data.small_floats(2 * wide(64).unsigned_abs()));
        region = Some(
            data.filter(|r| r.len() == 2 * view.axes.len())
                .ok_or_else(|| RuleError::Unsupported("its region has to be a constant".into()))?,
        );
    }
    let mut d = b.wide(dy)?;
    for (i, &axis) in view.axes.iter().enumerate() {
        let scale = match &view.target {
            Target::Scales { scales, .. } => Some(scales[i]),
            Target::Sizes(_, AspectRatio::Stretch) => None,
            Target::Sizes(..) => {
                return Err(RuleError::Unsupported(
                    "with a policy for its aspect ratio it is not differentiated".into(),
                ));
            }
            Target::Unknown => {
                return Err(RuleError::Unsupported("its scales or sizes are not known".into()));
            }
        };
        let ends = region.as_ref().map(|region| (region[i], region[i + view.axes.len()]));
        let is_whole = ends.is_none_or(|ends| ends == (0.0, 1.0));
        let stays = match scale {
            Some(scale) => scale.to_bits() == 1f64.to_bits(),
            None => inputs[axis] == outputs[axis] && inputs[axis] != Dim::Unknown,
        };
        if stays && is_whole {
            continue;
        }
        let (Some(n), Some(m)) = (inputs[axis].known(), outputs[axis].known()) else {
            return Err(RuleError::Unsupported(format!(
                "the extents of axis {axis} have to be known, along which it resizes: export the model with fixed ones"
            )));
        };
        let weights = weights(b, d, n, m, scale, ends)?;
        d = along(b, d, axis, weights)?;
    }
    b.add(0, d)
}

/// The weights along an axis, [n, m], in the type of a value.
fn weights(
    b: &mut Backward<'_>,
    like: Value,
    n: u64,
    m: u64,
    scale: Option<f64>,
    ends: Option<(f64, f64)>,
) -> Ruled<Value> {
    let dtype = b.dtype(like)?;
    let (zero, square) = (b.number(0.0, dtype)?, b.ints(&[wide(n), wide(n)]));
    let zeros = b.op(OpKind::Expand, &[zero, square], &[])?;
    let identity = b.op(OpKind::EyeLike, &[zeros], &[])?;
    // Both axes of the identity are named by their places.
    let mut spec = b.like_node(&["axes", "extrapolation_value"]);
    let is_old = b.view()?.since() < 11;
    #[expect(clippy::cast_possible_truncation, reason = "scales and regions are of f32 in files")]
    let region = ends.map(|(start, end)| floats(b, &[0.0, start as f32, 1.0, end as f32])).transpose()?;
    #[expect(clippy::cast_possible_truncation, reason = "scales and regions are of f32 in files")]
    let scales = scale.map(|scale| floats(b, &[1.0, scale as f32])).transpose()?;
    spec = if is_old {
        spec.operands(&[Some(identity), scales])
    } else if scales.is_some() {
        spec.operands(&[Some(identity), region, scales])
    } else {
        let sizes = b.ints(&[wide(n), wide(m)]);
        spec.operands(&[Some(identity), region, None, Some(sizes)])
    };
    if ends.is_some() {
        spec = spec.attr("extrapolation_value", AttrValue::Float(0.0));
    }
    let [weights] = b.insert(spec)?;
    Ok(weights)
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
