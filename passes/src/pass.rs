//! A pass: a value with public configuration that turns one module into another.
//!
//! Passes keep no state between runs and read nothing but the module and their configuration: what a later pass
//! needs is in the IR (classes, decisions with their reasons, provenance of casts) and so in its text.

pub mod invariants;
pub(crate) mod options;
mod results;

use self::invariants::Invariants;
use self::options::Setting;
pub use self::results::Results;
use crate::precision::guard::Statistics;
use ampc_ir::infer::Facts;
use ampc_ir::{InsertError, Module, Node, Value};
use std::fmt;

/// Effect of a pass on the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changed {
    /// The module changed, or may have changed.
    Yes,
    /// The module prints as before.
    No,
}

impl Changed {
    /// [`Changed::Yes`] if `changed`.
    pub fn when(changed: bool) -> Changed {
        if changed { Changed::Yes } else { Changed::No }
    }
}

/// Something the user should know that is not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// A stable code, such as `opset.bf16`.
    pub code: &'static str,
    /// The message, with names and numbers.
    pub message: String,
    /// The node it is about.
    pub node: Option<Node>,
}

/// Context of a pass beside the module.
#[derive(Debug)]
pub struct PassCx<'a> {
    /// The inferred facts about the module as it was before the pass.
    pub facts: &'a Facts,
    /// Statistics of constants, which passes share.
    pub statistics: &'a mut Statistics,
    /// The results that passes hand on beside the module.
    pub results: &'a mut Results,
}

impl<'a> PassCx<'a> {
    /// A context for one pass of a run.
    pub fn new(facts: &'a Facts, statistics: &'a mut Statistics, results: &'a mut Results) -> PassCx<'a> {
        PassCx { facts, statistics, results }
    }
    /// Adds a warning for the user.
    pub fn warn(&mut self, code: &'static str, node: Option<Node>, message: impl Into<String>) {
        self.results.warn(Warning { code, message: message.into(), node });
    }
}

/// Error of a pass that the user can solve; a pass that breaks the module is a bug, which the
/// pipeline finds by verifying.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// Something constant does not fit and the user asked for an error then: a constant, the fill of a
    /// ConstantOfShape, or a number in an attribute.
    #[error(
        "{what} has {count} finite {} beyond the range of {format} ({min:e} to {max:e}): {remedy}",
        if *count == 1 { "value" } else { "values" }
    )]
    OutOfRange {
        /// The kind and name of the item: "constant `w`", "attribute `value` of Pad".
        what: String,
        /// The requested format.
        format: ampc_ir::DType,
        /// The number of values that do not fit.
        count: u64,
        /// The least value.
        min: f64,
        /// The greatest value.
        max: f64,
        /// The remedy for the user.
        remedy: &'static str,
        /// The operator that reads it, or that has the attribute.
        node: Node,
        /// The constant or fill; the value that the operator with the attribute reads.
        value: Value,
    },
    /// A constant cannot be read.
    #[error("constant `{name}`: {source}")]
    Constant {
        /// The constant.
        name: String,
        /// Why.
        source: ampc_ir::tensor::TensorError,
    },
    /// A pin names nothing in the model.
    #[error("`{pattern}` matches no {what} of the model{hint}")]
    PinMatchesNothing {
        /// The pattern as given.
        pattern: String,
        /// Node, value or type variable.
        what: &'static str,
        /// The nearest name, if any is near.
        hint: String,
    },
    /// Two pins of one rank ask for different things of one node.
    #[error("the pins `{first}` and `{second}` contradict each other for `{node}`: keep one")]
    PinsContradict {
        /// The node or value that both pins name.
        node: String,
        /// The pin that was given first.
        first: String,
        /// The other one.
        second: String,
    },
    /// Functions call functions so often that they cannot be inlined.
    #[error(
        "function `{function}` would be inlined {times} times, and the model would have more than {limit} nodes; runtimes \
         inline functions, so none could run the model: reduce the calls between functions"
    )]
    Expansion {
        /// The function with the most copies.
        function: String,
        /// The number of copies.
        times: u64,
        /// The limit.
        limit: u64,
    },
    /// The requested opset is older than the model's.
    #[error("`opset {to}`: the model has opset {from}, and opsets are raised only")]
    OpsetDown {
        /// The model's opset.
        from: u16,
        /// The opset asked for.
        to: u16,
    },
    /// The requested opset is unknown to this version.
    #[error("`opset {to}`: the newest opset that this version knows is {latest}")]
    OpsetUnknown {
        /// The opset asked for.
        to: u16,
        /// The newest one.
        latest: u16,
    },
    /// The signatures of operators contradict the model.
    #[error("the signatures of the policy contradict the model: {reason}")]
    Signatures {
        /// The first contradiction, with its node.
        reason: String,
    },
    /// The model cannot be raised.
    #[error(
        "the model stays as it was: opset {to} has no form for {}",
        .missing.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    NoForm {
        /// The opset asked for.
        to: u16,
        /// Every operator and step without a form.
        missing: Vec<crate::opset::raise_opset::NoForm>,
    },
    /// A cast that was inserted is of an opset at which runtimes take none.
    #[error(
        "Cast `{first}`{} was inserted at opset {opset}, where Cast names its type in text, and onnx.checker and ONNX \
         Runtime refuse readers of such a cast: raise the model first (`raise-opset{{to={to}}}` before the other passes, `--opset {to}` of `rewrite`)",
        match .more { 0 => String::new(), n => format!(" (and {n} more)") }
    )]
    TextCasts {
        /// The path of the first such cast.
        first: String,
        /// The number of others.
        more: usize,
        /// The opset that the first has.
        opset: u16,
        /// The opset to raise to.
        to: u16,
    },
    /// Parameters or the loss cannot be found.
    #[error(transparent)]
    Parameters(#[from] crate::training::parameters::ParameterError),
    /// A loss does not fit the model.
    #[error(transparent)]
    Loss(#[from] crate::training::step::loss::LossError),
    /// A number is asked for a dim that no input has.
    #[error(transparent)]
    Dim(#[from] crate::analysis::cost::UnknownDim),
    /// A training step has no forward part.
    #[error(transparent)]
    Inference(#[from] crate::training::step::inference::InferenceError),
    /// Weights cannot be updated.
    #[error(transparent)]
    Update(#[from] crate::training::step::update::UpdateError),
    /// There is no gradient.
    #[error(transparent)]
    Gradient(#[from] crate::training::autodiff::GradientError),
    /// Casts cost something else than the choice that they follow from: a bug.
    #[error("the choice of formats costs {chosen}, but the casts that follow from it cost {counted}")]
    Recount {
        /// By the choice.
        chosen: i64,
        /// By the graph.
        counted: i64,
    },
}

/// Unwraps an insertion that is known to fit in every model. A pass that cannot know makes a [`PassError`] of
/// the error, or leaves the node alone.
///
/// # Panics
/// If it does not fit: that is a bug of the pass.
pub fn sound<T>(inserted: Result<T, InsertError>) -> T {
    inserted.unwrap_or_else(|error| panic!("bug in a pass: {error}"))
}

/// One step of a pipeline.
pub trait Pass: fmt::Debug + Send + Sync {
    /// Its name: the file it is in, its spelling in pipelines, the folder of its cases.
    fn name(&self) -> &'static str;
    /// Its configuration as pipelines spell it; default values may be left out.
    fn options(&self) -> Vec<(&'static str, Setting)> {
        Vec::new()
    }
    /// The invariants that must hold before the pass.
    fn requires(&self) -> Invariants {
        Invariants::CORE
    }
    /// The invariants that may not hold after the pass, though they held before.
    fn revokes(&self) -> Invariants {
        Invariants::NONE
    }
    /// The invariants that hold after the pass, beside everything that held before and is not revoked.
    fn ensures(&self) -> Invariants {
        Invariants::CORE
    }
    /// True if later passes need inferred facts about its results.
    fn renews_facts(&self) -> bool {
        false
    }
    /// Does it.
    ///
    /// # Errors
    /// If the user has to decide something first.
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError>;
}

#[cfg(test)]
mod tests;
