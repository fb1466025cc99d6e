//! Keys of operators, as policies and profiles list them.

use ampc_ir::{Module, Node};

/// The key of an operator in lists: the name for operators of ai.onnx, `domain::Name` for others.
pub fn op_key(domain: &str, name: &str) -> String {
    if domain.is_empty() || domain == "ai.onnx" { name.to_owned() } else { format!("{domain}::{name}") }
}

/// The key of the operator of a node.
pub fn node_key(module: &Module, node: Node) -> String {
    let (domain, name, _) = module.op_name(node);
    op_key(domain, name)
}
