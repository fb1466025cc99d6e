//! Events of the driver.

use crate::faults::fault;
use crate::records;
use crate::schedule::Schedule;
use crate::streams::{NO_HANDLE, Recorded, device};
use cudarc::driver::sys::{CUevent, CUevent_flags, CUresult, CUstream};
use std::ffi::c_uint;

const OK: CUresult = CUresult::CUDA_SUCCESS;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> CUresult {
    fault!("cuEventCreate");
    let mut device = device();
    let handle = device.handle();
    if flags & CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint != 0 {
        device.untimed.insert(handle);
    }
    device.events.insert(handle, None);
    records::add("events", 1);
    // SAFETY: the caller gives a place.
    unsafe { *event = handle as CUevent };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventDestroy_v2(event: CUevent) -> CUresult {
    fault!("cuEventDestroy_v2");
    let mut device = device();
    if device.events.remove(&(event as usize)).is_none() {
        return NO_HANDLE;
    }
    device.untimed.remove(&(event as usize));
    records::subtract("events");
    OK
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult {
    fault!("cuEventRecord");
    let mut device = device();
    let Some(captured) = device.streams.get(&(stream as usize)).cloned() else { return NO_HANDLE };
    if !device.events.contains_key(&(event as usize)) {
        return NO_HANDLE;
    }
    let recorded = match captured {
        Some(captured) => Recorded::Captured(captured),
        None => Recorded::Enqueued(device.schedule.record(stream as usize)),
    };
    device.events.insert(event as usize, Some(recorded));
    device.schedule.failure.unwrap_or(OK)
}

/// Waits for an event, or asks if it has happened.
fn event_status(event: CUevent, waits: bool) -> CUresult {
    let mut device = device();
    match device.events.get(&(event as usize)).cloned() {
        None => NO_HANDLE,
        Some(None) => OK,
        Some(Some(Recorded::Captured(captured))) => {
            device.invalidate(&captured);
            CUresult::CUDA_ERROR_CAPTURED_EVENT
        }
        Some(Some(Recorded::Enqueued(ticket))) => {
            let has_happened = |_: &Schedule| ticket.get().is_some();
            if waits {
                return device.schedule.run_until(has_happened).unwrap_or(OK);
            }
            // The device goes on while the host asks.
            device.schedule.step();
            match device.schedule.failure {
                Some(failure) => failure,
                None if ticket.get().is_some() => OK,
                None => CUresult::CUDA_ERROR_NOT_READY,
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventSynchronize(event: CUevent) -> CUresult {
    fault!("cuEventSynchronize");
    records::add("synchronisations", 1);
    event_status(event, true)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuEventQuery(event: CUevent) -> CUresult {
    fault!("cuEventQuery");
    event_status(event, false)
}

/// The milliseconds between two events that have happened.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, from: CUevent, to: CUevent) -> CUresult {
    fault!("cuEventElapsedTime");
    let device = device();
    let mut times = Vec::new();
    for event in [from, to] {
        match device.events.get(&(event as usize)) {
            Some(Some(Recorded::Enqueued(ticket))) if !device.untimed.contains(&(event as usize)) => {
                match ticket.get() {
                    Some(time) => times.push(*time),
                    None => return CUresult::CUDA_ERROR_NOT_READY,
                }
            }
            _ => return NO_HANDLE,
        }
    }
    // SAFETY: the caller gives a place.
    unsafe { *milliseconds = times[1].saturating_duration_since(times[0]).as_secs_f32() * 1e3 };
    OK
}
