//! Elements of small constants: from bytes to literals and back.
//!
//! Floats of 16 to 64 bits are written as the shortest decimal that reads back to the same bits; NaN as its
//! bits. Narrower floats are written as their bits, because a decimal would hide the stored value. Elements of
//! fewer than 8 bits are packed as ONNX packs them, low bits first.

use crate::convert::round_to_odd;
use crate::dtype::DType;
use half::{bf16, f16};
use std::borrow::Cow;
use std::fmt::Write;

/// One element as the text has it.
#[derive(Clone, Debug)]
pub(super) enum Literal<'a> {
    /// A number, or `inf` or `-inf`.
    Number(&'a str),
    /// NaN, by its bits if they are given.
    Nan(Option<u64>),
    /// `true` or `false`.
    Bool(bool),
    /// A string.
    Str(Cow<'a, [u8]>),
    /// Real and imaginary part.
    Complex(Box<[Literal<'a>; 2]>),
}

/// How the elements of a type are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Float,
    Signed,
    Unsigned,
    Bool,
    Bits,
    Complex(DType),
    Bytes,
}

fn form(dtype: DType) -> Form {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 | DType::F64 => Form::Float,
        DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::I4 | DType::I2 => Form::Signed,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 | DType::U4 | DType::U2 => Form::Unsigned,
        DType::Bool => Form::Bool,
        DType::F8E4M3FN
        | DType::F8E4M3FNUZ
        | DType::F8E5M2
        | DType::F8E5M2FNUZ
        | DType::F8E8M0
        | DType::F6E2M3
        | DType::F6E3M2
        | DType::F4E2M1 => Form::Bits,
        DType::Complex64 => Form::Complex(DType::F32),
        DType::Complex128 => Form::Complex(DType::F64),
        DType::String | DType::Other(_) => Form::Bytes,
    }
}

/// Writes `count` elements, separated by commas; `false`, and nothing sensible, if literals cannot stand for
/// these bytes (a boolean that is neither 0 nor 1, bits beyond the last element).
pub(super) fn write_elements(out: &mut String, dtype: DType, bytes: &[u8], count: usize) -> bool {
    let Some(bits) = dtype.bits().map(|b| b as usize) else { return false };
    for i in 0..count {
        if i > 0 {
            out.push_str(", ");
        }
        if !write_element(out, dtype, bytes, i * bits) {
            return false;
        }
    }
    let used = count * bits;
    used.is_multiple_of(8) || bytes.last().is_some_and(|b| b >> (used % 8) == 0)
}

/// `width` bits from bit `at` on.
fn bits_at(bytes: &[u8], at: usize, width: usize) -> u64 {
    let mut word = [0; 8];
    let whole = &bytes[at / 8..(at + width).div_ceil(8)];
    word[..whole.len()].copy_from_slice(whole);
    let word = u64::from_le_bytes(word) >> (at % 8);
    if width == 64 { word } else { word & ((1 << width) - 1) }
}

fn write_element(out: &mut String, dtype: DType, bytes: &[u8], at: usize) -> bool {
    let width = dtype.bits().unwrap_or(8) as usize;
    match form(dtype) {
        Form::Float => write_float(out, dtype, bits_at(bytes, at, width)),
        Form::Signed => {
            let shift = 64 - width;
            let value = (bits_at(bytes, at, width) << shift).cast_signed() >> shift;
            let _ = write!(out, "{value}");
        }
        Form::Unsigned => {
            let _ = write!(out, "{}", bits_at(bytes, at, width));
        }
        Form::Bool => match bits_at(bytes, at, 8) {
            0 => out.push_str("false"),
            1 => out.push_str("true"),
            _ => return false,
        },
        Form::Bits => {
            let _ = write!(out, "0x{:0>1$x}", bits_at(bytes, at, width), width.div_ceil(4));
        }
        Form::Complex(part) => {
            out.push('(');
            write_element(out, part, bytes, at);
            out.push_str(", ");
            write_element(out, part, bytes, at + width / 2);
            out.push(')');
        }
        Form::Bytes => return false,
    }
    true
}

/// Writes a float of 16, 32 or 64 bits.
fn write_float(out: &mut String, dtype: DType, bits: u64) {
    let (value, shortest) = match dtype {
        DType::F64 => (f64::from_bits(bits), None),
        DType::F32 => {
            let v = f32::from_bits(low_word(bits));
            (f64::from(v), Some(format!("{v:?}")))
        }
        _ => (wide(dtype, bits), shortest_low(dtype, bits)),
    };
    if value.is_nan() {
        let _ = write!(out, "nan(0x{:0>1$x})", bits, dtype.bits().unwrap_or(64) as usize / 4);
        return;
    }
    match shortest {
        Some(text) => out.push_str(&text),
        None => {
            let _ = write!(out, "{value:?}");
        }
    }
}

/// Writes an f32.
pub(super) fn write_f32(out: &mut String, value: f32) {
    if value.is_nan() {
        let _ = write!(out, "nan(0x{:08x})", value.to_bits());
    } else {
        let _ = write!(out, "{value:?}");
    }
}

/// A 16-bit float as f64.
fn wide(dtype: DType, bits: u64) -> f64 {
    let bits = half_word(bits);
    if dtype == DType::F16 { f16::from_bits(bits).to_f64() } else { bf16::from_bits(bits).to_f64() }
}

/// The bits of the 16-bit float nearest to `value`.
fn narrow(dtype: DType, value: f64) -> u64 {
    let odd = round_to_odd(value);
    u64::from(if dtype == DType::F16 { f16::from_f32(odd).to_bits() } else { bf16::from_f32(odd).to_bits() })
}

/// The decimal with the fewest digits that reads back to these bits.
fn shortest_low(dtype: DType, bits: u64) -> Option<String> {
    let exact = wide(dtype, bits);
    (0..17).find_map(|digits| {
        let value: f64 = format!("{exact:.digits$e}").parse().ok()?;
        (narrow(dtype, value) == bits).then(|| format!("{value:?}"))
    })
}

fn low_word(bits: u64) -> u32 {
    let b = bits.to_le_bytes();
    u32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

fn half_word(bits: u64) -> u16 {
    let b = bits.to_le_bytes();
    u16::from_le_bytes([b[0], b[1]])
}

/// Collects the elements of a constant, packed.
#[derive(Debug)]
pub(super) struct Packer {
    dtype: DType,
    /// The packed bytes.
    pub(super) bytes: Vec<u8>,
    /// The number of elements.
    pub(super) count: u64,
}

impl Packer {
    pub(super) fn new(dtype: DType) -> Packer {
        Packer { dtype, bytes: Vec::new(), count: 0 }
    }

    /// Appends an element; `None` if the literal does not fit the type.
    pub(super) fn push(&mut self, literal: &Literal<'_>) -> Option<()> {
        if let (Form::Complex(part), Literal::Complex(parts)) = (form(self.dtype), literal) {
            for literal in &**parts {
                self.push_bits(part, element_bits(part, literal)?);
            }
        } else {
            self.push_bits(self.dtype, element_bits(self.dtype, literal)?);
        }
        self.count += 1;
        Some(())
    }

    fn push_bits(&mut self, dtype: DType, bits: u64) {
        let width = dtype.bits().unwrap_or(8) as usize;
        if width >= 8 {
            self.bytes.extend_from_slice(&bits.to_le_bytes()[..width / 8]);
            return;
        }
        let shift = usize::try_from(self.count % 8).unwrap_or(0) * width % 8;
        let [low, high] = (u16::from(bits.to_le_bytes()[0]) << shift).to_le_bytes();
        match self.bytes.last_mut() {
            Some(last) if shift > 0 => *last |= low,
            _ => self.bytes.push(low),
        }
        if shift + width > 8 {
            self.bytes.push(high);
        }
    }
}

fn element_bits(dtype: DType, literal: &Literal<'_>) -> Option<u64> {
    let width = dtype.bits()?;
    match (form(dtype), literal) {
        (Form::Float, Literal::Number(text)) => float_bits(dtype, text),
        (Form::Float, Literal::Nan(bits)) => nan_bits(dtype, *bits),
        (Form::Signed, Literal::Number(text)) => {
            let value: i64 = text.parse().ok()?;
            let shift = 64 - width;
            (value << shift >> shift == value).then(|| value.cast_unsigned() & (u64::MAX >> shift))
        }
        (Form::Unsigned, Literal::Number(text)) => {
            let value: u64 = text.parse().ok()?;
            (value <= u64::MAX >> (64 - width)).then_some(value)
        }
        (Form::Bool, Literal::Bool(value)) => Some(u64::from(*value)),
        (Form::Bits, Literal::Number(text)) => {
            let value = parse_hex(text)?;
            (value <= u64::MAX >> (64 - width)).then_some(value)
        }
        (
            Form::Float
            | Form::Signed
            | Form::Unsigned
            | Form::Bool
            | Form::Bits
            | Form::Complex(_)
            | Form::Bytes,
            _,
        ) => None,
    }
}

/// `0x` and up to 16 digits.
pub(super) fn parse_hex(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    u64::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))
}

/// A finite decimal, or an infinity spelled as one.
fn float_bits(dtype: DType, text: &str) -> Option<u64> {
    let value = match text {
        "inf" => f64::INFINITY,
        "-inf" => f64::NEG_INFINITY,
        text => parse_decimal(text)?,
    };
    let bits = match dtype {
        DType::F64 => value.to_bits(),
        // Read directly, not through f64: rounding twice could give the neighbour.
        DType::F32 => u64::from(parse_f32(text)?.to_bits()),
        _ => narrow(dtype, value),
    };
    let overflowed = value.is_finite() && dtype != DType::F64 && dtype != DType::F32 && {
        wide(dtype, bits).is_infinite()
    };
    (!overflowed).then_some(bits)
}

fn parse_decimal(text: &str) -> Option<f64> {
    let begins = text.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit());
    text.parse().ok().filter(|v: &f64| begins && v.is_finite())
}

/// An f32: a decimal that does not overflow, `inf` or `-inf`.
pub(super) fn parse_f32(text: &str) -> Option<f32> {
    match text {
        "inf" => Some(f32::INFINITY),
        "-inf" => Some(f32::NEG_INFINITY),
        text => {
            parse_decimal(text)?;
            text.parse().ok().filter(|v: &f32| v.is_finite())
        }
    }
}

/// The bits of a NaN, checked; the quiet NaN if no bits are given.
pub(super) fn nan_bits(dtype: DType, bits: Option<u64>) -> Option<u64> {
    let width = dtype.bits()?;
    let Some(bits) = bits else {
        return Some(match dtype {
            DType::F64 => f64::NAN.to_bits(),
            DType::F32 => u64::from(f32::NAN.to_bits()),
            DType::F16 => u64::from(f16::NAN.to_bits()),
            _ => u64::from(bf16::NAN.to_bits()),
        });
    };
    let is_nan = match dtype {
        DType::F64 => f64::from_bits(bits).is_nan(),
        DType::F32 => f32::from_bits(low_word(bits)).is_nan(),
        _ => wide(dtype, bits).is_nan(),
    };
    (bits <= u64::MAX >> (64 - width) && is_nan).then_some(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(dtype: DType, bytes: &[u8], count: usize) -> Option<String> {
        let mut out = String::new();
        write_elements(&mut out, dtype, bytes, count).then_some(out)
    }

    /// Reads a comma-separated list of plain literals.
    fn pack(dtype: DType, text: &str) -> Vec<u8> {
        let mut packer = Packer::new(dtype);
        for item in text.split(", ") {
            let literal = match item.strip_prefix("nan(0x") {
                Some(hex) => Literal::Nan(u64::from_str_radix(hex.trim_end_matches(')'), 16).ok()),
                None if item == "true" || item == "false" => Literal::Bool(item == "true"),
                None => Literal::Number(item),
            };
            packer.push(&literal).unwrap();
        }
        packer.bytes
    }

    #[test]
    fn every_16_bit_float_round_trips_and_is_short() {
        for dtype in [DType::F16, DType::BF16] {
            for bits in 0..=u16::MAX {
                let out = text(dtype, &bits.to_le_bytes(), 1).unwrap();
                assert_eq!(pack(dtype, &out), bits.to_le_bytes(), "{dtype} {bits:#x} {out}");
            }
        }
        assert_eq!(text(DType::F16, &f16::from_f64(0.1).to_le_bytes(), 1).unwrap(), "0.1");
        assert_eq!(text(DType::BF16, &bf16::from_f64(3e38).to_le_bytes(), 1).unwrap(), "3e38");
    }

    #[test]
    fn wide_floats() {
        let values = [0.1f32, -0.0, f32::INFINITY, 1e-45, f32::from_bits(0xff80_0001), 16_777_216.0];
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let out = text(DType::F32, &bytes, 6).unwrap();
        assert_eq!(out, "0.1, -0.0, inf, 1e-45, nan(0xff800001), 16777216.0");
        assert_eq!(pack(DType::F32, &out), bytes);
        let out = text(DType::F64, &1e300f64.to_le_bytes(), 1).unwrap();
        assert_eq!((out.as_str(), pack(DType::F64, &out)), ("1e300", 1e300f64.to_le_bytes().to_vec()));
    }

    #[test]
    fn packed_integers() {
        let out = text(DType::I4, &[0x8f, 0x07], 3).unwrap();
        assert_eq!((out.as_str(), pack(DType::I4, &out)), ("-1, -8, 7", vec![0x8f, 0x07]));
        let out = text(DType::U2, &[0b1110_0100, 1], 5).unwrap();
        assert_eq!((out.as_str(), pack(DType::U2, &out)), ("0, 1, 2, 3, 1", vec![0b1110_0100, 1]));
        assert_eq!(text(DType::I4, &[0xff], 1), None, "bits beyond the last element");
        assert_eq!(text(DType::Bool, &[2], 1), None);
        assert_eq!(text(DType::F4E2M1, &[0x5a], 2).unwrap(), "0xa, 0x5");
    }

    #[test]
    fn literals_of_the_wrong_type_are_refused() {
        let push = |dtype, literal| Packer::new(dtype).push(&literal).is_some();
        assert!(!push(DType::I8, Literal::Number("128")));
        assert!(push(DType::I8, Literal::Number("-128")));
        assert!(!push(DType::U64, Literal::Number("-1")));
        assert!(!push(DType::I32, Literal::Number("1.0")));
        assert!(!push(DType::F16, Literal::Number("1e9")));
        assert!(!push(DType::F32, Literal::Number("1e39")));
        assert!(!push(DType::F32, Literal::Number("nan")));
        assert!(!push(DType::F32, Literal::Nan(Some(0x3f80_0000))));
        assert!(!push(DType::Bool, Literal::Number("1")));
        assert!(!push(DType::Complex64, Literal::Number("1.0")));
    }
}
