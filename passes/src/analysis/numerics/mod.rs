//! Dataflow analyses of the numbers in a graph: the effect of rounding on them.
//!
//! The analyses find three facts about every value, for the passes that decide:
//!
//! - its [`Properties`], by a forward walk: for example, unknown range, a square, a sum of thousands of terms;
//! - its [`Interval`], by a forward walk too: the bounds of its elements, if they are known;
//! - the [`Sinks`] that it reaches, by a backward walk: the scores of Softmax, an angle, a logarithm, and other
//!   operands that amplify errors (the rows of [`AMPLIFIERS`](ampc_ir::op::AMPLIFIERS)).
//!
//! Most guards combine a property with a sink. For example:
//!
//! ```text
//!                                   properties       interval   sinks
//! input %mask, %pos                 unknown range               exponent
//! %s = MatMul(%q, %k)               product                     exponent
//! %a = Mul(%pos, %slope)            unknown range               exponent   (%slope is a constant)
//! %b = Add(%s, %a)                  unknown range               exponent
//! %c = Add(%b, %mask)               unknown range               exponent
//! %p = Softmax(%c)                  distribution     [0, 1]
//! %y = MatMul(%p, %v)               product
//! ```
//!
//! The values `%b` and `%c` add an operand of unknown range and reach an exponent, so the guard `scores` keeps them
//! fp32.
//!
//! The facts describe the graph in fp32, whatever is decided. The walks see into bodies and functions. Each walk is
//! linear in the nodes, and is repeated only while bodies pass facts on.

mod back;
mod differences;
mod elements;
mod facts;
mod interval;
mod offsets;
mod operators;
mod properties;
mod recurrences;
mod sink;
mod sinks;
mod spectra;
mod squares;
mod weights;

pub(crate) use self::differences::{
    covariance, removes_mean, subtracts_mean, subtracts_parts, subtracts_translation,
};
pub(crate) use self::facts::Numerics;
pub(crate) use self::interval::Interval;
pub(crate) use self::operators::{is_product, scalar, scales_groups, subtracts};
pub(crate) use self::properties::{
    FEW_TERMS, MAX_SQUARES, MAX_TERMS, Properties, normalizes_contraction, terms,
};
pub(crate) use self::recurrences::{is_repeated_squaring, refines_inverse};
pub(crate) use self::sink::{Sink, Sinks};
pub(crate) use self::sinks::worst_rounding_error;
pub(crate) use self::squares::{adds_up_squares, is_gram, squares, sums};
pub(crate) use self::weights::{Weights, weights};

use self::differences::are_squares;
use self::operators::kind;
use crate::graph::flow;
use crate::pass::input_ranges::InputRanges;
use ampc_ir::entity::SecondaryMap;
use ampc_ir::op::OpKind;
use ampc_ir::views::resolve_captures;
use ampc_ir::{DType, Module, Node, Value};
use rustc_hash::FxHashMap;

impl Numerics {
    /// Analyses a module that is to be lowered to a format. Small constants are read; nothing is known about a constant
    /// that cannot be read. Intervals hold for inputs within the given ranges, and for constants clamped to the
    /// magnitude `most`.
    pub(crate) fn of(module: &Module, to: DType, inputs: &InputRanges, most: f64) -> Numerics {
        let (properties, sinks) = (properties::find_properties(module), SecondaryMap::default());
        let intervals = interval::find_intervals(module, inputs, most);
        let intervals_without_ranges = || interval::find_intervals(module, &InputRanges::default(), most);
        let intervals_without_ranges = (!inputs.is_empty()).then(intervals_without_ranges);
        let mut numerics =
            Numerics { properties, intervals, intervals_without_ranges, sinks, ..Numerics::default() };
        numerics.find_weights(module);
        numerics.find_sinks(module, &flow::nodes(module), to);
        numerics
    }

    /// Reads the weights of all products; those that several products share, once.
    fn find_weights(&mut self, module: &Module) {
        let mut known: FxHashMap<_, Option<KnownWeights>> = FxHashMap::default();
        for node in flow::nodes(module) {
            let Some(kind) = kind(module, node).filter(|&kind| is_product(kind)) else { continue };
            let read = || weights(module, node).map(KnownWeights::of);
            let shared = shared_weight(module, node).filter(|_| kind == OpKind::MatMul);
            let Some(weights) = shared.map_or_else(read, |key| *known.entry(key).or_insert_with(read)) else {
                continue;
            };
            let Some(data) = module.node(node).operand(weights.of) else { continue };
            self.weighted.insert(node);
            let is_stencil =
                weights.makes_differences && self.is_stencil_of(module, data, weights.has_few_numbers);
            if is_stencil || weights.has_both_signs && are_squares(module, data) {
                self.stencils.insert(node);
            }
            if weights.is_transform {
                self.transforms.insert(node);
            }
        }
    }
}

/// Facts about the weights of a product.
#[derive(Clone, Copy)]
struct KnownWeights {
    /// The slot of the computed factor.
    of: usize,
    makes_differences: bool,
    has_few_numbers: bool,
    has_both_signs: bool,
    is_transform: bool,
}

impl KnownWeights {
    fn of(weights: Weights) -> KnownWeights {
        let (makes_differences, has_few_numbers) = elements::make_differences(&weights);
        KnownWeights {
            of: weights.of,
            makes_differences,
            has_few_numbers,
            has_both_signs: differences::have_both_signs(&weights),
            is_transform: spectra::is_transform(&weights),
        }
    }
}

/// The slot and the value of the factor of a product that is a constant, if one is.
fn shared_weight(module: &Module, node: Node) -> Option<(usize, Value)> {
    let constant = |i: usize| {
        let value = resolve_captures(module, flow::behind_casts(module, module.node(node).operand(i)?));
        operators::is_constant(module, value).then_some((i, value))
    };
    match (constant(0), constant(1)) {
        (None, one) | (one, None) => one,
        _ => None,
    }
}
