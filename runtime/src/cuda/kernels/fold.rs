//! Reductions of numbers as CUDA C: sums, products, minima and maxima.

use crate::cuda::text::{Elem, f32_text, f64_text};
use ampc_ir::op::OpKind;

/// A reduction: its formulas.
#[derive(Clone)]
pub(super) struct Fold {
    /// The accumulator type.
    pub(super) acc: Elem,
    /// The identity: the result for no elements.
    pub(super) start: String,
    /// The formula for the element `x`. If the reduction has shifts, `shift` is that of the result.
    pub(super) term: String,
    /// The formula that combines two partial results, `acc` and `term`.
    pub(super) join: String,
    /// The formula for the final result from the total `acc` of `count` elements, with `shift`.
    pub(super) end: String,
}

impl Fold {
    /// The sum of terms.
    pub(super) fn sum(acc: Elem, term: &str, end: &str) -> Fold {
        let (term, end) = (term.to_owned(), end.to_owned());
        Fold { acc, start: "0".into(), term, join: "acc + term".into(), end }
    }

    /// The maximum, or NaN.
    pub(super) fn greatest(acc: Elem) -> Fold {
        Fold::extreme(acc, ">", [f64::NEG_INFINITY, f64::INFINITY])
    }

    /// The minimum, or NaN.
    pub(super) fn least(acc: Elem) -> Fold {
        Fold::extreme(acc, "<", [f64::INFINITY, f64::NEG_INFINITY])
    }

    fn extreme(acc: Elem, order: &str, [float, _]: [f64; 2]) -> Fold {
        let is_max = order == ">";
        let start = match acc {
            Elem::F64 => f64_text(float),
            Elem::I64 if is_max => "(-9223372036854775807ll - 1)".into(),
            Elem::I64 => "9223372036854775807ll".into(),
            Elem::U64 if is_max => "0ull".into(),
            Elem::U64 => "0xffffffffffffffffull".into(),
            Elem::I32 if is_max => "(-2147483647 - 1)".into(),
            Elem::I32 => "2147483647".into(),
            Elem::U32 if is_max => "0u".into(),
            Elem::U32 => "0xffffffffu".into(),
            _ if is_max => f32_text(f32::NEG_INFINITY),
            _ => f32_text(f32::INFINITY),
        };
        let join = match acc.is_float() {
            true => format!("(acc != acc || acc {order} term) ? acc : term"),
            false => format!("acc {order} term ? acc : term"),
        };
        Fold { acc, start, term: "x".into(), join, end: "acc".into() }
    }
}

/// The name of a C function for `acc`, such as `sqrtf` for `sqrt` in f32.
pub(super) fn function(acc: Elem, name: &str) -> String {
    if acc == Elem::F64 { name.to_owned() } else { format!("{name}f") }
}

/// The type in which floats accumulate.
pub(super) fn wide_float(elem: Elem) -> Elem {
    if elem == Elem::F64 { Elem::F64 } else { Elem::F32 }
}

/// An expression that converts a double to an integer: truncated, saturated at `least` and `most`, 0 for NaN.
fn cut(ty: &str, [least, most]: [&str; 2], x: &str) -> String {
    format!(
        "({x} != {x} ? ({ty})0 : {x} <= (double){least} ? {least} : {x} >= (double){most} ? {most} : ({ty})({x}))"
    )
}

/// The fold of a reduction of `elem`; `None` if there is none.
pub(super) fn fold_of(kind: OpKind, elem: Elem) -> Option<Fold> {
    if elem.is_float() {
        return Some(fold_of_floats(kind, wide_float(elem)));
    }
    // Bools and narrow integers have minima and maxima only.
    let (signed, wraps) = match elem {
        Elem::I64 => (Elem::I64, Elem::U64),
        Elem::I32 => (Elem::I32, Elem::U32),
        Elem::U64 | Elem::U32 => (elem, elem),
        Elem::I8 | Elem::U8 | Elem::Bool => (Elem::I32, Elem::I32),
        _ => return None,
    };
    let is_narrow = matches!(elem, Elem::I8 | Elem::U8 | Elem::Bool);
    let magnitude = match elem {
        Elem::I64 => "(i64)x < 0 ? 0ull - x : x",
        Elem::I32 => "(int)x < 0 ? 0u - x : x",
        _ => "x",
    };
    Some(match kind {
        OpKind::ReduceMax => match elem {
            Elem::Bool => Fold { start: "0".into(), ..Fold::greatest(signed) },
            Elem::U8 => Fold { start: "0".into(), ..Fold::greatest(signed) },
            Elem::I8 => Fold { start: "-128".into(), ..Fold::greatest(signed) },
            _ => Fold::greatest(signed),
        },
        OpKind::ReduceMin => match elem {
            Elem::Bool => Fold { start: "1".into(), ..Fold::least(signed) },
            Elem::U8 => Fold { start: "255".into(), ..Fold::least(signed) },
            Elem::I8 => Fold { start: "127".into(), ..Fold::least(signed) },
            _ => Fold::least(signed),
        },
        _ if is_narrow => return None,
        OpKind::ReduceSum => Fold::sum(wraps, "x", "acc"),
        OpKind::ReduceProd => {
            Fold { start: "1".into(), join: "acc * term".into(), ..Fold::sum(wraps, "x", "acc") }
        }
        OpKind::ReduceL1 => Fold::sum(wraps, magnitude, "acc"),
        OpKind::ReduceSumSquare => Fold::sum(wraps, "x * x", "acc"),
        OpKind::ReduceMean if matches!(elem, Elem::I32 | Elem::U32) => {
            Fold::sum(Elem::I64, "x", "(count ? acc / (i64)count : 0)")
        }
        OpKind::ReduceL2 | OpKind::ReduceLogSum | OpKind::ReduceLogSumExp => {
            let fold = fold_of_floats(kind, Elem::F64);
            let (ty, range) = match elem {
                Elem::I64 => ("i64", ["(-9223372036854775807ll - 1)", "9223372036854775807ll"]),
                Elem::I32 => ("int", ["(-2147483647 - 1)", "2147483647"]),
                Elem::U64 => ("u64", ["0ull", "0xffffffffffffffffull"]),
                _ => ("u32", ["0u", "0xffffffffu"]),
            };
            Fold { end: cut(ty, range, &format!("({})", fold.end)), ..fold }
        }
        _ => return None,
    })
}

fn fold_of_floats(kind: OpKind, acc: Elem) -> Fold {
    match kind {
        OpKind::ReduceMax => Fold::greatest(acc),
        OpKind::ReduceMin => Fold::least(acc),
        OpKind::ReduceL1 => Fold::sum(acc, &format!("{}(x)", function(acc, "fabs")), "acc"),
        OpKind::ReduceL2 => Fold::sum(acc, "x * x", &format!("{}(acc)", function(acc, "sqrt"))),
        OpKind::ReduceSumSquare => Fold::sum(acc, "x * x", "acc"),
        OpKind::ReduceLogSum => Fold::sum(acc, "x", &format!("{}(acc)", function(acc, "log"))),
        OpKind::ReduceLogSumExp => Fold::sum(
            acc,
            &format!("{}(x - shift)", function(acc, "exp")),
            &format!("{}(acc) + shift", function(acc, "log")),
        ),
        OpKind::ReduceProd => {
            Fold { start: "1".into(), join: "acc * term".into(), ..Fold::sum(acc, "x", "acc") }
        }
        OpKind::ReduceMean => Fold::sum(acc, "x", "acc / (A)count"),
        _ => Fold::sum(acc, "x", "acc"),
    }
}
