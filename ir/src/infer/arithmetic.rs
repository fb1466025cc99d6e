//! Arithmetic on small integers, so that shapes computed inside the graph are followed.
//!
//! Numbers are computed in 64 bits and forgotten where they leave the element type. Symbolic elements come from
//! shapes, so they are at least 0; they survive `± 0`, `× 1`, `÷ 1`, maxima and minima with 0, and selection.

use crate::dtype::DType;
use crate::int::Int;
use crate::op::OpKind;
use crate::ty::Shape;
use crate::views::NodeView;
use std::borrow::Cow;

/// Elements of operand `i`, if it is an integer or boolean of rank 0 or 1 about which something is known.
fn elements(view: &NodeView<'_>, i: usize) -> Option<Vec<Int>> {
    let tensor = view.tensor(i)?;
    if !(tensor.dtype.is_integer() || tensor.dtype == DType::Bool) || view.rank(i)? > 1 {
        return None;
    }
    view.ints(i).map(Cow::into_owned)
}

/// True if the element type has the number.
fn fits(dtype: DType, n: i64) -> bool {
    use DType::{I8, I16, I32, I64};
    let bits = if dtype == DType::Bool { 1 } else { dtype.bits().unwrap_or(0) };
    if matches!(dtype, I8 | I16 | I32 | I64) {
        bits == 64 || bits > 0 && n >> (bits - 1) == n >> 63
    } else {
        n >= 0 && (bits >= 63 || n >> bits == 0)
    }
}

fn finish(dtype: DType, elements: Vec<Int>) -> Option<Vec<Int>> {
    let held = |e: Int| match e {
        Int::Known(n) if !fits(dtype, n) => Int::Unknown,
        Int::Known(_) | Int::Sym(_) | Int::Unknown => e,
    };
    Some(elements.into_iter().map(held).collect())
}

/// Elements of the result of a unary operator.
pub(super) fn unary(view: &NodeView<'_>) -> Option<Vec<Int>> {
    let kind = view.kind();
    if !matches!(kind, OpKind::Abs | OpKind::Neg | OpKind::Not) {
        return None;
    }
    let apply = |a: Int| match (kind, a) {
        (OpKind::Abs, Int::Known(n)) => n.checked_abs().map_or(Int::Unknown, Int::Known),
        (OpKind::Abs, same) => same,
        (OpKind::Neg, Int::Known(n)) => n.checked_neg().map_or(Int::Unknown, Int::Known),
        (OpKind::Not, Int::Known(n)) => Int::Known(i64::from(n == 0)),
        _ => Int::Unknown,
    };
    finish(view.dtype(0)?, elements(view, 0)?.into_iter().map(apply).collect())
}

/// Elements of the result of a broadcasting operator with results of shape `shape`.
pub(super) fn binary(view: &NodeView<'_>, shape: &Shape) -> Option<Vec<Int>> {
    if shape.rank()? > 1 || !follows(view.kind()) {
        return None;
    }
    let operands: Vec<Vec<Int>> = (0..view.n_operands()).map(|i| elements(view, i)).collect::<Option<_>>()?;
    let n = operands.iter().map(Vec::len).filter(|&n| n != 1).max().unwrap_or(1);
    if operands.iter().any(|o| o.len() != 1 && o.len() != n) {
        return None;
    }
    let at = |i: usize, k: usize| operands[i][if operands[i].len() == 1 { 0 } else { k }];
    let dtype = view.dtype(if view.kind() == OpKind::Where { 1 } else { 0 })?;
    let kind = view.kind();
    let results = (0..n).map(|k| {
        if kind == OpKind::Where {
            select(at(0, k), at(1, k), at(2, k))
        } else {
            (1..operands.len()).fold(at(0, k), |a, i| apply(kind, a, at(i, k)))
        }
    });
    let dtype = if is_comparison(kind) { DType::Bool } else { dtype };
    finish(dtype, results.collect())
}

fn is_comparison(kind: OpKind) -> bool {
    use OpKind::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual};
    matches!(kind, Equal | Greater | GreaterOrEqual | Less | LessOrEqual)
}

fn follows(kind: OpKind) -> bool {
    use OpKind::{Add, And, Div, Max, Min, Mod, Mul, Or, Sub, Where, Xor};
    is_comparison(kind) || matches!(kind, Add | And | Div | Max | Min | Mod | Mul | Or | Sub | Where | Xor)
}

fn select(condition: Int, yes: Int, no: Int) -> Int {
    match condition {
        Int::Known(0) => no,
        Int::Known(_) => yes,
        Int::Sym(_) | Int::Unknown if yes == no => yes,
        Int::Sym(_) | Int::Unknown => Int::Unknown,
    }
}

fn apply(kind: OpKind, a: Int, b: Int) -> Int {
    if let (Int::Known(x), Int::Known(y)) = (a, b) {
        return numbers(kind, x, y).map_or(Int::Unknown, Int::Known);
    }
    use Int::{Known, Sym};
    match (kind, a, b) {
        (OpKind::Add, s @ Sym(_), Known(0)) | (OpKind::Add, Known(0), s @ Sym(_)) => s,
        (OpKind::Sub, s @ Sym(_), Known(0)) => s,
        (OpKind::Sub, Sym(x), Sym(y)) if x == y => Known(0),
        (OpKind::Mul, s @ Sym(_), Known(1)) | (OpKind::Mul, Known(1), s @ Sym(_)) => s,
        (OpKind::Mul, Sym(_), Known(0)) | (OpKind::Mul, Known(0), Sym(_)) => Known(0),
        (OpKind::Div, s @ Sym(_), Known(1)) => s,
        (OpKind::Mod, Sym(_), Known(1)) => Known(0),
        (OpKind::Max | OpKind::Min, s @ Sym(x), Sym(y)) if x == y => s,
        (OpKind::Max, s @ Sym(_), Known(n)) | (OpKind::Max, Known(n), s @ Sym(_)) if n <= 0 => s,
        (OpKind::Min, Sym(_), Known(n)) | (OpKind::Min, Known(n), Sym(_)) if n <= 0 => Known(n),
        (OpKind::Equal, Sym(x), Sym(y)) if x == y => Known(1),
        (OpKind::Equal, Sym(_), Known(n)) | (OpKind::Equal, Known(n), Sym(_)) if n < 0 => Known(0),
        (OpKind::Less, Sym(_), Known(n)) | (OpKind::Greater, Known(n), Sym(_)) if n <= 0 => Known(0),
        (OpKind::Greater, Sym(_), Known(n)) | (OpKind::Less, Known(n), Sym(_)) if n < 0 => Known(1),
        (OpKind::And, _, Known(0)) | (OpKind::And, Known(0), _) => Known(0),
        (OpKind::Or, _, Known(1)) | (OpKind::Or, Known(1), _) => Known(1),
        _ => Int::Unknown,
    }
}

fn numbers(kind: OpKind, x: i64, y: i64) -> Option<i64> {
    let truth = |holds: bool| Some(i64::from(holds));
    match (kind, x, y) {
        (OpKind::Add, ..) => x.checked_add(y),
        (OpKind::Sub, ..) => x.checked_sub(y),
        (OpKind::Mul, ..) => x.checked_mul(y),
        (OpKind::Div, ..) => x.checked_div(y),
        // The sign of the result depends on the attribute `fmod` unless both are positive.
        (OpKind::Mod, 0.., 1..) => Some(x % y),
        (OpKind::Max, ..) => Some(x.max(y)),
        (OpKind::Min, ..) => Some(x.min(y)),
        (OpKind::Equal, ..) => truth(x == y),
        (OpKind::Less, ..) => truth(x < y),
        (OpKind::LessOrEqual, ..) => truth(x <= y),
        (OpKind::Greater, ..) => truth(x > y),
        (OpKind::GreaterOrEqual, ..) => truth(x >= y),
        (OpKind::And, ..) => truth(x != 0 && y != 0),
        (OpKind::Or, ..) => truth(x != 0 || y != 0),
        (OpKind::Xor, ..) => truth((x != 0) != (y != 0)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edit::{NewNode, Position};
    use crate::facts::Facts;
    use crate::infer::check_node;
    use crate::module::{Module, Op, Provenance};
    use crate::op::{Lookup, lookup};
    use crate::ty::Type;

    /// Elements of a result; operands are lists, scalars those of one element; names are symbols, `?` is unknown,
    /// negative numbers are constants' own.
    fn elements_of(op: &str, operands: &[&str]) -> Option<String> {
        let mut module = Module::new();
        let mut facts = Facts::default();
        let main = module.main();
        let mut values = smallvec::SmallVec::new();
        for (i, text) in operands.iter().enumerate() {
            let items: Vec<&str> = text.split(',').collect();
            let is_bool = i == 0 && op == "Where";
            let name = module.intern(&format!("x{i}"));
            let numbers: Option<Vec<i64>> = items.iter().map(|t| t.parse().ok()).collect();
            let n = u64::try_from(items.len()).unwrap();
            let dims: &[u64] = if n == 1 { &[] } else { &[n] };
            let value = match numbers.filter(|_| !is_bool) {
                Some(numbers) => {
                    let data = crate::TensorData::from_i64(dims, &numbers).unwrap();
                    module.add_constant(main, name, crate::Payload::Dense(data.into()))
                }
                None => {
                    let dtype = if is_bool { DType::Bool } else { DType::I64 };
                    let value = module.add_input(main, name, Type::tensor(dtype, Shape::known(dims)), None);
                    let dim = |t: &&str| match t.parse() {
                        Ok(n) => Int::Known(n),
                        Err(_) if *t == "?" => Int::Unknown,
                        Err(_) => Int::Sym(module.intern(t)),
                    };
                    facts.ints[value] = Some(items.iter().map(dim).collect());
                    value
                }
            };
            values.push(Some(value));
        }
        let Lookup::Found(schema) = lookup("", op, 18) else { panic!("{op}") };
        let results = vec![Some((module.intern("y"), Type::Unknown))];
        let new = NewNode {
            op: Op::Schema(schema),
            name: None,
            operands: values,
            attrs: Vec::new(),
            results,
            provenance: Provenance::User,
        };
        let node = module.add_node(main, Position::Last, new);
        let ints = check_node(&module, node, &facts).unwrap().unwrap().ints?;
        let spell = |n: &Int| match n {
            Int::Known(n) => n.to_string(),
            Int::Sym(s) => module.text(*s).to_owned(),
            Int::Unknown => "?".to_owned(),
        };
        Some(ints.iter().map(spell).collect::<Vec<_>>().join(","))
    }

    #[test]
    fn numbers_leave_their_element_type() {
        for (dtype, n, expected) in [
            (DType::I8, 127, true),
            (DType::I8, 128, false),
            (DType::I8, -128, true),
            (DType::I8, -129, false),
            (DType::U8, 255, true),
            (DType::U8, 256, false),
            (DType::U32, -1, false),
            (DType::U64, i64::MAX, true),
            (DType::I64, i64::MIN, true),
            (DType::Bool, 2, false),
        ] {
            assert_eq!(fits(dtype, n), expected, "{dtype} {n}");
        }
    }

    #[test]
    fn small_integers_are_followed() {
        for (op, operands, expected) in [
            ("Add", &["1,N,?", "0"][..], "1,N,?"),
            ("Add", &["1,2,3", "1,N,2"], "2,?,5"),
            ("Sub", &["N,N,3", "0,N,5"], "N,0,-2"),
            ("Mul", &["N,2,N", "1,3,0"], "N,6,0"),
            ("Mul", &["N", "M"], "?"),
            ("Mul", &["9223372036854775807,2", "2"], "?,4"),
            ("Div", &["N,7,-7", "1,2,2"], "N,3,-3"),
            ("Div", &["7,8", "0,2"], "?,4"),
            ("Mod", &["7,N", "4,1"], "3,0"),
            ("Max", &["N,3,N", "0,5,1"], "N,5,?"),
            ("Min", &["N,3", "0,5"], "0,3"),
            ("Max", &["1,2", "3", "4,N"], "4,?"),
            ("Equal", &["N,3,?", "-1"], "0,0,?"),
            ("Equal", &["N,3,N", "N,3,2"], "1,1,?"),
            ("Greater", &["N,3", "-1"], "1,1"),
            ("Where", &["1,0,?,?", "N,2,M,3", "5,6,M,4"], "N,6,M,?"),
            ("Neg", &["-3,2"], "3,-2"),
            ("Abs", &["-3,2"], "3,2"),
        ] {
            assert_eq!(elements_of(op, operands).as_deref(), Some(expected), "{op} {operands:?}");
        }
    }
}
