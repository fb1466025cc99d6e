//! Errors of preparing and running a model, with the paths of nodes.

use crate::error::findings::{findings_of_types, op_of};
use crate::error::{Error, Finding};
use crate::interface::{describe, input_names, input_types};
use ampc_ir::module::GraphOwner;
use ampc_ir::{Module, Node, Value};
use ampc_passes::Paths;
use ampc_runtime::backend::{DeviceError, KernelError};
use ampc_runtime::session::{ExecuteError, PrepareError};
use std::collections::BTreeMap;

pub(crate) fn of_prepare(module: &Module, error: &PrepareError) -> Error {
    match error {
        PrepareError::Unsupported { backend, nodes } => lacking(module, backend, nodes),
        PrepareError::Device(error) => {
            let place = module.text(module.graph(module.main()).name).to_owned();
            let code = if error.is_no_memory() { "device_memory" } else { "device" };
            let finding =
                Finding { code, node: None, place, op: None, message: error.to_string(), label: None };
            of_device(error, finding)
        }
        PrepareError::Constant { value, error } if error.is_no_memory() => {
            Error::NoMemory(of_value(module, *value, format!("the constant cannot be read: {error}")))
        }
        PrepareError::Constant { value, error } => {
            Error::Run(of_value(module, *value, format!("the constant cannot be read: {error}")))
        }
    }
}

/// The error of nodes without kernels. It names the first node of each operator.
fn lacking(module: &Module, backend: &str, list: &[(Node, String)]) -> Error {
    let mut nodes: BTreeMap<&str, Node> = BTreeMap::new();
    for (node, op) in list {
        nodes.entry(op).or_insert(*node);
    }
    let paths = Paths::of(module);
    let ops: Vec<String> =
        nodes.into_iter().map(|(op, node)| format!("{op} (`{}`)", paths.path(node))).collect();
    Error::Unsupported(format!("the {backend} backend has no kernel for {}", ops.join(", ")))
}

/// The error of a failed device, which no node has caused. Invalid calls are a bug of the backend.
pub(crate) fn of_device(error: &DeviceError, place: Finding) -> Error {
    match error {
        DeviceError::Invalid(_) => Error::Bug(error.to_string()),
        _ => Error::NoMemory(place),
    }
}

fn of_value(module: &Module, value: Value, message: String) -> Finding {
    let place = ampc_ir::verify::name_of(module, value);
    Finding { code: "constant", node: None, place, op: None, message, label: None }
}

/// The error of a run, with the path of the node.
pub fn of_run(module: &Module, error: &ExecuteError) -> Error {
    let at = |code: &'static str, node: Node| Finding {
        code,
        node: Some(node),
        place: path_in_calls(module, error.place().map_or(&[], |(_, calls)| calls), node),
        op: Some(op_of(module, node)),
        message: error.to_string(),
        label: None,
    };
    let graph = |code: &'static str| {
        let place = module.text(module.graph(module.main()).name).to_owned();
        Finding { code, node: None, place, op: None, message: error.to_string(), label: None }
    };
    match error {
        ExecuteError::Input { input, found, .. } => {
            let expected = input_types(module).get(*input).map(|ty| describe(module, ty));
            let name = input_names(module).get(*input).cloned().unwrap_or_default();
            Error::Usage(format!("input `{name}`: expected {}, found {found}", expected.unwrap_or_default()))
        }
        ExecuteError::State { input, expected, found } => Error::Run(Finding {
            code: "state",
            node: None,
            place: input_names(module).get(*input).cloned().unwrap_or_default(),
            op: None,
            message: format!("expected {expected} as its next value, found {found}"),
            label: None,
        }),
        ExecuteError::Shapes(errors) => Error::Invalid(findings_of_types(module, errors)),
        ExecuteError::Unsupported { backend, nodes } => lacking(module, backend, nodes),
        ExecuteError::Node { node, error: KernelError::Device(error), .. } if !error.is_no_memory() => {
            of_device(error, at("device", *node))
        }
        ExecuteError::Node { node, error: KernelError::Unsupported(_), .. } => {
            Error::Unsupported(at("unsupported", *node).to_string())
        }
        ExecuteError::Node { node, error, .. } if error.is_no_memory() => {
            let is_device = matches!(error, KernelError::Device(_));
            Error::NoMemory(at(if is_device { "device_memory" } else { "no_memory" }, *node))
        }
        ExecuteError::Node { node, .. } => Error::Run(at("node", *node)),
        ExecuteError::Iterations { node, .. } => Error::Run(at("iterations", *node)),
        ExecuteError::Memory { node: Some(node), .. } => Error::Run(at("memory", *node)),
        ExecuteError::Memory { node: None, .. } => Error::Run(graph("memory")),
        ExecuteError::DeviceMemory { .. } => Error::NoMemory(graph("device_memory")),
        ExecuteError::NoMemory { node, on_device, .. } => {
            let code = if *on_device { "device_memory" } else { "no_memory" };
            Error::NoMemory(node.map_or_else(|| graph(code), |node| at(code, node)))
        }
        ExecuteError::Output(error) if error.is_no_memory() => Error::NoMemory(graph("no_memory")),
        ExecuteError::Time { node: Some(node), .. } => Error::Run(at("time", *node)),
        ExecuteError::Time { node: None, .. } => Error::Run(graph("time")),
        ExecuteError::Device(error) if error.is_no_memory() => Error::NoMemory(graph("device_memory")),
        ExecuteError::Device(error) => of_device(error, graph("device")),
        ExecuteError::Stopped => Error::Run(graph("stopped")),
        ExecuteError::TornStates => Error::Run(graph("state")),
        ExecuteError::Output(_) | ExecuteError::NoOutput { .. } => Error::Run(graph("output")),
    }
}

/// The path of a node inside calls, outermost call first.
fn path_in_calls(module: &Module, calls: &[Node], node: Node) -> String {
    let paths = Paths::of(module);
    let Some((first, rest)) = calls.split_first() else { return paths.path(node).to_owned() };
    let inside = rest.iter().chain([&node]).map(|&node| {
        let (mut path, mut graph) = (paths.local(node).to_owned(), module.node(node).graph);
        while let GraphOwner::Body { node, attr } = module.graph(graph).owner {
            path = format!("{}/{}/{path}", paths.local(node), module.text(attr));
            graph = module.node(node).graph;
        }
        path
    });
    std::iter::once(paths.path(*first).to_owned()).chain(inside).collect::<Vec<_>>().join("/")
}
