//! Tensors somewhere in memory, borrowed, and how their elements are read.

use super::{Element, Elements, HostTensor, copies_of_strings};
use crate::error::HostError;
use crate::float::Format;
use ampc_ir::DType;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::fmt;
use std::ops::Range;

/// A dense tensor somewhere in memory: its type, its dims and its elements, all borrowed.
#[derive(Clone, Copy)]
pub struct TensorRef<'a> {
    pub(super) dtype: DType,
    pub(super) dims: &'a [u64],
    pub(super) elements: ElementsRef<'a>,
    /// The elements that a copy can share, if an owner exists.
    pub(super) owner: Option<&'a Elements>,
}

#[derive(Clone, Copy)]
pub(super) enum ElementsRef<'a> {
    Numbers(&'a [u8]),
    Strings(&'a [Box<[u8]>]),
}

impl<'a> TensorRef<'a> {
    /// A tensor of numbers in these bytes, which are as many as `dtype` and `dims` ask for, and aligned for it.
    ///
    /// # Panics
    /// If they are not, when an element is read.
    pub fn of_numbers(dtype: DType, dims: &'a [u64], bytes: &'a [u8]) -> TensorRef<'a> {
        TensorRef { dtype, dims, elements: ElementsRef::Numbers(bytes), owner: None }
    }

    /// The same elements with other dims, which have the same number of elements.
    pub(crate) fn with_dims(self, dims: &'a [u64]) -> TensorRef<'a> {
        TensorRef { dims, ..self }
    }

    /// The index of the first element that is NaN; none if no element is, or the elements are not floats of 16 bits or more.
    pub fn first_nan(&self) -> Option<u64> {
        fn first<T: Element>(tensor: &TensorRef<'_>, is_nan: impl Fn(T) -> bool) -> Option<usize> {
            tensor.as_slice::<T>().ok()?.iter().position(|&element| is_nan(element))
        }
        let found = match self.dtype {
            DType::F32 => first(self, f32::is_nan),
            DType::F64 => first(self, f64::is_nan),
            DType::F16 => first(self, f16::is_nan),
            DType::BF16 => first(self, bf16::is_nan),
            _ => None,
        };
        found.map(|at| at as u64)
    }

    /// A copy that owns its elements; elements of a [`HostTensor`] are shared with it.
    ///
    /// # Errors
    /// If there is not so much memory.
    pub fn to_host(self) -> Result<HostTensor, HostError> {
        if let Some(elements) = self.owner {
            return Ok(HostTensor {
                dtype: self.dtype,
                dims: self.dims.to_vec(),
                elements: elements.clone(),
            });
        }
        match self.elements {
            ElementsRef::Numbers(bytes) => HostTensor::from_bytes(self.dtype, self.dims, bytes),
            ElementsRef::Strings(strings) => HostTensor::from_strings(self.dims, copies_of_strings(strings)?),
        }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// The dims.
    pub fn dims(&self) -> &'a [u64] {
        self.dims
    }
    /// Number of elements.
    pub fn element_count(&self) -> u64 {
        self.dims.iter().product()
    }

    /// The first element of a tensor of floats; `None` for an empty tensor, and for elements other than floats
    /// of 16 bits or more.
    pub fn first_f64(self) -> Option<f64> {
        match self.dtype {
            DType::F64 => self.as_slice::<f64>().ok()?.first().copied(),
            DType::F32 => self.as_slice::<f32>().ok()?.first().map(|&x| x.into()),
            DType::F16 => self.as_slice::<f16>().ok()?.first().map(|&x| x.into()),
            DType::BF16 => self.as_slice::<bf16>().ok()?.first().map(|&x| x.into()),
            _ => None,
        }
    }

    /// The element bytes; `None` for strings.
    pub fn bytes(&self) -> Option<&'a [u8]> {
        match self.elements {
            ElementsRef::Numbers(bytes) => Some(bytes),
            ElementsRef::Strings(_) => None,
        }
    }

    /// The strings; `None` for numbers.
    pub fn strings(&self) -> Option<&'a [Box<[u8]>]> {
        match self.elements {
            ElementsRef::Numbers(_) => None,
            ElementsRef::Strings(strings) => Some(strings),
        }
    }

    /// The elements in place.
    ///
    /// # Errors
    /// If `T` is not exactly the element type.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T], HostError> {
        match self.bytes() {
            // No bytes may be anywhere.
            Some([]) if self.dtype == T::DTYPE => Ok(&[]),
            Some(bytes) if self.dtype == T::DTYPE => Ok(bytemuck::cast_slice(bytes)),
            _ => Err(self.no_view(T::NAME)),
        }
    }

    /// The elements of a float tensor of any width as f64, which holds all of them exactly. A complex element is
    /// two floats.
    ///
    /// # Errors
    /// If the elements are not floats.
    pub fn f64s(&self) -> Result<Box<dyn Iterator<Item = f64> + 'a>, HostError> {
        let error = || self.no_view("f64");
        let format = Format::of(self.dtype).ok_or_else(error)?;
        let bytes = self.bytes().ok_or_else(error)?;
        Ok(match self.dtype {
            DType::F64 | DType::Complex128 => {
                Box::new(bytemuck::cast_slice::<u8, f64>(bytes).iter().copied())
            }
            DType::F32 | DType::Complex64 => {
                Box::new(bytemuck::cast_slice::<u8, f32>(bytes).iter().map(|&v| f64::from(v)))
            }
            DType::F16 => Box::new(bytemuck::cast_slice::<u8, f16>(bytes).iter().map(|v| v.to_f64())),
            DType::BF16 => Box::new(bytemuck::cast_slice::<u8, bf16>(bytes).iter().map(|v| v.to_f64())),
            _ => Box::new(self.small(bytes).map(move |bits| format.decode_byte(bits))),
        })
    }

    /// The elements of a float tensor of at most 32 bits as f32, which holds all of them exactly.
    ///
    /// # Errors
    /// If the elements are not floats, or wider.
    pub fn f32s(&self) -> Result<impl Iterator<Item = f32> + use<'a>, HostError> {
        if matches!(self.dtype, DType::F64 | DType::Complex128) {
            return Err(self.no_view("f32"));
        }
        #[expect(clippy::cast_possible_truncation, reason = "narrower formats are exact in f32")]
        Ok(self.f64s()?.map(|v| v as f32))
    }

    /// The elements of an integer tensor but u64 as i64, `false` and `true` as 0 and 1.
    ///
    /// # Errors
    /// If the elements are not integers, or u64.
    pub fn i64s(&self) -> Result<impl Iterator<Item = i64> + use<'a>, HostError> {
        let ints = if self.dtype == DType::U64 { None } else { self.ints() };
        #[expect(clippy::cast_possible_truncation, reason = "all integer types but u64 are exact in i64")]
        Ok(ints.ok_or_else(|| self.no_view("i64"))?.map(|v| v as i64))
    }

    /// The elements of an integer or boolean tensor.
    pub(crate) fn ints(&self) -> Option<Box<dyn Iterator<Item = i128> + 'a>> {
        fn wide<T: Element + Into<i128>>(bytes: &[u8]) -> Box<dyn Iterator<Item = i128> + '_> {
            Box::new(bytemuck::cast_slice::<u8, T>(bytes).iter().map(|&v| v.into()))
        }
        let bytes = self.bytes()?;
        Some(match self.dtype {
            DType::I64 => wide::<i64>(bytes),
            DType::I32 => wide::<i32>(bytes),
            DType::I16 => wide::<i16>(bytes),
            DType::I8 => wide::<i8>(bytes),
            DType::U64 => wide::<u64>(bytes),
            DType::U32 => wide::<u32>(bytes),
            DType::U16 => wide::<u16>(bytes),
            DType::U8 | DType::Bool => wide::<u8>(bytes),
            DType::U4 | DType::U2 => Box::new(self.small(bytes).map(i128::from)),
            DType::I4 => Box::new(self.small(bytes).map(|bits| i128::from((bits << 4).cast_signed() >> 4))),
            DType::I2 => Box::new(self.small(bytes).map(|bits| i128::from((bits << 6).cast_signed() >> 6))),
            _ => return None,
        })
    }

    /// Reads elements of a float tensor from number `at` on, as [`f64s`](Self::f64s) has them, and says how many: as
    /// many as there is room for, as far as there are any; none of another tensor.
    pub(crate) fn read_f64s(&self, at: usize, to: &mut [f64]) -> usize {
        let (Some(format), Some(bytes)) = (Format::of(self.dtype), self.bytes()) else { return 0 };
        match self.dtype {
            DType::F64 | DType::Complex128 => read_from(bytemuck::cast_slice(bytes), at, to, |v: f64| v),
            DType::F32 | DType::Complex64 => {
                read_from(bytemuck::cast_slice(bytes), at, to, |v: f32| f64::from(v))
            }
            DType::F16 => read_halves(bytemuck::cast_slice::<u8, f16>(bytes), at, to),
            DType::BF16 => read_halves(bytemuck::cast_slice::<u8, bf16>(bytes), at, to),
            _ => self.read_small(bytes, at, to, |bits| format.decode_byte(bits)),
        }
    }

    /// As [`read_f64s`](Self::read_f64s), of an integer or boolean tensor.
    pub(crate) fn read_ints(&self, at: usize, to: &mut [i128]) -> usize {
        fn wide<T: Element + Into<i128>>(bytes: &[u8], at: usize, to: &mut [i128]) -> usize {
            read_from(bytemuck::cast_slice::<u8, T>(bytes), at, to, Into::into)
        }
        let Some(bytes) = self.bytes() else { return 0 };
        match self.dtype {
            DType::I64 => wide::<i64>(bytes, at, to),
            DType::I32 => wide::<i32>(bytes, at, to),
            DType::I16 => wide::<i16>(bytes, at, to),
            DType::I8 => wide::<i8>(bytes, at, to),
            DType::U64 => wide::<u64>(bytes, at, to),
            DType::U32 => wide::<u32>(bytes, at, to),
            DType::U16 => wide::<u16>(bytes, at, to),
            DType::U8 | DType::Bool => wide::<u8>(bytes, at, to),
            DType::U4 | DType::U2 => self.read_small(bytes, at, to, i128::from),
            DType::I4 => self.read_small(bytes, at, to, |bits| i128::from((bits << 4).cast_signed() >> 4)),
            DType::I2 => self.read_small(bytes, at, to, |bits| i128::from((bits << 6).cast_signed() >> 6)),
            _ => 0,
        }
    }

    fn read_small<W>(&self, bytes: &[u8], at: usize, to: &mut [W], wide: impl Fn(u8) -> W) -> usize {
        let count = usize::try_from(self.element_count()).unwrap_or(usize::MAX);
        let end = count.min(at + to.len());
        let from = small(bytes, self.dtype.bits().unwrap_or(8), at..end);
        to.iter_mut().zip(from).for_each(|(to, bits)| *to = wide(bits));
        end.saturating_sub(at)
    }

    /// The bits of elements of at most 8 bits, each in the low bits of a byte.
    fn small(&self, bytes: &'a [u8]) -> impl Iterator<Item = u8> + use<'a> {
        let count = usize::try_from(self.element_count()).unwrap_or(usize::MAX);
        small(bytes, self.dtype.bits().unwrap_or(8), 0..count)
    }

    /// Writes the bits of elements of at most 8 bits each into a byte of its own.
    pub(crate) fn unpack(&self, to: &mut [u8]) {
        let bytes = self.bytes().unwrap_or_default();
        to.iter_mut().zip(self.small(bytes)).for_each(|(to, bits)| *to = bits);
    }

    fn no_view(&self, view: &'static str) -> HostError {
        HostError::View { view, found: self.dtype }
    }
}

/// The bits of some elements of `bits` bits, of at most 8.
fn small(bytes: &[u8], bits: u32, range: Range<usize>) -> impl Iterator<Item = u8> + use<'_> {
    let mask = u8::try_from((1u32 << bits) - 1).unwrap_or(u8::MAX);
    range.map(move |i| {
        // Elements of 6 bits go on in the next byte.
        let at = i * bits as usize;
        let byte = |n: usize| bytes.get(n).copied().unwrap_or(0);
        let [low, _] = (u16::from_le_bytes([byte(at / 8), byte(at / 8 + 1)]) >> (at % 8)).to_le_bytes();
        low & mask
    })
}

/// The next elements of a slice, as wide numbers; how many there were.
fn read_from<T: Copy, W>(from: &[T], at: usize, to: &mut [W], wide: impl Fn(T) -> W) -> usize {
    let from = &from[at.min(from.len())..];
    to.iter_mut().zip(from).for_each(|(to, &from)| *to = wide(from));
    from.len().min(to.len())
}

/// As [`read_from`], with the processor's instructions.
fn read_halves<T>(from: &[T], at: usize, to: &mut [f64]) -> usize
where
    [T]: HalfFloatSliceExt,
{
    let from = &from[at.min(from.len())..];
    let count = from.len().min(to.len());
    from[..count].convert_to_f64_slice(&mut to[..count]);
    count
}

/// Packs elements of `bits` bits, each in the low bits of a byte.
pub(crate) fn pack(bits: u32, from: &[u8], to: &mut [u8]) {
    to.fill(0);
    let mut at = 0;
    for &element in from {
        let [low, high] = (u16::from(element) << (at % 8)).to_le_bytes();
        to[at / 8] |= low;
        if high != 0 {
            to[at / 8 + 1] |= high;
        }
        at += bits as usize;
    }
}

/// Shows type and dims, but no elements.
impl fmt::Debug for TensorRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorRef({}{:?})", self.dtype, self.dims)
    }
}
