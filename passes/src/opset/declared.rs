//! Declared types of outputs, and of inputs of bodies, that contradict inference.
//!
//! Differing element types of outputs are errors, which the verifier reports. Other differences are not errors:
//! runtimes compute by the operators and warn at most, and so does this module.

use crate::pass::Warning;
use ampc_ir::infer::describe;
use ampc_ir::module::{GraphOwner, Output};
use ampc_ir::verify::name_of;
use ampc_ir::{GraphId, Module, Node, Type, Value};

/// Declared types of the inputs of bodies, which inference replaces by the types of the values that nodes pass
/// in.
#[derive(Clone, Debug, Default)]
pub struct BodyInputs(Vec<(Value, Type)>);

impl BodyInputs {
    /// The declared inputs of bodies of a module whose types have not been inferred. Bodies in functions are
    /// left out: a declaration there is about one call, and another call may pass another type.
    pub fn of(module: &Module) -> BodyInputs {
        let is_body = |graph: &GraphId| matches!(module.graph(*graph).owner, GraphOwner::Body { .. });
        let in_main = module.graph_ids().filter(is_body).filter(|&graph| module.root(graph) == module.main());
        let inputs = in_main.flat_map(|graph| module.graph(graph).inputs().iter().copied());
        let declared = inputs.map(|value| (value, module.value(value).ty.clone()));
        BodyInputs(declared.filter(|(_, ty)| *ty != Type::Unknown).collect())
    }

    /// A warning for each input whose declared type contradicts the values passed in.
    fn contradictions<'a>(&'a self, module: &'a Module) -> impl Iterator<Item = Warning> + 'a {
        let contradicted = |(value, declared): &&(Value, Type)| {
            let handed_in = &module.value(*value).ty;
            !declared.same_kind(handed_in) || declared.meet(handed_in).is_none()
        };
        self.0.iter().filter(contradicted).map(|(value, declared)| {
            let (node, whose) = owner(module, module.value(*value).graph);
            let message = format!(
                "input `{}` {whose} is declared as {}, but its node passes {}; onnx.checker and runtimes may refuse \
                 the model",
                name_of(module, *value),
                describe(declared),
                describe(&module.value(*value).ty)
            );
            Warning::new("types.declared-input", node, message)
        })
    }
}

/// A warning for each output, of the main graph or of a body, whose declared shape contradicts the inferred
/// shape, and for each input of a body whose declared type contradicts the values handed in. For modules whose
/// types have been inferred and verified.
pub fn contradictions(module: &Module, inputs: &BodyInputs) -> Vec<Warning> {
    let outputs = module.graph_ids().flat_map(|graph| {
        let outputs = module.graph(graph).outputs().iter();
        outputs.filter_map(move |output| contradicted_output(module, graph, output))
    });
    outputs.chain(inputs.contradictions(module)).collect()
}

/// The node whose body a graph is, and a description of the body.
fn owner(module: &Module, graph: GraphId) -> (Option<Node>, String) {
    match module.graph(graph).owner {
        GraphOwner::Body { node, attr } => (Some(node), format!("of body `{}`", module.text(attr))),
        GraphOwner::Main | GraphOwner::Function(_) | GraphOwner::Erased => (None, "of the model".to_owned()),
    }
}

fn contradicted_output(module: &Module, graph: GraphId, output: &Output) -> Option<Warning> {
    let inferred = &module.value(output.value).ty;
    if !output.declared.same_kind(inferred) || output.declared.meet(inferred).is_some() {
        return None;
    }
    let (node, whose) = owner(module, graph);
    let message = format!(
        "output `{}` {whose} is declared as {}, but its operators make {}; runtimes follow the operators, and a full \
         check by onnx.checker refuses the model",
        name_of(module, output.value),
        describe(&output.declared),
        describe(inferred)
    );
    Some(Warning::new("types.declared-output", node, message))
}
