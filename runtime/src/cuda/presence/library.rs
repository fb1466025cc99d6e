//! The libraries: their names, files and packages, and how each is found and loaded.

use super::FoundLibrary;
use super::error::CudaError;
use super::functions;
use super::loader::{Handle, damaged, dlopen, dlopen_file, loader_folders, path_of, returned, symbol};
use std::ffi::{OsStr, c_int, c_void};
use std::fmt;
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
    /// cuDNN, which computes convolutions and attention. Other models do not need it.
    Convolutions,
}

/// The newest major version of CUDA that is supported.
pub(super) const NEWEST: u32 = 13;

/// A function that writes a version and returns a status, 0 for success.
type WriteVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
/// A function that writes a major and a minor version.
type WriteVersions = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
impl Library {
    /// All libraries; the driver is first.
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

    /// The name of the library without prefix and extension, by which `cudarc` searches.
    pub(super) const fn stem(self) -> &'static str {
        match self {
            Library::Driver => "cuda",
            Library::Compiler => "nvrtc",
            Library::Products => "cublasLt",
            Library::Convolutions => "cudnn",
        }
    }

    /// The file names to search in folders, newest version first.
    pub(super) const fn files(self) -> &'static [&'static str] {
        match self {
            Library::Driver => &["libcuda.so.1"],
            Library::Compiler => &["libnvrtc.so.13", "libnvrtc.so.12"],
            Library::Products => &["libcublasLt.so.13", "libcublasLt.so.12"],
            Library::Convolutions => &["libcudnn.so.9"],
        }
    }

    /// The file name of the newest supported version.
    pub const fn file(self) -> &'static str {
        self.files()[0]
    }

    /// The PyPI package of the library for a major version of CUDA; `None` for the driver.
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

    /// Instructions to install the library for a major version of CUDA.
    fn remedy(self, major: u32) -> String {
        match self.package(major) {
            None => "install NVIDIA's driver".to_owned(),
            // The versions of cuDNN differ from those of CUDA.
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

    /// The oldest supported version.
    const fn oldest(self) -> (u32, u32) {
        match self {
            Library::Convolutions => (9, 8),
            Library::Driver | Library::Compiler | Library::Products => (12, 0),
        }
    }

    /// Loads the library. `driver` is the version of CUDA that the driver supports; a library for `major` is
    /// preferred.
    pub(super) fn open(
        self,
        folders: &[PathBuf],
        driver: Option<(u32, u32)>,
        major: Option<u32>,
    ) -> Result<FoundLibrary, CudaError> {
        let (handle, path) = path_of(self.handle(folders, driver, major)?);
        let path = path.unwrap_or_else(|| PathBuf::from(self.file()));
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
        // The library stays loaded for the rest of the process, as cudarc expects.
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

    /// The library as `cudarc` finds it. If `cudarc` finds none, first loads a library from one of the folders.
    fn handle(
        self,
        folders: &[PathBuf],
        driver: Option<(u32, u32)>,
        major: Option<u32>,
    ) -> Result<Handle, CudaError> {
        let names = cudarc::get_lib_name_candidates(self.stem());
        let loader = loader_folders();
        let unloadable =
            |path: PathBuf, reason: String| CudaError::Unloadable { library: self, path, reason };
        let by_name = || {
            for name in &names {
                let file = loader.iter().map(|folder| folder.join(name)).find(|path| path.exists());
                if let Some((path, reason)) = file.and_then(|path| Some((path.clone(), damaged(&path)?))) {
                    return Err(unloadable(path, reason));
                }
                if let Ok(handle) = dlopen(name.as_ref()) {
                    return Ok(Some(handle));
                }
            }
            Ok(None)
        };
        if let Some(handle) = by_name()? {
            return Ok(handle);
        }
        // If only newer libraries exist, the driver is too old for them, and the error says so.
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
            match dlopen_file(&path) {
                Ok(handle) if self.is_for_another(&path, &handle, major) => other = other.or(Some(handle)),
                Ok(_handle) => match by_name()? {
                    Some(handle) => return Ok(handle),
                    None => {
                        let reason =
                            "its SONAME is another name, by which the dynamic loader does not find it";
                        refused = refused.or_else(|| Some(unloadable(path, reason.to_owned())));
                    }
                },
                Err(reason) => refused = refused.or_else(|| Some(unloadable(path, reason))),
            }
        }
        let absent = || {
            let major = major.unwrap_or(most.min(NEWEST));
            let of_version = self.files().iter().find(|file| of_major(file) == Some(major));
            let file = of_version.copied().unwrap_or(self.file());
            CudaError::NoLibrary {
                library: self,
                file,
                remedy: self.remedy(major),
                folders: folders.to_vec(),
            }
        };
        let refused =
            || refused.or_else(|| self.refused_by_name(&names)).or_else(|| self.unreadable(&loader, &names));
        other.ok_or_else(|| refused().unwrap_or_else(absent))
    }

    /// The file in a folder of the dynamic loader that the loader rejects, if there is one.
    fn refused_by_name(self, names: &[String]) -> Option<CudaError> {
        names.iter().filter_map(|name| dlopen(name.as_ref()).err()).find_map(|message| {
            // The loader names a file that it found by its path, and a file that it did not find by its name.
            let (path, reason) = message.split_once(": ").filter(|(path, _)| path.starts_with('/'))?;
            Some(CudaError::Unloadable { library: self, path: path.into(), reason: reason.to_owned() })
        })
    }

    /// The file in a folder of the dynamic loader that cannot be read, which the loader skips.
    fn unreadable(self, folders: &[PathBuf], names: &[String]) -> Option<CudaError> {
        let paths = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
        let errors = paths.filter_map(|path| Some((path.clone(), std::fs::File::open(path).err()?)));
        let mut errors = errors.filter(|(_, error)| error.kind() != std::io::ErrorKind::NotFound);
        let (path, error) = errors.next()?;
        Some(CudaError::Unloadable { library: self, path, reason: error.to_string() })
    }

    /// True if the file is a cuDNN for a major version of CUDA other than `major`. Its file name does not tell.
    fn is_for_another(self, path: &Path, handle: &Handle, major: Option<u32>) -> bool {
        let Some(major) = major.filter(|_| self == Library::Convolutions) else { return false };
        graph_of_dnn(path).is_ok() && self.major(handle, (0, 0)).is_some_and(|found| found != major)
    }

    /// Loads the files next to a library that the library itself loads by name.
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
            // NVRTC reports a missing file itself when it compiles.
            let _ = dlopen_file(&path).map(Handle::into_raw);
        }
    }

    /// The major and minor version that the library reports.
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
                // Before version 9, the major version started at the fourth digit from the end.
                let major = if version < 10_000 { 1000 } else { 10_000 };
                Some((version / major, version % major / 100))
            }
        }
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

/// Loads the library that cuDNN loads at its first call, from the folder of cuDNN. Without it, cuDNN aborts the
/// process.
fn graph_of_dnn(path: &Path) -> Result<(), String> {
    const GRAPH: &str = "libcudnn_graph.so.9";
    let beside = path.parent().map(|folder| folder.join(GRAPH));
    let handle = match beside.filter(|path| path.exists()) {
        Some(path) => dlopen_file(&path).map_err(|reason| format!("`{}`: {reason}", path.display()))?,
        None => dlopen(GRAPH.as_ref())?,
    };
    let _ = handle.into_raw();
    Ok(())
}

/// The major version of CUDA in the extension of a file.
pub(super) fn of_major(file: &str) -> Option<u32> {
    file.rsplit('.').next().and_then(|number| number.parse().ok())
}
