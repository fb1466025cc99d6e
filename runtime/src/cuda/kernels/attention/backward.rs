//! Attention and its gradient as a pair of groups: the statistics of the rows of scores are stored, but not the
//! attention probabilities.
//!
//! The gradient is one graph of cuDNN with deterministic sums. It recomputes the probabilities in f32, and rounds
//! probabilities and gradients of scores to the element type of the operands before their products. Rows with masks
//! far below zero have no exact statistics; another kernel adds their gradients (`masked_gradient.rs`).

use super::super::Maker;
use super::super::stage::{Place, Scratch, Stage, staged};
use super::fused::{forward, no_kernel, of_pattern, place_of, planned, size};
use super::gradient::{Gradient, Pair};
use super::masked_gradient::NUMBERS;
use super::pattern::Mask;
use crate::backend::{Carry, GroupSite};
use crate::cuda::Shared;
use crate::cuda::dnn::{self, Attention, AttentionGradient};
use crate::kernel::{Prepared, Result};
use ampc_ir::{DType, Module, Node, Value};
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// The cuDNN problem of a gradient.
fn problem(attention: &Attention, gradient: &Gradient) -> dnn::Problem {
    dnn::Problem::Gradient(Box::new(AttentionGradient {
        of: Attention { has_statistics: true, ..attention.clone() },
        result: gradient.result.1,
        gradients: gradient.gradients.map(|(_, of)| of),
    }))
}

/// True if cuDNN computes both an attention and its gradient.
pub(super) fn has_plans(shared: &Shared, module: &Module, pair: &Pair) -> bool {
    let Some(found) = of_pattern(module, &pair.forward, |_| Some(Place::operand(0))) else { return false };
    let scores = found.scores();
    if scores[2] == 1 && scores[3] == 1 {
        return false;
    }
    let of = Attention { has_statistics: true, ..found.attention };
    let problems = [problem(&of, &pair.gradient), dnn::Problem::Attention(Box::new(of))];
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
    let made: FxHashSet<Node> = group.sites.iter().map(|site| site.view.node).collect();
    let results: FxHashSet<Value> = group.results.iter().copied().collect();
    let statistics = place_of(group, probabilities).ok_or_else(no_kernel)?;
    if let Some(site) = group.sites.iter().find(|site| site.view.node == softmax) {
        if results != FxHashSet::from_iter([probabilities, pair.forward.result.0]) {
            return Err(no_kernel());
        }
        return forward(&Maker { shared, site }, group, &pair.forward, Some(statistics));
    }
    let Pair { forward, gradient } = &pair;
    let nodes: FxHashSet<Node> = gradient.nodes.iter().copied().collect();
    if nodes != made || results != gradient.gradients.iter().map(|&(value, _)| value).collect() {
        return Err(no_kernel());
    }
    let maker = Maker { shared, site };
    let found = of_pattern(module, forward, |value| place_of(group, value)).ok_or_else(no_kernel)?;
    let found = found.with_statistics(Some(statistics));
    let (mut scratch, mut stages) = (Scratch::default(), Vec::new());
    let bias = found.bias(&maker, &mut scratch, &mut stages)?;
    let plan = planned(shared, problem(&found.attention, gradient))?.ok_or_else(no_kernel)?;
    let place = |value: Value| place_of(group, value).ok_or_else(no_kernel);
    let of_result = place(gradient.result.0)?;
    let mut gradients = [of_result; 3];
    for (to, &(value, _)) in gradients.iter_mut().zip(&gradient.gradients) {
        *to = place(value)?;
    }
    let rows = found.scores()[..3].iter().map(|&n| size(n)).product::<usize>();
    let sums = scratch.part(rows.saturating_mul(4));
    let tensors = found.tensors.into_iter().chain([statistics, of_result]).chain(gradients).chain([sums]);
    stages.push(Stage::attention(plan, tensors.map(Some).collect(), bias, found.scale, &mut scratch));
    if let Some(bias) = bias
        && forward.masks.iter().any(|mask| matches!(mask, Mask::Added(_)))
    {
        let parts = scratch.part(rows.saturating_mul(4 * NUMBERS));
        let places = [statistics, of_result, bias, parts];
        stages.push(found.masked_gradient(&maker, gradient, places, gradients)?);
    }
    Ok(staged(stages, &scratch))
}
