//! Arithmetic on extents, and common queries about the shapes of operands.
//!
//! Nothing here overflows: a size that does not fit ONNX's 63 bits is not known.

use super::node::{NodeView, OpError, Part};
use crate::ty::{Dim, Dims, show};

/// A number computed from sizes as an extent; a negative or huge number becomes unknown.
pub(crate) fn extent(n: i128) -> Dim {
    match u64::try_from(n) {
        Ok(n) if i64::try_from(n).is_ok() => Dim::Known(n),
        _ => Dim::Unknown,
    }
}

/// The sum of two extents; a name survives the addition of 0.
pub(crate) fn add(a: Dim, b: Dim) -> Dim {
    match (a, b) {
        (d, Dim::Known(0)) | (Dim::Known(0), d) => d,
        (Dim::Known(x), Dim::Known(y)) => extent(i128::from(x) + i128::from(y)),
        _ => Dim::Unknown,
    }
}

/// An extent times a number; a name survives the multiplication by 1.
pub(crate) fn times(a: Dim, n: u64) -> Dim {
    match (a, n) {
        (d, 1) => d,
        (Dim::Known(x), n) => x.checked_mul(n).map_or(Dim::Unknown, |n| extent(i128::from(n))),
        _ => Dim::Unknown,
    }
}

/// The `n`-th part of an extent; `None` if the extent is known and no multiple of `n`.
pub(crate) fn part(a: Dim, n: u64) -> Option<Dim> {
    match (a, n) {
        (_, 0) => None,
        (d, 1) => Some(d),
        (Dim::Known(x), n) => x.is_multiple_of(n).then_some(Dim::Known(x / n)),
        _ => Some(Dim::Unknown),
    }
}

/// The product of extents, if all are known and it fits.
pub(crate) fn product(dims: &[Dim]) -> Option<u64> {
    dims.iter().try_fold(1u64, |n, d| n.checked_mul(d.known()?))
}

/// The error of an operand whose shape does not fit.
pub(crate) fn shape_error(operand: usize, expected: impl Into<String>, found: &[Dim]) -> OpError {
    OpError {
        part: Part::Operand(operand),
        expected: expected.into(),
        found: format!("shape {}", show(found)),
    }
}

/// The dims of operand `i`, if its rank is known.
///
/// # Errors
/// If the rank is known and another one.
pub(crate) fn ranked<'a>(view: &NodeView<'a>, i: usize, rank: usize) -> Result<Option<&'a [Dim]>, OpError> {
    match view.dims(i) {
        Some(dims) if dims.len() != rank => Err(shape_error(i, format!("a tensor of rank {rank}"), dims)),
        dims => Ok(dims),
    }
}

/// The dims of operand `i`, if its rank is known.
///
/// # Errors
/// If the rank is known and smaller.
pub(crate) fn at_least<'a>(view: &NodeView<'a>, i: usize, rank: usize) -> Result<Option<&'a [Dim]>, OpError> {
    match view.dims(i) {
        Some(dims) if dims.len() < rank => {
            Err(shape_error(i, format!("a tensor of rank {rank} or more"), dims))
        }
        dims => Ok(dims),
    }
}

/// Makes `dim` the more precise of itself and an extent of operand `i`.
///
/// # Errors
/// If the two contradict each other; `what` describes the extent.
pub(crate) fn agree(
    view: &NodeView<'_>,
    i: usize,
    axis: usize,
    dim: &mut Dim,
    what: &str,
) -> Result<(), OpError> {
    let Some(dims) = view.dims(i) else { return Ok(()) };
    let Some(&found) = dims.get(axis) else {
        return Err(shape_error(i, format!("an axis {axis}, the {what}"), dims));
    };
    *dim = dim.meet(found).ok_or_else(|| {
        let expected = dim.known().map_or_else(|| "?".into(), |n| n.to_string());
        shape_error(i, format!("{expected} as the {what} (axis {axis})"), dims)
    })?;
    Ok(())
}

/// Checks that operand `i`, if present, has the given dims as far as both are known, and makes them more precise.
///
/// # Errors
/// If ranks or extents contradict each other.
pub(crate) fn agree_all(
    view: &NodeView<'_>,
    i: usize,
    dims: &mut [&mut Dim],
    names: &[&str],
) -> Result<(), OpError> {
    if ranked(view, i, dims.len())?.is_some() {
        for (axis, (dim, name)) in dims.iter_mut().zip(names).enumerate() {
            agree(view, i, axis, dim, name)?;
        }
    }
    Ok(())
}

/// Checks that operand `i`, if present, has one element; a vector of one passes for a scalar, as it does everywhere.
///
/// # Errors
/// If it is known to have another number of elements.
pub(crate) fn one_element(view: &NodeView<'_>, i: usize) -> Result<(), OpError> {
    match view.dims(i) {
        Some(dims) if dims.len() > 1 || dims.iter().any(|d| d.known().is_some_and(|n| n != 1)) => {
            Err(shape_error(i, "a scalar", dims))
        }
        _ => Ok(()),
    }
}

/// The one number in operand `i`, if it is known.
///
/// # Errors
/// If the operand is known to have another number of elements.
pub(crate) fn known_scalar(view: &NodeView<'_>, i: usize) -> Result<Option<i64>, OpError> {
    if !view.has(i) {
        return Ok(None);
    }
    one_element(view, i)?;
    Ok(view.known_ints(i).and_then(|v| v.first().copied()))
}

/// Dims with a replaced dim.
pub(crate) fn with(dims: &[Dim], axis: usize, dim: Dim) -> Dims {
    dims.iter().enumerate().map(|(i, &d)| if i == axis { dim } else { d }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_do_not_fit_are_not_known() {
        assert_eq!(add(Dim::Known(u64::MAX), Dim::Known(1)), Dim::Unknown);
        assert_eq!(times(Dim::Known(u64::MAX), 2), Dim::Unknown);
        assert_eq!(extent(-1), Dim::Unknown);
        assert_eq!(extent(1 << 63), Dim::Unknown);
        assert_eq!(part(Dim::Known(7), 2), None);
        assert_eq!(part(Dim::Known(7), 0), None);
        assert_eq!(part(Dim::Unknown, 2), Some(Dim::Unknown));
        assert_eq!(product(&[Dim::Known(u64::MAX), Dim::Known(2)]), None);
    }
}
