//! Errors of writing a model.

use super::Blame;
use crate::onnx::target::TargetError;
use crate::onnx::tensor::TensorIssue;
use crate::onnx::wire::WireError;

/// Error of writing a model.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The target cannot be written.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A message of the source cannot be read again.
    #[error("cannot read `{path}` again: {source}")]
    Source {
        /// The file.
        path: String,
        /// The cause.
        source: WireError,
    },
    /// A constant has a conversion that does not exist.
    #[error("constant `{name}` cannot be converted from {from} to {to}")]
    Conversion {
        /// The constant.
        name: String,
        /// Its type.
        from: ampc_ir::DType,
        /// The requested type.
        to: ampc_ir::DType,
    },
    /// An operator of ai.ampc cannot be written as a call of a function.
    #[error("`{node}` cannot be written as a call of a function of ai.ampc: {issue}")]
    Body {
        /// The node.
        node: String,
        /// The obstacle.
        issue: BodyIssue,
    },
    /// Readers do not accept a sparse constant.
    #[error("constant `{name}`: {issue}")]
    Sparse {
        /// The constant.
        name: String,
        /// The problem.
        issue: TensorIssue,
    },
    /// The message would be larger than readers accept.
    #[error(
        "the model takes {bytes} bytes in one file, and readers accept at most {limit}; use external data (`--external-data auto`)"
    )]
    TooLarge {
        /// Bytes of the file.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A data file has no place beside a pipe or device.
    #[error(
        "constants of the model go to a data file beside the output, but `{path}` is a pipe or device; write to a \
         file, or put them into the model (`--external-data never`)"
    )]
    NoFolder {
        /// The target.
        path: String,
    },
    /// The name of the target is not UTF-8, so the location of its external data cannot be spelled.
    #[error("external data is named after `{path}`, which is not UTF-8; choose another name")]
    NameNotUtf8 {
        /// The target.
        path: String,
    },
}

/// Obstacle to writing a function of ai.ampc.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BodyIssue {
    /// The operator has no such form.
    #[error("no form of the operator has its operands and attributes")]
    NoForm,
    /// The name is taken.
    #[error("the model has another function called `{name}`; rename it")]
    Taken {
        /// Name and overload.
        name: String,
    },
    /// The model is of an IR version without overloads.
    #[error(
        "its overload takes IR version {needed}, and the model is of {found}; a higher opset raises it (`--opset N`), or export the model in that version"
    )]
    IrVersion {
        /// The first version that has overloads.
        needed: i64,
        /// That of the model.
        found: i64,
    },
    /// The model imports an opset that bodies are not written for.
    #[error(
        "its body takes opset {needed} of ai.onnx or a newer one, and the model imports {found}; raise it (`--opset 21`)"
    )]
    Opset {
        /// The first opset.
        needed: u16,
        /// That of the model.
        found: u16,
    },
}

impl ExportError {
    /// The party that can solve the error.
    pub fn blame(&self) -> Blame {
        match self {
            ExportError::Target(TargetError::Twice { .. }) => Blame::Usage,
            ExportError::Target(_) | ExportError::Source { .. } => Blame::Io,
            ExportError::Sparse { .. } => Blame::Input,
            ExportError::Body { issue: BodyIssue::NoForm | BodyIssue::Taken { .. }, .. } => Blame::Input,
            ExportError::Body { issue: BodyIssue::IrVersion { .. } | BodyIssue::Opset { .. }, .. } => {
                Blame::NotSupported
            }
            ExportError::Conversion { .. } | ExportError::TooLarge { .. } => Blame::NotSupported,
            ExportError::NoFolder { .. } => Blame::Usage,
            ExportError::NameNotUtf8 { .. } => Blame::Io,
        }
    }
}
