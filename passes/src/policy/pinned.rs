//! Nodes that pins name, once they are classified.

use super::pins::is_pin;
use ampc_ir::{Module, Node};

/// The pin, or list that denies Cast, that names a cast of the author, once it is classified.
pub(crate) fn pin_of_cast(module: &Module, node: Node) -> Option<&str> {
    let evidence = &module.node(node).decisions.last()?.reason.evidence;
    is_pin(evidence).then_some(evidence)
}

/// The pin, or for a cast the list that denies it, that names a node of the author, once it is classified.
pub fn pin_of_node(module: &Module, node: Node) -> Option<&str> {
    let rules = || module.node(node).decisions.iter().map(|decision| decision.reason.rule.as_str());
    pin_of_cast(module, node).or_else(|| rules().find(|rule| is_pin(rule)))
}
