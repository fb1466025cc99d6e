//! The nodes that the source still reaches in the residual network of a flow.
//!
//! Example: source –2→ x –3→ y –4→ sink with a flow of 2 along the path. The arc source → x is saturated, so the source
//! reaches neither x nor y: both are low, and the cut is source → x. With capacities 5, 3 and 4 and a flow of 3, the
//! source reaches x, which is full, but not y.

use super::adjacency::Adjacency;
use super::network::{Network, SINK, SOURCE};
use super::problem::Label;

/// The level of a node that the source does not reach.
pub(super) const UNREACHED: u32 = u32::MAX;

/// Returns the distance of every node from the source: the least number of residual arcs on a path, not counting arcs
/// that are infinite in the network. So no infinite arc leads from a level to a level farther out. Linear.
pub(super) fn levels(network: &Network, flow: &[i64]) -> Vec<u32> {
    let arcs = (0_u32..).zip(&network.arcs);
    let out = Adjacency::new(network.nodes as usize, arcs.clone().map(|(index, arc)| (arc.from, index)));
    let into = Adjacency::new(network.nodes as usize, arcs.map(|(index, arc)| (arc.to, index)));
    let mut levels = vec![UNREACHED; network.nodes as usize];
    let mut here = vec![SOURCE];
    let mut next = Vec::new();
    let mut level = 0;
    while !here.is_empty() {
        while let Some(node) = here.pop() {
            if levels[node as usize] != UNREACHED {
                continue;
            }
            levels[node as usize] = level;
            for &index in out.of(node) {
                let arc = network.arcs[index as usize];
                if levels[arc.to as usize] == UNREACHED && flow[index as usize] < arc.capacity {
                    let list = if arc.capacity >= network.infinity { &mut here } else { &mut next };
                    list.push(arc.to);
                }
            }
            for &index in into.of(node) {
                let from = network.arcs[index as usize].from;
                if flow[index as usize] > 0 && levels[from as usize] == UNREACHED {
                    next.push(from);
                }
            }
        }
        std::mem::swap(&mut here, &mut next);
        level += 1;
    }
    levels
}

/// Makes the vertices up to the level `last` full and all others low.
pub(super) fn labels(network: &Network, levels: &[u32], last: u32) -> Vec<Label> {
    let label = |node: &u32| if levels[*node as usize] <= last { Label::Full } else { Label::Low };
    network.node_of.iter().map(label).collect()
}

/// Returns the first level at which a cut is cheapest. The sink must be reached, beyond level 0.
pub(super) fn cheapest_level(network: &Network, levels: &[u32]) -> u32 {
    let end = levels[SINK as usize];
    // The cut at a level minus the cut at the level before it.
    let mut differences = vec![0_i64; end as usize + 1];
    for arc in &network.arcs {
        let [from, to] = [arc.from, arc.to].map(|node| levels[node as usize].min(end));
        if from < to {
            differences[from as usize] += arc.capacity;
            differences[to as usize] -= arc.capacity;
        }
    }
    let (mut cut, mut least, mut best) = (0, i64::MAX, 0);
    for (level, difference) in (0..end).zip(differences) {
        cut += difference;
        if cut < least {
            (least, best) = (cut, level);
        }
    }
    best
}
