//! Small tensors as numbers, as operands and results of the evaluation.

use ampc_ir::convert::Conversion;
use ampc_ir::{DType, TensorData};

/// The largest number of elements of a tensor that is computed.
pub(crate) const MAX_ELEMENTS: u64 = 1024;

/// The elements of a small tensor, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Numbers {
    /// Integers of the element type, or bools, which are 0 and 1.
    Ints(Vec<i64>),
    /// Floats of f16, bf16, f32 or f64; each is rounded to the element type when a constant is made of them.
    Floats(Vec<f64>),
}

/// A small tensor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Small {
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<u64>,
    pub(crate) numbers: Numbers,
}

impl Small {
    /// The elements of a constant, if it is small and of numbers or bools.
    pub(crate) fn read(data: &TensorData) -> Option<Small> {
        let (dtype, dims) = (data.dtype(), data.dims().to_vec());
        let numbers = match data.small_ints(MAX_ELEMENTS) {
            Some(ints) => Numbers::Ints(ints),
            None => Numbers::Floats(data.small_floats(MAX_ELEMENTS)?),
        };
        Some(Small { dtype, dims, numbers })
    }

    pub(crate) fn ints(dtype: DType, dims: Vec<u64>, list: Vec<i64>) -> Small {
        Small { dtype, dims, numbers: Numbers::Ints(list) }
    }

    pub(crate) fn as_ints(&self) -> Option<&[i64]> {
        match &self.numbers {
            Numbers::Ints(list) => Some(list),
            Numbers::Floats(_) => None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match &self.numbers {
            Numbers::Ints(list) => list.len(),
            Numbers::Floats(list) => list.len(),
        }
    }

    /// The elements at these places, as a tensor of these dims.
    pub(crate) fn at(&self, dims: Vec<u64>, places: &[usize]) -> Option<Small> {
        let numbers = match &self.numbers {
            Numbers::Ints(list) => {
                Numbers::Ints(places.iter().map(|&i| list.get(i).copied()).collect::<Option<_>>()?)
            }
            Numbers::Floats(list) => {
                Numbers::Floats(places.iter().map(|&i| list.get(i).copied()).collect::<Option<_>>()?)
            }
        };
        Some(Small { dtype: self.dtype, dims, numbers })
    }

    /// The same elements in other dims.
    pub(crate) fn with_dims(&self, dims: Vec<u64>) -> Option<Small> {
        (count(&dims)? == self.len()).then(|| Small { dims, ..self.clone() })
    }

    /// The constant; `None` if an integer does not fit the element type.
    pub(crate) fn to_data(&self) -> Option<TensorData> {
        match &self.numbers {
            Numbers::Ints(list) => {
                let mut bytes = Vec::new();
                for &n in list {
                    push(self.dtype, n, &mut bytes)?;
                }
                TensorData::from_bytes(self.dtype, &self.dims, bytes).ok()
            }
            Numbers::Floats(list) => {
                let bytes: Vec<u8> = list.iter().flat_map(|v| v.to_le_bytes()).collect();
                let wide = TensorData::from_bytes(DType::F64, &self.dims, bytes).ok()?;
                let rounded = wide.converted(Conversion { to: self.dtype, clamp: false });
                TensorData::from_bytes(self.dtype, &self.dims, rounded.to_bytes().ok()?).ok()
            }
        }
    }
}

/// Adds the bytes of an integer of a type.
fn push(dtype: DType, n: i64, bytes: &mut Vec<u8>) -> Option<()> {
    match dtype {
        DType::I64 => bytes.extend(n.to_le_bytes()),
        DType::I32 => bytes.extend(i32::try_from(n).ok()?.to_le_bytes()),
        DType::I16 => bytes.extend(i16::try_from(n).ok()?.to_le_bytes()),
        DType::I8 => bytes.extend(i8::try_from(n).ok()?.to_le_bytes()),
        DType::U64 => bytes.extend(u64::try_from(n).ok()?.to_le_bytes()),
        DType::U32 => bytes.extend(u32::try_from(n).ok()?.to_le_bytes()),
        DType::U16 => bytes.extend(u16::try_from(n).ok()?.to_le_bytes()),
        DType::U8 => bytes.extend(u8::try_from(n).ok()?.to_le_bytes()),
        DType::Bool => bytes.push(u8::from(n != 0)),
        _ => return None,
    }
    Some(())
}

/// The number of elements of a small tensor of these dims; `None` if it is not small.
pub(crate) fn count(dims: &[u64]) -> Option<usize> {
    let n = dims.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim))?;
    (n <= MAX_ELEMENTS).then(|| usize::try_from(n).ok()).flatten()
}

/// The places in every axis of the elements of a tensor, in order.
pub(crate) fn each_place(dims: &[u64]) -> Option<Vec<Vec<u64>>> {
    let n = count(dims)?;
    let mut all = Vec::with_capacity(n);
    for mut i in 0..n as u64 {
        let mut place = vec![0; dims.len()];
        for (axis, &dim) in dims.iter().enumerate().rev() {
            (place[axis], i) = (i % dim, i / dim);
        }
        all.push(place);
    }
    Some(all)
}

/// The number of the element at a place.
pub(crate) fn number_of(place: &[u64], dims: &[u64]) -> usize {
    let number = place.iter().zip(dims).fold(0, |number, (&at, &dim)| number * dim + at);
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The elements of a tensor as it broadcasts to dims: their numbers, in order.
pub(crate) fn broadcast_to(from: &[u64], to: &[u64]) -> Option<Vec<usize>> {
    let lead = to.len().checked_sub(from.len())?;
    let fits = from.iter().zip(&to[lead..]).all(|(&a, &b)| a == b || a == 1);
    let places = each_place(to)?;
    let number = |place: &Vec<u64>| {
        let place: Vec<u64> =
            place[lead..].iter().zip(from).map(|(&at, &dim)| if dim == 1 { 0 } else { at }).collect();
        number_of(&place, from)
    };
    fits.then(|| places.iter().map(number).collect())
}

/// The dims that operands broadcast to.
pub(crate) fn broadcast_dims(all: &[&[u64]]) -> Option<Vec<u64>> {
    let rank = all.iter().map(|dims| dims.len()).max()?;
    let mut found = vec![1; rank];
    for dims in all {
        for (to, &dim) in found[rank - dims.len()..].iter_mut().zip(*dims) {
            match (*to, dim) {
                (_, 1) => {}
                (1, _) => *to = dim,
                (a, b) if a == b => {}
                _ => return None,
            }
        }
    }
    Some(found)
}
