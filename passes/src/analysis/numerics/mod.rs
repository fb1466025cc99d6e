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
mod interval;
mod offsets;
mod properties;
mod recurrences;
mod sinks;
mod spectra;
mod weights;

pub(crate) use self::differences::{covariance, subtracts_mean, subtracts_translation};
pub(crate) use self::interval::Interval;
pub(crate) use self::properties::{
    FEW_TERMS, MAX_SQUARES, MAX_TERMS, Properties, is_gram, normalizes_contraction, terms,
};
pub(crate) use self::recurrences::{is_repeated_squaring, refines_inverse};
pub(crate) use self::sinks::{Sink, Sinks, worst_rounding_error};
pub(crate) use self::weights::{Weights, weights};

use crate::analysis::dataflow::Facts;
use crate::graph::flow;
use crate::pass::input_ranges::InputRanges;
use ampc_ir::entity::SecondaryMap;
use ampc_ir::op::{self, OpKind, Work};
use ampc_ir::views::linear::Equation;
use ampc_ir::views::{NodeView, constant_of, resolve_captures};
use ampc_ir::{DType, Dim, Module, Node, Shape, Value};
use rustc_hash::FxHashSet;

/// The maximal number of walks of one analysis. A value that leaves a body, or is loop-carried, is seen in the next
/// walk, so bodies nested deeper than this are not analysed completely: some facts are missing then, none is wrong.
const MAX_WALKS: usize = 16;

/// The number of elements of the largest constant that is read for its interval. Larger constants are weights, whose
/// range says little.
const MAX_ELEMENTS: u64 = 4096;

/// The facts of all values of a module.
#[derive(Debug, Default)]
pub(crate) struct Numerics {
    properties: Facts<Properties>,
    intervals: Facts<Option<Interval>>,
    /// The intervals without the ranges of inputs, if there are any.
    intervals_without_ranges: Option<Facts<Option<Interval>>>,
    sinks: SecondaryMap<Value, Sinks>,
    /// The products whose weights make differences of neighbours.
    stencils: FxHashSet<Node>,
    /// The products with the matrix or kernel of a transform such as Fourier's.
    transforms: FxHashSet<Node>,
}

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

    /// True if a node is a product whose weights make differences of neighbours.
    pub(crate) fn is_stencil(&self, node: Node) -> bool {
        self.stencils.contains(&node)
    }

    /// The properties of a value.
    pub(crate) fn properties(&self, module: &Module, value: Value) -> Properties {
        *self.properties.of(module, value)
    }

    /// The bounds of all elements of a value, if they are known.
    pub(crate) fn interval(&self, module: &Module, value: Value) -> Option<Interval> {
        let known = interval::known(&self.intervals, module, value);
        known.or_else(|| Interval::of_constant(module, value))
    }

    /// The bounds of all elements of a value, if they follow from the ranges of inputs.
    pub(crate) fn interval_of_inputs(&self, module: &Module, value: Value) -> Option<Interval> {
        let without = interval::known(self.intervals_without_ranges.as_ref()?, module, value);
        interval::known(&self.intervals, module, value).filter(|&interval| Some(interval) != without)
    }

    /// The sinks that a value reaches.
    pub(crate) fn sinks(&self, module: &Module, value: Value) -> Sinks {
        self.sinks[resolve_captures(module, value)]
    }
}

/// The operator of a node of the table.
fn kind(module: &Module, node: Node) -> Option<OpKind> {
    module.node(node).schema().map(|s| s.kind)
}

/// True if an operator is a product of matrices, or computes one internally.
pub(crate) fn is_product(kind: OpKind) -> bool {
    op::work(kind) == Work::Product
}

/// True if a node squares its operand, looking through float casts: x·x, a power by an even constant, or a sum of
/// squares.
pub(crate) fn squares(module: &Module, node: Node) -> bool {
    let data = module.node(node);
    match kind(module, node) {
        Some(OpKind::Mul) => {
            let behind = |i| data.operand(i).map(|value| flow::behind_casts(module, value));
            behind(0) == behind(1)
        }
        Some(OpKind::Pow) => data.operand(1).and_then(|by| scalar(module, by)).is_some_and(is_even),
        Some(OpKind::ReduceSumSquare) => true,
        _ => adds_up_squares(module, node),
    }
}

/// True if a product adds up the squares of an operand: an Einsum of a value and itself with the same labels, or a MatMul
/// of each row with itself.
pub(crate) fn adds_up_squares(module: &Module, node: Node) -> bool {
    let Some(view) = NodeView::new(module, node) else { return false };
    if !is_product(view.kind()) || !is_gram(module, node) {
        return false;
    }
    match view.kind() {
        OpKind::Einsum => {
            let same = |i: usize| view.operand(i).map(|value| flow::behind_casts(module, value));
            let equation = Equation::read(&view).ok();
            equation.is_some_and(|of| match &of.operands[..] {
                [a, b] => a == b && of.result.len() < a.len() && same(0) == same(1),
                _ => false,
            })
        }
        OpKind::MatMul => {
            let dims = |value: Value| module.value(value).ty.shape().and_then(Shape::dims);
            let dims = view.data().result(0).and_then(dims);
            dims.is_some_and(|dims| dims.ends_with(&[Dim::Known(1), Dim::Known(1)]))
        }
        _ => false,
    }
}

/// True if each element of the result of a node is a sum over many elements of its first operand: a reduction, or an
/// Einsum of one operand.
pub(crate) fn sums(module: &Module, node: Node) -> bool {
    match kind(module, node) {
        Some(OpKind::Einsum) => NodeView::new(module, node)
            .and_then(|view| Equation::read(&view).ok())
            .is_some_and(|of| match &of.operands[..] {
                [one] => one.iter().any(|label| !of.result.contains(label)),
                _ => false,
            }),
        Some(kind) => op::sums(kind),
        None => false,
    }
}

fn is_even(exponent: f64) -> bool {
    exponent != 0.0 && exponent % 2.0 == 0.0
}

/// The number in a constant of one element.
pub(crate) fn scalar(module: &Module, value: Value) -> Option<f64> {
    match constant_of(module, flow::behind_casts(module, value))?.small_floats(1)?[..] {
        [number] => Some(number),
        _ => None,
    }
}

/// True if a value is a constant.
fn is_constant(module: &Module, value: Value) -> bool {
    constant_of(module, value).is_some()
}

/// Repeats a walk until it finds nothing new; without bodies, the walk runs once.
fn repeat(module: &Module, mut walk: impl FnMut() -> bool) {
    let has_bodies = flow::graphs(module).len() > 1;
    for _ in 0..MAX_WALKS {
        if !walk() || !has_bodies {
            break;
        }
    }
}

/// True if a node subtracts: Sub, and Add of a negative constant or of a negated value.
pub(crate) fn subtracts(module: &Module, node: Node) -> bool {
    let data = module.node(node);
    let is_negative = |value: Value| {
        let value = flow::behind_casts(module, value);
        let negated = module.producer(value).and_then(|(node, _)| kind(module, node)) == Some(OpKind::Neg);
        negated || scalar(module, value).is_some_and(|number| number < 0.0)
    };
    match kind(module, node) {
        Some(OpKind::Sub) => true,
        Some(OpKind::Add) => data.formal_operands().iter().flatten().any(|&value| is_negative(value)),
        _ => false,
    }
}
