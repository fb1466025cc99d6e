//! The classes that a model chooses, beside the classes of its labels, from which the accuracy of a
//! classification is counted.
//!
//! A loss is a classification loss if it depends on exactly one SoftmaxCrossEntropyLoss or
//! NegativeLogLikelihoodLoss, whose labels are elements of an input. The chosen class is the class with the
//! largest score, the first of equal scores.
//!
//! ```text
//! %loss = SoftmaxCrossEntropyLoss(%p, %target)      %p : f32[N, 10], %target : i64[N]
//!
//! %chosen = ArgMax(%p) {axis=1, keepdims=0}         i64[N]
//! %labels = Cast(%target) {to=INT64}                i64[N]
//! output %loss, output %chosen, output %labels
//! ```

use ampc_ir::module::Def;
use ampc_ir::op::{OpKind, Sign, moves};
use ampc_ir::views::NodeView;
use ampc_ir::{AttrValue, DType, Inserter, Module, Node, NodeSpec, Value};
use rustc_hash::FxHashSet;

/// Values from which an accuracy is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Classes {
    /// The classes that are chosen, i64.
    pub chosen: Value,
    /// The classes of the labels, i64, of the same dims.
    pub labels: Value,
    /// The label that counts for nothing.
    pub ignored: Option<i64>,
}

/// Adds the chosen classes and the labels of a loss to the outputs of the main graph; nothing if the loss is
/// not a loss of classes.
pub fn add_classes(module: &mut Module, loss: Value) -> Option<Classes> {
    let node = only_classification(module, loss)?;
    let (scores, targets) = (module.node(node).operand(0)?, module.node(node).operand(1)?);
    if !is_of_input(module, targets) {
        return None;
    }
    let ignored = NodeView::new(module, node)?.int("ignore_index");
    let choose = NodeSpec::new(OpKind::ArgMax, &[scores])
        .attr("axis", AttrValue::Int(1))
        .attr("keepdims", AttrValue::Int(0))
        .suffix("chosen");
    let [chosen] = Inserter::before(module, node).insert(choose).ok()?;
    let to = i64::from(DType::I64.number());
    let cast = NodeSpec::new(OpKind::Cast, &[targets]).attr("to", AttrValue::Int(to)).suffix("labels");
    let [labels] = Inserter::before(module, node).insert(cast).ok()?;
    let main = module.main();
    for value in [chosen, labels] {
        let declared = module.value(value).ty.clone();
        module.add_output(main, value, declared);
    }
    Some(Classes { chosen, labels, ignored })
}

/// The node that compares scores with classes on the way to a loss, if there is one alone.
fn only_classification(module: &Module, loss: Value) -> Option<Node> {
    let mut leading: FxHashSet<Value> = std::iter::once(loss).collect();
    let mut found = Vec::new();
    let nodes: Vec<Node> = module.nodes(module.main()).collect();
    for node in nodes.into_iter().rev() {
        let data = module.node(node);
        if !data.results().iter().flatten().any(|value| leading.contains(value)) {
            continue;
        }
        leading.extend(data.operands().iter().flatten());
        let kind = data.schema().map(|schema| schema.kind);
        if matches!(kind, Some(OpKind::SoftmaxCrossEntropyLoss | OpKind::NegativeLogLikelihoodLoss)) {
            found.push(node);
        }
    }
    match found[..] {
        [node] => Some(node),
        _ => None,
    }
}

/// True if a value has elements of an input and no others.
fn is_of_input(module: &Module, mut value: Value) -> bool {
    loop {
        let Some((node, _)) = module.producer(value) else {
            return matches!(module.value(value).def, Def::Input { .. });
        };
        let data = module.node(node);
        let moved = data.schema().is_some_and(|schema| {
            moves(schema.kind, 0) == Some(Sign::Kept) && moves(schema.kind, 1).is_none()
        });
        match data.operand(0) {
            Some(operand) if moved => value = operand,
            _ => return false,
        }
    }
}
