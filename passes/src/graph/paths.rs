//! Names of nodes for users: scoped paths.
//!
//! A node of the main graph has its own name, or the name of its first result if it has no name. A node in a body has
//! the path of its owner and the attribute before its own name (`if1/then_branch/conv`). A path that is not unique gets
//! `~2`, `~3` in program order.
//!
//! A node of a function has two names: one behind the name of the function (`Gelu/mul`), which all calls share, and one
//! behind the path of the call (`layer1/gelu/mul`), if the function has a single call.

use crate::graph::flow;
use crate::graph::instances::{MAX_DEPTH, instances};
use ampc_ir::entity::SecondaryMap;
use ampc_ir::module::{FunctionData, GraphOwner, Module, Op};
use ampc_ir::{FunctionId, GraphId, Node};
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// The paths of all nodes of a module.
#[derive(Clone, Debug)]
pub struct Paths {
    of: SecondaryMap<Node, Option<Arc<str>>>,
    /// The other name of a node of a function: behind the path of the call; for an instance, behind the name of its
    /// original.
    other: SecondaryMap<Node, Option<Arc<str>>>,
    /// The offset of a node's own name in its path.
    local: SecondaryMap<Node, usize>,
    nodes: FxHashMap<Arc<str>, Node>,
    order: Vec<Node>,
}

impl Paths {
    /// Returns the names of all nodes. The module caches the names until a node, value or function is renamed, added,
    /// moved or erased, or calls another function. Computing the names takes time linear in their length.
    pub fn of(module: &Module) -> Arc<Paths> {
        let paths = module.by_names(Paths::new);
        // In debug builds: checks that no edit verb has forgotten to invalidate the cached names.
        debug_assert!(paths.is_as(&Paths::new(module)), "names have changed");
        paths
    }

    fn new(module: &Module) -> Paths {
        let n = module.n_nodes();
        let mut paths = Paths {
            of: SecondaryMap::with_capacity(n),
            other: SecondaryMap::default(),
            local: SecondaryMap::with_capacity(n),
            nodes: FxHashMap::with_capacity_and_hasher(n, FxBuildHasher),
            order: Vec::with_capacity(n),
        };
        let mut counts: FxHashMap<String, u32> = FxHashMap::default();
        paths.walk(module, module.main(), String::new(), &mut counts);
        let instances = instances(module);
        for (id, function) in module.functions() {
            if !instances.contains_key(&id) {
                let prefix = prefix_of(module, function);
                paths.walk(module, function.graph, prefix, &mut counts);
            }
        }
        paths.calls(module, &instances, &mut counts);
        paths
    }

    /// Names the nodes of a graph and its bodies, and returns their range in `order`.
    fn walk(
        &mut self,
        module: &Module,
        graph: GraphId,
        prefix: String,
        counts: &mut FxHashMap<String, u32>,
    ) -> std::ops::Range<usize> {
        let first = self.order.len();
        let mut work = vec![(graph, prefix)];
        while let Some((graph, prefix)) = work.pop() {
            let mut bodies = Vec::new();
            for node in module.nodes(graph) {
                let path = self.unique(&prefix, own_name(module, node), node, counts);
                bodies.extend(
                    module
                        .node(node)
                        .bodies()
                        .map(|body| (body, format!("{path}/{}/", attr_of(module, body)))),
                );
                self.of[node] = Some(path);
                self.local[node] = prefix.len();
                self.order.push(node);
            }
            work.extend(bodies.into_iter().rev());
        }
        first..self.order.len()
    }

    /// Names the nodes of functions that have a single call by the path of that call.
    fn calls(
        &mut self,
        module: &Module,
        instances: &FxHashMap<FunctionId, FunctionId>,
        counts: &mut FxHashMap<String, u32>,
    ) {
        let mut graphs = flow::functions_callees_first(module);
        graphs.reverse();
        // The path of the single call of a function, and the nesting depth of the call.
        let mut by_call: FxHashMap<FunctionId, (String, u32)> = FxHashMap::default();
        for graph in graphs {
            let GraphOwner::Function(function) = module.graph(graph).owner else { continue };
            let call = match module.calls(function) {
                &[call] => self.call_path(module, call, &by_call).filter(|&(_, depth)| depth <= MAX_DEPTH),
                _ => None,
            };
            let own = prefix_of(module, module.function(function));
            let prefix = call.as_ref().map(|(path, _)| format!("{path}/"));
            if let Some(&source) = instances.get(&function) {
                let nodes = self.walk(module, graph, prefix.unwrap_or(own), counts);
                self.name_by_source(module, source, nodes);
            } else if let Some(prefix) = prefix {
                for node in flow::nodes_in(module, graph) {
                    let Some(inside) = self.path(node).strip_prefix(&own) else { continue };
                    let path: Arc<str> = format!("{prefix}{inside}").into();
                    self.nodes.entry(path.clone()).or_insert(node);
                    self.other[node] = Some(path);
                }
            }
            by_call.extend(call.map(|call| (function, call)));
        }
    }

    /// Returns the path and the nesting depth of a call, by the calls around it.
    fn call_path(
        &self,
        module: &Module,
        call: Node,
        by_call: &FxHashMap<FunctionId, (String, u32)>,
    ) -> Option<(String, u32)> {
        let depth = match module.graph(module.root(module.node(call).graph)).owner {
            GraphOwner::Function(around) => by_call.get(&around)?.1,
            GraphOwner::Main | GraphOwner::Body { .. } | GraphOwner::Erased => 0,
        };
        Some((self.names(call).next()?.to_owned(), depth + 1))
    }

    /// Gives the nodes of an instance a second name, by the function that it was copied from.
    fn name_by_source(&mut self, module: &Module, source: FunctionId, nodes: std::ops::Range<usize>) {
        let sources = flow::nodes_in(module, module.function(source).graph);
        for (node, source) in self.order[nodes].iter().copied().zip(sources) {
            self.other[node] = self.of[source].clone();
        }
    }

    /// Makes a unique path for a node and records it.
    fn unique(
        &mut self,
        prefix: &str,
        name: &str,
        node: Node,
        counts: &mut FxHashMap<String, u32>,
    ) -> Arc<str> {
        let base: Arc<str> = if prefix.is_empty() { name.into() } else { format!("{prefix}{name}").into() };
        let mut path = base.clone();
        loop {
            match self.nodes.entry(path) {
                Entry::Vacant(free) => {
                    let path = free.key().clone();
                    free.insert(node);
                    return path;
                }
                Entry::Occupied(_) => {
                    let count = counts.entry(base.to_string()).or_insert(1);
                    *count += 1;
                    path = format!("{base}~{count}").into();
                }
            }
        }
    }

    fn is_as(&self, other: &Paths) -> bool {
        let all_names = |paths: &Paths, node| paths.names(node).map(str::to_owned).collect::<Vec<_>>();
        self.order == other.order && self.order.iter().all(|&n| all_names(self, n) == all_names(other, n))
    }

    /// The path of a node; `?` for a node added later.
    pub fn path(&self, node: Node) -> &str {
        self.of[node].as_deref().unwrap_or("?")
    }
    /// The last part of the path of a node: its name in its graph.
    pub fn local(&self, node: Node) -> &str {
        self.of[node].as_deref().map_or("?", |path| &path[self.local[node]..])
    }
    /// All names of a node; the name by its call comes first.
    pub fn names(&self, node: Node) -> impl Iterator<Item = &str> {
        let (own, other) = (self.of[node].as_deref(), self.other[node].as_deref());
        // `nodes` maps a name by a call to this node, but the second name of an instance to a node of its original.
        let by_call = |name: &str| self.nodes.get(name) == Some(&node);
        let (first, second) = match other {
            Some(name) if by_call(name) => (other, own),
            _ => (own, other),
        };
        first.into_iter().chain(second)
    }
    /// Returns the node with exactly this path. In a function that was copied for its calls, this is the first such
    /// node.
    pub fn node(&self, path: &str) -> Option<Node> {
        self.nodes.get(path).copied()
    }
    /// Returns the node of a function to which a path by calls leads (`layer1/gelu/mul`), whether or not the functions
    /// on the path have a single call.
    pub fn by_call(&self, module: &Module, path: &str) -> Option<Node> {
        let (mut path, mut from, mut calls) = (path.to_owned(), 0, false);
        loop {
            let at = from + path[from..].find('/')?;
            from = at + 1;
            let Some(call) = self.node(&path[..at]) else { continue };
            // The first call must be in the main graph: a call in a function is made once for each call of that
            // function.
            let is_main = module.root(module.node(call).graph) == module.main();
            let Op::Call(function) = module.node(call).op else { continue };
            if !calls && !is_main {
                continue;
            }
            calls = true;
            let prefix = prefix_of(module, module.function(function));
            path = format!("{prefix}{}", &path[from..]);
            from = prefix.len();
            if let Some(node) = self.node(&path) {
                return Some(node);
            }
        }
    }
    /// All nodes: each graph in program order, bodies after their owner's graph has been listed.
    pub fn nodes(&self) -> &[Node] {
        &self.order
    }
    /// Returns the known path most similar to `wanted`, if it is similar enough for a typing error: as a whole, or
    /// behind the last `/`, where a node in a body has its own name.
    pub fn nearest(&self, wanted: &str) -> Option<&str> {
        let all = || self.order.iter().map(|&n| self.path(n));
        let within = all().find(|path| path.strip_suffix(wanted).is_some_and(|owner| owner.ends_with('/')));
        let by_name = || {
            let name = crate::spelling::suggest::nearest(last(wanted), all().map(last))?;
            all().find(|path| last(path) == name)
        };
        within.or_else(|| crate::spelling::suggest::nearest(wanted, all())).or_else(by_name)
    }
}

/// The prefix of the names of nodes of a function: `Gelu/`, or with an overload `Gelu:f16/`.
fn prefix_of(module: &Module, function: &FunctionData) -> String {
    match (module.text(function.name), module.text(function.overload)) {
        (name, "") => format!("{name}/"),
        (name, overload) => format!("{name}:{overload}/"),
    }
}

/// Returns the part behind the last `/`.
fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The name of a node, or the name of its first result if the node has no name.
pub(crate) fn own_name(module: &Module, node: Node) -> &str {
    let data = module.node(node);
    let first_result = || {
        let value = data.results().iter().flatten().next()?;
        module.value(*value).name
    };
    data.name.filter(|&n| !module.text(n).is_empty()).or_else(first_result).map_or("", |s| module.text(s))
}

/// The name of the attribute that has a body.
pub(crate) fn attr_of(module: &Module, body: GraphId) -> &str {
    match module.graph(body).owner {
        GraphOwner::Body { attr, .. } => module.text(attr),
        GraphOwner::Main | GraphOwner::Function(_) | GraphOwner::Erased => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ampc_ir::text::{NoData, parse};

    #[test]
    fn names_in_bodies_are_found_without_their_owner() {
        let text = "module ir=10\nopset ai.onnx=21\n\ngraph @main {
  input %n : i64\n  input %x : f32[2]
  %y = Loop(%n, _, %x) {
    body: graph @body {
      input %i : i64\n      input %c : bool\n      input %s : f32[2]
      %h = Relu(%s) : f32[2] @rs\n      %t = Sigmoid(%h) : f32[2] @activation
      output %c : bool\n      output %t : f32[2]
    }
  } : f32[2] @loop1
  output %y : f32[2]\n}\n";
        let module = parse(text, &NoData).unwrap_or_else(|errors| panic!("{errors}"));
        let paths = Paths::of(&module);
        for (wanted, found) in [
            ("rs", Some("loop1/body/rs")),
            ("loop1/rs", Some("loop1/body/rs")),
            ("body/rs", Some("loop1/body/rs")),
            ("activatoin", Some("loop1/body/activation")),
            ("lop1", Some("loop1")),
            ("elsewhere", None),
        ] {
            assert_eq!(paths.nearest(wanted), found, "{wanted}");
        }
    }
}
