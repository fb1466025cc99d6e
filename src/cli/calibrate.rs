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
use ampc::ir::Module;
use ampc::passes::observe::before_means;
use ampc::passes::observed::{Observed, shortest};
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
            (None, []) => {
                let (flag, name) = match (args.range_margin, args.trust_ranges) {
                    (None, false) => return Ok(None),
                    (Some(_), _) => ("range_margin", "--range-margin"),
                    (None, true) => ("trust_ranges", "--trust-ranges"),
                };
                let message = format!("`{name}` needs `--calibrate DATA` or `--ranges STATS.json`");
                return Err(Failure::usage(flag, message));
            }
            (Some(path), _) => Source::Statistics(path.clone()),
            (None, paths) => Source::Data(batches::named(paths)?),
        };
        Ok(Some(Calibration { margin, source }))
    }

    /// Refuses a report as policy.
    ///
    /// # Errors
    /// If the policy is a report.
    pub(crate) fn check(&self, options: &RewriteOptions) -> Result<(), Failure> {
        let flag = match self.source {
            Source::Data(_) => "calibrate",
            Source::Statistics(_) => "ranges",
        };
        if !options.policy.is_report() {
            return Ok(());
        }
        let message = format!(
            "a report as `--policy` repeats its decisions, so `--{flag}` cannot change them: give the preset or policy file \
             that its field `options.policy` names"
        );
        Err(Failure::usage(flag, message))
    }

    /// The files that it reads.
    pub(crate) fn files(&self) -> Vec<ReadFile> {
        match &self.source {
            Source::Data(paths) => paths.iter().flat_map(|path| data::files_at(path, "the data")).collect(),
            Source::Statistics(path) => vec![ReadFile { what: "the statistics", path: path.clone() }],
        }
    }

    /// Adds the values near an end of the range to `options`, and with `--trust-ranges` the products within it. Prints a summary
    /// on standard error.
    ///
    /// # Errors
    /// If the data cannot be read, or is about another model; if the model cannot be run.
    pub(crate) fn observe(
        &self,
        args: &RewriteArgs,
        threads: Option<u32>,
        model: &Model,
        options: &mut RewriteOptions,
        (progress, ui): (&Progress, Ui),
    ) -> Result<(), Failure> {
        let (to, margin) = (options.to, self.margin);
        let (observed, within) = match &self.source {
            Source::Statistics(path) => {
                let stats = saved(path, model)?;
                progress.suspend(|| {
                    warn(&stats.with_nan(), ui);
                    warn_of_part(&stats, ui);
                    warn_of_empty(stats.is_empty(), ui);
                });
                let observed = before_means(stats.observed(to, margin), &model.module);
                (observed, stats.within(to, margin))
            }
            Source::Data(paths) => {
                let (stats, module) = collected(paths, args, threads, model, options, (progress, ui))?;
                progress.suspend(|| {
                    warn(&stats.with_nan(), ui);
                    warn_of_empty(stats.is_empty(), ui);
                });
                (before_means(stats.observed(to, margin), &module), stats.within(to, margin))
            }
        };
        progress.suspend(|| ui.say(&said(&observed, options)));
        options.observed = Some(observed);
        if args.trust_ranges {
            options.trusted = within.of_products(&model.module);
        }
        Ok(())
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

/// The statistics of a model on data, and the module that they are about.
fn collected(
    paths: &[PathBuf],
    args: &RewriteArgs,
    threads: Option<u32>,
    model: &Model,
    options: &RewriteOptions,
    (progress, ui): (&Progress, Ui),
) -> Result<(ModelStats, Module), Failure> {
    let fail = |error: ampc::Error| diagnose::failure(&error, Some(&model.module));
    let runtime = data::default_runtime(threads, &args.limits, ui)?;
    let mut module = ampc::rewrite::before_decisions(model, options).map_err(fail)?;
    let collector = Collector::new(&mut module, &runtime).map_err(fail)?;
    let mut batches = Batches { module: &model.module, collector, progress };
    batches.add_all(paths, runtime.limits.max_bytes, |_| Ok(()))?;
    let stats = batches.collector.finish();
    Ok((stats, module))
}

/// Warns of tensors with NaN, about whose range a calibration knows nothing.
fn warn(with_nan: &[&str], ui: Ui) {
    let [first, others @ ..] = with_nan else { return };
    let name = shown::name(first);
    let others = match others.len() {
        0 => " has".to_owned(),
        n => format!(" and {} have", count(n as u64, "other tensor")),
    };
    let message = format!("`{name}`{others} NaN on the data in fp32; only finite elements are judged");
    complain(&Problem::warning("calibrate.nan", message), ui);
}

/// Warns of statistics of a run that was stopped.
fn warn_of_part(stats: &SavedStats, ui: Ui) {
    if stats.batches < stats.of_batches {
        let message = format!("the statistics are of {} of {} batches", stats.batches, stats.of_batches);
        complain(&Problem::warning("calibrate.partial", message), ui);
    }
}

/// Warns of data without elements, which shows nothing.
fn warn_of_empty(is_empty: bool, ui: Ui) {
    if is_empty {
        let message = "no tensor of floats has elements on the data, so nothing is known about the ranges";
        complain(&Problem::warning("calibrate.empty", message), ui);
    }
}

fn complain(problem: &Problem, ui: Ui) {
    ui.complain(problem.draw(ui, Stream::Err).trim_start_matches('\n'));
}

/// The values near an end of the range and far from 0: their numbers, and an example of each.
fn said(observed: &Observed, options: &RewriteOptions) -> String {
    let near = said_near(observed, options);
    let mut far = observed.far_from_zero();
    let n = far.len();
    let Some((place, (lo, hi))) = far.next() else { return near };
    let (place, lo, hi) = (shown::name(&place.to_string()), shortest(lo), shortest(hi));
    match n {
        1 => format!("{near}; 1 value lies far from 0 before a mean is subtracted: `{place}`, {lo} to {hi}"),
        n => format!(
            "{near}; {} lie far from 0 before a mean is subtracted, for example `{place}`, {lo} to {hi}",
            count(n as u64, "value")
        ),
    }
}

/// The number of values near an end of the range, and the worst of them.
fn said_near(observed: &Observed, options: &RewriteOptions) -> String {
    let to = precision_name(options.to);
    match observed.worst(options.to) {
        None => format!("no value comes near an end of the range of {to} on the data"),
        Some((place, number)) => {
            let (place, number) = (shown::name(&place.to_string()), shortest(number));
            match observed.near_ends().len() {
                1 => {
                    format!("1 value comes near an end of the range of {to} on the data: `{place}`, {number}")
                }
                n => format!(
                    "{} come near an end of the range of {to} on the data, the worst `{place}`, {number}",
                    count(n as u64, "value")
                ),
            }
        }
    }
}
