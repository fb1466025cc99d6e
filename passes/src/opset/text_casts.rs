//! Casts below opset 6, which runtimes reject.
//!
//! There `Cast` names its type in text, and neither onnx.checker nor ONNX Runtime infers the type of its
//! result, so they reject its readers. No pipeline ends with such a cast that it has inserted.

use crate::graph::paths::Paths;
use crate::pass::PassError;
use ampc_ir::module::Provenance;
use ampc_ir::op::OpKind;
use ampc_ir::{Module, Node};

/// The lowest opset whose Cast names an element type by its number.
pub const CAST_BY_NUMBER: u16 = 6;

/// True if a graph of the module has an opset whose casts runtimes do not take.
pub fn are_possible(module: &Module) -> bool {
    let functions = module.functions().map(|(_, function)| function.graph);
    functions.chain([module.main()]).any(|graph| module.opset(graph, "").is_some_and(|o| o < CAST_BY_NUMBER))
}

/// # Errors
/// If a cast that a pass inserted names its type in text.
pub(crate) fn refuse(module: &Module) -> Result<(), PassError> {
    let is_ours = |node: Node| {
        let data = module.node(node);
        let schema = data.schema().filter(|s| s.kind == OpKind::Cast && s.since < CAST_BY_NUMBER);
        schema.is_some() && data.provenance == Provenance::Inserted
    };
    let mut casts = module.graph_ids().flat_map(|graph| module.nodes(graph)).filter(|&node| is_ours(node));
    let Some(first) = casts.next() else { return Ok(()) };
    let main = module.opset(module.main(), "").unwrap_or(CAST_BY_NUMBER);
    Err(PassError::TextCasts {
        first: Paths::of(module).path(first).to_owned(),
        more: casts.count(),
        opset: module.opset(module.node(first).graph, "").unwrap_or(1),
        to: main.max(CAST_BY_NUMBER),
    })
}
