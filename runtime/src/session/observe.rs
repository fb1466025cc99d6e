//! Observers: code that sees the values of a run.

use crate::data::DataRef;
use ampc_ir::{GraphId, Node};

/// Sees every value that is computed, in order, those of bodies and functions each time that they run. A run with an
/// observer computes every node by itself, and hands each value over in host memory.
pub trait NodeObserver {
    /// Result `slot` of `node` was computed.
    fn value(&mut self, node: Node, slot: usize, data: DataRef<'_>);

    /// A body of `node`, or the function that it calls, starts to run: the next values are of its nodes, until
    /// [`leave`](Self::leave). A body that runs several times is entered as often.
    fn enter(&mut self, node: Node, graph: GraphId) {
        let _ = (node, graph);
    }

    /// The graph that was entered last has run.
    fn leave(&mut self) {}

    /// False ends the run with [`ExecuteError::Stopped`](super::ExecuteError::Stopped): asked before every node that writes to a state in place, and
    /// before the next values of states are taken.
    fn permits_updates(&mut self) -> bool {
        true
    }
}

/// Both observers see every value, the first observer first.
impl<A: NodeObserver, B: NodeObserver> NodeObserver for (A, B) {
    fn value(&mut self, node: Node, slot: usize, data: DataRef<'_>) {
        self.0.value(node, slot, data);
        self.1.value(node, slot, data);
    }
    fn enter(&mut self, node: Node, graph: GraphId) {
        self.0.enter(node, graph);
        self.1.enter(node, graph);
    }
    fn leave(&mut self) {
        self.0.leave();
        self.1.leave();
    }
    fn permits_updates(&mut self) -> bool {
        self.0.permits_updates() && self.1.permits_updates()
    }
}
