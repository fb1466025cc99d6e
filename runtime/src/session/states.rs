//! States: inputs that stay in memory from run to run, and from plan to plan.
//!
//! They have a memory of their own, the beginning of the arena as plans lay it out. It is there before the first run if
//! somebody sets the states, and every plan that puts them where the last one did takes it over: no state is copied.

use super::ExecuteError;
use super::frame::{Frame, Scope};
use super::walk::known_tensor;
use crate::bytes::AlignedBytes;
use crate::data::{Data, DataRef};
use crate::host::{HostError, TensorRef};
use crate::plan::arena::rounded;
use crate::plan::{GraphPlan, Place, State, Step};
use ampc_ir::infer::describe;
use ampc_ir::{DType, Module, Shape, Type, Value};
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The memory of the states of a graph.
#[derive(Default)]
pub(super) struct StateMemory {
    slots: Vec<Slot>,
    bytes: AlignedBytes,
    /// Whether a run has written to some of them and has not ended.
    is_torn: bool,
}

/// A state, and where it is.
#[derive(Clone)]
struct Slot {
    /// Which formal input it is.
    input: usize,
    offset: usize,
    len: usize,
    dtype: DType,
    dims: Vec<u64>,
}

impl StateMemory {
    /// Memory for the states that a plan keeps; zeros. `None` if there is not so much.
    pub(super) fn of_plan(plan: &GraphPlan) -> Option<StateMemory> {
        let bytes = AlignedBytes::zeroed(plan.state_bytes)?;
        let slots = placed(plan).map(|(input, offset, len, dtype, dims)| Slot {
            input,
            offset,
            len,
            dtype,
            dims: dims.to_vec(),
        });
        Some(StateMemory { slots: slots.collect(), bytes, is_torn: false })
    }

    /// Other memory for the states that are here; before there are any, for those that a module will have. It is zeroed.
    ///
    /// # Errors
    /// If there is not so much, or it is more than `most`.
    pub(super) fn anew(&self, module: &Module, most: u64) -> Result<StateMemory, HostError> {
        let slots = self.slots_or_of(module).into_owned();
        let end = slots.last().map_or(0, |slot| slot.offset.saturating_add(rounded(slot.len)));
        if end as u64 > most {
            return Err(HostError::States { limit: most, bytes: end as u64 });
        }
        let bytes = AlignedBytes::zeroed(end).ok_or(HostError::NoMemory { bytes: end as u64 })?;
        Ok(StateMemory { slots, bytes, is_torn: false })
    }

    /// The formal inputs that have a place here, or will have one when the module is planned, in order.
    pub(super) fn inputs(&self, module: &Module) -> Vec<usize> {
        let mut inputs: Vec<usize> = self.slots_or_of(module).iter().map(|slot| slot.input).collect();
        inputs.sort_unstable();
        inputs
    }

    /// The states that are here; before there are any, those that a module will have.
    fn slots_or_of(&self, module: &Module) -> Cow<'_, [Slot]> {
        if self.slots.is_empty() { slots_of_module(module).into() } else { self.slots.as_slice().into() }
    }

    /// Whether the states are where a plan has them.
    pub(super) fn is_of(&self, plan: &GraphPlan) -> bool {
        self.bytes.as_slice().len() == plan.state_bytes
            && self.slots.iter().map(Slot::as_placed).eq(placed(plan))
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        self.bytes.as_slice()
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        self.bytes.as_mut_slice()
    }

    /// The states, by formal input.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, TensorRef<'_>)> {
        self.slots.iter().map(|slot| {
            let bytes = &self.as_slice()[slot.offset..slot.offset + slot.len];
            (slot.input, TensorRef::of_numbers(slot.dtype, &slot.dims, bytes))
        })
    }

    /// Lets `fill` write each state, of which it is told the formal input.
    ///
    /// # Errors
    /// Those of `fill`.
    pub(super) fn fill<E>(
        &mut self,
        mut fill: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let bytes = self.bytes.as_mut_slice();
        let mut slots = self.slots.iter();
        slots.try_for_each(|slot| fill(slot.input, &mut bytes[slot.offset..slot.offset + slot.len]))
    }

    /// Whether some were updated by a run that has not ended, and others not.
    pub(super) fn is_torn(&self) -> bool {
        self.is_torn
    }

    pub(super) fn set_torn(&mut self, is_torn: bool) {
        self.is_torn = is_torn;
    }

    /// Whether they are torn, and remain so if these are taken, because not all of them are given.
    pub(super) fn stays_torn(&self, given: &[Option<DataRef<'_>>]) -> bool {
        self.is_torn && !self.slots.iter().all(|slot| given.get(slot.input).is_some_and(Option::is_some))
    }

    /// Takes the states that are given.
    pub(super) fn take(&mut self, given: &[Option<DataRef<'_>>]) {
        self.is_torn = self.stays_torn(given);
        let bytes = self.bytes.as_mut_slice();
        for slot in &self.slots {
            let tensor = given.get(slot.input).copied().flatten().and_then(DataRef::tensor);
            if let Some(from) = tensor.and_then(|tensor| tensor.bytes()).filter(|from| from.len() == slot.len)
            {
                bytes[slot.offset..slot.offset + slot.len].copy_from_slice(from);
            }
        }
    }
}

/// A state that a plan keeps: which formal input it is, offset and length, element type and dims.
type Placed<'a> = (usize, usize, usize, DType, &'a [u64]);

impl Slot {
    fn as_placed(&self) -> Placed<'_> {
        (self.input, self.offset, self.len, self.dtype, &self.dims)
    }
}

/// The states whose sizes the types of a module say, where its plan will put them.
fn slots_of_module(module: &Module) -> Vec<Slot> {
    let graph = module.graph(module.main());
    let ty = |value| {
        let (dtype, dims) = known_tensor(&module.value(value).ty)?;
        Some((dtype, usize::try_from(dtype.tensor_bytes(&dims)?).ok()?, dims))
    };
    let inputs: FxHashMap<Value, usize> = graph.inputs().iter().copied().zip(0..).collect();
    let (mut slots, mut end) = (Vec::new(), 0usize);
    for &(now, next) in &graph.states {
        let (Some(&input), Some((dtype, len, dims))) = (inputs.get(&now), ty(now)) else { continue };
        if ty(next).is_some_and(|next| next.1 == len) {
            slots.push(Slot { input, offset: end, len, dtype, dims });
            end = end.saturating_add(rounded(len));
        }
    }
    slots
}

/// The states that a plan keeps, where it has them.
fn placed(plan: &GraphPlan) -> impl Iterator<Item = Placed<'_>> {
    plan.states.iter().filter_map(|state| {
        let planned = &plan.values[state.now as usize];
        let (Place::Arena { offset, len }, Some((dtype, dims))) = (planned.place, &planned.tensor) else {
            return None;
        };
        Some((state.now as usize, offset, len, *dtype, dims.as_slice()))
    })
}

/// Whether a step writes to states in place.
pub(super) fn writes_states(plan: &GraphPlan, step: &Step) -> bool {
    let is_state = |&index: &u32| matches!(plan.values[index as usize].place, Place::Arena { offset, len } if len > 0 && offset < plan.state_bytes);
    step.results.iter().flatten().any(is_state)
}

/// Where the next value of a state is that can be copied into its place as it is: in the arena behind the states, where
/// no other state is written.
fn copied_from(plan: &GraphPlan, state: &State) -> Option<(usize, usize)> {
    match plan.values[state.next as usize].place {
        Place::Arena { offset, len } if offset >= plan.state_bytes => Some((offset, len)),
        _ => None,
    }
}

/// Compares the types of the next values that are known before a run with the types that the graph declares for states.
///
/// # Errors
/// If a next value is no value of its state.
pub(super) fn check_planned(module: &Module, plan: &GraphPlan) -> Result<(), ExecuteError> {
    plan.states.iter().chain(&plan.moved).try_for_each(|state| {
        match &plan.values[state.next as usize].tensor {
            Some((dtype, dims)) => check_next(module, state, &Type::tensor(*dtype, Shape::known(dims))),
            None => Ok(()),
        }
    })
}

/// [`check_planned`] for the next values whose types only a run shows, before they replace states.
///
/// # Errors
/// If a next value is no value of its state.
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

/// The next values of the states that neither are in place already nor can be copied there as they are, by formal input.
/// They are read before any output is taken and any state is written.
pub(super) fn next_states(scope: Scope<'_>, frame: &Frame) -> Result<BTreeMap<usize, Data>, HostError> {
    let copied = scope.plan.states.iter().filter(|s| s.copied && copied_from(scope.plan, s).is_none());
    let mut next = BTreeMap::new();
    for state in copied.chain(&scope.plan.moved) {
        if let Some(data) = frame.get(scope, state.next) {
            next.insert(state.now as usize, data.to_data()?);
        }
    }
    Ok(next)
}

/// Puts next values of states into their places, and gives back those that have none.
pub(super) fn store_states(
    plan: &GraphPlan,
    frame: &mut Frame,
    mut next: BTreeMap<usize, Data>,
) -> BTreeMap<usize, Data> {
    for state in plan.states.iter().filter(|state| state.copied) {
        let Place::Arena { offset, len } = plan.values[state.now as usize].place else { continue };
        let data = next.remove(&(state.now as usize));
        let (states, rest) = frame.memory_mut();
        let from = match copied_from(plan, state) {
            Some((from, len)) => Some(&rest[from - plan.state_bytes..][..len]),
            None => data.as_ref().and_then(Data::tensor).and_then(|tensor| tensor.bytes()),
        };
        if let Some(from) = from {
            states[offset..offset + len].copy_from_slice(from);
        }
    }
    next
}

/// What remains of the states of an earlier plan where a new one has no place for them, by formal input.
///
/// # Errors
/// If there is not enough memory for a copy.
pub(super) fn left_over(states: &StateMemory, plan: &GraphPlan) -> Result<Vec<(usize, Data)>, ExecuteError> {
    let moves = |at: usize| plan.moved.iter().any(|state| state.now as usize == at);
    let left = states.iter().filter(|&(at, _)| moves(at));
    left.map(|(at, tensor)| Ok((at, DataRef::Tensor(tensor).to_data()?))).collect()
}
