//! What can go wrong while reading and writing, and what was repaired on the way.

use super::external::ExternalError;
use super::target::TargetError;
use super::tensor::TensorIssue;
use super::wire::{WireError, WireErrorKind};
use ampc_passes::suggest::did_you_mean;
use std::fmt;
use std::io;

/// Whose fault an error is; decides the exit code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Blame {
    /// The input is invalid, its external data included.
    Input,
    /// Something this version does not do.
    NotSupported,
    /// Reading or writing failed.
    Io,
    /// The request is wrong, whatever the input: two results of one name, a file beside a pipe.
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

/// Why a model could not be read.
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
        /// What it is, and what to do.
        found: &'static str,
    },
    /// The bytes are not a model.
    #[error("`{path}` is not a readable ONNX model: {source}")]
    Wire {
        /// The file.
        path: String,
        /// What is wrong, and where.
        source: WireError,
    },
    /// The bytes are a model, and the model is invalid.
    #[error("`{path}` is not a valid ONNX model: {}", List(.problems, *.more))]
    Invalid {
        /// The file.
        path: String,
        /// The problems found, but for those that are only counted.
        problems: Vec<Problem>,
        /// How many others there are.
        more: usize,
    },
}

impl ImportError {
    /// Whose fault it is.
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
    /// What is wrong.
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
    /// Whose fault it is.
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
        /// What it is first.
        first: String,
        /// What it is then.
        second: String,
    },
    /// A name is read that nothing defines.
    #[error("`{name}` is read but is no input, no initializer and no result in scope")]
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
        /// What it is.
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
        /// What may have been meant.
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
        /// What replaces it.
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
        /// How many others have the same problem, where it is one of their data file.
        more: usize,
        /// What is wrong.
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
        /// What is missing.
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

/// Something that was noticed, and read or written all the same.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Warning {
    /// Nodes were not in topological order; they are now.
    #[error("the nodes of {graph} are not in topological order; they have been sorted{}", others(*.more, "graph"))]
    Unsorted {
        /// The first such graph.
        graph: String,
        /// How many others there are.
        more: usize,
    },
    /// A domain was used and not imported; the import has been added.
    #[error("domain `{domain}` is used but not imported; opset {opset} has been assumed and added{}", others(*.more, "domain"))]
    MissingOpset {
        /// The domain.
        domain: String,
        /// The opset.
        opset: u16,
        /// How many other domains.
        more: usize,
    },
    /// An operator that ONNX does not have at this opset, and ONNX Runtime has.
    #[error(
        "`{op}` is no operator of ONNX at opset {opset} of domain `ai.onnx`: only ONNX Runtime reads the model (`{first}`{})", match .more { 0 => String::new(), n => format!(" and {n} more") }
    )]
    RuntimeOnly {
        /// The operator.
        op: &'static str,
        /// The opset that holds where it is.
        opset: u16,
        /// The first node.
        first: String,
        /// How many others there are.
        more: usize,
    },
    /// Operators of ai.ampc without their functions.
    #[error("the model has no function for `ai.ampc::{op}`, so other runtimes do not read it (`{first}`{}); it is added where the model is written", match .more { 0 => String::new(), n => format!(" and {n} more nodes") })]
    NoFunction {
        /// The first such operator.
        op: &'static str,
        /// The first node.
        first: String,
        /// How many others there are.
        more: usize,
    },
    /// Graphs without a name.
    #[error("{first}{} has no name, which onnx.checker refuses", match .more { 0 => String::new(), n => format!(" (and {n} more)") })]
    UnnamedGraph {
        /// The first of them.
        first: String,
        /// How many others there are.
        more: usize,
    },
    /// Sparse initializers, which become dense tensors.
    #[error(
        "{count} initializers are sparse; they are read as dense tensors, as ONNX Runtime does, and written as such where they change"
    )]
    SparseInitializers {
        /// How many.
        count: usize,
    },
    /// Initializers that are listed as inputs, in a model of IR version 3 or less, where they have to be.
    #[error(
        "{count} initializers are listed as inputs, as IR version 3 asks for: a caller may replace them, so they are not converted, and what reads them in 16 bits casts them at run time; in a model of IR version 4 or later whose inputs do not list them they would be converted"
    )]
    ListedInitializers {
        /// How many.
        count: usize,
    },
    /// Initializers that a caller may replace.
    #[error(
        "{count} initializers are inputs as well, so a caller may replace them: they are not converted, and what reads them in 16 bits casts them at run time; take them out of the inputs to let them be converted"
    )]
    OverridableInitializers {
        /// How many.
        count: usize,
    },
    /// A dim of an input or output is negative; it is taken to be unknown.
    #[error("`{value}` declares the dim {dim}; it is taken to be unknown{}", others(*.more, "dim"))]
    NegativeDim {
        /// The value.
        value: String,
        /// The dim.
        dim: i64,
        /// How many other dims are.
        more: usize,
    },
    /// What `value_info` says of a value is false; it has been left out.
    #[error(
        "`value_info` says {declared} of `{value}`, which is {inferred}; what changes is written without the entry"
    )]
    FalseValueInfo {
        /// The value.
        value: String,
        /// What the file said.
        declared: String,
        /// What holds.
        inferred: String,
    },
    /// The model's metadata has casts of an earlier rewrite that are not there any more.
    #[error("metadata `ampc.provenance` says that a rewrite inserted the Cast that makes `{first}`{}, which is not in the model; the entry is brought up to date", match .more { 0 => String::new(), n => format!(" (and {n} more)") })]
    StaleProvenance {
        /// What the first of them made.
        first: String,
        /// How many others there are.
        more: usize,
    },
}

/// What stands behind the first of many.
fn others(more: usize, what: &str) -> String {
    match more {
        0 => String::new(),
        1 => format!(" (and 1 more {what})"),
        n => format!(" (and {n} more {what}s)"),
    }
}

impl Warning {
    /// Counts another thing of the kind of this warning, of which the first is named; whether it is one that counts.
    pub(crate) fn absorbs(&mut self, other: &Warning) -> bool {
        if std::mem::discriminant(self) != std::mem::discriminant(other) {
            return false;
        }
        match self {
            Warning::MissingOpset { more, .. }
            | Warning::NegativeDim { more, .. }
            | Warning::NoFunction { more, .. } => {
                *more += 1;
                true
            }
            Warning::Unsorted { .. }
            | Warning::RuntimeOnly { .. }
            | Warning::UnnamedGraph { .. }
            | Warning::SparseInitializers { .. }
            | Warning::ListedInitializers { .. }
            | Warning::OverridableInitializers { .. }
            | Warning::FalseValueInfo { .. }
            | Warning::StaleProvenance { .. } => false,
        }
    }

    /// Whether it says how the model is read, which matters to those who run it as well; the others are about what
    /// is written and how it is judged.
    pub fn is_about_reading(&self) -> bool {
        match self {
            Warning::Unsorted { .. }
            | Warning::MissingOpset { .. }
            | Warning::NoFunction { .. }
            | Warning::RuntimeOnly { .. }
            | Warning::SparseInitializers { .. }
            | Warning::NegativeDim { .. } => true,
            Warning::UnnamedGraph { .. }
            | Warning::ListedInitializers { .. }
            | Warning::OverridableInitializers { .. }
            | Warning::FalseValueInfo { .. }
            | Warning::StaleProvenance { .. } => false,
        }
    }

    /// A short name, stable across versions.
    pub fn code(&self) -> &'static str {
        match self {
            Warning::Unsorted { .. } => "onnx.unsorted",
            Warning::MissingOpset { .. } => "onnx.missing-opset",
            Warning::RuntimeOnly { .. } => "onnx.runtime-only",
            Warning::NoFunction { .. } => "onnx.no-function",
            Warning::UnnamedGraph { .. } => "onnx.unnamed-graph",
            Warning::SparseInitializers { .. } => "onnx.sparse-initializers",
            Warning::ListedInitializers { .. } => "onnx.listed-initializers",
            Warning::OverridableInitializers { .. } => "onnx.overridable-initializers",
            Warning::NegativeDim { .. } => "onnx.negative-dim",
            Warning::FalseValueInfo { .. } => "onnx.false-value-info",
            Warning::StaleProvenance { .. } => "onnx.stale-provenance",
        }
    }
}

/// Why a model could not be written.
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
        /// The type asked for.
        to: ampc_ir::DType,
    },
    /// An operator of ai.ampc cannot be written as a call of a function.
    #[error("`{node}` cannot be written as a call of a function of ai.ampc: {issue}")]
    Body {
        /// The node.
        node: String,
        /// What is in the way.
        issue: BodyIssue,
    },
    /// A sparse constant is not one that readers accept.
    #[error("constant `{name}`: {issue}")]
    Sparse {
        /// The constant.
        name: String,
        /// What is wrong.
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
        "constants of the model go to a data file, which has no place beside `{path}`, a pipe or device; write to a \
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

/// What is in the way of a function of ai.ampc.
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
    #[error("its overload takes IR version {needed}, and the model is of {found}; raise it (`--opset 21`)")]
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
    /// Whose fault it is.
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
