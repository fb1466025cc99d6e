//! The flow of precision. Vertices are type variables of nodes and ports of nodes with bodies and of functions; edges
//! are values, also through captures into bodies.
//!
//! ```text
//! %y = Add(%a, %b)          one variable types %a, %b and %y
//! %z = If(%c; %y) {         one port types the outputs of the branches, %r among them, and %z
//!   … %r = Relu(%y) …       %y is an edge from the Add to the Relu, %r an edge from the Relu to the port
//! }                         %z is an edge from the port to its readers
//! ```

use crate::graph::containers::is_container;
use ampc_ir::module::{Decision, Def, Op, Provenance};
use ampc_ir::op::{self, Class, FormalType, Legality, OpKind, Side};
use ampc_ir::ports::Ports;
pub use ampc_ir::views::resolve_captures;
use ampc_ir::{DType, FunctionId, GraphId, Module, Node, Type, Value};
use rustc_hash::FxHashSet;
use smallvec::{SmallVec, smallvec};

/// A type variable of a node of the operator table, or a port of a node with bodies or of the calls of a function.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Var {
    /// The node.
    pub node: Node,
    /// The index of the variable in the schema, or the index of the port.
    pub var: u16,
}

impl Var {
    fn port(node: Node, port: usize) -> Option<Var> {
        Some(Var { node, var: u16::try_from(port).ok()? })
    }
}

/// A reader of a value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reader {
    /// An operand of a node.
    Operand(Node, u32),
    /// An output of the graph of the value, which the owner of the graph reads.
    Output(GraphId, u32),
}

impl Reader {
    /// The node and slot, if the reader is an operand.
    pub fn operand(self) -> Option<(Node, u32)> {
        match self {
            Reader::Operand(node, slot) => Some((node, slot)),
            Reader::Output(..) => None,
        }
    }
}

/// All graphs: the main graph, functions, and bodies, each after the graph around it.
pub fn graphs(module: &Module) -> Vec<GraphId> {
    module.program_graphs().to_vec()
}

/// The graphs of functions, each after the graphs of the functions that it calls.
pub fn functions_callees_first(module: &Module) -> Vec<GraphId> {
    let mut order = Vec::new();
    let mut seen: FxHashSet<FunctionId> = FxHashSet::default();
    for (first, _) in module.functions() {
        // A function is pushed twice: the second entry is popped after the callees and appends the function to the
        // order.
        let mut work = vec![(first, false)];
        while let Some((function, left)) = work.pop() {
            let graph = module.function(function).graph;
            if left {
                order.push(graph);
            } else if seen.insert(function) {
                work.push((function, true));
                work.extend(called_in(module, graph).into_iter().map(|callee| (callee, false)));
            }
        }
    }
    order
}

/// The graphs of functions that the main graph does not call, neither directly nor through other functions.
pub fn dead_functions(module: &Module) -> FxHashSet<GraphId> {
    let mut dead: FxHashSet<GraphId> = module.functions().map(|(_, function)| function.graph).collect();
    let mut work = vec![module.main()];
    while let Some(graph) = work.pop() {
        let called = called_in(module, graph).into_iter().map(|function| module.function(function).graph);
        work.extend(called.filter(|graph| dead.remove(graph)));
    }
    dead
}

/// The functions that a graph and its bodies call.
fn called_in(module: &Module, graph: GraphId) -> Vec<FunctionId> {
    let (mut graphs, mut called) = (vec![graph], Vec::new());
    while let Some(graph) = graphs.pop() {
        for node in module.nodes(graph) {
            let data = module.node(node);
            graphs.extend(data.bodies());
            if let Op::Call(function) = data.op {
                called.push(function);
            }
        }
    }
    called
}

/// The nodes of all [`graphs`], each graph in program order.
pub fn nodes(module: &Module) -> Vec<Node> {
    module.program_nodes().to_vec()
}

/// The nodes of a graph and its bodies: each graph in program order, bodies after the graph that contains them.
pub fn nodes_in(module: &Module, graph: GraphId) -> Vec<Node> {
    let (mut nodes, mut work) = (Vec::new(), vec![graph]);
    while let Some(graph) = work.pop() {
        let first = nodes.len();
        nodes.extend(module.nodes(graph));
        let bodies: Vec<GraphId> =
            nodes[first..].iter().flat_map(|&node| module.node(node).bodies()).collect();
        work.extend(bodies.into_iter().rev());
    }
    nodes
}

/// Returns the variable that types operand `slot` of a node, if the operand is formal and typed by a variable.
pub fn reader_var(module: &Module, node: Node, slot: u32) -> Option<Var> {
    let data = module.node(node);
    if slot as usize >= data.n_formal() {
        return None;
    }
    if let Some(ports) = Ports::of(module, node) {
        return Var::port(ports.node(), ports.of_operand(slot as usize)?);
    }
    match data.schema()?.input(slot as usize)?.ty {
        FormalType::Var(var) => Some(Var { node, var: var.into() }),
        FormalType::Is(_) => None,
    }
}

/// The variable that a reader belongs to, if it has one.
pub fn var_of_reader(module: &Module, reader: Reader) -> Option<Var> {
    match reader {
        Reader::Operand(node, slot) => reader_var(module, node, slot),
        Reader::Output(graph, slot) => {
            let ports = Ports::of_body(module, graph)?;
            Var::port(ports.node(), ports.of_body_output(slot as usize)?)
        }
    }
}

/// Returns the variable that types a value at its definition, if a node of the table makes the value or passes it into
/// a body.
pub fn producer_var(module: &Module, value: Value) -> Option<Var> {
    let value = resolve_captures(module, value);
    let data = module.value(value);
    match data.def {
        Def::Result { node, slot } => {
            if let Some(ports) = Ports::of(module, node) {
                return Var::port(ports.node(), ports.of_result(slot as usize)?);
            }
            match module.node(node).schema()?.output(slot as usize)?.ty {
                FormalType::Var(var) => Some(Var { node, var: var.into() }),
                FormalType::Is(_) => None,
            }
        }
        Def::Input { slot, .. } => {
            let ports = Ports::of_body(module, data.graph)?;
            Var::port(ports.node(), ports.of_body_input(slot as usize)?)
        }
        Def::Capture { .. } | Def::Constant(_) | Def::Erased => None,
    }
}

/// The values by which bodies of a node capture operand `slot` of the node.
fn captures_of(module: &Module, node: Node, slot: u32) -> impl Iterator<Item = Value> + '_ {
    let data = module.node(node);
    let bodies = data.bodies().filter(move |_| slot as usize >= data.n_formal());
    bodies.flat_map(move |body| module.graph(body).captures_of(slot)).copied()
}

/// The decision for a variable, if its node is classified.
pub fn decision(module: &Module, var: Var) -> Option<&Decision> {
    module.node(var.node).decisions.get(usize::from(var.var))
}

/// True if a variable may still be lowered: it is f32 now, no element type is decided, and its class allows lowering.
pub fn is_free(module: &Module, var: Var) -> bool {
    decision(module, var).is_some_and(|d| {
        d.precision.is_none()
            && matches!(
                d.class,
                Class::Allow | Class::Infer | Class::Clear | Class::Discrete | Class::Promote
            )
    })
}

/// The values that the variable types on the way in: formal operands of the node with their slots, and for a port also
/// the outputs of bodies that the port reads, with their slots.
pub fn operands_of(module: &Module, var: Var) -> impl Iterator<Item = (usize, Value)> + '_ {
    match Ports::of(module, var.node) {
        None => Typed::Formals(formals_of(module, var, Side::Operand)),
        Some(ports) => Typed::Port(Box::new(operands_of_port(module, ports, usize::from(var.var)))),
    }
}

/// The values that the variable types on the way out: results of the node with their slots, and for a port also the
/// inputs of bodies that the port makes.
pub fn results_of(module: &Module, var: Var) -> impl Iterator<Item = (usize, Value)> + '_ {
    match Ports::of(module, var.node) {
        None => Typed::Formals(formals_of(module, var, Side::Result)),
        Some(ports) => Typed::Port(Box::new(results_of_port(module, ports, usize::from(var.var)))),
    }
}

/// An iterator over the values that a variable or a port types. Nearly every variable belongs to a node without ports,
/// and the iterator is created very often, so the large iterator of a port is boxed.
enum Typed<'m, F> {
    Formals(F),
    Port(Box<dyn Iterator<Item = (usize, Value)> + 'm>),
}

impl<F: Iterator<Item = (usize, Value)>> Iterator for Typed<'_, F> {
    type Item = (usize, Value);
    fn next(&mut self) -> Option<(usize, Value)> {
        match self {
            Typed::Formals(formals) => formals.next(),
            Typed::Port(port) => port.next(),
        }
    }
}

/// The operands or results whose formal the variable types, with their slots.
fn formals_of(module: &Module, var: Var, side: Side) -> impl Iterator<Item = (usize, Value)> + '_ {
    let data = module.node(var.node);
    let schema = data.schema();
    let values = match side {
        Side::Operand => data.formal_operands(),
        Side::Result => data.results(),
    };
    let typed = u8::try_from(var.var).ok().map(FormalType::Var);
    values.iter().enumerate().filter_map(move |(slot, &value)| {
        let formal = match side {
            Side::Operand => schema?.input(slot)?,
            Side::Result => schema?.output(slot)?,
        };
        (Some(formal.ty) == typed).then_some((slot, value?))
    })
}

fn operands_of_port(module: &Module, ports: Ports, at: usize) -> impl Iterator<Item = (usize, Value)> + '_ {
    let of_nodes = ports.operand(at).map(|slot| {
        let nodes = ports.nodes_with_operand(module, slot);
        nodes.filter_map(move |node| Some((slot, module.node(node).operand(slot)?)))
    });
    let outputs = ports.body_outputs(module, at);
    let of_bodies = outputs.map(|(body, slot)| (slot, module.graph(body).outputs()[slot].value));
    of_nodes.into_iter().flatten().chain(of_bodies)
}

fn results_of_port(module: &Module, ports: Ports, at: usize) -> impl Iterator<Item = (usize, Value)> + '_ {
    let of_nodes = ports.result(at).map(|slot| {
        let nodes = ports.nodes_with_result(module, slot);
        nodes.filter_map(move |node| Some((slot, module.node(node).result(slot)?)))
    });
    of_nodes.into_iter().flatten().chain(ports.body_inputs(module, at).enumerate())
}

/// The variables of a node.
pub fn vars(module: &Module, node: Node) -> impl Iterator<Item = Var> + use<> {
    let n = u16::try_from(module.n_vars(node)).unwrap_or(0);
    (0..n).map(move |var| Var { node, var })
}

/// True if a variable is a port.
pub fn is_port(module: &Module, var: Var) -> bool {
    Ports::of(module, var.node).is_some()
}

/// True if the variable is loop-carried state of a body.
pub fn is_state(module: &Module, var: Var) -> bool {
    Ports::of(module, var.node).is_some_and(|ports| ports.is_state(usize::from(var.var)))
}

/// Returns the legality of a format for a variable that is f32, by the schema of its node.
pub fn legality(module: &Module, var: Var, format: DType) -> Legality {
    if let Op::Call(function) = module.node(var.node).op {
        return call_legality(module, function, format);
    }
    let Some(schema) = module.node(var.node).schema() else { return Legality::NotFloat };
    let ports = Ports::of(module, var.node);
    if let Some((side, index, ty)) = container_of(module, var) {
        let last =
            if side == Side::Result { schema.outputs.len() } else { schema.inputs.len() }.saturating_sub(1);
        // All ports of a side belong to one variadic formal, the last.
        let index = if ports.is_some() { last } else { index.min(last) };
        return op::type_legality(schema, side, index, ty, format);
    }
    let Some(ports) = ports else {
        let Ok(v) = u8::try_from(var.var) else { return Legality::NotFloat };
        let opset = module.opset(module.node(var.node).graph, schema.domain);
        return op::legality_at(schema, v, format, opset.unwrap_or(schema.since));
    };
    // All ports of a side belong to one variadic formal, the last.
    let (side, formals) = match ports.result(usize::from(var.var)) {
        Some(_) => (Side::Result, schema.outputs),
        None => (Side::Operand, schema.inputs),
    };
    op::formal_legality(schema, side, formals.len().saturating_sub(1), format)
}

/// The version of ONNX's own operator set that casts in a graph belong to: the version that the graph imports. If the
/// graph imports none, it will have to import one for the casts: the version of the model, else the version that
/// belongs to the IR version.
pub fn onnx_opset(module: &Module, graph: GraphId) -> u16 {
    let by_version = || match module.header.ir_version {
        1..=3 => 8,
        4 => 9,
        5 => 10,
        6 => 11,
        7 => 12,
        8 => 15,
        9 => 19,
        // A module without an IR version is written with version 10.
        0 | 10 => 21,
        11 => 23,
        12 => 24,
        _ => 25,
    };
    module.opset(graph, "").or_else(|| module.opset(module.main(), "")).unwrap_or_else(by_version)
}

/// Returns the legality of a format as the operand or result of a cast in a graph.
pub fn cast_legality(module: &Module, graph: GraphId, format: DType) -> Legality {
    match op::lookup("", "Cast", onnx_opset(module, graph)) {
        op::Lookup::Found(cast) => op::legality(cast, 0, format),
        _ => Legality::NotFloat,
    }
}

/// Returns the legality of a format for values that calls of a function pass in and get back. Functions have no types,
/// but where such a value is read in another format, a Cast is needed: around a call and in the function.
fn call_legality(module: &Module, function: FunctionId, format: DType) -> Legality {
    let graphs = module.calling_graphs(function).iter().copied().chain([module.function(function).graph]);
    let mut legality = graphs.map(|graph| cast_legality(module, graph, format));
    legality.find(|&legality| legality != Legality::Legal).unwrap_or(Legality::Legal)
}

/// The sequence or optional that a variable types, with its side and slot.
fn container_of(module: &Module, var: Var) -> Option<(Side, usize, &Type)> {
    let operands = operands_of(module, var).map(|(slot, value)| (Side::Operand, slot, value));
    let results = results_of(module, var).map(|(slot, value)| (Side::Result, slot, value));
    let mut typed = operands.chain(results).map(|(side, slot, value)| (side, slot, &module.value(value).ty));
    let ports = Ports::of(module, var.node);
    let found = typed.find(|(.., ty)| is_container(ty))?;
    // A port without a result reads an operand.
    let side = match &ports {
        Some(ports) if ports.result(usize::from(var.var)).is_none() => Side::Operand,
        Some(_) => Side::Result,
        None => found.0,
    };
    Some((side, found.1, found.2))
}

/// The type that the operands and results bind a variable to; `None` if no type is known.
pub fn bound_type(module: &Module, var: Var) -> Option<&Type> {
    operands_of(module, var)
        .chain(results_of(module, var))
        .map(|(_, value)| &module.value(value).ty)
        .find(|ty| **ty != Type::Unknown)
}

/// Returns the value behind any casts that an earlier run inserted: the value as it is computed, whatever type it is
/// stored as. The value may belong to a graph around the body.
pub fn behind_inserted(module: &Module, value: Value) -> Value {
    let mut behind = value;
    let mut found = value;
    loop {
        behind = resolve_captures(module, behind);
        let Some((node, _)) = module.producer(behind) else { return found };
        match (inserted_result(module, node), module.node(node).operand(0)) {
            (Some(_), Some(operand)) => behind = operand,
            _ => return found,
        }
        found = resolve_captures(module, behind);
    }
}

/// The variable that computes a value, looking through casts that an earlier run inserted.
pub fn origin_var(module: &Module, value: Value) -> Option<Var> {
    producer_var(module, behind_inserted(module, value))
}

/// The readers of a value here and in bodies, looking through casts that an earlier run inserted. Outputs are readers
/// in bodies only; see [`outputs`]. The order has no meaning; sort where order matters.
pub fn readers(module: &Module, value: Value) -> SmallVec<[Reader; 4]> {
    let mut readers = SmallVec::new();
    let mut work: SmallVec<[Value; 4]> = smallvec![value];
    while let Some(value) = work.pop() {
        let graph = module.value(value).graph;
        if graph != module.main() {
            readers.extend(module.output_slots(value).map(|slot| Reader::Output(graph, slot)));
        }
        for (node, slot) in module.uses(value) {
            match inserted_result(module, node) {
                Some(result) => work.push(result),
                None if slot as usize >= module.node(node).n_formal() => {
                    work.extend(captures_of(module, node, slot));
                }
                None => readers.push(Reader::Operand(node, slot)),
            }
        }
    }
    readers
}

/// The maximal number of consecutive casts of the author that [`readers_beyond_casts`] and [`behind_casts`] look
/// through. Because of this bound, queries for all values of a chain of casts take time linear in the chain.
const MAX_CASTS: usize = 32;

/// The operands and outputs of the main graph that read a value, looking through float casts of the author as well (a
/// number stays dangerous when it is cast), into bodies, out of them and around loops. Use only to deny lowering.
pub fn readers_beyond_casts(module: &Module, value: Value) -> Vec<Reader> {
    let mut readers = Vec::new();
    let mut seen: FxHashSet<Var> = FxHashSet::default();
    let mut work = vec![(value, MAX_CASTS)];
    while let Some((value, left)) = work.pop() {
        let graph = module.value(value).graph;
        let outputs = module.output_slots(value).map(|slot| Reader::Output(graph, slot));
        let uses = module.uses(value).map(|(node, slot)| Reader::Operand(node, slot));
        for reader in outputs.chain(uses) {
            if matches!(reader, Reader::Output(graph, _) if graph == module.main()) {
                readers.push(reader);
                continue;
            }
            if let Reader::Operand(node, slot) = reader {
                if let Some(result) = float_cast(module, node).filter(|_| left > 0) {
                    work.push((result, left - 1));
                    continue;
                }
                if slot as usize >= module.node(node).n_formal() {
                    work.extend(captures_of(module, node, slot).map(|v| (v, left)));
                    continue;
                }
                if Ports::of(module, node).is_none() {
                    readers.push(reader);
                    continue;
                }
            }
            // A port passes on the values that it reads.
            if let Some(port) = var_of_reader(module, reader).filter(|&port| left > 0 && seen.insert(port)) {
                work.extend(results_of(module, port).map(|(_, v)| (v, left - 1)));
            }
        }
    }
    readers
}

/// Returns the value behind any float casts and captures: the opposite direction of [`readers_beyond_casts`].
pub fn behind_casts(module: &Module, value: Value) -> Value {
    let mut value = resolve_captures(module, value);
    for _ in 0..MAX_CASTS {
        let Some((node, _)) = module.producer(value) else { break };
        match (float_cast(module, node), module.node(node).operand(0)) {
            (Some(_), Some(operand)) => value = resolve_captures(module, operand),
            _ => break,
        }
    }
    value
}

/// Returns the result of a cast from a float to a float.
pub(crate) fn float_cast(module: &Module, node: Node) -> Option<Value> {
    let data = module.node(node);
    let is_float = |value| module.value(value).ty.dtype().is_some_and(DType::is_float);
    (data.schema()?.kind == OpKind::Cast && is_float(data.operand(0)?))
        .then(|| data.result(0))
        .flatten()
        .filter(|&v| is_float(v))
}

/// Makes an inserted node a node of the author if it is not a cast between fp32, fp16 and bf16. No pass inserts other
/// nodes, and the operand of such a node is another value than its result.
pub(crate) fn withdraw_false_marks(module: &mut Module) {
    let is_false = |module: &Module, node: Node| {
        let data = module.node(node);
        let may_be = |value: Option<Value>| {
            let ty = value.map(|v| &module.value(v).ty);
            ty.is_some_and(|ty| {
                matches!(ty.dtype(), Some(DType::F32 | DType::F16 | DType::BF16)) || *ty == Type::Unknown
            })
        };
        let is_cast = data.schema().is_some_and(|s| s.kind == OpKind::Cast);
        data.provenance == Provenance::Inserted
            && !(is_cast && may_be(data.operand(0)) && may_be(data.result(0)))
    };
    for graph in module.graph_ids().collect::<Vec<_>>() {
        let found: Vec<Node> = module.nodes(graph).filter(|&n| is_false(module, n)).collect();
        for node in found {
            *module.node_mut(node).provenance = Provenance::User;
        }
    }
}

/// Returns the first result of a node that is marked as inserted. Such a node is a cast that an earlier run inserted: other
/// marks are withdrawn before the first pass.
pub fn inserted_result(module: &Module, node: Node) -> Option<Value> {
    let data = module.node(node);
    (data.provenance == Provenance::Inserted).then(|| data.result(0)).flatten()
}

/// The values that leave a graph.
pub fn outputs(module: &Module, graph: GraphId) -> FxHashSet<Value> {
    module.graph(graph).outputs().iter().map(|o| o.value).collect()
}
