//! Compares maximum flows with all cuts and with another method.

use super::{Edge, Flow, Graph, max_flow};

/// An xorshift generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from((self.0 >> 33) % u64::from(end)).unwrap()
    }

    fn capacity(&mut self) -> i64 {
        let most = [1, 2, 5, 100][self.below(4) as usize];
        i64::from(self.below(most))
    }

    fn graph(&mut self, nodes: u32) -> Graph {
        let mut graph = Graph::default();
        for _ in 0..nodes {
            graph.from_source.push(if self.below(3) == 0 { self.capacity() } else { 0 });
            graph.to_sink.push(if self.below(3) == 0 { self.capacity() } else { 0 });
        }
        for _ in 0..self.below(4 * nodes) {
            let (from, to) = (self.below(nodes), self.below(nodes));
            if from != to {
                let (capacity, reverse) = (self.capacity(), self.capacity());
                graph.edges.push(Edge { from, to, capacity, reverse });
            }
        }
        graph
    }
}

/// Returns the value of the flow, after asserting that it is feasible.
fn value(graph: &Graph, flow: &Flow) -> i64 {
    let mut surplus: Vec<i64> = flow.from_source.iter().zip(&flow.to_sink).map(|(i, o)| i - o).collect();
    for (edge, &amount) in graph.edges.iter().zip(&flow.edges) {
        assert!(-edge.reverse <= amount && amount <= edge.capacity, "{edge:?} {amount}");
        surplus[edge.from as usize] -= amount;
        surplus[edge.to as usize] += amount;
    }
    let within = |flow: &[i64], most: &[i64]| flow.iter().zip(most).all(|(f, m)| (0..=*m).contains(f));
    assert!(within(&flow.from_source, &graph.from_source) && within(&flow.to_sink, &graph.to_sink));
    assert!(surplus.iter().all(|&surplus| surplus == 0), "{graph:?} {flow:?}");
    flow.from_source.iter().sum()
}

/// Returns the least of all cuts.
fn least_cut(graph: &Graph) -> i64 {
    let cut = |set: u32| {
        let inside = |node: u32| set >> node & 1 == 1;
        let mut cut = 0;
        for (node, (from_source, to_sink)) in (0..).zip(graph.from_source.iter().zip(&graph.to_sink)) {
            cut += if inside(node) { to_sink } else { from_source };
        }
        for edge in &graph.edges {
            match (inside(edge.from), inside(edge.to)) {
                (true, false) => cut += edge.capacity,
                (false, true) => cut += edge.reverse,
                (true, true) | (false, false) => {}
            }
        }
        cut
    };
    (0..1 << graph.from_source.len()).map(cut).min().unwrap()
}

/// Ford and Fulkerson's method on a matrix, with the terminals as nodes.
fn by_matrix(graph: &Graph) -> i64 {
    let count = graph.from_source.len();
    let (source, sink) = (count, count + 1);
    let mut residual = vec![vec![0; count + 2]; count + 2];
    residual[source][..count].copy_from_slice(&graph.from_source);
    for (row, &to_sink) in residual.iter_mut().zip(&graph.to_sink) {
        row[sink] = to_sink;
    }
    for edge in &graph.edges {
        residual[edge.from as usize][edge.to as usize] += edge.capacity;
        residual[edge.to as usize][edge.from as usize] += edge.reverse;
    }
    let mut value = 0;
    loop {
        let mut before = vec![usize::MAX; count + 2];
        let mut work = vec![source];
        while let Some(node) = work.pop() {
            for next in 0..count + 2 {
                if residual[node][next] > 0 && before[next] == usize::MAX && next != source {
                    before[next] = node;
                    work.push(next);
                }
            }
        }
        if before[sink] == usize::MAX {
            return value;
        }
        let path: Vec<usize> =
            std::iter::successors(Some(sink), |&n| (n != source).then(|| before[n])).collect();
        let amount = path.windows(2).map(|step| residual[step[1]][step[0]]).min().unwrap();
        for step in path.windows(2) {
            residual[step[1]][step[0]] -= amount;
            residual[step[0]][step[1]] += amount;
        }
        value += amount;
    }
}

#[test]
fn the_flow_is_as_large_as_the_least_cut() {
    let mut random = Random(7);
    for _ in 0..5_000 {
        let nodes = 1 + random.below(8);
        let graph = random.graph(nodes);
        let flow = max_flow(&graph, u64::MAX);
        assert!(flow.maximum);
        assert_eq!(value(&graph, &flow), least_cut(&graph), "{graph:?}");
    }
}

#[test]
fn the_flow_is_that_of_another_method() {
    let mut random = Random(8);
    for _ in 0..300 {
        let nodes = 10 + random.below(60);
        let graph = random.graph(nodes);
        assert_eq!(value(&graph, &max_flow(&graph, u64::MAX)), by_matrix(&graph));
    }
}

#[test]
fn it_stops_near_its_budget_with_a_feasible_flow() {
    let mut random = Random(9);
    let mut stopped = 0;
    for _ in 0..100 {
        let graph = random.graph(60);
        let most = max_flow(&graph, u64::MAX);
        for budget in 0..100 {
            let flow = max_flow(&graph, budget);
            assert!(value(&graph, &flow) <= value(&graph, &most));
            assert_eq!(flow.maximum, most.visits <= budget);
            stopped += u32::from(!flow.maximum);
        }
    }
    assert!(stopped > 1000, "{stopped} were stopped");
}

#[test]
fn nothing_has_no_flow() {
    let flow = max_flow(&Graph::default(), 0);
    assert!(flow.maximum && flow.edges.is_empty());
}
