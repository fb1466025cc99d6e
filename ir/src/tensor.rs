//! Constant payloads. A payload has the location of its bytes; no pass copies them.

use crate::convert::{self, Conversion};
use crate::dtype::DType;
use crate::ty::Shape;
use smallvec::SmallVec;
use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Something whose bytes can be read at an offset: a file, a buffer.
///
/// This crate does no I/O of its own; readers of model files provide an implementation.
pub trait ByteSource: Send + Sync + fmt::Debug {
    /// Fills `buf` from the bytes at `offset`; an error if fewer are there.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
    /// Total number of bytes.
    fn len(&self) -> u64;
    /// True if there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The xxh3-128 of a range of the bytes, where it is known without reading them.
    fn known_hash(&self, _offset: u64, _len: u64) -> Option<u128> {
        None
    }
    /// Description of this source for error messages, such as the path of the file.
    fn describe(&self) -> String;
}

/// A range of bytes of a [`ByteSource`].
#[derive(Clone, Debug)]
pub struct FileRange {
    /// Where the bytes are.
    pub source: Arc<dyn ByteSource>,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// The storage of the elements of a constant. Numbers are little-endian and packed as ONNX's `raw_data` is.
#[derive(Clone, Debug)]
pub enum Storage {
    /// In memory.
    Bytes(Arc<[u8]>),
    /// In a file.
    File(FileRange),
    /// Strings, one per element.
    Strings(Arc<[Box<[u8]>]>),
    /// Zeros, which take no memory.
    Zeros,
    /// Uniform values in [−amplitude, amplitude) from the documented generator, rounded once to the dtype.
    Random {
        /// Key of the generator.
        seed: u64,
        /// Amplitude.
        amplitude: f32,
    },
}

/// The identity of the storage of a constant: equal for the same bytes at the same place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// In memory: address and number of bytes, or of strings.
    Memory(usize, usize),
    /// In a file: the address of its [`ByteSource`], offset and number of bytes.
    File(usize, u64, u64),
    /// Made by the generator from this seed, with the bits of this amplitude.
    Random(u64, u32),
    /// Nowhere: they are zeros.
    Zeros,
}

impl Storage {
    /// The identity of the storage, valid as long as the storage lives.
    pub fn place(&self) -> Place {
        match self {
            Storage::Bytes(bytes) => Place::Memory(bytes.as_ptr().addr(), bytes.len()),
            Storage::Strings(strings) => Place::Memory(strings.as_ptr().addr(), strings.len()),
            Storage::File(range) => Place::File(Arc::as_ptr(&range.source).addr(), range.offset, range.len),
            &Storage::Random { seed, amplitude } => Place::Random(seed, amplitude.to_bits()),
            Storage::Zeros => Place::Zeros,
        }
    }
}

/// A dense constant: stored element type, dims, bytes, and the conversions still to be applied to them.
#[derive(Clone, Debug)]
pub struct TensorData {
    stored: DType,
    dims: SmallVec<[u64; 4]>,
    storage: Storage,
    pending: SmallVec<[Conversion; 1]>,
}

/// Error of making or reading a payload.
#[derive(Debug, thiserror::Error)]
pub enum TensorError {
    /// The number of bytes differs from the number that dtype and dims require.
    #[error("expected {expected} bytes for {dtype}{dims:?}, found {found}")]
    WrongLength {
        /// Element type.
        dtype: DType,
        /// Dims.
        dims: Vec<u64>,
        /// Bytes that dtype and dims ask for.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// Dtype times dims does not fit in 64 bits, or the dtype has no byte size.
    #[error("a tensor of {dtype}{dims:?} has no representable size")]
    NoSize {
        /// Element type.
        dtype: DType,
        /// Dims.
        dims: Vec<u64>,
    },
    /// The bytes could not be read.
    #[error("cannot read {what}: {source}")]
    Read {
        /// The source.
        what: String,
        /// The cause.
        source: io::Error,
    },
}

impl TensorError {
    /// True if the system refused memory.
    pub fn is_no_memory(&self) -> bool {
        matches!(self, TensorError::Read { source, .. } if source.kind() == io::ErrorKind::OutOfMemory)
    }
}

/// An empty list with room for so many bytes, which are read from somewhere.
fn room_for(bytes: usize) -> Result<Vec<u8>, TensorError> {
    let mut room = Vec::new();
    match room.try_reserve_exact(bytes) {
        Ok(()) => Ok(room),
        Err(_) => {
            let what = format!("{bytes} bytes of a constant into memory");
            Err(TensorError::Read { what, source: io::ErrorKind::OutOfMemory.into() })
        }
    }
}

/// Calls `visit` with so many zeros, some at a time.
fn visit_zeros(mut left: usize, visit: &mut impl FnMut(&[u8]) -> ControlFlow<()>) {
    const ZEROS: [u8; 1 << 12] = [0; 1 << 12];
    while left > 0 {
        let chunk = &ZEROS[..left.min(ZEROS.len())];
        if visit(chunk).is_break() {
            return;
        }
        left -= chunk.len();
    }
}

/// Bytes passed to the visitor of [`TensorData::visit_stored`] at a time.
pub const CHUNK_BYTES: usize = 1 << 20;

impl TensorData {
    /// A constant from its parts.
    ///
    /// # Errors
    /// If the number of stored bytes or strings differs from the number that `dtype` and `dims` require.
    pub fn new(
        dtype: DType,
        dims: impl IntoIterator<Item = u64>,
        storage: Storage,
    ) -> Result<TensorData, TensorError> {
        let dims: SmallVec<[u64; 4]> = dims.into_iter().collect();
        let no_size = || TensorError::NoSize { dtype, dims: dims.to_vec() };
        let count = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d)).ok_or_else(no_size)?;
        let (expected, found) = match &storage {
            Storage::Strings(s) if dtype == DType::String => (count, s.len() as u64),
            Storage::Bytes(b) => (dtype.storage_bytes(count).ok_or_else(no_size)?, b.len() as u64),
            Storage::File(r) => (dtype.storage_bytes(count).ok_or_else(no_size)?, r.len),
            Storage::Random { .. } | Storage::Zeros => {
                let n = dtype.storage_bytes(count).ok_or_else(no_size)?;
                (n, n)
            }
            Storage::Strings(_) => return Err(no_size()),
        };
        if expected != found {
            return Err(TensorError::WrongLength { dtype, dims: dims.to_vec(), expected, found });
        }
        Ok(TensorData { stored: dtype, dims, storage, pending: SmallVec::new() })
    }

    /// A constant of little-endian bytes in memory. See [`TensorData::new`] for errors.
    pub fn from_bytes(
        dtype: DType,
        dims: &[u64],
        bytes: impl Into<Arc<[u8]>>,
    ) -> Result<TensorData, TensorError> {
        TensorData::new(dtype, dims.iter().copied(), Storage::Bytes(bytes.into()))
    }

    /// A constant of zeros, which takes no memory.
    ///
    /// # Errors
    /// If `dtype` and `dims` have no size.
    pub fn zeros(dtype: DType, dims: &[u64]) -> Result<TensorData, TensorError> {
        TensorData::new(dtype, dims.iter().copied(), Storage::Zeros)
    }

    /// An f32 constant.
    ///
    /// # Errors
    /// If `values` has not as many elements as `dims` ask for.
    pub fn from_f32(dims: &[u64], values: &[f32]) -> Result<TensorData, TensorError> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        TensorData::from_bytes(DType::F32, dims, bytes)
    }

    /// An i64 constant.
    ///
    /// # Errors
    /// If `values` has not as many elements as `dims` ask for.
    pub fn from_i64(dims: &[u64], values: &[i64]) -> Result<TensorData, TensorError> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        TensorData::from_bytes(DType::I64, dims, bytes)
    }

    /// The element type readers see: after all pending conversions.
    pub fn dtype(&self) -> DType {
        self.pending.last().map_or(self.stored, |c| c.to)
    }
    /// The element type of the stored bytes.
    pub fn stored_dtype(&self) -> DType {
        self.stored
    }
    /// The dims.
    pub fn dims(&self) -> &[u64] {
        &self.dims
    }
    /// The dims as a [`Shape`].
    pub fn shape(&self) -> Shape {
        Shape::known(&self.dims)
    }
    /// Number of elements.
    pub fn element_count(&self) -> u64 {
        self.dims.iter().product()
    }
    /// Where the elements are.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }
    /// Conversions still to be applied to the stored bytes, first to last.
    pub fn pending(&self) -> &[Conversion] {
        &self.pending
    }
    /// Bytes after all pending conversions; 0 for strings.
    pub fn byte_len(&self) -> u64 {
        self.dtype().storage_bytes(self.element_count()).unwrap_or(0)
    }
    /// Bytes as stored; 0 for strings.
    pub fn stored_byte_len(&self) -> u64 {
        self.stored.storage_bytes(self.element_count()).unwrap_or(0)
    }

    /// The same constant with one more conversion pending. Its bytes stay where they are.
    /// A step that undoes nothing and changes nothing (to the present dtype) is left out.
    #[must_use]
    pub fn converted(&self, step: Conversion) -> TensorData {
        let mut data = self.clone();
        if step.to != self.dtype() {
            data.pending.push(step);
        }
        data
    }

    /// The same constant without its pending conversions.
    #[must_use]
    pub fn as_stored(&self) -> TensorData {
        TensorData { pending: SmallVec::new(), ..self.clone() }
    }

    /// Calls `visit` with the stored bytes, at most [`CHUNK_BYTES`] at a time, every chunk a whole number of
    /// 16-byte groups except the last. Strings are visited as their bytes, one string a call.
    ///
    /// # Errors
    /// If the bytes cannot be read.
    pub fn visit_stored(&self, mut visit: impl FnMut(&[u8]) -> ControlFlow<()>) -> Result<(), TensorError> {
        match &self.storage {
            Storage::Bytes(bytes) => {
                for chunk in bytes.chunks(CHUNK_BYTES) {
                    if visit(chunk).is_break() {
                        break;
                    }
                }
            }
            Storage::Strings(strings) => {
                for s in strings.iter() {
                    if visit(s).is_break() {
                        break;
                    }
                }
            }
            Storage::File(range) => visit_file(range, &mut visit)?,
            Storage::Random { seed, amplitude } => {
                crate::random::visit_uniform(
                    self.stored,
                    self.element_count(),
                    *seed,
                    *amplitude,
                    CHUNK_BYTES,
                    &mut visit,
                );
            }
            Storage::Zeros => visit_zeros(self.byte_room(self.stored), &mut visit),
        }
        Ok(())
    }

    /// Calls `visit` with the bytes after all pending conversions, a bounded number at a time.
    ///
    /// # Errors
    /// If the bytes cannot be read.
    pub fn visit_converted(
        &self,
        mut visit: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), TensorError> {
        if self.pending.is_empty() {
            return self.visit_stored(visit);
        }
        let (mut input, mut output) = (room_for(CHUNK_BYTES)?, room_for(CHUNK_BYTES)?);
        self.visit_stored(|chunk| {
            input.clear();
            input.extend_from_slice(chunk);
            let mut dtype = self.stored;
            for step in &self.pending {
                output.clear();
                convert::convert(dtype, *step, &input, &mut output);
                std::mem::swap(&mut input, &mut output);
                dtype = step.to;
            }
            visit(&input)
        })
    }

    /// The bytes of all elements in this type; 0 for strings, which have no size.
    fn byte_room(&self, dtype: DType) -> usize {
        let bytes = dtype.storage_bytes(self.element_count()).unwrap_or(0);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// All bytes after pending conversions, in memory. For small constants.
    ///
    /// # Errors
    /// If the bytes cannot be read.
    pub fn to_bytes(&self) -> Result<Vec<u8>, TensorError> {
        let mut bytes = room_for(self.byte_room(self.dtype()))?;
        self.visit_converted(|chunk| {
            bytes.extend_from_slice(chunk);
            ControlFlow::Continue(())
        })?;
        Ok(bytes)
    }

    /// xxh3-128 of the stored bytes (before pending conversions); strings are hashed with their lengths.
    ///
    /// # Errors
    /// If the bytes cannot be read.
    pub fn content_hash(&self) -> Result<u128, TensorError> {
        // What a source says of no bytes needs no trust: they have one hash.
        if let Storage::File(range) = &self.storage
            && range.len > 0
            && let Some(hash) = range.source.known_hash(range.offset, range.len)
        {
            return Ok(hash);
        }
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        let strings = matches!(self.storage, Storage::Strings(_));
        self.visit_stored(|chunk| {
            if strings {
                hash.update(&(chunk.len() as u64).to_le_bytes());
            }
            hash.update(chunk);
            ControlFlow::Continue(())
        })?;
        Ok(hash.digest128())
    }

    /// The stored bytes, before any pending conversion, if there are at most `limit` elements and they can be read.
    pub fn small_bytes(&self, limit: u64) -> Option<Vec<u8>> {
        if self.element_count() > limit {
            return None;
        }
        let mut bytes = room_for(self.byte_room(self.stored)).ok()?;
        self.visit_stored(|chunk| {
            bytes.extend_from_slice(chunk);
            ControlFlow::Continue(())
        })
        .ok()?;
        Some(bytes)
    }

    /// The elements as integers, if this is an integer or boolean constant of at most `limit` elements whose
    /// bytes can be read and whose values fit.
    pub fn small_ints(&self, limit: u64) -> Option<Vec<i64>> {
        if self.element_count() > limit || !self.pending.is_empty() {
            return None;
        }
        let bytes = self.to_bytes().ok()?;
        let ints =
            |size: usize, read: &dyn Fn(&[u8]) -> Option<i64>| bytes.chunks_exact(size).map(read).collect();
        match self.stored {
            DType::I64 => ints(8, &|b| Some(i64::from_le_bytes(b.try_into().ok()?))),
            DType::I32 => ints(4, &|b| Some(i64::from(i32::from_le_bytes(b.try_into().ok()?)))),
            DType::I16 => ints(2, &|b| Some(i64::from(i16::from_le_bytes(b.try_into().ok()?)))),
            DType::I8 => ints(1, &|b| Some(i64::from(i8::from_le_bytes(b.try_into().ok()?)))),
            DType::U64 => ints(8, &|b| i64::try_from(u64::from_le_bytes(b.try_into().ok()?)).ok()),
            DType::U32 => ints(4, &|b| Some(i64::from(u32::from_le_bytes(b.try_into().ok()?)))),
            DType::U16 => ints(2, &|b| Some(i64::from(u16::from_le_bytes(b.try_into().ok()?)))),
            DType::U8 | DType::Bool => ints(1, &|b| Some(i64::from(b[0]))),
            _ => None,
        }
    }

    /// The elements as f64, if this is an f32, f16, bf16 or f64 constant of at most `limit` elements whose
    /// bytes can be read; pending conversions are applied.
    pub fn small_floats(&self, limit: u64) -> Option<Vec<f64>> {
        if self.element_count() > limit || !convert::can_convert(self.stored, DType::F64) {
            return None;
        }
        let wide = self.converted(Conversion { to: DType::F64, clamp: false });
        let bytes = wide.to_bytes().ok()?;
        Some(bytes.as_chunks::<8>().0.iter().map(|c| f64::from_le_bytes(*c)).collect())
    }
}

fn visit_file(
    range: &FileRange,
    visit: &mut impl FnMut(&[u8]) -> ControlFlow<()>,
) -> Result<(), TensorError> {
    let mut left = range.len;
    let mut offset = range.offset;
    let most = usize::try_from(left).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
    let mut buffer = room_for(most)?;
    buffer.resize(most, 0);
    while left > 0 {
        let n = usize::try_from(left).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        range
            .source
            .read_exact_at(&mut buffer[..n], offset)
            .map_err(|source| TensorError::Read { what: range.source.describe(), source })?;
        if visit(&buffer[..n]).is_break() {
            break;
        }
        offset += n as u64;
        left -= n as u64;
    }
    Ok(())
}

/// A sparse constant: values at positions of a tensor that is zero elsewhere.
#[derive(Clone, Debug)]
pub struct SparseData {
    /// The non-zero values, of shape `[NNZ]`.
    pub values: TensorData,
    /// Their positions: i64 of shape `[NNZ]` (linear) or `[NNZ, rank]`.
    pub indices: TensorData,
    /// Dims of the whole tensor.
    pub dims: SmallVec<[u64; 4]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_checked() {
        let wrong = TensorData::from_bytes(DType::F32, &[3, 3], vec![0; 32]);
        assert!(matches!(wrong, Err(TensorError::WrongLength { expected: 36, found: 32, .. })));
        let huge = TensorData::from_bytes(DType::F32, &[1 << 62, 4], vec![]);
        assert!(matches!(huge, Err(TensorError::NoSize { .. })));
    }

    #[test]
    fn conversions_are_applied_in_order_and_bytes_stay() {
        let data = TensorData::from_f32(&[2], &[1.0 + 1.0 / 4096.0, 1e9]).unwrap();
        let low = data.converted(Conversion { to: DType::F16, clamp: true });
        let rounded = low.converted(Conversion { to: DType::F32, clamp: false });
        assert_eq!((low.dtype(), low.byte_len()), (DType::F16, 4));
        assert_eq!(rounded.small_floats(2), Some(vec![1.0, 65504.0]));
        assert_eq!(low.content_hash().unwrap(), data.content_hash().unwrap());
    }
}
