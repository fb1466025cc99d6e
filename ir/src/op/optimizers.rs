//! The optimizers of ai.ampc, by their schemas. An optimizer updates one weight:
//!
//! | formal | |
//! |---|---|
//! | `w32`, `w32_next` | the weight in f32; the first operand and the first result |
//! | `g` | its gradient, in any format |
//! | `lr`, `mult`, `step`, `found_inf` | scalars that all weights share |
//! | `x`, `x_next` for any other `x` | a state with the shape of the weight |
//! | `w_lo_next` | the next weight in 16 bits |
//!
//! The results are the next weight, the next states in the order of the operands, and the next weight in 16 bits.

use super::table::{OpKind, OpSchema};

/// The domain of ampc's operators.
pub const DOMAIN: &str = "ai.ampc";

/// The operand of an optimizer that is the gradient.
pub const GRADIENT: &str = "g";

/// The operand of an optimizer that is the learning rate.
pub const RATE: &str = "lr";

/// The operand of an optimizer by which the gradient is multiplied: 1 over the loss scale, and the clip.
pub const MULT: &str = "mult";

/// The operand of an optimizer that is the number of steps taken.
pub const STEP: &str = "step";

/// The operand of an optimizer that is 1 if a gradient is not finite.
pub const FOUND_INF: &str = "found_inf";

/// The operands of an optimizer that are scalars.
pub const SCALARS: [&str; 4] = [RATE, MULT, STEP, FOUND_INF];

/// The first operand of an optimizer.
pub const WEIGHT: &str = "w32";

/// The result of an optimizer that is the next weight in 16 bits.
const LOW_COPY: &str = "w_lo_next";

/// True if an operator is an optimizer of ai.ampc.
pub fn is_optimizer(schema: &OpSchema) -> bool {
    schema.domain == DOMAIN && schema.inputs.first().is_some_and(|formal| formal.name == WEIGHT)
}

/// The index of the operand of a name; `None` if the operator is not an optimizer or has no such operand.
pub fn optimizer_operand(schema: &OpSchema, name: &str) -> Option<usize> {
    schema.inputs.iter().position(|formal| formal.name == name).filter(|_| is_optimizer(schema))
}

/// The index of the result that is the next weight in 16 bits; `None` if the operator is not an optimizer.
pub fn low_copy(schema: &OpSchema) -> Option<usize> {
    schema.outputs.iter().position(|formal| formal.name == LOW_COPY).filter(|_| is_optimizer(schema))
}

/// True if an operator belongs to the update of a training step: an operator of ai.ampc other than dropout.
pub fn is_of_update(kind: OpKind) -> bool {
    kind.domain() == DOMAIN && kind != OpKind::PhiloxDropout
}
