//! Prices of roundings: the choice of formats that trades predicted time for error.
//!
//! Each value has an error, the change of a result that rounding the value causes. With a price for error, the minimum cut
//! adds *price · error* to every cast that narrows a value and to every low variable that computes a value or reads a
//! constant. So its minimum is the least time plus the price of the errors that remain. With prices, products may be fp32 as
//! well. For example, with low products that save 10 and a cast that costs 1:
//!
//! ```text
//! %h = MatMul(%x, %w)      rounding %h: error 0.1
//! %d = MatMul(%h, %a)      rounding %d: error 5
//! %y = MatMul(%d, %v)      rounding %y: error 0.1
//!
//! price 1     all low:             1 · 5.2           =  5.2
//! price 5     %d and %y in fp32:   20 + 1 + 5 · 0.1  = 21.5   (all low: 26, all in fp32: 30)
//! price 200   all in fp32:         30                         (%d and %y in fp32: 41)
//! ```
//!
//! The second product alone in fp32 would not help: its result would be rounded for the third product.

use crate::graph::flow::{self, Var};
use crate::precision::cut::Problem;
use ampc_ir::entity::SecondaryMap;
use ampc_ir::op::{self, OpKind};
use ampc_ir::{Module, Node, Value};
use rustc_hash::FxHashSet;

/// The errors of values, with a price.
#[derive(Clone, Debug)]
pub(in crate::precision) struct Prices<'a> {
    errors: &'a SecondaryMap<Value, f64>,
    /// The cost of an error of 1.
    price: f64,
    /// The most that a rounding may cost, so that no sum of costs overflows.
    most: i64,
    /// Variables that must be fp32: low, they cost `most`.
    pub(in crate::precision) full: FxHashSet<Var>,
}

impl<'a> Prices<'a> {
    pub(in crate::precision) fn new(
        module: &Module,
        errors: &'a SecondaryMap<Value, f64>,
        price: f64,
    ) -> Prices<'a> {
        let ends = |node: &Node| module.node(*node).operands().len() + module.node(*node).results().len();
        let ends: usize = module.program_nodes().iter().map(ends).sum();
        // A value is charged for its producer and for each reader at most, in a few terms.
        let terms = i64::try_from(ends).unwrap_or(i64::MAX).saturating_mul(32).max(1);
        Prices { errors, price, most: (Problem::MAX_TOTAL / terms).max(1), full: FxHashSet::default() }
    }

    /// The cost of a variable for being low, apart from its roundings.
    pub(super) fn of_low(&self, var: Var) -> i64 {
        if self.full.contains(&var) { self.most } else { 0 }
    }

    /// The cost of rounding a value.
    pub(super) fn of(&self, value: Value) -> i64 {
        let cost = self.errors[value] * self.price;
        #[expect(clippy::cast_possible_truncation, reason = "a conversion of floats to integers saturates")]
        let cost = if cost > 0.0 { cost.ceil() as i64 } else { 0 };
        cost.min(self.most)
    }
}

/// True if a low variable rounds its results: false for ports, and for operators that move, select or negate numbers, whose
/// operands are rounded already.
pub(super) fn rounds(module: &Module, var: Var) -> bool {
    use OpKind::{Abs, Max, MaxPool, Min, Neg, ReduceMax, ReduceMin, Relu, Where};
    let Some(kind) = module.node(var.node).schema().map(|schema| schema.kind) else { return false };
    let selects = matches!(kind, Abs | Max | MaxPool | Min | Neg | ReduceMax | ReduceMin | Relu | Where);
    !selects && op::moves(kind, 0).is_none() && !flow::is_port(module, var)
}
