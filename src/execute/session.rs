//! Sessions of models: prepared, bound and run, with errors that name nodes by their paths.

use crate::error::Error;
use crate::run_errors::{of_prepare, of_run};
use ampc_ir::Module;
use ampc_runtime::{Data, DataRef, Runtime, Session};

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
pub(super) fn bind_observed(session: &mut Session, inputs: &[Option<Data>]) -> Result<(), Error> {
    let bound = session.bind_observed(&views(inputs));
    bound.map_err(|error| of_run(session.module(), &error))
}

/// Borrowed values, as the runtime takes them.
pub fn views(values: &[Option<Data>]) -> Vec<Option<DataRef<'_>>> {
    values.iter().map(|value| value.as_ref().map(Data::view)).collect()
}
