//! Gradients of values that are read in sections along an axis, by Slice, or by Gather with constant indices.
//!
//! Attention often reads three sections of one product:
//!
//! ```text
//! %qkv: f16[3, 17, 32]     %q = Gather(%qkv, 0)     %k = Gather(%qkv, 1)     %v = Gather(%qkv, 2)
//! ```
//!
//! The gradient of each section waits until the gradient of `%qkv` is needed. Sections that follow each other are joined:
//!
//! ```text
//! %qkv.grad = Concat(Unsqueeze(%q.grad), Unsqueeze(%k.grad), Unsqueeze(%v.grad))
//! ```
//!
//! Pad fills gaps with zeros. Sections that overlap are in different *layers*, which are added: [0, 4), [2, 6) and [4, 8) have
//! the layers [0, 4) with [4, 8), and [2, 6). Elements are moved and never added up by index, so they keep their element type; sections
//! of several types are joined in f32.

use super::{Backward, Build, Ruled, signed};
use ampc_ir::op::OpKind;
use ampc_ir::{AttrValue, Node, Value};
use std::ops::Range;

/// The gradient of a section of a value.
#[derive(Clone, Debug)]
pub(in crate::training::autodiff) struct Section {
    pub(in crate::training::autodiff) axis: usize,
    /// The range of its elements along the axis.
    pub(in crate::training::autodiff) range: Range<i64>,
    /// The number of elements of the value along the axis.
    pub(in crate::training::autodiff) extent: i64,
    /// It has the rank of the value, and any float type.
    pub(in crate::training::autodiff) gradient: Value,
    /// The node that reads the section.
    pub(in crate::training::autodiff) reader: Node,
}

/// The gradients of a value, given those of its sections: one for each layer.
pub(in crate::training::autodiff) fn joined(
    b: &mut Backward<'_>,
    mut sections: Vec<Section>,
) -> Ruled<Vec<Value>> {
    // Stable: sections that begin at the same element stay in the order of their readers on the way back.
    sections.sort_by_key(|section| (section.axis, section.range.start));
    let mut layers: Vec<Vec<Section>> = Vec::new();
    for section in sections {
        let is_behind =
            |other: &Section| other.axis == section.axis && other.range.end <= section.range.start;
        match layers.iter_mut().find(|layer| layer.last().is_some_and(is_behind)) {
            Some(layer) => layer.push(section),
            None => layers.push(vec![section]),
        }
    }
    let of_layer = |layer: &Vec<Section>| {
        b.move_to(layer[0].reader);
        of_layer(b, layer)
    };
    layers.iter().map(of_layer).collect()
}

/// The gradient of a value, given those of sections that do not overlap, in the order of their ranges.
fn of_layer(b: &mut Backward<'_>, layer: &[Section]) -> Ruled<Value> {
    let mut gradients = Vec::with_capacity(layer.len());
    for (i, Section { axis, range, extent, gradient, .. }) in layer.iter().enumerate() {
        let before = if i == 0 { range.start } else { 0 };
        let behind = layer.get(i + 1).map_or(*extent, |next| next.range.start) - range.end;
        if before == 0 && behind == 0 {
            gradients.push(*gradient);
            continue;
        }
        let rank = b.rank(*gradient)?;
        let mut pads = vec![0; 2 * rank];
        (pads[*axis], pads[axis + rank]) = (before, behind);
        gradients.push(padded(b, *gradient, &pads)?);
    }
    let gradients = b.in_one_type(&gradients)?;
    match gradients[..] {
        [one] => Ok(one),
        _ => b.op(OpKind::Concat, &gradients, &[("axis", AttrValue::Int(signed(layer[0].axis)))]),
    }
}

/// A gradient with zeros around it: as many before each axis, then behind each, as Pad takes them.
pub(in crate::training::autodiff) fn padded(
    b: &mut Backward<'_>,
    gradient: Value,
    pads: &[i64],
) -> Ruled<Value> {
    let pads = b.ints(pads);
    let zero = b.number_like(0.0, gradient)?;
    b.op(OpKind::Pad, &[gradient, pads, zero], &[])
}
