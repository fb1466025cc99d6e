//! Containers: types of sequences and optionals, and the operators that put tensors in or take them out.

use ampc_ir::op::OpKind;
use ampc_ir::{DType, Module, Node, Type};

/// True if a type is a sequence or optional of tensors, or of such containers.
pub fn is_container(ty: &Type) -> bool {
    match ty {
        Type::Sequence(element) | Type::Optional(element) => {
            element.as_tensor().is_some() || is_container(element)
        }
        Type::Unknown | Type::Tensor(_) | Type::Sparse(_) | Type::Map { .. } | Type::Opaque { .. } => false,
    }
}

/// The element type of a tensor, or of the tensors in a sequence or optional.
pub fn element(ty: &Type) -> Option<DType> {
    (ty.as_tensor().is_some() || is_container(ty)).then(|| ty.element_dtype()).flatten()
}

/// True if an operator only puts tensors into sequences and optionals, or takes tensors out.
pub fn is_structural(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::ConcatFromSequence
            | OpKind::Optional
            | OpKind::OptionalGetElement
            | OpKind::OptionalHasElement
            | OpKind::SequenceAt
            | OpKind::SequenceConstruct
            | OpKind::SequenceEmpty
            | OpKind::SequenceErase
            | OpKind::SequenceInsert
            | OpKind::SequenceLength
            | OpKind::SplitToSequence
    )
}

/// True if the operator of a node is structural ([`is_structural`]).
pub fn is_structural_node(module: &Module, node: Node) -> bool {
    module.node(node).schema().is_some_and(|s| is_structural(s.kind))
}
