//! Convolutions and attention of cuDNN, through its graph API.
//!
//! The library is loaded when the first convolution or attention is prepared, so other models do not need cuDNN.
//! Equal convolutions share one plan, and so do equal attentions. The disk cache of kernels also stores plans, so
//! that later processes neither ask for heuristics nor compile engines. Plans can be created for a described device
//! ([`Properties`]), without a GPU or a driver.
//!
//! `descriptor.rs` has the calls, `graph.rs`, `attention.rs` and `gradient.rs` the operation graphs. `plan.rs`
//! chooses engines, and `launch.rs` runs plans.

mod attention;
mod descriptor;
mod gradient;
mod graph;
mod launch;
mod operations;
mod plan;

pub use attention::{Attention, Strided};
pub(super) use attention::{AttentionPlaces, AttentionPlan, Problem, TENSORS};
pub use gradient::AttentionGradient;
pub use graph::{Convolution, Direction, Layout};
pub(super) use launch::{Places, Plan};
pub use plan::{Engine, MOST_WORKSPACE, Notes};

use super::cache::Cache;
use super::choices::Recorded;
use super::presence::{self, CudaError, CudaErrorKind};
use crate::backend::DeviceError;
use crate::kernel::KernelError;
use ampc_ir::DType;
use cudarc::cudnn::sys;
use cudarc::driver::CudaContext;
use descriptor::{Attribute as A, Descriptor, Kind, check};
use graph::Graph;
use plan::{Choice, Conditions, Target};
use rustc_hash::FxHashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Error of cuDNN.
#[derive(Debug, thiserror::Error)]
pub enum DnnError {
    /// The library is absent or cannot be loaded.
    #[error(transparent)]
    Library(#[from] CudaError),
    /// A call failed.
    #[error("{call} of cuDNN: {status}{}{message}", if .message.is_empty() { "" } else { ": " })]
    Call {
        /// The function.
        call: &'static str,
        /// The name of the status.
        status: String,
        /// The message of the library.
        message: String,
        /// True if cuDNN does not support the operation.
        is_unsupported: bool,
    },
    /// cuDNN has no convolution or attention of this element type.
    #[error("convolutions and attention of cuDNN do not support {0}")]
    ElementType(DType),
    /// No engine computes the graph in f32 and deterministically.
    #[error("cuDNN has no engine for the graph{}", reasons(.refused))]
    NoEngine {
        /// The rejected engines, each with the reason.
        refused: Vec<(Engine, String)>,
    },
}

fn reasons(refused: &[(Engine, String)]) -> String {
    let reasons: Vec<String> =
        refused.iter().map(|(engine, reason)| format!("engine {} {reason}", engine.index)).collect();
    if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) }
}

impl From<DnnError> for KernelError {
    fn from(error: DnnError) -> KernelError {
        match &error {
            DnnError::Library(library) => match library.kind() {
                CudaErrorKind::Unsupported => KernelError::unsupported(format!("a convolution: {error}")),
                CudaErrorKind::NoMemory => DeviceError::OutOfMemory(error.to_string()).into(),
                CudaErrorKind::Refused => DeviceError::Failed(error.to_string()).into(),
                CudaErrorKind::Bug => DeviceError::Invalid(error.to_string()).into(),
            },
            DnnError::Call { is_unsupported: false, .. } => error.of_call().into(),
            _ => KernelError::unsupported(format!("a convolution: {error}")),
        }
    }
}

impl DnnError {
    /// True if cuDNN does not support the operation.
    fn is_unsupported(&self) -> bool {
        matches!(self, DnnError::Call { is_unsupported: true, .. })
    }

    /// True if only this engine failed, so that another may be tried: the call was valid, and memory sufficed.
    fn is_of_engine(&self) -> bool {
        let DnnError::Call { call, status, .. } = self else { return false };
        let others = ["BAD_PARAM", "NOT_INITIALIZED"];
        matches!(*call, "cudnnBackendFinalize" | "cudnnBackendExecute")
            && !self.is_no_memory()
            && !others.iter().any(|other| status.contains(other))
    }

    /// True if cuDNN could not allocate device or host memory.
    fn is_no_memory(&self) -> bool {
        let names = ["ALLOC_FAILED", "ALLOCATION_FAILED"];
        matches!(self, DnnError::Call { status, .. } if names.iter().any(|name| status.contains(name)))
    }

    /// True if cuDNN rejects a call as invalid, which is a bug of the backend.
    pub(super) fn is_invalid(&self) -> bool {
        match self {
            DnnError::Call { status, .. } => status.contains("BAD_PARAM"),
            DnnError::Library(library) => library.kind() == CudaErrorKind::Bug,
            DnnError::ElementType(_) | DnnError::NoEngine { .. } => false,
        }
    }

    /// The device error of a failed call.
    fn of_call(&self) -> DeviceError {
        match (self.is_no_memory(), self.is_invalid()) {
            (true, _) => DeviceError::OutOfMemory(self.to_string()),
            (false, true) => DeviceError::Invalid(self.to_string()),
            (false, false) => DeviceError::Failed(self.to_string()),
        }
    }
}

/// The cuDNN of a backend, loaded for the first convolution or attention.
pub(super) struct Dnn {
    context: Arc<CudaContext>,
    folders: Vec<PathBuf>,
    /// The version of NVRTC.
    version: (u32, u32),
    /// True if f32 convolutions may use TF32.
    tf32: bool,
    cache: Option<Arc<Cache>>,
    choices: Arc<Recorded>,
    library: Mutex<Option<Arc<Library>>>,
}

/// An open handle, and the plans created for it.
struct Library {
    context: Arc<CudaContext>,
    tf32: bool,
    /// The disk cache of plans.
    cache: Option<Arc<Cache>>,
    choices: Arc<Recorded>,
    /// The version of cuDNN, in NVIDIA's numbering.
    version: usize,
    /// The handle, locked during each use: only one thread may use it at a time.
    handle: Mutex<Handle>,
    /// Plans by convolution and alignment in bytes of the tensors.
    plans: Mutex<FxHashMap<(Convolution, u32), Known>>,
    attentions: Mutex<FxHashMap<Problem, Known>>,
    attentions_launched: AtomicU64,
}

/// A plan, or the rejected engines of a convolution that has no plan.
type Known = Result<Arc<Choice>, Vec<(Engine, String)>>;

struct Handle(sys::cudnnHandle_t);

// SAFETY: NVIDIA's documentation permits the use of a handle by one thread at a time.
#[expect(unsafe_code, reason = "the handle is a pointer")]
unsafe impl Send for Handle {}

impl Drop for Library {
    #[expect(unsafe_code, reason = "a call of cuDNN")]
    fn drop(&mut self) {
        let is_bound = self.context.bind_to_thread().is_ok();
        lock(&self.plans).clear();
        lock(&self.attentions).clear();
        if is_bound {
            // SAFETY: the handle is destroyed once. Nothing can be done about a failure.
            let _ = unsafe { sys::cudnnDestroy(lock(&self.handle).0) };
        }
    }
}

/// The version of the loaded cuDNN, in NVIDIA's numbering.
#[expect(unsafe_code, reason = "a call of cuDNN")]
fn version() -> usize {
    // SAFETY: the library is loaded, and has the function.
    unsafe { sys::cudnnGetVersion() }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Dnn {
    /// A cuDNN that is not loaded yet. `folders` are searched after those of the dynamic loader; `version` is the
    /// version of NVRTC, and `tf32` permits TF32 for f32 convolutions.
    pub(super) fn new(
        context: Arc<CudaContext>,
        folders: Vec<PathBuf>,
        version: (u32, u32),
        tf32: bool,
        cache: Option<Arc<Cache>>,
        choices: Arc<Recorded>,
    ) -> Dnn {
        Dnn { context, folders, version, tf32, cache, choices, library: Mutex::default() }
    }

    /// The version of cuDNN in NVIDIA's numbering; `None` before it is loaded.
    pub(super) fn version(&self) -> Option<usize> {
        lock(&self.library).as_ref().map(|library| library.version)
    }

    #[expect(unsafe_code, reason = "calls of cuDNN")]
    fn library(&self) -> Result<Arc<Library>, DnnError> {
        let mut library = lock(&self.library);
        if let Some(library) = &*library {
            return Ok(library.clone());
        }
        presence::load_dnn(&self.folders, Some(self.version))?;
        self.context.bind_to_thread().map_err(CudaError::from)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is that of a variable.
        check(unsafe { sys::cudnnCreate(&raw mut handle) }, "cudnnCreate")?;
        let made = Arc::new(Library {
            context: self.context.clone(),
            tf32: self.tf32,
            cache: self.cache.clone(),
            choices: self.choices.clone(),
            version: version(),
            handle: Mutex::new(Handle(handle)),
            plans: Mutex::default(),
            attentions: Mutex::default(),
            attentions_launched: AtomicU64::new(0),
        });
        *library = Some(made.clone());
        Ok(made)
    }

    /// The plan of a convolution.
    ///
    /// # Errors
    /// If cuDNN is absent, too old, has no engine, or fails.
    pub(super) fn plan(&self, convolution: &Convolution) -> Result<Plan, DnnError> {
        let library = self.library()?;
        let choice = library.plan(convolution, graph::ALIGNMENT, MOST_WORKSPACE)?;
        Ok(Plan::new(library, choice, convolution))
    }
}

/// Converts a choice for the table of plans: a missing engine becomes the list of rejected engines.
fn known_of(choice: Result<Choice, DnnError>) -> Result<Known, DnnError> {
    match choice {
        Ok(choice) => Ok(Ok(Arc::new(choice))),
        Err(DnnError::NoEngine { refused }) => Ok(Err(refused)),
        Err(error) => Err(error),
    }
}

impl Library {
    /// The choice for a convolution of tensors whose addresses are multiples of `alignment` bytes. Plans with a
    /// reduced workspace are not cached on disk.
    fn plan(
        &self,
        convolution: &Convolution,
        alignment: u32,
        workspace: usize,
    ) -> Result<Arc<Choice>, DnnError> {
        let key = (convolution.clone(), alignment);
        let is_kept = workspace == MOST_WORKSPACE;
        let known = lock(&self.plans).get(&key).filter(|_| is_kept).cloned();
        let known = match known {
            Some(known) => known,
            None => {
                let conditions = Conditions { tf32: self.tf32, alignment, workspace, skipped: 0 };
                let choose = || self.choose_convolution(convolution, alignment, workspace, 0);
                let known = known_of(self.cached(convolution, conditions, choose))?;
                if is_kept {
                    lock(&self.plans).insert(key, known.clone());
                }
                known
            }
        };
        known.map_err(|refused| DnnError::NoEngine { refused })
    }

    /// The plan from the disk cache, or the plan that `choose` creates. `problem` and the conditions are everything
    /// that the plan depends on, besides the device.
    fn cached(
        &self,
        problem: &dyn fmt::Debug,
        conditions: Conditions,
        choose: impl FnOnce() -> Result<Choice, DnnError>,
    ) -> Result<Choice, DnnError> {
        let choice = self.cached_or(problem, conditions, choose)?;
        let Conditions { tf32, alignment, workspace, .. } = conditions;
        let operation =
            format!("{problem:?}, aligned to {alignment}, at most {workspace} bytes, TF32 {tf32}");
        self.choices.add(operation, choice.algorithm());
        Ok(choice)
    }

    fn cached_or(
        &self,
        problem: &dyn fmt::Debug,
        conditions: Conditions,
        choose: impl FnOnce() -> Result<Choice, DnnError>,
    ) -> Result<Choice, DnnError> {
        let Some(cache) = &self.cache else { return choose() };
        self.context.bind_to_thread().map_err(CudaError::from)?;
        let Conditions { tf32, alignment, workspace, .. } = conditions;
        let key = format!("cuDNN {}, TF32 {tf32}, {alignment}, {workspace}: {problem:?}", self.version);
        let saved = cache.get(&key);
        let restored = saved.and_then(|saved| Choice::restored(lock(&self.handle).0, &saved));
        if let Some(choice) = restored {
            return Ok(choice);
        }
        let choice = choose()?;
        if let Some(saved) = choice.saved() {
            cache.put(&key, &saved);
        }
        Ok(choice)
    }

    fn choose_convolution(
        &self,
        convolution: &Convolution,
        alignment: u32,
        workspace: usize,
        skipped: usize,
    ) -> Result<Choice, DnnError> {
        let conditions = Conditions { tf32: self.tf32, alignment, workspace, skipped };
        self.choose(convolution.dtype, conditions, |handle| convolution.graph(handle, alignment))
    }

    fn choose(
        &self,
        dtype: DType,
        conditions: Conditions,
        graph: impl FnOnce(Option<sys::cudnnHandle_t>) -> Result<Graph, DnnError>,
    ) -> Result<Choice, DnnError> {
        self.context.bind_to_thread().map_err(CudaError::from)?;
        let handle = lock(&self.handle);
        plan::choose(Target::Handle(handle.0), dtype, conditions, graph)
    }
}

/// A described device, for which plans can be created but not run.
pub struct Properties {
    descriptor: Descriptor,
    version: usize,
}

/// A plan as cuDNN describes it.
#[derive(Clone, Debug)]
pub struct Described {
    /// The engine chosen.
    pub engine: Engine,
    /// Bytes of workspace.
    pub workspace: usize,
    /// Engines that the heuristics prefer but that are rejected, each with the reason.
    pub refused: Vec<(Engine, String)>,
    /// The size of the serialized plan in the disk cache; `None` if cuDNN cannot serialize it.
    pub kept: Option<usize>,
}

impl Choice {
    fn described(&self) -> Described {
        let Choice { engine, workspace, refused, .. } = self;
        let kept = self.saved().map(|saved| saved.len());
        Described { engine: engine.clone(), workspace: *workspace, refused: refused.clone(), kept }
    }
}

impl Properties {
    /// Parses a device description in the JSON format of `CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION`.
    ///
    /// # Errors
    /// If cuDNN is absent or too old, or rejects the text.
    pub fn from_json(json: &str, folders: &[PathBuf]) -> Result<Properties, DnnError> {
        presence::load_dnn(folders, None)?;
        let version = version();
        let descriptor = Descriptor::new(Kind::CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)?
            .set(A::CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, json.as_bytes())?
            .finalized()?;
        Ok(Properties { descriptor, version })
    }

    /// The version of cuDNN, in NVIDIA's numbering.
    pub fn version(&self) -> usize {
        self.version
    }

    /// Creates the plan of a convolution for the device. With `tf32`, engines may round f32 operands to TF32.
    ///
    /// # Errors
    /// If cuDNN rejects the graph or has no engine for it.
    pub fn plan(&self, convolution: &Convolution, tf32: bool) -> Result<Described, DnnError> {
        let conditions = Conditions { tf32, ..Conditions::USUAL };
        let graph = |handle| convolution.graph(handle, conditions.alignment);
        Ok(plan::choose(Target::Properties(&self.descriptor), convolution.dtype, conditions, graph)?
            .described())
    }
}
