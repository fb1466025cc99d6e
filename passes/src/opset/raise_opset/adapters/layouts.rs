//! Steps of operators that cut and repeat: Slice, Split, Tile.

use super::super::cx::{Cx, Refused, refuse};
use super::shapes::signed;
use ampc_ir::Node;
use ampc_ir::attr::AttrValue;
use ampc_ir::views::TileView;

/// Without axes, as many as there are starts, from the first on.
pub(in super::super) fn slice_10(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    let list = |name: &str| cx.view(node).int_list(name).map(<[i64]>::to_vec);
    let (Some(starts), Some(ends)) = (list("starts"), list("ends")) else {
        return refuse("no `starts` or `ends`");
    };
    let axes = list("axes").unwrap_or_else(|| (0..starts.len()).map(signed).collect());
    let values =
        [cx.ints(node, "starts", &starts), cx.ints(node, "ends", &ends), cx.ints(node, "axes", &axes)];
    for (slot, value) in (1..).zip(values) {
        cx.set_operand(node, slot, Some(value));
    }
    for name in ["starts", "ends", "axes"] {
        cx.remove(node, name);
    }
    Ok(())
}

/// Version 1 may have the lengths as an operand.
pub(in super::super) fn split_2(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    if cx.view(node).has(1) {
        let Some(lengths) = cx.view(node).known_ints(1) else {
            return refuse("lengths that are not constant");
        };
        cx.set(node, "split", AttrValue::Ints(lengths));
    }
    let data = cx.inserter.module.node(node).operand(0);
    cx.inserter.module.set_formal_operands(node, &[data]);
    Ok(())
}

/// From 18 on either the lengths or the number is written.
pub(in super::super) fn split_18(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    if !cx.view(node).has(1) {
        let n = cx.view(node).n_results();
        cx.set(node, "num_outputs", AttrValue::Int(signed(n)));
    }
    Ok(())
}

/// Version 1 repeats one axis, and axis and number are operands.
pub(in super::super) fn tile_6(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    let TileView::One { tiles: Some(tiles), axis: Some(axis) } = TileView::read(&cx.view(node)) else {
        return refuse("an axis or a number that is not constant");
    };
    let Some(dims) = cx.dims(node, 0) else { return refuse("an operand of unknown rank") };
    let axis = if axis < 0 { axis + signed(dims.len()) } else { axis };
    let mut repeats = vec![1; dims.len()];
    let Some(repeat) = usize::try_from(axis).ok().and_then(|axis| repeats.get_mut(axis)) else {
        return refuse(format!("axis {axis} of {} axes", dims.len()));
    };
    *repeat = tiles;
    let repeats = cx.ints(node, "repeats", &repeats);
    let data = cx.inserter.module.node(node).operand(0);
    cx.inserter.module.set_formal_operands(node, &[data, Some(repeats)]);
    Ok(())
}
