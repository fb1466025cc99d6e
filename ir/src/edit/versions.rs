//! Versions of operators, and the opset imports that select them.

use crate::entity::{GraphId, Node};
use crate::module::{GraphOwner, Module, Op};
use crate::op::OpSchema;

impl Module {
    /// Sets the version of a node's operator. The version is not in a node's message, so the node does not
    /// become dirty; the import that selects it is changed by [`set_opset`](Self::set_opset).
    ///
    /// # Panics
    /// If the node is of another operator.
    pub fn set_version(&mut self, node: Node, schema: &'static OpSchema) {
        let data = &mut self.nodes[node];
        assert_eq!(data.schema().map(|s| s.kind), Some(schema.kind), "{node} is of another operator");
        data.op = Op::Schema(schema);
        data.decisions.clear();
    }

    /// Binds a node of an unknown operator, or of an operator with another signature, to the operator of a
    /// signature. Its message stays unchanged.
    ///
    /// # Panics
    /// If the node has another operator, or the schema belongs to no operator of the table.
    pub fn declare(&mut self, node: Node, schema: &'static OpSchema) {
        assert_eq!(self.op_name(node), (schema.domain, schema.name, ""), "{node} is of another operator");
        assert!(!matches!(self.nodes[node].op, Op::Call(_)), "{node} is a call");
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
}

impl Module {
    /// Imports a domain no more where a graph takes its imports from. The caller sees to it that no node there is of it.
    pub fn forget_import(&mut self, graph: GraphId, domain: &str) {
        let Some(domain) = self.symbol(domain) else { return };
        let root = self.root(graph);
        match self.graphs[root].owner {
            GraphOwner::Function(function) => {
                self.graphs[root].dirty = true;
                self.functions[function].opsets.retain(|&(imported, _)| imported != domain);
            }
            GraphOwner::Main | GraphOwner::Body { .. } | GraphOwner::Erased => {
                self.header.opsets.retain(|&(imported, _)| imported != domain);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Lookup, lookup};
    use crate::text::{NoData, parse};

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
        let text = module.to_text().unwrap();
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
