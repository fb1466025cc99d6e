//! Ranges of numbers, and arithmetic on them.

use crate::analysis::dataflow::Lattice;
use ampc_ir::DType;
use ampc_ir::convert::{Conversion, convert, min_normal};

/// Ends to which a range that keeps growing is widened: limits of formats, and ends that many functions keep.
const THRESHOLDS: [f64; 9] =
    [f64::NEG_INFINITY, -MOST, -65504.0, -1.0, 0.0, 1.0, 65504.0, MOST, f64::INFINITY];

/// The largest finite number of f32.
pub(super) const MOST: f64 = f32::MAX as f64;

/// Exponentials of numbers farther from 0 may overflow or vanish.
pub(super) const LARGEST_EXPONENT: f64 = 80.0;

/// Integers up to here are exact in f64.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// The terms that any device adds one after the other: longer sums are split between threads or blocks.
const MAX_DEPTH: u64 = 1 << 20;

/// The set of values that the elements of a tensor may have: numbers between two ends, which belong to it and may be
/// infinite, and NaN or not.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Range {
    lo: f64,
    hi: f64,
    nan: bool,
}

impl Range {
    /// Every value.
    pub const UNKNOWN: Range = Range { lo: f64::NEG_INFINITY, hi: f64::INFINITY, nan: true };
    /// No value: the range of a tensor that is never computed.
    pub(super) const EMPTY: Range = Range { lo: f64::INFINITY, hi: f64::NEG_INFINITY, nan: false };
    /// The number 0.
    pub(super) const ZERO: Range = Range { lo: 0.0, hi: 0.0, nan: false };
    /// From 0 to 1.
    pub(super) const UNIT: Range = Range { lo: 0.0, hi: 1.0, nan: false };
    /// From −1 to 1.
    pub(super) const SIGNED_UNIT: Range = Range { lo: -1.0, hi: 1.0, nan: false };

    /// All numbers from the lower to the upper end, without NaN; [`UNKNOWN`](Self::UNKNOWN) if the ends are in the wrong
    /// order or NaN.
    pub fn between(lo: f64, hi: f64) -> Range {
        if lo <= hi { Range { lo, hi, nan: false } } else { Range::UNKNOWN }
    }

    /// All values of an element type.
    pub(crate) fn of_type(dtype: Option<DType>) -> Range {
        match dtype {
            Some(DType::Bool) => Range::UNIT,
            Some(dtype) if dtype.is_integer() => {
                let all = dtype.bits().map_or(f64::INFINITY, |bits| count(1 << (bits.min(64) - 1)) * 2.0);
                let signed =
                    matches!(dtype, DType::I2 | DType::I4 | DType::I8 | DType::I16 | DType::I32 | DType::I64);
                let (lo, hi) = if signed { (-all / 2.0, all / 2.0 - 1.0) } else { (0.0, all - 1.0) };
                Range::between(lo, hi)
            }
            Some(_) | None => Range::UNKNOWN,
        }
    }

    /// The lower end.
    pub fn lo(self) -> f64 {
        self.lo
    }
    /// The upper end.
    pub fn hi(self) -> f64 {
        self.hi
    }
    /// True if NaN may be among the values.
    pub fn may_be_nan(self) -> bool {
        self.nan
    }
    /// True if all values are finite numbers.
    pub fn is_finite(self) -> bool {
        !self.nan && self.lo.is_finite() && self.hi.is_finite()
    }
    /// The greatest magnitude.
    pub fn magnitude(self) -> f64 {
        self.lo.abs().max(self.hi.abs())
    }
    /// True if a number is in the range; of NaN, if it may be.
    pub fn contains(self, number: f64) -> bool {
        if number.is_nan() { self.nan } else { self.lo <= number && number <= self.hi }
    }

    /// True if an end is infinite.
    pub(super) fn has_infinity(self) -> bool {
        self.lo == f64::NEG_INFINITY || self.hi == f64::INFINITY
    }
    pub(super) fn has_zero(self) -> bool {
        self.lo <= 0.0 && self.hi >= 0.0
    }
    /// The number, if it is the only value.
    pub(super) fn number(self) -> Option<f64> {
        (self.lo == self.hi && !self.nan).then_some(self.lo)
    }

    /// The range with NaN, if something holds.
    pub(super) fn or_nan(self, may_be: bool) -> Range {
        Range { nan: self.nan || may_be, ..self }
    }
    /// The values of two ranges.
    pub(super) fn hull(self, other: Range) -> Range {
        Range { lo: self.lo.min(other.lo), hi: self.hi.max(other.hi), nan: self.nan || other.nan }
    }
    /// The values that are in a range without NaN too, for functions with bounds.
    pub(super) fn within(self, bounds: Range) -> Range {
        let (lo, hi) = (self.lo.max(bounds.lo), self.hi.min(bounds.hi));
        if lo <= hi { Range { lo, hi, ..self } } else { Range { nan: self.nan, ..bounds } }
    }
    /// The values of a function that grows with its operand.
    pub(super) fn grown(self, f: impl Fn(f64) -> f64) -> Range {
        Range::between(f(self.lo), f(self.hi)).or_nan(self.nan)
    }
    /// The range with ends farther apart, by a share of each end and by an amount.
    pub(super) fn loosened(self, share: f64, amount: f64) -> Range {
        // The share of an infinite end is no number if the share is 0.
        let by = |end: f64| if end.is_finite() { end.abs() * share + amount } else { 0.0 };
        Range { lo: self.lo - by(self.lo), hi: self.hi + by(self.hi), ..self }
    }

    pub(super) fn negated(self) -> Range {
        // 0 − x and not −x: no −0 in evidence.
        Range { lo: 0.0 - self.hi, hi: 0.0 - self.lo, ..self }
    }
    pub(super) fn magnitudes(self) -> Range {
        let least = if self.has_zero() { 0.0 } else { self.lo.abs().min(self.hi.abs()) };
        Range { lo: least, hi: self.magnitude(), ..self }
    }
    pub(super) fn plus(self, other: Range) -> Range {
        let cancels = |a: Range, b: Range| a.hi == f64::INFINITY && b.lo == f64::NEG_INFINITY;
        let (lo, hi) = (self.lo + other.lo, self.hi + other.hi);
        let nan = self.nan || other.nan || cancels(self, other) || cancels(other, self);
        if lo.is_nan() || hi.is_nan() { Range::UNKNOWN } else { Range { lo, hi, nan } }
    }
    pub(super) fn minus(self, other: Range) -> Range {
        self.plus(other.negated())
    }
    pub(super) fn times(self, other: Range) -> Range {
        let vanishes = |a: Range, b: Range| a.has_zero() && b.has_infinity();
        let nan = self.nan || other.nan || vanishes(self, other) || vanishes(other, self);
        self.of_ends(other, |a, b| if a == 0.0 || b == 0.0 { 0.0 } else { a * b }).or_nan(nan)
    }
    pub(super) fn scaled(self, by: f64) -> Range {
        self.times(Range::between(by, by))
    }
    pub(super) fn over(self, other: Range) -> Range {
        let both_infinite = self.has_infinity() && other.has_infinity();
        let nan = self.nan || other.nan || both_infinite;
        if other.has_zero() {
            // The sign of a zero counts: 1/−0 is −∞.
            return Range { nan: nan || self.has_zero(), ..Range::UNKNOWN };
        }
        self.of_ends(other, |a, b| if b.is_infinite() { 0.0 } else { a / b }).or_nan(nan)
    }
    /// The numbers between the results of an operation on the ends, which is where its extremes are.
    fn of_ends(self, other: Range, op: impl Fn(f64, f64) -> f64) -> Range {
        let ends = [(self.lo, other.lo), (self.lo, other.hi), (self.hi, other.lo), (self.hi, other.hi)]
            .map(|(a, b)| op(a, b));
        let lo = ends.into_iter().fold(f64::INFINITY, f64::min);
        let hi = ends.into_iter().fold(f64::NEG_INFINITY, f64::max);
        if ends.iter().any(|end| end.is_nan()) { Range::UNKNOWN } else { Range::between(lo, hi) }
    }

    /// The sum of `n` values, added in any order in fp32; `None` stands for an unknown number from 1 on. Values beyond
    /// the range of fp32 may become infinite on the way, and infinities of both signs NaN.
    pub(super) fn summed(self, n: Option<u64>) -> Range {
        let total = self.magnitude() * n.map_or(f64::INFINITY, count);
        let slack = gamma(n) * total + underflow(n.unwrap_or(1));
        if self.is_finite() && total + slack < MOST {
            let by = count(n.unwrap_or(1));
            let sum = Range::between(self.lo * by - slack, self.hi * by + slack);
            return sum.signed_as(self);
        }
        let unbounded = Range { nan: self.nan || (self.lo < 0.0 && self.hi > 0.0), ..Range::UNKNOWN };
        if self.magnitude() == 0.0 { self } else { unbounded.signed_as(self) }
    }

    /// The mean of `n` values, added in any order in fp32 and then divided.
    pub(super) fn averaged(self, n: Option<u64>) -> Range {
        // More elements fit in no memory.
        let total = self.magnitude() * n.map_or(2f64.powi(40), count);
        if !self.is_finite() || total * (1.0 + gamma(n)) >= MOST {
            return self.summed(None);
        }
        self.loosened(0.0, gamma(n) * self.magnitude()).signed_as(self)
    }

    /// The range without numbers whose sign no number of another range has: rounding keeps signs.
    pub(super) fn signed_as(self, other: Range) -> Range {
        let lo = if other.lo >= 0.0 { self.lo.max(0.0) } else { self.lo };
        let hi = if other.hi <= 0.0 { self.hi.min(0.0) } else { self.hi };
        Range { lo, hi, ..self }
    }

    /// The range of the values as an element type stores them: rounded, infinite beyond the range of a float, wrapped
    /// beyond the range of an integer, and perhaps 0 below the normal numbers of fp32.
    pub(super) fn stored(self, dtype: Option<DType>) -> Range {
        match dtype {
            Some(DType::F32) => {
                Range { lo: below(self.lo).into(), hi: above(self.hi).into(), ..self }.flushed(DType::F32)
            }
            Some(DType::F64) => Range { lo: self.lo.next_down(), hi: self.hi.next_up(), ..self },
            Some(low @ (DType::F16 | DType::BF16)) => {
                let (lo, hi) = (nearest(below(self.lo), low), nearest(above(self.hi), low));
                Range { lo, hi, ..self }.flushed(low)
            }
            Some(DType::Bool) => Range::UNIT,
            Some(integer) if integer.is_integer() => {
                let all = Range::of_type(dtype);
                let fits = self.is_finite() && self.magnitude() < EXACT;
                let fits = fits && all.lo <= self.lo && self.hi <= all.hi;
                if fits { Range { lo: self.lo.floor(), hi: self.hi.ceil(), ..self } } else { all }
            }
            Some(_) | None => Range::UNKNOWN,
        }
    }

    /// The range with 0 if an end is below the normal numbers of a format, which devices may flush to 0.
    pub(super) fn flushed(self, dtype: DType) -> Range {
        let smallest = min_normal(dtype).unwrap_or(0.0);
        let lo = if self.lo > 0.0 && self.lo < smallest { 0.0 } else { self.lo };
        let hi = if self.hi < 0.0 && self.hi > -smallest { 0.0 } else { self.hi };
        Range { lo, hi, ..self }
    }
}

impl Lattice for Range {
    fn bottom() -> Self {
        Range::EMPTY
    }
    fn join(&self, other: &Self) -> Self {
        self.hull(*other)
    }
    fn widen(&self, wider: &Self) -> Self {
        let below = |end: f64| THRESHOLDS.into_iter().rev().find(|&t| t <= end).unwrap_or(f64::NEG_INFINITY);
        let above = |end: f64| THRESHOLDS.into_iter().find(|&t| t >= end).unwrap_or(f64::INFINITY);
        let lo = if wider.lo < self.lo { below(wider.lo) } else { wider.lo };
        let hi = if wider.hi > self.hi { above(wider.hi) } else { wider.hi };
        Range { lo, hi, ..*wider }
    }
}

/// A number of elements.
pub(super) fn count(n: u64) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "bounds have slack for the rounding of numbers beyond 2^53"
    )]
    let n = n as f64;
    n
}

/// The error of a sum of `n` terms in fp32 relative to the sum of their magnitudes, in whichever order they are added
/// (Higham, *Accuracy and Stability of Numerical Algorithms*, 4.2), with room for a few more roundings.
pub(super) fn gamma(n: Option<u64>) -> f64 {
    let depth = n.unwrap_or(MAX_DEPTH).min(MAX_DEPTH);
    count(depth + 4) * 2f64.powi(-24) * 1.125
}

/// The error of a sum of `n` terms each of which may be flushed to 0.
pub(super) fn underflow(n: u64) -> f64 {
    count(n) * f64::from(f32::MIN_POSITIVE)
}

/// The largest number of f32 that is not above a number.
fn below(number: f64) -> f32 {
    let found = to_f32(number);
    if f64::from(found) > number { found.next_down() } else { found }
}

/// The smallest number of f32 that is not below a number.
fn above(number: f64) -> f32 {
    let found = to_f32(number);
    if f64::from(found) < number { found.next_up() } else { found }
}

#[expect(clippy::cast_possible_truncation, reason = "the nearest number of f32 is asked for")]
fn to_f32(number: f64) -> f32 {
    number as f32
}

/// A number as a 16-bit format stores it.
fn nearest(number: f32, to: DType) -> f64 {
    let (mut low, mut wide) = (Vec::new(), Vec::new());
    convert(DType::F32, Conversion { to, clamp: false }, &number.to_le_bytes(), &mut low);
    convert(to, Conversion { to: DType::F64, clamp: false }, &low, &mut wide);
    wide.as_chunks::<8>().0.first().map_or(f64::from(number), |&bytes| f64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INF: f64 = f64::INFINITY;

    fn r(lo: f64, hi: f64) -> Range {
        Range::between(lo, hi)
    }

    #[test]
    fn arithmetic_knows_infinities_and_zeros() {
        let all = Range { lo: -INF, hi: INF, nan: false };
        assert_eq!(r(1.0, 2.0).plus(r(-3.0, 4.0)), r(-2.0, 6.0));
        assert_eq!(r(0.0, INF).plus(r(-1.0, 1.0)), r(-1.0, INF));
        assert!(r(0.0, INF).minus(r(0.0, INF)).may_be_nan());
        assert_eq!(r(-2.0, 3.0).times(r(-5.0, 1.0)), r(-15.0, 10.0));
        assert_eq!(r(0.0, 1.0).times(r(0.0, INF)), r(0.0, INF).or_nan(true));
        assert_eq!(r(2.0, 3.0).times(r(1.0, INF)), r(2.0, INF));
        assert_eq!(r(1.0, 2.0).over(r(2.0, 4.0)), r(0.25, 1.0));
        assert_eq!(r(1.0, 2.0).over(r(4.0, INF)), r(0.0, 0.5));
        assert_eq!(r(1.0, 2.0).over(r(0.0, 1.0)), all);
        assert!(r(0.0, 2.0).over(r(0.0, 1.0)).may_be_nan());
        assert!(r(0.0, INF).over(r(1.0, INF)).may_be_nan());
        assert_eq!(r(-3.0, 2.0).magnitudes(), r(0.0, 3.0));
    }

    #[test]
    fn stored_ranges_are_rounded_outward() {
        let third = r(1.0 / 3.0, 1.0 / 3.0).stored(Some(DType::F32));
        assert!(third.lo < 1.0 / 3.0 && third.hi > 1.0 / 3.0 && third.hi - third.lo < 1e-7);
        assert_eq!(r(0.5, 1.0).stored(Some(DType::F32)), r(0.5, 1.0));
        assert_eq!(r(-1.0, 1e39).stored(Some(DType::F32)), r(-1.0, INF));
        assert_eq!(r(1e-40, 1.0).stored(Some(DType::F32)), r(0.0, 1.0));
        assert_eq!(r(-1.0, 65520.0).stored(Some(DType::F16)), r(-1.0, INF));
        assert_eq!(r(-1.0, 65519.0).stored(Some(DType::F16)), r(-1.0, 65504.0));
        assert_eq!(r(-1.0, 127.0).stored(Some(DType::I8)), r(-1.0, 127.0));
        assert_eq!(r(-1.0, 128.0).stored(Some(DType::I8)), r(-128.0, 127.0));
        assert_eq!(Range::of_type(Some(DType::U8)), r(0.0, 255.0));
        assert_eq!(r(0.0, 1.0).stored(None), Range::UNKNOWN);
    }

    #[test]
    fn sums_overflow_and_keep_signs() {
        let sum = r(-1.0, 2.0).summed(Some(10));
        assert!(sum.lo <= -10.0 && sum.hi >= 20.0 && sum.hi < 20.001 && sum.is_finite());
        assert_eq!(r(0.0, 1.0).summed(None), r(0.0, INF));
        assert!(r(-1.0, 1.0).summed(None).may_be_nan());
        assert_eq!(r(0.0, 1e38).summed(Some(10)), r(0.0, INF));
        assert!(r(-1.0, 2.0).averaged(None).is_finite());
        assert_eq!(r(0.0, 0.0).averaged(Some(7)), Range::ZERO);
        assert_eq!(r(0.0, 1e38).averaged(Some(10)), r(0.0, INF));
    }

    #[test]
    fn growing_ranges_are_widened_to_limits() {
        let widened = r(0.0, 1.0).widen(&r(-0.5, 2.0));
        assert_eq!(widened, r(-1.0, 65504.0));
        assert_eq!(widened.widen(&r(-1.0, 1e30)), r(-1.0, MOST));
        assert_eq!(Range::EMPTY.join(&r(1.0, 2.0)), r(1.0, 2.0));
    }
}
