//! The device: poisoned memory, and queues that run their work late and in another order.
//!
//! The queues of a device share a list of the jobs that have not run. Every job knows how many jobs of each queue were in
//! order before it, through its own queue and through events. Two jobs of different queues that touch the same bytes
//! without such an order are a race, which fails the later job.

use super::Random;
use ampc_ir::Node;
use ampc_runtime::backend::KernelError;
use ampc_runtime::device::{
    Device, DeviceError, DeviceMemory, Download, Event, Queue, Recording, Rows, Span,
};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
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
    jobs: Arc<Mutex<Jobs>>,
    replays: Arc<AtomicU64>,
    live_bytes: Arc<AtomicUsize>,
    allocations: AtomicU64,
    /// The queues so far.
    queues: AtomicU64,
    /// The calls of the device and its queues so far.
    calls: Arc<AtomicU64>,
    /// The call that fails; 0 for none.
    failing_call: Arc<AtomicU64>,
    fault: Arc<Mutex<Fault>>,
    /// The recordings so far.
    recordings: Arc<AtomicU64>,
    /// The bytes that were uploaded so far.
    uploaded: Arc<AtomicU64>,
    /// The jobs that a fault let fail.
    late_faults: Arc<AtomicU64>,
    /// The milliseconds that a host waits for a queue besides.
    delay: Arc<AtomicU64>,
}

/// The memory that the device has.
pub(crate) const MEMORY: u64 = 1 << 30;

/// The way in which a call fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Fault {
    /// The device is lost, for this call alone.
    #[default]
    Lost,
    /// The device refuses the call.
    Refused,
    /// There is no memory.
    NoMemory,
    /// The call succeeds, and its work fails. A call without work succeeds.
    Late,
}

/// The calls of a device, and the call that fails.
#[derive(Clone)]
struct Calls {
    count: Arc<AtomicU64>,
    failing: Arc<AtomicU64>,
    fault: Arc<Mutex<Fault>>,
}

impl Calls {
    /// An error if this is the call that fails. True if its work fails.
    fn next(&self) -> Result<bool, DeviceError> {
        let call = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if self.failing.load(Ordering::Relaxed) != call {
            return Ok(false);
        }
        let message = format!("call {call} fails, as the test asks");
        match *self.fault.lock().unwrap() {
            Fault::Lost => Err(DeviceError::Lost(message)),
            Fault::Refused => Err(DeviceError::Failed(message)),
            Fault::NoMemory => Err(DeviceError::NoMemory { bytes: 0 }),
            Fault::Late => Ok(true),
        }
    }
}

impl ReferenceDevice {
    pub(super) fn new(seed: u64) -> ReferenceDevice {
        ReferenceDevice {
            seed,
            alignment: [1, 64, 256, 512][usize::try_from(seed % 4).unwrap()],
            jobs: Arc::new(Mutex::new(Jobs { pending: Vec::new(), random: Random::new(seed) })),
            replays: Arc::default(),
            live_bytes: Arc::default(),
            allocations: AtomicU64::new(0),
            queues: AtomicU64::new(0),
            calls: Arc::default(),
            failing_call: Arc::default(),
            fault: Arc::default(),
            recordings: Arc::default(),
            uploaded: Arc::default(),
            late_faults: Arc::default(),
            delay: Arc::default(),
        }
    }

    fn all_calls(&self) -> Calls {
        let (count, failing) = (self.calls.clone(), self.failing_call.clone());
        Calls { count, failing, fault: self.fault.clone() }
    }

    /// The number of recordings so far.
    pub(crate) fn recordings(&self) -> u64 {
        self.recordings.load(Ordering::Relaxed)
    }

    /// Lets the host wait longer for work.
    pub(crate) fn set_delay(&self, milliseconds: u64) {
        self.delay.store(milliseconds, Ordering::Relaxed);
    }

    /// The jobs that a fault let fail, so far.
    pub(crate) fn late_faults(&self) -> u64 {
        self.late_faults.load(Ordering::Relaxed)
    }

    /// The bytes that were uploaded so far.
    pub(crate) fn uploaded(&self) -> u64 {
        self.uploaded.load(Ordering::Relaxed)
    }

    /// The queues so far.
    pub(crate) fn queues(&self) -> u64 {
        self.queues.load(Ordering::Relaxed)
    }

    /// The bytes that are allocated now.
    pub(crate) fn live_bytes(&self) -> usize {
        self.live_bytes.load(Ordering::Relaxed)
    }

    /// The blocks that were allocated so far.
    pub(crate) fn allocations(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed)
    }

    /// The number of times that recorded work was to be replayed.
    pub(crate) fn replays(&self) -> u64 {
        self.replays.load(Ordering::Relaxed)
    }

    /// The calls of the device and its queues so far.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Lets one call fail, counted from 1 over the life of the device; 0 for none.
    pub(crate) fn fail_at(&self, call: u64) {
        self.fail_with(call, Fault::Lost);
    }

    /// Like [`fail_at`](Self::fail_at), in some way.
    pub(crate) fn fail_with(&self, call: u64, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
        self.failing_call.store(call, Ordering::Relaxed);
    }
}

impl Device for ReferenceDevice {
    fn alignment(&self) -> usize {
        self.alignment
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn DeviceMemory>, DeviceError> {
        let no_memory = |_| DeviceError::NoMemory { bytes: bytes as u64 };
        self.all_calls().next().map_err(no_memory)?;
        self.allocations.fetch_add(1, Ordering::Relaxed);
        self.live_bytes.fetch_add(bytes, Ordering::Relaxed);
        let content = Content { bytes: vec![POISON; bytes], is_written: vec![false; bytes] };
        Ok(Arc::new(Block { content: Mutex::new(content), len: bytes, live_bytes: self.live_bytes.clone() }))
    }

    fn queue(&self) -> Result<Box<dyn Queue>, DeviceError> {
        self.all_calls().next()?;
        let id = self.queues.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(InOrder {
            id,
            jobs: self.jobs.clone(),
            line: Line::default(),
            recording: None,
            node: None,
            replays: self.replays.clone(),
            calls: self.all_calls(),
            recordings: self.recordings.clone(),
            uploaded: self.uploaded.clone(),
            fails_late: false,
            late_faults: self.late_faults.clone(),
            delay: self.delay.clone(),
            works_early: self.seed % 5 == 4,
        }))
    }

    fn available_memory(&self) -> Option<u64> {
        Some(MEMORY)
    }

    fn kernel_queues(&self) -> usize {
        usize::try_from(1 + self.seed % 3).unwrap()
    }

    fn can_record(&self) -> bool {
        self.seed % 4 != 2
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

/// The number of jobs of each queue that are in order before a job.
type Clock = BTreeMap<u64, u64>;

type Work = Arc<dyn Fn() -> Result<(), Failure> + Send + Sync>;

/// Work that was launched and has not run.
#[derive(Clone)]
struct Job {
    queue: u64,
    /// Its number among the jobs of the queue.
    number: u64,
    before: Clock,
    node: Option<Node>,
    reads: Vec<Part>,
    writes: Vec<Part>,
    work: Work,
    /// The bytes that a download brings to the host.
    landing: Option<Arc<Mutex<Landed>>>,
}

impl Job {
    fn conflicts_with(&self, other: &Job) -> bool {
        let any = |a: &[Part], b: &[Part]| a.iter().any(|a| b.iter().any(|b| a.overlaps(b)));
        any(&self.writes, &other.writes) || any(&self.writes, &other.reads) || any(&self.reads, &other.writes)
    }

    /// True if the job is in order after an earlier job.
    fn is_after(&self, other: &Job) -> bool {
        self.queue == other.queue || self.before.get(&other.queue).is_some_and(|&done| done >= other.number)
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} on queue {}", self.node, self.queue)
    }
}

/// The end of a download.
enum Landed {
    /// It has not ended.
    Pending,
    Bytes(Vec<u8>),
    /// Work before it, of this node, has failed.
    Failed(Failure, Option<Node>),
}

#[derive(Clone, Debug)]
pub(super) enum Failure {
    Kernel(Arc<KernelError>),
    Poison(String),
}

/// Adds a job, which fails if it races with one of the jobs that are there.
fn push(jobs: &mut Vec<Job>, mut job: Job) {
    let racing = jobs.iter().find(|other| job.conflicts_with(other) && !job.is_after(other));
    if let Some(other) = racing {
        let message = format!("{job:?} races with {other:?}");
        job.work = Arc::new(move || Err(Failure::Poison(message.clone())));
    }
    jobs.push(job);
}

/// The jobs of all queues that have not run, in the order in which they were launched.
#[derive(Debug)]
struct Jobs {
    pending: Vec<Job>,
    random: Random,
}

impl Jobs {
    /// Runs the first jobs of a queue, up to a number, and those that they depend on, in a random order that keeps results.
    /// If several jobs fail, the failure is that of the job that was launched first; later jobs of its queue and jobs in order behind it do not run, and
    /// downloads among them end with the failure.
    fn run(&mut self, queue: u64, last: u64) -> Result<(), DeviceError> {
        let all = std::mem::take(&mut self.pending);
        let mut waits_for: Vec<Vec<usize>> = Vec::with_capacity(all.len());
        for (at, job) in all.iter().enumerate() {
            let earlier = all[..at].iter().enumerate();
            let earlier = earlier.filter(|(_, other)| job.is_after(other) && job.conflicts_with(other));
            waits_for.push(earlier.map(|(earlier, _)| earlier).collect());
        }
        let mut is_asked: Vec<bool> =
            all.iter().map(|job| job.queue == queue && job.number <= last).collect();
        for at in (0..all.len()).rev() {
            if is_asked[at] {
                waits_for[at].iter().for_each(|&earlier| is_asked[earlier] = true);
            }
        }
        let mut waits: Vec<usize> = waits_for.iter().map(Vec::len).collect();
        let mut followers = vec![Vec::new(); all.len()];
        for (at, earlier) in waits_for.iter().enumerate() {
            earlier.iter().for_each(|&earlier| followers[earlier].push(at));
        }
        let mut ready: Vec<usize> = (0..all.len()).filter(|&at| waits[at] == 0 && is_asked[at]).collect();
        let mut is_done = vec![false; all.len()];
        let mut failed: Option<(usize, Failure)> = None;
        while !ready.is_empty() {
            let at = ready.swap_remove(self.random.below(ready.len()));
            // Jobs behind a failure do not run.
            if failed.as_ref().is_some_and(|&(first, _)| at > first) {
                continue;
            }
            is_done[at] = true;
            if let Err(failure) = (all[at].work)() {
                failed = Some((at, failure));
                continue;
            }
            for &follower in &followers[at] {
                waits[follower] -= 1;
                if waits[follower] == 0 && is_asked[follower] {
                    ready.push(follower);
                }
            }
        }
        let node = failed.as_ref().and_then(|&(at, _)| all[at].node);
        if let Some((first, failure)) = &failed {
            for at in *first..all.len() {
                let is_behind = all[at].is_after(&all[*first]);
                is_done[at] |= is_behind;
                if let (true, Some(landing)) = (is_behind || is_asked[at], &all[at].landing) {
                    *landing.lock().unwrap() = Landed::Failed(failure.clone(), node);
                }
            }
        }
        let rest = all.into_iter().enumerate();
        self.pending = rest.filter(|&(at, _)| !is_done[at] && !is_asked[at]).map(|(_, job)| job).collect();
        failed.map_or(Ok(()), |(_, failure)| Err(failure.told(node)))
    }
}

impl Failure {
    /// The failure of a job, as the host is told it.
    fn told(&self, node: Option<Node>) -> DeviceError {
        match self {
            Failure::Kernel(error) => told(error, node),
            Failure::Poison(message) => DeviceError::Lost(format!("wrong memory at {node:?}: {message}")),
        }
    }
}

/// The failure of a kernel, as the host is told it.
fn told(error: &KernelError, node: Option<Node>) -> DeviceError {
    let copy = |error: &KernelError| match error {
        KernelError::Value { expected, found } => {
            KernelError::Value { expected: expected.clone(), found: found.clone() }
        }
        KernelError::Limit { limit, found } => {
            KernelError::Limit { limit: limit.clone(), found: found.clone() }
        }
        other => KernelError::Unsupported(other.to_string()),
    };
    match (error, node) {
        (KernelError::Device(inner), _) => match &**inner {
            DeviceError::Kernel { node, error } => DeviceError::Kernel { node: *node, error: copy(error) },
            DeviceError::NoMemory { bytes } => DeviceError::NoMemory { bytes: *bytes },
            DeviceError::OutOfMemory(message) => DeviceError::OutOfMemory(message.clone()),
            DeviceError::Failed(message) => DeviceError::Failed(message.clone()),
            DeviceError::Invalid(message) => DeviceError::Invalid(message.clone()),
            DeviceError::Lost(message) => DeviceError::Lost(message.clone()),
        },
        (error, Some(node)) => DeviceError::Kernel { node, error: copy(error) },
        (error, None) => DeviceError::Lost(error.to_string()),
    }
}

/// The order of the work of a queue.
#[derive(Clone, Default)]
struct Line {
    given: u64,
    known: Clock,
}

/// Work that is recorded.
#[derive(Default)]
struct Recorder {
    jobs: Vec<Job>,
    /// The queues with work that the first queue has not waited for.
    open: BTreeSet<u64>,
    has_ended: bool,
}

/// An event: the order of the work before it, of a recording or not.
struct Signal {
    queue: u64,
    line: Line,
    recorder: Option<Arc<Mutex<Recorder>>>,
}

/// A queue.
pub(super) struct InOrder {
    id: u64,
    jobs: Arc<Mutex<Jobs>>,
    line: Line,
    /// The recording that the queue is in, and the order of the work in it.
    recording: Option<(Arc<Mutex<Recorder>>, Line)>,
    node: Option<Node>,
    replays: Arc<AtomicU64>,
    calls: Calls,
    recordings: Arc<AtomicU64>,
    uploaded: Arc<AtomicU64>,
    /// True if the work of this call fails.
    fails_late: bool,
    late_faults: Arc<AtomicU64>,
    delay: Arc<AtomicU64>,
    /// True if calls that give work also do earlier work at times, and return its failure.
    works_early: bool,
}

impl InOrder {
    fn leave_ended_recording(&mut self) {
        self.recording.take_if(|(recorder, _)| recorder.lock().unwrap().has_ended);
    }

    pub(super) fn add(
        &mut self,
        reads: Vec<Part>,
        writes: Vec<Part>,
        work: impl Fn() -> Result<(), Failure> + Send + Sync + 'static,
    ) {
        self.add_landing(reads, writes, None, work);
    }

    /// Adds a job; a download has a landing.
    fn add_landing(
        &mut self,
        reads: Vec<Part>,
        writes: Vec<Part>,
        landing: Option<Arc<Mutex<Landed>>>,
        work: impl Fn() -> Result<(), Failure> + Send + Sync + 'static,
    ) {
        self.leave_ended_recording();
        // No range is empty, so that nothing waits for it.
        let some = |parts: Vec<Part>| parts.into_iter().filter(|part| !part.range.is_empty()).collect();
        let (reads, writes, mut work): (_, _, Work) = (some(reads), some(writes), Arc::new(work));
        if std::mem::take(&mut self.fails_late) {
            self.late_faults.fetch_add(1, Ordering::Relaxed);
            let error = Arc::new(KernelError::value("work that succeeds", "a fault, as the test asks"));
            work = Arc::new(move || Err(Failure::Kernel(error.clone())));
        }
        let line = self.recording.as_mut().map_or(&mut self.line, |(_, line)| line);
        line.given += 1;
        line.known.insert(self.id, line.given);
        let (number, before) = (line.given, line.known.clone());
        let job = Job { queue: self.id, number, before, node: self.node, reads, writes, work, landing };
        match &self.recording {
            Some((recorder, _)) => {
                let mut recorder = recorder.lock().unwrap();
                recorder.open.insert(self.id);
                push(&mut recorder.jobs, job);
            }
            None => push(&mut self.jobs.lock().unwrap().pending, job),
        }
    }

    /// Counts a call, which may fail.
    pub(super) fn called(&mut self) -> Result<(), DeviceError> {
        self.fails_late = self.calls.next()?;
        Ok(())
    }

    /// Counts a call that gives work, which may do earlier work.
    fn called_with_work(&mut self) -> Result<(), DeviceError> {
        self.called()?;
        self.leave_ended_recording();
        if !self.works_early || self.recording.is_some() {
            return Ok(());
        }
        let mut jobs = self.jobs.lock().unwrap();
        match jobs.random.below(3) {
            0 => jobs.run(self.id, u64::MAX),
            _ => Ok(()),
        }
    }

    fn refuse_recording(&mut self, what: &str) {
        self.leave_ended_recording();
        assert!(self.recording.is_none(), "a recording has no {what}");
    }
}

impl Drop for InOrder {
    /// The device does the work that it was given, also if the host does not wait for it.
    fn drop(&mut self) {
        if let Ok(mut jobs) = self.jobs.lock() {
            jobs.run(self.id, u64::MAX).ok();
        }
    }
}

/// Bytes on the way to the host.
struct Landing {
    queue: u64,
    /// The number of the job that copies them.
    number: u64,
    jobs: Arc<Mutex<Jobs>>,
    landed: Arc<Mutex<Landed>>,
    calls: Calls,
}

impl Download for Landing {
    fn finish(self: Box<Self>, to: &mut [u8]) -> Result<(), DeviceError> {
        self.calls.next()?;
        // The failure of a job is told by every download behind it.
        let run = self.jobs.lock().unwrap().run(self.queue, self.number);
        match &*self.landed.lock().unwrap() {
            Landed::Bytes(bytes) => to.copy_from_slice(bytes),
            Landed::Failed(failure, node) => return Err(failure.told(*node)),
            Landed::Pending => panic!("a download has not run: {run:?}"),
        }
        run
    }
}

impl Queue for InOrder {
    fn enter(&mut self, node: Node) {
        self.node = Some(node);
    }

    fn upload(&mut self, from: &[u8], to: Span<'_>) -> Result<(), DeviceError> {
        self.called_with_work()?;
        self.refuse_recording("uploads");
        self.uploaded.fetch_add(from.len() as u64, Ordering::Relaxed);
        let (bytes, to) = (from.to_vec(), Part::of(to));
        assert_eq!(bytes.len(), to.range.len(), "an upload fills its span");
        self.add(Vec::new(), vec![to.clone()], move || {
            to.write(&bytes);
            Ok(())
        });
        Ok(())
    }

    fn start_download(&mut self, from: Span<'_>) -> Result<Box<dyn Download>, DeviceError> {
        self.called_with_work()?;
        self.refuse_recording("downloads");
        let (from, landed) = (Part::of(from), Arc::new(Mutex::new(Landed::Pending)));
        let landing = landed.clone();
        self.add_landing(vec![from.clone()], Vec::new(), Some(landed.clone()), move || {
            *landing.lock().unwrap() = Landed::Bytes(from.read().map_err(Failure::Poison)?);
            Ok(())
        });
        let (jobs, calls) = (self.jobs.clone(), self.calls.clone());
        Ok(Box::new(Landing { queue: self.id, number: self.line.given, jobs, landed, calls }))
    }

    fn copy(&mut self, from: Rows<'_>, to: Rows<'_>, count: usize, len: usize) -> Result<(), DeviceError> {
        self.called_with_work()?;
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

    fn signal(&mut self) -> Result<Event, DeviceError> {
        self.called()?;
        self.leave_ended_recording();
        let (recorder, line) = match &self.recording {
            Some((recorder, line)) => (Some(recorder.clone()), line.clone()),
            None => (None, self.line.clone()),
        };
        Ok(Arc::new(Signal { queue: self.id, line, recorder }))
    }

    fn wait(&mut self, event: &Event) -> Result<(), DeviceError> {
        self.called()?;
        self.leave_ended_recording();
        let signal: &Signal = event.downcast_ref().expect("an event of this device");
        if let (None, Some(recorder)) = (&self.recording, &signal.recorder) {
            assert!(!recorder.lock().unwrap().has_ended, "work waits for an event of a recording");
            self.recording = Some((recorder.clone(), Line::default()));
            recorder.lock().unwrap().open.insert(self.id);
        }
        let line = match (&mut self.recording, &signal.recorder) {
            (None, _) => &mut self.line,
            (Some((recorder, line)), Some(other)) if Arc::ptr_eq(recorder, other) => {
                recorder.lock().unwrap().open.remove(&signal.queue);
                line
            }
            (Some(_), _) => panic!("a recording waits for work outside of it"),
        };
        for (&queue, &done) in &signal.line.known {
            let known = line.known.entry(queue).or_default();
            *known = (*known).max(done);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), DeviceError> {
        self.called()?;
        self.refuse_recording("waiting hosts");
        std::thread::sleep(std::time::Duration::from_millis(self.delay.load(Ordering::Relaxed)));
        self.jobs.lock().unwrap().run(self.id, u64::MAX)
    }

    fn begin_recording(&mut self) -> Result<(), DeviceError> {
        self.called()?;
        self.refuse_recording("recordings");
        self.recordings.fetch_add(1, Ordering::Relaxed);
        self.recording = Some((Arc::default(), Line::default()));
        Ok(())
    }

    fn end_recording(&mut self) -> Result<Recording, DeviceError> {
        let (ended, _) = self.recording.take().expect("a queue that records");
        let mut recorder = ended.lock().unwrap();
        recorder.has_ended = true;
        self.calls.next()?;
        recorder.open.remove(&self.id);
        if !recorder.open.is_empty() {
            return Err(DeviceError::Lost(format!("queues {:?} are not waited for", recorder.open)));
        }
        Ok(Box::new(std::mem::take(&mut recorder.jobs)))
    }

    fn replay(&mut self, recording: &Recording) -> Result<(), DeviceError> {
        self.replays.fetch_add(1, Ordering::Relaxed);
        self.called()?;
        self.refuse_recording("replays");
        let jobs: &Vec<Job> = recording.downcast_ref().expect("a recording of this device");
        let mut pending = self.jobs.lock().unwrap();
        for job in jobs {
            self.line.given += 1;
            self.line.known.insert(self.id, self.line.given);
            let (number, before) = (self.line.given, self.line.known.clone());
            push(&mut pending.pending, Job { queue: self.id, number, before, ..job.clone() });
        }
        Ok(())
    }
}
