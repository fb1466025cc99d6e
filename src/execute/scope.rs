//! The values of a run, reported in sequence under names that are comparable between models: the name of the value,
//! and the path of its graph through nodes with bodies and calls, with iteration numbers.
//!
//! Functions are identified by their calls, so a copy made by a rewrite has the names of its original.

use ampc_ir::entity::SecondaryMap;
use ampc_ir::module::{GraphOwner, Op};
use ampc_ir::op::OpKind;
use ampc_ir::{GraphId, Module, Node, Value};
use ampc_passes::Paths;
use ampc_runtime::session::NodeObserver;
use ampc_runtime::{Data, DataRef, HostError, Session};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

/// Separators of a key: before a node, after it, before the iteration number.
const NODE: char = '\u{1}';
const INSIDE: char = '\u{2}';
const ITERATION: char = '\u{3}';

/// A running graph.
#[derive(Debug)]
pub(super) struct Scope {
    /// The path to the graph, unique among all runs of graphs.
    pub(super) key: Arc<str>,
    /// The path for display, without iterations: the prefix of the names of its nodes.
    pub(super) path: Arc<str>,
    /// The iteration numbers of the loops around it.
    pub(super) iterations: Vec<u64>,
}

/// An event of a run.
pub(super) enum Event {
    /// A body of a node, or the function that it calls, starts.
    Enter { node: Node, graph: GraphId },
    /// A node with bodies or a call is done, and with it all keys with this prefix.
    Done { prefix: Arc<str> },
    /// A value was computed.
    Value { scope: Arc<Scope>, node: Node, value: Value, name: Arc<str>, data: Result<Data, HostError> },
}

/// A model with the names under which its values are reported.
pub(super) struct Side<'m> {
    pub(super) module: &'m Module,
    pub(super) paths: Arc<Paths>,
    names: SecondaryMap<Value, Option<Arc<str>>>,
}

impl<'m> Side<'m> {
    /// All values that a model computes, once its session is bound, except sequences that an element was inserted
    /// into or removed from: their elements are reported where they are computed.
    pub(super) fn new(module: &'m Module, session: &Session) -> Side<'m> {
        let mut names: SecondaryMap<Value, Option<Arc<str>>> = SecondaryMap::default();
        let outputs: FxHashSet<Value> =
            module.graph(module.main()).outputs().iter().map(|output| output.value).collect();
        let is_told = |value: &Value| outputs.contains(value) || !is_edited_sequence(module, *value);
        for value in computed(module, session).filter(is_told) {
            names[value] = module.value_name(value).map(|name| module.text(name).into());
        }
        Side { module, paths: Paths::of(module), names }
    }

    /// Restricts the reports to values that the other model may also have.
    pub(super) fn keep(&mut self, session: &Session, other: &FxHashSet<Arc<str>>) {
        for value in computed(self.module, session) {
            self.names[value] = self.names[value].take().filter(|name| other.contains(name));
        }
    }

    /// The reported names.
    pub(super) fn names(&self, session: &Session) -> FxHashSet<Arc<str>> {
        computed(self.module, session).filter_map(|value| self.names[value].clone()).collect()
    }

    /// The path of a node in a scope, as users name it.
    pub(super) fn path(&self, scope: &Scope, node: Node) -> String {
        format!("{}{}", scope.path, self.paths.local(node))
    }
}

/// The results of the nodes that are computed.
pub(super) fn computed<'a>(module: &'a Module, session: &'a Session) -> impl Iterator<Item = Value> + 'a {
    let plans = module.graph_ids().filter_map(|graph| session.plan(graph));
    let nodes = plans.flat_map(|plan| plan.steps.iter().flat_map(|step| step.nodes.iter().copied()));
    nodes.flat_map(|node| module.node(node).results().iter().flatten().copied())
}

/// Reports the computed values of a run. Waits for the receiver, and stops reporting when the receiver is gone.
pub(super) struct Teller<'a> {
    side: &'a Side<'a>,
    events: SyncSender<Event>,
    levels: Vec<Level>,
}

struct Level {
    scope: Arc<Scope>,
    /// The number of runs of the bodies of nodes in this scope.
    runs: FxHashMap<(Node, GraphId), u64>,
    /// The node with bodies or call whose completion was reported last.
    left: Option<Node>,
}

impl<'a> Teller<'a> {
    pub(super) fn new(side: &'a Side<'a>, events: SyncSender<Event>) -> Teller<'a> {
        let scope = Scope { key: "".into(), path: "".into(), iterations: Vec::new() };
        let level = Level { scope: Arc::new(scope), runs: FxHashMap::default(), left: None };
        Teller { side, events, levels: vec![level] }
    }

    fn level(&mut self) -> &mut Level {
        self.levels.last_mut().expect("the main graph is never left")
    }

    fn tell(&self, event: Event) {
        // A receiver that is gone has met an error, and reports it.
        let _ = self.events.send(event);
    }

    /// The prefix of the keys of all values inside of a node.
    fn prefix(&mut self, node: Node) -> String {
        let local = self.side.paths.local(node);
        format!("{}{NODE}{local}{INSIDE}", self.level().scope.key)
    }
}

impl NodeObserver for Teller<'_> {
    fn value(&mut self, node: Node, slot: usize, data: DataRef<'_>) {
        let module = self.side.module;
        // Reported once, whatever the number of results.
        if is_nested(module, node) && self.level().left.replace(node) != Some(node) {
            let prefix = self.prefix(node).into();
            self.tell(Event::Done { prefix });
        }
        let Some(value) = module.node(node).result(slot) else { return };
        let Some(name) = self.side.names[value].clone() else { return };
        let scope = self.level().scope.clone();
        self.tell(Event::Value { scope, node, value, name, data: data.to_data() });
    }

    fn enter(&mut self, node: Node, graph: GraphId) {
        let module = self.side.module;
        let attr = attribute_of(module, graph);
        let prefix = self.prefix(node);
        let path = inner_path(module, &self.side.paths, &self.level().scope.path, node, graph);
        let level = self.level();
        let run = level.runs.entry((node, graph)).or_insert(0);
        let iteration = *run;
        *run += 1;
        let mut iterations = level.scope.iterations.clone();
        if is_loop(module, node) {
            iterations.push(iteration);
        }
        let scope = Scope {
            key: format!("{prefix}{attr}{ITERATION}{iteration}").into(),
            path: path.into(),
            iterations,
        };
        self.levels.push(Level { scope: Arc::new(scope), runs: FxHashMap::default(), left: None });
        self.tell(Event::Enter { node, graph });
    }

    fn leave(&mut self) {
        self.levels.pop();
    }
}

/// The attribute that has a body; empty for a function.
fn attribute_of(module: &Module, graph: GraphId) -> &str {
    match module.graph(graph).owner {
        GraphOwner::Body { attr, .. } => module.text(attr),
        GraphOwner::Main | GraphOwner::Function(_) | GraphOwner::Erased => "",
    }
}

/// The path for display of a body of a node, or of the function that it calls, which runs in a graph of the path `outer`.
pub(super) fn inner_path(module: &Module, paths: &Paths, outer: &str, node: Node, graph: GraphId) -> String {
    let (local, attr) = (paths.local(node), attribute_of(module, graph));
    let slash = if attr.is_empty() { "" } else { "/" };
    format!("{outer}{local}{slash}{attr}/")
}

/// True if a node has bodies or is a call.
pub(super) fn is_nested(module: &Module, node: Node) -> bool {
    matches!(module.node(node).op, Op::Call(_)) || module.node(node).bodies().next().is_some()
}

/// True if a value is a sequence with one element more or less than another sequence.
pub(super) fn is_edited_sequence(module: &Module, value: Value) -> bool {
    let producer = module.producer(value).and_then(|(node, _)| module.node(node).schema());
    producer.is_some_and(|schema| matches!(schema.kind, OpKind::SequenceInsert | OpKind::SequenceErase))
}

fn is_loop(module: &Module, node: Node) -> bool {
    let kind = module.node(node).schema().map(|schema| schema.kind);
    matches!(kind, Some(OpKind::Loop | OpKind::Scan | OpKind::SequenceMap))
}

/// The prefixes of keys that one model has finished. If one prefix starts with another, only the shorter prefix is
/// kept.
#[derive(Default)]
pub(super) struct Closed(BTreeSet<Arc<str>>);

impl Closed {
    pub(super) fn close(&mut self, prefix: Arc<str>) {
        if !self.has(&prefix) {
            self.drop_inside(&prefix);
            self.0.insert(prefix);
        }
    }

    /// Removes a prefix that the other model has now finished too; returns true if this model had finished it.
    pub(super) fn forget(&mut self, prefix: &str) -> bool {
        self.drop_inside(prefix);
        self.0.remove(prefix) || self.has(prefix)
    }

    /// True if a key has one of the prefixes.
    pub(super) fn has(&self, key: &str) -> bool {
        let ends = key.match_indices(INSIDE).map(|(at, mark)| at + mark.len());
        !self.0.is_empty() && ends.into_iter().any(|end| self.0.contains(&key[..end]))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    fn drop_inside(&mut self, prefix: &str) {
        let bounds = (Bound::Excluded(prefix), Bound::Unbounded);
        let inside: Vec<_> =
            self.0.range::<str, _>(bounds).take_while(|p| p.starts_with(prefix)).cloned().collect();
        inside.iter().for_each(|p| {
            self.0.remove(p);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_behind_both_is_forgotten() {
        let key = |parts: &[&str]| parts.iter().map(|p| format!("{NODE}{p}{INSIDE}")).collect::<String>();
        let [outer, inner, other] = [key(&["a"]), key(&["a", "b"]), key(&["aa"])];
        let mut closed = Closed::default();
        closed.close(inner.as_str().into());
        closed.close(other.as_str().into());
        assert!(closed.has(&key(&["a", "b", "c"])) && !closed.has(&key(&["a", "c"])));
        closed.close(outer.as_str().into());
        assert_eq!(closed.0.len(), 2, "the inner one says nothing more");
        assert!(closed.forget(&inner), "it is behind, with all of the outer one");
        assert!(closed.forget(&outer) && !closed.forget(&outer));
        assert!(closed.forget(&other) && closed.0.is_empty());
    }
}
