//! Arguments of `ampc train`.

use super::spec;
use ampc::execute::training::Schedule;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(
    override_usage = "ampc train [OPTIONS] --state <FILE.safetensors> --data <DATA> (--steps <N> | --epochs <N>) <STEP>\n       \
                            ampc train [OPTIONS] --resume <FILE.safetensors> --data <DATA> <STEP>"
)]
pub(crate) struct TrainArgs {
    /// The training step, as `ampc train-step` makes it
    pub(crate) step: PathBuf,
    /// The state to begin with, as `ampc train-step` writes it
    #[arg(
        long,
        value_name = "FILE.safetensors",
        required_unless_present = "resume",
        conflicts_with = "resume"
    )]
    pub(crate) state: Option<PathBuf>,
    /// Go on from a checkpoint, bit for bit as if there had been no stop; steps, lr, batch, order of samples and last are those
    /// of the checkpoint where they are not given
    #[arg(long, value_name = "FILE.safetensors")]
    pub(crate) resume: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) data: SampleArgs,
    #[command(flatten)]
    pub(crate) run: LoopArgs,
    #[command(flatten)]
    pub(crate) output: TrainOutputArgs,
    /// Where to run: cpu, or cuda or cuda:N, which are not supported yet
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(crate) device: String,
}

/// Arguments that choose the training data.
#[derive(Debug, Args)]
#[command(next_help_heading = "Data")]
pub(crate) struct SampleArgs {
    /// Samples: an .npz or .safetensors file with an array per input, a row per sample, a folder of such files, or folders
    /// of `input_0.pb` …
    #[arg(long, value_name = "DATA")]
    pub(crate) data: PathBuf,
    /// Samples of a batch, if the step takes any number [default: 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) batch: Option<u64>,
    /// The seed of the order of samples, which is another one in every epoch [default: 0]
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

/// How long and how fast.
#[derive(Debug, Args)]
#[command(next_help_heading = "Training")]
pub(crate) struct LoopArgs {
    /// Steps to take altogether, those before a checkpoint included
    #[arg(long, value_name = "N", required_unless_present_any = ["epochs", "resume"], conflicts_with = "epochs",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) steps: Option<u64>,
    /// Instead of steps: how often to go over all samples
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epochs: Option<u64>,
    /// The learning rate, or a schedule: constant:lr=X[,warmup=N], linear or cosine:lr=X[,warmup=N,final=X,steps=N], or
    /// one-cycle:lr=X[,start=X,final=X,rise=SHARE,steps=N] [default: 0.001]
    #[arg(long, value_name = "SCHEDULE", value_parser = spec::<Schedule>, allow_negative_numbers = true)]
    pub(crate) lr: Option<Schedule>,
}

/// Arguments that name the outputs of training.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct TrainOutputArgs {
    /// Write the state to this file at the end, on Ctrl-C and after an error: whole, or not at all
    #[arg(long, value_name = "FILE.safetensors")]
    pub(crate) save: Option<PathBuf>,
    /// Write it after every N steps, too
    #[arg(long, value_name = "N", requires = "save", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) save_every: Option<u64>,
    /// Replace files that exist
    #[arg(long)]
    pub(crate) force: bool,
    /// Write a line of JSON for every step to this file, or to `train.jsonl` in this folder
    #[arg(long, value_name = "FILE.jsonl|DIR")]
    pub(crate) log: Option<PathBuf>,
    /// Write histograms of the exponents of all gradients to the log, and how many updates of weights were lost to rounding,
    /// after every N steps
    #[arg(long, value_name = "N", requires = "log", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) histogram_every: Option<u64>,
    /// Print a line after every N steps [default: a tenth of them]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) print_every: Option<u64>,
}

/// Handling of the last samples of an epoch if they do not fill a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LastArg {
    /// They are a smaller batch
    Keep,
    /// They are left out
    Drop,
}
