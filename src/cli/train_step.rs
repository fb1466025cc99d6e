//! `ampc train-step`: from a forward model to a training step.

use super::args::{EmitArg, LossPrecisionArg, MasterWeightsArg, RecomputeArg, TrainStepArgs};
use super::emit::{self, Emit, Target, Written};
use super::pipeline::{Run, load};
use super::problem::{Failure, Problem};
use super::progress::Progress;
use super::summary::data_lines as lines_of_data;
use super::targets::Beside;
use super::ui::{Stream, Ui};
use super::{data, diagnose, settings, shown, table, targets};
use ampc::files::Batch;
use ampc::ir::op::OpKind;
use ampc::ir::text::escape_hidden_in_json;
use ampc::ir::{DType, Module, Node, Value};
use ampc::passes::Paths;
use ampc::passes::Warning;
use ampc::passes::autodiff::{self, CustomGradients};
use ampc::passes::parameters::{Signature, origin_of, tied};
use ampc::passes::pipeline::Pipeline;
use ampc::passes::step::loss::LossSpec;
use ampc::passes::step::{self, Phase, Scaler, StateKind, Update};
use ampc::report::{StepReport, is_about_result};
use ampc::train::{TrainOptions, stage_state, train_step_in_place};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

mod memory;

pub(crate) fn run(args: &TrainStepArgs, ui: Ui) -> Result<(), Failure> {
    if args.state == Path::new("-") {
        let message = "`--state -`: expected the name of a file (`--state FILE.safetensors`)";
        return Err(Failure::usage("state", message));
    }
    let emit = Emit::of(&args.write, Some(&args.output), EmitArg::Onnx, |_| Target::Stdout)?;
    match (&args.export, &args.model, &args.step.loss) {
        (Some(step), ..) => export(args, step, &emit, ui),
        (None, Some(model), Some(loss)) => make(args, model, loss, &emit, ui),
        (None, ..) => unreachable!("the arguments ask for a model and a loss"),
    }
}

/// Writes the forward model of a step.
fn export(args: &TrainStepArgs, step: &Path, emit: &Emit, ui: Ui) -> Result<(), Failure> {
    let progress = Progress::start(ui);
    progress.stage("reading");
    let model = load(step, ui)?;
    let read = [settings::ReadFile { what: "the state", path: args.state.clone() }];
    targets::check(&model, step, &read, emit, &[], &args.debug, &Pipeline::default())?;
    let failure = |e: ampc::Error| diagnose::failure(&e, None);
    let state = ampc::train::read_weights(&model.module, &args.state).map_err(failure)?;
    let mut model = ampc::train::inference_model(model, &state).map_err(failure)?;
    progress.stage("writing");
    if emit.kind == EmitArg::Emulated {
        (model, _) = ampc::emulate(model).map_err(failure)?;
    }
    let mut batch = Batch::new();
    let written = emit.stage(&model, &mut batch)?;
    let written = emit::finish(batch, written)?;
    drop(progress);
    let output = shown::message(&args.output.display().to_string());
    let tensors = table::count(state.len() as u64, "tensor");
    let wrote =
        format!("wrote       {output} ({}), with {tensors} of the state", table::bytes(written.bytes));
    ui.say(&format!("{wrote}{}", data_lines(&written)));
    Ok(())
}

/// A line for each data file that the model refers to: the model is complete with these files beside it alone.
fn data_lines(written: &Written) -> String {
    lines_of_data(written).map(|line| format!("\ndata        {}", shown::message(&line))).collect()
}

/// Makes a step of a model.
fn make(args: &TrainStepArgs, path: &Path, loss: &LossSpec, emit: &Emit, ui: Ui) -> Result<(), Failure> {
    let (options, read) = options(args, loss)?;
    let progress = Progress::start(ui);
    progress.stage("reading");
    let mut model = load(path, ui)?;
    let pipeline =
        ampc::train::pipeline_of_step(&model.module, &options).map_err(|e| diagnose::failure(&e, None))?;
    let report_file = args.report.as_deref();
    if report_file == Some(Path::new("-")) && emit.target == Target::Stdout {
        let message = "the report and the model cannot both go to standard output: name a file";
        return Err(Failure::usage("stdout", message));
    }
    let report_file = report_file.filter(|&path| path != Path::new("-"));
    let report = args.report.as_deref().map(Beside::Report);
    let beside = report.into_iter().chain([Beside::State(&args.state)]);
    let beside: Vec<Beside<'_>> = beside.collect();
    targets::check(&model, path, &read, emit, &beside, &args.debug, &pipeline)?;
    let run =
        Run { ui, progress: &progress, debug: &args.debug, force: emit.force(), pipeline: &pipeline, path };
    let (state, mut warnings) =
        run.watched(&mut model, |model, observer| train_step_in_place(model, &options, observer))?;
    let mut summary = summary(&model.module);
    let kept = kept(&model.module).into_iter().map(|(value, _)| bytes(&model.module, value)).sum();
    summary.push_str(&memory::summary(&model.module, &options.dims, kept)?);
    if ui.verbose {
        summary.insert_str(0, &parameters(&model.module));
    }
    let report = args.report.as_ref().map(|_| report_of(&model.module, &options, &warnings)).transpose()?;
    progress.stage("writing");
    if emit.kind == EmitArg::Emulated {
        let (emulated, told) = ampc::emulate(model).map_err(|e| diagnose::failure(&e, None))?;
        model = emulated;
        warnings.extend(told);
    }
    let mut batch = Batch::new();
    let bytes = stage_state(&state, &model, &args.state, emit.force(), &mut batch)
        .map_err(|e| diagnose::failure(&e, None))?;
    let mut written = emit.stage(&model, &mut batch)?;
    let report =
        report.map(|report| report_text(report, emit, &written, &mut batch)).transpose()?.unwrap_or_default();
    match report_file {
        Some(path) => batch
            .add(path, report.as_bytes(), emit.force(), &model.files())
            .map_err(|e| diagnose::failure(&e, None))?,
        None => written.text.push_str(&report),
    }
    let written = emit::finish(batch, written)?;
    drop(progress);
    let paths = Paths::of(&model.module);
    for warning in warnings {
        let place = warning.node.map_or_else(String::new, |node| format!("`{}`: ", paths.path(node)));
        let problem = Problem::warning(warning.code, format!("{place}{}", warning.message));
        let say = if is_about_result(warning.code) { Ui::complain } else { Ui::say };
        say(ui, problem.draw(ui, Stream::Err).trim_start_matches('\n'));
    }
    let name = |path: &Path| shown::message(&path.display().to_string());
    let mut text = summary;
    let _ = write!(text, "wrote       {} ({})", name(&args.output), table::bytes(written.bytes));
    let _ = writeln!(text, "{}", data_lines(&written));
    let tensors = table::count(state.len() as u64, "tensor");
    let _ = write!(text, "state       {} ({tensors}, {})", name(&args.state), table::bytes(bytes));
    ui.say(&text);
    Ok(())
}

fn report_of(module: &Module, options: &TrainOptions, warnings: &[Warning]) -> Result<StepReport, Failure> {
    StepReport::new(module, options, warnings).map_err(|e| diagnose::failure(&e, None))
}

/// The report with the size and digest of the step that was written.
#[derive(Serialize)]
struct FullReport {
    #[serde(flatten)]
    report: StepReport,
    files: Files,
}

#[derive(Serialize)]
struct Files {
    bytes_after: u64,
    /// By which the report says which step it is about.
    hash_after: Option<String>,
}

/// The report of the step of a batch as JSON.
fn report_text(
    report: StepReport,
    emit: &Emit,
    written: &Written,
    batch: &mut Batch,
) -> Result<String, Failure> {
    let hash_after = emit.digest(written, batch)?;
    let files = Files { bytes_after: written.bytes, hash_after };
    let text =
        serde_json::to_string_pretty(&FullReport { report, files }).expect("a report is numbers and text");
    let mut text = escape_hidden_in_json(&text).into_owned();
    text.push('\n');
    Ok(text)
}

/// The options, and the files that they were read from.
fn options(
    args: &TrainStepArgs,
    loss: &LossSpec,
) -> Result<(TrainOptions, Vec<settings::ReadFile>), Failure> {
    let (precision, mut read) = if args.fp32 {
        (None, Vec::new())
    } else {
        let (precision, read) = settings::options(&args.precision, args.debug.verify_each, false)?;
        (Some(precision), read)
    };
    let is_fp16 = precision.as_ref().is_some_and(|options| options.to == DType::F16);
    let scaler = match &args.step.scaler {
        None if is_fp16 => "ampc".parse(),
        None => Ok(Scaler::None),
        Some(text) if Path::new(text).extension().is_some_and(|e| e == "json") => {
            read.push(settings::ReadFile { what: "the scaler", path: text.into() });
            Ok(scaler_of_file(text)?)
        }
        Some(text) => text.parse(),
    };
    let scaler = scaler.map_err(|error| Failure::usage("scaler", format!("`--scaler`: {error}")))?;
    let step = &args.step;
    let asked = step.master_weights.map(|given| given == MasterWeightsArg::Fp32);
    let wanted = precision.as_ref().and_then(|options| options.policy.wants().master_weights);
    let keeps_master_weights = asked.or(wanted).unwrap_or(true);
    let emulated = args.write.emit == Some(EmitArg::Emulated);
    let options = TrainOptions {
        precision,
        loss: loss.clone(),
        target: step.target_input.clone(),
        keeps_loss_fp32: step.loss_precision == LossPrecisionArg::Fp32,
        update: Update {
            optimizer: step.optimizer.clone(),
            scaler,
            clip_norm: step.clip_norm,
            decay: step.decay.clone(),
            keeps_master_weights,
            // An fp32 model that rounds casts its weights itself.
            writes_low_copies: !emulated,
        },
        train: step.train.clone(),
        freeze: step.freeze.clone(),
        stop_gradient: step.stop_gradient.clone(),
        freezes_unreached: step.freeze_unused,
        recomputes: step.recompute == RecomputeArg::Cheap,
        dims: data::dims(&step.dim)?,
        dropout_seed: step.dropout_seed,
        gradients: CustomGradients::default(),
        verify_each: args.debug.verify_each,
    };
    Ok((options, read))
}

/// A scaler of a JSON file: its fields, as docs/training.md lists them.
fn scaler_of_file(path: &str) -> Result<Scaler, Failure> {
    let text = ampc::files::read_text(Path::new(path)).map_err(|e| Failure::io(path, &e))?;
    let wrong = |problem: String| Failure::usage("scaler", format!("`{path}`: {problem}"));
    ampc::passes::step::Dynamic::from_json(&text).map(Scaler::Dynamic).map_err(wrong)
}

/// The parameters that are trained, a line each.
fn parameters(module: &Module) -> String {
    let mut text = String::new();
    for (value, _) in kept(module).into_iter().filter(|&(_, kind)| kind == Kept::Parameter) {
        let name = ampc::ir::verify::name_of(module, value);
        let ty = ampc::ir::infer::describe(&module.value(value).ty);
        let _ = write!(text, "parameter   {} {ty}", shown::message(&name));
        if let Some(origin) = origin_of(module, value) {
            let _ = write!(text, " ({} of PyTorch)", shown::message(origin));
        }
        text.push('\n');
    }
    text
}

/// Summary of a step: the states that it keeps by precision and use, and the nodes and casts of each phase.
fn summary(module: &Module) -> String {
    let kept = kept(module);
    let of = |kind: Kept| -> Vec<Value> {
        kept.iter().filter(|&&(_, found)| found == kind).map(|&(value, _)| value).collect()
    };
    let bytes = |values: Vec<Value>| table::bytes(values.into_iter().map(|value| bytes(module, value)).sum());
    let is_low = |&value: &Value| module.value(value).ty.dtype().is_some_and(DType::is_low);
    let (low, full): (Vec<Value>, Vec<Value>) = of(Kept::Parameter).into_iter().partition(is_low);
    let parameters = table::count((low.len() + full.len()) as u64, "parameter");
    let states = table::count(module.graph(module.main()).states.len() as u64, "state");
    let mut text = format!("trained     {parameters}, {states}\n");
    text.push_str(&signature(module, &of(Kept::Parameter)));
    let (full, optimizer, statistics) = (bytes(full), bytes(of(Kept::Optimizer)), bytes(of(Kept::Statistic)));
    let _ = writeln!(
        text,
        "fp32        {full} of parameters, {optimizer} of the optimizer, {statistics} of running statistics"
    );
    let (low, copies) = (bytes(low), bytes(of(Kept::LowCopy)));
    let _ = writeln!(text, "low         {low} of parameters, {copies} of low copies");
    for (what, phase) in
        [("forward", Phase::Forward), ("backward", Phase::Backward), ("update", Phase::Update)]
    {
        let _ = writeln!(text, "{what:11} {}", of_phase(module, phase));
    }
    text
}

/// The parameters of the exported program that are trained, if the model has a signature.
fn signature(module: &Module, trained: &[Value]) -> String {
    let Some(Ok(signature)) = Signature::of(module) else { return String::new() };
    let names = trained.iter().map(|&value| {
        origin_of(module, value).map_or_else(|| ampc::ir::verify::name_of(module, value), str::to_owned)
    });
    let names: BTreeSet<String> = names.collect();
    let tied: BTreeSet<String> = tied(module).into_iter().map(|(name, _)| name).collect();
    let all = signature.parameters().filter(|name| !tied.contains(*name)).count();
    let known = signature.parameters().filter(|name| names.contains(*name)).count();
    let more = names.len() - known;
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    let tied = match tied.len() {
        0 => String::new(),
        n => format!(", and {} tied to one of them", table::count(n as u64, "parameter")),
    };
    format!("PyTorch     {known} of the {all} parameters of the exported program{tied}{more}\n")
}

/// Kinds of states that a step keeps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    Parameter,
    LowCopy,
    Optimizer,
    Statistic,
    /// Scales and counts.
    Number,
}

/// The inputs that are kept from step to step, or parameters of an optimizer elsewhere.
fn kept(module: &Module) -> Vec<(Value, Kept)> {
    let parameters: Vec<Value> = autodiff::with_role(module, autodiff::PARAMETER).collect();
    let listed = step::states_of(module).unwrap_or_default();
    let states = &module.graph(module.main()).states;
    let mut kept: Vec<(Value, Kept)> = parameters.into_iter().map(|value| (value, Kept::Parameter)).collect();
    for (&(input, _), state) in states.iter().zip(&listed) {
        let kind = match state.kind {
            StateKind::Weight => continue,
            StateKind::Low => Kept::LowCopy,
            StateKind::M | StateKind::V | StateKind::State => Kept::Optimizer,
            StateKind::Buffer => Kept::Statistic,
            StateKind::Step
            | StateKind::LossScale
            | StateKind::Good
            | StateKind::Bad
            | StateKind::DropoutSeed
            | StateKind::DropoutOffset => Kept::Number,
        };
        kept.push((input, kind));
    }
    kept
}

fn bytes(module: &Module, value: Value) -> u64 {
    module.value(value).ty.as_tensor().and_then(|tensor| tensor.storage_bytes()).unwrap_or(0)
}

/// The nodes and casts of a phase: how many compute low, and which way casts go.
fn of_phase(module: &Module, phase: Phase) -> String {
    let is_of = |node: &Node| step::phase_of(module, *node).unwrap_or(Phase::Forward) == phase;
    let nodes: Vec<Node> = module.nodes(module.main()).filter(is_of).collect();
    let dtype = |value: Option<Value>| value.and_then(|value| module.value(value).ty.dtype());
    let is_low = |value: Option<Value>| dtype(value).is_some_and(DType::is_low);
    let low = nodes.iter().filter(|&&node| module.node(node).results().iter().any(|&value| is_low(value)));
    let casts = nodes.iter().map(|&node| module.node(node));
    let casts = casts.filter(|node| node.schema().is_some_and(|s| s.kind == OpKind::Cast));
    let (mut narrow, mut wide, mut other) = (0, 0, 0);
    for cast in casts {
        match (is_low(cast.operands()[0]), dtype(cast.result(0))) {
            (false, Some(to)) if to.is_low() => narrow += 1,
            (true, Some(DType::F32)) => wide += 1,
            _ => other += 1,
        }
    }
    let other = if other > 0 { format!(", {other} other") } else { String::new() };
    format!(
        "{}, {} of them low; casts: {narrow} to low, {wide} to fp32{other}",
        table::count(nodes.len() as u64, "node"),
        low.count()
    )
}
