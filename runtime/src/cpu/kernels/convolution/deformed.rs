//! DeformConv: a convolution whose taps have an offset, and a factor, at each position.

use super::{Cut, Sizes, add_bias, floor, multiply_columns, to_f64};
use crate::cpu::kernels::lanes::{Real, Wide, for_real, widened};
use crate::cpu::kernels::tiles::TileRows;
use crate::kernel::{KernelError, Prepared, Result, Site};
use ampc_ir::views::OpError;
use ampc_ir::views::image::positive_int;
use num_traits::{One, Zero};
use std::ops::Range;

pub(super) fn deform_conv(site: &Site<'_>) -> Result<Prepared> {
    let (sizes, _) = Sizes::of(site)?;
    let offset_groups = positive_int(&site.view, "offset_group", 1)?;
    let channels = sizes.groups * sizes.inputs;
    let offset_groups =
        usize::try_from(offset_groups).ok().filter(|&n| channels.is_multiple_of(n)).ok_or_else(|| {
            OpError::attr("offset_group", format!("a divisor of {channels}"), offset_groups.to_string())
        })?;
    if sizes.window.axes.len() != 2 {
        return Err(KernelError::unsupported("DeformConv of other than two spatial axes"));
    }
    Ok(for_real!(site.dtype(0)?, site, T => deform_conv_of::<T>(sizes, offset_groups)))
}

fn deform_conv_of<T: Real>(sizes: Sizes, offset_groups: usize) -> Prepared {
    let cut = Cut::of(&sizes);
    let weights = if T::IS_WIDE { 0 } else { sizes.weights() };
    let slot = cut.slot(sizes.depth(), 0);
    let words = weights.saturating_add(cut.slots.saturating_mul(slot));
    let rows = TileRows::default();
    Prepared::new(move |io| {
        let (x, w, offsets) = (io.slice::<T>(0)?, io.slice::<T>(1)?, io.slice::<T>(2)?);
        let bias = if io.has(3) { Some(io.slice::<T>(3)?) } else { None };
        let mask = if io.has(4) { Some(io.slice::<T>(4)?) } else { None };
        let to = io.out::<T>(0)?;
        let (room, scratch) = io.scratch::<T::Wide>().split_at_mut(weights);
        let w = widened(w, room);
        let deformed = Deformed { sizes: &sizes, offset_groups, x, offsets, mask };
        let fill = |matrix: usize, at: Range<usize>, to: &mut [T::Wide], _: &mut [T::Wide]| {
            deformed.fill(matrix, at, to);
        };
        let grid = sizes.window.grid();
        multiply_columns(
            (&sizes, cut, &rows, 1),
            w,
            (scratch, slot),
            to,
            io.room(),
            fill,
            |channel, _, sums, to, _| {
                if let Some(bias) = bias {
                    let rows = sums.chunks_mut(grid).zip(&bias[channel..]);
                    rows.for_each(|(row, bias)| add_bias(row, bias.wide()));
                }
                T::narrow(sums, to);
            },
        )
    })
    .scratch(words.saturating_mul(size_of::<T::Wide>()))
}

/// The columns of a DeformConv: each tap at each position has an offset, and a factor.
struct Deformed<'a, T> {
    sizes: &'a Sizes,
    offset_groups: usize,
    x: &'a [T],
    offsets: &'a [T],
    mask: Option<&'a [T]>,
}

impl<T: Real> Deformed<'_, T> {
    fn fill(&self, matrix: usize, at: Range<usize>, to: &mut [T::Wide]) {
        let Sizes { groups, inputs, ref window, .. } = *self.sizes;
        let (image, taps, grid) = (window.image(), window.kernel(), window.grid());
        let (batch, group) = (matrix / groups, matrix % groups);
        let channels_per_offset = groups * inputs / self.offset_groups;
        for (row, to) in to.chunks_mut(at.len()).enumerate() {
            let (channel, tap) = (group * inputs + row / taps, row % taps);
            let x = &self.x[(batch * groups * inputs + channel) * image..][..image];
            let cell = (batch * self.offset_groups + channel / channels_per_offset) * taps + tap;
            for (y, o) in to.iter_mut().zip(at.clone()) {
                let offset = |axis: usize| self.offsets[(cell * 2 + axis) * grid + o].wide();
                let value = self.sample(x, tap, o, [offset(0), offset(1)]);
                *y = value * self.mask.map_or(One::one(), |mask| mask[cell * grid + o].wide());
            }
        }
    }

    /// The input between elements, zero outside of it.
    fn sample(&self, x: &[T], tap: usize, o: usize, offset: [T::Wide; 2]) -> T::Wide {
        let axes = &self.sizes.window.axes;
        let of_tap = [tap / axes[1].kernel, tap % axes[1].kernel];
        let of_grid = [o / axes[1].grid, o % axes[1].grid];
        let mut near = [(0i64, T::Wide::zero()); 2];
        for (i, axis) in axes.iter().enumerate() {
            let at = of_grid[i] * axis.stride + of_tap[i] * axis.dilation;
            let at = offset[i].to() + to_f64(at) - to_f64(axis.before);
            // Far outside, or no number: outside.
            if !(at > -1.0 && at < to_f64(axis.image)) {
                return T::Wide::zero();
            }
            near[i] = (floor(at), T::Wide::of(at - at.floor()));
        }
        let element = |row: i64, column: i64| {
            let row = usize::try_from(row).ok().filter(|&r| r < axes[0].image)?;
            let column = usize::try_from(column).ok().filter(|&c| c < axes[1].image)?;
            Some(x[row * axes[1].image + column].wide())
        };
        let [(row, down), (column, right)] = near;
        let mut sum = T::Wide::zero();
        for (i, weight) in [(0, T::Wide::one() - down), (1, down)] {
            for (j, side) in [(0, T::Wide::one() - right), (1, right)] {
                if let Some(x) = element(row + i, column + j) {
                    sum = sum + weight * side * x;
                }
            }
        }
        sum
    }
}
