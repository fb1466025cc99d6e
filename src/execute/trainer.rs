//! Training with a step whose state stays in the runtime and is updated in place.
//!
//! A [`Trainer`] takes a training step ([`train`](crate::train)) and an initial state. [`Trainer::step`] runs one
//! batch. The state is read and set under the names of the step's inputs, as in files.

use super::batch_row::BatchRow;
use super::inputs::no_memory;
use crate::error::run::InputProblem;
use crate::error::{Error, Finding};
use crate::interface::{describe, input_names, output_names};
use crate::loaded::Model;
use crate::memory::Plans;
use crate::run_errors::of_run;
use crate::train::State;
use crate::train::values::{NAN, range_problem};
use ampc_ir::module::Def;
use ampc_ir::op::OpKind;
use ampc_ir::verify::name_of;
use ampc_ir::{Module, TensorData, Type, Value};
use ampc_passes::step::inference::forward_of;
use ampc_passes::step::{StateEntry, StateKind, restore_states, states_of};
use ampc_runtime::backend::Choices;
use ampc_runtime::data::emptied;
use ampc_runtime::host::read_constant;
use ampc_runtime::plan::Peak;
use ampc_runtime::session::{Executable, ExecuteError, NodeObserver};
use ampc_runtime::{DataRef, HostError, HostTensor, Runtime, Session, TensorRef};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A training step with its state, which runs batch by batch.
pub struct Trainer {
    session: Session,
    executable: Arc<Executable>,
    /// The names of the inputs, in order.
    inputs: Vec<String>,
    /// The index of an input by name.
    places: FxHashMap<String, usize>,
    /// The kinds of the inputs that are states.
    kinds: Vec<Option<StateKind>>,
    /// The names of the outputs, in order.
    outputs: Vec<String>,
    /// The states for the next run, by input, before the runtime has a place for them.
    given: BTreeMap<usize, HostTensor>,
    /// A reusable list for the values of the inputs, empty between steps.
    values: Vec<Option<DataRef<'static>>>,
    /// The index of the learning-rate input.
    lr: Option<usize>,
    scalars: ScalarOutputs,
    identity: Option<String>,
}

impl std::fmt::Debug for Trainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trainer")
            .field("inputs", &self.inputs)
            .field("outputs", &self.outputs)
            .finish_non_exhaustive()
    }
}

/// The scalars that a step returns about itself.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct StepResult {
    /// The loss of the batch, with the weights before the step.
    pub loss: Option<f64>,
    /// True if a gradient was not finite. The step was then skipped, unless its scaler replaces the gradients by 0.
    pub skipped: bool,
    /// The loss scale of the next step, if the scale is dynamic.
    pub loss_scale: Option<f64>,
    /// The norm of all unscaled gradients, if the step clips.
    pub grad_norm: Option<f64>,
}

/// The error of a batch, and the row that it refers to, if known.
pub(super) struct StepError {
    pub(super) error: Box<Error>,
    pub(super) row: Option<Box<BatchRow>>,
}

impl From<Error> for StepError {
    fn from(error: Error) -> StepError {
        StepError { error: Box::new(error), row: None }
    }
}

/// The indices of the outputs from which [`StepResult`] is read.
#[derive(Clone, Copy, Debug, Default)]
struct ScalarOutputs {
    loss: Option<usize>,
    found_inf: Option<usize>,
    loss_scale: Option<usize>,
    grad_norm: Option<usize>,
}

impl ScalarOutputs {
    /// The scalar outputs of a step after type inference. The model may have outputs with the same names as those of
    /// the step.
    fn of(module: &Module) -> Result<ScalarOutputs, Error> {
        let loss = forward_of(module).map_err(|error| Error::Pass(error.into()))?.loss;
        let outputs: Vec<Value> = module.graph(module.main()).outputs().iter().map(|o| o.value).collect();
        let result = |kind: OpKind, slot: usize| {
            outputs.iter().position(|&output| {
                let maker = module.producer(output).filter(|&(_, at)| at as usize == slot);
                maker
                    .and_then(|(node, _)| module.node(node).schema())
                    .is_some_and(|schema| schema.kind == kind)
            })
        };
        let named = |name: &str| outputs.iter().position(|&output| name_of(module, output) == name);
        let states = states_of(module).map_err(|error| Error::Pass(error.into()))?;
        let scale = states.iter().find(|state| state.kind == StateKind::LossScale);
        Ok(ScalarOutputs {
            loss: loss.as_deref().and_then(named),
            found_inf: result(OpKind::GradCheck, 0),
            loss_scale: scale.and_then(|state| named(&state.output)),
            grad_norm: result(OpKind::ClipCoef, 1),
        })
    }

    /// The indices of the outputs.
    fn outputs(self) -> SmallVec<[usize; 4]> {
        let ScalarOutputs { loss, found_inf, loss_scale, grad_norm } = self;
        [loss, found_inf, loss_scale, grad_norm].into_iter().flatten().collect()
    }

    /// Writes the number of an output to its field of `stepped`, if it has one.
    fn read(self, output: usize, data: DataRef<'_>, stepped: &mut StepResult) {
        let number = || data.tensor().and_then(TensorRef::first_f64);
        if Some(output) == self.loss {
            stepped.loss = number();
        } else if Some(output) == self.found_inf {
            stepped.skipped = number().is_some_and(|found| found != 0.0);
        } else if Some(output) == self.loss_scale {
            stepped.loss_scale = number();
        } else if Some(output) == self.grad_norm {
            stepped.grad_norm = number();
        }
    }
}

impl Trainer {
    /// A step with its initial state.
    ///
    /// # Errors
    /// If the model is not a step, the state lacks a tensor or has one of another type, the runtime lacks a kernel,
    /// or a step with known dims exceeds the device memory limit. In the last case nothing was allocated.
    pub fn new(step: Model, state: &State, runtime: &Runtime) -> Result<Trainer, Error> {
        let mut module = step.module;
        let states = places_of_states(&mut module)?;
        let lr = crate::train::rate_of(&module)?;
        let identity = crate::identity::identity_of(&module)?;
        let session = super::session::prepare(&mut module, runtime)?;
        let (inputs, outputs) = (input_names(&module), output_names(&module));
        let places: FxHashMap<String, usize> = inputs.iter().cloned().zip(0..).collect();
        let mut kinds = vec![None; inputs.len()];
        states.into_iter().for_each(|(at, kind)| kinds[at] = Some(kind));
        let scalars = ScalarOutputs::of(&module)?;
        let mut trainer = Trainer {
            lr: lr.and_then(|name| places.get(&name).copied()),
            scalars,
            identity,
            executable: session.executable().clone(),
            session,
            inputs,
            outputs,
            places,
            kinds,
            given: BTreeMap::new(),
            values: Vec::new(),
        };
        if runtime.limits.max_device_bytes.is_some() {
            trainer.plan_ahead()?;
        }
        trainer.set_state(state)?;
        Ok(trainer)
    }

    /// Plans the step before its states take device memory. A step with open dims is not planned.
    ///
    /// # Errors
    /// If the plan needs more device memory than the limit.
    fn plan_ahead(&mut self) -> Result<(), Error> {
        let module = self.session.module();
        let formals = module.graph(module.main()).inputs().iter().zip(&self.kinds);
        let types = formals.map(|(&value, kind)| {
            let is_absent =
                kind.is_none() && matches!(module.value(value).def, Def::Input { default: Some(_), .. });
            (!is_absent).then(|| module.value(value).ty.clone())
        });
        let types: Vec<Option<Type>> = types.collect();
        let is_known = |ty: &Type| ty.shape().is_some_and(|shape| shape.to_known().is_some());
        if types.iter().flatten().all(is_known) {
            self.session.plan_for(types).map_err(|error| of_run(self.session.module(), &error))?;
        }
        Ok(())
    }

    /// The names of the inputs in a batch: data, targets and `lr`. Inputs with a default may be absent.
    pub fn batch_inputs(&self) -> impl Iterator<Item = &str> {
        let names = self.inputs.iter().zip(&self.kinds);
        names.filter(|(_, kind)| kind.is_none()).map(|(name, _)| name.as_str())
    }

    /// The name of the learning-rate input, if the step has an optimizer.
    pub fn lr_input(&self) -> Option<&str> {
        self.lr.map(|at| self.inputs[at].as_str())
    }

    /// True if the step has a state of this name.
    pub fn has_state(&self, name: &str) -> bool {
        self.places.get(name).is_some_and(|&at| self.kinds[at].is_some())
    }

    /// The [identity](crate::train::identity_of) of the step, if it has one.
    pub fn identity(&self) -> Option<&str> {
        self.identity.as_deref()
    }

    /// The device, and the algorithms that its libraries chose for the plans so far.
    pub fn choices(&self) -> Choices {
        self.executable.runtime().backend.choices()
    }

    /// The prepared step.
    pub(in crate::execute) fn executable(&self) -> &Arc<Executable> {
        &self.executable
    }

    /// The step.
    pub fn module(&self) -> &Module {
        self.session.module()
    }

    /// The plans for the last batch; `None` before the first batch.
    pub fn plans(&self) -> Option<Plans> {
        self.session.plans()
    }

    /// The memory of the last batch in bytes: state, activations and gradients.
    pub fn allocated_bytes(&self) -> u64 {
        self.session.allocated_bytes() as u64
    }

    /// The device memory of the session, in bytes; 0 before the first batch and for the CPU.
    pub(in crate::execute) fn device_bytes(&self) -> u64 {
        self.session.device_bytes().map_or(0, |bytes| bytes.total_in_flight())
    }

    /// Sets the bytes of device memory of other sessions that count against the limit of the step.
    pub(in crate::execute) fn reserve_device_bytes(&self, bytes: u64) {
        self.session.reserve_device_bytes(bytes);
    }

    /// The use of memory at its peak, from the plan for the last batch; `None` before the first batch.
    pub fn peak(&self) -> Option<Peak> {
        let main = self.module().main();
        self.session.plan(main)?.peak()
    }

    /// Runs one batch and advances the state.
    ///
    /// # Errors
    /// If an input is missing or unknown, does not fit the step, or a node cannot be computed. The state is then
    /// unchanged, unless weights were updated before the error
    /// ([`Limits::time_limit`](ampc_runtime::Limits::time_limit), [`Limits::stop`](ampc_runtime::Limits::stop),
    /// exhausted memory): then it is [torn](Self::has_torn_state).
    pub fn step(&mut self, batch: &[(&str, &HostTensor)]) -> Result<StepResult, Error> {
        if self.is_on_device() {
            // The other outputs stay on the device.
            self.begin_step(batch)?;
            let mut result = StepResult::default();
            while let Some(ended) = self.end_step()? {
                result = ended;
            }
            return Ok(result);
        }
        self.step_with(batch, |_, _| {})
    }

    /// Like [`step`](Self::step); `visit` sees each output in place, with its name. From the second batch of the same
    /// dims on, no tensor is allocated, and nothing else except scratch memory of the crate `gemm` and a block of the
    /// thread queue in every 63rd step.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn step_with(
        &mut self,
        batch: &[(&str, &HostTensor)],
        visit: impl FnMut(&str, DataRef<'_>) + Send,
    ) -> Result<StepResult, Error> {
        self.step_observed(batch, None, visit)
    }

    /// Like [`step_with`](Self::step_with); `observer` sees every computed value.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn step_observed(
        &mut self,
        batch: &[(&str, &HostTensor)],
        observer: Option<&mut (dyn NodeObserver + Send)>,
        visit: impl FnMut(&str, DataRef<'_>) + Send,
    ) -> Result<StepResult, Error> {
        self.try_step(batch, observer, visit).map_err(|failed| *failed.error)
    }

    /// Like [`step_observed`](Self::step_observed), and returns the row that an error refers to.
    pub(super) fn try_step(
        &mut self,
        batch: &[(&str, &HostTensor)],
        observer: Option<&mut (dyn NodeObserver + Send)>,
        mut visit: impl FnMut(&str, DataRef<'_>) + Send,
    ) -> Result<StepResult, StepError> {
        let mut values = emptied(std::mem::take(&mut self.values));
        values.resize(self.inputs.len(), None);
        for (&at, tensor) in &self.given {
            values[at] = Some(DataRef::Tensor(tensor.view()));
        }
        self.take_batch(batch, &mut values)?;
        let mut stepped = StepResult::default();
        let (scalars, outputs) = (self.scalars, &self.outputs);
        let run = self.session.run_to_observed(&values, observer, |at, data| {
            scalars.read(at, data, &mut stepped);
            visit(&outputs[at], data);
        });
        run.map_err(|error| {
            let module = self.session.module();
            StepError {
                error: Box::new(of_run(module, &error)),
                row: BatchRow::of(module, &error, batch).map(Box::new),
            }
        })?;
        self.values = emptied(values);
        self.given.clear();
        Ok(stepped)
    }

    /// Begins one batch. If the step is computed on a device, it returns before the work is done;
    /// [`end_step`](Self::end_step) returns the scalars. Several batches may be begun before the first is ended.
    ///
    /// # Errors
    /// Like [`step`](Self::step), for errors that are known before the work is done.
    pub fn begin_step(&mut self, batch: &[(&str, &HostTensor)]) -> Result<(), Error> {
        let mut values = emptied(std::mem::take(&mut self.values));
        values.resize(self.inputs.len(), None);
        for (&at, tensor) in &self.given {
            values[at] = Some(DataRef::Tensor(tensor.view()));
        }
        self.take_batch(batch, &mut values)?;
        let begun = self.session.begin_run(&values, &self.scalars.outputs());
        begun.map_err(|error| of_run(self.executable.module(), &error))?;
        self.values = emptied(values);
        self.given.clear();
        Ok(())
    }

    /// Waits for the oldest batch in flight and returns its scalars; `None` if no batch is in flight.
    ///
    /// # Errors
    /// If a node of the batch could not be computed. Batches that were begun later have then failed too, and the
    /// state is [torn](Self::has_torn_state).
    pub fn end_step(&mut self) -> Result<Option<StepResult>, Error> {
        let outputs = self.session.end_run();
        let outputs = outputs.map_err(|error| of_run(self.executable.module(), &error))?;
        let Some(outputs) = outputs else { return Ok(None) };
        let mut stepped = StepResult::default();
        for (output, data) in self.scalars.outputs().into_iter().zip(&outputs) {
            self.scalars.read(output, data.view(), &mut stepped);
        }
        Ok(Some(stepped))
    }

    /// True if the step is computed on a device, in memory that the host cannot address.
    pub fn is_on_device(&self) -> bool {
        self.session.is_on_device()
    }

    /// Assigns the tensors of a batch to the inputs by name. All inputs without a default are required.
    fn take_batch<'a>(
        &self,
        batch: &[(&str, &'a HostTensor)],
        values: &mut [Option<DataRef<'a>>],
    ) -> Result<(), Error> {
        for &(name, tensor) in batch {
            let Some(at) = self.places.get(name).copied().filter(|&at| self.kinds[at].is_none()) else {
                let known: Vec<&str> = self.batch_inputs().collect();
                let message = format!("the step takes {} in a batch, found `{name}`", known.join(", "));
                return Err(Error::Usage(message));
            };
            values[at] = Some(DataRef::Tensor(tensor.view()));
        }
        let module = self.session.module();
        let formals = module.graph(module.main()).inputs();
        let has_default =
            |at: usize| matches!(module.value(formals[at]).def, Def::Input { default: Some(_), .. });
        let is_missing = |&at: &usize| values[at].is_none() && self.kinds[at].is_none() && !has_default(at);
        match (0..values.len()).find(is_missing) {
            Some(at) => {
                Err(Error::Usage(format!("the batch has no `{}`, which the step takes", self.inputs[at])))
            }
            None => Ok(()),
        }
    }

    /// True if the state is torn: a failed step had updated part of it. No step begins until
    /// [`set_state`](Self::set_state) has set it.
    pub fn has_torn_state(&self) -> bool {
        self.session.has_torn_states()
    }

    /// Copies of the current state, by the names of the step's inputs, in their order.
    ///
    /// # Errors
    /// If the state is [torn](Self::has_torn_state), or there is not enough memory for copies.
    pub fn state(&mut self) -> Result<Vec<(String, HostTensor)>, Error> {
        self.refuse_torn()?;
        let views = self.state_views()?.into_iter();
        views
            .map(|(name, view)| Ok((name.to_owned(), view.to_host().map_err(|e| no_memory(name, &e))?)))
            .collect()
    }

    /// Returns an error if training cannot continue from the state: it is torn, or has a NaN, which would make every
    /// later loss NaN.
    pub(super) fn refuse_unusable(&mut self) -> Result<(), Error> {
        self.refuse_torn()?;
        let views = self.state_views()?;
        match views.iter().find(|(_, view)| view.first_nan().is_some()) {
            Some((name, _)) => Err(Error::Run(finding(name, format!("expected numbers, found {NAN}")))),
            None => Ok(()),
        }
    }

    /// Starts the next step with the current state, even if it is torn, for a step whose results are discarded.
    ///
    /// # Errors
    /// If there is not enough memory for copies.
    pub(super) fn accept_torn_state(&mut self) -> Result<(), Error> {
        if !self.has_torn_state() {
            return Ok(());
        }
        let mut copies = BTreeMap::new();
        let executable = self.executable.clone();
        let views = self.session.state_views().map_err(|error| of_run(executable.module(), &error))?;
        for (at, data) in views {
            if let Some(view) = data.tensor() {
                copies.insert(at, view.to_host().map_err(|error| no_memory(&self.inputs[at], &error))?);
            }
        }
        copies.append(&mut self.given);
        self.given = copies;
        Ok(())
    }

    fn refuse_torn(&self) -> Result<(), Error> {
        if !self.has_torn_state() {
            return Ok(());
        }
        let main = self.module().graph(self.module().main()).name;
        let message = ExecuteError::TornStates.to_string();
        Err(Error::Run(finding(self.module().text(main), message)))
    }

    /// The [`state`](Self::state), torn or not. No tensor is copied if the step is computed in host memory.
    ///
    /// # Errors
    /// If the allocation of copies fails, or the device fails.
    pub fn state_views(&mut self) -> Result<Vec<(&str, TensorRef<'_>)>, Error> {
        let Trainer { session, executable, given, inputs, .. } = self;
        let views = session.state_views().map_err(|error| of_run(executable.module(), &error))?;
        let mut found: BTreeMap<usize, TensorRef<'_>> = BTreeMap::new();
        found.extend(views.into_iter().filter_map(|(at, data)| Some((at, data.tensor()?))));
        found.extend(given.iter().map(|(&at, tensor)| (at, tensor.view())));
        Ok(found.into_iter().map(|(at, view)| (inputs[at].as_str(), view)).collect())
    }

    /// Sets the state for the next step. Tensors that are not states of the step are rejected.
    ///
    /// # Errors
    /// If tensors are missing, unknown, of another type, or scalars out of range (all are listed), or else if a
    /// tensor has a NaN or cannot be read (the first is named). The state is then unchanged.
    pub fn set_state(&mut self, state: &State) -> Result<(), Error> {
        let module = self.session.module();
        let types = crate::interface::input_types(module);
        let (mut given, mut problems) = (BTreeMap::new(), Vec::new());
        for (name, data) in state {
            let Some(at) = self.places.get(name).copied().filter(|&at| self.kinds[at].is_some()) else {
                problems.push(problem("unknown", name, "the step has no such state".into()));
                continue;
            };
            let found = Type::tensor(data.dtype(), data.shape());
            if types[at] != found {
                let (wanted, found) = (describe(module, &types[at]), describe(module, &found));
                problems.push(problem("type", name, format!("expected {wanted}, found {found}")));
                continue;
            }
            if let Some(kind) = self.kinds[at] {
                let range = range_problem(kind, data)
                    .map_err(|error| unusable(name, &HostError::from(error).into()))?;
                problems.extend(range.map(|message| problem("range", name, message)));
            }
            given.insert(at, (name.as_str(), data));
        }
        let named: FxHashSet<&str> = state.iter().map(|(name, _)| name.as_str()).collect();
        for (at, name) in self.inputs.iter().enumerate() {
            if self.kinds[at].is_some() && !named.contains(name.as_str()) {
                let wanted = describe(module, &types[at]);
                problems.push(problem("missing", name, format!("expected {wanted}, found none")));
            }
        }
        if !problems.is_empty() {
            return Err(Error::States(problems));
        }
        let placed = self.session.placed_states();
        let (placed, others): (Vec<_>, Vec<_>) =
            given.iter().partition(|(at, _)| placed.binary_search(at).is_ok());
        let placed: FxHashMap<usize, (&str, &Arc<TensorData>)> =
            placed.into_iter().map(|(&at, &state)| (at, state)).collect();
        let read = |&(name, data): &(&str, &Arc<TensorData>)| {
            let tensor = HostTensor::from_data(data).map_err(|error| unusable(name, &error.into()))?;
            if tensor.view().first_nan().is_some() {
                return Err(unusable(name, &Unusable::NaN));
            }
            Ok(tensor)
        };
        let others = others.into_iter().map(|(&at, state)| Ok((at, read(state)?)));
        let others = others.collect::<Result<_, Error>>()?;
        let mut failed = "state";
        let set = self.session.set_states(|at, bytes| {
            let (name, data) = placed[&at];
            failed = name;
            read_constant(data, bytes)?;
            let tensor = TensorRef::of_numbers(data.dtype(), data.dims(), bytes);
            tensor.first_nan().map_or(Ok(()), |_| Err(Unusable::NaN))
        });
        set.map_err(|error| unusable(failed, &error))?;
        self.given = others;
        Ok(())
    }
}

/// The reason why a state is unusable.
enum Unusable {
    Unreadable(HostError),
    NaN,
}

impl From<HostError> for Unusable {
    fn from(error: HostError) -> Unusable {
        Unusable::Unreadable(error)
    }
}

/// The error of an unusable state.
fn unusable(name: &str, why: &Unusable) -> Error {
    match why {
        Unusable::Unreadable(error) if error.is_no_memory() => no_memory(name, error),
        Unusable::Unreadable(HostError::Device(error)) => {
            let message = format!("the state cannot be copied: {error}");
            crate::run_errors::of_device(error, Finding { code: "device", ..finding(name, message) })
        }
        Unusable::Unreadable(error) => {
            Error::Run(finding(name, format!("the state cannot be read: {error}")))
        }
        Unusable::NaN => Error::States(vec![problem("nan", name, format!("expected numbers, found {NAN}"))]),
    }
}

fn finding(name: &str, message: String) -> Finding {
    Finding { code: "state", node: None, place: name.to_owned(), op: None, message, label: None }
}

/// A problem with a given state.
fn problem(code: &'static str, name: &str, message: String) -> InputProblem {
    let help = Some("a state belongs to the step that it was made for or saved by".to_owned());
    InputProblem { code, kind: "state", name: name.to_owned(), message, help }
}

/// The input indices of the states of a step, and their kinds.
fn places_of_states(module: &mut Module) -> Result<Vec<(usize, StateKind)>, Error> {
    restore_states(module);
    let entries = states_of(module).map_err(|error| Error::Pass(error.into()))?;
    let graph = module.graph(module.main());
    let places: FxHashMap<Value, usize> = graph.inputs().iter().copied().zip(0..).collect();
    let declared: FxHashMap<(String, String), (Value, Value)> = graph
        .states
        .iter()
        .map(|&(input, next)| ((name_of(module, input), name_of(module, next)), (input, next)))
        .collect();
    if declared.len() != entries.len() {
        let message = format!(
            "expected the {} states that the metadata lists as states of the graph, found {}",
            entries.len(),
            declared.len()
        );
        return Err(Error::Invalid(vec![finding(module.text(graph.name), message)]));
    }
    let mut found = Vec::with_capacity(entries.len());
    for StateEntry { input, output, kind, .. } in entries {
        let message =
            format!("the metadata lists a state that the graph does not have: next value `{output}`");
        let lacks = || Error::Invalid(vec![finding(&input, message)]);
        let &(state, next) = declared.get(&(input.clone(), output)).ok_or_else(lacks)?;
        let (now, next) = (&module.value(state).ty, &module.value(next).ty);
        let known = |ty: &Type| ty.dtype().zip(ty.shape().and_then(ampc_ir::Shape::to_known));
        if known(now).zip(known(next)).is_some_and(|(now, next)| now != next) {
            let (now, next) = (describe(module, now), describe(module, next));
            let message = format!("the next value of a state has its type: expected {now}, found {next}");
            return Err(Error::Invalid(vec![finding(&input, message)]));
        }
        found.push((places[&state], kind));
    }
    Ok(found)
}
