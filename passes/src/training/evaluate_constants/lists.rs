//! Sequences whose elements are known values: what is read of them is read of the values.
//!
//! ```text
//! %s = SequenceEmpty()                          %y = Concat(%a, %b) {axis: 0}
//! %t = SequenceInsert(%s, %a)
//! %u = SequenceInsert(%t, %b)
//! %y = ConcatFromSequence(%u) {axis: 0}
//! ```

use super::Walk;
use super::unroll::stacked;
use crate::pass::sound;
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::{AttrValue, Inserter, Node, NodeSpec, Value};

/// The most nodes of sequences that are looked at in a module.
pub(super) const MAX_SEEN: usize = 1 << 16;

/// Replaces a node that reads a sequence of known elements. Returns the nodes that took its place, in order; `None` if it is
/// another node.
pub(super) fn of_known_elements(walk: &mut Walk<'_>, node: Node) -> Option<Vec<Node>> {
    let view = NodeView::with_facts(walk.module, node, &walk.facts)?;
    let (kind, sequence) = (view.kind(), view.operand(0));
    let at = match kind {
        OpKind::ConcatFromSequence => None,
        OpKind::SequenceAt => Some(*view.known_ints(1)?.first()?),
        _ => return None,
    };
    let (axis, is_new) = (view.int("axis"), view.int("new_axis").unwrap_or(0) != 0);
    let elements = elements(walk, sequence?)?;
    let result = walk.module.node(node).result(0)?;
    let name = walk.module.value(result).name?;
    let mut made = Vec::new();
    let value = match at {
        Some(at) => {
            let element = elements[position(at, elements.len())?];
            let mut inserter = Inserter::before(walk.module, node);
            let [value] =
                sound(inserter.insert(NodeSpec::new(OpKind::Identity, &[element]).result_name(name)));
            value
        }
        None if elements.is_empty() || is_new && axis != Some(0) => return None,
        None if is_new => {
            let mut inserter = Inserter::before(walk.module, node);
            sound(stacked(&mut inserter, &elements, name, &mut made))
        }
        None => {
            let mut inserter = Inserter::before(walk.module, node);
            let spec = NodeSpec::new(OpKind::Concat, &elements).attr("axis", AttrValue::Int(axis?));
            let [value] = inserter.insert(spec.result_name(name)).ok()?;
            value
        }
    };
    made.extend(walk.module.producer(value).map(|(node, _)| node));
    walk.module.replace_value(result, value);
    walk.module.erase_node(node);
    Some(made)
}

/// The values that are the elements of a sequence.
fn elements(walk: &mut Walk<'_>, sequence: Value) -> Option<Vec<Value>> {
    // The nodes that change the sequence, the last first.
    let (mut changes, mut value) = (Vec::new(), sequence);
    let mut elements = loop {
        walk.seen += 1;
        let (node, _) = walk.module.producer(value).filter(|_| walk.seen <= MAX_SEEN)?;
        let view = NodeView::with_facts(walk.module, node, &walk.facts)?;
        match view.kind() {
            OpKind::Identity => {}
            OpKind::SequenceInsert | OpKind::SequenceErase => changes.push(node),
            OpKind::SequenceEmpty => break Vec::new(),
            OpKind::SequenceConstruct => break view.data().operands().iter().flatten().copied().collect(),
            _ => return None,
        }
        value = view.operand(0)?;
    };
    for node in changes.into_iter().rev() {
        let view = NodeView::with_facts(walk.module, node, &walk.facts)?;
        let is_insert = view.kind() == OpKind::SequenceInsert;
        let at = if is_insert { 2 } else { 1 };
        let at = if view.has(at) { Some(*view.known_ints(at)?.first()?) } else { None };
        let n = elements.len();
        match (is_insert, at) {
            (true, None) => elements.push(view.operand(1)?),
            (true, Some(at)) if usize::try_from(at) == Ok(n) => elements.push(view.operand(1)?),
            (true, Some(at)) => elements.insert(position(at, n)?, view.operand(1)?),
            (false, at) => drop(elements.remove(position(at.unwrap_or(-1), n)?)),
        }
    }
    Some(elements)
}

/// A position in a list of `n`, counted from the end if it is negative.
fn position(at: i64, n: usize) -> Option<usize> {
    let from_front = if at < 0 { at.checked_add(i64::try_from(n).ok()?)? } else { at };
    usize::try_from(from_front).ok().filter(|&at| at < n)
}
