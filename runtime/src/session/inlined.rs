//! Functions in place of their calls: the module that runs without an observer.
//!
//! Observers and errors name nodes of the module that was given ([`InlinedCalls`]).

use super::{ExecuteError, Watch};
use ampc_ir::edit::InlinedCalls;
use ampc_ir::infer::{Facts, infer_module};
use ampc_ir::module::{Def, Op};
use ampc_ir::{Module, Node, Value};

/// Copies of functions that have no more parts than this together are made whatever the size of the module.
const SMALL_PARTS: u64 = 1 << 18;

/// Copies of functions that have no more parts than this many times the nodes and values of the module are made.
const MAX_RATIO: u64 = 4;

/// A module with functions in place of their calls.
#[derive(Debug)]
pub(super) struct Inlined {
    pub(super) module: Module,
    pub(super) calls: InlinedCalls,
}

/// A module with the types that `declare` gives its inputs, with functions in place of their calls, and those functions. If
/// a function fits no call with these types, its calls stay: then errors show as the calls run, or are those of the module.
///
/// # Errors
/// Errors of `declare`, and if the types do not fit the module.
pub(super) fn typed<I: AsRef<Inlined>>(
    inlined: Option<I>,
    module: &Module,
    declare: impl Fn(&mut Module) -> Result<(), ExecuteError>,
) -> Result<(Module, Facts, Option<I>), ExecuteError> {
    if let Some(inlined) = inlined {
        let mut module = inlined.as_ref().module.clone();
        declare(&mut module)?;
        if let Ok(facts) = infer_module(&mut module) {
            return Ok((module, facts, Some(inlined)));
        }
    }
    let mut module = module.clone();
    declare(&mut module)?;
    let facts = infer_module(&mut module).map_err(ExecuteError::Shapes)?;
    Ok((module, facts, None))
}

impl Inlined {
    /// The module with functions in place of their calls; `None` if no call is replaced.
    pub(super) fn of(module: &Module) -> Option<Inlined> {
        let mut nodes = module.graph_ids().flat_map(|graph| module.nodes(graph));
        if !nodes.any(|node| matches!(module.node(node).op, Op::Call(_))) {
            return None;
        }
        let mut module = module.clone();
        let given = (module.n_nodes() + module.n_values()) as u64;
        let calls = module.inline_calls(SMALL_PARTS.max(MAX_RATIO.saturating_mul(given)));
        (calls.n_calls > 0).then_some(Inlined { module, calls })
    }

    /// True if an observer of these values sees a call that nodes stand in place of.
    pub(super) fn hides(&self, watch: &Watch) -> bool {
        let is_gone = |&value: &Value| matches!(self.module.value(value).def, Def::Erased);
        match watch {
            Watch::All => true,
            Watch::Values(values) => values.iter().any(is_gone),
        }
    }

    /// The node of the module that was given which a node is, or stands in place of, in the graph that it is in.
    pub(super) fn outermost(&self, node: Node) -> Node {
        let calls = self.calls.calls(node);
        calls.first().copied().unwrap_or_else(|| self.calls.source(node))
    }

    /// The value of the module that was given which a result is a copy of; other values as they are.
    pub(super) fn source_value(&self, value: Value) -> Value {
        let Some((node, slot)) = self.module.producer(value) else { return value };
        let source = self.module.node(self.calls.source(node));
        let name = |value: Value| self.module.value(value).name;
        // A node that stands for a call as a whole copies one of its results.
        let found = match source.op {
            Op::Call(_) => {
                source.results().iter().flatten().copied().find(|&result| name(result) == name(value))
            }
            Op::Schema(_) | Op::Custom { .. } => source.result(slot as usize),
        };
        found.unwrap_or(value)
    }

    /// The error of a run with the nodes of the module that was given.
    pub(super) fn named(&self, mut error: ExecuteError) -> ExecuteError {
        if let ExecuteError::Unsupported { nodes, .. } = &mut error {
            nodes.iter_mut().for_each(|(node, _)| *node = self.calls.source(*node));
        }
        if let Some((node, calls)) = error.place_mut() {
            let mut all: Vec<Node> = Vec::new();
            for call in std::mem::take(calls) {
                all.extend(self.calls.calls(call));
                all.push(self.calls.source(call));
            }
            all.extend(self.calls.calls(*node));
            *calls = all;
            *node = self.calls.source(*node);
        }
        error
    }
}
