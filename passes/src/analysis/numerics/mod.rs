//! Dataflow analyses of the numbers in a graph: what rounding does to them.
//!
//! Three facts are found about every value, which deciding passes ask for:
//!
//! - its [`Properties`], by a walk forwards: that it is of unknown range, a square, a sum of thousands of terms;
//! - its [`Interval`], by a walk forwards too: between which numbers it lies, if that is known;
//! - the [`Sinks`] that it reaches, by a walk backwards: the scores of Softmax, an angle, a logarithm, and whatever else
//!   amplifies errors (the rows of [`AMPLIFIERS`](ampc_ir::op::AMPLIFIERS)).
//!
//! Most guards ask for a property together with a sink. For example:
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
//! so `%b` and `%c`, which add something of unknown range and reach an exponent, are what the guard `scores` keeps fp32.
//!
//! Facts are about the graph in fp32, whatever is decided. Walks see into bodies and functions; each is linear in the
//! nodes, and is repeated only while bodies hand something on.

mod differences;
mod interval;
mod properties;
mod sinks;

pub(crate) use self::differences::{covariance, is_stencil};
pub(crate) use self::interval::Interval;
pub(crate) use self::properties::{FEW_TERMS, MAX_TERMS, Properties, terms};
pub(crate) use self::sinks::{Sink, Sinks, subtracts, worst_rounding_error};

use crate::analysis::dataflow::Facts;
use crate::graph::flow;
use ampc_ir::entity::SecondaryMap;
use ampc_ir::op::{self, OpKind, Work};
use ampc_ir::views::{constant_of, resolve_captures};
use ampc_ir::{DType, Module, Node, Value};

/// The most walks of one analysis. What comes out of a body, or goes round a loop, is seen in the next walk, so bodies
/// nested deeper than this are not seen through completely: some facts are missing then, none is wrong.
const MAX_WALKS: usize = 16;

/// Elements of the largest constant that is read for its interval. Larger ones are weights, whose range says little.
const MAX_ELEMENTS: u64 = 4096;

/// The facts of all values of a module.
#[derive(Debug, Default)]
pub(crate) struct Numerics {
    properties: Facts<Properties>,
    intervals: Facts<Option<Interval>>,
    sinks: SecondaryMap<Value, Sinks>,
}

impl Numerics {
    /// Analyses a module that is to be lowered to a format. Small constants are read; of one that cannot be read nothing
    /// is known.
    pub(crate) fn of(module: &Module, to: DType) -> Numerics {
        let (properties, intervals) = (properties::find_properties(module), interval::find_intervals(module));
        let mut numerics = Numerics { properties, intervals, sinks: SecondaryMap::default() };
        numerics.find_sinks(module, &flow::nodes(module), to);
        numerics
    }

    /// The properties of a value.
    pub(crate) fn properties(&self, module: &Module, value: Value) -> Properties {
        *self.properties.of(module, value)
    }

    /// Between which numbers all elements of a value lie, if that is known.
    pub(crate) fn interval(&self, module: &Module, value: Value) -> Option<Interval> {
        let known = interval::known(&self.intervals, module, value);
        known.or_else(|| Interval::of_constant(module, value))
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

/// Whether an operator is a product of matrices, or does one inside.
pub(crate) fn is_product(kind: OpKind) -> bool {
    op::work(kind) == Work::Product
}

/// Whether a node squares its operand, through casts between floats: x·x, a power by an even constant, or the sum of
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
        _ => false,
    }
}

fn is_even(exponent: f64) -> bool {
    exponent != 0.0 && exponent % 2.0 == 0.0
}

/// The number that a constant of one element is.
pub(crate) fn scalar(module: &Module, value: Value) -> Option<f64> {
    match constant_of(module, flow::behind_casts(module, value))?.small_floats(1)?[..] {
        [number] => Some(number),
        _ => None,
    }
}

/// Whether a value is a constant.
fn is_constant(module: &Module, value: Value) -> bool {
    constant_of(module, value).is_some()
}

/// Repeats a walk until it finds nothing new, more than once only if there are bodies.
fn repeat(module: &Module, mut walk: impl FnMut() -> bool) {
    let has_bodies = flow::graphs(module).len() > 1;
    for _ in 0..MAX_WALKS {
        if !walk() || !has_bodies {
            break;
        }
    }
}
