//! Errors of pipelines and of their runs.

use crate::pass::PassError;
use crate::pass::invariants::{Breach, Invariants};
use crate::policy::PolicyError;
use crate::target::ProfileError;
use ampc_ir::infer::InferError;
use ampc_ir::verify::Violation;

/// Pipeline error.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// No pass has this name.
    #[error("no pass is called `{found}`; passes are {passes}{hint}")]
    UnknownPass {
        /// The name as given.
        found: String,
        /// The nearest name.
        hint: String,
        /// All names.
        passes: String,
    },
    /// The pass has no such option.
    #[error("pass `{pass}` has no option `{option}`{hint}")]
    UnknownOption {
        /// The pass.
        pass: String,
        /// The option as given.
        option: String,
        /// The nearest option.
        hint: String,
    },
    /// The option is there twice.
    #[error("pass `{pass}` has the option `{option}` twice: keep one")]
    OptionTwice {
        /// The pass.
        pass: String,
        /// The option.
        option: String,
    },
    /// The option has no such value.
    #[error("option `{option}` of pass `{pass}`: expected {expected}, found `{found}`")]
    BadValue {
        /// The pass.
        pass: String,
        /// The option.
        option: String,
        /// The valid values.
        expected: &'static str,
        /// The value found.
        found: String,
    },
    /// The text breaks off or has something where a pass should be.
    #[error("at character {at}: expected {expected}")]
    Syntax {
        /// Position, from 1.
        at: usize,
        /// The expected text.
        expected: &'static str,
    },
    /// A pass needs an invariant that no pass before it ensures.
    #[error("pass `{pass}` needs a module that is {missing}: put `{before}` before it")]
    Order {
        /// The pass.
        pass: &'static str,
        /// The missing item.
        missing: String,
        /// The pass that gives it.
        before: &'static str,
    },
    /// The policy is invalid.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The target is invalid.
    #[error(transparent)]
    Target(#[from] ProfileError),
}

/// Error that ended a run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The module was invalid before the first pass.
    #[error("the module is invalid: {} problems", .0.len())]
    Invalid(Vec<Violation>),
    /// Types cannot be inferred before the first pass.
    #[error("the module is ill-typed: {} problems", .0.len())]
    IllTyped(Vec<InferError>),
    /// A pass needs a decision of the user.
    #[error("{error}")]
    Pass {
        /// The pass.
        pass: &'static str,
        /// The error of the pass.
        #[source]
        error: PassError,
    },
    /// A pass needs an invariant that the module does not have.
    #[error("pass `{pass}` needs a module that is {missing}, and this one is not: {}", first.what)]
    Unprepared {
        /// The pass.
        pass: &'static str,
        /// The missing invariants.
        missing: Invariants,
        /// The place of the violation.
        first: Breach,
    },
    /// A pass broke the module: a bug.
    #[error("pass `{pass}` left an invalid module: {first}")]
    Broken {
        /// The pass, or `pipeline` when verified only at the end.
        pass: String,
        /// The first problem.
        first: String,
        /// Passes from the broken one on, as a pipeline.
        rest: String,
    },
}
