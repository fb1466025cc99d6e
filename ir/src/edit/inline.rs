//! Inlining: replacing a node by its body.

use super::{NewNode, Position};
use crate::entity::{GraphId, Node, Symbol, Value};
use crate::module::{Def, GraphOwner, Module, Op, Provenance};
use crate::op::{Lookup, lookup};
use rustc_hash::{FxHashMap, FxHashSet};

impl Module {
    /// Replaces a node by the nodes of one of its bodies, which has no formal inputs and as many outputs as the node has
    /// results: an If by the branch that is taken. Values that leave the body take the names of the results, by an Identity
    /// where they have to keep their own; other values of the body keep their names where the graph around it has none of
    /// that name. Returns the node that stands where the node stood: the first of the body, or the one behind it.
    ///
    /// # Panics
    /// If `body` is not a body of the node, has formal inputs, or has another number of outputs.
    pub fn inline_body(&mut self, node: Node, body: GraphId) -> Option<Node> {
        let is_own = matches!(self.graphs[body].owner, GraphOwner::Body { node: owner, .. } if owner == node);
        assert!(is_own, "{body} is no body of {node}");
        assert!(self.graphs[body].inputs.is_empty(), "{body} has formal inputs");
        assert_eq!(self.graphs[body].outputs.len(), self.nodes[node].results.len(), "outputs of {body}");
        let graph = self.nodes[node].graph;
        let before = self.nodes[node].prev;
        let (outputs, moved, has_bodies) = self.copy_in(node, body, FxHashMap::default());
        // Bodies may define values of the names that results have.
        self.hand_over(node, &outputs, &moved.into_iter().collect(), !has_bodies);
        match before {
            Some(before) => self.nodes[before].next,
            None => self.graphs[graph].first,
        }
    }

    /// Copies the nodes of a body of a node in front of that node: an iteration of a Loop. `inputs` are the values that stand
    /// for the formal inputs of the body. Values of the copies keep their names where the graph has no values of these names;
    /// the copied nodes have no names. Returns the values of the outputs of the body, and the copied nodes, in order.
    ///
    /// # Panics
    /// If `body` is not a body of the node, or has another number of formal inputs.
    pub fn copy_body(&mut self, node: Node, body: GraphId, inputs: &[Value]) -> (Vec<Value>, Vec<Node>) {
        let is_own = matches!(self.graphs[body].owner, GraphOwner::Body { node: owner, .. } if owner == node);
        assert!(is_own, "{body} is no body of {node}");
        assert_eq!(self.graphs[body].inputs.len(), inputs.len(), "inputs of {body}");
        let copies = self.graphs[body].inputs.iter().copied().zip(inputs.iter().copied()).collect();
        let (outputs, copied, _) = self.copy_in(node, body, copies);
        for &copy in &copied {
            self.nodes[copy].name = None;
        }
        self.forget_names();
        (outputs, copied)
    }

    /// Copies the constants and nodes of a body in front of its node; `copies` has the values for its formal inputs. Returns
    /// the values of its outputs, the copied nodes, and true if they have bodies.
    fn copy_in(
        &mut self,
        node: Node,
        body: GraphId,
        mut copies: FxHashMap<Value, Value>,
    ) -> (Vec<Value>, Vec<Node>, bool) {
        let graph = self.nodes[node].graph;
        let mut taken = self.names_in(graph);
        for capture in self.graphs[body].captures().to_vec() {
            let Def::Capture { slot } = self.values[capture].def else { continue };
            let outer = self.nodes[node].operands[slot as usize];
            copies.extend(outer.map(|outer| (capture, outer)));
        }
        for constant in self.graphs[body].constants().to_vec() {
            let copy = self.copy_source(constant, graph);
            self.copy_value(constant, copy, &mut copies);
            self.rename_if_taken(copy, &mut taken);
        }
        let (mut work, mut moved) = (Vec::new(), Vec::new());
        for inner in self.nodes(body).collect::<Vec<_>>() {
            work.extend(self.copy_node(inner, graph, &mut copies));
            let copy = self.graphs[graph].last.expect("it was added at the end");
            self.move_node(copy, Position::Before(node));
            moved.push(copy);
            for result in self.nodes[copy].results.clone().into_iter().flatten() {
                self.rename_if_taken(result, &mut taken);
            }
        }
        let has_bodies = !work.is_empty();
        self.copy_bodies(work, &mut copies);
        let outputs = self.graphs[body].outputs.iter().map(|output| copies[&output.value]).collect();
        (outputs, moved, has_bodies)
    }

    /// Replaces the results of a node by values, which take the names of the results, and erases the node.
    fn hand_over(&mut self, node: Node, outputs: &[Value], moved: &FxHashSet<Node>, may_rename: bool) {
        let graph = self.nodes[node].graph;
        let mut renamed: Vec<(Value, Symbol)> = Vec::new();
        for (result, &output) in self.nodes[node].results.clone().into_iter().zip(outputs) {
            let Some(result) = result else { continue };
            let name = self.values[result].name.expect("results have names");
            let is_moved = self.producer(output).is_some_and(|(maker, _)| moved.contains(&maker));
            let is_first = renamed.iter().all(|&(other, _)| other != output);
            if may_rename && is_moved && is_first && !self.is_output(output) {
                self.replace_value(result, output);
                renamed.push((output, name));
                continue;
            }
            let Lookup::Found(schema) = lookup("", "Identity", self.opset(graph, "").unwrap_or(1)) else {
                unreachable!("Identity is in every opset")
            };
            let copy = NewNode {
                op: Op::Schema(schema),
                name: None,
                operands: smallvec::smallvec![Some(output)],
                attrs: Vec::new(),
                results: vec![Some((name, self.values[output].ty.clone()))],
                provenance: Provenance::User,
            };
            let copy = self.add_node(graph, Position::Before(node), copy);
            let copied = self.nodes[copy].results[0].expect("it has one");
            self.replace_value(result, copied);
        }
        self.erase_node(node);
        for (value, name) in renamed {
            self.set_value_name(value, name);
        }
        self.forget_names();
    }

    /// The names of the values of a graph.
    fn names_in(&self, graph: GraphId) -> FxHashSet<Symbol> {
        let captures = self.graphs[graph].captures().iter().copied();
        self.defined(graph).chain(captures).filter_map(|value| self.value_name(value)).collect()
    }

    fn rename_if_taken(&mut self, value: Value, taken: &mut FxHashSet<Symbol>) {
        let Some(name) = self.values[value].name else { return };
        if taken.insert(name) {
            return;
        }
        let base = self.text(name).to_owned();
        let fresh = self.fresh_name(&base);
        taken.insert(fresh);
        self.set_value_name(value, fresh);
    }
}

#[cfg(test)]
mod tests {
    use crate::infer::infer_module;
    use crate::text::{NoData, parse};
    use crate::verify::verify_module;

    const TEXT: &str = "module ir=10
opset ai.onnx=21

graph @main {
  input %c : bool
  input %x : f32[2]
  const %k : f32[2] = [1.0, 2.0]
  %r, %s = If(%c; %x, %k) {
    then_branch: graph @then (%x, %k) {
      const %m : f32[2] = [3.0, 4.0]
      %t = Add(%x, %m) : f32[2] @sum
      %u = If(%in; %t) {
        then_branch: graph @a (%t) {
          %v = Neg(%t) : f32[2]
          output %v : f32[2]
        },
        else_branch: graph @b (%t) {
          %v = Abs(%t) : f32[2]
          output %v : f32[2]
        }
      } : f32[2]
      output %u : f32[2]
      output %x : f32[2]
    },
    else_branch: graph @else (%k) {
      %t = Neg(%k) : f32[2]
      output %t : f32[2]
      output %t : f32[2]
    }
  } : f32[2], f32[2] @choice
  %t = Relu(%r) : f32[2]
  output %t : f32[2]
  output %s : f32[2]
}
";

    /// A branch takes the place of its If: nested bodies, constants, captures that leave, and names that are taken.
    #[test]
    fn a_branch_takes_the_place_of_its_node() {
        let text = TEXT
            .replace("If(%in; %t)", "If(%c; %t)")
            .replace("graph @then (%x, %k)", "graph @then (%x, %k, %c)");
        let text = text.replace("If(%c; %x, %k)", "If(%c; %x, %k, %c)");
        for (branch, expected) in [
            (0, ["%t.2 = Add(%x, %m)", "%u = If(%c; %t.2)", "%r = Identity(%u)", "%s = Identity(%x)"]),
            (1, ["%r = Neg(%k)", "%s = Identity(%r)", "%t = Relu(%r)", "output %s"]),
        ] {
            let mut module = parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}"));
            let node = module.nodes(module.main()).next().unwrap();
            let body = module.node(node).bodies().nth(branch).unwrap();
            let first = module.inline_body(node, body);
            assert_eq!(first, module.nodes(module.main()).next());
            infer_module(&mut module).unwrap();
            verify_module(&module).unwrap();
            let printed = module.to_text().unwrap();
            for line in expected {
                assert!(printed.contains(line), "{printed}");
            }
            assert!(!printed.contains("@choice"), "{printed}");
            parse(&printed, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{printed}"));
        }
    }
}
