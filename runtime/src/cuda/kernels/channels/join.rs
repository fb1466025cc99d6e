//! The choice of the channel groups of a graph.
//!
//! Nodes are taken in program order. A node joins the sets of the nodes whose results it reads, and of the nodes that
//! read the same tensor, if the sets can form one group. Sets without a reduction are dissolved, and their nodes are
//! left to the element-wise groups.

use super::items::Item;
use super::space_of;
use super::statistics::Statistics;
use crate::backend::Candidates;
use crate::cuda::kernels::groups::MOST_POINTERS;
use crate::groups::{GraphIndex, Groups};
use crate::kernel::Dims;
use ampc_ir::{Node, Value};
use rustc_hash::FxHashMap;

/// The most nodes and results of a group.
const MOST_NODES: usize = 96;
const MOST_RESULTS: usize = 12;

/// The largest distance in program order between consecutive nodes of a group. Nodes of the forward part and of its
/// gradient are no group: the operands would live too long.
const FARTHEST: usize = 24;

/// The minimum number of elements of a row that a channel group reduces; other kernels reduce shorter rows.
const LONG_ROW: usize = 1 << 13;

/// Chooses the groups among the candidates. `closed` are groups of other nodes.
pub(in crate::cuda::kernels) fn join(
    candidates: &Candidates<'_>,
    index: &GraphIndex<'_>,
    closed: &Groups,
) -> Vec<Vec<Node>> {
    let mut items: FxHashMap<Node, Item> = FxHashMap::default();
    candidates.for_each_site(|site| {
        if let Some(item) = Item::read(site).filter(is_joinable) {
            items.insert(site.view.node, item);
        }
    });
    // The sets of closed groups have no nodes to join.
    let nodes = vec![Vec::new(); closed.open.len()];
    let mut sets = Sets { index, items: &items, groups: closed.clone(), nodes };
    if items.values().any(|item| item.space().is_some()) {
        candidates.nodes.iter().filter(|node| items.contains_key(node)).for_each(|&node| sets.add(node));
    }
    let mut found: Vec<Vec<Node>> = sets.nodes.into_iter().filter(|set| set.len() > 1).collect();
    found.retain(|set| space_of(set.iter().map(|node| &items[node])).is_some());
    found.sort_unstable_by_key(|set| set.last().map(|&node| index.position(node)));
    found
}

/// True of an item that a group may contain: other kernels reduce short rows.
fn is_joinable(item: &Item) -> bool {
    item.space().is_none_or(|space| {
        let first = space.kept.iter().zip(&space.dims).position(|(kept, full)| kept == full && *full != 1);
        first.is_none_or(|axis| axis > 0) || space.inner >= LONG_ROW
    })
}

/// Sets of nodes that may become groups.
struct Sets<'a> {
    index: &'a GraphIndex<'a>,
    items: &'a FxHashMap<Node, Item>,
    /// The set of each node, and the position of each set.
    groups: Groups,
    /// The nodes of each set in program order.
    nodes: Vec<Vec<Node>>,
}

impl Sets<'_> {
    /// Merges a node with the sets that it can form one group with.
    fn add(&mut self, node: Node) {
        let of = |nodes: &mut dyn Iterator<Item = Node>| {
            let mut near: Vec<usize> =
                nodes.filter_map(|node| self.groups.group_of.get(&node).copied()).collect();
            near.retain(|&set| !self.nodes[set].is_empty());
            near.sort_unstable();
            near.dedup();
            near
        };
        let makers = of(&mut self.index.makers_of(node));
        let all = of(&mut self.index.makers_of(node).chain(self.siblings(node)));
        let singles = all.iter().rev().map(|&set| vec![set]);
        let without = |sets: &[usize]| sets.iter().copied().filter(|&set| !self.is_alias(set)).collect();
        let choices = [all.clone(), without(&all), makers.clone(), without(&makers)];
        let choices: Vec<Vec<usize>> = choices.into_iter().chain(singles).collect();
        let found = choices.into_iter().filter(|choice| !choice.is_empty()).find_map(|choice| {
            let mut nodes: Vec<Node> = choice.iter().flat_map(|&set| self.nodes[set].clone()).collect();
            nodes.sort_unstable_by_key(|&node| self.index.position(node));
            nodes.push(node);
            let position = self.joined(&nodes)?;
            Some((choice, nodes, position))
        });
        let (choice, nodes, position) = match found {
            Some(found) => found,
            None => (Vec::new(), vec![node], self.index.position(node)),
        };
        choice.iter().for_each(|&set| self.nodes[set].clear());
        // A set has the same index as its group.
        self.groups.close(&nodes, position);
        self.nodes.push(nodes);
    }

    /// True of a set that consists of one alias.
    fn is_alias(&self, set: usize) -> bool {
        matches!(self.nodes[set][..], [node] if matches!(self.items[&node], Item::Alias(_)))
    }

    /// Nodes with the same dims that read the same tensors.
    fn siblings(&self, node: Node) -> impl Iterator<Item = Node> + '_ {
        let mut shared: Vec<Value> = Vec::new();
        match &self.items[&node] {
            Item::Element(member) => {
                let full = member.operands.iter().flatten().filter(|read| read.dims == member.dims);
                shared.extend(full.map(|read| read.value));
            }
            Item::Reduction(reduction) => shared.push(reduction.from.value),
            Item::Norm(norm) => shared.push(norm.x.value),
            Item::Alias(_) => {}
        }
        // Readers are in program order.
        let position = |node: &Node| self.index.position(*node);
        let first = position(&node).saturating_sub(FARTHEST);
        let near = shared.into_iter().map(move |value| {
            let readers = self.index.readers_of_value(value);
            &readers[readers.partition_point(|reader| position(reader) < first)..]
        });
        near.flat_map(move |readers| readers.iter().take_while(move |&&other| other != node)).copied()
    }

    /// The position of nodes as a group, if they can form one.
    fn joined(&self, nodes: &[Node]) -> Option<usize> {
        if nodes.len() > MOST_NODES || self.index.has_gap(nodes, FARTHEST) {
            return None;
        }
        let items = || nodes.iter().map(|node| &self.items[node]);
        match space_of(items()) {
            Some(space) => {
                Statistics::of(space, items(), false)?;
            }
            None => {
                let mut dims: Option<&Dims> = None;
                for item in items() {
                    let Item::Element(member) = item else { return None };
                    if *dims.get_or_insert(&member.dims) != &member.dims {
                        return None;
                    }
                }
            }
        }
        let interface = self.index.interface(nodes);
        // A value from outside is not a result.
        let is_own = |value: &Value| {
            nodes.iter().any(|node| match &self.items[node] {
                Item::Alias(alias) => alias.to == *value && interface.operands.contains(&alias.from.value),
                _ => false,
            })
        };
        if interface.results.iter().any(is_own) {
            return None;
        }
        let values = interface.operands.len() + interface.results.len();
        let is_small = interface.results.len() <= MOST_RESULTS && values <= MOST_POINTERS;
        is_small.then(|| self.groups.position_between(self.index, nodes, |_| true))?
    }
}
