//! Steps in which attributes become operands, get other names, or make implicit defaults explicit.

use super::super::cx::{At, Cx, Refused, refuse};
use ampc_ir::attr::AttrValue;
use ampc_ir::op::OpKind;
use ampc_ir::views::norm::BatchNormView;
use ampc_ir::views::{CastView, whole};
use ampc_ir::{DType, Node, TensorData, Type};

pub(in super::super) fn drop_consumed(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    cx.remove(node, "consumed_inputs");
    Ok(())
}

/// Below 25 a mask may be shorter than the keys, past keys included.
pub(in super::super) fn attention_25(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    const MASK: usize = 3;
    const PAST_KEY: usize = 4;
    if !cx.view(node).has(MASK) {
        return Ok(());
    }
    let extent = |i: usize, from_back: usize| {
        let dims = cx.dims(node, i)?;
        dims.get(dims.len().checked_sub(from_back)?)?.known()
    };
    let past = if cx.view(node).has(PAST_KEY) { extent(PAST_KEY, 2) } else { Some(0) };
    let keys = extent(1, 2).zip(past).and_then(|(new, past)| new.checked_add(past));
    if keys.is_some() && keys == extent(MASK, 1) {
        Ok(())
    } else {
        refuse("a mask that may be shorter than the keys")
    }
}

/// Version 6 trains unless `is_test` says otherwise, 7 to 13 train if there is more than one result.
pub(in super::super) fn batch_normalization_7(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    let trains = BatchNormView::read(&cx.view(node)).training;
    if trains != (cx.view(node).n_results() > 1) {
        let mode = if trains { "training with one result" } else { "inference with results of training" };
        return refuse(mode);
    }
    cx.remove(node, "is_test");
    Ok(())
}

/// From 9 on scale, bias, mean and variance are per channel.
pub(in super::super) fn batch_normalization_9(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    if !BatchNormView::read(&cx.view(node)).spatial {
        return refuse("mean and variance per element (`spatial` 0)");
    }
    cx.remove(node, "spatial");
    Ok(())
}

/// From 14 on there are no saved mean and variance, and an attribute replaces the number of results.
pub(in super::super) fn batch_normalization_14(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    if !BatchNormView::read(&cx.view(node)).training {
        return Ok(());
    }
    let results = cx.inserter.module.node(node).results().to_vec();
    if results.len() < 3 || results.iter().skip(3).flatten().any(|&v| cx.is_used(v)) {
        return refuse("training with other results than running mean and variance");
    }
    cx.inserter.module.truncate_results(node, 3);
    cx.set(node, "training_mode", AttrValue::Int(1));
    Ok(())
}

pub(in super::super) fn cast_6(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    let to = CastView::read(&cx.view(node)).map_err(|e| Refused(e.to_string()))?.to;
    let Some(to) = to else { return refuse("no element type") };
    cx.set(node, "to", AttrValue::Int(i64::from(to.number())));
    Ok(())
}

pub(in super::super) fn clip_11(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    for (slot, name) in [(1, "min"), (2, "max")] {
        let Some(AttrValue::Float(bound)) = cx.attr(node, name) else { continue };
        let Some(dtype) = cx.dtype(node, 0) else { return refuse("a bound of unknown element type") };
        let bound = cx.scalar(node, name, dtype, bound)?;
        cx.set_operand(node, slot, Some(bound));
        cx.remove(node, name);
    }
    Ok(())
}

/// Below 11 the text says that the odd pixel of automatic padding goes to the end unless `auto_pad` is SAME_UPPER,
/// from 11 on the opposite.
pub(in super::super) fn conv_transpose_11(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    let view = cx.view(node);
    let automatic = view.string("auto_pad").is_some_and(|s| s.starts_with("SAME"));
    if automatic || view.int_list("output_shape").is_some() {
        return refuse("automatic padding, whose odd pixel changed sides");
    }
    Ok(())
}

pub(in super::super) fn dft_20(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    let axis = cx.view(node).int("axis").unwrap_or(1);
    let axis = cx.constant(node, "axis", TensorData::from_i64(&[], &[axis]).expect("one element"));
    cx.set_operand(node, 2, Some(axis));
    cx.remove(node, "axis");
    Ok(())
}

/// Version 6 drops elements unless `is_test` says otherwise, 7 to 11 never do.
pub(in super::super) fn dropout_7(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    if cx.view(node).int("is_test").unwrap_or(0) == 0 {
        return refuse("training (`is_test` 0)");
    }
    cx.remove(node, "is_test");
    Ok(())
}

/// Readers of the mask as numbers read a cast of it.
pub(in super::super) fn dropout_10(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    let Some(mask) = cx.inserter.module.node(node).result(1) else { return Ok(()) };
    if cx.is_used(mask) {
        let Some(dtype) = cx.dtype(node, 0) else { return refuse("a mask of unknown element type") };
        let numbers = cx.add(At::After(node), OpKind::Cast, &[mask], &[("to", dtype.into())], "numbers")?;
        cx.take_over(mask, numbers, "bool");
    }
    let shape = cx.inserter.module.value(mask).ty.shape().cloned().unwrap_or_default();
    cx.inserter.module.set_type(mask, Type::tensor(DType::Bool, shape));
    Ok(())
}

/// The ratio is written for a later training of the model: without `training_mode` nothing is dropped. The mask
/// is true then; before 12 no text defines it (in ONNX Runtime it is false).
pub(in super::super) fn dropout_12(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    if cx.inserter.module.node(node).result(1).is_some_and(|mask| cx.is_used(mask)) {
        return refuse("a mask that is read and not drawn");
    }
    if let Some(AttrValue::Float(ratio)) = cx.attr(node, "ratio") {
        let ratio = cx.scalar(node, "ratio", DType::F32, ratio)?;
        cx.set_operand(node, 1, Some(ratio));
        cx.remove(node, "ratio");
    }
    Ok(())
}

pub(in super::super) fn grid_sample_20(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    let renamed = match cx.attr(node, "mode") {
        Some(AttrValue::String(mode)) if *mode == *b"bilinear" => "linear",
        Some(AttrValue::String(mode)) if *mode == *b"bicubic" => "cubic",
        _ => return Ok(()),
    };
    cx.set(node, "mode", AttrValue::String(renamed.as_bytes().into()));
    Ok(())
}

pub(in super::super) fn lp_pool_2(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    if let Some(AttrValue::Float(p)) = cx.attr(node, "p") {
        let Some(p) = whole(f64::from(p)) else { return refuse(format!("`p` {p}, which is not whole")) };
        cx.set(node, "p", AttrValue::Int(p));
    }
    let required = cx.view(node).schema.attr("kernel_shape").is_some();
    if required && cx.attr(node, "kernel_shape").is_none() {
        return refuse("no `kernel_shape`");
    }
    Ok(())
}

/// Below 11 a negative index is out of range and gives no 1.
pub(in super::super) fn one_hot_11(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    let view = cx.view(node);
    let unsigned = matches!(cx.dtype(node, 0), Some(DType::U8 | DType::U16 | DType::U32 | DType::U64));
    let known = view.known_ints(0).is_some_and(|list| list.iter().all(|&i| i >= 0));
    if unsigned || known { Ok(()) } else { refuse("indices that may be negative") }
}

pub(in super::super) fn pad_2(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    let Some(pads) = cx.attr(node, "paddings") else { return refuse("no `paddings`") };
    cx.remove(node, "paddings");
    cx.set(node, "pads", pads);
    Ok(())
}

pub(in super::super) fn pad_11(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    let Some(pads) = cx.attr(node, "pads") else { return refuse("no `pads`") };
    let value = match cx.attr(node, "value") {
        Some(AttrValue::Float(value)) if cx.view(node).string("mode") == Some("constant") => {
            let Some(dtype) = cx.dtype(node, 0) else { return refuse("a value of unknown element type") };
            Some(cx.scalar(node, "value", dtype, value)?)
        }
        _ => None,
    };
    let pads = cx.list(node, "pads", pads)?;
    cx.set_operand(node, 1, Some(pads));
    if value.is_some() {
        cx.set_operand(node, 2, value);
    }
    cx.remove(node, "pads");
    cx.remove(node, "value");
    Ok(())
}

pub(in super::super) fn quantize_linear_19(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    match cx.dtype(node, 0) {
        Some(DType::F32) => Ok(()),
        Some(other) => refuse(format!("an operand of {other} with a scale of f32")),
        None => refuse("an operand of unknown element type"),
    }
}

pub(in super::super) fn scatter_11(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    cx.rename(node, OpKind::ScatterElements)
}
