//! `dce`: removes nodes and constants that the passes left without readers: inserted casts, nodes that compute
//! gradients, and constants (initializers and Constant nodes) that lost their readers because the readers read
//! another version or compute without the constant. Other nodes of the author stay, read or not, and so do constants without
//! readers in the source: an untouched model comes back unchanged.

use crate::graph::flow;
use crate::graph::marks::{Phase, phase_of};
use crate::pass::options::Spelled;
use crate::pass::{Changed, Pass, PassCx, PassError};
use ampc_ir::module::Provenance;
use ampc_ir::op::OpKind;
use ampc_ir::{GraphId, Module, Node, Value};
use rustc_hash::FxHashSet;

/// The pass `dce`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dce;

impl Spelled for Dce {
    const NAME: &'static str = "dce";
    const ABOUT: &'static str = "removes inserted casts, gradients and constants without readers";
    fn blank() -> Self {
        Dce
    }
}

impl Pass for Dce {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn run(&self, module: &mut Module, _cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut changed = false;
        // Backwards and inner bodies first, so that a node read only by dead nodes is dead at its turn.
        for graph in flow::graphs(module).into_iter().rev() {
            changed |= clean(module, graph);
        }
        Ok(Changed::when(changed))
    }
}

/// True if a node may be removed when its results have no readers: an inserted cast, a node that computes
/// gradients, or a constant that lost its readers.
fn may_go(module: &Module, node: Node) -> bool {
    let data = module.node(node);
    let is_constant = data.schema().is_some_and(|s| s.kind == OpKind::Constant);
    let lost = |v: &Value| module.value(*v).lost_reader;
    let is_gradient = phase_of(module, node) == Some(Phase::Backward);
    data.provenance == Provenance::Inserted
        || is_gradient
        || is_constant && data.results().iter().flatten().any(lost)
}

fn clean(module: &mut Module, graph: GraphId) -> bool {
    let mut changed = false;
    let mut nodes: Vec<Node> = module.nodes(graph).collect();
    nodes.reverse();
    for node in nodes {
        changed |= module.prune_captures(node);
        let data = module.node(node);
        let is_read = |v: Value| module.uses(v).next().is_some() || module.has_role(v);
        let dead = |v: &Value| !module.is_output(*v) && !is_read(*v);
        if may_go(module, node) && data.results().iter().flatten().all(dead) {
            module.erase_node(node);
            changed = true;
        }
    }
    let data = module.graph(graph);
    let in_roles: FxHashSet<Value> = data.roles.iter().flat_map(|role| &role.values).copied().collect();
    let unread = |v: &Value| !module.is_output(*v) && module.uses(*v).next().is_none();
    let constants = data.constants().iter().copied().filter(|v| module.value(*v).lost_reader);
    let unread: FxHashSet<Value> = constants.filter(|v| unread(v) && !in_roles.contains(v)).collect();
    changed |= !unread.is_empty();
    module.erase_constants(graph, &unread);
    changed
}
