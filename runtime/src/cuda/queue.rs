//! The queue of a session: one stream, pinned memory for uploads, and the words that tell of a failed kernel.

use super::Shared;
use super::memory::{Block, Pinned, lost};
use super::record::Capture;
use crate::backend::{DeviceError, KernelError, Queue};
use crate::device::{DeviceMemory, Rows, Span};
use ampc_ir::Node;
use ampc_ir::entity::EntityRef;
use cudarc::driver::{CudaStream, DriverError, result, sys};
use std::any::Any;
use std::sync::Arc;

/// The bytes of pinned memory through which uploads go.
const STAGING: usize = 4 << 20;

/// The bytes of the words of a failure: the kernel and its node, and the number that it found.
const FAILURE: usize = 16;

pub(super) struct CudaQueue {
    shared: Arc<Shared>,
    stream: Arc<CudaStream>,
    node: Option<Node>,
    staging: Option<Pinned>,
    /// The bytes of the staging memory that copies may still read.
    staged: usize,
    /// The words of a failure on the device, and their copy.
    failure: Block,
    seen: Pinned,
    /// True if a kernel was launched that may fail.
    may_fail: bool,
    capture: Capture,
}

impl CudaQueue {
    pub(super) fn new(shared: Arc<Shared>) -> Result<CudaQueue, DeviceError> {
        let stream = shared.context.new_stream().map_err(lost)?;
        let failure = Block::new(&shared.context, FAILURE)?;
        let seen = Pinned::new(&shared.context, FAILURE)?;
        let mut queue = CudaQueue {
            stream,
            node: None,
            staging: None,
            staged: 0,
            failure,
            seen,
            may_fail: false,
            capture: Capture::default(),
            shared,
        };
        queue.clear_failure()?;
        queue.wait()?;
        Ok(queue)
    }

    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// The arguments of a kernel that may fail: where it writes its failure, and the words that name it.
    pub(super) fn failure(&mut self, message: u32) -> [u64; 2] {
        self.may_fail = true;
        let node = self.node.map_or(0, |node| node.index() as u64 + 1);
        [self.failure.address(), u64::from(message) << 32 | node]
    }

    /// Called after each launch.
    pub(super) fn launched(&mut self) -> Result<(), DeviceError> {
        if !self.shared.waits_for_kernels || self.capture.is_active() {
            return Ok(());
        }
        self.stream.synchronize().map_err(|error| match self.node {
            Some(node) => DeviceError::Lost(format!("{node}: {error}")),
            None => lost(error),
        })
    }

    #[expect(unsafe_code, reason = "a call of the driver")]
    fn clear_failure(&mut self) -> Result<(), DeviceError> {
        // SAFETY: the words are as long, and live as long as the queue.
        unsafe { result::memset_d8_async(self.failure.address(), 0, 8, self.stream.cu_stream()) }
            .map_err(lost)?;
        // SAFETY: as above; the second word begins as the least number.
        unsafe { result::memset_d8_async(self.failure.address() + 8, 0, 7, self.stream.cu_stream()) }
            .map_err(lost)?;
        // SAFETY: as above.
        unsafe { result::memset_d8_async(self.failure.address() + 15, 0x80, 1, self.stream.cu_stream()) }
            .map_err(lost)
    }

    /// Waits for the stream, and returns the failure of a kernel.
    #[expect(unsafe_code, reason = "a call of the driver")]
    fn wait(&mut self) -> Result<(), DeviceError> {
        let checks = std::mem::take(&mut self.may_fail);
        if checks {
            let from = self.failure.address();
            // SAFETY: both are as long, and live as long as the queue, which waits below.
            unsafe { result::memcpy_dtoh_async(self.seen.bytes(), from, self.stream.cu_stream()) }
                .map_err(lost)?;
        }
        self.stream.synchronize().map_err(lost)?;
        self.staged = 0;
        if !checks {
            return Ok(());
        }
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).unwrap_or_default();
        let seen = self.seen.bytes();
        let (name, found) = (word(&seen[..8]), word(&seen[8..]).cast_signed());
        if name == 0 {
            return Ok(());
        }
        self.clear_failure()?;
        let half = |bits: u64| usize::try_from(bits & u64::from(u32::MAX)).unwrap_or(usize::MAX);
        let (message, node) = (half(name >> 32), half(name));
        let expected = self.shared.compiler.message(message);
        let error = KernelError::value(expected, found);
        Err(match node.checked_sub(1) {
            Some(node) => DeviceError::Kernel { node: Node::new(node), error },
            None => DeviceError::Lost(error.to_string()),
        })
    }
}

/// The address of the first byte of a range.
///
/// # Errors
/// If the memory is that of another backend.
pub(super) fn address(memory: &Arc<dyn DeviceMemory>, offset: usize) -> Result<u64, DeviceError> {
    let memory: &dyn Any = &**memory;
    match memory.downcast_ref::<Block>() {
        Some(block) => Ok(block.address() + offset as u64),
        None => Err(DeviceError::Lost("expected memory of a CUDA device, found other memory".into())),
    }
}

impl Queue for CudaQueue {
    fn enter(&mut self, node: Node) {
        self.node = Some(node);
        self.capture.begin(&self.shared.recorder, &self.stream);
    }

    #[expect(unsafe_code, reason = "a call of the driver")]
    fn upload(&mut self, from: &[u8], to: Span<'_>) -> Result<(), DeviceError> {
        let mut to = address(to.memory, to.offset)?;
        if self.capture.is_active() && !from.is_empty() {
            let mut own = Pinned::new(&self.shared.context, from.len())?;
            own.bytes().copy_from_slice(from);
            // SAFETY: the bytes are kept with the graph, and the target is as long.
            unsafe { result::memcpy_htod_async(to, own.bytes(), self.stream.cu_stream()) }.map_err(lost)?;
            self.capture.keep(own);
            return Ok(());
        }
        for piece in from.chunks(STAGING) {
            if self.staged + piece.len() > STAGING {
                self.stream.synchronize().map_err(lost)?;
                self.staged = 0;
            }
            let staging = match &mut self.staging {
                Some(staging) => staging,
                none => none.insert(Pinned::new(&self.shared.context, STAGING)?),
            };
            let place = &mut staging.bytes()[self.staged..][..piece.len()];
            place.copy_from_slice(piece);
            self.shared.context.bind_to_thread().map_err(lost)?;
            // SAFETY: the place is not written again before the stream is waited for, and the target is as long.
            unsafe { result::memcpy_htod_async(to, place, self.stream.cu_stream()) }.map_err(lost)?;
            self.staged = (self.staged + piece.len()).next_multiple_of(64).min(STAGING);
            to += piece.len() as u64;
        }
        Ok(())
    }

    #[expect(unsafe_code, reason = "a call of the driver")]
    fn download(&mut self, from: Span<'_>, to: &mut [u8]) -> Result<(), DeviceError> {
        let from = address(from.memory, from.offset)?;
        self.shared.context.bind_to_thread().map_err(lost)?;
        if !to.is_empty() {
            // SAFETY: the source is as long, and the stream is waited for before the borrow ends.
            let copied = unsafe { result::memcpy_dtoh_async(to, from, self.stream.cu_stream()) };
            copied.map_err(lost)?;
        }
        self.wait()
    }

    fn copy(&mut self, from: Rows<'_>, to: Rows<'_>, count: usize, len: usize) -> Result<(), DeviceError> {
        let source = address(from.memory, from.offset)?;
        let target = address(to.memory, to.offset)?;
        self.shared.context.bind_to_thread().map_err(lost)?;
        copy(&self.stream, [source, target], [from.stride, to.stride], count, len).map_err(lost)
    }

    fn finish(&mut self) -> Result<(), DeviceError> {
        self.capture.end(&self.shared.recorder, &self.stream)?;
        self.shared.context.bind_to_thread().map_err(lost)?;
        self.wait()
    }
}

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
        // SAFETY: the caller names ranges of live blocks, which the driver frees after the copy.
        return unsafe { result::memcpy_dtod_async(target, source, count * len, stream.cu_stream()) };
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
