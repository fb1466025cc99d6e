//! The sizes of a convolution.

use crate::cuda::dnn::{Convolution, Direction, Layout};
use crate::kernel::{KernelError, Result};
use ampc_ir::DType;
use ampc_ir::views::window::WindowView;

/// A spatial axis. Position `o` and filter element `k` read the image at `o · stride + k · dilation - before`.
#[derive(Clone, Copy)]
pub(in crate::cuda::kernels) struct Axis {
    pub(in crate::cuda::kernels) image: i64,
    pub(in crate::cuda::kernels) taps: i64,
    pub(in crate::cuda::kernels) grid: i64,
    pub(in crate::cuda::kernels) stride: i64,
    pub(in crate::cuda::kernels) dilation: i64,
    pub(in crate::cuda::kernels) before: i64,
}

impl Axis {
    pub(in crate::cuda::kernels) const ONE: Axis =
        Axis { image: 1, taps: 1, grid: 1, stride: 1, dilation: 1, before: 0 };

    /// The padding after the image that gives the grid's number of positions, equal to the padding before it if
    /// possible; `None` if the image extends beyond the last position.
    pub(in crate::cuda::kernels) fn padding_after(&self) -> Option<i64> {
        let least = self.reached().checked_sub(self.image)?;
        let most = least.checked_add(self.stride - 1)?;
        (most >= 0).then(|| self.before.clamp(least.max(0), most))
    }

    /// The extent of the image up to the last element that a position reads; it may be negative.
    pub(in crate::cuda::kernels) fn reached(&self) -> i64 {
        (self.grid - 1)
            .saturating_mul(self.stride)
            .saturating_add((self.taps - 1).saturating_mul(self.dilation).saturating_add(1))
            .saturating_sub(self.before)
    }
}

/// The sizes of a convolution.
pub(in crate::cuda::kernels) struct Sizes {
    pub(in crate::cuda::kernels) batch: usize,
    /// Channels of the image and of the grid.
    pub(in crate::cuda::kernels) channels: [usize; 2],
    pub(in crate::cuda::kernels) groups: usize,
    pub(in crate::cuda::kernels) axes: Vec<Axis>,
}

fn int(n: impl TryInto<i64>) -> Result<i64> {
    n.try_into().map_err(|_| KernelError::value("a window that fits memory", "a larger one"))
}

impl Sizes {
    /// The axes of images, filters and grids with these spatial dims; `before` is the padding before an axis.
    pub(in crate::cuda::kernels) fn axes(
        view: &WindowView,
        [image, taps, grid]: [&[usize]; 3],
        before: impl Fn(usize, u64, u64) -> u64,
    ) -> Result<Vec<Axis>> {
        let axis = |i: usize| {
            Ok(Axis {
                image: int(image[i])?,
                taps: int(taps[i])?,
                grid: int(grid[i])?,
                stride: int(view.strides[i])?,
                dilation: int(view.dilations[i])?,
                before: int(before(i, image[i] as u64, grid[i] as u64))?,
            })
        };
        let mut axes = (0..image.len()).map(axis).collect::<Result<Vec<_>>>()?;
        if axes.iter().any(|axis| axis.taps == 0) {
            return Err(KernelError::value("a window of at least one element", "none"));
        }
        while axes.len() < 2 {
            axes.insert(0, Axis::ONE);
        }
        Ok(axes)
    }

    /// The convolution without a bias; the result has the operands' element type.
    pub(in crate::cuda::kernels) fn convolution(
        &self,
        direction: Direction,
        dtype: DType,
    ) -> Result<Option<Convolution>> {
        let Some(after) = self.axes.iter().map(Axis::padding_after).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let [c, k] = self.channels;
        let dims = |first: [usize; 2], of: fn(&Axis) -> i64| -> Result<Vec<i64>> {
            let first = first.into_iter().map(int).collect::<Result<Vec<_>>>()?;
            Ok(first.into_iter().chain(self.axes.iter().map(of)).collect())
        };
        let each = |of: fn(&Axis) -> i64| self.axes.iter().map(of).collect();
        Ok(Some(Convolution {
            direction,
            dtype,
            result: dtype,
            image: dims([self.batch, c], |axis| axis.image)?,
            filter: dims([k, c / self.groups], |axis| axis.taps)?,
            grid: dims([self.batch, k], |axis| axis.grid)?,
            before: each(|axis| axis.before),
            after,
            strides: each(|axis| axis.stride),
            dilations: each(|axis| axis.dilation),
            has_bias: false,
            has_relu: false,
            layout: Layout::ChannelsFirst,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::Axis;

    fn after(image: i64, taps: i64, grid: i64, stride: i64, before: i64) -> Option<i64> {
        Axis { image, taps, grid, stride, dilation: 1, before }.padding_after()
    }

    #[test]
    fn padding_behind_an_axis() {
        assert_eq!(after(5, 3, 5, 1, 1), Some(1));
        // Equal paddings are preferred if the rounded number of positions permits them.
        assert_eq!(after(224, 7, 112, 2, 3), Some(3));
        assert_eq!(after(224, 3, 112, 2, 0), Some(1));
        assert_eq!(after(3, 1, 2, 2, 0), Some(0));
        // A ConvTranspose whose result has no element, and three elements, beyond the last position.
        assert_eq!(after(6, 2, 3, 2, 0), Some(0));
        assert_eq!(after(7, 2, 3, 2, 0), Some(0));
        assert_eq!(after(9, 2, 3, 2, 0), None);
    }
}
