//! What rounding does to the numbers of a graph: what values hold, and what they lead to.
//!
//! A deciding pass asks two questions about a node. What is in its operands: a position of unknown range, a square,
//! the sum of thousands of terms, something between 0 and 1 ([`Held`], found by a walk forwards; [`Interval`])? And
//! where do its results go: to the scores of a Softmax, to an angle, into a logarithm ([`Leads`], found by a walk
//! backwards from the rows of [`AMPLIFIERS`](ampc_ir::op::AMPLIFIERS))? Most rules of guards are one answer to each.
//! For example:
//!
//! ```text
//! input %mask, %pos                 both hold a number of unknown range
//! %s = MatMul(%q, %k)               holds a product
//! %a = Mul(%pos, %slope)            unknown range still: an operator that scales
//! %b = Add(%s, %a)                  unknown range; leads to an exponent
//! %p = Softmax(%b)                  within [0, 1]
//! %t = MatMul(%p, %v)               a product: nothing is known of its range, and nothing %p leads to comes of it
//! ```
//!
//! so `%b`, which adds something of unknown range on the way to an exponent, is what the guard `scores` keeps fp32.
//!
//! Facts are about the fp32 graph: they depend on no decision. Walks see into bodies and functions; each is linear,
//! and repeated only while bodies hand something on.

mod held;
mod interval;
mod leads;

pub(crate) use self::held::{Held, MAX_TERMS, terms};
pub(crate) use self::interval::Interval;
pub(crate) use self::leads::{Lead, Leads, subtracts, worst_rounding_error};

use crate::flow;
use ampc_ir::entity::SecondaryMap;
use ampc_ir::op::{self, OpKind, Work};
use ampc_ir::views::{constant_of, resolve_captures};
use ampc_ir::{DType, Module, Node, Value};

/// Walks that are made for the sake of bodies: what comes out of one, or goes round, is seen in the next walk.
const MAX_WALKS: usize = 16;

/// Elements of the largest constant that is read for its interval: larger ones are weights.
const MAX_ELEMENTS: u64 = 4096;

/// What values hold and lead to.
#[derive(Debug, Default)]
pub(crate) struct Numerics {
    held: SecondaryMap<Value, Held>,
    intervals: SecondaryMap<Value, Option<Interval>>,
    leads: SecondaryMap<Value, Leads>,
}

impl Numerics {
    /// Looks at a module that is to be lowered to a format. Small constants are read; one that cannot be read is one of
    /// which nothing is known.
    pub(crate) fn of(module: &Module, to: DType) -> Numerics {
        let mut numerics = Numerics::default();
        let nodes = flow::nodes(module);
        numerics.find_intervals(module, &nodes);
        numerics.find_held(module, &nodes);
        numerics.find_leads(module, &nodes, to);
        numerics
    }

    /// What a value holds.
    pub(crate) fn held(&self, module: &Module, value: Value) -> Held {
        self.held[resolve_captures(module, value)]
    }

    /// Between which numbers all elements of a value lie, if that is known.
    pub(crate) fn interval(&self, module: &Module, value: Value) -> Option<Interval> {
        let value = resolve_captures(module, value);
        self.intervals[value].or_else(|| Interval::of_constant(module, value))
    }

    /// What a value leads to.
    pub(crate) fn leads(&self, module: &Module, value: Value) -> Leads {
        self.leads[resolve_captures(module, value)]
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

/// Whether a product is one of all its operands: no recurrence, and no attention.
pub(crate) fn is_plain_product(kind: OpKind) -> bool {
    is_product(kind)
        && !matches!(
            kind,
            OpKind::Attention
                | OpKind::CausalConvWithState
                | OpKind::ContribAttention
                | OpKind::ContribGroupQueryAttention
                | OpKind::ContribMultiHeadAttention
                | OpKind::ContribPackedMultiHeadAttention
                | OpKind::GRU
                | OpKind::LSTM
                | OpKind::LinearAttention
                | OpKind::PreviewFlexAttention
                | OpKind::RNN
        )
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
