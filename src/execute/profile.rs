//! The profile of a run: the time of each step.

use ampc_ir::{GraphId, Node};
use ampc_runtime::DataRef;
use ampc_runtime::session::{NodeObserver, Watch};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The times of steps over one or more runs. A step is a node, or a group of nodes that the backend has fused.
///
/// In host memory, the time of a step is measured from the end of the preceding step, so it includes the executor's
/// time between the steps. The time of a node with bodies excludes the time of the nodes in its bodies. On a device
/// with a clock, the times are device times: a step that is launched late includes the wait for its launch. A run
/// with this observer gives the same bits as any other run, and is not recorded.
#[derive(Debug)]
pub struct StepTimes {
    since: Instant,
    entered: Vec<Node>,
    of_host: Times,
    of_device: Times,
}

/// The times of steps by their nodes, with the numbers of executions.
type Times = BTreeMap<Vec<Node>, (Duration, u64)>;

impl StepTimes {
    /// Starts the clock.
    #[expect(clippy::new_without_default, reason = "it starts a clock")]
    pub fn new() -> StepTimes {
        StepTimes {
            since: Instant::now(),
            entered: Vec::new(),
            of_host: Times::new(),
            of_device: Times::new(),
        }
    }

    /// Restarts the clock for another run, and keeps the times so far.
    pub fn restart(&mut self) {
        self.since = Instant::now();
        self.entered.clear();
    }

    /// The nodes, total time and number of executions of each step, over all runs.
    pub fn steps(&self) -> impl Iterator<Item = (&[Node], Duration, u64)> {
        let times = if self.of_device.is_empty() { &self.of_host } else { &self.of_device };
        times.iter().map(|(nodes, &(time, count))| (&nodes[..], time, count))
    }

    fn count(&mut self, nodes: &[Node], executions: u64) {
        let now = Instant::now();
        add(&mut self.of_host, nodes, now - self.since, executions);
        self.since = now;
    }
}

fn add(times: &mut Times, nodes: &[Node], time: Duration, executions: u64) {
    match times.get_mut(nodes) {
        Some((sum, count)) => {
            *sum += time;
            *count += executions;
        }
        None => {
            times.insert(nodes.to_vec(), (time, executions));
        }
    }
}

impl NodeObserver for StepTimes {
    /// Watches no value, so nodes are fused as in any run.
    fn watch(&self) -> Watch {
        Watch::nothing()
    }

    fn value(&mut self, _: Node, _: usize, _: DataRef<'_>) {}

    fn ran(&mut self, nodes: &[Node]) {
        self.count(nodes, 1);
    }

    fn wants_times(&self) -> bool {
        true
    }

    fn took(&mut self, nodes: &[Node], time: Duration) {
        add(&mut self.of_device, nodes, time, 1);
    }

    fn enter(&mut self, node: Node, _: GraphId) {
        self.count(&[node], 0);
        self.entered.push(node);
    }

    fn leave(&mut self) {
        if let Some(node) = self.entered.pop() {
            self.count(&[node], 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execute::Inputs;
    use crate::execute::session::{prepare, views};
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
        let mut met: Vec<Node> = profile.steps().flat_map(|(nodes, ..)| nodes).copied().collect();
        met.sort_unstable();
        let mut nodes: Vec<Node> = model.module.nodes(model.module.main()).collect();
        nodes.sort_unstable();
        assert_eq!(met, nodes);
        assert!(profile.steps().any(|(nodes, ..)| nodes.len() > 1), "the CPU joins nodes of this model");
        assert!(profile.steps().all(|(.., count)| count == 1));
        assert!(profile.steps().map(|(_, time, _)| time).sum::<Duration>() <= whole);
    }
}
