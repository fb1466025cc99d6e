//! Masks of attention: their sum in the form that cuDNN reads, and result rows whose keys are all masked.
//!
//! NVIDIA does not document such rows, and engines multiply scores by log2 e, so that the lowest finite f32 becomes
//! −∞. If all masks are −∞, the result is 0 for the operator Attention, and NaN for a softmax. If the largest
//! mask is finite and absorbs every score, the result is the mean of the values at that mask.

use super::super::Maker;
use super::super::stage::{Place, Source, Stage};
use super::fused::{Problem, size};
use crate::cuda::dnn::Attention;
use crate::cuda::launch::threads_for;
use crate::cuda::text::{Elem, FOLDS, Steps, f32_text};
use crate::kernel::Result;
use ampc_ir::DType;

/// Masks below this bound absorb the scores that they are added to.
const ABSORBS: f32 = -1e30;

/// Rows whose largest mask is below this bound have the statistic ∞. If the largest mask is −∞, the statistic is
/// NaN where the result is NaN, and the largest f32 number where the result is 0: probabilities computed from it are
/// 0. At the bound, neighboring f32 numbers are 2⁻¹⁰ apart, which is the relative error of probabilities computed
/// from statistics.
const INEXACT: f32 = -8192.0;

/// A tensor that masks scores; each of its dims is that of the scores or 1.
pub(super) struct Masking {
    pub(super) place: Place,
    pub(super) dtype: DType,
    pub(super) dims: [i64; 4],
    /// True if the mask is added; otherwise scores are −∞ where the bool equals `hides`.
    pub(super) is_added: bool,
    pub(super) hides: bool,
}

impl Problem {
    /// Writes the result rows whose keys are all masked, and the statistics of rows without exact statistics.
    pub(super) fn masked_rows(&self, maker: &Maker<'_>, bias: Place) -> Result<Stage> {
        let Attention { value, result, is_causal, dtype, .. } = &self.attention;
        let (scores, Some((of_bias, strided))) = (self.scores(), &self.attention.bias) else {
            return Err(maker.site.no_kernel());
        };
        let (Some(elem), Some(from)) = (Elem::float(*dtype), Elem::float(*of_bias)) else {
            return Err(maker.site.no_kernel());
        };
        // The rows of the bias. Causal rows all differ.
        let mut rows = strided.dims;
        if *is_causal {
            rows[2] = scores[2];
        }
        let mut source = Source::new(0);
        source.function(FOLDS);
        source.from("bias", from, bias);
        source.from("v", elem, self.tensors[2]);
        source.to("y", elem, self.tensors[3]);
        if let Some(statistics) = self.statistics {
            source.pointer("float", "statistics", statistics);
        }
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
            ("all_heads", scores[1]),
            ("all_rows", scores[2]),
        ];
        for (name, number) in numbers {
            source.signed(name, number);
        }
        let marks = match self.statistics {
            None => String::new(),
            Some(_) => format!(
                "  if (!(most < {inexact})) return;
  i64 marked = repeat_n * repeat_h * repeat_s;
  for (i64 i = threadIdx.x; i < marked; i += blockDim.x) {{
    i64 j = i % repeat_s, to_h = h + i / repeat_s % repeat_h, to_n = n + i / repeat_s / repeat_h;
    statistics[(to_n * all_heads + to_h) * all_rows + s + j] = most == {least} ? {hidden} : {infinite};
  }}
",
                inexact = f32_text(INEXACT),
                least = f32_text(f32::NEG_INFINITY),
                hidden = f32_text(if self.masked_row.is_nan() { f32::NAN } else { f32::MAX }),
                infinite = f32_text(f32::INFINITY),
            ),
        };
        let end = if *is_causal { "s + 1 < total ? s + 1 : total" } else { "total" };
        let body = format!(
            "  i64 s = blockIdx.x % rows, h = blockIdx.x / rows % heads, n = blockIdx.x / rows / heads, end = {end};
  i64 row = n * bias_n + h * bias_h + s * bias_s;
  float most = {least}, count = 0.0f;
  for (i64 k = threadIdx.x; k < end; k += blockDim.x) {{ float m = {load}; most = m != m || m > most ? m : most; }}
  most = block_max(most);
{marks}  if (!(most < {absorbs})) return;
  for (i64 k = threadIdx.x; k < end; k += blockDim.x) if ({load} == most) count += 1.0f;
  count = block_sum(count);
  i64 all = repeat_n * repeat_h * size;
  for (i64 i = threadIdx.x; i < all; i += blockDim.x) {{
    i64 c = i % size, to_h = h + i / size % repeat_h, to_n = n + i / size / repeat_h;
    float mean = {masked};
    if (most != {least}) {{
      mean = 0.0f;
      for (i64 k = 0; k < end; k++) if ({load} == most) mean += {value};
      mean /= count;
    }}
    for (i64 j = 0; j < repeat_s; j++) y[to_n * y_n + to_h * y_h + (s + j) * y_s + c] = {store};
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

/// Adds the masks in f32, into a tensor of `dims`.
pub(super) fn sum(
    maker: &Maker<'_>,
    masks: &[Masking],
    dims: [i64; 4],
    (n, to): (usize, Place),
) -> Result<Stage> {
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
