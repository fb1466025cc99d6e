//! Conversion of element bytes between float formats: round to nearest even; the sign, infinities, NaN and
//! subnormals are kept (IEEE 754-2019 §4.3.1). Streams in slices, never element by element through memory.

use crate::dtype::DType;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// One step of a conversion that is still to be done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Conversion {
    /// The element type after the step: f32, f16, bf16 or f64.
    pub to: DType,
    /// True if finite values beyond the range of `to` become its largest finite value instead of infinity.
    pub clamp: bool,
}

/// True if [`convert`] can turn `from` into `to`.
pub fn can_convert(from: DType, to: DType) -> bool {
    let known = |d| matches!(d, DType::F32 | DType::F16 | DType::BF16 | DType::F64);
    known(from) && known(to)
}

/// The largest finite value of a float format; `None` for other types. Exact in f64.
pub fn max_finite(dtype: DType) -> Option<f64> {
    limits(dtype).map(|(max, _)| max)
}

/// The smallest positive normal value of a float format; `None` for other types. Exact in f64.
///
/// F8E8M0 has no subnormals: it is the smallest value.
pub fn min_normal(dtype: DType) -> Option<f64> {
    limits(dtype).map(|(_, min)| min)
}

/// The unit roundoff of a 16-bit format, that is the largest relative change of a normal number by rounding to
/// nearest: 2^-11 for f16, 2^-8 for bf16; `None` for other types.
pub fn unit_roundoff(dtype: DType) -> Option<f64> {
    match dtype {
        DType::F16 => Some(power_of_two(-11)),
        DType::BF16 => Some(power_of_two(-8)),
        _ => None,
    }
}

/// The largest finite and the smallest positive normal value.
fn limits(dtype: DType) -> Option<(f64, f64)> {
    match dtype {
        DType::F64 => Some((f64::MAX, f64::MIN_POSITIVE)),
        DType::F32 => Some((f64::from(f32::MAX), f64::from(f32::MIN_POSITIVE))),
        DType::F16 => Some((f64::from(f16::MAX), f64::from(f16::MIN_POSITIVE))),
        DType::BF16 => Some((f64::from(bf16::MAX), f64::from(bf16::MIN_POSITIVE))),
        DType::F8E4M3FN => Some((448.0, power_of_two(-6))),
        DType::F8E4M3FNUZ => Some((240.0, power_of_two(-7))),
        DType::F8E5M2 => Some((57344.0, power_of_two(-14))),
        DType::F8E5M2FNUZ => Some((57344.0, power_of_two(-15))),
        DType::F8E8M0 => Some((power_of_two(127), power_of_two(-127))),
        DType::F6E2M3 => Some((7.5, 1.0)),
        DType::F6E3M2 => Some((28.0, 0.25)),
        DType::F4E2M1 => Some((6.0, 1.0)),
        DType::U8
        | DType::I8
        | DType::U16
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::String
        | DType::Bool
        | DType::U32
        | DType::U64
        | DType::Complex64
        | DType::Complex128
        | DType::U4
        | DType::I4
        | DType::U2
        | DType::I2
        | DType::Other(_) => None,
    }
}

/// 2 to a power within the normal range of f64.
const fn power_of_two(exponent: i16) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// Converts little-endian element bytes and appends the result, little-endian, to `out`.
///
/// # Panics
/// If `bytes` is not a whole number of elements, or [`can_convert`] is false for the pair.
pub fn convert(from: DType, step: Conversion, bytes: &[u8], out: &mut Vec<u8>) {
    assert!(can_convert(from, step.to), "no conversion from {from} to {}", step.to);
    match (from, step.to) {
        (a, b) if a == b => out.extend_from_slice(bytes),
        (DType::F64, to) => from_f64(bytes, to, step.clamp, out),
        (_, DType::F64) => {
            for v in to_f32(from, bytes) {
                out.extend_from_slice(&f64::from(v).to_le_bytes());
            }
        }
        (_, to) => from_f32(to_f32(from, bytes), to, step.clamp, out),
    }
}

fn to_f32(from: DType, bytes: &[u8]) -> Vec<f32> {
    match from {
        DType::F32 => bytes.as_chunks::<4>().0.iter().map(|c| f32::from_le_bytes(*c)).collect(),
        DType::F16 => {
            let low: Vec<f16> = bytes.as_chunks::<2>().0.iter().map(|c| f16::from_le_bytes(*c)).collect();
            let mut wide = vec![0.0; low.len()];
            low.convert_to_f32_slice(&mut wide);
            wide
        }
        DType::BF16 => {
            let low: Vec<bf16> = bytes.as_chunks::<2>().0.iter().map(|c| bf16::from_le_bytes(*c)).collect();
            let mut wide = vec![0.0; low.len()];
            low.convert_to_f32_slice(&mut wide);
            wide
        }
        other => unreachable!("{other} is refused by can_convert"),
    }
}

fn from_f32(mut values: Vec<f32>, to: DType, clamp: bool, out: &mut Vec<u8>) {
    if clamp {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the largest finite value of f16 or bf16 is exact in f32"
        )]
        let limit = max_finite(to).expect("can_convert admits floats only") as f32;
        for v in &mut values {
            if v.is_finite() {
                *v = v.clamp(-limit, limit);
            }
        }
    }
    match to {
        DType::F32 => out.extend(values.iter().flat_map(|v| v.to_le_bytes())),
        DType::F16 => {
            let mut low = vec![f16::ZERO; values.len()];
            low.convert_from_f32_slice(&values);
            out.extend(low.iter().flat_map(|v| v.to_le_bytes()));
        }
        DType::BF16 => {
            let mut low = vec![bf16::ZERO; values.len()];
            low.convert_from_f32_slice(&values);
            out.extend(low.iter().flat_map(|v| v.to_le_bytes()));
        }
        other => unreachable!("{other} is refused by can_convert"),
    }
}

/// A number rounded to f32 such that rounding that to a format of fewer digits is rounding the number once: towards
/// zero, with the last digit odd unless it is exact (Boldo & Melquiond 2008). `half`'s own conversions drop digits or
/// round twice.
pub fn round_to_odd(number: f64) -> f32 {
    #[expect(clippy::cast_possible_truncation, reason = "what that rounds is corrected")]
    let nearest = number as f32;
    if number.is_nan() || f64::from(nearest) == number {
        return nearest;
    }
    let bits = nearest.to_bits();
    let truncated = if f64::from(nearest).abs() > number.abs() { bits - 1 } else { bits };
    f32::from_bits(truncated | 1)
}

fn from_f64(bytes: &[u8], to: DType, clamp: bool, out: &mut Vec<u8>) {
    let limit = max_finite(to).expect("can_convert admits floats only");
    for chunk in bytes.as_chunks::<8>().0 {
        let mut v = f64::from_le_bytes(*chunk);
        if clamp && v.is_finite() {
            v = v.clamp(-limit, limit);
        }
        match to {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "rounding to nearest even is what is asked for"
            )]
            DType::F32 => out.extend_from_slice(&(v as f32).to_le_bytes()),
            DType::F16 => out.extend_from_slice(&f16::from_f32(round_to_odd(v)).to_le_bytes()),
            DType::BF16 => out.extend_from_slice(&bf16::from_f32(round_to_odd(v)).to_le_bytes()),
            other => unreachable!("{other} is refused by can_convert"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between any two neighbours: a value off the middle rounds to the nearer neighbour, the middle to the
    /// even neighbour.
    #[test]
    fn f64_is_rounded_once() {
        let f16_of = |bits: u16| f16::from_bits(bits).to_f64();
        let bf16_of = |bits: u16| bf16::from_bits(bits).to_f64();
        let to_f16 = |number: f64| f16::from_f32(round_to_odd(number)).to_bits();
        let to_bf16 = |number: f64| bf16::from_f32(round_to_odd(number)).to_bits();
        let check = |bits: u16, of: &dyn Fn(u16) -> f64, to: &dyn Fn(f64) -> u16| {
            let (below, above) = (of(bits), of(bits + 1));
            let middle = f64::midpoint(below, above);
            let (a_little, even) = (middle * 2f64.powi(-45), bits + bits % 2);
            assert_eq!([to(middle - a_little), to(middle), to(middle + a_little)], [bits, even, bits + 1]);
            assert_eq!(to(-middle), even | 0x8000);
        };
        (0..0x7bff).for_each(|bits| check(bits, &f16_of, &to_f16));
        (0..0x7f7f).for_each(|bits| check(bits, &bf16_of, &to_bf16));
        assert_eq!(to_f16(65_519.999_999), 0x7bff);
        assert_eq!(to_f16(65_520.0), 0x7c00);
        assert!(f16::from_bits(to_f16(f64::NAN)).is_nan());
    }

    /// `finfo(t).max` and `finfo(t).smallest_normal` of ml_dtypes 0.6.0 (numpy's for f16, f32 and f64), printed as
    /// Python's `float` prints them.
    #[test]
    fn limits_are_those_of_ml_dtypes() {
        let expected = [
            (DType::F64, "1.7976931348623157e+308", "2.2250738585072014e-308"),
            (DType::F32, "3.4028234663852886e+38", "1.1754943508222875e-38"),
            (DType::F16, "65504.0", "6.103515625e-05"),
            (DType::BF16, "3.3895313892515355e+38", "1.1754943508222875e-38"),
            (DType::F8E4M3FN, "448.0", "0.015625"),
            (DType::F8E4M3FNUZ, "240.0", "0.0078125"),
            (DType::F8E5M2, "57344.0", "6.103515625e-05"),
            (DType::F8E5M2FNUZ, "57344.0", "3.0517578125e-05"),
            (DType::F8E8M0, "1.7014118346046923e+38", "5.877471754111438e-39"),
            (DType::F6E2M3, "7.5", "1.0"),
            (DType::F6E3M2, "28.0", "0.25"),
            (DType::F4E2M1, "6.0", "1.0"),
        ];
        let given = |text: &str| Some(text.parse::<f64>().unwrap());
        for &dtype in DType::ALL {
            let found = (max_finite(dtype), min_normal(dtype));
            match expected.iter().find(|(of, ..)| *of == dtype) {
                Some((_, max, min)) => assert_eq!(found, (given(max), given(min)), "{dtype}"),
                None => assert_eq!((found, dtype.is_float()), ((None, None), false), "{dtype}"),
            }
        }
    }

    fn low(to: DType, clamp: bool, v: f32) -> u16 {
        let mut out = Vec::new();
        convert(DType::F32, Conversion { to, clamp }, &v.to_le_bytes(), &mut out);
        u16::from_le_bytes([out[0], out[1]])
    }

    #[test]
    fn special_values_survive() {
        for to in [DType::F16, DType::BF16] {
            assert_eq!(low(to, false, -0.0), 0x8000);
            assert_eq!(low(to, false, f32::NEG_INFINITY), low(to, true, f32::NEG_INFINITY));
            let nan = low(to, false, f32::from_bits(0x7f80_0001));
            let (exp, frac) = if to == DType::F16 { (0x7c00, 0x3ff) } else { (0x7f80, 0x7f) };
            assert!(nan & exp == exp && nan & frac != 0, "NaN stays NaN: {nan:#x}");
        }
        assert_eq!(low(DType::F16, false, 1e9), 0x7c00);
        assert_eq!(low(DType::F16, true, 1e9), 0x7bff);
        assert_eq!(low(DType::F16, true, -1e9), 0xfbff);
        assert_eq!(low(DType::F16, false, 6e-8), 0x0001, "subnormals are rounded, not flushed");
    }

    /// G15: against a reference written from the definition of rounding to nearest even, over every exponent.
    #[test]
    fn g15_rounds_to_nearest_even_for_every_exponent() {
        for exponent in 0..=255u32 {
            for step in 0..4096u32 {
                let mantissa = (step * 2_053 + step % 7) & 0x7f_ffff;
                let v = f32::from_bits(exponent << 23 | mantissa);
                for sign in [v, -v] {
                    assert_eq!(low(DType::BF16, false, sign), reference_bf16(sign), "{sign:e}");
                    if !sign.is_nan() {
                        assert_eq!(low(DType::F16, false, sign), reference_f16(sign), "{sign:e}");
                    }
                }
            }
        }
    }

    fn reference_bf16(v: f32) -> u16 {
        let bits = v.to_bits();
        let upper = u16::try_from(bits >> 16).unwrap();
        if v.is_nan() {
            return upper | 0x40;
        }
        let rest = bits & 0xffff;
        let up = rest > 0x8000 || (rest == 0x8000 && upper & 1 == 1);
        upper + u16::from(up)
    }

    #[expect(clippy::cast_possible_truncation, reason = "exponents and steps are small numbers")]
    /// Scale so that one unit is the spacing of f16 at `v`, round half to even in exact f64 arithmetic.
    fn reference_f16(v: f32) -> u16 {
        let sign = if v.is_sign_negative() { 0x8000 } else { 0 };
        let a = f64::from(v.abs());
        if a.is_infinite() {
            return sign | 0x7c00;
        }
        let exponent = if a == 0.0 { -14 } else { (a.log2().floor() as i32).max(-14) };
        let unit = 2f64.powi(exponent - 10);
        let steps = (a / unit).round_ties_even() as u32;
        let value = (exponent + 14) as u32 * 1024 + steps;
        sign | u16::try_from(value.min(0x7c00)).unwrap()
    }
}
