//! The order of groups.

use super::Made;
use ampc_ir::{Module, Node, Value};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The dependencies between groups, by their indices.
struct Dependencies {
    /// The number of groups that each group waits for.
    waits: Vec<usize>,
    /// The groups that read values of each group.
    readers: Vec<Vec<usize>>,
}

impl Dependencies {
    fn new(module: &Module, units: &[Made]) -> Dependencies {
        let mut maker: FxHashMap<Value, usize> = FxHashMap::default();
        for (at, unit) in units.iter().enumerate() {
            let results = unit.group.nodes.iter().flat_map(|&node| module.node(node).results());
            maker.extend(results.flatten().map(|&value| (value, at)));
        }
        let mut waits = vec![0usize; units.len()];
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); units.len()];
        for (at, unit) in units.iter().enumerate() {
            let operands = unit.group.nodes.iter().flat_map(|&node| module.node(node).operands());
            let mut makers: Vec<usize> =
                operands.flatten().filter_map(|value| maker.get(value).copied()).collect();
            makers.sort_unstable();
            makers.dedup();
            for other in makers.into_iter().filter(|&other| other != at) {
                waits[at] += 1;
                readers[other].push(at);
            }
        }
        Dependencies { waits, readers }
    }
}

/// The groups in a topological order; of several ready groups, the group whose last node comes first in the
/// program.
///
/// # Panics
/// If the groups have a cycle: the backend has joined nodes with an outside node between them.
pub(super) fn ordered(module: &Module, units: Vec<Made>) -> Vec<Made> {
    let mut position: FxHashMap<Node, usize> = FxHashMap::default();
    let graph = units.first().map(|unit| module.node(unit.group.nodes[0]).graph);
    for (at, node) in graph.into_iter().flat_map(|graph| module.nodes(graph)).enumerate() {
        position.insert(node, at);
    }
    let Dependencies { mut waits, readers } = Dependencies::new(module, &units);
    let last = |at: usize| units[at].group.nodes.last().map(|node| position[node]);
    let ready = (0..units.len()).filter(|&at| waits[at] == 0).map(|at| Reverse((last(at), at)));
    let (mut ready, mut order): (BinaryHeap<_>, Vec<usize>) = (ready.collect(), Vec::new());
    while let Some(Reverse((_, at))) = ready.pop() {
        order.push(at);
        for &reader in &readers[at] {
            waits[reader] -= 1;
            if waits[reader] == 0 {
                ready.push(Reverse((last(reader), reader)));
            }
        }
    }
    assert_eq!(order.len(), units.len(), "a backend joins nodes with another node between them");
    let mut units: Vec<Option<Made>> = units.into_iter().map(Some).collect();
    order.into_iter().filter_map(|at| units[at].take()).collect()
}
