//! `ampc rewrite --calibrate`, `--ranges`: the values that come near an end of the range of the format on data.

use super::args::RewriteArgs;
use super::batches::{self, Batches};
use super::problem::{Failure, Problem};
use super::progress::Progress;
use super::settings::ReadFile;
use super::table::count;
use super::ui::{Stream, Ui};
use super::{data, diagnose, shown};
use ampc::execute::stats::{Collector, ModelStats, SavedStats};
use ampc::passes::observed::Observed;
use ampc::report::precision_name;
use ampc::{Model, RewriteOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The factor by which other data may exceed the data of a calibration.
const MARGIN: f64 = 4.0;

/// The data of a calibration.
pub(crate) struct Calibration {
    margin: f64,
    source: Source,
}

enum Source {
    /// Batches on which the model is run.
    Data(Vec<PathBuf>),
    /// A file of statistics.
    Statistics(PathBuf),
}

impl Calibration {
    /// The data that arguments name; `None` if they name none.
    ///
    /// # Errors
    /// If arguments do not go together, or the data has no batch.
    pub(crate) fn of(args: &RewriteArgs) -> Result<Option<Calibration>, Failure> {
        let margin = args.range_margin.unwrap_or(MARGIN);
        let source = match (&args.ranges, &args.calibrate[..]) {
            (None, []) if args.range_margin.is_none() => return Ok(None),
            (None, []) => {
                let message = "`--range-margin` needs `--calibrate DATA` or `--ranges STATS.json`";
                return Err(Failure::usage("range_margin", message));
            }
            (Some(path), _) => Source::Statistics(path.clone()),
            (None, paths) => Source::Data(batches::named(paths)?),
        };
        Ok(Some(Calibration { margin, source }))
    }

    /// The files that it reads.
    pub(crate) fn files(&self) -> Vec<ReadFile> {
        match &self.source {
            Source::Data(paths) => paths.iter().flat_map(|path| data::files_at(path, "the data")).collect(),
            Source::Statistics(path) => vec![ReadFile { what: "the statistics", path: path.clone() }],
        }
    }

    /// The values of a model that come near an end of the range; told on standard error.
    ///
    /// # Errors
    /// If the data cannot be read, or is about another model; if the model cannot be run.
    pub(crate) fn observed(
        &self,
        args: &RewriteArgs,
        threads: Option<u32>,
        model: &Model,
        options: &RewriteOptions,
        (progress, ui): (&Progress, Ui),
    ) -> Result<Observed, Failure> {
        let (to, margin) = (options.to, self.margin);
        if options.policy.is_report() {
            let message =
                "the policy is a report, whose decisions are repeated: give the policy of the report instead";
            return Err(Failure::usage("calibrate", message));
        }
        let observed = match &self.source {
            Source::Statistics(path) => {
                let stats = saved(path, model)?;
                progress.suspend(|| warn(&stats.with_nan(), ui));
                stats.observed(to, margin)
            }
            Source::Data(paths) => {
                let stats = collected(paths, args, threads, model, options, (progress, ui))?;
                progress.suspend(|| warn(&stats.with_nan(), ui));
                stats.observed(to, margin)
            }
        };
        progress.suspend(|| ui.say(&said(&observed, options)));
        Ok(observed)
    }
}

/// Reads the statistics of a model.
fn saved(path: &Path, model: &Model) -> Result<SavedStats, Failure> {
    let named = |message: String| Failure::usage("ranges", format!("`{}`: {message}", path.display()));
    let text = ampc::files::read_text(path).map_err(|error| match error.kind() {
        ErrorKind::InvalidData => named("expected JSON, found bytes that are no UTF-8".into()),
        _ => diagnose::cannot_open(path, &error),
    })?;
    let stats = SavedStats::read(&text).map_err(|error| named(error.to_string()))?;
    match stats.unknown_in(&model.module) {
        None => Ok(stats),
        Some(place) => {
            let place = shown::name(&place.to_string());
            Err(named(format!(
                "expected statistics of the model, found `{place}`, which the model does not have"
            )))
        }
    }
}

/// The statistics of a model on data.
fn collected(
    paths: &[PathBuf],
    args: &RewriteArgs,
    threads: Option<u32>,
    model: &Model,
    options: &RewriteOptions,
    (progress, ui): (&Progress, Ui),
) -> Result<ModelStats, Failure> {
    let fail = |error: ampc::Error| diagnose::failure(&error, Some(&model.module));
    let runtime = data::default_runtime(threads, &args.limits, ui)?;
    let mut module = ampc::rewrite::before_decisions(model, options).map_err(fail)?;
    let collector = Collector::new(&mut module, &runtime).map_err(fail)?;
    let mut batches = Batches { module: &model.module, collector, progress };
    batches.add_all(paths, runtime.limits.max_bytes, |_| Ok(()))?;
    Ok(batches.collector.finish())
}

/// Warns of tensors with NaN, about whose range a calibration knows nothing.
fn warn(with_nan: &[&str], ui: Ui) {
    let [first, others @ ..] = with_nan else { return };
    let name = shown::name(first);
    let message = match others.len() {
        0 => format!("`{name}` is NaN on the data in fp32, so its range is unknown"),
        n => {
            let others = count(n as u64, "other tensor");
            format!("`{name}` and {others} are NaN on the data in fp32, so their range is unknown")
        }
    };
    let problem = Problem::warning("calibrate.nan", message);
    ui.complain(problem.draw(ui, Stream::Err).trim_start_matches('\n'));
}

/// The number of values near an end of the range, and the value of largest magnitude.
fn said(observed: &Observed, options: &RewriteOptions) -> String {
    let to = precision_name(options.to);
    let worst = observed.iter().max_by(|(_, a), (_, b)| a.abs().total_cmp(&b.abs()));
    let Some((place, number)) = worst else {
        return format!("no value comes near an end of the range of {to} on the data");
    };
    let place = shown::name(&place.to_string());
    match observed.len() {
        1 => format!("1 value comes near an end of the range of {to} on the data: `{place}` has {number:e}"),
        n => format!(
            "{} come near an end of the range of {to} on the data; `{place}` has {number:e}",
            count(n as u64, "value")
        ),
    }
}
