//! Gradients of operators that read and write by indices. An element that is read twice gets both gradients:
//! they are added in f32 or wider, since runtimes add 16-bit floats by index badly or not at all. Constant indices that
//! follow each other read a section, whose gradient is only moved.

use super::backward::sections::Section;
use super::backward::{Backward, Build, Ruled, signed};
use super::dims::dim_range;
use super::reads::NeedsSlot;
use crate::pass::training_error::RuleError;
use ampc_ir::op::OpKind;
use ampc_ir::views::{NodeView, Part, normalize_axis};
use ampc_ir::{AttrValue, NodeSpec, Value};
use std::ops::Range;

fn add_up() -> AttrValue {
    AttrValue::String(b"add".as_slice().into())
}

/// The tensor to which the widened gradient of the read elements is added: another gradient of operand 0, or
/// zeros.
fn base_for(b: &mut Backward<'_>, x: Value, dy: Value) -> Ruled<Value> {
    let dtype = b.dtype(dy)?;
    match b.take(0, dtype) {
        Some(other) => Ok(other),
        None => b.zeros(dtype, x),
    }
}

/// Zeros like a value, in the type of the widened gradient.
pub(super) fn zeros_for(b: &mut Backward<'_>, x: Value, dy: Value) -> Ruled<Value> {
    let dtype = b.dtype(dy)?;
    b.zeros(dtype, x)
}

/// A value with others added at indices along an axis, which are of the shape of these.
pub(super) fn scatter_add(
    b: &mut Backward<'_>,
    into: Value,
    indices: Value,
    updates: Value,
    axis: usize,
) -> Ruled<Value> {
    let attrs = [("axis", AttrValue::Int(signed(axis))), ("reduction", add_up())];
    b.op(OpKind::ScatterElements, &[into, indices, updates], &attrs)
}

/// The axis attribute, counted from the front.
pub(super) fn axis(b: &Backward<'_>, rank: usize) -> Ruled<usize> {
    let axis = b.view()?.int("axis").unwrap_or(0);
    Ok(normalize_axis(axis, rank, Part::Attr("axis".into()))?)
}

/// The numbers of the elements of a value, in its shape: an operator that moves elements moves these numbers
/// too, which shows where each element went.
pub(super) fn numbered(b: &mut Backward<'_>, x: Value) -> Ruled<Value> {
    let (start, step) = (integer(b, 0)?, integer(b, 1)?);
    let n = b.unary(OpKind::Size, x)?;
    let numbers = b.op(OpKind::Range, &[start, n, step], &[])?;
    b.reshape_as(numbers, x)
}

/// A constant i64 of rank 0.
pub(super) fn integer(b: &mut Backward<'_>, number: i64) -> Ruled<Value> {
    let bytes = number.to_le_bytes().to_vec();
    let data = ampc_ir::TensorData::from_bytes(ampc_ir::DType::I64, &[], bytes);
    let data = data.map_err(|error| RuleError::Internal(format!("{error}")))?;
    Ok(b.constant(data))
}

/// A value of the shape of `x`, of zeros but for `dy`, added up where `at`, of the shape of `dy`, has the number of the
/// element.
pub(super) fn scatter_flat(b: &mut Backward<'_>, x: Value, at: Value, dy: Value) -> Ruled<Value> {
    let dy = b.wide(dy)?;
    let zeros = zeros_for(b, x, dy)?;
    let (zeros, at, dy) = (b.reshape(zeros, &[-1])?, b.reshape(at, &[-1])?, b.reshape(dy, &[-1])?);
    let attrs = [("axis", AttrValue::Int(0)), ("reduction", add_up())];
    let flat = b.op(OpKind::ScatterElements, &[zeros, at, dy], &attrs)?;
    b.reshape_as(flat, x)
}

/// A section that constant indices read, one number or a list of numbers that follow each other.
struct Read {
    axis: usize,
    /// The number of elements along the axis, and those that are read.
    extent: i64,
    range: Range<i64>,
}

/// The section that a Gather reads, if it reads one.
fn section(view: &NodeView<'_>) -> Option<Read> {
    let dims = view.dims(0)?;
    let axis = normalize_axis(view.int("axis").unwrap_or(0), dims.len(), Part::Attr("axis".into())).ok()?;
    let extent = i64::try_from(dims[axis].known()?).ok()?;
    let indices = view.known_ints(1).filter(|_| view.rank(1).is_some_and(|rank| rank < 2))?;
    let &first = indices.first()?;
    let start = if first < 0 { first.saturating_add(extent) } else { first };
    let end = start.saturating_add(signed(indices.len()));
    let follow = indices.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1]));
    (follow && start >= 0 && end <= extent).then_some(Read { axis, extent, range: start..end })
}

/// True if a Gather reads a section, whose gradient is moved and not added up by index.
pub(super) fn gather_passes(view: &NodeView<'_>, _: &NeedsSlot<'_>) -> bool {
    section(view).is_some()
}

/// Constant indices that follow each other: a section. Rows: ScatterND. Other axes: ScatterElements, with the indices repeated
/// along the other axes.
pub(super) fn gather(b: &mut Backward<'_>) -> Ruled {
    let (x, indices, dy) = (b.x(0)?, b.x(1)?, b.dy0()?);
    let (rank, n) = (b.rank(x)?, b.rank(indices)?);
    let axis = axis(b, rank)?;
    if let Some(Read { axis, extent, range }) = section(&b.view()?) {
        let gradient = if n == 0 { b.unsqueeze(dy, &[axis])? } else { dy };
        return b.add_section(0, Section { axis, range, extent, gradient, reader: b.node() });
    }
    let indices = b.cast(indices, ampc_ir::DType::I64)?;
    let dy = b.wide(dy)?;
    let base = base_for(b, x, dy)?;
    if b.shape(x)?.iter().any(|dim| dim.known() == Some(0)) {
        // Nothing is read of a value without elements.
        return b.add(0, base);
    }
    if axis == 0 {
        let at = b.unsqueeze(indices, &[n])?;
        let dx = b.op(OpKind::ScatterND, &[base, at, dy], &[("reduction", add_up())])?;
        return b.add(0, dx);
    }
    // All indices along one axis.
    let dims = b.shape(x)?;
    let flat = b.reshape(indices, &[-1])?;
    let behind: Vec<usize> = (1..rank - axis).collect();
    let mut at = b.unsqueeze(flat, &behind)?;
    let dy = if n == 1 {
        dy
    } else {
        // The axes of the indices become one.
        let outer = dims.iter().enumerate().filter(|&(i, _)| i != axis);
        let known: Option<Vec<i64>> =
            outer.map(|(_, dim)| dim.known().and_then(|n| i64::try_from(n).ok())).collect();
        if let Some(known) = known {
            let mut shape = known;
            shape.insert(axis, -1);
            b.reshape(dy, &shape)?
        } else {
            let (before, after) = (dim_range(b, x, 0, Some(axis))?, dim_range(b, x, axis + 1, None)?);
            let free = b.ints(&[-1]);
            let shape = b.op(OpKind::Concat, &[before, free, after], &[("axis", AttrValue::Int(0))])?;
            b.op(OpKind::Reshape, &[dy, shape], &[])?
        }
    };
    at = b.expand_as(at, dy)?;
    let attrs = [("axis", AttrValue::Int(signed(axis))), ("reduction", add_up())];
    let dx = b.op(OpKind::ScatterElements, &[base, at, dy], &attrs)?;
    b.add(0, dx)
}

/// The rule of any operator that moves elements of its first operand: it moves their numbers in the same way, and dy is
/// added up by them.
pub(super) fn by_numbers(b: &mut Backward<'_>) -> Ruled {
    let (x, dy) = (b.x(0)?, b.dy0()?);
    let numbers = numbered(b, x)?;
    let data = b.module().node(b.node());
    let mut operands: Vec<Option<Value>> = data.formal_operands().to_vec();
    operands[0] = Some(numbers);
    let spec = b.like_node(&[]).operands(&operands);
    let [moved] = b.insert(spec)?;
    let dx = scatter_flat(b, x, moved, dy)?;
    b.add(0, dx)
}

/// By numbers: which elements stay is found while the model runs.
pub(super) fn compress(b: &mut Backward<'_>) -> Ruled {
    by_numbers(b)
}

/// Gradients of the values for off and on, with as many elements as have either: Σ dy where an element is off,
/// and where it is on.
pub(super) fn one_hot(b: &mut Backward<'_>) -> Ruled {
    let (indices, depth, dy) = (b.x(0)?, b.x(1)?, b.dy0()?);
    let dy = b.wide(dy)?;
    let ends = ampc_ir::TensorData::from_f32(&[2], &[0.0, 1.0]);
    let ends = ends.map_err(|error| RuleError::Internal(format!("{error}")))?;
    let ends = b.constant(ends);
    let spec = b.like_node(&[]).operands(&[Some(indices), Some(depth), Some(ends)]);
    let [is_on] = b.insert(spec)?;
    let is_on = b.cast(is_on, b.dtype(dy)?)?;
    let axes: Vec<usize> = (0..b.rank(dy)?).collect();
    let part = b.times(dy, is_on)?;
    let (all, on) = (b.sum_over(dy, &axes, false)?, b.sum_over(part, &axes, false)?);
    let off = b.minus(all, on)?;
    let (off, on) = (b.unsqueeze(off, &[0])?, b.unsqueeze(on, &[0])?);
    let d = b.op(OpKind::Concat, &[off, on], &[("axis", AttrValue::Int(0))])?;
    b.add(2, d)
}

/// The same sequences, reversed again.
pub(super) fn reverse_sequence(b: &mut Backward<'_>) -> Ruled {
    let (lengths, dy) = (b.x(1)?, b.dy0()?);
    let spec = b.like_node(&[]).operands(&[Some(dy), Some(lengths)]);
    let [dx] = b.insert(spec)?;
    b.add(0, dx)
}

pub(super) fn gather_elements(b: &mut Backward<'_>) -> Ruled {
    let (x, indices, dy) = (b.x(0)?, b.x(1)?, b.dy0()?);
    let axis = axis(b, b.rank(x)?)?;
    let dy = b.wide(dy)?;
    let base = base_for(b, x, dy)?;
    let attrs = [("axis", AttrValue::Int(signed(axis))), ("reduction", add_up())];
    let dx = b.op(OpKind::ScatterElements, &[base, indices, dy], &attrs)?;
    b.add(0, dx)
}

pub(super) fn gather_nd(b: &mut Backward<'_>) -> Ruled {
    let (x, indices, dy) = (b.x(0)?, b.x(1)?, b.dy0()?);
    let batch = b.view()?.int("batch_dims").unwrap_or(0);
    if batch == 0 {
        let dy = b.wide(dy)?;
        let base = base_for(b, x, dy)?;
        let dx = b.op(OpKind::ScatterND, &[base, indices, dy], &[("reduction", add_up())])?;
        return b.add(0, dx);
    }
    let numbers = numbered(b, x)?;
    let at = b.op(OpKind::GatherND, &[numbers, indices], &[("batch_dims", AttrValue::Int(batch))])?;
    let dx = scatter_flat(b, x, at, dy)?;
    b.add(0, dx)
}

pub(super) fn top_k(b: &mut Backward<'_>) -> Ruled {
    let (x, indices, dy) = (b.x(0)?, b.y(1)?, b.dy0()?);
    let axis = b.view()?.int("axis").unwrap_or(-1);
    let dy = b.wide(dy)?;
    let zeros = zeros_for(b, x, dy)?;
    let spec =
        NodeSpec::new(OpKind::ScatterElements, &[zeros, indices, dy]).attr("axis", AttrValue::Int(axis));
    let [dx] = b.insert(spec)?;
    b.add(0, dx)
}
