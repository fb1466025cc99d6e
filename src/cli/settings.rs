//! From arguments to the options of a rewrite.

use super::args::{Format, OutOfRangeArg, PrecisionArgs};
use super::diagnose;
use super::problem::Failure;
use ampc::ir::DType;
use ampc::ir::op::Class;
use ampc::passes::guard::OutOfRange;
use ampc::passes::insert_casts::KeepIo;
use ampc::passes::policy::{Pin, PolicyError};
use ampc::passes::{Policy, suggest};
use ampc::{Model, RewriteOptions};
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;

/// A policy, and the options of the run if it is a report that is to be repeated.
pub(crate) struct Read {
    pub(crate) policy: Policy,
    repeated: Option<Repeated>,
}

/// The options in a report.
#[derive(Deserialize)]
struct Repeated {
    to: String,
    out_of_range: String,
    keep_io: String,
}

/// Reads a preset or a file.
///
/// # Errors
/// If there is no such preset, or the file cannot be read or is no policy.
pub(crate) fn read_policy(name: &str) -> Result<Read, Failure> {
    let path = Path::new(name);
    if path.extension().is_none_or(|e| e != "json") {
        let policy = Policy::preset(name).map_err(|e| diagnose::policy(&e, None))?;
        return Ok(Read { policy, repeated: None });
    }
    let text = std::fs::read_to_string(path).map_err(|e| Failure::io(name, &e))?;
    let policy = Policy::from_json(&text).map_err(|e| diagnose::policy(&e, Some((path, &text))))?;
    Ok(Read { policy, repeated: repeated(&text) })
}

fn repeated(text: &str) -> Option<Repeated> {
    #[derive(Deserialize)]
    struct Report {
        schema: String,
        options: Repeated,
    }
    let report: Report = serde_json::from_str(text).ok()?;
    (report.schema == "ampc-report/1").then_some(report.options)
}

/// The options that the arguments ask for.
///
/// # Errors
/// If an operator, guard or precision is unknown, or lists contradict each other.
pub(crate) fn options(
    args: &PrecisionArgs,
    verify_each: bool,
    statistics: bool,
) -> Result<RewriteOptions, Failure> {
    let Read { mut policy, repeated } = read_policy(&args.policy)?;
    let to = match (args.to, &repeated) {
        (Some(Format::Bf16), _) => DType::BF16,
        (Some(Format::Fp16), _) => DType::F16,
        (None, Some(repeated)) if repeated.to == "bf16" => DType::BF16,
        (None, _) => DType::F16,
    };
    let out_of_range = match (args.out_of_range, repeated.as_ref().map(|r| r.out_of_range.as_str())) {
        (Some(OutOfRangeArg::Clamp), _) | (None, Some("clamp")) => OutOfRange::Clamp,
        (Some(OutOfRangeArg::Error), _) | (None, Some("error")) => OutOfRange::Error,
        (Some(OutOfRangeArg::Keep), _) | (None, _) => OutOfRange::Keep,
    };
    let keep_io = match args.keep_io.as_deref().or(repeated.as_ref().map(|r| r.keep_io.as_str())) {
        _ if args.keep_io_types => KeepIo::All,
        None | Some("all") => KeepIo::All,
        Some("none") => KeepIo::None,
        Some(names) => KeepIo::Names(names.split(',').map(str::to_owned).collect()),
    };
    apply(&mut policy, args, to).map_err(|e| diagnose::policy(&e, None))?;
    for pin in &args.pin {
        let (pattern, precision) = split_pin("--pin", pin)?;
        policy.pin(pattern, precision).map_err(|e| diagnose::policy(&e, None))?;
    }
    for pin in &args.pin_value {
        let (pattern, precision) = split_pin("--pin-value", pin)?;
        policy.pin_value(pattern, precision).map_err(|e| diagnose::policy(&e, None))?;
    }
    Ok(RewriteOptions {
        to,
        policy: Arc::new(policy),
        out_of_range,
        keep_io,
        verify_each,
        constant_statistics: statistics,
    })
}

fn apply(policy: &mut Policy, args: &PrecisionArgs, to: DType) -> Result<(), PolicyError> {
    let lists = [
        (&args.allow, Class::Allow),
        (&args.infer, Class::Infer),
        (&args.clear, Class::Clear),
        (&args.deny, Class::Deny),
    ];
    for (ops, class) in lists {
        for op in ops.iter().filter(|op| !op.is_empty()) {
            policy.set_class(op, class, "list")?;
        }
    }
    for node in &args.node_block_list {
        policy.pin(node, Pin::To(DType::F32))?;
    }
    for node in &args.nodes_to_include {
        policy.pin(node, Pin::To(to))?;
    }
    for guard in args.disable_guard.iter().filter(|g| !g.is_empty()) {
        policy.disable_guard(guard)?;
    }
    Ok(())
}

/// Splits `NODE=fp32` at the last `=`, since names may have one.
fn split_pin<'a>(flag: &str, text: &'a str) -> Result<(&'a str, Pin), Failure> {
    let (pattern, precision) = text.rsplit_once('=').filter(|(p, _)| !p.is_empty()).ok_or_else(|| {
        Failure::usage(
            "pin",
            format!("`{flag} {text}`: expected NAME=fp32, fp16, bf16 or auto, found no `=`"),
        )
    })?;
    let pin = precision.parse().map_err(|e| diagnose::policy(&e, None))?;
    Ok((pattern, pin))
}

/// Checks that the inputs and outputs that are to keep their types are there.
///
/// # Errors
/// If one is not.
pub(crate) fn check_keep_io(keep_io: &KeepIo, model: &Model) -> Result<(), Failure> {
    let KeepIo::Names(wanted) = keep_io else { return Ok(()) };
    let module = &model.module;
    let graph = module.graph(module.main());
    let values = graph.inputs().iter().copied().chain(graph.outputs().iter().map(|o| o.value));
    let names: Vec<String> = values.map(|v| ampc::ir::verify::name_of(module, v)).collect();
    let Some(missing) = wanted.iter().find(|w| !names.contains(w)) else { return Ok(()) };
    let hint = suggest::nearest(missing, names.iter().map(String::as_str))
        .map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
    let message = format!("`--keep-io {missing}`: the model has no such input or output{hint}");
    Err(Failure::usage("keep_io", message)
        .with_help(format!("expected all, none or some of {}", names.join(", "))))
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
