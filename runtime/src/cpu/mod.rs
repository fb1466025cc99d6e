//! The CPU backend: the embedded default, and the ground truth for numerics.
//!
//! Tensors are stored in their declared element types. Every operator computes in f32 (in f64 where an operand is
//! f64) and rounds once, to the element type of its result; products accumulate in f32 from the operands as they are
//! stored. So an overflow of fp16 is an overflow here. Results do not depend on the number of threads: work is cut
//! into pieces by its size alone, and sums are in one order.
//!
//! [`Cpu::prepare`] checks that there is a kernel for everything and reads the constants; [`Executable::run`] plans
//! the graph for the dims of the inputs at hand ([`plan`](crate::plan)), once for as long as they stay the same, and
//! walks the plan. `cpu/kernel.rs` says what a kernel is; `cpu/kernels/` has them by family.

mod control;
mod exec;
pub(crate) mod kernel;
mod kernels;
mod memory;

pub use exec::Observer;
pub use kernel::KernelError;
pub use memory::available_memory;

use crate::data::{Data, DataRef};
use crate::host::{HostError, HostTensor};
use crate::plan::{GraphPlan, Index, Needs, plan_graph};
use ampc_ir::entity::SecondaryMap;
use ampc_ir::infer::{Facts, InferError, infer_module};
use ampc_ir::module::{Def, Op, Payload};
use ampc_ir::op;
use ampc_ir::views::NodeView;
use ampc_ir::{DType, GraphId, Module, Node, Type, Value};
use exec::{Frame, Given, Run, run_graph};
use kernel::{Prepared, Site};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The CPU backend and what it may take.
#[derive(Clone, Debug)]
pub struct Cpu {
    /// Threads; 0 for as many as there are processors.
    pub threads: usize,
    /// The most bytes that one tensor or one arena may have.
    pub max_bytes: u64,
    /// The most iterations of one Loop or Scan.
    pub max_iterations: u64,
    /// The most time that one run may take.
    pub time_limit: Option<Duration>,
    /// Whether what depends on constants alone is computed once, before the graph runs; an [`Observer`] sees it
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
            fold: true,
        }
    }
}

/// Why a module cannot be prepared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// There are no kernels for some nodes: all of them, each with what is missing.
    #[error("the CPU backend lacks {} of the operators in use, the first is {}", .0.len(), first(.0))]
    Unsupported(Vec<(Node, String)>),
    /// A constant cannot be read.
    #[error("cannot read a constant: {error}")]
    Constant {
        /// The constant.
        value: Value,
        /// The cause.
        error: HostError,
    },
    /// Threads cannot be started.
    #[error("cannot start threads: {0}")]
    Threads(String),
}

fn first(list: &[(Node, String)]) -> &str {
    list.first().map_or("", |(_, what)| what)
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// An input is missing, or is none that the graph declares.
    #[error("input {input}: expected {expected}, found {found}")]
    Input {
        /// Which of the inputs.
        input: usize,
        /// What the graph declares.
        expected: String,
        /// What was given.
        found: String,
    },
    /// The dims of the inputs do not fit the graph.
    #[error("the dims of the inputs do not fit the graph: {}", .0.first().map_or_else(String::new, ToString::to_string))]
    Shapes(Vec<InferError>),
    /// A node cannot be computed.
    #[error("{error}")]
    Node {
        /// The node.
        node: Node,
        /// Why.
        error: KernelError,
    },
    /// The graph needs more memory than it may take.
    #[error("expected at most {limit} bytes, found {bytes} for one graph")]
    Memory {
        /// Bytes needed.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A loop goes on for longer than it may.
    #[error("expected at most {limit} iterations, found more")]
    Iterations {
        /// The Loop.
        node: Node,
        /// The limit.
        limit: u64,
    },
    /// The run takes longer than it may.
    #[error("the time limit of {limit:?} is over")]
    Time {
        /// The node that would have been next, unless the graph has none.
        node: Option<Node>,
        /// The limit.
        limit: Duration,
    },
    /// An output cannot be copied.
    #[error(transparent)]
    Output(#[from] HostError),
}

/// A module that is ready to run.
pub struct Executable {
    options: Cpu,
    pool: rayon::ThreadPool,
    module: Module,
    constants: Constants,
    /// The plan for the dims of the inputs of the last run.
    program: Option<(Vec<Option<Type>>, Program, Frame)>,
}

type Constants = SecondaryMap<Value, Option<Arc<HostTensor>>>;

/// A module for certain dims of its inputs, with plans and kernels.
pub(crate) struct Program {
    pub(crate) module: Module,
    pub(crate) constants: Constants,
    plans: SecondaryMap<GraphId, Option<Arc<GraphPlan>>>,
    graphs: Vec<GraphId>,
    kernels: SecondaryMap<Node, Option<Arc<Prepared>>>,
}

impl Program {
    pub(crate) fn plan(&self, graph: GraphId) -> &GraphPlan {
        self.plans[graph].as_deref().expect("every graph that is somebody's is planned")
    }

    /// The kernel of a node, if it could be made before the graph runs.
    pub(crate) fn prepared(&self, node: Node) -> Option<&Prepared> {
        self.kernels[node].as_deref()
    }
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
        let count = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
        match count.and_then(|n| dtype.storage_bytes(n)) {
            Some(bytes) if bytes <= self.max_bytes => Ok(()),
            _ => Err(HostError::OutOfMemory { dtype, dims }),
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
        let pool = rayon::ThreadPoolBuilder::new().num_threads(self.threads).stack_size(STACK).build();
        let pool = pool.map_err(|error| PrepareError::Threads(error.to_string()))?;
        Ok(Executable { options: self.clone(), pool, module: module.clone(), constants, program: None })
    }
}

/// What is computed of constants alone is kept if it is larger than those by at most so many bytes.
const FOLDED_BYTES: u64 = 1 << 16;

/// Bodies nest up to 256 deep, and each level takes a few kilobytes of stack.
const STACK: usize = 16 << 20;

fn read_constant(payload: &Payload) -> Result<HostTensor, HostError> {
    match payload {
        Payload::Dense(data) => HostTensor::from_data(data),
        Payload::Sparse(data) => densify(data),
    }
}

/// A sparse constant as a dense tensor: indices are flat, or one row of coordinates per element.
fn densify(data: &ampc_ir::tensor::SparseData) -> Result<HostTensor, HostError> {
    let values = HostTensor::from_data(&data.values)?;
    let indices = HostTensor::from_data(&data.indices)?;
    let at: Vec<i64> = indices.i64s()?.collect();
    let rank = if indices.dims().len() == 2 { data.dims.len() } else { 1 };
    let size = values.dtype().bits().map_or(1, |bits| (bits / 8).max(1) as usize);
    HostTensor::filled(values.dtype(), &data.dims, |bytes| {
        let from = values.bytes().unwrap_or_default();
        for (i, row) in at.chunks(rank.max(1)).enumerate() {
            let flat = if indices.dims().len() == 2 {
                row.iter().zip(&data.dims).try_fold(0u64, |flat, (&i, &dim)| {
                    let i = u64::try_from(i).ok().filter(|&i| i < dim)?;
                    flat.checked_mul(dim)?.checked_add(i)
                })
            } else {
                row.first().and_then(|&i| u64::try_from(i).ok())
            };
            let start = flat.and_then(|f| usize::try_from(f).ok()?.checked_mul(size));
            let target = start.and_then(|start| bytes.get_mut(start..start.checked_add(size)?));
            if let (Some(target), Some(element)) = (target, from.get(i * size..(i + 1) * size)) {
                target.copy_from_slice(element);
            }
        }
        Ok(())
    })
}

impl Executable {
    /// Computes the outputs, in order. There is an input for every formal input of the graph, in order; one that has
    /// a default may be `None`.
    ///
    /// # Errors
    /// If inputs do not fit the graph, a node cannot be computed, or a limit is reached.
    pub fn run(&mut self, inputs: &[Option<DataRef<'_>>]) -> Result<Vec<Data>, RunError> {
        self.run_observed(inputs, None)
    }

    /// As [`run`](Self::run); `observer` sees every value that is computed.
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub fn run_observed(
        &mut self,
        inputs: &[Option<DataRef<'_>>],
        observer: Option<&mut (dyn Observer + Send)>,
    ) -> Result<Vec<Data>, RunError> {
        let mut outputs = Vec::new();
        self.run_visiting(inputs, observer, |frame, program, plan, given| {
            let mut take = |i: usize| frame.take_output(program, plan, given, i);
            outputs =
                (0..plan.outputs.len()).filter_map(|i| take(i).transpose()).collect::<Result<_, _>>()?;
            Ok(())
        })?;
        Ok(outputs)
    }

    /// As [`run`](Self::run), but nothing is copied: `visit` looks at each output where it is. From the second run with
    /// the same dims on, a graph whose dims are all known before it runs takes no memory at all.
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub fn run_to(
        &mut self,
        inputs: &[Option<DataRef<'_>>],
        mut visit: impl FnMut(usize, DataRef<'_>) + Send,
    ) -> Result<(), RunError> {
        self.run_visiting(inputs, None, |frame, program, plan, given| {
            for i in 0..plan.outputs.len() {
                if let Some(data) = frame.output(program, plan, given, i) {
                    visit(i, data);
                }
            }
            Ok(())
        })
    }

    /// The states of the graph as they are now, by formal input. A state is given with the first run and stays: later
    /// ones may leave it out.
    ///
    /// # Errors
    /// If there is not enough memory for copies.
    pub fn states(&self) -> Result<Vec<(usize, HostTensor)>, HostError> {
        match &self.program {
            Some((_, program, frame)) => exec::states(program.plan(program.module.main()), frame),
            None => Ok(Vec::new()),
        }
    }

    fn run_visiting(
        &mut self,
        inputs: &[Option<DataRef<'_>>],
        observer: Option<&mut (dyn Observer + Send)>,
        visit: impl FnOnce(&mut Frame, &Program, &GraphPlan, Given<'_>) -> Result<(), HostError> + Send,
    ) -> Result<(), RunError> {
        self.bind(inputs)?;
        let Executable { options, pool, program, .. } = self;
        let Some((_, program, frame)) = program else { return Ok(()) };
        let mut run = Run {
            program,
            observer: observer.map(|o| -> &mut (dyn Observer + Send) { o }),
            deadline: options.time_limit.map(|limit| Instant::now() + limit),
            time_limit: options.time_limit.unwrap_or_default(),
            max_iterations: options.max_iterations,
            max_bytes: options.max_bytes,
        };
        let main = program.module.main();
        let given = Given { inputs, operands: &[], attrs: None };
        pool.install(|| {
            run_graph(&mut run, main, frame, given)?;
            let plan = program.plan(main);
            exec::store_states(program, plan, frame, given)?;
            Ok(visit(frame, program, plan, given)?)
        })
    }

    /// Plans the graph for these inputs, unless it is planned for their dims.
    ///
    /// # Errors
    /// If inputs do not fit the graph.
    pub fn bind(&mut self, inputs: &[Option<DataRef<'_>>]) -> Result<(), RunError> {
        let mut types: Vec<Option<Type>> = inputs.iter().map(|i| i.map(DataRef::ty)).collect();
        // A state that is not given has the type it had.
        let mut kept = Vec::new();
        if let Some((planned, program, _)) = &self.program {
            for state in &program.plan(program.module.main()).states {
                let at = state.now as usize;
                if let (Some(None), Some(Some(ty))) = (types.get(at), planned.get(at)) {
                    types[at] = Some(ty.clone());
                    kept.push(at);
                }
            }
        }
        if self.program.as_ref().is_some_and(|(planned, ..)| *planned == types) {
            return Ok(());
        }
        let states = if kept.is_empty() { Vec::new() } else { self.states()? };
        let program = self.program_for(&types)?;
        let mut frame = Frame::default();
        frame.reserve(program.plan(program.module.main()), self.options.max_bytes)?;
        let mut inputs: Vec<Option<DataRef<'_>>> = vec![None; types.len()];
        for (at, tensor) in &states {
            inputs[*at] = Some(DataRef::Tensor(tensor.view())).filter(|_| kept.contains(at));
        }
        let given = Given { inputs: &inputs, operands: &[], attrs: None };
        exec::load_states(program.plan(program.module.main()), &mut frame, given);
        self.program = Some((types, program, frame));
        Ok(())
    }

    fn program_for(&self, types: &[Option<Type>]) -> Result<Program, RunError> {
        let mut module = self.module.clone();
        let formals = module.graph(module.main()).inputs().to_vec();
        for (input, &value) in formals.iter().enumerate() {
            let declared = &module.value(value).ty;
            let has_default = self.constants[value].is_some();
            match types.get(input).and_then(Option::as_ref) {
                Some(ty) if admits(declared, ty) => module.set_type(value, ty.clone()),
                None if has_default => {
                    let ty = self.constants[value].as_ref().map(|t| DataRef::Tensor(t.view()).ty());
                    module.set_type(value, ty.unwrap_or_default());
                }
                given => {
                    let found = given.map_or_else(|| "none".into(), describe);
                    return Err(RunError::Input { input, expected: describe(declared), found });
                }
            }
        }
        let facts = infer_module(&mut module).map_err(RunError::Shapes)?;
        let mut constants = self.constants.clone();
        let mut kernels: SecondaryMap<Node, Option<Arc<Prepared>>> = SecondaryMap::default();
        let mut index = Index::default();
        let mut plans: SecondaryMap<GraphId, Option<Arc<GraphPlan>>> = SecondaryMap::default();
        let graphs: Vec<GraphId> = module.graph_ids().collect();
        for &graph in &graphs {
            let in_function = module.root(graph) != module.main();
            let plan = plan_graph(&module, graph, &mut index, |node| {
                if exec::is_nested(&module, node) {
                    return Needs { on_heap: true, ..Needs::default() };
                }
                match prepare_node(&module, node, &facts, in_function) {
                    Some(prepared) => {
                        let mut needs = prepared.needs.clone();
                        if let Some(results) = self.fold(&module, node, &prepared, &constants) {
                            for (value, tensor) in results {
                                constants[value] = Some(Arc::new(tensor));
                            }
                            needs.is_constant = true;
                        }
                        kernels[node] = Some(Arc::new(prepared));
                        needs
                    }
                    None => Needs::default(),
                }
            });
            plans[graph] = Some(Arc::new(plan));
        }
        Ok(Program { module, constants, plans, graphs, kernels })
    }

    /// The results of a node that depends on constants alone, unless they are large: those are computed each time.
    fn fold(
        &self,
        module: &Module,
        node: Node,
        prepared: &Prepared,
        constants: &Constants,
    ) -> Option<Vec<(Value, HostTensor)>> {
        let data = module.node(node);
        if !self.options.fold {
            return None;
        }
        // The bytes of a view are there already.
        if prepared.needs.view || data.schema().is_none_or(|s| !op::is_deterministic(s.kind)) {
            return None;
        }
        let mut operands = Vec::new();
        let mut given = 0;
        for operand in data.formal_operands() {
            let Some(value) = *operand else {
                operands.push(None);
                continue;
            };
            // The default of an input may be replaced.
            let is_input = matches!(module.value(value).def, Def::Input { .. });
            let constant = constants[value].as_ref().filter(|_| !is_input)?;
            given += constant.bytes()?.len();
            operands.push(Some(DataRef::Tensor(constant.view())));
        }
        let ty = |v: &Option<Value>| match v {
            Some(v) => exec::known_tensor(&module.value(*v).ty).map(Some),
            None => Some(None),
        };
        let types: Vec<_> = data.results().iter().map(ty).collect::<Option<_>>()?;
        let bytes = |(dtype, dims): &(DType, Vec<u64>)| {
            dtype.storage_bytes(dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d))?)
        };
        let total = types.iter().flatten().try_fold(0u64, |sum, ty| sum.checked_add(bytes(ty)?))?;
        if total > given as u64 + FOLDED_BYTES {
            return None;
        }
        // What goes wrong shows when the node runs.
        let results = exec::run_alone(prepared, &operands, &types, self.options.max_bytes).ok()?;
        Some(data.results().iter().zip(results).filter_map(|(v, t)| Some(((*v)?, t?))).collect())
    }

    /// The plans of the last [`bind`](Self::bind) as text, the main graph first.
    pub fn plan_text(&self) -> String {
        let Some((_, program, _)) = &self.program else { return String::new() };
        let graphs = program.graphs.iter();
        graphs.map(|&graph| program.plan(graph).to_text(&program.module)).collect()
    }

    /// Bytes of the arena of the main graph for the inputs of the last [`bind`](Self::bind).
    pub fn arena_bytes(&self) -> usize {
        self.program.as_ref().map_or(0, |(_, program, _)| program.plan(program.module.main()).arena)
    }

    /// The plan of a graph of the module for the inputs of the last [`bind`](Self::bind).
    pub fn plan(&self, graph: GraphId) -> Option<&GraphPlan> {
        self.program.as_ref().and_then(|(_, program, _)| program.plans[graph].as_deref())
    }

    /// Bytes of all constants.
    pub fn constant_bytes(&self) -> u64 {
        let values = self.module.graph_ids().flat_map(|graph| self.module.defined(graph));
        let constants = values.filter_map(|value| self.constants[value].as_ref());
        constants.map(|tensor| DataRef::Tensor(tensor.view()).byte_count()).sum()
    }

    /// Bytes that the arenas of all graphs hold now.
    pub fn allocated_bytes(&self) -> usize {
        self.program.as_ref().map_or(0, |(_, _, frame)| frame.arena_bytes())
    }

    /// The module it runs.
    pub fn module(&self) -> &Module {
        &self.module
    }
}

/// The kernel of a node if all that it asks for is known before the graph runs. An error shows when the node runs:
/// it may never do.
fn prepare_node(module: &Module, node: Node, facts: &Facts, in_function: bool) -> Option<Prepared> {
    let view = NodeView::with_facts(module, node, facts)?;
    // Calls differ in what they give a function, and may leave operands out.
    if in_function {
        return None;
    }
    let prepare = kernels::find(view.kind())?;
    let results = module.node(node).results().iter();
    let results: Vec<Option<Type>> = results.map(|v| v.map(|v| module.value(v).ty.clone())).collect();
    // What is known of the results once the operands are there may be more.
    let is_known = |ty: &Type| match ty {
        Type::Unknown => false,
        Type::Tensor(tensor) => tensor.shape.to_known().is_some(),
        _ => true,
    };
    if !results.iter().flatten().all(is_known) {
        return None;
    }
    // Kernels multiply dims: those of what has no size are looked at when the node runs, if it ever does.
    let operands = module.node(node).formal_operands().iter().flatten();
    let fits = |ty: &Type| exec::span(ty).is_some_and(|bytes| usize::try_from(bytes).is_ok());
    if !results.iter().flatten().chain(operands.map(|&v| &module.value(v).ty)).all(fits) {
        return None;
    }
    prepare(&Site { view, results: &results }).ok()
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

fn describe(ty: &Type) -> String {
    match ty {
        Type::Tensor(t) => match t.shape.dims() {
            Some(dims) => {
                let dims: Vec<String> =
                    dims.iter().map(|d| d.known().map_or("?".into(), |n| n.to_string())).collect();
                format!("{}[{}]", t.dtype, dims.join(", "))
            }
            None => format!("{}[*]", t.dtype),
        },
        other => format!("{other:?}"),
    }
}
