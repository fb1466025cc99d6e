//! Nodes that say an element type: casts, empty sequences and optionals.

use crate::graph::containers::element;
use crate::graph::flow;
use crate::pass::sound;
use ampc_ir::edit::Position;
use ampc_ir::module::Provenance;
use ampc_ir::op::{AttrKind, OpKind, OpSchema};
use ampc_ir::{AttrValue, DType, Inserter, Module, Node, NodeSpec, Value};

/// Makes the attribute that says what is in an empty sequence, or in an optional, say this.
pub(crate) fn set_element_attribute(module: &mut Module, node: Node, to: DType) {
    let name = match module.node(node).schema().map(|s| s.kind) {
        Some(OpKind::SequenceEmpty) => module.intern("dtype"),
        Some(OpKind::Optional) => module.intern("type"),
        _ => return,
    };
    let is_sequence = module.node(node).schema().is_some_and(|s| s.kind == OpKind::SequenceEmpty);
    let number = i64::from(to.number());
    let value = match module.node(node).attr(name).map(|a| &a.value) {
        // An empty sequence is one of f32 if nothing is said.
        None if is_sequence && to != DType::F32 => AttrValue::Int(number),
        Some(&AttrValue::Int(now)) if now != number => AttrValue::Int(number),
        Some(AttrValue::Type(ty)) if element(ty).is_some_and(|now| now != to) => {
            AttrValue::Type(ty.with_element_dtype(to))
        }
        None | Some(_) => return,
    };
    module.set_attr(node, name, value);
}

/// Adds a cast and returns its result, called after the value and the format: `x.f16`.
pub(crate) fn new_cast(module: &mut Module, value: Value, to: DType, at: Position) -> Value {
    let graph = module.value(value).graph;
    let base = module.value_name(value).map_or_else(|| value.to_string(), |s| module.text(s).to_owned());
    let name = module.fresh_name(&format!("{base}.{to}"));
    let node_name = module.fresh_name(&format!("{base}.{to}.cast"));
    let opset = flow::onnx_opset(module, graph);
    if module.opset(graph, "").is_none() {
        // Its nodes are of other domains only.
        module.import_opset(graph, "", opset);
    }
    let mut inserter = Inserter::new(module, graph, at);
    inserter.provenance = Provenance::Inserted;
    let to = target_value(sound(inserter.schema(OpKind::Cast)), to);
    let cast = NodeSpec::new(OpKind::Cast, &[value]).attr("to", to).result_name(name);
    let [result] = sound(inserter.insert(cast.node_name(Some(node_name))));
    result
}

/// Makes a cast one to another type; what it makes has to be given that type as well.
pub(crate) fn set_target(module: &mut Module, cast: Node, to: DType) {
    if let Some(schema) = module.node(cast).schema() {
        let attr = module.intern("to");
        module.set_attr(cast, attr, target_value(schema, to));
    }
}

/// The attribute of a cast that says what it makes.
fn target_value(schema: &OpSchema, to: DType) -> AttrValue {
    match schema.attr("to").map(|a| a.kind) {
        // Below operator set 6 the type is spelled out.
        Some(AttrKind::String) => {
            AttrValue::String(to.onnx_name().to_uppercase().into_bytes().into_boxed_slice())
        }
        _ => to.into(),
    }
}
