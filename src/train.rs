//! From a forward model to a training step.
//!
//! [`train_step`] adds a loss, decides precisions as a rewrite does, differentiates, and adds the update of the
//! weights: a model whose inputs are data and state, and whose outputs are the loss and the next state. The
//! passes are in [`ampc_passes::step`].

mod init;
pub(crate) mod values;

pub use crate::identity::{identity_of, is_step, refuse_state_of_other};
pub use crate::options::train::TrainOptions;
pub use init::{Initialized, init_state};

use crate::batch::Batch;
use crate::error::Error;
use crate::identity::identify;
use crate::loaded::Model;
use crate::onnx::ExportError;
use crate::rewrite::{pipeline_of, run_pipeline};
use crate::safetensors;
use crate::state_hash;
use ampc_ir::{Module, Payload, TensorData, Type, Value};
use ampc_passes::autodiff::Autodiff;
use ampc_passes::dce::Dce;
use ampc_passes::evaluate_constants::EvaluateConstants;
use ampc_passes::parameters::{ExposeParameters, Parameters};
use ampc_passes::pipeline::{Observer, Pipeline};
use ampc_passes::raise_opset::{RaiseOpset, Target};
use ampc_passes::recompute::{MemoryPlanner, Recompute};
use ampc_passes::step::dropout;
use ampc_passes::step::inference::{RATE, forward_of, inputs_of_forward};
use ampc_passes::step::loss_scale::ScaleLoss;
use ampc_passes::step::state::{IDENTITY, StateKind, states_of};
use ampc_passes::step::{AvoidFusions, Inference, Loss, PhiloxDropout, StableLoss};
use ampc_passes::{Pass, Warning};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

/// A training step and the state that it begins with.
#[derive(Debug)]
pub struct TrainStep {
    /// The model: data and state in, loss and next state out. It has no initial state itself.
    pub model: Model,
    /// The state in the beginning, by the names of the inputs.
    pub state: State,
    /// Warnings of passes.
    pub warnings: Vec<Warning>,
}

/// The oldest opset of ai.onnx that the operators of a step can be written for.
const MIN_OPSET: u16 = ampc_ir::bodies::MIN_OPSET;

/// Makes a training step of a forward model.
///
/// # Errors
/// If the model is invalid or a step already, the loss does not fit it, or an operator on the way from a parameter to the
/// loss has no gradient.
pub fn train_step(mut model: Model, options: &TrainOptions) -> Result<TrainStep, Error> {
    let (state, warnings) = train_step_in_place(&mut model, options, &mut ())?;
    Ok(TrainStep { model, state, warnings })
}

/// A state by the names of the inputs of a step.
pub type State = Vec<(String, Arc<TensorData>)>;

/// [`train_step`] with an observer, on a model that stays with the caller, who can inspect it after an error.
/// Returns the state that the step begins with, and warnings.
///
/// # Errors
/// As [`train_step`].
pub fn train_step_in_place(
    model: &mut Model,
    options: &TrainOptions,
    observer: &mut dyn Observer,
) -> Result<(State, Vec<Warning>), Error> {
    if is_step(&model.module) {
        let message = "the model already is a training step: use the model from which it was made";
        return Err(Error::Unsupported(message.into()));
    }
    let pipeline = pipeline_of_step(&model.module, options)?;
    let warnings = run_pipeline(model, &pipeline, options.verify_each, observer)?;
    let state = take_state(&mut model.module);
    identify(&mut model.module)?;
    Ok((state, warnings))
}

/// The name of the input of a step that is the learning rate; none if the step has no optimizer.
///
/// # Errors
/// If the model is not a step, or its metadata is damaged.
pub fn rate_of(step: &Module) -> Result<Option<String>, Error> {
    let forward = forward_of(step).map_err(|error| Error::Pass(error.into()))?;
    let states = states_of(step).map_err(|error| Error::Pass(error.into()))?;
    let name = forward.lr.unwrap_or_else(|| RATE.to_owned());
    let is_own = forward.inputs.contains(&name) || states.iter().any(|state| state.input == name);
    let mut inputs = step.graph(step.main()).inputs().iter();
    let is_there = inputs.any(|&input| ampc_ir::verify::name_of(step, input) == name);
    Ok(Some(name).filter(|_| is_there && !is_own))
}

/// The passes that make a step of a model.
///
/// # Errors
/// If they do not fit each other, which is a bug.
pub fn pipeline_of_step(module: &Module, options: &TrainOptions) -> Result<Pipeline, Error> {
    let mut passes: Vec<Box<dyn Pass>> = Vec::new();
    let least = if dropout::draws(module) { ampc_ir::bodies::BITS_SINCE } else { MIN_OPSET };
    if module.opset(module.main(), "").is_some_and(|opset| opset < least) {
        passes.push(Box::new(RaiseOpset { to: Target::Opset(least) }));
    }
    passes.push(Box::new(EvaluateConstants));
    let loss = Loss {
        spec: options.loss.clone(),
        target: options.target.clone(),
        keeps_fp32: options.keeps_loss_fp32,
    };
    passes.push(Box::new(Parameters {
        loss: None,
        train: options.train.clone(),
        freeze: options.freeze.clone(),
        stop: options.stop_gradient.clone(),
    }));
    passes.push(Box::new(loss));
    passes.push(Box::new(StableLoss { keeps_fp32: options.keeps_loss_fp32 }));
    passes.push(Box::new(PhiloxDropout { seed: options.dropout_seed }));
    if let Some(precision) = &options.precision {
        passes.extend(pipeline_of(precision).into_passes());
    }
    let step: [Box<dyn Pass>; 6] = [
        Box::new(ExposeParameters),
        Box::new(ScaleLoss { scaler: options.update.scaler.clone() }),
        Box::new(Autodiff {
            freezes_unreached: options.freezes_unreached,
            gives_gradients: false,
            custom: options.gradients.clone(),
        }),
        Box::new(options.update.clone()),
        Box::new(AvoidFusions),
        Box::new(Dce),
    ];
    passes.extend(step);
    if options.recomputes {
        passes.push(Box::new(Recompute { dims: options.dims.clone(), planner: planner() }));
    }
    Ok(Pipeline::new(passes)?)
}

/// The planner of the runtime.
#[cfg(feature = "run")]
#[expect(clippy::unnecessary_wraps, reason = "without the runtime there is none")]
fn planner() -> Option<MemoryPlanner> {
    Some(Arc::new(crate::memory::planned))
}

/// No planner: there is no runtime.
#[cfg(not(feature = "run"))]
fn planner() -> Option<MemoryPlanner> {
    None
}

/// The forward model that a step was made of, with the weights and running statistics of a state, whose other
/// tensors may be absent. It computes as the forward part of the step did, with nodes that train in inference
/// mode.
///
/// # Errors
/// If the model is not a step, or the state lacks a weight or has a weight of another type.
pub fn inference_model(mut step: Model, state: &State) -> Result<Model, Error> {
    let module = &mut step.module;
    let by_name: BTreeMap<&str, &Arc<TensorData>> =
        state.iter().map(|(name, data)| (name.as_str(), data)).collect();
    for input in trained(module)? {
        let name = ampc_ir::verify::name_of(module, input);
        let Some(&data) = by_name.get(name.as_str()) else {
            return Err(Error::Usage(format!("the state has no tensor `{name}`, which the step reads")));
        };
        let (wanted, found) = (&module.value(input).ty, Type::tensor(data.dtype(), data.shape()));
        if *wanted != found {
            let (wanted, found) = (ampc_ir::infer::describe(wanted), ampc_ir::infer::describe(&found));
            return Err(Error::Usage(format!("`{name}` of the state: expected {wanted}, found {found}")));
        }
        module.set_default(input, Payload::Dense(data.clone()));
    }
    for input in untold(module)? {
        let data = by_name.get(ampc_ir::verify::name_of(module, input).as_str()).copied();
        let fits =
            |data: &&Arc<TensorData>| module.value(input).ty == Type::tensor(data.dtype(), data.shape());
        if let Some(data) = data.filter(fits) {
            module.set_default(input, Payload::Dense(data.clone()));
        }
    }
    let passes: Vec<Box<dyn Pass>> = vec![Box::new(Inference::default())];
    let pipeline = Pipeline::new(passes)?;
    run_pipeline(&mut step, &pipeline, false, &mut ())?;
    Ok(step)
}

/// A model that evaluates the loss of a step: the loss is its output, weights and running statistics are
/// inputs, and nodes with a training mode are in inference mode.
///
/// # Errors
/// If the model is not a step, or does not say which output is the loss.
pub fn loss_model(mut step: Model) -> Result<Model, Error> {
    let passes: Vec<Box<dyn Pass>> = vec![Box::new(Inference { of_loss: true })];
    run_pipeline(&mut step, &Pipeline::new(passes)?, false, &mut ())?;
    Ok(step)
}

/// The inputs of a step that may be weights though they are not states: without an optimizer weights are inputs alone.
fn untold(module: &Module) -> Result<Vec<Value>, Error> {
    let states = states_of(module).map_err(|error| Error::Pass(error.into()))?;
    let own = inputs_of_forward(module).map_err(|error| Error::Pass(error.into()))?;
    let told: BTreeSet<&str> =
        states.iter().map(|state| &state.input).chain(&own).map(String::as_str).collect();
    let inputs = module.graph(module.main()).inputs().iter().copied();
    Ok(inputs.filter(|&input| !told.contains(ampc_ir::verify::name_of(module, input).as_str())).collect())
}

/// The inputs of a step that the forward model needs: weights and running statistics.
fn trained(module: &Module) -> Result<Vec<Value>, Error> {
    let states = states_of(module).map_err(|error| Error::Pass(error.into()))?;
    let wanted: BTreeSet<&str> = states
        .iter()
        .filter(|state| matches!(state.kind, StateKind::Weight | StateKind::Buffer))
        .map(|state| state.input.as_str())
        .collect();
    let inputs = module.graph(module.main()).inputs().iter().copied();
    Ok(inputs.filter(|&input| wanted.contains(ampc_ir::verify::name_of(module, input).as_str())).collect())
}

/// Reads the weights and running statistics of a step from a safetensors file, where they have the names of its
/// inputs; other states of the step may be absent.
///
/// # Errors
/// As [`check_state`], except that only weights and running statistics have to be there.
pub fn read_weights(step: &Module, path: &Path) -> Result<State, Error> {
    let is_weight = |kind: StateKind| matches!(kind, StateKind::Weight | StateKind::Buffer);
    let mut state = read_state(step, path, is_weight)?;
    let kinds = kinds_of(step)?;
    state.retain(|(name, _)| kinds.get(name).is_none_or(|&kind| is_weight(kind)));
    Ok(state)
}

/// Checks the metadata of a step: its lists of states, inputs and outputs, its loss, its learning rate and its loss scaler.
///
/// # Errors
/// If the model is no step, or the metadata is damaged or not true of it.
pub fn check_step(step: &Module) -> Result<(), Error> {
    forward_of(step).map(drop).map_err(|error| Error::Pass(error.into()))
}

/// Checks that the safetensors file at `path` is a state or checkpoint of this step: it has each state of the step, with
/// its type and possible values, nothing else, and is not that of another step.
///
/// # Errors
/// If the model is no step, the file cannot be read or is a checkpoint that was damaged or edited, or it is not a state of
/// this step or has impossible values: all tensors that are wrong.
pub fn check_state(step: &Module, path: &Path) -> Result<(), Error> {
    read_state(step, path, |_| true).map(drop)
}

/// Reads the state of a step from a safetensors file and checks all of its tensors. States of kinds that are not
/// `needed` may be absent. Tensors are ranges of the file; their values are read once, and once more for the hash of a
/// checkpoint.
fn read_state(step: &Module, path: &Path, needed: impl Fn(StateKind) -> bool) -> Result<State, Error> {
    check_step(step)?;
    let (tensors, _) = safetensors::Tensors::open(path)?.ok_or_else(|| safetensors::not_found(path))?;
    state_hash::check(&tensors, path)?;
    let kinds = kinds_of(step)?;
    // Without an optimizer, weights are inputs and no states.
    let is_updated = kinds.values().any(|&kind| kind == StateKind::Weight);
    let untold = if is_updated { Vec::new() } else { untold(step)? };
    let mut fit = Fit::default();
    for &input in step.graph(step.main()).inputs() {
        let name = ampc_ir::verify::name_of(step, input);
        let kind = kinds.get(&name).copied();
        if kind.is_some() || untold.contains(&input) {
            let is_needed = kind.is_some_and(&needed);
            fit.tensor(name, (kind, is_needed), &step.value(input).ty, &tensors, path)?;
        }
    }
    let what = if is_updated { "state" } else { "input" };
    for (name, _) in tensors.iter().filter(|(name, _)| !fit.known.contains(*name)) {
        fit.wrong.push(format!("`{name}`: the step has no such {what}"));
    }
    refuse(fit.wrong, "it is not a state of this step: ", path)?;
    refuse(fit.impossible, "", path)?;
    refuse_state_of_other(identity_of(step)?.as_deref(), tensors.metadata(IDENTITY), path)?;
    Ok(fit.state)
}

/// The states of a step by the names of their inputs.
fn kinds_of(step: &Module) -> Result<BTreeMap<String, StateKind>, Error> {
    let states = states_of(step).map_err(|error| Error::Pass(error.into()))?;
    Ok(states.into_iter().map(|state| (state.input, state.kind)).collect())
}

/// The tensors of a file compared with the inputs of a step.
#[derive(Default)]
struct Fit {
    state: State,
    /// The names of the inputs that were looked for.
    known: BTreeSet<String>,
    /// Tensors that are absent or of another type, in words.
    wrong: Vec<String>,
    /// Tensors with values that no state has, in words.
    impossible: Vec<String>,
}

impl Fit {
    /// Looks for the tensor of an input of a type.
    fn tensor(
        &mut self,
        name: String,
        (kind, is_needed): (Option<StateKind>, bool),
        ty: &Type,
        tensors: &safetensors::Tensors,
        path: &Path,
    ) -> Result<(), Error> {
        self.known.insert(name.clone());
        let described = || ampc_ir::infer::describe(ty);
        let Some(entry) = tensors.get(&name) else {
            if is_needed {
                self.wrong.push(format!("`{name}`: expected {}, found none", described()));
            }
            return Ok(());
        };
        let Some((dtype, dims)) = ty.dtype().zip(ty.shape().and_then(ampc_ir::Shape::to_known)) else {
            self.wrong.push(format!("`{name}`: its type in the step is not known"));
            return Ok(());
        };
        let Some(data) = entry.read_as(dtype, &dims) else {
            self.wrong.push(format!("`{name}`: expected {}, found {}", described(), entry.describe()));
            return Ok(());
        };
        let problem = values::problem_of(kind, &data).map_err(|error| Error::Data {
            path: path.to_owned(),
            reason: format!("`{name}` cannot be read: {error}"),
        })?;
        self.impossible.extend(problem.map(|problem| format!("`{name}`: {problem}")));
        self.state.push((name, Arc::new(data)));
        Ok(())
    }
}

/// Refuses the state at `path` if some of its tensors are wrong; `heading` precedes the list of them.
fn refuse(mut wrong: Vec<String>, heading: &str, path: &Path) -> Result<(), Error> {
    if wrong.is_empty() {
        return Ok(());
    }
    let more = wrong.len().saturating_sub(MOST_NAMED);
    wrong.truncate(MOST_NAMED);
    let mut reason = wrong.join("; ");
    if more > 0 {
        let _ = write!(reason, "; and {more} more");
    }
    Err(Error::Data { path: path.to_owned(), reason: format!("{heading}{reason}") })
}

/// The maximal number of unfitting tensors that a message names.
const MOST_NAMED: usize = 5;

/// Takes the values with which states begin from the inputs.
fn take_state(module: &mut Module) -> State {
    let inputs = module.graph(module.main()).inputs().to_vec();
    let parameters = ampc_passes::autodiff::with_role(module, ampc_passes::autodiff::PARAMETER);
    let states = module.graph(module.main()).states.iter().map(|&(input, _)| input);
    let known: BTreeSet<_> = parameters.chain(states).collect();
    let mut state = Vec::new();
    for input in inputs.into_iter().filter(|input| known.contains(input)) {
        let name = ampc_ir::verify::name_of(module, input);
        if let Some(Payload::Dense(data)) = module.take_default(input) {
            state.push((name, data));
        }
    }
    state
}

/// Stages a state in a batch as a safetensors file, by the names of the inputs of the step. Returns how many bytes it has.
///
/// # Errors
/// If the file exists and `force` is not set, is one that the model was read from, or cannot be written.
pub fn stage_state(
    state: &State,
    model: &Model,
    path: &Path,
    force: bool,
    batch: &mut Batch,
) -> Result<u64, Error> {
    let identity = identity_of(&model.module)?;
    let identity = identity.as_deref().map(|identity| (IDENTITY, identity));
    let layout = safetensors::layout_with(state.clone(), &identity.into_iter().collect::<Vec<_>>())?;
    let bytes = layout.len();
    let read = model.files();
    batch.stage(layout, path, force, &read).map_err(ExportError::from)?;
    Ok(bytes)
}
