//! Formulas whose result may be much smaller than their terms, recognised by the computation of their terms.
//!
//! Each function examines one node and goes back a few steps from it, through movement and scaling. For example,
//! E[xy] − E[x]·E[y] is a Sub of an average of `Mul(x, y)` and of a `Mul` of averages of `x` and of `y`. The averages may be
//! means, pools, windows by Conv, or products with constants.

use super::back::{behind_movement, behind_scaling, operand, producer};
use super::facts::Numerics;
use super::operators::{is_constant, is_product, kind, subtracts};
use super::properties::Properties;
use super::squares::{squares, sums};
use super::weights::{Weights, weights};
use crate::graph::flow::{self, Reader};
use ampc_ir::op::{self, OpKind};
use ampc_ir::views::linear::GemmView;
use ampc_ir::views::{NodeView, constant_of};
use ampc_ir::{Module, Node, Value};

/// The number of squares in the largest signed sum of squares.
const MAX_SQUARES: usize = 16;

/// The number of elements of the largest constant that is examined for averages and identities.
const MAX_ELEMENTS: u64 = 1 << 16;

/// The largest sum of taps that are meant to add up to 0, relative to the sum of their magnitudes.
const ROUNDED: f64 = 1e-5;

/// The two factors of an elementwise product or a product of matrices, if neither factor is a constant.
fn factors(module: &Module, value: Value) -> Option<(Node, [Value; 2])> {
    let (node, kind) = producer(module, value)?;
    let a = operand(module, node, 0)?;
    let b = if squares(module, node) { a } else { operand(module, node, 1)? };
    let multiplies = kind == OpKind::Mul || kind == OpKind::Pow || op::is_single_product(kind);
    let computed = !is_constant(module, a) && !is_constant(module, b);
    (multiplies && computed).then(|| (node, [behind_movement(module, a), behind_movement(module, b)]))
}

/// The node that averages (a mean, a pool, a sum by Einsum, or a product with a constant) and the value that it averages.
pub(super) fn averaged(module: &Module, value: Value) -> Option<(Node, Value)> {
    let (node, kind) = producer(module, behind_scaling(module, value))?;
    let (a, b) = (operand(module, node, 0)?, operand(module, node, 1));
    let of = match kind {
        OpKind::ReduceMean | OpKind::ReduceSum | OpKind::AveragePool | OpKind::GlobalAveragePool => a,
        OpKind::Einsum if sums(module, node) => a,
        _ if op::is_single_product(kind) && is_constant(module, b?) => a,
        _ if op::is_single_product(kind) && is_constant(module, a) => b?,
        _ => return None,
    };
    Some((node, behind_scaling(module, of)))
}

/// The nodes of E[xy] − E[x]·E[y], with the difference last: the averages and the products on both sides.
pub(crate) fn covariance(module: &Module, node: Node) -> Option<Vec<Node>> {
    if kind(module, node) == Some(OpKind::Gemm) {
        return covariance_by_gemm(module, node);
    }
    let (a, b) = (operand(module, node, 0)?, operand(module, node, 1)?);
    let orders = [(a, b), (b, a)];
    (kind(module, node) == Some(OpKind::Sub))
        .then(|| orders.into_iter().find_map(|(joint, apart)| sides_of_covariance(module, joint, apart)))?
        .map(|mut nodes| {
            nodes.push(node);
            nodes
        })
}

/// The nodes of xᵀx/n − mᵀm, computed by one Gemm: the product of the means, and the Gemm.
fn covariance_by_gemm(module: &Module, node: Node) -> Option<Vec<Node>> {
    let gemm = GemmView::read(&NodeView::new(module, node)?);
    let of = |i: usize| Some(behind_movement(module, operand(module, node, i)?));
    let (product, means) = factors(module, behind_scaling(module, operand(module, node, 2)?))?;
    let is_gram = of(0)? == of(1)? && means[0] == means[1] && !is_constant(module, of(0)?);
    (is_gram && gemm.alpha * gemm.beta < 0.0).then(|| vec![product, node])
}

/// The products Σwx² and Σwx of a variance by computed weights w and constants x: the first constant is the square of the
/// second.
fn moments_by_weights(module: &Module, second: Value, means: [Value; 2]) -> Option<[Node; 2]> {
    let moment = |value: Value| {
        let (node, _) = producer(module, behind_scaling(module, value))
            .filter(|&(_, kind)| op::is_single_product(kind))?;
        let constant = weights(module, node)?;
        let computed = behind_movement(module, operand(module, node, constant.of)?);
        Some((node, computed, constant.numbers))
    };
    let (second, by, squares) = moment(second)?;
    let (first, same, numbers) = moment(means[0]).filter(|_| means[0] == means[1])?;
    let near = |(square, number): (&f64, &f64)| (square - number * number).abs() <= ROUNDED * square.abs();
    let are_squares = squares.len() == numbers.len() && squares.iter().zip(&numbers).all(near);
    (by == same && are_squares).then_some([first, second])
}

/// The nodes of E[xy] − E[x]·E[y] but for the difference, from the mean of products and the product of means.
fn sides_of_covariance(module: &Module, joint: Value, apart: Value) -> Option<Vec<Node>> {
    let (product, means) = factors(module, behind_scaling(module, apart))?;
    let mut nodes = vec![product];
    let mut of = Vec::new();
    if let Some(moments) = moments_by_weights(module, joint, means) {
        nodes.extend(moments);
        return Some(nodes);
    }
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

/// True if a node subtracts a product of elements of a value from other elements of the value, which a product with
/// constants makes: E[xy] − E[x]·E[y], with all three in one tensor of moments.
pub(crate) fn subtracts_parts(module: &Module, node: Node) -> bool {
    let (Some(joint), Some(apart)) = (operand(module, node, 0), operand(module, node, 1)) else {
        return false;
    };
    let of = behind_movement(module, joint);
    let makes_moments = producer(module, of).is_some_and(|(product, _)| weights(module, product).is_some());
    kind(module, node) == Some(OpKind::Sub)
        && makes_moments
        && factors(module, apart).is_some_and(|(_, means)| means == [of, of])
}

/// True if weights have one magnitude and both signs, as those of E² − p².
pub(super) fn have_both_signs(weights: &Weights) -> bool {
    let mut sizes = weights.numbers.iter().filter(|&&weight| weight != 0.0).map(|weight| weight.abs());
    let first = sizes.next();
    let has = |sign: f64| weights.numbers.iter().any(|weight| sign * weight > 0.0);
    weights.n_terms() <= MAX_SQUARES
        && first.is_some_and(|first| sizes.all(|size| size == first))
        && has(1.0)
        && has(-1.0)
}

/// True if a value consists of squares, moved or not.
pub(super) fn are_squares(module: &Module, value: Value) -> bool {
    producer(module, behind_movement(module, value)).is_some_and(|(node, _)| squares(module, node))
}

/// True if a node subtracts a multiple of the product of two values from the sums of both: |a| + |b| − 2ab, which is the
/// number of different bits of a and b.
pub(crate) fn subtracts_common(module: &Module, node: Node) -> bool {
    let (Some(a), Some(b)) = (operand(module, node, 0), operand(module, node, 1)) else { return false };
    let product =
        producer(module, behind_scaling(module, b)).filter(|&(_, kind)| op::is_single_product(kind));
    let Some((product, _)) = product.filter(|_| kind(module, node) == Some(OpKind::Sub)) else {
        return false;
    };
    let factors = [0, 1].map(|i| operand(module, product, i).map(|value| behind_movement(module, value)));
    let Some((sum, OpKind::Add)) = producer(module, behind_movement(module, a)) else { return false };
    let is_sum = |&term: &Value| {
        let reduction = producer(module, behind_movement(module, term));
        let of = reduction
            .filter(|&(_, kind)| kind == OpKind::ReduceSum)
            .and_then(|(node, _)| operand(module, node, 0).map(|value| behind_movement(module, value)));
        of.is_some() && factors.contains(&of)
    };
    // The sums of a constant factor are often constants.
    let terms = || module.node(sum).formal_operands().iter().flatten();
    let is_known = |term: &Value| is_constant(module, flow::behind_casts(module, *term));
    terms().any(is_sum) && terms().all(|term| is_sum(term) || is_known(term))
}

/// The node that computes the mean, if a node subtracts the mean of a value from the value.
pub(crate) fn subtracts_mean(module: &Module, node: Node) -> Option<Node> {
    let (a, b) = (operand(module, node, 0)?, operand(module, node, 1)?);
    let (average, of) = averaged(module, b).filter(|_| kind(module, node) == Some(OpKind::Sub))?;
    let is_whole = matches!(
        kind(module, average)?,
        OpKind::ReduceMean | OpKind::ReduceSum | OpKind::GlobalAveragePool | OpKind::Einsum
    );
    (is_whole && behind_scaling(module, a) == of).then_some(average)
}

/// True if a node subtracts the mean of an operand, or computes that mean for a difference from the same operand.
///
/// ```text
/// %m = ReduceMean(%x)             true of %x, since %d subtracts %m
/// %d = Sub(%x, %m)                true of both operands
/// %n = LayerNormalization(%x)     true of %x
/// ```
pub(crate) fn removes_mean(module: &Module, node: Node, slot: usize) -> bool {
    let kind = kind(module, node);
    let is_norm = kind.is_some_and(|kind| op::subtracts_mean(kind, slot));
    let is_subtracted = || {
        let value = operand(module, node, slot).filter(|_| slot == 0 && sums(module, node));
        let readers = value.map(|value| flow::readers_beyond_casts(module, value)).unwrap_or_default();
        let mut readers = readers.into_iter().filter_map(Reader::operand);
        readers.any(|(reader, _)| subtracts_mean(module, reader) == Some(node))
    };
    is_norm || slot < 2 && subtracts_mean(module, node).is_some() || is_subtracted()
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

/// The product, if a node subtracts a value, moved or not, from a product of weights and sums with the same value: means
/// of points of a body, less the translation of the body.
///
/// ```text
/// %g = Add(%p, %t)         points, far from the origin
/// %m = MatMul(%s, %g)      means of points, by the weights of a Softmax
/// %l = Sub(%m, %t)         near the origin
/// ```
pub(crate) fn subtracts_translation(module: &Module, node: Node) -> Option<Node> {
    let (a, b) = (operand(module, node, 0)?, operand(module, node, 1)?);
    let (product, of) = producer(module, behind_movement(module, a))
        .filter(|&(_, of)| kind(module, node) == Some(OpKind::Sub) && op::is_single_product(of))?;
    let translation = behind_movement(module, b);
    let n = if of == OpKind::Einsum { module.node(product).n_formal() } else { 2 };
    let is_moved = |value: Value| {
        let sum = producer(module, behind_movement(module, value)).filter(|&(_, kind)| op::adds(kind));
        sum.is_some_and(|(sum, _)| {
            let mut terms = module.node(sum).formal_operands().iter().flatten();
            terms.any(|&term| behind_movement(module, term) == translation)
        })
    };
    (0..n).filter_map(|i| operand(module, product, i)).any(is_moved).then_some(product)
}

impl Numerics {
    /// Returns the product whose distance from 1 or from the identity matrix a node computes, if the product multiplies
    /// a value with itself or unit vectors: FᵀF − I, or 1 − cos.
    pub(crate) fn distance_from_one(&self, module: &Module, node: Node) -> Option<Node> {
        let (a, b) = (operand(module, node, 0)?, operand(module, node, 1)?);
        let (one, other) = if self.is_constant(module, a) { (a, b) } else { (b, a) };
        if !subtracts(module, node) || !self.is_constant(module, one) || !is_identity(module, one) {
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
