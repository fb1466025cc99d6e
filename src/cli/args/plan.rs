//! Arguments of `ampc plan`.

use super::RoundingArgs;
use super::run::dim;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// The model or training step: .onnx, .ir for the text form, .json for a graph; `-` is standard input
    pub(crate) model: PathBuf,
    /// Size of a named dim, or of axis 1 of `x` if the dim has no name (`x[1]=8`) [default: 1 for a batch, 128 for others]
    #[arg(long, value_name = "NAME=N,…", value_delimiter = ',', value_parser = dim)]
    pub(crate) dim: Vec<(String, u64)>,
    /// Device whose plan is made: cpu, cuda or cuda:N (see `ampc devices`)
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(crate) device: String,
    #[command(flatten)]
    pub(crate) rounding: RoundingArgs,
    /// Print the least time of each step that the rates of this target allow: a profile (see `ampc target list`) or a file
    /// with a profile
    #[arg(long, value_name = "NAME|FILE.json")]
    pub(crate) target: Option<String>,
    /// Print the bounds as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
