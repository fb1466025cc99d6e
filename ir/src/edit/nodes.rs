//! Nodes: made, placed, changed, erased.

use crate::attr::{Attr, AttrValue};
use crate::entity::{GraphId, Node, Symbol, Value};
use crate::module::{Decision, Def, Dirty, GraphOwner, Module, NodeData, Op, Provenance, ValueData, Vertex};
use crate::ty::Type;
use smallvec::SmallVec;

/// The place of a new node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    /// At the end of the graph.
    Last,
    /// At the start of the graph.
    First,
    /// Right before a node of the graph.
    Before(Node),
    /// Right after a node of the graph.
    After(Node),
}

/// Contents of a new node.
#[derive(Clone, Debug)]
pub struct NewNode {
    /// The operator.
    pub op: Op,
    /// Its name, if any.
    pub name: Option<Symbol>,
    /// Its formal operands, values of the graph it goes into.
    pub operands: SmallVec<[Option<Value>; 4]>,
    /// Its attributes. Bodies among them must be unowned graphs made by [`Module::new_graph`].
    pub attrs: Vec<(Symbol, AttrValue)>,
    /// Name and type of each result; `None` for an absent one.
    pub results: Vec<Option<(Symbol, Type)>>,
    /// The origin of the node.
    pub provenance: Provenance,
}

impl Module {
    /// Makes room for so many nodes more, and so many results.
    pub fn reserve_nodes(&mut self, nodes: usize, results: usize) {
        self.nodes.reserve(nodes);
        self.values.reserve(results);
    }

    /// Adds a node.
    ///
    /// # Panics
    /// If the position names a node of another graph.
    pub fn add_node(&mut self, graph: GraphId, at: Position, new: NewNode) -> Node {
        let node = self.nodes.next_key();
        let vertex = self.graphs[graph].uses.add_node(Vertex::Node(node));
        let n_formal = u32::try_from(new.operands.len()).expect("fewer than 2^32 operands");
        self.taken.extend(new.name);
        let mut results = SmallVec::new();
        for (slot, result) in (0u32..).zip(new.results) {
            results.push(result.map(|(name, ty)| self.push_result(graph, node, slot, name, ty)));
        }
        for (attr, value) in &new.attrs {
            for &body in value.graphs() {
                self.graphs[body].owner = GraphOwner::Body { node, attr: *attr };
            }
        }
        let attrs = new.attrs.into_iter().map(|(name, value)| Attr { name, value, dirty: true }).collect();
        let operands: SmallVec<[Option<Value>; 4]> = smallvec::smallvec![None; new.operands.len()];
        if let Op::Call(function) = new.op {
            self.calls.entry(function).or_default().nodes_mut().push(node);
        }
        self.nodes.push(NodeData {
            op: new.op,
            name: new.name,
            graph,
            operands,
            n_formal,
            results,
            attrs,
            decisions: SmallVec::new(),
            provenance: new.provenance,
            metadata: Vec::new(),
            origin: None,
            dirty: Dirty { operands: true, results: true, attrs: true, header: true, callee: false },
            vertex,
            prev: None,
            next: None,
            alive: true,
        });
        for (slot, operand) in new.operands.into_iter().enumerate() {
            self.link(node, slot, operand);
        }
        self.place(node, graph, at);
        node
    }

    /// A value that is a result; the caller adds it to the node.
    fn push_result(&mut self, graph: GraphId, node: Node, slot: u32, name: Symbol, ty: Type) -> Value {
        self.taken.insert(name);
        let (def, name) = (Def::Result { node, slot }, Some(name));
        let (vertex, origin, dirty, lost_reader) = (None, None, true, false);
        let metadata = Vec::new();
        let value = self.values.push(ValueData {
            ty,
            def,
            name,
            graph,
            vertex,
            metadata,
            origin,
            dirty,
            lost_reader,
        });
        if slot > 0 {
            self.values[value].vertex = Some(self.graphs[graph].uses.add_node(Vertex::Source(value)));
        }
        value
    }

    /// Makes an unread result absent.
    fn erase_result(&mut self, value: Value) {
        assert!(self.uses(value).next().is_none() && !self.is_output(value), "{value} is still read");
        let graph = self.values[value].graph;
        if let Some(vertex) = self.values[value].vertex.take() {
            self.graphs[graph].uses.remove_node(vertex);
        }
        self.values[value].def = Def::Erased;
    }

    fn place(&mut self, node: Node, graph: GraphId, at: Position) {
        self.forget_program();
        let (prev, next) = match at {
            Position::Last => (self.graphs[graph].last, None),
            Position::First => (None, self.graphs[graph].first),
            Position::Before(n) => (self.nodes[n].prev, Some(n)),
            Position::After(n) => (Some(n), self.nodes[n].next),
        };
        for neighbour in [prev, next].into_iter().flatten() {
            assert_eq!(self.nodes[neighbour].graph, graph, "{neighbour} is in another graph");
        }
        self.nodes[node].prev = prev;
        self.nodes[node].next = next;
        match prev {
            Some(p) => self.nodes[p].next = Some(node),
            None => self.graphs[graph].first = Some(node),
        }
        match next {
            Some(n) => self.nodes[n].prev = Some(node),
            None => self.graphs[graph].last = Some(node),
        }
    }

    fn unplace(&mut self, node: Node) {
        self.forget_program();
        let NodeData { prev, next, graph, .. } = self.nodes[node];
        match prev {
            Some(p) => self.nodes[p].next = next,
            None => self.graphs[graph].first = next,
        }
        match next {
            Some(n) => self.nodes[n].prev = prev,
            None => self.graphs[graph].last = prev,
        }
        self.nodes[node].prev = None;
        self.nodes[node].next = None;
    }

    /// Moves a node to another place of its graph. The caller keeps the order topological.
    pub fn move_node(&mut self, node: Node, at: Position) {
        self.unplace(node);
        let graph = self.nodes[node].graph;
        self.place(node, graph, at);
    }

    /// Data of a node that no invariant depends on.
    pub fn node_mut(&mut self, node: Node) -> NodeFields<'_> {
        let data = &mut self.nodes[node];
        NodeFields {
            decisions: &mut data.decisions,
            provenance: &mut data.provenance,
            metadata: &mut data.metadata,
            origin: &mut data.origin,
            dirty: &mut data.dirty,
        }
    }

    /// Renames a node.
    pub fn set_node_name(&mut self, node: Node, name: Option<Symbol>) {
        self.forget_names();
        self.nodes[node].name = name;
        self.nodes[node].dirty.header = true;
        self.taken.extend(name);
    }

    /// Changes the operator of a node: to another version, or another function. Its decisions hold for another
    /// version of the same operator with as many type variables.
    pub fn set_op(&mut self, node: Node, op: Op) {
        self.forget_names();
        self.forget_call(node);
        if let Op::Call(function) = op {
            self.calls.entry(function).or_default().nodes_mut().push(node);
        }
        let is_same = match (self.nodes[node].op, op) {
            (Op::Schema(a), Op::Schema(b)) => a.kind == b.kind && a.type_vars.len() == b.type_vars.len(),
            _ => false,
        };
        self.nodes[node].op = op;
        self.nodes[node].dirty.header = true;
        if !is_same {
            self.nodes[node].decisions.clear();
        }
    }

    pub(crate) fn forget_call(&mut self, node: Node) {
        if let Op::Call(function) = self.nodes[node].op
            && let Some(calls) = self.calls.get_mut(&function)
        {
            calls.nodes_mut().retain(|&call| call != node);
        }
    }

    /// Sets an attribute, replacing an existing attribute of that name. Not for bodies.
    pub fn set_attr(&mut self, node: Node, name: Symbol, value: AttrValue) {
        let data = &mut self.nodes[node];
        data.dirty.attrs = true;
        match data.attrs.iter_mut().find(|a| a.name == name) {
            Some(attr) => *attr = Attr { name, value, dirty: true },
            None => data.attrs.push(Attr { name, value, dirty: true }),
        }
    }

    /// Removes an attribute. Not for bodies.
    pub fn remove_attr(&mut self, node: Node, name: Symbol) {
        let data = &mut self.nodes[node];
        let before = data.attrs.len();
        data.attrs.retain(|a| a.name != name);
        data.dirty.attrs |= data.attrs.len() != before;
    }

    /// Removes the results of a node from number `n` on.
    ///
    /// # Panics
    /// If any of them is read or is an output of the graph.
    pub fn truncate_results(&mut self, node: Node, n: usize) {
        self.forget_names();
        self.forget_call_slots(node);
        while self.nodes[node].results.len() > n {
            if let Some(value) = self.nodes[node].results.pop().flatten() {
                self.erase_result(value);
            }
            self.nodes[node].dirty.results = true;
        }
    }

    /// Adds a result to a node, in slot `slot`; earlier absent results stay absent.
    ///
    /// # Panics
    /// If the result is present.
    pub fn add_result(&mut self, node: Node, slot: usize, name: Symbol, ty: Type) -> Value {
        self.forget_names();
        self.forget_call_slots(node);
        let graph = self.nodes[node].graph;
        let slot_number = u32::try_from(slot).expect("fewer than 2^32 results");
        let value = self.push_result(graph, node, slot_number, name, ty);
        let data = &mut self.nodes[node];
        while data.results.len() <= slot {
            data.results.push(None);
        }
        assert!(data.results[slot].is_none(), "result {slot} of {node} is there");
        data.results[slot] = Some(value);
        data.dirty.results = true;
        value
    }

    /// Erases a node without readers, and its bodies.
    ///
    /// # Panics
    /// If a result is still read or leaves the graph.
    pub fn erase_node(&mut self, node: Node) {
        for node in self.erase_listed(node) {
            self.forget_call(node);
        }
    }

    /// Like [`erase_node`](Self::erase_node), but erased calls stay in the lists of calls, until the caller drops them all
    /// at once. Returns the nodes: the node and those of its bodies.
    pub(super) fn erase_listed(&mut self, node: Node) -> Vec<Node> {
        let results: Vec<Value> = self.nodes[node].results.iter().flatten().copied().collect();
        for &value in &results {
            self.erase_result(value);
        }
        let (mut gone, mut next) = (vec![node], 0);
        while let Some(&node) = gone.get(next) {
            let bodies: Vec<GraphId> = self.nodes[node].bodies().collect();
            for body in bodies {
                self.graphs[body].owner = GraphOwner::Erased;
                gone.extend(self.nodes(body).collect::<Vec<_>>());
            }
            self.nodes[node].alive = false;
            next += 1;
        }
        self.unplace(node);
        let NodeData { graph, vertex, .. } = self.nodes[node];
        self.graphs[graph].uses.remove_node(vertex);
        for operand in std::mem::take(&mut self.nodes[node].operands) {
            self.lose_reader(operand);
        }
        self.nodes[node].n_formal = 0;
        gone
    }
}

/// The fields of a node that may be set freely.
#[derive(Debug)]
pub struct NodeFields<'a> {
    /// Decisions per type variable.
    pub decisions: &'a mut SmallVec<[Decision; 1]>,
    /// The origin of the node.
    pub provenance: &'a mut Provenance,
    /// Metadata.
    pub metadata: &'a mut Vec<(Symbol, Symbol)>,
    /// Its message in the source file.
    pub origin: &'a mut Option<u32>,
    /// The parts that changed since the node was read.
    pub dirty: &'a mut Dirty,
}
