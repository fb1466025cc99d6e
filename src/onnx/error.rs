//! Errors of reading and writing, and warnings about repairs.

mod export;
mod warning;

pub use self::export::{BodyIssue, ExportError};
pub use self::warning::Warning;

use super::external::ExternalError;
use super::tensor::TensorIssue;
use super::wire::{WireError, WireErrorKind};
use ampc_passes::suggest::did_you_mean;
use std::fmt;
use std::io;

/// Party that can solve an error; decides the exit code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Blame {
    /// The input is invalid, its external data included.
    Input,
    /// Something this version does not do.
    NotSupported,
    /// Reading or writing failed.
    Io,
    /// The request is wrong for every input: two results with one name, a data file beside a pipe.
    Usage,
}

impl Blame {
    /// The exit code of the binary.
    pub fn exit_code(self) -> u8 {
        match self {
            Blame::Input => 3,
            Blame::Usage => 2,
            Blame::NotSupported => 4,
            Blame::Io => 5,
        }
    }
}

/// Error of reading a model.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be opened.
    #[error("cannot open `{path}`: {source}")]
    Open {
        /// The file.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// The file is recognisably something else.
    #[error("`{path}` is not an ONNX model: {found}")]
    NotAModel {
        /// The file.
        path: String,
        /// The format found, and advice.
        found: &'static str,
    },
    /// The bytes are not a model.
    #[error("`{path}` is not a readable ONNX model: {source}")]
    Wire {
        /// The file.
        path: String,
        /// The problem and its place.
        source: WireError,
    },
    /// The bytes are a model, and the model is invalid.
    #[error("`{path}` is not a valid ONNX model: {}", List(.problems, *.more))]
    Invalid {
        /// The file.
        path: String,
        /// The problems found, except problems that are only counted.
        problems: Vec<Problem>,
        /// The number of others.
        more: usize,
    },
}

impl ImportError {
    /// The party that can solve the error.
    pub fn blame(&self) -> Blame {
        match self {
            ImportError::Open { .. } => Blame::Io,
            ImportError::Wire { source, .. } if matches!(source.kind, WireErrorKind::Io(_)) => Blame::Io,
            ImportError::NotAModel { .. } | ImportError::Wire { .. } => Blame::Input,
            ImportError::Invalid { problems, .. } => {
                problems.iter().map(Problem::blame).min().unwrap_or(Blame::Input)
            }
        }
    }
}

struct List<'a>(&'a [Problem], usize);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 20;
        match self.0 {
            [only] => only.fmt(f),
            problems => {
                let all = problems.len() + self.1;
                write!(f, "{all} problems")?;
                problems.iter().take(SHOWN).try_for_each(|p| write!(f, "\n  {p}"))?;
                if all > SHOWN { write!(f, "\n  and {} more", all - SHOWN) } else { Ok(()) }
            }
        }
    }
}

/// One thing that is wrong with a model, and where.
#[derive(Debug, thiserror::Error)]
#[error("{}{kind}", Where(.place))]
pub struct Problem {
    /// Path of the node or graph; empty for the model as a whole.
    pub place: String,
    /// The problem.
    #[source]
    pub kind: ProblemKind,
}

struct Where<'a>(&'a str);

impl fmt::Display for Where<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "{}: ", self.0) }
    }
}

impl Problem {
    /// The party that can solve the problem.
    pub fn blame(&self) -> Blame {
        let not_supported = matches!(
            self.kind,
            ProblemKind::Tensor { issue: TensorIssue::Segment, .. }
                | ProblemKind::BodyAsDefault { .. }
                | ProblemKind::UnknownAttributeKind { .. }
        );
        let unread = matches!(
            self.kind,
            ProblemKind::Tensor {
                issue: TensorIssue::External(ExternalError::Io { .. }) | TensorIssue::NoMemory { .. },
                ..
            }
        );
        match (not_supported, unread) {
            (true, _) => Blame::NotSupported,
            (false, true) => Blame::Io,
            (false, false) => Blame::Input,
        }
    }
}

/// The kinds of things that can be wrong with a model.
#[derive(Debug, thiserror::Error)]
pub enum ProblemKind {
    /// There is no graph.
    #[error("the model has no graph")]
    NoGraph,
    /// There is no IR version.
    #[error("the model has no `ir_version`; expected 1 to {newest}")]
    NoIrVersion {
        /// The newest that is known.
        newest: i64,
    },
    /// The IR version is unknown.
    #[error("the model has IR version {found}; this version of ampc reads 1 to {newest}")]
    IrVersion {
        /// The version.
        found: i64,
        /// The newest that is known.
        newest: i64,
    },
    /// The version of an opset does not exist.
    #[error("opset {found} of domain `{domain}` does not exist; expected 1 to {newest}")]
    OpsetVersion {
        /// The domain.
        domain: String,
        /// The version.
        found: i64,
        /// The newest that is known.
        newest: u16,
    },
    /// A domain is imported twice.
    #[error("domain `{domain}` is imported twice, at opset {first} and at opset {second}")]
    DuplicateOpset {
        /// The domain.
        domain: String,
        /// First version.
        first: i64,
        /// Second version.
        second: i64,
    },
    /// Bodies are nested too deep.
    #[error("bodies are nested more than {limit} deep, which is the limit")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
    /// A name is defined twice in one graph.
    #[error("`{name}` is defined twice: as {first} and as {second}")]
    DuplicateName {
        /// The name.
        name: String,
        /// The first definition.
        first: String,
        /// The second definition.
        second: String,
    },
    /// A name is read that nothing defines.
    #[error("`{name}` is read but is not an input, initializer or result in scope")]
    Undefined {
        /// The name.
        name: String,
    },
    /// Nodes depend on each other.
    #[error("the nodes form a cycle: {}", .nodes.join(", "))]
    Cycle {
        /// The nodes of one cycle.
        nodes: Vec<String>,
    },
    /// Something that needs a name has none.
    #[error("{what} has no name")]
    Unnamed {
        /// The item in question.
        what: String,
    },
    /// A node has no operator.
    #[error("the node has no `op_type`")]
    NoOperator,
    /// The domain has no such operator.
    #[error("domain `{domain}` has no operator `{name}`{}", Maybe(.suggestion))]
    UnknownOperator {
        /// The domain.
        domain: String,
        /// The operator.
        name: String,
        /// The name that may have been meant.
        suggestion: Option<&'static str>,
    },
    /// The operator came later than the model's opset.
    #[error("`{name}` exists since opset {since} of domain `{domain}`; the model imports opset {opset}")]
    OperatorTooNew {
        /// The domain.
        domain: String,
        /// The operator.
        name: String,
        /// The first opset that has it.
        since: u16,
        /// The opset of the model.
        opset: u16,
    },
    /// The operator is gone at the model's opset.
    #[error(
        "`{name}` is deprecated from opset {since} of domain `{domain}` on, replaced by {by}; the model imports opset {opset}"
    )]
    OperatorRemoved {
        /// The domain.
        domain: String,
        /// The operator.
        name: String,
        /// The opset that deprecated it.
        since: u16,
        /// The replacement.
        by: &'static str,
        /// The opset of the model.
        opset: u16,
    },
    /// An attribute is given twice.
    #[error("attribute `{name}` is given twice")]
    DuplicateAttribute {
        /// The attribute.
        name: String,
    },
    /// An entry of the metadata by which ampc knows its models is given twice.
    #[error("metadata `{key}` is given twice")]
    DuplicateMetadata {
        /// The key.
        key: String,
    },
    /// An attribute has no value, or of a kind that is not in ONNX.
    #[error("attribute `{name}` has no value of a known kind (its kind is {kind})")]
    UnknownAttributeKind {
        /// The attribute.
        name: String,
        /// ONNX's number of the kind.
        kind: i32,
    },
    /// The default of a function's attribute is a body.
    #[error("the default of attribute `{name}` is a graph, which is not supported")]
    BodyAsDefault {
        /// The attribute.
        name: String,
    },
    /// A tensor is wrong.
    #[error("tensor `{name}`{}: {issue}", match .more { 0 => String::new(), n => format!(" (and {n} more)") })]
    Tensor {
        /// Its name, or that of the attribute that holds it.
        name: String,
        /// The number of other tensors with the same problem, if it is a problem of their data file.
        more: usize,
        /// The problem.
        issue: TensorIssue,
    },
    /// The type of an input or output is wrong.
    #[error("the type of `{name}` has the element type {number}, which is unknown; expected 1 to 28")]
    ElementType {
        /// The value.
        name: String,
        /// ONNX's number.
        number: i32,
    },
    /// The type of an input or output is incomplete.
    #[error("the type of `{name}` has no {missing}")]
    IncompleteType {
        /// The value.
        name: String,
        /// The missing item.
        missing: &'static str,
    },
    /// A node of an operator of ai.ampc names a form that is not its own.
    #[error(
        "the node calls `{name}` with the overload `{found}`, which no function has; its operands and attributes ask for `{expected}`"
    )]
    Overload {
        /// The operator.
        name: &'static str,
        /// The overload.
        found: String,
        /// That of its form.
        expected: String,
    },
    /// A node names an overload that no function has, beside a function of the name that has none.
    #[error(
        "the node calls `{name}` of {domain} with the overload `{overload}`, which no function has; there is one without overload"
    )]
    NoOverload {
        /// The domain.
        domain: String,
        /// The name.
        name: String,
        /// The overload.
        overload: String,
    },
    /// Two functions have one name.
    #[error("function `{name}` is defined twice")]
    DuplicateFunction {
        /// Domain, name and overload.
        name: String,
    },
    /// A function calls itself.
    #[error("functions call each other in a circle: {}", .names.join(", "))]
    RecursiveFunction {
        /// The functions of the circle.
        names: Vec<String>,
    },
    /// More messages than 32 bits can count.
    #[error("the model has more than 2^32 nodes and tensors")]
    TooMany,
}

struct Maybe<'a>(&'a Option<&'static str>);

impl fmt::Display for Maybe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&did_you_mean(*self.0))
    }
}
