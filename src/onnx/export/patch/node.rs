//! Nodes of the source with corrections.

use super::Seen;
use crate::onnx::export::encode::text_field;
use crate::onnx::export::{Exporter, bodies, plan};
use crate::onnx::layout::Layout;
use crate::onnx::scan::Located;
use crate::onnx::wire::{Field, Fields, WireError};
use ampc_ir::attr::{Attr, AttrValue};
use ampc_ir::bodies::Form;
use ampc_ir::module::Provenance;
use ampc_ir::{GraphId, Node, Symbol};
use rustc_hash::FxHashMap;

impl Exporter<'_> {
    /// All nodes of a graph, in program order.
    pub(super) fn nodes(&mut self, out: &mut Layout, number: u32, graph: GraphId) -> Result<(), WireError> {
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
    pub(super) fn node(&mut self, node: Node, at: Located) -> Result<Layout, WireError> {
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
                // The mark of an inserted cast may have been in the metadata of the model.
                9 if data.dirty.header || data.provenance == Provenance::Inserted => {
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
}
