//! Gradients of Softmax and LogSoftmax.

use super::backward::{Backward, Build, Ruled, signed};
use crate::pass::training_error::RuleError;
use ampc_ir::op::OpKind;
use ampc_ir::views::norm::{SoftmaxAxes, SoftmaxView};

/// The axes over which results add up to 1.
fn axes(b: &Backward<'_>) -> Ruled<Vec<usize>> {
    let view = b.view()?;
    let rank = b.rank(b.x(0)?)?;
    match SoftmaxView::read(&view)?.axes {
        Some(SoftmaxAxes::One(axis)) => Ok(vec![axis]),
        Some(SoftmaxAxes::From(axis)) => Ok((axis..rank).collect()),
        None => Err(RuleError::Unsupported(format!("its axis of {} is not known", signed(rank)))),
    }
}

/// y · (dy − Σ dy·y)
pub(super) fn softmax(b: &mut Backward<'_>) -> Ruled {
    let axes = axes(b)?;
    let (y, dy) = (b.y(0)?, b.dy0()?);
    let (y, dy) = (b.wide(y)?, b.wide(dy)?);
    let product = b.times(dy, y)?;
    let sum = b.sum_over(product, &axes, true)?;
    let rest = b.minus(dy, sum)?;
    let dx = b.times(y, rest)?;
    b.add(0, dx)
}

/// dy − eʸ · Σ dy
pub(super) fn log_softmax(b: &mut Backward<'_>) -> Ruled {
    let axes = axes(b)?;
    let (y, dy) = (b.y(0)?, b.dy0()?);
    let (y, dy) = (b.wide(y)?, b.wide(dy)?);
    let exp = b.unary(OpKind::Exp, y)?;
    let sum = b.sum_over(dy, &axes, true)?;
    let product = b.times(exp, sum)?;
    let dx = b.minus(dy, product)?;
    b.add(0, dx)
}
