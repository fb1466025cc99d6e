//! Nodes that only their opset keeps in fp32. A newer opset is advised for these nodes alone.

use super::Classify;
use super::quantized::hold_quantized;
use crate::graph::flow::{self, Var};
use crate::pass::options::Spelled;
use crate::pass::{Pass, PassCx, PassError, Results, Warning};
use crate::precision::guard::Guard;
use ampc_ir::module::Decision;
use ampc_ir::op::Class;
use ampc_ir::{DType, Module, Node};
use std::collections::BTreeMap;

/// A variable whose operator has the format from a newer opset on.
#[derive(Debug)]
pub(super) struct Unready {
    pub(super) var: Var,
    /// The operator, the first opset at which it has the format, and the format.
    pub(super) about: (&'static str, u16, DType),
    /// The decision about the variable if its operator had the format.
    pub(super) decision: Decision,
}

impl Unready {
    /// True unless the policy, a pin or a list keeps the variable fp32 at any opset.
    pub(super) fn could_be_low(&self) -> bool {
        let Decision { class, precision, .. } = self.decision;
        !matches!(class, Class::Deny | Class::Fixed) && precision.is_none_or(DType::is_low)
    }
}

impl Classify {
    /// Warns of variables that no guard would deny at a newer opset. The guards judge the variables with the decisions
    /// for that opset; then the decisions are restored.
    pub(super) fn warn_of_opsets(
        &self,
        module: &mut Module,
        unready: Vec<Unready>,
        cx: &mut PassCx<'_>,
    ) -> Result<(), PassError> {
        if unready.is_empty() {
            return Ok(());
        }
        let nodes = flow::nodes(module);
        let decided: Vec<(Node, Vec<Decision>)> =
            nodes.into_iter().map(|node| (node, module.node(node).decisions.to_vec())).collect();
        for Unready { var, decision, .. } in &unready {
            module.node_mut(var.node).decisions[usize::from(var.var)] = decision.clone();
        }
        // The warnings of the guards are dropped: they are about decisions that are not made.
        let mut results = Results::default();
        let mut trial = PassCx::new(cx.facts, cx.statistics, &mut results);
        let disabled = self.policy.disabled_guards().clone();
        let guard = Guard { to: self.to, disabled, ..Guard::blank() };
        let guarded = guard.run(module, &mut trial);
        hold_quantized(module);
        let mut counts: BTreeMap<_, u32> = BTreeMap::new();
        for Unready { var, about, .. } in &unready {
            let is_low = |decision: &Decision| decision.precision.is_some_and(DType::is_low);
            if flow::is_free(module, *var) || flow::decision(module, *var).is_some_and(is_low) {
                *counts.entry(*about).or_default() += 1;
            }
        }
        for (node, decisions) in decided {
            *module.node_mut(node).decisions = decisions.into();
        }
        guarded?;
        for ((op, first, format), count) in counts {
            let code = if format == DType::BF16 { "opset.bf16" } else { "opset.f16" };
            let message = format!("{count} × {op} stay fp32: {op} takes {format} from opset {first} on");
            cx.results.warn(Warning { needs_opset: Some(first), ..Warning::new(code, None, message) });
        }
        Ok(())
    }
}
