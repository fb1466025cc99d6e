//! Matrix products and sums of products.

use super::elementwise::into;
use super::inferred::Inferred;
use crate::ty::{Dim, Dims, Shape, show};
use crate::views::linear::{Equation, GemmView, Label};
use crate::views::size::{one_element, ranked, shape_error};
use crate::views::{NodeView, OpError, broadcast};
use std::collections::BTreeMap;

/// MatMul.
pub(super) fn infer_matmul(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    out.shape(0, matmul(view, 0, 1)?);
    Ok(())
}

/// MatMulInteger: zero points are scalars or per row of A, per column of B.
pub(super) fn infer_matmul_integer(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    out.shape(0, matmul(view, 0, 1)?);
    Ok(())
}

/// QLinearMatMul.
pub(super) fn infer_qlinear_matmul(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    out.shape(0, matmul(view, 0, 3)?);
    Ok(())
}

/// NumPy's matrix product of operands `a` and `b`.
fn matmul(view: &NodeView<'_>, a: usize, b: usize) -> Result<Shape, OpError> {
    let (Some(x), Some(y)) =
        (crate::views::size::at_least(view, a, 1)?, crate::views::size::at_least(view, b, 1)?)
    else {
        return Ok(Shape::unknown());
    };
    let (x_batch, rows, inner) = match x {
        [batch @ .., m, k] => (batch, Some(*m), *k),
        [k] => (&[] as &[Dim], None, *k),
        [] => return Ok(Shape::unknown()),
    };
    let (y_batch, inner_y, columns) = match y {
        [batch @ .., k, n] => (batch, *k, Some(*n)),
        [k] => (&[] as &[Dim], *k, None),
        [] => return Ok(Shape::unknown()),
    };
    if inner.meet(inner_y).is_none() {
        return Err(shape_error(b, format!("a matrix that {} can be multiplied with", show(x)), y));
    }
    let mut dims = broadcast(x_batch, y_batch)
        .map_err(|_| shape_error(b, format!("leading axes that broadcast with those of {}", show(x)), y))?;
    dims.extend(rows);
    dims.extend(columns);
    Ok(Shape(Some(dims)))
}

/// Gemm.
pub(super) fn infer_gemm(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let gemm = GemmView::read(view);
    let a = ranked(view, 0, 2)?;
    let b = ranked(view, 1, 2)?;
    let side = |dims: Option<&[Dim]>, i: usize| dims.map_or(Dim::Unknown, |d| d[i]);
    let (m, k) = (side(a, usize::from(gemm.trans_a)), side(a, usize::from(!gemm.trans_a)));
    let (l, n) = (side(b, usize::from(gemm.trans_b)), side(b, usize::from(!gemm.trans_b)));
    if let (Some(b), None) = (b, k.meet(l)) {
        let expected = format!("{} rows", k.known().unwrap_or(0));
        let expected = if gemm.trans_b { expected.replace("rows", "columns") } else { expected };
        return Err(shape_error(1, expected, b));
    }
    let shape = Shape::of([m, n]);
    if gemm.broadcast_c {
        into(view, 2, &shape, "the shape of the product")?;
    } else if shape.meet(&view.shape(2)).is_none() {
        return Err(shape_error(2, "the shape of the product", view.dims(2).unwrap_or(&[])));
    }
    out.shape(0, shape);
    Ok(())
}

/// Einsum: an extent per label; extents of 1 broadcast.
pub(super) fn infer_einsum(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let equation = Equation::read(view)?;
    let mut extents: BTreeMap<Label, Dim> = BTreeMap::new();
    let mut ellipsis = Some(Dims::new());
    for (i, labels) in equation.operands.iter().enumerate() {
        let Some(dims) = view.dims(i) else {
            if labels.contains(&Label::Ellipsis) {
                ellipsis = None;
            }
            continue;
        };
        let letters = labels.iter().filter(|&&l| l != Label::Ellipsis).count();
        let hidden = match dims.len().checked_sub(letters) {
            Some(0) => 0,
            Some(hidden) if letters < labels.len() => hidden,
            _ => {
                return Err(shape_error(i, format!("as many axes as its term has indices, {letters}"), dims));
            }
        };
        let mut rest = dims;
        for &label in labels {
            let (here, tail) = rest.split_at(if label == Label::Ellipsis { hidden } else { 1 });
            rest = tail;
            if label == Label::Ellipsis {
                ellipsis = match ellipsis {
                    None => None,
                    Some(known) => Some(broadcast(&known, here).map_err(|_| {
                        shape_error(i, format!("ellipsis axes that broadcast with {}", show(&known)), dims)
                    })?),
                };
            } else {
                join_label(&mut extents, label, here[0], i, dims)?;
            }
        }
    }
    let mut result = Dims::new();
    for label in &equation.result {
        match (label, &ellipsis) {
            (Label::Letter(_), _) => result.push(extents.get(label).copied().unwrap_or(Dim::Unknown)),
            (Label::Ellipsis, Some(hidden)) => result.extend(hidden.iter().copied()),
            (Label::Ellipsis, None) => return Ok(()),
        }
    }
    out.shape(0, Shape(Some(result)));
    Ok(())
}

fn join_label(
    extents: &mut BTreeMap<Label, Dim>,
    label: Label,
    dim: Dim,
    operand: usize,
    dims: &[Dim],
) -> Result<(), OpError> {
    let known = extents.entry(label).or_insert(dim);
    let joined = broadcast(&[*known], &[dim])
        .map_err(|_| shape_error(operand, "one extent per index of the equation", dims))?;
    *known = joined[0];
    Ok(())
}

/// The shapes of scales and zero points that are single numbers.
pub(super) fn scalars(view: &NodeView<'_>, operands: &[usize]) -> Result<(), OpError> {
    operands.iter().try_for_each(|&i| one_element(view, i))
}
