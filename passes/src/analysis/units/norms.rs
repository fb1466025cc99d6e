//! Shapes of norms: which axes are normalized together, and the axes of scale and bias.

use super::chains::behind;
use super::matcher::State;
use super::pattern::Capture;
use super::{Kind, Unit, dims_of};
use ampc_ir::op::OpKind;
use ampc_ir::{Dim, Module, Value};

/// A norm over the last axes, or of each channel by itself.
pub(super) fn channels_or_layer(module: &Module, state: &State, unit: Unit) -> Option<Unit> {
    let dims = dims_of(module, state.value(Capture::X)?)?;
    let of_channels = dims.len() >= 3 && unit.axes.iter().copied().eq(2..dims.len());
    let parameters = [unit.scale, unit.bias];
    let per_channel = parameters.iter().flatten().all(|&value| is_per_channel(module, value, dims));
    let has_parameters = parameters.iter().any(Option::is_some);
    if of_channels && (if has_parameters { per_channel } else { unit.axes.len() > 1 }) {
        return Some(Unit { kind: Kind::InstanceNorm, ..unit });
    }
    layer(module, state, unit)
}

/// A norm over the last axes, with parameters of these axes.
pub(super) fn layer(module: &Module, state: &State, unit: Unit) -> Option<Unit> {
    let dims = dims_of(module, state.value(Capture::X)?)?;
    let first = *unit.axes.first()?;
    let normalized = dims.get(first..)?;
    let are_last = unit.axes.iter().copied().eq(first..dims.len());
    let fits =
        |&value: &Value| dims_of(module, value) == Some(normalized) && !normalized.contains(&Dim::Unknown);
    let fit = [unit.scale, unit.bias].iter().flatten().all(fits);
    (are_last && fit).then_some(unit)
}

/// A norm of groups of channels: a Reshape gives each group its axis, and another takes it away.
pub(super) fn groups(module: &Module, state: &State, unit: Unit) -> Option<Unit> {
    let x = state.value(Capture::X)?;
    let dims = dims_of(module, x)?;
    let reshaped = unit.nodes.iter().find_map(|&node| {
        let data = module.node(node);
        let is_reshape = data.schema().is_some_and(|schema| schema.kind == OpKind::Reshape);
        let reads_x = data.operand(0).is_some_and(|operand| behind(module, operand).0 == x);
        (is_reshape && reads_x).then(|| dims_of(module, data.result(0)?))?
    })?;
    let (&[batch, channels, ..], &[same_batch, groups, _, ..]) = (dims, reshaped) else { return None };
    let (channels, groups) = (channels.known()?, groups.known()?);
    let is_split = batch != Dim::Unknown
        && batch == same_batch
        && groups > 0
        && channels.is_multiple_of(groups)
        && (unit.axes.is_empty() || unit.axes.iter().copied().eq(2..reshaped.len()));
    let comes_back = dims_of(module, unit.result) == Some(dims) && !dims.contains(&Dim::Unknown);
    let per_channel =
        [unit.scale, unit.bias].iter().flatten().all(|&value| is_per_channel(module, value, dims));
    let unit = Unit { groups: Some(groups), axes: Vec::new(), ..unit };
    (is_split && comes_back && per_channel).then_some(unit)
}

/// True if a value has one element for each channel: `[C, 1, …]` or `[1, C, 1, …]`.
fn is_per_channel(module: &Module, value: Value, dims: &[Dim]) -> bool {
    let Some(found) = dims_of(module, value) else { return false };
    let found = if found.len() == dims.len() { found.strip_prefix(&[Dim::Known(1)]) } else { Some(found) };
    let Some((channels, rest)) = found.and_then(<[Dim]>::split_first) else { return false };
    dims[1].known().is_some()
        && *channels == dims[1]
        && rest.len() == dims.len() - 2
        && rest.iter().all(|&dim| dim == Dim::Known(1))
}
