//! Rows of tensors: Scan slices tensors, and Loop and Scan stack them.

use crate::data::{Data, DataRef, ELEMENT_BYTES};
use crate::device::Rows;
use crate::host::{HostError, HostTensor, TensorRef, copy_of_string, list_of, pack};
use crate::kernel::{KernelError, check_size};
use crate::room::Room;
use crate::session::space::Space;
use ampc_ir::views::{Part, normalize_axis};
use ampc_ir::{DType, Type};

type Result<T> = std::result::Result<T, KernelError>;

/// The rows of results, collected per iteration.
pub(super) struct Stacks {
    rows: Vec<Vec<Data>>,
    bytes: u64,
    room: Room,
    most: u64,
}

impl Stacks {
    /// Collects `count` results, each of at most `most` bytes.
    pub(super) fn new(count: usize, most: u64) -> Stacks {
        Stacks { rows: vec![Vec::new(); count], bytes: 0, room: Room::of(most), most }
    }

    /// Adds the results of an iteration.
    pub(super) fn push(&mut self, made: impl Iterator<Item = Option<Data>>) -> Result<()> {
        for (rows, made) in self.rows.iter_mut().zip(made) {
            let Some(row) = made else { continue };
            self.bytes = self.bytes.saturating_add(row.view().byte_count() + ELEMENT_BYTES);
            self.room.push(rows, row)?;
        }
        self.check(0)
    }

    fn check(&self, more: u64) -> Result<()> {
        let bytes = self.bytes.saturating_add(more);
        check_size(bytes, self.most).map_err(|_| KernelError::Limit {
            limit: format!("{} bytes", self.most),
            found: format!("{bytes} bytes of iteration results"),
        })
    }

    /// The rows of result `i`, not stacked.
    pub(super) fn take(&mut self, i: usize) -> Vec<Data> {
        std::mem::take(&mut self.rows[i])
    }

    /// Stacks the rows of result `i` along a new axis. Without rows, the result is an empty tensor of this type.
    pub(super) fn stack(
        &mut self,
        space: &mut Space,
        i: usize,
        axis: i64,
        reversed: bool,
        row: &Type,
    ) -> Result<Data> {
        let mut rows = self.take(i);
        let bytes = rows.iter().map(|row| row.view().byte_count()).sum();
        self.check(bytes)?;
        if reversed {
            rows.reverse();
        }
        match rows.first() {
            Some(Data::Tensor(first)) => Ok(join(first, &rows, axis)?.into()),
            Some(first @ Data::Device(_)) => join_on_device(space, first.view(), &rows, axis),
            _ => no_rows(space, row),
        }
    }
}

/// An empty stack of rows of this type, whose unknown dims become 0.
fn no_rows(space: &mut Space, row: &Type) -> Result<Data> {
    let tensor =
        row.as_tensor().ok_or_else(|| KernelError::unsupported("lists of values other than tensors"))?;
    let inner = tensor.shape.dims().unwrap_or_default().iter().map(|d| d.known().unwrap_or(0));
    let dims: Vec<u64> = std::iter::once(0).chain(inner).collect();
    space.tensor(tensor.dtype, &dims)
}

/// A tensor of zeros of a type whose unknown dims become 0.
pub(super) fn empty(space: &mut Space, ty: &Type) -> Result<Data> {
    let tensor =
        ty.as_tensor().ok_or_else(|| KernelError::unsupported("lists of values other than tensors"))?;
    let dims = tensor.shape.dims().unwrap_or_default().iter().map(|d| d.known().unwrap_or(0));
    let zeros = HostTensor::zeros(tensor.dtype, &dims.collect::<Vec<u64>>())?;
    space.bring(DataRef::Tensor(zeros.view()))
}

/// The number of elements of a tensor before an axis, along it, and after it.
fn around(dims: &[u64], axis: usize) -> (usize, usize, usize) {
    let size = |dims: &[u64]| {
        dims.iter().map(|&d| usize::try_from(d).unwrap_or(usize::MAX)).fold(1, usize::saturating_mul)
    };
    (size(&dims[..axis]), size(&dims[axis..=axis]), size(&dims[axis + 1..]))
}

/// The slice at index `at` along an axis, without that axis.
pub(super) fn slice_at(space: &mut Space, data: DataRef<'_>, axis: usize, at: u64) -> Result<Data> {
    let tensor = match data {
        DataRef::Tensor(tensor) => return Ok(slice_on_host(tensor, axis, at)?.into()),
        DataRef::Device(tensor) => tensor,
        DataRef::Sequence(_) | DataRef::Optional(_) => {
            return Err(KernelError::value("a tensor", "another value"));
        }
    };
    let Some(size) = whole_bytes(tensor.dtype) else {
        return in_host_memory(space, data, |tensor| slice_on_host(tensor, axis, at));
    };
    let left: Vec<u64> =
        tensor.dims.iter().enumerate().filter(|&(i, _)| i != axis).map(|(_, &d)| d).collect();
    let (outer, extent, inner) = around(tensor.dims, axis);
    let made = space.tensor(tensor.dtype, &left)?;
    let (DataRef::Device(to), Some(queue)) = (made.view(), space.queue()) else { return Ok(made) };
    let len = inner * size;
    let first = usize::try_from(at).unwrap_or(usize::MAX).saturating_mul(len);
    let from = Rows { memory: tensor.span.memory, offset: tensor.span.offset + first, stride: extent * len };
    queue.copy(from, Rows { memory: to.span.memory, offset: to.span.offset, stride: len }, outer, len)?;
    Ok(made)
}

/// The size of an element in bytes; `None` for types smaller than a byte.
fn whole_bytes(dtype: DType) -> Option<usize> {
    dtype.bits().filter(|bits| bits.is_multiple_of(8)).map(|bits| bits as usize / 8)
}

/// The result of `work` on a host copy of a tensor.
fn in_host_memory(
    space: &mut Space,
    data: DataRef<'_>,
    work: impl FnOnce(TensorRef<'_>) -> Result<HostTensor>,
) -> Result<Data> {
    let copy = space.fetch(data)?;
    let tensor = copy.tensor().ok_or_else(|| KernelError::value("a tensor", "another value"))?;
    let made = work(tensor.view())?;
    space.bring(DataRef::Tensor(made.view()))
}

/// Stacks tensors like `first` along a new axis, on a device.
fn join_on_device(space: &mut Space, first: DataRef<'_>, rows: &[Data], axis: i64) -> Result<Data> {
    let Some((dtype, row)) = first.shape() else {
        return Err(KernelError::value("a tensor", "another value"));
    };
    let Some(size) = whole_bytes(dtype) else {
        let copies = rows.iter().map(|row| space.fetch(row.view())).collect::<Result<Vec<Data>>>()?;
        let first = copies.first().and_then(Data::tensor);
        let first = first.ok_or_else(|| KernelError::value("a tensor", "another value"))?;
        let joined = join(first, &copies, axis)?;
        return space.bring(DataRef::Tensor(joined.view()));
    };
    let axis = normalize_axis(axis, row.len() + 1, Part::Node)?;
    let mut dims = row.to_vec();
    dims.insert(axis, rows.len() as u64);
    let (outer, _, inner) = around(&dims, axis);
    let (len, stride) = (inner * size, inner * size * rows.len());
    let made = space.tensor(dtype, &dims)?;
    let (DataRef::Device(to), Some(queue)) = (made.view(), space.queue()) else { return Ok(made) };
    for (at, data) in rows.iter().enumerate() {
        let view = data.view();
        let same = view.shape() == Some((dtype, row));
        let (DataRef::Device(from), true) = (view, same) else { return Err(differs(row, view)) };
        let from = Rows { memory: from.span.memory, offset: from.span.offset, stride: len };
        let to = Rows { memory: to.span.memory, offset: to.span.offset + at * len, stride };
        queue.copy(from, to, outer, len)?;
    }
    Ok(made)
}

/// The error of an iteration whose row differs in type from the first.
fn differs(dims: &[u64], found: DataRef<'_>) -> KernelError {
    let found = found.shape().map_or_else(|| "something else".into(), |(_, dims)| format!("{dims:?}"));
    KernelError::value(format!("dims {dims:?} in every iteration"), found)
}

fn slice_on_host(tensor: TensorRef<'_>, axis: usize, at: u64) -> Result<HostTensor> {
    let dims = tensor.dims();
    let left: Vec<u64> = dims.iter().enumerate().filter(|&(i, _)| i != axis).map(|(_, &d)| d).collect();
    let (outer, extent, inner) = around(dims, axis);
    let at = usize::try_from(at).unwrap_or(usize::MAX);
    let ranges = (0..outer).map(|o| (o * extent + at) * inner..(o * extent + at + 1) * inner);
    if let Some(strings) = tensor.strings() {
        let mut picked = list_of(outer.saturating_mul(inner))?;
        for range in ranges {
            for string in &strings[range] {
                picked.push(copy_of_string(string)?);
            }
        }
        return Ok(HostTensor::from_strings(&left, picked)?);
    }
    let bytes = tensor.bytes().unwrap_or_default();
    let bits = tensor.dtype().bits().unwrap_or(8);
    let made = if bits.is_multiple_of(8) {
        let size = bits as usize / 8;
        HostTensor::filled(tensor.dtype(), &left, |to| {
            for (to, range) in to.chunks_exact_mut((inner * size).max(1)).zip(ranges) {
                to.copy_from_slice(&bytes[range.start * size..range.end * size]);
            }
            Ok::<(), HostError>(())
        })
    } else {
        let mut all = unpacked(tensor, outer * extent * inner)?;
        // In place: ranges ascend, so each moves towards the front and never overwrites a later range.
        let mut end = 0;
        for range in ranges {
            let n = range.len();
            all.copy_within(range, end);
            end += n;
        }
        let picked = &all[..end];
        HostTensor::filled(tensor.dtype(), &left, |to| {
            pack(bits, picked, to);
            Ok(())
        })
    };
    Ok(made?)
}

/// The elements of a tensor with elements smaller than a byte, unpacked to one per byte.
fn unpacked(tensor: TensorRef<'_>, n: usize) -> Result<Vec<u8>> {
    let mut elements = list_of(n)?;
    elements.resize(n, 0);
    tensor.unpack(&mut elements);
    Ok(elements)
}

/// Stacks tensors like `first` along a new axis.
fn join(first: &HostTensor, rows: &[Data], axis: i64) -> Result<HostTensor> {
    let axis = normalize_axis(axis, first.dims().len() + 1, Part::Node)?;
    let mut dims = first.dims().to_vec();
    dims.insert(axis, rows.len() as u64);
    let (outer, _, inner) = around(&dims, axis);
    let mut parts = list_of(rows.len())?;
    for row in rows {
        let same = row.tensor().filter(|t| t.dims() == first.dims() && t.dtype() == first.dtype());
        parts.push(same.ok_or_else(|| differs(first.dims(), row.view()))?);
    }
    if first.strings().is_some() {
        let mut strings: Vec<&[Box<[u8]>]> = list_of(parts.len())?;
        strings.extend(parts.iter().filter_map(|t| t.strings()));
        let mut all = list_of(outer.saturating_mul(inner).saturating_mul(parts.len()))?;
        for string in interleaved(&strings, outer, inner) {
            all.push(copy_of_string(string)?);
        }
        return Ok(HostTensor::from_strings(&dims, all)?);
    }
    let bits = first.dtype().bits().unwrap_or(8);
    let mut bytes: Vec<&[u8]> = list_of(parts.len())?;
    bytes.extend(parts.iter().filter_map(|t| t.bytes()));
    let made = if bits.is_multiple_of(8) {
        let inner = inner * (bits as usize / 8);
        HostTensor::filled(first.dtype(), &dims, |to| {
            let chunks = (0..outer).flat_map(|o| bytes.iter().map(move |part| (o, part)));
            for (to, (o, part)) in to.chunks_exact_mut(inner.max(1)).zip(chunks) {
                to.copy_from_slice(&part[o * inner..(o + 1) * inner]);
            }
            Ok::<(), HostError>(())
        })
    } else {
        let mut elements: Vec<Vec<u8>> = list_of(parts.len())?;
        for tensor in &parts {
            elements.push(unpacked(tensor.view(), outer * inner)?);
        }
        let mut slices: Vec<&[u8]> = list_of(parts.len())?;
        slices.extend(elements.iter().map(Vec::as_slice));
        let mut all: Vec<u8> = list_of(outer.saturating_mul(inner).saturating_mul(parts.len()))?;
        all.extend(interleaved(&slices, outer, inner).copied());
        HostTensor::filled(first.dtype(), &dims, |to| {
            pack(bits, &all, to);
            Ok(())
        })
    };
    Ok(made?)
}

/// `inner` elements of each part in turn, `outer` times.
fn interleaved<'a, T>(parts: &'a [&'a [T]], outer: usize, inner: usize) -> impl Iterator<Item = &'a T> {
    (0..outer).flat_map(move |o| parts.iter().flat_map(move |part| &part[o * inner..(o + 1) * inner]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slicing a tensor along each axis and stacking the slices gives the tensor again.
    #[test]
    fn slices_make_the_whole_again() {
        let dims = [2u64, 3, 4];
        let numbers: Vec<f32> = (0..24u8).map(f32::from).collect();
        let texts = (0..24).map(|i| i.to_string().into_bytes().into_boxed_slice()).collect();
        let mut packed = HostTensor::zeros(DType::U4, &dims).unwrap();
        let low: Vec<u8> = (0..24).map(|i| i * 7 % 16).collect();
        pack(4, &low, packed.bytes_mut().unwrap());
        let tensors = [
            HostTensor::from_slice(&dims, &numbers).unwrap(),
            HostTensor::from_strings(&dims, texts).unwrap(),
            packed,
        ];
        for whole in &tensors {
            for (axis, &extent) in dims.iter().enumerate() {
                let mut stacks = Stacks::new(1, u64::MAX);
                for at in 0..extent {
                    let slice = slice_at(&mut Space::Host, DataRef::Tensor(whole.view()), axis, at).unwrap();
                    stacks.push(std::iter::once(Some(slice))).unwrap();
                }
                let axis = i64::try_from(axis).unwrap();
                let Data::Tensor(again) =
                    stacks.stack(&mut Space::Host, 0, axis, false, &Type::Unknown).unwrap()
                else {
                    panic!("a tensor")
                };
                assert_eq!(again.dims(), whole.dims());
                assert_eq!((again.bytes(), again.strings()), (whole.bytes(), whole.strings()), "axis {axis}");
            }
        }
    }

    #[test]
    fn rows_and_the_stack_of_them_count() {
        let row = HostTensor::from_slice(&[2], &[1.0f32, 2.0]).unwrap();
        let most = 20 + 3 * ELEMENT_BYTES;
        let mut stacks = Stacks::new(1, most);
        let push = |stacks: &mut Stacks| stacks.push(std::iter::once(Some(row.clone().into())));
        push(&mut stacks).unwrap();
        push(&mut stacks).unwrap();
        assert!(push(&mut stacks).is_err(), "24 bytes of rows");
        let mut stacks = Stacks::new(1, 20 + 2 * ELEMENT_BYTES);
        push(&mut stacks).unwrap();
        push(&mut stacks).unwrap();
        assert!(
            stacks.stack(&mut Space::Host, 0, 0, false, &Type::Unknown).is_err(),
            "16 bytes of rows and 16 of the stack"
        );
    }
}
