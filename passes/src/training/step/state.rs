//! The states of a training step: inputs whose next values are outputs, and the list of them in the metadata of the model.
//!
//! For a weight `fc.w` that Adam updates, the metadata [`METADATA`] has
//!
//! ```text
//! [{"in": "fc.w", "out": "fc.w_next", "kind": "weight"},
//!  {"in": "m.fc.w", "out": "m.fc.w_next", "kind": "m", "of": "fc.w"},
//!  {"in": "v.fc.w", "out": "v.fc.w_next", "kind": "v", "of": "fc.w"}, …]
//! ```

use super::claims;
pub use super::entry::{StateEntry, StateKind};
use super::loss_scale::Scaler;
pub use crate::graph::metadata::{IDENTITY, METADATA, SCALER_METADATA};
use crate::pass::PassCx;
use crate::pass::training_error::InferenceError;
use crate::training::names::public_name_or_warn;
use ampc_ir::verify::name_of;
use ampc_ir::{Module, TensorData, Type, Value};
use rustc_hash::FxHashMap;

/// A state: the input, and the value that is the input next, of the same type.
pub(super) struct State {
    pub(super) input: Value,
    pub(super) next: Value,
    pub(super) kind: StateKind,
    /// The weight that the state belongs to; `None` for a weight itself, and for states that a step has once.
    pub(super) of: Option<Value>,
}

impl State {
    /// A weight, or a state of the step as a whole.
    pub(super) fn new(input: Value, next: Value, kind: StateKind) -> State {
        State { input, next, kind, of: None }
    }

    /// A state that belongs to a weight.
    pub(super) fn of(weight: Value, input: Value, next: Value, kind: StateKind) -> State {
        State { input, next, kind, of: Some(weight) }
    }
}

/// The states of a step, in the order of its outputs.
///
/// # Errors
/// If the model is not a step, or its metadata cannot be read or is not true of it.
pub fn states_of(module: &Module) -> Result<Vec<StateEntry>, InferenceError> {
    let text = module.header.metadata.iter().find(|(key, _)| key == METADATA).map(|(_, text)| text);
    let text = text.ok_or(InferenceError::NoStep)?;
    let wrong = |problem: String| InferenceError::Metadata { key: METADATA, problem };
    let entries: Vec<StateEntry> = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
    claims::check(module, &entries).map_err(wrong)?;
    Ok(entries)
}

/// Declares the states that the metadata of a step lists as states of the main graph, if the graph has none: a format
/// without states, such as ONNX, keeps them in the metadata alone. A module whose metadata is not true of it stays as it is;
/// [`states_of`] says why.
pub fn restore_states(module: &mut Module) {
    let main = module.main();
    if !module.graph(main).states.is_empty() {
        return;
    }
    let Ok(entries) = states_of(module) else { return };
    let graph = module.graph(main);
    let by_name = |values: &mut dyn Iterator<Item = Value>| -> FxHashMap<String, Value> {
        values.map(|value| (name_of(module, value), value)).collect()
    };
    let inputs = by_name(&mut graph.inputs().iter().copied());
    let outputs = by_name(&mut graph.outputs().iter().map(|output| output.value));
    let pair =
        |entry: &StateEntry| inputs.get(&entry.input).copied().zip(outputs.get(&entry.output).copied());
    let states: Option<Vec<(Value, Value)>> = entries.iter().map(pair).collect();
    *module.graph_roles_mut(main).1 = states.unwrap_or_default();
}

/// Gives states their names, declares them as outputs, and lists them.
pub(super) fn declare(module: &mut Module, states: &[State], scaler: &Scaler, cx: &mut PassCx<'_>) {
    let main = module.main();
    let mut list = Vec::new();
    for state in states {
        let name = name_of(module, state.input);
        let next = public_name_or_warn(module, &format!("{name}_next"), cx);
        module.set_value_name(state.next, next);
        let declared = module.value(state.next).ty.clone();
        module.add_output(main, state.next, declared);
        module.graph_roles_mut(main).1.push((state.input, state.next));
        list.push(StateEntry {
            input: name,
            output: module.text(next).to_owned(),
            kind: state.kind,
            of: state.of.map(|weight| name_of(module, weight)),
        });
    }
    let list = serde_json::to_string(&list).expect("names are text");
    module.header.set_metadata(METADATA, list);
    module.header.set_metadata(SCALER_METADATA, scaler.to_string());
}

/// Zeros of a type whose dims are known.
pub(super) fn zeros_like(ty: &Type) -> Option<TensorData> {
    let tensor = ty.as_tensor()?;
    let dims = tensor.shape.to_known()?;
    TensorData::zeros(tensor.dtype, &dims).ok()
}
