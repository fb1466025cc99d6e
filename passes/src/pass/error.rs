//! Errors of passes that the user can solve.

use super::training_error::{GradientError, InferenceError, LossError, ParameterError, UpdateError};
use crate::pass::input_ranges::UnknownInput;
use ampc_ir::{Node, Value};
use std::fmt;

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
    #[error("the model stays as it was: {}", NoForm::at(*.to, .missing))]
    NoForm {
        /// The opset asked for.
        to: u16,
        /// Every operator and step without a form.
        missing: Vec<NoForm>,
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
    Parameters(#[from] ParameterError),
    /// A loss does not fit the model.
    #[error(transparent)]
    Loss(#[from] LossError),
    /// A number is asked for a dim that no input has.
    #[error(transparent)]
    Dim(#[from] UnknownDim),
    /// A range is given for an input that the model does not have.
    #[error(transparent)]
    Input(#[from] UnknownInput),
    /// A training step has no forward part.
    #[error(transparent)]
    Inference(#[from] InferenceError),
    /// Weights cannot be updated.
    #[error(transparent)]
    Update(#[from] UpdateError),
    /// There is no gradient.
    #[error(transparent)]
    Gradient(#[from] GradientError),
    /// The casts that follow from a choice have another cost than the choice: a bug.
    #[error("the choice of formats costs {chosen}, but the casts that follow from it cost {placed}")]
    Placed {
        /// The cost of the choice.
        chosen: i64,
        /// The cost of the placement of its casts.
        placed: i64,
    },
    /// A reader does not read the value that the placement of casts says: a bug.
    #[error("{reader} reads {found}, but the placement of casts says {expected}")]
    Misplaced {
        /// The operand or output.
        reader: String,
        /// The value that it was placed to read.
        expected: String,
        /// The value that it reads.
        found: String,
    },
}

/// An operator that has no form at a later opset, or a node that has none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NoForm {
    /// The operator.
    pub op: &'static str,
    /// The version that the nodes have.
    pub from: u16,
    /// The version they cannot have.
    pub to: u16,
    /// Why.
    pub why: String,
    /// The number of nodes.
    pub count: usize,
    /// The path of the first.
    pub first: String,
}

impl NoForm {
    /// The sentence that an opset has no form for operators.
    pub fn at(to: u16, missing: &[NoForm]) -> String {
        let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
        format!("opset {to} has no form for {}", missing.join("; "))
    }
}

impl fmt::Display for NoForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} → {} (`{}`", self.op, self.from, self.to, self.first)?;
        if self.count > 1 {
            write!(f, " and {} more", self.count - 1)?;
        }
        write!(f, "): {}", self.why)
    }
}

/// A number for a dim that no input leaves open.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`--dim {name}={size}`: no input has a dim `{name}`; {known}{hint}")]
pub struct UnknownDim {
    /// The name that was given.
    pub name: String,
    /// The size that was given.
    pub size: u64,
    /// The names that there are, as a sentence.
    pub known: String,
    /// A name that is nearly the same, as a question.
    pub hint: String,
}
