//! Operators that compute element by element.

use super::arithmetic;
use super::inferred::Inferred;
use crate::ty::{Dim, Dims, Shape, show};
use crate::views::broadcast::{Bound, Broadcast, ClipView, DropoutView, PhiloxDropoutView, Shift};
use crate::views::size::{one_element, ranked, shape_error};
use crate::views::{NodeView, OpError, Part, broadcast, normalize_axis};

/// Every result has the shape of the first operand.
pub(super) fn infer_like_first(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    for i in 0..view.n_results() {
        out.shape(i, view.shape(0));
    }
    out.ints = arithmetic::unary(view);
    Ok(())
}

/// Operators of several operands that broadcast by the rule of their version.
pub(super) fn infer_broadcast(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let shape = match Broadcast::read(view) {
        Broadcast::Identical => identical(view)?,
        Broadcast::Aligned { axis } => aligned(view, axis)?,
        Broadcast::Numpy => numpy(view)?,
        Broadcast::IntoFirst => {
            into(view, 1, &view.shape(0), "the shape of operand 0")?;
            view.shape(0)
        }
        Broadcast::PerChannel => view.shape(0),
    };
    out.ints = arithmetic::binary(view, &shape);
    out.shape(0, shape);
    Ok(())
}

fn identical(view: &NodeView<'_>) -> Result<Shape, OpError> {
    let mut shape = Shape::unknown();
    for i in 0..view.n_operands() {
        let found = view.shape(i);
        shape = shape.meet(&found).ok_or_else(|| {
            let expected = shape.dims().map_or_else(String::new, show);
            shape_error(
                i,
                format!("the shape {expected} of the operands before it"),
                found.dims().unwrap_or(&[]),
            )
        })?;
    }
    Ok(shape)
}

/// The rule of `broadcast=1` below 7.
fn aligned(view: &NodeView<'_>, axis: Option<i64>) -> Result<Shape, OpError> {
    let (Some(a), Some(b)) = (view.dims(0), view.dims(1)) else { return Ok(view.shape(0)) };
    if b.iter().all(|&d| d == Dim::Known(1)) {
        return Ok(view.shape(0));
    }
    let start = match axis {
        // An axis of -1 is how some writers spell that there is none.
        None | Some(-1) => a.len().checked_sub(b.len()),
        Some(axis) => Some(normalize_axis(axis, a.len(), Part::Attr("axis".into()))?),
    };
    // Operand 1 is of the extent of operand 0, or of 1.
    let extent = |x: Dim, y: Dim| match y {
        Dim::Known(1) => Some(x),
        Dim::Known(_) => x.meet(y),
        _ => x.meet(y).map(|_| x),
    };
    let start = start.filter(|&start| start.checked_add(b.len()).is_some_and(|end| end <= a.len()));
    let mut dims = Dims::from(a);
    let fits = start.is_some_and(|start| {
        dims[start..].iter_mut().zip(b).all(|(x, &y)| extent(*x, y).map(|d| *x = d).is_some())
    });
    if fits { Ok(Shape(Some(dims))) } else { Err(shape_error(1, format!("a run of axes of {}", show(a)), b)) }
}

fn numpy(view: &NodeView<'_>) -> Result<Shape, OpError> {
    let mut dims = Dims::new();
    let mut known = true;
    for i in 0..view.n_operands() {
        match view.dims(i) {
            Some(d) => {
                dims = broadcast(&dims, d).map_err(|_| {
                    shape_error(i, format!("a shape that broadcasts with {}", show(&dims)), d)
                })?;
            }
            None => known = false,
        }
    }
    Ok(if known { Shape(Some(dims)) } else { Shape::unknown() })
}

/// Checks that operand `i` broadcasts into `target` without changing it.
///
/// # Errors
/// If it does not.
pub(super) fn into(view: &NodeView<'_>, i: usize, target: &Shape, what: &str) -> Result<(), OpError> {
    let (Some(dims), Some(target)) = (view.dims(i), target.dims()) else { return Ok(()) };
    let shift = target.len().checked_sub(dims.len());
    let fits = shift.is_some_and(|shift| {
        dims.iter().zip(&target[shift..]).all(|(&d, &t)| d == Dim::Known(1) || d.meet(t).is_some())
    });
    if fits {
        Ok(())
    } else {
        Err(shape_error(i, format!("a shape that broadcasts into {what}, {}", show(target)), dims))
    }
}

/// Dropout: data and mask have the shape of the data.
pub(super) fn infer_dropout(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    if let Some(i) = DropoutView::read(view).ratio_operand {
        one_element(view, i)?;
    }
    one_element(view, 2)?;
    out.shape(0, view.shape(0));
    out.shape(1, view.shape(0));
    Ok(())
}

/// PhiloxDropout: dropped elements keep their place, so the shape stays.
pub(super) fn infer_philox_dropout(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    (1..4).try_for_each(|i| ranked(view, i, 0).map(drop))?;
    out.shape(0, view.shape(0));
    if !view.lacks_attributes() {
        PhiloxDropoutView::read(view)?;
    }
    Ok(())
}

/// Clip.
pub(super) fn infer_clip(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let clip = ClipView::read(view);
    for bound in [clip.min, clip.max] {
        if let Bound::Operand(i) = bound {
            one_element(view, i)?;
        }
    }
    out.shape(0, view.shape(0));
    Ok(())
}

/// BitShift.
pub(super) fn infer_bit_shift(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    Shift::read(view)?;
    infer_broadcast(view, out)
}

/// Trilu: upper or lower triangles of the last two axes.
pub(super) fn infer_trilu(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    crate::views::size::at_least(view, 0, 2)?;
    one_element(view, 1)?;
    out.shape(0, view.shape(0));
    Ok(())
}

/// Det: the last two axes, square, go.
pub(super) fn infer_det(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let Some(dims) = crate::views::size::at_least(view, 0, 2)? else { return Ok(()) };
    let (batch, square) = dims.split_at(dims.len() - 2);
    if square[0].meet(square[1]).is_none() {
        return Err(shape_error(0, "square matrices in the last two axes", dims));
    }
    out.shape(0, Shape::of(batch.iter().copied()));
    Ok(())
}

/// ImageDecoder: height, width and channels of an image in a file's bytes.
pub(super) fn infer_image_decoder(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    ranked(view, 0, 1)?;
    let channels = match view.string("pixel_format") {
        Some("RGB" | "BGR") => 3,
        Some("Grayscale") => 1,
        other => {
            return Err(OpError::attr("pixel_format", "RGB, BGR or Grayscale", other.unwrap_or("none")));
        }
    };
    out.shape(0, Shape::of([Dim::Unknown, Dim::Unknown, Dim::Known(channels)]));
    Ok(())
}
