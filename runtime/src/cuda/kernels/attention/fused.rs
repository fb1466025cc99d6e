//! Attention by cuDNN, without a matrix of scores in memory.
//!
//! Inner values are in f32. The weights of the values are rounded to the element type of the operands before the product
//! with the values, and the result is rounded once. A mask that cuDNN cannot read, such as one of bools, is converted first;
//! it has the dims over which it varies. Rows whose keys are all masked are written by another kernel (`masks.rs`).

use super::super::stage::{Place, Scratch, Stage, staged};
use super::super::{Maker, signed};
use super::Layout;
use super::masks::{Masking, sum};
use super::pattern::{Finder, Mask, Pattern};
use super::viewed::four;
use crate::backend::{Candidates, GroupSite};
use crate::cuda::Shared;
use crate::cuda::dnn::{Attention, Strided};
use crate::kernel::{KernelError, Prepared, Result};
use crate::plan::known_tensor;
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::views::attention::AttentionView;
use ampc_ir::{DType, Module, Node, Value};
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// The most elements of a head.
const MOST_SIZE: i64 = 256;

/// The elements of a head are a multiple of these.
const SIZE_STEP: i64 = 8;

/// An attention to compute.
pub(super) struct Problem {
    pub(super) attention: Attention,
    masks: Vec<Masking>,
    /// Query, key, value, result.
    pub(super) tensors: [Place; 4],
    scale: f32,
    /// The elements of rows whose masks are all −∞.
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

    /// The kernel; `None` if cuDNN is absent or has no engine, or rounds the weights of the values while every rounding has
    /// to be that of a node.
    fn prepared(mut self, maker: &Maker<'_>) -> Result<Option<Prepared>> {
        if maker.shared.exact_rounding {
            return Ok(None);
        }
        let (mut scratch, mut stages) = (Scratch::default(), Vec::new());
        let bias = self.bias(maker, &mut scratch, &mut stages)?;
        let plan = match maker.shared.dnn.plan_attention(&self.attention) {
            Ok(plan) => plan,
            // Products and a softmax compute what cuDNN does not.
            Err(error) if !error.is_invalid() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        stages.push(Stage::attention(plan, self.tensors, bias, self.scale, &mut scratch));
        if let Some(bias) = bias {
            stages.push(self.masked_rows(maker, bias)?);
        }
        Ok(Some(staged(stages, &scratch)))
    }

    /// The place of what is added to the scores. A mask is read as it is, if cuDNN can.
    fn bias(
        &mut self,
        maker: &Maker<'_>,
        scratch: &mut Scratch,
        stages: &mut Vec<Stage>,
    ) -> Result<Option<Place>> {
        let scores = self.scores();
        let mut dims = [1, 1, 1, scores[3]];
        for mask in &self.masks {
            dims.iter_mut().zip(mask.dims).for_each(|(n, own)| *n = own.max(*n));
        }
        match &self.masks[..] {
            [] => Ok(None),
            [Masking { place, dtype, is_added: true, dims: own, .. }]
                if *own == dims && (*dtype == self.attention.dtype || *dtype == DType::F32) =>
            {
                self.attention.bias = Some((*dtype, Strided::dense(dims)));
                Ok(Some(*place))
            }
            masks => {
                let n = dims.iter().map(|&n| size(n)).product::<usize>();
                let to = scratch.part(n.saturating_mul(4));
                stages.push(sum(maker, masks, dims, (n, to))?);
                self.attention.bias = Some((DType::F32, Strided::dense(dims)));
                Ok(Some(to))
            }
        }
    }
}

/// The operator Attention; `None` if it has other operands or results, or cuDNN has no engine.
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
        // A short mask masks the other keys.
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
    Problem { attention, masks, tensors, scale, masked_row: 0.0 }.prepared(maker)
}

fn is_mask(dtype: DType) -> bool {
    matches!(dtype, DType::Bool | DType::F32 | DType::F16 | DType::BF16)
}

/// The problem of a pattern; `place_of` returns the place of a value from outside.
fn of_pattern(
    module: &Module,
    pattern: &Pattern,
    place_of: impl Fn(Value) -> Option<Place>,
) -> Option<Problem> {
    let [query, key, value, result] =
        [pattern.query, pattern.key, pattern.value, pattern.result].map(|(_, of)| of);
    let dtype = pattern.dtype;
    let attention = Attention { dtype, query, key, value, result, bias: None, is_causal: false };
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
    let tensors = [place(pattern.query)?, place(pattern.key)?, place(pattern.value)?, Place::result(0)];
    let problem = Problem { attention, masks, tensors, scale: pattern.scale, masked_row: f32::NAN };
    is_supported(&problem.attention).then_some(problem)
}

/// The attentions among the candidates.
pub(in super::super) fn join(candidates: &Candidates<'_>) -> Vec<Vec<Node>> {
    let Candidates { module, graph, nodes, .. } = *candidates;
    let is_softmax = |node: &Node| kind(module, *node) == Some(OpKind::Softmax);
    let softmaxes: Vec<Node> = nodes.iter().copied().filter(is_softmax).collect();
    if softmaxes.is_empty() {
        return Vec::new();
    }
    let mut free: FxHashSet<Node> = nodes.iter().copied().collect();
    let kept: FxHashSet<Value> = module.graph(graph).states.iter().map(|&(_, next)| next).collect();
    let mut groups = Vec::new();
    for softmax in softmaxes {
        let is_joinable = |value: Value| {
            module.producer(value).is_some_and(|(node, _)| free.contains(&node))
                && !module.is_output(value)
                && !kept.contains(&value)
        };
        let found = Finder { module, is_joinable: &is_joinable }.find(softmax);
        let found = found.filter(|pattern| {
            pattern.nodes.iter().all(|node| free.contains(node))
                && of_pattern(module, pattern, |_| Some(Place::operand(0))).is_some()
        });
        if let Some(pattern) = found {
            let members: FxHashSet<Node> = pattern.nodes.into_iter().collect();
            free.retain(|node| !members.contains(node));
            groups.push(nodes.iter().copied().filter(|node| members.contains(node)).collect());
        }
    }
    groups
}

fn kind(module: &Module, node: Node) -> Option<OpKind> {
    NodeView::new(module, node).map(|view| view.kind())
}

/// The kernel of a group that [`join`] made; `None` if the group has no softmax.
pub(in super::super) fn prepare(shared: &Arc<Shared>, group: &GroupSite<'_>) -> Result<Option<Prepared>> {
    let Some(site) = group.sites.iter().find(|site| site.kind() == OpKind::Softmax) else { return Ok(None) };
    let module = site.view.module;
    let made: FxHashSet<Node> = group.sites.iter().map(|site| site.view.node).collect();
    let is_joinable = |value: Value| {
        module.producer(value).is_some_and(|(node, _)| made.contains(&node))
            && !group.results.contains(&value)
    };
    let no_kernel = || KernelError::unsupported("a part of an attention");
    let pattern = Finder { module, is_joinable: &is_joinable }.find(site.view.node).ok_or_else(no_kernel)?;
    let nodes: FxHashSet<Node> = pattern.nodes.iter().copied().collect();
    if nodes != made || group.results != [pattern.result.0] {
        return Err(no_kernel());
    }
    let place_of =
        |value: Value| group.operands.iter().position(|&operand| operand == value).map(Place::operand);
    let problem = of_pattern(module, &pattern, place_of).ok_or_else(no_kernel)?;
    problem.prepared(&Maker { shared, site })?.map(Some).ok_or_else(no_kernel)
}
