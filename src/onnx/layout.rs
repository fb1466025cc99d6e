//! The output as segments of known length: bytes in memory, ranges of a file, constants.
//!
//! Protobuf puts the length of a message before its content, so every length must be known before the first
//! byte is written. A [`Layout`] is built inside out (attribute, node, graph, model), costs memory for the
//! graph and nothing for the weights, and is then streamed once, through one buffer of 1 MiB; conversions
//! happen on the way. Neighbouring ranges of one file are merged, so an untouched stretch of nodes is one copy.

use super::wire::{Reader, Span, WireErrorKind};
use crate::bytes::SourceBytes;
use ampc_ir::TensorData;
use ampc_ir::convert::{can_convert, convert};
use ampc_ir::tensor::{ByteSource, CHUNK_BYTES, FileRange, Storage, TensorError};
use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

/// Ranges up to this size are copied through a window, so that many small ones cost few reads.
const SMALL_RANGE: u64 = 64 << 10;

/// Bytes of a constant read at a time.
const READ_BYTES: usize = 256 << 10;
/// Bytes of a constant converted at a time: whole elements of every type.
const BLOCK_BYTES: usize = 16 << 10;

/// A piece of the output.
#[derive(Clone, Debug)]
enum Segment {
    /// These bytes.
    Bytes(Vec<u8>),
    /// A range of a file as it is.
    Range(FileRange),
    /// The elements of a constant, little-endian, after its pending conversions.
    Elements { data: Arc<TensorData>, name: Box<str> },
    /// Padding.
    Zeros(u64),
    /// The digits of a hash that is known when this is streamed.
    Digest(Digest),
}

/// A hash of 64 bits that is computed after the model is laid out: a model names its data file by its hash. Its
/// length is known before, since it is spelled with 16 hexadecimal digits.
#[derive(Clone, Debug, Default)]
pub struct Digest(Arc<OnceLock<u64>>);

impl Digest {
    /// Digits of a digest.
    pub const DIGITS: usize = 16;

    /// Sets the hash. If it has been set before, nothing changes.
    pub(crate) fn set(&self, hash: u64) {
        self.0.get_or_init(|| hash);
    }

    /// The digits.
    ///
    /// # Panics
    /// If the hash has not been set yet.
    pub(crate) fn digits(&self) -> String {
        let hash = self.0.get().expect("a data file is streamed before the model that names it");
        format!("{hash:016x}")
    }
}

/// A sequence of segments with the sum of their lengths.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    segments: Vec<Segment>,
    len: u64,
}

/// Error of streaming a layout.
#[derive(Debug)]
pub enum StreamError {
    /// Writing failed.
    Write(io::Error),
    /// Reading a range failed that is to be copied or converted.
    Read {
        /// Description of the range.
        what: String,
        /// The cause.
        source: io::Error,
    },
}

impl Layout {
    /// Nothing.
    pub fn new() -> Layout {
        Layout::default()
    }

    /// Number of bytes. Saturates, which only absurd generated constants reach.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if there is nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of segments.
    pub fn n_segments(&self) -> usize {
        self.segments.len()
    }

    /// Appends bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.len = self.len.saturating_add(bytes.len() as u64);
        match self.segments.last_mut() {
            Some(Segment::Bytes(last)) => last.extend_from_slice(bytes),
            _ => self.segments.push(Segment::Bytes(bytes.to_vec())),
        }
    }

    /// Appends a range of a file.
    pub fn range(&mut self, source: &Arc<dyn ByteSource>, span: Span) {
        if span.len == 0 {
            return;
        }
        self.len = self.len.saturating_add(span.len);
        if let Some(Segment::Range(last)) = self.segments.last_mut()
            && Arc::ptr_eq(&last.source, source)
            && last.offset + last.len == span.offset
        {
            last.len += span.len;
            return;
        }
        self.segments.push(Segment::Range(FileRange {
            source: source.clone(),
            offset: span.offset,
            len: span.len,
        }));
    }

    /// Appends the elements of a constant, converted; `name` is for error messages.
    ///
    /// # Panics
    /// If the constant is of strings, which have no element bytes, or has a conversion that does not exist.
    pub fn elements(&mut self, data: &Arc<TensorData>, name: &str) {
        assert!(!matches!(data.storage(), Storage::Strings(_)), "strings are not stored as element bytes");
        let mut dtype = data.stored_dtype();
        for step in data.pending() {
            assert!(can_convert(dtype, step.to), "no conversion from {dtype} to {}", step.to);
            dtype = step.to;
        }
        if data.pending().is_empty()
            && let Storage::File(range) = data.storage()
        {
            return self.range(&range.source, Span { offset: range.offset, len: range.len });
        }
        self.len = self.len.saturating_add(data.byte_len());
        self.segments.push(Segment::Elements { data: data.clone(), name: name.into() });
    }

    /// Appends zeros up to the next multiple of `alignment`.
    pub fn align(&mut self, alignment: u64) {
        let padding = self.len.next_multiple_of(alignment) - self.len;
        if padding > 0 {
            self.segments.push(Segment::Zeros(padding));
            self.len += padding;
        }
    }

    /// Appends the digits of a hash.
    pub fn digest(&mut self, digest: &Digest) {
        self.len = self.len.saturating_add(Digest::DIGITS as u64);
        self.segments.push(Segment::Digest(digest.clone()));
    }

    /// Appends another layout.
    pub fn append(&mut self, other: Layout) {
        for segment in other.segments {
            match segment {
                Segment::Bytes(bytes) => self.bytes(&bytes),
                Segment::Range(r) => self.range(&r.source, Span { offset: r.offset, len: r.len }),
                Segment::Elements { .. } | Segment::Zeros(_) | Segment::Digest(_) => {
                    self.len = self.len.saturating_add(segment.len());
                    self.segments.push(segment);
                }
            }
        }
    }

    /// Appends a varint.
    pub fn varint(&mut self, mut value: u64) {
        let (mut bytes, mut n) = ([0; 10], 0);
        loop {
            let [low, ..] = value.to_le_bytes();
            value >>= 7;
            bytes[n] = if value == 0 { low & 0x7f } else { low | 0x80 };
            n += 1;
            if value == 0 {
                return self.bytes(&bytes[..n]);
            }
        }
    }

    /// Appends a varint field.
    pub fn int_field(&mut self, number: u32, value: i64) {
        self.varint(u64::from(number) << 3);
        self.varint(value.cast_unsigned());
    }

    /// Appends a float field.
    pub fn float_field(&mut self, number: u32, value: f32) {
        self.varint(u64::from(number) << 3 | 5);
        self.bytes(&value.to_le_bytes());
    }

    /// Appends a field of bytes or text.
    pub fn bytes_field(&mut self, number: u32, bytes: &[u8]) {
        self.header(number, bytes.len() as u64);
        self.bytes(bytes);
    }

    /// Appends a field that holds a message.
    pub fn message_field(&mut self, number: u32, message: Layout) {
        self.header(number, message.len);
        self.append(message);
    }

    /// Appends a field that holds a generated message.
    pub fn prost_field(&mut self, number: u32, message: &impl prost::Message) {
        self.bytes_field(number, &message.encode_to_vec());
    }

    /// Appends tag and length of a field whose content follows.
    pub fn header(&mut self, number: u32, len: u64) {
        self.varint(u64::from(number) << 3 | 2);
        self.varint(len);
    }

    /// Writes everything to a file; `known` are sources from which large ranges can be copied inside the kernel.
    ///
    /// # Errors
    /// If reading or writing fails.
    pub fn stream_to_file(&self, out: &mut File, known: &[Arc<SourceBytes>]) -> Result<(), StreamError> {
        let mut buffer = Buffer::new(out)?;
        for segment in &self.segments {
            if let Segment::Range(range) = segment
                && range.len > SMALL_RANGE
                && let Some(source) = known.iter().find(|k| same(&range.source, k))
            {
                buffer.flush()?;
                source.copy_to_file(range.offset, range.len, buffer.out).map_err(|e| {
                    let shrunk = e.kind() == io::ErrorKind::UnexpectedEof;
                    let what = source.describe();
                    if shrunk { StreamError::Read { what, source: e } } else { StreamError::Write(e) }
                })?;
                continue;
            }
            segment.stream(&mut buffer)?;
        }
        buffer.flush()
    }

    /// Writes everything.
    ///
    /// # Errors
    /// If reading or writing fails.
    pub fn stream(&self, out: &mut impl Write) -> Result<(), StreamError> {
        let mut buffer = Buffer::new(out)?;
        for segment in &self.segments {
            segment.stream(&mut buffer)?;
        }
        buffer.flush()
    }
}

/// True if a source is this file.
pub(crate) fn same(source: &Arc<dyn ByteSource>, file: &Arc<SourceBytes>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(source), Arc::as_ptr(file))
}

/// Collects small pieces, and reads small ranges of one source through a window.
struct Buffer<'a, W> {
    out: &'a mut W,
    bytes: Vec<u8>,
    window: Option<Reader<'a>>,
    windowed: *const (),
    /// Elements as stored, and between two steps of a conversion.
    chunk: Vec<u8>,
    scratch: [Vec<u8>; 2],
}

impl<'a, W: Write> Buffer<'a, W> {
    fn new(out: &'a mut W) -> Result<Self, StreamError> {
        let mut bytes = Vec::new();
        let reserved = bytes.try_reserve_exact(CHUNK_BYTES);
        reserved.map_err(|_| StreamError::Write(io::ErrorKind::OutOfMemory.into()))?;
        Ok(Buffer {
            out,
            bytes,
            window: None,
            windowed: std::ptr::null(),
            chunk: Vec::new(),
            scratch: [Vec::new(), Vec::new()],
        })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        if self.bytes.len() + bytes.len() > CHUNK_BYTES {
            self.flush()?;
        }
        if bytes.len() >= CHUNK_BYTES {
            return self.out.write_all(bytes).map_err(StreamError::Write);
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StreamError> {
        self.out.write_all(&self.bytes).map_err(StreamError::Write)?;
        self.bytes.clear();
        Ok(())
    }

    fn range(&mut self, range: &'a FileRange) -> Result<(), StreamError> {
        let id = Arc::as_ptr(&range.source).cast::<()>();
        if self.windowed != id || self.window.is_none() {
            self.window = Some(Reader::new(&*range.source));
            self.windowed = id;
        }
        let mut window = self.window.take();
        let mut at = Span { offset: range.offset, len: 0 };
        let end = range.offset + range.len;
        while let Some(reader) = &mut window
            && at.offset < end
        {
            at.len = (end - at.offset).min(CHUNK_BYTES as u64);
            let bytes = reader.bytes(at).map_err(|e| {
                let source =
                    if let WireErrorKind::Io(source) = e.kind { source } else { io::Error::other(e) };
                StreamError::Read { what: range.source.describe(), source }
            })?;
            self.write(bytes)?;
            at.offset += at.len;
        }
        self.window = window;
        Ok(())
    }

    fn elements(&mut self, data: &TensorData, name: &str) -> Result<(), StreamError> {
        let Storage::File(range) = data.storage() else {
            let mut failed = None;
            let visited = data.visit_stored(|chunk| match self.convert(data, chunk) {
                Ok(()) => ControlFlow::Continue(()),
                Err(e) => {
                    failed = Some(e);
                    ControlFlow::Break(())
                }
            });
            visited.map_err(|e| read_error(e, name))?;
            return failed.map_or(Ok(()), Err);
        };
        let mut chunk = std::mem::take(&mut self.chunk);
        chunk.resize(READ_BYTES, 0);
        let mut done = 0;
        while done < range.len {
            let n = usize::try_from(range.len - done).unwrap_or(usize::MAX).min(READ_BYTES);
            range.source.read_exact_at(&mut chunk[..n], range.offset + done).map_err(|source| {
                StreamError::Read { what: format!("tensor `{name}` in {}", range.source.describe()), source }
            })?;
            self.convert(data, &chunk[..n])?;
            done += n as u64;
        }
        self.chunk = chunk;
        Ok(())
    }

    /// Converts in blocks that stay in the first-level cache.
    fn convert(&mut self, data: &TensorData, chunk: &[u8]) -> Result<(), StreamError> {
        if data.pending().is_empty() {
            return self.write(chunk);
        }
        for block in chunk.chunks(BLOCK_BYTES) {
            let mut dtype = data.stored_dtype();
            for (i, step) in data.pending().iter().enumerate() {
                let [input, output] = &mut self.scratch;
                output.clear();
                convert(dtype, *step, if i == 0 { block } else { input }, output);
                self.scratch.swap(0, 1);
                dtype = step.to;
            }
            let converted = std::mem::take(&mut self.scratch[0]);
            self.write(&converted)?;
            self.scratch[0] = converted;
        }
        Ok(())
    }
}

impl Segment {
    fn len(&self) -> u64 {
        match self {
            Segment::Bytes(bytes) => bytes.len() as u64,
            Segment::Range(range) => range.len,
            Segment::Elements { data, .. } => data.byte_len(),
            Segment::Zeros(n) => *n,
            Segment::Digest(_) => Digest::DIGITS as u64,
        }
    }

    fn stream<'a, W: Write>(&'a self, buffer: &mut Buffer<'a, W>) -> Result<(), StreamError> {
        match self {
            Segment::Bytes(bytes) => buffer.write(bytes),
            Segment::Digest(digest) => buffer.write(digest.digits().as_bytes()),
            Segment::Range(range) => buffer.range(range),
            Segment::Zeros(n) => {
                let zeros = [0; 4096];
                let mut left = *n;
                while left > 0 {
                    let step = usize::try_from(left).unwrap_or(usize::MAX).min(zeros.len());
                    buffer.write(&zeros[..step])?;
                    left -= step as u64;
                }
                Ok(())
            }
            Segment::Elements { data, name } => buffer.elements(data, name),
        }
    }
}

fn read_error(error: TensorError, name: &str) -> StreamError {
    if let TensorError::Read { what, source } = error {
        return StreamError::Read { what: format!("tensor `{name}` in {what}"), source };
    }
    StreamError::Read { what: format!("tensor `{name}`"), source: io::Error::other(error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ampc_ir::DType;
    use ampc_ir::convert::Conversion;

    fn written(layout: &Layout) -> Vec<u8> {
        let mut out = Vec::new();
        layout.stream(&mut out).unwrap();
        assert_eq!(out.len() as u64, layout.len());
        out
    }

    #[test]
    fn neighbouring_ranges_become_one() {
        let source: Arc<dyn ByteSource> = Arc::new(SourceBytes::from_memory("m", *b"0123456789"));
        let mut layout = Layout::new();
        layout.bytes(b"<");
        layout.range(&source, Span { offset: 0, len: 3 });
        layout.range(&source, Span { offset: 3, len: 0 });
        layout.range(&source, Span { offset: 3, len: 4 });
        layout.bytes(b">");
        assert_eq!((layout.n_segments(), written(&layout)), (3, b"<0123456>".to_vec()));
    }

    #[test]
    fn lengths_are_known_before_conversion() {
        let data = Arc::new(TensorData::from_f32(&[3], &[1.0, -2.0, 1e9]).unwrap());
        let low = Arc::new(data.converted(Conversion { to: DType::F16, clamp: false }));
        let mut message = Layout::new();
        message.header(9, low.byte_len());
        message.elements(&low, "w");
        let mut layout = Layout::new();
        layout.message_field(5, message);
        assert_eq!(written(&layout), [0x2a, 8, 0x4a, 6, 0x00, 0x3c, 0x00, 0xc0, 0x00, 0x7c]);
    }

    #[test]
    fn large_ranges_reach_a_file_in_order() {
        let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i % 253).to_le_bytes()[0]).collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("source");
        std::fs::write(&path, &bytes).unwrap();
        let known = Arc::new(SourceBytes::open(&path).unwrap());
        let source: Arc<dyn ByteSource> = known.clone();
        let mut layout = Layout::new();
        layout.bytes(b"head");
        layout.range(&source, Span { offset: 10, len: 2_000_000 });
        layout.align(4096);
        layout.range(&source, Span { offset: 5, len: 20 });
        let mut expected = b"head".to_vec();
        expected.extend_from_slice(&bytes[10..2_000_010]);
        expected.resize(expected.len().next_multiple_of(4096), 0);
        expected.extend_from_slice(&bytes[5..25]);
        assert_eq!(written(&layout), expected);
        let mut out = File::create(folder.path().join("out")).unwrap();
        layout.stream_to_file(&mut out, &[known]).unwrap();
        assert_eq!(std::fs::read(folder.path().join("out")).unwrap(), expected);
    }
}
