//! `ampc rewrite`: lower a model, say what was done.

use super::args::{EmitArg, RewriteArgs};
use super::emit::{self, Emit, Target};
use super::explain::Explained;
use super::opsets::OpsetAdvice;
use super::pipeline::{Run, load};
use super::problem::Failure;
use super::progress::Progress;
use super::summary::{Done, Low};
use super::ui::{self, Ui};
use super::verified::Source;
use super::{diagnose, settings, summary, targets};
use ampc::ir::DType;
use ampc::passes::Paths;
use ampc::report::ReportWarning;
use ampc::{ErrorKind, Report};
use serde::Serialize;
use std::path::Path;

pub(crate) fn run(args: &RewriteArgs, threads: Option<u32>, ui: Ui) -> Result<(), Failure> {
    if (args.data.is_given() || args.limits.is_given()) && !args.verify.verify {
        let message = "`--inputs`, `--random`, `--dim`, `--max-iterations` and `--time-limit` are for `--verify`, \
                       which was not asked for";
        return Err(Failure::usage("verify", message));
    }
    let mut options = settings::options(&args.precision, args.debug.verify_each, args.report.is_some())?;
    let format = if options.to == DType::BF16 { "bf16" } else { "fp16" };
    let emit = Emit::of(&args.write, args.output.as_deref(), EmitArg::Onnx, |kind| {
        emit::beside(&args.model, format, kind)
    })?;
    if emit.target == Target::Stdout && !args.explain.is_empty() {
        let message =
            "`--explain` and the model cannot both go to standard output: name a file with `--output`";
        return Err(Failure::usage("stdout", message));
    }
    let report_to_stdout = args.report.as_deref() == Some(Path::new("-"));
    if report_to_stdout && (emit.target == Target::Stdout || !args.explain.is_empty()) {
        let other = if emit.target == Target::Stdout { "the model" } else { "`--explain`" };
        let message = format!("the report and {other} cannot both go to standard output: name a file");
        return Err(Failure::usage("stdout", message));
    }
    let report_file = args.report.as_deref().filter(|_| !report_to_stdout);

    let progress = Progress::start(ui);
    progress.stage("reading");
    let mut model = load(&args.model, ui)?;
    settings::check_keep_io(&options.keep_io, &model)?;
    let explained = Explained::find(&model.module, &args.explain)?;
    options.explain = explained.paths();
    let raised =
        ampc::rewrite::raised_for_casts(&model, &options).map_err(|e| diagnose::failure(&e, None))?;
    let pipeline = ampc::rewrite::pipeline_of(raised.as_ref().map_or(&options, |(raised, _)| raised));
    targets::check(&model, &args.model, &emit, report_file, &args.debug, &pipeline)?;
    let source = progress.suspend(|| Source::of(args, threads, &model, ui))?;
    let before = emit::source_bytes(&model, &args.model);
    let nodes = Paths::new(&model.module).nodes().to_vec();

    let run = Run {
        ui,
        progress: &progress,
        debug: &args.debug,
        force: emit.force(),
        pipeline: &pipeline,
        path: &args.model,
    };
    let mut report = run
        .watched(&mut model, |model, observer| ampc::rewrite::rewrite_in_place(model, &options, observer))
        .map_err(|failure| if raised.is_some() { not_raised(failure) } else { failure })?;
    let explanation = explained.text(&model.module, &report);
    let opsets = OpsetAdvice::of(&run, &model, &options, &report);

    let verified = match &source {
        Some(source) => Some(source.compare(&run, &model, &options)?),
        None => None,
    };
    let low = Low::of(&nodes, &model.module, options.to);
    progress.stage("writing");
    if emit.kind == EmitArg::Emulated {
        model = ampc::emulate(model).map_err(|e| diagnose::failure(&e, None))?;
    }
    let written = emit.write(&model)?;
    report.warnings.extend(written.warnings.iter().map(|w| ReportWarning {
        code: w.code().to_owned(),
        message: w.to_string(),
        node: None,
    }));
    let mut printed = String::new();
    if args.report.is_some() {
        printed = report_text(&report, before, &written)?;
    }
    if let Some(path) = report_file {
        ampc::files::write(path, printed.as_bytes(), emit.force(), &model.files())
            .map_err(|e| diagnose::failure(&e, None).with_help(there_already(&written)))?;
        printed.clear();
    }
    drop(progress);
    ui::print(&printed)?;
    ui::show(&explanation)?;
    let done = Done { report: &report, low, opsets };
    ui.say(&summary::text(args, &done, &emit, before, &written, ui));
    if let Some(verified) = verified {
        ui.say(&verified);
    }
    Ok(())
}

/// What stops a model that has to be raised although nobody asked for it.
fn not_raised(failure: Failure) -> Failure {
    match failure.problems.first() {
        Some(problem) if problem.code == "ampc::pass::no_form" => failure.with_help(
            "below opset 6 there is no Cast that runtimes take, so lowering the model means raising it: export it for \
             opset 6 or later, or keep it as it is",
        ),
        _ => failure,
    }
}

/// What is there although the report is not.
fn there_already(written: &emit::Written) -> String {
    let files: Vec<String> = written.files.iter().map(|f| format!("`{}`", f.display())).collect();
    match files.is_empty() {
        true => "the model was written to standard output, the report was not written".into(),
        false => format!("{} was written, the report was not", files.join(" and ")),
    }
}

/// The report with the sizes of the files, which only the one who writes them knows.
#[derive(Serialize)]
struct FullReport<'a> {
    #[serde(flatten)]
    report: &'a Report,
    files: Files,
}

#[derive(Serialize)]
struct Files {
    bytes_before: Option<u64>,
    data_bytes_before: Option<u64>,
    bytes_after: u64,
    data_bytes_after: u64,
}

fn report_text(
    report: &Report,
    before: Option<(u64, u64)>,
    written: &emit::Written,
) -> Result<String, Failure> {
    let files = Files {
        bytes_before: before.map(|(model, _)| model),
        data_bytes_before: before.map(|(_, data)| data),
        bytes_after: written.bytes,
        data_bytes_after: written.data_bytes,
    };
    let mut text = serde_json::to_string_pretty(&FullReport { report, files }).map_err(|e| {
        Failure::of(
            ErrorKind::Bug,
            diagnose::bug(format!("a bug in ampc: the report cannot be written: {e}")),
        )
    })?;
    text.push('\n');
    Ok(text)
}
