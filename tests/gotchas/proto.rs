//! Models as ONNX messages: what a file can say and text cannot.

use ampc::ir::DType;
use ampc::onnx::proto::tensor_shape_proto::{Dimension, dimension};
use ampc::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto,
    TensorProto, TensorShapeProto, TypeProto, ValueInfoProto, type_proto,
};
use ampc::onnx::{ReadOptions, read_bytes, to_bytes};
use ampc::{Model, Rewritten};
use prost::Message;

pub(crate) fn some(s: &str) -> Option<String> {
    Some(s.to_owned())
}

pub(crate) fn entry(key: &str, value: &str) -> StringStringEntryProto {
    StringStringEntryProto { key: some(key), value: some(value) }
}

/// A declared tensor.
pub(crate) fn typed(name: &str, dtype: DType, dims: &[i64]) -> ValueInfoProto {
    let dim = |&d: &i64| Dimension { denotation: None, value: Some(dimension::Value::DimValue(d)) };
    let shape = Some(TensorShapeProto { dim: dims.iter().map(dim).collect() });
    let tensor = type_proto::Tensor { elem_type: Some(dtype.number()), shape };
    let ty = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), denotation: None };
    ValueInfoProto { name: some(name), r#type: Some(ty), ..ValueInfoProto::default() }
}

/// The element type that is declared.
pub(crate) fn declared(info: &ValueInfoProto) -> DType {
    match &info.r#type.as_ref().unwrap().value {
        Some(type_proto::Value::TensorType(t)) => DType::from_number(t.elem_type.unwrap()).unwrap(),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: some(op),
        input: inputs.iter().map(|s| (*s).to_owned()).collect(),
        output: outputs.iter().map(|s| (*s).to_owned()).collect(),
        ..NodeProto::default()
    }
}

pub(crate) fn named(name: &str, mut node: NodeProto) -> NodeProto {
    node.name = some(name);
    node
}

pub(crate) fn with_attr(mut node: NodeProto, attr: AttributeProto) -> NodeProto {
    node.attribute.push(attr);
    node
}

pub(crate) fn int_attr(name: &str, value: i64) -> AttributeProto {
    AttributeProto { name: some(name), r#type: Some(2), i: Some(value), ..AttributeProto::default() }
}

pub(crate) fn graph_attr(name: &str, graph: GraphProto) -> AttributeProto {
    AttributeProto {
        name: some(name),
        r#type: Some(5),
        g: Some(Box::new(graph)),
        ..AttributeProto::default()
    }
}

pub(crate) fn cast(from: &str, to: DType, into: &str) -> NodeProto {
    with_attr(node("Cast", &[from], &[into]), int_attr("to", i64::from(to.number())))
}

/// An f32 tensor in `raw_data`.
pub(crate) fn raw(name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
    TensorProto {
        name: some(name),
        dims: dims.to_vec(),
        data_type: Some(DType::F32.number()),
        raw_data: Some(values.iter().flat_map(|v| v.to_le_bytes()).collect()),
        ..TensorProto::default()
    }
}

pub(crate) fn model(ir_version: i64, opset: i64, graph: GraphProto) -> ModelProto {
    ModelProto {
        ir_version: Some(ir_version),
        opset_import: vec![OperatorSetIdProto { domain: some(""), version: Some(opset) }],
        graph: Some(graph),
        ..ModelProto::default()
    }
}

#[track_caller]
pub(crate) fn load(bytes: Vec<u8>) -> Model {
    let (module, source, warnings) =
        read_bytes("test", bytes, &ReadOptions::default()).unwrap_or_else(|e| panic!("{e:?}"));
    Model { source: Some(source), warnings, ..Model::from(module) }
}

#[track_caller]
pub(crate) fn load_proto(model: &ModelProto) -> Model {
    load(model.encode_to_vec())
}

#[track_caller]
pub(crate) fn bytes(model: &Model) -> Vec<u8> {
    to_bytes(&model.module, model.source.as_ref()).unwrap().0
}

/// The file that a rewrite writes.
#[track_caller]
pub(crate) fn written(done: &Rewritten) -> ModelProto {
    ModelProto::decode(&*bytes(&done.model)).unwrap()
}

pub(crate) fn initializer<'a>(model: &'a ModelProto, name: &str) -> &'a TensorProto {
    let graph = model.graph.as_ref().unwrap();
    graph.initializer.iter().find(|t| t.name() == name).unwrap_or_else(|| panic!("no initializer `{name}`"))
}

pub(crate) fn nodes_of<'a>(model: &'a ModelProto, op: &str) -> Vec<&'a NodeProto> {
    model.graph.as_ref().unwrap().node.iter().filter(|n| n.op_type() == op).collect()
}

/// All graphs of a model, bodies after what is around them.
pub(crate) fn graphs(graph: &GraphProto) -> Vec<&GraphProto> {
    let mut all = vec![graph];
    let mut next = 0;
    while let Some(&graph) = all.get(next) {
        next += 1;
        all.extend(graph.node.iter().flat_map(|n| &n.attribute).filter_map(|a| a.g.as_deref()));
    }
    all
}
