//! The interface of the forward model that a step was made of, as the metadata of the step describes it.

use super::dropout;
use crate::graph::metadata::FORWARD;
use crate::graph::roles::{GRAD, LOSS, PARAMETER, SEED, with_role};
use ampc_ir::verify::name_of;
use ampc_ir::{Module, Value};
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};

/// The interface of the forward model that a step was made of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Forward {
    /// The names of its inputs.
    pub inputs: Vec<String>,
    /// The names of its outputs.
    pub outputs: Vec<String>,
    /// The name of the output of the step that is the loss; `outputs` may contain it. Every step has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// The name of the input of the step that is the learning rate, where it is not `lr`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lr: Option<String>,
}

/// The name of the learning rate among the inputs of a step, unless [`Forward::lr`] says another one.
pub const RATE: &str = "lr";

/// The interface of a model that is about to become a step, unless it was noted before.
pub(super) fn forward_interface(module: &Module) -> Option<Forward> {
    if module.header.metadata.iter().any(|(key, _)| key == FORWARD) {
        return None;
    }
    let main = module.graph(module.main());
    let of_step: FxHashSet<Value> = [PARAMETER, SEED, GRAD, dropout::SEED, dropout::OFFSET]
        .into_iter()
        .flat_map(|role| with_role(module, role))
        .collect();
    let gradients: FxHashSet<Value> = with_role(module, GRAD).collect();
    let inputs = main.inputs().iter().filter(|value| !of_step.contains(value));
    // A parameter may leave the model; its gradient leaves the step.
    let is_gradient = |value: Value| gradients.contains(&value) && module.producer(value).is_some();
    let outputs = main.outputs().iter().map(|output| output.value).filter(|&value| !is_gradient(value));
    Some(Forward {
        inputs: inputs.map(|&value| name_of(module, value)).collect(),
        outputs: outputs.map(|value| name_of(module, value)).collect(),
        loss: with_role(module, LOSS)
            .find(|&value| module.is_output(value))
            .map(|value| name_of(module, value)),
        lr: None,
    })
}

/// Notes that the learning rate of a step has another name than [`RATE`].
pub(super) fn note_rate(module: &mut Module, name: &str) {
    let entry = module.header.metadata.iter_mut().find(|(key, _)| key == FORWARD);
    let Some((_, json)) = entry else { return };
    if let Ok(mut forward) = serde_json::from_str::<Forward>(json) {
        forward.lr = Some(name.to_owned());
        *json = serde_json::to_string(&forward).expect("names are text");
    }
}

/// Records the inputs and outputs of the forward model in the step, and its loss.
pub(super) fn note_forward(module: &mut Module, forward: Option<Forward>) {
    if let Some(forward) = forward {
        let json = serde_json::to_string(&forward).expect("names are text");
        module.header.set_metadata(FORWARD, json);
    }
}
