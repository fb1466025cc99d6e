//! Work of streams: done at once, or recorded into a graph while a stream is captured.

use crate::blocks::Launch;
use crate::dnn::Execution;
use crate::products::Product;
use crate::{complain, memory};
use cudarc::driver::sys::CUresult;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Work on the device.
#[derive(Clone)]
pub(crate) enum Work {
    /// Rows of bytes: from, to, their strides, the number of rows, the bytes of each.
    Copy {
        from: Place,
        to: Place,
        strides: [usize; 2],
        count: usize,
        len: usize,
    },
    /// Bytes of one number.
    Set {
        to: u64,
        byte: u8,
        len: usize,
    },
    Launch(Launch),
    Product(Product),
    Convolution(Execution),
}

/// An address, on the device or on the host.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    Device(u64),
    Host(u64),
}

impl Place {
    /// The address of `len` bytes from `offset` on, if they are memory that can be copied.
    fn at(self, offset: usize, len: usize) -> Option<u64> {
        match self {
            Place::Device(start) => {
                let at = start + offset as u64;
                memory::holds(at, len).then_some(at)
            }
            Place::Host(start) => Some(start + offset as u64),
        }
    }
}

/// The work of streams that are captured together, in the order of the calls. It is there until the capture ends.
pub(crate) type Capture = Arc<Mutex<Option<Vec<Work>>>>;

/// A stream, with the capture that it is part of.
#[derive(Default)]
pub(crate) struct Stream {
    pub(crate) capture: Option<Capture>,
}

/// An event, with the capture that its stream was part of when it was recorded: a stream that waits for the event joins it.
#[derive(Default)]
pub(crate) struct Event {
    pub(crate) capture: Option<Capture>,
    /// The time at which it was recorded: by then all earlier work is done.
    pub(crate) time: Option<Instant>,
}

/// The work of a capture.
pub(crate) fn lock(capture: &Capture) -> MutexGuard<'_, Option<Vec<Work>>> {
    capture.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stream {
    /// The capture that the stream is part of, if it has not ended.
    pub(crate) fn captured(&mut self) -> Option<&Capture> {
        if self.capture.as_ref().is_some_and(|capture| lock(capture).is_none()) {
            self.capture = None;
        }
        self.capture.as_ref()
    }

    /// Does work, or records it.
    pub(crate) fn enqueue(&mut self, work: Work) -> CUresult {
        match self.captured() {
            Some(capture) => {
                lock(capture).get_or_insert_default().push(work);
                CUresult::CUDA_SUCCESS
            }
            None => work.run(),
        }
    }
}

impl Work {
    pub(crate) fn run(&self) -> CUresult {
        match self {
            Work::Copy { from, to, strides, count, len } => {
                for row in 0..*count {
                    let places = (from.at(row * strides[0], *len), to.at(row * strides[1], *len));
                    let (Some(from), Some(to)) = places else {
                        complain("a copy from or to memory that is not alive");
                        return CUresult::CUDA_ERROR_INVALID_VALUE;
                    };
                    // SAFETY: both ranges are alive; they may overlap.
                    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, *len) };
                }
                CUresult::CUDA_SUCCESS
            }
            Work::Set { to, byte, len } if memory::holds(*to, *len) => {
                // SAFETY: the range is alive.
                unsafe { memory::slice::<u8>(*to, *len) }.fill(*byte);
                CUresult::CUDA_SUCCESS
            }
            Work::Set { .. } => {
                complain("bytes are set in memory that is not alive");
                CUresult::CUDA_ERROR_INVALID_VALUE
            }
            Work::Launch(launch) => launch.run(),
            Work::Product(product) => product.run(),
            Work::Convolution(convolution) => convolution.run(),
        }
    }
}
