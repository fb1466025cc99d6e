//! Statistics of a constant that rounding to a 16-bit format changes.

use ampc_ir::DType;
use ampc_ir::TensorData;
use ampc_ir::convert::{Conversion, can_convert};
use ampc_ir::tensor::TensorError;
use rustc_hash::FxHashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Statistics of an f32 constant with respect to a format.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ConstantStats {
    /// Number of values.
    pub count: u64,
    /// Finite values that would become infinite.
    pub overflow: u64,
    /// Values other than 0 that would become 0.
    pub underflow: u64,
    /// Values other than 0.
    pub nonzero: u64,
    /// Infinities and NaN.
    pub nonfinite: u64,
    /// Greatest finite magnitude; 0 without finite elements.
    pub max_abs: f32,
    /// Least magnitude other than 0; infinite without such elements.
    pub min_abs: f32,
    /// Least finite value; 0 without finite elements.
    pub min: f32,
    /// Greatest finite value; 0 without finite elements.
    pub max: f32,
    /// True if all values are integers.
    pub integers: bool,
}

/// Bits of the magnitude from which on, and up to which, f32 values round to infinity and to zero. Halfway cases
/// go to the even neighbour: infinity above, zero below.
fn limits(to: DType) -> (i32, i32) {
    if to == DType::F16 { (0x477f_f000, 0x3300_0000) } else { (0x7f7f_8000, 0x0000_8000) }
}

const INFINITY: i32 = 0x7f80_0000;

/// Extremes of finite values, as integers: magnitudes by their bits, values by [`order_of`].
struct Extremes {
    max_magnitude: i32,
    min_magnitude: i32,
    least: i32,
    greatest: i32,
}

impl Extremes {
    const NONE: Extremes =
        Extremes { max_magnitude: 0, min_magnitude: INFINITY, least: i32::MAX, greatest: i32::MIN };

    /// Takes a block of at most 2^31 little-endian values; returns how many overflow, vanish, are 0 and are not finite. Without
    /// branches and in signed integers only, which every x86-64 has vector comparisons for.
    fn add(&mut self, block: &[[u8; 4]], high: i32, low: i32) -> [u32; 4] {
        let (mut over, mut under, mut zero, mut nonfinite) = (0u32, 0u32, 0u32, 0u32);
        let Extremes { mut max_magnitude, mut min_magnitude, mut least, mut greatest } = *self;
        for b in block {
            let bits = i32::from_le_bytes(*b);
            let magnitude = bits & i32::MAX;
            let finite = magnitude < INFINITY;
            over += u32::from(finite & (magnitude >= high));
            under += u32::from((magnitude != 0) & (magnitude <= low));
            zero += u32::from(magnitude == 0);
            nonfinite += u32::from(!finite);
            max_magnitude = max_magnitude.max(if finite { magnitude } else { 0 });
            min_magnitude = min_magnitude.min(if magnitude == 0 { INFINITY } else { magnitude });
            least = least.min(if finite { order_of(bits) } else { i32::MAX });
            greatest = greatest.max(if finite { order_of(bits) } else { i32::MIN });
        }
        *self = Extremes { max_magnitude, min_magnitude, least, greatest };
        [over, under, zero, nonfinite]
    }
}

/// Bits of an f32 as an integer that orders as the values do: negative values have their magnitude flipped.
fn order_of(bits: i32) -> i32 {
    bits ^ ((bits >> 31) & i32::MAX)
}

/// The value that [`order_of`] made an integer of.
fn value_of(order: i32) -> f32 {
    f32::from_ne_bytes(order_of(order).to_ne_bytes())
}

fn is_integer(value: f32) -> bool {
    value.fract() == 0.0
}

impl ConstantStats {
    /// Reads an f32 constant once. Other element types give empty statistics.
    ///
    /// # Errors
    /// If the bytes cannot be read.
    pub fn of(data: &TensorData, to: DType) -> Result<ConstantStats, TensorError> {
        let mut stats =
            ConstantStats { count: data.element_count(), min_abs: f32::INFINITY, ..Default::default() };
        if data.dtype() != DType::F32 {
            return Ok(stats);
        }
        let (high, low) = limits(to);
        let mut seen = Extremes::NONE;
        stats.integers = true;
        data.visit_converted(|bytes| {
            for block in bytes.as_chunks::<4>().0.chunks(1024) {
                let counts = seen.add(block, high, low);
                stats.overflow += u64::from(counts[0]);
                stats.underflow += u64::from(counts[1]);
                stats.nonzero += block.len() as u64 - u64::from(counts[2]);
                stats.nonfinite += u64::from(counts[3]);
                // Of weights that are none the first few say so, and no more are looked at.
                stats.integers = stats.integers && block.iter().all(|&b| is_integer(f32::from_le_bytes(b)));
            }
            ControlFlow::Continue(())
        })?;
        stats.max_abs = f32::from_bits(seen.max_magnitude.unsigned_abs());
        stats.min_abs = f32::from_bits(seen.min_magnitude.unsigned_abs());
        if seen.least <= seen.greatest {
            (stats.min, stats.max) = (value_of(seen.least), value_of(seen.greatest));
        }
        Ok(stats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    /// The limits against the conversion itself, around every limit.
    #[test]
    fn limits_are_those_of_the_conversion() {
        for to in [DType::F16, DType::BF16] {
            let (high, low) = limits(to);
            for bits in (high - 9..high + 9).chain(low - 9..low + 9) {
                let v = f32::from_bits(bits.unsigned_abs());
                let back =
                    if to == DType::F16 { f16::from_f32(v).to_f32() } else { bf16::from_f32(v).to_f32() };
                let stats = ConstantStats::of(&TensorData::from_f32(&[1], &[v]).unwrap(), to).unwrap();
                assert_eq!(stats.overflow == 1, back.is_infinite(), "{to} {v:e}");
                assert_eq!(stats.underflow == 1, back == 0.0 && v != 0.0, "{to} {v:e}");
            }
        }
    }

    #[test]
    fn special_values() {
        let data = TensorData::from_f32(&[5], &[f32::NAN, f32::INFINITY, -0.0, 3.0, -1e9]).unwrap();
        let stats = ConstantStats::of(&data, DType::F16).unwrap();
        assert_eq!((stats.overflow, stats.underflow, stats.nonzero), (1, 0, 4));
        assert_eq!((stats.min, stats.max, stats.max_abs, stats.min_abs), (-1e9, 3.0, 1e9, 3.0));
        assert_eq!(stats.nonfinite, 2);
    }

    #[test]
    fn integers() {
        let mut numbers: Vec<f32> = (0..5000u16).map(|n| f32::from(n) - 2500.0).collect();
        let are_integers = |numbers: &[f32]| {
            let data = TensorData::from_f32(&[numbers.len() as u64], numbers).unwrap();
            ConstantStats::of(&data, DType::F16).unwrap().integers
        };
        assert!(are_integers(&numbers));
        for other in [0.5, f32::NAN, f32::INFINITY] {
            *numbers.last_mut().unwrap() = other;
            assert!(!are_integers(&numbers), "{other}");
        }
    }
}

/// The statistics of constants requested by passes of a run: each constant is read once.
#[derive(Debug, Default)]
pub struct Statistics {
    /// By where the constant is in memory, which it keeps as long as it is held here.
    known: FxHashMap<(*const TensorData, DType), Kept>,
}

#[derive(Debug)]
struct Kept {
    _constant: Arc<TensorData>,
    stats: Arc<ConstantStats>,
}

impl Statistics {
    /// The statistics of a constant, a 16-bit or f64 one as the f32 it is cast to; `None` if it holds no floats of
    /// these types.
    ///
    /// # Errors
    /// If the bytes cannot be read.
    pub fn of(
        &mut self,
        constant: &Arc<TensorData>,
        to: DType,
    ) -> Result<Option<Arc<ConstantStats>>, TensorError> {
        if !can_convert(constant.dtype(), DType::F32) {
            return Ok(None);
        }
        let key = (Arc::as_ptr(constant), to);
        if let Some(held) = self.known.get(&key) {
            return Ok(Some(held.stats.clone()));
        }
        let wide = constant.converted(Conversion { to: DType::F32, clamp: false });
        let stats = Arc::new(ConstantStats::of(&wide, to)?);
        self.known.insert(key, Kept { _constant: constant.clone(), stats: stats.clone() });
        Ok(Some(stats))
    }
}
