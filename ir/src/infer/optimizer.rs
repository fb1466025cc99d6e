//! Operators of ai.ampc that train: optimizers, and the check of gradients before them.

use super::size::ranked;
use super::{Inferred, shape_error, show};
use crate::views::optimizer::AdamWView;
use crate::views::{NodeView, OpError};
use crate::{DType, Shape};

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

/// AdamW: the next weights and moments have the shape that weights, gradient and moments share.
pub(super) fn infer_adam_w(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let mut shape = Shape::unknown();
    for i in 0..4 {
        let found = view.shape(i);
        shape = shape.meet(&found).ok_or_else(|| {
            let expected =
                format!("the shape {} of the operands before it", show(shape.dims().unwrap_or(&[])));
            shape_error(i, expected, found.dims().unwrap_or(&[]))
        })?;
    }
    for i in 4..8 {
        ranked(view, i, 0)?;
    }
    for i in 0..3 {
        out.tensor(i, DType::F32, shape.clone());
    }
    if !view.lacks_attributes()
        && let Some(w_lo) = AdamWView::read(view)?.w_lo
    {
        out.tensor(3, w_lo, shape);
    }
    Ok(())
}
