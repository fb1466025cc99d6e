//! Sparse initializers as dense tensors, which is how ONNX Runtime reads them.
//!
//! `SparseTensorProto` has the elements that are not zero and their positions, in ascending order: an index
//! into the flattened tensor (`indices` of shape `[NNZ]`), or a coordinate per axis (`[NNZ, rank]`). All of
//! this is checked, and the size of the dense tensor is checked against a budget before memory is allocated.

use super::tensor::TensorIssue;
use ampc_ir::tensor::{SparseData, Storage};
use ampc_ir::{DType, TensorData};
use std::ops::ControlFlow;

/// The bytes that all sparse initializers of a model may take once they are dense.
pub(crate) const MAX_DENSE: u64 = 512 << 20;
/// The size of an empty string in a list of strings.
const STRING_BYTES: u64 = 16;

/// The dense tensor; its size is subtracted from `left`.
///
/// # Errors
/// If the indices are out of range for these dims or not in ascending order, or the tensor would take more than
/// `left`.
pub(crate) fn densified(sparse: &SparseData, left: &mut u64) -> Result<TensorData, TensorIssue> {
    let Extent { count, bytes, element, nnz } = extent(sparse, *left)?;
    *left -= bytes;
    let dtype = sparse.values.dtype();
    if dtype == DType::String {
        return strings(sparse, count, bytes);
    }
    let size = usize::try_from(element).unwrap_or(usize::MAX);
    let mut dense = Vec::new();
    let total = usize::try_from(bytes).unwrap_or(usize::MAX);
    dense.try_reserve_exact(total).map_err(|_| TensorIssue::NoMemory { bytes })?;
    dense.resize(total, 0u8);
    let values = sparse.values.to_bytes().map_err(|e| TensorIssue::Unreadable { reason: e.to_string() })?;
    let mut values = values.chunks_exact(size).take(nnz);
    positions(sparse, count, |at| {
        if let Some(value) = values.next() {
            dense[at * size..][..size].copy_from_slice(value);
        }
    })?;
    Ok(TensorData::from_bytes(dtype, &sparse.dims, dense).expect("as many bytes as type and dims take"))
}

/// Checks that [`densified`] can make a dense tensor; subtracts the size of that tensor from `left`.
///
/// # Errors
/// As [`densified`], but for memory.
pub(crate) fn check(sparse: &SparseData, left: &mut u64) -> Result<(), TensorIssue> {
    let Extent { count, bytes, .. } = extent(sparse, *left)?;
    *left -= bytes;
    positions(sparse, count, |_| ())
}

/// The size of a dense tensor.
struct Extent {
    /// Elements.
    count: u64,
    /// Bytes of all elements.
    bytes: u64,
    /// Bytes of one.
    element: u64,
    /// Elements that are given.
    nnz: usize,
}

/// The size of the dense tensor, at most `left`.
fn extent(sparse: &SparseData, left: u64) -> Result<Extent, TensorIssue> {
    let dtype = sparse.values.dtype();
    let element = match dtype.bits() {
        _ if dtype == DType::String => STRING_BYTES,
        Some(bits) if bits % 8 == 0 => u64::from(bits / 8),
        Some(_) | None => return Err(TensorIssue::SparseType { dtype }),
    };
    let count = sparse.dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
    let bytes = count.and_then(|count| count.checked_mul(element));
    let (Some(count), Some(bytes)) = (count, bytes.filter(|bytes| *bytes <= left)) else {
        return Err(TensorIssue::SparseTooLarge { dims: sparse.dims.to_vec(), limit: left });
    };
    Ok(Extent { count, bytes, element, nnz: nnz(sparse, count)? })
}

fn strings(sparse: &SparseData, count: u64, bytes: u64) -> Result<TensorData, TensorIssue> {
    let total = usize::try_from(count).unwrap_or(usize::MAX);
    let mut dense: Vec<Box<[u8]>> = Vec::new();
    dense.try_reserve_exact(total).map_err(|_| TensorIssue::NoMemory { bytes })?;
    dense.resize_with(total, Box::default);
    let Storage::Strings(values) = sparse.values.storage() else {
        return Err(TensorIssue::SparseType { dtype: DType::String });
    };
    let mut values = values.iter();
    positions(sparse, count, |at| {
        if let Some(value) = values.next() {
            dense[at].clone_from(value);
        }
    })?;
    let storage = Storage::Strings(dense.into());
    Ok(TensorData::new(DType::String, sparse.dims.iter().copied(), storage).expect("as many as dims take"))
}

/// The number of given elements, at most the number of elements.
fn nnz(sparse: &SparseData, count: u64) -> Result<usize, TensorIssue> {
    let wrong = || TensorIssue::SparseIndices {
        values: sparse.values.dims().to_vec(),
        dtype: sparse.indices.dtype(),
        indices: sparse.indices.dims().to_vec(),
    };
    let &[nnz] = sparse.values.dims() else { return Err(wrong()) };
    let fits = match *sparse.indices.dims() {
        [n] => n == nnz,
        [n, rank] => n == nnz && rank == sparse.dims.len() as u64 && rank > 0,
        _ => false,
    };
    if !fits || nnz > count || sparse.indices.dtype() != DType::I64 {
        return Err(wrong());
    }
    usize::try_from(nnz).map_err(|_| wrong())
}

/// Calls `visit` with the place of each element in the flattened tensor.
fn positions(sparse: &SparseData, count: u64, mut visit: impl FnMut(usize)) -> Result<(), TensorIssue> {
    let flat = [count];
    let extents: &[u64] = if sparse.indices.dims().len() == 2 { &sparse.dims } else { &flat };
    let (mut axis, mut at, mut before, mut wrong) = (0, 0u64, None, None);
    let read = sparse.indices.visit_stored(|chunk| {
        for index in chunk.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)) {
            let extent = extents[axis];
            let Some(known) = u64::try_from(index).ok().filter(|index| *index < extent) else {
                wrong = Some(TensorIssue::SparseRange { index, extent });
                return ControlFlow::Break(());
            };
            at = at * extent + known;
            axis += 1;
            if axis < extents.len() {
                continue;
            }
            if before.is_some_and(|before| before >= at) {
                wrong = Some(TensorIssue::SparseOrder { index: at });
                return ControlFlow::Break(());
            }
            visit(usize::try_from(at).unwrap_or(usize::MAX));
            (axis, before, at) = (0, Some(at), 0);
        }
        ControlFlow::Continue(())
    });
    read.map_err(|e| TensorIssue::Unreadable { reason: e.to_string() })?;
    wrong.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sparse(dims: &[u64], values: &[f32], shape: &[u64], indices: &[i64]) -> SparseData {
        SparseData {
            values: TensorData::from_f32(&[values.len() as u64], values).unwrap(),
            indices: TensorData::from_i64(shape, indices).unwrap(),
            dims: dims.iter().copied().collect(),
        }
    }

    fn dense(data: &SparseData) -> Result<Vec<f64>, String> {
        let mut left = 1000;
        let dense = densified(data, &mut left).map_err(|e| e.to_string())?;
        assert_eq!(left, 1000 - dense.byte_len());
        Ok(dense.small_floats(100).unwrap())
    }

    #[test]
    fn both_forms_of_indices() {
        let expected = Ok(vec![0.0, 1.0, 0.0, 0.0, 0.0, 2.0]);
        assert_eq!(dense(&sparse(&[2, 3], &[1.0, 2.0], &[2], &[1, 5])), expected);
        assert_eq!(dense(&sparse(&[2, 3], &[1.0, 2.0], &[2, 2], &[0, 1, 1, 2])), expected);
        assert_eq!(dense(&sparse(&[2], &[], &[0], &[])), Ok(vec![0.0, 0.0]));
    }

    #[test]
    fn what_is_no_sparse_tensor_is_refused() {
        for (data, said) in [
            (sparse(&[2, 3], &[1.0, 2.0], &[2], &[5, 1]), "ascending"),
            (sparse(&[2, 3], &[1.0, 2.0], &[2], &[1, 1]), "ascending"),
            (sparse(&[2, 3], &[1.0, 2.0], &[2, 2], &[1, 0, 0, 2]), "ascending"),
            (sparse(&[2, 3], &[1.0], &[1], &[6]), "index 6"),
            (sparse(&[2, 3], &[1.0], &[1], &[-1]), "index -1"),
            (sparse(&[2, 3], &[1.0], &[1, 2], &[0, 3]), "index 3"),
            (sparse(&[2, 3], &[1.0], &[1, 3], &[0, 1, 2]), "[1, 3]"),
            (sparse(&[2, 3], &[1.0], &[2], &[0, 1]), "[2]"),
            (sparse(&[1 << 40], &[1.0], &[1], &[0]), "1000 bytes"),
            (sparse(&[1 << 40, 1 << 40], &[1.0], &[1], &[0]), "1000 bytes"),
            (sparse(&[0], &[1.0], &[1], &[0]), "[1]"),
        ] {
            let message = dense(&data).unwrap_err();
            assert!(message.contains(said), "{message}");
        }
    }

    #[test]
    fn strings_are_empty_where_none_is_given() {
        let values = Storage::Strings([b"a".as_slice().into()].into());
        let data = SparseData {
            values: TensorData::new(DType::String, [1], values).unwrap(),
            indices: TensorData::from_i64(&[1], &[1]).unwrap(),
            dims: [3].into_iter().collect(),
        };
        let dense = densified(&data, &mut 1000).unwrap();
        let Storage::Strings(found) = dense.storage() else { panic!("{dense:?}") };
        assert_eq!(found.iter().map(|s| s.len()).collect::<Vec<_>>(), [0, 1, 0]);
    }
}
