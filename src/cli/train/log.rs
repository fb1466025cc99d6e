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
#[cfg(unix)]
use std::time::{Duration, Instant};

/// A log that is written to.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    out: BufWriter<File>,
    /// The step of the last evaluation.
    evaluated: Option<u64>,
    /// The last step that it had when it was gone on with; 0 if it had none.
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
        let _held = await_reader(path)?;
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

    /// Continues the log of a run after the step of a checkpoint: lines of later steps are removed at its end, as is an
    /// incomplete line. A file that is not a log or that is the log of another run is left alone, as is a log from which other
    /// lines would have to be removed; a pipe or device begins anew.
    pub(super) fn go_on(path: &Path, position: &Position) -> Result<Log, Failure> {
        let (step, run) = (position.step, position.run.as_deref());
        // A pipe or a device has no lines that could be read again.
        if std::fs::metadata(path).map_or(true, |found| !found.is_file() || found.len() == 0) {
            return Log::start(path, run, true);
        }
        let fail = |e: &std::io::Error| failed(path, e);
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(|e| fail(&e))?;
        let mut reader = BufReader::new(&file);
        // The bytes that are kept, and what the kept lines say.
        let (mut kept, mut evaluated, mut last, mut is_whole) = (0, None, None, true);
        let (mut number, mut line, mut removes) = (0u64, Vec::new(), false);
        loop {
            line.clear();
            let read = reader.by_ref().take(LONGEST).read_until(b'\n', &mut line).map_err(|e| fail(&e))?;
            if read == 0 {
                break;
            }
            number += 1;
            let ends = line.last() == Some(&b'\n');
            let record = serde_json::from_slice::<Value>(&line).ok().filter(Value::is_object);
            let schema = record.as_ref().and_then(|record| record.get("schema"));
            if number == 1 && schema.and_then(Value::as_str) != Some(SCHEMA) {
                let message = format!(
                    "`--log {}`: expected a log of `ampc train` to continue, found another file; choose another name",
                    path.display()
                );
                return Err(Failure::usage("log", message));
            }
            let of_run = record.as_ref().and_then(|record| record.get(RUN)).and_then(Value::as_str);
            if let (1, Some(expected), Some(found)) = (number, run, of_run)
                && expected != found
            {
                let reason = format!(
                    "expected the log of the run that the checkpoint is of (`{RUN}` {expected}), found that of another run \
                     ({found}); choose another name for `--log`"
                );
                return Err(diagnose::failure(&ampc::Error::Data { path: path.to_owned(), reason }, None));
            }
            let of = record.as_ref().and_then(|record| record.get("step")).and_then(Value::as_u64);
            match record {
                None if ends && line.trim_ascii().is_empty() => kept += if removes { 0 } else { read as u64 },
                Some(_) if of.is_some_and(|of| of > step) => removes = true,
                Some(record) if !removes => {
                    kept += read as u64;
                    is_whole = ends;
                    last = of.or(last);
                    if record.get("eval_loss").is_some() {
                        evaluated = of;
                    }
                }
                // The last line of a run that was killed.
                None if !ends && (read as u64) < LONGEST && is_torn(&line) => {}
                Some(_) => return Err(other_line(path, number, &format!("after lines behind step {step}"))),
                None => return Err(other_line(path, number, "that is no line of a log")),
            }
        }
        file.set_len(kept).map_err(|e| fail(&e))?;
        let mut out = BufWriter::new(file);
        out.seek(SeekFrom::Start(kept)).map_err(|e| fail(&e))?;
        if !is_whole {
            out.write_all(b"\n").map_err(|e| fail(&e))?;
        }
        Ok(Log { path: path.to_owned(), out, evaluated, last: last.or(Some(0)) })
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

/// True if a line may be the beginning of a record. Zeros are the end of a file whose bytes were lost with the power.
fn is_torn(line: &[u8]) -> bool {
    let text = line.split(|&byte| byte == 0).next().unwrap_or_default();
    let rest = line.get(text.len()..).unwrap_or_default();
    let begins = text.iter().zip(b"{\"").all(|(found, expected)| found == expected);
    begins && rest.iter().all(|&byte| byte == 0)
}

/// The error of a log that is not continued because a line of it would be lost.
fn other_line(path: &Path, number: u64, what: &str) -> Failure {
    let reason = format!(
        "expected only lines of later steps and an incomplete last line to remove from the log, found line {number} {what}"
    );
    diagnose::failure(&ampc::Error::Data { path: path.to_owned(), reason }, None)
        .with_help("choose another name for `--log`, or take the line out of the file")
}

/// The time that a pipe may be without a reader.
#[cfg(unix)]
const PATIENCE: Duration = Duration::from_secs(2);

/// Waits a moment for the reader of a named pipe, without which opening the pipe would block forever. Returns a first writer,
/// which has to live until the pipe is open: a reader ends with the last writer.
#[cfg(unix)]
fn await_reader(path: &Path) -> Result<Option<File>, Failure> {
    use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
    let started = Instant::now();
    while std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
        let opened = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path);
        match opened {
            Err(e) if e.raw_os_error() == Some(libc::ENXIO) && started.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(e) if e.raw_os_error() == Some(libc::ENXIO) => {
                let message = format!(
                    "`--log {}`: expected a pipe with a reader, found no process that reads it; start the reader first",
                    path.display()
                );
                return Err(Failure::usage("log", message));
            }
            // Another error is that of the real attempt.
            other => return Ok(other.ok()),
        }
    }
    Ok(None)
}

#[cfg(not(unix))]
fn await_reader(_: &Path) -> Result<Option<File>, Failure> {
    Ok(None)
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
