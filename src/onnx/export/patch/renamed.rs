//! Names of values in the source, and now, where they differ.

use crate::onnx::export::Exporter;
use crate::onnx::export::encode::text_field;
use crate::onnx::layout::Layout;
use crate::onnx::scan::Located;
use crate::onnx::wire::{Field, Fields, WireError};
use ampc_ir::{GraphId, Node, Value};
use rustc_hash::FxHashMap;

impl Exporter<'_> {
    /// Names of the operands and results of a node in the source and now, where they differ. By position: what
    /// is read in place of an operand is its cast.
    pub(super) fn renamed_ports(
        &mut self,
        node: Node,
        at: Located,
    ) -> Result<FxHashMap<String, String>, WireError> {
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
    pub(super) fn renamed_values(&mut self, graph: GraphId) -> Result<FxHashMap<String, String>, WireError> {
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
    pub(super) fn renamed(
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
}
