//! The formats of results that no operand types: attributes and the other operands decide them, once these have formats.
//!
//! For example, EyeLike without the attribute `dtype` makes the type of its operand, but the operand and the result are two
//! type variables:
//!
//! ```text
//! x  pinned to fp16        before: the result is decided as fp32, as it is now
//! y = EyeLike(x)           after: the result is fp16
//! ```

use crate::graph::containers::is_structural_node;
use crate::graph::flow::{self, Var};
use ampc_ir::infer::{Facts, check_node};
use ampc_ir::{DType, Module, Node};

/// Decides the format of results that no operand types: attributes and the other operands decide it, once these have their
/// formats. Returns true if a format is another than was decided.
pub(crate) fn settle_free_results(module: &mut Module, facts: &Facts) -> bool {
    let mut changed = false;
    for node in flow::nodes(module) {
        for var in flow::vars(module, node).collect::<Vec<_>>() {
            let Some(precision) = decided(module, var) else { continue };
            let Some((slot, _)) = flow::results_of(module, var).next() else { continue };
            let is_bound = flow::operands_of(module, var).next().is_some();
            if is_bound || is_structural_node(module, node) || module.node(node).bodies().next().is_some() {
                continue;
            }
            let made = inferred_with_decided(module, node, facts, slot).unwrap_or(precision);
            module.node_mut(node).decisions[usize::from(var.var)].precision = Some(made);
            changed |= made != precision;
        }
    }
    changed
}

/// The type that a node gives a result if its operands have the formats that are decided.
fn inferred_with_decided(module: &mut Module, node: Node, facts: &Facts, slot: usize) -> Option<DType> {
    let operands = module.node(node).formal_operands().to_vec();
    let mut before = Vec::new();
    for (at, value) in (0u32..).zip(operands) {
        let Some(value) = value else { continue };
        let ty = module.value(value).ty.clone();
        let wanted = flow::reader_var(module, node, at).and_then(|var| decided(module, var));
        if let Some(wanted) = wanted.filter(|_| ty.dtype().is_some_and(DType::is_float)) {
            module.set_type(value, ty.with_element_dtype(wanted));
            before.push((value, ty));
        }
    }
    let inferred = check_node(module, node, facts).ok().flatten();
    for (value, ty) in before.into_iter().rev() {
        module.set_type(value, ty);
    }
    inferred?.types.get(slot)?.dtype().filter(|dtype| dtype.is_float())
}

/// The float format that is decided for a variable.
fn decided(module: &Module, var: Var) -> Option<DType> {
    flow::decision(module, var)?.precision.filter(|format| format.is_float())
}
