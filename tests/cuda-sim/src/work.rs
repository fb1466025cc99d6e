//! Work of streams: copies, launches and calls of libraries, checked against the memory that is alive when the work runs.

use crate::blocks::Launch;
use crate::dnn::Execution;
use crate::products::Product;
use crate::{complain, memory, records};
use cudarc::driver::sys::CUresult;

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

impl Work {
    /// True if the work copies from or to host memory that is not pinned: the host waits for such a copy.
    pub(crate) fn is_pageable(&self) -> bool {
        let Work::Copy { from, to, len, .. } = self else { return false };
        let is_pageable = |place: &Place| matches!(place, Place::Host(at) if !memory::is_pinned(*at, *len));
        is_pageable(from) || is_pageable(to)
    }

    /// True if copies and sets name memory that is alive.
    pub(crate) fn names_memory(&self) -> bool {
        match self {
            Work::Copy { from, to, strides, count, len } => (0..*count).all(|row| {
                from.at(row * strides[0], *len).is_some() && to.at(row * strides[1], *len).is_some()
            }),
            Work::Set { to, len, .. } => memory::holds(*to, *len),
            Work::Launch(_) | Work::Product(_) | Work::Convolution(_) => true,
        }
    }

    /// Does the work now.
    pub(crate) fn run(&self) -> CUresult {
        match self {
            Work::Copy { from, to, strides, count, len } => {
                let kind = match (from, to) {
                    (Place::Host(_), _) => "h2d",
                    (_, Place::Host(_)) => "d2h",
                    _ => "d2d",
                };
                records::add(&format!("copies.{kind}"), 1);
                records::add(&format!("copies.{kind}.bytes"), count * len);
                for row in 0..*count {
                    let places = (from.at(row * strides[0], *len), to.at(row * strides[1], *len));
                    let (Some(from), Some(to)) = places else {
                        complain("a copy from or to memory that is not alive");
                        return CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
                    };
                    // SAFETY: both ranges are alive; they may overlap.
                    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, *len) };
                }
                CUresult::CUDA_SUCCESS
            }
            Work::Set { to, byte, len } if memory::holds(*to, *len) => {
                records::add("sets", 1);
                // SAFETY: the range is alive.
                unsafe { memory::slice::<u8>(*to, *len) }.fill(*byte);
                CUresult::CUDA_SUCCESS
            }
            Work::Set { .. } => {
                complain("bytes are set in memory that is not alive");
                CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            }
            Work::Launch(launch) => {
                records::add("launches.generated", 1);
                launch.run()
            }
            Work::Product(product) => {
                records::add("launches.cublaslt", 1);
                product.run()
            }
            Work::Convolution(convolution) => {
                records::add("launches.cudnn", 1);
                convolution.run()
            }
        }
    }
}
