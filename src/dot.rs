//! A drawing of the main graph for Graphviz: nodes coloured by precision, with their purpose in a step, casts
//! small, constants left out.

use crate::report::is_cast;
use ampc_ir::module::Provenance;
use ampc_ir::text::escape_hidden;
use ampc_ir::verify::name_of;
use ampc_ir::{DType, Module, Node, Type, Value};
use ampc_passes::{Paths, step};
use std::fmt::Write as _;

/// The main graph in the DOT language.
pub fn print(module: &Module) -> String {
    let graph = module.main();
    let paths = Paths::of(module);
    let mut out = String::from("digraph {\n  node [shape=box, style=filled, fontname=\"Helvetica\"];\n");
    for &input in module.graph(graph).inputs() {
        let _ = writeln!(
            out,
            "  {} [label={}, shape=oval, fillcolor=white];",
            id(input),
            quote(&name_of(module, input))
        );
    }
    for node in module.nodes(graph) {
        let (_, op, _) = module.op_name(node);
        let label = if is_inserted_cast(module, node) {
            format!("Cast {}", precision(module, node))
        } else {
            let role = step::role_of(module, node).map_or_else(String::new, |role| format!("\n{role}"));
            format!("{op}\n{}{role}", paths.path(node))
        };
        let shape = if is_inserted_cast(module, node) { ", shape=cds" } else { "" };
        let _ =
            writeln!(out, "  {node} [label={}, fillcolor={}{shape}];", quote(&label), color(module, node));
    }
    for node in module.nodes(graph) {
        for &operand in module.node(node).operands().iter().flatten() {
            if let Some(from) = origin(module, operand) {
                let _ = writeln!(out, "  {from} -> {node} [label={}];", quote(&describe(module, operand)));
            }
        }
    }
    for (i, output) in module.graph(graph).outputs().iter().enumerate() {
        let _ = writeln!(
            out,
            "  out{i} [label={}, shape=oval, fillcolor=white];",
            quote(&name_of(module, output.value))
        );
        if let Some(from) = origin(module, output.value) {
            let _ = writeln!(out, "  {from} -> out{i} [label={}];", quote(&describe(module, output.value)));
        }
    }
    out.push_str("}\n");
    out
}

fn id(value: Value) -> String {
    value.to_string()
}

/// The drawn vertex a value comes from; constants are not drawn.
fn origin(module: &Module, value: Value) -> Option<String> {
    match module.producer(value) {
        Some((node, _)) => Some(node.to_string()),
        None => module.constant(value).is_none().then(|| id(value)),
    }
}

fn is_inserted_cast(module: &Module, node: Node) -> bool {
    module.node(node).provenance == Provenance::Inserted && is_cast(module, node)
}

fn precision(module: &Module, node: Node) -> String {
    let result = module.node(node).result(0);
    result.and_then(|v| module.value(v).ty.dtype()).map_or_else(String::new, |d| d.to_string())
}

fn color(module: &Module, node: Node) -> &'static str {
    let types =
        module.node(node).results().iter().flatten().filter_map(|&v| module.value(v).ty.element_dtype());
    let mut color = "\"#eeeeee\"";
    for dtype in types {
        match dtype {
            DType::F16 => return "\"#b7e1a1\"",
            DType::BF16 => return "\"#a1d6e1\"",
            DType::F32 => color = "\"#f6d9a8\"",
            _ => {}
        }
    }
    color
}

/// Element type and extents: `f16[N, 768]`.
pub fn describe(module: &Module, value: Value) -> String {
    let Type::Tensor(t) = &module.value(value).ty else { return String::new() };
    let Some(dims) = t.shape.dims() else { return t.dtype.to_string() };
    let dims: Vec<String> = dims
        .iter()
        .map(|d| match d {
            ampc_ir::Dim::Known(n) => n.to_string(),
            ampc_ir::Dim::Sym(s) => module.text(*s).to_owned(),
            ampc_ir::Dim::Unknown => "?".into(),
        })
        .collect();
    format!("{}[{}]", t.dtype, dims.join(", "))
}

/// A text between quotes, in which nothing is hidden: drawings are read in terminals and browsers.
fn quote(text: &str) -> String {
    let text = escape_hidden(text, |c| c == '\n');
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
