//! Ports: places where values cross the border between a node and its bodies, or a call and its function.
//!
//! An If returns the outputs of a branch as its results; a Loop or Scan passes state into its body, around the
//! loop, and out at the end. A loop-carried value, or a result of either branch, has one element type: it is
//! one *port*, which reads operands of the node and outputs of its bodies, and makes inputs of bodies and
//! results.
//!
//! | operator | ports |
//! |---|---|
//! | If | `out0`…: result, and that output of both branches |
//! | Loop | `state0`…: operand, body input, body output, result; `out0`…: stacked body output, result |
//! | Scan | `state0`…; `in0`…: scanned operand, body input; `out0`… |
//! | SequenceMap | `in0`…: operand, body input; `out0`…: body output, result |
//!
//! A function is a body that several nodes share: all its calls together have one port per formal, `in0`…, `out0`…,
//! which belongs to the first of them.
//!
//! Iteration number and condition of a Loop, the condition of an If and the lengths of Scan 8 are not ports: no float
//! passes there.

use crate::attr::AttrValue;
use crate::entity::{FunctionId, GraphId, Node, Value};
use crate::module::{GraphOwner, Module, Op};
use crate::op::{OpKind, OpSchema};
use smallvec::SmallVec;
use std::borrow::Cow;

/// The ports of one node, or of all calls of a function. They are numbered: states, then inputs, then outputs.
#[derive(Clone, Debug)]
pub struct Ports {
    /// The node they belong to.
    node: Node,
    /// The function, if the node is a call.
    function: Option<FunctionId>,
    bodies: SmallVec<[GraphId; 2]>,
    n_state: usize,
    n_in: usize,
    n_out: usize,
    /// The operand of the first port that has one.
    first_operand: usize,
    /// The body input of the first port that has one.
    first_input: usize,
    /// The body output of the first port that has one.
    first_output: usize,
}

/// True if nodes of an operator have bodies through which values pass.
#[inline]
pub(crate) fn has_bodies(kind: OpKind) -> bool {
    matches!(kind, OpKind::If | OpKind::Loop | OpKind::Scan | OpKind::SequenceMap)
}

impl Ports {
    /// The ports of a node; `None` if it is not an operator with bodies and no call.
    #[inline]
    pub fn of(module: &Module, node: Node) -> Option<Ports> {
        match &module.node(node).op {
            Op::Call(function) => Ports::of_function(module, *function),
            Op::Schema(schema) if has_bodies(schema.kind) => Ports::of_owner(module, node, schema),
            Op::Schema(_) | Op::Custom { .. } => None,
        }
    }

    /// The ports of an operator with bodies.
    fn of_owner(module: &Module, node: Node, schema: &OpSchema) -> Option<Ports> {
        let data = module.node(node);
        let n_results = data.results().len();
        let (n_state, n_in, first_operand, first_input, first_output) = match schema.kind {
            OpKind::If => (0, 0, 0, 0, 0),
            OpKind::Loop => (data.n_formal().saturating_sub(2), 0, 2, 2, 1),
            OpKind::Scan => {
                let first = usize::from(schema.since < 9);
                let n = data.n_formal().saturating_sub(first);
                let n_in = module.symbol("num_scan_inputs").and_then(|s| data.attr(s)).map(|a| &a.value);
                let n_in = match n_in {
                    Some(&AttrValue::Int(n_in)) => usize::try_from(n_in).unwrap_or(0).min(n),
                    _ => 0,
                };
                (n - n_in, n_in, first, 0, 0)
            }
            OpKind::SequenceMap => (0, data.n_formal(), 0, 0, 0),
            _ => return None,
        };
        // More than can be numbered are left alone.
        let n_state = n_state.min(n_results);
        let fits = n_state + n_in + (n_results - n_state) <= usize::from(u16::MAX);
        fits.then(|| Ports {
            node,
            function: None,
            bodies: data.bodies().collect(),
            n_state,
            n_in,
            n_out: n_results - n_state,
            first_operand,
            first_input,
            first_output,
        })
    }

    /// The ports of a function; `None` if nothing calls it.
    pub fn of_function(module: &Module, function: FunctionId) -> Option<Ports> {
        let &node = module.calls(function).first()?;
        let graph = module.function(function).graph;
        let (n_in, n_out) = (module.graph(graph).inputs().len(), module.graph(graph).outputs().len());
        (n_in + n_out <= usize::from(u16::MAX)).then(|| Ports {
            node,
            function: Some(function),
            bodies: smallvec::smallvec![graph],
            n_state: 0,
            n_in,
            n_out,
            first_operand: 0,
            first_input: 0,
            first_output: 0,
        })
    }

    /// The ports through which the inputs and outputs of a body, or of a function, go.
    pub fn of_body(module: &Module, graph: GraphId) -> Option<Ports> {
        match module.graph(graph).owner {
            GraphOwner::Body { node, .. } => Ports::of(module, node),
            GraphOwner::Function(function) => Ports::of_function(module, function),
            GraphOwner::Main | GraphOwner::Erased => None,
        }
    }

    /// The node that the ports belong to: of the calls of a function the first.
    pub fn node(&self) -> Node {
        self.node
    }
    /// The nodes whose operands and results go through the ports.
    pub fn nodes<'a>(&self, module: &'a Module) -> impl Iterator<Item = Node> + use<'a> {
        self.own_or(self.function.map(|function| module.calls(function)))
    }
    /// The nodes that have an operand slot, which may be absent: calls may leave out the last operands.
    pub fn nodes_with_operand<'a>(
        &self,
        module: &'a Module,
        slot: usize,
    ) -> impl Iterator<Item = Node> + use<'a> {
        self.own_or(self.function.map(|function| module.calls_with_operand(function, slot)))
    }
    /// The nodes that have a result slot, which may be absent: calls may leave out the last results.
    pub fn nodes_with_result<'a>(
        &self,
        module: &'a Module,
        slot: usize,
    ) -> impl Iterator<Item = Node> + use<'a> {
        self.own_or(self.function.map(|function| module.calls_with_result(function, slot)))
    }
    /// The calls, or the one node of ports that are not of a function.
    fn own_or<'a>(&self, calls: Option<&'a [Node]>) -> impl Iterator<Item = Node> + use<'a> {
        let own = calls.is_none().then_some(self.node);
        calls.unwrap_or_default().iter().copied().chain(own)
    }
    /// The number.
    pub fn len(&self) -> usize {
        self.n_state + self.n_in + self.n_out
    }
    /// True if there are no ports.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// True if a port is state, which goes round.
    pub fn is_state(&self, port: usize) -> bool {
        port < self.n_state
    }
    /// The name of a port: `state0`, `in0`, `out0`.
    pub fn name(&self, port: usize) -> String {
        let n_taken = self.n_state + self.n_in;
        match port {
            _ if port < self.n_state => format!("state{port}"),
            _ if port < n_taken => format!("in{}", port - self.n_state),
            _ => format!("out{}", port - n_taken),
        }
    }

    /// The operand slot that a port reads.
    pub fn operand(&self, port: usize) -> Option<usize> {
        (port < self.n_state + self.n_in).then_some(self.first_operand + port)
    }
    /// The result slot that a port makes.
    pub fn result(&self, port: usize) -> Option<usize> {
        let is_in = (self.n_state..self.n_state + self.n_in).contains(&port);
        (!is_in).then(|| if port < self.n_state { port } else { port - self.n_in })
    }
    /// The inputs of bodies that a port makes.
    pub fn body_inputs<'a>(&self, module: &'a Module, port: usize) -> impl Iterator<Item = Value> + use<'a> {
        let slot = (port < self.n_state + self.n_in).then_some(self.first_input + port);
        let bodies = self.bodies.clone();
        bodies.into_iter().filter_map(move |body| module.graph(body).inputs().get(slot?).copied())
    }
    /// The outputs of bodies that a port reads: body and output slot.
    pub fn body_outputs<'a>(
        &self,
        module: &'a Module,
        port: usize,
    ) -> impl Iterator<Item = (GraphId, usize)> + use<'a> {
        let slot = self.result(port).map(|slot| self.first_output + slot);
        let bodies = self.bodies.clone();
        bodies
            .into_iter()
            .filter_map(move |body| Some((body, slot?)))
            .filter(|&(body, slot)| slot < module.graph(body).outputs().len())
    }

    /// The port that reads an operand slot.
    pub fn of_operand(&self, slot: usize) -> Option<usize> {
        slot.checked_sub(self.first_operand).filter(|&port| port < self.n_state + self.n_in)
    }
    /// The port that makes a result slot.
    pub fn of_result(&self, slot: usize) -> Option<usize> {
        let port = if slot < self.n_state { slot } else { slot + self.n_in };
        (port < self.len()).then_some(port)
    }
    /// The port that makes a body input.
    pub fn of_body_input(&self, slot: usize) -> Option<usize> {
        slot.checked_sub(self.first_input).filter(|&port| port < self.n_state + self.n_in)
    }
    /// The port that reads a body output.
    pub fn of_body_output(&self, slot: usize) -> Option<usize> {
        slot.checked_sub(self.first_output).and_then(|slot| self.of_result(slot))
    }
}

impl Module {
    /// The number of precision decisions of a node: one per port, or one per type variable of its schema; none for
    /// custom operators, and for calls whose ports belong to another call.
    pub fn n_vars(&self, node: Node) -> usize {
        match Ports::of(self, node) {
            Some(ports) if ports.node == node => ports.len(),
            Some(_) => 0,
            None => self.node(node).schema().map_or(0, |s| s.type_vars.len()),
        }
    }

    /// The names of the items that a node has decisions about: ports, or type variables of its schema.
    pub fn var_names(&self, node: Node) -> SmallVec<[Cow<'static, str>; 2]> {
        match Ports::of(self, node) {
            Some(ports) if ports.node == node => {
                (0..ports.len()).map(|port| ports.name(port).into()).collect()
            }
            Some(_) => SmallVec::new(),
            None => {
                let schema = self.node(node).schema();
                schema.map_or(&[][..], |s| s.type_vars).iter().map(|v| v.name.into()).collect()
            }
        }
    }

    /// The node that owns a body, if the graph is one.
    pub fn owner(&self, graph: GraphId) -> Option<Node> {
        match self.graph(graph).owner {
            GraphOwner::Body { node, .. } => Some(node),
            GraphOwner::Main | GraphOwner::Function(_) | GraphOwner::Erased => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::infer::infer_module;
    use crate::text::{NoData, parse};
    use crate::verify::verify_module;

    fn module(lines: &str) -> Module {
        let text = format!("module ir=10\nopset ai.onnx=21\n\ngraph {{\n{lines}}}\n");
        parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
    }

    const LOOP: &str = "  input %n : i64
  input %s : f32[2]
  input %x : f32[2]
  input %y : f32[2]
  %last, %all = Loop(%n, _, %s; %x, %y) {
    body: graph (%x, %y) {
      input %i : i64
      input %c : bool
      input %h : f32[2]
      %a = Add(%h, %y) : f32[2]
      output %c
      output %a
      output %a
    }
  } : f32[2], f32[?, 2]
  output %last
  output %all
";

    /// Every way from a port to a slot has a way back.
    #[test]
    fn ports_know_their_slots() {
        let module = module(LOOP);
        let node = module.nodes(module.main()).next().unwrap();
        let ports = Ports::of(&module, node).unwrap();
        assert_eq!(module.var_names(node)[..], ["state0", "out0"]);
        assert_eq!((ports.operand(0), ports.operand(1)), (Some(2), None));
        assert_eq!((ports.result(0), ports.result(1)), (Some(0), Some(1)));
        let body = module.node(node).bodies().next().unwrap();
        let outputs = |port| ports.body_outputs(&module, port).collect::<Vec<_>>();
        assert_eq!((outputs(0), outputs(1)), (vec![(body, 1)], vec![(body, 2)]));
        for port in 0..ports.len() {
            assert!(ports.operand(port).is_none_or(|slot| ports.of_operand(slot) == Some(port)));
            assert!(ports.result(port).is_none_or(|slot| ports.of_result(slot) == Some(port)));
            assert!(outputs(port).iter().all(|&(_, slot)| ports.of_body_output(slot) == Some(port)));
        }
        let formal = |slot: usize| module.graph(body).inputs()[slot];
        assert_eq!(ports.body_inputs(&module, 0).collect::<Vec<_>>(), [formal(2)]);
        assert_eq!((ports.of_body_input(1), ports.of_body_input(2)), (None, Some(0)));
        assert_eq!((ports.of_operand(0), ports.of_operand(3), ports.of_body_output(0)), (None, None, None));
    }

    /// Scan has inputs between states and outputs, and below version 9 an operand before them.
    #[test]
    fn scan_counts_by_its_version() {
        let scan = |opset: u16, lengths: &str, dims: &str| {
            let text = format!(
                "module ir=10\nopset ai.onnx={opset}\n\ngraph {{
  input %s : f32[{dims}2]\n  input %x : f32[{dims}5, 3]
  %last, %all = Scan({lengths}%s, %x) {{
    body: graph {{
      input %h : f32[2]\n      input %e : f32[3]
      output %h\n      output %e
    }},
    num_scan_inputs=1
  }} : f32[{dims}2], f32[{dims}5, 3]
  output %last\n  output %all\n}}\n"
            );
            let module = parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
            let node = module.nodes(module.main()).next().unwrap();
            let ports = Ports::of(&module, node).unwrap();
            assert_eq!(module.var_names(node)[..], ["state0", "in0", "out0"]);
            assert_eq!((ports.result(1), ports.result(2), ports.of_result(1)), (None, Some(1), Some(2)));
            (ports.operand(0), ports.operand(1))
        };
        assert_eq!(scan(21, "", ""), (Some(0), Some(1)));
        assert_eq!(scan(8, "_, ", "1, "), (Some(1), Some(2)));
    }

    /// Captures without readers are removed, and the later captures keep their operands.
    #[test]
    fn captures_without_readers_go() {
        let mut module = module(LOOP);
        let node = module.nodes(module.main()).next().unwrap();
        assert!(module.prune_captures(node));
        assert!(!module.prune_captures(node));
        infer_module(&mut module).unwrap();
        verify_module(&module).unwrap();
        let text = module.to_text().unwrap();
        assert_eq!(text, self::module(&LOOP.replace("%x, %y)", "%y)")).to_text().unwrap());
    }

    /// A value is captured by every body on the way, once.
    #[test]
    fn captures_through_bodies() {
        let mut module = module(
            "  input %c : bool\n  input %x : f32[2]
  %y = If(%c; %c) {
    then_branch: graph (%c) {
      %z = If(%c) {
        then_branch: graph {\n          const %k : f32[2] = [0.0, 1.0]\n          output %k\n        },
        else_branch: graph {\n          const %l : f32[2] = [0.0, 1.0]\n          output %l\n        }
      } : f32[2]
      output %z
    },
    else_branch: graph {\n      const %m : f32[2] = [0.0, 1.0]\n      output %m\n    }
  } : f32[2]
  output %y\n",
        );
        let x = module.graph(module.main()).inputs()[1];
        let inner = module
            .graph_ids()
            .find(|&g| module.owner(g).is_some_and(|n| module.owner(module.node(n).graph).is_some()));
        let inner = inner.unwrap();
        let captured = module.capture_into(inner, x);
        assert_eq!(module.capture_into(inner, x), captured);
        assert_eq!(crate::views::resolve_captures(&module, captured), x);
        assert_eq!(module.value_name(captured), module.value_name(x));
    }
}
