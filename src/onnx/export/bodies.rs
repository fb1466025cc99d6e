//! The functions that the operators of ai.ampc call in a file.
//!
//! Every node of such an operator is written as a call, with one function for each form that a node has. A
//! function of the source is copied while the model imports the same opset of ai.onnx; after that it is made
//! anew, because onnx.checker compares the opsets of a model and its functions.

use super::{Exporter, Placement};
use crate::onnx::error::{BodyIssue, ExportError};
use crate::onnx::layout::Layout;
use crate::onnx::source::Source;
use ampc_ir::bodies::{DOMAIN, Form, function, has_body};
use ampc_ir::{FunctionId, GraphId, Module, Node};
use ampc_passes::paths::Paths;
use rustc_hash::FxHashSet;
use std::borrow::Cow;

/// The first IR version whose functions have overloads.
const OVERLOADS_SINCE: i64 = 10;

/// The functions that a model is written with.
#[derive(Debug, Default)]
pub(super) struct Functions {
    /// The starts of the copied messages.
    kept: FxHashSet<u64>,
    /// New functions, each in a module of its own.
    new: Vec<(Module, FunctionId)>,
}

impl Functions {
    /// True if the function whose message starts here is copied.
    pub(super) fn keep(&self, start: u64) -> bool {
        self.kept.contains(&start)
    }

    /// True if they are the functions of the source.
    pub(super) fn are_those_of(&self, source: &Source) -> bool {
        self.new.is_empty() && self.kept.len() == source.bodies.len()
    }
}

/// The required functions, in the order in which nodes need them.
pub(super) fn plan(exporter: &Exporter<'_>, order: &[GraphId]) -> Result<Functions, ExportError> {
    let module = exporter.module;
    let opset = module.opset(module.main(), "");
    let same_opset = exporter.source.filter(|source| source.opset == opset);
    let bodies = same_opset.map_or(&[][..], |source| &source.bodies);
    let mut functions = Functions::default();
    functions.kept.extend(bodies.iter().filter(|body| !body.called).map(|body| body.at.start));
    let mut seen = FxHashSet::default();
    for node in order.iter().flat_map(|&graph| module.nodes(graph)) {
        if !module.node(node).schema().is_some_and(|schema| has_body(schema.kind)) {
            continue;
        }
        let refuse = |issue| {
            let node = Paths::of(module).path(node).to_owned();
            Err(ExportError::Body { node, issue })
        };
        let Some(form) = Form::of_node(module, node) else { return refuse(BodyIssue::NoForm) };
        if !seen.insert(form) {
            continue;
        }
        if let Some(name) = taken(module, form) {
            return refuse(BodyIssue::Taken { name });
        }
        if let Some(body) = bodies.iter().find(|body| body.form == form) {
            functions.kept.insert(body.at.start);
            continue;
        }
        if exporter.ir_version() < OVERLOADS_SINCE {
            let found = exporter.ir_version();
            return refuse(BodyIssue::IrVersion { needed: OVERLOADS_SINCE, found });
        }
        let needed = form.min_opset();
        let opset = opset.unwrap_or(needed);
        match function(form, opset) {
            Some(made) => functions.new.push(made),
            None => return refuse(BodyIssue::Opset { needed, found: opset }),
        }
    }
    Ok(functions)
}

/// The name of the function of a form, if another function has it.
fn taken(module: &Module, form: Form) -> Option<String> {
    let (name, overload) = (form.kind().name(), form.overload());
    let is_taken = |overload: &str| {
        let key = [DOMAIN, name, overload].map(|text| module.symbol(text));
        module.functions().any(|(_, f)| [f.domain, f.name, f.overload].map(Some) == key)
    };
    // Without an overload it would be called by the name of the operator.
    if is_taken("") {
        return Some(format!("{DOMAIN}::{name}"));
    }
    is_taken(&overload).then(|| format!("{DOMAIN}::{name}:{overload}"))
}

/// The overload that a node is written with.
pub(super) fn overload(module: &Module, node: Node) -> Cow<'_, str> {
    match Form::of_node(module, node) {
        Some(form) => Cow::Owned(form.overload()),
        None => Cow::Borrowed(module.op_name(node).2),
    }
}

impl Exporter<'_> {
    /// The functions that the source does not have.
    pub(super) fn new_bodies(&self, out: &mut Layout) {
        for (module, id) in &self.functions.new {
            let content = Exporter::new(module, None, Placement::inline()).new_function(*id);
            out.message_field(25, content);
        }
    }
}
