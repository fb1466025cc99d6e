//! Tensors in host memory: inputs and outputs of models, and operands of comparisons.
//!
//! Elements are little-endian and packed like ONNX's `raw_data` (4-bit types two to a byte, low nibble first), and
//! the first byte is aligned to a cache line. Constants of a model are [`TensorData`] instead, whose bytes may still
//! be in a file and have pending conversions; [`HostTensor::from_data`] resolves both.

mod borrowed;

pub use self::borrowed::TensorRef;
pub(crate) use self::borrowed::pack;
pub use crate::error::HostError;

use self::borrowed::ElementsRef;
use crate::bytes::AlignedBytes;
use ampc_ir::tensor::{SparseData, Storage, TensorError};
use ampc_ir::{DType, TensorData};
use bytemuck::Pod;
use half::{bf16, f16};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

/// A dense tensor in memory. Copies share the elements.
#[derive(Clone)]
pub struct HostTensor {
    dtype: DType,
    dims: Vec<u64>,
    elements: Elements,
}

#[derive(Clone)]
enum Elements {
    Numbers(Arc<AlignedBytes>),
    Strings(Arc<Vec<Box<[u8]>>>),
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type with the memory representation of an element type.
pub trait Element: Pod + sealed::Sealed {
    /// The element type.
    const DTYPE: DType;
    /// The name of the Rust type, for messages.
    const NAME: &'static str;
}

macro_rules! elements {
    ($($rust:ident = $dtype:ident),*) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
            const NAME: &'static str = stringify!($rust);
        }
    )*};
}

elements!(
    f64 = F64,
    f32 = F32,
    f16 = F16,
    bf16 = BF16,
    i64 = I64,
    i32 = I32,
    i16 = I16,
    i8 = I8,
    u64 = U64,
    u32 = U32,
    u16 = U16,
    u8 = U8
);

impl HostTensor {
    /// A tensor of zeros (of `false`, of empty strings).
    ///
    /// # Errors
    /// If the size is not representable or the allocation fails.
    pub fn zeros(dtype: DType, dims: &[u64]) -> Result<HostTensor, HostError> {
        let no_size = || TensorError::NoSize { dtype, dims: dims.to_vec() };
        let no_memory = || HostError::OutOfMemory { dtype, dims: dims.to_vec() };
        let count = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d)).ok_or_else(no_size)?;
        let elements = if dtype == DType::String {
            let count = usize::try_from(count).map_err(|_| no_memory())?;
            let mut strings: Vec<Box<[u8]>> = Vec::new();
            strings.try_reserve_exact(count).map_err(|_| no_memory())?;
            strings.resize(count, Box::default());
            Elements::Strings(Arc::new(strings))
        } else {
            let len = dtype.storage_bytes(count).ok_or_else(no_size)?;
            let len = usize::try_from(len).map_err(|_| no_memory())?;
            Elements::Numbers(Arc::new(AlignedBytes::zeroed(len).ok_or_else(no_memory)?))
        };
        Ok(HostTensor { dtype, dims: dims.to_vec(), elements })
    }

    /// Makes a tensor whose bytes `fill` writes. `fill` is called once, with zeroed bytes.
    ///
    /// # Errors
    /// Errors of [`HostTensor::zeros`] and of `fill`.
    pub fn filled<E: From<HostError>>(
        dtype: DType,
        dims: &[u64],
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<HostTensor, E> {
        let mut tensor = HostTensor::zeros(dtype, dims)?;
        match tensor.bytes_mut() {
            Some(bytes) => fill(bytes)?,
            None => return Err(HostError::View { view: "bytes", found: dtype }.into()),
        }
        Ok(tensor)
    }

    /// A copy of little-endian element bytes.
    ///
    /// # Errors
    /// If the number of bytes does not match `dtype` and `dims`.
    pub fn from_bytes(dtype: DType, dims: &[u64], bytes: &[u8]) -> Result<HostTensor, HostError> {
        HostTensor::filled(dtype, dims, |target| {
            if target.len() != bytes.len() {
                let (expected, found) = (target.len() as u64, bytes.len() as u64);
                return Err(TensorError::WrongLength { dtype, dims: dims.to_vec(), expected, found }.into());
            }
            target.copy_from_slice(bytes);
            Ok(())
        })
    }

    /// A copy of elements.
    ///
    /// # Errors
    /// If the number of elements does not match `dims`.
    pub fn from_slice<T: Element>(dims: &[u64], values: &[T]) -> Result<HostTensor, HostError> {
        HostTensor::from_bytes(T::DTYPE, dims, bytemuck::cast_slice(values))
    }

    /// A tensor of strings.
    ///
    /// # Errors
    /// If the number of strings does not match `dims`.
    pub fn from_strings(dims: &[u64], strings: Vec<Box<[u8]>>) -> Result<HostTensor, HostError> {
        let expected = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
        let found = strings.len() as u64;
        if expected != Some(found) {
            let expected = expected.unwrap_or(u64::MAX);
            return Err(HostError::StringCount { dims: dims.to_vec(), expected, found });
        }
        let elements = Elements::Strings(Arc::new(strings));
        Ok(HostTensor { dtype: DType::String, dims: dims.to_vec(), elements })
    }

    /// The elements of a constant, read from their source, after all pending conversions.
    ///
    /// # Errors
    /// If the bytes cannot be read or the allocation fails.
    pub fn from_data(data: &TensorData) -> Result<HostTensor, HostError> {
        if let Storage::Strings(strings) = data.storage() {
            return HostTensor::from_strings(data.dims(), copies_of_strings(strings)?);
        }
        HostTensor::filled(data.dtype(), data.dims(), |target| read_constant(data, target))
    }

    /// A sparse constant as a dense tensor: its indices are flat, or have a row of coordinates per element.
    ///
    /// # Errors
    /// If the elements cannot be read, are packed or strings, an index is out of range, or the allocation fails.
    pub fn from_sparse(data: &SparseData) -> Result<HostTensor, HostError> {
        let values = HostTensor::from_data(&data.values)?;
        let indices = HostTensor::from_data(&data.indices)?;
        let mut at: Vec<i64> = list_of(usize::try_from(indices.element_count()).unwrap_or(usize::MAX))?;
        at.extend(indices.i64s()?);
        let no_view = || HostError::View { view: "whole bytes", found: values.dtype() };
        let size = values.dtype().bits().filter(|bits| bits % 8 == 0).ok_or_else(no_view)? as usize / 8;
        let from = values.bytes().ok_or_else(no_view)?;
        let rank = if indices.dims().len() == 2 { data.dims.len().max(1) } else { 1 };
        let total = [data.dims.iter().product()];
        let extents = if indices.dims().len() == 2 { &data.dims[..] } else { &total };
        HostTensor::filled(values.dtype(), &data.dims, |bytes| {
            for (element, row) in from.chunks_exact(size).zip(at.chunks(rank)) {
                let no_index = || HostError::SparseIndex { index: row.to_vec(), dims: data.dims.to_vec() };
                let mut flat = 0usize;
                for (&i, &extent) in row.iter().zip(extents) {
                    let i = u64::try_from(i).ok().filter(|&i| i < extent).ok_or_else(no_index)?;
                    let next = |n: u64| usize::try_from(n).map_err(|_| no_index());
                    flat = flat * next(extent)? + next(i)?;
                }
                bytes[flat * size..(flat + 1) * size].copy_from_slice(element);
            }
            Ok(())
        })
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// The dims.
    pub fn dims(&self) -> &[u64] {
        &self.dims
    }
    /// Number of elements.
    pub fn element_count(&self) -> u64 {
        self.dims.iter().product()
    }

    /// The element bytes; `None` for strings.
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.elements {
            Elements::Numbers(bytes) => Some(bytes.as_slice()),
            Elements::Strings(_) => None,
        }
    }

    /// The strings; `None` for numbers.
    pub fn strings(&self) -> Option<&[Box<[u8]>]> {
        match &self.elements {
            Elements::Numbers(_) => None,
            Elements::Strings(strings) => Some(strings),
        }
    }

    /// The tensor as kernels and comparisons read it.
    pub fn view(&self) -> TensorRef<'_> {
        let elements = match &self.elements {
            Elements::Numbers(bytes) => ElementsRef::Numbers(bytes.as_slice()),
            Elements::Strings(strings) => ElementsRef::Strings(strings),
        };
        TensorRef { dtype: self.dtype, dims: &self.dims, elements, owner: Some(&self.elements) }
    }

    /// The element bytes, for writing; `None` for strings, and for elements shared with a copy.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match &mut self.elements {
            Elements::Numbers(bytes) => Arc::get_mut(bytes).map(AlignedBytes::as_mut_slice),
            Elements::Strings(_) => None,
        }
    }

    /// The same elements with other dims, which have the same number of elements.
    pub(crate) fn with_dims(self, dims: &[u64]) -> HostTensor {
        debug_assert_eq!(self.dims.iter().product::<u64>(), dims.iter().product::<u64>());
        HostTensor { dims: dims.to_vec(), ..self }
    }

    /// See [`TensorRef::as_slice`].
    ///
    /// # Errors
    /// If `T` is not exactly the element type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], HostError> {
        self.view().as_slice()
    }

    /// See [`TensorRef::f64s`].
    ///
    /// # Errors
    /// If the elements are not floats.
    pub fn f64s(&self) -> Result<Box<dyn Iterator<Item = f64> + '_>, HostError> {
        self.view().f64s()
    }

    /// See [`TensorRef::i64s`].
    ///
    /// # Errors
    /// If the elements are not integers, or u64.
    pub fn i64s(&self) -> Result<impl Iterator<Item = i64> + '_, HostError> {
        self.view().i64s()
    }

    /// The elements of an integer or boolean tensor; `None` for others.
    pub fn ints(&self) -> Option<Box<dyn Iterator<Item = i128> + '_>> {
        self.view().ints()
    }
}

/// Writes the elements of a numeric constant, after all pending conversions, into zeroed bytes of the right length.
///
/// # Errors
/// If the elements cannot be read, or the length differs.
pub fn read_constant(data: &TensorData, target: &mut [u8]) -> Result<(), HostError> {
    let expected = target.len() as u64;
    let mut filled = 0;
    if let Storage::Zeros = data.storage() {
        return Ok(());
    }
    data.visit_converted(|chunk| {
        if let Some(target) = target.get_mut(filled..filled + chunk.len()) {
            target.copy_from_slice(chunk);
        }
        filled += chunk.len();
        ControlFlow::Continue(())
    })?;
    if filled as u64 == expected {
        return Ok(());
    }
    let (dtype, dims, found) = (data.dtype(), data.dims().to_vec(), filled as u64);
    Err(TensorError::WrongLength { dtype, dims, expected, found }.into())
}

/// An empty list with capacity for `n` elements.
///
/// # Errors
/// If the allocation fails.
pub(crate) fn list_of<T>(n: usize) -> Result<Vec<T>, HostError> {
    let mut list = Vec::new();
    let bytes = (n as u64).saturating_mul(size_of::<T>() as u64);
    list.try_reserve_exact(n).map_err(|_| HostError::NoMemory { bytes })?;
    Ok(list)
}

/// A copy of a string, which may be long.
///
/// # Errors
/// If the allocation fails.
pub(crate) fn copy_of_string(string: &[u8]) -> Result<Box<[u8]>, HostError> {
    let mut copy = list_of(string.len())?;
    copy.extend_from_slice(string);
    Ok(copy.into_boxed_slice())
}

/// Copies of strings.
///
/// # Errors
/// If the allocation fails.
pub(crate) fn copies_of_strings(strings: &[Box<[u8]>]) -> Result<Vec<Box<[u8]>>, HostError> {
    let mut copies = list_of(strings.len())?;
    for string in strings {
        copies.push(copy_of_string(string)?);
    }
    Ok(copies)
}

/// Shows type and dims, but no elements.
impl fmt::Debug for HostTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostTensor({}{:?})", self.dtype, self.dims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ampc_ir::convert::Conversion;

    #[test]
    fn lengths_and_sizes_are_checked() {
        let short = HostTensor::from_slice(&[2, 2], &[1.0f32; 3]);
        assert!(matches!(
            short,
            Err(HostError::Tensor(TensorError::WrongLength { expected: 16, found: 12, .. }))
        ));
        let huge = HostTensor::zeros(DType::F32, &[1 << 62, 4]);
        assert!(matches!(huge, Err(HostError::Tensor(TensorError::NoSize { .. }))));
        let large = HostTensor::zeros(DType::U8, &[1 << 58]);
        assert!(matches!(large, Err(HostError::OutOfMemory { .. })));
        let strings = HostTensor::zeros(DType::String, &[1 << 58]);
        assert!(matches!(strings, Err(HostError::OutOfMemory { .. })));
        let unknown = HostTensor::zeros(DType::Other(99), &[1]);
        assert!(matches!(unknown, Err(HostError::Tensor(TensorError::NoSize { .. }))));
        let few = HostTensor::from_strings(&[2], vec![Box::default()]);
        assert!(matches!(few, Err(HostError::StringCount { expected: 2, found: 1, .. })));
    }

    #[test]
    fn scalars_and_empty_tensors() {
        let scalar = HostTensor::from_slice(&[], &[2.5f64]).unwrap();
        assert_eq!((scalar.element_count(), scalar.as_slice::<f64>().unwrap()), (1, &[2.5][..]));
        let empty = HostTensor::zeros(DType::I64, &[3, 0]).unwrap();
        assert_eq!((empty.element_count(), empty.i64s().unwrap().count()), (0, 0));
    }

    #[test]
    fn views_are_exact_or_refused() {
        let halves = HostTensor::from_slice(&[3], &[f16::MAX, f16::from_bits(1), f16::NEG_INFINITY]).unwrap();
        assert_eq!(halves.f64s().unwrap().collect::<Vec<_>>(), [65504.0, 2f64.powi(-24), f64::NEG_INFINITY]);
        assert_eq!(
            halves.view().f32s().unwrap().collect::<Vec<_>>(),
            [65504.0, 2f32.powi(-24), f32::NEG_INFINITY]
        );
        assert!(halves.as_slice::<u16>().is_err() && halves.as_slice::<bf16>().is_err());
        let doubles = HostTensor::from_slice(&[1], &[0.1f64]).unwrap();
        assert!(doubles.view().f32s().is_err() && doubles.i64s().is_err());
        let unsigned = HostTensor::from_slice(&[1], &[u64::MAX]).unwrap();
        assert!(unsigned.i64s().is_err() && unsigned.f64s().is_err());
        assert_eq!(unsigned.ints().unwrap().collect::<Vec<_>>(), [i128::from(u64::MAX)]);
        let flags = HostTensor::from_bytes(DType::Bool, &[2], &[0, 1]).unwrap();
        assert_eq!(flags.i64s().unwrap().collect::<Vec<_>>(), [0, 1]);
        assert!(flags.as_slice::<u8>().is_err(), "a bool is no number");
    }

    #[test]
    fn floats_of_six_bits_are_a_stream_of_bits() {
        let tensor = HostTensor::from_bytes(DType::F6E2M3, &[5], &[8, 76, 80, 24]).unwrap();
        assert_eq!(tensor.f64s().unwrap().collect::<Vec<_>>(), [1.0, -2.0, 0.5, 3.0, 4.0]);
    }

    #[test]
    fn packed_elements_are_low_bits_first_and_sign_extended() {
        let view = |dtype, count, bytes: &[u8]| {
            let tensor = HostTensor::from_bytes(dtype, &[count], bytes).unwrap();
            tensor.i64s().unwrap().collect::<Vec<_>>()
        };
        assert_eq!(view(DType::U4, 3, &[0xf1, 0x0a]), [1, 15, 10]);
        assert_eq!(view(DType::I4, 3, &[0xf1, 0x08]), [1, -1, -8]);
        assert_eq!(view(DType::U2, 4, &[0b11_10_01_00]), [0, 1, 2, 3]);
        assert_eq!(view(DType::I2, 3, &[0b10_01_11]), [-1, 1, -2]);
        let floats = HostTensor::from_bytes(DType::F4E2M1, &[3], &[0x72, 0x09]).unwrap();
        assert_eq!(floats.f64s().unwrap().collect::<Vec<_>>(), [1.0, 6.0, -0.5]);
    }

    #[test]
    fn what_is_unpacked_is_packed_again() {
        for (dtype, bytes) in
            [(DType::I4, &[0xf1, 0x08][..]), (DType::U2, &[0xe4]), (DType::F6E2M3, &[8, 76, 80])]
        {
            let bits = dtype.bits().unwrap();
            let count = bytes.len() * 8 / bits as usize;
            let tensor = HostTensor::from_bytes(dtype, &[count as u64], bytes).unwrap();
            let (mut loose, mut packed) = (vec![0; count], vec![7; bytes.len()]);
            tensor.view().unpack(&mut loose);
            pack(bits, &loose, &mut packed);
            assert_eq!(packed, bytes);
        }
    }

    #[test]
    fn constants_are_read_with_their_conversions() {
        let data = TensorData::from_f32(&[2], &[1.0 / 3.0, 1e9]).unwrap();
        let low = data.converted(Conversion { to: DType::F16, clamp: true });
        let tensor = HostTensor::from_data(&low).unwrap();
        assert_eq!(tensor.as_slice::<f16>().unwrap(), [f16::from_f32(1.0 / 3.0), f16::MAX]);
        let words: Vec<Box<[u8]>> = vec![b"a".as_slice().into(), b"".as_slice().into()];
        let data = TensorData::new(DType::String, [2], Storage::Strings(words.clone().into())).unwrap();
        assert_eq!(HostTensor::from_data(&data).unwrap().strings(), Some(&words[..]));
    }
}
