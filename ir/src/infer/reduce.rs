//! Reductions, searches along an axis, running sums and products.

use super::inferred::Inferred;
use crate::ty::{Dim, Shape, show};
use crate::views::reduce::{ArgReduceView, Axes, CumulativeView, ReduceView, TopKView};
use crate::views::size::{shape_error, with};
use crate::views::{NodeView, OpError, Part};

/// The Reduce operators.
pub(super) fn infer_reduce(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let reduce = ReduceView::read(view)?;
    let Some(dims) = view.dims(0) else { return Ok(()) };
    let shape = match (&reduce.axes, reduce.n_axes, reduce.keep) {
        (Some(axes), _, keep) => reduced(dims, axes, keep),
        (None, _, true) => Shape::of_rank(dims.len()),
        // Axes may be named twice only where that is known, so this many go.
        (None, Some(n), false) => match dims.len().checked_sub(n) {
            Some(rank) => Shape::of_rank(rank),
            None => return Err(OpError::operand(1, format!("at most {} axes", dims.len()), n.to_string())),
        },
        (None, None, false) => Shape::unknown(),
    };
    out.shape(0, shape);
    Ok(())
}

fn reduced(dims: &[Dim], axes: &Axes, keep: bool) -> Shape {
    let kept = dims.iter().enumerate().filter_map(|(i, &d)| match (axes.has(i), keep) {
        (false, _) => Some(d),
        (true, true) => Some(Dim::Known(1)),
        (true, false) => None,
    });
    Shape::of(kept)
}

/// ArgMax and ArgMin.
pub(super) fn infer_arg_reduce(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let arg = ArgReduceView::read(view)?;
    if let (Some(dims), Some(axis)) = (view.dims(0), arg.axis) {
        let Ok(axis) = i64::try_from(axis) else { return Ok(()) };
        out.shape(0, reduced(dims, &Axes::of(&[axis], dims.len())?, arg.keep));
    }
    Ok(())
}

/// TopK: values and indices.
pub(super) fn infer_top_k(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let top = TopKView::read(view)?;
    let (Some(dims), Some(axis)) = (view.dims(0), top.axis) else { return Ok(()) };
    if let (Some(k), Dim::Known(extent)) = (top.k, dims[axis])
        && k > extent
    {
        return Err(top.k_error(format!("at most {extent} elements, the extent of axis {axis}"), k));
    }
    let shape = Shape(Some(with(dims, axis, top.k.map_or(Dim::Unknown, Dim::Known))));
    out.shape(0, shape.clone());
    out.shape(1, shape);
    Ok(())
}

/// CumSum and CumProd.
pub(super) fn infer_cumulative(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    CumulativeView::read(view)?;
    out.shape(0, view.shape(0));
    Ok(())
}

/// NegativeLogLikelihoodLoss: scores per class and a class per position, one number or one per position.
pub(super) fn infer_nll_loss(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let positions = loss_positions(view)?;
    out.shape(0, positions);
    Ok(())
}

/// SoftmaxCrossEntropyLoss: the same, and the logarithms of probabilities.
pub(super) fn infer_cross_entropy(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let positions = loss_positions(view)?;
    out.shape(0, positions);
    out.shape(1, view.shape(0));
    Ok(())
}

fn loss_positions(view: &NodeView<'_>) -> Result<Shape, OpError> {
    let each = match view.string("reduction").unwrap_or("mean") {
        "none" => true,
        "mean" | "sum" => false,
        other => return Err(OpError::attr("reduction", "none, mean or sum", other)),
    };
    let mut classes = Dim::Unknown;
    let mut positions = view.shape(1);
    if let Some(scores) = crate::views::size::at_least(view, 0, 2)? {
        classes = scores[1];
        let expected = Shape::of(scores.iter().enumerate().filter(|&(i, _)| i != 1).map(|(_, &d)| d));
        positions = positions.meet(&expected).ok_or_else(|| {
            let what = format!("the shape {} of the scores without classes", show(scores));
            shape_error(1, what, view.dims(1).unwrap_or(&[]))
        })?;
    }
    if crate::views::size::ranked(view, 2, 1)?.is_some() {
        crate::views::size::agree(view, 2, 0, &mut classes, "number of classes")?;
    }
    Ok(if each { positions } else { Shape::scalar() })
}

/// Gradient: of the result `y` by each of the tensors `xs`, the first operands.
pub(super) fn infer_gradient(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    for i in 0..view.n_results() {
        out.ty(i, view.operand_type(i).cloned().unwrap_or_default());
    }
    Ok(())
}

/// Results of the preview operators that train, from tensors X, gradients G and `n_states` kinds of state: the
/// new X and the new states, with the shapes of the old.
pub(super) fn infer_optimizer(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let kinds = if view.kind() == crate::op::OpKind::TrainingAdam { 4 } else { 3 };
    let n = view.n_operands().saturating_sub(2);
    if !n.is_multiple_of(kinds) {
        return Err(OpError::node(
            format!("rate, count and a multiple of {kinds} operands"),
            view.n_operands().to_string(),
        ));
    }
    let n = n / kinds;
    if view.n_results() != n * (kinds - 1) {
        return Err(OpError::node(format!("{} results", n * (kinds - 1)), view.n_results().to_string()));
    }
    for result in 0..view.n_results() {
        // Operands are X…, G…, states…; results are X…, states….
        let operand = 2 + result + if result < n { 0 } else { n };
        let new = view.operand_type(operand).cloned().unwrap_or_default();
        let same = view.shape(2 + result % n.max(1)).meet(&view.shape(operand));
        if same.is_none() {
            return Err(OpError {
                part: Part::Operand(operand),
                expected: "the shape of the tensor it belongs to".into(),
                found: show(view.dims(operand).unwrap_or(&[])),
            });
        }
        out.ty(result, new);
    }
    Ok(())
}
