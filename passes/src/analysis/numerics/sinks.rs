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

mod terms;
mod transfer;

pub(crate) use self::terms::worst_rounding_error;

use super::recurrences::{is_repeated_squaring, refines_inverse};
use super::spectra::{divides_parts, is_root, is_small_power};
use super::{Numerics, Properties, is_gram, is_product, kind, repeat, scalar, squares};
use crate::graph::flow;
use ampc_ir::op::{self, AMPLIFIERS, Amplified, Amplifier, Class, OpKind};
use ampc_ir::views::constant_of;
use ampc_ir::{DType, Module, Node, Value};
use std::ops::{BitOr, BitOrAssign};

/// The distance from 0 from which a divisor, or the operand of a root or logarithm, does not amplify errors much, if
/// all its elements have this distance, like those of 1 + |x|. Elements that may be nearer may be arbitrarily near, so
/// such an operand is a sink.
const FAR_FROM_ZERO: f64 = 0.5;

/// A set of kinds of sinks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Sink(u32);

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
    /// A logarithm, or a small power.
    pub(crate) const LOG: Sink = Sink(1 << 7);
    /// A value whose small elements count beside large ones, as those of a spectrum: a square or norm whose logarithm or
    /// small power is taken, and parts of quotients that even elements out.
    pub(crate) const SPECTRUM: Sink = Sink(1 << 8);
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
    /// A state that is multiplied by a factor near 1 at every step.
    pub(crate) const STATE: Sink = Sink(1 << 15);

    /// A square root, or a power below 1.
    pub(crate) const ROOT: Sink = Sink(1 << 16);

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
            | Sink::PART_OF_POSITION.0
            | Sink::STATE.0,
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
            if kind == OpKind::Log || is_small_power(module, node) {
                sinks = sinks.with(Sink::LOG);
            }
            sinks.row = u8::try_from(row).ok();
        }
        if is_root(module, node) && at == 0 {
            sinks = sinks.with(Sink::ROOT);
        }
        if super::sums(module, node) && at == 0 {
            sinks = sinks.with(Sink::SUM);
        }
        let measures = || squares(module, node) || kind == OpKind::ReduceL2 || is_gram(module, node);
        if results.some.any(Sink::LOG) && measures()
            || kind == OpKind::Abs && results.some.any(Sink::LOG | Sink::ROOT)
        {
            sinks = sinks.with(Sink::SPECTRUM);
        }
        sinks = sinks.with(self.of_formulas(module, node, at));
        let is_weight = is_product(kind) && self.properties(module, operand).has(Properties::DISTRIBUTION);
        if is_weight && results.some.any(Sink::RESIDUAL | Sink::ENLARGED) {
            sinks = sinks.with(Sink::CANCELLATION);
        }
        if is_threshold(module, node, at) {
            sinks = sinks.with(Sink::THRESHOLD);
        }
        sinks.with(self.cancels(module, node, operand, results, to))
    }

    /// The sinks of an operand by the formula that it is a part of.
    fn of_formulas(&self, module: &Module, node: Node, slot: usize) -> Sink {
        let is_computed =
            module.node(node).operand(slot).is_some_and(|operand| !super::is_constant(module, operand));
        let cancels = is_computed
            && (self.is_stencil(node)
                || is_repeated_squaring(module, node)
                || refines_inverse(module, node).is_some() && slot == 1
                || divides_parts(module, node)
                || self.removes_offset(module, node, slot));
        when(cancels, Sink::ENLARGED | Sink::CANCELLATION)
            | when(self.normalizes_elements(module, node, slot), Sink::SPECTRUM)
            | when(self.decays(module, node) == Some(slot), Sink::STATE)
            | when(self.is_beside_one(module, node, slot), Sink::ONE)
    }

    /// True if no element is near 0, like those of 1 + |x|.
    fn is_far_from_zero(&self, module: &Module, value: Value) -> bool {
        self.interval(module, value).is_some_and(|i| i.lo >= FAR_FROM_ZERO || i.hi <= -FAR_FROM_ZERO)
    }
}

fn when(holds: bool, sink: Sink) -> Sink {
    if holds { sink } else { Sink::NOTHING }
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
