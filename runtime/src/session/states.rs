//! States: inputs that stay in memory between runs and between plans.
//!
//! States have a separate block, the beginning of the arena in the layout of plans. The block exists before the first
//! run if a caller sets the states. A plan with the same layout of states as the last plan takes the block over, so
//! that no state is copied.

use super::error::ExecuteError;
use super::frame::{Frame, Scope};
use super::space::{Block, Space, copy_span};
use crate::bytes::AlignedBytes;
use crate::data::{Data, DataRef};
use crate::device::{DeviceError, Span};
use crate::host::HostError;
use crate::kernel::KernelError;
use crate::plan::{GraphPlan, Place, State, StateLayout, Step, known_tensor};
use ampc_ir::infer::describe;
use ampc_ir::{DType, Module, Shape, Type, Value};
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The memory of the states of a graph.
#[derive(Default)]
pub(super) struct StateMemory {
    slots: Vec<Slot>,
    block: Block,
    /// True if an unfinished run has written to some of the states.
    is_torn: bool,
}

/// A state and its place.
#[derive(Clone)]
struct Slot {
    /// The index of the formal input.
    input: usize,
    offset: usize,
    len: usize,
    dtype: DType,
    dims: Vec<u64>,
}

impl StateMemory {
    /// Memory for the states that a plan keeps: zeroed on the host, uninitialized on a device.
    ///
    /// # Errors
    /// If the allocation fails, or the device fails.
    pub(super) fn of_plan(space: &Space, plan: &GraphPlan) -> Result<StateMemory, DeviceError> {
        let block = space.block(plan.state_bytes)?;
        let slots = placed(plan).map(|(input, offset, len, dtype, dims)| Slot {
            input,
            offset,
            len,
            dtype,
            dims: dims.to_vec(),
        });
        Ok(StateMemory { slots: slots.collect(), block, is_torn: false })
    }

    /// New memory for the same states, or, if there are none yet, for the states that the plan of the module will
    /// have.
    ///
    /// # Errors
    /// If the allocation fails, or the states exceed `most` bytes.
    pub(super) fn anew(
        &self,
        space: &Space,
        module: &Module,
        alignment: usize,
        most: u64,
    ) -> Result<StateMemory, HostError> {
        let (slots, end) = match self.slots.is_empty() {
            true => slots_of_module(module, alignment),
            false => (self.slots.clone(), self.block.len()),
        };
        if end as u64 > most {
            return Err(HostError::States { limit: most, bytes: end as u64 });
        }
        let block = space.block(end).map_err(|error| match error {
            DeviceError::NoMemory { bytes } => HostError::NoMemory { bytes },
            other => HostError::Device(Box::new(other)),
        })?;
        Ok(StateMemory { slots, block, is_torn: false })
    }

    /// The formal inputs that have a place here, or will have one when the module is planned, in order.
    pub(super) fn inputs(&self, module: &Module) -> Vec<usize> {
        let slots: Cow<'_, [Slot]> = match self.slots.is_empty() {
            true => slots_of_module(module, 1).0.into(),
            false => self.slots.as_slice().into(),
        };
        let mut inputs: Vec<usize> = slots.iter().map(|slot| slot.input).collect();
        inputs.sort_unstable();
        inputs
    }

    /// True if the layout of the states is that of a plan.
    pub(super) fn is_of(&self, plan: &GraphPlan) -> bool {
        self.block.len() == plan.state_bytes && self.slots.iter().map(Slot::as_placed).eq(placed(plan))
    }

    pub(super) fn block(&self) -> &Block {
        &self.block
    }

    pub(super) fn block_mut(&mut self) -> &mut Block {
        &mut self.block
    }

    /// The states, by formal input.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, DataRef<'_>)> {
        self.slots.iter().map(|slot| {
            let bytes = self.block.range(slot.offset, slot.len);
            (slot.input, bytes.as_tensor(slot.dtype, &slot.dims))
        })
    }

    /// Calls `fill` with the formal input and the bytes of each state, which are initially zero.
    ///
    /// # Errors
    /// If `fill` fails, or a copy to the device fails.
    pub(super) fn fill<E: From<HostError>>(
        &mut self,
        space: &mut Space,
        mut fill: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for slot in &self.slots {
            if let Block::Host(bytes) = &mut self.block {
                fill(slot.input, &mut bytes.as_mut_slice()[slot.offset..slot.offset + slot.len])?;
                continue;
            }
            let no_memory = || HostError::NoMemory { bytes: slot.len as u64 };
            let mut staged = AlignedBytes::zeroed(slot.len).ok_or_else(no_memory)?;
            fill(slot.input, staged.as_mut_slice())?;
            let written = self.block.write(space, slot.offset, staged.as_slice());
            written.map_err(|error| match error {
                KernelError::Device(error) => HostError::Device(error),
                KernelError::Host(error) => error,
                other => HostError::Device(Box::new(DeviceError::Failed(other.to_string()))),
            })?;
        }
        Ok(())
    }

    /// True if an unfinished run has updated some states but not all.
    pub(super) fn is_torn(&self) -> bool {
        self.is_torn
    }

    pub(super) fn set_torn(&mut self, is_torn: bool) {
        self.is_torn = is_torn;
    }

    /// True if all states that have a place here are given.
    pub(super) fn are_given(&self, given: &[Option<DataRef<'_>>]) -> bool {
        self.slots.iter().all(|slot| given.get(slot.input).is_some_and(Option::is_some))
    }

    /// Stores the given states. On a device they are torn until the caller knows that the copies are done.
    ///
    /// # Errors
    /// If a copy to or on the device fails.
    pub(super) fn take(
        &mut self,
        space: &mut Space,
        given: &[Option<DataRef<'_>>],
    ) -> Result<(), KernelError> {
        let stays_torn = self.is_torn && !self.are_given(given);
        // A copy may fail after others have succeeded, also later.
        self.is_torn |= self.slots.iter().any(|slot| given.get(slot.input).is_some_and(Option::is_some));
        for slot in &self.slots {
            match (given.get(slot.input).copied().flatten(), &mut self.block) {
                (Some(DataRef::Tensor(tensor)), block) => {
                    if let Some(from) = tensor.bytes().filter(|from| from.len() == slot.len) {
                        block.write(space, slot.offset, from)?;
                    }
                }
                (Some(DataRef::Device(tensor)), Block::Device(memory)) if tensor.span.len == slot.len => {
                    let to = Span { memory, offset: slot.offset, len: slot.len };
                    if let Some(queue) = space.queue() {
                        copy_span(queue, tensor.span, to)?;
                    }
                }
                _ => {}
            }
        }
        if let Block::Host(_) = self.block {
            self.is_torn = stays_torn;
        }
        Ok(())
    }
}

/// A state that a plan keeps: the formal input, offset and length, element type and dims.
type Placed<'a> = (usize, usize, usize, DType, &'a [u64]);

impl Slot {
    fn as_placed(&self) -> Placed<'_> {
        (self.input, self.offset, self.len, self.dtype, &self.dims)
    }
}

/// The states whose sizes follow from the types of a module, in the layout of its future plan, and their total size.
fn slots_of_module(module: &Module, alignment: usize) -> (Vec<Slot>, usize) {
    let graph = module.graph(module.main());
    let ty = |value| {
        let (dtype, dims) = known_tensor(&module.value(value).ty)?;
        Some((dtype, usize::try_from(dtype.tensor_bytes(&dims)?).ok()?, dims))
    };
    let inputs: FxHashMap<Value, usize> = graph.inputs().iter().copied().zip(0..).collect();
    let (mut slots, mut layout) = (Vec::new(), StateLayout::new(alignment));
    for &(now, next) in &graph.states {
        let (Some(&input), Some((dtype, len, dims))) = (inputs.get(&now), ty(now)) else { continue };
        if ty(next).is_some_and(|next| next.1 == len) {
            slots.push(Slot { input, offset: layout.place(len), len, dtype, dims });
        }
    }
    (slots, layout.bytes())
}

/// The states that a plan keeps, with their layout.
fn placed(plan: &GraphPlan) -> impl Iterator<Item = Placed<'_>> {
    plan.states.iter().filter_map(|state| {
        let planned = &plan.values[state.now as usize];
        let (Place::Arena { offset, len }, Some((dtype, dims))) = (planned.place, &planned.tensor) else {
            return None;
        };
        Some((state.now as usize, offset, len, *dtype, dims.as_slice()))
    })
}

/// True if a step writes to states in place.
pub(super) fn writes_states(plan: &GraphPlan, step: &Step) -> bool {
    let is_state = |&index: &u32| matches!(plan.values[index as usize].place, Place::Arena { offset, len } if len > 0 && offset < plan.state_bytes);
    step.results.iter().flatten().any(is_state)
}

/// The range of a state's next value if it can be copied directly into the place of the state: it is in the arena
/// after the states, where no other state is written.
fn copied_from(plan: &GraphPlan, state: &State) -> Option<(usize, usize)> {
    match plan.values[state.next as usize].place {
        Place::Arena { offset, len } if offset >= plan.state_bytes => Some((offset, len)),
        _ => None,
    }
}

/// Checks the types of next values that are known before a run against the declared types of states.
///
/// # Errors
/// If a next value does not fit its state.
pub(super) fn check_planned(module: &Module, plan: &GraphPlan) -> Result<(), ExecuteError> {
    plan.states.iter().chain(&plan.moved).try_for_each(|state| {
        match &plan.values[state.next as usize].tensor {
            Some((dtype, dims)) => check_next(module, state, &Type::tensor(*dtype, Shape::known(dims))),
            None => Ok(()),
        }
    })
}

/// Like [`check_planned`], for next values whose types are known only after a run, before they replace states.
///
/// # Errors
/// If a next value does not fit its state.
pub(super) fn check_made(module: &Module, scope: Scope<'_>, frame: &Frame) -> Result<(), ExecuteError> {
    let plan = scope.plan;
    let is_open = |state: &&State| plan.values[state.next as usize].tensor.is_none();
    plan.states.iter().chain(&plan.moved).filter(is_open).try_for_each(|state| {
        match frame.get(scope, state.next) {
            Some(data) => check_next(module, state, &data.ty()),
            None => Ok(()),
        }
    })
}

fn check_next(module: &Module, state: &State, next: &Type) -> Result<(), ExecuteError> {
    let input = state.now as usize;
    let formals = module.graph(module.main()).inputs();
    let Some(declared) = formals.get(input).map(|&value| &module.value(value).ty) else { return Ok(()) };
    if super::admits(declared, next) {
        return Ok(());
    }
    Err(ExecuteError::State { input, expected: describe(declared), found: describe(next) })
}

/// Copies of the next values of states that are neither in place nor directly copyable, by formal input. They are
/// read before any output is taken and any state is written.
///
/// # Errors
/// If the allocation of a copy fails.
pub(super) fn next_states(
    space: &mut Space,
    scope: Scope<'_>,
    frame: &Frame,
) -> Result<BTreeMap<usize, Data>, KernelError> {
    let copied = scope.plan.states.iter().filter(|s| s.copied && copied_from(scope.plan, s).is_none());
    let mut next = BTreeMap::new();
    for state in copied.chain(&scope.plan.moved) {
        if let Some(data) = frame.get(scope, state.next) {
            next.insert(state.now as usize, space.bring(data)?);
        }
    }
    Ok(next)
}

/// Stores next values of states in their places, and returns the values that have no place.
///
/// # Errors
/// If a copy on the device fails.
pub(super) fn store_states(
    space: &mut Space,
    plan: &GraphPlan,
    frame: &mut Frame,
    mut next: BTreeMap<usize, Data>,
) -> Result<BTreeMap<usize, Data>, KernelError> {
    for state in plan.states.iter().filter(|state| state.copied) {
        let Place::Arena { offset, len } = plan.values[state.now as usize].place else { continue };
        let data = next.remove(&(state.now as usize));
        let from = copied_from(plan, state);
        let Frame { states, arena, .. } = &mut *frame;
        match (states.block_mut(), arena) {
            (Block::Host(states), arena) => {
                let from = match (from, arena) {
                    (Some((from, len)), Some(Block::Host(rest))) => {
                        Some(&rest.as_slice()[from - plan.state_bytes..][..len])
                    }
                    _ => data.as_ref().and_then(Data::tensor).and_then(|tensor| tensor.bytes()),
                };
                if let Some(from) = from {
                    states.as_mut_slice()[offset..offset + len].copy_from_slice(from);
                }
            }
            (Block::Device(memory), arena) => {
                let to = Span { memory, offset, len };
                let from = match (from, arena, &data) {
                    (Some((from, len)), Some(Block::Device(memory)), _) => {
                        Some(Span { memory, offset: from - plan.state_bytes, len })
                    }
                    (_, _, Some(Data::Device(tensor))) => Some(tensor.view().span),
                    _ => None,
                };
                if let (Some(from), Some(queue)) = (from, space.queue()) {
                    copy_span(queue, from, to)?;
                }
            }
        }
    }
    Ok(next)
}

/// Copies of the states of an earlier plan that have no place in a new plan, by formal input.
///
/// # Errors
/// If the allocation of a copy fails.
pub(super) fn left_over(
    space: &mut Space,
    states: &StateMemory,
    plan: &GraphPlan,
) -> Result<Vec<(usize, Data)>, KernelError> {
    let moves = |at: usize| plan.moved.iter().any(|state| state.now as usize == at);
    let left = states.iter().filter(|&(at, _)| moves(at));
    left.map(|(at, data)| Ok((at, space.bring(data)?))).collect()
}
