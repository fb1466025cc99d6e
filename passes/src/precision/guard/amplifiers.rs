//! Guards on amplified errors: rounding on the way to an amplifier, and the formulas that cause such errors.
//!
//! Each guard asks [`numerics`](crate::analysis::numerics) for the properties of the results of a variable and for the
//! sinks that the results reach. The path from the last product to the sink stays fp32, as far as it consists of
//! `infer` and `clear` operators. A product itself stays fp32 only if its own rounding matters, because a product in
//! fp32 forgoes most of the time that the format saves. For example:
//!
//! ```text
//! %h = MatMul(%x, %w)          low, unless every use of it reaches the angle
//! %a = Add(%h, %bias)          fp32, by the guard `position`: on the way to the angle of Sin
//! %y = Sin(%a)
//! ```

use super::Cx;
use crate::analysis::cost::{Extents, Sizes, amount};
use crate::analysis::numerics::{
    FEW_TERMS, Properties, Sink, Sinks, covariance, is_gram, squares, subtracts, subtracts_parts,
    subtracts_translation, terms,
};
use crate::graph::flow::{self, Var};
use crate::pass::PassError;
use ampc_ir::op::{self, Class, OpKind};
use ampc_ir::views::NodeView;
use ampc_ir::{Node, Value};

/// The largest magnitude of ordinary activations and scores. f16 rounds numbers up to this magnitude by 2^-8 at most,
/// bf16 by 2^-5. A larger operand displaces those digits from the operand that it is added to.
pub(super) const SMALL: f64 = 16.0;

/// The factor between magnitudes from which a constant is a table of distances, whose digits matter. A constant of
/// nearly equal magnitudes is a mask, whose digits do not matter.
const SPREAD: f32 = 2.0;

/// The slot of the mask of Attention.
const MASK: u32 = 3;

impl Cx<'_> {
    /// The properties of the results of a variable.
    pub(super) fn properties(&self, var: Var) -> Properties {
        let results = flow::results_of(self.module, var);
        results.fold(Properties::NOTHING, |properties, (_, value)| {
            properties | self.numerics.properties(self.module, value)
        })
    }

    /// The sinks that the results of a variable reach, as far as they are read.
    pub(super) fn sinks(&self, var: Var) -> Sinks {
        let read = flow::results_of(self.module, var).filter(|&(_, value)| {
            self.module.uses(value).next().is_some() || self.module.output_slots(value).next().is_some()
        });
        read.map(|(_, value)| self.numerics.sinks(self.module, value)).reduce(Sinks::and).unwrap_or_default()
    }

    fn class(&self, var: Var) -> Option<Class> {
        flow::decision(self.module, var).map(|decision| decision.class)
    }

    /// True if a variable belongs to an operator that is a single product.
    pub(super) fn is_product(&self, var: Var) -> bool {
        self.class(var) == Some(Class::Allow) && self.kind(var.node).is_some_and(op::is_single_product)
    }

    /// True if a variable belongs to an operator between products.
    pub(super) fn is_between(&self, var: Var) -> bool {
        matches!(self.class(var), Some(Class::Infer | Class::Clear))
    }

    /// True if the range of a value is unknown, and no interval shows that the value is small.
    fn is_unknown(&self, value: Value) -> bool {
        let small = self.numerics.interval(self.module, value).is_some_and(|i| i.magnitude() <= SMALL);
        self.numerics.properties(self.module, value).has(Properties::UNKNOWN_RANGE) && !small
    }

    /// True if a constant has large numbers of several magnitudes: a table of distances, not a mask ([`SPREAD`]).
    fn is_spread(&mut self, value: Value) -> Result<bool, PassError> {
        let stats = self.known(value)?.map(|known| known.stats);
        Ok(stats
            .is_some_and(|stats| f64::from(stats.max_abs) > SMALL && stats.min_abs < stats.max_abs / SPREAD))
    }

    pub(super) fn operand(&self, node: Node, slot: usize) -> Option<Value> {
        self.module.node(node).operand(slot)
    }
}

/// The description of the amplifier that the sinks contain.
pub(super) fn end(sinks: Sinks) -> &'static str {
    sinks.amplifier().map_or("what amplifies errors", |row| row.why)
}

/// Denies sums that reach an exponent and have an operand of unknown range (a mask that is an input, a slope times a
/// position), or a constant that is a table of large numbers.
///
/// Such an operand may have any size, and a number added to it keeps only the remaining digits: 3.2 + 1000 is 1003 in
/// f16. Besides, a mask of −1e9 is −∞ in f16, and the Softmax of a row of −∞ is NaN.
pub(super) fn scores(cx: &mut Cx<'_>) -> Result<(), PassError> {
    for var in cx.free_vars() {
        let sinks = cx.sinks(var);
        let unknown = match cx.kind(var.node) {
            Some(kind) if op::adds(kind) && sinks.some.any(Sink::EXPONENT) => {
                let operands: Vec<Value> =
                    flow::operands_of(cx.module, var).map(|(_, value)| value).collect();
                let mut unknown = None;
                for value in operands {
                    // The sum 1 − m of an integer m has a known range, whatever the range of m is.
                    let stays = cx.properties(var).has(Properties::UNKNOWN_RANGE);
                    if stays && cx.is_unknown(value) || cx.is_spread(value)? {
                        unknown = unknown.or(Some(value));
                    }
                }
                unknown
            }
            // Attention adds the mask internally.
            Some(OpKind::Attention) if flow::reader_var(cx.module, var.node, MASK) == Some(var) => {
                cx.operand(var.node, MASK as usize).filter(|&mask| cx.is_unknown(mask))
            }
            _ => None,
        };
        if let Some(value) = unknown {
            let name = cx.name(value);
            let to = sinks.amplifier().map_or("the scores of Attention", |row| row.why);
            cx.deny(var, || format!("adds `{name}`, which may be large, on the way to {to}"));
        }
    }
    Ok(())
}

/// Denies variables whose values reach an angle or a coordinate:
/// - all operators after the last product;
/// - the last product itself, if all its uses reach the angle or coordinate, or if it multiplies a few numbers of
///   unknown range;
/// - operators before that product, as far as the coordinate is a linear function of their results: for example control
///   points, which a product of few terms combines to points of a spline.
///
/// A coordinate of 300 is off by up to 1/8 in f16 and by up to 1 in bf16. A product of sines and cosines is a layer of
/// a sinusoidal network, not a coordinate, and may be low.
pub(super) fn position(cx: &mut Cx<'_>) -> Result<(), PassError> {
    for var in cx.free_vars() {
        let sinks = cx.sinks(var);
        if cx.is_between(var) && sinks.some.any(Sink::POSITION | Sink::PART_OF_POSITION) {
            cx.deny(var, || format!("on the way to {}", end(sinks)));
        }
        if !cx.is_product(var) || cx.properties(var).has(Properties::SINUSOIDS) {
            continue;
        }
        if sinks.some.any(Sink::POSITION) {
            if sinks.all.any(Sink::POSITION) || multiplies_coordinates(cx, var) {
                cx.deny(var, || format!("the last product before {}", end(sinks)));
            }
        } else if sinks.all.any(Sink::PART_OF_POSITION) {
            cx.deny(var, || format!("a product that is part of {}", end(sinks)));
        }
    }
    Ok(())
}

/// True if a product multiplies a few numbers, and their range is unknown: a time, or coordinates.
fn multiplies_coordinates(cx: &Cx<'_>, var: Var) -> bool {
    let unknown = flow::operands_of(cx.module, var).any(|(_, value)| cx.is_unknown(value));
    let view = NodeView::new(cx.module, var.node).filter(|_| unknown);
    view.is_some_and(|view| terms(cx.module, &view, Sizes::default().other) <= FEW_TERMS)
}

/// Denies functions with bounds (Softmax, Sigmoid, Tanh) on the way to the operand by which TopK, ArgMax, ArgMin or
/// NonMaxSuppression choose, and variables on the way to a threshold whose crossings are counted.
///
/// A bounded function brings numbers together that a product has separated: the scores 8 and 9 have the Sigmoids
/// 0.99966 and 0.99988, both of which are 1 in bf16. That makes a tie, and another expert or class is chosen. Numbers
/// that are equal before the function are equal after it, so the product itself may be low.
pub(super) fn choice(cx: &mut Cx<'_>) -> Result<(), PassError> {
    for var in cx.free_vars() {
        let sinks = cx.sinks(var);
        let bounded = cx.kind(var.node).and_then(op::result_range).is_some_and(|(_, most)| most.is_finite());
        if bounded && cx.is_between(var) && sinks.some.any(Sink::CHOICE) {
            cx.deny(var, || format!("may make ties on the way to {}", end(sinks)));
        } else if sinks.some.any(Sink::THRESHOLD)
            && (cx.is_between(var) || cx.is_product(var) && reads_raw(cx, var))
        {
            cx.deny(var, || "on the way to a threshold whose crossings are counted".into());
        }
    }
    Ok(())
}

/// True if an operand of a variable is an input of the model.
fn reads_raw(cx: &Cx<'_>, var: Var) -> bool {
    let mut operands = flow::operands_of(cx.module, var);
    operands.any(|(_, value)| cx.numerics.properties(cx.module, value).has(Properties::RAW))
}

/// Denies squares and sums of squares on the way to a root, a logarithm or a divisor; also values whose small elements
/// count beside large ones, and a product if that holds for all its uses: before the logarithm or a small power of a
/// square, and in quotients by their own magnitude or a local mean.
///
/// In f16, the square of 256 is infinite and the square of 1e-4 is 0, while the root of the sum is of ordinary size.
/// A square before a logarithm is typically a spectrum: small values stand beside large ones, and the logarithm
/// shows every digit of the small values.
pub(super) fn square(cx: &mut Cx<'_>) -> Result<(), PassError> {
    let work = products(cx);
    for var in cx.free_vars() {
        let (properties, sinks) = (cx.properties(var), cx.sinks(var));
        let (between, product) = (cx.is_between(var), cx.is_product(var));
        // Squares that are summed are found by the guard `norm`.
        let summed = squares(cx.module, var.node) && sinks.some.any(Sink::SUM);
        if (between || product)
            && properties.has(Properties::SQUARES)
            && sinks.some.any(Sink::ZERO)
            && !summed
        {
            cx.deny(var, || format!("squares on the way to {}", end(sinks)));
        } else if between && (sinks.some.any(Sink::SPECTRUM) || normalizes_elements(cx, var.node)) {
            cx.deny(var, || "small elements count beside large ones, as in a spectrum".into());
        } else if product
            && (sinks.all.any(Sink::SPECTRUM)
                || sinks.some.any(Sink::SPECTRUM)
                    && properties.has(Properties::ARITHMETIC)
                    && is_small(cx, var.node, work))
        {
            cx.deny(var, || "a product whose small elements count beside large ones".into());
        } else if product && sinks.some.any(Sink::LOG) && is_gram(cx.module, var.node) {
            cx.deny(var, || "squares on the diagonal, before a logarithm".into());
        }
    }
    Ok(())
}

/// True if a node divides the elements of an operand by their own magnitudes or by local means.
fn normalizes_elements(cx: &Cx<'_>, node: Node) -> bool {
    let n = cx.module.node(node).n_formal();
    (0..n).any(|slot| cx.numerics.normalizes_elements(cx.module, node, slot))
}

/// Denies differences of nearly equal numbers, and the nodes that compute their terms.
///
/// Such differences are E[x²] − E[x]², ‖a‖² + ‖b‖² − 2ab, an image minus its blur, and differences that are multiplied
/// by a large factor, used as a divisor, or passed to a root or logarithm. Products that are divided by norms, as in a
/// cosine, are treated alike, because the quotient may be much smaller than the product. For example, with a mean of 10
/// and a variance of 0.01, E[x²] is 100.01, which is 100 in f16: the variance is 0.
pub(super) fn cancellation(cx: &mut Cx<'_>) -> Result<(), PassError> {
    let work = products(cx);
    for var in cx.free_vars() {
        let sinks = cx.sinks(var);
        let (between, product) = (cx.is_between(var), cx.is_product(var));
        let node = var.node;
        let arithmetic = cx.properties(var).has(Properties::ARITHMETIC);
        if between && cx.numerics.is_residual(cx.module, node) {
            cx.deny(var, || "a residual: an input less arithmetic of inputs".into());
        } else if (between || product) && sinks.some.any(Sink::RESIDUAL) && arithmetic {
            cx.deny(var, || "arithmetic of inputs on the way to a residual".into());
        } else if between && cx.numerics.is_difference_of_squares(cx.module, node) {
            cx.deny(var, || "a difference of squares".into());
        } else if between && cx.numerics.is_distance(cx.module, node) {
            cx.deny(var, || "a distance: sums of squares and a product".into());
        } else if product
            && (sinks.some.any(Sink::DISTANCE)
                || adds_norms(cx, node)
                || sinks.some.any(Sink::ENLARGED) && is_small(cx, node, work))
        {
            cx.deny(var, || "a product in a difference or quotient that may be much smaller than it".into());
        } else if between && sinks.some.any(Sink::CANCELLATION) {
            cx.deny(var, || "on the way to a difference of nearly equal numbers".into());
        } else if between && subtracts(cx.module, node) && sinks.some.any(Sink::ZERO) {
            cx.deny(var, || format!("a difference on the way to {}", end(sinks)));
        }
    }
    formulas(cx);
    Ok(())
}

/// Denies formulas that are known by their terms: covariances, distances from 1, differences of neighbours and of
/// other elements of a tensor, and removals of offsets.
fn formulas(cx: &mut Cx<'_>) {
    for node in flow::nodes(cx.module) {
        let covariance = covariance(cx.module, node);
        let distance = cx.numerics.distance_from_one(cx.module, node);
        let is_stencil = cx.numerics.is_stencil(node);
        for kept in covariance.into_iter().flatten() {
            cx.deny_node(kept, "in E[xy] − E[x]·E[y]");
        }
        if let Some(product) = distance {
            cx.deny_node(product, "a product whose distance from 1 counts");
            cx.deny_node(node, "the distance of a product from 1");
            // The squared value is itself a coordinate if a product of few terms computes it.
            let squared = cx.operand(product, 1).and_then(|value| flow::origin_var(cx.module, value));
            let coordinates = squared.filter(|&var| cx.is_product(var) && multiplies_coordinates(cx, var));
            if let Some(var) = coordinates {
                cx.deny(var, || "a product whose square has a distance from 1".into());
            }
        }
        if is_stencil {
            cx.deny_node(node, "differences of neighbours or of squares, by the weights of a constant");
        }
        if subtracts_parts(cx.module, node) {
            cx.deny_node(node, "elements of a tensor less a product of its elements");
        }
        if subtracts_translation(cx.module, node).is_some() {
            cx.deny_node(node, "means of points, less a translation that the points contain");
        }
        if (0..2).any(|slot| cx.numerics.removes_offset(cx.module, node, slot)) {
            cx.deny_node(node, "removes a constant that was added to a much smaller value");
        }
        if cx.numerics.subtracts_elements(cx.module, node) {
            cx.deny_node(node, "a difference of elements of one tensor");
        }
    }
}

/// The denominator of a share of all multiplications. A product whose result is enlarged stays fp32 only up to this
/// share, or up to [`FEW_MULTIPLICATIONS`]: a larger product in fp32 costs much of the time that the format saves.
const SMALL_SHARE: u64 = 8;

/// The number of multiplications that takes a few microseconds in any format.
const FEW_MULTIPLICATIONS: u64 = 1 << 25;

/// The number of multiplications of all products of matrices.
pub(super) fn products(cx: &Cx<'_>) -> u64 {
    flow::nodes(cx.module).into_iter().map(|node| multiplications(cx, node)).fold(0, u64::saturating_add)
}

fn multiplications(cx: &Cx<'_>, node: Node) -> u64 {
    let sizes = Sizes::default();
    let extents = Extents { module: cx.module, sizes: &sizes };
    NodeView::new(cx.module, node).map_or(0, |view| amount(&view, extents).product)
}

/// True if a product has few multiplications, or a small share of the multiplications of all products.
pub(super) fn is_small(cx: &Cx<'_>, node: Node, work: u64) -> bool {
    multiplications(cx, node) <= (work / SMALL_SHARE).max(FEW_MULTIPLICATIONS)
}

/// True if a product adds a third operand that consists of sums of squares.
fn adds_norms(cx: &Cx<'_>, node: Node) -> bool {
    let third = cx.operand(node, 2).filter(|_| cx.kind(node) != Some(OpKind::Einsum));
    third.is_some_and(|value| cx.numerics.properties(cx.module, value).has(Properties::SUMMED_SQUARES))
}
