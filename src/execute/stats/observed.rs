//! Values that come near an end of the range of a format on data.

use super::{Origin, SCHEMA};
use ampc_ir::DType;
use ampc_ir::convert::{max_finite, min_normal};
use ampc_passes::observed::{Observed, ObservedValue};
use serde::Deserialize;

/// The statistics that decide if a value comes near an end of a range.
pub(super) struct Observation<'a> {
    pub(super) origin: Origin,
    pub(super) name: &'a str,
    pub(super) path: &'a str,
    pub(super) slot: u32,
    /// The largest number, infinities included; NaN if it is undefined.
    pub(super) max: f64,
    /// The largest finite magnitude.
    pub(super) max_abs: f64,
}

impl Observation<'_> {
    fn place(&self) -> Option<ObservedValue> {
        match self.origin {
            Origin::Input => Some(ObservedValue::Input(self.name.to_owned())),
            Origin::Node => Some(ObservedValue::Result { node: self.path.to_owned(), slot: self.slot }),
            Origin::Constant => None,
        }
    }

    /// The finite number of largest magnitude; positive if an infinity hides its sign.
    fn number(&self) -> f64 {
        if self.max < self.max_abs { -self.max_abs } else { self.max_abs }
    }
}

/// The values that [`ModelStats::observed`](super::ModelStats::observed) gives.
pub(super) fn near_ends<'a>(
    tensors: impl Iterator<Item = Observation<'a>>,
    format: DType,
    margin: f64,
) -> Observed {
    let least = min_normal(format).unwrap_or(0.0);
    let has_range_of_f32 = Some(least) == min_normal(DType::F32);
    let margin = if has_range_of_f32 { 1.0 } else { margin };
    let most = max_finite(format).unwrap_or(f64::INFINITY) / margin;
    let is_near = |number: f64| number != 0.0 && (number.abs() > most || number.abs() < least * margin);
    let found = tensors.filter(|tensor| is_near(tensor.number()));
    found.filter_map(|tensor| Some((tensor.place()?, tensor.number()))).collect()
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
    /// It has no batch.
    #[error("expected statistics of at least one batch, found none")]
    Empty,
}

/// The schema of a document, which is read before the rest.
#[derive(Deserialize)]
struct Header {
    schema: String,
}

/// The statistics of a model, from the JSON that [`json`](super::json) writes.
#[derive(Debug, Deserialize)]
pub struct SavedStats {
    batches: u64,
    tensors: Vec<Row>,
}

/// The parts of a tensor that are read.
#[derive(Debug, Deserialize)]
struct Row {
    tensor: String,
    origin: String,
    path: String,
    result: u32,
    max: Option<Number>,
    max_abs: Option<f64>,
    /// Present for floats.
    rounded: Option<serde::de::IgnoredAny>,
}

/// A number, or the name of an infinity.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Number {
    Finite(f64),
    Named(String),
}

impl Number {
    fn value(&self) -> f64 {
        match self {
            Number::Finite(number) => *number,
            Number::Named(name) => name.parse().unwrap_or(f64::NAN),
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
        if stats.batches == 0 { Err(StatsError::Empty) } else { Ok(stats) }
    }

    /// As [`ModelStats::observed`](super::ModelStats::observed).
    pub fn observed(&self, format: DType, margin: f64) -> Observed {
        near_ends(self.observations(), format, margin)
    }

    /// The first input or result that a model does not have. If there is one, the statistics are about another model.
    pub fn unknown_in(&self, module: &ampc_ir::Module) -> Option<ObservedValue> {
        let places = self.observations().filter_map(|observation| observation.place());
        places.map(|place| (place, 1.0)).collect::<Observed>().unknown_in(module).cloned()
    }

    fn observations(&self) -> impl Iterator<Item = Observation<'_>> {
        let floats = self.tensors.iter().filter(|row| row.rounded.is_some());
        floats.filter_map(move |row| {
            let origin = Origin::ALL.into_iter().find(|origin| origin.as_str() == row.origin)?;
            Some(Observation {
                origin,
                name: &row.tensor,
                path: &row.path,
                slot: row.result,
                max: row.max.as_ref().map_or(f64::NAN, Number::value),
                max_abs: row.max_abs.unwrap_or(0.0),
            })
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
            (Origin::Node, "low", &[-20000.0, 19999.0, f32::NEG_INFINITY]),
            (Origin::Node, "hidden", &[-20000.0, f32::INFINITY]),
            (Origin::Node, "small", &[2e-4, 0.0]),
            (Origin::Node, "zero", &[0.0, 0.0]),
            (Origin::Node, "nan", &[f32::NAN]),
            (Origin::Constant, "w", &[1e6]),
        ]);
        let found = stats.observed(DType::F16, 4.0);
        assert_eq!(found.len(), 4, "{found}");
        let numbers: Vec<f64> = found.iter().map(|(_, number)| number).collect();
        assert_eq!(numbers, [16376.5, 20000.0, -20000.0, f64::from(2e-4f32)], "{found}");
        assert_eq!(stats.observed(DType::F16, 1.0), Observed::default());
        assert_eq!(stats.observed(DType::F16, 8.0).len(), 5);
        assert_eq!(stats.observed(DType::BF16, 4.0), Observed::default());
        let saved = SavedStats::read(&json("m", &stats, 1)).unwrap();
        assert_eq!(saved.observed(DType::F16, 4.0), found);
    }

    #[test]
    fn bf16_has_the_range_of_fp32() {
        let stats = stats(&[(Origin::Input, "x", &[3.0e38]), (Origin::Input, "y", &[3.4e38, 1.0])]);
        assert_eq!(stats.observed(DType::BF16, 4.0).iter().count(), 1);
    }

    #[test]
    fn other_files_are_refused() {
        let none = json("m", &ModelStats::default(), 1);
        let other = none.replace(SCHEMA, "ampc-stats/9");
        for (text, expected) in
            [("{", "expected statistics"), (&none, "at least one batch"), (&other, "found \"ampc-stats/9\"")]
        {
            let message = SavedStats::read(text).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
