//! The nodes that another policy would leave fp32: the module is decided with it, and then the decisions are restored.
//!
//! Before casts are inserted decisions are all that passes change, so no copy of the module is needed, and statistics of
//! constants are shared. It takes as long as deciding did, and so is left out where little is fp32 ([`NOTICEABLE`]). It
//! is for the report alone: no decision depends on it.

use super::optimum::Elsewhere;
use crate::graph::flow::{self, Var};
use crate::pass::input_ranges::InputRanges;
use crate::pass::observed::Observed;
use crate::pass::statistics::Statistics;
use crate::pass::{Pass, PassCx, PassError, Results};
use crate::policy::Policy;
use crate::precision::classify::Classify;
use crate::precision::guard::{Guard, OutOfRange};
use crate::precision::observe::Observe;
use crate::precision::taint::Taint;
use crate::target::Profile;
use ampc_ir::module::Decision;
use ampc_ir::op::OpKind;
use ampc_ir::{DType, Module, Node};
use std::sync::Arc;

/// Another policy is tried if at least one in so many nodes with floats is fp32.
pub const NOTICEABLE: usize = 10;

/// A policy to compare with.
#[derive(Clone, Debug)]
pub struct Alternative {
    /// The policy.
    pub policy: Arc<Policy>,
    /// The treatment of constants that do not fit.
    pub out_of_range: OutOfRange,
    /// The ranges of inputs.
    pub ranges: InputRanges,
    /// The values that came near an end of the range on data.
    pub observed: Option<Observed>,
    /// The results of products that stay within the range on data ([`Guard::trusted`]).
    pub trusted: Observed,
}

impl Alternative {
    /// Decides with the policy, if enough is fp32 for that to be worth while, and restores the decisions; `choose` is
    /// the choice of [`Assign`](super::Assign).
    ///
    /// `None` for modules with functions: how many forms of a function there are is known only once all is lowered.
    pub(super) fn decide(
        &self,
        module: &mut Module,
        (to, target): (DType, &Arc<Profile>),
        cx: &mut PassCx<'_>,
        choose: impl FnOnce(&mut Module, &mut Statistics) -> Result<(), PassError>,
    ) -> Option<Elsewhere> {
        if module.functions().next().is_some() {
            return None;
        }
        let nodes = flow::nodes(module);
        if !is_noticeable(module, &nodes) {
            return None;
        }
        let decided: Vec<Vec<Decision>> = nodes
            .iter()
            .map(|&node| std::mem::take(&mut *module.node_mut(node).decisions).into_vec())
            .collect();
        let done = self.decide_with(module, (to, target), cx, choose);
        let full = nodes.iter().copied().filter(|&node| is_left_full(module, node)).collect();
        for (&node, decisions) in nodes.iter().zip(decided) {
            *module.node_mut(node).decisions = decisions.into();
        }
        done.ok().map(|()| Elsewhere { policy: self.policy.name.clone(), full })
    }

    fn decide_with(
        &self,
        module: &mut Module,
        (to, target): (DType, &Arc<Profile>),
        cx: &mut PassCx<'_>,
        choose: impl FnOnce(&mut Module, &mut Statistics) -> Result<(), PassError>,
    ) -> Result<(), PassError> {
        // Its warnings are about a rewrite that does not happen.
        let mut results = Results::default();
        let mut cx = PassCx::new(cx.facts, cx.statistics, &mut results);
        let Alternative { policy, out_of_range, ranges, observed, trusted } = self;
        Classify { to, policy: policy.clone(), target: target.clone() }.run(module, &mut cx)?;
        let (disabled, out_of_range) = (policy.disabled_guards().clone(), *out_of_range);
        let (ranges, trusted) = (ranges.clone(), trusted.clone());
        Guard { to, disabled, out_of_range, ranges: ranges.clone(), trusted }.run(module, &mut cx)?;
        Taint { ranges }.run(module, &mut cx)?;
        if let Some(observed) = observed {
            Observe { to, observed: observed.clone() }.run(module, &mut cx)?;
        }
        choose(module, cx.statistics)
    }
}

/// The side of a node, low or fp32, by the formats of its type variables.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    /// One is a 16-bit format.
    Low,
    /// None is a 16-bit format, and one that is the type of an operand or of a port is fp32.
    Full,
}

/// True if a node is left fp32: none of its type variables has a 16-bit format, and one that types an operand has fp32.
/// Casts and what only makes values, such as constants, are not: they follow from what reads them.
pub fn is_left_full(module: &Module, node: Node) -> bool {
    side(module, node) == Some(Side::Full)
}

fn side(module: &Module, node: Node) -> Option<Side> {
    let is_cast = module.node(node).schema().is_some_and(|s| s.kind == OpKind::Cast);
    let format = |var| flow::decision(module, var).and_then(|d| d.precision);
    let any = |test: &dyn Fn(Var) -> bool| !is_cast && flow::vars(module, node).any(test);
    if any(&|var| format(var).is_some_and(DType::is_low)) {
        return Some(Side::Low);
    }
    let types_operand = |var| flow::operands_of(module, var).next().is_some();
    any(&|var| format(var) == Some(DType::F32) && types_operand(var)).then_some(Side::Full)
}

fn is_noticeable(module: &Module, nodes: &[Node]) -> bool {
    let count = |wanted| nodes.iter().filter(|&&node| side(module, node) == Some(wanted)).count();
    let (full, low) = (count(Side::Full), count(Side::Low));
    full > 0 && full.saturating_mul(NOTICEABLE) >= full.saturating_add(low)
}
