//! Minimum cuts by maximum flows (Dinic, "Algorithm for solution of a problem of maximum flow in a network with power
//! estimation", 1970).
//!
//! An augmenting path costs time in proportion to its length. petgraph's `dinics` visits all vertices for each path,
//! which is quadratic for large models.

use std::collections::VecDeque;

/// The vertex that all flow leaves.
pub(super) const SOURCE: usize = 0;

/// The vertex that all flow enters.
pub(super) const SINK: usize = 1;

/// A flow network. Each edge is followed by its reverse edge.
pub(super) struct Network {
    /// The outgoing edges of each vertex.
    leaving: Vec<Vec<usize>>,
    /// The target vertex of each edge, and its residual capacity.
    edges: Vec<(usize, u64)>,
}

impl Network {
    pub(super) fn new(vertices: usize) -> Network {
        Network { leaving: vec![Vec::new(); vertices], edges: Vec::new() }
    }

    /// Adds a vertex.
    pub(super) fn vertex(&mut self) -> usize {
        self.leaving.push(Vec::new());
        self.leaving.len() - 1
    }

    /// Adds an edge.
    pub(super) fn edge(&mut self, from: usize, to: usize, capacity: u64) {
        if capacity > 0 {
            self.leaving[from].push(self.edges.len());
            self.edges.push((to, capacity));
            self.leaving[to].push(self.edges.len());
            self.edges.push((from, 0));
        }
    }

    /// True for each vertex on the source side of the minimum cut with the smallest source side (Dinic's algorithm).
    pub(super) fn cut(&mut self) -> Vec<bool> {
        loop {
            let levels = self.levels();
            if levels[SINK].is_none() {
                return levels.iter().map(Option::is_some).collect();
            }
            let mut next = vec![0; self.leaving.len()];
            while self.augment(&levels, &mut next) {}
        }
    }

    /// The level of each vertex: its distance from the source along edges with residual capacity.
    fn levels(&self) -> Vec<Option<u32>> {
        let mut levels = vec![None; self.leaving.len()];
        levels[SOURCE] = Some(0);
        let mut open = VecDeque::from([SOURCE]);
        while let Some(vertex) = open.pop_front() {
            for &edge in &self.leaving[vertex] {
                let (to, capacity) = self.edges[edge];
                if capacity > 0 && levels[to].is_none() {
                    levels[to] = levels[vertex].map(|level: u32| level + 1);
                    open.push_back(to);
                }
            }
        }
        levels
    }

    /// Augments the flow along one shortest path; false if there is none. `next` is the next edge to try of each
    /// vertex.
    fn augment(&mut self, levels: &[Option<u32>], next: &mut [usize]) -> bool {
        let (mut path, mut vertex): (Vec<usize>, usize) = (Vec::new(), SOURCE);
        while vertex != SINK {
            let Some(&edge) = self.leaving[vertex].get(next[vertex]) else {
                // A dead end.
                let Some(edge) = path.pop() else { return false };
                vertex = self.edges[edge ^ 1].0;
                next[vertex] += 1;
                continue;
            };
            let (to, capacity) = self.edges[edge];
            if capacity > 0 && levels[to] == levels[vertex].map(|level| level + 1) {
                path.push(edge);
                vertex = to;
            } else {
                next[vertex] += 1;
            }
        }
        let flow = path.iter().map(|&edge| self.edges[edge].1).min().unwrap_or(0);
        for edge in path {
            self.edges[edge].1 -= flow;
            self.edges[edge ^ 1].1 = self.edges[edge ^ 1].1.saturating_add(flow);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minimum_cut() {
        // Two consecutive nodes that prefer the source side, with transposes before and after them.
        let chain = |between: u64, want: u64| {
            let mut network = Network::new(2);
            let [first, second] = [(); 2].map(|()| network.vertex());
            network.edge(SOURCE, first, want);
            network.edge(SOURCE, second, want);
            network.edge(first, second, between);
            network.edge(second, first, between);
            network.edge(first, SINK, 5);
            network.edge(second, SINK, 5);
            let cut = network.cut();
            [cut[first], cut[second]]
        };
        assert_eq!(chain(3, 6), [true, true]);
        assert_eq!(chain(3, 5), [false, false]);
        assert_eq!(chain(3, 4), [false, false]);
    }

    #[test]
    fn reverse_edges_take_flow_back() {
        let mut network = Network::new(2);
        let [a, b, c, d] = [(); 4].map(|()| network.vertex());
        for (from, to, capacity) in
            [(SOURCE, a, 1), (SOURCE, b, 1), (a, c, 1), (a, d, 1), (b, c, 1), (c, SINK, 1), (d, SINK, 2)]
        {
            network.edge(from, to, capacity);
        }
        let cut = network.cut();
        assert_eq!([cut[a], cut[b], cut[c], cut[d]], [false; 4]);
    }
}
