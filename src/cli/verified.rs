//! `ampc rewrite --verify`: the model and its rewrite on the same inputs, before anything is written.

use super::args::RewriteArgs;
use super::batches;
use super::data::{self, Shows};
use super::diagnose;
use super::pipeline::Run;
use super::problem::{Failure, Problem};
use super::shown;
use super::table::{count, number};
use super::ui::Ui;
use super::verify::{Doubt, doubt, drawn, excused as said_of_excused, first};
use ampc::error::Finding;
use ampc::execute::report::ValueReport;
use ampc::execute::verify::{Compared, not_computed, runtime_of_rewrites};
use ampc::execute::{
    Excused, Inputs, Judgement, PinSearch, Pinned, Verification, VerifyOptions, find_pins, input_names, judge,
};
use ampc::ir::text::is_hidden;
use ampc::ir::{DType, Module};
use ampc::passes::policy::Pin;
use ampc::report::precision_name;
use ampc::runtime::compare::largest_magnitude;
use ampc::runtime::{Data, Tolerance};
use ampc::{Error, ErrorKind, Model, RewriteOptions};
use serde::{Serialize, Serializer};

/// The model as it was read, and the inputs for both models.
pub(crate) struct Source {
    module: Module,
    draws: Vec<Inputs>,
    options: VerifyOptions,
    accept_excused: bool,
    is_emulated: bool,
}

impl Source {
    /// Keeps the model and reads the inputs, if there is something to verify.
    ///
    /// # Errors
    /// If inputs were given for nothing, or do not fit the model.
    pub(crate) fn of(
        args: &RewriteArgs,
        threads: Option<u32>,
        model: &Model,
        is_emulated: bool,
        ui: Ui,
    ) -> Result<Option<Source>, Failure> {
        if !args.verify.verify {
            return Ok(None);
        }
        let runtime = data::default_runtime(threads, &args.limits, ui)?;
        let draws = batches::draws(&args.data, &model.module, &runtime, ui)?;
        let tolerance = args.verify.tolerance.map(|of_max| Tolerance { of_max, ..Tolerance::EXACT });
        let runtime = runtime_of_rewrites(&model.module, &draws, &runtime);
        let runtime = runtime
            .map_err(|error| data::failure_on(data::sizes(&draws), &error, &model.module, Shows::Messages))?;
        let options = VerifyOptions { runtime, tolerance };
        let accept_excused = args.verify.accept_excused;
        Ok(Some(Source { module: model.module.clone(), draws, options, accept_excused, is_emulated }))
    }

    /// Compares the rewrite with the model, and looks for pins that help if an output is too far off.
    ///
    /// # Errors
    /// If the models cannot be run.
    pub(crate) fn compare(
        &self,
        run: &Run<'_>,
        model: &Model,
        options: &RewriteOptions,
    ) -> Result<Verdict, Failure> {
        let fail = |error: Error| diagnose::failure(&error, None);
        run.progress.stage("verifying");
        let (mut source, mut written) = (self.module.clone(), model.module.clone());
        if self.is_emulated {
            // The verdict is about the model that is written.
            written = ampc::emulate(Model::from(written)).map_err(fail)?.0.module;
        }
        let judged = match judge(&mut source, &mut written, &self.draws, &self.options) {
            Ok(judged) => judged,
            Err(error) => match not_computed(&self.module, &written, &self.draws, &self.options.runtime) {
                Some(finding) => return Ok(self.beyond_all(&finding, &model.module, options)),
                None => {
                    let sizes = data::sizes(&self.draws);
                    return Err(data::failure_on(sizes, &error, &self.module, Shows::Messages));
                }
            },
        };
        let doubt = doubt(&judged, self.accept_excused);
        if let Some(doubt) = &doubt {
            run.progress.suspend(|| doubt.warn(run.ui));
        }
        let accepted = judged.accepted(self.accept_excused);
        let Judgement { found, excused, is_excused } = judged;
        let outputs = found.outputs.iter().map(ValueReport::of).collect();
        if accepted {
            let said = match (found.passed(), found.says_something()) {
                (false, _) => vec!["verified: outputs beyond the tolerance were accepted".into()],
                (true, false) => vec!["verified nothing: the outputs have no finite elements".into()],
                (true, true) => {
                    let verified = if found.is_all_zero() { "verified nothing" } else { "verified" };
                    let lines = summary(&found).into_iter();
                    lines.map(|line| shown::message(&format!("{verified}: {line}"))).collect()
                }
            };
            let said = said.join("\n");
            return Ok(Verdict::Passed { said, excused, outputs, doubt });
        }
        run.progress.stage("searching for nodes that have to stay fp32");
        let pins = find_pins(&source, options, &self.draws, &self.options, &model.module, Some(&found));
        let mut message =
            format!("the rewrite is too far from the model: {}; {}", beyond(&found), first(&found));
        if is_excused && !self.accept_excused {
            let all = said_of_excused(&found, &excused);
            message.push_str(&format!("; `--accept-excused` accepts that {all}"));
        }
        Ok(Verdict::Beyond { message, pins, excused, outputs, to: self.lowering(options) })
    }

    /// The verdict on a rewrite that cannot be computed.
    fn beyond_all(&self, finding: &Finding, rewritten: &Module, options: &RewriteOptions) -> Verdict {
        let pins = find_pins(&self.module, options, &self.draws, &self.options, rewritten, None);
        let message =
            format!("the rewrite cannot be computed on inputs on which the model can be: {finding}");
        Verdict::Beyond {
            message,
            pins,
            excused: Vec::new(),
            outputs: Vec::new(),
            to: self.lowering(options),
        }
    }

    fn lowering(&self, options: &RewriteOptions) -> Lowering {
        Lowering {
            to: options.to,
            is_emulated: self.is_emulated,
            is_only_if_faster: options.only_if_faster,
            is_report: options.policy.is_report(),
            out_of_range: (options.to == DType::F16).then(|| self.out_of_range()).flatten(),
        }
    }

    /// The first fp32 input with elements beyond the range of fp16, as words.
    fn out_of_range(&self) -> Option<String> {
        let values =
            self.draws.iter().flat_map(|draw| input_names(&self.module).into_iter().zip(&draw.values));
        values.filter_map(|(name, value)| Some((name, value.as_ref()?))).find_map(|(name, value)| {
            let Data::Tensor(tensor) = value else { return None };
            let largest = largest_magnitude(tensor);
            (tensor.dtype() == DType::F32 && largest > MAX_F16).then(|| {
                format!(
                    "the input `{}` has elements of up to {largest:.2e}, and {MAX_F16} is the largest fp16 number: \
                     `--to bf16` has the range of fp32",
                    shown::name(&name)
                )
            })
        })
    }
}

/// The largest finite number of fp16.
const MAX_F16: f64 = 65504.0;

/// The facts about a rewrite that advice on pins depends on.
#[derive(Clone, Debug)]
pub(crate) struct Lowering {
    /// The format of the rewrite.
    to: DType,
    /// True if the written model is fp32, so that the predicted time is not the time of that model.
    is_emulated: bool,
    /// True if a rewrite that is not predicted to be faster stays fp32.
    is_only_if_faster: bool,
    /// True if the policy is a report, whose decisions no pin changes.
    is_report: bool,
    /// An input beyond the range of the format, as words.
    out_of_range: Option<String>,
}

/// Result of comparing a rewrite with its model.
pub(crate) enum Verdict {
    /// The outputs agree, or are excused and that was accepted: a word about it.
    Passed { said: String, excused: Vec<Excused>, outputs: Vec<ValueReport>, doubt: Option<Doubt> },
    /// An output is too far off: the outputs and the first value beyond the tolerance, and pins that help.
    Beyond {
        message: String,
        pins: Result<PinSearch, Error>,
        excused: Vec<Excused>,
        outputs: Vec<ValueReport>,
        to: Lowering,
    },
}

impl Verdict {
    /// The error, if an output is too far off. If the report has all pins, only some of many are shown.
    pub(crate) fn failure(&self, is_reported: bool) -> Option<Failure> {
        let Verdict::Beyond { message, pins, to, .. } = self else { return None };
        let (help, lines) = match pins {
            Ok(pins) => advice(pins, to, is_reported),
            Err(error) => (format!("no pins could be tried: {error}"), Vec::new()),
        };
        let problem = Problem::new("ampc::verify::beyond", message.clone());
        Some(Failure::of(ErrorKind::Mismatch, problem.with_help(help).with_lines(lines)))
    }

    /// The same for the report.
    pub(crate) fn report(&self) -> VerdictReport<'_> {
        let (Verdict::Passed { excused, outputs, .. } | Verdict::Beyond { excused, outputs, .. }) = self;
        let mut report = VerdictReport { excused, outputs, ..VerdictReport::default() };
        match self {
            Verdict::Passed { doubt, .. } => {
                report.passed = true;
                report.warnings = doubt.as_slice();
            }
            Verdict::Beyond { pins: Ok(search), .. } => {
                report.pins = search.passes.then_some(Pins(&search.pins));
                report.pinned = search.pinned.as_ref();
                report.left_low = &search.left_low;
                report.deny = &search.deny;
            }
            Verdict::Beyond { pins: Err(_), .. } => {}
        }
        report
    }
}

/// The part of the report about `--verify`.
#[derive(Default, Serialize)]
pub(crate) struct VerdictReport<'a> {
    /// True if the model is accepted: all outputs agree, or are excused and that was accepted.
    passed: bool,
    /// The outputs with their errors, of several draws for the worst draw.
    outputs: &'a [ValueReport],
    /// The reason why a verdict that accepts the model says little.
    #[serde(skip_serializing_if = "<[Doubt]>::is_empty")]
    warnings: &'a [Doubt],
    /// Outputs beyond their bounds that low products alone make differ as much.
    #[serde(skip_serializing_if = "<[Excused]>::is_empty")]
    excused: &'a [Excused],
    /// If not: the pins with which they do, in the form of a policy's; absent if none help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pins: Option<Pins<'a>>,
    /// The part of the model that is low with these pins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pinned: Option<&'a Pinned>,
    /// Operators whose nodes are all among the pins: with these denied and the pins of other nodes the outputs agree as well.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    deny: &'a [String],
    /// If none help: the nodes that were low all the same.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    left_low: &'a [String],
}

/// Nodes that are pinned to fp32.
struct Pins<'a>(&'a [String]);

impl Serialize for Pins<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|pin| (pin, Pin::To(DType::F32).as_str())))
    }
}

/// The largest error of the outputs and its bound, a line for each draw.
fn summary(found: &Verification) -> Vec<String> {
    if found.outputs.is_empty() {
        return vec!["there are no outputs".into()];
    }
    let of_draw = |outputs: &Vec<Compared>| {
        let drawn = outputs.first().and_then(|output| found.draw_of(output));
        let drawn = drawn.map_or_else(String::new, |about| format!(", with {about}"));
        format!("{}{drawn}", errors(outputs))
    };
    found.by_draw.iter().map(of_draw).collect()
}

/// Outputs beyond the tolerance that a message names.
const OUTPUTS: usize = 4;

/// The outputs beyond the tolerance, each with its error and its bound.
fn beyond(found: &Verification) -> String {
    let failed: Vec<&Compared> = found.outputs.iter().filter(|o| !o.agreement.passed()).collect();
    let of_output = |output: &&Compared| {
        let (errors, name) = (&output.agreement.found, shown::name(&output.value));
        let allowed = errors.bound() / errors.max_want;
        let error = match &output.agreement.obstacle {
            Some(obstacle) => obstacle.clone(),
            None if errors.not_finite() > 0 => {
                format!("{} of {} elements disagree on being finite", errors.not_finite(), errors.elements)
            }
            None if errors.held_to.is_none() => {
                format!("{} of {} elements differ", errors.mismatches, errors.elements)
            }
            None if errors.max_want == 0.0 => {
                format!("error {:.2e}, allowed {:.2e} (expected to be 0)", errors.max_abs, errors.bound())
            }
            None => format!("error {:.2e} of max |{name}|, allowed {allowed:.2e}", output.agreement.error()),
        };
        format!("output `{name}`: {error}{}", drawn(found, output))
    };
    let mut said: Vec<String> = failed.iter().take(OUTPUTS).map(of_output).collect();
    if let Some(more) = failed.len().checked_sub(OUTPUTS).filter(|&more| more > 0) {
        said.push(format!("and {}", count(more as u64, "more output")));
    }
    said.join("; ")
}

/// The largest error of some outputs, and its bound.
fn errors(outputs: &[Compared]) -> String {
    if outputs.iter().all(|output| output.agreement.found.all_zero && output.agreement.found.max_abs == 0.0) {
        return "every element of the outputs is 0 in the model and in the rewrite".into();
    }
    if outputs.iter().all(|output| output.agreement.found.max_abs == 0.0) {
        return "the outputs are equal".into();
    }
    let (zeros, others): (Vec<&Compared>, Vec<&Compared>) =
        outputs.iter().partition(|output| output.agreement.found.all_zero);
    let of_bound = |output: &Compared| output.agreement.found.of_bound();
    let worst = others.into_iter().max_by(|a, b| of_bound(a).total_cmp(&of_bound(b)));
    let mut said: Vec<String> = worst.into_iter().map(error).collect();
    for zero in zeros.into_iter().filter(|zero| zero.agreement.found.max_abs > 0.0) {
        let (errors, name) = (&zero.agreement.found, shown::name(&zero.value));
        said.push(format!(
            "`{name}` is expected to be 0: largest error {:.2e} (limit {:.2e})",
            errors.max_abs,
            errors.bound()
        ));
    }
    said.join("; ")
}

/// The largest error of an output, as a share of its largest element.
fn error(output: &Compared) -> String {
    let errors = &output.agreement.found;
    let (share, name) = (output.agreement.error(), shown::name(&output.value));
    match errors.bound() / errors.max_want {
        limit if limit > 0.0 => format!("largest error {share:.2e} of max |{name}| (limit {limit:.2e})"),
        _ => format!("largest error {share:.2e} of max |{name}|"),
    }
}

/// Options that are shown.
const SHOWN: usize = 20;

/// Advice with the options that help, spelled as arguments: pins, and operators to deny whose nodes all need a pin.
fn advice(search: &PinSearch, to: &Lowering, is_reported: bool) -> (String, Vec<String>) {
    if to.is_report {
        let help = "the policy is a report, whose decisions no pins change: verify with the policy and options that its field \
                    `options` names";
        return (help.to_owned(), Vec::new());
    }
    if !search.passes {
        return (why_none_helps(search), Vec::new());
    }
    let format = precision_name(to.to);
    if let Some(pinned) = search.pinned.as_ref().filter(|pinned| !pinned.lowers) {
        let tried = count(search.tried as u64, "rewrite");
        if to.is_only_if_faster {
            let help = format!(
                "no lowering within the tolerance is predicted to be faster than the fp32 model, so `--only-if-faster` leaves the \
                 model fp32 ({tried} tried)"
            );
            return (help, Vec::new());
        }
        let why = to.out_of_range.as_ref().map_or_else(String::new, |why| format!("; {why}"));
        let help = format!(
            "the model cannot be lowered within the tolerance on this data: the pins that help leave {} of {} {format} ({tried} \
             tried){why}",
            number(pinned.low),
            count(pinned.nodes, "node"),
        );
        return (help, Vec::new());
    }
    let pins = if search.deny.is_empty() { &search.pins } else { &search.rest };
    let denied = search.deny.iter().map(|op| format!("--deny {}", quoted(op)));
    let all: Vec<String> = denied.chain(pins.iter().map(|node| option(node))).collect();
    let with = match (search.deny.is_empty(), all.len()) {
        (true, 1) => "this pin".to_owned(),
        (true, n) => format!("these {}", count(n as u64, "pin")),
        (false, 1) => "this option".to_owned(),
        (false, n) => format!("these {}", count(n as u64, "option")),
    };
    let (low, slower) = search.pinned.as_ref().map_or_else(Default::default, |pinned| {
        let slower = pinned.speed.as_ref().filter(|_| pinned.is_slower && !to.is_emulated);
        let slower = slower.map(|speed| {
            format!("; the rewrite is then predicted to be slower than the fp32 model ({speed} x)")
        });
        let stay = if pinned.low == 1 { "stays" } else { "stay" };
        let low = format!("{} of {} {stay} {format} and ", number(pinned.low), count(pinned.nodes, "node"));
        (low, slower.unwrap_or_default())
    });
    let help = format!("with {with} {low}all outputs are within the tolerance{slower}:");
    let mut lines: Vec<String> = all.iter().take(SHOWN).cloned().collect();
    // All of them can be pasted at once.
    let last = lines.len().saturating_sub(1);
    lines[..last].iter_mut().for_each(|line| line.push_str(" \\"));
    let more = all.len() - lines.len();
    if more > 0 {
        let report = if is_reported { "the report" } else { "`--report FILE`" };
        lines.push(format!("and {} more: {report} has all (`verify.pins`)", number(more as u64)));
    }
    (help, lines)
}

fn why_none_helps(search: &PinSearch) -> String {
    if let Some(first) = search.pinned_low.first() {
        let pinned = count(search.pinned_low.len() as u64, "node");
        return format!(
            "the policy pins {pinned} to 16 bits, such as `{}`, and no other pins help: remove these pins, and verify again",
            shown::name(first)
        );
    }
    if !search.left_low.is_empty() {
        let left = count(search.left_low.len() as u64, "node");
        let names: Vec<String> =
            search.left_low.iter().map(|path| format!("`{}`", shown::name(path))).collect();
        let names = names.join(", ");
        if search.gave_up {
            let tried = count(search.tried as u64, "rewrite");
            return format!("no pins that help were found in {tried}; still low with the last pins: {names}");
        }
        return format!(
            "no pins that help were found: with all pins that were tried, {left} would still be low: {names}"
        );
    }
    let lowered = match search.tried {
        0 => "the rewrite lowers no node",
        _ => "even with every node that it lowers pinned to fp32 the rewrite is not within the tolerance",
    };
    let own = if search.has_low_source { ", and its 16-bit types are the model's own" } else { "" };
    format!(
        "{lowered}{own}; the difference may come from casts of the model that were moved or removed, or from a raised \
         opset (`--excess-precision`, `--opset`)"
    )
}

/// The option of a pin for a shell, on one line and without anything that a terminal acts on.
fn option(node: &str) -> String {
    // Behind a space an option would be expected.
    let between = if node.starts_with('-') { '=' } else { ' ' };
    format!("--pin{between}{}", quoted(&format!("{node}=fp32")))
}

/// A word for a shell: as it is, in quotes, or in the quotes of bash, zsh and POSIX 2024 that know escapes.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-=:@%+,".contains(c);
    if !word.starts_with('=') && word.chars().all(is_plain) {
        return word.to_owned();
    }
    if !word.contains(is_hidden) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    let mut quoted = String::from("$'");
    for c in word.chars() {
        match c {
            '\'' | '\\' => quoted.extend(['\\', c]),
            c if is_hidden(c) => {
                let mut buffer = [0; 4];
                let bytes = c.encode_utf8(&mut buffer).bytes();
                bytes.for_each(|byte| quoted.push_str(&format!("\\{byte:03o}")));
            }
            c => quoted.push(c),
        }
    }
    quoted + "'"
}

#[cfg(test)]
mod tests {
    use super::*;

    const FP16: Lowering = Lowering {
        to: DType::F16,
        is_emulated: false,
        is_only_if_faster: false,
        is_report: false,
        out_of_range: None,
    };

    #[test]
    fn pins_are_words_of_a_shell() {
        let cases = [
            ("/a/b.0/Gather_1", "--pin /a/b.0/Gather_1=fp32"),
            ("-a", "--pin=-a=fp32"),
            ("a b", "--pin 'a b=fp32'"),
            ("a#b", "--pin 'a#b=fp32'"),
            ("it's `$x`", r"--pin 'it'\''s `$x`=fp32'"),
            ("größe", "--pin 'größe=fp32'"),
            ("a\n\u{1b}1", r"--pin $'a\012\0331=fp32'"),
            ("\u{202e}'\\", r"--pin $'\342\200\256\'\\=fp32'"),
        ];
        for (node, expected) in cases {
            assert_eq!(option(node), expected);
        }
    }

    /// At most 20 options are shown, with the way to all of them.
    #[test]
    fn no_pin_is_lost() {
        let pins: Vec<String> = (0..25).map(|i| format!("{}{i}", "n".repeat(300))).collect();
        let search = PinSearch { pins: pins.clone(), passes: true, ..PinSearch::default() };
        let whole: Vec<String> = pins.iter().map(|pin| format!("--pin {pin}=fp32")).collect();
        for (is_reported, report) in [(false, "`--report FILE`"), (true, "the report")] {
            let (help, lines) = advice(&search, &FP16, is_reported);
            assert_eq!(help, "with these 25 pins all outputs are within the tolerance:");
            let more = format!("\nand 5 more: {report} has all (`verify.pins`)");
            assert_eq!(lines.join("\n"), whole[..SHOWN].join(" \\\n") + &more);
        }
        let verdict = Verdict::Beyond {
            message: String::new(),
            pins: Ok(search),
            excused: Vec::new(),
            outputs: Vec::new(),
            to: FP16,
        };
        let report = serde_json::to_value(verdict.report()).unwrap();
        assert_eq!(report["pins"].as_object().unwrap().len(), pins.len());
        assert_eq!(report["pins"][&pins[24]], "fp32");
    }

    #[test]
    fn an_operator_that_is_pinned_throughout_is_denied() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let pins = names(&["c1", "c2", "mm"]);
        let search = PinSearch {
            pins,
            deny: names(&["Conv"]),
            rest: names(&["mm"]),
            passes: true,
            ..PinSearch::default()
        };
        let (help, lines) = advice(&search, &FP16, false);
        assert_eq!(help, "with these 2 options all outputs are within the tolerance:");
        assert_eq!(lines, ["--deny Conv \\", "--pin mm=fp32"]);
        let (help, _) = advice(&PinSearch { rest: Vec::new(), ..search }, &FP16, false);
        assert_eq!(help, "with this option all outputs are within the tolerance:");
    }

    /// Pins are advised if they leave something lowered, and the advice says how much.
    #[test]
    fn advice_says_what_pins_leave() {
        let pinned = Pinned { low: 3, nodes: 8, speed: Some("0.80".into()), is_slower: true, lowers: true };
        let of = |pinned: Pinned, to: &Lowering| {
            let pins = vec!["mm".to_owned()];
            advice(
                &PinSearch { pins, passes: true, tried: 4, pinned: Some(pinned), ..Default::default() },
                to,
                false,
            )
        };
        let (help, lines) = of(pinned.clone(), &FP16);
        assert_eq!(
            help,
            "with this pin 3 of 8 nodes stay fp16 and all outputs are within the tolerance; the rewrite is then predicted \
             to be slower than the fp32 model (0.80 x):"
        );
        assert_eq!(lines, ["--pin mm=fp32"]);
        let (help, _) = of(pinned.clone(), &Lowering { is_emulated: true, ..FP16 });
        assert_eq!(help, "with this pin 3 of 8 nodes stay fp16 and all outputs are within the tolerance:");
        let nothing = Pinned { low: 0, lowers: false, ..pinned };
        let (help, lines) = of(nothing.clone(), &Lowering { is_only_if_faster: true, ..FP16 });
        assert_eq!(
            help,
            "no lowering within the tolerance is predicted to be faster than the fp32 model, so `--only-if-faster` leaves the \
             model fp32 (4 rewrites tried)"
        );
        assert!(lines.is_empty(), "{lines:?}");
        let (help, lines) = of(nothing, &FP16);
        assert_eq!(
            help,
            "the model cannot be lowered within the tolerance on this data: the pins that help leave 0 of 8 nodes fp16 (4 \
             rewrites tried)"
        );
        assert!(lines.is_empty(), "{lines:?}");
    }
}
