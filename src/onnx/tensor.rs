//! `TensorProto` to [`TensorData`]: large payloads stay where they are, small and compressed payloads are read.
//!
//! ONNX stores elements in one of seven ways: `raw_data` and packed `float_data` or `double_data` are the
//! little-endian elements as they are, so the payload is a range of the file; `int32_data`, `int64_data` and
//! `uint64_data` are varints and are expanded; `string_data` is a list; or the bytes are in an external file.
//! Dims times element size is checked against the available bytes before memory is allocated.

use super::external::{ExternalEntry, ExternalError, ExternalFiles};
use super::wire::{Field, Fields, Payload, Reader, Span, WireError, WireErrorKind, varint};
use ampc_ir::tensor::{ByteSource, FileRange, SparseData, Storage};
use ampc_ir::{DType, TensorData};
use smallvec::SmallVec;
use std::io;
use std::sync::Arc;

/// Payloads up to this size are read into memory, for guards and shape inference.
const INLINE_BYTES: u64 = 1 << 10;

/// A tensor message.
#[derive(Debug)]
pub struct TensorMessage {
    /// Its name; empty if it has none.
    pub name: String,
    /// Its elements.
    pub data: TensorData,
    /// True if the elements are in an external file.
    pub external: bool,
}

/// Problem with a tensor that is well-formed protobuf.
#[derive(Debug, thiserror::Error)]
pub enum TensorIssue {
    /// The element type is 0 or missing.
    #[error("it has no element type")]
    NoType,
    /// The element type is unknown to this version.
    #[error("its element type {number} is unknown; expected 1 to 28")]
    UnknownType {
        /// ONNX's number.
        number: i32,
    },
    /// A dim is negative.
    #[error("its dims {} have a negative number", Dims(.dims))]
    NegativeDim {
        /// The dims.
        dims: Vec<i64>,
    },
    /// Dims times element size is beyond 64 bits.
    #[error("its dims {} have more elements than 64 bits can count", Dims(.dims))]
    TooLarge {
        /// The dims.
        dims: Vec<i64>,
    },
    /// The number of bytes or strings differs from the number that dims and type require.
    #[error("{dtype}{} needs {expected} {unit}, found {found} in `{field}`", Dims(.dims))]
    WrongLength {
        /// Element type.
        dtype: DType,
        /// Dims.
        dims: Vec<i64>,
        /// The number that dims and type require.
        expected: u64,
        /// The number found.
        found: u64,
        /// `bytes`, `strings` or `elements`.
        unit: &'static str,
        /// The field that has them.
        field: &'static str,
    },
    /// The elements are in a field for other types.
    #[error("its elements are in `{field}`, which is not for {dtype}")]
    WrongField {
        /// The field.
        field: &'static str,
        /// Element type.
        dtype: DType,
    },
    /// More than one field has elements.
    #[error("both `{first}` and `{second}` have elements; expected one of them")]
    TwoFields {
        /// One field.
        first: &'static str,
        /// The other field.
        second: &'static str,
    },
    /// A part of a tensor that was split into segments.
    #[error("it is a segment of a larger tensor, which is not supported; save the model with whole tensors")]
    Segment,
    /// A sparse tensor without values or indices.
    #[error("it is sparse and has no `{field}`")]
    SparseIncomplete {
        /// The missing field.
        field: &'static str,
    },
    /// A sparse tensor whose elements do not have whole bytes.
    #[error("it is sparse, of {dtype}, which sparse tensors cannot be")]
    SparseType {
        /// Element type.
        dtype: DType,
    },
    /// A sparse tensor that is too large as a dense one.
    #[error(
        "it is sparse, and as a dense tensor of dims {} it would take more than the {limit} bytes that are left for it",
        Dims(.dims)
    )]
    SparseTooLarge {
        /// Dims.
        dims: Vec<u64>,
        /// The limit.
        limit: u64,
    },
    /// The system refuses the memory for its elements.
    #[error("out of memory: its {bytes} bytes were refused")]
    NoMemory {
        /// The bytes.
        bytes: u64,
    },
    /// The indices of a sparse tensor do not go with its values and dims.
    #[error(
        "it is sparse, with values of shape {} and indices {dtype}{}; expected values of shape [NNZ], no more of them than \
         the tensor has elements, and i64 indices of shape [NNZ] or [NNZ, rank]",
        Dims(.values),
        Dims(.indices)
    )]
    SparseIndices {
        /// Dims of the values.
        values: Vec<u64>,
        /// Element type of the indices.
        dtype: DType,
        /// Dims of the indices.
        indices: Vec<u64>,
    },
    /// An index of a sparse tensor leads out of it.
    #[error("it is sparse, and its index {index} is out of range; expected 0 up to, not including, {extent}")]
    SparseRange {
        /// The index.
        index: i64,
        /// The exclusive upper bound.
        extent: u64,
    },
    /// The indices of a sparse tensor are not in order, or an index occurs twice.
    #[error(
        "it is sparse, and its indices are not in ascending order at element {index} of the flattened tensor"
    )]
    SparseOrder {
        /// The element.
        index: u64,
    },
    /// The elements cannot be read.
    #[error("{reason}")]
    Unreadable {
        /// Why.
        reason: String,
    },
    /// External data.
    #[error(transparent)]
    External(#[from] ExternalError),
}

/// Dims as messages show them: the first ones, and how many there are beyond.
struct Dims<'a, T>(&'a [T]);

impl<T: ToString> std::fmt::Display for Dims<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const SHOWN: usize = 16;
        let mut items: Vec<String> = self.0.iter().take(SHOWN).map(T::to_string).collect();
        if self.0.len() > SHOWN {
            items.push(format!("… and {} more", self.0.len() - SHOWN));
        }
        write!(f, "[{}]", items.join(", "))
    }
}

/// Error of reading a tensor message.
#[derive(Debug)]
pub enum TensorFailure {
    /// Its bytes are not protobuf; nothing after them can be trusted.
    Wire(WireError),
    /// The tensor is wrong; the rest of the file may be fine.
    Issue {
        /// The tensor's name, as far as known.
        name: String,
        /// The problem.
        issue: TensorIssue,
    },
}

impl From<WireError> for TensorFailure {
    fn from(error: WireError) -> TensorFailure {
        TensorFailure::Wire(error)
    }
}

/// The fields of a tensor message, elements still in the file.
#[derive(Debug, Default)]
struct Parts {
    name: String,
    dims: SmallVec<[i64; 4]>,
    data_type: i32,
    segment: bool,
    external: bool,
    entry: ExternalEntry,
    /// The field with elements, and its occurrences.
    elements: Option<(&'static str, SmallVec<[Field; 1]>)>,
    two: Option<(&'static str, &'static str)>,
}

/// Reads a tensor message.
///
/// # Errors
/// See [`TensorFailure`].
pub fn read_tensor(
    reader: &mut Reader<'_>,
    source: &Arc<dyn ByteSource>,
    span: Span,
    external: &mut ExternalFiles,
) -> Result<TensorMessage, TensorFailure> {
    let mut parts = read_parts(reader, span)?;
    let name = std::mem::take(&mut parts.name);
    match payload(reader, source, &parts, external) {
        Ok(data) => Ok(TensorMessage { name, data, external: parts.external }),
        Err(Failure::Wire(error)) => Err(TensorFailure::Wire(error)),
        Err(Failure::Issue(issue)) => Err(TensorFailure::Issue { name, issue }),
    }
}

/// Reads a sparse tensor message. Its name is that of its values; last comes whether elements are in an external file.
///
/// # Errors
/// See [`TensorFailure`].
pub fn read_sparse(
    reader: &mut Reader<'_>,
    source: &Arc<dyn ByteSource>,
    span: Span,
    external: &mut ExternalFiles,
) -> Result<(String, SparseData, bool), TensorFailure> {
    let (mut values, mut indices, mut dims) = (None, None, SmallVec::<[i64; 4]>::new());
    let mut fields = Fields::of(span);
    while let Some(field) = fields.next(reader)? {
        match field.number {
            1 => values = Some(field.bytes("values")?),
            2 => indices = Some(field.bytes("indices")?),
            3 => ints(reader, &field, "dims", |v| dims.push(v))?,
            _ => {}
        }
    }
    let incomplete = |name: &str, field| TensorFailure::Issue {
        name: name.to_owned(),
        issue: TensorIssue::SparseIncomplete { field },
    };
    let values = values.ok_or_else(|| incomplete("", "values"))?;
    let values = read_tensor(reader, source, values, external)?;
    let indices = indices.ok_or_else(|| incomplete(&values.name, "indices"))?;
    // The indices have no name of their own: the tensor is called by that of its values.
    let indices = read_tensor(reader, source, indices, external).map_err(|failure| match failure {
        TensorFailure::Issue { name, issue } if name.is_empty() => {
            TensorFailure::Issue { name: values.name.clone(), issue }
        }
        other => other,
    })?;
    let known =
        checked_dims(&dims).map_err(|issue| TensorFailure::Issue { name: values.name.clone(), issue })?;
    let outside = values.external || indices.external;
    Ok((values.name, SparseData { values: values.data, indices: indices.data, dims: known }, outside))
}

fn read_parts(reader: &mut Reader<'_>, span: Span) -> Result<Parts, WireError> {
    let mut parts = Parts::default();
    let mut fields = Fields::of(span);
    while let Some(field) = fields.next(reader)? {
        match field.number {
            1 => ints(reader, &field, "dims", |v| parts.dims.push(v))?,
            2 => parts.data_type = field.int32("data_type")?,
            3 => parts.segment = true,
            4 => parts.element_field("float_data", field),
            5 => parts.element_field("int32_data", field),
            6 => parts.element_field("string_data", field),
            7 => parts.element_field("int64_data", field),
            8 => reader.text(field.bytes("name")?, "name")?.clone_into(&mut parts.name),
            9 => parts.element_field("raw_data", field),
            10 => parts.element_field("double_data", field),
            11 => parts.element_field("uint64_data", field),
            13 => external_entry(reader, field.bytes("external_data")?, &mut parts.entry)?,
            14 => parts.external = field.int32("data_location")? == 1,
            _ => {}
        }
    }
    Ok(parts)
}

impl Parts {
    fn element_field(&mut self, name: &'static str, field: Field) {
        if matches!(field.payload, Payload::Bytes(Span { len: 0, .. })) && name != "string_data" {
            return;
        }
        match &mut self.elements {
            None => self.elements = Some((name, smallvec::smallvec![field])),
            // A singular field that is there twice: the last one counts.
            Some((first, fields)) if *first == name && name == "raw_data" => fields[0] = field,
            Some((first, fields)) if *first == name => fields.push(field),
            Some((first, _)) => self.two = Some((first, name)),
        }
    }
}

fn external_entry(reader: &mut Reader<'_>, span: Span, entry: &mut ExternalEntry) -> Result<(), WireError> {
    let (mut key, mut value) = (String::new(), String::new());
    let mut fields = Fields::of(span);
    while let Some(field) = fields.next(reader)? {
        match field.number {
            1 => reader.text(field.bytes("key")?, "key")?.clone_into(&mut key),
            2 => reader.text(field.bytes("value")?, "value")?.clone_into(&mut value),
            _ => {}
        }
    }
    match key.as_str() {
        "location" => entry.location = Some(value),
        "offset" => entry.offset = Some(value),
        "length" => entry.length = Some(value),
        "checksum" => entry.checksum = Some(value),
        _ => {}
    }
    Ok(())
}

enum Failure {
    Wire(WireError),
    Issue(TensorIssue),
}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Failure {
        Failure::Wire(error)
    }
}

impl From<TensorIssue> for Failure {
    fn from(issue: TensorIssue) -> Failure {
        Failure::Issue(issue)
    }
}

fn checked_dims(dims: &[i64]) -> Result<SmallVec<[u64; 4]>, TensorIssue> {
    let known = dims.iter().map(|&d| u64::try_from(d)).collect::<Result<_, _>>();
    known.map_err(|_| TensorIssue::NegativeDim { dims: dims.to_vec() })
}

fn payload(
    reader: &mut Reader<'_>,
    source: &Arc<dyn ByteSource>,
    parts: &Parts,
    external: &mut ExternalFiles,
) -> Result<TensorData, Failure> {
    let dtype = match DType::from_number(parts.data_type) {
        None => return Err(TensorIssue::NoType.into()),
        Some(DType::Other(number)) => return Err(TensorIssue::UnknownType { number }.into()),
        Some(dtype) => dtype,
    };
    if parts.segment {
        return Err(TensorIssue::Segment.into());
    }
    let dims = checked_dims(&parts.dims)?;
    let too_large = || TensorIssue::TooLarge { dims: parts.dims.to_vec() };
    let count = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d)).ok_or_else(too_large)?;
    let expected =
        if dtype == DType::String { count } else { dtype.storage_bytes(count).ok_or_else(too_large)? };
    let (storage, found, field) = if parts.external {
        let range = external.resolve(&parts.entry, expected).map_err(TensorIssue::External)?;
        (Storage::File(range), expected, "external_data")
    } else {
        if let Some((first, second)) = parts.two {
            return Err(TensorIssue::TwoFields { first, second }.into());
        }
        elements(reader, source, parts, dtype, count, expected)?
    };
    let unit = if dtype == DType::String { "strings" } else { "bytes" };
    if found != expected {
        let dims = parts.dims.to_vec();
        return Err(TensorIssue::WrongLength { dtype, dims, expected, found, unit, field }.into());
    }
    Ok(TensorData::new(dtype, dims, storage).expect("type, dims and length have been checked"))
}

/// The storage of elements in the message itself, how many bytes or strings it has, and the field it is in.
fn elements(
    reader: &mut Reader<'_>,
    source: &Arc<dyn ByteSource>,
    parts: &Parts,
    dtype: DType,
    count: u64,
    expected: u64,
) -> Result<(Storage, u64, &'static str), Failure> {
    let Some((field, occurrences)) = &parts.elements else {
        let empty =
            if dtype == DType::String { Storage::Strings([].into()) } else { Storage::Bytes([].into()) };
        return Ok((empty, 0, "raw_data"));
    };
    let field = *field;
    if !admits(field, dtype) {
        return Err(TensorIssue::WrongField { field, dtype }.into());
    }
    if field == "string_data" {
        let mut strings: Vec<Box<[u8]>> = Vec::new();
        for occurrence in occurrences {
            strings.push(reader.bytes(occurrence.bytes(field)?)?.into());
        }
        let found = strings.len() as u64;
        return Ok((Storage::Strings(strings.into()), found, field));
    }
    let as_they_are = matches!(field, "raw_data" | "float_data" | "double_data");
    if as_they_are
        && let [Field { payload: Payload::Bytes(span), .. }] = occurrences[..]
        && span.len > INLINE_BYTES
    {
        let range = FileRange { source: source.clone(), offset: span.offset, len: span.len };
        return Ok((Storage::File(range), span.len, field));
    }
    let mut bytes = Vec::new();
    let mut extra = 0u64;
    // An entry of `int32_data` has one element of 6 bits, while `raw_data` has them packed.
    let to_pack = dtype.bits() == Some(6) && field == "int32_data";
    let room = if to_pack { count } else { expected };
    for occurrence in occurrences {
        extra += expand(reader, occurrence, field, dtype, room, &mut bytes)?;
    }
    if to_pack {
        let found = bytes.len() as u64 + extra;
        if found != count {
            let dims = parts.dims.to_vec();
            let unit = "elements";
            return Err(TensorIssue::WrongLength { dtype, dims, expected: count, found, unit, field }.into());
        }
        bytes = packed_sixes(&bytes);
    }
    let found = bytes.len() as u64 + extra;
    Ok((Storage::Bytes(bytes.into()), found, field))
}

/// Elements of 6 bits, one per byte, as a stream of bits from the low end: four in three bytes.
fn packed_sixes(elements: &[u8]) -> Vec<u8> {
    let pack = |four: &[u8]| {
        let bits = four.iter().rev().fold(0u32, |bits, &e| bits << 6 | u32::from(e & 0x3f));
        bits.to_le_bytes().into_iter().take((four.len() * 6).div_ceil(8))
    };
    elements.chunks(4).flat_map(pack).collect()
}

fn admits(field: &str, dtype: DType) -> bool {
    use DType::{Complex64, Complex128, F32, F64, I64, String, U32, U64};
    match field {
        "raw_data" => dtype != String,
        "string_data" => dtype == String,
        "float_data" => matches!(dtype, F32 | Complex64),
        "double_data" => matches!(dtype, F64 | Complex128),
        "int64_data" => dtype == I64,
        "uint64_data" => matches!(dtype, U32 | U64),
        _ => !matches!(dtype, String | F32 | Complex64 | F64 | Complex128 | I64 | U32 | U64),
    }
}

/// Reserves memory for the elements of a packed field, each of which takes at least one byte, and for the copy
/// that is kept.
fn reserve(out: &mut Vec<u8>, span: Span, width: usize, room: usize) -> Result<(), WireError> {
    let most = usize::try_from(span.len).unwrap_or(usize::MAX).saturating_mul(width);
    let more = most.min(room.saturating_sub(out.len()));
    let refused = |_| WireError::new(span.offset, WireErrorKind::Io(io::ErrorKind::OutOfMemory.into()));
    out.try_reserve_exact(more.saturating_mul(2)).map_err(refused)
}

/// Appends the elements in one occurrence of a field to `out`, little-endian, and stops keeping them once there are
/// more than `expected`: returns how many bytes were left out.
fn expand(
    reader: &mut Reader<'_>,
    occurrence: &Field,
    field: &'static str,
    dtype: DType,
    expected: u64,
    out: &mut Vec<u8>,
) -> Result<u64, WireError> {
    let room = usize::try_from(expected).unwrap_or(usize::MAX);
    let mut extra = 0;
    match (occurrence.payload, field) {
        (Payload::Bytes(span), "raw_data" | "float_data" | "double_data") => {
            if span.len > expected {
                return Ok(span.len);
            }
            out.extend_from_slice(reader.bytes(span)?);
        }
        (Payload::Fixed32(bytes), "float_data") => out.extend_from_slice(&bytes),
        (Payload::Fixed64(bytes), "double_data") => out.extend_from_slice(&bytes),
        (Payload::Varint(_) | Payload::Bytes(_), "int32_data" | "int64_data" | "uint64_data") => {
            let width = element_width(dtype);
            if let Payload::Bytes(span) = occurrence.payload {
                reserve(out, span, width, room)?;
            }
            ints(reader, occurrence, field, |v| {
                if out.len() + width <= room {
                    let v = if dtype == DType::Bool { i64::from(v != 0) } else { v };
                    out.extend_from_slice(&v.to_le_bytes()[..width]);
                } else {
                    extra += width as u64;
                }
            })?;
        }
        _ => return Err(occurrence.wrong("packed", field)),
    }
    Ok(extra)
}

/// Bytes that one entry of an integer field stands for: packed types have a whole byte in an entry.
fn element_width(dtype: DType) -> usize {
    match dtype.bits() {
        Some(64) => 8,
        Some(32) => 4,
        Some(16) => 2,
        _ => 1,
    }
}

/// Calls `visit` for every integer of one occurrence of a repeated field, packed or not.
///
/// # Errors
/// If the field holds something else.
pub(crate) fn ints(
    reader: &mut Reader<'_>,
    field: &Field,
    name: &'static str,
    mut visit: impl FnMut(i64),
) -> Result<(), WireError> {
    match field.payload {
        Payload::Varint(v) => visit(v.cast_signed()),
        Payload::Bytes(span) => {
            let mut at = span.offset;
            while at < span.end() {
                let head = reader.bytes(Span { offset: at, len: (span.end() - at).min(10) })?;
                let (v, len) = varint(head).map_err(|kind| WireError::new(at, kind).within(name, None))?;
                visit(v.cast_signed());
                at += len as u64;
            }
        }
        Payload::Fixed32(_) | Payload::Fixed64(_) => return Err(field.wrong("varint", name)),
    }
    Ok(())
}

/// Calls `visit` for every float of one occurrence of a repeated field, packed or not.
///
/// # Errors
/// If the field holds something else.
pub(crate) fn floats(
    reader: &mut Reader<'_>,
    field: &Field,
    name: &'static str,
    mut visit: impl FnMut(f32),
) -> Result<(), WireError> {
    match field.payload {
        Payload::Fixed32(bytes) => visit(f32::from_le_bytes(bytes)),
        Payload::Bytes(span) => {
            let (chunks, rest) = reader.bytes(span)?.as_chunks::<4>();
            if !rest.is_empty() {
                return Err(WireError::new(span.end(), WireErrorKind::Truncated).within(name, None));
            }
            chunks.iter().for_each(|c| visit(f32::from_le_bytes(*c)));
        }
        Payload::Varint(_) | Payload::Fixed64(_) => return Err(field.wrong("32-bit", name)),
    }
    Ok(())
}
