//! QuantizeLinear and DequantizeLinear.

use super::inferred::Inferred;
use crate::dtype::DType;
use crate::ty::{Dim, show};
use crate::views::size::shape_error;
use crate::views::{Granularity, NodeView, OpError, QuantizeView};

/// QuantizeLinear.
pub(super) fn infer_quantize(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    finish(view, out, QuantizeView::quantize(view)?)
}

/// DequantizeLinear.
pub(super) fn infer_dequantize(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    finish(view, out, QuantizeView::dequantize(view)?)
}

fn finish(view: &NodeView<'_>, out: &mut Inferred, quantize: QuantizeView) -> Result<(), OpError> {
    check_scale(view, quantize.granularity)?;
    if view.has(2) && view.shape(1).meet(&view.shape(2)).is_none() && !both_single(view) {
        let expected = format!("shape {}, as the scale has", show(view.dims(1).unwrap_or_default()));
        return Err(shape_error(2, expected, view.dims(2).unwrap_or_default()));
    }
    if let Some(dtype) = quantize.output.filter(|d| !matches!(d, DType::Other(_))) {
        out.tensor(0, dtype, view.shape(0));
    }
    Ok(())
}

/// A scalar and a list of one say the same.
fn both_single(view: &NodeView<'_>) -> bool {
    [1, 2].iter().all(|&i| matches!(view.dims(i), Some([] | [Dim::Known(1)])))
}

fn check_scale(view: &NodeView<'_>, granularity: Granularity) -> Result<(), OpError> {
    let (Some(x), Some(scale)) = (view.dims(0), view.dims(1)) else { return Ok(()) };
    let differ = |a: Dim, b: Dim| a.meet(b).is_none();
    match granularity {
        Granularity::Tensor | Granularity::Unknown => Ok(()),
        Granularity::Axis(axis) if !differ(x[axis], scale[0]) => Ok(()),
        Granularity::Axis(axis) => {
            Err(shape_error(1, format!("the extent at axis {axis} of {}", show(x)), scale))
        }
        Granularity::Blocks { axis, size } => {
            let fits = x.iter().zip(scale).enumerate().all(|(i, (x, s))| match x.known() {
                Some(n) if i == axis => !differ(Dim::Known(n.div_ceil(size)), *s),
                _ if i == axis => true,
                _ => !differ(*x, *s),
            });
            if fits {
                return Ok(());
            }
            let expected = format!("a scale per {size} elements along axis {axis} of {}", show(x));
            Err(shape_error(1, expected, scale))
        }
    }
}
