//! What a model declares of its outputs and inference contradicts.
//!
//! Element types that differ are errors, which the verifier reports. Shapes that differ are not: runtimes compute what
//! the operators say and warn at most, and so does this.

use crate::pass::Warning;
use ampc_ir::Module;
use ampc_ir::infer::describe;
use ampc_ir::module::GraphOwner;
use ampc_ir::verify::name_of;

/// A warning for each output, of the main graph or of a body, whose declared shape cannot be the inferred one. For
/// modules whose types have been inferred and verified.
pub fn contradictions(module: &Module) -> Vec<Warning> {
    let mut found = Vec::new();
    for graph in module.graph_ids() {
        let data = module.graph(graph);
        let (node, whose) = match data.owner {
            GraphOwner::Body { node, attr } => (Some(node), format!("of body `{}`", module.text(attr))),
            GraphOwner::Main | GraphOwner::Function(_) | GraphOwner::Erased => {
                (None, "of the model".to_owned())
            }
        };
        for output in data.outputs() {
            let inferred = &module.value(output.value).ty;
            let comparable = output.declared.same_kind(inferred);
            if comparable && output.declared.meet(inferred).is_none() {
                found.push(Warning {
                    code: "types.declared-output",
                    message: format!(
                        "output `{}` {whose} is declared as {}, and its operators make {}; runtimes go by the \
                         operators, a full check by onnx.checker refuses the model",
                        name_of(module, output.value),
                        describe(&output.declared),
                        describe(inferred)
                    ),
                    node,
                });
            }
        }
    }
    found
}
