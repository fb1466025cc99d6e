//! Operators that join and cut along an axis: Concat, Split, Slice, Pad.

use super::extents::{list_len, meet, shape_of_rank, sum, with_dim};
use super::inferred::Inferred;
use crate::int::Int;
use crate::ty::{Dim, Dims, Shape, Type};
use crate::views::size::shape_error;
use crate::views::{
    Axes, ConcatView, MAX_INTS, NodeView, OpError, PadView, Part, Parts, SliceView, SplitView, distinct_axes,
    normalize_axis, slice_range,
};

/// Concat.
pub(super) fn infer_concat(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let concat = ConcatView::read(view)?;
    let operands: Vec<usize> = (0..view.n_operands()).filter(|&i| view.has(i)).collect();
    let known = operands.iter().copied().find_map(|i| view.dims(i));
    let Some(first) = known else { return Ok(()) };
    let axis = normalize_axis(concat.axis, first.len(), Part::Attr("axis".into()))?;
    let mut joined = Dims::from_slice(first);
    let mut extents = Vec::new();
    for i in operands.iter().copied() {
        let Some(dims) = view.dims(i) else {
            extents.push(Dim::Unknown);
            continue;
        };
        if dims.len() != joined.len() {
            return Err(shape_error(i, format!("rank {}", joined.len()), dims));
        }
        extents.push(dims[axis]);
        for (j, dim) in dims.iter().enumerate().filter(|&(j, _)| j != axis) {
            joined[j] = meet(joined[j], *dim, i, &format!("an extent at axis {j}"), dims)?;
        }
    }
    out.shape(0, with_dim(&joined, axis, sum(extents)));
    if joined.len() == 1 {
        out.ints = joined_ints(view, &operands);
    }
    Ok(())
}

/// Concatenates lists; a list of known length but unknown elements contributes unknown elements.
fn joined_ints(view: &NodeView<'_>, operands: &[usize]) -> Option<Vec<Int>> {
    let mut ints = Vec::new();
    for &i in operands {
        match view.ints(i) {
            Some(part) => ints.extend_from_slice(&part),
            None => {
                let n = view.dims(i)?.first()?.known().filter(|&n| n <= MAX_INTS)?;
                ints.resize(ints.len() + usize::try_from(n).ok()?, Int::Unknown);
            }
        }
        if ints.len() as u64 > MAX_INTS {
            return None;
        }
    }
    ints.iter().any(|n| *n != Int::Unknown).then_some(ints)
}

/// Split.
pub(super) fn infer_split(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let split = SplitView::read(view)?;
    let Some(dims) = view.dims(0) else { return Ok(()) };
    let axis = normalize_axis(split.axis, dims.len(), Part::Attr("axis".into()))?;
    let n = view.n_results();
    let sizes: Vec<Dim> = match &split.parts {
        Parts::Unknown if n == 1 => vec![dims[axis]],
        Parts::Unknown => vec![Dim::Unknown; n],
        Parts::Sizes(sizes) => given_parts(view, &split, dims, axis, sizes)?,
        Parts::Equal | Parts::Ceil => equal_parts(dims, axis, n, split.parts == Parts::Ceil)?,
    };
    for (i, size) in sizes.into_iter().enumerate() {
        out.shape(i, with_dim(dims, axis, size));
    }
    Ok(())
}

fn given_parts(
    view: &NodeView<'_>,
    split: &SplitView<'_>,
    dims: &[Dim],
    axis: usize,
    sizes: &[Int],
) -> Result<Vec<Dim>, OpError> {
    let error = |expected: String, found: String| OpError { part: split.part.clone(), expected, found };
    if sizes.len() != view.n_results() {
        return Err(error(format!("{} sizes, one per result", view.n_results()), sizes.len().to_string()));
    }
    if let Some(n) = sizes.iter().filter_map(|n| n.known()).find(|&n| n < 0) {
        return Err(error("sizes of 0 or more".into(), n.to_string()));
    }
    let mut parts: Vec<Dim> = sizes.iter().map(|n| n.dim()).collect();
    let mismatch = |total: &dyn std::fmt::Display| {
        let whole = dims[axis].known().unwrap_or(0);
        error(format!("sizes with the sum {whole}, the extent at axis {axis}"), total.to_string())
    };
    let blind: Vec<usize> = (0..parts.len()).filter(|&i| parts[i].known().is_none()).collect();
    let known = sum(parts.iter().copied().filter(|d| d.known().is_some()));
    match (dims[axis], known, blind.as_slice()) {
        (Dim::Known(whole), Dim::Known(total), []) if whole != total => return Err(mismatch(&total)),
        (Dim::Known(whole), Dim::Known(total), _) if total > whole => return Err(mismatch(&total)),
        (Dim::Known(_), Dim::Unknown, []) => return Err(mismatch(&"one beyond 2^64")),
        // The one size that is not seen is what is left.
        (Dim::Known(whole), Dim::Known(total), &[i]) => parts[i] = Dim::Known(whole - total),
        (whole, Dim::Known(0), &[i]) if parts[i] == Dim::Unknown => parts[i] = whole,
        _ => {}
    }
    Ok(parts)
}

fn equal_parts(dims: &[Dim], axis: usize, n: usize, uneven: bool) -> Result<Vec<Dim>, OpError> {
    if n == 1 {
        return Ok(vec![dims[axis]]);
    }
    let parts = n as u64;
    let (Some(whole), true) = (dims[axis].known(), n > 0) else { return Ok(vec![Dim::Unknown; n]) };
    if whole % parts == 0 {
        return Ok(vec![Dim::Known(whole / parts); n]);
    }
    let chunk = whole.div_ceil(parts);
    match chunk.checked_mul(parts - 1).and_then(|head| whole.checked_sub(head)) {
        Some(last) if uneven => {
            let mut sizes = vec![Dim::Known(chunk); n - 1];
            sizes.push(Dim::Known(last));
            Ok(sizes)
        }
        _ => {
            let expected = format!("an extent at axis {axis} that {n} parts divide");
            Err(shape_error(0, expected, dims))
        }
    }
}

/// Slice.
pub(super) fn infer_slice(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let slice = SliceView::read(view);
    let Some(dims) = view.dims(0) else { return Ok(()) };
    let len = |i: usize| usize::try_from(view.dims(i)?.first()?.known()?).ok();
    let n = slice.starts.as_ref().or(slice.ends.as_ref()).map(|s| s.len()).or(len(1)).or(len(2));
    let axes = match (&slice.axes, n) {
        (Axes::Known(axes), _) => distinct_axes(axes, dims.len(), &Axes::part(view, 3))?,
        (Axes::Absent, Some(n)) if n <= dims.len() => (0..n).collect(),
        (Axes::Absent, Some(n)) => {
            let expected = format!("starts for at most {} axes", dims.len());
            return Err(OpError::node(expected, n.to_string()));
        }
        (Axes::Absent | Axes::Unknown(_), _) => {
            out.shape(0, Shape::of_rank(dims.len()));
            return Ok(());
        }
    };
    for (what, list) in [("starts", &slice.starts), ("ends", &slice.ends)] {
        check_len(what, list.as_deref(), axes.len())?;
    }
    let steps = slice.steps.as_ref().and_then(Option::as_ref);
    check_len("steps", steps.map(|s| &**s), axes.len())?;
    let mut sliced = Dims::from_slice(dims);
    let at = |list: &Option<std::borrow::Cow<'_, [Int]>>, i: usize| {
        list.as_ref().map_or(Int::Unknown, |list| list[i])
    };
    for (i, &axis) in axes.iter().enumerate() {
        let step = match &slice.steps {
            None => Int::Unknown,
            Some(None) => Int::Known(1),
            Some(Some(steps)) => steps[i],
        };
        let (start, end) = (at(&slice.starts, i), at(&slice.ends, i));
        if step == Int::Known(0) {
            return Err(OpError::operand(4, "steps other than 0", "0"));
        }
        sliced[axis] = sliced_extent(dims[axis], start, end, step);
        if dims.len() == 1 {
            out.ints = view.ints(0).and_then(|ints| sliced_ints(&ints, start, end, step));
        }
    }
    out.shape(0, Shape(Some(sliced)));
    Ok(())
}

fn check_len(what: &str, list: Option<&[Int]>, n: usize) -> Result<(), OpError> {
    match list {
        Some(list) if list.len() != n => {
            Err(OpError::node(format!("{n} {what}, one per axis"), list.len().to_string()))
        }
        _ => Ok(()),
    }
}

/// An end at least this far out means the end of the axis: exporters write the greatest i32 or i64.
const FAR: i64 = i32::MAX as i64;

fn sliced_extent(dim: Dim, start: Int, end: Int, step: Int) -> Dim {
    if dim == Dim::Known(0) {
        return dim;
    }
    let (start, end, step) = match (start, end, step) {
        // The extent itself is as far as it goes.
        (Int::Known(start), Int::Sym(s), Int::Known(step)) if dim == Dim::Sym(s) => (start, FAR, step),
        (Int::Known(start), Int::Known(end), Int::Known(step)) => (start, end, step),
        _ => return Dim::Unknown,
    };
    match dim {
        Dim::Known(n) => u64::try_from(slice_range(n, start, end, step).1).map_or(Dim::Unknown, Dim::Known),
        Dim::Sym(_) | Dim::Unknown => match step {
            1 if start == 0 && end >= FAR => dim,
            1 if start <= -FAR && end >= FAR => dim,
            -1 if (start == -1 || start >= FAR) && end <= -FAR => dim,
            1.. if start >= 0 && (0..=start).contains(&end) => Dim::Known(0),
            1.. if start < 0 && end < 0 && end <= start => Dim::Known(0),
            _ => Dim::Unknown,
        },
    }
}

fn sliced_ints(ints: &[Int], start: Int, end: Int, step: Int) -> Option<Vec<Int>> {
    let (start, end, step) = (start.known()?, end.known()?, step.known()?);
    let (first, count) = slice_range(ints.len() as u64, start, end, step);
    (0..count)
        .map(|i| {
            let index = first.checked_add(i.checked_mul(i128::from(step))?)?;
            ints.get(usize::try_from(index).ok()?).copied()
        })
        .collect()
}

/// Pad.
pub(super) fn infer_pad(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let pad = PadView::read(view)?;
    if pad.part == Part::Operand(1) {
        list_len(view, 1)?;
    }
    let Some(dims) = view.dims(0) else {
        // Without axes there are two pads per axis.
        if let (Axes::Absent, Some(pads)) = (&pad.axes, &pad.pads) {
            out.shape(0, shape_of_rank(Dim::Known(pads.len() as u64 / 2)));
        }
        return Ok(());
    };
    let axes = match &pad.axes {
        Axes::Absent => (0..dims.len()).collect(),
        Axes::Known(axes) => distinct_axes(axes, dims.len(), &Axes::part(view, 3))?,
        Axes::Unknown(_) => {
            out.shape(0, Shape::of_rank(dims.len()));
            return Ok(());
        }
    };
    let Some(pads) = &pad.pads else {
        let mut padded = Dims::from_slice(dims);
        axes.iter().for_each(|&axis| padded[axis] = Dim::Unknown);
        out.shape(0, Shape(Some(padded)));
        return Ok(());
    };
    if pads.len() != 2 * axes.len() {
        let expected = format!("{} pads, two per axis", 2 * axes.len());
        return Err(OpError { part: pad.part, expected, found: pads.len().to_string() });
    }
    let mut padded = Dims::from_slice(dims);
    for (i, &axis) in axes.iter().enumerate() {
        padded[axis] = match (dims[axis], pads[i].known(), pads[i + axes.len()].known()) {
            (dim, Some(0), Some(0)) => dim,
            (Dim::Known(n), Some(before), Some(behind)) => {
                let extent = i128::from(n) + i128::from(before) + i128::from(behind);
                if extent < 0 {
                    let expected = format!("an extent at axis {axis} that lasts for the pads");
                    return Err(shape_error(0, expected, dims));
                }
                u64::try_from(extent).map_or(Dim::Unknown, Dim::Known)
            }
            _ => Dim::Unknown,
        };
    }
    out.shape(0, Shape(Some(padded)));
    Ok(())
}

/// SplitToSequence.
pub(super) fn infer_split_to_sequence(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let Some(tensor) = view.tensor(0) else { return Ok(()) };
    let element = |shape: Shape| Type::Sequence(Box::new(Type::tensor(tensor.dtype, shape)));
    let Some(dims) = tensor.shape.dims() else {
        out.ty(0, element(Shape::unknown()));
        return Ok(());
    };
    let axis = normalize_axis(view.int("axis").unwrap_or(0), dims.len(), Part::Attr("axis".into()))?;
    if !view.has(1) {
        let keep = view.int("keepdims") != Some(0);
        let mut dims = Dims::from_slice(dims);
        if keep {
            dims[axis] = Dim::Known(1);
        } else {
            dims.remove(axis);
        }
        out.ty(0, element(Shape(Some(dims))));
        return Ok(());
    }
    let error = |expected: &str, found: String| Err(OpError::operand(1, expected, found));
    let scalar = match view.dims(1) {
        Some([]) => true,
        Some([_]) => false,
        Some(dims) => return Err(shape_error(1, "a number or a list", dims)),
        None => {
            out.ty(0, element(with_dim(dims, axis, Dim::Unknown)));
            return Ok(());
        }
    };
    let sizes = view.known_ints(1);
    if let Some(n) = sizes.iter().flatten().find(|&&n| n < 0 || scalar && n == 0) {
        return error("sizes that are not negative", n.to_string());
    }
    let total = sizes.as_ref().map(|s| sum(s.iter().map(|&n| Int::Known(n).dim())));
    let whole = dims[axis].known();
    let size = match (sizes.as_deref(), total.and_then(Dim::known), whole) {
        (Some(&[n]), ..) if scalar => match (u64::try_from(n), whole) {
            (Ok(n), Some(whole)) if n > 0 && whole % n == 0 => Dim::Known(n),
            (Ok(1), _) => Dim::Known(1),
            _ => Dim::Unknown,
        },
        (Some(_), Some(total), Some(whole)) if total != whole => {
            return error(&format!("sizes with the sum {whole}"), total.to_string());
        }
        (Some([first, rest @ ..]), ..) if rest.iter().all(|n| n == first) => Int::Known(*first).dim(),
        _ => Dim::Unknown,
    };
    out.ty(0, element(with_dim(dims, axis, size)));
    Ok(())
}
