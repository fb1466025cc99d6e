//! Operators with a signature of the user: results that have the shape of an operand.

use super::inferred::Inferred;
use crate::views::{NodeView, OpError};

/// The shapes that the signature declares; a variadic result is the last.
pub(super) fn infer_declared(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let shapes = view.schema.declared.map_or(&[][..], |declared| declared.shapes);
    for i in 0..out.types.len() {
        if let Some(&Some(operand)) = shapes.get(i).or(shapes.last()) {
            out.shape(i, view.shape(usize::from(operand)));
        }
    }
    Ok(())
}
