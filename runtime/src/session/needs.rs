//! Predicts the memory of a run, before any constant is read and without running a node.
//!
//! The module is typed and planned as for a run ([`plan`](crate::plan)). The prediction knows only the sizes of
//! folded results, and chooses them by the same rule, so the plan is that of the run.

use super::bind::{FoldBudget, Program, reads_dims};
use super::inlined::{Inlined, typed};
use super::layouts::lay_out;
use super::observe::Watch;
use super::partition::{Fold, Partitioner, Rejects};
use super::{ExecuteError, Runtime};
use crate::backend::{KernelError, Prepared, alignment, installed};
use crate::plan::{GraphPlan, Group, Index, Peak, Place, plan_graph};
use crate::room::Room;
use ampc_ir::entity::SecondaryMap;
use ampc_ir::infer::describe;
use ampc_ir::module::{Def, GraphOwner, Payload};
use ampc_ir::{GraphId, Module, Node, Type, Value};
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// The memory of a run of a module, in bytes.
#[derive(Clone, Debug, Default)]
pub struct MemoryNeeds {
    /// The arenas of the main graph and of all bodies. The states of the main graph are in its arena.
    pub arenas: u64,
    /// The states of the main graph.
    pub states: u64,
    /// The constants.
    pub constants: u64,
    /// The contents of the main graph's arena at its fullest step; `None` for an empty arena.
    pub peak: Option<Peak>,
    /// The scratch memory of each node of the main graph; for a call, the maximum over the nodes of the function.
    pub scratch: SecondaryMap<Node, u64>,
    /// The values of the main graph whose sizes are known only after their computation. They are not counted.
    pub unsized_values: Vec<Value>,
}

impl Runtime {
    /// The memory of a run for inputs of these types; `None` stands for the declared type.
    ///
    /// # Errors
    /// If the types do not fit the module.
    pub fn memory_needs(&self, module: &Module, types: &[Option<Type>]) -> Result<MemoryNeeds, ExecuteError> {
        let mut constants = 0;
        let sizes = constant_sizes(module);
        for graph in module.graph_ids() {
            constants += module.defined(graph).filter_map(|value| sizes[value]).sum::<usize>() as u64;
        }
        let plans = self.plans_with(module, types, Rejects::Nothing)?;
        Ok(needs_of(&plans, constants))
    }

    /// The plans of all graphs of a module for inputs of these types; `None` stands for the declared type. They are
    /// the plans of a run without an observer. No constant is read and nothing is computed.
    ///
    /// # Errors
    /// If the types do not fit the module, or the backend has no kernel for a node that runs in any case.
    pub fn plans(&self, module: &Module, types: &[Option<Type>]) -> Result<Plans, ExecuteError> {
        self.plans_with(module, types, Rejects::Unsupported)
    }

    fn plans_with(
        &self,
        module: &Module,
        types: &[Option<Type>],
        rejects: Rejects,
    ) -> Result<Plans, ExecuteError> {
        installed(&*self.backend, || {
            let inlined = Inlined::of(module).map(Arc::new);
            let (mut module, facts, inlined) = typed(inlined, module, |module| declare(module, types))?;
            let (layouts, inlined) = lay_out(&*self.backend, &mut module, &Watch::nothing(), inlined);
            let (backend, watch) = (&*self.backend, &Watch::nothing());
            let room = Room::of(self.limits.max_bytes);
            let partitioner = Partitioner {
                backend,
                module: &module,
                facts: &facts,
                room,
                inlined: inlined.as_deref(),
                watch,
                layouts: &layouts,
                rejects,
            };
            match (self.plans_of(&partitioner), inlined) {
                (Ok(plans), inlined) => Ok(Plans { module, plans, inlined }),
                (Err(error), Some(inlined)) => Err(inlined.named(error)),
                (Err(error), None) => Err(error),
            }
        })
    }

    fn plans_of(&self, partitioner: &Partitioner<'_>) -> Result<Vec<GraphPlan>, ExecuteError> {
        let module = partitioner.module;
        let mut sizes = constant_sizes(module);
        let mut index = Index::default();
        let mut budget = FoldBudget::default();
        let mut plan = |graph| self.plan_of(partitioner, graph, &mut index, &mut sizes, &mut budget);
        module.graph_ids().map(&mut plan).collect()
    }

    fn plan_of(
        &self,
        partitioner: &Partitioner<'_>,
        graph: GraphId,
        index: &mut Index,
        sizes: &mut SecondaryMap<Value, Option<usize>>,
        budget: &mut FoldBudget,
    ) -> Result<GraphPlan, ExecuteError> {
        let module = partitioner.module;
        let mut folding = Sizing { module, folds: self.fold, sizes, budget, folded: FxHashSet::default() };
        let made = partitioner.groups(graph, &mut folding);
        let folded = folding.folded;
        let groups: Vec<Group> = made?.into_iter().map(|made| made.group).collect();
        let is_constant = |value| folded.contains(&value);
        Ok(plan_graph(module, graph, alignment(&*self.backend), index, &groups, is_constant))
    }
}

/// The plans of a module for types of its inputs ([`Runtime::plans`], [`Session::plans`](super::Session::plans)).
#[derive(Debug)]
pub struct Plans {
    module: Module,
    plans: Vec<GraphPlan>,
    inlined: Option<Arc<Inlined>>,
}

impl Plans {
    /// The plans of a program.
    pub(super) fn of(program: &Program) -> Plans {
        let plans = program.graphs.iter().map(|&graph| program.plan(graph).clone()).collect();
        Plans { module: program.module.clone(), plans, inlined: program.inlined().cloned() }
    }

    /// The module whose nodes the plans name: a copy of the given module, with these types and with inlined
    /// functions.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// The plan of each graph, in the order of the graphs.
    pub fn plans(&self) -> &[GraphPlan] {
        &self.plans
    }

    /// The node of the given module of which a node is a copy, as observers name it.
    pub fn source(&self, node: Node) -> Node {
        self.inlined.as_ref().map_or(node, |inlined| inlined.calls.source(node))
    }

    /// The plans as text, each with a heading.
    pub fn to_text(&self) -> String {
        self.plans.iter().map(|plan| plan.to_text(&self.module)).collect()
    }
}

/// The memory of plans with this many bytes of constants.
fn needs_of(plans: &Plans, constants: u64) -> MemoryNeeds {
    let Plans { module, plans, inlined } = plans;
    let mut needs = MemoryNeeds { constants, ..MemoryNeeds::default() };
    for plan in plans {
        if plan.graph == module.main() {
            needs.states = plan.state_bytes as u64;
            needs.peak = plan.peak();
            for step in &plan.steps {
                let outermost = inlined.as_ref().map(|inlined| inlined.outermost(step.node()));
                let node = outermost.unwrap_or(step.node());
                needs.scratch[node] = needs.scratch[node].max(step.scratch.1 as u64);
            }
            let unsized_values = plan.values.iter().filter(|planned| planned.place == Place::Heap);
            let given = |value| inlined.as_ref().map_or(value, |inlined| inlined.source_value(value));
            needs.unsized_values = unsized_values.map(|planned| given(planned.value)).collect();
        }
        // The arena of a function depends on its calls and is not counted.
        if !matches!(module.graph(plan.graph).owner, GraphOwner::Function(_)) {
            needs.arenas = needs.arenas.saturating_add(plan.arena as u64);
        }
    }
    needs
}

/// Chooses the nodes that are folded, without computing their results.
struct Sizing<'a> {
    module: &'a Module,
    folds: bool,
    /// The bytes of constants and folded results.
    sizes: &'a mut SecondaryMap<Value, Option<usize>>,
    budget: &'a mut FoldBudget,
    /// The folded results of the graph.
    folded: FxHashSet<Value>,
}

impl Fold for Sizing<'_> {
    fn may_fold(&self, node: Node) -> bool {
        let data = self.module.node(node);
        let is_known = |&value: &Value| self.sizes[value].is_some();
        self.folds && (reads_dims(data) || data.formal_operands().iter().flatten().all(is_known))
    }

    fn fold(&mut self, node: Node, prepared: &Prepared) -> Result<bool, KernelError> {
        let size = |value| self.sizes[value];
        let types = if self.folds { self.budget.types(self.module, node, prepared, size) } else { None };
        let Some(types) = types else { return Ok(false) };
        for (value, ty) in self.module.node(node).results().iter().zip(types) {
            let bytes = ty.and_then(|(dtype, dims)| usize::try_from(dtype.tensor_bytes(&dims)?).ok());
            if let Some(value) = *value {
                self.sizes[value] = bytes;
                self.folded.insert(value);
            }
        }
        Ok(true)
    }
}

/// Sets the types of the main graph's inputs.
fn declare(module: &mut Module, types: &[Option<Type>]) -> Result<(), ExecuteError> {
    let formals = module.graph(module.main()).inputs().to_vec();
    for (input, (&value, ty)) in formals.iter().zip(types).enumerate() {
        let Some(ty) = ty else { continue };
        let declared = &module.value(value).ty;
        if !super::admits(declared, ty) {
            let (expected, found) = (describe(declared), describe(ty));
            return Err(ExecuteError::Input { input, expected, found });
        }
        module.set_type(value, ty.clone());
    }
    Ok(())
}

/// The size in bytes of each constant, and of each default of an input, as a run holds it; `None` for strings.
fn constant_sizes(module: &Module) -> SecondaryMap<Value, Option<usize>> {
    let mut sizes = SecondaryMap::default();
    for value in module.graph_ids().flat_map(|graph| module.defined(graph)) {
        let (Def::Constant(payload) | Def::Input { default: Some(payload), .. }) = &module.value(value).def
        else {
            continue;
        };
        let bytes = match payload {
            Payload::Dense(data) => data.dtype().tensor_bytes(data.dims()),
            Payload::Sparse(data) => data.values.dtype().tensor_bytes(&data.dims),
        };
        sizes[value] = bytes.and_then(|bytes| usize::try_from(bytes).ok());
    }
    sizes
}
