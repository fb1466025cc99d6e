//! The minimum bytes of a graph, for comparison with those of its plan.
//!
//! Products, convolutions and attention are groups, and so are the maximal regions of other nodes between them. A
//! group reads every operand from outside once and writes every result that is read outside once; batch statistics
//! add one read in each direction. Groups are convex: no path leaves a group and enters it again.
//!
//! - The *level* of a node is the largest number of products on a path to it. A region is a connected component of
//!   the other nodes of one level, where nodes that share a value are connected.
//! - An attention is a Softmax with the products that produce and read its scores, and everything in between; the
//!   scores are not in memory. Its gradient is another group, which recomputes the scores.
//! - The check of all gradients finishes before the first weight is updated, so gradients are read twice.
//! - A view (Reshape) has the bytes of its operand.

use super::{GraphBound, elements, is_nested, moved_elements, statistics_bytes};
use ampc_ir::op::{OpKind, Work, work};
use ampc_ir::{Module, Node, Value};
use ampc_passes::step::{Phase, phase_of};
use ampc_runtime::plan::GraphPlan;
use ampc_runtime::session::Plans;
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Nodes that one kernel could compute.
#[derive(Clone, Debug)]
pub struct Region {
    /// True of a product, a convolution, an attention, or a node with bodies.
    pub is_product: bool,
    /// The first node, with its name in the given module.
    pub first: Node,
    /// The number of nodes by operator.
    pub operators: BTreeMap<String, u64>,
    /// The minimum number of bytes that the group reads and writes.
    pub least: u64,
    /// The number of bytes of the plan's steps that compute it.
    pub planned: u64,
    /// The number of launches of these steps.
    pub launches: u64,
}

impl Region {
    /// The number of bytes that the plan moves beyond the minimum.
    pub fn excess(&self) -> u64 {
        self.planned.saturating_sub(self.least)
    }
}

/// The bytes of the main graph's plan, and the minimum.
#[derive(Clone, Debug, Default)]
pub struct LeastBytes {
    /// The groups, sorted by descending excess.
    pub regions: Vec<Region>,
    /// The minimum number of bytes of all groups.
    pub least: u64,
    /// The number of bytes of the plan.
    pub planned: u64,
    /// The number of launches of products, convolutions and attention.
    pub product_launches: u64,
    /// The number of other launches.
    pub other_launches: u64,
}

/// Compares the bytes of the main graph, whose steps are `bound`, with the minimum.
pub fn least(plans: &Plans, bound: &GraphBound) -> LeastBytes {
    let module = plans.module();
    let Some(plan) = plans.plans().iter().find(|plan| plan.graph == bound.graph) else {
        return LeastBytes::default();
    };
    let graph = Graph::of(module, plan);
    let groups = graph.groups();
    let mut regions: Vec<Region> = graph.regions(&groups, plans);
    let mut found = LeastBytes::default();
    for (at, step) in bound.steps.iter().enumerate() {
        let load = &step.load;
        found.planned = found.planned.saturating_add(load.bytes());
        let nodes = plan.steps.get(at).map(|step| &step.nodes[..]).unwrap_or_default();
        let known: Vec<usize> = nodes.iter().filter_map(|node| graph.at.get(node)).copied().collect();
        let product = known.iter().rev().find(|&&at| regions[groups[at]].is_product);
        let group = product.or(known.last()).map(|&at| groups[at]);
        match group {
            Some(group) if regions[group].is_product => found.product_launches += load.launches,
            _ => found.other_launches += load.launches,
        }
        if let Some(group) = group {
            let region = &mut regions[group];
            region.planned = region.planned.saturating_add(load.bytes());
            region.launches += load.launches;
        }
    }
    found.least = regions.iter().map(|region| region.least).fold(0, u64::saturating_add);
    // A group is listed at its first node.
    regions.retain(|region| !region.operators.is_empty());
    regions.sort_by_key(|region| (Reverse(region.excess()), region.first));
    found.regions = regions;
    found
}

/// The computing nodes of a plan, with the values that they read and write; a view is replaced by its operand, the
/// root.
struct Graph<'a> {
    module: &'a Module,
    nodes: Vec<Node>,
    at: FxHashMap<Node, usize>,
    /// The roots of the operands and results of each node.
    reads: Vec<Vec<Value>>,
    writes: Vec<Vec<Value>>,
    /// The producer of a root, and its readers.
    maker: FxHashMap<Value, usize>,
    readers: FxHashMap<Value, Vec<usize>>,
    /// Roots that are outputs or next values of states.
    kept: FxHashSet<Value>,
    /// True for nodes that form a group by themselves.
    is_alone: Vec<bool>,
}

impl<'a> Graph<'a> {
    fn of(module: &'a Module, plan: &GraphPlan) -> Graph<'a> {
        let mut root: FxHashMap<Value, Value> = FxHashMap::default();
        let (mut nodes, mut reads, mut writes, mut is_alone) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut at, mut maker) = (FxHashMap::default(), FxHashMap::default());
        let mut readers: FxHashMap<Value, Vec<usize>> = FxHashMap::default();
        for step in &plan.steps {
            for &node in &step.nodes {
                let data = module.node(node);
                let found = |value: &Value| root.get(value).copied().unwrap_or(*value);
                let operands: Vec<Value> = data.operands().iter().flatten().map(found).collect();
                let results: Vec<Value> = data.results().iter().flatten().copied().collect();
                if let (true, [operand, ..], [result]) = (is_view(module, node), &operands[..], &results[..])
                {
                    root.insert(*result, *operand);
                    continue;
                }
                at.insert(node, nodes.len());
                maker.extend(results.iter().map(|&result| (result, nodes.len())));
                operands.iter().for_each(|&value| readers.entry(value).or_default().push(nodes.len()));
                nodes.push(node);
                reads.push(operands);
                writes.push(results);
                is_alone.push(is_nested(module, node) || is_product(module, node));
            }
        }
        let kept = plan.outputs.iter().copied();
        let kept = kept.chain(plan.states.iter().chain(&plan.moved).map(|state| state.next));
        let kept = kept.map(|index| plan.values[index as usize].value);
        let kept = kept.map(|value| root.get(&value).copied().unwrap_or(value)).collect();
        Graph { module, nodes, at, reads, writes, maker, readers, kept, is_alone }
    }

    fn kind(&self, at: usize) -> Option<OpKind> {
        self.module.node(self.nodes[at]).schema().map(|schema| schema.kind)
    }

    /// The phase of a training step that a node is in.
    fn phase(&self, at: usize) -> Phase {
        phase_of(self.module, self.nodes[at]).unwrap_or(Phase::Forward)
    }

    /// The group of each node.
    fn groups(&self) -> Vec<usize> {
        let mut sets = Sets::new(self.nodes.len());
        let attention = self.attention(&mut sets);
        let is_alone: Vec<bool> = (0..self.nodes.len())
            .map(|at| self.is_alone[at] || attention[at] || self.kind(at) == Some(OpKind::GradCheck))
            .collect();
        let levels = self.levels(&mut sets, &is_alone);
        // Nodes of a region share a value.
        let mut users: FxHashMap<(Value, usize), usize> = FxHashMap::default();
        for at in (0..self.nodes.len()).filter(|&at| !is_alone[at]) {
            for &value in self.reads[at].iter().chain(&self.writes[at]) {
                let first = *users.entry((value, levels[at])).or_insert(at);
                sets.join(first, at);
            }
        }
        (0..self.nodes.len()).map(|at| sets.root(at)).collect()
    }

    /// Merges the nodes of each attention in each phase, and marks them.
    fn attention(&self, sets: &mut Sets) -> Vec<bool> {
        let mut is_member = vec![false; self.nodes.len()];
        for at in (0..self.nodes.len()).filter(|&at| self.kind(at) == Some(OpKind::Softmax)) {
            let Some(&scores) = self.writes[at].first() else { continue };
            let size = elements(self.module, scores);
            let (mut seen, mut next) = (FxHashSet::from_iter([scores]), vec![scores]);
            let mut members: Vec<usize> = vec![at];
            while let Some(value) = next.pop() {
                let touching = self.readers.get(&value).into_iter().flatten().chain(self.maker.get(&value));
                for &node in touching {
                    members.push(node);
                    if self.is_alone[node] {
                        continue;
                    }
                    for &other in self.reads[node].iter().chain(&self.writes[node]) {
                        if elements(self.module, other) == size
                            && self.maker.contains_key(&other)
                            && seen.insert(other)
                        {
                            next.push(other);
                        }
                    }
                }
            }
            let phase = self.phase(at);
            let is_here = |&&node: &&usize| self.is_alone[node] && self.phase(node) == phase;
            let makes = |&node: &usize| self.writes[node].iter().any(|value| seen.contains(value));
            let products: Vec<usize> = members.iter().filter(is_here).copied().collect();
            // Scores of classes have no product after them.
            if !(products.iter().any(makes) && products.iter().any(|node| !makes(node))) {
                continue;
            }
            for &node in &members {
                is_member[node] = true;
                let first = members.iter().find(|&&other| self.phase(other) == self.phase(node));
                sets.join(*first.unwrap_or(&node), node);
            }
        }
        is_member
    }

    /// The number of product groups on the longest path to each node.
    fn levels(&self, sets: &mut Sets, is_alone: &[bool]) -> Vec<usize> {
        // The level of a group is known after those of all its nodes. Because nodes are in program order, a second
        // iteration sees the levels of groups with scattered nodes.
        let mut of_group = vec![0; self.nodes.len()];
        loop {
            let mut is_stable = true;
            for at in 0..self.nodes.len() {
                let group = sets.root(at);
                let makers = self.reads[at].iter().filter_map(|value| self.maker.get(value));
                let mut level = of_group[group];
                for &maker in makers {
                    let other = sets.root(maker);
                    if other != group {
                        level = level.max(of_group[other] + usize::from(is_alone[maker]));
                    }
                }
                is_stable &= level == of_group[group];
                of_group[group] = level;
            }
            // The levels of a group that is not convex would grow without bound.
            if is_stable || of_group.iter().any(|&level| level > self.nodes.len()) {
                break;
            }
        }
        (0..self.nodes.len()).map(|at| of_group[sets.root(at)]).collect()
    }

    fn regions(&self, groups: &[usize], plans: &Plans) -> Vec<Region> {
        let mut regions: Vec<Region> = self
            .nodes
            .iter()
            .map(|&node| Region {
                is_product: false,
                first: plans.source(node),
                operators: BTreeMap::new(),
                least: 0,
                planned: 0,
                launches: 0,
            })
            .collect();
        let mut read: BTreeMap<(usize, Value), u64> = BTreeMap::new();
        let mut outside: FxHashSet<Value> = self.kept.clone();
        for (at, &node) in self.nodes.iter().enumerate() {
            let region = &mut regions[groups[at]];
            region.is_product |= self.is_alone[at];
            *region.operators.entry(self.module.op_name(node).1.to_owned()).or_default() += 1;
            let most = moved_elements(self.module, &[node]).unwrap_or(u64::MAX);
            region.least = region.least.saturating_add(2 * statistics_bytes(self.module, node));
            for &value in &self.reads[at] {
                if self.maker.get(&value).is_none_or(|&maker| groups[maker] != groups[at]) {
                    let most = self.bytes(value, most);
                    let bytes = read.entry((groups[at], value)).or_default();
                    *bytes = most.max(*bytes);
                    outside.insert(value);
                }
            }
        }
        let is_score = |value: Value| self.is_score(value, &regions, groups);
        let traffic = read.iter().map(|(&(group, value), &bytes)| (group, value, bytes));
        let written = self.maker.iter().filter(|(value, _)| outside.contains(value));
        let written = written.map(|(&value, &maker)| (groups[maker], value, self.bytes(value, u64::MAX)));
        let traffic: Vec<_> = traffic.chain(written).filter(|&(_, value, _)| !is_score(value)).collect();
        for (group, _, bytes) in traffic {
            regions[group].least = regions[group].least.saturating_add(bytes);
        }
        // The bytes of bodies are counted in their graphs.
        for (at, _) in self.nodes.iter().enumerate().filter(|&(_, &node)| is_nested(self.module, node)) {
            regions[groups[at]].least = 0;
        }
        regions
    }

    /// True for the scores of an attention, which its gradient recomputes: a value between two groups that contain
    /// scores.
    fn is_score(&self, value: Value, regions: &[Region], groups: &[usize]) -> bool {
        let Some(&maker) = self.maker.get(&value) else { return false };
        let has_many =
            |group: usize| regions[group].is_product && regions[group].operators.values().sum::<u64>() > 1;
        !self.is_alone[maker]
            && has_many(groups[maker])
            && !self.kept.contains(&value)
            && self.readers.get(&value).into_iter().flatten().all(|&at| has_many(groups[at]))
    }

    /// The size of a value in bytes, limited to `most` elements.
    fn bytes(&self, value: Value, most: u64) -> u64 {
        let dtype = self.module.value(value).ty.dtype();
        let count = elements(self.module, value).min(most);
        dtype.and_then(|dtype| dtype.storage_bytes(count)).unwrap_or(0)
    }
}

/// True of an operator whose result has the bytes of its operand.
fn is_view(module: &Module, node: Node) -> bool {
    let kind = module.node(node).schema().map(|schema| schema.kind);
    let views = [OpKind::Reshape, OpKind::Flatten, OpKind::Identity, OpKind::Squeeze, OpKind::Unsqueeze];
    kind.is_some_and(|kind| views.contains(&kind))
}

fn is_product(module: &Module, node: Node) -> bool {
    module.node(node).schema().is_none_or(|schema| work(schema.kind) == Work::Product)
}

/// Disjoint sets of indices (union-find).
struct Sets(Vec<usize>);

impl Sets {
    fn new(n: usize) -> Sets {
        Sets((0..n).collect())
    }

    /// The representative of the set.
    fn root(&mut self, mut at: usize) -> usize {
        while self.0[at] != at {
            self.0[at] = self.0[self.0[at]];
            at = self.0[at];
        }
        at
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a.max(b)] = a.min(b);
    }
}
