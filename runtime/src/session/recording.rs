//! Recording and replay of a program's kernels.
//!
//! In every run, the kernels of a plan have the same operands and results at the same addresses, except the inputs. A
//! run is recorded when its inputs have the same addresses as those of a recent run: inputs that the session copies
//! do, and inputs in new allocations of the caller do not.

use super::error::ExecuteError;
use super::frame::{Frame, Given, Scope};
use super::states;
use super::walk::{Run, run_graph, run_steps};
use crate::data::DataRef;
use crate::device::{DeviceMemory, DeviceRef, Recording};
use crate::plan::{Place, Step};
use ampc_ir::GraphId;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// The maximum number of recordings of a program, and of earlier runs whose input addresses are remembered: a session
/// has two sets of inputs.
const MOST: usize = 2;

/// Recordings of the program that a session is bound to.
#[derive(Default)]
pub(super) struct Recordings {
    recorded: Vec<(Places, Recording)>,
    /// The input addresses of the last runs.
    seen: VecDeque<Places>,
    /// True if the device cannot record the program.
    is_refused: bool,
}

/// The addresses of the inputs of a run; `None` for inputs outside of device memory.
struct Places(Vec<Option<Address>>);

/// A range of device memory. It does not keep the memory alive.
struct Address {
    memory: Weak<dyn DeviceMemory>,
    offset: usize,
    len: usize,
}

impl Address {
    fn is_of(&self, data: DataRef<'_>) -> bool {
        matches!(data, DataRef::Device(DeviceRef { span, .. })
            if std::ptr::addr_eq(Weak::as_ptr(&self.memory), Arc::as_ptr(span.memory))
                && (span.offset, span.len) == (self.offset, self.len))
    }
}

impl Places {
    fn of(inputs: &[Option<DataRef<'_>>]) -> Places {
        let address = |data: &Option<DataRef<'_>>| match data {
            Some(DataRef::Device(tensor)) => {
                let span = tensor.span;
                Some(Address { memory: Arc::downgrade(span.memory), offset: span.offset, len: span.len })
            }
            _ => None,
        };
        Places(inputs.iter().map(address).collect())
    }

    fn are_of(&self, inputs: &[Option<DataRef<'_>>]) -> bool {
        let pairs = self.0.iter().zip(inputs);
        self.0.len() == inputs.len()
            && pairs.into_iter().all(|pair| match pair {
                (Some(address), Some(data)) => address.is_of(*data),
                (None, Some(data)) => !matches!(data, DataRef::Device(_)),
                (None, None) => true,
                (Some(_), None) => false,
            })
    }

    /// True if the memory still exists.
    fn are_there(&self) -> bool {
        self.0.iter().flatten().all(|address| address.memory.strong_count() > 0)
    }
}

impl Recordings {
    /// Drops all recordings, because memory that they access is freed.
    pub(super) fn forget(&mut self) {
        *self = Recordings::default();
    }

    /// Runs the main graph. A graph of kernels with fixed addresses is recorded and replayed.
    pub(super) fn run_or_replay(
        &mut self,
        run: &mut Run<'_>,
        main: GraphId,
        frame: &mut Frame,
        given: Given<'_>,
    ) -> Result<(), ExecuteError> {
        let scope = Scope { program: run.program, plan: run.program.plan(main), given };
        let is_kept = run.observer.is_none() && run.space.can_record() && !self.is_refused;
        if !is_kept || !can_be_recorded(scope) {
            return run_graph(run, main, frame, given, Vec::new());
        }
        let known = self.recorded.iter().position(|(places, _)| places.are_of(given.inputs));
        if known.is_none() && !self.has_seen(given.inputs) {
            return run_graph(run, main, frame, given, Vec::new());
        }
        frame.states.take(run.space, given.inputs).map_err(ExecuteError::of_transfer)?;
        run.in_time(None)?;
        let at = match known {
            Some(at) => at,
            None => match recorded(run, scope, frame)? {
                Some(recording) => self.keep(given.inputs, recording),
                None => {
                    self.is_refused = true;
                    return run_graph(run, main, frame, given, Vec::new());
                }
            },
        };
        if scope.plan.steps.iter().any(|step| states::writes_states(scope.plan, step)) {
            frame.states.set_torn(true);
        }
        if let Some(queue) = run.space.queue() {
            queue.replay(&self.recorded[at].1)?;
        }
        // The kernels of all queues are replayed by the first queue: the others report failures after it.
        Ok(run.space.spread()?)
    }

    /// True if the inputs have the addresses of a recent run. Remembers them otherwise.
    fn has_seen(&mut self, inputs: &[Option<DataRef<'_>>]) -> bool {
        if self.seen.iter().any(|places| places.are_of(inputs)) {
            return true;
        }
        if self.seen.len() == MOST {
            self.seen.pop_front();
        }
        self.seen.push_back(Places::of(inputs));
        false
    }

    /// Keeps a recording, and returns its index.
    fn keep(&mut self, inputs: &[Option<DataRef<'_>>], recording: Recording) -> usize {
        self.recorded.retain(|(places, _)| places.are_there());
        if self.recorded.len() == MOST {
            self.recorded.remove(0);
        }
        self.recorded.push((Places::of(inputs), recording));
        self.recorded.len() - 1
    }
}

/// Records the kernels of the steps; `None` if the device cannot record them.
fn recorded(
    run: &mut Run<'_>,
    scope: Scope<'_>,
    frame: &mut Frame,
) -> Result<Option<Recording>, ExecuteError> {
    let Run { runtime, program, deadline, stop, within, .. } = *run;
    let was_torn = frame.states.is_torn();
    let recorded = run.space.record(|space| {
        run_steps(&mut Run { runtime, space, program, observer: None, deadline, stop, within }, scope, frame)
    });
    // No work has run.
    frame.states.set_torn(was_torn);
    recorded
}

/// True if every step has a recordable kernel, and every value that a step accesses has the same address in all runs.
fn can_be_recorded(scope: Scope<'_>) -> bool {
    let Scope { program, plan, given } = scope;
    let is_fixed = |index: &u32| match plan.values[*index as usize].place {
        Place::Arena { .. } | Place::Constant | Place::View(_) => true,
        Place::Input(at) => {
            let data = given.inputs.get(at as usize).copied().flatten();
            data.is_none_or(|data| matches!(data, DataRef::Device(_)))
        }
        Place::Capture(_) | Place::Heap | Place::Unused => false,
    };
    let has_kernel = |step: &Step| {
        step.view || program.prepared(step.node()).is_some_and(|kernel| !kernel.needs.is_unrecorded)
    };
    plan.moved.is_empty()
        && plan.steps.iter().all(|step| {
            let mut touched = step.operands.iter().chain(&step.results).flatten();
            !step.is_barrier && has_kernel(step) && touched.all(is_fixed)
        })
}
