//! Formulas whose result may be much smaller than their terms, recognised by the computation of their terms.
//!
//! Each function examines one node and goes back a few steps from it, through movement and scaling. For example,
//! E[xy] − E[x]·E[y] is a Sub of an average of `Mul(x, y)` and of a `Mul` of averages of `x` and of `y`. The averages may be
//! means, pools, windows by Conv, or products with constants.

use super::{Numerics, Properties, is_constant, is_product, kind, scalar};
use crate::graph::flow;
use ampc_ir::op::{self, OpKind, Sign};
use ampc_ir::views::constant_of;
use ampc_ir::{Dim, Module, Node, Value};

/// The maximal number of steps back through movement and scaling.
const MAX_STEPS: usize = 8;

/// The number of taps of the largest kernel that is a stencil: 3×3×3, or 5×5. Larger kernels whose taps add up to 0 are
/// standardised weights.
const MAX_TAPS: usize = 32;

/// The number of elements of the largest constant that is examined for averages and stencils.
const MAX_ELEMENTS: u64 = 1 << 16;

/// The largest sum of taps that are meant to add up to 0, relative to the sum of their magnitudes.
const ROUNDED: f64 = 1e-5;

fn producer(module: &Module, value: Value) -> Option<(Node, OpKind)> {
    let (node, _) = module.producer(flow::behind_casts(module, value))?;
    Some((node, kind(module, node)?))
}

fn operand(module: &Module, node: Node, i: usize) -> Option<Value> {
    module.node(node).operand(i)
}

/// Looks through operators that move one operand alone.
fn behind_movement(module: &Module, value: Value) -> Value {
    let mut value = flow::behind_casts(module, value);
    for _ in 0..MAX_STEPS {
        let Some((node, kind)) = producer(module, value) else { break };
        let n = module.node(node).n_formal();
        let moves_one =
            op::moves(kind, 0) == Some(Sign::Kept) && (1..n).all(|i| op::moves(kind, i).is_none());
        let Some(of) = operand(module, node, 0).filter(|_| moves_one) else { break };
        value = flow::behind_casts(module, of);
    }
    value
}

/// Looks through movement and through scaling by constants.
fn behind_scaling(module: &Module, value: Value) -> Value {
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

/// The two factors of an elementwise product or a product of matrices, if neither factor is a constant.
fn factors(module: &Module, value: Value) -> Option<(Node, [Value; 2])> {
    let (node, kind) = producer(module, value)?;
    let a = operand(module, node, 0)?;
    let b = if super::squares(module, node) { a } else { operand(module, node, 1)? };
    let multiplies = kind == OpKind::Mul || kind == OpKind::Pow || op::is_single_product(kind);
    let computed = !is_constant(module, a) && !is_constant(module, b);
    (multiplies && computed).then(|| (node, [behind_movement(module, a), behind_movement(module, b)]))
}

/// The node that averages (a mean, a pool, or a product with a constant) and the value that it averages.
fn averaged(module: &Module, value: Value) -> Option<(Node, Value)> {
    let (node, kind) = producer(module, behind_scaling(module, value))?;
    let (a, b) = (operand(module, node, 0)?, operand(module, node, 1));
    let of = match kind {
        OpKind::ReduceMean | OpKind::ReduceSum | OpKind::AveragePool | OpKind::GlobalAveragePool => a,
        _ if op::is_single_product(kind) && is_constant(module, b?) => a,
        _ if op::is_single_product(kind) && is_constant(module, a) => b?,
        _ => return None,
    };
    Some((node, behind_scaling(module, of)))
}

/// The nodes of E[xy] − E[x]·E[y], with the difference last: the averages and the products on both sides.
pub(crate) fn covariance(module: &Module, node: Node) -> Option<Vec<Node>> {
    let (a, b) = (operand(module, node, 0)?, operand(module, node, 1)?);
    let orders = [(a, b), (b, a)];
    (kind(module, node) == Some(OpKind::Sub))
        .then(|| orders.into_iter().find_map(|(joint, apart)| sides_of_covariance(module, joint, apart)))?
        .map(|mut nodes| {
            nodes.push(node);
            nodes
        })
}

fn sides_of_covariance(module: &Module, joint: Value, apart: Value) -> Option<Vec<Node>> {
    let (product, means) = factors(module, behind_scaling(module, apart))?;
    let mut nodes = vec![product];
    let mut of = Vec::new();
    for mean in means {
        let (average, value) = averaged(module, mean)?;
        nodes.push(average);
        of.push(value);
    }
    let same = |found: [Value; 2]| {
        let found = found.map(|value| behind_scaling(module, value));
        found[..] == of[..] || [found[1], found[0]] == of[..]
    };
    // A product of matrices is an average by itself.
    let of_itself = factors(module, behind_scaling(module, joint))
        .filter(|&(node, _)| kind(module, node).is_some_and(op::is_single_product));
    if let Some((product, found)) = of_itself {
        nodes.push(product);
        return same(found).then_some(nodes);
    }
    let (average, value) = averaged(module, joint)?;
    let (product, found) = factors(module, value)?;
    nodes.extend([average, product]);
    same(found).then_some(nodes)
}

/// True if a node multiplies by a constant matrix whose elements are all the same number, 1/N, and so computes means.
pub(super) fn averages(module: &Module, node: Node) -> bool {
    let is_product = matches!(kind(module, node), Some(OpKind::MatMul | OpKind::Gemm));
    let by = operand(module, node, 1).filter(|_| is_product);
    let numbers = by.and_then(|by| constant_of(module, by)?.small_floats(MAX_ELEMENTS)).unwrap_or_default();
    numbers
        .first()
        .is_some_and(|&first| numbers.len() > 1 && first != 0.0 && numbers.iter().all(|&n| n == first))
}

/// True if a node is a Conv with a constant kernel of a few taps that add up to 0: it computes differences of
/// neighbours.
pub(crate) fn is_stencil(module: &Module, node: Node) -> bool {
    let by = operand(module, node, 1).filter(|_| kind(module, node) == Some(OpKind::Conv));
    let Some(kernel) = by.and_then(|by| constant_of(module, by)) else { return false };
    let Some(numbers) = kernel.small_floats(MAX_ELEMENTS) else { return false };
    let shape = kernel.shape();
    let Some([Dim::Known(n_kernels), ..]) = shape.dims() else { return false };
    let n_kernels = usize::try_from(*n_kernels).unwrap_or(0);
    let taps = numbers.len().checked_div(n_kernels).unwrap_or(0);
    let adds_up_to_zero = |taps: &[f64]| {
        let size: f64 = taps.iter().map(|tap| tap.abs()).sum();
        size > 0.0 && taps.iter().sum::<f64>().abs() <= ROUNDED * size
    };
    (1..=MAX_TAPS).contains(&taps) && numbers.chunks(taps).all(adds_up_to_zero)
}

impl Numerics {
    /// Returns the product whose distance from 1 or from the identity matrix a node computes, if the product multiplies
    /// a value with itself or unit vectors: FᵀF − I, or 1 − cos.
    pub(crate) fn distance_from_one(&self, module: &Module, node: Node) -> Option<Node> {
        let (a, b) = (operand(module, node, 0)?, operand(module, node, 1)?);
        let (one, other) = if self.is_constant(module, a) { (a, b) } else { (b, a) };
        if !super::subtracts(module, node) || !self.is_constant(module, one) || !is_identity(module, one) {
            return None;
        }
        let (product, of) = factors(module, behind_scaling(module, other))?;
        let is_unit = |value: Value| {
            producer(module, value).is_some_and(|(node, kind)| match kind {
                OpKind::LpNormalization => true,
                OpKind::Div => operand(module, node, 1)
                    .is_some_and(|by| self.properties(module, by).has(Properties::NORMS)),
                _ => false,
            })
        };
        let matrices = kind(module, product).is_some_and(is_product);
        (matrices && (of[0] == of[1] || of.into_iter().all(is_unit))).then_some(product)
    }

    /// Returns the product w·x of a weighted mean, if a node divides it by the sum of the same weights w, whose range
    /// is unknown.
    pub(crate) fn weighted_mean(&self, module: &Module, node: Node) -> Option<Node> {
        let (a, b) = (operand(module, node, 0)?, operand(module, node, 1)?);
        let (product, of) = factors(module, behind_movement(module, a))?;
        let (sum, is_sum) = producer(module, behind_movement(module, b))?;
        let weights = behind_movement(module, operand(module, sum, 0)?);
        let unknown = self.properties(module, weights).has(Properties::UNKNOWN_RANGE);
        let matrices = kind(module, product).is_some_and(op::is_single_product);
        let divides = kind(module, node) == Some(OpKind::Div) && is_sum == OpKind::ReduceSum;
        (divides && matrices && unknown && of.contains(&weights)).then_some(product)
    }
}

/// True if a constant is 1 or −1, or the identity matrix: zeros and ones, as many ones as rows.
fn is_identity(module: &Module, value: Value) -> bool {
    let Some(data) = constant_of(module, flow::behind_casts(module, value)) else { return false };
    let numbers = data.small_floats(MAX_ELEMENTS).unwrap_or_default();
    let ones = numbers.iter().filter(|n| n.abs() == 1.0).count();
    let zeros = numbers.iter().filter(|&&n| n == 0.0).count();
    ones > 0 && ones + zeros == numbers.len() && (zeros == 0 || ones * ones == numbers.len())
}
