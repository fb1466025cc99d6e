//! NumPy broadcasting: how two operands are walked along a result.

use super::lanes::{BLOCK, Real};
use super::parallel::{PIECE, pieces};
use crate::kernel::Dims;
use bytemuck::Pod;
use smallvec::SmallVec;

/// A result and the operands that are broadcast to it, axes that all walk alike joined into one.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    /// Extents of the result, the last walked fastest; never empty.
    pub(crate) dims: Dims,
    /// For each operand and axis the step, 0 where it is broadcast.
    pub(crate) strides: Vec<Dims>,
}

impl Walk {
    /// The walk of a result of `dims` over operands of these dims, each of which broadcasts to it.
    pub(crate) fn new(dims: &[usize], operands: &[&[usize]]) -> Walk {
        let strides: Vec<Dims> = operands
            .iter()
            .map(|operand| {
                let missing = dims.len() - operand.len();
                let mut step = 1;
                let mut strides: Dims = smallvec::smallvec![0; dims.len()];
                for axis in (0..operand.len()).rev() {
                    strides[missing + axis] = if operand[axis] == 1 { 0 } else { step };
                    step *= operand[axis];
                }
                strides
            })
            .collect();
        Walk::of_steps(dims, &strides)
    }

    /// The walk of a result of `dims` over operands with these steps along its axes.
    pub(crate) fn of_steps(dims: &[usize], steps: &[Dims]) -> Walk {
        // Axes of one element are not walked, and neighbours of which one continues the other are one.
        let mut joined = Dims::new();
        let mut kept: Vec<Dims> = vec![Dims::new(); steps.len()];
        for axis in 0..dims.len() {
            if dims[axis] == 1 {
                continue;
            }
            let last = joined.len();
            let continues =
                last > 0 && steps.iter().zip(&kept).all(|(s, k)| k[last - 1] == s[axis] * dims[axis]);
            if continues {
                joined[last - 1] *= dims[axis];
                kept.iter_mut().zip(steps).for_each(|(k, s)| k[last - 1] = s[axis]);
            } else {
                joined.push(dims[axis]);
                kept.iter_mut().zip(steps).for_each(|(k, s)| k.push(s[axis]));
            }
        }
        if joined.is_empty() {
            joined.push(1);
            kept.iter_mut().for_each(|k| k.push(0));
        }
        Walk { dims: joined, strides: kept }
    }

    /// Elements of the result.
    pub(crate) fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// Where in each operand element `i` of the result comes from.
    pub(crate) fn at(&self, i: usize) -> SmallVec<[usize; 4]> {
        let mut found = SmallVec::new();
        self.rows(i, i + 1, |_, _, from| found = from.into());
        found
    }

    /// True if operand `i` is walked element by element along the whole result.
    pub(crate) fn is_whole(&self, i: usize) -> bool {
        self.dims.len() == 1 && (self.strides[i][0] == 1 || self.dims[0] == 1)
    }

    /// Calls `row` for the parts of rows that elements `start..end` of the result lie in: first element, number of
    /// elements, and for each operand the index of its first element. Steps along a row are `row_stride`.
    pub(crate) fn rows(&self, start: usize, end: usize, mut row: impl FnMut(usize, usize, &[usize])) {
        self.each_row(start, end, &mut row);
    }

    fn each_row(&self, start: usize, end: usize, row: &mut dyn FnMut(usize, usize, &[usize])) {
        if start >= end {
            return;
        }
        let last = self.dims.len() - 1;
        let inner = self.dims[last];
        let mut offsets: SmallVec<[usize; 4]> = smallvec::smallvec![0; self.strides.len()];
        let (mut at, mut number, mut column) = (start, start / inner, start % inner);
        while at < end {
            let n = (inner - column).min(end - at);
            for (offset, strides) in offsets.iter_mut().zip(&self.strides) {
                *offset = column * strides[last];
                let mut rest = number;
                for axis in (1..last).rev() {
                    *offset += rest % self.dims[axis] * strides[axis];
                    rest /= self.dims[axis];
                }
                if last > 0 {
                    *offset += rest * strides[0];
                }
            }
            row(at, n, &offsets);
            (at, number, column) = (at + n, number + 1, 0);
        }
    }

    /// The step of operand `i` along a row.
    pub(crate) fn row_stride(&self, i: usize) -> usize {
        self.strides[i][self.dims.len() - 1]
    }
}

/// `to = f(a, b)` elementwise with broadcasting, for elements that are computed with as they are.
pub(crate) fn zip<A: Copy + Sync, B: Copy + Sync, T: Pod>(
    walk: &Walk,
    a: &[A],
    b: &[B],
    to: &mut [T],
    f: impl Fn(A, B) -> T + Send + Sync,
) {
    let (sa, sb) = (walk.row_stride(0), walk.row_stride(1));
    pieces(to, PIECE, |start, to| {
        walk.rows(start, start + to.len(), |at, n, from| {
            let to = &mut to[at - start..at - start + n];
            match (sa, sb) {
                (1, 1) => {
                    let (a, b) = (&a[from[0]..from[0] + n], &b[from[1]..from[1] + n]);
                    to.iter_mut().zip(a).zip(b).for_each(|((y, &a), &b)| *y = f(a, b));
                }
                (1, 0) => {
                    let (a, b) = (&a[from[0]..from[0] + n], b[from[1]]);
                    to.iter_mut().zip(a).for_each(|(y, &a)| *y = f(a, b));
                }
                (0, 1) => {
                    let (a, b) = (a[from[0]], &b[from[1]..from[1] + n]);
                    to.iter_mut().zip(b).for_each(|(y, &b)| *y = f(a, b));
                }
                _ => {
                    for (i, y) in to.iter_mut().enumerate() {
                        *y = f(a[from[0] + i * sa], b[from[1] + i * sb]);
                    }
                }
            }
        });
    });
}

/// `to = f(to, b)` elementwise; `b` is broadcast along `to`.
pub(crate) fn zip_in_place<T: Pod + Send + Sync>(
    walk: &Walk,
    other: usize,
    b: &[T],
    to: &mut [T],
    f: impl Fn(T, T) -> T + Send + Sync,
) {
    let step = walk.row_stride(other);
    pieces(to, PIECE, |start, to| {
        walk.rows(start, start + to.len(), |at, n, from| {
            let to = &mut to[at - start..at - start + n];
            let from = from[other];
            match step {
                1 => to.iter_mut().zip(&b[from..from + n]).for_each(|(y, &b)| *y = f(*y, b)),
                0 => to.iter_mut().for_each(|y| *y = f(*y, b[from])),
                _ => to.iter_mut().enumerate().for_each(|(i, y)| *y = f(*y, b[from + i * step])),
            }
        });
    });
}

/// `n` elements from `from` on, `step` apart, widened.
pub(crate) fn gather<T: Real>(from: &[T], at: usize, step: usize, to: &mut [T::Wide]) {
    match step {
        1 => T::widen(&from[at..at + to.len()], to),
        0 => to.fill(from[at].wide()),
        _ => to.iter_mut().enumerate().for_each(|(i, y)| *y = from[at + i * step].wide()),
    }
}

/// A function of the elements of two operands; all three slices have the same length.
pub(crate) type OfTwo<'f, A, B, T> = dyn Fn(&[A], &[B], &mut [T]) + Sync + 'f;

/// The function of two slices that computes `f` of every two elements.
pub(crate) fn pairs<A: Copy, B: Copy, T>(
    f: impl Fn(A, B) -> T + Sync,
) -> impl Fn(&[A], &[B], &mut [T]) + Sync {
    move |a, b, to| to.iter_mut().zip(a).zip(b).for_each(|((y, &a), &b)| *y = f(a, b))
}

/// Elements that a function of two operands gets at a time.
const PART: usize = 256;

/// `to = f(a, b)` with broadcasting, a few elements at a time: the walk is compiled once for element types, and not for
/// every function. An operand is its number in the walk and its elements; `None` stands for the content of `to`, which has
/// elements of the same size.
pub(crate) fn zip_parts<A: Pod + Sync, B: Pod + Sync, T: Pod>(
    walk: &Walk,
    (i, a): (usize, Option<&[A]>),
    (j, b): (usize, Option<&[B]>),
    to: &mut [T],
    f: &OfTwo<'_, A, B, T>,
) {
    let (step_a, step_b) = (walk.row_stride(i), walk.row_stride(j));
    pieces(to, PIECE, |start, to| {
        let (mut x, mut y) = ([A::zeroed(); PART], [B::zeroed(); PART]);
        walk.rows(start, start + to.len(), |at, n, from| {
            let to = &mut to[at - start..at - start + n];
            for (number, to) in to.chunks_mut(PART).enumerate() {
                let done = number * PART;
                let x = part(a, (from[i] + done * step_a, step_a), number, to, &mut x);
                let y = part(b, (from[j] + done * step_b, step_b), number, to, &mut y);
                f(x, y, to);
            }
        });
    });
}

/// The elements of an operand for a part of a row, by its number: where they are, or in `room`.
fn part<'a, A: Pod, T: Pod>(
    operand: Option<&'a [A]>,
    (at, step): (usize, usize),
    number: usize,
    to: &[T],
    room: &'a mut [A; PART],
) -> &'a [A] {
    let n = to.len();
    let room = &mut room[..n];
    match (operand, step) {
        (None, _) => room.copy_from_slice(bytemuck::cast_slice(to)),
        (Some(from), 1) => return &from[at..at + n],
        // The first part of a row is the longest: later ones find the element there.
        (Some(_), 0) if number > 0 => {}
        (Some(from), 0) => room.fill(from[at]),
        (Some(from), _) => room.iter_mut().enumerate().for_each(|(j, y)| *y = from[at + j * step]),
    }
    room
}

/// `to = f(a, b)` with broadcasting, computed wide and rounded once. `None` stands for the content of `to`.
pub(crate) fn zip_real<T: Real>(
    walk: &Walk,
    a: Option<&[T]>,
    b: Option<&[T]>,
    to: &mut [T],
    f: &OfTwo<'_, T::Wide, T::Wide, T::Wide>,
) {
    if let Some(to) = T::as_wide_mut(to) {
        return zip_parts(walk, (0, a.and_then(T::as_wide)), (1, b.and_then(T::as_wide)), to, f);
    }
    let (sa, sb) = (walk.row_stride(0), walk.row_stride(1));
    pieces(to, PIECE, |start, to| {
        let zero = <T::Wide as num_traits::Zero>::zero();
        let (mut x, mut y, mut made) = ([zero; BLOCK], [zero; BLOCK], [zero; BLOCK]);
        walk.rows(start, start + to.len(), |at, n, from| {
            let to = &mut to[at - start..at - start + n];
            for (i, to) in to.chunks_mut(BLOCK).enumerate() {
                let (x, y, made) = (&mut x[..to.len()], &mut y[..to.len()], &mut made[..to.len()]);
                match a {
                    Some(a) => gather(a, from[0] + i * BLOCK * sa, sa, x),
                    None => T::widen(to, x),
                }
                match b {
                    Some(b) => gather(b, from[1] + i * BLOCK * sb, sb, y),
                    None => T::widen(to, y),
                }
                f(x, y, made);
                T::narrow(made, to);
            }
        });
    });
}

/// `to = last(f(…f(f(a, b), c)…))` elementwise with broadcasting, computed wide and rounded once. There is at least one
/// operand.
pub(crate) fn fold_real<T: Real>(
    walk: &Walk,
    operands: &[&[T]],
    to: &mut [T],
    f: impl Fn(T::Wide, T::Wide) -> T::Wide + Send + Sync,
    last: impl Fn(T::Wide) -> T::Wide + Send + Sync,
) {
    pieces(to, PIECE, |start, to| {
        let zero = <T::Wide as num_traits::Zero>::zero();
        let (mut sum, mut term) = ([zero; BLOCK], [zero; BLOCK]);
        walk.rows(start, start + to.len(), |at, n, from| {
            let to = &mut to[at - start..at - start + n];
            for (block, to) in to.chunks_mut(BLOCK).enumerate() {
                let (sum, term) = (&mut sum[..to.len()], &mut term[..to.len()]);
                for (i, operand) in operands.iter().enumerate() {
                    let step = walk.row_stride(i);
                    let into = if i == 0 { &mut *sum } else { &mut *term };
                    gather(operand, from[i] + block * BLOCK * step, step, into);
                    if i > 0 {
                        sum.iter_mut().zip(&*term).for_each(|(a, &b)| *a = f(*a, b));
                    }
                }
                sum.iter_mut().for_each(|a| *a = last(*a));
                T::narrow(sum, to);
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_that_walk_alike_are_one() {
        let walk = Walk::new(&[2, 3, 4], &[&[2, 3, 4], &[3, 4]]);
        assert_eq!((walk.dims.as_slice(), walk.strides[1].as_slice()), (&[2, 12][..], &[0, 1][..]));
        let walk = Walk::new(&[2, 3, 4], &[&[2, 3, 4], &[]]);
        assert!(walk.dims.as_slice() == [24] && walk.is_whole(0) && !walk.is_whole(1));
        let walk = Walk::new(&[], &[&[], &[]]);
        assert_eq!((walk.dims.as_slice(), walk.len()), (&[1][..], 1));
        assert_eq!(Walk::new(&[2, 3], &[&[3], &[2, 1]]).at(4)[..], [1, 1]);
    }

    /// Every range of a result of three axes, next to the operand broadcast by hand.
    #[test]
    fn rows_of_any_range() {
        Walk::new(&[2, 0], &[&[2, 1]]).rows(0, 0, |_, _, _| panic!("there are no rows"));
        let (dims, operand) = ([2usize, 3, 4, 2], [2usize, 1, 4, 1]);
        let walk = Walk::new(&dims, &[&operand, &dims]);
        let n: usize = dims.iter().product();
        let of = |i: usize| i / 24 * 4 + i / 2 % 4;
        for start in 0..=n {
            for end in start..=n {
                let mut at = start;
                walk.rows(start, end, |first, count, from| {
                    assert_eq!((first, from[1]), (at, at));
                    for j in 0..count {
                        assert_eq!(from[0] + j * walk.row_stride(0), of(at + j), "{start}..{end}");
                    }
                    at += count;
                });
                assert_eq!(at, end);
            }
        }
    }

    #[test]
    fn all_ways_to_walk() {
        let (a, b) = ([1, 2, 3], [10, 20]);
        let mut to = [0; 6];
        zip(&Walk::new(&[2, 3], &[&[3], &[2, 1]]), &a, &b, &mut to, |a, b| a + b);
        assert_eq!(to, [11, 12, 13, 21, 22, 23]);
        zip_in_place(&Walk::new(&[2, 3], &[&[2, 3], &[3]]), 1, &a, &mut to, |y, a| y * a);
        assert_eq!(to, [11, 24, 39, 21, 44, 69]);
    }

    /// Rows longer than a part, of elements that follow each other, are one, are far apart, or are in place.
    #[test]
    fn parts_of_rows_have_the_elements_of_their_operands() {
        let (rows, columns) = (3, 2 * PART + 7);
        let number = |i: usize| i64::try_from(i).unwrap();
        let whole: Vec<i64> = (0..rows * columns).map(number).collect();
        let (row, column) = (&whole[..columns], &whole[1..1 + rows]);
        let turned = Walk::of_steps(
            &[rows, columns],
            &[Dims::from_slice(&[columns, 1]), Dims::from_slice(&[1, rows])],
        );
        let minus = pairs(|a: i64, b: i64| 1000 * a - b);
        for in_place in [false, true] {
            let a = (!in_place).then_some(&whole[..]);
            let of = |walk: &Walk, b: &[i64]| {
                let mut to = if in_place { whole.clone() } else { vec![0; whole.len()] };
                zip_parts(walk, (0, a), (1, Some(b)), &mut to, &minus);
                to
            };
            let want = |b: &dyn Fn(usize, usize) -> i64| -> Vec<i64> {
                let element = |i: usize| 1000 * number(i) - b(i / columns, i % columns);
                (0..rows * columns).map(element).collect()
            };
            let walk = |b: &[usize]| Walk::new(&[rows, columns], &[&[rows, columns], b]);
            assert_eq!(of(&walk(&[columns]), row), want(&|_, j| number(j)));
            assert_eq!(of(&walk(&[rows, 1]), column), want(&|i, _| number(i + 1)));
            assert_eq!(of(&walk(&[]), &[5]), want(&|_, _| 5));
            assert_eq!(of(&turned, &whole), want(&|i, j| number(i + j * rows)));
        }
    }
}
