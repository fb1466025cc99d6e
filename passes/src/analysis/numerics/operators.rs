//! Facts about single nodes and constants.

use crate::graph::flow;
use ampc_ir::op::{self, OpKind, Work};
use ampc_ir::views::constant_of;
use ampc_ir::{Dim, Module, Node, Value};

/// The maximal number of walks of one analysis. A value that leaves a body, or is loop-carried, is seen in the next
/// walk, so bodies nested deeper than this are not analysed completely: some facts are missing then, none is wrong.
const MAX_WALKS: usize = 16;

/// The operator of a node of the table.
pub(super) fn kind(module: &Module, node: Node) -> Option<OpKind> {
    module.node(node).schema().map(|s| s.kind)
}

/// True if an operator is a product of matrices, or computes one internally.
pub(crate) fn is_product(kind: OpKind) -> bool {
    op::work(kind) == Work::Product
}

/// The number in a constant of one element.
pub(crate) fn scalar(module: &Module, value: Value) -> Option<f64> {
    match constant_of(module, flow::behind_casts(module, value))?.small_floats(1)?[..] {
        [number] => Some(number),
        _ => None,
    }
}

/// True if a value is a constant.
pub(super) fn is_constant(module: &Module, value: Value) -> bool {
    constant_of(module, value).is_some()
}

/// True if a node subtracts: Sub, and Add of a negative constant or of a negated value.
pub(crate) fn subtracts(module: &Module, node: Node) -> bool {
    let data = module.node(node);
    let is_negative = |value: Value| {
        let value = flow::behind_casts(module, value);
        let negated = module.producer(value).and_then(|(node, _)| kind(module, node)) == Some(OpKind::Neg);
        negated || scalar(module, value).is_some_and(|number| number < 0.0)
    };
    match kind(module, node) {
        Some(OpKind::Sub) => true,
        Some(OpKind::Add) => data.formal_operands().iter().flatten().any(|&value| is_negative(value)),
        _ => false,
    }
}

/// Repeats a walk until it finds nothing new; without bodies, the walk runs once.
pub(super) fn repeat(module: &Module, mut walk: impl FnMut() -> bool) {
    let has_bodies = flow::graphs(module).len() > 1;
    for _ in 0..MAX_WALKS {
        if !walk() || !has_bodies {
            break;
        }
    }
}

/// True if the other operand of a node is broadcast along an axis of an operand, so that groups of elements share a factor.
pub(crate) fn scales_groups(module: &Module, node: Node, slot: usize) -> bool {
    let dims = |i: usize| module.value(module.node(node).operand(i)?).ty.shape()?.dims();
    let (Some(of), Some(by)) = (dims(slot), dims(1 - slot.min(1))) else { return false };
    let missing = of.len().saturating_sub(by.len());
    let is_one = |dim: Option<&Dim>| dim == Some(&Dim::Known(1));
    let is_shared = |axis: usize| axis < missing || is_one(by.get(axis - missing));
    (0..of.len()).any(|axis| !is_one(of.get(axis)) && is_shared(axis))
}
