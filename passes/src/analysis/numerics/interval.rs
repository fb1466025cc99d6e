//! Interval analysis: bounds of the elements of values, as far as constants and operators give them.
//!
//! A forward walk with interval arithmetic on real numbers, without rounding errors. Inputs and results of products can
//! be any number, so most values of a network have no interval. Intervals come from constants, from functions with
//! bounds (Sigmoid, Softmax, Sin, Clip), from booleans, or from the ranges of inputs that the user gives. For example:
//!
//! ```text
//! %p = Sigmoid(%x)             [0, 1]
//! %q = Sub(%one, %p)           [0, 1], since %one is the constant 1
//! %l = Add(%q, %eps)           [1e-5, 1.00001]
//! ```

use super::operators::{kind, scalar};
use super::squares::{is_even, squares};
use crate::analysis::dataflow::{Analysis, Direction, Facts, Lattice, solve};
use crate::analysis::ranges::Range;
use crate::graph::flow;
use crate::pass::input_ranges::{InputRanges, is_uncentered};
use ampc_ir::module::Def;
use ampc_ir::op::{self, OpKind, Sign};
use ampc_ir::ports::Ports;
use ampc_ir::verify::name_of;
use ampc_ir::views::broadcast::{Bound, ClipView, DropoutView};
use ampc_ir::views::{NodeView, constant_of};
use ampc_ir::{AttrValue, DType, Module, Node, Value};

/// The number of elements of the largest constant that is read for its interval. Larger constants are weights, whose
/// range says little.
const MAX_ELEMENTS: u64 = 4096;

/// The maximal number of operators that add an epsilon to a sum used as a divisor, or bound the sum from below by an
/// epsilon.
const MAX_EPSILONS: usize = 2;

/// All numbers between two ends, which may be infinite.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Interval {
    pub(crate) lo: f64,
    pub(crate) hi: f64,
}

impl Interval {
    const ALL: Interval = Interval { lo: f64::NEG_INFINITY, hi: f64::INFINITY };
    const UNIT: Interval = Interval { lo: 0.0, hi: 1.0 };
    const NOT_NEGATIVE: Interval = Interval { lo: 0.0, hi: f64::INFINITY };

    /// The interval from one number to the other; `None` if one is NaN or the ends are in the wrong order.
    pub(crate) fn between(lo: f64, hi: f64) -> Option<Interval> {
        (lo <= hi).then_some(Interval { lo, hi })
    }

    /// The interval of the finite elements of a small constant.
    pub(super) fn of_constant(module: &Module, value: Value) -> Option<Interval> {
        let numbers = constant_of(module, value)?.small_floats(MAX_ELEMENTS)?;
        let finite = numbers.into_iter().filter(|number| number.is_finite());
        finite.map(|n| Interval { lo: n, hi: n }).reduce(Interval::hull)
    }

    /// The interval with ends of at most this magnitude.
    pub(super) fn clamped(self, most: f64) -> Interval {
        Interval { lo: self.lo.clamp(-most, most), hi: self.hi.clamp(-most, most) }
    }

    /// The greatest magnitude.
    pub(crate) fn magnitude(self) -> f64 {
        self.lo.abs().max(self.hi.abs())
    }

    /// True if the interval [lies far from 0](is_uncentered): 200 to 340 kelvin.
    pub(crate) fn is_uncentered(self) -> bool {
        is_uncentered(self.lo, self.hi)
    }

    /// True if 0 is in the inner half of the interval: −3 to 3, but not 0 to 255.
    pub(crate) fn is_centered(self) -> bool {
        4.0 * f64::midpoint(self.lo, self.hi).abs() <= self.hi - self.lo
    }

    /// True if no element is farther from 0 than 1.
    pub(crate) fn is_within_one(self) -> bool {
        self.magnitude() <= 1.0
    }

    fn hull(self, other: Interval) -> Interval {
        Interval { lo: self.lo.min(other.lo), hi: self.hi.max(other.hi) }
    }

    pub(crate) fn negated(self) -> Interval {
        Interval { lo: 0.0 - self.hi, hi: 0.0 - self.lo }
    }

    pub(crate) fn plus(self, other: Interval) -> Option<Interval> {
        let sum = |a: f64, b: f64| large_or(a.is_finite() && b.is_finite(), a + b);
        Interval::between(sum(self.lo, other.lo), sum(self.hi, other.hi))
    }

    /// The interval of the results of an operation whose extremes are at the ends of the operands.
    fn of_ends(self, other: Interval, op: impl Fn(f64, f64) -> f64) -> Option<Interval> {
        // 0 times an unbounded number is 0: elements themselves are finite.
        let at = |a: f64, b: f64| {
            let is_finite = a.is_finite() && b.is_finite();
            if a == 0.0 && b.is_infinite() { 0.0 } else { large_or(is_finite, op(a, b)) }
        };
        let ends =
            [at(self.lo, other.lo), at(self.lo, other.hi), at(self.hi, other.lo), at(self.hi, other.hi)];
        let any_nan = ends.iter().any(|end| end.is_nan());
        let lo = ends.iter().copied().fold(f64::INFINITY, f64::min);
        let hi = ends.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if any_nan { None } else { Interval::between(lo, hi) }
    }

    pub(crate) fn times(self, other: Interval) -> Option<Interval> {
        let swapped = |a: f64, b: f64| if b == 0.0 && a.is_infinite() { 0.0 } else { a * b };
        self.of_ends(other, swapped)
    }

    pub(crate) fn divided_by(self, other: Interval) -> Option<Interval> {
        if other.lo <= 0.0 && other.hi >= 0.0 {
            return None;
        }
        self.of_ends(other, |a, b| a / b)
    }

    /// The interval of an increasing function of the operand.
    fn grown(self, f: impl Fn(f64) -> f64) -> Option<Interval> {
        let at = |end: f64| large_or(end.is_finite(), f(end));
        Interval::between(at(self.lo), at(self.hi))
    }

    pub(crate) fn magnitudes(self) -> Interval {
        let least = if self.lo <= 0.0 && self.hi >= 0.0 { 0.0 } else { self.lo.abs().min(self.hi.abs()) };
        Interval { lo: least, hi: self.magnitude() }
    }
}

/// The end of an interval. If finite ends overflow f64, the end is the largest finite number: an infinite end means
/// that nothing is known.
fn large_or(is_finite: bool, end: f64) -> f64 {
    if is_finite && end.is_infinite() { f64::MAX.copysign(end) } else { end }
}

/// The interval of a value, which is `Interval::ALL` if nothing is known; `None` if the value is not reached.
impl Lattice for Option<Interval> {
    fn bottom() -> Self {
        None
    }
    fn join(&self, other: &Self) -> Self {
        self.zip(*other).map(|(a, b)| a.hull(b)).or(*self).or(*other)
    }
    fn widen(&self, _: &Self) -> Self {
        Some(Interval::ALL)
    }
}

/// The interval of a value, if it is known.
pub(super) fn known(facts: &Facts<Option<Interval>>, module: &Module, value: Value) -> Option<Interval> {
    facts.of(module, value).filter(|&interval| interval != Interval::ALL)
}

/// Finds the intervals of all values, for inputs within the given ranges, and constants clamped to a magnitude. States
/// of loops have no interval.
pub(super) fn find_intervals(module: &Module, inputs: &InputRanges, most: f64) -> Facts<Option<Interval>> {
    solve(module, &mut Forward { inputs, most })
}

struct Forward<'a> {
    inputs: &'a InputRanges,
    /// The largest magnitude of constants.
    most: f64,
}

impl Forward<'_> {
    /// The range of an input of the main graph.
    fn input_range(&self, module: &Module, value: Value) -> Option<Interval> {
        let data = module.value(value);
        let is_input = matches!(data.def, Def::Input { .. }) && data.graph == module.main();
        if self.inputs.is_empty() || !is_input {
            return None;
        }
        let (lo, hi) = self.inputs.get(&name_of(module, value))?;
        Interval::between(lo, hi)
    }
}

impl Analysis for Forward<'_> {
    type Fact = Option<Interval>;
    const DIRECTION: Direction = Direction::Forward;

    fn entry(&mut self, module: &Module, value: Value) -> Option<Interval> {
        let constant = || Interval::of_constant(module, value).map(|constant| constant.clamped(self.most));
        self.input_range(module, value).or_else(constant).or(Some(Interval::ALL))
    }

    fn transfer(
        &mut self,
        module: &Module,
        node: Node,
        slot: usize,
        facts: &Facts<Option<Interval>>,
    ) -> Option<Interval> {
        // Only the first result of TopK has elements of the operand.
        let view = NodeView::new(module, node).filter(|view| view.kind() != OpKind::TopK || slot == 0);
        let Some(view) = view else { return Some(Interval::ALL) };
        let interval = match view.kind() {
            OpKind::Constant => view.data().result(0).and_then(|value| Interval::of_constant(module, value)),
            OpKind::ConstantOfShape => filled(&view),
            _ => interval_of(&view, facts),
        };
        let interval = match view.kind() {
            OpKind::Constant | OpKind::ConstantOfShape => interval.map(|number| number.clamped(self.most)),
            _ => interval.filter(|&interval| fits_type(&view, slot, interval)),
        };
        interval.or(Some(Interval::ALL))
    }

    fn cross(&self, _: &Module, ports: &Ports, port: usize, known: Option<Interval>) -> Option<Interval> {
        if ports.is_state(port) { Some(Interval::ALL) } else { known }
    }
}

fn interval_of(view: &NodeView<'_>, facts: &Facts<Option<Interval>>) -> Option<Interval> {
    let module = view.module;
    let at = |i: usize| view.operand(i).and_then(|value| known(facts, module, value));
    if let Some((lo, hi)) = op::result_range(view.kind()) {
        return Some(Interval { lo, hi });
    }
    match view.kind() {
        OpKind::Exp => at(0).unwrap_or(Interval::ALL).grown(f64::exp),
        OpKind::Relu => at(0).unwrap_or(Interval::ALL).grown(|x| x.max(0.0)),
        OpKind::Abs => Some(at(0).unwrap_or(Interval::ALL).magnitudes()),
        OpKind::Sqrt => at(0).filter(|a| a.lo >= 0.0).unwrap_or(Interval::NOT_NEGATIVE).grown(f64::sqrt),
        OpKind::Pow => powered(at(0), module, view),
        OpKind::Mul if squares(module, view.node) => {
            let a = at(0).unwrap_or(Interval::ALL).magnitudes();
            a.times(a)
        }
        OpKind::Mul => at(0)?.times(at(1)?),
        OpKind::Add => at(0)?.plus(at(1)?),
        OpKind::Sub => at(0)?.plus(at(1)?.negated()),
        OpKind::Div if divides_by_own_sum(module, view) && at(0).is_some_and(|a| a.lo >= 0.0) => {
            Some(Interval::UNIT)
        }
        OpKind::Div if is_integer(view, 0) => at(0)?.divided_by(at(1)?)?.grown(f64::trunc),
        OpKind::Div => at(0)?.divided_by(at(1)?),
        OpKind::Reciprocal => Interval { lo: 1.0, hi: 1.0 }.divided_by(at(0)?),
        OpKind::Clip => clipped(view, at),
        OpKind::Max | OpKind::Min => {
            let greatest = view.kind() == OpKind::Max;
            let all: Vec<Interval> = (0..view.n_operands()).map(|i| at(i).unwrap_or(Interval::ALL)).collect();
            let joined = all.into_iter().reduce(|a, b| {
                let choose = if greatest { f64::max } else { f64::min };
                Interval { lo: choose(a.lo, b.lo), hi: choose(a.hi, b.hi) }
            });
            joined.filter(|&a| a != Interval::ALL)
        }
        OpKind::Cast if view.dtype(0) == Some(DType::Bool) => Some(Interval::UNIT),
        OpKind::Cast if is_integer(view, 0) => at(0)?.grown(f64::trunc),
        OpKind::Dropout if DropoutView::read(view).training != Some(false) => None,
        OpKind::ReduceSum | OpKind::CumSum | OpKind::PhiloxDropout => {
            at(0).filter(|a| a.lo >= 0.0).map(|_| Interval::NOT_NEGATIVE)
        }
        kind if op::stays_within_operand(kind) => at(0),
        kind => moved(kind, view, at),
    }
}

/// The interval of moved elements and of the fill: 0 for Trilu, MaxUnpool and CenterCropPad, 0 and a number for Pad.
fn moved(kind: OpKind, view: &NodeView<'_>, at: impl Fn(usize) -> Option<Interval>) -> Option<Interval> {
    if op::may_reduce(view.schema) && view.string("reduction") != Some("none") {
        return None;
    }
    let zero = Interval { lo: 0.0, hi: 0.0 };
    let leaves_zeros = matches!(kind, OpKind::Trilu | OpKind::MaxUnpool | OpKind::CenterCropPad);
    let pads = kind == OpKind::Pad;
    // Pad below version 11 has its value in an attribute.
    let number = if pads { view.float("value").map_or(0.0, f64::from) } else { 0.0 };
    let mut hull = (leaves_zeros || pads).then_some(zero.hull(Interval { lo: number, hi: number }));
    let mut any = false;
    for i in 0..view.n_operands() {
        let Some(sign) = op::moves(kind, i).filter(|_| view.has(i)) else { continue };
        let interval = match sign {
            Sign::Kept => at(i)?,
            Sign::Flipped => at(i)?.negated(),
        };
        any = true;
        hull = Some(hull.map_or(interval, |hull| hull.hull(interval)));
    }
    hull.filter(|_| any)
}

/// A power by a constant.
fn powered(base: Option<Interval>, module: &Module, view: &NodeView<'_>) -> Option<Interval> {
    let exponent = scalar(module, view.operand(1)?)?;
    let base = base.unwrap_or(Interval::ALL);
    if is_even(exponent) && exponent > 0.0 {
        return base.magnitudes().grown(|x| x.powf(exponent));
    }
    (base.lo >= 0.0 && exponent > 0.0).then(|| base.grown(|x| x.powf(exponent))).flatten()
}

/// The interval of the fill of a ConstantOfShape.
fn filled(view: &NodeView<'_>) -> Option<Interval> {
    let number = match view.attr("value") {
        Some(AttrValue::Tensor(data)) => *data.small_floats(1)?.first()?,
        _ => 0.0,
    };
    Interval::between(number, number)
}

/// The interval of the result of a Clip: min(max(x, least), greatest).
fn clipped(view: &NodeView<'_>, at: impl Fn(usize) -> Option<Interval>) -> Option<Interval> {
    let clip = ClipView::read(view);
    let bound = |bound: Bound, none: f64| match bound {
        Bound::Number(number) => Interval { lo: f64::from(number), hi: f64::from(number) },
        Bound::Operand(i) => {
            let constant = || view.operand(i).and_then(|value| Interval::of_constant(view.module, value));
            at(i).or_else(constant).unwrap_or(Interval::ALL)
        }
        Bound::None => Interval { lo: none, hi: none },
    };
    let all = at(0).unwrap_or(Interval::ALL);
    let (least, greatest) = (bound(clip.min, f64::NEG_INFINITY), bound(clip.max, f64::INFINITY));
    let lo = all.lo.max(least.lo).min(greatest.lo);
    let found = Interval::between(lo, all.hi.max(least.hi).min(greatest.hi))?;
    (found != Interval::ALL).then_some(found)
}

/// True if a result of a node is an integer.
fn is_integer(view: &NodeView<'_>, slot: usize) -> bool {
    let result = view.data().result(slot);
    let dtype = result.and_then(|value| view.module.value(value).ty.element_dtype());
    dtype.is_some_and(DType::is_integer)
}

/// True if an interval is within the type of a result. Integers outside of their type wrap.
fn fits_type(view: &NodeView<'_>, slot: usize, interval: Interval) -> bool {
    if !is_integer(view, slot) {
        return true;
    }
    let dtype = view.data().result(slot).and_then(|value| view.module.value(value).ty.element_dtype());
    let range = Range::of_type(dtype);
    interval == Interval::ALL || range.lo() <= interval.lo && interval.hi <= range.hi()
}

/// True if each sum is aligned with its terms when it is broadcast: the reduced axes are kept, or the sum is a scalar.
fn keeps_place(module: &Module, node: Node) -> bool {
    let keeps_axes =
        NodeView::new(module, node).and_then(|view| view.int("keepdims")).is_none_or(|keeps| keeps != 0);
    let rank = |value| module.value(value).ty.as_tensor().and_then(|tensor| tensor.shape.rank());
    keeps_axes || module.node(node).result(0).and_then(rank) == Some(0)
}

/// True if a node divides a value by its own sum, so that no quotient is above 1 if no element is negative.
fn divides_by_own_sum(module: &Module, view: &NodeView<'_>) -> bool {
    let (Some(value), Some(mut divisor)) = (view.operand(0), view.operand(1)) else { return false };
    let value = flow::behind_casts(module, value);
    for _ in 0..=MAX_EPSILONS {
        divisor = flow::behind_casts(module, divisor);
        let Some((node, _)) = module.producer(divisor) else { return false };
        let data = module.node(node);
        let operand = |i| data.operand(i);
        match kind(module, node) {
            Some(OpKind::ReduceSum) => {
                let is_own = operand(0).is_some_and(|summed| flow::behind_casts(module, summed) == value);
                return is_own && keeps_place(module, node);
            }
            Some(OpKind::Add | OpKind::Max | OpKind::Clip) => {
                let computed = (0..2).filter_map(operand).find(|&value| scalar(module, value).is_none());
                let Some(next) = computed else { return false };
                divisor = next;
            }
            _ => return false,
        }
    }
    false
}
