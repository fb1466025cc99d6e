//! Values as casts see them: stored, captured, of the same number as what a cast reads, or exact in a format.

use crate::graph::flow::{self, Var};
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

/// The result of a cast whose readers might as well read its operand, in the formats that values have now.
pub(crate) fn same_number(module: &Module, node: Node) -> Option<Value> {
    let decided = |var| flow::decision(module, var).and_then(|decision| decision.precision);
    looked_through(module, node, |value| module.value(value).ty.dtype(), decided)
}

/// The result of a cast whose readers might as well read its operand: a cast that an earlier run inserted, or a cast of the
/// author that changes no number, to the format of its operand or from a 16-bit format to fp32. A cast of a capture, and a
/// cast that a pin names, are not looked through.
///
/// `made` is the format in which a value is made, and `decided` the format of a variable, if it is known.
pub(crate) fn looked_through(
    module: &Module,
    node: Node,
    made: impl Fn(Value) -> Option<DType>,
    decided: impl Fn(Var) -> Option<DType>,
) -> Option<Value> {
    let inserted = flow::inserted_result(module, node);
    if inserted.is_some() {
        return inserted;
    }
    let data = module.node(node);
    if data.schema().is_none_or(|schema| schema.kind != OpKind::Cast) {
        return None;
    }
    let (operand, result) = (data.operand(0)?, data.result(0)?);
    let to = module.value(result).ty.dtype()?;
    let from = made(flow::behind_inserted(module, operand))?;
    let is_exact = (from == DType::F32 || from.is_low()) && (to == from || to == DType::F32);
    // A cast that is decided to read fp32 has its operand widened.
    let reads = flow::vars(module, node).next().and_then(decided);
    let as_it_is = reads.is_none_or(|reads| reads == from || reads == DType::F32 && to == DType::F32);
    let is_open = !is_capture(module, operand) && pin_of_cast(module, node).is_none();
    (is_exact && as_it_is && is_open).then_some(result)
}

/// True if a cast of the author is no more than that: no pin speaks of it, no attribute says how it rounds, and it is
/// in no function, which may have nothing else in it. A cast of a capture is not plain: the choice counts it by itself.
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
