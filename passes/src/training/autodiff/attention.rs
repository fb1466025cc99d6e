//! Gradients of Attention and RotaryEmbedding.
//!
//! With queries Q, keys K and values V of a head, S = scale · Q·Kᵀ, bounded and masked, P = softmax(S) and Y = P·V:
//!
//! ```text
//! dV = Pᵀ·dY        dP = dY·Vᵀ        dS = P ∘ (dP − Σ dP∘P)        over keys
//! dQ = scale · dS·K                   dK = scale · dSᵀ·Q            behind a bound c: dS ∘ (1 − tanh²(S / c))
//! ```
//!
//! Attention counts as a product: it reads and gives gradients in the types of its result and operands, and computes in
//! f32 or wider between them. The gradient of a float mask is dS before the bound. Keys and values that several heads of queries share get
//! the sum of the gradients of these heads. P is computed again from Q and K, in f32 or wider.

use super::backward::{Backward, Build, Ruled, signed};
use super::dims::{dim_range, wide};
use super::indexing::integer;
use crate::pass::training_error::RuleError;
use ampc_ir::op::OpKind;
use ampc_ir::views::attention::AttentionView;
use ampc_ir::{AttrValue, DType, NodeSpec, Value};

/// The operands with batch, heads, positions and the elements of a head as axes, in f32 or wider.
struct Heads {
    q: Value,
    k: Value,
    v: Value,
    /// Heads of queries that share a head of keys.
    group: u64,
}

/// An operand in four axes.
fn apart(b: &mut Backward<'_>, i: usize, heads: Option<u64>) -> Ruled<Value> {
    let x = b.x(i)?;
    let x = b.wide(x)?;
    if b.rank(x)? != 3 {
        return Ok(x);
    }
    let heads =
        heads.ok_or_else(|| RuleError::Unsupported("it does not say how many heads there are".into()))?;
    let each = b.shape(x)?[2].known().and_then(|n| n.checked_div(heads));
    let split = b.reshape(x, &[0, 0, wide(heads), each.map_or(-1, wide)])?;
    b.transpose(split, &[0, 2, 1, 3])
}

/// Undoes [`apart`] and adds the gradient to the operand.
fn add_together(b: &mut Backward<'_>, i: usize, gradient: Value) -> Ruled {
    let x = b.x(i)?;
    let gradient = if b.rank(x)? == 3 {
        let turned = b.transpose(gradient, &[0, 2, 1, 3])?;
        b.reshape_as(turned, x)?
    } else {
        gradient
    };
    b.add_rounded(i, gradient)
}

/// Concatenates keys or values behind the past ones.
fn with_past(b: &mut Backward<'_>, new: Value, past: usize) -> Ruled<Value> {
    let Some(past) = b.operand(past) else { return Ok(new) };
    let past = b.wide(past)?;
    b.op(OpKind::Concat, &[past, new], &[("axis", AttrValue::Int(2))])
}

fn known(b: &Backward<'_>, x: Value, axis: usize, what: &str) -> Ruled<u64> {
    let extent = b.shape(x)?.get(axis).and_then(|dim| dim.known());
    extent.ok_or_else(|| RuleError::Unsupported(format!("{what} has to be known")))
}

/// Each head of keys or values as often as heads of queries share it.
fn repeated(b: &mut Backward<'_>, x: Value, group: u64) -> Ruled<Value> {
    if group == 1 {
        return Ok(x);
    }
    let heads = known(b, x, 1, "the number of heads")?;
    let indices: Vec<i64> = (0..heads).flat_map(|head| (0..group).map(move |_| wide(head))).collect();
    let indices = b.ints(&indices);
    b.op(OpKind::Gather, &[x, indices], &[("axis", AttrValue::Int(1))])
}

/// Sums the gradients of heads of queries for each head of keys or values.
fn shared(b: &mut Backward<'_>, gradient: Value, like: Value, group: u64) -> Ruled<Value> {
    if group == 1 {
        return Ok(gradient);
    }
    let (heads, size) = (known(b, like, 1, "the number of heads")?, known(b, like, 3, "the size of a head")?);
    let apart = b.reshape(gradient, &[0, wide(heads), wide(group), -1, wide(size)])?;
    b.sum_over(apart, &[2], false)
}

/// The extent of an axis as a list of one.
fn extent(b: &mut Backward<'_>, x: Value, axis: usize) -> Ruled<Value> {
    match b.shape(x)?.get(axis).and_then(|dim| dim.known()) {
        Some(n) => Ok(b.ints(&[wide(n)])),
        None => dim_range(b, x, axis, Some(axis + 1)),
    }
}

/// 0, 1, … along an axis of a value.
fn counted(b: &mut Backward<'_>, x: Value, axis: usize) -> Ruled<Value> {
    if let Some(n) = b.shape(x)?.get(axis).and_then(|dim| dim.known()) {
        let list: Vec<i64> = (0..wide(n)).collect();
        return Ok(b.ints(&list));
    }
    let n = extent(b, x, axis)?;
    let n = b.squeeze(n, &[0])?;
    let (start, step) = (integer(b, 0)?, integer(b, 1)?);
    b.op(OpKind::Range, &[start, n, step], &[])
}

/// The keys that a query may attend to by position, as a mask that broadcasts to batch, heads, queries and
/// keys. `None` if all.
fn allowed(b: &mut Backward<'_>, view: &AttentionView, heads: &Heads) -> Ruled<Option<Value>> {
    let lengths = b.operand(6);
    let is_bounded = view.causal || view.left_window.is_some() || view.right_window.is_some();
    if !is_bounded && lengths.is_none() {
        return Ok(None);
    }
    let keys = counted(b, heads.k, 2)?;
    let lengths = lengths.map(|lengths| b.unsqueeze(lengths, &[1, 2, 3])).transpose()?;
    let mut all: Vec<Value> = Vec::new();
    if is_bounded {
        let queries = counted(b, heads.q, 2)?;
        let mut at = b.unsqueeze(queries, &[1])?;
        if let Some(past) = b.operand(4) {
            let before = extent(b, past, 2)?;
            at = b.plus(at, before)?;
        } else if let Some(lengths) = lengths {
            let n = extent(b, heads.q, 2)?;
            let before = b.minus(lengths, n)?;
            at = b.plus(at, before)?;
        }
        let last = match (view.causal, view.right_window) {
            (true, _) => Some(0),
            (false, right) => right,
        };
        if let Some(right) = last {
            let right = b.ints(&[wide(right)]);
            let last = b.plus(at, right)?;
            all.push(b.op(OpKind::LessOrEqual, &[keys, last], &[])?);
        }
        if let Some(left) = view.left_window {
            let left = b.ints(&[wide(left)]);
            let first = b.minus(at, left)?;
            all.push(b.op(OpKind::GreaterOrEqual, &[keys, first], &[])?);
        }
    }
    if let Some(lengths) = lengths {
        all.push(b.op(OpKind::Less, &[keys, lengths], &[])?);
    }
    let mut all = all.into_iter();
    let Some(mut both) = all.next() else { return Ok(None) };
    for other in all {
        both = b.op(OpKind::And, &[both, other], &[])?;
    }
    Ok(Some(both))
}

/// The mask as a summand of the scores. If it is shorter than the keys, the rest of them is masked.
fn mask(b: &mut Backward<'_>, view: &AttentionView, heads: &Heads, dtype: DType) -> Ruled<Option<Value>> {
    let Some(mask) = b.operand(3) else { return Ok(None) };
    let least = b.number(f64::NEG_INFINITY, dtype)?;
    let zero = b.number(0.0, dtype)?;
    let mask =
        if b.dtype(mask)? == DType::Bool { b.select(mask, zero, least)? } else { b.cast(mask, dtype)? };
    let rank = b.rank(mask)?;
    if rank == 0 || !is_shorter(b, view, heads, mask)? {
        return Ok(Some(mask));
    }
    let (all, there) = (extent(b, heads.k, 2)?, extent(b, mask, rank - 1)?);
    let missing = b.minus(all, there)?;
    let before = b.ints(&vec![0; 2 * rank - 1]);
    let pads = b.op(OpKind::Concat, &[before, missing], &[("axis", AttrValue::Int(0))])?;
    Ok(Some(b.op(OpKind::Pad, &[mask, pads, least], &[])?))
}

/// True if a mask may be shorter than the keys.
fn is_shorter(b: &Backward<'_>, view: &AttentionView, heads: &Heads, mask: Value) -> Ruled<bool> {
    let (keys, there) = (b.shape(heads.k)?[2], b.shape(mask)?.last().copied());
    let is_same = there.is_some_and(|there| there == keys && !matches!(keys, ampc_ir::Dim::Unknown));
    Ok(view.short_masks && !is_same)
}

/// P [batch, heads of queries, queries, keys], computed again.
struct Weights {
    weights: Value,
    /// tanh(S / c), if scores are bounded by c.
    tanh: Option<Value>,
}

/// P = softmax(S), of S = scale · Q·Kᵀ, bounded and masked. `keys` are expanded to every head of queries.
fn weights(
    b: &mut Backward<'_>,
    view: &AttentionView,
    heads: &Heads,
    keys: Value,
    scale: f64,
) -> Ruled<Weights> {
    let dtype = b.dtype(heads.q)?;
    let keys_turned = b.transpose_last(keys)?;
    let products = b.matmul(heads.q, keys_turned)?;
    let mut scores = b.scaled(products, scale)?;
    let mut tanh = None;
    if view.softcap > 0.0 {
        let bound = f64::from(view.softcap);
        let ratio = b.scaled(scores, 1.0 / bound)?;
        let found = b.unary(OpKind::Tanh, ratio)?;
        scores = b.scaled(found, bound)?;
        tanh = Some(found);
    }
    let (mask, allowed) = (mask(b, view, heads, dtype)?, allowed(b, view, heads)?);
    if let Some(mask) = mask {
        scores = b.plus(scores, mask)?;
    }
    let least = b.number(f64::NEG_INFINITY, dtype)?;
    if let Some(allowed) = allowed {
        scores = b.select(allowed, scores, least)?;
    }
    if mask.is_none() && allowed.is_none() {
        let weights = b.op(OpKind::Softmax, &[scores], &[("axis", AttrValue::Int(-1))])?;
        return Ok(Weights { weights, tanh });
    }
    // A query that attends to nothing has zeros.
    let largest = b.reduce(OpKind::ReduceMax, scores, &[3], true)?;
    let is_none = b.op(OpKind::Equal, &[largest, least], &[])?;
    let zero = b.number(0.0, dtype)?;
    let scores = b.select(is_none, zero, scores)?;
    let weights = b.op(OpKind::Softmax, &[scores], &[("axis", AttrValue::Int(-1))])?;
    let weights = b.select(is_none, zero, weights)?;
    Ok(Weights { weights, tanh })
}

pub(super) fn attention(b: &mut Backward<'_>) -> Ruled {
    let view = AttentionView::read(&b.view()?)?;
    let (q, k, v) = (apart(b, 0, view.q_heads)?, apart(b, 1, view.kv_heads)?, apart(b, 2, view.kv_heads)?);
    let (q_heads, kv_heads) =
        (known(b, q, 1, "the number of heads")?, known(b, k, 1, "the number of heads")?);
    let (k, v) = (with_past(b, k, 4)?, with_past(b, v, 5)?);
    let heads = Heads { q, k, v, group: q_heads.checked_div(kv_heads).unwrap_or(1).max(1) };
    let (keys, values) = (repeated(b, heads.k, heads.group)?, repeated(b, heads.v, heads.group)?);
    let scale = match view.scale {
        Some(scale) => f64::from(scale),
        #[expect(clippy::cast_precision_loss, reason = "heads are small")]
        None => 1.0 / (known(b, q, 3, "the size of a head")? as f64).sqrt(),
    };
    let Weights { weights, tanh } = weights(b, &view, &heads, keys, scale)?;
    let (mut d_keys, mut d_values) = (None, None);
    if let Some(dy) = b.dy(0) {
        let dy = b.wide(dy)?;
        let dy = if b.rank(dy)? == 3 {
            let split = b.reshape(dy, &[0, 0, wide(q_heads), -1])?;
            b.transpose(split, &[0, 2, 1, 3])?
        } else {
            dy
        };
        if b.needs(2) || b.needs(5) {
            let turned = b.transpose_last(weights)?;
            let d = b.matmul(turned, dy)?;
            d_values = Some(shared(b, d, heads.v, heads.group)?);
        }
        let values_turned = b.transpose_last(values)?;
        let d_weights = b.matmul(dy, values_turned)?;
        let product = b.times(d_weights, weights)?;
        let sum = b.sum_over(product, &[3], true)?;
        let rest = b.minus(d_weights, sum)?;
        let mut d = b.times(weights, rest)?;
        add_to_mask(b, &view, &heads, d)?;
        if let Some(tanh) = tanh {
            let square = b.times(tanh, tanh)?;
            let slope = b.number_minus(1.0, square)?;
            d = b.times(d, slope)?;
        }
        d = b.scaled(d, scale)?;
        if b.needs(0) {
            let d_queries = b.matmul(d, keys)?;
            add_together(b, 0, d_queries)?;
        }
        if b.needs(1) || b.needs(4) {
            let turned = b.transpose_last(d)?;
            let d = b.matmul(turned, q)?;
            d_keys = Some(shared(b, d, heads.k, heads.group)?);
        }
    }
    add_with_past(b, (1, 4), d_keys, heads.k)?;
    add_with_past(b, (2, 5), d_values, heads.v)
}

/// Adds the gradient of a float mask.
fn add_to_mask(b: &mut Backward<'_>, view: &AttentionView, heads: &Heads, d: Value) -> Ruled {
    if !b.needs(3) {
        return Ok(());
    }
    let mask = b.x(3)?;
    let mut d = d;
    if is_shorter(b, view, heads, mask)? {
        let (start, axis) = (b.ints(&[0]), b.ints(&[-1]));
        let end = extent(b, mask, b.rank(mask)? - 1)?;
        d = b.op(OpKind::Slice, &[d, start, end, axis], &[])?;
    }
    b.add_unbroadcast(3, d)
}

/// Adds the gradient of keys or values: the sum for all of them, split into the new and the past ones.
fn add_with_past(b: &mut Backward<'_>, (new, past): (usize, usize), d: Option<Value>, all: Value) -> Ruled {
    // Results 1 and 2 are the keys and values with those of the past.
    let d = match (d, b.dy(new)) {
        (Some(d), Some(dy)) => {
            let dy = b.wide(dy)?;
            b.plus(d, dy)?
        }
        (Some(d), None) => d,
        (None, Some(dy)) => dy,
        (None, None) => return Ok(()),
    };
    let Some(before) = b.operand(past) else { return add_together(b, new, d) };
    let there = extent(b, before, 2)?;
    let total = extent(b, all, 2)?;
    let rest = b.minus(total, there)?;
    let sizes = b.op(OpKind::Concat, &[there, rest], &[("axis", AttrValue::Int(0))])?;
    let spec = NodeSpec::new(OpKind::Split, &[d, sizes]).attr("axis", AttrValue::Int(signed(2)));
    let [d_past, d_new] = b.insert(spec)?;
    b.add_rounded(past, d_past)?;
    add_together(b, new, d_new)
}

/// A turn by the opposite angles. Cosines and sines are tables.
pub(super) fn rotary(b: &mut Backward<'_>) -> Ruled {
    b.refuse(1)?;
    b.refuse(2)?;
    let (dy, cos, sin) = (b.dy0()?, b.x(1)?, b.x(2)?);
    let sin = b.neg(sin)?;
    let mut operands = vec![Some(dy), Some(cos), Some(sin)];
    operands.extend(b.operand(3).map(Some));
    let spec = b.like_node(&[]).operands(&operands);
    let [dx] = b.insert(spec)?;
    b.add(0, dx)
}
