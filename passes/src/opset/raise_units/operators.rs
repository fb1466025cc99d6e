//! The operators that replace units: operands and attributes.

use crate::analysis::units::{Kind, Unit};
use ampc_ir::attr::AttrValue;
use ampc_ir::convert::Conversion;
use ampc_ir::op::OpKind;
use ampc_ir::views::{constant_of, resolve_captures};
use ampc_ir::{DType, Dim, InsertError, Inserter, NodeSpec, TensorData, Value};

/// Inserts the operator of a unit; `None` if dims that it needs are unknown.
pub(super) fn insert(
    inserter: &mut Inserter<'_>,
    operator: OpKind,
    unit: &Unit,
    x: Value,
) -> Result<Option<Value>, InsertError> {
    let spec = NodeSpec::new(operator, &[x]);
    let spec = match unit.kind {
        Kind::LayerNorm | Kind::RmsNorm => layer(inserter, spec, unit, x),
        Kind::InstanceNorm | Kind::GroupNorm => channels(inserter, spec, unit, x)?,
        Kind::Softmax | Kind::LogSoftmax => softmax(inserter, spec, unit, x),
        Kind::Gelu => Some(spec.attr("approximate", text("none"))),
        Kind::GeluTanh => Some(spec.attr("approximate", text("tanh"))),
        Kind::QuickGelu | Kind::Swish => Some(spec.attr("alpha", to_f32(unit.alpha.unwrap_or(1.0)))),
        Kind::Mish | Kind::HardSwish => Some(spec),
        Kind::LogSumExp | Kind::Rotary | Kind::RotaryInterleaved => None,
    };
    let Some(spec) = spec else { return Ok(None) };
    let [made] = inserter.insert(spec)?;
    Ok(Some(made))
}

fn dims_of(inserter: &Inserter<'_>, value: Value) -> Option<Vec<Dim>> {
    Some(inserter.module.value(value).ty.shape()?.dims()?.to_vec())
}

/// The attributes `epsilon` and `stash_type` of a norm.
fn norm(spec: NodeSpec, unit: &Unit) -> NodeSpec {
    let spec = spec.attr("epsilon", to_f32(unit.epsilon.unwrap_or(0.0)));
    let stashes = unit.kind != Kind::InstanceNorm;
    if stashes { spec.attr("stash_type", i64::from(DType::F32.number())) } else { spec }
}

fn layer(inserter: &mut Inserter<'_>, spec: NodeSpec, unit: &Unit, x: Value) -> Option<NodeSpec> {
    let dims = dims_of(inserter, x)?;
    let first = *unit.axes.first()?;
    let scale = match unit.scale {
        Some(scale) => scale,
        None => ones(inserter, dims.get(first..)?)?,
    };
    let mut operands = vec![Some(x), Some(scale)];
    operands.extend(unit.bias.map(Some));
    Some(norm(spec.operands(&operands).attr("axis", from_back(first, dims.len())?), unit))
}

fn channels(
    inserter: &mut Inserter<'_>,
    spec: NodeSpec,
    unit: &Unit,
    x: Value,
) -> Result<Option<NodeSpec>, InsertError> {
    let Some(&channels) = dims_of(inserter, x).as_ref().and_then(|dims| dims.get(1)) else { return Ok(None) };
    let scale = match unit.scale {
        Some(scale) => Some(flattened(inserter, "scale", scale)?),
        None => ones(inserter, &[channels]),
    };
    let bias = match unit.bias {
        Some(bias) => Some(flattened(inserter, "bias", bias)?),
        None => zeros(inserter, channels),
    };
    let (Some(scale), Some(bias)) = (scale, bias) else { return Ok(None) };
    let spec = norm(spec.operands(&[Some(x), Some(scale), Some(bias)]), unit);
    Ok(match unit.groups {
        Some(groups) => i64::try_from(groups).ok().map(|groups| spec.attr("num_groups", groups)),
        None => Some(spec),
    })
}

fn softmax(inserter: &Inserter<'_>, spec: NodeSpec, unit: &Unit, x: Value) -> Option<NodeSpec> {
    let &[axis] = &unit.axes[..] else { return None };
    Some(spec.attr("axis", from_back(axis, dims_of(inserter, x)?.len())?))
}

fn text(word: &str) -> AttrValue {
    AttrValue::String(word.as_bytes().into())
}

#[expect(clippy::cast_possible_truncation, reason = "attributes are f32, as the constants were")]
fn to_f32(number: f64) -> f32 {
    number as f32
}

/// An axis as a negative number.
fn from_back(axis: usize, rank: usize) -> Option<i64> {
    let back = rank.checked_sub(axis).filter(|&back| back > 0)?;
    i64::try_from(back).ok().map(|back| -back)
}

/// Constants with more elements are not made.
const MAX_ELEMENTS: u64 = 1 << 20;

fn ones(inserter: &mut Inserter<'_>, dims: &[Dim]) -> Option<Value> {
    let dims: Vec<u64> = dims.iter().map(|dim| dim.known()).collect::<Option<_>>()?;
    let n = dims.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim)).filter(|&n| n <= MAX_ELEMENTS)?;
    let ones = vec![1.0; usize::try_from(n).ok()?];
    Some(inserter.constant("scale", TensorData::from_f32(&dims, &ones).ok()?))
}

fn zeros(inserter: &mut Inserter<'_>, dim: Dim) -> Option<Value> {
    let n = dim.known().filter(|&n| n <= MAX_ELEMENTS)?;
    Some(inserter.constant("bias", TensorData::zeros(DType::F32, &[n]).ok()?))
}

/// A value as a vector: a constant with other dims and the same bytes, or a Reshape. A constant with a role, such as a
/// trained parameter, stays that constant.
fn flattened(inserter: &mut Inserter<'_>, suffix: &'static str, value: Value) -> Result<Value, InsertError> {
    if inserter.module.value(value).ty.shape().and_then(|shape| shape.rank()) == Some(1) {
        return Ok(value);
    }
    let has_role = inserter.module.has_role(resolve_captures(inserter.module, value));
    let constant = constant_of(inserter.module, value).filter(|_| !has_role).and_then(|data| {
        let flat =
            TensorData::new(data.stored_dtype(), [data.element_count()], data.storage().clone()).ok()?;
        let steps = data.pending().iter();
        Some(steps.fold(flat, |flat, &step: &Conversion| flat.converted(step)))
    });
    match constant {
        Some(data) => Ok(inserter.constant(suffix, data)),
        None => {
            let shape = inserter.ints("shape", &[-1]);
            let [flat] = inserter.insert(NodeSpec::new(OpKind::Reshape, &[value, shape]).suffix(suffix))?;
            Ok(flat)
        }
    }
}
