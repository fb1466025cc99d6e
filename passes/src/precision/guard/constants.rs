//! Constants of a variable: the constants that it reads, directly or moved by earlier nodes, and its own attributes.

use super::{Cx, OutOfRange};
use crate::analysis::numerics::Interval;
use crate::graph::flow::{self, Var};
use crate::pass::PassError;
use crate::pass::statistics::ConstantStats;
use ampc_ir::op::{self, OpKind, Sign};
use ampc_ir::tensor::TensorError;
use ampc_ir::views::broadcast::{Bound, ClipView};
use ampc_ir::views::{NodeView, PadView};
use ampc_ir::{AttrValue, DType, Node, TensorData, Value};
use std::sync::Arc;

/// The number of elements of the largest constant whose elements are read one by one. A guard uses only the
/// statistics of a larger constant.
const MAX_NUMBERS: u64 = 1 << 16;

/// The origin of a number.
#[derive(Clone, Copy)]
pub(super) enum Origin {
    /// An initializer or a Constant node.
    Constant(Value),
    /// The fill of a ConstantOfShape.
    Fill(Value),
    /// A value computed from constants.
    Computed(Value),
    /// An attribute of this operator.
    Attr(Node, &'static str),
}

impl Origin {
    /// The origin of an epsilon in words.
    pub(super) fn of_epsilon(self, cx: &Cx<'_>) -> String {
        match self {
            Origin::Constant(value) => format!("`{}`", cx.name(value)),
            Origin::Fill(_) | Origin::Computed(_) | Origin::Attr(..) => self.name(cx),
        }
    }

    /// The origin in words.
    pub(super) fn name(self, cx: &Cx<'_>) -> String {
        match self {
            Origin::Constant(value) => format!("constant `{}`", cx.name(value)),
            Origin::Fill(value) => format!("fill `{}`", cx.name(value)),
            Origin::Computed(value) => format!("computed constant `{}`", cx.name(value)),
            Origin::Attr(node, name) => {
                let op = cx.module.op_name(node).1;
                let called = cx.module.node(node).name;
                let called = called.map_or_else(String::new, |n| format!(" `{}`", cx.module.text(n)));
                format!("attribute `{name}` of {op}{called}")
            }
        }
    }
}

/// The known range of the elements of a constant.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) stats: Arc<ConstantStats>,
    /// The origin of the greatest magnitude.
    pub(super) largest: Origin,
    /// The origin of the least magnitude other than 0.
    pub(super) smallest: Origin,
    /// The value that holds the elements, if there is such a value.
    pub(super) value: Option<Value>,
}

impl Known {
    fn new(stats: Arc<ConstantStats>, origin: Origin, value: Option<Value>) -> Known {
        Known { stats, largest: origin, smallest: origin, value }
    }

    /// The range of the negated elements.
    fn negated(self) -> Known {
        // 0 − x instead of −x, so that the evidence shows no −0.
        let (min, max) = (0.0 - self.stats.max, 0.0 - self.stats.min);
        Known { stats: Arc::new(ConstantStats { min, max, ..*self.stats }), ..self }
    }

    /// The union of two ranges.
    fn and(self, other: Known) -> Known {
        let (a, b) = (&*self.stats, &*other.stats);
        Known {
            largest: if b.max_abs > a.max_abs { other.largest } else { self.largest },
            smallest: if b.min_abs < a.min_abs { other.smallest } else { self.smallest },
            stats: Arc::new(ConstantStats {
                count: a.count.saturating_add(b.count),
                overflow: a.overflow.saturating_add(b.overflow),
                underflow: a.underflow.saturating_add(b.underflow),
                nonzero: a.nonzero.saturating_add(b.nonzero),
                nonfinite: a.nonfinite.saturating_add(b.nonfinite),
                max_abs: a.max_abs.max(b.max_abs),
                min_abs: a.min_abs.min(b.min_abs),
                min: a.min.min(b.min),
                max: a.max.max(b.max),
                integers: a.integers && b.integers,
            }),
            value: None,
        }
    }
}

impl Cx<'_> {
    /// Finds values computed from constants alone. A graph is visited before its bodies and program order is
    /// topological, so one walk is enough. Values that leave a body do not count.
    pub(super) fn find_moved(&mut self) -> Result<(), PassError> {
        let nodes = flow::nodes(self.module);
        for node in nodes {
            let results: Vec<Value> = self.float_results(node).collect();
            let Some(&first) = results.first() else { continue };
            let known = if self.kind(node) == Some(OpKind::ConstantOfShape) {
                self.fill(node, first)?
            } else {
                match self.moved_by(node)? {
                    Some(moved) => Some(moved),
                    None => self.computed_by(node, first)?,
                }
            };
            let makes = flow::producer_var(self.module, first);
            let infinite = makes.is_some_and(|var| self.is_infinite_beyond(var));
            if let Some(known) = known.filter(|known| known.stats.overflow == 0 || !infinite) {
                for result in results {
                    self.moved.insert(result, Known { value: Some(result), ..known.clone() });
                }
            }
        }
        Ok(())
    }

    /// True if a variable is low already, or pinned low, so that values beyond the range become infinite.
    pub(super) fn is_infinite_beyond(&self, var: Var) -> bool {
        let decided = flow::decision(self.module, var).and_then(|d| d.precision);
        decided == Some(self.to) && self.out_of_range != OutOfRange::Clamp
    }

    /// The float results of a node.
    pub(super) fn float_results(&self, node: Node) -> impl Iterator<Item = Value> {
        let is_float = |&v: &Value| self.module.value(v).ty.dtype().is_some_and(DType::is_float);
        self.module.node(node).results().iter().copied().flatten().filter(is_float)
    }

    /// The operands that a node moves into its results; empty if the node computes.
    pub(super) fn moved_operands(&self, node: Node) -> Vec<(Value, Sign)> {
        let Some(view) = NodeView::new(self.module, node) else { return Vec::new() };
        if op::may_reduce(view.schema) && view.string("reduction") != Some("none") {
            return Vec::new();
        }
        let moved = |i: usize| Some((view.operand(i)?, op::moves(view.kind(), i)?));
        (0..view.n_operands()).filter_map(moved).collect()
    }

    fn moved_by(&mut self, node: Node) -> Result<Option<Known>, PassError> {
        let mut all: Option<Known> = None;
        for (operand, sign) in self.moved_operands(node) {
            let Some(known) = self.known(operand)? else { return Ok(None) };
            let known = match sign {
                Sign::Kept => known,
                Sign::Flipped => known.negated(),
            };
            all = Some(match all {
                Some(before) => before.and(known),
                None => known,
            });
        }
        // Pad moves its padding value beside its operand.
        Ok(all.map(|all| self.moved_numbers(node).into_iter().fold(all, Known::and)))
    }

    /// Returns the range of a node computed from constants alone, from the extremes of its operands: at least as wide
    /// as the range of the results.
    fn computed_by(&mut self, node: Node, result: Value) -> Result<Option<Known>, PassError> {
        let Some(kind) = self.kind(node) else { return Ok(None) };
        let operands = self.module.node(node).formal_operands();
        let (&[Some(a), Some(b)], true) = (operands, is_arithmetic(kind)) else { return Ok(None) };
        let (Some(a), Some(b)) = (self.known(a)?, self.known(b)?) else { return Ok(None) };
        let of = |known: &Known| Interval::between(known.stats.min.into(), known.stats.max.into());
        let Some((range_a, range_b)) = of(&a).zip(of(&b)) else { return Ok(None) };
        let (least_a, least_b) = (f64::from(a.stats.min_abs), f64::from(b.stats.min_abs));
        let (range, least) = match kind {
            OpKind::Mul => (range_a.times(range_b), least_a * least_b),
            OpKind::Div => (range_a.divided_by(range_b), least_a / f64::from(b.stats.max_abs)),
            OpKind::Sub => (range_a.plus(range_b.negated()), 0.0),
            _ => (range_a.plus(range_b), 0.0),
        };
        let Some(range) = range.filter(|range| range.magnitude().is_finite()) else { return Ok(None) };
        // A sum is known only to lie between the sums of the extremes.
        let least = if op::adds(kind) { range.magnitudes().lo } else { least };
        let count = a.stats.count.max(b.stats.count);
        let numbers = [range.lo, range.hi, least].map(nearest);
        let Ok(extremes) = self.numbers(&numbers) else { return Ok(None) };
        let stats = ConstantStats {
            count,
            nonzero: if range.magnitude() > 0.0 { count } else { 0 },
            overflow: extremes.overflow.min(1),
            underflow: if extremes.underflow == extremes.nonzero { count } else { 0 },
            // A quotient of integers need not be an integer; for the other operators, readers decide about integers.
            integers: false,
            ..*extremes
        };
        let origin = Origin::Computed(result);
        Ok(Some(Known { stats: Arc::new(stats), largest: origin, smallest: origin, value: Some(result) }))
    }

    /// The numbers of a constant that is small enough to be read; otherwise only the given number.
    pub(super) fn numbers_of(&self, known: &Known, number: f64) -> Vec<f64> {
        let numbers = match known.smallest {
            Origin::Constant(value) => ampc_ir::views::constant_of(self.module, value),
            Origin::Fill(_) | Origin::Computed(_) | Origin::Attr(..) => None,
        };
        numbers.and_then(|data| data.small_floats(MAX_NUMBERS)).unwrap_or_else(|| vec![number])
    }

    /// Numbers in attributes that a node moves into its results in the same way as its operands.
    pub(super) fn moved_numbers(&self, node: Node) -> Vec<Known> {
        let result = self.module.node(node).result(0);
        let Some(var) = result.and_then(|result| flow::producer_var(self.module, result)) else {
            return Vec::new();
        };
        self.attributes_at(var)
    }

    fn fill(&mut self, node: Node, result: Value) -> Result<Option<Known>, PassError> {
        let Some(view) = NodeView::new(self.module, node) else { return Ok(None) };
        let Some(AttrValue::Tensor(data)) = view.attr("value").cloned() else { return Ok(None) };
        let stats = self.stats_of(&data, result)?;
        Ok(stats.map(|stats| Known::new(stats, Origin::Fill(result), Some(result))))
    }

    fn numbers(&self, values: &[f32]) -> Result<Arc<ConstantStats>, TensorError> {
        let n = u64::try_from(values.len()).unwrap_or(u64::MAX);
        Ok(Arc::new(ConstantStats::of(&TensorData::from_f32(&[n], values)?, self.to)?))
    }

    /// The range of a value that is constant or computed from constants alone.
    pub(super) fn known(&mut self, value: Value) -> Result<Option<Known>, PassError> {
        let value = flow::resolve_captures(self.module, value);
        if let Some(known) = self.moved.get(&value) {
            return Ok(Some(known.clone()));
        }
        let stats = self.stats(value)?;
        Ok(stats.map(|stats| Known::new(stats, Origin::Constant(value), Some(value))))
    }

    /// The constants that a variable reads or makes, each once, and the values that the variable computes from
    /// constants alone.
    pub(super) fn constants_at(&mut self, var: Var) -> Result<Vec<Known>, PassError> {
        let mut values: Vec<Value> = flow::operands_of(self.module, var).map(|(_, v)| v).collect();
        let makes = |kind| matches!(kind, OpKind::Constant | OpKind::ConstantOfShape) || is_arithmetic(kind);
        if self.kind(var.node).is_some_and(makes) {
            values.extend(flow::results_of(self.module, var).map(|(_, v)| v));
        }
        values.sort_unstable();
        values.dedup();
        let mut found = Vec::new();
        for value in values {
            found.extend(self.known(value)?);
        }
        found.extend(self.attributes_at(var));
        Ok(found)
    }

    fn attributes_at(&self, var: Var) -> Vec<Known> {
        let numbers = self.in_attributes(var).into_iter();
        let known = numbers.filter_map(|(name, number)| {
            Some(Known::new(self.numbers(&[number]).ok()?, Origin::Attr(var.node, name), None))
        });
        known.collect()
    }

    /// Numbers in attributes that have the element type of the variable.
    fn in_attributes(&self, var: Var) -> Vec<(&'static str, f32)> {
        let Some(view) = NodeView::new(self.module, var.node) else { return Vec::new() };
        let mut found = Vec::new();
        match view.kind() {
            OpKind::Clip => {
                let clip = ClipView::read(&view);
                // A bound beyond the range on its own side bounds nothing, even if it is rounded to infinity. It is the
                // default, and exporters write it for a Clip with one bound.
                let most = self.most();
                found.extend(number(clip.min).filter(|&v| f64::from(v) >= -most).map(|v| ("min", v)));
                found.extend(number(clip.max).filter(|&v| f64::from(v) <= most).map(|v| ("max", v)));
            }
            OpKind::Pad if flow::results_of(self.module, var).next().is_some() => {
                let pad = PadView::read(&view).ok().filter(|p| p.mode == "constant");
                found.extend(pad.and_then(|p| number(p.value)).map(|v| ("value", v)));
            }
            _ => {}
        }
        found
    }

    /// Denies the nodes that moved constants into a value.
    pub(super) fn deny_movers(&mut self, value: Option<Value>, evidence: impl Fn() -> String) {
        let mut work: Vec<Value> = value.into_iter().collect();
        while let Some(value) = work.pop() {
            let value = flow::resolve_captures(self.module, value);
            if !self.moved.contains_key(&value) {
                continue;
            }
            // A variable that is not free has been visited or is decided otherwise, so each node is visited once.
            let Some(var) = flow::producer_var(self.module, value) else { continue };
            if flow::is_free(self.module, var) {
                self.deny(var, &evidence);
                work.extend(self.module.node(var.node).formal_operands().iter().flatten());
            }
        }
    }
}

/// True if an operator is Add, Sub, Mul or Div.
fn is_arithmetic(kind: OpKind) -> bool {
    matches!(kind, OpKind::Add | OpKind::Sub | OpKind::Mul | OpKind::Div)
}

#[expect(clippy::cast_possible_truncation, reason = "a number as its format stores it")]
fn nearest(number: f64) -> f32 {
    number as f32
}

fn number(bound: Bound) -> Option<f32> {
    match bound {
        Bound::Number(v) => Some(v),
        Bound::None | Bound::Operand(_) => None,
    }
}
