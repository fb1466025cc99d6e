//! Attention and its gradient as a pair of groups: the statistics of the rows of scores are stored, but not the
//! attention probabilities.
//!
//! The gradient is one graph of cuDNN with deterministic sums. It recomputes the probabilities in f32, and rounds
//! probabilities and gradients of scores to the element type of the operands before their products. Rows with masks
//! far below zero have no exact statistics; another kernel adds their gradients (`masked_gradient.rs`).
//!
//! The gradient of an operator is no part of such a pair: it computes attention and statistics again, in scratch
//! memory. Gradients of heads that share keys and values are rounded before they are added.

use super::super::Maker;
use super::super::stage::{Place, Scratch, Source, Stage, staged};
use super::fused::{Problem, forward, no_kernel, of_pattern, place_of, planned, size};
use super::gradient::{Gradient, Pair};
use super::masked_gradient::NUMBERS;
use super::pattern::Mask;
use crate::backend::{Carry, GroupSite};
use crate::cuda::Shared;
use crate::cuda::dnn::{self, Attention, AttentionGradient, Strided};
use crate::cuda::text::Elem;
use crate::kernel::{Prepared, Result};
use ampc_ir::{DType, Module, Node, Value};
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// The cuDNN problem of a gradient. Shared keys and values have a gradient for each query head.
fn problem(attention: &Attention, gradient: &Gradient) -> AttentionGradient {
    let [of_query, of_key, of_value] = gradient.gradients.map(|(_, of)| of);
    let heads = attention.query.dims[1];
    let for_each = |of: Strided| match of.dims {
        [_, own, _, _] if own == heads => of,
        [batch, _, length, size] => Strided::dense([batch, heads, length, size]),
    };
    AttentionGradient {
        of: Attention { has_statistics: true, ..attention.clone() },
        result: gradient.result.1,
        gradients: [of_query, for_each(of_key), for_each(of_value)],
    }
}

/// True if cuDNN computes both an attention and its gradient.
pub(super) fn has_plans(shared: &Shared, module: &Module, pair: &Pair) -> bool {
    let Some(found) = of_pattern(module, &pair.forward, |_| Some(Place::operand(0))) else { return false };
    let scores = found.scores();
    if scores[2] == 1 && scores[3] == 1 {
        return false;
    }
    let of = Attention { has_statistics: true, ..found.attention };
    let gradient = dnn::Problem::Gradient(Box::new(problem(&of, &pair.gradient)));
    let problems = [gradient, dnn::Problem::Attention(Box::new(of))];
    problems.into_iter().all(|problem| matches!(planned(shared, problem), Ok(Some(_))))
}

/// The values that an attention hands over to its gradient.
pub(super) fn carries(pair: &Pair) -> Vec<Carry> {
    let Pair { forward, gradient } = pair;
    let [batch, heads, rows, _] = forward.query.1.dims.map(size);
    let mut instead = vec![forward.query.0, forward.key.0, forward.value.0, forward.result.0];
    instead.extend(forward.masks.iter().map(|mask| mask.value()));
    let dims = [batch, heads, rows, 1].iter().map(|&n| n as u64).collect();
    let probabilities = Carry { value: gradient.probabilities, stored: Some((DType::F32, dims)), instead };
    let others = gradient.others.iter().map(|&value| Carry { value, stored: None, instead: Vec::new() });
    [probabilities].into_iter().chain(others).collect()
}

/// The kernel of an attention that hands over `probabilities`, or of its gradient.
pub(super) fn prepare(shared: &Arc<Shared>, group: &GroupSite<'_>, probabilities: Value) -> Result<Prepared> {
    let site = group.sites.first().ok_or_else(no_kernel)?;
    let module = site.view.module;
    let (softmax, _) = module.producer(probabilities).ok_or_else(no_kernel)?;
    let is_private = super::fused::private(module, module.node(softmax).graph);
    let pair = Pair::find(module, &is_private, softmax).ok_or_else(no_kernel)?;
    let statistics = place_of(group, probabilities).ok_or_else(no_kernel)?;
    if let Some(site) = group.sites.iter().find(|site| site.view.node == softmax) {
        let results: FxHashSet<Value> = group.results.iter().copied().collect();
        if results != FxHashSet::from_iter([probabilities, pair.forward.result.0]) {
            return Err(no_kernel());
        }
        return forward(&Maker { shared, site }, group, &pair.forward, Some(statistics));
    }
    let maker = Maker { shared, site };
    let found = of_pattern(module, &pair.forward, |value| place_of(group, value)).ok_or_else(no_kernel)?;
    let found = found.with_statistics(Some(statistics));
    let (mut scratch, mut stages) = (Scratch::default(), Vec::new());
    let bias = found.bias(&maker, &mut scratch, &mut stages)?;
    add(&maker, group, (&pair, &found, statistics), bias, (&mut scratch, &mut stages))?;
    Ok(staged(stages, &scratch))
}

/// The kernel of the gradient of an operator.
pub(super) fn recomputing(maker: &Maker<'_>, group: &GroupSite<'_>, pair: &Pair) -> Result<Prepared> {
    let module = maker.site.view.module;
    let found = of_pattern(module, &pair.forward, |value| place_of(group, value)).ok_or_else(no_kernel)?;
    let (mut scratch, mut stages) = (Scratch::default(), Vec::new());
    let [batch, heads, rows, of_value] = found.attention.result.dims.map(size);
    let n = batch.saturating_mul(heads).saturating_mul(rows);
    let statistics = scratch.part(n.saturating_mul(4));
    let mut found = found.with_statistics(Some(statistics));
    // The result of the operator is 0 where a query attends to no key.
    found.masked_row = 0.0;
    found.tensors[3] = scratch.part(n.saturating_mul(of_value).saturating_mul(2));
    let plan = found.plan(maker.shared)?.ok_or_else(no_kernel)?;
    let bias = found.add(maker, plan, &mut scratch, &mut stages)?;
    add(maker, group, (pair, &found, statistics), bias, (&mut scratch, &mut stages))?;
    Ok(staged(stages, &scratch))
}

/// Adds the stages of a gradient.
fn add(
    maker: &Maker<'_>,
    group: &GroupSite<'_>,
    (pair, found, statistics): (&Pair, &Problem, Place),
    bias: Option<Place>,
    (scratch, stages): (&mut Scratch, &mut Vec<Stage>),
) -> Result<()> {
    let Pair { forward, gradient } = pair;
    let made: FxHashSet<Node> = group.sites.iter().map(|site| site.view.node).collect();
    let nodes: FxHashSet<Node> = gradient.nodes.iter().copied().collect();
    let results: FxHashSet<Value> = group.results.iter().copied().collect();
    if nodes != made || results != gradient.gradients.iter().map(|&(value, _)| value).collect() {
        return Err(no_kernel());
    }
    let problem = problem(&found.attention, gradient);
    let of_result = place_of(group, gradient.result.0).ok_or_else(no_kernel)?;
    let (gradients, sums) = places(maker, group, (gradient, &problem), scratch)?;
    let plan = planned(maker.shared, dnn::Problem::Gradient(Box::new(problem.clone())))?;
    let rows = found.scores()[..3].iter().map(|&n| size(n)).product::<usize>();
    let sum = scratch.part(rows.saturating_mul(4));
    let tensors = found.tensors.iter().chain([&statistics, &of_result]).chain(&gradients).chain([&sum]);
    let tensors = tensors.copied().map(Some).collect();
    stages.push(Stage::attention(plan.ok_or_else(no_kernel)?, tensors, bias, found.scale, scratch));
    if let Some(bias) = bias
        && forward.masks.iter().any(|mask| matches!(mask, Mask::Added(_)))
    {
        let parts = scratch.part(rows.saturating_mul(4 * NUMBERS));
        let places = [statistics, of_result, bias, parts];
        stages.push(found.masked_gradient(maker, &problem, places, &gradients)?);
    }
    stages.extend(sums);
    Ok(())
}

/// The places of the gradients that cuDNN computes, and the stages that sum over heads that share keys and values.
fn places(
    maker: &Maker<'_>,
    group: &GroupSite<'_>,
    (gradient, problem): (&Gradient, &AttentionGradient),
    scratch: &mut Scratch,
) -> Result<(Vec<Place>, Vec<Stage>)> {
    let (mut places, mut sums) = (Vec::new(), Vec::new());
    for (&(value, of), all) in gradient.gradients.iter().zip(&problem.gradients) {
        let to = place_of(group, value).ok_or_else(no_kernel)?;
        if all.dims == of.dims {
            places.push(to);
            continue;
        }
        let bytes = all.dims.iter().fold(2, |bytes: usize, &n| bytes.saturating_mul(size(n)));
        let from = scratch.part(bytes);
        places.push(from);
        sums.push(sum_of_heads(maker, (from, all.dims[1]), (to, of), problem.of.dtype)?);
    }
    Ok((places, sums))
}

/// The sums of the gradients of `heads` query heads over the heads that share keys and values.
fn sum_of_heads(
    maker: &Maker<'_>,
    (from, heads): (Place, i64),
    (to, of): (Place, Strided),
    dtype: DType,
) -> Result<Stage> {
    let elem = Elem::float(dtype).ok_or_else(no_kernel)?;
    let [batch, own, length, columns] = of.dims;
    let mut source = Source::new([batch, heads, length, columns].map(size).iter().product());
    source.from("x", elem, from);
    source.to("y", elem, to);
    let [step_n, step_h, step_s, _] = of.strides;
    let numbers = [
        ("heads", own),
        ("length", length),
        ("size", columns),
        ("group", heads / own),
        ("step_n", step_n),
        ("step_h", step_h),
        ("step_s", step_s),
    ];
    for (name, number) in numbers {
        source.signed(name, number);
    }
    let body = format!(
        "i64 c = i % size, s = i / size % length, h = i / size / length % heads, n = i / size / length / heads;
    float sum = 0.0f;
    for (i64 j = 0; j < group; j++) sum += {};
    y[n * step_n + h * step_h + s * step_s + c] = {};",
        elem.load("x[(((n * heads + h) * group + j) * length + s) * size + c]"),
        elem.store("sum"),
    );
    source.each(maker, of.dims.map(size).iter().product(), &body)
}
