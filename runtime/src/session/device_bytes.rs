//! The device memory of a session: all allocations there, known during binding.

use super::bind::{OnDevice, Program};
use super::device_heap::{Certainty, MemoryPrediction};
use super::error::ExecuteError;
use crate::data::DataRef;
use crate::plan::{GraphPlan, Place};
use ampc_ir::entity::SecondaryMap;
use ampc_ir::verify::name_of;
use ampc_ir::{DType, Module, Type, Value};
use std::cmp::Reverse;

/// The device memory of a session, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceBytes {
    /// Constants and folded results that kernels read; all sessions of an executable share them.
    pub constants: u64,
    /// One set of inputs, without states.
    pub inputs: u64,
    /// States of known sizes, which stay from run to run.
    pub states: u64,
    /// Values and scratch memory of the main graph, of bodies, and of called functions.
    pub arenas: u64,
    /// The peak of values outside of arenas: results of nodes with bodies and of calls, and the values that
    /// iterations produce.
    pub heap: u64,
    /// The relation of these bytes to the bytes that a run allocates.
    pub certainty: Certainty,
}

impl DeviceBytes {
    /// The total for runs that the host waits for.
    pub fn total(&self) -> u64 {
        [self.constants, self.inputs, self.states, self.arenas, self.heap]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// The total for runs in flight, which have two sets of inputs: the inputs of the next run are copied while the
    /// kernels of a run work.
    pub fn total_in_flight(&self) -> u64 {
        self.total().saturating_add(self.inputs)
    }

    /// The memory of a program for inputs of these types, including the constants of earlier programs on the device.
    pub(super) fn of(
        program: &Program,
        types: &[Option<Type>],
        is_state: &[bool],
        uploaded: &OnDevice,
    ) -> DeviceBytes {
        let mut constants = 0;
        let mut is_read: SecondaryMap<Value, bool> = SecondaryMap::default();
        for value in program.constants_read() {
            is_read[value] = true;
            constants += constant_bytes(program, value);
        }
        let earlier = program.module.graph_ids().flat_map(|graph| program.module.defined(graph));
        let earlier = earlier.filter(|&value| !is_read[value]).filter_map(|value| uploaded[value].as_ref());
        constants += earlier.map(|tensor| tensor.view().span.len as u64).sum::<u64>();
        let inputs = types.iter().zip(is_state).filter(|&(_, &is_state)| !is_state);
        let inputs = inputs.filter_map(|(ty, _)| tensor_bytes(ty.as_ref()?)).fold(0, u64::saturating_add);
        let states = program.main_plan().state_bytes as u64;
        let mut prediction = MemoryPrediction::new(program);
        let arenas = prediction.arenas(program.module.main()).saturating_sub(states);
        let heap = prediction.main();
        DeviceBytes { constants, inputs, states, arenas, heap, certainty: prediction.certainty }
    }

    /// Checks that runs in flight and `reserved` bytes of other sessions take at most `limit` bytes.
    pub(super) fn check(
        &self,
        program: &Program,
        reserved: u64,
        limit: Option<u64>,
    ) -> Result<(), ExecuteError> {
        let bytes = self.total_in_flight();
        match limit {
            Some(limit) if bytes.saturating_add(reserved) > limit => {
                let largest = largest(&program.module, program.main_plan());
                Err(ExecuteError::DeviceMemory { bytes, reserved, limit, largest })
            }
            _ => Ok(()),
        }
    }
}

fn tensor_bytes(ty: &Type) -> Option<u64> {
    let tensor = ty.as_tensor().filter(|tensor| tensor.dtype != DType::String)?;
    tensor.storage_bytes()
}

fn constant_bytes(program: &Program, value: Value) -> u64 {
    match program.constant_on_host(value) {
        Some(DataRef::Tensor(tensor)) if tensor.dtype() != DType::String => {
            DataRef::Tensor(tensor).byte_count()
        }
        _ => 0,
    }
}

/// The number of values that an error lists.
const NAMED: usize = 3;

/// The largest values of a graph, with their sizes in bytes.
fn largest(module: &Module, plan: &GraphPlan) -> Vec<(String, u64)> {
    let is_there = |place: Place| matches!(place, Place::Arena { .. } | Place::Constant | Place::Input(_));
    let sized = plan.values.iter().filter(|planned| is_there(planned.place)).filter_map(|planned| {
        let (dtype, dims) = planned.tensor.as_ref()?;
        Some((planned.value, dtype.tensor_bytes(dims)?))
    });
    let mut sized: Vec<(Value, u64)> = sized.collect();
    sized.sort_by_key(|&(value, bytes)| (Reverse(bytes), value));
    sized.into_iter().take(NAMED).map(|(value, bytes)| (name_of(module, value), bytes)).collect()
}
