//! Halves and every other element of the last axis: how rotary embeddings take values apart and join them.

use super::chains::behind;
use ampc_ir::infer::Facts;
use ampc_ir::op::OpKind;
use ampc_ir::views::{Axes, ConcatView, NodeView, Part, Parts, SplitView, normalize_axis, slice_range};
use ampc_ir::{Dim, Module, Node, Value};
use smallvec::SmallVec;

/// The operand of a Slice or Split, if result `slot` is half `part` of its last axis.
pub(super) fn half(view: &NodeView<'_>, slot: u32, part: u8) -> Option<Value> {
    let dims = view.dims(0)?;
    let last = dims.last()?.known().filter(|n| n.is_multiple_of(2))?;
    match view.kind() {
        OpKind::Slice => {
            let wanted = if part == 0 { (0, last / 2) } else { (last / 2, last / 2) };
            let (start, count, step) = slice_of_last(view, last)?;
            (step == 1 && (start, count) == wanted).then(|| view.operand(0))?
        }
        OpKind::Split => {
            let split = SplitView::read(view).ok()?;
            let is_last = is_last(split.axis, dims.len());
            let is_equal = match split.parts {
                Parts::Equal | Parts::Ceil => view.n_results() == 2,
                Parts::Sizes(sizes) => {
                    let half = i64::try_from(last / 2).ok();
                    sizes.len() == 2 && sizes.iter().all(|size| half.is_some() && size.known() == half)
                }
                Parts::Unknown => false,
            };
            (is_last && is_equal && slot == u32::from(part)).then(|| view.operand(0))?
        }
        _ => None,
    }
}

/// The operand of a Slice that takes every other element of the last axis, from element `part` on.
pub(super) fn every(view: &NodeView<'_>, part: u8) -> Option<Value> {
    let last = view.dims(0)?.last()?.known().filter(|n| n.is_multiple_of(2))?;
    if view.kind() != OpKind::Slice {
        return None;
    }
    let (start, count, step) = slice_of_last(view, last)?;
    (step == 2 && start == u64::from(part) && count == last / 2).then(|| view.operand(0))?
}

/// The operands of a Concat of two values along the last axis.
pub(super) fn joined(view: &NodeView<'_>) -> Option<[Value; 2]> {
    let rank = view.rank(0)?;
    let is_last = is_last(ConcatView::read(view).ok()?.axis, rank);
    (is_last && view.n_operands() == 2).then(|| Some([view.operand(0)?, view.operand(1)?]))?
}

/// The values whose elements a Reshape has in turn along the last axis, and the nodes before it: each value gets an
/// axis of extent 1 behind the last, and a Concat joins these axes.
pub(super) fn woven(reshape: &NodeView<'_>, facts: &Facts) -> Option<([Value; 2], SmallVec<[Node; 4]>)> {
    let module = reshape.module;
    let mut nodes = SmallVec::new();
    let join = made(module, facts, reshape.operand(0)?, OpKind::Concat, &mut nodes)?;
    let [a, b] = joined(&join)?;
    let mut spread = |value| {
        let view = made(module, facts, value, OpKind::Unsqueeze, &mut nodes)?;
        let (from, to) = (view.operand(0)?, &module.value(value).ty);
        let (from_dims, to_dims) = (module.value(from).ty.shape()?.dims()?, to.shape()?.dims()?);
        let (last, rest) = to_dims.split_last()?;
        (*last == Dim::Known(1) && rest == from_dims).then_some(from)
    };
    let (a, b) = (spread(a)?, spread(b)?);
    // The Reshape joins the last two axes.
    let from = module.value(a).ty.shape()?.dims()?;
    let to = module.value(reshape.data().result(0)?).ty.shape()?.dims()?;
    let (half, rest) = from.split_last()?;
    let (whole, others) = to.split_last()?;
    let is_woven = others == rest && !rest.contains(&Dim::Unknown) && whole.known()? == 2 * half.known()?;
    is_woven.then_some(([a, b], nodes))
}

fn made<'m>(
    module: &'m Module,
    facts: &'m Facts,
    value: Value,
    kind: OpKind,
    nodes: &mut SmallVec<[Node; 4]>,
) -> Option<NodeView<'m>> {
    let (inner, casts) = behind(module, value);
    let (node, _) = module.producer(inner)?;
    nodes.extend(casts);
    nodes.push(node);
    NodeView::with_facts(module, node, facts).filter(|view| view.kind() == kind)
}

/// First element, number of elements and step of a Slice of the last axis alone.
fn slice_of_last(view: &NodeView<'_>, last: u64) -> Option<(u64, u64, i64)> {
    let by_operand = view.schema.attr("starts").is_none();
    let listed = |i: usize, name: &str| {
        if by_operand { view.known_ints(i) } else { view.int_list(name).map(<[i64]>::to_vec) }
    };
    let one = |list: Option<Vec<i64>>| match list?[..] {
        [one] => Some(one),
        _ => None,
    };
    let step = if view.has(4) { one(view.known_ints(4))? } else { 1 };
    let (start, end) = (one(listed(1, "starts"))?, one(listed(2, "ends"))?);
    let rank = view.rank(0)?;
    let of_last = match Axes::read(view, 3) {
        Axes::Absent => rank == 1,
        Axes::Known(axes) => matches!(axes[..], [axis] if is_last(axis, rank)),
        Axes::Unknown(_) => false,
    };
    if !of_last || step <= 0 {
        return None;
    }
    let (start, count) = slice_range(last, start, end, step);
    Some((u64::try_from(start).ok()?, u64::try_from(count).ok()?, step))
}

fn is_last(axis: i64, rank: usize) -> bool {
    let axis = normalize_axis(axis, rank, Part::Node);
    axis.is_ok_and(|axis| axis + 1 == rank)
}
