//! The choice of row groups. A group grows from a reduction or a normalization to the producers of its operands and
//! the readers of its results. All operands of a group must be computable before it, and all its readers after it.
//!
//! Groups and single nodes have positions in one order, as in [`crate::groups`]. A group has the position of one of
//! its nodes, after all its operands and before all its readers. Groups are therefore convex, even if every other
//! group counts as one node.

use super::MOST_POINTERS;
use super::nodes::{Op, RowNode};
use super::passes::fits;
use super::space::{Class, Program};
use crate::backend::Candidates;
use crate::groups::Groups;
use crate::kernel::Site;
use crate::plan::Interface;
use crate::room::Room;
use ampc_ir::views::NodeView;
use ampc_ir::{Module, Node, Type, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// The maximum number of nodes of a group: compile time grows with the size of the kernel.
const MOST_NODES: usize = 64;

/// The maximum number of results of a group.
const MOST_RESULTS: usize = 10;

/// The maximum distance in program order between consecutive nodes of a group. Operands are live until the group
/// runs.
const FARTHEST: usize = 32;

/// The nodes of a graph, those that may be in groups, and the groups so far.
struct Rows<'a> {
    module: &'a Module,
    nodes: FxHashMap<Node, RowNode>,
    /// The program positions of nodes.
    places: FxHashMap<Node, usize>,
    readers: FxHashMap<Value, Vec<Node>>,
    /// Values that are read after all nodes have run.
    roots: FxHashSet<Value>,
    /// The positions of groups and single nodes, by node.
    positions: FxHashMap<Node, usize>,
    group_of: FxHashMap<Node, usize>,
    groups: Vec<Vec<Node>>,
}

/// Chooses the groups among the candidates. `closed` are groups of other nodes.
pub(in crate::cuda::kernels) fn join(candidates: &Candidates<'_>, closed: &Groups) -> Vec<Vec<Node>> {
    let mut rows = Rows::new(candidates);
    rows.positions.extend(closed.positions());
    for &node in candidates.nodes {
        // Column sums without other reductions are channel sums, which have their own groups.
        let anchor = rows.nodes.get(&node).filter(|node| !matches!(node.op, Op::Sums { .. }));
        let space = anchor.and_then(|node| node.space);
        if let Some(space) = space.filter(|_| !rows.group_of.contains_key(&node)) {
            rows.grow(node, space);
        }
    }
    rows.groups.retain(|nodes| nodes.len() > 1);
    // Sorts by position; each group has a position between those of its neighbors.
    rows.groups.sort_unstable_by_key(|nodes| rows.positions[&nodes[0]]);
    rows.groups
}

impl<'a> Rows<'a> {
    fn new(candidates: &Candidates<'a>) -> Rows<'a> {
        let Candidates { module, graph, nodes: of_graph, .. } = *candidates;
        let mut places = FxHashMap::default();
        let mut readers: FxHashMap<Value, Vec<Node>> = FxHashMap::default();
        for (at, node) in module.nodes(graph).enumerate() {
            places.insert(node, at);
            for &value in module.node(node).operands().iter().flatten() {
                readers.entry(value).or_default().push(node);
            }
        }
        let data = module.graph(graph);
        let next = data.states.iter().map(|&(_, next)| next);
        let roots = data.outputs().iter().map(|output| output.value).chain(next).collect();
        let mut nodes = FxHashMap::default();
        for &node in of_graph {
            let results: Vec<Option<Type>> =
                module.node(node).results().iter().map(|v| v.map(|v| module.value(v).ty.clone())).collect();
            let Some(view) = NodeView::new(module, node) else { continue };
            let site =
                Site { view, source: node, results: &results, channels_last: false, room: Room::of(0) };
            if let Some(read) = RowNode::read(&site) {
                nodes.insert(node, read);
            }
        }
        let positions = places.clone();
        Rows {
            module,
            nodes,
            places,
            readers,
            roots,
            positions,
            group_of: FxHashMap::default(),
            groups: Vec::new(),
        }
    }

    /// Starts a group with a node and grows it as far as possible.
    fn grow(&mut self, first: Node, space: [usize; 2]) {
        let mut group = vec![first];
        if self.program(&group, space).is_none() {
            return;
        }
        let mut refused: FxHashSet<Node> = FxHashSet::default();
        'grown: loop {
            let mut near: Vec<Node> = self.makers(&group).into_iter().chain(self.readers(&group)).collect();
            near.retain(|node| self.nodes.contains_key(node) && !refused.contains(node));
            near.sort_unstable_by_key(|node| self.places[node]);
            near.dedup();
            for node in near {
                let more = self.with(&group, node);
                match self.joined(&more, space) {
                    Some(position) => {
                        group = more;
                        self.settle(&group, position);
                        refused.clear();
                        continue 'grown;
                    }
                    None => {
                        refused.insert(node);
                    }
                }
            }
            break;
        }
    }

    /// The nodes of a group with another node and the nodes of its group. A view is added with its readers.
    fn with(&self, group: &[Node], node: Node) -> Vec<Node> {
        let mut more: Vec<Node> = group.to_vec();
        let mut add = |node: Node| match self.group_of.get(&node) {
            Some(&other) => more.extend(&self.groups[other]),
            None => more.push(node),
        };
        add(node);
        if self.nodes[&node].is_view() {
            self.readers(&[node]).into_iter().for_each(add);
        }
        more.sort_unstable_by_key(|node| self.places[node]);
        more.dedup();
        more
    }

    /// Makes nodes one group at a position.
    fn settle(&mut self, nodes: &[Node], position: usize) {
        let old: FxHashSet<usize> =
            nodes.iter().filter_map(|node| self.group_of.get(node).copied()).collect();
        old.into_iter().for_each(|group| self.groups[group].clear());
        for &node in nodes {
            self.group_of.insert(node, self.groups.len());
            self.positions.insert(node, position);
        }
        self.groups.push(nodes.to_vec());
    }

    /// The producers outside of the operands of these nodes.
    fn makers(&self, nodes: &[Node]) -> Vec<Node> {
        let operands = nodes.iter().flat_map(|&node| self.module.node(node).operands()).flatten();
        let makers = operands.filter_map(|&value| self.module.producer(value).map(|(maker, _)| maker));
        makers.filter(|maker| !nodes.contains(maker)).collect()
    }

    /// The readers outside of the results of these nodes.
    fn readers(&self, nodes: &[Node]) -> Vec<Node> {
        let results = nodes.iter().flat_map(|&node| self.module.node(node).results()).flatten();
        let readers = results.filter_map(|value| self.readers.get(value)).flatten();
        readers.copied().filter(|reader| !nodes.contains(reader)).collect()
    }

    fn program(&self, nodes: &[Node], space: [usize; 2]) -> Option<Program<'_>> {
        let nodes: Option<Vec<&RowNode>> = nodes.iter().map(|node| self.nodes.get(node)).collect();
        Program::new(nodes?, space)
    }

    /// The position of nodes in program order as a group, if they can form one.
    fn joined(&self, nodes: &[Node], space: [usize; 2]) -> Option<usize> {
        let is_far = |pair: &[Node]| self.places[&pair[1]] - self.places[&pair[0]] > FARTHEST;
        if nodes.len() > MOST_NODES || nodes.windows(2).any(is_far) {
            return None;
        }
        let position = self.position(nodes)?;
        let program = self.program(nodes, space)?;
        let interface = Interface::of(self.module, nodes, |value| {
            let outside =
                self.readers.get(&value).is_some_and(|r| r.iter().any(|reader| !nodes.contains(reader)));
            outside || self.roots.contains(&value)
        });
        let Interface { operands, results, .. } = &interface;
        // A view that is read outside is free.
        let is_view =
            |value: &Value| program.makers.get(value).is_some_and(|&(at, _)| program.nodes[at].is_view());
        let is_small = results.len() <= MOST_RESULTS && operands.len() + results.len() <= MOST_POINTERS;
        let can_be = |&value: &Value| program.can_be_result(value) && !is_view(&value);
        // If a row has few elements, other kernels compute column sums better.
        let is_wide = program.n >= 32 || !program.classes.contains(&Class::Sums);
        (is_small && is_wide && results.iter().all(can_be) && fits(&program, results)).then_some(position)
    }

    /// The position of the last node that comes after all producers of operands outside of the group, and before all
    /// its readers.
    fn position(&self, nodes: &[Node]) -> Option<usize> {
        let at = |node: &Node| self.positions.get(node).copied();
        let behind = self.makers(nodes).iter().filter_map(at).max();
        let before = self.readers(nodes).iter().filter_map(at).min();
        let is_between =
            |at: &usize| behind.is_none_or(|other| other < *at) && before.is_none_or(|other| *at < other);
        nodes.iter().rev().map(|node| self.places[node]).find(is_between)
    }
}
