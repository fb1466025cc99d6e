//! `update`: the end of a step: one look at all gradients, the optimizer, and the next loss scale.
//!
//! ```text
//! %inv   = Reciprocal(%loss_scale)                              unscale
//! %found, %sumsq = GradCheck(%inv, %w.grad, %b.grad)            is any gradient not finite?
//! %mult, %grad_norm = ClipCoef(%sumsq, %inv)                    only if gradients are clipped
//! %w_next, ... = AdamW(%w, %w.grad, %m.w, %v.w, %lr, %mult, %step, %found)       for each parameter
//! %step_next = Add(%step, not found)
//! %loss_scale_next, %good_next = UpdateLossScale(%loss_scale, %good, %found)
//! ```
//!
//! Weights are kept in fp32. What a cast makes of a weight and nothing else reads the optimizer writes: the low copy is
//! a state too, and the cast goes. A step whose gradients are not finite changes nothing but the loss scale and what
//! counts steps; running statistics of BatchNormalization are selected for it. Every state is an input that the step
//! gives back under its name with `_next` behind it; [`METADATA`] lists them.

use super::custom::{CustomOptimizer, Shared, UpdateNodes};
use super::inference::{self, InferenceError};
use super::loss::{Settings, SpecError};
use super::loss_scale::{Arith, OnOverflow, Scaler};
use super::{dropout, mark, public_name};
use crate::autodiff::{GRAD, RuleError, SEED, one_with_role, with_role};
use crate::build::Build;
use crate::invariants::Invariants;
use crate::parameters::{ParameterError, expose};
use crate::pass::{Changed, Pass, PassCx, PassError};
use crate::pipeline::{PassOption, Setting, Spelled, Words, Wrong, option, quoted, settings};
use crate::policy::Pattern;
use crate::suggest::nearest;
use ampc_ir::edit::Position;
use ampc_ir::inserter::InsertError;
use ampc_ir::module::{Def, Provenance};
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::views::norm::BatchNormView;
use ampc_ir::{AttrValue, DType, Inserter, Module, Node, NodeSpec, Payload, Shape, TensorData, Type, Value};
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The key of the model metadata that lists the states of a step, as JSON: `[{"in", "out", "kind"}, …]`.
pub const METADATA: &str = "ampc.state";
/// The key of the model metadata that says which loss scaler a step has.
pub const SCALER_METADATA: &str = "ampc.loss_scale";
/// The phase of the nodes behind the gradients.
const PHASE: &str = "opt";

/// Which optimizer, with its numbers.
#[derive(Clone, PartialEq, Debug)]
pub enum OptimizerKind {
    /// None: gradients are outputs, for an optimizer outside of the step.
    None,
    /// torch.optim.SGD.
    Sgd {
        /// How much of the momentum stays; 0 for none.
        momentum: f64,
        /// By how much of itself a gradient is less in the momentum.
        dampening: f64,
        /// Whether weights move by where the momentum would go next.
        nesterov: bool,
    },
    /// torch.optim.Adam: decay is added to gradients.
    Adam {
        /// How much of the mean of gradients stays.
        beta1: f64,
        /// How much of the mean of their squares stays.
        beta2: f64,
        /// What is added to the root.
        epsilon: f64,
    },
    /// torch.optim.AdamW, or that of Hugging Face's transformers: decay goes to weights.
    AdamW {
        /// How much of the mean of gradients stays.
        beta1: f64,
        /// How much of the mean of their squares stays.
        beta2: f64,
        /// What is added to the root.
        epsilon: f64,
        /// Whether it is Hugging Face's.
        hf: bool,
    },
    /// A function of the user builds it.
    Custom(CustomOptimizer),
}

/// An optimizer, mostly as it is spelled: `adamw:beta2=0.95,weight_decay=0.1`.
#[derive(Clone, PartialEq, Debug)]
pub struct Optimizer {
    /// Which.
    pub kind: OptimizerKind,
    /// The decay of weights that no group has.
    pub weight_decay: f64,
}

impl From<CustomOptimizer> for Optimizer {
    fn from(custom: CustomOptimizer) -> Optimizer {
        Optimizer { kind: OptimizerKind::Custom(custom), weight_decay: 0.0 }
    }
}

impl FromStr for Optimizer {
    type Err = SpecError;
    fn from_str(text: &str) -> Result<Optimizer, SpecError> {
        let mut given = Settings::of(text)?;
        let most = f64::from(f32::MAX);
        let (kind, decay, known) = match given.kind() {
            "none" => (OptimizerKind::None, 0.0, "none"),
            "sgd" => {
                let momentum = given.within("momentum", 0.0, most)?.unwrap_or(0.0);
                let dampening = given.within("dampening", 0.0, 1.0)?.unwrap_or(0.0);
                let nesterov = given.flag("nesterov")?;
                if nesterov && (momentum == 0.0 || dampening != 0.0) {
                    let expected = "a momentum and no dampening beside `nesterov`".into();
                    return Err(SpecError { expected, found: text.into() });
                }
                (
                    OptimizerKind::Sgd { momentum, dampening, nesterov },
                    0.0,
                    "momentum, dampening, nesterov, weight_decay",
                )
            }
            kind @ ("adam" | "adamw") => {
                let beta1 = given.share("beta1")?.unwrap_or(0.9);
                let beta2 = given.share("beta2")?.unwrap_or(0.999);
                let epsilon = given.within("eps", 0.0, most)?.unwrap_or(1e-8);
                if kind == "adam" {
                    (OptimizerKind::Adam { beta1, beta2, epsilon }, 0.0, "beta1, beta2, eps, weight_decay")
                } else {
                    let hf = match given.word("mode") {
                        None | Some("torch") => false,
                        Some("hf") => true,
                        Some(other) => {
                            let expected = "torch or hf for `mode`".into();
                            return Err(SpecError { expected, found: other.into() });
                        }
                    };
                    let kind = OptimizerKind::AdamW { beta1, beta2, epsilon, hf };
                    (kind, 0.01, "beta1, beta2, eps, weight_decay, mode")
                }
            }
            other => {
                let expected = "sgd, adam, adamw or none, with `:key=value`".into();
                return Err(SpecError { expected, found: other.into() });
            }
        };
        let weight_decay = given.within("weight_decay", 0.0, most)?.unwrap_or(decay);
        given.finish(known)?;
        Ok(Optimizer { kind, weight_decay })
    }
}

impl fmt::Display for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decay = self.weight_decay;
        match &self.kind {
            OptimizerKind::None => f.write_str("none"),
            OptimizerKind::Custom(custom) => f.write_str(custom.name()),
            OptimizerKind::Sgd { momentum, dampening, nesterov } => {
                let nesterov = u8::from(*nesterov);
                write!(
                    f,
                    "sgd:momentum={momentum},dampening={dampening},nesterov={nesterov},weight_decay={decay}"
                )
            }
            OptimizerKind::Adam { beta1, beta2, epsilon } => {
                write!(f, "adam:beta1={beta1},beta2={beta2},eps={epsilon:e},weight_decay={decay}")
            }
            OptimizerKind::AdamW { beta1, beta2, epsilon, hf } => {
                let mode = if *hf { "hf" } else { "torch" };
                write!(
                    f,
                    "adamw:beta1={beta1},beta2={beta2},eps={epsilon:e},weight_decay={decay},mode={mode}"
                )
            }
        }
    }
}

/// The pass.
#[derive(Clone, Debug)]
pub struct Update {
    /// The optimizer.
    pub optimizer: Optimizer,
    /// How the loss scale that `scale-loss` has made an input changes.
    pub scaler: Scaler,
    /// The largest norm of all gradients together, to which they are clipped.
    pub clip_norm: Option<f64>,
    /// Decays of parameters by name, of which the last that matches holds.
    pub decay: Vec<(String, f64)>,
    /// Whether the optimizer writes low copies of weights.
    pub writes_low_copies: bool,
}

/// A pair of a name or glob and a number, `*.bias=0`.
pub fn decay_of(text: &str) -> Option<(String, f64)> {
    let (pattern, number) = text.rsplit_once('=')?;
    let number = number.parse().ok().filter(|&n: &f64| n >= 0.0 && n.is_finite())?;
    (!pattern.is_empty()).then(|| (pattern.to_owned(), number))
}

/// The words of the option `low_copies`.
const LOW_COPIES: Words = Words { no: "none", yes: "written" };

impl Spelled for Update {
    const NAME: &'static str = "update";
    const ABOUT: &'static str =
        "gradients are checked, weights updated in fp32, and the loss scale with them";
    const OPTIONS: &'static [PassOption<Self>] = &[
        PassOption {
            def: option("optimizer", "as `train-step --optimizer`", Some("adamw")),
            print: |pass| Some(Setting::word(&pass.optimizer)),
            read: |pass, given| {
                given.read(|word| word.parse().ok()).map(|optimizer| pass.optimizer = optimizer)
            },
        },
        PassOption {
            def: option("scaler", "as `train-step --scaler`", Some("ampc")),
            print: |pass| Some(Setting::word(&pass.scaler)),
            read: |pass, given| given.read(|word| word.parse().ok()).map(|scaler| pass.scaler = scaler),
        },
        PassOption {
            def: option("clip_norm", "a positive number or none", Some("none")),
            print: |pass| pass.clip_norm.map(Setting::word),
            read: |pass, given| {
                let positive =
                    |word: &str| word.parse().ok().filter(|&norm: &f64| norm > 0.0 && norm.is_finite());
                let norm =
                    given.read(|word| if word == "none" { Some(None) } else { positive(word).map(Some) });
                norm.map(|norm| pass.clip_norm = norm)
            },
        },
        PassOption {
            def: option("decay", "GLOB=X with `+` between them", Some("")),
            print: |pass| {
                let entry = |(glob, x): &(String, f64)| quoted(&format!("{glob}={x}"));
                let all: Vec<String> = pass.decay.iter().map(entry).collect();
                (!all.is_empty()).then(|| Setting::Text(all.join("+")))
            },
            read: |pass, given| {
                let list = given.list()?;
                let pairs: Option<Vec<_>> = list.iter().map(|entry| decay_of(entry)).collect();
                pairs.map(|pairs| pass.decay = pairs).ok_or(Wrong::Value)
            },
        },
        PassOption {
            def: option("low_copies", "written or none", Some(LOW_COPIES.yes)),
            print: |pass| (!pass.writes_low_copies).then(|| Setting::word(LOW_COPIES.no)),
            read: |pass, given| given.either(LOW_COPIES).map(|writes| pass.writes_low_copies = writes),
        },
    ];
    fn blank() -> Self {
        Update {
            optimizer: "adamw".parse().expect("it is one"),
            scaler: "ampc".parse().expect("it is one"),
            clip_norm: None,
            decay: Vec::new(),
            writes_low_copies: true,
        }
    }
}

/// Why weights cannot be updated.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// There are no gradients.
    #[error("no value has the role `grad`: run `autodiff` before")]
    NoGradients,
    /// The model has states already.
    #[error("the model is a training step already: one `update` makes it")]
    IsStep,
    /// A parameter is a constant.
    #[error("parameter `{name}` is no input, which states are: run `expose-parameters` before `autodiff`")]
    NoInput {
        /// The parameter.
        name: String,
    },
    /// The states of an optimizer have the extents of the parameter.
    #[error("the extents of parameter `{name}` have to be known, and it is {found}")]
    Unsized {
        /// The parameter.
        name: String,
        /// Its type.
        found: String,
    },
    /// Optimizers keep weights in fp32, which numbers of f64 would be rounded to.
    #[error(
        "parameter `{name}` is {found}: expected f32 or 16 bits; freeze it (`--freeze`), or convert the model to fp32"
    )]
    Wide {
        /// The parameter.
        name: String,
        /// Its type.
        found: String,
    },
    /// What is added does not fit.
    #[error("the update cannot be added: {0}")]
    Insert(#[from] InsertError),
    /// The function of a custom optimizer says that it cannot build it, or returns something else.
    #[error("the optimizer {name}, for parameter `{parameter}`: {what}")]
    Custom {
        /// The optimizer.
        name: String,
        /// The parameter.
        parameter: String,
        /// What is wrong.
        what: String,
    },
}

/// A state: the input, and the value that is the input next.
struct State {
    input: Value,
    next: Value,
    kind: &'static str,
    /// The weight whose it is.
    of: Option<Value>,
}

impl State {
    /// A state of the step as a whole.
    fn new(input: Value, next: Value, kind: &'static str) -> State {
        State { input, next, kind, of: None }
    }
}

/// A state as the metadata [`METADATA`] of a step lists it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StateEntry {
    /// The name of the input.
    #[serde(rename = "in")]
    pub input: String,
    /// The name of the output that is the input next.
    #[serde(rename = "out")]
    pub output: String,
    /// What it is: `weight`, `low` (the low copy of one), `m` or `v` (of an optimizer), `buffer` (running statistics),
    /// `step`, `loss-scale`, `good`, `bad`, `dropout-seed`, `dropout-offset`.
    pub kind: String,
    /// The name of the weight that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
}

/// The kind of a parameter.
pub const WEIGHT: &str = "weight";
/// The kind of running statistics.
pub const BUFFER: &str = "buffer";
/// The kind of a low copy.
pub const LOW: &str = "low";

/// The states of a step, in the order of its outputs.
///
/// # Errors
/// If the model is no step, or its metadata is damaged.
pub fn states_of(module: &Module) -> Result<Vec<StateEntry>, InferenceError> {
    let text = module.header.metadata.iter().find(|(key, _)| key == METADATA).map(|(_, text)| text);
    let text = text.ok_or(InferenceError::NoStep)?;
    let wrong = |problem: String| InferenceError::Metadata { key: METADATA, problem };
    let entries: Vec<StateEntry> = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
    let inputs = module.graph(module.main()).inputs();
    let names: FxHashSet<String> =
        inputs.iter().map(|&input| ampc_ir::verify::name_of(module, input)).collect();
    match entries.iter().find(|entry| !names.contains(&entry.input)) {
        Some(entry) => Err(wrong(format!("the model has no input `{}`", entry.input))),
        None => Ok(entries),
    }
}

impl Pass for Update {
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
        let roles = &module.graph(module.main()).roles;
        let pairs = roles.iter().filter(|role| module.text(role.name) == GRAD);
        let pairs: Vec<(Value, Value)> =
            pairs.filter_map(|role| Some((*role.values.first()?, *role.values.get(1)?))).collect();
        if pairs.is_empty() {
            return Err(UpdateError::NoGradients.into());
        }
        if module.header.metadata.iter().any(|(key, _)| key == METADATA) {
            return Err(UpdateError::IsStep.into());
        }
        let is_input = |parameter: Value| matches!(module.value(parameter).def, Def::Input { .. });
        if let Some(&(parameter, _)) = pairs.iter().find(|&&(parameter, _)| !is_input(parameter)) {
            let name = ampc_ir::verify::name_of(module, parameter);
            return Err(UpdateError::NoInput { name }.into());
        }
        let is_sized = |parameter: Value| zeros_like(&module.value(parameter).ty).is_some();
        if let Some(&(parameter, _)) = pairs.iter().find(|&&(parameter, _)| !is_sized(parameter)) {
            let name = ampc_ir::verify::name_of(module, parameter);
            let found = ampc_ir::infer::describe(&module.value(parameter).ty);
            return Err(UpdateError::Unsized { name, found }.into());
        }
        let is_wide = |parameter: Value| module.value(parameter).ty.dtype() == Some(DType::F64);
        let updates = self.optimizer.kind != OptimizerKind::None;
        if let Some(&(parameter, _)) = pairs.iter().find(|&&(parameter, _)| updates && is_wide(parameter)) {
            let name = ampc_ir::verify::name_of(module, parameter);
            let found = ampc_ir::infer::describe(&module.value(parameter).ty);
            return Err(UpdateError::Wide { name, found }.into());
        }
        let decays = self.decays(module, &pairs)?;
        let scale = one_with_role(module, SEED)?;
        let main = module.main();
        if module.opset(main, ampc_ir::bodies::DOMAIN).is_none() {
            module.import_opset(main, ampc_ir::bodies::DOMAIN, 1);
        }
        module.header.ir_version = module.header.ir_version.max(IR_VERSION);
        inference::note_forward(module);
        let states = Tail::new(self, module).build(&pairs, &decays, scale)?;
        declare(module, &states, &self.scaler);
        Ok(Changed::Yes)
    }
}

/// The version of the IR from which on functions have overloads.
const IR_VERSION: i64 = 10;

impl Update {
    /// The decay of each parameter.
    fn decays(&self, module: &Module, pairs: &[(Value, Value)]) -> Result<Vec<f64>, ParameterError> {
        let patterns: Vec<(Pattern, f64)> = self
            .decay
            .iter()
            .map(|(text, decay)| Ok((Pattern::of_values(text)?, *decay)))
            .collect::<Result<_, ParameterError>>()?;
        let mut matched = vec![false; patterns.len()];
        let mut decays = Vec::with_capacity(pairs.len());
        for &(parameter, _) in pairs {
            let name = ampc_ir::verify::name_of(module, parameter);
            let mut decay = self.optimizer.weight_decay;
            for (i, (pattern, own)) in patterns.iter().enumerate() {
                if pattern.given() == name || pattern.matches(&name) {
                    (decay, matched[i]) = (*own, true);
                }
            }
            decays.push(decay);
        }
        match matched.iter().position(|matched| !matched) {
            Some(i) => {
                let pattern = self.decay[i].0.clone();
                let names = pairs.iter().map(|&(parameter, _)| ampc_ir::verify::name_of(module, parameter));
                let names: Vec<String> = names.collect();
                let near = nearest(&pattern, names.iter().map(String::as_str)).map(str::to_owned);
                Err(ParameterError::MatchesNothing { pattern, what: "parameter", near })
            }
            None => Ok(decays),
        }
    }
}

/// Gives states their names, declares them as outputs, and lists them.
fn declare(module: &mut Module, states: &[State], scaler: &Scaler) {
    let main = module.main();
    let mut list = Vec::new();
    for state in states {
        let name = ampc_ir::verify::name_of(module, state.input);
        let next = public_name(module, &format!("{name}_next"));
        module.set_value_name(state.next, next);
        let declared = module.value(state.next).ty.clone();
        module.add_output(main, state.next, declared);
        module.graph_roles_mut(main).1.push((state.input, state.next));
        list.push(StateEntry {
            input: name,
            output: module.text(next).to_owned(),
            kind: state.kind.to_owned(),
            of: state.of.map(|weight| ampc_ir::verify::name_of(module, weight)),
        });
    }
    let list = serde_json::to_string(&list).expect("names are text");
    let metadata = &mut module.header.metadata;
    metadata.push((METADATA.to_owned(), list));
    metadata.push((SCALER_METADATA.to_owned(), scaler.to_string()));
}

/// The kinds of the states of a step, in their order: `weight`, `low`, `m`, `v`, `step`, `buffer`, `loss-scale`, `good` and
/// `bad`. None of what is no step.
pub fn kinds(module: &Module) -> Vec<String> {
    let text = module.header.metadata.iter().find(|(key, _)| key == METADATA).map(|(_, text)| text.as_str());
    let list: Vec<serde_json::Value> =
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let kind = |state: &serde_json::Value| state["kind"].as_str().unwrap_or_default().to_owned();
    list.iter().map(kind).collect()
}

/// What comes behind the gradients, while it is built.
struct Tail<'a, 'm> {
    update: &'a Update,
    inserter: Inserter<'m>,
    states: Vec<State>,
}

impl<'a, 'm> Tail<'a, 'm> {
    fn new(update: &'a Update, module: &'m mut Module) -> Tail<'a, 'm> {
        let main = module.main();
        Tail { update, inserter: Inserter::new(module, main, Position::Last), states: Vec::new() }
    }

    fn insert<const N: usize>(&mut self, spec: NodeSpec, role: &str) -> Result<[Value; N], InsertError> {
        let results = self.inserter.insert(spec)?;
        self.mark(&results, role);
        Ok(results)
    }

    fn op(&mut self, kind: OpKind, operands: &[Value], role: &str) -> Result<Value, InsertError> {
        let [value] = self.insert(NodeSpec::new(kind, operands), role)?;
        Ok(value)
    }

    fn mark(&mut self, results: &[Value], role: &str) {
        let module = &mut *self.inserter.module;
        if let Some((node, _)) = results.first().and_then(|&value| module.producer(value)) {
            mark(module, node, PHASE, role);
        }
    }

    /// A new input with a value to begin with.
    fn state(&mut self, name: &str, data: TensorData) -> Value {
        let module = &mut *self.inserter.module;
        let (main, name) = (module.main(), public_name(module, name));
        let payload = Payload::Dense(Arc::new(data));
        module.add_input(main, name, payload.ty(), Some(payload))
    }

    fn build(
        mut self,
        pairs: &[(Value, Value)],
        decays: &[f64],
        scale: Option<Value>,
    ) -> Result<Vec<State>, UpdateError> {
        let update = self.update;
        let inverse = match scale {
            Some(scale) => self.op(OpKind::Reciprocal, &[scale], "unscale")?,
            None => self.inserter.scalar("inv_scale", DType::F32, 1.0)?,
        };
        let gradients: Vec<Value> = pairs.iter().map(|&(_, gradient)| gradient).collect();
        let checks = scale.is_some() || update.clip_norm.is_some();
        let mut found = None;
        let mut sum = None;
        if checks {
            let operands: Vec<Value> = std::iter::once(inverse).chain(gradients.iter().copied()).collect();
            let [inf, squares] = self.insert(NodeSpec::new(OpKind::GradCheck, &operands), "grad-check")?;
            (found, sum) = (scale.is_some().then_some(inf), Some(squares));
        }
        let mut mult = inverse;
        if let (Some(norm), Some(sum)) = (update.clip_norm, sum) {
            let spec = NodeSpec::new(OpKind::ClipCoef, &[sum, inverse])
                .attr("max_norm", double(norm))
                .attr("epsilon", double(1e-6));
            let [clipped, norm] = self.insert(spec, "clip")?;
            mult = clipped;
            self.output("grad_norm", norm);
        }
        if let Some(found) = found {
            self.output("found_inf", found);
        }
        if update.optimizer.kind == OptimizerKind::None {
            for gradient in gradients {
                let declared = self.inserter.module.value(gradient).ty.clone();
                let main = self.inserter.module.main();
                self.inserter.module.add_output(main, gradient, declared);
            }
            self.erase_unread(inverse);
            self.running_statistics(found)?;
            return Ok(self.scaled(scale, found)?);
        }
        let module = &mut *self.inserter.module;
        let (main, name) = (module.main(), public_name(module, "lr"));
        let rate = module.add_input(main, name, Type::tensor(DType::F32, Shape::scalar()), None);
        let step = self.state("step", integer(DType::I64, 0));
        if let OptimizerKind::Custom(custom) = &update.optimizer.kind {
            let proceeds = found.map(|found| self.proceeds(found, "master-weight")).transpose()?;
            let shared = Shared { rate, step, mult: checks.then_some(mult), proceeds };
            self.customize(custom, pairs, decays, shared)?;
            self.erase_unread(inverse);
        } else {
            let is_found = match found {
                Some(found) => found,
                None => self.inserter.scalar("found_inf", DType::F32, 0.0)?,
            };
            for (&(parameter, gradient), &decay) in pairs.iter().zip(decays) {
                self.optimize(parameter, gradient, decay, [rate, mult, step, is_found])?;
            }
        }
        let next = self.next_step(step, found)?;
        self.states.push(State::new(step, next, "step"));
        self.running_statistics(found)?;
        Ok(self.scaled(scale, found)?)
    }

    /// Erases a constant that turned out not to be needed.
    fn erase_unread(&mut self, value: Value) {
        let module = &mut *self.inserter.module;
        if module.constant(value).is_some() && module.uses(value).next().is_none() {
            module.erase_constant(value);
        }
    }

    /// Whether a step is taken.
    fn proceeds(&mut self, found: Value, role: &str) -> Result<Value, InsertError> {
        let none = self.inserter.scalar("zero", DType::F32, 0.0)?;
        self.op(OpKind::Equal, &[found, none], role)
    }

    /// All parameters, by an optimizer of the user.
    fn customize(
        &mut self,
        custom: &CustomOptimizer,
        pairs: &[(Value, Value)],
        decays: &[f64],
        shared: Shared,
    ) -> Result<(), UpdateError> {
        let mut lows = Vec::with_capacity(pairs.len());
        for &(parameter, _) in pairs {
            lows.push(if self.update.writes_low_copies { self.low_copy(parameter) } else { None });
        }
        let mut b = UpdateNodes::new(self.inserter.module, shared);
        for ((&(parameter, gradient), &decay), low) in pairs.iter().zip(decays).zip(lows) {
            let wrong = |module: &Module, error: &RuleError| UpdateError::Custom {
                name: custom.name().to_owned(),
                parameter: ampc_ir::verify::name_of(module, parameter),
                what: error.to_string(),
            };
            let updated = b.enter(parameter, gradient, decay).and_then(|()| custom.add(&mut b));
            let updated = updated.map_err(|error| wrong(b.module(), &error))?;
            let weight = updated.weight;
            self.states.push(State::new(weight.input, weight.next, WEIGHT));
            let states = updated.states.into_iter();
            self.states.extend(
                states.map(|own| State { of: Some(parameter), ..State::new(own.input, own.next, "state") }),
            );
            if let Some(low) = low {
                let to = b.dtype(low).unwrap_or(DType::F32);
                let next = b.cast(weight.next, to).map_err(|error| wrong(b.module(), &error))?;
                self.states.push(State { of: Some(parameter), ..State::new(low, next, LOW) });
            }
        }
        Ok(())
    }

    fn output(&mut self, name: &str, value: Value) {
        let module = &mut *self.inserter.module;
        let (main, name) = (module.main(), public_name(module, name));
        module.set_value_name(value, name);
        let declared = module.value(value).ty.clone();
        module.add_output(main, value, declared);
    }

    /// One parameter: its optimizer, its states, and its low copy.
    fn optimize(
        &mut self,
        parameter: Value,
        gradient: Value,
        decay: f64,
        [rate, mult, step, found]: [Value; 4],
    ) -> Result<(), InsertError> {
        let name = ampc_ir::verify::name_of(self.inserter.module, parameter);
        let low = if self.update.writes_low_copies { self.low_copy(parameter) } else { None };
        let zeros = |tail: &mut Self, prefix: &str| {
            let data = zeros_like(&tail.inserter.module.value(parameter).ty);
            tail.state(&format!("{prefix}.{name}"), data.expect("its extents are known"))
        };
        let number = |spec: NodeSpec, key: &'static str, number: f64| spec.attr(key, double(number));
        let (mut spec, states) = match self.update.optimizer.kind {
            OptimizerKind::None | OptimizerKind::Custom(_) => return Ok(()),
            OptimizerKind::Sgd { momentum, dampening, nesterov } => {
                let v = (momentum != 0.0).then(|| zeros(self, "v"));
                let mut operands = vec![parameter, gradient, rate, mult, step, found];
                operands.extend(v);
                let mut spec = NodeSpec::new(OpKind::SGD, &operands);
                spec = number(spec, "momentum", momentum);
                spec = number(spec, "dampening", dampening);
                let on_overflow: &[u8] = match &self.update.scaler {
                    Scaler::Dynamic(d) if d.on_overflow == OnOverflow::ZeroGrad => b"zero_grad",
                    _ => b"skip",
                };
                spec = spec.attr("on_overflow", AttrValue::String(on_overflow.into()));
                (spec.attr("nesterov", AttrValue::Int(i64::from(nesterov))), [v, None])
            }
            OptimizerKind::Adam { beta1, beta2, epsilon }
            | OptimizerKind::AdamW { beta1, beta2, epsilon, .. } => {
                let (m, v) = (zeros(self, "m"), zeros(self, "v"));
                let operands = [parameter, gradient, m, v, rate, mult, step, found];
                let kind = &self.update.optimizer.kind;
                let op =
                    if matches!(kind, OptimizerKind::Adam { .. }) { OpKind::Adam } else { OpKind::AdamW };
                let mut spec = NodeSpec::new(op, &operands);
                spec = number(spec, "beta1", beta1);
                spec = number(spec, "beta2", beta2);
                spec = number(spec, "epsilon", epsilon);
                spec = spec.attr("bias_correction", AttrValue::Int(1));
                if let OptimizerKind::AdamW { hf, .. } = kind {
                    let mode: &[u8] = if *hf { b"hf" } else { b"torch" };
                    spec = spec.attr("mode", AttrValue::String(mode.into()));
                }
                (spec, [Some(m), Some(v)])
            }
        };
        spec = number(spec, "weight_decay", decay);
        let is_sgd = matches!(self.update.optimizer.kind, OptimizerKind::Sgd { .. });
        let n_states = states.iter().flatten().count();
        let results = self.inserter.insert_n(spec, 1 + n_states)?;
        self.mark(&results, "master-weight");
        let low_next = low.map(|low| self.write_low(results[0], low, if is_sgd { 2 } else { 3 }));
        let mut results = results.into_iter();
        let next = results.next().expect("a weight");
        self.states.push(State::new(parameter, next, WEIGHT));
        for (state, kind) in states.into_iter().flatten().zip(if is_sgd { ["v", ""] } else { ["m", "v"] }) {
            let next = results.next().expect("a state");
            self.states.push(State { of: Some(parameter), ..State::new(state, next, kind) });
        }
        if let (Some(low), Some(next)) = (low, low_next) {
            self.states.push(State { of: Some(parameter), ..State::new(low, next, LOW) });
        }
        Ok(())
    }

    /// Lets the optimizer that makes a weight make its low copy too, as result `slot`; results before it may be absent.
    fn write_low(&mut self, weight: Value, low: Value, slot: usize) -> Value {
        let module = &mut *self.inserter.module;
        let ty = module.value(low).ty.clone();
        let (node, _) = module.producer(weight).expect("an optimizer makes it");
        let number = ty.dtype().map_or(0, DType::number);
        let (key, name) = (module.intern("w_lo_dtype"), module.fresh_name("lo"));
        module.set_attr(node, key, AttrValue::Int(i64::from(number)));
        module.add_result(node, slot, name, ty)
    }

    /// The input in place of what an inserted cast makes of a parameter.
    fn low_copy(&mut self, parameter: Value) -> Option<Value> {
        let module = &mut *self.inserter.module;
        let is_low = |module: &Module, node: Node| {
            let data = module.node(node);
            let is_cast = data.schema().is_some_and(|s| s.kind == OpKind::Cast);
            let to = data.result(0).and_then(|value| module.value(value).ty.dtype());
            is_cast && data.provenance == Provenance::Inserted && to.is_some_and(DType::is_low)
        };
        let cast = module.uses(parameter).map(|(node, _)| node).find(|&node| is_low(module, node))?;
        let result = module.node(cast).result(0).filter(|&value| !module.is_output(value))?;
        let to = module.value(result).ty.dtype()?;
        let Def::Input { default: Some(Payload::Dense(data)), .. } = &module.value(parameter).def else {
            return None;
        };
        let conversion = ampc_ir::convert::Conversion { to, clamp: false };
        let low = data.converted(conversion);
        let name = format!("lo.{}", ampc_ir::verify::name_of(module, parameter));
        let input = self.state(&name, low);
        self.inserter.module.replace_value(result, input);
        self.inserter.module.erase_node(cast);
        Some(input)
    }

    /// The number of steps taken: one more, unless this one is skipped.
    fn next_step(&mut self, step: Value, found: Option<Value>) -> Result<Value, InsertError> {
        let taken = match found {
            None => self.inserter.constant("one", integer(DType::I64, 1)),
            Some(found) => {
                let proceeds = self.proceeds(found, "step")?;
                let spec = NodeSpec::new(OpKind::Cast, &[proceeds])
                    .attr("to", AttrValue::Int(i64::from(DType::I64.number())));
                let [taken] = self.insert(spec, "step")?;
                taken
            }
        };
        self.op(OpKind::Add, &[step, taken], "step")
    }

    /// Running statistics of BatchNormalization while it trains: states, which a step that is skipped leaves alone.
    fn running_statistics(&mut self, found: Option<Value>) -> Result<(), InsertError> {
        let module = &*self.inserter.module;
        let skips =
            !matches!(&self.update.scaler, Scaler::Dynamic(d) if d.on_overflow == OnOverflow::ZeroGrad);
        let mut pairs = Vec::new();
        for node in module.nodes(module.main()) {
            let Some(view) = NodeView::new(module, node) else { continue };
            if view.kind() == OpKind::BatchNormalization && BatchNormView::read(&view).training {
                for (operand, result) in [(3, 1), (4, 2)] {
                    let (old, new) = (view.operand(operand), module.node(node).result(result));
                    pairs.extend(old.zip(new).filter(|(old, _)| module.constant(*old).is_some()));
                }
            }
        }
        for (old, new) in pairs {
            // Of nodes that share statistics, the first updates them.
            if self.inserter.module.constant(old).is_none() {
                continue;
            }
            let input = expose(self.inserter.module, old, false)?;
            let next = match found.filter(|_| skips) {
                None => self.op(OpKind::Identity, &[new], "running-statistics")?,
                Some(found) => {
                    let proceeds = self.proceeds(found, "running-statistics")?;
                    self.op(OpKind::Where, &[proceeds, new, input], "running-statistics")?
                }
            };
            self.states.push(State::new(input, next, BUFFER));
        }
        Ok(())
    }

    /// The seed of dropouts stays; the offset is another one in every step, whether it is skipped or not.
    fn random_numbers(&mut self) -> Result<(), InsertError> {
        if let [seed] = with_role(self.inserter.module, dropout::SEED).collect::<Vec<_>>()[..] {
            let next = self.op(OpKind::Identity, &[seed], dropout::SEED)?;
            self.states.push(State::new(seed, next, dropout::SEED));
        }
        if let [offset] = with_role(self.inserter.module, dropout::OFFSET).collect::<Vec<_>>()[..] {
            let one = TensorData::from_bytes(DType::U64, &[], 1u64.to_le_bytes().to_vec());
            let one = self.inserter.constant("one", one.expect("one element"));
            let next = self.op(OpKind::Add, &[offset, one], dropout::OFFSET)?;
            self.states.push(State::new(offset, next, dropout::OFFSET));
        }
        Ok(())
    }

    /// The next loss scale.
    fn scaled(mut self, scale: Option<Value>, found: Option<Value>) -> Result<Vec<State>, InsertError> {
        self.random_numbers()?;
        let (Some(scale), Some(found), Scaler::Dynamic(dynamic)) = (scale, found, &self.update.scaler) else {
            return Ok(self.states);
        };
        let good = self.state("good_steps", integer(DType::I32, 0));
        let bad = (dynamic.backoff_every > 1).then(|| self.state("bad_steps", integer(DType::I32, 0)));
        let mut operands = vec![scale, good, found];
        operands.extend(bad);
        let arith: &[u8] = match dynamic.arith {
            Arith::F32Product => b"f32_product",
            Arith::F64Product => b"f64_product",
        };
        let mut spec = NodeSpec::new(OpKind::UpdateLossScale, &operands)
            .attr("growth", double(dynamic.growth))
            .attr("backoff", double(dynamic.backoff))
            .attr("interval", AttrValue::Int(i64::from(dynamic.interval)))
            .attr("backoff_every", AttrValue::Int(i64::from(dynamic.backoff_every)))
            .attr("reset_good", AttrValue::Int(i64::from(dynamic.reset_good_on_overflow)))
            .attr("arith", AttrValue::String(arith.into()));
        for (key, bound) in [("min", dynamic.min), ("max", dynamic.max)] {
            if let Some(bound) = bound {
                spec = spec.attr(key, double(bound));
            }
        }
        let results = self.inserter.insert_n(spec, operands.len() - 1)?;
        self.mark(&results, "loss-scale");
        for ((input, next), kind) in [Some(scale), Some(good), bad].into_iter().flatten().zip(results).zip([
            "loss-scale",
            "good",
            "bad",
        ]) {
            self.states.push(State::new(input, next, kind));
        }
        Ok(self.states)
    }
}

/// A scalar of f64, as attributes of the optimizers are.
fn double(number: f64) -> AttrValue {
    let data = TensorData::from_bytes(DType::F64, &[], number.to_le_bytes().to_vec());
    AttrValue::Tensor(Arc::new(data.expect("one element")))
}

/// A scalar integer.
fn integer(dtype: DType, number: i32) -> TensorData {
    let bytes = if dtype == DType::I32 {
        number.to_le_bytes().to_vec()
    } else {
        i64::from(number).to_le_bytes().to_vec()
    };
    TensorData::from_bytes(dtype, &[], bytes).expect("one element")
}

/// Zeros of a type whose dims are known.
pub(super) fn zeros_like(ty: &Type) -> Option<TensorData> {
    let tensor = ty.as_tensor()?;
    let dims = tensor.shape.to_known()?;
    let bytes = usize::try_from(tensor.storage_bytes()?).ok()?;
    TensorData::from_bytes(tensor.dtype, &dims, vec![0; bytes]).ok()
}
