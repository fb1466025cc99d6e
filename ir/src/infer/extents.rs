//! Checked arithmetic on extents and elements: overflow gives unknown.

use super::inferred::Inferred;
use crate::int::Int;
use crate::ty::{Dim, Dims, Shape};
use crate::views::size::shape_error;
use crate::views::{MAX_INTS, NodeView, OpError, Part};

/// The product of extents; a single symbolic factor survives.
pub(super) fn product(dims: &[Dim]) -> Dim {
    if dims.contains(&Dim::Known(0)) {
        return Dim::Known(0);
    }
    let (mut known, mut rest) = (1u64, None);
    for dim in dims {
        match dim {
            Dim::Known(n) => match known.checked_mul(*n) {
                Some(n) => known = n,
                None => return Dim::Unknown,
            },
            other if rest.is_none() => rest = Some(*other),
            _ => return Dim::Unknown,
        }
    }
    match (known, rest) {
        (n, None) => Dim::Known(n),
        (1, Some(dim)) => dim,
        _ => Dim::Unknown,
    }
}

/// The sum of extents; a single symbolic summand survives.
pub(super) fn sum(dims: impl IntoIterator<Item = Dim>) -> Dim {
    let (mut known, mut rest) = (0u64, None);
    for dim in dims {
        match dim {
            Dim::Known(n) => match known.checked_add(n) {
                Some(n) => known = n,
                None => return Dim::Unknown,
            },
            other if rest.is_none() => rest = Some(other),
            _ => return Dim::Unknown,
        }
    }
    match (known, rest) {
        (n, None) => Dim::Known(n),
        (0, Some(dim)) => dim,
        _ => Dim::Unknown,
    }
}

/// An extent times a number.
pub(super) fn times(dim: Dim, factor: u64) -> Dim {
    product(&[dim, Dim::Known(factor)])
}

/// The shape that integers spell.
///
/// # Errors
/// If an extent is negative.
pub(super) fn shape_of_ints(ints: &[Int], part: &Part) -> Result<Shape, OpError> {
    match ints.iter().find(|n| n.known().is_some_and(|n| n < 0)) {
        Some(n) => Err(OpError {
            part: part.clone(),
            expected: "extents of 0 or more".into(),
            found: n.known().unwrap_or(0).to_string(),
        }),
        None => Ok(Shape::of(ints.iter().map(|n| n.dim()))),
    }
}

/// A shape of which only the rank is known, and that perhaps not.
pub(super) fn shape_of_rank(rank: Dim) -> Shape {
    match rank.known().filter(|&n| n <= MAX_INTS).and_then(|n| usize::try_from(n).ok()) {
        Some(rank) => Shape::of_rank(rank),
        None => Shape::unknown(),
    }
}

/// The number of elements of the list that operand `i` is; it has to be of rank 1.
///
/// # Errors
/// If its rank is known and another one.
pub(super) fn list_len(view: &NodeView<'_>, i: usize) -> Result<Dim, OpError> {
    match view.dims(i) {
        None => Ok(Dim::Unknown),
        Some([len]) => Ok(*len),
        Some(dims) => Err(shape_error(i, "a list", dims)),
    }
}

/// Gives result 0 the shape of operand `i`.
pub(super) fn same_shape(view: &NodeView<'_>, out: &mut Inferred, i: usize) {
    out.shape(0, view.shape(i));
}

/// Gives result 0 the elements of operand `i`.
pub(super) fn same_ints(view: &NodeView<'_>, out: &mut Inferred, i: usize) {
    out.ints = view.ints(i).map(std::borrow::Cow::into_owned);
}

/// The dims with the one at `axis` replaced.
pub(super) fn with_dim(dims: &[Dim], axis: usize, dim: Dim) -> Shape {
    let mut dims = Dims::from_slice(dims);
    dims[axis] = dim;
    Shape(Some(dims))
}

/// The more precise of two descriptions of the same extent.
///
/// # Errors
/// If they contradict each other.
pub(super) fn meet(a: Dim, b: Dim, operand: usize, what: &str, found: &[Dim]) -> Result<Dim, OpError> {
    a.meet(b).ok_or_else(|| {
        let expected = a.known().map_or_else(|| what.to_owned(), |n| format!("{what} of {n}"));
        shape_error(operand, expected, found)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_never_overflow() {
        assert_eq!(product(&[Dim::Known(1 << 40), Dim::Known(1 << 40)]), Dim::Unknown);
        assert_eq!(product(&[Dim::Known(u64::MAX), Dim::Known(0)]), Dim::Known(0));
        assert_eq!(product(&[Dim::Unknown, Dim::Known(0)]), Dim::Known(0));
        assert_eq!(product(&[Dim::Unknown, Dim::Known(2)]), Dim::Unknown);
        assert_eq!(product(&[]), Dim::Known(1));
        assert_eq!(sum([Dim::Known(u64::MAX), Dim::Known(1)]), Dim::Unknown);
        assert_eq!(shape_of_rank(Dim::Known(1 << 50)), Shape::unknown());
    }
}
