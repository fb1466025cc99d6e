//! NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss: a block computes the loss of each position, and a second kernel
//! adds the losses up.

use super::{Maker, Prepare};
use crate::cuda::launch::{
    Args, Kernel, THREADS, operand, operand_or_none, queue, result, scratch, threads_for,
};
use crate::cuda::text::{Elem, FAIL, FOLDS, HEAD, f32_text};
use crate::kernel::{Prepared, Result};
use ampc_ir::op::OpKind;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    match kind {
        OpKind::NegativeLogLikelihoodLoss | OpKind::SoftmaxCrossEntropyLoss => Some(loss),
        _ => None,
    }
}

fn loss(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let (elem, class) = (maker.float(0)?, maker.number(1)?);
    let weight = if site.has(2) { maker.float(2)? } else { elem };
    if !matches!(class, Elem::I64 | Elem::I32) {
        return Err(site.no_kernel());
    }
    let dims = site.dims(0)?;
    let (n, behind): (usize, usize) = (dims[1], dims[2..].iter().product());
    let positions = dims[0] * behind;
    let is_softmax = site.kind() == OpKind::SoftmaxCrossEntropyLoss;
    let ignored =
        site.view.int("ignore_index").map_or("false".to_owned(), |index| format!("at == {index}ll"));
    let load = |k: &str| elem.load(&format!("from[{k} * {behind}u]"));
    let (statistics, score) = match is_softmax {
        true => (
            format!(
                "for (u64 k = threadIdx.x; k < {n}u; k += blockDim.x) {{ float x = {load}; most = (most != most || most > x) ? most : x; }}
  most = block_max(most);
  for (u64 k = threadIdx.x; k < {n}u; k += blockDim.x) {{ float x = {load}; sum += expf(x - most); }}
  log_sum = logf(block_sum(sum));",
                load = load("k"),
            ),
            "x - most - log_sum",
        ),
        false => (String::new(), "x"),
    };
    let probabilities = match is_softmax && site.wants(1) {
        true => format!(
            "for (u64 k = threadIdx.x; k < {n}u; k += blockDim.x) {{ float x = {load}; to[start + k * {behind}u] = {store}; }}",
            load = load("k"),
            store = elem.store(score),
        ),
        false => String::new(),
    };
    let stored = elem.stored();
    let each = format!(
        "{HEAD}{FOLDS}{FAIL}extern \"C\" __global__ void run(const {stored}* from, const {class}* classes, const {weight_type}* weights, float* losses, float* counts, {stored}* to, u64* failure, u64 name) {{
  u64 start = blockIdx.x / {behind}u * {row}ull + blockIdx.x % {behind}u;
  from += start;
  float most = {least}, sum = 0.0f, log_sum = 0.0f;
  {statistics}
  {probabilities}
  if (threadIdx.x) return;
  i64 at = classes[blockIdx.x];
  float loss = 0.0f, count = 0.0f;
  if (!({ignored})) {{
    if (at < 0 || at >= {n}) fail(failure, name, at);
    else {{ float x = {chosen}; count = weights ? {weight} : 1.0f; loss = -count * ({score}); }}
  }}
  losses[blockIdx.x] = loss; counts[blockIdx.x] = count;
}}
",
        class = class.stored(),
        weight_type = weight.stored(),
        weight = weight.load("weights[at]"),
        row = n * behind,
        least = f32_text(f32::NEG_INFINITY),
        chosen = load("at"),
    );
    let (total, threads) = match site.view.string("reduction") {
        Some("none") => (
            format!("for (u64 i = first(); i < n; i += step()) y[i] = {};", elem.store("losses[i]")),
            THREADS,
        ),
        reduction => {
            let end = if reduction == Some("sum") { "loss" } else { "loss / count" };
            (
                format!(
                    "float loss = 0.0f, count = 0.0f;
  for (u64 i = threadIdx.x; i < n; i += blockDim.x) {{ loss += losses[i]; count += counts[i]; }}
  loss = block_sum(loss); count = block_sum(count);
  if (threadIdx.x == 0) y[0] = {};",
                    elem.store(end)
                ),
                THREADS,
            )
        }
    };
    let total = format!(
        "{HEAD}{FOLDS}extern \"C\" __global__ void run(u64 n, const float* losses, const float* counts, {stored}* y) {{
  {total}
}}
"
    );
    let each = Kernel::new(maker.shared, &each, positions, threads_for(n))?;
    let total = Kernel::new(maker.shared, &total, 1, threads)?;
    let message = maker.shared.compiler.expects(format!("a class in [0, {n})"));
    let prepared = Prepared::new(move |io| {
        let losses = scratch(io)?;
        let counts = losses + positions as u64 * 4;
        let mut args = Args::from_slice(&[
            operand(io, 0)?,
            operand(io, 1)?,
            operand_or_none(io, 2)?,
            losses,
            counts,
            result(io, 1)?,
        ]);
        let y = result(io, 0)?;
        let queue = queue(io)?;
        args.extend(queue.failure(message));
        each.launch(queue, &args)?;
        if y == 0 {
            return Ok(());
        }
        total.launch(queue, &[positions as u64, losses, counts, y])
    });
    Ok(prepared.scratch(positions.max(1) * 8))
}
