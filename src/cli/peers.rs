//! Spellings of other tools: onnxconverter-common and ONNX Runtime's float16 (`keep_io_types`, `op_block_list`,
//! `node_block_list`), NVIDIA AutoCast (`nodes_to_…`, `op_types_to_…`). Lists have their syntax, split at
//! spaces and commas, and names have their meaning.
//!
//! Flags and commands without a meaning in ampc have an answer in a table: the alternative, or the reason why
//! it is not needed.

use super::args::{Cli, PeerArgs};
use super::problem::Failure;
use super::settings::of_option;
use ampc::ir::DType;
use ampc::ir::op::{self, Class};
use ampc::passes::policy::{ListedBy, Pattern, Pin, Policy, PolicyError, op_key};
use ampc::passes::suggest::nearest;
use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;

impl PeerArgs {
    /// The lists that are split at commas, where a name may be empty.
    pub(crate) fn lists(&self) -> [(&'static str, &Vec<String>); 3] {
        [
            ("--op-block-list", &self.op_block_list),
            ("--op-types-to-include", &self.op_types_to_include),
            ("--node-block-list", &self.node_block_list),
        ]
    }

    /// Adds their requests to a policy. An included name overrides an excluded name.
    ///
    /// # Errors
    /// If an operator is not known, or an expression is malformed.
    pub(crate) fn apply(&self, policy: &mut Policy, to: DType) -> Result<(), Failure> {
        let included: Vec<String> = self.op_types_to_include.iter().flat_map(|op| called(op)).collect();
        let excluded = self.op_block_list.iter().flat_map(|op| called(op));
        for op in excluded.filter(|op| !included.contains(op)) {
            let set = policy.set_class(&op, Class::Deny, ListedBy::Options);
            set.map_err(|e| of_option("--op-block-list", &op, &e))?;
        }
        for op in &included {
            let set = policy.set_class(op, Class::Allow, ListedBy::Options);
            set.map_err(|e| of_option("--op-types-to-include", op, &e))?;
        }
        let mut included = Vec::new();
        for expression in &self.nodes_to_include {
            let pattern =
                beginning(expression).map_err(|e| of_option("--nodes-to-include", expression, &e))?;
            included.push(pattern);
        }
        // A name says more than an expression, but what is included wins over what is excluded.
        let wins = |node: &str| included.iter().any(|pattern| pattern.matches(node));
        for node in self.node_block_list.iter().filter(|node| !wins(node)) {
            let pinned = policy.pin(node, Pin::To(DType::F32));
            pinned.map_err(|e| of_option("--node-block-list", node, &e))?;
        }
        let nodes = [
            ("--nodes-to-exclude", &self.nodes_to_exclude, DType::F32),
            ("--nodes-to-include", &self.nodes_to_include, to),
        ];
        for (flag, expressions, precision) in nodes {
            // What is included wins over what is excluded.
            if flag == "--nodes-to-include" {
                policy.next_layer();
            }
            for expression in expressions {
                let pattern = beginning(expression);
                let pinned = pattern.and_then(|pattern| policy.pin(pattern.text(), Pin::To(precision)));
                pinned.map_err(|e| of_option(flag, expression, &e))?;
            }
        }
        Ok(())
    }
}

/// The pattern of names that begin with a match of an expression.
fn beginning(expression: &str) -> Result<Pattern, PolicyError> {
    // By itself first, lest a bracket too many closes the group.
    Pattern::new(&format!("re:{expression}"))?;
    Pattern::new(&format!("re:(?:{expression}).*"))
}

/// The operators with this name: in every domain, like the lists of these tools, unless the name has a domain.
fn called(name: &str) -> Vec<String> {
    let all = op::all().iter().filter(|schema| schema.name == name);
    let mut keys: Vec<String> = all.map(|schema| op_key(schema.domain, schema.name)).collect();
    keys.dedup();
    if keys.is_empty() {
        keys.push(name.to_owned());
    }
    keys
}

/// Name of an option in other tools, and its equivalent in ampc. Names are in lower case with `-`; names of
/// commands have no leading dashes.
type Answer = (&'static [&'static str], &'static str);

const ANSWERS: &[Answer] = &[
    (
        &["--fp16", "--float16", "--half", "--fp16-mode", "--compress-to-fp16"],
        "`ampc rewrite MODEL` lowers to fp16 by default; `--to fp16` says it",
    ),
    (&["--bf16", "--bfloat16"], "`ampc rewrite MODEL --to bf16` lowers to bf16"),
    (&["--precision", "--dtype", "--data-type", "-t"], "`ampc rewrite MODEL --to fp16|bf16` says the format"),
    (
        &["--int8", "--int4", "--uint8", "--fp8", "--fp4", "--best", "--quantize"],
        "fp16 and bf16 are the formats to lower to (`--to`); nothing is quantised",
    ),
    (
        &["--tf32", "--notf32"],
        "TF32 is not a type of ONNX but a mode of the runtime: `--tf32` of `ampc run`, `verify`, `plan` and `train` permits it on a GPU",
    ),
    (
        &["--stronglytyped"],
        "an option for trtexec when it reads the result; every type is in the model that `ampc rewrite` \
         writes",
    ),
    (
        &["--precisionconstraints", "--layerprecisions", "--layeroutputtypes", "--layer-precisions"],
        "`--pin NODE=fp32|fp16|bf16` fixes the format of a node; every type is in the model then",
    ),
    (
        &["--inputioformats", "--outputioformats"],
        "`--keep-io none` lets inputs and outputs become low, `--keep-io NAME,…` keeps those that are named",
    ),
    (
        &["--high-precision-dtype", "--high-precision-type"],
        "other nodes stay fp32; `--pin NODE=fp16|bf16` sets another 16-bit format for a node",
    ),
    (
        &["--custom-rule"],
        "classes, pins and guards of your own are in a policy file, `--policy FILE.json` (docs/policy.md)",
    ),
    (
        &["--iters", "--iterations", "--avgruns", "--warmup", "--duration"],
        "`ampc run MODEL --bench N` runs a model N times and prints the time of a run",
    ),
    (
        &["--min-positive-val", "--max-finite-val"],
        "not needed: constants beyond fp16 stay fp32 (`--out-of-range clamp` clips them), and so do tiny ones whose \
         loss matters (docs/guards.md)",
    ),
    (
        &["--init-max"],
        "not needed: constants beyond the range of the format stay fp32; `--out-of-range` says otherwise",
    ),
    (
        &["--init-conversion-max-bytes"],
        "not needed: constants of any size are converted while they are written",
    ),
    (
        &["--max-depth-of-reduction"],
        "sums of more than 4096 elements stay fp32; `--disable-guard depth` lowers them too",
    ),
    (
        &["--calib", "--calibration-data", "--data-max", "-d"],
        "`--calibrate DATA` keeps operators in fp32 whose values come near an end of the range on data",
    ),
    (
        &["--loadinputs", "--load-inputs", "--input-data", "--feed-dict"],
        "`--inputs DATA` has values for `run`, `verify` and `rewrite --verify`",
    ),
    (
        &["--validate", "--validate-fn"],
        "`ampc rewrite MODEL --verify` compares the result with the model before it is written",
    ),
    (
        &[
            "--disable-shape-infer",
            "--use-symbolic-shape-infer",
            "--skip-symbolic-shape-infer",
            "--use-local-type-inference",
            "--use-standalone-type-inference",
        ],
        "not needed: ampc infers types and shapes itself, named dims included, and no decision \
         depends on those in the file",
    ),
    (
        &["--force-fp16-initializers"],
        "not needed: a constant is stored in the format in which it is read; `--pin-value NAME=fp16` \
         lowers what reads one",
    ),
    (&["--force-fp16-inputs"], "`--pin NODE#VAR=fp16` lowers one type variable of a node"),
    (
        &["--use-bfloat16-as-blocked-nodes-dtype"],
        "`--pin NODE=bf16` makes a node bf16; other nodes stay fp32",
    ),
    (
        &[
            "--input",
            "--model",
            "--onnx",
            "--onnx-path",
            "--model-path",
            "--input-model",
            "--model-name-or-path",
            "-i",
            "-m",
        ],
        "the model is named without a flag: `ampc rewrite MODEL`",
    ),
    (&["--output-path", "--output-model", "--output-dir", "--out"], "`-o FILE` names the output"),
    (&["--saveengine"], "ONNX is written; `trtexec --onnx=FILE --stronglyTyped` builds an engine of it"),
    (
        &["--use-external-data-format", "--save-as-external-data", "--external-data-format"],
        "`--external-data always` puts constants into a file beside the model",
    ),
    (
        &["--overwrite", "--inplace", "--in-place"],
        "`--force` replaces an output that exists; the model that is read is never written to",
    ),
    (&["--target-opset", "--opset-version"], "`--opset N` raises the model to opset N"),
    (
        &[
            "--opt-level",
            "--optimize",
            "--only-onnxruntime",
            "--model-type",
            "--num-heads",
            "--hidden-size",
            "--use-gpu",
        ],
        "only casts are optimised; run the optimizer of ONNX Runtime before, its operators are known \
         (docs/contrib.md)",
    ),
    (
        &["--device"],
        "`--device` of `ampc run`, `verify`, `plan` and `train` selects where a model runs; `--target NAME` sets the target device of a rewrite (`ampc target list`)",
    ),
    (
        &["--provider", "--providers", "--execution-provider"],
        "no other runtime decides; `--target NAME` sets the target device (`ampc target list`)",
    ),
    (
        &[
            "--trt-plugins",
            "--trt-plugins-precision",
            "--plugins",
            "--staticplugins",
            "--custom-op-lib",
            "--custom-ops-library",
        ],
        "`signatures` of a policy file declare operands and results of your own operators (docs/policy.md)",
    ),
    (
        &["--batchsize", "--batch-size", "--train-batch-size", "--bs"],
        "`ampc train … --batch N` says how many samples a step takes; `--dim NAME=N` gives an open dim its size elsewhere",
    ),
    (
        &["--learning-rate", "--base-lr"],
        "`ampc train … --lr X` says the learning rate, `--lr cosine:lr=X` a schedule (docs/training.md)",
    ),
    (&["--log-level", "--verbosity"], "`-v` prints more, `-q` only errors and warnings about the result"),
    (
        &[
            "--shapes",
            "--minshapes",
            "--optshapes",
            "--maxshapes",
            "--input-shape",
            "--overwrite-input-shape",
        ],
        "dims may stay open; `--dim NAME=N` gives one a size where a model is run",
    ),
    (
        &["fit", "finetune", "--loss-scale", "--scaler"],
        "`ampc train-step MODEL -o STEP --state STATE --loss LOSS` makes a training step, with loss scale and \
         optimizer, and `ampc train STEP --state STATE --data DATA --steps N` trains with it",
    ),
    (
        &["convert", "lower", "autocast", "cast", "quantize", "optimize"],
        "`ampc rewrite MODEL` lowers a model to fp16, with `--to bf16` to bf16",
    ),
    (&["compare", "diff", "debug"], "`ampc verify MODEL OTHER` compares the outputs of two models"),
    (
        &["infer", "exec", "bench", "benchmark"],
        "`ampc run MODEL` computes the outputs of a model, `--bench N` measures the time of a run",
    ),
    (&["validate", "lint"], "`ampc check MODEL` reports every problem of a model"),
    (
        &["show", "info", "summary", "print"],
        "`ampc inspect MODEL` shows the content of a model, `ampc opt MODEL --passes ''` prints the whole model as text",
    ),
    (
        &["calibrate", "statistics", "histogram"],
        "`ampc stats MODEL --inputs DATA` gives the range of every tensor and the effect of rounding it",
    ),
    (&["tune"], "nothing is measured yet; `ampc target list` has the targets that costs are predicted for"),
];

/// Flags that take all values that follow, in the spelling of [`ANSWERS`].
const LISTS: [&str; 6] = [
    "--op-block-list",
    "--op-types-to-exclude",
    "--op-types-to-include",
    "--node-block-list",
    "--nodes-to-exclude",
    "--nodes-to-include",
];

fn is_model(given: &str) -> bool {
    [".onnx", ".ir", ".json"].iter().any(|ending| given.ends_with(ending))
}

/// The spelling of [`ANSWERS`] and [`LISTS`], without a value.
fn key(given: &str) -> String {
    given.split('=').next().unwrap_or(given).to_ascii_lowercase().replace('_', "-")
}

/// The model that a list has taken for one of its values, and the flag of the list.
fn model_in_list(args: &[String]) -> Option<(&str, &str)> {
    let at = args.iter().rposition(|arg| is_model(arg))?;
    let flag = args[..at].iter().rev().find(|arg| arg.starts_with('-'))?;
    let takes_it = LISTS.contains(&key(flag).as_str()) && !flag.contains('=');
    takes_it.then_some((args[at].as_str(), flag.as_str()))
}

/// The failure to show instead of clap's error, if that is about a flag or command of another tool, or about the name of a
/// model where none is expected, or about one that a list has taken.
pub(crate) fn answer(error: &clap::Error, args: &[OsString]) -> Option<Failure> {
    let args: Vec<String> = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    if error.kind() == ErrorKind::MissingRequiredArgument
        && let Some((model, flag)) = model_in_list(&args)
    {
        let text = format!(
            "`{model}` was read as a value of `{flag}`, which takes all that follow: expected the model in front, \
             `ampc rewrite {model} {flag} …`"
        );
        return Some(Failure::usage("argument", text));
    }
    let text = |kind| match error.get(kind)? {
        ContextValue::String(text) => Some(text.as_str()),
        _ => None,
    };
    let given = text(ContextKind::InvalidArg).or_else(|| text(ContextKind::InvalidSubcommand))?;
    let name = given.split('=').next().unwrap_or(given);
    let key_of_given = key(given);
    if name == "--input" && args.iter().any(|arg| ["run", "verify"].contains(&arg.as_str())) {
        let text = format!("`{name}`: expected `--inputs DATA`, which has values for the inputs");
        return Some(Failure::usage("argument", text));
    }
    if let Some((_, answer)) = ANSWERS.iter().find(|(names, _)| names.contains(&key_of_given.as_str())) {
        return Some(Failure::usage("other_tool", format!("`{name}`: {answer}")));
    }
    if ["-o", "--output"].contains(&name) && args.iter().any(|arg| arg == "run") {
        let text = format!("`{name}`: expected `--outputs FILE`, which says where `run` writes the outputs");
        return Some(Failure::usage("argument", text));
    }
    if ["true", "false"].contains(&key_of_given.as_str())
        && args.iter().any(|arg| key(arg) == "--keep-io-types")
    {
        let text = format!(
            "`{given}`: expected a value behind a `=`, `--keep-io-types={given}`; `--keep-io all|none` says the same"
        );
        return Some(Failure::usage("argument", text));
    }
    if let Some(text) = of_other_command(error, given, &args) {
        return Some(Failure::usage("argument", text));
    }
    let is_command = error.get(ContextKind::InvalidSubcommand).is_some();
    is_model(given).then(|| match is_command {
        true => Failure::usage(
            "command",
            format!("`{given}`: expected a command, such as `ampc rewrite {given}`"),
        ),
        false => Failure::usage(
            "argument",
            format!("`{given}`: no further model is expected; where one is written, `-o {given}` names it"),
        ),
    })
}

/// Advice for an option that this command lacks and another command or tool has, unless the option is a prefix
/// of an option of this command.
fn of_other_command(error: &clap::Error, given: &str, args: &[String]) -> Option<String> {
    let name = given.split('=').next()?;
    let long = name.strip_prefix("--")?;
    let begins_alike = |near: &str| near.starts_with(name) || name.starts_with(near);
    if error.kind() != ErrorKind::UnknownArgument || suggested(error).is_some_and(begins_alike) {
        return None;
    }
    let cli = Cli::command();
    let is_named = |command: &&clap::Command| args.iter().skip(1).any(|arg| arg == command.get_name());
    let this = cli.get_subcommands().find(is_named)?.get_name();
    let has = |command: &&clap::Command| {
        command.get_arguments().any(|arg| arg.get_long() == Some(long) && !arg.is_hide_set())
    };
    let others: Vec<String> =
        cli.get_subcommands().filter(has).map(|command| format!("`ampc {}`", command.get_name())).collect();
    let list = others.join(" and ");
    (!others.is_empty()).then(|| format!("`{name}` is an option of {list}, not of `ampc {this}`"))
}

/// The option that an error suggests.
fn suggested(error: &clap::Error) -> Option<&str> {
    match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(text)) => Some(text),
        _ => None,
    }
}

/// The error without tips that do not help: an option that looks otherwise than the one that was given, and how an unknown
/// option would be a value.
pub(crate) fn without_far_tips(mut error: clap::Error) -> clap::Error {
    if error.kind() == ErrorKind::UnknownArgument {
        let given = match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::String(text)) => text.clone(),
            _ => return error,
        };
        if suggested(&error).is_some_and(|near| nearest(&given, [near]).is_none()) {
            error.remove(ContextKind::SuggestedArg);
        }
        if given.starts_with('-') {
            error.remove(ContextKind::Suggested);
        }
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No answer is for a flag of `rewrite` or for a command, and no answer occurs twice.
    #[test]
    fn answers_are_for_what_there_is_not() {
        let cli = Cli::command();
        let mut known: Vec<String> = cli.get_subcommands().map(|c| c.get_name().to_owned()).collect();
        let rewrite = cli.find_subcommand("rewrite").unwrap();
        let longs =
            rewrite.get_arguments().flat_map(|a| a.get_long_and_visible_aliases().unwrap_or_default());
        known.extend(longs.map(|long| format!("--{long}")));
        for (names, _) in ANSWERS {
            for name in *names {
                assert!(!known.contains(&(*name).to_owned()), "{name}");
                known.push((*name).to_owned());
                assert_eq!(name.to_ascii_lowercase().replace('_', "-"), **name);
            }
        }
    }

    /// The document has every row, word by word.
    #[test]
    fn answers_are_documented() {
        let text = include_str!("../../docs/cli.md");
        for (names, answer) in ANSWERS {
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            let row = format!("| {} | {} |\n", names.join(", "), answer.replace('|', "\\|"));
            assert!(text.contains(&row), "docs/cli.md lacks\n{row}");
        }
    }
}
