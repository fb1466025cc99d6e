//! Squares, sums, and sums of squares, also those that products write.

use super::back::behind_views;
use super::operators::{is_product, kind, scalar};
use crate::graph::flow;
use ampc_ir::op::{self, OpKind};
use ampc_ir::views::NodeView;
use ampc_ir::views::linear::Equation;
use ampc_ir::{Dim, Module, Node, Shape, Value};

/// True if a node squares its operand, looking through float casts: x·x, a power by an even constant, or a sum of
/// squares.
pub(crate) fn squares(module: &Module, node: Node) -> bool {
    let data = module.node(node);
    match kind(module, node) {
        Some(OpKind::Mul) => {
            let behind = |i| data.operand(i).map(|value| flow::behind_casts(module, value));
            behind(0) == behind(1)
        }
        Some(OpKind::Pow) => data.operand(1).and_then(|by| scalar(module, by)).is_some_and(is_even),
        Some(OpKind::ReduceSumSquare) => true,
        _ => adds_up_squares(module, node),
    }
}

/// True if a product adds up the squares of an operand: an Einsum of a value and itself with the same labels, or a MatMul
/// of each row with itself.
pub(crate) fn adds_up_squares(module: &Module, node: Node) -> bool {
    let Some(view) = NodeView::new(module, node) else { return false };
    if !is_product(view.kind()) || !is_gram(module, node) {
        return false;
    }
    match view.kind() {
        OpKind::Einsum => {
            let same = |i: usize| view.operand(i).map(|value| flow::behind_casts(module, value));
            let equation = Equation::read(&view).ok();
            equation.is_some_and(|of| match &of.operands[..] {
                [a, b] => a == b && of.result.len() < a.len() && same(0) == same(1),
                _ => false,
            })
        }
        OpKind::MatMul => {
            let dims = |value: Value| module.value(value).ty.shape().and_then(Shape::dims);
            let dims = view.data().result(0).and_then(dims);
            dims.is_some_and(|dims| dims.ends_with(&[Dim::Known(1), Dim::Known(1)]))
        }
        _ => false,
    }
}

/// True if a node multiplies a value with itself, apart from exchanged axes: a Gram matrix.
pub(crate) fn is_gram(module: &Module, node: Node) -> bool {
    let origin = |i: usize| module.node(node).operand(i).map(|value| behind_views(module, value));
    kind(module, node).is_some_and(is_product) && origin(0).is_some() && origin(0) == origin(1)
}

/// True if each element of the result of a node is a sum over many elements of its first operand: a reduction, or an
/// Einsum of one operand.
pub(crate) fn sums(module: &Module, node: Node) -> bool {
    match kind(module, node) {
        Some(OpKind::Einsum) => NodeView::new(module, node)
            .and_then(|view| Equation::read(&view).ok())
            .is_some_and(|of| match &of.operands[..] {
                [one] => one.iter().any(|label| !of.result.contains(label)),
                _ => false,
            }),
        Some(kind) => op::sums(kind),
        None => false,
    }
}

/// True if an exponent is an even integer.
pub(super) fn is_even(exponent: f64) -> bool {
    exponent != 0.0 && exponent % 2.0 == 0.0
}
