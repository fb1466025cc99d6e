//! The result of a comparison as JSON: schema `ampc-verify/1` of `docs/verify.md`.

use super::low_products::Excused;
use super::number::number;
use super::verify::{Compared, Lone, Verification};
use ampc_runtime::Tolerance;
use ampc_runtime::compare::Scalar;
use serde::{Serialize, Serializer};

/// The schema of [`VerifyReport`].
pub const SCHEMA: &str = "ampc-verify/1";

/// A comparison in its JSON form. Numbers that are not finite are the strings `inf`, `-inf` and `nan`.
#[derive(Clone, Debug, Serialize)]
pub struct VerifyReport {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The model.
    pub model: String,
    /// The other model, or the folder of test data.
    pub against: String,
    /// True if all outputs agree.
    pub passed: bool,
    /// True if the models are accepted: each output agrees, or is excused and `--accept-excused` was given.
    pub accepted: bool,
    /// Outputs beyond the tolerance for which low products alone cause a similar error, by draw; empty without
    /// `--accept-excused`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub excused: Vec<Excused>,
    /// The allowed distance of floats.
    pub tolerance: ToleranceReport,
    /// Description of each draw of random inputs; empty if the inputs were read.
    pub draws: Vec<String>,
    /// Draws on which the model cannot be computed, counted from 0.
    pub draws_without: Vec<usize>,
    /// The first value beyond the tolerance.
    pub first: Option<ValueReport>,
    /// The outputs.
    pub outputs: Vec<ValueReport>,
    /// All values that both models compute; empty for test data.
    pub values: Vec<ValueReport>,
    /// Values without a counterpart; `None` for test data.
    pub lone: Option<LoneReport>,
}

/// Values of a model without a counterpart in the other model.
#[derive(Clone, Debug, Serialize)]
pub struct LoneReport {
    /// Values of the model.
    pub values: LoneNames,
    /// Outputs of the other model.
    pub outputs: LoneNames,
}

/// The number of values, and the name of the first.
#[derive(Clone, Debug, Serialize)]
pub struct LoneNames {
    /// The number of values without a counterpart.
    pub count: usize,
    /// The total number.
    pub of: usize,
    /// The name of the first value.
    pub first: Option<String>,
}

impl LoneNames {
    fn new(lone: &Lone) -> LoneNames {
        let Lone { count, of, first } = lone.clone();
        LoneNames { count, of, first }
    }
}

/// A tolerance: |got − want| ≤ abs + rel · |want| + of_max · max|want|.
#[derive(Clone, Debug, Serialize)]
pub struct ToleranceReport {
    /// Absolute part.
    pub abs: f64,
    /// Relative to the expected element.
    pub rel: f64,
    /// Relative to the largest expected element.
    pub of_max: f64,
    /// The origin of the tolerance.
    pub reason: String,
}

impl ToleranceReport {
    /// A tolerance and its origin.
    pub fn new(tolerance: &Tolerance, reason: impl Into<String>) -> ToleranceReport {
        let Tolerance { abs, rel, of_max } = *tolerance;
        ToleranceReport { abs, rel, of_max, reason: reason.into() }
    }
}

/// A value and its errors.
#[derive(Clone, Debug, Serialize)]
pub struct ValueReport {
    /// Its name.
    pub value: String,
    /// The test-data folder that it was compared with.
    pub folder: Option<String>,
    /// The path of the node that produces it.
    pub node: Option<String>,
    /// The operator.
    pub op: Option<String>,
    /// The iterations of the loops around it.
    pub iterations: Vec<u64>,
    /// The draw of inputs of these errors, from 0.
    pub draw: usize,
    /// True if it is within the tolerance.
    pub passed: bool,
    /// The reason why the value cannot be compared.
    pub obstacle: Option<String>,
    /// The number of elements.
    pub elements: u64,
    /// The number of elements beyond the tolerance.
    pub mismatches: u64,
    /// Largest |got − want|. Like the other errors, it is infinite if an element is finite in one model only, or if
    /// the values cannot be compared.
    #[serde(serialize_with = "number")]
    pub max_abs: f64,
    /// Largest |got − want| / |want|.
    #[serde(serialize_with = "number")]
    pub max_rel: f64,
    /// Largest |got − want|, relative to the largest |want|.
    #[serde(serialize_with = "number")]
    pub max_of_max: f64,
    /// Largest |got − want| in units in the last place, of formats of at most 16 bits.
    #[serde(serialize_with = "optional")]
    pub max_ulp: Option<f64>,
    /// The largest |want|.
    #[serde(serialize_with = "number")]
    pub max_want: f64,
    /// True if all expected elements are 0.
    pub all_zero: bool,
    /// The bound on the error of each element, without the part relative to the element (`rel`); `None` if elements
    /// must be equal under every tolerance.
    #[serde(serialize_with = "optional")]
    pub bound: Option<f64>,
    /// The error of the value that rounding alone causes.
    #[serde(serialize_with = "number")]
    pub noise: f64,
    /// Elements that are NaN on exactly one side.
    pub nan_disagreements: u64,
    /// Elements that are infinite on one side and different on the other.
    pub inf_disagreements: u64,
    /// Elements that are NaN in both.
    pub nan_in_both: u64,
    /// Elements that are finite in both.
    pub finite: u64,
    /// The error relative to the largest element, minus the largest error of the node's operands.
    #[serde(serialize_with = "optional")]
    pub adds: Option<f64>,
    /// The first element beyond the tolerance.
    pub first_mismatch: Option<MismatchReport>,
}

/// An element beyond the tolerance.
#[derive(Clone, Debug, Serialize)]
pub struct MismatchReport {
    /// The coordinates of the element.
    pub at: Vec<u64>,
    /// The value found.
    #[serde(serialize_with = "scalar")]
    pub got: Scalar,
    /// The value expected.
    #[serde(serialize_with = "scalar")]
    pub want: Scalar,
}

impl ValueReport {
    /// A value of two models, or of a model and test data.
    pub fn of(compared: &Compared) -> ValueReport {
        let Compared { value, path, op, iterations, draw, agreement, noise, adds, .. } = compared;
        let text = |text: &String| (!text.is_empty()).then(|| text.clone());
        let found = &agreement.found;
        ValueReport {
            value: value.clone(),
            folder: None,
            node: text(path),
            op: text(op),
            iterations: iterations.clone(),
            draw: *draw,
            passed: agreement.passed(),
            obstacle: agreement.obstacle.clone(),
            elements: found.elements,
            mismatches: found.mismatches,
            max_abs: found.max_abs,
            max_rel: found.max_rel,
            max_of_max: found.max_of_max,
            max_ulp: found.max_ulp,
            max_want: found.max_want,
            all_zero: found.all_zero,
            bound: found.held_to.map(|_| found.bound()),
            noise: *noise,
            nan_disagreements: found.nan_disagreements,
            inf_disagreements: found.inf_disagreements,
            nan_in_both: found.nan_in_both,
            finite: found.finite,
            adds: *adds,
            first_mismatch: found.first_mismatch.as_ref().map(|m| MismatchReport {
                at: m.at.clone(),
                got: m.got.clone(),
                want: m.want.clone(),
            }),
        }
    }
}

impl VerifyReport {
    /// The report of a comparison of two models.
    pub fn new(model: &str, other: &str, found: &Verification) -> VerifyReport {
        let list = |values: &[Compared]| values.iter().map(ValueReport::of).collect();
        VerifyReport {
            schema: SCHEMA,
            model: model.to_owned(),
            against: other.to_owned(),
            accepted: found.passed(),
            excused: Vec::new(),
            passed: found.passed(),
            tolerance: ToleranceReport::new(&found.tolerance, found.reason.clone()),
            draws: found.draws.iter().filter(|about| !about.is_empty()).cloned().collect(),
            draws_without: found.without.clone(),
            first: found.first.as_ref().map(ValueReport::of),
            outputs: list(&found.outputs),
            values: list(&found.values),
            lone: Some(LoneReport {
                values: LoneNames::new(&found.lone_values),
                outputs: LoneNames::new(&found.lone_outputs),
            }),
        }
    }
}

fn scalar<S: Serializer>(scalar: &Scalar, serializer: S) -> Result<S::Ok, S::Error> {
    match scalar {
        Scalar::Float(float) => number(float, serializer),
        Scalar::Int(int) => serializer.serialize_i128(*int),
        Scalar::Text(text) => serializer.serialize_str(text),
    }
}

fn optional<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => number(value, serializer),
        None => serializer.serialize_none(),
    }
}
