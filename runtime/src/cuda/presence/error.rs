//! Errors of opening a device.

use super::Library;
use cudarc::cublaslt::result::CublasError;
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use std::path::PathBuf;

/// Error of opening a device.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CudaError {
    /// A library is absent.
    #[error("{library} was not found: expected {file} {}; {remedy}", searched(.folders))]
    NoLibrary {
        /// The library.
        library: Library,
        /// The name of the file.
        file: &'static str,
        /// Instructions to install the library.
        remedy: String,
        /// The searched folders, besides those of the dynamic loader.
        folders: Vec<PathBuf>,
    },
    /// The dynamic loader rejects a library file.
    #[error("{library} cannot be loaded: `{}`: {reason}", .path.display())]
    Unloadable {
        /// The library.
        library: Library,
        /// The file.
        path: PathBuf,
        /// The message of the dynamic loader.
        reason: String,
    },
    /// A library lacks a function.
    #[error("{library} {} lacks the function {function}: `{}` is damaged, or older than it says; install another version", dotted(.version), .path.display())]
    NoFunction {
        /// The library.
        library: Library,
        /// The file.
        path: PathBuf,
        /// The version that the library reports.
        version: (u32, u32),
        /// The function.
        function: &'static str,
    },
    /// A library is older than the oldest version that is supported.
    #[error("expected {library} {} or newer, found {} in `{}`; update it", dotted(.oldest), dotted(.version), .path.display())]
    OldLibrary {
        /// The library.
        library: Library,
        /// The file.
        path: PathBuf,
        /// The version found.
        version: (u32, u32),
        /// The oldest version that is supported.
        oldest: (u32, u32),
    },
    /// A library is of a newer major version of CUDA than the driver supports.
    #[error(
        "{library} {} is for a driver of CUDA {}, found a driver of CUDA {}; update the driver to {} or newer, or install the libraries of CUDA {}",
        dotted(.version), .cuda, dotted(.driver), super::driver_of(*.cuda), .driver.0
    )]
    OldDriver {
        /// The library.
        library: Library,
        /// The version of the library.
        version: (u32, u32),
        /// The major version of CUDA that the library is for.
        cuda: u32,
        /// The version of CUDA that the driver supports.
        driver: (u32, u32),
    },
    /// Libraries are of different major versions of CUDA.
    #[error(
        "expected libraries of one major version of CUDA, found {first} of CUDA {} and {second} of CUDA {}; install both for the same version",
        .first_version, .second_version
    )]
    MixedVersions {
        /// A library.
        first: Library,
        /// The major version of CUDA that it is for.
        first_version: u32,
        /// A library of another major version.
        second: Library,
        /// The major version of CUDA that it is for.
        second_version: u32,
    },
    /// The driver has no device.
    #[error("the CUDA driver finds no device: {reason}; {remedy}")]
    NoDevices {
        /// The driver's error.
        reason: String,
        /// Instructions for this error.
        remedy: &'static str,
    },
    /// The device index is out of range.
    #[error("expected a device number below {count}, found {device}")]
    NoDevice {
        /// The index.
        device: usize,
        /// The number of devices.
        count: usize,
    },
    /// The compute capability of the device is too low.
    #[error("expected a device of compute capability 7.5 or higher, found {}.{} ({name})", .capability.0, .capability.1)]
    OldDevice {
        /// The name of the device.
        name: String,
        /// The compute capability.
        capability: (i32, i32),
    },
    /// The device is newer than all architectures that NVRTC compiles for.
    #[error("NVRTC {} does not support compute capability {}.{} ({name}); install a newer version", dotted(.version), .capability.0, .capability.1)]
    OldCompiler {
        /// The version of NVRTC.
        version: (u32, u32),
        /// The name of the device.
        name: String,
        /// The compute capability.
        capability: (i32, i32),
    },
    /// Memory of the device or of the host is exhausted.
    #[error("out of memory: a call of {library} failed: {reason}")]
    NoMemory {
        /// The library.
        library: Library,
        /// The library's error.
        reason: String,
    },
    /// The device does not respond, or a call fails for another reason of the system.
    #[error("a call of {library} failed: {reason}")]
    Refused {
        /// The library.
        library: Library,
        /// The library's error.
        reason: String,
    },
    /// A library rejects a call as invalid.
    #[error("{library} rejects a call as invalid: {reason}")]
    Invalid {
        /// The library.
        library: Library,
        /// The library's error.
        reason: String,
    },
    /// The folder of [`CudaOptions::dump`](crate::cuda::CudaOptions::dump) cannot be written.
    #[error("{reason}")]
    NoDump {
        /// The file, and the error of the system.
        reason: String,
    },
}

/// The party that can solve a [`CudaError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CudaErrorKind {
    /// The user installs or updates a library, or chooses another device.
    Unsupported,
    /// Device or host memory is exhausted.
    NoMemory,
    /// The device does not respond, or a file cannot be written.
    Refused,
    /// A bug in this crate.
    Bug,
}

impl CudaError {
    /// The party that can solve the error.
    pub fn kind(&self) -> CudaErrorKind {
        match self {
            CudaError::NoLibrary { .. }
            | CudaError::Unloadable { .. }
            | CudaError::NoFunction { .. }
            | CudaError::OldLibrary { .. }
            | CudaError::OldDriver { .. }
            | CudaError::MixedVersions { .. }
            | CudaError::NoDevices { .. }
            | CudaError::NoDevice { .. }
            | CudaError::OldDevice { .. }
            | CudaError::OldCompiler { .. } => CudaErrorKind::Unsupported,
            CudaError::NoMemory { .. } => CudaErrorKind::NoMemory,
            CudaError::Refused { .. } | CudaError::NoDump { .. } => CudaErrorKind::Refused,
            CudaError::Invalid { .. } => CudaErrorKind::Bug,
        }
    }
}

impl From<DriverError> for CudaError {
    fn from(error: DriverError) -> CudaError {
        type Code = CUresult;
        let reason = text_of(error);
        match error.0 {
            Code::CUDA_ERROR_NO_DEVICE
            | Code::CUDA_ERROR_STUB_LIBRARY
            | Code::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
            | Code::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE
            | Code::CUDA_ERROR_SYSTEM_NOT_READY
            | Code::CUDA_ERROR_OPERATING_SYSTEM
            | Code::CUDA_ERROR_NOT_INITIALIZED => CudaError::NoDevices { reason, remedy: remedy(error.0) },
            Code::CUDA_ERROR_OUT_OF_MEMORY => CudaError::NoMemory { library: Library::Driver, reason },
            Code::CUDA_ERROR_INVALID_VALUE
            | Code::CUDA_ERROR_INVALID_CONTEXT
            | Code::CUDA_ERROR_INVALID_HANDLE => CudaError::Invalid { library: Library::Driver, reason },
            _ => CudaError::Refused { library: Library::Driver, reason },
        }
    }
}

/// Instructions if the driver counts no devices, and for errors without a remedy of their own.
pub(super) const HIDDEN: &str =
    "`CUDA_VISIBLE_DEVICES` may hide devices, and a container has only the devices that it was given";

/// Instructions for an error of the driver's initialization.
fn remedy(code: CUresult) -> &'static str {
    match code {
        CUresult::CUDA_ERROR_STUB_LIBRARY => {
            "the library is a toolkit's stub: remove its folder from `LD_LIBRARY_PATH`, or install NVIDIA's driver"
        }
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
            "the library and the kernel module of the driver have different versions: restart the machine after an update"
        }
        CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            "the device needs a newer driver, not the package for forward compatibility"
        }
        CUresult::CUDA_ERROR_SYSTEM_NOT_READY => {
            "the system starts, or `nvidia-fabricmanager` does not run: start the service, and see `nvidia-smi`"
        }
        CUresult::CUDA_ERROR_OPERATING_SYSTEM | CUresult::CUDA_ERROR_NOT_INITIALIZED => {
            "`nvidia-smi` has to list the device: load the kernel module, or give the device to the container"
        }
        _ => HIDDEN,
    }
}

/// The name and explanation of a driver error.
pub(in crate::cuda) fn text_of(error: DriverError) -> String {
    let known =
        |text: Result<&std::ffi::CStr, DriverError>| text.map(|text| text.to_string_lossy().into_owned());
    match (known(error.error_name()), known(error.error_string())) {
        (Ok(name), Ok(text)) if name == text => name,
        (Ok(name), Ok(text)) => format!("{name}, {text}"),
        _ => format!("{:?}", error.0),
    }
}

impl From<CublasError> for CudaError {
    fn from(error: CublasError) -> CudaError {
        use cudarc::cublaslt::sys::cublasStatus_t as Status;
        let (library, reason) = (Library::Products, format!("{:?}", error.0));
        match error.0 {
            Status::CUBLAS_STATUS_INVALID_VALUE => CudaError::Invalid { library, reason },
            Status::CUBLAS_STATUS_ALLOC_FAILED => CudaError::NoMemory { library, reason },
            _ => CudaError::Refused { library, reason },
        }
    }
}

fn dotted((major, minor): &(u32, u32)) -> String {
    format!("{major}.{minor}")
}

fn searched(folders: &[PathBuf]) -> String {
    let loader = "in a folder of the dynamic loader, such as those of `LD_LIBRARY_PATH`";
    match folders {
        [] => loader.to_owned(),
        [only] => format!("{loader}, or in `{}`", only.display()),
        [first, rest @ ..] => {
            let more = if rest.len() == 1 { "1 more".to_owned() } else { format!("{} more", rest.len()) };
            format!("{loader}, in `{}`, or in {more}", first.display())
        }
    }
}
