//! Numeric traits of operators that passes ask for, besides the precision class.
//!
//! They hold for every version of an operator. A test compares each trait with the names or schemas of all
//! operators, so that a new operator is not forgotten.

use super::OpKind as K;
use super::table::{AttrDefault, AttrKind, OpKind, OpSchema};

/// Effect of a move on the sign of the elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sign {
    /// It stays.
    Kept,
    /// It is the other one: Neg.
    Flipped,
}

/// Effect on the sign if the results consist of elements of an operand, and of no values computed from them;
/// else `None`.
///
/// Every element of the results of an operator that moves is an element of one of the operands it moves,
/// converted to the element type of the result where that differs (Cast), or 0 (Trilu), or a number in an
/// attribute (Pad below 11). Not all elements need be there, and each may be there many times. Operators that
/// choose by value (Max, Clip, MaxPool) do not move, because the elements that they leave out matter. The
/// scatters move unless their `reduction` says otherwise ([`may_reduce`]).
pub fn moves(kind: OpKind, operand: usize) -> Option<Sign> {
    let moved = match kind {
        K::Neg => return (operand == 0).then_some(Sign::Flipped),
        K::Concat => true,
        K::Where => matches!(operand, 1 | 2),
        K::Pad | K::Scatter | K::ScatterElements | K::ScatterND => matches!(operand, 0 | 2),
        K::TensorScatter => matches!(operand, 0 | 1),
        K::OneHot => operand == 2,
        K::Cast
        | K::CastLike
        | K::CenterCropPad
        | K::Compress
        | K::DepthToSpace
        | K::Expand
        | K::Flatten
        | K::Gather
        | K::GatherElements
        | K::GatherND
        | K::Identity
        | K::MaxUnpool
        | K::Reshape
        | K::ReverseSequence
        | K::Slice
        | K::SpaceToDepth
        | K::Split
        | K::Squeeze
        | K::Tile
        | K::Transpose
        | K::Trilu
        | K::Unsqueeze => operand == 0,
        _ => false,
    };
    moved.then_some(Sign::Kept)
}

/// True if the results have every element of the operands, in some order, changed in sign or type at most.
///
/// These are the operators that [move](moves) all of their operands with data and leave nothing out: Concat and
/// Transpose, but not Slice or Gather. The largest element of the operands is the largest of the result.
pub fn moves_all(kind: OpKind) -> bool {
    matches!(
        kind,
        K::Cast
            | K::CastLike
            | K::Concat
            | K::DepthToSpace
            | K::Expand
            | K::Flatten
            | K::Identity
            | K::Neg
            | K::Reshape
            | K::ReverseSequence
            | K::SpaceToDepth
            | K::Squeeze
            | K::Tile
            | K::Transpose
            | K::Unsqueeze
    )
}

/// True for operators that read the dims of their operand and none of its elements.
pub fn reads_only_dims(kind: OpKind) -> bool {
    matches!(kind, K::Shape | K::Size)
}

/// True if every element of the first result lies between the least and the greatest element of the first
/// operand: means, and operators that choose by value. Dropout does where it drops nothing, as in inference.
pub fn stays_within_operand(kind: OpKind) -> bool {
    matches!(
        kind,
        K::Dropout
            | K::GlobalAveragePool
            | K::GlobalMaxPool
            | K::MaxPool
            | K::ReduceMax
            | K::ReduceMean
            | K::ReduceMin
            | K::TopK
    )
}

/// Bounds of all results, ends included, for any operands; `None` if the operator alone does not imply bounds.
pub fn result_range(kind: OpKind) -> Option<(f64, f64)> {
    match kind {
        K::HardSigmoid | K::Hardmax | K::Sigmoid | K::Softmax => Some((0.0, 1.0)),
        K::Cos | K::Erf | K::LpNormalization | K::Sin | K::Softsign | K::Tanh => Some((-1.0, 1.0)),
        K::LogSoftmax => Some((f64::NEG_INFINITY, 0.0)),
        K::LpPool | K::ReduceL1 | K::ReduceL2 | K::ReduceSumSquare | K::Softplus => {
            Some((0.0, f64::INFINITY))
        }
        _ => None,
    }
}

/// True if each element of the result is a sum or difference of one element of each operand.
pub fn adds(kind: OpKind) -> bool {
    matches!(kind, K::Add | K::Sub | K::Sum)
}

/// True if the operator compares numbers.
pub fn compares(kind: OpKind) -> bool {
    matches!(kind, K::Equal | K::Greater | K::GreaterOrEqual | K::Less | K::LessOrEqual)
}

/// True if the operator makes integers of floats, by a scale and a zero point.
pub fn quantizes(kind: OpKind) -> bool {
    matches!(kind, K::QuantizeLinear | K::ContribQuantizeLinear)
}

/// True if the operator makes floats of integers, by a scale and a zero point.
pub fn dequantizes(kind: OpKind) -> bool {
    matches!(kind, K::DequantizeLinear | K::ContribDequantizeLinear)
}

/// True if element i of the result depends on element i of each operand and on attributes alone, once operands are
/// broadcast to one shape (the bounds of Clip are scalars, and of the second operand of CastLike counts the type).
///
/// Operators that draw numbers are not elementwise, nor operators that quantize, whose scales are broadcast
/// along an axis; operators of ai.onnx.ml are not classified. One flat list by name, which a test compares with
/// inference.
pub fn is_elementwise(kind: OpKind) -> bool {
    matches!(
        kind,
        K::Abs
            | K::Acos
            | K::Acosh
            | K::Add
            | K::And
            | K::Asin
            | K::Asinh
            | K::Atan
            | K::Atanh
            | K::BitCast
            | K::BitShift
            | K::BitwiseAnd
            | K::BitwiseNot
            | K::BitwiseOr
            | K::BitwiseXor
            | K::Cast
            | K::CastLike
            | K::Ceil
            | K::Celu
            | K::Clip
            | K::ContribBiasAdd
            | K::ContribBiasGelu
            | K::ContribFastGelu
            | K::ContribGelu
            | K::ContribQuickGelu
            | K::Cos
            | K::Cosh
            | K::Div
            | K::Elu
            | K::Equal
            | K::Erf
            | K::Exp
            | K::Floor
            | K::Gelu
            | K::Greater
            | K::GreaterOrEqual
            | K::HardSigmoid
            | K::HardSwish
            | K::Identity
            | K::IsInf
            | K::IsNaN
            | K::LeakyRelu
            | K::Less
            | K::LessOrEqual
            | K::Log
            | K::Max
            | K::Mean
            | K::Min
            | K::Mish
            | K::Mod
            | K::Mul
            | K::Neg
            | K::Not
            | K::Or
            | K::PRelu
            | K::Pow
            | K::Reciprocal
            | K::RegexFullMatch
            | K::Relu
            | K::Round
            | K::Selu
            | K::Shrink
            | K::Sigmoid
            | K::Sign
            | K::Sin
            | K::Sinh
            | K::Softplus
            | K::Softsign
            | K::Sqrt
            | K::StringConcat
            | K::Sub
            | K::Sum
            | K::SwiGLU
            | K::Swish
            | K::Tan
            | K::Tanh
            | K::ThresholdedRelu
            | K::Where
            | K::Xor
    )
}

/// True if each element of the result comes from a sum over many elements of the first operand: means, norms and
/// logarithms of sums included, products of matrices and norm layers not.
pub fn sums(kind: OpKind) -> bool {
    matches!(
        kind,
        K::AveragePool
            | K::GlobalAveragePool
            | K::GlobalLpPool
            | K::LpPool
            | K::ReduceL1
            | K::ReduceL2
            | K::ReduceLogSum
            | K::ReduceLogSumExp
            | K::ReduceMean
            | K::ReduceSum
            | K::ReduceSumSquare
    )
}

/// True if the operator subtracts a mean from an operand, or from a sum with the operand: norms, except those that divide by
/// a root of squares alone.
pub fn subtracts_mean(kind: OpKind, operand: usize) -> bool {
    match kind {
        K::LayerNormalization
        | K::InstanceNormalization
        | K::GroupNormalization
        | K::MeanVarianceNormalization
        | K::ContribGroupNorm => operand == 0,
        K::ContribSkipLayerNormalization => matches!(operand, 0 | 1 | 4),
        K::ContribSkipGroupNorm => matches!(operand, 0 | 3 | 4),
        _ => false,
    }
}

/// True if the operator gives the same results for the same operands: all operators except random generators.
pub fn is_deterministic(kind: OpKind) -> bool {
    !matches!(
        kind,
        K::Bernoulli
            | K::Dropout
            | K::Multinomial
            | K::RandomNormal
            | K::RandomNormalLike
            | K::RandomUniform
            | K::RandomUniformLike
    )
}

/// The replacement of an operator that is gone, for messages; `nothing` for an operator that is not gone.
pub fn replacement(kind: OpKind) -> &'static str {
    match kind {
        K::ImageScaler => "`Mul` and `Add`",
        K::MlTreeEnsembleClassifier | K::MlTreeEnsembleRegressor => "`TreeEnsemble`",
        K::Scatter => "`ScatterElements`",
        K::Upsample => "`Resize`",
        _ => "nothing",
    }
}

/// True if the result has the element type of the first operand where the attribute `dtype` is absent, although the
/// two share no type variable: EyeLike, Bernoulli and the random numbers like something.
pub fn dtype_follows_operand(schema: &OpSchema) -> bool {
    !schema.inputs.is_empty()
        && schema.attr("dtype").is_some_and(|a| a.kind == AttrKind::Int && a.default == AttrDefault::None)
}

/// True if the operator moves by default and computes if its attribute `reduction` says so: the scatters.
pub fn may_reduce(schema: &OpSchema) -> bool {
    schema.attr("reduction").is_some_and(|a| a.default == AttrDefault::String("none"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::op::class::Class;
    use crate::op::table::FormalType;
    use crate::op::{all, base_class};

    fn names(test: impl Fn(OpKind) -> bool) -> Vec<&'static str> {
        OpKind::ALL.iter().filter(|&&k| test(k)).map(|k| k.name()).collect()
    }

    fn moves_any(kind: OpKind) -> bool {
        (0..3).any(|i| moves(kind, i).is_some())
    }

    /// Clear operators move, except operators that make constants, choose by value, or change the magnitude; of
    /// the other classes only casts move.
    #[test]
    fn clear_operators_move_or_are_named_here() {
        let rest = names(|k| base_class(k, DType::F16) == Class::Clear && !moves_any(k));
        let makes = ["Constant", "ConstantOfShape", "EyeLike"];
        let chooses =
            ["Clip", "GlobalMaxPool", "Hardmax", "Max", "MaxPool", "Min", "ReduceMax", "ReduceMin", "Relu"];
        let mut expected = [&makes[..], &chooses, &["Abs"]].concat();
        expected.sort_unstable();
        assert_eq!(rest, expected);
        let casts = names(|k| moves_any(k) && base_class(k, DType::F16) != Class::Clear);
        assert_eq!(casts, ["Cast", "CastLike"]);
        assert_eq!(names(|k| (0..3).any(|i| moves(k, i) == Some(Sign::Flipped))), ["Neg"]);
    }

    /// Moved elements have the type of the first result, except for casts.
    #[test]
    fn moved_operands_have_the_type_of_the_result() {
        for schema in all().iter().filter(|s| moves_any(s.kind) && !s.is_gone()) {
            let cast = matches!(schema.kind, K::Cast | K::CastLike);
            let result = schema.outputs[0].ty;
            assert!(matches!(result, FormalType::Var(_)), "{} {}", schema.name, schema.since);
            let moved = |i: usize| moves(schema.kind, i).is_some();
            let mut of_type = (0..schema.inputs.len()).filter(|&i| moved(i)).peekable();
            assert!(of_type.peek().is_some(), "{} {}", schema.name, schema.since);
            assert!(
                of_type.all(|i| cast || schema.inputs[i].ty == result),
                "{} {} moves an operand of another type",
                schema.name,
                schema.since
            );
        }
        // What moves all of its operands moves the first at least.
        assert!(OpKind::ALL.iter().all(|&k| !moves_all(k) || moves(k, 0).is_some()));
        assert_eq!((moves(K::Where, 0), moves(K::Where, 2)), (None, Some(Sign::Kept)));
        assert_eq!((moves(K::Gather, 0), moves(K::Gather, 1)), (Some(Sign::Kept), None));
        assert_eq!(moves(K::Concat, 17), Some(Sign::Kept));
    }

    #[test]
    fn reductions_sum_or_are_named_here() {
        let reduces = |k: OpKind| k.name().starts_with("Reduce") || k.name().ends_with("Pool");
        let rest = names(|k| reduces(k) && !sums(k));
        let expected = ["GlobalMaxPool", "MaxPool", "MaxRoiPool", "ReduceMax", "ReduceMin", "ReduceProd"];
        assert_eq!(rest, expected);
        assert!(OpKind::ALL.iter().all(|&k| !sums(k) || reduces(k)));
        let stays = names(|k| reduces(k) && stays_within_operand(k));
        let expected =
            ["GlobalAveragePool", "GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMean", "ReduceMin"];
        assert_eq!(stays, expected);
        assert_eq!(names(adds), ["Add", "Sub", "Sum"]);
    }

    /// Operators that draw numbers have a seed.
    #[test]
    fn random_operators_have_a_seed() {
        let seeded = names(|k| k.versions().iter().any(|s| s.attr("seed").is_some()));
        assert_eq!(names(|k| !is_deterministic(k)), seeded);
    }

    #[test]
    fn what_schemas_say() {
        let of = |test: fn(&OpSchema) -> bool| names(|k| k.versions().iter().any(test));
        assert_eq!(
            of(dtype_follows_operand),
            ["Bernoulli", "EyeLike", "RandomNormalLike", "RandomUniformLike"]
        );
        assert_eq!(of(may_reduce), ["ScatterElements", "ScatterND"]);
    }
}
