//! What is known and what was found of free variables, which the ways to choose hand on to each other.

use crate::graph::flow::Var;
use crate::graph::var_map::VarMap;
use ampc_ir::DType;
use rustc_hash::FxHashSet;
use std::borrow::Cow;

/// What was found for variables that were free.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// What is low, in which format.
    pub(super) low: VarMap<DType>,
    /// The rule and why, of what was chosen and did not follow from the class.
    pub(super) why: VarMap<(&'static str, Cow<'static, str>)>,
    /// What is computed from constants alone, and is not allow.
    pub(super) derived: FxHashSet<Var>,
    /// What moves a large constant that is stored low for its size.
    pub(super) stored: FxHashSet<Var>,
}

/// What painting says to a minimum cut.
pub(super) struct Painted {
    /// Which large constants are stored low, and what is computed from constants alone.
    pub(super) all: Found,
    /// What is in the other 16-bit format.
    pub(super) other: Found,
}

/// What is known of a free variable, or of a group of them, before anything is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Held {
    /// Nothing: it is to be chosen.
    Free,
    /// It is fp32.
    Full,
    /// It is low.
    Low,
    /// It is of another 16-bit format.
    Other(DType),
}
