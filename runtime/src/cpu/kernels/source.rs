//! Tensors made from attributes and sizes: Constant, ConstantOfShape, EyeLike, Range.

use super::lane::{Encoding, bits_of, encode};
use super::lanes::{Real, Wide, for_int};
use super::parallel::{PIECE, pieces};
use crate::host::{Element, HostTensor, copies_of_strings, copy_of_string};
use crate::kernel::{KernelError, Prepare, Prepared, Result, Site};
use ampc_ir::DType;
use ampc_ir::attr::AttrValue;
use ampc_ir::op::OpKind;
use ampc_ir::views::{OpError, constant_node_data};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Constant => constant,
        OpKind::ConstantOfShape => constant_of_shape,
        OpKind::EyeLike => eye_like,
        OpKind::Range => range,
        _ => return None,
    })
}

fn constant(site: &Site<'_>) -> Result<Prepared> {
    let value = match (
        site.view.attr("sparse_value"),
        site.view.attr("value_string"),
        site.view.attr("value_strings"),
    ) {
        (Some(AttrValue::SparseTensor(data)), ..) => HostTensor::from_sparse(data)?,
        (_, Some(AttrValue::String(text)), _) => HostTensor::from_strings(&[], vec![copy_of_string(text)?])?,
        (_, _, Some(AttrValue::Strings(texts))) => {
            HostTensor::from_strings(&[texts.len() as u64], copies_of_strings(texts)?)?
        }
        _ => {
            let data = constant_node_data(&site.view);
            HostTensor::from_data(
                &*data.ok_or_else(|| OpError::node("one attribute with the value", "none"))?,
            )?
        }
    };
    Ok(Prepared::new(move |io| match value.bytes() {
        Some(bytes) => {
            io.out_bytes(0)?.copy_from_slice(bytes);
            Ok(())
        }
        None => io.emit(0, value.clone()),
    }))
}

fn constant_of_shape(site: &Site<'_>) -> Result<Prepared> {
    let value = match site.view.attr("value") {
        Some(AttrValue::Tensor(data)) => HostTensor::from_data(data)?,
        _ => HostTensor::zeros(DType::F32, &[])?,
    };
    let dims = site.result_dims(0)?;
    let Some(element) = value.bytes() else {
        let dims: Vec<u64> = dims.iter().map(|&d| d as u64).collect();
        let text = value.strings().and_then(<[_]>::first).cloned().unwrap_or_default();
        return Ok(Prepared::new(move |io| {
            let count = dims.iter().product::<u64>();
            io.check_size(count.saturating_mul(text.len() as u64 + size_of::<Box<[u8]>>() as u64))?;
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            let texts = io.room().try_gathered((0..count).map(|_| Ok(copy_of_string(&text)?)))?;
            io.emit(0, HostTensor::from_strings(&dims, texts)?)
        }));
    };
    let bits = bits_of(value.dtype())?;
    let count: usize = dims.iter().product();
    let pattern =
        if bits < 8 { repeated(element.first().copied().unwrap_or(0), bits) } else { element.to_vec() };
    Ok(Prepared::new(move |io| {
        let to = io.out_bytes(0)?;
        pieces(to, PIECE * pattern.len(), |_, to| match pattern.as_slice() {
            [byte] => to.fill(*byte),
            _ if pattern.iter().all(|&b| b == 0) => to.fill(0),
            pattern => {
                to.chunks_mut(pattern.len()).for_each(|to| to.copy_from_slice(&pattern[..to.len()]));
            }
        });
        // The bits behind the last element are 0.
        let used = count * bits % 8;
        if let (Some(last), 1..) = (to.last_mut(), used) {
            *last &= u8::MAX >> (8 - used);
        }
        Ok(())
    }))
}

/// Whole bytes of one element of a few bits.
fn repeated(element: u8, bits: usize) -> Vec<u8> {
    let element = u32::from(element & (u8::MAX >> (8 - bits)));
    let (count, bytes) = if bits == 6 { (4, 3) } else { (8 / bits, 1) };
    let word = (0..count).fold(0, |word, i| word | element << (i * bits));
    word.to_le_bytes()[..bytes].to_vec()
}

/// Ones on the diagonal that is `k` to the right of the main one.
fn eye_like(site: &Site<'_>) -> Result<Prepared> {
    let (dims, dtype) = (site.result_dims(0)?, site.result_dtype(0)?);
    let k = site.view.int("k").unwrap_or(0);
    let [rows, columns] = dims[..] else {
        return Err(OpError::operand(0, "rank 2", format!("rank {}", dims.len())).into());
    };
    let bits = bits_of(dtype)?;
    if bits % 8 != 0 {
        return Err(site.no_kernel());
    }
    let mut one = vec![0; bits / 8];
    encode(&[1i64], Encoding::new(dtype), &mut one)?;
    let away = usize::try_from(k.unsigned_abs()).unwrap_or(usize::MAX);
    let (first_row, first_column) = if k < 0 { (away, 0) } else { (0, away) };
    let count = rows.saturating_sub(first_row).min(columns.saturating_sub(first_column));
    Ok(Prepared::new(move |io| {
        let to = io.out_bytes(0)?;
        to.fill(0);
        for i in 0..count {
            let at = ((first_row + i) * columns + first_column + i) * one.len();
            to[at..at + one.len()].copy_from_slice(&one);
        }
        Ok(())
    }))
}

/// start + i · delta.
fn range(site: &Site<'_>) -> Result<Prepared> {
    // Their number is in the shape that inference found.
    site.result_dims(0)?;
    let dtype = site.dtype(0)?;
    if dtype.is_integer() {
        return Ok(for_int!(dtype, site, T => Prepared::new(|io| {
            let (start, delta) = (number::<T>(io, 0)?, number::<T>(io, 2)?);
            let mut next = start;
            for y in io.out::<T>(0)? {
                *y = next;
                next = next.wrapping_add(delta);
            }
            Ok(())
        })));
    }
    // The type to compute in, where elements are of 16 bits.
    let in_f64 = site.view.int("stash_type") == Some(i64::from(DType::F64.number()));
    Ok(match dtype {
        DType::F32 => float_range::<f32, f32>(|x| x),
        DType::F64 => float_range::<f64, f64>(|x| x),
        DType::F16 if in_f64 => float_range::<half::f16, f64>(Real::round_f64),
        DType::F16 => float_range::<half::f16, f32>(Real::round),
        DType::BF16 if in_f64 => float_range::<half::bf16, f64>(Real::round_f64),
        DType::BF16 => float_range::<half::bf16, f32>(Real::round),
        _ => return Err(site.no_kernel()),
    })
}

fn float_range<T: Real, W: Wide>(round: fn(W) -> T) -> Prepared {
    Prepared::new(move |io| {
        let wide = |x: T| W::of(x.wide().to());
        let (start, delta) = (wide(number::<T>(io, 0)?), wide(number::<T>(io, 2)?));
        pieces(io.out::<T>(0)?, PIECE, |at, to| {
            #[expect(clippy::cast_precision_loss, reason = "indices are rounded as any number")]
            to.iter_mut().enumerate().for_each(|(i, y)| *y = round(start + W::of((at + i) as f64) * delta));
        });
        Ok(())
    })
}

fn number<T: Element>(io: &crate::kernel::Io<'_>, i: usize) -> Result<T> {
    let first = io.slice::<T>(i)?.first().copied();
    first.ok_or_else(|| KernelError::from(OpError::operand(i, "a number", "no elements")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_of_a_few_bits_fill_bytes() {
        assert_eq!(repeated(0xfa, 4), [0xaa]);
        assert_eq!(repeated(0b01, 2), [0b0101_0101]);
        assert_eq!(repeated(0b10_0001, 6), [0b0110_0001, 0b0001_1000, 0b1000_0110]);
    }
}
