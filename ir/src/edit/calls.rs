//! Inlining of functions: replacing calls by the nodes of the functions that they call.

use super::{NewNode, Position};
use crate::attr::{Attr, AttrValue};
use crate::entity::{FunctionId, GraphId, Node, SecondaryMap, Symbol, Value};
use crate::facts::{CallAttrs, Defaults};
use crate::module::{Module, Op, Provenance};
use crate::op::{Arity, Lookup, latest_opset, lookup};
use rustc_hash::{FxHashMap, FxHashSet};

/// The nodes that stand in place of calls, with their sources.
#[derive(Clone, Debug, Default)]
pub struct InlinedCalls {
    copies: SecondaryMap<Node, Option<Copied>>,
    /// Constants of functions: each copy, and the constant of the function.
    pub constants: Vec<(Value, Value)>,
    /// The number of calls that were replaced.
    pub n_calls: u64,
}

/// The source of a node that stands in place of a call.
#[derive(Clone, Copy, Debug)]
struct Copied {
    /// The node of the function.
    source: Node,
    /// The call, which may be a copy itself; `None` if the source is not in a function.
    call: Option<Node>,
}

impl InlinedCalls {
    /// The node that a node was copied from: a node of the module as it was before. Other nodes are their own sources.
    pub fn source(&self, node: Node) -> Node {
        self.copies[node].map_or(node, |copied| copied.source)
    }

    /// Makes the source and the calls of a node those of another node, on whose behalf it was inserted.
    pub fn add_copy(&mut self, inserted: Node, of: Node) {
        self.copies[inserted] = Some(self.of_call(of));
    }

    /// The calls in whose place a node stands, the outermost call first, each as a node of the module as it was before.
    pub fn calls(&self, node: Node) -> Vec<Node> {
        let call = |node: Node| self.copies[node].and_then(|copied| copied.call);
        let calls = std::iter::successors(call(node), |&node| call(node));
        let mut calls: Vec<Node> = calls.map(|call| self.source(call)).collect();
        calls.reverse();
        calls
    }

    /// The source of a node that stands for a call as a whole.
    fn of_call(&self, call: Node) -> Copied {
        self.copies[call].unwrap_or(Copied { source: call, call: None })
    }
}

/// The size of the copy of a function, in parts: nodes, operands, results, constants, elements of attributes, and the
/// length of names.
#[derive(Clone, Copy, Default)]
struct Size {
    parts: u64,
    /// The attributes of nodes that refer to attributes of the function.
    references: u64,
}

/// Characters of a name that count as one part.
const NAME_PART: usize = 16;

impl Module {
    /// Replaces the calls of functions in the main graph and its bodies by the nodes of the functions, then the calls in
    /// these nodes, level by level, and erases the functions that nothing calls any more. References to attributes are
    /// resolved. Values of the main graph keep their names; copied values get new names, or the names of the results that
    /// they stand for.
    ///
    /// A call stays if its copy would have more parts than `limit` leaves. A part is a node, an operand, a result, an
    /// element of an attribute and so on; the time that this takes is linear in the number of parts that are made. A call
    /// also stays if it has bodies, or leaves out an operand that the function requires, captures or returns.
    ///
    /// A copied node keeps the version of its operator, also where the model imports another version. The module can run
    /// then, but no text or file shows it.
    pub fn inline_calls(&mut self, limit: u64) -> InlinedCalls {
        let mut inliner = Inliner { limit, ..Inliner::default() };
        let mut level = self.calls_inside(vec![self.main]);
        while !level.is_empty() {
            level.retain(|&call| inliner.takes(self, call));
            level = self.inline_level(&level, &mut inliner);
        }
        if inliner.made.n_calls > 0 {
            self.drop_uncalled();
        }
        inliner.made
    }

    /// The calls in graphs and their bodies; those of one graph in program order.
    fn calls_inside(&self, mut graphs: Vec<GraphId>) -> Vec<Node> {
        let (mut calls, mut next) = (Vec::new(), 0);
        while let Some(&graph) = graphs.get(next) {
            for node in self.nodes(graph) {
                calls.extend(matches!(self.nodes[node].op, Op::Call(_)).then_some(node));
                graphs.extend(self.nodes[node].bodies());
            }
            next += 1;
        }
        calls
    }

    /// Replaces calls, and returns the calls that are in their copies. Edges of the use graph are removed all at once: a
    /// value that many calls read has as many edges.
    fn inline_level(&mut self, level: &[Node], inliner: &mut Inliner) -> Vec<Node> {
        let operands: Vec<Vec<Option<Value>>> =
            level.iter().map(|&call| self.nodes[call].operands.to_vec()).collect();
        let cut =
            level.iter().flat_map(|&call| (0..self.nodes[call].operands.len()).map(move |i| (call, i, None)));
        self.set_operands(cut.collect());
        let mut instead: FxHashMap<Value, Value> = FxHashMap::default();
        let mut nested = Vec::new();
        for (&call, operands) in level.iter().zip(operands) {
            let operands =
                operands.into_iter().map(|value| value.map(|v| instead.get(&v).copied().unwrap_or(v)));
            let (outputs, graphs) = self.copy_callee(call, &operands.collect::<Vec<_>>(), inliner);
            nested.extend(self.calls_among(&outputs.nodes, graphs));
            let results = self.nodes[call].results.clone();
            for (result, output) in results.into_iter().zip(outputs.values) {
                let (Some(result), Some(output)) = (result, output) else { continue };
                let output = self.named_as(result, output, call, &outputs.nodes, inliner);
                instead.insert(result, output);
            }
        }
        self.hand_over_results(level, &instead);
        for &call in level {
            self.erase_listed(call);
        }
        for (value, name) in std::mem::take(&mut inliner.renamed) {
            self.set_value_name(value, name);
        }
        nested
    }

    /// Makes the readers of results, the outputs and the roles name the values that stand for the results.
    fn hand_over_results(&mut self, calls: &[Node], instead: &FxHashMap<Value, Value>) {
        let results = calls.iter().flat_map(|&call| self.nodes[call].results.iter().flatten().copied());
        let results: Vec<Value> = results.filter(|result| instead.contains_key(result)).collect();
        let uses = |result: &Value| {
            let output = instead[result];
            self.uses(*result)
                .map(move |(node, slot)| (node, slot as usize, Some(output)))
                .collect::<Vec<_>>()
        };
        let edits = results.iter().flat_map(uses).collect();
        self.set_operands(edits);
        for result in results {
            let (graph, output) = (self.values[result].graph, instead[&result]);
            for slot in self.output_slots(result).collect::<Vec<_>>() {
                self.set_output(graph, slot as usize, output);
            }
            self.move_roles(result, output);
        }
    }

    /// The value that stands for a result of a call, `output` or a copy of it. An output of the main graph keeps its name.
    fn named_as(
        &mut self,
        result: Value,
        output: Value,
        call: Node,
        moved: &[Node],
        inliner: &mut Inliner,
    ) -> Value {
        let graph = self.nodes[call].graph;
        let name = self.values[result].name.expect("results have names");
        let maker = self.producer(output).map(|(maker, _)| maker);
        // Nodes were made one after the other, so their ids ascend.
        let is_moved = maker.is_some_and(|maker| moved.binary_search(&maker).is_ok());
        if is_moved && inliner.claimed.insert(output) {
            inliner.renamed.push((output, name));
            return output;
        }
        if graph != self.main || !self.is_output(result) {
            return output;
        }
        let version = self.opset(graph, "").unwrap_or_else(|| {
            let latest = latest_opset("").expect("ai.onnx has versions");
            self.import_opset(graph, "", latest);
            latest
        });
        let Lookup::Found(schema) = lookup("", "Identity", version) else {
            unreachable!("Identity is in every opset")
        };
        let base = self.text(name).to_owned();
        let fresh = self.fresh_name(&base);
        let copy = NewNode {
            op: Op::Schema(schema),
            name: None,
            operands: smallvec::smallvec![Some(output)],
            attrs: Vec::new(),
            results: vec![Some((fresh, self.values[output].ty.clone()))],
            provenance: Provenance::User,
        };
        let copy = self.add_node(graph, Position::Before(call), copy);
        inliner.made.copies[copy] = Some(inliner.made.of_call(call));
        let value = self.nodes[copy].results[0].expect("it has one");
        inliner.renamed.push((value, name));
        value
    }

    /// Copies the nodes of the function of a call in front of the call. Returns them with the values of the outputs of
    /// the function, and the bodies of the copies.
    fn copy_callee(
        &mut self,
        call: Node,
        operands: &[Option<Value>],
        inliner: &mut Inliner,
    ) -> (Outputs, Vec<GraphId>) {
        let Op::Call(function) = self.nodes[call].op else { unreachable!("{call} is no call") };
        let (graph, callee) = (self.nodes[call].graph, self.functions[function].graph);
        self.import_of(function, graph);
        let defaults =
            inliner.defaults.entry(function).or_insert_with(|| Defaults::of(self, function)).clone();
        let attrs = CallAttrs::new(self, call, defaults, None);
        let formals = self.graphs[callee].inputs.iter().copied().zip(operands.iter().copied());
        let mut copies: FxHashMap<Value, Value> =
            formals.filter_map(|(formal, operand)| Some((formal, operand?))).collect();
        for constant in self.graphs[callee].constants.clone() {
            if let Some(&copy) = inliner.constants.get(&(graph, constant)) {
                copies.insert(constant, copy);
                continue;
            }
            let copy = self.copy_source(constant, graph);
            self.copy_value(constant, copy, &mut copies);
            self.rename_anew(copy);
            inliner.constants.insert((graph, constant), copy);
            inliner.made.constants.push((copy, constant));
        }
        let (mut work, mut pairs, mut nodes) = (Vec::new(), Vec::new(), Vec::new());
        for source in self.nodes(callee).collect::<Vec<_>>() {
            let bodies = self.copy_node(source, graph, &mut copies);
            pairs.extend(bodies.iter().copied());
            work.extend(bodies);
            let copy = self.graphs[graph].last.expect("it was added at the end");
            self.move_node(copy, Position::Before(call));
            self.adopt(source, copy, call, &attrs, inliner);
            nodes.push(copy);
        }
        self.copy_bodies(work, &mut copies);
        let mut next = 0;
        while let Some(&(body, copied)) = pairs.get(next) {
            next += 1;
            for input in self.graphs[copied].inputs.clone() {
                self.rename_anew(input);
            }
            let constants = self.graphs[copied].constants.clone();
            for (copy, source) in constants.into_iter().zip(self.graphs[body].constants.clone()) {
                self.rename_anew(copy);
                inliner.made.constants.push((copy, source));
            }
            let sources: Vec<Node> = self.nodes(body).collect();
            for (source, copy) in sources.into_iter().zip(self.nodes(copied).collect::<Vec<_>>()) {
                self.adopt(source, copy, call, &attrs, inliner);
                pairs.extend(self.nodes[source].bodies().zip(self.nodes[copy].bodies()));
            }
        }
        let outputs = self.graphs[callee].outputs.iter().map(|output| copies.get(&output.value).copied());
        inliner.made.n_calls += 1;
        (Outputs { values: outputs.collect(), nodes }, pairs.into_iter().map(|(_, copied)| copied).collect())
    }

    /// Notes the source of a copy, gives its results names of their own, and resolves its references to attributes.
    fn adopt(&mut self, source: Node, copy: Node, call: Node, attrs: &CallAttrs, inliner: &mut Inliner) {
        inliner.made.copies[copy] = Some(Copied { source, call: Some(call) });
        for result in self.nodes[copy].results.clone().into_iter().flatten() {
            self.rename_anew(result);
        }
        if self.nodes[copy].attrs.iter().any(is_reference) {
            let resolved = |attr: Attr| match &attr.value {
                AttrValue::Reference { name, .. } => Some(Attr { value: attrs.get(*name)?.clone(), ..attr }),
                _ => Some(attr),
            };
            let attrs = std::mem::take(&mut self.nodes[copy].attrs);
            self.nodes[copy].attrs = attrs.into_iter().filter_map(resolved).collect();
        }
    }

    /// The calls among copies and in their bodies; those of one graph in program order.
    fn calls_among(&self, nodes: &[Node], bodies: Vec<GraphId>) -> Vec<Node> {
        let inside = bodies.into_iter().flat_map(|body| self.nodes(body));
        let all = nodes.iter().copied().chain(inside);
        all.filter(|&node| matches!(self.nodes[node].op, Op::Call(_))).collect()
    }

    /// Imports the domains of a function where a graph takes its imports from, unless they are imported there.
    fn import_of(&mut self, function: FunctionId, graph: GraphId) {
        for (domain, version) in self.functions[function].opsets.clone() {
            let domain = match self.text(domain) {
                "ai.onnx" => String::new(),
                domain => domain.to_owned(),
            };
            if self.opset(graph, &domain).is_none() {
                self.import_opset(graph, &domain, version);
            }
        }
    }

    fn rename_anew(&mut self, value: Value) {
        if let Some(name) = self.values[value].name {
            let base = self.text(name).to_owned();
            let fresh = self.fresh_name(&base);
            self.set_value_name(value, fresh);
        }
    }

    /// Drops erased calls from the lists of calls, and erases the functions that no call reaches.
    fn drop_uncalled(&mut self) {
        let (mut called, mut work) = (FxHashSet::default(), vec![self.main]);
        while let Some(graph) = work.pop() {
            for call in self.calls_inside(vec![graph]) {
                let Op::Call(function) = self.nodes[call].op else { continue };
                if called.insert(function) {
                    work.push(self.functions[function].graph);
                }
            }
        }
        let functions: Vec<FunctionId> = self.functions().map(|(function, _)| function).collect();
        for &function in functions.iter().filter(|function| !called.contains(function)) {
            self.erase_content(function);
        }
        for function in functions {
            if let Some(mut callers) = self.calls.remove(&function) {
                callers.nodes_mut().retain(|&call| self.nodes[call].alive);
                self.calls.insert(function, callers);
            }
        }
    }

    fn size_of_callee(&self, function: FunctionId) -> Size {
        let mut size = Size::default();
        let mut work = vec![self.functions[function].graph];
        let named = |value: &Value| {
            let name = self.values[*value].name.map_or(0, |name| self.text(name).len() / NAME_PART);
            1 + name as u64
        };
        while let Some(graph) = work.pop() {
            let data = &self.graphs[graph];
            let values = data.inputs.iter().chain(&data.constants).chain(data.captures());
            size.parts += values.map(named).sum::<u64>() + data.outputs.len() as u64;
            for node in self.nodes(graph) {
                let data = &self.nodes[node];
                let (operands, metadata) = (data.operands.len(), data.metadata.len());
                size.parts += 1 + operands as u64 + metadata as u64;
                size.parts += data.results.iter().flatten().map(named).sum::<u64>();
                size.parts += data.attrs.iter().map(|attr| elements_of(&attr.value)).sum::<u64>();
                size.references += data.attrs.iter().filter(|attr| is_reference(attr)).count() as u64;
                work.extend(data.bodies());
            }
        }
        size
    }
}

fn is_reference(attr: &Attr) -> bool {
    matches!(attr.value, AttrValue::Reference { .. })
}

/// The parts of an attribute that a copy does not share.
fn elements_of(value: &AttrValue) -> u64 {
    let bytes = |text: &[u8]| 1 + (text.len() / NAME_PART) as u64;
    match value {
        AttrValue::Floats(list) => 1 + list.len() as u64,
        AttrValue::Ints(list) => 1 + list.len() as u64,
        AttrValue::String(text) => bytes(text),
        AttrValue::Strings(list) => 1 + list.iter().map(|text| bytes(text)).sum::<u64>(),
        AttrValue::Tensors(list) => 1 + list.len() as u64,
        AttrValue::SparseTensors(list) => 1 + list.len() as u64,
        AttrValue::Graphs(list) => 1 + list.len() as u64,
        AttrValue::Types(list) => 1 + list.len() as u64,
        AttrValue::Float(_)
        | AttrValue::Int(_)
        | AttrValue::Tensor(_)
        | AttrValue::Graph(_)
        | AttrValue::SparseTensor(_)
        | AttrValue::Type(_)
        | AttrValue::Reference { .. } => 1,
    }
}

/// The copies of the nodes of a function, and the values of its outputs; `None` of operands that the call leaves out.
struct Outputs {
    nodes: Vec<Node>,
    values: Vec<Option<Value>>,
}

/// The state of inlining.
#[derive(Default)]
struct Inliner {
    /// The parts that may still be made.
    limit: u64,
    made: InlinedCalls,
    sizes: FxHashMap<FunctionId, Size>,
    defaults: FxHashMap<FunctionId, Defaults>,
    /// The copies of the constants of functions, one for all calls in a graph.
    constants: FxHashMap<(GraphId, Value), Value>,
    /// Copied values that take the name of a result, once the call is erased.
    renamed: Vec<(Value, Symbol)>,
    claimed: FxHashSet<Value>,
}

impl Inliner {
    /// True if a call is replaced. Its parts are then made.
    fn takes(&mut self, module: &Module, call: Node) -> bool {
        let Op::Call(function) = module.nodes[call].op else { return false };
        let data = &module.nodes[call];
        let size = *self.sizes.entry(function).or_insert_with(|| module.size_of_callee(function));
        let defaults = &module.functions[function].attr_defaults;
        let given = data.attrs.iter().chain(defaults);
        let given: u64 =
            if size.references == 0 { 0 } else { given.map(|attr| elements_of(&attr.value)).sum() };
        let own = (data.operands.len() + data.results.len() + data.attrs.len()) as u64;
        let parts = size.references.saturating_mul(given).saturating_add(size.parts).saturating_add(own);
        if parts > self.limit || !fits(module, call, function) {
            return false;
        }
        self.limit -= parts;
        true
    }
}

/// True if the nodes of a function can stand in place of a call.
fn fits(module: &Module, call: Node, function: FunctionId) -> bool {
    let (data, callee) = (&module.nodes[call], &module.graphs[module.functions[function].graph]);
    let is_legal = data.operands.len() <= callee.inputs.len() && data.results.len() <= callee.outputs.len();
    let has_bodies = data.bodies().next().is_some() || data.n_formal() < data.operands.len();
    if !is_legal || has_bodies {
        return false;
    }
    let is_given = |slot: usize| data.operand(slot).is_some();
    let left_out = callee.inputs.iter().enumerate().filter(|&(slot, _)| !is_given(slot));
    left_out.map(|(_, &formal)| formal).all(|formal| {
        !module.is_output(formal) && module.uses(formal).all(|(reader, slot)| may_lack(module, reader, slot))
    })
}

/// True if a node may lack an operand.
fn may_lack(module: &Module, node: Node, slot: u32) -> bool {
    let data = &module.nodes[node];
    let is_formal = (slot as usize) < data.n_formal();
    match data.op {
        Op::Call(_) => is_formal,
        Op::Schema(schema) => {
            let formal = schema.input(slot as usize);
            is_formal && formal.is_some_and(|formal| formal.arity == Arity::Optional)
        }
        Op::Custom { .. } => false,
    }
}
