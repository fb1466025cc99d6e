//! Amount of computation of operators, for estimates of time: products of matrices, work per element, or only
//! moving.
//!
//! The numbers are relative: an addition is 1. They hold for every version of an operator. The amount per node
//! also depends on shapes, which are not considered here.

use super::OpKind as K;
use super::table::OpKind;
use super::traits::moves;

/// The kind of work of an operator.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Work {
    /// Sums of products along an axis that the result does not have, as matrix units compute them.
    Product,
    /// The number of operations for each element of the largest operand, or of the results if they are larger.
    Elementwise {
        /// Additions that take as long.
        per_element: u32,
    },
    /// Nothing is computed.
    Move,
}

/// Operations per element of a function that has no instruction of its own (exp, tanh) or of several passes over the
/// data (norms, softmax).
const FUNCTION: u32 = 8;
/// Operations per element of a division or a root.
const DIVISION: u32 = 4;

/// The work of an operator.
pub fn work(kind: OpKind) -> Work {
    if is_single_product(kind) || is_compound_product(kind) {
        Work::Product
    } else if (0..3).any(|operand| moves(kind, operand).is_some()) || is_made_of_nothing(kind) {
        Work::Move
    } else {
        Work::Elementwise { per_element: per_element(kind) }
    }
}

/// True if the operator is one product: MatMul, Gemm, Conv and their like, with at most a bias or an activation behind
/// it.
///
/// Attentions and recurrences are not single products: they do several products that depend on each other.
pub fn is_single_product(kind: OpKind) -> bool {
    matches!(
        kind,
        K::ContribFusedConv
            | K::ContribFusedGemm
            | K::ContribFusedMatMul
            | K::ContribGemmFastGelu
            | K::ContribMatMulNBits
            | K::ContribNhwcConv
            | K::ContribTransposeMatMul
            | K::Conv
            | K::ConvTranspose
            | K::DeformConv
            | K::Einsum
            | K::Gemm
            | K::MatMul
    )
}

/// True if the operator does several products, or a product in every step of a recurrence.
fn is_compound_product(kind: OpKind) -> bool {
    matches!(
        kind,
        K::Attention
            | K::CausalConvWithState
            | K::ContribAttention
            | K::ContribGroupQueryAttention
            | K::ContribMultiHeadAttention
            | K::ContribPackedMultiHeadAttention
            | K::GRU
            | K::LSTM
            | K::LinearAttention
            | K::PreviewFlexAttention
            | K::RNN
    )
}

/// Constants, shapes, and containers of tensors.
fn is_made_of_nothing(kind: OpKind) -> bool {
    matches!(
        kind,
        K::Constant
            | K::ConcatFromSequence
            | K::ConstantOfShape
            | K::Optional
            | K::OptionalGetElement
            | K::OptionalHasElement
            | K::SequenceAt
            | K::SequenceConstruct
            | K::SequenceEmpty
            | K::SequenceErase
            | K::SequenceInsert
            | K::SequenceLength
            | K::Shape
            | K::Size
            | K::SplitToSequence
    )
}

/// Operations that make one element of the result. One flat table of costs.
fn per_element(kind: OpKind) -> u32 {
    match kind {
        K::Div | K::Mod | K::Reciprocal | K::Softsign | K::Sqrt => DIVISION,
        K::Acos
        | K::Acosh
        | K::Asin
        | K::Asinh
        | K::Atan
        | K::Atanh
        | K::BatchNormalization
        | K::Celu
        | K::ContribBiasGelu
        | K::ContribBiasSoftmax
        | K::ContribBiasSplitGelu
        | K::ContribEmbedLayerNormalization
        | K::ContribFastGelu
        | K::ContribGelu
        | K::ContribGroupNorm
        | K::ContribQuickGelu
        | K::ContribRotaryEmbedding
        | K::ContribSkipGroupNorm
        | K::ContribSkipLayerNormalization
        | K::ContribSkipSimplifiedLayerNormalization
        | K::Cos
        | K::Cosh
        | K::Elu
        | K::Erf
        | K::Exp
        | K::Gelu
        | K::GridSample
        | K::GroupNormalization
        | K::InstanceNormalization
        | K::LRN
        | K::LayerNormalization
        | K::Log
        | K::LogSoftmax
        | K::LpNormalization
        | K::MeanVarianceNormalization
        | K::Mish
        | K::Pow
        | K::RMSNormalization
        | K::ReduceLogSum
        | K::ReduceLogSumExp
        | K::Resize
        | K::RotaryEmbedding
        | K::Selu
        | K::Sigmoid
        | K::SimplifiedLayerNormalization
        | K::Sin
        | K::Sinh
        | K::Softmax
        | K::SoftmaxCrossEntropyLoss
        | K::Softplus
        | K::SwiGLU
        | K::Swish
        | K::Tan
        | K::Tanh
        | K::Upsample => FUNCTION,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::op::base_class;
    use crate::op::class::Class;

    /// Operators of class `allow` are products, or tables of embeddings that are named here.
    #[test]
    fn operators_of_class_allow_are_products_or_named_here() {
        let differ: Vec<&str> = OpKind::ALL
            .iter()
            .filter(|&&k| (base_class(k, DType::F16) == Class::Allow) != (work(k) == Work::Product))
            .map(|k| k.name())
            .collect();
        assert_eq!(differ, ["EmbedLayerNormalization"]);
    }

    #[test]
    fn clear_operators_move_or_compare() {
        let rest: Vec<&str> = OpKind::ALL
            .iter()
            .filter(|&&k| base_class(k, DType::F16) == Class::Clear && work(k) != Work::Move)
            .map(|k| k.name())
            .collect();
        let expected = [
            "Abs",
            "Clip",
            "EyeLike",
            "GlobalMaxPool",
            "Hardmax",
            "Max",
            "MaxPool",
            "Min",
            "ReduceMax",
            "ReduceMin",
            "Relu",
        ];
        assert_eq!(rest, expected);
        assert_eq!(work(OpKind::Add), Work::Elementwise { per_element: 1 });
        assert_eq!(work(OpKind::Tanh), Work::Elementwise { per_element: FUNCTION });
    }
}
