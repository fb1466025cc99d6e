//! The geometry of sliding windows, for convolutions and pools.
//!
//! A window is placed on an *image* at every position of a *grid*: position `o` and tap `k` of an axis meet the image
//! at `o · stride + k · dilation - before`. For a convolution or a pool the grid is the result, for a transposed
//! convolution it is the input.

use super::parallel::scratch_pieces;
use crate::kernel::{Dims, KernelError, Result};
use crate::room::{FirstError, Room};
use ampc_ir::views::window::WindowView;
use bytemuck::Pod;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// One spatial axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    /// Extent of the image.
    pub(super) image: usize,
    /// Number of positions.
    pub(super) grid: usize,
    /// Number of taps.
    pub(super) kernel: usize,
    /// Distance between positions.
    pub(super) stride: usize,
    /// Distance between taps.
    pub(super) dilation: usize,
    /// Padding before the image.
    pub(super) before: usize,
}

impl Axis {
    /// The positions at which a tap meets the image.
    pub(super) fn positions(&self, tap: usize) -> Range<usize> {
        let shift = tap * self.dilation;
        let first = self.before.saturating_sub(shift).div_ceil(self.stride);
        let end = (self.image + self.before).saturating_sub(shift).div_ceil(self.stride).min(self.grid);
        first.min(end)..end
    }

    /// The taps that meet the image at a position.
    pub(super) fn taps(&self, position: usize) -> Range<usize> {
        let shift = position * self.stride;
        let first = self.before.saturating_sub(shift).div_ceil(self.dilation);
        let end = (self.image + self.before).saturating_sub(shift).div_ceil(self.dilation).min(self.kernel);
        first.min(end)..end
    }

    /// Where in the image a tap that meets it does so.
    pub(super) fn at(&self, position: usize, tap: usize) -> usize {
        position * self.stride + tap * self.dilation - self.before
    }

    /// The part of the axis between the first and the last element that taps meet at neighbouring positions; empty if the
    /// taps meet only padding.
    pub(super) fn met(&self, positions: &Range<usize>) -> Range<usize> {
        let first = (positions.start * self.stride).saturating_sub(self.before).min(self.image);
        let end = positions.end.saturating_sub(1) * self.stride + self.reach();
        first..end.saturating_sub(self.before).clamp(first, self.image)
    }

    /// Extent of the dilated window.
    pub(super) fn reach(&self) -> usize {
        (self.kernel - 1) * self.dilation + 1
    }
}

/// All spatial axes, the last walked fastest.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) axes: Vec<Axis>,
}

/// Offsets in memory stay below this, sums of a few of them too.
const MOST: u128 = 1 << 60;

impl Window {
    /// The window over an image, at the positions of a grid; `before` is the padding of an axis.
    pub(super) fn new(
        view: &WindowView,
        image: &[usize],
        grid: &[usize],
        before: impl Fn(usize, u64, u64) -> u64,
    ) -> Result<Window> {
        let number =
            |n: u64| usize::try_from(n).map_err(|_| KernelError::value("a window that fits memory", n));
        let axis = |i: usize| {
            Ok(Axis {
                image: image[i],
                grid: grid[i],
                kernel: number(view.kernel[i].known().ok_or(KernelError::NotYet)?)?,
                stride: number(view.strides[i])?,
                dilation: number(view.dilations[i])?,
                before: number(before(i, image[i] as u64, grid[i] as u64))?,
            })
        };
        Window::of((0..image.len()).map(axis).collect::<Result<Vec<_>>>()?)
    }

    /// A window of these axes, which have an element each at least.
    pub(super) fn of(mut axes: Vec<Axis>) -> Result<Window> {
        if axes.is_empty() {
            axes.push(Axis { image: 1, grid: 1, kernel: 1, stride: 1, dilation: 1, before: 0 });
        }
        for a in &axes {
            let sizes = [
                a.image as u128 + a.before as u128,
                (a.grid as u128).saturating_mul(a.stride as u128),
                (a.kernel as u128).saturating_mul(a.dilation as u128),
            ];
            if let Some(size) = sizes.iter().find(|&&size| size >= MOST) {
                return Err(KernelError::value("a window that fits memory", size));
            }
            if a.kernel == 0 {
                return Err(KernelError::value("a window of at least one element", "none"));
            }
        }
        Ok(Window { axes })
    }

    /// The axis that is walked fastest.
    pub(super) fn inner(&self) -> Axis {
        self.axes[self.axes.len() - 1]
    }

    /// All axes but the one that is walked fastest.
    pub(super) fn outer(&self) -> &[Axis] {
        &self.axes[..self.axes.len() - 1]
    }

    /// Elements of the image.
    pub(super) fn image(&self) -> usize {
        self.axes.iter().fold(1, |n: usize, a| n.saturating_mul(a.image))
    }

    /// Positions.
    pub(super) fn grid(&self) -> usize {
        self.axes.iter().fold(1, |n: usize, a| n.saturating_mul(a.grid))
    }

    /// True if a window of one tap meets the elements of the image in order.
    pub(super) fn is_identity(&self) -> bool {
        self.axes.iter().all(|a| a.kernel == 1 && a.stride == 1 && a.before == 0 && a.image == a.grid)
    }

    /// Taps; no more than memory has bytes, for they have weights.
    pub(super) fn kernel(&self) -> usize {
        self.axes.iter().fold(1, |n: usize, a| n.saturating_mul(a.kernel))
    }

    /// All positions of the grid, so many at a time.
    pub(super) fn blocks(&self, positions: usize, room: Room) -> Result<Vec<Block>> {
        let grid = self.grid();
        let parts = (0..grid).step_by(positions.max(1));
        room.try_gathered(parts.map(|at| self.block(at..grid.min(at + positions.max(1)), room)))
    }

    /// The part `positions` of the grid, cut into rows.
    fn block(&self, positions: Range<usize>, room: Room) -> Result<Block> {
        let inner = self.inner();
        let mut rows = room.list(positions.len() / inner.grid.max(1) + 2)?;
        let mut at = positions.start;
        while at < positions.end {
            let column = at % inner.grid;
            let n = (inner.grid - column).min(positions.end - at);
            room.push(&mut rows, (at / inner.grid, column..column + n))?;
            at += n;
        }
        let outer_taps = self.outer().iter().fold(1, |n: usize, a| n.saturating_mul(a.kernel));
        let mut bases = room.list(outer_taps.saturating_mul(rows.len()))?;
        for tap in 0..outer_taps {
            bases.extend(rows.iter().map(|(row, _)| self.row_in_image(*row, tap)));
        }
        let rows = room.gathered(rows.into_iter().map(|(_, columns)| columns))?;
        let mut block = Block { rows, bases, outer_taps, span: 0..0 };
        block.span = block.span(|columns| inner.met(columns));
        Ok(block)
    }

    /// Where the row of the image begins that a row of the grid meets with a tap of the outer axes.
    fn row_in_image(&self, row: usize, tap: usize) -> Option<usize> {
        let (mut row, mut tap, mut base, mut step) = (row, tap, 0, self.inner().image);
        for axis in self.outer().iter().rev() {
            let (position, k) = (row % axis.grid, tap % axis.kernel);
            row /= axis.grid;
            tap /= axis.kernel;
            if !axis.taps(position).contains(&k) {
                return None;
            }
            base += axis.at(position, k) * step;
            step *= axis.image;
        }
        Some(base)
    }

    /// Calls `row` with the beginnings of the rows of the image that a row of the grid meets.
    pub(super) fn rows_of(&self, row: usize, mut each: impl FnMut(usize)) {
        let mut rest = row;
        let mut met: smallvec::SmallVec<[(Range<usize>, usize, usize); 3]> = smallvec::SmallVec::new();
        let mut step = self.inner().image;
        for axis in self.outer().iter().rev() {
            let position = rest % axis.grid;
            rest /= axis.grid;
            let taps = axis.taps(position);
            if taps.is_empty() {
                return;
            }
            met.push((taps.clone(), axis.at(position, taps.start) * step, axis.dilation * step));
            step *= axis.image;
        }
        met.reverse();
        let mut at: Dims = smallvec::smallvec![0; met.len()];
        loop {
            each(met.iter().zip(&at).map(|((_, first, step), &i)| first + i * step).sum());
            let mut axis = met.len();
            loop {
                if axis == 0 {
                    return;
                }
                axis -= 1;
                at[axis] += 1;
                if at[axis] < met[axis].0.len() {
                    break;
                }
                at[axis] = 0;
            }
        }
    }
}

/// Calls `each` with the elements of `to` and every `stride`-th of `from`.
#[inline]
pub(super) fn zip_strided<A: Copy, B>(to: &mut [B], from: &[A], stride: usize, each: impl Fn(&mut B, A)) {
    match stride {
        1 => to.iter_mut().zip(from).for_each(|(y, &x)| each(y, x)),
        // Of whole pairs the compiler makes vectors.
        2 => {
            let (pairs, last) = from.as_chunks::<2>();
            let (most, rest) = to.split_at_mut(pairs.len().min(to.len()));
            most.iter_mut().zip(pairs).for_each(|(y, &[x, _])| each(y, x));
            rest.iter_mut().zip(last).for_each(|(y, &x)| each(y, x));
        }
        _ => to.iter_mut().zip(from.iter().step_by(stride)).for_each(|(y, &x)| each(y, x)),
    }
}

/// A part of a grid.
pub(super) struct Block {
    /// The columns of each of its rows.
    pub(super) rows: Vec<Range<usize>>,
    /// Where the row of the image begins, for each tap of the outer axes and each row; none in the padding.
    bases: Vec<Option<usize>>,
    /// Taps of the outer axes.
    pub(super) outer_taps: usize,
    /// The elements of the image between the first and the last that the block reads.
    pub(super) span: Range<usize>,
}

impl Block {
    /// Positions.
    pub(super) fn positions(&self) -> usize {
        self.rows.iter().map(Range::len).sum()
    }

    /// The elements of the image between the first and the last that the block reads. `row` returns the part of a row that
    /// columns read.
    fn span(&self, row: impl Fn(&Range<usize>) -> Range<usize>) -> Range<usize> {
        let rows = (0..self.outer_taps).flat_map(|tap| self.rows(tap));
        let parts = rows.filter_map(|(columns, base)| Some((base?, row(columns))));
        let parts = parts.map(|(base, met)| base + met.start..base + met.end).filter(|met| !met.is_empty());
        parts.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0)
    }

    /// For each row: its columns, and where the row of the image begins that it meets with a tap of the outer axes.
    pub(super) fn rows(&self, outer_tap: usize) -> impl Iterator<Item = (&Range<usize>, Option<usize>)> {
        let n = self.rows.len();
        self.rows.iter().zip(self.bases[outer_tap * n..(outer_tap + 1) * n].iter().copied())
    }
}

/// Adds a row of columns, one tap of all positions of a block, to an image.
pub(super) fn scatter<A: Copy>(
    window: &Window,
    block: &Block,
    tap: usize,
    row: &[A],
    image: &mut [A],
    add: impl Fn(A, A) -> A,
) {
    let inner = window.inner();
    let k = tap % inner.kernel;
    let met = inner.positions(k);
    let mut at = 0;
    for (columns, base) in block.rows(tap / inner.kernel) {
        let n = columns.len();
        let from = &row[at..at + n];
        at += n;
        let first = met.start.clamp(columns.start, columns.end);
        let end = met.end.clamp(first, columns.end);
        let Some(base) = base.filter(|_| first < end) else { continue };
        let from = &from[first - columns.start..end - columns.start];
        let to = &mut image[base + inner.at(first, k)..base + inner.at(end - 1, k) + 1];
        if inner.stride == 1 {
            to.iter_mut().zip(from).for_each(|(y, &x)| *y = add(*y, x));
        } else {
            to.iter_mut().step_by(inner.stride).zip(from).for_each(|(y, &x)| *y = add(*y, x));
        }
    }
}

/// So many pieces of scratch memory there are at most, and so many threads work on one node.
pub(super) const SLOTS: usize = 16;

/// Calls `work` with every task and a piece of the scratch memory, in parallel. The result of a task must not
/// depend on the content of the scratch memory.
pub(super) fn work_through<W: Pod, T: Send>(
    tasks: impl Iterator<Item = T> + Send,
    scratch: &mut [W],
    slot: usize,
    work: impl Fn(&mut [W], T) + Send + Sync,
) {
    let n_slots = tasks.size_hint().1.map_or(SLOTS, |n_tasks| n_tasks.min(SLOTS));
    let tasks = Mutex::new(tasks);
    let next = || tasks.lock().unwrap_or_else(PoisonError::into_inner).next();
    let len = scratch.len().min(n_slots * slot);
    debug_assert!(n_slots * slot == 0 || len >= slot, "a task has no scratch memory");
    scratch_pieces(&mut scratch[..len], slot, n_slots, &|slot| {
        while let Some(task) = next() {
            work(slot, task);
        }
    });
}

/// As [`work_through`], of work that may fail: then the rest is left.
pub(super) fn try_work_through<W: Pod, T: Send>(
    tasks: impl Iterator<Item = T> + Send,
    scratch: &mut [W],
    slot: usize,
    work: impl Fn(&mut [W], T) -> Result<()> + Send + Sync,
) -> Result<()> {
    let failed = FirstError::default();
    work_through(tasks.enumerate(), scratch, slot, |slot, (i, task)| {
        if !failed.is_before(i) {
            failed.note(i, work(slot, task));
        }
    });
    failed.result()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_and_taps_that_meet_the_image() {
        for (image, grid, kernel, stride, dilation, before) in [
            (5, 3, 3, 2, 1, 1),
            (4, 6, 2, 1, 3, 3),
            (3, 4, 5, 1, 1, 3),
            (1, 3, 3, 3, 2, 4),
            (7, 2, 1, 5, 1, 0),
        ] {
            let axis = Axis { image, grid, kernel, stride, dilation, before };
            for tap in 0..kernel {
                for position in 0..grid {
                    let at = position * stride + tap * dilation;
                    let meets = (before..before + image).contains(&at);
                    assert_eq!(axis.positions(tap).contains(&position), meets, "{axis:?} {position} {tap}");
                    assert_eq!(axis.taps(position).contains(&tap), meets, "{axis:?} {position} {tap}");
                }
            }
        }
    }

    #[test]
    fn every_so_many_elements() {
        for stride in 1..5 {
            for n in 1..9 {
                let from: Vec<usize> = (0..(n - 1) * stride + 1).collect();
                let mut to = vec![0; n];
                zip_strided(&mut to, &from, stride, |y, x| *y = x);
                assert!(to.iter().enumerate().all(|(i, &x)| x == i * stride), "{n} by {stride}: {to:?}");
            }
        }
    }
}
