//! Operators of ai.ampc that train: optimizers, the check of gradients before them, and the loss scale.

use super::inferred::Inferred;
use crate::dtype::DType;
use crate::ty::{Shape, show};
use crate::views::loss_scale::{ClipCoefView, UpdateLossScaleView};
use crate::views::optimizer::{AdamView, SgdView};
use crate::views::size::{ranked, shape_error};
use crate::views::{NodeView, OpError, Part};

/// GradCheck: two scalars, whatever the shapes of the gradients.
pub(super) fn infer_grad_check(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    ranked(view, 0, 0)?;
    if let Some(absent) = (1..view.n_operands()).find(|&i| !view.has(i)) {
        return Err(OpError::operand(absent, "a gradient", "none"));
    }
    for i in 0..2 {
        out.tensor(i, DType::F32, Shape::scalar());
    }
    Ok(())
}

/// UpdateLossScale: the next scale and counts are scalars as they are.
pub(super) fn infer_update_loss_scale(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    (0..view.n_operands()).try_for_each(|i| ranked(view, i, 0).map(drop))?;
    out.tensor(0, DType::F32, Shape::scalar());
    out.tensor(1, DType::I32, Shape::scalar());
    if view.has(3) {
        out.tensor(2, DType::I32, Shape::scalar());
    } else if view.data().result(2).is_some() {
        let expected = "none where there is no `bad`".into();
        return Err(OpError { part: Part::Result(2), expected, found: "the next count".into() });
    }
    if !view.lacks_attributes() {
        UpdateLossScaleView::read(view)?;
    }
    Ok(())
}

/// ClipCoef: two scalars.
pub(super) fn infer_clip_coef(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    for i in 0..2 {
        ranked(view, i, 0)?;
        out.tensor(i, DType::F32, Shape::scalar());
    }
    if !view.lacks_attributes() {
        ClipCoefView::read(view)?;
    }
    Ok(())
}

/// Adam and AdamW: the next weights and moments have the shape that weights, gradient and moments share.
pub(super) fn infer_adam(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let shape = shared(view, &[0, 1, 2, 3])?;
    (4..8).try_for_each(|i| ranked(view, i, 0).map(drop))?;
    for i in 0..3 {
        out.tensor(i, DType::F32, shape.clone());
    }
    if !view.lacks_attributes()
        && let Some(w_lo) = AdamView::read(view)?.w_lo
    {
        out.tensor(3, w_lo, shape);
    }
    Ok(())
}

/// SGD: the next weights and momentum have the shape that weights, gradient and momentum share.
pub(super) fn infer_sgd(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let shape = shared(view, &[0, 1, 6])?;
    (2..6).try_for_each(|i| ranked(view, i, 0).map(drop))?;
    out.tensor(0, DType::F32, shape.clone());
    if view.has(6) {
        out.tensor(1, DType::F32, shape.clone());
    }
    if !view.lacks_attributes()
        && let Some(w_lo) = SgdView::read(view)?.w_lo
    {
        out.tensor(2, w_lo, shape);
    }
    Ok(())
}

/// The shape that operands have in common.
fn shared(view: &NodeView<'_>, operands: &[usize]) -> Result<Shape, OpError> {
    let mut shape = Shape::unknown();
    for &i in operands.iter().filter(|&&i| view.has(i)) {
        let found = view.shape(i);
        shape = shape.meet(&found).ok_or_else(|| {
            let expected =
                format!("the shape {} of the operands before it", show(shape.dims().unwrap_or(&[])));
            shape_error(i, expected, found.dims().unwrap_or(&[]))
        })?;
    }
    Ok(shape)
}
