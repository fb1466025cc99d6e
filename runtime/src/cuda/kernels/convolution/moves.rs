//! Kernels around a convolution, which widen, transpose and place elements.

use super::super::Maker;
use crate::cuda::launch::{Kernel, THREADS, blocks_for};
use crate::cuda::queue::CudaQueue;
use crate::cuda::text::{Elem, HEAD};
use crate::kernel::Result;

/// A kernel that copies planes to the beginning of larger planes, and adds an element per channel; elements without a
/// source are that element or zero.
pub(super) struct Placement {
    pub(super) kernel: Kernel,
    /// The elements of the result, its channels, and the spatial dims of result and source.
    sizes: [u64; 8],
}

impl Placement {
    pub(super) fn new(
        maker: &Maker<'_>,
        from: Elem,
        to: Elem,
        all: &[i64],
        part: Option<&[i64]>,
    ) -> Result<Placement> {
        let dims = maker.site.result_dims(0)?;
        let n: usize = dims.iter().product();
        let text = format!(
            "{HEAD}extern \"C\" __global__ void run(u64 n, u64 channels, u64 y1, u64 y2, u64 y3, u64 x1, u64 x2, u64 x3, const {source}* x, const {stored}* bias, {stored}* y) {{
  for (u64 i = first(); i < n; i += step()) {{
    u64 c = i % y3, b = i / y3 % y2, rest = i / y3 / y2, a = rest % y1, plane = rest / y1;
    float sum = 0.0f;
    if (x && a < x1 && b < x2 && c < x3) {{ u64 at = ((plane * x1 + a) * x2 + b) * x3 + c; sum = {load}; }}
    if (bias) {{ u64 at = plane % channels; sum = sum + {addend}; }}
    y[i] = {store};
  }}
}}
",
            source = from.stored(),
            stored = to.stored(),
            load = from.load("x[at]"),
            addend = to.load("bias[at]"),
            store = to.store("sum"),
        );
        let kernel = Kernel::new(maker.shared, &text, blocks_for(n), THREADS)?;
        let mut sizes = [1; 8];
        (sizes[0], sizes[1]) = (n as u64, dims[1] as u64);
        for (at, dims) in [(2, Some(all)), (5, part)] {
            let dims = dims.unwrap_or_default();
            let first = at + 3 - dims.len();
            for (size, &extent) in sizes[first..].iter_mut().zip(dims) {
                *size = u64::try_from(extent).unwrap_or(0);
            }
        }
        Ok(Placement { kernel, sizes })
    }

    pub(super) fn args(&self, source: u64, bias: u64, to: u64) -> Vec<u64> {
        self.sizes.iter().copied().chain([source, bias, to]).collect()
    }
}

/// A kernel that widens an operand of 16 bits to f32.
pub(super) struct Widening {
    pub(super) kernel: Kernel,
    pub(super) n: usize,
}

impl Widening {
    /// The kernel for operand `i`, if cuDNN reads it as another type, `to`.
    pub(super) fn new(maker: &Maker<'_>, i: usize, to: Elem) -> Result<Option<Widening>> {
        let from = maker.float(i)?;
        if from == to {
            return Ok(None);
        }
        let n = maker.site.dims(i)?.iter().product();
        let text = format!(
            "{HEAD}extern \"C\" __global__ void run(u64 n, const {stored}* x, float* y) {{
  for (u64 i = first(); i < n; i += step()) y[i] = {load};
}}
",
            stored = from.stored(),
            load = from.load("x[i]"),
        );
        Ok(Some(Widening { kernel: Kernel::new(maker.shared, &text, blocks_for(n), THREADS)?, n }))
    }

    pub(super) fn bytes(widening: &Option<Widening>) -> usize {
        widening.as_ref().map_or(0, |widening| widening.n.saturating_mul(4))
    }
}

/// A kernel that exchanges rows and columns of matrices of 16-bit elements, one behind the other.
pub(in crate::cuda::kernels) struct Transposition {
    kernel: Kernel,
    sizes: [u64; 3],
}

impl Transposition {
    /// The kernel for so many matrices of `rows` × `columns`.
    pub(in crate::cuda::kernels) fn new(
        maker: &Maker<'_>,
        count: usize,
        rows: usize,
        columns: usize,
    ) -> Result<Transposition> {
        let n = count.checked_mul(rows).and_then(|n| n.checked_mul(columns));
        let n = n.ok_or_else(|| maker.site.no_kernel())?;
        let text = format!(
            "{HEAD}extern \"C\" __global__ void run(u64 n, u64 rows, u64 columns, const u16* x, u16* y) {{
  for (u64 i = first(); i < n; i += step()) {{
    u64 row = i % rows, column = i / rows % columns, matrix = i / rows / columns;
    y[i] = x[(matrix * rows + row) * columns + column];
  }}
}}
"
        );
        let kernel = Kernel::new(maker.shared, &text, blocks_for(n), THREADS)?;
        Ok(Transposition { kernel, sizes: [n as u64, rows as u64, columns as u64] })
    }

    /// The bytes of the matrices.
    pub(in crate::cuda::kernels) fn bytes(&self) -> usize {
        usize::try_from(self.sizes[0]).map_or(usize::MAX, |n| n.saturating_mul(2))
    }

    pub(in crate::cuda::kernels) fn launch(&self, queue: &mut CudaQueue, from: u64, to: u64) -> Result<()> {
        let [n, rows, columns] = self.sizes;
        self.kernel.launch(queue, &[n, rows, columns, from, to])
    }
}
