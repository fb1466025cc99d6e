//! `dce`: what the passes left without a reader goes: inserted casts, and constants whose readers read another
//! version now. Nodes of the author stay, read or not: an untouched model comes back as it was.

use crate::flow;
use crate::pass::{Changed, Pass, PassCx, PassError};
use crate::pipeline::Spelled;
use ampc_ir::module::Provenance;
use ampc_ir::{GraphId, Module, Node, Value};
use rustc_hash::FxHashSet;

/// The pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dce;

impl Spelled for Dce {
    const NAME: &'static str = "dce";
    const ABOUT: &'static str = "inserted casts and constants that nobody reads go";
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
        // Backwards and from the inside out, so that what is read only by something dead is dead when its turn comes.
        for graph in flow::graphs(module).into_iter().rev() {
            changed |= clean(module, graph);
        }
        Ok(Changed::when(changed))
    }
}

fn clean(module: &mut Module, graph: GraphId) -> bool {
    let mut changed = false;
    let mut nodes: Vec<Node> = module.nodes(graph).collect();
    nodes.reverse();
    for node in nodes {
        changed |= module.prune_captures(node);
        let data = module.node(node);
        let dead = |v: &Value| !module.is_output(*v) && module.uses(*v).next().is_none();
        if data.provenance == Provenance::Inserted && data.results().iter().flatten().all(dead) {
            module.erase_node(node);
            changed = true;
        }
    }
    let constants = module.graph(graph).constants().iter().copied();
    let unread: FxHashSet<Value> = constants
        .filter(|&v| module.value(v).dirty && !module.is_output(v) && module.uses(v).next().is_none())
        .collect();
    changed |= !unread.is_empty();
    module.erase_constants(graph, &unread);
    changed
}
