//! Softmax and LogSoftmax.
//!
//! `exp(x - m) / Σ exp(x - m)` and `x - m - ln Σ exp(x - m)` with the greatest element `m`, as ONNX's function bodies
//! have it: where `m` is infinite, results are NaN. The sum of which the logarithm is taken is 1, for `m`, and a rest
//! that may be too small to be seen beside it: it is `ln(1 + rest)`, and the rest is summed alone.

use super::broadcast::Walk;
use super::fold::{
    Count, Folding, Load, Number, ROW, Sum, SumOfExps, SumOfOtherExps, fold_run, greatest, spread, transform,
};
use super::functions::exp;
use super::lanes::{Real, Wide, for_real};
use super::parallel::{PIECE, pieces};
use super::vector::widest;
use crate::host::Element;
use crate::kernel::{Io, KernelError, Prepare, Prepared, Result, Site};
use ampc_ir::op::OpKind;
use ampc_ir::views::norm::{SoftmaxAxes, SoftmaxView};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Softmax => |s| softmax(s, false),
        OpKind::LogSoftmax => |s| softmax(s, true),
        _ => return None,
    })
}

fn softmax(site: &Site<'_>, log: bool) -> Result<Prepared> {
    let dims = site.dims(0)?;
    let (axis, end) = match SoftmaxView::read(&site.view)?.axes.ok_or(KernelError::NotYet)? {
        SoftmaxAxes::One(axis) => (axis, (axis + 1).min(dims.len())),
        SoftmaxAxes::From(axis) => (axis, dims.len()),
    };
    let parts = [&dims[..axis], &dims[axis..end], &dims[end..]].map(|part| part.iter().product());
    Ok(for_real!(site.dtype(0)?, site, T => if parts[2] == 1 {
        rows::<T, <T as Real>::Wide>(parts[1], log)
    } else {
        columns::<T, <T as Real>::Wide>(parts, log)
    }))
}

/// Operand 0; `None` if the result is computed in its place.
pub(super) fn first<'a, T: Element>(io: &Io<'a>) -> Result<Option<&'a [T]>> {
    if io.in_place == Some(0) { Ok(None) } else { io.slice(0).map(Some) }
}

/// Along the last axis.
fn rows<T: Load<A>, A: Wide + Number>(n: usize, log: bool) -> Prepared {
    Prepared::new(move |io| {
        let from = first::<T>(io)?;
        let n = n.max(1);
        pieces(io.out::<T>(0)?, (PIECE / n).max(1) * n, |start, to| {
            let mut room = (T::same(to).is_none() && n <= ROW).then(|| [A::default(); ROW]);
            for (i, row) in to.chunks_mut(n).enumerate() {
                let at = start + i * n;
                let from = from.map(|from| &from[at..at + n]);
                if let Some(room) = &mut room {
                    let room = &mut room[..n];
                    T::load(from.unwrap_or(row), room);
                    if log {
                        log_softmax_row(room)
                    } else {
                        softmax_row(room)
                    }
                    T::store(room, row);
                    continue;
                }
                if let Some(from) = from {
                    row.copy_from_slice(from);
                }
                if log { log_softmax_row(row) } else { softmax_row(row) }
            }
        });
        Ok(())
    })
    .in_place(&[0])
}

/// Softmax in place.
pub(super) fn softmax_row<T: Load<A>, A: Wide + Number>(row: &mut [T]) {
    let max = fold_run(greatest::<A>(), row, A::zero());
    if let Some(wide) = T::same_mut(row) {
        widest(|| wide.iter_mut().for_each(|x| *x = exp(*x - max)));
        let sum = fold_run(Sum, row, A::zero());
        transform(None::<&[T]>, row, |_, block| block.iter_mut().for_each(|x: &mut A| *x = *x / sum));
        return;
    }
    let sum = fold_run(SumOfExps, row, max);
    transform(None::<&[T]>, row, |_, block| {
        widest(|| block.iter_mut().for_each(|x: &mut A| *x = exp(*x - max) / sum));
    });
}

/// Softmax of a row in place, computed in `S`. Elements of -∞ become 0; a row of -∞ becomes zeros.
pub(crate) fn masked_softmax<W: Wide, S: Wide>(row: &mut [W]) {
    let top = row.iter().fold(W::neg_infinity(), |top, &x| top.max(x));
    let top = S::of(if top == W::neg_infinity() { W::zero() } else { top }.to());
    let mut sum = S::zero();
    // Partial sums keep the error small and are not one long chain.
    for part in row.chunks_mut(64) {
        let mut partial = [S::zero(); 8];
        for (i, x) in part.iter_mut().enumerate() {
            let e = (S::of(x.to()) - top).exp();
            *x = W::of(e.to());
            partial[i % 8] = partial[i % 8] + e;
        }
        sum = sum + partial.into_iter().sum::<S>();
    }
    let sum = if sum.is_zero() { S::one() } else { sum };
    row.iter_mut().for_each(|x| *x = W::of((S::of(x.to()) / sum).to()));
}

/// LogSoftmax in place.
fn log_softmax_row<T: Load<A>, A: Wide + Number>(row: &mut [T]) {
    let max = fold_run(greatest::<A>(), row, A::zero());
    let log_sum = log_of_sum(max, fold_run(SumOfOtherExps, row, max), fold_run(Count, row, max));
    transform(None::<&[T]>, row, |_, block| block.iter_mut().for_each(|x: &mut A| *x = *x - max - log_sum));
}

/// `ln Σ exp(x - m)`, given the greatest element `m`, the sum of those that are not the greatest, and how many are. NaN if
/// `m` is infinite, as the term of the greatest element is then.
fn log_of_sum<A: Wide>(max: A, others: A, greatest: A) -> A {
    (others + (greatest - A::one()) + max * A::zero()).ln_1p()
}

/// Along an axis with others behind it: the greatest elements and the sums first, then all elements.
fn columns<T: Load<A>, A: Wide + Number>(parts: [usize; 3], log: bool) -> Prepared {
    let statistics = Statistics::new(parts);
    let bytes = statistics.bytes::<A>();
    Prepared::new(move |io| {
        let from = first::<T>(io)?;
        let to = io.out::<T>(0)?;
        let stats = statistics.compute(from.unwrap_or(to), io.scratch::<A>(), log);
        if log {
            spread(&statistics.walk, from, stats, to, |x, [max, log_sum]| x - max - log_sum);
        } else {
            spread(&statistics.walk, from, stats, to, |x, [max, sum]| exp(x - max) / sum);
        }
        Ok(())
    })
    .in_place(&[0])
    .scratch(bytes)
}

/// Statistics of the elements for softmaxes along the middle one of three axes.
pub(super) struct Statistics {
    folding: Folding,
    /// The walk over the elements together with their statistics.
    pub(super) walk: Walk,
}

impl Statistics {
    /// For elements with such axes.
    pub(super) fn new(dims: [usize; 3]) -> Statistics {
        let walk = Walk::new(&dims, &[&[dims[0], 1, dims[2]]]);
        Statistics { folding: Folding::new(&dims, |axis| axis == 1), walk }
    }

    /// How much room they take.
    pub(super) fn bytes<A>(&self) -> usize {
        3 * self.folding.results * size_of::<A>()
    }

    /// The greatest element of each column, and the sum of exponentials seen from it or the logarithm of that.
    pub(super) fn compute<'a, T: Load<A>, A: Wide + Number>(
        &self,
        from: &[T],
        room: &'a mut [A],
        log: bool,
    ) -> [&'a [A]; 2] {
        let results = self.folding.results;
        let (max, room) = room.split_at_mut(results);
        let (sum, room) = room.split_at_mut(results);
        self.folding.fold(greatest(), from, None, max, &|m, _| m);
        if log {
            let counts = &mut room[..results];
            self.folding.fold(SumOfOtherExps, from, Some(max), sum, &|sum, _| sum);
            self.folding.fold(Count, from, Some(max), counts, &|count, _| count);
            let parts = sum.iter_mut().zip(counts).zip(&*max);
            parts.for_each(|((sum, count), &max)| *sum = log_of_sum(max, *sum, *count));
        } else {
            self.folding.fold(SumOfExps, from, Some(max), sum, &|sum, _| sum);
        }
        [max, sum]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_softmax_of_infinities() {
        let (infinity, log_2) = (f32::INFINITY, 2.0f32.ln());
        let mut row = [infinity, 0.0, 1.0];
        log_softmax_row::<f32, f32>(&mut row);
        assert!(row.iter().all(|x| x.is_nan()));
        let mut row = [-infinity, 0.0, 0.0];
        log_softmax_row::<f32, f32>(&mut row);
        assert_eq!(row, [-infinity, -log_2, -log_2]);
    }

    #[test]
    fn softmax_of_masked_rows() {
        let minus = f32::NEG_INFINITY;
        let mut row = [minus, 0.0, 0.0];
        masked_softmax::<f32, f64>(&mut row);
        assert_eq!(row, [0.0, 0.5, 0.5]);
        let mut row = [minus, minus];
        masked_softmax::<f32, f32>(&mut row);
        assert_eq!(row, [0.0, 0.0]);
        let mut row = [f32::NAN, 1.0];
        masked_softmax::<f32, f32>(&mut row);
        assert!(row.iter().all(|x| x.is_nan()));
    }
}
