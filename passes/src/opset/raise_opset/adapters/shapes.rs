//! Steps that change how shapes combine: broadcasting, and Softmax over a matrix.

use super::super::cx::{At, Cx, Refused, refuse};
use ampc_ir::attr::AttrValue;
use ampc_ir::op::OpKind;
use ampc_ir::views::broadcast::Broadcast;
use ampc_ir::views::norm::{SoftmaxAxes, SoftmaxView};
use ampc_ir::{Dim, Node, Value};

/// Below 7 the second operand of arithmetic is as large as the first, or with `broadcast` one element or a run of its
/// axes. NumPy's rule aligns at the end: a run that ends earlier gets axes of extent 1 behind it.
pub(in super::super) fn broadcast(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    if let Broadcast::Aligned { axis: Some(axis) } = Broadcast::read(&cx.view(node)) {
        let (Some(a), Some(b)) = (cx.dims(node, 0), cx.dims(node, 1)) else {
            return refuse("`axis` among operands of unknown rank");
        };
        let one = b.iter().all(|d| *d == Dim::Known(1));
        let axis = if axis < 0 { axis + signed(a.len()) } else { axis };
        let behind = usize::try_from(axis).ok().and_then(|axis| a.len().checked_sub(axis + b.len()));
        match behind {
            _ if one && b.len() <= a.len() => {}
            Some(0) => {}
            Some(behind) => {
                let axes = (b.len()..b.len() + behind).map(signed).collect();
                unsqueeze(cx, node, 1, axes)?;
            }
            None => {
                return refuse(format!("`axis` {axis} where operands have {} and {} axes", a.len(), b.len()));
            }
        }
    }
    cx.remove(node, "broadcast");
    cx.remove(node, "axis");
    Ok(())
}

/// Below 7 a slope of more than one element is per channel, whatever the rank.
pub(in super::super) fn prelu_7(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    let slope = cx.dims(node, 1);
    match (cx.dims(node, 0), slope.as_deref()) {
        (_, Some([] | [Dim::Known(1)])) => Ok(()),
        (Some(x), Some([slope])) => {
            if let (Some(Dim::Known(channels)), Dim::Known(slopes)) = (x.get(1), slope)
                && channels != slopes
            {
                return refuse("a slope per channel of which there are not as many as channels");
            }
            if x.len() > 2 {
                unsqueeze(cx, node, 1, (1..x.len() - 1).map(signed).collect())?;
            }
            Ok(())
        }
        _ => refuse("a slope per channel where ranks are not known"),
    }
}

/// Gives operand `slot` axes of extent 1. Only below 13, where axes are an attribute.
fn unsqueeze(cx: &mut Cx<'_>, node: Node, slot: usize, axes: Vec<i64>) -> Result<(), Refused> {
    let value = cx.inserter.module.node(node).operand(slot).expect("it has dims");
    let wide = cx.add(At::Before(node), OpKind::Unsqueeze, &[value], &[("axes", axes.into())], "aligned")?;
    cx.inserter.module.set_operand(node, slot, Some(wide));
    Ok(())
}

/// Version 1 lets the axis be the one behind the last.
pub(in super::super) fn softmax_11(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    let axis = cx.view(node).int("axis").unwrap_or(1);
    match cx.dims(node, 0) {
        Some(dims) if axis < signed(dims.len()) || dims.len() < 2 && axis == 0 => Ok(()),
        Some(dims) => refuse(format!("axis {axis} of {} axes", dims.len())),
        None => Ok(()),
    }
}

/// Below 13 all axes from one on belong together. That is one axis if the others have one element, else the operand
/// becomes a matrix for as long as it takes.
pub(in super::super) fn softmax_13(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    let dims = cx.dims(node, 0);
    // Of no elements there is nothing to compute along any axis.
    if dims.as_ref().is_some_and(|dims| dims.contains(&Dim::Known(0))) {
        return Ok(());
    }
    let axes = SoftmaxView::read(&cx.view(node)).map_err(|e| Refused(e.to_string()))?.axes;
    if let (Some(dims), Some(SoftmaxAxes::From(first))) = (&dims, axes) {
        let long: Vec<usize> = (first..dims.len()).filter(|&i| dims[i] != Dim::Known(1)).collect();
        let single = match long[..] {
            [] => Some(first),
            [axis] => Some(axis),
            _ => None,
        };
        if let Some(axis) = single {
            let (axis, rank) = (signed(axis), signed(dims.len()));
            // What is written may say so already, and so does nothing where it is the last axis.
            let said = match cx.attr(node, "axis") {
                Some(AttrValue::Int(written)) => written == axis || written == axis - rank,
                _ => axis == rank - 1,
            };
            if !said && rank > 0 {
                cx.set(node, "axis", AttrValue::Int(axis));
            }
            return Ok(());
        }
    }
    let axis = cx.view(node).int("axis").unwrap_or(1);
    let Some(x) = cx.inserter.module.node(node).operand(0) else { return refuse("no operand") };
    let flat = cx.add(At::Before(node), OpKind::Flatten, &[x], &[("axis", axis.into())], "flat")?;
    let shape = shape_of(cx, node, x, dims.as_deref())?;
    cx.inserter.module.set_operand(node, 0, Some(flat));
    cx.set(node, "axis", AttrValue::Int(1));
    let y = cx.inserter.module.node(node).result(0).expect("it has one result");
    let back = cx.add(At::After(node), OpKind::Reshape, &[y, shape], &[], "back")?;
    cx.take_over(y, back, "matrix");
    Ok(())
}

/// The shape of a value as an operand: a constant if it is known.
fn shape_of(cx: &mut Cx<'_>, node: Node, value: Value, dims: Option<&[Dim]>) -> Result<Value, Refused> {
    // A 0 would ask Reshape for the extent that the matrix has there.
    let known: Option<Vec<i64>> = dims.and_then(|dims| {
        dims.iter().map(|d| d.known().and_then(|n| i64::try_from(n).ok()).filter(|&n| n > 0)).collect()
    });
    match known {
        Some(list) => Ok(cx.ints(node, "shape", &list)),
        None => cx.add(At::Before(node), OpKind::Shape, &[value], &[], "shape"),
    }
}

/// An axis or a number of axes as attributes spell it.
pub(super) fn signed(n: usize) -> i64 {
    i64::try_from(n).expect("fewer axes than 2^63")
}
