//! The gradient of Einsum.
//!
//! The gradient of an operand is the sum of products of dY and the other operands, with the operand's indices as result.
//!
//! ```text
//! Y = Einsum(A, B) "ij,jk->ik"         dA = Einsum(dY, B) "ik,jk->ij"         dB = Einsum(dY, A) "ik,ij->jk"
//! ```
//!
//! The axes of `...` get letters of their own first, aligned at the last ones. An index that occurs twice in a
//! term takes a diagonal: the second occurrence becomes another letter, and an identity matrix equates both.

use super::backward::{Backward, Build, Ruled};
use super::dims::dim_range;
use crate::pass::training_error::RuleError;
use ampc_ir::op::OpKind;
use ampc_ir::views::linear::{Equation, Label};
use ampc_ir::{AttrValue, DType, Dim, Value};

/// An equation without `...`: letters of the axes of each operand and of the result.
struct Letters {
    operands: Vec<Vec<u8>>,
    result: Vec<u8>,
    unused: Vec<u8>,
}

impl Letters {
    fn of(b: &Backward<'_>, equation: &Equation) -> Ruled<Letters> {
        let terms = || equation.operands.iter().chain([&equation.result]);
        let is_used = |letter: &u8| terms().any(|term| term.contains(&Label::Letter(*letter)));
        let mut unused: Vec<u8> =
            (b'a'..=b'z').chain(b'A'..=b'Z').rev().filter(|letter| !is_used(letter)).collect();
        let mut ranks = Vec::with_capacity(equation.operands.len());
        for (i, term) in equation.operands.iter().enumerate() {
            let named = term.iter().filter(|label| **label != Label::Ellipsis).count();
            ranks.push(b.rank(b.x(i)?)?.saturating_sub(named));
        }
        let has_dots = |term: &[Label]| term.contains(&Label::Ellipsis);
        let dotted = equation.operands.iter().zip(&ranks).filter(|(term, _)| has_dots(term));
        let n = dotted.map(|(_, &rank)| rank).max().unwrap_or(0);
        let mut axes = Vec::with_capacity(n);
        for _ in 0..n {
            axes.push(unused.pop().ok_or_else(too_many)?);
        }
        let spell = |term: &[Label], rank: usize| -> Vec<u8> {
            let letters = |label: &Label| match label {
                Label::Ellipsis => axes[axes.len() - rank.min(axes.len())..].to_vec(),
                Label::Letter(letter) => vec![*letter],
            };
            term.iter().flat_map(letters).collect()
        };
        let operands = equation.operands.iter().zip(&ranks).map(|(term, &rank)| spell(term, rank)).collect();
        Ok(Letters { operands, result: spell(&equation.result, n), unused })
    }
}

fn too_many() -> RuleError {
    RuleError::Unsupported("its operands have more axes than there are letters".into())
}

fn text(term: &[u8]) -> String {
    term.iter().copied().map(char::from).collect()
}

pub(super) fn einsum(b: &mut Backward<'_>) -> Ruled {
    let equation = Equation::read(&b.view()?)?;
    let letters = Letters::of(b, &equation)?;
    (0..letters.operands.len()).filter(|&i| b.needs(i)).collect::<Vec<_>>().into_iter().try_for_each(|i| {
        let d = of_operand(b, &letters, i)?;
        b.add(i, d)
    })
}

/// The gradient of an operand.
fn of_operand(b: &mut Backward<'_>, letters: &Letters, i: usize) -> Ruled<Value> {
    let (x, dy) = (b.x(i)?, b.dy0()?);
    let others: Vec<usize> = (0..letters.operands.len()).filter(|&other| other != i).collect();
    let (mut operands, mut terms) = (vec![dy], vec![text(&letters.result)]);
    for &other in &others {
        operands.push(b.x(other)?);
        terms.push(text(&letters.operands[other]));
    }
    // The term with every letter once.
    let (mut term, mut unused): (Vec<u8>, _) = (Vec::new(), letters.unused.clone());
    for (axis, &letter) in letters.operands[i].iter().enumerate() {
        if !term.contains(&letter) {
            term.push(letter);
            continue;
        }
        let twin = unused.pop().ok_or_else(too_many)?;
        operands.push(identity(b, x, axis, dy)?);
        terms.push(text(&[letter, twin]));
        term.push(twin);
    }
    let is_known = |letter: &u8| terms.iter().any(|term| term.bytes().any(|other| other == *letter));
    let found: Vec<u8> = term.iter().copied().filter(is_known).collect();
    let equation = format!("{}->{}", terms.join(","), text(&found));
    let attrs = [("equation", AttrValue::String(equation.into_bytes().into()))];
    let mut d = b.op(OpKind::Einsum, &operands, &attrs)?;
    // An index that nobody else has was summed over: its elements all get the same.
    let lost: Vec<usize> = (0..term.len()).filter(|&at| !is_known(&term[at])).collect();
    if !lost.is_empty() {
        d = b.unsqueeze(d, &lost)?;
    }
    // Axes of extent 1 that met longer ones.
    let is_one = |dim: &Dim| dim.known() == Some(1);
    let is_open = |dim: &Dim| dim.known().is_none();
    if b.shape(x)?.iter().zip(b.shape(d)?).any(|(x, d)| is_one(x) && !is_one(&d) || is_open(x)) {
        d = b.unbroadcast(d, x)?;
    }
    // And the other way round: longer axes that were summed over beside axes of extent 1.
    b.expand_as(d, x)
}

/// The identity matrix of the extent of an axis, of the type of a value.
fn identity(b: &mut Backward<'_>, x: Value, axis: usize, like: Value) -> Ruled<Value> {
    let n = dim_range(b, x, axis, Some(axis + 1))?;
    let square = b.op(OpKind::Concat, &[n, n], &[("axis", AttrValue::Int(0))])?;
    let zero = b.number(0.0, DType::F32)?;
    let zeros = b.op(OpKind::Expand, &[zero, square], &[])?;
    let identity = b.op(OpKind::EyeLike, &[zeros], &[])?;
    b.cast(identity, b.dtype(like)?)
}
