//! The distance of a tensor from the expected tensor, and the verdict under a tolerance.
//!
//! Floats agree if for every element
//!
//! ```text
//! |got − want|  ≤  abs + rel · |want| + of_max · max|want|
//! ```
//!
//! The three terms are the three ways in which two correct computations differ. The error of a rounded result is
//! proportional to the result (`rel`), and constant below the normal range (`abs`). The error of a sum is
//! proportional to its terms, which may be much larger than their sum; the largest element estimates the terms
//! (`of_max`). NaN agrees only with NaN, and an infinity only with the same infinity. Integers, booleans and strings
//! must be equal, whatever the tolerance.

mod state;

use self::state::{HUGE, State, largest, share};
use crate::float::Format;
use crate::host::{HostTensor, TensorRef};
use ampc_ir::DType;
use std::fmt;

/// The allowed distance of floats: see the module's formula.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tolerance {
    /// Absolute part.
    pub abs: f64,
    /// Relative to the expected element.
    pub rel: f64,
    /// Relative to the largest expected element.
    pub of_max: f64,
}

impl Tolerance {
    /// Equal values (−0 equals 0).
    pub const EXACT: Tolerance = Tolerance { abs: 0.0, rel: 0.0, of_max: 0.0 };

    fn allows(&self, error: f64, want: f64, max_want: f64) -> bool {
        error <= self.abs + self.rel * want.abs() + self.of_max * max_want
    }
}

/// The result of [`compare`]. Errors are over elements that are finite on both sides. They are infinite if an element
/// is finite on one side only, because the error of such an element is undefined. All are 0 for strings.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Comparison {
    /// Elements compared; a complex element counts twice.
    pub elements: u64,
    /// Elements beyond the tolerance, including disagreements on NaN and infinity.
    pub mismatches: u64,
    /// The first mismatch.
    pub first_mismatch: Option<Mismatch>,
    /// Largest |got − want|.
    pub max_abs: f64,
    /// Largest |got − want| / |want|; infinite if the expected element is zero and the other is not.
    pub max_rel: f64,
    /// Largest |got − want|, relative to the largest |want|.
    pub max_of_max: f64,
    /// Mean |got − want|, relative to the mean |want|.
    pub mean_of_mean: f64,
    /// Largest |got − want| in units in the last place of `want`, in the format of `got`, if that has at most 16
    /// bits. In a wider format, a unit is far below the difference between any two ways to compute a value, so the
    /// number would be meaningless.
    pub max_ulp: Option<f64>,
    /// The largest |want| of finite elements.
    pub max_want: f64,
    /// The tolerance for floats; `None` for other elements, which must be equal.
    pub held_to: Option<Tolerance>,
    /// True if there are elements and all expected elements are 0, so that errors have no relative size.
    pub all_zero: bool,
    /// Elements that are NaN on exactly one side.
    pub nan_disagreements: u64,
    /// Elements that are infinite on at least one side, NaN on none, and not equal.
    pub inf_disagreements: u64,
    /// Elements that are NaN on both sides, which agree.
    pub nan_in_both: u64,
    /// Elements that are finite on both sides; all elements of integers, booleans and strings.
    pub finite: u64,
}

/// An element beyond the tolerance.
#[derive(Clone, PartialEq, Debug)]
pub struct Mismatch {
    /// The coordinates of the element.
    pub at: Vec<u64>,
    /// The value found.
    pub got: Scalar,
    /// The value expected.
    pub want: Scalar,
}

/// An element of any type.
#[derive(Clone, PartialEq, Debug)]
pub enum Scalar {
    /// A float of any format, or a part of a complex number.
    Float(f64),
    /// An integer; a boolean is 0 or 1.
    Int(i128),
    /// A string, as far as it is valid text.
    Text(String),
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Float(number) => write!(f, "{number:?}"),
            Scalar::Int(number) => write!(f, "{number}"),
            Scalar::Text(text) => write!(f, "{text:?}"),
        }
    }
}

/// Reason why two tensors cannot be compared element by element.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CompareError {
    /// The dims differ.
    #[error("expected dims {want:?}, found {got:?}")]
    Dims {
        /// The dims found.
        got: Vec<u64>,
        /// The dims expected.
        want: Vec<u64>,
    },
    /// The element types differ, and are not both real floats.
    #[error("expected elements of {want}, found {got}")]
    DTypes {
        /// The type found.
        got: DType,
        /// The type expected.
        want: DType,
    },
}

impl Comparison {
    /// True if every element is within the tolerance.
    pub fn passed(&self) -> bool {
        self.mismatches == 0
    }

    /// Marks the errors as undefined.
    pub fn no_number(&mut self) {
        for error in [&mut self.max_abs, &mut self.max_rel, &mut self.max_of_max, &mut self.mean_of_mean] {
            *error = f64::INFINITY;
        }
        self.max_ulp = self.max_ulp.map(|_| f64::INFINITY);
    }

    /// The bound without the part relative to the element: `abs + of_max · max|want|`.
    pub fn bound(&self) -> f64 {
        self.held_to.map_or(0.0, |held_to| held_to.abs + held_to.of_max * self.max_want)
    }

    /// Largest |got − want| relative to the [bound](Comparison::bound). It exceeds 1 if an element is beyond the
    /// bound, and is infinite if the bound is 0 and an element differs.
    pub fn of_bound(&self) -> f64 {
        if self.max_abs == f64::INFINITY { f64::INFINITY } else { share(self.max_abs, self.bound()) }
    }

    /// Elements that are finite on one side only, or infinite or NaN in different ways.
    pub fn not_finite(&self) -> u64 {
        self.nan_disagreements + self.inf_disagreements
    }

    /// The verdict, and the first element that differs.
    fn verdict(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = &self.first_mismatch else {
            return match self.elements {
                0 => f.write_str("no elements to compare"),
                1 if self.all_zero => f.write_str("the one element agrees (it is wanted zero)"),
                1 => write!(f, "the one element agrees{}", self.nans()),
                n => write!(f, "all {n} elements agree{}", self.nans()),
            };
        };
        match (self.mismatches, self.elements) {
            (1, 1) => f.write_str("the one element differs, ")?,
            (1, n) => write!(f, "1 of {n} elements differs{}, ", self.nans())?,
            (differ, n) => write!(f, "{differ} of {n} elements differ{}, the first ", self.nans())?,
        }
        write!(f, "at {:?}: expected {}, found {}", first.at, first.want, first.got)
    }

    /// The note that elements are NaN in both, or that all wanted elements are zero.
    fn nans(&self) -> String {
        match self.nan_in_both {
            0 if self.all_zero => " (all are wanted zero)".into(),
            0 => String::new(),
            1 => " (1 is NaN in both)".into(),
            n => format!(" ({n} are NaN in both)"),
        }
    }
}

/// One line: the verdict, then the errors that are numbers.
impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.verdict(f)?;
        match self.not_finite() {
            0 if self.finite == 0 => return Ok(()),
            0 => {}
            1 => return f.write_str("; 1 disagrees on being finite"),
            n => return write!(f, "; {n} disagree on being finite"),
        }
        write!(f, "; max |err| {:.3e}, of max {:.3e}, ", self.max_abs, self.max_of_max)?;
        write!(f, "elementwise {:.3e}, mean {:.3e}", self.max_rel, self.mean_of_mean)?;
        self.max_ulp.map_or(Ok(()), |ulp| write!(f, ", {ulp:.1} ulp"))
    }
}

/// The largest magnitude of a finite element, or 0 for a tensor without numbers.
pub fn largest_magnitude(tensor: &HostTensor) -> f64 {
    if Format::of(tensor.dtype()).is_some() { largest(tensor) } else { 0.0 }
}

/// Compares `got` with `want`, the reference. The element types are equal, or both are real floats: a low-precision
/// result may be compared with a result in a wider format.
///
/// # Errors
/// If dims differ, or element types differ and cannot be compared. Empty tensors agree.
pub fn compare(
    got: &HostTensor,
    want: &HostTensor,
    tolerance: &Tolerance,
) -> Result<Comparison, CompareError> {
    let dtypes = (got.dtype(), want.dtype());
    if dtypes.0 != dtypes.1 && !(dtypes.0.is_float() && dtypes.1.is_float()) {
        return Err(CompareError::DTypes { got: dtypes.0, want: dtypes.1 });
    }
    if got.dims() != want.dims() {
        return Err(CompareError::Dims { got: got.dims().to_vec(), want: want.dims().to_vec() });
    }
    let mut state = State::new(got, want, *tolerance);
    if let (Some(got), Some(want)) = (got.strings(), want.strings()) {
        got.iter().zip(want).for_each(|(a, b)| state.string(a, b));
    } else if got.view().ints().is_some() {
        state.blocks(got, want, TensorRef::read_ints, State::ints);
    } else if Format::of(dtypes.0).is_some() {
        state.max_want = largest(want);
        state.is_float = true;
        state.scale = if state.max_want > HUGE { 1.0 / HUGE } else { 1.0 };
        state.blocks(got, want, TensorRef::read_f64s, State::floats);
    }
    Ok(state.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};
    use proptest::prelude::*;

    const INF: f64 = f64::INFINITY;

    fn floats(values: &[f64]) -> HostTensor {
        HostTensor::from_slice(&[values.len() as u64], values).unwrap()
    }

    fn check(got: &[f64], want: &[f64], tolerance: Tolerance) -> Comparison {
        compare(&floats(got), &floats(want), &tolerance).unwrap()
    }

    #[test]
    fn every_measure_by_hand() {
        let found = check(&[1.5, -2.0, 3.0, 0.0], &[1.0, -2.0, 4.0, 0.0], Tolerance::EXACT);
        let first = Mismatch { at: vec![0], got: Scalar::Float(1.5), want: Scalar::Float(1.0) };
        let expected = Comparison {
            elements: 4,
            mismatches: 2,
            first_mismatch: Some(first),
            max_abs: 1.0,
            max_rel: 0.5,
            max_of_max: 0.25,
            mean_of_mean: 1.5 / 7.0,
            max_want: 4.0,
            held_to: Some(Tolerance::EXACT),
            finite: 4,
            ..Comparison::default()
        };
        assert_eq!(found, expected);
        assert_eq!(
            found.to_string(),
            "2 of 4 elements differ, the first at [0]: expected 1.0, found 1.5; max |err| 1.000e0, \
             of max 2.500e-1, elementwise 5.000e-1, mean 2.143e-1"
        );
    }

    #[test]
    fn each_term_of_the_tolerance_counts() {
        let passes =
            |abs, rel, of_max| check(&[8.5, 0.25], &[8.0, 0.0], Tolerance { abs, rel, of_max }).passed();
        assert!(passes(0.5, 0.0, 0.0) && !passes(0.49, 0.0, 0.0));
        assert!(!passes(0.0, 1.0, 0.0), "no share of a wanted zero is enough");
        assert!(passes(0.25, 0.03125, 0.0) && !passes(0.24, 0.03125, 0.0) && !passes(0.25, 0.031, 0.0));
        assert!(passes(0.0, 0.0, 0.0625) && !passes(0.0, 0.0, 0.062));
    }

    #[test]
    fn not_finite_elements_must_agree() {
        let nan = f64::NAN;
        let huge = Tolerance { abs: f64::MAX, rel: 1.0, of_max: 1.0 };
        let got = [nan, nan, 1.0, INF, INF, 1.0, -INF, INF, nan];
        let want = [nan, 1.0, nan, INF, -INF, INF, -INF, 1.0, INF];
        let found = check(&got, &want, huge);
        assert_eq!((found.nan_disagreements, found.inf_disagreements, found.mismatches), (3, 3, 6));
        assert_eq!((found.nan_in_both, found.finite), (1, 0));
        assert_eq!(
            found.to_string(),
            "6 of 9 elements differ (1 is NaN in both), the first at [1]: expected 1.0, found NaN; \
             6 disagree on being finite"
        );
        assert_eq!((found.max_abs, found.mean_of_mean, found.max_rel, found.max_ulp), (INF, INF, INF, None));
        assert!(check(&[-0.0], &[0.0], Tolerance::EXACT).passed());
        assert_eq!(check(&[0.5], &[0.0], huge).max_rel, INF);
        assert_eq!(check(&[0.5], &[0.0], huge).max_of_max, INF);
        assert_eq!(check(&[-f64::MAX], &[f64::MAX], Tolerance::EXACT).mismatches, 1);
    }

    #[test]
    fn what_was_not_compared_is_said() {
        let said = |values: &[f64]| check(values, values, Tolerance::EXACT).to_string();
        assert_eq!(said(&[]), "no elements to compare");
        assert_eq!(said(&[f64::NAN, f64::NAN]), "all 2 elements agree (2 are NaN in both)");
        assert!(said(&[f64::NAN]).starts_with("the one element agrees (1 is NaN in both)"));
        assert!(said(&[f64::NAN, 1.0]).starts_with("all 2 elements agree (1 is NaN in both); max |err| 0"));
        let found = check(&[1.0, 2.0], &[1.0, 3.0], Tolerance::EXACT).to_string();
        assert!(
            found.starts_with("1 of 2 elements differs, at [1]: expected 3.0, found 2.0; max"),
            "{found}"
        );
    }

    #[test]
    fn the_bound_is_a_share_of_the_largest_and_zeros_are_said() {
        let tolerance = Tolerance { abs: 0.5, rel: 0.0, of_max: 0.25 };
        let found = check(&[3.0, -8.0], &[4.0, -8.0], tolerance);
        assert_eq!((found.max_want, found.bound(), found.of_bound()), (8.0, 2.5, 0.4));
        let zeros = check(&[0.0, 0.5], &[0.0, -0.0], tolerance);
        assert_eq!((zeros.all_zero, zeros.bound(), zeros.passed()), (true, 0.5, true));
        assert!(zeros.to_string().starts_with("all 2 elements agree (all are wanted zero); max"), "{zeros}");
        let one = check(&[0.0], &[0.0], tolerance).to_string();
        assert!(one.starts_with("the one element agrees (it is wanted zero); max"), "{one}");
        assert_eq!(check(&[0.0], &[0.0], Tolerance::EXACT).of_bound(), 0.0);
        assert_eq!(check(&[0.5], &[0.0], Tolerance::EXACT).of_bound(), INF);
        assert!(!check(&[], &[], tolerance).all_zero && !check(&[0.0], &[INF], tolerance).all_zero);
        assert!(!check(&[0.0], &[f64::NAN], tolerance).all_zero);
    }

    #[test]
    fn ulps_are_those_of_the_format_of_the_result() {
        let ulps =
            |got: HostTensor, want: HostTensor| compare(&got, &want, &Tolerance::EXACT).unwrap().max_ulp;
        let low = |v: f32| HostTensor::from_slice(&[1], &[f16::from_f32(v)]).unwrap();
        let brain = |v: f32| HostTensor::from_slice(&[1], &[bf16::from_f32(v)]).unwrap();
        let single = |v: f32| HostTensor::from_slice(&[1], &[v]).unwrap();
        assert_eq!(ulps(low(1.0 + 1.0 / 512.0), low(1.0)), Some(2.0));
        assert_eq!(ulps(brain(1.0 + 1.0 / 64.0), brain(1.0)), Some(2.0));
        assert_eq!(ulps(low(1.0), single(1.0 + 1.0 / 4096.0)), Some(0.25));
        assert_eq!(ulps(low(2.0f32.powi(-24)), low(0.0)), Some(1.0));
        assert_eq!(ulps(low(f32::INFINITY), low(0.0)), Some(INF));
        assert_eq!(ulps(single(f32::from_bits(5)), single(0.0)), None, "of wider formats they say nothing");
    }

    #[test]
    fn everything_else_is_exact() {
        let loose = Tolerance { abs: 1e9, rel: 1e9, of_max: 1e9 };
        let ints = |values: &[u64]| HostTensor::from_slice(&[1, 2], values).unwrap();
        let found = compare(&ints(&[7, u64::MAX]), &ints(&[7, u64::MAX - 1]), &loose).unwrap();
        assert_eq!((found.mismatches, found.max_abs, found.max_ulp), (1, 1.0, None));
        let first = found.first_mismatch.unwrap();
        assert_eq!((first.at, first.got), (vec![0, 1], Scalar::Int(u64::MAX.into())));
        let flags = |bytes: &[u8]| HostTensor::from_bytes(DType::Bool, &[2], bytes).unwrap();
        assert_eq!(compare(&flags(&[0, 1]), &flags(&[1, 1]), &loose).unwrap().mismatches, 1);
        let words = |text: &str| HostTensor::from_strings(&[1], vec![text.as_bytes().into()]).unwrap();
        assert!(compare(&words("a"), &words("a"), &Tolerance::EXACT).unwrap().passed());
        let found = compare(&words("a"), &words("b"), &loose).unwrap();
        let of = |text: &str| Scalar::Text(text.into());
        assert_eq!(found.first_mismatch.map(|m| (m.got, m.want)), Some((of("a"), of("b"))));
    }

    #[test]
    fn complex_numbers_are_two_floats_at_one_place() {
        let pairs = |bytes: &[f32]| {
            HostTensor::from_bytes(DType::Complex64, &[2], bytemuck::cast_slice(bytes)).unwrap()
        };
        let (got, want) = (pairs(&[1.0, 2.0, 3.0, 5.0]), pairs(&[1.0, 2.0, 3.0, 4.0]));
        let found = compare(&got, &want, &Tolerance::EXACT).unwrap();
        assert_eq!((found.elements, found.mismatches, found.max_abs), (4, 1, 1.0));
        assert_eq!(found.first_mismatch.unwrap().at, [1]);
    }

    #[test]
    fn kinds_and_shapes_must_match() {
        let of = |dtype, dims: &[u64]| HostTensor::zeros(dtype, dims).unwrap();
        let refused = |a, b| compare(&a, &b, &Tolerance::EXACT).unwrap_err().to_string();
        assert_eq!(
            refused(of(DType::F16, &[2]), of(DType::I32, &[2])),
            "expected elements of i32, found f16"
        );
        assert_eq!(
            refused(of(DType::I32, &[2]), of(DType::I64, &[2])),
            "expected elements of i64, found i32"
        );
        assert_eq!(refused(of(DType::F16, &[2, 1]), of(DType::F16, &[2])), "expected dims [2], found [2, 1]");
        let empty = compare(&of(DType::F16, &[0]), &of(DType::F32, &[0]), &Tolerance::EXACT).unwrap();
        assert_eq!(
            empty,
            Comparison { max_ulp: Some(0.0), held_to: Some(Tolerance::EXACT), ..Comparison::default() }
        );
    }

    #[test]
    fn every_type_can_be_compared() {
        for &dtype in DType::ALL {
            let zeros = HostTensor::zeros(dtype, &[3]).unwrap();
            let found = compare(&zeros, &zeros, &Tolerance::EXACT).unwrap();
            let expected = if matches!(dtype, DType::Complex64 | DType::Complex128) { 6 } else { 3 };
            assert_eq!((found.elements, found.mismatches), (expected, 0), "{dtype}");
        }
    }

    proptest! {
        #[test]
        fn one_rounding_is_one_rounding(values in prop::collection::vec(-60000f32..60000.0, 1..20), tiny: bool) {
            let scale = if tiny { 1e-9 } else { 1.0 };
            let values: Vec<f32> = values.iter().map(|v| v * scale).collect();
            let dims = [values.len() as u64];
            let want = HostTensor::from_slice(&dims, &values).unwrap();
            let half: Vec<f16> = values.iter().map(|&v| f16::from_f32(v)).collect();
            let brain: Vec<bf16> = values.iter().map(|&v| bf16::from_f32(v)).collect();
            for got in [HostTensor::from_slice(&dims, &half).unwrap(), HostTensor::from_slice(&dims, &brain).unwrap()] {
                let found = compare(&got, &want, &Tolerance::EXACT).unwrap();
                prop_assert!(found.max_ulp.is_some_and(|ulp| ulp <= 0.5), "{}", found);
            }
        }

        /// The mean of errors is finite even if their sum overflows.
        #[test]
        fn means_do_not_overflow(error in 1e308..1.7e308) {
            let found = check(&[0.0, 0.0, 0.0], &[error, -error, error], Tolerance::EXACT);
            prop_assert!(found.max_abs == error);
            prop_assert!((found.mean_of_mean - 1.0).abs() < 1e-12);
        }

        /// A block whose elements agree is summed up as a whole.
        #[test]
        fn blocks_measure_what_elements_do(
            pairs in prop::collection::vec((-1e3f32..1e3, -1e-3f32..1e-3), 0..40),
            single: bool,
        ) {
            let (got, want): (Vec<f32>, Vec<f32>) = pairs.iter().map(|(v, e)| (v + e, *v)).unzip();
            let tensor = |values: &[f32]| match single {
                false => floats(&values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>()),
                true => HostTensor::from_slice(&[values.len() as u64], values).unwrap(),
            };
            let (got, want) = (tensor(&got), tensor(&want));
            let loose = Tolerance { abs: 1.0, rel: 0.0, of_max: 0.0 };
            let found = compare(&got, &want, &loose).unwrap();
            let mut state = State::new(&got, &want, loose);
            (state.max_want, state.is_float) = (largest(&want), true);
            got.f64s().unwrap().zip(want.f64s().unwrap()).for_each(|(g, w)| state.float(g, w));
            let each = state.finish();
            prop_assert!((found.mean_of_mean - each.mean_of_mean).abs() <= 1e-12 * each.mean_of_mean);
            prop_assert_eq!(Comparison { mean_of_mean: 0.0, ..found }, Comparison { mean_of_mean: 0.0, ..each });
        }

        #[test]
        fn measures_bound_each_other(pairs in prop::collection::vec((any::<f64>(), any::<f64>()), 0..20)) {
            let (got, want): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
            let found = check(&got, &want, Tolerance::EXACT);
            prop_assert!(!found.mean_of_mean.is_nan());
            prop_assert!(found.max_of_max <= found.max_rel || found.max_abs == 0.0);
            prop_assert!(found.nan_disagreements + found.inf_disagreements <= found.mismatches);
            prop_assert_eq!(found.passed(), found.first_mismatch.is_none());
            prop_assert!(check(&got, &got, Tolerance::EXACT).passed());
        }
    }
}
