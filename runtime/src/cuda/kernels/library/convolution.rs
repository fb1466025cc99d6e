//! A convolution with a bias and a ReLU as one operation graph of cuDNN, if cuDNN has an engine for it; otherwise the
//! ReLU joins the element-wise nodes after it. cuDNN 9.28 has no engine for a ReLU without a bias.

use super::super::Maker;
use super::super::convolution::{forward, layout_of};
use super::{Activation, Found, Nodes, activation_of, operand_of};
use crate::backend::GroupSite;
use crate::cuda::dnn::{Convolution, Direction, Places};
use crate::cuda::launch::{operand, queue, result, scratch};
use crate::kernel::{KernelError, Prepared, Result};

/// The convolution with a bias at `anchor`, and the ReLU that is its only reader.
pub(super) fn read(nodes: &Nodes<'_>, anchor: usize) -> Option<Found> {
    let relu = nodes.reader(anchor).filter(|_| nodes.sites[anchor].has(2))?;
    let is_relu = activation_of(&nodes.sites[relu]) == Some(Activation::Relu);
    let found = Found { nodes: vec![anchor, relu], result: nodes.result(relu)?, rounds_once: true };
    is_relu.then_some(found)
}

/// The kernel of the group; `maker` is that of the convolution.
///
/// # Errors
/// If cuDNN has no engine, or fails.
pub(super) fn prepare(maker: &Maker<'_>, group: &GroupSite<'_>) -> Result<Prepared> {
    let site = maker.site;
    let (sizes, is_empty) = forward(maker)?;
    let unsupported = || KernelError::unsupported("an activation after this convolution");
    if is_empty || sizes.axes.len() > 3 || site.result_dims(0)?.contains(&0) {
        return Err(unsupported());
    }
    let convolution = sizes.convolution(Direction::Forward, site.dtype(0)?)?.ok_or_else(unsupported)?;
    let layout = layout_of(site);
    let plan =
        maker.shared.dnn.plan(&Convolution { has_bias: true, has_relu: true, layout, ..convolution })?;
    let operand_at = |i: usize| operand_of(group, site.view.operand(i).ok_or_else(unsupported)?);
    let [operands @ .., bias] = [operand_at(0)?, operand_at(1)?, operand_at(2)?];
    let workspace = plan.workspace();
    let prepared = Prepared::new(move |io| {
        let places = Places {
            operands: [operand(io, operands[0])?, operand(io, operands[1])?],
            result: result(io, 0)?,
            bias: operand(io, bias)?,
            workspace: scratch(io)?,
        };
        plan.launch(queue(io)?, &places)
    });
    Ok(prepared.scratch(workspace))
}
