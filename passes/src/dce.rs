//! `dce`: what the passes left without a reader goes: inserted casts, and constants whose readers read another
//! version now. Nodes of the author stay, read or not: an untouched model comes back as it was.

use crate::flow;
use crate::pass::{Changed, Pass, PassCx, PassError};
use ampc_ir::module::Provenance;
use ampc_ir::{Module, Node, Value};
use rustc_hash::FxHashSet;

/// The pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dce;

impl Pass for Dce {
    fn name(&self) -> &'static str {
        "dce"
    }
    fn run(&self, module: &mut Module, _cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let graph = module.main();
        let outputs = flow::outputs(module, graph);
        let mut changed = false;
        // Backwards, so that a cast read only by a dead cast is dead when its turn comes.
        let mut nodes: Vec<Node> = module.nodes(graph).collect();
        nodes.reverse();
        for node in nodes {
            let data = module.node(node);
            let dead = |v: &Value| !outputs.contains(v) && module.uses(*v).next().is_none();
            if data.provenance == Provenance::Inserted && data.results().iter().flatten().all(dead) {
                module.erase_node(node);
                changed = true;
            }
        }
        let unread: FxHashSet<Value> = module
            .graph(graph)
            .constants()
            .iter()
            .copied()
            .filter(|&v| module.value(v).dirty && !outputs.contains(&v) && module.uses(v).next().is_none())
            .collect();
        changed |= !unread.is_empty();
        module.erase_constants(graph, &unread);
        Ok(Changed::when(changed))
    }
}
