//! A pass: a value with public configuration that turns one module into another.
//!
//! Passes keep no state between runs and read nothing but the module and their configuration: what a later pass
//! needs is in the IR (classes, decisions with their reasons, provenance of casts) and so in its text.

pub(crate) mod error;
pub mod input_ranges;
pub mod invariants;
pub mod observed;
pub(crate) mod options;
mod results;
pub(crate) mod statistics;
pub(crate) mod training_error;

pub use self::error::PassError;
use self::invariants::Invariants;
use self::options::Setting;
pub use self::results::Results;
use self::statistics::Statistics;
use ampc_ir::infer::Facts;
use ampc_ir::{InsertError, Module, Node};
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
    /// The opset from which on the operators that the warning is about have the format.
    pub needs_opset: Option<u16>,
}

impl Warning {
    /// A warning with a code and a message.
    pub fn new(code: &'static str, node: Option<Node>, message: impl Into<String>) -> Warning {
        Warning { code, message: message.into(), node, needs_opset: None }
    }
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
        self.results.warn(Warning::new(code, node, message));
    }
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
