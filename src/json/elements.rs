//! Elements of small constants, and floats in general.
//!
//! Numbers are written with as many digits as are needed to read the same bits back. Elements without such a
//! number are written as bytes in hexadecimal: NaNs other than the quiet NaN, booleans other than 0 and 1,
//! elements of fewer than 8 bits, complex numbers, floats of 8 bits.

use super::tape::Token;
use ampc_ir::DType;
use ampc_ir::convert::{Conversion, convert};
use std::fmt::Write;

/// A float as JSON; a NaN that is not the quiet one has its bits.
pub(super) fn write_f32(out: &mut String, value: f32) {
    if value.is_nan() && value.to_bits() != f32::NAN.to_bits() {
        let _ = write!(out, "\"nan(0x{:08x})\"", value.to_bits());
    } else {
        write_float(out, value.is_nan(), value.is_infinite(), value < 0.0, &value);
    }
}

fn write_float(out: &mut String, nan: bool, infinite: bool, negative: bool, value: &dyn std::fmt::Debug) {
    let _ = match (nan, infinite, negative) {
        (true, ..) => write!(out, "\"nan\""),
        (_, true, false) => write!(out, "\"inf\""),
        (_, true, true) => write!(out, "\"-inf\""),
        _ => write!(out, "{value:?}"),
    };
}

/// Reads the output of [`write_f32`], or another JSON number within the range.
pub(super) fn read_f32(token: &Token<'_>) -> Option<f32> {
    match token {
        Token::Number(text) => text.parse().ok().filter(|v: &f32| v.is_finite()),
        Token::Text(text) => match &**text {
            "inf" => Some(f32::INFINITY),
            "-inf" => Some(f32::NEG_INFINITY),
            "nan" => Some(f32::NAN),
            text => {
                let digits = text.strip_prefix("nan(0x")?.strip_suffix(')')?;
                let bits = u32::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))?;
                Some(f32::from_bits(bits)).filter(|v| v.is_nan())
            }
        },
        Token::Null | Token::Bool(_) | Token::List | Token::Object => None,
    }
}

fn read_f64(token: &Token<'_>) -> Option<f64> {
    match token {
        Token::Number(text) => text.parse().ok().filter(|v: &f64| v.is_finite()),
        Token::Text(text) => match &**text {
            "inf" => Some(f64::INFINITY),
            "-inf" => Some(f64::NEG_INFINITY),
            "nan" => Some(f64::NAN),
            _ => None,
        },
        Token::Null | Token::Bool(_) | Token::List | Token::Object => None,
    }
}

/// Writes packed elements as a list, or as hexadecimal bytes.
pub(super) fn write(out: &mut String, dtype: DType, bytes: &[u8]) {
    let start = out.len();
    out.push('[');
    if write_list(out, dtype, bytes).is_some() {
        out.push(']');
        return;
    }
    out.truncate(start);
    out.push('"');
    for b in bytes {
        let _ = write!(out, "{b:02x}");
    }
    out.push('"');
}

/// `None` if there is an element that has no literal.
fn write_list(out: &mut String, dtype: DType, bytes: &[u8]) -> Option<()> {
    let wide: Vec<u8>;
    let (dtype, bytes) = match dtype {
        // Exact, and its shortest spelling reads back to the same bits; its NaNs are quiet ones of f32 as well.
        DType::F16 | DType::BF16 => {
            let mut converted = Vec::new();
            convert(dtype, Conversion { to: DType::F32, clamp: false }, bytes, &mut converted);
            wide = converted;
            if wide.as_chunks::<4>().0.iter().any(|b| f32::from_le_bytes(*b).is_nan()) {
                return None;
            }
            (DType::F32, &wide[..])
        }
        _ => (dtype, bytes),
    };
    let size = usize::try_from(dtype.bits()? / 8).ok().filter(|&size| size > 0)?;
    for (i, element) in bytes.chunks_exact(size).enumerate() {
        out.push_str(if i > 0 { ", " } else { "" });
        let mut word = [0; 8];
        word.get_mut(..size)?.copy_from_slice(element);
        let bits = u64::from_le_bytes(word);
        let shift = 64 - 8 * size;
        match dtype {
            DType::F32 => {
                let value = f32::from_bits(u32::try_from(bits).ok()?);
                if value.is_nan() && value.to_bits() != f32::NAN.to_bits() {
                    return None;
                }
                write_f32(out, value);
            }
            DType::F64 => {
                let v = f64::from_bits(bits);
                if v.is_nan() && bits != f64::NAN.to_bits() {
                    return None;
                }
                write_float(out, v.is_nan(), v.is_infinite(), v < 0.0, &v);
            }
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => {
                let _ = write!(out, "{}", bits.cast_signed() << shift >> shift);
            }
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => {
                let _ = write!(out, "{bits}");
            }
            DType::Bool if bits < 2 => out.push_str(if bits == 1 { "true" } else { "false" }),
            _ => return None,
        }
    }
    Some(())
}

/// Appends one element; `None` if the token does not fit the type.
pub(super) fn pack(bytes: &mut Vec<u8>, dtype: DType, token: &Token<'_>) -> Option<()> {
    let bits = match dtype {
        DType::F32 => u64::from(read_f32(token)?.to_bits()),
        DType::F64 => read_f64(token)?.to_bits(),
        DType::F16 | DType::BF16 => {
            let value = read_f64(token)?;
            let (mut low, mut back) = (Vec::new(), Vec::new());
            convert(DType::F64, Conversion { to: dtype, clamp: false }, &value.to_le_bytes(), &mut low);
            convert(dtype, Conversion { to: DType::F64, clamp: false }, &low, &mut back);
            let rounded = f64::from_le_bytes(back.try_into().ok()?);
            if rounded.is_infinite() && value.is_finite() {
                return None;
            }
            bytes.extend_from_slice(&low);
            return Some(());
        }
        DType::Bool => match token {
            Token::Bool(value) => u64::from(*value),
            _ => return None,
        },
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => {
            let Token::Number(text) = token else { return None };
            let value: i64 = text.parse().ok()?;
            let shift = 64 - dtype.bits()?;
            (value << shift >> shift == value).then_some(value.cast_unsigned())?
        }
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => {
            let Token::Number(text) = token else { return None };
            text.parse().ok().filter(|&v: &u64| v <= u64::MAX >> (64 - dtype.bits().unwrap_or(64)))?
        }
        _ => return None,
    };
    let size = usize::try_from(dtype.bits()? / 8).ok()?;
    bytes.extend_from_slice(bits.to_le_bytes().get(..size)?);
    Some(())
}

/// The bytes of pairs of hexadecimal digits.
pub(super) fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect();
    let digits = digits?;
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| high * 16 + low).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::tape::Tape;

    fn again(dtype: DType, bytes: &[u8]) -> (String, Vec<u8>) {
        let mut out = String::new();
        write(&mut out, dtype, bytes);
        let tape = Tape::new(&out).unwrap();
        let mut packed = Vec::new();
        match tape.token(tape.root()) {
            Token::Text(text) => packed = hex(&text).unwrap(),
            _ => tape.items(tape.root()).for_each(|at| {
                pack(&mut packed, dtype, &tape.token(at)).unwrap();
            }),
        }
        (out, packed)
    }

    #[test]
    fn every_16_bit_pattern_is_read_back() {
        for dtype in [DType::F16, DType::BF16, DType::I16, DType::U16] {
            for bits in 0..=u16::MAX {
                assert_eq!(again(dtype, &bits.to_le_bytes()).1, bits.to_le_bytes(), "{dtype} {bits:#x}");
            }
        }
    }

    #[test]
    fn other_elements() {
        let floats = [0.1f32, -0.0, f32::INFINITY, 1e-45, f32::NAN, f32::MAX];
        let bytes: Vec<u8> = floats.iter().flat_map(|v| v.to_le_bytes()).collect();
        let (text, packed) = again(DType::F32, &bytes);
        assert_eq!((text.as_str(), packed), ("[0.1, -0.0, \"inf\", 1e-45, \"nan\", 3.4028235e38]", bytes));
        assert_eq!(again(DType::F32, &0xff80_0001u32.to_le_bytes()).0, "\"010080ff\"");
        assert_eq!(again(DType::Bool, &[0, 1]).0, "[false, true]");
        assert_eq!(again(DType::Bool, &[2]), ("\"02\"".into(), vec![2]));
        assert_eq!(again(DType::I4, &[0x8f]), ("\"8f\"".into(), vec![0x8f]));
        assert_eq!(again(DType::U64, &[0xff; 8]), ("[18446744073709551615]".into(), vec![0xff; 8]));
        for (dtype, text) in
            [(DType::I8, "128"), (DType::U8, "-1"), (DType::F16, "1e9"), (DType::F32, "1e39")]
        {
            assert!(pack(&mut Vec::new(), dtype, &Token::Number(text)).is_none(), "{dtype} {text}");
        }
    }
}
