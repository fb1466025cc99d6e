//! Captures: values of the surrounding graphs that bodies read.

use super::uses::operand_number;
use crate::entity::{GraphId, Node, Value};
use crate::module::{Def, GraphOwner, Module};

impl Module {
    /// The value of `body` that stands for `outer`, a value of the graph around it; made, together with the
    /// operand of the owning node, if the body does not capture `outer` yet.
    ///
    /// # Panics
    /// If `body` is not a body of a node in the graph of `outer`.
    pub fn capture(&mut self, body: GraphId, outer: Value) -> Value {
        let GraphOwner::Body { node, .. } = self.graphs[body].owner else {
            panic!("{body} has no owning node to capture through");
        };
        assert_eq!(
            self.values[outer].graph, self.nodes[node].graph,
            "{outer} is not in the scope around {body}"
        );
        let n_formal = self.nodes[node].n_formal();
        let slot = self.slots_reading(node, outer).filter(|&slot| slot >= n_formal).min();
        let slot = slot.unwrap_or_else(|| {
            self.add_capture_operand(node, Some(outer));
            self.nodes[node].operands.len() - 1
        });
        let known = self.graphs[body].captures_of(operand_number(slot)).first().copied();
        known.unwrap_or_else(|| self.add_capture(body, slot))
    }

    /// The value that stands for `outer` in a graph nested in its scope, captured by every body between; `outer`
    /// itself in its own graph.
    ///
    /// # Panics
    /// If the graph is not nested in that of `outer`.
    pub fn capture_into(&mut self, graph: GraphId, outer: Value) -> Value {
        let (mut between, mut at) = (Vec::new(), graph);
        while at != self.values[outer].graph {
            between.push(at);
            let owner = self.owner(at).unwrap_or_else(|| panic!("{outer} is not in a scope around {graph}"));
            at = self.nodes[owner].graph;
        }
        between.into_iter().rev().fold(outer, |value, body| self.capture(body, value))
    }

    /// Adds an operand for the bodies of a node to capture, even if it has the same one already.
    pub fn add_capture_operand(&mut self, node: Node, outer: Option<Value>) {
        let slot = self.nodes[node].operands.len();
        self.nodes[node].operands.push(None);
        self.link(node, slot, outer);
    }

    /// Adds a capture to a body: a value that stands for operand `slot` of the owning node, of its type.
    ///
    /// # Panics
    /// If `body` is not a body, or `slot` no capture operand of its node.
    pub fn add_capture(&mut self, body: GraphId, slot: usize) -> Value {
        let GraphOwner::Body { node, .. } = self.graphs[body].owner else {
            panic!("{body} has no owning node to capture through");
        };
        assert!(slot >= self.nodes[node].n_formal(), "operand {slot} of {node} is not for captures");
        let ty = self.nodes[node].operands[slot].map(|outer| self.values[outer].ty.clone());
        let slot = operand_number(slot);
        let value = self.push_source(body, None, ty.unwrap_or_default(), Def::Capture { slot });
        self.graphs[body].captures.push(slot, value);
        value
    }

    /// Removes captures that the bodies of a node do not read, and operands that no body captures any more.
    /// Returns whether there was any.
    ///
    /// Removes the captures of many nodes that read one value from the last node to the first: in that order,
    /// each edge is removed in one step.
    pub fn prune_captures(&mut self, node: Node) -> bool {
        let data = &self.nodes[node];
        let bodies: Vec<GraphId> = data.bodies().collect();
        if bodies.is_empty() && data.n_formal() == data.operands.len() {
            return false;
        }
        let mut changed = false;
        for &body in &bodies {
            changed |= self.drop_unread_captures(body);
        }
        let n_formal = self.nodes[node].n_formal();
        let is_read = |&slot: &usize| {
            slot < n_formal
                || bodies.iter().any(|&body| !self.graphs[body].captures_of(operand_number(slot)).is_empty())
        };
        let kept: Vec<usize> = (0..self.nodes[node].operands.len()).filter(is_read).collect();
        if kept.len() == self.nodes[node].operands.len() {
            return changed;
        }
        let numbers = self.keep_operands(node, &kept);
        for body in bodies {
            let captures = std::mem::take(&mut self.graphs[body].captures);
            for &value in captures.values() {
                let Def::Capture { slot } = &mut self.values[value].def else {
                    unreachable!("{value} is a capture")
                };
                *slot = numbers[*slot as usize].expect("an operand that is captured is kept");
                self.graphs[body].captures.push(*slot, value);
            }
        }
        true
    }

    /// Removes captures that a body does not read. Returns whether there was any.
    fn drop_unread_captures(&mut self, body: GraphId) -> bool {
        let is_read = |value: Value| self.uses(value).next().is_some() || self.is_output(value);
        let all = self.graphs[body].captures();
        let unread: Vec<Value> = all.iter().copied().filter(|&value| !is_read(value)).collect();
        if unread.is_empty() {
            return false;
        }
        for value in unread {
            if let Some(vertex) = self.values[value].vertex.take() {
                self.graphs[body].uses.remove_node(vertex);
            }
            self.values[value].def = Def::Erased;
        }
        for &value in std::mem::take(&mut self.graphs[body].captures).values() {
            if let Def::Capture { slot } = self.values[value].def {
                self.graphs[body].captures.push(slot, value);
            }
        }
        true
    }

    /// Marks the readers of operand `slot` of `node` inside its bodies, at any depth.
    pub(super) fn mark_capture_readers(&mut self, node: Node, slot: usize) {
        let (mut work, mut left) = (vec![(node, slot)], Vec::new());
        while let Some((node, slot)) = work.pop() {
            if slot < self.nodes[node].n_formal() {
                self.nodes[node].dirty.operands = true;
                continue;
            }
            let bodies: Vec<GraphId> = self.nodes[node].bodies().collect();
            for body in bodies {
                for &value in self.graphs[body].captures_of(operand_number(slot)) {
                    work.extend(self.uses(value).map(|(n, s)| (n, s as usize)));
                    left.extend(self.is_output(value).then_some(body));
                }
            }
        }
        for body in left {
            self.graphs[body].dirty = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::infer::infer_module;
    use crate::text::{NoData, parse};
    use crate::verify::{Problem, verify_module};

    const TEXT: &str = "opset ai.onnx=21\n\ngraph @main {
  input %c : bool\n  input %x : f32[2]\n  input %y : f32[2]
  %z = If(%c; %x, %y) {
    then_branch: graph (%x, %y) {\n      %a = Add(%x, %y) : f32[2]\n      output %a\n    },
    else_branch: graph (%y) {\n      %b = Relu(%y) : f32[2]\n      output %b\n    }
  } : f32[2]
  output %z\n}\n";

    fn owner_and_bodies(module: &Module) -> (Node, Vec<GraphId>) {
        let node = module.nodes(module.main()).next().unwrap();
        (node, module.node(node).bodies().collect())
    }

    #[test]
    fn captures_are_found_by_their_operand() {
        let mut module = parse(TEXT, &NoData).unwrap();
        let (node, bodies) = owner_and_bodies(&module);
        let x = module.graph(module.main()).inputs()[1];
        assert!(module.graph(bodies[1]).captures_of(1).is_empty());
        let captured = module.capture(bodies[1], x);
        assert_eq!(module.graph(bodies[1]).captures_of(1), [captured]);
        // What is not read goes, and what is behind it moves up.
        let (x, y) = (module.graph(bodies[0]).captures()[0], module.graph(bodies[0]).captures()[1]);
        module.replace_uses(x, y, |_, _| true);
        assert!(module.prune_captures(node));
        assert_eq!(module.node(node).operands().len(), 2);
        assert_eq!(
            (module.graph(bodies[0]).captures(), module.graph(bodies[0]).captures_of(1)),
            (&[y][..], &[y][..])
        );
    }

    /// The first of equal operands is captured, from whichever end the edges are searched.
    #[test]
    fn the_first_of_equal_operands_is_captured() {
        let mut module = parse(TEXT, &NoData).unwrap();
        let (node, bodies) = owner_and_bodies(&module);
        let x = module.graph(module.main()).inputs()[1];
        module.set_operand(node, 2, Some(x));
        module.add_capture_operand(node, Some(x));
        let first = module.graph(bodies[0]).captures()[0];
        assert_eq!(module.capture(bodies[0], x), first);
        module.set_operand(node, 1, None);
        assert_eq!(module.capture(bodies[0], x), module.graph(bodies[0]).captures()[1]);
    }

    #[test]
    fn a_capture_that_is_filed_under_another_operand_is_a_violation() {
        let mut module = parse(TEXT, &NoData).unwrap();
        infer_module(&mut module).unwrap();
        verify_module(&module).unwrap();
        let (_, bodies) = owner_and_bodies(&module);
        let y = module.graph(bodies[1]).captures()[0];
        module.values[y].def = Def::Capture { slot: 1 };
        let violations = verify_module(&module).unwrap_err();
        assert!(violations.iter().any(|v| matches!(v.problem, Problem::UsesDisagree { operand: 1 })));
    }
}
