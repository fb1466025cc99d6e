//! `ampc rewrite`: lower a model, say what was done.

use super::args::{EmitArg, RewriteArgs};
use super::emit::{self, Emit, Target};
use super::explain::Explained;
use super::problem::Failure;
use super::progress::Progress;
use super::run::{Run, load};
use super::ui::{self, Ui};
use super::{diagnose, settings, summary};
use ampc::ir::DType;
use ampc::report::ReportWarning;
use ampc::{ErrorKind, Report};
use serde::Serialize;

pub(crate) fn run(args: &RewriteArgs, ui: Ui) -> Result<(), Failure> {
    let options = settings::options(&args.precision, args.debug.verify_each, args.report.is_some())?;
    let format = if options.to == DType::BF16 { "bf16" } else { "fp16" };
    let emit = Emit::of(&args.write, args.output.as_deref(), EmitArg::Onnx, |kind| {
        emit::beside(&args.model, format, kind)
    })?;
    if emit.target == Target::Stdout && !args.explain.is_empty() {
        let message =
            "`--explain` and the model cannot both go to standard output: name a file with `--output`";
        return Err(Failure::usage("stdout", message));
    }

    let progress = Progress::start(ui);
    progress.stage("reading");
    let mut model = load(&args.model, ui)?;
    settings::check_keep_io(&options.keep_io, &model)?;
    let explained = Explained::find(&model.module, &args.explain)?;
    emit.check(&model)?;
    if let Some(path) = &args.report {
        emit::check(path, emit.force(), &model)?;
    }
    let before = emit::source_bytes(&model, &args.model);

    let pipeline = ampc::rewrite::pipeline_of(&options);
    let run = Run { ui, progress: &progress, debug: &args.debug, pipeline: &pipeline, path: &args.model };
    let mut report = run
        .watched(&mut model, |model, observer| ampc::rewrite::rewrite_in_place(model, &options, observer))?;
    let explanation = explained.text(&model.module, &report);

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
    if let Some(path) = &args.report {
        let text = report_text(&report, before, &written)?;
        ampc::files::write(path, text.as_bytes(), emit.force(), model.source.as_ref())
            .map_err(|e| diagnose::failure(&e, None))?;
    }
    drop(progress);
    ui::print(&explanation)?;
    ui.say(&summary::text(args, &report, &emit, before, &written, ui));
    Ok(())
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
