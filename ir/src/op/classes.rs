//! Precision classes of operators: how each formal behaves when a model is lowered to f16 or bf16.
//!
//! A class belongs to a formal (an operand or result by name), for a 16-bit format. It is the class of the
//! operator ([`base_class`], one `match` that the compiler keeps complete), except for the formals in a small
//! table and except for formals that never are float, which are [`Class::Fixed`]. Formals that share a type
//! variable share a dtype, so the variable takes the strictest of their classes ([`var_class`]); no pass needs a
//! special case for an operator:
//!
//! - BatchNormalization: scale, bias and statistics are fixed. From 15 on they have variables of their own and X
//!   and Y move; before, they share `T` with X, and the whole node stays f32.
//! - LayerNormalization: the saved mean and deviation (`U`) stay, X, Scale, B and Y (`T`) move.
//! - RMSNormalization: `scale` and Y share `V`, so the scale has to move with Y.
//! - Pow: the exponent may keep its type from 12 on; before, it shares `T` with X and adds no constraint.
//!
//! Limits of this table, which sees neither attributes nor values:
//!
//! - `reduction` of ScatterElements and ScatterND: the class here is that of `reduction=none`; with a sum,
//!   product, maximum or minimum they are deny operators. A caller that reads attributes passes the refined
//!   class of the operator to [`formal_class_given`] or [`var_class_given`].
//! - Guards on ranges, epsilons, `stash_type` and the depth of sums.
//! - Constants: a constant operand of a formal that stays may follow the low operands if its values fit.

use super::class::Class;
use super::exceptions::exception;
use super::legality::{Legality, has_element, legality};
use super::table::{Formal, OpSchema, Side, formals_of};
use super::table::{OpKind as K, OpKind};
use crate::dtype::DType;

/// The class of an operator for a format, before exceptions for single formals.
///
/// Formats other than bf16 have the classes of f16, the stricter ones.
///
/// One flat table, so that the compiler says which operator has no class yet.
pub fn base_class(kind: OpKind, format: DType) -> Class {
    match kind {
        // ONNX Runtime's own, which sum in f32 as well. An EmbedLayerNormalization begins with tables: storing them low
        // is what makes a model smaller, and its norm is in f32 inside.
        K::ContribAttention
        | K::ContribEmbedLayerNormalization
        | K::ContribFusedConv
        | K::ContribFusedGemm
        | K::ContribFusedMatMul
        | K::ContribGemmFastGelu
        | K::ContribGroupQueryAttention
        | K::ContribMatMulNBits
        | K::ContribMultiHeadAttention
        | K::ContribNhwcConv
        | K::ContribPackedMultiHeadAttention
        | K::ContribTransposeMatMul => Class::Allow,

        // Tensor-core operators with f32 accumulators: where the speed is. The element type of FlexAttention's
        // bodies is that of its softmax, f32 by default, and does not move with its operands.
        K::Attention
        | K::CausalConvWithState
        | K::Conv
        | K::ConvTranspose
        | K::DeformConv
        | K::Einsum
        | K::GRU
        | K::Gemm
        | K::LSTM
        | K::LinearAttention
        | K::MatMul
        | K::PreviewFlexAttention
        | K::RNN => Class::Allow,

        // ONNX Runtime's own; its norms compute in f32 inside.
        K::ContribBiasAdd
        | K::ContribBiasGelu
        | K::ContribBiasSplitGelu
        | K::ContribFastGelu
        | K::ContribGelu
        | K::ContribGroupNorm
        | K::ContribQuickGelu
        | K::ContribRotaryEmbedding
        | K::ContribSkipGroupNorm
        | K::ContribSkipLayerNormalization
        | K::ContribSkipSimplifiedLayerNormalization => Class::Infer,

        // Safe for operands of ordinary size. Resize and GridSample (and Upsample, which Resize replaced) are here
        // and not with the operators that only move values: linear and cubic interpolation are weighted means.
        K::Add
        | K::AveragePool
        | K::BatchNormalization
        | K::Col2Im
        | K::Div
        | K::Dropout
        | K::Elu
        | K::Erf
        | K::Gelu
        | K::GridSample
        | K::GroupNormalization
        | K::HardSigmoid
        | K::HardSwish
        | K::ImageScaler
        | K::LayerNormalization
        | K::LeakyRelu
        | K::Mean
        | K::Mul
        | K::PRelu
        | K::PhiloxDropout
        | K::RMSNormalization
        | K::Resize
        | K::RotaryEmbedding
        | K::Selu
        | K::Shrink
        | K::Sigmoid
        | K::SimplifiedLayerNormalization
        | K::Softsign
        | K::Sqrt
        | K::Sub
        | K::Sum
        | K::SwiGLU
        | K::Swish
        | K::Tanh
        | K::ThresholdedRelu
        | K::Upsample => Class::Infer,

        // Move or select values. The scatters are so for `reduction=none` only; Scatter became ScatterElements.
        K::Abs
        | K::CenterCropPad
        | K::Clip
        | K::Compress
        | K::Concat
        | K::Constant
        | K::ConstantOfShape
        | K::DepthToSpace
        | K::Expand
        | K::EyeLike
        | K::Flatten
        | K::Gather
        | K::GatherElements
        | K::GatherND
        | K::GlobalMaxPool
        | K::Hardmax
        | K::Identity
        | K::Max
        | K::MaxPool
        | K::MaxUnpool
        | K::Min
        | K::Neg
        | K::OneHot
        | K::Pad
        | K::ReduceMax
        | K::ReduceMin
        | K::Relu
        | K::Reshape
        | K::ReverseSequence
        | K::Scatter
        | K::ScatterElements
        | K::ScatterND
        | K::Slice
        | K::SpaceToDepth
        | K::Split
        | K::Squeeze
        | K::TensorScatter
        | K::Tile
        | K::Transpose
        | K::Trilu
        | K::Unsqueeze
        | K::Where => Class::Clear,

        // Turn floats into decisions: narrowing flips ties and thresholds.
        K::ArgMax
        | K::ArgMin
        | K::Ceil
        | K::Equal
        | K::Floor
        | K::Greater
        | K::GreaterOrEqual
        | K::IsInf
        | K::IsNaN
        | K::Less
        | K::LessOrEqual
        | K::NonZero
        | K::Round
        | K::Shape
        | K::Sign
        | K::Size
        | K::TopK
        | K::Unique => Class::Discrete,

        // Sums and exponentials that f16 overflows; bf16 has the exponents of f32.
        K::ContribBiasSoftmax | K::GlobalAveragePool | K::ReduceMean | K::ReduceSum | K::Softmax => {
            if format == DType::BF16 { Class::Infer } else { Class::Deny }
        }

        // Blow up or cancel, sum long, are periodic in large arguments, compute coordinates or losses, or update
        // master weights.
        K::Acos
        | K::Acosh
        | K::AffineGrid
        | K::Asin
        | K::Asinh
        | K::Atan
        | K::Atanh
        | K::ContribInverse
        | K::ContribIrfft
        | K::ContribRfft
        | K::Cos
        | K::Cosh
        | K::CumProd
        | K::CumSum
        | K::DFT
        | K::Det
        | K::Exp
        | K::GlobalLpPool
        | K::InstanceNormalization
        | K::LRN
        | K::Log
        | K::LogSoftmax
        | K::LpNormalization
        | K::LpPool
        | K::MaxRoiPool
        | K::MeanVarianceNormalization
        | K::Mish
        | K::Mod
        | K::NegativeLogLikelihoodLoss
        | K::Pow
        | K::Reciprocal
        | K::ReduceL1
        | K::ReduceL2
        | K::ReduceLogSum
        | K::ReduceLogSumExp
        | K::ReduceProd
        | K::ReduceSumSquare
        | K::RoiAlign
        | K::STFT
        | K::Sin
        | K::Sinh
        | K::SoftmaxCrossEntropyLoss
        | K::Softplus
        | K::Tan
        | K::TrainingAdagrad
        | K::TrainingAdam
        | K::TrainingMomentum => Class::Deny,

        // No 16-bit form (for Celu and Range none before 27), or the type is the meaning: bit patterns, integers
        // carried in floats, random streams, quantisation scales, tables.
        K::Bernoulli
        | K::BitCast
        | K::BlackmanWindow
        | K::Celu
        | K::DequantizeLinear
        | K::DynamicQuantizeLinear
        | K::HammingWindow
        | K::HannWindow
        | K::MelWeightMatrix
        | K::Multinomial
        | K::NonMaxSuppression
        | K::QLinearConv
        | K::QLinearMatMul
        | K::QuantizeLinear
        | K::RandomNormal
        | K::RandomNormalLike
        | K::RandomUniform
        | K::RandomUniformLike
        | K::Range
        | K::TfIdfVectorizer => Class::Fixed,

        // Scales and what they make, as for ONNX's own; an attention that writes into the caches it is given.
        K::ContribDecoderMaskedMultiHeadAttention
        | K::ContribDequantizeLinear
        | K::ContribDynamicQuantizeMatMul
        | K::ContribMatMulInteger16
        | K::ContribMatMulIntegerToFloat
        | K::ContribQAttention
        | K::ContribQLinearAdd
        | K::ContribQLinearMul
        | K::ContribQuantizeLinear => Class::Fixed,

        // Optimizers, checks of gradients and the loss scale: states are fp32, gradients come as they are.
        K::Adam | K::AdamW | K::ClipCoef | K::GradCheck | K::SGD | K::UpdateLossScale => Class::Fixed,

        // A user says what it is: see `schema_class`.
        K::Declared => Class::Fixed,

        // Types are structural: what flows through decides, not the operator.
        K::Cast
        | K::CastLike
        | K::ConcatFromSequence
        | K::If
        | K::Loop
        | K::Optional
        | K::OptionalGetElement
        | K::OptionalHasElement
        | K::Scan
        | K::SequenceAt
        | K::SequenceConstruct
        | K::SequenceEmpty
        | K::SequenceErase
        | K::SequenceInsert
        | K::SequenceLength
        | K::SequenceMap
        | K::SplitToSequence
        | K::TrainingGradient => Class::Fixed,

        // Nothing is float.
        K::And
        | K::BitShift
        | K::BitwiseAnd
        | K::BitwiseNot
        | K::BitwiseOr
        | K::BitwiseXor
        | K::ConvInteger
        | K::ImageDecoder
        | K::MatMulInteger
        | K::Not
        | K::Or
        | K::RegexFullMatch
        | K::StringConcat
        | K::StringNormalizer
        | K::StringSplit
        | K::Xor => Class::Fixed,

        // Classical machine learning: f32 by schema wherever it counts.
        K::MlArrayFeatureExtractor
        | K::MlBinarizer
        | K::MlCastMap
        | K::MlCategoryMapper
        | K::MlDictVectorizer
        | K::MlFeatureVectorizer
        | K::MlImputer
        | K::MlLabelEncoder
        | K::MlLinearClassifier
        | K::MlLinearRegressor
        | K::MlNormalizer
        | K::MlOneHotEncoder
        | K::MlSVMClassifier
        | K::MlSVMRegressor
        | K::MlScaler
        | K::MlTreeEnsemble
        | K::MlTreeEnsembleClassifier
        | K::MlTreeEnsembleRegressor
        | K::MlZipMap => Class::Fixed,
    }
}

/// The class of the operator of a schema for a format.
pub fn schema_class(schema: &OpSchema, format: DType) -> Class {
    schema.declared.map_or_else(|| base_class(schema.kind, format), |declared| declared.class)
}

/// The class of a formal for a format.
///
/// A formal that is never float is [`Class::Fixed`]. The class is independent of the formats that the schema
/// admits: a newer version of the operator may admit more, and [`var_class`] and
/// [`formal_legality`](super::formal_legality) check them.
pub fn formal_class(schema: &'static OpSchema, side: Side, formal: &Formal, format: DType) -> Class {
    formal_class_given(schema, side, formal, schema_class(schema, format))
}

/// The class of a formal of an operator whose own class is `base`: a policy's, or that of an attribute's value.
pub fn formal_class_given(schema: &'static OpSchema, side: Side, formal: &Formal, base: Class) -> Class {
    if !has_element(&schema.types_of(formal), DType::F32) {
        return Class::Fixed;
    }
    exception(schema, side, formal.name).unwrap_or(base)
}

/// The class of a type variable for a format: the strictest of the formals that name it, and [`Class::Fixed`] if
/// the schema does not admit the format ([`legality`] says why).
pub fn var_class(schema: &'static OpSchema, var: u8, format: DType) -> Class {
    var_class_given(schema, var, format, schema_class(schema, format), |_, _| true)
}

/// The class of a type variable of an operator whose own class is `base`, over the formals for which `present`
/// (side and index) holds.
///
/// A formal that a node leaves out cannot hold its variable back: a CausalConvWithState without state moves.
pub fn var_class_given(
    schema: &'static OpSchema,
    var: u8,
    format: DType,
    base: Class,
    present: impl Fn(Side, usize) -> bool,
) -> Class {
    if legality(schema, var, format) != Legality::Legal {
        return Class::Fixed;
    }
    formals_of(schema, var)
        .filter(|&(side, i, _)| present(side, i))
        .map(|(side, _, formal)| formal_class_given(schema, side, formal, base))
        .max()
        .unwrap_or(Class::Fixed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::lookup::{Lookup, lookup};
    use crate::op::table::formals;
    use Class::{Allow, Clear, Deny, Discrete, Fixed, Infer};

    fn schema(name: &str, opset: u16) -> &'static OpSchema {
        let Lookup::Found(schema) = lookup("", name, opset) else { panic!("{name} at {opset}") };
        schema
    }

    /// The class of the variable of this name for f16.
    #[track_caller]
    fn var_at(name: &str, opset: u16, var: &str) -> Class {
        var_for(DType::F16, name, opset, var)
    }

    #[track_caller]
    fn var_for(format: DType, name: &str, opset: u16, var: &str) -> Class {
        let schema = schema(name, opset);
        let index = schema.type_vars.iter().position(|v| v.name == var).expect(var);
        var_class(schema, u8::try_from(index).expect("few variables"), format)
    }

    #[test]
    fn normalisations_move_only_where_statistics_can_stay() {
        for opset in [1, 7, 9, 14] {
            assert_eq!(var_at("BatchNormalization", opset, "T"), Fixed, "{opset}");
        }
        assert_eq!(var_at("BatchNormalization", 15, "T"), Infer);
        assert_eq!(var_at("BatchNormalization", 15, "T1"), Fixed);
        assert_eq!(var_at("BatchNormalization", 15, "T2"), Fixed);
        assert_eq!(var_at("LayerNormalization", 17, "T"), Infer);
        assert_eq!(var_at("LayerNormalization", 17, "U"), Fixed);
        assert_eq!(var_for(DType::BF16, "LayerNormalization", 17, "U"), Fixed);
        assert_eq!(var_at("RMSNormalization", 23, "V"), Infer);
        assert_eq!(var_at("GroupNormalization", 21, "T"), Infer);
        assert_eq!(var_at("InstanceNormalization", 22, "T"), Deny);
    }

    #[test]
    fn coordinates_ratios_and_counts_stay() {
        assert_eq!([var_at("Resize", 19, "T1"), var_at("Resize", 19, "T2")], [Infer, Fixed]);
        assert_eq!([var_at("GridSample", 22, "T1"), var_at("GridSample", 22, "T2")], [Infer, Fixed]);
        assert_eq!([var_at("Dropout", 13, "T"), var_at("Dropout", 13, "T1")], [Infer, Fixed]);
        assert_eq!(["T1", "T2", "T3"].map(|v| var_at("OneHot", 11, v)), [Fixed, Fixed, Clear]);
        assert_eq!([var_at("Tile", 1, "T"), var_at("Tile", 6, "T")], [Fixed, Clear]);
        assert_eq!([var_at("Split", 1, "T"), var_at("Split", 13, "T")], [Fixed, Clear]);
        assert_eq!(var_at("Upsample", 9, "T"), Infer);
        let resize = schema("Resize", 19);
        assert_eq!(formal_class(resize, Side::Operand, &resize.inputs[2], DType::F16), Fixed);
    }

    #[test]
    fn exponents_never_hide_that_pow_denies() {
        assert_eq!([var_at("Pow", 1, "T"), var_at("Pow", 7, "T")], [Deny, Deny]);
        assert_eq!([var_at("Pow", 15, "T"), var_at("Pow", 15, "T1")], [Deny, Fixed]);
    }

    #[test]
    fn attention_and_recurrence() {
        assert_eq!(["T1", "T2", "U"].map(|v| var_at("Attention", 24, v)), [Allow, Allow, Fixed]);
        assert_eq!([var_at("LinearAttention", 27, "T"), var_at("LinearAttention", 27, "S")], [Allow, Fixed]);
        for name in ["LSTM", "GRU", "RNN"] {
            assert_eq!(var_at(name, 14, "T"), Allow);
            assert_eq!(var_for(DType::BF16, name, 14, "T"), Fixed);
            assert_eq!(var_for(DType::BF16, name, 22, "T"), Allow);
        }
    }

    #[test]
    fn a_formal_left_out_holds_nothing_back() {
        let conv = schema("CausalConvWithState", 27);
        let is_state = |side, i: usize| formals(conv, side)[i].name.ends_with("_state");
        assert_eq!(var_class_given(conv, 0, DType::F16, Allow, |_, _| true), Fixed);
        assert_eq!(var_class_given(conv, 0, DType::F16, Allow, |side, i| !is_state(side, i)), Allow);
    }

    #[test]
    fn casts_and_shapes_accept_what_arrives() {
        assert_eq!([var_at("Cast", 13, "T1"), var_at("Cast", 13, "T2")], [Discrete, Fixed]);
        assert_eq!([var_at("CastLike", 15, "T1"), var_at("CastLike", 15, "T2")], [Discrete, Fixed]);
        assert_eq!([var_at("EyeLike", 9, "T1"), var_at("EyeLike", 9, "T2")], [Discrete, Clear]);
        assert_eq!(var_at("Shape", 13, "T"), Discrete);
        assert_eq!(var_at("TopK", 11, "T"), Discrete);
        assert_eq!(var_at("TopK", 11, "I"), Fixed);
    }

    #[test]
    fn bf16_denies_less() {
        let sums = ["GlobalAveragePool", "ReduceMean", "ReduceSum", "Softmax", "BiasSoftmax"];
        for kind in K::ALL {
            let [low, brain] = [DType::F16, DType::BF16].map(|f| base_class(*kind, f));
            assert_eq!(low != brain, sums.contains(&kind.name()), "{kind:?}");
        }
        assert_eq!([var_at("Softmax", 13, "T"), var_for(DType::BF16, "Softmax", 13, "T")], [Deny, Infer]);
    }
}
