//! Reasons why nodes stay fp32: one cause for each node, the cause of its riskiest type variable.

use super::floats::FloatDecisions;
use crate::error::findings::op_of;
use ampc_ir::Node;
use ampc_ir::module::reason::ListedBy;
use ampc_ir::module::{Decision, Rule};
use ampc_ir::op::Class;
use ampc_passes::Paths;
use ampc_passes::assign::{Elsewhere, is_left_full};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// Reasons why nodes stay fp32; casts and constants, whose types follow from their readers, do not count.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Fp32Report {
    /// Cause → nodes: `OP (RULE)` of an operator that its class keeps fp32, `CAUSE (taint)` of nodes downstream
    /// of one, `placement` where neighbours decide, else the rule up to its `:`.
    pub causes: Causes,
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
        let causes = paths.nodes().iter().filter_map(|&node| cause_of(decisions, paths, node));
        let causes = causes.map(|cause| (cause, 1)).collect();
        let elsewhere = elsewhere.map(|elsewhere| ElsewhereReport {
            policy: elsewhere.policy.clone(),
            nodes: alive().filter(|node| elsewhere.full.contains(node)).count() as u64,
        });
        Fp32Report { causes, elsewhere }
    }
}

/// The cause that keeps a node fp32; `None` for nodes that are not fp32, and for nodes whose type follows from their
/// readers.
pub(super) fn cause_of(decisions: &FloatDecisions<'_>, paths: &Paths, node: Node) -> Option<Cause> {
    let module = decisions.module();
    let floats = decisions.of(node);
    let is_kept = module.node(node).is_alive() && floats.is_full() && is_left_full(module, node);
    let decision = floats.riskiest().filter(|_| is_kept)?;
    Some(cause(decisions, paths, node, decision))
}

fn cause(decisions: &FloatDecisions<'_>, paths: &Paths, node: Node, decision: &Decision) -> Cause {
    let is_kept = matches!(decision.class, Class::Deny | Class::Fixed);
    match decision.reason.rule() {
        Rule::Taint { node, op } => {
            let root = paths.node(node).and_then(|root| decisions.of(root).riskiest());
            Cause::Downstream(match root.map(|decision| decision.reason.rule()) {
                Some(Rule::Guard { name, .. }) => Root::Guard(name.clone()),
                Some(Rule::Pin(_)) => Root::Pin,
                Some(_) | None => Root::Op(op.clone()),
            })
        }
        Rule::Placement { .. } => Cause::Placement,
        Rule::Listed { by: ListedBy::Graph, .. } => Cause::Rule(decision.reason.rule().clone()),
        rule @ (Rule::Table | Rule::Unlisted | Rule::Listed { .. } | Rule::Signature) if is_kept => {
            Cause::Class { op: op_of(decisions.module(), node), rule: rule.clone() }
        }
        Rule::Table | Rule::Unlisted | Rule::Listed { .. } | Rule::Signature => Cause::Placement,
        rule => Cause::Rule(rule.clone()),
    }
}

/// A cause that keeps nodes fp32.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The class of an operator keeps it fp32.
    Class {
        /// The operator.
        op: String,
        /// The rule that gave it the class.
        rule: Rule,
    },
    /// The node is downstream of a denied operator.
    Downstream(Root),
    /// Neighbours decide.
    Placement,
    /// The rule alone. Rules that differ in names of nodes and patterns are one cause.
    Rule(Rule),
}

/// The origin of a taint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Root {
    /// An operator that a guard denies: the name of the guard.
    Guard(Cow<'static, str>),
    /// A pinned operator.
    Pin,
    /// An operator that its class denies.
    Op(String),
}

/// The key of the cause in a report.
impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Class { op, rule } => write!(f, "{op} ({rule})"),
            Cause::Downstream(Root::Guard(name)) => write!(f, "guard.{name} (taint)"),
            Cause::Downstream(Root::Pin) => f.write_str("pin (taint)"),
            Cause::Downstream(Root::Op(op)) => write!(f, "{op} (taint)"),
            Cause::Placement => f.write_str("placement"),
            Cause::Rule(rule) => f.write_str(&rule.family()),
        }
    }
}

/// Causes with the number of their nodes, in order of their keys.
#[derive(Clone, Debug, Default)]
pub struct Causes(BTreeMap<String, (Cause, u64)>);

impl Causes {
    /// Each cause once, with its key and the number of its nodes.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Cause, u64)> {
        self.0.iter().map(|(key, (cause, nodes))| (key.as_str(), cause, *nodes))
    }

    /// The numbers of nodes.
    pub fn values(&self) -> impl Iterator<Item = u64> {
        self.0.values().map(|&(_, nodes)| nodes)
    }
}

impl FromIterator<(Cause, u64)> for Causes {
    fn from_iter<T: IntoIterator<Item = (Cause, u64)>>(causes: T) -> Causes {
        let mut all: BTreeMap<String, (Cause, u64)> = BTreeMap::new();
        for (cause, nodes) in causes {
            all.entry(cause.to_string()).or_insert((cause, 0)).1 += nodes;
        }
        Causes(all)
    }
}

impl Serialize for Causes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(key, _, nodes)| (key, nodes)))
    }
}
