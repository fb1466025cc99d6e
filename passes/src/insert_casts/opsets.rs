//! Casts in functions that import another version of ai.onnx than the model does.
//!
//! onnx.checker takes such a function only if each of its nodes is of the same version of its operator by both imports. A
//! cast that is inserted may be the first of which that is not so: Cast-13 by opset 17, Cast-19 by opset 20. The function
//! then imports what the model does, by which all else in it is what it was.

use crate::flow;
use ampc_ir::module::Provenance;
use ampc_ir::op::{Legality, Lookup, OpKind, OpSchema, lookup};
use ampc_ir::{GraphId, Module, Node};

/// Lets functions import the version that the model does, where inserted casts alone are of another version by that.
pub(super) fn agree(module: &mut Module) {
    let functions: Vec<GraphId> = module.functions().map(|(_, function)| function.graph).collect();
    for graph in functions {
        let Some(opset) = module.opset(module.main(), "") else { return };
        if module.opset(graph, "").is_none_or(|own| own == opset) {
            continue;
        }
        for (node, schema) in casts_of_another_version(module, graph, opset).unwrap_or_default() {
            module.set_opset(graph, "", opset);
            let decisions = std::mem::take(module.node_mut(node).decisions);
            module.set_version(node, schema);
            *module.node_mut(node).decisions = decisions;
        }
    }
}

/// The inserted casts of a function that are of another version by an opset, with that version; `None` if anything else
/// is, or they cannot have their formats by it.
fn casts_of_another_version(
    module: &Module,
    graph: GraphId,
    opset: u16,
) -> Option<Vec<(Node, &'static OpSchema)>> {
    let mut casts = Vec::new();
    for node in flow::nodes_in(module, graph) {
        let data = module.node(node);
        let Some(schema) = data.schema().filter(|schema| schema.domain.is_empty()) else { continue };
        let Lookup::Found(other) = lookup("", schema.name, opset) else { return None };
        if other.since == schema.since {
            continue;
        }
        let is_inserted = schema.kind == OpKind::Cast && data.provenance == Provenance::Inserted;
        let values = data.operand(0).into_iter().chain(data.result(0));
        let mut formats = values.filter_map(|value| module.value(value).ty.dtype());
        let is_legal =
            formats.all(|format| flow::cast_legality(module, module.main(), format) == Legality::Legal);
        // The oldest spell their type in text.
        let same_form = schema.attr("to").map(|to| to.kind) == other.attr("to").map(|to| to.kind);
        if !(is_inserted && is_legal && same_form) {
            return None;
        }
        casts.push((node, other));
    }
    Some(casts)
}
