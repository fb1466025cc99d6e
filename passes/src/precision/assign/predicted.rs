//! The time that is predicted for a whole model, before anything is lowered and after.
//!
//! A choice counts what it can change ([`Optimum::cost`]). Here everything counts: every variable in the format that it
//! has, every cast that stands, every constant that is read in two formats, so that any two rewrites of a model can be
//! compared. Between choices of the same variables it moves as the cost less [`Optimum::merged`] does, under
//! [`Objective::Time`]; whatever the objective, it is computed from the same profile.
//!
//! Casts of the author that the choice counts, and those of an earlier run, count as the choice counts them: one for a
//! tensor and a format in a graph. All others (from or to what is neither fp32 nor the format) are nodes that take as
//! long on either side.

use super::optimum::{Optimum, Predicted, Times, casts_cost};
use crate::analysis::cost::{CostModel, NodeTime, Objective};
use crate::graph::flow::{self, Var};
use crate::precision::classify::other_low;
use crate::target::Profile;
use ampc_ir::op::OpKind;
use ampc_ir::{DType, Module, Node, Value};

impl Predicted {
    /// The prediction for a module before casts are inserted; `costs` are those of [`Objective::Time`].
    pub(super) fn of_source(module: &Module, costs: &CostModel<'_>, optimum: &Optimum) -> Predicted {
        let mut predicted = Predicted {
            scale: costs.scale(),
            assumptions: costs.assumptions(),
            fusions: costs.fusions().clone(),
            limit: costs.limit(),
            ..Predicted::default()
        };
        let other = other_low(optimum.to);
        let others = has(module, other).then(|| costs.lowering_to(other));
        // The choice has the times of what it chose for, in program order, if time was what it counted.
        let known = if optimum.objective == Objective::Time { &optimum.timed[..] } else { &[] };
        let mut known = known.iter().peekable();
        for node in flow::nodes(module) {
            let counted = counts(module, optimum, node);
            for var in flow::vars(module, node) {
                let known = known.next_if(|&&(chosen, _)| chosen == var).map(|&(_, time)| time);
                let Some(is_fixed) = counted else { continue };
                let NodeTime { full, low } = known.unwrap_or_else(|| costs.node_time(var));
                let others = others.as_ref().filter(|_| !is_fixed);
                let other = others.map_or(full, |others| others.node_time(var).low);
                let times = Times { full, low: if is_fixed { full } else { low }, other };
                if times != Times::default() {
                    predicted.times.push((var, times));
                }
            }
        }
        let casts = casts_cost(module, optimum, costs, &predicted.fusions);
        let present = |var| flow::bound_type(module, var).and_then(|ty| ty.dtype());
        predicted.source = predicted.total(module, optimum, present, costs, casts);
        predicted
    }

    /// The time of the module once casts are inserted; `casts` is their cost, if it is known already.
    pub(super) fn of_rewritten(
        &self,
        module: &Module,
        optimum: &Optimum,
        costs: &CostModel<'_>,
        casts: Option<i64>,
    ) -> i64 {
        let casts = casts.unwrap_or_else(|| casts_cost(module, optimum, costs, &self.fusions));
        let decided = |var| {
            let decided = flow::decision(module, var).and_then(|d| d.precision);
            decided.or_else(|| flow::bound_type(module, var).and_then(|ty| ty.dtype()))
        };
        self.total(module, optimum, decided, costs, casts)
    }

    fn total(
        &self,
        module: &Module,
        optimum: &Optimum,
        format: impl Fn(Var) -> Option<DType>,
        costs: &CostModel<'_>,
        casts: i64,
    ) -> i64 {
        let nodes = self.times.iter().map(|(var, times)| times.of(format(*var), optimum.to));
        nodes.chain([casts, other_casts(module, optimum, costs)]).fold(0, i64::saturating_add)
    }
}

/// The predicted time of a module in the formats that it has, with every cast as a node of its own, and the number of runs
/// that this is the time of. The difference of two says what passes before any decision have gained.
pub fn time_as_it_stands(module: &Module, target: &Profile, to: DType) -> (i64, i64) {
    let costs = CostModel::new(module, target, to, Objective::Time);
    let other = other_low(to);
    let others = costs.lowering_to(other);
    let of_var = |var| match flow::bound_type(module, var).and_then(|ty| ty.dtype()) {
        Some(dtype) if dtype == to => costs.node_time(var).low,
        Some(dtype) if dtype == other => others.node_time(var).low,
        Some(_) | None => costs.node_time(var).full,
    };
    let of_node = |node| match float_cast(module, node) {
        Some((value, from, to)) => costs.cast_cost(value, module.node(node).graph, from, to),
        None => flow::vars(module, node).map(of_var).fold(0, i64::saturating_add),
    };
    let total = flow::nodes(module).into_iter().map(of_node).fold(0, i64::saturating_add);
    (total, costs.scale())
}

/// What a cast from a float format to another one reads, and the formats.
fn float_cast(module: &Module, node: Node) -> Option<(Value, DType, DType)> {
    let data = module.node(node);
    let (operand, result) = (data.operand(0)?, data.result(0)?);
    let (from, to) = (module.value(operand).ty.dtype()?, module.value(result).ty.dtype()?);
    let is_cast = data.schema().is_some_and(|s| s.kind == OpKind::Cast);
    (is_cast && from.is_float() && to.is_float() && from != to).then_some((operand, from, to))
}

/// Whether anything has a format, or is to have it.
fn has(module: &Module, format: DType) -> bool {
    let decided = |&node: &Node| module.node(node).decisions.iter().any(|d| d.precision == Some(format));
    let defined = |graph| module.defined(graph).any(|v| module.value(v).ty.element_dtype() == Some(format));
    flow::graphs(module).into_iter().any(defined) || flow::nodes(module).iter().any(decided)
}

/// `None` for casts that are counted as casts; else whether the time of the node is the same whatever is chosen.
fn counts(module: &Module, optimum: &Optimum, node: Node) -> Option<bool> {
    let data = module.node(node);
    if data.schema().is_none_or(|s| s.kind != OpKind::Cast) {
        return Some(false);
    }
    let to = data.result(0).and_then(|result| module.value(result).ty.dtype());
    let is_counted =
        optimum.casts.contains(&node) && to.is_some_and(|to| to == DType::F32 || to == optimum.to);
    let inserted = flow::inserted_result(module, node).is_some();
    (!inserted && !is_counted).then_some(true)
}

/// The time of inserted casts to the 16-bit format that the rewrite does not lower to, which stay whatever is chosen.
fn other_casts(module: &Module, optimum: &Optimum, costs: &CostModel<'_>) -> i64 {
    let of = |node| {
        let result = flow::inserted_result(module, node)?;
        let to = module.value(result).ty.dtype().filter(|&to| to.is_low() && to != optimum.to)?;
        Some(costs.cast_cost(result, module.node(node).graph, DType::F32, to))
    };
    flow::nodes(module).into_iter().filter_map(of).fold(0, i64::saturating_add)
}
