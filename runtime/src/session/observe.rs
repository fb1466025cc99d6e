//! Observers, which see the values of a run.

use super::bind::Program;
use super::error::ExecuteError;
use super::frame::{Frame, Scope};
use super::space::Space;
use crate::data::{Data, DataRef};
use crate::device::{DeviceError, Download, Event};
use crate::host::HostTensor;
use crate::kernel::KernelError;
use crate::plan::Step;
use ampc_ir::{DType, GraphId, Node, Value};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The values that an observer sees.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Watch {
    /// Every value, including those of bodies and functions in each of their runs. The backend then fuses no nodes.
    All,
    /// Values of the main graph, sorted by their ids. The backend may fuse nodes as long as these values are
    /// computed.
    Values(Arc<[Value]>),
}

impl Watch {
    /// No value.
    pub fn nothing() -> Watch {
        Watch::Values(Arc::default())
    }

    /// These values of the main graph.
    pub fn values(values: impl IntoIterator<Item = Value>) -> Watch {
        let mut values: Vec<Value> = values.into_iter().collect();
        values.sort_unstable();
        values.dedup();
        Watch::Values(values.into())
    }

    /// True if the observer sees the value.
    pub fn contains(&self, value: Value) -> bool {
        match self {
            Watch::All => true,
            Watch::Values(values) => values.binary_search(&value).is_ok(),
        }
    }

    /// The union of two sets of values.
    #[must_use]
    pub fn and(self, other: Watch) -> Watch {
        match (self, other) {
            (Watch::Values(these), Watch::Values(those)) if these == those => Watch::Values(these),
            (Watch::Values(these), Watch::Values(those)) => {
                Watch::values(these.iter().chain(those.iter()).copied())
            }
            _ => Watch::All,
        }
    }
}

/// Sees values as they are computed, in the order of the nodes. Values are passed in host memory: an observer sees a
/// value of a device some time after its computation, at the latest when the run ends.
pub trait NodeObserver {
    /// The values that the observer sees. Called once before a run.
    fn watch(&self) -> Watch {
        Watch::All
    }

    /// Result `slot` of `node` was computed.
    fn value(&mut self, node: Node, slot: usize, data: DataRef<'_>);

    /// Called when the nodes of a step have run; on a device, when their work was submitted. For an inlined call,
    /// these are the nodes of the function.
    fn ran(&mut self, nodes: &[Node]) {
        let _ = nodes;
    }

    /// True if the observer requests the times of steps on a device ([`took`](Self::took)). Called once before a run.
    fn wants_times(&self) -> bool {
        false
    }

    /// Reports the time of a step on the device, from the end of earlier work of its queue: a step that is launched
    /// late includes the wait for its launch. Called after the step has run, at the latest when the run ends. Not
    /// called for nodes with bodies, in host memory, or if the device has no clock.
    fn took(&mut self, nodes: &[Node], time: Duration) {
        let _ = (nodes, time);
    }

    /// A body of `node`, or the function that it calls, starts to run: the next values belong to its nodes, until
    /// [`leave`](Self::leave). Called once for each run of a body.
    fn enter(&mut self, node: Node, graph: GraphId) {
        let _ = (node, graph);
    }

    /// The graph that was entered last has run.
    fn leave(&mut self) {}

    /// Returns false to end the run with [`ExecuteError::Stopped`](super::ExecuteError::Stopped). Called before every
    /// node that writes to a state in place, and before the next values of states are stored. All values until then
    /// have been seen.
    fn permits_updates(&mut self) -> bool {
        true
    }
}

/// Both observers see every value, the first observer first.
impl<A: NodeObserver, B: NodeObserver> NodeObserver for (A, B) {
    fn watch(&self) -> Watch {
        self.0.watch().and(self.1.watch())
    }
    fn value(&mut self, node: Node, slot: usize, data: DataRef<'_>) {
        self.0.value(node, slot, data);
        self.1.value(node, slot, data);
    }
    fn ran(&mut self, nodes: &[Node]) {
        self.0.ran(nodes);
        self.1.ran(nodes);
    }
    fn wants_times(&self) -> bool {
        self.0.wants_times() || self.1.wants_times()
    }
    fn took(&mut self, nodes: &[Node], time: Duration) {
        self.0.took(nodes, time);
        self.1.took(nodes, time);
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

/// The maximum size of values in transfer from a device to an observer. A larger value is transferred alone.
const MOST_BYTES_ON_THE_WAY: usize = 64 << 20;

/// An observer of a run, and the values in transfer to it.
pub(crate) struct Observing<'a> {
    observer: &'a mut (dyn NodeObserver + Send),
    watch: Watch,
    on_the_way: VecDeque<Sent>,
    bytes: usize,
    wants_times: bool,
    /// The steps whose times the observer has not received yet.
    timed: Vec<Timed>,
}

/// The maximum number of timed steps on a device before the host waits for them.
const MOST_TIMED: usize = 4096;

/// The nodes of a step on a device, its queue, and the events before and after it.
struct Timed {
    nodes: SmallVec<[Node; 8]>,
    queue: usize,
    from: Event,
    to: Event,
}

/// A value in transfer from a device.
struct Sent {
    node: Node,
    slot: usize,
    dtype: DType,
    dims: Vec<u64>,
    bytes: usize,
    download: Box<dyn Download>,
}

impl<'a> Observing<'a> {
    pub(super) fn new(observer: &'a mut (dyn NodeObserver + Send)) -> Observing<'a> {
        let (watch, wants_times) = (observer.watch(), observer.wants_times());
        Observing { observer, watch, on_the_way: VecDeque::new(), bytes: 0, wants_times, timed: Vec::new() }
    }

    /// The values that the observer sees.
    pub(super) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// True if the observer sees a result of a step.
    pub(super) fn sees(&self, scope: Scope<'_>, step: &Step) -> bool {
        let value = |index: &u32| scope.plan.values[*index as usize].value;
        step.results.iter().flatten().any(|index| self.watch.contains(value(index)))
    }

    /// Notifies the observer that a step has run.
    pub(super) fn ran(&mut self, program: &Program, step: &Step) {
        self.observer.ran(&sources(program, step));
    }

    /// Records the event before a step, if the observer requests times and the device has a clock.
    pub(super) fn mark(&self, space: &mut Space, step: &Step) -> Result<Option<Event>, DeviceError> {
        match space.queue_at(step.queue).filter(|_| self.wants_times) {
            Some(queue) => queue.mark(),
            None => Ok(None),
        }
    }

    /// Records the event after a step, which began at `from`.
    pub(super) fn marked(
        &mut self,
        space: &mut Space,
        program: &Program,
        step: &Step,
        from: Event,
    ) -> Result<(), DeviceError> {
        if let Some(to) = self.mark(space, step)? {
            self.timed.push(Timed { nodes: sources(program, step), queue: step.queue, from, to });
        }
        if self.timed.len() < MOST_TIMED { Ok(()) } else { self.tell_times(space) }
    }

    /// Reports the times of the steps so far to the observer, after waiting for them.
    pub(super) fn tell_times(&mut self, space: &mut Space) -> Result<(), DeviceError> {
        for Timed { nodes, queue, from, to } in std::mem::take(&mut self.timed) {
            if let Some(queue) = space.queue_at(queue) {
                self.observer.took(&nodes, queue.elapsed(&from, &to)?);
            }
        }
        Ok(())
    }

    /// Shows the observer the results of a step that has just run.
    pub(super) fn see(
        &mut self,
        space: &mut Space,
        scope: Scope<'_>,
        step: &Step,
        frame: &Frame,
    ) -> Result<(), ExecuteError> {
        // Any node of a group may have produced a result of the group.
        let is_group = step.nodes.len() > 1;
        for (slot, index) in step.results.iter().enumerate() {
            let Some(index) = *index else { continue };
            let value = scope.plan.values[index as usize].value;
            if !self.watch.contains(value) {
                continue;
            }
            let (node, slot) = match scope.program.module.producer(value).filter(|_| is_group) {
                Some((node, slot)) => (node, slot as usize),
                None => (step.node(), slot),
            };
            let Some(data) = frame.get(scope, index) else { continue };
            self.send(space, (node, slot), data).map_err(|error| ExecuteError::of_kernel(node, error))?;
        }
        Ok(())
    }

    fn send(
        &mut self,
        space: &mut Space,
        (node, slot): (Node, usize),
        data: DataRef<'_>,
    ) -> Result<(), KernelError> {
        let (DataRef::Device(tensor), Some(on)) = (data, space.queue()) else {
            self.settle()?;
            return space.on_host(data, |data| self.observer.value(node, slot, data));
        };
        let bytes = tensor.span.len;
        while !self.on_the_way.is_empty() && self.bytes.saturating_add(bytes) > MOST_BYTES_ON_THE_WAY {
            self.receive()?;
        }
        let download = on.start_download(tensor.span)?;
        let (dtype, dims) = (tensor.dtype, tensor.dims.to_vec());
        self.on_the_way.push_back(Sent { node, slot, dtype, dims, bytes, download });
        self.bytes += bytes;
        Ok(())
    }

    /// Passes the value of the oldest pending download to the observer.
    fn receive(&mut self) -> Result<(), KernelError> {
        let Some(Sent { node, slot, dtype, dims, bytes, download }) = self.on_the_way.pop_front() else {
            return Ok(());
        };
        self.bytes -= bytes;
        let tensor = HostTensor::filled(dtype, &dims, |to| download.finish(to).map_err(KernelError::from))?;
        self.observer.value(node, slot, Data::Tensor(tensor).view());
        Ok(())
    }

    /// Passes all values in transfer to the observer.
    pub(super) fn settle(&mut self) -> Result<(), KernelError> {
        while !self.on_the_way.is_empty() {
            self.receive()?;
        }
        Ok(())
    }

    pub(crate) fn enter(&mut self, node: Node, graph: GraphId) -> Result<(), ExecuteError> {
        self.settle().map_err(|error| ExecuteError::of_kernel(node, error))?;
        self.observer.enter(node, graph);
        Ok(())
    }

    pub(crate) fn leave(&mut self, node: Node) -> Result<(), ExecuteError> {
        self.settle().map_err(|error| ExecuteError::of_kernel(node, error))?;
        self.observer.leave();
        Ok(())
    }

    pub(super) fn permits_updates(&mut self) -> Result<bool, ExecuteError> {
        self.settle().map_err(ExecuteError::of_transfer)?;
        Ok(self.observer.permits_updates())
    }
}

/// The nodes of a step, as nodes of the given module.
fn sources(program: &Program, step: &Step) -> SmallVec<[Node; 8]> {
    step.nodes.iter().map(|&node| program.source(node)).collect()
}
