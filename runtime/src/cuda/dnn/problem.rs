//! A convolution, an attention or its gradient: everything that a plan depends on, besides the device.

use super::graph::{Convolution, Graph};
use super::{Attention, AttentionGradient, DnnError, MOST_WORKSPACE};
use ampc_ir::DType;
use cudarc::cudnn::sys;
use std::fmt;

/// A computation that cuDNN has operation graphs for.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(in crate::cuda) enum Problem {
    Convolution(Box<Convolution>),
    Attention(Box<Attention>),
    Gradient(Box<AttentionGradient>),
}

/// The text is the key of plans that are kept for later processes.
impl fmt::Debug for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Convolution(convolution) => convolution.fmt(f),
            Problem::Attention(attention) => f.debug_tuple("Forward").field(attention).finish(),
            Problem::Gradient(gradient) => f.debug_tuple("Gradient").field(gradient).finish(),
        }
    }
}

impl Problem {
    /// The element type of the operands.
    pub(super) fn dtype(&self) -> DType {
        match self {
            Problem::Convolution(convolution) => convolution.dtype,
            Problem::Attention(attention) => attention.dtype,
            Problem::Gradient(gradient) => gradient.of.dtype,
        }
    }

    /// The operation graph; `handle` is that of the device, if there is one. The tensors of a convolution have this
    /// alignment in bytes.
    ///
    /// # Errors
    /// If cuDNN rejects a descriptor.
    pub(super) fn graph(
        &self,
        handle: Option<sys::cudnnHandle_t>,
        alignment: u32,
    ) -> Result<Graph, DnnError> {
        match self {
            Problem::Convolution(convolution) => convolution.graph(handle, alignment),
            Problem::Attention(attention) => attention.graph(handle),
            Problem::Gradient(gradient) => gradient.graph(handle),
        }
    }

    /// The most bytes of workspace of a plan.
    pub(super) fn workspace(&self) -> usize {
        match self {
            Problem::Convolution(_) | Problem::Attention(_) => MOST_WORKSPACE,
            Problem::Gradient(gradient) => gradient.workspace(),
        }
    }

    /// The names of the tensors of a variant pack, in the order of their addresses.
    pub(super) fn ids(&self) -> Vec<i64> {
        match self {
            Problem::Convolution(convolution) => convolution.ids(),
            Problem::Attention(attention) => attention.ids(),
            Problem::Gradient(gradient) => gradient.ids(),
        }
    }
}
