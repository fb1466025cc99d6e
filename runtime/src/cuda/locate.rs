//! The libraries of CUDA, which are loaded when a device is opened.
//!
//! The crate `cudarc` panics at the first call into a library that is absent. So each library is looked for here, before
//! any call. A library of a preferred folder is loaded by its full path first: the loader then finds it by its name.

use cudarc::cublaslt::result::CublasError;
use cudarc::driver::DriverError;
use std::path::{Path, PathBuf};

/// Error of opening a device.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// A library is absent.
    #[error(
        "{library} was not found{}; install {package}, or name the folder that has the library",
        list(.folders)
    )]
    NoLibrary {
        /// The file.
        library: &'static str,
        /// The package that has the library.
        package: &'static str,
        /// The folders that were searched before those of the system.
        folders: Vec<PathBuf>,
    },
    /// A library of a preferred folder cannot be loaded.
    #[error("{} cannot be loaded: {error}", .path.display())]
    Unloadable {
        /// The file.
        path: PathBuf,
        /// The loader's message.
        error: String,
    },
    /// The driver is too old.
    #[error("expected a driver for CUDA 13.0 or newer, found one for CUDA {}.{}; update the driver", .found / 1000, .found % 1000 / 10)]
    OldDriver {
        /// The version of CUDA that the driver supports, in NVIDIA's numbering.
        found: i32,
    },
    /// There is no device of this number.
    #[error("no CUDA device {device}")]
    NoDevice {
        /// The number.
        device: usize,
    },
    /// The device has no bf16.
    #[error("expected a device of compute capability 8.0 or higher, found {name} of {}.{}", .capability.0, .capability.1)]
    OldDevice {
        /// The name of the device.
        name: String,
        /// Its compute capability.
        capability: (i32, i32),
    },
    /// A call of the driver failed.
    #[error("the CUDA driver failed: {0}")]
    Driver(String),
    /// A call of cuBLASLt failed.
    #[error("cuBLASLt failed: {0}")]
    Products(String),
}

impl From<DriverError> for CudaError {
    fn from(error: DriverError) -> CudaError {
        CudaError::Driver(error.to_string())
    }
}

impl From<CublasError> for CudaError {
    fn from(error: CublasError) -> CudaError {
        CudaError::Products(error.to_string())
    }
}

fn list(folders: &[PathBuf]) -> String {
    let names: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    if names.is_empty() { String::new() } else { format!(" in {} or on the system", names.join(", ")) }
}

/// A library: its file, the package that has it, and a function that tells if it can be loaded by its name.
struct Library {
    file: &'static str,
    package: &'static str,
    is_present: unsafe fn() -> bool,
}

/// The libraries, each behind the libraries that it loads itself.
const LIBRARIES: &[Library] = &[
    Library {
        file: "libcuda.so.1",
        package: "NVIDIA's driver",
        is_present: cudarc::driver::sys::is_culib_present,
    },
    Library {
        file: "libnvrtc.so.13",
        package: "nvidia-cuda-nvrtc 13",
        is_present: cudarc::nvrtc::sys::is_culib_present,
    },
    Library {
        file: "libcublasLt.so.13",
        package: "nvidia-cublas 13",
        is_present: cudarc::cublaslt::sys::is_culib_present,
    },
];

/// Files that other libraries load by name, which must be loaded before them.
const COMPANIONS: &[&str] = &["libnvrtc-builtins.so.13.0"];

/// The oldest driver, in NVIDIA's numbering of CUDA's versions.
const OLDEST_DRIVER: i32 = 13000;

/// Loads the libraries, those of `folders` first.
///
/// # Errors
/// If a library is absent or cannot be loaded, or the driver is too old.
#[expect(unsafe_code, reason = "a library runs code when it is loaded")]
pub(super) fn load(folders: &[PathBuf]) -> Result<(), CudaError> {
    for file in COMPANIONS.iter().copied().chain(LIBRARIES.iter().map(|library| library.file)) {
        if let Some(path) = folders.iter().map(|folder| folder.join(file)).find(|path| path.exists()) {
            preload(&path)?;
        }
    }
    for library in LIBRARIES {
        // SAFETY: the function loads NVIDIA's library and calls nothing in it.
        if !unsafe { (library.is_present)() } {
            let Library { file, package, .. } = *library;
            return Err(CudaError::NoLibrary { library: file, package, folders: folders.to_vec() });
        }
    }
    let mut found = 0;
    // SAFETY: the pointer is that of a number that lives until the call returns.
    unsafe { cudarc::driver::sys::cuDriverGetVersion(&raw mut found) }.result()?;
    if found < OLDEST_DRIVER { Err(CudaError::OldDriver { found }) } else { Ok(()) }
}

/// cuDNN, which is loaded for the first convolution.
const DNN: Library = Library {
    file: "libcudnn.so.9",
    package: "nvidia-cudnn-cu13",
    is_present: cudarc::cudnn::sys::is_culib_present,
};

/// Loads cuDNN, that of `folders` first.
///
/// # Errors
/// If it is absent or cannot be loaded.
#[expect(unsafe_code, reason = "a library runs code when it is loaded")]
pub(super) fn load_dnn(folders: &[PathBuf]) -> Result<(), CudaError> {
    let Library { file, package, is_present } = DNN;
    if let Some(path) = folders.iter().map(|folder| folder.join(file)).find(|path| path.exists()) {
        preload(&path)?;
    }
    // SAFETY: the function loads NVIDIA's library and calls nothing in it.
    if unsafe { is_present() } {
        return Ok(());
    }
    Err(CudaError::NoLibrary { library: file, package, folders: folders.to_vec() })
}

/// Loads a library for the rest of the process.
#[expect(unsafe_code, reason = "a library runs code when it is loaded")]
fn preload(path: &Path) -> Result<(), CudaError> {
    // SAFETY: the caller names the folders of NVIDIA's libraries, whose initialisers may run at any time.
    let library = unsafe { libloading::Library::new(path) };
    let library =
        library.map_err(|error| CudaError::Unloadable { path: path.to_owned(), error: error.to_string() })?;
    std::mem::forget(library);
    Ok(())
}
