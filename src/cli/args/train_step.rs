//! Arguments of `ampc train-step`.

use super::{DebugArgs, PrecisionArgs, WriteArgs, spec};
use ampc::passes::step::Optimizer;
use ampc::passes::step::loss::LossSpec;
use ampc::passes::step::update::{decay_of, is_norm};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(
    override_usage = "ampc train-step [OPTIONS] --loss <LOSS> --state <FILE.safetensors> --output <FILE> <MODEL>\n       \
                      ampc train-step --export <STEP> --state <FILE.safetensors> --output <FILE>"
)]
pub(crate) struct TrainStepArgs {
    /// The forward model: .onnx, .ir for the text form, .json for a graph; `-` is standard input
    #[arg(required_unless_present = "export")]
    pub(crate) model: Option<PathBuf>,
    /// Instead of making a step: write the forward model of a step, with the weights of a state
    #[arg(long, value_name = "STEP", conflicts_with_all = [
        "model", "StepArgs", "fp32", "to", "policy", "allow", "infer", "clear", "deny", "pin", "pin_value", "disable_guard",
        "keep_io", "opset", "objective", "target", "out_of_range", "excess_precision", "masks", "range",
    ])]
    pub(crate) export: Option<PathBuf>,
    /// Output file of the step; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Output file of the initial state, by the names of the step's inputs; with `--export`, the state to read
    #[arg(long, value_name = "FILE.safetensors")]
    pub(crate) state: PathBuf,
    #[command(flatten)]
    pub(crate) step: StepArgs,
    /// Write a report of the step as JSON: parameters, states, and every node and cast with its phase, role and
    /// precision
    #[arg(long, value_name = "FILE.json", help_heading = "Output", conflicts_with = "export")]
    pub(crate) report: Option<PathBuf>,
    /// Keep everything in fp32
    #[arg(long, help_heading = "Precision", conflicts_with_all = ["to", "target", "objective", "range"])]
    pub(crate) fp32: bool,
    #[command(flatten)]
    pub(crate) precision: PrecisionArgs,
    #[command(flatten)]
    pub(crate) write: WriteArgs,
    #[command(flatten)]
    pub(crate) debug: DebugArgs,
}

/// Arguments that describe the training step.
#[derive(Debug, Args)]
#[command(next_help_heading = "Training")]
pub(crate) struct StepArgs {
    /// cross-entropy[:ignore_index=N,label_smoothing=X,weights=INPUT,axis=N], mse, l1 or bce-with-logits, each with
    /// `of=OUTPUT` for another output than the first one, or output:NAME for an output that is the loss
    #[arg(long, value_name = "LOSS", value_parser = spec::<LossSpec>, required_unless_present = "export")]
    pub(crate) loss: Option<LossSpec>,
    /// Input of targets: an input of the model, or a new one
    #[arg(long, value_name = "NAME", default_value = "target")]
    pub(crate) target_input: String,
    /// Precision of the loss: fp32, or as the policy decides
    #[arg(long, value_enum, value_name = "PRECISION", default_value = "fp32")]
    pub(crate) loss_precision: LossPrecisionArg,
    #[arg(long, value_name = "OPTIMIZER", default_value = "adamw", value_parser = spec::<Optimizer>, help = Optimizer::SPELLING)]
    pub(crate) optimizer: Optimizer,
    /// Format of weights that are only read in 16 bits [default: fp32, or the format of a jmp policy]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) master_weights: Option<MasterWeightsArg>,
    /// ampc, torch, paddle-fleet, paddle-old, paddle-new, jmp, fastai or ort-trainer, each with settings after it
    /// (`torch:init=1024,interval=50`); static:N, none, or a JSON file [default: ampc for fp16, none otherwise]
    #[arg(long, value_name = "SCALER|FILE.json")]
    pub(crate) scaler: Option<String>,
    /// Scale gradients so that their joint norm is at most this
    #[arg(long, value_name = "X", value_parser = norm, allow_negative_numbers = true)]
    pub(crate) clip_norm: Option<f64>,
    /// Weight decay of parameters with these names, instead of the optimizer's; may be repeated, the last match
    /// wins
    #[arg(long, value_name = "GLOB=X", value_parser = decay)]
    pub(crate) decay: Vec<(String, f64)>,
    /// Constants not to train, by name, glob or `re:REGEX`; may be repeated. If `--freeze` and `--train` both
    /// match, the more specific pattern wins
    #[arg(long, value_name = "GLOB")]
    pub(crate) freeze: Vec<String>,
    /// Constants to train although they do not look like parameters; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub(crate) train: Vec<String>,
    /// Results of nodes through which no gradient passes, by name, glob or `re:REGEX`; may be repeated
    #[arg(long, value_name = "VALUE")]
    pub(crate) stop_gradient: Vec<String>,
    /// Keep parameters that the loss does not depend on as constants, instead of refusing the model
    #[arg(long)]
    pub(crate) freeze_unused: bool,
    /// Activations to recompute for gradients instead of keeping them, where that lowers the peak memory
    #[arg(long, value_enum, value_name = "WHAT", default_value = "cheap")]
    pub(crate) recompute: RecomputeArg,
    /// The size of an open dim, or of axis 1 of `x` if it has no name (`x[1]=8`), for which memory is planned; may be repeated.
    /// The batch is 1 without it, whatever its name
    #[arg(long, value_name = "NAME=N,…", value_delimiter = ',', value_parser = super::run::dim)]
    pub(crate) dim: Vec<(String, u64)>,
    /// Seed of dropouts in the initial state
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) dropout_seed: u64,
}

/// Activations to recompute for gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RecomputeArg {
    /// Nothing: activations are kept
    None,
    /// Casts, moves, dropouts and elementwise operators
    Cheap,
}

/// Format of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MasterWeightsArg {
    /// In fp32, with a copy in 16 bits that the optimizer writes
    Fp32,
    /// In 16 bits alone: small updates are lost
    None,
}

/// Precision of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LossPrecisionArg {
    /// In fp32
    Fp32,
    /// As the policy says
    Low,
}

/// Reads `--clip-norm`.
fn norm(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|&number| is_norm(number));
    number
        .ok_or_else(|| format!("expected a positive number, from {:e} to {:e}", f32::MIN_POSITIVE, f32::MAX))
}

/// Reads `--decay`.
fn decay(text: &str) -> Result<(String, f64), String> {
    decay_of(text)
        .ok_or_else(|| format!("expected a name or glob, `=` and a number from 0 to {:e}", f32::MAX))
}
