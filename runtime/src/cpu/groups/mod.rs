//! Groups of the CPU backend: element-wise operators that read each other become one loop over blocks of elements.
//!
//! A group has nodes with an [`Expression`](ampc_ir::views::expression::Expression), whose results have the same dims and
//! are f32, f16, bf16 or bool. A block of each operand is read and widened once, every node of the group is computed on
//! the block and rounded to its element type, and a block of each result is stored. Results have the bits of the nodes
//! one by one; values that only the group reads have no place in memory.

mod blocks;
mod program;
mod run;

use crate::backend::{Candidates, GroupSite};
use crate::kernel::{KernelError, Prepared, Result, Site};
use crate::room::Room;
use ampc_ir::views::NodeView;
use ampc_ir::{Node, Type, Value};
use program::{Member, Program};
use run::MOST_SLOTS;
use rustc_hash::{FxHashMap, FxHashSet};

/// The most nodes of a group.
const MOST_NODES: usize = 32;

/// The most results of a group, and the most operands: lists of so many are no allocations.
const MOST_RESULTS: usize = 6;
const MOST_OPERANDS: usize = 16;

/// How far a node of a group may stand from the next one in the program: operands live until the last node, so that nodes
/// of forward and backward parts are no group.
const FARTHEST: usize = 4;

/// The groups of the candidates.
pub(super) fn join(candidates: &Candidates<'_>) -> Vec<Vec<Node>> {
    let joiner = Joiner::new(candidates);
    let mut open: Vec<Open> = Vec::new();
    let mut group_of: FxHashMap<Node, usize> = FxHashMap::default();
    for &node in candidates.nodes {
        let Some(member) = joiner.members.get(&node) else { continue };
        let mut near: Vec<usize> =
            joiner.makers(node).filter_map(|maker| group_of.get(&maker).copied()).collect();
        near.sort_unstable();
        near.dedup();
        near.retain(|&group| open[group].dims == member.dims[..]);
        // All groups that the node reads become one if they can; otherwise it joins the latest that it can.
        let sets = std::iter::once(near.clone()).chain(near.iter().rev().map(|&group| vec![group]));
        let found = sets.filter(|set| !set.is_empty()).find_map(|set| {
            let mut nodes: Vec<Node> = set.iter().flat_map(|&group| open[group].nodes.clone()).collect();
            nodes.sort_unstable_by_key(|node| joiner.position[node]);
            nodes.push(node);
            (nodes.len() <= MOST_NODES && joiner.is_joined(&nodes)).then_some((set, nodes))
        });
        match found {
            Some((set, nodes)) => {
                set.iter().for_each(|&group| open[group].nodes.clear());
                nodes.iter().for_each(|&node| {
                    group_of.insert(node, set[0]);
                });
                open[set[0]].nodes = nodes;
            }
            None => {
                group_of.insert(node, open.len());
                open.push(Open { dims: member.dims.to_vec(), nodes: vec![node] });
            }
        }
    }
    open.into_iter().map(|open| open.nodes).filter(|nodes| nodes.len() > 1).collect()
}

/// A group that more nodes may join.
struct Open {
    dims: Vec<usize>,
    nodes: Vec<Node>,
}

struct Joiner<'a> {
    candidates: &'a Candidates<'a>,
    members: FxHashMap<Node, Member>,
    /// Where nodes stand in the program.
    position: FxHashMap<Node, usize>,
    /// The nodes that read each value.
    readers: FxHashMap<Value, Vec<Node>>,
    /// Values that are read when all nodes are done.
    roots: FxHashSet<Value>,
}

impl<'a> Joiner<'a> {
    fn new(candidates: &'a Candidates<'a>) -> Joiner<'a> {
        let Candidates { module, graph, nodes } = candidates;
        let mut position = FxHashMap::default();
        let mut readers: FxHashMap<Value, Vec<Node>> = FxHashMap::default();
        for (at, node) in module.nodes(*graph).enumerate() {
            position.insert(node, at);
            for &value in module.node(node).operands().iter().flatten() {
                readers.entry(value).or_default().push(node);
            }
        }
        let data = module.graph(*graph);
        let next = data.states.iter().map(|&(_, next)| next);
        let roots = data.outputs().iter().map(|output| output.value).chain(next).collect();
        let mut members = FxHashMap::default();
        for &node in *nodes {
            let results: Vec<Option<Type>> =
                module.node(node).results().iter().map(|v| v.map(|v| module.value(v).ty.clone())).collect();
            let Some(view) = NodeView::new(module, node) else { continue };
            if let Some(member) =
                Member::read(&Site { view, source: node, results: &results, room: Room::of(0) })
            {
                members.insert(node, member);
            }
        }
        Joiner { candidates, members, position, readers, roots }
    }

    /// The nodes that make the operands of a node.
    fn makers(&self, node: Node) -> impl Iterator<Item = Node> {
        let module = self.candidates.module;
        let operands = module.node(node).operands().iter().flatten();
        operands.filter_map(|&value| module.producer(value).map(|(maker, _)| maker))
    }

    /// True if nodes in program order can be a group: everything that they read from outside stands before the first of
    /// them, and they have a program.
    fn is_joined(&self, nodes: &[Node]) -> bool {
        let first = self.position[&nodes[0]];
        if nodes.windows(2).any(|pair| self.position[&pair[1]] - self.position[&pair[0]] > FARTHEST) {
            return false;
        }
        let is_early =
            |maker: Node| nodes.contains(&maker) || self.position.get(&maker).is_none_or(|&at| at < first);
        if !nodes.iter().all(|&node| self.makers(node).all(is_early)) {
            return false;
        }
        let module = self.candidates.module;
        let interface = crate::plan::Interface::of(module, nodes, |value| {
            let outside =
                self.readers.get(&value).is_some_and(|r| r.iter().any(|reader| !nodes.contains(reader)));
            outside || self.roots.contains(&value)
        });
        if interface.results.len() > MOST_RESULTS || interface.operands.len() > MOST_OPERANDS {
            return false;
        }
        let members: Vec<&Member> = nodes.iter().filter_map(|node| self.members.get(node)).collect();
        let program = Program::new(&members, &interface.operands, &interface.results);
        program.is_some_and(|program| program.n_slots <= MOST_SLOTS)
    }
}

/// The kernel of a group.
pub(super) fn prepare(group: &GroupSite<'_>) -> Result<Prepared> {
    let members: Option<Vec<Member>> = group.sites.iter().map(Member::read).collect();
    let members = members.ok_or_else(|| KernelError::unsupported("groups of other operators"))?;
    let members: Vec<&Member> = members.iter().collect();
    let program = Program::new(&members, group.operands, group.results)
        .ok_or_else(|| KernelError::unsupported("groups of operators of different dims"))?;
    let (mut first, mut others) = (Vec::new(), Vec::new());
    for result in 0..group.results.len() {
        for operand in (0..group.operands.len()).filter(|&operand| program.fits(result, operand)) {
            match result {
                0 => first.push(operand),
                _ => others.push((result, operand)),
            }
        }
    }
    Ok(Prepared::new(move |io| program.run(io)).in_place(&first).others_in_place(&others))
}
