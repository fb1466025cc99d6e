//! `update`: adds the update to a model with gradients: gradient check, optimizers, and the next loss scale.
//!
//! ```text
//! %inv = Reciprocal(%loss_scale)                                unscale
//! %found_inf, %sumsq = GradCheck(%inv, %w.grad, %b.grad)        is any gradient infinite or NaN?
//! %mult, %grad_norm = ClipCoef(%sumsq, %inv)                    only if gradients are clipped; else there is no %sumsq
//! %w_next, ... = AdamW(%w, %w.grad, %m.w, %v.w, %lr, %mult, %step, %found_inf)   for each parameter
//! %proceeds = Equal(%found_inf, 0)
//! %step_next = Add(%step, Cast(%proceeds))
//! %loss_scale_next, %good_steps_next = UpdateLossScale(%loss_scale, %good_steps, %found_inf)
//! ```
//!
//! Weights are kept in fp32: *master weights*. If an inserted cast to 16 bits reads a weight, the optimizer
//! writes the cast of the next weight: this *low copy* is a state too, and the cast is erased. Without master
//! weights, a weight that only such a cast reads is kept in 16 bits alone (`update/weights.rs`), and updates
//! that are less than half a unit in the last place of the weight are lost.
//!
//! Without a loss scale and without clipping there is no gradient check: every optimizer then stands right after its
//! gradient and the last reader of its weight, so that the gradient's memory is free from there on.
//!
//! With a loss scale, a step with a gradient that is infinite or NaN is skipped: weights, optimizer states, running
//! statistics and the step count keep their values; the loss scale, its counters and the dropout offset change all the same.
//! With [`OnOverflow::ZeroGrad`](super::OnOverflow::ZeroGrad) only Adam, AdamW and custom optimizers skip: SGD takes the
//! step with gradients of 0, and running statistics move on. Without a loss scale nothing is skipped, and a NaN reaches the
//! weights.
//!
//! Every state is an input, and its next value is an output of the same name followed by `_next`; [`METADATA`] lists them.

mod gradients;
mod tail;
mod weights;

use self::tail::{Trained, UpdateBuilder};
use super::forward::{self, RATE};
use super::loss_scale::Scaler;
use super::optimizer::{Optimizer, OptimizerKind};
use super::state::{State, declare, zeros_like};
use super::statistics::Statistics;
use crate::graph::metadata::METADATA;
use crate::graph::roles::{GRAD, SEED};
use crate::pass::invariants::Invariants;
use crate::pass::options::{PassOption, Setting, Spelled, Words, Wrong, option, settings};
use crate::pass::training_error::ParameterError;
pub use crate::pass::training_error::UpdateError;
use crate::pass::{Changed, Pass, PassCx, PassError};
use crate::policy::Pattern;
use crate::spelling::suggest::nearest;
use crate::spelling::words::{quoted, word};
use crate::training::autodiff::one_with_role;
use crate::training::names::{import_ampc, warn_of_name};
use crate::training::parameters::{origin_of, tied};
use crate::training::step::entry::StateKind;
use ampc_ir::infer::describe;
use ampc_ir::module::Def;
use ampc_ir::verify::name_of;
use ampc_ir::{DType, Module, Value};

/// The pass.
#[derive(Clone, Debug)]
pub struct Update {
    /// The optimizer.
    pub optimizer: Optimizer,
    /// How the loss scale that `scale-loss` has made an input changes.
    pub scaler: Scaler,
    /// The largest norm of all gradients together, to which they are clipped.
    pub clip_norm: Option<f64>,
    /// Decays of parameters by name, of which the last match counts.
    pub decay: Vec<(String, f64)>,
    /// Keep fp32 weights even if only a cast to 16 bits reads them.
    pub keeps_master_weights: bool,
    /// True if the optimizer writes low copies of weights in fp32.
    pub writes_low_copies: bool,
}

/// A pair of a name or glob and a number, `*.bias=0`.
pub fn decay_of(text: &str) -> Option<(String, f64)> {
    let (pattern, number) = text.rsplit_once('=')?;
    let number = number.parse().ok().filter(|n| (0.0..=f64::from(f32::MAX)).contains(n))?;
    (!pattern.is_empty()).then(|| (pattern.to_owned(), number))
}

/// True if gradients can be clipped to a norm: a number that is positive and finite in f32 too.
pub fn is_norm(norm: f64) -> bool {
    norm >= f64::from(f32::MIN_POSITIVE) && norm <= f64::from(f32::MAX)
}

/// The option with the decays of parameters.
const DECAY: &str = "decay";

/// The words of the option `master_weights`.
const MASTER_WEIGHTS: Words = Words { no: "none", yes: "fp32" };
/// The words of the option `low_copies`.
const LOW_COPIES: Words = Words { no: "none", yes: "written" };

impl Spelled for Update {
    const NAME: &'static str = "update";
    const ABOUT: &'static str = "checks gradients, updates weights in fp32, and adjusts the loss scale";
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
                let positive = |word: &str| word.parse().ok().filter(|&norm| is_norm(norm));
                let norm =
                    given.read(|word| if word == "none" { Some(None) } else { positive(word).map(Some) });
                norm.map(|norm| pass.clip_norm = norm)
            },
        },
        PassOption {
            def: option(DECAY, "GLOB=X with `+` between them", Some("")),
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
            def: option("master_weights", "fp32 or none", Some(MASTER_WEIGHTS.yes)),
            print: |pass| (!pass.keeps_master_weights).then(|| Setting::word(MASTER_WEIGHTS.no)),
            read: |pass, given| given.either(MASTER_WEIGHTS).map(|keeps| pass.keeps_master_weights = keeps),
        },
        PassOption {
            def: option("low_copies", "written or none", Some(LOW_COPIES.yes)),
            print: |pass| (!pass.writes_low_copies).then(|| Setting::word(LOW_COPIES.no)),
            read: |pass, given| given.either(LOW_COPIES).map(|writes| pass.writes_low_copies = writes),
        },
    ];
    fn blank() -> Self {
        Update::default()
    }
}

impl Default for Update {
    /// AdamW with the default scaler.
    fn default() -> Update {
        Update {
            optimizer: "adamw".parse().expect("it is one"),
            scaler: "ampc".parse().expect("it is one"),
            clip_norm: None,
            decay: Vec::new(),
            keeps_master_weights: true,
            writes_low_copies: true,
        }
    }
}

impl Update {
    /// The default with another optimizer.
    pub fn with(optimizer: impl Into<Optimizer>) -> Update {
        Update { optimizer: optimizer.into(), ..Update::default() }
    }

    /// The settings in the order of the options, as the pass spells them. Options without a value are absent.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let setting = |option: &PassOption<Update>| match (option.print)(self) {
            // A list keeps its quotes.
            Some(Setting::Text(text)) if option.def.name == DECAY => Some(text),
            Some(Setting::Text(text)) => Some(word(&text).unwrap_or(text)),
            Some(Setting::Policy(_) | Setting::Target(_)) => None,
            None => option.def.default.filter(|default| !["", "none"].contains(default)).map(str::to_owned),
        };
        Update::OPTIONS.iter().filter_map(|option| Some((option.def.name, setting(option)?))).collect()
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
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let pairs = parameters_and_gradients(module)?;
        for &(parameter, _) in &pairs {
            self.check_parameter(module, parameter)?;
        }
        self.check_options()?;
        let decays = self.decays(module, &pairs)?;
        let scale = one_with_role(module, SEED)?;
        import_ampc(module);
        module.header.ir_version = module.header.ir_version.max(IR_VERSION);
        let forward = forward::forward_interface(module);
        forward::note_forward(module, forward);
        warn_of_statistics(module, cx);
        let pairs = pairs.into_iter().zip(decays);
        let mut trained: Vec<Trained> =
            pairs.map(|((parameter, gradient), decay)| Trained { parameter, gradient, decay }).collect();
        // A gradient that the step gives, or that a custom optimizer reads, has the type of its parameter.
        if !matches!(self.optimizer.kind, OptimizerKind::None | OptimizerKind::Custom(_)) {
            gradients::keep_low(module, &mut trained);
        }
        let (states, renamed) = UpdateBuilder::new(self, module).build(&trained, scale)?;
        if let Some((_, name)) = renamed.iter().find(|(wanted, _)| wanted == RATE) {
            forward::note_rate(module, name);
        }
        renamed.iter().for_each(|(wanted, found)| warn_of_name(wanted, found, cx));
        self.warn_of_master_weights(module, &states, cx);
        declare(module, &states, &self.scaler, cx);
        Ok(Changed::Yes)
    }
}

/// The parameters of a model that is not a step yet, each with its gradient.
fn parameters_and_gradients(module: &Module) -> Result<Vec<(Value, Value)>, UpdateError> {
    let roles = &module.graph(module.main()).roles;
    let pairs = roles.iter().filter(|role| module.text(role.name) == GRAD);
    let pairs: Vec<(Value, Value)> =
        pairs.filter_map(|role| Some((*role.values.first()?, *role.values.get(1)?))).collect();
    if pairs.is_empty() {
        return Err(UpdateError::NoGradients);
    }
    if module.header.metadata.iter().any(|(key, _)| key == METADATA) {
        return Err(UpdateError::IsStep);
    }
    Ok(pairs)
}

/// Warns of running statistics that training cannot update.
fn warn_of_statistics(module: &Module, cx: &mut PassCx<'_>) {
    let unchanged = Statistics::of(module).unchanged;
    let Some((node, why)) = unchanged.first() else { return };
    let others = match unchanged.len() - 1 {
        0 => String::new(),
        n => format!(" (and those of {n} more)"),
    };
    let message = format!(
        "running statistics stay unchanged{others}: {why}; give every node constants of its own, and results for their \
         next values"
    );
    cx.warn("update.statistics", Some(*node), message);
}

/// The version of the IR from which on functions have overloads.
const IR_VERSION: i64 = 10;

impl Update {
    /// True if the step has an optimizer.
    fn has_optimizer(&self) -> bool {
        self.optimizer.kind != OptimizerKind::None
    }

    /// True if gradients are checked before the first weight is updated: to skip the step, or to clip them.
    fn checks_gradients(&self, scale: Option<Value>) -> bool {
        scale.is_some() || self.clip_norm.is_some()
    }

    /// Checks that a parameter can be updated.
    fn check_parameter(&self, module: &Module, parameter: Value) -> Result<(), UpdateError> {
        let data = module.value(parameter);
        let described = || (name_of(module, parameter), describe(&data.ty));
        if !matches!(data.def, Def::Input { .. }) {
            return Err(UpdateError::NoInput { name: name_of(module, parameter) });
        }
        if zeros_like(&data.ty).is_none() {
            let (name, found) = described();
            return Err(UpdateError::Unsized { name, found });
        }
        if self.has_optimizer() && data.ty.dtype() == Some(DType::F64) {
            let (name, found) = described();
            return Err(UpdateError::Wide { name, found });
        }
        Ok(())
    }

    /// Checks that options that only an optimizer can fulfil have one.
    fn check_options(&self) -> Result<(), UpdateError> {
        let given = [
            ("decay", "--decay", !self.decay.is_empty()),
            ("clip_norm", "--clip-norm", self.clip_norm.is_some()),
        ];
        match given.into_iter().find(|(.., is_given)| *is_given && !self.has_optimizer()) {
            Some((option, flag, _)) => Err(UpdateError::NoOptimizer { option, flag }),
            None => Ok(()),
        }
    }

    /// Warns if weights should be kept in 16 bits alone, but no weight is.
    fn warn_of_master_weights(&self, module: &Module, states: &[State], cx: &mut PassCx<'_>) {
        let is_low = |state: &State| {
            state.kind == StateKind::Weight && module.value(state.input).ty.dtype().is_some_and(DType::is_low)
        };
        if self.keeps_master_weights || states.iter().any(is_low) {
            return;
        }
        let message = if self.has_optimizer() {
            "every weight is kept in fp32: none is read in 16 bits alone"
        } else {
            "`master_weights=none` has no effect without an optimizer: weights are inputs of the step, and no states"
        };
        cx.warn("update.master_weights", None, message.to_owned());
    }

    /// The decay of each parameter.
    fn decays(&self, module: &Module, pairs: &[(Value, Value)]) -> Result<Vec<f64>, ParameterError> {
        let patterns: Vec<(Pattern, f64)> = self
            .decay
            .iter()
            .map(|(text, decay)| Ok((Pattern::of_values(text)?, *decay)))
            .collect::<Result<_, ParameterError>>()?;
        let mut matched = vec![false; patterns.len()];
        let mut decays = Vec::with_capacity(pairs.len());
        let tied = tied(module);
        for &(parameter, _) in pairs {
            let name = name_of(module, parameter);
            let mut decay = self.optimizer.weight_decay;
            let origin = origin_of(module, parameter).unwrap_or(&name);
            let tied = tied.iter().filter(|(_, owner)| owner == origin).map(|(name, _)| name.as_str());
            let names: Vec<&str> = [name.as_str(), origin].into_iter().chain(tied).collect();
            for (i, (pattern, own)) in patterns.iter().enumerate() {
                if names.iter().any(|name| pattern.given() == *name || pattern.matches(name)) {
                    (decay, matched[i]) = (*own, true);
                }
            }
            decays.push(decay);
        }
        match matched.iter().position(|matched| !matched) {
            Some(i) => {
                let pattern = self.decay[i].0.clone();
                let names = pairs.iter().map(|&(parameter, _)| name_of(module, parameter));
                let names: Vec<String> = names.collect();
                let near = nearest(&pattern, names.iter().map(String::as_str)).map(str::to_owned);
                Err(ParameterError::MatchesNothing { pattern, what: "parameter", near })
            }
            None => Ok(decays),
        }
    }
}
