//! Groups of the CUDA backend: attentions are graphs of cuDNN, products and convolutions with what stands around them are
//! operations of a library ([`library`]), batch statistics and their gradients are channel groups ([`channels`]), reductions and
//! normalizations along rows are one kernel with the element-wise nodes around them ([`row_groups`]), other element-wise nodes
//! that read each other are one kernel, and so are [`scalars`] and the optimizers of a step.
//!
//! In a group of element-wise nodes, each value from outside is loaded once, each node rounds to its element type, and each
//! result that is read outside is stored. Such a group has the bits of its nodes one by one.

use super::attention;
use super::channels;
use super::expressions::{is_known, of_members};
use super::library;
use super::optimizers::{self, Optimizer, is_optimizer};
use super::row_groups;
use super::scalars;
use crate::backend::{Candidates, Carry, GroupSite};
use crate::cuda::Shared;
use crate::elementwise::Member;
use crate::groups::{Groups, Joiner, Limits, Order};
use crate::kernel::{KernelError, Prepared, Result, Site};
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::{Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// The most operands and results of a kernel: a thread has 16 bytes of each in 4 registers, and kernels of more than 128
/// registers leave half of the threads of a multiprocessor unused.
const MOST_POINTERS: usize = 24;

/// The most results of a group.
const MOST_RESULTS: usize = 8;

const LIMITS: Limits = Limits {
    // The time to compile a kernel grows with its text.
    nodes: 48,
    operands: MOST_POINTERS - 1,
    results: MOST_RESULTS,
    // Operands live until the group runs, so that nodes of forward and backward parts are no group.
    farthest: 16,
    order: Order::Any,
};

/// The groups of the candidates.
pub(in crate::cuda) fn join(shared: &Arc<Shared>, candidates: &Candidates<'_>) -> Vec<Vec<Node>> {
    let mut joined = GroupList::new(candidates);
    if !shared.exact_rounding {
        // The dims of a value of a gradient may be read to make its mask. Nodes that read dims are folded.
        let all: FxHashSet<Node> = candidates.nodes.iter().copied().collect();
        let reads_dims = |node: Node| {
            NodeView::new(candidates.module, node).is_some_and(|view| view.kind() == OpKind::Shape)
        };
        let runs = |node: Node| all.contains(&node) || !reads_dims(node);
        joined.add_before(attention::join(shared, candidates), &runs);
    }
    joined.add(library::join(shared, &Candidates { nodes: &joined.rest(), ..*candidates }));
    // Other groups read the dims of the model. Element-wise nodes have the same kernels for both layouts.
    let in_order = |mut nodes: Vec<Node>| {
        nodes.retain(|node| !candidates.channels_last.contains(node));
        nodes
    };
    let rest = in_order(joined.rest());
    joined.add(row_groups::join(&Candidates { nodes: &rest, ..*candidates }, &joined.closed));
    // The sums of these groups do not round their terms.
    if !shared.exact_rounding {
        joined.add(channels::join(&Candidates { nodes: &joined.rest(), ..*candidates }, &joined.closed));
    }
    let rest = in_order(joined.rest());
    let GroupList { mut lists, closed, .. } = joined;
    let candidates = &Candidates { nodes: &rest, ..*candidates };
    // No element-wise node is next to these.
    let open: FxHashSet<Node> = rest.iter().copied().collect();
    let is_apart = |site: &Site<'_>| {
        let mut results = site.view.data().results().iter().flatten();
        let maker = |i: usize| site.view.operand(i).and_then(|value| candidates.module.producer(value));
        results.all(|&value| candidates.module.uses(value).next().is_none())
            && [1, 2].into_iter().all(|i| maker(i).is_none_or(|(node, _)| !open.contains(&node)))
    };
    let mut optimizers: Vec<Optimizers> = Vec::new();
    let mut of_one: Vec<Node> = Vec::new();
    let joiner = Joiner::new(candidates, LIMITS, |site| {
        if is_optimizer(site.kind()) || (optimizers::is_selection(site) && is_apart(site)) {
            let node = Optimizer::read(site).ok()?;
            let scalars: Vec<Option<Value>> = node.scalars().map(|i| site.view.operand(i)).collect();
            let same = |set: &&mut Optimizers| set.scalars == scalars && set.first.has_text_of(&node);
            match optimizers.iter_mut().find(same) {
                Some(set) => set.nodes.push(site.view.node),
                None => optimizers.push(Optimizers { first: node, scalars, nodes: vec![site.view.node] }),
            }
            return None;
        }
        if scalars::is_scalar(site) {
            of_one.push(site.view.node);
            return None;
        }
        Member::read(site, is_known)
    });
    let groups = joiner
        .groups(closed, |_, interface| interface.operands.len() + interface.results.len() <= MOST_POINTERS);
    lists.extend(groups.into_lists());
    lists.extend(scalars::join(candidates, &lists, &of_one));
    for Optimizers { mut nodes, .. } in optimizers {
        let behind = behind(&joiner, &lists, &nodes);
        nodes.retain(|node| !behind.contains(node));
        if nodes.len() > 1 {
            lists.push(nodes);
        }
    }
    lists
}

/// The values that pairs of groups carry.
pub(in crate::cuda) fn carries(candidates: &Candidates<'_>, groups: &[Vec<Node>]) -> Vec<Carry> {
    attention::carries(candidates, groups)
}

/// The groups that further groups are made beside.
struct GroupList<'a> {
    candidates: Candidates<'a>,
    joiner: Joiner<'a>,
    lists: Vec<Vec<Node>>,
    /// The groups with their positions.
    closed: Groups,
}

impl<'a> GroupList<'a> {
    fn new(candidates: &'a Candidates<'a>) -> GroupList<'a> {
        let joiner = Joiner::new(candidates, LIMITS, |_| None);
        GroupList { candidates: *candidates, joiner, lists: Vec::new(), closed: Groups::default() }
    }

    /// Adds those groups that have a position among the nodes and groups so far.
    fn add(&mut self, groups: Vec<Vec<Node>>) {
        self.add_before(groups, &|_| true);
    }

    /// As [`add`](Self::add), with positions before those readers for which `runs` is true.
    fn add_before(&mut self, groups: Vec<Vec<Node>>, runs: &dyn Fn(Node) -> bool) {
        for mut nodes in groups {
            nodes.sort_unstable_by_key(|node| self.joiner.position[node]);
            if let Some(position) = self.joiner.between_runs(&nodes, &self.closed, runs) {
                self.closed.close(&nodes, position);
                self.lists.push(nodes);
            }
        }
    }

    /// The candidates that are in no group.
    fn rest(&self) -> Vec<Node> {
        without(self.candidates.nodes, &self.lists)
    }
}

/// The nodes that are in no list, in order.
fn without(nodes: &[Node], lists: &[Vec<Node>]) -> Vec<Node> {
    let taken: FxHashSet<Node> = lists.iter().flatten().copied().collect();
    nodes.iter().copied().filter(|node| !taken.contains(node)).collect()
}

/// Optimizers that may be one group.
struct Optimizers {
    first: Optimizer,
    scalars: Vec<Option<Value>>,
    nodes: Vec<Node>,
}

/// The nodes that run behind some of these nodes: they read them, or a node of their group does, or of a group between.
fn behind(joiner: &Joiner<'_>, groups: &[Vec<Node>], nodes: &[Node]) -> FxHashSet<Node> {
    let mut group_of: FxHashMap<Node, &[Node]> = FxHashMap::default();
    for group in groups {
        group_of.extend(group.iter().map(|&node| (node, &group[..])));
    }
    let mut found: FxHashSet<Node> = FxHashSet::default();
    let mut open = nodes.to_vec();
    while let Some(node) = open.pop() {
        for reader in joiner.readers_of(node) {
            if found.contains(&reader) {
                continue;
            }
            let group = group_of.get(&reader).copied();
            for &reader in group.unwrap_or(&[reader]) {
                found.insert(reader);
                open.push(reader);
            }
        }
    }
    found
}

/// The kernel of a group.
pub(in crate::cuda) fn prepare(shared: &Arc<Shared>, group: &GroupSite<'_>) -> Result<Prepared> {
    if group.sites.iter().all(|site| is_optimizer(site.kind())) {
        return optimizers::of_group(shared, group);
    }
    if group.sites.iter().all(optimizers::is_selection)
        && group.results.len() == group.sites.len()
        && group
            .sites
            .iter()
            .flat_map(|site| site.view.data().operands())
            .flatten()
            .all(|value| group.operands.contains(value))
        && let Ok(prepared) = optimizers::of_group(shared, group)
    {
        return Ok(prepared);
    }
    if let Some(prepared) = attention::prepare(shared, group)? {
        return Ok(prepared);
    }
    if let Some(prepared) = library::prepare(shared, group) {
        return prepared;
    }
    // Reductions of long rows are channel groups.
    let rows = row_groups::prepare(shared, group);
    let prepared = match rows {
        Some(Ok(_)) => rows,
        _ => channels::prepare(shared, group).or(rows),
    };
    if let Some(prepared) = prepared {
        return prepared;
    }
    if let Some(prepared) = scalars::prepare(shared, group) {
        return prepared;
    }
    let members =
        group.sites.iter().map(|site| Member::read(site, is_known)).collect::<Option<Vec<Member>>>();
    let members = members.ok_or_else(|| KernelError::unsupported("groups of other operators"))?;
    if group.operands.len() + group.results.len() > MOST_POINTERS
        || members.windows(2).any(|pair| pair[0].dims != pair[1].dims)
    {
        return Err(KernelError::unsupported("groups of so many operands, or of several dims"));
    }
    let operand_of = |value| group.operands.iter().position(|&operand| operand == value);
    of_members(shared, &members, operand_of, group.results)
}
