//! The choice of row groups. A group grows from a reduction or a normalization to the producers of its operands and
//! the readers of its results. All operands of a group must be computable before it, and all its readers after it.
//!
//! Groups and single nodes have positions in one order, as in [`crate::groups`]. A group has the position of one of
//! its nodes, after all its operands and before all its readers. Groups are therefore convex, even if every other
//! group counts as one node.

use super::nodes::{Op, RowNode};
use super::passes::fits;
use super::space::{Class, Program};
use crate::backend::Candidates;
use crate::cuda::kernels::groups::MOST_POINTERS;
use crate::groups::{GraphIndex, Groups};
use crate::plan::Interface;
use ampc_ir::{Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// The maximum number of nodes of a group: compile time grows with the size of the kernel.
const MOST_NODES: usize = 64;

/// The maximum number of results of a group.
const MOST_RESULTS: usize = 10;

/// The maximum distance in program order between consecutive nodes of a group. Operands are live until the group
/// runs.
const FARTHEST: usize = 32;

/// The nodes that may be in row groups, and the groups so far.
struct RowGroups<'a> {
    index: &'a GraphIndex<'a>,
    nodes: FxHashMap<Node, RowNode>,
    /// The positions of groups, by node. Other nodes have their positions in the program.
    positions: FxHashMap<Node, usize>,
    group_of: FxHashMap<Node, usize>,
    groups: Vec<Vec<Node>>,
}

/// Chooses the groups among the candidates. `closed` are groups of other nodes.
pub(in crate::cuda::kernels) fn join(
    candidates: &Candidates<'_>,
    index: &GraphIndex<'_>,
    closed: &Groups,
) -> Vec<Vec<Node>> {
    let mut rows = RowGroups::new(candidates, index);
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

impl<'a> RowGroups<'a> {
    fn new(candidates: &Candidates<'_>, index: &'a GraphIndex<'a>) -> RowGroups<'a> {
        let mut nodes = FxHashMap::default();
        candidates.for_each_site(|site| nodes.extend(RowNode::read(site).map(|node| (site.view.node, node))));
        let (positions, group_of) = (FxHashMap::default(), FxHashMap::default());
        RowGroups { index, nodes, positions, group_of, groups: Vec::new() }
    }

    /// Starts a group with a node and grows it as far as possible.
    fn grow(&mut self, first: Node, space: [usize; 2]) {
        let mut group = vec![first];
        if self.program(&group, space).is_none() {
            return;
        }
        let mut refused: FxHashSet<Node> = FxHashSet::default();
        'grown: loop {
            let mut near: Vec<Node> =
                self.index.makers_outside(&group).chain(self.index.readers_outside(&group)).collect();
            near.retain(|node| self.nodes.contains_key(node) && !refused.contains(node));
            near.sort_unstable_by_key(|&node| self.index.position(node));
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
            self.index.readers_outside(&[node]).for_each(add);
        }
        more.sort_unstable_by_key(|&node| self.index.position(node));
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

    fn program(&self, nodes: &[Node], space: [usize; 2]) -> Option<Program<'_>> {
        let nodes: Option<Vec<&RowNode>> = nodes.iter().map(|node| self.nodes.get(node)).collect();
        Program::new(nodes?, space)
    }

    /// The position of nodes in program order as a group, if they can form one.
    fn joined(&self, nodes: &[Node], space: [usize; 2]) -> Option<usize> {
        if nodes.len() > MOST_NODES || self.index.has_gap(nodes, FARTHEST) {
            return None;
        }
        let position_of =
            |node: Node| self.positions.get(&node).copied().or_else(|| self.index.find_position(node));
        let position = self.index.position_between(nodes, position_of, |_| true)?;
        let program = self.program(nodes, space)?;
        let interface = self.index.interface(nodes);
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
}
