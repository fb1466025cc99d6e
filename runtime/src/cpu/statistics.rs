//! Statistics of the elements of tensors: their range, and the effect of rounding them to lower formats.
//!
//! [`Statistics`] of several tensors [merge](Statistics::merge) exactly: counts are added, and every other number is a
//! minimum or maximum, so neither the order of the tensors nor the number of threads changes a bit.
//!
//! A tensor is read once, in blocks that stay in the first-level cache. For a block of f32 numbers, its largest and its
//! smallest nonzero magnitude decide which counts can be other than 0. Example: the block 0.5, 3.0, 1e-6, 0.0. Its
//! largest magnitude 3.0 is below the largest f16 number 65504, so no element is beyond f16. Its smallest 1e-6 is below
//! the smallest normal f16 number 6.1e-5 and above the smallest subnormal number 6.0e-8. So the elements below the normal
//! range are counted (1), and no element is below the subnormal range.
//!
//! Rounding to a format of p significant bits is an addition and a subtraction of a power of two whose unit in the last
//! place, as f32, is that of the rounded number. Example: 1.2345 has the exponent 0. f16 has 11 significant bits, so its
//! unit is 2^-10 there, and f32 has that unit from 2^13 on: `(1.2345 + 8192) - 8192 = 1.234375`.

use super::kernels::parallel::each;
use super::kernels::vector::widest;
use crate::data::DataRef;
use crate::float::Format;
use crate::host::TensorRef;
use ampc_ir::DType;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::collections::BTreeMap;

/// The formats to which rounding is measured.
pub const FORMATS: [DType; 4] = [DType::F16, DType::BF16, DType::F8E4M3FN, DType::F8E5M2];

/// Elements that one thread takes at a time.
const PIECE: usize = 1 << 16;

/// Elements read at a time: they stay in the first-level cache.
const BLOCK: usize = 1 << 10;

/// Statistics of numbers. A boolean is 0 or 1, a complex element is two numbers, and integers above 2^53 are rounded
/// to f64.
#[derive(Clone, PartialEq, Debug)]
pub struct Statistics {
    /// The number of numbers.
    pub count: u64,
    /// The number of zeros, of either sign.
    pub zeros: u64,
    /// The number of NaN.
    pub nan: u64,
    /// The number of infinities.
    pub infinite: u64,
    /// The smallest number that is not NaN, where a zero is positive; infinity without such numbers.
    pub min: f64,
    /// The largest number that is not NaN, where a zero is positive; minus infinity without such numbers.
    pub max: f64,
    /// The largest magnitude of a finite number; 0 without finite numbers.
    pub max_abs: f64,
    /// The smallest magnitude of a finite number other than 0; infinity without such numbers.
    pub min_abs: f64,
    /// The number of finite numbers other than 0 by their exponent, the floor of log2 of the magnitude.
    pub exponents: BTreeMap<i32, u64>,
    /// The effect of rounding to each of [`FORMATS`], in order; all 0 if the numbers are integers.
    pub rounded: [Rounded; FORMATS.len()],
}

/// The effect of rounding finite numbers to the nearest number of a format, ties to even.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Rounded {
    /// The number of magnitudes larger than the largest finite number of the format.
    pub beyond: u64,
    /// The number of those among them whose rounded value is not finite.
    pub overflow: u64,
    /// The number of magnitudes other than 0 smaller than the smallest normal number of the format.
    pub below_normal: u64,
    /// The number of magnitudes other than 0 smaller than the smallest subnormal number of the format.
    pub below_subnormal: u64,
    /// The number of numbers other than 0 that are rounded to 0.
    pub flushed: u64,
    /// The largest relative error |rounded − x| / |x| of a number that neither overflows nor is rounded to 0, as f32.
    pub max_relative_error: f32,
}

impl Rounded {
    fn merge(&mut self, other: &Rounded) {
        self.beyond += other.beyond;
        self.overflow += other.overflow;
        self.below_normal += other.below_normal;
        self.below_subnormal += other.below_subnormal;
        self.flushed += other.flushed;
        self.max_relative_error = self.max_relative_error.max(other.max_relative_error);
    }
}

impl Default for Statistics {
    /// Statistics of no numbers.
    fn default() -> Statistics {
        Statistics {
            count: 0,
            zeros: 0,
            nan: 0,
            infinite: 0,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            max_abs: 0.0,
            min_abs: f64::INFINITY,
            exponents: BTreeMap::new(),
            rounded: Default::default(),
        }
    }
}

impl Statistics {
    /// The statistics of a tensor; `None` for strings.
    pub fn of(tensor: &TensorRef<'_>) -> Option<Statistics> {
        let mut found = Statistics::default();
        found.add(tensor).then_some(found)
    }

    /// The statistics of all tensors of a value; `None` without tensors of numbers. A tensor on a device has none.
    pub fn of_data(data: DataRef<'_>) -> Option<Statistics> {
        let mut found = Statistics::default();
        found.add_data(data).then_some(found)
    }

    /// Adds all tensors of a value. Returns true if there were any of numbers.
    fn add_data(&mut self, data: DataRef<'_>) -> bool {
        match data {
            DataRef::Tensor(tensor) => self.add(&tensor),
            DataRef::Sequence(sequence) => {
                // Every item is added, also behind an item with numbers.
                sequence.items().iter().filter(|item| self.add_data(item.view())).count() > 0
            }
            DataRef::Optional(maybe) => maybe.value.as_ref().is_some_and(|value| self.add_data(value.view())),
            DataRef::Device(_) => false,
        }
    }

    /// Adds the numbers of a tensor. Returns false for strings, which have none.
    pub fn add(&mut self, tensor: &TensorRef<'_>) -> bool {
        let Some(bytes) = tensor.bytes() else { return false };
        let dtype = tensor.dtype();
        match dtype {
            DType::F32 | DType::Complex64 => self.pieces(bytemuck::cast_slice::<u8, f32>(bytes), add_f32s),
            DType::F16 => self.pieces(bytemuck::cast_slice::<u8, f16>(bytes), |found, halves| {
                in_blocks(found, halves, |halves, to| halves.convert_to_f32_slice(to));
            }),
            DType::BF16 => self.pieces(bytemuck::cast_slice::<u8, bf16>(bytes), |found, halves| {
                in_blocks(found, halves, |halves, to| halves.convert_to_f32_slice(to));
            }),
            DType::F64 | DType::Complex128 => {
                self.pieces(bytemuck::cast_slice::<u8, f64>(bytes), |found, numbers| {
                    numbers.iter().for_each(|&number| found.float(number));
                });
            }
            _ if Format::of(dtype).is_some() => self.small(tensor),
            _ => self.ints(tensor),
        }
        true
    }

    /// Adds other numbers.
    pub fn merge(&mut self, other: &Statistics) {
        self.count += other.count;
        self.zeros += other.zeros;
        self.nan += other.nan;
        self.infinite += other.infinite;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.max_abs = self.max_abs.max(other.max_abs);
        self.min_abs = self.min_abs.min(other.min_abs);
        for (&exponent, &count) in &other.exponents {
            *self.exponents.entry(exponent).or_default() += count;
        }
        for (rounded, other) in self.rounded.iter_mut().zip(&other.rounded) {
            rounded.merge(other);
        }
    }

    /// The number of finite numbers.
    pub fn finite(&self) -> u64 {
        self.count - self.nan - self.infinite
    }

    /// The effect of rounding to one of [`FORMATS`]; `None` for other formats.
    pub fn rounded_to(&self, format: DType) -> Option<&Rounded> {
        FORMATS.iter().zip(&self.rounded).find_map(|(&of, rounded)| (of == format).then_some(rounded))
    }

    /// Adds numbers piece by piece, in parallel if there are many.
    fn pieces<T: Sync>(&mut self, numbers: &[T], add: impl Fn(&mut Statistics, &[T]) + Sync) {
        if numbers.len() <= PIECE {
            return add(self, numbers);
        }
        let n_pieces = numbers.len().div_ceil(PIECE);
        let mut start = Statistics::default();
        for (start, known) in start.rounded.iter_mut().zip(&self.rounded) {
            // Only larger errors have to be found.
            start.max_relative_error = known.max_relative_error;
        }
        let mut partial = vec![start; n_pieces];
        each(&mut partial, &|i, found| {
            add(found, &numbers[i * PIECE..numbers.len().min((i + 1) * PIECE)]);
        });
        partial.iter().for_each(|found| self.merge(found));
    }

    /// Adds the elements of a format of at most 8 bits.
    fn small(&mut self, tensor: &TensorRef<'_>) {
        let (mut block, mut at) = ([0.0f64; BLOCK], 0);
        loop {
            let read = tensor.read_f64s(at, &mut block);
            if read == 0 {
                return;
            }
            block[..read].iter().for_each(|&number| self.float(number));
            at += read;
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "documented: integers above 2^53 are rounded")]
    fn ints(&mut self, tensor: &TensorRef<'_>) {
        let (mut block, mut at) = ([0i128; BLOCK], 0);
        loop {
            let read = tensor.read_ints(at, &mut block);
            if read == 0 {
                return;
            }
            for number in block[..read].iter().map(|&number| number as f64) {
                self.count += 1;
                self.range(number);
            }
            at += read;
        }
    }

    /// Widens the range by a finite number, and counts its exponent.
    fn range(&mut self, number: f64) {
        // The sum of -0 and 0 is 0.
        let number = number + 0.0;
        self.min = self.min.min(number);
        self.max = self.max.max(number);
        let magnitude = number.abs();
        self.max_abs = self.max_abs.max(magnitude);
        if magnitude == 0.0 {
            self.zeros += 1;
        } else {
            self.min_abs = self.min_abs.min(magnitude);
            *self.exponents.entry(floor_log2(magnitude)).or_default() += 1;
        }
    }

    /// Adds a number of any float format.
    fn float(&mut self, number: f64) {
        self.count += 1;
        if number.is_nan() {
            self.nan += 1;
        } else if number.is_infinite() {
            self.infinite += 1;
            self.min = self.min.min(number);
            self.max = self.max.max(number);
        } else {
            self.range(number);
            if number != 0.0 {
                for (rounded, format) in self.rounded.iter_mut().zip(&LIMITS) {
                    rounded.count(number.abs(), format);
                }
            }
        }
    }
}

impl Rounded {
    /// Counts a positive finite number.
    fn count(&mut self, magnitude: f64, limits: &Limits) {
        let of = |found: bool| u64::from(found);
        let middle = f64::from(limits.middle);
        let overflows = magnitude > middle || magnitude == middle && limits.middle_overflows;
        let is_flushed = magnitude <= f64::from(limits.flush);
        self.beyond += of(magnitude > f64::from(limits.largest));
        self.overflow += of(overflows);
        self.below_normal += of(magnitude < f64::from(limits.normal));
        self.below_subnormal += of(magnitude < f64::from(limits.subnormal));
        self.flushed += of(is_flushed);
        if !overflows && !is_flushed {
            let unit = 2f64.powi(floor_log2(magnitude).max(limits.least_exponent) + 1 - limits.precision);
            let rounded = (magnitude / unit).round_ties_even() * unit;
            #[expect(clippy::cast_possible_truncation, reason = "an error is given as f32")]
            let error = ((rounded - magnitude).abs() / magnitude) as f32;
            self.max_relative_error = self.max_relative_error.max(error);
        }
    }
}

/// The floor of log2 of a positive finite number.
fn floor_log2(magnitude: f64) -> i32 {
    let bits = magnitude.to_bits();
    match (bits >> 52) as i32 {
        0 => -1011 - bits.leading_zeros().cast_signed(),
        exponent => exponent - 1023,
    }
}

/// The magnitudes at which rounding to a format changes, and its digits.
struct Limits {
    /// The largest finite number.
    largest: f32,
    /// The middle between the largest number and the number that would follow it. Larger magnitudes overflow.
    middle: f32,
    /// True if the middle overflows as well.
    middle_overflows: bool,
    /// The smallest f32 number that overflows.
    overflow: f32,
    /// The smallest normal number.
    normal: f32,
    /// The smallest subnormal number.
    subnormal: f32,
    /// The largest magnitude that is rounded to 0.
    flush: f32,
    /// Significant bits, including the implicit bit.
    precision: i32,
    /// The exponent of the smallest normal number.
    least_exponent: i32,
}

/// 2 to a power that is a normal or subnormal f32.
const fn pow2(exponent: i32) -> f32 {
    if exponent < -126 {
        f32::from_bits(1 << (exponent + 149))
    } else {
        f32::from_bits(((exponent + 127) as u32) << 23)
    }
}

/// The limits of a format by its precision, least exponent, largest number, and the middle between the largest number and
/// the number that would follow it.
const fn limits(
    precision: i32,
    least_exponent: i32,
    largest: f32,
    middle: f32,
    middle_overflows: bool,
) -> Limits {
    Limits {
        largest,
        middle,
        middle_overflows,
        overflow: if middle_overflows { middle } else { f32::from_bits(middle.to_bits() + 1) },
        normal: pow2(least_exponent),
        subnormal: pow2(least_exponent - precision + 1),
        flush: pow2(least_exponent - precision),
        precision,
        least_exponent,
    }
}

/// The limits of [`FORMATS`]. The middle between the largest number and the next power of two overflows in formats with
/// infinities, because the number below it is odd. In E4M3FN, the pattern behind the largest number 448 is NaN, and 448
/// is even, so the middle 464 is rounded to 448.
const LIMITS: [Limits; FORMATS.len()] = [
    limits(11, -14, 65504.0, 65520.0, true),
    limits(8, -126, f32::from_bits(0x7f7f_0000), f32::from_bits(0x7f7f_8000), true),
    limits(4, -6, 448.0, 464.0, false),
    limits(3, -14, 57344.0, 61440.0, true),
];

/// Adds numbers that are converted to f32 block by block.
fn in_blocks<T>(found: &mut Statistics, numbers: &[T], convert: impl Fn(&[T], &mut [f32])) {
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
fn add_f32s(found: &mut Statistics, numbers: &[f32]) {
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

    fn add_to(&self, found: &mut Statistics) {
        for (exponent, field) in (-127..).zip(0..255) {
            let count: u64 = self.0.iter().map(|counts| u64::from(counts[field])).sum();
            if count > 0 && field == 0 {
                found.zeros += count;
            } else if count > 0 {
                *found.exponents.entry(exponent).or_default() += count;
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
    let (range, is_plain) = widest(|| range(block));
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
        let (range, _) = widest(|| self::range(plain));
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
        let &Limits { largest, overflow, normal, subnormal, flush, .. } = limits;
        if range.largest > largest {
            rounded.beyond += count_if(block, move |magnitude| magnitude > largest);
        }
        if range.largest >= overflow {
            rounded.overflow += count_if(block, move |magnitude| magnitude >= overflow);
        }
        let count_below = |limit: f32, count: &mut u64| {
            if range.smallest < limit {
                *count += count_if(block, move |magnitude| (magnitude > 0.0) & (magnitude < limit));
            }
        };
        count_below(normal, &mut rounded.below_normal);
        count_below(subnormal, &mut rounded.below_subnormal);
        if range.smallest <= flush {
            rounded.flushed += count_if(block, move |magnitude| (magnitude > 0.0) & (magnitude <= flush));
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
    widest(move || block.iter().map(|number| u32::from(is_met(number.abs()))).sum::<u32>()).into()
}

/// Raises the largest relative error by the errors of a block with this smallest magnitude other than 0.
///
/// Most blocks contain no larger error than the blocks before them, so the errors are compared first, with a margin for
/// the rounding of the product, and divided only where the comparison finds a candidate. The loops have no branch, so that
/// they are computed in wide vectors.
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
    let least = *max_error * (1.0 - 8.0 * f32::EPSILON);
    // The rounding of a product below the normal range may exceed the margin.
    let is_exact = least == 0.0 || least * smallest.max(flush) >= f32::MIN_POSITIVE;
    let has_larger = move || {
        let is_larger = |magnitude| counts(magnitude) & (error(magnitude) > least * magnitude);
        block.iter().fold(0, |any, number| any | u32::from(is_larger(number.abs()))) != 0
    };
    if is_exact && !widest(has_larger) {
        return;
    }
    let largest = move || {
        // Errors are not negative, so their bits have their order.
        let ratio = |magnitude| {
            ((error(magnitude) / magnitude).to_bits() * u32::from(counts(magnitude))).cast_signed()
        };
        block.iter().map(|number| ratio(number.abs())).fold(0, i32::max)
    };
    *max_error = max_error.max(f32::from_bits(widest(largest).cast_unsigned()));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostTensor;
    use crate::cpu::pool::Pool;
    use proptest::prelude::*;

    /// Statistics by the path of single numbers.
    fn one_by_one(numbers: &[f32]) -> Statistics {
        let mut found = Statistics::default();
        numbers.iter().for_each(|&number| found.float(number.into()));
        found
    }

    fn of(numbers: &[f32]) -> Statistics {
        Statistics::of(&HostTensor::from_slice(&[numbers.len() as u64], numbers).unwrap().view()).unwrap()
    }

    #[test]
    fn every_measure_by_hand() {
        let found = of(&[0.5, -3.0, 1e-6, 0.0, 65510.0, 1e5, 2.0f32.powi(-25), f32::NAN, f32::NEG_INFINITY]);
        assert_eq!((found.count, found.zeros, found.nan, found.infinite), (9, 1, 1, 1));
        assert_eq!((found.min, found.max), (f64::NEG_INFINITY, 1e5));
        assert_eq!((found.max_abs, found.min_abs), (1e5, 2.0f64.powi(-25)));
        let exponents: Vec<_> = found.exponents.clone().into_iter().collect();
        assert_eq!(exponents, [(-25, 1), (-20, 1), (-1, 1), (1, 1), (15, 1), (16, 1)]);
        let f16 = found.rounded_to(DType::F16).unwrap();
        assert_eq!((f16.beyond, f16.overflow), (2, 1));
        assert_eq!((f16.below_normal, f16.below_subnormal, f16.flushed), (2, 1, 1));
        // 1e-6 is nearest to 17 units of 2^-24.
        let error = (17.0 * 2.0f64.powi(-24) - f64::from(1e-6f32)).abs() / f64::from(1e-6f32);
        assert!((f64::from(f16.max_relative_error) - error).abs() < 1e-8);
    }

    #[test]
    fn middles_are_rounded_to_even() {
        let rounded = |number: f32, format| *of(&[number]).rounded_to(format).unwrap();
        let ends = [
            (DType::F16, 65504.0, 65520.0),
            (DType::BF16, f32::from_bits(0x7f7f_0000), f32::from_bits(0x7f7f_8000)),
            (DType::F8E5M2, 57344.0, 61440.0),
        ];
        for (format, largest, middle) in ends {
            let below = f32::from_bits(middle.to_bits() - 1);
            assert_eq!((rounded(largest, format).beyond, rounded(below, format).beyond), (0, 1));
            assert_eq!((rounded(below, format).overflow, rounded(middle, format).overflow), (0, 1));
        }
        let above = f32::from_bits(464.0f32.to_bits() + 1);
        let wide = HostTensor::from_slice(&[1], &[464.000_01f64]).unwrap();
        let wide = Statistics::of(&wide.view()).unwrap();
        assert_eq!(wide.rounded_to(DType::F8E4M3FN).unwrap().overflow, 1);
        let of_fp8 = |number| rounded(number, DType::F8E4M3FN);
        assert_eq!((of_fp8(464.0).beyond, of_fp8(464.0).overflow, of_fp8(above).overflow), (1, 0, 1));
        for (format, limits) in FORMATS.into_iter().zip(&LIMITS) {
            let above = f32::from_bits(limits.flush.to_bits() + 1);
            assert_eq!((rounded(limits.flush, format).flushed, rounded(above, format).flushed), (1, 0));
            assert_eq!(rounded(limits.subnormal, format).below_subnormal, 0);
            assert_eq!(
                (rounded(limits.normal, format).below_normal, rounded(above, format).below_normal),
                (0, 1)
            );
        }
    }

    #[test]
    fn errors_below_the_normal_range_of_products_are_exact() {
        let block = |first: u32| [&[f32::from_bits(first)], &[1.0; BLOCK - 1][..]].concat();
        let blocks = [block(0x3f80_8007), block(0x0080_7ff9)];
        for order in [[0, 1], [1, 0]] {
            let numbers = order.map(|at| blocks[at].clone()).concat();
            assert_eq!(text(&of(&numbers)), text(&one_by_one(&numbers)));
        }
        assert_eq!(text(&of(&[0.0, -0.0])), text(&of(&[-0.0, 0.0])));
    }

    /// The limits are those of the conversions that models are computed with.
    #[test]
    fn limits_are_those_of_the_formats() {
        for (dtype, limits) in FORMATS.into_iter().zip(&LIMITS) {
            let format = Format::of(dtype).unwrap();
            assert_eq!((format.precision, format.min_exponent), (limits.precision, limits.least_exponent));
            assert_eq!(format.least_spacing(), limits.subnormal.into());
        }
        assert_eq!((LIMITS[0].largest, LIMITS[1].largest), (f16::MAX.to_f32(), bf16::MAX.to_f32()));
        for (limits, convert) in [
            (&LIMITS[0], (|x| f16::from_f32(x).to_f32()) as fn(f32) -> f32),
            (&LIMITS[1], |x| bf16::from_f32(x).to_f32()),
        ] {
            let below = |x: f32| f32::from_bits(x.to_bits() - 1);
            assert!(convert(limits.overflow).is_infinite() && convert(below(limits.overflow)).is_finite());
            let above = f32::from_bits(limits.flush.to_bits() + 1);
            assert_eq!((convert(limits.flush), convert(above)), (0.0, limits.subnormal));
        }
    }

    #[test]
    fn any_number_of_threads_gives_the_same_statistics() {
        // Every hundredth number may be any f32, the others are between 2^-63 and 2^65.
        let numbers = (0..300_000u32).map(|i| match (i.is_multiple_of(100), i.wrapping_mul(0x9e37_79b9)) {
            (true, bits) => f32::from_bits(bits),
            (false, bits) => f32::from_bits((bits & 0xbfff_ffff) + 0x2000_0000),
        });
        let numbers: Vec<f32> = numbers.collect();
        let expected = one_by_one(&numbers);
        let tensor = HostTensor::from_slice(&[300, 1000], &numbers).unwrap();
        for threads in [1, 2, 3] {
            let pool = Pool::new(threads);
            assert_eq!(pool.install(|| Statistics::of(&tensor.view())), Some(expected.clone()), "{threads}");
        }
    }

    #[test]
    fn every_type_has_statistics() {
        for &dtype in DType::ALL {
            let zeros = HostTensor::zeros(dtype, &[3]).unwrap();
            let found = Statistics::of(&zeros.view());
            let expected = match dtype {
                DType::String => None,
                DType::Complex64 | DType::Complex128 => Some((6, 6)),
                // The scale format has no zero.
                DType::F8E8M0 => Some((3, 0)),
                _ => Some((3, 3)),
            };
            assert_eq!(found.map(|found| (found.count, found.zeros)), expected, "{dtype}");
        }
        let ints = HostTensor::from_slice(&[3], &[-70000i64, 0, 3]).unwrap();
        let found = Statistics::of(&ints.view()).unwrap();
        assert_eq!((found.min, found.max, found.min_abs, found.zeros), (-70000.0, 3.0, 3.0, 1));
        assert_eq!(found.rounded, <[Rounded; FORMATS.len()]>::default());
    }

    #[test]
    fn no_numbers_have_no_range() {
        let empty = of(&[]);
        assert_eq!(empty, Statistics::default());
        assert!(empty.min > empty.max);
        let nan = of(&[f32::NAN; 3]);
        assert_eq!((nan.count, nan.nan, nan.finite(), nan.max_abs), (3, 3, 0, 0.0));
    }

    proptest! {
        /// Blocks have the statistics of their numbers, however the numbers are divided between tensors.
        #[test]
        fn blocks_are_exact(
            bits in prop::collection::vec(any::<u32>(), 0..1500),
            plain in prop::collection::vec((any::<bool>(), exponents(), 0..1u32 << 23), 0..3000),
            at in any::<prop::sample::Index>(),
        ) {
            let plain = plain.iter().map(|&(is_negative, exponent, mantissa)| {
                let sign = u32::from(is_negative) << 31;
                f32::from_bits(sign | exponent.map_or(0, |exponent| pow2(exponent).to_bits() | mantissa))
            });
            for numbers in [bits.iter().map(|&bits| f32::from_bits(bits)).collect::<Vec<_>>(), plain.collect()] {
                let whole = of(&numbers);
                prop_assert_eq!(text(&whole), text(&one_by_one(&numbers)));
                let (first, second) = numbers.split_at(at.index(numbers.len() + 1));
                let mut merged = of(second);
                merged.merge(&of(first));
                prop_assert_eq!(text(&merged), text(&whole));
            }
        }

        /// The effects on a number are those of its conversion.
        #[test]
        fn effects_are_those_of_conversions(exponent in -20..20i32, mantissa in 0..1u32 << 23) {
            let number = f32::from_bits(pow2(exponent).to_bits() | mantissa);
            let found = of(&[number]);
            let fp8 = |dtype| {
                let format = Format::of(dtype).unwrap();
                format.decode_byte(format.encode_byte(number.into(), false))
            };
            for (dtype, converted) in [
                (DType::F16, f16::from_f32(number).to_f64()),
                (DType::BF16, bf16::from_f32(number).to_f64()),
                (DType::F8E4M3FN, fp8(DType::F8E4M3FN)),
                (DType::F8E5M2, fp8(DType::F8E5M2)),
            ] {
                let rounded = found.rounded_to(dtype).unwrap();
                let (is_finite, is_zero) = (converted.is_finite(), converted == 0.0);
                prop_assert_eq!((rounded.overflow, rounded.flushed), (u64::from(!is_finite), u64::from(is_zero)));
                #[expect(clippy::cast_possible_truncation, reason = "an error is given as f32")]
                let error = ((converted - f64::from(number)).abs() / f64::from(number)) as f32;
                let expected = if is_finite && !is_zero { error } else { 0.0 };
                prop_assert_eq!(rounded.max_relative_error, expected, "{}", dtype);
            }
        }
    }

    /// Exponents around the limits of the formats, or none for zero.
    fn exponents() -> impl Strategy<Value = Option<i32>> {
        let exponents = prop_oneof![-126..-110, -30..20, 120..128];
        prop_oneof![Just(None), exponents.prop_map(Some)]
    }

    /// All bits of statistics, the signs of zeros among them.
    fn text(found: &Statistics) -> String {
        format!("{found:?}")
    }
}
