//! Operators of ai.ampc that train: optimizers, the check of gradients before them, and the loss scale.

use super::inferred::Inferred;
use crate::dtype::DType;
use crate::op::optimizers::{SCALARS, low_copy};
use crate::ty::{Shape, show};
use crate::views::loss_scale::{ClipCoefView, UpdateLossScaleView};
use crate::views::optimizer::low_format;
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

/// An optimizer: weight, gradient and states have one shape, and the next weight and states have it too.
pub(super) fn infer_optimizer(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let (inputs, outputs) = (view.schema.inputs, view.schema.outputs);
    let is_scalar = |i: &usize| SCALARS.contains(&inputs[*i].name);
    let (scalars, tensors): (Vec<usize>, Vec<usize>) = (0..inputs.len()).partition(is_scalar);
    let shape = shared(view, &tensors)?;
    scalars.into_iter().try_for_each(|i| ranked(view, i, 0).map(drop))?;
    let low = low_copy(view.schema);
    for j in (0..outputs.len()).filter(|j| Some(*j) != low) {
        let state = outputs[j].name.strip_suffix("_next");
        let operand = inputs.iter().position(|formal| Some(formal.name) == state);
        if operand.is_some_and(|i| view.has(i)) {
            out.tensor(j, DType::F32, shape.clone());
        }
    }
    if let (false, Some(low)) = (view.lacks_attributes(), low)
        && let Some(w_lo) = low_format(view)?
    {
        out.tensor(low, w_lo, shape);
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
