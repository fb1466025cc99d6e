//! Formals whose class differs from the class of their operator: scales that stay fp32, masks, operands of
//! which only the shape is read.
//!
//! One flat table, sorted by operator, which a test compares with the names of formals in the schemas.

use super::class::Class;
use super::optimizers::{GRADIENT, is_optimizer};
use super::table::{OpKind as K, OpKind};
use super::table::{OpSchema, Side};

/// A formal whose class is not that of its operator.
struct Exception {
    kind: OpKind,
    side: Side,
    formals: &'static [&'static str],
    /// The first version it holds for.
    since: u16,
    class: Class,
}

const fn keeps(kind: OpKind, side: Side, formals: &'static [&'static str]) -> Exception {
    Exception { kind, side, formals, since: 1, class: Class::Fixed }
}

/// An operand of which only the shape or the element type is read, or which is converted anyway.
const fn accepts(kind: OpKind, formals: &'static [&'static str]) -> Exception {
    Exception { kind, side: Side::Operand, formals, since: 1, class: Class::Discrete }
}

/// An operand that may be large: its origin decides, as for an operator that adds it to scores.
const fn taints(kind: OpKind, formals: &'static [&'static str]) -> Exception {
    Exception { kind, side: Side::Operand, formals, since: 1, class: Class::Infer }
}

/// Sorted by kind.
static EXCEPTIONS: &[Exception] = &[
    // A float mask holds the least number of its format, which is infinite in f16.
    keeps(K::Attention, Side::Operand, &["attn_mask"]),
    keeps(K::BatchNormalization, Side::Operand, &["scale", "B", "mean", "var", "input_mean", "input_var"]),
    keeps(
        K::BatchNormalization,
        Side::Result,
        &["mean", "var", "saved_mean", "saved_var", "running_mean", "running_var"],
    ),
    accepts(K::Cast, &["input"]),
    accepts(K::CastLike, &["input"]),
    // State is carried from step to step. Convolution's shares `T` with its input, so a node with state stays.
    keeps(K::CausalConvWithState, Side::Operand, &["past_state"]),
    keeps(K::CausalConvWithState, Side::Result, &["present_state"]),
    keeps(K::Dropout, Side::Operand, &["ratio"]),
    accepts(K::EyeLike, &["input"]),
    // Coordinates: f16 moves a sample of a 4096-pixel image by up to half a pixel, bf16 by four.
    keeps(K::GridSample, Side::Operand, &["grid"]),
    keeps(K::LayerNormalization, Side::Result, &["Mean", "InvStdDev"]),
    keeps(K::LinearAttention, Side::Operand, &["past_state"]),
    keeps(K::LinearAttention, Side::Result, &["present_state"]),
    // Integers carried in floats.
    keeps(K::OneHot, Side::Operand, &["indices", "depth"]),
    // Before 12 the exponent shares the variable of the base and must not hide that Pow is a deny operator.
    Exception { kind: K::Pow, side: Side::Operand, formals: &["Y"], since: 12, class: Class::Fixed },
    keeps(K::Resize, Side::Operand, &["roi", "scales"]),
    keeps(K::SimplifiedLayerNormalization, Side::Result, &["inv_std_var"]),
    // Integers carried in floats, of the type of the data, in version 1.
    keeps(K::Split, Side::Operand, &["split"]),
    keeps(K::Tile, Side::Operand, &["tiles", "axis"]),
    keeps(K::Upsample, Side::Operand, &["scales"]),
    // Converted to fp32 by the operator, as the gradient of an optimizer is.
    accepts(K::GradCheck, &["g"]),
    // Masks and biases of position share `T` with the query, and a float mask holds the least number of its format.
    taints(K::ContribAttention, &["attention_bias"]),
    // Scale and bias have a variable of their own.
    keeps(K::ContribGroupNorm, Side::Operand, &["gamma", "beta"]),
    // Scales of quantised keys and values, which are fp32 only.
    keeps(K::ContribGroupQueryAttention, Side::Operand, &["k_scale", "v_scale"]),
    taints(K::ContribMultiHeadAttention, &["attention_bias"]),
    taints(K::ContribPackedMultiHeadAttention, &["attention_bias"]),
    keeps(K::ContribSkipGroupNorm, Side::Operand, &["gamma", "beta"]),
    keeps(K::ContribSkipLayerNormalization, Side::Result, &["mean", "inv_std_var"]),
    keeps(K::ContribSkipSimplifiedLayerNormalization, Side::Result, &["mean", "inv_std_var"]),
];

/// The class of a formal with its own class, by the table or by the user's signature of the operator.
pub(super) fn exception(schema: &OpSchema, side: Side, formal: &str) -> Option<Class> {
    if let Some(declared) = schema.declared {
        let (formals, classes) = match side {
            Side::Operand => (schema.inputs, declared.inputs),
            Side::Result => (schema.outputs, declared.outputs),
        };
        return formals.iter().zip(classes).find(|(f, _)| f.name == formal).and_then(|(_, &class)| class);
    }
    if side == Side::Operand && formal == GRADIENT && is_optimizer(schema) {
        return Some(Class::Discrete);
    }
    let start = EXCEPTIONS.partition_point(|e| e.kind < schema.kind);
    EXCEPTIONS[start..]
        .iter()
        .take_while(|e| e.kind == schema.kind)
        .find(|e| e.side == side && schema.since >= e.since && e.formals.contains(&formal))
        .map(|e| e.class)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::op::legality::has_element;
    use crate::op::table::formals;

    #[test]
    fn exceptions_are_sorted_and_name_formals() {
        assert!(EXCEPTIONS.is_sorted_by_key(|e| e.kind));
        for e in EXCEPTIONS {
            for name in e.formals {
                let known = e.kind.versions().iter().filter(|s| s.since >= e.since);
                let float = |s: &'static OpSchema| {
                    formals(s, e.side)
                        .iter()
                        .any(|f| f.name == *name && has_element(&s.types_of(f), DType::F32))
                };
                assert!(known.into_iter().any(float), "{:?} {name} is no float formal", e.kind);
            }
        }
    }
}
