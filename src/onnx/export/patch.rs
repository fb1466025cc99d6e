//! Messages of the source with corrections: what changed is replaced where it stands, everything else is copied.

use super::encode::{dims_fields, entry_field, opset_fields, text_field};
use super::{Exporter, bodies, plan};
use crate::onnx::layout::Layout;
use crate::onnx::provenance::same_entries;
use crate::onnx::scan::Located;
use crate::onnx::wire::{Field, Fields, WireError};
use ampc_ir::attr::{Attr, AttrValue};
use ampc_ir::bodies::Form;
use ampc_ir::module::{Def, GraphOwner, Header};
use ampc_ir::{FunctionId, GraphId, Node, Payload, Symbol, TensorData, Type, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

impl Exporter<'_> {
    /// Whether the model is the source, byte for byte.
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

    /// The content of a graph message.
    pub(super) fn graph(&mut self, graph: GraphId) -> Result<Layout, WireError> {
        let Some(record) = self.source.and_then(|s| s.graphs.get(&graph)) else {
            return Ok(self.new_graph(graph));
        };
        let module = self.module;
        let data = module.graph(graph);
        let mut initializers = self.by_initializer(graph);
        let mut inputs = self.by_input(graph);
        let declared: FxHashMap<Value, &Type> = record.inputs.iter().map(|(v, ty)| (*v, ty)).collect();
        let listed_constants = self.listed_constants(graph);
        let mut names = None;
        let mut n_outputs = 0;
        let mut types = None;
        let mut seen = Seen::default();
        let mut out = Layout::new();
        let mut fields = Fields::of(record.at.body);
        while let Some(field) = fields.next(self.reader())? {
            let first = seen.first(field.number);
            match field.number {
                1 => {
                    if first {
                        self.nodes(&mut out, 1, graph)?;
                    }
                }
                2 => self.text(&mut out, &field, module.text(data.name))?,
                5 | 15 => {
                    if let Some(value) = initializers.remove(&field.start) {
                        self.initializer(&mut out, &field, value)?;
                    }
                }
                11 => {
                    let value = match inputs.remove(&field.start) {
                        Some(value) => Some(value),
                        None => self.field_name(&field, 1)?.and_then(|n| listed_constants.get(&n).copied()),
                    };
                    if let Some(value) = value {
                        let ty = &module.value(value).ty;
                        let declared = declared.get(&value).copied();
                        self.value_message(&mut out, &field, value, ty, declared)?;
                    }
                }
                12 => {
                    self.output(&mut out, &field, graph, n_outputs)?;
                    n_outputs += 1;
                }
                13 => self.declared_type(&mut out, &field, graph, &mut types)?,
                14 => self.quantization(&mut out, &field, graph, &mut names)?,
                _ => self.copy(&mut out, &field),
            }
        }
        if !seen.has(1) {
            self.nodes(&mut out, 1, graph)?;
        }
        if !seen.has(2) {
            text_field(&mut out, 2, module.text(data.name));
        }
        self.new_values(&mut out, graph, n_outputs);
        Ok(out)
    }

    /// Output number `n` of a graph; nothing if the graph has it no more.
    fn output(&mut self, out: &mut Layout, field: &Field, graph: GraphId, n: usize) -> Result<(), WireError> {
        let then = self.source.and_then(|s| s.graphs.get(&graph)?.outputs.get(n));
        if let (Some(output), Some(then)) = (self.module.graph(graph).outputs().get(n), then) {
            let ty = self.output_type(output).clone();
            self.value_message(out, field, output.value, &ty, Some(&then.declared))?;
        }
        Ok(())
    }

    /// What a graph says about how a tensor was quantized. `names` are those of its values, once they are asked for.
    fn quantization(
        &mut self,
        out: &mut Layout,
        field: &Field,
        graph: GraphId,
        names: &mut Option<FxHashMap<String, String>>,
    ) -> Result<(), WireError> {
        let names = match names {
            Some(names) => names,
            None => names.insert(self.renamed_values(graph)?),
        };
        // The tensor, and the values of the entries that name its parameters.
        self.renamed(out, field, Some(1), Some((2, 2)), names)
    }

    /// Constants, inputs and outputs of a graph that the source does not have, which has the first `n_outputs` outputs.
    fn new_values(&mut self, out: &mut Layout, graph: GraphId, n_outputs: usize) {
        let module = self.module;
        let data = module.graph(graph);
        let mut fresh: Vec<Value> = data.constants().iter().chain(data.inputs()).copied().collect();
        fresh.retain(|v| module.value(*v).origin.is_none());
        fresh.iter().for_each(|&v| self.new_initializer(out, v, false));
        for &value in fresh.iter().filter(|v| module.constant(**v).is_none()) {
            self.new_input(out, value);
        }
        if self.lists_constants(graph) {
            for &value in fresh.iter().filter(|v| module.constant(**v).is_some()) {
                self.new_input(out, value);
            }
        }
        for output in data.outputs().iter().skip(n_outputs) {
            self.new_output(out, output);
        }
        fresh.iter().for_each(|&v| self.new_initializer(out, v, true));
    }

    /// The values of a graph that have an initializer in the source, by where its message starts.
    fn by_initializer(&self, graph: GraphId) -> FxHashMap<u64, Value> {
        let data = self.module.graph(graph);
        let source = self.source.expect("patching needs a source");
        let constants =
            data.constants().iter().filter_map(|&v| Some((source.message(self.module.value(v).origin)?, v)));
        let defaults = data.inputs().iter().filter_map(|v| Some((*source.initializers.get(v)?, *v)));
        constants.chain(defaults).map(|(at, v)| (at.start, v)).collect()
    }

    fn by_input(&self, graph: GraphId) -> FxHashMap<u64, Value> {
        let data = self.module.graph(graph);
        let source = self.source.expect("patching needs a source");
        let inputs =
            data.inputs().iter().filter_map(|&v| Some((source.message(self.module.value(v).origin)?, v)));
        inputs.map(|(at, v)| (at.start, v)).collect()
    }

    /// The constants that are listed as inputs, by name; none where they are not to be listed.
    fn listed_constants(&self, graph: GraphId) -> FxHashMap<Symbol, Value> {
        if !self.lists_constants(graph) {
            return FxHashMap::default();
        }
        let module = self.module;
        let constants = module.graph(graph).constants();
        constants.iter().filter_map(|&v| Some((module.value(v).name?, v))).collect()
    }

    /// Names in the source, and now, of what a node reads and makes, where they differ. By position: what is read in
    /// place of an operand is its cast.
    fn renamed_ports(&mut self, node: Node, at: Located) -> Result<FxHashMap<String, String>, WireError> {
        let data = self.module.node(node);
        let (mut operands, mut results) = (data.formal_operands().iter(), data.results().iter());
        let mut names = FxHashMap::default();
        let mut fields = Fields::of(at.body);
        while let Some(field) = fields.next(self.reader())? {
            let now = match field.number {
                1 => operands.next(),
                2 => results.next(),
                _ => None,
            };
            if let Some(now) = now {
                self.note_renamed(&mut names, &field, *now)?;
            }
        }
        Ok(names)
    }

    /// Names in the source, and now, of the values of a graph, where they differ.
    fn renamed_values(&mut self, graph: GraphId) -> Result<FxHashMap<String, String>, WireError> {
        let module = self.module;
        let source = self.source.expect("patching needs a source");
        let data = module.graph(graph);
        let mut names = FxHashMap::default();
        for (values, number) in [(data.inputs(), 1), (data.constants(), 8)] {
            for &value in values {
                let Some(at) = source.message(module.value(value).origin) else { continue };
                let mut fields = Fields::of(at.body);
                while let Some(field) = fields.next(self.reader())? {
                    if field.number == number {
                        self.note_renamed(&mut names, &field, Some(value))?;
                    }
                }
            }
        }
        for node in module.nodes(graph) {
            let Some(at) = source.message(module.node(node).origin) else { continue };
            let mut results = module.node(node).results().iter();
            let mut fields = Fields::of(at.body);
            while let Some(field) = fields.next(self.reader())? {
                if field.number == 2
                    && let Some(&result) = results.next()
                {
                    self.note_renamed(&mut names, &field, result)?;
                }
            }
        }
        Ok(names)
    }

    fn note_renamed(
        &mut self,
        names: &mut FxHashMap<String, String>,
        field: &Field,
        value: Option<Value>,
    ) -> Result<(), WireError> {
        let now = self.name(value);
        let then = self.reader().text(field.bytes("name")?, "name")?;
        if then != now && !then.is_empty() && !now.is_empty() {
            // What a node reads twice is one tensor: the first name stands for it.
            names.entry(then.to_owned()).or_insert(now);
        }
        Ok(())
    }

    /// A message whose text field `text`, and the text field of whose messages `inner` (number of the message, number
    /// of the text in it), are names of values.
    fn renamed(
        &mut self,
        out: &mut Layout,
        field: &Field,
        text: Option<u32>,
        inner: Option<(u32, u32)>,
        names: &FxHashMap<String, String>,
    ) -> Result<(), WireError> {
        if names.is_empty() {
            self.copy(out, field);
            return Ok(());
        }
        let mut message = Layout::new();
        let mut fields = Fields::of(field.bytes("message")?);
        while let Some(found) = fields.next(self.reader())? {
            match inner {
                Some((number, name)) if number == found.number => {
                    self.renamed(&mut message, &found, Some(name), None, names)?;
                }
                _ if Some(found.number) == text => {
                    let then = self.reader().text(found.bytes("name")?, "name")?;
                    match names.get(then) {
                        Some(now) => text_field(&mut message, found.number, now),
                        None => self.copy(&mut message, &found),
                    }
                }
                _ => self.copy(&mut message, &found),
            }
        }
        out.message_field(field.number, message);
        Ok(())
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

    /// All nodes of a graph, in program order.
    fn nodes(&mut self, out: &mut Layout, number: u32, graph: GraphId) -> Result<(), WireError> {
        let module = self.module;
        for node in module.nodes(graph) {
            let at = self.source.and_then(|s| s.message(module.node(node).origin));
            match at {
                Some(at) if self.clean.node(module, node) => self.copy_message(out, at),
                Some(at) => {
                    let node = self.node(node, at)?;
                    out.message_field(number, node);
                }
                None => {
                    let node = self.new_node(node);
                    out.message_field(number, node);
                }
            }
        }
        Ok(())
    }

    /// The domain of a node: copied if it is the same in either of its spellings.
    fn domain(&mut self, out: &mut Layout, field: &Field, domain: &str) -> Result<(), WireError> {
        let spelled = self.reader().text(field.bytes("domain")?, "domain")?;
        if spelled == domain || (spelled == "ai.onnx" && domain.is_empty()) {
            self.copy(out, field);
        } else {
            text_field(out, field.number, domain);
        }
        Ok(())
    }

    /// The content of a node message.
    fn node(&mut self, node: Node, at: Located) -> Result<Layout, WireError> {
        let module = self.module;
        let data = module.node(node);
        let (domain, op, _) = module.op_name(node);
        let overload = bodies::overload(module, node);
        let name = data.name.map_or("", |n| module.text(n));
        let mut attrs: Vec<Option<&Attr>> = data.attrs().iter().map(Some).collect();
        let index: FxHashMap<Symbol, usize> = data.attrs().iter().map(|a| a.name).zip(0..).collect();
        // The overload of an operator of ai.ampc says which operands and attributes there are.
        let form = Form::of_node(module, node);
        let other_op = data.dirty.header || data.dirty.callee || form.is_some();
        // A call names all results of the function.
        let results_differ = form.is_some_and(|form| form.n_results() != data.results().len());
        let new_results = data.dirty.results || results_differ;
        let mut seen = Seen::default();
        let mut out = Layout::new();
        let mut fields = Fields::of(at.body);
        while let Some(field) = fields.next(self.reader())? {
            let first = seen.first(field.number);
            match field.number {
                1 if data.dirty.operands => {
                    if first {
                        self.operand_fields(&mut out, node);
                    }
                }
                2 if new_results => {
                    if first {
                        self.result_fields(&mut out, node);
                    }
                }
                3 if data.dirty.header => self.text(&mut out, &field, name)?,
                4 if other_op => self.text(&mut out, &field, op)?,
                5 => {
                    let attr_name = self.field_name(&field, 1)?;
                    let at = attr_name.and_then(|name| index.get(&name));
                    if let Some(attr) = at.and_then(|&i| attrs[i].take()) {
                        self.attr(&mut out, &field, node, attr)?;
                    }
                }
                7 if other_op => self.domain(&mut out, &field, domain)?,
                8 if other_op => self.text(&mut out, &field, &overload)?,
                9 if data.dirty.header => {
                    if first {
                        self.metadata_fields(&mut out, node);
                    }
                }
                10 if data.dirty.operands || new_results => {
                    let names = self.renamed_ports(node, at)?;
                    // The tensors of its sharding specifications.
                    self.renamed(&mut out, &field, None, Some((2, 1)), &names)?;
                }
                _ => self.copy(&mut out, &field),
            }
        }
        let texts = [(3, name), (4, op), (7, domain), (8, &*overload)];
        self.new_node_fields(&mut out, node, &seen, texts, attrs.into_iter().flatten());
        Ok(out)
    }

    /// Fields of a node that the source does not have.
    fn new_node_fields<'a>(
        &mut self,
        out: &mut Layout,
        node: Node,
        seen: &Seen,
        texts: [(u32, &str); 4],
        attrs: impl Iterator<Item = &'a Attr>,
    ) {
        if !seen.has(1) {
            self.operand_fields(out, node);
        }
        if !seen.has(2) {
            self.result_fields(out, node);
        }
        for (number, text) in texts {
            if !seen.has(number) {
                text_field(out, number, text);
            }
        }
        for attr in attrs {
            let attr = self.new_attr(attr);
            out.message_field(5, attr);
        }
        if !seen.has(9) {
            self.metadata_fields(out, node);
        }
    }

    /// An attribute of a node: copied, encoded afresh, or copied around its changed bodies.
    fn attr(&mut self, out: &mut Layout, field: &Field, node: Node, attr: &Attr) -> Result<(), WireError> {
        let bodies = attr.value.graphs();
        let holds_tensor = matches!(
            attr.value,
            AttrValue::Tensor(_)
                | AttrValue::Tensors(_)
                | AttrValue::SparseTensor(_)
                | AttrValue::SparseTensors(_)
        );
        if attr.dirty || (holds_tensor && plan::moves_attribute(self, node)) {
            let attr = self.new_attr(attr);
            out.message_field(5, attr);
        } else if bodies.iter().all(|b| self.clean.graphs.contains(b)) {
            self.copy(out, field);
        } else {
            let mut message = Layout::new();
            let mut bodies = bodies.iter();
            let mut fields = Fields::of(field.bytes("attribute")?);
            while let Some(inner) = fields.next(self.reader())? {
                match (inner.number, bodies.as_slice()) {
                    (6 | 11, [_, ..]) => {
                        let body = bodies.next().expect("the list is not empty");
                        self.message(&mut message, &inner, *body);
                    }
                    _ => self.copy(&mut message, &inner),
                }
            }
            out.message_field(5, message);
        }
        Ok(())
    }

    /// An initializer that is in the source: copied, or corrected.
    fn initializer(&mut self, out: &mut Layout, field: &Field, value: Value) -> Result<(), WireError> {
        let module = self.module;
        if plan::keeps_message(self, value) {
            self.copy(out, field);
            return Ok(());
        }
        let (Def::Constant(payload) | Def::Input { default: Some(payload), .. }) = &module.value(value).def
        else {
            return Ok(());
        };
        match payload {
            Payload::Dense(data) if field.number == 5 => {
                let tensor = self.patched_tensor(field, value, data)?;
                out.message_field(5, tensor);
            }
            Payload::Dense(_) => self.new_initializer(out, value, false),
            Payload::Sparse(_) => self.new_initializer(out, value, true),
        }
        Ok(())
    }

    fn patched_tensor(
        &mut self,
        field: &Field,
        value: Value,
        data: &Arc<TensorData>,
    ) -> Result<Layout, WireError> {
        let name = self.name(Some(value));
        let outside = self.goes_outside(value, data);
        let mut seen = Seen::default();
        let mut out = Layout::new();
        dims_fields(&mut out, 1, data.dims());
        let mut fields = Fields::of(field.bytes("initializer")?);
        while let Some(inner) = fields.next(self.reader())? {
            let first = seen.first(inner.number);
            match inner.number {
                1 | 3 | 4 | 5 | 7 | 9 | 10 | 11 | 13 | 14 => {}
                2 if first => out.int_field(2, i64::from(data.dtype().number())),
                2 => {}
                6 if data.dtype() == ampc_ir::DType::String => self.copy(&mut out, &inner),
                6 => {}
                8 => self.text(&mut out, &inner, &name)?,
                _ => self.copy(&mut out, &inner),
            }
        }
        self.element_fields(&mut out, data, &name, outside);
        Ok(out)
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

    /// All nodes of a function, those that make its constants first.
    fn function_nodes(&mut self, out: &mut Layout, graph: GraphId) -> Result<(), WireError> {
        self.constant_nodes(graph).into_iter().for_each(|node| out.message_field(7, node));
        self.nodes(out, 7, graph)
    }

    /// Whether a graph is the body of a function or inside one: its types are those of the last call looked at.
    pub(super) fn is_in_function(&self, graph: GraphId) -> bool {
        matches!(self.module.graph(self.module.root(graph)).owner, GraphOwner::Function(_))
    }
}

fn metadata_fields(out: &mut Layout, metadata: &[(String, String)]) {
    metadata.iter().for_each(|(key, value)| entry_field(out, 14, key, value));
}

/// Which fields of a message have been met.
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
