//! The log of a training: a line of JSON for every step, schema `ampc-train-log/1`, which docs/training.md describes.

use crate::cli::diagnose;
use crate::cli::problem::Failure;
use ampc::execute::training::{
    Evaluated, GradientHistograms, Log2Histogram, LostUpdates, Position, StepRecord,
};
use ampc::ir::text::escape_hidden_in_json;
use serde_json::{Map, Value, json};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A log that is written to.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    out: BufWriter<File>,
    /// The step of the last evaluation.
    evaluated: Option<u64>,
    /// The last step that it had when it was gone on with.
    last: Option<u64>,
}

/// No line of a log is longer.
const LONGEST: u64 = 1 << 20;

/// The schema that the first line of a log names.
const SCHEMA: &str = "ampc-train-log/1";

/// The field of the first line with the identity of the run, which checkpoints have as well.
const RUN: &str = "run";

/// The name of the log in a folder.
const NAME: &str = "train.jsonl";

/// The file that a log is written to.
pub(super) fn path_of(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(NAME) } else { path.to_owned() }
}

impl Log {
    /// A new log of the run `run`. One that is there is replaced if `force` is set; a pipe or device is written to.
    pub(super) fn start(path: &Path, run: Option<&str>, force: bool) -> Result<Log, Failure> {
        let mut options = OpenOptions::new();
        options.write(true);
        match force || ampc::files::is_stream(path) {
            true => options.create(true).truncate(true),
            // A file that appeared since the check is left alone.
            false => options.create_new(true),
        };
        // A link stays a link: the file behind it is made.
        let file = options.open(ampc::files::behind_links(path)).map_err(|e| match e.kind() {
            std::io::ErrorKind::AlreadyExists => {
                let exists = ampc::files::check(path, false, &[]).map_err(|e| diagnose::failure(&e, None));
                exists.err().unwrap_or_else(|| failed(path, &e))
            }
            _ => failed(path, &e),
        })?;
        let mut log = Log { path: path.to_owned(), out: BufWriter::new(file), evaluated: None, last: None };
        let run = run.map_or_else(String::new, |run| format!(",\"{RUN}\":{}", Value::from(run)));
        log.line(&format!("{{\"schema\":\"{SCHEMA}\"{run}}}"))?;
        Ok(log)
    }

    /// Continues the log of a run after the step of a checkpoint: lines of later steps are removed, as is an incomplete
    /// line. A file that is not a log, or that is the log of another run, is left alone; a pipe or device begins anew.
    pub(super) fn go_on(path: &Path, position: &Position) -> Result<Log, Failure> {
        let (step, run) = (position.step, position.run.as_deref());
        // A pipe or a device has no lines that could be read again.
        if std::fs::metadata(path).map_or(true, |found| !found.is_file() || found.len() == 0) {
            return Log::start(path, run, true);
        }
        let fail = |e: &std::io::Error| failed(path, e);
        let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(|e| fail(&e))?;
        let mut reader = BufReader::new(&mut file);
        let (mut kept, mut line, mut evaluated, mut last) = (0, Vec::new(), None, None);
        loop {
            line.clear();
            let read = reader.by_ref().take(LONGEST).read_until(b'\n', &mut line).map_err(|e| fail(&e))?;
            let record = serde_json::from_slice::<Value>(&line).ok();
            let of = record.as_ref().and_then(|record| record.get("step")).and_then(Value::as_u64);
            let is_later = of.is_some_and(|of| of > step);
            let schema = record.as_ref().and_then(|record| record.get("schema"));
            if kept == 0 && schema.and_then(Value::as_str) != Some(SCHEMA) {
                let message = format!(
                    "`--log {}`: expected a log of `ampc train` to continue, found another file; choose another name",
                    path.display()
                );
                return Err(Failure::usage("log", message));
            }
            let of_run = record.as_ref().and_then(|record| record.get(RUN)).and_then(Value::as_str);
            if let (0, Some(expected), Some(found)) = (kept, run, of_run)
                && expected != found
            {
                let reason = format!(
                    "expected the log of the run that the checkpoint is of (`{RUN}` {expected}), found that of another run \
                     ({found}); choose another name for `--log`"
                );
                return Err(diagnose::failure(&ampc::Error::Data { path: path.to_owned(), reason }, None));
            }
            if record.is_none() || is_later || line.last() != Some(&b'\n') {
                break;
            }
            kept += read as u64;
            last = of.or(last);
            if record.is_some_and(|record| record.get("eval_loss").is_some()) {
                evaluated = of;
            }
        }
        drop(reader);
        // The line with the schema was not whole.
        if kept == 0 {
            return Log::start(path, run, true);
        }
        file.set_len(kept).and_then(|()| file.seek(SeekFrom::Start(kept))).map_err(|e| fail(&e))?;
        Ok(Log { path: path.to_owned(), out: BufWriter::new(file), evaluated, last })
    }

    fn write(&mut self, record: &Value) -> Result<(), Failure> {
        self.line(&record.to_string())
    }

    fn line(&mut self, line: &str) -> Result<(), Failure> {
        let line = escape_hidden_in_json(line);
        let written = writeln!(self.out, "{line}").and_then(|()| self.out.flush());
        written.map_err(|e| failed(&self.path, &e))
    }

    /// A step, and how many seconds it took.
    pub(super) fn step(&mut self, taken: &StepRecord, seconds: f64) -> Result<(), Failure> {
        let mut record = Map::new();
        record.insert("step".into(), taken.number.into());
        record.insert("epoch".into(), taken.epoch.into());
        record.extend(taken.result.loss.map(|loss| ("loss".into(), number(loss))));
        record.insert("lr".into(), number(taken.lr));
        record.extend(taken.result.loss_scale.map(|scale| ("loss_scale".into(), number(scale))));
        record.insert("skipped".into(), taken.result.skipped.into());
        record.extend(taken.result.grad_norm.map(|norm| ("grad_norm".into(), number(norm))));
        record.insert("samples".into(), taken.samples.into());
        record.insert("seconds".into(), number(seconds));
        self.write(&Value::Object(record))
    }

    /// The last step that a log had which was gone on with.
    pub(super) fn last_step(&self) -> Option<u64> {
        self.last
    }

    /// True if it has an evaluation after this step.
    pub(super) fn has_evaluation(&self, step: u64) -> bool {
        self.evaluated == Some(step)
    }

    /// The loss on samples that are not trained on.
    pub(super) fn evaluation(&mut self, step: u64, found: Evaluated) -> Result<(), Failure> {
        let mut record = Map::new();
        record.insert("step".into(), step.into());
        record.insert("eval_loss".into(), number(found.loss));
        record.extend(found.accuracy.map(|accuracy| ("eval_accuracy".into(), number(accuracy))));
        record.insert("eval_samples".into(), found.samples.into());
        self.evaluated = Some(step);
        self.write(&Value::Object(record))
    }

    /// The gradients of a step, and which updates of weights were lost unless it was skipped.
    pub(super) fn histograms(
        &mut self,
        taken: &StepRecord,
        found: &GradientHistograms,
        updates: &LostUpdates,
    ) -> Result<(), Failure> {
        let (weights, activations) = (histogram(&found.weights), histogram(&found.activations));
        let mut record = json!({
            "step": taken.number, "gradients": { "weights": weights, "activations": activations },
        });
        if !taken.result.skipped {
            record["updates"] = json!({ "elements": updates.updates, "lost": updates.lost });
        }
        self.write(&record)
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    let source = std::io::Error::new(error.kind(), error.to_string());
    diagnose::failure(&ampc::Error::Io { path: path.to_owned(), source }, None)
        .with_help("the log is written to `--log`: free some space, or write it elsewhere")
}

/// A number, or its name where JSON has no number for it.
fn number(number: f64) -> Value {
    match serde_json::Number::from_f64(number) {
        Some(number) => Value::Number(number),
        None if number.is_nan() => "NaN".into(),
        None if number > 0.0 => "Infinity".into(),
        None => "-Infinity".into(),
    }
}

fn histogram(found: &Log2Histogram) -> Value {
    let log2: Map<String, Value> =
        found.counts().map(|(exponent, count)| (exponent.to_string(), count.into())).collect();
    json!({ "elements": found.total(), "zero": found.zero, "inf": found.inf, "nan": found.nan, "log2": log2 })
}
