//! Operators of ai.ampc that train: GradCheck, ClipCoef, UpdateLossScale, Adam, AdamW and SGD. Values that depend on
//! scalars alone are computed in f64 and rounded to f32 once, elements in f32, in the order in which the optimizers are defined.

use super::{Maker, Prepare};
use crate::cuda::launch::{
    Args, Kernel, THREADS, blocks_for, operand, operand_or_none, queue, result, scratch,
};
use crate::cuda::text::{Elem, FOLDS, HEAD, f32_text, f64_text};
use crate::kernel::{Prepared, Result};
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::loss_scale::{Arith, ClipCoefView, UpdateLossScaleView};
use ampc_ir::views::optimizer::{AdamView, AdamWMode, Momentum, OnOverflow, SgdView};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Adam | OpKind::AdamW => adam,
        OpKind::ClipCoef => clip_coef,
        OpKind::GradCheck => grad_check,
        OpKind::SGD => sgd,
        OpKind::UpdateLossScale => update_loss_scale,
        _ => return None,
    })
}

/// The most blocks that check one gradient.
const CHECKS: usize = 512;

/// Elements that each thread of a check adds up at least, as far as there are so many.
const PER_THREAD: usize = 8;

/// Sums of squares by block, then one block adds them up.
fn grad_check(maker: &Maker<'_>) -> Result<Prepared> {
    let mut parts = Vec::new();
    let mut total = 0;
    for i in 1..maker.site.view.n_operands() {
        let elem = maker.float(i)?;
        let n: usize = maker.site.dims(i)?.iter().product();
        let blocks = n.div_ceil(THREADS as usize * PER_THREAD).clamp(1, CHECKS);
        let text = format!(
            "{HEAD}{FOLDS}extern \"C\" __global__ void run(u64 n, const float* factor, const {}* g, float* sums, float* wrong) {{
  float f = factor[0], sum = 0.0f, bad = 0.0f;
  for (u64 i = first(); i < n; i += step()) {{ float x = {} * f; sum += x * x; if (!is_finite(x)) bad = 1.0f; }}
  sum = block_sum(sum); bad = block_max(bad);
  if (threadIdx.x == 0) {{ sums[blockIdx.x] = sum; wrong[blockIdx.x] = bad; }}
}}
",
            elem.stored(),
            elem.load("g[i]"),
        );
        parts.push((Kernel::new(maker.shared, &text, blocks, THREADS)?, n, total));
        total += blocks;
    }
    let text = format!(
        "{HEAD}{FOLDS}extern \"C\" __global__ void run(u64 n, const float* sums, const float* wrong, float* found, float* square) {{
  float sum = 0.0f, bad = 0.0f;
  for (u64 i = threadIdx.x; i < n; i += blockDim.x) {{ sum += sums[i]; bad = wrong[i] > bad ? wrong[i] : bad; }}
  sum = block_sum(sum); bad = block_max(bad);
  if (threadIdx.x == 0) {{ if (found) *found = bad; if (square) *square = sum; }}
}}
"
    );
    let last = Kernel::new(maker.shared, &text, 1, THREADS)?;
    let prepared = Prepared::new(move |io| {
        let sums = scratch(io)?;
        let wrong = sums + total as u64 * 4;
        let factor = operand(io, 0)?;
        for (i, (kernel, n, start)) in parts.iter().enumerate() {
            let start = *start as u64 * 4;
            let args = [*n as u64, factor, operand(io, i + 1)?, sums + start, wrong + start];
            kernel.launch(queue(io)?, &args)?;
        }
        let args = [total as u64, sums, wrong, result(io, 0)?, result(io, 1)?];
        last.launch(queue(io)?, &args)
    });
    Ok(prepared.scratch(total.max(1) * 8))
}

/// A kernel of one thread.
fn single(maker: &Maker<'_>, text: &str, operands: usize, results: usize) -> Result<Prepared> {
    let kernel = Kernel::new(maker.shared, text, 1, 1)?;
    Ok(Prepared::new(move |io| {
        let mut args = Args::new();
        for i in 0..operands {
            args.push(operand_or_none(io, i)?);
        }
        for j in 0..results {
            args.push(result(io, j)?);
        }
        kernel.launch(queue(io)?, &args)
    }))
}

fn clip_coef(maker: &Maker<'_>) -> Result<Prepared> {
    let view = ClipCoefView::read(&maker.site.view)?;
    let text = format!(
        "{HEAD}extern \"C\" __global__ void run(const float* square, const float* inverse, float* factor, float* norm) {{
  double root = sqrt((double)*square), ratio = {} / (root + {});
  if (factor) *factor = (float)((double)*inverse * (ratio >= 1.0 ? 1.0 : ratio));
  if (norm) *norm = (float)root;
}}
",
        f64_text(view.max_norm),
        f64_text(view.epsilon),
    );
    single(maker, &text, 2, 2)
}

fn update_loss_scale(maker: &Maker<'_>) -> Result<Prepared> {
    let view = UpdateLossScaleView::read(&maker.site.view)?;
    #[expect(clippy::cast_possible_truncation, reason = "rounding")]
    let product = |factor: f64| match view.arith {
        Arith::F32Product => format!("scale * {}", f32_text(factor as f32)),
        Arith::F64Product => format!("(float)((double)scale * {})", f64_text(factor)),
    };
    #[expect(clippy::cast_possible_truncation, reason = "rounding")]
    let grown = match view.max {
        Some(most) => format!("up > {0} ? {0} : up", f32_text(most as f32)),
        None => "is_finite(up) ? up : scale".into(),
    };
    #[expect(clippy::cast_possible_truncation, reason = "rounding")]
    let backed = match view.min {
        Some(least) => format!("down < {0} ? {0} : down", f32_text(least as f32)),
        None => "down".into(),
    };
    let text = format!(
        "{HEAD}extern \"C\" __global__ void run(const float* scales, const int* goods, const float* found, const int* bads, float* next, int* next_good, int* next_bad) {{
  float scale = *scales, to = scale; int good = *goods, bad = bads ? *bads : 0;
  if (*found == 0.0f) {{
    bool grows = (i64)good + 1 >= {interval}ll; float up = {up};
    if (grows) to = {grown};
    good = grows ? 0 : good + 1; bad = 0;
  }} else {{
    bool backs = (i64)bad + 1 >= {every}ll; float down = {down};
    if (backs) to = {backed};
    good = {good}; bad = backs ? 0 : bad + 1;
  }}
  if (next) *next = to;
  if (next_good) *next_good = good;
  if (next_bad) *next_bad = bad;
}}
",
        interval = view.interval,
        every = view.backoff_every,
        up = product(view.growth),
        down = product(view.backoff),
        good = if view.reset_good { "0" } else { "good" },
    );
    // The thread reads all operands before it writes.
    Ok(single(maker, &text, 4, 3)?.in_place(&[0]).others_in_place(&[(1, 1), (2, 3)]))
}

/// The parameter and the statement of the low copy of weights.
fn low_copy(w_lo: Option<DType>, wants: bool, maker: &Maker<'_>) -> Result<[String; 2]> {
    match w_lo.filter(|_| wants) {
        None => Ok([", u64 low".into(), String::new()]),
        Some(dtype) => {
            let elem = Elem::float(dtype).ok_or_else(|| maker.site.no_kernel())?;
            Ok([format!(", {}* low", elem.stored()), format!("low[i] = {};", elem.store("w"))])
        }
    }
}

fn adam(maker: &Maker<'_>) -> Result<Prepared> {
    let view = AdamView::read(&maker.site.view)?;
    let elem = maker.float(1)?;
    let n: usize = maker.site.dims(0)?.iter().product();
    let [low_type, low] = low_copy(view.w_lo, maker.site.wants(3), maker)?;
    let correction = |beta: f64| match view.bias_correction {
        true => format!("1.0 - pow({}, t)", f64_text(beta)),
        false => "1.0".into(),
    };
    let size = match view.mode {
        None | Some(AdamWMode::Torch) => "lr / correction1",
        Some(AdamWMode::Hf) => "lr * root2 / correction1",
    };
    let decay = match view.mode {
        None => f64_text(view.weight_decay),
        Some(AdamWMode::Torch | AdamWMode::Hf) => format!("lr * {}", f64_text(view.weight_decay)),
    };
    #[expect(clippy::cast_possible_truncation, reason = "rounding")]
    let f32_of = |x: f64| f32_text(x as f32);
    let (new1, old1) = (f32_of(1.0 - view.beta1), f32_of(view.beta1));
    let (new2, old2, epsilon) = (f32_of(1.0 - view.beta2), f32_of(view.beta2), f32_of(view.epsilon));
    let update = match view.mode {
        None => format!(
            "g = g + w * decay; m = m + (g - m) * {new1}; v = v * {old2} + g * {new2} * g;
      w = w - m * size / (sqrtf(v) / root + {epsilon});"
        ),
        Some(AdamWMode::Torch) => format!(
            "m = m + (g - m) * {new1}; v = v * {old2} + g * {new2} * g;
      w = w * kept - m * size / (sqrtf(v) / root + {epsilon});"
        ),
        Some(AdamWMode::Hf) => format!(
            "m = m * {old1} + g * {new1}; v = v * {old2} + g * {new2} * g;
      w = w - m * size / (sqrtf(v) + {epsilon}); w = w - w * decay;"
        ),
    };
    let text = format!(
        "{HEAD}extern \"C\" __global__ void run(u64 n, const float* ws, const {g}* gs, const float* ms, const float* vs, const float* rate, const float* mult, const i64* count, const float* found, float* w2, float* m2, float* v2{low_type}) {{
  __shared__ float shared[4];
  if (threadIdx.x == 0) {{
    double lr = *rate, t = (double)(*count + 1 > 1 ? *count + 1 : 1);
    double correction1 = {correction1}, root2 = sqrt({correction2}), decay = {decay};
    shared[0] = (float)({size}); shared[1] = (float)root2; shared[2] = (float)(1.0 - decay); shared[3] = (float)decay;
  }}
  __syncthreads();
  float size = shared[0], root = shared[1], kept = shared[2], decay = shared[3], factor = *mult;
  bool proceeds = *found == 0.0f;
  for (u64 i = first(); i < n; i += step()) {{
    float w = ws[i], m = ms[i], v = vs[i];
    if (proceeds) {{
      float g = {load} * factor;
      {update}
    }}
    if (w2) w2[i] = w;
    if (m2) m2[i] = m;
    if (v2) v2[i] = v;
    {low}
  }}
}}
",
        g = elem.stored(),
        load = elem.load("gs[i]"),
        correction1 = correction(view.beta1),
        correction2 = correction(view.beta2),
    );
    let kernel = Kernel::new(maker.shared, &text, blocks_for(n), THREADS)?;
    let prepared = Prepared::new(move |io| {
        let mut args = Args::from_slice(&[n as u64]);
        for i in 0..8 {
            args.push(operand(io, i)?);
        }
        for j in 0..4 {
            args.push(result(io, j)?);
        }
        kernel.launch(queue(io)?, &args)
    });
    Ok(prepared.in_place(&[0]).others_in_place(&[(1, 2), (2, 3)]))
}

fn sgd(maker: &Maker<'_>) -> Result<Prepared> {
    let view = SgdView::read(&maker.site.view)?;
    let elem = maker.float(1)?;
    let n: usize = maker.site.dims(0)?.iter().product();
    let [low_type, low] = low_copy(view.w_lo, maker.site.wants(2), maker)?;
    #[expect(clippy::cast_possible_truncation, reason = "rounding")]
    let f32_of = |x: f64| f32_text(x as f32);
    let momentum = f32_of(view.momentum);
    let update = match view.direction {
        Momentum::Plain => "g".into(),
        Momentum::Momentum => "v".into(),
        Momentum::Nesterov => format!("g + v * {momentum}"),
    };
    let skips = if view.on_overflow == OnOverflow::Skip { "!proceeds" } else { "false" };
    let text = format!(
        "{HEAD}extern \"C\" __global__ void run(u64 n, const float* ws, const {g}* gs, const float* rate, const float* mult, const i64* count, const float* found, const float* vs, float* w2, float* v2{low_type}) {{
  float lr = *rate, factor = *mult;
  bool is_first = *count < 1, proceeds = *found == 0.0f;
  for (u64 i = first(); i < n; i += step()) {{
    float w = ws[i], v = vs ? vs[i] : 0.0f;
    if (!({skips})) {{
      float g = proceeds ? {load} * factor : 0.0f;
      g = g + w * {decay};
      v = is_first ? g : v * {momentum} + g * {new};
      w = w - ({update}) * lr;
    }}
    if (w2) w2[i] = w;
    if (v2) v2[i] = v;
    {low}
  }}
}}
",
        g = elem.stored(),
        load = elem.load("gs[i]"),
        decay = f32_of(view.weight_decay),
        new = f32_of(1.0 - view.dampening),
    );
    let kernel = Kernel::new(maker.shared, &text, blocks_for(n), THREADS)?;
    let has_momentum = view.direction != Momentum::Plain;
    let prepared = Prepared::new(move |io| {
        let mut args = Args::from_slice(&[n as u64]);
        for i in 0..6 {
            args.push(operand(io, i)?);
        }
        args.push(if has_momentum { operand(io, 6)? } else { 0 });
        for j in 0..3 {
            args.push(result(io, j)?);
        }
        kernel.launch(queue(io)?, &args)
    });
    Ok(prepared.in_place(&[0]).others_in_place(&[(1, 6)]))
}
