//! `ampc verify`: compares the outputs of a model with the expected outputs.

use super::args::VerifyArgs;
use super::batches;
use super::data::{self, Shows};
use super::diagnose;
use super::pipeline::{load, warn_of_reading};
use super::problem::{Failure, Problem};
use super::progress::Progress;
use super::shown;
use super::table::{Table, count, number};
use super::ui::{self, Stream, Ui};
use ampc::execute::Inputs;
use ampc::execute::report::{SCHEMA, ToleranceReport, ValueReport, VerifyReport};
use ampc::execute::verify::{Compared, Lone};
use ampc::execute::{
    Excused, Judgement, StoredTolerance, Verification, VerifyOptions, judge, prepare, read_test_data,
    verify_draws, verify_stored,
};
use ampc::ir::Module;
use ampc::ir::text::escape_hidden_in_json;
use ampc::runtime::{Runtime, Tolerance};
use ampc::{Error, ErrorKind};
use serde::Serialize;
use std::path::{Path, PathBuf};

pub(crate) fn run(args: &VerifyArgs, threads: Option<u32>, ui: Ui) -> Result<(), Failure> {
    data::refuse_dims_of_data(&args.data)?;
    let backend = data::backend(&args.device, threads, ui)?;
    let mut runtime = data::runtime(backend, &args.limits);
    runtime.limits.max_device_bytes = args.device.max_device_bytes;
    let passed = match (&args.other, &args.test_data) {
        (Some(other), _) => two_models(args, other, runtime, ui)?,
        (None, Some(folder)) => with_data(args, folder, &runtime, ui)?,
        (None, None) => return Err(Failure::usage("verify", "expected another model, or `--test-data DIR`")),
    };
    if passed { Ok(()) } else { Err(beyond()) }
}

/// A failure without a message: standard output has the whole result.
fn beyond() -> Failure {
    Failure { code: ErrorKind::Mismatch.exit_code(), problems: Vec::new(), see: None }
}

/// The requested tolerance.
fn tolerance(args: &VerifyArgs) -> Option<Tolerance> {
    if let Some(of_max) = args.tolerance {
        return Some(Tolerance { abs: 0.0, rel: 0.0, of_max });
    }
    let asked = args.rtol.is_some() || args.atol.is_some();
    asked.then(|| Tolerance { abs: args.atol.unwrap_or(0.0), rel: args.rtol.unwrap_or(0.0), of_max: 0.0 })
}

fn two_models(args: &VerifyArgs, other_path: &Path, runtime: Runtime, ui: Ui) -> Result<bool, Failure> {
    let stdin = Path::new("-");
    if args.model == stdin && other_path == stdin {
        return Err(Failure::usage("stdin", "only one of the models can come from standard input"));
    }
    let progress = Progress::start(ui);
    progress.stage("reading");
    let mut model = load(&args.model, ui)?;
    let mut other = load(other_path, ui)?;
    progress.suspend(|| {
        warn_of_reading(&model, Some(&args.model), ui);
        warn_of_reading(&other, Some(other_path), ui);
    });
    let findings = ampc::check(&mut model.module);
    if !findings.is_empty() {
        return Err(diagnose::failure(&Error::Invalid(findings), Some(&model.module)));
    }
    let draws = progress.suspend(|| batches::draws(&args.data, &model.module, &runtime, ui))?;
    progress.stage("running");
    let options = VerifyOptions { runtime, tolerance: tolerance(args) };
    let judged = judged(args, &mut model.module, &mut other.module, &draws, &options);
    let judged = judged
        .map_err(|error| data::failure_on(data::sizes(&draws), &error, &model.module, Shows::Messages))?;
    drop(progress);
    let found = &judged.found;
    for read in [&model, &other] {
        ampc::files::unchanged(&read.files()).map_err(|e| diagnose::failure(&e, None))?;
    }
    if args.json {
        let report =
            VerifyReport::new(&args.model.display().to_string(), &other_path.display().to_string(), found);
        let accepted = judged.accepted(args.accept_excused);
        ui::print(&json(&VerifyReport { accepted, excused: judged.excused.clone(), ..report }))?;
    } else {
        ui::show(&text(found, ui))?;
    }
    Ok(accepts(&judged, args.accept_excused, ui))
}

/// The verdict on two models; without excuses, which take a third run, if excuses are not accepted.
fn judged(
    args: &VerifyArgs,
    model: &mut Module,
    other: &mut Module,
    draws: &[Inputs],
    options: &VerifyOptions,
) -> Result<Judgement, Error> {
    if args.accept_excused {
        return judge(model, other, draws, options);
    }
    let found = verify_draws(model, other, draws, options)?;
    Ok(Judgement { found, excused: Vec::new(), is_excused: false })
}

/// True if two models are accepted, which both commands that compare models decide here. Warns of a verdict that says
/// little.
pub(crate) fn accepts(judged: &Judgement, accept_excused: bool, ui: Ui) -> bool {
    if let Some(doubt) = doubt(judged, accept_excused) {
        doubt.warn(ui);
    }
    judged.accepted(accept_excused)
}

/// The reason why the verdict that accepts two models says little, if it does.
pub(crate) fn doubt(judged: &Judgement, accept_excused: bool) -> Option<Doubt> {
    match judged.passed() {
        true if !judged.found.says_something() => Some(Doubt::nothing()),
        true => judged.found.is_all_zero().then(Doubt::zeros),
        false => judged.accepted(accept_excused).then(|| Doubt {
            code: "verify.excused",
            message: format!("accepted although {}", excused(&judged.found, &judged.excused)),
        }),
    }
}

/// A warning about a verdict. The warning is about the result, so it is printed with `-q` as well.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Doubt {
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

impl Doubt {
    /// Outputs without a number agree with much.
    pub(crate) fn nothing() -> Doubt {
        let message = "no finite element of an output was compared, so the verdict proves nothing".to_owned();
        Doubt { code: "verify.nothing", message }
    }

    /// Outputs that are 0 on all inputs agree whatever the nodes before them compute.
    pub(crate) fn zeros() -> Doubt {
        let message =
            "every element of the outputs is expected to be 0, so the comparison shows nothing".to_owned();
        Doubt { code: "verify.zeros", message }
    }

    pub(crate) fn warn(&self, ui: Ui) {
        let problem = Problem::warning(self.code, self.message.as_str());
        ui.complain(problem.draw(ui, Stream::Err).trim_start_matches('\n'));
    }
}

/// The number of outputs and elements beyond the tolerance, and their errors, which low products alone explain.
pub(crate) fn excused(found: &Verification, excused: &[Excused]) -> String {
    let mut names: Vec<&str> = excused.iter().map(|excuse| excuse.output.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let of_bound = |excuse: &&Excused| excuse.error;
    let Some(worst) = excused.iter().max_by(|a, b| of_bound(a).total_cmp(&of_bound(b))) else {
        return String::new();
    };
    let Excused { error, low_products, mismatches, elements, .. } = worst;
    let draw = match found.draws.get(worst.draw).filter(|_| found.draws.len() > 1) {
        Some(about) => format!(" (draw {}: {about})", worst.draw),
        None => String::new(),
    };
    format!(
        "{} of {} beyond the tolerance, and low products alone make {} so: of `{}` {} of {} {} beyond, by at most {error:.2e} \
         of its largest element, and by {low_products:.2e} with low products alone{draw}",
        number(names.len() as u64),
        match found.outputs.len() {
            1 => "1 output is".to_owned(),
            n => format!("{} outputs are", number(n as u64)),
        },
        if names.len() == 1 { "it" } else { "them" },
        worst.output,
        number(*mismatches),
        count(*elements, "element"),
        if *mismatches == 1 { "is" } else { "are" },
    )
}

fn json(report: &VerifyReport) -> String {
    let text = serde_json::to_string_pretty(report).unwrap_or_default();
    let mut text = escape_hidden_in_json(&text).into_owned();
    text.push('\n');
    text
}

/// The number of shown nodes that add most.
const WORST: usize = 5;

/// The verdict on each output, the first value beyond the tolerance, and the nodes that add most; with `-q`,
/// only failures.
fn text(found: &Verification, ui: Ui) -> String {
    let mut text = String::new();
    for output in found.outputs.iter().filter(|output| !ui.quiet || !output.agreement.passed()) {
        let said = format!("{}{}{}", output.agreement, held(output), drawn(found, output));
        text.push_str(&format!("output {}: {said}\n", shown::name(&output.value)));
    }
    if ui.quiet && found.passed() {
        return text;
    }
    text.push_str(&format!("{}\n", shown::message(&first(found))));
    if ui.quiet {
        return text;
    }
    for &draw in &found.without {
        let about = found.draws.get(draw).map_or("", String::as_str);
        text.push_str(&format!("draw {} was skipped: MODEL cannot be computed on {about}\n", draw));
    }
    text.push_str(&lone(&found.lone_values, "value", "MODEL"));
    text.push_str(&lone(&found.lone_outputs, "output", "OTHER"));
    let worst = found.worst();
    let shown = if ui.verbose { worst.len() } else { worst.len().min(WORST) };
    if shown > 0 {
        let mut table = Table::new(2, &[false, false, false, true, true]);
        table.row(["node", "operator", "value", "of max", "added"]);
        for value in &worst[..shown] {
            let error = |x: f64| format!("{x:.2e}");
            table.row([
                place(value),
                value.op.clone(),
                value.value.clone(),
                error(value.agreement.error()),
                value.adds.map_or_else(String::new, error),
            ]);
        }
        text.push_str(&format!("errors that nodes add to those of their operands, largest first:\n{table}"));
    }
    text
}

/// The bound that held for an output, if its elements are floats and something may be off.
pub(crate) fn held(value: &Compared) -> String {
    let found = &value.agreement.found;
    let Some(held_to) = found.held_to.filter(|_| found.finite > 0) else { return String::new() };
    let bound = found.bound();
    if held_to.rel > 0.0 {
        return format!("; at most {:.2e} of each and {bound:.2e} allowed", held_to.rel);
    }
    match held_to.of_max {
        _ if bound == 0.0 => String::new(),
        0.0 => format!("; at most {bound:.2e} allowed"),
        _ if found.all_zero => format!("; at most {bound:.2e} allowed, the rounding error of the value"),
        of_max => format!(
            "; at most {bound:.2e} allowed, {of_max:.2e} of the largest wanted ({:.2e})",
            found.max_want
        ),
    }
}

/// On which of several draws of inputs a value is so far off.
pub(crate) fn drawn(found: &Verification, value: &Compared) -> String {
    found.draw_of(value).map_or_else(String::new, |about| format!(" (draw {}: {about})", value.draw))
}

/// Values of one model that have no counterpart in the other, on a line, if there are any.
fn lone(lone: &Lone, what: &str, model: &str) -> String {
    let Some(first) = &lone.first else { return String::new() };
    let (of, have) = (count(lone.of as u64, what), if lone.count == 1 { "has" } else { "have" });
    format!(
        "{} of {of} of {model} {have} no counterpart (first: `{}`)\n",
        number(lone.count as u64),
        shown::name(first)
    )
}

/// The path of the node that makes a value, with the iterations of the loops it is in.
fn place(value: &Compared) -> String {
    format!("{}{}", value.path, iterations(value))
}

fn iterations(value: &Compared) -> String {
    let numbers: Vec<String> = value.iterations.iter().map(u64::to_string).collect();
    if numbers.is_empty() { String::new() } else { format!(" (iteration {})", numbers.join(", ")) }
}

/// The first value beyond the tolerance, on a line.
pub(crate) fn first(found: &Verification) -> String {
    let compared = count(found.values.len() as u64, "value");
    let tolerance = format!("the tolerance ({})", found.reason);
    match &found.first {
        None => format!("compared {compared} that both models compute: none is beyond {tolerance}"),
        Some(first) if first.node.is_some() => format!(
            "compared {compared} that both models compute: {} beyond {tolerance}; the first is `{}` of {} `{}`{}: {}{}{}",
            match found.beyond() {
                1 => "1 is".to_owned(),
                n => format!("{n} are"),
            },
            first.value,
            first.op,
            first.path,
            iterations(first),
            first.agreement,
            held(first),
            drawn(found, first)
        ),
        Some(first) => format!(
            "output `{}` is beyond {tolerance}: {}{}{}",
            first.value,
            first.agreement,
            held(first),
            drawn(found, first)
        ),
    }
}

fn with_data(args: &VerifyArgs, folder: &Path, runtime: &Runtime, ui: Ui) -> Result<bool, Failure> {
    let mut model = load(&args.model, ui)?;
    warn_of_reading(&model, None, ui);
    let prepared = prepare(&mut model.module, runtime);
    let mut session = prepared.map_err(|e| diagnose::failure(&e, Some(&model.module)))?;
    let fail = |error: Error| diagnose::failure(&error, Some(&model.module));
    let folders = data_sets(folder)?;
    let (stored_tolerance, reason) = of_test_data(args);
    let mut rows = Vec::new();
    for folder in folders {
        let data = read_test_data(&folder, &model.module, runtime.limits.max_bytes).map_err(fail)?;
        for output in verify_stored(&model.module, &mut session, &data, &stored_tolerance).map_err(fail)? {
            let shown = !ui.quiet || !output.agreement.passed();
            if shown && !args.json {
                ui::show(&stored(&folder, &output))?;
            }
            rows.push(ValueReport { folder: Some(folder.display().to_string()), ..ValueReport::of(&output) });
        }
    }
    ampc::files::unchanged(&model.files()).map_err(fail)?;
    if rows.iter().all(|row| row.passed && row.finite == 0) {
        Doubt::nothing().warn(ui);
    } else if rows.iter().all(|row| row.passed && row.all_zero) {
        Doubt::zeros().warn(ui);
    }
    let passed = rows.iter().all(|row| row.passed);
    if args.json {
        let report = VerifyReport {
            schema: SCHEMA,
            model: args.model.display().to_string(),
            against: folder.display().to_string(),
            passed,
            tolerance: ToleranceReport::new(&stored_tolerance.tolerance, reason),
            draws: Vec::new(),
            draws_without: Vec::new(),
            accepted: passed,
            excused: Vec::new(),
            first: rows.iter().find(|row| !row.passed).cloned(),
            outputs: rows,
            values: Vec::new(),
            lone: None,
        };
        ui::print(&json(&report))?;
    }
    Ok(passed)
}

/// Result for a stored output, on a line; for an output that is off with the node that makes it.
fn stored(folder: &Path, output: &Compared) -> String {
    let node = match output.node.filter(|_| !output.agreement.passed()) {
        Some(_) => format!(" of {} `{}`", output.op, output.path),
        None => String::new(),
    };
    let (agreement, held) = (&output.agreement, held(output));
    let said = format!("{} output {}{node}: {agreement}{held}", folder.display(), output.value);
    format!("{}\n", shown::message(&said))
}

/// The allowed error of stored outputs, and its origin.
fn of_test_data(args: &VerifyArgs) -> (StoredTolerance, &'static str) {
    let default = StoredTolerance::default();
    let asked = |tolerance| StoredTolerance { tolerance, abs_is_asked: true };
    match (args.tolerance, args.atol, args.rtol) {
        (Some(of_max), ..) => (asked(Tolerance { of_max, ..Tolerance::EXACT }), "asked for"),
        (None, None, None) => (default, "the default for test data"),
        (None, Some(abs), Some(rel)) => (asked(Tolerance { abs, rel, of_max: 0.0 }), "asked for"),
        (None, Some(abs), None) => {
            (asked(Tolerance { abs, ..default.tolerance }), "abs asked for, rel the default for test data")
        }
        (None, None, Some(rel)) => {
            let tolerance = Tolerance { rel, ..default.tolerance };
            (StoredTolerance { tolerance, ..default }, "rel asked for, abs the default for test data")
        }
    }
}

/// True if a folder has a file with a name of test data.
fn has_values(folder: &Path) -> bool {
    let is_value = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        let stem = name.to_str().and_then(|name| name.strip_suffix(".pb"));
        let number =
            stem.and_then(|stem| stem.strip_prefix("input_").or_else(|| stem.strip_prefix("output_")));
        number.is_some_and(|number| number.parse::<usize>().is_ok())
    };
    std::fs::read_dir(folder).is_ok_and(|entries| entries.flatten().any(is_value))
}

/// The folder, or the folders in it that have test data, by name.
fn data_sets(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |e: std::io::Error| Failure::io(&folder.display().to_string(), &e);
    let entries = std::fs::read_dir(folder).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let mut folders: Vec<PathBuf> = entries.map_err(failed)?.iter().map(std::fs::DirEntry::path).collect();
    folders.retain(|path| has_values(path));
    folders.sort();
    if let (true, [inner, ..]) = (has_values(folder), &folders[..]) {
        let message = format!(
            "`{}`: expected output_0.pb … in the folder or in folders of it, found test data in it and in `{}`; give one of \
             the two",
            folder.display(),
            inner.display()
        );
        return Err(Failure::usage("test_data", message));
    }
    let has_data = |path: &Path| path.join("output_0.pb").exists();
    if has_data(folder) {
        return Ok(vec![folder.to_owned()]);
    }
    // A data set without outputs is an error where it is read, unless no other folder has any.
    if !folders.iter().any(|path| has_data(path)) {
        let message = format!(
            "`{}`: expected output_0.pb … in the folder or in folders of it, found none",
            folder.display()
        );
        return Err(Failure::usage("test_data", message));
    }
    Ok(folders)
}
