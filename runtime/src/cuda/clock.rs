//! Times between events of a stream.

use super::memory::failed;
use super::presence;
use crate::backend::DeviceError;
use cudarc::driver::{CudaEvent, CudaStream, sys};
use std::time::Duration;

/// The type of the driver's `cuEventElapsedTime`. Every driver has it; `cudarc` binds only its successor of CUDA
/// 12.8.
type ElapsedTime = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;

/// The clock of a device.
pub(super) struct Clock(ElapsedTime);

impl Clock {
    /// The clock of the driver, which must be loaded.
    #[expect(unsafe_code, reason = "a function that was looked up by name")]
    pub(super) fn find() -> Option<Clock> {
        let function = presence::driver_function("cuEventElapsedTime")?;
        // SAFETY: the function of this name has this type in every version of the driver.
        Some(Clock(unsafe { std::mem::transmute::<*mut std::ffi::c_void, ElapsedTime>(function) }))
    }

    /// Records an event with a timestamp on a stream.
    pub(super) fn mark(&self, stream: &CudaStream) -> Result<CudaEvent, DeviceError> {
        stream.record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT)).map_err(failed)
    }

    /// The time between two recorded events of a stream, once the device has passed both.
    #[expect(unsafe_code, reason = "a call of the driver")]
    pub(super) fn elapsed(&self, from: &CudaEvent, to: &CudaEvent) -> Result<Duration, DeviceError> {
        to.synchronize().map_err(failed)?;
        let mut milliseconds = 0.0;
        // SAFETY: both events are alive and recorded on one stream.
        let found = unsafe { (self.0)(&raw mut milliseconds, from.cu_event(), to.cu_event()) };
        found.result().map_err(failed)?;
        Ok(Duration::try_from_secs_f32(milliseconds / 1e3).unwrap_or_default())
    }
}
