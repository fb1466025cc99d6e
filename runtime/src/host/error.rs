//! Errors of making or viewing a tensor.

use ampc_ir::DType;
use ampc_ir::tensor::TensorError;

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
