//! Summary of a rewrite, in a few lines.

use super::args::{EmitArg, RewriteArgs};
use super::emit::{Emit, Written};
use super::kept::kept;
use super::opsets::OpsetAdvice;
use super::problem::{LINES, Problem};
use super::shown;
use super::table::{Table, bytes, count, duration, number, share};
use super::ui::{Stream, Ui};
use ampc::Report;
use ampc::report::{NOT_FASTER, OptimumReport, SLOWER, Summary, TimeReport, UnitReport, is_about_result};

/// Warnings printed in full before they are only counted.
const SAID: usize = 8;

/// The facts that the summary of a rewrite prints.
pub(crate) struct Done<'a> {
    pub(crate) report: &'a Report,
    pub(crate) opsets: OpsetAdvice,
    /// The opset of the result, if it is another one than that of the source.
    pub(crate) raised: Option<u16>,
    /// True if an input of the model has a dim without a number that no option gives a size.
    pub(crate) has_open_dims: bool,
    /// The sizes of open dims for which time is predicted and which do not fit the model, as words; empty if they fit.
    pub(crate) misfits: String,
}

/// A cost, in the unit of the objective.
pub(crate) fn amount(optimum: &OptimumReport, cost: u64) -> String {
    let of_one_run = cost / u64::try_from(optimum.scale.max(1)).unwrap_or(1);
    match optimum.unit {
        "bytes" => bytes(of_one_run),
        "ps" if cost > 0 => duration(of_one_run.max(1)),
        "ps" => duration(0),
        _ if cost == 1 => "1 cast".into(),
        _ => format!("{} casts", number(cost)),
    }
}

/// The predicted time of the model and of its rewrite, and the sizes that the prediction assumes.
fn time_line(time: &TimeReport, target: &str) -> Option<String> {
    let of = |time_of_all| duration(of_one_run(time_of_all, time.scale));
    // A model whose nodes all cost nothing has no time to compare.
    if time.source <= 0 && time.rewritten <= 0 {
        return None;
    }
    let given = match time.assumptions.join(", ") {
        none if none.is_empty() => none,
        assumptions => format!(", if {assumptions}"),
    };
    let ratio = time.ratio().map_or_else(String::new, |ratio| format!(" ({ratio} x)"));
    Some(format!("{} -> {} predicted for {target}{ratio}{given}", of(time.source), of(time.rewritten)))
}

/// The cost of one run: costs are of `scale` of them.
fn of_one_run(cost: i64, scale: i64) -> u64 {
    u64::try_from(cost / scale.max(1)).unwrap_or(0)
}

/// Note about a choice of formats that is not proven optimal.
fn unproven(optimum: &OptimumReport) -> String {
    let amount = |cost: i64| amount(optimum, u64::try_from(cost).unwrap_or(0));
    format!(
        "not proven: the choice costs {}, and no choice costs less than {}",
        amount(optimum.cost),
        amount(optimum.lower_bound)
    )
}

/// The number of fp32 nodes that no cause keeps fp32, by operator.
fn followers(summary: &Summary) -> Option<String> {
    let mut ops: Vec<(&str, u64)> = summary.followers.iter().map(|(op, &n)| (op.as_str(), n)).collect();
    ops.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    let all: u64 = ops.iter().map(|(_, n)| n).sum();
    let words: Vec<String> = ops.iter().map(|(op, n)| format!("{} {op}", number(*n))).collect();
    (all > 0).then(|| format!("{} ({}: as their readers are)", number(all), words.join(", ")))
}

/// The number of lowered nodes by format, and the number of products among them.
fn lowered(report: &Report, to: &str) -> String {
    let summary = &report.summary;
    let all = summary.low + summary.full;
    let formats: Vec<String> = [("fp16", summary.fp16), ("bf16", summary.bf16)]
        .into_iter()
        .filter(|(format, n)| *n > 0 || *format == to)
        .map(|(format, n)| (format, number(n)))
        .enumerate()
        .map(|(i, (format, n))| match i {
            0 => format!("{n} of {} to {format}", count(all, "node")),
            _ => format!("{n} to {format}"),
        })
        .collect();
    let products = match (summary.allow_low, summary.allow) {
        (_, 0) => "; the model has no products of matrices".to_owned(),
        (low, all) if low == all => {
            format!("; all {} products of matrices", number(all)).replace("all 1 products", "the product")
        }
        (low, all) => format!("; {} of {} products of matrices", number(low), number(all)),
    };
    format!("{}{products}", formats.join(", "))
}

/// The number of inserted casts, and of the casts of the model that are kept.
fn casts(report: &Report) -> String {
    let casts = &report.casts;
    let mut words = vec![format!("{} inserted", number(casts.inserted))];
    if casts.present > 0 {
        words.push(format!("{} of {} of the model kept", number(casts.kept), number(casts.present)));
    }
    words.join(", ")
}

/// The number of units that operators replaced, by kind, and of units that were left; `None` if there was no unit.
fn units(report: &Report) -> Option<String> {
    let of = |count: fn(&UnitReport) -> u64, what: &str| {
        let kinds = report.units.iter().filter(|(_, units)| count(units) > 0);
        let words: Vec<String> =
            kinds.map(|(kind, units)| format!("{} {kind}", number(count(units)))).collect();
        (!words.is_empty()).then(|| format!("{} {what}", words.join(", ")))
    };
    let words: Vec<String> =
        [of(|units| units.raised, "raised"), of(|units| units.left, "left")].into_iter().flatten().collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// A size before and after, and by how much it is smaller.
fn size(before: Option<u64>, after: u64) -> String {
    let Some(before) = before else { return bytes(after) };
    let sizes = format!("{} -> {}", bytes(before), bytes(after));
    let percent = share(before.abs_diff(after), before);
    match percent == share(0, 1) {
        true if before == after => sizes,
        true => format!("{sizes} (about the same size)"),
        false if after < before => format!("{sizes} ({percent} smaller)"),
        false => format!("{sizes} ({percent} larger)"),
    }
}

/// The table after a rewrite.
pub(crate) fn text(
    args: &RewriteArgs,
    done: &Done<'_>,
    emit: &Emit,
    before: Option<(u64, u64)>,
    written: &Written,
    ui: Ui,
) -> String {
    let report = done.report;
    let mut table = Table::new(2, &[]);
    let to = report.options.get("to").unwrap_or_default();
    if let Some(opset) = done.raised {
        table.row(["opset".to_owned(), opset.to_string()]);
    }
    if let Some(units) = units(report) {
        table.row(["units".to_owned(), units]);
    }
    table.row(["lowered".to_owned(), lowered(report, to)]);
    if let Some(kept) = kept(&report.fp32, to) {
        table.row(["kept fp32".to_owned(), kept]);
    }
    if let Some(followers) = followers(&report.summary) {
        table.row(["also fp32".to_owned(), followers]);
    }
    if report.summary.other > 0 && ui.verbose {
        table.row([
            "no floats".to_owned(),
            format!("{} without floats to lower", number(report.summary.other)),
        ]);
    }
    table.row(["casts".to_owned(), casts(report)]);
    let after = written.bytes.saturating_add(written.data_bytes);
    let before = before.map(|(model, data)| model.saturating_add(data));
    table.row(["size".to_owned(), size(before, after)]);
    if ui.verbose {
        let constants = &report.constants;
        let of = |bytes_of: u64| bytes(bytes_of);
        table.row([
            "constants".to_owned(),
            format!("{} -> {}", of(constants.bytes_before), of(constants.bytes_after)),
        ]);
    }
    let target = report.options.get("target").unwrap_or("the target");
    // The prediction is for the 16-bit model, and an emulated model is fp32.
    let time = report.time.as_ref().filter(|_| emit.kind != EmitArg::Emulated);
    if let Some(time) = time.and_then(|time| time_line(time, target)) {
        table.row(["time".to_owned(), format!("{time}{}", done.misfits)]);
    }
    if let Some(optimum) = report.optimum.as_ref().filter(|optimum| !optimum.optimal) {
        table.row(["optimum".to_owned(), unproven(optimum)]);
    }
    for line in data_lines(written) {
        table.row(["data".to_owned(), line]);
    }
    let heading = format!(
        "{} -> {} ({to}, policy {})",
        args.model.display(),
        emit.name(),
        report.options.get("policy").unwrap_or_default()
    );
    let heading = shown::message(&heading);
    format!("{heading}\n{table}{}", warnings(done, ui))
}

/// The data files that the output refers to, and the data files of the replaced model that stay.
pub(crate) fn data_lines(written: &Written) -> impl Iterator<Item = String> {
    let new = written.files.get(1);
    let new = new.map(|file| format!("in {}, {}", file.display(), bytes(written.data_bytes)));
    as_before(written).into_iter().chain(new).chain(spared(written))
}

/// The data files of the source that the output refers to.
pub(crate) fn as_before(written: &Written) -> Option<String> {
    let files: Vec<String> = written.kept_files.iter().map(|path| path.display().to_string()).collect();
    (!files.is_empty()).then(|| format!("in {}, as before", files.join(", ")))
}

/// The data files of the model that was replaced which stay, and why.
pub(crate) fn spared(written: &Written) -> impl Iterator<Item = String> {
    written.spared.iter().map(ToString::to_string)
}

/// The warnings as they are drawn; with `-q` only those about the result.
pub(crate) fn warnings(done: &Done<'_>, ui: Ui) -> String {
    let Done { report, opsets, has_open_dims, .. } = done;
    let said = if ui.verbose { LINES } else { SAID };
    let mut text = String::new();
    let warnings = || report.warnings.iter().filter(|w| !ui.quiet || is_about_result(&w.code));
    // Advice that stands above already is not repeated.
    let mut advice: Vec<String> = Vec::new();
    for warning in warnings().take(said) {
        let place = warning.node.as_ref().map_or_else(String::new, |n| format!("`{n}`: "));
        let mut problem = Problem::warning(&warning.code, format!("{place}{}", warning.message));
        if OpsetAdvice::is_about(&warning.code) {
            problem = problem.with_help(opsets.text(warning.needs_opset));
        }
        if [SLOWER, NOT_FASTER].contains(&warning.code.as_str()) && *has_open_dims {
            let help = problem.help.take().unwrap_or_default();
            problem = problem.with_help(format!("{help}; `--dim NAME=N` gives an open dim its size"));
        }
        match &problem.help {
            Some(help) if advice.contains(help) => problem.help = None,
            help => advice.extend(help.clone()),
        }
        text.push_str(problem.draw(ui, Stream::Err).trim_matches('\n'));
        text.push('\n');
    }
    let more = warnings().count().saturating_sub(said) as u64;
    if more > 0 {
        let how = if ui.verbose { "the report has all" } else { "-v shows more" };
        text.push_str(&format!("and {} ({how})\n", count(more, "more warning")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn optimum(unit: &'static str, cost: i64, lower_bound: i64) -> OptimumReport {
        OptimumReport {
            objective: "time",
            unit,
            scale: 2,
            cost,
            merged: 0,
            lower_bound,
            optimal: cost == lower_bound,
            assumptions: Vec::new(),
            forced: Vec::new(),
        }
    }

    #[test]
    fn a_size_that_is_nearly_the_same_is_neither_larger_nor_smaller() {
        assert_eq!(size(Some(25_000), 25_100), "25.0 kB -> 25.1 kB (about the same size)");
        assert_eq!(size(Some(25_000), 24_900), "25.0 kB -> 24.9 kB (about the same size)");
        assert_eq!(size(Some(25_000), 25_000), "25.0 kB -> 25.0 kB");
        assert_eq!(size(Some(25_000), 25_250), "25.0 kB -> 25.2 kB (1 % larger)");
        assert_eq!(size(Some(25_000), 12_500), "25.0 kB -> 12.5 kB (50 % smaller)");
    }

    #[test]
    fn what_is_not_proven_is_said() {
        let words = unproven(&optimum("ps", 3_000_000, 2_400_000));
        assert_eq!(words, "not proven: the choice costs 1.50 µs, and no choice costs less than 1.20 µs");
    }

    #[test]
    fn times_are_of_one_run_and_for_people() {
        let time = |source, rewritten, assumptions: &[&str]| TimeReport {
            unit: "ps",
            scale: 2,
            source,
            rewritten,
            assumptions: assumptions.iter().map(ToString::to_string).collect(),
        };
        let line = |time| time_line(&time, "t4").unwrap();
        assert_eq!(line(time(60_000_000, 40_000_000, &[])), "30.0 µs -> 20.0 µs predicted for t4 (1.50 x)");
        let assumed = line(time(2_000, 4_000, &["a is 1", "b is 2"]));
        assert_eq!(assumed, "1.00 ns -> 2.00 ns predicted for t4 (0.50 x), if a is 1, b is 2");
        assert_eq!(line(time(2_000, 0, &[])), "1.00 ns -> 0 s predicted for t4");
        assert_eq!(time_line(&time(0, 0, &[]), "t4"), None);
        // Slower by a trace is no 1.00.
        assert!(line(time(100_000, 100_001, &[])).contains("(0.99 x)"));
    }
}
