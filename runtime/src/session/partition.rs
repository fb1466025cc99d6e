//! Partitions the nodes of a graph into groups, each with a kernel: nodes that depend only on constants and dims are
//! folded, the backend joins nodes, and the kernels declare their requirements.
//!
//! A backend may join any nodes whose kernels are ready before the graph runs, as long as no outside node must run
//! between two nodes of a group. With `|` between groups, from
//!
//! ```text
//! %p = MatMul(%x, %w)      %s = Add(%p, %b)      %n = Neg(%x)      %r = Relu(%s)
//! ```
//!
//! it may make `MatMul Add Relu | Neg`, although Neg stands in the middle of the program: no value of the group
//! reaches Neg and returns. Groups are ordered by their last nodes, as far as dependencies permit.
//!
//! A group holds all its operands while it runs, and delays early nodes, so it may grow the arena. Groups are kept
//! while the arena is no larger than without groups; on backends that trade memory for traffic, while it grows by no
//! more than the groups save. Other groups are split. Pairs (`pairs.rs`) may grow the arena by the values that they
//! no longer store.

use super::bind::Where;
use super::error::ExecuteError;
use super::inlined::Inlined;
use super::layouts::Layouts;
use super::observe::Watch;
use super::pairs::{Bundle, bundles, halves};
use super::walk;
use crate::backend::{Backend, Candidates, Carry, GroupSite, alignment, result_types};
use crate::device::Device;
use crate::kernel::{KernelError, Prepared, Site};
use crate::plan::{GraphPlan, Group, Index, Interface, Needs, known_tensor, live_nodes, plan_graph};
use crate::room::Room;
use ampc_ir::infer::Facts;
use ampc_ir::module::Def;
use ampc_ir::views::NodeView;
use ampc_ir::{GraphId, Module, Node, Type, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::{SmallVec, smallvec};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

/// The inputs of partitioning that all graphs of a module share.
#[derive(Clone, Copy)]
pub(super) struct Partitioner<'a> {
    pub(super) backend: &'a dyn Backend,
    pub(super) module: &'a Module,
    pub(super) facts: &'a Facts,
    pub(super) room: Room,
    /// The calls that were inlined into the module.
    pub(super) inlined: Option<&'a Inlined>,
    /// The values that stay visible when the backend joins nodes.
    pub(super) watch: &'a Watch,
    pub(super) layouts: &'a Layouts,
    /// True if it is an error that a node which runs in any case cannot be prepared; otherwise the error is reported
    /// when the node runs.
    pub(super) is_strict: bool,
}

/// A group, and its kernel if the kernel is ready before the graph runs.
#[derive(Clone)]
pub(super) struct Made {
    pub(super) group: Group,
    pub(super) kernel: Option<Arc<Prepared>>,
}

/// The maximum number of plans that the choice of groups computes.
const MOST_PLANS: usize = 32;

/// The reciprocal of the maximum growth of an arena, without states, by groups that save traffic.
const MOST_GROWTH: usize = 16;

/// [`MOST_PLANS`] for backends that trade memory, which reject fewer sets of groups as a whole.
const MOST_TRADING_PLANS: usize = 96;

/// An error of the nodes of a graph.
pub(super) enum Failed {
    /// A node is invalid, or the device fails.
    Node { node: Node, error: KernelError },
    /// Nodes that run in any case have no kernels. All such nodes are listed.
    Unsupported { backend: &'static str, nodes: Vec<(Node, String)> },
}

/// Folding of results that depend only on constants and dims.
pub(super) trait Fold {
    /// True if the node may be folded: its operands are known, or it reads only dims.
    fn may_fold(&self, node: Node) -> bool;

    /// Computes a node if it can be folded, and returns true if the node need not run. The kernel is that of the host
    /// backend, if there is one.
    ///
    /// # Errors
    /// If the device fails.
    fn fold(&mut self, node: Node, prepared: &Prepared) -> Result<bool, KernelError>;
}

/// The interfaces and kernels of groups, by their nodes; `None` if a group has no kernel.
type Kernels = FxHashMap<Vec<Node>, Option<(Interface, Arc<Prepared>)>>;

impl From<Failed> for ExecuteError {
    fn from(failed: Failed) -> ExecuteError {
        match failed {
            Failed::Node { node, error } => ExecuteError::of_kernel(node, error),
            Failed::Unsupported { backend, nodes } => ExecuteError::Unsupported { backend, nodes },
        }
    }
}

impl Partitioner<'_> {
    /// The groups of a graph, in execution order, without the folded nodes.
    ///
    /// # Errors
    /// If a node is invalid, nodes have no kernels, or the device fails.
    pub(super) fn groups(&self, graph: GraphId, folding: &mut impl Fold) -> Result<Vec<Made>, Failed> {
        let place = Where::of(self.module, graph);
        let mut made = Vec::new();
        let mut folded: FxHashSet<Value> = FxHashSet::default();
        let mut unsupported = Vec::new();
        for node in live_nodes(self.module, graph) {
            let failed = |error| Failed::Node { node, error };
            let results = || self.module.node(node).results().iter().flatten();
            let may_fold = !self.layouts.in_each_run.contains(&node);
            if may_fold && self.folds_on_host(node, &place, folding).map_err(failed)? {
                folded.extend(results());
                continue;
            }
            let (needs, prepared) = match self.needs_of(node, &place) {
                Err(KernelError::Unsupported(what)) => {
                    unsupported.push((node, what));
                    continue;
                }
                made => made.map_err(failed)?,
            };
            if let Some(prepared) =
                prepared.as_ref().filter(|_| may_fold && !place.in_branch && self.backend.host().is_none())
                && folding.fold(node, prepared).map_err(failed)?
            {
                folded.extend(results());
                continue;
            }
            let group = Group { nodes: smallvec![node], needs, interface: None };
            made.push(Made { group, kernel: prepared.map(Arc::new) });
        }
        match unsupported.pop() {
            None => {}
            Some((node, what)) if unsupported.is_empty() => {
                return Err(Failed::Node { node, error: KernelError::Unsupported(what) });
            }
            Some(last) => {
                unsupported.push(last);
                return Err(Failed::Unsupported { backend: self.backend.name(), nodes: unsupported });
            }
        }
        let is_grouped = self.backend.has_groups() && *self.watch != Watch::All;
        Ok(if is_grouped { self.joined_within(graph, made, &folded) } else { made })
    }

    /// Folds a node with the kernel of the host backend, if both exist.
    ///
    /// # Errors
    /// If the device fails.
    fn folds_on_host(&self, node: Node, place: &Where, folding: &mut impl Fold) -> Result<bool, KernelError> {
        let Some(host) = self.backend.host() else { return Ok(false) };
        if place.in_branch
            || place.in_function
            || walk::is_nested(self.module, node)
            || !folding.may_fold(node)
        {
            return Ok(false);
        }
        match self.prepare_on(host, node) {
            Some(Ok(prepared)) => folding.fold(node, &prepared),
            // The backend itself handles the node.
            Some(Err(_)) | None => Ok(false),
        }
    }

    /// The planning requirements of a node, and its kernel if it can be prepared before the graph runs.
    ///
    /// # Errors
    /// If the node runs in any case, and is invalid or has no kernel.
    fn needs_of(&self, node: Node, place: &Where) -> Result<(Needs, Option<Prepared>), KernelError> {
        if walk::is_nested(self.module, node) {
            return Ok((Needs { on_heap: true, is_barrier: true, ..Needs::default() }, None));
        }
        // Calls differ in the types of their operands, and may omit operands.
        let prepared = if place.in_function { None } else { self.prepare_on(self.backend, node) };
        let prepared = match prepared {
            Some(Ok(prepared)) => Some(prepared),
            Some(Err(error)) if self.is_strict && !place.in_body && !matches!(error, KernelError::NotYet) => {
                return Err(error);
            }
            Some(Err(_)) | None => None,
        };
        let late = || Needs { is_barrier: true, ..Needs::default() };
        Ok((prepared.as_ref().map_or_else(late, |prepared| prepared.needs.clone()), prepared))
    }

    /// The kernel of a node or its error, if everything that the kernel depends on is known before the graph runs.
    fn prepare_on(&self, backend: &dyn Backend, node: Node) -> Option<Result<Prepared, KernelError>> {
        let view = NodeView::with_facts(self.module, node, self.facts)?;
        let results = result_types(self.module, node);
        // Results may have more known types once the operands are there.
        let is_known = |ty: &Type| match ty {
            Type::Unknown => false,
            Type::Tensor(tensor) => tensor.shape.to_known().is_some(),
            _ => true,
        };
        if !results.iter().flatten().all(is_known) {
            return None;
        }
        // Kernels multiply dims. If the product of dims overflows, the error is reported when the node runs, if it
        // ever does.
        let operands = self.module.node(node).formal_operands().iter().flatten();
        let fits = |ty: &Type| walk::span(ty).is_some_and(|bytes| usize::try_from(bytes).is_ok());
        if !results.iter().flatten().chain(operands.map(|&v| &self.module.value(v).ty)).all(fits) {
            return None;
        }
        let source = self.source(node);
        let (channels_last, room) = (self.layouts.channels_last.contains(&node), self.room);
        let prepared = backend.prepare(&Site { view, source, results: &results, channels_last, room });
        Some(prepared.and_then(|kernel| self.checked(kernel)))
    }

    fn source(&self, node: Node) -> Node {
        self.inlined.map_or(node, |inlined| inlined.calls.source(node))
    }

    /// Joins the groups of the backend as long as the arena does not grow, or, on backends that trade memory, grows
    /// by at most the bytes that the groups save.
    ///
    /// A set of groups that grows the arena is halved recursively, down to single groups, and then the nodes of a
    /// single group are halved too.
    ///
    /// ```text
    /// groups A, B, C, D; B grows the arena     A B C D: no     A B: no     C D: yes     A with C D: yes     B: no
    /// ```
    fn joined_within(&self, graph: GraphId, made: Vec<Made>, folded: &FxHashSet<Value>) -> Vec<Made> {
        let ready = self.ready(&made);
        let channels_last = &self.layouts.channels_last;
        let candidates = Candidates { module: self.module, graph, nodes: &ready, channels_last };
        let mut groups = self.backend.join(&candidates);
        if groups.is_empty() {
            return made;
        }
        let position: FxHashMap<Node, usize> =
            ready.iter().enumerate().map(|(at, &node)| (node, at)).collect();
        let carries = self.backend.carries(&candidates, &groups);
        for group in &mut groups {
            let is_ready = group.iter().all(|node| position.contains_key(node));
            assert!(is_ready, "a backend joins a node that is no candidate");
            group.sort_unstable_by_key(|node| position[node]);
        }
        let (pairs, singles) = bundles((self.module, graph), self.watch, groups, carries);
        let mut kernels = Kernels::default();
        if self.backend.groups_may_grow() {
            let mut all: Vec<Bundle> = pairs.into_iter().chain(singles).collect();
            return self.joined(graph, &made, &mut all, &mut kernels);
        }
        let without = self.plan(graph, &made, folded);
        let mut most = without.arena;
        let (limit, n_plans) = match self.backend.groups_trade_memory() {
            // Plans of large graphs take longer.
            true => (
                most + (most - without.state_bytes) / MOST_GROWTH,
                (MOST_TRADING_PLANS * 10_000 / made.len().max(1)).clamp(8, MOST_TRADING_PLANS),
            ),
            false => (most, MOST_PLANS),
        };
        let (mut kept, mut units) = (Vec::new(), made.clone());
        // Pairs come first: the memory that they save may exceed the memory that other groups add.
        let sets = [pairs, singles].into_iter().filter(|set| !set.is_empty());
        let mut open: VecDeque<Vec<Bundle>> = sets.collect();
        for _ in 0..n_plans {
            let Some(set) = open.pop_front() else { break };
            let mut more: Vec<Bundle> = kept.iter().chain(&set).cloned().collect();
            let joined = self.joined(graph, &made, &mut more, &mut kernels);
            if more.len() == kept.len() {
                continue;
            }
            let arena = self.plan(graph, &joined, folded).arena;
            // A pair may grow the arena by the bytes that it no longer stores: if its nodes run separately, the
            // carried values are live from its first group to its second.
            let spared = set.iter().map(|bundle| bundle.spared(self.module)).sum::<usize>();
            if arena <= most.saturating_add(spared)
                || (arena <= limit && arena - most <= self.saved(&set, &kernels))
            {
                most = most.max(arena);
                (kept, units) = (more, joined);
            } else {
                open.extend(halves(set));
            }
        }
        units
    }

    /// The bytes that groups with kernels save: a value between nodes of a group is neither written nor read.
    fn saved(&self, bundles: &[Bundle], kernels: &Kernels) -> usize {
        let mut saved = 0usize;
        for nodes in bundles.iter().flat_map(|bundle| &bundle.groups) {
            let Some(Some((interface, _))) = kernels.get(nodes) else { continue };
            let made = nodes.iter().flat_map(|&node| self.module.node(node).results()).flatten();
            for value in made.filter(|value| !interface.results.contains(value)) {
                let bytes = known_tensor(&self.module.value(*value).ty)
                    .and_then(|(dtype, dims)| usize::try_from(dtype.tensor_bytes(&dims)?).ok());
                saved = saved.saturating_add(bytes.unwrap_or(0).saturating_mul(2));
            }
        }
        saved
    }

    fn plan(&self, graph: GraphId, units: &[Made], folded: &FxHashSet<Value>) -> GraphPlan {
        let groups: Vec<Group> = units.iter().map(|unit| unit.group.clone()).collect();
        let mut index = Index::default();
        let is_constant = |value| folded.contains(&value);
        plan_graph(self.module, graph, alignment(self.backend), &mut index, &groups, is_constant)
    }

    /// The nodes whose kernels are ready, and whose operands and results are tensors of known dims.
    fn ready(&self, made: &[Made]) -> Vec<Node> {
        let ready = |made: &&Made| {
            let is_sized = |value: &Value| known_tensor(&self.module.value(*value).ty).is_some();
            let data = self.module.node(made.group.nodes[0]);
            made.kernel.is_some() && data.operands().iter().chain(data.results()).flatten().all(is_sized)
        };
        made.iter().filter(ready).map(|made| made.group.nodes[0]).collect()
    }

    /// The units with these groups joined. Groups without a kernel are removed from the list, and their nodes run
    /// separately; `kernels` caches prepared groups.
    fn joined(
        &self,
        graph: GraphId,
        made: &[Made],
        bundles: &mut Vec<Bundle>,
        kernels: &mut Kernels,
    ) -> Vec<Made> {
        loop {
            let groups: Vec<&Vec<Node>> = bundles.iter().flat_map(|bundle| &bundle.groups).collect();
            let mut units = Partitioner::units(made, &groups);
            let carries = bundles.iter().flat_map(|bundle| &bundle.carries);
            let unprepared = self.give_kernels(graph, &mut units, carries, kernels);
            if unprepared.is_empty() {
                return self.ordered(units);
            }
            bundles.retain(|bundle| !unprepared.iter().any(|&node| bundle.contains(node)));
        }
    }

    /// The units, with the nodes of each group merged into one unit.
    fn units(made: &[Made], groups: &[&Vec<Node>]) -> Vec<Made> {
        let mut group_of: FxHashMap<Node, usize> = FxHashMap::default();
        for (at, group) in groups.iter().enumerate() {
            for &node in *group {
                assert!(group_of.insert(node, at).is_none(), "a backend has a node in two groups");
            }
        }
        let mut units: Vec<Made> = Vec::new();
        let mut unit_of: FxHashMap<usize, usize> = FxHashMap::default();
        for single in made {
            let node = single.group.nodes[0];
            match group_of.get(&node) {
                None => units.push(single.clone()),
                Some(group) => match unit_of.get(group) {
                    Some(&unit) => units[unit].group.nodes.push(node),
                    None => {
                        unit_of.insert(*group, units.len());
                        units.push(single.clone());
                    }
                },
            }
        }
        units
    }

    /// Sets the kernel of each unit with several nodes; `carries` are the carried values. Returns one node of each
    /// unit without a kernel.
    fn give_kernels<'c>(
        &self,
        graph: GraphId,
        units: &mut [Made],
        carries: impl Iterator<Item = &'c Carry>,
        kernels: &mut Kernels,
    ) -> Vec<Node> {
        let carries: FxHashMap<Value, &Carry> = carries.map(|carry| (carry.value, carry)).collect();
        let readers = self.readers(units);
        let data = self.module.graph(graph);
        let roots: FxHashSet<Value> = data.states.iter().map(|&(_, next)| next).collect();
        let mut unprepared = Vec::new();
        for (at, unit) in units.iter_mut().enumerate().filter(|(_, unit)| unit.group.nodes.len() > 1) {
            let is_read = |value: Value| {
                let outside = readers.get(&value).is_some_and(|readers| readers.iter().any(|&r| r != at));
                outside
                    || self.module.is_output(value)
                    || roots.contains(&value)
                    || self.watch.contains(value)
            };
            let nodes = &unit.group.nodes;
            if !kernels.contains_key(&nodes[..]) {
                let mut interface = Interface::of(self.module, nodes, is_read);
                let Interface { operands, results, .. } = &interface;
                let carried = |values: &[Value]| -> Vec<Carry> {
                    values.iter().filter_map(|value| carries.get(value)).copied().cloned().collect()
                };
                let (read, made) = (carried(operands), carried(results));
                // If only folded nodes read a result, the group does not produce it. The pair then gets no kernels.
                let is_whole = made
                    .iter()
                    .flat_map(|carry| &carry.instead)
                    .all(|value| operands.contains(value) || results.contains(value));
                interface.carry(read.into_iter().chain(made).collect());
                // If only folded nodes read the group, its nodes run separately, so that every group has a result.
                let has_result = is_whole && !interface.results.is_empty();
                let kernel = has_result.then(|| self.prepare_group(nodes, &interface)).and_then(Result::ok);
                let kernel = kernel.and_then(|kernel| self.checked(kernel).ok());
                kernels.insert(nodes.to_vec(), kernel.map(|kernel| (interface, Arc::new(kernel))));
            }
            match &kernels[&nodes[..]] {
                None => unprepared.push(nodes[0]),
                Some((interface, kernel)) => {
                    unit.group.needs = kernel.needs.clone();
                    unit.group.interface = Some(interface.clone());
                    unit.kernel = Some(kernel.clone());
                }
            }
        }
        unprepared
    }

    /// Checks that the device has the queue of a kernel.
    fn checked(&self, kernel: Prepared) -> Result<Prepared, KernelError> {
        let n_queues = self.backend.device().map_or(usize::MAX, Device::kernel_queues);
        if kernel.needs.queue < n_queues {
            return Ok(kernel);
        }
        Err(KernelError::value(
            format!("a kernel on one of {n_queues} queues"),
            format!("queue {}", kernel.needs.queue),
        ))
    }

    /// Two of the groups that read each value; two suffice to tell if another group reads it.
    fn readers(&self, units: &[Made]) -> FxHashMap<Value, SmallVec<[usize; 2]>> {
        let mut readers: FxHashMap<Value, SmallVec<[usize; 2]>> = FxHashMap::default();
        for (at, unit) in units.iter().enumerate() {
            for &value in
                unit.group.nodes.iter().flat_map(|&node| self.module.node(node).operands()).flatten()
            {
                let readers = readers.entry(value).or_default();
                if readers.last() != Some(&at) && readers.len() < 2 {
                    readers.push(at);
                }
            }
        }
        readers
    }

    fn prepare_group(&self, nodes: &[Node], interface: &Interface) -> Result<Prepared, KernelError> {
        let results: Vec<Vec<Option<Type>>> =
            nodes.iter().map(|&node| result_types(self.module, node)).collect();
        let sites = nodes.iter().zip(&results).filter_map(|(&node, results)| {
            let view = NodeView::with_facts(self.module, node, self.facts)?;
            let channels_last = self.layouts.channels_last.contains(&node);
            Some(Site { view, source: self.source(node), results, channels_last, room: self.room })
        });
        let sites: Vec<Site<'_>> = sites.collect();
        let Interface { operands, results, carries } = interface;
        self.backend.prepare_group(&GroupSite { sites: &sites, operands, results, carries })
    }

    /// The groups in a topological order; of several ready groups, the group whose last node comes first in the
    /// program.
    ///
    /// # Panics
    /// If the groups have a cycle: the backend has joined nodes with an outside node between them.
    fn ordered(&self, units: Vec<Made>) -> Vec<Made> {
        let mut maker: FxHashMap<Value, usize> = FxHashMap::default();
        let mut position: FxHashMap<Node, usize> = FxHashMap::default();
        let graph = units.first().map(|unit| self.module.node(unit.group.nodes[0]).graph);
        for (at, node) in graph.into_iter().flat_map(|graph| self.module.nodes(graph)).enumerate() {
            position.insert(node, at);
        }
        for (at, unit) in units.iter().enumerate() {
            let results = unit.group.nodes.iter().flat_map(|&node| self.module.node(node).results());
            maker.extend(results.flatten().map(|&value| (value, at)));
        }
        let mut waits = vec![0usize; units.len()];
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); units.len()];
        for (at, unit) in units.iter().enumerate() {
            let operands = unit.group.nodes.iter().flat_map(|&node| self.module.node(node).operands());
            let mut makers: Vec<usize> =
                operands.flatten().filter_map(|value| maker.get(value).copied()).collect();
            makers.sort_unstable();
            makers.dedup();
            for other in makers.into_iter().filter(|&other| other != at) {
                waits[at] += 1;
                readers[other].push(at);
            }
        }
        let last = |at: usize| units[at].group.nodes.last().map(|node| position[node]);
        let ready = (0..units.len()).filter(|&at| waits[at] == 0).map(|at| Reverse((last(at), at)));
        let (mut ready, mut order): (BinaryHeap<_>, Vec<usize>) = (ready.collect(), Vec::new());
        while let Some(Reverse((_, at))) = ready.pop() {
            order.push(at);
            for &reader in &readers[at] {
                waits[reader] -= 1;
                if waits[reader] == 0 {
                    ready.push(Reverse((last(reader), reader)));
                }
            }
        }
        assert_eq!(order.len(), units.len(), "a backend joins nodes with another node between them");
        let mut units: Vec<Option<Made>> = units.into_iter().map(Some).collect();
        order.into_iter().filter_map(|at| units[at].take()).collect()
    }
}

/// True if the value is the default of an input, which a caller may replace.
pub(super) fn is_input(module: &Module, value: Value) -> bool {
    matches!(module.value(value).def, Def::Input { .. })
}
