//! Profile of a run: the time of each step.

use ampc_ir::{GraphId, Node};
use ampc_runtime::DataRef;
use ampc_runtime::session::{NodeObserver, Watch};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The times of steps over one or more runs. A step is a node, or a group of nodes that the backend has joined.
///
/// The time of a step is from the end of the step before it to its own end, so that the time of the executor between
/// two steps counts too. The time of a node with bodies excludes the time of the nodes in its bodies. On a device that
/// computes while the host goes on, the times are those of the host.
#[derive(Debug)]
pub struct StepTimes {
    since: Instant,
    entered: Vec<Node>,
    times: BTreeMap<Vec<Node>, Duration>,
}

impl StepTimes {
    /// The clock runs from now on.
    #[expect(clippy::new_without_default, reason = "it starts a clock")]
    pub fn new() -> StepTimes {
        StepTimes { since: Instant::now(), entered: Vec::new(), times: BTreeMap::new() }
    }

    /// The clock starts again, for one more run.
    pub fn restart(&mut self) {
        self.since = Instant::now();
        self.entered.clear();
    }

    /// The nodes of each step that ran and its time, over all runs.
    pub fn times(&self) -> impl Iterator<Item = (&[Node], Duration)> {
        self.times.iter().map(|(nodes, time)| (&nodes[..], *time))
    }

    fn count(&mut self, nodes: &[Node]) {
        let now = Instant::now();
        let time = now - self.since;
        match self.times.get_mut(nodes) {
            Some(sum) => *sum += time,
            None => {
                self.times.insert(nodes.to_vec(), time);
            }
        }
        self.since = now;
    }
}

impl NodeObserver for StepTimes {
    /// No value: nodes are joined as in any run.
    fn watch(&self) -> Watch {
        Watch::nothing()
    }

    fn value(&mut self, _: Node, _: usize, _: DataRef<'_>) {}

    fn ran(&mut self, nodes: &[Node]) {
        self.count(nodes);
    }

    fn enter(&mut self, node: Node, _: GraphId) {
        self.count(&[node]);
        self.entered.push(node);
    }

    fn leave(&mut self) {
        if let Some(node) = self.entered.pop() {
            self.count(&[node]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execute::{Inputs, prepare, views};
    use ampc_runtime::Runtime;

    #[test]
    fn every_step_has_a_time_and_they_add_up_to_less_than_the_run() {
        let mut model = crate::load("testdata/mlp.onnx").unwrap();
        let inputs = Inputs::random(&model.module, 1, &Default::default(), u64::MAX).unwrap();
        let mut session = prepare(&mut model.module, &Runtime::default()).unwrap();
        let start = Instant::now();
        let mut profile = StepTimes::new();
        session.run_observed(&views(&inputs.values), Some(&mut profile)).unwrap();
        let whole = start.elapsed();
        let mut met: Vec<Node> = profile.times().flat_map(|(nodes, _)| nodes).copied().collect();
        met.sort_unstable();
        let mut nodes: Vec<Node> = model.module.nodes(model.module.main()).collect();
        nodes.sort_unstable();
        assert_eq!(met, nodes);
        assert!(profile.times().any(|(nodes, _)| nodes.len() > 1), "the CPU joins nodes of this model");
        assert!(profile.times().map(|(_, time)| time).sum::<Duration>() <= whole);
    }
}
