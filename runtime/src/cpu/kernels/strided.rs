//! Copies of strided elements: transposition, slices, repetition.

use super::elements::{Cell, Movement};
use super::parallel::{PIECE, numbered_pieces, pieces};
use crate::kernel::{Dims, Io, Result};
use smallvec::SmallVec;

/// A result whose elements lie in steps in an operand: axis by axis its extent and the step, 0 where elements are
/// repeated. Neighbours of which one continues the other are one axis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Strided {
    dims: Dims,
    steps: SmallVec<[isize; 6]>,
    start: usize,
}

impl Strided {
    /// Element `start` of the operand is the first; axes are given outermost first.
    pub(super) fn new(axes: impl IntoIterator<Item = (usize, isize)>, start: usize) -> Strided {
        let (mut dims, mut steps) = (Dims::new(), SmallVec::<[isize; 6]>::new());
        for (dim, step) in axes {
            if dim == 1 {
                continue;
            }
            let last = dims.len();
            if last > 0 && isize::try_from(dim).is_ok_and(|d| step.checked_mul(d) == Some(steps[last - 1])) {
                dims[last - 1] = dims[last - 1].saturating_mul(dim);
                steps[last - 1] = step;
            } else {
                dims.push(dim);
                steps.push(step);
            }
        }
        if dims.is_empty() {
            dims.push(1);
            steps.push(1);
        }
        Strided { dims, steps, start }
    }

    /// Copies the elements of the result.
    pub(super) fn copy<T: Cell>(&self, from: &[T], to: &mut [T]) {
        if to.is_empty() {
            return;
        }
        let inner = self.dims.len() - 1;
        let lines = self.steps.iter().position(|&s| s == 1).filter(|_| self.steps[inner].unsigned_abs() > 1);
        match lines {
            Some(axis) => self.copy_tiles(axis, from, to),
            None => self.copy_rows(from, to),
        }
    }

    /// Row after row of the result.
    fn copy_rows<T: Cell>(&self, from: &[T], to: &mut [T]) {
        let inner = self.dims.len() - 1;
        pieces(to, PIECE, |at, mut to| {
            let mut column = at % self.dims[inner];
            let mut walk = Odometer::new(&self.dims[..inner], &self.steps[..inner], at / self.dims[inner]);
            while !to.is_empty() {
                let (row, rest) = to.split_at_mut((self.dims[inner] - column).min(to.len()));
                let first =
                    step(self.start, walk.offset).wrapping_add_signed(steps_of(column, self.steps[inner]));
                copy_line(from, first, self.steps[inner], row);
                walk.next();
                (to, column) = (rest, 0);
            }
        });
    }

    /// Tile after tile: along axis `lines` elements follow each other in the operand, along the last in the result.
    fn copy_tiles<T: Cell>(&self, lines: usize, from: &[T], to: &mut [T]) {
        let slab: usize = self.dims[lines..].iter().product();
        let row: usize = self.dims[lines + 1..].iter().product();
        let group = (PIECE / slab).max(1);
        let tile = (64 / size_of::<T>()).max(8);
        let slabs = |at: usize, to: &mut [T]| {
            for (i, to) in to.chunks_mut(slab).enumerate() {
                let outer = Odometer::new(&self.dims[..lines], &self.steps[..lines], at / slab + i);
                let start = step(self.start, outer.offset);
                let least = if slab <= PIECE { usize::MAX } else { 1 };
                numbered_pieces(to, tile * row, least, |i, rows| {
                    self.copy_tile(lines, tile, from, start + i * tile, rows);
                });
            }
        };
        pieces(to, group * slab, slabs);
    }

    /// At most `tile` rows along axis `lines`, of which the first starts at `start`.
    fn copy_tile<T: Cell>(&self, lines: usize, tile: usize, from: &[T], start: usize, rows: &mut [T]) {
        let inner = self.dims.len() - 1;
        let (columns, step_in) = (self.dims[inner], self.steps[inner]);
        let row: usize = self.dims[lines + 1..].iter().product();
        let mut middle = Odometer::new(&self.dims[lines + 1..inner], &self.steps[lines + 1..inner], 0);
        for at in (0..row).step_by(columns) {
            for column in (0..columns).step_by(tile) {
                let width = tile.min(columns - column);
                let first = step(start, middle.offset).wrapping_add_signed(steps_of(column, step_in));
                for (i, line) in rows.chunks_mut(row).enumerate() {
                    copy_line(from, first + i, step_in, &mut line[at + column..at + column + width]);
                }
            }
            middle.next();
        }
    }
}

impl Movement for Strided {
    fn run<T: Cell>(&self, _: &Io<'_>, from: &[&[T]], to: &mut [&mut [T]]) -> Result<()> {
        self.copy(from[0], to[0]);
        Ok(())
    }
}

fn step(at: usize, offset: isize) -> usize {
    at.wrapping_add_signed(offset)
}

fn steps_of(n: usize, step: isize) -> isize {
    step.wrapping_mul(n.cast_signed())
}

fn copy_line<T: Cell>(from: &[T], first: usize, step: isize, to: &mut [T]) {
    match step {
        1 => to.copy_from_slice(&from[first..first + to.len()]),
        0 => to.fill(from[first]),
        _ => {
            let mut at = first;
            for y in to {
                *y = from[at];
                at = at.wrapping_add_signed(step);
            }
        }
    }
}

/// Counts through axes, the last fastest, and knows where in the operand it is.
struct Odometer<'a> {
    dims: &'a [usize],
    steps: &'a [isize],
    at: Dims,
    offset: isize,
}

impl<'a> Odometer<'a> {
    fn new(dims: &'a [usize], steps: &'a [isize], index: usize) -> Odometer<'a> {
        let mut at: Dims = smallvec::smallvec![0; dims.len()];
        let (mut rest, mut offset) = (index, 0isize);
        for axis in (0..dims.len()).rev() {
            at[axis] = rest % dims[axis];
            rest /= dims[axis];
            offset = offset.wrapping_add(steps_of(at[axis], steps[axis]));
        }
        Odometer { dims, steps, at, offset }
    }

    fn next(&mut self) {
        for axis in (0..self.dims.len()).rev() {
            self.at[axis] += 1;
            self.offset = self.offset.wrapping_add(self.steps[axis]);
            if self.at[axis] < self.dims[axis] {
                return;
            }
            self.offset = self.offset.wrapping_sub(steps_of(self.dims[axis], self.steps[axis]));
            self.at[axis] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naive(dims: &[usize], steps: &[isize], start: usize, from: &[u32]) -> Vec<u32> {
        let n: usize = dims.iter().product();
        (0..n).map(|i| from[step(start, Odometer::new(dims, steps, i).offset)]).collect()
    }

    #[test]
    fn axes_that_continue_each_other_are_one() {
        let whole = Strided::new([(2, 12), (3, 4), (1, 7), (4, 1)], 5);
        assert_eq!((whole.dims.as_slice(), whole.steps.as_slice()), (&[24][..], &[1][..]));
        let repeated = Strided::new([(2, 0), (3, 0), (4, 1)], 0);
        assert_eq!((repeated.dims.as_slice(), repeated.steps.as_slice()), (&[6, 4][..], &[0, 1][..]));
        assert_eq!(Strided::new([], 0).dims.as_slice(), [1]);
    }

    #[test]
    fn tiles_and_rows_are_what_single_elements_are() {
        let from: Vec<u32> = (0..300_000).collect();
        let cases: [(&[usize], &[isize], usize); 8] = [
            (&[37, 41], &[1, 37], 0),
            (&[3, 300, 270], &[81_000, 1, 300], 0),
            (&[5, 6, 7], &[1, 35, 5], 2),
            (&[70, 3, 19, 40], &[1, 7 * 1000, 100, 2100], 0),
            (&[40, 50], &[-1, 41], 60),
            (&[30, 20], &[1, -31], 19 * 31),
            (&[9, 4, 5], &[0, 5, 1], 0),
            (&[600, 70], &[100, -3], 500),
        ];
        for (dims, steps, start) in cases {
            let mut to = vec![0; dims.iter().product()];
            Strided::new(dims.iter().copied().zip(steps.iter().copied()), start).copy(&from, &mut to);
            assert_eq!(to, naive(dims, steps, start, &from), "{dims:?} {steps:?}");
        }
    }
}
