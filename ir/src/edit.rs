//! The edit verbs: the only way to change a module. Each keeps the invariants on structure (I1–I4, I6) as long
//! as its own precondition holds, keeps operands and uses in step, and marks what changed as dirty.

use crate::attr::{Attr, AttrValue};
use crate::entity::{EntityRef, PrimaryMap, SecondaryMap};
use crate::module::{
    Def, Dirty, FunctionData, GraphData, GraphOwner, Header, Module, NodeData, Op, Output, Payload,
    Provenance, Use, ValueData, Vertex,
};
use crate::op::OpSchema;
use crate::symbols::Symbols;
use crate::{FunctionId, GraphId, Node, Symbol, Type, Value};
use petgraph::stable_graph::{EdgeIndex, NodeIndex, StableDiGraph};
use petgraph::visit::EdgeRef;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

/// Where to put a new node.
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

/// What a new node is made of.
#[derive(Clone, Debug)]
pub struct NewNode {
    /// What it computes.
    pub op: Op,
    /// Its name, if any.
    pub name: Option<Symbol>,
    /// Its formal operands, values of the graph it goes into.
    pub operands: SmallVec<[Option<Value>; 4]>,
    /// Its attributes. Bodies among them must be graphs made by [`Module::new_graph`] that nobody owns yet.
    pub attrs: Vec<(Symbol, AttrValue)>,
    /// Name and type of each result; `None` for an absent one.
    pub results: Vec<Option<(Symbol, Type)>>,
    /// Who puts it there.
    pub provenance: Provenance,
}

impl Default for Module {
    fn default() -> Self {
        Module::new()
    }
}

impl Module {
    /// A module with an empty main graph.
    pub fn new() -> Module {
        let mut module = Module {
            header: Header::default(),
            symbols: Symbols::default(),
            graphs: PrimaryMap::default(),
            nodes: PrimaryMap::default(),
            values: PrimaryMap::default(),
            functions: PrimaryMap::default(),
            main: GraphId::new(0),
            taken: FxHashSet::default(),
            calls: FxHashMap::default(),
            leaving: FxHashMap::default(),
            suffixes: SecondaryMap::default(),
        };
        let name = module.intern("");
        module.main = module.push_graph(name, GraphOwner::Main);
        module
    }

    fn push_graph(&mut self, name: Symbol, owner: GraphOwner) -> GraphId {
        self.graphs.push(GraphData {
            name,
            owner,
            inputs: Vec::new(),
            captures: Vec::new(),
            constants: Vec::new(),
            outputs: Vec::new(),
            roles: Vec::new(),
            states: Vec::new(),
            first: None,
            last: None,
            uses: StableDiGraph::new(),
            dirty: false,
        })
    }

    /// An empty graph that nobody owns yet: the body of a node or function to be made.
    pub fn new_graph(&mut self, name: Symbol) -> GraphId {
        self.push_graph(name, GraphOwner::Erased)
    }

    /// Renames a graph.
    pub fn set_graph_name(&mut self, graph: GraphId, name: Symbol) {
        self.graphs[graph].name = name;
        self.graphs[graph].dirty = true;
    }

    /// Adds a function; its graph (made by [`new_graph`](Self::new_graph)) becomes its body.
    pub fn add_function(&mut self, function: FunctionData) -> FunctionId {
        let graph = function.graph;
        let id = self.functions.push(function);
        self.graphs[graph].owner = GraphOwner::Function(id);
        id
    }

    fn push_source(&mut self, graph: GraphId, name: Option<Symbol>, ty: Type, def: Def) -> Value {
        let value =
            self.values.push(ValueData { ty, def, name, graph, vertex: None, origin: None, dirty: false });
        let vertex = self.graphs[graph].uses.add_node(Vertex::Source(value));
        self.values[value].vertex = Some(vertex);
        self.taken.extend(name);
        value
    }

    /// Adds a formal input; `default` makes it an initializer that a caller may override.
    pub fn add_input(&mut self, graph: GraphId, name: Symbol, ty: Type, default: Option<Payload>) -> Value {
        let slot = u32::try_from(self.graphs[graph].inputs.len()).expect("fewer than 2^32 inputs");
        let value = self.push_source(graph, Some(name), ty, Def::Input { slot, default });
        self.graphs[graph].inputs.push(value);
        value
    }

    /// Adds a constant.
    pub fn add_constant(&mut self, graph: GraphId, name: Symbol, payload: Payload) -> Value {
        let value = self.push_source(graph, Some(name), payload_type(&payload), Def::Constant(payload));
        self.graphs[graph].constants.push(value);
        value
    }

    /// The value of `body` that stands for `outer`, a value of the graph around it; made, together with the
    /// operand of the owning node, if the body does not capture `outer` yet.
    ///
    /// # Panics
    /// If `body` is no body of a node in the graph of `outer`.
    pub fn capture(&mut self, body: GraphId, outer: Value) -> Value {
        let GraphOwner::Body { node, .. } = self.graphs[body].owner else {
            panic!("{body} has no owning node to capture through");
        };
        assert_eq!(
            self.values[outer].graph, self.nodes[node].graph,
            "{outer} is not in the scope around {body}"
        );
        let n_formal = self.nodes[node].n_formal();
        let present = self.nodes[node].operands[n_formal..].iter().position(|&v| v == Some(outer));
        let slot = n_formal + present.unwrap_or(self.nodes[node].operands.len() - n_formal);
        if present.is_none() {
            self.add_capture_operand(node, Some(outer));
        }
        let stands_for =
            |v: &Value| matches!(self.values[*v].def, Def::Capture { slot: s } if s as usize == slot);
        let known = self.graphs[body].captures.iter().copied().find(stands_for);
        known.unwrap_or_else(|| self.add_capture(body, slot))
    }

    /// The value that stands for `outer` in a graph nested in its scope, captured by every body between; `outer`
    /// itself in its own graph.
    ///
    /// # Panics
    /// If the graph is not nested in that of `outer`.
    pub fn capture_into(&mut self, graph: GraphId, outer: Value) -> Value {
        let (mut between, mut at) = (Vec::new(), graph);
        while at != self.values[outer].graph {
            between.push(at);
            let owner = self.owner(at).unwrap_or_else(|| panic!("{outer} is not in a scope around {graph}"));
            at = self.nodes[owner].graph;
        }
        between.into_iter().rev().fold(outer, |value, body| self.capture(body, value))
    }

    /// Removes what the bodies of a node capture and do not read, and the operands that none of them captures any
    /// more. Returns whether there was any.
    pub fn prune_captures(&mut self, node: Node) -> bool {
        let n_formal = self.nodes[node].n_formal();
        let mut captured = vec![false; self.nodes[node].operands.len()];
        let mut changed = false;
        let bodies: Vec<GraphId> = self.nodes[node].bodies().collect();
        for &body in &bodies {
            for value in std::mem::take(&mut self.graphs[body].captures) {
                let Def::Capture { slot } = self.values[value].def else {
                    unreachable!("{value} is a capture")
                };
                if self.uses(value).next().is_some() || self.is_output(value) {
                    captured[slot as usize] = true;
                    self.graphs[body].captures.push(value);
                    continue;
                }
                if let Some(vertex) = self.values[value].vertex.take() {
                    self.graphs[body].uses.remove_node(vertex);
                }
                self.values[value].def = Def::Erased;
                changed = true;
            }
        }
        if captured[n_formal..].iter().all(|&c| c) {
            return changed;
        }
        let graph = self.nodes[node].graph;
        let (mut kept, mut slots) = (n_formal, vec![0; captured.len()]);
        for slot in n_formal..captured.len() {
            let edge = self.edge_into(node, slot);
            if captured[slot] {
                let operand = u32::try_from(kept).expect("fewer than 2^32 operands");
                if let Some(edge) = edge {
                    self.graphs[graph].uses[edge].operand = operand;
                }
                self.nodes[node].operands[kept] = self.nodes[node].operands[slot];
                slots[slot] = operand;
                kept += 1;
            } else if let Some(edge) = edge {
                self.graphs[graph].uses.remove_edge(edge);
            }
        }
        self.nodes[node].operands.truncate(kept);
        for &body in &bodies {
            for i in 0..self.graphs[body].captures.len() {
                let value = self.graphs[body].captures[i];
                if let Def::Capture { slot } = &mut self.values[value].def {
                    *slot = slots[*slot as usize];
                }
            }
        }
        true
    }

    /// Adds an operand for the bodies of a node to capture, even if it has the same one already.
    pub fn add_capture_operand(&mut self, node: Node, outer: Option<Value>) {
        let slot = self.nodes[node].operands.len();
        self.nodes[node].operands.push(None);
        self.link(node, slot, outer);
    }

    /// Adds a capture to a body: a value that stands for operand `slot` of the owning node, of its type.
    ///
    /// # Panics
    /// If `body` is no body, or `slot` no capture operand of its node.
    pub fn add_capture(&mut self, body: GraphId, slot: usize) -> Value {
        let GraphOwner::Body { node, .. } = self.graphs[body].owner else {
            panic!("{body} has no owning node to capture through");
        };
        assert!(slot >= self.nodes[node].n_formal(), "operand {slot} of {node} is not for captures");
        let ty = self.nodes[node].operands[slot].map(|outer| self.values[outer].ty.clone());
        let slot = u32::try_from(slot).expect("fewer than 2^32 operands");
        let value = self.push_source(body, None, ty.unwrap_or_default(), Def::Capture { slot });
        self.graphs[body].captures.push(value);
        value
    }

    /// Lets a value leave the graph as its next output.
    pub fn add_output(&mut self, graph: GraphId, value: Value, declared: Type) {
        let index = u32::try_from(self.graphs[graph].outputs.len()).expect("fewer than 2^32 outputs");
        self.leaving.entry(value).or_default().push(index);
        self.graphs[graph].outputs.push(Output { value, declared });
        self.graphs[graph].dirty = true;
    }

    /// Lets another value leave as output `index`. Its declared type stays.
    pub fn set_output(&mut self, graph: GraphId, index: usize, value: Value) {
        let before = std::mem::replace(&mut self.graphs[graph].outputs[index].value, value);
        let slot = u32::try_from(index).expect("fewer than 2^32 outputs");
        if let Some(slots) = self.leaving.get_mut(&before) {
            slots.retain(|s| *s != slot);
        }
        let slots = self.leaving.entry(value).or_default();
        slots.insert(slots.partition_point(|&s| s < slot), slot);
        self.graphs[graph].dirty = true;
        // The next value of a state is an output: it goes where the output goes.
        if !self.is_output(before) {
            for (_, next) in &mut self.graphs[graph].states {
                if *next == before {
                    *next = value;
                }
            }
        }
    }

    /// Declares the type of output `index`.
    pub fn set_output_type(&mut self, graph: GraphId, index: usize, declared: Type) {
        self.graphs[graph].outputs[index].declared = declared;
        self.graphs[graph].dirty = true;
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
            results.push(result.map(|(name, ty)| {
                self.taken.insert(name);
                let def = Def::Result { node, slot };
                self.values.push(ValueData {
                    ty,
                    def,
                    name: Some(name),
                    graph,
                    vertex: None,
                    origin: None,
                    dirty: true,
                })
            }));
        }
        for (attr, value) in &new.attrs {
            for &body in value.graphs() {
                self.graphs[body].owner = GraphOwner::Body { node, attr: *attr };
            }
        }
        let attrs = new.attrs.into_iter().map(|(name, value)| Attr { name, value, dirty: true }).collect();
        let operands: SmallVec<[Option<Value>; 4]> = smallvec::smallvec![None; new.operands.len()];
        if let Op::Call(function) = new.op {
            self.calls.entry(function).or_default().push(node);
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
            dirty: Dirty { operands: true, results: true, attrs: true, header: true },
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

    fn place(&mut self, node: Node, graph: GraphId, at: Position) {
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

    /// The vertex and result slot a value's edges start from.
    fn source_of(&self, value: Value) -> (NodeIndex, u32) {
        let data = &self.values[value];
        match data.def {
            Def::Result { node, slot } => (self.nodes[node].vertex, slot),
            Def::Input { .. } | Def::Capture { .. } | Def::Constant(_) => {
                (data.vertex.expect("a source has a vertex"), 0)
            }
            Def::Erased => panic!("{value} is erased"),
        }
    }

    /// Sets an operand that is `None` so far, and adds its edge.
    fn link(&mut self, node: Node, slot: usize, value: Option<Value>) {
        self.nodes[node].operands[slot] = value;
        if let Some(value) = value {
            let graph = self.nodes[node].graph;
            assert_eq!(self.values[value].graph, graph, "{value} is not in the graph of {node}");
            let (from, result) = self.source_of(value);
            let operand = u32::try_from(slot).expect("fewer than 2^32 operands");
            self.graphs[graph].uses.add_edge(from, self.nodes[node].vertex, Use { result, operand });
        }
    }

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
        self.relink(node, slot, value);
    }

    /// Sets many operands at once. Taking an edge from a value with n readers costs up to n steps, and one step if
    /// the newest edge goes first: this does it in that order, so that all of them cost n.
    pub fn set_operands(&mut self, edits: Vec<(Node, usize, Option<Value>)>) {
        let mut edges: Vec<(GraphId, EdgeIndex)> = edits
            .iter()
            .filter_map(|&(node, slot, _)| Some((self.nodes[node].graph, self.edge_into(node, slot)?)))
            .collect();
        edges.sort_unstable_by_key(|&(_, edge)| std::cmp::Reverse(edge));
        for (graph, edge) in edges {
            self.graphs[graph].uses.remove_edge(edge);
        }
        for (node, slot, value) in edits {
            self.relink(node, slot, value);
        }
    }

    /// The edge of an operand, found among the edges into the node: few, even where the producer has many readers.
    fn edge_into(&self, node: Node, slot: usize) -> Option<EdgeIndex> {
        let NodeData { graph, vertex, ref operands, .. } = self.nodes[node];
        operands[slot]?;
        let mut edges = self.graphs[graph].uses.edges_directed(vertex, petgraph::Direction::Incoming);
        edges.find(|e| e.weight().operand as usize == slot).map(|e| e.id())
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

    /// Marks what reads operand `slot` of `node` inside its bodies, at any depth.
    fn mark_capture_readers(&mut self, node: Node, slot: usize) {
        let mut work = vec![(node, slot)];
        while let Some((node, slot)) = work.pop() {
            if slot < self.nodes[node].n_formal() {
                self.nodes[node].dirty.operands = true;
                continue;
            }
            let bodies: Vec<GraphId> = self.nodes[node].bodies().collect();
            for body in bodies {
                for i in 0..self.graphs[body].captures.len() {
                    let value = self.graphs[body].captures[i];
                    if matches!(self.values[value].def, Def::Capture { slot: s } if s as usize == slot) {
                        work.extend(self.uses(value).map(|(n, s)| (n, s as usize)));
                        self.graphs[body].dirty |= self.is_output(value);
                    }
                }
            }
        }
    }

    /// Makes every reader of `old` for which `filter` holds read `new` instead; outputs of the graph are left.
    pub fn replace_uses(&mut self, old: Value, new: Value, mut filter: impl FnMut(Node, u32) -> bool) {
        // Newest edge first, which is the order in which removal is cheap on a value with many readers.
        let readers: Vec<(Node, u32)> = self.uses(old).filter(|&(n, s)| filter(n, s)).collect();
        for (node, slot) in readers {
            self.set_operand(node, slot as usize, Some(new));
        }
        // What nobody reads any more is about to go: its roles are those of what stands for it.
        let graph = self.values[old].graph;
        if !self.graphs[graph].roles.is_empty() && self.uses(old).next().is_none() {
            let values = self.graphs[graph].roles.iter_mut().flat_map(|r| &mut r.values);
            values.filter(|v| **v == old).for_each(|v| *v = new);
        }
    }

    /// Sets the type of a value.
    pub fn set_type(&mut self, value: Value, ty: Type) {
        self.values[value].ty = ty;
    }

    /// Renames a value; everything that spells its name is dirty.
    pub fn set_value_name(&mut self, value: Value, name: Symbol) {
        self.values[value].name = Some(name);
        self.values[value].dirty = true;
        self.taken.insert(name);
        if let Def::Result { node, .. } = self.values[value].def {
            self.nodes[node].dirty.results = true;
        }
        let graph = self.values[value].graph;
        self.graphs[graph].dirty |=
            self.is_output(value) || matches!(self.values[value].def, Def::Input { .. });
        let readers: Vec<(Node, u32)> = self.uses(value).collect();
        for (node, slot) in readers {
            self.mark_capture_readers(node, slot as usize);
        }
    }

    /// Renames a node.
    pub fn set_node_name(&mut self, node: Node, name: Option<Symbol>) {
        self.nodes[node].name = name;
        self.nodes[node].dirty.header = true;
        self.taken.extend(name);
    }

    /// Lets a node compute something else: another version of its operator, another function.
    pub fn set_op(&mut self, node: Node, op: Op) {
        self.forget_call(node);
        if let Op::Call(function) = op {
            self.calls.entry(function).or_default().push(node);
        }
        self.nodes[node].op = op;
        self.nodes[node].dirty.header = true;
        self.nodes[node].decisions.clear();
    }

    /// Lets a node be of another version of its operator. The version is not in a node's message, so that the node
    /// is as clean as it was; the import that selects it is changed by [`set_opset`](Self::set_opset).
    ///
    /// # Panics
    /// If the node is of another operator.
    pub fn set_version(&mut self, node: Node, schema: &'static OpSchema) {
        let data = &mut self.nodes[node];
        assert_eq!(data.schema().map(|s| s.kind), Some(schema.kind), "{node} is of another operator");
        data.op = Op::Schema(schema);
        data.decisions.clear();
    }

    /// Lets a node of an operator that nobody here knows, or that has another signature, be of the operator that a
    /// signature describes. Its message stays as it was.
    ///
    /// # Panics
    /// If the node is of another operator, or the schema of none that is described so.
    pub fn declare(&mut self, node: Node, schema: &'static OpSchema) {
        assert_eq!(self.op_name(node), (schema.domain, schema.name, ""), "{node} is of another operator");
        assert!(schema.declared.is_some(), "the schema is of the table");
        let data = &mut self.nodes[node];
        data.op = Op::Schema(schema);
        data.decisions.clear();
    }

    /// Imports another version of a domain (`""` for ai.onnx) where a graph takes its imports from, the model or a
    /// function; whether it is imported there. The caller sees to the versions of the nodes.
    pub fn set_opset(&mut self, graph: GraphId, domain: &str, version: u16) -> bool {
        let root = self.root(graph);
        let same = |text: &str| text == domain || (domain.is_empty() && text == "ai.onnx");
        let symbols = &self.symbols;
        let imports = match self.graphs[root].owner {
            GraphOwner::Function(function) => {
                self.graphs[root].dirty = true;
                &mut self.functions[function].opsets
            }
            GraphOwner::Main | GraphOwner::Body { .. } | GraphOwner::Erased => &mut self.header.opsets,
        };
        let mut found = false;
        for (_, imported) in imports.iter_mut().filter(|(d, _)| same(symbols.text(*d))) {
            *imported = version;
            found = true;
        }
        found
    }

    /// Imports a domain where a graph takes its imports from, the model or a function. The caller sees to it that it
    /// is not imported there yet.
    pub fn import_opset(&mut self, graph: GraphId, domain: &str, version: u16) {
        let domain = self.intern(domain);
        let root = self.root(graph);
        match self.graphs[root].owner {
            GraphOwner::Function(function) => {
                self.graphs[root].dirty = true;
                self.functions[function].opsets.push((domain, version));
            }
            GraphOwner::Main | GraphOwner::Body { .. } | GraphOwner::Erased => {
                self.header.opsets.push((domain, version));
            }
        }
    }

    /// Gives a node another list of formal operands.
    ///
    /// # Panics
    /// If its bodies capture operands, or an operand is not in its graph.
    pub fn set_formal_operands(&mut self, node: Node, operands: &[Option<Value>]) {
        let data = &self.nodes[node];
        assert_eq!(data.operands.len(), data.n_formal(), "the bodies of {node} capture operands");
        for slot in 0..data.operands.len() {
            self.set_operand(node, slot, None);
        }
        let data = &mut self.nodes[node];
        data.operands = smallvec::smallvec![None; operands.len()];
        data.n_formal = u32::try_from(operands.len()).expect("fewer than 2^32 operands");
        data.dirty.operands = true;
        for (slot, &operand) in operands.iter().enumerate() {
            self.link(node, slot, operand);
        }
    }

    /// Takes the results from number `n` on from a node.
    ///
    /// # Panics
    /// If one of them is read or leaves the graph.
    pub fn truncate_results(&mut self, node: Node, n: usize) {
        while self.nodes[node].results.len() > n {
            if let Some(value) = self.nodes[node].results.pop().flatten() {
                assert!(self.uses(value).next().is_none() && !self.is_output(value), "{value} is still read");
                self.values[value].def = Def::Erased;
            }
            self.nodes[node].dirty.results = true;
        }
    }

    fn forget_call(&mut self, node: Node) {
        if let Op::Call(function) = self.nodes[node].op
            && let Some(calls) = self.calls.get_mut(&function)
        {
            calls.retain(|&call| call != node);
        }
    }

    /// Sets an attribute, replacing the one of that name. Not for bodies.
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

    /// Sets the payload of a constant, and its type with it.
    ///
    /// # Panics
    /// If the value is no constant.
    pub fn set_constant(&mut self, value: Value, payload: Payload) {
        let data = &mut self.values[value];
        assert!(matches!(data.def, Def::Constant(_)), "{value} is no constant");
        data.ty = payload_type(&payload);
        data.def = Def::Constant(payload);
        data.dirty = true;
    }

    /// Erases a node whose results nobody reads, and its bodies.
    ///
    /// # Panics
    /// If a result is still read or leaves the graph.
    pub fn erase_node(&mut self, node: Node) {
        let results: Vec<Value> = self.nodes[node].results.iter().flatten().copied().collect();
        for &value in &results {
            assert!(self.uses(value).next().is_none() && !self.is_output(value), "{value} is still read");
            self.values[value].def = Def::Erased;
        }
        let mut work = vec![node];
        while let Some(node) = work.pop() {
            let bodies: Vec<GraphId> = self.nodes[node].bodies().collect();
            for body in bodies {
                self.graphs[body].owner = GraphOwner::Erased;
                work.extend(self.nodes(body).collect::<Vec<_>>());
            }
            self.nodes[node].alive = false;
            self.forget_call(node);
        }
        self.unplace(node);
        let NodeData { graph, vertex, .. } = self.nodes[node];
        self.graphs[graph].uses.remove_node(vertex);
        self.nodes[node].operands.clear();
        self.nodes[node].n_formal = 0;
    }

    /// Erases a constant that nobody reads.
    ///
    /// # Panics
    /// If it is read, leaves the graph, or is no constant.
    pub fn erase_constant(&mut self, value: Value) {
        assert!(matches!(self.values[value].def, Def::Constant(_)), "{value} is no constant");
        assert!(self.uses(value).next().is_none() && !self.is_output(value), "{value} is still read");
        let graph = self.values[value].graph;
        if let Some(vertex) = self.values[value].vertex.take() {
            self.graphs[graph].uses.remove_node(vertex);
        }
        self.graphs[graph].constants.retain(|&v| v != value);
        self.graphs[graph].dirty = true;
        self.values[value].def = Def::Erased;
    }

    /// Erases many constants that nobody reads, in time linear in the number of constants.
    ///
    /// # Panics
    /// As [`erase_constant`](Self::erase_constant).
    pub fn erase_constants(&mut self, graph: GraphId, dead: &FxHashSet<Value>) {
        let (gone, kept): (Vec<Value>, Vec<Value>) =
            std::mem::take(&mut self.graphs[graph].constants).into_iter().partition(|v| dead.contains(v));
        self.graphs[graph].constants = kept;
        self.graphs[graph].dirty |= !gone.is_empty();
        for value in gone {
            assert!(self.uses(value).next().is_none(), "{value} is still read");
            if let Some(vertex) = self.values[value].vertex.take() {
                self.graphs[graph].uses.remove_node(vertex);
            }
            self.values[value].def = Def::Erased;
        }
    }

    /// A name that nothing in any scope has: `base`, or `base.2`, `base.3` … The name counts as taken at once.
    pub fn fresh_name(&mut self, base: &str) -> Symbol {
        let first = self.symbols.intern(base);
        if self.taken.insert(first) {
            return first;
        }
        loop {
            let n = &mut self.suffixes[first];
            *n = (*n).max(1) + 1;
            let text = format!("{base}.{n}");
            let symbol = self.symbols.intern(&text);
            if self.taken.insert(symbol) {
                return symbol;
            }
        }
    }

    /// Marks everything as unchanged since it was read: for readers, once a module stands as the file has it.
    pub fn mark_clean(&mut self) {
        for node in self.nodes.keys() {
            let data = &mut self.nodes[node];
            data.dirty = Dirty::default();
            data.attrs.iter_mut().for_each(|a| a.dirty = false);
        }
        for value in self.values.keys() {
            self.values[value].dirty = false;
        }
        for graph in self.graphs.keys() {
            self.graphs[graph].dirty = false;
        }
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

    /// Where a value's message is in the source file.
    pub fn set_value_origin(&mut self, value: Value, origin: Option<u32>) {
        self.values[value].origin = origin;
    }
    /// Roles and states of a graph. They name live values of it, a state an input and an output (I1).
    pub fn graph_roles_mut(
        &mut self,
        graph: GraphId,
    ) -> (&mut Vec<crate::module::Role>, &mut Vec<(Value, Value)>) {
        let data = &mut self.graphs[graph];
        (&mut data.roles, &mut data.states)
    }
}

/// The fields of a node that may be set freely.
#[derive(Debug)]
pub struct NodeFields<'a> {
    /// Decisions per type variable.
    pub decisions: &'a mut SmallVec<[crate::module::Decision; 1]>,
    /// Who put the node there.
    pub provenance: &'a mut Provenance,
    /// Metadata.
    pub metadata: &'a mut Vec<(Symbol, Symbol)>,
    /// Its message in the source file.
    pub origin: &'a mut Option<u32>,
    /// What changed since it was read.
    pub dirty: &'a mut Dirty,
}

/// The type of a constant.
pub fn payload_type(payload: &Payload) -> Type {
    match payload {
        Payload::Dense(data) => Type::tensor(data.dtype(), data.shape()),
        Payload::Sparse(data) => {
            Type::Sparse(crate::TensorType::new(data.values.dtype(), crate::Shape::known(&data.dims)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Lookup, lookup};
    use crate::text::{NoData, PrintOptions, parse, print};

    const TEXT: &str = "opset ai.onnx=11\n\ngraph @main {\n  input %x : f32[1, 4]\n  const %axes : i64[1] = [0]\n  \
                        %s = Squeeze(%x) {axes=[0]} : f32[4]\n  %a, %b = Split(%s) : f32[2], f32[2]\n  output %a\n}\n\n\
                        function my::F {\n  opset ai.onnx=11, my=1\n  input %x : f32[*]\n  output %x\n}\n";

    fn schema(name: &str, opset: u16) -> &'static OpSchema {
        let Lookup::Found(schema) = lookup("", name, opset) else { panic!("{name} is in opset {opset}") };
        schema
    }

    #[test]
    fn a_node_becomes_one_of_another_version() {
        let mut module = parse(TEXT, &NoData).unwrap();
        module.mark_clean();
        let main = module.main();
        let nodes: Vec<Node> = module.nodes(main).collect();
        module.set_version(nodes[1], schema("Split", 2));
        module.set_version(nodes[1], schema("Split", 11));
        assert!(!module.node(nodes[1]).dirty.any(), "the version is not in the message");

        let (x, axes) = (module.graph(main).inputs()[0], module.graph(main).constants()[0]);
        let name = module.intern("axes");
        module.remove_attr(nodes[0], name);
        module.set_formal_operands(nodes[0], &[Some(x), Some(axes)]);
        module.set_version(nodes[0], schema("Squeeze", 13));
        module.truncate_results(nodes[1], 1);
        assert_eq!(module.uses(axes).collect::<Vec<_>>(), [(nodes[0], 1)]);
        assert_eq!(module.uses(x).collect::<Vec<_>>(), [(nodes[0], 0)]);
        assert!(module.node(nodes[0]).dirty.operands && module.node(nodes[1]).dirty.results);
        assert!(module.set_opset(main, "", 13) && !module.set_opset(main, "com.example", 2));
        let text = print(&module, &PrintOptions::default()).text;
        assert!(
            text.contains("%s = Squeeze(%x, %axes) : f32[4]") && text.contains("%a = Split(%s)"),
            "{text}"
        );
        assert!(text.contains("opset ai.onnx=13\n") && text.contains("opset ai.onnx=11, my=1"), "{text}");
    }

    #[test]
    fn a_function_has_imports_of_its_own() {
        let mut module = parse(TEXT, &NoData).unwrap();
        module.mark_clean();
        let (_, function) = module.functions().next().unwrap();
        let graph = function.graph;
        assert!(module.set_opset(graph, "", 13));
        assert_eq!((module.opset(graph, ""), module.opset(module.main(), "")), (Some(13), Some(11)));
        assert!(module.graph(graph).dirty && !module.graph(module.main()).dirty);
    }
}
