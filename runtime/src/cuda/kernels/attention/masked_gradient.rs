//! Gradients of the attention rows whose greatest mask is far below zero.
//!
//! The statistics of a row are the logarithm of the sum of the exponentials of its scores. At scores of this size,
//! neighbouring f32 numbers are too far apart to compute probabilities from the statistics. Such rows have statistics
//! of ∞, so that cuDNN computes probabilities of 0, and this kernel adds the gradients that the separate nodes compute.
//! Models have such rows only where a mask hides all keys of a query, so the kernel is not optimised for speed.

use super::super::Maker;
use super::super::stage::{Place, Source, Stage};
use super::fused::{Problem, size};
use crate::cuda::dnn::{Attention, AttentionGradient};
use crate::cuda::launch::threads_for;
use crate::cuda::text::{Elem, FOLDS, f32_text};
use crate::kernel::Result;

impl Problem {
    /// Adds the rows with statistics of ∞ to the gradients of keys and values, and writes these rows of the gradient of
    /// the queries. `parts` has room for three f32 per row. Keys and values have a gradient for each head of the queries.
    pub(super) fn masked_gradient(
        &self,
        maker: &Maker<'_>,
        gradient: &AttentionGradient,
        [statistics, of_result, bias, parts]: [Place; 4],
        gradients: &[Place],
    ) -> Result<Stage> {
        let Attention { query, key, value, result, dtype, is_causal, .. } = &self.attention;
        let no_kernel = || maker.site.no_kernel();
        let (scores, (of_bias, strided)) = (self.scores(), self.attention.bias.ok_or_else(no_kernel)?);
        let elem = Elem::float(*dtype).ok_or_else(no_kernel)?;
        let from = Elem::float(of_bias).ok_or_else(no_kernel)?;
        let mut source = Source::new(0);
        source.function(FOLDS);
        source.pointer("const float", "statistics", statistics);
        source.from("bias", from, bias);
        source.pointer("float", "parts", parts);
        let [q, k, v, o] = self.tensors;
        for (name, place) in [("q", q), ("k", k), ("v", v), ("o", o), ("g", of_result)] {
            source.from(name, elem, place);
        }
        for (name, place) in ["dq", "dk", "dv"].iter().zip(gradients) {
            source.to(name, elem, *place);
        }
        let [of_query, of_key, of_value] = &gradient.gradients;
        let tensors = [
            ("q", query),
            ("k", key),
            ("v", value),
            ("o", result),
            ("g", &gradient.result),
            ("dq", of_query),
            ("dk", of_key),
            ("dv", of_value),
        ];
        for (name, of) in tensors {
            for (axis, step) in ["n", "h", "s"].iter().zip(of.strides) {
                source.signed(&format!("{name}_{axis}"), step);
            }
        }
        let steps = [0, 1, 2].map(|axis| if strided.dims[axis] == 1 { 0 } else { strided.strides[axis] });
        let numbers = [
            ("heads", scores[1]),
            ("group", scores[1] / key.dims[1]),
            ("rows", scores[2]),
            ("total", scores[3]),
            ("size", query.dims[3]),
            ("of_value", value.dims[3]),
            ("bias_n", steps[0]),
            ("bias_h", steps[1]),
            ("bias_s", steps[2]),
        ];
        for (name, number) in numbers {
            source.signed(name, number);
        }
        let load = |name: &str, row: &str, column: &str| {
            let h = if ["k", "v"].contains(&name) { "h / group" } else { "h" };
            elem.load(&format!("{name}[n * {name}_n + {h} * {name}_h + {row} * {name}_s + {column}]"))
        };
        let to =
            |name: &str, row: &str| format!("{name}[n * {name}_n + h * {name}_h + {row} * {name}_s + c]");
        let later = match is_causal {
            true => format!("    if (j > i) return {};\n", f32_text(f32::NEG_INFINITY)),
            false => String::new(),
        };
        let body = format!(
            "  i64 h = blockIdx.x % heads, n = blockIdx.x / heads, first = (i64)blockIdx.x * rows;
  float* most = parts + first * 3; float* sum = most + rows; float* delta = sum + rows;
  auto is_masked = [&](i64 i) {{ return statistics[first + i] == {most}; }};
  auto score = [&](i64 i, i64 j) {{
{later}    float s = 0.0f;
    for (i64 c = 0; c < size; c++) s += {qic} * {kjc};
    return s * {scale} + {bias_ij};
  }};
  auto share = [&](i64 i, i64 j) {{ return expf(score(i, j) - most[i]) / sum[i]; }};
  auto gradient = [&](i64 i, i64 j) {{
    float s = 0.0f;
    for (i64 c = 0; c < of_value; c++) s += {gic} * {vjc};
    return share(i, j) * (s - delta[i]);
  }};
  float any = 0.0f;
  for (i64 i = threadIdx.x; i < rows; i += blockDim.x) if (is_masked(i)) any = 1.0f;
  if (block_max(any) == 0.0f) return;
  for (i64 i = 0; i < rows; i++) {{
    if (!is_masked(i)) continue;
    float m = {least}, all = 0.0f, d = 0.0f;
    for (i64 j = threadIdx.x; j < total; j += blockDim.x) {{ float s = score(i, j); m = s != s || s > m ? s : m; }}
    m = block_max(m);
    for (i64 j = threadIdx.x; j < total; j += blockDim.x) all += expf(score(i, j) - m);
    all = block_sum(all);
    for (i64 c = threadIdx.x; c < of_value; c += blockDim.x) d += {gic} * {oic};
    d = block_sum(d);
    if (threadIdx.x == 0) {{ most[i] = m; sum[i] = all; delta[i] = d; }}
  }}
  __syncthreads();
  for (i64 at = threadIdx.x; at < rows * size; at += blockDim.x) {{
    i64 i = at / size, c = at % size;
    if (!is_masked(i)) continue;
    float made = 0.0f;
    for (i64 j = 0; j < total; j++) made += gradient(i, j) * {kjc};
    {dq} = {of_query};
  }}
  for (i64 at = threadIdx.x; at < total * size; at += blockDim.x) {{
    i64 j = at / size, c = at % size;
    float made = 0.0f;
    for (i64 i = 0; i < rows; i++) if (is_masked(i)) made += gradient(i, j) * {qic};
    {dk} = {of_key};
  }}
  for (i64 at = threadIdx.x; at < total * of_value; at += blockDim.x) {{
    i64 j = at / of_value, c = at % of_value;
    float made = 0.0f;
    for (i64 i = 0; i < rows; i++) if (is_masked(i)) made += share(i, j) * {gic};
    {dv} = {of_value_gradient};
  }}",
            most = f32_text(f32::INFINITY),
            least = f32_text(f32::NEG_INFINITY),
            scale = f32_text(self.scale),
            bias_ij = from.load("bias[n * bias_n + h * bias_h + i * bias_s + j]"),
            qic = load("q", "i", "c"),
            kjc = load("k", "j", "c"),
            vjc = load("v", "j", "c"),
            gic = load("g", "i", "c"),
            oic = load("o", "i", "c"),
            dq = to("dq", "i"),
            dk = to("dk", "j"),
            dv = to("dv", "j"),
            of_query = elem.store(&format!("made * {}", f32_text(self.scale))),
            of_key = elem.store(&format!("{} + made * {}", elem.load(&to("dk", "j")), f32_text(self.scale))),
            of_value_gradient = elem.store(&format!("{} + made", elem.load(&to("dv", "j")))),
        );
        let blocks = scores[..2].iter().map(|&n| size(n)).product();
        source.launch(maker, &body, [blocks, threads_for(size(scores[3])) as usize])
    }
}
