//! What of a constant does not survive rounding to a 16-bit format.

use ampc_ir::DType;
use ampc_ir::TensorData;
use ampc_ir::tensor::TensorError;
use std::ops::ControlFlow;

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
    /// Greatest finite magnitude; 0 if there is none.
    pub max_abs: f32,
    /// Least magnitude other than 0; infinite if there is none.
    pub min_abs: f32,
    /// Least finite value; 0 if there is none.
    pub min: f32,
    /// Greatest finite value; 0 if there is none.
    pub max: f32,
}

/// Bits of the magnitude from which on, and up to which, f32 values round to infinity and to zero. Halfway cases
/// go to the even neighbour: infinity above, zero below.
fn limits(to: DType) -> (u32, u32) {
    if to == DType::F16 { (65520f32.to_bits(), 2f32.powi(-25).to_bits()) } else { (0x7f7f_8000, 0x0000_8000) }
}

const INFINITY: u32 = 0x7f80_0000;

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
        let mut max_bits = 0u32;
        let mut min_bits = INFINITY;
        let (mut least, mut greatest) = (f32::INFINITY, f32::NEG_INFINITY);
        data.visit_converted(|bytes| {
            // Branchless over fixed blocks, so that the compiler can use vector instructions.
            for block in bytes.as_chunks::<4>().0.chunks(1024) {
                let (mut over, mut under, mut zero) = (0u32, 0u32, 0u32);
                for b in block {
                    let v = f32::from_le_bytes(*b);
                    let bits = v.to_bits() & 0x7fff_ffff;
                    let finite = bits < INFINITY;
                    over += u32::from(finite & (bits >= high));
                    under += u32::from((bits != 0) & (bits <= low));
                    zero += u32::from(bits == 0);
                    max_bits = max_bits.max(if finite { bits } else { 0 });
                    min_bits = min_bits.min(if bits == 0 { INFINITY } else { bits });
                    least = least.min(if finite { v } else { f32::INFINITY });
                    greatest = greatest.max(if finite { v } else { f32::NEG_INFINITY });
                }
                stats.overflow += u64::from(over);
                stats.underflow += u64::from(under);
                stats.nonzero += block.len() as u64 - u64::from(zero);
            }
            ControlFlow::Continue(())
        })?;
        stats.max_abs = f32::from_bits(max_bits);
        stats.min_abs = f32::from_bits(min_bits);
        if least <= greatest {
            (stats.min, stats.max) = (least, greatest);
        }
        Ok(stats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    /// The limits against the conversion itself, around every one of them.
    #[test]
    fn limits_are_those_of_the_conversion() {
        for to in [DType::F16, DType::BF16] {
            let (high, low) = limits(to);
            for bits in (high - 9..high + 9).chain(low - 9..low + 9) {
                let v = f32::from_bits(bits);
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
    }
}
