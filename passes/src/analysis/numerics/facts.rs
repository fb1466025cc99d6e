//! The facts of all values of a module.

use super::interval::{self, Interval};
use super::operators::is_constant;
use super::properties::Properties;
use super::sink::Sinks;
use crate::analysis::dataflow::Facts;
use ampc_ir::entity::SecondaryMap;
use ampc_ir::views::resolve_captures;
use ampc_ir::{Module, Node, Value};
use rustc_hash::FxHashSet;

/// The facts of all values of a module.
#[derive(Debug, Default)]
pub(crate) struct Numerics {
    pub(super) properties: Facts<Properties>,
    pub(super) intervals: Facts<Option<Interval>>,
    /// The intervals without the ranges of inputs, if there are any.
    pub(super) intervals_without_ranges: Option<Facts<Option<Interval>>>,
    pub(super) sinks: SecondaryMap<Value, Sinks>,
    /// The products with known constant weights.
    pub(super) weighted: FxHashSet<Node>,
    /// The products whose weights make differences: of neighbours, or of squares.
    pub(super) stencils: FxHashSet<Node>,
    /// The products with the matrix or kernel of a transform such as Fourier's.
    pub(super) transforms: FxHashSet<Node>,
}

impl Numerics {
    /// True if a node is a product whose weights make differences.
    pub(crate) fn is_stencil(&self, node: Node) -> bool {
        self.stencils.contains(&node)
    }

    /// True if a value is a constant, or computed from constants alone.
    pub(crate) fn is_constant(&self, module: &Module, value: Value) -> bool {
        self.properties(module, value).has(Properties::CONSTANT) || is_constant(module, value)
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
