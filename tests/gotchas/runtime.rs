//! Running models in ONNX Runtime.

use crate::support::{model, options, rewrite};
use ampc::ir::DType;
use ampc::{Model, RewriteOptions, Rewritten, SaveOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A value for an input.
pub(crate) struct Feed {
    line: String,
}

fn line<T: std::fmt::Display>(name: &str, dtype: &str, dims: &[usize], values: &[T]) -> Feed {
    let join = |items: Vec<String>| items.join(" ");
    let dims = join(dims.iter().map(ToString::to_string).collect());
    let values = join(values.iter().map(ToString::to_string).collect());
    Feed { line: format!("{name}\t{dtype}\t{dims}\t{values}\n") }
}

pub(crate) fn f32s(name: &str, dims: &[usize], values: &[f32]) -> Feed {
    line(name, "f32", dims, values)
}

pub(crate) fn i64s(name: &str, dims: &[usize], values: &[i64]) -> Feed {
    line(name, "i64", dims, values)
}

pub(crate) fn bools(name: &str, dims: &[usize], values: &[bool]) -> Feed {
    line(name, "bool", dims, values)
}

/// `n` values in [-a, a) that depend on nothing else.
pub(crate) fn uniform(seed: u64, n: usize, a: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            f32::from(u16::try_from(state >> 48).unwrap()) / 32768.0 * a - a
        })
        .collect()
}

/// An output of a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) dims: Vec<usize>,
    pub(crate) values: Vec<f64>,
}

/// The outputs of a model; `None` if the CPU has no kernel for its types.
pub(crate) type Outputs = Option<Vec<Tensor>>;

/// Runs models with the same feeds; `None` if there is no Python to run them.
///
/// Every model is refused that onnx.checker or ONNX Runtime refuse; where an operator is one that ONNX does not have at
/// the opset, ONNX Runtime alone is asked.
#[track_caller]
pub(crate) fn run(folder: &Path, feeds: &[Feed], models: &[PathBuf]) -> Option<Vec<Outputs>> {
    #[expect(clippy::disallowed_methods, reason = "tests are told which Python has ONNX Runtime")]
    let Ok(python) = std::env::var("AMPC_PYTHON") else {
        let _ = writeln!(std::io::stderr(), "the numeric part was skipped: AMPC_PYTHON is not set");
        return None;
    };
    let feed_path = folder.join("feeds.tsv");
    std::fs::write(&feed_path, feeds.iter().map(|f| f.line.as_str()).collect::<String>()).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gotchas/run_model.py");
    let done = Command::new(python).arg(script).arg(&feed_path).args(models).output().unwrap();
    if done.status.code() == Some(77) {
        let _ = writeln!(
            std::io::stderr(),
            "the numeric part was skipped: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        return None;
    }
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Some(parse(&String::from_utf8(done.stdout).unwrap()))
}

fn parse(text: &str) -> Vec<Outputs> {
    let mut runs: Vec<Outputs> = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        if fields[0] == "model" && fields.len() == 3 {
            runs.push((fields[1] == "ok").then(Vec::new));
            continue;
        }
        let tensor = Tensor {
            name: fields[0].to_owned(),
            dtype: fields[1].to_owned(),
            dims: fields[2].split_whitespace().map(|d| d.parse().unwrap()).collect(),
            values: fields[3].split_whitespace().map(|v| v.parse().unwrap()).collect(),
        };
        runs.last_mut().unwrap().as_mut().unwrap().push(tensor);
    }
    runs
}

/// Runs of a source, of what it was rewritten to, and of the emulated export of that.
pub(crate) struct Runs {
    pub(crate) source: Vec<Tensor>,
    /// `None` if the CPU has no kernel for its types.
    pub(crate) low: Outputs,
    pub(crate) emulated: Vec<Tensor>,
}

impl Runs {
    /// The emulated run, and the rewritten one if there is one.
    pub(crate) fn lowered(&self) -> impl Iterator<Item = &Vec<Tensor>> {
        self.low.iter().chain([&self.emulated])
    }

    /// Every output is within `tolerance` of the source's, relative to the greatest magnitude of that output.
    #[track_caller]
    pub(crate) fn are_within(&self, tolerance: f64) {
        for run in self.lowered() {
            for (now, then) in run.iter().zip(&self.source) {
                assert_eq!((&now.name, &now.dims), (&then.name, &then.dims));
                let scale = then.values.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
                for (i, (a, b)) in now.values.iter().zip(&then.values).enumerate() {
                    let same = a == b || (a.is_nan() && b.is_nan());
                    assert!(
                        same || (a - b).abs() <= tolerance * scale,
                        "{}[{i}]: {a} instead of {b}, tolerance {tolerance} of {scale}",
                        now.name
                    );
                }
            }
        }
    }
}

/// Rewrites a graph in text form, writes source, result and emulated export, and runs them.
#[track_caller]
pub(crate) fn exec(
    to: DType,
    graph: &str,
    feeds: &[Feed],
    change: impl FnOnce(&mut RewriteOptions),
) -> (Rewritten, Option<Runs>) {
    let mut options = options(to);
    change(&mut options);
    exec_models(model(graph), model(graph), &options, feeds)
}

/// [`exec`] for a model given twice, once to rewrite and once as it is.
#[track_caller]
pub(crate) fn exec_models(
    source: Model,
    again: Model,
    options: &RewriteOptions,
    feeds: &[Feed],
) -> (Rewritten, Option<Runs>) {
    let done = rewrite(source, options);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let save = |model: &Model, name: &str| {
        ampc::save(model, path(name), &SaveOptions::default()).unwrap();
        path(name)
    };
    let mut paths = vec![save(&again, "source.onnx"), save(&done.model, "low.onnx")];
    // The written file, so that what is emulated is what users would emulate.
    let (emulated, _) = ampc::emulate(ampc::load(&paths[1]).unwrap()).unwrap();
    paths.push(save(&emulated, "emulated.onnx"));
    let runs = run(folder.path(), feeds, &paths).map(|mut runs| {
        let emulated = runs.pop().unwrap().expect("the emulated export runs everywhere");
        let low = runs.pop().unwrap();
        Runs { source: runs.pop().unwrap().expect("the source runs"), low, emulated }
    });
    (done, runs)
}
