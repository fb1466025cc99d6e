//! Formulas in which the small elements of a product count beside its large elements, as in a spectrum.
//!
//! A product in 16 bits is off by the same amount at all its elements: an element that is a thousandth of the others has
//! hardly a correct digit. That is no harm to a network, whose next layer adds the elements up. Logarithms, small powers
//! and divisions of each element by its own size bring all elements to the same size, errors included.
//!
//! ```text
//! %re = MatMul(%frames, %cos)
//! %im = MatMul(%frames, %sin)
//! %pw = Add(re², im²)
//! %pc = Pow(%pw, 0.15)         from 1e-6 to 1 are from 0.13 to 1
//! %ph = Div(%re, Sqrt(%pw))    the cosine of the phase: of size 1 in every band
//! %an = Atan(Div(%im, %re))    the phase
//! %cf = Div(%pw, mean of %pw)  each band beside its neighbours
//! ```

use super::back::{behind_epsilon, behind_movement, operand, producer};
use super::differences::averaged;
use super::facts::Numerics;
use super::operators::{is_product, kind, scalar};
use super::properties::Properties;
use super::squares::squares;
use super::weights::Weights;
use crate::graph::flow::{self, Reader};
use ampc_ir::op::OpKind;
use ampc_ir::{Module, Node, Value};

/// A power below this exponent compresses the range of a square more than Sqrt, which gives the magnitude.
const SMALL_POWER: f64 = 0.5;

/// The least root mean square of the elements of a transform, none of which is above 1: 0.7 for sines and cosines, less
/// under a window. Trained weights are smaller, or not bounded.
const MIN_SIZE: f64 = 0.3;

/// The maximal number of operators that add up the squares in a magnitude.
const MAX_TERMS: usize = 64;

/// The least number of terms of a transform.
const MIN_TERMS: usize = 16;

impl Numerics {
    /// True if a node divides each element of an operand by its own magnitude or by a local mean, or computes the tangent
    /// of an angle: small elements then count as much as large ones, in dividend and divisor.
    pub(crate) fn normalizes_elements(&self, module: &Module, node: Node, slot: usize) -> bool {
        match (kind(module, node), operand(module, node, 0), operand(module, node, 1)) {
            (Some(OpKind::Div), Some(a), Some(b)) if slot < 2 => {
                is_own_magnitude(module, a, b)
                    || is_before_atan(module, node)
                    || self.is_own_mean(module, a, b)
            }
            _ => false,
        }
    }

    /// True if the first value is a power spectrum of an input, and the second value its means or sums; either may be
    /// the means of the same spectrum over other windows.
    fn is_own_mean(&self, module: &Module, part: Value, mean: Value) -> bool {
        let mean = averaged(module, behind_epsilon(module, mean)).map(|(_, of)| of);
        let part_of = averaged(module, part).map(|(_, of)| of);
        let is_own = mean.is_some() && (mean == Some(behind_movement(module, part)) || mean == part_of);
        is_own && self.properties(module, part).has(Properties::SQUARES | Properties::ARITHMETIC)
    }
}

/// True if a node is a power of its first operand by a constant below [`SMALL_POWER`].
pub(super) fn is_small_power(module: &Module, node: Node) -> bool {
    let exponent = operand(module, node, 1).and_then(|by| scalar(module, by));
    kind(module, node) == Some(OpKind::Pow) && exponent.is_some_and(|by| by > 0.0 && by < SMALL_POWER)
}

/// True if a node is a square root, or a power of its first operand by a constant below 1.
pub(super) fn is_root(module: &Module, node: Node) -> bool {
    let exponent = operand(module, node, 1).and_then(|by| scalar(module, by));
    match kind(module, node) {
        Some(OpKind::Sqrt) => true,
        Some(OpKind::Pow) => exponent.is_some_and(|by| by > 0.0 && by < 1.0),
        _ => false,
    }
}

/// True if the second value is the magnitude of complex numbers, and the first value is a part of them: a / √(a² + b²).
fn is_own_magnitude(module: &Module, part: Value, magnitude: Value) -> bool {
    let Some((root, OpKind::Sqrt)) = producer(module, behind_movement(module, magnitude)) else {
        return false;
    };
    let part = behind_movement(module, part);
    let mut work: Vec<Value> = operand(module, root, 0).into_iter().collect();
    let (mut n_squares, mut is_part) = (0, false);
    for _ in 0..MAX_TERMS {
        let Some(value) = work.pop() else { break };
        let Some((node, kind)) = producer(module, behind_movement(module, value)) else { continue };
        if squares(module, node) && !is_product(kind) && kind != OpKind::ReduceSumSquare {
            n_squares += 1;
            is_part |= operand(module, node, 0).map(|of| behind_movement(module, of)) == Some(part);
        } else if matches!(kind, OpKind::Add | OpKind::Max | OpKind::Clip) {
            work.extend(module.node(node).formal_operands().iter().flatten());
        }
    }
    n_squares > 1 && is_part
}

/// True if Atan reads the result of a node: the node computes the tangent of an angle.
fn is_before_atan(module: &Module, node: Node) -> bool {
    let readers = module.node(node).result(0).map(|result| flow::readers_beyond_casts(module, result));
    let mut readers = readers.into_iter().flatten().filter_map(Reader::operand);
    readers.any(|(reader, _)| kind(module, reader) == Some(OpKind::Atan))
}

/// True if a node divides parts of one product: the lags of a correlation by its first lag.
pub(crate) fn divides_parts(module: &Module, node: Node) -> bool {
    let (Some(a), Some(b)) = (operand(module, node, 0), operand(module, node, 1)) else { return false };
    let whole = behind_movement(module, a);
    let part = |value: Value| flow::behind_casts(module, value);
    kind(module, node) == Some(OpKind::Div)
        && producer(module, whole).is_some_and(|(_, kind)| is_product(kind))
        && whole == behind_movement(module, b)
        && part(a) != part(b)
        && part(b) != whole
}

/// True if weights are those of a transform such as Fourier's.
pub(super) fn is_transform(weights: &Weights) -> bool {
    let numbers = &weights.numbers;
    #[expect(clippy::cast_precision_loss, reason = "at most MAX_WEIGHTS")]
    let size = (numbers.iter().map(|number| number * number).sum::<f64>() / numbers.len() as f64).sqrt();
    weights.n_terms() >= MIN_TERMS && size >= MIN_SIZE && numbers.iter().all(|number| number.abs() <= 1.001)
}
