//! The values of a module by the names of observations.

use super::ObservedValue;
use crate::graph::flow;
use crate::graph::paths::{Paths, attr_of, own_name};
use ampc_ir::module::Op;
use ampc_ir::verify::name_of;
use ampc_ir::{GraphId, Module, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// The inputs and nodes of a module by name.
pub(super) struct Places<'m> {
    module: &'m Module,
    paths: Arc<Paths>,
    inputs: FxHashMap<String, Value>,
    /// The node of a graph with this last part of its path, which is unique in the graph.
    by_path: FxHashMap<(GraphId, String), Node>,
    /// The nodes of a graph with this name.
    by_name: FxHashMap<(GraphId, String), SmallVec<[Node; 1]>>,
}

impl<'m> Places<'m> {
    pub(super) fn of(module: &'m Module) -> Places<'m> {
        let paths = Paths::of(module);
        let inputs = module.graph(module.main()).inputs().iter();
        let inputs = inputs.map(|&value| (name_of(module, value), value)).collect();
        let (mut by_path, mut by_name) = (FxHashMap::default(), FxHashMap::default());
        for node in flow::nodes(module) {
            let graph = module.node(node).graph;
            by_path.insert((graph, paths.local(node).to_owned()), node);
            let named: &mut SmallVec<[Node; 1]> =
                by_name.entry((graph, own_name(module, node).to_owned())).or_default();
            named.push(node);
        }
        Places { module, paths, inputs, by_path, by_name }
    }

    /// The values of a place. Several nodes may have a path: a node `c/b` of the main graph, and the node `b` of the
    /// function that the node `c` calls.
    pub(super) fn find(&self, place: &ObservedValue) -> Vec<Value> {
        match place {
            ObservedValue::Input(name) => self.inputs.get(name).copied().into_iter().collect(),
            ObservedValue::Result { node, slot } => {
                let mut found = self.nodes(node);
                if found.is_empty() {
                    found.extend(self.paths.node(node));
                }
                let Ok(slot) = usize::try_from(*slot) else { return Vec::new() };
                found.into_iter().filter_map(|node| self.module.node(node).result(slot)).collect()
            }
        }
    }

    /// The nodes that a path by calls names. Names may contain `/`, so every division of the path at a `/` is tried: the
    /// first part names a call or a node with bodies, and the rest a node inside. A graph is searched for the same rest
    /// once.
    fn nodes(&self, path: &str) -> Vec<Node> {
        let mut found = Vec::new();
        let mut seen: FxHashSet<(GraphId, usize)> = FxHashSet::default();
        let mut work = vec![(self.module.main(), 0)];
        while let Some((graph, from)) = work.pop() {
            if !seen.insert((graph, from)) {
                continue;
            }
            let rest = &path[from..];
            found.extend(self.named(graph, rest));
            for (at, _) in rest.match_indices('/') {
                for node in self.named(graph, &rest[..at]) {
                    let (data, inside) = (self.module.node(node), from + at + 1);
                    if let Op::Call(function) = data.op {
                        work.push((self.module.function(function).graph, inside));
                    }
                    for body in data.bodies() {
                        let attr = attr_of(self.module, body);
                        if path[inside..].strip_prefix(attr).is_some_and(|rest| rest.starts_with('/')) {
                            work.push((body, inside + attr.len() + 1));
                        }
                    }
                }
            }
        }
        found
    }

    /// The node with this last part of its path; without such a node, the nodes with this name, with or without the `~2`
    /// that made a path of another module unique.
    fn named(&self, graph: GraphId, name: &str) -> SmallVec<[Node; 1]> {
        if let Some(&node) = self.by_path.get(&(graph, name.to_owned())) {
            return smallvec![node];
        }
        let base = name.rsplit_once('~').map_or(name, |(base, _)| base);
        let with = |name: &str| self.by_name.get(&(graph, name.to_owned()));
        with(name).or_else(|| with(base)).cloned().unwrap_or_default()
    }
}
