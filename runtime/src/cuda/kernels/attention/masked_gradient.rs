//! Gradients of the attention rows whose greatest mask is far below zero.
//!
//! The statistics of a row are the logarithm of the sum of the exponentials of its scores. At scores of this size,
//! neighbouring f32 numbers are too far apart to compute probabilities from the statistics. Such rows have statistics
//! of ∞, so that cuDNN computes probabilities of 0, and this kernel adds the gradients that the separate nodes compute.
//!
//! A block computes a head. It lists the rows with the numbers that all keys share, then walks over tiles of 4 rows and 64
//! keys: each thread computes the probability of one key and its gradient, and all threads read them from shared memory.
//! Models have such rows only where a mask hides all keys of a query, so that a head has one block.

use super::super::Maker;
use super::super::stage::{Place, Source, Stage};
use super::fused::{Problem, size};
use crate::cuda::dnn::{Attention, AttentionGradient};
use crate::cuda::text::{Elem, FOLDS, f32_text};
use crate::kernel::Result;

/// The numbers of a listed row: greatest score, sum of exponentials, sum of products of result and its gradient, and the
/// position of the row.
pub(super) const NUMBERS: usize = 4;

/// The threads of a block: one for each row and key of a tile, and one for each row and column of the gradients.
const THREADS: usize = 256;

impl Problem {
    /// Adds the rows with statistics of ∞ to the gradients of keys and values, and writes these rows of the gradient of
    /// the queries. `parts` has room for [`NUMBERS`] numbers of 4 bytes per row. Keys and values have a gradient for
    /// each query head.
    pub(super) fn masked_gradient(
        &self,
        maker: &Maker<'_>,
        gradient: &AttentionGradient,
        [statistics, of_result, bias, parts]: [Place; 4],
        gradients: &[Place],
    ) -> Result<Stage> {
        let no_kernel = || maker.site.no_kernel();
        let (scores, (of_bias, _)) = (self.scores(), self.attention.bias.ok_or_else(no_kernel)?);
        let elem = Elem::float(self.attention.dtype).ok_or_else(no_kernel)?;
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
        self.sizes(&mut source, gradient).ok_or_else(no_kernel)?;
        let body = self.rows(elem, from) + &of_queries(elem, self.scale) + &of_keys(elem, self.scale);
        let blocks = scores[..2].iter().map(|&n| size(n)).product();
        source.launch(maker, &body, [blocks, THREADS])
    }

    /// The steps of the tensors, and extents.
    fn sizes(&self, source: &mut Source, gradient: &AttentionGradient) -> Option<()> {
        let Attention { query, key, value, result, bias, .. } = &self.attention;
        let (scores, (_, strided)) = (self.scores(), bias.as_ref()?);
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
        Some(())
    }

    /// The statements that list the rows with their numbers, and `tile`, which computes the probabilities of a tile and the
    /// gradients of its scores.
    fn rows(&self, elem: Elem, from: Elem) -> String {
        let load = |name: &str, row: &str| elem.load(&at(name, row));
        let later = match self.attention.is_causal {
            true => format!("    if (j > i) return {};\n", f32_text(f32::NEG_INFINITY)),
            false => String::new(),
        };
        format!(
            "  constexpr int ROWS = 4, KEYS = 64, COLUMNS = 64;
  __shared__ float shares[ROWS][KEYS], slopes[ROWS][KEYS];
  i64 h = blockIdx.x % heads, n = blockIdx.x / heads, first = (i64)blockIdx.x * rows;
  float* most = parts + first * {NUMBERS}; float* sum = most + rows; float* delta = sum + rows;
  int* row = (int*)(delta + rows);
  auto is_masked = [&](i64 i) {{ return statistics[first + i] == {masked}; }};
  auto score = [&](i64 i, i64 j) {{
{later}    float s = 0.0f;
    for (i64 c = 0; c < size; c++) s += {qic} * {kjc};
    return s * {scale} + {bias_ij};
  }};
  float any = 0.0f;
  for (i64 i = threadIdx.x; i < rows; i += blockDim.x) if (is_masked(i)) any = 1.0f;
  if (block_max(any) == 0.0f) return;
  i64 found = 0;
  for (i64 i = 0; i < rows; i++) {{
    if (!is_masked(i)) continue;
    float m = {least}, all = 0.0f, d = 0.0f;
    for (i64 j = threadIdx.x; j < total; j += blockDim.x) {{ float s = score(i, j); m = s != s || s > m ? s : m; }}
    m = block_max(m);
    for (i64 j = threadIdx.x; j < total; j += blockDim.x) all += expf(score(i, j) - m);
    all = block_sum(all);
    for (i64 c = threadIdx.x; c < of_value; c += blockDim.x) d += {gic} * {oic};
    d = block_sum(d);
    if (threadIdx.x == 0) {{ most[found] = m; sum[found] = all; delta[found] = d; row[found] = (int)i; }}
    found++;
  }}
  auto tile = [&](i64 r, i64 key) {{
    __syncthreads();
    const i64 a = r + threadIdx.x / KEYS, j = key + threadIdx.x % KEYS;
    float share = 0.0f, slope = 0.0f;
    if (a < found && j < total) {{
      const i64 i = row[a];
      float s = 0.0f;
      for (i64 c = 0; c < of_value; c++) s += {gic} * {vjc};
      share = expf(score(i, j) - most[a]) / sum[a];
      slope = share * (s - delta[a]);
    }}
    shares[threadIdx.x / KEYS][threadIdx.x % KEYS] = share;
    slopes[threadIdx.x / KEYS][threadIdx.x % KEYS] = slope;
    __syncthreads();
  }};
",
            masked = f32_text(f32::INFINITY),
            least = f32_text(f32::NEG_INFINITY),
            scale = f32_text(self.scale),
            bias_ij = from.load("bias[n * bias_n + h * bias_h + i * bias_s + j]"),
            qic = load("q", "i"),
            kjc = load("k", "j"),
            vjc = load("v", "j"),
            gic = load("g", "i"),
            oic = load("o", "i"),
        )
    }
}

/// Column `c` of a row of a tensor. Query heads may share keys and values.
fn at(name: &str, row: &str) -> String {
    let h = if ["k", "v"].contains(&name) { "h / group" } else { "h" };
    format!("{name}[n * {name}_n + {h} * {name}_h + {row} * {name}_s + c]")
}

/// The statements that compute the gradient of the queries: a thread sums over the keys in their order.
fn of_queries(elem: Elem, scale: f32) -> String {
    format!(
        "  for (i64 r = 0; r < found; r += ROWS) {{
    for (i64 column = 0; column < size; column += COLUMNS) {{
      const u32 a = threadIdx.x / COLUMNS;
      const i64 c = column + threadIdx.x % COLUMNS;
      const bool is_in = r + a < found && c < size;
      float made = 0.0f;
      for (i64 key = 0; key < total; key += KEYS) {{
        tile(r, key);
        if (!is_in) continue;
        for (i64 j = key; j < total && j < key + KEYS; j++) made += slopes[a][j - key] * {kjc};
      }}
      if (is_in) {{ const i64 i = row[r + a]; {dq} = {store}; }}
    }}
  }}
",
        kjc = elem.load(&at("k", "j")),
        dq = at("dq", "i"),
        store = elem.store(&format!("made * {}", f32_text(scale))),
    )
}

/// The statements that add to the gradients of keys and values: a thread sums over the rows in their order, for a column
/// and every fourth key of a tile.
fn of_keys(elem: Elem, scale: f32) -> String {
    let (dk, dv) = (at("dk", "j"), at("dv", "j"));
    format!(
        "  constexpr int EACH = KEYS * COLUMNS / {THREADS}, APART = {THREADS} / COLUMNS;
  for (i64 key = 0; key < total; key += KEYS) {{
    for (i64 column = 0; column < size || column < of_value; column += COLUMNS) {{
      const i64 c = column + threadIdx.x % COLUMNS;
      const u32 start = threadIdx.x / COLUMNS;
      float keys[EACH], values[EACH];
      #pragma unroll
      for (int m = 0; m < EACH; m++) keys[m] = values[m] = 0.0f;
      for (i64 r = 0; r < found; r += ROWS) {{
        tile(r, key);
        for (u32 a = 0; a < ROWS && r + a < found; a++) {{
          const i64 i = row[r + a];
          const float of_q = c < size ? {qic} : 0.0f, of_g = c < of_value ? {gic} : 0.0f;
          #pragma unroll
          for (int m = 0; m < EACH; m++) {{
            keys[m] += slopes[a][start + m * APART] * of_q;
            values[m] += shares[a][start + m * APART] * of_g;
          }}
        }}
      }}
      #pragma unroll
      for (int m = 0; m < EACH; m++) {{
        const i64 j = key + start + m * APART;
        if (j < total && c < size) {dk} = {of_key};
        if (j < total && c < of_value) {dv} = {of_value};
      }}
    }}
  }}",
        qic = elem.load(&at("q", "i")),
        gic = elem.load(&at("g", "i")),
        of_key = elem.store(&format!("{} + keys[m] * {}", elem.load(&dk), f32_text(scale))),
        of_value = elem.store(&format!("{} + values[m]", elem.load(&dv))),
    )
}
