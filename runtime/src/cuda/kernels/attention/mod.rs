//! Attention and RotaryEmbedding.
//!
//! Attention with 16-bit operands is one graph of cuDNN, if cuDNN has an engine for it (`fused.rs`), whether it is an
//! operator or written as products and a softmax (`pattern.rs`). Together with its explicit gradient (`gradient.rs`)
//! it is a pair of graphs (`backward.rs`). The explicit gradient of an operator (`operator.rs`) computes the attention
//! again. Otherwise the scores of all queries and keys are stored in scratch memory in f32: a product, the softmax of
//! each row, and a product with the values in f32. The result is rounded once.

mod backward;
mod causal;
mod fused;
mod gradient;
mod masked_gradient;
mod masks;
mod operator;
mod pattern;
mod viewed;

pub(super) use fused::{carries, join, prepare};

use super::matrix::Contraction;
use super::stage::{Place, Scratch, Source, Stage, converted, staged};
use super::{Maker, Prepare, signed};
use crate::cuda::launch::threads_for;
use crate::cuda::text::{Elem, FOLDS, Steps, Walk, f32_text};
use crate::kernel::{KernelError, Prepared, Result};
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use ampc_ir::views::attention::{AttentionView, RotaryView};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Attention => attention,
        OpKind::RotaryEmbedding => rotary,
        _ => return None,
    })
}

/// The layout of batch, heads, positions and head elements in an operand of rank 3 or 4.
#[derive(Clone, Copy, Debug)]
struct Layout {
    batch: usize,
    heads: usize,
    length: usize,
    size: usize,
    /// True for rank 3, where the heads of a position are adjacent.
    is_packed: bool,
}

impl Layout {
    fn new(dims: &[usize], heads: Option<u64>) -> Result<Layout> {
        Ok(match *dims {
            [batch, heads, length, size] => Layout { batch, heads, length, size, is_packed: false },
            [batch, length, hidden] => {
                let heads = heads.and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
                let heads = heads.ok_or_else(|| KernelError::value("a number of heads", "none"))?;
                Layout { batch, heads, length, size: hidden / heads, is_packed: true }
            }
            _ => return Err(KernelError::value("an operand of rank 3 or 4", format!("rank {}", dims.len()))),
        })
    }

    fn count(&self) -> usize {
        self.batch * self.heads * self.length * self.size
    }

    /// The strides of batch, head and position.
    fn steps(&self) -> [usize; 3] {
        let Layout { heads, length, size, .. } = *self;
        match self.is_packed {
            true => [length * heads * size, size, heads * size],
            false => [heads * length * size, length * size, size],
        }
    }
}

/// Appends the keys or values of operand `i` to those of operand `past`, per head, as `to`.
fn joined(
    maker: &Maker<'_>,
    (i, new): (usize, Layout),
    (past, before): (usize, usize),
    elem: Elem,
    to: (Place, Elem),
) -> Result<Stage> {
    let length = before + new.length;
    let n = new.batch * new.heads * length * new.size;
    let mut source = Source::new(n);
    source.from("x", elem, Place::operand(i));
    source.from("past", elem, Place::operand(past));
    source.to("y", to.1, to.0);
    let numbers = [("heads", new.heads), ("length", length), ("size", new.size), ("before", before)];
    for (name, value) in numbers {
        source.number(name, value);
    }
    for (name, value) in ["batch_step", "head_step", "step_"].iter().zip(new.steps()) {
        source.number(name, value);
    }
    let body = format!(
        "u64 c = i % size, t = i / size % length, h = i / size / length % heads, b = i / size / length / heads;
    if (t < before) y[i] = {};
    else y[i] = {};",
        to.1.store(&elem.load("past[((b * heads + h) * before + t) * size + c]")),
        to.1.store(&elem.load("x[b * batch_step + h * head_step + (t - before) * step_ + c]")),
    );
    source.each(maker, n, &body)
}

fn attention(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let view = AttentionView::read(&site.view)?;
    let (elem, value_elem) = (maker.float(0)?, maker.float(2)?);
    let is_f32 = matches!(view.softmax, None | Some(DType::F32 | DType::F16 | DType::BF16));
    if site.wants(3) {
        return Err(KernelError::unsupported("Attention with the result `qk_matmul_output`"));
    }
    if maker.float(1)? != elem || !is_f32 {
        return Err(site.no_kernel());
    }
    let q = Layout::new(&site.dims(0)?, view.q_heads)?;
    let (k, v) = (Layout::new(&site.dims(1)?, view.kv_heads)?, Layout::new(&site.dims(2)?, view.kv_heads)?);
    if let Some(prepared) = fused::of_operator(maker, &view, [q, k, v])? {
        return Ok(prepared);
    }
    let past = if site.has(4) { site.dims(4)?.get(2).copied().unwrap_or(0) } else { 0 };
    let total = past + k.length;
    let group = q.heads.checked_div(k.heads).unwrap_or(1).max(1);
    let (mut scratch, mut stages) = (Scratch::default(), Vec::new());
    let all = |(i, new): (usize, Layout),
               elem: Elem,
               read: Elem,
               stages: &mut Vec<Stage>,
               scratch: &mut Scratch|
     -> Result<Place> {
        let n = new.batch * new.heads * total * new.size;
        if site.wants(i) {
            stages.push(joined(maker, (i, new), (i + 3, past), elem, (Place::result(i), elem))?);
        }
        if read == elem && site.wants(i) {
            return Ok(Place::result(i));
        }
        if read == elem && past == 0 && !new.is_packed {
            return Ok(Place::operand(i));
        }
        let place = scratch.part(n * read.bytes());
        stages.push(joined(maker, (i, new), (i + 3, past), elem, (place, read))?);
        Ok(place)
    };
    let keys = all((1, k), elem, elem, &mut stages, &mut scratch)?;
    let values = all((2, v), value_elem, Elem::F32, &mut stages, &mut scratch)?;
    let queries = if q.is_packed {
        let place = scratch.part(q.count() * elem.bytes());
        stages.push(joined(maker, (0, q), (0, 0), elem, (place, elem))?);
        place
    } else {
        Place::operand(0)
    };
    let rows = q.batch * q.heads * q.length;
    let scores = scratch.part(rows * total * 4);
    let one = || Steps { first: 0, steps: vec![1] };
    let heads = || Walk::new(&[k.batch * k.heads], vec![one(), one()]);
    let product = Contraction {
        sizes: [group * q.length, total, q.size],
        transposed: [false, true],
        alpha: view.scale.unwrap_or_else(|| inverse_root(q.size)),
        batch: heads(),
        elem,
        from: [queries, keys],
        to: (scores, Elem::F32),
    };
    stages.extend(product.stages(maker, &mut scratch)?);
    stages.push(softmax(maker, &view, q, [past, total], scores)?);
    let to = (Place::result(0), elem);
    let is_direct = elem == Elem::F32 && !q.is_packed;
    let made = if is_direct { to } else { (scratch.part(rows * v.size * 4), Elem::F32) };
    let product = Contraction {
        sizes: [group * q.length, v.size, total],
        transposed: [false; 2],
        alpha: 1.0,
        batch: heads(),
        elem: Elem::F32,
        from: [scores, values],
        to: made,
    };
    stages.extend(product.stages(maker, &mut scratch)?);
    if !is_direct {
        let from = Layout { size: v.size, is_packed: false, ..q }.steps().map(signed);
        let (dims, steps) = match q.is_packed {
            true => ([q.batch, q.length, q.heads, v.size], vec![from[0], from[2], from[1], 1]),
            false => ([q.batch, q.heads, q.length, v.size], vec![from[0], from[1], from[2], 1]),
        };
        let walk = Walk::new(&dims, vec![Steps { first: 0, steps }]);
        stages.push(converted(maker, &walk, made, to)?);
    }
    Ok(staged(stages, &scratch))
}

#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "rounded once")]
fn inverse_root(size: usize) -> f32 {
    (1.0 / (size as f64).sqrt()) as f32
}

/// The softmax of each row of scores, in place. Keys that a query does not attend to get 0.
fn softmax(
    maker: &Maker<'_>,
    view: &AttentionView,
    q: Layout,
    [past, total]: [usize; 2],
    scores: Place,
) -> Result<Stage> {
    let site = maker.site;
    let rows = q.batch * q.heads * q.length;
    let mut source = Source::new(rows * total);
    source.function(FOLDS);
    source.pointer("float", "scores", scores);
    for (name, value) in [("heads", q.heads), ("length", q.length)] {
        source.number(name, value);
    }
    source.signed("total", signed(total));
    source.signed("past", signed(past));
    let mut keys = String::from("i64 end = total, offset = past;\n");
    if site.has(6) {
        source.from("counts", maker.index(6)?, Place::operand(6));
        keys += "  i64 given = counts[b]; if (given < end) end = given;\n";
        if past == 0 {
            keys += "  offset = given - (i64)length;\n";
        }
    }
    keys += "  i64 position = offset + query, start = 0;\n";
    let bound = |n: u64| i64::try_from(n).unwrap_or(i64::MAX).min(1 << 62);
    if view.causal {
        keys += "  if (position + 1 < end) end = position + 1;\n";
    }
    if let Some(right) = view.right_window {
        source.signed("right", bound(right));
        keys += "  if (position + right + 1 < end) end = position + right + 1;\n";
    }
    if let Some(left) = view.left_window {
        source.signed("left", bound(left));
        keys += "  start = position - left;\n";
    }
    let mut score = "float s = row[k];".to_owned();
    if view.softcap > 0.0 {
        let cap = f32_text(view.softcap);
        score += &format!(" s = {cap} * tanhf(s / {cap});");
    }
    if site.has(3) {
        let dims = site.dims(3)?;
        let wrong = || {
            let expected = format!("a mask that broadcasts to {:?}", [q.batch, q.heads, q.length, total]);
            KernelError::value(expected, format!("{dims:?}"))
        };
        let (&columns, outer) = dims.split_last().ok_or_else(wrong)?;
        let is_spread = columns == 1 && total != 1 && !view.short_masks;
        let allowed = if view.short_masks { columns <= total } else { columns == total || is_spread };
        let steps = Steps::broadcast(outer, &[q.batch, q.heads, q.length]).filter(|_| allowed);
        let steps = steps.ok_or_else(wrong)?;
        let elem = maker.number(3)?;
        source.from("mask", elem, Place::operand(3));
        source.signed("columns", signed(columns));
        let place = source.position(&[q.batch, q.heads, q.length], &steps, "blockIdx.x");
        keys += &format!("  i64 of_mask = {place} * columns;\n");
        if !is_spread {
            keys += "  if (columns < end) end = columns;\n";
        }
        let load = elem.load(if is_spread { "mask[of_mask]" } else { "mask[of_mask + k]" });
        score += &match elem {
            Elem::Bool => format!(" if (!{load}) s = {};", f32_text(f32::NEG_INFINITY)),
            _ => format!(" s += (float){load};"),
        };
    }
    let body = format!(
        "  i64 query = blockIdx.x % length, b = blockIdx.x / length / heads;
  {keys}  if (end < 0) end = 0;
  if (start < 0) start = 0;
  float* row = scores + (u64)blockIdx.x * total;
  float most = {least}, sum = 0.0f;
  for (i64 k = threadIdx.x; k < total; k += blockDim.x) {{
    if (k < start || k >= end) {{ row[k] = {least}; continue; }}
    {score} row[k] = s; most = s > most ? s : most;
  }}
  most = block_max(most);
  if (most == {least}) most = 0.0f;
  for (i64 k = threadIdx.x; k < total; k += blockDim.x) {{ float e = expf(row[k] - most); row[k] = e; sum += e; }}
  sum = block_sum(sum);
  if (sum == 0.0f) sum = 1.0f;
  for (i64 k = threadIdx.x; k < total; k += blockDim.x) row[k] /= sum;",
        least = f32_text(f32::NEG_INFINITY),
    );
    source.launch(maker, &body, [if total == 0 { 0 } else { rows }, threads_for(total) as usize])
}

/// Rotates pairs of elements of each head by the angle of their position.
fn rotary(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let view = RotaryView::read(&site.view)?;
    let elem = maker.float(0)?;
    let x = Layout::new(&site.dims(0)?, view.heads)?;
    let rotary_dim =
        view.dim.map_or(Some(x.size), |dim| usize::try_from(dim).ok()).filter(|&dim| dim <= x.size);
    let rotary_dim = rotary_dim
        .ok_or_else(|| KernelError::value(format!("at most {} elements that turn", x.size), "more"))?;
    let half = rotary_dim / 2;
    let cosines = site.dims(1)?;
    let expected = match (site.has(3), cosines.first()) {
        (true, Some(&rows)) => vec![rows, half],
        _ => vec![x.batch, x.length, half],
    };
    for i in [1, 2] {
        let found = site.dims(i)?;
        if found[..] != expected[..] {
            return Err(OpError::operand(i, format!("dims {expected:?}"), format!("{found:?}")).into());
        }
    }
    let n = x.count();
    let mut source = Source::new(n.max(expected.iter().product()));
    source.from("x", elem, Place::operand(0));
    source.from("cosines", maker.float(1)?, Place::operand(1));
    source.from("sines", maker.float(2)?, Place::operand(2));
    source.to("y", elem, Place::result(0));
    for (name, value) in [("heads", x.heads), ("length", x.length), ("size", x.size), ("half", half)] {
        source.number(name, value);
    }
    let at = if x.is_packed { "row / heads" } else { "row / length / heads * length + row % length" };
    let mut body = format!("u64 c = i % size, row = i / size; i64 at = {at};\n");
    body += "    if (c >= 2 * half) { y[i] = x[i]; continue; }\n";
    if site.has(3) {
        if site.dims(3)?[..] != [x.batch, x.length] {
            let expected = format!("dims [{}, {}]", x.batch, x.length);
            return Err(OpError::operand(3, expected, format!("{:?}", site.dims(3)?)).into());
        }
        source.from("ids", maker.index(3)?, Place::operand(3));
        source.signed("positions", signed(expected[0]));
        source.fails(maker, format!("positions in [0, {})", expected[0]));
        body += "    at = ids[at]; if (at < 0 || at >= positions) { fail(failure, name, at); y[i] = 0; continue; }\n";
    }
    let (pair, is_second, other) = match view.interleaved {
        true => ("c / 2", "c % 2", "i - c + (c ^ 1)"),
        false => ("c % half", "c >= half", "i - c + (c >= half ? c - half : c + half)"),
    };
    body += &format!(
        "    u64 place = (u64)at * half + {pair};
    float co = {}, si = {}, a = {}, b = {};
    y[i] = {};",
        maker.float(1)?.load("cosines[place]"),
        maker.float(2)?.load("sines[place]"),
        elem.load("x[i]"),
        elem.load(&format!("x[{other}]")),
        elem.store(&format!("({is_second}) ? si * b + co * a : co * a - si * b")),
    );
    Ok(staged(vec![source.each(maker, n, &body)?], &Scratch::default()))
}
