//! Declared types: of inputs and outputs, and of the values in between (`value_info`).

use super::Exporter;
use crate::onnx::error::Warning;
use crate::onnx::layout::Layout;
use crate::onnx::proto::{
    TensorShapeProto, TypeProto, tensor_shape_proto::dimension, type_proto::Value as Kind,
};
use crate::onnx::scan::decode;
use crate::onnx::types::{message_of, set_element};
use crate::onnx::wire::{Field, Fields, WireError};
use ampc_ir::{DType, Dim, GraphId, Module, Shape, Symbol, Type, Value};
use rustc_hash::FxHashMap;

/// Relation of a declared type to the inferred type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Agreement {
    /// It may hold.
    Agrees,
    /// Only the element type is another one.
    OtherElement,
    /// It cannot hold.
    Contradicts,
}

impl Exporter<'_> {
    /// An input or output of the source: copied if name and type are as they were, else corrected.
    pub(super) fn value_message(
        &mut self,
        out: &mut Layout,
        field: &Field,
        value: Value,
        ty: &Type,
        declared: Option<&Type>,
    ) -> Result<(), WireError> {
        let name = self.name(Some(value));
        let same_type =
            declared.map_or_else(|| ty.same_kind(ty), |d| d == ty || (d.same_kind(ty) && keeps_shape(d, ty)));
        let span = field.bytes("value_info")?;
        let mut message = Layout::new();
        let mut seen = [false; 2];
        let mut fields = Fields::of(span);
        while let Some(inner) = fields.next(self.reader())? {
            match inner.number {
                1 => {
                    seen[0] = true;
                    message.bytes_field(1, name.as_bytes());
                }
                2 => {
                    seen[1] = true;
                    let at = inner.bytes("type")?;
                    let mut proto: TypeProto = decode(self.reader(), at)?;
                    match agreement(&proto, ty) {
                        // To import a type without element type is unknown: it is copied, whatever else it says.
                        _ if declared == Some(&Type::Unknown) => message.range(self.shared(), inner.whole()),
                        Agreement::Agrees if same_type => message.range(self.shared(), inner.whole()),
                        Agreement::OtherElement if retype(&mut proto, ty) => message.prost_field(2, &proto),
                        Agreement::Agrees | Agreement::OtherElement | Agreement::Contradicts => {
                            message.prost_field(2, &message_of(self.module, ty));
                        }
                    }
                }
                _ => message.range(self.shared(), inner.whole()),
            }
        }
        if !seen[0] {
            message.bytes_field(1, name.as_bytes());
        }
        if !seen[1] && *ty != Type::Unknown && declared.is_none_or(|d| *d != Type::Unknown) {
            message.prost_field(2, &message_of(self.module, ty));
        }
        out.message_field(field.number, message);
        Ok(())
    }

    /// Warns of the `value_info` entries of a graph of the source that do not hold.
    pub(super) fn check_declared_types(&mut self, graph: GraphId) -> Result<(), WireError> {
        let Some(record) = self.source.and_then(|s| s.graphs.get(&graph)) else { return Ok(()) };
        if self.is_in_function(graph) {
            return Ok(());
        }
        let mut types = None;
        let mut fields = Fields::of(record.at.body);
        while let Some(field) = fields.next(self.reader())? {
            if field.number == 13 {
                self.declared_type(&mut Layout::new(), &field, graph, &mut types)?;
            }
        }
        Ok(())
    }

    /// A `value_info` entry: kept if it agrees with the inferred type, retyped if only the element type
    /// differs, left out if it is false or its value does not exist.
    pub(super) fn declared_type(
        &mut self,
        out: &mut Layout,
        field: &Field,
        graph: GraphId,
        types: &mut Option<FxHashMap<Symbol, Value>>,
    ) -> Result<(), WireError> {
        let module = self.module;
        let values = types.get_or_insert_with(|| values_by_name(module, graph));
        let Some(&value) = self.field_name(field, 1)?.and_then(|name| values.get(&name)) else {
            return Ok(());
        };
        let ty = &module.value(value).ty;
        let mut proto = None;
        let mut fields = Fields::of(field.bytes("value_info")?);
        while let Some(inner) = fields.next(self.reader())? {
            if inner.number == 2 {
                proto = Some(decode::<TypeProto>(self.reader(), inner.bytes("type")?)?);
            }
        }
        let Some(mut proto) = proto else { return Ok(()) };
        match agreement(&proto, ty) {
            Agreement::Agrees => out.range(self.shared(), field.whole()),
            // Types inside functions are those of one call; another one may have others.
            Agreement::OtherElement | Agreement::Contradicts if self.is_in_function(graph) => {}
            Agreement::OtherElement if retype(&mut proto, ty) => {
                let mut message = Layout::new();
                let mut fields = Fields::of(field.bytes("value_info")?);
                while let Some(inner) = fields.next(self.reader())? {
                    if inner.number == 2 {
                        message.prost_field(2, &proto);
                    } else {
                        message.range(self.shared(), inner.whole());
                    }
                }
                out.message_field(field.number, message);
            }
            Agreement::OtherElement | Agreement::Contradicts => self.warnings.push(Warning::FalseValueInfo {
                value: self.name(Some(value)),
                declared: describe(&proto),
                inferred: describe(&in_source(message_of(module, ty), &proto)),
            }),
        }
        Ok(())
    }
}

/// True if the declared shape may stay although more is known of the type by now.
fn keeps_shape(declared: &Type, ty: &Type) -> bool {
    declared.meet(ty).is_some()
}

fn values_by_name(module: &Module, graph: GraphId) -> FxHashMap<Symbol, Value> {
    let data = module.graph(graph);
    let results = module.nodes(graph).flat_map(|n| module.node(n).results().iter().flatten().copied());
    let sources = data.inputs().iter().chain(data.constants()).copied();
    results.chain(sources).filter_map(|v| Some((module.value(v).name?, v))).collect()
}

/// The type that a value had in the source: a low value that was declared f32 has been lowered since.
fn in_source(mut now: TypeProto, declared: &TypeProto) -> TypeProto {
    let element = |proto: &TypeProto| match &proto.value {
        Some(Kind::TensorType(t)) => t.elem_type.and_then(DType::from_number),
        _ => None,
    };
    if element(declared) == Some(DType::F32) && element(&now).is_some_and(DType::is_low) {
        set_element(&mut now, DType::F32);
    }
    now
}

fn retype(proto: &mut TypeProto, ty: &Type) -> bool {
    ty.element_dtype().is_some_and(|dtype| set_element(proto, dtype))
}

fn agreement(proto: &TypeProto, ty: &Type) -> Agreement {
    let (mut proto, mut ty) = (Some(proto), ty);
    loop {
        let Some(kind) = proto.and_then(|p| p.value.as_ref()) else { return Agreement::Agrees };
        match (kind, ty) {
            (_, Type::Unknown) => return Agreement::Agrees,
            (Kind::SequenceType(s), Type::Sequence(inner)) => (proto, ty) = (s.elem_type.as_deref(), inner),
            (Kind::OptionalType(o), Type::Optional(inner)) => (proto, ty) = (o.elem_type.as_deref(), inner),
            (Kind::TensorType(t), Type::Tensor(now)) => {
                return tensor_agreement(t.elem_type, t.shape.as_ref(), now.dtype, &now.shape);
            }
            (Kind::SparseTensorType(t), Type::Sparse(now)) => {
                return tensor_agreement(t.elem_type, t.shape.as_ref(), now.dtype, &now.shape);
            }
            (Kind::MapType(_), Type::Map { .. }) | (Kind::OpaqueType(_), Type::Opaque { .. }) => {
                return Agreement::Agrees;
            }
            _ => return Agreement::Contradicts,
        }
    }
}

fn tensor_agreement(
    element: Option<i32>,
    declared: Option<&TensorShapeProto>,
    dtype: DType,
    shape: &Shape,
) -> Agreement {
    if let (Some(declared), Some(dims)) = (declared, shape.dims()) {
        let may_be =
            |(d, now): (&crate::onnx::proto::tensor_shape_proto::Dimension, &Dim)| match (&d.value, now) {
                (Some(dimension::Value::DimValue(n)), Dim::Known(now)) => {
                    u64::try_from(*n).is_ok_and(|n| n == *now)
                }
                _ => true,
            };
        if declared.dim.len() != dims.len() || !declared.dim.iter().zip(dims).all(may_be) {
            return Agreement::Contradicts;
        }
    }
    if element == Some(dtype.number()) { Agreement::Agrees } else { Agreement::OtherElement }
}

/// A declared type for a message.
fn describe(proto: &TypeProto) -> String {
    let tensor = |element: Option<i32>, shape: Option<&TensorShapeProto>| {
        let dtype = element.and_then(DType::from_number).map_or("?".to_owned(), |d| d.to_string());
        let Some(shape) = shape else { return dtype };
        let dims = shape.dim.iter().map(|d| match &d.value {
            Some(dimension::Value::DimValue(n)) => n.to_string(),
            Some(dimension::Value::DimParam(name)) => name.clone(),
            None => "?".to_owned(),
        });
        format!("{dtype}[{}]", dims.collect::<Vec<_>>().join(", "))
    };
    match &proto.value {
        None => "an unknown type".to_owned(),
        Some(Kind::TensorType(t)) => tensor(t.elem_type, t.shape.as_ref()),
        Some(Kind::SparseTensorType(t)) => format!("sparse {}", tensor(t.elem_type, t.shape.as_ref())),
        Some(Kind::SequenceType(_)) => "a sequence".to_owned(),
        Some(Kind::OptionalType(_)) => "an optional".to_owned(),
        Some(Kind::MapType(_)) => "a map".to_owned(),
        Some(Kind::OpaqueType(_)) => "an opaque type".to_owned(),
    }
}
