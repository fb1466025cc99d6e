//! Keeps gradients in the 16-bit format in which they were computed.
//!
//! Gradient check and optimizers convert a gradient to fp32 themselves, so that a cast before them is not needed. With the
//! gradient of a weight whose low copy a product reads:
//!
//! ```text
//! %g: f16 = MatMul(…)
//! %w.grad: f32 = Cast(%g)                           %w.grad: f16 = MatMul(…)
//! %found_inf = GradCheck(%inv, %w.grad)             %found_inf = GradCheck(%inv, %w.grad)
//! %w_next, … = AdamW(%w, %w.grad, …)                %w_next, … = AdamW(%w, %w.grad, …)
//! ```
//!
//! The next weights have the same bits, and the gradient takes half the memory.

use super::Trained;
use crate::graph::marks::{Phase, phase_of};
use ampc_ir::op::OpKind;
use ampc_ir::{DType, Module, Node, Value};
use rustc_hash::FxHashMap;

/// Replaces each gradient that is an unread cast from 16 bits to fp32 by the operand of the cast.
pub(super) fn keep_low(module: &mut Module, trained: &mut [Trained]) {
    // Two parameters may share a gradient.
    let mut low_of: FxHashMap<Value, Value> = FxHashMap::default();
    for Trained { gradient, .. } in trained {
        if let Some(&low) = low_of.get(gradient) {
            *gradient = low;
        } else if let Some((cast, low)) = widening(module, *gradient) {
            let name = module.value_name(*gradient);
            let is_named = low_of.values().any(|&other| other == low) || module.is_output(low);
            module.replace_value(*gradient, low);
            module.erase_node(cast);
            if let Some(name) = name.filter(|_| !is_named) {
                module.set_value_name(low, name);
            }
            low_of.insert(*gradient, low);
            *gradient = low;
        }
    }
}

/// The cast from 16 bits to fp32 that makes a gradient without readers, and the operand of the cast: a value of the backward
/// pass. An operand that stores a parameter may still be replaced by its low copy.
fn widening(module: &Module, gradient: Value) -> Option<(Node, Value)> {
    let (cast, _) = module.producer(gradient)?;
    let data = module.node(cast);
    let is_read = module.is_output(gradient) || module.uses(gradient).next().is_some();
    if data.schema()?.kind != OpKind::Cast || is_read {
        return None;
    }
    let low = data.operand(0)?;
    let dtype = |value: Value| module.value(value).ty.dtype();
    let (maker, _) = module.producer(low)?;
    let is_backward = phase_of(module, maker) == Some(Phase::Backward);
    let widens = dtype(low)?.is_low() && dtype(gradient) == Some(DType::F32);
    (is_backward && widens).then_some((cast, low))
}
