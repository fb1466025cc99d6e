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

pub(crate) use self::differences::{covariance, subtracts_mean, subtracts_translation};
pub(crate) use self::facts::Numerics;
pub(crate) use self::interval::Interval;
pub(crate) use self::operators::{is_product, subtracts};
pub(crate) use self::properties::{
    FEW_TERMS, MAX_SQUARES, MAX_TERMS, Properties, normalizes_contraction, terms,
};
pub(crate) use self::recurrences::{is_repeated_squaring, refines_inverse};
pub(crate) use self::sink::{Sink, Sinks};
pub(crate) use self::sinks::worst_rounding_error;
pub(crate) use self::squares::{adds_up_squares, is_gram, squares, sums};
pub(crate) use self::weights::{Weights, weights};

use self::operators::kind;
use crate::graph::flow;
use crate::pass::input_ranges::InputRanges;
use ampc_ir::entity::SecondaryMap;
use ampc_ir::{DType, Module};

impl Numerics {
    /// Analyses a module that is to be lowered to a format. Small constants are read; nothing is known about a constant
    /// that cannot be read. Intervals hold for inputs within the given ranges, and for constants clamped to the
    /// magnitude `most`.
    pub(crate) fn of(module: &Module, to: DType, inputs: &InputRanges, most: f64) -> Numerics {
        let (properties, sinks) = (properties::find_properties(module), SecondaryMap::default());
        let intervals = interval::find_intervals(module, inputs, most);
        let intervals_without_ranges = || interval::find_intervals(module, &InputRanges::default(), most);
        let intervals_without_ranges = (!inputs.is_empty()).then(intervals_without_ranges);
        let (stencils, transforms) = Default::default();
        let mut numerics =
            Numerics { properties, intervals, intervals_without_ranges, sinks, stencils, transforms };
        numerics.find_weights(module);
        numerics.find_sinks(module, &flow::nodes(module), to);
        numerics
    }

    /// Reads the weights of all products once.
    fn find_weights(&mut self, module: &Module) {
        for node in flow::nodes(module) {
            let Some(weights) =
                kind(module, node).filter(|&k| is_product(k)).and_then(|_| weights(module, node))
            else {
                continue;
            };
            if self.is_stencil_of(module, node, &weights) {
                self.stencils.insert(node);
            }
            if spectra::is_transform(&weights) {
                self.transforms.insert(node);
            }
        }
    }
}
