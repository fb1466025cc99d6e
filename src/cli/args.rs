//! The arguments of the command line.

mod peers;
mod plan;
mod run;
mod search;
mod stats;
mod train;
mod train_step;

pub(crate) use self::peers::PeerArgs;
pub(crate) use self::plan::PlanArgs;
pub(crate) use self::run::{DataArgs, DeviceArgs, LimitArgs, ProfileArgs, RoundingArgs, RunArgs, VerifyArgs};
pub(crate) use self::search::{Budget, SearchArgs};
pub(crate) use self::stats::StatsArgs;
pub(crate) use self::train::{LastArg, TrainArgs};
pub(crate) use self::train_step::{LossPrecisionArg, MasterWeightsArg, RecomputeArg, TrainStepArgs};

use self::run::tolerance;
use ampc::ir::DType;
use ampc::options::{Objective, Opset};
use ampc::passes::input_ranges::range_of;
use ampc::passes::pipeline::{PASSES, PassDef};
use ampc::passes::policy::{PRESETS, float_format};
use ampc::passes::step::SpecError;
use clap::builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::ffi::OsStr;
use std::path::PathBuf;

/// A mixed-precision compiler for ONNX models: lowers them to fp16 or bf16 where it is safe, with a reason for
/// every decision.
#[derive(Debug, Parser)]
#[command(name = "ampc", version, max_term_width = 100, after_help = AFTER)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER: &str = "Exit codes: 0 done · 1 a comparison failed · 2 wrong usage · 3 the input is invalid · \
                     4 not supported · 5 reading or writing failed · 70 a bug of ampc";

/// Options of every command.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// Print only errors and warnings about the result
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Print more: passes and their times, every warning
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
    /// Color the output
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t)]
    pub(crate) color: When,
    /// Run models in N threads [default: the number of processors]; results do not depend on N, and rewriting
    /// uses one thread
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
}

/// Use of colors: by the terminal, always or never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// If a terminal reads it and `NO_COLOR` is not set
    #[default]
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lower a model to fp16 or bf16 where that is safe
    Rewrite(Box<RewriteArgs>),
    /// Run any passes on a model
    Opt(OptArgs),
    /// Make a training step from a model: data and state in, loss and next state out
    TrainStep(Box<TrainStepArgs>),
    /// Train with a step: run it over data, with checkpoints
    Train(Box<TrainArgs>),
    /// Report every problem of a model
    Check(CheckArgs),
    /// Run a model
    Run(RunArgs),
    /// Show the plan of a model, and the least time of its steps on a target
    Plan(PlanArgs),
    /// Compare the outputs of a model with those of another model, or with test data
    Verify(VerifyArgs),
    /// Show the range of every tensor on data, and the effect of rounding it
    Stats(StatsArgs),
    /// Show the content of a model
    Inspect(InspectArgs),
    /// List the operators and their precision classes
    Ops(OpsArgs),
    /// List the devices that run models, and the libraries that they need
    Devices(DevicesArgs),
    /// List, show and check policies
    Policy(PolicyArgs),
    /// List, show and check targets
    Target(TargetArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

#[derive(Debug, Args)]
pub(crate) struct RewriteArgs {
    /// The model: .onnx, .ir for the text form, .json for a graph; `-` is standard input
    pub(crate) model: PathBuf,
    /// Output file; `-` is standard output [default: MODEL.fp16.onnx or MODEL.bf16.onnx beside the model]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) precision: PrecisionArgs,
    #[command(flatten)]
    pub(crate) write: WriteArgs,
    #[command(flatten)]
    pub(crate) verify: RewriteVerifyArgs,
    #[command(flatten)]
    pub(crate) search: SearchArgs,
    #[command(flatten)]
    pub(crate) data: DataArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// Lower only operators that make the model faster, by the predicted time on the target; if no operator
    /// does, the model stays fp32
    #[arg(long, help_heading = "Precision")]
    pub(crate) only_if_faster: bool,
    /// Run the model on this data first: operators with values near an end of the range of the format stay fp32; an
    /// .npz or .safetensors file, a folder of `input_0.pb` …, or a folder of such files or folders; may be repeated
    #[arg(long, value_name = "DATA", help_heading = "Precision")]
    pub(crate) calibrate: Vec<PathBuf>,
    /// As `--calibrate`, from statistics of the model that `ampc stats` wrote as JSON
    #[arg(long, value_name = "STATS.json", help_heading = "Precision", conflicts_with = "calibrate")]
    pub(crate) ranges: Option<PathBuf>,
    /// Factor by which magnitudes of other data may be larger or smaller than those of `--calibrate` or `--ranges`, for
    /// fp16 [default: 4]
    #[arg(long, value_name = "X", value_parser = margin, help_heading = "Precision")]
    pub(crate) range_margin: Option<f64>,
    /// Lower products that guards keep in fp32 because their results might leave the range of the format, if their
    /// results stay within it on the data of `--calibrate` or `--ranges`, with the margin
    #[arg(long, help_heading = "Precision")]
    pub(crate) trust_ranges: bool,
    /// Write the report as JSON: every decision with its reason, every cast, every converted constant; `-` is
    /// standard output
    #[arg(long, value_name = "FILE.json", help_heading = "Output")]
    pub(crate) report: Option<PathBuf>,
    /// Print the decision about this node and its reason; a path, or a glob or `re:REGEX` for at most 20 nodes;
    /// may be repeated
    #[arg(long, value_name = "NODE", help_heading = "Output")]
    pub(crate) explain: Vec<String>,
    #[command(flatten)]
    pub(crate) debug: DebugArgs,
}

/// Parses a factor of at least 1.
fn margin(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 1.0 => Ok(number),
        _ => Err("expected a finite number, 1 or more".into()),
    }
}

/// Parses a value with a fixed spelling.
fn spec<T: std::str::FromStr<Err = SpecError>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: SpecError| error.to_string())
}

/// Arguments of `--verify`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Inputs")]
pub(crate) struct RewriteVerifyArgs {
    /// Run the model and its rewrite on the same inputs, and write nothing if an output is too far off
    #[arg(long)]
    pub(crate) verify: bool,
    /// Largest error of `--verify`, as a share of the largest wanted element, or of `--search`, in the unit of its metric
    /// [default: by the format]
    #[arg(long, value_name = "X", value_parser = tolerance, allow_negative_numbers = true)]
    pub(crate) tolerance: Option<f64>,
    /// With `--verify`: write the model, with a warning, if low products alone, with all else in fp32, explain
    /// why outputs are too far off; outputs that are not finite where the model's are finite are never accepted
    #[arg(long, requires = "verify", conflicts_with = "tolerance")]
    pub(crate) accept_excused: bool,
}

/// Arguments that choose formats and decisions.
#[derive(Debug, Args)]
#[command(next_help_heading = "Precision")]
pub(crate) struct PrecisionArgs {
    /// Format to lower to [default: fp16, or the format of a report given as policy]
    #[arg(long, value_name = "FORMAT", aliases = ["low-precision-type", "low_precision_type"])]
    #[arg(value_parser = FormatName)]
    pub(crate) to: Option<DType>,
    /// A preset (safe, all, perf, zero-risk, torch, tf, paddle-o1, paddle-o2, nvidia, fastai or jmp:POLICY; see
    /// `ampc policy list`), a policy file, or the report of an earlier run to repeat
    #[arg(long, value_name = "NAME|FILE.json", default_value = "safe")]
    #[arg(value_parser = PolicyName, hide_possible_values = true)]
    pub(crate) policy: String,
    /// Operators to always lower
    #[arg(long, value_name = "OP,…", value_delimiter = ',')]
    pub(crate) allow: Vec<String>,
    /// Operators to lower unless a denied operator is upstream
    #[arg(long, value_name = "OP,…", value_delimiter = ',')]
    pub(crate) infer: Vec<String>,
    /// Operators without numeric effect, which take the precision of their neighbours
    #[arg(long, value_name = "OP,…", value_delimiter = ',')]
    pub(crate) clear: Vec<String>,
    /// Operators to keep in fp32; operators downstream that depend on them stay fp32 too
    #[arg(long, value_name = "OP,…", value_delimiter = ',')]
    pub(crate) deny: Vec<String>,
    /// Fix the precision of a node, or of one type variable or port of it (`fc#T`, `loop1#state0`); NODE is a path, a
    /// glob or `re:REGEX`; split at the last `=`
    #[arg(long, value_name = "NODE[#VAR]=fp32|fp16|bf16|auto")]
    pub(crate) pin: Vec<String>,
    /// Fix the precision of the node that makes a value, or of the readers of an input or constant; NAME is a
    /// name, a glob or `re:REGEX`
    #[arg(long, value_name = "NAME=fp32|fp16|bf16|auto")]
    pub(crate) pin_value: Vec<String>,
    /// Switch a guard off (see `ampc policy show safe`)
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) disable_guard: Vec<String>,
    /// Inputs and outputs that keep their types: all, none, or names [default: all]
    #[arg(long, value_name = "all|none|NAME,…")]
    pub(crate) keep_io: Option<String>,
    /// Opset of ai.onnx to raise the model to: keep, a number, or auto for the lowest opset at which all
    /// lowered operators have the format, at most 26, the newest that ONNX Runtime 1.31 reads [default: keep]
    #[arg(long, value_name = "keep|auto|N")]
    pub(crate) opset: Option<Opset>,
    /// Operators written out to replace by ONNX's operator, where the opset of the output has it: norms, softmax, gelu,
    /// swish, mish, hard-swish or all; with `--opset auto` the model is raised to an opset that has them
    #[arg(long, value_name = "WORD,…", value_delimiter = ',')]
    pub(crate) raise: Vec<String>,
    /// Quantity that the placement of casts minimizes: predicted time on the target, number of casts, or bytes
    /// that casts read and write [default: time]
    #[arg(long, value_name = "time|casts|bytes")]
    pub(crate) objective: Option<Objective>,
    /// Target device: a profile (see `ampc target list`) or a file with a profile [default: generic]
    #[arg(long, value_name = "NAME|FILE.json")]
    pub(crate) target: Option<String>,
    /// Handling of constants with values beyond the range of the format [default: keep]
    #[arg(long, value_enum, value_name = "ACTION")]
    pub(crate) out_of_range: Option<OutOfRangeArg>,
    /// Least and greatest element of an input: values beyond the format stay fp32, and small values need no guard; may
    /// be repeated
    #[arg(long, value_name = "INPUT=LO:HI", value_parser = range_of)]
    pub(crate) range: Vec<(String, (f64, f64))>,
    /// Keep or remove casts of the model that round a float and widen it again, such as fp32 → fp16 → fp32
    /// [default: forbid]
    #[arg(long, value_enum, value_name = "forbid|allow", hide_possible_values = true)]
    pub(crate) excess_precision: Option<ExcessArg>,
    /// Keep masks in front of a softmax, or raise their huge negative numbers to a number that the format holds, so
    /// that softmax can be low [default: keep]
    #[arg(long, value_enum, value_name = "keep|saturate", hide_possible_values = true)]
    pub(crate) masks: Option<MasksArg>,
    #[command(flatten)]
    pub(crate) peers: PeerArgs,
}

/// Arguments that choose the form of the output.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct WriteArgs {
    /// Form of the output [default: by the ending of FILE]
    #[arg(long, value_enum, value_name = "KIND")]
    pub(crate) emit: Option<EmitArg>,
    /// Place of large constants: in the model or in a file beside it [default: auto]
    #[arg(long, value_enum, value_name = "WHEN")]
    pub(crate) external_data: Option<ExternalArg>,
    /// Replace files that exist
    #[arg(long)]
    pub(crate) force: bool,
}

/// Arguments for debugging passes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Debugging")]
pub(crate) struct DebugArgs {
    /// Write the module in text form, without weights, after this pass, after all passes, or after passes that
    /// changed it
    #[arg(long, value_name = "PASS|all|changed", requires = "dump_dir")]
    pub(crate) dump_after: Option<String>,
    /// Folder for dumps and reproducers
    #[arg(long, value_name = "DIR")]
    pub(crate) dump_dir: Option<PathBuf>,
    /// Verify the module after every pass, not only at the end
    #[arg(long)]
    pub(crate) verify_each: bool,
}

/// The passes and their options, for the help of `opt`.
fn passes() -> String {
    let options =
        |pass: &PassDef| pass.options().iter().map(|o| format!("\n{:24}{o}", "")).collect::<String>();
    let lines = PASSES.iter().map(|pass| format!("  {:<20}  {}{}", pass.name, pass.about, options(pass)));
    format!("Passes, in the usual order:\n{}", lines.collect::<Vec<_>>().join("\n"))
}

#[derive(Debug, Args)]
#[command(after_help = passes())]
pub(crate) struct OptArgs {
    /// The model: .onnx, .ir for the text form, .json for a graph; `-` is standard input
    pub(crate) model: PathBuf,
    /// Passes to run, such as 'classify{to=bf16}, guard, taint, assign' [default: the first line `// pass: …`
    /// of an .ir file]
    #[arg(long, value_name = "PIPELINE")]
    pub(crate) passes: Option<String>,
    /// Output file [default: text form to standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) write: WriteArgs,
    #[command(flatten)]
    pub(crate) debug: DebugArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The model; `-` is standard input
    pub(crate) model: PathBuf,
    /// A state or checkpoint that has to belong to the model, a training step
    #[arg(long, value_name = "FILE.safetensors")]
    pub(crate) state: Option<PathBuf>,
    /// A report that has to be about the model, as it was written
    #[arg(long, value_name = "FILE.json")]
    pub(crate) report: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The model; `-` is standard input
    pub(crate) model: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct OpsArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DevicesArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PolicyArgs {
    #[command(subcommand)]
    pub(crate) command: PolicyCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// List the presets
    List,
    /// Show the guards, classes of operators and pins of a policy
    Show {
        /// A preset or a file that ends in .json
        #[arg(value_name = "NAME|FILE.json", value_parser = PolicyName, hide_possible_values = true)]
        name: String,
    },
    /// Check a policy file
    Check {
        /// The file
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct TargetArgs {
    #[command(subcommand)]
    pub(crate) command: TargetCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TargetCommand {
    /// List the targets that come with ampc
    List,
    /// Show the rates, kernels and fusions of a target, with their sources
    Show {
        /// A target or a file that ends in .json
        #[arg(value_name = "NAME|FILE.json")]
        name: String,
    },
    /// Check a file with a target
    Check {
        /// The file
        file: PathBuf,
    },
}

/// The name of a policy: any text, for which shells complete presets.
#[derive(Clone, Copy, Debug)]
struct PolicyName;

impl TypedValueParser for PolicyName {
    type Value = String;
    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }
    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        // Of a family, what its names begin with.
        let word = |name: &'static str| name.split_inclusive(':').next().unwrap_or(name);
        Some(Box::new(PRESETS.iter().map(move |p| PossibleValue::new(word(p.name)).help(p.about))))
    }
}

/// A format to lower to: in any spelling; help and completions show the usual spelling.
#[derive(Clone, Copy, Debug)]
struct FormatName;

impl TypedValueParser for FormatName {
    type Value = DType;
    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<DType, clap::Error> {
        let format = value.to_str().and_then(float_format).filter(|format| format.is_low());
        let names = PossibleValuesParser::new(["fp16", "bf16"]);
        // The error names those that there are.
        format.map_or_else(|| names.parse_ref(command, arg, value).map(|_| DType::F16), Ok)
    }
    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(["fp16", "bf16"].into_iter().map(PossibleValue::new)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutOfRangeArg {
    /// The constant and its readers stay fp32
    Keep,
    /// The values become the largest finite value of the format
    Clamp,
    /// Fail
    Error,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExcessArg {
    /// Every rounding of the model is kept
    Forbid,
    /// Casts between floats that only round are removed
    Allow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MasksArg {
    /// Masks stay as they are
    Keep,
    /// Numbers below half of the lowest number of the format become that
    Saturate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExternalArg {
    /// As in the source; always above 2 GB
    Auto,
    /// Constants of 1 KiB and more
    Always,
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EmitArg {
    /// An ONNX model
    #[value(alias = "native")]
    Onnx,
    /// The text form, with FILE.safetensors beside it for large constants
    Text,
    /// The graph as JSON, with X.safetensors beside X.json for large constants
    Json,
    /// A drawing for Graphviz
    Dot,
    /// An fp32 ONNX model with the roundings of the lowered model
    Emulated,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
