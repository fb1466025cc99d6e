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
use crate::elementwise::Member;
use crate::groups::{GraphIndex, Groups, Joiner, Limits, Open, Order, unsupported_group};
use crate::kernel::{Dims, KernelError, Prepared, Result};
use ampc_ir::{Module, Node};
use program::{Program, member_of};
use run::MOST_SLOTS;
use rustc_hash::FxHashMap;

/// The most nodes of a group.
const MOST_NODES: usize = 32;

/// The most results of a group, and the most operands: lists of so many are no allocations.
const MOST_RESULTS: usize = 6;
const MOST_OPERANDS: usize = 16;

/// How far a node of a group may stand from the next one in the program: operands live until the last node, so that nodes
/// of forward and backward parts are no group.
const FARTHEST: usize = 4;

const LIMITS: Limits = Limits {
    nodes: MOST_NODES,
    operands: MOST_OPERANDS,
    results: MOST_RESULTS,
    farthest: FARTHEST,
    order: Order::First,
};

/// The groups of the candidates.
pub(super) fn join(candidates: &Candidates<'_>) -> Vec<Vec<Node>> {
    // Products and convolutions that a group may begin with, and the dims of their results.
    let mut products: FxHashMap<Node, Dims> = FxHashMap::default();
    let index = GraphIndex::new(candidates.module, candidates.graph);
    let joiner = Joiner::new(candidates, &index, LIMITS, |site| {
        member_of(site).or_else(|| {
            products.extend(products::dims_of(site).map(|dims| (site.view.node, dims)));
            None
        })
    });
    let mut groups = joiner.groups(Groups::default(), |members, interface| {
        let program = Program::new(members, &interface.operands, &interface.results, None);
        program.is_some_and(|program| program.n_slots <= MOST_SLOTS)
    });
    for &node in candidates.nodes {
        if let Some((group, nodes)) = with_product(candidates.module, &joiner, &products, node, &groups) {
            groups.open[group].nodes = nodes;
        }
    }
    groups.into_lists()
}

/// The group that reads the result of a product, with the product as its first node: all readers are in the group, which has
/// one result, of the same dims.
fn with_product(
    module: &Module,
    joiner: &Joiner<'_>,
    products: &FxHashMap<Node, Dims>,
    product: Node,
    groups: &Groups,
) -> Option<(usize, Vec<Node>)> {
    let dims = products.get(&product)?;
    let &[Some(value)] = module.node(product).results() else { return None };
    let index = joiner.index;
    let readers = index.readers_of_value(value);
    if index.is_root(value) {
        return None;
    }
    let group = *groups.group_of.get(readers.first()?)?;
    let Open { dims: group_dims, nodes, .. } = &groups.open[group];
    let is_near = index.position(*nodes.first()?).abs_diff(index.position(product)) <= FARTHEST;
    let begins_with_product = nodes.iter().any(|node| products.contains_key(node));
    if group_dims[..] != dims[..]
        || !is_near
        || begins_with_product
        || readers.iter().any(|reader| !nodes.contains(reader))
    {
        return None;
    }
    let mut all = nodes.clone();
    all.push(product);
    all.sort_unstable_by_key(|&node| index.position(node));
    let interface = index.interface(&all);
    let members: Vec<&Member> = nodes.iter().filter_map(|node| joiner.members.get(node)).collect();
    let dtype = module.value(value).ty.dtype()?;
    let program = Program::new(&members, &interface.operands, &interface.results, Some((value, dtype)))?;
    let fits = interface.results.len() == 1
        && interface.operands.len() <= MOST_OPERANDS
        && program.n_slots <= MOST_SLOTS;
    fits.then_some((group, all))
}

/// The kernel of a group.
pub(super) fn prepare(group: &GroupSite<'_>) -> Result<Prepared> {
    if let Some(at) = group.sites.iter().position(|site| products::dims_of(site).is_some()) {
        return products::prepare(group, at);
    }
    if group.results.len() > MOST_RESULTS || group.operands.len() > MOST_OPERANDS {
        return Err(KernelError::unsupported("groups of so many operands and results"));
    }
    let members: Option<Vec<Member>> = group.sites.iter().map(member_of).collect();
    let members = members.ok_or_else(unsupported_group)?;
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
