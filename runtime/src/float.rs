//! Properties of float formats: values as f64, and the distance of neighbors.
//!
//! Formats below 16 bits follow the OCP 8-bit floating point (OFP8 1.0) and microscaling (MX 1.0)
//! specifications; the FNUZ variants have the one NaN where negative zero would be.

use ampc_ir::DType;

/// The meaning of the bit patterns above the finite numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Special {
    /// Infinities and NaN, as in IEEE 754.
    Ieee,
    /// NaN if all bits except the sign are ones; no infinity.
    NanAtTop,
    /// NaN instead of negative zero; no infinity.
    NanAtNegativeZero,
    /// Every pattern is a number.
    None,
}

/// A binary floating-point format.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Significant bits, including the implicit bit.
    pub precision: i32,
    /// Exponent of the smallest normal number.
    pub min_exponent: i32,
    /// Bits of the exponent field.
    exponent_bits: u32,
    special: Special,
}

impl Format {
    /// The format of a float or complex element type (of its parts); `None` for other types.
    pub fn of(dtype: DType) -> Option<Format> {
        use Special::{Ieee, NanAtNegativeZero, NanAtTop, None as AllFinite};
        let (precision, min_exponent, exponent_bits, special) = match dtype {
            DType::F64 | DType::Complex128 => (53, -1022, 11, Ieee),
            DType::F32 | DType::Complex64 => (24, -126, 8, Ieee),
            DType::F16 => (11, -14, 5, Ieee),
            DType::BF16 => (8, -126, 8, Ieee),
            DType::F8E4M3FN => (4, -6, 4, NanAtTop),
            DType::F8E4M3FNUZ => (4, -7, 4, NanAtNegativeZero),
            DType::F8E5M2 => (3, -14, 5, Ieee),
            DType::F8E5M2FNUZ => (3, -15, 5, NanAtNegativeZero),
            DType::F8E8M0 => (1, -127, 8, NanAtTop),
            DType::F6E2M3 => (4, 0, 2, AllFinite),
            DType::F6E3M2 => (3, -2, 3, AllFinite),
            DType::F4E2M1 => (2, 0, 2, AllFinite),
            _ => return None,
        };
        Some(Format { precision, min_exponent, exponent_bits, special })
    }

    /// Unit roundoff 2^-precision: the largest relative error of one rounding to nearest.
    pub fn unit_roundoff(self) -> f64 {
        pow2(-self.precision)
    }

    /// The distance between neighbors around zero: the smallest subnormal number, if the format has subnormals.
    pub fn least_spacing(self) -> f64 {
        pow2(self.min_exponent - self.precision + 1)
    }

    /// The distance from `value` to the next larger magnitude, as if the exponent range had no upper bound.
    pub fn spacing(self, value: f64) -> f64 {
        pow2(exponent(value).max(self.min_exponent) - self.precision + 1)
    }

    /// The number encoded in the low bits of `bits`, in a format of at most 8 bits.
    pub(crate) fn decode_byte(self, bits: u8) -> f64 {
        if self.precision == 1 {
            // The scale format has neither sign nor mantissa, and no zero.
            return if bits == u8::MAX { f64::NAN } else { pow2(i32::from(bits) - 127) };
        }
        let mantissa_bits = self.precision.cast_unsigned() - 1;
        let bits = u32::from(bits);
        let mantissa = bits & ((1 << mantissa_bits) - 1);
        let top = (1 << self.exponent_bits) - 1;
        let field = (bits >> mantissa_bits) & top;
        let negative = (bits >> (mantissa_bits + self.exponent_bits)) & 1 == 1;
        let all_ones = mantissa == (1 << mantissa_bits) - 1;
        let magnitude = match self.special {
            Special::Ieee if field == top && mantissa == 0 => f64::INFINITY,
            Special::Ieee if field == top => f64::NAN,
            Special::NanAtTop if field == top && all_ones => f64::NAN,
            Special::NanAtNegativeZero if negative && field == 0 && mantissa == 0 => f64::NAN,
            Special::Ieee | Special::NanAtTop | Special::NanAtNegativeZero | Special::None => {
                let implicit = if field == 0 { 0 } else { 1 << mantissa_bits };
                let above_least = field.max(1).cast_signed() - 1;
                f64::from(implicit + mantissa) * self.least_spacing() * pow2(above_least)
            }
        };
        if negative { -magnitude } else { magnitude }
    }

    /// The bits of the number nearest to `value` in a format of at most 8 bits, ties to even. A value out of range
    /// becomes the largest number if `saturate`; otherwise infinity or NaN, if the format has them. The scale format
    /// is not supported.
    pub(crate) fn encode_byte(self, value: f64, saturate: bool) -> u8 {
        let mantissa_bits = self.precision.cast_unsigned() - 1;
        let (sign, top) = (1 << (mantissa_bits + self.exponent_bits), (1 << self.exponent_bits) - 1);
        let (greatest, nan, infinity) = match self.special {
            Special::Ieee => {
                let infinity = top << mantissa_bits;
                (infinity - 1, infinity | 1 << (mantissa_bits - 1), infinity)
            }
            Special::NanAtTop => (sign - 2, sign - 1, sign - 1),
            Special::NanAtNegativeZero => (sign - 1, sign, sign),
            // The bits of negative zero are NaN.
            Special::None => (sign - 1, sign, sign - 1),
        };
        let size = value.abs();
        let code = if size.is_nan() {
            nan
        } else {
            let above_least = exponent(size).max(self.min_exponent) - self.min_exponent;
            // The count is below 2^precision and therefore exact, unless the value is out of range.
            let steps = (size / self.spacing(size)).round_ties_even();
            let code = f64::from(above_least) * pow2(self.precision - 1) + steps;
            if code <= f64::from(greatest) {
                #[expect(clippy::cast_possible_truncation, reason = "a whole number below 2^8")]
                #[expect(clippy::cast_sign_loss, reason = "it is not negative")]
                let code = code as u32;
                code
            } else if saturate {
                greatest
            } else {
                infinity
            }
        };
        // A format without negative zero has no negative NaN either.
        let one_nan = self.special == Special::NanAtNegativeZero && (code == 0 || code == sign);
        let signed = if value.is_sign_negative() && !one_nan { code | sign } else { code };
        u8::try_from(signed).unwrap_or(u8::MAX)
    }
}

/// Exponent of the leading bit of a normal f64; that of the smallest normal for zero and subnormals.
fn exponent(value: f64) -> i32 {
    let field = (value.to_bits() >> 52) & 0x7ff;
    i32::try_from(field).unwrap_or(0).max(1) - 1023
}

/// 2^n for every n at which it is a positive f64.
fn pow2(n: i32) -> f64 {
    debug_assert!((-1074..=1023).contains(&n), "2^{n} is no positive f64");
    let n = i64::from(n);
    let bits = if n >= -1022 { (n + 1023) << 52 } else { 1 << (n + 1074) };
    f64::from_bits(bits.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    fn decode(dtype: DType, bits: u8) -> f64 {
        Format::of(dtype).unwrap().decode_byte(bits)
    }

    /// The extreme values in the tables of OFP8 1.0 (tables 1 and 2) and MX 1.0 (sections 5.3.1 to 5.4.1); the
    /// values of the FNUZ formats from the ONNX documentation of float8.
    #[test]
    fn small_formats_have_the_extremes_of_their_specifications() {
        for (dtype, bits, value) in [
            (DType::F8E4M3FN, 0x7e, 448.0),
            (DType::F8E4M3FN, 0x08, 2f64.powi(-6)),
            (DType::F8E4M3FN, 0x01, 2f64.powi(-9)),
            (DType::F8E4M3FN, 0xc0, -2.0),
            (DType::F8E5M2, 0x7b, 57344.0),
            (DType::F8E5M2, 0x7c, f64::INFINITY),
            (DType::F8E5M2, 0xfc, f64::NEG_INFINITY),
            (DType::F8E5M2, 0x01, 2f64.powi(-16)),
            (DType::F8E4M3FNUZ, 0x7f, 240.0),
            (DType::F8E4M3FNUZ, 0x01, 2f64.powi(-10)),
            (DType::F8E5M2FNUZ, 0x7f, 57344.0),
            (DType::F8E5M2FNUZ, 0x01, 2f64.powi(-17)),
            (DType::F8E8M0, 0x00, 2f64.powi(-127)),
            (DType::F8E8M0, 0xfe, 2f64.powi(127)),
            (DType::F6E2M3, 0x1f, 7.5),
            (DType::F6E2M3, 0x21, -0.125),
            (DType::F6E3M2, 0x1f, 28.0),
            (DType::F6E3M2, 0x01, 0.0625),
            (DType::F4E2M1, 0x07, 6.0),
            (DType::F4E2M1, 0x09, -0.5),
        ] {
            assert_eq!(decode(dtype, bits), value, "{dtype} {bits:#x}");
        }
        for (dtype, bits) in [
            (DType::F8E4M3FN, 0x7f),
            (DType::F8E4M3FN, 0xff),
            (DType::F8E5M2, 0x7d),
            (DType::F8E4M3FNUZ, 0x80),
            (DType::F8E5M2FNUZ, 0x80),
            (DType::F8E8M0, 0xff),
        ] {
            assert!(decode(dtype, bits).is_nan(), "{dtype} {bits:#x}");
        }
    }

    #[test]
    fn bytes_are_encoded_as_they_are_decoded() {
        use DType::{F4E2M1, F6E2M3, F6E3M2, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ};
        for (dtype, codes) in [
            (F8E4M3FN, 256),
            (F8E4M3FNUZ, 256),
            (F8E5M2, 256),
            (F8E5M2FNUZ, 256),
            (F6E2M3, 64),
            (F6E3M2, 64),
            (F4E2M1, 16),
        ] {
            let format = Format::of(dtype).unwrap();
            let finite: Vec<u8> =
                (0..=u8::MAX).take(codes).filter(|&b| format.decode_byte(b).is_finite()).collect();
            for &bits in &finite {
                assert_eq!(format.encode_byte(format.decode_byte(bits), true), bits, "{dtype} {bits:#x}");
            }
            let positive = finite.iter().filter(|&&b| usize::from(b) < codes / 2).collect::<Vec<_>>();
            for pair in positive.windows(2) {
                let middle = f64::midpoint(format.decode_byte(*pair[0]), format.decode_byte(*pair[1]));
                let even = pair[0] + pair[0] % 2;
                assert_eq!(format.encode_byte(middle, true), even, "{dtype} {middle}");
            }
            let greatest = ampc_ir::convert::max_finite(dtype).unwrap();
            assert_eq!(format.decode_byte(format.encode_byte(-f64::INFINITY, true)), -greatest);
        }
        let bits = |dtype, value, saturate| Format::of(dtype).unwrap().encode_byte(value, saturate);
        assert_eq!([bits(F8E4M3FN, 1e9, false), bits(F8E4M3FN, -1e9, false)], [0x7f, 0xff]);
        assert_eq!([bits(F8E5M2, 1e9, false), bits(F8E5M2, f64::NAN, true)], [0x7c, 0x7e]);
        assert_eq!([bits(F8E4M3FNUZ, -0.0, true), bits(F8E4M3FNUZ, -1e9, false)], [0, 0x80]);
        assert_eq!([bits(F8E4M3FN, 464.0, false), bits(F8E4M3FN, 464.1, false)], [0x7e, 0x7f]);
    }

    #[test]
    fn spacing_is_the_distance_to_the_next_bit_pattern() {
        let (half, brain) = (Format::of(DType::F16).unwrap(), Format::of(DType::BF16).unwrap());
        for bits in 0..f16::INFINITY.to_bits() - 1 {
            let (low, high) = (f16::from_bits(bits).to_f64(), f16::from_bits(bits + 1).to_f64());
            assert_eq!(half.spacing(low), high - low, "{bits:#x}");
        }
        for bits in 0..bf16::INFINITY.to_bits() - 1 {
            let (low, high) = (bf16::from_bits(bits).to_f64(), bf16::from_bits(bits + 1).to_f64());
            assert_eq!(brain.spacing(-low), high - low, "{bits:#x}");
        }
        let double = Format::of(DType::F64).unwrap();
        assert_eq!(double.spacing(0.0), f64::from_bits(1));
        assert_eq!(double.spacing(1.0), f64::EPSILON);
        assert_eq!(Format::of(DType::I32).map(|f| f.precision), None);
    }

    #[test]
    fn one_rounding_of_each_format() {
        let roundoff = |dtype| Format::of(dtype).unwrap().unit_roundoff();
        assert_eq!(roundoff(DType::F16), 2f64.powi(-11));
        assert_eq!(roundoff(DType::BF16), 2f64.powi(-8));
        assert_eq!(roundoff(DType::F32), f64::from(f32::EPSILON) / 2.0);
        assert_eq!(roundoff(DType::F64), f64::EPSILON / 2.0);
        assert_eq!(Format::of(DType::F16).unwrap().least_spacing(), f16::from_bits(1).to_f64());
    }
}
