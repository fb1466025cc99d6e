//! `assign`: chooses the element type of every type variable that is still free.
//!
//! `assign{by=paint}` [paints](paint), as TensorFlow's `auto_mixed_precision` does.

mod paint;

use self::paint::{Painted, paint};
use crate::flow::{self, Var};
use crate::insert_casts::KeepIo;
use crate::pass::{Changed, Invariants, Pass, PassCx, PassError};
use ampc_ir::module::Reason;
use ampc_ir::op::Class;
use ampc_ir::{DType, Module};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The pass, by painting.
#[derive(Clone, Debug)]
pub struct Assign {
    /// The format to lower to: f16 or bf16.
    pub to: DType,
    /// Which outputs of the graph keep their types.
    pub keep_io: KeepIo,
}

impl Pass for Assign {
    fn name(&self) -> &'static str {
        "assign"
    }
    fn options(&self) -> Vec<(&'static str, String)> {
        let mut options = vec![("by", "paint".into()), ("to", self.to.to_string())];
        options.extend(self.keep_io.spelling().map(|s| ("keep-io", s)));
        options
    }
    fn requires(&self) -> Invariants {
        Invariants::CORE.with(Invariants::CLASSIFIED)
    }
    fn ensures(&self) -> Invariants {
        Invariants::CORE.with(Invariants::CLASSIFIED).with(Invariants::ASSIGNED)
    }
    fn run(&self, module: &mut Module, _cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let Painted { low, why } = paint(module, self.to, &self.keep_io);
        let mut changed = false;
        for (var, precision) in chosen(module, &low) {
            changed = true;
            let lowered = low.contains_key(&var);
            let decision = &mut module.node_mut(var.node).decisions[usize::from(var.var)];
            if lowered && let Some(&why) = why.get(&var) {
                let evidence = format!("{} {why}", decision.class);
                decision.reason = Arc::new(Reason { rule: "paint".into(), evidence });
            }
            decision.precision = Some(precision);
        }
        Ok(Changed::when(changed))
    }
}

/// Element types of all variables without one, in program order.
fn chosen(module: &Module, low: &FxHashMap<Var, DType>) -> Vec<(Var, DType)> {
    let mut order = Vec::new();
    for node in flow::nodes(module) {
        for var in flow::vars(module, node) {
            if flow::decision(module, var).is_some_and(|d| d.precision.is_none() && d.class != Class::Fixed) {
                order.push((var, low.get(&var).copied().unwrap_or(DType::F32)));
            }
        }
    }
    order
}
