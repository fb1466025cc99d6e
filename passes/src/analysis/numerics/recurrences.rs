//! Values that are multiplied repeatedly by a factor near 1, and iterations of matrices.
//!
//! ```text
//! %m1 = Add(Mul(%m0, 0.995), %z0)     the state of a leaky memory
//! %m2 = Add(Mul(%m1, 0.995), %z1)     0.995 is off by 2e-4 in f16: 4 % of its distance from 1, by which the
//! %m3 = Add(Mul(%m2, 0.995), %z2)     memory forgets
//! ```

use super::back::{MAX_STEPS, behind_movement, behind_scaling, operand, producer};
use super::facts::Numerics;
use super::interval::Interval;
use super::operators::{is_constant, kind, subtracts};
use super::weights::MAX_WEIGHTS;
use crate::graph::flow::{self, Reader};
use ampc_ir::module::Def;
use ampc_ir::op::{self, OpKind};
use ampc_ir::ports::Ports;
use ampc_ir::views::linear::GemmView;
use ampc_ir::views::{NodeView, constant_of};
use ampc_ir::{Module, Node, Value};
use std::collections::BTreeSet;

/// The largest distance from 1 of a factor near 1. In bf16, this distance keeps at most 4 of its 8 bits.
const NEAR_ONE: f64 = 0.0625;

/// The largest distance from 1 of the operand of a logarithm that is small itself.
const SMALL_LOG: f64 = 0.5;

/// The number of steps before a step of a recurrence that is not in a loop. A moving average that is updated once does not
/// count, nor do a few blocks with scaled residuals.
const MIN_STEPS: usize = 8;

/// The maximal number of terms of the sum that updates a state.
const MAX_TERMS: usize = 8;

/// The number of squarings from which a power of a matrix is 2³ or more.
const MIN_SQUARINGS: usize = 3;

/// The maximal number of squarings of a matrix.
const MAX_SQUARINGS: usize = 16;

impl Numerics {
    /// The slot of the state, if a node multiplies the state of a recurrence by a factor near 1: a constant, or a value
    /// with such bounds.
    pub(crate) fn decays(&self, module: &Module, node: Node) -> Option<usize> {
        let (state, _) = self.near_one(module, node)?;
        let value = behind_movement(module, operand(module, node, state)?);
        (is_state(module, value) || self.was_decayed(module, value)).then_some(state)
    }

    /// True if a node multiplies the state of a recurrence by a factor near 1, or adds to such a product.
    pub(crate) fn updates_state(&self, module: &Module, node: Node) -> bool {
        let terms = module.node(node).formal_operands();
        let is_sum = kind(module, node).is_some_and(op::adds) && terms.len() <= MAX_TERMS;
        let decays = |&term: &Value| {
            producer(module, term).is_some_and(|(product, _)| self.decays(module, product).is_some())
        };
        self.decays(module, node).is_some() || is_sum && terms.iter().flatten().any(decays)
    }

    /// True if the distance of an operand from 1 counts: the factor of a state that decays, f in 1 − f, exp(x) in
    /// exp(x) − 1, and 1 + x whose logarithm is taken, for small x.
    pub(crate) fn is_beside_one(&self, module: &Module, node: Node, slot: usize) -> bool {
        let value = operand(module, node, slot).filter(|&value| !self.is_constant(module, value));
        let near = |most: f64| value.is_some_and(|value| self.is_near_one(module, value, most));
        match kind(module, node) {
            Some(OpKind::Mul) => near(NEAR_ONE) && self.decays(module, node) == Some(1 - slot.min(1)),
            Some(OpKind::Sub | OpKind::Add) if subtracts(module, node) => {
                let one = operand(module, node, 1 - slot.min(1));
                one.is_some_and(|one| self.is_one(module, one))
                    && (near(NEAR_ONE) || value.is_some_and(|value| is_exponential(module, value)))
            }
            Some(OpKind::Log) => near(SMALL_LOG),
            _ => false,
        }
    }

    /// True if a value was made by [`MIN_STEPS`] sums or more, each of which adds to the product of the sum before it and a
    /// factor near 1.
    fn was_decayed(&self, module: &Module, value: Value) -> bool {
        let mut value = value;
        for _ in 0..MIN_STEPS {
            let sum = producer(module, value).filter(|&(_, kind)| op::adds(kind));
            let Some(before) = sum.and_then(|(sum, _)| self.state_before(module, sum)) else { return false };
            value = behind_movement(module, before);
        }
        true
    }

    /// The state that a sum adds to, if exactly one of its terms is the product of a value and a factor near 1.
    fn state_before(&self, module: &Module, sum: Node) -> Option<Value> {
        let terms = module.node(sum).formal_operands();
        let state = |&term: &Value| {
            let (node, _) = producer(module, behind_movement(module, term))?;
            let (state, _) = self.near_one(module, node)?;
            operand(module, node, state)
        };
        let mut states = terms.iter().flatten().take(MAX_TERMS).filter_map(state);
        states.next().filter(|_| terms.len() <= MAX_TERMS && states.next().is_none())
    }

    /// The slots of the value and of the factor near 1, if a node multiplies by such a factor.
    fn near_one(&self, module: &Module, node: Node) -> Option<(usize, usize)> {
        let factor = |slot: usize| {
            operand(module, node, slot)
                .is_some_and(|value| self.is_near_one(module, value, NEAR_ONE))
                .then_some(slot)
        };
        let factor = factor(1).or_else(|| factor(0)).filter(|_| kind(module, node) == Some(OpKind::Mul))?;
        Some((1 - factor, factor))
    }

    /// True if all elements of a value are near 1, and not all of them are 1.
    fn is_near_one(&self, module: &Module, value: Value, most: f64) -> bool {
        let known = self.interval(module, flow::behind_casts(module, value));
        known
            .is_some_and(|Interval { lo, hi }| lo >= 1.0 - most && hi <= 1.0 + most && (lo, hi) != (1.0, 1.0))
    }
}

/// True if a value is the result of Exp, moved or not: exp(x) − 1 is about x where x is small.
fn is_exponential(module: &Module, value: Value) -> bool {
    producer(module, behind_movement(module, value)).is_some_and(|(_, kind)| kind == OpKind::Exp)
}

/// True if a value is a state of a loop, seen from its body.
fn is_state(module: &Module, value: Value) -> bool {
    let data = module.value(value);
    let Def::Input { slot, .. } = data.def else { return false };
    let ports = Ports::of_body(module, data.graph);
    ports.is_some_and(|ports| ports.of_body_input(slot as usize).is_some_and(|port| ports.is_state(port)))
}

/// The matrix, if a node multiplies a matrix by itself.
fn squared(module: &Module, node: Node) -> Option<Value> {
    let (a, b) = (operand(module, node, 0)?, operand(module, node, 1)?);
    let same = flow::behind_casts(module, a) == flow::behind_casts(module, b);
    let is_square = match kind(module, node)? {
        OpKind::MatMul => true,
        OpKind::Gemm => {
            let gemm = GemmView::read(&NodeView::new(module, node)?);
            operand(module, node, 2).is_none() && !gemm.trans_a && !gemm.trans_b
        }
        _ => false,
    };
    (same && is_square).then_some(a)
}

/// True if a node is a product of a matrix with itself, and one of several: the matrix is I + A or was made of it by such
/// products (a matrix exponential by scaling and squaring), or three such products or more follow on each other (a power
/// of a matrix). Every squaring doubles the errors of the matrix, and A is small beside I.
pub(crate) fn is_repeated_squaring(module: &Module, node: Node) -> bool {
    let Some(mut value) = squared(module, node) else { return false };
    let mut n_squarings = 1;
    for _ in 0..MAX_SQUARINGS {
        let Some((before, _)) = producer(module, value) else { break };
        let Some(of) = squared(module, before) else { break };
        n_squarings += 1;
        value = of;
    }
    n_squarings += squarings_after(module, node, MAX_SQUARINGS);
    n_squarings >= MIN_SQUARINGS || adds_identity(module, value)
}

/// The length of the longest chain of squarings of the result of a node, at most `most`.
fn squarings_after(module: &Module, node: Node, most: usize) -> usize {
    let Some(result) = module.node(node).result(0).filter(|_| most > 0) else { return 0 };
    let readers = flow::readers_beyond_casts(module, result);
    let squarings = readers.into_iter().filter_map(Reader::operand).map(|(reader, _)| reader);
    // Each squaring reads the matrix twice.
    let squarings: BTreeSet<Node> = squarings.filter(|&reader| squared(module, reader).is_some()).collect();
    squarings.into_iter().map(|next| 1 + squarings_after(module, next, most - 1)).max().unwrap_or(0)
}

/// The product, if a node subtracts a product of matrices from a multiple of the identity matrix, and a product reads the
/// difference: X(2I − AX), a step of Newton's method for an inverse, or for the inverse of a root.
pub(crate) fn refines_inverse(module: &Module, node: Node) -> Option<Node> {
    let (one, of) = (operand(module, node, 0)?, operand(module, node, 1)?);
    if kind(module, node) != Some(OpKind::Sub) || !is_multiple_of_identity(module, one) {
        return None;
    }
    let (product, _) =
        producer(module, behind_scaling(module, of)).filter(|&(_, kind)| op::is_single_product(kind))?;
    let has_weights = (0..2).any(|i| {
        operand(module, product, i).is_some_and(|of| is_constant(module, flow::behind_casts(module, of)))
    });
    let readers = flow::readers_beyond_casts(module, module.node(node).result(0)?);
    let mut readers = readers.into_iter().filter_map(Reader::operand);
    let multiplies = readers.any(|(reader, _)| kind(module, reader).is_some_and(op::is_single_product));
    (multiplies && !has_weights).then_some(product)
}

/// True if a constant is a square matrix with one number other than 0 on its diagonal, and 0 elsewhere.
fn is_multiple_of_identity(module: &Module, value: Value) -> bool {
    let Some(data) = constant_of(module, flow::behind_casts(module, value)) else { return false };
    let shape = data.shape();
    let is_square = matches!(shape.dims(), Some([.., rows, columns]) if rows.known() == columns.known());
    let numbers = data.small_floats(MAX_WEIGHTS).filter(|_| is_square).unwrap_or_default();
    let n = numbers.iter().filter(|&&number| number != 0.0).count();
    let first = numbers.first().copied().unwrap_or(0.0);
    n > 1
        && n * n == numbers.len()
        && first != 0.0
        && numbers.iter().step_by(n + 1).all(|&number| number == first)
}

/// True if a value is a sum with a multiple of the identity matrix as a term.
fn adds_identity(module: &Module, value: Value) -> bool {
    let mut work = vec![value];
    for _ in 0..MAX_STEPS {
        let Some(value) = work.pop() else { break };
        if is_multiple_of_identity(module, value) {
            return true;
        }
        if let Some((sum, _)) = producer(module, value).filter(|&(_, kind)| kind == OpKind::Add) {
            work.extend(module.node(sum).formal_operands().iter().flatten());
        }
    }
    false
}
