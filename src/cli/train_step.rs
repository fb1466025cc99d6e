//! `ampc train-step`: from a forward model to a training step.

use super::args::{EmitArg, LossPrecisionArg, TrainStepArgs};
use super::emit::{self, Emit, Target};
use super::pipeline::{Run, load};
use super::problem::{Failure, Problem};
use super::progress::Progress;
use super::ui::{Stream, Ui};
use super::{diagnose, settings, shown, targets};
use ampc::files::Batch;
use ampc::ir::DType;
use ampc::ir::Module;
use ampc::ir::op::OpKind;
use ampc::passes::Paths;
use ampc::passes::autodiff::{self, CustomGradients};
use ampc::passes::step::Scaler;
use ampc::train::{TrainOptions, stage_state, train_step_in_place};
use std::fmt::Write;
use std::path::Path;

pub(crate) fn run(args: &TrainStepArgs, ui: Ui) -> Result<(), Failure> {
    let (options, read) = options(args)?;
    let emit = Emit::of(&args.write, Some(&args.output), EmitArg::Onnx, |_| Target::Stdout)?;
    let progress = Progress::start(ui);
    progress.stage("reading");
    let mut model = load(&args.model, ui)?;
    let pipeline =
        ampc::train::pipeline_of_step(&model.module, &options).map_err(|e| diagnose::failure(&e, None))?;
    targets::check(&model, &args.model, &read, &emit, None, &args.debug, &pipeline)?;
    let run = Run {
        ui,
        progress: &progress,
        debug: &args.debug,
        force: emit.force(),
        pipeline: &pipeline,
        path: &args.model,
    };
    let (state, mut warnings) =
        run.watched(&mut model, |model, observer| train_step_in_place(model, &options, observer))?;
    let summary = summary(&model.module);
    progress.stage("writing");
    if emit.kind == EmitArg::Emulated {
        let (emulated, told) = ampc::emulate(model).map_err(|e| diagnose::failure(&e, None))?;
        model = emulated;
        warnings.extend(told);
    }
    let mut batch = Batch::new();
    let bytes = stage_state(&state, &model, &args.state, emit.force(), &mut batch)
        .map_err(|e| diagnose::failure(&e, None))?;
    let written = emit.stage(&model, &mut batch)?;
    let written = emit::finish(batch, written)?;
    drop(progress);
    let paths = Paths::of(&model.module);
    for warning in warnings {
        let place = warning.node.map_or_else(String::new, |node| format!("`{}`: ", paths.path(node)));
        let problem = Problem::warning(warning.code, format!("{place}{}", warning.message));
        ui.say(problem.draw(ui, Stream::Err).trim_start_matches('\n'));
    }
    let name = |path: &Path| shown::message(&path.display().to_string());
    let mut text = summary;
    let _ = writeln!(text, "wrote       {} ({} bytes)", name(&args.output), written.bytes);
    let _ = write!(text, "state       {} ({} tensors, {bytes} bytes)", name(&args.state), state.len());
    ui.say(&text);
    Ok(())
}

/// The options, and the files that they were read from.
fn options(args: &TrainStepArgs) -> Result<(TrainOptions, Vec<settings::ReadFile>), Failure> {
    let (precision, read) = if args.fp32 {
        (None, Vec::new())
    } else {
        let (precision, read) = settings::options(&args.precision, args.debug.verify_each, false)?;
        (Some(precision), read)
    };
    let is_fp16 = precision.as_ref().is_some_and(|options| options.to == DType::F16);
    let scaler = match &args.step.scaler {
        None if is_fp16 => "ampc".parse(),
        None => Ok(Scaler::None),
        Some(text) if Path::new(text).extension().is_some_and(|e| e == "json") => Ok(scaler_of_file(text)?),
        Some(text) => text.parse(),
    };
    let scaler = scaler.map_err(|error| Failure::usage("scaler", format!("`--scaler`: {error}")))?;
    let emulated = args.write.emit == Some(EmitArg::Emulated);
    let step = &args.step;
    let options = TrainOptions {
        precision,
        loss: step.loss.clone(),
        target: step.target_input.clone(),
        keeps_loss_fp32: step.loss_precision == LossPrecisionArg::Fp32,
        optimizer: step.optimizer.clone(),
        scaler,
        clip_norm: step.clip_norm,
        decay: step.decay.clone(),
        train: step.train.clone(),
        freeze: step.freeze.clone(),
        freezes_unreached: step.freeze_unused,
        // An fp32 model that rounds casts its weights itself.
        writes_low_copies: !emulated,
        gradients: CustomGradients::default(),
        verify_each: args.debug.verify_each,
    };
    Ok((options, read))
}

/// A scaler of a JSON file: its fields, as docs/training.md lists them.
fn scaler_of_file(path: &str) -> Result<Scaler, Failure> {
    let text = ampc::files::read_text(Path::new(path)).map_err(|e| Failure::io(path, &e))?;
    let wrong = |problem: String| Failure::usage("scaler", format!("`{path}`: {problem}"));
    let dynamic: ampc::passes::step::Dynamic =
        serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
    match dynamic.problem() {
        Some(problem) => Err(wrong(problem)),
        None => Ok(Scaler::Dynamic(dynamic)),
    }
}

/// What the step has, in a few lines.
fn summary(module: &Module) -> String {
    let main = module.main();
    let count = |test: &dyn Fn(ampc::ir::Node) -> bool| module.nodes(main).filter(|&node| test(node)).count();
    let phase = |node: ampc::ir::Node, wanted: &str| {
        let metadata = &module.node(node).metadata;
        metadata.iter().any(|&(key, value)| module.text(key) == "ampc.phase" && module.text(value) == wanted)
    };
    let is_low = |node: ampc::ir::Node| {
        let results = module.node(node).results().iter().flatten();
        results.copied().any(|value| module.value(value).ty.dtype().is_some_and(DType::is_low))
    };
    let is_cast = |node: ampc::ir::Node| module.node(node).schema().is_some_and(|s| s.kind == OpKind::Cast);
    let (backward, update) = (count(&|node| phase(node, "bwd")), count(&|node| phase(node, "opt")));
    let forward = count(&|_| true) - backward - update;
    let mut text = String::new();
    let parameters = autodiff::with_role(module, autodiff::PARAMETER).count();
    let _ = writeln!(text, "trained     {parameters} parameters, {} states", module.graph(main).states.len());
    for (what, n, test) in [
        ("forward", forward, &(|node| !phase(node, "bwd") && !phase(node, "opt")) as &dyn Fn(_) -> bool),
        ("backward", backward, &|node| phase(node, "bwd")),
        ("update", update, &|node| phase(node, "opt")),
    ] {
        let low = count(&|node| test(node) && is_low(node));
        let casts = count(&|node| test(node) && is_cast(node));
        let _ = writeln!(text, "{what:11} {n} nodes, {low} of them low; {casts} casts");
    }
    text
}
