//! `TypeProto` and [`Type`], both ways.

use super::proto::{
    TensorShapeProto, TypeProto, tensor_shape_proto::Dimension, tensor_shape_proto::dimension, type_proto,
    type_proto::Value as Kind,
};
use ampc_ir::op::AttrKind;
use ampc_ir::{DType, Dim, Module, Shape, TensorType, Type};

/// Something about a declared type that is wrong or doubtful.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TypeIssue {
    /// The element type is unknown to this version.
    UnknownElement(i32),
    /// A part that every type of this kind has is missing.
    Missing(&'static str),
    /// A dim is negative, and taken to be unknown.
    NegativeDim(i64),
}

/// The type that a message declares. A missing type is unknown; irregularities are passed to `report`.
pub(crate) fn type_of(module: &mut Module, message: &TypeProto, report: &mut dyn FnMut(TypeIssue)) -> Type {
    let mut element = |number: Option<i32>| match DType::from_number(number.unwrap_or(0)) {
        None => {
            report(TypeIssue::Missing("element type"));
            None
        }
        Some(DType::Other(number)) => {
            report(TypeIssue::UnknownElement(number));
            None
        }
        dtype => dtype,
    };
    match &message.value {
        None => Type::Unknown,
        Some(Kind::TensorType(t)) => match element(t.elem_type) {
            Some(dtype) => Type::tensor(dtype, shape_of(module, t.shape.as_ref(), report)),
            None => Type::Unknown,
        },
        Some(Kind::SparseTensorType(t)) => match element(t.elem_type) {
            Some(dtype) => Type::Sparse(TensorType::new(dtype, shape_of(module, t.shape.as_ref(), report))),
            None => Type::Unknown,
        },
        Some(Kind::SequenceType(s)) => {
            Type::Sequence(Box::new(inner(module, s.elem_type.as_deref(), report)))
        }
        Some(Kind::OptionalType(o)) => {
            Type::Optional(Box::new(inner(module, o.elem_type.as_deref(), report)))
        }
        Some(Kind::MapType(m)) => match element(m.key_type) {
            Some(key) => Type::Map { key, value: Box::new(inner(module, m.value_type.as_deref(), report)) },
            None => Type::Unknown,
        },
        Some(Kind::OpaqueType(o)) => Type::Opaque {
            domain: module.intern(o.domain.as_deref().unwrap_or_default()),
            name: module.intern(o.name.as_deref().unwrap_or_default()),
        },
    }
}

fn inner(module: &mut Module, message: Option<&TypeProto>, report: &mut dyn FnMut(TypeIssue)) -> Type {
    message.map_or(Type::Unknown, |m| type_of(module, m, report))
}

fn shape_of(
    module: &mut Module,
    shape: Option<&TensorShapeProto>,
    report: &mut dyn FnMut(TypeIssue),
) -> Shape {
    let Some(shape) = shape else { return Shape::unknown() };
    Shape::of(shape.dim.iter().map(|dim| match &dim.value {
        Some(dimension::Value::DimValue(n)) => match u64::try_from(*n) {
            Ok(n) => Dim::Known(n),
            Err(_) => {
                report(TypeIssue::NegativeDim(*n));
                Dim::Unknown
            }
        },
        Some(dimension::Value::DimParam(name)) if !name.is_empty() => Dim::Sym(module.intern(name)),
        Some(dimension::Value::DimParam(_)) | None => Dim::Unknown,
    }))
}

/// The message of a type; empty for an unknown one.
pub(crate) fn message_of(module: &Module, ty: &Type) -> TypeProto {
    let value = match ty {
        Type::Unknown => None,
        Type::Tensor(t) => Some(Kind::TensorType(type_proto::Tensor {
            elem_type: Some(t.dtype.number()),
            shape: shape_message(module, &t.shape),
        })),
        Type::Sparse(t) => Some(Kind::SparseTensorType(type_proto::SparseTensor {
            elem_type: Some(t.dtype.number()),
            shape: shape_message(module, &t.shape),
        })),
        Type::Sequence(t) => Some(Kind::SequenceType(Box::new(type_proto::Sequence {
            elem_type: Some(Box::new(message_of(module, t))),
        }))),
        Type::Optional(t) => Some(Kind::OptionalType(Box::new(type_proto::Optional {
            elem_type: Some(Box::new(message_of(module, t))),
        }))),
        Type::Map { key, value } => Some(Kind::MapType(Box::new(type_proto::Map {
            key_type: Some(key.number()),
            value_type: Some(Box::new(message_of(module, value))),
        }))),
        Type::Opaque { domain, name } => Some(Kind::OpaqueType(type_proto::Opaque {
            domain: Some(module.text(*domain).to_owned()),
            name: Some(module.text(*name).to_owned()),
        })),
    };
    TypeProto { denotation: None, value }
}

fn shape_message(module: &Module, shape: &Shape) -> Option<TensorShapeProto> {
    let dim = |dim: &Dim| Dimension {
        denotation: None,
        value: match dim {
            // A dim beyond 2^63 cannot be spelled; unknown is the truth that can.
            Dim::Known(n) => i64::try_from(*n).ok().map(dimension::Value::DimValue),
            Dim::Sym(name) => Some(dimension::Value::DimParam(module.text(*name).to_owned())),
            Dim::Unknown => None,
        },
    };
    Some(TensorShapeProto { dim: shape.dims()?.iter().map(dim).collect() })
}

/// Sets the innermost element type of a message, whose shape and denotations stay; false if it has none.
pub(crate) fn set_element(message: &mut TypeProto, dtype: DType) -> bool {
    let mut message = message;
    loop {
        match &mut message.value {
            Some(Kind::TensorType(t)) => t.elem_type = Some(dtype.number()),
            Some(Kind::SparseTensorType(t)) => t.elem_type = Some(dtype.number()),
            Some(Kind::SequenceType(s)) => match s.elem_type.as_deref_mut() {
                Some(inner) => {
                    message = inner;
                    continue;
                }
                None => return false,
            },
            Some(Kind::OptionalType(o)) => match o.elem_type.as_deref_mut() {
                Some(inner) => {
                    message = inner;
                    continue;
                }
                None => return false,
            },
            Some(Kind::MapType(_) | Kind::OpaqueType(_)) | None => return false,
        }
        return true;
    }
}

/// ONNX's number of an attribute kind.
pub(crate) fn kind_number(kind: AttrKind) -> i32 {
    KINDS.iter().find(|(k, _)| *k == kind).expect("every kind is listed").1
}

/// The attribute kind with this number.
pub(crate) fn kind_of(number: i32) -> Option<AttrKind> {
    KINDS.iter().find(|(_, n)| *n == number).map(|(k, _)| *k)
}

const KINDS: [(AttrKind, i32); 14] = [
    (AttrKind::Float, 1),
    (AttrKind::Int, 2),
    (AttrKind::String, 3),
    (AttrKind::Tensor, 4),
    (AttrKind::Graph, 5),
    (AttrKind::Floats, 6),
    (AttrKind::Ints, 7),
    (AttrKind::Strings, 8),
    (AttrKind::Tensors, 9),
    (AttrKind::Graphs, 10),
    (AttrKind::SparseTensor, 11),
    (AttrKind::SparseTensors, 12),
    (AttrKind::Type, 13),
    (AttrKind::Types, 14),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_round_trip() {
        let mut module = Module::new();
        let n = module.intern("N");
        let tensor = Type::tensor(DType::BF16, Shape::of([Dim::Known(0), Dim::Sym(n), Dim::Unknown]));
        let types = [
            Type::Unknown,
            tensor.clone(),
            Type::Sequence(Box::new(Type::Optional(Box::new(tensor.clone())))),
            Type::Map { key: DType::I64, value: Box::new(tensor) },
            Type::Sparse(TensorType::new(DType::F32, Shape::unknown())),
            Type::Opaque { domain: n, name: n },
        ];
        for ty in types {
            let message = message_of(&module, &ty);
            let read = type_of(&mut module, &message, &mut |issue| panic!("{issue:?}"));
            assert_eq!(read, ty);
        }
    }

    #[test]
    fn setting_the_element_type_reaches_the_innermost() {
        let mut module = Module::new();
        let ty =
            Type::Optional(Box::new(Type::Sequence(Box::new(Type::tensor(DType::F32, Shape::of_rank(2))))));
        let mut message = message_of(&module, &ty);
        assert!(set_element(&mut message, DType::F16));
        let read = type_of(&mut module, &message, &mut |issue| panic!("{issue:?}"));
        assert_eq!(read, ty.with_element_dtype(DType::F16));
    }
}
