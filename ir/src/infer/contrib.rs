//! ONNX Runtime's own operators, of the domain `com.microsoft`.
//!
//! Shapes follow the documentation of ONNX Runtime where it is simple; elsewhere only element types are
//! inferred. A node for which a function returns an error stays unchanged ([`misfit`](super::misfit)), so a
//! function also returns an error if the types of a node depend on more than its type variables.

use super::inferred::Inferred;
use crate::dtype::DType;
use crate::op::OpKind;
use crate::ty::{Dim, Dims, Shape};
use crate::views::size::{at_least, part, ranked, shape_error};
use crate::views::{NodeView, OpError, Part, broadcast};

/// Every float result has the shape of the first operand.
pub(super) fn infer_like_first(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    for i in 0..view.n_results() {
        out.shape(i, view.shape(0));
    }
    Ok(())
}

/// QuantizeLinear: without a zero point, bytes without sign.
pub(super) fn infer_quantize(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    if !view.has(2) {
        out.tensor(0, DType::U8, Shape::unknown());
    }
    out.shape(0, view.shape(0));
    Ok(())
}

/// QLinearAdd and QLinearMul: NumPy's broadcasting of two tensors, each followed by scale and zero point.
pub(super) fn infer_qlinear_binary(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let (Some(a), Some(b)) = (view.dims(0), view.dims(3)) else { return Ok(()) };
    let dims = broadcast(a, b).map_err(|_| shape_error(3, "dims that broadcast with those of `A`", b))?;
    out.shape(0, Shape::of(dims));
    Ok(())
}

/// SkipLayerNormalization and SkipSimplifiedLayerNormalization: the result and the sum that is normalized; statistics
/// along the last axis.
pub(super) fn infer_skip_norm(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    out.shape(0, view.shape(0));
    if let Some([rest @ .., _]) = at_least(view, 0, 1)? {
        for result in 1..3 {
            out.shape(result, Shape::of(rest.iter().copied().chain([Dim::Known(1)])));
        }
    }
    out.shape(3, view.shape(0));
    Ok(())
}

/// BiasSplitGelu: half of the last axis.
pub(super) fn infer_split_gelu(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    if let Some([rest @ .., last]) = at_least(view, 0, 1)? {
        let half =
            part(*last, 2).ok_or_else(|| shape_error(0, "an even last axis", view.dims(0).unwrap_or(&[])))?;
        out.shape(0, Shape::of(rest.iter().copied().chain([half])));
    }
    Ok(())
}

/// EmbedLayerNormalization: a row of the table of words per word.
pub(super) fn infer_embed_layer_norm(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let (ids, words) = (ranked(view, 0, 2)?, ranked(view, 2, 2)?);
    let axis = |dims: Option<&[Dim]>, i: usize| dims.map_or(Dim::Unknown, |d| d[i]);
    let shape = Shape::of([axis(ids, 0), axis(ids, 1), axis(words, 1)]);
    out.shape(2, shape.clone());
    out.shape(0, shape);
    Ok(())
}

/// FusedMatMul and TransposeMatMul: matrices are transposed first, and with `transBatchA` the first axis of A stands
/// before its last one instead.
pub(super) fn infer_fused_matmul(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let flag = |name| view.int(name).unwrap_or(0) != 0;
    let a = turned(view, 0, flag("transA"), flag("transBatchA"))?;
    let b = turned(view, 1, flag("transB"), flag("transBatchB"))?;
    let (Some(a), Some(b)) = (a, b) else { return Ok(()) };
    let (rows, columns) = (a.rows, b.columns);
    let (Some(inner_a), Some(inner_b)) = (a.columns, b.rows.or(b.vector)) else {
        return Err(OpError::node("matrices that can be multiplied", "others"));
    };
    if inner_a.meet(inner_b).is_none() {
        let expected = format!("{} as the axis that is summed over", inner_a.known().unwrap_or(0));
        return Err(shape_error(1, expected, view.dims(1).unwrap_or(&[])));
    }
    let mut dims = broadcast(&a.batch, &b.batch)
        .map_err(|_| shape_error(1, "leading axes that broadcast", view.dims(1).unwrap_or(&[])))?;
    dims.extend(rows);
    dims.extend(columns);
    out.shape(0, Shape(Some(dims)));
    Ok(())
}

/// A matrix operand as it is multiplied; a vector has no rows as operand 0 and no columns as operand 1.
struct Matrix {
    batch: Dims,
    rows: Option<Dim>,
    columns: Option<Dim>,
    vector: Option<Dim>,
}

fn turned(view: &NodeView<'_>, i: usize, inner: bool, batch: bool) -> Result<Option<Matrix>, OpError> {
    let Some(dims) = at_least(view, i, 1)? else { return Ok(None) };
    let mut dims: Dims = dims.iter().copied().collect();
    if let [only] = dims[..] {
        let (columns, vector) = if i == 0 { (Some(only), None) } else { (None, Some(only)) };
        return Ok(Some(Matrix { batch: Dims::new(), rows: None, columns, vector }));
    }
    let n = dims.len();
    if batch {
        if n < 3 {
            return Err(shape_error(i, "a tensor of rank 3 or more", &dims));
        }
        dims[..n - 1].rotate_left(1);
    }
    if inner {
        dims.swap(n - 2, n - 1);
    }
    let (rows, columns) = (Some(dims[n - 2]), Some(dims[n - 1]));
    dims.truncate(n - 2);
    Ok(Some(Matrix { batch: dims, rows, columns, vector: None }))
}

/// MatMulNBits: the quantised matrix has `N` columns.
pub(super) fn infer_matmul_n_bits(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let extent = |name: &str| view.int(name).and_then(|n| u64::try_from(n).ok()).map(Dim::Known);
    if let (Some([rest @ .., inner]), Some(rows), Some(columns)) =
        (at_least(view, 0, 1)?, extent("K"), extent("N"))
    {
        if inner.meet(rows).is_none() {
            let expected = format!("{} as the last axis, as `K` says", rows.known().unwrap_or(0));
            return Err(shape_error(0, expected, view.dims(0).unwrap_or(&[])));
        }
        out.shape(0, Shape::of(rest.iter().copied().chain([columns])));
    }
    Ok(())
}

/// Attention: the projections of query, key and value are in one matrix.
pub(super) fn infer_attention(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let (Some(x), weights) = (ranked(view, 0, 3)?, ranked(view, 1, 2)?) else { return Ok(()) };
    let hidden = match (view.int_list("qkv_hidden_sizes"), weights) {
        (Some(&[_, _, v]), _) => u64::try_from(v).map_or(Dim::Unknown, Dim::Known),
        (Some(_), _) | (None, None) => Dim::Unknown,
        (None, Some(w)) => part(w[1], 3).unwrap_or(Dim::Unknown),
    };
    out.shape(0, Shape::of([x[0], x[1], hidden]));
    Ok(())
}

/// MultiHeadAttention: rank 3 in, rank 3 out; heads that are packed otherwise have other shapes.
pub(super) fn infer_multi_head_attention(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    scores_are_typed_elsewhere(view, 3)?;
    if let (Some(&[batch, length, _]), Some(&[_, _, hidden])) = (view.dims(0), view.dims(2)) {
        out.shape(0, Shape::of([batch, length, hidden]));
    }
    Ok(())
}

/// GroupQueryAttention: the shape of the query, unless keys and values are packed into it.
///
/// ONNX Runtime has it with a cache of the type of the query and with quantised ones, and with nothing in between;
/// where something could tell the two apart, the node stays.
pub(super) fn infer_group_query_attention(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let presents = (1..3).any(|i| view.data().result(i).is_some());
    if presents && !view.has(3) {
        return Err(OpError::operand(3, "past keys, which say what type the present ones have", "none"));
    }
    if view.has(10) {
        return Err(OpError::operand(
            10,
            "no bias, which may tell the type of the query from the cache's",
            "one",
        ));
    }
    for (result, past) in [(1, 3), (2, 4)] {
        if let Some(&[batch, heads, _, size]) = view.dims(past) {
            out.shape(result, Shape::of([batch, heads, Dim::Unknown, size]));
        }
    }
    if view.has(1) {
        out.shape(0, view.shape(0));
    } else if let Some(&[batch, length, _]) = view.dims(0) {
        out.shape(0, Shape::of([batch, length, Dim::Unknown]));
    }
    Ok(())
}

/// True if a result is used whose type variable no operand binds.
fn scores_are_typed_elsewhere(view: &NodeView<'_>, result: usize) -> Result<(), OpError> {
    debug_assert!(view.kind() == OpKind::ContribMultiHeadAttention, "the only one that has them");
    if view.data().result(result).is_some() {
        let expected = "no scores, whose type no operand says".to_owned();
        return Err(OpError { part: Part::Result(result), expected, found: "them".into() });
    }
    Ok(())
}
