//! Formats of free variables: those known before a choice, and those found by painting or by the minimum cut.

use crate::graph::flow::Var;
use crate::graph::var_map::VarMap;
use ampc_ir::DType;
use ampc_ir::module::reason::{Placer, Why};
use rustc_hash::FxHashSet;

/// The result of a choice of formats for free variables.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The format of each low variable.
    pub(super) low: VarMap<DType>,
    /// The reason of each decision that does not follow from the class of its variable.
    pub(super) why: VarMap<(Placer, Why)>,
    /// The variables of values computed from constants alone, except those of class allow.
    pub(super) derived: FxHashSet<Var>,
    /// The variables that move a large constant, which is stored low for its size.
    pub(super) stored: FxHashSet<Var>,
}

/// The results of painting that a minimum cut uses.
pub(super) struct Painted {
    /// The result of painting in any format: large constants stored low, and values computed from constants alone.
    pub(super) all: Found,
    /// The variables of the other 16-bit format.
    pub(super) other: Found,
}

/// The state of a free variable, or of a group of variables, before formats are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Held {
    /// Its format is to be chosen.
    Free,
    /// It is fp32.
    Full,
    /// It is low.
    Low,
    /// It is of another 16-bit format.
    Other(DType),
}
