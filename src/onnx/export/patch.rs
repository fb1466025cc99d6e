//! Messages of the source with corrections: changed fields are replaced in place, everything else is copied.

mod graph;
mod node;
mod renamed;

use super::Exporter;
use super::encode::{entry_field, opset_fields, text_field};
use crate::onnx::layout::Layout;
use crate::onnx::provenance::same_entries;
use crate::onnx::scan::Located;
use crate::onnx::wire::{Field, Fields, WireError};
use ampc_ir::module::{GraphOwner, Header};
use ampc_ir::{FunctionId, GraphId, Symbol, Value};
use rustc_hash::{FxHashMap, FxHashSet};

impl Exporter<'_> {
    /// True if the model is the source, byte for byte.
    pub(super) fn is_identical(&self, order: &[GraphId], metadata: &[(String, String)]) -> bool {
        let Some(source) = self.source else { return false };
        let header = Header { metadata: source.header.metadata.clone(), ..self.module.header.clone() };
        let same_header = header == source.header && same_entries(metadata, &source.header.metadata);
        same_header
            && self.functions.are_those_of(source)
            && order.iter().all(|g| self.clean.graphs.contains(g))
    }

    pub(super) fn patched_model(&mut self, metadata: &[(String, String)]) -> Result<Layout, WireError> {
        let module = self.module;
        let source = self.source.expect("patching needs a source");
        let (now, then) = (&module.header, &source.header);
        let same_opsets = now.opsets == then.opsets;
        let same_metadata = same_entries(metadata, &then.metadata);
        let mut functions: FxHashMap<u64, GraphId> = FxHashMap::default();
        for (_, function) in module.functions() {
            functions.extend(source.message(function.origin).map(|at| (at.start, function.graph)));
        }
        let mut seen = Seen::default();
        let mut out = Layout::new();
        let mut fields = Fields::of(self.reader().all());
        while let Some(field) = fields.next(self.reader())? {
            let first = seen.first(field.number);
            match field.number {
                1 if now.ir_version != then.ir_version => out.int_field(1, now.ir_version),
                2 if now.producer_name != then.producer_name => text_field(&mut out, 2, &now.producer_name),
                3 if now.producer_version != then.producer_version => {
                    text_field(&mut out, 3, &now.producer_version);
                }
                4 if now.domain != then.domain => text_field(&mut out, 4, &now.domain),
                5 if now.model_version != then.model_version => out.int_field(5, now.model_version),
                6 if now.doc_string != then.doc_string => text_field(&mut out, 6, &now.doc_string),
                7 => self.message(&mut out, &field, module.main()),
                8 if !same_opsets => {
                    if first {
                        opset_fields(&mut out, 8, module, &now.opsets);
                    }
                }
                14 if !same_metadata => {
                    if first {
                        metadata_fields(&mut out, metadata);
                    }
                }
                25 => {
                    if let Some(&graph) = functions.get(&field.start) {
                        self.message(&mut out, &field, graph);
                    } else if self.functions.keep(field.start) {
                        self.copy(&mut out, &field);
                    }
                }
                _ => self.copy(&mut out, &field),
            }
        }
        self.new_model_fields(&mut out, &seen, metadata);
        for (_, function) in module.functions().filter(|(_, f)| source.message(f.origin).is_none()) {
            let function = self.content(function.graph);
            out.message_field(25, function);
        }
        self.new_bodies(&mut out);
        Ok(out)
    }

    /// Fields of the model that the source does not have.
    fn new_model_fields(&self, out: &mut Layout, seen: &Seen, metadata: &[(String, String)]) {
        let now = &self.module.header;
        let texts =
            [(2, &now.producer_name), (3, &now.producer_version), (4, &now.domain), (6, &now.doc_string)];
        for (number, text) in texts {
            if !seen.has(number) {
                text_field(out, number, text);
            }
        }
        if !seen.has(5) && now.model_version != 0 {
            out.int_field(5, now.model_version);
        }
        if !seen.has(8) {
            opset_fields(out, 8, self.module, &now.opsets);
        }
        if !seen.has(14) {
            metadata_fields(out, metadata);
        }
    }

    fn copy(&self, out: &mut Layout, field: &Field) {
        out.range(self.shared(), field.whole());
    }

    fn copy_message(&self, out: &mut Layout, at: Located) {
        out.range(self.shared(), at.whole());
    }

    /// A field that holds a graph or function: copied if clean.
    fn message(&mut self, out: &mut Layout, field: &Field, graph: GraphId) {
        if self.clean.graphs.contains(&graph) {
            self.copy(out, field);
        } else {
            let content = self.content(graph);
            out.message_field(field.number, content);
        }
    }

    /// The symbol of a text field of the message in `field`.
    pub(super) fn field_name(&mut self, field: &Field, number: u32) -> Result<Option<Symbol>, WireError> {
        let module = self.module;
        let mut name = None;
        let mut fields = Fields::of(field.bytes("message")?);
        while let Some(inner) = fields.next(self.reader())? {
            if inner.number == number {
                name = module.symbol(self.reader().text(inner.bytes("name")?, "name")?);
            }
        }
        Ok(name)
    }

    /// A text field: copied if it has this text already.
    fn text(&mut self, out: &mut Layout, field: &Field, text: &str) -> Result<(), WireError> {
        if self.reader().text(field.bytes("text")?, "text")? == text {
            self.copy(out, field);
        } else {
            text_field(out, field.number, text);
        }
        Ok(())
    }

    /// The content of a function message.
    pub(super) fn function(&mut self, function: FunctionId) -> Result<Layout, WireError> {
        let module = self.module;
        let data = module.function(function);
        let graph = module.graph(data.graph);
        let Some(record) = self.source.and_then(|s| s.graphs.get(&data.graph)) else {
            return Ok(self.new_function(function));
        };
        let mut seen = Seen::default();
        let mut types = None;
        let mut out = Layout::new();
        let mut fields = Fields::of(record.at.body);
        while let Some(field) = fields.next(self.reader())? {
            let first = seen.first(field.number);
            match field.number {
                1 => self.text(&mut out, &field, module.text(data.name))?,
                4 => {
                    if first {
                        self.name_fields(&mut out, 4, graph.inputs().iter().copied());
                    }
                }
                5 => {
                    if first {
                        self.name_fields(&mut out, 5, graph.outputs().iter().map(|o| o.value));
                    }
                }
                7 => {
                    if first {
                        self.function_nodes(&mut out, data.graph)?;
                    }
                }
                9 => {
                    if first {
                        opset_fields(&mut out, 9, module, &data.opsets);
                    }
                }
                12 => self.declared_type(&mut out, &field, data.graph, &mut types)?,
                13 => self.text(&mut out, &field, module.text(data.overload))?,
                14 => {
                    if first {
                        let entries = data.metadata.iter();
                        entries.for_each(|&(k, v)| entry_field(&mut out, 14, module.text(k), module.text(v)));
                    }
                }
                _ => self.copy(&mut out, &field),
            }
        }
        if !seen.has(7) {
            self.function_nodes(&mut out, data.graph)?;
        }
        if !seen.has(9) {
            opset_fields(&mut out, 9, module, &data.opsets);
        }
        if !seen.has(13) {
            text_field(&mut out, 13, module.text(data.overload));
        }
        Ok(out)
    }

    fn name_fields(&self, out: &mut Layout, number: u32, values: impl Iterator<Item = Value>) {
        values.for_each(|value| out.bytes_field(number, self.name(Some(value)).as_bytes()));
    }

    /// All nodes of a function, beginning with the nodes that make its constants.
    fn function_nodes(&mut self, out: &mut Layout, graph: GraphId) -> Result<(), WireError> {
        self.constant_nodes(graph).into_iter().for_each(|node| out.message_field(7, node));
        self.nodes(out, 7, graph)
    }

    /// True if a graph is the body of a function or inside one: its types belong to the last inferred call.
    pub(super) fn is_in_function(&self, graph: GraphId) -> bool {
        matches!(self.module.graph(self.module.root(graph)).owner, GraphOwner::Function(_))
    }
}

fn metadata_fields(out: &mut Layout, metadata: &[(String, String)]) {
    metadata.iter().for_each(|(key, value)| entry_field(out, 14, key, value));
}

/// The fields of a message that have occurred.
#[derive(Default)]
struct Seen(FxHashSet<u32>);

impl Seen {
    fn first(&mut self, number: u32) -> bool {
        self.0.insert(number)
    }
    fn has(&self, number: u32) -> bool {
        self.0.contains(&number)
    }
}
