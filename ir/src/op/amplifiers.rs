//! Operands that amplify errors, by operator.
//!
//! A 16-bit format rounds each number relatively: f16 by at most 2^-11 of it, bf16 by 2^-8. For most operators,
//! which are well-conditioned, the error of the result is then about as large. The rows of [`AMPLIFIERS`] are
//! operands whose condition number has no bound: a small relative error of the operand may be a large error of
//! the result. For example, 100.03 is 100 in f16, and exp(100.03) is 3 % more than exp(100). Guards check if
//! the values of the operand make that happen.

use super::OpKind as K;
use super::table::OpKind;

/// The error of an operand that must be small for the relative error of the result to be small.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Amplified {
    /// The absolute error, which becomes the relative error of the result: exp(x + e) = exp(x)·exp(e).
    Exponent,
    /// The absolute error, which becomes that of the result, however large the operand is:
    /// sin(x + e) ≈ sin(x) + e·cos(x).
    Angle,
    /// The absolute error, in units of the coordinate: half a pixel is half a pixel at pixel 1000.
    Position,
    /// The error relative to the distance from 0, where the function is infinite or infinitely steep: log(x).
    Zero,
    /// The error relative to the distance from 1 or −1, where the function is infinite or infinitely steep: atanh(x).
    One,
    /// The error relative to the distance from the next element: numbers that round to the same are a tie, and the
    /// operator chooses another element.
    Choice,
}

/// An operand whose errors an operator amplifies.
#[derive(Clone, Copy, Debug)]
pub struct Amplifier {
    /// The operator.
    pub kind: OpKind,
    /// The operand; for a variadic formal its first.
    pub operand: usize,
    /// The error of the operand that must be small.
    pub what: Amplified,
    /// The purpose of the operand, in words for the evidence of a decision.
    pub why: &'static str,
}

const fn row(kind: OpKind, operand: usize, what: Amplified, why: &'static str) -> Amplifier {
    Amplifier { kind, operand, what, why }
}

/// All amplifiers, sorted by the kind of amplified error.
pub const AMPLIFIERS: &[Amplifier] = &[
    row(K::Exp, 0, Amplified::Exponent, "the exponent of Exp"),
    row(K::Softmax, 0, Amplified::Exponent, "the scores of Softmax"),
    row(K::LogSoftmax, 0, Amplified::Exponent, "the scores of LogSoftmax"),
    row(K::ContribBiasSoftmax, 0, Amplified::Exponent, "the scores of BiasSoftmax"),
    row(K::ContribBiasSoftmax, 1, Amplified::Exponent, "the scores of BiasSoftmax"),
    row(K::ReduceLogSumExp, 0, Amplified::Exponent, "the exponents of ReduceLogSumExp"),
    row(K::SoftmaxCrossEntropyLoss, 0, Amplified::Exponent, "the scores of SoftmaxCrossEntropyLoss"),
    row(K::Sinh, 0, Amplified::Exponent, "the exponent of Sinh"),
    row(K::Cosh, 0, Amplified::Exponent, "the exponent of Cosh"),
    row(K::Pow, 1, Amplified::Exponent, "the exponent of Pow"),
    row(K::Attention, 3, Amplified::Exponent, "the mask of Attention, added to its scores"),
    row(K::Sin, 0, Amplified::Angle, "the angle of Sin"),
    row(K::Cos, 0, Amplified::Angle, "the angle of Cos"),
    row(K::Tan, 0, Amplified::Angle, "the angle of Tan"),
    row(K::Mod, 0, Amplified::Angle, "the dividend of Mod"),
    row(K::GridSample, 1, Amplified::Position, "the grid of GridSample"),
    row(K::AffineGrid, 0, Amplified::Position, "the transformation of AffineGrid"),
    row(K::RoiAlign, 1, Amplified::Position, "the boxes of RoiAlign"),
    row(K::MaxRoiPool, 1, Amplified::Position, "the boxes of MaxRoiPool"),
    row(K::NonMaxSuppression, 0, Amplified::Position, "the boxes of NonMaxSuppression"),
    row(K::Resize, 1, Amplified::Position, "the region of Resize"),
    row(K::Resize, 2, Amplified::Position, "the scales of Resize"),
    row(K::Upsample, 1, Amplified::Position, "the scales of Upsample"),
    row(K::Range, 0, Amplified::Position, "the start of Range"),
    row(K::Range, 1, Amplified::Position, "the limit of Range"),
    row(K::Range, 2, Amplified::Position, "the step of Range"),
    row(K::Div, 1, Amplified::Zero, "the divisor of Div"),
    row(K::Reciprocal, 0, Amplified::Zero, "the divisor of Reciprocal"),
    row(K::Sqrt, 0, Amplified::Zero, "the argument of Sqrt"),
    row(K::Log, 0, Amplified::Zero, "the argument of Log"),
    row(K::ReduceLogSum, 0, Amplified::Zero, "the argument of ReduceLogSum"),
    row(K::Pow, 0, Amplified::Zero, "the base of Pow"),
    row(K::Acos, 0, Amplified::One, "the argument of Acos"),
    row(K::Acosh, 0, Amplified::One, "the argument of Acosh"),
    row(K::Asin, 0, Amplified::One, "the argument of Asin"),
    row(K::Atanh, 0, Amplified::One, "the argument of Atanh"),
    row(K::TopK, 0, Amplified::Choice, "the choice of TopK"),
    row(K::ArgMax, 0, Amplified::Choice, "the choice of ArgMax"),
    row(K::ArgMin, 0, Amplified::Choice, "the choice of ArgMin"),
    row(K::NonMaxSuppression, 1, Amplified::Choice, "the choice of NonMaxSuppression"),
];

/// The row of an operand, if its errors are amplified.
pub fn amplifier(kind: OpKind, operand: usize) -> Option<&'static Amplifier> {
    AMPLIFIERS.iter().find(|row| row.kind == kind && row.operand == operand)
}

/// True if the operator is undefined, infinite or infinitely steep where the operand is 0.
pub fn singular_at_zero(kind: OpKind, operand: usize) -> bool {
    amplifier(kind, operand).is_some_and(|row| row.what == Amplified::Zero)
}

/// True if the result repeats as the first operand grows, so that the absolute error of a large operand counts.
pub fn is_periodic(kind: OpKind) -> bool {
    amplifier(kind, 0).is_some_and(|row| row.what == Amplified::Angle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::all;

    type Function = fn(f64) -> f64;

    /// Functions of one operand; the inverse of each listed function is listed as well, if it is an operator.
    const FUNCTIONS: [(OpKind, Function); 20] = [
        (K::Acos, f64::acos),
        (K::Acosh, f64::acosh),
        (K::Asin, f64::asin),
        (K::Asinh, f64::asinh),
        (K::Atan, f64::atan),
        (K::Atanh, f64::atanh),
        (K::Cos, f64::cos),
        (K::Cosh, f64::cosh),
        (K::Exp, f64::exp),
        (K::Log, f64::ln),
        (K::Reciprocal, |x| 1.0 / x),
        (K::Relu, |x| x.max(0.0)),
        (K::Sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
        (K::Sin, f64::sin),
        (K::Sinh, f64::sinh),
        (K::Softplus, |x| x.exp().ln_1p()),
        (K::Softsign, |x| x / (1.0 + x.abs())),
        (K::Sqrt, f64::sqrt),
        (K::Tan, f64::tan),
        (K::Tanh, f64::tanh),
    ];

    /// A function amplifies errors as the table says: its slope near 0, 1, 30 and 1000 turns shows it.
    #[test]
    fn functions_amplify_what_the_table_says() {
        for (kind, f) in FUNCTIONS {
            let steep = |at: f64, towards: f64| {
                let slope = ((f(at + 1e-12 * towards) - f(at + 1e-13 * towards)) / 9e-13).abs();
                slope.is_nan() || slope > 1e3
            };
            let zero = f(1e-3).is_finite() && steep(0.0, 1.0);
            let one = !zero && steep(1.0, -1.0) && steep(1.0, if f(1.1).is_nan() { -1.0 } else { 1.0 })
                || kind == K::Acosh && steep(1.0, 1.0);
            let turns = std::f64::consts::TAU * 1000.0;
            let angle = (f(1.0 + turns) - f(1.0)).abs() < 1e-6;
            // The relative error of the result at a large operand, by the absolute error of that.
            let exponent = (f(30.0 + 1e-6) / f(30.0) - 1.0).abs() > 5e-7;
            let found = match (zero, one, angle, exponent) {
                (true, ..) => Some(Amplified::Zero),
                (_, true, ..) => Some(Amplified::One),
                (_, _, true, _) => Some(Amplified::Angle),
                (_, _, _, true) => Some(Amplified::Exponent),
                _ => None,
            };
            assert_eq!(amplifier(kind, 0).map(|row| row.what), found, "{kind:?}");
        }
    }

    #[test]
    fn functions_stay_in_their_range() {
        for (kind, f) in FUNCTIONS {
            let Some((least, greatest)) = crate::op::result_range(kind) else { continue };
            let at = (-4000..=4000).map(|i| f(f64::from(i) / 100.0));
            assert!(at.into_iter().all(|y| (least..=greatest).contains(&y)), "{kind:?}");
        }
    }

    #[test]
    fn operands_of_the_table_exist_and_are_there_once() {
        for (at, row) in AMPLIFIERS.iter().enumerate() {
            let schema = all().iter().rfind(|s| s.kind == row.kind).unwrap();
            let formal = schema.input(row.operand).unwrap_or_else(|| panic!("{}: {}", schema.name, row.why));
            assert!(row.why.ends_with(schema.name) || row.why.contains("Attention"), "{}", row.why);
            assert!(!formal.name.is_empty());
            let twice = AMPLIFIERS[..at].iter().any(|r| r.kind == row.kind && r.operand == row.operand);
            assert!(!twice, "{}", row.why);
        }
        assert!(AMPLIFIERS.is_sorted_by_key(|row| row.what));
    }
}
