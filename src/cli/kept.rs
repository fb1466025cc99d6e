//! Causes that keep nodes fp32, in words.

use super::table::number;
use ampc::ir::module::Rule;
use ampc::ir::module::reason::ListedBy;
use ampc::ir::op::Class;
use ampc::passes::guard::{GuardDef, GuardKind};
use ampc::report::{Cause, Fp32Report, Root};
use std::cmp::Reverse;

/// The number of nodes that stay fp32 and the reasons, the most frequent causes first, and the number that another policy
/// would leave.
pub(super) fn kept(fp32: &Fp32Report, to: &str) -> Option<String> {
    const SHOWN: usize = 3;
    let mut causes: Vec<(&Cause, u64)> = fp32.causes.iter().map(|(_, cause, n)| (cause, n)).collect();
    // Causes are in order of their keys.
    causes.sort_by_key(|&(_, n)| Reverse(n));
    let all: u64 = causes.iter().map(|(_, n)| n).sum();
    // A fourth cause takes no more room than the words that there are others.
    let shown = if causes.len() == SHOWN + 1 { SHOWN + 1 } else { SHOWN.min(causes.len()) };
    let words = |(cause, n): &(&Cause, u64)| match n {
        _ if *n == all => reason(cause, to),
        n => format!("{} {}", number(*n), reason(cause, to)),
    };
    let mut words: Vec<String> = causes[..shown].iter().map(words).collect();
    let others: u64 = causes[shown..].iter().map(|(_, n)| n).sum();
    if others > 0 {
        words.push(format!("{} for other reasons", number(others)));
    }
    let less = fp32.elsewhere.as_ref().filter(|elsewhere| elsewhere.nodes < all);
    let less = less.map_or_else(String::new, |elsewhere| {
        format!("; `--policy {}` would leave {}", elsewhere.policy, number(elsewhere.nodes))
    });
    (all > 0).then(|| format!("{} ({}){less}", number(all), words.join("; ")))
}

/// A cause of [`Fp32Report::causes`] in words.
fn reason(cause: &Cause, to: &str) -> String {
    match cause {
        Cause::Class { op, rule } => format!("{op}: {}", of_class(rule, to)),
        Cause::Downstream(Root::Guard(name)) => {
            let words = of_guard(name, to).map_or_else(|| format!("guard.{name}"), str::to_owned);
            format!("downstream of {words}")
        }
        Cause::Downstream(Root::Pin) => format!("downstream of {PINNED}"),
        Cause::Downstream(Root::Op(op)) => format!("downstream of {op}"),
        Cause::Placement => "cheaper in fp32: casts would cost more".to_owned(),
        Cause::Rule(rule) => of_rule(rule, to),
    }
}

/// The words for nodes that pins keep fp32.
const PINNED: &str = "pinned";

/// The words for a rule that gives an operator the class that keeps it fp32.
fn of_class(rule: &Rule, to: &str) -> &'static str {
    match rule {
        Rule::Table | Rule::Listed { by: ListedBy::Preset, class: Class::Deny } if to == "bf16" => {
            "needs fp32 precision"
        }
        Rule::Table | Rule::Listed { by: ListedBy::Preset, class: Class::Deny } => "needs fp32 range",
        Rule::Unlisted => "not in a list of the policy",
        Rule::Listed { by: ListedBy::Options, .. } => "kept by an option",
        _ => "kept by the policy",
    }
}

/// The words for a rule that is about no operator.
fn of_rule(rule: &Rule, to: &str) -> String {
    let words = match rule {
        Rule::Pin(_) => Some(PINNED),
        Rule::NoGain(_) => Some("no gain predicted"),
        Rule::Quantized(_) => Some("computed in integers"),
        Rule::Guard { name, .. } => of_guard(name, to),
        Rule::Observed { .. } => {
            Some("numbers near an end of the range, or far from 0 before a mean, on data")
        }
        Rule::Opset(format) => return format!("no {format} form at this opset"),
        _ => None,
    };
    words.map_or_else(|| format!("kept by {}", rule.family()), str::to_owned)
}

/// The words for what a guard finds.
fn of_guard(name: &str, to: &str) -> Option<&'static str> {
    Some(match GuardDef::of(name)?.kind {
        GuardKind::Range => "numbers out of range",
        GuardKind::Mask => "a mask out of range",
        GuardKind::Eps => "an epsilon below the range",
        GuardKind::Underflow => "constants that become 0 or lose digits",
        GuardKind::Stash => "a norm with its own precision",
        GuardKind::Norm => "a decomposed norm",
        GuardKind::Depth => "a long sum",
        GuardKind::Integers => "integers that 16 bits cannot hold",
        // bf16 has the range of fp32.
        GuardKind::Square if to == "bf16" => "squares that lose digits",
        GuardKind::Square => "squares out of range",
        GuardKind::Cancellation => "differences that lose digits",
        GuardKind::Offset => "inputs far from 0 before their mean is subtracted",
        GuardKind::Saturation => "saturating functions",
        GuardKind::Recurrence => "recurrences with factors near 1",
        GuardKind::Scores => "scores of unknown range",
        GuardKind::Position => "positions",
        GuardKind::Choice => "values by which operators choose",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ampc::ir::module::reason::PinnedBy;
    use ampc::report::ElsewhereReport;

    #[test]
    fn the_summary_says_why_nodes_stay_fp32() {
        let of_table = |op: &str| Cause::Class { op: op.into(), rule: Rule::Table };
        let guarded =
            |name: &'static str| Cause::Rule(Rule::Guard { name: name.into(), evidence: "0".into() });
        let fp32 = |causes: &[(Cause, u64)], nodes| Fp32Report {
            causes: causes.iter().cloned().collect(),
            elsewhere: Some(ElsewhereReport { policy: "perf".into(), nodes }),
        };
        assert_eq!(
            kept(&fp32(&[(of_table("Softmax"), 3)], 3), "fp16").unwrap(),
            "3 (Softmax: needs fp32 range)"
        );
        let listed = Rule::Listed { by: ListedBy::Options, class: Class::Deny };
        let five = [
            (Cause::Class { op: "A".into(), rule: listed }, 1),
            (Cause::Placement, 20),
            (guarded("eps"), 3),
            (Cause::Downstream(Root::Guard("eps".into())), 4),
            (Cause::Rule(Rule::Pin(PinnedBy::Graph)), 2),
        ];
        let less = "30 (20 cheaper in fp32: casts would cost more; 4 downstream of an epsilon below the range; \
                    3 an epsilon below the range; 3 for other reasons); `--policy perf` would leave 29";
        assert_eq!(kept(&fp32(&five, 29), "fp16").unwrap(), less);
        assert_eq!(
            kept(&fp32(&[(of_table("Exp"), 1), (Cause::Downstream(Root::Op("Exp".into())), 2)], 3), "bf16")
                .unwrap(),
            "3 (2 downstream of Exp; 1 Exp: needs fp32 precision)"
        );
        assert_eq!(kept(&fp32(&[], 0), "fp16"), None);
        // bf16 has the range of fp32, and not its digits.
        let squares = [(guarded("square"), 10), (Cause::Downstream(Root::Guard("square".into())), 2)];
        assert_eq!(
            kept(&fp32(&squares, 12), "fp16").unwrap(),
            "12 (10 squares out of range; 2 downstream of squares out of range)"
        );
        assert_eq!(
            kept(&fp32(&squares, 12), "bf16").unwrap(),
            "12 (10 squares that lose digits; 2 downstream of squares that lose digits)"
        );
        let unlisted = Cause::Class { op: "Mul".into(), rule: Rule::Unlisted };
        assert_eq!(kept(&fp32(&[(unlisted, 6)], 6), "fp16").unwrap(), "6 (Mul: not in a list of the policy)");
    }
}
