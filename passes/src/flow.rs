//! How precision flows: type variables of nodes as vertices, values as edges between them.

use ampc_ir::module::{Decision, Provenance};
use ampc_ir::op::{Class, FormalType, OpKind, OpSchema};
use ampc_ir::{DType, GraphId, Module, Node, Type, Value};
use rustc_hash::FxHashSet;

/// A type variable of a node of the operator table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Var {
    /// The node.
    pub node: Node,
    /// Index of the variable in the schema.
    pub var: u8,
}

/// The variable that operand `slot` of a node is typed by, if it is a formal operand typed by one.
pub fn reader_var(module: &Module, node: Node, slot: u32) -> Option<Var> {
    let data = module.node(node);
    if slot as usize >= data.n_formal() {
        return None;
    }
    match data.schema()?.input(slot as usize)?.ty {
        FormalType::Var(var) => Some(Var { node, var }),
        FormalType::Is(_) => None,
    }
}

/// The variable that types a value where it is made, if a node of the table makes it.
pub fn producer_var(module: &Module, value: Value) -> Option<Var> {
    let (node, slot) = module.producer(value)?;
    match module.node(node).schema()?.output(slot as usize)?.ty {
        FormalType::Var(var) => Some(Var { node, var }),
        FormalType::Is(_) => None,
    }
}

/// The decision for a variable, if its node is classified.
pub fn decision(module: &Module, var: Var) -> Option<&Decision> {
    module.node(var.node).decisions.get(usize::from(var.var))
}

/// Whether a variable may still be lowered: f32 now, no element type decided, and of a class that ever lowers.
pub fn is_free(module: &Module, var: Var) -> bool {
    decision(module, var).is_some_and(|d| {
        d.precision.is_none()
            && matches!(
                d.class,
                Class::Allow | Class::Infer | Class::Clear | Class::Discrete | Class::Promote
            )
    })
}

/// Operands of a node whose formals the variable types.
pub fn operands_of<'a>(module: &'a Module, var: Var) -> impl Iterator<Item = (usize, Value)> + 'a {
    let data = module.node(var.node);
    let schema = data.schema();
    data.formal_operands().iter().enumerate().filter_map(move |(i, &v)| {
        let formal = schema?.input(i)?;
        (formal.ty == FormalType::Var(var.var)).then_some((i, v?))
    })
}

/// Results of a node whose formals the variable types.
pub fn results_of<'a>(module: &'a Module, var: Var) -> impl Iterator<Item = (usize, Value)> + 'a {
    let data = module.node(var.node);
    let schema = data.schema();
    data.results().iter().enumerate().filter_map(move |(i, &v)| {
        let formal = schema?.output(i)?;
        (formal.ty == FormalType::Var(var.var)).then_some((i, v?))
    })
}

/// The variables of a node.
pub fn vars(node: Node, schema: &OpSchema) -> impl Iterator<Item = Var> + use<> {
    (0u8..).take(schema.type_vars.len()).map(move |var| Var { node, var })
}

/// The type that the operands and results bind a variable to; `None` if no type is known.
pub fn bound_type(module: &Module, var: Var) -> Option<&Type> {
    operands_of(module, var)
        .chain(results_of(module, var))
        .map(|(_, value)| &module.value(value).ty)
        .find(|ty| **ty != Type::Unknown)
}

/// The value behind any casts that an earlier run inserted: what is computed, whatever it is stored as.
pub fn behind_inserted(module: &Module, mut value: Value) -> Value {
    while let Some((node, _)) = module.producer(value) {
        match (inserted_result(module, node), module.node(node).operand(0)) {
            (Some(_), Some(operand)) => value = operand,
            _ => break,
        }
    }
    value
}

/// The variable that computes a value, looking through casts that an earlier run inserted.
pub fn origin_var(module: &Module, value: Value) -> Option<Var> {
    producer_var(module, behind_inserted(module, value))
}

/// Readers of a value: node and operand slot, looking through casts that an earlier run inserted. In no order
/// that means anything; sort where order matters.
pub fn readers(module: &Module, value: Value) -> Vec<(Node, u32)> {
    let mut readers = Vec::new();
    let mut work = vec![value];
    while let Some(value) = work.pop() {
        for (node, slot) in module.uses(value) {
            match inserted_result(module, node) {
                Some(result) => work.push(result),
                None => readers.push((node, slot)),
            }
        }
    }
    readers
}

/// Through how many casts of the author in a row [`readers_beyond_casts`] and [`behind_casts`] look. A bound, so
/// that asking for every value of a chain of casts takes time linear in the chain.
const MAX_CASTS: usize = 32;

/// [`readers`], looking through casts of the author between floats as well: a number stays dangerous when it is
/// cast. For what holds variables back, never for what lowers them.
pub fn readers_beyond_casts(module: &Module, value: Value) -> Vec<(Node, u32)> {
    let mut readers = Vec::new();
    let mut work = vec![(value, MAX_CASTS)];
    while let Some((value, left)) = work.pop() {
        for (node, slot) in module.uses(value) {
            match float_cast(module, node) {
                Some(result) if left > 0 => work.push((result, left - 1)),
                _ => readers.push((node, slot)),
            }
        }
    }
    readers
}

/// The value behind any casts between floats, as [`readers_beyond_casts`] looks the other way.
pub fn behind_casts(module: &Module, mut value: Value) -> Value {
    for _ in 0..MAX_CASTS {
        let Some((node, _)) = module.producer(value) else { break };
        match (float_cast(module, node), module.node(node).operand(0)) {
            (Some(_), Some(operand)) => value = operand,
            _ => break,
        }
    }
    value
}

/// The result of a cast from a float to a float.
fn float_cast(module: &Module, node: Node) -> Option<Value> {
    let data = module.node(node);
    let is_float = |value| module.value(value).ty.dtype().is_some_and(DType::is_float);
    (data.schema()?.kind == OpKind::Cast && is_float(data.operand(0)?))
        .then(|| data.result(0))
        .flatten()
        .filter(|&v| is_float(v))
}

/// The result of a cast that an earlier run inserted.
pub fn inserted_result(module: &Module, node: Node) -> Option<Value> {
    let data = module.node(node);
    (data.provenance == Provenance::Inserted).then(|| data.result(0)).flatten()
}

/// The values that leave a graph.
pub fn outputs(module: &Module, graph: GraphId) -> FxHashSet<Value> {
    module.graph(graph).outputs().iter().map(|o| o.value).collect()
}
