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
//! The sum of the contributions of several readers reads them low if one of them is computed in 16 bits
//! (`backward/contributions.rs`).
//!
//! Rules walk backwards, but the rule that reads the gradient of a value is that of its producer, so one walk in the order
//! of the forward graph finds all gradients that are read low.

use ampc_ir::entity::SecondaryMap;
use ampc_ir::infer::Facts;
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::{DType, Dim, Module, Node, Value};
use rustc_hash::FxHashSet;

/// True if an operand of a node, given by its slot, needs a gradient.
pub(super) type NeedsSlot<'a> = dyn Fn(usize) -> bool + 'a;

/// The operands on which results depend in a differentiable way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operands {
    All,
    /// This number of leading operands.
    First(usize),
    /// All from this one on.
    From(usize),
    /// The first and the third.
    FirstAndThird,
}

impl Operands {
    /// True if an operand is among them.
    pub(super) fn contains(self, slot: usize) -> bool {
        match self {
            Operands::All => true,
            Operands::First(n) => slot < n,
            Operands::From(n) => slot >= n,
            Operands::FirstAndThird => slot == 0 || slot == 2,
        }
    }
}

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

    /// True if the rule computes the gradient of an operand in the type of the operand.
    fn gives_own(self, slot: usize) -> bool {
        match self {
            Reads::Own => true,
            Reads::OwnFor(n) => slot < n,
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
    /// True for a 16-bit value to whose gradient an operation in 16 bits contributes.
    adds_low: SecondaryMap<Value, bool>,
}

impl Needs {
    /// The needs of the nodes between parameters and the loss, given the operands that the rule of a node differentiates and
    /// how it reads gradients; no gradient passes through `stops`.
    pub(super) fn of(
        module: &Module,
        facts: &Facts,
        parameters: &[Value],
        stops: &FxHashSet<Value>,
        rule: impl Fn(Node) -> Option<(Operands, Reads)>,
    ) -> Needs {
        let mut needs = Needs::default();
        for &parameter in parameters {
            needs.any[parameter] = true;
            needs.low[parameter] = low_type(module, parameter);
        }
        let parameters: FxHashSet<Value> = parameters.iter().copied().collect();
        for (node, slots, reads) in needs.between(module, stops, rule) {
            needs.read(module, facts, node, &slots, reads);
            for &result in module.node(node).results().iter().flatten() {
                // Contributions of which one is in 16 bits are added in 16 bits: the sum reads the others low.
                let is_sum = needs.readers[result] > 1 && needs.adds_low[result];
                if is_sum && !stores_parameter(module, &parameters, result) {
                    needs.low[result] = low_type(module, result);
                }
            }
        }
        needs
    }

    /// Finds the values that need a gradient, and their readers: the nodes in the order of the graph, with the operands that
    /// need a gradient and the way in which the rule reads gradients.
    fn between(
        &mut self,
        module: &Module,
        stops: &FxHashSet<Value>,
        rule: impl Fn(Node) -> Option<(Operands, Reads)>,
    ) -> Vec<(Node, Vec<usize>, Reads)> {
        let mut between = Vec::new();
        for node in module.nodes(module.main()) {
            let Some((operands, reads)) = rule(node) else { continue };
            // The captures of bodies are operands as well.
            let all = module.node(node).operands();
            let is_needed = |slot: &usize| all[*slot].is_some_and(|value| self.any[value]);
            let slots = (0..all.len()).filter(|&slot| operands.contains(slot));
            let slots: Vec<usize> = slots.filter(is_needed).collect();
            if slots.is_empty() {
                continue;
            }
            for &slot in &slots {
                let Some(value) = all[slot] else { continue };
                self.readers[value] += 1;
                self.adds_low[value] |= reads.gives_own(slot) && low_type(module, value).is_some();
            }
            for &result in module.node(node).results().iter().flatten() {
                // What a rule is not known of may be a float as well.
                let ty = &module.value(result).ty;
                let is_float = ty.element_dtype().is_none_or(DType::is_float);
                self.any[result] = is_float && !stops.contains(&result);
            }
            between.push((node, slots, reads));
        }
        between
    }

    /// Finds how the rule of a node reads the gradients of its results; those of its operands are known. Operands in `slots`
    /// need a gradient.
    fn read(&mut self, module: &Module, facts: &Facts, node: Node, slots: &[usize], reads: Reads) {
        let needs_slot = |slot: usize| slots.contains(&slot);
        let view = NodeView::with_facts(module, node, facts);
        let reads = reads.at(view.as_ref(), &needs_slot);
        let low = view.and_then(|view| self.passes_low(&view, reads, slots));
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

/// True if a value is a parameter that is no result of a node.
pub(super) fn is_parameter(module: &Module, parameters: &FxHashSet<Value>, value: Value) -> bool {
    parameters.contains(&value) && module.producer(value).is_none()
}

/// True if a 16-bit value is a parameter that was only rounded, and perhaps put into another shape or order of axes.
pub(super) fn stores_parameter(module: &Module, parameters: &FxHashSet<Value>, value: Value) -> bool {
    if low_type(module, value).is_none() {
        return false;
    }
    // Longer chains are rounded like any other value.
    const FAR: usize = 16;
    let mut at = value;
    for _ in 0..FAR {
        let Some((node, _)) = module.producer(at) else { return false };
        match module.node(node).operand(0).filter(|_| casts_or_moves(module, node)) {
            Some(source) if is_parameter(module, parameters, source) => return true,
            Some(source) => at = source,
            None => return false,
        }
    }
    false
}
