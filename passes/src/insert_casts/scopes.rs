//! Where casts of captured values stand: outside every loop, within the one branch that reads them.

use super::{KeepIo, decided};
use crate::flow::{self, Reader, Var};
use ampc_ir::op::OpKind;
use ampc_ir::verify::name_of;
use ampc_ir::views::{constant_of, resolve_captures};
use ampc_ir::{DType, GraphId, Module, Node, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The graphs in which captured values are cast.
#[derive(Default)]
pub(super) struct Scopes {
    of: BTreeMap<(Value, DType), BTreeSet<GraphId>>,
}

impl Scopes {
    pub(super) fn new(module: &Module, keep: &KeepIo, fewest: bool) -> Scopes {
        let mut scopes = Scopes::default();
        let graphs = flow::graphs(module);
        // Without bodies everything is cast where it is.
        if graphs.len() == 1 {
            return scopes;
        }
        for &graph in &graphs {
            for node in module.nodes(graph) {
                for (slot, value) in (0u32..).zip(module.node(node).formal_operands()) {
                    if let Some(value) = *value {
                        scopes.reads(module, value, flow::reader_var(module, node, slot), graph);
                    }
                }
            }
            for (slot, output) in (0u32..).zip(module.graph(graph).outputs()) {
                let port = flow::var_of_reader(module, Reader::Output(graph, slot));
                let public = graph == module.main() && !keep.keeps(&name_of(module, output.value));
                if !public {
                    scopes.reads(module, output.value, port, graph);
                }
            }
        }
        for (&(root, _), scopes) in &mut scopes.of {
            if fewest {
                merge_all(module, root, scopes);
            } else {
                merge_branches(module, root, scopes);
            }
        }
        scopes
    }

    /// Notes where a value is cast for a reader in a graph, if it is.
    fn reads(&mut self, module: &Module, value: Value, reader: Option<Var>, graph: GraphId) {
        let root = resolve_captures(module, value);
        let Some(present) = module.value(root).ty.dtype().filter(|d| d.is_float()) else { return };
        let will_be = |value: Value| flow::producer_var(module, value).and_then(|var| decided(module, var));
        let wanted = reader.and_then(|var| decided(module, var)).unwrap_or(present);
        if will_be(root).unwrap_or(present) != wanted {
            self.of.entry((root, wanted)).or_default().insert(outside_loops(module, root, graph));
        }
    }

    /// The graph in which a value is cast for readers in a graph, and the node there that has them in its bodies.
    pub(super) fn of(
        &self,
        module: &Module,
        cast: (Value, DType),
        graph: GraphId,
    ) -> (GraphId, Option<Node>) {
        let home = module.value(cast.0).graph;
        let known = self.of.get(&cast);
        let (mut scope, mut inside) = ((graph, None), graph);
        while inside != home {
            let Some(owner) = module.owner(inside) else { break };
            inside = module.node(owner).graph;
            if known.is_some_and(|k| k.contains(&inside)) {
                scope = (inside, Some(owner));
            }
        }
        scope
    }
}

/// The graph around all loops between a value and a graph that reads it. Constants are converted where they are.
fn outside_loops(module: &Module, root: Value, graph: GraphId) -> GraphId {
    let home = module.value(root).graph;
    let kind = |node: Node| module.node(node).schema().map(|s| s.kind);
    let fill = module.producer(root).is_some_and(|(n, _)| kind(n) == Some(OpKind::ConstantOfShape));
    if fill || constant_of(module, root).is_some() {
        return home;
    }
    let (mut scope, mut at) = (graph, graph);
    while at != home {
        let Some(owner) = module.owner(at) else { break };
        at = module.node(owner).graph;
        if kind(owner) != Some(OpKind::If) {
            scope = at;
        }
    }
    scope
}

/// What is cast in several graphs is cast once, in the innermost one around them.
fn merge_all(module: &Module, root: Value, scopes: &mut BTreeSet<GraphId>) {
    let path = |graph: GraphId| {
        let around = |&graph: &GraphId| module.owner(graph).map(|owner| module.node(owner).graph);
        let mut path: Vec<GraphId> = std::iter::successors(Some(graph), around).collect();
        path.reverse();
        path
    };
    let mut paths = scopes.iter().map(|&graph| path(graph));
    let Some(mut common) = paths.next() else { return };
    for path in paths {
        let shared = common.iter().zip(&path).take_while(|(a, b)| a == b).count();
        common.truncate(shared);
    }
    if let Some(&around) = common.last().filter(|_| scopes.len() > 1) {
        scopes.insert(outside_loops(module, root, around));
    }
}

/// What is cast in all branches of an If is cast before it.
fn merge_branches(module: &Module, root: Value, scopes: &mut BTreeSet<GraphId>) {
    let mut work: Vec<GraphId> = scopes.iter().copied().collect();
    while let Some(graph) = work.pop() {
        let Some(owner) = module.owner(graph).filter(|_| graph != module.value(root).graph) else { continue };
        if module.node(owner).bodies().all(|body| scopes.contains(&body)) {
            let around = outside_loops(module, root, module.node(owner).graph);
            if scopes.insert(around) {
                work.push(around);
            }
        }
    }
}
