//! Plans: the order in which a graph is computed, and the place of every value.
//!
//! A plan is made from a module whose values have their types ([`infer_module`](ampc_ir::infer::infer_module),
//! with the dims of the inputs at hand), and from the requirements of a backend for each node ([`Needs`]). It
//! is the same for all backends: the steps in order; for every value its offset in the arena or its place
//! elsewhere; and the size of the arena.
//!
//! - A *group* is the nodes that one kernel computes. Nodes outside of a group never stand between two of its nodes.
//! - A *storage* is a range of the arena that one or more values share: a view (Reshape) has the bytes of its
//!   operand, and a result computed in place takes the bytes of an operand without later readers.
//! - Storages live from the step that writes them to the last step that reads one of their values; scratch
//!   memory lives for one step. Storages that live at the same time do not overlap (`plan/arena.rs` lays them
//!   out).
//! - A state keeps its storage from run to run. States are at the beginning of the arena, in their order, so
//!   that plans for other dims have them at the same offsets. Its next value is computed in place of it if
//!   everything else reads it before; if not, it is copied there when all steps are done. A state of unknown or
//!   changing size is *moved*: the caller that runs the graph keeps it.
//! - A value whose dims are known only at run time, and a value that is not a tensor of numbers, is on the
//!   *heap*. A sequence that a Loop hands from iteration to iteration is there too, because the body may change it in place.
//!
//! - Steps on one queue of a device run in order. A step waits for the steps of other queues whose values it reads or whose
//!   memory it takes (`plan/queues.rs`).
//!
//! Every graph has its own plan: the plan of a body is used for every iteration, the plan of a function for
//! every call that the nodes of the function do not stand in place of.

pub(crate) mod arena;
mod carry;
mod peak;
mod queues;
mod text;

pub use carry::Carry;
pub use peak::Peak;

use ampc_ir::entity::SecondaryMap;
use ampc_ir::module::{Def, GraphOwner};
use ampc_ir::op::OpKind;
use ampc_ir::{DType, GraphId, Module, Node, Type, Value};
use arena::{Ranges, Request};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

/// Requirements of a backend for a node, before it is planned.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Bytes it needs for itself while it runs.
    pub scratch: usize,
    /// Operands in whose place it can compute its first result, best first.
    pub in_place: SmallVec<[usize; 2]>,
    /// Other results, each with the operand in whose place it can compute it.
    pub others_in_place: SmallVec<[(usize, usize); 2]>,
    /// True if it can turn its first operand into its first result, both outside the arena: a sequence that grows.
    pub moves: bool,
    /// True if its first result has the bytes of its first operand: nothing is computed.
    pub view: bool,
    /// True if its results are on the heap: allocated by the session or the kernel while the graph runs, outside of the arena.
    pub on_heap: bool,
    /// The queue of the device that it is launched on.
    pub queue: usize,
    /// True if a device cannot record it: it copies from or to the host, or takes memory.
    pub is_unrecorded: bool,
    /// True if all queues wait for each other before and after it: a node with bodies, and a node whose kernel is prepared
    /// while the graph runs.
    pub is_barrier: bool,
}

/// The plan of one graph.
#[derive(Clone, Debug)]
pub struct GraphPlan {
    /// The graph.
    pub graph: GraphId,
    /// Its values: inputs, captures, constants, and results in program order.
    pub values: Vec<Planned>,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// Its outputs, as indices of `values`.
    pub outputs: Vec<u32>,
    /// Its states: an input that is in the arena, and the value it has next time.
    pub states: Vec<State>,
    /// States outside of the arena, because their size is unknown or changes: the caller that runs the graph
    /// takes the next value out and gives it back for the next run.
    pub moved: Vec<State>,
    /// Bytes of the arena, including the states.
    pub arena: usize,
    /// Bytes of the beginning of the arena in which the states are, and nothing else.
    pub state_bytes: usize,
}

/// An input that stays in the arena from run to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State {
    /// The input, as an index of [`GraphPlan::values`].
    pub now: u32,
    /// Its next value.
    pub next: u32,
    /// True if the next value has to be copied into the place of the input when all steps are done.
    pub copied: bool,
}

/// A value and where it is.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The value.
    pub value: Value,
    /// The place of its bytes.
    pub place: Place,
    /// Element type and dims, where they are known before it is computed.
    pub tensor: Option<(DType, Vec<u64>)>,
}

/// The place of the bytes of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// The caller's value of formal input `i`.
    Input(u32),
    /// An operand of the owning node has them.
    Capture(u32),
    /// They are a constant's, or were computed of constants alone.
    Constant,
    /// In the arena.
    Arena {
        /// Offset of the first byte.
        offset: usize,
        /// Number of bytes.
        len: usize,
    },
    /// The bytes of another value, an index of [`GraphPlan::values`] whose place is outside of the arena.
    View(u32),
    /// Allocated by the session or the kernel while the graph runs, once the size is known.
    Heap,
    /// The value is not computed.
    Unused,
}

/// A node, or a group of nodes that one kernel computes, with operands and results.
#[derive(Clone, Debug)]
pub struct Step {
    /// The nodes, in program order; most steps have one.
    pub nodes: SmallVec<[Node; 1]>,
    /// The operands of a node, captures of its bodies included; of a group, the values that it reads from outside, each
    /// once, in the order of their first use. Indices of [`GraphPlan::values`].
    pub operands: SmallVec<[Option<u32>; 4]>,
    /// The number of operands that are not captures.
    pub n_formal: usize,
    /// The results of a node; of a group, the values that are read outside. Values that a group keeps inside have no place.
    pub results: SmallVec<[Option<u32>; 2]>,
    /// Results that are computed in the place of operands: pairs of a result and an operand.
    pub in_place: SmallVec<[(usize, usize); 3]>,
    /// True if nothing is computed: the first result is a view of the first operand.
    pub view: bool,
    /// Scratch memory in the arena: offset and bytes.
    pub scratch: (usize, usize),
    /// Values on the heap without later readers.
    pub ends: SmallVec<[u32; 2]>,
    /// The queue of the device that the kernel is launched on.
    pub queue: usize,
    /// True if all queues wait for each other before and after this step.
    pub is_barrier: bool,
    /// Earlier steps of other queues that the queue waits for before the kernel.
    pub waits: SmallVec<[u32; 2]>,
    /// True if a later step waits for this step.
    pub is_awaited: bool,
    /// The ranges of the arena that the kernel reads and writes: operands that are not taken, results, scratch memory.
    pub(crate) ranges: Ranges,
}

/// Nodes that one kernel computes, with its requirements.
#[derive(Clone, Debug)]
pub struct Group {
    /// The nodes, in program order.
    pub nodes: SmallVec<[Node; 1]>,
    /// The requirements of the kernel.
    pub needs: Needs,
    /// The operands and results of a group of several nodes.
    pub interface: Option<Interface>,
}

impl Step {
    /// The last node: errors, times and observers name it.
    pub fn node(&self) -> Node {
        *self.nodes.last().expect("a step has a node")
    }

    /// True if a result is computed in the place of operand `slot`, which is not read by itself then.
    pub fn takes(&self, slot: usize) -> bool {
        self.in_place.iter().any(|&(_, operand)| operand == slot)
    }

    fn ranges_of(&self, values: &[Planned]) -> Ranges {
        let range = |index: Option<u32>| match values[index? as usize].place {
            Place::Arena { offset, len } => Some(offset..offset.saturating_add(len)),
            _ => None,
        };
        let operands = self.operands.iter().enumerate().filter(|&(slot, _)| !self.takes(slot));
        let reads = operands.filter_map(|(_, &index)| range(index)).map(|range| (range, false));
        let writes = self.results.iter().filter_map(|&index| range(index)).map(|range| (range, true));
        let (at, bytes) = self.scratch;
        reads.chain(writes).chain((bytes > 0).then(|| (at..at.saturating_add(bytes), true))).collect()
    }

    /// True if its first operand, a value on the heap, is turned into its first result.
    pub fn moves(&self, plan: &GraphPlan) -> bool {
        let result = self.results.first().copied().flatten();
        self.in_place.first() == Some(&(0, 0))
            && result.is_some_and(|result| plan.values[result as usize].place == Place::Heap)
    }
}

/// The places of values in the plans of their graphs.
#[derive(Clone, Debug, Default)]
pub struct Index(SecondaryMap<Value, u32>);

impl Index {
    /// The index of a value in the plan of its graph.
    pub fn of(&self, value: Value) -> u32 {
        self.0[value]
    }
}

/// A range of the arena while it is planned: which steps it lives for.
struct Storage {
    bytes: usize,
    first: usize,
    last: usize,
    /// The last step that reads one of its values; for a state, this is earlier than the end of its live range.
    read: usize,
}

/// Plans a graph of these groups, in their order: every node that is computed is in one of them, and its operands are
/// made by earlier groups or the same. Storages begin on multiples of `alignment` bytes. `is_constant` is true of results
/// that are known before the graph runs.
pub fn plan_graph(
    module: &Module,
    graph: GraphId,
    alignment: usize,
    index: &mut Index,
    groups: &[Group],
    is_constant: impl Fn(Value) -> bool,
) -> GraphPlan {
    let data = module.graph(graph);
    let mut values = listed(module, graph, index);
    for planned in values.iter_mut().filter(|planned| is_constant(planned.value)) {
        planned.place = Place::Constant;
    }
    let interfaces = groups.iter().filter_map(|group| group.interface.as_ref());
    for carry in interfaces.flat_map(|interface| &interface.carries) {
        if let Some(stored) = &carry.stored {
            values[index.of(carry.value) as usize].tensor = Some(stored.clone());
        }
    }
    let outputs: Vec<u32> = data.outputs().iter().map(|o| index.of(o.value)).collect();
    let next = data.states.iter().map(|&(_, next)| index.of(next));
    let roots: Vec<u32> = outputs.iter().copied().chain(next).collect();
    let steps = steps_of(module, groups, index);
    let state =
        |&(now, next): &(Value, Value)| State { now: index.of(now), next: index.of(next), copied: false };
    let mut planner = Planner {
        alignment,
        last: last_reads(&steps, values.len(), &roots),
        storage: vec![None; values.len()],
        of_next: FxHashMap::default(),
        states: data.states.iter().map(state).collect(),
        moved: Vec::new(),
        values,
        storages: Vec::new(),
        scratch: Vec::new(),
        steps,
    };
    planner.keep_states();
    for (at, group) in groups.iter().enumerate() {
        planner.step(at, &group.needs);
    }
    planner.finish(graph, outputs)
}

/// All values of a graph, at the places that they have before it is planned, with their indices.
fn listed(module: &Module, graph: GraphId, index: &mut Index) -> Vec<Planned> {
    let data = module.graph(graph);
    let mut values = Vec::new();
    let mut add = |value: Value, place: Place| {
        index.0[value] = u32::try_from(values.len()).expect("fewer than 2^32 values");
        values.push(Planned { value, place, tensor: sized_tensor(module, value) });
    };
    for (i, &value) in data.inputs().iter().enumerate() {
        let input = Place::Input(u32::try_from(i).expect("fewer than 2^32 inputs"));
        add(value, if is_handed_over(module, graph, value) { Place::Heap } else { input });
    }
    for &value in data.captures() {
        let Def::Capture { slot } = module.value(value).def else { continue };
        add(value, Place::Capture(slot));
    }
    for &value in data.constants() {
        add(value, Place::Constant);
    }
    for node in module.nodes(graph) {
        for &value in module.node(node).results().iter().flatten() {
            add(value, Place::Unused);
        }
    }
    values
}

/// True if a formal input of a graph is a sequence or optional that a Loop hands from iteration to iteration. The body
/// owns it while it runs.
fn is_handed_over(module: &Module, graph: GraphId, value: Value) -> bool {
    let GraphOwner::Body { node, .. } = module.graph(graph).owner else { return false };
    let is_loop = module.node(node).schema().is_some_and(|schema| schema.kind == OpKind::Loop);
    is_loop && matches!(module.value(value).ty, Type::Sequence(_) | Type::Optional(_))
}

/// The nodes of a graph that its outputs and the next values of its states depend on, in program order.
pub fn live_nodes(module: &Module, graph: GraphId) -> Vec<Node> {
    let data = module.graph(graph);
    let next = data.states.iter().map(|&(_, next)| next);
    let mut read: FxHashSet<Value> = data.outputs().iter().map(|output| output.value).chain(next).collect();
    let nodes: Vec<Node> = module.nodes(graph).collect();
    let mut live = Vec::new();
    for &node in nodes.iter().rev() {
        if module.node(node).results().iter().flatten().any(|value| read.contains(value)) {
            read.extend(module.node(node).operands().iter().flatten());
            live.push(node);
        }
    }
    live.reverse();
    live
}

/// A step for each group.
fn steps_of(module: &Module, groups: &[Group], index: &Index) -> Vec<Step> {
    let step = |group: &Group| {
        let some = |values: &[Value]| values.iter().copied().map(Some).collect::<Vec<_>>();
        let (operands, results, n_formal) = match &group.interface {
            Some(interface) => {
                (some(&interface.operands), some(&interface.results), interface.operands.len())
            }
            None => {
                let data = module.node(group.nodes[0]);
                (data.operands().to_vec(), data.results().to_vec(), data.n_formal())
            }
        };
        let of = |value: &Option<Value>| value.map(|value| index.of(value));
        Step {
            nodes: group.nodes.clone(),
            operands: operands.iter().map(of).collect(),
            n_formal,
            results: results.iter().map(of).collect(),
            in_place: SmallVec::new(),
            view: false,
            scratch: (0, 0),
            ends: SmallVec::new(),
            queue: group.needs.queue,
            is_barrier: group.needs.is_barrier,
            waits: SmallVec::new(),
            is_awaited: false,
            ranges: Ranges::default(),
        }
    };
    groups.iter().map(step).collect()
}

/// The operands and results of a group.
#[derive(Clone, Debug)]
pub struct Interface {
    /// The values that the nodes read from outside, each once, in the order of first use.
    pub operands: Vec<Value>,
    /// The values that the nodes make and that are read outside, in program order.
    pub results: Vec<Value>,
    /// Values that are handed over to another group or from one, in another form.
    pub carries: Vec<Carry>,
}

impl Interface {
    /// The interface of nodes without bodies, in program order. `is_read` is true of values that are read outside.
    pub fn of(module: &Module, nodes: &[Node], is_read: impl Fn(Value) -> bool) -> Interface {
        let (mut operands, mut results) = (Vec::new(), Vec::new());
        let (mut seen, mut made) = (FxHashSet::default(), FxHashSet::default());
        for &node in nodes {
            let read = module.node(node).operands().iter().flatten();
            operands.extend(read.copied().filter(|value| !made.contains(value) && seen.insert(*value)));
            let results_of = module.node(node).results().iter().flatten();
            made.extend(results_of.clone().copied());
            results.extend(results_of.copied().filter(|&value| is_read(value)));
        }
        Interface { operands, results, carries: Vec::new() }
    }

    /// Hands over these values, which the group makes or reads, in another form.
    pub(crate) fn carry(&mut self, carries: Vec<Carry>) {
        for carry in &carries {
            let is_stored = carry.stored.is_some();
            self.results.retain(|&result| is_stored || result != carry.value);
            let Some(at) = self.operands.iter().position(|&operand| operand == carry.value) else { continue };
            if !is_stored {
                self.operands.remove(at);
            }
            for &value in &carry.instead {
                if !self.operands.contains(&value) {
                    self.operands.push(value);
                }
            }
        }
        self.carries = carries;
    }
}

/// The last step that reads each value; `roots` are read when all steps are done. The last read of a value
/// without readers is the step that makes it.
fn last_reads(steps: &[Step], n_values: usize, roots: &[u32]) -> Vec<usize> {
    let mut last = vec![0; n_values];
    for (at, step) in steps.iter().enumerate() {
        for &value in step.results.iter().chain(&step.operands).flatten() {
            last[value as usize] = at;
        }
    }
    for &root in roots {
        last[root as usize] = steps.len();
    }
    last
}

/// Element type and dims of a tensor of numbers, if they are known.
pub(crate) fn known_tensor(ty: &Type) -> Option<(DType, Vec<u64>)> {
    let tensor = ty.as_tensor().filter(|tensor| tensor.dtype != DType::String)?;
    Some((tensor.dtype, tensor.shape.to_known()?))
}

/// [`known_tensor`] of a value whose size is a number of 64 bits.
fn sized_tensor(module: &Module, value: Value) -> Option<(DType, Vec<u64>)> {
    let known = known_tensor(&module.value(value).ty)?;
    known.0.tensor_bytes(&known.1).is_some().then_some(known)
}

/// The layout of states: one behind the other, from the beginning of the arena.
#[derive(Clone, Debug)]
pub(crate) struct StateLayout {
    alignment: usize,
    end: usize,
}

impl StateLayout {
    pub(crate) fn new(alignment: usize) -> StateLayout {
        StateLayout { alignment, end: 0 }
    }

    /// The offset of the next state, which has so many bytes.
    pub(crate) fn place(&mut self, bytes: usize) -> usize {
        let offset = self.end;
        self.end = arena::end_of(offset, arena::rounded(bytes, self.alignment), self.alignment);
        offset
    }

    /// The bytes of all states so far.
    pub(crate) fn bytes(&self) -> usize {
        self.end
    }
}

struct Planner {
    alignment: usize,
    values: Vec<Planned>,
    steps: Vec<Step>,
    last: Vec<usize>,
    /// The storage that each value is in.
    storage: Vec<Option<usize>>,
    storages: Vec<Storage>,
    states: Vec<State>,
    /// The storages of the states that have a value as their next one.
    of_next: FxHashMap<usize, SmallVec<[usize; 1]>>,
    moved: Vec<State>,
    /// Steps with scratch memory, and how much.
    scratch: Vec<(usize, usize)>,
}

impl Planner {
    /// Gives every state whose size is known a storage that is never free.
    fn keep_states(&mut self) {
        let end = self.steps.len();
        let sized = |s: &State| {
            self.bytes(s.now as usize).is_some() && self.bytes(s.now as usize) == self.bytes(s.next as usize)
        };
        (self.states, self.moved) = self.states.iter().partition(|s| sized(s));
        for (storage, state) in self.states.clone().into_iter().enumerate() {
            let now = state.now as usize;
            let bytes = self.bytes(now).unwrap_or(0);
            self.storages.push(Storage { bytes, first: 0, last: end, read: 0 });
            self.join(now, storage);
            self.of_next.entry(state.next as usize).or_default().push(storage);
        }
    }

    /// True if `result` is the next value of the state in `storage` and nothing reads that after step `at`.
    fn ends_state(&self, at: usize, result: usize, storage: usize) -> bool {
        let is_next = self.of_next.get(&result).is_some_and(|storages| storages.contains(&storage));
        is_next && self.storages[storage].read <= at
    }

    fn step(&mut self, at: usize, needs: &Needs) {
        if needs.scratch > 0 {
            self.scratch.push((at, needs.scratch));
        }
        for slot in 0..self.steps[at].results.len() {
            let Some(result) = self.steps[at].results[slot] else { continue };
            let result = result as usize;
            if slot == 0 && needs.view && self.view(at, result) {
                self.steps[at].view = true;
                continue;
            }
            let bytes = self.bytes(result);
            let (Some(bytes), false) = (bytes, needs.on_heap) else {
                self.values[result].place = Place::Heap;
                if slot == 0 && needs.moves && self.can_move(at) {
                    self.steps[at].in_place.push((0, 0));
                }
                continue;
            };
            let others = needs.others_in_place.iter().filter(|&&(other, _)| other == slot);
            let candidates: SmallVec<[usize; 2]> = match slot {
                0 => needs.in_place.clone(),
                _ => others.map(|&(_, operand)| operand).collect(),
            };
            let taken = self.in_place(at, (slot, result), bytes, &candidates);
            let taken = taken.or_else(|| self.state_of(at, result, bytes));
            let storage = taken.unwrap_or_else(|| {
                self.storages.push(Storage { bytes, first: at, last: at, read: at });
                self.storages.len() - 1
            });
            self.join(result, storage);
        }
        let ends = |v: &u32| self.values[*v as usize].place == Place::Heap && self.last[*v as usize] == at;
        let step = &self.steps[at];
        let mut list: SmallVec<[u32; 2]> =
            step.operands.iter().chain(&step.results).flatten().copied().filter(|v| ends(v)).collect();
        list.sort_unstable();
        list.dedup();
        self.steps[at].ends = list;
    }

    /// True if the first operand of a step is on the heap, and nothing else reads it at this step or later.
    fn can_move(&self, at: usize) -> bool {
        let operands = &self.steps[at].operands;
        operands.first().copied().flatten().is_some_and(|operand| {
            let readers = operands.iter().flatten().filter(|&&other| other == operand).count();
            self.values[operand as usize].place == Place::Heap
                && self.last[operand as usize] == at
                && readers == 1
        })
    }

    fn join(&mut self, value: usize, storage: usize) {
        self.storage[value] = Some(storage);
        // The offset follows once all storages are known.
        self.values[value].place = Place::Arena { offset: 0, len: self.bytes(value).unwrap_or(0) };
        let last = self.last[value];
        let storage = &mut self.storages[storage];
        storage.last = storage.last.max(last);
        storage.read = storage.read.max(last);
    }

    fn bytes(&self, value: usize) -> Option<usize> {
        let (dtype, dims) = self.values[value].tensor.as_ref()?;
        usize::try_from(dtype.tensor_bytes(dims)?).ok()
    }

    /// Makes a result a view of the first operand, if that has as many bytes and a place.
    fn view(&mut self, at: usize, result: usize) -> bool {
        let Some(operand) = self.steps[at].operands.first().copied().flatten() else { return false };
        let from = operand as usize;
        if self.bytes(result).is_none() || self.bytes(result) != self.bytes(from) {
            return false;
        }
        match self.values[from].place {
            Place::Arena { .. } => {
                let Some(storage) = self.storage[from] else { return false };
                self.join(result, storage);
            }
            Place::Input(_) | Place::Capture(_) | Place::Constant => {
                self.values[result].place = Place::View(operand);
            }
            Place::View(root) => self.values[result].place = Place::View(root),
            Place::Heap | Place::Unused => return false,
        }
        true
    }

    /// The storage of the state whose next value a result is, if nothing reads that at this step or later.
    fn state_of(&self, at: usize, result: usize, bytes: usize) -> Option<usize> {
        let &storage = self.of_next.get(&result)?.first()?;
        let state = &self.storages[storage];
        (state.bytes == bytes && state.read < at).then_some(storage)
    }

    /// The storage of the first operand of `candidates` that ends at this step, has the size of result number `slot`, is read
    /// through no other operand, and is not that of an earlier result: results without readers end at this step too.
    fn in_place(
        &mut self,
        at: usize,
        (slot, result): (usize, usize),
        bytes: usize,
        candidates: &[usize],
    ) -> Option<usize> {
        let operands = &self.steps[at].operands;
        let tensor = |v: usize| self.values[v].tensor.as_ref();
        let found = candidates.iter().find_map(|&candidate| {
            let operand = operands.get(candidate).copied().flatten()? as usize;
            let storage = self.storage[operand]?;
            let readers =
                operands.iter().flatten().filter(|&&v| self.storage[v as usize] == Some(storage)).count();
            let same_dims = tensor(operand).map(|t| &t.1) == tensor(result).map(|t| &t.1);
            let mut earlier = self.steps[at].results[..slot].iter().flatten();
            let is_taken = earlier.any(|&other| self.storage[other as usize] == Some(storage));
            let fits = self.bytes(operand) == Some(bytes) && same_dims && readers == 1 && !is_taken;
            let ends = self.storages[storage].last == at || self.ends_state(at, result, storage);
            (fits && ends).then_some((candidate, storage))
        });
        let (candidate, storage) = found?;
        self.steps[at].in_place.push((slot, candidate));
        Some(storage)
    }

    fn finish(mut self, graph: GraphId, outputs: Vec<u32>) -> GraphPlan {
        let (offsets, state_bytes, arena) = self.offsets();
        for (value, storage) in self.values.iter_mut().zip(&self.storage) {
            if let (Place::Arena { offset, .. }, Some(storage)) = (&mut value.place, storage) {
                *offset = offsets[*storage];
            }
        }
        for (i, &(at, bytes)) in self.scratch.iter().enumerate() {
            self.steps[at].scratch = (offsets[self.storages.len() + i], bytes);
        }
        for state in &mut self.states {
            state.copied = self.storage[state.now as usize] != self.storage[state.next as usize];
        }
        debug_assert!(arena.is_multiple_of(self.alignment));
        let Planner { values, mut steps, states, moved, .. } = self;
        queues::order(&values, &mut steps, arena);
        for step in &mut steps {
            step.ranges = step.ranges_of(&values);
        }
        GraphPlan { graph, values, steps, outputs, states, moved, arena, state_bytes }
    }

    /// The offsets of storages and of scratch memory, the bytes of the states, which come first, and the total
    /// bytes.
    fn offsets(&self) -> (Vec<usize>, usize, usize) {
        let (states, others) = self.storages.split_at(self.states.len());
        let mut offsets = Vec::with_capacity(self.storages.len() + self.scratch.len());
        let mut layout = StateLayout::new(self.alignment);
        offsets.extend(states.iter().map(|state| layout.place(state.bytes)));
        let state_bytes = layout.bytes();
        let of_storage = |s: &Storage| Request { bytes: s.bytes, first: s.first, last: s.last };
        let of_scratch = |&(at, bytes): &(usize, usize)| Request { bytes, first: at, last: at };
        let requests: Vec<Request> =
            others.iter().map(of_storage).chain(self.scratch.iter().map(of_scratch)).collect();
        let layout = arena::lay_out(&requests, self.alignment);
        let behind = |offset| arena::end_of(state_bytes, offset, self.alignment);
        offsets.extend(layout.offsets.into_iter().map(behind));
        (offsets, state_bytes, behind(layout.bytes))
    }
}
