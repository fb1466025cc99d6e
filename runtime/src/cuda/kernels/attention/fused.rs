//! Attention by cuDNN, without a score matrix in memory.
//!
//! Intermediate values are in f32. The attention probabilities are rounded to the element type of the operands before
//! the product with the values, and the result is rounded once. A mask that cuDNN cannot read, such as a bool mask,
//! is converted first; the converted mask has only the dims along which the mask varies. Another kernel writes rows
//! whose keys are all masked (`masks.rs`).

use super::super::stage::{Place, Scratch, Stage, staged};
use super::super::{Maker, signed};
use super::gradient::Pair;
use super::masks::{Masking, sum};
use super::pattern::{Finder, Mask, Pattern};
use super::viewed::four;
use super::{Layout, backward};
use crate::backend::{Candidates, Carry, GroupSite};
use crate::cuda::Shared;
use crate::cuda::dnn::{self, Attention, AttentionPlan, Strided};
use crate::kernel::{KernelError, Prepared, Result};
use crate::plan::known_tensor;
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::views::attention::AttentionView;
use ampc_ir::{DType, GraphId, Module, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// The maximum head size.
const MOST_SIZE: i64 = 256;

/// The head size must be a multiple of this number.
const SIZE_STEP: i64 = 8;

/// An attention to compute.
pub(super) struct Problem {
    pub(super) attention: Attention,
    pub(super) masks: Vec<Masking>,
    /// Query, key, value, result.
    pub(super) tensors: [Place; 4],
    /// The statistics of the rows of scores, for a gradient.
    pub(super) statistics: Option<Place>,
    pub(super) scale: f32,
    /// The elements of a result row whose masks are all −∞.
    pub(super) masked_row: f32,
}

/// True if cuDNN may have an engine.
fn is_supported(attention: &Attention) -> bool {
    let Attention { query, key, value, result, .. } = attention;
    let sizes = [query.dims[3], value.dims[3]];
    [query, key, value, result].iter().all(|of| !of.dims.contains(&0) && of.strides[3] == 1)
        && sizes.iter().all(|&size| size % SIZE_STEP == 0 && size <= MOST_SIZE)
        && key.dims[1] > 0
        && query.dims[1] % key.dims[1] == 0
}

fn fits(mask: [i64; 4], scores: [i64; 4]) -> bool {
    mask.iter().zip(scores).all(|(&own, n)| own == 1 || own == n)
}

/// An extent as an index.
pub(super) fn size(n: i64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

impl Problem {
    /// The dims of the scores.
    pub(super) fn scores(&self) -> [i64; 4] {
        let Attention { query, key, .. } = &self.attention;
        [query.dims[0], query.dims[1], query.dims[2], key.dims[2]]
    }

    /// The kernel; `None` if cuDNN is absent, has no engine, or rounds the probabilities although every node must
    /// round exactly.
    fn prepared(self, maker: &Maker<'_>) -> Result<Option<Prepared>> {
        if maker.shared.exact_rounding {
            return Ok(None);
        }
        let Some(plan) = self.plan(maker.shared)? else { return Ok(None) };
        let (mut scratch, mut stages) = (Scratch::default(), Vec::new());
        self.add(maker, plan, &mut scratch, &mut stages)?;
        Ok(Some(staged(stages, &scratch)))
    }

    /// The plan of the attention; `None` if cuDNN has none.
    pub(super) fn plan(&self, shared: &Shared) -> Result<Option<AttentionPlan>> {
        planned(shared, dnn::Problem::Attention(Box::new(self.attention.clone())))
    }

    /// Adds the stages of the kernel; returns the place of the addend of the scores.
    pub(super) fn add(
        &self,
        maker: &Maker<'_>,
        plan: AttentionPlan,
        scratch: &mut Scratch,
        stages: &mut Vec<Stage>,
    ) -> Result<Option<Place>> {
        let bias = self.bias(maker, scratch, stages)?;
        let tensors = self.tensors.map(Some).into_iter().chain([self.statistics]).collect();
        stages.push(Stage::attention(plan, tensors, bias, self.scale, scratch));
        if let Some(bias) = bias {
            stages.push(self.masked_rows(maker, bias)?);
        }
        Ok(bias)
    }

    /// The place of the addend of the scores. cuDNN reads a mask directly if it can.
    pub(super) fn bias(
        &self,
        maker: &Maker<'_>,
        scratch: &mut Scratch,
        stages: &mut Vec<Stage>,
    ) -> Result<Option<Place>> {
        let Some((_, Strided { dims, .. })) = self.attention.bias else { return Ok(None) };
        if let Some(mask) = self.read_as_it_is(dims) {
            return Ok(Some(mask.place));
        }
        let n = dims.iter().map(|&n| size(n)).product::<usize>();
        let to = scratch.part(n.saturating_mul(4));
        stages.push(sum(maker, &self.masks, dims, (n, to))?);
        Ok(Some(to))
    }

    /// The mask that cuDNN can read without conversion.
    fn read_as_it_is(&self, dims: [i64; 4]) -> Option<&Masking> {
        match &self.masks[..] {
            [mask]
                if mask.is_added
                    && mask.dims == dims
                    && (mask.dtype == self.attention.dtype || mask.dtype == DType::F32) =>
            {
                Some(mask)
            }
            _ => None,
        }
    }

    /// The problem with statistics of rows, if there is a place for them.
    pub(super) fn with_statistics(mut self, place: Option<Place>) -> Problem {
        self.statistics = place;
        self.attention.has_statistics = place.is_some();
        self
    }

    /// Sets the layout of the addend of the scores in the problem.
    fn with_bias(mut self) -> Problem {
        let mut dims = [1, 1, 1, self.scores()[3]];
        for mask in &self.masks {
            dims.iter_mut().zip(mask.dims).for_each(|(n, own)| *n = own.max(*n));
        }
        let dtype = self.read_as_it_is(dims).map_or(DType::F32, |mask| mask.dtype);
        self.attention.bias = (!self.masks.is_empty()).then(|| (dtype, Strided::dense(dims)));
        self
    }
}

/// The plan of a problem; `None` if cuDNN has none, in which case products and a softmax compute the attention.
pub(super) fn planned(shared: &Shared, problem: dnn::Problem) -> Result<Option<AttentionPlan>> {
    match shared.dnn.plan_attention(problem) {
        Ok(plan) => Ok(Some(plan)),
        Err(error) if !error.is_invalid() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The operator Attention; `None` if it has unsupported operands or results, or cuDNN has no engine.
pub(super) fn of_operator(
    maker: &Maker<'_>,
    view: &AttentionView,
    [q, k, v]: [Layout; 3],
) -> Result<Option<Prepared>> {
    let site = maker.site;
    let dtype = site.dtype(0)?;
    let is_plain = view.softcap == 0.0
        && view.left_window.is_none()
        && view.right_window.is_none()
        && !(1..4).any(|j| site.wants(j))
        && !(4..7).any(|i| site.has(i));
    if !matches!(dtype, DType::F16 | DType::BF16) || site.dtype(2)? != dtype || !is_plain {
        return Ok(None);
    }
    let strided = |of: Layout| {
        let [n, h, s] = of.steps().map(signed);
        let dims = [of.batch, of.heads, of.length, of.size].map(signed);
        Strided { dims, strides: [n, h, s, 1] }
    };
    let attention = Attention {
        dtype,
        query: strided(q),
        key: strided(k),
        value: strided(v),
        result: strided(Layout { size: v.size, ..q }),
        bias: None,
        is_causal: view.causal,
        has_statistics: false,
    };
    let scores = [q.batch, q.heads, q.length, k.length].map(signed);
    let mut masks = Vec::new();
    if site.has(3) {
        let own = site.dims(3)?;
        let mut dims = [1; 4];
        if own.len() > 4 {
            return Ok(None);
        }
        dims.iter_mut().rev().zip(own.iter().rev()).for_each(|(n, &own)| *n = signed(own));
        // A mask shorter than the keys masks the other keys.
        let dtype = site.dtype(3)?;
        if !fits(dims, scores) || view.short_masks && dims[3] != scores[3] || !is_mask(dtype) {
            return Ok(None);
        }
        let is_added = dtype != DType::Bool;
        masks.push(Masking { place: Place::operand(3), dtype, dims, is_added, hides: false });
    }
    if !is_supported(&attention) {
        return Ok(None);
    }
    let tensors = [Place::operand(0), Place::operand(1), Place::operand(2), Place::result(0)];
    let scale = view.scale.unwrap_or_else(|| super::inverse_root(q.size));
    let problem = Problem { attention, masks, tensors, statistics: None, scale, masked_row: 0.0 };
    problem.with_bias().prepared(maker)
}

fn is_mask(dtype: DType) -> bool {
    matches!(dtype, DType::Bool | DType::F32 | DType::F16 | DType::BF16)
}

/// The problem of a pattern. `place_of` returns the place of the result or of a value from outside.
pub(super) fn of_pattern(
    module: &Module,
    pattern: &Pattern,
    place_of: impl Fn(Value) -> Option<Place>,
) -> Option<Problem> {
    let [query, key, value, result] =
        [pattern.query, pattern.key, pattern.value, pattern.result].map(|(_, of)| of);
    let dtype = pattern.dtype;
    let attention = Attention {
        dtype,
        query,
        key,
        value,
        result,
        bias: None,
        is_causal: pattern.is_causal,
        has_statistics: false,
    };
    let scores = [query.dims[0], query.dims[1], query.dims[2], key.dims[2]];
    let mut masks = Vec::new();
    for mask in &pattern.masks {
        let (dtype, own) = known_tensor(&module.value(mask.value()).ty)?;
        let own: Vec<i64> = own.iter().map(|&n| i64::try_from(n)).collect::<Result<_, _>>().ok()?;
        // Scores without an axis of heads have three dims.
        let missing = pattern.rank.checked_sub(own.len())?;
        let dims = four(&[&vec![1; missing], &own[..]].concat())?;
        let (is_added, hides) = match *mask {
            Mask::Added(_) => (true, false),
            Mask::Where { hides, .. } => (false, hides),
        };
        if !fits(dims, scores) || !is_mask(dtype) {
            return None;
        }
        masks.push(Masking { place: place_of(mask.value())?, dtype, dims, is_added, hides });
    }
    let place = |(value, _): (Value, Strided)| place_of(value);
    let tensors = [place(pattern.query)?, place(pattern.key)?, place(pattern.value)?, place(pattern.result)?];
    let (scale, masked_row) = (pattern.scale, f32::NAN);
    let problem = Problem { attention, masks, tensors, statistics: None, scale, masked_row };
    is_supported(&problem.attention).then(|| problem.with_bias())
}

/// The attentions among the candidates, and the gradients paired with them.
pub(in super::super) fn join(shared: &Arc<Shared>, candidates: &Candidates<'_>) -> Vec<Vec<Node>> {
    let Candidates { module, graph, nodes, .. } = *candidates;
    let is_softmax = |node: &Node| kind(module, *node) == Some(OpKind::Softmax);
    let softmaxes: Vec<Node> = nodes.iter().copied().filter(is_softmax).collect();
    if softmaxes.is_empty() {
        return Vec::new();
    }
    let mut free: FxHashSet<Node> = nodes.iter().copied().collect();
    let position: FxHashMap<Node, usize> = nodes.iter().enumerate().map(|(at, &node)| (node, at)).collect();
    let is_private = private(module, graph);
    let mut groups = Vec::new();
    for softmax in softmaxes {
        let is_joinable = |value: Value| {
            module.producer(value).is_some_and(|(node, _)| free.contains(&node)) && is_private(value)
        };
        let none = FxHashSet::default();
        let pair = Pair::find(module, &is_joinable, softmax)
            .filter(|pair| backward::has_plans(shared, module, pair));
        let found = match pair {
            Some(Pair { forward, gradient }) => vec![forward.nodes, gradient.nodes],
            None => alone(shared, Finder { module, is_joinable: &is_joinable, others: &none }, softmax),
        };
        if found.iter().flatten().all(|node| free.contains(node)) {
            for list in found {
                let mut members: Vec<Node> = list.into_iter().filter(|node| free.remove(node)).collect();
                members.sort_unstable_by_key(|node| position[node]);
                groups.push(members);
            }
        }
    }
    groups
}

/// The group of a softmax without a pair: the gradient of an operator, or an attention.
fn alone(shared: &Shared, finder: Finder<'_>, softmax: Node) -> Vec<Vec<Node>> {
    let gradient = finder.operator_gradient(softmax);
    if let Some(pair) = gradient.filter(|pair| backward::has_plans(shared, finder.module, pair)) {
        return vec![pair.gradient.nodes];
    }
    let has_problem =
        |pattern: &Pattern| of_pattern(finder.module, pattern, |_| Some(Place::operand(0))).is_some();
    let found = finder.find(softmax).filter(has_problem);
    found.into_iter().map(|pattern| pattern.nodes).collect()
}

/// A predicate that is true of private values: only nodes read them, so they are neither outputs nor next states.
pub(super) fn private(module: &Module, graph: GraphId) -> impl Fn(Value) -> bool {
    let kept: FxHashSet<Value> = module.graph(graph).states.iter().map(|&(_, next)| next).collect();
    move |value| !module.is_output(value) && !kept.contains(&value)
}

/// The values that attentions among the groups hand over to their gradients: the statistics of the rows of scores
/// instead of the attention probabilities.
pub(in super::super) fn carries(candidates: &Candidates<'_>, groups: &[Vec<Node>]) -> Vec<Carry> {
    let Candidates { module, graph, .. } = *candidates;
    let is_private = private(module, graph);
    let mut carries = Vec::new();
    let has = |nodes: &[Node]| {
        let nodes: FxHashSet<Node> = nodes.iter().copied().collect();
        groups.iter().any(|group| group.len() == nodes.len() && group.iter().all(|node| nodes.contains(node)))
    };
    for softmax in groups.iter().flatten().filter(|&&node| kind(module, node) == Some(OpKind::Softmax)) {
        let pair = Pair::find(module, &is_private, *softmax);
        let pair = pair.filter(|pair| has(&pair.forward.nodes) && has(&pair.gradient.nodes));
        carries.extend(pair.iter().flat_map(backward::carries));
    }
    carries
}

fn kind(module: &Module, node: Node) -> Option<OpKind> {
    NodeView::new(module, node).map(|view| view.kind())
}

/// The kernel of a group made by [`join`]; `None` if the group is neither an attention nor the gradient of an
/// attention.
pub(in super::super) fn prepare(shared: &Arc<Shared>, group: &GroupSite<'_>) -> Result<Option<Prepared>> {
    if let Some(carry) = group.carries.iter().find(|carry| carry.stored.is_some()) {
        return backward::prepare(shared, group, carry.value).map(Some);
    }
    let Some(site) = group.sites.iter().find(|site| site.kind() == OpKind::Softmax) else { return Ok(None) };
    let module = site.view.module;
    let made: FxHashSet<Node> = group.sites.iter().map(|site| site.view.node).collect();
    let is_joinable = |value: Value| {
        module.producer(value).is_some_and(|(node, _)| made.contains(&node))
            && !group.results.contains(&value)
    };
    let none = FxHashSet::default();
    let finder = Finder { module, is_joinable: &is_joinable, others: &none };
    let maker = Maker { shared, site };
    if let Some(pair) = finder.operator_gradient(site.view.node) {
        return backward::recomputing(&maker, group, &pair).map(Some);
    }
    let pattern = finder.find(site.view.node).ok_or_else(no_kernel)?;
    if group.results != [pattern.result.0] {
        return Err(no_kernel());
    }
    forward(&maker, group, &pattern, None).map(Some)
}

/// The error of a group that is not an attention.
pub(super) fn no_kernel() -> KernelError {
    KernelError::unsupported("a part of an attention")
}

/// The place of a value that a group reads or produces.
pub(super) fn place_of(group: &GroupSite<'_>, value: Value) -> Option<Place> {
    let at = |values: &[Value]| values.iter().position(|&other| other == value);
    at(group.results).map(Place::result).or_else(|| at(group.operands).map(Place::operand))
}

/// The kernel of an attention. `statistics` is the place of its statistics, if they are stored.
pub(super) fn forward(
    maker: &Maker<'_>,
    group: &GroupSite<'_>,
    pattern: &Pattern,
    statistics: Option<Place>,
) -> Result<Prepared> {
    let made: FxHashSet<Node> = group.sites.iter().map(|site| site.view.node).collect();
    if pattern.nodes.iter().copied().collect::<FxHashSet<Node>>() != made {
        return Err(no_kernel());
    }
    let module = maker.site.view.module;
    let problem = of_pattern(module, pattern, |value| place_of(group, value)).ok_or_else(no_kernel)?;
    problem.with_statistics(statistics).prepared(maker)?.ok_or_else(no_kernel)
}
