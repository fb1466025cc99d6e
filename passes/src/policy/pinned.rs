//! Nodes that pins name, once they are classified.

use ampc_ir::module::reason::PinnedBy;
use ampc_ir::{Module, Node};

/// The pin, or list that denies Cast, that names a cast of the author, once it is classified.
pub(crate) fn pin_of_cast(module: &Module, node: Node) -> Option<&PinnedBy> {
    module.node(node).decisions.last()?.reason.pin()
}

/// The pin, or for a cast the list that denies it, that names a node of the author, once it is classified.
pub fn pin_of_node(module: &Module, node: Node) -> Option<&PinnedBy> {
    let mut rules = module.node(node).decisions.iter().map(|decision| decision.reason.rule());
    pin_of_cast(module, node).or_else(|| rules.find_map(|rule| rule.pinned_by()))
}
