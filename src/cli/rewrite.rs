//! `ampc rewrite`: lowers a model and prints a summary.

use super::args::{EmitArg, RewriteArgs};
use super::calibrate::Calibration;
use super::emit::{self, Emit, Target, Written};
use super::explain::Explained;
use super::opsets::OpsetAdvice;
use super::pipeline::{Run, load};
use super::problem::Failure;
use super::progress::Progress;
use super::search::Search;
use super::summary::Done;
use super::targets::Beside;
use super::ui::Ui;
use super::verified::{Source, Verdict, VerdictReport};
use super::{data, diagnose, settings, shown, summary, targets};
use ampc::execute::inputs::{BoundDim, Dims, bound_dims};
use ampc::files::Batch;
use ampc::ir::DType;
use ampc::ir::text::escape_hidden_in_json;
use ampc::passes::Paths;
use ampc::passes::cost::BoundInputs;
use ampc::passes::observed::Observed;
use ampc::passes::pipeline::Pipeline;
use ampc::passes::raise_opset::opset;
use ampc::report::{ReportWarning, SLOWER};
use ampc::{ErrorKind, Model, Report, RewriteOptions};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;

/// The steps of the command, in order; each refusal comes as early as possible, before the model is read,
/// computed or written.
pub(crate) fn run(args: &RewriteArgs, threads: Option<u32>, ui: Ui) -> Result<(), Failure> {
    check_data(args)?;
    let calibration = Calibration::of(args)?;
    let search = Search::of(args)?;
    let (mut options, mut read) =
        settings::options(&args.precision, args.debug.verify_each, args.report.is_some())?;
    calibration.iter().try_for_each(|calibration| calibration.check(&options))?;
    let emit = emit_of(args, options.to)?;
    let report_file = report_file(args, &emit)?;

    let progress = Progress::start(ui);
    progress.stage("reading");
    let mut model = load(&args.model, ui)?;
    settings::check_keep_io(&options.keep_io, &model)?;
    settings::set_dims(&mut options.target, data::dims(&args.data.dim)?, &model)?;
    options.only_if_faster |= args.only_if_faster;
    let explained = Explained::find(&model.module, &args.explain)?;
    options.explain = explained.paths();
    if ui.quiet && args.report.is_none() {
        options.alternative = None;
    }
    if let Some(calibration) = &calibration {
        // The pipeline has the pass before its values are known.
        options.observed = Some(Observed::default());
        read.extend(calibration.files());
    }
    let (mut is_raised, mut pipeline) = pipeline_of(&model, &options)?;
    read.extend(search.as_ref().map_or_else(|| data::files(&args.data), Search::files));
    let explanation = (!args.explain.is_empty()).then_some(Beside::Explanation);
    let pareto = args.search.pareto.as_deref().map(Beside::Pareto);
    let policy = args.search.write_policy.as_deref().map(Beside::Policy);
    let report = args.report.as_deref().map(Beside::Report);
    let beside: Vec<Beside<'_>> = [report, explanation, pareto, policy].into_iter().flatten().collect();
    targets::check(&model, &args.model, &read, &emit, &beside, &args.debug, &pipeline)?;
    if let Some(calibration) = &calibration {
        calibration.observe(args, threads, &model, &mut options, (&progress, ui))?;
        (is_raised, pipeline) = pipeline_of(&model, &options)?;
    }
    let searched = match &search {
        Some(search) => Some(search.run(args, threads, &model, &mut options, (&progress, ui))?),
        None => None,
    };
    if searched.is_some() {
        (is_raised, pipeline) = pipeline_of(&model, &options)?;
    }
    let source =
        progress.suspend(|| Source::of(args, threads, &model, emit.kind == EmitArg::Emulated, ui))?;
    let before = emit::source_bytes(&model, &args.model);
    let opset_before = opset(&model.module);

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
        .map_err(|failure| if is_raised { not_raised(failure) } else { failure })?;
    let explanation = explained.text(&model.module, &report);
    let opsets = OpsetAdvice::of(&run, &model, &options, &report);
    let raised = opset(&model.module).filter(|&opset| Some(opset) != opset_before);

    let files = searched.as_ref().map_or_else(Vec::new, |searched| searched.files(args));
    let hand_out = HandOut { args, before, report_file, force: emit.force(), explanation, files };
    if let Some(unmatched) = explained.unmatched() {
        return Err(hand_out.without(&emit, unmatched, &report, None, &model, &progress));
    }
    let verdict = source.as_ref().map(|source| source.compare(&run, &model, &options)).transpose()?;
    if let Some(verdict @ Verdict::Beyond { .. }) = &verdict
        && let Some(failure) = hand_out.without_model(&emit, verdict, &report, &model, &progress)
    {
        return Err(failure);
    }
    progress.stage("writing");
    if emit.kind == EmitArg::Emulated {
        model = emulated(model, &mut report)?;
    }
    let (batch, written) = hand_out.with_model(&emit, &model, &mut report, verdict.as_ref())?;
    drop(progress);
    // If they cannot be printed, no file appears either.
    let written = emit::finish(batch, written)?;
    let bound = BoundInputs::new(&model.module, &options.target.dims).unwrap_or_default();
    let chosen: BTreeSet<&str> = bound.chosen().map(|dim| dim.name.as_str()).collect();
    let is_chosen = |dim: BoundDim| chosen.contains(dim.name.as_str());
    let has_open_dims =
        bound_dims(&model.module, &Dims::new()).is_ok_and(|dims| dims.into_iter().any(is_chosen));
    let predicts = !ui.quiet && report.time.is_some();
    let misfits = predicts.then(|| data::misfits(&bound, &model.module)).flatten();
    let misfits = misfits.map_or_else(String::new, |(sizes, options)| format!("; {sizes}; {options}"));
    let done = Done { report: &report, opsets, raised, has_open_dims, misfits };
    if ui.quiet {
        ui.complain_if_any(&summary::warnings(&done, ui));
    }
    ui.say(&summary::text(args, &done, &emit, before, &written, ui));
    if let Some(Verdict::Passed { said, .. }) = verdict {
        ui.say(&said);
    }
    if let Some(searched) = &searched {
        ui.say(searched.said().trim_end());
    }
    // The program ends here, and the system takes back the memory of a large model sooner than it is freed.
    std::mem::forget((report, model));
    Ok(())
}

/// The passes of the rewrite; true if they raise the model without a request.
fn pipeline_of(model: &Model, options: &RewriteOptions) -> Result<(bool, Pipeline), Failure> {
    let raised = ampc::rewrite::raised_for_casts(model, options);
    let raised = raised.map_err(|error| diagnose::failure(&error, None))?;
    let pipeline = ampc::rewrite::pipeline_of(raised.as_ref().map_or(options, |(raised, _)| raised));
    Ok((raised.is_some(), pipeline))
}

/// Checks that arguments of a verification are not given without `--verify`.
fn check_data(args: &RewriteArgs) -> Result<(), Failure> {
    let searches = args.search.search;
    let runs = args.verify.verify || searches || !args.calibrate.is_empty();
    if args.data.has_values() && !args.verify.verify && !searches {
        let message = "`--inputs` and `--random` need `--verify` or `--search`; `--calibrate DATA` chooses precisions by data";
        return Err(Failure::usage("verify", message));
    }
    if args.verify.tolerance.is_some() && !args.verify.verify && !searches {
        return Err(Failure::usage("tolerance", "`--tolerance` needs `--verify` or `--search`"));
    }
    if args.limits.is_given() && !runs {
        let message = "`--max-iterations` and `--time-limit` need `--verify`, `--search` or `--calibrate`";
        return Err(Failure::usage("verify", message));
    }
    Ok(())
}

/// The destination of the model; by default beside the source, with the format in its name.
fn emit_of(args: &RewriteArgs, to: DType) -> Result<Emit, Failure> {
    let format = if to == DType::BF16 { "bf16" } else { "fp16" };
    Emit::of(&args.write, args.output.as_deref(), EmitArg::Onnx, |kind| {
        emit::beside(&args.model, format, kind)
    })
}

/// The file of the report, if it goes into one; at most one thing goes to standard output.
fn report_file<'a>(args: &'a RewriteArgs, emit: &Emit) -> Result<Option<&'a Path>, Failure> {
    if emit.target == Target::Stdout && !args.explain.is_empty() {
        let message =
            "`--explain` and the model cannot both go to standard output: name a file with `--output`";
        return Err(Failure::usage("stdout", message));
    }
    let to_stdout = args.report.as_deref() == Some(Path::new("-"));
    if to_stdout && (emit.target == Target::Stdout || !args.explain.is_empty()) {
        let other = if emit.target == Target::Stdout { "the model" } else { "`--explain`" };
        let message = format!("the report and {other} cannot both go to standard output: name a file");
        return Err(Failure::usage("stdout", message));
    }
    Ok(args.report.as_deref().filter(|_| !to_stdout))
}

/// The fp32 model that rounds like this one. Its warnings are added to the warnings of the rewrite, which has
/// already warned about declared types.
fn emulated(model: Model, report: &mut Report) -> Result<Model, Failure> {
    let (model, told) = ampc::emulate(model).map_err(|e| diagnose::failure(&e, None))?;
    // Times are predicted for the 16-bit model.
    report.warnings.retain(|warning| warning.code != SLOWER);
    let paths = Paths::of(&model.module);
    for warning in told {
        if report.warnings.iter().all(|said| said.message != warning.message) {
            report.warnings.push(ReportWarning::of_pass(warning, |node| paths.path(node).to_owned()));
        }
    }
    Ok(model)
}

/// Destination of the report and the explanation, and the content of the report beside the work of the passes.
struct HandOut<'a> {
    args: &'a RewriteArgs,
    /// Bytes of the model before and of its data files, where they are known.
    before: Option<(u64, u64)>,
    report_file: Option<&'a Path>,
    force: bool,
    explanation: String,
    /// The files of a search, with their content.
    files: Vec<(&'a Path, String)>,
}

impl HandOut<'_> {
    /// Adds the model, the report and the explanation to a batch.
    fn with_model(
        &self,
        emit: &Emit,
        model: &Model,
        report: &mut Report,
        verdict: Option<&Verdict>,
    ) -> Result<(Batch, Written), Failure> {
        let mut batch = Batch::new();
        let mut written = emit.stage(model, &mut batch)?;
        report.warnings.extend(written.warnings.iter().map(|w| ReportWarning::new(w.code(), w.to_string())));
        if self.args.report.is_some() {
            written.digest = emit.digest(&written, &mut batch)?;
        }
        let text = report_text(self.args, report, self.before, Some(&written), verdict)?;
        self.stage(&text, model, &mut batch, &mut written)?;
        Ok((batch, written))
    }

    /// The failure for a verdict, after the report and the explanation have been written without a model.
    fn without_model(
        &self,
        emit: &Emit,
        verdict: &Verdict,
        report: &Report,
        model: &Model,
        progress: &Progress,
    ) -> Option<Failure> {
        let failure = verdict.failure(self.args.report.is_some())?;
        Some(self.without(emit, failure, report, Some(verdict), model, progress))
    }

    /// A failure, after the report and the explanation have been handed out without a model.
    fn without(
        &self,
        emit: &Emit,
        failure: Failure,
        report: &Report,
        verdict: Option<&Verdict>,
        model: &Model,
        progress: &Progress,
    ) -> Failure {
        let told = report_text(self.args, report, self.before, None, verdict).and_then(|text| {
            let (mut batch, mut written) = (Batch::new(), Written::default());
            self.stage(&text, model, &mut batch, &mut written)?;
            progress.suspend(|| emit::finish(batch, written))
        });
        let kept = emit.existing().map(|path| format!("; `{}` was left as it was", path.display()));
        let kept = kept.unwrap_or_else(|| "; no model was written".into());
        let mut failure = failure.retold(|message| format!("{message}{kept}"));
        failure.problems.extend(told.err().into_iter().flat_map(|failure| failure.problems));
        failure
    }

    /// Adds the report, which is empty if not requested, and the explanation to the files of a batch.
    fn stage(
        &self,
        report: &str,
        model: &Model,
        batch: &mut Batch,
        written: &mut Written,
    ) -> Result<(), Failure> {
        match self.report_file {
            Some(path) => batch
                .add(path, report.as_bytes(), self.force, &model.files())
                .map_err(|e| diagnose::failure(&e, None))?,
            None => written.text.push_str(report),
        }
        written.text.push_str(&shown::guarded(&self.explanation));
        for (path, text) in &self.files {
            let added = batch.add(path, text.as_bytes(), self.force, &model.files());
            added.map_err(|e| diagnose::failure(&e, None))?;
        }
        Ok(())
    }
}

/// The failure to raise a model that has to be raised without a request, with advice.
fn not_raised(failure: Failure) -> Failure {
    match failure.problems.first() {
        Some(problem) if problem.code == "ampc::pass::no_form" => failure.with_help(
            "below opset 6 there is no Cast that runtimes accept, so a lowered model needs opset 6: export the model \
             for opset 6 or later, or keep it in fp32",
        ),
        _ => failure,
    }
}

/// The report with the result of verification, and with the sizes of the files, which are known only after
/// writing: `None` if no model is written.
#[derive(Serialize)]
struct FullReport<'a> {
    #[serde(flatten)]
    report: &'a Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    verify: Option<VerdictReport<'a>>,
    files: Files,
}

#[derive(Serialize)]
struct Files {
    bytes_before: Option<u64>,
    data_bytes_before: Option<u64>,
    bytes_after: Option<u64>,
    data_bytes_after: Option<u64>,
    /// By which the report says which model it is about.
    hash_after: Option<String>,
}

/// The report as JSON; empty if not requested.
fn report_text(
    args: &RewriteArgs,
    report: &Report,
    before: Option<(u64, u64)>,
    written: Option<&Written>,
    verdict: Option<&Verdict>,
) -> Result<String, Failure> {
    if args.report.is_none() {
        return Ok(String::new());
    }
    let files = Files {
        bytes_before: before.map(|(model, _)| model),
        data_bytes_before: before.map(|(_, data)| data),
        bytes_after: written.map(|written| written.bytes),
        data_bytes_after: written.map(|written| written.data_bytes),
        hash_after: written.and_then(|written| written.digest.clone()),
    };
    let verify = verdict.map(Verdict::report);
    let text = serde_json::to_string_pretty(&FullReport { report, verify, files }).map_err(|e| {
        Failure::of(
            ErrorKind::Bug,
            diagnose::bug(format!("a bug in ampc: the report cannot be written: {e}")),
        )
    })?;
    let mut text = escape_hidden_in_json(&text).into_owned();
    text.push('\n');
    Ok(text)
}
