//! Blocks of device memory, and pinned blocks of host memory.

use super::presence::text_of;
use crate::backend::{DeviceError, DeviceMemory};
use cudarc::driver::{CudaContext, DriverError, result, sys};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The error of a failed driver call. After some failures every later call fails too.
pub(super) fn failed(error: DriverError) -> DeviceError {
    type Code = sys::CUresult;
    match error.0 {
        Code::CUDA_ERROR_OUT_OF_MEMORY => DeviceError::OutOfMemory(text_of(error)),
        // The backend computes all addresses and arguments, so these failures are bugs of the backend.
        Code::CUDA_ERROR_HARDWARE_STACK_ERROR
        | Code::CUDA_ERROR_ILLEGAL_ADDRESS
        | Code::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | Code::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | Code::CUDA_ERROR_INVALID_CONTEXT
        | Code::CUDA_ERROR_INVALID_HANDLE
        | Code::CUDA_ERROR_INVALID_PC
        | Code::CUDA_ERROR_INVALID_VALUE
        | Code::CUDA_ERROR_INVALID_IMAGE
        | Code::CUDA_ERROR_INVALID_PTX
        | Code::CUDA_ERROR_LAUNCH_FAILED
        | Code::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
        | Code::CUDA_ERROR_NO_BINARY_FOR_GPU
        | Code::CUDA_ERROR_NOT_FOUND
        | Code::CUDA_ERROR_MISALIGNED_ADDRESS => DeviceError::Invalid(text_of(error)),
        Code::CUDA_ERROR_ASSERT
        | Code::CUDA_ERROR_CONTEXT_IS_DESTROYED
        | Code::CUDA_ERROR_DEINITIALIZED
        | Code::CUDA_ERROR_DEVICE_UNAVAILABLE
        | Code::CUDA_ERROR_ECC_UNCORRECTABLE
        | Code::CUDA_ERROR_LAUNCH_TIMEOUT
        | Code::CUDA_ERROR_UNKNOWN => DeviceError::Lost(text_of(error)),
        _ => DeviceError::Failed(text_of(error)),
    }
}

/// A block of device memory. The driver waits for the device before it frees the memory.
pub(super) struct Block {
    context: Arc<CudaContext>,
    address: sys::CUdeviceptr,
    len: usize,
}

impl Block {
    #[expect(unsafe_code, reason = "a call of the driver")]
    pub(super) fn new(context: &Arc<CudaContext>, len: usize) -> Result<Block, DeviceError> {
        context.bind_to_thread().map_err(failed)?;
        let no_memory = |error: DriverError| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => DeviceError::NoMemory { bytes: len as u64 },
            _ => failed(error),
        };
        // The driver rejects an allocation of 0 bytes.
        let address = match len {
            0 => 0,
            // SAFETY: the memory is freed once, with the block.
            _ => unsafe { result::malloc_sync(len) }.map_err(no_memory)?,
        };
        Ok(Block { context: context.clone(), address, len })
    }

    pub(super) fn address(&self) -> sys::CUdeviceptr {
        self.address
    }
}

impl DeviceMemory for Block {
    fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Block {
    #[expect(unsafe_code, reason = "a call of the driver")]
    fn drop(&mut self) {
        if self.len > 0 && bind_to_drop(&self.context) {
            // SAFETY: the block owns the memory. Nothing can be done about a failure.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("len", &self.len).finish_non_exhaustive()
    }
}

/// Makes a context current to free memory. A call reports an error that an earlier drop has left in the context instead of
/// its own, and clears the error: the second call is about this drop.
fn bind_to_drop(context: &CudaContext) -> bool {
    context.bind_to_thread().is_ok() || context.bind_to_thread().is_ok()
}

/// Pinned host memory. The host continues while the device copies from it.
pub(super) struct Pinned {
    context: Arc<CudaContext>,
    address: *mut u8,
    len: usize,
}

// SAFETY: the address is that of plain bytes, which the value owns.
#[expect(unsafe_code, reason = "the address is a pointer")]
unsafe impl Send for Pinned {}

impl Pinned {
    #[expect(unsafe_code, reason = "a call of the driver")]
    pub(super) fn new(context: &Arc<CudaContext>, len: usize) -> Result<Pinned, DeviceError> {
        context.bind_to_thread().map_err(failed)?;
        let no_memory = |error: DriverError| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                DeviceError::OutOfMemory(format!("cannot allocate {len} bytes of pinned host memory"))
            }
            _ => failed(error),
        };
        // SAFETY: the memory is freed once, with the value. Flags of 0 let the host read it through its caches.
        let address = unsafe { result::malloc_host(len, 0) }.map_err(no_memory)?.cast::<u8>();
        // SAFETY: the driver has allocated `len` bytes.
        unsafe { address.write_bytes(0, len) };
        Ok(Pinned { context: context.clone(), address, len })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[expect(unsafe_code, reason = "the memory is the driver's")]
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `len` bytes were allocated and initialized, and the value owns them.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.len) }
    }
}

impl Drop for Pinned {
    #[expect(unsafe_code, reason = "a call of the driver")]
    fn drop(&mut self) {
        if bind_to_drop(&self.context) {
            // SAFETY: the value owns the memory. Nothing can be done about a failure.
            let _ = unsafe { result::free_host(self.address.cast()) };
        }
    }
}

/// The maximum size of idle pinned memory that is kept for later copies.
const MOST_KEPT: usize = 256 << 20;

/// A pool of pinned memory for copies to the host.
#[derive(Default)]
pub(super) struct Pool(Mutex<Vec<Pinned>>);

impl Pool {
    /// Takes a block of at least this many bytes.
    pub(super) fn take(&self, context: &Arc<CudaContext>, len: usize) -> Result<Pinned, DeviceError> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = (0..free.len()).filter(|&at| free[at].len() >= len);
        match fits.min_by_key(|&at| free[at].len()) {
            Some(at) => Ok(free.swap_remove(at)),
            None => Pinned::new(context, len.next_power_of_two()),
        }
    }

    pub(super) fn give_back(&self, memory: Pinned) {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if free.iter().map(Pinned::len).sum::<usize>() + memory.len() <= MOST_KEPT {
            free.push(memory);
        }
    }
}
