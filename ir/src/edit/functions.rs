//! Copies of functions: a copy per call, and merging equal copies again.

use super::{NewNode, Position};
use crate::attr::AttrValue;
use crate::entity::{FunctionId, GraphId, Node, Symbol, Value};
use crate::module::{Callers, Def, FunctionData, GraphOwner, Module, NodeData, Op, Role};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

impl Module {
    /// Adds a copy of a function under another name. Nothing calls it yet; it comes from no message of the
    /// source.
    pub fn copy_function(&mut self, function: FunctionId, name: Symbol, overload: Symbol) -> FunctionId {
        let data = self.functions[function].clone();
        let graph = self.copy_graph(data.graph);
        self.add_function(FunctionData { name, overload, graph, origin: None, ..data })
    }

    /// Renames a function. Its calls follow.
    pub fn rename_function(&mut self, function: FunctionId, name: Symbol, overload: Symbol) {
        let data = &mut self.functions[function];
        if (data.name, data.overload) == (name, overload) {
            return;
        }
        self.forget_names();
        let data = &mut self.functions[function];
        (data.name, data.overload) = (name, overload);
        self.graphs[data.graph].dirty = true;
        for &call in self.calls.get(&function).map_or(&[][..], Callers::nodes) {
            self.nodes[call].dirty.callee = true;
        }
    }

    /// Makes a call call another function with the same formals. Its decisions are dropped.
    ///
    /// # Panics
    /// If the node is not a call.
    pub fn set_callee(&mut self, call: Node, function: FunctionId) {
        assert!(matches!(self.nodes[call].op, Op::Call(_)), "{call} is no call");
        self.forget_names();
        self.forget_call(call);
        self.calls.entry(function).or_default().nodes_mut().push(call);
        self.nodes[call].op = Op::Call(function);
        self.nodes[call].dirty.callee = true;
        self.nodes[call].decisions.clear();
    }

    /// Sets the metadata of a function under a key; `None` removes the entry.
    pub fn set_function_entry(&mut self, function: FunctionId, key: &str, value: Option<&str>) {
        self.forget_names();
        let key = self.intern(key);
        let value = value.map(|value| self.intern(value));
        let metadata = &mut self.functions[function].metadata;
        metadata.retain(|&(k, _)| k != key);
        metadata.extend(value.map(|value| (key, value)));
    }

    /// Erases a function that nothing calls. Calls in it call nothing any more.
    ///
    /// # Panics
    /// If something calls it.
    pub fn erase_function(&mut self, function: FunctionId) {
        assert!(self.calls(function).is_empty(), "{function} is still called");
        for node in self.erase_content(function) {
            self.forget_call(node);
        }
    }

    /// Erases a function. Its calls, and those in it, stay in the lists of calls, until the caller drops them. Returns the
    /// nodes of the function.
    pub(super) fn erase_content(&mut self, function: FunctionId) -> Vec<Node> {
        self.forget_program();
        let (mut work, mut gone) = (vec![self.functions[function].graph], Vec::new());
        while let Some(graph) = work.pop() {
            self.graphs[graph].owner = GraphOwner::Erased;
            for node in self.nodes(graph).collect::<Vec<_>>() {
                work.extend(self.nodes[node].bodies());
                self.nodes[node].alive = false;
                gone.push(node);
            }
        }
        gone
    }

    /// Brings the calls of every function into the order in which a text lists them: the main graph, then
    /// functions, each body right after the graph that it is in. Only the first call of a function has
    /// decisions; they move to the call that is first now.
    pub fn order_calls(&mut self) {
        self.forget_names();
        let mut ordered: BTreeMap<FunctionId, Vec<Node>> = BTreeMap::new();
        let mut work: Vec<GraphId> = self.functions().map(|(_, f)| f.graph).collect();
        work.reverse();
        work.push(self.main);
        while let Some(graph) = work.pop() {
            let mut bodies = Vec::new();
            for node in self.nodes(graph) {
                bodies.extend(self.nodes[node].bodies());
                if let Op::Call(function) = self.nodes[node].op {
                    ordered.entry(function).or_default().push(node);
                }
            }
            work.extend(bodies.into_iter().rev());
        }
        for (function, calls) in ordered {
            let Some(&then) = self.calls(function).first() else { continue };
            let first = calls[0];
            if then != first {
                self.nodes[first].decisions = std::mem::take(&mut self.nodes[then].decisions);
            }
            self.calls.insert(function, Callers::new(calls));
        }
    }

    /// Unowned deep copy of a graph, bodies included.
    fn copy_graph(&mut self, source: GraphId) -> GraphId {
        let root = self.new_graph(self.graphs[source].name);
        self.copy_bodies(vec![(source, root)], &mut FxHashMap::default());
        root
    }

    /// Copies the content of graphs into empty graphs, bodies of nodes included; the last pair of the list
    /// comes first.
    pub(super) fn copy_bodies(
        &mut self,
        mut work: Vec<(GraphId, GraphId)>,
        copies: &mut FxHashMap<Value, Value>,
    ) {
        while let Some((source, graph)) = work.pop() {
            for value in self.graph(source).captures().to_vec() {
                let Def::Capture { slot } = self.values[value].def else {
                    unreachable!("captures are captures")
                };
                let copy = self.add_capture(graph, slot as usize);
                self.copy_value(value, copy, copies);
            }
            let sources = [self.graphs[source].inputs.clone(), self.graphs[source].constants.clone()];
            for value in sources.into_iter().flatten() {
                let copy = self.copy_source(value, graph);
                self.copy_value(value, copy, copies);
            }
            for node in self.nodes(source).collect::<Vec<_>>() {
                let bodies = self.copy_node(node, graph, copies);
                // Inside, only captures say what is around, and the node has their operands already.
                work.extend(bodies);
            }
            self.copy_shell(source, graph, copies);
        }
    }

    pub(super) fn copy_source(&mut self, value: Value, graph: GraphId) -> Value {
        let data = self.values[value].clone();
        let name = data.name.expect("inputs and constants have names");
        match data.def {
            Def::Input { default, .. } => self.add_input(graph, name, data.ty, default),
            Def::Constant(payload) => self.add_constant(graph, name, payload),
            Def::Result { .. } | Def::Capture { .. } | Def::Erased => unreachable!("not a source"),
        }
    }

    pub(super) fn copy_value(&mut self, value: Value, copy: Value, copies: &mut FxHashMap<Value, Value>) {
        self.values[copy].ty = self.values[value].ty.clone();
        copies.insert(value, copy);
    }

    /// Copies a node to the end of a graph, with bodies that are still empty: pairs of bodies, the last first.
    pub(super) fn copy_node(
        &mut self,
        node: Node,
        graph: GraphId,
        copies: &mut FxHashMap<Value, Value>,
    ) -> Vec<(GraphId, GraphId)> {
        let NodeData {
            op, name, operands, n_formal, results, attrs, decisions, provenance, metadata, ..
        } = self.nodes[node].clone();
        let mut bodies = Vec::new();
        let attrs = attrs.into_iter().map(|attr| {
            let mut body = |graph: GraphId| {
                let copy = self.new_graph(self.graphs[graph].name);
                bodies.push((graph, copy));
                copy
            };
            let value = match attr.value {
                AttrValue::Graph(graph) => AttrValue::Graph(body(graph)),
                AttrValue::Graphs(graphs) => AttrValue::Graphs(graphs.into_iter().map(body).collect()),
                value => value,
            };
            (attr.name, value)
        });
        let attrs = attrs.collect();
        // A formal input that a call leaves out has no copy.
        let operand = |value: Option<Value>| value.and_then(|value| copies.get(&value).copied());
        let (formal, captured) = operands.split_at(n_formal as usize);
        let captured: Vec<Option<Value>> = captured.iter().copied().map(operand).collect();
        let operands = formal.iter().copied().map(operand).collect();
        let typed = |value: Value| {
            let data = &self.values[value];
            (data.name.expect("results have names"), data.ty.clone())
        };
        let new = results.iter().map(|value| value.map(typed)).collect();
        let copy = self.add_node(
            graph,
            Position::Last,
            NewNode { op, name, operands, attrs, results: new, provenance },
        );
        captured.into_iter().for_each(|value| self.add_capture_operand(copy, value));
        self.nodes[copy].decisions = decisions;
        self.nodes[copy].metadata = metadata;
        let made = self.nodes[copy].results.clone();
        copies.extend(results.into_iter().flatten().zip(made.into_iter().flatten()));
        bodies.reverse();
        bodies
    }

    /// Outputs, roles and states.
    fn copy_shell(&mut self, source: GraphId, graph: GraphId, copies: &FxHashMap<Value, Value>) {
        for output in self.graphs[source].outputs.clone() {
            self.add_output(graph, copies[&output.value], output.declared);
        }
        let of = |value: &Value| copies[value];
        let roles = self.graphs[source].roles.iter();
        let roles = roles.map(|r| Role { name: r.name, values: r.values.iter().map(of).collect() }).collect();
        let states = self.graphs[source].states.iter().map(|(a, b)| (of(a), of(b))).collect();
        let data = &mut self.graphs[graph];
        data.naming.take();
        (data.roles, data.states) = (roles, states);
    }
}

#[cfg(test)]
mod tests {
    use crate::entity::{EntityRef, FunctionId};
    use crate::text::{NoData, parse};
    use crate::verify::verify_module;

    const NESTED: &str = "module ir=10
opset ai.onnx=21
opset my=1

graph @main {
  input %x : f32[2]
  input %b : bool
  %y = my::F(%x, %b) : f32[2]
  %z = my::F(%y, %b) : f32[2]
  output %z : f32[2]
}

function my::F {
  opset ai.onnx=21
  input %a : f32[2]
  input %c : bool
  %k = Constant() {value=tensor(f32[2] = [1.0, 2.0])} : f32[2]
  %r = If(%c; %a, %k) {
    then_branch: graph @then (%a, %k) {
      %t = Add(%a, %k) : f32[2] @sum
      output %t : f32[2]
    },
    else_branch: graph @else (%a) {
      %t = Neg(%a) : f32[2]
      output %t : f32[2]
    }
  } : f32[2] @choice
  output %r : f32[2]
}
";

    /// A copy prints as its source but for the name, and leaves nothing behind when it is erased.
    #[test]
    fn a_copy_is_its_source_under_another_name() {
        let mut module = parse(NESTED, &NoData).unwrap_or_else(|errors| panic!("{errors}"));
        let before = module.to_text().unwrap();
        let (name, overload) = (module.intern("G"), module.intern(""));
        let copy = module.copy_function(FunctionId::new(0), name, overload);
        verify_module(&module).unwrap();
        let text = module.to_text().unwrap();
        let function = |name: &str| {
            let at = text.find(&format!("function my::{name} ")).unwrap();
            text[at..].split("\n}\n").next().unwrap().replacen(name, "_", 1)
        };
        assert_eq!(function("F"), function("G"));
        parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}"));
        module.erase_function(copy);
        assert_eq!(module.to_text().unwrap(), before);
        assert_eq!(module.graph_ids().count(), 4);
    }

    #[test]
    fn calls_are_ordered_as_in_a_text() {
        let mut module = parse(NESTED, &NoData).unwrap_or_else(|errors| panic!("{errors}"));
        let function = FunctionId::new(0);
        let before = module.calls(function).to_vec();
        module.calls.get_mut(&function).unwrap().nodes_mut().reverse();
        assert_ne!(module.calls(function), before);
        module.order_calls();
        assert_eq!(module.calls(function), before);
    }
}
