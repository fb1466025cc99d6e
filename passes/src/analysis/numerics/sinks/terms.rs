//! Sums, differences and quotients that may be much smaller than their terms.

use super::super::back::{behind_movement, producer};
use super::super::differences::{averages, subtracts_common, subtracts_parts, subtracts_translation};
use super::super::elements::is_difference_of_elements;
use super::super::facts::Numerics;
use super::super::interval::Interval;
use super::super::operators::{kind, scalar, subtracts};
use super::super::properties::Properties;
use super::super::sink::{Sink, Sinks, when};
use super::super::weights::MAX_WEIGHTS;
use crate::graph::flow;
use ampc_ir::convert::{Conversion, can_convert, convert, max_finite, min_normal, unit_roundoff};
use ampc_ir::op::{self, OpKind};
use ampc_ir::views::constant_of;
use ampc_ir::{DType, Module, Node, Value};

/// The factor from which a multiplication magnifies a difference, and the rounding errors of its terms with it: by 3 of
/// the 11 bits that f16 has. Smaller factors, such as the 2 of 2ab, are part of ordinary formulas and do not count.
const MAGNIFIED: f64 = 8.0;

/// The largest distance of the elements of a constant from 1 or −1 for which the difference of the constant and a value
/// near 1 cancels: 1 − p, and 1.0001 − p. The distance from 2, or from the bias of a norm, is not small.
const ABOUT_ONE: f64 = 0.125;

/// The maximal number of matrices between an input and the explained part of the input: the components, and back.
const MAX_FACTORS: usize = 2;

/// The maximal number of Pads, which put a border around an image, between a value and the operator that smooths it.
const MAX_PADS: usize = 1;

impl Numerics {
    /// The sinks that an operand reaches as a term of a sum that may cancel, as a dividend, or as a factor of a
    /// magnified product. `results` are the sinks of the result of the node.
    pub(super) fn cancels(
        &self,
        module: &Module,
        node: Node,
        operand: Value,
        results: Sinks,
        to: DType,
    ) -> Sink {
        let data = module.node(node);
        let (Some(a), Some(b)) = (data.operand(0), data.operand(1)) else { return Sink::NOTHING };
        match kind(module, node) {
            Some(OpKind::Div) if operand == a => self.of_quotient(module, a, b, to) | magnifies(module, node),
            Some(OpKind::Mul) => magnifies(module, node),
            Some(kind) if op::adds(kind) => {
                let other = if operand == a { b } else { a };
                self.of_sum(module, node, [a, b], results)
                    | when(
                        results.some.any(Sink::ZERO) && subtracts(module, node) && self.is_one(module, other),
                        Sink::ONE,
                    )
            }
            _ => Sink::NOTHING,
        }
    }

    /// True if a value is a constant whose numbers are all near 1, or near −1.
    pub(in crate::analysis::numerics) fn is_one(&self, module: &Module, value: Value) -> bool {
        let magnitudes = self.interval(module, value).filter(|_| self.is_constant(module, value));
        magnitudes
            .map(Interval::magnitudes)
            .is_some_and(|i| i.lo >= 1.0 - ABOUT_ONE && i.hi <= 1.0 + ABOUT_ONE)
    }

    /// The sinks of a dividend: a quotient by tiny numbers is large, and a cosine may be as small as its product.
    fn of_quotient(&self, module: &Module, dividend: Value, divisor: Value, to: DType) -> Sink {
        let is_cosine = self.properties(module, divisor).has(Properties::PRODUCTS_OF_NORMS)
            && self.properties(module, dividend).has(Properties::PRODUCT);
        when(vanishes(module, divisor, to), Sink::CANCELLATION) | when(is_cosine, Sink::ENLARGED)
    }

    /// The sinks of the terms of a sum or difference that may be much smaller than its terms.
    fn of_sum(&self, module: &Module, node: Node, terms: [Value; 2], results: Sinks) -> Sink {
        let mut sink = Sink::NOTHING;
        if self.is_distance(module, node) {
            sink |= Sink::DISTANCE | Sink::CANCELLATION;
        }
        if self.is_difference_of_squares(module, node) {
            sink |= Sink::CANCELLATION;
        }
        let computed = terms.iter().all(|&term| !self.is_constant(module, term));
        if subtracts(module, node) && computed {
            sink |= when(results.some.any(Sink::MAGNIFIED), Sink::ENLARGED | Sink::CANCELLATION);
            let of_elements = self.subtracts_elements(module, node)
                || subtracts_translation(module, node).is_some()
                || subtracts_parts(module, node);
            sink |= when(of_elements, Sink::ENLARGED | Sink::CANCELLATION);
            let smoothed = is_smoothed(module, terms[0], terms[1]);
            sink |= when(smoothed, Sink::DISTANCE | Sink::CANCELLATION);
        }
        sink | when(self.is_residual(module, node), Sink::RESIDUAL)
    }

    /// True if a node subtracts elements of a tensor from other elements of the tensor ([`is_difference_of_elements`]).
    /// The difference from the maximum is ignored if it is read as an exponent: it is part of a softmax, whose largest
    /// weights are exact.
    pub(crate) fn subtracts_elements(&self, module: &Module, node: Node) -> bool {
        let data = module.node(node);
        let is_exponent =
            data.result(0).is_some_and(|result| self.sinks(module, result).some.any(Sink::EXPONENT));
        let shift = data.operand(1).and_then(|shift| producer(module, behind_movement(module, shift)));
        let is_softmax = is_exponent && shift.is_some_and(|(_, kind)| kind == OpKind::ReduceMax);
        !is_softmax && is_difference_of_elements(module, node)
    }

    /// True if a node subtracts the result of arithmetic on inputs from an input, or the input from the result: the
    /// residual of a fit, an innovation, the distance from a plane. The arithmetic must contain a product of matrices,
    /// and no layer of a network.
    pub(crate) fn is_residual(&self, module: &Module, node: Node) -> bool {
        let data = module.node(node);
        let (Some(a), Some(b)) = (data.operand(0), data.operand(1)) else { return false };
        let made = Properties::ARITHMETIC | Properties::OF_PRODUCT;
        let is_made = |value: Value| {
            let properties = self.properties(module, value);
            properties.has(made) && !properties.has(Properties::OF_LAYER)
        };
        // Arithmetic of inputs without a product: an input, moved, scaled or averaged, or a difference of inputs.
        let is_given = |value: Value| {
            let properties = self.properties(module, value);
            properties.has(Properties::ARITHMETIC) && !properties.has(Properties::OF_PRODUCT)
        };
        let fits = is_given(a) && is_made(b) || is_made(a) && is_given(b);
        match kind(module, node) {
            Some(OpKind::Sub) => fits || self.leaves_rest(module, a, b),
            _ => false,
        }
    }

    /// True if the second value is the first value, an input, multiplied by at most [`MAX_FACTORS`] constant matrices:
    /// the part of the input that principal components explain.
    fn leaves_rest(&self, module: &Module, value: Value, explained: Value) -> bool {
        let value = flow::behind_casts(module, value);
        if !self.properties(module, value).has(Properties::RAW) {
            return false;
        }
        let mut explained = flow::behind_casts(module, explained);
        for _ in 0..MAX_FACTORS {
            let Some((node, _)) = module.producer(explained) else { return false };
            let data = module.node(node);
            let others = || data.formal_operands().iter().skip(1).flatten();
            if !kind(module, node).is_some_and(op::is_single_product)
                || !others().all(|&v| self.is_constant(module, v))
            {
                return false;
            }
            let Some(of) = data.operand(0) else { return false };
            explained = flow::behind_casts(module, of);
            if explained == value {
                return true;
            }
        }
        false
    }

    /// True if a node is E[x²] − E[x]² or another difference of squares of computed values.
    pub(crate) fn is_difference_of_squares(&self, module: &Module, node: Node) -> bool {
        let data = module.node(node);
        let squares =
            |i| data.operand(i).is_some_and(|v| self.properties(module, v).has(Properties::SQUARES));
        subtracts(module, node) && squares(0) && squares(1)
    }

    /// True if a node adds squared norms and a product: ‖a‖² + ‖b‖² − 2ab, or sums of bits instead of norms.
    pub(crate) fn is_distance(&self, module: &Module, node: Node) -> bool {
        let data = module.node(node);
        let properties =
            |i: usize| data.operand(i).map_or(Properties::NOTHING, |v| self.properties(module, v));
        let is_norm = |properties: Properties| properties.has(Properties::SUMMED_SQUARES);
        let is_product = |properties: Properties| {
            properties.has(Properties::PRODUCT) && !properties.has(Properties::SQUARES)
        };
        let adds = kind(module, node).is_some_and(op::adds);
        adds && (is_norm(properties(0)) && is_product(properties(1))
            || is_product(properties(0)) && is_norm(properties(1)))
            || subtracts_common(module, node)
    }
}

/// [`Sink::MAGNIFIED`] if a node multiplies by a large constant, or divides by a small one.
fn magnifies(module: &Module, node: Node) -> Sink {
    let data = module.node(node);
    let constant = |i: usize| data.operand(i).and_then(|value| scalar(module, value)).map(f64::abs);
    let is_large = match kind(module, node) {
        Some(OpKind::Mul) => constant(0).or(constant(1)).is_some_and(|by| by >= MAGNIFIED),
        Some(OpKind::Div) => constant(1).is_some_and(|by| by <= MAGNIFIED.recip()),
        _ => false,
    };
    when(is_large, Sink::MAGNIFIED)
}

/// True if the second value is the first value smoothed: its convolution, or the means of its windows. The difference
/// of the two is a high-pass filter.
fn is_smoothed(module: &Module, value: Value, smooth: Value) -> bool {
    let value = flow::behind_casts(module, value);
    let Some((node, _)) = module.producer(flow::behind_casts(module, smooth)) else { return false };
    let is_window = matches!(kind(module, node), Some(OpKind::Conv | OpKind::AveragePool));
    if !is_window && !averages(module, node) {
        return false;
    }
    let mut of = module.node(node).operand(0);
    for _ in 0..=MAX_PADS {
        let Some(behind) = of.map(|of| flow::behind_casts(module, of)) else { return false };
        if behind == value {
            return true;
        }
        let pad = module.producer(behind).filter(|&(pad, _)| kind(module, pad) == Some(OpKind::Pad));
        of = pad.and_then(|(pad, _)| module.node(pad).operand(0));
    }
    false
}

/// True if a constant divisor has elements that are not 0, but round to 0 or lose digits below the normal range.
fn vanishes(module: &Module, divisor: Value, to: DType) -> bool {
    let Some(data) = constant_of(module, flow::behind_casts(module, divisor)) else { return false };
    let numbers = data.small_floats(MAX_WEIGHTS).unwrap_or_default();
    worst_rounding_error(&numbers, to) > unit_roundoff(to).unwrap_or(1.0)
}

/// The largest error of rounding one of these numbers to a format, relative to the number. 0 and numbers that do not
/// fit count as exact.
pub(crate) fn worst_rounding_error(numbers: &[f64], to: DType) -> f64 {
    let (smallest, most) = (min_normal(to).unwrap_or(0.0), max_finite(to).unwrap_or(f64::INFINITY));
    let counts = |number: f64| number != 0.0 && number.abs() <= most && can_convert(DType::F64, to);
    let error = |&number: &f64| {
        // The error of a normal number is at most the unit roundoff.
        if !counts(number) || number.abs() >= smallest {
            return 0.0;
        }
        let (mut low, mut wide) = (Vec::new(), Vec::new());
        convert(DType::F64, Conversion { to, clamp: true }, &number.to_le_bytes(), &mut low);
        convert(to, Conversion { to: DType::F64, clamp: false }, &low, &mut wide);
        let stored = wide.as_chunks::<8>().0.first().map_or(number, |&bytes| f64::from_le_bytes(bytes));
        ((stored - number) / number).abs()
    };
    numbers.iter().map(error).fold(0.0, f64::max)
}
