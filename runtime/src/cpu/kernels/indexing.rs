//! Positions and running values along an axis: ArgMax, ArgMin, OneHot, CumSum, CumProd, Hardmax.
//!
//! The first of equal elements counts, unless the node selects the last. NaN is both the greatest and the least number
//! for ArgMax and ArgMin, as in NumPy.

use super::elements::{Cell, Movement, around, moved, rows, size};
use super::gather::axis_of;
use super::lanes::{BLOCK, Real, for_int, for_number, for_real};
use super::parallel::{PIECE, pieces};
use super::top_k;
use crate::host::Element;
use crate::kernel::{Io, KernelError, Prepare, Prepared, Result, Site};
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use ampc_ir::views::norm::{SoftmaxAxes, SoftmaxView};
use ampc_ir::views::reduce::{ArgReduceView, CumulativeView};
use half::{bf16, f16};
use num_traits::{One, Zero};
use std::cmp::Ordering;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::ArgMax => |s| arg_reduce(s, true),
        OpKind::ArgMin => |s| arg_reduce(s, false),
        OpKind::CumProd => |s| cumulative(s, true),
        OpKind::CumSum => |s| cumulative(s, false),
        OpKind::Hardmax => hardmax,
        OpKind::OneHot => one_hot,
        OpKind::TopK => top_k::top_k,
        _ => return None,
    })
}

/// Elements with an order: NaN is behind all numbers, and both zeros are one.
pub(super) trait Ordered: Send + Sync {
    fn order(&self, other: &Self) -> Ordering;
    fn is_nan(&self) -> bool {
        false
    }
}

macro_rules! ordered {
    (ints: $($int:ident),*; floats: $($float:ident),*) => {
        $(impl Ordered for $int {
            fn order(&self, other: &$int) -> Ordering {
                self.cmp(other)
            }
        })*
        $(impl Ordered for $float {
            fn order(&self, other: &$float) -> Ordering {
                self.partial_cmp(other).unwrap_or_else(|| $float::is_nan(*self).cmp(&$float::is_nan(*other)))
            }
            fn is_nan(&self) -> bool {
                $float::is_nan(*self)
            }
        })*
    };
}

ordered!(ints: i64, i32, i16, i8, u64, u32, u16, u8; floats: f64, f32, f16, bf16);

impl Ordered for Box<[u8]> {
    fn order(&self, other: &Box<[u8]>) -> Ordering {
        self.cmp(other)
    }
}

fn arg_reduce(site: &Site<'_>, max: bool) -> Result<Prepared> {
    let view = ArgReduceView::read(&site.view)?;
    let dims = site.dims(0)?;
    let (_, n, inner) = around(&dims, view.axis.ok_or(KernelError::NotYet)?);
    let last = view.last;
    Ok(for_number!(site.dtype(0)?, site, T => Prepared::new(move |io| {
        let from = io.slice::<T>(0)?;
        let to = io.out::<i64>(0)?;
        if n == 0 && !to.is_empty() {
            return Err(OpError::operand(0, "elements along the axis", "none").into());
        }
        let beats = move |a: &T, best: &T| match (Ordered::is_nan(a), Ordered::is_nan(best)) {
            (true, is_nan) => last || !is_nan,
            (false, true) => false,
            (false, false) => match a.order(best) {
                Ordering::Equal => last,
                order => (order == Ordering::Greater) == max,
            },
        };
        arg_best(n, inner, from, to, beats);
        Ok(())
    })))
}

fn arg_best<T: Element + Ordered>(
    n: usize,
    inner: usize,
    from: &[T],
    to: &mut [i64],
    beats: impl Fn(&T, &T) -> bool + Send + Sync,
) {
    if inner == 1 {
        pieces(to, (PIECE / n.max(1)).max(1), |at, to| {
            for (y, row) in to.iter_mut().zip(from[at * n..].chunks_exact(n)) {
                let mut best = 0;
                for (i, x) in row.iter().enumerate().skip(1) {
                    if beats(x, &row[best]) {
                        best = i;
                    }
                }
                *y = position(best);
            }
        });
        return;
    }
    rows(to, inner, |row, column, to| {
        let from = &from[row * n * inner + column..];
        let mut room = [T::zeroed(); BLOCK];
        for (block, to) in to.chunks_mut(BLOCK).enumerate() {
            let from = &from[block * BLOCK..];
            let best = &mut room[..to.len()];
            best.copy_from_slice(&from[..to.len()]);
            to.fill(0);
            for i in 1..n {
                let cells = to.iter_mut().zip(&mut *best);
                cells.zip(&from[i * inner..]).for_each(|((y, best), x)| {
                    let is_better = beats(x, best);
                    *best = if is_better { *x } else { *best };
                    *y = if is_better { position(i) } else { *y };
                });
            }
        }
    });
}

/// An index in memory as an element.
fn position(i: usize) -> i64 {
    i64::try_from(i).unwrap_or(i64::MAX)
}

/// OneHot: all elements are the first value but those that indices name, which are the second.
struct OneHot {
    depth: usize,
    inner: usize,
}

fn one_hot(site: &Site<'_>) -> Result<Prepared> {
    let result = site.result_dims(0)?;
    let (_, depth, inner) = around(&result, axis_of(site, -1, result.len())?);
    moved(site, &[2], OneHot { depth, inner })
}

impl Movement for OneHot {
    fn run<T: Cell>(&self, io: &Io<'_>, from: &[&[T]], to: &mut [&mut [T]]) -> Result<()> {
        let [off, on] = from[0] else {
            return Err(OpError::operand(2, "two values", from[0].len().to_string()).into());
        };
        let to = &mut *to[0];
        pieces(to, PIECE, |_, to| to.fill(*off));
        if to.is_empty() {
            return Ok(());
        }
        let indices = io.tensor(0)?;
        let mut set = |i: usize, index: Option<i64>| {
            let found = index.and_then(|index| super::elements::from_front(index, self.depth));
            if let Some(found) = found {
                to[(i / self.inner * self.depth + found) * self.inner + i % self.inner] = *on;
            }
        };
        if let Ok(indices) = indices.as_slice::<i64>() {
            indices.iter().enumerate().for_each(|(i, &n)| set(i, Some(n)));
        } else if let Some(ints) = indices.ints() {
            ints.enumerate().for_each(|(i, n)| set(i, i64::try_from(n).ok()));
        } else {
            indices.f64s()?.enumerate().for_each(|(i, n)| set(i, ampc_ir::views::whole(n.trunc())));
        }
        Ok(())
    }
}

fn cumulative(site: &Site<'_>, product: bool) -> Result<Prepared> {
    let view = CumulativeView::read(&site.view)?;
    let dims = site.dims(0)?;
    let (_, n, inner) = around(&dims, view.axis.ok_or(KernelError::NotYet)?);
    let sums = Sums { n, inner, exclusive: view.exclusive, reverse: view.reverse };
    let dtype = site.dtype(0)?;
    if dtype.is_integer() {
        return Ok(for_int!(dtype, site, T => Prepared::new(move |io| {
            let f: fn(T, T) -> T = if product { T::wrapping_mul } else { T::wrapping_add };
            sums.run(io.slice::<T>(0)?, io.out::<T>(0)?, T::from(product), |x: T| x, |y: T| y, f);
            Ok(())
        })));
    }
    Ok(for_real!(dtype, site, T => {
        type W = <T as Real>::Wide;
        let f: fn(W, W) -> W = if product { |a, b| a * b } else { |a, b| a + b };
        let first: W = if product { One::one() } else { Zero::zero() };
        Prepared::new(move |io| {
            sums.run(io.slice::<T>(0)?, io.out::<T>(0)?, first, <T as Real>::wide, <T as Real>::round, f);
            Ok(())
        })
    }))
}

/// Running sums or products along an axis.
#[derive(Clone, Copy)]
struct Sums {
    n: usize,
    inner: usize,
    exclusive: bool,
    reverse: bool,
}

impl Sums {
    fn run<T: Element + Send + Sync, W: Copy + Send + Sync>(
        self,
        from: &[T],
        to: &mut [T],
        first: W,
        wide: impl Fn(T) -> W + Send + Sync,
        round: impl Fn(W) -> T + Send + Sync,
        f: impl Fn(W, W) -> W + Send + Sync,
    ) {
        let slab = self.n.saturating_mul(self.inner).max(1);
        let group = (PIECE / slab).max(1).saturating_mul(slab);
        pieces(to, group, |at, to| {
            for (from, to) in from[at..at + to.len()].chunks(slab).zip(to.chunks_mut(slab)) {
                let mut sums = [first; BLOCK];
                for column in (0..self.inner).step_by(BLOCK) {
                    let sums = &mut sums[..BLOCK.min(self.inner - column)];
                    sums.fill(first);
                    for i in 0..self.n {
                        let i = if self.reverse { self.n - 1 - i } else { i };
                        let at = i * self.inner + column;
                        let (from, to) = (&from[at..at + sums.len()], &mut to[at..at + sums.len()]);
                        for ((sum, &x), y) in sums.iter_mut().zip(from).zip(to) {
                            let next = f(*sum, wide(x));
                            *y = round(if self.exclusive { *sum } else { next });
                            *sum = next;
                        }
                    }
                }
            }
        });
    }
}

/// Hardmax: 1 at the first greatest element, 0 elsewhere.
fn hardmax(site: &Site<'_>) -> Result<Prepared> {
    let view = SoftmaxView::read(&site.view)?;
    let dims = site.dims(0)?;
    let (n, inner) = match view.axes.ok_or(KernelError::NotYet)? {
        SoftmaxAxes::One(_) if dims.is_empty() => (1, 1),
        SoftmaxAxes::One(axis) => (dims[axis], size(&dims[axis + 1..])),
        SoftmaxAxes::From(axis) => (size(&dims[axis..]), 1),
    };
    Ok(for_real!(site.dtype(0)?, site, T => Prepared::new(move |io| {
        let from = io.slice::<T>(0)?;
        let to = io.out::<T>(0)?;
        let one = <T as Real>::round(One::one());
        let zero = <T as Real>::round(Zero::zero());
        let slab = n.saturating_mul(inner).max(1);
        let group = (PIECE / slab).max(1).saturating_mul(slab);
        pieces(to, group, |at, to| {
            to.fill(zero);
            for (from, to) in from[at..at + to.len()].chunks(slab).zip(to.chunks_mut(slab)) {
                for column in 0..inner {
                    let greatest = (1..n).fold(0, |best, i| {
                        let (x, y) = (&from[i * inner + column], &from[best * inner + column]);
                        if x.order(y) == Ordering::Greater { i } else { best }
                    });
                    to[greatest * inner + column] = one;
                }
            }
        });
        Ok(())
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize) -> Vec<f32> {
        let number = |i: usize| match i * 7919 % 101 {
            0 => f32::NAN,
            x => f32::from(u8::try_from(x).unwrap()) / 3.0 - 10.0,
        };
        (0..n).map(number).collect()
    }

    #[test]
    fn positions_along_all_axes_are_the_same() {
        let (n, inner) = (9, 2500);
        let from = numbers(n * inner);
        let turned: Vec<f32> = (0..n * inner).map(|i| from[i % n * inner + i / n]).collect();
        for last in [false, true] {
            let beats =
                |a: &f32, b: &f32| a.order(b) == Ordering::Greater || last && a.order(b) == Ordering::Equal;
            let (mut columns, mut rows) = (vec![-1; inner], vec![-1; inner]);
            arg_best(n, inner, &from, &mut columns, beats);
            arg_best(n, 1, &turned, &mut rows, beats);
            assert_eq!(columns, rows);
        }
    }
}
