//! Profile of a run: the time of each node.

use ampc_ir::{GraphId, Node};
use ampc_runtime::DataRef;
use ampc_runtime::session::NodeObserver;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The times of nodes over one or more runs.
///
/// A node's time is from the end of the node before it to its own end, so that the time of the executor between
/// two nodes counts too. The time of a node with bodies excludes the time of the nodes in its bodies.
#[derive(Debug)]
pub struct NodeTimes {
    since: Instant,
    entered: Vec<Node>,
    times: BTreeMap<Node, Duration>,
}

impl NodeTimes {
    /// The clock runs from now on.
    #[expect(clippy::new_without_default, reason = "it starts a clock")]
    pub fn new() -> NodeTimes {
        NodeTimes { since: Instant::now(), entered: Vec::new(), times: BTreeMap::new() }
    }

    /// The clock starts again, for one more run.
    pub fn restart(&mut self) {
        self.since = Instant::now();
        self.entered.clear();
    }

    /// The time of each node that ran, over all runs.
    pub fn times(&self) -> impl Iterator<Item = (Node, Duration)> {
        self.times.iter().map(|(node, time)| (*node, *time))
    }

    fn count(&mut self, node: Node) {
        let now = Instant::now();
        *self.times.entry(node).or_default() += now - self.since;
        self.since = now;
    }
}

impl NodeObserver for NodeTimes {
    fn value(&mut self, node: Node, _: usize, _: DataRef<'_>) {
        self.count(node);
    }

    fn enter(&mut self, node: Node, _: GraphId) {
        self.count(node);
        self.entered.push(node);
    }

    fn leave(&mut self) {
        if let Some(node) = self.entered.pop() {
            self.count(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execute::{Inputs, prepare, views};
    use ampc_runtime::Runtime;

    #[test]
    fn every_node_has_a_time_and_they_add_up_to_less_than_the_run() {
        let mut model = crate::load("testdata/mlp.onnx").unwrap();
        let inputs = Inputs::random(&model.module, 1, &Default::default(), u64::MAX).unwrap();
        let mut session = prepare(&mut model.module, &Runtime::default()).unwrap();
        let start = Instant::now();
        let mut profile = NodeTimes::new();
        session.run_observed(&views(&inputs.values), Some(&mut profile)).unwrap();
        let whole = start.elapsed();
        assert_eq!(profile.times().count(), model.module.nodes(model.module.main()).count());
        assert!(profile.times().map(|(_, time)| time).sum::<Duration>() <= whole);
    }
}
