//! Softmax, LogSoftmax, LayerNormalization, RMSNormalization and SimplifiedLayerNormalization.

use super::rows::Row;
use super::stage::{Place, Scratch, Source, Stage, staged};
use super::{Maker, Prepare};
use crate::cuda::text::{Elem, Steps, Walk, f32_text};
use crate::kernel::{KernelError, Prepared, Result};
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::norm::{LayerNormView, SoftmaxAxes, SoftmaxView};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Softmax => |m| softmax(m, false),
        OpKind::LogSoftmax => |m| softmax(m, true),
        OpKind::LayerNormalization | OpKind::RMSNormalization | OpKind::SimplifiedLayerNormalization => {
            layer_norm
        }
        _ => return None,
    })
}

/// The formula of an element from `x`, its row's maximum `most`, and the sum of all `expf(x - most)`.
fn formula(is_log: bool) -> &'static str {
    if is_log { "(x - most) - logf(sum)" } else { "expf(x - most) / sum" }
}

fn softmax(maker: &Maker<'_>, is_log: bool) -> Result<Prepared> {
    let elem = maker.float(0)?;
    let dims = maker.site.dims(0)?;
    let (n, behind): (usize, usize) =
        match SoftmaxView::read(&maker.site.view)?.axes.ok_or(KernelError::NotYet)? {
            SoftmaxAxes::One(_) if dims.is_empty() => (1, 1),
            SoftmaxAxes::One(axis) => (dims[axis], dims[axis + 1..].iter().product()),
            SoftmaxAxes::From(axis) => (dims[axis..].iter().product(), 1),
        };
    let rows = dims.iter().product::<usize>().checked_div(n).unwrap_or(0);
    if i32::try_from(n).is_err() {
        return Err(maker.site.no_kernel());
    }
    let stage = match behind {
        1 => softmax_of_rows(maker, elem, [n, rows], is_log)?,
        _ => softmax_of_columns(maker, elem, [n, rows, behind], is_log)?,
    };
    Ok(staged(vec![stage], &Scratch::default()).in_place(&[0]))
}

fn softmax_of_rows(maker: &Maker<'_>, elem: Elem, [n, rows]: [usize; 2], is_log: bool) -> Result<Stage> {
    let row = Row::new(n, elem);
    let mut source = Source::new(n * rows);
    source.from("from", elem, Place::operand(0));
    source.to("to", elem, Place::result(0));
    row.declare(&mut source, [n, rows], [elem, elem], &[]);
    let least = f32_text(f32::NEG_INFINITY);
    let mut body = format!("  float most = {least}, sum = 0.0f;\n");
    if row.reads_anew() {
        // Sums are rescaled when the maximum changes (online softmax).
        body += &row.each(&format!(
            "if (x > most) {{ sum *= expf(most - x); most = x; }} if (x != {least}) sum += expf(x - most);"
        ));
        body += &format!(
            "  float greatest = row_max(most);
  if (most != {least}) sum *= expf(most - greatest);
  most = greatest;\n"
        );
    } else {
        body += &row.each("most = (most != most || most > x) ? most : x;");
        body += "  most = row_max(most);\n";
        body += &row.each("sum += expf(x - most);");
    }
    body += "  sum = row_sum(sum);\n";
    body += &row.written(&format!(
        "#pragma unroll
    for (int m = 0; m < V; m++) {{ float x = row_[j + m]; y.at[m] = {}; }}",
        elem.store(formula(is_log))
    ));
    row.launch(maker, source, &body, rows)
}

/// Softmax along an axis whose elements are `behind` elements apart: a block has 32 neighboring rows, and each of its
/// warps every eighth element of them.
fn softmax_of_columns(
    maker: &Maker<'_>,
    elem: Elem,
    [n, rows, behind]: [usize; 3],
    is_log: bool,
) -> Result<Stage> {
    let mut source = Source::new(n * rows);
    source.function(COLUMN_FOLDS);
    source.from("from", elem, Place::operand(0));
    source.to("to", elem, Place::result(0));
    source.number("n", n);
    source.number("rows", rows);
    source.number("behind", behind);
    let load = elem.load("from[k * behind]");
    let body = format!(
        "  {index} row = ({index})blockIdx.x * 32 + (threadIdx.x & 31);
  const bool is_in = row < rows;
  if (!is_in) row = 0;
  const u64 start = (u64)(row / behind) * n * behind + row % behind;
  from += start; to += start;
  float most = {least}, sum = 0.0f;
  for (u64 k = threadIdx.x >> 5; k < n; k += 8) {{ float x = {load}; most = (most != most || most > x) ? most : x; }}
  most = column_max(most);
  for (u64 k = threadIdx.x >> 5; k < n; k += 8) {{ float x = {load}; sum += expf(x - most); }}
  sum = column_sum(sum);
  if (!is_in) return;
  for (u64 k = threadIdx.x >> 5; k < n; k += 8) {{ float x = {load}; to[k * behind] = {store}; }}",
        index = source.index,
        least = f32_text(f32::NEG_INFINITY),
        store = elem.store(formula(is_log)),
    );
    source.launch(maker, &body, [rows.div_ceil(32), 256])
}

/// Sums and maxima over the eight threads of a block that share a column.
const COLUMN_FOLDS: &str = r"
#define FOLD(name, join) \
__device__ float name(float x) { \
  __shared__ float part[8][32]; \
  u32 lane = threadIdx.x & 31; \
  __syncthreads(); \
  part[threadIdx.x >> 5][lane] = x; \
  __syncthreads(); \
  x = part[0][lane]; \
  for (int w = 1; w < 8; w++) { float y = part[w][lane]; x = join; } \
  return x; \
}
FOLD(column_sum, x + y)
FOLD(column_max, (x != x || x > y) ? x : y)
";

/// A coefficient of layer normalization: scale or bias.
struct Coefficient {
    name: &'static str,
    elem: Elem,
    /// The strides of its elements along a row; `None` if they are in the row's order.
    walk: Option<Walk>,
}

fn coefficient(maker: &Maker<'_>, (i, name): (usize, &'static str), row: &[usize]) -> Result<Coefficient> {
    let own = maker.site.dims(i)?;
    let first = own.iter().position(|&n| n != 1).unwrap_or(own.len());
    // All rows have the same coefficients, which are broadcast along the axes of a row.
    let steps = Steps::broadcast(&own[first..], row).ok_or_else(|| maker.site.no_kernel())?;
    let walk = Walk::new(row, vec![steps]);
    let walk = if walk.is_plain(0) { None } else { Some(walk) };
    Ok(Coefficient { name, elem: maker.float(i)?, walk })
}

impl Coefficient {
    /// Statements that set the numbers `{name}_[m]` of a vector, whose first element is `low`.
    fn loaded(&self, source: &mut Source, i: usize) -> String {
        let Coefficient { name, elem, walk } = self;
        source.from(name, *elem, Place::operand(i));
        let Some(walk) = walk else {
            let load = elem.load("v.at[m]");
            let single = elem.load(&format!("{name}[low + m]"));
            return format!(
                "float {name}_[V];
    if (is_vector) {{
      Vector<{stored}, V> v = load<V>({name} + low);
      #pragma unroll
      for (int m = 0; m < V; m++) {name}_[m] = {load};
    }} else {{
      #pragma unroll
      for (int m = 0; m < V; m++) {name}_[m] = low + m < n ? {single} : 0.0f;
    }}\n    ",
                stored = elem.stored(),
            );
        };
        let at = source.position(&walk.dims, &walk.operands[0], "(low + m)");
        let load = elem.load(&format!("{name}[{at}]"));
        format!(
            "float {name}_[V];
    #pragma unroll
    for (int m = 0; m < V; m++) {name}_[m] = low + m < n ? {load} : 0.0f;\n    "
        )
    }
}

fn layer_norm(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let view = LayerNormView::read(&site.view)?;
    let (elem, dims) = (maker.float(0)?, site.dims(0)?);
    let to = maker.float_result(0)?;
    let is_centered = site.kind() == OpKind::LayerNormalization;
    let axis = view.axis.ok_or(KernelError::NotYet)?;
    let (along, n): (&[usize], usize) = (&dims[axis..], dims[axis..].iter().product());
    let rows: usize = dims[..axis].iter().product();
    if view.stash == DType::F64 || i32::try_from(n).is_err() {
        return Err(site.no_kernel());
    }
    let row = Row::new(n, elem);
    let mut source = Source::new((n * rows).max(n));
    source.from("from", elem, Place::operand(0));
    source.to("to", to, Place::result(0));
    let mut coefficients = vec![coefficient(maker, (1, "scale"), along)?];
    if is_centered && site.has(2) {
        coefficients.push(coefficient(maker, (2, "bias"), along)?);
    }
    let mut loads = String::new();
    for (i, coefficient) in coefficients.iter().enumerate() {
        loads += &coefficient.loaded(&mut source, i + 1);
    }
    let aligned: Vec<&str> =
        coefficients.iter().filter(|one| one.walk.is_none()).map(|one| one.name).collect();
    row.declare(&mut source, [n, rows], [elem, to], &aligned);
    let mut statistics = String::new();
    // Without centering, result 1 is the inverse deviation.
    for (j, number) in [(1, if is_centered { "mean + rest" } else { "inverse" }), (2, "inverse")] {
        if site.wants(j) {
            let to = maker.float_result(j)?;
            source.to(&format!("s{j}"), to, Place::result(j));
            statistics += &format!("  if (lane == 0) s{j}[row] = {};\n", to.store(number));
        }
    }
    let mut body =
        "  float sum = 0.0f, off = 0.0f, square = 0.0f, mean = 0.0f, rest = 0.0f, count = (float)n;\n"
            .to_owned();
    if is_centered {
        body += &row.each("sum += x;");
        body += "  mean = row_sum(sum) / count;\n";
        body += &row.each("float d = x - mean; off += d; square += d * d;");
        body += "  rest = row_sum(off) / count;\n";
    } else {
        body += &row.each("square += x * x;");
    }
    body += &format!(
        "  float variance = row_sum(square) / count - rest * rest;
  // Rounding may make a small variance negative; one that overflows stays NaN.
  float inverse = 1.0f / sqrtf((variance < 0.0f ? 0.0f : variance) + {});
{statistics}",
        f32_text(view.epsilon)
    );
    let bias = if coefficients.len() == 2 { " + bias_[m]" } else { "" };
    body += &row.written(&format!(
        "{loads}#pragma unroll
    for (int m = 0; m < V; m++) {{ float x = row_[j + m]; y.at[m] = {}; }}",
        to.store(&format!("((x - mean) - rest) * inverse * scale_[m]{bias}")),
    ));
    Ok(staged(vec![row.launch(maker, source, &body, rows)?], &Scratch::default()))
}
