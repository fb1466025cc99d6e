//! Errors of the passes that make training steps.

use crate::graph::metadata::{FORWARD, METADATA};
use crate::policy::PolicyError;
use crate::spelling::suggest::did_you_mean;
use ampc_ir::inserter::InsertError;
use ampc_ir::views::OpError;
use std::fmt;

/// Error of finding parameters.
#[derive(Debug, thiserror::Error)]
pub enum ParameterError {
    /// The loss is not an output.
    #[error("no output of the model is called `{name}`; its outputs are {outputs}")]
    NoSuchLoss {
        /// The name that was given.
        name: String,
        /// The names that there are.
        outputs: String,
    },
    /// A pattern matches nothing.
    #[error("`{pattern}` matches no {what}{}", did_you_mean(.near.as_deref()))]
    MatchesNothing {
        /// The pattern as given.
        pattern: String,
        /// The subject of the problem.
        what: &'static str,
        /// The name that was probably meant.
        near: Option<String>,
    },
    /// A pattern of constants to train or to freeze matches running statistics alone.
    #[error(
        "`{pattern}` matches running statistics alone, such as `{name}`: BatchNormalization in training mode updates them in \
         every step, and they are never trained; export the model with these nodes in inference mode (`eval()` in PyTorch) to \
         keep them as they are"
    )]
    Statistics {
        /// The pattern as given.
        pattern: String,
        /// The first statistic that it matches.
        name: String,
    },
    /// There is nothing to train: an exporter has computed constants from all parameters.
    #[error(
        "the model has no parameters: the exporter has computed constants from all that PyTorch trains ({names}); {advice}"
    )]
    Folded {
        /// The parameters.
        names: String,
        /// The way out, or why there is none.
        advice: String,
    },
    /// There is nothing to train.
    #[error(
        "the model has no parameters: no float initializer of its main graph has a differentiable reader{}",
        if *.frozen { ", but for those that are frozen" } else { "; name constants that are trained (`--train`)" }
    )]
    None {
        /// True if some would be parameters if they were not frozen.
        frozen: bool,
    },
    /// The cast of a weight that is stored low does not fit.
    #[error("a parameter cannot be widened: {0}")]
    Insert(#[from] InsertError),
    /// An invalid pattern.
    #[error(transparent)]
    Pattern(#[from] PolicyError),
}

/// Error about a missing gradient.
#[derive(Debug, thiserror::Error)]
pub enum GradientError {
    /// No value, or more than one, has a role that one value alone has.
    #[error(
        "role `{role}`: expected one value of the main graph, found {found}{}",
        if *.found == 0 { ": add a loss (pass `loss`), or name an output that is one" } else { "" }
    )]
    Role {
        /// The role.
        role: &'static str,
        /// The number of values with the role.
        found: usize,
    },
    /// The loss is not a number.
    #[error(
        "the loss `{name}` is {found}: expected a float with one element; reduce it with ReduceMean or ReduceSum"
    )]
    NotScalar {
        /// The loss.
        name: String,
        /// Its type.
        found: String,
    },
    /// The gradient of an operator is needed that has none here.
    #[error("{op} `{node}` has no gradient: {why}")]
    NoRule {
        /// The operator.
        op: String,
        /// The node's path.
        node: String,
        /// The missing property, and the remedy.
        why: &'static str,
    },
    /// A rule cannot be applied to a node.
    #[error("the gradient of {op} `{node}`: {what}")]
    Node {
        /// The operator.
        op: String,
        /// The node's path.
        node: String,
        /// The problem.
        what: String,
    },
    /// A rule contradicts itself: a bug.
    #[error("the gradient of {op} `{node}`: {what}")]
    Internal {
        /// The operator.
        op: String,
        /// The node's path.
        node: String,
        /// The contradiction.
        what: String,
    },
    /// Parameters from which no path leads to the loss that can be differentiated.
    #[error(
        "the loss does not depend on {} in a way that can be differentiated: freeze {} (`--freeze`), or all such (`--freeze-unused`)",
        .names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
        if .names.len() == 1 { "it" } else { "them" }
    )]
    Unreached {
        /// Their names.
        names: Vec<String>,
    },
    /// There is no such path from any parameter.
    #[error(
        "the loss depends on none of the parameters ({}) in a way that can be differentiated: check the nodes between \
         them and the loss for rounding, integers and quantisation, and use the model without these",
        .names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    )]
    NoneReached {
        /// Their names.
        names: Vec<String>,
    },
}

/// Error of building nodes, by a rule of a gradient, a loss or an optimizer.
#[derive(Debug)]
pub enum RuleError {
    /// There is no formula for this form, or a necessary fact is unknown.
    Unsupported(String),
    /// A rule contradicts itself: a bug.
    Internal(String),
    /// The node does not fit its operator.
    Operator(OpError),
    /// An inserted node does not fit.
    Insert(InsertError),
}

impl From<OpError> for RuleError {
    fn from(error: OpError) -> Self {
        RuleError::Operator(error)
    }
}

impl From<InsertError> for RuleError {
    fn from(error: InsertError) -> Self {
        RuleError::Insert(error)
    }
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuleError::Unsupported(what) | RuleError::Internal(what) => f.write_str(what),
            RuleError::Operator(error) => error.fmt(f),
            RuleError::Insert(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RuleError {}

/// Error of adding a loss to a model.
#[derive(Debug, thiserror::Error)]
pub enum LossError {
    /// No loss can be computed from the output.
    #[error("the loss {kind} of `{of}`: expected {expected}, found {found}; name another output (`of=NAME`)")]
    Prediction {
        /// The loss.
        kind: String,
        /// The output.
        of: String,
        /// The valid input.
        expected: &'static str,
        /// The input found.
        found: String,
    },
    /// The input of targets is of another type.
    #[error(
        "the loss {kind} reads the input `{target}`: expected {expected}, found {found}; name another input, or a name \
         that the model does not use, for which an input is added"
    )]
    Target {
        /// The loss.
        kind: String,
        /// The input.
        target: String,
        /// The valid input.
        expected: String,
        /// The input found.
        found: String,
    },
    /// The input that is to be made has no name.
    #[error("the loss {kind} reads an input that it makes, and its name is empty")]
    Unnamed {
        /// The loss.
        kind: String,
    },
    /// An added node does not fit.
    #[error("the loss cannot be added: {0}")]
    Build(#[from] RuleError),
    /// The function of a custom loss says that it cannot build it, or returns something else.
    #[error("the loss {kind}: {what}")]
    Custom {
        /// The loss.
        kind: String,
        /// The problem.
        what: String,
    },
}

/// Error of extracting a forward model.
#[derive(Debug, thiserror::Error)]
pub enum InferenceError {
    /// It is not a step.
    #[error(
        "expected a training step, as `ampc train-step` makes it, found a model without the metadata `{METADATA}`"
    )]
    NoStep,
    /// The metadata contradicts the model.
    #[error("the metadata `{key}` of the step: {problem}")]
    Metadata {
        /// The key.
        key: &'static str,
        /// The problem.
        problem: String,
    },
    /// It has no loss.
    #[error(
        "the metadata `{FORWARD}` does not say which output of the step is the loss; make the step again"
    )]
    NoLoss,
    /// A state of the forward part has no value.
    #[error("state `{name}`, which the forward part reads, has no value")]
    NoValue {
        /// The input.
        name: String,
    },
}

/// Error of adding the update of weights.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// There are no gradients.
    #[error("no value has the role `grad`: run `autodiff` before")]
    NoGradients,
    /// The model has states already.
    #[error("the model already is a training step: run `update` once")]
    IsStep,
    /// A parameter is a constant.
    #[error(
        "parameter `{name}` is a constant, but a trained parameter has to be a graph input: run `expose-parameters` \
         before `autodiff`"
    )]
    NoInput {
        /// The parameter.
        name: String,
    },
    /// The shape of a parameter is not known.
    #[error(
        "parameter `{name}` is {found}: its shape has to be known, since optimizer states have the same shape"
    )]
    Unsized {
        /// The parameter.
        name: String,
        /// Its type.
        found: String,
    },
    /// Optimizers keep weights in fp32, which numbers of f64 would be rounded to.
    #[error(
        "parameter `{name}` is {found}: expected f32 or 16 bits; freeze it (`--freeze`), or convert the model to fp32"
    )]
    Wide {
        /// The parameter.
        name: String,
        /// Its type.
        found: String,
    },
    /// An option of an optimizer, and no optimizer.
    #[error("`{option}` (`{flag}`) needs an optimizer: without one the step gives gradients as they are")]
    NoOptimizer {
        /// The option of the pass.
        option: &'static str,
        /// That of the command.
        flag: &'static str,
    },
    /// An added node does not fit.
    #[error("the update cannot be added: {0}")]
    Insert(#[from] InsertError),
    /// The function of a custom optimizer says that it cannot build it, or returns something else.
    #[error("the optimizer {name}, for parameter `{parameter}`: {what}")]
    Custom {
        /// The optimizer.
        name: String,
        /// The parameter.
        parameter: String,
        /// The problem.
        what: String,
    },
}
