//! The rewrite: decide, lower, verify, report.

mod forced;

use self::forced::forced;
use crate::error::findings::{findings_of, findings_of_types};
use crate::error::{Error, Finding};
use crate::identity::identify_again;
use crate::loaded::Model;
use crate::options::{Families, Opset, RewriteOptions};
use crate::report::{self, Report, TimeReport};
use ampc_ir::infer::{infer, infer_module};
use ampc_ir::verify::{Problem, Violation, verify_structure, verify_types};
use ampc_ir::views::Part;
use ampc_ir::{Module, Node};
use ampc_passes::assign::Gain;
use ampc_passes::emulate::Emulate;
use ampc_passes::guard::Statistics;
use ampc_passes::pipeline::{Lowering, Observer, Pipeline, RunError};
use ampc_passes::share_functions::ShareFunctions;
use ampc_passes::specialize_functions::SpecializeFunctions;
use ampc_passes::{Pass, PassError, Warning, text_casts};
use rustc_hash::FxHashSet;

/// A rewritten model and its report.
#[derive(Debug)]
pub struct Rewritten {
    /// The model.
    pub model: Model,
    /// The decisions and their reasons.
    pub report: Report,
}

/// Lowers a model to a 16-bit format where the policy finds it safe.
///
/// # Errors
/// If the model is invalid, or the options ask for something it does not allow.
pub fn rewrite(model: Model, options: &RewriteOptions) -> Result<Rewritten, Error> {
    rewrite_observed(model, options, &mut ())
}

/// [`rewrite`], watched.
///
/// # Errors
/// As [`rewrite`].
pub fn rewrite_observed(
    mut model: Model,
    options: &RewriteOptions,
    observer: &mut dyn Observer,
) -> Result<Rewritten, Error> {
    let report = rewrite_in_place(&mut model, options, observer)?;
    Ok(Rewritten { model, report })
}

/// [`rewrite_observed`] on a model that stays with the caller, who can inspect it after an error.
///
/// # Errors
/// As [`rewrite`].
pub fn rewrite_in_place(
    model: &mut Model,
    options: &RewriteOptions,
    observer: &mut dyn Observer,
) -> Result<Report, Error> {
    rewrite_with(model, options, observer, &mut Statistics::default())
}

/// [`rewrite_in_place`] with the statistics of constants that earlier rewrites of the model read.
pub(crate) fn rewrite_with(
    model: &mut Model,
    options: &RewriteOptions,
    observer: &mut dyn Observer,
    statistics: &mut Statistics,
) -> Result<Report, Error> {
    if !options.only_if_faster {
        return rewrite_once(model, options, Gain::Any, observer, statistics);
    }
    let source = model.module.clone();
    let report = rewrite_once(model, options, Gain::Needed, observer, statistics)?;
    if report.time.as_ref().is_none_or(TimeReport::is_faster) {
        return Ok(report);
    }
    model.module = source;
    let opset = if options.opset == Opset::Auto { Opset::Keep } else { options.opset };
    let options = RewriteOptions { opset, raise: Families::default(), ..options.clone() };
    let mut report = rewrite_once(model, &options, Gain::None, &mut (), statistics)?;
    report.leave_full(&options);
    Ok(report)
}

fn rewrite_once(
    model: &mut Model,
    options: &RewriteOptions,
    gain: Gain,
    observer: &mut dyn Observer,
    statistics: &mut Statistics,
) -> Result<Report, Error> {
    options.policy.check_format(options.to)?;
    let asked = options;
    let source = (!options.explain.is_empty()).then(|| model.module.clone());
    let raised = raised_for_casts(model, options)?;
    let options = raised.as_ref().map_or(options, |(options, _)| options);
    let before = report::Before::new(&model.module);
    let pipeline = pipeline_with(options, gain);
    let mut decisions = report::Decisions::new(&before, options, observer);
    let run = pipeline.run_with(&mut model.module, options.verify_each, &mut decisions, statistics);
    let mut warnings = ran(model, run)?;
    warnings.extend(raised.as_ref().map(|(_, warning)| warning.clone()));
    let decided = decisions.finish(&model.module);
    let mut report = Report::new(model, &before, options, &pipeline, warnings, decided);
    if let Some(source) = source {
        let forced = forced(&source, asked, &report);
        report.optimum.iter_mut().for_each(|optimum| optimum.forced.clone_from(&forced));
    }
    Ok(report)
}

/// The options with which a model is rewritten, and a warning, if they differ from the requested options.
///
/// Below opset 6 no cast can be inserted that runtimes take ([`text_casts`]). A rewrite that would insert one raises
/// the model instead, unless it was to have a certain opset; whether it would is found out on a copy.
///
/// # Errors
/// If the policy has nothing for the format.
pub fn raised_for_casts(
    model: &Model,
    options: &RewriteOptions,
) -> Result<Option<(RewriteOptions, Warning)>, Error> {
    if matches!(options.opset, Opset::To(_)) || !text_casts::are_possible(&model.module) {
        return Ok(None);
    }
    options.policy.check_format(options.to)?;
    let mut trial = model.module.clone();
    // Whatever else stops the trial stops the rewrite in the same way.
    let stopped = pipeline_of(options).run(&mut trial, false, &mut ()).err();
    let Some(RunError::Pass { error: PassError::TextCasts { opset, to, .. }, .. }) = stopped else {
        return Ok(None);
    };
    let message = format!(
        "the model has been raised from opset {opset} to opset {to}: before, Cast names its type in text, and \
         onnx.checker and ONNX Runtime refuse readers of such a cast"
    );
    let options = RewriteOptions { opset: Opset::To(to), ..options.clone() };
    Ok(Some((options, Warning::new("opset.raised", None, message))))
}

/// The module as `classify` receives it: the model after the passes before `classify`, which may raise its opset, move
/// casts, and give each call a function of its own. The statistics of this module give [`RewriteOptions::observed`].
///
/// # Errors
/// As [`rewrite`].
pub fn before_decisions(model: &Model, options: &RewriteOptions) -> Result<Module, Error> {
    before_pass(model, options, "classify")
}

/// The module as a pass of the rewrite receives it.
///
/// # Errors
/// As [`rewrite`].
pub(crate) fn before_pass(model: &Model, options: &RewriteOptions, name: &str) -> Result<Module, Error> {
    let raised = raised_for_casts(model, options)?;
    let passes = pipeline_of(raised.as_ref().map_or(options, |(options, _)| options)).into_passes();
    let passes = passes.into_iter().take_while(|pass| pass.name() != name).collect();
    let mut module = model.module.clone();
    let run = Pipeline::new(passes)?.run(&mut module, options.verify_each, &mut ());
    run.map_err(|error| Error::of_run(error, &module))?;
    Ok(module)
}

/// The passes of a rewrite.
pub fn pipeline_of(options: &RewriteOptions) -> Pipeline {
    pipeline_with(options, if options.only_if_faster { Gain::Needed } else { Gain::Any })
}

fn pipeline_with(options: &RewriteOptions, gain: Gain) -> Pipeline {
    // An option that is added has to be told whether passes have it.
    let RewriteOptions {
        to,
        policy,
        out_of_range,
        ranges,
        observed,
        trusted,
        keep_io,
        opset,
        raise,
        saturate_masks,
        objective,
        target,
        excess_precision,
        alternative,
        only_if_faster: _,
        explain: _,
        verify_each: _,
        constant_statistics: _,
    } = options.clone();
    Pipeline::lowering(&Lowering {
        to,
        policy,
        out_of_range,
        ranges,
        observed,
        trusted,
        keep_io,
        opset,
        raise,
        saturate_masks,
        objective,
        target,
        excess_precision,
        alternative,
        gain,
    })
}

/// Runs any passes on a model.
///
/// # Errors
/// If the model is invalid, or a pass needs a decision of the user.
pub fn run_pipeline(
    model: &mut Model,
    pipeline: &Pipeline,
    verify_each: bool,
    observer: &mut dyn Observer,
) -> Result<Vec<Warning>, Error> {
    let run = pipeline.run(&mut model.module, verify_each, observer);
    ran(model, run)
}

/// The warnings of a run of passes, after which the model is identified anew.
fn ran(model: &mut Model, run: Result<Vec<Warning>, RunError>) -> Result<Vec<Warning>, Error> {
    let warnings = run.map_err(|e| Error::of_run(e, &model.module))?;
    // A step that passes have changed is another step.
    identify_again(&mut model.module);
    Ok(warnings)
}

/// An fp32-typed model that rounds like `model` with its 16-bit values on a runtime that has them, and
/// warnings, for example about nodes that cannot be emulated.
///
/// # Errors
/// If the model is invalid, or has 16-bit values in a place where emulation is not possible.
pub fn emulate(mut model: Model) -> Result<(Model, Vec<Warning>), Error> {
    // Each function of a signature rounds as that signature does.
    let passes: Vec<Box<dyn Pass>> =
        vec![Box::new(SpecializeFunctions), Box::new(Emulate), Box::new(ShareFunctions)];
    let pipeline = Pipeline::new(passes)?;
    let warnings = run_pipeline(&mut model, &pipeline, false, &mut ())?;
    Ok((model, warnings))
}

/// Every problem of a model's graph, once: structure, then types.
pub fn check(module: &mut Module) -> Vec<Finding> {
    let typed = infer_module(module);
    let mut violations = verify_structure(module);
    if violations.is_empty() && typed.is_ok() {
        violations = verify_types(module, &infer(module).0);
    }
    let mut findings = findings_of(module, &violations);
    if let Err(mut errors) = typed {
        // Inference needs the attributes that the verifier has named, and says so in other words.
        let named: FxHashSet<(Node, &str)> = violations.iter().filter_map(attribute_of).collect();
        errors.retain(|e| match &e.error.part {
            Part::Attr(attr) => !named.contains(&(e.node, attr.as_str())),
            Part::Node | Part::Operand(_) | Part::Result(_) => true,
        });
        let known: FxHashSet<String> = findings.iter().map(ToString::to_string).collect();
        findings.extend(
            findings_of_types(module, &errors).into_iter().filter(|f| !known.contains(&f.to_string())),
        );
    }
    findings
}

/// The attribute that is missing or of another kind.
fn attribute_of(violation: &Violation) -> Option<(Node, &str)> {
    match &violation.problem {
        Problem::Attribute { attr, .. } => Some((violation.node?, attr)),
        _ => None,
    }
}
