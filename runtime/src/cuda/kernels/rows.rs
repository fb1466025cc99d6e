//! Kernels that read and write a contiguous row once: the threads of a row keep its elements in registers.
//!
//! A warp has a row of up to 1024 elements, and a block of 256 threads a row of up to 8192. Threads of longer rows
//! read their elements again in each loop. Each thread has vectors of 16 bytes, which are single loads and stores if
//! rows and addresses are multiples of 16 bytes. The order of a sum depends only on the extent of the row.

use super::Maker;
use super::stage::{Source, Stage};
use crate::cuda::elements::VECTORS;
use crate::cuda::text::{Elem, FOLDS};
use crate::kernel::Result;

/// The threads of a block.
const BLOCK: usize = 256;

/// The distribution of a row over threads.
#[derive(Clone, Copy)]
pub(super) struct Row {
    /// The number of threads of a row.
    lanes: usize,
    /// The number of elements that a thread keeps in registers, or 0 if it reads its elements again.
    items: usize,
    /// The number of elements of a vector.
    vector: usize,
}

/// Sums and maxima over the threads of a warp; every thread has the result.
const WARP_FOLDS: &str = r"
__device__ __forceinline__ float row_sum(float x) {
  for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(0xffffffffu, x, o);
  return x;
}
__device__ __forceinline__ float row_max(float x) {
  for (int o = 16; o; o >>= 1) { float y = __shfl_xor_sync(0xffffffffu, x, o); x = (x != x || x > y) ? x : y; }
  return x;
}
";

impl Row {
    /// The distribution of a row of `n` elements, which are read as `elem`.
    pub(super) fn new(n: usize, elem: Elem) -> Row {
        let (lanes, items) = match n {
            0..=256 => (32, 8),
            257..=1024 => (32, 32),
            1025..=2048 => (BLOCK, 8),
            2049..=8192 => (BLOCK, 32),
            _ => (BLOCK, 0),
        };
        Row { lanes, items, vector: 16 / elem.bytes() }
    }

    /// True if threads read their elements again in each loop.
    pub(super) fn reads_anew(&self) -> bool {
        self.items == 0
    }

    /// Declares the operand `from`, the result `to`, the extents, and functions. `aligned` names further pointers
    /// that are accessed as vectors.
    pub(super) fn declare(
        &self,
        source: &mut Source,
        [n, rows]: [usize; 2],
        [elem, to]: [Elem; 2],
        aligned: &[&str],
    ) {
        let Row { lanes, items, vector } = self;
        source.function(VECTORS);
        source.function(if *lanes == 32 { WARP_FOLDS } else { FOLDS });
        if *lanes != 32 {
            source.function("#define row_sum block_sum\n#define row_max block_max\n");
        }
        source.function(&format!(
            "#define V {vector}\n#define LANES {lanes}\n#define ITEMS {}\ntypedef {} S;\ntypedef {} R;
__device__ __forceinline__ float wide(S x) {{ return {}; }}
__device__ __forceinline__ void read(float* x, const S* from, u32 k, u32 n, bool is_vector) {{
  if (is_vector && k < n) {{
    Vector<S, V> v = load<V>(from + k);
    #pragma unroll
    for (int m = 0; m < V; m++) x[m] = wide(v.at[m]);
    return;
  }}
  #pragma unroll
  for (int m = 0; m < V; m++) x[m] = k + m < n ? wide(from[k + m]) : 0.0f;
}}
__device__ __forceinline__ void write(R* to, Vector<R, V> y, u32 k, u32 n, bool is_vector) {{
  if (is_vector && k < n) {{ store(to + k, y); return; }}
  #pragma unroll
  for (int m = 0; m < V; m++) if (k + m < n) to[k + m] = y.at[m];
}}
",
            if *items == 0 { *vector } else { *items },
            elem.stored(),
            to.stored(),
            elem.load("x"),
        ));
        source.number("n", n);
        source.number("rows", rows);
        let also: String = aligned.iter().map(|name| format!(" | (u64){name}")).collect();
        source.local("const u32 lane = threadIdx.x % LANES;");
        source.local("const u64 row = blockIdx.x * (u64)(blockDim.x / LANES) + threadIdx.x / LANES;");
        source.local("if (row >= rows) return;");
        source.local(&format!(
            "const bool is_vector = n % V == 0 && (((u64)from | (u64)to{also}) & (sizeof(float) * V - 1)) == 0;"
        ));
        source.local("from += row * n; to += row * n;");
        if *items > 0 {
            source.local("float row_[ITEMS];");
            source.local("#pragma unroll");
            source.local(
                "for (int j = 0; j < ITEMS; j += V) read(row_ + j, from, j * LANES + lane * V, n, is_vector);",
            );
        }
    }

    /// A loop that runs statements for each element `x` of a thread, at index `k` in the row.
    pub(super) fn each(&self, body: &str) -> String {
        let (head, at, tail) = match self.items {
            0 => (
                "for (u32 low = lane * V; low < n; low += LANES * V) {
    float row_[V];
    read(row_, from, low, n, is_vector);",
                "low",
                "}",
            ),
            _ => ("", "m / V * V * LANES + lane * V", ""),
        };
        format!(
            "  {head}
  #pragma unroll
  for (int m = 0; m < ITEMS; m++) {{
    u32 k = {at} + m % V;
    float& x = row_[m];
    if (k < n) {{ {body} }}
  }}{tail}\n"
        )
    }

    /// A loop that stores the elements `y.at[m]`, which `body` computes from `x`, the element at `low + m` of the
    /// row.
    pub(super) fn written(&self, body: &str) -> String {
        let head = match self.items {
            0 => {
                "for (u32 low = lane * V; low < n; low += LANES * V) {
    float row_[V];
    read(row_, from, low, n, is_vector);
    const int j = 0;"
            }
            _ => {
                "#pragma unroll
  for (int j = 0; j < ITEMS; j += V) {
    u32 low = j * LANES + lane * V;"
            }
        };
        format!(
            "  {head}
    if (low >= n) continue;
    Vector<R, V> y;
    {body}
    write(to, y, low, n, is_vector);
  }}\n"
        )
    }

    /// The launch for all rows.
    ///
    /// # Errors
    /// If there are too many blocks.
    pub(super) fn launch(&self, maker: &Maker<'_>, source: Source, body: &str, rows: usize) -> Result<Stage> {
        source.launch(maker, body, [rows.div_ceil(BLOCK / self.lanes), BLOCK])
    }
}
