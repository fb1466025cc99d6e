//! Operators that read and write at indices: the Gather and Scatter families, Compress, OneHot, NonZero, Unique,
//! ReverseSequence.

use super::extents::{list_len, meet, product, same_shape, with_dim};
use super::inferred::Inferred;
use crate::int::Int;
use crate::ty::{Dim, Dims, Shape, show};
use crate::views::size::shape_error;
use crate::views::{MAX_INTS, NodeView, OpError, Part, normalize_axis, whole};

fn axis_attr(view: &NodeView<'_>, default: i64, rank: usize) -> Result<usize, OpError> {
    normalize_axis(view.int("axis").unwrap_or(default), rank, Part::Attr("axis".into()))
}

/// Gather.
pub(super) fn infer_gather(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let Some(data) = view.dims(0) else { return Ok(()) };
    let axis = axis_attr(view, 0, data.len())?;
    let Some(indices) = view.dims(1) else { return Ok(()) };
    out.shape(0, Shape::of(data[..axis].iter().chain(indices).chain(&data[axis + 1..]).copied()));
    if data.len() == 1
        && indices.len() <= 1
        && let (Some(ints), Some(at)) = (view.ints(0), view.known_ints(1))
    {
        let n = i64::try_from(ints.len()).unwrap_or(i64::MAX);
        let pick = |i: i64| {
            let front = if i < 0 { i.checked_add(n)? } else { i };
            ints.get(usize::try_from(front).ok()?).copied()
        };
        out.ints = Some(at.into_iter().map(|i| pick(i).unwrap_or(Int::Unknown)).collect());
    }
    Ok(())
}

fn same_rank(view: &NodeView<'_>, a: usize, b: usize) -> Result<(), OpError> {
    match (view.dims(a), view.dims(b)) {
        (Some(x), Some(y)) if x.len() != y.len() => {
            Err(shape_error(b, format!("rank {}, as operand {a} has", x.len()), y))
        }
        _ => Ok(()),
    }
}

/// The shape that two operands have to have in common.
fn same_shapes(view: &NodeView<'_>, a: usize, b: usize) -> Result<Shape, OpError> {
    let (x, y) = (view.shape(a), view.shape(b));
    x.meet(&y).ok_or_else(|| {
        let expected = format!("shape {}, as operand {a} has", show(x.dims().unwrap_or_default()));
        shape_error(b, expected, y.dims().unwrap_or_default())
    })
}

/// GatherElements.
pub(super) fn infer_gather_elements(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    if let Some(data) = view.dims(0) {
        axis_attr(view, 0, data.len())?;
    }
    same_rank(view, 0, 1)?;
    match view.rank(0) {
        Some(rank) if view.rank(1).is_none() => out.shape(0, Shape::of_rank(rank)),
        _ => same_shape(view, out, 1),
    }
    Ok(())
}

/// GatherND.
pub(super) fn infer_gather_nd(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let batch = view.int("batch_dims").unwrap_or(0);
    let batch = usize::try_from(batch)
        .map_err(|_| OpError::attr("batch_dims", "a number of axes", batch.to_string()))?;
    let (Some(data), Some(indices)) = (view.dims(0), view.dims(1)) else { return Ok(()) };
    for (i, dims) in [(0, data), (1, indices)] {
        if dims.len() <= batch {
            return Err(shape_error(i, format!("rank {} or more", batch + 1), dims));
        }
    }
    let mut gathered = Dims::new();
    for axis in 0..batch {
        gathered.push(meet(
            data[axis],
            indices[axis],
            1,
            &format!("a batch extent at axis {axis}"),
            indices,
        )?);
    }
    let Some((last, outer)) = indices.split_last() else { return Ok(()) };
    gathered.extend_from_slice(&outer[batch..]);
    let Some(n) = last.known() else { return Ok(()) };
    let rest = data.len() - batch;
    match usize::try_from(n) {
        Ok(n) if (1..=rest).contains(&n) => gathered.extend_from_slice(&data[batch + n..]),
        _ => return Err(shape_error(1, format!("a last extent in [1, {rest}]"), indices)),
    }
    out.shape(0, Shape(Some(gathered)));
    Ok(())
}

/// Scatter and ScatterElements.
pub(super) fn infer_scatter_elements(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    if let Some(data) = view.dims(0) {
        axis_attr(view, 0, data.len())?;
    }
    same_rank(view, 0, 1)?;
    same_rank(view, 0, 2)?;
    same_shapes(view, 1, 2)?;
    reduction(view)?;
    same_shape(view, out, 0);
    Ok(())
}

fn reduction(view: &NodeView<'_>) -> Result<(), OpError> {
    match view.string("reduction") {
        None | Some("none" | "add" | "mul" | "max" | "min") => Ok(()),
        Some(other) => Err(OpError::attr("reduction", "none, add, mul, max or min", other)),
    }
}

/// ScatterND.
pub(super) fn infer_scatter_nd(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    reduction(view)?;
    same_shape(view, out, 0);
    let (Some(data), Some(indices)) = (view.dims(0), view.dims(1)) else { return Ok(()) };
    let Some((last, outer)) = indices.split_last() else {
        return Err(shape_error(1, "rank 1 or more", indices));
    };
    let Some(k) = last.known() else { return Ok(()) };
    let Some(inner) = usize::try_from(k).ok().and_then(|k| data.get(k..)) else {
        return Err(shape_error(1, format!("a last extent of at most {}", data.len()), indices));
    };
    let Some(updates) = view.dims(2) else { return Ok(()) };
    let expected = Shape::of(outer.iter().chain(inner).copied());
    if expected.meet(&view.shape(2)).is_none() {
        let expected = format!("shape {}", show(expected.dims().unwrap_or_default()));
        return Err(shape_error(2, expected, updates));
    }
    Ok(())
}

/// TensorScatter.
pub(super) fn infer_tensor_scatter(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    same_shape(view, out, 0);
    same_rank(view, 0, 1)?;
    let Some(cache) = view.dims(0) else { return Ok(()) };
    let axis = axis_attr(view, -2, cache.len())?;
    if axis == 0 {
        return Err(OpError::attr("axis", "an axis other than the batch axis 0", "0"));
    }
    if let Some(update) = view.dims(1) {
        for (i, dim) in update.iter().enumerate() {
            let fits = match (cache[i].known(), dim.known()) {
                (Some(a), Some(b)) => {
                    if i == axis {
                        b <= a
                    } else {
                        a == b
                    }
                }
                _ => true,
            };
            if !fits {
                let expected = format!("at axis {i} what fits into {}", show(cache));
                return Err(shape_error(1, expected, update));
            }
        }
    }
    if view.has(2) {
        meet(cache[0], list_len(view, 2)?, 2, "a batch extent", view.dims(2).unwrap_or_default())?;
    }
    Ok(())
}

/// Compress.
pub(super) fn infer_compress(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    list_len(view, 1)?;
    let chosen = view.known_ints(1);
    // Conditions behind the end are left out, so they count only if there are none.
    let count = |whole: Dim| match (&chosen, whole) {
        (Some(chosen), Dim::Known(n)) if chosen.len() as u64 <= n => {
            Dim::Known(chosen.iter().filter(|&&c| c != 0).count() as u64)
        }
        _ => Dim::Unknown,
    };
    if view.attr("axis").is_none() {
        let whole = view.dims(0).map_or(Dim::Unknown, product);
        out.shape(0, Shape::of([count(whole)]));
        return Ok(());
    }
    let Some(dims) = view.dims(0) else { return Ok(()) };
    let axis = axis_attr(view, 0, dims.len())?;
    out.shape(0, with_dim(dims, axis, count(dims[axis])));
    if let (1, Some(ints), Some(chosen)) = (dims.len(), view.ints(0), &chosen) {
        let kept = ints.iter().zip(chosen).filter(|(_, chosen)| **chosen != 0).map(|(&int, _)| int);
        out.ints = Some(kept.collect());
    }
    Ok(())
}

/// OneHot.
pub(super) fn infer_one_hot(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    match view.dims(1) {
        None | Some([] | [Dim::Known(1) | Dim::Sym(_) | Dim::Unknown]) => {}
        Some(dims) => return Err(shape_error(1, "a number", dims)),
    }
    meet(Dim::Known(2), list_len(view, 2)?, 2, "a list", view.dims(2).unwrap_or_default())?;
    let depth = match view.ints(1).as_deref() {
        Some([depth]) => *depth,
        Some(_) => Int::Unknown,
        None => view
            .constant(1)
            .and_then(|data| whole(data.small_floats(MAX_INTS)?.first()?.trunc()))
            .map_or(Int::Unknown, Int::Known),
    };
    if let Some(n) = depth.known().filter(|&n| n < 0) {
        return Err(OpError::operand(1, "a depth of 0 or more", n.to_string()));
    }
    let Some(indices) = view.dims(0) else { return Ok(()) };
    if indices.is_empty() {
        return Err(shape_error(0, "rank 1 or more", indices));
    }
    let axis = axis_attr(view, -1, indices.len() + 1)?;
    let mut dims = Dims::from_slice(indices);
    dims.insert(axis, depth.dim());
    out.shape(0, Shape(Some(dims)));
    Ok(())
}

/// NonZero.
pub(super) fn infer_non_zero(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let rank = view.rank(0).map_or(Dim::Unknown, |r| Dim::Known(r as u64));
    out.shape(0, Shape::of([rank, Dim::Unknown]));
    Ok(())
}

/// Unique.
pub(super) fn infer_unique(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let list = Shape::of_rank(1);
    for i in 1..4 {
        out.shape(i, list.clone());
    }
    let dims = view.dims(0);
    if view.attr("axis").is_none() {
        out.shape(0, list);
        out.shape(2, Shape::of([dims.map_or(Dim::Unknown, product)]));
        return Ok(());
    }
    let Some(dims) = dims else { return Ok(()) };
    let axis = axis_attr(view, 0, dims.len())?;
    out.shape(0, with_dim(dims, axis, Dim::Unknown));
    out.shape(2, Shape::of([dims[axis]]));
    Ok(())
}

/// ReverseSequence.
pub(super) fn infer_reverse_sequence(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    same_shape(view, out, 0);
    let batch = view.int("batch_axis").unwrap_or(1);
    let time = view.int("time_axis").unwrap_or(0);
    for (name, axis) in [("batch_axis", batch), ("time_axis", time)] {
        if !(0..=1).contains(&axis) {
            return Err(OpError::attr(name, "0 or 1", axis.to_string()));
        }
    }
    if batch == time {
        return Err(OpError::attr("time_axis", "an axis other than the batch axis", time.to_string()));
    }
    let n = list_len(view, 1)?;
    let Some(dims) = view.dims(0) else { return Ok(()) };
    if dims.len() < 2 {
        return Err(shape_error(0, "rank 2 or more", dims));
    }
    let extent = if batch == 0 { dims[0] } else { dims[1] };
    meet(extent, n, 1, "a list", &[n]).map(drop)
}

/// DepthToSpace.
pub(super) fn infer_depth_to_space(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let Some(([n, c, h, w], block)) = blocks(view)? else {
        out.shape(0, Shape::of_rank(4));
        return Ok(());
    };
    let c = block.checked_mul(block).map_or(Ok(Dim::Unknown), |b| divided(view, c, b, 1))?;
    out.shape(0, Shape::of([n, c, super::extents::times(h, block), super::extents::times(w, block)]));
    Ok(())
}

/// SpaceToDepth.
pub(super) fn infer_space_to_depth(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let Some(([n, c, h, w], block)) = blocks(view)? else {
        out.shape(0, Shape::of_rank(4));
        return Ok(());
    };
    let c = super::extents::times(super::extents::times(c, block), block);
    out.shape(0, Shape::of([n, c, divided(view, h, block, 2)?, divided(view, w, block, 3)?]));
    Ok(())
}

/// The four dims of operand 0, if known, and the size of blocks.
fn blocks(view: &NodeView<'_>) -> Result<Option<([Dim; 4], u64)>, OpError> {
    let Some(size) = view.int("blocksize") else {
        return Err(OpError::attr("blocksize", "a size", "none"));
    };
    let block = u64::try_from(size)
        .ok()
        .filter(|&b| b > 0)
        .ok_or_else(|| OpError::attr("blocksize", "1 or more", size.to_string()))?;
    match view.dims(0) {
        None => Ok(None),
        Some(&[n, c, h, w]) => Ok(Some(([n, c, h, w], block))),
        Some(dims) => Err(shape_error(0, "rank 4", dims)),
    }
}

fn divided(view: &NodeView<'_>, dim: Dim, by: u64, axis: usize) -> Result<Dim, OpError> {
    match dim {
        Dim::Known(n) if n % by == 0 => Ok(Dim::Known(n / by)),
        Dim::Known(_) => {
            let expected = format!("an extent at axis {axis} that {by} divides");
            Err(shape_error(0, expected, view.dims(0).unwrap_or_default()))
        }
        dim if by == 1 => Ok(dim),
        _ => Ok(Dim::Unknown),
    }
}
