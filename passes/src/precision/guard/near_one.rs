//! The guard on numbers near 1 whose distance from 1 counts.

use super::Cx;
use crate::analysis::numerics::Sink;
use crate::graph::flow::Var;
use crate::pass::PassError;
use ampc_ir::op::{Amplified, OpKind};

/// Denies values that round to 1 or to 0 although their distance from it counts: probabilities before 1 − p, a
/// logarithm or a division, values that reach Atanh or Acos, 1 + x before a logarithm, and factors near 1.
///
/// For example, 0.9999 is 1 in f16, so that log(1 − 0.9999) is −∞ instead of −9.2.
pub(super) fn saturation(cx: &mut Cx<'_>) -> Result<(), PassError> {
    for var in cx.free_vars() {
        let sinks = cx.sinks(var);
        // Another row of the table may be nearer, but is not the reason.
        let row = sinks.amplifier().filter(|row| matches!(row.what, Amplified::One | Amplified::Zero));
        let end = row.map_or("a number whose distance from 0 or 1 counts", |row| row.why);
        if cx.is_product(var) && sinks.all.any(Sink::ONE) {
            cx.deny(var, || format!("the last product before {end}"));
        }
        if !cx.is_between(var) {
            continue;
        }
        let to_zero = sinks.some.any(Sink::ZERO) && is_probability(cx, var);
        let is_beside_one = || (0..2).any(|i| cx.numerics.is_beside_one(cx.module, var.node, i));
        if to_zero {
            cx.deny(var, || format!("may round to 0 or 1 on the way to {end}"));
        } else if sinks.some.any(Sink::ONE) || is_beside_one() {
            cx.deny(var, || format!("may round to 1 on the way to {end}"));
        }
    }
    Ok(())
}

/// True if the results of a variable lie strictly between 0 and 1.
fn is_probability(cx: &Cx<'_>, var: Var) -> bool {
    matches!(cx.kind(var.node), Some(OpKind::Sigmoid | OpKind::Softmax))
}
