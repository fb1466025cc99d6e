//! Gradients of matrix products.

use super::backward::{Backward, Build, Ruled};
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::views::TransposeView;
use ampc_ir::views::linear::GemmView;
use ampc_ir::{AttrValue, Module, Node, Value};

/// dA = dY·Bᵀ and dB = Aᵀ·dY, each summed over broadcast axes.
///
/// A matrix that multiplies a whole batch gets its gradient by one product that sums over the batch as well, so that it
/// is rounded once:
///
/// ```text
/// A f16[8, 16, 32] · B f16[32, 64]      dB = Gemm(A as [128, 32], dY as [128, 64]) {transA=1} : f16[32, 64]
/// ```
pub(super) fn matmul(b: &mut Backward<'_>) -> Ruled {
    let (left, right, dy) = (b.x(0)?, b.x(1)?, b.dy0()?);
    // A vector counts as a row on the left and as a column on the right; the result has no such axis then.
    let (left_rank, right_rank) = (b.rank(left)?, b.rank(right)?);
    let mut dy = dy;
    let mut ranks = (left_rank, right_rank);
    let (mut l, mut r) = (left, right);
    if right_rank == 1 {
        r = b.unsqueeze(right, &[1])?;
        let last = b.rank(dy)?;
        dy = b.unsqueeze(dy, &[last])?;
        ranks.1 = 2;
    }
    if left_rank == 1 {
        l = b.unsqueeze(left, &[0])?;
        let rank = b.rank(dy)?;
        dy = b.unsqueeze(dy, &[rank - 1])?;
        ranks.0 = 2;
    }
    if b.needs(0) {
        let d = if ranks == (2, 2) {
            multiply(b, (dy, false), (r, true), 1.0)?
        } else if ranks.0 == 2 {
            let (dy, r) = (batch_as_columns(b, dy)?, batch_as_columns(b, r)?);
            // Both have the rows of A, or those of B, and all that is summed over as columns.
            multiply(b, (dy, false), (r, true), 1.0)?
        } else if ranks.1 == 2 {
            let rows = b.as_matrix(dy)?;
            multiply(b, (rows, false), (r, true), 1.0)?
        } else {
            let transposed = b.transpose_last(r)?;
            let d = b.matmul(dy, transposed)?;
            // Only axes of the batch are broadcast.
            b.unbroadcast_before(d, l, 2)?
        };
        let d = b.reshape_as(d, left)?;
        b.add(0, d)?;
    }
    if b.needs(1) {
        let d = if ranks.1 == 2 {
            let (l, dy) = (b.as_matrix(l)?, b.as_matrix(dy)?);
            multiply(b, (l, true), (dy, false), 1.0)?
        } else {
            let transposed = b.transpose_last(l)?;
            let d = b.matmul(transposed, dy)?;
            b.unbroadcast_before(d, r, 2)?
        };
        let d = b.reshape_as(d, right)?;
        b.add(1, d)?;
    }
    Ok(())
}

/// The product α·A'·B', where a prime is an optional transposition. For a weight that the forward pass
/// transposes, the weight itself is read transposed, so that the transposed copy need not be kept until the
/// gradients are computed:
///
/// ```text
/// %t = Transpose(%w) {perm=[1, 0]}      %dx = Gemm(%dy, %w), and not Gemm(%dy, %t) {transB=1}
/// %y = MatMul(%x, %t)
/// ```
fn multiply(
    b: &mut Backward<'_>,
    (left, trans_a): (Value, bool),
    (right, trans_b): (Value, bool),
    alpha: f32,
) -> Ruled<Value> {
    let of = |value: Value, trans: bool| match transposed_weight(b.module(), value) {
        Some(weight) => (weight, !trans),
        None => (value, trans),
    };
    let (left, right) = (of(left, trans_a), of(right, trans_b));
    b.gemm(left, right, alpha)
}

/// The weight, or its cast, whose transpose a matrix is; `None` for other matrices.
fn transposed_weight(module: &Module, value: Value) -> Option<Value> {
    let (node, _) = module.producer(value)?;
    let view = NodeView::new(module, node).filter(|view| view.kind() == OpKind::Transpose)?;
    let source = view.operand(0)?;
    let turns = TransposeView::read(&view).perm(2).is_ok_and(|perm| perm == [1, 0]);
    let is_kept = |value: Value| module.producer(value).is_none();
    let casts = |(node, _): (Node, u32)| {
        let data = module.node(node);
        let is_cast = data.schema().is_some_and(|schema| schema.kind == OpKind::Cast);
        is_cast && data.operand(0).is_some_and(is_kept)
    };
    (turns && (is_kept(source) || module.producer(source).is_some_and(casts))).then_some(source)
}

/// A value with its two axes exchanged. For a product Gemm(A, B) it is Gemm(Bᵀ, Aᵀ), so that no matrix is
/// moved; the first product is left without readers.
pub(super) fn turned(b: &mut Backward<'_>, a: Value) -> Ruled<Value> {
    let module = b.module();
    let node = module.producer(a).and_then(|(node, _)| NodeView::new(module, node));
    let is_free = |node: &NodeView<'_>| node.kind() == OpKind::Gemm && !node.has(2);
    let product = node.filter(|node| is_free(node) && module.uses(a).next().is_none());
    let read = |node: NodeView<'_>| Some((GemmView::read(&node), node.operand(0)?, node.operand(1)?));
    let Some((view, left, right)) = product.and_then(read) else { return b.transpose(a, &[1, 0]) };
    multiply(b, (right, !view.trans_b), (left, !view.trans_a), view.alpha)
}

/// A batch of matrices [.., m, n] as one matrix [m, .. · n].
fn batch_as_columns(b: &mut Backward<'_>, a: Value) -> Ruled<Value> {
    let rank = b.rank(a)?;
    let perm: Vec<usize> = std::iter::once(rank - 2).chain(0..rank - 2).chain([rank - 1]).collect();
    let moved = b.transpose(a, &perm)?;
    b.op(OpKind::Flatten, &[moved], &[("axis", AttrValue::Int(1))])
}

/// Gradients of αA'B' + βC, where a prime is an optional transposition.
pub(super) fn gemm(b: &mut Backward<'_>) -> Ruled {
    let view = GemmView::read(&b.view()?);
    let (left, right, dy) = (b.x(0)?, b.x(1)?, b.dy0()?);
    if b.needs(0) {
        let d = if view.trans_a {
            multiply(b, (right, view.trans_b), (dy, true), view.alpha)?
        } else {
            multiply(b, (dy, false), (right, !view.trans_b), view.alpha)?
        };
        b.add(0, d)?;
    }
    if b.needs(1) {
        let d = if view.trans_b {
            multiply(b, (dy, true), (left, view.trans_a), view.alpha)?
        } else {
            multiply(b, (left, !view.trans_a), (dy, false), view.alpha)?
        };
        b.add(1, d)?;
    }
    if b.needs(2) {
        let wide = b.wide(dy)?;
        let d = b.unbroadcast(wide, b.x(2)?)?;
        let d = b.scaled(d, f64::from(view.beta))?;
        b.add(2, d)?;
    }
    Ok(())
}
