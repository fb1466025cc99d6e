//! `ampc rewrite --search`: the cheapest formats within a tolerance on data.

use super::args::{Budget, RewriteArgs};
use super::batches;
use super::problem::{Failure, Problem};
use super::progress::Progress;
use super::settings::ReadFile;
use super::table::{Table, bytes, count, plural};
use super::ui::{Stream, Ui};
use super::verify::Doubt;
use super::{data, diagnose, interrupt, shown};
use ampc::execute::output_names;
use ampc::execute::search::{Evidence, Found, Metric, Point, SearchOptions, search};
use ampc::execute::verify::default_tolerance_of;
use ampc::ir::{DType, Module};
use ampc::passes::Policy;
use ampc::passes::policy::Pin;
use ampc::runtime::Runtime;
use ampc::{ErrorKind, Model, RewriteOptions};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The maximal number of choices without `--budget`.
const CHOICES: usize = 15;

/// A search that arguments ask for.
pub(crate) struct Search {
    paths: Vec<PathBuf>,
    metric: Metric,
}

/// The result of a search beside the model.
pub(crate) struct Searched {
    found: Found,
    metric: Metric,
    tolerance: f64,
    /// The outputs with a tolerance of their own.
    tolerances: BTreeMap<String, f64>,
    policy: Arc<Policy>,
    batches: usize,
}

impl Search {
    /// The search that arguments ask for; `None` without `--search`.
    ///
    /// # Errors
    /// If the data has no batch.
    pub(crate) fn of(args: &RewriteArgs) -> Result<Option<Search>, Failure> {
        if !args.search.search {
            return Ok(None);
        }
        let paths = batches::named(args.data.inputs.as_slice())?;
        let mut names: Vec<&str> =
            args.search.output_tolerance.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let message = format!("`--output-tolerance` gives `{}` two tolerances", shown::name(pair[0]));
            return Err(Failure::usage("output_tolerance", message));
        }
        let metric = args.search.metric.as_deref().map(str::parse).transpose();
        let metric = metric.map_err(|error| Failure::usage("metric", format!("`--metric`: {error}")))?;
        let has_default = matches!(metric, None | Some(Metric::Max | Metric::Mean | Metric::Elementwise));
        if let Some(metric) = metric.as_ref().filter(|_| !has_default && args.verify.tolerance.is_none()) {
            let message =
                format!("`--metric {}` has no default tolerance: give `--tolerance X`", metric.as_str());
            return Err(Failure::usage("tolerance", message));
        }
        if args.search.write_policy.is_some() && (!args.calibrate.is_empty() || args.ranges.is_some()) {
            let message = "a policy has no ranges, so `--write-policy` cannot repeat a search with `--calibrate` or `--ranges`: a \
                           report can (`--report FILE`, then `--policy FILE`)";
            return Err(Failure::usage("write_policy", message));
        }
        Ok(Some(Search { paths, metric: metric.unwrap_or_default() }))
    }

    /// The files that it reads.
    pub(crate) fn files(&self) -> Vec<ReadFile> {
        self.paths.iter().flat_map(|path| data::files_at(path, "the data")).collect()
    }

    /// The options of the search, and its maximal time.
    fn settings(&self, args: &RewriteArgs, to: DType, runtime: Runtime) -> (SearchOptions, Option<Duration>) {
        let (choices, time) = match args.search.budget {
            None => (CHOICES, None),
            Some(Budget::Choices(choices)) => (choices, None),
            Some(Budget::Time(time)) => (usize::MAX, Some(time)),
        };
        let settings = SearchOptions {
            runtime,
            metric: self.metric.clone(),
            tolerance: args.verify.tolerance.unwrap_or_else(|| default_tolerance_of(to)),
            tolerances: args.search.output_tolerance.iter().cloned().collect(),
            batch_tolerances: Vec::new(),
            choices,
            holds_out: true,
        };
        (settings, time)
    }

    /// Searches, and pins the nodes that it found in the policy of `options`.
    ///
    /// # Errors
    /// If the data does not fit, a model cannot be run, or no choice is within the tolerance.
    pub(crate) fn run(
        &self,
        args: &RewriteArgs,
        threads: Option<u32>,
        model: &Model,
        options: &mut RewriteOptions,
        (progress, ui): (&Progress, Ui),
    ) -> Result<Searched, Failure> {
        let fail = |error: ampc::Error| diagnose::failure(&error, Some(&model.module));
        if options.policy.is_report() {
            let message = "a report as `--policy` repeats its decisions, so `--search` cannot change them: give the preset or policy \
                           file that its field `options.policy` names";
            return Err(Failure::usage("search", message));
        }
        let (settings, time) =
            self.settings(args, options.to, data::default_runtime(threads, &args.limits, ui)?);
        progress.stage("reading data");
        let batches = batches::read(&self.paths, &model.module, settings.runtime.limits.max_bytes)?;
        check_outputs(&settings.tolerances, &model.module)?;
        interrupt::defer_first_signal();
        let start = Instant::now();
        let mut n = 0;
        let mut tell = |point: &Point| {
            n += 1;
            progress.stage(format!(
                "searching: choice {n}, {}, error {:.2e}",
                count(point.pins as u64, "pin"),
                point.error
            ));
            interrupt::requested().is_none() && time.is_none_or(|time| start.elapsed() < time)
        };
        progress.stage("searching");
        let found = search(model, options, &batches, &settings, &mut tell).map_err(fail)?;
        pin(options, &found.pins).map_err(fail)?;
        let (metric, policy, batches) = (self.metric.clone(), options.policy.clone(), batches.len());
        let SearchOptions { tolerance, tolerances, .. } = settings;
        let searched = Searched { found, metric, tolerance, tolerances, policy, batches };
        progress.suspend(|| searched.warn(ui));
        match searched.failure() {
            Some(failure) => {
                progress.suspend(|| ui.say(searched.said().trim_end()));
                Err(failure)
            }
            None => Ok(searched),
        }
    }
}

/// Pins nodes to fp32 in the policy of `options`.
fn pin(options: &mut RewriteOptions, paths: &[String]) -> Result<(), ampc::Error> {
    let mut policy: Policy = (*options.policy).clone();
    policy.next_layer();
    for path in paths {
        policy.pin(path, Pin::To(DType::F32))?;
    }
    options.policy = Arc::new(policy);
    if !paths.is_empty() {
        // The pins would be the difference to another policy.
        options.alternative = None;
    }
    Ok(())
}

impl Searched {
    /// The failure of a search without a choice within the tolerance.
    fn failure(&self) -> Option<Failure> {
        if self.found.passed() {
            return None;
        }
        let held_out = self.found.held_out.as_ref().filter(|_| self.found.point.passed());
        let point = held_out.unwrap_or(&self.found.point);
        let on = if self.found.point.passed() { " on the held-out batch" } else { "" };
        let (error, tolerance) = (point.error, self.tolerance_of(&point.output));
        let best = format!(
            "the best of {} has an error of {error:.2e} at output `{}`{on}, and the tolerance is {tolerance:.2e}",
            count(self.found.measured as u64, "choice"),
            shown::name(&point.output),
        );
        let early = format!("the search ended before it found formats within the tolerance: {best}");
        let (message, help) = match self.found.is_partial {
            true if interrupt::requested().is_some() => (early, "interrupted; no model was written"),
            true => (early, "a larger `--budget` gives the search more choices; no model was written"),
            false => (
                format!("no formats are within the tolerance: {best}"),
                "nodes that a pin or the model itself keeps in 16 bits cause the error; a larger `--tolerance` or another \
                 `--metric` may help, or fewer pins to 16 bits; no model was written",
            ),
        };
        Some(Failure::of(ErrorKind::Mismatch, Problem::new("ampc::search::beyond", message).with_help(help)))
    }

    /// Warns if the outputs are all zero or not finite, or if roundings could not be attributed.
    fn warn(&self, ui: Ui) {
        match self.found.evidence {
            Evidence::Nothing => Doubt::nothing().warn(ui),
            Evidence::Zeros => Doubt::zeros().warn(ui),
            Evidence::Numbers => {}
        }
        if self.found.is_unattributed {
            let message = "roundings could not be attributed (a backward pass was beyond a limit of memory or time, or an output \
                           was not computed on a batch), so the search removed pins without knowing which roundings cause the error";
            let problem = Problem::warning("search.attribution", message);
            ui.complain(problem.draw(ui, Stream::Err).trim_start_matches('\n'));
        }
    }

    /// The tolerance of an output.
    fn tolerance_of(&self, output: &str) -> f64 {
        self.tolerances.get(output).copied().unwrap_or(self.tolerance)
    }

    /// The result in words, with a table of the choices that no other choice beats.
    pub(crate) fn said(&self) -> String {
        let Found { pins, point, held_out, failed, measured, is_partial, .. } = &self.found;
        let metric = self.metric.as_str();
        let how = match pins.len() {
            0 if point.passed() => "the policy alone is within the tolerance".to_owned(),
            n => format!("{}, {} in fp32", count(n as u64, "pin"), count(point.full, "node")),
        };
        let early = match is_partial {
            true if interrupt::requested().is_some() => ", interrupted",
            true => ", up to the budget",
            false => "",
        };
        let held_out = match (held_out, failed) {
            (Some(held_out), _) => format!(", {:.2e} on the held-out batch", held_out.error),
            (None, Some(failed)) => format!(
                " on all batches, since the error of the first result on the held-out batch was {:.2e}",
                failed.error
            ),
            (None, None) => String::new(),
        };
        let output = if self.tolerances.is_empty() {
            String::new()
        } else {
            format!(" at `{}`", shown::name(&point.output))
        };
        let searched = self.batches - usize::from(self.found.held_out.is_some());
        let head = format!(
            "searched: {} on {}{early}; {how}; {metric} error {:.2e}{output}{held_out}, tolerance {:.2e}\n",
            count(*measured as u64, "choice"),
            plural(searched as u64, "batch", "batches"),
            point.error,
            self.tolerance_of(&point.output),
        );
        format!("{head}{}", self.table())
    }

    /// The choices that no other choice beats.
    fn table(&self) -> Table {
        let mut table = Table::new(2, &[true; 7]);
        table.row(["error", "cost", "time", "fp32 nodes", "casts", "constants", "pins"]);
        for point in self.found.pareto() {
            let time = point.time.map_or_else(|| "-".into(), |time| format!("{time:.2}"));
            let mark = if is_chosen(point, &self.found.point) { " <" } else { "" };
            table.row([
                format!("{:.2e}", point.error),
                format!("{:.2}", point.cost),
                time,
                point.full.to_string(),
                point.casts.to_string(),
                bytes(point.bytes),
                format!("{}{mark}", point.pins),
            ]);
        }
        table
    }

    /// The choices that no other choice beats, as JSON.
    pub(crate) fn pareto(&self) -> String {
        let file = ParetoJson {
            schema: "ampc-pareto/1",
            metric: self.metric.as_str(),
            tolerance: self.tolerance,
            batches: self.batches,
            chosen: &self.found.point,
            held_out: self.found.held_out.as_ref(),
            pins: &self.found.pins,
            points: self.found.pareto(),
        };
        let mut text = serde_json::to_string_pretty(&file).expect("names and numbers");
        text.push('\n');
        text
    }

    /// The policy with the pins, as JSON.
    pub(crate) fn policy(&self) -> String {
        format!("{}\n", self.policy.to_json().trim_end())
    }

    /// The files that arguments ask for, with their content.
    pub(crate) fn files<'a>(&self, args: &'a RewriteArgs) -> Vec<(&'a Path, String)> {
        let pareto = args.search.pareto.as_deref().map(|path| (path, self.pareto()));
        let policy = args.search.write_policy.as_deref().map(|path| (path, self.policy()));
        pareto.into_iter().chain(policy).collect()
    }
}

/// Refuses tolerances of outputs that the model does not have.
fn check_outputs(tolerances: &BTreeMap<String, f64>, module: &Module) -> Result<(), Failure> {
    let names = output_names(module);
    let Some(unknown) = tolerances.keys().find(|name| !names.contains(name)) else { return Ok(()) };
    let outputs: Vec<String> = names.iter().map(|name| format!("`{}`", shown::name(name))).collect();
    let message = format!(
        "`--output-tolerance {}=…`: expected an output of the model ({}); repeat the option for each output",
        shown::name(unknown),
        outputs.join(", ")
    );
    Err(Failure::usage("output_tolerance", message))
}

fn is_chosen(point: &Point, chosen: &Point) -> bool {
    (point.pins, point.full, point.casts) == (chosen.pins, chosen.full, chosen.casts)
        && point.ratio == chosen.ratio
}

/// The file of `--pareto`.
#[derive(Serialize)]
struct ParetoJson<'a> {
    schema: &'static str,
    metric: &'static str,
    tolerance: f64,
    batches: usize,
    chosen: &'a Point,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_out: Option<&'a Point>,
    pins: &'a [String],
    points: Vec<&'a Point>,
}
