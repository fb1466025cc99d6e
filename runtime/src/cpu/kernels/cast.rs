//! Elements of one type as elements of another: Cast, CastLike, BitCast.
//!
//! Numbers go through [`lane`](super::lane), rounded once; f32 and 16-bit floats are converted straight into each
//! other. Strings are read as decimal numbers, "INF" and "NaN"; floats are written with the fewest digits that identify
//! them, with an exponent below 10^-4 and from 10^16 on.

use super::elements::{Text, texts_of};
use super::lane::{BLOCK, Encoding, Lane, RoundMode, bits_of, block_bytes, encode};
use super::lanes::Real;
use super::parallel::{PIECE, pieces};
use super::shape::same;
use crate::host::HostTensor;
use crate::kernel::{KernelError, Prepare, Prepared, Result, Site};
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use half::{bf16, f16};
use std::sync::OnceLock;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::BitCast => bit_cast,
        OpKind::Cast | OpKind::CastLike => cast,
        _ => return None,
    })
}

fn cast(site: &Site<'_>) -> Result<Prepared> {
    let (from, to) = (site.dtype(0)?, site.result_dtype(0)?);
    if from == to {
        return same(site);
    }
    let round_mode = match site.view.string("round_mode") {
        None | Some("up") => RoundMode::Up,
        Some("down") => RoundMode::Down,
        Some("nearest") => RoundMode::Nearest,
        Some(other) => return Err(OpError::attr("round_mode", "up, down or nearest", other).into()),
    };
    let saturate = site.view.int("saturate").is_none_or(|v| v != 0);
    let encoding = Encoding { to, saturate, round_mode };
    match (from, to) {
        (DType::Complex64 | DType::Complex128 | DType::Other(_), _)
        | (_, DType::Complex64 | DType::Complex128 | DType::Other(_)) => Err(site.no_kernel()),
        (_, DType::String) => written(from),
        (DType::String, _) => parsed(encoding),
        (DType::F16, DType::F32) => widened::<f16>(),
        (DType::BF16, DType::F32) => widened::<bf16>(),
        (DType::F32, DType::F16) => narrowed::<f16>(),
        (DType::F32, DType::BF16) => narrowed::<bf16>(),
        (DType::U64, _) => converted::<u64>(site, from, encoding),
        (DType::F64, _) => converted::<f64>(site, from, encoding),
        _ if from.is_float() => converted::<f32>(site, from, encoding),
        _ => converted::<i64>(site, from, encoding),
    }
}

/// 16-bit floats as f32.
fn widened<T: Real<Wide = f32>>() -> Result<Prepared> {
    Ok(Prepared::new(|io| {
        let (from, to) = (io.slice::<T>(0)?, io.out::<f32>(0)?);
        pieces(to, PIECE, |at, to| T::widen(&from[at..at + to.len()], to));
        Ok(())
    }))
}

/// f32 as 16-bit floats.
fn narrowed<T: Real<Wide = f32>>() -> Result<Prepared> {
    Ok(Prepared::new(|io| {
        let (from, to) = (io.slice::<f32>(0)?, io.out::<T>(0)?);
        pieces(to, PIECE, |at, to| T::narrow(&from[at..at + to.len()], to));
        Ok(())
    }))
}

/// Numbers of one type as numbers of another, a block at a time.
fn converted<L: Lane>(site: &Site<'_>, from: DType, encoding: Encoding) -> Result<Prepared> {
    let count: usize = site.dims(0)?.iter().product();
    let (from_bits, to_bits) = (bits_of(from)?, bits_of(encoding.to)?);
    let kernel = Prepared::new(move |io| {
        let source = if io.in_place.is_some() { None } else { Some(io.bytes(0)?) };
        let to = io.out_bytes(0)?;
        let failed = OnceLock::new();
        pieces(to, PIECE / 8 * to_bits, |at, to| {
            let mut start = at * 8 / to_bits;
            for to in to.chunks_mut(block_bytes(to_bits)) {
                let mut block = [L::zeroed(); BLOCK];
                let block = &mut block[..BLOCK.min(count - start)];
                let decoded = match source {
                    Some(source) => L::decode(from, &source[start * from_bits / 8..], block),
                    None => L::decode(from, to, block),
                };
                if let Err(error) = decoded.and_then(|()| encode(block, encoding, to)) {
                    failed.get_or_init(|| error);
                }
                start += block.len();
            }
        });
        failed.into_inner().map_or(Ok(()), Err)
    });
    Ok(if from_bits == to_bits { kernel.in_place(&[0]) } else { kernel })
}

/// The same bits as another type of the same width.
fn bit_cast(_: &Site<'_>) -> Result<Prepared> {
    Ok(Prepared::new(|io| {
        if io.in_place.is_none() {
            let from = io.bytes(0)?;
            io.out_bytes(0)?.copy_from_slice(from);
        }
        Ok(())
    })
    .in_place(&[0]))
}

/// Strings as numbers.
fn parsed(encoding: Encoding) -> Result<Prepared> {
    let bits = bits_of(encoding.to)?;
    Ok(Prepared::new(move |io| {
        let (from, to) = (texts_of(io, 0)?, io.out_bytes(0)?);
        for (from, to) in from.chunks(BLOCK).zip(to.chunks_mut(block_bytes(bits))) {
            match encoding.to {
                DType::F32 => parse_block::<f32>(from, encoding, to, parse_float)?,
                to_float if to_float.is_float() => parse_block::<f64>(from, encoding, to, parse_float)?,
                DType::U64 => parse_block::<u64>(from, encoding, to, |text| {
                    text.parse().ok().or_else(|| Some(parse_int(text)?.cast_unsigned()))
                })?,
                DType::Bool => parse_block::<i64>(from, encoding, to, |text| match text {
                    "true" | "True" => Some(1),
                    "false" | "False" => Some(0),
                    _ => parse_float::<f64>(text).map(|number| i64::from(number != 0.0)),
                })?,
                _ => parse_block::<i64>(from, encoding, to, parse_int)?,
            }
        }
        Ok(())
    }))
}

fn parse_block<L: Lane>(
    from: &[Text],
    encoding: Encoding,
    to: &mut [u8],
    parse: impl Fn(&str) -> Option<L>,
) -> Result<()> {
    let mut block = [L::zeroed(); BLOCK];
    for (number, text) in block.iter_mut().zip(from) {
        let parsed = std::str::from_utf8(text).ok().and_then(|text| parse(text.trim()));
        *number = parsed.ok_or_else(|| {
            let expected = format!("strings that are numbers of {}", encoding.to);
            KernelError::value(expected, format!("{:?}", String::from_utf8_lossy(text)))
        })?;
    }
    encode(&block[..from.len()], encoding, to)
}

/// Rust reads decimal numbers, and infinities and NaN in any case.
fn parse_float<F: std::str::FromStr>(text: &str) -> Option<F> {
    text.parse().ok()
}

/// A whole number; the fraction of any other goes.
fn parse_int(text: &str) -> Option<i64> {
    text.parse().ok().or_else(|| parse_float::<f64>(text).map(Lane::to_bits64))
}

/// Numbers as strings.
fn written(from: DType) -> Result<Prepared> {
    let bits = bits_of(from)?;
    Ok(Prepared::new(move |io| {
        let tensor = io.tensor(0)?;
        let (bytes, count) = (io.bytes(0)?, usize::try_from(tensor.element_count()).unwrap_or(usize::MAX));
        let mut texts: Vec<Text> = io.room().list(count)?;
        for start in (0..count).step_by(BLOCK) {
            let (bytes, n) = (&bytes[start * bits / 8..], BLOCK.min(count - start));
            match from {
                DType::Bool => write_block::<i64>(from, bytes, n, &mut texts, |b| {
                    (if b == 0 { "False" } else { "True" }).to_owned()
                })?,
                DType::U64 => write_block::<u64>(from, bytes, n, &mut texts, |n| n.to_string())?,
                _ if from.is_float() => {
                    write_block::<f64>(from, bytes, n, &mut texts, |number| float_text(number, from))?;
                }
                _ => write_block::<i64>(from, bytes, n, &mut texts, |n| n.to_string())?,
            }
        }
        io.emit(0, HostTensor::from_strings(tensor.dims(), texts)?)
    }))
}

fn write_block<L: Lane>(
    from: DType,
    bytes: &[u8],
    n: usize,
    texts: &mut Vec<Text>,
    write: impl Fn(L) -> String,
) -> Result<()> {
    let mut block = [L::zeroed(); BLOCK];
    L::decode(from, bytes, &mut block[..n])?;
    texts.extend(block[..n].iter().map(|&number| write(number).into_bytes().into_boxed_slice()));
    Ok(())
}

/// A number of a float type as text, as NumPy writes it but for infinities and NaN.
fn float_text(number: f64, dtype: DType) -> String {
    if number.is_nan() {
        return "NaN".into();
    }
    if number.is_infinite() {
        return if number < 0.0 { "-INF".into() } else { "INF".into() };
    }
    let scientific = shortest(number, dtype);
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let short: f64 = scientific.parse().unwrap_or(number);
    if short == short.trunc() { format!("{short:.1}") } else { format!("{short}") }
}

/// As few digits as say which number of its type it is, with an exponent.
fn shortest(number: f64, dtype: DType) -> String {
    let is_same = |text: &str| match (dtype, text.parse::<f64>()) {
        (DType::F16, Ok(read)) => f16::from_f64(read).to_f64() == number,
        (DType::BF16, Ok(read)) => bf16::from_f64(read).to_f64() == number,
        _ => false,
    };
    match dtype {
        DType::F16 | DType::BF16 => {
            let texts = (0..9).map(|digits| format!("{number:.digits$e}"));
            texts.into_iter().find(|text| is_same(text)).unwrap_or_else(|| format!("{number:e}"))
        }
        DType::F32 => format!("{:e}", number.to_f32()),
        _ => format!("{number:e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `str` of NumPy 2 scalars of the same type.
    #[test]
    fn floats_as_text() {
        let text = |number: f32| float_text(number.into(), DType::F32);
        assert_eq!(
            [text(0.478_925_47), text(1.0), text(-0.0), text(1e-5)],
            ["0.47892547", "1.0", "-0.0", "1e-05"]
        );
        assert_eq!([text(1e16), text(1.5e20), text(123_456_790.0)], ["1e+16", "1.5e+20", "123456790.0"]);
        assert_eq!([text(1e-4), text(f32::NAN), text(f32::NEG_INFINITY)], ["0.0001", "NaN", "-INF"]);
        assert_eq!(float_text(f16::from_f64(0.1).to_f64(), DType::F16), "0.1");
        assert_eq!(float_text(0.1, DType::F64), "0.1");
    }

    #[test]
    fn texts_as_numbers() {
        assert_eq!(
            [parse_int("12"), parse_int("100.5"), parse_int("-1e3")],
            [Some(12), Some(100), Some(-1000)]
        );
        assert_eq!(parse_int("Hello World!"), None);
        assert_eq!(parse_float::<f32>("+INF"), Some(f32::INFINITY));
        assert!(parse_float::<f32>("NaN").is_some_and(f32::is_nan));
    }
}
