//! Operators that move elements: views, Shape, Gather, OneHot, Concat.

use super::{Maker, Prepare, around, is_tensor, uploaded, wide};
use crate::cuda::launch::{Args, Kernel, THREADS, blocks_for, operand, queue, result};
use crate::cuda::text::{Elem, FAIL, HEAD};
use crate::data::Data;
use crate::device::{DeviceTensor, Rows};
use crate::host::HostTensor;
use crate::kernel::{KernelError, Prepared, Result};
use ampc_ir::op::OpKind;
use ampc_ir::views::{ConcatView, ShapeView};
use ampc_ir::views::{Part, normalize_axis};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Flatten | OpKind::Identity | OpKind::Reshape | OpKind::Squeeze | OpKind::Unsqueeze => same,
        OpKind::Shape => shape,
        OpKind::Gather => gather,
        OpKind::OneHot => one_hot,
        OpKind::Concat => concat,
        _ => return None,
    })
}

/// The bytes of operand 0.
pub(super) fn same(maker: &Maker<'_>) -> Result<Prepared> {
    if !is_tensor(maker.site.view.operand_type(0)) {
        return Err(maker.site.no_kernel());
    }
    let (dtype, dims) = (maker.site.result_dtype(0)?, wide(&maker.site.result_dims(0)?));
    let prepared = Prepared::new(move |io| {
        let from = io.on_device(0)?.span;
        if io.is_free(0) {
            return io.emit(0, Data::Device(DeviceTensor::of(dtype, dims.clone(), from)));
        }
        let to = io.out_on_device(0)?;
        let len = to.len;
        let from = Rows { memory: from.memory, offset: from.offset, stride: len };
        Ok(io.queue()?.copy(from, Rows { memory: to.memory, offset: to.offset, stride: len }, 1, len)?)
    });
    Ok(prepared.view())
}

fn shape(maker: &Maker<'_>) -> Result<Prepared> {
    let dims = maker.site.dims(0)?;
    let (start, end) = ShapeView::read(&maker.site.view, dims.len()).range;
    let numbers: Vec<i64> = dims[start..end].iter().map(|&n| i64::try_from(n).unwrap_or(i64::MAX)).collect();
    let made = HostTensor::from_slice(&[numbers.len() as u64], &numbers)?;
    Ok(uploaded(vec![Some(made.into())]))
}

fn gather(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let elem = Elem::raw(site.dtype(0)?).ok_or_else(|| site.no_kernel())?;
    let index = maker.number(1)?;
    if !matches!(index, Elem::I64 | Elem::I32) {
        return Err(site.no_kernel());
    }
    let dims = site.dims(0)?;
    let axis = normalize_axis(site.view.int("axis").unwrap_or(0), dims.len(), Part::Attr("axis".into()))?;
    let [before, along, behind] = around(&dims, axis);
    let indices: usize = site.dims(1)?.iter().product();
    let n = before * indices * behind;
    let text = format!(
        "{HEAD}{FAIL}extern \"C\" __global__ void run(u64 n, const {elem}* x, const {index}* index, {elem}* y, u64* failure, u64 name) {{
  for (u64 i = first(); i < n; i += step()) {{
    i64 found = index[i / {behind}u % {indices}u], at = found < 0 ? found + {along} : found;
    if (at < 0 || at >= {along}) {{ fail(failure, name, found); y[i] = 0; continue; }}
    y[i] = x[(i / {block}u * {along}u + at) * {behind}u + i % {behind}u];
  }}
}}
",
        elem = elem.stored(),
        index = index.stored(),
        block = indices * behind,
    );
    let kernel = Kernel::new(maker.shared, &text, blocks_for(n), THREADS)?;
    let message = maker.shared.compiler.expects(format!("an index in [-{along}, {along})"));
    Ok(Prepared::new(move |io| {
        let mut args = Args::from_slice(&[n as u64, operand(io, 0)?, operand(io, 1)?, result(io, 0)?]);
        let queue = queue(io)?;
        args.extend(queue.failure(message));
        kernel.launch(queue, &args)
    }))
}

fn one_hot(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let elem = Elem::raw(site.dtype(2)?).ok_or_else(|| site.no_kernel())?;
    let index = maker.number(0)?;
    if !matches!(index, Elem::I64 | Elem::I32) {
        return Err(site.no_kernel());
    }
    let dims = site.result_dims(0)?;
    let axis = normalize_axis(site.view.int("axis").unwrap_or(-1), dims.len(), Part::Attr("axis".into()))?;
    let [before, depth, behind] = around(&dims, axis);
    let n = before * depth * behind;
    let text = format!(
        "{HEAD}extern \"C\" __global__ void run(u64 n, const {index}* index, const {elem}* values, {elem}* y) {{
  for (u64 i = first(); i < n; i += step()) {{
    i64 found = index[i / {block}u * {behind}u + i % {behind}u];
    if (found < 0) found += {depth};
    y[i] = values[found == (i64)(i / {behind}u % {depth}u) ? 1 : 0];
  }}
}}
",
        elem = elem.stored(),
        index = index.stored(),
        block = depth * behind,
    );
    let kernel = Kernel::new(maker.shared, &text, blocks_for(n), THREADS)?;
    Ok(Prepared::new(move |io| {
        let args = [n as u64, operand(io, 0)?, operand(io, 2)?, result(io, 0)?];
        kernel.launch(queue(io)?, &args)
    }))
}

/// Concat copies the rows of each operand.
fn concat(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let bytes = Elem::raw(site.dtype(0)?).ok_or_else(|| site.no_kernel())?.bytes();
    let dims = site.result_dims(0)?;
    let axis = normalize_axis(ConcatView::read(&site.view)?.axis, dims.len(), Part::Attr("axis".into()))?;
    let [before, along, behind] = around(&dims, axis);
    let mut lens = Vec::new();
    for i in 0..site.view.n_operands() {
        lens.push(site.dims(i)?.get(axis).copied().ok_or(KernelError::NotYet)? * behind * bytes);
    }
    let stride = along * behind * bytes;
    Ok(Prepared::new(move |io| {
        let mut start = 0;
        for (i, &len) in lens.iter().enumerate() {
            let (from, to) = (io.on_device(i)?.span, io.out_on_device(0)?);
            let from = Rows { memory: from.memory, offset: from.offset, stride: len };
            let to = Rows { memory: to.memory, offset: to.offset + start, stride };
            io.queue()?.copy(from, to, before, len)?;
            start += len;
        }
        Ok(())
    }))
}
