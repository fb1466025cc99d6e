//! Conversion between f32 and the 16-bit floats, without branches, so that the compiler makes wide vectors of the loops.
//!
//! The results have the bits of the crate `half`: rounded to nearest even, NaNs quiet with the upper part of
//! their payload.

use crate::cpu::kernels::vector::widest;
use half::{bf16, f16};

/// The exponent of f32 minus that of f16, in place.
const REBIAS: u32 = 112 << 23;

/// 2^-14, the smallest normal number of f16.
const LEAST_NORMAL: u32 = 113 << 23;

/// The exponent of infinities and NaNs of f16, shifted to where f32 has it.
const SPECIAL: u32 = 0x7c00 << 13;

#[inline(always)]
fn f32_of_f16(bits: u16) -> u32 {
    let bits = u32::from(bits);
    let sign = (bits & 0x8000) << 16;
    let shifted = (bits & 0x7fff) << 13;
    let normal = shifted + REBIAS;
    // Below the normal numbers: beside 2^-14 the last bit of f16 is in place, and 2^-14 is exact to take off. No operand
    // is subnormal in f32, which takes processors hundreds of cycles.
    let small = f32::from_bits(shifted + LEAST_NORMAL) - f32::from_bits(LEAST_NORMAL);
    let finite = if shifted < 1 << 23 { small.to_bits() } else { normal };
    let quiet = if shifted > SPECIAL { 0x0040_0000 } else { 0 };
    let special = shifted | 0x7f80_0000 | quiet;
    sign | if shifted >= SPECIAL { special } else { finite }
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the lower half has all bits")]
fn f16_of_f32(bits: u32) -> u16 {
    let sign = (bits >> 16) & 0x8000;
    let size = bits & 0x7fff_ffff;
    // From 2^-14 on: round in place of the 13 bits that go, then rebias; a carry goes into the exponent.
    let odd = (size >> 13) & 1;
    let normal = size.wrapping_add(0x0fff + odd).wrapping_sub(112 << 23) >> 13;
    // Below: beside 1/2 the last bit of an f32 is worth that of these numbers.
    let half = 126 << 23;
    let no_subnormal = if size < 1 << 23 { 0 } else { size };
    let small = (f32::from_bits(no_subnormal) + f32::from_bits(half)).to_bits().wrapping_sub(half);
    let finite = if size < 113 << 23 { small } else { normal };
    // What rounds to 2^16 or more is infinite.
    let finite = if size >= 143 << 23 { 0x7c00 } else { finite };
    let special = 0x7e00 | ((size >> 13) & 0x3ff);
    (sign | if size > 0x7f80_0000 { special } else { finite }) as u16
}

#[inline(always)]
fn f32_of_bf16(bits: u16) -> u32 {
    let quiet = if bits & 0x7fff > 0x7f80 { 0x0040 } else { 0 };
    u32::from(bits | quiet) << 16
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the lower half has all bits")]
fn bf16_of_f32(bits: u32) -> u16 {
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x0040;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded }) as u16
}

/// A 16-bit float, in slices.
pub(super) trait Halves: Sized {
    fn widen(from: &[Self], to: &mut [f32]);
    fn narrow(from: &[f32], to: &mut [Self]);
    fn rounded(from: &[f32], to: &mut [f32]);
}

macro_rules! halves {
    ($ty:ident, $widen:ident, $narrow:ident) => {
        impl Halves for $ty {
            fn widen(from: &[$ty], to: &mut [f32]) {
                assert_eq!(from.len(), to.len(), "as many elements");
                widest(|| {
                    to.iter_mut().zip(from).for_each(|(y, x)| *y = f32::from_bits($widen(x.to_bits())));
                });
            }
            fn narrow(from: &[f32], to: &mut [$ty]) {
                assert_eq!(from.len(), to.len(), "as many elements");
                widest(|| {
                    to.iter_mut().zip(from).for_each(|(y, x)| *y = $ty::from_bits($narrow(x.to_bits())));
                });
            }
            fn rounded(from: &[f32], to: &mut [f32]) {
                assert_eq!(from.len(), to.len(), "as many elements");
                widest(|| {
                    to.iter_mut()
                        .zip(from)
                        .for_each(|(y, x)| *y = f32::from_bits($widen($narrow(x.to_bits()))));
                });
            }
        }
    };
}

halves!(f16, f32_of_f16, f16_of_f32);
halves!(bf16, f32_of_bf16, bf16_of_f32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_16_bit_floats_are_widened() {
        for bits in 0..=u16::MAX {
            assert_eq!(f32_of_f16(bits), f16::from_bits(bits).to_f32().to_bits(), "{bits:#x}");
            assert_eq!(f32_of_bf16(bits), bf16::from_bits(bits).to_f32().to_bits(), "{bits:#x}");
        }
    }

    /// Around every 16-bit float and every midpoint, and all exponents with some mantissas.
    #[test]
    fn numbers_are_rounded_to_nearest_even() {
        let check = |bits: u32| {
            let x = f32::from_bits(bits);
            assert_eq!(f16_of_f32(bits), f16::from_f32(x).to_bits(), "{bits:#x}");
            assert_eq!(bf16_of_f32(bits), bf16::from_f32(x).to_bits(), "{bits:#x}");
        };
        for top in 0..=u16::MAX {
            let around = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1000, 0x1fff, 0x3000, 0x5aa5];
            around.into_iter().for_each(|low| check(u32::from(top) << 16 | low));
            let half = f16::from_bits(top).to_f32().to_bits();
            for near in [0, 1, 0x0fff, 0x1000, 0x1001, 0x1fff] {
                check(half.wrapping_add(near));
                check(half.wrapping_sub(near));
            }
        }
    }
}
