//! Binding: makes a program with plans, kernels and folded results from a module and the types of its inputs. Folded
//! results depend only on constants and dims, and are computed during binding.

use super::control::Parts;
use super::error::ExecuteError;
use super::inlined::{Inlined, typed};
use super::layouts::{Layouts, lay_out};
use super::observe::Watch;
use super::partition::{Fold, Made, Partitioner, Rejects, is_input};
use super::space::Space;
use super::{Runtime, walk};
use crate::backend;
use crate::data::{Data, DataRef};
use crate::device::{DeviceError, DeviceTensor};
use crate::host::HostTensor;
use crate::kernel::{KernelError, Prepared};
use crate::plan::Place;
use crate::plan::{GraphPlan, Index, Step, known_tensor, plan_graph};
use crate::room::Room;
use ampc_ir::entity::SecondaryMap;
use ampc_ir::infer::{Defaults, Facts, describe};
use ampc_ir::module::{GraphOwner, NodeData, Op};
use ampc_ir::op::{self, OpKind};
use ampc_ir::{DType, FunctionId, GraphId, Module, Node, Type, Value};
use rustc_hash::FxHashSet;
use std::sync::Arc;
use std::time::Instant;

/// The element type and extents of each result of a node.
pub(super) type ResultTypes = Vec<Option<(DType, Vec<u64>)>>;

pub(super) type Constants = SecondaryMap<Value, Option<Arc<HostTensor>>>;

/// The results of a folded node.
type Folded = Vec<(Value, Arc<HostTensor>)>;

/// Constants in device memory.
pub(super) type OnDevice = SecondaryMap<Value, Option<DeviceTensor>>;

/// A module bound to dims of its inputs, with plans and kernels.
pub(crate) struct Program {
    pub(crate) module: Module,
    pub(crate) constants: Arc<Constants>,
    /// The folded results that depend on dims of the inputs and are therefore valid for this program only.
    dim_dependent: FxHashSet<Value>,
    /// The constants in device memory; empty if kernels read host memory.
    on_device: OnDevice,
    pub(super) plans: SecondaryMap<GraphId, Option<Arc<GraphPlan>>>,
    pub(super) graphs: Vec<GraphId>,
    kernels: SecondaryMap<Node, Option<Arc<Prepared>>>,
    /// The calls that were inlined into the module.
    inlined: Option<Arc<Inlined>>,
    /// The default attributes of functions.
    defaults: SecondaryMap<FunctionId, Defaults>,
    pub(super) parts: Parts,
    /// The nodes that compute with channels last.
    pub(super) channels_last: FxHashSet<Node>,
}

impl Program {
    /// The constants and the folded results that do not depend on dims of the inputs.
    pub(super) fn dim_independent_constants(&self) -> Arc<Constants> {
        if self.dim_dependent.is_empty() {
            return self.constants.clone();
        }
        let mut constants = (*self.constants).clone();
        self.dim_dependent.iter().for_each(|&value| constants[value] = None);
        Arc::new(constants)
    }

    pub(crate) fn plan(&self, graph: GraphId) -> &GraphPlan {
        self.plans[graph].as_deref().expect("every graph with an owner is planned")
    }

    /// True if a run may need a large stack: it has calls, or bodies nested deeper than [`SHALLOW`].
    pub(super) fn is_deep(&self) -> bool {
        let is_call = |node| matches!(self.module.node(node).op, Op::Call(_));
        self.graphs.iter().any(|&graph| {
            let Where { in_function, depth, .. } = Where::of(&self.module, graph);
            let mut nodes = self.plan(graph).steps.iter().map(Step::node);
            !in_function && (depth > SHALLOW || nodes.any(is_call))
        })
    }

    pub(crate) fn main_plan(&self) -> &GraphPlan {
        self.plan(self.module.main())
    }

    /// The kernel of a node, if it was prepared before the graph runs.
    pub(crate) fn prepared(&self, node: Node) -> Option<&Prepared> {
        self.kernels[node].as_deref()
    }

    /// The original node, if a node is a copy that replaces a call; otherwise the node itself.
    pub(crate) fn source(&self, node: Node) -> Node {
        self.inlined.as_ref().map_or(node, |inlined| inlined.calls.source(node))
    }

    /// The calls that were inlined into the module.
    pub(super) fn inlined(&self) -> Option<&Arc<Inlined>> {
        self.inlined.as_ref()
    }

    /// The default attributes of a function.
    pub(crate) fn defaults(&self, function: FunctionId) -> Defaults {
        self.defaults[function].clone()
    }

    /// A constant, or a folded result, in the memory that kernels read.
    pub(crate) fn constant(&self, value: Value) -> Option<DataRef<'_>> {
        match &self.on_device[value] {
            Some(tensor) => Some(DataRef::Device(tensor.view())),
            None => self.constant_on_host(value),
        }
    }

    /// A constant, or a folded result, in host memory.
    pub(crate) fn constant_on_host(&self, value: Value) -> Option<DataRef<'_>> {
        self.constants[value].as_ref().map(|t| DataRef::Tensor(t.view()))
    }

    /// The constants and the folded results that steps and outputs read.
    pub(super) fn constants_read(&self) -> Vec<Value> {
        let mut read = Vec::new();
        for plan in self.graphs.iter().map(|&graph| self.plan(graph)) {
            let operands = plan.steps.iter().flat_map(|step| step.operands.iter().copied().flatten());
            let roots = plan.states.iter().chain(&plan.moved).flat_map(|state| [state.now, state.next]);
            for index in operands.chain(plan.outputs.iter().copied()).chain(roots) {
                let mut planned = &plan.values[index as usize];
                if let Place::View(of) = planned.place {
                    planned = &plan.values[of as usize];
                }
                if matches!(planned.place, Place::Constant | Place::Input(_)) {
                    read.push(planned.value);
                }
            }
        }
        read.sort_unstable();
        read.dedup();
        read
    }
}

impl Program {
    /// Copies the constants that are read to the device. `uploaded` has the constants of other programs on the
    /// device.
    ///
    /// # Errors
    /// If the device has no memory for them.
    pub(super) fn upload(&mut self, space: &mut Space, uploaded: &mut OnDevice) -> Result<(), KernelError> {
        if matches!(space, Space::Host) {
            return Ok(());
        }
        let mut new = Vec::new();
        for value in self.constants_read() {
            let Some(tensor) = &self.constants[value] else { continue };
            let is_shared = !self.dim_dependent.contains(&value);
            self.on_device[value] = uploaded[value].clone().filter(|_| is_shared);
            if self.on_device[value].is_none()
                && let Data::Device(tensor) = space.bring(DataRef::Tensor(tensor.view()))?
            {
                self.on_device[value] = Some(tensor.clone());
                if is_shared {
                    new.push((value, tensor));
                }
            }
        }
        // From now on, queues of other sessions may read the constants.
        space.finish()?;
        new.into_iter().for_each(|(value, tensor)| uploaded[value] = Some(tensor));
        Ok(())
    }
}

/// The nesting depth of bodies that fits a stack of 2 MiB, Rust's default for threads, with a margin. A level takes
/// some kilobytes, or some tens of kilobytes in debug builds.
const SHALLOW: usize = 4;

/// The inputs of binding.
pub(super) struct Binder<'a> {
    pub(super) runtime: &'a Runtime,
    /// The values that stay visible: they are not folded if they depend on dims, and not internal to groups.
    pub(super) watch: &'a Watch,
    pub(super) module: &'a Module,
    /// The module with inlined functions, unless an observer sees the nodes.
    pub(super) inlined: Option<&'a Arc<Inlined>>,
    /// The constants of both modules.
    pub(super) constants: &'a Constants,
    /// The folded results of the last program that do not depend on dims.
    pub(super) folded: &'a Constants,
    /// The deadline for folding.
    pub(super) deadline: Option<Instant>,
}

impl Binder<'_> {
    /// The program for inputs of these types. The type of an input with a default may be `None`.
    pub(super) fn program(&self, space: &mut Space, types: &[Option<Type>]) -> Result<Program, ExecuteError> {
        let declare = |module: &mut Module| self.declare(module, types);
        let (mut module, facts, inlined) = typed(self.inlined, self.module, declare)?;
        let backend = &*self.runtime.backend;
        let (layouts, inlined) = lay_out(backend, &mut module, self.watch, inlined.cloned());
        let made = self.program_of(space, module, &facts, inlined.as_ref(), layouts);
        made.map_err(|error| match &inlined {
            Some(inlined) => inlined.named(error),
            None => error,
        })
    }

    fn program_of(
        &self,
        space: &mut Space,
        module: Module,
        facts: &Facts,
        inlined: Option<&Arc<Inlined>>,
        layouts: Layouts,
    ) -> Result<Program, ExecuteError> {
        let mut kernels: SecondaryMap<Node, Option<Arc<Prepared>>> = SecondaryMap::default();
        let mut index = Index::default();
        let mut plans: SecondaryMap<GraphId, Option<Arc<GraphPlan>>> = SecondaryMap::default();
        let graphs: Vec<GraphId> = module.graph_ids().collect();
        let room = Room::of(self.runtime.limits.max_bytes);
        let alignment = backend::alignment(&*self.runtime.backend);
        let backend = &*self.runtime.backend;
        let partitioner = Partitioner {
            backend,
            module: &module,
            facts,
            room,
            inlined: inlined.map(Arc::as_ref),
            watch: self.watch,
            layouts: &layouts,
            rejects: Rejects::Any,
        };
        let mut folding = Folding {
            constants: self.constants.clone(),
            results: FxHashSet::default(),
            budget: FoldBudget::default(),
        };
        for &graph in &graphs {
            let mut folder =
                Folder { binder: self, space: &mut *space, module: &module, folding: &mut folding };
            let made = partitioner.groups(graph, &mut folder)?;
            let mut groups = Vec::with_capacity(made.len());
            for Made { group, kernel } in made {
                if let Some(planned) = kernel.as_ref().and_then(|kernel| kernel.planned.as_ref()) {
                    planned();
                }
                kernels[*group.nodes.last().expect("a group has a node")] = kernel;
                groups.push(group);
            }
            let is_constant = |value| folding.results.contains(&value);
            let plan = plan_graph(&module, graph, alignment, &mut index, &groups, is_constant);
            plans[graph] = Some(Arc::new(plan));
        }
        let mut defaults: SecondaryMap<FunctionId, Defaults> = SecondaryMap::default();
        for (function, _) in module.functions() {
            defaults[function] = Defaults::of(&module, function);
        }
        let Folding { constants, budget, .. } = folding;
        let dim_dependent = budget.dim_dependent;
        let (constants, inlined) = (Arc::new(constants), inlined.cloned());
        let on_device = OnDevice::default();
        let parts = Parts::default();
        Ok(Program {
            module,
            constants,
            dim_dependent,
            on_device,
            plans,
            graphs,
            kernels,
            inlined,
            defaults,
            parts,
            channels_last: layouts.channels_last,
        })
    }

    /// Sets the types of the main graph's inputs.
    fn declare(&self, module: &mut Module, types: &[Option<Type>]) -> Result<(), ExecuteError> {
        let formals = module.graph(module.main()).inputs().to_vec();
        for (input, &value) in formals.iter().enumerate() {
            let declared = &module.value(value).ty;
            let default = self.constants[value].as_ref().map(|t| DataRef::Tensor(t.view()).ty());
            let given = types.get(input).and_then(Option::as_ref);
            match (given, default) {
                (Some(ty), _) if super::admits(declared, ty) => module.set_type(value, ty.clone()),
                (None, Some(ty)) => module.set_type(value, ty),
                (given, _) => {
                    let found = given.map_or_else(|| "none".into(), describe);
                    return Err(ExecuteError::Input { input, expected: describe(declared), found });
                }
            }
        }
        Ok(())
    }

    /// Computes the results of a node that depends only on constants and dims; `None` if the node fails or the
    /// deadline has passed.
    ///
    /// # Errors
    /// If the device fails.
    fn computed(
        &self,
        space: &mut Space,
        module: &Module,
        node: Node,
        prepared: &Prepared,
        constants: &Constants,
        types: &ResultTypes,
    ) -> Result<Option<Folded>, KernelError> {
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(None);
        }
        let mut on_host = Space::Host;
        let space = if self.runtime.backend.host().is_some() { &mut on_host } else { space };
        if let Some(queue) = space.queue() {
            queue.enter(node);
        }
        let data = module.node(node);
        // Kernels of Shape and Size do not read the operand.
        let operand =
            |v: &Option<Value>| v.and_then(|v| constants[v].as_ref()).map(|c| DataRef::Tensor(c.view()));
        let operands: Vec<_> = data.formal_operands().iter().map(operand).collect();
        let made = walk::run_alone(space, prepared, &operands, types, self.runtime.limits.max_bytes);
        let made = match made {
            Ok(made) => Some(made),
            Err(KernelError::Device(error)) => match *error {
                DeviceError::Kernel { node: failed, .. } if failed == node => None,
                DeviceError::Failed(_) | DeviceError::OutOfMemory(_) => None,
                error => return Err(error.into()),
            },
            Err(_) => None,
        };
        if made.is_none() {
            // The node may have failed in more than one result, so all failures are consumed.
            match space.finish() {
                Err(DeviceError::Kernel { node: failed, .. }) if failed == node => {}
                finished => finished?,
            }
        }
        let pairs = made.map(|made| data.results().iter().zip(made));
        Ok(pairs.map(|pairs| pairs.filter_map(|(v, t)| Some(((*v)?, Arc::new(t?)))).collect()))
    }
}

/// Folds the nodes of a program.
struct Folder<'a, 'b> {
    binder: &'a Binder<'b>,
    space: &'a mut Space,
    module: &'a Module,
    folding: &'a mut Folding,
}

impl Fold for Folder<'_, '_> {
    fn may_fold(&self, node: Node) -> bool {
        let data = self.module.node(node);
        let is_known = |&value: &Value| self.folding.constants[value].is_some();
        self.binder.runtime.fold
            && (reads_dims(data) || data.formal_operands().iter().flatten().all(is_known))
    }

    /// Large results are computed in each run instead. An error of the node is reported when it runs.
    fn fold(&mut self, node: Node, prepared: &Prepared) -> Result<bool, KernelError> {
        let Folder { binder, space, module, folding } = self;
        let constants = &folding.constants;
        let size = |value: Value| constants[value].as_ref()?.bytes().map(<[u8]>::len);
        let data = module.node(node);
        let is_dim_dependent = folding.budget.is_dim_dependent(data);
        let is_watched = data.results().iter().flatten().any(|&value| binder.watch.contains(value));
        if !binder.runtime.fold || is_dim_dependent && is_watched {
            return Ok(false);
        }
        let types = folding.budget.types(module, node, prepared, size);
        let Some(types) = types else { return Ok(false) };
        let known = |v: &Value| Some((*v, binder.folded[*v].clone().filter(|_| !is_dim_dependent)?));
        let known: Option<Folded> = data.results().iter().flatten().map(known).collect();
        let results = match known {
            Some(known) => Some(known),
            None => binder.computed(space, module, node, prepared, constants, &types)?,
        };
        let Some(results) = results else { return Ok(false) };
        for (value, tensor) in results {
            folding.constants[value] = Some(tensor);
            folding.results.insert(value);
        }
        Ok(true)
    }
}

/// The constants of a program, including the results folded so far.
struct Folding {
    constants: Constants,
    results: FxHashSet<Value>,
    budget: FoldBudget,
}

/// The maximum growth of a folded result over its operands, in bytes. A result that depends on dims has at most this
/// size.
const FOLDED_BYTES: u64 = 1 << 16;

/// The maximum growth of all folded results over the constants, in bytes.
const ALL_FOLDED_BYTES: u64 = 1 << 28;

/// The maximum total size of a program's folded results that depend on dims, in bytes.
const DIM_DEPENDENT_BYTES: u64 = 1 << 20;

/// Chooses the nodes to fold: their operands are constants, or only the dims of an operand are read, and their
/// results are small. A run and the prediction of its memory make the same choice.
pub(super) struct FoldBudget {
    /// The folded results that depend on dims of the inputs.
    dim_dependent: FxHashSet<Value>,
    /// The remaining growth in bytes of results that do not depend on dims.
    left: u64,
    /// The remaining size in bytes of results that depend on dims.
    left_of_dims: u64,
}

impl Default for FoldBudget {
    fn default() -> FoldBudget {
        let dim_dependent = FxHashSet::default();
        FoldBudget { dim_dependent, left: ALL_FOLDED_BYTES, left_of_dims: DIM_DEPENDENT_BYTES }
    }
}

impl FoldBudget {
    /// True if the results of a node, once folded, depend on dims of the inputs.
    fn is_dim_dependent(&self, node: &NodeData) -> bool {
        reads_dims(node)
            || node.formal_operands().iter().flatten().any(|value| self.dim_dependent.contains(value))
    }

    /// The types of a node's results if it is folded, otherwise `None`. `size` returns the bytes of a constant or
    /// folded result.
    pub(super) fn types(
        &mut self,
        module: &Module,
        node: Node,
        prepared: &Prepared,
        size: impl Fn(Value) -> Option<usize>,
    ) -> Option<ResultTypes> {
        let data = module.node(node);
        if data.schema().is_none_or(|s| !op::is_deterministic(s.kind)) {
            return None;
        }
        let mut given = 0u64;
        for &value in data.formal_operands().iter().flatten().filter(|_| !reads_dims(data)) {
            // A caller may replace the default of an input.
            given += size(value).filter(|_| !is_input(module, value))? as u64;
        }
        let ty = |v: &Option<Value>| match v {
            Some(v) => known_tensor(&module.value(*v).ty).map(Some),
            None => Some(None),
        };
        let types: Vec<_> = data.results().iter().map(ty).collect::<Option<_>>()?;
        let bytes = |(dtype, dims): &(DType, Vec<u64>)| dtype.tensor_bytes(dims);
        let total = types.iter().flatten().try_fold(0u64, |sum, ty| sum.checked_add(bytes(ty)?))?;
        let is_dim_dependent = self.is_dim_dependent(data);
        let (more, left) = if is_dim_dependent {
            (total, &mut self.left_of_dims)
        } else {
            (total.saturating_sub(given), &mut self.left)
        };
        // Views share the bytes.
        let more = if prepared.needs.view { 0 } else { more };
        if more > FOLDED_BYTES.min(*left) {
            return None;
        }
        *left -= more;
        if is_dim_dependent {
            self.dim_dependent.extend(data.results().iter().flatten());
        }
        Some(types)
    }
}

/// True if a node reads the dims of its operand, which are known during binding, and no element.
pub(super) fn reads_dims(node: &NodeData) -> bool {
    node.schema().is_some_and(|schema| matches!(schema.kind, OpKind::Shape | OpKind::Size))
}

/// The nesting of a graph.
pub(super) struct Where {
    pub(super) in_function: bool,
    /// True if the graph is a body, which may never run.
    pub(super) in_body: bool,
    /// True if the graph is in a branch of an If, which may never run.
    pub(super) in_branch: bool,
    /// The number of nested bodies, including the graph itself.
    pub(super) depth: usize,
}

impl Where {
    pub(super) fn of(module: &Module, mut graph: GraphId) -> Where {
        let in_function = module.root(graph) != module.main();
        let (mut in_branch, mut depth) = (false, 0);
        while let GraphOwner::Body { node, .. } = module.graph(graph).owner {
            depth += 1;
            in_branch |= module.node(node).schema().is_some_and(|s| s.kind == OpKind::If);
            graph = module.node(node).graph;
        }
        Where { in_function, in_body: depth > 0, in_branch, depth }
    }
}
