//! The libraries of CUDA and the devices of its driver: where they are, their versions, and why they cannot be used.
//!
//! Nothing of CUDA is linked. A library is searched by the names that the crate `cudarc` tries: first where the dynamic
//! loader finds it, then in the folders that the caller gives. A library of such a folder is loaded by its full path, and
//! the loader then finds it by its name. `cudarc` panics at the first call into a library or function that is absent, so
//! both are checked here, by calls that `cudarc` has no part in.
//!
//! `folders.rs` lists the folders of toolkits and Python packages, `functions.rs` the functions that the backend calls.

mod error;
mod folders;
mod functions;

pub(super) use error::text_of;
pub use error::{CudaError, CudaErrorKind};
pub use folders::standard_folders;

use libloading::os::unix::{Library as Handle, RTLD_LAZY, RTLD_LOCAL};
use std::ffi::{CStr, OsStr, c_int, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A library of CUDA.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Library {
    /// The driver of the device.
    Driver,
    /// NVRTC, which compiles kernels.
    Compiler,
    /// cuBLASLt, which computes matrix products.
    Products,
    /// cuDNN, which computes convolutions. Only models with convolutions need it.
    Convolutions,
}

/// A library that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundLibrary {
    /// The version, major and minor. The version of the driver is the newest version of CUDA that it supports.
    pub version: (u32, u32),
    /// The major version of CUDA that the library is for.
    pub cuda: u32,
    /// The file.
    pub path: PathBuf,
}

/// A device of the driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundDevice {
    /// The name, as the driver says it.
    pub name: String,
    /// The compute capability, major and minor.
    pub capability: (i32, i32),
    /// The memory of the device, in bytes.
    pub memory: u64,
}

/// The state of the libraries and devices of a machine.
#[derive(Clone, Debug)]
pub struct Presence {
    /// Each library, or the reason why it cannot be used.
    pub libraries: Vec<(Library, Result<FoundLibrary, CudaError>)>,
    /// The devices by their number, or the reason why there are none.
    pub devices: Result<Vec<FoundDevice>, CudaError>,
    /// The folders that were searched, besides those of the dynamic loader.
    pub folders: Vec<PathBuf>,
    /// The reason why the libraries cannot be used together.
    pub conflict: Option<CudaError>,
    /// The architectures that NVRTC compiles for, as 90 for compute capability 9.0; none without NVRTC, or if it does not list
    /// them.
    pub architectures: Vec<i32>,
}

impl Presence {
    /// Looks for all libraries, and for the devices of the driver.
    pub fn probe(folders: &[PathBuf]) -> Presence {
        Presence::of(&Library::ALL, folders)
    }

    /// Looks for libraries, the driver first, and for its devices.
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
                // Other models than those with convolutions do not need it: a conflict is its own.
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

    /// The reason why device `number` cannot be opened; `None` if it can. It can be opened without cuDNN.
    pub fn problem(&self, number: usize) -> Option<CudaError> {
        let error_of = |is_wanted: &dyn Fn(Library) -> bool| {
            let mut wanted = self.libraries.iter().filter(|(library, _)| is_wanted(*library));
            wanted.find_map(|(_, found)| found.as_ref().err())
        };
        // Nobody installs the other libraries for a device that is not there.
        let of_driver = error_of(&|library| library == Library::Driver);
        let of_library =
            error_of(&|library| library != Library::Convolutions).or(self.conflict.as_ref()).cloned();
        let of_devices = match &self.devices {
            Err(error) => Some(error.clone()),
            Ok(devices) => usable(devices, number).err(),
        };
        of_driver.cloned().or(of_devices).or(of_library).or_else(|| self.old_compiler(number))
    }

    /// The error of a device for which NVRTC does not compile.
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

/// The newest architecture of which a device of this compute capability runs the code: it has the same major version.
fn architecture(architectures: &[i32], (major, minor): (i32, i32)) -> Option<i32> {
    architectures.iter().copied().filter(|of| of / 10 == major && of % 10 <= minor).max()
}

/// Loads all libraries but cuDNN, and checks that they can be used together with device `number`. Returns the device, the version
/// of NVRTC, and the architecture to compile for.
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

/// Loads cuDNN. `nvrtc` is the version of NVRTC, if that is used too: both have to be for one major version of CUDA.
///
/// # Errors
/// If it is absent, too old, damaged, or of another major version of CUDA.
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

/// The least compute capability: the lowest that NVRTC 13 compiles for.
const LEAST_CAPABILITY: (i32, i32) = (7, 5);

fn usable(devices: &[FoundDevice], number: usize) -> Result<(), CudaError> {
    match devices.get(number) {
        None => Err(CudaError::NoDevice { device: number, count: devices.len() }),
        Some(FoundDevice { name, capability, .. }) if *capability < LEAST_CAPABILITY => {
            Err(CudaError::OldDevice { name: name.clone(), capability: *capability })
        }
        Some(_) => Ok(()),
    }
}

/// The newest major version of CUDA that is supported.
const NEWEST: u32 = 13;

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

/// The newest major version, of those that the driver supports, for which the folders have NVRTC and cuBLASLt.
fn common_major(folders: &[PathBuf], most: u32) -> Option<u32> {
    let has = |file: &str| folders.iter().any(|folder| folder.join(file).exists());
    let libraries = [Library::Compiler, Library::Products];
    (12..=NEWEST.min(most)).rev().find(|&major| {
        libraries
            .iter()
            .all(|library| library.files().iter().any(|file| of_major(file) == Some(major) && has(file)))
    })
}

/// The major version of CUDA that is the ending of a file.
fn of_major(file: &str) -> Option<u32> {
    file.rsplit('.').next().and_then(|number| number.parse().ok())
}

/// A function that writes a version and returns a status, 0 for success.
type WriteVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
/// A function that writes a version in two numbers.
type WriteVersions = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
/// A function that returns a version.
type ReturnVersion = unsafe extern "C" fn() -> usize;

impl Library {
    /// All libraries, the driver first.
    pub const ALL: [Library; 4] =
        [Library::Driver, Library::Compiler, Library::Products, Library::Convolutions];

    /// The name of the library.
    pub const fn name(self) -> &'static str {
        match self {
            Library::Driver => "CUDA driver",
            Library::Compiler => "NVRTC",
            Library::Products => "cuBLASLt",
            Library::Convolutions => "cuDNN",
        }
    }

    /// The name of the library without prefix and ending, as `cudarc` searches it.
    const fn stem(self) -> &'static str {
        match self {
            Library::Driver => "cuda",
            Library::Compiler => "nvrtc",
            Library::Products => "cublasLt",
            Library::Convolutions => "cudnn",
        }
    }

    /// The files that are searched in folders, the newest version first.
    const fn files(self) -> &'static [&'static str] {
        match self {
            Library::Driver => &["libcuda.so.1"],
            Library::Compiler => &["libnvrtc.so.13", "libnvrtc.so.12"],
            Library::Products => &["libcublasLt.so.13", "libcublasLt.so.12"],
            Library::Convolutions => &["libcudnn.so.9"],
        }
    }

    /// The file of the newest version that is supported.
    pub const fn file(self) -> &'static str {
        self.files()[0]
    }

    /// The package of PyPI that has the library for a major version of CUDA; the driver has none.
    const fn package(self, major: u32) -> Option<&'static str> {
        Some(match (self, major) {
            (Library::Driver, _) => return None,
            (Library::Compiler, 12) => "nvidia-cuda-nvrtc-cu12",
            (Library::Compiler, _) => "nvidia-cuda-nvrtc",
            (Library::Products, 12) => "nvidia-cublas-cu12",
            (Library::Products, _) => "nvidia-cublas",
            (Library::Convolutions, 12) => "nvidia-cudnn-cu12",
            (Library::Convolutions, _) => "nvidia-cudnn-cu13",
        })
    }

    /// The way to install the library for a major version of CUDA, in words.
    fn remedy(self, major: u32) -> String {
        match self.package(major) {
            None => "install NVIDIA's driver".to_owned(),
            // The versions of cuDNN are not those of CUDA.
            Some(package) if self == Library::Convolutions => format!("`pip install {package}` installs it"),
            Some(package) => format!("`pip install '{package}=={major}.*'` installs it"),
        }
    }

    const fn functions(self) -> &'static [&'static str] {
        match self {
            Library::Driver => functions::DRIVER,
            Library::Compiler => functions::COMPILER,
            Library::Products => functions::PRODUCTS,
            Library::Convolutions => functions::CONVOLUTIONS,
        }
    }

    /// The oldest version that is supported.
    const fn oldest(self) -> (u32, u32) {
        match self {
            Library::Convolutions => (9, 8),
            Library::Driver | Library::Compiler | Library::Products => (12, 0),
        }
    }

    /// Loads the library. `driver` is the version of CUDA that the driver supports; a library for `major` is preferred.
    fn open(
        self,
        folders: &[PathBuf],
        driver: Option<(u32, u32)>,
        major: Option<u32>,
    ) -> Result<FoundLibrary, CudaError> {
        let handle = self.handle(folders, driver, major)?;
        let path = self.path(&handle);
        let unloadable = |reason: String| CudaError::Unloadable { library: self, path: path.clone(), reason };
        if self == Library::Convolutions {
            graph_of_dnn(&path).map_err(unloadable)?;
        }
        let unknown = || unloadable("it does not say its version".to_owned());
        let version = self.version(&handle).ok_or_else(unknown)?;
        if version < self.oldest() {
            return Err(CudaError::OldLibrary { library: self, path, version, oldest: self.oldest() });
        }
        let functions = self.functions();
        if let Some(&function) = functions.iter().find(|function| symbol(&handle, function).is_none()) {
            return Err(CudaError::NoFunction { library: self, path, version, function });
        }
        let cuda = self.major(&handle, version).ok_or_else(unknown)?;
        // The library stays for the rest of the process, as cudarc expects.
        let _ = handle.into_raw();
        match driver {
            Some(driver) if driver.0 < cuda => {
                Err(CudaError::OldDriver { library: self, version, cuda, driver })
            }
            _ => Ok(FoundLibrary { version, cuda, path }),
        }
    }

    /// The major version of CUDA that the library is for.
    fn major(self, handle: &Handle, version: (u32, u32)) -> Option<u32> {
        match self {
            Library::Convolutions => returned(handle, "cudnnGetCudartVersion").map(|version| version / 1000),
            Library::Driver | Library::Compiler | Library::Products => Some(version.0),
        }
    }

    /// The library as `cudarc` finds it, after a library of one of the folders has been loaded if there is no other.
    fn handle(
        self,
        folders: &[PathBuf],
        driver: Option<(u32, u32)>,
        major: Option<u32>,
    ) -> Result<Handle, CudaError> {
        let names = cudarc::get_lib_name_candidates(self.stem());
        let by_name = || names.iter().find_map(|name| dlopen(name.as_ref()).ok());
        if let Some(handle) = by_name() {
            return Ok(handle);
        }
        // If there are newer libraries alone, the driver is too old for them, and the error says so.
        let most = driver.map_or(NEWEST, |(of_driver, _)| of_driver);
        let rank = |file: &str| match of_major(file) {
            Some(number) if major == Some(number) => 0,
            Some(number) if number <= most => 1,
            _ => 2,
        };
        let mut files = self.files().to_vec();
        files.sort_by_key(|file| rank(file));
        let paths = files.iter().flat_map(|file| folders.iter().map(move |folder| folder.join(file)));
        let (mut refused, mut other) = (None, None);
        for path in paths.filter(|path| path.exists()) {
            self.companions(&path);
            match dlopen(path.as_os_str()) {
                Ok(handle) if self.is_for_another(&path, &handle, major) => other = other.or(Some(handle)),
                Ok(handle) => return Ok(by_name().unwrap_or(handle)),
                Err(reason) => {
                    refused = refused.or(Some(CudaError::Unloadable { library: self, path, reason }));
                }
            }
        }
        let absent = || {
            let remedy = self.remedy(major.unwrap_or(most.min(NEWEST)));
            CudaError::NoLibrary { library: self, remedy, folders: folders.to_vec() }
        };
        other.ok_or_else(|| refused.unwrap_or_else(absent))
    }

    /// True if a cuDNN, whose name does not say it, is for another major version of CUDA than `major`.
    fn is_for_another(self, path: &Path, handle: &Handle, major: Option<u32>) -> bool {
        let Some(major) = major.filter(|_| self == Library::Convolutions) else { return false };
        graph_of_dnn(path).is_ok() && self.major(handle, (0, 0)).is_some_and(|found| found != major)
    }

    /// Loads the files beside a library that the library itself loads by name.
    fn companions(self, path: &Path) {
        if self != Library::Compiler {
            return;
        }
        let entries = path.parent().and_then(|folder| folder.read_dir().ok()).into_iter().flatten().flatten();
        let is_builtins = |path: &PathBuf| {
            path.file_name()
                .and_then(OsStr::to_str)
                .is_some_and(|name| name.starts_with("libnvrtc-builtins.so") && !name.contains(".alt"))
        };
        for path in entries.map(|entry| entry.path()).filter(is_builtins) {
            // NVRTC reports their absence itself when it compiles.
            let _ = dlopen(path.as_os_str()).map(Handle::into_raw);
        }
    }

    /// The version that the library says, major and minor.
    #[expect(unsafe_code, reason = "calls of functions that were looked up by name")]
    fn version(self, handle: &Handle) -> Option<(u32, u32)> {
        let number = |version: c_int| u32::try_from(version).ok();
        match self {
            Library::Driver => {
                let function = symbol(handle, "cuDriverGetVersion")?;
                // SAFETY: the function of this name has this type, and writes one number. It needs no initialisation.
                let function = unsafe { std::mem::transmute::<*mut c_void, WriteVersion>(function) };
                let mut version = 0;
                // SAFETY: as above.
                let status = unsafe { function(&raw mut version) };
                let version = number(version).filter(|_| status == 0)?;
                Some((version / 1000, version % 1000 / 10))
            }
            Library::Compiler => {
                let function = symbol(handle, "nvrtcVersion")?;
                // SAFETY: the function of this name has this type, and writes two numbers.
                let function = unsafe { std::mem::transmute::<*mut c_void, WriteVersions>(function) };
                let (mut major, mut minor) = (0, 0);
                // SAFETY: as above.
                let status = unsafe { function(&raw mut major, &raw mut minor) };
                Some((number(major)?, number(minor)?)).filter(|_| status == 0)
            }
            Library::Products => {
                let version = returned(handle, "cublasLtGetVersion")?;
                Some((version / 10_000, version % 10_000 / 100))
            }
            Library::Convolutions => {
                let version = returned(handle, "cudnnGetVersion")?;
                // Before version 9, the major version stood four digits from the end.
                let major = if version < 10_000 { 1000 } else { 10_000 };
                Some((version / major, version % major / 100))
            }
        }
    }

    /// The file that a library was loaded from.
    #[expect(unsafe_code, reason = "a call of the dynamic loader")]
    fn path(self, handle: &Handle) -> PathBuf {
        let place = self.functions().iter().find_map(|function| symbol(handle, function));
        let Some(place) = place else { return PathBuf::from(self.file()) };
        let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: the address is that of a function, and the place has the size of the information.
        let found = unsafe { libc::dladdr(place, info.as_mut_ptr()) };
        // SAFETY: all bytes were zero, or the call has written them.
        let info = unsafe { info.assume_init() };
        if found == 0 || info.dli_fname.is_null() {
            return PathBuf::from(self.file());
        }
        // SAFETY: the loader's name of a file ends with a zero, and lives as long as the library.
        let name = unsafe { CStr::from_ptr(info.dli_fname) };
        PathBuf::from(OsStr::from_bytes(name.to_bytes()))
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Library::Driver => write!(f, "the {}", self.name()),
            Library::Compiler | Library::Products | Library::Convolutions => f.write_str(self.name()),
        }
    }
}

/// Loads the library that cuDNN loads at its first call, beside cuDNN's file: without it, cuDNN ends the process.
fn graph_of_dnn(path: &Path) -> Result<(), String> {
    const GRAPH: &str = "libcudnn_graph.so.9";
    let beside = path.parent().map(|folder| folder.join(GRAPH));
    let of_folder = beside.and_then(|path| dlopen(path.as_os_str()).ok());
    let handle = of_folder.map_or_else(|| dlopen(GRAPH.as_ref()), Ok)?;
    let _ = handle.into_raw();
    Ok(())
}

/// The number that a function of a library returns.
#[expect(unsafe_code, reason = "a call of a function that was looked up by name")]
fn returned(handle: &Handle, function: &str) -> Option<u32> {
    let function = symbol(handle, function)?;
    // SAFETY: the functions of the names that this is called with have this type.
    let function = unsafe { std::mem::transmute::<*mut c_void, ReturnVersion>(function) };
    // SAFETY: as above.
    u32::try_from(unsafe { function() }).ok()
}

/// Loads a library by its path or name, with the flags that `cudarc` uses.
#[expect(unsafe_code, reason = "a library runs code when it is loaded")]
fn dlopen(name: &OsStr) -> Result<Handle, String> {
    // SAFETY: the names are those of NVIDIA's libraries, whose initialisers may run at any time.
    unsafe { Handle::open(Some(name), RTLD_LAZY | RTLD_LOCAL) }.map_err(|error| {
        // libloading puts the loader's message behind its own.
        let source = std::error::Error::source(&error).map(ToString::to_string);
        source.unwrap_or_else(|| error.to_string())
    })
}

/// The address of a function of a library.
#[expect(unsafe_code, reason = "a call of the dynamic loader")]
fn symbol(handle: &Handle, name: &str) -> Option<*mut c_void> {
    // SAFETY: the address is used as a function by the callers that know its type alone.
    let found = unsafe { handle.get::<*mut c_void>(name.as_bytes()) };
    found.ok().map(|symbol| symbol.into_raw()).filter(|address| !address.is_null())
}

/// The architectures of NVRTC, whose functions have been checked.
fn architectures() -> Vec<i32> {
    use cudarc::nvrtc::sys;
    let mut count = 0;
    #[expect(unsafe_code, reason = "a call of NVRTC")]
    // SAFETY: the call writes one number.
    let counted = unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) }.result();
    let mut list = vec![0; usize::try_from(count).unwrap_or(0)];
    #[expect(unsafe_code, reason = "a call of NVRTC")]
    // SAFETY: the list has as many numbers as NVRTC says.
    let listed = counted.and_then(|_| unsafe { sys::nvrtcGetSupportedArchs(list.as_mut_ptr()) }.result());
    listed.map(|_| list).unwrap_or_default()
}

/// The address of a function of the driver, if the driver is there.
pub(super) fn driver_function(name: &str) -> Option<*mut c_void> {
    let names = cudarc::get_lib_name_candidates(Library::Driver.stem());
    let handle = names.iter().find_map(|name| dlopen(name.as_ref()).ok())?;
    let function = symbol(&handle, name);
    // The driver stays for the rest of the process.
    let _ = handle.into_raw();
    function
}

/// The devices of the driver, whose functions have been checked.
fn devices() -> Result<Vec<FoundDevice>, CudaError> {
    use cudarc::driver::result;
    use cudarc::driver::sys::CUdevice_attribute as Attribute;
    result::init()?;
    let count = result::device::get_count()?;
    if count <= 0 {
        return Err(CudaError::NoDevices { reason: "the driver counts 0 devices".to_owned() });
    }
    let mut devices = Vec::new();
    for number in 0..count {
        let device = result::device::get(number)?;
        #[expect(unsafe_code, reason = "calls of the driver")]
        let attribute = |attribute| {
            // SAFETY: the device is one of the driver's.
            unsafe { result::device::get_attribute(device, attribute) }
        };
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        #[expect(unsafe_code, reason = "a call of the driver")]
        // SAFETY: as above.
        let memory = unsafe { result::device::total_mem(device) }?;
        let name = result::device::get_name(device)?;
        devices.push(FoundDevice { name, capability: (major, minor), memory: memory as u64 });
    }
    Ok(devices)
}

#[cfg(test)]
mod tests {
    use super::architecture;

    #[test]
    fn architecture_of_a_device() {
        let list = [75, 80, 86, 90, 100, 120];
        assert_eq!(architecture(&list, (9, 0)), Some(90));
        assert_eq!(architecture(&list, (8, 9)), Some(86));
        assert_eq!(architecture(&list, (10, 3)), Some(100));
        assert_eq!(architecture(&list, (11, 0)), None);
    }
}
