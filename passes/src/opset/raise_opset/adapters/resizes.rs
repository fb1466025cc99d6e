//! Upsample and Resize.
//!
//! Below 11 the mapping from elements of the result to elements of the operand is not defined. ONNX Runtime,
//! and the frameworks such models come from, take x / scale (`asymmetric`), rounded down where there are more
//! elements and up where there are fewer; version 11 makes this explicit.

use super::super::cx::{Cx, Refused, refuse};
use ampc_ir::Node;
use ampc_ir::attr::AttrValue;
use ampc_ir::op::OpKind;

fn text(value: &str) -> AttrValue {
    AttrValue::String(value.as_bytes().into())
}

/// Version 1 has a scale for the height and a scale for the width of an image.
pub(in super::super) fn upsample_7(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    let (height, width) = (cx.view(node).float("height_scale"), cx.view(node).float("width_scale"));
    let (Some(height), Some(width)) = (height, width) else { return refuse("no scales") };
    for name in ["height_scale", "width_scale"] {
        cx.remove(node, name);
    }
    if cx.view(node).string("mode") == Some("bilinear") {
        cx.set(node, "mode", text("linear"));
    }
    cx.set(node, "scales", AttrValue::Floats(vec![1.0, 1.0, height, width]));
    Ok(())
}

/// Operands and modes are the same as in Resize 10.
pub(in super::super) fn upsample_10(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    cx.rename(node, OpKind::Resize)
}

pub(in super::super) fn resize_11(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    let view = cx.view(node);
    if view.string("mode") == Some("nearest") {
        const LIMIT: u64 = 64;
        let Some(scales) = view.constant(1).and_then(|c| c.small_floats(LIMIT)) else {
            return refuse("the nearest element for scales that are not constant");
        };
        let nearest = if scales.iter().all(|&s| s >= 1.0) {
            "floor"
        } else if scales.iter().all(|&s| s <= 1.0) {
            "ceil"
        } else {
            return refuse("the nearest element where one axis grows and another shrinks");
        };
        cx.set(node, "nearest_mode", text(nearest));
    }
    cx.set(node, "coordinate_transformation_mode", text("asymmetric"));
    let operands = cx.inserter.module.node(node).formal_operands();
    let [x, scales] = *operands else { return refuse("operands other than X and scales") };
    // Read for `tf_crop_and_resize` only, and required until 13.
    let roi = cx.floats(node, "roi", &[]);
    cx.inserter.module.set_formal_operands(node, &[x, Some(roi), scales]);
    Ok(())
}

/// Where sizes are given, 11 and 12 ask for scales without elements, 13 for none.
pub(in super::super) fn resize_13(cx: &mut Cx<'_>, node: Node) -> Result<(), Refused> {
    if cx.view(node).string("coordinate_transformation_mode") == Some("tf_half_pixel_for_nn") {
        return refuse("`tf_half_pixel_for_nn` is gone");
    }
    if cx.view(node).has(3) {
        cx.set_operand(node, 2, None);
    }
    Ok(())
}
