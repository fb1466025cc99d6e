//! Values of a graph at run time: tensors, sequences and optionals, owned ([`Data`]) or borrowed ([`DataRef`]).

use crate::device::{DeviceRef, DeviceTensor};
use crate::host::{HostError, HostTensor, TensorRef, list_of};
use ampc_ir::{DType, Shape, Type};

/// A value at run time.
#[derive(Clone, Debug)]
pub enum Data {
    /// A tensor in host memory.
    Tensor(HostTensor),
    /// A tensor in the memory of a device.
    Device(DeviceTensor),
    /// A sequence.
    Sequence(Sequence),
    /// An optional.
    Optional(Maybe),
}

/// A list of values of one type.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// The type of the elements; shapes may differ between them.
    pub element: Type,
    items: Vec<Data>,
    /// The bytes of all elements, including [`ELEMENT_BYTES`] for each.
    bytes: u64,
}

/// An optional value.
#[derive(Clone, Debug)]
pub struct Maybe {
    /// The type of the value.
    pub element: Type,
    /// The value.
    pub value: Option<Box<Data>>,
}

/// The overhead in bytes of an element of a sequence or the value of an optional: its entry, its dims, and the
/// alignment of its elements to cache lines.
pub const ELEMENT_BYTES: u64 = 256;

impl Sequence {
    /// A sequence of these elements.
    pub fn new(element: Type, items: Vec<Data>) -> Sequence {
        let bytes = items.iter().map(Sequence::bytes_of).sum();
        Sequence { element, items, bytes }
    }

    /// The elements.
    pub fn items(&self) -> &[Data] {
        &self.items
    }

    /// Inserts an element before position `at`, which is at most the number of elements.
    ///
    /// # Errors
    /// If the allocation fails.
    pub(crate) fn insert(&mut self, at: usize, item: Data) -> Result<(), HostError> {
        let bytes = self.bytes.saturating_add(Sequence::bytes_of(&item));
        self.items.try_reserve(1).map_err(|_| HostError::NoMemory { bytes })?;
        self.bytes = bytes;
        self.items.insert(at, item);
        Ok(())
    }

    /// Removes the element at a position.
    pub(crate) fn remove(&mut self, at: usize) {
        let item = self.items.remove(at);
        self.bytes = self.bytes.saturating_sub(Sequence::bytes_of(&item));
    }

    /// The bytes that an element adds to a sequence.
    fn bytes_of(item: &Data) -> u64 {
        item.view().byte_count().saturating_add(ELEMENT_BYTES)
    }

    /// A copy that shares the elements of tensors.
    ///
    /// # Errors
    /// If the allocation fails.
    pub(crate) fn to_sequence(&self) -> Result<Sequence, HostError> {
        let mut items = list_of(self.items.len())?;
        for item in &self.items {
            items.push(item.view().to_data()?);
        }
        Ok(Sequence { element: self.element.clone(), items, bytes: self.bytes })
    }
}

/// A borrowed value.
#[derive(Clone, Copy, Debug)]
pub enum DataRef<'a> {
    /// A tensor in host memory.
    Tensor(TensorRef<'a>),
    /// A tensor in the memory of a device.
    Device(DeviceRef<'a>),
    /// A sequence.
    Sequence(&'a Sequence),
    /// An optional.
    Optional(&'a Maybe),
}

impl From<HostTensor> for Data {
    fn from(tensor: HostTensor) -> Data {
        Data::Tensor(tensor)
    }
}

impl Data {
    /// The value, borrowed.
    pub fn view(&self) -> DataRef<'_> {
        match self {
            Data::Tensor(tensor) => DataRef::Tensor(tensor.view()),
            Data::Device(tensor) => DataRef::Device(tensor.view()),
            Data::Sequence(sequence) => DataRef::Sequence(sequence),
            Data::Optional(maybe) => DataRef::Optional(maybe),
        }
    }

    /// The tensor, if the value is a tensor in host memory.
    pub fn tensor(&self) -> Option<&HostTensor> {
        match self {
            Data::Tensor(tensor) => Some(tensor),
            Data::Device(_) | Data::Sequence(_) | Data::Optional(_) => None,
        }
    }
}

/// An empty list that reuses the allocation of another list. Their elements have the same size, and usually the same
/// type with different lifetimes.
pub fn emptied<A, B>(mut list: Vec<A>) -> Vec<B> {
    list.clear();
    // The standard library collects in place, into the allocation of the source.
    list.into_iter().map(|_| -> B { unreachable!("the list is empty") }).collect()
}

impl<'a> DataRef<'a> {
    /// The tensor, if the value is a tensor in host memory.
    pub fn tensor(self) -> Option<TensorRef<'a>> {
        match self {
            DataRef::Tensor(tensor) => Some(tensor),
            DataRef::Device(_) | DataRef::Sequence(_) | DataRef::Optional(_) => None,
        }
    }

    /// The element type and the dims, if the value is a tensor in any memory.
    pub(crate) fn shape(self) -> Option<(DType, &'a [u64])> {
        match self {
            DataRef::Tensor(tensor) => Some((tensor.dtype(), tensor.dims())),
            DataRef::Device(tensor) => Some((tensor.dtype, tensor.dims)),
            DataRef::Sequence(_) | DataRef::Optional(_) => None,
        }
    }

    /// The type of the value: with all dims of a tensor, and without the dims of the elements of a sequence or
    /// optional.
    pub fn ty(self) -> Type {
        match self {
            DataRef::Tensor(tensor) => Type::tensor(tensor.dtype(), Shape::known(tensor.dims())),
            DataRef::Device(tensor) => Type::tensor(tensor.dtype, Shape::known(tensor.dims)),
            DataRef::Sequence(sequence) => Type::Sequence(Box::new(without_dims(&sequence.element))),
            DataRef::Optional(maybe) => Type::Optional(Box::new(without_dims(&maybe.element))),
        }
    }

    /// True if all dims of its type are known.
    pub(crate) fn is_of(self, ty: &Type) -> bool {
        let is = |dtype: DType, dims: &[u64]| match ty {
            Type::Tensor(ty) => {
                let known = ty.shape.dims().unwrap_or_default().iter().map(|dim| dim.known());
                dtype == ty.dtype && ty.shape.dims().is_some() && known.eq(dims.iter().map(|&d| Some(d)))
            }
            _ => false,
        };
        match self {
            DataRef::Tensor(tensor) => is(tensor.dtype(), tensor.dims()),
            DataRef::Device(tensor) => is(tensor.dtype, tensor.dims),
            DataRef::Sequence(_) | DataRef::Optional(_) => self.ty() == *ty,
        }
    }

    /// A copy that owns its parts; parts that are already owned are shared.
    ///
    /// # Errors
    /// If the allocation fails, or a tensor is in device memory: a session copies such tensors.
    pub fn to_data(self) -> Result<Data, HostError> {
        Ok(match self {
            DataRef::Tensor(tensor) => Data::Tensor(tensor.to_host()?),
            DataRef::Device(_) => return Err(HostError::OnDevice),
            DataRef::Sequence(sequence) => Data::Sequence(sequence.to_sequence()?),
            DataRef::Optional(maybe) => Data::Optional(Maybe {
                element: maybe.element.clone(),
                value: maybe.value.as_ref().map(|value| value.view().to_data()).transpose()?.map(Box::new),
            }),
        })
    }

    /// The bytes of all tensors in the value. A string counts its bytes; an element of a sequence or optional counts
    /// [`ELEMENT_BYTES`] in addition.
    pub fn byte_count(self) -> u64 {
        match self {
            DataRef::Tensor(tensor) => match (tensor.bytes(), tensor.strings()) {
                (Some(bytes), _) => bytes.len() as u64,
                (None, Some(strings)) => strings.iter().map(|s| s.len() as u64 + 16).sum(),
                (None, None) => 0,
            },
            DataRef::Device(tensor) => tensor.span.len as u64,
            DataRef::Sequence(sequence) => sequence.bytes,
            DataRef::Optional(maybe) => {
                maybe.value.as_ref().map_or(0, |value| value.view().byte_count() + ELEMENT_BYTES)
            }
        }
    }
}

/// The type of elements without dims: elements of a sequence may have other dims than the model declares.
fn without_dims(element: &Type) -> Type {
    match element {
        Type::Tensor(tensor) => tensor_type(tensor.dtype),
        Type::Sequence(element) => Type::Sequence(Box::new(without_dims(element))),
        Type::Optional(element) => Type::Optional(Box::new(without_dims(element))),
        Type::Unknown | Type::Sparse(_) | Type::Map { .. } | Type::Opaque { .. } => element.clone(),
    }
}

/// The type of a tensor of this element type and unknown rank.
pub(crate) fn tensor_type(dtype: DType) -> Type {
    Type::tensor(dtype, Shape::unknown())
}
