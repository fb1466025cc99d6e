//! The CPU backend: the embedded default, and the ground truth for numerics.
//!
//! Tensors are stored in their declared element types. Every operator computes in f32 (in f64 where an operand is
//! f64) and rounds once, to the element type of its result; products accumulate in f32 from the operands as they are
//! stored. So an overflow of fp16 is an overflow here. Results do not depend on the number of threads: work is cut
//! into pieces by its size alone, and sums are in one order.
//!
//! [`Cpu::prepare`] checks that there is a kernel for everything and reads the constants; [`Executable::run`] plans
//! the graph for the dims of the inputs at hand ([`plan`](crate::plan)), once for as long as they stay the same or take
//! turns with one other, and walks the plan. `cpu/kernel.rs` says what a kernel is; `cpu/kernels/` has them by family.

mod bind;
mod control;
mod error;
mod exec;
mod frame;
pub(crate) mod kernel;
mod kernels;
mod memory;
mod needs;
mod pool;
mod room;
mod states;

pub use error::{ExecuteError, PrepareError};
pub use exec::NodeObserver;
pub use kernel::KernelError;
pub use memory::{available_memory, left_of_limit};
pub use needs::MemoryNeeds;

use crate::backend::{Backend, Execute};
use crate::data::{Data, DataRef};
use crate::host::{HostError, HostTensor};
use crate::plan::{GraphPlan, Place};
use ampc_ir::module::{Def, Op, Payload};
use ampc_ir::{DType, GraphId, Module, Type};
use bind::{Binder, Constants, Program};
use exec::{Run, run_graph};
use frame::{Frame, Given, Scope};
use pool::Pool;
use states::StateMemory;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The CPU backend and what it may take.
#[derive(Clone, Debug)]
pub struct Cpu {
    /// Threads; 0 for as many as there are processors. If the system starts no more, there are fewer; if it starts none,
    /// the thread of the caller does the work.
    pub threads: usize,
    /// A limit in bytes. It holds for the main graph as a whole (arena, constants, inputs, outputs), and separately for each
    /// tensor on the heap and for the arena of each body or function.
    pub max_bytes: u64,
    /// The most iterations of one Loop or Scan.
    pub max_iterations: u64,
    /// The most time that one run may take.
    pub time_limit: Option<Duration>,
    /// Set from another thread, it ends a run before the next node.
    pub stop: Option<Arc<AtomicBool>>,
    /// Whether what depends on constants alone is computed once, before the graph runs; an [`NodeObserver`] sees it
    /// otherwise.
    pub fold: bool,
}

impl Default for Cpu {
    /// All processors, as much memory as there is ([`available_memory`]), no other limits.
    fn default() -> Cpu {
        Cpu {
            threads: 0,
            max_bytes: available_memory(),
            max_iterations: u64::MAX,
            time_limit: None,
            stop: None,
            fold: true,
        }
    }
}

/// A module that is ready to run.
pub struct Executable {
    options: Cpu,
    pool: Pool,
    module: Module,
    constants: Constants,
    /// What was computed of constants alone.
    folded: Constants,
    bound: Option<Bound>,
    /// The program of the previous dims, such as the smaller batch at the end of an epoch, so that returning to
    /// them needs no planning.
    previous: Option<Bound>,
    /// The memory of the main graph. That of its states is there before it is planned if they were set, and stays.
    frame: Frame,
    /// States that are not in an arena, as the last run left them, by formal input.
    moved: BTreeMap<usize, Data>,
}

/// The program for the dims of the inputs of the last run.
struct Bound {
    types: Vec<Option<Type>>,
    /// Of each input, whether it is a state that the arena has.
    is_state: Vec<bool>,
    program: Program,
}

impl Backend for Cpu {
    type Executable = Executable;

    fn prepare(&self, module: &Module) -> Result<Executable, PrepareError> {
        Cpu::prepare(self, module)
    }
}

impl Execute for Executable {
    fn module(&self) -> &Module {
        Executable::module(self)
    }

    fn bind(&mut self, inputs: &[Option<DataRef<'_>>]) -> Result<(), ExecuteError> {
        Executable::bind(self, inputs)
    }

    fn run(
        &mut self,
        inputs: &[Option<DataRef<'_>>],
        observer: Option<&mut (dyn NodeObserver + Send)>,
    ) -> Result<Vec<Data>, ExecuteError> {
        self.run_observed(inputs, observer)
    }
}

impl Bound {
    /// Whether the program is that for these inputs. A state that is not given has the type it had.
    fn fits(&self, inputs: &[Option<DataRef<'_>>]) -> bool {
        let fits = |(at, given): (usize, &Option<DataRef<'_>>)| match (given, &self.types[at]) {
            (Some(data), Some(ty)) => data.is_of(ty),
            (None, Some(_)) => self.is_state[at],
            (None, None) => true,
            (Some(_), None) => false,
        };
        inputs.len() == self.types.len() && inputs.iter().enumerate().all(fits)
    }
}

/// Inputs, with states for inputs that are not given.
fn with_states<'a>(
    inputs: &[Option<DataRef<'a>>],
    states: &'a BTreeMap<usize, Data>,
) -> Vec<Option<DataRef<'a>>> {
    let given = inputs.iter().enumerate();
    given.map(|(at, given)| given.or_else(|| states.get(&at).map(Data::view))).collect()
}

impl Cpu {
    /// Whether a constant has no more bytes than a tensor may.
    fn fits(&self, payload: &Payload) -> Result<(), HostError> {
        let (dtype, dims) = match payload {
            Payload::Dense(data) => (data.dtype(), data.dims().to_vec()),
            Payload::Sparse(data) => (data.values.dtype(), data.dims.to_vec()),
        };
        if dtype == DType::String {
            return Ok(());
        }
        match dtype.tensor_bytes(&dims) {
            Some(bytes) if bytes <= self.max_bytes => Ok(()),
            _ => Err(HostError::Limit { limit: self.max_bytes, dtype, dims }),
        }
    }

    /// Reads the constants of a module and checks that there is a kernel for each of its operators.
    ///
    /// # Errors
    /// With all nodes that have none, or if a constant cannot be read.
    pub fn prepare(&self, module: &Module) -> Result<Executable, PrepareError> {
        let mut lacking = Vec::new();
        let mut constants = Constants::default();
        for graph in module.graph_ids() {
            for node in module.nodes(graph) {
                match module.node(node).op {
                    Op::Schema(schema) if exec::has_kernel(schema.kind) => {}
                    Op::Call(_) => {}
                    Op::Schema(_) | Op::Custom { .. } => {
                        let (domain, name, _) = module.op_name(node);
                        let separator = if domain.is_empty() { "" } else { "::" };
                        lacking.push((node, format!("{domain}{separator}{name}")));
                    }
                }
            }
            for value in module.defined(graph) {
                let payload = match &module.value(value).def {
                    Def::Constant(payload) | Def::Input { default: Some(payload), .. } => payload,
                    _ => continue,
                };
                let read = self.fits(payload).and_then(|()| read_constant(payload));
                let read = read.map_err(|error| PrepareError::Constant { value, error })?;
                constants[value] = Some(Arc::new(read));
            }
        }
        if !lacking.is_empty() {
            return Err(PrepareError::Unsupported(lacking));
        }
        Ok(Executable {
            options: self.clone(),
            pool: Pool::new(self.threads),
            module: module.clone(),
            constants,
            folded: Constants::default(),
            bound: None,
            previous: None,
            frame: Frame::default(),
            moved: BTreeMap::new(),
        })
    }
}

fn read_constant(payload: &Payload) -> Result<HostTensor, HostError> {
    match payload {
        Payload::Dense(data) => HostTensor::from_data(data),
        Payload::Sparse(data) => HostTensor::from_sparse(data),
    }
}

impl Executable {
    /// Computes the outputs, in order. There is an input for every formal input of the graph, in order; an
    /// input with a default may be `None`.
    ///
    /// # Errors
    /// If inputs do not fit the graph, a node cannot be computed, or a limit is reached.
    pub fn run(&mut self, inputs: &[Option<DataRef<'_>>]) -> Result<Vec<Data>, ExecuteError> {
        self.run_observed(inputs, None)
    }

    /// Like [`run`](Self::run); `observer` sees every value that is computed.
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub fn run_observed(
        &mut self,
        inputs: &[Option<DataRef<'_>>],
        observer: Option<&mut (dyn NodeObserver + Send)>,
    ) -> Result<Vec<Data>, ExecuteError> {
        let mut outputs = Vec::new();
        self.run_visiting(inputs, observer, |frame, scope| {
            for output in 0..scope.plan.outputs.len() {
                let taken = frame.take_output(scope, output)?;
                outputs.push(taken.ok_or(ExecuteError::NoOutput { output })?);
            }
            Ok(())
        })?;
        Ok(outputs)
    }

    /// Like [`run`](Self::run), but without copies: `visit` sees each output in place. From the second run with
    /// the same dims on, a graph whose dims are all known before it runs allocates no tensor, and nothing else
    /// but what the crate `gemm` takes for a product and a block of the thread queue with every 63rd run.
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub fn run_to(
        &mut self,
        inputs: &[Option<DataRef<'_>>],
        visit: impl FnMut(usize, DataRef<'_>) + Send,
    ) -> Result<(), ExecuteError> {
        self.run_to_observed(inputs, None, visit)
    }

    /// Like [`run_to`](Self::run_to); `observer` sees every value that is computed.
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub fn run_to_observed(
        &mut self,
        inputs: &[Option<DataRef<'_>>],
        observer: Option<&mut (dyn NodeObserver + Send)>,
        mut visit: impl FnMut(usize, DataRef<'_>) + Send,
    ) -> Result<(), ExecuteError> {
        self.run_visiting(inputs, observer, |frame, scope| {
            for output in 0..scope.plan.outputs.len() {
                visit(output, frame.output(scope, output).ok_or(ExecuteError::NoOutput { output })?);
            }
            Ok(())
        })
    }

    /// The states of the graph as they are now, by formal input: copies. A state is given with the first run and stays:
    /// later ones may leave it out.
    ///
    /// # Errors
    /// If there is not enough memory for copies.
    pub fn states(&self) -> Result<Vec<(usize, Data)>, HostError> {
        self.state_views().into_iter().map(|(at, data)| Ok((at, data.to_data()?))).collect()
    }

    /// [`states`](Self::states) where they are: nothing is copied.
    pub fn state_views(&self) -> Vec<(usize, DataRef<'_>)> {
        let placed = self.frame.states.iter().map(|(at, tensor)| (at, DataRef::Tensor(tensor)));
        let moved = self.moved.iter().map(|(&at, data)| (at, data.view()));
        let mut found: Vec<(usize, DataRef<'_>)> = placed.chain(moved).collect();
        found.sort_unstable_by_key(|(at, _)| *at);
        found
    }

    /// The states that [`set_states`](Self::set_states) sets, by formal input: those whose sizes are known. Others are
    /// given with a run.
    pub fn placed_states(&self) -> Vec<usize> {
        self.frame.states.inputs(&self.module)
    }

    /// Whether the states are torn: some were updated in place by a run that failed afterwards, others were not. Such states
    /// have to be set, or given with a run, all of them; without that no run begins.
    pub fn has_torn_states(&self) -> bool {
        self.frame.states.is_torn()
    }

    /// Sets states where runs keep them, so that no run has to be given them: `write` is told of each which formal input
    /// it is, and writes its bytes, which are zeros before.
    ///
    /// # Errors
    /// Those of `write`, and if there is not so much memory or it is beyond the limit. The states are then what they were.
    pub fn set_states<E: From<HostError>>(
        &mut self,
        write: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut states = self.frame.states.anew(&self.module, self.options.max_bytes)?;
        states.fill(write)?;
        self.frame.states = states;
        Ok(())
    }

    fn run_visiting(
        &mut self,
        inputs: &[Option<DataRef<'_>>],
        observer: Option<&mut (dyn NodeObserver + Send)>,
        visit: impl FnOnce(&mut Frame, Scope<'_>) -> Result<(), ExecuteError> + Send,
    ) -> Result<(), ExecuteError> {
        let deadline = self.deadline();
        let moved = self.moved.clone();
        let all;
        let inputs = if moved.is_empty() {
            inputs
        } else {
            all = with_states(inputs, &moved);
            &all
        };
        self.bind_until(inputs, deadline)?;
        if self.frame.states.stays_torn(inputs) {
            return Err(ExecuteError::TornStates);
        }
        self.moved = self.walk(inputs, observer, deadline, visit)?;
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        self.options.time_limit.and_then(|limit| Instant::now().checked_add(limit))
    }

    /// Walks the program, shows `visit` the outputs, and moves the states on. Provides the values that are not
    /// in the arena.
    fn walk(
        &mut self,
        inputs: &[Option<DataRef<'_>>],
        observer: Option<&mut (dyn NodeObserver + Send)>,
        deadline: Option<Instant>,
        visit: impl FnOnce(&mut Frame, Scope<'_>) -> Result<(), ExecuteError> + Send,
    ) -> Result<BTreeMap<usize, Data>, ExecuteError> {
        let Executable { options, pool, bound, frame, module, .. } = self;
        let Some(Bound { program, .. }) = bound else { return Ok(BTreeMap::new()) };
        let mut run = Run {
            program,
            observer: observer.map(|o| -> &mut (dyn NodeObserver + Send) { o }),
            deadline,
            time_limit: options.time_limit.unwrap_or_default(),
            stop: options.stop.as_deref(),
            max_iterations: options.max_iterations,
            max_bytes: options.max_bytes,
        };
        let main = program.module.main();
        let given = Given { inputs, operands: &[], attrs: None };
        let scope = Scope { program, plan: program.plan(main), given };
        pool.install(|| {
            run_graph(&mut run, main, frame, given, Vec::new())?;
            states::check_made(module, scope, frame)?;
            let next = states::next_states(scope, frame)?;
            visit(frame, scope)?;
            let moved = states::store_states(scope.plan, frame, next);
            frame.states.set_torn(false);
            Ok(moved)
        })
    }

    /// Plans the graph for these inputs, unless it is planned for their dims. Given states replace the old
    /// states; all other states stay.
    ///
    /// # Errors
    /// If inputs do not fit the graph.
    pub fn bind(&mut self, inputs: &[Option<DataRef<'_>>]) -> Result<(), ExecuteError> {
        let moved = self.moved.clone();
        self.bind_until(&with_states(inputs, &moved), self.deadline())
    }

    fn bind_until(
        &mut self,
        inputs: &[Option<DataRef<'_>>],
        deadline: Option<Instant>,
    ) -> Result<(), ExecuteError> {
        if self.bound.as_ref().is_some_and(|bound| bound.fits(inputs)) {
            return Ok(());
        }
        let types = self.types_of(inputs);
        let next = self.program_for(types, deadline)?;
        let program = &next.program;
        let plan = program.main_plan();
        states::check_planned(&self.module, plan)?;
        // The memory of the last program goes, or is that of the next one, before more is taken.
        if let Some(last) = self.bound.take() {
            self.previous = Some(last);
        }
        self.frame.release();
        let given: u64 = inputs.iter().flatten().map(|data| data.byte_count()).sum();
        let taken = given + self.constant_bytes() + output_bytes(plan);
        frame::check_memory(&program.module, plan, taken, self.options.max_bytes)?;
        self.place_states(program, inputs)?;
        self.frame.reserve(&program.module, plan, taken, self.options.max_bytes)?;
        self.folded = program.constants.clone();
        self.bound = Some(next);
        Ok(())
    }

    /// The program for inputs of these types: the one before the last, if that is it.
    fn program_for(
        &mut self,
        types: Vec<Option<Type>>,
        deadline: Option<Instant>,
    ) -> Result<Bound, ExecuteError> {
        if let Some(known) = self.previous.take_if(|previous| previous.types == types) {
            return Ok(known);
        }
        let Executable { options, module, constants, folded, .. } = &*self;
        let binder = Binder { options, module, constants, folded, deadline };
        let program = self.pool.install(|| binder.program(&types))?;
        let mut is_state = vec![false; types.len()];
        program.main_plan().states.iter().for_each(|state| is_state[state.now as usize] = true);
        Ok(Bound { types, is_state, program })
    }

    /// The types of inputs; a state that is not given has the one it had.
    fn types_of(&self, inputs: &[Option<DataRef<'_>>]) -> Vec<Option<Type>> {
        let mut types: Vec<Option<Type>> = inputs.iter().map(|i| i.map(DataRef::ty)).collect();
        for (at, tensor) in self.frame.states.iter() {
            if let Some(ty @ None) = types.get_mut(at) {
                *ty = Some(DataRef::Tensor(tensor).ty());
            }
        }
        types
    }

    /// Has the states where a program has them: those that are given, the others as they were, or as they are by default
    /// if they were never given.
    fn place_states(
        &mut self,
        program: &Program,
        inputs: &[Option<DataRef<'_>>],
    ) -> Result<(), ExecuteError> {
        let plan = program.main_plan();
        let left = states::left_over(&self.frame.states, plan)?;
        if !self.frame.states.is_of(plan) {
            let no_memory = || ExecuteError::NoMemory { node: None, bytes: plan.state_bytes as u64 };
            let mut states = StateMemory::of_plan(plan).ok_or_else(no_memory)?;
            let formals = program.module.graph(program.module.main()).inputs();
            let mut first: Vec<_> = formals.iter().map(|&value| program.constant(value)).collect();
            self.frame.states.iter().for_each(|(at, tensor)| first[at] = Some(DataRef::Tensor(tensor)));
            states.take(&first);
            states.set_torn(self.frame.states.is_torn());
            self.frame.states = states;
        }
        self.frame.states.take(inputs);
        self.moved.extend(left);
        self.moved.retain(|&at, _| plan.moved.iter().any(|state| state.now as usize == at));
        Ok(())
    }

    /// The plans of the last [`bind`](Self::bind) as text, the main graph first.
    pub fn plan_text(&self) -> String {
        let Some(Bound { program, .. }) = &self.bound else { return String::new() };
        let graphs = program.graphs.iter();
        graphs.map(|&graph| program.plan(graph).to_text(&program.module)).collect()
    }

    /// Bytes of the arena of the main graph for the inputs of the last [`bind`](Self::bind).
    pub fn arena_bytes(&self) -> usize {
        self.bound.as_ref().map_or(0, |bound| bound.program.main_plan().arena)
    }

    /// The plan of a graph of the module for the inputs of the last [`bind`](Self::bind).
    pub fn plan(&self, graph: GraphId) -> Option<&GraphPlan> {
        self.bound.as_ref().and_then(|bound| bound.program.plans[graph].as_deref())
    }

    /// Bytes of all constants.
    pub fn constant_bytes(&self) -> u64 {
        let values = self.module.graph_ids().flat_map(|graph| self.module.defined(graph));
        let constants = values.filter_map(|value| self.constants[value].as_ref());
        constants.map(|tensor| DataRef::Tensor(tensor.view()).byte_count()).sum()
    }

    /// Bytes that the arenas of all graphs hold now.
    pub fn allocated_bytes(&self) -> usize {
        self.frame.arena_bytes()
    }

    /// The module it runs.
    pub fn module(&self) -> &Module {
        &self.module
    }
}

/// Bytes of the outputs that are copied out of the arena.
fn output_bytes(plan: &GraphPlan) -> u64 {
    let bytes = |&output: &u32| match plan.values[output as usize].place {
        Place::Arena { len, .. } => len as u64,
        _ => 0,
    };
    plan.outputs.iter().map(bytes).sum()
}

/// Whether a value of type `given` may be an input that is declared as `declared`.
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
