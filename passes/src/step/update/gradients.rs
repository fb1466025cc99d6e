//! Storage of gradients from where they are computed to where they are read: as they are computed, in 16 bits too.
//!
//! Gradient check and optimizers convert a gradient to fp32 themselves, so that a cast before them is not needed. With the
//! gradient of a weight whose low copy a product reads:
//!
//! ```text
//! %g: f16 = MatMul(…)
//! %w.grad: f32 = Cast(%g)                              %w.grad: f16 = MatMul(…)
//! …, _ = GradCheck(%inv, %w.grad)                      …, _ = GradCheck(%inv, %w.grad)
//! %w_next, … = AdamW(%w, %w.grad, …)                   %w_next, … = AdamW(%w, %w.grad, …)
//! ```
//!
//! The next weights have the same bits, and the gradient takes half the memory.

use super::Trained;
use crate::marks::{Phase, phase_of};
use ampc_ir::op::OpKind;
use ampc_ir::{DType, Module, Node, Value};
use rustc_hash::FxHashMap;

/// Makes gradients those in 16 bits of which they are casts, if nothing reads the casts: these are erased.
pub(super) fn keep_low(module: &mut Module, trained: &mut [Trained]) {
    // Two parameters may share a gradient.
    let mut low_of: FxHashMap<Value, Value> = FxHashMap::default();
    for Trained { gradient, .. } in trained {
        if let Some(&low) = low_of.get(gradient) {
            *gradient = low;
        } else if let Some((cast, low)) = widening(module, *gradient) {
            replace(module, cast, *gradient, low);
            low_of.insert(*gradient, low);
            *gradient = low;
        }
    }
}

/// The cast from 16 bits to fp32 that makes a value which nothing reads, and the operand of the cast.
fn widening(module: &Module, value: Value) -> Option<(Node, Value)> {
    let (cast, _) = module.producer(value)?;
    let data = module.node(cast);
    if data.schema()?.kind != OpKind::Cast || module.is_output(value) || module.uses(value).next().is_some() {
        return None;
    }
    let low = data.operand(0)?;
    let dtype = |value: Value| module.value(value).ty.dtype();
    let widens = dtype(low)?.is_low() && dtype(value) == Some(DType::F32);
    widens.then_some((cast, low))
}

/// Puts the operand of a cast in the place of its result. A value of the backward pass takes the name of the result too.
fn replace(module: &mut Module, cast: Node, result: Value, low: Value) {
    let name = module.value_name(result);
    module.replace_value(result, low);
    module.erase_node(cast);
    let is_backward =
        module.producer(low).is_some_and(|(maker, _)| phase_of(module, maker) == Some(Phase::Backward));
    if let Some(name) = name.filter(|_| is_backward && !module.is_output(low)) {
        module.set_value_name(low, name);
    }
}
