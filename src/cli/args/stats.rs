//! Arguments of `ampc stats`.

use super::run::{DataArgs, LimitArgs, dim};
use ampc::ir::DType;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// The model: .onnx, .ir for the text form, .json for a graph; `-` is standard input
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) data: BatchArgs,
    /// Format of the table: the tensors that lose most if they are rounded to it come first
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub(crate) to: StatsFormat,
    /// Print at most N tensors; 0 prints all
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) rows: usize,
    /// Print all statistics as JSON
    #[arg(long, conflicts_with_all = ["csv", "rows", "to"])]
    pub(crate) json: bool,
    /// Print all statistics as CSV
    #[arg(long, conflicts_with_all = ["rows", "to"])]
    pub(crate) csv: bool,
    /// Write all statistics to a file, as JSON or CSV by its name
    #[arg(short, long, value_name = "FILE.json|FILE.csv")]
    pub(crate) output: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

/// A format to which rounding is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum StatsFormat {
    #[default]
    Fp16,
    Bf16,
    Fp8E4m3,
    Fp8E5m2,
}

impl StatsFormat {
    /// The element type.
    pub(crate) fn dtype(self) -> DType {
        match self {
            StatsFormat::Fp16 => DType::F16,
            StatsFormat::Bf16 => DType::BF16,
            StatsFormat::Fp8E4m3 => DType::F8E4M3FN,
            StatsFormat::Fp8E5m2 => DType::F8E5M2,
        }
    }

    /// The name on the command line and in the table.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            StatsFormat::Fp16 => "fp16",
            StatsFormat::Bf16 => "bf16",
            StatsFormat::Fp8E4m3 => "fp8-e4m3",
            StatsFormat::Fp8E5m2 => "fp8-e5m2",
        }
    }
}

/// Batches of values for the inputs of a model.
#[derive(Debug, Args)]
#[command(next_help_heading = "Inputs")]
pub(crate) struct BatchArgs {
    /// Values for the inputs: an .npz or .safetensors file with their names, a folder of `input_0.pb` …, or a folder
    /// of such files or of such folders; each is a batch, of any size; may be repeated
    #[arg(long, value_name = "DATA", conflicts_with_all = ["random", "dim"])]
    pub(crate) inputs: Vec<PathBuf>,
    /// Random values, equal for equal seeds [default: 0, if no data is given]
    #[arg(long, value_name = "SEED")]
    pub(crate) random: Option<u64>,
    /// Size of a named dim, or of axis 1 of `x` if the dim has no name (`x[1]=8`), for random values [default: 1, or
    /// the first of 8, 16, 32, 64, 128 and 224 at which the model runs]
    #[arg(long, value_name = "NAME=N,…", value_delimiter = ',', value_parser = dim)]
    pub(crate) dim: Vec<(String, u64)>,
}

impl BatchArgs {
    /// The arguments of random values.
    pub(crate) fn of_random(&self) -> DataArgs {
        DataArgs { inputs: None, random: self.random, dim: self.dim.clone() }
    }
}
