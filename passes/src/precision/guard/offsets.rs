//! The guard on offsets: a mean that is far from 0 displaces the digits of the differences from the mean, and a norm enlarges
//! these differences.
//!
//! An input of 150 ± 1 has a spacing of 1/8 in f16. A norm of the input shows 1 as about 1, and so it shows 1/8. PyTorch's
//! autocast rounds no such sum, since one of its operands is fp32.
//!
//! ```text
//! input %x
//! %f = MatMul(%x, %w)             low
//! %s = Add(%x, %f)                fp32: %x may bring an offset
//! %n = LayerNormalization(%s)     fp32: removes the offset
//! ```
//!
//! An input whose range the user gave has an offset or has none. Any other input may have one. Activations of a network have
//! none as a rule, so such a doubt costs at most the casts around one norm: it counts only where the sum has no other reader
//! than the norm. The sums of a residual stream, which every block reads, stay low.

use super::Cx;
use crate::analysis::numerics::{Properties, Sink, is_centred_norm, removes_mean, scales_groups};
use crate::graph::flow::{self, Var};
use ampc_ir::op::{self, OpKind};
use ampc_ir::verify::name_of;
use ampc_ir::{DType, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// The maximal number of operators between a sum and the norms that read it.
const MAX_STEPS: usize = 8;

/// Denies norms that subtract a mean from a value that has an offset or may have one, and the operators on the way of the offset.
/// Products stay as they are: their results have the offsets that they were trained to have.
pub(super) fn offset(cx: &mut Cx<'_>) {
    let has_offset = |cx: &Cx<'_>, value| cx.numerics.properties(cx.module, value).has(Properties::UNCENTRED);
    for var in cx.free_vars() {
        let is_norm = cx.kind(var.node).is_some_and(is_centred_norm);
        if is_norm && cx.operand(var.node, 0).is_some_and(|value| has_offset(cx, value)) {
            cx.deny(var, || "subtracts the mean of an input that lies far from 0".into());
        } else if cx.is_between(var)
            && cx.properties(var).has(Properties::UNCENTRED)
            && cx.sinks(var).some.any(Sink::MEAN)
        {
            cx.deny(var, || {
                "an input that lies far from 0, on the way to the subtraction of its mean".into()
            });
        }
    }
    for (var, input) in sums_before_norms(cx) {
        cx.deny(var, || format!("`{input}` may lie far from 0, and a norm subtracts the mean"));
    }
}

/// The variables of sums of inputs of unknown range that norms alone read, and of these norms, with the name of the input.
fn sums_before_norms(cx: &Cx<'_>) -> Vec<(Var, String)> {
    let module = &*cx.module;
    let inputs = module.graph(module.main()).inputs().iter().copied();
    let inputs = inputs.filter(|&value| may_have_offset(cx, value));
    let mut way = Way { input_of: inputs.map(|value| (value, value)).collect(), ..Way::default() };
    for node in flow::nodes(module) {
        let data = module.node(node);
        for slot in 0..data.n_formal() {
            if let Some(value) = data.operand(slot) {
                way.step(cx, node, slot, flow::resolve_captures(module, value));
            }
        }
    }
    way.found
}

/// The way of the offsets of inputs to norms.
#[derive(Default)]
struct Way {
    /// The values that may have the offset of an input, with the input.
    input_of: FxHashMap<Value, Value>,
    /// The values among them that a sum computes.
    sums: FxHashSet<Value>,
    found: Vec<(Var, String)>,
}

impl Way {
    /// Goes on from an operand of a node, if the operand may have an offset.
    fn step(&mut self, cx: &Cx<'_>, node: Node, slot: usize, value: Value) {
        let module = &*cx.module;
        let (Some(&input), Some(kind)) = (self.input_of.get(&value), cx.kind(node)) else { return };
        let results = || module.node(node).results().iter().flatten().copied();
        let is_moved = op::moves(kind, slot).is_some();
        let is_sum = || passes_offset(cx, node, slot) && results().all(|result| ends_at_norms(cx, result));
        if !is_moved {
            let var = u32::try_from(slot).ok().and_then(|slot| flow::reader_var(module, node, slot));
            let Some(var) = var.filter(|&var| flow::is_free(module, var)) else { return };
            let is_norm = self.sums.contains(&value) && removes_mean(module, node, slot);
            if !is_norm && !is_sum() {
                return;
            }
            self.found.push((var, name_of(module, input)));
            if is_norm {
                return;
            }
        }
        self.input_of.extend(results().map(|result| (result, input)));
        if !is_moved || self.sums.contains(&value) {
            self.sums.extend(results());
        }
    }
}

/// True for an input of measurements, floats or integers of 8 bits as of pixels, whose range the user did not give.
fn may_have_offset(cx: &Cx<'_>, input: Value) -> bool {
    let dtype = cx.module.value(input).ty.element_dtype();
    let is_measured = dtype.is_some_and(|dtype| dtype.is_float() || matches!(dtype, DType::U8 | DType::I8));
    is_measured && cx.numerics.interval(cx.module, input).is_none()
}

/// True if an operator keeps the offset of an operand: a sum, or a multiplication of whole groups of elements.
fn passes_offset(cx: &Cx<'_>, node: Node, slot: usize) -> bool {
    let kind = cx.kind(node);
    kind.is_some_and(op::adds)
        || matches!(kind, Some(OpKind::Mul | OpKind::Div)) && scales_groups(cx.module, node, slot)
}

/// True if all readers of a value are norms, perhaps behind operators that move the value; or if its only reader passes its
/// offset to a value that only norms read.
fn ends_at_norms(cx: &Cx<'_>, value: Value) -> bool {
    let mut value = value;
    let mut moved = Vec::new();
    for _ in 0..MAX_STEPS {
        moved.clear();
        let readers = flow::readers_beyond_casts(cx.module, value);
        for reader in &readers {
            match reader.operand() {
                Some((node, slot)) if removes_mean(cx.module, node, slot as usize) => {}
                Some((node, slot)) if readers.len() == 1 && moves_or_passes(cx, node, slot as usize) => {
                    moved.extend(cx.module.node(node).results().iter().flatten().copied());
                }
                _ => return false,
            }
        }
        match moved[..] {
            [] => return !readers.is_empty(),
            [next] => value = next,
            _ => return false,
        }
    }
    false
}

fn moves_or_passes(cx: &Cx<'_>, node: Node, slot: usize) -> bool {
    let moves = cx.kind(node).is_some_and(|kind| op::moves(kind, slot).is_some());
    moves || passes_offset(cx, node, slot)
}
