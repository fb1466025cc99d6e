//! Constants that are added to values and removed again: the digits that they displaced are lost.
//!
//! ```text
//! %k = Add(%h, 288.15)     a temperature in kelvin: f16 numbers near 288 have a spacing of 1/4
//! %n = Clip(%k, 200, 340)
//! %c = Sub(%n, 273.15)     in degrees Celsius: of size 15, and off by 1/8
//! ```
//!
//! A constant is an offset if it is much larger than the values that it is added to. Sub, the statistics of a
//! BatchNormalization, and means remove it.

use super::back::{MAX_STEPS, behind_movement, operand, producer};
use super::differences::subtracts_mean;
use super::facts::Numerics;
use super::interval::Interval;
use super::operators::{is_product, kind, scalar, subtracts};
use super::properties::Properties;
use super::weights::{MAX_WEIGHTS, weights};
use crate::graph::flow::{self, Reader};
use ampc_ir::op::{self, OpKind};
use ampc_ir::views::linear::GemmView;
use ampc_ir::views::{NodeView, constant_of};
use ampc_ir::{Module, Node, Value};

/// The least ratio of an offset and the values that it is added to: it displaces 3 bits of their digits.
const MIN_RATIO: f64 = 8.0;

/// The largest ratio of the mean and the deviation of a channel that is not dead.
const MAX_RATIO: f64 = 1000.0;

/// The magnitude of values about whose scale nothing is known: activations are of the order of 1.
const UNKNOWN_SCALE: f64 = 2.0;

/// The share of an offset that is left after its removal, at most.
const LEFT: f64 = 0.5;

/// The share of an offset that a product leaves in its result, at most, relative to the norm of its weights. Random
/// weights leave more in nine of ten elements.
const LEFT_BY_WEIGHTS: f64 = 0.125;

/// A sum of a value and a constant.
struct Added {
    /// The computed term.
    to: Value,
    /// True if the computed term is subtracted from the constant.
    negates: bool,
    /// The midpoint of the constant, with its sign in the sum.
    number: f64,
}

impl Numerics {
    /// True if a node removes an offset from an operand.
    pub(crate) fn removes_offset(&self, module: &Module, node: Node, slot: usize) -> bool {
        let Some(value) = operand(module, node, slot).filter(|&value| !self.is_constant(module, value))
        else {
            return false;
        };
        match kind(module, node) {
            Some(OpKind::Sub) if subtracts_mean(module, node).is_some() => {
                operand(module, node, 0).is_some_and(|of| self.offset(module, of).is_some())
            }
            Some(OpKind::Add | OpKind::Sub) => {
                let added = self.added(module, node).filter(|added| added.to == value);
                let of = added.and_then(|added| Some((self.offset(module, value)?, added)));
                let is_left = |(offset, added): (f64, Added)| {
                    let left = if added.negates { added.number - offset } else { added.number + offset };
                    left.abs() <= LEFT * offset.abs()
                };
                of.is_some_and(is_left) || self.is_less_reference(module, node, value)
            }
            Some(OpKind::BatchNormalization) => slot == 0 && has_offset_statistics(module, node),
            Some(kind) if is_product(kind) => self.product_removes_offset(module, node, slot),
            Some(kind) if op::subtracts_mean(kind, slot) => self.offset(module, value).is_some(),
            _ => false,
        }
    }

    /// True if a product with constant weights, and the bias that is added to its result, leave at most [`LEFT_BY_WEIGHTS`]
    /// of an offset of an operand in each element of the result: differences of neighbours, and weights into which a
    /// standardisation was folded.
    fn product_removes_offset(&self, module: &Module, node: Node, slot: usize) -> bool {
        let value = operand(module, node, slot);
        let Some(offset) = value.and_then(|value| self.offset(module, value)) else { return false };
        let Some(weights) = weights(module, node) else { return false };
        let n = weights.n_lines();
        let bias = if slot == 0 { bias_of(module, node, n) } else { vec![0.0; n] };
        let leaves = |(i, bias): (usize, f64)| {
            let left = offset * weights.line(i).sum::<f64>() + bias;
            let size = offset * weights.line(i).map(|weight| weight * weight).sum::<f64>().sqrt();
            left.abs() <= LEFT_BY_WEIGHTS * size.abs()
        };
        weights.of == slot && n > 1 && bias.into_iter().enumerate().all(leaves)
    }

    /// True if a sum subtracts large constants from a mean of large constants, by weights that add up to 1: the value of
    /// an option less its value today.
    fn is_less_reference(&self, module: &Module, node: Node, value: Value) -> bool {
        let large = |of: Value| {
            let constant = Interval::of_constant(module, flow::behind_casts(module, of));
            constant.is_some_and(|of| of.magnitude() >= MIN_RATIO * UNKNOWN_SCALE)
        };
        let references = module.node(node).formal_operands().iter().flatten();
        let mean = producer(module, behind_movement(module, value)).filter(|&(_, kind)| is_product(kind));
        mean.is_some_and(|(product, _)| {
            let factors = || module.node(product).formal_operands().iter().flatten().copied();
            factors().any(large)
                && factors().any(|of| self.properties(module, of).has(Properties::DISTRIBUTION))
        }) && references.copied().any(large)
            && subtracts(module, node)
    }

    /// The offset of a value: the midpoint of the constant that was added to it, scaled as the value was.
    fn offset(&self, module: &Module, value: Value) -> Option<f64> {
        let (mut value, mut factor) = (value, 1.0);
        for _ in 0..MAX_STEPS {
            value = behind_movement(module, value);
            let (node, kind) = producer(module, value)?;
            let (a, b) = (operand(module, node, 0)?, operand(module, node, 1));
            let number = |of: Option<Value>| of.and_then(|of| scalar(module, of));
            match kind {
                OpKind::Mul | OpKind::Div if number(b).is_some() => {
                    let by = number(b)?;
                    factor *= if kind == OpKind::Mul { by } else { by.recip() };
                    value = a;
                }
                OpKind::Mul if number(Some(a)).is_some() => (value, factor) = (b?, factor * number(Some(a))?),
                OpKind::Clip | OpKind::Relu => value = a,
                OpKind::Max | OpKind::Min => {
                    value = [Some(a), b].into_iter().flatten().find(|&of| !self.is_constant(module, of))?;
                }
                OpKind::Add | OpKind::Sub => {
                    let Added { to, number, .. } = self.added(module, node)?;
                    // Small integers are exact with an offset.
                    if self.properties(module, to).has(Properties::INTEGERS) {
                        return None;
                    }
                    let least = MIN_RATIO * self.scale(module, to);
                    return (number.abs() >= least).then_some(number * factor);
                }
                OpKind::Conv | OpKind::ConvTranspose | OpKind::Gemm => {
                    let by = one_sign(module, operand(module, node, 2)?)?;
                    return (by.abs() >= MIN_RATIO * UNKNOWN_SCALE).then_some(by * factor);
                }
                _ => return None,
            }
        }
        None
    }

    /// The constant term of a sum or difference.
    fn added(&self, module: &Module, node: Node) -> Option<Added> {
        let (a, b) = (operand(module, node, 0)?, operand(module, node, 1)?);
        let is_difference = kind(module, node) == Some(OpKind::Sub);
        let (to, by) = if self.is_constant(module, b) { (a, b) } else { (b, a) };
        let number = one_sign(module, by).filter(|_| !self.is_constant(module, to))?;
        let negates = is_difference && to == b;
        Some(Added { to, negates, number: if is_difference && to == a { -number } else { number } })
    }

    /// The size of the elements of a value: its bounds, or the constant by which it was scaled.
    fn scale(&self, module: &Module, value: Value) -> f64 {
        let bounded = self.interval(module, value).map(Interval::magnitude).filter(|size| size.is_finite());
        let scaled = || {
            let (node, kind) = producer(module, behind_movement(module, value))?;
            let (a, b) = (operand(module, node, 0)?, operand(module, node, 1)?);
            let size = |of: Value| {
                Interval::of_constant(module, flow::behind_casts(module, of)).map(Interval::magnitude)
            };
            match kind {
                OpKind::Mul => size(b).or_else(|| size(a)),
                OpKind::Div => size(b).map(f64::recip),
                _ => None,
            }
        };
        bounded.or_else(scaled).unwrap_or(UNKNOWN_SCALE)
    }
}

/// The bias that is added to the last axis, or to the channels, of the result of a product: its third operand, or the
/// constant of the Add that alone reads the result; zeros without one.
fn bias_of(module: &Module, node: Node, n: usize) -> Vec<f64> {
    let numbers = |value: Value, scale: f64| {
        let numbers = constant_of(module, flow::behind_casts(module, value))?.small_floats(MAX_WEIGHTS)?;
        let numbers = if let [number] = numbers[..] { vec![number; n] } else { numbers };
        Some(numbers.into_iter().map(|number| scale * number).collect::<Vec<f64>>())
    };
    let third = || {
        let scale = match kind(module, node)? {
            OpKind::Gemm => f64::from(GemmView::read(&NodeView::new(module, node)?).beta),
            OpKind::Conv | OpKind::ConvTranspose => 1.0,
            _ => return None,
        };
        numbers(operand(module, node, 2)?, scale)
    };
    let added = || {
        let readers = flow::readers_beyond_casts(module, module.node(node).result(0)?);
        let [(reader, slot)] = readers.into_iter().map(Reader::operand).collect::<Option<Vec<_>>>()?[..]
        else {
            return None;
        };
        let other = operand(module, reader, 1 - slot.min(1) as usize)?;
        numbers(other, 1.0).filter(|_| kind(module, reader) == Some(OpKind::Add))
    };
    let found = third().or_else(added).filter(|numbers| numbers.len() == n);
    found.unwrap_or_else(|| vec![0.0; n])
}

/// The midpoint of a constant whose elements have the same sign and differ by at most a factor of 2.
fn one_sign(module: &Module, value: Value) -> Option<f64> {
    let interval = Interval::of_constant(module, flow::behind_casts(module, value))?;
    let sizes = interval.magnitudes();
    (sizes.lo > 0.0 && sizes.hi <= 2.0 * sizes.lo).then_some(f64::midpoint(interval.lo, interval.hi))
}

/// True if the means of a BatchNormalization are much larger than its deviations in half of the channels or more.
fn has_offset_statistics(module: &Module, node: Node) -> bool {
    let numbers = |i: usize| {
        let constant = constant_of(module, flow::behind_casts(module, operand(module, node, i)?))?;
        constant.small_floats(MAX_WEIGHTS)
    };
    let (Some(means), Some(variances), Some(view)) = (numbers(3), numbers(4), NodeView::new(module, node))
    else {
        return false;
    };
    let epsilon = f64::from(view.float("epsilon").unwrap_or(0.0));
    // A channel with hardly any deviation is dead: its scale is 0 or noise.
    let channels = || {
        let deviations = variances.iter().map(|variance| (variance + epsilon).sqrt());
        means.iter().map(|mean| mean.abs()).zip(deviations).filter(|(mean, by)| *mean <= MAX_RATIO * by)
    };
    let far = channels().filter(|(mean, deviation)| *mean >= MIN_RATIO * deviation).count();
    far > 0 && 2 * far >= channels().count()
}
