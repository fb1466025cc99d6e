//! Detection of the libraries of CUDA and the devices of its driver: locations, versions, and reasons why they are
//! unusable.
//!
//! ampc links no library of CUDA. A library is searched under the names that the crate `cudarc` tries: first where
//! the dynamic loader finds it, then in the caller's folders. A library from such a folder is loaded by its full
//! path, and the loader then finds it by its name. `cudarc` panics at the first call into a missing library or
//! function, so this module checks both itself, without `cudarc`.
//!
//! `library.rs` has the libraries and how each is loaded, `loader.rs` calls of the dynamic loader, and `devices.rs`
//! the devices of the driver. `folders.rs` lists the folders of toolkits and Python packages, and `functions.rs` the
//! functions that the backend calls.

mod devices;
mod error;
mod folders;
mod functions;
mod library;
mod loader;

pub use devices::FoundDevice;
pub(super) use error::text_of;
pub use error::{CudaError, CudaErrorKind};
pub use folders::standard_folders;
pub use library::Library;
pub(super) use loader::driver_function;

use devices::{architecture, architectures, devices, usable};
use library::{NEWEST, of_major};
use std::path::PathBuf;

/// A library that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundLibrary {
    /// The major and minor version. The version of the driver is the newest version of CUDA that it supports.
    pub version: (u32, u32),
    /// The major version of CUDA that the library is for.
    pub cuda: u32,
    /// The file.
    pub path: PathBuf,
}

/// The state of the libraries and devices of a machine.
#[derive(Clone, Debug)]
pub struct Presence {
    /// Each library, or the reason why it is unusable.
    pub libraries: Vec<(Library, Result<FoundLibrary, CudaError>)>,
    /// The devices by index, or the reason why there are none.
    pub devices: Result<Vec<FoundDevice>, CudaError>,
    /// The searched folders, besides those of the dynamic loader.
    pub folders: Vec<PathBuf>,
    /// The reason why the libraries cannot be used together.
    pub conflict: Option<CudaError>,
    /// The architectures that NVRTC compiles for, such as 90 for compute capability 9.0. Empty without NVRTC, or if
    /// NVRTC does not list them.
    pub architectures: Vec<i32>,
}

impl Presence {
    /// Probes all libraries, and the devices of the driver.
    pub fn probe(folders: &[PathBuf]) -> Presence {
        Presence::of(&Library::ALL, folders)
    }

    /// Probes the wanted libraries, the driver first, and the devices of the driver.
    fn of(wanted: &[Library], folders: &[PathBuf]) -> Presence {
        let mut driver = None;
        let mut major = None;
        let mut libraries: Vec<(Library, Result<FoundLibrary, CudaError>)> = Vec::new();
        for &library in wanted {
            let mut found = library.open(folders, driver, major);
            match (library, &found) {
                (Library::Driver, Ok(of_driver)) => {
                    driver = Some(of_driver.version);
                    major = common_major(folders, of_driver.version.0);
                }
                (Library::Compiler, Ok(of_compiler)) => major = Some(of_compiler.cuda),
                // Only models with convolutions or attention need cuDNN, so a conflict with cuDNN does not affect
                // other libraries.
                (Library::Convolutions, Ok(of_dnn)) => {
                    let before = libraries.iter().find(|(library, _)| *library == Library::Compiler);
                    if let Some((_, Ok(of_compiler))) = before
                        && let Some(conflict) = conflict((Library::Compiler, of_compiler), (library, of_dnn))
                    {
                        found = Err(conflict);
                    }
                }
                _ => {}
            }
            libraries.push((library, found));
        }
        let of = |wanted: Library| {
            let (library, found) = libraries.iter().find(|(library, _)| *library == wanted)?;
            Some((*library, found.as_ref().ok()?))
        };
        let conflict = match (of(Library::Compiler), of(Library::Products)) {
            (Some(first), Some(second)) => conflict(first, second),
            _ => None,
        };
        let devices = match &libraries[0].1 {
            Ok(_) => devices(),
            Err(error) => Err(error.clone()),
        };
        let architectures = of(Library::Compiler).map(|_| architectures()).unwrap_or_default();
        Presence { libraries, devices, folders: folders.to_vec(), conflict, architectures }
    }

    /// The reason why a device cannot be opened; `None` if it can. A device can be opened without cuDNN.
    pub fn problem(&self, number: usize) -> Option<CudaError> {
        let error_of = |is_wanted: &dyn Fn(Library) -> bool| {
            let mut wanted = self.libraries.iter().filter(|(library, _)| is_wanted(*library));
            wanted.find_map(|(_, found)| found.as_ref().err())
        };
        // If there is no device, advice to install the other libraries would not help.
        let of_driver = error_of(&|library| library == Library::Driver);
        let of_library =
            error_of(&|library| library != Library::Convolutions).or(self.conflict.as_ref()).cloned();
        let of_devices = match &self.devices {
            Err(error) => Some(error.clone()),
            Ok(devices) => usable(devices, number).err(),
        };
        of_driver.cloned().or(of_devices).or(of_library).or_else(|| self.old_compiler(number))
    }

    /// The error of a device that NVRTC does not compile for.
    fn old_compiler(&self, number: usize) -> Option<CudaError> {
        let FoundDevice { name, capability, .. } = self.devices.as_ref().ok()?.get(number)?;
        let compiler = self.libraries.iter().find(|(library, _)| *library == Library::Compiler)?;
        let version = compiler.1.as_ref().ok()?.version;
        match architecture(&self.architectures, *capability) {
            None if !self.architectures.is_empty() => {
                Some(CudaError::OldCompiler { version, name: name.clone(), capability: *capability })
            }
            _ => None,
        }
    }
}

/// Loads all libraries but cuDNN, and checks that they can be used together with device `number`. Returns the device,
/// the version of NVRTC, and the architecture to compile for.
///
/// # Errors
/// The first reason why the device cannot be opened.
pub(super) fn load(folders: &[PathBuf], number: usize) -> Result<(FoundDevice, (u32, u32), i32), CudaError> {
    let presence = Presence::of(&[Library::Driver, Library::Compiler, Library::Products], folders);
    match presence.problem(number) {
        Some(error) => Err(error),
        None => {
            let mut libraries = presence.libraries.into_iter();
            let version = libraries.find_map(|(library, found)| match (library, found) {
                (Library::Compiler, Ok(found)) => Some(found.version),
                _ => None,
            });
            let device = presence.devices?.swap_remove(number);
            let (major, minor) = device.capability;
            let of = architecture(&presence.architectures, device.capability).unwrap_or(major * 10 + minor);
            Ok((device, version.unwrap_or_default(), of))
        }
    }
}

/// Loads cuDNN. `nvrtc` is the version of NVRTC, if it is used: both must be for the same major version of CUDA.
///
/// # Errors
/// If cuDNN is absent, too old, damaged, or for another major version of CUDA.
pub(super) fn load_dnn(folders: &[PathBuf], nvrtc: Option<(u32, u32)>) -> Result<(), CudaError> {
    let library = Library::Convolutions;
    let major = nvrtc.map(|(major, _)| major);
    let found = library.open(folders, None, major)?;
    match major {
        Some(first_version) if first_version != found.cuda => Err(CudaError::MixedVersions {
            first: Library::Compiler,
            first_version,
            second: library,
            second_version: found.cuda,
        }),
        _ => Ok(()),
    }
}

/// The name of the driver branch that introduced a major version of CUDA.
fn driver_of(major: u32) -> &'static str {
    match major {
        13 => "R580",
        12 => "R525",
        _ => "the branch of that version",
    }
}

/// The error of two libraries of different major versions of CUDA.
fn conflict(
    (first, of_first): (Library, &FoundLibrary),
    (second, of_second): (Library, &FoundLibrary),
) -> Option<CudaError> {
    let (first_version, second_version) = (of_first.cuda, of_second.cuda);
    (first_version != second_version).then_some(CudaError::MixedVersions {
        first,
        first_version,
        second,
        second_version,
    })
}

/// The newest major version that the driver supports and for which the folders have NVRTC and cuBLASLt.
fn common_major(folders: &[PathBuf], most: u32) -> Option<u32> {
    let has = |file: &str| folders.iter().any(|folder| folder.join(file).exists());
    let libraries = [Library::Compiler, Library::Products];
    (12..=NEWEST.min(most)).rev().find(|&major| {
        libraries
            .iter()
            .all(|library| library.files().iter().any(|file| of_major(file) == Some(major) && has(file)))
    })
}
