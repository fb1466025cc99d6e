//! Folds of a tensor along axes: sums, products, extremes.
//!
//! The elements are halved recursively down to blocks, so that errors of sums grow with the logarithm of their
//! length, and the order depends on the dims alone.

mod load;
mod number;

pub(crate) use self::load::Load;
pub(crate) use self::number::Number;

use super::broadcast::Walk;
use super::functions::exp;
use super::lanes::{BLOCK, Real, Wide};
use super::parallel::{self, PIECE, pieces};
use super::vector::widest;
use crate::host::{Element, TensorRef};
use crate::kernel::{Dims, Io, KernelError, Out, Result};
use ampc_ir::DType;
use bytemuck::Pod;
use half::{bf16, f16};
use num_traits::Float;
use std::ops::Range;

/// Operation of a fold.
pub(crate) trait Fold<A>: Copy + Send + Sync {
    /// The result for no elements.
    fn start(self) -> A;
    /// The result for one element, relative to `shift`.
    fn term(self, x: A, shift: A) -> A;
    /// Joins the results of two parts.
    fn join(self, a: A, b: A) -> A;
}

macro_rules! sums {
    ($($(#[$doc:meta])* $name:ident<$A:ident: $bound:path> = |$x:ident, $shift:pat_param| $term:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl<$A: $bound + Number> Fold<$A> for $name {
            fn start(self) -> $A {
                $A::default()
            }
            #[inline]
            fn term(self, $x: $A, $shift: $A) -> $A {
                $term
            }
            #[inline]
            fn join(self, a: $A, b: $A) -> $A {
                a.plus(b)
            }
        }
    )*};
}

sums! {
    /// Σ x
    Sum<A: Number> = |x, _| x;
    /// Σ |x|
    SumOfMagnitudes<A: Number> = |x, _| x.magnitude();
    /// Σ (x - shift)
    SumOfDistances<A: Number> = |x, shift| x.minus(shift);
    /// Σ (x - shift)²
    SumOfSquares<A: Number> = |x, shift| {
        let d = x.minus(shift);
        d.times(d)
    };
    /// Σ exp(x - shift)
    SumOfExps<A: Wide> = |x, shift| exp(x - shift);
    /// Σ exp(x - shift) of all that are not the shift, with digits that are lost beside those: each has 1.
    SumOfOtherExps<A: Wide> = |x, shift| if x == shift { A::zero() } else { exp(x - shift) };
    /// How many are the shift.
    Count<A: Number> = |x, shift| if x == shift { A::ONE } else { A::default() };
}

/// Π x
#[derive(Clone, Copy)]
pub(crate) struct Product;

impl<A: Number> Fold<A> for Product {
    fn start(self) -> A {
        A::ONE
    }
    #[inline]
    fn term(self, x: A, _: A) -> A {
        x
    }
    #[inline]
    fn join(self, a: A, b: A) -> A {
        a.times(b)
    }
}

/// The greatest element, or NaN if there is one; an empty fold keeps the initial value.
#[derive(Clone, Copy)]
pub(crate) struct Greatest<A>(pub(crate) A);

impl<A: Number> Fold<A> for Greatest<A> {
    fn start(self) -> A {
        self.0
    }
    #[inline]
    fn term(self, x: A, _: A) -> A {
        x
    }
    #[inline]
    fn join(self, a: A, b: A) -> A {
        if a >= b || a.is_no_number() { a } else { b }
    }
}

/// The least element, or NaN if there is one; an empty fold keeps the initial value.
#[derive(Clone, Copy)]
pub(crate) struct Least<A>(pub(crate) A);

impl<A: Number> Fold<A> for Least<A> {
    fn start(self) -> A {
        self.0
    }
    #[inline]
    fn term(self, x: A, _: A) -> A {
        x
    }
    #[inline]
    fn join(self, a: A, b: A) -> A {
        if a <= b || a.is_no_number() { a } else { b }
    }
}

/// The greatest of floats.
pub(crate) fn greatest<A: Float>() -> Greatest<A> {
    Greatest(A::neg_infinity())
}

/// Partial results that one block has.
const LANES: usize = 16;

/// Elements that are widened at a time.
const SPAN: usize = 8 * LANES;

/// Neighbouring results that are folded at once where elements of different results are neighbours.
const TILE: usize = 64;

/// Rows that are folded one after the other.
const ROWS: usize = 32;

/// Joins the results of the leaves of a range, halves first. A leaf is as long as `most`, or is the rest of a half; the
/// halves are computed in parallel if they have many elements, `weight` for each number of the range. The range `0..10`
/// with leaves of 4 is `join(leaf(0..8), leaf(8..10))`, where `leaf(0..8)` is `join(leaf(0..4), leaf(4..8))`.
pub(crate) fn halved<R: Send>(
    range: Range<usize>,
    (most, weight): (usize, usize),
    leaf: &(dyn Fn(Range<usize>) -> R + Sync),
    join: &(dyn Fn(R, R) -> R + Sync),
) -> R {
    let n = range.len();
    if n <= most {
        return leaf(range);
    }
    let middle = range.start + (n / 2).next_multiple_of(most);
    let half = |range| halved(range, (most, weight), leaf, join);
    if n * weight <= 2 * PIECE {
        let left = half(range.start..middle);
        return join(left, half(middle..range.end));
    }
    let (mut left, mut right) = (None, None);
    parallel::both(&mut || left = Some(half(range.start..middle)), &mut || {
        right = Some(half(middle..range.end))
    });
    let (left, right) = left.zip(right).expect("both halves are computed");
    join(left, right)
}

/// Folds neighbouring elements.
pub(crate) fn fold_run<T: Load<A>, A: Number, F: Fold<A>>(fold: F, from: &[T], shift: A) -> A {
    if from.len() <= BLOCK {
        return fold_block(fold, from, shift);
    }
    let leaf = |range: Range<usize>| fold_block(fold, &from[range], shift);
    halved(0..from.len(), (BLOCK, 1), &leaf, &|a, b| fold.join(a, b))
}

/// Folds at most [`BLOCK`] neighbouring elements.
fn fold_block<T: Load<A>, A: Number, F: Fold<A>>(fold: F, from: &[T], shift: A) -> A {
    let mut lanes = [fold.start(); LANES];
    if let Some(from) = T::same(from) {
        widest(|| fold_lanes(fold, from, shift, &mut lanes));
    } else {
        let mut span = [A::default(); SPAN];
        for from in from.chunks(SPAN) {
            let span = &mut span[..from.len()];
            T::load(from, span);
            widest(|| fold_lanes(fold, span, shift, &mut lanes));
        }
    }
    let mut n = LANES;
    while n > 1 {
        n /= 2;
        for i in 0..n {
            lanes[i] = fold.join(lanes[i], lanes[i + n]);
        }
    }
    lanes[0]
}

#[inline(always)]
fn fold_lanes<A: Number, F: Fold<A>>(fold: F, from: &[A], shift: A, lanes: &mut [A; LANES]) {
    let (chunks, rest) = from.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = fold.join(*lane, fold.term(x, shift));
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = fold.join(*lane, fold.term(x, shift));
    }
}

/// How a tensor is folded along some of its axes.
#[derive(Clone, Debug)]
pub(crate) struct Folding {
    /// Where the elements of each result begin.
    kept: Walk,
    /// Where the runs, or the rows, of one result are from there.
    gone: Walk,
    /// Neighbouring elements of one result.
    run: usize,
    /// True if neighbouring elements are of different results.
    rows: bool,
    /// Elements of each result.
    pub(crate) count: usize,
    /// Results.
    pub(crate) results: usize,
}

impl Folding {
    /// A tensor of `dims` folded along the axes that `is_gone` says.
    pub(crate) fn new(dims: &[usize], is_gone: impl Fn(usize) -> bool) -> Folding {
        let (mut kept, mut gone) = (Axes::default(), Axes::default());
        let mut run = 1;
        let mut rows = false;
        let mut step = 1;
        let mut innermost = true;
        for axis in (0..dims.len()).rev().filter(|&axis| dims[axis] != 1) {
            let gone_here = is_gone(axis);
            if gone_here && run == step {
                run *= dims[axis];
            } else if gone_here {
                gone.add(dims[axis], step);
            } else {
                kept.add(dims[axis], step);
                rows |= innermost;
            }
            innermost = false;
            step *= dims[axis];
        }
        let (kept, gone) = (kept.walk(), gone.walk());
        Folding { results: kept.len(), count: gone.len() * run, kept, gone, run, rows }
    }

    /// Writes what the elements of each result are folded to, after `finish` of it and of the result's shift.
    pub(crate) fn fold<T: Load<A>, A: Number, F: Fold<A>, U: Pod>(
        &self,
        fold: F,
        from: &[T],
        shifts: Option<&[A]>,
        to: &mut [U],
        finish: &(dyn Fn(A, A) -> U + Sync),
    ) {
        let shift = |i: usize| shifts.map_or_else(A::default, |s| s[i]);
        if self.count == 0 {
            to.iter_mut().enumerate().for_each(|(i, y)| *y = finish(fold.start(), shift(i)));
            return;
        }
        let piece = (PIECE / self.count).max(1);
        let piece = if self.rows { piece.next_multiple_of(TILE) } else { piece };
        let step = self.kept.row_stride(0);
        pieces(to, piece, |start, to| {
            self.kept.rows(start, start + to.len(), |at, n, begin| {
                let to = &mut to[at - start..at - start + n];
                if !self.rows {
                    for (i, y) in to.iter_mut().enumerate() {
                        let shift = shift(at + i);
                        let begin = begin[0] + i * step;
                        *y = finish(self.fold_runs(fold, &from[begin..], shift), shift);
                    }
                    return;
                }
                for (i, to) in to.chunks_mut(TILE).enumerate() {
                    let mut tile = [A::default(); TILE];
                    for (j, tile) in tile[..to.len()].iter_mut().enumerate() {
                        *tile = shift(at + i * TILE + j);
                    }
                    let from = &from[begin[0] + i * TILE..];
                    let folded = self.fold_rows(fold, from, to.len(), &tile);
                    for ((y, x), shift) in to.iter_mut().zip(folded).zip(tile) {
                        *y = finish(x, shift);
                    }
                }
            });
        });
    }

    /// Folds the elements of one result.
    fn fold_runs<T: Load<A>, A: Number, F: Fold<A>>(&self, fold: F, from: &[T], shift: A) -> A {
        let step = self.gone.row_stride(0);
        let leaf = |runs: Range<usize>| {
            let mut folded = fold.start();
            self.gone.rows(runs.start, runs.end, |_, n, begin| {
                for at in (0..n).map(|i| begin[0] + i * step) {
                    folded = fold.join(folded, fold_run(fold, &from[at..at + self.run], shift));
                }
            });
            folded
        };
        halved(0..self.gone.len(), (LANES, self.run), &leaf, &|a, b| fold.join(a, b))
    }

    /// Folds the elements of `width` neighbouring results.
    fn fold_rows<T: Load<A>, A: Number, F: Fold<A>>(
        &self,
        fold: F,
        from: &[T],
        width: usize,
        shifts: &[A; TILE],
    ) -> [A; TILE] {
        let step = self.gone.row_stride(0);
        let leaf = |rows: Range<usize>| {
            let mut folded = [fold.start(); TILE];
            let mut row = [A::default(); TILE];
            self.gone.rows(rows.start, rows.end, |_, n, begin| {
                for at in (0..n).map(|i| begin[0] + i * step) {
                    let from = &from[at..at + width];
                    let from = T::same(from).unwrap_or_else(|| {
                        T::load(from, &mut row[..width]);
                        &row[..width]
                    });
                    for ((y, &x), &shift) in folded.iter_mut().zip(from).zip(shifts) {
                        *y = fold.join(*y, fold.term(x, shift));
                    }
                }
            });
            folded
        };
        halved(0..self.gone.len(), (ROWS, width), &leaf, &|mut left, right| {
            left.iter_mut().zip(right).take(width).for_each(|(a, b)| *a = fold.join(*a, b));
            left
        })
    }
}

/// Axes from the last to the first.
#[derive(Default)]
struct Axes {
    dims: Dims,
    steps: Dims,
}

impl Axes {
    fn add(&mut self, dim: usize, step: usize) {
        self.dims.push(dim);
        self.steps.push(step);
    }

    fn walk(mut self) -> Walk {
        self.dims.reverse();
        self.steps.reverse();
        Walk::of_steps(&self.dims, &[self.steps])
    }
}

/// The most elements of a row that is widened as a whole, where a kernel reads the row several times.
pub(crate) const ROW: usize = 1024;

/// Elements that are widened at a time where all are computed with one by one.
pub(crate) const CHUNK: usize = 256;

/// Lets `work` change elements a few at a time, as `A`s and with the index of the first; they are those of `from`, or
/// what `to` holds if there is none.
pub(crate) fn transform<S: Load<A>, T: Load<A>, A: Number>(
    from: Option<&[S]>,
    to: &mut [T],
    mut work: impl FnMut(usize, &mut [A]),
) {
    let mut room = [A::default(); CHUNK];
    for (i, to) in to.chunks_mut(CHUNK).enumerate() {
        let at = i * CHUNK;
        let from = from.map(|from| &from[at..at + to.len()]);
        if let Some(to) = T::same_mut(to) {
            if let Some(from) = from {
                S::load(from, to);
            }
            work(at, to);
            continue;
        }
        let room = &mut room[..to.len()];
        match from {
            Some(from) => S::load(from, room),
            None => T::load(to, room),
        }
        work(at, room);
        T::store(room, to);
    }
}

/// `to = f(from, others)` elementwise, where the others are broadcast alike as operand 0 of `walk`; without `from` it is
/// what `to` holds.
pub(crate) fn spread<T: Load<A>, A: Number, const N: usize>(
    walk: &Walk,
    from: Option<&[T]>,
    others: [&[A]; N],
    to: &mut [T],
    f: impl Fn(A, [A; N]) -> A + Send + Sync,
) {
    let step = walk.row_stride(0);
    pieces(to, PIECE, |start, to| {
        walk.rows(start, start + to.len(), |at, n, begin| {
            let from = from.map(|from| &from[at..at + n]);
            let begin = begin[0];
            transform(from, &mut to[at - start..at - start + n], |at, block| {
                if step == 0 {
                    let others = others.map(|other| other[begin]);
                    block.iter_mut().for_each(|x| *x = f(*x, others));
                } else {
                    let others = others.map(|other| &other[begin + at..][..block.len()]);
                    block.iter_mut().enumerate().for_each(|(i, x)| *x = f(*x, others.map(|other| other[i])));
                }
            });
        });
    });
}

/// The elements of a float tensor of any type, which are as many as there is room for.
pub(crate) fn read_floats<A: Wide>(tensor: TensorRef<'_>, to: &mut [A]) -> Result<()> {
    if tensor.element_count() != to.len() as u64 {
        return Err(KernelError::value(format!("{} elements", to.len()), tensor.element_count()));
    }
    fn each<T: Element + Sync, A: Wide>(tensor: TensorRef<'_>, to: &mut [A], f: fn(T) -> f64) -> Result<()> {
        let from = tensor.as_slice::<T>()?;
        pieces(to, PIECE, |at, to| to.iter_mut().zip(&from[at..]).for_each(|(y, &x)| *y = A::of(f(x))));
        Ok(())
    }
    match tensor.dtype() {
        DType::F16 => each(tensor, to, f16::to_f64),
        DType::BF16 => each(tensor, to, bf16::to_f64),
        DType::F64 => each::<f64, A>(tensor, to, |x| x),
        _ => each::<f32, A>(tensor, to, f64::from),
    }
}

/// Writes a float result of any type, if it is asked for.
pub(crate) fn write_floats<A: Wide>(io: &mut Io<'_>, j: usize, from: impl Iterator<Item = A>) -> Result<()> {
    let Some(Out::Placed { dtype, .. }) = io.results.get(j) else { return Ok(()) };
    match dtype {
        DType::F16 => io.out(j)?.iter_mut().zip(from).for_each(|(y, x)| *y = f16::round_f64(x.to())),
        DType::BF16 => io.out(j)?.iter_mut().zip(from).for_each(|(y, x)| *y = bf16::round_f64(x.to())),
        DType::F64 => io.out(j)?.iter_mut().zip(from).for_each(|(y, x)| *y = x.to()),
        _ => io.out(j)?.iter_mut().zip(from).for_each(|(y, x)| *y = f32::of(x.to())),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(dims: &[usize], gone: &[usize]) -> Vec<i64> {
        let from: Vec<i64> = (0..dims.iter().product::<usize>()).map(|i| i as i64).collect();
        let folding = Folding::new(dims, |axis| gone.contains(&axis));
        let mut to = vec![-1; folding.results];
        folding.fold(Sum, &from, None, &mut to, &|sum: i64, _| sum);
        to
    }

    /// The sums, one element after the other.
    fn plain(dims: &[usize], gone: &[usize]) -> Vec<i64> {
        let kept: Vec<usize> = (0..dims.len()).filter(|axis| !gone.contains(axis)).collect();
        let mut to = vec![0; kept.iter().map(|&axis| dims[axis]).product()];
        for i in 0..dims.iter().product::<usize>() {
            let mut rest = i;
            let mut index = vec![0; dims.len()];
            for axis in (0..dims.len()).rev() {
                index[axis] = rest % dims[axis];
                rest /= dims[axis];
            }
            to[kept.iter().fold(0, |at, &axis| at * dims[axis] + index[axis])] += i as i64;
        }
        to
    }

    #[test]
    fn along_any_axes() {
        let all: &[&[usize]] =
            &[&[], &[1], &[5], &[0, 3], &[3, 0], &[2, 1, 3, 70], &[2, 70, 3, 5], &[40, 3, 2, 2, 3]];
        for dims in all {
            for mask in 0..1 << dims.len() {
                let gone: Vec<usize> = (0..dims.len()).filter(|axis| mask >> axis & 1 == 1).collect();
                assert_eq!(sums(dims, &gone), plain(dims, &gone), "{dims:?} along {gone:?}");
            }
        }
    }

    #[test]
    fn long_runs_and_many_rows() {
        assert_eq!(sums(&[100_001], &[0]), [100_000 * 100_001 / 2]);
        assert_eq!(sums(&[70_001, 2], &[0]), [70_000 * 70_001, 70_001 * 70_001]);
        let from = vec![0.1f32; 1 << 20];
        // One after the other these are more than 900 off.
        let sum: f32 = fold_run(Sum, &from, 0.0);
        let error = f64::from(sum) - f64::from(0.1f32) * f64::from(1 << 20);
        assert!(error.abs() < 0.1, "{error}");
    }

    #[test]
    fn extremes_keep_nan() {
        let mut from = vec![1.0f32; 40];
        from[17] = f32::NAN;
        assert!(fold_run(greatest(), &from, 0.0).is_nan());
        assert!(fold_run(Least(f32::INFINITY), &from, 0.0).is_nan());
        from[17] = 3.0;
        assert_eq!(fold_run(greatest(), &from, 0.0), 3.0);
    }
}
