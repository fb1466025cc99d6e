//! The verifier: every violation of the invariants listed in [`module`](crate::module), not the first.
//!
//! One function per theme; each reports its violations and continues. Structure is checked before types,
//! because types of a broken structure are meaningless.

mod problem;

pub use self::problem::Problem;

use crate::dtype::DType;
use crate::entity::{FunctionId, GraphId, Node, SecondaryMap, Symbol, Value};
use crate::infer::{InferError, Inference, check_node, infer};
use crate::module::{Def, GraphOwner, Module, Op, Vertex};
use crate::op::{LATEST_IR_VERSION, latest_opset};
use crate::ty::Type;
use crate::views::OpError;
use petgraph::Direction;
use petgraph::visit::EdgeRef;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

/// Violation of an invariant by a module, and its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct Violation {
    /// The graph.
    pub graph: GraphId,
    /// The node, if it is about one.
    pub node: Option<Node>,
    /// The value, if it is about one.
    pub value: Option<Value>,
    /// The problem.
    pub problem: Problem,
}

/// Verifies a module and returns its inferred types. The module is not changed: a type that differs from the
/// inferred type is a violation.
///
/// # Errors
/// The violations of structure, in order of graphs and of nodes; if there are none, the violations of types.
pub fn verify_module(module: &Module) -> Result<Inference, Vec<Violation>> {
    let found = verify_structure(module);
    if !found.is_empty() {
        return Err(found);
    }
    let (inference, errors) = infer(module);
    let of_node = |e: InferError| Violation {
        graph: module.node(e.node).graph,
        node: Some(e.node),
        value: None,
        problem: Problem::Operator(e.error),
    };
    let mut found: Vec<Violation> = errors.into_iter().map(of_node).collect();
    found.extend(verify_types(module, &inference));
    if found.is_empty() { Ok(inference) } else { Err(found) }
}

/// The violations of all invariants but those about types, in order of graphs and of nodes.
pub fn verify_structure(module: &Module) -> Vec<Violation> {
    let mut found = Vec::new();
    versions(module, &mut found);
    functions(module, &mut found);
    bodies(module, &mut found);
    let mut seen = Seen::default();
    for graph in module.graph_ids() {
        let mut cx = Cx { module, graph, found: &mut found };
        cx.boundary();
        let defined = cx.order(&mut seen);
        cx.uses();
        cx.names(&defined, &mut seen);
        cx.attributes();
        cx.domains();
    }
    found
}

/// Entities that the walk over all graphs has visited: a table for all of them, since a value belongs to one
/// graph.
#[derive(Default)]
struct Seen {
    /// The values that are defined before the node at hand.
    defined: SecondaryMap<Value, bool>,
    /// The graph that had a name last.
    named: SecondaryMap<Symbol, Option<GraphId>>,
}

/// Differences between the types of a structurally valid module and the inferred types, in order of graphs and
/// of nodes.
pub fn verify_types(module: &Module, inference: &Inference) -> Vec<Violation> {
    let mut found = Vec::new();
    for graph in module.graph_ids() {
        Cx { module, graph, found: &mut found }.types(inference);
    }
    found
}

#[cfg(test)]
mod tests;

struct Cx<'a> {
    module: &'a Module,
    graph: GraphId,
    found: &'a mut Vec<Violation>,
}

/// A value's name for a message.
pub fn name_of(module: &Module, value: Value) -> String {
    module.value_name(value).map_or_else(|| value.to_string(), |s| module.text(s).to_owned())
}

impl Cx<'_> {
    fn report(&mut self, node: Option<Node>, value: Option<Value>, problem: Problem) {
        self.found.push(Violation { graph: self.graph, node, value, problem });
    }

    /// A live value of this graph.
    fn lives(&self, value: Value) -> bool {
        let data = self.module.value(value);
        data.graph == self.graph && !matches!(data.def, Def::Erased)
    }

    fn dangling(&mut self, node: Option<Node>, value: Value, what: &str) {
        let name = name_of(self.module, value);
        self.report(node, Some(value), Problem::Dangling { what: what.into(), name });
    }

    /// I1 and I9 for inputs, constants, outputs, roles and states, then captures.
    fn boundary(&mut self) {
        let data = self.module.graph(self.graph);
        for &value in data.inputs.iter().chain(data.captures()).chain(&data.constants) {
            if !self.lives(value) {
                self.dangling(None, value, "the graph");
            }
        }
        for output in &data.outputs {
            if !self.lives(output.value) {
                self.dangling(None, output.value, "a graph output");
                continue;
            }
            let ty = &self.module.value(output.value).ty;
            if !ty.same_kind(&output.declared) {
                self.boundary_disagrees("graph output", output.value, &output.declared, ty);
            }
        }
        let is_main = self.graph == self.module.main();
        for &value in &data.inputs {
            if is_main && self.module.value(value).ty == Type::Unknown {
                let name = name_of(self.module, value);
                self.report(None, Some(value), Problem::Untyped { name });
            }
        }
        for &value in data.inputs.iter().chain(&data.constants) {
            let found = &self.module.value(value).ty;
            let (Def::Constant(payload) | Def::Input { default: Some(payload), .. }) =
                &self.module.value(value).def
            else {
                continue;
            };
            let expected = payload.ty();
            if expected.meet(found).is_none() {
                self.boundary_disagrees("constant", value, &expected, found);
            }
        }
        for &value in data.roles.iter().flat_map(|r| &r.values) {
            if !self.lives(value) {
                self.dangling(None, value, "a role");
            }
        }
        for &(input, next) in &data.states {
            let slot = match self.module.value(input).def {
                Def::Input { slot, .. } => slot as usize,
                _ => usize::MAX,
            };
            if data.inputs.get(slot) != Some(&input) {
                self.dangling(None, input, "a state");
            }
            if !self.lives(next) || !self.module.is_output(next) {
                self.dangling(None, next, "the next value of a state");
            }
        }
        self.captures();
    }

    /// I1, I3 and I9 for captures.
    fn captures(&mut self) {
        let data = self.module.graph(self.graph);
        for &capture in data.captures() {
            let (Def::Capture { slot }, GraphOwner::Body { node, .. }) =
                (&self.module.value(capture).def, data.owner)
            else {
                self.dangling(None, capture, "a capture");
                continue;
            };
            let outer = self.module.node(node).operands.get(*slot as usize).copied().flatten();
            match outer.filter(|_| *slot as usize >= self.module.node(node).n_formal()) {
                None => self.dangling(Some(node), capture, "a capture"),
                Some(outer) => {
                    let (inner, outer) = (&self.module.value(capture).ty, &self.module.value(outer).ty);
                    if !inner.same_kind(outer) {
                        self.boundary_disagrees("capture", capture, outer, inner);
                    }
                    if !data.captures_of(*slot).contains(&capture) {
                        self.report(
                            Some(node),
                            Some(capture),
                            Problem::UsesDisagree { operand: *slot as usize },
                        );
                    }
                }
            }
        }
    }

    fn boundary_disagrees(&mut self, what: &'static str, value: Value, expected: &Type, found: &Type) {
        let problem = Problem::BoundaryDisagrees {
            what,
            name: name_of(self.module, value),
            expected: crate::ty::describe(expected),
            found: crate::ty::describe(found),
        };
        self.report(None, Some(value), problem);
    }

    /// I2, and I1 for operands. Returns the values in the order in which they are defined.
    fn order(&mut self, seen: &mut Seen) -> Vec<Value> {
        let data = self.module.graph(self.graph);
        let mut defined: Vec<Value> =
            data.inputs.iter().chain(data.captures()).chain(&data.constants).copied().collect();
        for &value in &defined {
            seen.defined[value] = true;
        }
        for node in self.module.nodes(self.graph) {
            for &operand in self.module.node(node).operands().iter().flatten() {
                if !self.lives(operand) {
                    self.dangling(Some(node), operand, "an operand");
                } else if !seen.defined[operand] {
                    let name = name_of(self.module, operand);
                    self.report(Some(node), Some(operand), Problem::ReadBeforeDefined { name });
                }
            }
            for &result in self.module.node(node).results().iter().flatten() {
                seen.defined[result] = true;
                defined.push(result);
            }
        }
        for output in &data.outputs {
            if self.lives(output.value) && !seen.defined[output.value] {
                self.dangling(None, output.value, "a graph output");
            }
        }
        defined
    }

    /// I3.
    fn uses(&mut self) {
        let data = self.module.graph(self.graph);
        let mut present = 0;
        // What the use graph says each operand of the node at hand is.
        let mut edges: SmallVec<[Option<Value>; 8]> = SmallVec::new();
        for node in self.module.nodes(self.graph) {
            let operands = self.module.node(node).operands();
            edges.clear();
            edges.resize(operands.len(), None);
            for edge in data.uses.edges_directed(self.module.node(node).vertex, Direction::Incoming) {
                let value = match data.uses[edge.source()] {
                    Vertex::Source(value) => Some(value),
                    Vertex::Node(n) => self.module.node(n).result(edge.weight().result as usize),
                };
                if let Some(slot) = edges.get_mut(edge.weight().operand as usize) {
                    *slot = value;
                }
            }
            present += edges.iter().flatten().count();
            for (slot, (&operand, &edge)) in operands.iter().zip(&edges).enumerate() {
                if edge != operand {
                    self.report(Some(node), operand, Problem::UsesDisagree { operand: slot });
                }
            }
        }
        if present != data.uses.edge_count() {
            self.report(None, None, Problem::UsesDisagree { operand: present });
        }
    }

    /// I4.
    fn names(&mut self, defined: &[Value], seen: &mut Seen) {
        let captured: FxHashSet<Symbol> = self
            .module
            .graph(self.graph)
            .captures()
            .iter()
            .filter_map(|&c| self.module.value_name(c))
            .collect();
        for &value in defined {
            let Some(name) = self.module.value(value).name else { continue };
            let text = || self.module.text(name).to_owned();
            if seen.named[name].replace(self.graph) == Some(self.graph) {
                let name = text();
                self.report(None, Some(value), Problem::DuplicateName { name });
            } else if captured.contains(&name) {
                let name = text();
                self.report(None, Some(value), Problem::Shadowed { name });
            }
        }
    }

    /// I5 for attributes; counts of operands and results are checked with the types.
    fn attributes(&mut self) {
        for node in self.module.nodes(self.graph) {
            let data = self.module.node(node);
            // In an open domain a node that does not fit is another operator: inference asks.
            let Some(schema) = data.schema().filter(|s| !crate::op::is_open(s.domain)) else { continue };
            let op = || format!("{} {}", schema.name, schema.since);
            for attr in data.attrs() {
                let name = self.module.text(attr.name);
                let Some(expected) = schema.attr(name) else {
                    let known: Vec<&str> = schema.attrs.iter().map(|a| a.name).collect();
                    let known = if known.is_empty() { "none".into() } else { known.join(", ") };
                    let problem = Problem::UnknownAttribute { op: op(), attr: name.into(), known };
                    self.report(Some(node), None, problem);
                    continue;
                };
                if expected.kind != attr.value.kind() {
                    let problem = Problem::Attribute {
                        op: op(),
                        attr: name.into(),
                        expected: format!("{:?}", expected.kind),
                        found: format!("{:?}", attr.value.kind()),
                    };
                    self.report(Some(node), None, problem);
                }
            }
            for expected in schema.attrs.iter().filter(|a| a.required) {
                if !data.attrs().iter().any(|a| self.module.text(a.name) == expected.name) {
                    let problem = Problem::Attribute {
                        op: op(),
                        attr: expected.name.into(),
                        expected: "a value, it is required".into(),
                        found: "none".into(),
                    };
                    self.report(Some(node), None, problem);
                }
            }
        }
    }

    /// I5 for names, I10 for nodes.
    fn domains(&mut self) {
        let module = self.module;
        let spelled = |domain| if domain == "ai.onnx" { "" } else { domain };
        let known: FxHashSet<&str> =
            module.opsets(self.graph).iter().map(|&(domain, _)| spelled(module.text(domain))).collect();
        // Neighbours are of one domain as a rule.
        let mut last = None;
        for node in module.nodes(self.graph) {
            let (domain, name, _) = module.op_name(node);
            if name.is_empty() {
                let problem = OpError::node("the name of an operator", "an empty one");
                self.report(Some(node), None, Problem::Operator(problem));
            }
            let domain = spelled(domain);
            if last == Some(domain) || known.contains(domain) {
                last = Some(domain);
                continue;
            }
            let domain = if domain.is_empty() { "ai.onnx" } else { domain }.to_owned();
            self.report(Some(node), None, Problem::NotImported { domain });
        }
    }

    /// I7 and I8.
    fn types(&mut self, inference: &Inference) {
        let data = self.module.graph(self.graph);
        for &value in data.inputs.iter().chain(&data.constants) {
            if let Some(dtype @ DType::Other(_)) = self.module.value(value).ty.element_dtype() {
                let name = name_of(self.module, value);
                self.report(None, Some(value), Problem::UnknownDType { name, dtype });
            }
        }
        let root = self.module.graph(self.module.root(self.graph)).owner;
        if !matches!(data.owner, GraphOwner::Main) {
            for &input in &data.inputs {
                let expected = inference.types.of(self.module, input);
                self.disagreement(None, input, expected, "what is handed to the body");
            }
        }
        for node in self.module.nodes(self.graph) {
            let data = self.module.node(node);
            let reached = data.results().iter().flatten().all(|&result| inference.types.has(result));
            // Inference enters functions by their calls, and no bodies of operators that nobody knows: what it does not
            // reach is looked at node by node, with the types that are there.
            let alone = match matches!(root, GraphOwner::Function(_)) || !reached {
                true => check_node(self.module, node, &inference.facts),
                false => Ok(None),
            };
            let alone = match alone {
                Ok(inferred) => {
                    inferred.filter(|_| !reached).map(|inferred| inferred.types).unwrap_or_default()
                }
                Err(error) => {
                    self.report(Some(node), None, Problem::Operator(error));
                    continue;
                }
            };
            for (i, &result) in data.results().iter().enumerate() {
                let Some(result) = result else { continue };
                let expected = alone.get(i).unwrap_or_else(|| inference.types.of(self.module, result));
                self.disagreement(Some(node), result, expected, "the result of its operator");
            }
        }
    }

    /// I8: reports a value whose type is not the expected one. One of both may know less than the other.
    fn disagreement(&mut self, node: Option<Node>, value: Value, expected: &Type, what: &'static str) {
        let found = &self.module.value(value).ty;
        if found.meet(expected).is_none() {
            let problem = Problem::TypeDisagrees {
                name: name_of(self.module, value),
                what,
                expected: crate::ty::describe(expected),
                found: crate::ty::describe(found),
            };
            self.report(node, Some(value), problem);
        }
    }
}

/// I6: a body and the attribute of its node name each other, and no attribute shares a body.
fn bodies(module: &Module, found: &mut Vec<Violation>) {
    let mut named: FxHashSet<GraphId> = FxHashSet::default();
    for graph in module.graph_ids() {
        for node in module.nodes(graph) {
            for attr in module.node(node).attrs() {
                for &body in attr.value.graphs() {
                    let owner = GraphOwner::Body { node, attr: attr.name };
                    if module.graph(body).owner != owner || !named.insert(body) {
                        let problem = Problem::Body { attr: module.text(attr.name).to_owned() };
                        found.push(Violation { graph, node: Some(node), value: None, problem });
                    }
                }
            }
        }
    }
    for graph in module.graph_ids() {
        if let GraphOwner::Body { node, attr } = module.graph(graph).owner
            && !named.contains(&graph)
        {
            let problem = Problem::Body { attr: module.text(attr).to_owned() };
            found.push(Violation { graph, node: Some(node), value: None, problem });
        }
    }
}

/// I10: versions of the model, and of the domains that it and its functions import.
fn versions(module: &Module, found: &mut Vec<Violation>) {
    let mut report = |graph, problem| found.push(Violation { graph, node: None, value: None, problem });
    // 0 is for one that has none yet.
    if !(0..=LATEST_IR_VERSION).contains(&module.header.ir_version) {
        let problem = Problem::IrVersion { found: module.header.ir_version, newest: LATEST_IR_VERSION };
        report(module.main(), problem);
    }
    let functions = module.functions().map(|(_, f)| (f.graph, &f.opsets));
    for (graph, imports) in std::iter::once((module.main(), &module.header.opsets)).chain(functions) {
        let mut versions: FxHashMap<&str, u16> = FxHashMap::default();
        for &(domain, version) in imports {
            let domain = match module.text(domain) {
                "" => "ai.onnx",
                other => other,
            };
            if let Some(newest) = latest_opset(domain).filter(|newest| !(1..=*newest).contains(&version)) {
                report(graph, Problem::OpsetVersion { domain: domain.to_owned(), found: version, newest });
            }
            let first = *versions.entry(domain).or_insert(version);
            if first != version {
                let domain = domain.to_owned();
                report(graph, Problem::DuplicateOpset { domain, first, second: version });
            }
        }
    }
}

/// I6: no function reaches itself through calls.
fn functions(module: &Module, found: &mut Vec<Violation>) {
    let mut calls = petgraph::graphmap::DiGraphMap::<usize, ()>::new();
    let ids: Vec<FunctionId> = module.functions().map(|(id, _)| id).collect();
    let index = |f: FunctionId| crate::entity::EntityRef::index(f);
    for &id in &ids {
        calls.add_node(index(id));
    }
    for graph in module.graph_ids() {
        let GraphOwner::Function(caller) = module.graph(module.root(graph)).owner else { continue };
        for node in module.nodes(graph) {
            if let Op::Call(callee) = module.node(node).op {
                calls.add_edge(index(caller), index(callee), ());
            }
        }
    }
    for component in petgraph::algo::tarjan_scc(&calls) {
        let cyclic = component.len() > 1 || component.first().is_some_and(|&f| calls.contains_edge(f, f));
        for &f in component.iter().filter(|_| cyclic) {
            let data = module.function(crate::entity::EntityRef::new(f));
            let name = module.text(data.name).to_owned();
            found.push(Violation {
                graph: data.graph,
                node: None,
                value: None,
                problem: Problem::RecursiveFunction { name },
            });
        }
    }
}
