//! The edit verbs: the only way to change a module. Each verb keeps the invariants on structure (I1–I4, I6) as
//! long as its own precondition holds, keeps operands and uses consistent, and marks changes as dirty.
//!
//! This file has the verbs of graphs, their outputs and names; each other noun has a file.

mod calls;
mod captures;
mod functions;
mod inline;
mod nodes;
mod sources;
mod uses;
mod versions;

pub use calls::InlinedCalls;
pub use nodes::{NewNode, NodeFields, Position};
pub use sources::payload_type;

use crate::entity::{EntityRef, FunctionId, GraphId, Node, PrimaryMap, SecondaryMap, Symbol, Value};
use crate::module::{
    Captures, Def, Dirty, FunctionData, GraphData, GraphOwner, Header, Module, Output, Program,
};
use crate::symbols::Symbols;
use crate::ty::Type;
use petgraph::stable_graph::StableDiGraph;
use rustc_hash::{FxHashMap, FxHashSet};

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
            program: Program::default(),
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
            captures: Captures::default(),
            constants: Vec::new(),
            outputs: Vec::new(),
            metadata: Vec::new(),
            roles: Vec::new(),
            naming: Default::default(),
            states: Vec::new(),
            first: None,
            last: None,
            uses: StableDiGraph::new(),
            dirty: false,
        })
    }

    /// An empty graph without owner: the body of a node or function to be made.
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
        self.forget_program();
        let id = self.functions.push(function);
        self.graphs[graph].owner = GraphOwner::Function(id);
        id
    }

    /// Appends a value to the outputs of the graph.
    pub fn add_output(&mut self, graph: GraphId, value: Value, declared: Type) {
        let index = u32::try_from(self.graphs[graph].outputs.len()).expect("fewer than 2^32 outputs");
        self.leaving.entry(value).or_default().push_back(index);
        self.graphs[graph].outputs.push(Output { value, declared });
        self.graphs[graph].dirty = true;
    }

    /// Replaces the value of output `index`. The declared type stays. If a value is an output n times, changing
    /// the first or the last of these outputs takes one step, any other up to n/2.
    pub fn set_output(&mut self, graph: GraphId, index: usize, value: Value) {
        let before = std::mem::replace(&mut self.graphs[graph].outputs[index].value, value);
        self.lose_reader(Some(before));
        let slot = u32::try_from(index).expect("fewer than 2^32 outputs");
        if let Some(slots) = self.leaving.get_mut(&before)
            && let Ok(at) = slots.binary_search(&slot)
        {
            slots.remove(at);
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

    /// Removes the outputs of a main graph for which `keep` is false. A state whose next value is no longer an
    /// output is removed from the states.
    ///
    /// # Panics
    /// If the graph is a body or a function, whose outputs are results of a node.
    pub fn retain_outputs(&mut self, graph: GraphId, mut keep: impl FnMut(usize, &Output) -> bool) {
        assert!(matches!(self.graphs[graph].owner, GraphOwner::Main), "its outputs are results of a node");
        let before = std::mem::take(&mut self.graphs[graph].outputs);
        for output in &before {
            self.leaving.remove(&output.value);
        }
        for (i, output) in before.into_iter().enumerate() {
            if keep(i, &output) {
                self.add_output(graph, output.value, output.declared);
            } else {
                self.lose_reader(Some(output.value));
            }
        }
        let mut states = std::mem::take(&mut self.graphs[graph].states);
        states.retain(|&(_, next)| self.is_output(next));
        self.graphs[graph].states = states;
        self.graphs[graph].dirty = true;
    }

    /// Declares the type of output `index`.
    pub fn set_output_type(&mut self, graph: GraphId, index: usize, declared: Type) {
        self.graphs[graph].outputs[index].declared = declared;
        self.graphs[graph].dirty = true;
    }

    /// Sets the type of a value.
    pub fn set_type(&mut self, value: Value, ty: Type) {
        self.values[value].ty = ty;
    }

    /// Renames a value; everything that spells its name is dirty.
    pub fn set_value_name(&mut self, value: Value, name: Symbol) {
        self.forget_names();
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

    /// The place of a value's message in the source file.
    pub fn set_value_origin(&mut self, value: Value, origin: Option<u32>) {
        self.values[value].origin = origin;
    }

    /// Roles and states of a graph. They name live values of it, a state an input and an output (I1).
    pub fn graph_roles_mut(
        &mut self,
        graph: GraphId,
    ) -> (&mut Vec<crate::module::Role>, &mut Vec<(Value, Value)>) {
        let data = &mut self.graphs[graph];
        data.naming.take();
        (&mut data.roles, &mut data.states)
    }

    /// Sets the metadata of a graph, which the writer takes for a graph that came from no file.
    pub fn set_graph_metadata(&mut self, graph: GraphId, metadata: Vec<(Symbol, Symbol)>) {
        self.graphs[graph].metadata = metadata;
    }

    /// Sets the metadata of an input or constant, which the writer takes for a graph that came from no file.
    pub fn set_value_metadata(&mut self, value: Value, metadata: Vec<(Symbol, Symbol)>) {
        self.values[value].metadata = metadata;
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
            self.values[value].lost_reader = false;
        }
        for graph in self.graphs.keys() {
            self.graphs[graph].dirty = false;
        }
    }
}
