//! A prepared module, which sessions share: its constants, folded results, and the programs for the most recent dims.

use super::bind::{Binder, Constants, OnDevice, Program};
use super::device_bytes::DeviceBytes;
use super::error::{ExecuteError, PrepareError};
use super::inlined::Inlined;
use super::limits::Limits;
use super::observe::Watch;
use super::shared::SharedConstants;
use super::space::Space;
use super::{Session, has_kernel};
use crate::backend::{Backend, RunHint, installed};
use crate::data::DataRef;
use crate::device::Device;
use crate::host::{HostError, HostTensor};
use ampc_ir::module::{Def, Op, Payload};
use ampc_ir::{DType, GraphId, Module, Type, Value};
use rustc_hash::FxHashSet;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A backend, and the limits of its runs.
#[derive(Clone, Debug)]
pub struct Runtime {
    /// The backend.
    pub backend: Arc<dyn Backend>,
    /// The limits of every session.
    pub limits: Limits,
    /// True if nodes that depend only on constants and dims are computed when a module is bound. A
    /// [`NodeObserver`](super::NodeObserver) does not see such nodes. Results that depend on dims and that an
    /// observer watches are computed in each run regardless.
    pub fold: bool,
    /// Constants that the sessions of several modules share; by default each module reads its own.
    pub shared: Option<Arc<SharedConstants>>,
}

impl Runtime {
    /// A runtime with default limits: those of the memory that the backend computes in.
    pub fn new(backend: Arc<dyn Backend>) -> Runtime {
        let available = backend.device().and_then(Device::available_memory);
        let mut limits = Limits::default();
        limits.max_bytes = available.unwrap_or(limits.max_bytes);
        Runtime { backend, limits, fold: true, shared: None }
    }

    /// Reads the constants of a module and checks that there is a kernel for each of its operators. Functions that
    /// are never called need no kernels.
    ///
    /// # Errors
    /// If nodes have no kernel (all are listed), a constant cannot be read, or the device fails.
    pub fn prepare(&self, module: &Module) -> Result<Session, PrepareError> {
        Session::new(Arc::new(Executable::new(module, self)?)).map_err(PrepareError::Device)
    }
}

/// The maximum number of cached programs. A training run has two (for its batches and the smaller last batch), and
/// evaluation has two.
const MOST_PROGRAMS: usize = 4;

/// A prepared module.
pub struct Executable {
    runtime: Runtime,
    module: Module,
    /// The module with inlined functions, if it has calls.
    inlined: Option<Arc<Inlined>>,
    constants: Constants,
    /// The constants of the last program, including the folded results that do not depend on dims.
    folded: Mutex<Arc<Constants>>,
    /// The constants in device memory, if a program reads them.
    uploaded: Mutex<OnDevice>,
    /// The programs, least recently used first.
    programs: Mutex<Vec<Arc<Slot>>>,
    programs_made: AtomicU64,
    /// The device memory of other sessions that counts against the limit, in bytes.
    reserved: AtomicU64,
}

/// A cache entry for the program of some input types.
struct Slot {
    types: Vec<Option<Type>>,
    watch: Watch,
    /// `None` until the program is bound. Sessions that need it at the same time wait for the first session.
    bound: Mutex<Option<Arc<Bound>>>,
}

/// The program for some input types.
pub(super) struct Bound {
    pub(super) types: Vec<Option<Type>>,
    /// The values that an observer can see.
    pub(super) watch: Watch,
    /// For each input, true if it is a state in the arena.
    is_state: Vec<bool>,
    pub(super) program: Program,
    /// The device memory of a session; `None` if the backend computes in host memory.
    pub(super) device_bytes: Option<DeviceBytes>,
    /// True if a run may need a large stack.
    is_deep: bool,
    /// The runs so far: 0 if there was none, [`SEQUENTIAL`] or [`PARALLEL`].
    seen: AtomicU8,
}

/// No run had parallel work.
const SEQUENTIAL: u8 = 1;

/// A run had parallel work.
const PARALLEL: u8 = 2;

impl Bound {
    /// The hint for the next run.
    pub(super) fn hint(&self) -> RunHint {
        match self.is_deep {
            true => RunHint::NeedsStack,
            false if self.seen.load(Ordering::Relaxed) == SEQUENTIAL => RunHint::Sequential,
            false => RunHint::Parallel,
        }
    }

    /// Records if a run was sequential. A failed run may have ended before its parallel work.
    pub(super) fn note_run(&self, is_sequential: bool, is_complete: bool) {
        let now = if is_sequential { SEQUENTIAL } else { PARALLEL };
        if (is_complete || !is_sequential) && self.seen.load(Ordering::Relaxed) < now {
            self.seen.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// True if an input is a state in the arena.
    pub(super) fn is_state(&self, input: usize) -> bool {
        self.is_state.get(input).copied().unwrap_or(false)
    }

    /// True if the program fits these inputs. A state that is not given keeps its type.
    pub(super) fn fits(&self, inputs: &[Option<DataRef<'_>>]) -> bool {
        let fits = |(at, given): (usize, &Option<DataRef<'_>>)| match (given, &self.types[at]) {
            (Some(data), Some(ty)) => data.is_of(ty),
            (None, Some(_)) => self.is_state[at],
            (None, None) => true,
            (Some(_), None) => false,
        };
        inputs.len() == self.types.len() && inputs.iter().enumerate().all(fits)
    }
}

impl Executable {
    /// Reads the constants of a module and checks that there is a kernel for each of its operators. Functions that
    /// are never called need no kernels.
    ///
    /// # Errors
    /// If nodes have no kernel (all are listed), or a constant cannot be read.
    pub fn new(module: &Module, runtime: &Runtime) -> Result<Executable, PrepareError> {
        let mut lacking = Vec::new();
        let mut constants = Constants::default();
        let runs = graphs_that_run(module);
        for graph in module.graph_ids() {
            for node in module.nodes(graph).filter(|_| runs.contains(&graph)) {
                match module.node(node).op {
                    Op::Schema(schema) if has_kernel(&*runtime.backend, schema.kind) => {}
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
                let read = check_size(payload, runtime.limits.max_bytes)
                    .and_then(|()| read_constant(payload, runtime.shared.as_deref()));
                let read = read.map_err(|error| PrepareError::Constant { value, error })?;
                constants[value] = Some(read);
            }
        }
        if !lacking.is_empty() {
            return Err(PrepareError::Unsupported { backend: runtime.backend.name(), nodes: lacking });
        }
        let inlined = Inlined::of(module);
        for &(copy, source) in inlined.iter().flat_map(|inlined| &inlined.calls.constants) {
            constants[copy] = constants[source].clone();
        }
        Ok(Executable {
            runtime: runtime.clone(),
            module: module.clone(),
            inlined: inlined.map(Arc::new),
            folded: Mutex::default(),
            constants,
            uploaded: Mutex::default(),
            programs: Mutex::default(),
            programs_made: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
        })
    }

    /// The module.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// The device, and the limits of every session.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The number of times that the module was planned: once for each set of input dims, as long as the plan stays
    /// cached.
    pub fn programs_made(&self) -> u64 {
        self.programs_made.load(Ordering::Relaxed)
    }

    /// The elements of a constant, or of the default of an input; `None` if no graph that can run reads it.
    pub fn constant(&self, value: Value) -> Option<&HostTensor> {
        self.constants[value].as_deref()
    }

    /// The size of all constants in bytes. Sessions share them.
    pub fn constant_bytes(&self) -> u64 {
        let values = self.module.graph_ids().flat_map(|graph| self.module.defined(graph));
        let constants = values.filter_map(|value| self.constants[value].as_ref());
        constants.map(|tensor| DataRef::Tensor(tensor.view()).byte_count()).sum()
    }

    /// Replaces copied nodes in an error by nodes of the given module.
    pub(super) fn named(&self, error: ExecuteError) -> ExecuteError {
        match &self.inlined {
            Some(inlined) => inlined.named(error),
            None => error,
        }
    }

    /// The program for inputs of these types in which an observer can see the values of `watch`; it is taken from the
    /// cache or bound. Functions are inlined, unless the observer sees results of their calls.
    pub(super) fn program(
        &self,
        space: &mut Space,
        types: Vec<Option<Type>>,
        watch: Watch,
        deadline: Option<Instant>,
    ) -> Result<Arc<Bound>, ExecuteError> {
        let slot = self.slot(types, watch);
        let mut bound = locked(&slot.bound);
        if let Some(bound) = &*bound {
            return Ok(bound.clone());
        }
        let folded = locked(&self.folded).clone();
        let Executable { runtime, module, constants, .. } = self;
        let watch = &slot.watch;
        let inlined = self.inlined.as_ref().filter(|inlined| !inlined.hides(watch));
        // A failure of earlier work must not be reported as one of folding.
        space.finish()?;
        let binder = Binder { runtime, watch, module, inlined, constants, folded: &folded, deadline };
        let mut program = installed(&*runtime.backend, || binder.program(space, &slot.types))?;
        let mut is_state = vec![false; slot.types.len()];
        program.main_plan().states.iter().for_each(|state| is_state[state.now as usize] = true);
        let mut device_bytes = None;
        if runtime.backend.device().is_some() {
            let bytes = DeviceBytes::of(&program, &slot.types, &is_state, &locked(&self.uploaded));
            let reserved = self.reserved.load(Ordering::Relaxed);
            bytes.check(&program, reserved, runtime.limits.max_device_bytes)?;
            device_bytes = Some(bytes);
        }
        let uploaded = program.upload(space, &mut locked(&self.uploaded));
        uploaded.map_err(ExecuteError::of_transfer)?;
        *locked(&self.folded) = program.dim_independent_constants();
        self.programs_made.fetch_add(1, Ordering::Relaxed);
        let (types, watch) = (slot.types.clone(), slot.watch.clone());
        let is_deep = program.is_deep();
        let seen = AtomicU8::new(0);
        let made = Arc::new(Bound { types, watch, is_state, program, device_bytes, is_deep, seen });
        *bound = Some(made.clone());
        Ok(made)
    }

    /// Sets the device memory of other sessions that counts against the limit of plans made from now on.
    pub(super) fn reserve(&self, bytes: u64) {
        self.reserved.store(bytes, Ordering::Relaxed);
    }

    /// The cache entry of a program, which becomes the most recently used.
    fn slot(&self, types: Vec<Option<Type>>, watch: Watch) -> Arc<Slot> {
        let mut programs = locked(&self.programs);
        let known = programs.iter().position(|slot| slot.types == types && slot.watch == watch);
        let slot = match known {
            Some(at) => programs.remove(at),
            None => Arc::new(Slot { types, watch, bound: Mutex::default() }),
        };
        if programs.len() == MOST_PROGRAMS {
            programs.remove(0);
        }
        programs.push(slot.clone());
        slot
    }
}

/// Locks a mutex. Poison is ignored, because contents are only replaced as a whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks that a constant does not exceed the size limit of a tensor.
fn check_size(payload: &Payload, limit: u64) -> Result<(), HostError> {
    let (dtype, dims) = match payload {
        Payload::Dense(data) => (data.dtype(), data.dims().to_vec()),
        Payload::Sparse(data) => (data.values.dtype(), data.dims.to_vec()),
    };
    if dtype == DType::String {
        return Ok(());
    }
    match dtype.tensor_bytes(&dims) {
        Some(bytes) if bytes <= limit => Ok(()),
        _ => Err(HostError::Limit { limit, dtype, dims }),
    }
}

/// The main graph, and all bodies and functions reachable from it.
fn graphs_that_run(module: &Module) -> FxHashSet<GraphId> {
    let mut found: FxHashSet<GraphId> = FxHashSet::default();
    let mut next = vec![module.main()];
    while let Some(graph) = next.pop() {
        if !found.insert(graph) {
            continue;
        }
        for node in module.nodes(graph).map(|node| module.node(node)) {
            next.extend(node.bodies());
            if let Op::Call(function) = node.op {
                next.push(module.function(function).graph);
            }
        }
    }
    found
}

fn read_constant(payload: &Payload, shared: Option<&SharedConstants>) -> Result<Arc<HostTensor>, HostError> {
    match (payload, shared) {
        (Payload::Dense(data), Some(shared)) => shared.read(data),
        (Payload::Dense(data), None) => HostTensor::from_data(data).map(Arc::new),
        (Payload::Sparse(data), _) => HostTensor::from_sparse(data).map(Arc::new),
    }
}
