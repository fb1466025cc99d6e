//! Pools: MaxPool, AveragePool, LpPool, the global ones, MaxUnpool.
//!
//! A pool folds the elements of the image in a window: the maximum, the sum, or the sum of `|x|^p`. Windows are
//! boxes, so rows are folded first, element by element, and then the columns of the one row that is left. An
//! average divides by the number of elements, with or without those in the padding; a norm is the p-th root. A
//! NaN makes the result NaN.

use super::convolution::{spatial, to_f64};
use super::fold::{Fold, Greatest, Load, Number, Sum, fold_run, greatest};
use super::lanes::{Real, Wide, for_int, for_real};
use super::parallel::{pairs_of_pieces, pieces};
use super::vector::widest;
use super::window::{Axis, SLOTS, Window, work_through, zip_strided};
use crate::kernel::{Io, KernelError, Prepare, Prepared, Result, Site};
use crate::room::Room;
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use ampc_ir::views::window::{UnpoolView, WindowView};
use bytemuck::Pod;
use std::sync::OnceLock;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::MaxPool => max_pool,
        OpKind::AveragePool => average_pool,
        OpKind::LpPool => lp_pool,
        OpKind::GlobalMaxPool => |s| global(s, Global::Max),
        OpKind::GlobalAveragePool => |s| global(s, Global::Average),
        OpKind::GlobalLpPool => |s| global(s, Global::Norm(exponent(s))),
        OpKind::MaxUnpool => max_unpool,
        _ => return None,
    })
}

/// The window of a pool.
struct Pool {
    window: Window,
    view: WindowView,
}

impl Pool {
    fn of(site: &Site<'_>) -> Result<Pool> {
        let (x, y) = (site.dims(0)?, site.result_dims(0)?);
        let view = WindowView::read(&site.view, x.len() - 2, None)?;
        let window =
            Window::new(&view, spatial(&x), spatial(&y), |i, image, grid| view.pads(i, image, grid).0)?;
        Ok(Pool { window, view })
    }

    /// The number of taps that count at a position of an axis: taps in the input, or in its padding too.
    fn count(&self, i: usize, position: usize, with_padding: bool) -> f64 {
        let axis = self.window.axes[i];
        if !with_padding {
            return to_f64(axis.taps(position).len());
        }
        let after = match self.view.strides.get(i) {
            Some(_) => self.view.pads(i, axis.image as u64, axis.grid as u64).1,
            None => 0,
        };
        let end = (axis.image + axis.before).saturating_add(usize::try_from(after).unwrap_or(usize::MAX));
        let room = end.saturating_sub(position * axis.stride);
        to_f64(room.div_ceil(axis.dilation).min(axis.kernel))
    }

    /// [`count`](Self::count) for each axis and position.
    fn counts(&self, with_padding: bool, room: Room) -> Result<Vec<Vec<f64>>> {
        let axes = self.window.axes.iter().enumerate();
        let counts = |(i, axis): (usize, &Axis)| {
            room.gathered((0..axis.grid).map(|position| self.count(i, position, with_padding)))
        };
        axes.map(counts).collect()
    }
}

/// Windows of at most so many columns are folded tap by tap, others position by position.
const NARROW: usize = 32;

/// Results per task.
const TASK: usize = 1 << 13;

/// A pool; `finish` makes the results of a row, whose index it gets, of what was folded.
fn pool<T: Load<A>, A: Number + Pod>(
    window: Window,
    planes: usize,
    fold: impl Fold<A> + 'static,
    finish: impl Fn(usize, &mut [A]) + Send + Sync + 'static,
) -> Prepared {
    let inner = window.inner();
    let rows: usize = window.outer().iter().map(|a| a.grid).product();
    let task = (TASK / inner.grid.max(1)).max(1);
    let slot = 2 * inner.image + inner.grid;
    let slots = planes.saturating_mul(rows).div_ceil(task).clamp(1, SLOTS);
    Prepared::new(move |io| {
        let (x, to) = (io.slice::<T>(0)?, io.out::<T>(0)?);
        if to.is_empty() {
            return Ok(());
        }
        let image = window.image();
        let tasks = to.chunks_mut(task * inner.grid).enumerate();
        work_through(tasks, io.scratch::<A>(), slot, |slot, (i, to)| {
            let (folded, slot) = slot.split_at_mut(inner.image);
            let (loaded, room) = slot.split_at_mut(inner.image);
            for (row, to) in (i * task..).zip(to.chunks_mut(inner.grid)) {
                let x = &x[row / rows * image..(row / rows + 1) * image];
                fold_rows(&window, row % rows, x, fold, folded, loaded);
                if let Some(to) = T::same_mut(to) {
                    fold_columns(&window, folded, fold, to);
                    finish(row % rows, to);
                } else {
                    fold_columns(&window, folded, fold, room);
                    finish(row % rows, room);
                    T::store(room, to);
                }
            }
        });
        Ok(())
    })
    .scratch(slots.saturating_mul(slot).saturating_mul(size_of::<A>()))
}

/// Folds the rows of the image that a row of the result meets, element by element.
fn fold_rows<T: Load<A>, A: Number>(
    window: &Window,
    row: usize,
    x: &[T],
    fold: impl Fold<A>,
    folded: &mut [A],
    loaded: &mut [A],
) {
    let term = |x: A| fold.term(x, A::default());
    let mut is_first = true;
    window.rows_of(row, |base| {
        let x = &x[base..base + folded.len()];
        let x = match T::same(x) {
            Some(x) => x,
            None => {
                T::load(x, loaded);
                &*loaded
            }
        };
        if std::mem::take(&mut is_first) {
            widest(|| folded.iter_mut().zip(x).for_each(|(y, &x)| *y = term(x)));
        } else {
            widest(|| folded.iter_mut().zip(x).for_each(|(y, &x)| *y = fold.join(*y, term(x))));
        }
    });
    if is_first {
        folded.fill(fold.start());
    }
}

/// Folds the columns of a row that each result meets.
fn fold_columns<A: Number>(window: &Window, row: &[A], fold: impl Fold<A>, to: &mut [A]) {
    let inner = window.inner();
    if inner.kernel > NARROW {
        for (position, y) in to.iter_mut().enumerate() {
            let taps = inner.taps(position);
            *y = match taps.is_empty() {
                true => fold.start(),
                false => {
                    let met = &row[inner.at(position, taps.start)..=inner.at(position, taps.end - 1)];
                    met.iter().step_by(inner.dilation).fold(fold.start(), |a, &b| fold.join(a, b))
                }
            };
        }
        return;
    }
    to.fill(fold.start());
    for tap in 0..inner.kernel {
        let met = inner.positions(tap);
        if met.is_empty() {
            continue;
        }
        let from = &row[inner.at(met.start, tap)..=inner.at(met.end - 1, tap)];
        let to = &mut to[met];
        widest(|| zip_strided(to, from, inner.stride, |y, x| *y = fold.join(*y, x)));
    }
}

/// The number of planes of operand 0.
fn planes(site: &Site<'_>) -> Result<usize> {
    Ok(site.dims(0)?[..2].iter().product())
}

fn max_pool(site: &Site<'_>) -> Result<Prepared> {
    let pool = Pool::of(site)?;
    let planes = planes(site)?;
    let by_column = site.view.int("storage_order").unwrap_or(0) != 0;
    let indices = site.wants(1).then_some(by_column);
    if site.dtype(0)?.is_integer() {
        return Ok(for_int!(site.dtype(0)?, site, T => {
            max_pool_of::<T, T>(pool.window, planes, Greatest(T::MIN), indices)
        }));
    }
    Ok(for_real!(site.dtype(0)?, site, T => {
        max_pool_of::<T, <T as Real>::Wide>(pool.window, planes, greatest(), indices)
    }))
}

fn max_pool_of<T: Load<A> + PartialOrd, A: Number + Pod>(
    window: Window,
    planes: usize,
    fold: Greatest<A>,
    indices: Option<bool>,
) -> Prepared {
    match indices {
        Some(by_column) => max_pool_with_indices::<T, A>(window, fold, by_column),
        None => pool::<T, A>(window, planes, fold, |_, _| {}),
    }
}

/// The first of the largest elements, and where it is. An index counts the elements of all planes before.
fn max_pool_with_indices<T: Load<A> + PartialOrd, A: Number>(
    window: Window,
    fold: Greatest<A>,
    by_column: bool,
) -> Prepared {
    let mut strides: Vec<usize> = vec![1; window.axes.len()];
    let mut step = 1;
    let mut order: Vec<usize> = (0..strides.len()).rev().collect();
    if by_column {
        order.reverse();
    }
    for axis in order {
        strides[axis] = step;
        step *= window.axes[axis].image;
    }
    Prepared::new(move |io| {
        let (x, to, indices) = (io.slice::<T>(0)?, io.out::<T>(0)?, io.out::<i64>(1)?);
        if to.is_empty() {
            return Ok(());
        }
        let (image, inner) = (window.image(), window.inner());
        let rows: usize = window.outer().iter().map(|a| a.grid).product();
        let task = (TASK / inner.grid).max(1) * inner.grid;
        let mut lowest = [bytemuck::Zeroable::zeroed()];
        T::store(&[fold.start()], &mut lowest);
        pairs_of_pieces((to, task), (indices, task), |i, to, indices| {
            let to = to.chunks_mut(inner.grid).zip(indices.chunks_mut(inner.grid));
            for (row, (to, indices)) in (i * task / inner.grid..).zip(to) {
                let plane = row / rows;
                let x = &x[plane * image..(plane + 1) * image];
                to.fill(lowest[0]);
                indices.fill(NOWHERE);
                window.rows_of(row % rows, |base| largest_of_row(&inner, base, x, to, indices));
                for index in indices {
                    let within = usize::try_from(*index).unwrap_or(0);
                    let within = if by_column { reorder(&window, &strides, within) } else { within };
                    *index = i64::try_from(plane * image + within).unwrap_or(i64::MAX);
                }
            }
        });
        Ok(())
    })
}

/// The index of the largest element of a window that has met none yet.
const NOWHERE: i64 = -1;

/// Has each position of a row of the result look at what it meets of a row of the image, which begins at `base`.
fn largest_of_row<T: Copy + PartialOrd>(
    inner: &Axis,
    base: usize,
    x: &[T],
    to: &mut [T],
    indices: &mut [i64],
) {
    for tap in 0..inner.kernel {
        let met = inner.positions(tap);
        if met.is_empty() {
            continue;
        }
        let first = base + inner.at(met.start, tap);
        let from = &x[first..=base + inner.at(met.end - 1, tap)];
        let (to, indices) = (&mut to[met.clone()], &mut indices[met]);
        let (first, step) = (signed(first), signed(inner.stride));
        widest(|| {
            let mut at = first;
            for ((y, index), &x) in to.iter_mut().zip(indices).zip(from.iter().step_by(inner.stride)) {
                let is_larger = (*index == NOWHERE) | (x > *y) | (is_nan(x) & !is_nan(*y));
                *y = if is_larger { x } else { *y };
                *index = if is_larger { at } else { *index };
                at += step;
            }
        });
    }
}

fn signed(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[expect(clippy::eq_op, reason = "only a NaN differs from itself")]
#[inline]
fn is_nan<T: PartialOrd>(x: T) -> bool {
    x != x
}

/// An index of the image in row-major order in the order of `strides`.
fn reorder(window: &Window, strides: &[usize], index: usize) -> usize {
    let (mut rest, mut to) = (index, 0);
    for (axis, stride) in window.axes.iter().zip(strides).rev() {
        to += rest % axis.image * stride;
        rest /= axis.image;
    }
    to
}

fn average_pool(site: &Site<'_>) -> Result<Prepared> {
    let pool = Pool::of(site)?;
    let planes = planes(site)?;
    let with_padding = site.view.int("count_include_pad").unwrap_or(0) != 0;
    Ok(for_real!(site.dtype(0)?, site, T => {
        average_pool_of::<T, <T as Real>::Wide>(pool, planes, with_padding, site.room)
    }))
}

fn average_pool_of<T: Load<A>, A: Wide + Number>(
    pool: Pool,
    planes: usize,
    with_padding: bool,
    room: Room,
) -> Prepared {
    // Made when it is first needed: by then there is memory for the result. Without memory for a table each count is
    // made when it is read.
    let counts = OnceLock::new();
    self::pool::<T, A>(pool.window.clone(), planes, Sum, move |row, sums| {
        let counts: &Option<Vec<Vec<f64>>> = counts.get_or_init(|| pool.counts(with_padding, room).ok());
        let count = |axis: usize, position: usize| match counts {
            Some(counts) => counts[axis][position],
            None => pool.count(axis, position, with_padding),
        };
        let (mut row, mut rows) = (row, 1.0);
        let last = pool.window.axes.len() - 1;
        for (i, axis) in pool.window.axes[..last].iter().enumerate().rev() {
            rows *= count(i, row % axis.grid);
            row /= axis.grid;
        }
        match counts {
            Some(counts) => sums.iter_mut().zip(&counts[last]).for_each(|(y, &n)| *y = *y / A::of(rows * n)),
            None => sums.iter_mut().enumerate().for_each(|(i, y)| *y = *y / A::of(rows * count(last, i))),
        }
    })
}

/// The exponent of a norm: an integer, and a float in the first version.
fn exponent(site: &Site<'_>) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "no norm has such an exponent")]
    let whole = site.view.int("p").map(|p| p as f64);
    whole.or_else(|| site.view.float("p").map(f64::from)).unwrap_or(2.0)
}

/// `|x|^p`.
fn power<W: Wide>(x: W, p: W) -> W {
    let x = x.abs();
    if p == W::of(2.0) {
        x * x
    } else if p == W::one() {
        x
    } else {
        x.powf(p)
    }
}

/// Σ |x|^p, for this p.
#[derive(Clone, Copy)]
struct SumOfPowers<A>(A);

impl<A: Wide + Number> Fold<A> for SumOfPowers<A> {
    fn start(self) -> A {
        A::default()
    }
    #[inline]
    fn term(self, x: A, _: A) -> A {
        power(x, self.0)
    }
    #[inline]
    fn join(self, a: A, b: A) -> A {
        a + b
    }
}

/// The p-th root of a sum.
fn root<W: Wide>(sum: W, p: W) -> W {
    if p == W::of(2.0) {
        sum.sqrt()
    } else if p == W::one() {
        sum
    } else {
        sum.powf(p.recip())
    }
}

fn lp_pool(site: &Site<'_>) -> Result<Prepared> {
    let pool = Pool::of(site)?;
    let (planes, p) = (planes(site)?, exponent(site));
    Ok(for_real!(site.dtype(0)?, site, T => lp_pool_of::<T, <T as Real>::Wide>(pool.window, planes, p)))
}

fn lp_pool_of<T: Load<A>, A: Wide + Number>(window: Window, planes: usize, p: f64) -> Prepared {
    let p = A::of(p);
    self::pool::<T, A>(window, planes, SumOfPowers(p), move |_, sums| {
        sums.iter_mut().for_each(|y| *y = root(*y, p));
    })
}

/// Reduction of a plane by a global pool.
#[derive(Clone, Copy)]
enum Global {
    Max,
    Average,
    Norm(f64),
}

fn global(site: &Site<'_>, kind: Global) -> Result<Prepared> {
    let image: usize = spatial(&site.dims(0)?).iter().product();
    Ok(for_real!(site.dtype(0)?, site, T => global_of::<T, <T as Real>::Wide>(image, kind)))
}

fn global_of<T: Load<A>, A: Wide + Number>(image: usize, kind: Global) -> Prepared {
    let task = (TASK / image.max(1)).max(1);
    Prepared::new(move |io| {
        let (x, to) = (io.slice::<T>(0)?, io.out::<T>(0)?);
        pieces(to, task, |at, to| {
            for (i, y) in (at..).zip(to) {
                let x = &x[i * image..(i + 1) * image];
                let zero = A::default();
                let folded = match kind {
                    Global::Max => fold_run(greatest::<A>(), x, zero),
                    Global::Average => fold_run(Sum, x, zero) / A::of(to_f64(image)),
                    Global::Norm(p) => root(fold_run(SumOfPowers(A::of(p)), x, zero), A::of(p)),
                };
                T::store(&[folded], std::slice::from_mut(y));
            }
        });
        Ok(())
    })
}

fn max_unpool(site: &Site<'_>) -> Result<Prepared> {
    let (x, y) = (site.dims(0)?, site.result_dims(0)?);
    let view = UnpoolView::read(&site.view, x.len() - 2)?;
    // Indices are about the result that the window gives, which is the corner of the one that is asked for.
    let mut image = vec![x[0], x[1]];
    for (i, &n) in spatial(&x).iter().enumerate() {
        let steps = (n as u64).saturating_sub(1).saturating_mul(view.strides[i]);
        let size = steps
            .saturating_add(view.kernel[i])
            .saturating_sub(view.pads[i].0)
            .saturating_sub(view.pads[i].1);
        image
            .push(usize::try_from(size).map_err(|_| KernelError::value("an extent that fits memory", size))?);
    }
    if image.iter().zip(&y).any(|(image, y)| image > y) {
        let expected = format!("extents of at least {image:?}");
        return Err(OpError::operand(2, expected, format!("{y:?}")).into());
    }
    let bytes = site.dtype(0)?.bits().unwrap_or(8) / 8;
    Ok(match bytes {
        8 => max_unpool_of::<u64>(image, y.to_vec()),
        4 => max_unpool_of::<u32>(image, y.to_vec()),
        2 => max_unpool_of::<u16>(image, y.to_vec()),
        _ => max_unpool_of::<u8>(image, y.to_vec()),
    })
}

/// Elements are moved, whatever they are.
fn max_unpool_of<T: bytemuck::Pod>(image: Vec<usize>, result: Vec<usize>) -> Prepared {
    let most = image.iter().product::<usize>();
    let is_whole = image == result;
    Prepared::new(move |io: &mut Io<'_>| {
        let indices = io.slice::<i64>(1)?;
        let (x, to) = (elements::<T>(io.bytes(0)?), io.out_bytes(0)?);
        to.fill(0);
        let to: &mut [T] = if to.is_empty() { &mut [] } else { bytemuck::cast_slice_mut(to) };
        for (&index, &x) in indices.iter().zip(x) {
            let at = usize::try_from(index).ok().filter(|&i| i < most);
            let mut rest = at.ok_or_else(|| {
                OpError::operand(
                    1,
                    format!("indices from 0 to {}", most.saturating_sub(1)),
                    index.to_string(),
                )
            })?;
            if is_whole {
                to[rest] = x;
                continue;
            }
            let (mut at, mut step) = (0, 1);
            for (&from, &of) in image.iter().zip(&result).rev() {
                at += rest % from * step;
                rest /= from;
                step *= of;
            }
            to[at] = x;
        }
        Ok(())
    })
}

/// Bytes as elements; no bytes may be anywhere.
fn elements<T: bytemuck::Pod>(bytes: &[u8]) -> &[T] {
    if bytes.is_empty() { &[] } else { bytemuck::cast_slice(bytes) }
}
