//! Gradients of operators that move, repeat or leave out elements: exact except for sums.

use super::backward::sections::{Section, padded};
use super::backward::{Backward, Build, Ruled, signed};
use super::dims::{dim_range, wide};
use super::indexing::by_numbers;
use super::reads::NeedsSlot;
use crate::pass::training_error::RuleError;
use ampc_ir::infer::Int;
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::views::broadcast::{Bound, DropoutView};
use ampc_ir::views::{Axes, ConcatView, PadView, Part, SliceView, TileView, TransposeView, normalize_axis};
use ampc_ir::{AttrValue, DType, NodeSpec, Type, Value};

/// Back to the type of the operand. The author's casts to integers have no gradient: the type of the result says so.
pub(super) fn cast(b: &mut Backward<'_>) -> Ruled {
    let dy = b.dy0()?;
    b.add(0, dy)
}

pub(super) fn identity(b: &mut Backward<'_>) -> Ruled {
    let dy = b.dy0()?;
    b.add(0, dy)
}

/// Reshape, Flatten, Squeeze and Unsqueeze.
pub(super) fn reshape(b: &mut Backward<'_>) -> Ruled {
    let (x, dy) = (b.x(0)?, b.dy0()?);
    let dx = b.reshape_as(dy, x)?;
    b.add(0, dx)
}

pub(super) fn transpose(b: &mut Backward<'_>) -> Ruled {
    let dy = b.dy0()?;
    let rank = b.rank(dy)?;
    let perm = TransposeView::read(&b.view()?).perm(rank)?;
    let mut inverse = vec![0; rank];
    for (to, &from) in perm.iter().enumerate() {
        inverse[from] = to;
    }
    let dx = if inverse == [1, 0] { super::linear::turned(b, dy)? } else { b.transpose(dy, &inverse)? };
    b.add(0, dx)
}

pub(super) fn expand(b: &mut Backward<'_>) -> Ruled {
    let dy = b.dy0()?;
    b.add_unbroadcast(0, dy)
}

/// dy as [r₀, d₀, r₁, d₁ …], summed over the repetitions.
pub(super) fn tile(b: &mut Backward<'_>) -> Ruled {
    let (x, dy) = (b.x(0)?, b.dy0()?);
    let dims = b.shape(x)?;
    let extents: Option<Vec<i64>> = dims.iter().map(|dim| dim.known().map(wide)).collect();
    let repeats = match TileView::read(&b.view()?) {
        TileView::All(Some(list)) => {
            list.iter().map(|n| if let Int::Known(n) = n { Some(*n) } else { None }).collect()
        }
        TileView::All(None) | TileView::One { .. } => None,
    };
    let repeats: Option<Vec<i64>> = repeats;
    let (Some(extents), Some(repeats)) = (extents, repeats) else { return by_numbers(b) };
    let shape: Vec<i64> = repeats.iter().zip(&extents).flat_map(|(&r, &d)| [r, d]).collect();
    let dy = b.wide(dy)?;
    let split = b.reshape(dy, &shape)?;
    let axes: Vec<usize> = (0..extents.len()).map(|axis| 2 * axis).collect();
    let dx = b.sum_over(split, &axes, false)?;
    b.add(0, dx)
}

pub(super) fn concat(b: &mut Backward<'_>) -> Ruled {
    let dy = b.dy0()?;
    let rank = b.rank(dy)?;
    let axis = normalize_axis(ConcatView::read(&b.view()?)?.axis, rank, Part::Attr("axis".into()))?;
    let n = b.view()?.n_operands();
    let mut sizes = Vec::with_capacity(n);
    for i in 0..n {
        sizes.push(b.shape(b.x(i)?)?.get(axis).and_then(|dim| dim.known()).map(wide));
    }
    let known: Option<Vec<i64>> = sizes.into_iter().collect();
    let sizes = match known {
        Some(sizes) => b.ints(&sizes),
        None => {
            let mut list = Vec::with_capacity(n);
            for i in 0..n {
                list.push(dim_range(b, b.x(i)?, axis, Some(axis + 1))?);
            }
            b.op(OpKind::Concat, &list, &[("axis", AttrValue::Int(0))])?
        }
    };
    let spec = NodeSpec::new(OpKind::Split, &[dy, sizes]).attr("axis", AttrValue::Int(signed(axis)));
    let parts = b.insert_n(spec, n)?;
    parts.into_iter().enumerate().try_for_each(|(i, part)| b.add(i, part))
}

pub(super) fn split(b: &mut Backward<'_>) -> Ruled {
    let axis = b.view()?.int("axis").unwrap_or(0);
    let n = b.module().node(b.node()).results().len();
    let there: Vec<usize> = (0..n).filter(|&i| b.dy(i).is_some()).collect();
    let gradients: Vec<Value> = there.iter().filter_map(|&i| b.dy(i)).collect();
    let mut gradients = b.in_one_type(&gradients)?.into_iter().peekable();
    let dtype = gradients.peek().map_or_else(|| b.dtype(b.x(0)?), |&first| b.dtype(first))?;
    let mut parts = Vec::with_capacity(n);
    for i in 0..n {
        let dy = if there.contains(&i) { gradients.next() } else { None };
        let part = match dy {
            Some(dy) => dy,
            // Nothing that leads to the loss reads it.
            None => {
                let y = b.y(i)?;
                b.zeros(dtype, y)?
            }
        };
        parts.push(part);
    }
    let dx = b.op(OpKind::Concat, &parts, &[("axis", AttrValue::Int(axis))])?;
    b.add(0, dx)
}

/// dy as the gradient of a section if elements along one axis are cut off, and with zeros around it if along several. Where
/// elements are left out in between, or the place is not known, dy is added up by numbers.
pub(super) fn slice(b: &mut Backward<'_>) -> Ruled {
    let Some(pads) = around_slice(&b.view()?)? else { return by_numbers(b) };
    let (x, dy) = (b.x(0)?, b.dy0()?);
    let rank = pads.len() / 2;
    let cut: Vec<usize> = (0..rank).filter(|&axis| pads[axis] != 0 || pads[axis + rank] != 0).collect();
    let extent = |b: &Backward<'_>, axis: usize| -> Ruled<Option<i64>> {
        Ok(b.shape(x)?[axis].known().and_then(|n| i64::try_from(n).ok()))
    };
    if let [axis] = cut[..]
        && let Some(extent) = extent(b, axis)?
    {
        let range = pads[axis]..extent - pads[axis + rank];
        return b.add_section(0, Section { axis, range, extent, gradient: dy, reader: b.node() });
    }
    let dx = if cut.is_empty() { dy } else { padded(b, dy, &pads)? };
    b.add(0, dx)
}

/// True if the gradient of a Slice is moved and not added up by numbers.
pub(super) fn slice_passes(view: &NodeView<'_>, _: &NeedsSlot<'_>) -> bool {
    around_slice(view).is_ok_and(|pads| pads.is_some())
}

/// The numbers of elements that a Slice with steps of 1 leaves out before and behind, as Pad takes them; `None` if unknown.
fn around_slice(view: &NodeView<'_>) -> Ruled<Option<Vec<i64>>> {
    let Some(dims) = view.dims(0) else { return Ok(None) };
    let slice = SliceView::read(view);
    let numbers = |list: &[Int]| -> Option<Vec<i64>> {
        list.iter().map(|n| if let Int::Known(n) = n { Some(*n) } else { None }).collect()
    };
    let starts = slice.starts.as_deref().and_then(numbers);
    let ends = slice.ends.as_deref().and_then(numbers);
    let (Some(starts), Some(ends)) = (starts, ends) else { return Ok(None) };
    let steps = match &slice.steps {
        None => return Ok(None),
        Some(None) => vec![1; starts.len()],
        Some(Some(steps)) => match numbers(steps) {
            Some(steps) => steps,
            None => return Ok(None),
        },
    };
    let axes: Vec<usize> = match &slice.axes {
        Axes::Absent => (0..starts.len()).collect(),
        Axes::Known(axes) => {
            let axes = axes.iter().map(|&axis| normalize_axis(axis, dims.len(), Part::Operand(3)));
            axes.collect::<Result<_, _>>()?
        }
        Axes::Unknown(_) => return Ok(None),
    };
    if steps.iter().any(|&step| step != 1) {
        return Ok(None);
    }
    let mut pads = vec![0; 2 * dims.len()];
    for (i, &axis) in axes.iter().enumerate() {
        let Some(n) = dims[axis].known() else { return Ok(None) };
        let (start, count) = ampc_ir::views::slice_range(n, starts[i], ends[i], 1);
        let behind = i128::from(n) - start - count;
        let (Ok(start), Ok(behind)) = (i64::try_from(start), i64::try_from(behind)) else { return Ok(None) };
        (pads[axis], pads[axis + dims.len()]) = (start, behind);
    }
    Ok(Some(pads))
}

/// True if a Pad adds constants, so that its gradient is the inside.
pub(super) fn pad_passes(view: &NodeView<'_>, _: &NeedsSlot<'_>) -> bool {
    PadView::read(view).is_ok_and(|pad| pad.mode == "constant")
}

/// Gradients of constant padding: the inside for the operand, and the sum of the outside for the padding's
/// value. Other modes repeat elements: dy is added up by numbers.
pub(super) fn pad(b: &mut Backward<'_>) -> Ruled {
    let view = b.view()?;
    let pad = PadView::read(&view)?;
    if pad.mode != "constant" {
        return by_numbers(b);
    }
    let value = match pad.value {
        Bound::Operand(i) => Some(i),
        Bound::None | Bound::Number(_) => None,
    };
    let dy = b.dy0()?;
    let pads = b.x(1)?;
    let negated = b.neg(pads)?;
    let zero = b.number_like(0.0, dy)?;
    let mut operands = vec![Some(dy), Some(negated), Some(zero)];
    operands.extend(b.operand(3).map(Some));
    let [inside] = b.insert(NodeSpec::new(OpKind::Pad, &[]).operands(&operands))?;
    b.add(0, inside)?;
    if let Some(i) = value.filter(|&i| b.needs(i)) {
        let (dy, inside) = (b.wide(dy)?, b.wide(inside)?);
        let axes: Vec<usize> = (0..b.rank(dy)?).collect();
        let (all, part) = (b.sum_over(dy, &axes, false)?, b.sum_over(inside, &axes, false)?);
        let d = b.minus(all, part)?;
        let d = b.reshape_as(d, b.x(i)?)?;
        b.add(i, d)?;
    }
    Ok(())
}

/// Elements that were cropped at the center are padded with zeros, and elements that were padded are cropped.
pub(super) fn center_crop_pad(b: &mut Backward<'_>) -> Ruled {
    let (x, dy) = (b.x(0)?, b.dy0()?);
    let shape = b.shape_of(x)?;
    let dx = b.op(OpKind::CenterCropPad, &[dy, shape], &[])?;
    b.add(0, dx)
}

/// True if a Dropout drops nothing.
pub(super) fn dropout_passes(view: &NodeView<'_>, _: &NeedsSlot<'_>) -> bool {
    DropoutView::read(view).training == Some(false) || ratio(view) == Some(0.0)
}

/// The constant ratio of a Dropout.
fn ratio(view: &NodeView<'_>) -> Option<f64> {
    let Some(i) = DropoutView::read(view).ratio_operand else { return Some(0.5) };
    match view.constant(i)?.small_floats(1)?[..] {
        [number] => Some(number),
        _ => None,
    }
}

/// dy · mask / (1 − ratio) while training, dy otherwise.
pub(super) fn dropout(b: &mut Backward<'_>) -> Ruled {
    let dy = b.dy0()?;
    let view = b.view()?;
    if dropout_passes(&view, &|_| false) {
        return b.add(0, dy);
    }
    let (view, ratio) = (DropoutView::read(&view), ratio(&view));
    let y = b.y(0)?;
    let shape = b.ty(y).shape().cloned().unwrap_or_default();
    let mask = b.result_or_new(1, Type::tensor(DType::Bool, shape))?;
    let dy = b.wide(dy)?;
    let kept = b.masked(mask, dy)?;
    let scaled = match ratio {
        Some(ratio) => b.scaled(kept, 1.0 / (1.0 - ratio))?,
        None => {
            let i = view.ratio_operand.unwrap_or(1);
            let ratio = b.x(i)?;
            let ratio = b.cast(ratio, b.dtype(kept)?)?;
            let rest = b.number_minus(1.0, ratio)?;
            b.over(kept, rest)?
        }
    };
    let dx = match view.training {
        Some(_) => scaled,
        // The step reads `training_mode` when it runs.
        None => {
            let trains = b.x(2)?;
            b.select(trains, scaled, dy)?
        }
    };
    b.add(0, dx)
}

/// dy for an operator that rounds its result: in the type of y, or wider.
pub(super) fn dy_of_y(b: &mut Backward<'_>) -> Ruled<Value> {
    let (y, dy) = (b.y(0)?, b.dy0()?);
    if b.dtype(y)?.is_low() { Ok(dy) } else { b.wide(dy) }
}

/// The same elements are kept, with the same factor: the operator itself, of dy.
pub(super) fn philox_dropout(b: &mut Backward<'_>) -> Ruled {
    let (dy, seed, offset, ratio) = (dy_of_y(b)?, b.x(1)?, b.x(2)?, b.x(3)?);
    let stream = b.view()?.int("stream").unwrap_or(0);
    let spec = NodeSpec::new(OpKind::PhiloxDropout, &[dy, seed, offset, ratio]);
    let [dx] = b.insert(spec.attr("stream", AttrValue::Int(stream)))?;
    b.add(0, dx)
}

pub(super) fn trilu(b: &mut Backward<'_>) -> Ruled {
    let dy = b.dy0()?;
    let upper = b.view()?.int("upper").unwrap_or(1);
    let mut operands = vec![dy];
    operands.extend(b.operand(1));
    let dx = b.op(OpKind::Trilu, &operands, &[("upper", AttrValue::Int(upper))])?;
    b.add(0, dx)
}

fn blocksize(b: &Backward<'_>) -> Ruled<i64> {
    let size = b.view()?.int("blocksize");
    size.ok_or_else(|| RuleError::Unsupported("it has no block size".into()))
}

pub(super) fn space_to_depth(b: &mut Backward<'_>) -> Ruled {
    let (dy, size) = (b.dy0()?, blocksize(b)?);
    let dx = b.op(OpKind::DepthToSpace, &[dy], &[("blocksize", AttrValue::Int(size))])?;
    b.add(0, dx)
}

/// SpaceToDepth where channels are in its order (DCR). In the other order (CRD), [N, C, H·s, W·s] is taken apart and its
/// axes brought to [N, C, s, s, H, W].
pub(super) fn depth_to_space(b: &mut Backward<'_>) -> Ruled {
    let (dy, size) = (b.dy0()?, blocksize(b)?);
    if b.view()?.string("mode").unwrap_or("DCR") == "DCR" {
        let dx = b.op(OpKind::SpaceToDepth, &[dy], &[("blocksize", AttrValue::Int(size))])?;
        return b.add(0, dx);
    }
    let x = b.x(0)?;
    let dims = b.shape(x)?;
    let [n, channels, height, width] = dims[..] else {
        return Err(RuleError::Unsupported("it does not have four axes".into()));
    };
    let per_block = |channels: u64| wide(channels) / (size * size).max(1);
    let known = [
        n.known().map(wide),
        channels.known().map(per_block),
        height.known().map(wide),
        width.known().map(wide),
    ];
    let apart = if let [Some(n), Some(channels), Some(height), Some(width)] = known {
        b.reshape(dy, &[n, channels, height, size, width, size])?
    } else {
        let (n, height, width) =
            (dim_range(b, x, 0, Some(1))?, dim_range(b, x, 2, Some(3))?, dim_range(b, x, 3, None)?);
        let channels = match known[1] {
            Some(channels) => b.ints(&[channels]),
            None => dim_range(b, dy, 1, Some(2))?,
        };
        let size = b.ints(&[size]);
        let shape =
            b.op(OpKind::Concat, &[n, channels, height, size, width, size], &[("axis", AttrValue::Int(0))])?;
        b.op(OpKind::Reshape, &[dy, shape], &[])?
    };
    let turned = b.transpose(apart, &[0, 1, 3, 5, 2, 4])?;
    let dx = b.reshape_as(turned, x)?;
    b.add(0, dx)
}
