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
//! [`Tolerance`] says where its numbers come from. A NaN must meet a NaN, an infinity the same infinity.
//! Integers, booleans and strings must be equal, whatever the tolerance.

use crate::float::Format;
use crate::host::HostTensor;
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

    /// For a result that is the wanted value rounded once to nearest in the format of `dtype`: the unit roundoff,
    /// which is 2^-11 for f16, 2^-8 for bf16, 2^-24 for f32 and 2^-53 for f64 (IEEE 754-2019 §4.3.1), and below
    /// the normal range half the distance between subnormals. Exact for types that are not rounded.
    pub fn one_rounding(dtype: DType) -> Tolerance {
        match Format::of(dtype) {
            Some(f) => Tolerance { abs: f.least_spacing() / 2.0, rel: f.unit_roundoff(), of_max: 0.0 },
            None => Tolerance::EXACT,
        }
    }

    /// For the results of one operator from two implementations that both compute as documented.
    ///
    /// - Both round their result, perhaps to two sides of a tie: twice one rounding, one unit in the last place.
    /// - Both sum in f32 (in f64 where the result is f64) but in orders of their own. The error of a sum of n terms
    ///   grows as √n·u if the roundings are independent (Higham and Mary, "A new approach to probabilistic
    ///   rounding error analysis", SIAM J. Sci. Comput. 41(5), 2019), so two sums of n = 4096 terms are 2·64·u
    ///   apart: 2^-17 of the largest result for u = 2^-24, whatever the format of the result, as the sum is not
    ///   kept in it.
    ///
    /// Longer sums, and chains of operators, need a tolerance of their own.
    pub fn of(dtype: DType) -> Tolerance {
        let Some(format) = Format::of(dtype) else { return Tolerance::EXACT };
        let wide = matches!(dtype, DType::F64 | DType::Complex128);
        let accumulator = Format::of(if wide { DType::F64 } else { DType::F32 }).unwrap_or(format);
        Tolerance {
            abs: format.least_spacing(),
            rel: 2.0 * format.unit_roundoff(),
            of_max: 2.0 * 64.0 * accumulator.unit_roundoff(),
        }
    }

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
    /// Mean |got − want|.
    pub mean_abs: f64,
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
    let mut state = State::new(got, want);
    if let (Some(got), Some(want)) = (got.strings(), want.strings()) {
        for (a, b) in got.iter().zip(want) {
            let text = |s: &[u8]| format!("{:?}", String::from_utf8_lossy(s));
            state.element(a == b, || (text(a), text(b)));
        }
    } else if let (Some(got), Some(want)) = (got.ints(), want.ints()) {
        for (a, b) in got.zip(want) {
            state.int(a, b);
        }
    } else if let (Some(format), Ok(got), Ok(values)) = (Format::of(dtypes.0), got.f64s(), want.f64s()) {
        let finite = want.f64s().into_iter().flatten().filter(|v| v.is_finite());
        state.max_want = finite.fold(0.0, |max, v| v.abs().max(max));
        for (a, b) in got.zip(values) {
            state.float(a, b, format, tolerance);
        }
    }
    Ok(state.finish())
}

/// The running sums of one comparison.
struct State<'a> {
    dims: &'a [u64],
    /// Comparisons per element: two for complex numbers.
    parts: u64,
    found: Comparison,
    max_want: f64,
    sum_error: Sum,
    sum_want: Sum,
    finite: f64,
}

/// A sum of numbers that are not negative, which may be larger than any f64.
#[derive(Clone, Copy, Default)]
struct Sum {
    plain: f64,
    /// The sum of 2^-64 of each.
    scaled: f64,
}

impl Sum {
    const SCALE: f64 = 1.0 / (1u128 << 64) as f64;

    fn add(&mut self, number: f64) {
        self.plain += number;
        self.scaled += number * Sum::SCALE;
    }

    /// The share of another sum.
    fn of(self, whole: Sum) -> f64 {
        let overflows = self.plain.is_infinite() || whole.plain.is_infinite();
        if overflows { share(self.scaled, whole.scaled) } else { share(self.plain, whole.plain) }
    }
}

impl State<'_> {
    fn new<'a>(got: &HostTensor, want: &'a HostTensor) -> State<'a> {
        let parts = if matches!(got.dtype(), DType::Complex64 | DType::Complex128) { 2 } else { 1 };
        let found = Comparison::default();
        State {
            dims: want.dims(),
            parts,
            found,
            max_want: 0.0,
            sum_error: Sum::default(),
            sum_want: Sum::default(),
            finite: 0.0,
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

    #[expect(clippy::cast_precision_loss, reason = "the verdict is exact; these are measures of the error")]
    fn int(&mut self, got: i128, want: i128) {
        self.error((got - want).unsigned_abs() as f64, want as f64);
        self.max_want = self.max_want.max(want.unsigned_abs() as f64);
        self.element(got == want, || (got.to_string(), want.to_string()));
    }

    fn float(&mut self, got: f64, want: f64, format: Format, tolerance: &Tolerance) {
        let agrees = if got.is_finite() && want.is_finite() {
            let error = (got - want).abs();
            self.error(error, want);
            self.found.max_ulp = self.found.max_ulp.max(error / format.spacing(want));
            tolerance.allows(error, want, self.max_want)
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
        self.found.max_abs = self.found.max_abs.max(error);
        self.found.max_rel = self.found.max_rel.max(share(error, want.abs()));
        self.sum_error.add(error);
        self.sum_want.add(want.abs());
        self.finite += 1.0;
    }

    fn finish(mut self) -> Comparison {
        self.found.max_of_max = share(self.found.max_abs, self.max_want);
        let count = Sum { plain: self.finite, scaled: self.finite * Sum::SCALE };
        // No mean is more than the largest, but by rounding.
        self.found.mean_abs = self.sum_error.of(count).min(self.found.max_abs);
        self.found.mean_of_mean = self.sum_error.of(self.sum_want);
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
            mean_abs: 0.375,
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
        assert_eq!((found.max_abs, found.mean_abs, found.max_rel, found.max_ulp), (0.0, 0.0, 0.0, 0.0));
        assert!(check(&[-0.0], &[0.0], Tolerance::EXACT).passed());
        assert_eq!(check(&[0.5], &[0.0], huge).max_rel, INF);
        assert_eq!(check(&[0.5], &[0.0], huge).max_of_max, INF);
        assert_eq!(check(&[-f64::MAX], &[f64::MAX], Tolerance::of(DType::F64)).mismatches, 1);
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
        let found = compare(&got, &want, &Tolerance::of(DType::Complex64)).unwrap();
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

    #[test]
    fn the_numbers_are_those_of_the_formats() {
        let [half, brain, single] = [DType::F16, DType::BF16, DType::F32].map(Tolerance::one_rounding);
        assert_eq!((half.rel, half.abs), (2f64.powi(-11), 2f64.powi(-25)));
        assert_eq!((brain.rel, brain.abs), (2f64.powi(-8), 2f64.powi(-134)));
        assert_eq!((single.rel, single.of_max), (2f64.powi(-24), 0.0));
        let sums = [DType::F16, DType::BF16, DType::F32, DType::F64].map(|d| Tolerance::of(d).of_max);
        assert_eq!(sums, [-17, -17, -17, -46].map(|n| 2f64.powi(n)));
        assert_eq!(
            (Tolerance::of(DType::F16).rel, Tolerance::of(DType::I8)),
            (2f64.powi(-10), Tolerance::EXACT)
        );
    }

    /// Sums of 4096 products of numbers in [−1, 1), in f32 in two orders.
    #[test]
    fn sums_in_two_orders_are_within_the_tolerance() {
        let term = |row: u64, i: u64| {
            ampc_ir::random::uniform(row, 2 * i, 1.0) * ampc_ir::random::uniform(row, 2 * i + 1, 1.0)
        };
        let forward: Vec<f32> = (0..32).map(|row| (0..4096).map(|i| term(row, i)).sum()).collect();
        let backward: Vec<f32> = (0..32).map(|row| (0..4096).rev().map(|i| term(row, i)).sum()).collect();
        let tensor = |values: &[f32]| HostTensor::from_slice(&[32], values).unwrap();
        let (got, want) = (tensor(&forward), tensor(&backward));
        let found = compare(&got, &want, &Tolerance::of(DType::F32)).unwrap();
        assert!(found.passed(), "{found}");
        assert!(!compare(&got, &want, &Tolerance::one_rounding(DType::F32)).unwrap().passed());
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
                let found = compare(&got, &want, &Tolerance::one_rounding(got.dtype())).unwrap();
                prop_assert!(found.passed() && found.max_ulp <= 0.5, "{}", found);
            }
        }

        /// The mean of errors whose sum is larger than any number is one of them.
        #[test]
        fn means_do_not_overflow(error in 1e308..1.7e308) {
            let found = check(&[0.0, 0.0, 0.0], &[error, -error, error], Tolerance::of(DType::F64));
            prop_assert!(found.mean_abs <= found.max_abs && found.mean_abs > 0.99 * error);
            prop_assert!((found.mean_of_mean - 1.0).abs() < 1e-12);
        }

        #[test]
        fn measures_bound_each_other(pairs in prop::collection::vec((any::<f64>(), any::<f64>()), 0..20)) {
            let (got, want): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
            let found = check(&got, &want, Tolerance::of(DType::F64));
            prop_assert!(found.mean_abs <= found.max_abs);
            prop_assert!(found.max_of_max <= found.max_rel || found.max_abs == 0.0);
            prop_assert!(found.nan_disagreements + found.inf_disagreements <= found.mismatches);
            prop_assert_eq!(found.passed(), found.first_mismatch.is_none());
            prop_assert!(check(&got, &got, Tolerance::EXACT).passed());
        }
    }
}
