//! Where casts of a value may stand, as far as the choice of formats goes.

use crate::analysis::cost::CostModel;
use crate::precision::cut::Vertex;
use ampc_ir::op::OpKind;
use ampc_ir::{GraphId, Module, Value};
use rustc_hash::FxHashMap;

/// The graphs in which casts of a value are worth being considered, outermost first, with what reads it there: the
/// one where it is made, and branches outside every loop that are run less often than what is around them.
pub(super) struct ReadingGraphs {
    pub(super) graphs: Vec<GraphId>,
    pub(super) parents: Vec<Option<usize>>,
    pub(super) readers: Vec<Vec<Vertex>>,
}

impl ReadingGraphs {
    pub(super) fn new(
        module: &Module,
        costs: &CostModel<'_>,
        value: Value,
        by_scope: &[(GraphId, Vertex)],
    ) -> ReadingGraphs {
        let home = module.value(value).graph;
        let mut scopes = ReadingGraphs { graphs: vec![home], parents: vec![None], readers: vec![Vec::new()] };
        let mut known: FxHashMap<GraphId, usize> = FxHashMap::default();
        for &(graph, vertex) in by_scope {
            let mut path = Vec::new();
            let mut at = graph;
            while at != home {
                path.push(at);
                let Some(owner) = module.owner(at) else { break };
                at = module.node(owner).graph;
            }
            let mut place = 0;
            for &inside in path.iter().rev() {
                // What a loop does not change is cast outside it.
                let owner = module.owner(inside).and_then(|owner| module.node(owner).schema());
                if owner.map(|s| s.kind) != Some(OpKind::If) {
                    break;
                }
                if costs.executions(inside) < costs.executions(scopes.graphs[place]) {
                    place = *known.entry(inside).or_insert_with(|| {
                        scopes.graphs.push(inside);
                        scopes.parents.push(Some(place));
                        scopes.readers.push(Vec::new());
                        scopes.graphs.len() - 1
                    });
                }
            }
            scopes.readers[place].push(vertex);
        }
        scopes
    }
}
