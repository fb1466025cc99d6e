//! The walk over a plan: for each step the operands where they are, the results where they go, and the kernel.

use super::ExecuteError;
use super::bind::Program;
use super::control;
use super::frame::{Frame, Given, Lists, Memory, Scope};
use super::limits::Limits;
use super::observe::NodeObserver;
use super::states::writes_states;
use crate::backend::Backend;
use crate::bytes::AlignedBytes;
use crate::data::{Data, DataRef, emptied};
use crate::host::{HostError, HostTensor};
use crate::kernel::{Io, KernelError, Out, Prepared, Site, check_size};
use crate::plan::arena::{Part, split};
use crate::plan::{GraphPlan, Place, Planned, Step};
use crate::room::Room;
use ampc_ir::infer::infer_actual;
use ampc_ir::module::Op;
use ampc_ir::views::{Actual, MAX_INTS, NodeView};
use ampc_ir::{DType, GraphId, Module, Node, Shape, TensorData, Type};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// What holds during one run.
pub(crate) struct Run<'a> {
    pub(crate) backend: &'a dyn Backend,
    pub(crate) program: &'a Program,
    pub(crate) observer: Option<&'a mut (dyn NodeObserver + Send)>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) stop: Option<&'a AtomicBool>,
    pub(crate) limits: &'a Limits,
}

impl Run<'_> {
    /// An error if the time is over or the run is stopped; `node` would be next.
    fn in_time(&self, node: Option<Node>) -> Result<(), ExecuteError> {
        if self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            return Err(ExecuteError::Stopped);
        }
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => {
                Err(ExecuteError::Time { node, limit: self.limits.time_limit.unwrap_or_default() })
            }
            _ => Ok(()),
        }
    }

    /// An error if the observer wants no state to change.
    fn permits_updates(&mut self) -> Result<(), ExecuteError> {
        match self.observer.as_deref_mut().is_none_or(NodeObserver::permits_updates) {
            true => Ok(()),
            false => Err(ExecuteError::Stopped),
        }
    }
}

/// Runs a graph: afterwards its outputs are in the frame. `owned` has the formal inputs that the plan has on the heap.
pub(crate) fn run_graph(
    run: &mut Run<'_>,
    graph: GraphId,
    frame: &mut Frame,
    given: Given<'_>,
    owned: Vec<(u32, Data)>,
) -> Result<(), ExecuteError> {
    let program = run.program;
    let plan = program.plan(graph);
    let scope = Scope { program, plan, given };
    frame.reserve(&program.module, plan, 0, run.limits.max_bytes)?;
    frame.states.take(given.inputs);
    for (input, data) in owned {
        frame.heap[input as usize] = Some(data);
    }
    // A body without steps takes time as well.
    run.in_time(None)?;
    for step in &plan.steps {
        run.in_time(Some(step.node))?;
        if writes_states(plan, step) {
            run.permits_updates()?;
            frame.states.set_torn(true);
        }
        let done = if is_nested(&program.module, step.node) {
            run_nested(run, scope, step, frame)
        } else {
            run_step(run, scope, step, frame).map_err(|error| ExecuteError::Node { node: step.node, error })
        };
        done?;
        if run.observer.is_some() {
            observe(run, scope, step, frame);
        }
        for &value in &step.ends {
            frame.heap[value as usize] = None;
        }
    }
    if !plan.states.is_empty() {
        run.permits_updates()?;
    }
    run.in_time(None)
}

/// Whether a node has bodies or may have, or is a call: its results are on the heap.
pub(crate) fn is_nested(module: &Module, node: Node) -> bool {
    let op = module.node(node).op;
    matches!(op, Op::Call(_)) || matches!(op, Op::Schema(s) if control::is_control(s.kind))
}

/// A node with bodies, or a call: its results are on the heap.
fn run_nested(
    run: &mut Run<'_>,
    scope: Scope<'_>,
    step: &Step,
    frame: &mut Frame,
) -> Result<(), ExecuteError> {
    let Frame { states, arena, heap, children, .. } = frame;
    let rest = arena.as_ref().map_or(&[][..], |arena| arena.as_slice());
    let memory = Memory { states: states.as_slice(), rest };
    let operands: SmallVec<[Option<DataRef<'_>>; 8]> = step
        .operands
        .iter()
        .map(|index| scope.find(heap, (*index)?, &mut |at, len| Some(memory.bytes(at, len))))
        .collect();
    let results = control::run(run, step.node, children, &operands, scope.given.attrs)?;
    drop(operands);
    for (index, data) in step.results.iter().zip(results) {
        if let Some(index) = index {
            heap[*index as usize] = data;
        }
    }
    Ok(())
}

fn observe(run: &mut Run<'_>, scope: Scope<'_>, step: &Step, frame: &Frame) {
    for (slot, index) in step.results.iter().enumerate() {
        let Some(index) = index else { continue };
        let data = frame.get(scope, *index);
        if let (Some(observer), Some(data)) = (run.observer.as_deref_mut(), data) {
            observer.value(step.node, slot, data);
        }
    }
}

/// The types and small values of operands that are there.
struct Found {
    types: Vec<Option<Type>>,
    values: Vec<Option<Arc<TensorData>>>,
}

fn look_at(operands: &[Option<DataRef<'_>>]) -> Found {
    let types = operands.iter().map(|o| o.map(DataRef::ty)).collect();
    let value = |data: &Option<DataRef<'_>>| {
        let tensor = (*data)?.tensor()?;
        let bytes = tensor.bytes().filter(|_| tensor.element_count() <= MAX_INTS)?;
        TensorData::from_bytes(tensor.dtype(), tensor.dims(), bytes.to_vec()).ok().map(Arc::new)
    };
    Found { types, values: operands.iter().map(value).collect() }
}

/// A node with a kernel.
fn run_step(run: &mut Run<'_>, scope: Scope<'_>, step: &Step, frame: &mut Frame) -> Result<(), KernelError> {
    let Scope { program, plan, given } = scope;
    if step.view {
        return Ok(());
    }
    // Results on the heap are made apart, so that operands there can be read meanwhile.
    let mut own;
    let mut made = std::mem::take(&mut frame.lists.made);
    made.resize_with(step.results.len(), || None);
    if let (Some(Some(operand)), true) = (step.operands.first(), step.moves(plan)) {
        made[0] = frame.heap[*operand as usize].take();
    }
    {
        let Frame { states, arena, heap, lists, .. } = &mut *frame;
        let rest = arena.as_mut().map_or(&mut [][..], |arena| arena.as_mut_slice());
        let mut reach = Reach::of(scope, step, [states.as_mut_slice(), rest], heap, lists);
        let job = Job { run: &*run, plan, step };
        match program.prepared(step.node) {
            Some(prepared) => job.execute(prepared, reach, &[], &mut made, lists)?,
            None => {
                let found = look_at(&reach.operands);
                let actual = Actual { types: &found.types, values: &found.values, call_attrs: given.attrs };
                let types = job.result_types(actual)?;
                for ty in types.iter().flatten() {
                    check_size(span(ty).unwrap_or(u64::MAX), run.limits.max_bytes)?;
                }
                let prepared = job.prepare(actual, &types)?;
                own = scratch_of(&prepared, run.limits.max_bytes)?;
                reach.scratch = own.as_mut_slice();
                job.execute(&prepared, reach, &types, &mut made, lists)?;
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

/// What a step reads and writes, where it is.
struct Reach<'a> {
    /// The formal operands but for the one in whose place the first result is computed.
    operands: Vec<Option<DataRef<'a>>>,
    /// The results that are in the arena.
    placed: Vec<Option<&'a mut [u8]>>,
    scratch: &'a mut [u8],
}

impl<'a> Reach<'a> {
    fn of(
        scope: Scope<'a>,
        step: &Step,
        arena: [&'a mut [u8]; 2],
        heap: &'a [Option<Data>],
        lists: &mut Lists,
    ) -> Reach<'a> {
        let plan = scope.plan;
        list_parts(plan, step, &mut lists.ranges);
        let mut parts: Vec<Part<'a>> = emptied(std::mem::take(&mut lists.parts));
        split(arena, &lists.ranges, &mut lists.order, &mut parts);
        let mut operands = emptied(std::mem::take(&mut lists.operands));
        let mut taken = parts.iter_mut().map(std::mem::take);
        let n_formal = scope.program.module.node(step.node).n_formal();
        for (slot, index) in step.operands.iter().enumerate() {
            let data = index.filter(|_| !step.takes(slot)).and_then(|index| {
                scope.find(heap, index, &mut |_, _| match taken.next() {
                    Some(Part::Read(bytes)) => Some(bytes),
                    Some(Part::Write(_)) | None => None,
                })
            });
            if slot < n_formal {
                operands.push(data);
            }
        }
        let mut writes = taken.map(|part| match part {
            Part::Write(bytes) => bytes,
            Part::Read(_) => &mut [],
        });
        let is_placed = |index: u32| matches!(plan.values[index as usize].place, Place::Arena { .. });
        let mut placed = emptied(std::mem::take(&mut lists.placed));
        placed.extend(step.results.iter().map(|index| {
            let index = (*index).filter(|&index| is_placed(index));
            index.and_then(|_| writes.next())
        }));
        let scratch = if step.scratch.1 > 0 { writes.next().unwrap_or_default() } else { &mut [] };
        drop(writes);
        lists.parts = emptied(parts);
        Reach { operands, placed, scratch }
    }
}

/// Lists the parts of the arena that a step reads and writes: operands, results, scratch memory.
fn list_parts(plan: &GraphPlan, step: &Step, parts: &mut Vec<(std::ops::Range<usize>, bool)>) {
    parts.clear();
    for (slot, index) in step.operands.iter().enumerate() {
        let Some(index) = index else { continue };
        if let (Place::Arena { offset, len }, true) = (plan.values[*index as usize].place, !step.takes(slot))
        {
            parts.push((offset..offset + len, false));
        }
    }
    for index in step.results.iter().flatten() {
        if let Place::Arena { offset, len } = plan.values[*index as usize].place {
            parts.push((offset..offset + len, true));
        }
    }
    if step.scratch.1 > 0 {
        parts.push((step.scratch.0..step.scratch.0 + step.scratch.1, true));
    }
}

/// One node with a kernel, as it runs.
#[derive(Clone, Copy)]
struct Job<'r, 'a> {
    run: &'r Run<'a>,
    plan: &'r GraphPlan,
    step: &'r Step,
}

impl<'r> Job<'r, '_> {
    /// The types of the results of a node whose operands are these.
    fn result_types(&self, actual: Actual<'_>) -> Result<Vec<Option<Type>>, KernelError> {
        let module = &self.run.program.module;
        let inferred = infer_actual(module, self.step.node, actual)?;
        let results = module.node(self.step.node).results();
        let types = inferred.map(|i| i.types).unwrap_or_default();
        let ty = |i: usize| types.get(i).cloned().unwrap_or_default();
        Ok(results.iter().enumerate().map(|(i, v)| v.map(|_| ty(i))).collect())
    }

    fn prepare(&self, actual: Actual<'_>, results: &[Option<Type>]) -> Result<Prepared, KernelError> {
        let module = &self.run.program.module;
        let view = NodeView::with_actual(module, self.step.node, actual);
        let view = view.ok_or_else(|| KernelError::unsupported("operators that it does not know"))?;
        self.run.backend.prepare(&Site { view, results, room: Room::of(self.run.limits.max_bytes) })
    }

    /// Runs a kernel. `types` are the types of the results where they follow from the operands as they are; what
    /// is not in the arena is left in `made`.
    fn execute<'d>(
        &self,
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
            // A view says itself whose bytes it shares.
            let is_shared = slot == 0 && prepared.needs.view;
            if let (Some(index), Some(known)) = (self.step.results[slot], known) {
                *data = self.room_for(&self.plan.values[index as usize], known, is_shared)?;
            }
        }
        let Reach { operands, mut placed, scratch } = reach;
        let mut results: Vec<Out<'d>> = emptied(std::mem::take(&mut lists.results));
        for ((slot, data), placed) in made.iter_mut().enumerate().zip(placed.drain(..)) {
            let dtype = || {
                let index = self.step.results[slot]?;
                self.plan.values[index as usize].tensor.as_ref().map(|t| t.0)
            };
            results.push(match (placed, dtype()) {
                (Some(bytes), Some(dtype)) => Out::Placed { dtype, bytes },
                _ if self.step.results[slot].is_none() => Out::Absent,
                _ => match data {
                    Some(Data::Tensor(tensor)) => {
                        let dtype = tensor.dtype();
                        tensor.bytes_mut().map_or(Out::Absent, |bytes| Out::Placed { dtype, bytes })
                    }
                    free => Out::Free(free),
                },
            });
        }
        let taken = &self.step.in_place[..];
        let in_place = taken.iter().find(|&&(result, _)| result == 0).map(|&(_, operand)| operand);
        let mut io = Io { operands, results, scratch, in_place, taken, max_bytes: self.run.limits.max_bytes };
        let done = (prepared.run)(&mut io);
        lists.placed = emptied(placed);
        lists.operands = emptied(io.operands);
        lists.results = emptied(io.results);
        done
    }

    /// The tensor for a result on the heap whose type is known by now, unless it shares its bytes. One in the arena has
    /// to be what was planned.
    fn room_for(
        &self,
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
                check_size(dtype.tensor_bytes(&dims).unwrap_or(u64::MAX), self.run.limits.max_bytes)?;
                Ok(Some(Data::Tensor(HostTensor::zeros(dtype, &dims)?)))
            }
            _ => Ok(None),
        }
    }
}

/// Runs a kernel outside a graph: what its results are, tensors of these types and dims.
pub(crate) fn run_alone(
    prepared: &Prepared,
    operands: &[Option<DataRef<'_>>],
    results: &[Option<(DType, Vec<u64>)>],
    max_bytes: u64,
) -> Result<Vec<Option<HostTensor>>, KernelError> {
    let mut shared = None;
    let mut made: Vec<Option<HostTensor>> = Vec::new();
    for (slot, ty) in results.iter().enumerate() {
        // A view says itself whose bytes it shares.
        let is_shared = slot == 0 && prepared.needs.view;
        let ty = ty.as_ref().filter(|_| !is_shared);
        made.push(ty.map(|(dtype, dims)| HostTensor::zeros(*dtype, dims)).transpose()?);
    }
    let mut scratch = scratch_of(prepared, max_bytes)?;
    let mut outs: Vec<Out<'_>> = made.iter_mut().map(out_of).collect();
    if prepared.needs.view {
        outs[0] = Out::Free(&mut shared);
    }
    let scratch = scratch.as_mut_slice();
    let mut io =
        Io { operands: operands.to_vec(), results: outs, scratch, in_place: None, taken: &[], max_bytes };
    (prepared.run)(&mut io)?;
    drop(io);
    if let Some(Data::Tensor(tensor)) = shared {
        made[0] = Some(tensor);
    }
    Ok(made)
}

/// The memory that a kernel needs for itself.
fn scratch_of(prepared: &Prepared, max_bytes: u64) -> Result<AlignedBytes, KernelError> {
    let bytes = prepared.needs.scratch;
    check_size(bytes as u64, max_bytes)?;
    AlignedBytes::zeroed(bytes).ok_or_else(|| HostError::NoMemory { bytes: bytes as u64 }.into())
}

fn out_of(tensor: &mut Option<HostTensor>) -> Out<'_> {
    let Some(tensor) = tensor else { return Out::Absent };
    let dtype = tensor.dtype();
    tensor.bytes_mut().map_or(Out::Absent, |bytes| Out::Placed { dtype, bytes })
}

/// Bytes of a tensor of this type were no dim zero, so that no product of its dims is larger; 0 for what has no known
/// dims, `None` if there is no such number.
pub(crate) fn span(ty: &Type) -> Option<u64> {
    let Some((dtype, dims)) = known_tensor(ty) else { return Some(0) };
    dtype.storage_bytes(dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d.max(1)))?)
}

/// Element type and dims of a tensor of numbers, if they are known.
pub(crate) fn known_tensor(ty: &Type) -> Option<(DType, Vec<u64>)> {
    let tensor = ty.as_tensor().filter(|t| t.dtype != DType::String)?;
    Some((tensor.dtype, Shape::to_known(&tensor.shape)?))
}
