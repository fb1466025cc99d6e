//! The cost of a choice of formats, with its bound.

use super::found::Found;
use super::predicted::Predicted;
use crate::analysis::cost::{Assumption, CostModel, NodeTime, Objective};
use crate::analysis::placement::Placement;
use crate::graph::flow::Var;
use crate::pass::PassError;
use ampc_ir::Node;
use rustc_hash::FxHashSet;

/// The cost of a choice of formats.
#[derive(Clone, Debug)]
pub struct Optimum {
    /// The quantity that is minimized.
    pub objective: Objective,
    /// The cost of the choice, in units of 1 / [`scale`](Self::scale).
    pub cost: i64,
    /// A lower bound of the cost of every choice.
    pub lower_bound: i64,
    /// True if no choice costs less.
    pub optimal: bool,
    /// The number of runs of the main graph that the cost is of.
    pub scale: i64,
    /// The values assumed for sizes and counts that the model does not determine.
    pub assumptions: Vec<Assumption>,
    /// By how much the [placed](crate::placement) casts cost less: by the choice a cast of the author has become an identity,
    /// so that its operand and its result are one tensor, or outputs of a body share a cast.
    pub merged: i64,
    /// The time of the whole model.
    pub predicted: Option<Predicted>,
    /// The nodes that another policy would leave fp32, if that was asked for and they are enough to mention.
    pub elsewhere: Option<Elsewhere>,
    /// True if casts have been inserted for the choice.
    pub(crate) carried_out: bool,
    /// The variables whose time is part of the cost, with that time.
    pub(super) timed: Vec<(Var, NodeTime)>,
    /// The number of tensors that the choice counted.
    pub(super) tensors: usize,
    /// The last sums of gated states that are rounded in each of so many steps.
    pub(super) rounded: Vec<(Node, usize)>,
}

impl Optimum {
    /// Compares the cost of the choice with the cost of its placement, and notes by how much the placement costs less.
    ///
    /// # Errors
    /// If the placement costs more, or costs less although no tensors have become one and no outputs share a cast: a bug.
    pub(super) fn compare(
        &mut self,
        placement: &Placement,
        costs: &CostModel<'_>,
        found: &Found,
    ) -> Result<(), PassError> {
        let times = self.timed.iter().map(|(var, time)| match found.low.contains_key(var) {
            true => time.low,
            false => time.full,
        });
        let placed = times.fold(placement.cost(costs), i64::saturating_add);
        self.merged = self.cost - placed;
        let may_merge = placement.is_shared() || placement.tensors() < self.tensors;
        if self.merged < 0 || self.merged > 0 && !may_merge {
            return Err(PassError::Placed { chosen: self.cost, placed });
        }
        Ok(())
    }
}

/// The nodes that another policy would leave fp32.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Elsewhere {
    /// The name of the policy.
    pub policy: String,
    /// The nodes that are left fp32 then, as [`is_left_full`](super::is_left_full) says.
    pub full: FxHashSet<Node>,
}
