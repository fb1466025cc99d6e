//! Convolutions and pools.

use super::inferred::Inferred;
use super::linear::scalars;
use crate::op::OpKind;
use crate::ty::{Dim, Dims, Shape, show};
use crate::views::size::{agree, at_least, extent, one_element, part, ranked, shape_error, times};
use crate::views::window::{ConvView, TransposedView, UnpoolView, WindowView};
use crate::views::{NodeView, OpError};

/// The dims of the input of a window: from its type, or unknown ones where only `rank` is known.
fn input_dims<'a>(view: &NodeView<'a>, rank: Option<usize>) -> Result<Option<Dims>, OpError> {
    let dims: Option<&'a [Dim]> = at_least(view, 0, 3)?;
    Ok(match (dims, rank) {
        (Some(dims), _) => Some(dims.iter().copied().collect()),
        (None, Some(rank)) => Some(smallvec::smallvec![Dim::Unknown; rank]),
        (None, None) => None,
    })
}

/// Conv, ConvInteger, QLinearConv and DeformConv.
pub(super) fn infer_conv(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let conv = ConvView::read(view)?;
    if view.kind() == OpKind::ConvInteger {
        one_element(view, 2)?;
    } else if view.kind() == OpKind::QLinearConv {
        scalars(view, &[1, 2, 6, 7])?;
    }
    let weights = at_least(view, conv.weights, 3)?;
    let Some(x) = input_dims(view, weights.map(<[Dim]>::len))? else { return Ok(()) };
    let weights_dims = match weights {
        Some(w) => ranked(view, conv.weights, x.len())?.unwrap_or(w),
        None => &[],
    };
    let mut channels_out = Dim::Unknown;
    agree(view, conv.weights, 0, &mut channels_out, "number of output channels")?;
    check_groups(&conv, &x, weights_dims, channels_out)?;
    if let Some(bias) = conv.bias {
        ranked(view, bias, 1)?;
        agree(view, bias, 0, &mut channels_out, "number of output channels")?;
    }
    let window = WindowView::read(view, x.len() - 2, weights_dims.get(2..))?;
    let mut dims: Dims = smallvec::smallvec![x[0], channels_out];
    for (axis, &d) in x[2..].iter().enumerate() {
        dims.push(window.output(axis, d)?);
    }
    if view.kind() == OpKind::DeformConv {
        check_deformation(view, &window, &mut dims)?;
    }
    out.shape(0, Shape(Some(dims)));
    Ok(())
}

fn check_groups(conv: &ConvView, x: &[Dim], weights: &[Dim], channels_out: Dim) -> Result<(), OpError> {
    let Some(&per_group) = weights.get(1) else { return Ok(()) };
    if times(per_group, conv.group).meet(x[1]).is_none() {
        return Err(shape_error(
            conv.weights,
            format!(
                "{} input channels in {} groups over {} (axis 1)",
                x[1].known().unwrap_or(0),
                conv.group,
                show(x)
            ),
            weights,
        ));
    }
    if part(channels_out, conv.group).is_none() {
        return Err(OpError::attr(
            "group",
            format!("a divisor of {} output channels", channels_out.known().unwrap_or(0)),
            conv.group.to_string(),
        ));
    }
    Ok(())
}

/// Offsets and mask have the spatial extents of the output and so many channels per element of the window.
fn check_deformation(view: &NodeView<'_>, window: &WindowView, dims: &mut Dims) -> Result<(), OpError> {
    let groups = view.int("offset_group").unwrap_or(1);
    let groups = u64::try_from(groups)
        .ok()
        .filter(|&g| g > 0)
        .ok_or_else(|| OpError::attr("offset_group", "a positive number of groups", groups.to_string()))?;
    let n = window.kernel.len();
    let cells = crate::views::size::product(&window.kernel);
    for (operand, per_cell) in [(2, u64::try_from(n).unwrap_or(0)), (4, 1)] {
        if ranked(view, operand, n + 2)?.is_none() {
            continue;
        }
        let channels = cells.and_then(|c| c.checked_mul(groups)?.checked_mul(per_cell));
        agree(view, operand, 0, &mut dims[0], "batch size")?;
        agree(view, operand, 1, &mut channels.map_or(Dim::Unknown, Dim::Known), "channels of the window")?;
        for axis in 2..n + 2 {
            agree(view, operand, axis, &mut dims[axis], "extent of the output")?;
        }
    }
    Ok(())
}

/// ConvTranspose.
pub(super) fn infer_conv_transpose(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let conv = ConvView::read(view)?;
    let weights = at_least(view, 1, 3)?;
    let Some(mut x) = input_dims(view, weights.map(<[Dim]>::len))? else { return Ok(()) };
    if part(x[1], conv.group).is_none() {
        return Err(shape_error(0, format!("channels in {} groups (axis 1)", conv.group), &x));
    }
    let mut channels_out = Dim::Unknown;
    if weights.is_some() {
        ranked(view, 1, x.len())?;
        agree(view, 1, 0, &mut x[1], "number of input channels")?;
        agree(view, 1, 1, &mut channels_out, "number of output channels per group")?;
        channels_out = times(channels_out, conv.group);
    }
    ranked(view, 2, 1)?;
    agree(view, 2, 0, &mut channels_out, "number of output channels")?;
    let n = x.len() - 2;
    let window = WindowView::read(view, n, weights.and_then(|w| w.get(2..)))?;
    let transposed = TransposedView::read(view, n)?;
    let mut dims: Dims = smallvec::smallvec![x[0], channels_out];
    for (axis, &d) in x[2..].iter().enumerate() {
        dims.push(transposed.output(&window, axis, d)?);
    }
    out.shape(0, Shape(Some(dims)));
    Ok(())
}

/// AveragePool, LpPool, MaxPool with its indices.
pub(super) fn infer_pool(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let rank = WindowView::rank_by_attributes(view).map(|n| n.saturating_add(2));
    let Some(x) = input_dims(view, rank)? else { return Ok(()) };
    let window = WindowView::read(view, x.len() - 2, None)?;
    let mut dims: Dims = smallvec::smallvec![x[0], x[1]];
    for (axis, &d) in x[2..].iter().enumerate() {
        dims.push(window.output(axis, d)?);
    }
    for i in 0..view.n_results() {
        out.shape(i, Shape(Some(dims.clone())));
    }
    Ok(())
}

/// GlobalAveragePool, GlobalLpPool, GlobalMaxPool.
pub(super) fn infer_global_pool(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let Some(x) = at_least(view, 0, 2)? else { return Ok(()) };
    let ones = std::iter::repeat_n(Dim::Known(1), x.len() - 2);
    out.shape(0, Shape::of(x[..2].iter().copied().chain(ones)));
    Ok(())
}

/// MaxUnpool.
pub(super) fn infer_max_unpool(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let given = at_least(view, 0, 3)?.or(at_least(view, 1, 3)?);
    let Some(x) = given else { return Ok(()) };
    if view.shape(0).meet(&view.shape(1)).is_none() {
        return Err(shape_error(1, "the shape of operand 0", view.dims(1).unwrap_or(&[])));
    }
    ranked(view, 2, 1)?;
    let unpool = UnpoolView::read(view, x.len() - 2)?;
    let dims: Dims = match unpool.output_shape {
        Some(dims) if dims.len() == x.len() => dims,
        _ if view.has(2) => smallvec::smallvec![Dim::Unknown; x.len()],
        _ => {
            let mut dims: Dims = smallvec::smallvec![x[0], x[1]];
            for (i, &d) in x[2..].iter().enumerate() {
                let size = d.known().map(|n| {
                    (i128::from(n) - 1) * i128::from(unpool.strides[i]) + i128::from(unpool.kernel[i])
                        - i128::from(unpool.pads[i].0)
                        - i128::from(unpool.pads[i].1)
                });
                dims.push(size.map_or(Dim::Unknown, extent));
            }
            dims
        }
    };
    out.shape(0, Shape(Some(dims)));
    Ok(())
}
