//! The nodes of a graph by position, with the makers and readers of values.

use crate::plan::Interface;
use ampc_ir::{GraphId, Module, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// The positions of the nodes of a graph, and the readers of its values.
pub(crate) struct GraphIndex<'a> {
    module: &'a Module,
    positions: FxHashMap<Node, usize>,
    readers: FxHashMap<Value, Vec<Node>>,
    /// Outputs, and the next values of states.
    roots: FxHashSet<Value>,
}

impl<'a> GraphIndex<'a> {
    pub(crate) fn new(module: &'a Module, graph: GraphId) -> GraphIndex<'a> {
        let mut positions = FxHashMap::default();
        let mut readers: FxHashMap<Value, Vec<Node>> = FxHashMap::default();
        for (at, node) in module.nodes(graph).enumerate() {
            positions.insert(node, at);
            for &value in module.node(node).operands().iter().flatten() {
                readers.entry(value).or_default().push(node);
            }
        }
        let data = module.graph(graph);
        let next = data.states.iter().map(|&(_, next)| next);
        let roots = data.outputs().iter().map(|output| output.value).chain(next).collect();
        GraphIndex { module, positions, readers, roots }
    }

    /// The position of a node of the graph in the program.
    pub(crate) fn position(&self, node: Node) -> usize {
        self.positions[&node]
    }

    /// The position of a node; `None` for a node of another graph.
    pub(crate) fn find_position(&self, node: Node) -> Option<usize> {
        self.positions.get(&node).copied()
    }

    /// The nodes that read a value, in program order, once for each operand.
    pub(crate) fn readers_of_value(&self, value: Value) -> &[Node] {
        self.readers.get(&value).map_or(&[], Vec::as_slice)
    }

    /// True if the value is read when all nodes are done.
    pub(crate) fn is_root(&self, value: Value) -> bool {
        self.roots.contains(&value)
    }

    /// The producers of a node's operands.
    pub(crate) fn makers_of(&self, node: Node) -> impl Iterator<Item = Node> + use<'_> {
        let operands = self.module.node(node).operands().iter().flatten();
        operands.filter_map(|&value| self.module.producer(value).map(|(maker, _)| maker))
    }

    /// The nodes that read results of a node, once for each operand.
    pub(crate) fn readers_of(&self, node: Node) -> impl Iterator<Item = Node> + use<'_> {
        let results = self.module.node(node).results().iter().flatten();
        results.flat_map(|&value| self.readers_of_value(value)).copied()
    }

    /// The nodes outside of these nodes that make their operands.
    pub(crate) fn makers_outside<'n>(&'n self, nodes: &'n [Node]) -> impl Iterator<Item = Node> + use<'n> {
        let makers = nodes.iter().flat_map(|&node| self.makers_of(node));
        makers.filter(|maker| !nodes.contains(maker))
    }

    /// The nodes outside of these nodes that read their results.
    pub(crate) fn readers_outside<'n>(&'n self, nodes: &'n [Node]) -> impl Iterator<Item = Node> + use<'n> {
        let readers = nodes.iter().flat_map(|&node| self.readers_of(node));
        readers.filter(|reader| !nodes.contains(reader))
    }

    /// The last position of one of the nodes, in program order, that is after all makers outside and before those
    /// readers outside for which `runs` is true. `position_of` is the position of a node or of its group.
    pub(crate) fn position_between(
        &self,
        nodes: &[Node],
        position_of: impl Fn(Node) -> Option<usize>,
        runs: impl Fn(Node) -> bool,
    ) -> Option<usize> {
        let last_maker = self.makers_outside(nodes).filter_map(&position_of).max();
        let first_reader =
            self.readers_outside(nodes).filter(|&reader| runs(reader)).filter_map(&position_of).min();
        let is_between = |at: &usize| {
            last_maker.is_none_or(|maker| maker < *at) && first_reader.is_none_or(|reader| *at < reader)
        };
        nodes.iter().rev().map(|&node| self.position(node)).find(is_between)
    }

    /// True if two consecutive nodes, in program order, are more than `farthest` positions apart.
    pub(crate) fn has_gap(&self, nodes: &[Node], farthest: usize) -> bool {
        nodes.windows(2).any(|pair| self.position(pair[1]) - self.position(pair[0]) > farthest)
    }

    /// The values that the nodes read from outside, and the values that are read outside.
    pub(crate) fn interface(&self, nodes: &[Node]) -> Interface {
        Interface::of(self.module, nodes, |value| {
            self.is_root(value) || self.readers_of_value(value).iter().any(|reader| !nodes.contains(reader))
        })
    }
}
