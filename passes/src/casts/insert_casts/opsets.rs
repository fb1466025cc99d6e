//! Casts in functions that import another version of ai.onnx than the model does.
//!
//! onnx.checker takes such a function only if each of its nodes is of the same version of its operator by both imports. An
//! inserted cast can break this: in a function of opset 17 it is Cast-13, by a model of opset 20 it is Cast-19. Then the
//! function gets the model's import; its other nodes have the same version by both, so nothing else changes.

use crate::graph::flow;
use ampc_ir::Attr;
use ampc_ir::module::Provenance;
use ampc_ir::op::{Legality, Lookup, OpKind, OpSchema, lookup};
use ampc_ir::{GraphId, Module, Node};

/// Makes functions import the version of the model where only inserted casts are of another version by it. Returns true if
/// there was such a function.
pub(super) fn agree(module: &mut Module) -> bool {
    let functions: Vec<GraphId> = module.functions().map(|(_, function)| function.graph).collect();
    let Some(opset) = module.opset(module.main(), "") else { return false };
    let mut changed = false;
    for graph in functions {
        if module.opset(graph, "").is_none_or(|own| own == opset) {
            continue;
        }
        let casts = casts_of_another_version(module, graph, opset).unwrap_or_default();
        if !casts.is_empty() {
            changed |= module.set_opset(graph, "", opset);
        }
        for (node, schema) in casts {
            let decisions = std::mem::take(module.node_mut(node).decisions);
            module.set_version(node, schema);
            *module.node_mut(node).decisions = decisions;
        }
    }
    changed
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
        // The oldest spell their type in text, and newer ones have attributes that older ones lack.
        let has = |attr: &Attr| {
            other.attr(module.text(attr.name)).is_some_and(|known| known.kind == attr.value.kind())
        };
        if !(is_inserted && is_legal && data.attrs().iter().all(has)) {
            return None;
        }
        casts.push((node, other));
    }
    Some(casts)
}
