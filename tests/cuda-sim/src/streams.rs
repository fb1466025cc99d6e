//! Streams of the driver, and the state that streams, events (`events.rs`) and graphs (`graphs.rs`) share. Handles are
//! numbers that are never reused, so that a call with a destroyed handle is detected.
//!
//! A stream that is captured adds its work to a graph, after the works that the stream or an event that it waits for
//! names. As the driver does, a capture refuses calls that wait for its streams and events.

use crate::driver::INVALID;
use crate::faults::fault;
use crate::records;
use crate::schedule::{Graph, Schedule, Ticket};
use crate::work::Work;
use cudarc::driver::sys::{CUevent, CUgraph, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_uint;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

const OK: CUresult = CUresult::CUDA_SUCCESS;
pub(crate) const NO_HANDLE: CUresult = CUresult::CUDA_ERROR_INVALID_HANDLE;
pub(crate) const UNSUPPORTED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;

/// The last works of a capture that a stream or an event comes after.
#[derive(Clone)]
pub(crate) struct Captured {
    capture: usize,
    after: BTreeSet<usize>,
}

/// A capture that has not ended.
struct Capture {
    origin: usize,
    is_relaxed: bool,
    graph: Graph,
    is_valid: bool,
    /// Works that a stream would wait for, if the setting `ignore_wait` had not removed the wait.
    ignored: BTreeSet<usize>,
}

/// An event that was recorded.
#[derive(Clone)]
pub(crate) enum Recorded {
    Enqueued(Ticket),
    Captured(Captured),
}

/// The streams, events and graphs of the process.
pub(crate) struct Device {
    next: usize,
    pub(crate) streams: BTreeMap<usize, Option<Captured>>,
    pub(crate) events: BTreeMap<usize, Option<Recorded>>,
    /// Events that note no time.
    pub(crate) untimed: BTreeSet<usize>,
    captures: BTreeMap<usize, Capture>,
    pub(crate) graphs: BTreeMap<usize, Arc<Graph>>,
    pub(crate) schedule: Schedule,
    waits: u64,
}

/// The device. Calls of all threads take turns, and work runs in them.
pub(crate) fn device() -> MutexGuard<'static, Device> {
    static DEVICE: OnceLock<Mutex<Device>> = OnceLock::new();
    let new = || {
        Mutex::new(Device {
            next: 1,
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            untimed: BTreeSet::new(),
            captures: BTreeMap::new(),
            graphs: BTreeMap::new(),
            schedule: Schedule::new(),
            waits: 0,
        })
    };
    DEVICE.get_or_init(new).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes over a setting that was changed.
pub(crate) fn settings_changed(name: &str) {
    let mut device = device();
    match name {
        "seed" => {
            device.finish_all();
            device.schedule.reseed();
        }
        "ignore_wait" => device.waits = 0,
        _ => {}
    }
}

impl Device {
    pub(crate) fn handle(&mut self) -> usize {
        self.next += 1;
        self.next * 16
    }

    /// Adds work to a stream, or to the graph that the stream is captured for.
    pub(crate) fn enqueue(&mut self, stream: usize, work: Work) -> CUresult {
        if let Some(failure) = self.schedule.failure {
            return failure;
        }
        match self.streams.get_mut(&stream) {
            None => NO_HANDLE,
            Some(Some(captured)) => {
                let Some(capture) =
                    self.captures.get_mut(&captured.capture).filter(|capture| capture.is_valid)
                else {
                    return CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
                };
                let after: Vec<usize> = captured.after.iter().copied().collect();
                captured.after = BTreeSet::from([capture.graph.add(work, &after)]);
                OK
            }
            Some(None) if !work.names_memory() => {
                crate::complain("a copy from or to memory that is not alive");
                INVALID
            }
            Some(None) => {
                let waits = work.is_pageable();
                self.schedule.work(stream, work);
                if waits {
                    records::add("copies.pageable", 1);
                    records::add("synchronisations", 1);
                    return self.finish(stream);
                }
                self.schedule.failure.unwrap_or(OK)
            }
        }
    }

    /// Runs work until a stream is empty.
    fn finish(&mut self, stream: usize) -> CUresult {
        let is_empty =
            |schedule: &Schedule| schedule.queues.get(&stream).is_none_or(crate::schedule::Queue::is_empty);
        self.schedule.run_until(is_empty).unwrap_or(OK)
    }

    /// Runs all work.
    pub(crate) fn finish_all(&mut self) -> CUresult {
        self.schedule.run_until(|_| false).unwrap_or(OK)
    }

    /// The error of a call that the driver refuses while any stream is captured, after which the captures are not valid.
    pub(crate) fn refused_by_captures(&mut self, refuses: impl Fn(bool) -> bool) -> Option<CUresult> {
        let mut refused = None;
        for capture in self.captures.values_mut().filter(|capture| refuses(capture.is_relaxed)) {
            capture.is_valid = false;
            refused = Some(UNSUPPORTED);
        }
        refused
    }

    pub(crate) fn invalidate(&mut self, captured: &Captured) {
        if let Some(capture) = self.captures.get_mut(&captured.capture) {
            capture.is_valid = false;
        }
    }

    /// True if the setting `ignore_wait` names this wait, the first being 1.
    fn ignores_wait(&mut self) -> bool {
        self.waits += 1;
        let is_ignored = records::setting("ignore_wait") == Some(self.waits);
        records::add("waits.ignored", usize::from(is_ignored));
        is_ignored
    }

    fn wait(&mut self, stream: usize, event: usize) -> CUresult {
        let Some(recorded) = self.events.get(&event).cloned() else { return NO_HANDLE };
        if !self.streams.contains_key(&stream) {
            return NO_HANDLE;
        }
        let Some(recorded) = recorded else { return OK };
        let is_ignored = self.ignores_wait();
        let captured = self.streams.get(&stream).cloned().flatten();
        match (captured, recorded) {
            (None, Recorded::Enqueued(ticket)) => {
                if !is_ignored {
                    self.schedule.wait(stream, ticket);
                }
                OK
            }
            (Some(captured), Recorded::Enqueued(_)) => {
                self.invalidate(&captured);
                CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION
            }
            (captured, Recorded::Captured(event)) => {
                let Some(capture) = self.captures.get_mut(&event.capture) else {
                    // The capture of the event has ended.
                    return CUresult::CUDA_ERROR_CAPTURED_EVENT;
                };
                let mut joined =
                    captured.unwrap_or(Captured { capture: event.capture, after: BTreeSet::new() });
                if joined.capture != event.capture {
                    return CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE;
                }
                if is_ignored { &mut capture.ignored } else { &mut joined.after }.extend(event.after);
                self.streams.insert(stream, Some(joined));
                OK
            }
        }
    }

    fn end_capture(&mut self, stream: usize) -> Result<Graph, CUresult> {
        let captured = self.streams.get(&stream).ok_or(NO_HANDLE)?.clone();
        let captured = captured.ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        if self.captures.get(&captured.capture).is_some_and(|capture| capture.origin != stream) {
            self.invalidate(&captured);
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let Some(capture) = self.captures.remove(&captured.capture) else {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        };
        for state in self.streams.values_mut() {
            if state.as_ref().is_some_and(|other| other.capture == captured.capture) {
                *state = None;
            }
        }
        if !capture.is_valid {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let last: Vec<usize> = captured.after.union(&capture.ignored).copied().collect();
        if !capture.graph.ends_with(&last) {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
        }
        Ok(capture.graph)
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuStreamCreate(stream: *mut CUstream, _: c_uint) -> CUresult {
    fault!("cuStreamCreate");
    let mut device = device();
    let handle = device.handle();
    device.streams.insert(handle, None);
    records::add("streams", 1);
    // SAFETY: the caller gives a place.
    unsafe { *stream = handle as CUstream };
    OK
}

/// Work of the stream is still done, as the driver does it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuStreamDestroy_v2(stream: CUstream) -> CUresult {
    fault!("cuStreamDestroy_v2");
    let Some(captured) = device().streams.remove(&(stream as usize)) else { return NO_HANDLE };
    if let Some(captured) = captured {
        device().invalidate(&captured);
    }
    records::subtract("streams");
    OK
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuStreamSynchronize(stream: CUstream) -> CUresult {
    fault!("cuStreamSynchronize");
    records::add("synchronisations", 1);
    let mut device = device();
    match device.streams.get(&(stream as usize)).cloned() {
        None => NO_HANDLE,
        Some(Some(captured)) => {
            device.invalidate(&captured);
            UNSUPPORTED
        }
        Some(None) => device.finish(stream as usize),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxSynchronize() -> CUresult {
    fault!("cuCtxSynchronize");
    records::add("synchronisations", 1);
    let mut device = device();
    match device.refused_by_captures(|_| true) {
        Some(refused) => refused,
        None => device.finish_all(),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuStreamWaitEvent(stream: CUstream, event: CUevent, _: c_uint) -> CUresult {
    fault!("cuStreamWaitEvent");
    device().wait(stream as usize, event as usize)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuStreamIsCapturing(
    stream: CUstream,
    status: *mut CUstreamCaptureStatus,
) -> CUresult {
    fault!("cuStreamIsCapturing");
    let device = device();
    let Some(captured) = device.streams.get(&(stream as usize)) else { return NO_HANDLE };
    let is_valid = captured.as_ref().and_then(|captured| device.captures.get(&captured.capture));
    // SAFETY: the caller gives a place.
    unsafe {
        *status = match is_valid.map(|capture| capture.is_valid) {
            Some(true) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE,
            Some(false) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
            None => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
        };
    }
    OK
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuStreamBeginCapture_v2(
    stream: CUstream,
    mode: CUstreamCaptureMode,
) -> CUresult {
    fault!("cuStreamBeginCapture_v2");
    let mut device = device();
    match device.streams.get(&(stream as usize)) {
        None => return NO_HANDLE,
        Some(Some(_)) => return CUresult::CUDA_ERROR_ILLEGAL_STATE,
        Some(None) => {}
    }
    records::add("captures", 1);
    let id = device.handle();
    let is_relaxed = mode == CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    let (graph, ignored) = (Graph::default(), BTreeSet::new());
    let capture = Capture { origin: stream as usize, is_relaxed, graph, is_valid: true, ignored };
    device.captures.insert(id, capture);
    device.streams.insert(stream as usize, Some(Captured { capture: id, after: BTreeSet::new() }));
    OK
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> CUresult {
    let mut device = device();
    let ended = device.end_capture(stream as usize);
    // A capture ends in any case.
    fault!("cuStreamEndCapture");
    match ended {
        Ok(made) => {
            let handle = device.handle();
            device.graphs.insert(handle, Arc::new(made));
            records::add("graphs", 1);
            // SAFETY: the caller gives a place.
            unsafe { *graph = handle as CUgraph };
            OK
        }
        Err(error) => {
            // SAFETY: as above.
            unsafe { *graph = std::ptr::null_mut() };
            error
        }
    }
}
