//! Statistics of the elements of tensors: their range, and the effect of rounding them to lower formats.
//!
//! [`Statistics`] of several tensors [merge](Statistics::merge) exactly: counts are added, and every other number is a
//! minimum or maximum, so neither the order of the tensors nor the number of threads changes a bit.
//!
//! A tensor is read once, in blocks that stay in the first-level cache (`blocks.rs`).

mod blocks;
#[cfg(test)]
mod tests;

use self::blocks::{add_f32s, in_blocks};
use super::kernels::parallel::each;
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
