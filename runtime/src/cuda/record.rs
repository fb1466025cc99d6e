//! Recordings: CUDA graphs captured from the work of streams.

use super::memory::{Pinned, failed};
use crate::backend::DeviceError;
use cudarc::driver::sys::{self, CUstreamCaptureStatus as Status};
use cudarc::driver::{CudaGraph, CudaStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A CUDA graph, with the host bytes that its copies read.
pub(super) struct Graph {
    graph: CudaGraph,
    stream: Arc<CudaStream>,
    _uploads: Vec<Pinned>,
}

impl Drop for Graph {
    fn drop(&mut self) {
        // Launches may still read the uploads. If the device is lost, no launch is running.
        let _ = self.stream.synchronize();
    }
}

// SAFETY: only a queue launches the graph, and one thread at a time uses a queue.
#[expect(unsafe_code, reason = "the graph is a pointer")]
unsafe impl Send for Graph {}

impl Graph {
    pub(super) fn launch(&self) -> Result<(), DeviceError> {
        self.graph.launch().map_err(failed)
    }
}

/// A recording in progress, on one or more streams. Streams that join the recording share the value.
#[derive(Clone)]
pub(super) struct Capture {
    /// The bytes that copies of the recording read; `None` after the recording has ended.
    uploads: Arc<Mutex<Option<Vec<Pinned>>>>,
}

impl Capture {
    /// Starts to capture a stream. Allocations by other sessions are permitted and are not captured.
    pub(super) fn begin(stream: &CudaStream) -> Result<Capture, DeviceError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        stream.begin_capture(mode).map_err(failed)?;
        Ok(Capture { uploads: Arc::new(Mutex::new(Some(Vec::new()))) })
    }

    fn uploads(&self) -> MutexGuard<'_, Option<Vec<Pinned>>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True until the recording ends.
    pub(super) fn is_active(&self) -> bool {
        self.uploads().is_some()
    }

    /// Keeps the bytes that a copy of the graph reads.
    pub(super) fn keep(&self, upload: Pinned) {
        self.uploads().get_or_insert_default().push(upload);
    }

    /// Ends the capture. The stream leaves capture mode in any case.
    pub(super) fn end(self, stream: &Arc<CudaStream>) -> Result<Graph, DeviceError> {
        let _uploads = self.uploads().take().unwrap_or_default();
        let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0)).map_err(|error| {
            // A stream that is still capturing would capture all later work.
            match (failed(error), stream.capture_status()) {
                (DeviceError::Failed(reason), Ok(Status::CU_STREAM_CAPTURE_STATUS_NONE)) => {
                    DeviceError::Failed(reason)
                }
                (refused @ DeviceError::OutOfMemory(_), Ok(Status::CU_STREAM_CAPTURE_STATUS_NONE)) => refused,
                (DeviceError::Failed(reason) | DeviceError::OutOfMemory(reason), _) => {
                    DeviceError::Lost(reason)
                }
                (lasting, _) => lasting,
            }
        })?;
        let graph = graph.ok_or_else(|| DeviceError::Failed("the driver has captured nothing".into()))?;
        Ok(Graph { graph, stream: stream.clone(), _uploads })
    }
}
