//! Reasons why nodes stay fp32: one cause for each node, the cause of its riskiest type variable.

use super::floats::FloatDecisions;
use crate::error::findings::op_of;
use ampc_ir::Node;
use ampc_ir::module::Decision;
use ampc_ir::op::Class;
use ampc_passes::Paths;
use ampc_passes::assign::{Elsewhere, is_left_full};
use ampc_passes::taint::DOWNSTREAM_OF;
use serde::Serialize;
use std::collections::BTreeMap;

/// Reasons why nodes stay fp32; casts and constants, whose types follow from their readers, do not count.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Fp32Report {
    /// Cause → nodes: `OP (RULE)` of an operator that its class keeps fp32, `CAUSE (taint)` of nodes downstream
    /// of one, `placement` where neighbours decide, else the rule up to its `:`.
    pub causes: BTreeMap<String, u64>,
    /// The nodes that another policy would leave fp32, if that was requested and found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<ElsewhereReport>,
}

/// The nodes that another policy would leave fp32.
#[derive(Clone, Debug, Serialize)]
pub struct ElsewhereReport {
    /// The policy.
    pub policy: String,
    /// The nodes that would be fp32.
    pub nodes: u64,
}

impl Fp32Report {
    /// The causes of the nodes of the source.
    pub(super) fn of(
        decisions: &FloatDecisions<'_>,
        paths: &Paths,
        elsewhere: Option<&Elsewhere>,
    ) -> Fp32Report {
        let module = decisions.module();
        let alive = || paths.nodes().iter().copied().filter(|&node| module.node(node).is_alive());
        let mut causes = BTreeMap::new();
        for cause in paths.nodes().iter().filter_map(|&node| cause_of(decisions, paths, node)) {
            *causes.entry(cause).or_default() += 1;
        }
        let elsewhere = elsewhere.map(|elsewhere| ElsewhereReport {
            policy: elsewhere.policy.clone(),
            nodes: alive().filter(|node| elsewhere.full.contains(node)).count() as u64,
        });
        Fp32Report { causes, elsewhere }
    }
}

/// The cause that keeps a node fp32; `None` for nodes that are not fp32, and for nodes whose type follows from their
/// readers.
pub(super) fn cause_of(decisions: &FloatDecisions<'_>, paths: &Paths, node: Node) -> Option<String> {
    let module = decisions.module();
    let floats = decisions.of(node);
    let is_kept = module.node(node).is_alive() && floats.is_full() && is_left_full(module, node);
    let decision = floats.riskiest().filter(|_| is_kept)?;
    Some(cause(decisions, paths, node, decision))
}

fn cause(decisions: &FloatDecisions<'_>, paths: &Paths, node: Node, decision: &Decision) -> String {
    let module = decisions.module();
    let rule = decision.reason.rule.as_str();
    if let Some(root) = rule.strip_prefix("taint:") {
        let by_rule = paths.node(root).and_then(|root| decisions.of(root).riskiest()).map(|d| &d.reason.rule);
        let by_rule =
            by_rule.map(|rule| head(rule)).filter(|rule| rule.starts_with("guard.") || *rule == "pin");
        let op = decision.reason.evidence.strip_prefix(DOWNSTREAM_OF);
        return format!("{} (taint)", by_rule.or(op).unwrap_or(root));
    }
    let is_of_class =
        ["table", "unlisted", "list.", "policy.", "preset."].iter().any(|of| rule.starts_with(of));
    let is_kept = matches!(decision.class, Class::Deny | Class::Fixed);
    match rule {
        "cut" => "placement".into(),
        _ if is_of_class && is_kept => format!("{} ({rule})", op_of(module, node)),
        _ if is_of_class => "placement".into(),
        _ => head(rule).to_owned(),
    }
}

fn head(rule: &str) -> &str {
    rule.split_once(':').map_or(rule, |(head, _)| head)
}
