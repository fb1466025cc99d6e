//! Values as casts see them: stored, captured, of the same number as what a cast reads, or exact in a format.

use crate::graph::flow;
use crate::policy::pinned::pin_of_cast;
use ampc_ir::convert::Conversion;
use ampc_ir::module::{Def, GraphOwner};
use ampc_ir::op::OpKind;
use ampc_ir::views::constant_of;
use ampc_ir::{DType, Module, Node, TensorData, Value};

/// True if a value is stored, and not computed.
pub(crate) fn is_stored(module: &Module, value: Value) -> bool {
    let fills = |node: Node| module.node(node).schema().is_some_and(|s| s.kind == OpKind::ConstantOfShape);
    constant_of(module, value).is_some() || module.producer(value).is_some_and(|(node, _)| fills(node))
}

pub(crate) fn is_capture(module: &Module, value: Value) -> bool {
    matches!(module.value(value).def, Def::Capture { .. })
}

/// The result of a cast whose readers might as well read its operand: one that an earlier run inserted, or one of the
/// author from a 16-bit format or from fp32 to fp32, but not in a body of what it captures.
pub fn same_number(module: &Module, node: Node) -> Option<Value> {
    let inserted = flow::inserted_result(module, node);
    if inserted.is_some() {
        return inserted;
    }
    let data = module.node(node);
    let (operand, result) = (data.operand(0)?, data.result(0)?);
    // What an earlier run cast for it is what it read before.
    let behind = flow::behind_inserted(module, operand);
    let (from, to) = (module.value(behind).ty.dtype()?, module.value(result).ty.dtype()?);
    let is_cast = data.schema().is_some_and(|s| s.kind == OpKind::Cast);
    // A pin makes it a cast from what was pinned.
    let decided = data.decisions.first().and_then(|d| d.precision);
    let as_it_is = decided.is_none_or(|d| d == from) && pin_of_cast(module, node).is_none();
    let exact = to == DType::F32 && (from.is_low() || from == DType::F32);
    (is_cast && exact && as_it_is && !is_capture(module, operand)).then_some(result)
}

/// True if a cast of the author is no more than that: no pin speaks of it, no attribute says how it rounds, and it is in
/// no function, which may have nothing else in it. A cast of a capture is another case, which the choice counts by itself.
pub(crate) fn is_plain(module: &Module, node: Node, to: DType) -> bool {
    let data = module.node(node);
    let of_function = matches!(module.graph(module.root(data.graph)).owner, GraphOwner::Function(_));
    // What is in the other 16-bit format is no part of the choice.
    let values = [data.operand(0), data.result(0)];
    let dtypes = values.into_iter().flatten().map(|value| module.value(value).ty.dtype());
    let other = dtypes.flatten().any(|dtype| dtype.is_low() && dtype != to);
    let captured = data.operand(0).is_some_and(|operand| is_capture(module, operand));
    data.attrs().len() == 1 && !of_function && !captured && !other && pin_of_cast(module, node).is_none()
}

/// Constants of more numbers than this are not looked at.
const MAX_NUMBERS: u64 = 1 << 16;

/// True if every number of a constant is one of the format. Large constants are not looked at, and count as inexact.
pub(crate) fn is_exact_in(data: &TensorData, to: DType) -> bool {
    let rounded = || data.converted(Conversion { to, clamp: false }).small_floats(MAX_NUMBERS);
    data.small_floats(MAX_NUMBERS).is_some_and(|numbers| Some(numbers) == rounded())
}
