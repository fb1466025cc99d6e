//! The claims of a step's metadata about its forward model, its loss, its learning rate and its loss scaler, compared
//! with the graph.

use super::{behind_casts, kind_of};
use crate::graph::marks::{Phase, phase_of};
use crate::graph::metadata::SCALER_METADATA;
use crate::pass::training_error::InferenceError;
use crate::training::step::entry::{StateEntry, StateKind};
use crate::training::step::forward::{Forward, RATE};
use crate::training::step::loss_scale::Scaler;
use ampc_ir::infer::describe;
use ampc_ir::op::optimizers;
use ampc_ir::verify::name_of;
use ampc_ir::{Dim, Module, Type, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// Compares the description of the forward model with the step, whose states are `states`.
///
/// # Errors
/// The first claim that is not true of the step.
pub(in crate::training::step) fn check(
    module: &Module,
    forward: &Forward,
    states: &[StateEntry],
) -> Result<(), ForwardError> {
    let main = module.graph(module.main());
    let step = Interface {
        module,
        inputs: main.inputs().iter().map(|&input| (name_of(module, input), input)).collect(),
        outputs: main
            .outputs()
            .iter()
            .map(|output| (name_of(module, output.value), (output.value, &output.declared)))
            .collect(),
        states: states.iter().map(|state| state.input.as_str()).collect(),
        next: states.iter().map(|state| state.output.as_str()).collect(),
    };
    for (names, what) in [(&forward.inputs, "input"), (&forward.outputs, "output")] {
        let mut seen = FxHashSet::default();
        if let Some(name) = names.iter().find(|name| !seen.insert(*name)) {
            return Err(ForwardError::Claim(format!("{what} `{name}` is listed twice")));
        }
    }
    step.inputs(forward)?;
    step.outputs(forward)?;
    step.loss(forward.loss.as_deref().ok_or(ForwardError::NoLoss)?)?;
    step.rate(forward)?;
    if states.iter().any(|state| state.kind == StateKind::Weight) {
        step.untold_inputs(forward)?;
    }
    Ok(())
}

/// A false claim about the forward model.
pub(in crate::training::step) enum ForwardError {
    /// The loss is not named.
    NoLoss,
    /// Another claim is not true of the step: in words.
    Claim(String),
}

impl From<String> for ForwardError {
    fn from(claim: String) -> ForwardError {
        ForwardError::Claim(claim)
    }
}

struct Interface<'a> {
    module: &'a Module,
    inputs: FxHashMap<String, Value>,
    /// The outputs and their declared types.
    outputs: FxHashMap<String, (Value, &'a Type)>,
    /// The names of states.
    states: FxHashSet<&'a str>,
    /// The names of next values of states.
    next: FxHashSet<&'a str>,
}

impl Interface<'_> {
    /// Inputs of the forward model are inputs of the step. An input that the forward model returns may have kept its name
    /// as an output only.
    fn inputs(&self, forward: &Forward) -> Result<(), String> {
        for name in &forward.inputs {
            if !self.inputs.contains_key(name) && !self.outputs.contains_key(name) {
                return Err(format!("the step has no input `{name}`"));
            }
        }
        Ok(())
    }

    /// Outputs of the forward model are outputs that the forward part computes.
    fn outputs(&self, forward: &Forward) -> Result<(), String> {
        for name in &forward.outputs {
            match self.outputs.get(name) {
                None if self.inputs.contains_key(name) => {}
                None => return Err(format!("the step has no output `{name}`")),
                Some(&(value, _)) => self.of_forward(name, value, "an output of the forward model")?,
            }
        }
        Ok(())
    }

    /// The loss is an output that the forward part computes: one floating-point number.
    fn loss(&self, name: &str) -> Result<(), String> {
        let Some(&(value, declared)) = self.outputs.get(name) else {
            let found = if self.inputs.contains_key(name) { "an input" } else { "no output of the step" };
            return Err(format!("expected the loss to be an output of the step, found `{name}`, {found}"));
        };
        self.of_forward(name, value, "the loss")?;
        // Before inference only the declared type of an output is known.
        let ty = match &self.module.value(value).ty {
            Type::Unknown => declared,
            ty => ty,
        };
        if is_number(ty) {
            return Ok(());
        }
        Err(format!("expected one floating-point number as the loss, found `{name}`, {}", describe(ty)))
    }

    /// Refuses an output that the backward pass or the update computes.
    fn of_forward(&self, name: &str, value: Value, what: &str) -> Result<(), String> {
        if self.next.contains(name) {
            return Err(format!("`{name}` is the next value of a state, and is listed as {what}"));
        }
        let Some((node, _)) = self.module.producer(value) else { return Ok(()) };
        let phase = phase_of(self.module, node);
        let kind = self.module.node(node).schema().map(|schema| schema.kind);
        let part = match phase {
            _ if kind.is_some_and(optimizers::is_of_update) => "the update",
            Some(Phase::Update) => "the update",
            Some(Phase::Backward) => "the backward pass",
            Some(Phase::Forward) | None => return Ok(()),
        };
        Err(format!("{part} computes `{name}`, which is listed as {what}"))
    }

    /// The learning rate is an input, and neither a state nor an input of the forward model; optimizers that read an input
    /// as their rate read this input.
    fn rate(&self, forward: &Forward) -> Result<(), String> {
        let name = forward.lr.as_deref().unwrap_or(RATE);
        let is_taken =
            |name: &str| self.states.contains(name) || forward.inputs.iter().any(|input| input == name);
        if forward.lr.is_some() {
            let input = self.inputs.get(name);
            let &input = input.ok_or_else(|| {
                format!("expected the learning rate (`lr`) to be an input of the step, found `{name}`")
            })?;
            if is_taken(name) {
                return Err(format!(
                    "`{name}` is listed as the learning rate (`lr`), and as a state or an input of the forward model"
                ));
            }
            let ty = &self.module.value(input).ty;
            if !is_number(ty) {
                let found = describe(ty);
                return Err(format!(
                    "expected a floating-point number as the learning rate, found `{name}`, {found}"
                ));
            }
        }
        for node in self.module.nodes(self.module.main()) {
            let Some(rate) = rate_operand(self.module, node) else { continue };
            let found = name_of(self.module, behind_casts(self.module, rate));
            if self.inputs.contains_key(&found) && (found != name || is_taken(&found)) {
                return Err(match found == name {
                    true => format!(
                        "`{found}` is the learning rate of the optimizer, and is listed as an input of the forward model"
                    ),
                    false => format!(
                        "expected `{found}`, which the optimizer reads, as the learning rate (`lr`), found `{name}`"
                    ),
                });
            }
        }
        Ok(())
    }

    /// An input that the forward model reads is a state, or an input of the forward model.
    fn untold_inputs(&self, forward: &Forward) -> Result<(), String> {
        let told: FxHashSet<&str> =
            forward.inputs.iter().map(String::as_str).chain(self.states.iter().copied()).collect();
        let mut left: Vec<Value> =
            forward.outputs.iter().filter_map(|name| Some(self.outputs.get(name)?.0)).collect();
        let mut seen: FxHashSet<Value> = FxHashSet::default();
        let untold: FxHashMap<Value, &str> = self
            .inputs
            .iter()
            .filter(|(name, _)| !told.contains(name.as_str()))
            .map(|(name, &value)| (value, name.as_str()))
            .collect();
        while let Some(value) = left.pop() {
            if !seen.insert(value) {
                continue;
            }
            if let Some(name) = untold.get(&value) {
                return Err(format!("the forward model reads the input `{name}`, which is not listed"));
            }
            if let Some((node, _)) = self.module.producer(value) {
                left.extend(self.module.node(node).operands().iter().flatten());
            }
        }
        Ok(())
    }
}

/// True if a type is that of one floating-point number, as far as inference knows.
fn is_number(ty: &Type) -> bool {
    let Some(tensor) = ty.as_tensor() else { return *ty == Type::Unknown };
    let may_be_one = |dim: &Dim| matches!(dim, Dim::Known(1) | Dim::Unknown);
    tensor.dtype.is_float() && tensor.shape.dims().is_none_or(|dims| dims.iter().all(may_be_one))
}

/// The learning rate of an optimizer; `None` if a node is not an optimizer.
fn rate_operand(module: &Module, node: ampc_ir::Node) -> Option<Value> {
    let data = module.node(node);
    data.operand(optimizers::optimizer_operand(data.schema()?, optimizers::RATE)?)
}

/// Compares the scaler that the metadata names with the states: only a scale that changes is a state.
///
/// # Errors
/// If the metadata does not name a scaler, or a scaler with other states.
pub(in crate::training::step) fn check_scaler(
    module: &Module,
    states: &[StateEntry],
) -> Result<(), InferenceError> {
    let entry = module.header.metadata.iter().find(|(key, _)| key == SCALER_METADATA);
    let Some((_, text)) = entry else { return Ok(()) };
    let wrong = |problem: String| InferenceError::Metadata { key: SCALER_METADATA, problem };
    let scaler: Scaler =
        text.parse().map_err(|error: crate::training::step::spec::SpecError| wrong(error.to_string()))?;
    let expected = |kind: StateKind| match &scaler {
        Scaler::None | Scaler::Static(_) => false,
        Scaler::Dynamic(dynamic) => kind != StateKind::Bad || dynamic.backoff_every > 1,
    };
    for kind in [StateKind::LossScale, StateKind::Good, StateKind::Bad] {
        let found = states.iter().find(|state| state.kind == kind);
        match (expected(kind), found) {
            (true, None) => {
                let kind = kind_of(kind);
                return Err(wrong(format!(
                    "the scaler `{text}` has a state of kind {kind}, which the step lacks"
                )));
            }
            (false, Some(state)) => {
                return Err(wrong(format!("the scaler `{text}` has no state like `{}`", state.input)));
            }
            _ => {}
        }
    }
    Ok(())
}
