//! Settings of the simulated device by environment variables: versions, a call that fails, and a list of the calls. Tests in
//! the same process call `sim_fail` with the text of `AMPC_SIM_FAIL`.
//!
//! | variable | effect |
//! |---|---|
//! | `AMPC_SIM_FAIL=cuMemAlloc_v2:3:2` | the third call of the function returns error 2; a few errors last, as those of a lost device do |
//! | `AMPC_SIM_TEXTS=DIR` | the text of every kernel is written to the folder |
//! | `AMPC_SIM_CALLS=FILE` | the name of every function that is called is appended to the file |
//! | `AMPC_SIM_DRIVER`, `AMPC_SIM_NVRTC`, `AMPC_SIM_CUBLASLT` `=12.4` | the version that the library says, 13.0 by default; `AMPC_SIM_CUDNN_CUDA`, the version of CUDA that cuDNN is for |
//! | `AMPC_SIM_CAPABILITY=7.0` | the compute capability, 8.0 by default |
//! | `AMPC_SIM_SEED=1` | orders works, blocks, warps and lanes at random; 0 for the order of the calls |
//! | `AMPC_SIM_RACES=1` | kernels are compiled so that a race fails the launch |
//! | `AMPC_SIM_POISON=60` | the byte of fresh memory, 255 by default |
//! | `AMPC_SIM_IGNORE_WAIT=3` | the third call of `cuStreamWaitEvent` orders nothing |
//! | `AMPC_SIM_RECORDS=FILE` | counters of calls and work are written to the file when the process ends (`records.rs`) |
//! | `AMPC_SIM_DEVICES=0` | the number of devices, 1 by default |

use cudarc::cublaslt::sys::cublasStatus_t;
use cudarc::cudnn::sys::cudnnStatus_t;
use cudarc::driver::sys::CUresult;
use cudarc::nvrtc::sys::nvrtcResult;
use std::ffi::{CStr, c_char};
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

#[expect(clippy::disallowed_methods, reason = "a library for tests, which environment variables set up")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Two numbers with a point between them.
fn pair(name: &str, otherwise: (i32, i32)) -> (i32, i32) {
    let text = variable(name).unwrap_or_default();
    let numbers = text.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    numbers.unwrap_or(otherwise)
}

/// The version that a library says.
pub(crate) fn version(name: &str) -> (i32, i32) {
    pair(name, (13, 0))
}

/// The compute capability of the device.
pub(crate) fn capability() -> (i32, i32) {
    pair("AMPC_SIM_CAPABILITY", (8, 0))
}

/// The number of devices.
pub(crate) fn devices() -> i32 {
    variable("AMPC_SIM_DEVICES").and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// A call that fails.
struct Fault {
    function: String,
    /// The calls of the function that succeed before.
    left: u64,
    code: u32,
    has_failed: bool,
}

/// The fault of a text as `AMPC_SIM_FAIL` has it.
fn parsed(text: &str) -> Option<Fault> {
    let [function, number, code] = text.split(':').collect::<Vec<_>>().try_into().ok()?;
    let left = number.parse::<u64>().ok()?.checked_sub(1)?;
    Some(Fault { function: function.to_owned(), left, code: code.parse().ok()?, has_failed: false })
}

/// The fault of the environment, or the one that a test has set since.
fn requested() -> MutexGuard<'static, Option<Fault>> {
    static FAULT: OnceLock<Mutex<Option<Fault>>> = OnceLock::new();
    let of_environment = || Mutex::new(variable("AMPC_SIM_FAIL").as_deref().and_then(parsed));
    FAULT.get_or_init(of_environment).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets a later call fail, in the form of `AMPC_SIM_FAIL`; another text than such a fault lets no call fail.
///
/// # Safety
/// The text ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn sim_fail(fault: *const c_char) {
    // SAFETY: as the caller says.
    *requested() = parsed(&unsafe { CStr::from_ptr(fault) }.to_string_lossy());
}

/// Errors of the driver after which every later call fails.
const LASTING: [u32; 8] = [4, 214, 700, 702, 714, 716, 718, 719];

/// The code that a call of a function fails with.
pub(crate) fn code(function: &str) -> Option<u32> {
    crate::records::add(&format!("call.{function}"), 1);
    static CALLS: OnceLock<Option<Mutex<std::fs::File>>> = OnceLock::new();
    let open = || {
        let path = std::env::var_os("AMPC_SIM_CALLS")?;
        OpenOptions::new().create(true).append(true).open(path).ok().map(Mutex::new)
    };
    if let Some(file) = CALLS.get_or_init(open) {
        let _ = writeln!(file.lock().unwrap_or_else(PoisonError::into_inner), "{function}");
    }
    let mut requested = requested();
    let fault = requested.as_mut()?;
    let is_of_driver =
        |name: &str| name.starts_with("cu") && !name.starts_with("cublas") && !name.starts_with("cudnn");
    let lasts = LASTING.contains(&fault.code) && is_of_driver(&fault.function) && is_of_driver(function);
    if lasts && fault.has_failed {
        return Some(fault.code);
    }
    if fault.function != function {
        return None;
    }
    if fault.left == 0 && !fault.has_failed {
        fault.has_failed = true;
        return Some(fault.code);
    }
    fault.left = fault.left.saturating_sub(1);
    None
}

/// A type of errors, made of the codes that a test may ask for.
pub(crate) trait Status: Sized {
    fn of(code: u32) -> Self;
}

macro_rules! status {
    ($type:ty, $other:ident, $($name:ident)*) => {
        impl Status for $type {
            fn of(code: u32) -> $type {
                $(if code == <$type>::$name as u32 { return <$type>::$name; })*
                <$type>::$other
            }
        }
    };
}

status!(
    CUresult,
    CUDA_ERROR_UNKNOWN,
    CUDA_ERROR_INVALID_VALUE CUDA_ERROR_OUT_OF_MEMORY CUDA_ERROR_NOT_INITIALIZED CUDA_ERROR_DEINITIALIZED
    CUDA_ERROR_STUB_LIBRARY CUDA_ERROR_DEVICE_UNAVAILABLE CUDA_ERROR_NO_DEVICE CUDA_ERROR_INVALID_DEVICE
    CUDA_ERROR_INVALID_IMAGE CUDA_ERROR_INVALID_CONTEXT CUDA_ERROR_NO_BINARY_FOR_GPU CUDA_ERROR_ECC_UNCORRECTABLE
    CUDA_ERROR_INVALID_HANDLE CUDA_ERROR_ILLEGAL_ADDRESS CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    CUDA_ERROR_LAUNCH_TIMEOUT CUDA_ERROR_MISALIGNED_ADDRESS CUDA_ERROR_LAUNCH_FAILED CUDA_ERROR_SYSTEM_NOT_READY
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
);
status!(
    nvrtcResult,
    NVRTC_ERROR_INTERNAL_ERROR,
    NVRTC_ERROR_OUT_OF_MEMORY NVRTC_ERROR_INVALID_INPUT NVRTC_ERROR_INVALID_OPTION NVRTC_ERROR_COMPILATION
    NVRTC_ERROR_BUILTIN_OPERATION_FAILURE
);
status!(
    cudnnStatus_t,
    CUDNN_STATUS_INTERNAL_ERROR,
    CUDNN_STATUS_NOT_INITIALIZED CUDNN_STATUS_BAD_PARAM CUDNN_STATUS_NOT_SUPPORTED CUDNN_STATUS_EXECUTION_FAILED
    CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
);
status!(
    cublasStatus_t,
    CUBLAS_STATUS_INTERNAL_ERROR,
    CUBLAS_STATUS_NOT_INITIALIZED CUBLAS_STATUS_ALLOC_FAILED CUBLAS_STATUS_INVALID_VALUE
    CUBLAS_STATUS_ARCH_MISMATCH CUBLAS_STATUS_EXECUTION_FAILED CUBLAS_STATUS_NOT_SUPPORTED
);

/// Ends a function with the error that it was requested to fail with.
macro_rules! fault {
    ($function:literal) => {
        if let Some(code) = crate::faults::code($function) {
            return crate::faults::Status::of(code);
        }
    };
}
pub(crate) use fault;
