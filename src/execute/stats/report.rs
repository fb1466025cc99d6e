//! Statistics as JSON, schema `ampc-stats/1` of `docs/stats.md`, and as CSV.

use super::super::number::number;
use super::{FORMATS, ModelStats, Numbers, Rounded, TensorStats};
use ampc_ir::DType;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// The schema of [`json`].
pub const SCHEMA: &str = "ampc-stats/1";

/// The statistics of a model.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    model: &'a str,
    batches: u64,
    /// The number of batches that were given; more than `batches` if the run was interrupted.
    of_batches: u64,
    tensors: Vec<Row<'a>>,
}

/// The statistics of a tensor.
#[derive(Serialize)]
struct Row<'a> {
    tensor: &'a str,
    origin: &'static str,
    path: &'a str,
    op: Option<&'a str>,
    result: u32,
    dtype: String,
    dims: Option<&'a [Option<u64>]>,
    runs: u64,
    count: u64,
    zeros: u64,
    nan: u64,
    infinite: u64,
    #[serde(serialize_with = "maybe")]
    min: Option<f64>,
    #[serde(serialize_with = "maybe")]
    max: Option<f64>,
    #[serde(serialize_with = "maybe")]
    max_abs: Option<f64>,
    #[serde(serialize_with = "maybe")]
    min_abs_nonzero: Option<f64>,
    exponents: Exponents,
    #[serde(skip_serializing_if = "Option::is_none")]
    rounded: Option<BTreeMap<String, RoundedRow>>,
}

/// A histogram of exponents: the count of the exponent `first`, of `first + 1`, and so on.
#[derive(Serialize, Debug, PartialEq)]
struct Exponents {
    first: Option<i32>,
    counts: Vec<u64>,
}

/// The effect of rounding to a format.
#[derive(Serialize)]
struct RoundedRow {
    beyond: u64,
    overflow: u64,
    below_normal: u64,
    below_subnormal: u64,
    flushed: u64,
    max_relative_error: f32,
}

/// The numbers of a tensor that may be undefined.
struct Extremes {
    min: Option<f64>,
    max: Option<f64>,
    max_abs: Option<f64>,
    min_abs_nonzero: Option<f64>,
}

impl Extremes {
    /// The minimum and maximum are undefined if all numbers are NaN, the largest magnitude without finite numbers, the
    /// smallest without finite numbers other than 0.
    fn of(numbers: &Numbers) -> Extremes {
        let has_range = numbers.count > numbers.nan;
        Extremes {
            min: has_range.then_some(numbers.min),
            max: has_range.then_some(numbers.max),
            max_abs: (numbers.finite() > 0).then_some(numbers.max_abs),
            min_abs_nonzero: (numbers.finite() > numbers.zeros).then_some(numbers.min_abs),
        }
    }
}

fn maybe<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => number(value, serializer),
        None => serializer.serialize_none(),
    }
}

fn exponents(numbers: &Numbers) -> Exponents {
    let ends = numbers.exponents.keys().next().zip(numbers.exponents.keys().next_back());
    let counts = ends.map(|(&first, &last)| {
        (first..=last).map(|exponent| numbers.exponents.get(&exponent).copied().unwrap_or(0)).collect()
    });
    Exponents { first: ends.map(|(&first, _)| first), counts: counts.unwrap_or_default() }
}

fn rounded(rounded: &Rounded) -> RoundedRow {
    let Rounded { beyond, overflow, below_normal, below_subnormal, flushed, max_relative_error } = *rounded;
    RoundedRow { beyond, overflow, below_normal, below_subnormal, flushed, max_relative_error }
}

fn row(tensor: &TensorStats) -> Row<'_> {
    let numbers = &tensor.numbers;
    let Extremes { min, max, max_abs, min_abs_nonzero } = Extremes::of(numbers);
    let formats = FORMATS.iter().map(|format| format.to_string()).zip(numbers.rounded.iter().map(rounded));
    Row {
        tensor: &tensor.name,
        origin: tensor.origin.as_str(),
        path: &tensor.path,
        op: tensor.op.as_deref(),
        result: tensor.slot,
        dtype: tensor.dtype.to_string(),
        dims: tensor.dims.as_deref(),
        runs: tensor.runs,
        count: numbers.count,
        zeros: numbers.zeros,
        nan: numbers.nan,
        infinite: numbers.infinite,
        min,
        max,
        max_abs,
        min_abs_nonzero,
        exponents: exponents(numbers),
        rounded: is_float(tensor.dtype).then(|| formats.collect()),
    }
}

/// True if the elements are floats or complex numbers, so that rounding them is measured.
fn is_float(dtype: DType) -> bool {
    ampc_runtime::float::Format::of(dtype).is_some()
}

/// The statistics of a model as JSON, with a newline at the end. Numbers that are not finite are the strings `inf` and
/// `-inf`; undefined numbers are `null`.
pub fn json(model: &str, stats: &ModelStats, of_batches: u64) -> String {
    let tensors = stats.tensors.iter().map(row).collect();
    let document = Document { schema: SCHEMA, model, batches: stats.batches, of_batches, tensors };
    let text = serde_json::to_string(&document).expect("keys are strings, and numbers are finite or text");
    // A tensor per line: the histograms would take a line per number.
    let text =
        text.replacen("\"tensors\":[", "\"tensors\":[\n", 1).replace("},{\"tensor\":", "},\n{\"tensor\":");
    format!("{}\n", ampc_ir::text::escape_hidden_in_json(&text))
}

/// The columns of [`csv`] before those of the formats.
const COLUMNS: [&str; 16] = [
    "tensor",
    "origin",
    "path",
    "op",
    "dtype",
    "dims",
    "runs",
    "count",
    "zeros",
    "nan",
    "infinite",
    "min",
    "max",
    "max_abs",
    "min_abs_nonzero",
    "exponents",
];

/// The statistics of a model as CSV (RFC 4180): a line of names, and a line per tensor.
/// Dims are separated by `x`, with `?` for a dim that differs between runs, and `scalar` for none. Exponents are `first:count,count…`.
/// Undefined numbers are empty.
pub fn csv(stats: &ModelStats) -> String {
    let of_formats = FORMATS.iter().flat_map(|format| {
        let columns =
            ["beyond", "overflow", "below_normal", "below_subnormal", "flushed", "max_relative_error"];
        columns.map(|column| format!("{format}_{column}"))
    });
    let names = COLUMNS.iter().map(|&name| name.to_owned()).chain(of_formats);
    let mut text = line(names);
    for tensor in &stats.tensors {
        text += &line(cells(tensor));
    }
    text
}

fn cells(tensor: &TensorStats) -> Vec<String> {
    let numbers = &tensor.numbers;
    let Extremes { min, max, max_abs, min_abs_nonzero } = Extremes::of(numbers);
    let maybe = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:?}"));
    let dims = tensor.dims.as_ref().map_or_else(String::new, |dims| {
        let dims: Vec<String> =
            dims.iter().map(|dim| dim.map_or_else(|| "?".into(), |dim| dim.to_string())).collect();
        if dims.is_empty() { "scalar".into() } else { dims.join("x") }
    });
    let Exponents { first, counts } = exponents(numbers);
    let counts: Vec<String> = counts.iter().map(u64::to_string).collect();
    let histogram = first.map_or_else(String::new, |first| format!("{first}:{}", counts.join(",")));
    let mut cells = vec![
        tensor.name.clone(),
        tensor.origin.as_str().to_owned(),
        tensor.path.clone(),
        tensor.op.clone().unwrap_or_default(),
        tensor.dtype.to_string(),
        dims,
    ];
    let counts = [tensor.runs, numbers.count, numbers.zeros, numbers.nan, numbers.infinite];
    cells.extend(counts.map(|count| count.to_string()));
    cells.extend([min, max, max_abs, min_abs_nonzero].map(maybe));
    cells.push(histogram);
    for rounded in &numbers.rounded {
        if is_float(tensor.dtype) {
            let Rounded { beyond, overflow, below_normal, below_subnormal, flushed, .. } = *rounded;
            cells.extend(
                [beyond, overflow, below_normal, below_subnormal, flushed].map(|count| count.to_string()),
            );
            cells.push(format!("{:?}", rounded.max_relative_error));
        } else {
            cells.extend([(); 6].map(|()| String::new()));
        }
    }
    cells
}

/// A line of CSV.
fn line(cells: impl IntoIterator<Item = String>) -> String {
    let quoted = |cell: String| match cell.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell,
    };
    let cells: Vec<String> = cells.into_iter().map(quoted).collect();
    cells.join(",") + "\r\n"
}

#[cfg(test)]
mod tests {
    use super::super::Origin;
    use super::*;
    use ampc_runtime::HostTensor;

    fn stats(name: &str, numbers: &[f32]) -> ModelStats {
        let tensor = HostTensor::from_slice(&[numbers.len() as u64], numbers).unwrap();
        let tensor = TensorStats {
            name: name.into(),
            origin: Origin::Node,
            path: "block/fc".into(),
            op: Some("Gemm".into()),
            slot: 0,
            dtype: DType::F32,
            dims: Some(vec![Some(2), None]),
            runs: 2,
            numbers: Numbers::of(&tensor.view()).unwrap(),
        };
        ModelStats { batches: 2, tensors: vec![tensor] }
    }

    #[test]
    fn a_tensor_as_json() {
        let text = json("m.onnx", &stats("y", &[0.5, -3.0, 70000.0, f32::INFINITY]), 3);
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&document["schema"], &document["of_batches"]), (&SCHEMA.into(), &3.into()));
        let row = &document["tensors"][0];
        assert_eq!(
            (&row["min"], &row["max"], &row["max_abs"]),
            (&(-3.0).into(), &"inf".into(), &70000.0.into())
        );
        assert_eq!(row["dims"], serde_json::json!([2, null]));
        assert_eq!(row["exponents"]["first"], -1);
        assert_eq!(row["exponents"]["counts"].as_array().unwrap().len(), 18);
        assert_eq!(row["rounded"]["f16"]["overflow"], 1);
        let empty: serde_json::Value = serde_json::from_str(&json("m", &stats("y", &[]), 2)).unwrap();
        assert_eq!(empty["tensors"][0]["min"], serde_json::Value::Null);
    }

    #[test]
    fn names_are_quoted_in_csv() {
        let text = csv(&stats("a,\"b\"", &[1.0]));
        let lines: Vec<&str> = text.split("\r\n").collect();
        assert!(
            lines[1]
                .starts_with("\"a,\"\"b\"\"\",node,block/fc,Gemm,f32,2x?,2,1,0,0,0,1.0,1.0,1.0,1.0,0:1,0,"),
            "{text}"
        );
        assert_eq!(lines[0].split(',').count(), COLUMNS.len() + 6 * FORMATS.len());
    }
}
