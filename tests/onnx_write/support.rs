//! Models to write, and what the tests do to them.

use ampc::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TypeProto,
    ValueInfoProto, type_proto,
};
use ampc::onnx::{ReadOptions, Source, read_bytes, to_bytes};
use ampc_ir::convert::Conversion;
use ampc_ir::edit::{NewNode, Position};
use ampc_ir::module::Provenance;
use ampc_ir::{AttrValue, DType, Module, Op, Payload, Value};
use prost::Message;
use std::sync::Arc;

pub(super) fn text(s: &str) -> Option<String> {
    Some(s.to_owned())
}

pub(super) fn typed(name: &str, dtype: i32) -> ValueInfoProto {
    let tensor = type_proto::Tensor { elem_type: Some(dtype), shape: None };
    let ty = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), denotation: None };
    ValueInfoProto { name: text(name), r#type: Some(ty), ..ValueInfoProto::default() }
}

pub(super) fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: text(op),
        input: inputs.iter().map(|s| (*s).to_owned()).collect(),
        output: outputs.iter().map(|s| (*s).to_owned()).collect(),
        ..NodeProto::default()
    }
}

pub(super) fn weight(name: &str, n: u16) -> TensorProto {
    let raw = (0..n).flat_map(|i| f32::from(i).to_le_bytes()).collect();
    TensorProto {
        name: text(name),
        dims: vec![i64::from(n)],
        data_type: Some(1),
        raw_data: Some(raw),
        doc_string: text("kept"),
        ..TensorProto::default()
    }
}

pub(super) fn model(ir_version: i64, graph: GraphProto) -> ModelProto {
    ModelProto {
        ir_version: Some(ir_version),
        opset_import: vec![OperatorSetIdProto { domain: text(""), version: Some(17) }],
        graph: Some(graph),
        ..ModelProto::default()
    }
}

pub(super) fn adder() -> GraphProto {
    GraphProto {
        name: text("g"),
        node: vec![node("Add", &["x", "w"], &["h"]), node("Relu", &["h"], &["y"])],
        initializer: vec![weight("w", 600)],
        input: vec![typed("x", 1)],
        output: vec![typed("y", 1)],
        value_info: vec![typed("h", 1), typed("gone", 1)],
        ..GraphProto::default()
    }
}

pub(super) fn load(model: &ModelProto) -> (Module, Source) {
    let (module, source, _) = read_bytes("test", model.encode_to_vec(), &ReadOptions::default()).unwrap();
    (module, source)
}

pub(super) fn written(module: &Module, source: &Source) -> ModelProto {
    ModelProto::decode(&*to_bytes(module, Some(source)).unwrap().0).unwrap()
}

pub(super) fn named(module: &Module, name: &str) -> Value {
    let symbol = module.symbol(name).unwrap();
    let graph = module.graph(module.main());
    let results =
        module.nodes(module.main()).flat_map(|n| module.node(n).results().iter().flatten().copied());
    let sources = graph.inputs().iter().chain(graph.constants()).copied();
    sources.chain(results).find(|&v| module.value(v).name == Some(symbol)).unwrap()
}

pub(super) fn lower(module: &mut Module, name: &str) {
    let value = named(module, name);
    let Some(Payload::Dense(data)) = module.constant(value) else { panic!("{name} is a dense constant") };
    let low = data.converted(Conversion { to: DType::F16, clamp: false });
    module.set_constant(value, Payload::Dense(Arc::new(low)));
}

/// Puts a cast to f16 after a value of the main graph, read by the first node that reads it.
pub(super) fn cast(module: &mut Module, name: &str) -> ampc_ir::Node {
    let value = named(module, name);
    let (reader, slot) = module.uses(value).last().unwrap();
    let ampc_ir::op::Lookup::Found(schema) = ampc_ir::op::lookup("", "Cast", 17) else {
        panic!("Cast exists")
    };
    let to = module.intern("to");
    let result = module.fresh_name(&format!("{name}_f16"));
    let ty = module.value(value).ty.with_element_dtype(DType::F16);
    let new = NewNode {
        op: Op::Schema(schema),
        name: None,
        operands: [Some(value)].into_iter().collect(),
        attrs: vec![(to, AttrValue::Int(10))],
        results: vec![Some((result, ty))],
        provenance: Provenance::Inserted,
    };
    let cast = module.add_node(module.main(), Position::Before(reader), new);
    let low = module.node(cast).result(0);
    module.set_operand(reader, slot as usize, low);
    cast
}

/// A field of number 1000 with three bytes: nothing that this version knows.
pub(super) const UNKNOWN: [u8; 6] = [0xc2, 0x3e, 3, b'n', b'e', b'w'];

pub(super) fn with_unknown(message: &impl Message) -> Vec<u8> {
    [message.encode_to_vec(), UNKNOWN.to_vec()].concat()
}

pub(super) fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    prost::encoding::encode_varint(content.len() as u64, &mut out);
    out.extend_from_slice(content);
    out
}

pub(super) fn count(haystack: &[u8], needle: &[u8]) -> usize {
    haystack.windows(needle.len()).filter(|w| *w == needle).count()
}

pub(super) fn branch(op: &str, inputs: &[&str], output: &str) -> GraphProto {
    GraphProto {
        name: text(output),
        node: vec![node(op, inputs, &[output])],
        output: vec![typed(output, 1)],
        ..GraphProto::default()
    }
}

pub(super) fn with_bodies() -> ModelProto {
    let attr = |name: &str, g: GraphProto| AttributeProto {
        name: text(name),
        r#type: Some(5),
        g: Some(Box::new(g)),
        doc_string: text("kept"),
        ..AttributeProto::default()
    };
    let mut branches = node("If", &["c"], &["y"]);
    branches.attribute = vec![
        attr("then_branch", branch("Add", &["h", "w"], "t")),
        attr("else_branch", branch("Neg", &["x"], "e")),
    ];
    let graph = GraphProto {
        name: text("g"),
        node: vec![node("Relu", &["x"], &["h"]), branches],
        initializer: vec![weight("w", 3)],
        input: vec![typed("x", 1), typed("c", 9)],
        output: vec![typed("y", 1)],
        ..GraphProto::default()
    };
    model(10, graph)
}
