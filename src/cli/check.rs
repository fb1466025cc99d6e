//! `ampc check`: every problem of a model.

use super::args::CheckArgs;
use super::diagnose;
use super::pipeline::no_device;
use super::problem::{DRAWN, Failure, LINES, Problem};
use super::progress::Progress;
use super::shown;
use super::table::count;
use super::ui::{self, Stream, Ui};
use ampc::Model;
use ampc::ir::text::{PrintOptions, print};
use ampc::passes::declared::{self, BodyInputs};
use std::path::Path;

pub(crate) fn run(args: &CheckArgs, ui: Ui) -> Result<(), Failure> {
    let progress = Progress::start(ui);
    progress.stage("checking");
    no_device(&args.model)?;
    let (problems, code) = problems(args)?;
    drop(progress);
    if code == ampc::ErrorKind::Io.exit_code() {
        return Err(Failure { code, problems, see: None });
    }
    ui::show(&text(&args.model, &problems, ui))?;
    if code == 0 { Ok(()) } else { Err(Failure { code, problems: Vec::new(), see: None }) }
}

/// Problems, then warnings, and the exit code.
fn problems(args: &CheckArgs) -> Result<(Vec<Problem>, u8), Failure> {
    let path = &args.model;
    let mut model = match ampc::load(path) {
        Ok(model) => model,
        Err(error) => {
            let failure = diagnose::failure(&error, None);
            return Ok((failure.problems, failure.code));
        }
    };
    let inputs = BodyInputs::of(&model.module);
    let findings = ampc::check(&mut model.module);
    if let Err(error) = ampc::files::unchanged(&model.files()) {
        let failure = diagnose::failure(&error, None);
        return Ok((failure.problems, failure.code));
    }
    let mut problems = diagnose::of_findings(&findings, Some(&model.module));
    let mut code = if problems.is_empty() { 0 } else { ampc::ErrorKind::InvalidInput.exit_code() };
    if code == 0 {
        let beside = beside(&model, args)?;
        code = beside.iter().map(|failure| failure.code).max().unwrap_or(0);
        problems.extend(beside.into_iter().flat_map(|failure| failure.problems));
    }
    problems.extend(model.warnings.iter().map(diagnose::of_warning));
    if code == 0 {
        problems.extend(without_data(&model, path));
        let contradictions = declared::contradictions(&model.module, &inputs);
        problems.extend(contradictions.into_iter().map(|w| Problem::warning(w.code, w.message)));
        let entries = model.source.as_ref().map(|s| ampc::onnx::false_value_info(&model.module, s));
        problems.extend(entries.into_iter().flatten().flatten().map(|w| diagnose::of_warning(&w)));
    }
    Ok((problems, code))
}

/// The problems of the metadata of a step, and of files that have to belong to the model.
fn beside(model: &Model, args: &CheckArgs) -> Result<Vec<Failure>, Failure> {
    let is_step = ampc::train::is_step(&model.module);
    let mut found = Vec::new();
    if is_step {
        found.push(ampc::train::check_step(&model.module));
    }
    if let Some(path) = &args.state {
        if !is_step {
            let message = format!(
                "`--state`: expected a training step, which has a state, found another model in `{}`; \
                 `ampc train-step` makes a training step from it",
                args.model.display()
            );
            return Err(Failure::usage("step", message));
        }
        // The metadata says which states there are.
        if found.iter().all(Result::is_ok) {
            found.push(ampc::train::check_state(&model.module, path));
        }
    }
    if let Some(path) = &args.report {
        found.push(ampc::report::refuse_report_of_other(model, path));
    }
    Ok(found.into_iter().filter_map(|checked| Some(diagnose::failure(&checked.err()?, None))).collect())
}

/// A warning if a text names constants that are in a file which does not exist.
fn without_data(model: &Model, path: &Path) -> Option<Problem> {
    let data = ampc::model::data_path(path);
    if model.source.is_some() || path == Path::new("-") || data.exists() {
        return None;
    }
    let n = print(&model.module, &PrintOptions::default()).large.len();
    let text = format!(
        "{} in `{}`, which does not exist: the model can be inspected, but not run or rewritten",
        if n == 1 { "1 constant is".to_owned() } else { format!("{n} constants are") },
        data.display()
    );
    (n > 0).then(|| Problem::warning("text.missing-data", text))
}

/// The first problems are drawn, all others take a line each.
fn text(path: &Path, problems: &[Problem], ui: Ui) -> String {
    let mut text = String::new();
    for problem in problems.iter().take(DRAWN) {
        text.push_str(&problem.draw(ui, Stream::Out));
        text.push('\n');
    }
    for problem in problems.iter().skip(DRAWN).take(LINES) {
        text.push_str(&problem.line());
    }
    if problems.len() > DRAWN + LINES {
        text.push_str(&format!("and {}\n", count((problems.len() - DRAWN - LINES) as u64, "more problem")));
    }
    let warnings = problems.iter().filter(|p| p.warning).count();
    let errors = problems.len() - warnings;
    let mut words =
        vec![if errors == 0 { "no problems".to_owned() } else { count(errors as u64, "problem") }];
    if warnings > 0 {
        words.push(count(warnings as u64, "warning"));
    }
    text.push_str(&format!("{}: {}\n", shown::message(&path.display().to_string()), words.join(", ")));
    text
}
