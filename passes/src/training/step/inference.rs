//! `inference`: extracts the forward model from a training step, with the weights stored as constants.
//!
//! ```text
//! input %x, input %target, input %lr, input %w = …, input %lo.w = …, input %m.w = … , input %loss_scale = …
//! %y = MatMul(%x, %lo.w)
//! …the loss, its gradients, the update…
//! output %y, output %loss, output %w_next, …
//!
//! input %x
//! const %w = (f16 of the value of %w)
//! %y = MatMul(%x, %w)
//! output %y
//! ```
//!
//! 1. The outputs of the forward model, which [`FORWARD`] lists, stay; all nodes that they do not depend on are
//!    removed.
//! 2. Inputs that are read and are states become constants: weights and running statistics with their values,
//!    low copies with the values of their weights, rounded. The other inputs of the step are removed.
//! 3. BatchNormalization uses its running statistics, and Dropout drops nothing.
//!
//! Casts stay where they are: the model computes as the forward part of the step did.
//!
//! With `of=loss` the result computes the loss only; targets, weights, low copies and running statistics stay inputs, so
//! that a caller can evaluate with the current state.

use super::claims::forward::ForwardError;
pub use super::forward::{Forward, RATE};
use super::state::states_of;
use super::statistics::STATISTICS;
use super::{claims, dropout};
use crate::graph::flow;
use crate::graph::marks::{PHASE, Purpose, ROLE, role_of};
pub use crate::graph::metadata::FORWARD;
use crate::graph::metadata::{IDENTITY, METADATA, SCALER_METADATA};
use crate::pass::invariants::Invariants;
use crate::pass::options::{PassOption, Setting, Spelled, Words, option, settings};
pub use crate::pass::training_error::InferenceError;
use crate::pass::{Changed, Pass, PassCx, PassError, sound};
use crate::training::step::entry::{StateEntry, StateKind};
use ampc_ir::convert::Conversion;
use ampc_ir::module::{Def, Op};
use ampc_ir::op::OpKind;
use ampc_ir::verify::name_of;
use ampc_ir::views::NodeView;
use ampc_ir::views::broadcast::DropoutView;
use ampc_ir::views::norm::BatchNormView;
use ampc_ir::{AttrValue, Inserter, Module, Node, NodeSpec, Payload, TensorData, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// The two results of the conversion, for messages.
const OF: Words = Words { no: "model", yes: "loss" };

/// The pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inference {
    /// True if the loss is extracted, with weights as inputs, instead of the forward model.
    pub of_loss: bool,
}

impl Spelled for Inference {
    const NAME: &'static str = "inference";
    const ABOUT: &'static str = "extracts the forward model of a training step, or the model of its loss";
    const OPTIONS: &'static [PassOption<Self>] = &[PassOption {
        def: option("of", "model or loss", Some(OF.no)),
        print: |pass| pass.of_loss.then(|| Setting::word(OF.yes)),
        read: |pass, given| given.either(OF).map(|of_loss| pass.of_loss = of_loss),
    }];
    fn blank() -> Self {
        Inference::default()
    }
}

impl Pass for Inference {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn options(&self) -> Vec<(&'static str, Setting)> {
        settings(self)
    }
    fn revokes(&self) -> Invariants {
        Invariants::DECISIONS
    }
    fn run(&self, module: &mut Module, _cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let states = states_of(module)?;
        let forward = forward_of(module)?;
        let main = module.main();
        let loss = forward.loss.iter();
        let wanted: FxHashSet<&str> = match self.of_loss {
            true => loss.map(String::as_str).collect(),
            false => forward.outputs.iter().map(String::as_str).collect(),
        };
        let leaving: Vec<bool> = module
            .graph(main)
            .outputs()
            .iter()
            .map(|output| wanted.contains(name_of(module, output.value).as_str()))
            .collect();
        module.retain_outputs(main, |i, _| leaving[i]);
        stop_training(module);
        erase_dead_nodes(module);
        if self.of_loss {
            erase_unread_inputs(module);
        } else {
            states_to_constants(module, &forward, &states)?;
        }
        erase_unread_constants(module);
        forget_step(module);
        Ok(Changed::Yes)
    }
}

/// The part of a step that belongs to the forward model.
///
/// # Errors
/// If the model is not a step, or its metadata is damaged or not true of it.
pub fn forward_of(module: &Module) -> Result<Forward, InferenceError> {
    let states = states_of(module)?;
    let text = module.header.metadata.iter().find(|(key, _)| key == FORWARD).map(|(_, text)| text);
    let wrong = |problem: String| InferenceError::Metadata { key: FORWARD, problem };
    let text = text.ok_or_else(|| wrong("it is missing; make the step again".into()))?;
    let forward: Forward = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
    claims::forward::check(module, &forward, &states).map_err(|error| match error {
        ForwardError::NoLoss => InferenceError::NoLoss,
        ForwardError::Claim(claim) => wrong(claim),
    })?;
    claims::forward::check_scaler(module, &states)?;
    Ok(forward)
}

/// The names of the inputs of the forward model that a step was made of.
///
/// # Errors
/// If the metadata that lists them is missing or damaged.
pub fn inputs_of_forward(module: &Module) -> Result<Vec<String>, InferenceError> {
    Ok(forward_of(module)?.inputs)
}

/// Sets BatchNormalization and Dropout of all graphs to inference mode.
fn stop_training(module: &mut Module) {
    for graph in flow::graphs(module) {
        for node in module.nodes(graph).collect::<Vec<_>>() {
            let Some(view) = NodeView::new(module, node) else { continue };
            match view.kind() {
                OpKind::BatchNormalization if BatchNormView::read(&view).training => {
                    sound(take_running_statistics(module, node));
                }
                OpKind::Dropout if DropoutView::read(&view).training != Some(false) => {
                    module.set_operand(node, 2, None);
                }
                OpKind::PhiloxDropout => sound(to_dropout(module, node)),
                _ => {}
            }
        }
    }
}

/// Removes the outputs of a node for the next running statistics; their readers take the current ones.
fn take_running_statistics(module: &mut Module, node: Node) -> Result<(), ampc_ir::InsertError> {
    for (operand, result) in STATISTICS {
        // A step that may be skipped reads copies.
        let copied = module.node(node).operand(operand).and_then(|value| module.producer(value));
        let is_copy = |copy: Node| role_of(module, copy) == Some(Purpose::RunningStatistics.spelling());
        if let Some((copy, _)) = copied.filter(|&(copy, _)| is_copy(copy)) {
            module.set_operand(node, operand, module.node(copy).operand(0));
        }
        let data = module.node(node);
        let graph = data.graph;
        let (Some(now), Some(next)) = (data.operand(operand), data.result(result)) else { continue };
        if module.is_output(next) {
            // What leaves the model is called as before.
            let [copy] = Inserter::before(module, node).insert(NodeSpec::new(OpKind::Identity, &[now]))?;
            for slot in module.output_slots(next).collect::<Vec<_>>() {
                module.set_output(graph, slot as usize, copy);
            }
            let (name, other) = (module.value(next).name, module.fresh_name("next"));
            module.set_value_name(next, other);
            if let Some(name) = name {
                module.set_value_name(copy, name);
            }
        }
        module.replace_value(next, now);
    }
    let mode = module.intern("training_mode");
    module.set_attr(node, mode, AttrValue::Int(0));
    module.truncate_results(node, 1);
    Ok(())
}

/// A PhiloxDropout as the Dropout that it stands for, which drops nothing.
fn to_dropout(module: &mut Module, node: Node) -> Result<(), ampc_ir::InsertError> {
    let data = module.node(node);
    let (Some(x), Some(y), Some(ratio)) = (data.operand(0), data.result(0), data.operand(3)) else {
        return Ok(());
    };
    let name = data.name;
    let mut inserter = Inserter::before(module, node);
    inserter.copies_metadata = true;
    let [kept] = inserter.insert(NodeSpec::new(OpKind::Dropout, &[x, ratio]).suffix("kept"))?;
    dropout::stand_for(module, node, y, kept, name);
    Ok(())
}

/// Erases the nodes of the main graph that lead to no output.
fn erase_dead_nodes(module: &mut Module) {
    let nodes: Vec<Node> = module.nodes(module.main()).collect();
    for node in nodes.into_iter().rev() {
        let is_read = |v: &Value| module.is_output(*v) || module.uses(*v).next().is_some();
        if !module.node(node).results().iter().flatten().any(is_read) {
            module.erase_node(node);
        }
    }
}

/// States that are read become constants; inputs that the forward model does not have go.
fn states_to_constants(
    module: &mut Module,
    forward: &Forward,
    states: &[StateEntry],
) -> Result<(), InferenceError> {
    let own: FxHashSet<&str> = forward.inputs.iter().map(String::as_str).collect();
    let inputs: Vec<(Value, String)> =
        module.graph(module.main()).inputs().iter().map(|&input| (input, name_of(module, input))).collect();
    let weights: FxHashMap<&str, &str> = states
        .iter()
        .filter(|state| state.kind == StateKind::Low)
        .filter_map(|state| Some((state.input.as_str(), state.of.as_deref()?)))
        .collect();
    let by_name: FxHashMap<&str, Value> =
        inputs.iter().map(|(input, name)| (name.as_str(), *input)).collect();
    // Values first: a low copy is made of its weight, which may be read or not.
    let mut fixed: Vec<(Value, String, Arc<TensorData>)> = Vec::new();
    let (mut gone, mut low_names) = (Vec::new(), FxHashMap::default());
    for (input, name) in &inputs {
        if own.contains(name.as_str()) {
            continue;
        }
        gone.push(*input);
        if module.uses(*input).next().is_none() && !module.is_output(*input) {
            continue;
        }
        let missing = || InferenceError::NoValue { name: name.clone() };
        let data = match weights.get(name.as_str()) {
            Some(weight) => {
                let weight_input = by_name.get(weight).copied().ok_or_else(missing)?;
                let to = module.value(*input).ty.dtype().ok_or_else(missing)?;
                low_names.insert(*input, weight_input);
                let weight = value_of(module, weight_input).ok_or_else(missing)?;
                Arc::new(weight.converted(Conversion { to, clamp: false }))
            }
            _ => value_of(module, *input).ok_or_else(missing)?,
        };
        fixed.push((*input, name.clone(), data));
    }
    let mut constants = Vec::new();
    for (input, name, data) in fixed {
        let fresh = module.fresh_name(&name);
        let constant = module.add_constant(module.main(), fresh, Payload::Dense(data));
        module.replace_value(input, constant);
        constants.push((input, constant, name));
    }
    module.erase_inputs(module.main(), &gone.into_iter().collect());
    let kept: FxHashSet<Value> = constants.iter().map(|&(input, ..)| input).collect();
    let name_of_input: FxHashMap<Value, &String> =
        inputs.iter().map(|(input, name)| (*input, name)).collect();
    for (input, constant, name) in &constants {
        // A weight that is only read low is the weight.
        let name = match low_names.get(input) {
            Some(weight) if !kept.contains(weight) => name_of_input[weight],
            _ => name,
        };
        let name = module.intern(name);
        module.set_value_name(*constant, name);
    }
    Ok(())
}

/// Inputs of the main graph that nothing reads go.
fn erase_unread_inputs(module: &mut Module) {
    let main = module.main();
    let is_read = |v: &Value| module.is_output(*v) || module.uses(*v).next().is_some();
    let unread = module.graph(main).inputs().iter().copied().filter(|v| !is_read(v)).collect();
    module.erase_inputs(main, &unread);
}

fn value_of(module: &Module, input: Value) -> Option<Arc<TensorData>> {
    match &module.value(input).def {
        Def::Input { default: Some(payload), .. } => payload.dense().cloned(),
        _ => None,
    }
}

fn erase_unread_constants(module: &mut Module) {
    let main = module.main();
    let is_read = |v: &Value| module.is_output(*v) || module.uses(*v).next().is_some();
    let unread = module.graph(main).constants().iter().copied().filter(|v| !is_read(v)).collect();
    module.erase_constants(main, &unread);
}

/// Removes the metadata that mark the model as a step.
fn forget_step(module: &mut Module) {
    let main = module.main();
    module
        .header
        .metadata
        .retain(|(key, _)| ![METADATA, SCALER_METADATA, FORWARD, IDENTITY].contains(&key.as_str()));
    let (roles, states) = module.graph_roles_mut(main);
    roles.clear();
    states.clear();
    let keys = [PHASE, ROLE].map(|key| module.intern(key));
    for node in module.nodes(main).collect::<Vec<_>>() {
        let fields = module.node_mut(node);
        let before = fields.metadata.len();
        fields.metadata.retain(|(key, _)| !keys.contains(key));
        fields.dirty.header |= fields.metadata.len() != before;
    }
    let is_of_ampc = |node: Node| match &module.node(node).op {
        Op::Schema(schema) => schema.domain == ampc_ir::bodies::DOMAIN,
        // A function of the step that has the domain, and computes something else.
        Op::Call(function) => module.text(module.function(*function).domain) == ampc_ir::bodies::DOMAIN,
        Op::Custom { domain, .. } => module.text(*domain) == ampc_ir::bodies::DOMAIN,
    };
    if !flow::graphs(module).into_iter().flat_map(|graph| module.nodes(graph)).any(is_of_ampc) {
        module.forget_import(main, ampc_ir::bodies::DOMAIN);
    }
}
