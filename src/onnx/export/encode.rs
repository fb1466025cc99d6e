//! New messages. Fields are written in the order of their numbers, as by protobuf's own encoders.

use super::{Elements, Exporter, Location, bodies, plan};
use crate::onnx::data_file::ENDING;
use crate::onnx::layout::{Digest, Layout};
use crate::onnx::proto::{OperatorSetIdProto, StringStringEntryProto, ValueInfoProto};
use crate::onnx::provenance::{NODE_KEY, NODE_METADATA_SINCE, NODE_VALUE};
use crate::onnx::types::{kind_number, message_of};
use ampc_ir::attr::{Attr, AttrValue};
use ampc_ir::bodies::Form;
use ampc_ir::module::{Def, Output, Provenance};
use ampc_ir::tensor::{SparseData, Storage};
use ampc_ir::{FunctionId, GraphId, Module, Node, Payload, Symbol, TensorData, Type, Value};
use std::sync::Arc;

impl Exporter<'_> {
    /// A model message for a module that came from no file.
    pub(super) fn new_model(&mut self, metadata: &[(String, String)]) -> Layout {
        let module = self.module;
        let header = &module.header;
        let mut out = Layout::new();
        out.int_field(1, self.ir_version());
        for (number, text) in [(2, &header.producer_name), (3, &header.producer_version), (4, &header.domain)]
        {
            text_field(&mut out, number, text);
        }
        if header.model_version != 0 {
            out.int_field(5, header.model_version);
        }
        text_field(&mut out, 6, &header.doc_string);
        let graph = self.content(module.main());
        out.message_field(7, graph);
        opset_fields(&mut out, 8, module, &header.opsets);
        for (key, value) in metadata {
            entry_field(&mut out, 14, key, value);
        }
        for (_, function) in module.functions() {
            let function = self.content(function.graph);
            out.message_field(25, function);
        }
        self.new_bodies(&mut out);
        out
    }

    pub(super) fn ir_version(&self) -> i64 {
        match self.module.header.ir_version {
            0 => super::DEFAULT_IR_VERSION,
            version => version,
        }
    }

    /// The content of a graph message for a graph that came from no file.
    pub(super) fn new_graph(&mut self, graph: GraphId) -> Layout {
        let module = self.module;
        let data = module.graph(graph);
        let mut out = Layout::new();
        for node in module.nodes(graph) {
            let node = self.new_node(node);
            out.message_field(1, node);
        }
        text_field(&mut out, 2, self.graph_name(graph));
        for &value in data.inputs().iter().chain(data.constants()) {
            self.new_initializer(&mut out, value, false);
        }
        for &value in data.inputs() {
            self.new_input(&mut out, value);
        }
        if self.lists_constants(graph) {
            data.constants().iter().for_each(|&value| self.new_input(&mut out, value));
        }
        for output in data.outputs() {
            self.new_output(&mut out, output);
        }
        for &value in data.inputs().iter().chain(data.constants()) {
            self.new_initializer(&mut out, value, true);
        }
        for &value in data.constants().iter().filter(|&&value| !module.value(value).metadata.is_empty()) {
            out.prost_field(13, &self.value_info(value, &module.value(value).ty));
        }
        for &(key, value) in &data.metadata {
            entry_field(&mut out, 16, module.text(key), module.text(value));
        }
        out
    }

    /// A graph must have a name to be valid.
    fn graph_name(&self, graph: GraphId) -> &str {
        match self.module.text(self.module.graph(graph).name) {
            "" => "graph",
            name => name,
        }
    }

    /// True if constants of a graph have to be listed as inputs.
    pub(super) fn lists_constants(&self, graph: GraphId) -> bool {
        graph == self.module.main() && self.ir_version() <= 3
    }

    /// The content of a function message for a function that came from no file.
    pub(super) fn new_function(&mut self, function: FunctionId) -> Layout {
        let module = self.module;
        let data = module.function(function);
        let graph = module.graph(data.graph);
        let mut out = Layout::new();
        out.bytes_field(1, module.text(data.name).as_bytes());
        for &value in graph.inputs() {
            out.bytes_field(4, self.name(Some(value)).as_bytes());
        }
        for output in graph.outputs() {
            out.bytes_field(5, self.name(Some(output.value)).as_bytes());
        }
        for &attr in &data.attrs {
            out.bytes_field(6, module.text(attr).as_bytes());
        }
        for node in self.constant_nodes(data.graph) {
            out.message_field(7, node);
        }
        for node in module.nodes(data.graph) {
            let node = self.new_node(node);
            out.message_field(7, node);
        }
        text_field(&mut out, 8, &data.doc_string);
        opset_fields(&mut out, 9, module, &data.opsets);
        // onnx.checker wants the field even for ONNX's own domain, whose name is empty.
        out.bytes_field(10, module.text(data.domain).as_bytes());
        for attr in &data.attr_defaults {
            let attr = self.new_attr(attr);
            out.message_field(11, attr);
        }
        text_field(&mut out, 13, module.text(data.overload));
        for &(key, value) in &data.metadata {
            entry_field(&mut out, 14, module.text(key), module.text(value));
        }
        out
    }

    /// Functions have no initializers: their constants become nodes.
    pub(super) fn constant_nodes(&mut self, graph: GraphId) -> Vec<Layout> {
        let module = self.module;
        let mut nodes = Vec::new();
        for &value in module.graph(graph).constants() {
            let mut attr = Layout::new();
            let (field, kind, name) = match module.constant(value) {
                Some(Payload::Dense(_)) => (5, 4, "value"),
                Some(Payload::Sparse(_)) => (22, 11, "sparse_value"),
                None => continue,
            };
            attr.bytes_field(1, name.as_bytes());
            let tensor = match module.constant(value) {
                Some(Payload::Dense(data)) => self.tensor(data, "", false),
                Some(Payload::Sparse(data)) => self.sparse(data, ""),
                None => continue,
            };
            if field == 5 {
                attr.message_field(field, tensor);
                attr.int_field(20, kind);
            } else {
                attr.int_field(20, kind);
                attr.message_field(field, tensor);
            }
            let mut node = Layout::new();
            node.bytes_field(2, self.name(Some(value)).as_bytes());
            node.bytes_field(4, b"Constant");
            node.message_field(5, attr);
            nodes.push(node);
        }
        nodes
    }

    /// A node message for a node that came from no file.
    pub(super) fn new_node(&mut self, node: Node) -> Layout {
        let module = self.module;
        let data = module.node(node);
        let (domain, op, _) = module.op_name(node);
        let overload = bodies::overload(module, node);
        let mut out = Layout::new();
        self.operand_fields(&mut out, node);
        self.result_fields(&mut out, node);
        text_field(&mut out, 3, data.name.map_or("", |n| module.text(n)));
        out.bytes_field(4, op.as_bytes());
        for attr in data.attrs() {
            let attr = self.new_attr(attr);
            out.message_field(5, attr);
        }
        text_field(&mut out, 7, domain);
        text_field(&mut out, 8, &overload);
        self.metadata_fields(&mut out, node);
        out
    }

    pub(super) fn operand_fields(&self, out: &mut Layout, node: Node) {
        for &operand in self.module.node(node).formal_operands() {
            out.bytes_field(1, self.name(operand).as_bytes());
        }
    }

    pub(super) fn result_fields(&self, out: &mut Layout, node: Node) {
        let results = self.module.node(node).results();
        let n = Form::of_node(self.module, node).map_or(results.len(), Form::n_results);
        // A call of a function of ai.ampc names all results, an absent one by no name.
        for j in 0..n {
            out.bytes_field(2, self.name(results.get(j).copied().flatten()).as_bytes());
        }
    }

    pub(super) fn metadata_fields(&self, out: &mut Layout, node: Node) {
        let data = self.module.node(node);
        // What the author says there is kept in any version.
        for &(key, value) in &data.metadata {
            entry_field(out, 9, self.module.text(key), self.module.text(value));
        }
        if data.provenance == Provenance::Inserted && self.ir_version() >= NODE_METADATA_SINCE {
            entry_field(out, 9, NODE_KEY, NODE_VALUE);
        }
    }

    /// An attribute message.
    pub(super) fn new_attr(&mut self, attr: &Attr) -> Layout {
        let module = self.module;
        let mut out = Layout::new();
        out.bytes_field(1, module.text(attr.name).as_bytes());
        let mut late = Layout::new();
        match &attr.value {
            AttrValue::Float(v) => out.float_field(2, *v),
            AttrValue::Int(v) => out.int_field(3, *v),
            AttrValue::String(v) => out.bytes_field(4, v),
            AttrValue::Tensor(data) => out.message_field(5, self.tensor(data, "", false)),
            AttrValue::Graph(body) => out.message_field(6, self.content(*body)),
            AttrValue::Floats(vs) => vs.iter().for_each(|v| out.float_field(7, *v)),
            AttrValue::Ints(vs) => vs.iter().for_each(|v| out.int_field(8, *v)),
            AttrValue::Strings(vs) => vs.iter().for_each(|v| out.bytes_field(9, v)),
            AttrValue::Tensors(all) => {
                for data in all {
                    out.message_field(10, self.tensor(data, "", false));
                }
            }
            AttrValue::Graphs(all) => {
                for &body in all {
                    out.message_field(11, self.content(body));
                }
            }
            AttrValue::Type(ty) => out.prost_field(14, &message_of(module, ty)),
            AttrValue::Types(all) => all.iter().for_each(|ty| out.prost_field(15, &message_of(module, ty))),
            AttrValue::Reference { name, .. } => text_field(&mut late, 21, module.text(*name)),
            AttrValue::SparseTensor(data) => late.message_field(22, self.sparse(data, "")),
            AttrValue::SparseTensors(all) => {
                for data in all {
                    late.message_field(23, self.sparse(data, ""));
                }
            }
        }
        out.int_field(20, i64::from(kind_number(attr.value.kind())));
        out.append(late);
        out
    }

    /// The initializer of a constant or of an input's default, if it is sparse or dense as requested.
    pub(super) fn new_initializer(&mut self, out: &mut Layout, value: Value, sparse: bool) {
        let module = self.module;
        let (Def::Constant(payload) | Def::Input { default: Some(payload), .. }) = &module.value(value).def
        else {
            return;
        };
        let name = self.name(Some(value));
        match payload {
            Payload::Dense(data) if !sparse => {
                let tensor = self.tensor(data, &name, self.goes_outside(value, data));
                out.message_field(5, tensor);
            }
            Payload::Sparse(data) if sparse => out.message_field(15, self.sparse(data, &name)),
            Payload::Dense(_) | Payload::Sparse(_) => {}
        }
    }

    /// True if the elements of an initializer go to the external file.
    pub(super) fn goes_outside(&self, value: Value, data: &TensorData) -> bool {
        if matches!(data.storage(), Storage::Strings(_)) || self.placement.location.is_none() {
            return false;
        }
        match self.placement.elements {
            Elements::Inline => false,
            Elements::External => plan::is_large(data),
            Elements::AsInSource => {
                plan::is_large(data) && self.source.is_some_and(|s| s.external_values.contains(&value))
            }
        }
    }

    /// The content of a tensor message.
    pub(super) fn tensor(&mut self, data: &Arc<TensorData>, name: &str, outside: bool) -> Layout {
        let mut out = Layout::new();
        dims_fields(&mut out, 1, data.dims());
        out.int_field(2, i64::from(data.dtype().number()));
        if let Storage::Strings(strings) = data.storage() {
            strings.iter().for_each(|s| out.bytes_field(6, s));
        }
        text_field(&mut out, 8, name);
        self.element_fields(&mut out, data, name, outside);
        out
    }

    /// The elements of a tensor that are numbers, in the message or outside.
    pub(super) fn element_fields(
        &mut self,
        out: &mut Layout,
        data: &Arc<TensorData>,
        name: &str,
        outside: bool,
    ) {
        if matches!(data.storage(), Storage::Strings(_)) {
            return;
        }
        match &self.placement.location {
            Some(location) if outside => {
                self.data.align(super::EXTERNAL_ALIGN);
                out.message_field(13, location_entry(location));
                entry_field(out, 13, "offset", &self.data.len().to_string());
                entry_field(out, 13, "length", &data.byte_len().to_string());
                out.int_field(14, 1);
                self.data.elements(data, name);
            }
            Some(_) | None => {
                out.header(9, data.byte_len());
                out.elements(data, name);
            }
        }
    }

    /// The content of a sparse tensor message.
    pub(super) fn sparse(&mut self, data: &SparseData, name: &str) -> Layout {
        let mut out = Layout::new();
        let values = self.tensor(&Arc::new(data.values.clone()), name, false);
        out.message_field(1, values);
        let indices = self.tensor(&Arc::new(data.indices.clone()), "", false);
        out.message_field(2, indices);
        dims_fields(&mut out, 3, &data.dims);
        out
    }

    pub(super) fn new_input(&self, out: &mut Layout, value: Value) {
        out.prost_field(11, &self.value_info(value, &self.module.value(value).ty));
    }

    pub(super) fn new_output(&self, out: &mut Layout, output: &Output) {
        out.prost_field(12, &self.value_info(output.value, self.output_type(output)));
    }

    /// The type to declare for an output: the declared one, unless the value is of another kind.
    pub(super) fn output_type<'b>(&'b self, output: &'b Output) -> &'b Type {
        let ty = &self.module.value(output.value).ty;
        if output.declared == Type::Unknown || !output.declared.same_kind(ty) { ty } else { &output.declared }
    }

    /// Metadata of an input or constant. Where constants are listed as inputs too, it stands in both places.
    fn metadata_of(&self, value: Value) -> Vec<StringStringEntryProto> {
        let text = |symbol| Some(self.module.text(symbol).to_owned());
        let entries = self.module.value(value).metadata.iter();
        entries.map(|&(key, value)| StringStringEntryProto { key: text(key), value: text(value) }).collect()
    }

    pub(super) fn value_info(&self, value: Value, ty: &Type) -> ValueInfoProto {
        ValueInfoProto {
            name: Some(self.name(Some(value))),
            r#type: (*ty != Type::Unknown).then(|| message_of(self.module, ty)),
            doc_string: None,
            metadata_props: self.metadata_of(value),
        }
    }
}

/// A text field, left out if empty.
pub(super) fn text_field(out: &mut Layout, number: u32, text: &str) {
    if !text.is_empty() {
        out.bytes_field(number, text.as_bytes());
    }
}

pub(super) fn entry_field(out: &mut Layout, number: u32, key: &str, value: &str) {
    let entry = StringStringEntryProto { key: Some(key.to_owned()), value: Some(value.to_owned()) };
    out.prost_field(number, &entry);
}

/// The entry of external data that names the data file.
fn location_entry(location: &Location) -> Layout {
    let (before, after) = (format!("{}.", location.model), ENDING);
    let mut entry = Layout::new();
    entry.bytes_field(1, b"location");
    entry.header(2, (before.len() + Digest::DIGITS + after.len()) as u64);
    entry.bytes(before.as_bytes());
    entry.digest(&location.digest);
    entry.bytes(after.as_bytes());
    entry
}

pub(super) fn opset_fields(out: &mut Layout, number: u32, module: &Module, opsets: &[(Symbol, u16)]) {
    for &(domain, version) in opsets {
        let domain = Some(module.text(domain).to_owned());
        out.prost_field(number, &OperatorSetIdProto { domain, version: Some(i64::from(version)) });
    }
}

pub(super) fn dims_fields(out: &mut Layout, number: u32, dims: &[u64]) {
    dims.iter().for_each(|&d| out.int_field(number, d.cast_signed()));
}
