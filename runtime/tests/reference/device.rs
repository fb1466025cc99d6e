//! The device: poisoned memory, and a queue that runs its work late and in another order.

use super::Random;
use ampc_ir::Node;
use ampc_runtime::backend::KernelError;
use ampc_runtime::device::{Device, DeviceError, DeviceMemory, Queue, Rows, Span};
use std::any::Any;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Every byte that nothing has written.
const POISON: u8 = 0xA5;

/// The device: its counters, and the faults that a test asks for.
#[derive(Debug)]
pub(crate) struct ReferenceDevice {
    pub(super) seed: u64,
    alignment: usize,
    live_bytes: Arc<AtomicUsize>,
    allocations: AtomicU64,
    /// The calls of the device and its queues so far.
    calls: Arc<AtomicU64>,
    /// The call that fails; 0 for none.
    failing_call: Arc<AtomicU64>,
}

impl ReferenceDevice {
    pub(super) fn new(seed: u64) -> ReferenceDevice {
        ReferenceDevice {
            seed,
            alignment: [1, 64, 256, 512][usize::try_from(seed % 4).unwrap()],
            live_bytes: Arc::default(),
            allocations: AtomicU64::new(0),
            calls: Arc::default(),
            failing_call: Arc::default(),
        }
    }

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
pub(super) struct Part {
    pub(super) memory: Arc<dyn DeviceMemory>,
    pub(super) range: Range<usize>,
}

impl Part {
    pub(super) fn of(span: Span<'_>) -> Part {
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

    pub(super) fn read(&self) -> Result<Vec<u8>, String> {
        let content = self.block().content.lock().unwrap();
        match content.is_written[self.range.clone()].iter().position(|written| !written) {
            Some(at) => Err(format!("byte {} of {:?} is read before anything is written", at, self.range)),
            None => Ok(content.bytes[self.range.clone()].to_vec()),
        }
    }

    pub(super) fn write(&self, bytes: &[u8]) {
        let mut content = self.block().content.lock().unwrap();
        content.bytes[self.range.clone()].copy_from_slice(bytes);
        content.is_written[self.range.clone()].fill(true);
    }

    /// Makes the range what new memory is.
    pub(super) fn poison(&self) {
        let mut content = self.block().content.lock().unwrap();
        content.bytes[self.range.clone()].fill(POISON);
        content.is_written[self.range.clone()].fill(false);
    }
}

/// Work that was launched and has not run.
struct Job {
    node: Option<Node>,
    reads: Vec<Part>,
    writes: Vec<Part>,
    work: Box<dyn FnOnce() -> Result<(), Failure> + Send>,
}

pub(super) enum Failure {
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
pub(super) struct Jobs {
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

    pub(super) fn add(
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

    pub(super) fn called(&self) -> Result<(), DeviceError> {
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
