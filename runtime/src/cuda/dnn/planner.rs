//! An open handle of cuDNN: chooses plans, keeps them, and runs them.

use super::descriptor::{Descriptor, check};
use super::plan::{self, Choice, Conditions, Target};
use super::problem::Problem;
use super::{DnnError, Engine, loaded_version, lock};
use crate::cuda::cache::Cache;
use crate::cuda::choices::Recorded;
use crate::cuda::presence::CudaError;
use crate::cuda::queue::CudaQueue;
use crate::kernel;
use cudarc::cudnn::sys;
use cudarc::driver::CudaContext;
use rustc_hash::FxHashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

/// An open handle, and the plans created for it.
pub(super) struct Planner {
    pub(super) context: Arc<CudaContext>,
    /// True if f32 convolutions may use TF32.
    tf32: bool,
    /// The disk cache of plans.
    cache: Option<Arc<Cache>>,
    choices: Arc<Recorded>,
    /// The version of cuDNN, in NVIDIA's numbering.
    pub(super) version: usize,
    /// The handle, locked during each use: only one thread may use it at a time.
    handle: Mutex<Handle>,
    /// Plans by convolution and alignment in bytes of the tensors.
    plans: Mutex<FxHashMap<(Problem, u32), Known>>,
    pub(super) attentions_launched: AtomicU64,
}

/// A plan, or the refused engines of a problem that has none.
type Known = Result<Arc<Choice>, Vec<(Engine, String)>>;

struct Handle(sys::cudnnHandle_t);

// SAFETY: NVIDIA's documentation permits the use of a handle by one thread at a time.
#[expect(unsafe_code, reason = "the handle is a pointer")]
unsafe impl Send for Handle {}

impl Drop for Planner {
    #[expect(unsafe_code, reason = "a call of cuDNN")]
    fn drop(&mut self) {
        let is_bound = self.context.bind_to_thread().is_ok();
        lock(&self.plans).clear();
        if is_bound {
            // SAFETY: the handle is destroyed once. Nothing can be done about a failure.
            let _ = unsafe { sys::cudnnDestroy(lock(&self.handle).0) };
        }
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

impl Planner {
    /// Opens a handle of cuDNN, which is loaded.
    ///
    /// # Errors
    /// If cuDNN or the driver fails.
    #[expect(unsafe_code, reason = "calls of cuDNN")]
    pub(super) fn new(
        context: Arc<CudaContext>,
        tf32: bool,
        cache: Option<Arc<Cache>>,
        choices: Arc<Recorded>,
    ) -> Result<Planner, DnnError> {
        context.bind_to_thread().map_err(CudaError::from)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is that of a variable.
        check(unsafe { sys::cudnnCreate(&raw mut handle) }, "cudnnCreate")?;
        Ok(Planner {
            context,
            tf32,
            cache,
            choices,
            version: loaded_version(),
            handle: Mutex::new(Handle(handle)),
            plans: Mutex::default(),
            attentions_launched: AtomicU64::new(0),
        })
    }

    /// The conditions of a choice for a problem.
    fn conditions(&self, problem: &Problem, alignment: u32, workspace: usize, skipped: usize) -> Conditions {
        let tf32 = self.tf32 && matches!(problem, Problem::Convolution(_));
        Conditions { tf32, alignment, workspace, skipped }
    }

    /// The choice for a problem with tensors at addresses that are multiples of `alignment` bytes. Plans with less than
    /// the usual workspace are not kept.
    pub(super) fn plan(
        &self,
        problem: &Problem,
        alignment: u32,
        workspace: usize,
    ) -> Result<Arc<Choice>, DnnError> {
        let key = (problem.clone(), alignment);
        let is_kept = workspace == problem.workspace();
        let known = lock(&self.plans).get(&key).filter(|_| is_kept).cloned();
        let known = match known {
            Some(known) => known,
            None => {
                let known = known_of(self.cached(problem, alignment, workspace))?;
                if is_kept {
                    lock(&self.plans).insert(key, known.clone());
                }
                known
            }
        };
        known.map_err(|refused| DnnError::NoEngine { refused })
    }

    /// The plan from the disk cache, or a new plan. The problem and the conditions are everything that the plan depends
    /// on, besides the device.
    fn cached(&self, problem: &Problem, alignment: u32, workspace: usize) -> Result<Choice, DnnError> {
        let conditions = self.conditions(problem, alignment, workspace, 0);
        let choice = match &self.cache {
            Some(cache) => self.cached_in(cache, problem, conditions)?,
            None => self.choose(problem, conditions)?,
        };
        self.record(problem, conditions, &choice);
        Ok(choice)
    }

    fn cached_in(
        &self,
        cache: &Cache,
        problem: &Problem,
        conditions: Conditions,
    ) -> Result<Choice, DnnError> {
        self.context.bind_to_thread().map_err(CudaError::from)?;
        let Conditions { tf32, alignment, workspace, .. } = conditions;
        let key = format!("cuDNN {}, TF32 {tf32}, {alignment}, {workspace}: {problem:?}", self.version);
        let saved = cache.get(&key);
        let restored = saved.and_then(|saved| Choice::restored(lock(&self.handle).0, &saved));
        if let Some(choice) = restored {
            return Ok(choice);
        }
        let choice = self.choose(problem, conditions)?;
        if let Some(saved) = choice.saved() {
            cache.put(&key, &saved);
        }
        Ok(choice)
    }

    fn choose(&self, problem: &Problem, conditions: Conditions) -> Result<Choice, DnnError> {
        self.context.bind_to_thread().map_err(CudaError::from)?;
        let handle = lock(&self.handle);
        plan::choose(Target::Handle(handle.0), problem, conditions)
    }

    /// The choice behind the first `skipped` configurations of the heuristics.
    ///
    /// # Errors
    /// If cuDNN fails, or no further engine takes at most this workspace.
    pub(super) fn next(
        &self,
        problem: &Problem,
        alignment: u32,
        workspace: usize,
        skipped: usize,
    ) -> Result<Choice, DnnError> {
        let conditions = self.conditions(problem, alignment, workspace, skipped);
        let choice = self.choose(problem, conditions)?;
        self.record(problem, conditions, &choice);
        Ok(choice)
    }

    /// Records the engine of a problem, in place of an engine that failed.
    fn record(&self, problem: &Problem, conditions: Conditions, choice: &Choice) {
        let Conditions { alignment, workspace, tf32, .. } = conditions;
        let operation =
            format!("{problem:?}, aligned to {alignment}, at most {workspace} bytes, TF32 {tf32}");
        self.choices.add(operation, choice.algorithm());
    }

    /// Enqueues the execution of a plan. If its engine fails, `next` creates plans of the engines after the first
    /// `skipped` configurations until an engine succeeds; returns the plan of that engine. The context of the queue
    /// must be current in this thread.
    ///
    /// # Errors
    /// If every engine fails, or earlier work of the queue failed.
    pub(super) fn run(
        &self,
        queue: &mut CudaQueue,
        mut choice: Arc<Choice>,
        pack: &Descriptor,
        next: impl Fn(usize) -> Result<Choice, DnnError>,
    ) -> kernel::Result<Option<Arc<Choice>>> {
        let mut failure = None;
        while let Err(error) = self.execute(queue, &choice, pack) {
            if let Some(of_device) = queue.failure_of_device() {
                return Err(of_device.into());
            }
            // An engine that only cannot be recorded computes the runs that are not replayed.
            if !error.is_of_engine() || queue.is_recording() {
                return Err(failure.unwrap_or(error).of_call().into());
            }
            let failure = failure.get_or_insert(error);
            choice = Arc::new(next(choice.seen).map_err(|_| failure.of_call())?);
        }
        Ok(failure.map(|_| choice))
    }

    /// Enqueues the execution of a plan. The context of the queue must be current in this thread.
    ///
    /// # Errors
    /// If cuDNN fails.
    #[expect(unsafe_code, reason = "calls of cuDNN")]
    fn execute(&self, queue: &mut CudaQueue, choice: &Choice, pack: &Descriptor) -> Result<(), DnnError> {
        let stream = queue.stream();
        let handle = lock(&self.handle);
        // SAFETY: the handle and the stream are alive, and no other thread uses the handle. The caller passes the
        // addresses of live tensors of the described sizes, and the workspace that the plan requires.
        unsafe {
            check(sys::cudnnSetStream(handle.0, stream.cu_stream().cast()), "cudnnSetStream")?;
            choice.plan.execute(handle.0, pack)
        }
    }
}
