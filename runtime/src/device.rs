//! Memory of a device, which the host cannot address, and the order of the work on it.
//!
//! A backend whose kernels read host memory needs none of this ([`Backend::device`](crate::Backend::device)). For
//! all others a session keeps every tensor in device memory. Host data crosses at the border of the session:
//!
//! ```text
//! input   (host)  --upload-->    span of device memory  --kernels-->  span  --download-->  output (host)
//! ```
//!
//! Everything goes through a [`Queue`]: copies in both directions, copies on the device, and kernels, which find the
//! queue in [`Io::queue`](crate::backend::Io::queue). A kernel may return before the work is done. A failure of the work
//! surfaces later, with the node that the queue was told before the launch:
//!
//! - Every [`Download`] that was begun after the failed work ends with the failure, because its bytes may be wrong.
//! - If no download has ended with the failure, the next [`Queue::finish`] returns it, or an earlier call that gives the
//!   queue work. It surfaces once in this way; then the queue can be used again.
//!
//! A session owns the failures of its queues. The end of every run is a download, of no bytes if the caller wants no
//! outputs, so that a failure is that of the run whose download ends with it, whichever call meets it first. Before the
//! session gives other work (it binds a module, copies states or values), all runs in flight have ended.
//!
//! The work of one queue is in order. Work of different queues is in order only where an [`Event`] says so. If Add
//! reads the results of two products on two queues, the session asks for
//!
//! ```text
//! queue 0:  MatMul %p                     wait e   Add %p, %q
//! queue 1:             MatMul %q  signal e
//! ```
//!
//! The kernels of a plan always have the same operands and results in the same places. A device that
//! [records](Device::can_record) is given them once, and replays them in later runs.

pub use crate::error::DeviceError;
use ampc_ir::{DType, Node};
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// A block of device memory. It is freed with its last handle; a backend delays that until its work is done.
pub trait DeviceMemory: Any + Debug + Send + Sync {
    /// The number of bytes.
    fn len(&self) -> usize;

    /// True if there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A range of device memory.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// The block that the range is in.
    pub memory: &'a Arc<dyn DeviceMemory>,
    /// The first byte.
    pub offset: usize,
    /// The number of bytes.
    pub len: usize,
}

/// A tensor in device memory that owns its bytes, or shares them with its copies.
#[derive(Clone, Debug)]
pub struct DeviceTensor {
    dtype: DType,
    dims: Vec<u64>,
    memory: Arc<dyn DeviceMemory>,
    offset: usize,
    len: usize,
}

/// A borrowed tensor in device memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRef<'a> {
    /// The element type.
    pub dtype: DType,
    /// The dims.
    pub dims: &'a [u64],
    /// The bytes.
    pub span: Span<'a>,
}

impl DeviceTensor {
    /// A tensor whose bytes are all of a block.
    pub fn new(dtype: DType, dims: Vec<u64>, memory: Arc<dyn DeviceMemory>) -> DeviceTensor {
        let len = memory.len();
        DeviceTensor { dtype, dims, memory, offset: 0, len }
    }

    /// A tensor whose bytes are a range of a block.
    pub fn of(dtype: DType, dims: Vec<u64>, span: Span<'_>) -> DeviceTensor {
        let Span { memory, offset, len } = span;
        DeviceTensor { dtype, dims, memory: memory.clone(), offset, len }
    }

    /// The tensor, borrowed.
    pub fn view(&self) -> DeviceRef<'_> {
        let span = Span { memory: &self.memory, offset: self.offset, len: self.len };
        DeviceRef { dtype: self.dtype, dims: &self.dims, span }
    }
}

impl<'a> DeviceRef<'a> {
    /// The same bytes with other dims.
    pub fn with_dims(self, dims: &'a [u64]) -> DeviceRef<'a> {
        DeviceRef { dims, ..self }
    }
}

/// Rows of bytes that lie apart: `count` rows of `len` bytes, `stride` bytes from one row to the next.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The block that the rows are in.
    pub memory: &'a Arc<dyn DeviceMemory>,
    /// The first byte of the first row.
    pub offset: usize,
    /// Bytes from the beginning of a row to the beginning of the next.
    pub stride: usize,
}

/// A device: its memory and its queues.
pub trait Device: Debug + Send + Sync {
    /// The alignment of every tensor in a block, in bytes: a power of two. Blocks themselves are aligned at least so.
    fn alignment(&self) -> usize;

    /// The alignment that inputs in the caller's device memory need, in bytes: a power of two. A session copies an input whose
    /// offset in its block is no multiple of it.
    fn input_alignment(&self) -> usize {
        1
    }

    /// Allocates a block; its contents are undefined. A block of 0 bytes is valid.
    ///
    /// # Errors
    /// [`DeviceError::NoMemory`] if the device has no memory for the block.
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn DeviceMemory>, DeviceError>;

    /// The bytes that blocks may still take, without a reserve for what the device allocates by itself; `None` if the device
    /// cannot tell.
    fn available_memory(&self) -> Option<u64> {
        None
    }

    /// A queue for one session.
    ///
    /// # Errors
    /// If the device refuses it.
    fn queue(&self) -> Result<Box<dyn Queue>, DeviceError>;

    /// The number of queues of a session that kernels may be launched on, at least 1. A kernel asks for a queue with
    /// [`Prepared::on_queue`](crate::backend::Prepared::on_queue); a kernel that asks for another queue is refused.
    fn kernel_queues(&self) -> usize {
        1
    }

    /// True if queues record kernels to replay them.
    fn can_record(&self) -> bool {
        false
    }
}

/// A point in the work of a queue: everything that the queue was given before. A backend knows the type.
pub type Event = Arc<dyn Any + Send + Sync>;

/// Kernels that a queue has recorded. A backend knows the type.
pub type Recording = Box<dyn Any + Send>;

/// A copy to the host that has begun.
pub trait Download: Send {
    /// Waits for the copy, and writes the bytes to `to`, which has as many.
    ///
    /// # Errors
    /// If the copy failed, or work that the queue was given before the download, also if the failure has surfaced elsewhere
    /// since; and if the device is lost.
    fn finish(self: Box<Self>, to: &mut [u8]) -> Result<(), DeviceError>;
}

/// Work of a session on a device, in the order in which it was given: a backend may reorder work only if no result
/// shows it.
pub trait Queue: Any + Send {
    /// Names the node whose kernel is launched next, for errors that surface later.
    fn enter(&mut self, node: Node);

    /// Copies bytes to the device. The host may change `from` afterwards.
    ///
    /// # Errors
    /// If earlier work failed, or the device is lost.
    fn upload(&mut self, from: &[u8], to: Span<'_>) -> Result<(), DeviceError>;

    /// Begins to copy bytes to the host, into memory of the backend. The bytes are those that work given earlier leaves in
    /// the range, also if work given later changes them. A range of no bytes is valid: the download then ends when earlier
    /// work is done.
    ///
    /// # Errors
    /// If earlier work failed, or the device is lost.
    fn start_download(&mut self, from: Span<'_>) -> Result<Box<dyn Download>, DeviceError>;

    /// Copies bytes to the host, and waits for them.
    ///
    /// # Errors
    /// If earlier work failed, or the device is lost.
    fn download(&mut self, from: Span<'_>, to: &mut [u8]) -> Result<(), DeviceError> {
        self.start_download(from)?.finish(to)
    }

    /// Copies `count` rows of `len` bytes. Source and target do not overlap.
    ///
    /// # Errors
    /// If earlier work failed, or the device is lost.
    fn copy(&mut self, from: Rows<'_>, to: Rows<'_>, count: usize, len: usize) -> Result<(), DeviceError>;

    /// The event that all work given so far is done.
    ///
    /// # Errors
    /// If the device is lost.
    fn signal(&mut self) -> Result<Event, DeviceError>;

    /// Lets work given later wait for an event of another queue of the device. The host does not wait.
    ///
    /// # Errors
    /// If the device is lost.
    fn wait(&mut self, event: &Event) -> Result<(), DeviceError>;

    /// Waits for all work.
    ///
    /// # Errors
    /// If work failed, or the device is lost. The queue can be used again unless the device is lost.
    fn finish(&mut self) -> Result<(), DeviceError>;

    /// Records an event with its time behind the work given so far, for [`elapsed`](Self::elapsed); `None` if the device has
    /// no clock.
    ///
    /// # Errors
    /// If the device is lost.
    fn mark(&mut self) -> Result<Option<Event>, DeviceError> {
        Ok(None)
    }

    /// The time between two events of [`mark`](Self::mark) on this queue, of which `to` is the later. Waits for both.
    ///
    /// # Errors
    /// If an event does not come from `mark`, or the device is lost.
    fn elapsed(&mut self, from: &Event, to: &Event) -> Result<Duration, DeviceError> {
        let _ = (from, to);
        Err(DeviceError::Failed("this queue has no clock".to_owned()))
    }

    /// Begins a recording: work is not done until it is [replayed](Self::replay). Another queue records too from the moment
    /// that it waits for an event of this queue, until this queue waits for an event of it. Meanwhile a session gives
    /// kernels and copies on the device only. It asks for this only if the device [can record](Device::can_record).
    ///
    /// # Errors
    /// If the device is lost.
    fn begin_recording(&mut self) -> Result<(), DeviceError> {
        Err(DeviceError::Failed("this queue does not support recording".to_owned()))
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] if the device cannot replay the work, and [`DeviceError::OutOfMemory`] if it has no
    /// memory for the recording. In both cases the session then launches the kernels of this program one by one. Other
    /// errors end the run. The queue leaves the recording in every case.
    fn end_recording(&mut self) -> Result<Recording, DeviceError> {
        Err(DeviceError::Failed("this queue does not support recording".to_owned()))
    }

    /// Does the recorded work, on the same memory. A failure names the node that the queue was told while it recorded.
    ///
    /// # Errors
    /// If earlier work failed, or the device is lost.
    fn replay(&mut self, recording: &Recording) -> Result<(), DeviceError> {
        let _ = recording;
        Err(DeviceError::Failed("this queue does not support recording".to_owned()))
    }
}
