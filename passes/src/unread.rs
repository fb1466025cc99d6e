//! Casts that nobody reads any more.

use crate::flow::resolve_captures;
use ampc_ir::op::OpKind;
use ampc_ir::{Module, Value};

/// Erases the casts that make these values and, if nothing else reads them, those behind them; the author's too, if
/// nothing reads what they make and it is no output. Returns whether there were any.
pub(crate) fn erase_unread_casts(module: &mut Module, mut values: Vec<Value>) -> bool {
    let mut erased = false;
    while let Some(value) = values.pop() {
        let value = resolve_captures(module, value);
        let Some((node, _)) = module.producer(value) else { continue };
        let is_cast = module.node(node).schema().is_some_and(|s| s.kind == OpKind::Cast);
        if !is_cast || module.is_output(value) {
            continue;
        }
        // Bodies may capture it and read it no more.
        for (owner, _) in module.uses(value).collect::<Vec<_>>() {
            module.prune_captures(owner);
        }
        if module.uses(value).next().is_none() {
            values.extend(module.node(node).operand(0));
            module.erase_node(node);
            erased = true;
        }
    }
    erased
}
