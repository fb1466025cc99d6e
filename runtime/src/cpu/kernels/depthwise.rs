//! Convolutions with one input channel per group, over one or two spatial axes.
//!
//! Some rows of the input at a time are padded and taken apart into *phases*, planes of the elements whose indices are
//! the same modulo the strides. Then what a tap meets at all positions is a plane too, which begins somewhere in that
//! of its phase and has rows of the same length; the result is a sum of such planes times weights. Rows are computed to
//! their full length, as one: what is beyond the last position of a row is not used.

use super::convolution::Sizes;
use super::lanes::{Real, Wide, widened_by_task};
use super::product::{Epilogue, OPERANDS, Parts, elements};
use super::vector::widest;
use super::window::{Axis, SLOTS, Window, work_through, zip_strided};
use crate::kernel::Result;
use crate::room::Room;
use num_traits::Zero;
use std::marker::PhantomData;
use std::ops::Range;

/// True if a convolution is computed here.
pub(super) fn fits(sizes: &Sizes) -> bool {
    sizes.inputs == 1
        && sizes.window.axes.len() <= 2
        && sizes.window.kernel() > 1
        && sizes.window.axes.iter().all(|a| a.reach() <= MOST_REACH)
}

/// True if a task has no more than one plane.
pub(super) fn has_large_planes(sizes: &Sizes) -> bool {
    sizes.window.grid() > TASK / 2
}

/// Windows that reach farther are not worth their padding.
const MOST_REACH: usize = 1 << 10;

/// Elements of padded rows that fit the second-level cache.
const ROWS: usize = 1 << 15;

/// Results per task where planes are small.
const TASK: usize = 1 << 12;

/// Sums that are made at a time, in registers.
const LANES: usize = 32;

/// How the rows of a plane are laid out.
struct Layout {
    vertical: Axis,
    inner: Axis,
    /// Phases along each axis.
    phases: (usize, usize),
    /// Columns of a phase.
    width: usize,
    /// Rows of a phase.
    height: usize,
    /// Rows of the result per task.
    rows: usize,
    /// Planes per task.
    planes: usize,
    /// Where the plane of each tap begins.
    taps: Vec<usize>,
}

/// Multiplications of taps that are worth a thread.
const WORTH_A_THREAD: usize = 1 << 18;

impl Layout {
    fn of(window: &Window, room: Room) -> Result<Layout> {
        let inner = window.inner();
        let single = Axis { image: 1, grid: 1, kernel: 1, stride: 1, dilation: 1, before: 0 };
        let vertical = window.outer().first().copied().unwrap_or(single);
        let phases = (vertical.stride.min(vertical.reach()), inner.stride.min(inner.reach()));
        let width = inner.grid + (inner.reach() - 1) / inner.stride;
        let more = (vertical.reach() - 1) / vertical.stride;
        let fitting = (ROWS / (phases.0 * phases.1 * width).max(1)).saturating_sub(more);
        let rows = fitting.min(vertical.grid).max(1);
        let height = rows + more;
        let plane = inner.grid * vertical.grid;
        let planes = if rows == vertical.grid { (TASK / plane.max(1)).max(1) } else { 1 };
        let mut taps = room.list(vertical.kernel.saturating_mul(inner.kernel))?;
        for i in (0..vertical.kernel).map(|i| i * vertical.dilation) {
            for k in (0..inner.kernel).map(|k| k * inner.dilation) {
                let phase = i % vertical.stride * phases.1 + k % inner.stride;
                taps.push((phase * height + i / vertical.stride) * width + k / inner.stride);
            }
        }
        Ok(Layout { vertical, inner, phases, width, height, rows, planes, taps })
    }

    /// Elements of the padded rows, and behind them those that are read and not used.
    fn padded(&self) -> usize {
        self.phases.0 * self.phases.1 * self.height * self.width + LANES
    }

    /// Sums for some rows of the result, with those behind that are not used.
    fn sums(&self, rows: usize) -> usize {
        ((rows - 1) * self.width + self.inner.grid).next_multiple_of(LANES)
    }

    /// The rows of the image that `n` rows of the result from `first` on need.
    fn needed_rows(&self, first: usize, n: usize) -> Range<usize> {
        let Axis { image, stride, before, .. } = self.vertical;
        let start = (first * stride).saturating_sub(before).min(image);
        let end = ((first + n - 1) * stride + self.vertical.reach()).saturating_sub(before);
        start..end.clamp(start, image)
    }

    /// Elements of the rows that a task needs, at most.
    fn most_needed_elements(&self) -> usize {
        ((self.rows - 1) * self.vertical.stride + self.vertical.reach()).min(self.vertical.image)
            * self.inner.image
    }

    /// Writes the padded rows that `n` rows of the result from `first` on need. `free` has space for the rows, if
    /// elements are converted.
    fn pad<T: Real>(&self, x: &[T], first: usize, n: usize, free: &mut [T::Wide], to: &mut [T::Wide]) {
        let Axis { stride, before, .. } = self.vertical;
        let rows = self.needed_rows(first, n);
        let x = &x[rows.start * self.inner.image..rows.end * self.inner.image];
        let x = widened_by_task(x, free);
        let needed = n + (self.vertical.reach() - 1) / stride;
        for (i, to) in to.chunks_exact_mut(self.height * self.width).enumerate() {
            let (vertical, horizontal) = (i / self.phases.1, i % self.phases.1);
            for (row, to) in to.chunks_exact_mut(self.width).take(needed).enumerate() {
                let row = ((first + row) * stride + vertical).checked_sub(before);
                match row.filter(|row| rows.contains(row)) {
                    Some(row) => {
                        let row = (row - rows.start) * self.inner.image;
                        self.pad_row(&x[row..row + self.inner.image], horizontal, to);
                    }
                    None => to.fill(T::Wide::zero()),
                }
            }
        }
    }

    /// One phase of a row: element `j` is that at `j · stride + phase - before`.
    fn pad_row<W: Wide>(&self, x: &[W], phase: usize, to: &mut [W]) {
        let Axis { stride, before, .. } = self.inner;
        let first = before.saturating_sub(phase).div_ceil(stride).min(to.len());
        let end = (x.len() + before).saturating_sub(phase).div_ceil(stride).clamp(first, to.len());
        to[..first].fill(W::zero());
        to[end..].fill(W::zero());
        if first == end {
            return;
        }
        let from = &x[first * stride + phase - before..];
        let to = &mut to[first..end];
        if stride == 1 {
            to.copy_from_slice(&from[..to.len()]);
        } else {
            zip_strided(to, from, stride, |y, x| *y = x);
        }
    }
}

/// `to = bias + Σ weight · plane`, for the planes that taps begin. There are whole `LANES` of results.
#[inline(always)]
fn sum_taps<W: Wide>(planes: &[W], taps: &[usize], weights: &[W], bias: W, to: &mut [W]) {
    for (i, to) in to.chunks_exact_mut(LANES).enumerate() {
        let mut sums = [bias; LANES];
        for (tap, &weight) in taps.iter().zip(weights) {
            let from = &planes[tap + i * LANES..][..LANES];
            sums.iter_mut().zip(from).for_each(|(y, &x)| *y = *y + weight * x);
        }
        to.copy_from_slice(&sums);
    }
}

/// A Conv with one input channel per group.
pub(super) struct Depthwise<T> {
    sizes: Sizes,
    layout: Layout,
    element: PhantomData<fn() -> T>,
}

impl<T: Real> Depthwise<T> {
    pub(super) fn new(sizes: Sizes, room: Room) -> Result<Depthwise<T>> {
        Ok(Depthwise { layout: Layout::of(&sizes.window, room)?, sizes, element: PhantomData })
    }

    fn channels(&self) -> usize {
        self.sizes.groups * self.sizes.outputs
    }

    /// Elements of a slot: the weights of a channel, padded rows, and sums. Before the sums are computed, their memory
    /// holds the converted rows.
    fn slot(&self) -> usize {
        let rows = if T::IS_WIDE { 0 } else { self.layout.most_needed_elements() };
        self.layout.taps.len() + self.layout.padded() + rows.max(self.layout.sums(self.layout.rows))
    }
}

impl<T: Real> Parts<T::Wide> for Depthwise<T> {
    fn scratch(&self) -> usize {
        let Depthwise { sizes, layout, .. } = self;
        let planes = sizes.batch.saturating_mul(self.channels());
        let tasks = (planes / layout.planes).saturating_mul(layout.vertical.grid.div_ceil(layout.rows));
        let work = planes.saturating_mul(sizes.window.grid()).saturating_mul(layout.taps.len());
        let slots = tasks.min(work / WORTH_A_THREAD).clamp(1, SLOTS);
        slots.saturating_mul(self.slot()).saturating_mul(size_of::<T::Wide>())
    }

    fn run(
        &self,
        operands: [Option<&[u8]>; OPERANDS],
        scratch: &mut [T::Wide],
        (to, size): (&mut [u8], usize),
        _: Room,
        epilogue: &Epilogue<'_, T::Wide>,
    ) -> Result<()> {
        let Depthwise { sizes, layout, .. } = self;
        let (x, w) = (elements::<T>(operands[0]), elements::<T>(operands[1]));
        let bias = operands[2].map(|bias| elements::<T>(Some(bias)));
        let (image, plane, channels) = (sizes.window.image(), sizes.window.grid(), self.channels());
        let columns = layout.inner.grid;
        if to.is_empty() {
            return Ok(());
        }
        let planes = to.chunks_mut(plane * layout.planes * size).enumerate();
        let tasks = planes.flat_map(|(i, to)| {
            let rows = if layout.planes == 1 { layout.rows * columns } else { plane * layout.planes };
            let parts = to.chunks_mut(rows * size).enumerate();
            parts.map(move |(j, to)| (i * layout.planes, j * layout.rows, to))
        });
        work_through(tasks, scratch, self.slot(), |slot, (first_plane, first_row, to)| {
            let (weights, slot) = slot.split_at_mut(layout.taps.len());
            let (padded, sums) = slot.split_at_mut(layout.padded());
            for (i, to) in to.chunks_mut(plane * size).enumerate() {
                let (batch, channel) = ((first_plane + i) / channels, (first_plane + i) % channels);
                let input = batch * sizes.groups + channel / sizes.outputs;
                T::widen(&w[channel * weights.len()..(channel + 1) * weights.len()], weights);
                let bias = bias.map_or(T::Wide::zero(), |b| b[channel].wide());
                let rows = to.len() / size / columns;
                layout.pad(&x[input * image..(input + 1) * image], first_row, rows, sums, padded);
                let sums = &mut sums[..layout.sums(rows)];
                widest(|| sum_taps(padded, &layout.taps, weights, bias, sums));
                // Rows move together: behind each are sums that are not used.
                for row in 1..rows {
                    let from = row * layout.width;
                    sums.copy_within(from..from + columns, row * columns);
                }
                let first = (first_plane + i) * plane + first_row * columns;
                epilogue(first, &mut sums[..rows * columns], to, padded);
            }
        });
        Ok(())
    }
}
