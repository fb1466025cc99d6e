//! The guard on offsets: a mean that is far from 0 displaces the digits of the differences from the mean, and a norm enlarges
//! these differences.
//!
//! An input of 150 ± 1 has a spacing of 1/8 in f16. A norm scales the ±1 to about ±1, and the rounding errors of 1/16 with it.
//! PyTorch's autocast does not round a sum with the input, since one of its operands is fp32.
//!
//! ```text
//! input %x
//! %f = MatMul(%x, %w)             low
//! %s = Add(%x, %f)                fp32: %x may bring an offset, and norms alone read %s
//! %t = Reshape(%s, %shape)        fp32
//! %n = LayerNormalization(%t)     fp32: removes the offset
//! %g = MatMul(%n, %w)             low
//! %u = Add(%x, %g)                low: %v reads it too
//! %m = LayerNormalization(%u)     low
//! %v = Add(%u, %f)
//! ```
//!
//! A given range shows that an input lies far from 0; then all sums with the input are found. Other inputs may lie far from 0
//! unless their range has 0 in the middle. Activations rarely do, so such an input counts only where it costs little: norms alone
//! read the sum, and fp32 adds the casts around one norm. Sums of a residual stream have other readers and stay low, and so
//! do norms of the input itself, which the first block of such a stream reads.

use super::Cx;
use crate::analysis::numerics::{Interval, removes_mean, scales_groups};
use crate::graph::flow::{self, Var};
use ampc_ir::module::Def;
use ampc_ir::op::{self, Class, OpKind};
use ampc_ir::verify::name_of;
use ampc_ir::{DType, Module, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// The maximal number of operators between a sum and the norms that read it.
const MAX_STEPS: usize = 8;

/// The number of operands of a norm that adds operands before it subtracts the mean.
const MAX_SLOTS: usize = 5;

/// Denies norms of values that lie far from 0 or may, and the operators between the input and the norm. Products stay low: the
/// network was trained with the offsets of their results.
pub(super) fn offset(cx: &mut Cx<'_>) {
    for (is_given, words) in [(true, "lies far from 0"), (false, "may lie far from 0")] {
        let mut offsets = Offsets { is_given, ..Offsets::default() };
        offsets.find(cx);
        for (var, input) in offsets.before_means(cx) {
            let is_product = flow::decision(cx.module, var).is_some_and(|d| d.class == Class::Allow);
            if !is_product {
                let name = name_of(cx.module, input);
                cx.deny(var, || format!("`{name}` {words}, and its mean is subtracted"));
            }
        }
    }
}

/// The values that the offset of an input reaches.
#[derive(Default)]
struct Offsets {
    /// True for inputs with a range that lies far from 0; false for inputs that may lie far from 0.
    is_given: bool,
    /// The values, each with the input.
    input_of: FxHashMap<Value, Value>,
    /// The values among them behind a sum, or behind a multiplication by computed factors.
    sums: FxHashSet<Value>,
    /// The variable that makes a value, and the values that have the offset before it.
    made_of: FxHashMap<Value, (Var, Vec<Value>)>,
}

impl Offsets {
    /// Follows the offsets of the inputs forward.
    fn find(&mut self, cx: &Cx<'_>) {
        let module = &*cx.module;
        let inputs = module.graph(module.main()).inputs().iter().copied();
        self.input_of =
            inputs.filter(|&value| self.has_offset(cx, value)).map(|value| (value, value)).collect();
        // A graph comes before its bodies, so a value that leaves a body is seen in the next walk.
        for _ in 0..if cx.has_bodies() { super::MAX_WALKS } else { 1 } {
            let before = self.input_of.len();
            for node in flow::nodes(module) {
                for port in flow::vars(module, node).filter(|&var| flow::is_port(module, var)) {
                    self.enter(module, port);
                }
                self.pass_through(cx, node);
            }
            if self.input_of.len() == before {
                break;
            }
        }
    }

    /// True for an input of floats, or of integers of 8 or 16 bits as of pixels, that lies far from 0 or may.
    fn has_offset(&self, cx: &Cx<'_>, input: Value) -> bool {
        let data = cx.module.value(input);
        let is_weight = matches!(data.def, Def::Input { default: Some(_), .. });
        let is_measured = data.ty.element_dtype().is_some_and(|dtype| {
            dtype.is_float() || matches!(dtype, DType::U8 | DType::I8 | DType::U16 | DType::I16)
        });
        let range = cx.numerics.interval(cx.module, input).filter(|range| range.magnitude().is_finite());
        let is_far = range.is_some_and(Interval::is_uncentered);
        let may_be = !is_far && !range.is_some_and(Interval::is_centered);
        is_measured && !is_weight && if self.is_given { is_far } else { may_be }
    }

    /// Passes offsets on to the values that enter or leave a body or function.
    fn enter(&mut self, module: &Module, port: Var) {
        let operands =
            flow::operands_of(module, port).map(|(_, value)| flow::resolve_captures(module, value));
        let before: Vec<Value> = operands.filter(|value| self.input_of.contains_key(value)).collect();
        let is_sum = before.iter().any(|value| self.sums.contains(value));
        for (_, result) in flow::results_of(module, port) {
            self.extend(port, result, &before, is_sum);
        }
    }

    /// Passes the offsets of operands on to the results of a node.
    fn pass_through(&mut self, cx: &Cx<'_>, node: Node) {
        let module = &*cx.module;
        let (mut before, mut is_sum) = (Vec::new(), false);
        for slot in 0..module.node(node).n_formal() {
            let Some(value) = cx.operand(node, slot).map(|value| flow::resolve_captures(module, value))
            else {
                continue;
            };
            let is_kept = keeps(cx, node, slot);
            if self.input_of.contains_key(&value) && (is_kept || adds(cx, node, slot)) {
                is_sum |= !is_kept || self.sums.contains(&value);
                before.push(value);
            }
        }
        let results = || module.node(node).results().iter().flatten().copied();
        let is_bounded = |range: &Interval| range.magnitude().is_finite();
        let range = |value| cx.numerics.interval(module, value).filter(is_bounded);
        let is_centered = |value| range(value).is_some_and(|range| !range.is_uncentered());
        let ends = |value| self.is_given || !is_sum || ends_at_norms(cx, value, MAX_STEPS);
        if before.is_empty() || !results().all(|value| !is_centered(value) && ends(value)) {
            return;
        }
        for result in results() {
            if let Some(var) = flow::producer_var(module, result) {
                self.extend(var, result, &before, is_sum);
            }
        }
    }

    /// Records that a variable makes a value of values with an offset.
    fn extend(&mut self, var: Var, result: Value, before: &[Value], is_sum: bool) {
        let Some(&input) = before.first().and_then(|value| self.input_of.get(value)) else { return };
        self.input_of.entry(result).or_insert(input);
        self.made_of.entry(result).or_insert_with(|| (var, before.to_vec()));
        if is_sum {
            self.sums.insert(result);
        }
    }

    /// The variables that subtract the mean of a value with an offset, and those that make the value, back to the input.
    fn before_means(&self, cx: &Cx<'_>) -> Vec<(Var, Value)> {
        let module = &*cx.module;
        let mut found = Vec::new();
        let mut work = Vec::new();
        for node in flow::nodes(module) {
            for slot in 0..module.node(node).n_formal() {
                let Some(value) = module.node(node).operand(slot) else { continue };
                let value = flow::resolve_captures(module, value);
                let Some(&input) = self.input_of.get(&value) else { continue };
                let kind = cx.kind(node);
                let has_sum =
                    kind.is_some_and(|kind| (1..MAX_SLOTS).any(|slot| op::subtracts_mean(kind, slot)));
                let counts = self.is_given || self.sums.contains(&value) || has_sum;
                if counts && removes_mean(module, node, slot) {
                    let var = u32::try_from(slot).ok().and_then(|slot| flow::reader_var(module, node, slot));
                    found.extend(var.map(|var| (var, input)));
                    work.push(value);
                }
            }
        }
        let mut seen: FxHashSet<Value> = FxHashSet::default();
        while let Some(value) = work.pop() {
            let (true, Some((var, before))) = (seen.insert(value), self.made_of.get(&value)) else {
                continue;
            };
            found.push((*var, self.input_of[&value]));
            work.extend(before);
        }
        found
    }
}

/// True if an operator keeps the offset of an operand by itself or with constants: it moves or chooses elements, averages
/// neighbours, or adds or multiplies by a constant.
fn keeps(cx: &Cx<'_>, node: Node, slot: usize) -> bool {
    let Some(kind) = cx.kind(node) else { return false };
    let others = || cx.module.node(node).formal_operands().iter().enumerate();
    let by_constants = || {
        let mut others = others().filter(|&(i, _)| i != slot).filter_map(|(_, value)| *value);
        others.all(|value| cx.numerics.is_constant(cx.module, value))
    };
    op::moves(kind, slot).is_some()
        || slot == 0 && op::stays_within_operand(kind)
        || slot == 0 && matches!(kind, OpKind::AveragePool | OpKind::Resize)
        || slot == 0 && is_activation(kind)
        || matches!(kind, OpKind::Max | OpKind::Min)
        || (op::adds(kind) || matches!(kind, OpKind::Mul | OpKind::Div)) && by_constants()
}

/// True for functions that leave large positive numbers about as they are.
fn is_activation(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Abs
            | OpKind::Celu
            | OpKind::Clip
            | OpKind::Elu
            | OpKind::Gelu
            | OpKind::HardSwish
            | OpKind::LeakyRelu
            | OpKind::Mish
            | OpKind::PRelu
            | OpKind::Relu
            | OpKind::Selu
            | OpKind::Softplus
            | OpKind::Sqrt
            | OpKind::Swish
            | OpKind::ThresholdedRelu
    )
}

/// True if an operator adds an operand to computed numbers, or multiplies whole groups of its elements by computed factors.
/// Factors of single elements spread an offset, so that it is no offset any more.
fn adds(cx: &Cx<'_>, node: Node, slot: usize) -> bool {
    let scales = |kind| matches!(kind, OpKind::Mul | OpKind::Div) && scales_groups(cx.module, node, slot);
    cx.kind(node).is_some_and(|kind| op::adds(kind) || kind == OpKind::Mean || scales(kind))
}

/// True if norms alone read a value: each reader subtracts its mean, or keeps its offset for values that norms alone read. A
/// sum with the value does not count if the value has other readers: it is the next sum of a residual stream.
fn ends_at_norms(cx: &Cx<'_>, value: Value, steps: usize) -> bool {
    let readers = flow::readers_beyond_casts(cx.module, value);
    let ends = |node: Node| {
        let mut results = cx.module.node(node).results().iter().flatten();
        steps > 0 && results.all(|&result| ends_at_norms(cx, result, steps - 1))
    };
    let is_alone = readers.len() == 1;
    !readers.is_empty()
        && readers.iter().all(|reader| {
            let Some((node, slot)) = reader.operand().map(|(node, slot)| (node, slot as usize)) else {
                return false;
            };
            removes_mean(cx.module, node, slot)
                || (keeps(cx, node, slot) || is_alone && adds(cx, node, slot)) && ends(node)
        })
}
