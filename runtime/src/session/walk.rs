//! Executes a plan: locates the operands and results of each step, and runs its kernel.

use super::bind::Program;
use super::control;
use super::error::ExecuteError;
use super::executable::Runtime;
use super::frame::{Frame, Given, Lists, Memory, Scope};
use super::observe::Observing;
use super::space::{Block, Bytes, Space};
use super::states::writes_states;
use crate::backend::Backend;
use crate::data::{Data, DataRef, emptied};
use crate::device::{DeviceError, DeviceMemory, Span};
use crate::host::{HostError, HostTensor};
use crate::kernel::{Io, KernelError, Out, Prepared, Site, Wanted, check_size};
use crate::plan::arena::{Part, split};
use crate::plan::{GraphPlan, Place, Planned, Step, known_tensor};
use crate::room::Room;
use ampc_ir::infer::infer_actual;
use ampc_ir::module::Op;
use ampc_ir::views::{Actual, MAX_INTS, NodeView};
use ampc_ir::{DType, GraphId, Module, Node, TensorData, Type};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The state of a run that all graphs of the module share.
pub(crate) struct Run<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) space: &'a mut Space,
    pub(crate) program: &'a Program,
    pub(crate) observer: Option<Observing<'a>>,
    pub(crate) deadline: Option<Instant>,
    /// The stop flag of the session.
    pub(crate) stop: Option<&'a AtomicBool>,
    /// The node to which the program belongs, if it is a part of a node; errors name it.
    pub(crate) within: Option<Node>,
}

impl Run<'_> {
    /// Returns an error if the time limit has passed or the run is stopped; `node` is the next node.
    pub(super) fn in_time(&self, node: Option<Node>) -> Result<(), ExecuteError> {
        let mut flags = self.stop.into_iter().chain(self.runtime.limits.stop.as_deref());
        if flags.any(|stop| stop.load(Ordering::Relaxed)) {
            return Err(ExecuteError::Stopped);
        }
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => {
                let limit = self.runtime.limits.time_limit.unwrap_or_default();
                Err(ExecuteError::Time { node, calls: Vec::new(), limit })
            }
            _ => Ok(()),
        }
    }

    /// The node of a step, for errors.
    fn node_of(&self, step: &Step) -> Node {
        self.within.unwrap_or(step.node())
    }

    /// Returns an error if the observer permits no change of states.
    fn permits_updates(&mut self) -> Result<(), ExecuteError> {
        match self.observer.as_mut().map(Observing::permits_updates) {
            None | Some(Ok(true)) => Ok(()),
            Some(Ok(false)) => Err(ExecuteError::Stopped),
            Some(Err(error)) => Err(error),
        }
    }
}

/// Runs a graph; its outputs are then in the frame. `owned` has the formal inputs that the plan has on the heap.
pub(crate) fn run_graph(
    run: &mut Run<'_>,
    graph: GraphId,
    frame: &mut Frame,
    given: Given<'_>,
    owned: Vec<(u32, Data)>,
) -> Result<(), ExecuteError> {
    let program = run.program;
    let plan = program.plan(graph);
    frame.reserve(run.space, &program.module, plan, 0, run.runtime.limits.max_bytes)?;
    frame.states.take(run.space, given.inputs).map_err(ExecuteError::of_transfer)?;
    // Heap outputs of the last run have no reader any more.
    for &output in &plan.outputs {
        frame.heap[output as usize] = None;
    }
    for (input, data) in owned {
        frame.heap[input as usize] = Some(data);
    }
    // A body without steps also takes time.
    run.in_time(None)?;
    run.space.fence()?;
    run_steps(run, Scope { program, plan, given }, frame)?;
    run.space.fence()?;
    if let Some(observer) = &mut run.observer {
        observer.settle().map_err(ExecuteError::of_transfer)?;
        if graph == program.module.main() {
            observer.tell_times(run.space)?;
        }
    }
    if !plan.states.is_empty() || !plan.moved.is_empty() {
        run.permits_updates()?;
    }
    run.in_time(None)
}

/// Runs the steps of a plan whose memory is allocated and whose inputs are given. The queues are synchronized before
/// the call, and the caller synchronizes them afterwards.
pub(super) fn run_steps(run: &mut Run<'_>, scope: Scope<'_>, frame: &mut Frame) -> Result<(), ExecuteError> {
    let Scope { program, plan, .. } = scope;
    let has_several_queues = run.space.has_several_queues();
    if has_several_queues {
        frame.events.resize_with(plan.steps.len(), || None);
    }
    for (at, step) in plan.steps.iter().enumerate() {
        let node = run.node_of(step);
        run.in_time(Some(node))?;
        if writes_states(plan, step) {
            run.permits_updates()?;
            frame.states.set_torn(true);
        }
        if has_several_queues {
            wait_for_others(run.space, step, frame)?;
        }
        if let Some(queue) = run.space.queue_at(step.queue) {
            queue.enter(node);
        }
        let is_nested = is_nested(&program.module, step.node());
        let from = match &run.observer {
            Some(observer) if !is_nested && !step.view => observer.mark(run.space, step)?,
            _ => None,
        };
        if is_nested {
            run_nested(run, scope, step, frame)?;
        } else {
            run_step(run, scope, step, frame).map_err(|error| ExecuteError::of_kernel(node, error))?;
        }
        if let (Some(from), Some(observer)) = (from, &mut run.observer) {
            observer.marked(run.space, program, step, from)?;
        }
        if has_several_queues && step.is_barrier {
            run.space.fence()?;
        }
        if let (true, Some(queue)) = (step.is_awaited, run.space.queue_at(step.queue)) {
            frame.events[at] = Some(queue.signal()?);
        }
        if let Some(observer) = &mut run.observer {
            observer.ran(program, step);
        }
        if let Some(observer) = run.observer.as_mut().filter(|observer| observer.sees(scope, step)) {
            // A value is copied after its computation, and before other queues reuse its memory.
            run.space.fence()?;
            observer.see(run.space, scope, step, frame)?;
            run.space.fence()?;
        }
        for &value in &step.ends {
            frame.heap[value as usize] = None;
        }
    }
    frame.events.clear();
    Ok(())
}

/// Lets the queue of a step wait for the steps of other queues that the step depends on.
fn wait_for_others(space: &mut Space, step: &Step, frame: &Frame) -> Result<(), ExecuteError> {
    if step.is_barrier {
        return Ok(space.fence()?);
    }
    let Some(queue) = space.queue_at(step.queue) else { return Ok(()) };
    let events = step.waits.iter().filter_map(|&earlier| frame.events[earlier as usize].as_ref());
    for event in events {
        queue.wait(event)?;
    }
    Ok(())
}

/// True if a node has or may have bodies, or is a call: its results are on the heap.
pub(crate) fn is_nested(module: &Module, node: Node) -> bool {
    let op = module.node(node).op;
    matches!(op, Op::Call(_)) || matches!(op, Op::Schema(s) if control::is_control(s.kind))
}

/// Runs a node with bodies, or a call.
fn run_nested(
    run: &mut Run<'_>,
    scope: Scope<'_>,
    step: &Step,
    frame: &mut Frame,
) -> Result<(), ExecuteError> {
    let Frame { states, arena, heap, children, .. } = frame;
    let memory = Memory::of(states.block(), arena.as_ref());
    let operands: SmallVec<[Option<DataRef<'_>>; 8]> = step
        .operands
        .iter()
        .map(|index| scope.find(heap, (*index)?, &mut |at, len| Some(memory.bytes(at, len))))
        .collect();
    let results = control::run(run, step.node(), children, &operands, scope.given.attrs)?;
    drop(operands);
    for (index, data) in step.results.iter().zip(results) {
        if let Some(index) = index {
            heap[*index as usize] = data;
        }
    }
    Ok(())
}

/// The types of present operands, and the elements of small operands.
struct Found {
    types: Vec<Option<Type>>,
    values: Vec<Option<Arc<TensorData>>>,
}

/// Reads the types and the small elements of operands, for inference while a node runs.
fn look_at(space: &mut Space, operands: &[Option<DataRef<'_>>]) -> Result<Found, KernelError> {
    let types: Vec<Option<Type>> = operands.iter().map(|o| o.map(DataRef::ty)).collect();
    let mut values = Vec::with_capacity(operands.len());
    for (data, ty) in operands.iter().zip(&types) {
        let tensor = ty.as_ref().and_then(Type::as_tensor).and_then(|ty| ty.shape.to_known());
        let is_small = tensor.is_some_and(|dims| {
            dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d)).is_some_and(|n| n <= MAX_INTS)
        });
        let data = data.filter(|_| is_small);
        values.push(data.map(|data| space.on_host(data, small)).transpose()?.flatten());
    }
    Ok(Found { types, values })
}

/// The elements of a tensor of numbers.
fn small(data: DataRef<'_>) -> Option<Arc<TensorData>> {
    let tensor = data.tensor()?;
    TensorData::from_bytes(tensor.dtype(), tensor.dims(), tensor.bytes()?.to_vec()).ok().map(Arc::new)
}

/// Runs a node with a kernel.
fn run_step(run: &mut Run<'_>, scope: Scope<'_>, step: &Step, frame: &mut Frame) -> Result<(), KernelError> {
    let Scope { program, plan, given } = scope;
    if step.view {
        return Ok(());
    }
    // Heap results are stored separately, so that heap operands can be read meanwhile.
    let (own, mut own_bytes);
    let mut made = std::mem::take(&mut frame.lists.made);
    made.resize_with(step.results.len(), || None);
    if let (Some(Some(operand)), true) = (step.operands.first(), step.moves(plan)) {
        made[0] = frame.heap[*operand as usize].take();
    }
    {
        let Frame { states, arena, heap, lists, .. } = &mut *frame;
        let mut nothing = Block::default();
        let arena = arena.as_mut().unwrap_or(&mut nothing);
        let mut reach = Reach::of(scope, step, [states.block_mut(), arena], heap, lists);
        let job = Job {
            backend: &*run.runtime.backend,
            program,
            plan,
            step,
            max_bytes: run.runtime.limits.max_bytes,
        };
        match program.prepared(step.node()) {
            Some(prepared) => job.execute(run.space, prepared, reach, &[], &mut made, lists)?,
            None => {
                let found = look_at(run.space, &reach.operands)?;
                let actual = Actual { types: &found.types, values: &found.values, call_attrs: given.attrs };
                let types = job.result_types(actual)?;
                for ty in types.iter().flatten() {
                    check_size(span(ty).unwrap_or(u64::MAX), job.max_bytes)?;
                }
                let prepared = job.prepare(actual, &types)?;
                match scratch_of(run.space, &prepared, job.max_bytes)? {
                    Block::Host(bytes) => {
                        own_bytes = bytes;
                        reach.scratch = own_bytes.as_mut_slice();
                    }
                    Block::Device(memory) => {
                        own = memory;
                        reach.device_scratch = whole(&own);
                    }
                }
                job.execute(run.space, &prepared, reach, &types, &mut made, lists)?;
            }
        }
    }
    for (index, data) in step.results.iter().zip(made.drain(..)) {
        if let (Some(index), Some(data)) = (index, data) {
            frame.heap[*index as usize] = Some(data);
        }
    }
    frame.lists.made = made;
    Ok(())
}

/// The place of a result in the arena.
pub(super) enum Placed<'a> {
    Host(&'a mut [u8]),
    Device(Span<'a>),
}

/// The memory that a step reads and writes.
struct Reach<'a> {
    /// The formal operands, except those that results alias.
    operands: Vec<Option<DataRef<'a>>>,
    /// The results that are in the arena.
    placed: Vec<Option<Placed<'a>>>,
    scratch: &'a mut [u8],
    device_scratch: Option<Span<'a>>,
}

impl<'a> Reach<'a> {
    fn of(
        scope: Scope<'a>,
        step: &Step,
        [states, arena]: [&'a mut Block; 2],
        heap: &'a [Option<Data>],
        lists: &mut Lists,
    ) -> Reach<'a> {
        if let Block::Device(_) = arena {
            Reach::on_device(scope, step, Memory::of(states, Some(arena)), heap, lists)
        } else {
            Reach::on_host(scope, step, [states.as_mut_slice(), arena.as_mut_slice()], heap, lists)
        }
    }

    fn on_device(
        scope: Scope<'a>,
        step: &Step,
        memory: Memory<'a>,
        heap: &'a [Option<Data>],
        lists: &mut Lists,
    ) -> Reach<'a> {
        let operands = operands_of(scope, step, heap, lists, &mut |at, len| Some(memory.bytes(at, len)));
        let span = |at: usize, len: usize| match memory.bytes(at, len) {
            Bytes::Device(span) => Some(span),
            Bytes::Host(_) => None,
        };
        let mut placed = emptied(std::mem::take(&mut lists.placed));
        placed.extend(step.results.iter().map(|index| {
            let (offset, len) = in_arena(scope.plan, *index)?;
            span(offset, len).map(Placed::Device)
        }));
        let (at, bytes) = step.scratch;
        let device_scratch = if bytes > 0 { span(at, bytes) } else { None };
        Reach { operands, placed, scratch: &mut [], device_scratch }
    }

    fn on_host(
        scope: Scope<'a>,
        step: &Step,
        arena: [&'a mut [u8]; 2],
        heap: &'a [Option<Data>],
        lists: &mut Lists,
    ) -> Reach<'a> {
        let mut parts: Vec<Part<'a>> = emptied(std::mem::take(&mut lists.parts));
        split(arena, &step.ranges, &mut parts);
        let mut taken = parts.iter_mut().map(std::mem::take);
        let operands = operands_of(scope, step, heap, lists, &mut |_, _| match taken.next() {
            Some(Part::Read(bytes)) => Some(Bytes::Host(bytes)),
            Some(Part::Write(_)) | None => None,
        });
        let mut writes = taken.map(|part| match part {
            Part::Write(bytes) => bytes,
            Part::Read(_) => &mut [],
        });
        let mut placed = emptied(std::mem::take(&mut lists.placed));
        placed.extend(step.results.iter().map(|index| {
            let is_placed = in_arena(scope.plan, *index);
            is_placed.and_then(|_| writes.next()).map(Placed::Host)
        }));
        let scratch = if step.scratch.1 > 0 { writes.next().unwrap_or_default() } else { &mut [] };
        drop(writes);
        lists.parts = emptied(parts);
        Reach { operands, placed, scratch, device_scratch: None }
    }
}

/// The arena range of a value, if it has one.
fn in_arena(plan: &GraphPlan, index: Option<u32>) -> Option<(usize, usize)> {
    match plan.values[index? as usize].place {
        Place::Arena { offset, len } => Some((offset, len)),
        _ => None,
    }
}

/// The formal operands of a step, except those that results alias. `arena` is called once for each operand in the
/// arena, including captures, in order.
fn operands_of<'a>(
    scope: Scope<'a>,
    step: &Step,
    heap: &'a [Option<Data>],
    lists: &mut Lists,
    arena: &mut dyn FnMut(usize, usize) -> Option<Bytes<'a>>,
) -> Vec<Option<DataRef<'a>>> {
    let mut operands = emptied(std::mem::take(&mut lists.operands));
    for (slot, index) in step.operands.iter().enumerate() {
        let data = index.filter(|_| !step.takes(slot)).and_then(|index| scope.find(heap, index, &mut *arena));
        if slot < step.n_formal {
            operands.push(data);
        }
    }
    operands
}

/// A running node with a kernel.
#[derive(Clone, Copy)]
struct Job<'r> {
    backend: &'r dyn Backend,
    program: &'r Program,
    plan: &'r GraphPlan,
    step: &'r Step,
    max_bytes: u64,
}

impl<'r> Job<'r> {
    /// The types of a node's results for these operands.
    fn result_types(&self, actual: Actual<'_>) -> Result<Vec<Option<Type>>, KernelError> {
        let module = &self.program.module;
        let inferred = infer_actual(module, self.step.node(), actual)?;
        let results = module.node(self.step.node()).results();
        let types = inferred.map(|i| i.types).unwrap_or_default();
        let ty = |i: usize| types.get(i).cloned().unwrap_or_default();
        Ok(results.iter().enumerate().map(|(i, v)| v.map(|_| ty(i))).collect())
    }

    fn prepare(&self, actual: Actual<'_>, results: &[Option<Type>]) -> Result<Prepared, KernelError> {
        let view = NodeView::with_actual(&self.program.module, self.step.node(), actual);
        let view = view.ok_or_else(|| KernelError::unsupported("unknown operators"))?;
        let (source, room) = (self.program.source(self.step.node()), Room::of(self.max_bytes));
        let channels_last = self.program.channels_last.contains(&self.step.node());
        self.backend.prepare(&Site { view, source, results, channels_last, room })
    }

    /// Runs a kernel. `types` are the types of the results, if they follow from the operands at hand. Results outside
    /// of the arena are left in `made`.
    fn execute<'d>(
        &self,
        space: &'d mut Space,
        prepared: &Prepared,
        reach: Reach<'d>,
        types: &[Option<Type>],
        made: &'d mut [Option<Data>],
        lists: &mut Lists,
    ) -> Result<(), KernelError>
    where
        'r: 'd,
    {
        for (slot, data) in made.iter_mut().enumerate() {
            let known = types.get(slot).and_then(Option::as_ref).and_then(known_tensor);
            // A view of a value outside of the arena chooses itself whose bytes it shares. The bytes of other
            // operands belong to other values later.
            let is_shared = slot == 0 && prepared.needs.view && self.is_on_heap(0);
            if let (Some(index), Some(known)) = (self.step.results[slot], known) {
                *data = self.room_for(space, &self.plan.values[index as usize], known, is_shared)?;
            }
        }
        let Reach { operands, mut placed, scratch, device_scratch } = reach;
        let mut results: Vec<Out<'d>> = emptied(std::mem::take(&mut lists.results));
        for ((slot, data), placed) in made.iter_mut().enumerate().zip(placed.drain(..)) {
            let dtype = || {
                let index = self.step.results[slot]?;
                self.plan.values[index as usize].tensor.as_ref().map(|t| t.0)
            };
            results.push(match (placed, dtype()) {
                (Some(Placed::Host(bytes)), Some(dtype)) => Out::Placed { dtype, bytes },
                (Some(Placed::Device(span)), Some(dtype)) => Out::Device { dtype, span },
                _ if self.step.results[slot].is_none() => Out::Absent,
                _ => Out::outside_of_arena(data),
            });
        }
        let taken = &self.step.in_place[..];
        let in_place = taken.iter().find(|&&(result, _)| result == 0).map(|&(_, operand)| operand);
        let (max_bytes, queue) = (self.max_bytes, space.queue_at(self.step.queue));
        let mut io = Io { operands, results, scratch, device_scratch, queue, in_place, taken, max_bytes };
        let done = (prepared.run)(&mut io);
        lists.placed = emptied(placed);
        lists.operands = emptied(io.operands);
        lists.results = emptied(io.results);
        done
    }

    /// True if an operand is on the heap, where it owns its bytes.
    fn is_on_heap(&self, slot: usize) -> bool {
        let operand = self.step.operands.get(slot).copied().flatten();
        operand.is_some_and(|index| self.plan.values[index as usize].place == Place::Heap)
    }

    /// The tensor for a heap result whose type is known by now, unless the result shares bytes. A result in the arena
    /// must have the planned type.
    fn room_for(
        &self,
        space: &Space,
        planned: &Planned,
        (dtype, dims): (DType, Vec<u64>),
        is_shared: bool,
    ) -> Result<Option<Data>, KernelError> {
        match planned.place {
            Place::Arena { .. } => match &planned.tensor {
                Some((d, n)) if (*d, n) == (dtype, &dims) => Ok(None),
                other => {
                    let expected = other.as_ref().map_or_else(String::new, |t| format!("{}{:?}", t.0, t.1));
                    let expected = format!("a result {expected}, as planned");
                    Err(KernelError::value(expected, format!("{dtype}{dims:?}")))
                }
            },
            Place::Heap if !is_shared => {
                check_size(dtype.tensor_bytes(&dims).unwrap_or(u64::MAX), self.max_bytes)?;
                space.tensor(dtype, &dims).map(Some)
            }
            _ => Ok(None),
        }
    }
}

/// Runs a kernel outside of a graph. The results are tensors of these types and dims, in host memory like the
/// operands.
pub(crate) fn run_alone(
    space: &mut Space,
    prepared: &Prepared,
    operands: &[Option<DataRef<'_>>],
    results: &[Option<(DType, Vec<u64>)>],
    max_bytes: u64,
) -> Result<Vec<Option<HostTensor>>, KernelError> {
    // A view chooses itself whose bytes it shares.
    let is_shared = |slot: usize| slot == 0 && prepared.needs.view;
    let made = match space {
        Space::Host => {
            let wanted = results.iter().enumerate().map(|(slot, ty)| match ty {
                None => Wanted::Absent,
                Some(_) if is_shared(slot) => Wanted::Any,
                Some((dtype, dims)) => Wanted::Tensor(*dtype, dims.clone()),
            });
            prepared.run_alone(operands, &wanted.collect::<Vec<_>>(), max_bytes)?
        }
        Space::Device(_) => {
            let brought = operands.iter().map(|operand| operand.map(|data| space.bring(data)).transpose());
            let brought: Vec<Option<Data>> = brought.collect::<Result<_, KernelError>>()?;
            let mut made: Vec<Option<Data>> = Vec::new();
            for (slot, ty) in results.iter().enumerate() {
                let ty = ty.as_ref().filter(|_| !is_shared(slot));
                made.push(ty.map(|(dtype, dims)| space.tensor(*dtype, dims)).transpose()?);
            }
            let Block::Device(scratch) = scratch_of(space, prepared, max_bytes)? else {
                return Err(HostError::OnDevice.into());
            };
            let places = made.iter_mut().zip(results);
            let place = |(data, ty): (_, &Option<_>)| match ty {
                Some(_) => Out::outside_of_arena(data),
                None => Out::Absent,
            };
            let mut io = Io {
                operands: brought.iter().map(|data| data.as_ref().map(Data::view)).collect(),
                results: places.map(place).collect(),
                scratch: &mut [],
                device_scratch: whole(&scratch),
                queue: space.queue(),
                in_place: None,
                taken: &[],
                max_bytes,
            };
            (prepared.run)(&mut io)?;
            drop(io);
            let copies =
                made.iter().map(|data| data.as_ref().map(|data| space.fetch(data.view())).transpose());
            copies.collect::<Result<_, KernelError>>()?
        }
    };
    let tensor = |data: Option<Data>| match data {
        Some(Data::Tensor(tensor)) => Some(tensor),
        _ => None,
    };
    Ok(made.into_iter().map(tensor).collect())
}

/// A whole block as a range; `None` for a block of 0 bytes.
fn whole(memory: &Arc<dyn DeviceMemory>) -> Option<Span<'_>> {
    (!memory.is_empty()).then(|| Span { memory, offset: 0, len: memory.len() })
}

/// The scratch memory of a kernel.
fn scratch_of(space: &Space, prepared: &Prepared, max_bytes: u64) -> Result<Block, KernelError> {
    let bytes = prepared.needs.scratch;
    check_size(bytes as u64, max_bytes)?;
    space.block(bytes).map_err(|error| match error {
        DeviceError::NoMemory { bytes } => HostError::NoMemory { bytes }.into(),
        other => other.into(),
    })
}

/// The size of a tensor of this type in bytes, with dims of 0 counted as 1, so that no partial product of dims is
/// larger; 0 without known dims, `None` beyond 64 bits.
pub(crate) fn span(ty: &Type) -> Option<u64> {
    let Some((dtype, dims)) = known_tensor(ty) else { return Some(0) };
    dtype.storage_bytes(dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d.max(1)))?)
}
