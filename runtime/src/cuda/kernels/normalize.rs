//! Softmax, LogSoftmax, LayerNormalization, RMSNormalization and SimplifiedLayerNormalization: a block for each row.

use super::{Maker, Prepare};
use crate::cuda::launch::{Kernel, operand, operand_or_none, queue, result, threads_for};
use crate::cuda::text::{Elem, FOLDS, HEAD, Steps, Walk, f32_text};
use crate::kernel::{KernelError, Prepared, Result};
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::norm::{LayerNormView, SoftmaxAxes, SoftmaxView};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Softmax => |m| softmax(m, "expf(x - most) / sum"),
        OpKind::LogSoftmax => |m| softmax(m, "(x - most) - logf(sum)"),
        OpKind::LayerNormalization | OpKind::RMSNormalization | OpKind::SimplifiedLayerNormalization => {
            layer_norm
        }
        _ => return None,
    })
}

fn softmax(maker: &Maker<'_>, formula: &str) -> Result<Prepared> {
    let elem = maker.float(0)?;
    let dims = maker.site.dims(0)?;
    let (n, behind): (usize, usize) =
        match SoftmaxView::read(&maker.site.view)?.axes.ok_or(KernelError::NotYet)? {
            SoftmaxAxes::One(axis) if dims.is_empty() => (1, axis.max(1)),
            SoftmaxAxes::One(axis) => (dims[axis], dims[axis + 1..].iter().product()),
            SoftmaxAxes::From(axis) => (dims[axis..].iter().product(), 1),
        };
    let rows = dims.iter().product::<usize>() / n.max(1);
    let (stored, load) = (elem.stored(), elem.load(&format!("from[k * {behind}u]")));
    let text = format!(
        "{HEAD}{FOLDS}extern \"C\" __global__ void run(const {stored}* from, {stored}* to) {{
  u64 start = blockIdx.x / {behind}u * {row}ull + blockIdx.x % {behind}u;
  from += start; to += start;
  float most = {least}, sum = 0.0f;
  for (u64 k = threadIdx.x; k < {n}u; k += blockDim.x) {{ float x = {load}; most = (most != most || most > x) ? most : x; }}
  most = block_max(most);
  for (u64 k = threadIdx.x; k < {n}u; k += blockDim.x) {{ float x = {load}; sum += expf(x - most); }}
  sum = block_sum(sum);
  for (u64 k = threadIdx.x; k < {n}u; k += blockDim.x) {{ float x = {load}; to[k * {behind}u] = {store}; }}
}}
",
        row = n * behind,
        least = f32_text(f32::NEG_INFINITY),
        store = elem.store(formula),
    );
    let kernel = Kernel::new(maker.shared, &text, rows, threads_for(n))?;
    let prepared = Prepared::new(move |io| {
        let args = [operand(io, 0)?, result(io, 0)?];
        kernel.launch(queue(io)?, &args)
    });
    Ok(prepared.in_place(&[0]))
}

fn layer_norm(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let view = LayerNormView::read(&site.view)?;
    let (elem, dims) = (maker.float(0)?, site.dims(0)?);
    let to = maker.float_result(0)?;
    if view.stash == DType::F64 {
        return Err(site.no_kernel());
    }
    let is_centered = site.kind() == OpKind::LayerNormalization;
    let axis = view.axis.ok_or(KernelError::NotYet)?;
    let n: usize = dims[axis..].iter().product();
    let rows: usize = dims[..axis].iter().product();
    let operands = if is_centered && site.has(2) { 3 } else { 2 };
    let mut coefficients = Vec::new();
    for i in 1..operands {
        let own = site.dims(i)?;
        let first = own.iter().position(|&n| n != 1).unwrap_or(own.len());
        // Each row has the same coefficients, which are broadcast along its axes.
        let steps = Steps::broadcast(&own[first..], &dims[axis..]).ok_or_else(|| site.no_kernel())?;
        let walk = Walk::new(&dims[axis..], vec![steps]);
        let at = if walk.is_plain(0) { "k".to_owned() } else { walk.index(0, "k") };
        coefficients.push((maker.float(i)?, at));
    }
    let statistic = |j: usize, number: &str| -> Result<[String; 2]> {
        if !site.wants(j) {
            return Ok([format!(", u64 s{j}"), String::new()]);
        }
        let to = maker.float_result(j)?;
        let store = to.store(number);
        Ok([format!(", {}* s{j}", to.stored()), format!("if (threadIdx.x == 0) s{j}[blockIdx.x] = {store};")])
    };
    // Without a mean, result 1 is the inverse deviation.
    let first = if is_centered { "mean + rest" } else { "inverse" };
    let ([mean_type, mean], [deviation_type, deviation]) = (statistic(1, first)?, statistic(2, "inverse")?);
    let (stored, load) = (elem.stored(), elem.load("from[k]"));
    let number = |name: &str, i: usize| {
        let (elem, at): &(Elem, String) = &coefficients[i];
        elem.load(&format!("{name}[{at}]"))
    };
    let scaled = format!(
        "((x - mean) - rest) * inverse * {}{}",
        number("scale", 0),
        if operands == 3 { format!(" + {}", number("bias", 1)) } else { String::new() }
    );
    let types = [0, 1].map(|i| coefficients.get(i).map_or(stored, |(elem, _)| elem.stored()));
    #[expect(clippy::cast_precision_loss, reason = "a divisor of f32")]
    let count = f32_text(n as f32);
    let each = format!("for (u64 k = threadIdx.x; k < {n}u; k += blockDim.x)");
    let moments = if is_centered {
        format!(
            "{each} sum += {load};
  mean = block_sum(sum) / {count};
  {each} {{ float d = {load} - mean; off += d; square += d * d; }}
  rest = block_sum(off) / {count};"
        )
    } else {
        format!("{each} {{ float d = {load}; square += d * d; }}")
    };
    let text = format!(
        "{HEAD}{FOLDS}extern \"C\" __global__ void run(const {stored}* from, const {scale_type}* scale, const {bias_type}* bias, {to_type}* to{mean_type}{deviation_type}) {{
  from += blockIdx.x * {n}ull; to += blockIdx.x * {n}ull;
  float sum = 0.0f, off = 0.0f, square = 0.0f, mean = 0.0f, rest = 0.0f;
  {moments}
  float variance = block_sum(square) / {count} - rest * rest;
  float inverse = 1.0f / sqrtf(fmaxf(variance, 0.0f) + {epsilon});
  {mean} {deviation}
  for (u64 k = threadIdx.x; k < {n}u; k += blockDim.x) {{ float x = {load}; to[k] = {store}; }}
}}
",
        scale_type = types[0],
        bias_type = types[1],
        to_type = to.stored(),
        epsilon = f32_text(view.epsilon),
        store = to.store(&scaled),
    );
    let kernel = Kernel::new(maker.shared, &text, rows, threads_for(n))?;
    Ok(Prepared::new(move |io| {
        let args = [
            operand(io, 0)?,
            operand(io, 1)?,
            if operands == 3 { operand_or_none(io, 2)? } else { 0 },
            result(io, 0)?,
            result(io, 1)?,
            result(io, 2)?,
        ];
        kernel.launch(queue(io)?, &args)
    }))
}
