//! Parts of the model that are unchanged since the source was read, and the order of the graphs.

use super::{Elements, Exporter};
use crate::onnx::error::ExportError;
use crate::onnx::provenance::{NODE_METADATA_SINCE, has_entry};
use crate::onnx::source::GraphSource;
use crate::onnx::sparse;
use ampc_ir::attr::AttrValue;
use ampc_ir::convert::can_convert;
use ampc_ir::module::{Def, Provenance};
use ampc_ir::{GraphId, Module, Node, Payload, TensorData, Value};
use rustc_hash::FxHashSet;

/// The graphs and nodes whose messages can be copied as they stand.
#[derive(Debug, Default)]
pub(super) struct Clean {
    pub(super) graphs: FxHashSet<GraphId>,
    /// Nodes in which only their bodies changed.
    dirty_inside: FxHashSet<Node>,
}

impl Clean {
    /// True if the message of a node can be copied.
    pub(super) fn node(&self, module: &Module, node: Node) -> bool {
        let data = module.node(node);
        data.origin.is_some() && !data.dirty.any() && !self.dirty_inside.contains(&node)
    }
}

/// All graphs: the main one, the functions, and bodies after the graphs of their owners.
pub(super) fn graphs(module: &Module) -> Vec<GraphId> {
    let mut order = vec![module.main()];
    order.extend(module.functions().map(|(_, f)| f.graph));
    let mut next = 0;
    while let Some(&graph) = order.get(next) {
        next += 1;
        for node in module.nodes(graph) {
            order.extend(module.node(node).bodies());
        }
    }
    order
}

/// Finds unchanged graphs and nodes, innermost graphs first.
pub(super) fn clean(exporter: &Exporter<'_>, order: &[GraphId]) -> Clean {
    let mut clean = Clean::default();
    let module = exporter.module;
    let then = exporter.source.map_or(0, |s| s.header.ir_version);
    let said_by_model = then < NODE_METADATA_SINCE || exporter.source.is_some_and(|s| has_entry(&s.header));
    let moves_provenance = said_by_model && exporter.ir_version() >= NODE_METADATA_SINCE;
    for &graph in order.iter().rev() {
        let mut changed = false;
        for node in module.nodes(graph) {
            let body_changed = module.node(node).bodies().any(|b| !clean.graphs.contains(&b));
            let gains_metadata = moves_provenance && module.node(node).provenance == Provenance::Inserted;
            if body_changed || gains_metadata || moves_attribute(exporter, node) {
                clean.dirty_inside.insert(node);
            }
            changed |= !clean.node(module, node);
        }
        let record = exporter.source.and_then(|s| s.graphs.get(&graph));
        if !changed && record.is_some_and(|r| same_shell(exporter, graph, r)) {
            clean.graphs.insert(graph);
        }
    }
    clean
}

/// True if a node has attributes whose elements are in an external file that is not referred to any more.
pub(super) fn moves_attribute(exporter: &Exporter<'_>, node: Node) -> bool {
    !exporter.placement.keep_references
        && exporter.source.is_some_and(|s| !s.external_nodes.is_empty() && s.external_nodes.contains(&node))
}

/// True if everything of a graph but the inside of its nodes is as in the source.
fn same_shell(exporter: &Exporter<'_>, graph: GraphId, record: &GraphSource) -> bool {
    let module = exporter.module;
    let data = module.graph(graph);
    let same_input = |(&value, (then, ty)): (&Value, &(Value, ampc_ir::Type))| {
        let now = module.value(value);
        value == *then && !now.dirty && now.ty.same_kind(ty) && keeps_default(exporter, value)
    };
    let listed_then = exporter.source.is_some_and(|s| s.header.ir_version <= 3) && graph == module.main();
    record.sorted
        && !data.dirty
        && listed_then == exporter.lists_constants(graph)
        && data.inputs().len() == record.inputs.len()
        && data.inputs().iter().zip(&record.inputs).all(same_input)
        && data.constants() == record.constants
        && data.constants().iter().all(|&v| keeps_message(exporter, v))
        && data.outputs() == record.outputs
        && module.nodes(graph).eq(record.nodes.iter().copied())
}

fn keeps_default(exporter: &Exporter<'_>, value: Value) -> bool {
    match &exporter.module.value(value).def {
        Def::Input { default: Some(payload), .. } => keeps_elements(exporter, value, payload),
        Def::Input { default: None, .. }
        | Def::Result { .. }
        | Def::Capture { .. }
        | Def::Constant(_)
        | Def::Erased => true,
    }
}

/// True if the message of a constant or default can be copied.
pub(super) fn keeps_message(exporter: &Exporter<'_>, value: Value) -> bool {
    let data = exporter.module.value(value);
    let payload = match &data.def {
        Def::Constant(payload) | Def::Input { default: Some(payload), .. } => payload,
        Def::Input { default: None, .. } | Def::Result { .. } | Def::Capture { .. } | Def::Erased => {
            return false;
        }
    };
    data.origin.is_some() && !data.dirty && keeps_elements(exporter, value, payload)
}

/// True if the elements stay where they are.
fn keeps_elements(exporter: &Exporter<'_>, value: Value, payload: &Payload) -> bool {
    let external = exporter.source.is_some_and(|s| s.external_values.contains(&value));
    match (external, exporter.placement.elements) {
        (true, _) => exporter.placement.keep_references,
        (false, Elements::Inline | Elements::AsInSource) => true,
        (false, Elements::External) => payload.dense().is_none_or(|data| !is_large(data)),
    }
}

/// True if a constant is worth a place in an external file.
pub(super) fn is_large(data: &TensorData) -> bool {
    data.byte_len() >= super::EXTERNAL_MIN
}

/// A unique name for a value that was made without a name.
pub(super) fn spare_name(module: &Module, value: Value) -> String {
    let mut name = value.to_string();
    while module.symbol(&name).is_some() {
        name.push('_');
    }
    name
}

/// Refuses conversions that do not exist, and sparse constants that readers refuse.
pub(super) fn check_constants(module: &Module, order: &[GraphId]) -> Result<(), ExportError> {
    let mut left = sparse::MAX_DENSE;
    for &graph in order {
        let data = module.graph(graph);
        for &value in data.constants().iter().chain(data.inputs()) {
            let (Def::Constant(payload) | Def::Input { default: Some(payload), .. }) =
                &module.value(value).def
            else {
                continue;
            };
            let name = || module.value(value).name.map_or_else(String::new, |n| module.text(n).to_owned());
            match payload {
                Payload::Dense(data) => check_conversion(data, name)?,
                Payload::Sparse(data) => sparse::check(data, &mut left)
                    .map_err(|issue| ExportError::Sparse { name: name(), issue })?,
            }
        }
        for node in module.nodes(graph) {
            for attr in module.node(node).attrs() {
                if let AttrValue::Tensor(data) = &attr.value {
                    check_conversion(data, || module.text(attr.name).to_owned())?;
                }
            }
        }
    }
    Ok(())
}

fn check_conversion(data: &TensorData, name: impl Fn() -> String) -> Result<(), ExportError> {
    let mut from = data.stored_dtype();
    for step in data.pending() {
        if !can_convert(from, step.to) {
            return Err(ExportError::Conversion { name: name(), from, to: step.to });
        }
        from = step.to;
    }
    Ok(())
}
