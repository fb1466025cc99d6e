//! Training with a step: the state stays in the runtime, updated in place.
//!
//! A [`Trainer`] takes a training step ([`train`](crate::train)) and the state that it begins with. [`Trainer::step`] runs
//! one batch; the state is read and set by the names of the step's inputs, as files have it.

use super::{input_names, of_run, output_names};
use crate::error::{Error, Finding};
use crate::model::Model;
use crate::train::State;
use ampc_ir::verify::name_of;
use ampc_ir::{Module, Value};
use ampc_passes::step::inference::forward_of;
use ampc_passes::step::states_of;
use ampc_runtime::cpu::Executable;
use ampc_runtime::{Cpu, Data, DataRef, HostTensor};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// A training step with its state, which runs batch by batch on the CPU.
pub struct Trainer {
    executable: Executable,
    /// The names of the inputs, in order.
    inputs: Vec<String>,
    /// Where an input of a name is among them.
    places: FxHashMap<String, usize>,
    /// Of each input, whether it is a state.
    is_state: Vec<bool>,
    /// The names of the outputs, in order.
    outputs: Vec<String>,
    /// The state that the next run begins with, by input, if the runtime does not have it yet.
    given: BTreeMap<usize, HostTensor>,
    loss: Option<usize>,
    found_inf: Option<usize>,
    loss_scale: Option<usize>,
    grad_norm: Option<usize>,
}

impl std::fmt::Debug for Trainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trainer")
            .field("inputs", &self.inputs)
            .field("outputs", &self.outputs)
            .finish_non_exhaustive()
    }
}

/// What a step says of itself.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Stepped {
    /// The loss of the batch, with the weights before the step; absent for a step whose maker did not say which output it
    /// is.
    pub loss: Option<f64>,
    /// Whether a gradient was not finite, so that the step was skipped.
    pub skipped: bool,
    /// The loss scale of the next step, if there is one that changes.
    pub loss_scale: Option<f64>,
    /// The norm of all gradients, unscaled, if the step clips.
    pub grad_norm: Option<f64>,
}

impl Trainer {
    /// A step with the state that it begins with.
    ///
    /// # Errors
    /// If the model is no step, the state lacks a tensor or has one of another type, or the runtime lacks a kernel.
    pub fn new(step: Model, state: &State, cpu: &Cpu) -> Result<Trainer, Error> {
        let mut module = step.module;
        let states = declare_states(&mut module)?;
        let loss = forward_of(&module).map_err(|error| Error::Pass(error.into()))?.loss;
        let executable = super::prepare(&mut module, cpu)?;
        let (inputs, outputs) = (input_names(&module), output_names(&module));
        let places: FxHashMap<String, usize> = inputs.iter().cloned().zip(0..).collect();
        let mut is_state = vec![false; inputs.len()];
        states.into_iter().for_each(|at| is_state[at] = true);
        let output = |name: &str| outputs.iter().position(|output| output == name);
        let mut trainer = Trainer {
            loss: loss.as_deref().and_then(output),
            found_inf: output("found_inf"),
            loss_scale: output("loss_scale_next"),
            grad_norm: output("grad_norm"),
            executable,
            inputs,
            outputs,
            places,
            is_state,
            given: BTreeMap::new(),
        };
        trainer.set_state(state)?;
        Ok(trainer)
    }

    /// The names of the inputs that a batch gives: data, targets and `lr`.
    pub fn batch_inputs(&self) -> impl Iterator<Item = &str> {
        let names = self.inputs.iter().zip(&self.is_state);
        names.filter(|(_, is_state)| !**is_state).map(|(name, _)| name.as_str())
    }

    /// Runs one batch, and moves the state on.
    ///
    /// # Errors
    /// If an input is missing or nobody knows it, does not fit the step, or a node cannot be computed. The state is then
    /// what it was, unless a limit of time ended the run while weights were updated.
    pub fn step(&mut self, batch: &[(&str, &HostTensor)]) -> Result<Stepped, Error> {
        self.step_with(batch, |_, _| {})
    }

    /// As [`step`](Self::step); `visit` looks at each output, by its name, where it is. From the second batch of the same
    /// dims on, no memory is taken for tensors.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn step_with(
        &mut self,
        batch: &[(&str, &HostTensor)],
        mut visit: impl FnMut(&str, DataRef<'_>) + Send,
    ) -> Result<Stepped, Error> {
        let mut values: Vec<Option<DataRef<'_>>> = vec![None; self.inputs.len()];
        for (&at, tensor) in &self.given {
            values[at] = Some(DataRef::Tensor(tensor.view()));
        }
        for (name, tensor) in batch {
            let Some(at) = self.places.get(*name).copied().filter(|&at| !self.is_state[at]) else {
                let known: Vec<&str> = self.batch_inputs().collect();
                let message = format!("the step takes {} in a batch, found `{name}`", known.join(", "));
                return Err(Error::Usage(message));
            };
            values[at] = Some(DataRef::Tensor(tensor.view()));
        }
        let missing = |at: &usize| values[*at].is_none() && !self.is_state[*at];
        if let Some(at) = (0..values.len()).find(missing) {
            return Err(Error::Usage(format!(
                "the batch has no `{}`, which the step takes",
                self.inputs[at]
            )));
        }
        let mut stepped = Stepped::default();
        let (loss, found, scale, norm) = (self.loss, self.found_inf, self.loss_scale, self.grad_norm);
        let outputs = &self.outputs;
        let run = self.executable.run_to(&values, |at, data| {
            let number = || data.tensor().and_then(|tensor| tensor.f64s().ok()?.next());
            if Some(at) == loss {
                stepped.loss = number();
            } else if Some(at) == found {
                stepped.skipped = number().is_some_and(|found| found != 0.0);
            } else if Some(at) == scale {
                stepped.loss_scale = number();
            } else if Some(at) == norm {
                stepped.grad_norm = number();
            }
            visit(&outputs[at], data);
        });
        run.map_err(|error| of_run(self.executable.module(), &error))?;
        self.given.clear();
        Ok(stepped)
    }

    /// Bytes of the arena that the plan of the last batch asks for: state, activations and gradients.
    pub fn planned_bytes(&self) -> usize {
        self.executable.arena_bytes()
    }

    /// Bytes that the arenas of the runtime hold now.
    pub fn allocated_bytes(&self) -> usize {
        self.executable.allocated_bytes()
    }

    /// The state as it is now, by the names of the step's inputs, in their order: copies.
    ///
    /// # Errors
    /// If there is not enough memory for them.
    pub fn state(&self) -> Result<Vec<(String, HostTensor)>, Error> {
        let refused = |error: ampc_runtime::HostError| Error::NoMemory(finding("", error.to_string()));
        let mut found: BTreeMap<usize, HostTensor> = BTreeMap::new();
        for (at, data) in self.executable.states().map_err(refused)? {
            if let Data::Tensor(tensor) = data {
                found.insert(at, tensor);
            }
        }
        found.extend(self.given.iter().map(|(&at, tensor)| (at, tensor.clone())));
        Ok(found.into_iter().map(|(at, tensor)| (self.inputs[at].clone(), tensor)).collect())
    }

    /// Takes another state for the next step. Tensors that are no state of the step are refused.
    ///
    /// # Errors
    /// If a tensor is missing, unknown, or of another type: all of them. The state is then what it was.
    pub fn set_state(&mut self, state: &State) -> Result<(), Error> {
        let module = self.executable.module();
        let types = super::input_types(module);
        let (mut given, mut problems) = (BTreeMap::new(), Vec::new());
        for (name, data) in state {
            let Some(at) = self.places.get(name).copied().filter(|&at| self.is_state[at]) else {
                problems.push(finding(name, "no state of the step has this name".into()));
                continue;
            };
            let found = ampc_ir::Type::tensor(data.dtype(), data.shape());
            if types[at] != found {
                let (wanted, found) =
                    (ampc_ir::infer::describe(&types[at]), ampc_ir::infer::describe(&found));
                problems.push(finding(name, format!("expected {wanted}, found {found}")));
                continue;
            }
            match HostTensor::from_data(data) {
                Ok(tensor) => {
                    given.insert(at, tensor);
                }
                Err(error) => problems.push(finding(name, error.to_string())),
            }
        }
        let named: FxHashSet<&str> = state.iter().map(|(name, _)| name.as_str()).collect();
        for (at, name) in self.inputs.iter().enumerate() {
            if self.is_state[at] && !named.contains(name.as_str()) {
                let wanted = ampc_ir::infer::describe(&types[at]);
                problems.push(finding(name, format!("expected {wanted}, found none")));
            }
        }
        if !problems.is_empty() {
            return Err(Error::Invalid(problems));
        }
        self.given = given;
        Ok(())
    }
}

fn finding(name: &str, message: String) -> Finding {
    Finding { code: "state", node: None, place: name.to_owned(), op: None, message }
}

/// Tells the module which inputs are states, as its metadata lists them; their places among the inputs.
fn declare_states(module: &mut Module) -> Result<Vec<usize>, Error> {
    let entries = states_of(module).map_err(|error| Error::Pass(error.into()))?;
    let main = module.main();
    let inputs = module.graph(main).inputs().to_vec();
    let outputs: Vec<Value> = module.graph(main).outputs().iter().map(|output| output.value).collect();
    let places = |values: &[Value]| -> FxHashMap<String, usize> {
        values.iter().map(|&value| name_of(module, value)).zip(0..).collect()
    };
    let (of_inputs, of_outputs) = (places(&inputs), places(&outputs));
    let mut pairs = Vec::with_capacity(entries.len());
    for entry in &entries {
        let pair = of_inputs.get(&entry.input).copied().zip(of_outputs.get(&entry.output).copied());
        pairs.push(pair.ok_or_else(|| {
            let message = format!("the step lists a state that it lacks: output `{}`", entry.output);
            Error::Invalid(vec![finding(&entry.input, message)])
        })?);
    }
    let states = pairs.iter().map(|&(input, output)| (inputs[input], outputs[output])).collect();
    *module.graph_roles_mut(main).1 = states;
    Ok(pairs.into_iter().map(|(input, _)| input).collect())
}
