//! The memory that a run takes, before a constant is read and without running a node.
//!
//! The module is typed and planned as for a run ([`plan`](crate::plan)). A run knows the results of nodes that depend on
//! constants alone; here their sizes stand for them, by the same rule, so that the plan is that of the run.

use super::bind::folded_types;
use super::observe::Watch;
use super::partition::Partitioner;
use super::{ExecuteError, Runtime};
use crate::backend::{alignment, installed};
use crate::plan::{GraphPlan, Group, Index, Peak, Place, plan_graph};
use crate::room::Room;
use ampc_ir::entity::SecondaryMap;
use ampc_ir::infer::{Facts, describe, infer_module};
use ampc_ir::module::{Def, GraphOwner, Payload};
use ampc_ir::{GraphId, Module, Node, Type, Value};
use rustc_hash::FxHashSet;

/// The memory that a run of a module takes, in bytes.
#[derive(Clone, Debug, Default)]
pub struct MemoryNeeds {
    /// The arenas of the main graph and of all bodies. The states of the main graph are in its arena.
    pub arenas: u64,
    /// The states of the main graph.
    pub states: u64,
    /// The constants.
    pub constants: u64,
    /// The contents of the main graph's arena at its fullest step; `None` of an empty arena.
    pub peak: Option<Peak>,
    /// The scratch memory of each node of the main graph.
    pub scratch: SecondaryMap<Node, u64>,
    /// The values of the main graph whose sizes are not known before they are computed; they are not counted.
    pub unsized_values: Vec<Value>,
}

impl Runtime {
    /// The memory that a run of a module takes for inputs of these types; `None` stands for the declared type.
    ///
    /// # Errors
    /// If the types do not fit the module.
    pub fn memory_needs(&self, module: &Module, types: &[Option<Type>]) -> Result<MemoryNeeds, ExecuteError> {
        let mut module = module.clone();
        declare(&mut module, types)?;
        installed(&*self.backend, || {
            let facts = infer_module(&mut module).map_err(ExecuteError::Shapes)?;
            self.needs_of_all(&module, &facts)
        })
    }

    fn needs_of_all(&self, module: &Module, facts: &Facts) -> Result<MemoryNeeds, ExecuteError> {
        let room = Room::of(self.limits.max_bytes);
        let mut sizes = constant_sizes(module);
        let mut needs = MemoryNeeds::default();
        for graph in module.graph_ids() {
            needs.constants += module.defined(graph).filter_map(|value| sizes[value]).sum::<usize>() as u64;
        }
        let mut index = Index::default();
        for graph in module.graph_ids() {
            let plan = self.plan_of(module, graph, facts, room, &mut index, &mut sizes)?;
            if graph == module.main() {
                needs.states = plan.state_bytes as u64;
                needs.peak = plan.peak();
                plan.steps.iter().for_each(|step| needs.scratch[step.node()] = step.scratch.1 as u64);
                let unsized_values = plan.values.iter().filter(|planned| planned.place == Place::Heap);
                needs.unsized_values = unsized_values.map(|planned| planned.value).collect();
            }
            // The arena of a function depends on its calls.
            if !matches!(module.graph(graph).owner, GraphOwner::Function(_)) {
                needs.arenas = needs.arenas.saturating_add(plan.arena as u64);
            }
        }
        Ok(needs)
    }

    fn plan_of(
        &self,
        module: &Module,
        graph: GraphId,
        facts: &Facts,
        room: Room,
        index: &mut Index,
        sizes: &mut SecondaryMap<Value, Option<usize>>,
    ) -> Result<GraphPlan, ExecuteError> {
        let (backend, watch) = (&*self.backend, &Watch::nothing());
        let partitioner = Partitioner { backend, module, facts, room, watch, is_strict: false };
        let mut folded: FxHashSet<Value> = FxHashSet::default();
        let made = partitioner.groups(graph, |node, prepared| {
            let types =
                if self.fold { folded_types(module, node, prepared, |value| sizes[value]) } else { None };
            let Some(types) = types else { return Ok(false) };
            for (value, ty) in module.node(node).results().iter().zip(types) {
                let bytes = ty.and_then(|(dtype, dims)| usize::try_from(dtype.tensor_bytes(&dims)?).ok());
                if let Some(value) = *value {
                    sizes[value] = bytes;
                    folded.insert(value);
                }
            }
            Ok(true)
        });
        let groups: Vec<Group> = made?.into_iter().map(|made| made.group).collect();
        let is_constant = |value| folded.contains(&value);
        Ok(plan_graph(module, graph, alignment(backend), index, &groups, is_constant))
    }
}

/// Gives the inputs of the main graph these types.
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

/// The bytes of each constant, and of each default of an input, as a run holds it; `None` of strings.
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
