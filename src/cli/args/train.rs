//! Arguments of `ampc train`.

use super::run::ProfileArgs;
use super::{DeviceArgs, spec};
use ampc::execute::training::{MAX_SKIPPED, Schedule};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(
    override_usage = "ampc train [OPTIONS] --state <FILE.safetensors> --data <DATA> (--steps <N> | --epochs <N>) <STEP>\n       \
                            ampc train [OPTIONS] --resume <FILE.safetensors> --data <DATA> <STEP>"
)]
pub(crate) struct TrainArgs {
    /// The training step that `ampc train-step` made
    pub(crate) step: PathBuf,
    /// The initial state that `ampc train-step` wrote
    #[arg(
        long,
        value_name = "FILE.safetensors",
        required_unless_present = "resume",
        conflicts_with = "resume"
    )]
    pub(crate) state: Option<PathBuf>,
    /// Begin with weights and running statistics of a checkpoint or state of another precision, optimizer or
    /// last layer, if their names and dims match the step's; all other tensors are those of `--state`
    #[arg(long, value_name = "FILE.safetensors", requires = "state", conflicts_with = "resume")]
    pub(crate) init: Option<PathBuf>,
    /// Resume from a checkpoint, bit for bit like an uninterrupted run; steps, lr, batch, order of samples and
    /// last default to the values in the checkpoint
    #[arg(long, value_name = "FILE.safetensors")]
    pub(crate) resume: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) data: SampleArgs,
    #[command(flatten)]
    pub(crate) run: LoopArgs,
    #[command(flatten)]
    pub(crate) output: TrainOutputArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

/// Arguments that choose the training data.
#[derive(Debug, Args)]
#[command(next_help_heading = "Data")]
pub(crate) struct SampleArgs {
    /// Samples: an .npz or .safetensors file with an array per input, a row per sample, a folder of such files, or folders
    /// of `input_0.pb` …
    #[arg(long, value_name = "DATA")]
    pub(crate) data: PathBuf,
    /// Batch size, if the step takes any [default: 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) batch: Option<u64>,
    /// Seed of the order of samples, which differs in every epoch [default: 0]
    #[arg(long, value_name = "N", conflicts_with = "no_shuffle")]
    pub(crate) seed: Option<u64>,
    /// Take samples in the order of the data
    #[arg(long)]
    pub(crate) no_shuffle: bool,
    /// Handling of the last samples of an epoch if they do not fill a batch [default: keep, if the step takes
    /// any batch size]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) last: Option<LastArg>,
    /// Samples to evaluate the loss on, and the accuracy of a classification, with BatchNormalization and dropouts as in
    /// inference: after every epoch, and at the end
    #[arg(long, value_name = "DATA")]
    pub(crate) eval: Option<PathBuf>,
    /// Evaluate after every N steps, instead of every epoch
    #[arg(long, value_name = "N", requires = "eval", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) eval_every: Option<u64>,
}

/// Arguments that set the number of steps and the learning rate.
#[derive(Debug, Args)]
#[command(next_help_heading = "Training")]
pub(crate) struct LoopArgs {
    /// Total number of steps, including those before a checkpoint
    #[arg(long, value_name = "N", required_unless_present_any = ["epochs", "resume"], conflicts_with = "epochs",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) steps: Option<u64>,
    /// Instead of steps: the number of passes over all samples
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epochs: Option<u64>,
    /// The learning rate, or a schedule: constant:lr=X[,warmup=N], linear or cosine:lr=X[,warmup=N,final=X,steps=N], or
    /// one-cycle:lr=X[,start=X,final=X,rise=SHARE,steps=N] [default: 0.001]
    #[arg(long, value_name = "SCHEDULE", value_parser = spec::<Schedule>, allow_negative_numbers = true)]
    pub(crate) lr: Option<Schedule>,
    /// End with exit code 1 after N steps in a row that were skipped because their gradients were not finite
    #[arg(long, value_name = "N", default_value_t = MAX_SKIPPED, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_skipped: u64,
}

/// Arguments that name the outputs of training.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct TrainOutputArgs {
    /// Write the state to this file at the end, on Ctrl-C and after an error: complete, or not at all
    #[arg(long, value_name = "FILE.safetensors")]
    pub(crate) save: Option<PathBuf>,
    /// Write the state also after every N steps
    #[arg(long, value_name = "N", requires = "save", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) save_every: Option<u64>,
    /// Replace files that exist
    #[arg(long)]
    pub(crate) force: bool,
    /// Write a line of JSON for every step to this file, or to `train.jsonl` in this folder
    #[arg(long, value_name = "FILE.jsonl|DIR")]
    pub(crate) log: Option<PathBuf>,
    /// Write histograms of the exponents of all gradients to the log, and the number of weight updates lost to
    /// rounding, after every N steps
    #[arg(long, value_name = "N", requires = "log", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) histogram_every: Option<u64>,
    /// Print a line after every N steps [default: a tenth of them]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) print_every: Option<u64>,
    /// Measure N steps after the first step, and print the time of each operator and of the most expensive parts of a step
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) profile: Option<u32>,
    #[command(flatten)]
    pub(crate) profiling: ProfileArgs,
}

/// Handling of the last samples of an epoch if they do not fill a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LastArg {
    /// Train on them as a smaller batch
    Keep,
    /// Leave them out
    Drop,
}
