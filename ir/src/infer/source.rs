//! Operators that make tensors from attributes and sizes alone: constants, ranges, random numbers.

use super::extents::{list_len, same_shape, shape_of_ints, shape_of_rank};
use super::inferred::Inferred;
use crate::attr::AttrValue;
use crate::dtype::DType;
use crate::int::Int;
use crate::tensor::TensorData;
use crate::ty::{Dim, Shape};
use crate::views::size::shape_error;
use crate::views::{MAX_INTS, NodeView, OpError, Part};

/// Constant: exactly one attribute has the value. The result of a sparse constant is a dense tensor.
pub(super) fn infer_constant(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let given: Vec<&AttrValue> = view.schema.attrs.iter().filter_map(|a| view.attr(a.name)).collect();
    let [value] = given.as_slice() else {
        if given.is_empty() && view.schema.attrs.iter().any(|a| view.is_unresolved(a.name)) {
            return Ok(());
        }
        return Err(OpError::node("one attribute with the value", given.len().to_string()));
    };
    let list = |n: usize| Shape::known(&[n as u64]);
    let (dtype, shape) = match value {
        AttrValue::Tensor(data) => (data.dtype(), data.shape()),
        AttrValue::SparseTensor(data) => (data.values.dtype(), Shape::known(&data.dims)),
        AttrValue::Float(_) => (DType::F32, Shape::scalar()),
        AttrValue::Floats(values) => (DType::F32, list(values.len())),
        AttrValue::Int(_) => (DType::I64, Shape::scalar()),
        AttrValue::Ints(values) => (DType::I64, list(values.len())),
        AttrValue::String(_) => (DType::String, Shape::scalar()),
        AttrValue::Strings(values) => (DType::String, list(values.len())),
        _ => return Err(OpError::node("an attribute with a tensor, numbers or strings", "another kind")),
    };
    // Attributes of a function's body are known here only.
    out.ints = match value {
        AttrValue::Int(n) => Some(vec![Int::Known(*n)]),
        AttrValue::Ints(list) if list.len() as u64 <= MAX_INTS => {
            Some(list.iter().copied().map(Int::Known).collect())
        }
        AttrValue::Tensor(data) if data.dims().len() <= 1 => {
            data.small_ints(MAX_INTS).map(|ints| ints.into_iter().map(Int::Known).collect())
        }
        _ => None,
    };
    out.tensor(0, dtype, shape);
    Ok(())
}

/// ConstantOfShape.
pub(super) fn infer_constant_of_shape(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let value = match view.attr("value") {
        Some(AttrValue::Tensor(data)) => Some(data),
        _ => None,
    };
    if let Some(data) = value.filter(|data| data.element_count() != 1) {
        return Err(OpError::attr("value", "one element", data.element_count().to_string()));
    }
    let dtype = value.map_or(DType::F32, |data| data.dtype());
    let len = list_len(view, 0)?;
    let Some(ints) = view.ints(0) else {
        out.tensor(0, dtype, shape_of_rank(len));
        return Ok(());
    };
    let shape = shape_of_ints(&ints, &Part::Operand(0))?;
    if let (Some(data), Some(rank @ (0 | 1))) = (value, shape.rank())
        && let Some(n) = shape.element_count().filter(|&n| rank == 0 || n <= MAX_INTS)
        && let Some([element]) = data.small_ints(1).as_deref()
    {
        out.ints = usize::try_from(n).ok().map(|n| vec![Int::Known(*element); n]);
    }
    out.tensor(0, dtype, shape);
    Ok(())
}

/// EyeLike.
pub(super) fn infer_eye_like(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let shape = match view.dims(0) {
        Some(dims) if dims.len() != 2 => return Err(shape_error(0, "rank 2", dims)),
        Some(_) => view.shape(0),
        None => Shape::of_rank(2),
    };
    like(view, out, shape)
}

/// Result 0 has the element type of attribute `dtype`, or of operand 0 without one.
fn like(view: &NodeView<'_>, out: &mut Inferred, shape: Shape) -> Result<(), OpError> {
    if let Some(dtype) = view.dtype_attr("dtype")?.or_else(|| view.dtype(0)) {
        out.tensor(0, dtype, shape);
    }
    Ok(())
}

/// RandomNormalLike, RandomUniformLike, Bernoulli.
pub(super) fn infer_random_like(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    like(view, out, view.shape(0))
}

/// RandomNormal, RandomUniform.
pub(super) fn infer_random(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let dtype = view.dtype_attr("dtype")?.unwrap_or(DType::F32);
    let shape = match view.int_list("shape") {
        None => Shape::unknown(),
        Some(dims) => {
            let ints: Vec<Int> = dims.iter().copied().map(Int::Known).collect();
            shape_of_ints(&ints, &Part::Attr("shape".into()))?
        }
    };
    out.tensor(0, dtype, shape);
    Ok(())
}

/// Multinomial.
pub(super) fn infer_multinomial(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let dtype = view.dtype_attr("dtype")?.unwrap_or(DType::I32);
    if !matches!(dtype, DType::I32 | DType::I64) {
        return Err(OpError::attr("dtype", "i32 or i64", dtype.to_string()));
    }
    let batch = match view.dims(0) {
        None => Dim::Unknown,
        Some([batch, _]) => *batch,
        Some(dims) => return Err(shape_error(0, "rank 2", dims)),
    };
    let size = view.int("sample_size").unwrap_or(1);
    let samples = u64::try_from(size)
        .map_err(|_| OpError::attr("sample_size", "a number of samples", size.to_string()))?;
    out.tensor(0, dtype, Shape::of([batch, Dim::Known(samples)]));
    Ok(())
}

/// Range.
pub(super) fn infer_range(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    for i in 0..3 {
        match view.dims(i) {
            None | Some([] | [Dim::Known(1) | Dim::Sym(_) | Dim::Unknown]) => {}
            Some(dims) => return Err(shape_error(i, "a number", dims)),
        }
    }
    let number = |i: usize| match view.ints(i).as_deref() {
        Some(&[n]) => n,
        _ => Int::Unknown,
    };
    let (start, limit, delta) = (number(0), number(1), number(2));
    let zero_step = || OpError::operand(2, "a step other than 0", "0");
    if delta == Int::Known(0) {
        return Err(zero_step());
    }
    let extent = match (start, limit, delta) {
        (Int::Known(start), Int::Known(limit), Int::Known(delta)) => {
            let (span, step) = (i128::from(limit) - i128::from(start), i128::from(delta));
            let count = ((span + step - step.signum()) / step).max(0);
            if u64::try_from(count).is_ok_and(|n| n <= MAX_INTS) {
                let elements = (0..count).map(|i| i64::try_from(i128::from(start) + i * step).ok());
                out.ints = elements.map(|n| n.map(Int::Known)).collect();
            }
            u64::try_from(count).map_or(Dim::Unknown, Dim::Known)
        }
        (Int::Known(0), Int::Sym(limit), Int::Known(1)) => Dim::Sym(limit),
        _ => float_range(view, zero_step)?,
    };
    out.shape(0, Shape::of([extent]));
    Ok(())
}

fn float_range(view: &NodeView<'_>, zero_step: impl Fn() -> OpError) -> Result<Dim, OpError> {
    let number = |i: usize| {
        let data: std::sync::Arc<TensorData> = view.constant(i)?;
        data.small_floats(1)?.first().copied()
    };
    let delta = number(2);
    if delta == Some(0.0) {
        return Err(zero_step());
    }
    let (Some(start), Some(limit), Some(delta)) = (number(0), number(1), delta) else {
        return Ok(Dim::Unknown);
    };
    let count = ((limit - start) / delta).ceil().max(0.0);
    let whole = if count.is_nan() { None } else { crate::views::whole(count) };
    Ok(whole.and_then(|n| u64::try_from(n).ok()).map_or(Dim::Unknown, Dim::Known))
}

/// DynamicQuantizeLinear.
pub(super) fn infer_dynamic_quantize(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    same_shape(view, out, 0);
    out.shape(1, Shape::scalar());
    out.shape(2, Shape::scalar());
    Ok(())
}
