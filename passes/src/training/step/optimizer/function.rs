//! An optimizer that is a graph.

use super::custom::UpdateNodes;
use crate::pass::training_error::RuleError;
use crate::training::build::Build;
use ampc_ir::module::{Def, Op};
use ampc_ir::verify::name_of;
use ampc_ir::{Module, Node, NodeSpec, Payload, Value};
use rustc_hash::FxHashMap;

/// Error of a graph that is to be an optimizer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FunctionError {
    /// Inputs or outputs are missing.
    #[error(
        "graph `{graph}` has {inputs} inputs and {outputs} outputs: expected the inputs weight, gradient, learning \
         rate and steps, then states, and as outputs the next weight and the next states"
    )]
    Interface {
        /// The graph.
        graph: String,
        /// The number of inputs.
        inputs: usize,
        /// The number of outputs.
        outputs: usize,
    },
    /// A node cannot be copied.
    #[error("graph `{graph}`: {node} {why}: only built-in operators can be copied")]
    Node {
        /// The graph.
        graph: String,
        /// The first result of the node.
        node: String,
        /// The problem.
        why: &'static str,
    },
    /// A constant cannot be copied.
    #[error("graph `{graph}`: constant `{name}` is sparse: expected dense constants")]
    Sparse {
        /// The graph.
        graph: String,
        /// The constant.
        name: String,
    },
}

/// A graph whose inputs are a weight, a gradient, a rate, a number of steps and states, and whose outputs are
/// the next weight and states.
pub(super) struct Function {
    module: Module,
    name: String,
}

/// The inputs before the states.
const FIRST_STATE: usize = 4;

impl Function {
    pub(super) fn of(module: Module) -> Result<Function, FunctionError> {
        let graph = module.graph(module.main());
        let name = module.text(graph.name).to_owned();
        let (inputs, outputs) = (graph.inputs().len(), graph.outputs().len());
        if inputs < FIRST_STATE || outputs != inputs - FIRST_STATE + 1 {
            return Err(FunctionError::Interface { graph: name, inputs, outputs });
        }
        for node in module.nodes(module.main()) {
            if let Some(why) = cannot_copy(&module, node) {
                let node = module.node(node).results().iter().flatten().next();
                let node = node.map_or_else(String::new, |&value| format!("`{}`", name_of(&module, value)));
                return Err(FunctionError::Node { graph: name, node, why });
            }
        }
        for &value in graph.constants() {
            if module.constant(value).and_then(Payload::dense).is_none() {
                return Err(FunctionError::Sparse { graph: name, name: name_of(&module, value) });
            }
        }
        Ok(Function { module, name })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Adds the nodes of the graph for one parameter.
    pub(super) fn build(&self, b: &mut UpdateNodes<'_>) -> Result<Value, RuleError> {
        let graph = self.module.graph(self.module.main());
        let mut values: FxHashMap<Value, Value> = FxHashMap::default();
        let given = [b.weight(), b.gradient(), b.rate(), b.step()];
        values.extend(graph.inputs().iter().copied().zip(given));
        for &state in &graph.inputs()[FIRST_STATE..] {
            let name = name_of(&self.module, state);
            let is_number = self.module.value(state).ty.shape().is_some_and(|shape| shape.rank() == Some(0));
            let made = if is_number { b.number_state(&name, self.initial(state))? } else { b.state(&name)? };
            values.insert(state, made);
        }
        for &value in graph.constants() {
            if let Some(data) = self.module.constant(value).and_then(Payload::dense) {
                values.insert(value, b.constant(data.as_ref().clone()));
            }
        }
        for node in self.module.nodes(self.module.main()) {
            self.copy(node, &mut values, b)?;
        }
        let outputs: Vec<Value> = graph.outputs().iter().map(|output| values[&output.value]).collect();
        for (state, &next) in graph.inputs()[FIRST_STATE..].iter().zip(&outputs[1..]) {
            b.next(values[state], next)?;
        }
        Ok(outputs[0])
    }

    /// The initial value of a state that is a number.
    fn initial(&self, state: Value) -> f32 {
        let Def::Input { default: Some(Payload::Dense(data)), .. } = &self.module.value(state).def else {
            return 0.0;
        };
        #[expect(clippy::cast_possible_truncation, reason = "a state is of f32")]
        match data.small_floats(1).as_deref() {
            Some([number]) => *number as f32,
            _ => 0.0,
        }
    }

    fn copy(
        &self,
        node: Node,
        values: &mut FxHashMap<Value, Value>,
        b: &mut UpdateNodes<'_>,
    ) -> Result<(), RuleError> {
        let data = self.module.node(node);
        let schema = data.schema().expect("`of` has looked at it");
        let here = b.nodes().inserter.schema(schema.kind)?;
        if here.since != schema.since {
            return Err(RuleError::Unsupported(format!(
                "its {} is that of opset {}, and the model's that of opset {}: write it for the opset of the model",
                schema.name, schema.since, here.since
            )));
        }
        let operands: Vec<Option<Value>> =
            data.operands().iter().map(|value| value.map(|value| values[&value])).collect();
        let spec = NodeSpec::new(schema.kind, &[]).operands(&operands);
        let spec = data
            .attrs()
            .iter()
            .fold(spec, |spec, attr| spec.attr(self.module.text(attr.name).to_owned(), attr.value.clone()));
        let results = b.insert_n(spec, data.results().len())?;
        for (&old, new) in data.results().iter().zip(results) {
            values.extend(old.map(|old| (old, new)));
        }
        Ok(())
    }
}

/// The reason why a node cannot be copied.
fn cannot_copy(module: &Module, node: Node) -> Option<&'static str> {
    let data = module.node(node);
    match &data.op {
        Op::Call(_) => Some("calls a function"),
        Op::Schema(_) if data.bodies().next().is_some() => Some("has bodies"),
        Op::Schema(_) => None,
        Op::Custom { .. } => Some("is of an unknown operator"),
    }
}
