//! The row of a batch that an error of a node refers to.
//!
//! A kernel that rejects an element, such as an invalid label, reports the element's value. If the operand with that
//! element has all elements of an input of the batch, in the same order, the error refers to the first row of the
//! input that has the value.
//! ```text
//! %t = Reshape(%target, [-1])                  %target : i64[N, 2] = [[0, 3], [1, 9]]
//! %loss = SoftmaxCrossEntropyLoss(%p, %t)      expected a class in [0, 4), found 9: row 1 of `target`
//! ```

use ampc_ir::module::Def;
use ampc_ir::op::{OpKind, Sign, moves, moves_all};
use ampc_ir::verify::name_of;
use ampc_ir::{DType, Module, Node, Value};
use ampc_runtime::HostTensor;
use ampc_runtime::backend::KernelError;
use ampc_runtime::session::ExecuteError;

/// A row of an input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::execute) struct BatchRow {
    /// The name of the input.
    pub(in crate::execute) input: String,
    /// The row, counted from 0.
    pub(in crate::execute) row: u64,
    /// The element, if a loss rejects it as a label.
    pub(in crate::execute) label: Option<i64>,
}

impl BatchRow {
    /// The row of a batch that an error refers to, if it can be found.
    pub(in crate::execute) fn of(
        module: &Module,
        error: &ExecuteError,
        batch: &[(&str, &HostTensor)],
    ) -> Option<BatchRow> {
        let ExecuteError::Node { node, error: KernelError::Value { found, .. }, .. } = error else {
            return None;
        };
        let found: i64 = found.parse().ok()?;
        let input = origin(module, index_of(module, *node)?)?;
        let name = name_of(module, input);
        let (_, tensor) = batch.iter().find(|(given, _)| *given == name)?;
        let at = position(tensor, found)?;
        let rows = tensor.dims().first().copied()?;
        let row = at / (tensor.element_count() / rows.max(1)).max(1);
        Some(BatchRow { input: name, row, label: is_loss(module, *node).then_some(found) })
    }
}

/// True if a node computes a loss of labels.
fn is_loss(module: &Module, node: Node) -> bool {
    let kind = module.node(node).schema().map(|schema| schema.kind);
    matches!(kind, Some(OpKind::SoftmaxCrossEntropyLoss | OpKind::NegativeLogLikelihoodLoss))
}

/// The operand of a node that holds labels or indices that a kernel may reject.
fn index_of(module: &Module, node: Node) -> Option<Value> {
    let data = module.node(node);
    match data.schema()?.kind {
        OpKind::SoftmaxCrossEntropyLoss
        | OpKind::NegativeLogLikelihoodLoss
        | OpKind::Gather
        | OpKind::GatherElements
        | OpKind::ScatterElements => data.operand(1),
        _ => None,
    }
}

/// The input of the main graph that has the same elements as a value.
fn origin(module: &Module, mut value: Value) -> Option<Value> {
    loop {
        let Some((node, _)) = module.producer(value) else {
            return matches!(module.value(value).def, Def::Input { .. }).then_some(value);
        };
        let kind = module.node(node).schema()?.kind;
        if !moves_all(kind) || moves(kind, 0) != Some(Sign::Kept) || moves(kind, 1).is_some() {
            return None;
        }
        value = module.node(node).operand(0)?;
    }
}

/// The first position of an integer among the elements of a tensor.
fn position(tensor: &HostTensor, wanted: i64) -> Option<u64> {
    let at = match tensor.dtype() {
        DType::I64 => tensor.as_slice::<i64>().ok()?.iter().position(|&found| found == wanted),
        DType::I32 => tensor.as_slice::<i32>().ok()?.iter().position(|&found| i64::from(found) == wanted),
        _ => None,
    };
    at.map(|at| at as u64)
}
