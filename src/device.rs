//! Devices: those of this machine, and the choice of the backend that runs models.

use crate::error::Error;
use ampc_runtime::{Backend, Cpu};
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// A device that runs models.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Device {
    /// The processors of this machine.
    #[default]
    Cpu,
    /// A GPU with CUDA, by its number.
    Cuda(u32),
}

impl FromStr for Device {
    type Err = Error;

    /// `cpu`, `cuda` (the first GPU) or `cuda:N`.
    fn from_str(name: &str) -> Result<Device, Error> {
        let number = |text: &str| {
            let digits = text.strip_prefix("cuda:")?;
            // One name for each device.
            digits.parse().ok().filter(|number: &u32| number.to_string() == digits)
        };
        match name {
            "cpu" => Ok(Device::Cpu),
            "cuda" => Ok(Device::Cuda(0)),
            other => number(other)
                .map(Device::Cuda)
                .ok_or_else(|| Error::Usage(format!("device `{name}`: expected cpu, cuda or cuda:N"))),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

/// The settings of a backend.
#[derive(Clone, Default, Debug)]
pub struct BackendOptions {
    /// The threads of kernels on the CPU; 0 stands for the number of processors.
    pub threads: usize,
    /// Folders that are searched for the libraries of a device, after those of the dynamic loader:
    /// [`standard_folders`], or none.
    pub folders: Vec<PathBuf>,
    /// The folder of kernels that earlier processes have compiled for a device; `None` for no such folder. It is created, and
    /// has at most 1 GiB. A folder that cannot be written is no error.
    pub cache: Option<PathBuf>,
    /// True if products and convolutions of fp32 on a GPU may round their operands to TF32.
    pub tf32: bool,
    /// True if a GPU rounds after every operator, also where a library computes several operators at once.
    pub exact_rounding: bool,
    /// A folder for the texts of the kernels that a GPU runs, with `index.tsv`, a list of their launches. It is created.
    pub dump: Option<PathBuf>,
}

impl Device {
    /// The backend of the device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if this build has no backend for the device, a library of the device is absent or too old,
    /// or there is no such device; [`Error::Device`] if the device refuses memory or does not answer.
    pub fn backend(self, options: &BackendOptions) -> Result<Arc<dyn Backend>, Error> {
        let cpu = Arc::new(Cpu::new(options.threads));
        match self {
            Device::Cpu => Ok(cpu),
            Device::Cuda(number) => cuda::open(number, options, cpu),
        }
    }
}

/// A device of this machine.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The device.
    pub device: Device,
    /// The name that its driver says.
    pub name: String,
    /// The compute capability, major and minor, of a GPU with CUDA.
    pub capability: Option<(i32, i32)>,
    /// The memory of the device itself, in bytes.
    pub memory: Option<u64>,
    /// The reason why the device cannot be used; `None` if it can.
    pub problem: Option<String>,
}

/// A library of a device.
#[derive(Clone, Debug)]
pub struct LibraryInfo {
    /// The name in messages.
    pub name: &'static str,
    /// The file that is searched.
    pub file: &'static str,
    /// The version and the file found, or the reason why the library cannot be used.
    pub found: Result<(String, PathBuf), String>,
}

/// The devices of this machine, and the libraries that they need.
#[derive(Clone, Default, Debug)]
pub struct Devices {
    /// The devices, the CPU first.
    pub devices: Vec<DeviceInfo>,
    /// The libraries.
    pub libraries: Vec<LibraryInfo>,
    /// The folders that were searched, besides those of the dynamic loader.
    pub folders: Vec<PathBuf>,
    /// The reason why this machine has no GPU, or why the libraries cannot be used together.
    pub problem: Option<String>,
}

/// Looks for the devices of this machine.
pub fn devices(options: &BackendOptions) -> Devices {
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let threads = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
    let cpu =
        DeviceInfo { device: Device::Cpu, name: threads, capability: None, memory: None, problem: None };
    let mut found = Devices { folders: options.folders.clone(), ..Devices::default() };
    found.devices.push(cpu);
    cuda::find(options, &mut found);
    found
}

/// The folders where toolkits and Python packages put the libraries of CUDA, in the order in which they are searched.
/// `variable` returns an environment variable: this library reads none itself.
pub fn standard_folders(variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    cuda::folders(variable)
}

#[cfg(all(feature = "cuda", target_os = "linux", target_arch = "x86_64"))]
mod cuda {
    use super::{BackendOptions, Device, DeviceInfo, Devices, LibraryInfo};
    use crate::error::Error;
    use ampc_runtime::Backend;
    use ampc_runtime::cuda::{self, Cuda, CudaError, CudaErrorKind, CudaOptions, Presence};
    use std::ffi::OsString;
    use std::path::PathBuf;
    use std::sync::Arc;

    pub(super) fn folders(variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
        cuda::standard_folders(variable)
    }

    pub(super) fn open(
        number: u32,
        options: &BackendOptions,
        host: Arc<dyn Backend>,
    ) -> Result<Arc<dyn Backend>, Error> {
        let device = usize::try_from(number).unwrap_or(usize::MAX);
        let BackendOptions { folders, cache, tf32, exact_rounding, dump, .. } = options.clone();
        let settings =
            CudaOptions { device, folders, cache, tf32, exact_rounding, dump, ..CudaOptions::default() };
        match Cuda::open(&settings, host) {
            Ok(cuda) => Ok(Arc::new(cuda)),
            Err(error) => Err(of_open(number, &error)),
        }
    }

    fn of_open(number: u32, error: &CudaError) -> Error {
        let message = format!("device `{}`: {error}", Device::Cuda(number));
        match error.kind() {
            CudaErrorKind::Unsupported => Error::Unsupported(message),
            CudaErrorKind::Refused | CudaErrorKind::NoMemory => Error::Device(message),
            CudaErrorKind::Bug => Error::Bug(message),
        }
    }

    pub(super) fn find(options: &BackendOptions, to: &mut Devices) {
        let presence = Presence::probe(&options.folders);
        for (library, found) in &presence.libraries {
            let found = match found {
                Ok(found) => Ok((format!("{}.{}", found.version.0, found.version.1), found.path.clone())),
                // The folders are those of all libraries.
                Err(CudaError::NoLibrary { remedy, .. }) => Err(format!("not found; {remedy}")),
                Err(error) => Err(error.to_string()),
            };
            to.libraries.push(LibraryInfo { name: library.name(), file: library.file(), found });
        }
        to.problem = presence.conflict.as_ref().map(ToString::to_string);
        let devices = match &presence.devices {
            Ok(devices) => devices,
            Err(error) => {
                let reason = match error {
                    // The driver is among the libraries, with the full reason.
                    CudaError::NoLibrary { .. } => "without the CUDA driver, no GPU can be used".to_owned(),
                    error => error.to_string(),
                };
                to.problem.get_or_insert(reason);
                return;
            }
        };
        for (number, found) in (0u32..).zip(devices) {
            let at = usize::try_from(number).unwrap_or(usize::MAX);
            to.devices.push(DeviceInfo {
                device: Device::Cuda(number),
                name: found.name.clone(),
                capability: Some(found.capability),
                memory: Some(found.memory),
                problem: presence.problem(at).map(|error| error.to_string()),
            });
        }
    }
}

#[cfg(not(all(feature = "cuda", target_os = "linux", target_arch = "x86_64")))]
mod cuda {
    use super::{BackendOptions, Device, Devices};
    use crate::error::Error;
    use ampc_runtime::{Backend, Cpu};
    use std::ffi::OsString;
    use std::path::PathBuf;
    use std::sync::Arc;

    const REASON: &str = if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        "this build has no CUDA: it was made without the feature `cuda`"
    } else {
        "CUDA is supported on Linux on x86-64 only"
    };

    pub(super) fn folders(_: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
        Vec::new()
    }

    pub(super) fn open(number: u32, _: &BackendOptions, _: Arc<Cpu>) -> Result<Arc<dyn Backend>, Error> {
        Err(Error::Unsupported(format!("device `{}`: {REASON}", Device::Cuda(number))))
    }

    pub(super) fn find(_: &BackendOptions, to: &mut Devices) {
        to.problem = Some(REASON.to_owned());
    }
}
