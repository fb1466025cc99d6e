//! The error type of the library's public functions, by stage.

pub(crate) mod findings;
#[cfg(feature = "run")]
pub(crate) mod run;

use crate::onnx::{Blame, ExportError, ImportError};
use ampc_ir::Node;
use ampc_ir::tensor::TensorError;
use ampc_ir::text::ParseErrors;
use ampc_passes::PassError;
use ampc_passes::autodiff::GradientError;
use ampc_passes::parameters::ParameterError;
use ampc_passes::pipeline::{PipelineError, RunError};
use ampc_passes::policy::PolicyError;
use ampc_passes::step::loss::LossError;
use ampc_passes::step::update::UpdateError;
use std::path::PathBuf;

/// Party that can solve an error; the exit codes of the binary follow it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// A comparison failed, or a training diverged: 1.
    Mismatch,
    /// An option is wrong: 2.
    Usage,
    /// The input is invalid: 3.
    InvalidInput,
    /// Legal, but not supported here: 4.
    Unsupported,
    /// Reading or writing failed, or the system refused memory: 5.
    Io,
    /// A bug of ampc: 70.
    Bug,
}

impl ErrorKind {
    /// The exit code of the binary.
    pub const fn exit_code(self) -> u8 {
        match self {
            ErrorKind::Mismatch => 1,
            ErrorKind::Usage => 2,
            ErrorKind::InvalidInput => 3,
            ErrorKind::Unsupported => 4,
            ErrorKind::Io => 5,
            ErrorKind::Bug => 70,
        }
    }
}

/// A problem of a module at a place of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// A stable name of the problem, such as `operand` or `duplicate_name`.
    pub code: &'static str,
    /// The node, if it is about one.
    pub node: Option<Node>,
    /// Path of the node or name of the graph.
    pub place: String,
    /// The operator, if it is about a node.
    pub op: Option<String>,
    /// The problem: expected and found.
    pub message: String,
    /// The label of a sample that a loss rejects, if the problem is that label.
    pub label: Option<i64>,
}

impl Finding {
    /// True if a model cannot be computed because of its values: an operator rejects them, or a loop does not end.
    #[cfg(feature = "run")]
    pub(crate) fn is_of_values(&self) -> bool {
        matches!(self.code, "node" | "iterations")
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.op {
            Some(op) => write!(f, "{op} `{}`: {}", self.place, self.message),
            None => write!(f, "`{}`: {}", self.place, self.message),
        }
    }
}

/// Error of the library.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is not a valid ONNX model.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The module cannot be written.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The text is not a module.
    #[error("`{path}`: {errors}")]
    Text {
        /// The file.
        path: PathBuf,
        /// All problems, with line and column.
        errors: ParseErrors,
    },
    /// The file of large constants beside a text is damaged.
    #[error("`{path}` is not a safetensors file: {reason}")]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// A file of tensors is damaged, or does not fit the model.
    #[error("`{path}`: {reason}")]
    Data {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// Values do not fit the inputs of a model: all that do not.
    #[cfg(feature = "run")]
    #[error("{}", list(.0))]
    Inputs(Vec<run::InputProblem>),
    /// Tensors do not fit the states of a step: all that do not.
    #[cfg(feature = "run")]
    #[error("{}", list(.0))]
    States(Vec<run::InputProblem>),
    /// A model cannot be computed on the inputs that it was given, or not within the limits.
    #[error("{0}")]
    Run(Finding),
    /// A training cannot continue.
    #[cfg(feature = "run")]
    #[error("{0}")]
    Diverged(run::Divergence),
    /// The system or a device refuses the memory that a run needs, or the device does not answer.
    #[error("{0}")]
    NoMemory(Finding),
    /// A device cannot be opened: it has no memory left, or does not answer.
    #[error("{0}")]
    Device(String),
    /// The module is invalid.
    #[error("the model is invalid: {}", list(.0))]
    Invalid(Vec<Finding>),
    /// Options contradict each other or the model.
    #[error("{0}")]
    Usage(String),
    /// The policy is invalid.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The pipeline is invalid.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// A pass needs a decision of the user.
    #[error("{0}")]
    Pass(#[source] PassError),
    /// A pass broke the module.
    #[error("a bug in ampc: {0}")]
    Bug(String),
    /// The model is legal and cannot be done.
    #[error("{0}")]
    Unsupported(String),
    /// Reading or writing failed.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

fn list(findings: &[impl std::fmt::Display]) -> String {
    const SHOWN: usize = 8;
    let mut lines: Vec<String> = findings.iter().take(SHOWN).map(ToString::to_string).collect();
    if findings.len() > SHOWN {
        lines.push(format!("and {} more", findings.len() - SHOWN));
    }
    lines.join("; ")
}

impl Error {
    /// The party that can solve the error.
    pub fn kind(&self) -> ErrorKind {
        let of = |blame: Blame| match blame {
            Blame::Input => ErrorKind::InvalidInput,
            Blame::NotSupported => ErrorKind::Unsupported,
            Blame::Io => ErrorKind::Io,
            Blame::Usage => ErrorKind::Usage,
        };
        match self {
            Error::Import(e) => of(e.blame()),
            Error::Export(e) => of(e.blame()),
            Error::Text { .. }
            | Error::Safetensors { .. }
            | Error::Data { .. }
            | Error::Run(_)
            | Error::Invalid(_) => ErrorKind::InvalidInput,
            Error::Usage(_) | Error::Policy(_) | Error::Pipeline(_) => ErrorKind::Usage,
            #[cfg(feature = "run")]
            Error::Inputs(_) => ErrorKind::Usage,
            #[cfg(feature = "run")]
            Error::States(_) => ErrorKind::InvalidInput,
            #[cfg(feature = "run")]
            Error::Diverged(_) => ErrorKind::Mismatch,
            Error::Pass(e) => match e {
                PassError::Constant { .. } => ErrorKind::Io,
                PassError::OutOfRange { .. } => ErrorKind::InvalidInput,
                PassError::NoForm { .. }
                | PassError::Expansion { .. }
                | PassError::TextCasts { .. }
                | PassError::Gradient(GradientError::NoRule { .. } | GradientError::Node { .. }) => {
                    ErrorKind::Unsupported
                }
                PassError::Gradient(
                    GradientError::NotScalar { .. }
                    | GradientError::Unreached { .. }
                    | GradientError::NoneReached { .. },
                ) => ErrorKind::InvalidInput,
                PassError::Gradient(GradientError::Role { .. })
                | PassError::Parameters(
                    ParameterError::NoSuchLoss { .. }
                    | ParameterError::MatchesNothing { .. }
                    | ParameterError::Statistics { .. }
                    | ParameterError::Pattern(_),
                )
                | PassError::Loss(LossError::Unnamed { .. }) => ErrorKind::Usage,
                PassError::Parameters(ParameterError::None { .. } | ParameterError::Folded { .. })
                | PassError::Loss(
                    LossError::Prediction { .. } | LossError::Target { .. } | LossError::Custom { .. },
                )
                | PassError::Inference(_)
                | PassError::Update(UpdateError::Unsized { .. } | UpdateError::Custom { .. }) => {
                    ErrorKind::InvalidInput
                }
                PassError::Update(UpdateError::Wide { .. }) => ErrorKind::Unsupported,
                PassError::Update(
                    UpdateError::NoGradients
                    | UpdateError::IsStep
                    | UpdateError::NoInput { .. }
                    | UpdateError::NoOptimizer { .. },
                ) => ErrorKind::Usage,
                // At this opset the operators that it is made of are not there, or not for these types.
                PassError::Parameters(ParameterError::Insert(_))
                | PassError::Loss(LossError::Build(_))
                | PassError::Update(UpdateError::Insert(_)) => ErrorKind::Unsupported,
                PassError::PinMatchesNothing { .. }
                | PassError::PinsContradict { .. }
                | PassError::OpsetDown { .. }
                | PassError::OpsetUnknown { .. }
                | PassError::Dim(_)
                | PassError::Input(_)
                | PassError::Signatures { .. } => ErrorKind::Usage,
                PassError::Placed { .. }
                | PassError::Misplaced { .. }
                | PassError::Gradient(GradientError::Internal { .. }) => ErrorKind::Bug,
            },
            Error::Bug(_) => ErrorKind::Bug,
            Error::Unsupported(_) => ErrorKind::Unsupported,
            Error::NoMemory(_) | Error::Device(_) | Error::Io { .. } => ErrorKind::Io,
        }
    }

    /// The path of the node it is about, if it is about one.
    pub fn node_path(&self) -> Option<&str> {
        match self {
            Error::Run(finding) | Error::NoMemory(finding) => {
                finding.op.is_some().then_some(finding.place.as_str())
            }
            Error::Invalid(findings) => findings.first().filter(|f| f.op.is_some()).map(|f| f.place.as_str()),
            _ => None,
        }
    }
}

impl Error {
    /// The error of a pipeline run on `module`.
    pub(crate) fn of_run(error: RunError, module: &ampc_ir::Module) -> Error {
        match error {
            RunError::Invalid(violations) => Error::Invalid(findings::findings_of(module, &violations)),
            RunError::IllTyped(errors) => Error::Invalid(findings::findings_of_types(module, &errors)),
            RunError::Pass {
                error:
                    error @ (PassError::Placed { .. }
                    | PassError::Misplaced { .. }
                    | PassError::Gradient(GradientError::Internal { .. })),
                ..
            } => Error::Bug(error.to_string()),
            RunError::Pass { error, .. } => Error::Pass(error),
            error @ (RunError::Unprepared { .. } | RunError::Broken { .. }) => Error::Bug(error.to_string()),
        }
    }
}

/// The error of a constant whose bytes cannot be read.
pub(crate) fn unreadable(error: TensorError) -> Error {
    match error {
        TensorError::Read { what, source } => Error::Io { path: what.into(), source },
        other => Error::Bug(format!("a constant of the module cannot be read: {other}")),
    }
}
