//! The calls of functions.

use super::Module;
use crate::entity::{FunctionId, GraphId, Node};
use rustc_hash::FxHashSet;
use std::sync::OnceLock;

/// The calls of one function, and what was computed of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Callers {
    nodes: Vec<Node>,
    slots: OnceLock<Slots>,
}

/// Calls by what they give and take. A call may leave out the last operands and results of its function.
#[derive(Clone, Debug, Default)]
struct Slots {
    /// For every operand slot, the calls that have it.
    operands: Vec<Vec<Node>>,
    /// For every result slot, the calls that have it.
    results: Vec<Vec<Node>>,
    /// The graphs of the calls, each once.
    graphs: Vec<GraphId>,
}

impl Callers {
    pub(crate) fn new(nodes: Vec<Node>) -> Callers {
        Callers { nodes, slots: OnceLock::new() }
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The calls, to be changed.
    pub(crate) fn nodes_mut(&mut self) -> &mut Vec<Node> {
        self.forget_slots();
        &mut self.nodes
    }

    /// Invalidates what was computed; called by edit verbs that change how many operands or results a call has.
    pub(crate) fn forget_slots(&mut self) {
        self.slots = OnceLock::new();
    }

    fn slots(&self, module: &Module) -> &Slots {
        self.slots.get_or_init(|| {
            let mut slots = Slots::default();
            let mut seen = FxHashSet::default();
            for &node in &self.nodes {
                let data = module.node(node);
                push_up_to(&mut slots.operands, data.n_formal(), node);
                push_up_to(&mut slots.results, data.results().len(), node);
                slots.graphs.extend(Some(data.graph).filter(|&graph| seen.insert(graph)));
            }
            slots
        })
    }
}

/// Adds a node to the first `n` lists.
fn push_up_to(lists: &mut Vec<Vec<Node>>, n: usize, node: Node) {
    if lists.len() < n {
        lists.resize_with(n, Vec::new);
    }
    lists[..n].iter_mut().for_each(|list| list.push(node));
}

impl Module {
    /// The nodes that call a function, in the order in which they were added.
    pub fn calls(&self, function: FunctionId) -> &[Node] {
        self.calls.get(&function).map_or(&[], Callers::nodes)
    }

    /// The calls of a function that have an operand slot, in the order of [`calls`](Self::calls). The operand may be
    /// absent.
    pub fn calls_with_operand(&self, function: FunctionId, slot: usize) -> &[Node] {
        self.calls_with(function, slot, |slots| &slots.operands)
    }

    /// The calls of a function that have a result slot, in the order of [`calls`](Self::calls). The result may be
    /// absent.
    pub fn calls_with_result(&self, function: FunctionId, slot: usize) -> &[Node] {
        self.calls_with(function, slot, |slots| &slots.results)
    }

    fn calls_with(&self, function: FunctionId, slot: usize, side: fn(&Slots) -> &[Vec<Node>]) -> &[Node] {
        match self.calls.get(&function) {
            // Nearly every function of a model that is rewritten has one call.
            Some(callers) if callers.nodes.len() > 1 => {
                side(callers.slots(self)).get(slot).map_or(&[], Vec::as_slice)
            }
            Some(callers) => &callers.nodes,
            None => &[],
        }
    }

    /// The graphs that call a function, each once.
    pub fn calling_graphs(&self, function: FunctionId) -> &[GraphId] {
        self.calls.get(&function).map_or(&[], |callers| &callers.slots(self).graphs)
    }

    /// Invalidates what is known of the operands and results of calls of the function that a node calls, if it is a call.
    pub(crate) fn forget_call_slots(&mut self, node: Node) {
        if let super::Op::Call(function) = self.nodes[node].op
            && let Some(callers) = self.calls.get_mut(&function)
        {
            callers.forget_slots();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::entity::{EntityRef, FunctionId, Node};
    use crate::text::{NoData, parse};

    const CALLS: &str = "module ir=10
opset ai.onnx=21
opset my=1

graph @main {
  input %x : f32[2]
  %a = my::F(%x) : f32[2]
  %b, %c = my::F(%a, %x) : f32[2], f32[2]
  %d = my::F(%b, _, %c) : f32[2]
  output %d : f32[2]
}

function my::F {
  opset ai.onnx=21
  input %p : f32[2]
  input %q : f32[2]
  input %r : f32[2]
  %s = Relu(%p) : f32[2]
  output %s : f32[2]
  output %p : f32[2]
}
";

    /// The calls of a slot are those that have it, also after operands, results or calls changed.
    #[test]
    fn calls_of_a_slot_follow_edits() {
        let mut module = parse(CALLS, &NoData).unwrap_or_else(|errors| panic!("{errors}"));
        let function = FunctionId::new(0);
        let calls: Vec<Node> = module.calls(function).to_vec();
        let [first, second, third] = calls[..] else { panic!("three calls") };
        assert_eq!(module.calls_with_operand(function, 0), calls);
        assert_eq!(module.calls_with_operand(function, 1), [second, third]);
        assert_eq!(module.calls_with_operand(function, 2), [third]);
        assert!(module.calls_with_operand(function, 3).is_empty());
        assert_eq!(module.calls_with_result(function, 0), calls);
        assert_eq!(module.calls_with_result(function, 1), [second]);
        assert_eq!(module.calling_graphs(function), [module.main()]);

        let x = module.graph(module.main()).inputs()[0];
        module.set_formal_operands(first, &[Some(x), Some(x), Some(x)]);
        assert_eq!(module.calls_with_operand(function, 2), [first, third]);
        let name = module.intern("more");
        module.add_result(first, 1, name, crate::Type::Unknown);
        assert_eq!(module.calls_with_result(function, 1), [first, second]);
        module.truncate_results(first, 1);
        assert_eq!(module.calls_with_result(function, 1), [second]);

        let (name, none) = (module.intern("G"), module.intern(""));
        let copy = module.copy_function(function, name, none);
        module.set_callee(third, copy);
        assert_eq!(module.calls_with_operand(function, 2), [first]);
        assert_eq!(module.calls_with_operand(copy, 2), [third]);
    }
}
