//! Errors of cuDNN.

use super::Engine;
use crate::backend::DeviceError;
use crate::cuda::presence::{CudaError, CudaErrorKind};
use crate::kernel::KernelError;
use ampc_ir::DType;

/// Error of cuDNN.
#[derive(Debug, thiserror::Error)]
pub enum DnnError {
    /// The library is absent or cannot be loaded.
    #[error(transparent)]
    Library(#[from] CudaError),
    /// A call failed.
    #[error("{call} of cuDNN: {status}{}{message}", if .message.is_empty() { "" } else { ": " })]
    Call {
        /// The function.
        call: &'static str,
        /// The name of the status.
        status: String,
        /// The message of the library.
        message: String,
        /// True if cuDNN does not support the operation.
        is_unsupported: bool,
    },
    /// cuDNN has no convolution or attention of this element type.
    #[error("convolutions and attention of cuDNN do not support {0}")]
    ElementType(DType),
    /// No engine computes the graph in f32 and deterministically.
    #[error("cuDNN has no engine for the graph{}", reasons(.refused))]
    NoEngine {
        /// The rejected engines, each with the reason.
        refused: Vec<(Engine, String)>,
    },
}

fn reasons(refused: &[(Engine, String)]) -> String {
    let reasons: Vec<String> =
        refused.iter().map(|(engine, reason)| format!("engine {} {reason}", engine.index)).collect();
    if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) }
}

impl From<DnnError> for KernelError {
    fn from(error: DnnError) -> KernelError {
        match &error {
            DnnError::Library(library) => match library.kind() {
                CudaErrorKind::Unsupported => KernelError::unsupported(format!("a convolution: {error}")),
                CudaErrorKind::NoMemory => DeviceError::OutOfMemory(error.to_string()).into(),
                CudaErrorKind::Refused => DeviceError::Failed(error.to_string()).into(),
                CudaErrorKind::Bug => DeviceError::Invalid(error.to_string()).into(),
            },
            DnnError::Call { is_unsupported: false, .. } => error.of_call().into(),
            _ => KernelError::unsupported(format!("a convolution: {error}")),
        }
    }
}

impl DnnError {
    /// True if cuDNN does not support the operation.
    pub(super) fn is_unsupported(&self) -> bool {
        matches!(self, DnnError::Call { is_unsupported: true, .. })
    }

    /// True if only this engine failed, so that another may be tried: the call was valid, and memory sufficed.
    pub(super) fn is_of_engine(&self) -> bool {
        let DnnError::Call { call, status, .. } = self else { return false };
        let others = ["BAD_PARAM", "NOT_INITIALIZED"];
        matches!(*call, "cudnnBackendFinalize" | "cudnnBackendExecute")
            && !self.is_no_memory()
            && !others.iter().any(|other| status.contains(other))
    }

    /// True if cuDNN could not allocate device or host memory.
    fn is_no_memory(&self) -> bool {
        let names = ["ALLOC_FAILED", "ALLOCATION_FAILED"];
        matches!(self, DnnError::Call { status, .. } if names.iter().any(|name| status.contains(name)))
    }

    /// True if cuDNN rejects a call as invalid, which is a bug of the backend.
    pub(in crate::cuda) fn is_invalid(&self) -> bool {
        match self {
            DnnError::Call { status, .. } => status.contains("BAD_PARAM"),
            DnnError::Library(library) => library.kind() == CudaErrorKind::Bug,
            DnnError::ElementType(_) | DnnError::NoEngine { .. } => false,
        }
    }

    /// The device error of a failed call.
    pub(super) fn of_call(&self) -> DeviceError {
        match (self.is_no_memory(), self.is_invalid()) {
            (true, _) => DeviceError::OutOfMemory(self.to_string()),
            (false, true) => DeviceError::Invalid(self.to_string()),
            (false, false) => DeviceError::Failed(self.to_string()),
        }
    }
}
