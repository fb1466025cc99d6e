//! Identity, and casts of elements: Cast, CastLike, BitCast.

use super::extents::same_ints;
use super::inferred::Inferred;
use crate::dtype::DType;
use crate::int::Int;
use crate::views::{CastView, NodeView, OpError};

/// Identity.
pub(super) fn infer_identity(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    out.ty(0, view.operand_type(0).cloned().unwrap_or_default());
    same_ints(view, out, 0);
    Ok(())
}

/// Cast.
pub(super) fn infer_cast(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let Some(to) = CastView::read(view)?.to else { return Ok(()) };
    out.tensor(0, to, view.shape(0));
    cast_ints(view, out, to);
    Ok(())
}

/// CastLike.
pub(super) fn infer_cast_like(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    if let Some(to) = view.dtype(1) {
        out.tensor(0, to, view.shape(0));
        cast_ints(view, out, to);
    }
    Ok(())
}

fn cast_ints(view: &NodeView<'_>, out: &mut Inferred, to: DType) {
    let Some(ints) = view.ints(0) else { return };
    let cast = |n: &Int| match (*n, to) {
        (Int::Known(n), DType::Bool) => Int::Known(i64::from(n != 0)),
        (Int::Known(n), DType::I64) => Int::Known(n),
        (Int::Known(n), DType::I32) if i32::try_from(n).is_ok() => Int::Known(n),
        (Int::Known(n), DType::U64) if n >= 0 => Int::Known(n),
        // The extent of an axis fits.
        (Int::Sym(s), DType::I64 | DType::U64 | DType::I32) => Int::Sym(s),
        (Int::Known(_) | Int::Sym(_) | Int::Unknown, _) => Int::Unknown,
    };
    if matches!(to, DType::Bool | DType::I32 | DType::I64 | DType::U64) {
        out.ints = Some(ints.iter().map(cast).collect());
    }
}

/// BitCast.
pub(super) fn infer_bit_cast(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let Some(to) = CastView::read(view)?.to else { return Ok(()) };
    let Some(bits) = to.bits().filter(|_| to != DType::String) else {
        return Err(OpError::attr("to", "an element type of a fixed width", to.to_string()));
    };
    if let Some(from) = view.dtype(0)
        && from.bits() != Some(bits)
    {
        let expected = format!("an element type as wide as {from}");
        return Err(OpError::attr("to", expected, to.to_string()));
    }
    out.tensor(0, to, view.shape(0));
    Ok(())
}
