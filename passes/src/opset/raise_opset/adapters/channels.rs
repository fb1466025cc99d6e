//! Steps of operators with numbers for channels: norms, and ImageScaler.

use super::super::cx::{At, Cx, Refused, refuse};
use ampc_ir::attr::AttrValue;
use ampc_ir::op::OpKind;
use ampc_ir::views::image::ImageScalerView;
use ampc_ir::views::norm::ChannelNormView;
use ampc_ir::{DType, Dim, Node, TensorData, Value};

/// Below 17, in ONNX Runtime's form, scale, bias and result may have another type than the operand; from 17 on all have
/// one type.
pub(in super::super) fn layer_normalization_17(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    let (Some(x), Some(scale)) = (cx.dtype(node, 0), cx.dtype(node, 1)) else {
        return refuse("operands of unknown element type");
    };
    if x == scale { Ok(()) } else { refuse(format!("an operand of {x} with a scale of {scale}")) }
}

/// From 21 on there is a scale and a bias for each channel instead of each group. Statistics, which are of the operand's
/// type before, are fp32 from 21 on unless `stash_type` says otherwise; only for f64 would that be less precise.
pub(in super::super) fn group_normalization_21(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    let groups = ChannelNormView::read(&cx.view(node)).map_err(|e| Refused(e.to_string()))?.groups;
    let Some(groups) = groups else { return refuse("no groups") };
    match cx.dtype(node, 0) {
        Some(DType::F64) => cx.set(node, "stash_type", AttrValue::Int(i64::from(DType::F64.number()))),
        Some(_) => {}
        None => return refuse("an operand of unknown element type"),
    }
    let channels = cx.dims(node, 0).and_then(|dims| dims.get(1).copied());
    if channels == Some(Dim::Known(groups)) {
        return Ok(());
    }
    let shape = match channels {
        Some(Dim::Known(channels)) => {
            let each = i64::try_from(channels / groups).map_err(|_| Refused("too many channels".into()))?;
            cx.ints(node, "repeats", &[1, each])
        }
        _ => repeats(cx, node, groups)?,
    };
    for slot in [1, 2] {
        let Some(value) = cx.inserter.module.node(node).operand(slot) else { continue };
        let column = cx.ints(node, "axis", &[1]);
        let column = cx.add(At::Before(node), OpKind::Unsqueeze, &[value, column], &[], "column")?;
        let rows = cx.add(At::Before(node), OpKind::Expand, &[column, shape], &[], "rows")?;
        let flat = cx.ints(node, "flat", &[-1]);
        let flat = cx.add(At::Before(node), OpKind::Reshape, &[rows, flat], &[], "channels")?;
        cx.set_operand(node, slot, Some(flat));
    }
    Ok(())
}

/// Nodes that compute `[1, channels of a group]`, for a number of channels that is not known before the graph runs.
fn repeats(cx: &mut Cx<'_>, node: Node, groups: u64) -> Result<Value, Refused> {
    let Some(x) = cx.inserter.module.node(node).operand(0) else { return refuse("no operand") };
    let groups = i64::try_from(groups).map_err(|_| Refused("too many groups".into()))?;
    let axis = [("start", AttrValue::Int(1)), ("end", AttrValue::Int(2))];
    let channels = cx.add(At::Before(node), OpKind::Shape, &[x], &axis, "number")?;
    let groups = cx.ints(node, "groups", &[groups]);
    let each = cx.add(At::Before(node), OpKind::Div, &[channels, groups], &[], "each")?;
    let one = cx.ints(node, "axis", &[1]);
    let axis = [("axis", AttrValue::Int(0))];
    cx.add(At::Before(node), OpKind::Concat, &[one, each], &axis, "repeats")
}

/// ONNX Runtime computes `scale · x + bias` in fp32 whatever the type, and rounds once: an operand of 16 bits is cast to
/// fp32, and the sum back.
pub(in super::super) fn image_scaler_10(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    let ImageScalerView { scale, bias } =
        ImageScalerView::read(&cx.view(node)).map_err(|e| Refused(e.to_string()))?;
    let bias = bias.to_vec();
    let (Some(dtype), Some(x)) = (cx.dtype(node, 0), cx.inserter.module.node(node).operand(0)) else {
        return refuse("an operand of unknown element type");
    };
    let (x, wide) = match dtype {
        DType::F32 | DType::F64 => (x, dtype),
        _ => (cast(cx, At::Before(node), x, DType::F32, "wide")?, DType::F32),
    };
    let scale = cx.scalar(node, "scale", wide, scale)?;
    let bias = per_channel(cx, node, wide, &bias);
    let scaled = cx.add(At::Before(node), OpKind::Mul, &[x, scale], &[], "scaled")?;
    cx.remove(node, "scale");
    cx.remove(node, "bias");
    cx.rename(node, OpKind::Add)?;
    cx.inserter.module.set_formal_operands(node, &[Some(scaled), Some(bias)]);
    if wide != dtype {
        let y = cx.inserter.module.node(node).result(0).expect("it has one result");
        let back = cast(cx, At::After(node), y, dtype, "back")?;
        cx.take_over(y, back, "sum");
    }
    Ok(())
}

/// A constant with one element for each channel of images.
fn per_channel(cx: &mut Cx<'_>, node: Node, dtype: DType, list: &[f32]) -> Value {
    let dims = [list.len() as u64, 1, 1];
    let bytes: Vec<u8> = match dtype {
        DType::F64 => list.iter().flat_map(|&x| f64::from(x).to_le_bytes()).collect(),
        _ => list.iter().flat_map(|x| x.to_le_bytes()).collect(),
    };
    let dtype = if dtype == DType::F64 { dtype } else { DType::F32 };
    let data = TensorData::from_bytes(dtype, &dims, bytes).expect("as many values as elements");
    cx.constant(node, "bias", data)
}

fn cast(cx: &mut Cx<'_>, at: At, value: Value, to: DType, what: &'static str) -> Result<Value, Refused> {
    cx.add(at, OpKind::Cast, &[value], &[("to", to.into())], what)
}
