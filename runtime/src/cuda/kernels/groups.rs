//! Groups of the CUDA backend, in order of precedence:
//!
//! - attentions, which are graphs of cuDNN;
//! - products and convolutions with adjacent nodes, which are operations of a library ([`library`]);
//! - reductions and normalizations along rows with adjacent element-wise nodes, which are one kernel
//!   ([`row_groups`]);
//! - batch statistics and their gradients, which are channel groups ([`channels`]);
//! - connected element-wise nodes, [`scalars`], and the optimizers of a step, each one kernel.
//!
//! A group of element-wise nodes loads each value from outside once, rounds each node to its element type, and stores
//! each result that is read outside. Such a group gives the same bits as its separate nodes.

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
use crate::groups::{GraphIndex, Groups, Joiner, Limits, Order, unsupported_group};
use crate::kernel::{KernelError, Prepared, Result, Site};
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::{Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// The maximum number of operands and results of a kernel. A thread holds 16 bytes of each in 4 registers, and a
/// kernel of more than 128 registers occupies at most half of the threads of a multiprocessor.
pub(super) const MOST_POINTERS: usize = 24;

/// The maximum number of results of a group.
const MOST_RESULTS: usize = 8;

const LIMITS: Limits = Limits {
    // Compile time grows with the size of the kernel.
    nodes: 48,
    operands: MOST_POINTERS - 1,
    results: MOST_RESULTS,
    // Operands stay live until the group runs, so the limit keeps forward and backward nodes apart.
    farthest: 16,
    order: Order::Any,
};

/// Chooses the groups among the candidates.
pub(in crate::cuda) fn join(shared: &Arc<Shared>, candidates: &Candidates<'_>) -> Vec<Vec<Node>> {
    let index = &GraphIndex::new(candidates.module, candidates.graph);
    let mut joined = GroupList::new(candidates, index);
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
    // Other groups require the dims of the model. Element-wise nodes have the same kernels for both layouts.
    let in_order = |mut nodes: Vec<Node>| {
        nodes.retain(|node| !candidates.channels_last.contains(node));
        nodes
    };
    let rest = in_order(joined.rest());
    joined.add(row_groups::join(&Candidates { nodes: &rest, ..*candidates }, index, &joined.closed));
    // Sums in these groups do not round their terms.
    if !shared.exact_rounding {
        let rest = joined.rest();
        joined.add(channels::join(&Candidates { nodes: &rest, ..*candidates }, index, &joined.closed));
    }
    let rest = in_order(joined.rest());
    let GroupList { lists, closed, .. } = joined;
    join_elements(&Candidates { nodes: &rest, ..*candidates }, index, lists, closed)
}

/// Adds the groups of element-wise nodes, scalars and optimizers to `lists`, the groups of other nodes, which have the
/// positions `closed`.
fn join_elements(
    candidates: &Candidates<'_>,
    index: &GraphIndex<'_>,
    mut lists: Vec<Vec<Node>>,
    closed: Groups,
) -> Vec<Vec<Node>> {
    // No element-wise node is adjacent to these groups.
    let open: FxHashSet<Node> = candidates.nodes.iter().copied().collect();
    let is_apart = |site: &Site<'_>| {
        let mut results = site.view.data().results().iter().flatten();
        let maker = |i: usize| site.view.operand(i).and_then(|value| candidates.module.producer(value));
        results.all(|&value| candidates.module.uses(value).next().is_none())
            && [1, 2].into_iter().all(|i| maker(i).is_none_or(|(node, _)| !open.contains(&node)))
    };
    let mut optimizers: Vec<Optimizers> = Vec::new();
    let mut of_one: Vec<Node> = Vec::new();
    let joiner = Joiner::new(candidates, index, LIMITS, |site| {
        if is_optimizer(site.kind()) || (optimizers::is_selection(site) && is_apart(site)) {
            Optimizers::add(&mut optimizers, site);
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
    lists.extend(scalars::join(candidates, index, &lists, &of_one));
    for Optimizers { mut nodes, .. } in optimizers {
        let downstream = downstream(index, &lists, &nodes);
        nodes.retain(|node| !downstream.contains(node));
        if nodes.len() > 1 {
            lists.push(nodes);
        }
    }
    lists
}

/// The values that pairs of groups hand over.
pub(in crate::cuda) fn carries(candidates: &Candidates<'_>, groups: &[Vec<Node>]) -> Vec<Carry> {
    attention::carries(candidates, groups)
}

/// The groups chosen so far.
struct GroupList<'a> {
    candidates: Candidates<'a>,
    index: &'a GraphIndex<'a>,
    lists: Vec<Vec<Node>>,
    /// The groups with their positions in the program.
    closed: Groups,
}

impl<'a> GroupList<'a> {
    fn new(candidates: &Candidates<'a>, index: &'a GraphIndex<'a>) -> GroupList<'a> {
        GroupList { candidates: *candidates, index, lists: Vec::new(), closed: Groups::default() }
    }

    /// Adds the groups that have a valid position among the nodes and groups so far.
    fn add(&mut self, groups: Vec<Vec<Node>>) {
        self.add_before(groups, &|_| true);
    }

    /// Adds the groups as [`add`](Self::add), with positions before only those readers for which `runs` is true.
    fn add_before(&mut self, groups: Vec<Vec<Node>>, runs: &dyn Fn(Node) -> bool) {
        for mut nodes in groups {
            nodes.sort_unstable_by_key(|&node| self.index.position(node));
            if let Some(position) = self.closed.position_between(self.index, &nodes, runs) {
                self.closed.close(&nodes, position);
                self.lists.push(nodes);
            }
        }
    }

    /// The candidates that are not in a group yet.
    fn rest(&self) -> Vec<Node> {
        without(self.candidates.nodes, &self.lists)
    }
}

/// The nodes that are in none of the lists, in order.
fn without(nodes: &[Node], lists: &[Vec<Node>]) -> Vec<Node> {
    let taken: FxHashSet<Node> = lists.iter().flatten().copied().collect();
    nodes.iter().copied().filter(|node| !taken.contains(node)).collect()
}

/// A set of optimizers that may form a group.
struct Optimizers {
    first: Optimizer,
    scalars: Vec<Option<Value>>,
    nodes: Vec<Node>,
}

impl Optimizers {
    /// Adds an optimizer that has a kernel to the set that it can be one group with.
    fn add(sets: &mut Vec<Optimizers>, site: &Site<'_>) {
        let Ok(optimizer) = Optimizer::read(site) else { return };
        let scalars: Vec<Option<Value>> = optimizer.scalars().map(|i| site.view.operand(i)).collect();
        let fits = |set: &&mut Optimizers| set.scalars == scalars && set.first.has_text_of(&optimizer);
        match sets.iter_mut().find(fits) {
            Some(set) => set.nodes.push(site.view.node),
            None => sets.push(Optimizers { first: optimizer, scalars, nodes: vec![site.view.node] }),
        }
    }
}

/// Nodes that depend on nodes of `nodes`, directly or through a group.
fn downstream(index: &GraphIndex<'_>, groups: &[Vec<Node>], nodes: &[Node]) -> FxHashSet<Node> {
    let mut group_of: FxHashMap<Node, &[Node]> = FxHashMap::default();
    for group in groups {
        group_of.extend(group.iter().map(|&node| (node, &group[..])));
    }
    let mut found: FxHashSet<Node> = FxHashSet::default();
    let mut open = nodes.to_vec();
    while let Some(node) = open.pop() {
        for reader in index.readers_of(node) {
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
    let members = members.ok_or_else(unsupported_group)?;
    if group.operands.len() + group.results.len() > MOST_POINTERS
        || members.windows(2).any(|pair| pair[0].dims != pair[1].dims)
    {
        return Err(KernelError::unsupported("groups of this many operands, or of several dims"));
    }
    of_members(shared, &members, |value| group.operand(value), group.results)
}
