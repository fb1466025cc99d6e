//! The module: every graph, node and value of a model in one arena.
//!
//! A [`Module`] owns the main graph, the bodies of control-flow nodes and the bodies of model-local functions.
//! Nesting is an id, never a box: a node names its bodies through attributes, a body knows its owner.
//!
//! # Graphs
//! A graph has formal inputs, captures, constants, nodes in program order, and outputs. A body sees nothing of
//! the graphs around it except through its *captures*: a capture is a value of the body that stands for one
//! operand of the owning node, at a slot of [`NodeData::n_formal`] or more. So a pass that casts a captured
//! value edits an operand like any other; the ONNX writer turns captures back into names of the outer scope.
//!
//! # Order and uses
//! Program order is a linked list per graph and is topological; everything written out follows it. The operand
//! list of a node is the source of truth for order and absence. Beside it every graph keeps a petgraph graph of
//! its uses, one edge per present operand, from the producer (or source) to the reader, carrying result slot
//! and operand slot; only the edit verbs change both.
//!
//! # Invariants
//! The verifier ([`verify`](crate::verify)) checks these; edit verbs keep all but the ones on types.
//!
//! - I1 every id named anywhere is alive, and belongs to the graph that names it;
//! - I2 program order holds every node once and defines every value before its readers;
//! - I3 uses and operands agree, edge by edge, and captures are found by the operand that they stand for;
//! - I4 names of values are unique within a graph, and no name hides a value that a body captures;
//! - I5 operators have names, and nodes of the operator table have a legal number of operands, results and known
//!   attributes;
//! - I6 bodies belong to exactly one attribute of one node, functions do not call themselves;
//! - I7 every operand and result has a type that the schema admits, all formals of a type variable the same;
//! - I8 the type of every value is the inferred type;
//! - I9 a capture has the type of its operand, an output the declared element type, a constant the type of its
//!   elements; inputs of the main graph have a type;
//! - I10 the IR version exists, every imported opset exists, each domain is imported at one version, and the
//!   version of every node's operator exists.

mod callers;
mod captures;
mod node;
mod program;
pub mod reason;
mod value;

pub use self::captures::Captured;
pub use self::node::{Decision, Dirty, NodeData, Op, Provenance, Use, Vertex};
pub use self::reason::{Reason, Rule};
pub use self::value::{Def, Payload, ValueData};

use crate::attr::Attr;
use crate::entity::{FunctionId, GraphId, Node, PrimaryMap, SecondaryMap, Symbol, Value};
use crate::symbols::Symbols;
use crate::ty::Type;
use petgraph::stable_graph::StableDiGraph;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::OnceLock;

pub(crate) use callers::Callers;
pub(crate) use captures::Captures;
pub(crate) use program::Program;

/// Facts about a model outside its graphs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Header {
    /// Version of the ONNX IR.
    pub ir_version: i64,
    /// Opset imports of the main graph and its bodies: domain (empty for ai.onnx) and version, in source order.
    pub opsets: Vec<(Symbol, u16)>,
    /// Name of the tool that made the model.
    pub producer_name: String,
    /// Version of that tool.
    pub producer_version: String,
    /// Domain of the model.
    pub domain: String,
    /// Version of the model.
    pub model_version: i64,
    /// Documentation.
    pub doc_string: String,
    /// Key-value metadata, in source order.
    pub metadata: Vec<(String, String)>,
}

impl Header {
    /// Replaces the metadata of a key, or adds it.
    pub fn set_metadata(&mut self, key: &str, text: String) {
        self.metadata.retain(|(known, _)| known != key);
        self.metadata.push((key.to_owned(), text));
    }
}

/// True if a key of the metadata of a model is ampc's own: a model has such a key once.
pub fn is_own_key(key: &str) -> bool {
    key.starts_with("ampc.")
}

/// A model: graphs, functions, names.
#[derive(Clone, Debug)]
pub struct Module {
    /// The facts outside the graphs.
    pub header: Header,
    pub(crate) symbols: Symbols,
    pub(crate) graphs: PrimaryMap<GraphId, GraphData>,
    pub(crate) nodes: PrimaryMap<Node, NodeData>,
    pub(crate) values: PrimaryMap<Value, ValueData>,
    pub(crate) functions: PrimaryMap<FunctionId, FunctionData>,
    pub(crate) main: GraphId,
    /// Every name that a value or node of any scope ever had, which a new name must avoid.
    pub(crate) taken: FxHashSet<Symbol>,
    /// The nodes that call functions, in the order in which they came. Looked up, never gone through.
    pub(crate) calls: FxHashMap<FunctionId, Callers>,
    /// The outputs that values are. Looked up, never gone through.
    pub(crate) leaving: FxHashMap<Value, VecDeque<u32>>,
    /// The last number tried for a base name, so that n clashes cost n steps and not n².
    pub(crate) suffixes: SecondaryMap<Symbol, u32>,
    /// Graphs and nodes in program order, as far as they are listed.
    pub(crate) program: Program,
}

/// Owner of a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GraphOwner {
    /// The model's own.
    Main,
    /// A body: the value (or one of the values) of an attribute of a node.
    Body {
        /// The owning node.
        node: Node,
        /// The attribute's name.
        attr: Symbol,
    },
    /// The body of a function.
    Function(FunctionId),
    /// No owner: the node of the body was erased.
    Erased,
}

/// An output of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The value that leaves the graph.
    pub value: Value,
    /// The declared type; [`Type::Unknown`] where nothing is declared.
    pub declared: Type,
}

/// A role of values in a graph, such as `grad(%w, %dw)`: facts that a later pass needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Role {
    /// The name of the role.
    pub name: Symbol,
    /// The values, in the order the role's name implies.
    pub values: Vec<Value>,
}

/// One graph.
#[derive(Clone, Debug)]
pub struct GraphData {
    /// Its name.
    pub name: Symbol,
    /// The owner.
    pub owner: GraphOwner,
    /// Formal inputs, in order.
    pub(crate) inputs: Vec<Value>,
    /// Values that stand for operands of the owning node; empty for main graphs and functions.
    pub(crate) captures: Captures,
    /// Constants (initializers), in order.
    pub(crate) constants: Vec<Value>,
    /// Outputs, in order; one value may leave twice.
    pub(crate) outputs: Vec<Output>,
    /// Metadata of a main graph or body (`metadata_props`), in source order; that of a function is in [`FunctionData`].
    pub metadata: Vec<(Symbol, Symbol)>,
    /// Roles of values.
    pub roles: Vec<Role>,
    /// The positions in `roles` at which each value is named: made when asked for, dropped when roles are edited.
    pub(crate) naming: OnceLock<FxHashMap<Value, SmallVec<[u32; 2]>>>,
    /// State across steps: a formal input and the output that is its next value.
    pub states: Vec<(Value, Value)>,
    pub(crate) first: Option<Node>,
    pub(crate) last: Option<Node>,
    pub(crate) uses: StableDiGraph<Vertex, Use>,
    /// True if anything but nodes and values changed since it was read: inputs, outputs, name, constants.
    pub dirty: bool,
}

/// A model-local function.
#[derive(Clone, Debug)]
pub struct FunctionData {
    /// Domain of its name.
    pub domain: Symbol,
    /// Its name.
    pub name: Symbol,
    /// Its overload, mostly empty.
    pub overload: Symbol,
    /// Its body; operands are the body's inputs, results its outputs.
    pub graph: GraphId,
    /// Opset imports of the body.
    pub opsets: Vec<(Symbol, u16)>,
    /// Attributes without default value.
    pub attrs: Vec<Symbol>,
    /// Attributes with default value.
    pub attr_defaults: Vec<Attr>,
    /// Documentation.
    pub doc_string: String,
    /// Metadata, in source order.
    pub metadata: Vec<(Symbol, Symbol)>,
    /// The message of the source file that it came from.
    pub origin: Option<u32>,
}

/// Reading a module. Everything here is cheap: a look-up or an iterator.
impl Module {
    /// The main graph.
    pub fn main(&self) -> GraphId {
        self.main
    }
    /// A graph.
    #[inline]
    pub fn graph(&self, graph: GraphId) -> &GraphData {
        &self.graphs[graph]
    }
    /// A node, alive or erased.
    #[inline]
    pub fn node(&self, node: Node) -> &NodeData {
        &self.nodes[node]
    }
    /// A value, alive or erased.
    #[inline]
    pub fn value(&self, value: Value) -> &ValueData {
        &self.values[value]
    }
    /// A function.
    pub fn function(&self, function: FunctionId) -> &FunctionData {
        &self.functions[function]
    }
    /// All functions, in order.
    pub fn functions(&self) -> impl Iterator<Item = (FunctionId, &FunctionData)> {
        let is_owned = |id, graph| self.graphs[graph].owner == GraphOwner::Function(id);
        self.functions.iter().filter(move |(id, f)| is_owned(*id, f.graph))
    }
    /// All owned graphs, the main graph first, bodies after the graph of their owner.
    pub fn graph_ids(&self) -> impl Iterator<Item = GraphId> {
        self.graphs.iter().filter(|(_, g)| g.owner != GraphOwner::Erased).map(|(id, _)| id)
    }
    /// The nodes of a graph in program order.
    pub fn nodes(&self, graph: GraphId) -> impl Iterator<Item = Node> {
        std::iter::successors(self.graphs[graph].first, |&n| self.nodes[n].next)
    }
    /// The values that a graph defines: inputs, constants, and results in program order. Captures are not
    /// included.
    pub fn defined(&self, graph: GraphId) -> impl Iterator<Item = Value> {
        let data = &self.graphs[graph];
        let results = self.nodes(graph).flat_map(|n| self.nodes[n].results.iter().flatten());
        data.inputs.iter().chain(&data.constants).chain(results).copied()
    }
    /// The text of a symbol.
    #[inline]
    pub fn text(&self, symbol: Symbol) -> &str {
        self.symbols.text(symbol)
    }
    /// The symbol of a text, if the module uses it.
    pub fn symbol(&self, text: &str) -> Option<Symbol> {
        self.symbols.get(text)
    }
    /// Interns a text.
    pub fn intern(&mut self, text: &str) -> Symbol {
        self.symbols.intern(text)
    }
    /// An upper bound of node ids, for tables beside the module.
    pub fn n_nodes(&self) -> usize {
        self.nodes.len()
    }
    /// An upper bound of value ids, for tables beside the module.
    pub fn n_values(&self) -> usize {
        self.values.len()
    }

    /// The node and slot that make a value, if a node does.
    #[inline]
    pub fn producer(&self, value: Value) -> Option<(Node, u32)> {
        match self.values[value].def {
            Def::Result { node, slot } => Some((node, slot)),
            Def::Input { .. } | Def::Capture { .. } | Def::Constant(_) | Def::Erased => None,
        }
    }

    /// The payload of a constant. An input's default is not one: it can be overridden.
    #[inline]
    pub fn constant(&self, value: Value) -> Option<&Payload> {
        match &self.values[value].def {
            Def::Constant(payload) => Some(payload),
            Def::Input { .. } | Def::Result { .. } | Def::Capture { .. } | Def::Erased => None,
        }
    }

    /// Readers of a value inside its graph: node and operand slot, newest edge first. Graph outputs are not
    /// readers: see [`is_output`](Self::is_output).
    pub fn uses(&self, value: Value) -> impl Iterator<Item = (Node, u32)> + '_ {
        use petgraph::visit::EdgeRef;
        let data = &self.values[value];
        let (vertex, result) = match data.def {
            Def::Result { node, slot } => (data.vertex.or(Some(self.nodes[node].vertex)), slot),
            Def::Input { .. } | Def::Capture { .. } | Def::Constant(_) => (data.vertex, 0),
            Def::Erased => (None, 0),
        };
        let graph = &self.graphs[data.graph].uses;
        vertex
            .into_iter()
            .flat_map(|v| graph.edges(v))
            .filter(move |e| e.weight().result == result)
            .filter_map(|e| match graph[e.target()] {
                Vertex::Node(node) => Some((node, e.weight().operand)),
                Vertex::Source(_) => None,
            })
    }

    /// The numbers of the outputs that a value is, in ascending order.
    pub fn output_slots(&self, value: Value) -> impl Iterator<Item = u32> + use<'_> {
        self.leaving.get(&value).into_iter().flatten().copied()
    }

    /// True if a value leaves its graph.
    #[inline]
    pub fn is_output(&self, value: Value) -> bool {
        self.leaving.get(&value).is_some_and(|slots| !slots.is_empty())
    }

    /// True if a role of its graph names a value.
    pub fn has_role(&self, value: Value) -> bool {
        self.graphs[self.values[value].graph].naming().contains_key(&value)
    }

    /// The uses of a graph, for petgraph's algorithms.
    pub fn use_graph(&self, graph: GraphId) -> &StableDiGraph<Vertex, Use> {
        &self.graphs[graph].uses
    }

    /// The function or main graph around a graph, through all bodies.
    pub fn root(&self, mut graph: GraphId) -> GraphId {
        while let GraphOwner::Body { node, .. } = self.graphs[graph].owner {
            graph = self.nodes[node].graph;
        }
        graph
    }

    /// The opset imports that hold in a graph.
    pub fn opsets(&self, graph: GraphId) -> &[(Symbol, u16)] {
        match self.graphs[self.root(graph)].owner {
            GraphOwner::Function(f) => &self.functions[f].opsets,
            GraphOwner::Main | GraphOwner::Body { .. } | GraphOwner::Erased => &self.header.opsets,
        }
    }

    /// The imported version of a domain (`""` for ai.onnx) in a graph.
    pub fn opset(&self, graph: GraphId, domain: &str) -> Option<u16> {
        // Of the few imports there are, the one is found sooner by reading than by looking symbols up.
        let is_wanted = |&&(found, _): &&(Symbol, u16)| match (self.text(found), domain) {
            ("" | "ai.onnx", "") => true,
            ("", _) | (_, "") => false,
            (found, domain) => found == domain,
        };
        self.opsets(graph).iter().find(is_wanted).map(|&(_, version)| version)
    }

    /// The name of a value in its graph: its own, or the name of the captured value for a capture.
    pub fn value_name(&self, mut value: Value) -> Option<Symbol> {
        loop {
            let data = &self.values[value];
            match (&data.def, self.graphs[data.graph].owner) {
                (Def::Capture { slot }, GraphOwner::Body { node, .. }) => {
                    value = self.nodes[node].operands.get(*slot as usize).copied().flatten()?;
                }
                _ => return data.name,
            }
        }
    }

    /// The number of the operand of a capture at `slot` among the owner's capture operands, from 0.
    pub(crate) fn capture_index(&self, capture: Value, slot: u32) -> i64 {
        let n_formal = match self.graphs[self.values[capture].graph].owner {
            GraphOwner::Body { node, .. } => self.nodes[node].n_formal,
            GraphOwner::Main | GraphOwner::Function(_) | GraphOwner::Erased => 0,
        };
        i64::from(slot) - i64::from(n_formal)
    }

    /// The domain, name and overload of the operator of a node.
    pub fn op_name(&self, node: Node) -> (&str, &str, &str) {
        match self.nodes[node].op {
            Op::Schema(s) => (s.domain, s.name, ""),
            Op::Call(f) => {
                let f = &self.functions[f];
                (self.text(f.domain), self.text(f.name), self.text(f.overload))
            }
            Op::Custom { domain, name, overload } => {
                (self.text(domain), self.text(name), self.text(overload))
            }
        }
    }
}

impl GraphData {
    /// The positions in `roles` at which each value is named.
    pub(crate) fn naming(&self) -> &FxHashMap<Value, SmallVec<[u32; 2]>> {
        self.naming.get_or_init(|| {
            let mut naming: FxHashMap<Value, SmallVec<[u32; 2]>> = FxHashMap::default();
            for (at, role) in (0..).zip(&self.roles) {
                for &value in &role.values {
                    let places = naming.entry(value).or_default();
                    if places.last() != Some(&at) {
                        places.push(at);
                    }
                }
            }
            naming
        })
    }
    /// Formal inputs, in order.
    #[inline]
    pub fn inputs(&self) -> &[Value] {
        &self.inputs
    }
    /// Captures, in order of their first reader.
    pub fn captures(&self) -> &[Value] {
        self.captures.values()
    }
    /// The captures that stand for operand `slot` of the owning node, in order: none or one, but a text may have
    /// more.
    pub fn captures_of(&self, slot: u32) -> &[Value] {
        self.captures.of(slot)
    }
    /// Constants, in order.
    #[inline]
    pub fn constants(&self) -> &[Value] {
        &self.constants
    }
    /// Outputs, in order.
    #[inline]
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }
}
