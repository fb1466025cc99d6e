//! Dims of values, as attributes and as values of the graph.

use super::backward::{Backward, Build, Ruled, signed};
use ampc_ir::op::OpKind;
use ampc_ir::{AttrValue, NodeSpec, Value};

/// A number as attributes have it. Numbers of windows are small.
pub(super) fn wide(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The dims of a value from one axis to another, as a list.
pub(super) fn dim_range(b: &mut Backward<'_>, x: Value, from: usize, to: Option<usize>) -> Ruled<Value> {
    let mut spec = NodeSpec::new(OpKind::Shape, &[x]).attr("start", AttrValue::Int(signed(from)));
    if let Some(to) = to {
        spec = spec.attr("end", AttrValue::Int(signed(to)));
    }
    let [dims] = b.insert(spec)?;
    Ok(dims)
}

/// The extent of an axis, as a list of one.
pub(super) fn extent(b: &mut Backward<'_>, x: Value, axis: usize) -> Ruled<Value> {
    match b.shape(x)?[axis].known().and_then(|n| i64::try_from(n).ok()) {
        Some(n) => Ok(b.ints(&[n])),
        None => dim_range(b, x, axis, Some(axis + 1)),
    }
}
