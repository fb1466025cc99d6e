//! Reasons as texts, and back: the only place that reads them.

use super::{ListedBy, PinPattern, PinnedBy, Quantized, Reason, Rule, UnknownReason, Why};
use crate::op::Class;
use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

const PIN: &str = "pin:";
const TAINT: &str = "taint:";
const GUARD: &str = "guard.";
const OPSET: &str = "opset.";
const CUT: &str = "cut";
const KERNEL: &str = "kernel";
const OBSERVED: &str = "observed";
const TRUSTED: &str = "trusted";
const ROUNDS_ONCE: &str = "computes in fp32 and rounds once on ";
const SEQUENCE: &str = "sequence:";
const DOWNSTREAM: &str = "downstream of ";
const NO_GAIN: &str = " would not make the model faster on the target";
const IS_PUBLIC: &str = " is public";
const UNKNOWN_OP: (&str, &str) = ("unknown operator ", " has it");
const ONE_TYPE: &str = "one element type with ";
const SHARE: (&str, &str) = ("is ", " % of the work, and costs least in fp32");
const SMALLEST_SHARE: &str = "less than 0.1";

impl Reason {
    /// The text of the rule.
    pub fn rule_text(&self) -> Cow<'_, str> {
        self.rule.text()
    }

    /// The text of the evidence; empty without evidence.
    pub fn evidence_text(&self) -> Cow<'_, str> {
        match &self.pin {
            Some(pin) => pin.to_string().into(),
            None => self.rule.evidence(),
        }
    }

    /// The reason with these texts of rule and evidence.
    pub fn parse(rule: &str, evidence: &str) -> Reason {
        let is_exact = |reason: &Reason| reason.rule_text() == rule && reason.evidence_text() == evidence;
        let known = read(rule, evidence).filter(is_exact);
        known.unwrap_or_else(|| {
            let (rule, evidence) = (rule.to_owned(), evidence.to_owned());
            Reason::new(Rule::Unknown(UnknownReason { rule, evidence }))
        })
    }
}

impl Rule {
    /// The text of the rule, without evidence.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Rule::Request { .. } => "".into(),
            Rule::Table => "table".into(),
            Rule::Signature => "policy.signature".into(),
            Rule::Listed { by, class } => format!("{}.{class}", by.as_str()).into(),
            Rule::Unlisted => "unlisted".into(),
            Rule::Schema => "schema".into(),
            Rule::Loss => "loss".into(),
            Rule::Attribute => "attribute".into(),
            Rule::Opset(format) => format!("{OPSET}{format}").into(),
            Rule::Type => "type".into(),
            Rule::UnknownType => "type.unknown".into(),
            Rule::AlreadyLow => "already-low".into(),
            Rule::Replay => "replay".into(),
            Rule::Pin(pin) => pin.to_string().into(),
            Rule::Guard { name, .. } => format!("{GUARD}{name}").into(),
            Rule::Observed { .. } => OBSERVED.into(),
            Rule::Trusted { .. } => TRUSTED.into(),
            Rule::Taint { node, .. } => format!("{TAINT}{node}").into(),
            Rule::Placement { .. } => CUT.into(),
            Rule::Kernel { .. } => KERNEL.into(),
            Rule::Quantized(_) => "quantized".into(),
            Rule::NoGain(_) => "gain".into(),
            Rule::PublicSequence { .. } => "sequence.public".into(),
            Rule::UnknownSequence { .. } => "sequence.unknown".into(),
            Rule::Sequence { node, .. } => format!("{SEQUENCE}{node}").into(),
            Rule::Unknown(UnknownReason { rule, .. }) => rule.into(),
        }
    }

    /// The text of the rule without the names of nodes and patterns: `pin`, `taint`, `sequence`, or the whole text.
    pub fn family(&self) -> Cow<'_, str> {
        match self {
            Rule::Pin(_) => "pin".into(),
            Rule::Taint { .. } => "taint".into(),
            Rule::Sequence { .. } => "sequence".into(),
            _ => self.text(),
        }
    }

    fn evidence(&self) -> Cow<'_, str> {
        match self {
            Rule::Request { note } => note.into(),
            Rule::Guard { evidence, .. } | Rule::Observed { evidence } | Rule::Trusted { evidence } => {
                evidence.into()
            }
            Rule::Taint { op, .. } => format!("{DOWNSTREAM}{op}").into(),
            Rule::Placement { class, why, .. } => format!("{class} {why}").into(),
            Rule::Kernel { target } => format!("{ROUNDS_ONCE}{target}").into(),
            Rule::Quantized(quantized) => quantized.as_str().into(),
            Rule::NoGain(class) => format!("{class}{NO_GAIN}").into(),
            Rule::PublicSequence { value } => format!("{value}{IS_PUBLIC}").into(),
            Rule::UnknownSequence { by } => format!("{}{by}{}", UNKNOWN_OP.0, UNKNOWN_OP.1).into(),
            Rule::Sequence { node, rule } => format!("{ONE_TYPE}{node} ({rule})").into(),
            Rule::Unknown(UnknownReason { evidence, .. }) => evidence.into(),
            _ => "".into(),
        }
    }
}

/// Prints the text of the rule, without evidence.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

/// The reason that most likely has these texts.
fn read(rule: &str, evidence: &str) -> Option<Reason> {
    match of_class(rule) {
        Some(rule) if evidence.is_empty() => Some(Reason::new(rule)),
        Some(rule) => Some(Reason::with_pin(rule, evidence.parse().ok()?)),
        None => with_evidence(rule, evidence).map(Reason::new),
    }
}

/// The rule without evidence that has this text.
fn of_class(text: &str) -> Option<Rule> {
    Some(match text {
        "table" => Rule::Table,
        "policy.signature" => Rule::Signature,
        "unlisted" => Rule::Unlisted,
        "schema" => Rule::Schema,
        "loss" => Rule::Loss,
        "attribute" => Rule::Attribute,
        "type" => Rule::Type,
        "type.unknown" => Rule::UnknownType,
        "already-low" => Rule::AlreadyLow,
        "replay" => Rule::Replay,
        _ => {
            if let Some(format) = text.strip_prefix(OPSET) {
                return format.parse().ok().map(Rule::Opset);
            }
            if let Ok(pin) = text.parse() {
                return Some(Rule::Pin(pin));
            }
            let (by, class) = listed(text)?;
            Rule::Listed { by, class }
        }
    })
}

/// The rule with evidence that has these texts.
fn with_evidence(rule: &str, evidence: &str) -> Option<Rule> {
    let text = |text: &str| text.to_owned();
    if let Some(name) = rule.strip_prefix(GUARD) {
        return Some(Rule::Guard { name: text(name).into(), evidence: text(evidence) });
    }
    if let Some(node) = rule.strip_prefix(TAINT) {
        let op = evidence.strip_prefix(DOWNSTREAM)?;
        return Some(Rule::Taint { node: text(node), op: text(op) });
    }
    if let Some(node) = rule.strip_prefix(SEQUENCE) {
        let rule =
            evidence.strip_prefix(ONE_TYPE)?.strip_prefix(node)?.strip_prefix(" (")?.strip_suffix(')')?;
        return Some(Rule::Sequence { node: text(node), rule: text(rule) });
    }
    Some(match rule {
        CUT => {
            let (class, reason) = evidence.split_once(' ')?;
            Rule::Placement { class: class.parse().ok()?, why: why(reason)? }
        }
        OBSERVED => Rule::Observed { evidence: text(evidence) },
        TRUSTED => Rule::Trusted { evidence: text(evidence) },
        KERNEL => Rule::Kernel { target: text(evidence.strip_prefix(ROUNDS_ONCE)?) },
        "" => Rule::Request { note: text(evidence) },
        "quantized" => {
            let all = [Quantized::Between, Quantized::Product];
            Rule::Quantized(all.into_iter().find(|quantized| quantized.as_str() == evidence)?)
        }
        "gain" => Rule::NoGain(evidence.strip_suffix(NO_GAIN)?.parse().ok()?),
        "sequence.public" => Rule::PublicSequence { value: text(evidence.strip_suffix(IS_PUBLIC)?) },
        "sequence.unknown" => {
            let by = evidence.strip_prefix(UNKNOWN_OP.0)?.strip_suffix(UNKNOWN_OP.1)?;
            Rule::UnknownSequence { by: text(by) }
        }
        _ => return None,
    })
}

/// The list of a text such as `list.deny`.
fn listed(text: &str) -> Option<(ListedBy, Class)> {
    let (by, class) = text.split_once('.')?;
    Some((ListedBy::ALL.into_iter().find(|known| known.as_str() == by)?, class.parse().ok()?))
}

/// The request behind `pin:` that is no pattern.
pub(super) fn reserved(text: &str) -> Option<PinnedBy> {
    match listed(text) {
        Some((by, Class::Deny)) => Some(PinnedBy::List(by)),
        _ if text == ListedBy::Graph.as_str() => Some(PinnedBy::Graph),
        _ => None,
    }
}

/// Prints `pin:` and the pattern, or the word for the request.
impl fmt::Display for PinnedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PinnedBy::Pattern(PinPattern(text)) => write!(f, "{PIN}{text}"),
            PinnedBy::Graph => write!(f, "{PIN}{}", ListedBy::Graph.as_str()),
            PinnedBy::List(by) => write!(f, "{PIN}{}.{}", by.as_str(), Class::Deny),
        }
    }
}

/// The text of a pin in a report does not begin with `pin:`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected `pin:` and a pattern, found `{0}`")]
pub struct NoPin(pub String);

impl FromStr for PinnedBy {
    type Err = NoPin;
    fn from_str(text: &str) -> Result<PinnedBy, NoPin> {
        text.strip_prefix(PIN).map(PinnedBy::pattern).ok_or_else(|| NoPin(text.to_owned()))
    }
}

impl Quantized {
    const fn as_str(self) -> &'static str {
        match self {
            Quantized::Between => "between DequantizeLinear and QuantizeLinear",
            Quantized::Product => "a product of results of DequantizeLinear",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::CheapestFull => "costs least in fp32",
            Why::CheapestLow => "costs least in 16 bits",
            Why::FollowsOperands => "follows its operands",
            Why::StoredLow => "stores a large constant in half the bytes",
            Why::LoopState => "adds up in the state of a loop",
            Why::Unrounded => "computes on values that nothing has rounded yet",
            Why::MakesOutput => "makes what leaves in fp32",
            Why::NothingBefore => "has no 16-bit operator before it",
            Why::NothingBehind => "has no 16-bit operator behind it",
            Why::NotBetween => "is not between 16-bit neighbors, or costs least in fp32",
            Why::BehindLow => "behind a low-precision neighbour",
            Why::BeforeLow => "before low-precision neighbours only",
            Why::SmallShare(tenths) => {
                let (before, behind) = SHARE;
                return match tenths.get() {
                    1 => write!(f, "{before}{SMALLEST_SHARE}{behind}"),
                    tenths => write!(f, "{before}{}.{}{behind}", tenths / 10, tenths % 10),
                };
            }
        })
    }
}

/// The reason of a choice of formats that has this text.
fn why(text: &str) -> Option<Why> {
    if let Some(why) = Why::FIXED.into_iter().find(|why| why.to_string() == text) {
        return Some(why);
    }
    let share = text.strip_prefix(SHARE.0)?.strip_suffix(SHARE.1)?;
    let tenths = match share.split_once('.') {
        _ if share == SMALLEST_SHARE => 1,
        Some((whole, tenths)) => {
            whole.parse::<u16>().ok()?.checked_mul(10)?.checked_add(tenths.parse().ok()?)?
        }
        None => return None,
    };
    NonZeroU16::new(tenths).map(Why::SmallShare)
}
