//! The time that is predicted for a whole model, before anything is lowered and after.
//!
//! A choice counts what it can change ([`Optimum::cost`](super::Optimum::cost)). Here everything counts: every variable in the
//! format that it has, every cast, every constant that is read in two formats, so that any two rewrites of a model can be
//! compared. Between choices of the same variables the time moves as the cost of their placements does, under
//! [`Objective::Time`]; whatever the objective, it is computed from the same profile.
//!
//! Casts of the author that the choice counts, and those of an earlier run, count as the choice counts them: one for a
//! tensor and a format in a graph. All others (from or to a format that is neither fp32 nor the format) are nodes that take as
//! long on either side.

use crate::analysis::cost::{Assumption, CostModel, NodeTime, Objective};
use crate::analysis::placement::{Placement, standing_cost};
use crate::analysis::tensors::{Formats, Tensors};
use crate::graph::flow::{self, Var};
use crate::graph::var_map::VarMap;
use crate::policy::pinned::pin_of_cast;
use crate::precision::classify::other_low;
use crate::target::Profile;
use ampc_ir::op::OpKind;
use ampc_ir::{DType, Module, Node, Value};

/// The predicted time of one run of a whole model.
#[derive(Clone, Debug, Default)]
pub struct Predicted {
    /// In picoseconds, for [`scale`](Self::scale) runs, before anything is lowered.
    pub source: i64,
    /// The same once casts are inserted.
    pub rewritten: i64,
    /// The number of runs of the main graph that the times are of, so that those of branches stay whole.
    pub scale: i64,
    /// The values assumed for sizes and counts that the model does not determine.
    pub assumptions: Vec<Assumption>,
}

/// The time of a variable in each format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Times {
    full: i64,
    low: i64,
    /// In the 16-bit format that the rewrite does not lower to.
    other: i64,
}

impl Times {
    fn of(&self, format: Option<DType>, to: DType) -> i64 {
        match format {
            Some(dtype) if dtype == to => self.low,
            Some(dtype) if dtype.is_low() => self.other,
            Some(_) | None => self.full,
        }
    }
}

impl Predicted {
    /// The prediction for a module and a choice. `costs` are those of [`Objective::Time`], and `known` are times of variables
    /// in program order; `placement` has the casts of the choice.
    pub(super) fn new(
        tensors: &Tensors<'_>,
        costs: &CostModel<'_>,
        known: &[(Var, NodeTime)],
        chosen: &VarMap<DType>,
        placement: &Placement,
    ) -> Predicted {
        let (module, to) = (tensors.module, tensors.to);
        let other = other_low(to);
        let others = has(module, other).then(|| costs.lowering_to(other));
        let mut known = known.iter().peekable();
        let placed = tensors.in_formats(Formats::Chosen(chosen));
        let mut source = standing_cost(&tensors.in_formats(Formats::Present), costs)
            .saturating_add(other_casts(module, to, costs));
        let mut rewritten = placement.cost(costs).saturating_add(placement.cost_of_others(costs, to));
        for node in flow::nodes(module) {
            let counted = counts(tensors, node);
            for var in flow::vars(module, node) {
                let known = known.next_if(|&&(chosen, _)| chosen == var).map(|&(_, time)| time);
                let Some(is_fixed) = counted else { continue };
                let NodeTime { full, low } = known.unwrap_or_else(|| costs.node_time(var));
                let others = others.as_ref().filter(|_| !is_fixed);
                let other = others.map_or(full, |others| others.node_time(var).low);
                let times = Times { full, low: if is_fixed { full } else { low }, other };
                if times != Times::default() {
                    let present = flow::bound_type(module, var).and_then(|ty| ty.dtype());
                    let decided = flow::decision(module, var).map(|d| d.precision);
                    let decided = decided.and_then(|known| known.or_else(|| placed.decided(var)));
                    source = source.saturating_add(times.of(present, to));
                    rewritten = rewritten.saturating_add(times.of(decided.or(present), to));
                }
            }
        }
        Predicted { source, rewritten, scale: costs.scale(), assumptions: costs.assumptions() }
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

/// The operand of a cast from a float format to another, and the two formats.
fn float_cast(module: &Module, node: Node) -> Option<(Value, DType, DType)> {
    let data = module.node(node);
    let (operand, result) = (data.operand(0)?, data.result(0)?);
    let (from, to) = (module.value(operand).ty.dtype()?, module.value(result).ty.dtype()?);
    let is_cast = data.schema().is_some_and(|s| s.kind == OpKind::Cast);
    (is_cast && from.is_float() && to.is_float() && from != to).then_some((operand, from, to))
}

/// True if a value has a format, or a decision asks for it.
fn has(module: &Module, format: DType) -> bool {
    let decided = |&node: &Node| module.node(node).decisions.iter().any(|d| d.precision == Some(format));
    let defined = |graph| module.defined(graph).any(|v| module.value(v).ty.element_dtype() == Some(format));
    flow::graphs(module).into_iter().any(defined) || flow::nodes(module).iter().any(decided)
}

/// `None` for casts that are counted as casts; else whether the time of the node is the same whatever is chosen.
fn counts(tensors: &Tensors<'_>, node: Node) -> Option<bool> {
    let (module, data) = (tensors.module, tensors.module.node(node));
    if data.schema().is_none_or(|s| s.kind != OpKind::Cast) {
        return Some(false);
    }
    let to = data.result(0).and_then(|result| module.value(result).ty.dtype());
    let takes_any = flow::vars(module, node).next().is_some_and(|var| tensors.takes_any(var));
    // What a pinned cast makes fp32 is a tensor of its own.
    let joins = takes_any && !(to == Some(DType::F32) && pin_of_cast(module, node).is_some());
    let inserted = flow::inserted_result(module, node).is_some();
    let is_counted = inserted
        || to == Some(DType::F32) && tensors.looked_through(node).is_some()
        || joins && to.is_some_and(|to| to == DType::F32 || to == tensors.to);
    (!is_counted).then_some(true)
}

/// The time of inserted casts to the 16-bit format that the rewrite does not lower to, which stay whatever is chosen.
fn other_casts(module: &Module, to: DType, costs: &CostModel<'_>) -> i64 {
    let of = |node| {
        let result = flow::inserted_result(module, node)?;
        let other = module.value(result).ty.dtype().filter(|&other| other.is_low() && other != to)?;
        Some(costs.cast_cost(result, module.node(node).graph, DType::F32, other))
    };
    flow::nodes(module).into_iter().filter_map(of).fold(0, i64::saturating_add)
}
