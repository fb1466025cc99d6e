//! The types in which rules read gradients.
//!
//! A gradient keeps the type in which it was computed until an operation reads it in another type: an operation in 16 bits,
//! such as a product, reads it in the type of its value, and a formula in f32 or wider. Operators that move or select
//! elements pass it on. A gradient is *read low* if an operation in 16 bits reads it, directly or behind such operators:
//! then it is rounded where it is computed, and every reader reads the rounded gradient.
//!
//! ```text
//! %a: f16 = Gelu(%x)             formula: reads %a.grad in f32
//! %b: f16 = Reshape(%a)          passes %b.grad on: f32
//! %c: f16 = LayerNormalization(%b, …)      %b.grad is computed in f32, and not rounded
//!
//! %a: f16 = MatMul(%x, %w)       product: reads %a.grad in f16
//! %b: f16 = Reshape(%a)          passes %b.grad on: f16
//! %c: f16 = LayerNormalization(%b, …)      %b.grad is computed in f32, and rounded here
//! ```
//!
//! Rules walk backwards, but the rule that reads the gradient of a value is that of its producer, so one walk in the order
//! of the forward graph finds all gradients that are read low.

use super::rules::Rule;
use ampc_ir::entity::SecondaryMap;
use ampc_ir::infer::Facts;
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::{DType, Dim, Module, Node, Value};
use rustc_hash::FxHashSet;

/// True if an operand of a node, given by its slot, needs a gradient.
pub(super) type NeedsSlot<'a> = dyn Fn(usize) -> bool + 'a;

/// The type in which a rule reads the gradients of results.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reads {
    /// In f32 or wider, whatever the type of the result.
    Wide,
    /// In the type of the result.
    Own,
    /// In the type of the result for the gradients of so many leading operands, and in f32 or wider for the others.
    OwnFor(usize),
    /// In the type in which it was computed: elements are moved, selected or negated.
    Any,
    /// As [`Any`](Self::Any), but the gradients of operands that are broadcast are summed in f32 or wider.
    Broadcast,
    /// As [`Any`](Self::Any) if the function returns true for the node, otherwise as [`Wide`](Self::Wide).
    AnyIf(fn(&NodeView<'_>, &NeedsSlot<'_>) -> bool),
}

impl Reads {
    /// True if the rule reads gradients in the types of their results.
    pub(super) fn in_own_type(self, needs: &NeedsSlot<'_>) -> bool {
        match self {
            Reads::Own => true,
            Reads::OwnFor(n) => (0..n).any(needs),
            Reads::Wide | Reads::Any | Reads::Broadcast | Reads::AnyIf(_) => false,
        }
    }

    /// The same for a node: not [`AnyIf`](Self::AnyIf).
    fn at(self, view: Option<&NodeView<'_>>, needs: &NeedsSlot<'_>) -> Reads {
        match (self, view) {
            (Reads::AnyIf(passes), Some(view)) if passes(view, needs) => Reads::Any,
            (Reads::AnyIf(_), _) => Reads::Wide,
            (reads, _) => reads,
        }
    }

    /// True if gradients of results are passed on in the type in which they were computed.
    fn passes(self) -> bool {
        matches!(self, Reads::Any | Reads::Broadcast)
    }
}

/// True if the gradient of an operand that broadcasts is certainly a sum over axes.
fn is_summed(view: &NodeView<'_>, slot: usize) -> bool {
    let result = view.data().result(0).and_then(|value| view.type_of(value).shape()?.dims());
    let (Some(to), Some(from)) = (view.dims(slot), result) else { return false };
    let grows = |(to, from): (&Dim, &Dim)| to.known() == Some(1) && from.known() != Some(1);
    match from.len().checked_sub(to.len()) {
        Some(0) => to.iter().zip(from).any(grows),
        Some(_) => true,
        None => false,
    }
}

/// The values of the main graph that need a gradient.
#[derive(Debug, Default)]
pub(super) struct Needs {
    /// True for a value that needs a gradient.
    pub(super) any: SecondaryMap<Value, bool>,
    /// The type of the operation in 16 bits that reads the gradient of a value, if it is read low.
    pub(super) low: SecondaryMap<Value, Option<DType>>,
    /// True for a value that needs a gradient that the rule of its producer passes on.
    pub(super) passed: SecondaryMap<Value, bool>,
    /// The number of operands through which a value has its gradient.
    pub(super) readers: SecondaryMap<Value, u32>,
}

impl Needs {
    /// The needs of the nodes between parameters and the loss; no gradient passes through `stops`.
    pub(super) fn of(
        module: &Module,
        facts: &Facts,
        parameters: &[Value],
        stops: &FxHashSet<Value>,
        rule: impl Fn(Node) -> Rule,
    ) -> Needs {
        let mut needs = Needs::default();
        for &parameter in parameters {
            needs.any[parameter] = true;
            needs.low[parameter] = low_type(module, parameter);
        }
        let mut between: Vec<(Node, Rule)> = Vec::new();
        for node in module.nodes(module.main()) {
            let (rule, data) = (rule(node), module.node(node));
            let slots = needs.slots(module, node, rule);
            if slots.is_empty() {
                continue;
            }
            for value in slots.into_iter().filter_map(|slot| data.operand(slot)) {
                needs.readers[value] += 1;
            }
            for &result in data.results().iter().flatten() {
                // What a rule is not known of may be a float as well.
                let ty = &module.value(result).ty;
                let is_float = ty.element_dtype().is_none_or(DType::is_float);
                needs.any[result] = is_float && !stops.contains(&result);
            }
            between.push((node, rule));
        }
        for (node, rule) in between {
            needs.read(module, facts, node, rule);
        }
        needs
    }

    /// The operands of a node that its rule gives a gradient that they need.
    fn slots(&self, module: &Module, node: Node, rule: Rule) -> Vec<usize> {
        let data = module.node(node);
        let needs = |slot: &usize| data.operand(*slot).is_some_and(|value| self.any[value]);
        (0..data.operands().len()).filter(|&slot| rule.depends_on(slot)).filter(needs).collect()
    }

    /// Finds how the rule of a node reads the gradients of its results; those of its operands are known.
    fn read(&mut self, module: &Module, facts: &Facts, node: Node, rule: Rule) {
        let slots = self.slots(module, node, rule);
        let needs_slot = |slot: usize| slots.contains(&slot);
        let view = NodeView::with_facts(module, node, facts);
        let reads = rule.reads().at(view.as_ref(), &needs_slot);
        let low = view.and_then(|view| self.passes_low(&view, reads, &slots));
        let in_own_type = reads.in_own_type(&needs_slot);
        for &result in module.node(node).results().iter().flatten() {
            let own = low_type(module, result);
            // Several contributions to an f32 value are added in f32.
            let is_carried =
                |&dtype: &DType| own.is_some() || self.readers[result] < 2 && takes_low(module, node, dtype);
            self.low[result] = if in_own_type { own } else { low.filter(is_carried) };
            self.passed[result] = reads.passes();
        }
    }

    /// The 16-bit type of a gradient that is read low, of an operand in one of `slots`, to which a node passes the gradients of
    /// its results on.
    fn passes_low(&self, view: &NodeView<'_>, reads: Reads, slots: &[usize]) -> Option<DType> {
        let is_sum = |slot: usize| matches!(reads, Reads::Broadcast) && is_summed(view, slot);
        let mut passed = slots.iter().filter(|&&slot| reads.passes() && !is_sum(slot));
        passed.find_map(|&slot| self.low[view.operand(slot)?])
    }
}

fn low_type(module: &Module, value: Value) -> Option<DType> {
    module.value(value).ty.dtype().filter(|dtype| dtype.is_low())
}

/// True if the operators by which the rule of a node in f32 passes a gradient on take a 16-bit type, at the opset of the graph:
/// all of them take f16, but some take bf16 only in newer versions, and ReverseSequence in none.
pub(super) fn takes_low(module: &Module, node: Node, dtype: DType) -> bool {
    use OpKind::{Add, Concat, Expand, Neg, ReduceSum, ReverseSequence, Split, Sub, Sum};
    let kind = module.node(node).schema().map(|schema| schema.kind);
    let is_new = module.opset(module.main(), "").is_some_and(|opset| opset >= 16);
    dtype == DType::F16
        || casts_or_moves(module, node)
        || matches!(kind, Some(Add | Concat | Expand | Neg | ReduceSum | Split | Sub | Sum))
        || is_new && kind != Some(ReverseSequence)
}

/// True if a node casts its operand, or changes its shape or the order of its axes.
pub(super) fn casts_or_moves(module: &Module, node: Node) -> bool {
    use OpKind::{Cast, Flatten, Identity, Reshape, Squeeze, Transpose, Unsqueeze};
    let kind = module.node(node).schema().map(|schema| schema.kind);
    matches!(kind, Some(Cast | Flatten | Identity | Reshape | Squeeze | Transpose | Unsqueeze))
}
