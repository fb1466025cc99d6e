//! Conversion between f32 and the 16-bit floats.
//!
//! The results have the bits of the crate `half`: rounded to nearest even, NaNs quiet with the upper part of
//! their payload. Processors with AVX-512 or F16C have instructions for f16. Elsewhere, and for bf16, loops without
//! branches do the same, of which the compiler makes wide vectors.

use crate::cpu::kernels::vector::widest_512;
#[cfg(target_arch = "x86_64")]
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
#[cfg(target_arch = "x86_64")]
use pulp::x86::{V3, V4};

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

/// The bits of the nearest number that bf16 has, as f32.
#[inline(always)]
fn rounded_to_bf16(bits: u32) -> u32 {
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    let quiet = bits | 0x0040_0000;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded }) & 0xffff_0000
}

#[inline(always)]
fn bf16_of_f32(bits: u32) -> u16 {
    (rounded_to_bf16(bits) >> 16) as u16
}

/// A 16-bit float, in slices.
pub(super) trait Halves: Sized {
    fn widen(from: &[Self], to: &mut [f32]);
    fn narrow(from: &[f32], to: &mut [Self]);
    fn rounded(from: &[f32], to: &mut [f32]);
    fn round_in_place(numbers: &mut [f32]);
    /// One number; the compiler makes wide vectors of a loop of these.
    fn widened(self) -> f32;
    fn narrowed(number: f32) -> Self;
}

/// `to[i] = f(from[i])`.
fn each<A: Copy, B>(from: &[A], to: &mut [B], f: impl Fn(A) -> B) {
    assert_eq!(from.len(), to.len(), "as many elements");
    widest_512(|| to.iter_mut().zip(from).for_each(|(y, &x)| *y = f(x)));
}

/// `numbers[i] = f(numbers[i])`.
fn each_in_place(numbers: &mut [f32], f: impl Fn(f32) -> f32) {
    widest_512(|| numbers.iter_mut().for_each(|x| *x = f(*x)));
}

impl Halves for bf16 {
    fn widen(from: &[bf16], to: &mut [f32]) {
        each(from, to, bf16::widened);
    }
    fn narrow(from: &[f32], to: &mut [bf16]) {
        each(from, to, bf16::narrowed);
    }
    fn rounded(from: &[f32], to: &mut [f32]) {
        each(from, to, |x| f32::from_bits(rounded_to_bf16(x.to_bits())));
    }
    fn round_in_place(numbers: &mut [f32]) {
        each_in_place(numbers, |x| f32::from_bits(rounded_to_bf16(x.to_bits())));
    }
    #[inline(always)]
    fn widened(self) -> f32 {
        f32::from_bits(f32_of_bf16(self.to_bits()))
    }
    #[inline(always)]
    fn narrowed(number: f32) -> bf16 {
        bf16::from_bits(bf16_of_f32(number.to_bits()))
    }
}

impl Halves for f16 {
    fn widen(from: &[f16], to: &mut [f32]) {
        assert_eq!(from.len(), to.len(), "as many elements");
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(simd) = V4::try_new() {
                return avx512::each(simd, bytemuck::cast_slice(from), to, |x| avx512::widen(simd, x));
            }
            if V3::try_new().is_some() {
                return from.convert_to_f32_slice(to);
            }
        }
        each(from, to, f16::widened);
    }
    fn narrow(from: &[f32], to: &mut [f16]) {
        assert_eq!(from.len(), to.len(), "as many elements");
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(simd) = V4::try_new() {
                let to: &mut [u16] = bytemuck::cast_slice_mut(to);
                return avx512::each(simd, from, to, |x| avx512::narrow(simd, x));
            }
            if V3::try_new().is_some() {
                return to.convert_from_f32_slice(from);
            }
        }
        each(from, to, f16::narrowed);
    }
    fn rounded(from: &[f32], to: &mut [f32]) {
        assert_eq!(from.len(), to.len(), "as many elements");
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(simd) = V4::try_new() {
                return avx512::each(simd, from, to, |x| avx512::widen(simd, avx512::narrow(simd, x)));
            }
        }
        each(from, to, |x| f16::narrowed(x).widened());
    }
    fn round_in_place(numbers: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(simd) = V4::try_new() {
                return avx512::each_in_place(simd, numbers, |x| {
                    avx512::widen(simd, avx512::narrow(simd, x))
                });
            }
        }
        each_in_place(numbers, |x| f16::narrowed(x).widened());
    }
    #[inline(always)]
    fn widened(self) -> f32 {
        f32::from_bits(f32_of_f16(self.to_bits()))
    }
    #[inline(always)]
    fn narrowed(number: f32) -> f16 {
        f16::from_bits(f16_of_f32(number.to_bits()))
    }
}

/// Vectors of 16 numbers.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use pulp::x86::V4;

    const LANES: usize = 16;

    #[inline(always)]
    pub(super) fn widen(simd: V4, bits: [u16; LANES]) -> [f32; LANES] {
        pulp::cast(simd.avx512f._mm512_cvtph_ps(pulp::cast(bits)))
    }

    /// Rounded to nearest even.
    #[inline(always)]
    pub(super) fn narrow(simd: V4, numbers: [f32; LANES]) -> [u16; LANES] {
        const NEAREST: i32 = 0;
        pulp::cast(simd.avx512f._mm512_cvtps_ph::<NEAREST>(pulp::cast(numbers)))
    }

    /// `numbers = f(numbers)`, a vector at a time. The last vector is filled up with zeros.
    pub(super) fn each_in_place(simd: V4, numbers: &mut [f32], f: impl Fn([f32; LANES]) -> [f32; LANES]) {
        simd.vectorize(
            #[inline(always)]
            || {
                let (vectors, rest) = numbers.as_chunks_mut();
                vectors.iter_mut().for_each(|x| *x = f(*x));
                if !rest.is_empty() {
                    let mut block = [0.0; LANES];
                    block[..rest.len()].copy_from_slice(rest);
                    rest.copy_from_slice(&f(block)[..rest.len()]);
                }
            },
        );
    }

    /// `to = f(from)`, a vector at a time. The last vector overlaps the one before, or is filled up with zeros.
    pub(super) fn each<A: Copy + Default, B: Copy + Default>(
        simd: V4,
        from: &[A],
        to: &mut [B],
        f: impl Fn([A; LANES]) -> [B; LANES],
    ) {
        simd.vectorize(
            #[inline(always)]
            || {
                let pairs = to.as_chunks_mut().0.iter_mut().zip(from.as_chunks().0);
                pairs.for_each(|(to, &from)| *to = f(from));
                if from.len().is_multiple_of(LANES) {
                    return;
                }
                match (from.last_chunk(), to.last_chunk_mut()) {
                    (Some(&from), Some(to)) => *to = f(from),
                    _ => {
                        let mut block = [A::default(); LANES];
                        block[..from.len()].copy_from_slice(from);
                        to.copy_from_slice(&f(block)[..from.len()]);
                    }
                }
            },
        );
    }
}

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

    /// In any vectors, and in a part of a vector.
    #[test]
    fn slices_are_converted_like_numbers() {
        let bits: Vec<u16> = (0..=u16::MAX).collect();
        let numbers: Vec<f32> = (0..=u16::MAX)
            .flat_map(|top| {
                [0u32, 0x0fff, 0x1000, 0x1001, 0x8000, 0x8001].map(|low| u32::from(top) << 16 | low)
            })
            .map(f32::from_bits)
            .collect();
        fn check<T: Halves + Copy>(bits: &[T], numbers: &[f32], of: [fn(T) -> u32; 2], from: fn(f32) -> T) {
            for n in [0, 1, 15, 16, 17, 33, bits.len()] {
                let mut wide = vec![0.0; n];
                T::widen(&bits[..n], &mut wide);
                assert!(wide.iter().zip(bits).all(|(y, &x)| y.to_bits() == of[1](x)));
            }
            for n in [0, 1, 15, 16, 17, 33, numbers.len()] {
                let (mut narrow, mut rounded) = (vec![bits[0]; n], vec![0.0; n]);
                T::narrow(&numbers[..n], &mut narrow);
                T::rounded(&numbers[..n], &mut rounded);
                let mut in_place = numbers[..n].to_vec();
                T::round_in_place(&mut in_place);
                assert!(in_place.iter().zip(&rounded).all(|(x, y)| x.to_bits() == y.to_bits()));
                for ((&x, &y), z) in numbers.iter().zip(&narrow).zip(rounded) {
                    assert_eq!(of[0](y), of[0](from(x)), "{:#x}", x.to_bits());
                    assert_eq!(z.to_bits(), of[1](y), "{:#x}", x.to_bits());
                }
            }
        }
        let halves: Vec<f16> = bits.iter().map(|&bits| f16::from_bits(bits)).collect();
        check(&halves, &numbers, [|x| x.to_bits().into(), |x| x.to_f32().to_bits()], f16::from_f32);
        let brains: Vec<bf16> = bits.iter().map(|&bits| bf16::from_bits(bits)).collect();
        check(&brains, &numbers, [|x| x.to_bits().into(), |x| x.to_f32().to_bits()], bf16::from_f32);
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
