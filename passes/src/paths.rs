//! How users name nodes: by scoped path.
//!
//! A node of the main graph is called by its name, or by its first result if it has none; a node in a body has
//! its owner's path and the attribute before it (`if1/then_branch/conv`); a node of a function the function's
//! name. A path that is not unique gets `~2`, `~3` in program order.

use ampc_ir::entity::SecondaryMap;
use ampc_ir::module::{GraphOwner, Module};
use ampc_ir::{GraphId, Node};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The paths of all nodes of a module.
#[derive(Clone, Debug)]
pub struct Paths {
    of: SecondaryMap<Node, Option<Arc<str>>>,
    nodes: FxHashMap<Arc<str>, Node>,
    order: Vec<Node>,
}

impl Paths {
    /// Names every node. Linear in the length of the names.
    pub fn new(module: &Module) -> Paths {
        let mut paths = Paths { of: SecondaryMap::default(), nodes: FxHashMap::default(), order: Vec::new() };
        let mut counts: FxHashMap<String, u32> = FxHashMap::default();
        let mut work: Vec<(GraphId, String)> =
            module.functions().map(|(_, f)| (f.graph, format!("{}/", module.text(f.name)))).collect();
        work.reverse();
        work.push((module.main(), String::new()));
        while let Some((graph, prefix)) = work.pop() {
            let mut bodies = Vec::new();
            for node in module.nodes(graph) {
                let base = format!("{prefix}{}", own_name(module, node));
                let path = paths.unique(base, &mut counts);
                bodies.extend(
                    module
                        .node(node)
                        .bodies()
                        .map(|body| (body, format!("{path}/{}/", attr_of(module, body)))),
                );
                paths.of[node] = Some(path.clone());
                paths.nodes.insert(path, node);
                paths.order.push(node);
            }
            work.extend(bodies.into_iter().rev());
        }
        paths
    }

    fn unique(&self, base: String, counts: &mut FxHashMap<String, u32>) -> Arc<str> {
        if !self.nodes.contains_key(base.as_str()) {
            return base.into();
        }
        let count = counts.entry(base.clone()).or_insert(1);
        loop {
            *count += 1;
            let path = format!("{base}~{count}");
            if !self.nodes.contains_key(path.as_str()) {
                return path.into();
            }
        }
    }

    /// The path of a node; `?` for one that came after.
    pub fn path(&self, node: Node) -> &str {
        self.of[node].as_deref().unwrap_or("?")
    }
    /// The node with exactly this path.
    pub fn node(&self, path: &str) -> Option<Node> {
        self.nodes.get(path).copied()
    }
    /// All nodes: each graph in program order, bodies after their owner's graph has been listed.
    pub fn nodes(&self) -> &[Node] {
        &self.order
    }
    /// The known path most similar to `wanted`, if one is similar enough to be what was meant: as a whole, or behind
    /// its last `/`, where the name of a node in a body stands.
    pub fn nearest(&self, wanted: &str) -> Option<&str> {
        let all = || self.order.iter().map(|&n| self.path(n));
        let within = all().find(|path| path.strip_suffix(wanted).is_some_and(|owner| owner.ends_with('/')));
        let by_name = || {
            let name = crate::suggest::nearest(last(wanted), all().map(last))?;
            all().find(|path| last(path) == name)
        };
        within.or_else(|| crate::suggest::nearest(wanted, all())).or_else(by_name)
    }
}

/// What stands behind the last `/`.
fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn own_name(module: &Module, node: Node) -> &str {
    let data = module.node(node);
    let first_result = || {
        let value = data.results().iter().flatten().next()?;
        module.value(*value).name
    };
    data.name.filter(|&n| !module.text(n).is_empty()).or_else(first_result).map_or("", |s| module.text(s))
}

fn attr_of(module: &Module, body: GraphId) -> &str {
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
        let paths = Paths::new(&module);
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
