//! Inlining of functions, for runs without an observer.
//!
//! Observers and errors name nodes of the given module ([`InlinedCalls`]).

use super::{ExecuteError, Watch};
use ampc_ir::edit::InlinedCalls;
use ampc_ir::infer::{Facts, infer_module};
use ampc_ir::module::{Def, Op};
use ampc_ir::{Module, Node, Value};

/// Copies of functions with at most this many parts in total are made regardless of the size of the module.
const SMALL_PARTS: u64 = 1 << 18;

/// The maximum ratio of the parts of copied functions to the nodes and values of the module.
const MAX_RATIO: u64 = 4;

/// A module with inlined functions.
#[derive(Debug)]
pub(super) struct Inlined {
    pub(super) module: Module,
    pub(super) calls: InlinedCalls,
}

/// The module with the input types that `declare` sets and with inlined functions, and the inlined functions. If a
/// function fits no call with these types, its calls are kept; errors are then those of the module, or are reported
/// when the calls run.
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
    /// The module with inlined functions; `None` if no call is replaced.
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

    /// True if an observer of these values sees a call that was inlined.
    pub(super) fn hides(&self, watch: &Watch) -> bool {
        let is_gone = |&value: &Value| matches!(self.module.value(value).def, Def::Erased);
        match watch {
            Watch::All => true,
            Watch::Values(values) => values.iter().any(is_gone),
        }
    }

    /// The node of the given module from which a node was copied: the outermost call, or the node itself.
    pub(super) fn outermost(&self, node: Node) -> Node {
        let calls = self.calls.calls(node);
        calls.first().copied().unwrap_or_else(|| self.calls.source(node))
    }

    /// The value of the given module of which a result is a copy; other values are returned unchanged.
    pub(super) fn source_value(&self, value: Value) -> Value {
        let Some((node, slot)) = self.module.producer(value) else { return value };
        let source = self.module.node(self.calls.source(node));
        let name = |value: Value| self.module.value(value).name;
        // A node that replaces a whole call copies one of its results.
        let found = match source.op {
            Op::Call(_) => {
                source.results().iter().flatten().copied().find(|&result| name(result) == name(value))
            }
            Op::Schema(_) | Op::Custom { .. } => source.result(slot as usize),
        };
        found.unwrap_or(value)
    }

    /// Replaces copied nodes in the error of a run by nodes of the given module.
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
