//! Positions and running values along an axis: ArgMax, ArgMin, TopK, OneHot, CumSum, CumProd, Hardmax.
//!
//! The first of equal elements counts, unless the node selects the last. NaN is the greatest number for TopK,
//! and both greatest and least for ArgMax and ArgMin, as in NumPy.

use super::elements::{Cell, Movement, around, count, moved, rows, size};
use super::gather::axis_of;
use super::lanes::{BLOCK, PIECE, Real, for_int, for_real, pieces};
use crate::host::Element;
use crate::kernel::{Io, KernelError, Prepare, Prepared, Result, Site};
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use ampc_ir::views::norm::{SoftmaxAxes, SoftmaxView};
use ampc_ir::views::reduce::{ArgReduceView, CumulativeView, TopKView};
use half::{bf16, f16};
use num_traits::{One, Zero};
use rayon::prelude::*;
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
        OpKind::TopK => top_k,
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

/// As `for_int` and `for_real`, for all of them.
macro_rules! for_number {
    ($dtype:expr, $site:expr, $T:ident => $work:expr) => {
        if $dtype.is_integer() { for_int!($dtype, $site, $T => $work) } else { for_real!($dtype, $site, $T => $work) }
    };
}

pub(super) use for_number;

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

/// Parameters of a TopK.
#[derive(Clone, Copy)]
struct Top {
    n: usize,
    inner: usize,
    k: usize,
    largest: bool,
}

/// At most so many rows are searched at a time, each with room of its own.
const ROOMS: usize = 16;

fn top_k(site: &Site<'_>) -> Result<Prepared> {
    let view = TopKView::read(&site.view)?;
    let dims = site.dims(0)?;
    let axis = view.axis.ok_or(KernelError::NotYet)?;
    let (outer, n, inner) = around(&dims, axis);
    let k = view.k.and_then(|k| usize::try_from(k).ok()).ok_or(KernelError::NotYet)?;
    if k > n {
        return Err(view.k_error(format!("at most {n} elements"), k).into());
    }
    u32::try_from(n).map_err(|_| KernelError::unsupported("TopK of 2^32 elements and more"))?;
    let elements = count(&dims)?;
    let top = Top { n, inner, k, largest: view.largest };
    let rooms = if elements == 0 { 0 } else { outer.min(ROOMS) };
    let scratch = rooms.saturating_mul(n).saturating_mul(size_of::<u32>());
    Ok(for_number!(site.dtype(0)?, site, T => Prepared::new(move |io| {
        let from = io.slice::<T>(0)?;
        let values = if io.wants(0) { Some(io.out::<T>(0)?) } else { None };
        let indices = if io.wants(1) { Some(io.out::<i64>(1)?) } else { None };
        if k == 0 || from.is_empty() {
            return Ok(());
        }
        top.run(from, values, indices, io.scratch::<u32>(), outer);
        Ok(())
    })
    .scratch(scratch)))
}

impl Top {
    fn run<T: Element + Ordered>(
        self,
        from: &[T],
        mut values: Option<&mut [T]>,
        mut indices: Option<&mut [i64]>,
        room: &mut [u32],
        outer: usize,
    ) {
        let share = outer.div_ceil(ROOMS);
        let (read, written) = (share * self.n * self.inner, share * self.k * self.inner);
        let mut jobs = Vec::with_capacity(ROOMS);
        for (from, room) in from.chunks(read).zip(room.chunks_exact_mut(self.n)) {
            jobs.push((from, room, cut(&mut values, written), cut(&mut indices, written)));
        }
        jobs.into_par_iter().for_each(|(from, room, mut values, mut indices)| {
            for (i, from) in from.chunks(self.n * self.inner).enumerate() {
                for column in 0..self.inner {
                    let from = &from[column..];
                    let first = i * self.k * self.inner + column;
                    for (j, &found) in self.search(from, room).iter().enumerate() {
                        let (at, found) = (first + j * self.inner, found as usize);
                        if let Some(values) = &mut values {
                            values[at] = from[found * self.inner];
                        }
                        if let Some(indices) = &mut indices {
                            indices[at] = position(found);
                        }
                    }
                }
            }
        });
    }

    /// The indices of the elements that are taken, in order.
    fn search<'r, T: Ordered>(&self, from: &[T], room: &'r mut [u32]) -> &'r [u32] {
        let order = |&a: &u32, &b: &u32| {
            let by_value = from[a as usize * self.inner].order(&from[b as usize * self.inner]);
            if self.largest { by_value.reverse() } else { by_value }.then(a.cmp(&b))
        };
        if self.k <= room.len() / FEW {
            return self.search_few(from, room, order);
        }
        (0..).zip(&mut *room).for_each(|(i, y)| *y = i);
        if self.k < room.len() {
            room.select_nth_unstable_by(self.k - 1, order);
        }
        let taken = &mut room[..self.k];
        taken.sort_unstable_by(order);
        taken
    }
}

/// Elements are few of those that are more than so many times as many.
const FEW: usize = 16;

impl Top {
    /// Like [`search`](Self::search), for few of many elements: the best so far are kept as a heap with the
    /// worst of them on top, which most other elements do not pass.
    fn search_few<'r, T: Ordered>(
        &self,
        from: &[T],
        room: &'r mut [u32],
        order: impl Fn(&u32, &u32) -> Ordering,
    ) -> &'r [u32] {
        let n = room.len();
        let best = &mut room[..self.k];
        (0..).zip(&mut *best).for_each(|(i, y)| *y = i);
        // From the last one to the first is a heap already.
        best.sort_unstable_by(|a, b| order(b, a));
        let passes = if self.largest { Ordering::Greater } else { Ordering::Less };
        let mut last = &from[best[0] as usize * self.inner];
        for (i, x) in (0u32..).zip(from.iter().step_by(self.inner)).take(n).skip(self.k) {
            if x.order(last) == passes {
                best[0] = i;
                sink(best, &order);
                last = &from[best[0] as usize * self.inner];
            }
        }
        best.sort_unstable_by(order);
        best
    }
}

/// Puts the first element of what else is a heap to where it belongs: none is behind the one above it.
fn sink(heap: &mut [u32], order: impl Fn(&u32, &u32) -> Ordering) {
    let mut at = 0;
    loop {
        let children = [2 * at + 1, 2 * at + 2];
        let later = |a: usize, b: usize| if order(&heap[a], &heap[b]) == Ordering::Less { b } else { a };
        let top = children.into_iter().filter(|&child| child < heap.len()).fold(at, later);
        if top == at {
            return;
        }
        heap.swap(at, top);
        at = top;
    }
}

/// The first `n` of the remaining elements, or all.
fn cut<'a, T>(left: &mut Option<&'a mut [T]>, n: usize) -> Option<&'a mut [T]> {
    let list = left.take()?;
    let (head, rest) = list.split_at_mut(n.min(list.len()));
    *left = Some(rest);
    Some(head)
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
    fn few_of_many_are_the_first_of_all_in_order() {
        for (n, k, inner) in
            [(1000, 1, 1), (1000, 62, 1), (1000, 63, 1), (400, 25, 3), (16, 1, 1), (40, 0, 1)]
        {
            let from = numbers(n * inner);
            for largest in [true, false] {
                let top = Top { n, inner, k, largest };
                let mut all: Vec<u32> = (0..).take(n).collect();
                all.sort_by(|&a, &b| {
                    let order = from[a as usize * inner].order(&from[b as usize * inner]);
                    if largest { order.reverse() } else { order }
                });
                if k > 0 {
                    assert_eq!(top.search(&from, &mut vec![0; n]), &all[..k], "{n} {k} {inner} {largest}");
                }
            }
        }
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
