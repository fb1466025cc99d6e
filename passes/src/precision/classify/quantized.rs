//! Operators that are computed in integers: runtimes replace the operators between DequantizeLinear and QuantizeLinear
//! by integer kernels (QLinearConv, QGemm). A cast between these operators would leave them computing in floats.
//!
//! ```text
//! a = DequantizeLinear(x)      b = DequantizeLinear(weight)
//! c = Conv(a, b, bias)         fp32: its operands are dequantized, its result is quantized
//! d = Relu(c)                  fp32: for the same reason
//! y = QuantizeLinear(d)
//! ```
//!
//! An operator is *between* if all its float operands come from DequantizeLinear, through operators that only move, and
//! all its results go to QuantizeLinear, through operators that only move, Relu and Clip. At least one operand must not
//! be a weight. Scalars and the bias of a product may be float constants. MatMul and Gemm are between whatever reads
//! them, because their integer kernels can make floats. Products of which only the weights are quantized compute in
//! floats and are not between.

use crate::graph::flow::{self, Var};
use ampc_ir::module::reason::{ListedBy, Quantized};
use ampc_ir::module::{Reason, Rule};
use ampc_ir::op::{Class, OpKind, Work, dequantizes, moves, quantizes, work};
use ampc_ir::views::constant_of;
use ampc_ir::{DType, Module, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// True if this rule can make an operator allow without a request of the user.
pub(in crate::precision) fn is_unasked(rule: &Rule) -> bool {
    matches!(rule, Rule::Table | Rule::Listed { by: ListedBy::Preset, class: Class::Allow })
}

/// Keeps operators in fp32 that are computed in integers, unless the user requested a 16-bit format. Returns true if
/// there was any such operator.
pub(crate) fn hold_quantized(module: &mut Module) -> bool {
    let nodes = flow::nodes(module);
    if !nodes.iter().any(|&node| kind(module, node).is_some_and(dequantizes)) {
        return false;
    }
    let vars = Between::new(module, &nodes).vars(&nodes);
    let reason = |quantized| Arc::new(Reason::new(Rule::Quantized(quantized)));
    let (between, product) = (reason(Quantized::Between), reason(Quantized::Product));
    for &(var, makes_floats) in &vars {
        let decision = &mut module.node_mut(var.node).decisions[usize::from(var.var)];
        let reason = if makes_floats { &product } else { &between };
        (decision.precision, decision.reason) = (Some(DType::F32), reason.clone());
    }
    !vars.is_empty()
}

fn kind(module: &Module, node: Node) -> Option<OpKind> {
    module.node(node).schema().map(|schema| schema.kind)
}

/// The origin of a value that comes from DequantizeLinear.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Dequantized {
    /// The quantized value is a constant.
    Weight,
    /// The quantized value is computed.
    Activation,
}

struct Between<'m> {
    module: &'m Module,
    /// Values that come from DequantizeLinear, moved or not.
    dequantized: FxHashMap<Value, Dequantized>,
    /// Values whose readers all lead to QuantizeLinear.
    quantized: FxHashSet<Value>,
}

impl<'m> Between<'m> {
    /// Finds the dequantized values in program order and the quantized values in reverse program order.
    fn new(module: &'m Module, nodes: &[Node]) -> Between<'m> {
        let mut between =
            Between { module, dequantized: FxHashMap::default(), quantized: FxHashSet::default() };
        for &node in nodes {
            if let Some(what) = between.dequantizes(node) {
                between.dequantized.extend(float_results(module, node).map(|result| (result, what)));
            }
        }
        for &node in nodes.iter().rev() {
            for result in float_results(module, node) {
                if between.goes_to_quantize(result) {
                    between.quantized.insert(result);
                }
            }
        }
        between
    }

    /// Returns the type variables of the operators between; each with true if its operator has a result that is not
    /// quantized.
    fn vars(&self, nodes: &[Node]) -> Vec<(Var, bool)> {
        let (mut found, mut inside) = (Vec::new(), FxHashSet::default());
        for &node in nodes {
            if self.is_between(node, &inside) {
                let results: Vec<Value> = float_results(self.module, node).collect();
                let makes_floats = results.iter().any(|result| !self.quantized.contains(result));
                inside.extend(results.into_iter().filter(|result| self.quantized.contains(result)));
                let vars = flow::vars(self.module, node).filter(|&var| self.may_be_held(var));
                found.extend(vars.map(|var| (var, makes_floats)));
            }
        }
        found
    }

    /// True if a variable is free and no request of the user makes it allow.
    fn may_be_held(&self, var: Var) -> bool {
        let decision = flow::decision(self.module, var).filter(|_| flow::is_free(self.module, var));
        decision.is_some_and(|d| d.class != Class::Allow || is_unasked(d.reason.rule()))
    }

    /// Returns the origin of the results of a node, if they come from DequantizeLinear.
    fn dequantizes(&self, node: Node) -> Option<Dequantized> {
        let kind = kind(self.module, node)?;
        let data = self.module.node(node);
        if dequantizes(kind) {
            let is_weight = data.operand(0).is_some_and(|value| constant_of(self.module, value).is_some());
            return Some(if is_weight { Dequantized::Weight } else { Dequantized::Activation });
        }
        let operands = float_operands(self.module, node).filter(|_| only_moves(kind));
        let mut found = None;
        for (slot, value) in operands {
            match self.source(value) {
                Some(what) if moves(kind, slot).is_some() => found = found.max(Some(what)),
                _ if self.is_number(value) => {}
                _ => return None,
            }
        }
        found
    }

    fn source(&self, value: Value) -> Option<Dequantized> {
        self.dequantized.get(&flow::resolve_captures(self.module, value)).copied()
    }

    /// True if a value is one number for all elements.
    fn is_number(&self, value: Value) -> bool {
        constant_of(self.module, value).is_some_and(|data| data.element_count() <= 1)
    }

    /// True if all readers of a value quantize it, directly or through operators that hand it on.
    fn goes_to_quantize(&self, value: Value) -> bool {
        let module = self.module;
        let readers = flow::readers(module, value);
        let quantizes = |(node, slot): (Node, u32)| {
            kind(module, node).is_some_and(|kind| {
                let hands_on = only_moves(kind) && moves(kind, slot as usize).is_some()
                    || matches!(kind, OpKind::Relu | OpKind::Clip) && slot == 0;
                quantizes(kind) && slot == 0
                    || hands_on && float_results(module, node).all(|result| self.quantized.contains(&result))
            })
        };
        !readers.is_empty()
            && !module.is_output(value)
            && readers.into_iter().all(|reader| reader.operand().is_some_and(quantizes))
    }

    /// True if a node reads dequantized values, or values that are already `inside`, and makes values that will be
    /// quantized.
    fn is_between(&self, node: Node, inside: &FxHashSet<Value>) -> bool {
        let Some(kind) = kind(self.module, node) else { return false };
        let data = self.module.node(node);
        if dequantizes(kind) || quantizes(kind) || kind == OpKind::Cast || data.bodies().next().is_some() {
            return false;
        }
        let (mut found, is_product) = (None, work(kind) == Work::Product);
        for (slot, value) in float_operands(self.module, node) {
            let is_inside = inside.contains(&flow::resolve_captures(self.module, value));
            let is_bias = || is_product && slot >= 2 && constant_of(self.module, value).is_some();
            match self.source(value).or_else(|| is_inside.then_some(Dequantized::Activation)) {
                Some(what) => found = found.max(Some(what)),
                None if self.is_number(value) || is_bias() => {}
                None => return false,
            }
        }
        let makes_floats = matches!(kind, OpKind::MatMul | OpKind::Gemm);
        let mut results = float_results(self.module, node).peekable();
        found == Some(Dequantized::Activation)
            && results.peek().is_some()
            && (makes_floats || results.all(|result| self.quantized.contains(&result)))
    }
}

/// True if an operator only moves numbers and keeps their format.
fn only_moves(kind: OpKind) -> bool {
    moves(kind, 0).or(moves(kind, 1)).is_some() && !matches!(kind, OpKind::Cast | OpKind::CastLike)
}

fn is_float(module: &Module, value: Value) -> bool {
    module.value(value).ty.dtype().is_some_and(DType::is_float)
}

/// The float operands of a node, with their slots.
fn float_operands(module: &Module, node: Node) -> impl Iterator<Item = (usize, Value)> + '_ {
    let operands = module.node(node).formal_operands().iter().enumerate();
    operands.filter_map(|(slot, &value)| Some((slot, value?))).filter(|&(_, value)| is_float(module, value))
}

/// The float results of a node.
fn float_results(module: &Module, node: Node) -> impl Iterator<Item = Value> + '_ {
    let results = module.node(node).results().iter().copied().flatten();
    results.filter(|&value| is_float(module, value))
}
