//! Operators that change dims but not elements, or return dims as elements: Reshape, Squeeze, Flatten,
//! Identity, Shape, Size.

use crate::data::Data;
use crate::kernel::{KernelError, Prepare, Prepared, Result, Site};
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::{OpError, ShapeView};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Flatten | OpKind::Identity | OpKind::Reshape | OpKind::Squeeze | OpKind::Unsqueeze => same,
        OpKind::Shape => shape,
        OpKind::Size => size,
        _ => return None,
    })
}

/// The dims of operand 0 as elements, or the range from `start` to `end`.
fn shape(site: &Site<'_>) -> Result<Prepared> {
    let dims = site.dims(0)?;
    let (start, end) = ShapeView::read(&site.view, dims.len()).range;
    Ok(numbers(dims[start..end].iter().map(|&d| d as u64).collect()))
}

/// The number of elements of operand 0.
fn size(site: &Site<'_>) -> Result<Prepared> {
    Ok(numbers(vec![site.dims(0)?.iter().map(|&d| d as u64).product()]))
}

/// A kernel whose result is a list of sizes.
fn numbers(sizes: Vec<u64>) -> Prepared {
    Prepared::new(move |io| {
        for (y, &size) in io.out::<i64>(0)?.iter_mut().zip(&sizes) {
            *y = i64::try_from(size).map_err(|_| KernelError::value("a size that fits an i64", size))?;
        }
        Ok(())
    })
}

/// The elements of operand 0, shared if the result has no assigned place.
pub(super) fn same(site: &Site<'_>) -> Result<Prepared> {
    let is_tensor = site.view.operand_type(0).is_some_and(|t| t.as_tensor().is_some());
    let dims: Option<Vec<u64>> = site.result_dims(0).ok().map(|d| d.iter().map(|&d| d as u64).collect());
    let prepared = Prepared::new(move |io| {
        if !io.is_free(0) {
            let (from, to) = (io.bytes(0)?, io.out_bytes(0)?);
            if from.len() != to.len() {
                let (expected, found) = (to.len(), from.len());
                let error = OpError::operand(0, format!("{expected} bytes of elements"), found.to_string());
                return Err(error.into());
            }
            to.copy_from_slice(from);
            return Ok(());
        }
        let data = match (io.data(0)?.to_data()?, &dims) {
            (Data::Tensor(tensor), Some(dims)) => Data::Tensor(tensor.with_dims(dims)),
            (data, _) => data,
        };
        io.emit(0, data)
    });
    Ok(if is_tensor && site.dtype(0)? != DType::String { prepared.view() } else { prepared })
}
