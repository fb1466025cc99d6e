//! Operands that a group reads twice: once for sums over a batch, and once for the results that depend on the sums.

use super::{bytes_of, elements};
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::views::reduce::ReduceView;
use ampc_ir::{Module, Node, Value};
use ampc_runtime::plan::{GraphPlan, Step};
use rustc_hash::{FxHashMap, FxHashSet};

/// The bytes that a group reads a second time after its sums over an axis that precedes a kept axis. Row sums are not
/// counted, because a kernel holds a row. Values that the group has written before the sums are known are read
/// instead of their operands.
pub(super) fn reread_bytes(module: &Module, plan: &GraphPlan, step: &Step) -> u64 {
    let mut late: FxHashSet<Value> = FxHashSet::default();
    let mut made: FxHashSet<Value> = FxHashSet::default();
    let mut count = None;
    for &node in &step.nodes {
        let data = module.node(node);
        let results = || data.results().iter().flatten().copied();
        made.extend(results());
        let is_batch_sum = is_batch_sum(module, node);
        if is_batch_sum {
            count = count.or(data.operand(0).map(|value| elements(module, value)));
        }
        if is_batch_sum || data.operands().iter().flatten().any(|value| late.contains(value)) {
            late.extend(results());
        }
    }
    let Some(count) = count.filter(|_| step.nodes.len() > 1) else { return 0 };
    let indices = step.operands.iter().chain(&step.results).flatten();
    let index_of: FxHashMap<Value, u32> =
        indices.map(|&index| (plan.values[index as usize].value, index)).collect();
    let is_written = |value: Value| made.contains(&value) && index_of.contains_key(&value);
    let is_full = |value: &Value| elements(module, *value) == count;
    let mut needed: FxHashSet<Value> =
        late.iter().copied().filter(|&value| is_written(value)).filter(is_full).collect();
    for &node in step.nodes.iter().rev() {
        let data = module.node(node);
        let is_read = |value: Value| is_written(value) && !late.contains(&value);
        if data.results().iter().flatten().any(|&value| needed.contains(&value) && !is_read(value)) {
            needed.extend(data.operands().iter().flatten().copied().filter(is_full));
        }
    }
    let read = needed.into_iter().filter(|&value| !made.contains(&value) || !late.contains(&value));
    read.filter_map(|value| index_of.get(&value)).map(|&index| bytes_of(plan, index)).sum()
}

/// True of a sum or mean over an axis before one that it keeps.
fn is_batch_sum(module: &Module, node: Node) -> bool {
    let Some(view) = NodeView::new(module, node) else { return false };
    let rank = view.data().operand(0).and_then(|value| module.value(value).ty.as_tensor());
    let rank = rank.and_then(|tensor| tensor.shape.to_known()).map_or(0, |dims| dims.len());
    let is_sum = matches!(view.kind(), OpKind::ReduceSum | OpKind::ReduceMean);
    let axes = if is_sum { ReduceView::read(&view).ok().and_then(|view| view.axes) } else { None };
    axes.is_some_and(|axes| (1..rank).any(|axis| axes.has(axis - 1) && !axes.has(axis)))
}
