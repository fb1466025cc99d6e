//! Attention by cuDNN, without a matrix of scores in memory.
//!
//! Inner values are in f32. The weights of the values are rounded to the element type of the operands before the product
//! with the values, and the result is rounded once. A mask that cuDNN cannot read, such as one of bools, is converted first;
//! it has the dims over which it varies. Rows whose keys are all masked are written by a kernel of our own, because NVIDIA
//! does not document them, and engines multiply scores by log2 e, so that the least number of f32 becomes −∞. Where all
//! masks are −∞, the operator Attention has 0, and a softmax NaN. Where the greatest is finite and absorbs every score, the
//! result is the mean of the values that have it.

use super::super::stage::{Place, Scratch, Source, Stage, staged};
use super::super::{Maker, signed};
use super::Layout;
use super::pattern::{Finder, Mask, Pattern};
use super::viewed::four;
use crate::backend::{Candidates, GroupSite};
use crate::cuda::Shared;
use crate::cuda::dnn::{Attention, DnnError, Strided};
use crate::cuda::launch::threads_for;
use crate::cuda::presence::CudaErrorKind;
use crate::cuda::text::{Elem, FOLDS, Steps, f32_text};
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

/// Masks below this absorb the scores that they are added to.
const ABSORBS: f32 = -1e30;

/// A tensor that masks scores: its dims are those of the scores or 1.
struct Masking {
    place: Place,
    dtype: DType,
    dims: [i64; 4],
    /// True if it is added; otherwise scores are −∞ where the bool is `hides`.
    is_added: bool,
    hides: bool,
}

/// An attention to compute.
struct Problem {
    attention: Attention,
    masks: Vec<Masking>,
    /// Query, key, value, result.
    tensors: [Place; 4],
    scale: f32,
    /// The elements of rows whose keys are all masked.
    masked_row: f32,
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

fn int(n: usize) -> i64 {
    signed(n)
}

fn size(n: i64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

impl Problem {
    fn scores(&self) -> [i64; 4] {
        let Attention { query, key, .. } = &self.attention;
        [query.dims[0], query.dims[1], query.dims[2], key.dims[2]]
    }

    /// The kernel; `None` if cuDNN is absent or has no engine.
    fn prepared(mut self, maker: &Maker<'_>) -> Result<Option<Prepared>> {
        let (mut scratch, mut stages) = (Scratch::default(), Vec::new());
        let bias = self.bias(maker, &mut scratch, &mut stages)?;
        let plan = match maker.shared.dnn.plan_attention(&self.attention) {
            Ok(plan) => plan,
            Err(DnnError::Library(error)) if error.kind() == CudaErrorKind::Unsupported => return Ok(None),
            Err(DnnError::NoEngine { .. } | DnnError::Call { is_unsupported: true, .. }) => return Ok(None),
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

    /// Writes the rows of the result whose keys are all masked.
    fn masked_rows(&self, maker: &Maker<'_>, bias: Place) -> Result<Stage> {
        let Attention { value, result, is_causal, dtype, .. } = &self.attention;
        let (scores, Some((of_bias, strided))) = (self.scores(), &self.attention.bias) else {
            return Err(maker.site.no_kernel());
        };
        let (Some(elem), Some(from)) = (Elem::float(*dtype), Elem::float(*of_bias)) else {
            return Err(maker.site.no_kernel());
        };
        // The rows of the bias; causal rows differ from each other.
        let mut rows = strided.dims;
        if *is_causal {
            rows[2] = scores[2];
        }
        let mut source = Source::new(0);
        source.function(FOLDS);
        source.from("bias", from, bias);
        source.from("v", elem, self.tensors[2]);
        source.to("y", elem, self.tensors[3]);
        let repeats = [0, 1, 2].map(|axis| if rows[axis] == scores[axis] { 1 } else { scores[axis] });
        let steps = [0, 1, 2].map(|axis| if strided.dims[axis] == 1 { 0 } else { strided.strides[axis] });
        let numbers = [
            ("heads", rows[1]),
            ("rows", rows[2]),
            ("total", scores[3]),
            ("size", result.dims[3]),
            ("bias_n", steps[0]),
            ("bias_h", steps[1]),
            ("bias_s", steps[2]),
            ("repeat_n", repeats[0]),
            ("repeat_h", repeats[1]),
            ("repeat_s", repeats[2]),
            ("group", scores[1] / value.dims[1]),
            ("v_n", value.strides[0]),
            ("v_h", value.strides[1]),
            ("v_s", value.strides[2]),
            ("y_n", result.strides[0]),
            ("y_h", result.strides[1]),
            ("y_s", result.strides[2]),
        ];
        for (name, number) in numbers {
            source.signed(name, number);
        }
        let end = if *is_causal { "s + 1 < total ? s + 1 : total" } else { "total" };
        let body = format!(
            "  i64 s = blockIdx.x % rows, h = blockIdx.x / rows % heads, n = blockIdx.x / rows / heads, end = {end};
  i64 row = n * bias_n + h * bias_h + s * bias_s;
  float most = {least}, count = 0.0f;
  for (i64 k = threadIdx.x; k < end; k += blockDim.x) {{ float m = {load}; most = m != m || m > most ? m : most; }}
  most = block_max(most);
  if (!(most < {absorbs})) return;
  for (i64 k = threadIdx.x; k < end; k += blockDim.x) if ({load} == most) count += 1.0f;
  count = block_sum(count);
  i64 all = repeat_n * repeat_h * repeat_s * size;
  for (i64 i = threadIdx.x; i < all; i += blockDim.x) {{
    i64 c = i % size, to_s = s + i / size % repeat_s, to_h = h + i / size / repeat_s % repeat_h, to_n = n + i / size / repeat_s / repeat_h;
    float mean = {masked};
    if (most != {least}) {{
      mean = 0.0f;
      for (i64 k = 0; k < end; k++) if ({load} == most) mean += {value};
      mean /= count;
    }}
    y[to_n * y_n + to_h * y_h + to_s * y_s + c] = {store};
  }}",
            load = from.load("bias[row + k]"),
            least = f32_text(f32::NEG_INFINITY),
            absorbs = f32_text(ABSORBS),
            masked = f32_text(self.masked_row),
            value = elem.load("v[to_n * v_n + to_h / group * v_h + k * v_s + c]"),
            store = elem.store("mean"),
        );
        let blocks = rows[..3].iter().map(|&n| size(n)).product();
        source.launch(maker, &body, [blocks, threads_for(size(scores[3])) as usize])
    }
}

/// The sum of masks in f32, with `dims`.
fn sum(maker: &Maker<'_>, masks: &[Masking], dims: [i64; 4], (n, to): (usize, Place)) -> Result<Stage> {
    let mut source = Source::new(n);
    let mut terms = String::from("0.0f");
    for (i, mask) in masks.iter().enumerate() {
        let elem = Elem::number(mask.dtype).ok_or_else(|| maker.site.no_kernel())?;
        let name = format!("mask{i}");
        source.from(&name, elem, mask.place);
        let own = mask.dims.map(size);
        let steps = Steps::broadcast(&own, &dims.map(size));
        let at = source.position(&dims.map(size), &steps.ok_or_else(|| maker.site.no_kernel())?, "i");
        let load = elem.load(&format!("{name}[{at}]"));
        terms += &match (mask.is_added, mask.hides) {
            (true, _) => format!(" + {load}"),
            (false, hides) => {
                let least = f32_text(f32::NEG_INFINITY);
                format!(" + ({load} == {hides} ? {least} : 0.0f)")
            }
        };
    }
    source.to("y", Elem::F32, to);
    source.each(maker, n, &format!("y[i] = {terms};"))
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
        let [n, h, s] = of.steps().map(int);
        let dims = [of.batch, of.heads, of.length, of.size].map(int);
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
    let scores = [q.batch, q.heads, q.length, k.length].map(int);
    let mut masks = Vec::new();
    if site.has(3) {
        let own = site.dims(3)?;
        let mut dims = [1; 4];
        if own.len() > 4 {
            return Ok(None);
        }
        dims.iter_mut().rev().zip(own.iter().rev()).for_each(|(n, &own)| *n = int(own));
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
    let Candidates { module, graph, nodes } = *candidates;
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
