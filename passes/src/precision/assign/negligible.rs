//! Products with a negligible share of the model's work. They may be fp32 if that costs least: the product of a time
//! step with some frequencies, a 4×4 projection, the product of one step of a recurrence.
//!
//! Products are low because large products take most of the time. A negligible product gains nothing, and its operand
//! is rounded all the same. So the choice is free if four conditions hold:
//!
//! - the product does less than [`Assign::negligible`](super::Assign::negligible) percent of the work of all products
//!   that may be low, and all free products together do less than [`TOGETHER`] times that percentage. Products of equal
//!   work are free together or not at all, so that no order decides, and products of the least work come first;
//! - its weights are few, or less than that percentage of the weights of all these products, because low weights take
//!   half the bytes;
//! - it is low by the operator table or a list of the preset, not by a request of the user;
//! - its work is known.
//!
//! A product may be low if it is low already, or allow and free. So the shares are the same when the result of a
//! rewrite is rewritten. Most of the work stays low whatever the cut chooses.
//!
//! Example with 1 %: 17 products of one unit of work each, beside a product of 100 units. Each does 0.9 % of the work,
//! and all of them 14.5 %, which is below 15 %: they are free. If there are 18 such products, which
//! do 15.3 %, no product is free.

use super::constants::MIN_TABLE;
use crate::analysis::cost::{CostModel, Executions, amount};
use crate::analysis::values::is_stored;
use crate::graph::flow::{self, Var};
use crate::precision::classify::quantized::is_unasked;
use ampc_ir::module::reason::Why;
use ampc_ir::op::{Class, Legality, Work, work};
use ampc_ir::views::NodeView;
use ampc_ir::{DType, Module, Node, Value};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::num::NonZeroU16;

/// The percentage of the work that all free products together must stay below, as a multiple of the percentage for one
/// product. With 1 %, at least 85 % of the work stays low.
pub const TOGETHER: u8 = 15;

/// A product that may be low.
struct Product {
    node: Node,
    /// The number of elements of its weights.
    weights: u64,
}

/// Returns the variables of products that may be fp32 if that costs least, each with the reason of a product that is
/// fp32. If `all`, these are all products that are not pinned, whatever their work.
pub(super) fn negligible(
    module: &Module,
    to: DType,
    costs: &CostModel<'_>,
    (percent, all): (u8, bool),
) -> FxHashMap<Var, Why> {
    let mut found = FxHashMap::default();
    if all {
        // If the work of a product is unknown, its share is unknown too.
        let vars =
            flow::nodes(module).into_iter().flat_map(|node| flow::vars(module, node).collect::<Vec<_>>());
        found.extend(vars.filter(|&var| is_free(module, var, to)).map(|var| (var, Why::CheapestFull)));
    }
    if percent == 0 {
        return found;
    }
    let by_work = products(module, to, costs);
    let of_group = |(&work, products): (&u128, &Vec<Product>)| work.saturating_mul(products.len() as u128);
    let total = by_work.iter().map(of_group).fold(0, u128::saturating_add);
    let weights = by_work.values().flatten().map(|product| u128::from(product.weights));
    let weights = weights.fold(0, u128::saturating_add);
    let below =
        |part: u128, of: u128, percent: u8| part.saturating_mul(100) < of.saturating_mul(percent.into());
    let is_light =
        |product: &&Product| product.weights < MIN_TABLE || below(product.weights.into(), weights, percent);
    let mut sum: u128 = 0;
    for group in &by_work {
        sum = sum.saturating_add(of_group(group));
        let (&work, products) = group;
        if !below(work, total, percent) || !below(sum, total, percent.saturating_mul(TOGETHER)) {
            break;
        }
        let tenths = u16::try_from(work.saturating_mul(1000).div_ceil(total)).unwrap_or(u16::MAX);
        let share = Why::SmallShare(NonZeroU16::new(tenths).unwrap_or(NonZeroU16::MIN));
        let light = products.iter().filter(is_light);
        let vars = light.filter_map(|product| unasked(module, product.node, to));
        found.extend(vars.map(|var| (var, share)));
    }
    found
}

/// Returns the products that may be low and whose work is known, by work.
fn products(module: &Module, to: DType, costs: &CostModel<'_>) -> BTreeMap<u128, Vec<Product>> {
    // The number of executions counts under every objective.
    let executions = Executions::count(costs.measured(), costs.sizes());
    let extents = costs.extents();
    let mut by_work: BTreeMap<u128, Vec<Product>> = BTreeMap::new();
    for node in flow::nodes(module) {
        let view = NodeView::new(module, node).filter(|view| work(view.kind()) == Work::Product);
        let Some(view) = view.filter(|_| may_be_low(module, node, to)) else { continue };
        let measured = NodeView::new(costs.measured(), node);
        let once = amount(measured.as_ref().unwrap_or(&view), extents);
        let runs = u128::from(executions.of(module.node(node).graph).unsigned_abs());
        let all = u128::from(once.product).saturating_add(once.elementwise.into()).saturating_mul(runs);
        if all > 0 {
            let operands = module.node(node).formal_operands().iter().flatten();
            let behind = operands.map(|&value| flow::behind_casts(module, value));
            let stored = behind.filter(|&value| is_stored(module, value) && is_float(module, value));
            let weights = stored.map(|value| extents.elements(value)).fold(0, u64::saturating_add);
            by_work.entry(all).or_default().push(Product { node, weights });
        }
    }
    by_work
}

/// True if a product is low, or allow and free.
fn may_be_low(module: &Module, node: Node, to: DType) -> bool {
    flow::vars(module, node).any(|var| {
        let decision = flow::decision(module, var).filter(|d| d.class == Class::Allow);
        decision.is_some_and(|d| d.precision.is_some_and(DType::is_low)) || is_free(module, var, to)
    })
}

/// True if a variable is allow and undecided.
fn is_free(module: &Module, var: Var, to: DType) -> bool {
    let allow = flow::decision(module, var).is_some_and(|d| d.class == Class::Allow);
    allow && flow::is_free(module, var) && flow::legality(module, var, to) == Legality::Legal
}

/// Returns the variable of a product that no request makes low; `None` if the product has several float variables,
/// which go together.
fn unasked(module: &Module, node: Node, to: DType) -> Option<Var> {
    let of_floats = |var: &Var| {
        let bound = flow::bound_type(module, *var).and_then(|ty| ty.dtype());
        bound.is_some_and(DType::is_float)
    };
    let mut floats = flow::vars(module, node).filter(of_floats);
    let var = floats.next().filter(|&var| is_free(module, var, to))?;
    let rule = flow::decision(module, var)?.reason.rule();
    (floats.next().is_none() && is_unasked(rule)).then_some(var)
}

fn is_float(module: &Module, value: Value) -> bool {
    module.value(value).ty.dtype().is_some_and(DType::is_float)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::cost::Objective;
    use crate::target::Profile;
    use ampc_ir::infer::infer_module;
    use ampc_ir::text::{NoData, parse};

    /// Returns the number of products of a graph that may be fp32. The graph has `small` products with a constant of
    /// this many rows and 16 columns, and one product with an input that does a hundred times as much work.
    fn free(small: usize, rows: usize, to_reverse: bool) -> usize {
        let mut lines: Vec<String> = (0..small)
            .map(|i| format!("  %a{i} = MatMul(%x, %s) : f32[1, 16] class=allow why=table\n"))
            .collect();
        lines.push("  %b = MatMul(%x, %l) : f32[1, 1600] class=allow why=table\n".to_owned());
        if to_reverse {
            lines.reverse();
        }
        let text = format!(
            "module ir=10\nopset ai.onnx=22\n\ngraph {{\n  input %x : f32[1, {rows}]\n  input %l : f32[{rows}, 1600]\n  \
             const %s : f32[{rows}, 16] = random(1)\n{}  output %b\n}}\n",
            lines.concat()
        );
        let mut module = parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
        infer_module(&mut module).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"));
        let profile = Profile::preset("generic").unwrap();
        let costs = CostModel::new(&module, &profile, DType::F16, Objective::Time);
        negligible(&module, DType::F16, &costs, (1, false)).len()
    }

    /// 17 of 117 units of work are below 15 percent, 18 of 118 are not.
    #[test]
    fn products_of_the_same_work_are_free_together_or_not_at_all() {
        for to_reverse in [false, true] {
            assert_eq!(free(17, 8, to_reverse), 17);
            assert_eq!(free(18, 8, to_reverse), 0);
        }
    }

    /// Weights of 1,008 elements are few; weights of 1,024 elements are half of all weights.
    #[test]
    fn weights_count() {
        assert_eq!(free(2, 63, false), 2);
        assert_eq!(free(2, 64, false), 0);
    }
}
