//! The queue of a session: a stream, pinned memory for uploads, and the failure words that a failed kernel writes.

use super::Shared;
use super::memory::{Block, Pinned, failed};
use super::names::Label;
use super::record::{Capture, Graph};
use super::staging::Staging;
use crate::backend::{DeviceError, Download, Event, KernelError, Queue, Recording};
use crate::device::{DeviceMemory, Rows, Span};
use ampc_ir::Node;
use ampc_ir::entity::EntityRef;
use cudarc::driver::{CudaEvent, CudaStream, DriverError, result, sys};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// The size of the failure words in bytes: the kernel, its node, and the offending number.
const FAILURE: usize = 16;

/// The failure words on the device, which the kernels of one queue write.
struct FailureWords {
    shared: Arc<Shared>,
    stream: Arc<CudaStream>,
    words: Block,
}

impl FailureWords {
    #[expect(unsafe_code, reason = "calls of the driver")]
    fn clear(&self) -> Result<(), DeviceError> {
        let (at, stream) = (self.words.address(), self.stream.cu_stream());
        // No kernel, and the smallest number.
        for (offset, byte, len) in [(0, 0, 15), (15, 0x80, 1)] {
            // SAFETY: the words are as long, and live as long as the value.
            unsafe { result::memset_d8_async(at + offset, byte, len, stream) }.map_err(failed)?;
        }
        Ok(())
    }

    /// Starts a copy of the words to the host.
    ///
    /// # Safety
    /// The target lives and is not used until the stream has finished the copy.
    #[expect(unsafe_code, reason = "a call of the driver")]
    unsafe fn copy_to(&self, to: &mut [u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller keeps the target; the words live as long as the value.
        unsafe { result::memcpy_dtoh_async(to, self.words.address(), self.stream.cu_stream()) }
            .map_err(failed)
    }

    /// The failure in a copy of the words. It is reported once.
    fn check(&self, copy: &[u8]) -> Result<(), DeviceError> {
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).unwrap_or_default();
        let (name, found) = (word(&copy[..8]), word(&copy[8..FAILURE]).cast_signed());
        if name == 0 {
            return Ok(());
        }
        self.shared.context.bind_to_thread().map_err(failed)?;
        self.clear()?;
        let half = |bits: u64| usize::try_from(bits & u64::from(u32::MAX)).unwrap_or(usize::MAX);
        let (message, node) = (half(name >> 32), half(name));
        let error = KernelError::value(self.shared.compiler.message(message), found);
        Err(match node.checked_sub(1) {
            Some(node) => DeviceError::Kernel { node: Node::new(node), error },
            None => DeviceError::Lost(error.to_string()),
        })
    }
}

/// An event of a queue.
struct Signal {
    event: CudaEvent,
    /// The recording that the event belongs to. A queue that waits for the event joins the recording.
    capture: Option<Capture>,
}

pub(super) struct CudaQueue {
    shared: Arc<Shared>,
    stream: Arc<CudaStream>,
    node: Option<Node>,
    staging: Staging,
    failure: Arc<FailureWords>,
    /// Pinned memory for a copy of the failure words.
    seen: Pinned,
    /// True if a kernel that may fail was launched.
    may_fail: bool,
    /// The recording that the queue began or joined last.
    capture: Option<Capture>,
    /// A number that differs between runs of nodes.
    entered: u64,
}

impl CudaQueue {
    pub(super) fn new(shared: Arc<Shared>) -> Result<CudaQueue, DeviceError> {
        let stream = shared.context.new_stream().map_err(failed)?;
        let words = Block::new(&shared.context, FAILURE)?;
        let failure = Arc::new(FailureWords { shared: shared.clone(), stream: stream.clone(), words });
        failure.clear()?;
        Ok(CudaQueue {
            node: None,
            staging: Staging::new(shared.context.clone()),
            failure,
            seen: Pinned::new(&shared.context, FAILURE)?,
            may_fail: false,
            capture: None,
            entered: 0,
            stream,
            shared,
        })
    }

    /// The active recording of the queue.
    fn capture(&self) -> Option<&Capture> {
        self.capture.as_ref().filter(|capture| capture.is_active())
    }

    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// The arguments of a kernel that may fail: the address of the failure words, and the words that identify the
    /// kernel.
    pub(super) fn failure(&mut self, message: u32) -> [u64; 2] {
        self.may_fail = true;
        let node = self.node.map_or(0, |node| node.index() as u64 + 1);
        [self.failure.words.address(), u64::from(message) << 32 | node]
    }

    /// Records a launch in the dump, if there is one.
    ///
    /// # Errors
    /// If the source cannot be written.
    pub(super) fn note_launch(
        &self,
        (label, (entry, text)): (&Arc<Label>, (&str, &str)),
        shape: [u32; 2],
    ) -> Result<(), DeviceError> {
        let Some(dump) = &self.shared.dump else { return Ok(()) };
        dump.text(label, entry, text)?;
        dump.launched((label, entry, text), self.entered, shape);
        Ok(())
    }

    /// True while the work of the queue is recorded.
    pub(super) fn is_recording(&self) -> bool {
        self.capture().is_some()
    }

    /// The failure of earlier work, which may be the reason for a failed library call. `None` in a recording.
    pub(super) fn failure_of_device(&self) -> Option<DeviceError> {
        let waited = if self.capture().is_none() { self.stream.synchronize() } else { Ok(()) };
        waited.err().map(failed)
    }

    /// Completes each launch: waits for it if the options say so.
    pub(super) fn launched(&mut self) -> Result<(), DeviceError> {
        if !self.shared.waits_for_kernels || self.capture().is_some() {
            return Ok(());
        }
        self.stream.synchronize().map_err(|error| match (failed(error), self.node) {
            (DeviceError::Invalid(reason), Some(node)) => DeviceError::Invalid(format!("{node}: {reason}")),
            (DeviceError::Lost(reason), Some(node)) => DeviceError::Lost(format!("{node}: {reason}")),
            (error, _) => error,
        })
    }
}

impl Drop for CudaQueue {
    fn drop(&mut self) {
        // Copies may still read the staging memory. If the device is lost, no copy is running.
        let _ = self.stream.synchronize();
        if let Some(dump) = &self.shared.dump {
            // An earlier wait has returned the error of the folder.
            let _ = dump.flush();
        }
    }
}

/// A copy to the host in progress, followed by a copy of the failure words.
struct Landing {
    failure: Arc<FailureWords>,
    event: CudaEvent,
    /// Present until the copy has finished.
    memory: Option<Pinned>,
    len: usize,
}

impl Download for Landing {
    fn finish(mut self: Box<Self>, to: &mut [u8]) -> Result<(), DeviceError> {
        self.event.synchronize().map_err(failed)?;
        if let Some(dump) = &self.failure.shared.dump {
            dump.flush()?;
        }
        let Some(mut memory) = self.memory.take() else { return Ok(()) };
        let (bytes, words) = memory.bytes().split_at(self.len);
        let checked = self.failure.check(words);
        if checked.is_ok() {
            to.copy_from_slice(bytes);
        }
        self.failure.shared.pinned.give_back(memory);
        checked
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        // The copy may still write to the memory. If the device is lost, no copy is running.
        if let Some(memory) = self.memory.take() {
            let _ = self.event.synchronize();
            self.failure.shared.pinned.give_back(memory);
        }
    }
}

/// The address of the first byte of a range.
///
/// # Errors
/// If the memory belongs to another backend.
pub(super) fn address(memory: &Arc<dyn DeviceMemory>, offset: usize) -> Result<u64, DeviceError> {
    let memory: &dyn Any = &**memory;
    match memory.downcast_ref::<Block>() {
        Some(block) => Ok(block.address() + offset as u64),
        None => Err(DeviceError::Failed("expected memory of a CUDA device, found other memory".into())),
    }
}

impl Queue for CudaQueue {
    fn enter(&mut self, node: Node) {
        self.node = Some(node);
        if let Some(dump) = &self.shared.dump {
            self.entered = dump.next();
        }
    }

    #[expect(unsafe_code, reason = "a call of the driver")]
    fn upload(&mut self, from: &[u8], to: Span<'_>) -> Result<(), DeviceError> {
        let to = address(to.memory, to.offset)?;
        if let (Some(capture), false) = (self.capture(), from.is_empty()) {
            let mut own = Pinned::new(&self.shared.context, from.len())?;
            own.bytes().copy_from_slice(from);
            // SAFETY: the graph keeps the bytes, and the target has the same length.
            unsafe { result::memcpy_htod_async(to, own.bytes(), self.stream.cu_stream()) }.map_err(failed)?;
            capture.keep(own);
            return Ok(());
        }
        self.staging.upload(&self.stream, from, to)
    }

    #[expect(unsafe_code, reason = "calls of the driver")]
    fn start_download(&mut self, from: Span<'_>) -> Result<Box<dyn Download>, DeviceError> {
        let (len, from) = (from.len, address(from.memory, from.offset)?);
        let mut memory = self.shared.pinned.take(&self.shared.context, len + FAILURE)?;
        self.shared.context.bind_to_thread().map_err(failed)?;
        let (bytes, rest) = memory.bytes().split_at_mut(len);
        let words = &mut rest[..FAILURE];
        words.fill(0);
        if len > 0 {
            // SAFETY: the source has the same length, and the download keeps the memory until the copy is done.
            unsafe { result::memcpy_dtoh_async(bytes, from, self.stream.cu_stream()) }.map_err(failed)?;
        }
        if self.may_fail {
            // SAFETY: as above.
            unsafe { self.failure.copy_to(words) }?;
        }
        let event = self.stream.record_event(None).map_err(failed)?;
        Ok(Box::new(Landing { failure: self.failure.clone(), event, memory: Some(memory), len }))
    }

    fn copy(&mut self, from: Rows<'_>, to: Rows<'_>, count: usize, len: usize) -> Result<(), DeviceError> {
        let source = address(from.memory, from.offset)?;
        let target = address(to.memory, to.offset)?;
        self.shared.context.bind_to_thread().map_err(failed)?;
        copy(&self.stream, [source, target], [from.stride, to.stride], count, len).map_err(failed)
    }

    fn signal(&mut self) -> Result<Event, DeviceError> {
        let event = self.stream.record_event(None).map_err(failed)?;
        Ok(Arc::new(Signal { event, capture: self.capture().cloned() }))
    }

    fn mark(&mut self) -> Result<Option<Event>, DeviceError> {
        let clock = self.shared.clock.as_ref().filter(|_| self.capture().is_none());
        Ok(clock.map(|clock| clock.mark(&self.stream)).transpose()?.map(|event| Arc::new(event) as Event))
    }

    fn elapsed(&mut self, from: &Event, to: &Event) -> Result<Duration, DeviceError> {
        let events = (from.downcast_ref::<CudaEvent>(), to.downcast_ref::<CudaEvent>());
        match (&self.shared.clock, events) {
            (Some(clock), (Some(from), Some(to))) => clock.elapsed(from, to),
            _ => Err(DeviceError::Failed("expected marks of a CUDA device, found other events".into())),
        }
    }

    fn wait(&mut self, event: &Event) -> Result<(), DeviceError> {
        let Some(Signal { event, capture }) = event.downcast_ref() else {
            return Err(DeviceError::Failed(
                "expected an event of a CUDA device, found another event".into(),
            ));
        };
        self.stream.wait(event).map_err(failed)?;
        if let Some(capture) = capture.as_ref().filter(|capture| capture.is_active()) {
            self.capture = Some(capture.clone());
        }
        Ok(())
    }

    #[expect(unsafe_code, reason = "calls of the driver")]
    fn finish(&mut self) -> Result<(), DeviceError> {
        self.shared.context.bind_to_thread().map_err(failed)?;
        if self.may_fail {
            // SAFETY: the queue owns the memory, and waits for the copy.
            unsafe { self.failure.copy_to(self.seen.bytes()) }?;
        }
        self.stream.synchronize().map_err(failed)?;
        self.staging.reuse_block();
        if let Some(dump) = &self.shared.dump {
            dump.flush()?;
        }
        if self.may_fail { self.failure.check(self.seen.bytes()) } else { Ok(()) }
    }

    fn begin_recording(&mut self) -> Result<(), DeviceError> {
        self.capture = Some(Capture::begin(&self.stream)?);
        Ok(())
    }

    fn end_recording(&mut self) -> Result<Recording, DeviceError> {
        let capture = self.capture.take();
        let capture = capture.ok_or_else(|| DeviceError::Failed("the queue does not record".into()))?;
        Ok(Box::new(capture.end(&self.stream)?))
    }

    fn replay(&mut self, recording: &Recording) -> Result<(), DeviceError> {
        match recording.downcast_ref::<Graph>() {
            Some(graph) => graph.launch(),
            None => Err(DeviceError::Failed("expected a CUDA graph, found another recording".into())),
        }
    }
}

/// The largest distance of rows that the driver copies in one call, in bytes (`CU_DEVICE_ATTRIBUTE_MAX_PITCH` of all devices).
const MAX_PITCH: usize = (1 << 31) - 1;

/// Copies rows of bytes on the device.
#[expect(unsafe_code, reason = "a call of the driver")]
pub(super) fn copy(
    stream: &CudaStream,
    [source, target]: [u64; 2],
    [from_stride, to_stride]: [usize; 2],
    count: usize,
    len: usize,
) -> Result<(), DriverError> {
    if count == 0 || len == 0 {
        return Ok(());
    }
    if count == 1 || (from_stride == len && to_stride == len) {
        // SAFETY: the caller passes ranges of live blocks, which the driver frees only after the copy.
        return unsafe { result::memcpy_dtod_async(target, source, count * len, stream.cu_stream()) };
    }
    if from_stride.max(to_stride) > MAX_PITCH {
        return (0..count as u64).try_for_each(|row| {
            let [from, to] = [from_stride, to_stride].map(|stride| row * stride as u64);
            // SAFETY: as above.
            unsafe { result::memcpy_dtod_async(target + to, source + from, len, stream.cu_stream()) }
        });
    }
    let rows = sys::CUDA_MEMCPY2D_st {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: std::ptr::null(),
        srcDevice: source,
        srcArray: std::ptr::null_mut(),
        srcPitch: from_stride,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: std::ptr::null_mut(),
        dstDevice: target,
        dstArray: std::ptr::null_mut(),
        dstPitch: to_stride,
        WidthInBytes: len,
        Height: count,
    };
    // SAFETY: as above.
    unsafe { sys::cuMemcpy2DAsync_v2(&raw const rows, stream.cu_stream()) }.result()
}
