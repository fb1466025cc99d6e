//! Values that come near an end of the range of a format on data, or lie far from 0.

use super::{Origin, SCHEMA};
use ampc_ir::DType;
use ampc_ir::convert::{max_finite, min_normal, unit_roundoff};
use ampc_passes::observed::{Observed, ObservedValue};
use serde::Deserialize;

/// The statistics that decide if a value comes near an end of a range, or lies far from 0.
pub(super) struct Observation<'a> {
    pub(super) origin: Origin,
    pub(super) name: &'a str,
    pub(super) path: &'a str,
    pub(super) slot: u32,
    /// The least number, infinities included; NaN if it is undefined.
    pub(super) min: f64,
    /// The largest number, infinities included; NaN if it is undefined.
    pub(super) max: f64,
    /// The largest finite magnitude.
    pub(super) max_abs: f64,
    /// True if all elements are finite.
    pub(super) is_finite: bool,
}

impl Observation<'_> {
    fn place(&self) -> Option<ObservedValue> {
        match self.origin {
            Origin::Input => Some(ObservedValue::Input(self.name.to_owned())),
            Origin::Node => Some(ObservedValue::Result { node: self.path.to_owned(), slot: self.slot }),
            Origin::Constant => None,
        }
    }

    /// The number that decides: the maximum if it is beyond `most`, else the finite number of largest magnitude, which
    /// counts as positive if an infinity hides its sign.
    fn number(&self, most: f64) -> f64 {
        if self.max.is_finite() && self.max > most {
            self.max
        } else if self.max < self.max_abs {
            -self.max_abs
        } else {
            self.max_abs
        }
    }
}

/// The range of a format, with a margin before both ends.
struct Within {
    least: f64,
    most: f64,
}

impl Within {
    fn of(format: DType, margin: f64) -> Within {
        let least = min_normal(format).unwrap_or(0.0);
        let has_range_of_f32 = Some(least) == min_normal(DType::F32);
        // Rounded operands may make a result larger than the result that was observed.
        let rounding = 1.0 + 4.0 * unit_roundoff(format).unwrap_or(0.0);
        let margin = if has_range_of_f32 { rounding } else { margin.max(rounding) };
        Within { least: least * margin, most: max_finite(format).unwrap_or(f64::INFINITY) / margin }
    }

    /// True for a number within the range, and for 0.
    fn has(&self, number: f64) -> bool {
        number == 0.0 || number.abs() <= self.most && number.abs() >= self.least
    }
}

/// The values that [`ModelStats::observed`](super::ModelStats::observed) gives.
pub(super) fn observed<'a>(
    tensors: impl Iterator<Item = Observation<'a>>,
    format: DType,
    margin: f64,
) -> Observed {
    let within = Within::of(format, margin);
    let (mut near, mut finite) = (Vec::new(), Vec::new());
    for tensor in tensors {
        let Some(place) = tensor.place() else { continue };
        if !within.has(tensor.number(within.most)) {
            near.push((place.clone(), tensor.number(within.most)));
        }
        if tensor.is_finite {
            finite.push((place, tensor.min, tensor.max));
        }
    }
    near.into_iter().collect::<Observed>().with_far_from_zero(finite)
}

/// The values that [`ModelStats::within`](super::ModelStats::within) gives.
pub(super) fn within<'a>(
    tensors: impl Iterator<Item = Observation<'a>>,
    format: DType,
    margin: f64,
) -> Observed {
    let within = Within::of(format, margin);
    let is_known = |tensor: &Observation<'_>| tensor.is_finite && tensor.max_abs > 0.0;
    let found = tensors.filter(|tensor| is_known(tensor) && within.has(tensor.max_abs));
    found.filter_map(|tensor| Some((tensor.place()?, tensor.number(within.most)))).collect()
}

/// A file of statistics that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum StatsError {
    /// It is not JSON of the schema.
    #[error("expected statistics of the schema {SCHEMA}: {0}")]
    Json(#[from] serde_json::Error),
    /// It has another schema.
    #[error("expected the schema {SCHEMA}, found {0:?}")]
    Schema(String),
    /// It has no batch, or no tensor.
    #[error(
        "expected statistics of at least one batch and tensor, found {batches} batches and {tensors} tensors"
    )]
    Empty {
        /// The number of batches.
        batches: u64,
        /// The number of tensors.
        tensors: usize,
    },
    /// Numbers that cannot be of one tensor.
    #[error(
        "tensor `{tensor}`: expected `min` up to `max`, and `max_abs` as the larger of their magnitudes if they are finite; found {min}, {max} and {max_abs}"
    )]
    Contradiction {
        /// The name of the tensor.
        tensor: String,
        /// The least number.
        min: f64,
        /// The largest number.
        max: f64,
        /// The largest magnitude.
        max_abs: f64,
    },
}

/// The schema of a document, which is read before the rest.
#[derive(Deserialize)]
struct Header {
    schema: String,
}

/// The statistics of a model, from the JSON that [`json`](super::json) writes.
#[derive(Debug, Deserialize)]
pub struct SavedStats {
    /// The number of batches that were run.
    pub batches: u64,
    /// The number of batches that were given.
    pub of_batches: u64,
    tensors: Vec<Row>,
}

/// The parts of a tensor that are read.
#[derive(Debug, Deserialize)]
struct Row {
    tensor: String,
    origin: Origin,
    path: String,
    result: u32,
    dtype: String,
    count: u64,
    nan: u64,
    infinite: u64,
    min: Option<Number>,
    max: Option<Number>,
    max_abs: Option<f64>,
}

impl Row {
    /// The least number; NaN if it is undefined.
    fn min(&self) -> f64 {
        self.min.as_ref().map_or(f64::NAN, Number::value)
    }

    /// The largest number; NaN if it is undefined.
    fn max(&self) -> f64 {
        self.max.as_ref().map_or(f64::NAN, Number::value)
    }

    /// True if the extremes can be those of one tensor. They are undefined together: without numbers, or if all are NaN.
    fn is_consistent(&self) -> bool {
        let (min, max) = (self.min(), self.max());
        let are_defined = self.min.is_some() && self.max.is_some();
        let largest = min.abs().max(max.abs());
        match self.max_abs {
            None => are_defined == largest.is_infinite() && self.min.is_some() == self.max.is_some(),
            Some(found) => {
                are_defined && found >= 0.0 && min <= max && (found == largest || largest.is_infinite())
            }
        }
    }

    fn is_float(&self) -> bool {
        self.dtype.parse::<DType>().is_ok_and(DType::is_float)
    }
}

/// A number, or the name of an infinity.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a number, or inf or -inf in quotes")]
enum Number {
    Finite(f64),
    Named(Infinity),
}

#[derive(Debug, Deserialize)]
enum Infinity {
    #[serde(rename = "inf")]
    Positive,
    #[serde(rename = "-inf")]
    Negative,
}

impl Number {
    fn value(&self) -> f64 {
        match self {
            Number::Finite(number) => *number,
            Number::Named(Infinity::Positive) => f64::INFINITY,
            Number::Named(Infinity::Negative) => f64::NEG_INFINITY,
        }
    }
}

impl SavedStats {
    /// Reads statistics.
    ///
    /// # Errors
    /// If the text is not JSON of the schema, or has no batch.
    pub fn read(text: &str) -> Result<SavedStats, StatsError> {
        let Header { schema } = serde_json::from_str(text)?;
        if schema != SCHEMA {
            return Err(StatsError::Schema(schema));
        }
        let stats: SavedStats = serde_json::from_str(text)?;
        let (batches, tensors) = (stats.batches, stats.tensors.len());
        if batches == 0 || tensors == 0 {
            return Err(StatsError::Empty { batches, tensors });
        }
        match stats.tensors.iter().find(|row| !row.is_consistent()) {
            Some(row) => Err(StatsError::Contradiction {
                tensor: row.tensor.clone(),
                min: row.min(),
                max: row.max(),
                max_abs: row.max_abs.unwrap_or(f64::NAN),
            }),
            None => Ok(stats),
        }
    }

    /// The names of the tensors of floats with NaN.
    pub fn with_nan(&self) -> Vec<&str> {
        let rows = self.tensors.iter().filter(|row| row.nan > 0 && row.is_float());
        rows.map(|row| row.tensor.as_str()).collect()
    }

    /// True if no tensor of floats has elements.
    pub fn is_empty(&self) -> bool {
        self.tensors.iter().all(|row| row.count == 0 || !row.is_float() || row.origin == Origin::Constant)
    }

    /// See [`ModelStats::observed`](super::ModelStats::observed).
    pub fn observed(&self, format: DType, margin: f64) -> Observed {
        observed(self.observations(), format, margin)
    }

    /// See [`ModelStats::within`](super::ModelStats::within).
    pub fn within(&self, format: DType, margin: f64) -> Observed {
        within(self.observations(), format, margin)
    }

    /// An input or result that a model does not have. If there is one, the statistics are about another model.
    pub fn unknown_in(&self, module: &ampc_ir::Module) -> Option<ObservedValue> {
        let places = self.observations().filter_map(|observation| observation.place());
        let all: Observed = places.map(|place| (place, 1.0)).collect();
        all.unknown_in(module).first().copied().cloned()
    }

    fn observations(&self) -> impl Iterator<Item = Observation<'_>> {
        let floats = self.tensors.iter().filter(|row| row.is_float());
        floats.map(|row| Observation {
            origin: row.origin,
            name: &row.tensor,
            path: &row.path,
            slot: row.result,
            min: row.min(),
            max: row.max(),
            max_abs: row.max_abs.unwrap_or(0.0),
            is_finite: row.nan == 0 && row.infinite == 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ModelStats, Numbers, TensorStats, json};
    use super::*;
    use ampc_runtime::HostTensor;

    fn stats(tensors: &[(Origin, &str, &[f32])]) -> ModelStats {
        let tensors = tensors.iter().map(|&(origin, name, numbers)| {
            let tensor = HostTensor::from_slice(&[numbers.len() as u64], numbers).unwrap();
            TensorStats {
                name: name.into(),
                origin,
                path: if origin == Origin::Node { format!("@{name}") } else { String::new() },
                op: (origin == Origin::Node).then(|| "Mul".into()),
                slot: 0,
                dtype: DType::F32,
                dims: Some(vec![Some(numbers.len() as u64)]),
                runs: 1,
                numbers: Numbers::of(&tensor.view()).unwrap(),
            }
        });
        ModelStats { batches: 1, tensors: tensors.collect() }
    }

    #[test]
    fn values_near_both_ends_are_found_with_their_signs() {
        let stats = stats(&[
            (Origin::Input, "large", &[-2.0, 16376.5]),
            (Origin::Input, "fits", &[-16376.0, 1e-9]),
            (Origin::Node, "low", &[-20000.0, 9999.0, f32::NEG_INFINITY]),
            (Origin::Node, "both", &[-60000.0, 19999.0]),
            (Origin::Node, "hidden", &[-20000.0, f32::INFINITY]),
            (Origin::Node, "small", &[2e-4, 0.0]),
            (Origin::Node, "zero", &[0.0, 0.0]),
            (Origin::Node, "nan", &[f32::NAN]),
            (Origin::Constant, "w", &[1e6]),
        ]);
        let found = stats.observed(DType::F16, 4.0);
        assert_eq!(found.near_ends().len(), 5, "{found}");
        let numbers: Vec<f64> = found.near_ends().map(|(_, number)| number).collect();
        assert_eq!(numbers, [16376.5, 19999.0, 20000.0, -20000.0, f64::from(2e-4f32)], "{found}");
        assert_eq!(stats.observed(DType::F16, 1.0), Observed::default());
        assert_eq!(stats.observed(DType::F16, 8.0).near_ends().len(), 6);
        assert_eq!(stats.observed(DType::BF16, 4.0), Observed::default());
        let saved = SavedStats::read(&json("m", &stats, 1)).unwrap();
        assert_eq!(saved.observed(DType::F16, 4.0), found);
    }

    #[test]
    fn values_far_from_zero_have_their_extremes() {
        let stats = stats(&[
            (Origin::Input, "kelvin", &[200.0, 340.0]),
            (Origin::Node, "negative", &[-3.5, -3.0]),
            (Origin::Node, "wide", &[1.0, 3.0]),
            (Origin::Node, "equal", &[5.0, 5.0]),
            (Origin::Node, "infinite", &[200.0, f32::INFINITY]),
            (Origin::Constant, "w", &[200.0, 201.0]),
        ]);
        let found = stats.observed(DType::BF16, 1.0);
        assert_eq!(found.to_string(), "%kelvin=200:340+@@negative:0=-3.5:-3");
        let saved = SavedStats::read(&json("m", &stats, 1)).unwrap();
        assert_eq!(saved.observed(DType::BF16, 1.0), found);
    }

    #[test]
    fn bf16_has_the_range_of_fp32() {
        let stats = stats(&[(Origin::Input, "x", &[3.0e38]), (Origin::Input, "y", &[3.4e38, 1.0])]);
        assert_eq!(stats.observed(DType::BF16, 4.0).near_ends().count(), 1);
    }

    #[test]
    fn other_files_are_refused() {
        let none = json("m", &ModelStats::default(), 1);
        let other = none.replace(SCHEMA, "ampc-stats/9");
        for (text, expected) in [
            ("{", "expected statistics"),
            (&none, "found 0 batches and 0 tensors"),
            (&other, "found \"ampc-stats/9\""),
        ] {
            let message = SavedStats::read(text).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
