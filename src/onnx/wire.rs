//! Walking the protobuf wire format without decoding it.
//!
//! [`Fields`] steps through the fields of one message; a field that is itself a message is a [`Span`], which
//! can be stepped through or skipped. [`Reader`] looks at the file through a window that grows while reading
//! goes forward and starts small after a jump, so skipping a weight reads nothing of it.
//!
//! Invariants: a span lies inside the span of the message around it, and the outermost is the file, so every
//! length is checked before memory is allocated. Nothing here recurses.
//!
//! ```text
//! 3a 05 0a 03 61 62 63      field 7, 5 bytes: { field 1, 3 bytes: "abc" }
//! ^start ^offset            Span { offset: 2, len: 5 }
//! ```
//!
//! Encoding: <https://protobuf.dev/programming-guides/encoding/>. Groups (wire types 3 and 4) are not in ONNX and are
//! refused.

use ampc_ir::tensor::ByteSource;
use std::fmt;
use std::io;

/// The window after a jump.
const WINDOW_MIN: usize = 4 << 10;
/// The window when reading goes forward.
const WINDOW_MAX: usize = 256 << 10;
/// A tag and the longest varint after it.
const HEADER_MAX: u64 = 15;

/// A range of bytes of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl Span {
    /// The range from `start` up to `end`.
    ///
    /// # Panics
    /// If `end` is before `start`.
    pub fn between(start: u64, end: u64) -> Span {
        Span { offset: start, len: end.checked_sub(start).expect("a span does not end before it starts") }
    }
    /// The offset after the last byte.
    pub fn end(self) -> u64 {
        self.offset + self.len
    }
}

/// Payload of a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload {
    /// Wire type 0.
    Varint(u64),
    /// Wire type 1.
    Fixed64([u8; 8]),
    /// Wire type 2: a string, bytes, a message or a packed list.
    Bytes(Span),
    /// Wire type 5.
    Fixed32([u8; 4]),
}

/// One field of a message.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its number.
    pub number: u32,
    /// Offset of its tag.
    pub start: u64,
    /// Offset after its last byte.
    pub end: u64,
    /// The payload.
    pub payload: Payload,
}

impl Field {
    /// Tag and payload.
    pub fn whole(&self) -> Span {
        Span::between(self.start, self.end)
    }

    /// The payload as a range.
    ///
    /// # Errors
    /// If the field is encoded as a number.
    pub fn bytes(&self, name: &'static str) -> Result<Span, WireError> {
        match self.payload {
            Payload::Bytes(span) => Ok(span),
            Payload::Varint(_) | Payload::Fixed32(_) | Payload::Fixed64(_) => {
                Err(self.wrong("length-delimited", name))
            }
        }
    }

    /// The payload as an integer; int32 and enumerations are sign-extended to 64 bits on the wire.
    ///
    /// # Errors
    /// If the field is not encoded as a varint.
    pub fn int(&self, name: &'static str) -> Result<i64, WireError> {
        match self.payload {
            Payload::Varint(v) => Ok(v.cast_signed()),
            Payload::Bytes(_) | Payload::Fixed32(_) | Payload::Fixed64(_) => Err(self.wrong("varint", name)),
        }
    }

    /// The payload as an int32 or enumeration: the low 32 bits, as protobuf reads them.
    ///
    /// # Errors
    /// If the field is not encoded as a varint.
    pub fn int32(&self, name: &'static str) -> Result<i32, WireError> {
        Ok(low_i32(self.int(name)?.cast_unsigned()))
    }

    /// The payload as a float.
    ///
    /// # Errors
    /// If the field is not encoded in four bytes.
    pub fn float(&self, name: &'static str) -> Result<f32, WireError> {
        match self.payload {
            Payload::Fixed32(b) => Ok(f32::from_le_bytes(b)),
            Payload::Varint(_) | Payload::Bytes(_) | Payload::Fixed64(_) => Err(self.wrong("32-bit", name)),
        }
    }

    /// The error that this field, called `name`, is encoded in a way its type does not admit.
    pub fn wrong(&self, expected: &'static str, name: &'static str) -> WireError {
        let found = match self.payload {
            Payload::Varint(_) => "varint",
            Payload::Fixed64(_) => "64-bit",
            Payload::Bytes(_) => "length-delimited",
            Payload::Fixed32(_) => "32-bit",
        };
        WireError::new(self.start, WireErrorKind::WireType { expected, found }).within(name, None)
    }
}

/// Protobuf's reading of a varint as int32: its low 32 bits.
pub(crate) fn low_i32(v: u64) -> i32 {
    let [a, b, c, d, ..] = v.to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}

/// A defect of the bytes, and its place.
#[derive(Debug, thiserror::Error)]
#[error("{kind} (at byte {offset}{})", Place(.path))]
pub struct WireError {
    /// Offset of the offending bytes.
    pub offset: u64,
    /// The fields around them, innermost first.
    pub path: Vec<(&'static str, Option<usize>)>,
    /// The defect.
    #[source]
    pub kind: WireErrorKind,
}

struct Place<'a>(&'a [(&'static str, Option<usize>)]);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, index)) in self.0.iter().rev().enumerate() {
            f.write_str(if i == 0 { ", in `" } else { "." })?;
            f.write_str(name)?;
            if let Some(index) = index {
                write!(f, "[{index}]")?;
            }
        }
        if self.0.is_empty() { Ok(()) } else { f.write_str("`") }
    }
}

/// Kinds of malformed messages.
#[derive(Debug, thiserror::Error)]
pub enum WireErrorKind {
    /// The bytes end inside a field.
    #[error("the message ends in the middle of a field; the file is truncated or is not an ONNX model")]
    Truncated,
    /// More than ten bytes, or more than 64 bits.
    #[error("a varint is longer than 64 bits; the file is damaged or is not an ONNX model")]
    VarintTooLong,
    /// The field number is 0 or has more than 29 bits.
    #[error("a field has the number {number}; expected 1 to 536870911")]
    FieldNumber {
        /// The number.
        number: u64,
    },
    /// Groups are not in ONNX.
    #[error("a field has the wire type {wire_type}; ONNX files have only 0, 1, 2 and 5")]
    UnknownWireType {
        /// The wire type.
        wire_type: u8,
    },
    /// The field is longer than the message around it.
    #[error("a field says it has {len} bytes but {available} are left; the file is truncated or damaged")]
    LengthPastEnd {
        /// The length in the field.
        len: u64,
        /// The bytes that are left in the surrounding message.
        available: u64,
    },
    /// The field is encoded in a way that its type does not admit.
    #[error("expected {expected} encoding, found {found}")]
    WireType {
        /// The encoding of the field's type.
        expected: &'static str,
        /// The encoding found.
        found: &'static str,
    },
    /// A name is not UTF-8.
    #[error("expected UTF-8 text, found `{text}`")]
    Utf8 {
        /// The text, with replacement characters.
        text: String,
    },
    /// A message that may be there once is there again.
    #[error("the field is given twice")]
    Twice,
    /// Messages are nested too deep.
    #[error("messages are nested more than {limit} deep, which is the limit")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
    /// One of the small messages does not decode.
    #[error("{0}")]
    Message(prost::DecodeError),
    /// The bytes could not be read.
    #[error("cannot read: {0}")]
    Io(io::Error),
}

impl WireError {
    pub(crate) fn new(offset: u64, kind: WireErrorKind) -> WireError {
        WireError { offset, path: Vec::new(), kind }
    }

    /// The same error, inside this field.
    #[must_use]
    pub(crate) fn within(mut self, field: &'static str, index: Option<usize>) -> WireError {
        self.path.push((field, index));
        self
    }
}

/// Reads a source through a window.
#[derive(Debug)]
pub struct Reader<'s> {
    source: &'s dyn ByteSource,
    len: u64,
    window: Vec<u8>,
    /// Offset of the first byte in the window.
    start: u64,
    /// The size of the next read.
    ahead: usize,
}

impl<'s> Reader<'s> {
    /// A reader of all of `source`.
    pub fn new(source: &'s dyn ByteSource) -> Reader<'s> {
        Reader { source, len: source.len(), window: Vec::new(), start: 0, ahead: WINDOW_MIN }
    }

    /// The whole source.
    pub fn all(&self) -> Span {
        Span { offset: 0, len: self.len }
    }

    /// The bytes of `span`, which must lie inside the source.
    ///
    /// # Errors
    /// If they cannot be read.
    #[inline]
    pub fn bytes(&mut self, span: Span) -> Result<&[u8], WireError> {
        let Ok(len) = usize::try_from(span.len) else {
            return Err(WireError::new(span.offset, WireErrorKind::Truncated));
        };
        let window = self.start..=self.start + self.window.len() as u64;
        if !(window.contains(&span.offset) && window.contains(&span.end())) {
            let loaded = self.load(span.offset, len);
            loaded.map_err(|e| WireError::new(span.offset, WireErrorKind::Io(e)))?;
        }
        let from =
            usize::try_from(span.offset - self.start).expect("the window starts at or before the span");
        Ok(&self.window[from..from + len])
    }

    /// The bytes of `span` as text.
    ///
    /// # Errors
    /// If they cannot be read or are not UTF-8.
    pub fn text(&mut self, span: Span, name: &'static str) -> Result<&str, WireError> {
        let bytes = self.bytes(span).map_err(|e| e.within(name, None))?;
        std::str::from_utf8(bytes).map_err(|_| {
            let shown = &bytes[..bytes.len().min(64)];
            let kind = WireErrorKind::Utf8 { text: String::from_utf8_lossy(shown).into_owned() };
            WireError::new(span.offset, kind).within(name, None)
        })
    }

    /// Makes the window start at `offset` and hold at least `len` bytes.
    #[cold]
    fn load(&mut self, offset: u64, len: usize) -> io::Result<()> {
        let end = self.start + self.window.len() as u64;
        let kept = if (self.start..=end).contains(&offset) {
            self.ahead = (self.ahead * 2).min(WINDOW_MAX);
            let kept = usize::try_from(end - offset).expect("at most the window");
            let from = self.window.len() - kept;
            self.window.copy_within(from.., 0);
            kept
        } else {
            self.ahead = WINDOW_MIN;
            0
        };
        let left = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let wanted = len.max(self.ahead).min(left).max(len);
        let more = wanted.saturating_sub(self.window.len());
        self.window.try_reserve(more).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        self.window.resize(wanted, 0);
        self.start = offset;
        let filled = self.source.read_exact_at(&mut self.window[kept..], offset + kept as u64);
        if filled.is_err() {
            self.window.clear();
        }
        filled
    }
}

/// Steps through the fields of a message.
#[derive(Clone, Copy, Debug)]
pub struct Fields {
    next: u64,
    end: u64,
}

impl Fields {
    /// The fields of the message in `span`.
    pub fn of(span: Span) -> Fields {
        Fields { next: span.offset, end: span.end() }
    }

    /// The next field, or `None` at the end of the message. The reader may have looked elsewhere in between.
    ///
    /// # Errors
    /// If the bytes are not a field, or cannot be read.
    pub fn next(&mut self, reader: &mut Reader<'_>) -> Result<Option<Field>, WireError> {
        let start = self.next;
        if start == self.end {
            return Ok(None);
        }
        let left = self.end - start;
        let head = reader.bytes(Span { offset: start, len: left.min(HEADER_MAX) })?;
        let (number, wire_type, tag_len) = tag(head).map_err(|kind| WireError::new(start, kind))?;
        let rest = &head[tag_len..];
        let at = start + tag_len as u64;
        let fail = |kind| WireError::new(at, kind);
        let (payload, end) = match wire_type {
            0 => {
                let (v, n) = varint(rest).map_err(fail)?;
                (Payload::Varint(v), at + n as u64)
            }
            1 => (Payload::Fixed64(fixed(rest).map_err(fail)?), at + 8),
            2 => {
                let (len, n) = varint(rest).map_err(fail)?;
                let offset = at + n as u64;
                let available = self.end - offset;
                if len > available {
                    return Err(fail(WireErrorKind::LengthPastEnd { len, available }));
                }
                (Payload::Bytes(Span { offset, len }), offset + len)
            }
            5 => (Payload::Fixed32(fixed(rest).map_err(fail)?), at + 4),
            wire_type => return Err(WireError::new(start, WireErrorKind::UnknownWireType { wire_type })),
        };
        self.next = end;
        Ok(Some(Field { number, start, end, payload }))
    }
}

fn tag(head: &[u8]) -> Result<(u32, u8, usize), WireErrorKind> {
    let (key, len) = varint(head)?;
    let number = key >> 3;
    let small = u32::try_from(number).ok().filter(|n| (1..1 << 29).contains(n));
    let wire_type = u8::try_from(key & 7).expect("three bits");
    Ok((small.ok_or(WireErrorKind::FieldNumber { number })?, wire_type, len))
}

/// The varint at the start of `bytes` and its length.
#[inline]
pub(crate) fn varint(bytes: &[u8]) -> Result<(u64, usize), WireErrorKind> {
    match bytes.first() {
        Some(&byte) if byte < 0x80 => Ok((u64::from(byte), 1)),
        Some(_) | None => long_varint(bytes),
    }
}

fn long_varint(bytes: &[u8]) -> Result<(u64, usize), WireErrorKind> {
    let mut value = 0u64;
    for (i, &byte) in bytes.iter().take(10).enumerate() {
        if i == 9 && byte > 1 {
            return Err(WireErrorKind::VarintTooLong);
        }
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            return Ok((value, i + 1));
        }
    }
    Err(if bytes.len() < 10 { WireErrorKind::Truncated } else { WireErrorKind::VarintTooLong })
}

fn fixed<const N: usize>(rest: &[u8]) -> Result<[u8; N], WireErrorKind> {
    rest.first_chunk::<N>().copied().ok_or(WireErrorKind::Truncated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::SourceBytes;

    fn fields(bytes: &[u8]) -> Result<Vec<(u32, Payload)>, WireError> {
        let source = SourceBytes::from_memory("test", bytes);
        let mut reader = Reader::new(&source);
        let mut fields = Fields::of(reader.all());
        let mut found = Vec::new();
        while let Some(field) = fields.next(&mut reader)? {
            found.push((field.number, field.payload));
        }
        Ok(found)
    }

    #[test]
    fn every_wire_type() {
        let bytes =
            [0x08, 0x96, 0x01, 0x11, 1, 2, 3, 4, 5, 6, 7, 8, 0x1a, 2, b'h', b'i', 0x25, 0, 0, 0x80, 0x3f];
        let found = fields(&bytes).unwrap();
        let expected = [
            (1, Payload::Varint(150)),
            (2, Payload::Fixed64([1, 2, 3, 4, 5, 6, 7, 8])),
            (3, Payload::Bytes(Span { offset: 14, len: 2 })),
            (4, Payload::Fixed32(1f32.to_le_bytes())),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn hostile_bytes_are_named_with_their_place() {
        let cases: [(&[u8], &str); 9] = [
            (&[0x08], "ends in the middle"),
            (&[0x08, 0xff, 0xff], "ends in the middle"),
            (&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2], "longer than 64 bits"),
            (&[0xff; 12], "longer than 64 bits"),
            (&[0x00], "number 0"),
            (&[0x3b], "wire type 3"),
            (&[0x3c], "wire type 4"),
            (&[0x3a, 5, 1], "5 bytes but 1 are left"),
            (
                &[0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
                "9223372036854775807 bytes but 0",
            ),
        ];
        for (bytes, expected) in cases {
            let message = fields(bytes).unwrap_err().to_string();
            assert!(message.contains(expected), "{bytes:x?}: {message}");
            assert!(message.contains("at byte "), "{message}");
        }
    }

    #[test]
    fn the_window_follows_jumps() {
        let bytes: Vec<u8> = (0..1_000_000u32).map(|i| (i % 251).to_le_bytes()[0]).collect();
        let source = SourceBytes::from_memory("test", bytes.clone());
        let mut reader = Reader::new(&source);
        for (offset, len) in
            [(0, 10), (5, 5000), (900_000, 100_000), (3, 1), (4000, 200), (999_999, 1), (0, 1_000_000)]
        {
            let span = Span { offset, len };
            let range = usize::try_from(offset).unwrap()..usize::try_from(span.end()).unwrap();
            assert_eq!(reader.bytes(span).unwrap(), &bytes[range]);
        }
    }

    #[test]
    fn places_read_from_the_outside_in() {
        let error =
            WireError::new(9, WireErrorKind::Truncated).within("op_type", None).within("node", Some(3));
        assert!(error.to_string().ends_with("(at byte 9, in `node[3].op_type`)"), "{error}");
    }
}
