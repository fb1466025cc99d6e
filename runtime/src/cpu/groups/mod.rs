//! Groups of the CPU backend: element-wise operators that read each other become one loop over blocks of elements.
//!
//! A group has nodes with an [`Expression`](ampc_ir::views::expression::Expression), whose results have the same dims and
//! are f32, f16, bf16 or bool. A block of each operand is read and widened once, every node of the group is computed on
//! the block and rounded to its element type, and a block of each result is stored. Results have the bits of the nodes
//! one by one, except that a NaN may have another sign; values that only the group reads have no place in memory.
//!
//! A group may begin with a product or a convolution ([`products`]).

mod blocks;
mod products;
mod program;
mod roundings;
mod run;

use crate::backend::{Candidates, GroupSite};
use crate::kernel::{Dims, KernelError, Prepared, Result, Site};
use crate::plan::Interface;
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
    for &node in candidates.nodes {
        if let Some((group, nodes)) = joiner.with_product(node, &group_of, &open) {
            open[group].nodes = nodes;
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
    /// Products and convolutions that a group may begin with, and the dims of their results.
    products: FxHashMap<Node, Dims>,
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
        let (mut members, mut products) = (FxHashMap::default(), FxHashMap::default());
        for &node in *nodes {
            let results: Vec<Option<Type>> =
                module.node(node).results().iter().map(|v| v.map(|v| module.value(v).ty.clone())).collect();
            let Some(view) = NodeView::new(module, node) else { continue };
            let site = Site { view, source: node, results: &results, room: Room::of(0) };
            if let Some(member) = Member::read(&site) {
                members.insert(node, member);
            } else if let Some(dims) = products::dims_of(&site) {
                products.insert(node, dims);
            }
        }
        Joiner { candidates, members, products, position, readers, roots }
    }

    /// The group that reads the result of a product, with the product as its first node: all readers are in the group,
    /// which has one result, of the same dims.
    fn with_product(
        &self,
        product: Node,
        group_of: &FxHashMap<Node, usize>,
        open: &[Open],
    ) -> Option<(usize, Vec<Node>)> {
        let module = self.candidates.module;
        let dims = self.products.get(&product)?;
        let &[Some(value)] = module.node(product).results() else { return None };
        let readers = self.readers.get(&value).filter(|_| !self.roots.contains(&value))?;
        let group = *group_of.get(readers.first()?)?;
        let Open { dims: group_dims, nodes } = &open[group];
        let is_near = self.position[nodes.first()?].abs_diff(self.position[&product]) <= FARTHEST;
        let begins_with_product = nodes.iter().any(|node| self.products.contains_key(node));
        if group_dims[..] != dims[..]
            || !is_near
            || begins_with_product
            || readers.iter().any(|reader| !nodes.contains(reader))
        {
            return None;
        }
        let mut all = nodes.clone();
        all.push(product);
        all.sort_unstable_by_key(|node| self.position[node]);
        let interface = self.interface(&all);
        let members: Vec<&Member> = nodes.iter().filter_map(|node| self.members.get(node)).collect();
        let dtype = module.value(value).ty.dtype()?;
        let program = Program::new(&members, &interface.operands, &interface.results, Some((value, dtype)))?;
        let fits = interface.results.len() == 1
            && interface.operands.len() <= MOST_OPERANDS
            && program.n_slots <= MOST_SLOTS;
        fits.then_some((group, all))
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
        let interface = self.interface(nodes);
        if interface.results.len() > MOST_RESULTS || interface.operands.len() > MOST_OPERANDS {
            return false;
        }
        let members: Vec<&Member> = nodes.iter().filter_map(|node| self.members.get(node)).collect();
        let program = Program::new(&members, &interface.operands, &interface.results, None);
        program.is_some_and(|program| program.n_slots <= MOST_SLOTS)
    }

    /// The values that nodes read from outside, and the values that are read outside.
    fn interface(&self, nodes: &[Node]) -> Interface {
        Interface::of(self.candidates.module, nodes, |value| {
            let outside =
                self.readers.get(&value).is_some_and(|r| r.iter().any(|reader| !nodes.contains(reader)));
            outside || self.roots.contains(&value)
        })
    }
}

/// The kernel of a group.
pub(super) fn prepare(group: &GroupSite<'_>) -> Result<Prepared> {
    if let Some(at) = group.sites.iter().position(|site| products::dims_of(site).is_some()) {
        return products::prepare(group, at);
    }
    if group.results.len() > MOST_RESULTS || group.operands.len() > MOST_OPERANDS {
        return Err(KernelError::unsupported("groups of so many operands and results"));
    }
    let members: Option<Vec<Member>> = group.sites.iter().map(Member::read).collect();
    let members = members.ok_or_else(|| KernelError::unsupported("groups of other operators"))?;
    let members: Vec<&Member> = members.iter().collect();
    let program = Program::new(&members, group.operands, group.results, None)
        .filter(|program| program.n_slots <= MOST_SLOTS)
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
