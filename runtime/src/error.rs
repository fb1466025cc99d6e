//! Errors of tensors, kernels and devices.

use ampc_ir::DType;
use ampc_ir::Node;
use ampc_ir::tensor::TensorError;
use ampc_ir::views::OpError;

/// Error of making or viewing a tensor.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The elements do not fit dtype and dims, or cannot be read.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// There is not so much memory.
    #[error("no memory for a tensor of {dtype}{dims:?}")]
    OutOfMemory {
        /// Element type.
        dtype: DType,
        /// Dims.
        dims: Vec<u64>,
    },
    /// The tensor has more bytes than it may have.
    #[error("expected at most {limit} bytes, found a tensor of {dtype}{dims:?}")]
    Limit {
        /// The limit.
        limit: u64,
        /// Element type.
        dtype: DType,
        /// Dims.
        dims: Vec<u64>,
    },
    /// The states of a graph have more bytes together than they may have.
    #[error("expected at most {limit} bytes, found {bytes} of all states")]
    States {
        /// The limit.
        limit: u64,
        /// The bytes found.
        bytes: u64,
    },
    /// The system has no memory for a list that a tensor is made from, or for a buffer that it is read with.
    #[error("the system has no {bytes} bytes of memory")]
    NoMemory {
        /// The bytes requested.
        bytes: u64,
    },
    /// The number of strings does not fit the dims.
    #[error("expected {expected} strings for string{dims:?}, found {found}")]
    StringCount {
        /// Dims.
        dims: Vec<u64>,
        /// Product of the dims.
        expected: u64,
        /// Strings that are there.
        found: u64,
    },
    /// An index of a sparse tensor is beyond its dims.
    #[error("expected indices within {dims:?}, found {index:?}")]
    SparseIndex {
        /// The index.
        index: Vec<i64>,
        /// Dims.
        dims: Vec<u64>,
    },
    /// The elements are in the memory of a device.
    #[error("the tensor is in the memory of a device")]
    OnDevice,
    /// A copy to or from a device failed.
    #[error("{0}")]
    Device(Box<crate::device::DeviceError>),
    /// A view does not fit the element type.
    #[error("a tensor of {found} cannot be viewed as {view}")]
    View {
        /// The requested view.
        view: &'static str,
        /// Element type of the tensor.
        found: DType,
    },
}

impl HostError {
    /// True if the system refused memory.
    pub fn is_no_memory(&self) -> bool {
        match self {
            HostError::OutOfMemory { .. } | HostError::NoMemory { .. } => true,
            HostError::Tensor(error) => error.is_no_memory(),
            HostError::Limit { .. }
            | HostError::States { .. }
            | HostError::StringCount { .. }
            | HostError::SparseIndex { .. }
            | HostError::OnDevice
            | HostError::Device(_)
            | HostError::View { .. } => false,
        }
    }
}

/// An error of preparing or running a kernel.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The node does not fit its operator.
    #[error(transparent)]
    Op(#[from] OpError),
    /// A tensor cannot be allocated, or differs from the expected tensor.
    #[error(transparent)]
    Host(#[from] HostError),
    /// There is no kernel for the node, described in words.
    #[error("the backend does not support {0}")]
    Unsupported(String),
    /// An operand has an invalid value.
    #[error("expected {expected}, found {found}")]
    Value {
        /// The value that the operator requires.
        expected: String,
        /// The value found.
        found: String,
    },
    /// The node would exceed a limit.
    #[error("expected at most {limit}, found {found}")]
    Limit {
        /// The limit.
        limit: String,
        /// The size required.
        found: String,
    },
    /// The device failed.
    #[error(transparent)]
    Device(Box<DeviceError>),
    /// A fact is known only while the graph runs.
    #[error("an operand is not known yet")]
    NotYet,
}

impl KernelError {
    /// True if the system refused memory.
    pub fn is_no_memory(&self) -> bool {
        match self {
            KernelError::Host(error) => error.is_no_memory(),
            KernelError::Device(error) => error.is_no_memory(),
            _ => false,
        }
    }

    /// The error that there is no kernel for `what`.
    pub fn unsupported(what: impl Into<String>) -> KernelError {
        KernelError::Unsupported(what.into())
    }

    /// The error of an operand with an invalid value.
    pub fn value(expected: impl Into<String>, found: impl ToString) -> KernelError {
        KernelError::Value { expected: expected.into(), found: found.to_string() }
    }
}

impl From<DeviceError> for KernelError {
    fn from(error: DeviceError) -> KernelError {
        KernelError::Device(Box::new(error))
    }
}

pub(crate) type Result<T, E = KernelError> = std::result::Result<T, E>;

/// A failure of a device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The device has no memory for a block.
    #[error("out of device memory: cannot allocate {bytes} bytes")]
    NoMemory {
        /// The bytes requested.
        bytes: u64,
    },
    /// A call that allocates no block failed because device or host memory is exhausted. Later calls may succeed.
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    /// A kernel failed after its launch.
    #[error("{error}")]
    Kernel {
        /// The node.
        node: Node,
        /// The failure.
        error: KernelError,
    },
    /// The device rejected a call. Later calls may succeed.
    #[error("the device rejected a call: {0}")]
    Failed(String),
    /// The device rejected a call as invalid, or a kernel accessed memory outside of its operands and results: a bug
    /// of the backend. Later calls may fail.
    #[error("the device rejected invalid work: {0}")]
    Invalid(String),
    /// The device does not respond any more.
    #[error("the device is lost: {0}")]
    Lost(String),
}

impl DeviceError {
    /// True if an allocation failed.
    pub fn is_no_memory(&self) -> bool {
        match self {
            DeviceError::NoMemory { .. } | DeviceError::OutOfMemory(_) => true,
            DeviceError::Kernel { error, .. } => error.is_no_memory(),
            DeviceError::Failed(_) | DeviceError::Invalid(_) | DeviceError::Lost(_) => false,
        }
    }

    /// The earlier failure; or this failure, if there is no earlier one, or if only this failure names a kernel's node.
    pub(crate) fn or_of_kernel(self, earlier: Option<DeviceError>) -> DeviceError {
        match (earlier, self) {
            (None, later)
            | (Some(DeviceError::Failed(_) | DeviceError::Lost(_)), later @ DeviceError::Kernel { .. }) => {
                later
            }
            (Some(earlier), _) => earlier,
        }
    }
}

impl From<HostError> for DeviceError {
    fn from(error: HostError) -> DeviceError {
        match error {
            HostError::NoMemory { bytes } => DeviceError::NoMemory { bytes },
            other => DeviceError::Failed(other.to_string()),
        }
    }
}
