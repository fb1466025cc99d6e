//! Runs on a device that the host does not wait for: their inputs, their outputs on the way back, and kernels that are
//! recorded once and replayed.
//!
//! While the kernels of a run work, the inputs of the next run are copied on a queue of their own, into other memory. With
//! two sets of inputs, `U` for copies to the device and `D` for copies to the host,
//!
//! ```text
//! transfers:  U set 0 | U set 1          | U set 0 (waits for run 0)      | ..
//! kernels:            | run 0 on set 0 D | run 1 on set 1             D   | run 2 on set 0 D ..
//! host:       begin 0   begin 1            end 0 (waits for D of run 0)     begin 2   end 1 ..
//! ```

use super::error::ExecuteError;
use super::frame::{Frame, Given, Scope};
use super::space::Space;
use super::walk::{Run, run_graph, run_steps};
use super::{Session, states};
use crate::data::{Data, DataRef};
use crate::device::{DeviceError, DeviceMemory, DeviceRef, Download, Event, Recording};
use crate::host::HostTensor;
use crate::kernel::KernelError;
use crate::plan::{Place, Step};
use ampc_ir::{DType, GraphId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Runs that were begun, the inputs that they read, and recordings of them.
#[derive(Default)]
pub(super) struct Flights {
    /// Inputs in the memory of a device, for the next runs; states and strings are not here.
    sets: [Inputs; 2],
    /// The set that the next run takes.
    next: usize,
    begun: VecDeque<Flight>,
    recordings: Vec<Recorded>,
    /// True if the device refused to record the program.
    is_refused: bool,
    /// The runs with the program that the session is bound to.
    runs: usize,
}

/// Memory of a device for the inputs of a run.
#[derive(Default)]
struct Inputs {
    tensors: Vec<Option<Data>>,
    /// The end of the last run that read them, if the host has not waited for it.
    read: Option<Event>,
}

/// A run that was begun.
enum Flight {
    /// Its outputs are on the way.
    Begun(Vec<Returning>),
    /// It has ended.
    Landed(Result<Vec<Data>, ExecuteError>),
}

/// An output on the way to the host.
pub(super) enum Returning {
    Tensor(DType, Vec<u64>, Box<dyn Download>),
    There(Data),
}

/// A run that is recorded for inputs in these places.
struct Recorded {
    inputs: Vec<Option<Address>>,
    recording: Recording,
}

/// A range of memory of a device.
struct Address {
    memory: Arc<dyn DeviceMemory>,
    offset: usize,
    len: usize,
}

impl Address {
    fn is_of(&self, data: DataRef<'_>) -> bool {
        matches!(data, DataRef::Device(DeviceRef { span, .. })
            if Arc::ptr_eq(span.memory, &self.memory) && (span.offset, span.len) == (self.offset, self.len))
    }
}

impl Session {
    /// Begins a run, and returns before the work is done if the session computes on a device. `wanted` lists the outputs, by
    /// position, that are copied to the host; [`end_run`](Self::end_run) returns them. Several runs may be begun before the
    /// first is ended. Each run reads the states that the previous run leaves.
    ///
    /// # Errors
    /// As [`run`](Self::run) where the errors show before the work is done.
    pub fn begin_run(
        &mut self,
        inputs: &[Option<DataRef<'_>>],
        wanted: &[usize],
    ) -> Result<(), ExecuteError> {
        let mut returning = Vec::with_capacity(wanted.len());
        self.start(inputs, None, false, |space, frame, scope| {
            for &output in wanted {
                returning
                    .extend(frame.output(scope, output).map(|data| Returning::of(space, data)).transpose()?);
            }
            Ok(())
        })?;
        self.flights.begun.push_back(Flight::Begun(returning));
        Ok(())
    }

    /// The wanted outputs of the oldest run that was begun and not ended, in host memory, when its work is done; `None` if
    /// there is no such run.
    ///
    /// # Errors
    /// If the run failed. The runs that were begun after it have failed with it, and the states are
    /// [torn](Self::has_torn_states).
    pub fn end_run(&mut self) -> Result<Option<Vec<Data>>, ExecuteError> {
        let landed = match self.flights.begun.pop_front() {
            None => return Ok(None),
            Some(Flight::Begun(returning)) => self.land(returning),
            Some(Flight::Landed(landed)) => landed,
        };
        if landed.is_err() {
            self.flights.begun.clear();
        }
        landed.map(Some)
    }

    /// The number of runs that were begun and not ended.
    pub fn runs_begun(&self) -> usize {
        self.flights.begun.len()
    }

    /// Waits for the outputs of a run.
    fn land(&mut self, returning: Vec<Returning>) -> Result<Vec<Data>, ExecuteError> {
        let landed = self.outputs_of(returning);
        landed.map_err(|error| match &self.bound {
            Some(bound) => bound.program.named(error),
            None => error,
        })
    }

    fn outputs_of(&mut self, returning: Vec<Returning>) -> Result<Vec<Data>, ExecuteError> {
        let outputs: Result<Vec<Data>, KernelError> = returning.into_iter().map(Returning::land).collect();
        // A run without outputs may have failed as well.
        let is_last = self.flights.begun.is_empty();
        let finished = if outputs.is_err() || is_last { self.space.finish() } else { Ok(()) };
        if outputs.is_err() || finished.is_err() {
            self.frame.states.set_torn(true);
        }
        // The failure of work has the node.
        finished?;
        outputs.map_err(ExecuteError::of_transfer)
    }

    /// Lets the runs that were begun fail: it is not known in which of them the work failed.
    pub(super) fn fail_begun(&mut self, error: DeviceError) {
        let is_begun = |flight: &Flight| matches!(flight, Flight::Begun(_));
        if let Some(first) = self.flights.begun.iter().position(is_begun) {
            self.flights.begun.truncate(first);
            self.flights.begun.push_back(Flight::Landed(Err(error.into())));
            self.frame.states.set_torn(true);
        }
    }

    /// Waits for all runs that were begun; their outputs stay for [`end_run`](Self::end_run).
    pub(super) fn land_all(&mut self) {
        if self.flights.begun.iter().all(|flight| matches!(flight, Flight::Landed(_))) {
            return;
        }
        let mut landed = VecDeque::new();
        while let Some(flight) = self.flights.begun.pop_front() {
            let result = match flight {
                Flight::Begun(returning) => self.land(returning),
                Flight::Landed(result) => result,
            };
            let is_failed = result.is_err();
            landed.push_back(Flight::Landed(result));
            if is_failed {
                break;
            }
        }
        self.flights.begun = landed;
        self.flights.sets.iter_mut().for_each(|set| set.read = None);
    }

    /// The inputs in the memory of a device, for a session that computes there; `None` for all that are there already.
    /// The host waits for the run if `waits`.
    pub(super) fn bring(
        &mut self,
        inputs: &[Option<DataRef<'_>>],
        waits: bool,
    ) -> Result<Option<Vec<Option<Data>>>, ExecuteError> {
        if matches!(self.space, Space::Host) {
            return Ok(None);
        }
        let Session { space, bound, flights, .. } = self;
        let set = &mut flights.sets[flights.next];
        let mut tensors = std::mem::take(&mut set.tensors);
        tensors.resize_with(inputs.len(), || None);
        if let (false, Some(transfers), Some(event)) = (waits, space.transfers()?, set.read.take()) {
            transfers.wait(&event)?;
        }
        for (at, (input, place)) in inputs.iter().zip(&mut tensors).enumerate() {
            let is_state = bound.as_ref().is_some_and(|bound| bound.is_state(at));
            let Some(input) = input.filter(|input| !matches!(input, DataRef::Device(_)) && !is_state) else {
                *place = None;
                continue;
            };
            let has_place =
                matches!(&*place, Some(Data::Device(to)) if DataRef::Device(to.view()).is_of(&input.ty()));
            let tensor = input.tensor().filter(|from| from.bytes().is_some());
            if let (false, Some(from)) = (has_place, tensor) {
                let made = space.tensor(from.dtype(), from.dims()).map_err(ExecuteError::of_transfer)?;
                *place = Some(made);
            }
            let queue = if waits { space.queue() } else { space.transfers()? };
            match (tensor.and_then(|from| from.bytes()), &*place, queue) {
                (Some(from), Some(Data::Device(to)), Some(queue)) => queue.upload(from, to.view().span)?,
                _ => *place = Some(space.bring(input).map_err(ExecuteError::of_transfer)?),
            }
        }
        if !waits && let Some(transfers) = space.transfers()? {
            let event = transfers.signal()?;
            if let Some(queue) = space.queue() {
                queue.wait(&event)?;
            }
        }
        Ok(Some(tensors))
    }
}

impl Flights {
    /// Keeps the memory of the inputs of a run for a later run.
    pub(super) fn give_back(
        &mut self,
        space: &mut Space,
        brought: Option<Vec<Option<Data>>>,
        waits: bool,
    ) -> Result<(), DeviceError> {
        let Some(tensors) = brought else { return Ok(()) };
        let set = &mut self.sets[self.next];
        set.tensors = tensors;
        if !waits {
            set.read = space.queue().map(|queue| queue.signal()).transpose()?;
            self.next = 1 - self.next;
        }
        Ok(())
    }

    /// Drops all recordings: the memory that they read or write goes.
    pub(super) fn forget_recordings(&mut self) {
        self.recordings.clear();
        (self.runs, self.is_refused) = (0, false);
    }

    /// Runs the main graph. From the second run on, a graph of kernels with places that stay is recorded and replayed.
    pub(super) fn run_or_replay(
        &mut self,
        run: &mut Run<'_>,
        main: GraphId,
        frame: &mut Frame,
        given: Given<'_>,
    ) -> Result<(), ExecuteError> {
        self.runs += 1;
        let scope = Scope { program: run.program, plan: run.program.plan(main), given };
        let is_kept = self.runs > 1 && run.observer.is_none() && run.space.can_record() && !self.is_refused;
        if !is_kept || !can_be_recorded(scope) {
            return run_graph(run, main, frame, given, Vec::new());
        }
        frame.states.take(run.space, given.inputs).map_err(ExecuteError::of_transfer)?;
        run.in_time(None)?;
        let is_of = |recorded: &Recorded| {
            let pairs = recorded.inputs.iter().zip(given.inputs);
            recorded.inputs.len() == given.inputs.len()
                && pairs.into_iter().all(|pair| match pair {
                    (Some(address), Some(data)) => address.is_of(*data),
                    (None, Some(data)) => !matches!(data, DataRef::Device(_)),
                    (None, None) => true,
                    (Some(_), None) => false,
                })
        };
        let at = match self.recordings.iter().position(is_of) {
            Some(at) => at,
            None => {
                let recording = match recorded(run, scope, frame) {
                    Ok(recording) => recording,
                    Err(error @ (ExecuteError::Stopped | ExecuteError::Time { .. })) => return Err(error),
                    Err(_) => {
                        self.is_refused = true;
                        return run_graph(run, main, frame, given, Vec::new());
                    }
                };
                // A session has two sets of inputs.
                if self.recordings.len() == 2 {
                    self.recordings.remove(0);
                }
                self.recordings.push(Recorded { inputs: addresses(given.inputs), recording });
                self.recordings.len() - 1
            }
        };
        if scope.plan.steps.iter().any(|step| states::writes_states(scope.plan, step)) {
            frame.states.set_torn(true);
        }
        if let Some(queue) = run.space.queue() {
            queue.replay(&self.recordings[at].recording)?;
        }
        Ok(())
    }
}

/// The kernels of the steps, recorded.
fn recorded(run: &mut Run<'_>, scope: Scope<'_>, frame: &mut Frame) -> Result<Recording, ExecuteError> {
    let Run { runtime, program, deadline, stop, .. } = *run;
    let recorded = run.space.record(|space| {
        run_steps(&mut Run { runtime, space, program, observer: None, deadline, stop }, scope, frame)
    });
    recorded?.ok_or_else(|| ExecuteError::Lost("the session has no device".to_owned()))
}

impl Returning {
    /// Begins to copy an output to the host.
    pub(super) fn of(space: &mut Space, data: DataRef<'_>) -> Result<Returning, KernelError> {
        if let (DataRef::Device(tensor), Some(queue)) = (data, space.queue()) {
            let download = queue.start_download(tensor.span)?;
            return Ok(Returning::Tensor(tensor.dtype, tensor.dims.to_vec(), download));
        }
        space.fetch(data).map(Returning::There)
    }

    /// Waits for the output.
    pub(super) fn land(self) -> Result<Data, KernelError> {
        Ok(match self {
            Returning::There(data) => data,
            Returning::Tensor(dtype, dims, download) => {
                let filled =
                    HostTensor::filled(dtype, &dims, |to| download.finish(to).map_err(KernelError::from));
                Data::Tensor(filled?)
            }
        })
    }
}

/// True if every step has a kernel that can be recorded, and every value that a step reads or writes a place that stays from run to run.
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

fn addresses(inputs: &[Option<DataRef<'_>>]) -> Vec<Option<Address>> {
    let address = |data: &Option<DataRef<'_>>| match data {
        Some(DataRef::Device(tensor)) => {
            let span = tensor.span;
            Some(Address { memory: span.memory.clone(), offset: span.offset, len: span.len })
        }
        _ => None,
    };
    inputs.iter().map(address).collect()
}
