//! Kernels around a convolution, which widen, transpose and place elements.

use super::super::Maker;
use crate::cuda::elements::{VECTORS, reciprocal};
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

/// The elements of a tile that a block transposes.
const TILE: usize = 1024;

/// The most rows or columns of a tile that has as many of both.
const SIDE: usize = 32;

/// A kernel that exchanges rows and columns of matrices of 16-bit elements, one behind the other.
///
/// A block moves a tile through shared memory, so that neighbouring threads read neighbours of a row and write neighbours of
/// a column. The matrices of filters have few rows or few columns: their tiles are long.
pub(in crate::cuda::kernels) struct Transposition {
    kernel: Kernel,
    n: usize,
    /// The numbers of rows, columns, tiles across and down, and of rows and columns of a tile; with the reciprocals of the
    /// latter two.
    sizes: [u64; 8],
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
        // The elements of rows and columns have one order.
        let [count, rows, columns] = if rows.min(columns) == 1 { [1, n, 1] } else { [count, rows, columns] };
        let [height, width] = tile(rows, columns);
        let (across, down) = (columns.div_ceil(width), rows.div_ceil(height));
        // A row of a tile has an odd number of places, so that the threads of a warp read different banks.
        let text = format!(
            "{HEAD}{VECTORS}extern \"C\" __global__ void run(u64 rows, u64 columns, u64 across, u64 down, u64 height_, u64 width_, u64 height_by, u64 width_by, const u16* x, u16* y) {{
  __shared__ u16 tile[{places}];
  const u32 height = height_, width = width_, pitch = width | 1;
  const u64 matrix = blockIdx.x / across / down * rows * columns;
  const u64 row = blockIdx.x / across % down * height, column = blockIdx.x % across * width;
  #pragma unroll
  for (u32 at = threadIdx.x; at < {TILE}; at += {THREADS}) {{
    const u32 r = divided(at, width, width_by), c = at - r * width;
    if (r < height && row + r < rows && column + c < columns) tile[r * pitch + c] = x[matrix + (row + r) * columns + column + c];
  }}
  __syncthreads();
  #pragma unroll
  for (u32 at = threadIdx.x; at < {TILE}; at += {THREADS}) {{
    const u32 c = divided(at, height, height_by), r = at - c * height;
    if (c < width && row + r < rows && column + c < columns) y[matrix + (column + c) * rows + row + r] = tile[r * pitch + c];
  }}
}}
",
            places = 2 * TILE,
        );
        let kernel = Kernel::new(maker.shared, &text, count * across * down, THREADS)?;
        let [rows, columns, across, down] = [rows, columns, across, down].map(|size| size as u64);
        let by = [height, width].map(reciprocal);
        let sizes = [rows, columns, across, down, height as u64, width as u64, by[0], by[1]];
        Ok(Transposition { kernel, n, sizes })
    }

    /// The bytes of the matrices.
    pub(in crate::cuda::kernels) fn bytes(&self) -> usize {
        self.n.saturating_mul(2)
    }

    pub(in crate::cuda::kernels) fn launch(&self, queue: &mut CudaQueue, from: u64, to: u64) -> Result<()> {
        let args: Vec<u64> = self.sizes.iter().copied().chain([from, to]).collect();
        self.kernel.launch(queue, &args)
    }
}

/// The rows and columns of a tile of at most [`TILE`] elements.
fn tile(rows: usize, columns: usize) -> [usize; 2] {
    let long = |short: usize, most: usize| (TILE / short).min(most).max(1);
    match (rows.clamp(1, SIDE), columns.clamp(1, SIDE)) {
        (height, width) if columns <= SIDE => [long(width, rows.max(height)), width],
        (height, _) => [height, long(height, columns)],
    }
}

#[cfg(test)]
mod tests {
    use super::{TILE, tile};

    #[test]
    fn tiles_are_long_where_matrices_are() {
        assert_eq!(tile(512, 9), [113, 9]);
        assert_eq!(tile(9, 512), [9, 113]);
        assert_eq!(tile(64, 12_544), [32, 32]);
        assert_eq!(tile(64, 1), [64, 1]);
        assert_eq!(tile(7, 5), [7, 5]);
        assert_eq!(tile(0, 0), [1, 1]);
        for rows in 0..80 {
            for columns in 0..80 {
                let [height, width] = tile(rows, columns);
                // A row has an odd number of places.
                assert!(height * width <= TILE && height * (width | 1) <= 2 * TILE, "{rows} × {columns}");
            }
        }
    }
}
