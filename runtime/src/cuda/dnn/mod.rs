//! Convolutions and attention of cuDNN, through its graph API.
//!
//! The library is loaded when the first convolution or attention is prepared, so other models do not need cuDNN.
//! Equal convolutions share one plan, and so do equal attentions. The disk cache of kernels also stores plans, so
//! that later processes neither ask for heuristics nor compile engines. Plans can be created for a described device
//! ([`Properties`]), without a GPU or a driver.
//!
//! `descriptor.rs` has the calls, `graph.rs`, `attention.rs` and `gradient.rs` the operation graphs, and `problem.rs`
//! what all of them share. `plan.rs` chooses engines, `planner.rs` keeps and runs the choices, and `launch.rs` has
//! prepared plans. `properties.rs` creates plans for described devices.

mod attention;
mod descriptor;
mod error;
mod gradient;
mod graph;
mod launch;
mod operations;
mod plan;
mod planner;
mod problem;
mod properties;

pub use attention::{Attention, Strided};
pub(super) use attention::{AttentionPlaces, AttentionPlan, TENSORS};
pub use error::DnnError;
pub use gradient::AttentionGradient;
pub use graph::{Convolution, Direction, Layout};
pub(super) use launch::{Places, Plan};
pub use plan::{Engine, MOST_WORKSPACE, Notes};
pub(super) use problem::Problem;
pub use properties::{Described, Properties};

use super::cache::Cache;
use super::choices::Recorded;
use super::presence;
use cudarc::cudnn::sys;
use cudarc::driver::CudaContext;
use planner::Planner;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    planner: Mutex<Option<Arc<Planner>>>,
}

/// The version of the loaded cuDNN, in NVIDIA's numbering.
#[expect(unsafe_code, reason = "a call of cuDNN")]
fn loaded_version() -> usize {
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
        Dnn { context, folders, version, tf32, cache, choices, planner: Mutex::default() }
    }

    /// The version of cuDNN in NVIDIA's numbering; `None` before it is loaded.
    pub(super) fn version(&self) -> Option<usize> {
        lock(&self.planner).as_ref().map(|planner| planner.version)
    }

    /// The planner, whose library is loaded by the first call.
    ///
    /// # Errors
    /// If cuDNN is absent, too old, or fails.
    fn planner(&self) -> Result<Arc<Planner>, DnnError> {
        let mut planner = lock(&self.planner);
        if let Some(planner) = &*planner {
            return Ok(planner.clone());
        }
        presence::load_dnn(&self.folders, Some(self.version))?;
        let Dnn { context, tf32, cache, choices, .. } = self;
        let opened = Arc::new(Planner::new(context.clone(), *tf32, cache.clone(), choices.clone())?);
        *planner = Some(opened.clone());
        Ok(opened)
    }

    /// The plan of a convolution.
    ///
    /// # Errors
    /// If cuDNN is absent, too old, has no engine, or fails.
    pub(super) fn plan(&self, convolution: &Convolution) -> Result<Plan, DnnError> {
        Plan::new(self.planner()?, convolution)
    }
}
