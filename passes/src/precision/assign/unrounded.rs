//! Arithmetic on values that nothing has rounded yet stays fp32.
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
//! So PyTorch's autocast has one rounding here, not two. A value is *unrounded* if it is an input, the result of an fp32
//! operator that is not `infer` or `clear`, or computed from unrounded values and constants alone. Operators that a pin or
//! data keeps in fp32 do not count: the request is about these operators alone. Low variables that compute on unrounded values are
//! kept in fp32, in groups of neighbors, the groups that cost least first, as long as the choice costs at most 2 % more and
//! no product becomes fp32.

use super::found::Found;
use super::optimum::Optimum;
use super::prices::rounds;
use crate::analysis::cost::CostModel;
use crate::analysis::tensors::{End, Producer, Tensors};
use crate::graph::flow::{self, Var};
use ampc_ir::Value;
use ampc_ir::module::Rule;
use ampc_ir::op::Class;
use rustc_hash::FxHashMap;

/// The part of the cost of a choice that fp32 arithmetic on unrounded values may add: 1 / 50.
const PART: i64 = 50;

/// The number of choices that are tried.
const MOST_TRIES: usize = 3;

/// The choice that keeps arithmetic on unrounded values in fp32 where that costs little. `choose` gives the choice that
/// keeps these variables in fp32.
pub(super) fn keep_unrounded(
    tensors: &Tensors<'_>,
    costs: &CostModel<'_>,
    chosen: (Found, Optimum),
    choose: impl Fn(&[Var]) -> (Found, Optimum),
) -> (Found, Optimum) {
    let most = chosen.1.cost / PART;
    let mut groups = groups(tensors, costs, &chosen.0);
    groups.sort_by(|a, b| a.cost.cmp(&b.cost).then(a.vars.cmp(&b.vars)));
    let mut sum = 0i64;
    groups.retain(|group| {
        sum = sum.saturating_add(group.cost.max(0));
        sum <= most
    });
    for _ in 0..MOST_TRIES {
        if groups.is_empty() {
            break;
        }
        let vars: Vec<Var> = groups.iter().flat_map(|group| group.vars.iter().copied()).collect();
        let (found, mut optimum) = choose(&vars);
        if optimum.cost - chosen.1.cost <= most && keeps_products(tensors, &chosen.0, &found) {
            optimum.rounded.clone_from(&chosen.1.rounded);
            return (found, optimum);
        }
        groups.truncate(groups.len() / 2);
    }
    chosen
}

/// True if all products that are low in the first choice are low in the second.
fn keeps_products(tensors: &Tensors<'_>, first: &Found, second: &Found) -> bool {
    let is_product =
        |var: &Var| flow::decision(tensors.module, *var).is_some_and(|d| d.class == Class::Allow);
    first.low.iter().map(|(var, _)| var).filter(is_product).all(|var| second.low.contains_key(&var))
}

/// Neighbors that compute on unrounded values.
struct Group {
    vars: Vec<Var>,
    /// The cost of their time in fp32 beyond that in 16 bits.
    cost: i64,
}

/// The low variables that round, and compute on unrounded values alone, in groups of neighbors.
fn groups(tensors: &Tensors<'_>, costs: &CostModel<'_>, found: &Found) -> Vec<Group> {
    let module = tensors.module;
    // The group of each unrounded value that low variables compute; `None` for values that no group makes.
    let mut unrounded: FxHashMap<Value, Option<usize>> = FxHashMap::default();
    let mut groups: Vec<Group> = Vec::new();
    for node in flow::nodes(module) {
        for var in flow::vars(module, node) {
            if flow::is_port(module, var) || tensors.groups.get(var).is_some() {
                continue;
            }
            let is_low = found.low.contains_key(&var);
            let class = flow::decision(module, var).map(|decision| decision.class);
            let of: Option<Option<usize>> = match class {
                _ if is_asked(tensors, var) => None,
                Some(Class::Infer | Class::Clear) => of_operands(tensors, var, &unrounded),
                _ => (!is_low).then_some(None),
            };
            let Some(mut group) = of else { continue };
            if is_low && rounds(module, var) {
                let time = costs.node_time(var);
                let at = group.unwrap_or_else(|| {
                    groups.push(Group { vars: Vec::new(), cost: 0 });
                    groups.len() - 1
                });
                groups[at].vars.push(var);
                groups[at].cost = groups[at].cost.saturating_add(time.full.saturating_sub(time.low));
                group = Some(at);
            }
            for (_, value) in flow::results_of(module, var) {
                unrounded.insert(value, group);
            }
        }
    }
    groups
}

/// True if a pin or data keeps a variable in fp32.
fn is_asked(tensors: &Tensors<'_>, var: Var) -> bool {
    let rule = flow::decision(tensors.module, var).map(|decision| decision.reason.rule());
    rule.is_some_and(|rule| rule.pinned_by().is_some() || matches!(rule, Rule::Observed { .. }))
}

/// The group of the unrounded operands of a variable; `None` if an operand is rounded, or if all are constants.
fn of_operands(
    tensors: &Tensors<'_>,
    var: Var,
    unrounded: &FxHashMap<Value, Option<usize>>,
) -> Option<Option<usize>> {
    let mut all: Option<Option<usize>> = None;
    for (_, value) in flow::operands_of(tensors.module, var) {
        let made = flow::behind_inserted(tensors.module, flow::resolve_captures(tensors.module, value));
        let group = match (tensors.producer_of(value), unrounded.get(&made)) {
            (Producer::Constant, _) => continue,
            (_, Some(&group)) => group,
            (Producer::End(End::Full), None) if tensors.module.producer(made).is_none() => None,
            (Producer::End(_), None) => return None,
        };
        all = Some(all.flatten().or(group));
    }
    all
}
