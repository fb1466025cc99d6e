//! A backend with a device, slow and strict on purpose. It proves sessions, plans and memory, not formulas.
//!
//! - Its memory cannot be read by the host. New memory is poisoned, and a kernel that reads a byte that nothing has
//!   written fails.
//! - Launches return before the work is done. The work runs when the host waits for it, in a random order that the seed
//!   says: a job may run once no earlier job is left that writes what the job reads or writes, or reads what it writes.
//! - Its groups are random sets of nodes without a node between two of them; a seed of 0 makes none.
//! - Failures surface when the host waits, with the node.
//! - Its kernels are the CPU's on operands widened to f64, rounded once, where the operator has such a form.

#![allow(
    clippy::unwrap_used,
    clippy::missing_docs_in_private_items,
    reason = "a test: what cannot be made fails it"
)]
#![allow(dead_code, reason = "tests share it, and each uses a part")]

use ampc_ir::infer::infer_actual;
use ampc_ir::op::OpKind;
use ampc_ir::views::{Actual, NodeView};
use ampc_ir::{DType, Node, Shape, TensorData, Type, Value};
use ampc_runtime::backend::{Backend, Candidates, GroupSite, Io, KernelError, Out, Prepared, Site, Wanted};
use ampc_runtime::data::{Maybe, Sequence};
use ampc_runtime::device::{Device, DeviceError, DeviceMemory, DeviceRef, DeviceTensor, Queue, Rows, Span};
use ampc_runtime::{Cpu, Data, DataRef, HostError, HostTensor, TensorRef};
use half::{bf16, f16};
use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Every byte that nothing has written.
const POISON: u8 = 0xA5;

/// The backend.
#[derive(Debug)]
pub(crate) struct Reference {
    cpu: Cpu,
    /// False if kernels compute on operands as they are: results are then those of the CPU, bit for bit.
    widens: bool,
    device: Arc<ReferenceDevice>,
}

/// The device: its counters, and the faults that a test asks for.
#[derive(Debug)]
pub(crate) struct ReferenceDevice {
    seed: u64,
    alignment: usize,
    live_bytes: Arc<AtomicUsize>,
    allocations: AtomicU64,
    /// The calls of the device and its queues so far.
    calls: Arc<AtomicU64>,
    /// The call that fails; 0 for none.
    failing_call: Arc<AtomicU64>,
}

impl Reference {
    pub(crate) fn new(seed: u64) -> Reference {
        let device = ReferenceDevice {
            seed,
            alignment: [1, 64, 256, 512][usize::try_from(seed % 4).unwrap()],
            live_bytes: Arc::default(),
            allocations: AtomicU64::new(0),
            calls: Arc::default(),
            failing_call: Arc::default(),
        };
        Reference { cpu: Cpu::new(1), widens: true, device: Arc::new(device) }
    }

    /// The backend with the kernels of the CPU as they are.
    pub(crate) fn plain(seed: u64) -> Reference {
        Reference { widens: false, ..Reference::new(seed) }
    }

    /// The device, for its counters and faults.
    pub(crate) fn shared_device(&self) -> Arc<ReferenceDevice> {
        self.device.clone()
    }
}

impl ReferenceDevice {
    /// The bytes that are allocated now.
    pub(crate) fn live_bytes(&self) -> usize {
        self.live_bytes.load(Ordering::Relaxed)
    }

    /// The blocks that were allocated so far.
    pub(crate) fn allocations(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed)
    }

    /// The calls of the device and its queues so far.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Lets one call fail, counted from 1 over the life of the device; 0 for none.
    pub(crate) fn fail_at(&self, call: u64) {
        self.failing_call.store(call, Ordering::Relaxed);
    }
}

/// An error if this is the call that fails.
fn called(calls: &AtomicU64, failing: &AtomicU64) -> Result<(), DeviceError> {
    let call = calls.fetch_add(1, Ordering::Relaxed) + 1;
    match failing.load(Ordering::Relaxed) == call {
        true => Err(DeviceError::Lost(format!("call {call} fails, as the test asks"))),
        false => Ok(()),
    }
}

impl Backend for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn has_kernel(&self, kind: OpKind) -> bool {
        self.cpu.has_kernel(kind)
    }

    fn prepare(&self, site: &Site<'_>) -> Result<Prepared, KernelError> {
        let own = self.cpu.prepare(site)?;
        let needs = own.needs().clone();
        let kernel = Arc::new(Kernel::new(self, site, own)?);
        let mut prepared =
            Prepared::new(move |io| launch(&kernel, io)).scratch(usize::from(needs.scratch > 0) * 40);
        prepared = prepared.in_place(&needs.in_place).others_in_place(&needs.others_in_place);
        if needs.moves {
            prepared = prepared.moves();
        }
        Ok(if needs.view { prepared.view() } else { prepared })
    }

    fn has_groups(&self) -> bool {
        self.device.seed > 0
    }

    fn join(&self, candidates: &Candidates<'_>) -> Vec<Vec<Node>> {
        let mut random = Random::new(self.device.seed ^ candidates.nodes.len() as u64);
        let mut groups = Vec::new();
        let mut rest = candidates.nodes;
        while rest.len() > 1 {
            let (window, others) = rest.split_at((2 + random.below(6)).min(rest.len()));
            rest = others;
            let some: Vec<Node> = window.iter().copied().filter(|_| random.below(4) > 0).collect();
            let group = convex(candidates, &some);
            if group.len() > 1 {
                groups.push(group);
            }
        }
        groups
    }

    fn prepare_group(&self, group: &GroupSite<'_>) -> Result<Prepared, KernelError> {
        let kernel = Arc::new(Kernel::of_group(self, group)?);
        Ok(Prepared::new(move |io| launch(&kernel, io)))
    }

    fn device(&self) -> Option<&dyn Device> {
        Some(&*self.device)
    }

    fn install(&self, work: &mut (dyn FnMut() + Send)) {
        self.cpu.install(work);
    }
}

impl Device for ReferenceDevice {
    fn alignment(&self) -> usize {
        self.alignment
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn DeviceMemory>, DeviceError> {
        called(&self.calls, &self.failing_call).map_err(|_| DeviceError::NoMemory { bytes: bytes as u64 })?;
        self.allocations.fetch_add(1, Ordering::Relaxed);
        self.live_bytes.fetch_add(bytes, Ordering::Relaxed);
        let content = Content { bytes: vec![POISON; bytes], is_written: vec![false; bytes] };
        Ok(Arc::new(Block { content: Mutex::new(content), len: bytes, live_bytes: self.live_bytes.clone() }))
    }

    fn queue(&self) -> Result<Box<dyn Queue>, DeviceError> {
        called(&self.calls, &self.failing_call)?;
        Ok(Box::new(Jobs {
            pending: Vec::new(),
            random: Random::new(self.seed),
            node: None,
            calls: self.calls.clone(),
            failing_call: self.failing_call.clone(),
        }))
    }
}

/// A block of device memory.
#[derive(Debug)]
struct Block {
    content: Mutex<Content>,
    len: usize,
    live_bytes: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Content {
    bytes: Vec<u8>,
    is_written: Vec<bool>,
}

impl DeviceMemory for Block {
    fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.live_bytes.fetch_sub(self.len, Ordering::Relaxed);
    }
}

/// A range of a block that a job reads or writes.
#[derive(Clone, Debug)]
struct Part {
    memory: Arc<dyn DeviceMemory>,
    range: Range<usize>,
}

impl Part {
    fn of(span: Span<'_>) -> Part {
        Part { memory: span.memory.clone(), range: span.offset..span.offset + span.len }
    }

    fn block(&self) -> &Block {
        let memory: &dyn Any = &*self.memory;
        memory.downcast_ref().expect("memory of this device")
    }

    fn overlaps(&self, other: &Part) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory)
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }

    fn read(&self) -> Result<Vec<u8>, String> {
        let content = self.block().content.lock().unwrap();
        match content.is_written[self.range.clone()].iter().position(|written| !written) {
            Some(at) => Err(format!("byte {} of {:?} is read before anything is written", at, self.range)),
            None => Ok(content.bytes[self.range.clone()].to_vec()),
        }
    }

    fn write(&self, bytes: &[u8]) {
        let mut content = self.block().content.lock().unwrap();
        content.bytes[self.range.clone()].copy_from_slice(bytes);
        content.is_written[self.range.clone()].fill(true);
    }

    /// Makes the range what new memory is.
    fn poison(&self) {
        let mut content = self.block().content.lock().unwrap();
        content.bytes[self.range.clone()].fill(POISON);
        content.is_written[self.range.clone()].fill(false);
    }
}

/// Random numbers that a seed says.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 11) % n as u64).unwrap()
    }
}

/// Nodes with the candidates that stand between two of them; none if another node does.
fn convex(candidates: &Candidates<'_>, nodes: &[Node]) -> Vec<Node> {
    let module = candidates.module;
    let all: Vec<Node> = module.nodes(candidates.graph).collect();
    let reads = |node: Node, of: &[Node]| {
        let operands = module.node(node).operands().iter().flatten();
        operands.filter_map(|&value| module.producer(value)).any(|(maker, _)| of.contains(&maker))
    };
    // The nodes that read the group, directly or not, and the nodes that the group reads.
    let (mut behind, mut before) = (nodes.to_vec(), nodes.to_vec());
    for &node in &all {
        if !behind.contains(&node) && reads(node, &behind) {
            behind.push(node);
        }
    }
    for &node in all.iter().rev() {
        let is_read = |&reader: &Node| reads(reader, &[node]);
        if !before.contains(&node) && before.iter().any(is_read) {
            before.push(node);
        }
    }
    let group: Vec<Node> =
        all.into_iter().filter(|node| behind.contains(node) && before.contains(node)).collect();
    match group.iter().all(|node| candidates.nodes.contains(node)) {
        true => group,
        false => Vec::new(),
    }
}

/// Work that was launched and has not run.
struct Job {
    node: Option<Node>,
    reads: Vec<Part>,
    writes: Vec<Part>,
    work: Box<dyn FnOnce() -> Result<(), Failure> + Send>,
}

enum Failure {
    Kernel(KernelError),
    Poison(String),
}

/// For each job, the number of earlier jobs that it must wait for, and the later jobs that wait for it.
fn order(jobs: &[Option<Job>]) -> (Vec<usize>, Vec<Vec<usize>>) {
    let conflict = |a: &Job, b: &Job| {
        let any = |a: &[Part], b: &[Part]| a.iter().any(|a| b.iter().any(|b| a.overlaps(b)));
        any(&a.writes, &b.writes) || any(&a.writes, &b.reads) || any(&a.reads, &b.writes)
    };
    let (mut waits, mut followers) = (vec![0; jobs.len()], vec![Vec::new(); jobs.len()]);
    for (at, job) in jobs.iter().enumerate() {
        for (earlier, other) in jobs[..at].iter().enumerate() {
            if let (Some(job), Some(other)) = (job, other)
                && conflict(other, job)
            {
                waits[at] += 1;
                followers[earlier].push(at);
            }
        }
    }
    (waits, followers)
}

/// The queue of a session.
struct Jobs {
    pending: Vec<Job>,
    random: Random,
    node: Option<Node>,
    calls: Arc<AtomicU64>,
    failing_call: Arc<AtomicU64>,
}

impl Jobs {
    /// Runs everything, in a random order that keeps results. If several jobs fail, the failure is that of the job that was
    /// launched first.
    fn run_all(&mut self) -> Result<(), DeviceError> {
        let mut failed: Option<(usize, Option<Node>, Failure)> = None;
        let mut jobs: Vec<Option<Job>> = std::mem::take(&mut self.pending).into_iter().map(Some).collect();
        let (mut waits, followers) = order(&jobs);
        let mut ready: Vec<usize> = (0..jobs.len()).filter(|&at| waits[at] == 0).collect();
        while !ready.is_empty() {
            let at = ready.swap_remove(self.random.below(ready.len()));
            // Jobs behind a failure do not run.
            if failed.as_ref().is_some_and(|&(first, ..)| at > first) {
                continue;
            }
            let job = jobs[at].take().unwrap();
            if let Err(failure) = (job.work)() {
                failed = Some((at, job.node, failure));
                continue;
            }
            for &follower in &followers[at] {
                waits[follower] -= 1;
                if waits[follower] == 0 {
                    ready.push(follower);
                }
            }
        }
        match failed {
            None => Ok(()),
            Some((_, _, Failure::Kernel(KernelError::Device(error)))) => Err(*error),
            Some((_, Some(node), Failure::Kernel(error))) => Err(DeviceError::Kernel { node, error }),
            Some((_, node, Failure::Kernel(error))) => Err(DeviceError::Lost(format!("{node:?}: {error}"))),
            Some((_, node, Failure::Poison(message))) => {
                Err(DeviceError::Lost(format!("poisoned memory at {node:?}: {message}")))
            }
        }
    }

    fn add(
        &mut self,
        reads: Vec<Part>,
        writes: Vec<Part>,
        work: impl FnOnce() -> Result<(), Failure> + Send + 'static,
    ) {
        // No range is empty, so that nothing waits for it.
        let some = |parts: Vec<Part>| parts.into_iter().filter(|part| !part.range.is_empty()).collect();
        let job = Job { node: self.node, reads: some(reads), writes: some(writes), work: Box::new(work) };
        self.pending.push(job);
    }

    fn called(&self) -> Result<(), DeviceError> {
        called(&self.calls, &self.failing_call)
    }
}

impl Queue for Jobs {
    fn enter(&mut self, node: Node) {
        self.node = Some(node);
    }

    fn upload(&mut self, from: &[u8], to: Span<'_>) -> Result<(), DeviceError> {
        self.called()?;
        let (bytes, to) = (from.to_vec(), Part::of(to));
        assert_eq!(bytes.len(), to.range.len(), "an upload fills its span");
        self.add(Vec::new(), vec![to.clone()], move || {
            to.write(&bytes);
            Ok(())
        });
        Ok(())
    }

    fn download(&mut self, from: Span<'_>, to: &mut [u8]) -> Result<(), DeviceError> {
        self.called()?;
        self.run_all()?;
        let bytes =
            Part::of(from).read().map_err(|message| DeviceError::Lost(format!("a download: {message}")))?;
        to.copy_from_slice(&bytes);
        Ok(())
    }

    fn copy(&mut self, from: Rows<'_>, to: Rows<'_>, count: usize, len: usize) -> Result<(), DeviceError> {
        self.called()?;
        let parts = |rows: Rows<'_>| -> Vec<Part> {
            let first = |row: usize| rows.offset + row * rows.stride;
            (0..count)
                .map(|row| Part { memory: rows.memory.clone(), range: first(row)..first(row) + len })
                .collect()
        };
        let (from, to) = (parts(from), parts(to));
        let both = (from.clone(), to.clone());
        self.add(from, to, move || {
            for (from, to) in both.0.iter().zip(&both.1) {
                to.write(&from.read().map_err(Failure::Poison)?);
            }
            Ok(())
        });
        Ok(())
    }

    fn finish(&mut self) -> Result<(), DeviceError> {
        self.called()?;
        self.run_all()
    }
}

/// A kernel of the CPU on operands that are widened, or as they are.
struct Kernel {
    device: Arc<ReferenceDevice>,
    /// The kernel of a node; `None` of a group.
    cpu: Option<Prepared>,
    /// For each operand, true if it is widened.
    widened: Vec<bool>,
    /// The types of the operands.
    operands: Vec<Option<Type>>,
    /// The types of the results that the kernel gives, and the types that are stored.
    results: Vec<Option<(Type, Type)>>,
    /// The nodes of a group.
    parts: Vec<Member>,
    /// The results of a group as numbers of values.
    order: Vec<usize>,
}

/// A node of a group: its kernel, and its operands and results as numbers of values. The first values are the operands of
/// the group.
struct Member {
    node: Node,
    kernel: Kernel,
    operands: Vec<Option<usize>>,
    results: Vec<Option<usize>>,
}

impl Kernel {
    fn new(backend: &Reference, site: &Site<'_>, own: Prepared) -> Result<Kernel, KernelError> {
        let n = site.view.n_operands();
        let operands: Vec<Option<Type>> =
            (0..n).map(|i| if site.has(i) { site.view.operand_type(i).cloned() } else { None }).collect();
        let widened = if backend.widens { Kernel::widened(backend, site, &operands) } else { None };
        if let Some(kernel) = widened {
            return Ok(kernel);
        }
        let results = site.results.iter().map(|ty| ty.clone().map(|ty| (ty.clone(), ty))).collect();
        let (cpu, parts) = (Some(own), Vec::new());
        Ok(Kernel {
            device: backend.device.clone(),
            cpu,
            widened: vec![false; n],
            operands,
            results,
            parts,
            order: Vec::new(),
        })
    }

    /// The kernel on f64, if the operator has that form.
    fn widened(backend: &Reference, site: &Site<'_>, operands: &[Option<Type>]) -> Option<Kernel> {
        let view = &site.view;
        let is_float = |ty: &Option<Type>| {
            let dtype = ty.as_ref().and_then(Type::as_tensor).map(|t| t.dtype);
            dtype.is_some_and(|dtype| dtype.is_low() || dtype == DType::F32)
        };
        let widened: Vec<bool> = operands.iter().map(is_float).collect();
        // Operators whose meaning depends on the element type, or that draw numbers.
        let depends = matches!(
            view.kind(),
            OpKind::Cast
                | OpKind::CastLike
                | OpKind::BitCast
                | OpKind::Dropout
                | OpKind::NonZero
                | OpKind::DFT
        );
        if depends || !widened.contains(&true) {
            return None;
        }
        let wide = |(ty, widened): (&Option<Type>, &bool)| {
            let tensor = ty.as_ref()?.as_tensor();
            match tensor.filter(|_| *widened) {
                Some(tensor) => Some(Type::tensor(DType::F64, tensor.shape.clone())),
                None => ty.clone(),
            }
        };
        let types: Vec<Option<Type>> = operands.iter().zip(&widened).map(wide).collect();
        let known = |ty: &Option<Type>| {
            ty.as_ref().is_none_or(|ty| ty.as_tensor().is_none_or(|t| t.shape.to_known().is_some()))
        };
        if !types.iter().all(known) {
            return None;
        }
        let value = |i: usize| -> Option<Arc<TensorData>> {
            let data = view.constant(i)?;
            if !widened[i] {
                return Some(data);
            }
            let tensor = widen(HostTensor::from_data(&data).ok()?.view()).ok()?;
            TensorData::from_bytes(DType::F64, tensor.dims(), tensor.bytes()?.to_vec()).ok().map(Arc::new)
        };
        let values: Vec<Option<Arc<TensorData>>> = (0..operands.len()).map(value).collect();
        let actual = Actual { types: &types, values: &values, call_attrs: view.call_attrs() };
        let inferred = infer_actual(view.module, view.node, actual).ok()??.types;
        let result = |(j, ty): (usize, &Option<Type>)| {
            let Some(stored) = ty else { return Some(None) };
            let made = inferred.get(j)?;
            let (Some(made), Some(stored)) = (made.as_tensor(), stored.as_tensor()) else { return None };
            let shape = stored.shape.clone();
            shape.to_known()?;
            let rounds = made.dtype == stored.dtype
                || made.dtype == DType::F64 && (stored.dtype.is_low() || stored.dtype == DType::F32);
            rounds.then(|| {
                let stored = Type::tensor(stored.dtype, shape.clone());
                Some((Type::tensor(made.dtype, shape), stored))
            })
        };
        let results: Vec<Option<(Type, Type)>> =
            site.results.iter().enumerate().map(result).collect::<Option<_>>()?;
        let made: Vec<Option<Type>> =
            results.iter().map(|r| r.as_ref().map(|(made, _)| made.clone())).collect();
        let view = NodeView::with_actual(view.module, view.node, actual)?;
        let cpu = backend.cpu.prepare(&site.with(view, &made)).ok()?;
        Some(Kernel {
            device: backend.device.clone(),
            cpu: Some(cpu),
            widened,
            operands: operands.to_vec(),
            results,
            parts: Vec::new(),
            order: Vec::new(),
        })
    }

    /// The kernel of a group: its nodes one after the other, with the values between them rounded as without a group.
    fn of_group(backend: &Reference, group: &GroupSite<'_>) -> Result<Kernel, KernelError> {
        let module = group.sites[0].view.module;
        let mut numbers: BTreeMap<Value, usize> = group.operands.iter().copied().zip(0..).collect();
        let mut parts = Vec::new();
        for site in group.sites {
            let data = module.node(site.view.node);
            let kernel = Kernel::new(backend, site, backend.cpu.prepare(site)?)?;
            let operands = data.formal_operands().iter().map(|value| value.map(|value| numbers[&value]));
            let operands = operands.collect();
            let results = data.results().iter().map(|value| {
                let next = numbers.len();
                value.map(|value| *numbers.entry(value).or_insert(next))
            });
            parts.push(Member { node: site.view.node, kernel, operands, results: results.collect() });
        }
        let ty = |value: &Value| Some(module.value(*value).ty.clone());
        let results = group.results.iter().map(|value| ty(value).map(|ty| (ty.clone(), ty)));
        let order: Vec<usize> = group.results.iter().map(|value| numbers[value]).collect();
        Ok(Kernel {
            device: backend.device.clone(),
            cpu: None,
            widened: vec![false; group.operands.len()],
            operands: group.operands.iter().map(ty).collect(),
            results: results.collect(),
            parts,
            order,
        })
    }

    /// Computes the results of the nodes of a group.
    fn run_group(&self, operands: &[Option<Data>], max_bytes: u64) -> Result<Vec<Option<Data>>, KernelError> {
        let mut values: Vec<Option<Data>> = operands.to_vec();
        for Member { node, kernel, operands, results } in &self.parts {
            let read: Vec<Option<Data>> =
                operands.iter().map(|number| number.and_then(|number| values[number].clone())).collect();
            let wanted: Vec<Wanted> = results
                .iter()
                .enumerate()
                .map(|(j, number)| number.map_or(Wanted::Absent, |_| wanted_of(kernel, j)))
                .collect();
            let made = kernel
                .run(&read, &wanted, max_bytes)
                .map_err(|error| KernelError::from(DeviceError::Kernel { node: *node, error }))?;
            for (number, data) in results.iter().zip(made) {
                if let Some(number) = *number {
                    values.resize(values.len().max(number + 1), None);
                    values[number] = data;
                }
            }
        }
        Ok(self.order.iter().map(|&number| values[number].clone()).collect())
    }

    /// Computes results from values in host memory.
    fn run(
        &self,
        operands: &[Option<Data>],
        wanted: &[Wanted],
        max_bytes: u64,
    ) -> Result<Vec<Option<Data>>, KernelError> {
        if !self.parts.is_empty() {
            return self.run_group(operands, max_bytes);
        }
        let mut wide: Vec<Option<Data>> = Vec::new();
        for (i, data) in operands.iter().enumerate() {
            wide.push(match data {
                Some(Data::Tensor(tensor)) if self.widened[i] => Some(widen(tensor.view())?.into()),
                other => other.clone(),
            });
        }
        let wide: Vec<Option<DataRef<'_>>> = wide.iter().map(|data| data.as_ref().map(Data::view)).collect();
        let cpu = self.cpu.as_ref().expect("the kernel of a node");
        let made = cpu.run_alone(&wide, wanted, max_bytes)?;
        let rounded = made.into_iter().enumerate().map(|(j, data)| {
            let stored =
                self.results.get(j).and_then(Option::as_ref).and_then(|(_, stored)| stored.as_tensor());
            match (data, stored) {
                (Some(Data::Tensor(tensor)), Some(stored)) if stored.dtype != tensor.dtype() => {
                    Ok(Some(round(&tensor, stored.dtype)?.into()))
                }
                (data, _) => Ok(data),
            }
        });
        rounded.collect()
    }
}

fn widen(tensor: TensorRef<'_>) -> Result<HostTensor, HostError> {
    HostTensor::from_slice(tensor.dims(), &tensor.f64s()?.collect::<Vec<f64>>())
}

/// Elements rounded to nearest even, once.
fn round(tensor: &HostTensor, dtype: DType) -> Result<HostTensor, HostError> {
    let wide = tensor.as_slice::<f64>()?;
    #[expect(clippy::cast_possible_truncation, reason = "rounding")]
    match dtype {
        DType::F16 => {
            HostTensor::from_slice(tensor.dims(), &wide.iter().map(|&x| f16::from_f64(x)).collect::<Vec<_>>())
        }
        DType::BF16 => HostTensor::from_slice(
            tensor.dims(),
            &wide.iter().map(|&x| bf16::from_f64(x)).collect::<Vec<_>>(),
        ),
        _ => HostTensor::from_slice(tensor.dims(), &wide.iter().map(|&x| x as f32).collect::<Vec<_>>()),
    }
}

/// An operand of a job.
enum Operand {
    Device(Part, DType, Vec<u64>),
    Other(Data),
}

/// Adds a node to the queue. A node whose results have places only when it has run is waited for.
fn launch(kernel: &Arc<Kernel>, io: &mut Io<'_>) -> Result<(), KernelError> {
    let scratch = io.scratch_on_device().map(Part::of);
    let n = kernel.operands.len();
    let mut operands: Vec<Option<Operand>> = Vec::new();
    for i in 0..n {
        operands.push(match io.operands.get(i).copied().flatten() {
            Some(DataRef::Device(tensor)) => Some(device_operand(tensor)),
            Some(other) => Some(Operand::Other(fetched(io.queue()?, other)?)),
            None => match io.taken.iter().find(|&&(_, operand)| operand == i) {
                Some(&(result, _)) => Some(taken_operand(kernel, io, i, result)?),
                None => None,
            },
        });
    }
    let is_free = |out: &Out<'_>| matches!(out, Out::Free(_) | Out::Placed { .. });
    let is_whole = |o: &Option<Operand>| !matches!(o, Some(Operand::Other(_)));
    if io.results.iter().any(is_free) || !operands.iter().all(is_whole) {
        return run_now(kernel, operands, io);
    }
    let targets: Vec<Option<(Part, DType)>> = io
        .results
        .iter()
        .map(|out| match out {
            Out::Device { dtype, span } => Some((Part::of(*span), *dtype)),
            _ => None,
        })
        .collect();
    let wanted = wanted(kernel, &targets);
    let max_bytes = io.max_bytes;
    let part = |operand: &Option<Operand>| match operand {
        Some(Operand::Device(part, ..)) => Some(part.clone()),
        _ => None,
    };
    let reads: Vec<Part> = operands.iter().filter_map(part).collect();
    let writes: Vec<Part> =
        targets.iter().flatten().map(|(part, _)| part.clone()).chain(scratch.clone()).collect();
    let kernel = kernel.clone();
    let queue: &mut dyn Any = io.queue()?;
    let jobs: &mut Jobs = queue.downcast_mut().expect("a queue of this device");
    jobs.called()?;
    jobs.add(reads, writes, move || {
        let mut values = Vec::new();
        for operand in operands {
            values.push(match operand {
                Some(Operand::Device(part, dtype, dims)) => {
                    let bytes = part.read().map_err(Failure::Poison)?;
                    let tensor = HostTensor::from_bytes(dtype, &dims, &bytes);
                    Some(tensor.map_err(|error| Failure::Kernel(error.into()))?.into())
                }
                Some(Operand::Other(data)) => Some(data),
                None => None,
            });
        }
        let made = kernel.run(&values, &wanted, max_bytes).map_err(Failure::Kernel)?;
        scratch.iter().for_each(Part::poison);
        for (target, data) in targets.iter().zip(made) {
            if let (Some((part, _)), Some(Data::Tensor(tensor))) = (target, data) {
                part.write(tensor.bytes().unwrap_or_default());
            }
        }
        Ok(())
    });
    Ok(())
}

fn device_operand(tensor: DeviceRef<'_>) -> Operand {
    Operand::Device(Part::of(tensor.span), tensor.dtype, tensor.dims.to_vec())
}

/// An operand that has the bytes of a result before the result is written.
fn taken_operand(
    kernel: &Kernel,
    io: &mut Io<'_>,
    operand: usize,
    result: usize,
) -> Result<Operand, KernelError> {
    if let Some(Out::Device { span, .. }) = io.results.get(result) {
        let ty = kernel.operands[operand].as_ref().and_then(Type::as_tensor).expect("a tensor of known dims");
        let dims = ty.shape.to_known().expect("a tensor of known dims");
        return Ok(Operand::Device(Part::of(*span), ty.dtype, dims));
    }
    let moved = io.moved().expect("an operand that is moved");
    Ok(Operand::Other(fetched(io.queue()?, moved.view())?))
}

fn wanted(kernel: &Kernel, targets: &[Option<(Part, DType)>]) -> Vec<Wanted> {
    let of = |(j, target): (usize, &Option<(Part, DType)>)| match target {
        None => Wanted::Absent,
        Some(_) => wanted_of(kernel, j),
    };
    targets.iter().enumerate().map(of).collect()
}

/// Result `j` of a kernel, of known dims or of any.
fn wanted_of(kernel: &Kernel, j: usize) -> Wanted {
    let made = kernel.results[j].as_ref().map(|(made, _)| made).and_then(Type::as_tensor);
    let known = made.and_then(|made| Some(Wanted::Tensor(made.dtype, Shape::to_known(&made.shape)?)));
    known.unwrap_or(Wanted::Any)
}

/// Runs a node at once, with its operands in host memory.
fn run_now(kernel: &Kernel, operands: Vec<Option<Operand>>, io: &mut Io<'_>) -> Result<(), KernelError> {
    let mut values = Vec::new();
    for operand in operands {
        values.push(match operand {
            Some(Operand::Device(part, dtype, dims)) => {
                let span = Span { memory: &part.memory, offset: part.range.start, len: part.range.len() };
                Some(fetched(io.queue()?, DataRef::Device(DeviceRef { dtype, dims: &dims, span }))?)
            }
            Some(Operand::Other(data)) => Some(data),
            None => None,
        });
    }
    let wanted: Vec<Wanted> = io
        .results
        .iter()
        .enumerate()
        .map(|(j, out)| match out {
            Out::Absent => Wanted::Absent,
            Out::Free(_) => Wanted::Any,
            Out::Placed { .. } | Out::Device { .. } => wanted_of(kernel, j),
        })
        .collect();
    let made = kernel.run(&values, &wanted, io.max_bytes)?;
    for (j, data) in made.into_iter().enumerate() {
        let Some(data) = data else { continue };
        match &io.results[j] {
            Out::Device { span, .. } => {
                let (span, bytes) = (*span, data.tensor().and_then(HostTensor::bytes).map(<[u8]>::to_vec));
                io.queue()?.upload(&bytes.unwrap_or_default(), span)?;
            }
            Out::Absent => {}
            Out::Free(_) | Out::Placed { .. } => {
                let data = sent(&kernel.device, io.queue()?, data)?;
                io.emit(j, data)?;
            }
        }
    }
    Ok(())
}

/// A value in host memory, with everything in it.
fn fetched(queue: &mut (dyn Queue + 'static), data: DataRef<'_>) -> Result<Data, KernelError> {
    Ok(match data {
        DataRef::Device(tensor) => {
            let mut bytes = vec![0; tensor.span.len];
            queue.download(tensor.span, &mut bytes)?;
            HostTensor::from_bytes(tensor.dtype, tensor.dims, &bytes)?.into()
        }
        DataRef::Tensor(_) => data.to_data()?,
        DataRef::Sequence(sequence) => {
            let items = sequence.items().iter().map(|item| fetched(queue, item.view()));
            Data::Sequence(Sequence::new(
                sequence.element.clone(),
                items.collect::<Result<_, KernelError>>()?,
            ))
        }
        DataRef::Optional(maybe) => {
            let value = maybe.value.as_ref().map(|value| fetched(queue, value.view())).transpose()?;
            Data::Optional(Maybe { element: maybe.element.clone(), value: value.map(Box::new) })
        }
    })
}

/// A value with all its tensors of numbers on the device.
fn sent(
    device: &ReferenceDevice,
    queue: &mut (dyn Queue + 'static),
    data: Data,
) -> Result<Data, KernelError> {
    Ok(match data {
        Data::Tensor(tensor) if tensor.bytes().is_some() => {
            let bytes = tensor.bytes().unwrap_or_default();
            let memory = device.allocate(bytes.len())?;
            let made = DeviceTensor::new(tensor.dtype(), tensor.dims().to_vec(), memory);
            queue.upload(bytes, made.view().span)?;
            Data::Device(made)
        }
        Data::Sequence(sequence) => {
            let items = sequence.items().iter().map(|item| sent(device, queue, item.clone()));
            let items = items.collect::<Result<_, KernelError>>()?;
            Data::Sequence(Sequence::new(sequence.element.clone(), items))
        }
        Data::Optional(maybe) => {
            let value = maybe.value.map(|value| sent(device, queue, *value)).transpose()?;
            Data::Optional(Maybe { element: maybe.element, value: value.map(Box::new) })
        }
        other => other,
    })
}
