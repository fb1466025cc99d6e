//! Compilation of kernels, and the compiled kernels.

use super::cache::Cache;
use super::memory::failed;
use super::presence::FoundDevice;
use crate::backend::DeviceError;
use cudarc::driver::{CudaContext, CudaFunction, DriverError};
use cudarc::nvrtc::result::{self, NvrtcError};
use cudarc::nvrtc::{Ptx, sys};
use rayon::{ThreadPool, ThreadPoolBuilder};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// NVRTC options of every source, besides the architecture. Multiplications and additions are not contracted to FMA,
/// so that fused element-wise operators round like separate operators.
const OPTIONS: [&str; 2] = ["--fmad=false", "--std=c++17"];

/// The stack size of a compiler thread in bytes.
const STACK: usize = 16 << 20;

/// Compiles sources in its own threads, each source once.
pub(super) struct Compiler {
    context: Arc<CudaContext>,
    architecture: String,
    cache: Option<Arc<Cache>>,
    /// `None` if the system provides no threads; sources are then compiled at their first launch.
    pool: Option<Arc<ThreadPool>>,
    /// Set when the compiler is dropped. Queued kernels are then not compiled.
    is_closed: Arc<AtomicBool>,
    /// Kernels by source, compiled or not.
    compilations: Mutex<FxHashMap<Arc<str>, Arc<Compilation>>>,
    /// Descriptions of the values that kernels expect, for error messages.
    messages: Mutex<Vec<String>>,
}

/// A kernel, compiled at most once.
pub(super) struct Compilation {
    context: Arc<CudaContext>,
    pool: Option<Arc<ThreadPool>>,
    has_begun: AtomicBool,
    is_closed: Arc<AtomicBool>,
    architecture: String,
    cache: Option<Arc<Cache>>,
    text: Arc<str>,
    /// The name of the entry function.
    entry: String,
    image: OnceLock<Result<Image, Refusal>>,
    function: OnceLock<CudaFunction>,
}

/// Machine code of a kernel.
struct Image {
    bytes: Vec<u8>,
    is_from_cache: bool,
}

/// A failure of NVRTC with its log.
struct Refusal {
    error: NvrtcError,
    log: String,
}

impl Compiler {
    /// The compiler for a device. `folder` is the folder of the disk cache.
    pub(super) fn new(
        context: Arc<CudaContext>,
        device: &FoundDevice,
        (version, architecture): ((u32, u32), i32),
        folder: Option<&Path>,
    ) -> Compiler {
        let architecture = format!("--gpu-architecture=sm_{architecture}");
        let cache = folder.map(|folder| {
            let version = format!("{version:?}");
            let common = [&[&*version, &architecture, &device.name][..], &OPTIONS].concat();
            Arc::new(Cache::new(folder, &common))
        });
        let name = |at| format!("nvrtc {at}");
        let pool = ThreadPoolBuilder::new().stack_size(STACK).thread_name(name).build().ok().map(Arc::new);
        let (compilations, messages) = (Mutex::default(), Mutex::default());
        let is_closed = Arc::default();
        Compiler { context, architecture, cache, pool, is_closed, compilations, messages }
    }

    /// The disk cache of compiled kernels.
    pub(super) fn cache(&self) -> Option<Arc<Cache>> {
        self.cache.clone()
    }

    /// The number of distinct sources whose compilation has begun, including those found in the cache.
    pub(super) fn len(&self) -> usize {
        let compilations = self.compilations.lock().unwrap_or_else(PoisonError::into_inner);
        compilations.values().filter(|compilation| compilation.has_begun.load(Ordering::Acquire)).count()
    }

    /// The kernel of a source with this entry. If NVRTC rejects the source, the first launch returns the error.
    pub(super) fn compilation(&self, text: &str, entry: String) -> Arc<Compilation> {
        let mut compilations = self.compilations.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = compilations.get(text) {
            return known.clone();
        }
        let text: Arc<str> = text.into();
        let compilation = Arc::new(Compilation {
            context: self.context.clone(),
            pool: self.pool.clone(),
            has_begun: AtomicBool::new(false),
            is_closed: self.is_closed.clone(),
            architecture: self.architecture.clone(),
            cache: self.cache.clone(),
            text: text.clone(),
            entry,
            image: OnceLock::new(),
            function: OnceLock::new(),
        });
        compilations.insert(text, compilation.clone());
        compilation
    }

    /// The index of a description of the values that a kernel expects, for error messages.
    pub(super) fn expects(&self, values: String) -> u32 {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let at = messages.iter().position(|known| *known == values).unwrap_or(messages.len());
        if at == messages.len() {
            messages.push(values);
        }
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    pub(super) fn message(&self, at: usize) -> String {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).get(at).cloned().unwrap_or_default()
    }
}

impl Drop for Compiler {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Release);
        // NVRTC must not run while the process exits.
        if let Some(pool) = &self.pool {
            pool.broadcast(|_| ());
        }
    }
}

thread_local! {
    /// The kernels requested in this thread since `requested_by` began.
    static REQUESTED: RefCell<Vec<Arc<Compilation>>> = const { RefCell::new(Vec::new()) };
}

/// The result of `prepare`, and the kernels that `prepare` requested.
pub(super) fn requested_by<R>(prepare: impl FnOnce() -> R) -> (R, Vec<Arc<Compilation>>) {
    let before = REQUESTED.take();
    let made = prepare();
    (made, REQUESTED.replace(before))
}

/// Adds a kernel to the requested kernels of this thread.
pub(super) fn request(compilation: &Arc<Compilation>) {
    REQUESTED.with_borrow_mut(|requested| requested.push(compilation.clone()));
}

impl Compilation {
    /// The entry name and the source.
    pub(super) fn source(&self) -> (&str, &str) {
        (&self.entry, &self.text)
    }

    /// Starts compilation, in another thread if there are threads.
    pub(super) fn begin(self: &Arc<Compilation>) {
        let Some(pool) = &self.pool else { return };
        if !self.has_begun.swap(true, Ordering::AcqRel) {
            let compilation = self.clone();
            pool.spawn(move || compilation.compile());
        }
    }

    /// Sets the image, unless the compiler was dropped.
    fn compile(&self) {
        if self.is_closed.load(Ordering::Acquire) {
            return;
        }
        let compile = std::panic::AssertUnwindSafe(|| self.compile_or_panic());
        if std::panic::catch_unwind(compile).is_err() {
            let error = NvrtcError(sys::nvrtcResult::NVRTC_ERROR_INTERNAL_ERROR);
            let _ =
                self.image.set(Err(Refusal { error, log: "the compiler of kernels has panicked".into() }));
        }
    }

    fn compile_or_panic(&self) {
        let cached = self.cache.as_ref().and_then(|cache| cache.get(&self.text));
        let image = match cached {
            Some(bytes) => Ok(Image { bytes, is_from_cache: true }),
            None => self.compiled().map(|bytes| Image { bytes, is_from_cache: false }),
        };
        // Only one thread compiles, so the cell is empty.
        let _ = self.image.set(image);
    }

    /// Compiles the source with NVRTC and stores the image in the cache.
    fn compiled(&self) -> Result<Vec<u8>, Refusal> {
        let bytes = compiled(&self.text, &self.architecture)?;
        if let Some(cache) = &self.cache {
            cache.put(&self.text, &bytes);
        }
        Ok(bytes)
    }

    /// The loaded function. Compiles it, or waits for its compilation.
    ///
    /// # Errors
    /// If NVRTC or the driver rejects the source.
    pub(super) fn function(&self) -> Result<&CudaFunction, DeviceError> {
        if let Some(function) = self.function.get() {
            return Ok(function);
        }
        if !self.has_begun.swap(true, Ordering::AcqRel) {
            self.compile();
        }
        let image = self.image.wait().as_ref().map_err(Refusal::as_error)?;
        let loaded = match self.loaded(&image.bytes) {
            // The driver rejects a cached file that is damaged or from another driver: compile again.
            Err(_) if image.is_from_cache => {
                let bytes = self.compiled().map_err(|refusal| refusal.as_error())?;
                self.loaded(&bytes)
            }
            loaded => loaded,
        };
        let function = loaded.map_err(failed)?;
        Ok(self.function.get_or_init(|| function))
    }

    fn loaded(&self, image: &[u8]) -> Result<CudaFunction, DriverError> {
        self.context.load_module(Ptx::from_binary(image.to_vec()))?.load_function(&self.entry)
    }
}

/// A program of NVRTC.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    #[expect(unsafe_code, reason = "a call of NVRTC")]
    fn drop(&mut self) {
        // SAFETY: the program is destroyed once. Nothing can be done about a failure.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

/// Compiles a source to machine code for an architecture.
///
/// # Errors
/// If NVRTC rejects the source, which is a bug of the backend, or fails itself.
#[expect(unsafe_code, reason = "calls of NVRTC")]
fn compiled(text: &str, architecture: &str) -> Result<Vec<u8>, Refusal> {
    let refused = |error| Refusal { error, log: String::new() };
    let invalid = |_| refused(NvrtcError(sys::nvrtcResult::NVRTC_ERROR_INVALID_INPUT));
    let source = CString::new(text).map_err(invalid)?;
    let program = Program(result::create_program(&source, None).map_err(refused)?);
    let options = [&[architecture][..], &OPTIONS].concat();
    // SAFETY: the program is alive.
    let done = unsafe { result::compile_program(program.0, &options) };
    done.map_err(|error| {
        // SAFETY: the program is alive, and its log ends with a zero.
        let log = unsafe { result::get_program_log(program.0) }.unwrap_or_default();
        let log: Vec<u8> = log.into_iter().map(i8::cast_unsigned).collect();
        let log = CStr::from_bytes_until_nul(&log).map(|log| log.to_string_lossy().into_owned());
        Refusal { error, log: log.unwrap_or_default() }
    })?;
    let mut len = 0;
    // SAFETY: the program is alive and compiled.
    unsafe { sys::nvrtcGetCUBINSize(program.0, &raw mut len) }.result().map_err(refused)?;
    let mut image = vec![0u8; len];
    // SAFETY: as above, and the image has the length that NVRTC says.
    unsafe { sys::nvrtcGetCUBIN(program.0, image.as_mut_ptr().cast()) }.result().map_err(refused)?;
    Ok(image)
}

impl Refusal {
    /// The failure as an error. A source that NVRTC rejects is a bug of the backend.
    fn as_error(&self) -> DeviceError {
        use sys::nvrtcResult as Status;
        let reason = format!("NVRTC: {:?} {}", self.error.0, self.log).trim_end().to_owned();
        match self.error.0 {
            Status::NVRTC_ERROR_BUILTIN_OPERATION_FAILURE => DeviceError::Failed(format!(
                "{reason}; NVRTC needs libnvrtc-builtins of its own version beside it"
            )),
            Status::NVRTC_ERROR_OUT_OF_MEMORY => DeviceError::OutOfMemory(reason),
            Status::NVRTC_ERROR_PROGRAM_CREATION_FAILURE => DeviceError::Failed(reason),
            _ => DeviceError::Invalid(reason),
        }
    }
}
