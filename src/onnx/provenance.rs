//! Marks of casts that an earlier run inserted: these may be reconsidered, casts of the user may not.
//!
//! From IR version 10 on a node has metadata: `ampc.cast=inserted`. Below that, the model's metadata has one
//! entry, `ampc.provenance`, with the first results of the nodes, one per line; for a node in a function, which
//! has its own names, after the domain and name of the function and tabs. Inside a module neither entry is
//! metadata: it is the field `provenance` of the node.

use ampc_ir::module::{GraphOwner, Header, Provenance};
use ampc_ir::{GraphId, Module, Node, Symbol};
use std::collections::BTreeMap;

pub(crate) const NODE_KEY: &str = "ampc.cast";
pub(crate) const NODE_VALUE: &str = "inserted";
const MODEL_KEY: &str = "ampc.provenance";

/// The first IR version in which nodes have metadata.
pub(crate) const NODE_METADATA_SINCE: i64 = 10;

/// Takes the entry out of a header: the [lines](line) of inserted nodes, of which none has been met yet. It counts in
/// every IR version: tools that raise that keep the metadata of the model.
pub(crate) fn take(header: &mut Header) -> BTreeMap<String, bool> {
    let mut lines = BTreeMap::new();
    header.metadata.retain(|entry| {
        if is_ours(entry) {
            lines.extend(entry.1.lines().map(|line| (line.to_owned(), false)));
        }
        !is_ours(entry)
    });
    lines
}

/// True if a header has the entry.
pub(crate) fn has_entry(header: &Header) -> bool {
    header.metadata.iter().any(is_ours)
}

/// True if an entry of a model's metadata names inserted nodes. One that says nothing is not ours.
fn is_ours((key, value): &(String, String)) -> bool {
    key == MODEL_KEY && !value.is_empty()
}

/// Takes the entry out of a node's metadata; true if it was there.
pub(crate) fn take_from_node(module: &mut Module, metadata: &mut Vec<(Symbol, Symbol)>) -> bool {
    if metadata.is_empty() {
        return false;
    }
    let entry = (module.intern(NODE_KEY), module.intern(NODE_VALUE));
    let before = metadata.len();
    metadata.retain(|e| *e != entry);
    metadata.len() != before
}

/// The metadata of the model as a file of this IR version has it.
pub(crate) fn model_metadata(module: &Module, graphs: &[GraphId], ir_version: i64) -> Vec<(String, String)> {
    let mut metadata = module.header.metadata.clone();
    if ir_version < NODE_METADATA_SINCE {
        let inserted = graphs.iter().flat_map(|&g| module.nodes(g));
        let inserted = inserted.filter(|&n| module.node(n).provenance == Provenance::Inserted);
        let lines: Vec<String> = inserted
            .filter_map(|n| Some(line(module, module.node(n).graph, first_result(module, n)?)))
            .collect();
        if !lines.is_empty() {
            metadata.retain(|(key, _)| key != MODEL_KEY);
            metadata.push((MODEL_KEY.to_owned(), lines.join("\n")));
        }
    }
    metadata
}

/// True if two lists have the same entries; their order means nothing.
pub(crate) fn same_entries(a: &[(String, String)], b: &[(String, String)]) -> bool {
    let sorted = |list: &[(String, String)]| {
        let mut list = list.to_vec();
        list.sort();
        list
    };
    a.len() == b.len() && (a == b || sorted(a) == sorted(b))
}

/// The line of a node in the model's entry, by its first result.
pub(crate) fn line(module: &Module, graph: GraphId, result: &str) -> String {
    match module.graph(module.root(graph)).owner {
        GraphOwner::Function(function) => {
            let function = module.function(function);
            format!("{}\t{}\t{result}", module.text(function.domain), module.text(function.name))
        }
        GraphOwner::Main | GraphOwner::Body { .. } | GraphOwner::Erased => result.to_owned(),
    }
}

fn first_result(module: &Module, node: Node) -> Option<&str> {
    let value = module.node(node).results().iter().flatten().next()?;
    module.value(*value).name.map(|n| module.text(n))
}
