//! Convolutions and attention of cuDNN, through its graph API.
//!
//! The library is loaded and its handle opened when the first convolution is prepared, so that models without
//! convolutions need no cuDNN. Plans are kept by content: equal convolutions share one plan. Instead of a device that is
//! present, plans can be made for one that is described ([`Properties`]), without a GPU or a driver.
//!
//! `descriptor.rs` has the calls, `graph.rs` and `attention.rs` the operation graphs, and `plan.rs` chooses engines.

mod attention;
mod descriptor;
mod graph;
mod plan;

pub use attention::{Attention, Strided};
pub(super) use attention::{AttentionPlaces, AttentionPlan};
pub use graph::{Convolution, Direction, Layout};
pub use plan::{Engine, MOST_WORKSPACE, Notes};

use super::presence::{self, CudaError, CudaErrorKind};
use super::queue::CudaQueue;
use crate::backend::DeviceError;
use crate::kernel::{KernelError, Result};
use ampc_ir::DType;
use cudarc::cudnn::sys;
use cudarc::driver::CudaContext;
use descriptor::{Address, Attribute as A, Descriptor, Kind, check};
use graph::Graph;
use plan::{Choice, Target};
use rustc_hash::FxHashMap;
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
    /// The element type has no convolutions.
    #[error("cuDNN has no convolutions of {0}")]
    ElementType(DType),
    /// No engine computes the graph in f32 and the same way each time.
    #[error("cuDNN has no engine for the graph{}", reasons(.refused))]
    NoEngine {
        /// The engines that are not used, with the reason.
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
                CudaErrorKind::Refused => DeviceError::Failed(error.to_string()).into(),
                CudaErrorKind::Bug => DeviceError::Invalid(error.to_string()).into(),
            },
            DnnError::Call { is_unsupported: false, .. } => error.of_call().into(),
            _ => KernelError::unsupported(format!("a convolution: {error}")),
        }
    }
}

impl DnnError {
    /// The error of a call that failed. A call that cuDNN refuses as invalid is a bug of the backend.
    fn of_call(&self) -> DeviceError {
        match self {
            DnnError::Call { status, .. } if status.contains("BAD_PARAM") => {
                DeviceError::Invalid(self.to_string())
            }
            _ => DeviceError::Failed(self.to_string()),
        }
    }
}

/// cuDNN of a backend, opened at the first convolution.
pub(super) struct Dnn {
    context: Arc<CudaContext>,
    folders: Vec<PathBuf>,
    /// The version of NVRTC.
    version: (u32, u32),
    library: Mutex<Option<Arc<Library>>>,
}

/// An open handle, and the plans made for it.
struct Library {
    context: Arc<CudaContext>,
    /// The version of cuDNN, in NVIDIA's numbering.
    version: usize,
    /// Locked while it is used: one thread may use a handle at a time.
    handle: Mutex<Handle>,
    plans: Mutex<FxHashMap<Convolution, Known>>,
    attentions: Mutex<FxHashMap<Attention, Known>>,
    attentions_launched: AtomicU64,
}

/// A plan, or the refused engines of a convolution that has none.
type Known = Result<Arc<Choice>, Vec<(Engine, String)>>;

struct Handle(sys::cudnnHandle_t);

// SAFETY: NVIDIA's documentation permits the use of a handle by one thread at a time.
#[expect(unsafe_code, reason = "the handle is a pointer")]
unsafe impl Send for Handle {}

impl Drop for Library {
    #[expect(unsafe_code, reason = "a call of cuDNN")]
    fn drop(&mut self) {
        lock(&self.plans).clear();
        lock(&self.attentions).clear();
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: the handle is destroyed once. Nothing can be done about a failure.
            let _ = unsafe { sys::cudnnDestroy(lock(&self.handle).0) };
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A convolution that is ready to run.
pub(super) struct Plan {
    // The plan is destroyed before its handle.
    choice: Arc<Choice>,
    library: Arc<Library>,
    ids: Vec<i64>,
    direction: Direction,
}

impl Dnn {
    /// cuDNN that is not loaded yet. `folders` are searched after those of the dynamic loader; `version` is that of NVRTC.
    pub(super) fn new(context: Arc<CudaContext>, folders: Vec<PathBuf>, version: (u32, u32)) -> Dnn {
        Dnn { context, folders, version, library: Mutex::default() }
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
        // SAFETY: the library is loaded, and has the function.
        let version = unsafe { sys::cudnnGetVersion() };
        let made = Arc::new(Library {
            context: self.context.clone(),
            version,
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
        let known = lock(&library.plans).get(convolution).cloned();
        let known = match known {
            Some(known) => known,
            None => {
                let known = library.choose(convolution.dtype, |handle| convolution.graph(handle))?;
                lock(&library.plans).insert(convolution.clone(), known.clone());
                known
            }
        };
        let choice = known.map_err(|refused| DnnError::NoEngine { refused })?;
        let mut ids = convolution.operands().to_vec();
        ids.push(convolution.computed().0);
        if convolution.has_bias {
            ids.push(graph::BIAS);
        }
        Ok(Plan { library, choice, ids, direction: convolution.direction })
    }
}

impl Library {
    fn choose(
        &self,
        dtype: DType,
        graph: impl FnOnce(Option<sys::cudnnHandle_t>) -> Result<Graph, DnnError>,
    ) -> Result<Known, DnnError> {
        self.context.bind_to_thread().map_err(CudaError::from)?;
        let handle = lock(&self.handle);
        match plan::choose(Target::Handle(handle.0), dtype, graph) {
            Ok(choice) => Ok(Ok(Arc::new(choice))),
            Err(DnnError::NoEngine { refused }) => Ok(Err(refused)),
            Err(error) => Err(error),
        }
    }

    /// Adds the execution of a plan to a queue: the tensors of these names at these addresses.
    ///
    /// # Errors
    /// If cuDNN fails.
    #[expect(unsafe_code, reason = "calls of cuDNN")]
    fn execute(
        &self,
        choice: &Choice,
        queue: &mut CudaQueue,
        ids: &[i64],
        addresses: &[u64],
        workspace: u64,
    ) -> Result<()> {
        let failed = |error: DnnError| error.of_call();
        let addresses: Vec<Address> = addresses.iter().map(|&at| Address(at)).collect();
        let pack = Descriptor::new(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
            .and_then(|pack| pack.set(A::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids))
            .and_then(|pack| pack.set(A::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &addresses))
            .and_then(|pack| pack.set(A::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[Address(workspace)]))
            .and_then(Descriptor::finalized)
            .map_err(failed)?;
        let stream = queue.stream().clone();
        stream.context().bind_to_thread().map_err(super::memory::failed)?;
        let handle = lock(&self.handle);
        // SAFETY: the handle and the stream are alive, and no other thread uses the handle. The caller gives the addresses
        // of live tensors of the described sizes, and as much workspace as the plan says.
        unsafe {
            check(sys::cudnnSetStream(handle.0, stream.cu_stream().cast()), "cudnnSetStream")
                .and_then(|()| choice.plan.execute(handle.0, &pack))
        }
        .map_err(failed)?;
        drop(handle);
        Ok(queue.launched()?)
    }
}

/// The addresses of a convolution.
pub(super) struct Places {
    /// The operands in the order of image, filter, grid, without the result.
    pub(super) operands: [u64; 2],
    pub(super) result: u64,
    /// 0 if there is no bias.
    pub(super) bias: u64,
    pub(super) workspace: u64,
}

impl Plan {
    /// The bytes of memory that it takes for itself.
    pub(super) fn workspace(&self) -> usize {
        self.choice.workspace
    }

    /// The description of the plan.
    pub(super) fn described(&self) -> Described {
        self.choice.described()
    }

    /// The tensor that it computes.
    pub(super) fn direction(&self) -> Direction {
        self.direction
    }

    /// Adds the convolution to a queue.
    ///
    /// # Errors
    /// If cuDNN fails.
    pub(super) fn launch(&self, queue: &mut CudaQueue, places: &Places) -> Result<()> {
        let [a, b] = places.operands;
        let addresses = [a, b, places.result, places.bias];
        self.library.execute(&self.choice, queue, &self.ids, &addresses[..self.ids.len()], places.workspace)
    }
}

/// A device that is described: plans can be made for it, and not run.
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
    /// Engines that the heuristics prefer and that are not used, with the reason.
    pub refused: Vec<(Engine, String)>,
}

impl Choice {
    fn described(&self) -> Described {
        let Choice { engine, workspace, refused, .. } = self;
        Described { engine: engine.clone(), workspace: *workspace, refused: refused.clone() }
    }
}

impl Properties {
    /// The device of a JSON text in the format of `CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION`.
    ///
    /// # Errors
    /// If cuDNN is absent or too old, or refuses the text.
    pub fn from_json(json: &str, folders: &[PathBuf]) -> Result<Properties, DnnError> {
        presence::load_dnn(folders, None)?;
        // SAFETY: the library is loaded, and has the function.
        #[expect(unsafe_code, reason = "a call of cuDNN")]
        let version = unsafe { sys::cudnnGetVersion() };
        let descriptor = Descriptor::new(Kind::CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)?
            .set(A::CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, json.as_bytes())?
            .finalized()?;
        Ok(Properties { descriptor, version })
    }

    /// The version of cuDNN, in NVIDIA's numbering.
    pub fn version(&self) -> usize {
        self.version
    }

    /// Makes the plan of a convolution for the device.
    ///
    /// # Errors
    /// If cuDNN refuses the graph or has no engine for it.
    pub fn plan(&self, convolution: &Convolution) -> Result<Described, DnnError> {
        let target = Target::Properties(&self.descriptor);
        Ok(plan::choose(target, convolution.dtype, |handle| convolution.graph(handle))?.described())
    }
}
