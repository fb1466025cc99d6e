//! Recognition of functions that are operators of ai.ampc: their body equals the operator's own, up to names of
//! values and nodes.
//!
//! Calls of such a function are nodes of the operator, and the function is not in the module: the writer copies
//! its message or encodes it again. Any other function of the domain is an ordinary function, and so is a
//! function with the right body but a call in another form (another attribute, an absent result): a node must
//! keep the meaning of its file, so a name alone decides nothing.

use super::Import;
use super::raw::{RawAttrValue, RawFunction, RawGraph, RawNode, Tables};
use crate::onnx::error::{ProblemKind, Warning};
use ampc_ir::attr::AttrValue;
use ampc_ir::bodies::{self, DOMAIN, Form};
use ampc_ir::entity::EntityRef;
use ampc_ir::op::{Arity, OpSchema, latest_opset, versions};
use ampc_ir::{GraphId, Module, Op, Symbol, Value};
use rustc_hash::FxHashMap;

/// Finds the functions that are operators of ai.ampc, and checks the nodes of such operators that call no function.
pub(super) fn recognise(import: &mut Import<'_>, tables: &mut Tables) {
    let mut forms: Vec<Option<Form>> = (0..tables.functions.len()).map(|i| form(import, tables, i)).collect();
    for node in tables.graphs.iter().flat_map(|g| &g.nodes) {
        if let Some(Op::Call(function)) = node.op
            && let Some(form) = forms[function.index()]
            && !fits(&import.module, node, form)
        {
            forms[function.index()] = None;
        }
    }
    // Beside a function without an overload a node of the operator would be spelled as its call.
    for i in 0..tables.functions.len() {
        let message = &tables.functions[i].message;
        if message.domain == DOMAIN && message.overload.is_empty() {
            let same = |function: &RawFunction| {
                function.message.domain == DOMAIN && function.message.name == message.name
            };
            let others = tables.functions.iter().zip(&mut forms).filter(|(function, _)| same(function));
            others.for_each(|(_, form)| *form = None);
        }
    }
    tables.functions.iter_mut().zip(forms).for_each(|(function, form)| function.form = form);
    for g in 0..tables.graphs.len() {
        for i in 0..tables.graphs[g].nodes.len() {
            check_node(import, tables, g, i);
        }
    }
}

/// The form whose body a function has.
fn form(import: &Import<'_>, tables: &Tables, index: usize) -> Option<Form> {
    let function = &tables.functions[index];
    let message = &function.message;
    let schema = versions(DOMAIN, &message.name).first().filter(|_| message.domain == DOMAIN)?;
    let form = Form::named(schema.kind, &message.overload)?;
    let opset =
        function.opsets.iter().find(|(domain, _)| matches!(import.module.text(*domain), "" | "ai.onnx"));
    let opset = opset.map(|&(_, version)| version)?;
    let newest = latest_opset("").unwrap_or(u16::MAX);
    let graph = tables.graphs.get(index + 1)?;
    // A template is expanded for as many operands as there are, never for a number that an overload claims.
    if graph.inputs.len() != form.n_operands() || opset > newest || !function.attr_defaults.is_empty() {
        return None;
    }
    let (body, id) = bodies::function(form, opset)?;
    let own = body.function(id);
    let mut attrs: Vec<&str> = message.attrs.iter().map(String::as_str).collect();
    attrs.sort_unstable();
    let same_attrs = attrs.into_iter().eq(own.attrs.iter().map(|&a| body.text(a)));
    (same_attrs && same_graph(&import.module, graph, &body, own.graph)).then_some(form)
}

/// True if a graph that was read is a graph of a module but for the names of values and nodes.
fn same_graph(names: &Module, raw: &RawGraph, body: &Module, graph: GraphId) -> bool {
    let data = body.graph(graph);
    if raw.nodes.len() != body.nodes(graph).count() || raw.outputs.len() != data.outputs().len() {
        return false;
    }
    let mut values: FxHashMap<Symbol, Value> = FxHashMap::default();
    values.extend(raw.inputs.iter().map(|input| input.name).zip(data.inputs().iter().copied()));
    let nodes = raw.order.iter().map(|&i| &raw.nodes[i]);
    for (found, own) in nodes.zip(body.nodes(graph)) {
        let own = body.node(own);
        let same_op = matches!(found.op, Some(Op::Schema(schema)) if own.schema() == Some(schema));
        let operands = found.inputs.iter().map(|name| name.and_then(|name| values.get(&name).copied()));
        if !same_op
            || !operands.eq(own.operands().iter().copied())
            || found.outputs.len() != own.results().len()
        {
            return false;
        }
        let same_attr = |attr: &ampc_ir::Attr| {
            attr_of(names, found, body.text(attr.name))
                .is_some_and(|value| same_value(names, value, body, &attr.value))
        };
        if found.attrs.len() != own.attrs().len() || !own.attrs().iter().all(same_attr) {
            return false;
        }
        let results = found.outputs.iter().zip(own.results());
        values.extend(results.filter_map(|(name, value)| name.zip(*value)));
    }
    let outputs = raw.outputs.iter().map(|output| values.get(&output.name).copied());
    outputs.eq(data.outputs().iter().map(|output| Some(output.value)))
}

/// True if two attributes are the same, as far as bodies have them.
fn same_value(names: &Module, found: &AttrValue, body: &Module, own: &AttrValue) -> bool {
    match (found, own) {
        (AttrValue::Int(x), AttrValue::Int(y)) => x == y,
        (AttrValue::String(x), AttrValue::String(y)) => x == y,
        (AttrValue::Tensor(x), AttrValue::Tensor(y)) => {
            x.dtype() == y.dtype()
                && x.dims() == y.dims()
                && x.small_bytes(1).is_some_and(|b| Some(b) == y.small_bytes(1))
        }
        (AttrValue::Reference { kind, name }, AttrValue::Reference { kind: own_kind, name: own_name }) => {
            kind == own_kind && names.text(*name) == body.text(*own_name)
        }
        _ => false,
    }
}

fn attr_of<'a>(names: &Module, node: &'a RawNode, name: &str) -> Option<&'a AttrValue> {
    node.attrs.iter().find(|attr| names.text(attr.name) == name).and_then(|attr| match &attr.value {
        RawAttrValue::Ready(value) => Some(value),
        RawAttrValue::Graphs { .. } => None,
    })
}

/// True if a call is a node of the operator: it has the form, all operands and results, and the operator's attributes.
fn fits(names: &Module, node: &RawNode, form: Form) -> bool {
    let Some(schema) = versions(DOMAIN, form.kind().name()).first() else { return false };
    node.inputs.len() == form.n_operands()
        && node.inputs.iter().all(Option::is_some)
        && node.outputs.len() == form.n_results()
        && (0..).zip(&node.outputs).all(|(i, name)| match name {
            Some(_) => form.has_result(i),
            None => may_be_absent(schema, i),
        })
        && has_attrs(names, node, schema)
        && form_of(names, node, schema) == Some(form)
}

/// True if a result of an operator is optional.
fn may_be_absent(schema: &OpSchema, result: usize) -> bool {
    schema.output(result).is_some_and(|formal| formal.arity == Arity::Optional)
}

fn has_attrs(names: &Module, node: &RawNode, schema: &OpSchema) -> bool {
    let known = node.attrs.iter().all(|attr| match &attr.value {
        RawAttrValue::Ready(value) => {
            schema.attr(names.text(attr.name)).is_some_and(|known| known.kind == value.kind())
        }
        RawAttrValue::Graphs { .. } => false,
    });
    known && schema.attrs.iter().all(|known| !known.required || attr_of(names, node, known.name).is_some())
}

fn form_of(names: &Module, node: &RawNode, schema: &OpSchema) -> Option<Form> {
    Form::of(schema.kind, node.inputs.len(), |name| attr_of(names, node, name))
}

/// Checks a node of an operator of ai.ampc that calls no function: it may name the overload of its form, or no
/// overload.
fn check_node(import: &mut Import<'_>, tables: &Tables, g: usize, i: usize) {
    let node = &tables.graphs[g].nodes[i];
    let Some(Op::Schema(schema)) = node.op else { return };
    if !bodies::has_body(schema.kind) {
        return;
    }
    let graph = super::scope::path_of(&import.module, &tables.graphs, tables.graphs[g].owner);
    let place = super::scope::label(&import.module, &graph, node, i);
    let found = node.overload.map_or("", |overload| import.module.text(overload)).to_owned();
    let expected = form_of(&import.module, node, schema).map(Form::overload);
    match expected {
        Some(expected) if !found.is_empty() && found != expected => {
            import.problem(place, ProblemKind::Overload { name: schema.name, found, expected });
        }
        _ => import.warn(Warning::NoFunction { op: schema.name, first: place, more: 0 }),
    }
}
