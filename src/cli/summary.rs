//! Summary of a rewrite, in a few lines.

use super::args::{EmitArg, RewriteArgs};
use super::emit::{Emit, Written};
use super::opsets::OpsetAdvice;
use super::problem::{LINES, Problem};
use super::shown;
use super::table::{Table, bytes, count, number, share};
use super::ui::{Stream, Ui};
use ampc::Report;
use ampc::ir::{DType, Module, Node};
use ampc::report::{Fp32Report, OptimumReport, TimeReport, is_about_result};

/// Warnings said in full before they are only counted.
const SAID: usize = 8;

/// Nodes with a type variable in a 16-bit format, by format.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Low {
    fp16: u64,
    bf16: u64,
}

impl Low {
    /// Counts nodes of the source, by their element types now. One with both formats counts as the one asked for.
    pub(crate) fn of(nodes: &[Node], module: &Module, to: DType) -> Low {
        let mut low = Low::default();
        for &node in nodes {
            let data = module.node(node);
            let has = |dtype| data.decisions.iter().any(|d| d.precision == Some(dtype));
            let formats = [to, DType::F16, DType::BF16];
            match formats.into_iter().find(|&f| has(f)) {
                Some(DType::BF16) => low.bf16 += 1,
                Some(_) => low.fp16 += 1,
                None => {}
            }
        }
        low
    }
}

/// The facts that the summary of a rewrite prints.
pub(crate) struct Done<'a> {
    pub(crate) report: &'a Report,
    pub(crate) low: Low,
    pub(crate) opsets: OpsetAdvice,
}

/// A cost, in the unit of what is to be small.
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
fn time_line(time: &TimeReport) -> Option<String> {
    let of = |time_of_all| duration(of_one_run(time_of_all, time.scale));
    // A model whose nodes all cost nothing has no time to compare.
    if time.source <= 0 && time.rewritten <= 0 {
        return None;
    }
    let given = match time.assumptions.join(", ") {
        none if none.is_empty() => none,
        assumptions => format!(", if {assumptions}"),
    };
    let ratio = ratio(time.source, time.rewritten).map_or_else(String::new, |ratio| format!(" ({ratio} x)"));
    Some(format!("{} -> {} predicted{ratio}{given}", of(time.source), of(time.rewritten)))
}

/// The quotient of two numbers, with two digits.
fn ratio(first: i64, second: i64) -> Option<String> {
    let (first, second) = (u128::try_from(first).ok()?, u128::try_from(second).ok()?);
    let hundredths = first.checked_mul(100)?.checked_add(second / 2)?.checked_div(second)?;
    Some(format!("{}.{:02}", hundredths / 100, hundredths % 100))
}

/// The cost of one run: costs are of `scale` of them.
fn of_one_run(cost: i64, scale: i64) -> u64 {
    u64::try_from(cost / scale.max(1)).unwrap_or(0)
}

/// Picoseconds as whole nanoseconds, so that the times of two runs can be subtracted.
fn duration(picoseconds: u64) -> String {
    match picoseconds {
        1..1000 => "less than 1 ns".into(),
        _ => format!("{} ns", number(picoseconds / 1000)),
    }
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

/// Reasons why nodes stay fp32, the most frequent first, and the nodes that another policy would leave fp32.
fn kept(fp32: &Fp32Report) -> Option<String> {
    const SHOWN: usize = 3;
    let mut causes: Vec<(&str, u64)> = fp32.causes.iter().map(|(cause, &n)| (cause.as_str(), n)).collect();
    causes.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    let all: u64 = causes.iter().map(|(_, n)| n).sum();
    // A fourth cause takes no more room than the words that there are others.
    let shown = if causes.len() == SHOWN + 1 { SHOWN + 1 } else { SHOWN.min(causes.len()) };
    let mut words: Vec<String> =
        causes[..shown].iter().map(|(cause, n)| format!("{} by {cause}", number(*n))).collect();
    let others: u64 = causes[shown..].iter().map(|(_, n)| n).sum();
    if others > 0 {
        words.push(format!("{} by others", number(others)));
    }
    let less = fp32.elsewhere.as_ref().filter(|elsewhere| elsewhere.nodes < all);
    let less = less.map_or_else(String::new, |elsewhere| {
        format!("; `--policy {}` would leave {}", elsewhere.policy, number(elsewhere.nodes))
    });
    (!words.is_empty()).then(|| words.join(", ") + &less)
}

/// The number of nodes per format; the requested format is listed even without nodes.
fn nodes(report: &Report, low: Low, to: &str) -> String {
    let summary = &report.summary;
    let mut nodes: Vec<String> = [("fp16", low.fp16), ("bf16", low.bf16)]
        .into_iter()
        .filter(|(format, n)| *n > 0 || *format == to)
        .map(|(format, n)| format!("{} {format}", number(n)))
        .collect();
    nodes.push(format!("{} fp32", number(summary.full)));
    if summary.other > 0 {
        nodes.push(format!("{} without floats to lower", number(summary.other)));
    }
    nodes.join(", ")
}

/// The number of casts that were present, kept, inserted and folded.
fn casts(report: &Report) -> String {
    let casts = &report.casts;
    format!(
        "{} present, {} kept, {} inserted, {} folded into constants",
        number(casts.present),
        number(casts.kept),
        number(casts.inserted),
        number(casts.folded)
    )
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
    let Done { report, low, opsets } = done;
    let mut table = Table::new(2, &[]);
    let to = report.options.get("to").unwrap_or_default();
    if let Some(opset) = report.options.get("opset").filter(|opset| *opset != "keep") {
        table.row(["opset".to_owned(), opset.to_owned()]);
    }
    table.row(["nodes".to_owned(), nodes(report, *low, to)]);
    table.row(["allow".to_owned(), allow(report)]);
    if let Some(kept) = kept(&report.fp32) {
        table.row(["fp32 kept".to_owned(), kept]);
    }
    if let Some(time) = report.time.as_ref().and_then(time_line) {
        table.row(["time".to_owned(), time]);
    }
    if let Some(optimum) = report.optimum.as_ref().filter(|optimum| !optimum.optimal) {
        table.row(["optimum".to_owned(), unproven(optimum)]);
    }
    table.row(["casts".to_owned(), casts(report)]);
    let constants = &report.constants;
    table.row([
        "constants".to_owned(),
        format!("{} -> {}", bytes(constants.bytes_before), bytes(constants.bytes_after)),
    ]);
    let after = written.bytes.saturating_add(written.data_bytes);
    let what = if matches!(emit.kind, EmitArg::Onnx | EmitArg::Emulated) { "file" } else { "written" };
    table.row([
        what.to_owned(),
        match before {
            Some((model, data)) => format!("{} -> {}", bytes(model.saturating_add(data)), bytes(after)),
            None => bytes(after),
        },
    ]);
    let new = written.files.get(1);
    let new = new.map(|file| format!("in {}, {}", file.display(), bytes(written.data_bytes)));
    for line in as_before(written).into_iter().chain(new).chain(spared(written)) {
        table.row(["data".to_owned(), line]);
    }
    let heading = format!(
        "{} -> {} ({to}, policy {})",
        args.model.display(),
        emit.name(),
        report.options.get("policy").unwrap_or_default()
    );
    let heading = shown::message(&heading);
    format!("{heading}\n{table}{}", warnings(report, opsets, ui))
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

/// The share of operators of class allow that are low, and the reasons for the others.
fn allow(report: &Report) -> String {
    let summary = &report.summary;
    if summary.allow == 0 {
        return "no operator that gains from 16 bits".into();
    }
    let mut text = format!(
        "{} of {} low ({})",
        number(summary.allow_low),
        number(summary.allow),
        share(summary.allow_low, summary.allow)
    );
    let mut rules: Vec<(&String, u64)> =
        summary.allow_exceptions.iter().map(|(rule, &n)| (rule, n)).collect();
    rules.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    for (i, (rule, n)) in rules.iter().enumerate() {
        text.push_str(if i == 0 { "; not: " } else { ", " });
        text.push_str(&format!("{} by {rule}", number(*n)));
    }
    text
}

/// The warnings as they are drawn; with `-q` only those about the result.
pub(crate) fn warnings(report: &Report, opsets: &OpsetAdvice, ui: Ui) -> String {
    let said = if ui.verbose { LINES } else { SAID };
    let mut text = String::new();
    let warnings = || report.warnings.iter().filter(|w| !ui.quiet || is_about_result(&w.code));
    for warning in warnings().take(said) {
        let place = warning.node.as_ref().map_or_else(String::new, |n| format!("`{n}`: "));
        let mut problem = Problem::warning(&warning.code, format!("{place}{}", warning.message));
        if OpsetAdvice::is_about(&warning.code) {
            problem = problem.with_help(opsets.text(&warning.message));
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
    use ampc::report::ElsewhereReport;

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
    fn what_is_not_proven_is_said() {
        let words = unproven(&optimum("ps", 3_000_000, 2_400_000));
        assert_eq!(words, "not proven: the choice costs 1500 ns, and no choice costs less than 1200 ns");
    }

    #[test]
    fn times_are_of_one_run_and_whole_nanoseconds() {
        let time = |source, rewritten, assumptions: &[&str]| TimeReport {
            unit: "ps",
            scale: 2,
            source,
            rewritten,
            assumptions: assumptions.iter().map(ToString::to_string).collect(),
        };
        let line = |time| time_line(&time).unwrap();
        assert_eq!(line(time(60_000_000, 40_000_000, &[])), "30 000 ns -> 20 000 ns predicted (1.50 x)");
        let assumed = line(time(2_000, 4_000, &["a is 1", "b is 2"]));
        assert_eq!(assumed, "1 ns -> 2 ns predicted (0.50 x), if a is 1, b is 2");
        assert_eq!(line(time(20, 40, &[])), "less than 1 ns -> less than 1 ns predicted (0.50 x)");
        assert_eq!(line(time(2_000, 0, &[])), "1 ns -> 0 ns predicted");
        assert_eq!(time_line(&time(0, 0, &[])), None);
    }

    #[test]
    fn causes_are_few_and_another_policy_is_named_if_it_leaves_less() {
        let fp32 = |causes: &[(&str, u64)], nodes| Fp32Report {
            causes: causes.iter().map(|&(cause, n)| (cause.to_owned(), n)).collect(),
            elsewhere: Some(ElsewhereReport { policy: "perf".into(), nodes }),
        };
        let five = [("a", 1), ("b", 20), ("c", 3), ("d", 4), ("e", 2)];
        let less = "20 by b, 4 by d, 3 by c, 3 by others; `--policy perf` would leave 29";
        assert_eq!(kept(&fp32(&five, 29)).unwrap(), less);
        assert_eq!(kept(&fp32(&five[..4], 28)).unwrap(), "20 by b, 4 by d, 3 by c, 1 by a");
        assert_eq!(kept(&fp32(&[], 0)), None);
    }
}
