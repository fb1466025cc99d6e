//! Sums and products of a graph, flattened: the terms or factors of a value, through operators that nothing else
//! reads.
//!
//! ```text
//! Div(Mul(x, 0.5), Sqrt(v))  =  0.5 · x¹ · v^-½        Sub(a, Add(b, 1e-5))  =  -1e-5 + a - b
//! ```

use super::pattern::Chain;
use crate::analysis::values::{is_capture, same_number};
use crate::graph::flow;
use ampc_ir::op::OpKind;
use ampc_ir::views::constant_of;
use ampc_ir::{DType, Module, Node, Value};
use smallvec::SmallVec;

/// More terms or factors than any pattern has: longer chains are not read to their end.
const MAX_ITEMS: usize = 8;

/// Operators between constants that are evaluated, one behind the other.
const MAX_DEPTH: usize = 4;

/// A number that a constant stands for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Scalar {
    pub(super) number: f64,
    /// The relative error of rounding the number to the element type of the constant.
    pub(super) slack: f64,
    /// The rank of the constant, which the result has at least.
    pub(super) rank: usize,
}

/// A sum or product.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Flat {
    /// The constant term or factor.
    pub(super) constant: Scalar,
    /// Terms with their signs, or factors with their exponents; equal values are one item.
    pub(super) items: SmallVec<[(Value, f64); MAX_ITEMS]>,
    /// The nodes of the chain.
    pub(super) nodes: SmallVec<[Node; MAX_ITEMS]>,
}

/// The operands of a node of a chain with their weights; `None` as weight if the chain ends at the operand.
struct Step {
    parts: SmallVec<[(Value, f64); 2]>,
    /// True if the operands are items, whatever makes them.
    ends: bool,
    /// A factor that the node contributes.
    factor: f64,
}

/// The value behind casts that change no number and Identity nodes, with these nodes.
pub(super) fn behind(module: &Module, value: Value) -> (Value, SmallVec<[Node; 2]>) {
    let (mut value, mut nodes) = (value, SmallVec::new());
    while let Some((node, _)) = module.producer(value) {
        let data = module.node(node);
        let is_identity = data.schema().is_some_and(|s| s.kind == OpKind::Identity);
        let passes = is_identity || same_number(module, node).is_some();
        let Some(operand) = data.operand(0).filter(|&operand| passes && !is_capture(module, operand)) else {
            break;
        };
        nodes.push(node);
        value = operand;
    }
    (value, nodes)
}

/// The number that a value is, if it is a constant with one element or a small expression of such constants.
pub(super) fn scalar(module: &Module, value: Value) -> Option<Scalar> {
    scalar_within(module, value, MAX_DEPTH)
}

fn scalar_within(module: &Module, value: Value, depth: usize) -> Option<Scalar> {
    if let Some(data) = constant_of(module, value) {
        if data.element_count() != 1 {
            return None;
        }
        // The exponent of Pow may be an integer.
        #[expect(clippy::cast_precision_loss, reason = "exponents are small")]
        let integer = || data.small_ints(1).map(|ints| ints[0] as f64);
        let number = data.small_floats(1).map(|floats| floats[0]).or_else(integer)?;
        let slack = match data.dtype() {
            DType::F16 => 2f64.powi(-11),
            DType::BF16 => 2f64.powi(-8),
            _ => 0.0,
        };
        return Some(Scalar { number, slack, rank: data.dims().len() });
    }
    let (node, _) = module.producer(value)?;
    let data = module.node(node);
    let kind = data.schema()?.kind;
    let operand = |i: usize| scalar_within(module, data.operand(i)?, depth.checked_sub(1)?);
    let unary = |f: fn(f64) -> f64| operand(0).map(|a| Scalar { number: f(a.number), ..a });
    let binary = |f: fn(f64, f64) -> f64| {
        let (b, a) = (operand(1)?, operand(0)?);
        let (number, slack) = (f(a.number, b.number), a.slack + b.slack);
        Some(Scalar { number, slack, rank: a.rank.max(b.rank) })
    };
    match kind {
        OpKind::Cast => flow::float_cast(module, node).and(unary(|a| a)),
        OpKind::Identity | OpKind::CastLike => unary(|a| a),
        OpKind::Sqrt => unary(f64::sqrt),
        OpKind::Neg => unary(|a| -a),
        OpKind::Reciprocal => unary(f64::recip),
        OpKind::Mul => binary(|a, b| a * b),
        OpKind::Div => binary(|a, b| a / b),
        OpKind::Add => binary(|a, b| a + b),
        OpKind::Sub => binary(|a, b| a - b),
        OpKind::Pow => binary(f64::powf),
        _ => None,
    }
}

/// The terms or factors of a value; `None` if the value is no sum or product, or is one of too many items.
pub(super) fn flat(module: &Module, chain: Chain, value: Value) -> Option<Flat> {
    let neutral = if chain == Chain::Sum { 0.0 } else { 1.0 };
    let constant = Scalar { number: neutral, slack: 0.0, rank: 0 };
    let mut found = Flat { constant, items: SmallVec::new(), nodes: SmallVec::new() };
    let mut work: SmallVec<[(Value, f64, bool); MAX_ITEMS]> = smallvec::smallvec![(value, 1.0, false)];
    while let Some((part, weight, ends)) = work.pop() {
        let is_root = found.nodes.is_empty();
        let (inner, casts) = behind(module, part);
        if let Some(scalar) = scalar(module, inner).filter(|_| !is_root) {
            found.combine(chain, scalar, weight);
            continue;
        }
        let is_open = is_root || !ends && is_private(module, part, &casts);
        let step = module.producer(inner).filter(|_| is_open);
        let step = step.and_then(|(node, _)| Some((node, step_of(module, chain, node, weight)?)));
        let Some((node, step)) = step else {
            if is_root || found.items.len() == MAX_ITEMS {
                return None;
            }
            found.add(module, part, weight);
            continue;
        };
        if found.nodes.len() >= 2 * MAX_ITEMS {
            return None;
        }
        found.nodes.extend(casts);
        found.nodes.push(node);
        found.constant.number *= step.factor;
        work.extend(step.parts.into_iter().map(|(part, weight)| (part, weight, step.ends)));
    }
    Some(found)
}

impl Flat {
    fn combine(&mut self, chain: Chain, scalar: Scalar, weight: f64) {
        let constant = &mut self.constant;
        constant.number = match chain {
            Chain::Sum => constant.number + scalar.number * weight,
            Chain::Product => constant.number * scalar.number.powf(weight),
        };
        constant.slack += scalar.slack;
        constant.rank = constant.rank.max(scalar.rank);
    }

    /// Adds an item, or its weight to that of an equal item.
    fn add(&mut self, module: &Module, value: Value, weight: f64) {
        let inner = behind(module, value).0;
        match self.items.iter_mut().find(|(known, _)| behind(module, *known).0 == inner) {
            Some((_, sum)) => *sum += weight,
            None => self.items.push((value, weight)),
        }
    }
}

/// True if nothing reads a value and the operands of these casts of it but one node each.
fn is_private(module: &Module, value: Value, casts: &[Node]) -> bool {
    let operands = casts.iter().filter_map(|&cast| module.node(cast).operand(0));
    std::iter::once(value).chain(operands).all(|value| {
        module.uses(value).nth(1).is_none() && !module.is_output(value) && !module.has_role(value)
    })
}

fn step_of(module: &Module, chain: Chain, node: Node, weight: f64) -> Option<Step> {
    let data = module.node(node);
    let kind = data.schema().filter(|s| s.domain.is_empty())?.kind;
    let operand = |i: usize| data.operand(i);
    let step = |parts: &[(Value, f64)]| {
        Some(Step { parts: parts.iter().copied().collect(), ends: false, factor: 1.0 })
    };
    match (chain, kind) {
        (Chain::Sum, OpKind::Add) => step(&[(operand(0)?, weight), (operand(1)?, weight)]),
        (Chain::Sum, OpKind::Sub) => step(&[(operand(0)?, weight), (operand(1)?, -weight)]),
        (Chain::Sum, OpKind::Neg) => step(&[(operand(0)?, -weight)]),
        (Chain::Product, OpKind::Mul) => step(&[(operand(0)?, weight), (operand(1)?, weight)]),
        (Chain::Product, OpKind::Div) => step(&[(operand(0)?, weight), (operand(1)?, -weight)]),
        (Chain::Product, OpKind::Reciprocal) => step(&[(operand(0)?, -weight)]),
        (Chain::Product, OpKind::Neg) => {
            Some(Step { factor: (-1f64).powf(weight), ..step(&[(operand(0)?, weight)])? })
        }
        // A root of a product is not the product of the roots of negative factors.
        (Chain::Product, OpKind::Sqrt) => Some(Step { ends: true, ..step(&[(operand(0)?, weight / 2.0)])? }),
        (Chain::Product, OpKind::Pow) => {
            let exponent = scalar(module, operand(1)?)?.number;
            let ends = exponent.fract() != 0.0;
            Some(Step { ends, ..step(&[(operand(0)?, weight * exponent)])? })
        }
        _ => None,
    }
}
