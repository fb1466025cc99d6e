//! The guard on repeated multiplications by factors near 1, and by the same matrix.

use super::Cx;
use super::amplifiers::{is_small, products};
use crate::analysis::numerics::{Sink, is_repeated_squaring, refines_inverse};
use crate::graph::flow::{self, Reader};
use crate::pass::PassError;
use ampc_ir::Node;
use ampc_ir::op;

/// Denies the arithmetic of states that decay by a factor near 1 at every step, and iterations that multiply a matrix by
/// itself or refine an inverse.
///
/// The distance of the factor from 1 is the share that a state forgets: 0.995 in f16 is off by 4 % of that distance. The
/// errors of a state add up over 1 / (1 − f) steps, and those of a matrix double with each squaring.
pub(super) fn recurrence(cx: &mut Cx<'_>) -> Result<(), PassError> {
    let work = products(cx);
    for var in cx.free_vars() {
        let updates = cx.numerics.updates_state(cx.module, var.node);
        if cx.is_between(var) && (updates || cx.sinks(var).some.any(Sink::STATE)) {
            cx.deny(var, || "a state that is multiplied by a factor near 1 at every step".into());
        } else if cx.is_product(var)
            && is_repeated_squaring(cx.module, var.node)
            && is_small(cx, var.node, work)
        {
            cx.deny(var, || "one of several multiplications of a matrix by itself".into());
        }
        if let Some(product) = refines_inverse(cx.module, var.node) {
            cx.deny(var, || "refines an inverse: a multiple of the identity less a product".into());
            let mut steps = vec![product];
            steps.extend(readers_of(cx, var.node));
            steps.extend(factors_of(cx, product));
            steps.retain(|&step| is_small(cx, step, work));
            for step in steps {
                cx.deny_node(step, "a product of an iteration that refines an inverse");
            }
        }
    }
    Ok(())
}

/// The products that read the result of a node.
fn readers_of(cx: &Cx<'_>, node: Node) -> Vec<Node> {
    let results = cx.module.node(node).results().iter().flatten();
    let readers = results.flat_map(|&value| flow::readers_beyond_casts(cx.module, value));
    let readers = readers.filter_map(Reader::operand).map(|(reader, _)| reader);
    readers.filter(|&reader| cx.kind(reader).is_some_and(op::is_single_product)).collect()
}

/// The products that make the factors of a product.
fn factors_of(cx: &Cx<'_>, product: Node) -> Vec<Node> {
    let factors = cx.module.node(product).formal_operands().iter().flatten();
    let producers = factors.filter_map(|&value| cx.module.producer(flow::behind_casts(cx.module, value)));
    let products = producers.map(|(node, _)| node);
    products.filter(|&node| cx.kind(node).is_some_and(op::is_single_product)).collect()
}
