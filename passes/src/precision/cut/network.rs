//! The network whose cuts cost as much as the labellings that they stand for.
//!
//! The source stands for full and the sink for low. A vertex on the source's side of a cut is full, and an arc from
//! that side to the other costs its capacity. Fixed vertices are the terminals, and vertices that must agree are one
//! node.
//!
//! | term | arcs |
//! |---|---|
//! | unary | from the source with the cost of low above the cheaper label, to the sink with the cost of full above it |
//! | implication | one arc of infinite capacity |
//! | narrow of a tensor | producer → a with the cost, a → every reader with infinite capacity |
//! | widen of a tensor | every reader → b with infinite capacity, b → producer with the cost |
//! | places | an a and a b per place, attached to those of the place around it |
//! | shared | an additional node as the producer, with the cost in both directions |
//! | foreign | the same, with unary costs of the additional node |
//!
//! For fixed labels of the other nodes, the cheapest side of an a or b makes its term cost its value, so minimum cuts
//! are cheapest labellings. Each term is a maximum of regular pairwise terms (Kolmogorov & Zabih 2004). The one extra
//! node for all readers is the robust P^n potential (Kohli, Ladický & Torr 2009); the two nodes of a constant are the
//! hyperedge of Lawler (1973).
//!
//! Example: a full producer, the readers v and w, and a narrowing cost of 5. Low costs v nothing, full costs it 3; w is
//! fixed low. The producer is the source and w is the sink. The arcs are source → a (5), a → v (infinite), a → sink
//! (infinite) and v → sink (3). The minimum cut is source → a: 5, the price of one cast for both readers, and v is low.
//! Were w fixed full, the arc a → sink would be missing (infinite arcs into the source are left out). Then the minimum
//! cut is v → sink: v is full and pays 3.

use super::contradiction::{self, Contradiction};
use super::problem::{Label, Problem, Scoped, Vertex};

pub(super) const SOURCE: u32 = 0;
pub(super) const SINK: u32 = 1;

/// An arc. Arcs into the source, arcs out of the sink, loops and arcs of capacity 0 are in no cut and not stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arc {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) capacity: i64,
}

/// The unreduced network. Its arcs depend only on the problem.
#[derive(Debug)]
pub(super) struct Network {
    /// The number of nodes: terminals, then classes of vertices, then the nodes that terms add.
    pub(super) nodes: u32,
    /// The first node that a term added.
    pub(super) first_auxiliary: u32,
    /// The node of every vertex.
    pub(super) node_of: Vec<u32>,
    pub(super) arcs: Vec<Arc>,
    /// The cost that every labelling pays.
    pub(super) base: i64,
    /// A capacity above every minimum cut.
    pub(super) infinity: i64,
}

impl Network {
    /// Builds the network of a problem that has an allowed labelling. Takes linear time, apart from sorting readers.
    pub(super) fn new(problem: &Problem) -> Result<Network, Contradiction> {
        if let Some(contradiction) = contradiction::find(problem) {
            return Err(contradiction);
        }
        let (node_of, nodes) = classes(problem);
        let mut network = Network {
            nodes,
            first_auxiliary: nodes,
            node_of,
            arcs: Vec::new(),
            base: 0,
            infinity: problem.infinity(),
        };
        network.unary_terms(problem);
        for &(if_full, then_full) in &problem.imply {
            let (from, to) = (network.node(if_full), network.node(then_full));
            network.arc(from, to, network.infinity);
        }
        let mut readers = Vec::new();
        for (term, list) in problem.tensors.iter().zip(problem.tensor_readers.iter()) {
            let producer = network.node(term.producer);
            network.reader_nodes(producer, list, &mut readers);
            network.narrow(producer, term.narrow, &readers);
            network.widen(producer, term.widen, &readers);
        }
        for term in &problem.scoped {
            network.scoped(problem, term, &mut readers);
        }
        for (&dup, list) in problem.shared.iter().zip(problem.shared_readers.iter()) {
            network.shared(dup, list, &mut readers);
        }
        for (term, list) in problem.foreign.iter().zip(problem.foreign_readers.iter()) {
            if list.is_empty() {
                continue;
            }
            let producer = network.auxiliary();
            network.reader_nodes(producer, list, &mut readers);
            network.pays(producer, term.to_full, term.to_low);
            network.narrow(producer, term.to_low, &readers);
            network.widen(producer, term.to_full, &readers);
        }
        Ok(network)
    }

    fn node(&self, vertex: Vertex) -> u32 {
        self.node_of[vertex.index()]
    }

    fn auxiliary(&mut self) -> u32 {
        self.nodes += 1;
        self.nodes - 1
    }

    fn arc(&mut self, from: u32, to: u32, capacity: i64) {
        if from == SOURCE && to == SINK {
            self.base += capacity;
        } else if capacity > 0 && from != to && from != SINK && to != SOURCE {
            self.arcs.push(Arc { from, to, capacity });
        }
    }

    fn pays(&mut self, node: u32, full: i64, low: i64) {
        let least = full.min(low);
        self.base += least;
        match node {
            SOURCE => self.base += full - least,
            SINK => self.base += low - least,
            _ => {
                self.arc(SOURCE, node, low - least);
                self.arc(node, SINK, full - least);
            }
        }
    }

    /// Adds one pair of arcs per class, because a class may have many unary terms.
    fn unary_terms(&mut self, problem: &Problem) {
        let mut sums = vec![(0, 0); self.nodes as usize];
        for term in &problem.unary {
            let (full, low) = &mut sums[self.node(term.vertex) as usize];
            *full += term.full;
            *low += term.low;
        }
        for (node, (full, low)) in (0..).zip(sums) {
            self.pays(node, full, low);
        }
    }

    /// Collects the nodes of the readers in `readers`, each once and without the producer.
    fn reader_nodes(&self, producer: u32, list: &[Vertex], readers: &mut Vec<u32>) {
        readers.clear();
        readers.extend(list.iter().map(|&reader| self.node(reader)).filter(|&node| node != producer));
        readers.sort_unstable();
        readers.dedup();
    }

    fn narrow(&mut self, producer: u32, cost: i64, readers: &[u32]) {
        if cost > 0 && producer != SINK && readers.iter().any(|&reader| reader != SOURCE) {
            let a = self.auxiliary();
            self.arc(producer, a, cost);
            readers.iter().for_each(|&reader| self.arc(a, reader, self.infinity));
        }
    }

    fn widen(&mut self, producer: u32, cost: i64, readers: &[u32]) {
        if cost > 0 && producer != SOURCE && readers.iter().any(|&reader| reader != SINK) {
            let b = self.auxiliary();
            readers.iter().for_each(|&reader| self.arc(reader, b, self.infinity));
            self.arc(b, producer, cost);
        }
    }

    fn shared(&mut self, dup: i64, list: &[Vertex], readers: &mut Vec<u32>) {
        // Readers of one class never differ.
        if dup == 0 || list.iter().all(|&reader| self.node(reader) == self.node(list[0])) {
            return;
        }
        let producer = self.auxiliary();
        self.reader_nodes(producer, list, readers);
        self.narrow(producer, dup, readers);
        self.widen(producer, dup, readers);
    }

    /// Adds a tree of nodes per direction: the cast for an inner place may be paid there or in any place around it.
    fn scoped(&mut self, problem: &Problem, term: &Scoped, readers: &mut Vec<u32>) {
        let producer = self.node(term.producer);
        let range = term.range();
        let count = u32::try_from(range.len()).expect("the builder has counted the places");
        let first = self.nodes;
        self.nodes += 2 * count;
        for (place, index) in (0..count).zip(range) {
            let data = &problem.places[index];
            let (a, b) = (first + 2 * place, first + 2 * place + 1);
            let (above_a, above_b) = data
                .parent
                .map_or((producer, producer), |parent| (first + 2 * parent, first + 2 * parent + 1));
            self.reader_nodes(producer, problem.place_readers.get(index), readers);
            if producer != SINK {
                self.arc(above_a, a, data.narrow);
                readers.iter().for_each(|&reader| self.arc(a, reader, self.infinity));
            }
            if producer != SOURCE {
                readers.iter().for_each(|&reader| self.arc(reader, b, self.infinity));
                self.arc(b, above_b, data.widen);
            }
        }
    }
}

/// Returns the node of every vertex and the number of nodes. Fixed vertices, and vertices that must agree with them,
/// are terminals.
fn classes(problem: &Problem) -> (Vec<u32>, u32) {
    // Vertex v is element v + 2. The least element of a class represents it, so a class with a terminal is that
    // terminal.
    let mut parent: Vec<u32> = (0..problem.vertices + 2).collect();
    for &(vertex, label) in &problem.fixed {
        let terminal = match label {
            Label::Full => SOURCE,
            Label::Low => SINK,
        };
        unite(&mut parent, vertex.0 + 2, terminal);
    }
    for members in problem.equal.iter() {
        for pair in members.windows(2) {
            unite(&mut parent, pair[0].0 + 2, pair[1].0 + 2);
        }
    }
    let mut nodes = 2;
    let mut node_of = vec![SOURCE; problem.vertices as usize + 2];
    node_of[SINK as usize] = SINK;
    for element in 2..problem.vertices + 2 {
        let root = find(&mut parent, element);
        node_of[element as usize] = if root == element {
            nodes += 1;
            nodes - 1
        } else {
            node_of[root as usize]
        };
    }
    node_of.drain(..2);
    (node_of, nodes)
}

/// Unites two classes. Union by index alone would give deep trees; the path halving in `find` keeps them shallow.
fn unite(parent: &mut [u32], a: u32, b: u32) {
    let (a, b) = (find(parent, a), find(parent, b));
    parent[a.max(b) as usize] = a.min(b);
}

fn find(parent: &mut [u32], mut element: u32) -> u32 {
    while parent[element as usize] != element {
        let above = parent[parent[element as usize] as usize];
        parent[element as usize] = above;
        element = above;
    }
    element
}
