//! Statistics of f32 numbers, block by block.
//!
//! For a block, its largest and its smallest nonzero magnitude decide which counts can be other than 0. Example: the block
//! 0.5, 3.0, 1e-6, 0.0. Its largest magnitude 3.0 is below the largest f16 number 65504, so no element is beyond f16. Its
//! smallest 1e-6 is above the largest number that f16 rounds to 0, which is 3.0e-8, so no element is compared with that
//! number. Elements below powers of two, such as the smallest normal number, follow from the counts of exponents.
//!
//! Rounding to a format of p significant bits is an addition and a subtraction of a power of two whose unit in the last
//! place, as f32, is that of the rounded number. Example: 1.2345 has the exponent 0. f16 has 11 significant bits, so its
//! unit is 2^-10 there, and f32 has that unit from 2^13 on: `(1.2345 + 8192) - 8192 = 1.234375`.

use super::{BLOCK, FORMATS, LIMITS, Limits, Statistics, pow2};
use crate::cpu::kernels::vector::widest_512;
use ampc_ir::DType;

/// Adds numbers that are converted to f32 block by block.
pub(super) fn in_blocks<T>(found: &mut Statistics, numbers: &[T], convert: impl Fn(&[T], &mut [f32])) {
    let mut block = [0.0f32; BLOCK];
    let mut counts = Counts::new();
    for numbers in numbers.chunks(BLOCK) {
        let block = &mut block[..numbers.len()];
        convert(numbers, block);
        add_block(found, &mut counts, block);
    }
    counts.add_to(found);
}

/// Adds f32 numbers.
pub(super) fn add_f32s(found: &mut Statistics, numbers: &[f32]) {
    let mut counts = Counts::new();
    numbers.chunks(BLOCK).for_each(|block| add_block(found, &mut counts, block));
    counts.add_to(found);
}

/// Exponents of f32 numbers, counted in several tables, so that a count need not wait for the count before it.
struct Counts([[u32; 256]; 4]);

impl Counts {
    fn new() -> Counts {
        Counts([[0; 256]; 4])
    }

    /// Counts numbers that are zero or normal, at most 2^32 - 1 in all calls.
    fn count(&mut self, block: &[f32]) {
        let [a, b, c, d] = &mut self.0;
        let field = |number: f32| (number.to_bits() >> 23 & 0xff) as usize;
        let fours = block.chunks_exact(4);
        for &number in fours.remainder() {
            a[field(number)] += 1;
        }
        for four in fours {
            a[field(four[0])] += 1;
            b[field(four[1])] += 1;
            c[field(four[2])] += 1;
            d[field(four[3])] += 1;
        }
    }

    /// Adds the counts of zeros and exponents, and those of numbers below a power of two, which follow from their exponents.
    fn add_to(&self, found: &mut Statistics) {
        for (exponent, field) in (-127..).zip(0..255) {
            let count: u64 = self.0.iter().map(|counts| u64::from(counts[field])).sum();
            if count > 0 && field == 0 {
                found.zeros += count;
            } else if count > 0 {
                *found.exponents.entry(exponent).or_default() += count;
                for (rounded, limits) in found.rounded.iter_mut().zip(&LIMITS) {
                    let below = |limit: i32| if exponent < limit { count } else { 0 };
                    rounded.below_normal += below(limits.least_exponent);
                    rounded.below_subnormal += below(limits.least_exponent - limits.precision + 1);
                    rounded.flushed += below(limits.least_exponent - limits.precision);
                }
            }
        }
    }
}

/// The range of a block: minimum, maximum, largest magnitude, and smallest magnitude other than 0 (infinity without).
struct Range {
    min: f32,
    max: f32,
    largest: f32,
    smallest: f32,
}

/// The range of a block that is not empty, and true if the block has no NaN, infinity or subnormal number. The range of a
/// block with NaN has no meaning.
///
/// Minimums and maximums of integers are computed in wide vectors, those of floats are not. So numbers are compared by
/// their [`key`], and magnitudes by their bits, which have the order of the magnitudes. Subtracting 1 wraps the bits of 0
/// to `u32::MAX`, so zeros do not count as the smallest magnitude.
#[inline(always)]
fn range(block: &[f32]) -> (Range, bool) {
    let (mut min, mut max, mut largest, mut smallest) = (i32::MAX, i32::MIN, 0, u32::MAX);
    for &number in block {
        let magnitude = number.abs().to_bits();
        min = min.min(key(number.to_bits().cast_signed()));
        max = max.max(key(number.to_bits().cast_signed()));
        largest = largest.max(magnitude.cast_signed());
        smallest = smallest.min(magnitude.wrapping_sub(1));
    }
    let number = |of_key: i32| f32::from_bits(key(of_key).cast_unsigned());
    let range = Range {
        min: number(min),
        max: number(max),
        largest: f32::from_bits(largest.cast_unsigned()),
        smallest: smallest.checked_add(1).map_or(f32::INFINITY, f32::from_bits),
    };
    // Subnormal numbers have no exponent of their own.
    let is_plain = range.largest < f32::INFINITY && range.smallest >= f32::MIN_POSITIVE;
    (range, is_plain)
}

/// An integer in the order of the floats, from the bits of a float: negative numbers have all bits but the sign inverted.
/// The function is its own inverse.
#[inline(always)]
fn key(bits: i32) -> i32 {
    bits ^ ((bits >> 31) & i32::MAX)
}

fn add_block(found: &mut Statistics, counts: &mut Counts, block: &[f32]) {
    let (range, is_plain) = widest_512(|| range(block));
    if is_plain {
        return add_plain(found, counts, block, &range);
    }
    // Subnormal numbers, infinities and NaN are added one by one, the other numbers as a block.
    let (mut plain, mut length) = ([0.0; BLOCK], 0);
    for &number in block {
        if number == 0.0 || number.is_normal() {
            plain[length] = number;
            length += 1;
        } else {
            found.float(number.into());
        }
    }
    let plain = &plain[..length];
    if length > 0 {
        let (range, _) = widest_512(|| self::range(plain));
        add_plain(found, counts, plain, &range);
    }
}

/// Adds numbers that are zero or normal, of this range.
fn add_plain(found: &mut Statistics, counts: &mut Counts, block: &[f32], range: &Range) {
    found.count += block.len() as u64;
    // The sum of -0 and 0 is 0.
    found.min = found.min.min(f64::from(range.min) + 0.0);
    found.max = found.max.max(f64::from(range.max) + 0.0);
    found.max_abs = found.max_abs.max(range.largest.into());
    found.min_abs = found.min_abs.min(range.smallest.into());
    counts.count(block);
    for (format, (rounded, limits)) in found.rounded.iter_mut().zip(&LIMITS).enumerate() {
        let &Limits { largest, overflow, flush, .. } = limits;
        if range.largest > largest {
            rounded.beyond += count_if(block, move |magnitude| magnitude > largest);
        }
        if range.largest >= overflow {
            rounded.overflow += count_if(block, move |magnitude| magnitude >= overflow);
        }
        // Numbers below it are counted by their exponents.
        if range.smallest <= flush && range.largest >= flush {
            rounded.flushed += count_if(block, move |magnitude| magnitude == flush);
        }
        let max_error = &mut rounded.max_relative_error;
        let (least, shift) = (limits.normal.to_bits(), (24 - limits.precision).cast_unsigned() << 23);
        match FORMATS[format] {
            DType::BF16 => raise(max_error, block, range.smallest, limits, nearest_bf16),
            _ => {
                raise(max_error, block, range.smallest, limits, move |number| nearest(number, least, shift));
            }
        }
    }
}

/// The number of magnitudes that meet a condition, which has no branch.
fn count_if(block: &[f32], is_met: impl Fn(f32) -> bool) -> u64 {
    widest_512(move || block.iter().map(|number| u32::from(is_met(number.abs()))).sum::<u32>()).into()
}

/// Raises the largest relative error by the errors of a block with this smallest magnitude other than 0.
///
/// Most blocks contain no larger error than the blocks before them, so the errors are compared first, with a margin for
/// the rounding of the product, and divided only where the comparison finds a candidate. The loops have no branch, so that
/// they are computed in wide vectors.
///
/// The error of a normal number of the format is below the unit roundoff. The error of a smaller number is at most half the
/// smallest subnormal number, which is `flush`, so its relative error is at most `flush` divided by the number. So once the
/// largest error is at least the unit roundoff, only numbers below `flush` divided by it can have a larger error. Example: f16
/// has the `flush` 3.0e-8, so behind an error of 0.5, only numbers between 3.0e-8 and 6.0e-8 are compared.
#[inline(always)]
fn raise(
    max_error: &mut f32,
    block: &[f32],
    smallest: f32,
    limits: &Limits,
    nearest: impl Fn(f32) -> f32 + Copy,
) {
    let (flush, overflow) = (limits.flush, limits.overflow);
    let counts = move |magnitude: f32| (magnitude > flush) & (magnitude < overflow);
    let error = move |magnitude: f32| (nearest(magnitude) - magnitude).abs();
    if *max_error >= pow2(-limits.precision) {
        let below = flush / *max_error * (1.0 + 8.0 * f32::EPSILON);
        let is_candidate = move |magnitude: f32| (magnitude > flush) & (magnitude < below);
        if smallest >= below || count_if(block, is_candidate) == 0 {
            return;
        }
    }
    let least = *max_error * (1.0 - 8.0 * f32::EPSILON);
    // The rounding of a product below the normal range may exceed the margin.
    let is_exact = least == 0.0 || least * smallest.max(flush) >= f32::MIN_POSITIVE;
    let has_larger = move || {
        let is_larger = |magnitude| counts(magnitude) & (error(magnitude) > least * magnitude);
        block.iter().fold(0, |any, number| any | u32::from(is_larger(number.abs()))) != 0
    };
    if is_exact && !widest_512(has_larger) {
        return;
    }
    let largest = move || {
        // Errors are not negative, so their bits have their order.
        let ratio = |magnitude| {
            ((error(magnitude) / magnitude).to_bits() * u32::from(counts(magnitude))).cast_signed()
        };
        block.iter().map(|number| ratio(number.abs())).fold(0, i32::max)
    };
    *max_error = max_error.max(f32::from_bits(widest_512(largest).cast_unsigned()));
}

/// The nearest number of a format with a least exponent above that of f32, for a normal f32 number that does not
/// overflow; `least` has the bits of the smallest normal number, `shift` those of the lost significant bits as an exponent.
#[inline(always)]
fn nearest(magnitude: f32, least: u32, shift: u32) -> f32 {
    let power = (magnitude.to_bits() & 0x7f80_0000).max(least);
    // Larger magnitudes, where this sum wraps, are ignored by `raise`.
    let unit = f32::from_bits(power.wrapping_add(shift));
    (magnitude + unit) - unit
}

/// The nearest bf16 number of a magnitude that does not overflow.
#[inline(always)]
fn nearest_bf16(magnitude: f32) -> f32 {
    let bits = magnitude.to_bits();
    f32::from_bits(bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}
