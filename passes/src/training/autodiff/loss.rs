//! Gradients of the losses of ONNX.
//!
//! For an element with label t and weight w, the loss is −w · logp[t], and 0 if the label is ignored. With k
//! the gradient that reaches the element, times its weight, and divided by the sum of all weights if the loss
//! is a mean:
//!
//! ```text
//! d logp = −onehot(t) · k                            NegativeLogLikelihoodLoss
//! d scores = (e^logp − onehot(t)) · k                SoftmaxCrossEntropyLoss
//! ```

use super::backward::{Backward, Build, Ruled};
use super::dims::wide;
use crate::pass::training_error::RuleError;
use crate::training::build::without_ignored;
use ampc_ir::op::OpKind;
use ampc_ir::{AttrValue, DType, TensorData, Value};

/// The labels, one-hot along axis 1, and k, unsqueezed there; both in f32 or wider.
fn labels(b: &mut Backward<'_>, dloss: Value) -> Ruled<(Value, Value)> {
    let view = b.view()?;
    let reduction = view.string("reduction").unwrap_or("mean").to_owned();
    let ignored = view.attr("ignore_index").map(|_| view.int("ignore_index").unwrap_or(0));
    let (scores, label) = (b.x(0)?, b.x(1)?);
    // ONNX Runtime has OneHot of few types of integers.
    let label = b.cast(label, DType::I64)?;
    let dloss = b.wide(dloss)?;
    let dtype = b.dtype(dloss)?;
    let (mut safe, mut skip) = (label, None);
    if let Some(ignored) = ignored {
        let (others, is_ignored) = without_ignored(b, label, ignored)?;
        (safe, skip) = (others, Some(is_ignored));
    }
    let one = b.number(1.0, dtype)?;
    let zero = b.number(0.0, dtype)?;
    let weight = match b.operand(2) {
        Some(weights) => {
            let weights = b.wide(weights)?;
            let weights = b.cast(weights, dtype)?;
            Some(b.op(OpKind::Gather, &[weights, safe], &[("axis", AttrValue::Int(0))])?)
        }
        None => None,
    };
    let weight = match (weight, skip) {
        (weight, Some(skip)) => b.select(skip, zero, weight.unwrap_or(one))?,
        (Some(weight), None) => weight,
        (None, None) => b.expand_as(one, label)?,
    };
    let k = match reduction.as_str() {
        "mean" => {
            let axes: Vec<usize> = (0..b.rank(weight)?).collect();
            let sum = b.sum_over(weight, &axes, false)?;
            let share = b.times(weight, dloss)?;
            b.over(share, sum)?
        }
        "sum" | "none" => b.times(weight, dloss)?,
        other => {
            return Err(RuleError::Unsupported(format!("its reduction `{other}` is unknown")));
        }
    };
    let k = b.unsqueeze(k, &[1])?;
    let classes = match b.shape(scores)?.get(1).and_then(|dim| dim.known()) {
        Some(n) => b.ints(&[wide(n)]),
        None => super::dims::dim_range(b, scores, 1, Some(2))?,
    };
    let ends = TensorData::from_f32(&[2], &[0.0, 1.0]).map_err(|e| RuleError::Internal(format!("{e}")))?;
    let ends = b.constant(ends);
    let onehot = b.op(OpKind::OneHot, &[safe, classes, ends], &[("axis", AttrValue::Int(1))])?;
    let onehot = b.cast(onehot, dtype)?;
    Ok((onehot, k))
}

pub(super) fn negative_log_likelihood(b: &mut Backward<'_>) -> Ruled {
    b.refuse(2)?;
    let dloss = b.dy0()?;
    let (onehot, k) = labels(b, dloss)?;
    let negated = b.neg(k)?;
    let dx = b.times(onehot, negated)?;
    b.add(0, dx)
}

pub(super) fn cross_entropy(b: &mut Backward<'_>) -> Ruled {
    b.refuse(2)?;
    let scores = b.x(0)?;
    let log_prob = b.result_or_new(1, b.ty(scores).clone())?;
    let log_prob = b.wide(log_prob)?;
    let prob = b.unary(OpKind::Exp, log_prob)?;
    let mut parts = Vec::new();
    if let Some(dloss) = b.dy(0) {
        let (onehot, k) = labels(b, dloss)?;
        let difference = b.minus(prob, onehot)?;
        parts.push(b.times(difference, k)?);
    }
    // What reads the logarithms of probabilities reads a LogSoftmax.
    if let Some(dlog) = b.dy(1) {
        let dlog = b.wide(dlog)?;
        let sum = b.sum_over(dlog, &[1], true)?;
        let product = b.times(prob, sum)?;
        parts.push(b.minus(dlog, product)?);
    }
    let dx = b.sum(&parts)?;
    b.add(0, dx)
}
