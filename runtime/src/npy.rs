//! Arrays in NumPy's `.npy` format (NEP 1; reads versions 1 to 3, writes version 1), without Python.
//!
//! NumPy has no element types for bf16 and the 8-bit floats. Such a tensor is stored as unsigned integers of its
//! width, and the name of the entry in an archive has the type: see [`npz`](crate::npz). Supported: both byte orders,
//! both memory orders, byte strings and Unicode strings. Rejected: structured types, pickled objects, dates, and
//! types wider than 64 bits except complex128.
//!
//! The header code is hand-written because a header is one dictionary with three keys; crates that read it bring a
//! parser generator and an array type.

use crate::host::{HostError, HostTensor};
use ampc_ir::DType;
use std::fmt::Write as _;
use std::io::{self, Read, Write};

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// The largest header read. NumPy's own limit is 10,000, beyond which it asks whether the file is trusted.
const MAX_HEADER: usize = 1 << 16;
/// Data starts at a multiple of this number, as NumPy writes it.
const ALIGNMENT: usize = 64;
/// NumPy's `NPY_MAXDIMS` since version 2.
const MAX_RANK: usize = 64;

/// Error of reading or writing an array.
#[derive(Debug, thiserror::Error)]
pub enum NpyError {
    /// Reading or writing failed, for example because the data is shorter than the header says.
    #[error("reading or writing fails: {0}")]
    Io(#[from] io::Error),
    /// The header is not the header of a `.npy` file.
    #[error("the header is not that of a `.npy` array: {what}")]
    Header {
        /// The expected item.
        what: &'static str,
    },
    /// The element type has no counterpart.
    #[error("element type `{descr}` is not supported{}", advice(.descr))]
    Descr {
        /// NumPy's spelling.
        descr: String,
    },
    /// The data is shorter than the header says.
    #[error("expected {says} bytes of elements by the header, found {there}")]
    Short {
        /// The size of the elements by the header, in bytes.
        says: u64,
        /// The number of bytes after the header.
        there: u64,
    },
    /// The array exceeds the limit.
    #[error("expected an array of at most {most} bytes, found one of {bytes}")]
    TooLarge {
        /// The size of its elements in bytes.
        bytes: u64,
        /// The limit.
        most: u64,
    },
    /// The strings exceed the memory limit.
    #[error("expected strings that take at most {most} bytes in memory, found {count} that take more")]
    Strings {
        /// The number of strings.
        count: u64,
        /// The limit.
        most: u64,
    },
    /// More bytes follow the array.
    #[error("bytes follow the array that the header describes")]
    Trailing,
    /// The rank exceeds NumPy's maximum.
    #[error("a tensor of rank {rank}; NumPy's arrays have at most {MAX_RANK} dims")]
    Rank {
        /// Number of dims.
        rank: usize,
    },
    /// The element type cannot be written as an array.
    #[error("a tensor of {dtype}, which NumPy does not have")]
    DType {
        /// Element type.
        dtype: DType,
    },
    /// The string ends with a NUL, which NumPy strips, or is not Unicode.
    #[error("a tensor whose string {index} is not Unicode text, or ends in NUL")]
    String {
        /// Index of the element.
        index: usize,
    },
    /// The tensor cannot be allocated.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// Advice for an unsupported element type.
fn advice(descr: &str) -> &'static str {
    match descr {
        "|O" => ": Python objects are not read; of strings `astype('U')` makes some that are",
        _ => "",
    }
}

/// Content of a header.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Header {
    descr: String,
    fortran_order: bool,
    shape: Vec<u64>,
}

/// A reader that counts bytes.
struct Counted<R> {
    reader: R,
    bytes: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(target)?;
        self.bytes += read as u64;
        Ok(read)
    }
}

/// The parsed element type of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Item {
    Number {
        dtype: DType,
        swapped: bool,
    },
    /// Bytes per element; padded with NUL.
    Bytes(u64),
    /// UTF-32 characters per element; padded with NUL.
    Unicode {
        chars: u64,
        swapped: bool,
    },
}

impl Item {
    /// Bytes of one element in the file.
    fn bytes(self) -> u64 {
        match self {
            Item::Number { dtype, .. } => u64::from(dtype.bits().unwrap_or(8) / 8),
            Item::Bytes(len) => len,
            Item::Unicode { chars, .. } => chars.saturating_mul(4),
        }
    }
}

/// Reads the header of an array: the element type and dims.
///
/// # Errors
/// If the header is not that of an array of a supported type.
pub fn header(mut reader: impl Read) -> Result<(DType, Vec<u64>), NpyError> {
    let header = read_header(&mut reader)?;
    let item = parse_descr(&header.descr).ok_or(NpyError::Descr { descr: header.descr })?;
    let dtype = match item {
        Item::Number { dtype, .. } => dtype,
        Item::Bytes(_) | Item::Unicode { .. } => DType::String,
    };
    Ok((dtype, header.shape))
}

/// The memory overhead of a string, besides its text.
const STRING: u64 = size_of::<Box<[u8]>>() as u64;

/// Reads one array to its end, of at most `stored` bytes including the header, whose elements take at most `most`
/// bytes in memory; strings take more memory than in the file. Memory is allocated once the size is known; for
/// strings, while they are read.
///
/// # Errors
/// If the array exceeds a limit, or is incomplete or of an unsupported type.
pub fn read(reader: impl Read, stored: u64, most: u64) -> Result<HostTensor, NpyError> {
    let mut reader = Counted { reader, bytes: 0 };
    let header = read_header(&mut reader)?;
    let there = stored.saturating_sub(reader.bytes);
    let item = parse_descr(&header.descr).ok_or(NpyError::Descr { descr: header.descr })?;
    let bytes = header.shape.iter().try_fold(item.bytes(), |bytes, &dim| bytes.checked_mul(dim));
    match bytes {
        Some(says) if says > there => return Err(NpyError::Short { says, there }),
        Some(bytes) if matches!(item, Item::Number { .. }) && bytes > most => {
            return Err(NpyError::TooLarge { bytes, most });
        }
        // A size that overflows is rejected when the tensor is made.
        Some(_) | None => {}
    }
    let tensor = match item {
        Item::Number { dtype, swapped } => {
            read_numbers(&mut reader, dtype, swapped, header.fortran_order, &header.shape)?
        }
        Item::Bytes(len) => {
            let strings = read_strings(&mut reader, &header.shape, len, most, byte_string)?;
            tensor_of_strings(&header.shape, header.fortran_order, strings)?
        }
        Item::Unicode { chars, swapped } => {
            let decode = |raw: &[u8]| unicode_string(raw, swapped);
            let len =
                chars.checked_mul(4).ok_or(NpyError::Header { what: "strings of a length that fits" })?;
            let strings = read_strings(&mut reader, &header.shape, len, most, decode)?;
            tensor_of_strings(&header.shape, header.fortran_order, strings)?
        }
    };
    if reader.read(&mut [0])? == 0 { Ok(tensor) } else { Err(NpyError::Trailing) }
}

/// Checks that NumPy can represent a tensor. [`write()`] checks the same.
///
/// # Errors
/// If NumPy cannot represent it: elements of less than a byte, strings that are not text, more than 64 dims.
pub fn check(tensor: &HostTensor) -> Result<(), NpyError> {
    let rank = tensor.dims().len();
    if rank > MAX_RANK {
        return Err(NpyError::Rank { rank });
    }
    match tensor.strings() {
        Some(strings) => match (0..).zip(strings).find(|(_, bytes)| text_of(bytes).is_none()) {
            Some((index, _)) => Err(NpyError::String { index }),
            None => Ok(()),
        },
        None => numeric_descr(tensor.dtype()).map(drop).ok_or(NpyError::DType { dtype: tensor.dtype() }),
    }
}

/// Writes one array, in row-major order.
///
/// # Errors
/// If writing fails, or NumPy cannot represent the tensor ([`check`]).
pub fn write(mut writer: impl Write, tensor: &HostTensor) -> Result<(), NpyError> {
    check(tensor)?;
    if let Some(strings) = tensor.strings() {
        return write_strings(&mut writer, tensor.dims(), strings);
    }
    let dtype = tensor.dtype();
    let (descr, bytes) = numeric_descr(dtype).zip(tensor.bytes()).ok_or(NpyError::DType { dtype })?;
    write_header(&mut writer, descr, tensor.dims())?;
    Ok(writer.write_all(bytes)?)
}

/// NumPy's spelling of a numeric element type, or of the unsigned integer of the same width if NumPy lacks the type.
fn numeric_descr(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::Bool => "|b1",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::U8 => "|u1",
        DType::U16 | DType::BF16 => "<u2",
        DType::U32 => "<u4",
        DType::U64 => "<u8",
        DType::F16 => "<f2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::Complex64 => "<c8",
        DType::Complex128 => "<c16",
        d if d.is_float() && d.bits() == Some(8) => "|u1",
        _ => return None,
    })
}

fn parse_descr(descr: &str) -> Option<Item> {
    let order = descr.chars().next().filter(|c| "<>|=".contains(*c))?;
    let swapped = order == '>';
    let (kind, size) = descr[1..].split_at_checked(1)?;
    let size: u64 = size.parse().ok().filter(|&size| size > 0)?;
    let dtype = match (kind, size) {
        ("S", len) => return Some(Item::Bytes(len)),
        ("U", chars) => return Some(Item::Unicode { chars, swapped }),
        ("b", 1) => DType::Bool,
        ("i", 1) => DType::I8,
        ("i", 2) => DType::I16,
        ("i", 4) => DType::I32,
        ("i", 8) => DType::I64,
        ("u", 1) => DType::U8,
        ("u", 2) => DType::U16,
        ("u", 4) => DType::U32,
        ("u", 8) => DType::U64,
        ("f", 2) => DType::F16,
        ("f", 4) => DType::F32,
        ("f", 8) => DType::F64,
        ("c", 8) => DType::Complex64,
        ("c", 16) => DType::Complex128,
        _ => return None,
    };
    Some(Item::Number { dtype, swapped })
}

fn read_numbers(
    reader: &mut impl Read,
    dtype: DType,
    swapped: bool,
    fortran_order: bool,
    dims: &[u64],
) -> Result<HostTensor, NpyError> {
    let complex = matches!(dtype, DType::Complex64 | DType::Complex128);
    let size = (dtype.bits().unwrap_or(8) / 8) as usize;
    let word = if complex { size / 2 } else { size };
    let fill = |target: &mut [u8]| {
        reader.read_exact(target)?;
        if swapped {
            target.chunks_exact_mut(word).for_each(<[u8]>::reverse);
        }
        Ok(())
    };
    let tensor = HostTensor::filled::<NpyError>(dtype, dims, fill)?;
    let Some(source) = tensor.bytes().filter(|_| fortran_order && dims.len() > 1) else {
        return Ok(tensor);
    };
    let row_major = |target: &mut [u8]| {
        let elements = target.chunks_exact_mut(size);
        for (element, from) in elements.zip(row_major_order(dims)) {
            element.copy_from_slice(&source[from * size..(from + 1) * size]);
        }
        Ok(())
    };
    HostTensor::filled(dtype, dims, row_major)
}

/// For each element in row-major order, its position in column-major order. The dims' product fits in memory.
fn row_major_order(dims: &[u64]) -> impl Iterator<Item = usize> {
    let dims: Vec<usize> = dims.iter().map(|&d| usize::try_from(d).unwrap_or(usize::MAX)).collect();
    let mut at = vec![0; dims.len()];
    let mut left: usize = dims.iter().product();
    std::iter::from_fn(move || {
        left = left.checked_sub(1)?;
        let position = at.iter().zip(&dims).rev().fold(0, |position, (i, d)| position * d + i);
        for (i, d) in at.iter_mut().zip(&dims).rev() {
            *i += 1;
            if *i < *d {
                break;
            }
            *i = 0;
        }
        Some(position)
    })
}

fn read_strings(
    reader: &mut impl Read,
    dims: &[u64],
    len: u64,
    most: u64,
    decode: impl Fn(&[u8]) -> Option<Box<[u8]>>,
) -> Result<Vec<Box<[u8]>>, NpyError> {
    let count = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
    let count = count.ok_or(NpyError::Header { what: "a number of strings that fits" })?;
    let too_large = || NpyError::Strings { count, most };
    let mut left = count.checked_mul(STRING).and_then(|list| most.checked_sub(list)).ok_or_else(too_large)?;
    // Both lists grow with the bytes read, not with the size that the header claims.
    let (mut raw, mut strings) = (Vec::new(), Vec::new());
    for _ in 0..count {
        raw.clear();
        if reader.take(len).read_to_end(&mut raw)? as u64 != len {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let string = decode(&raw).ok_or(NpyError::String { index: strings.len() })?;
        left = left.checked_sub(string.len() as u64).ok_or_else(too_large)?;
        strings.push(string);
    }
    Ok(strings)
}

/// A tensor of strings in the order of the file, without copies.
fn tensor_of_strings(
    dims: &[u64],
    fortran_order: bool,
    mut strings: Vec<Box<[u8]>>,
) -> Result<HostTensor, NpyError> {
    if fortran_order && dims.len() > 1 {
        strings = row_major_order(dims).map(|from| std::mem::take(&mut strings[from])).collect();
    }
    Ok(HostTensor::from_strings(dims, strings)?)
}

fn byte_string(raw: &[u8]) -> Option<Box<[u8]>> {
    let end = raw.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1);
    Some(raw[..end].into())
}

fn unicode_string(raw: &[u8], swapped: bool) -> Option<Box<[u8]>> {
    let read = |c: &[u8; 4]| if swapped { u32::from_be_bytes(*c) } else { u32::from_le_bytes(*c) };
    let text: String =
        raw.as_chunks::<4>().0.iter().map(|c| char::from_u32(read(c))).collect::<Option<_>>()?;
    Some(text.trim_end_matches('\0').as_bytes().into())
}

/// A string in a form that NumPy can represent.
fn text_of(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| !text.ends_with('\0'))
}

fn write_strings(writer: &mut impl Write, dims: &[u64], strings: &[Box<[u8]>]) -> Result<(), NpyError> {
    let texts = strings.iter().enumerate().map(|(index, bytes)| {
        text_of(bytes).map(|text| text.chars().collect::<Vec<_>>()).ok_or(NpyError::String { index })
    });
    let texts = texts.collect::<Result<Vec<_>, _>>()?;
    let chars = texts.iter().map(Vec::len).max().unwrap_or(0).max(1);
    write_header(writer, &format!("<U{chars}"), dims)?;
    for text in &texts {
        let padding = std::iter::repeat_n('\0', chars - text.len());
        let raw: Vec<u8> =
            text.iter().copied().chain(padding).flat_map(|c| u32::from(c).to_le_bytes()).collect();
        writer.write_all(&raw)?;
    }
    Ok(())
}

fn write_header(writer: &mut impl Write, descr: &str, dims: &[u64]) -> Result<(), NpyError> {
    let mut shape = String::new();
    for dim in dims {
        let _ = write!(shape, "{dim}, ");
    }
    let shape = if dims.len() == 1 { shape.trim_end() } else { shape.trim_end_matches(", ") };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    let preamble = MAGIC.len() + 2 + 2;
    let padded = (preamble + text.len() + 1).next_multiple_of(ALIGNMENT);
    text.extend(std::iter::repeat_n(' ', padded - preamble - text.len() - 1));
    text.push('\n');
    let len = u16::try_from(text.len()).map_err(|_| NpyError::Rank { rank: dims.len() })?;
    writer.write_all(MAGIC)?;
    writer.write_all(&[1, 0])?;
    writer.write_all(&len.to_le_bytes())?;
    Ok(writer.write_all(text.as_bytes())?)
}

fn read_header(reader: &mut impl Read) -> Result<Header, NpyError> {
    let mut start = [0; 8];
    reader.read_exact(&mut start)?;
    if start[..6] != *MAGIC {
        return Err(NpyError::Header { what: "`\\x93NUMPY` at the start" });
    }
    let mut len = [0; 4];
    match start[6] {
        1 => reader.read_exact(&mut len[..2])?,
        2 | 3 => reader.read_exact(&mut len)?,
        _ => return Err(NpyError::Header { what: "version 1, 2 or 3" }),
    }
    let len = u32::from_le_bytes(len) as usize;
    if len > MAX_HEADER {
        return Err(NpyError::Header { what: "at most 65,536 bytes" });
    }
    let mut text = vec![0; len];
    reader.read_exact(&mut text)?;
    let text = std::str::from_utf8(&text).map_err(|_| NpyError::Header { what: "UTF-8 text" })?;
    parse_header(text).map_err(|what| NpyError::Header { what })
}

/// Reads the dictionary literal of a header: three keys in any order.
fn parse_header(text: &str) -> Result<Header, &'static str> {
    let mut rest = text.trim().strip_prefix('{').ok_or("a dictionary")?.trim_start();
    let (mut descr, mut fortran_order, mut shape) = (None, None, None);
    while !rest.starts_with('}') {
        let (key, after) = quoted(rest).ok_or("a quoted key")?;
        let value = after.trim_start().strip_prefix(':').ok_or("`:` behind a key")?.trim_start();
        // Python uses the last of two equal keys, other readers use the first.
        let is_known = match key {
            "descr" => descr.is_some(),
            "fortran_order" => fortran_order.is_some(),
            "shape" => shape.is_some(),
            _ => false,
        };
        if is_known {
            return Err("each key once");
        }
        rest = match key {
            "descr" => {
                let (text, after) =
                    quoted(value).ok_or("a quoted element type; structured types are not supported")?;
                descr = Some(text.to_owned());
                after
            }
            "fortran_order" => {
                let found = [("True", true), ("False", false)].into_iter();
                let (after, flag) = found
                    .filter_map(|(word, flag)| Some((value.strip_prefix(word)?, flag)))
                    .next()
                    .ok_or("`True` or `False`")?;
                fortran_order = Some(flag);
                after
            }
            "shape" => {
                let (dims, after) = tuple(value).ok_or("a tuple of sizes")?;
                shape = Some(dims);
                after
            }
            _ => return Err("no key but `descr`, `fortran_order` and `shape`"),
        };
        rest = rest.trim_start();
        rest = match rest.strip_prefix(',') {
            Some(after) => after.trim_start(),
            None if rest.starts_with('}') => rest,
            None => return Err("`,` between entries and `}` at the end"),
        };
    }
    if rest.len() > 1 {
        return Err("nothing behind the dictionary");
    }
    match (descr, fortran_order, shape) {
        (Some(descr), Some(fortran_order), Some(shape)) => Ok(Header { descr, fortran_order, shape }),
        _ => Err("the keys `descr`, `fortran_order` and `shape`"),
    }
}

/// A quoted string without escapes, and the rest of the text.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    text[1..].split_once(quote)
}

/// A tuple of sizes, and the rest of the text. Python 2 wrote `3L`.
fn tuple(text: &str) -> Option<(Vec<u64>, &str)> {
    let (inside, after) = text.strip_prefix('(')?.split_once(')')?;
    let inside = inside.trim();
    let inside = inside.strip_suffix(',').unwrap_or(inside);
    if inside.is_empty() {
        return Some((Vec::new(), after));
    }
    let size = |part: &str| part.trim().trim_end_matches('L').parse().ok();
    Some((inside.split(',').map(size).collect::<Option<_>>()?, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<HostTensor, NpyError> {
        super::read(bytes, u64::MAX, u64::MAX)
    }

    fn written(tensor: &HostTensor) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes, tensor).unwrap();
        bytes
    }

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let len = u16::try_from(header.len()).unwrap().to_le_bytes();
        [&MAGIC[..], &[1, 0], &len, header.as_bytes(), data].concat()
    }

    /// The header equals that of `numpy.save`, byte for byte.
    #[test]
    fn header_is_numpys() {
        let tensor = HostTensor::from_slice(&[2, 3], &[1i32, 2, 3, 4, 5, 6]).unwrap();
        let bytes = written(&tensor);
        let text = "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }";
        assert_eq!(&bytes[..10], b"\x93NUMPY\x01\x00\x76\x00");
        assert_eq!(std::str::from_utf8(&bytes[10..128]).unwrap(), format!("{text:<117}\n"));
        assert_eq!(bytes.len(), 128 + 24);
        for (dims, shape) in [(&[][..], "()"), (&[1], "(1,)"), (&[1, 0], "(1, 0)")] {
            let bytes = written(&HostTensor::zeros(DType::F16, dims).unwrap());
            assert!(String::from_utf8_lossy(&bytes).contains(&format!("'shape': {shape}, }}")), "{shape}");
        }
    }

    #[test]
    fn both_byte_orders_and_memory_orders() {
        let header = "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }\n";
        let tensor = read(&file(header, &[0, 1, 0, 4, 0, 2, 0, 5, 0, 3, 1, 0])[..]).unwrap();
        assert_eq!(tensor.as_slice::<i16>().unwrap(), [1, 2, 3, 4, 5, 256]);
        let header = r#"{"shape":(2L,), "fortran_order":False,"descr":">c8"}"#;
        let parts: Vec<u8> = [1.0f32, -2.0, 3.0, 4.5].iter().flat_map(|v| v.to_be_bytes()).collect();
        let tensor = read(&file(header, &parts)[..]).unwrap();
        assert_eq!(tensor.f64s().unwrap().collect::<Vec<_>>(), [1.0, -2.0, 3.0, 4.5]);
    }

    #[test]
    fn strings_lose_their_padding() {
        let header = "{'descr': '|S3', 'fortran_order': True, 'shape': (2, 2), }";
        let tensor = read(&file(header, b"ab\0c\0\0\0\0\0xyz")[..]).unwrap();
        let strings: Vec<_> = tensor.strings().unwrap().iter().map(|s| &s[..]).collect();
        assert_eq!(strings, [&b"ab"[..], b"", b"c", b"xyz"]);
        let header = "{'descr': '>U2', 'fortran_order': False, 'shape': (1,), }";
        let tensor = read(&file(header, &[0, 0, 0x20, 0xac, 0, 0, 0, 0])[..]).unwrap();
        assert_eq!(&tensor.strings().unwrap()[0][..], "€".as_bytes());
    }

    #[test]
    fn strings_count_what_they_take_in_memory() {
        let bytes = file("{'descr': '|S3', 'fortran_order': False, 'shape': (2,), }", b"ab\0c\0\0");
        let of = |most| super::read(&bytes[..], bytes.len() as u64, most);
        assert!(of(2 * STRING + 3).is_ok());
        for most in [2 * STRING + 2, 2 * STRING - 1] {
            assert!(matches!(of(most), Err(NpyError::Strings { count: 2, .. })), "{most}");
        }
        let cut = super::read(&bytes[..], bytes.len() as u64 - 1, 1 << 20);
        assert!(matches!(cut, Err(NpyError::Short { says: 6, there: 5 })), "{cut:?}");
    }

    #[test]
    fn bad_files_are_refused_with_a_reason() {
        let refused = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
        let float = |shape: &str| format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
        assert!(refused(b"PK\x03\x04....").contains("NUMPY"));
        assert!(refused(b"\x93NUMPY\x09\x00\x00\x00").contains("version"));
        assert!(refused(b"\x93NUMPY\x02\x00\xff\xff\xff\xff").contains("65,536"));
        assert!(refused(&file("[]", &[])).contains("dictionary"));
        assert!(refused(&file("{'descr': [('a', '<i4')], }", &[])).contains("structured"));
        assert!(refused(&file(&float("(-1,)"), &[])).contains("tuple of sizes"));
        assert!(refused(&file("{'descr': '<f4', 'shape': ()}", &[])).contains("fortran_order"));
        for more in ["'descr': '<f4'", "'fortran_order': True", "'shape': (2,)"] {
            let twice = float("(1,)").replace(", }", &format!(", {more}}}"));
            assert!(refused(&file(&twice, &[0; 4])).contains("each key once"), "{twice}");
        }
        assert!(refused(&file(&float("()").replace("<f4", "|O"), &[])).contains("`|O` is not supported: "));
        assert!(refused(&file(&float("()").replace("<f4", "<f16"), &[])).contains("`<f16` is not supported"));
        assert!(refused(&file(&float("()").replace("<f4", "é"), &[])).contains("is not supported"));
        assert!(
            refused(&file(&float("(9999999999,)").replace("<f4", "<U0"), &[])).contains("is not supported")
        );
        let hostile = float("(9999999999,)").replace("<f4", "|S9999999999");
        assert!(matches!(read(&file(&hostile, b"abc")[..]), Err(NpyError::Io(_))));
        assert!(matches!(read(&file(&float("(2,)"), &[0; 7])[..]), Err(NpyError::Io(_))));
        assert!(matches!(read(&file(&float("(2,)"), &[0; 9])[..]), Err(NpyError::Trailing)));
        assert!(matches!(read(&file(&float("(4611686018427387904, 9)"), &[])[..]), Err(NpyError::Host(_))));
        let surrogate = "{'descr': '<U1', 'fortran_order': False, 'shape': (), }";
        assert!(matches!(read(&file(surrogate, &[0, 0xd8, 0, 0])[..]), Err(NpyError::String { index: 0 })));
    }

    #[test]
    fn what_numpy_cannot_hold_is_not_written() {
        let refused = |tensor: HostTensor| write(io::sink(), &tensor).unwrap_err();
        let packed = HostTensor::zeros(DType::I4, &[2]).unwrap();
        assert!(matches!(refused(packed), NpyError::DType { dtype: DType::I4 }));
        let deep = HostTensor::zeros(DType::F32, &[1; 65]).unwrap();
        assert!(matches!(refused(deep), NpyError::Rank { rank: 65 }));
        assert!(write(io::sink(), &HostTensor::zeros(DType::F32, &[1; 64]).unwrap()).is_ok());
        for text in [&b"\xff"[..], b"a\0"] {
            let strings = HostTensor::from_strings(&[1], vec![text.into()]).unwrap();
            assert!(matches!(refused(strings), NpyError::String { index: 0 }));
        }
    }
}
