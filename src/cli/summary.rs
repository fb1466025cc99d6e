//! What a rewrite did, in a few lines.

use super::args::{EmitArg, RewriteArgs};
use super::emit::{Emit, Written};
use super::opsets::OpsetAdvice;
use super::problem::{LINES, Problem};
use super::shown;
use super::table::{Table, bytes, count, number, share};
use super::ui::{Stream, Ui};
use ampc::Report;
use ampc::ir::{DType, Module, Node};
use ampc::report::OptimumReport;

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

/// What is known of a rewrite.
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
        "ps" if cost > 0 && of_one_run < 1000 => "less than 1 ns".into(),
        "ps" => format!("{} ns", number(of_one_run / 1000)),
        _ if cost == 1 => "1 cast".into(),
        _ => format!("{} casts", number(cost)),
    }
}

/// What the casts cost, and whether that is proven to be the least.
fn optimum_line(optimum: &OptimumReport) -> String {
    let amount = |cost: i64| {
        let amount = amount(optimum, u64::try_from(cost).unwrap_or(0));
        match optimum.unit {
            "bytes" => format!("casts move {amount}"),
            "ps" => format!("{amount} predicted for what is chosen"),
            _ => amount,
        }
    };
    let (cost, assumptions) = (amount(optimum.cost), optimum.assumptions.join(", "));
    let given = if assumptions.is_empty() { String::new() } else { format!(" if {assumptions}") };
    if optimum.optimal {
        format!("{cost}, proven to be the least{given}")
    } else {
        format!("{cost}, the best found; no choice needs less than {}{given}", amount(optimum.lower_bound))
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
    let Done { report, low, opsets } = done;
    let (summary, casts) = (&report.summary, &report.casts);
    let mut table = Table::new(2, &[]);
    let to = &report.options.to;
    let mut nodes: Vec<String> = [("fp16", low.fp16), ("bf16", low.bf16)]
        .into_iter()
        .filter(|(format, n)| *n > 0 || format == to)
        .map(|(format, n)| format!("{} {format}", number(n)))
        .collect();
    nodes.push(format!("{} fp32", number(summary.full)));
    if summary.other > 0 {
        nodes.push(format!("{} without floats to lower", number(summary.other)));
    }
    if report.options.opset != "keep" {
        table.row(["opset".to_owned(), report.options.opset.clone()]);
    }
    table.row(["nodes".to_owned(), nodes.join(", ")]);
    table.row(["allow".to_owned(), allow(report)]);
    // Of nothing, the least is not worth a line.
    if let Some(optimum) = report.optimum.as_ref().filter(|optimum| optimum.cost > 0) {
        table.row(["optimum".to_owned(), optimum_line(optimum)]);
    }
    table.row([
        "casts".to_owned(),
        format!(
            "{} present, {} kept, {} inserted, {} folded into constants",
            number(casts.present),
            number(casts.kept),
            number(casts.inserted),
            number(casts.folded)
        ),
    ]);
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
    let data = |path: &std::path::PathBuf| path.display().to_string();
    if !written.kept_files.is_empty() {
        let files: Vec<String> = written.kept_files.iter().map(data).collect();
        table.row(["data".to_owned(), format!("in {}, as before", files.join(", "))]);
    }
    if let Some(file) = written.files.get(1) {
        table.row(["data".to_owned(), format!("in {}, {}", data(file), bytes(written.data_bytes))]);
    }
    let heading =
        format!("{} -> {} ({to}, policy {})", args.model.display(), emit.name(), report.options.policy);
    let heading = shown::message(&heading);
    format!("{heading}\n{table}{}", warnings(report, opsets, ui))
}

/// How much of what should be low is, and by which rules the rest is not.
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

fn warnings(report: &Report, opsets: &OpsetAdvice, ui: Ui) -> String {
    let said = if ui.verbose { LINES } else { SAID };
    let mut text = String::new();
    for warning in report.warnings.iter().take(said) {
        let place = warning.node.as_ref().map_or_else(String::new, |n| format!("`{n}`: "));
        let mut problem = Problem::warning(&warning.code, format!("{place}{}", warning.message));
        if OpsetAdvice::is_about(&warning.code) {
            problem = problem.with_help(opsets.text(&warning.message));
        }
        text.push_str(problem.draw(ui, Stream::Err).trim_matches('\n'));
        text.push('\n');
    }
    if report.warnings.len() > said {
        let more = (report.warnings.len() - said) as u64;
        let how = if ui.verbose { "the report has all" } else { "-v shows more" };
        text.push_str(&format!("and {} ({how})\n", count(more, "more warning")));
    }
    text
}
