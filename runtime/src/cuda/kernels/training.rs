//! Operators of ai.ampc around the optimizers: GradCheck, ClipCoef and UpdateLossScale. Values that depend only on
//! scalars are computed in f64 and rounded to f32 once.

use super::stage::{Argument, Place};
use super::tensors::{Tensor, Tensors};
use super::{Maker, Prepare};
use crate::cuda::elements::VECTORS;
use crate::cuda::launch::{Args, Kernel, THREADS, operand_or_none, queue, result, scratch};
use crate::cuda::text::{Elem, FOLDS, HEAD, f32_text, f64_text};
use crate::kernel::{Prepared, Result, Site};
use ampc_ir::op::OpKind;
use ampc_ir::views::loss_scale::{Arith, ClipCoefView, UpdateLossScaleView};
use std::fmt::Write;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::ClipCoef => clip_coef,
        OpKind::GradCheck => grad_check,
        OpKind::UpdateLossScale => update_loss_scale,
        _ => return None,
    })
}

/// The number of bytes of a gradient that a thread reads at a time.
const VECTOR_BYTES: usize = 16;

/// Gradients are checked in chunks: a block computes a chunk's sum of squares, and a flag for elements that are not
/// finite. Then one block adds the sums of all chunks.
fn grad_check(maker: &Maker<'_>) -> Result<Prepared> {
    let mut elems: Vec<Elem> = Vec::new();
    let mut gradients = Vec::new();
    for i in 1..maker.site.view.n_operands() {
        let elem = maker.float(i)?;
        let kind = elems.iter().position(|&known| known == elem).unwrap_or(elems.len());
        if kind == elems.len() {
            elems.push(elem);
        }
        let n = maker.site.dims(i)?.iter().product();
        gradients.push(Tensor { n, fields: vec![Argument::operand(i), Argument::Number(kind as u64)] });
    }
    let mut functions = format!("{VECTORS}{FOLDS}");
    let mut choice = String::new();
    for (kind, elem) in elems.iter().enumerate() {
        functions += &check_of(kind, *elem);
        let _ = writeln!(choice, "  if (kind == {kind}) check_{kind}(g, from, to, f, &sum, &bad);");
    }
    let body = format!(
        "  float f = *factor, sum = 0.0f, bad = 0.0f;
{choice}  sum = block_sum(sum); bad = block_max(bad);
  if (threadIdx.x == 0) {{ parts[2 * part] = sum; parts[2 * part + 1] = bad; }}
"
    );
    let tensors = Tensors {
        functions: &functions,
        shared: &[("const float*", "factor"), ("float*", "parts")],
        fields: &[("const void*", "g"), ("u64", "kind")],
        body: &body,
    };
    let arguments = [Argument::operand(0), Argument::Place(Place::scratch())];
    let launches = tensors.launches(maker.shared, &arguments, &gradients)?;
    let text = format!(
        "{HEAD}{FOLDS}extern \"C\" __global__ void run(u64 n, const float* parts, float* found, float* square) {{
  float sum = 0.0f, bad = 0.0f;
  for (u64 i = threadIdx.x; i < n; i += blockDim.x) {{ sum += parts[2 * i]; float x = parts[2 * i + 1]; bad = x > bad ? x : bad; }}
  sum = block_sum(sum); bad = block_max(bad);
  if (threadIdx.x == 0) {{ if (found) *found = bad; if (square) *square = sum; }}
}}
"
    );
    let last = Kernel::new(maker.shared, &text, 1, THREADS)?;
    let parts = launches.parts;
    let prepared = Prepared::new(move |io| {
        launches.run(io)?;
        let args = [parts as u64, scratch(io)?, result(io, 0)?, result(io, 1)?];
        last.launch(queue(io)?, &args)
    });
    Ok(prepared.scratch(parts.max(1) * 8))
}

/// The function that checks a part of a gradient of an element type. The distribution of elements over threads does
/// not depend on the address of the gradient, so neither do the sums.
fn check_of(kind: usize, elem: Elem) -> String {
    format!(
        "__device__ __forceinline__ void check_{kind}(const void* of, u64 from, u64 to, float f, float* sum, float* bad) {{
  const {ty}* g = (const {ty}*)of;
  bool aligned = ((u64)g & 15) == 0;
  for (u64 i = from + threadIdx.x * {lanes}; i < to; i += blockDim.x * {lanes}) {{
    Vector<{ty}, {lanes}> v = {{}};
    if (aligned && i + {lanes} <= to) v = load<{lanes}>(g + i);
    else for (int k = 0; k < {lanes}; k++) if (i + k < to) v.at[k] = g[i + k];
    for (int k = 0; k < {lanes}; k++) {{
      float x = {load} * f;
      if (i + k < to) {{ *sum += x * x; if (!is_finite(x)) *bad = 1.0f; }}
    }}
  }}
}}
",
        ty = elem.stored(),
        lanes = VECTOR_BYTES / elem.bytes(),
        load = elem.load("v.at[k]"),
    )
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

/// Statements that update a loss scale: they read `scale`, `good`, `bad` and the flag `found`, and set `to`, `good`
/// and `bad` to the next values.
///
/// # Errors
/// If the attributes are invalid.
pub(super) fn loss_scale_update(site: &Site<'_>) -> Result<String> {
    let view = UpdateLossScaleView::read(&site.view)?;
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
    Ok(format!(
        "    float to = scale;
    if (found == 0.0f) {{
      bool grows = (i64)good + 1 >= {interval}ll; float up = {up};
      if (grows) to = {grown};
      good = grows ? 0 : good + 1; bad = 0;
    }} else {{
      bool backs = (i64)bad + 1 >= {every}ll; float down = {down};
      if (backs) to = {backed};
      good = {good}; bad = backs ? 0 : bad + 1;
    }}
",
        interval = view.interval,
        every = view.backoff_every,
        up = product(view.growth),
        down = product(view.backoff),
        good = if view.reset_good { "0" } else { "good" },
    ))
}

fn update_loss_scale(maker: &Maker<'_>) -> Result<Prepared> {
    let update = loss_scale_update(maker.site)?;
    let text = format!(
        "{HEAD}extern \"C\" __global__ void run(const float* scales, const int* goods, const float* founds, const int* bads, float* next, int* next_good, int* next_bad) {{
    float scale = *scales, found = *founds; int good = *goods, bad = bads ? *bads : 0;
{update}    if (next) *next = to;
    if (next_good) *next_good = good;
    if (next_bad) *next_bad = bad;
}}
"
    );
    // The thread reads all operands before it writes.
    Ok(single(maker, &text, 4, 3)?.in_place(&[0]).others_in_place(&[(1, 1), (2, 3)]))
}
