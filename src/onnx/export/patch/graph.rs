//! Graphs of the source with corrections: inputs, constants and outputs.

use super::Seen;
use crate::onnx::export::encode::{dims_fields, text_field};
use crate::onnx::export::{Exporter, plan};
use crate::onnx::layout::Layout;
use crate::onnx::wire::{Field, Fields, WireError};
use ampc_ir::module::Def;
use ampc_ir::{GraphId, Payload, Symbol, TensorData, Type, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

impl Exporter<'_> {
    /// The content of a graph message.
    pub(in crate::onnx::export) fn graph(&mut self, graph: GraphId) -> Result<Layout, WireError> {
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
        self.new_metadata(&mut out, graph)?;
        Ok(out)
    }

    /// Entries of `value_info` for constants that have metadata and no entry in the source.
    fn new_metadata(&mut self, out: &mut Layout, graph: GraphId) -> Result<(), WireError> {
        let module = self.module;
        let Some(record) = self.source.and_then(|s| s.graphs.get(&graph)) else { return Ok(()) };
        let constants = module.graph(graph).constants().iter().copied();
        let mut fresh: Vec<Value> = constants.filter(|&v| !module.value(v).metadata.is_empty()).collect();
        if fresh.is_empty() {
            return Ok(());
        }
        let mut listed = FxHashSet::default();
        let mut fields = Fields::of(record.at.body);
        while let Some(field) = fields.next(self.reader())? {
            if field.number == 13 {
                listed.extend(self.field_name(&field, 1)?);
            }
        }
        fresh.retain(|&value| module.value(value).name.is_none_or(|name| !listed.contains(&name)));
        for value in fresh {
            out.prost_field(13, &self.value_info(value, &module.value(value).ty));
        }
        Ok(())
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

    /// The quantization annotations of a graph. `names` are the names of its values, filled on demand.
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
}
