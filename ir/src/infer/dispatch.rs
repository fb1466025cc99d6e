//! Which function infers which operator.

use super::{InferFn, control};
use crate::op::OpKind;

/// Whether shapes of the operator's results are inferred; element types always are, as far as the schema goes.
pub fn is_inferred(kind: OpKind) -> bool {
    infer_fn(kind).is_some()
}

/// The family function of an operator; `None` where the schema alone has to do.
pub(super) fn infer_fn(kind: OpKind) -> Option<InferFn> {
    Some(match kind {
        OpKind::If => control::infer_if,
        OpKind::Loop => control::infer_loop,
        OpKind::Scan => control::infer_scan,
        OpKind::SequenceMap => control::infer_sequence_map,
        _ => return None,
    })
}
