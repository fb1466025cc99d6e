//! Operands, and their edges in the use graph.

use crate::entity::{GraphId, Node, Value};
use crate::module::{Def, Module, Use};
use petgraph::Direction;
use petgraph::stable_graph::{EdgeIndex, NodeIndex};
use petgraph::visit::EdgeRef;

impl Module {
    /// Sets an operand, captured ones included (then everything in the bodies that reads it is dirty, since the
    /// writer spells captures by name).
    pub fn set_operand(&mut self, node: Node, slot: usize, value: Option<Value>) {
        if self.nodes[node].operands[slot] == value {
            return;
        }
        if let Some(edge) = self.edge_into(node, slot) {
            let graph = self.nodes[node].graph;
            self.graphs[graph].uses.remove_edge(edge);
        }
        self.lose_reader(self.nodes[node].operands[slot]);
        self.relink(node, slot, value);
    }

    /// Notes that an operand or output reads a value no more.
    pub(super) fn lose_reader(&mut self, value: Option<Value>) {
        if let Some(value) = value {
            self.values[value].lost_reader = true;
        }
    }

    /// Sets many operands at once. Taking an edge from a value with n readers costs up to n steps, and one step if
    /// the newest edge goes first: this does it in that order, so that all of them cost n.
    pub fn set_operands(&mut self, edits: Vec<(Node, usize, Option<Value>)>) {
        let mut edges = self.edges_of(&edits);
        edges.sort_unstable_by_key(|&(_, edge)| std::cmp::Reverse(edge));
        for (graph, edge) in edges {
            self.graphs[graph].uses.remove_edge(edge);
        }
        for (node, slot, value) in edits {
            self.lose_reader(self.nodes[node].operands[slot]);
            self.relink(node, slot, value);
        }
    }

    /// Makes every reader of `old` for which `filter` holds read `new` instead; outputs of the graph are left.
    pub fn replace_uses(&mut self, old: Value, new: Value, mut filter: impl FnMut(Node, u32) -> bool) {
        // Newest edge first, which is the order in which removal is cheap on a value with many readers.
        let readers: Vec<(Node, u32)> = self.uses(old).filter(|&(n, s)| filter(n, s)).collect();
        for (node, slot) in readers {
            self.set_operand(node, slot as usize, Some(new));
        }
        // A value without readers is about to be erased: the value that replaces it takes its roles.
        if self.uses(old).next().is_none() {
            self.move_roles(old, new);
        }
    }

    /// Makes the roles that name `old` name `new` instead.
    pub fn move_roles(&mut self, old: Value, new: Value) {
        let data = &mut self.graphs[self.values[old].graph];
        if data.roles.is_empty() || old == new {
            return;
        }
        data.naming();
        let naming = data.naming.get_mut().expect("it was just made");
        for at in naming.remove(&old).unwrap_or_default() {
            let values = &mut data.roles[at as usize].values;
            values.iter_mut().filter(|value| **value == old).for_each(|value| *value = new);
            let places = naming.entry(new).or_default();
            if !places.contains(&at) {
                places.push(at);
            }
        }
    }

    /// Replaces `old` by `new` in all readers and outputs, except in the node that makes `new` from `old`. Both
    /// values keep their names.
    pub fn replace_value(&mut self, old: Value, new: Value) {
        let maker = self.producer(new).map(|(node, _)| node);
        self.replace_uses(old, new, |node, _| Some(node) != maker);
        let graph = self.values[old].graph;
        for slot in self.output_slots(old).collect::<Vec<_>>() {
            self.set_output(graph, slot as usize, new);
        }
    }

    /// Sets the formal operands of a node.
    ///
    /// # Panics
    /// If its bodies capture operands, or an operand is not in its graph.
    pub fn set_formal_operands(&mut self, node: Node, operands: &[Option<Value>]) {
        let data = &self.nodes[node];
        assert_eq!(data.operands.len(), data.n_formal(), "the bodies of {node} capture operands");
        let none = (0..data.operands.len()).map(|slot| (node, slot, None)).collect();
        self.set_operands(none);
        self.forget_call_slots(node);
        let data = &mut self.nodes[node];
        data.operands = smallvec::smallvec![None; operands.len()];
        data.n_formal = u32::try_from(operands.len()).expect("fewer than 2^32 operands");
        data.dirty.operands = true;
        for (slot, &operand) in operands.iter().enumerate() {
            self.link(node, slot, operand);
        }
    }

    /// The vertex and result slot a value's edges start from.
    fn source_of(&self, value: Value) -> (NodeIndex, u32) {
        let data = &self.values[value];
        match data.def {
            Def::Result { node, slot } => (data.vertex.unwrap_or(self.nodes[node].vertex), slot),
            Def::Input { .. } | Def::Capture { .. } | Def::Constant(_) => {
                (data.vertex.expect("a source has a vertex"), 0)
            }
            Def::Erased => panic!("{value} is erased"),
        }
    }

    /// Sets an operand that is `None` so far, and adds its edge.
    pub(super) fn link(&mut self, node: Node, slot: usize, value: Option<Value>) {
        self.nodes[node].operands[slot] = value;
        if let Some(value) = value {
            let graph = self.nodes[node].graph;
            assert_eq!(self.values[value].graph, graph, "{value} is not in the graph of {node}");
            let (from, result) = self.source_of(value);
            let operand = operand_number(slot);
            self.graphs[graph].uses.add_edge(from, self.nodes[node].vertex, Use { result, operand });
        }
    }

    /// The operand slots of a node that read a value.
    pub(super) fn slots_reading(&self, node: Node, value: Value) -> impl Iterator<Item = usize> + '_ {
        let result = self.source_of(value).1;
        self.edges_between(value, node)
            .filter(move |(_, edge)| edge.result == result)
            .map(|(_, edge)| edge.operand as usize)
    }

    /// The edges of operands, with the graphs that they are in. The edges of one node are found by going
    /// through its operands once.
    fn edges_of(&self, edits: &[(Node, usize, Option<Value>)]) -> Vec<(GraphId, EdgeIndex)> {
        let mut places: Vec<(Node, usize)> = edits.iter().map(|&(node, slot, _)| (node, slot)).collect();
        places.sort_unstable();
        places.dedup();
        let mut edges = Vec::with_capacity(places.len());
        for of_node in places.chunk_by(|a, b| a.0 == b.0) {
            let (node, slot) = of_node[0];
            let graph = self.nodes[node].graph;
            if of_node.len() == 1 {
                edges.extend(self.edge_into(node, slot).map(|edge| (graph, edge)));
                continue;
            }
            let is_wanted = |slot: u32| of_node.binary_search(&(node, slot as usize)).is_ok();
            let into = self.graphs[graph].uses.edges_directed(self.nodes[node].vertex, Direction::Incoming);
            let wanted = into.filter(|edge| is_wanted(edge.weight().operand));
            edges.extend(wanted.map(|edge| (graph, edge.id())));
        }
        edges
    }

    /// The edge of an operand: looked for from both ends in turns, the newest edges first.
    fn edge_into(&self, node: Node, slot: usize) -> Option<EdgeIndex> {
        let value = self.nodes[node].operands[slot]?;
        let uses = &self.graphs[self.nodes[node].graph].uses;
        let (from, to) = (self.source_of(value).0, self.nodes[node].vertex);
        let (mut readers, mut operands) = (uses.edges(from), uses.edges_directed(to, Direction::Incoming));
        loop {
            let edge = readers.next()?;
            if edge.target() == to && edge.weight().operand as usize == slot {
                return Some(edge.id());
            }
            let edge = operands.next()?;
            if edge.weight().operand as usize == slot {
                return Some(edge.id());
            }
        }
    }

    /// The edges to a node from the producer of a value. They are looked for from both ends in turns: a value
    /// may have as many readers as there are nodes, and a node as many captures as there are values, but seldom
    /// both.
    fn edges_between(&self, value: Value, node: Node) -> impl Iterator<Item = (EdgeIndex, Use)> + '_ {
        let uses = &self.graphs[self.nodes[node].graph].uses;
        let (from, to) = (self.source_of(value).0, self.nodes[node].vertex);
        let (mut readers, mut operands) = (uses.edges(from), uses.edges_directed(to, Direction::Incoming));
        let (mut seen_from, mut seen_to) = (Vec::new(), Vec::new());
        // The end that is through first has seen all of them.
        let seen = loop {
            let Some(edge) = readers.next() else { break seen_from };
            seen_from.extend((edge.target() == to).then_some((edge.id(), *edge.weight())));
            let Some(edge) = operands.next() else { break seen_to };
            seen_to.extend((edge.source() == from).then_some((edge.id(), *edge.weight())));
        };
        seen.into_iter()
    }

    /// Leaves a node only these operands, given in ascending order. Returns the new number of each old one.
    pub(super) fn keep_operands(&mut self, node: Node, kept: &[usize]) -> Vec<Option<u32>> {
        let mut numbers = vec![None; self.nodes[node].operands.len()];
        for (new, &old) in kept.iter().enumerate() {
            numbers[old] = Some(operand_number(new));
        }
        let uses = &mut self.graphs[self.nodes[node].graph].uses;
        let mut edges = uses.neighbors_directed(self.nodes[node].vertex, Direction::Incoming).detach();
        let mut gone = Vec::new();
        while let Some(edge) = edges.next_edge(uses) {
            match numbers[uses[edge].operand as usize] {
                Some(new) => uses[edge].operand = new,
                None => gone.push(edge),
            }
        }
        for edge in gone {
            uses.remove_edge(edge);
        }
        for slot in (0..numbers.len()).filter(|&slot| numbers[slot].is_none()) {
            self.lose_reader(self.nodes[node].operands[slot]);
        }
        let operands = &mut self.nodes[node].operands;
        *operands = kept.iter().map(|&old| operands[old]).collect();
        numbers
    }

    /// Sets an operand whose edge is gone.
    fn relink(&mut self, node: Node, slot: usize, value: Option<Value>) {
        self.link(node, slot, value);
        if slot < self.nodes[node].n_formal() {
            self.nodes[node].dirty.operands = true;
        } else {
            self.mark_capture_readers(node, slot);
        }
    }
}

/// An operand slot as edges and captures have it.
pub(super) fn operand_number(slot: usize) -> u32 {
    u32::try_from(slot).expect("fewer than 2^32 operands")
}
