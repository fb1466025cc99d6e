//! Convolutions with one input channel per group, over one or two spatial axes.
//!
//! Some rows of the input at a time are padded and taken apart into *phases*, the elements whose index is the same
//! modulo the stride. Then each tap of a row of the result is a row of neighbours, and the result is a sum of such rows
//! times weights.

use super::convolution::Sizes;
use super::lanes::{Real, Wide};
use super::window::{Axis, SLOTS, Window, work_through};
use crate::cpu::kernel::Prepared;
use num_traits::Zero;

/// Whether a convolution is computed here.
pub(super) fn fits(sizes: &Sizes) -> bool {
    sizes.inputs == 1
        && sizes.window.axes.len() <= 2
        && sizes.window.kernel() > 1
        && sizes.window.axes.iter().all(|a| a.reach() <= MOST_REACH)
}

/// Windows that reach farther are not worth their padding.
const MOST_REACH: usize = 1 << 10;

/// Elements of padded rows that fit the second-level cache.
const ROWS: usize = 1 << 15;

/// Results per task where planes are small.
const TASK: usize = 1 << 12;

/// How the rows of a plane are laid out.
struct Layout {
    vertical: Axis,
    inner: Axis,
    /// Phases of a row.
    phases: usize,
    /// Elements of a phase.
    phase: usize,
    /// Rows of the result per task, and what they need of the input.
    rows: usize,
    rows_in: usize,
    /// Planes per task.
    planes: usize,
    /// Where the row of neighbours of each tap begins.
    taps: Vec<usize>,
}

impl Layout {
    fn of(window: &Window) -> Layout {
        let inner = window.inner();
        let single = Axis { image: 1, grid: 1, kernel: 1, stride: 1, dilation: 1, before: 0 };
        let vertical = window.outer().first().copied().unwrap_or(single);
        let phases = inner.stride.min(inner.reach());
        let phase = inner.grid + (inner.reach() - 1) / inner.stride;
        let row = phases * phase;
        let fitting = (ROWS / row.max(1)).saturating_sub(vertical.reach()) / vertical.stride + 1;
        let rows = fitting.min(vertical.grid).max(1);
        let rows_in = (rows - 1) * vertical.stride + vertical.reach();
        let plane = inner.grid * vertical.grid;
        let planes = if rows == vertical.grid { (TASK / plane.max(1)).max(1) } else { 1 };
        let mut taps = Vec::with_capacity(vertical.kernel * inner.kernel);
        for i in 0..vertical.kernel {
            taps.extend((0..inner.kernel).map(|k| {
                let at = k * inner.dilation;
                i * vertical.dilation * row + at % inner.stride * phase + at / inner.stride
            }));
        }
        Layout { vertical, inner, phases, phase, rows, rows_in, planes, taps }
    }

    /// Writes the padded rows that the result's rows from `first` on need.
    fn pad<T: Real>(&self, x: &[T], first: usize, n: usize, to: &mut [T::Wide]) {
        let rows_in = (n - 1) * self.vertical.stride + self.vertical.reach();
        for (i, to) in to.chunks_mut(self.phases * self.phase).take(rows_in).enumerate() {
            let row = (first * self.vertical.stride + i).checked_sub(self.vertical.before);
            match row.filter(|&row| row < self.vertical.image) {
                Some(row) => self.pad_row(&x[row * self.inner.image..(row + 1) * self.inner.image], to),
                None => to.fill(T::Wide::zero()),
            }
        }
    }

    fn pad_row<T: Real>(&self, x: &[T], to: &mut [T::Wide]) {
        let Axis { stride, before, .. } = self.inner;
        for (phase, to) in to.chunks_mut(self.phase).enumerate() {
            // Element j is that at j · stride + phase - before.
            let first = before.saturating_sub(phase).div_ceil(stride).min(to.len());
            let end = (x.len() + before).saturating_sub(phase).div_ceil(stride).clamp(first, to.len());
            to[..first].fill(T::Wide::zero());
            to[end..].fill(T::Wide::zero());
            if first == end {
                continue;
            }
            let from = &x[first * stride + phase - before..];
            let to = &mut to[first..end];
            if stride == 1 {
                T::widen(&from[..to.len()], to);
            } else {
                to.iter_mut().zip(from.iter().step_by(stride)).for_each(|(y, &x)| *y = x.wide());
            }
        }
    }
}

/// `to = bias + Σ weight · row`, for the rows that taps begin.
fn sum_taps<W: Wide>(rows: &[W], taps: &[usize], weights: &[W], bias: W, to: &mut [W]) {
    let n = to.len();
    to.fill(bias);
    let row = |tap: usize| &rows[taps[tap]..taps[tap] + n];
    let mut tap = 0;
    while tap + 3 <= taps.len() {
        let (a, b, c) = (row(tap), row(tap + 1), row(tap + 2));
        let (u, v, w) = (weights[tap], weights[tap + 1], weights[tap + 2]);
        for (((y, &a), &b), &c) in to.iter_mut().zip(a).zip(b).zip(c) {
            *y = *y + (u * a + v * b + w * c);
        }
        tap += 3;
    }
    while tap < taps.len() {
        let w = weights[tap];
        to.iter_mut().zip(row(tap)).for_each(|(y, &a)| *y = *y + w * a);
        tap += 1;
    }
}

/// A Conv with one input channel per group.
pub(super) fn conv<T: Real>(sizes: Sizes) -> Prepared {
    let layout = Layout::of(&sizes.window);
    let (image, plane) = (sizes.window.image(), sizes.window.grid());
    let columns = layout.inner.grid;
    let padded = layout.rows_in * layout.phases * layout.phase;
    let channels = sizes.groups * sizes.outputs;
    let slot = padded + columns + layout.taps.len();
    let tasks = (sizes.batch.saturating_mul(channels) / layout.planes)
        .saturating_mul(layout.vertical.grid.div_ceil(layout.rows));
    let slots = tasks.clamp(1, SLOTS);
    Prepared::new(move |io| {
        let (x, w) = (io.slice::<T>(0)?, io.slice::<T>(1)?);
        let bias = if io.has(2) { Some(io.slice::<T>(2)?) } else { None };
        let to = io.out::<T>(0)?;
        if to.is_empty() {
            return Ok(());
        }
        let planes = to.chunks_mut(plane * layout.planes).enumerate();
        let tasks = planes.flat_map(|(i, to)| {
            let rows = if layout.planes == 1 { layout.rows * columns } else { plane * layout.planes };
            to.chunks_mut(rows).enumerate().map(move |(j, to)| (i * layout.planes, j * layout.rows, to))
        });
        work_through(tasks, io.scratch::<T::Wide>(), slot, |slot, (first_plane, first_row, to)| {
            let (padded, slot) = slot.split_at_mut(padded);
            let (room, weights) = slot.split_at_mut(columns);
            for (i, to) in to.chunks_mut(plane).enumerate() {
                let (batch, channel) = ((first_plane + i) / channels, (first_plane + i) % channels);
                let input = batch * sizes.groups + channel / sizes.outputs;
                T::widen(&w[channel * weights.len()..(channel + 1) * weights.len()], weights);
                let bias = bias.map_or(T::Wide::zero(), |b| b[channel].wide());
                layout.pad(&x[input * image..(input + 1) * image], first_row, to.len() / columns, padded);
                let step = layout.vertical.stride * layout.phases * layout.phase;
                for (row, to) in to.chunks_mut(columns).enumerate() {
                    let rows = &padded[row * step..];
                    if let Some(to) = T::as_wide_mut(to) {
                        sum_taps(rows, &layout.taps, weights, bias, to);
                        continue;
                    }
                    sum_taps(rows, &layout.taps, weights, bias, room);
                    T::narrow(room, to);
                }
            }
        });
        Ok(())
    })
    .scratch(slots.saturating_mul(slot).saturating_mul(size_of::<T::Wide>()))
}
