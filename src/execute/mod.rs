//! Runs models: values for their inputs, the runtime, their outputs, and the comparison of two models.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ampc::execute::{Inputs, prepare, run};
//!
//! let mut model = ampc::load("testdata/mlp.onnx")?;
//! let inputs = Inputs::random(&model.module, 1, &Default::default(), u64::MAX)?;
//! let mut session = prepare(&mut model.module, &ampc::runtime::Runtime::default())?;
//! let outputs = run(&mut session, &inputs.values)?;
//! assert_eq!(outputs[0].tensor().map(|t| t.dims()), Some(&[1, 10][..]));
//! # Ok(())
//! # }
//! ```
//!
//! [`verify`](verify::verify) runs two models on the same inputs and finds the first value in which they differ.
//! [`judge`] gives the verdict on them and the errors of low products alone, and [`find_pins`] searches for nodes of
//! a rewritten model that must stay fp32.

pub mod agree;
mod batch_row;
mod bound;
pub mod inputs;
pub mod low_products;
pub mod memory;
pub mod outputs;
pub mod pins;
mod profile;
mod random;
pub mod report;
pub mod roofline;
mod scope;
mod stored;
pub mod trainer;
pub mod training;
pub mod verify;

pub use agree::{Agreement, agree, agree_in_type};
pub use inputs::{Inputs, TestData, read_test_data};
pub use low_products::{Excused, Judgement, judge};
pub use memory::{MemoryNeeds, Plans, memory_needs, plans};
pub use outputs::{Statistics, statistics};
pub use pins::{PinSearch, Pinned, find_pins};
pub use profile::StepTimes;
pub use report::VerifyReport;
pub use stored::{StoredTolerance, verify_stored};
pub use trainer::{StepResult, Trainer};
pub use verify::{Verification, VerifyOptions, of_outputs, verify, verify_draws};

use crate::error::{Error, Finding};
use crate::rewrite::{findings_of_types, op_of};
use ampc_ir::module::GraphOwner;
use ampc_ir::{Module, Node, Type, Value};
use ampc_passes::Paths;
use ampc_runtime::backend::{DeviceError, KernelError};
use ampc_runtime::session::{ExecuteError, PrepareError};
use ampc_runtime::{Data, DataRef, Runtime, Session};
use std::collections::BTreeMap;

/// Prepares a model for a device. [`Session::executable`] makes further sessions, which share the constants.
///
/// # Errors
/// If the model is invalid, or has operators that the device lacks.
pub fn prepare(module: &mut Module, runtime: &Runtime) -> Result<Session, Error> {
    let findings = crate::check(module);
    if !findings.is_empty() {
        return Err(Error::Invalid(findings));
    }
    runtime.prepare(module).map_err(|error| of_prepare(module, &error))
}

/// Computes the outputs, in order, from a value for every input (see [`Session::run`]).
///
/// # Errors
/// If a node cannot be computed, inputs do not fit or a limit is reached; the error has the path of the node.
pub fn run(session: &mut Session, inputs: &[Option<Data>]) -> Result<Vec<Data>, Error> {
    let outputs = session.run(&views(inputs));
    outputs.map_err(|error| of_run(session.module(), &error))
}

/// Plans a model for the dims of these inputs, which is the first part of [`run`].
///
/// # Errors
/// If the inputs do not fit.
pub fn bind(session: &mut Session, inputs: &[Option<Data>]) -> Result<(), Error> {
    let bound = session.bind(&views(inputs));
    bound.map_err(|error| of_run(session.module(), &error))
}

/// Plans a model for a run with an observer.
fn bind_observed(session: &mut Session, inputs: &[Option<Data>]) -> Result<(), Error> {
    let bound = session.bind_observed(&views(inputs));
    bound.map_err(|error| of_run(session.module(), &error))
}

/// Borrowed values, as the runtime takes them.
pub fn views(values: &[Option<Data>]) -> Vec<Option<DataRef<'_>>> {
    values.iter().map(|value| value.as_ref().map(Data::view)).collect()
}

fn of_prepare(module: &Module, error: &PrepareError) -> Error {
    match error {
        PrepareError::Unsupported { backend, nodes } => lacking(module, backend, nodes),
        PrepareError::Device(error) => {
            let place = module.text(module.graph(module.main()).name).to_owned();
            let code = if error.is_no_memory() { "no_memory" } else { "device" };
            let finding = Finding { code, node: None, place, op: None, message: error.to_string() };
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
fn of_device(error: &DeviceError, place: Finding) -> Error {
    match error {
        DeviceError::Invalid(_) => Error::Bug(error.to_string()),
        _ => Error::NoMemory(place),
    }
}

fn of_value(module: &Module, value: Value, message: String) -> Finding {
    let place = ampc_ir::verify::name_of(module, value);
    Finding { code: "constant", node: None, place, op: None, message }
}

/// The error of a run, with the path of the node.
pub fn of_run(module: &Module, error: &ExecuteError) -> Error {
    let at = |code: &'static str, node: Node| Finding {
        code,
        node: Some(node),
        place: path_in_calls(module, error.place().map_or(&[], |(_, calls)| calls), node),
        op: Some(op_of(module, node)),
        message: error.to_string(),
    };
    let graph = |code: &'static str| {
        let place = module.text(module.graph(module.main()).name).to_owned();
        Finding { code, node: None, place, op: None, message: error.to_string() }
    };
    match error {
        ExecuteError::Input { input, found, .. } => {
            let expected = input_types(module).get(*input).map(|ty| inputs::describe(module, ty));
            let name = input_names(module).get(*input).cloned().unwrap_or_default();
            Error::Usage(format!("input `{name}`: expected {}, found {found}", expected.unwrap_or_default()))
        }
        ExecuteError::State { input, expected, found } => Error::Run(Finding {
            code: "state",
            node: None,
            place: input_names(module).get(*input).cloned().unwrap_or_default(),
            op: None,
            message: format!("expected {expected} as its next value, found {found}"),
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
            Error::NoMemory(at("no_memory", *node))
        }
        ExecuteError::Node { node, .. } => Error::Run(at("node", *node)),
        ExecuteError::Iterations { node, .. } => Error::Run(at("iterations", *node)),
        ExecuteError::Memory { node: Some(node), .. } => Error::Run(at("memory", *node)),
        ExecuteError::Memory { node: None, .. } => Error::Run(graph("memory")),
        ExecuteError::DeviceMemory { .. } => Error::NoMemory(graph("device_memory")),
        ExecuteError::NoMemory { node: Some(node), .. } => Error::NoMemory(at("no_memory", *node)),
        ExecuteError::NoMemory { node: None, .. } => Error::NoMemory(graph("no_memory")),
        ExecuteError::Output(error) if error.is_no_memory() => Error::NoMemory(graph("no_memory")),
        ExecuteError::Time { node: Some(node), .. } => Error::Run(at("time", *node)),
        ExecuteError::Time { node: None, .. } => Error::Run(graph("time")),
        ExecuteError::Device(error) if error.is_no_memory() => Error::NoMemory(graph("no_memory")),
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

/// The names of the inputs, in order.
pub fn input_names(module: &Module) -> Vec<String> {
    let inputs = module.graph(module.main()).inputs();
    inputs.iter().map(|&v| ampc_ir::verify::name_of(module, v)).collect()
}

/// The names of the outputs, in order.
pub fn output_names(module: &Module) -> Vec<String> {
    let outputs = module.graph(module.main()).outputs();
    outputs.iter().map(|o| ampc_ir::verify::name_of(module, o.value)).collect()
}

/// The types of the inputs that a run must or may receive, in order.
pub fn input_types(module: &Module) -> Vec<Type> {
    let inputs = module.graph(module.main()).inputs();
    inputs.iter().map(|&v| module.value(v).ty.clone()).collect()
}

/// The declared types of the outputs.
pub fn output_types(module: &Module) -> Vec<Type> {
    let outputs = module.graph(module.main()).outputs();
    outputs
        .iter()
        .map(|o| {
            let inferred = &module.value(o.value).ty;
            if matches!(inferred, Type::Unknown) { o.declared.clone() } else { inferred.clone() }
        })
        .collect()
}
