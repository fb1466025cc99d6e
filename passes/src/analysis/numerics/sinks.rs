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

use super::facts::Numerics;
use super::operators::is_product;
use super::operators::{kind, repeat, scalar};
use super::properties::Properties;
use super::recurrences::{is_repeated_squaring, refines_inverse};
use super::sink::{Sink, Sinks, sink_of, when};
use super::spectra::{divides_parts, is_root, is_small_power};
use super::squares::{is_gram, squares, sums};
use crate::graph::flow;
use ampc_ir::op::{self, AMPLIFIERS, Amplified, Class, OpKind};
use ampc_ir::views::constant_of;
use ampc_ir::{DType, Module, Node, Value};

/// The distance from 0 from which a divisor, or the operand of a root or logarithm, does not amplify errors much, if
/// all its elements have this distance, like those of 1 + |x|. Elements that may be nearer may be arbitrarily near, so
/// such an operand is a sink.
const FAR_FROM_ZERO: f64 = 0.5;

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
        if is_root(module, node) && at == 0 && !self.is_far_from_zero(module, operand) {
            sinks = sinks.with(Sink::ROOT);
        }
        if sums(module, node) && at == 0 {
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
        let is_computed = module
            .node(node)
            .operand(slot)
            .is_some_and(|operand| !super::operators::is_constant(module, operand));
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
