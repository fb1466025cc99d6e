//! From arguments to the options of a rewrite.

use super::args::{ExcessArg, MasksArg, OutOfRangeArg, PrecisionArgs};
use super::diagnose;
use super::problem::{Failure, Problem};
use super::shown;
use ampc::execute::inputs::{Dims, check_dims};
use ampc::ir::DType;
use ampc::ir::op::Class;
use ampc::options::{Families, Family, Opset, OptionError, Recorded};
use ampc::passes::guard::OutOfRange;
use ampc::passes::input_ranges::InputRanges;
use ampc::passes::insert_casts::KeepIo;
use ampc::passes::json::{JsonError, Place};
use ampc::passes::policy::{ListedBy, PRESETS, Pin, PolicyError, float_format};
use ampc::passes::suggest::did_you_mean;
use ampc::passes::{Policy, Profile, suggest};
use ampc::{ErrorKind, Model, RewriteOptions};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file beside the model that a run reads.
pub(crate) struct ReadFile {
    pub(crate) what: &'static str,
    pub(crate) path: PathBuf,
}

impl ReadFile {
    /// The file of a policy or target; `None` if it comes with ampc.
    pub(crate) fn named(what: &'static str, name: &str) -> Option<ReadFile> {
        file_of(name).map(|path| ReadFile { what, path: path.to_owned() })
    }
}

/// The file that a policy or target is read from; `None` for a built-in name.
fn file_of(name: &str) -> Option<&Path> {
    Some(Path::new(name)).filter(|path| path.extension().is_some_and(|e| e == "json"))
}

/// A policy, and the options of the run if it is a report that is to be repeated.
pub(crate) struct Read {
    pub(crate) policy: Policy,
    /// Decisions that it repeats, if it is a report.
    pub(crate) decisions: Option<u64>,
    repeated: Option<Recorded>,
}

/// Reads a preset or a file.
///
/// # Errors
/// If there is no such preset, or the file cannot be read or is not a policy.
pub(crate) fn read_policy(name: &str) -> Result<Read, Failure> {
    let Some(path) = file_of(name) else {
        let policy = Policy::preset(name).map_err(|e| diagnose::policy(&e, None))?;
        return Ok(Read { policy, decisions: None, repeated: None });
    };
    let text = ampc::files::read_text(path).map_err(|e| unread("policy", name, &e))?;
    let policy = is_object(&text)
        .and_then(|()| Policy::from_json(&text))
        .map_err(|e| diagnose::policy(&e, Some((path, &text))))?;
    let repeated =
        Recorded::read(&text).map_err(|e| diagnose::policy(&PolicyError::from(e), Some((path, &text))))?;
    let decisions = repeated.as_ref().and_then(|_| decisions(&text));
    Ok(Read { policy, decisions, repeated })
}

/// Reads the profile of a target that comes with ampc, or a file.
///
/// # Errors
/// If there is no such target, or the file cannot be read or is not a profile.
pub(crate) fn read_target(name: &str) -> Result<Profile, Failure> {
    let Some(path) = file_of(name) else {
        return Profile::preset(name).map_err(|e| diagnose::profile(&e, None));
    };
    let text = ampc::files::read_text(path).map_err(|e| unread("target", name, &e))?;
    let read = Profile::from_json(&text).and_then(Profile::of_user);
    read.map_err(|e| diagnose::profile(&e, Some((path, &text))))
}

/// A file that cannot be read, or whose text is invalid.
fn unread(what: &str, name: &str, error: &std::io::Error) -> Failure {
    let utf8 = error.get_ref().and_then(|inner| inner.downcast_ref::<std::str::Utf8Error>());
    match utf8 {
        Some(error) => {
            let at = error.valid_up_to();
            let message = format!("`{name}`: expected UTF-8, found an invalid byte at {at}");
            Failure::of(ErrorKind::Usage, Problem::new(format!("ampc::{what}::utf8"), message))
        }
        None => Failure::io(name, error),
    }
}

/// A file that is not JSON at all passes: the parser says it better.
fn is_object(text: &str) -> Result<(), PolicyError> {
    use serde_json::Value;
    let found = match serde_json::from_str(text) {
        Ok(Value::Object(_)) | Err(_) => return Ok(()),
        Ok(Value::Array(_)) => "an array",
        Ok(Value::String(_)) => "a string",
        Ok(Value::Number(_)) => "a number",
        Ok(Value::Bool(_)) => "a truth value",
        Ok(Value::Null) => "null",
    };
    let reason = format!("expected an object, found {found}");
    Err(JsonError { place: Place { line: 1, column: 1 }, reason }.into())
}

/// The number of decisions about type variables in a report.
fn decisions(report: &str) -> Option<u64> {
    #[derive(Deserialize)]
    struct Report {
        #[serde(default)]
        nodes: Vec<Node>,
    }
    #[derive(Deserialize)]
    struct Node {
        #[serde(default)]
        vars: Vec<serde::de::IgnoredAny>,
    }
    let report: Report = serde_json::from_str(report).ok()?;
    Some(report.nodes.iter().map(|n| n.vars.len() as u64).sum())
}

/// The options that the arguments ask for, and the files that were read for them.
///
/// # Errors
/// If an operator, guard or precision is unknown, or lists contradict each other.
pub(crate) fn options(
    args: &PrecisionArgs,
    verify_each: bool,
    statistics: bool,
) -> Result<(RewriteOptions, Vec<ReadFile>), Failure> {
    let Read { policy, repeated, .. } = read_policy(&args.policy)?;
    let mut options = match &repeated {
        Some(report) => repeat(report.clone(), policy, args)?,
        None => RewriteOptions::of(policy),
    };
    if let Some(to) = args.to {
        options.to = to;
    }
    let to = options.to;
    if let Err(error) = options.policy.check_format(to) {
        return Err(diagnose::policy(&error, None).with_help("leave `--to` out, or change the policy"));
    }
    if let Some(other) = repeated.as_ref().and_then(|r| r.get("to")).filter(|r| float_format(r) != Some(to)) {
        let format = if to == DType::BF16 { "bf16" } else { "fp16" };
        let message = format!(
            "`--to {format}`: the report `{}` has decisions for {other}; leave `--to` out to repeat them",
            args.policy
        );
        return Err(Failure::usage("format", message));
    }
    if let Some(out_of_range) = args.out_of_range {
        options.out_of_range = match out_of_range {
            OutOfRangeArg::Keep => OutOfRange::Keep,
            OutOfRangeArg::Clamp => OutOfRange::Clamp,
            OutOfRangeArg::Error => OutOfRange::Error,
        };
    }
    match args.keep_io.as_deref().or(args.peers.keep_io_types.as_deref()) {
        None => {}
        Some("all") => options.keep_io = KeepIo::All,
        Some("none") => options.keep_io = KeepIo::None,
        Some(names) => options.keep_io = KeepIo::Names(io_names(names)?.into_iter().collect()),
    }
    if let Some(opset) = args.opset {
        options.opset = opset;
    }
    if !args.raise.is_empty() {
        options.raise = families(&args.raise)?;
    }
    no_empty_names(args)?;
    let mut policy = Policy::clone(&options.policy);
    apply(&mut policy, args, to)?;
    options.policy = Arc::new(policy);
    options.objective = args.objective.unwrap_or(options.objective);
    if let Some(name) = &args.target {
        let dims = options.target.dims.clone();
        options.target = Arc::new(Profile { dims, ..read_target(name)? });
    }
    if !args.range.is_empty() {
        options.ranges = ranges(&args.range)?;
    }
    if let Some(masks) = args.masks {
        options.saturate_masks = masks == MasksArg::Saturate;
    }
    if let Some(excess) = args.excess_precision {
        options.excess_precision = excess == ExcessArg::Allow;
    }
    options.alternative = alternative(args, to, options.opset)?.map(Arc::new);
    options.verify_each = verify_each;
    options.constant_statistics = statistics;
    let files = ReadFile::named("the policy", &args.policy)
        .into_iter()
        .chain(args.target.as_deref().and_then(|name| ReadFile::named("the target", name)));
    Ok((options, files.collect()))
}

/// The options that a report repeats.
fn repeat(mut report: Recorded, policy: Policy, args: &PrecisionArgs) -> Result<RewriteOptions, Failure> {
    if args.target.is_some() {
        report.remove("target");
    }
    report.options(policy).map_err(|error| match error {
        // A report has the name of a profile, and not where it came from.
        OptionError::Target(error) => diagnose::profile(&error, None)
            .with_help("the report was made with a profile from a file: give it with `--target FILE.json`"),
        error @ OptionError::Value { .. } => {
            Failure::usage("report", format!("`{}`: `options`: {error}", args.policy))
        }
    })
}

/// The preset for comparison: it leaves less in fp32 and is nearly as careful as the default.
const LESS_CAREFUL: &str = "perf";

/// The policy to compare with: [`LESS_CAREFUL`] with the additions of the command line. `None` if the policy of
/// the run is that one, or is a file or report, which say more than a preset could, and with `--opset auto`,
/// where the opset follows from the policy.
fn alternative(args: &PrecisionArgs, to: DType, opset: Opset) -> Result<Option<Policy>, Failure> {
    let is_preset = PRESETS.iter().any(|preset| preset.name == args.policy);
    if !is_preset || args.policy == LESS_CAREFUL || opset == Opset::Auto {
        return Ok(None);
    }
    let mut policy = Policy::preset(LESS_CAREFUL).map_err(|e| diagnose::policy(&e, None))?;
    apply(&mut policy, args, to)?;
    Ok(Some(policy))
}

/// A problem of a policy, with the option that has it.
pub(crate) fn of_option(flag: &str, text: &str, error: &PolicyError) -> Failure {
    let mut failure = diagnose::policy(error, None);
    for problem in &mut failure.problems {
        *problem = problem.clone().retold(|it| format!("`{flag} {text}`: {it}"));
    }
    failure
}

fn empty_name(flag: &str, text: &str) -> Failure {
    Failure::usage("empty_name", format!("`{flag} {text}`: a name is empty"))
}

/// The ranges of inputs.
fn ranges(given: &[(String, (f64, f64))]) -> Result<InputRanges, Failure> {
    let mut ranges = InputRanges::default();
    for (name, range) in given {
        ranges.insert(name.clone(), *range).map_err(|name| {
            let name = shown::message(&name);
            Failure::usage(
                "range",
                format!("`--range`: `{name}` has two ranges; give one range for an input"),
            )
        })?;
    }
    Ok(ranges)
}

fn no_empty_names(args: &PrecisionArgs) -> Result<(), Failure> {
    let lists = [
        ("--allow", &args.allow),
        ("--infer", &args.infer),
        ("--clear", &args.clear),
        ("--deny", &args.deny),
        ("--disable-guard", &args.disable_guard),
    ];
    let lists = lists.into_iter().chain(args.peers.lists());
    match lists.into_iter().find(|(_, list)| list.iter().any(String::is_empty)) {
        Some((flag, list)) => Err(empty_name(flag, &list.join(","))),
        None => Ok(()),
    }
}

/// The units to replace.
fn families(words: &[String]) -> Result<Families, Failure> {
    Families::of_words(words.iter().map(String::as_str)).map_err(|word| {
        let known = Family::ALL.iter().map(|family| family.word()).chain([Families::EVERY]);
        let hint = did_you_mean(suggest::nearest(word, known));
        let message = format!("`--raise {word}`: expected {}{hint}", Families::WORDS);
        Failure::usage("raise", message)
    })
}

/// Names of inputs and outputs.
fn io_names(text: &str) -> Result<Vec<String>, Failure> {
    let names: Vec<String> = text.split(',').map(str::to_owned).collect();
    if names.iter().any(String::is_empty) {
        return Err(empty_name("--keep-io", text));
    }
    if let Some(word) = names.iter().find(|n| names.len() > 1 && ["all", "none"].contains(&n.as_str())) {
        let message = format!("`--keep-io {text}`: `{word}` stands alone; expected all, none, or names");
        return Err(Failure::usage("keep_io", message));
    }
    Ok(names)
}

/// Applies the lists, guards and pins of the command line to a policy.
fn apply(policy: &mut Policy, args: &PrecisionArgs, to: DType) -> Result<(), Failure> {
    lists(policy, args).map_err(|e| diagnose::policy(&e, None))?;
    // What the command line pins wins over what the policy pins, and our spelling over those of other tools.
    policy.next_layer();
    args.peers.apply(policy, to)?;
    policy.next_layer();
    for pin in &args.pin {
        let (pattern, precision) = split_pin("--pin", pin)?;
        policy.pin(pattern, precision).map_err(|e| of_option("--pin", pin, &e))?;
    }
    for pin in &args.pin_value {
        let (pattern, precision) = split_pin("--pin-value", pin)?;
        policy.pin_value(pattern, precision).map_err(|e| of_option("--pin-value", pin, &e))?;
    }
    Ok(())
}

/// Operators by class, and guards to leave out.
fn lists(policy: &mut Policy, args: &PrecisionArgs) -> Result<(), PolicyError> {
    let lists = [
        (&args.allow, Class::Allow),
        (&args.infer, Class::Infer),
        (&args.clear, Class::Clear),
        (&args.deny, Class::Deny),
    ];
    for (ops, class) in lists {
        for op in ops {
            policy.set_class(op, class, ListedBy::Options)?;
        }
    }
    for guard in &args.disable_guard {
        policy.disable_guard(guard)?;
    }
    Ok(())
}

/// Splits `NODE=fp32` at the last `=`, since names may have one.
fn split_pin<'a>(flag: &str, text: &'a str) -> Result<(&'a str, Pin), Failure> {
    let (pattern, precision) = text.rsplit_once('=').ok_or_else(|| {
        Failure::usage(
            "pin",
            format!("`{flag} {text}`: expected NAME=fp32, fp16, bf16 or auto, found no `=`"),
        )
    })?;
    if pattern.is_empty() {
        return Err(Failure::usage("pin", format!("`{flag} {text}`: the name before `=` is empty")));
    }
    let pin = precision.parse().map_err(|e| of_option(flag, text, &e))?;
    Ok((pattern, pin))
}

/// Sets the sizes of dims for the predicted time, if given.
///
/// # Errors
/// If the model has no such dim.
pub(crate) fn set_dims(target: &mut Arc<Profile>, dims: Dims, model: &Model) -> Result<(), Failure> {
    if dims.is_empty() {
        return Ok(());
    }
    check_dims(&model.module, &dims).map_err(|error| diagnose::failure(&error, None))?;
    Arc::make_mut(target).dims = dims;
    Ok(())
}

/// Checks that the inputs and outputs that are to keep their types are there.
///
/// # Errors
/// If a name does not exist.
pub(crate) fn check_keep_io(keep_io: &KeepIo, model: &Model) -> Result<(), Failure> {
    let KeepIo::Names(wanted) = keep_io else { return Ok(()) };
    let module = &model.module;
    let graph = module.graph(module.main());
    let values = graph.inputs().iter().copied().chain(graph.outputs().iter().map(|o| o.value));
    let names: Vec<String> = values.map(|v| ampc::ir::verify::name_of(module, v)).collect();
    let known: BTreeSet<&String> = names.iter().collect();
    let Some(missing) = wanted.iter().find(|w| !known.contains(w)) else { return Ok(()) };
    let hint = did_you_mean(suggest::nearest(missing, names.iter().map(String::as_str)));
    let message = format!("`--keep-io {missing}`: the model has no such input or output{hint}");
    Err(Failure::usage("keep_io", message).with_help(format!(
        "expected all, none or some of {}",
        suggest::listed(names.iter().map(String::as_str))
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_split_at_the_last_sign() {
        let (pattern, pin) = split_pin("--pin", "a=b/c#T=fp32").unwrap();
        assert_eq!((pattern, pin), ("a=b/c#T", Pin::To(DType::F32)));
        assert_eq!(split_pin("--pin", "fc1").unwrap_err().code, 2);
        assert_eq!(split_pin("--pin", "=fp32").unwrap_err().code, 2);
        assert_eq!(split_pin("--pin", "fc1=fp8").unwrap_err().code, 2);
    }
}
