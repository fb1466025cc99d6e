//! Steps back from a value to the values from which it is computed, through casts, movement and scaling.

use super::operators::{kind, scalar};
use crate::graph::flow;
use ampc_ir::op::{self, OpKind, Sign};
use ampc_ir::{Module, Node, Value};

/// The maximal number of steps back through movement and scaling.
pub(super) const MAX_STEPS: usize = 8;

/// The largest number that is an epsilon: it keeps a divisor from 0, and changes no quotient.
const MAX_EPSILON: f64 = 0.01;

/// The node that computes a value, and its operator.
pub(super) fn producer(module: &Module, value: Value) -> Option<(Node, OpKind)> {
    let (node, _) = module.producer(flow::behind_casts(module, value))?;
    Some((node, kind(module, node)?))
}

/// An operand of a node.
pub(super) fn operand(module: &Module, node: Node, i: usize) -> Option<Value> {
    module.node(node).operand(i)
}

/// Follows first operands back, through casts too, while `is_passed` holds, for at most [`MAX_STEPS`]; returns the value
/// at which it stops.
pub(super) fn behind(
    module: &Module,
    value: Value,
    is_passed: impl Fn(Node, OpKind, Value) -> bool,
) -> Value {
    let mut value = flow::behind_casts(module, value);
    for _ in 0..MAX_STEPS {
        let passed = producer(module, value).filter(|&(node, kind)| is_passed(node, kind, value));
        let Some(of) = passed.and_then(|(node, _)| operand(module, node, 0)) else { break };
        value = flow::behind_casts(module, of);
    }
    value
}

/// True if an operator moves its first operand, and no other.
pub(super) fn moves_first(module: &Module, node: Node, kind: OpKind) -> bool {
    let n = module.node(node).n_formal();
    op::moves(kind, 0) == Some(Sign::Kept) && (1..n).all(|i| op::moves(kind, i).is_none())
}

/// Looks through operators that move one operand alone.
pub(super) fn behind_movement(module: &Module, value: Value) -> Value {
    behind(module, value, |node, kind, _| moves_first(module, node, kind))
}

/// Looks through movement and through scaling by constants.
pub(super) fn behind_scaling(module: &Module, value: Value) -> Value {
    let mut value = behind_movement(module, value);
    for _ in 0..MAX_STEPS {
        let scaled = producer(module, value).and_then(|(node, kind)| {
            let (a, b) = (operand(module, node, 0)?, operand(module, node, 1)?);
            match kind {
                OpKind::Mul | OpKind::Div if scalar(module, b).is_some() => Some(a),
                OpKind::Mul if scalar(module, a).is_some() => Some(b),
                _ => None,
            }
        });
        let Some(of) = scaled else { break };
        value = behind_movement(module, of);
    }
    value
}

/// Looks through the addition of a number, or a bound by a number (Add, Max, Clip), as of an epsilon.
pub(super) fn behind_epsilon(module: &Module, value: Value) -> Value {
    let value = behind_movement(module, value);
    let Some((node, OpKind::Add | OpKind::Max | OpKind::Clip)) = producer(module, value) else {
        return value;
    };
    let operands = || module.node(node).formal_operands().iter().flatten().copied();
    let is_epsilon = operands().filter_map(|of| scalar(module, of)).all(|number| number.abs() <= MAX_EPSILON);
    let computed = operands().find(|&of| scalar(module, of).is_none()).filter(|_| is_epsilon);
    computed.map_or(value, |of| behind_movement(module, of))
}

/// Looks through operators that give the same elements another shape or order.
pub(super) fn behind_views(module: &Module, value: Value) -> Value {
    behind(module, value, |_, kind, _| {
        matches!(
            kind,
            OpKind::Reshape
                | OpKind::Transpose
                | OpKind::Unsqueeze
                | OpKind::Squeeze
                | OpKind::Flatten
                | OpKind::Identity
        )
    })
}
