//! Ranges of constants, and sums of weights.
//!
//! A constant is read at most twice: for its range, from the [`Statistics`] that guards read too, and for the sums of the
//! weights of a product.

use super::range::Range;
use crate::pass::statistics::Statistics;
use ampc_ir::convert::{Conversion, can_convert};
use ampc_ir::{DType, TensorData};
use rustc_hash::FxHashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Elements of the largest constant whose infinities are told by their sign, and whose integers are read.
const MAX_NUMBERS: u64 = 1 << 12;

/// Sums of the weights of the largest product whose weights are read.
const MAX_SUMS: u64 = 1 << 24;

/// The sums of the weights with which a product makes one element: of the positive weights, and of the magnitudes of the
/// others.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Sums {
    pub(super) positive: f64,
    pub(super) negative: f64,
}

/// The layout of weights in memory: `inner` elements for each of `summed` elements for each of `outer` elements. The
/// middle axis is summed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Layout {
    pub(super) outer: u64,
    pub(super) summed: u64,
    pub(super) inner: u64,
}

/// The constants that were read.
pub(super) struct Constants<'s> {
    statistics: &'s mut Statistics,
    /// By the address of the constant, which it keeps as long as it is held here.
    sums: FxHashMap<(*const TensorData, Layout), Kept>,
}

/// A constant and its sums, if they are known.
type Kept = (Arc<TensorData>, Option<Arc<[Sums]>>);

impl<'s> Constants<'s> {
    pub(super) fn new(statistics: &'s mut Statistics) -> Constants<'s> {
        Constants { statistics, sums: FxHashMap::default() }
    }

    /// The range of the elements of a constant.
    pub(super) fn range(&mut self, data: &Arc<TensorData>) -> Range {
        let dtype = data.dtype();
        let numbers = match data.small_ints(MAX_NUMBERS) {
            Some(ints) => Some(ints.into_iter().map(to_f64).collect()),
            None => data.small_floats(MAX_NUMBERS),
        };
        if let Some(numbers) = numbers {
            let each = numbers.into_iter().map(|number: f64| match number.is_nan() {
                true => Range::EMPTY.or_nan(true),
                false => Range::between(number, number),
            });
            let all = each.reduce(Range::hull).unwrap_or(Range::ZERO);
            // Nothing but NaN has no ends.
            return match dtype {
                _ if all.lo() > all.hi() => Range::UNKNOWN,
                integer if integer.is_integer() => all.stored(Some(integer)),
                other => all.flushed(other),
            };
        }
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 => match self.statistics.of(data, DType::F16) {
                Ok(Some(stats)) if stats.nonfinite == 0 => {
                    Range::between(stats.min.into(), stats.max.into()).flushed(dtype)
                }
                _ => Range::UNKNOWN,
            },
            other => Range::of_type(Some(other)),
        }
    }

    /// The sums of weights; `None` if they cannot be read, are too many or not finite.
    pub(super) fn sums(&mut self, data: &Arc<TensorData>, layout: Layout) -> Option<Arc<[Sums]>> {
        let key = (Arc::as_ptr(data), layout);
        let known = self.sums.entry(key);
        known.or_insert_with(|| (data.clone(), sum(data, layout).map(Arc::from))).1.clone()
    }
}

fn sum(data: &TensorData, layout: Layout) -> Option<Vec<Sums>> {
    let Layout { outer, summed, inner } = layout;
    let n_sums = outer.checked_mul(inner).filter(|&n| n <= MAX_SUMS)?;
    let fits = n_sums.checked_mul(summed) == Some(data.element_count()) && data.element_count() > 0;
    if !fits || !can_convert(data.dtype(), DType::F32) || data.dtype() == DType::F64 {
        return None;
    }
    let mut sums = vec![Sums::default(); usize::try_from(n_sums).ok()?];
    let (row, rows) = (usize::try_from(inner).ok()?, usize::try_from(summed).ok()?);
    let (mut first, mut at, mut left) = (0, 0, rows);
    let wide = data.converted(Conversion { to: DType::F32, clamp: false });
    let read = wide.visit_converted(|bytes| {
        let mut weights = bytes.as_chunks::<4>().0;
        while !weights.is_empty() {
            let (now, later) = weights.split_at(weights.len().min(row - at));
            for (sums, &weight) in sums[first + at..].iter_mut().zip(now) {
                let weight = f64::from(f32::from_le_bytes(weight));
                // NaN is among the others, so that a sum with NaN is NaN.
                if weight > 0.0 { sums.positive += weight } else { sums.negative -= weight }
            }
            (weights, at) = (later, at + now.len());
            if at == row {
                (at, left) = (0, left - 1);
            }
            if left == 0 {
                (first, left) = (first + row, rows);
            }
        }
        ControlFlow::Continue(())
    });
    let are_finite = sums.iter().all(|sums| (sums.positive + sums.negative).is_finite());
    (read.is_ok() && are_finite).then_some(sums)
}

#[expect(clippy::cast_precision_loss, reason = "ranges of integers beyond 2^53 are those of their type")]
fn to_f64(number: i64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_summed_along_the_middle_axis() {
        let data = Arc::new(TensorData::from_f32(&[2, 3], &[1.0, -2.0, 3.0, 4.0, 5.0, -6.0]).unwrap());
        let mut statistics = Statistics::default();
        let mut constants = Constants::new(&mut statistics);
        let mut sums = |outer, summed, inner| -> Option<Vec<(f64, f64)>> {
            let sums = constants.sums(&data, Layout { outer, summed, inner })?;
            Some(sums.iter().map(|sums| (sums.positive, sums.negative)).collect())
        };
        assert_eq!(sums(1, 2, 3).unwrap(), [(5.0, 0.0), (5.0, 2.0), (3.0, 6.0)]);
        assert_eq!(sums(2, 3, 1).unwrap(), [(4.0, 2.0), (9.0, 6.0)]);
        assert_eq!(sums(1, 6, 1).unwrap(), [(13.0, 8.0)]);
        assert_eq!(sums(1, 5, 1), None);
    }

    #[test]
    fn constants_have_the_range_of_their_elements() {
        let mut statistics = Statistics::default();
        let mut constants = Constants::new(&mut statistics);
        let mut of = |numbers: &[f32]| {
            constants.range(&Arc::new(TensorData::from_f32(&[numbers.len() as u64], numbers).unwrap()))
        };
        assert_eq!(of(&[1.0, -2.0, 0.5]), Range::between(-2.0, 1.0));
        assert_eq!(of(&[0.0, f32::NEG_INFINITY]), Range::between(f64::NEG_INFINITY, 0.0));
        assert_eq!(of(&[2.0, f32::NAN]), Range::between(2.0, 2.0).or_nan(true));
        assert_eq!(of(&[f32::NAN]), Range::UNKNOWN);
        let mut many = vec![0.25; 5000];
        assert_eq!(of(&many), Range::between(0.25, 0.25));
        many[4321] = f32::INFINITY;
        assert_eq!(of(&many), Range::UNKNOWN);
    }
}
