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
//! Weights are kept in fp32: *master weights*. Where an inserted cast to 16 bits reads a weight, the optimizer writes what
//! the cast would make of the next weight: this *low copy* is a state too, and the cast goes. Without master weights, what
//! only such a cast reads is kept in 16 bits alone ([`weights`]), and updates that are less than half a unit in the last
//! place of the weight are lost.
//!
//! Without a loss scale and without clipping, nobody looks at all gradients together: every optimizer then stands right
//! behind its gradient and the last reader of its weight, so that the gradient ends there.
//!
//! A step with a gradient that is not finite is skipped: weights, states of the optimizer, running statistics and the number
//! of steps stay as they are. The loss scale, the counters of the scaler and the offset of dropouts change all the same.
//!
//! Every state is an input, and its next value is an output of the same name with `_next` behind it;
//! [`METADATA`] lists them.

mod tail;
mod weights;

use self::tail::{Tail, Trained};
use super::inference::{self, RATE};
use super::loss_scale::Scaler;
use super::optimizer::{Optimizer, OptimizerKind};
use super::state::{METADATA, State, declare, zeros_like};
use super::statistics::Statistics;
use super::warn_of_name;
use crate::autodiff::{GRAD, SEED, one_with_role};
use crate::invariants::Invariants;
use crate::parameters::ParameterError;
use crate::pass::{Changed, Pass, PassCx, PassError};
use crate::pipeline::{PassOption, Setting, Spelled, Words, Wrong, option, quoted, settings};
use crate::policy::Pattern;
use crate::suggest::nearest;
use ampc_ir::inserter::InsertError;
use ampc_ir::module::Def;
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
    /// Decays of parameters by name, of which the last that matches holds.
    pub decay: Vec<(String, f64)>,
    /// Whether weights are kept in fp32 though they are read in 16 bits only.
    pub keeps_master_weights: bool,
    /// Whether the optimizer writes low copies of weights in fp32.
    pub writes_low_copies: bool,
}

/// A pair of a name or glob and a number, `*.bias=0`.
pub fn decay_of(text: &str) -> Option<(String, f64)> {
    let (pattern, number) = text.rsplit_once('=')?;
    let number = number.parse().ok().filter(|&n: &f64| n >= 0.0 && n.is_finite())?;
    (!pattern.is_empty()).then(|| (pattern.to_owned(), number))
}

/// The words of the option `master_weights`.
const MASTER_WEIGHTS: Words = Words { no: "none", yes: "fp32" };
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
        let forward = inference::forward_interface(module);
        inference::note_forward(module, forward);
        let fixed = Statistics::of(module).fixed;
        if let Some((node, why)) = fixed.first() {
            let others = match fixed.len() - 1 {
                0 => String::new(),
                n => format!(" (and those of {n} more)"),
            };
            let message = format!(
                "running statistics stay as they are{others}: {why}; give every node constants of its own, and results for \
                 their next values"
            );
            cx.warn("update.statistics", Some(*node), message);
        }
        let pairs = pairs.into_iter().zip(decays);
        let trained: Vec<Trained> =
            pairs.map(|((parameter, gradient), decay)| Trained { parameter, gradient, decay }).collect();
        let (states, renamed) = Tail::new(self, module).build(&trained, scale)?;
        if let Some((_, name)) = renamed.iter().find(|(wanted, _)| wanted == RATE) {
            inference::note_rate(module, name);
        }
        renamed.iter().for_each(|(wanted, found)| warn_of_name(wanted, found, cx));
        let is_low = |state: &State| module.value(state.input).ty.dtype().is_some_and(DType::is_low);
        if !self.keeps_master_weights && !states.iter().any(is_low) {
            let message = "every weight is kept in fp32: none is read in 16 bits alone".to_owned();
            cx.warn("update.master_weights", None, message);
        }
        declare(module, &states, &self.scaler, cx);
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
