//! The memory of a device, which the host cannot address, and the order of the work on the device.
//!
//! A backend whose kernels read host memory needs none of this ([`Backend::device`](crate::Backend::device)). For all
//! other backends, a session keeps every tensor in device memory. Host data is copied at the interface of the
//! session:
//!
//! ```text
//! input   (host)  --upload-->    span of device memory  --kernels-->  span  --download-->  output (host)
//! ```
//!
//! All work goes through a [`Queue`]: copies in both directions, copies on the device, and kernels, which get the
//! queue from [`Io::queue`](crate::backend::Io::queue). A kernel may return before its work is done. A failure of the
//! work is reported later, with the node that was set before the launch ([`Queue::enter`]):
//!
//! - Every [`Download`] that began after the failed work returns the failure, because its bytes may be wrong.
//! - If no download has returned the failure, the next [`Queue::finish`] returns it, or an earlier call that gives
//!   work to the queue. Such a call reports the failure once; then the queue can be used again.
//!
//! A session owns the failures of its queues. Every run ends with a download, of 0 bytes if the caller requests no
//! outputs. So a failure belongs to the run whose download returns it, whichever call meets the failure first. Before
//! the session submits other work (to bind a module, or to copy states or values), all runs in flight have ended.
//!
//! The work of one queue is ordered. Work of different queues is ordered only by an [`Event`]. If Add reads the
//! results of two products on two queues, the session submits:
//!
//! ```text
//! queue 0:  MatMul %p                     wait e   Add %p, %q
//! queue 1:             MatMul %q  signal e
//! ```
//!
//! The kernels of a plan always have the same operands and results at the same addresses. A device that
//! [records](Device::can_record) gets them once, and replays them in later runs.

pub use crate::error::DeviceError;
use ampc_ir::{DType, Node};
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// A block of device memory. It is freed with its last handle, but not before the backend's work on it is done.
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

/// A tensor in device memory. It owns its bytes, or shares them with copies.
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

/// Strided rows of bytes: `count` rows of `len` bytes, `stride` bytes from the start of one row to the start of the
/// next.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The block that the rows are in.
    pub memory: &'a Arc<dyn DeviceMemory>,
    /// The first byte of the first row.
    pub offset: usize,
    /// The distance in bytes between the starts of consecutive rows.
    pub stride: usize,
}

/// A device: its memory and its queues.
pub trait Device: Debug + Send + Sync {
    /// The alignment in bytes of every tensor in a block, a power of two. Blocks have at least this alignment.
    fn alignment(&self) -> usize;

    /// The alignment in bytes that inputs in the caller's device memory need, a power of two. A session copies an
    /// input whose offset in its block is not a multiple of it.
    fn input_alignment(&self) -> usize {
        1
    }

    /// Allocates a block; its contents are undefined. A block of 0 bytes is valid.
    ///
    /// # Errors
    /// [`DeviceError::NoMemory`] if the device has no memory for the block.
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn DeviceMemory>, DeviceError>;

    /// The number of bytes that may still be allocated in blocks, less a reserve for implicit allocations of the
    /// device; `None` if the device cannot tell.
    fn available_memory(&self) -> Option<u64> {
        None
    }

    /// Creates a queue for one session.
    ///
    /// # Errors
    /// If the device cannot create a queue.
    fn queue(&self) -> Result<Box<dyn Queue>, DeviceError>;

    /// The number of queues of a session on which kernels may be launched, at least 1. A kernel selects a queue with
    /// [`Prepared::on_queue`](crate::backend::Prepared::on_queue); an index out of range is an error.
    fn kernel_queues(&self) -> usize {
        1
    }

    /// True if queues record kernels to replay them.
    fn can_record(&self) -> bool {
        false
    }
}

/// A point in the work of a queue, after everything that the queue was given before. The type is the backend's.
pub type Event = Arc<dyn Any + Send + Sync>;

/// Kernels that a queue has recorded. The type is the backend's.
pub type Recording = Box<dyn Any + Send>;

/// A copy to the host in progress.
pub trait Download: Send {
    /// Waits for the copy, and writes the bytes to `to`, which has the same length.
    ///
    /// # Errors
    /// If the copy failed, or work that the queue was given before the download failed, even if another call has
    /// reported that failure; or if the device is lost.
    fn finish(self: Box<Self>, to: &mut [u8]) -> Result<(), DeviceError>;
}

/// The work of a session on a device, in the order of submission. A backend may reorder work only if no result
/// depends on the order.
pub trait Queue: Any + Send {
    /// Sets the node whose kernel is launched next, for errors that are reported later.
    fn enter(&mut self, node: Node);

    /// Copies bytes to the device. The host may change `from` afterwards.
    ///
    /// # Errors
    /// If earlier work failed, or the device is lost.
    fn upload(&mut self, from: &[u8], to: Span<'_>) -> Result<(), DeviceError>;

    /// Starts to copy bytes to the host, into memory of the backend. The bytes are the state of the range after
    /// earlier work, even if later work changes the range. A range of 0 bytes is valid: the download then ends when
    /// earlier work is done.
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

    /// An event that happens when all work submitted so far is done.
    ///
    /// # Errors
    /// If the device is lost.
    fn signal(&mut self) -> Result<Event, DeviceError>;

    /// Lets later work wait for an event of another queue of the device. The host does not wait.
    ///
    /// # Errors
    /// If the device is lost.
    fn wait(&mut self, event: &Event) -> Result<(), DeviceError>;

    /// Waits for all work.
    ///
    /// # Errors
    /// If work failed, or the device is lost. The queue can be used again unless the device is lost.
    fn finish(&mut self) -> Result<(), DeviceError>;

    /// Records an event with a timestamp after the work submitted so far, for [`elapsed`](Self::elapsed); `None` if
    /// the device has no clock.
    ///
    /// # Errors
    /// If the device is lost.
    fn mark(&mut self) -> Result<Option<Event>, DeviceError> {
        Ok(None)
    }

    /// The time between two events of [`mark`](Self::mark) on this queue; `to` is the later event. Waits for both.
    ///
    /// # Errors
    /// If an event does not come from `mark`, or the device is lost.
    fn elapsed(&mut self, from: &Event, to: &Event) -> Result<Duration, DeviceError> {
        let _ = (from, to);
        Err(DeviceError::Failed("this queue has no clock".to_owned()))
    }

    /// Begins a recording: submitted work is recorded for [replay](Self::replay) instead of executed. Another queue
    /// joins the recording when it waits for an event of this queue, and leaves the recording when this queue waits
    /// for an event of that queue. Meanwhile a session submits only kernels and copies on the device, and
    /// kernels upload constants: the queue keeps the uploaded bytes with the recording. A session calls this method only if the device [can record](Device::can_record).
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
    /// memory for the recording. In both cases the session then launches the kernels of this program separately.
    /// Other errors end the run. The queue ends the recording in every case.
    fn end_recording(&mut self) -> Result<Recording, DeviceError> {
        Err(DeviceError::Failed("this queue does not support recording".to_owned()))
    }

    /// Executes the recorded work, on the same memory. A failure has the node that was set during the recording.
    ///
    /// # Errors
    /// If earlier work failed, or the device is lost.
    fn replay(&mut self, recording: &Recording) -> Result<(), DeviceError> {
        let _ = recording;
        Err(DeviceError::Failed("this queue does not support recording".to_owned()))
    }
}
