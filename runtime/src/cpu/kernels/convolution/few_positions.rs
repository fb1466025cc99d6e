//! Convolutions with fewer positions than taps, such as convolutions for the gradient of weights.
//!
//! A position `o` and a tap `k` meet the image at `o · stride + k · dilation - before`, so the two can change places: the
//! columns of the window with position and tap exchanged have a row per position and a column per tap. The result is the
//! product of the weights and these columns, transposed, for many images at once: `m` times `images · positions`. Its sum
//! goes over channels and taps, a block of taps at a time; where there are few products, the sum is cut into parts as
//! well, which are added in order.

use super::columns::{Widen, fill_columns, most_converted};
use super::{COLUMNS, Sizes, WORTH_A_THREAD};
use crate::cpu::kernels::lanes::{Real, widened};
use crate::cpu::kernels::linear::{Matrix, multiply_alone};
use crate::cpu::kernels::parallel::numbered_pieces;
use crate::cpu::kernels::window::{Axis, Block, SLOTS, Window, work_through};
use crate::kernel::{Prepared, Result};
use crate::room::Room;
use num_traits::{One, Zero};
use std::marker::PhantomData;
use std::ops::Range;

/// Rows of the columns that a product is efficient with.
const ROWS: usize = 256;

/// The most taps at a time.
const TAPS: usize = 1024;

/// True if a convolution is one of these.
pub(super) fn fits(sizes: &Sizes) -> bool {
    let window = &sizes.window;
    window.grid() > 0 && window.image() > 0 && window.kernel() > window.grid().max(ROWS / 8)
}

/// How the work is cut.
struct Cut {
    sizes: Sizes,
    /// The window with positions and taps exchanged.
    window: Window,
    /// Images at a time.
    images: usize,
    /// Taps at a time.
    taps: usize,
    /// Parts of the sum.
    parts: usize,
    slots: usize,
    /// The positions that each block of taps covers.
    met: Vec<Block>,
}

impl Cut {
    fn of(sizes: Sizes, room: Room) -> Result<Cut> {
        let exchanged = |a: &Axis| Axis {
            image: a.image,
            grid: a.kernel,
            kernel: a.grid,
            stride: a.dilation,
            dilation: a.stride,
            before: a.before,
        };
        let window = Window { axes: sizes.window.axes.iter().map(exchanged).collect() };
        let (positions, taps) = (sizes.window.grid(), sizes.window.kernel());
        let images = (ROWS / positions).clamp(1, sizes.batch.max(1));
        let taps = (COLUMNS / (images * positions)).clamp(1, TAPS).min(taps);
        let products = sizes.groups.saturating_mul(sizes.batch.div_ceil(images)).max(1);
        let each = sizes.outputs.saturating_mul(images * positions).saturating_mul(sizes.depth());
        let blocks = sizes.inputs.saturating_mul(sizes.window.kernel().div_ceil(taps));
        let parts = SLOTS.div_ceil(products).min(each / WORTH_A_THREAD).clamp(1, blocks.max(1));
        let slots = products.saturating_mul(parts).clamp(1, SLOTS);
        let has_results = sizes.batch * sizes.groups * sizes.outputs > 0;
        let met = if has_results { window.blocks(taps, room)? } else { Vec::new() };
        Ok(Cut { window, images, taps, parts, slots, met, sizes })
    }

    /// Elements of the result.
    fn result(&self) -> usize {
        let Sizes { batch, groups, outputs, .. } = self.sizes;
        batch.saturating_mul(groups).saturating_mul(outputs).saturating_mul(self.window.kernel())
    }

    /// Elements of the columns.
    fn columns(&self) -> usize {
        self.images * self.window.kernel() * self.taps
    }

    /// Which blocks of taps of which channels a part of the sum has, counted through.
    fn blocks(&self, part: usize) -> Range<usize> {
        let all = self.sizes.inputs * self.window.grid().div_ceil(self.taps);
        part * all / self.parts..(part + 1) * all / self.parts
    }

    /// A part of the product for the images from `first` on, in a group: a row for each output channel.
    fn multiply<T: Real>(
        &self,
        (part, group, first): (usize, usize, usize),
        (x, w): (&[T], &[T::Wide]),
        slot: &mut [T::Wide],
        to: &mut [T::Wide],
    ) {
        let Sizes { groups, inputs, outputs, .. } = self.sizes;
        let (positions, all_taps, image) = (self.window.kernel(), self.window.grid(), self.window.image());
        let rows = to.len() / outputs;
        let depth = inputs * all_taps;
        let per_channel = all_taps.div_ceil(self.taps);
        let (columns, room) = slot.split_at_mut(self.columns());
        to.fill(T::Wide::zero());
        for block in self.blocks(part) {
            let (channel, tap) = (block / per_channel, block % per_channel * self.taps);
            let n = self.taps.min(all_taps - tap);
            let met = &self.met[tap / self.taps];
            for (i, columns) in columns[..rows * n].chunks_mut(positions * n).enumerate() {
                let plane = ((first + i) * groups + group) * inputs + channel;
                let x = &x[plane * image..(plane + 1) * image];
                fill_columns(&self.window, met, x, Widen::<T>(PhantomData), room, columns);
            }
            let w = Matrix {
                elements: &w[group * outputs * depth + channel * all_taps + tap..],
                row: depth,
                column: 1,
            };
            let columns = Matrix { elements: &columns[..rows * n], row: 1, column: n };
            multiply_alone((outputs, rows, n), w, columns, to, Some(T::Wide::one()));
        }
    }

    /// Adds the parts of the sum and takes them to where they belong.
    fn store<T: Real>(&self, sums: &[T::Wide], bias: Option<&[T]>, to: &mut [T]) {
        let Sizes { batch, groups, outputs, .. } = self.sizes;
        let positions = self.window.kernel();
        let all = to.len();
        numbered_pieces(to, outputs * positions, 1, |i, to| {
            let (image, group) = (i / groups, i % groups);
            let first = image / self.images * self.images;
            let rows = self.images.min(batch - first) * positions;
            let start = (group * batch + first) * outputs * positions + (image - first) * positions;
            for (m, to) in to.chunks_mut(positions).enumerate() {
                let bias = bias.map_or(T::Wide::zero(), |bias| bias[group * outputs + m].wide());
                let sums = &sums[start + m * rows..];
                for (o, y) in to.iter_mut().enumerate() {
                    let parts = sums[o..].iter().step_by(all).take(self.parts);
                    *y = T::round(parts.fold(T::Wide::zero(), |sum, &part| sum + part) + bias);
                }
            }
        });
    }
}

pub(super) fn conv<T: Real>(sizes: Sizes, room: Room) -> Result<Prepared> {
    let weights = if T::IS_WIDE { 0 } else { sizes.weights() };
    let cut = Cut::of(sizes, room)?;
    let span = if T::IS_WIDE { 0 } else { most_converted(&cut.window, &cut.met) };
    let (result, slot) = (cut.result(), cut.columns().saturating_add(span));
    let words = weights
        .saturating_add(result.saturating_mul(cut.parts))
        .saturating_add(cut.slots.saturating_mul(slot));
    let prepared = Prepared::new(move |io| {
        let (x, w) = (io.slice::<T>(0)?, io.slice::<T>(1)?);
        let bias = if io.has(2) { Some(io.slice::<T>(2)?) } else { None };
        let to = io.out::<T>(0)?;
        if to.is_empty() {
            return Ok(());
        }
        let (room, scratch) = io.scratch::<T::Wide>().split_at_mut(weights);
        let w = widened(w, room);
        let (sums, scratch) = scratch.split_at_mut(result * cut.parts);
        let image = cut.sizes.outputs * cut.window.kernel();
        let (group, block) = (cut.sizes.batch * image, cut.images * image);
        let tasks = sums.chunks_mut(result).enumerate().flat_map(|(part, sums)| {
            let groups = sums.chunks_mut(group).enumerate();
            groups.flat_map(move |(group, sums)| {
                let blocks = sums.chunks_mut(block).enumerate();
                blocks.map(move |(i, sums)| ((part, group, i), sums))
            })
        });
        work_through(tasks, scratch, slot, |slot, ((part, group, i), sums)| {
            cut.multiply::<T>((part, group, i * cut.images), (x, w), slot, sums);
        });
        cut.store(sums, bias, to);
        Ok(())
    });
    Ok(prepared.scratch(words.saturating_mul(size_of::<T::Wide>())))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Case, check};

    #[test]
    fn positions_and_taps_change_places() {
        let case = |image, kernel| Case { kernel, ..Case::of(image) };
        check(&case([9, 8], [7, 6]));
        check(&Case { strides: [1, 2], pads: [1, 2, 1, 1], ..case([9, 8], [7, 6]) });
        check(&Case { strides: [2, 1], dilations: [2, 2], pads: [1, 0, 0, 1], ..case([15, 16], [6, 8]) });
        check(&case([6, 40], [6, 40]));
        check(&Case { strides: [1, 3], pads: [0, 1, 0, 0], ..case([2, 21], [2, 20]) });
        check(&Case { strides: [1, 100], pads: [0, 0, 1, 0], ..case([2, 40], [3, 20]) });
    }

    /// The sum is cut into parts, of more than one block of taps.
    #[test]
    fn long_sums() {
        check(&Case { kernel: [128, 139], ..Case::of([130, 140]) });
    }
}
