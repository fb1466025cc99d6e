//! Formats of free variables: those known before a choice, and those found by the minimum cut.

use crate::graph::var_map::VarMap;
use ampc_ir::DType;
use ampc_ir::module::reason::Why;

/// The formats that a minimum cut chose for free variables.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The format of each low variable.
    pub(super) low: VarMap<DType>,
    /// The reason of each decision that does not follow from the class of its variable.
    pub(super) why: VarMap<Why>,
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
