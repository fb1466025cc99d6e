//! The sinks that a value reaches: the operands that amplify its errors, read directly or behind operators that pass
//! errors on.
//!
//! This is a backward slice: a walk from the rows of [`AMPLIFIERS`] and from differences of nearly equal numbers to the
//! values that they are computed from, through operators that move, add, multiply and round. Products of matrices,
//! norms and functions with bounds end most slices: after them an error is one among many, or small. For example, from
//! bottom to top:
//!
//! ```text
//! %a = Add(%h, %bias)          %h and %bias reach it too: an Add passes everything on
//! %y = Log(%a)                 %a reaches a sink: its errors relative to its distance from 0 count
//! %z = MatMul(%y, %w)          %y reaches nothing: a product of matrices passes nothing on
//! ```
//!
//! An operator that no match below names passes nothing on; guards then find less.

use super::differences::averages;
use super::{Interval, Numerics, Properties, is_product, kind, repeat, scalar, squares, terms};
use crate::analysis::cost::Sizes;
use crate::graph::flow;
use ampc_ir::convert::{Conversion, can_convert, convert, max_finite, min_normal, unit_roundoff};
use ampc_ir::op::{self, AMPLIFIERS, Amplified, Amplifier, Class, OpKind};
use ampc_ir::views::{NodeView, constant_of};
use ampc_ir::{DType, Module, Node, Value};
use std::ops::{BitOr, BitOrAssign};

/// The distance from 0 from which a divisor, or the operand of a root or logarithm, does not amplify errors much, if
/// all its elements have this distance, like those of 1 + |x|. Elements that may be nearer may be arbitrarily near, so
/// such an operand is a sink.
const FAR_FROM_ZERO: f64 = 0.5;

/// The factor from which a multiplication magnifies a difference, and the rounding errors of its terms with it: by 3 of
/// the 11 bits that f16 has. Smaller factors, such as the 2 of 2ab, are part of ordinary formulas and do not count.
const MAGNIFIED: f64 = 8.0;

/// The largest distance of the elements of a constant from 1 or −1 for which the difference of the constant and a value
/// near 1 cancels: 1 − p, and 1.0001 − p. The distance from 2, or from the bias of a norm, is not small.
const NEAR_ONE: f64 = 0.125;

/// The number of elements of the largest divisor that is searched for elements that vanish; larger divisors count as
/// having none.
const MAX_DIVISORS: u64 = 1 << 16;

/// The maximal number of matrices between an input and the explained part of the input: the components, and back.
const MAX_FACTORS: usize = 2;

/// The maximal number of terms of a product that combines the parts of a coordinate (bones, control points, corners).
/// Products of more terms are layers of a network, which pass no coordinate on.
const FEW_PARTS: u64 = 64;

/// The maximal number of Pads, which put a border around an image, between a value and the operator that smooths it.
const MAX_PADS: usize = 1;

/// A set of kinds of sinks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Sink(u16);

impl Sink {
    pub(crate) const NOTHING: Sink = Sink(0);
    /// [`Amplified::Exponent`].
    pub(crate) const EXPONENT: Sink = Sink(1);
    /// [`Amplified::Angle`] or [`Amplified::Position`]: a coordinate on a circle or on a grid.
    pub(crate) const POSITION: Sink = Sink(1 << 1);
    /// [`Amplified::Zero`].
    pub(crate) const ZERO: Sink = Sink(1 << 2);
    /// [`Amplified::One`], or a difference from a constant that reaches [`Amplified::Zero`]: log(1 − p).
    pub(crate) const ONE: Sink = Sink(1 << 3);
    /// A term of a difference of nearly equal numbers, or a dividend whose divisor is tiny.
    pub(crate) const CANCELLATION: Sink = Sink(1 << 4);
    /// The product in a distance, ‖a‖² + ‖b‖² − 2ab, or in a cosine, ab / (‖a‖·‖b‖).
    pub(crate) const DISTANCE: Sink = Sink(1 << 5);
    /// A sum or mean over an axis.
    pub(crate) const SUM: Sink = Sink(1 << 6);
    /// A logarithm.
    pub(crate) const LOG: Sink = Sink(1 << 7);
    /// A square or norm whose logarithm is taken.
    pub(crate) const LOG_OF_SQUARES: Sink = Sink(1 << 8);
    /// A multiplication by [`MAGNIFIED`] or more.
    pub(crate) const MAGNIFIED: Sink = Sink(1 << 9);
    /// [`Amplified::Choice`].
    pub(crate) const CHOICE: Sink = Sink(1 << 10);
    /// The difference of an input and the result of arithmetic on inputs: a residual.
    pub(crate) const RESIDUAL: Sink = Sink(1 << 11);
    /// A term of a difference that is magnified, or the dividend of a cosine.
    pub(crate) const ENLARGED: Sink = Sink(1 << 12);
    /// A comparison with a threshold that makes spikes: numbers 0 and 1 that are counted.
    pub(crate) const THRESHOLD: Sink = Sink(1 << 13);
    /// A coordinate or angle that is a linear function of the value, made by moves, sums, scaling and products of at
    /// most [`FEW_PARTS`] terms. Control points are such parts of the points of a spline, and bones of a skin.
    pub(crate) const PART_OF_POSITION: Sink = Sink(1 << 14);

    /// All kinds that amplify errors. The other kinds give details.
    pub(crate) const AMPLIFIERS: Sink = Sink(
        Sink::EXPONENT.0
            | Sink::POSITION.0
            | Sink::ZERO.0
            | Sink::ONE.0
            | Sink::CANCELLATION.0
            | Sink::DISTANCE.0
            | Sink::CHOICE.0
            | Sink::RESIDUAL.0
            | Sink::ENLARGED.0
            | Sink::THRESHOLD.0
            | Sink::PART_OF_POSITION.0,
    );

    /// True if the set has one of the other kinds.
    pub(crate) fn any(self, others: Sink) -> bool {
        self.0 & others.0 != 0
    }
    fn among(self, others: Sink) -> Sink {
        Sink(self.0 & others.0)
    }
    fn without(self, others: Sink) -> Sink {
        Sink(self.0 & !others.0)
    }
}

impl BitOr for Sink {
    type Output = Sink;
    fn bitor(self, other: Sink) -> Sink {
        Sink(self.0 | other.0)
    }
}

impl BitOrAssign for Sink {
    fn bitor_assign(&mut self, other: Sink) {
        self.0 |= other.0;
    }
}

/// The sinks that a value reaches.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Sinks {
    /// The kinds that are reached through some reader.
    pub(crate) some: Sink,
    /// The kinds that are reached through every reader, so that the value has no other use.
    pub(crate) all: Sink,
    /// The index of the first row of [`AMPLIFIERS`] that was found, if a row is reached.
    row: Option<u8>,
}

impl Sinks {
    /// An amplifier that the value reaches, for the evidence of a decision.
    pub(crate) fn amplifier(self) -> Option<&'static Amplifier> {
        AMPLIFIERS.get(usize::from(self.row?))
    }

    /// The sinks of a value with two readers.
    pub(crate) fn and(self, other: Sinks) -> Sinks {
        Sinks { some: self.some | other.some, all: self.all.among(other.all), row: self.row.or(other.row) }
    }

    /// The sinks of some kinds.
    fn among(self, kinds: Sink) -> Sinks {
        let some = self.some.among(kinds);
        Sinks { some, all: self.all.among(kinds), row: self.row.filter(|_| some.any(Sink::AMPLIFIERS)) }
    }

    fn with(mut self, sink: Sink) -> Sinks {
        self.some |= sink;
        self.all |= sink;
        self
    }
}

fn sink_of(what: Amplified) -> Sink {
    match what {
        Amplified::Exponent => Sink::EXPONENT,
        Amplified::Angle | Amplified::Position => Sink::POSITION | Sink::PART_OF_POSITION,
        Amplified::Zero => Sink::ZERO,
        Amplified::One => Sink::ONE,
        Amplified::Choice => Sink::CHOICE,
    }
}

impl Numerics {
    /// Finds the sinks of all values. Bodies come after the nodes that own them, so one backward walk visits the inside
    /// of a node before its surroundings. Values that leave a body are visited again in the next walk.
    pub(super) fn find_sinks(&mut self, module: &Module, nodes: &[Node], to: DType) {
        repeat(module, || {
            let mut found = false;
            for &node in nodes.iter().rev() {
                let results = module.node(node).results().iter().copied().flatten();
                let inputs = module.node(node).bodies().flat_map(|body| module.graph(body).inputs().to_vec());
                for value in results.chain(inputs).collect::<Vec<_>>() {
                    let sinks = self.sinks_of(module, value, to);
                    found |= sinks != self.sinks[value];
                    self.sinks[value] = sinks;
                }
            }
            found
        });
    }

    /// The sinks that a value reaches, computed from the sinks of the results of its readers.
    fn sinks_of(&self, module: &Module, value: Value, to: DType) -> Sinks {
        let mut found: Option<Sinks> = None;
        let mut work = vec![value];
        while let Some(value) = work.pop() {
            let graph = module.value(value).graph;
            for slot in module.output_slots(value) {
                let reader = flow::Reader::Output(graph, slot);
                let sinks = flow::var_of_reader(module, reader).map(|port| self.through_port(module, port));
                found = Some(found.map_or(sinks.unwrap_or_default(), |f| f.and(sinks.unwrap_or_default())));
            }
            for (node, slot) in module.uses(value) {
                let n_formal = module.node(node).n_formal();
                if slot as usize >= n_formal {
                    let bodies = module.node(node).bodies();
                    work.extend(bodies.flat_map(|body| module.graph(body).captures_of(slot).to_vec()));
                    continue;
                }
                let sinks = self.through(module, node, slot, to);
                found = Some(found.map_or(sinks, |f| f.and(sinks)));
            }
        }
        found.unwrap_or_default()
    }

    fn through_port(&self, module: &Module, port: flow::Var) -> Sinks {
        let results = flow::results_of(module, port).map(|(_, result)| self.sinks[result]);
        results.reduce(Sinks::and).unwrap_or_default()
    }

    /// The sinks that a value reaches through one of its readers.
    pub(crate) fn through(&self, module: &Module, node: Node, slot: u32, to: DType) -> Sinks {
        if let Some(port) = flow::reader_var(module, node, slot).filter(|&var| flow::is_port(module, var)) {
            return self.through_port(module, port);
        }
        let Some(kind) = kind(module, node) else { return Sinks::default() };
        let data = module.node(node);
        let at = slot as usize;
        let Some(operand) = data.operand(at) else { return Sinks::default() };
        let float = |value: Value| module.value(value).ty.dtype().is_some_and(DType::is_float);
        let results = data.results().iter().copied().flatten().filter(|&value| float(value));
        // A result without readers does not count as a use without sinks.
        let read = results.filter(|&value| module.uses(value).next().is_some() || is_output(module, value));
        let results = read.map(|value| self.sinks[value]).reduce(Sinks::and).unwrap_or_default();
        let mut sinks = results.among(self.passed(module, node, kind, at));
        let row = AMPLIFIERS.iter().position(|row| row.kind == kind && row.operand == at);
        let row = row.filter(|&row| {
            let far = AMPLIFIERS[row].what == Amplified::Zero && self.is_far_from_zero(module, operand);
            !far && !is_low_anyway(module, node, slot)
        });
        if let Some(row) = row {
            sinks = sinks.with(sink_of(AMPLIFIERS[row].what));
            if kind == OpKind::Log {
                sinks = sinks.with(Sink::LOG);
            }
            sinks.row = u8::try_from(row).ok();
        }
        if op::sums(kind) && at == 0 {
            sinks = sinks.with(Sink::SUM);
        }
        if (squares(module, node) || kind == OpKind::ReduceL2) && results.some.any(Sink::LOG) {
            sinks = sinks.with(Sink::LOG_OF_SQUARES);
        }
        if is_threshold(module, node, at) {
            sinks = sinks.with(Sink::THRESHOLD);
        }
        sinks.with(self.cancels(module, node, operand, results.some, to))
    }

    /// True if no element is near 0, like those of 1 + |x|.
    fn is_far_from_zero(&self, module: &Module, value: Value) -> bool {
        self.interval(module, value).is_some_and(|i| i.lo >= FAR_FROM_ZERO || i.hi <= -FAR_FROM_ZERO)
    }

    /// The kinds of sinks that an operator passes on from its results to an operand: the transfer function of the walk.
    fn passed(&self, module: &Module, node: Node, kind: OpKind, slot: usize) -> Sink {
        let everything = Sink(u16::MAX);
        if op::moves(kind, slot).is_some() || op::adds(kind) {
            return everything;
        }
        let scales = || {
            let others = module.node(node).formal_operands().iter().enumerate();
            others.filter(|&(i, _)| i != slot).filter_map(|(_, &v)| v).all(|v| self.is_constant(module, v))
        };
        // These kinds concern the value itself, which only moving, adding and scaling preserve: a sum of |x| is not a
        // sum of x.
        let linear = Sink::SUM
            | Sink::DISTANCE
            | Sink::LOG_OF_SQUARES
            | Sink::MAGNIFIED
            | Sink::ENLARGED
            | Sink::PART_OF_POSITION;
        match kind {
            OpKind::Mul if scales() => everything,
            OpKind::Div if slot == 0 && scales() => everything,
            _ if op::sums(kind) => everything.without(linear),
            OpKind::Mul
            | OpKind::Div
            | OpKind::Pow
            | OpKind::Sqrt
            | OpKind::Reciprocal
            | OpKind::Abs
            | OpKind::ReduceMax
            | OpKind::ReduceMin
            | OpKind::MaxPool
            | OpKind::GlobalMaxPool => everything.without(linear),
            OpKind::Relu | OpKind::LeakyRelu | OpKind::Clip | OpKind::Max | OpKind::Min => {
                everything.without(Sink::DISTANCE | Sink::ENLARGED | Sink::PART_OF_POSITION)
            }
            OpKind::CumSum | OpKind::Dropout | OpKind::PhiloxDropout | OpKind::Resize | OpKind::Upsample
                if slot == 0 =>
            {
                everything.without(linear)
            }
            OpKind::Floor | OpKind::Ceil | OpKind::Round | OpKind::Mod => Sink::POSITION,
            OpKind::Tanh | OpKind::Sigmoid | OpKind::HardSigmoid | OpKind::Softsign | OpKind::Erf => {
                Sink::POSITION | Sink::EXPONENT
            }
            OpKind::Exp | OpKind::Log | OpKind::Atan | OpKind::Asin | OpKind::Acos => Sink::POSITION,
            // The third operand of a product is added to it.
            _ if is_product(kind) && slot == 2 && kind != OpKind::Einsum => everything,
            _ if is_product(kind) => {
                let has = |value: Option<Value>, p| value.is_some_and(|v| self.properties(module, v).has(p));
                let data = module.node(node);
                let squares = scales() && has(data.operand(slot), Properties::SQUARES);
                let view = NodeView::new(module, node).filter(|_| op::is_single_product(kind));
                let combines =
                    view.is_some_and(|view| terms(module, &view, Sizes::default().other) <= FEW_PARTS);
                when(squares, Sink::ZERO | Sink::LOG | Sink::CANCELLATION)
                    | when(has(data.result(0), Properties::ARITHMETIC), Sink::RESIDUAL)
                    | when(combines, Sink::PART_OF_POSITION)
            }
            _ => Sink::NOTHING,
        }
    }

    /// The sinks that an operand reaches as a term of a sum that may cancel, as a dividend, or as a factor of a
    /// magnified product. `results` are the sinks of the result of the node.
    fn cancels(&self, module: &Module, node: Node, operand: Value, results: Sink, to: DType) -> Sink {
        let data = module.node(node);
        let (Some(a), Some(b)) = (data.operand(0), data.operand(1)) else { return Sink::NOTHING };
        match kind(module, node) {
            Some(OpKind::Div) if operand == a => self.of_quotient(module, a, b, to) | magnifies(module, node),
            Some(OpKind::Mul) => magnifies(module, node),
            Some(kind) if op::adds(kind) => {
                let other = if operand == a { b } else { a };
                self.of_sum(module, node, [a, b], results)
                    | when(
                        results.any(Sink::ZERO) && subtracts(module, node) && self.is_one(module, other),
                        Sink::ONE,
                    )
            }
            _ => Sink::NOTHING,
        }
    }

    /// True if a value is a constant whose numbers are all near 1, or near −1.
    fn is_one(&self, module: &Module, value: Value) -> bool {
        let magnitudes = self.interval(module, value).filter(|_| self.is_constant(module, value));
        magnitudes.map(Interval::magnitudes).is_some_and(|i| i.lo >= 1.0 - NEAR_ONE && i.hi <= 1.0 + NEAR_ONE)
    }

    /// The sinks of a dividend: a quotient by tiny numbers is large, and a cosine may be as small as its product.
    fn of_quotient(&self, module: &Module, dividend: Value, divisor: Value, to: DType) -> Sink {
        let is_cosine = self.properties(module, divisor).has(Properties::PRODUCTS_OF_NORMS)
            && self.properties(module, dividend).has(Properties::PRODUCT);
        when(vanishes(module, divisor, to), Sink::CANCELLATION) | when(is_cosine, Sink::ENLARGED)
    }

    /// The sinks of the terms of a sum or difference that may be much smaller than its terms.
    fn of_sum(&self, module: &Module, node: Node, terms: [Value; 2], results: Sink) -> Sink {
        let mut sink = Sink::NOTHING;
        if self.is_distance(module, node) {
            sink |= Sink::DISTANCE | Sink::CANCELLATION;
        }
        if self.is_difference_of_squares(module, node) {
            sink |= Sink::CANCELLATION;
        }
        let computed = terms.iter().all(|&term| !self.is_constant(module, term));
        if subtracts(module, node) && computed {
            sink |= when(results.any(Sink::MAGNIFIED), Sink::ENLARGED | Sink::CANCELLATION);
            let smoothed = is_smoothed(module, terms[0], terms[1]);
            sink |= when(smoothed, Sink::DISTANCE | Sink::CANCELLATION);
        }
        sink | when(self.is_residual(module, node), Sink::RESIDUAL)
    }

    /// True if a node subtracts the result of arithmetic on inputs from an input, or the input from the result: the
    /// residual of a fit, an innovation, the distance from a plane. The arithmetic must contain a product of matrices,
    /// and no layer of a network.
    pub(crate) fn is_residual(&self, module: &Module, node: Node) -> bool {
        let data = module.node(node);
        let (Some(a), Some(b)) = (data.operand(0), data.operand(1)) else { return false };
        let made = Properties::ARITHMETIC | Properties::OF_PRODUCT;
        let is_made = |value: Value| {
            let properties = self.properties(module, value);
            properties.has(made) && !properties.has(Properties::OF_LAYER)
        };
        let is_raw = |value: Value| self.properties(module, value).has(Properties::RAW);
        let fits = is_raw(a) && is_made(b) || is_made(a) && is_raw(b);
        match kind(module, node) {
            Some(OpKind::Sub) => fits || self.leaves_rest(module, a, b),
            _ => false,
        }
    }

    /// True if the second value is the first value, an input, multiplied by at most [`MAX_FACTORS`] constant matrices:
    /// the part of the input that principal components explain.
    fn leaves_rest(&self, module: &Module, value: Value, explained: Value) -> bool {
        let value = flow::behind_casts(module, value);
        if !self.properties(module, value).has(Properties::RAW) {
            return false;
        }
        let mut explained = flow::behind_casts(module, explained);
        for _ in 0..MAX_FACTORS {
            let Some((node, _)) = module.producer(explained) else { return false };
            let data = module.node(node);
            let others = || data.formal_operands().iter().skip(1).flatten();
            if !kind(module, node).is_some_and(op::is_single_product)
                || !others().all(|&v| self.is_constant(module, v))
            {
                return false;
            }
            let Some(of) = data.operand(0) else { return false };
            explained = flow::behind_casts(module, of);
            if explained == value {
                return true;
            }
        }
        false
    }

    /// True if a node is E[x²] − E[x]² or another difference of squares of computed values.
    pub(crate) fn is_difference_of_squares(&self, module: &Module, node: Node) -> bool {
        let data = module.node(node);
        let squares =
            |i| data.operand(i).is_some_and(|v| self.properties(module, v).has(Properties::SQUARES));
        subtracts(module, node) && squares(0) && squares(1)
    }

    /// True if a node adds squared norms and a product: ‖a‖² + ‖b‖² − 2ab.
    pub(crate) fn is_distance(&self, module: &Module, node: Node) -> bool {
        let data = module.node(node);
        let properties =
            |i: usize| data.operand(i).map_or(Properties::NOTHING, |v| self.properties(module, v));
        let is_norm = |properties: Properties| properties.has(Properties::SUMMED_SQUARES);
        let is_product = |properties: Properties| {
            properties.has(Properties::PRODUCT) && !properties.has(Properties::SQUARES)
        };
        let adds = kind(module, node).is_some_and(op::adds);
        adds && (is_norm(properties(0)) && is_product(properties(1))
            || is_product(properties(0)) && is_norm(properties(1)))
    }
}

fn when(holds: bool, sink: Sink) -> Sink {
    if holds { sink } else { Sink::NOTHING }
}

/// [`Sink::MAGNIFIED`] if a node multiplies by a large constant, or divides by a small one.
fn magnifies(module: &Module, node: Node) -> Sink {
    let data = module.node(node);
    let constant = |i: usize| data.operand(i).and_then(|value| scalar(module, value)).map(f64::abs);
    let is_large = match kind(module, node) {
        Some(OpKind::Mul) => constant(0).or(constant(1)).is_some_and(|by| by >= MAGNIFIED),
        Some(OpKind::Div) => constant(1).is_some_and(|by| by <= MAGNIFIED.recip()),
        _ => false,
    };
    when(is_large, Sink::MAGNIFIED)
}

/// True if the second value is the first value smoothed: its convolution, or the means of its windows. The difference
/// of the two is a high-pass filter.
fn is_smoothed(module: &Module, value: Value, smooth: Value) -> bool {
    let value = flow::behind_casts(module, value);
    let Some((node, _)) = module.producer(flow::behind_casts(module, smooth)) else { return false };
    let is_window = matches!(kind(module, node), Some(OpKind::Conv | OpKind::AveragePool));
    if !is_window && !averages(module, node) {
        return false;
    }
    let mut of = module.node(node).operand(0);
    for _ in 0..=MAX_PADS {
        let Some(behind) = of.map(|of| flow::behind_casts(module, of)) else { return false };
        if behind == value {
            return true;
        }
        let pad = module.producer(behind).filter(|&(pad, _)| kind(module, pad) == Some(OpKind::Pad));
        of = pad.and_then(|(pad, _)| module.node(pad).operand(0));
    }
    false
}

/// True if an operand is compared with a constant other than 0 and the outcome is counted: cast to a float, and added
/// to or subtracted from a computed value.
fn is_threshold(module: &Module, node: Node, slot: usize) -> bool {
    let data = module.node(node);
    let compares = kind(module, node).is_some_and(op::compares);
    let by = data.operand(1 - slot.min(1)).and_then(|other| scalar(module, other));
    let Some(outcome) = data.result(0).filter(|_| compares && by.is_some_and(|by| by != 0.0)) else {
        return false;
    };
    module.uses(outcome).any(|(cast, _)| {
        let counted = module.node(cast).result(0).filter(|_| kind(module, cast) == Some(OpKind::Cast));
        counted.is_some_and(|value| {
            module.uses(value).any(|(reader, _)| {
                let others = module.node(reader).formal_operands().iter().flatten();
                kind(module, reader).is_some_and(op::adds)
                    && others.copied().all(|other| constant_of(module, other).is_none())
            })
        })
    })
}

fn is_output(module: &Module, value: Value) -> bool {
    module.output_slots(value).next().is_some()
}

/// True if a node reads an operand in the low format whatever is decided about the producer of the operand.
fn is_low_anyway(module: &Module, node: Node, slot: u32) -> bool {
    let var = flow::reader_var(module, node, slot);
    var.and_then(|var| flow::decision(module, var)).is_some_and(|d| match d.precision {
        Some(precision) => precision.is_low(),
        None => d.class == Class::Allow && kind(module, node) != Some(OpKind::Attention),
    })
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

/// True if a constant divisor has elements that are not 0, but round to 0 or lose digits below the normal range.
fn vanishes(module: &Module, divisor: Value, to: DType) -> bool {
    let Some(data) = constant_of(module, flow::behind_casts(module, divisor)) else { return false };
    let numbers = data.small_floats(MAX_DIVISORS).unwrap_or_default();
    worst_rounding_error(&numbers, to) > unit_roundoff(to).unwrap_or(1.0)
}

/// The largest error of rounding one of these numbers to a format, relative to the number. 0 and numbers that do not
/// fit count as exact.
pub(crate) fn worst_rounding_error(numbers: &[f64], to: DType) -> f64 {
    let (smallest, most) = (min_normal(to).unwrap_or(0.0), max_finite(to).unwrap_or(f64::INFINITY));
    let counts = |number: f64| number != 0.0 && number.abs() <= most && can_convert(DType::F64, to);
    let error = |&number: &f64| {
        // The error of a normal number is at most the unit roundoff.
        if !counts(number) || number.abs() >= smallest {
            return 0.0;
        }
        let (mut low, mut wide) = (Vec::new(), Vec::new());
        convert(DType::F64, Conversion { to, clamp: true }, &number.to_le_bytes(), &mut low);
        convert(to, Conversion { to: DType::F64, clamp: false }, &low, &mut wide);
        let stored = wide.as_chunks::<8>().0.first().map_or(number, |&bytes| f64::from_le_bytes(bytes));
        ((stored - number) / number).abs()
    };
    numbers.iter().map(error).fold(0.0, f64::max)
}
