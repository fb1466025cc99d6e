//! Repairs and omissions of reading and writing.

/// Something that was noticed, and read or written all the same.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Warning {
    /// Nodes were not in topological order; they are now.
    #[error("the nodes of {graph} are not in topological order; they have been sorted{}", others(*.more, "graph"))]
    Unsorted {
        /// The first such graph.
        graph: String,
        /// The number of others.
        more: usize,
    },
    /// A domain was used and not imported; the import has been added.
    #[error("domain `{domain}` is used but not imported; opset {opset} has been assumed and added{}", others(*.more, "domain"))]
    MissingOpset {
        /// The domain.
        domain: String,
        /// The opset.
        opset: u16,
        /// The number of other domains.
        more: usize,
    },
    /// An operator that ONNX does not have at this opset, and ONNX Runtime has.
    #[error(
        "`{op}` is not an operator of ONNX at opset {opset} of domain `ai.onnx`: only ONNX Runtime reads the model (`{first}`{})", match .more { 0 => String::new(), n => format!(" and {n} more") }
    )]
    RuntimeOnly {
        /// The operator.
        op: &'static str,
        /// The opset that holds where it is.
        opset: u16,
        /// The first node.
        first: String,
        /// The number of others.
        more: usize,
    },
    /// Operators of ai.ampc without their functions.
    #[error("the model has no function for `ai.ampc::{op}`, so other runtimes do not read it (`{first}`{}); it is added where the model is written", match .more { 0 => String::new(), n => format!(" and {n} more nodes") })]
    NoFunction {
        /// The first such operator.
        op: &'static str,
        /// The first node.
        first: String,
        /// The number of others.
        more: usize,
    },
    /// Graphs without a name.
    #[error("{first}{} has no name, which onnx.checker refuses", match .more { 0 => String::new(), n => format!(" (and {n} more)") })]
    UnnamedGraph {
        /// The first of them.
        first: String,
        /// The number of others.
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
        "{count} initializers are listed as inputs, as IR version 3 asks for: a caller may replace them, so they are not converted, and 16-bit readers cast them at run time; in a model of IR version 4 or later whose inputs do not list them they would be converted"
    )]
    ListedInitializers {
        /// How many.
        count: usize,
    },
    /// Initializers that a caller may replace.
    #[error(
        "{count} initializers are inputs as well, so a caller may replace them: they are not converted, and 16-bit readers cast them at run time; take them out of the inputs to let them be converted"
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
        /// The number of other dims.
        more: usize,
    },
    /// The type in `value_info` of a value is false and was omitted.
    #[error(
        "`value_info` says {declared} of `{value}`, which is {inferred}; a changed graph is written without the entry"
    )]
    FalseValueInfo {
        /// The value.
        value: String,
        /// The type in the file.
        declared: String,
        /// The inferred type.
        inferred: String,
    },
    /// The model's metadata has casts of an earlier rewrite that are not there any more.
    #[error("metadata `ampc.provenance` says that a rewrite inserted the Cast that makes `{first}`{}, which is not in the model; the entry is brought up to date", match .more { 0 => String::new(), n => format!(" (and {n} more)") })]
    StaleProvenance {
        /// The result of the first node.
        first: String,
        /// The number of others.
        more: usize,
    },
}

/// A suffix such as "and 3 more" behind the first of several items.
pub(super) fn others(more: usize, what: &str) -> String {
    match more {
        0 => String::new(),
        1 => format!(" (and 1 more {what})"),
        n => format!(" (and {n} more {what}s)"),
    }
}

impl Warning {
    /// Counts another case of this warning, which names the first case; returns true if the case counts.
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

    /// True if the warning is about how the model is read, which matters for running it as well; other warnings
    /// are about the written model and how it is judged.
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
