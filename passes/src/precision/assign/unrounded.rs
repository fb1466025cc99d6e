//! Arithmetic on values that nothing has rounded yet gains nothing by being low.
//!
//! Rounding belongs where a product gains from it. A product that reads an fp32 value rounds it in any case; arithmetic in
//! front of the product would round the value before and its own result after, and gain little:
//!
//! ```text
//! %m = ReduceMean(%x)                  fp32
//! %n = LayerNormalization(%m, %g)      low: rounds %m and %n         fp32: rounds nothing
//! %r = Relu(%n)                                                      (moves and selections round nothing)
//! %y = MatMul(%r, %w)                  low                           low: rounds %r
//! ```
//!
//! PyTorch's autocast has one rounding here, not two. A value is *unrounded* if it is an input, the result of an operator that
//! must be fp32, or computed from unrounded values and constants only. Operators that a pin or data keeps in fp32 are excluded:
//! their results count as rounded. A variable of arithmetic on unrounded values costs one unit more in 16 bits than in fp32, so
//! the minimum cut lowers it only to save casts.
//!
//! The variables that gain least come first, as long as their gains together are at most 2 % of the time of the model with
//! all variables low. That time does not depend on the choice, so a second rewrite of the result chooses the same.

use super::prices::rounds;
use crate::analysis::cost::{CostModel, Objective};
use crate::analysis::tensors::{Producer, Tensors};
use crate::graph::flow::{self, Var};
use crate::graph::var_map::VarMap;
use ampc_ir::module::Rule;
use ampc_ir::op::{Class, Legality, OpKind};
use ampc_ir::{DType, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// 1 / `BUDGET` of the time of the model is the most that arithmetic on unrounded values may cost.
const BUDGET: i64 = 50;

/// The variables of arithmetic on unrounded values, where the variables of `low` are low and round their results.
pub(super) fn unrounded(tensors: &Tensors<'_>, costs: &CostModel<'_>, low: &VarMap<DType>) -> FxHashSet<Var> {
    if costs.objective() != Objective::Time {
        return FxHashSet::default();
    }
    let (module, to) = (tensors.module, tensors.to);
    let is_low = |value: Value| module.value(value).ty.element_dtype().is_some_and(DType::is_low);
    let inputs = module.graph(module.main()).inputs().iter();
    let mut values: FxHashMap<Value, bool> = inputs.map(|&value| (value, !is_low(value))).collect();
    let mut vars: Vec<(i64, Var)> = Vec::new();
    let mut total = 0i64;
    for node in flow::nodes(module) {
        for var in flow::vars(module, node) {
            let time = costs.node_time(var);
            total = total.saturating_add(time.low);
            let is_cast = module.node(node).schema().is_some_and(|schema| schema.kind == OpKind::Cast);
            let computes = rounds(module, var) && !is_cast;
            let is_unrounded = match flow::decision(module, var).map(|decision| decision.class) {
                _ if flow::is_port(module, var) || tensors.groups.get(var).is_some() => false,
                Some(Class::Allow) => false,
                Some(Class::Deny | Class::Fixed) if computes => !is_asked(tensors, var),
                Some(_) | None => computes_on_unrounded(tensors, var, &values),
            };
            let may_be_low = flow::is_free(module, var) && flow::legality(module, var, to) == Legality::Legal;
            if is_unrounded && may_be_low && computes {
                vars.push((time.full.saturating_sub(time.low).max(0), var));
            }
            let keeps = is_unrounded && !low.contains_key(&var);
            for (_, value) in flow::results_of(module, var) {
                values.insert(value, keeps && !is_low(value));
            }
        }
    }
    vars.sort_unstable();
    let mut sum = 0i64;
    let within = vars.into_iter().take_while(|(gain, _)| {
        sum = sum.saturating_add(*gain);
        sum <= total / BUDGET
    });
    within.map(|(_, var)| var).collect()
}

/// True if a pin or data keeps a variable in fp32.
fn is_asked(tensors: &Tensors<'_>, var: Var) -> bool {
    let rule = flow::decision(tensors.module, var).map(|decision| decision.reason.rule());
    rule.is_some_and(|rule| rule.pinned_by().is_some() || matches!(rule, Rule::Observed { .. }))
}

/// True if a variable has operands that are not constant, and all of them are unrounded.
fn computes_on_unrounded(tensors: &Tensors<'_>, var: Var, values: &FxHashMap<Value, bool>) -> bool {
    let module = tensors.module;
    let operands = flow::operands_of(module, var).map(|(_, value)| value);
    let mut varying = operands.filter(|&value| tensors.producer_of(value) != Producer::Constant).peekable();
    let is_unrounded = |value: Value| {
        let made = flow::behind_inserted(module, flow::resolve_captures(module, value));
        values.get(&made).copied().unwrap_or(false)
    };
    varying.peek().is_some() && varying.all(is_unrounded)
}
