//! Tensors made from sizes and numbers: ConstantOfShape, EyeLike, Range, Size.

use super::stage::{Place, Scratch, Source, staged};
use super::{Maker, Prepare, uploaded};
use crate::cuda::text::Elem;
use crate::host::HostTensor;
use crate::kernel::{Prepared, Result};
use ampc_ir::DType;
use ampc_ir::attr::AttrValue;
use ampc_ir::op::OpKind;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::ConstantOfShape => constant_of_shape,
        OpKind::EyeLike => eye_like,
        OpKind::Range => range,
        OpKind::Size => size,
        _ => return None,
    })
}

fn size(maker: &Maker<'_>) -> Result<Prepared> {
    let n: usize = maker.site.dims(0)?.iter().product();
    let made = HostTensor::from_slice(&[], &[i64::try_from(n).unwrap_or(i64::MAX)])?;
    Ok(uploaded(vec![Some(made.into())]))
}

fn constant_of_shape(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let value = match site.view.attr("value") {
        Some(AttrValue::Tensor(data)) => HostTensor::from_data(data)?,
        _ => HostTensor::zeros(DType::F32, &[])?,
    };
    let elem = Elem::raw(value.dtype()).ok_or_else(|| site.no_kernel())?;
    let bytes = value.bytes().filter(|bytes| bytes.len() == elem.bytes()).ok_or_else(|| site.no_kernel())?;
    let mut bits = [0; 8];
    bits[..bytes.len()].copy_from_slice(bytes);
    let n: usize = site.result_dims(0)?.iter().product();
    let mut source = Source::new(n);
    source.to("y", elem, Place::result(0));
    source.signed("bits", i64::from_le_bytes(bits));
    let body = format!("y[i] = ({})bits;", elem.stored());
    Ok(staged(vec![source.each(maker, n, &body)?], &Scratch::default()))
}

/// Ones on diagonal `k`, counted to the right of the main diagonal.
fn eye_like(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let elem = Elem::number(site.result_dtype(0)?).ok_or_else(|| site.no_kernel())?;
    let dims = site.result_dims(0)?;
    let n: usize = dims.iter().product();
    let mut source = Source::new(n);
    source.to("y", elem, Place::result(0));
    source.number("columns", dims.last().copied().unwrap_or(1));
    source.signed("k", site.view.int("k").unwrap_or(0).clamp(-(1 << 62), 1 << 62));
    let body = format!(
        "y[i] = (i64)(i % columns) - (i64)(i / columns) == k ? {} : {};",
        elem.store("1"),
        elem.store("0")
    );
    Ok(staged(vec![source.each(maker, n, &body)?], &Scratch::default()))
}

/// `start + i · delta`; the shape that inference computed has their count.
fn range(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let n: usize = site.result_dims(0)?.iter().product();
    let elem = maker.number(0)?;
    let in_f64 = site.view.int("stash_type") == Some(i64::from(DType::F64.number()));
    let formula = match elem {
        Elem::Bool => return Err(site.no_kernel()),
        // An f64 intermediate would round twice.
        Elem::F16 | Elem::BF16 if in_f64 => return Err(site.no_kernel()),
        Elem::F64 => "start + (double)i * delta",
        elem if elem.is_float() => "start + (float)i * delta",
        // Integers wrap.
        _ => "(u64)start + (u64)i * (u64)delta",
    };
    let mut source = Source::new(n);
    source.from("starts", elem, Place::operand(0));
    source.from("deltas", elem, Place::operand(2));
    source.to("y", elem, Place::result(0));
    source.local(&format!(
        "const {0} start = {1}, delta = {2};",
        elem.wide(),
        elem.load("starts[0]"),
        elem.load("deltas[0]")
    ));
    let body = format!("y[i] = {};", elem.store(formula));
    Ok(staged(vec![source.each(maker, n, &body)?], &Scratch::default()))
}
