//! Runs as CUDA graphs: the work of a run is captured from its first node until the session waits, and can be launched
//! again.
//!
//! The graph has the addresses of the run: it stays valid as long as the session keeps its arena, inputs and constants.
//! Bytes that kernels copy from the host while the run is recorded are kept with the graph.

use super::memory::{Pinned, lost};
use crate::backend::DeviceError;
use cudarc::driver::{CudaGraph, CudaStream, sys};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A run that can be launched again.
pub struct Recorded {
    graph: CudaGraph,
    stream: Arc<CudaStream>,
    /// Bytes that copies in the graph read.
    _uploads: Vec<Pinned>,
}

// SAFETY: the graph is used by one thread at a time: no method can be called while another thread has the value.
#[expect(unsafe_code, reason = "the graph is a pointer")]
unsafe impl Send for Recorded {}

impl Recorded {
    /// Launches the run so many times and waits.
    ///
    /// # Errors
    /// If the device fails.
    pub fn replay(&self, times: usize) -> Result<(), DeviceError> {
        for _ in 0..times {
            self.graph.launch().map_err(lost)?;
        }
        self.stream.synchronize().map_err(lost)
    }
}

/// The next run to record, and the run recorded last.
#[derive(Default)]
pub(super) struct Recorder {
    is_armed: AtomicBool,
    recorded: Mutex<Option<Recorded>>,
}

impl Recorder {
    pub(super) fn arm(&self) {
        self.is_armed.store(true, Ordering::Relaxed);
    }

    pub(super) fn take(&self) -> Option<Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The capture of a queue.
#[derive(Default)]
pub(super) struct Capture {
    is_active: bool,
    /// The failure of the beginning, which surfaces at the end.
    failed: Option<DeviceError>,
    uploads: Vec<Pinned>,
}

impl Capture {
    pub(super) fn is_active(&self) -> bool {
        self.is_active
    }

    /// Keeps bytes that a copy in the graph reads.
    pub(super) fn keep(&mut self, upload: Pinned) {
        self.uploads.push(upload);
    }

    /// Begins if a run is to be recorded.
    pub(super) fn begin(&mut self, recorder: &Recorder, stream: &Arc<CudaStream>) {
        if self.is_active || !recorder.is_armed.swap(false, Ordering::Relaxed) {
            return;
        }
        match stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED) {
            Ok(()) => self.is_active = true,
            Err(error) => self.failed = Some(lost(error)),
        }
    }

    /// Ends the capture, if there is one, and launches its graph.
    pub(super) fn end(&mut self, recorder: &Recorder, stream: &Arc<CudaStream>) -> Result<(), DeviceError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if !std::mem::take(&mut self.is_active) {
            return Ok(());
        }
        let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0)).map_err(lost)?;
        let graph = graph.ok_or_else(|| DeviceError::Lost("nothing was captured".into()))?;
        graph.launch().map_err(lost)?;
        let uploads = std::mem::take(&mut self.uploads);
        let recorded = Recorded { graph, stream: stream.clone(), _uploads: uploads };
        *recorder.recorded.lock().unwrap_or_else(PoisonError::into_inner) = Some(recorded);
        Ok(())
    }
}
