//! How far a tensor is from the one it should be, and whether that is near enough.
//!
//! Floats are near if for every element
//!
//! ```text
//! |got − want|  ≤  abs + rel · |want| + of_max · max|want|
//! ```
//!
//! The three terms are the three ways in which two correct computations differ. A rounded result is off by a share
//! of itself (`rel`), below the normal range by a constant (`abs`). A sum is off by a share of what was summed,
//! which may be much larger than what is left of it, and the largest element is our measure of that (`of_max`).
//! A NaN must meet a NaN, an infinity the same infinity.
//! Integers, booleans and strings must be equal, whatever the tolerance.

use crate::float::Format;
use crate::host::{HostTensor, TensorRef};
use ampc_ir::DType;
use std::fmt;

/// How far apart floats may be: see the module's formula.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tolerance {
    /// Absolute part.
    pub abs: f64,
    /// Share of the wanted element.
    pub rel: f64,
    /// Share of the largest wanted element.
    pub of_max: f64,
}

impl Tolerance {
    /// Equal values (−0 equals 0).
    pub const EXACT: Tolerance = Tolerance { abs: 0.0, rel: 0.0, of_max: 0.0 };

    fn allows(&self, error: f64, want: f64, max_want: f64) -> bool {
        error <= self.abs + self.rel * want.abs() + self.of_max * max_want
    }
}

/// What [`compare`] found. Errors are of elements that are finite on both sides; all are 0 for strings.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Comparison {
    /// Elements compared; a complex element counts twice.
    pub elements: u64,
    /// Elements that are not near enough, disagreements on NaN and infinity included.
    pub mismatches: u64,
    /// The first of them.
    pub first_mismatch: Option<Mismatch>,
    /// Largest |got − want|.
    pub max_abs: f64,
    /// Largest |got − want| / |want|; infinite if a zero is wanted and something else is there.
    pub max_rel: f64,
    /// Largest |got − want| as a share of the largest |want|.
    pub max_of_max: f64,
    /// Mean |got − want| as a share of the mean |want|.
    pub mean_of_mean: f64,
    /// Largest |got − want| in units in the last place of `want` in the format of `got`; 0 for integers.
    pub max_ulp: f64,
    /// Elements of which exactly one is NaN.
    pub nan_disagreements: u64,
    /// Elements of which at least one is infinite, none is NaN, and which are not equal.
    pub inf_disagreements: u64,
}

/// An element that is not near enough.
#[derive(Clone, PartialEq, Debug)]
pub struct Mismatch {
    /// Its coordinates.
    pub at: Vec<u64>,
    /// What is there.
    pub got: String,
    /// What should be there.
    pub want: String,
}

/// Why two tensors cannot be compared element by element.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    /// The dims differ.
    #[error("expected dims {want:?}, found {got:?}")]
    Dims {
        /// What is there.
        got: Vec<u64>,
        /// What should be there.
        want: Vec<u64>,
    },
    /// The element types differ, and are not both real floats.
    #[error("expected elements of {want}, found {got}")]
    DTypes {
        /// What is there.
        got: DType,
        /// What should be there.
        want: DType,
    },
}

impl Comparison {
    /// Whether every element is near enough.
    pub fn passed(&self) -> bool {
        self.mismatches == 0
    }
}

/// One line: the verdict, then the errors.
impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.first_mismatch {
            None => write!(f, "all {} elements agree", self.elements)?,
            Some(first) => {
                let Mismatch { at, got, want } = first;
                write!(f, "{} of {} elements differ, ", self.mismatches, self.elements)?;
                write!(f, "the first at {at:?}: expected {want}, found {got}")?;
            }
        }
        write!(f, "; max |err| {:.3e}, of max {:.3e}, ", self.max_abs, self.max_of_max)?;
        write!(
            f,
            "elementwise {:.3e}, mean {:.3e}, {:.1} ulp",
            self.max_rel, self.mean_of_mean, self.max_ulp
        )?;
        match self.nan_disagreements + self.inf_disagreements {
            0 => Ok(()),
            n => write!(f, "; {n} disagree on being finite"),
        }
    }
}

/// Compares `got` with `want`, the reference. The element types are equal, or both are real floats: a
/// low-precision result may be held against one in a wider format.
///
/// # Errors
/// If dims differ, or element types do that cannot be compared. An empty tensor agrees with another.
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
        state.blocks(got, want, TensorRef::read_ints, State::int);
    } else if Format::of(dtypes.0).is_some() {
        state.max_want = largest(want);
        state.scale = if state.max_want > HUGE { 1.0 / HUGE } else { 1.0 };
        state.blocks(got, want, TensorRef::read_f64s, State::float);
    }
    Ok(state.finish())
}

/// Elements that are looked at at a time: both blocks stay in the first cache.
const BLOCK: usize = 1 << 10;

/// Sums of so large numbers, which are the largest of their tensor, could be larger than any f64: 2^900.
const HUGE: f64 = 8.452_712_498_170_644e270;

/// The largest magnitude of a finite element of a tensor of floats.
fn largest(tensor: &HostTensor) -> f64 {
    let mut block = [0.0; BLOCK];
    let (mut most, mut at) = (0.0, 0);
    loop {
        let read = tensor.view().read_f64s(at, &mut block);
        if read == 0 {
            return most;
        }
        let finite = block[..read].iter().map(|v| v.abs()).filter(|v| *v < f64::INFINITY);
        most = finite.fold(most, |most: f64, v| if v > most { v } else { most });
        at += read;
    }
}

/// The running sums of one comparison.
struct State<'a> {
    dims: &'a [u64],
    /// Comparisons per element: two for complex numbers.
    parts: u64,
    format: Option<Format>,
    tolerance: Tolerance,
    found: Comparison,
    max_want: f64,
    /// What the sums are of is multiplied by this, so that they are finite where the elements wanted are huge.
    scale: f64,
    sum_error: f64,
    sum_want: f64,
}

impl<'a> State<'a> {
    fn new(got: &HostTensor, want: &'a HostTensor, tolerance: Tolerance) -> State<'a> {
        let parts = if matches!(got.dtype(), DType::Complex64 | DType::Complex128) { 2 } else { 1 };
        State {
            dims: want.dims(),
            parts,
            format: Format::of(got.dtype()),
            tolerance,
            found: Comparison::default(),
            max_want: 0.0,
            scale: 1.0,
            sum_error: 0.0,
            sum_want: 0.0,
        }
    }

    /// Compares numbers block by block, so that element types are told apart once for each.
    fn blocks<T: Copy + Default>(
        &mut self,
        got: &'a HostTensor,
        want: &'a HostTensor,
        read: impl Fn(&TensorRef<'a>, usize, &mut [T]) -> usize,
        compare: impl Fn(&mut Self, T, T),
    ) {
        let (got, want) = (got.view(), want.view());
        let (mut a, mut b) = ([T::default(); BLOCK], [T::default(); BLOCK]);
        let mut at = 0;
        loop {
            let count = read(&got, at, &mut a).min(read(&want, at, &mut b));
            if count == 0 {
                return;
            }
            a[..count].iter().zip(&b[..count]).for_each(|(&a, &b)| compare(self, a, b));
            at += count;
        }
    }

    /// Counts an element; the texts are made for the first mismatch only.
    fn element(&mut self, agrees: bool, texts: impl FnOnce() -> (String, String)) {
        if !agrees {
            self.found.mismatches += 1;
            if self.found.first_mismatch.is_none() {
                let (got, want) = texts();
                let at = coordinates(self.found.elements / self.parts, self.dims);
                self.found.first_mismatch = Some(Mismatch { at, got, want });
            }
        }
        self.found.elements += 1;
    }

    fn string(&mut self, got: &[u8], want: &[u8]) {
        let text = |s: &[u8]| format!("{:?}", String::from_utf8_lossy(s));
        self.element(got == want, || (text(got), text(want)));
    }

    #[expect(clippy::cast_precision_loss, reason = "the verdict is exact; these are measures of the error")]
    fn int(&mut self, got: i128, want: i128) {
        self.error((got - want).unsigned_abs() as f64, want as f64);
        self.max_want = self.max_want.max(want.unsigned_abs() as f64);
        self.element(got == want, || (got.to_string(), want.to_string()));
    }

    fn float(&mut self, got: f64, want: f64) {
        let agrees = if got.is_finite() && want.is_finite() {
            let error = (got - want).abs();
            self.error(error, want);
            self.tolerance.allows(error, want, self.max_want)
        } else {
            let same = got == want || got.is_nan() && want.is_nan();
            let nan = got.is_nan() || want.is_nan();
            self.found.nan_disagreements += u64::from(!same && nan);
            self.found.inf_disagreements += u64::from(!same && !nan);
            same
        };
        self.element(agrees, || (format!("{got:?}"), format!("{want:?}")));
    }

    fn error(&mut self, error: f64, want: f64) {
        self.sum_want += want.abs() * self.scale;
        // Most elements of models that agree are equal, and then there is nothing to divide.
        if error == 0.0 {
            return;
        }
        self.sum_error += error * self.scale;
        self.found.max_abs = self.found.max_abs.max(error);
        self.found.max_rel = self.found.max_rel.max(share(error, want.abs()));
        if let Some(format) = self.format {
            self.found.max_ulp = self.found.max_ulp.max(error / format.spacing(want));
        }
    }

    fn finish(mut self) -> Comparison {
        self.found.max_of_max = share(self.found.max_abs, self.max_want);
        self.found.mean_of_mean = share(self.sum_error, self.sum_want);
        self.found
    }
}

/// `part / whole`, where nothing of nothing is nothing.
fn share(part: f64, whole: f64) -> f64 {
    if part == 0.0 { 0.0 } else { part / whole }
}

fn coordinates(mut index: u64, dims: &[u64]) -> Vec<u64> {
    let mut at: Vec<u64> = dims
        .iter()
        .rev()
        .map(|&dim| {
            let i = index % dim;
            index /= dim;
            i
        })
        .collect();
    at.reverse();
    at
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
        let first = Mismatch { at: vec![0], got: "1.5".to_owned(), want: "1.0".to_owned() };
        let expected = Comparison {
            elements: 4,
            mismatches: 2,
            first_mismatch: Some(first),
            max_abs: 1.0,
            max_rel: 0.5,
            max_of_max: 0.25,
            mean_of_mean: 1.5 / 7.0,
            max_ulp: 0.5 * 2f64.powi(52),
            ..Comparison::default()
        };
        assert_eq!(found, expected);
        assert_eq!(
            found.to_string(),
            "2 of 4 elements differ, the first at [0]: expected 1.0, found 1.5; max |err| 1.000e0, \
             of max 2.500e-1, elementwise 5.000e-1, mean 2.143e-1, 2251799813685248.0 ulp"
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
        assert_eq!(found.first_mismatch.map(|m| (m.at, m.got)), Some((vec![1], "NaN".to_owned())));
        assert_eq!((found.max_abs, found.mean_of_mean, found.max_rel, found.max_ulp), (0.0, 0.0, 0.0, 0.0));
        assert!(check(&[-0.0], &[0.0], Tolerance::EXACT).passed());
        assert_eq!(check(&[0.5], &[0.0], huge).max_rel, INF);
        assert_eq!(check(&[0.5], &[0.0], huge).max_of_max, INF);
        assert_eq!(check(&[-f64::MAX], &[f64::MAX], Tolerance::EXACT).mismatches, 1);
    }

    #[test]
    fn ulps_are_those_of_the_format_of_the_result() {
        let ulps =
            |got: HostTensor, want: HostTensor| compare(&got, &want, &Tolerance::EXACT).unwrap().max_ulp;
        let low = |v: f32| HostTensor::from_slice(&[1], &[f16::from_f32(v)]).unwrap();
        let brain = |v: f32| HostTensor::from_slice(&[1], &[bf16::from_f32(v)]).unwrap();
        let single = |v: f32| HostTensor::from_slice(&[1], &[v]).unwrap();
        assert_eq!(ulps(low(1.0 + 1.0 / 512.0), low(1.0)), 2.0);
        assert_eq!(ulps(brain(1.0 + 1.0 / 64.0), brain(1.0)), 2.0);
        assert_eq!(ulps(low(1.0), single(1.0 + 1.0 / 4096.0)), 0.25);
        assert_eq!(ulps(single(f32::from_bits(5)), single(0.0)), 5.0);
        assert_eq!(ulps(low(2.0f32.powi(-24)), low(0.0)), 1.0);
    }

    #[test]
    fn everything_else_is_exact() {
        let loose = Tolerance { abs: 1e9, rel: 1e9, of_max: 1e9 };
        let ints = |values: &[u64]| HostTensor::from_slice(&[1, 2], values).unwrap();
        let found = compare(&ints(&[7, u64::MAX]), &ints(&[7, u64::MAX - 1]), &loose).unwrap();
        assert_eq!((found.mismatches, found.max_abs, found.max_ulp), (1, 1.0, 0.0));
        let first = found.first_mismatch.unwrap();
        assert_eq!((first.at, first.got), (vec![0, 1], u64::MAX.to_string()));
        let flags = |bytes: &[u8]| HostTensor::from_bytes(DType::Bool, &[2], bytes).unwrap();
        assert_eq!(compare(&flags(&[0, 1]), &flags(&[1, 1]), &loose).unwrap().mismatches, 1);
        let words = |text: &str| HostTensor::from_strings(&[1], vec![text.as_bytes().into()]).unwrap();
        assert!(compare(&words("a"), &words("a"), &Tolerance::EXACT).unwrap().passed());
        let found = compare(&words("a"), &words("b"), &loose).unwrap();
        assert_eq!(found.first_mismatch.map(|m| (m.got, m.want)), Some(("\"a\"".into(), "\"b\"".into())));
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
        assert_eq!(empty, Comparison::default());
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
                prop_assert!(found.max_ulp <= 0.5, "{}", found);
            }
        }

        /// The mean of errors whose sum is larger than any number is one of them.
        #[test]
        fn means_do_not_overflow(error in 1e308..1.7e308) {
            let found = check(&[0.0, 0.0, 0.0], &[error, -error, error], Tolerance::EXACT);
            prop_assert!(found.max_abs == error);
            prop_assert!((found.mean_of_mean - 1.0).abs() < 1e-12);
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
