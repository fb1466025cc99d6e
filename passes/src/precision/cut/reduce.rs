//! Makes a network smaller without changing its maximum flow, and lifts a flow of the small network to the whole one.
//!
//! There are two rules, both by dominance of arcs:
//!
//! - An extra node with one reader is merged with that reader, because its infinite arc never binds.
//! - A node joins the sink's side if its arcs to that side can carry everything that can flow in. A node joins the
//!   source's side if its arcs from that side can supply everything that can flow out. For other nodes, a node that
//!   joined a side counts as the terminal of that side.
//!
//! The rules remove the nodes that only one terminal reaches, and many nodes between the terminals. Where a node could
//! join either side, the choice does not matter: labels are read from the residual network of the lifted flow. The
//! lifted flow conserves flow everywhere: a node that joined a side passes its flow on along the arcs by which it
//! joined, in reverse order of joining.
//!
//! Example: source –5→ a –∞→ v –3→ sink, where a is an extra node. By the first rule a is merged with v, which leaves
//! source –5→ v –3→ sink. The arc from the source covers all that can leave v (5 ≥ 3), so v joins the source's side and
//! the small network is empty. For the lifted flow, `lift` saturates the arc v → sink, which now leads from side to
//! side (3), brings 3 to v along source → a, and sends 3 through a → v. The minimum cut is v → sink, so v is full.

use super::adjacency::Adjacency;
use super::max_flow::{Edge, Flow, Graph};
use super::network::{Network, SINK, SOURCE};

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Free,
    Source,
    Sink,
}

/// A network with fewer nodes, with the data for lifting its flows.
pub(super) struct Reduced<'a> {
    pub(super) graph: Graph,
    network: &'a Network,
    /// The node that every node is merged with, or the node itself.
    merged: Vec<u32>,
    side: Vec<Side>,
    /// The nodes that joined a side, in this order.
    joined: Vec<u32>,
    /// Index in `graph` of every node; `NONE` for a node that is not there.
    index: Vec<u32>,
    /// The arcs that an edge of `graph` stands for, in its direction and in the opposite direction.
    arcs_of_edge: Vec<[u32; 2]>,
    out: Adjacency,
    into: Adjacency,
}

impl<'a> Reduced<'a> {
    /// Reduces the network by both rules. Without `reduce`, only the terminals are left out. Linear.
    pub(super) fn new(network: &'a Network, reduce: bool) -> Reduced<'a> {
        let merged = if reduce { single_readers(network) } else { (0..network.nodes).collect() };
        let arcs = (0_u32..).zip(&network.arcs).map(|(index, arc)| {
            let [from, to] = [arc.from, arc.to].map(|node| merged[node as usize]);
            (from, to, index)
        });
        let arcs = arcs.filter(|&(from, to, _)| from != to);
        let nodes = network.nodes as usize;
        let out = Adjacency::new(nodes, arcs.clone().map(|(from, _, index)| (from, index)));
        let into = Adjacency::new(nodes, arcs.map(|(_, to, index)| (to, index)));
        let mut reduced = Reduced {
            graph: Graph::default(),
            network,
            side: vec![Side::Free; nodes],
            joined: Vec::new(),
            index: Vec::new(),
            arcs_of_edge: Vec::new(),
            merged,
            out,
            into,
        };
        reduced.side[SOURCE as usize] = Side::Source;
        reduced.side[SINK as usize] = Side::Sink;
        if reduce {
            reduced.join_sides();
        }
        reduced.number();
        reduced.connect();
        reduced
    }

    fn from(&self, arc: u32) -> u32 {
        self.merged[self.network.arcs[arc as usize].from as usize]
    }

    fn to(&self, arc: u32) -> u32 {
        self.merged[self.network.arcs[arc as usize].to as usize]
    }

    fn side(&self, node: u32) -> Side {
        self.side[node as usize]
    }

    fn capacity(&self, arc: u32) -> i64 {
        self.network.arcs[arc as usize].capacity
    }

    /// Applies the second rule with a worklist: a node is visited again when one of its sums has changed.
    fn join_sides(&mut self) {
        let mut sums = self.sums();
        let mut work: Vec<u32> = (2..self.network.nodes).rev().collect();
        while let Some(node) = work.pop() {
            if self.side(node) != Side::Free || self.merged[node as usize] != node {
                continue;
            }
            let Some(side) = sums[node as usize].side() else { continue };
            self.side[node as usize] = side;
            self.joined.push(node);
            for &arc in self.into.of(node) {
                let from = self.from(arc);
                let sum = &mut sums[from as usize];
                match side {
                    Side::Sink => sum.to_sink.add(self.capacity(arc), self.network.infinity),
                    Side::Source | Side::Free => sum.out.subtract(self.capacity(arc), self.network.infinity),
                }
                if self.side(from) == Side::Free {
                    work.push(from);
                }
            }
            for &arc in self.out.of(node) {
                let to = self.to(arc);
                let sum = &mut sums[to as usize];
                match side {
                    Side::Source => sum.from_source.add(self.capacity(arc), self.network.infinity),
                    Side::Sink | Side::Free => sum.into.subtract(self.capacity(arc), self.network.infinity),
                }
                if self.side(to) == Side::Free {
                    work.push(to);
                }
            }
        }
    }

    fn sums(&self) -> Vec<Sums> {
        let mut sums = vec![Sums::default(); self.network.nodes as usize];
        let infinity = self.network.infinity;
        for arc in &self.network.arcs {
            let [from, to] = [arc.from, arc.to].map(|node| self.merged[node as usize]);
            if from == to {
                continue;
            }
            let sum = &mut sums[from as usize];
            sum.out.add(arc.capacity, infinity);
            if to == SINK {
                sum.to_sink.add(arc.capacity, infinity);
            }
            let sum = &mut sums[to as usize];
            sum.into.add(arc.capacity, infinity);
            if from == SOURCE {
                sum.from_source.add(arc.capacity, infinity);
            }
        }
        sums
    }

    fn number(&mut self) {
        self.index = vec![NONE; self.network.nodes as usize];
        let mut count = 0;
        for node in 0..self.network.nodes {
            if self.side(node) == Side::Free && self.merged[node as usize] == node {
                self.index[node as usize] = count;
                count += 1;
            }
        }
        self.graph.from_source = vec![0; count as usize];
        self.graph.to_sink = vec![0; count as usize];
    }

    fn connect(&mut self) {
        let infinity = self.network.infinity;
        for arc in (0..).take(self.network.arcs.len()) {
            let (from, to, capacity) = (self.from(arc), self.to(arc), self.capacity(arc));
            let [from_index, to_index] = [from, to].map(|node| self.index[node as usize]);
            let sides = (self.side(from), self.side(to));
            if sides == (Side::Source, Side::Free) {
                let sum = &mut self.graph.from_source[to_index as usize];
                *sum = (*sum + capacity).min(infinity);
            } else if sides == (Side::Free, Side::Sink) {
                let sum = &mut self.graph.to_sink[from_index as usize];
                *sum = (*sum + capacity).min(infinity);
            } else if sides == (Side::Free, Side::Free) && from != to {
                self.edge(arc, from_index, to_index);
            }
        }
    }

    /// Adds an edge. The two directions of a tensor with one reader follow each other and become one edge.
    fn edge(&mut self, arc: u32, from: u32, to: u32) {
        let capacity = self.capacity(arc);
        if let (Some(last), Some([_, backward])) = (self.graph.edges.last_mut(), self.arcs_of_edge.last_mut())
            && *backward == NONE
            && (last.from, last.to) == (to, from)
        {
            last.reverse = capacity;
            *backward = arc;
            return;
        }
        self.graph.edges.push(Edge { from, to, capacity, reverse: 0 });
        self.arcs_of_edge.push([arc, NONE]);
    }

    /// Lifts a flow to the whole network, by arc. Linear.
    pub(super) fn lift(&self, flow: &Flow) -> Vec<i64> {
        let mut lifted = vec![0; self.network.arcs.len()];
        for (&[forward, backward], &amount) in self.arcs_of_edge.iter().zip(&flow.edges) {
            if amount >= 0 {
                lifted[forward as usize] = amount;
            } else {
                lifted[backward as usize] = -amount;
            }
        }
        for (arc, lifted) in (0..).zip(&mut lifted) {
            if self.side(self.from(arc)) == Side::Source && self.side(self.to(arc)) == Side::Sink {
                *lifted = self.capacity(arc);
            }
        }
        let rank = self.ranks();
        for node in 0..self.network.nodes {
            if let Some(&amount) = flow.from_source.get(self.index[node as usize] as usize) {
                self.bring(node, amount, Side::Source, &rank, &mut lifted);
            }
            if let Some(&amount) = flow.to_sink.get(self.index[node as usize] as usize) {
                self.bring(node, amount, Side::Sink, &rank, &mut lifted);
            }
        }
        for &node in self.joined.iter().rev() {
            let through = match self.side(node) {
                Side::Sink => self.into.of(node),
                Side::Source | Side::Free => self.out.of(node),
            };
            let amount = through.iter().map(|&arc| lifted[arc as usize]).sum();
            self.bring(node, amount, self.side(node), &rank, &mut lifted);
        }
        self.through_readers(&mut lifted);
        lifted
    }

    /// The order in which nodes joined a side. Terminals come first; nodes that did not join come last.
    fn ranks(&self) -> Vec<u32> {
        let mut rank = vec![NONE; self.side.len()];
        rank[SOURCE as usize] = 0;
        rank[SINK as usize] = 0;
        for (index, &node) in (1..).zip(&self.joined) {
            rank[node as usize] = index;
        }
        rank
    }

    /// Sends an amount from a node to nodes that joined the sink's side before it, or to the node from such nodes of
    /// the source's side.
    fn bring(&self, node: u32, mut amount: i64, side: Side, rank: &[u32], lifted: &mut [i64]) {
        let arcs = match side {
            Side::Sink => self.out.of(node),
            Side::Source | Side::Free => self.into.of(node),
        };
        for &arc in arcs {
            if amount == 0 {
                break;
            }
            let other = if side == Side::Sink { self.to(arc) } else { self.from(arc) };
            if self.side(other) == side && rank[other as usize] < rank[node as usize] {
                let part = amount.min(self.capacity(arc));
                lifted[arc as usize] = part;
                amount -= part;
            }
        }
        debug_assert_eq!(amount, 0, "what joined a side can pass on all that comes");
    }

    /// Sends the flow into an extra node that was merged with its reader on to the reader.
    fn through_readers(&self, lifted: &mut [i64]) {
        let first = self.network.first_auxiliary as usize;
        let mut through = vec![0; self.network.nodes as usize - first];
        let is_merged = |node: u32| self.merged[node as usize] != node;
        for (arc, &amount) in self.network.arcs.iter().zip(lifted.iter()) {
            for node in [arc.from, arc.to] {
                if is_merged(node) {
                    through[node as usize - first] += amount;
                }
            }
        }
        for (arc, lifted) in self.network.arcs.iter().zip(lifted) {
            if self.merged[arc.from as usize] == self.merged[arc.to as usize] {
                let node = if is_merged(arc.from) { arc.from } else { arc.to };
                *lifted = through[node as usize - first];
            }
        }
    }
}

/// The capacities into and out of a node. A node that joined the sink sends nothing; a node that joined the source
/// takes nothing.
#[derive(Clone, Default)]
struct Sums {
    into: Sum,
    out: Sum,
    from_source: Sum,
    to_sink: Sum,
}

impl Sums {
    fn side(&self) -> Option<Side> {
        if self.to_sink.covers(&self.into) {
            Some(Side::Sink)
        } else if self.from_source.covers(&self.out) {
            Some(Side::Source)
        } else {
            None
        }
    }
}

/// A sum of capacities; infinite capacities are counted separately.
#[derive(Clone, Default)]
struct Sum {
    finite: i64,
    infinite: u32,
}

impl Sum {
    fn add(&mut self, capacity: i64, infinity: i64) {
        if capacity < infinity {
            self.finite += capacity;
        } else {
            self.infinite += 1;
        }
    }

    fn subtract(&mut self, capacity: i64, infinity: i64) {
        if capacity < infinity {
            self.finite -= capacity;
        } else {
            self.infinite -= 1;
        }
    }

    fn covers(&self, other: &Sum) -> bool {
        self.infinite > 0 || (other.infinite == 0 && self.finite >= other.finite)
    }
}

/// The first rule: returns the node that every node is merged with. Only extra nodes are merged with other nodes.
fn single_readers(network: &Network) -> Vec<u32> {
    let first = network.first_auxiliary;
    let extra = (network.nodes - first) as usize;
    // The number of arcs in each direction.
    let mut into = vec![0_u32; extra];
    let mut out = vec![0_u32; extra];
    for arc in &network.arcs {
        if arc.from >= first {
            out[(arc.from - first) as usize] += 1;
        }
        if arc.to >= first {
            into[(arc.to - first) as usize] += 1;
        }
    }
    let mut merged: Vec<u32> = (0..network.nodes).collect();
    for arc in network.arcs.iter().filter(|arc| arc.capacity >= network.infinity) {
        if arc.from >= first && arc.to < first && out[(arc.from - first) as usize] == 1 {
            merged[arc.from as usize] = arc.to;
        }
        if arc.to >= first && arc.from < first && into[(arc.to - first) as usize] == 1 {
            merged[arc.to as usize] = arc.from;
        }
    }
    merged
}
