//! The memory of a run, and its plans, before any constant is read.

use crate::device::{BackendOptions, Device};
use crate::error::Error;
use crate::run_errors::of_run;
use ampc_ir::{DType, Module, TensorType};
use ampc_passes::cost::BoundInputs;
use ampc_passes::recompute::PlannedMemory;
pub use ampc_runtime::session::{MemoryNeeds, Plans};
use ampc_runtime::{Limits, Runtime};

/// The maximum size in bytes of a list that a kernel is prepared with. It is a constant, so that a model has the same
/// plan on every machine.
const LIST_BYTES: u64 = 1 << 28;

/// The maximum total size of tensors that are planned: no machine has more memory.
const MOST_BYTES: u128 = 1 << 60;

/// The exact memory of a run with inputs of these dims, in bytes, from its plan.
///
/// # Errors
/// If the dims do not fit the model, or the tensors exceed the memory of any machine.
pub fn memory_needs(module: &Module, inputs: &BoundInputs) -> Result<MemoryNeeds, Error> {
    check_bytes(module, inputs)?;
    let limits = Limits { max_bytes: LIST_BYTES, ..Limits::default() };
    let runtime = Runtime {
        limits,
        ..Runtime::new(
            Device::default().backend(&BackendOptions { threads: 1, ..BackendOptions::default() })?,
        )
    };
    runtime.memory_needs(module, &inputs.types).map_err(|error| of_run(module, &error))
}

/// The plans of a run with inputs of these dims, without reading a constant or computing anything.
///
/// # Errors
/// If the model is invalid, the dims do not fit it, the backend has no kernel for an operator, or the tensors exceed
/// the memory of any machine.
pub fn plans(module: &mut Module, inputs: &BoundInputs, runtime: &Runtime) -> Result<Plans, Error> {
    let findings = crate::check(module);
    if !findings.is_empty() {
        return Err(Error::Invalid(findings));
    }
    check_bytes(module, inputs)?;
    runtime.plans(module, &inputs.types).map_err(|error| of_run(module, &error))
}

/// Checks that all tensors together are not larger than the memory of any machine.
fn check_bytes(module: &Module, inputs: &BoundInputs) -> Result<(), Error> {
    let (types, _) = inputs.infer(module);
    let values = module.graph_ids().flat_map(|graph| module.defined(graph));
    let tensors = values.filter_map(|value| types.of(module, value).as_tensor());
    // A tensor whose size overflows 64 bits counts as the maximum.
    let bytes = |tensor: &TensorType| {
        let is_known = tensor.shape.to_known().is_some();
        tensor.storage_bytes().map_or(if is_known { MOST_BYTES + 1 } else { 0 }, u128::from)
    };
    let is_string = |tensor: &&TensorType| tensor.dtype == DType::String;
    if tensors.filter(|tensor| !is_string(tensor)).map(bytes).sum::<u128>() > MOST_BYTES {
        return Err(Error::Unsupported("its tensors need more memory than any machine has".into()));
    }
    Ok(())
}

/// The memory of a run for the pass `recompute`.
pub(crate) fn planned(module: &Module, inputs: &BoundInputs) -> Option<PlannedMemory> {
    let needs = memory_needs(module, inputs).ok()?;
    Some(PlannedMemory { bytes: needs.arenas, scratch: needs.scratch })
}
