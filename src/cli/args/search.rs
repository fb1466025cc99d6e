//! Arguments of `ampc rewrite --search`.

use super::run::tolerance;
use ampc::execute::search::Metric;
use clap::Args;
use clap::builder::PossibleValuesParser;
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of a search for the cheapest formats within a tolerance.
#[derive(Debug, Args)]
#[command(next_help_heading = "Search")]
pub(crate) struct SearchArgs {
    /// Search for the formats of least cost with which every output is within `--tolerance` on the data of `--inputs`, a batch
    /// or a folder of batches; the search only adds fp32 nodes to those of the policy
    #[arg(long, requires = "inputs", conflicts_with_all = ["verify", "random"])]
    pub(crate) search: bool,
    /// Error of an output that `--tolerance` bounds [default: max]
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Metric::names()), requires = "search")]
    pub(crate) metric: Option<String>,
    /// Tolerance of one output; may be repeated
    #[arg(long, value_name = "OUTPUT=X", value_parser = output_tolerance, requires = "search")]
    pub(crate) output_tolerance: Vec<(String, f64)>,
    /// Maximal number of choices that are run on the data, or maximal time of the search in seconds: `60s`; with a time,
    /// the result depends on the machine [default: 15]
    #[arg(long, value_name = "CHOICES|SECONDSs", allow_negative_numbers = true, value_parser = budget, requires = "search")]
    pub(crate) budget: Option<Budget>,
    /// Write the choices that no other choice beats in both error and cost, as JSON
    #[arg(long, value_name = "FILE.json", value_parser = file, requires = "search")]
    pub(crate) pareto: Option<PathBuf>,
    /// Write the policy with the pins that the search found, which repeats the choice without data (`--policy`)
    #[arg(long, value_name = "FILE.json", value_parser = file, requires = "search")]
    pub(crate) write_policy: Option<PathBuf>,
}

/// The end of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Budget {
    /// After this number of choices.
    Choices(usize),
    /// After this time.
    Time(Duration),
}

fn budget(text: &str) -> Result<Budget, String> {
    let expected = "expected a number of choices (`15`) or a time in seconds (`60s`), more than 0";
    let budget = match text.strip_suffix('s') {
        Some(seconds) => {
            let seconds = seconds.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            seconds.filter(|time| !time.is_zero()).map(Budget::Time)
        }
        None => text.parse().ok().filter(|&choices| choices > 0).map(Budget::Choices),
    };
    budget.ok_or_else(|| expected.into())
}

fn file(text: &str) -> Result<PathBuf, String> {
    match text {
        "-" => Err("expected a file, found standard output".into()),
        path => Ok(path.into()),
    }
}

fn output_tolerance(text: &str) -> Result<(String, f64), String> {
    let (name, number) =
        text.rsplit_once('=').filter(|(name, _)| !name.is_empty()).ok_or("expected OUTPUT=X")?;
    Ok((name.to_owned(), tolerance(number)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_choices_or_seconds() {
        assert_eq!(budget("12"), Ok(Budget::Choices(12)));
        assert_eq!(budget("1.5s"), Ok(Budget::Time(Duration::from_millis(1500))));
        for text in ["0", "-1", "0s", "s", "1m", ""] {
            assert!(budget(text).is_err(), "{text}");
        }
        assert_eq!(output_tolerance("a=b=0.5"), Ok(("a=b".into(), 0.5)));
        assert!(output_tolerance("=1").is_err() && output_tolerance("a").is_err());
    }
}
