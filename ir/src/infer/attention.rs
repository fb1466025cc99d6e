//! Attention and its relatives.

use super::inferred::Inferred;
use crate::ty::{Dim, Shape};
use crate::views::attention::{AttentionView, LinearAttentionView, RotaryView, conv_ends_in_swish};
use crate::views::size::{add, agree, agree_all, at_least, part, ranked, shape_error, times};
use crate::views::{NodeView, OpError};

/// Batch, heads, length and head size of an operand of rank 3 or 4.
struct Heads {
    batch: Dim,
    heads: Dim,
    length: Dim,
    size: Dim,
    packed: bool,
}

fn heads_of(view: &NodeView<'_>, i: usize, count: Option<u64>, attr: &str) -> Result<Option<Heads>, OpError> {
    let Some(dims) = view.dims(i) else { return Ok(None) };
    Ok(Some(match *dims {
        [batch, heads, length, size] => Heads { batch, heads, length, size, packed: false },
        [batch, length, hidden] => {
            let n = count.ok_or_else(|| {
                OpError::attr(attr, "a number of heads, since operands have rank 3", "none")
            })?;
            let size = part(hidden, n)
                .ok_or_else(|| shape_error(i, format!("{n} heads of one size on axis 2"), dims))?;
            Heads { batch, heads: Dim::Known(n), length, size, packed: true }
        }
        _ => return Err(shape_error(i, "a tensor of rank 3 or 4", dims)),
    }))
}

const NOT_KNOWN: Heads = Heads {
    batch: Dim::Unknown,
    heads: Dim::Unknown,
    length: Dim::Unknown,
    size: Dim::Unknown,
    packed: false,
};

/// The fact that two extents are one, or the error that they are not.
fn same(a: Dim, b: Dim, view: &NodeView<'_>, i: usize, what: &str) -> Result<Dim, OpError> {
    a.meet(b).ok_or_else(|| {
        shape_error(i, format!("{} as the {what}", a.known().unwrap_or(0)), view.dims(i).unwrap_or(&[]))
    })
}

/// Attention: result, new keys and values, scores.
pub(super) fn infer_attention(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let attention = AttentionView::read(view)?;
    let q = heads_of(view, 0, attention.q_heads, "q_num_heads")?;
    let k = heads_of(view, 1, attention.kv_heads, "kv_num_heads")?;
    let v = heads_of(view, 2, attention.kv_heads, "kv_num_heads")?;
    let packed = [&q, &k, &v].into_iter().flatten().map(|h| h.packed).next();
    for (i, operand) in [&q, &k, &v].into_iter().enumerate() {
        if operand.as_ref().is_some_and(|h| Some(h.packed) != packed) {
            return Err(shape_error(i, "the rank of the other operands", view.dims(i).unwrap_or(&[])));
        }
    }
    let (q, mut k, mut v) = (q.unwrap_or(NOT_KNOWN), k.unwrap_or(NOT_KNOWN), v.unwrap_or(NOT_KNOWN));
    let batch = same(same(q.batch, k.batch, view, 1, "batch size")?, v.batch, view, 2, "batch size")?;
    same(q.size, k.size, view, 1, "head size")?;
    let mut kv_heads = same(k.heads, v.heads, view, 2, "number of heads")?;
    let mut length = same(k.length, v.length, view, 2, "number of keys")?;
    if let (Dim::Known(a), Dim::Known(b)) = (q.heads, kv_heads)
        && (b == 0 && a != 0 || b != 0 && !a.is_multiple_of(b))
    {
        return Err(shape_error(0, format!("a multiple of {b} heads"), view.dims(0).unwrap_or(&[])));
    }
    let mut past = Dim::Known(0);
    if view.has(4) || view.has(5) {
        if view.has(4) != view.has(5) {
            return Err(OpError::operand(4, "past keys and values together", "one of them"));
        }
        past = Dim::Unknown;
        let names = ["batch size", "number of heads", "number of past keys", "head size"];
        let mut batch = batch;
        k.size = k.size.meet(q.size).unwrap_or(k.size);
        agree_all(view, 4, &mut [&mut batch, &mut kv_heads, &mut past, &mut k.size], &names)?;
        agree_all(view, 5, &mut [&mut batch, &mut kv_heads, &mut past, &mut v.size], &names)?;
    }
    length = add(length, past);
    let result = match packed {
        Some(true) => {
            let n = attention.q_heads.unwrap_or(1);
            Shape::of([batch, q.length, times(v.size, n)])
        }
        Some(false) => Shape::of([batch, q.heads, q.length, v.size]),
        None => Shape::unknown(),
    };
    out.shape(0, result);
    out.shape(1, Shape::of([batch, kv_heads, length, k.size]));
    out.shape(2, Shape::of([batch, kv_heads, length, v.size]));
    out.shape(3, Shape::of([batch, q.heads, q.length, length]));
    Ok(())
}

/// FlexAttention of the preview domain: rank 4 only.
pub(super) fn infer_flex_attention(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let [mut batch, mut heads, mut length, mut size] = [Dim::Unknown; 4];
    let [mut kv_heads, mut keys, mut v_size] = [Dim::Unknown; 3];
    let names = ["batch size", "number of heads", "length", "head size"];
    agree_all(view, 0, &mut [&mut batch, &mut heads, &mut length, &mut size], &names)?;
    agree_all(view, 1, &mut [&mut batch, &mut kv_heads, &mut keys, &mut size], &names)?;
    agree_all(view, 2, &mut [&mut batch, &mut kv_heads, &mut keys, &mut v_size], &names)?;
    if let (Dim::Known(a), Dim::Known(b)) = (heads, kv_heads)
        && (b == 0 && a != 0 || b != 0 && !a.is_multiple_of(b))
    {
        return Err(shape_error(0, format!("a multiple of {b} heads"), view.dims(0).unwrap_or(&[])));
    }
    out.shape(0, Shape::of([batch, heads, length, v_size]));
    Ok(())
}

/// RotaryEmbedding: the shape of its operand.
pub(super) fn infer_rotary(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let rotary = RotaryView::read(view)?;
    let x = heads_of(view, 0, rotary.heads, "num_heads")?.unwrap_or(NOT_KNOWN);
    let half = match (rotary.dim, x.size) {
        (Some(dim), Dim::Known(size)) if dim > size => {
            return Err(OpError::attr("rotary_embedding_dim", format!("at most {size}"), dim.to_string()));
        }
        (Some(dim), _) => Dim::Known(dim / 2),
        (None, Dim::Known(size)) if !size.is_multiple_of(2) => {
            return Err(shape_error(0, "an even head size", view.dims(0).unwrap_or(&[])));
        }
        (None, size) => size.known().map_or(Dim::Unknown, |s| Dim::Known(s / 2)),
    };
    let mut half = half;
    let cache_rank = if view.has(3) { 2 } else { 3 };
    let (mut batch, mut length) = (x.batch, x.length);
    for operand in 1..3 {
        if ranked(view, operand, cache_rank)?.is_some() {
            agree(view, operand, cache_rank - 1, &mut half, "half of what turns")?;
        }
    }
    agree_all(view, 3, &mut [&mut batch, &mut length], &["batch size", "number of positions"])?;
    out.shape(0, view.shape(0));
    Ok(())
}

/// LinearAttention: result and state.
pub(super) fn infer_linear_attention(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let linear = LinearAttentionView::read(view)?;
    let [mut batch, mut length, mut q, mut k, mut v] = [Dim::Unknown; 5];
    for (operand, hidden) in [(0, &mut q), (1, &mut k), (2, &mut v)] {
        agree_all(view, operand, &mut [&mut batch, &mut length, hidden], &["batch size", "length", "heads"])?;
    }
    let size = |hidden: Dim, heads: u64, operand: usize| {
        part(hidden, heads).ok_or_else(|| {
            let dims = view.dims(operand).unwrap_or(&[]);
            shape_error(operand, format!("{heads} heads of one size on axis 2"), dims)
        })
    };
    let q_size = size(q, linear.q_heads, 0)?;
    let mut k_size = same(q_size, size(k, linear.kv_heads, 1)?, view, 1, "head size")?;
    let mut v_size = size(v, linear.kv_heads, 2)?;
    let mut heads = Dim::Known(linear.kv_heads);
    let names = ["batch size", "number of heads", "head size of keys", "head size of values"];
    agree_all(view, 3, &mut [&mut batch, &mut heads, &mut k_size, &mut v_size], &names)?;
    for (needed, operand, what) in [(linear.rule.gated, 4, "decay"), (linear.rule.delta, 5, "beta")] {
        if needed && !view.has(operand) {
            return Err(OpError::operand(operand, format!("a {what}, which the update rule needs"), "none"));
        }
        if at_least(view, operand, 3)?.is_some() {
            agree_all(
                view,
                operand,
                &mut [&mut batch, &mut length, &mut Dim::Unknown],
                &["batch size", "length", ""],
            )?;
        }
    }
    out.shape(0, Shape::of([batch, length, times(v_size, linear.q_heads)]));
    // Without a past state the new one has the element type of the query.
    let state = if view.has(3) { view.dtype(3) } else { view.dtype(0) };
    if let Some(dtype) = state {
        out.tensor(1, dtype, Shape::of([batch, heads, k_size, v_size]));
    }
    Ok(())
}

/// CausalConvWithState: the shape of the operand, and the last steps that the next call needs.
pub(super) fn infer_causal_conv(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    conv_ends_in_swish(view)?;
    let [mut batch, mut channels, mut length, mut kernel, mut kept] = [Dim::Unknown; 5];
    let names = ["batch size", "number of channels", "length"];
    agree_all(view, 0, &mut [&mut batch, &mut channels, &mut length], &names)?;
    let names = ["number of channels", "number of channels per group", "kernel size"];
    agree_all(view, 1, &mut [&mut channels, &mut Dim::Known(1), &mut kernel], &names)?;
    agree_all(view, 2, &mut [&mut channels], &names[..1])?;
    if let Dim::Known(kernel) = kernel {
        let before = kernel
            .checked_sub(1)
            .ok_or_else(|| shape_error(1, "a kernel of 1 or more", view.dims(1).unwrap_or(&[])))?;
        kept = Dim::Known(before);
    }
    let names = ["batch size", "number of channels", "kernel size less 1"];
    agree_all(view, 3, &mut [&mut batch, &mut channels, &mut kept], &names)?;
    out.shape(0, Shape::of([batch, channels, length]));
    out.shape(1, Shape::of([batch, channels, kept]));
    Ok(())
}
