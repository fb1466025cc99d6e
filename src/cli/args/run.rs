//! Arguments of `ampc run` and `ampc verify`: values for the inputs of models, and limits.

use clap::{ArgGroup, Args};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The model: .onnx, .ir for the text form, .json for a graph; `-` is standard input
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) data: DataArgs,
    /// Write the outputs: an .npz or .safetensors file, or a folder of test data, whose name ends in `/`
    #[arg(long, value_name = "FILE")]
    pub(crate) outputs: Option<PathBuf>,
    /// Replace files that exist
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Run N more times, and print the time of a run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) bench: Option<u32>,
    /// With `--bench`: run N more times, and print the time of each operator and of the most expensive steps: nodes, or
    /// nodes that run as one loop
    #[arg(long, requires = "bench")]
    pub(crate) profile: bool,
    #[command(flatten)]
    pub(crate) profiling: ProfileArgs,
    /// Print the plan: the order of the steps, and the place of every value
    #[arg(long)]
    pub(crate) print_plan: bool,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

/// Arguments of `--profile`.
#[derive(Debug, Args)]
pub(crate) struct ProfileArgs {
    /// With `--profile`: print the least time of each step on this target beside its time: a profile (see `ampc target
    /// list`) or a file with a profile
    #[arg(long, value_name = "NAME|FILE.json", requires = "profile")]
    pub(crate) target: Option<String>,
    /// With `--profile`: write the steps with their bytes, operations and times as JSON
    #[arg(long, value_name = "FILE.json", requires = "profile")]
    pub(crate) profile_json: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    override_usage = "ampc verify [OPTIONS] <MODEL> <OTHER>\n       ampc verify [OPTIONS] <MODEL> --test-data <DIR>"
)]
#[command(group = ArgGroup::new("reference").args(["other", "test_data"]).required(true))]
pub(crate) struct VerifyArgs {
    /// The reference model
    pub(crate) model: PathBuf,
    /// The model to compare with it, on the same inputs
    pub(crate) other: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) data: DataArgs,
    /// Instead of another model: a folder of `input_0.pb` … and `output_0.pb` …, or of such folders
    #[arg(long, value_name = "DIR", conflicts_with_all = ["inputs", "random", "dim"])]
    pub(crate) test_data: Option<PathBuf>,
    /// Largest error as a share of the largest wanted element [default: by the least precise float format]
    #[arg(long, value_name = "X", value_parser = tolerance, allow_negative_numbers = true, conflicts_with_all = ["rtol", "atol"])]
    pub(crate) tolerance: Option<f64>,
    /// Largest relative error of an element [default: 1e-3 for test data]
    #[arg(long, value_name = "X", value_parser = tolerance, allow_negative_numbers = true)]
    pub(crate) rtol: Option<f64>,
    /// Largest absolute error of an element, beside the relative one [default: 1e-7 for test data]
    #[arg(long, value_name = "X", value_parser = tolerance, allow_negative_numbers = true)]
    pub(crate) atol: Option<f64>,
    /// Exit with 0, with a warning, if low products alone explain why outputs are too far off: MODEL with its
    /// products rounded as in OTHER; outputs that are not finite where MODEL's are finite are never accepted
    #[arg(long, conflicts_with_all = ["tolerance", "rtol", "atol", "test_data"])]
    pub(crate) accept_excused: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

/// The device that runs models.
#[derive(Debug, Args)]
pub(crate) struct DeviceArgs {
    /// Device: cpu, cuda or cuda:N (see `ampc devices`)
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(crate) device: String,
    /// Maximal memory that is taken of the device, in bytes or as 512MiB or 2GiB [default: what the device has]
    #[arg(long, value_name = "N", value_parser = bytes)]
    pub(crate) max_device_bytes: Option<u64>,
    #[command(flatten)]
    pub(crate) rounding: RoundingArgs,
    /// Write the texts of the kernels that the GPU runs, and a list of their launches, to a folder
    #[arg(long, value_name = "DIR")]
    pub(crate) dump_kernels: Option<PathBuf>,
}

impl DeviceArgs {
    /// A device by its name, without further settings.
    pub(crate) fn of(device: String, rounding: RoundingArgs) -> DeviceArgs {
        DeviceArgs { device, max_device_bytes: None, rounding, dump_kernels: None }
    }
}

/// The rounding on a GPU.
#[derive(Clone, Copy, Default, Debug, Args)]
pub(crate) struct RoundingArgs {
    /// On a GPU: let fp32 products and convolutions round their operands to TF32
    #[arg(long)]
    pub(crate) tf32: bool,
    /// On a GPU: round after every operator; do not fuse operators into a library call that keeps fp32 between them
    #[arg(long)]
    pub(crate) exact_rounding: bool,
}

/// Values for the inputs of a model.
#[derive(Debug, Args)]
#[command(next_help_heading = "Inputs")]
pub(crate) struct DataArgs {
    /// Values for the inputs: an .npz or .safetensors file with their names, or a folder of `input_0.pb` …; where models are
    /// compared, also a folder of such batches
    #[arg(long, value_name = "DATA", conflicts_with = "random")]
    pub(crate) inputs: Option<PathBuf>,
    /// Random values, equal for equal seeds; models are compared on several draws of different magnitudes
    /// [default: 0, if no data is given]
    #[arg(long, value_name = "SEED")]
    pub(crate) random: Option<u64>,
    /// Size of a named dim, or of axis 1 of `x` if the dim has no name (`x[1]=8`): for random values [default: 1, or the
    /// first of 8, 16, 32, 64, 128 and 224 at which the model runs; 8 is tried first where models are compared], and
    /// for the predicted time of a rewrite [default: 1 for a batch, 128 for others]
    #[arg(long, value_name = "NAME=N,…", value_delimiter = ',', value_parser = dim)]
    pub(crate) dim: Vec<(String, u64)>,
}

/// Limits of a run.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// Maximal number of iterations of a loop [default: any number]
    #[arg(long, value_name = "N")]
    pub(crate) max_iterations: Option<u64>,
    /// Maximal time of a run in seconds, checked between nodes [default: any number]
    #[arg(long, value_name = "S", value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) time_limit: Option<Duration>,
}

impl LimitArgs {
    /// True if any of these arguments was given.
    pub(crate) fn is_given(&self) -> bool {
        self.max_iterations.is_some() || self.time_limit.is_some()
    }
}

impl DataArgs {
    /// True if values were requested.
    pub(crate) fn has_values(&self) -> bool {
        self.inputs.is_some() || self.random.is_some()
    }
}

/// Reads `--dim`.
pub(super) fn dim(text: &str) -> Result<(String, u64), String> {
    let (name, size) = text.rsplit_once('=').ok_or("expected NAME=N")?;
    match size.parse() {
        Ok(size) if !name.is_empty() => Ok((name.to_owned(), size)),
        _ => Err("expected a name, `=` and a number".into()),
    }
}

/// Reads a number of bytes, possibly with a unit.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let (number, shift) = units
        .into_iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)))
        .unwrap_or((text, 0));
    let number: Option<u64> = number.trim_end().parse().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| "expected a number of bytes, or of KiB, MiB, GiB or TiB: 2GiB".into())
}

/// Reads a time in seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number of seconds")?;
    Duration::try_from_secs_f64(number).map_err(|_| "expected a number of seconds, 0 or more".into())
}

/// Reads a tolerance.
pub(super) fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        // Without the sign of −0.
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number.abs()),
        _ => Err("expected a finite number, 0 or more".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn bytes_have_units() {
        let read = |text| bytes(text).ok();
        assert_eq!(["12", "3KiB", "2 GiB"].map(read), [Some(12), Some(3 << 10), Some(2 << 30)]);
        assert_eq!(["", "MiB", "-1", "1.5GiB", "1GB", "99999999TiB"].map(read), [None; 6]);
    }
}
