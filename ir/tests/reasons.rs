//! Laws of the texts of reasons: every reason is read back from its texts, and every pair of texts is kept.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ampc_ir::DType;
use ampc_ir::module::reason::{ListedBy, PinnedBy, Quantized, Why};
use ampc_ir::module::{Reason, Rule};
use ampc_ir::op::Class;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::num::NonZeroU16;

/// Names and notes that look like other parts of the texts.
const TEXTS: [&str; 16] = [
    "",
    "a",
    "layer.0/Add",
    "a (b)",
    ")",
    " (",
    "pin:a",
    "decision",
    "list.deny",
    "a#T",
    "re:(a|b)",
    "downstream of Exp",
    " is public",
    "sequence:a",
    " has it",
    "one element type with a (table)",
];

/// The number of a variant. The compiler finds a variant that is missing here, and the test a variant without a sample.
fn variant(rule: &Rule) -> usize {
    match rule {
        Rule::Request { .. } => 0,
        Rule::Table => 1,
        Rule::Signature => 2,
        Rule::Listed { .. } => 3,
        Rule::Unlisted => 4,
        Rule::Schema => 5,
        Rule::Loss => 6,
        Rule::Attribute => 7,
        Rule::Opset(_) => 8,
        Rule::Type => 9,
        Rule::UnknownType => 10,
        Rule::AlreadyLow => 11,
        Rule::Replay => 12,
        Rule::Pin(_) => 13,
        Rule::Guard { .. } => 14,
        Rule::Taint { .. } => 15,
        Rule::Placement { .. } => 16,
        Rule::Quantized(_) => 17,
        Rule::NoGain(_) => 18,
        Rule::PublicSequence { .. } => 19,
        Rule::UnknownSequence { .. } => 20,
        Rule::Sequence { .. } => 21,
        Rule::Unknown(_) => 22,
        Rule::Kernel { .. } => 23,
        Rule::Observed { .. } => 24,
        Rule::Trusted { .. } => 25,
    }
}

const VARIANTS: usize = 26;

/// All requests that pin, with these patterns.
fn pins(texts: &[String]) -> Vec<PinnedBy> {
    let patterns = texts.iter().map(|text| PinnedBy::pattern(text.as_str()));
    patterns.chain([PinnedBy::Graph]).chain(ListedBy::ALL.map(PinnedBy::List)).collect()
}

/// The reasons of a choice of formats, with some shares.
fn whys() -> impl Iterator<Item = Why> {
    let shares = [1, 2, 9, 10, 11, 999, 1000, u16::MAX];
    let shares = shares.into_iter().map(|tenths| Why::SmallShare(NonZeroU16::new(tenths).unwrap()));
    Why::FIXED.into_iter().chain(shares)
}

/// Reasons of every variant, with these texts in every place where a reason has a text.
fn reasons(texts: &[String]) -> Vec<Reason> {
    let mut rules = vec![
        Rule::Table,
        Rule::Signature,
        Rule::Unlisted,
        Rule::Schema,
        Rule::Loss,
        Rule::Attribute,
        Rule::Type,
        Rule::UnknownType,
        Rule::AlreadyLow,
        Rule::Replay,
        Rule::Quantized(Quantized::Between),
        Rule::Quantized(Quantized::Product),
    ];
    rules.extend([DType::F16, DType::BF16, DType::F32].map(Rule::Opset));
    rules.extend(pins(texts).into_iter().map(Rule::Pin));
    for class in Class::ALL {
        rules.extend(ListedBy::ALL.map(|by| Rule::Listed { by, class }));
        rules.push(Rule::NoGain(class));
        rules.extend(whys().map(|why| Rule::Placement { class, why }));
    }
    for a in texts {
        rules.push(Rule::Request { note: a.clone() });
        rules.push(Rule::PublicSequence { value: a.clone() });
        rules.push(Rule::UnknownSequence { by: a.clone() });
        rules.push(Rule::Kernel { target: a.clone() });
        rules.push(Rule::Observed { evidence: a.clone() });
        rules.push(Rule::Trusted { evidence: a.clone() });
        for b in texts {
            rules.push(Rule::Guard { name: a.clone().into(), evidence: b.clone() });
            rules.push(Rule::Taint { node: a.clone(), op: b.clone() });
            rules.push(Rule::Sequence { node: a.clone(), rule: b.clone() });
        }
    }
    let named =
        rules.iter().flat_map(|rule| pins(texts).into_iter().map(|pin| Reason::with_pin(rule.clone(), pin)));
    let mut all: Vec<Reason> = named.collect();
    all.extend(rules.into_iter().map(Reason::new));
    let unknown = texts.iter().flat_map(|a| texts.iter().map(move |b| Reason::parse(a, b)));
    all.extend(unknown);
    all
}

fn check(texts: &[String]) {
    for reason in reasons(texts) {
        let (rule, evidence) = (reason.rule_text(), reason.evidence_text());
        assert_eq!(Reason::parse(&rule, &evidence), reason, "{rule} ({evidence})");
    }
}

#[test]
fn every_variant_is_read_back() {
    let texts = TEXTS.map(str::to_owned);
    let found: BTreeSet<usize> = reasons(&texts).iter().map(|reason| variant(reason.rule())).collect();
    assert_eq!(found, (0..VARIANTS).collect());
    check(&texts);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The same with other texts.
    #[test]
    fn every_variant_is_read_back_with_any_text(texts in prop::collection::vec(".{0,12}", 1..4)) {
        check(&texts);
    }

    /// Texts are kept, whether they are those of a known rule, nearly those, or others.
    #[test]
    fn all_texts_are_kept(
        rule in "(table|pin:|taint:|guard\\.|cut|gain|sequence[.:]|opset\\.|list\\.|decision)?.{0,8}",
        evidence in "(pin:|downstream of |allow |is 0\\.|one element type with )?.{0,12}",
    ) {
        let reason = Reason::parse(&rule, &evidence);
        prop_assert_eq!(reason.rule_text(), rule);
        prop_assert_eq!(reason.evidence_text(), evidence);
    }
}

/// Texts that a rule nearly prints are unknown, and the text of a rule decides nothing else.
#[test]
fn texts_mean_what_they_meant() {
    let parse = |rule: &str, evidence: &str| Reason::parse(rule, evidence);
    assert_eq!(parse("table", "pin:c"), Reason::with_pin(Rule::Table, PinnedBy::pattern("c")));
    assert_eq!(parse("pin:decision", "").rule().pinned_by(), Some(&PinnedBy::Graph));
    assert_eq!(parse("pin:policy.deny", "").rule().pinned_by(), Some(&PinnedBy::List(ListedBy::Policy)));
    assert_eq!(parse("opset.bf16", ""), Reason::new(Rule::Opset(DType::BF16)));
    assert_eq!(parse("", ""), Reason::new(Rule::Request { note: String::new() }));
    // A guard finds a value of any name.
    assert_eq!(parse("guard.eps", "pin:c (1e-12) is 0 in f16").pin(), None);
    let share = |evidence: &str| parse("cut", evidence).rule().clone();
    let why = Why::SmallShare(NonZeroU16::new(12).unwrap());
    let placed = Rule::Placement { class: Class::Allow, why };
    assert_eq!(share("allow is 1.2 % of the work, and costs least in fp32"), placed);
    for wrong in [
        ("table", "because"),
        ("cut", ""),
        ("cut", "allow is 0.1 % of the work, and costs least in fp32"),
        ("cut", "allow is 01.2 % of the work, and costs least in fp32"),
        ("opset.f12", ""),
        ("list.denied", ""),
        ("taint:a", ""),
        ("Table", ""),
    ] {
        assert!(matches!(parse(wrong.0, wrong.1).rule(), Rule::Unknown(_)), "{wrong:?}");
    }
}

#[test]
fn shares_in_words() {
    let words = |tenths| Why::SmallShare(NonZeroU16::new(tenths).unwrap()).to_string();
    assert_eq!(words(1), "is less than 0.1 % of the work, and costs least in fp32");
    assert_eq!(words(2), "is 0.2 % of the work, and costs least in fp32");
    assert_eq!(words(10), "is 1.0 % of the work, and costs least in fp32");
}
