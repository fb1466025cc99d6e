//! Comparison of two values: tensors by [`compare`](ampc_runtime::compare()), lists elementwise.

use ampc_ir::DType;
use ampc_runtime::{Comparison, Data, Tolerance, compare};
use std::fmt;

/// Result of comparing two values.
#[derive(Clone, Debug, Default)]
pub struct Agreement {
    /// The errors. For a list: the sums of counts, the largest errors, and the bound of the tensor whose error is
    /// closest to its bound.
    pub found: Comparison,
    /// The reason why the values cannot be compared, in which case they do not agree.
    pub obstacle: Option<String>,
    /// For an output: true if a slice along an axis vanishes: all its elements are 0, and half of them or more, at least 4, are
    /// expected to be other numbers.
    pub has_vanished_slice: bool,
}

impl Agreement {
    /// True if every element is within the tolerance.
    pub fn passed(&self) -> bool {
        self.obstacle.is_none() && self.found.passed()
    }

    /// The largest error relative to the largest expected element; infinite if values cannot be compared, or differ
    /// in which elements are finite.
    pub fn error(&self) -> f64 {
        self.found.max_of_max
    }

    fn of_obstacle(obstacle: impl Into<String>) -> Agreement {
        let mut found = Comparison::default();
        found.no_number();
        Agreement { found, obstacle: Some(obstacle.into()), has_vanished_slice: false }
    }

    /// Combines two agreements.
    fn and(mut self, other: Agreement) -> Agreement {
        let (a, b) = (&mut self.found, other.found);
        // Each tensor has its own bound; the reported bound is that of the tensor closest to its bound.
        let is_first = a.elements == 0;
        if is_first || b.of_bound() > a.of_bound() {
            (a.held_to, a.max_want) = (b.held_to, b.max_want);
        }
        a.all_zero = b.all_zero && (is_first || a.all_zero);
        a.elements += b.elements;
        a.mismatches += b.mismatches;
        a.first_mismatch = a.first_mismatch.take().or(b.first_mismatch);
        a.max_abs = a.max_abs.max(b.max_abs);
        a.max_rel = a.max_rel.max(b.max_rel);
        a.max_of_max = a.max_of_max.max(b.max_of_max);
        a.mean_of_mean = a.mean_of_mean.max(b.mean_of_mean);
        a.max_ulp = a.max_ulp.into_iter().chain(b.max_ulp).reduce(f64::max);
        a.nan_disagreements += b.nan_disagreements;
        a.inf_disagreements += b.inf_disagreements;
        a.nan_in_both += b.nan_in_both;
        a.finite += b.finite;
        self.obstacle = self.obstacle.or(other.obstacle);
        self
    }
}

/// One line: the verdict and the errors.
impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.obstacle {
            Some(obstacle) => f.write_str(obstacle),
            None => self.found.fmt(f),
        }
    }
}

/// Compares a value with the expected value.
pub fn agree(got: &Data, want: &Data, tolerance: &Tolerance) -> Agreement {
    match (got, want) {
        (Data::Tensor(got), Data::Tensor(want)) => match compare(got, want, tolerance) {
            Ok(found) => Agreement { found, ..Agreement::default() },
            Err(error) => Agreement::of_obstacle(error.to_string()),
        },
        (Data::Sequence(got), Data::Sequence(want)) if got.items().len() == want.items().len() => {
            let items = got.items().iter().zip(want.items());
            items.map(|(g, w)| agree(g, w, tolerance)).fold(Agreement::default(), Agreement::and)
        }
        (Data::Sequence(got), Data::Sequence(want)) => Agreement::of_obstacle(format!(
            "expected a list of {}, found one of {}",
            want.items().len(),
            got.items().len()
        )),
        (Data::Optional(got), Data::Optional(want)) => match (&got.value, &want.value) {
            (Some(got), Some(want)) => agree(got, want, tolerance),
            (None, None) => Agreement::default(),
            (Some(_), None) => Agreement::of_obstacle("expected none, found a value"),
            (None, Some(_)) => Agreement::of_obstacle("expected a value, found none"),
        },
        (got, want) => Agreement::of_obstacle(format!("expected {}, found {}", kind(want), kind(got))),
    }
}

/// The least number of elements of a slice that can vanish. Fewer may be 0 by chance, such as results of Relu.
const LEAST_SLICE: usize = 4;

/// True if all elements of a slice along an axis are found to be 0, and half of them or more, at least 4, are expected to
/// be other numbers: a column in small units may vanish although its error is small beside the largest element.
pub(super) fn slice_vanishes(got: &Data, want: &Data) -> bool {
    let (Data::Tensor(got), Data::Tensor(want)) = (got, want) else { return false };
    if got.dims() != want.dims() {
        return false;
    }
    let elements = want.f64s().map_or(0, Iterator::count);
    let mut inner = elements;
    want.dims().iter().any(|&len| {
        let Ok(len @ 1..) = usize::try_from(len) else { return false };
        inner /= len;
        // Shorter slices cannot vanish.
        if elements / len < LEAST_SLICE {
            return false;
        }
        let (Ok(got), Ok(wanted)) = (got.f64s(), want.f64s()) else { return false };
        let mut slices = vec![Slice::default(); len];
        for (at, (got, want)) in got.zip(wanted).enumerate() {
            let slice = &mut slices[at / inner.max(1) % len];
            slice.elements += 1;
            slice.found += usize::from(got != 0.0);
            slice.expected += usize::from(want != 0.0);
        }
        slices.iter().any(Slice::vanishes)
    })
}

/// Counts of a slice of a tensor.
#[derive(Clone, Default)]
struct Slice {
    elements: usize,
    /// The elements found to be other than 0.
    found: usize,
    /// The elements expected to be other than 0.
    expected: usize,
}

impl Slice {
    fn vanishes(&self) -> bool {
        self.found == 0 && self.expected >= LEAST_SLICE && 2 * self.expected >= self.elements
    }
}

/// Like [`agree`], for values that must have the same element type.
pub fn agree_in_type(got: &Data, want: &Data, tolerance: &Tolerance) -> Agreement {
    match other_type(got, want) {
        Some((got, want)) => Agreement::of_obstacle(format!("expected elements of {want}, found {got}")),
        None => agree(got, want, tolerance),
    }
}

/// The first two element types that differ.
fn other_type(got: &Data, want: &Data) -> Option<(DType, DType)> {
    match (got, want) {
        (Data::Tensor(got), Data::Tensor(want)) => {
            (got.dtype() != want.dtype()).then_some((got.dtype(), want.dtype()))
        }
        (Data::Sequence(got), Data::Sequence(want)) => {
            got.items().iter().zip(want.items()).find_map(|(got, want)| other_type(got, want))
        }
        (Data::Optional(got), Data::Optional(want)) => {
            other_type(got.value.as_deref()?, want.value.as_deref()?)
        }
        _ => None,
    }
}

fn kind(data: &Data) -> &'static str {
    match data {
        Data::Tensor(_) => "a tensor",
        Data::Device(_) => "a tensor on a device",
        Data::Sequence(_) => "a list",
        Data::Optional(_) => "an optional",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ampc_runtime::HostTensor;
    use ampc_runtime::data::Maybe;
    use half::f16;

    /// A column of small numbers beside a column of large numbers vanishes in one tensor and not in the other.
    #[test]
    fn a_column_vanishes() {
        let of = |small: f32| {
            let rows: Vec<f32> = (0..4u8).flat_map(|row| [f32::from(row) + 1.0, small]).collect();
            Data::from(HostTensor::from_slice(&[4, 2], &rows).unwrap())
        };
        let (want, zero, rounded) = (of(1e-9), of(0.0), of(2e-9));
        assert!(slice_vanishes(&zero, &want));
        assert!(!slice_vanishes(&rounded, &want));
        assert!(!slice_vanishes(&zero, &zero));
        let of_dims =
            |dims: &[u64], numbers: &[f32]| Data::from(HostTensor::from_slice(dims, numbers).unwrap());
        let row = |small: f32| of_dims(&[2, 4], &[1.0, 2.0, 3.0, 4.0, small, small, small, small]);
        assert!(slice_vanishes(&row(0.0), &row(1e-9)), "along the first axis");
        let middle = |small: f32| {
            let pair = [1.0, 2.0, small, small];
            of_dims(&[2, 2, 2], &[pair, pair].concat())
        };
        assert!(slice_vanishes(&middle(0.0), &middle(1e-9)), "along the middle axis");
        let few = Data::from(HostTensor::from_slice(&[2, 2], &[1.0f32, 1e-9, 2.0, 1e-9]).unwrap());
        let none = Data::from(HostTensor::from_slice(&[2, 2], &[1.0f32, 0.0, 2.0, 0.0]).unwrap());
        assert!(!slice_vanishes(&none, &few), "two elements are too few");
    }

    #[test]
    fn a_stored_value_of_another_float_type_does_not_agree() {
        let half = Data::from(HostTensor::from_slice(&[1], &[f16::ONE]).unwrap());
        let single = Data::from(HostTensor::from_slice(&[1], &[1.0f32]).unwrap());
        let maybe = |value: &Data| {
            Data::Optional(Maybe { element: value.view().ty(), value: Some(Box::new(value.clone())) })
        };
        for (got, want) in [(single.clone(), half.clone()), (maybe(&single), maybe(&half))] {
            assert!(agree(&got, &want, &Tolerance::EXACT).passed());
            let found = agree_in_type(&got, &want, &Tolerance::EXACT);
            assert_eq!(found.obstacle.as_deref(), Some("expected elements of f16, found f32"));
        }
        assert!(agree_in_type(&single, &single, &Tolerance::EXACT).passed());
    }
}
