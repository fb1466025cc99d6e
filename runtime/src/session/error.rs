//! Errors of preparing a module, and of running it.

use crate::device::DeviceError;
use crate::host::HostError;
use crate::kernel::KernelError;
use ampc_ir::infer::InferError;
use ampc_ir::{Node, Value};
use std::time::Duration;

/// Error of preparing a module.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// Some nodes have no kernels. All such nodes are listed.
    #[error("the {backend} backend lacks {} of the operators in use, the first is {}", nodes.len(), first(nodes))]
    Unsupported {
        /// The name of the backend.
        backend: &'static str,
        /// The nodes, each with its operator.
        nodes: Vec<(Node, String)>,
    },
    /// A constant cannot be read.
    #[error("cannot read a constant: {error}")]
    Constant {
        /// The constant.
        value: Value,
        /// The cause.
        error: HostError,
    },
    /// The device fails.
    #[error(transparent)]
    Device(DeviceError),
}

impl PrepareError {
    /// True if an allocation failed.
    pub fn is_no_memory(&self) -> bool {
        match self {
            PrepareError::Constant { error, .. } => error.is_no_memory(),
            PrepareError::Device(error) => error.is_no_memory(),
            PrepareError::Unsupported { .. } => false,
        }
    }
}

/// The device memory of other sessions, as a part of a sentence.
fn besides(reserved: u64) -> String {
    if reserved == 0 { String::new() } else { format!(" besides {reserved} bytes in use") }
}

fn listed(largest: &[(String, u64)]) -> String {
    let value = |(name, bytes): &(String, u64)| format!("`{name}` ({bytes} bytes)");
    largest.iter().map(value).collect::<Vec<_>>().join(", ")
}

fn first(list: &[(Node, String)]) -> &str {
    list.first().map_or("", |(_, what)| what)
}

/// Error of a run.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// An input is missing, or is not declared by the graph.
    #[error("input {input}: expected {expected}, found {found}")]
    Input {
        /// The index of the input.
        input: usize,
        /// The type in the graph.
        expected: String,
        /// The type given.
        found: String,
    },
    /// The dims of the inputs do not fit the graph.
    #[error("the dims of the inputs do not fit the graph: {}", .0.first().map_or_else(String::new, ToString::to_string))]
    Shapes(Vec<InferError>),
    /// The backend has no kernels for nodes that run in any case. All such nodes are listed.
    #[error("the {backend} backend lacks {} of the kernels in use, the first is {}", .nodes.len(), first(.nodes))]
    Unsupported {
        /// The name of the backend.
        backend: &'static str,
        /// The nodes, each with its operator and element types.
        nodes: Vec<(Node, String)>,
    },
    /// A node cannot be computed.
    #[error("{error}")]
    Node {
        /// The node.
        node: Node,
        /// The function calls around the node, outermost first.
        calls: Vec<Node>,
        /// The cause.
        error: KernelError,
    },
    /// The graph needs more memory than the limit.
    #[error(
        "expected at most {limit} bytes, found {bytes} for the inputs, constants and results of the graph"
    )]
    Memory {
        /// The node with the largest result, if there is one.
        node: Option<Node>,
        /// The function calls around the node, outermost first.
        calls: Vec<Node>,
        /// The bytes needed.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The system cannot allocate memory that the graph needs and the limit permits.
    #[error("out of memory: cannot allocate {bytes} bytes{} for the graph", if *.on_device { " of device memory" } else { "" })]
    NoMemory {
        /// The node with the largest result, if there is one.
        node: Option<Node>,
        /// The function calls around the node, outermost first.
        calls: Vec<Node>,
        /// The bytes needed.
        bytes: u64,
        /// True if they are bytes of device memory.
        on_device: bool,
    },
    /// The graph needs more device memory than the limit. Nothing of the plan was allocated.
    #[error("the model needs {bytes} bytes of device memory{}, and the limit is {limit}; the largest values are {}", besides(*.reserved), listed(.largest))]
    DeviceMemory {
        /// The bytes needed.
        bytes: u64,
        /// The bytes of other sessions that count against the limit.
        reserved: u64,
        /// The limit.
        limit: u64,
        /// The names and bytes of the largest values.
        largest: Vec<(String, u64)>,
    },
    /// A loop exceeds its limit of iterations.
    #[error("expected at most {limit} iterations, found more")]
    Iterations {
        /// The Loop.
        node: Node,
        /// The function calls around the node, outermost first.
        calls: Vec<Node>,
        /// The limit.
        limit: u64,
    },
    /// The run exceeds its time limit.
    #[error("the time limit of {limit:?} is exceeded")]
    Time {
        /// The next node, unless the graph has none.
        node: Option<Node>,
        /// The function calls around the node, outermost first.
        calls: Vec<Node>,
        /// The limit.
        limit: Duration,
    },
    /// Another thread requested the end of the run.
    #[error("stopped")]
    Stopped,
    /// The next value of a state has another type than the state.
    #[error("state {input}: expected {expected} as its next value, found {found}")]
    State {
        /// The index of the input that is the state.
        input: usize,
        /// The type of the state in the graph.
        expected: String,
        /// The type of the next value.
        found: String,
    },
    /// A failed run has updated some states in place, and not all states were set again.
    #[error("a failed run may have updated only some of the states; set all states before the next run")]
    TornStates,
    /// An output has no value: its producer returned no value.
    #[error("output {output} has no value")]
    NoOutput {
        /// The index of the output.
        output: usize,
    },
    /// The device rejected a call, or is lost.
    #[error(transparent)]
    Device(DeviceError),
    /// An output cannot be copied.
    #[error(transparent)]
    Output(#[from] HostError),
}

impl From<DeviceError> for ExecuteError {
    fn from(error: DeviceError) -> ExecuteError {
        ExecuteError::of_device(None, error)
    }
}

impl ExecuteError {
    /// The error of a kernel. A failure that is reported late has its own node.
    pub(super) fn of_kernel(node: Node, error: KernelError) -> ExecuteError {
        match error {
            KernelError::Device(error) => ExecuteError::of_device(Some(node), *error),
            error => ExecuteError::Node { node, calls: Vec::new(), error },
        }
    }

    /// The error of copying a value between the host and a device.
    pub(super) fn of_transfer(error: KernelError) -> ExecuteError {
        match error {
            KernelError::Device(error) => ExecuteError::of_device(None, *error),
            KernelError::Host(error) => ExecuteError::Output(error),
            other => ExecuteError::Device(DeviceError::Failed(other.to_string())),
        }
    }

    /// The error of a device that is reported while `node` runs.
    pub(super) fn of_device(node: Option<Node>, error: DeviceError) -> ExecuteError {
        match error {
            DeviceError::NoMemory { bytes } => {
                ExecuteError::NoMemory { node, calls: Vec::new(), bytes, on_device: true }
            }
            DeviceError::Kernel { node, error } => ExecuteError::Node { node, calls: Vec::new(), error },
            error @ (DeviceError::Failed(_) | DeviceError::OutOfMemory(_)) => match node {
                Some(node) => ExecuteError::Node { node, calls: Vec::new(), error: error.into() },
                None => ExecuteError::Device(error),
            },
            error @ (DeviceError::Invalid(_) | DeviceError::Lost(_)) => ExecuteError::Device(error),
        }
    }

    /// True if the device rejected a call and later calls may succeed.
    pub(super) fn is_refusal(&self) -> bool {
        let is_failed =
            |error: &DeviceError| matches!(error, DeviceError::Failed(_) | DeviceError::OutOfMemory(_));
        match self {
            ExecuteError::Device(error) => is_failed(error),
            ExecuteError::Node { error: KernelError::Device(error), .. } => is_failed(error),
            _ => false,
        }
    }

    /// The node of the error, and the function calls around it, outermost first.
    pub fn place(&self) -> Option<(Node, &[Node])> {
        match self {
            ExecuteError::Node { node, calls, .. }
            | ExecuteError::Iterations { node, calls, .. }
            | ExecuteError::Memory { node: Some(node), calls, .. }
            | ExecuteError::NoMemory { node: Some(node), calls, .. }
            | ExecuteError::Time { node: Some(node), calls, .. } => Some((*node, calls)),
            _ => None,
        }
    }

    /// Like [`place`](Self::place), but mutable.
    pub(super) fn place_mut(&mut self) -> Option<(&mut Node, &mut Vec<Node>)> {
        match self {
            ExecuteError::Node { node, calls, .. }
            | ExecuteError::Iterations { node, calls, .. }
            | ExecuteError::Memory { node: Some(node), calls, .. }
            | ExecuteError::NoMemory { node: Some(node), calls, .. }
            | ExecuteError::Time { node: Some(node), calls, .. } => Some((node, calls)),
            _ => None,
        }
    }

    /// Adds the call to the error of a function.
    pub(super) fn in_call(mut self, call: Node) -> ExecuteError {
        if let Some((node, calls)) = self.place_mut()
            && *node != call
        {
            calls.insert(0, call);
        }
        self
    }

    /// True if an allocation failed.
    pub fn is_no_memory(&self) -> bool {
        match self {
            ExecuteError::NoMemory { .. } => true,
            ExecuteError::Node { error, .. } => error.is_no_memory(),
            ExecuteError::Output(error) => error.is_no_memory(),
            ExecuteError::Device(error) => error.is_no_memory(),
            ExecuteError::Input { .. }
            | ExecuteError::Shapes(_)
            | ExecuteError::Unsupported { .. }
            | ExecuteError::Memory { .. }
            | ExecuteError::DeviceMemory { .. }
            | ExecuteError::Iterations { .. }
            | ExecuteError::Time { .. }
            | ExecuteError::Stopped
            | ExecuteError::State { .. }
            | ExecuteError::TornStates
            | ExecuteError::NoOutput { .. } => false,
        }
    }
}
