//! Step 5: the module, from tables that are known to be sound.

use super::names::NameTable;
use super::raw::{RawAttr, RawAttrValue, RawFunction, RawGraph, RawNode, RawOwner, Tables};
use crate::bytes::SourceBytes;
use crate::onnx::external::ExternalFiles;
use crate::onnx::provenance;
use crate::onnx::scan::Located;
use crate::onnx::source::{BodySource, GraphSource, Source};
use ampc_ir::attr::AttrValue;
use ampc_ir::bodies::has_body;
use ampc_ir::edit::NewNode;
use ampc_ir::edit::Position;
use ampc_ir::entity::EntityRef;
use ampc_ir::module::{FunctionData, Op, Output, Provenance};
use ampc_ir::op::OpKind;
use ampc_ir::tensor::ByteSource;
use ampc_ir::{GraphId, Module, Symbol, Type, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Makes the module and the table of its messages. The last result lists casts that the metadata of the model
/// falsely call inserted.
pub(super) fn build(
    module: Module,
    tables: Tables,
    bytes: Arc<SourceBytes>,
    shared: Arc<dyn ByteSource>,
    external: ExternalFiles,
) -> (Module, Source, Vec<String>) {
    let Tables { mut header, header_in_file, functions, graphs } = tables;
    let inserted = provenance::take(&mut header);
    let source = Source {
        bytes,
        shared,
        external,
        messages: Vec::new(),
        graphs: FxHashMap::default(),
        header: header_in_file,
        external_values: FxHashSet::default(),
        external_nodes: FxHashSet::default(),
        initializers: FxHashMap::default(),
        bodies: Vec::new(),
        opset: None,
    };
    let mut builder = Builder {
        module,
        source,
        inserted,
        callees: Vec::new(),
        without_function: Vec::new(),
        ids: Vec::new(),
        captured: Vec::new(),
        scope: NameTable::new(),
    };
    builder.module.header = header;
    builder.source.opset = builder.module.opset(builder.module.main(), "");
    builder.ids.push(Some(builder.module.main()));
    let called = called(&graphs, functions.len());
    let nodes = || graphs.iter().flat_map(|graph| &graph.nodes);
    builder.module.reserve_nodes(nodes().count(), nodes().map(|node| node.outputs.len()).sum());
    for (function, called) in functions.into_iter().zip(called) {
        builder.function(function, called);
    }
    builder.ids.resize(graphs.len(), None);
    builder.captured.resize_with(graphs.len(), Vec::new);
    let names: Vec<String> = graphs.iter().map(|g| g.name.clone()).collect();
    let free: Vec<Vec<Symbol>> = graphs.iter().map(|g| g.free.clone()).collect();
    for (g, raw) in graphs.into_iter().enumerate() {
        let is_operator = matches!(raw.owner, RawOwner::Function(_)) && builder.ids[g].is_none();
        if !is_operator {
            builder.graph(g, raw, &names, &free);
        }
    }
    let Builder { mut module, source, inserted, without_function, .. } = builder;
    module.mark_clean();
    // What they call is added when the model is written.
    without_function.into_iter().for_each(|node| module.node_mut(node).dirty.callee = true);
    let stale = inserted.into_iter().filter(|(_, found)| !found).map(|(name, _)| name).collect();
    (module, source, stale)
}

/// The called functions.
fn called(graphs: &[RawGraph], n: usize) -> Vec<bool> {
    let mut called = vec![false; n];
    for node in graphs.iter().flat_map(|g| &g.nodes) {
        if let Some(Op::Call(function)) = node.op {
            called[function.index()] = true;
        }
    }
    called
}

struct Builder {
    module: Module,
    source: Source,
    /// The casts that an earlier run inserted, where the file says so outside the nodes: a line of [`provenance`] each,
    /// and whether it has been met.
    inserted: BTreeMap<String, bool>,
    /// The operator of a call of each function: a call, or an operator of ai.ampc.
    callees: Vec<Op>,
    /// Nodes of such operators that call no function of the file.
    without_function: Vec<ampc_ir::Node>,
    /// The graph of each table; `None` until its owner has been made.
    ids: Vec<Option<GraphId>>,
    /// The captures of each graph from the graph around it; known once that graph is built.
    captured: Vec<Vec<(Symbol, Value)>>,
    /// The values of the present graph.
    scope: NameTable<Value>,
}

impl Builder {
    fn origin(&mut self, at: Located) -> u32 {
        self.source.messages.push(at);
        u32::try_from(self.source.messages.len() - 1)
            .expect("a message takes two bytes, and 8 GB of graph do not fit")
    }

    /// A function, without its nodes, or the operator of ai.ampc that it is.
    fn function(&mut self, function: RawFunction, called: bool) {
        if let Some(form) = function.form {
            self.source.bodies.push(BodySource { form, at: function.at, called });
            self.callees.push(Op::Schema(form.kind().newest()));
            self.ids.push(None);
            return;
        }
        let m = &function.message;
        let name = self.module.intern(&m.name);
        let data = FunctionData {
            domain: self.module.intern(&m.domain),
            name,
            overload: self.module.intern(&m.overload),
            graph: self.module.new_graph(name),
            opsets: function.opsets,
            attrs: m.attrs.iter().map(|a| self.module.intern(a)).collect(),
            attr_defaults: function.attr_defaults,
            doc_string: m.doc_string.clone(),
            metadata: m
                .metadata
                .iter()
                .map(|(k, v)| (self.module.intern(k), self.module.intern(v)))
                .collect(),
            origin: Some(self.origin(function.at)),
        };
        self.ids.push(Some(data.graph));
        let function = self.module.add_function(data);
        self.callees.push(Op::Call(function));
    }

    fn graph(&mut self, g: usize, mut raw: RawGraph, names: &[String], free: &[Vec<Symbol>]) {
        let graph = self.ids[g].expect("owners come before their bodies");
        if let RawOwner::Main = raw.owner {
            let name = self.module.intern(&raw.name);
            self.module.set_graph_name(graph, name);
        }
        self.module.set_graph_metadata(graph, std::mem::take(&mut raw.metadata));
        self.scope.start();
        for (name, outside) in std::mem::take(&mut self.captured[g]) {
            let inside = self.module.capture(graph, outside);
            self.scope.insert(name, inside);
        }
        let mut record = GraphSource {
            at: raw.at,
            nodes: Vec::with_capacity(raw.nodes.len()),
            sorted: raw.order.is_sorted(),
            inputs: Vec::new(),
            constants: Vec::new(),
            outputs: Vec::new(),
        };
        self.sources(graph, &mut raw, &mut record);
        let nodes = std::mem::take(&mut raw.nodes);
        if record.sorted {
            for node in nodes {
                record.nodes.push(self.node(graph, node, names));
            }
        } else {
            let mut nodes: Vec<Option<RawNode>> = nodes.into_iter().map(Some).collect();
            for &i in &raw.order {
                let node = nodes[i].take().expect("the order has every node once");
                record.nodes.push(self.node(graph, node, names));
            }
        }
        for output in raw.outputs {
            let value = self.value(output.name);
            self.module.add_output(graph, value, output.ty.clone());
            record.outputs.push(Output { value, declared: output.ty });
        }
        self.source.graphs.insert(graph, record);
        for &body in raw.bodies.values().flatten() {
            self.captured[body] = free[body].iter().map(|&name| (name, self.value(name))).collect();
        }
    }

    /// The value that a name of the present graph stands for.
    fn value(&self, name: Symbol) -> Value {
        self.scope.get(name).expect("undefined names have been reported")
    }

    /// Inputs and constants.
    fn sources(&mut self, graph: GraphId, raw: &mut RawGraph, record: &mut GraphSource) {
        let mut initializers: FxHashMap<Symbol, usize> =
            raw.constants.iter().enumerate().map(|(i, c)| (c.name, i)).collect();
        for input in std::mem::take(&mut raw.inputs) {
            let origin = Some(self.origin(input.at));
            let initializer = initializers.remove(&input.name).map(|i| &mut raw.constants[i]);
            let (default, at, external) = match initializer {
                Some(c) => (c.payload.take(), Some(c.at), c.external),
                None => (None, None, false),
            };
            let value = self.module.add_input(graph, input.name, input.ty.clone(), default);
            self.module.set_value_origin(value, origin);
            self.module.set_value_metadata(value, raw.metadata_of.remove(&input.name).unwrap_or_default());
            self.source.initializers.extend(at.map(|at| (value, at)));
            if external {
                self.source.external_values.insert(value);
            }
            record.inputs.push((value, input.ty));
            self.scope.insert(input.name, value);
        }
        for constant in std::mem::take(&mut raw.constants) {
            // The payload of an input's default has been taken.
            let Some(payload) = constant.payload else { continue };
            let origin = self.origin(constant.at);
            let value = self.module.add_constant(graph, constant.name, payload);
            self.module.set_value_origin(value, Some(origin));
            self.module.set_value_metadata(value, raw.metadata_of.remove(&constant.name).unwrap_or_default());
            if constant.external {
                self.source.external_values.insert(value);
            }
            record.constants.push(value);
            self.scope.insert(constant.name, value);
        }
    }

    fn node(&mut self, graph: GraphId, mut raw: RawNode, names: &[String]) -> ampc_ir::Node {
        let attrs = std::mem::take(&mut raw.attrs);
        let mut bodies = Vec::new();
        let attrs = self.attrs(attrs, names, &mut bodies);
        let provenance = self.provenance(graph, &mut raw);
        let op = raw.op.expect("unknown operators have been reported");
        let without_function = matches!(op, Op::Schema(schema) if has_body(schema.kind));
        let op = if let Op::Call(function) = op { self.callees[function.index()] } else { op };
        let mut results: Vec<_> = raw.outputs.iter().map(|o| o.map(|name| (name, Type::Unknown))).collect();
        // A call has an empty name for each absent result; a node of the operator ends at its last present one.
        if matches!(op, Op::Schema(schema) if has_body(schema.kind)) {
            results.truncate(results.iter().rposition(Option::is_some).map_or(0, |last| last + 1));
        }
        let new = NewNode {
            op,
            name: raw.name,
            operands: raw.inputs.iter().map(|input| input.map(|name| self.value(name))).collect(),
            attrs,
            results,
            provenance,
        };
        let node = self.module.add_node(graph, Position::Last, new);
        if without_function {
            self.without_function.push(node);
        }
        for (g, id) in bodies {
            self.ids[g] = Some(id);
        }
        if raw.external {
            self.source.external_nodes.insert(node);
        }
        let origin = self.origin(raw.at);
        let fields = self.module.node_mut(node);
        *fields.origin = Some(origin);
        *fields.metadata = raw.metadata;
        for (slot, name) in raw.outputs.iter().enumerate() {
            if let (Some(name), Some(value)) = (name, self.module.node(node).result(slot)) {
                self.scope.insert(*name, value);
            }
        }
        node
    }

    /// Attributes of a node. `bodies` gets the graphs made for its bodies, each with the number of its table.
    fn attrs(
        &mut self,
        raw: Vec<RawAttr>,
        names: &[String],
        bodies: &mut Vec<(usize, GraphId)>,
    ) -> Vec<(Symbol, AttrValue)> {
        let attrs = raw.into_iter().map(|attr| {
            let value = match attr.value {
                RawAttrValue::Ready(value) => value,
                RawAttrValue::Graphs { graphs, list } => {
                    let new_body = |&g: &usize| {
                        let name = self.module.intern(&names[g]);
                        let id = self.module.new_graph(name);
                        bodies.push((g, id));
                        id
                    };
                    let ids: Vec<GraphId> = graphs.iter().map(new_body).collect();
                    match ids[..] {
                        [only] if !list => AttrValue::Graph(only),
                        _ => AttrValue::Graphs(ids),
                    }
                }
            };
            (attr.name, value)
        });
        attrs.collect()
    }

    /// The origin of a node: an earlier run of ampc if the node is a cast that is marked or listed as inserted.
    /// A mark is taken from it.
    fn provenance(&mut self, graph: GraphId, raw: &mut RawNode) -> Provenance {
        if !matches!(raw.op, Some(Op::Schema(schema)) if schema.kind == OpKind::Cast) {
            return Provenance::User;
        }
        let marked = provenance::take_from_node(&mut self.module, &mut raw.metadata);
        let first_result = raw.outputs.iter().flatten().next().filter(|_| !self.inserted.is_empty());
        let line = first_result.map(|&r| provenance::line(&self.module, graph, self.module.text(r)));
        let listed = line.and_then(|line| self.inserted.get_mut(&line)).is_some_and(|found| {
            *found = true;
            true
        });
        if marked || listed { Provenance::Inserted } else { Provenance::User }
    }
}
