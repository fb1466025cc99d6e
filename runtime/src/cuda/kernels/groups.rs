//! Groups of the CUDA backend: attentions are graphs of cuDNN, products and convolutions with what stands around them are
//! operations of a library ([`library`]), and other element-wise nodes that read each other are one kernel.
//!
//! In a group of element-wise nodes, each value from outside is loaded once, each node rounds to its element type, and each
//! result that is read outside is stored. Such a group has the bits of its nodes one by one.

use super::attention;
use super::expressions::{is_known, of_members};
use super::library;
use crate::backend::{Candidates, GroupSite};
use crate::cuda::Shared;
use crate::elementwise::Member;
use crate::groups::{Joiner, Limits, Order};
use crate::kernel::{KernelError, Prepared, Result};
use ampc_ir::Node;
use rustc_hash::FxHashSet;
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
    let mut lists = attention::join(candidates);
    let rest = without(candidates.nodes, &lists);
    lists.extend(library::join(shared, &Candidates { nodes: &rest, ..*candidates }));
    let rest = without(candidates.nodes, &lists);
    let candidates = &Candidates { nodes: &rest, ..*candidates };
    let joiner = Joiner::new(candidates, LIMITS, |site| Member::read(site, is_known));
    let groups =
        joiner.groups(|_, interface| interface.operands.len() + interface.results.len() <= MOST_POINTERS);
    lists.extend(groups.into_lists());
    lists
}

/// The nodes that are in no list, in order.
fn without(nodes: &[Node], lists: &[Vec<Node>]) -> Vec<Node> {
    let taken: FxHashSet<Node> = lists.iter().flatten().copied().collect();
    nodes.iter().copied().filter(|node| !taken.contains(node)).collect()
}

/// The kernel of a group.
pub(in crate::cuda) fn prepare(shared: &Arc<Shared>, group: &GroupSite<'_>) -> Result<Prepared> {
    if let Some(prepared) = attention::prepare(shared, group)? {
        return Ok(prepared);
    }
    if let Some(prepared) = library::prepare(shared, group) {
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
