//! The memory of a running graph, and the locations of its values.

use super::ExecuteError;
use super::bind::Program;
use super::space::{Block, Bytes, Space};
use super::states::StateMemory;
use super::walk::Placed;
use crate::data::{Data, DataRef};
use crate::device::{DeviceError, Event};
use crate::kernel::KernelError;
use crate::kernel::Out;
use crate::plan::arena::Part;
use crate::plan::{GraphPlan, Place};
use ampc_ir::infer::CallAttrs;
use ampc_ir::module::Def;
use ampc_ir::{GraphId, Module, Node};
use rustc_hash::FxHashMap;

/// The memory of a running graph. It is kept for the next run.
#[derive(Default)]
pub(crate) struct Frame {
    /// The states, at the beginning of the arena.
    pub(super) states: StateMemory,
    /// The arena after the states.
    pub(super) arena: Option<Block>,
    /// The memory of an earlier plan, for reuse.
    spare: Option<Block>,
    pub(super) heap: Vec<Option<Data>>,
    pub(super) lists: Lists,
    /// The events that later steps of a run wait for, by the index of the preceding step.
    pub(super) events: Vec<Option<Event>>,
    pub(crate) children: FxHashMap<GraphId, Box<Frame>>,
}

/// Scratch lists of a step. Their allocations are reused by later steps.
#[derive(Default)]
pub(super) struct Lists {
    pub(super) parts: Vec<Part<'static>>,
    pub(super) operands: Vec<Option<DataRef<'static>>>,
    pub(super) placed: Vec<Option<Placed<'static>>>,
    pub(super) results: Vec<Out<'static>>,
    pub(super) made: Vec<Option<Data>>,
}

/// The values passed to a graph when it runs.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a> {
    /// Its formal inputs.
    pub(crate) inputs: &'a [Option<DataRef<'a>>],
    /// The operands of the owning node, which include its captures.
    pub(crate) operands: &'a [Option<DataRef<'a>>],
    /// The attributes of the call, for a function.
    pub(crate) attrs: Option<&'a CallAttrs>,
}

impl Frame {
    /// Allocates the memory of a plan, unless it is allocated. `taken` is the other memory of the run, in bytes.
    pub(crate) fn reserve(
        &mut self,
        space: &Space,
        module: &Module,
        plan: &GraphPlan,
        taken: u64,
        limit: u64,
    ) -> Result<(), ExecuteError> {
        if self.arena.is_some() {
            return Ok(());
        }
        check_memory(module, plan, taken, limit)?;
        let bytes = plan.arena as u64;
        let failed = |error| match error {
            DeviceError::NoMemory { .. } => {
                let (node, on_device) = (largest(module, plan), space.is_on_device());
                ExecuteError::NoMemory { node, calls: Vec::new(), bytes, on_device }
            }
            other => ExecuteError::of_device(None, other),
        };
        if !self.states.is_of(plan) {
            self.states = StateMemory::of_plan(space, plan).map_err(failed)?;
        }
        let rest = plan.arena - plan.state_bytes;
        // A spare block that is too small is freed before the arena is allocated.
        let spare = self.spare.take().filter(|spare| spare.len() >= rest);
        self.arena = Some(spare.map_or_else(|| space.block(rest), Ok).map_err(failed)?);
        self.heap = vec![None; plan.values.len()];
        Ok(())
    }

    /// Frees the memory of a plan. The states stay, and the arena is kept if it suffices for the next plan.
    pub(super) fn release(&mut self) {
        let (states, spare) = (std::mem::take(&mut self.states), self.arena.take());
        let lists = std::mem::take(&mut self.lists);
        *self = Frame { states, spare, lists, ..Frame::default() };
    }

    /// The states and the arena after them.
    fn memory(&self) -> Memory<'_> {
        Memory::of(self.states.block(), self.arena.as_ref())
    }

    /// The bytes that the frame and its children hold.
    pub(crate) fn arena_bytes(&self) -> usize {
        let mut total = self.states.block().len() + self.arena.as_ref().map_or(0, Block::len);
        #[expect(clippy::iter_over_hash_type, reason = "a sum does not depend on the order")]
        for child in self.children.values() {
            total += child.arena_bytes();
        }
        total
    }

    pub(super) fn get<'a>(&'a self, scope: Scope<'a>, index: u32) -> Option<DataRef<'a>> {
        let memory = self.memory();
        scope.find(&self.heap, index, &mut |offset, len| Some(memory.bytes(offset, len)))
    }

    /// Output `i` of the graph, after the run.
    pub(crate) fn output<'a>(&'a self, scope: Scope<'a>, i: usize) -> Option<DataRef<'a>> {
        self.get(scope, *scope.plan.outputs.get(i)?)
    }

    /// Output `i` of the graph, owned. A heap value is moved, so such an output can be taken once.
    pub(crate) fn take_output(
        &mut self,
        space: &mut Space,
        scope: Scope<'_>,
        i: usize,
    ) -> Result<Option<Data>, KernelError> {
        let index = scope.plan.outputs[i];
        let is_last = || !scope.plan.outputs[i + 1..].contains(&index);
        if scope.plan.values[index as usize].place == Place::Heap && is_last() {
            return Ok(self.heap[index as usize].take());
        }
        self.get(scope, index).map(|data| space.bring(data)).transpose()
    }
}

/// Checks that a plan and the other memory `taken` stay within the limit.
pub(super) fn check_memory(
    module: &Module,
    plan: &GraphPlan,
    taken: u64,
    limit: u64,
) -> Result<(), ExecuteError> {
    let bytes = taken.saturating_add(plan.arena as u64);
    if bytes > limit {
        return Err(ExecuteError::Memory { node: largest(module, plan), calls: Vec::new(), bytes, limit });
    }
    Ok(())
}

/// The two blocks of the arena, for reading.
#[derive(Clone, Copy)]
pub(super) struct Memory<'a> {
    states: &'a Block,
    rest: Option<&'a Block>,
}

impl<'a> Memory<'a> {
    pub(super) fn of(states: &'a Block, rest: Option<&'a Block>) -> Memory<'a> {
        Memory { states, rest }
    }

    pub(super) fn bytes(self, offset: usize, len: usize) -> Bytes<'a> {
        match (offset.checked_sub(self.states.len()), self.rest) {
            (Some(offset), Some(rest)) => rest.range(offset, len),
            _ => self.states.range(offset, len),
        }
    }
}

/// The node with the largest result in the arena.
fn largest(module: &Module, plan: &GraphPlan) -> Option<Node> {
    let bytes = |place: Place| if let Place::Arena { len, .. } = place { len } else { 0 };
    let results = plan.values.iter().filter_map(|v| match module.value(v.value).def {
        Def::Result { node, .. } => Some((bytes(v.place), node)),
        _ => None,
    });
    results.max_by_key(|(bytes, node)| (*bytes, std::cmp::Reverse(*node))).map(|(_, node)| node)
}

/// A running graph with the values passed to it.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'a> {
    pub(crate) program: &'a Program,
    pub(crate) plan: &'a GraphPlan,
    pub(crate) given: Given<'a>,
}

impl<'a> Scope<'a> {
    /// A value of the graph, in any location; `arena` returns bytes by offset and length.
    pub(super) fn find(
        self,
        heap: &'a [Option<Data>],
        index: u32,
        arena: &mut dyn FnMut(usize, usize) -> Option<Bytes<'a>>,
    ) -> Option<DataRef<'a>> {
        let planned = &self.plan.values[index as usize];
        match planned.place {
            // An initializer that is listed as an input is optional.
            Place::Input(i) => {
                let given = self.given.inputs.get(i as usize).copied().flatten();
                given.or_else(|| self.program.constant(planned.value))
            }
            Place::Capture(slot) => self.given.operands.get(slot as usize).copied().flatten(),
            Place::Constant => self.program.constant(planned.value),
            Place::Arena { offset, len } => {
                let (dtype, dims) = planned.tensor.as_ref()?;
                Some(arena(offset, len)?.as_tensor(*dtype, dims))
            }
            Place::View(of) => {
                let (_, dims) = planned.tensor.as_ref()?;
                match self.find(heap, of, arena)? {
                    DataRef::Tensor(tensor) => Some(DataRef::Tensor(tensor.with_dims(dims))),
                    DataRef::Device(tensor) => Some(DataRef::Device(tensor.with_dims(dims))),
                    other => Some(other),
                }
            }
            Place::Heap => heap[index as usize].as_ref().map(Data::view),
            Place::Unused => None,
        }
    }
}
