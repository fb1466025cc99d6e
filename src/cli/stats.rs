//! `ampc stats`: the range of every tensor on data, and the effect of rounding it to lower formats.

use super::args::StatsArgs;
use super::batches::{self, Batches};
use super::pipeline::{load, warn_of_reading};
use super::problem::{Failure, Problem};
use super::progress::Progress;
use super::run::digits;
use super::shown;
use super::table::{Table, count, number, plural};
use super::ui::{self, Ui};
use super::{data, diagnose, interrupt};
use ampc::execute::stats::{Collector, ModelStats, Numbers, Origin, Rounded, TensorStats, csv, json};
use ampc::onnx::bytes::SourceBytes;
use ampc::{Error, ErrorKind};
use std::path::Path;
use std::sync::Arc;

pub(crate) fn run(args: &StatsArgs, threads: Option<u32>, ui: Ui) -> Result<(), Failure> {
    let failure_of_data = |error: Error| diagnose::failure(&error, None);
    let runtime = data::default_runtime(threads, &args.limits, ui)?;
    let form = args.output.as_deref().map(Form::of).transpose()?;
    let paths = batches::named(&args.data.inputs)?;
    let progress = Progress::start(ui);
    progress.stage("reading");
    let mut model = load(&args.model, ui)?;
    progress.suspend(|| warn_of_reading(&model, Some(&args.model), ui));
    let read = model.files();
    if let Some(path) = &args.output {
        ampc::files::check(path, args.force, &read).map_err(failure_of_data)?;
    }
    let module = model.module.clone();
    let random = match paths.is_empty() {
        true => Some(progress.suspend(|| data::inputs(&args.data.of_random(), &module, &runtime, ui))?),
        false => None,
    };
    let most_bytes = runtime.limits.max_bytes;
    let collector = Collector::new(&mut model.module, &runtime);
    let collector = collector.map_err(|error| diagnose::failure(&error, Some(&module)))?;
    let total = paths.len().max(1);
    let mut batches = Batches { module: &module, collector, progress: &progress };
    interrupt::defer_first_signal();
    let ended = match &random {
        Some(inputs) => batches.add_random(inputs),
        None => batches.add_all(&paths, most_bytes, |inputs| match &args.output {
            Some(output) => ampc::files::check(output, args.force, &inputs.files),
            None => Ok(()),
        }),
    };
    let stats = batches.collector.finish();
    drop(progress);
    ampc::files::unchanged(&read).map_err(failure_of_data)?;
    // The statistics of the batches before a failure are kept.
    if stats.batches > 0 || ended.is_ok() {
        output(args, form, &stats, total, &read)?;
    }
    ended?;
    match interrupt::requested().filter(|_| stats.batches < total as u64) {
        Some(status) => {
            let message = format!("stopped by a signal after {} of {total} batches", stats.batches);
            let failure = Failure::of(ErrorKind::Usage, Problem::warning("stats.stopped", message));
            Err(Failure { code: status, ..failure })
        }
        None => Ok(()),
    }
}

/// The form of a file of statistics.
#[derive(Clone, Copy)]
enum Form {
    Json,
    Csv,
}

impl Form {
    /// The form that the name of a file ends in.
    fn of(path: &Path) -> Result<Form, Failure> {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        match ending.to_ascii_lowercase().as_str() {
            "json" => Ok(Form::Json),
            "csv" => Ok(Form::Csv),
            _ => {
                let message =
                    format!("`--output {}`: expected a name that ends in .json or .csv", path.display());
                Err(Failure::usage("output", message))
            }
        }
    }

    fn text(self, model: &Path, stats: &ModelStats, total: usize) -> String {
        match self {
            Form::Json => json(&model.display().to_string(), stats, total as u64),
            Form::Csv => csv(stats),
        }
    }
}

/// Prints and writes the statistics as requested.
fn output(
    args: &StatsArgs,
    form: Option<Form>,
    stats: &ModelStats,
    total: usize,
    read: &[Arc<SourceBytes>],
) -> Result<(), Failure> {
    if let (Some(path), Some(form)) = (&args.output, form) {
        let text = form.text(&args.model, stats, total);
        let written = ampc::files::write(path, text.as_bytes(), args.force, read);
        written.map_err(|error| diagnose::failure(&error, None))?;
    }
    match (args.json, args.csv) {
        (true, _) => ui::print(&Form::Json.text(&args.model, stats, total)),
        (_, true) => ui::print(&Form::Csv.text(&args.model, stats, total)),
        _ => ui::show(&table(args, stats)),
    }
}

/// The tensors of floats, worst first.
fn table(args: &StatsArgs, stats: &ModelStats) -> String {
    let floats = stats.tensors.iter().filter_map(|tensor| {
        let rounded = tensor.numbers.rounded_to(args.to.dtype()).filter(|_| tensor.dtype.is_float())?;
        Some((tensor, rounded))
    });
    let mut rows: Vec<(&TensorStats, &Rounded)> = floats.collect();
    rows.sort_by(|a, b| {
        let worst = |(tensor, rounded): &(&TensorStats, &Rounded)| severity(&tensor.numbers, rounded);
        worst(b).partial_cmp(&worst(a)).unwrap_or(std::cmp::Ordering::Equal)
    });
    let all = rows.len();
    let shown = if args.rows == 0 { all } else { args.rows.min(all) };
    let name = args.to.as_str();
    let mut table = Table::new(0, &[false, false, true, true, true, true, true, true, true, true]);
    let (beyond, below) = (format!("> {name}"), format!("< normal {name}"));
    table.row(["tensor", "made by", "min", "max", "NaN", "inf", &beyond, &below, "to 0", "rounding"]);
    for (tensor, rounded) in &rows[..shown] {
        table.row(cells(tensor, rounded));
    }
    let others = stats.tensors.len() - all;
    let mut text = format!(
        "{} on {}, {} of floats{}\n",
        count(stats.tensors.len() as u64, "tensor"),
        plural(stats.batches, "batch", "batches"),
        number(all as u64),
        if others > 0 { " (the others are in `--json`)" } else { "" },
    );
    if all > 0 {
        text += &format!("\n{table}");
    }
    if shown < all {
        text += &format!("… and {} more; `--rows 0` prints all\n", number((all - shown) as u64));
    }
    text
}

/// Numbers that are larger for tensors that lose more, the most important first: the shares of elements that are not
/// finite, that are beyond the range, that become 0, and that are below the normal range, and the largest error of the
/// others.
fn severity(numbers: &Numbers, rounded: &Rounded) -> [f64; 5] {
    let share = |part: u64| share(part, numbers.count);
    [
        share(numbers.nan + numbers.infinite),
        share(rounded.beyond),
        share(rounded.flushed),
        share(rounded.below_normal),
        rounded.max_relative_error.into(),
    ]
}

#[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn cells(tensor: &TensorStats, rounded: &Rounded) -> [String; 10] {
    let numbers = &tensor.numbers;
    let of_all = |part: u64| percent(part, numbers.count);
    let range = |number: f64| if numbers.count > numbers.nan { digits(number) } else { "-".to_owned() };
    let made_by = match (&tensor.op, tensor.origin) {
        (Some(op), _) => format!("{op} {}", shown::name(&tensor.path)),
        (None, Origin::Input) => "input".into(),
        (None, _) => format!("constant {}", shown::name(&tensor.path)),
    };
    [
        shown::name(&tensor.name),
        made_by.trim_end().to_owned(),
        range(numbers.min),
        range(numbers.max),
        number(numbers.nan),
        number(numbers.infinite),
        of_all(rounded.beyond),
        of_all(rounded.below_normal),
        of_all(rounded.flushed),
        format!("{:.1e}", rounded.max_relative_error),
    ]
}

/// A share in percent, rounded down, with hundredths below 10 %; only a share of nothing is 0.
fn percent(part: u64, whole: u64) -> String {
    let hundredths = u128::from(part) * 10_000 / u128::from(whole.max(1));
    match hundredths {
        _ if part == 0 => "0".into(),
        0 => "<0.01 %".into(),
        1..1000 => format!("{}.{:02} %", hundredths / 100, hundredths % 100),
        _ => format!("{} %", hundredths / 100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_rounded_down() {
        let shares =
            [(0, 5), (1, 1_000_000), (1, 10_000), (345, 10_000), (9996, 100_000), (999, 1000), (7, 7)];
        let shown = shares.map(|(part, whole)| percent(part, whole));
        assert_eq!(shown, ["0", "<0.01 %", "0.01 %", "3.45 %", "9.99 %", "99 %", "100 %"]);
    }
}
