//! Sessions run a module any number of times, on any backend.
//!
//! - [`Runtime`]: a backend, and the limits of every run.
//! - [`Executable`]: a prepared module. Its sessions share the constants, and the programs for the most recent dims.
//! - [`Session`]: the memory of one run at a time: the arena, the states, and values whose sizes are known only at run
//!   time. Sessions of one executable run in any number of threads.
//!
//! A session plans the graph for the dims of the inputs at hand ([`plan`](crate::plan)), and executes the plan. In
//! the order of a run: `executable.rs` finds or makes the program (`inlined.rs`: inlined functions, once for all
//! runs; `bind.rs`: types, folding, kernels, plans); `walk.rs` runs its steps in a frame (`frame.rs`); `control.rs`
//! runs bodies; and `states.rs` advances states. On a device, `inputs.rs` copies inputs, `recording.rs` replays
//! kernels, and `flight.rs` has the runs that the host does not wait for. `needs.rs` predicts the memory of a run,
//! and `device_bytes.rs` predicts device memory before it is allocated.

mod bind;
mod control;
mod device_bytes;
mod device_heap;
mod error;
mod executable;
mod flight;
mod frame;
mod inlined;
mod inputs;
mod layouts;
mod limits;
mod needs;
mod observe;
mod pairs;
mod partition;
mod recording;
mod shared;
mod space;
mod states;
pub(crate) mod walk;

pub use device_bytes::DeviceBytes;
pub use device_heap::Certainty;
pub use error::{ExecuteError, PrepareError};
pub use executable::{Executable, Runtime};
pub use limits::{Limits, available_memory, left_of_limit};
pub use needs::{MemoryNeeds, Plans};
pub use observe::{NodeObserver, Watch};
pub use shared::SharedConstants;

use crate::backend::{Backend, alignment, installed_run};
use crate::data::{Data, DataRef};
use crate::device::DeviceError;
use crate::host::HostError;
use crate::kernel::KernelError;
use crate::plan::{GraphPlan, Place};
use ampc_ir::infer::describe;
use ampc_ir::op::OpKind;
use ampc_ir::{GraphId, Module, Type};
use bind::Program;
use executable::Bound;
use flight::{Flights, Returning};
use frame::{Frame, Given, Scope};
use inputs::{InputSets, over};
use observe::Observing;
use recording::Recordings;
use space::Space;
use states::StateMemory;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use walk::Run;

/// The memory in which a module runs, and the states of the module.
pub struct Session {
    executable: Arc<Executable>,
    space: Space,
    /// A flag that, when another thread sets it, ends a run of this session before the next node.
    stop: Option<Arc<AtomicBool>>,
    bound: Option<Arc<Bound>>,
    /// The memory of the main graph. States that were set before planning have memory, which is kept.
    frame: Frame,
    /// States outside of an arena, as the last run left them, by formal input.
    moved: BTreeMap<usize, Data>,
    flights: Flights,
    inputs: InputSets,
    recordings: Recordings,
    /// Host copies of the states, as a caller last read them.
    copied: Vec<(usize, Data)>,
}

/// True if nodes of an operator can run.
pub(crate) fn has_kernel(backend: &dyn Backend, kind: OpKind) -> bool {
    control::is_control(kind) || backend.has_kernel(kind)
}

/// The inputs, with states for missing inputs.
fn with_states<'a>(
    inputs: &[Option<DataRef<'a>>],
    states: &'a BTreeMap<usize, Data>,
) -> Vec<Option<DataRef<'a>>> {
    let given = inputs.iter().enumerate();
    given.map(|(at, given)| given.or_else(|| states.get(&at).map(Data::view))).collect()
}

impl Session {
    /// A session without memory; the first run allocates it.
    ///
    /// # Errors
    /// If the device cannot create a queue.
    pub fn new(executable: Arc<Executable>) -> Result<Session, DeviceError> {
        let space = Space::of(&executable.runtime().backend)?;
        Ok(Session {
            executable,
            space,
            stop: None,
            bound: None,
            frame: Frame::default(),
            moved: BTreeMap::new(),
            flights: Flights::default(),
            inputs: InputSets::default(),
            recordings: Recordings::default(),
            copied: Vec::new(),
        })
    }

    /// The prepared module, for further sessions.
    pub fn executable(&self) -> &Arc<Executable> {
        &self.executable
    }

    /// True if the session computes on a device, whose memory the host cannot address.
    pub fn is_on_device(&self) -> bool {
        matches!(self.space, Space::Device(_))
    }

    /// Sets a flag with which another thread ends runs of this session before their next node, in addition to
    /// [`Limits::stop`].
    pub fn set_stop(&mut self, stop: Arc<AtomicBool>) {
        self.stop = Some(stop);
    }

    /// Computes the outputs, in order, in host memory. There is an input for every formal input of the graph, in
    /// order. An input may be `None` if it has a default, or is a state that was given before.
    ///
    /// # Errors
    /// If inputs do not fit the graph, a node cannot be computed, or a limit is reached.
    pub fn run(&mut self, inputs: &[Option<DataRef<'_>>]) -> Result<Vec<Data>, ExecuteError> {
        self.run_observed(inputs, None)
    }

    /// Like [`run`](Self::run), with an observer of the values that it [watches](NodeObserver::watch).
    ///
    /// # Errors
    /// Errors of [`run`](Self::run).
    pub fn run_observed(
        &mut self,
        inputs: &[Option<DataRef<'_>>],
        observer: Option<&mut (dyn NodeObserver + Send)>,
    ) -> Result<Vec<Data>, ExecuteError> {
        let mut outputs = Vec::new();
        self.run_visiting(inputs, observer, |space, frame, scope| {
            let mut returning = Vec::new();
            for output in 0..scope.plan.outputs.len() {
                match space {
                    Space::Host => outputs.extend(frame.take_output(space, scope, output)?),
                    Space::Device(_) => returning.extend(
                        frame.output(scope, output).map(|data| Returning::of(space, data)).transpose()?,
                    ),
                }
            }
            for output in returning {
                outputs.push(output.land()?);
            }
            Ok(())
        })?;
        Ok(outputs)
    }

    /// Like [`run`](Self::run), but the outputs stay in the memory that the session computes in. Such tensors can be
    /// inputs of the next run of any session on the device; [`fetch`](Self::fetch) copies them to the host.
    /// # Errors
    /// Errors of [`run`](Self::run).
    pub fn run_in_place(&mut self, inputs: &[Option<DataRef<'_>>]) -> Result<Vec<Data>, ExecuteError> {
        let mut outputs = Vec::new();
        self.run_visiting(inputs, None, |space, frame, scope| {
            for output in 0..scope.plan.outputs.len() {
                outputs.extend(frame.take_output(space, scope, output)?);
            }
            // Queues of other sessions may read the outputs immediately.
            Ok(space.finish()?)
        })?;
        Ok(outputs)
    }

    /// Waits for the work that produces a value, and copies the value to host memory.
    ///
    /// # Errors
    /// If the allocation fails, or the device fails.
    pub fn fetch(&mut self, data: DataRef<'_>) -> Result<Data, ExecuteError> {
        // A failure of a run in flight must be reported by that run.
        self.land_all();
        let fetched = self.space.fetch(data);
        fetched.map_err(|error| self.failed(ExecuteError::of_transfer(error)))
    }

    /// Like [`run`](Self::run), but without copies in host memory: `visit` sees each output in place. From the second
    /// run with the same dims on, a graph whose dims are all known before it runs allocates no tensor, and nothing
    /// else except scratch memory of the crate `gemm-common` and a block of the thread queue in every 63rd run.
    ///
    /// # Errors
    /// Errors of [`run`](Self::run).
    pub fn run_to(
        &mut self,
        inputs: &[Option<DataRef<'_>>],
        visit: impl FnMut(usize, DataRef<'_>) + Send,
    ) -> Result<(), ExecuteError> {
        self.run_to_observed(inputs, None, visit)
    }

    /// Like [`run_to`](Self::run_to), with an observer of the values that it [watches](NodeObserver::watch).
    ///
    /// # Errors
    /// Errors of [`run`](Self::run).
    pub fn run_to_observed(
        &mut self,
        inputs: &[Option<DataRef<'_>>],
        observer: Option<&mut (dyn NodeObserver + Send)>,
        mut visit: impl FnMut(usize, DataRef<'_>) + Send,
    ) -> Result<(), ExecuteError> {
        self.run_visiting(inputs, observer, |space, frame, scope| {
            for output in 0..scope.plan.outputs.len() {
                if let Some(data) = frame.output(scope, output) {
                    space.on_host(data, |data| visit(output, data))?;
                }
            }
            Ok(())
        })
    }

    /// Copies of the current states in host memory, by formal input. A state is given with the first run and kept:
    /// later runs may omit it.
    ///
    /// # Errors
    /// If the allocation of copies fails, or the device fails.
    pub fn states(&mut self) -> Result<Vec<(usize, Data)>, ExecuteError> {
        self.land_all();
        let Session { frame, moved, space, .. } = self;
        let states = states_of(frame, moved).into_iter();
        let copies: Result<_, KernelError> = states.map(|(at, data)| Ok((at, space.fetch(data)?))).collect();
        copies.map_err(|error| self.failed(ExecuteError::of_transfer(error)))
    }

    /// The states in host memory, by formal input. No state is copied if the session computes there.
    ///
    /// # Errors
    /// If the allocation of copies fails, or the device fails.
    pub fn state_views(&mut self) -> Result<Vec<(usize, DataRef<'_>)>, ExecuteError> {
        if let Space::Device(_) = self.space {
            self.copied = self.states()?;
            return Ok(self.copied.iter().map(|(at, data)| (*at, data.view())).collect());
        }
        Ok(states_of(&self.frame, &self.moved))
    }

    /// The states that [`set_states`](Self::set_states) sets, by formal input: the states with known sizes. Other
    /// states are given with a run.
    pub fn placed_states(&self) -> Vec<usize> {
        self.frame.states.inputs(self.module())
    }

    /// True if the states are torn: a failed run has updated some of them in place, but not all. No run begins until
    /// all states are set, or given with a run.
    pub fn has_torn_states(&self) -> bool {
        self.frame.states.is_torn() && (self.frame.states.iter().next().is_some() || !self.moved.is_empty())
    }

    /// True if the states are torn, and `given` does not contain all of them.
    fn stays_torn(&self, given: &[Option<DataRef<'_>>]) -> bool {
        let is_given = |at: usize| given.get(at).is_some_and(Option::is_some);
        let all = self.frame.states.are_given(given) && self.moved.keys().all(|&at| is_given(at));
        self.frame.states.is_torn() && !all
    }

    /// Sets the states in the memory of the session, so that no run needs them as inputs. `write` is called for each
    /// state with the index of its formal input, and writes its bytes, which are initially zero.
    ///
    /// # Errors
    /// If `write` fails, the states exceed the limit, or the allocation fails. The states are then unchanged.
    pub fn set_states<E: From<HostError>>(
        &mut self,
        write: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let most = self.limits().max_bytes;
        self.land_all();
        self.recordings.forget();
        let backend = &*self.executable.runtime().backend;
        let mut states = self.frame.states.anew(&self.space, self.module(), alignment(backend), most)?;
        states.fill(&mut self.space, write)?;
        self.space.finish().map_err(|error| HostError::Device(Box::new(error)))?;
        if self.frame.states.is_torn() {
            // They are as outdated as the states that are set.
            self.moved.clear();
        }
        self.frame.states = states;
        Ok(())
    }

    fn run_visiting(
        &mut self,
        inputs: &[Option<DataRef<'_>>],
        observer: Option<&mut (dyn NodeObserver + Send)>,
        visit: impl FnOnce(&mut Space, &mut Frame, Scope<'_>) -> Result<(), KernelError> + Send,
    ) -> Result<(), ExecuteError> {
        self.land_all();
        self.start(inputs, observer, true, visit).map_err(|error| self.failed(error))
    }

    /// Runs the module, to the end of the work if the session waits for it. The caller handles an error with
    /// [`failed`](Self::failed).
    fn start(
        &mut self,
        inputs: &[Option<DataRef<'_>>],
        observer: Option<&mut (dyn NodeObserver + Send)>,
        waits: bool,
        visit: impl FnOnce(&mut Space, &mut Frame, Scope<'_>) -> Result<(), KernelError> + Send,
    ) -> Result<(), ExecuteError> {
        let (deadline, given) = (self.deadline(), inputs);
        let moved = self.moved.clone();
        let all;
        let inputs = if moved.is_empty() {
            inputs
        } else {
            all = with_states(inputs, &moved);
            &all
        };
        let observer = observer.map(|observer| Observing::new(observer as &mut (dyn NodeObserver + Send)));
        let watch = observer.as_ref().map_or_else(Watch::nothing, |observer| observer.watch().clone());
        self.bind_until(inputs, watch, deadline)?;
        if self.stays_torn(given) {
            return Err(ExecuteError::TornStates);
        }
        let Session { space, bound, inputs: sets, .. } = self;
        let is_state = |at| bound.as_ref().is_some_and(|bound| bound.is_state(at));
        let brought = sets.bring(space, inputs, is_state, waits)?;
        let inputs: &[Option<DataRef<'_>>] = match &brought {
            Some(brought) => &over(inputs, brought),
            None => inputs,
        };
        self.moved = self.walk(inputs, observer, (deadline, waits), visit)?;
        let given_back = self.inputs.give_back(&mut self.space, brought, waits);
        given_back.map_err(|error| {
            // Until the run is known to succeed, the states are torn.
            self.frame.states.set_torn(true);
            error.into()
        })
    }

    fn deadline(&self) -> Option<Instant> {
        self.limits().time_limit.and_then(|limit| Instant::now().checked_add(limit))
    }

    fn limits(&self) -> &Limits {
        &self.executable.runtime().limits
    }

    /// Executes the program, shows `visit` the outputs, and advances the states. Returns the states outside of the
    /// arena.
    fn walk<'a>(
        &'a mut self,
        inputs: &'a [Option<DataRef<'a>>],
        observer: Option<Observing<'a>>,
        (deadline, waits): (Option<Instant>, bool),
        visit: impl FnOnce(&mut Space, &mut Frame, Scope<'_>) -> Result<(), KernelError> + Send,
    ) -> Result<BTreeMap<usize, Data>, ExecuteError> {
        let Session { executable, space, stop, bound, frame, recordings, .. } = self;
        let Some(bound) = bound else { return Ok(BTreeMap::new()) };
        let (runtime, program) = (executable.runtime(), &bound.program);
        let mut run =
            Run { runtime, space, program, observer, deadline, stop: stop.as_deref(), within: None };
        let main = program.module.main();
        let given = Given { inputs, operands: &[], attrs: None };
        let scope = Scope { program, plan: program.plan(main), given };
        let (moved, is_sequential) = installed_run(&*runtime.backend, bound.hint(), || {
            recordings.run_or_replay(&mut run, main, frame, given)?;
            // If the session waits for the work, no failure may follow once states are overwritten.
            if waits {
                run.space.finish()?;
                run.in_time(None)?;
            }
            let space = run.space;
            states::check_made(executable.module(), scope, frame)?;
            let mut outputs = 0..scope.plan.outputs.len();
            if let Some(output) = outputs.find(|&output| frame.output(scope, output).is_none()) {
                return Err(ExecuteError::NoOutput { output });
            }
            let next = states::next_states(space, scope, frame).map_err(ExecuteError::of_transfer)?;
            visit(space, frame, scope).map_err(ExecuteError::of_transfer)?;
            if scope.plan.states.iter().any(|state| state.copied) {
                frame.states.set_torn(true);
            }
            let moved = states::store_states(space, scope.plan, frame, next);
            let moved = moved.map_err(ExecuteError::of_transfer)?;
            frame.states.set_torn(false);
            Ok(moved)
        });
        bound.note_run(is_sequential, moved.is_ok());
        moved
    }

    /// The device memory of the session for the inputs that it was last bound to; `None` before that, or if the
    /// backend computes in host memory.
    pub fn device_bytes(&self) -> Option<DeviceBytes> {
        self.bound.as_ref()?.device_bytes
    }

    /// Sets the bytes of device memory of other sessions that count against
    /// [`Limits::max_device_bytes`](crate::Limits::max_device_bytes) when graphs are planned from now on, in this
    /// session and in all sessions of its executable.
    pub fn reserve_device_bytes(&self, bytes: u64) {
        self.executable.reserve(bytes);
    }

    /// Plans the graph for these inputs, unless a plan for their dims exists. Given states replace the old states;
    /// all other states are kept.
    ///
    /// # Errors
    /// If inputs do not fit the graph.
    pub fn bind(&mut self, inputs: &[Option<DataRef<'_>>]) -> Result<(), ExecuteError> {
        self.bind_for(inputs, Watch::nothing())
    }

    /// Plans the graph for inputs of these types, like [`bind`](Self::bind), before states are set. On a device, it
    /// copies only constants, and nothing if the plan exceeds the limit. `None` stands for an absent input.
    ///
    /// # Errors
    /// If the types do not fit the graph, or the plan needs more device memory than the limit.
    pub fn plan_for(&mut self, types: Vec<Option<Type>>) -> Result<DeviceBytes, ExecuteError> {
        self.land_all();
        let deadline = self.deadline();
        let next = self.executable.program(&mut self.space, types, Watch::nothing(), deadline)?;
        Ok(next.device_bytes.unwrap_or_default())
    }

    /// Like [`bind`](Self::bind), for a run with an observer of every value.
    ///
    /// # Errors
    /// If inputs do not fit the graph.
    pub fn bind_observed(&mut self, inputs: &[Option<DataRef<'_>>]) -> Result<(), ExecuteError> {
        self.bind_for(inputs, Watch::All)
    }

    fn bind_for(&mut self, inputs: &[Option<DataRef<'_>>], watch: Watch) -> Result<(), ExecuteError> {
        self.land_all();
        let moved = self.moved.clone();
        let bound = self.bind_until(&with_states(inputs, &moved), watch, self.deadline());
        let taken = bound.and_then(|()| self.take_states(inputs).map_err(ExecuteError::of_transfer));
        taken.map_err(|error| self.failed(error))
    }

    /// Stores the given states over the old states.
    fn take_states(&mut self, given: &[Option<DataRef<'_>>]) -> Result<(), KernelError> {
        let is_torn = self.stays_torn(given);
        let Session { space, bound, frame, moved, .. } = self;
        frame.states.take(space, given)?;
        for state in bound.iter().flat_map(|bound| &bound.program.main_plan().moved) {
            let at = state.now as usize;
            if let Some(data) = given.get(at).copied().flatten() {
                moved.insert(at, space.bring(data)?);
            }
        }
        space.finish()?;
        frame.states.set_torn(is_torn);
        Ok(())
    }

    fn bind_until(
        &mut self,
        inputs: &[Option<DataRef<'_>>],
        watch: Watch,
        deadline: Option<Instant>,
    ) -> Result<(), ExecuteError> {
        self.check_elements(inputs)?;
        let fits = |bound: &Arc<Bound>| bound.watch == watch && bound.fits(inputs);
        if self.bound.as_ref().is_some_and(fits) {
            return Ok(());
        }
        // Binding folds constants and copies them. The memory of the last program is freed or reused before more is
        // allocated.
        self.land_all();
        let types = self.types_of(inputs);
        let next = self.executable.program(&mut self.space, types, watch, deadline)?;
        let program = &next.program;
        let plan = program.main_plan();
        states::check_planned(self.module(), plan)?;
        self.recordings.forget();
        self.bound = None;
        self.frame.release();
        let given = inputs.iter().flatten().map(|data| data.byte_count());
        let others = [self.executable.constant_bytes(), output_bytes(plan)];
        let taken = given.chain(others).fold(0, u64::saturating_add);
        let most = self.limits().max_bytes;
        frame::check_memory(&program.module, plan, taken, most)?;
        self.place_states(program)?;
        self.frame.reserve(&self.space, &program.module, plan, taken, most)?;
        self.bound = Some(next);
        Ok(())
    }

    /// Checks that no sequence or optional has an element with other dims than the model declares.
    fn check_elements(&self, inputs: &[Option<DataRef<'_>>]) -> Result<(), ExecuteError> {
        let module = self.module();
        let formals = module.graph(module.main()).inputs();
        for (input, (&value, data)) in formals.iter().zip(inputs).enumerate() {
            let declared = &module.value(value).ty;
            if let Some(element) = data.and_then(|data| other_element(declared, data)) {
                let found = format!("an element of {}", describe(&element));
                return Err(ExecuteError::Input { input, expected: describe(declared), found });
            }
        }
        Ok(())
    }

    /// The types of inputs; a state that is not given keeps its type.
    fn types_of(&self, inputs: &[Option<DataRef<'_>>]) -> Vec<Option<Type>> {
        let mut types: Vec<Option<Type>> = inputs.iter().map(|i| i.map(DataRef::ty)).collect();
        for (at, data) in self.frame.states.iter() {
            if let Some(ty @ None) = types.get_mut(at) {
                *ty = Some(data.ty());
            }
        }
        types
    }

    /// Moves the states into the layout of `program`. States that were never given get their defaults.
    fn place_states(&mut self, program: &Program) -> Result<(), ExecuteError> {
        let plan = program.main_plan();
        let left = states::left_over(&mut self.space, &self.frame.states, plan);
        let left = left.map_err(ExecuteError::of_transfer)?;
        if !self.frame.states.is_of(plan) {
            let failed = |error| ExecuteError::of_device(None, error);
            let mut states = StateMemory::of_plan(&self.space, plan).map_err(failed)?;
            let formals = program.module.graph(program.module.main()).inputs();
            let mut first: Vec<_> = formals.iter().map(|&value| program.constant_on_host(value)).collect();
            let moved = self.moved.iter().map(|(&at, data)| (at, data.view()));
            self.frame.states.iter().chain(moved).for_each(|(at, data)| first[at] = Some(data));
            states.take(&mut self.space, &first).map_err(ExecuteError::of_transfer)?;
            // The old states are freed after the copies are done.
            self.space.finish()?;
            states.set_torn(self.frame.states.is_torn());
            self.frame.states = states;
        }
        self.moved.extend(left);
        self.moved.retain(|&at, _| plan.moved.iter().any(|state| state.now as usize == at));
        Ok(())
    }

    /// The plans of the last [`bind`](Self::bind) as text, the main graph first.
    pub fn plan_text(&self) -> String {
        let Some(program) = self.bound.as_ref().map(|bound| &bound.program) else { return String::new() };
        let graphs = program.graphs.iter();
        graphs.map(|&graph| program.plan(graph).to_text(&program.module)).collect()
    }

    /// Copies of the plans of the last [`bind`](Self::bind) or run, the main graph first.
    pub fn plans(&self) -> Option<Plans> {
        self.bound.as_ref().map(|bound| Plans::of(&bound.program))
    }

    /// The size of the main graph's arena in bytes, for the inputs of the last [`bind`](Self::bind).
    pub fn arena_bytes(&self) -> usize {
        self.bound.as_ref().map_or(0, |bound| bound.program.main_plan().arena)
    }

    /// The plan of a graph of the module for the inputs of the last [`bind`](Self::bind). Its steps name nodes of the
    /// module only after [`bind_observed`](Self::bind_observed); otherwise calls are replaced by the nodes of their
    /// functions.
    pub fn plan(&self, graph: GraphId) -> Option<&GraphPlan> {
        self.bound.as_ref().and_then(|bound| bound.program.plans[graph].as_deref())
    }

    /// The size of all constants in bytes. Sessions of one executable share them.
    pub fn constant_bytes(&self) -> u64 {
        self.executable.constant_bytes()
    }

    /// The bytes that the arenas of all graphs hold now.
    pub fn allocated_bytes(&self) -> usize {
        self.frame.arena_bytes()
    }

    /// The module of the session.
    pub fn module(&self) -> &Module {
        self.executable.module()
    }
}

/// The states of a session, by formal input.
fn states_of<'a>(frame: &'a Frame, moved: &'a BTreeMap<usize, Data>) -> Vec<(usize, DataRef<'a>)> {
    let moved = moved.iter().map(|(&at, data)| (at, data.view()));
    let mut found: Vec<(usize, DataRef<'_>)> = frame.states.iter().chain(moved).collect();
    found.sort_unstable_by_key(|(at, _)| *at);
    found
}

/// The bytes of outputs that are copied out of the arena.
fn output_bytes(plan: &GraphPlan) -> u64 {
    let bytes = |&output: &u32| match plan.values[output as usize].place {
        Place::Arena { len, .. } => len as u64,
        _ => 0,
    };
    plan.outputs.iter().map(bytes).fold(0, u64::saturating_add)
}

/// The type of the first element of a sequence or optional that the type `declared` does not permit.
fn other_element(declared: &Type, data: DataRef<'_>) -> Option<Type> {
    let (declared, items) = match (declared, data) {
        (Type::Sequence(element), DataRef::Sequence(sequence)) => (element, sequence.items()),
        (Type::Optional(element), DataRef::Optional(maybe)) => {
            (element, maybe.value.as_deref().map_or(&[][..], std::slice::from_ref))
        }
        _ => return None,
    };
    items.iter().find_map(|item| {
        let (item, ty) = (item.view(), item.view().ty());
        if admits(declared, &ty) { other_element(declared, item) } else { Some(ty) }
    })
}

/// True if a value of type `given` may be an input of type `declared`. The elements of sequences and optionals are
/// checked with their values, because the type of such a value has no dims of elements.
pub fn admits(declared: &Type, given: &Type) -> bool {
    match (declared, given) {
        (Type::Unknown, _) => true,
        (Type::Tensor(d), Type::Tensor(g)) => {
            d.dtype == g.dtype
                && match (d.shape.dims(), g.shape.dims()) {
                    (Some(d), Some(g)) => {
                        d.len() == g.len() && d.iter().zip(g).all(|(d, g)| d.known().is_none() || d == g)
                    }
                    _ => true,
                }
        }
        (Type::Sequence(d), Type::Sequence(g)) | (Type::Optional(d), Type::Optional(g)) => {
            matches!(**g, Type::Unknown) || d.same_kind(g)
        }
        _ => false,
    }
}
