//! Running models: values for their inputs, and the runtime behind them.

use crate::error::Error;
use crate::model::Model;
use crate::onnx::bytes::SourceBytes;
use crate::onnx::data::read_data;
use ampc_ir::{Module, Type};
use ampc_runtime::cpu::{PrepareError, RunError};
use ampc_runtime::{Cpu, Data, Executable};
use std::path::{Path, PathBuf};

/// Prepares a model for the CPU.
///
/// # Errors
/// If it is invalid, or has operators that there is no kernel for.
pub fn prepare(model: &mut Model, cpu: &Cpu) -> Result<Executable, Error> {
    let findings = crate::check(&mut model.module);
    if !findings.is_empty() {
        return Err(Error::Invalid(findings));
    }
    cpu.prepare(&model.module).map_err(|error| of_prepare(&model.module, &error))
}

fn of_prepare(module: &Module, error: &PrepareError) -> Error {
    match error {
        PrepareError::Unsupported(list) => {
            let mut ops: Vec<&str> = list.iter().map(|(_, op)| op.as_str()).collect();
            ops.sort_unstable();
            ops.dedup();
            Error::Unsupported(format!("the CPU backend has no kernel for {}", ops.join(", ")))
        }
        PrepareError::Constant { value, error } => {
            let name = module.value_name(*value).map_or("", |n| module.text(n));
            Error::Unsupported(format!("the constant `{name}` cannot be read: {error}"))
        }
        other => Error::Unsupported(other.to_string()),
    }
}

/// An error of a run, with the node's path.
pub fn of_run(module: &Module, error: &RunError) -> Error {
    let node = match error {
        RunError::Node { node, .. } | RunError::Iterations { node, .. } => Some(*node),
        _ => None,
    };
    let place = node.map(|node| {
        let (_, op, _) = module.op_name(node);
        let name = module.node(node).name.map_or("", |n| module.text(n));
        let result = module.node(node).results().iter().flatten().next();
        let result = result.and_then(|&v| module.value_name(v)).map_or("", |n| module.text(n));
        format!("{op} `{}`: ", if name.is_empty() { result } else { name })
    });
    let text = format!("{}{error}", place.unwrap_or_default());
    match error {
        RunError::Input { .. } => Error::Usage(text),
        RunError::Node { error: ampc_runtime::cpu::KernelError::Unsupported(_), .. } => {
            Error::Unsupported(text)
        }
        _ => Error::Run(text),
    }
}

/// The types of the inputs that a run must or may give, in order.
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

/// One data set of a test-data folder.
pub struct TestData {
    /// The folder.
    pub folder: PathBuf,
    /// The inputs, in order.
    pub inputs: Vec<Option<Data>>,
    /// The outputs, in order.
    pub outputs: Vec<Option<Data>>,
}

/// Reads `input_0.pb` …, `output_0.pb` … of a folder.
///
/// # Errors
/// If a file cannot be read or is no value of the type that the model has there.
pub fn read_test_data(folder: &Path, module: &Module) -> Result<TestData, Error> {
    let list = |prefix: &str, types: &[Type]| -> Result<Vec<Option<Data>>, Error> {
        let read = |(i, ty): (usize, &Type)| {
            let path = folder.join(format!("{prefix}_{i}.pb"));
            if !path.exists() {
                return Ok(None);
            }
            let bytes =
                SourceBytes::open(&path).map_err(|source| Error::Io { path: path.clone(), source })?;
            read_data(bytes, ty).map(Some).map_err(|error| Error::Data { path, reason: error.to_string() })
        };
        types.iter().enumerate().map(read).collect()
    };
    Ok(TestData {
        folder: folder.to_owned(),
        inputs: list("input", &input_types(module))?,
        outputs: list("output", &output_types(module))?,
    })
}
