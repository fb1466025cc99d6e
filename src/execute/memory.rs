//! The memory that a run takes, before a constant is read.

use super::of_run;
use crate::error::Error;
use ampc_ir::Module;
use ampc_passes::cost::BoundInputs;
use ampc_passes::recompute::PlannedMemory;
use ampc_runtime::Cpu;
pub use ampc_runtime::cpu::MemoryNeeds;

/// The most bytes of a list that a kernel is prepared with. It is a constant, so that the same model gives the same plan on
/// every machine.
const LIST_BYTES: u64 = 1 << 28;

/// The memory that the CPU runtime takes for a model and inputs of these dims: that of its plan, to the byte.
///
/// # Errors
/// If the dims do not fit the model.
pub fn memory_needs(module: &Module, inputs: &BoundInputs) -> Result<MemoryNeeds, Error> {
    let cpu = Cpu { threads: 1, max_bytes: LIST_BYTES, ..Cpu::default() };
    cpu.memory_needs(module, &inputs.types).map_err(|error| of_run(module, &error))
}

/// The same for the pass `recompute`.
pub(crate) fn planned(module: &Module, inputs: &BoundInputs) -> Option<PlannedMemory> {
    let needs = memory_needs(module, inputs).ok()?;
    Some(PlannedMemory { bytes: needs.arenas, scratch: needs.scratch })
}
