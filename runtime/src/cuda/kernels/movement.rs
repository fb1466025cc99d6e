//! Operators that move elements: views, Shape, Gather, OneHot, Concat.

use super::indexing::{axis_of, range_of};
use super::stage::{Place, Scratch, Source, staged};
use super::{Maker, Prepare, around, is_tensor, signed, uploaded, wide};
use crate::cuda::elements::VECTORS;
use crate::cuda::launch::{THREADS, blocks_for};
use crate::cuda::text::Elem;
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
        OpKind::Flatten | OpKind::Identity | OpKind::Reshape | OpKind::Squeeze | OpKind::Unsqueeze => {
            identity
        }
        OpKind::Shape => shape,
        OpKind::Gather => gather,
        OpKind::OneHot => one_hot,
        OpKind::Concat => concat,
        _ => return None,
    })
}

/// Copies the bytes of operand 0.
pub(super) fn identity(maker: &Maker<'_>) -> Result<Prepared> {
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

/// Each thread copies 16 bytes if rows and addresses are multiples of 16 bytes, else one element.
fn gather(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let (elem, index) = (maker.raw(0)?, maker.index(1)?);
    let dims = site.dims(0)?;
    let axis = axis_of(maker, 0, dims.len())?;
    let [before, along, behind] = around(&dims, axis);
    let indices: usize = site.dims(1)?.iter().product();
    let n = before * indices * behind;
    let lanes = 16 / elem.bytes();
    let mut source = Source::new(n.max(dims.iter().product()));
    source.function(VECTORS);
    let at = source.index;
    source.function(&format!(
        "typedef {elem} S;
template <int V> __device__ __forceinline__ void gathered(u64 n, {at} columns, {at} indices, i64 along, const S* x, const {index}* index, S* y, u64* failure, u64 name) {{
  for (u64 flat = first(); flat < n / V; flat += step()) {{
    {at} i = flat, row = i / columns, column = i % columns;
    i64 found = index[row % indices], j = found < 0 ? found + along : found;
    Vector<S, V> moved;
    if (j < 0 || j >= along) {{
      fail(failure, name, found);
      #pragma unroll
      for (int k = 0; k < V; k++) moved.at[k] = 0;
    }} else {{
      moved = load<V>(x + (((u64)(row / indices) * along + j) * columns + column) * V);
    }}
    store(y + (u64)i * V, moved);
  }}
}}
",
        elem = elem.stored(),
        index = index.stored(),
    ));
    source.from("x", elem, Place::operand(0));
    source.from("index", index, Place::operand(1));
    source.to("y", elem, Place::result(0));
    source.number("n", n);
    source.number("indices", indices);
    source.number("behind", behind);
    source.signed("along", signed(along));
    source.fails(maker, range_of(along));
    let args = "indices, along, x, index, y, failure, name";
    let body = format!(
        "  if (behind % {lanes} == 0 && (((u64)x | (u64)y) & 15) == 0) gathered<{lanes}>(n, behind / {lanes}, {args});
  else gathered<1>(n, behind, {args});"
    );
    let threads = if behind.is_multiple_of(lanes) { n / lanes } else { n };
    let stage = source.launch(maker, &body, [blocks_for(threads), THREADS as usize])?;
    Ok(staged(vec![stage], &Scratch::default()))
}

fn one_hot(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let (elem, index) = (maker.raw(2)?, maker.index(0)?);
    let dims = site.result_dims(0)?;
    let [_, depth, behind] = around(&dims, axis_of(maker, -1, dims.len())?);
    let n: usize = dims.iter().product();
    let mut source = Source::new(n);
    source.from("index", index, Place::operand(0));
    source.from("values", elem, Place::operand(2));
    source.to("y", elem, Place::result(0));
    source.number("depth", depth);
    source.number("behind", behind);
    let body = format!(
        "{at} row = i / behind, class_ = row % depth;
    i64 found = index[row / depth * behind + i % behind];
    if (found < 0) found += depth;
    y[i] = values[found == (i64)class_ ? 1 : 0];",
        at = source.index
    );
    Ok(staged(vec![source.each(maker, n, &body)?], &Scratch::default()))
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
