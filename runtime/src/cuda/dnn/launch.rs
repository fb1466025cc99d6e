//! Execution of plans.

use super::descriptor::{Address, Attribute as A, Descriptor, Kind, check};
use super::graph::{ALIGNMENT, BIAS, Convolution, Direction};
use super::plan::Choice;
use super::{Described, DnnError, Library, lock};
use crate::cuda::memory::failed as of_driver;
use crate::cuda::products::alignment_of;
use crate::cuda::queue::CudaQueue;
use crate::kernel;
use cudarc::cudnn::sys;
use std::sync::{Arc, Mutex};

/// A prepared convolution.
pub(in crate::cuda) struct Plan {
    // The plan is destroyed before its handle.
    choice: Arc<Choice>,
    /// Choices that replace `choice`, by the alignment of tensors: for smaller alignments, and after an engine
    /// failed.
    others: Mutex<Vec<(u32, Arc<Choice>)>>,
    library: Arc<Library>,
    convolution: Convolution,
    ids: Vec<i64>,
}

/// The addresses of the tensors.
pub(in crate::cuda) struct Places {
    /// The operands in the order image, filter, grid, without the result.
    pub(in crate::cuda) operands: [u64; 2],
    pub(in crate::cuda) result: u64,
    /// 0 if there is no bias.
    pub(in crate::cuda) bias: u64,
    pub(in crate::cuda) workspace: u64,
}

impl Plan {
    /// The plan of a convolution that `choice` computes.
    pub(super) fn new(library: Arc<Library>, choice: Arc<Choice>, convolution: &Convolution) -> Plan {
        let mut ids = convolution.operands().to_vec();
        ids.push(convolution.computed().0);
        if convolution.has_bias {
            ids.push(BIAS);
        }
        Plan { choice, others: Mutex::default(), library, convolution: convolution.clone(), ids }
    }

    /// The size of the workspace in bytes.
    pub(in crate::cuda) fn workspace(&self) -> usize {
        self.choice.workspace
    }

    /// The description of the plan.
    pub(in crate::cuda) fn described(&self) -> Described {
        self.choice.described()
    }

    /// True if the engine uses tensor cores.
    pub(in crate::cuda) fn has_tensor_cores(&self) -> bool {
        self.choice.engine.notes.has_tensor_cores()
    }

    /// The direction of the convolution.
    pub(in crate::cuda) fn direction(&self) -> Direction {
        self.convolution.direction
    }

    /// Enqueues the convolution. The addresses of tensors may have an alignment of less than 16 bytes.
    ///
    /// If the engine fails, the following engines of the heuristics' order are tried. The first that succeeds also
    /// computes later runs.
    ///
    /// # Errors
    /// If every engine fails, or there is none for the alignment and the workspace of the plan.
    pub(in crate::cuda) fn launch(&self, queue: &mut CudaQueue, places: &Places) -> kernel::Result<()> {
        let [a, b] = places.operands;
        let addresses = [a, b, places.result, places.bias];
        let alignment = alignment_of(&addresses[..self.ids.len()], ALIGNMENT);
        let failed = |error: DnnError| error.of_call();
        let pack = pack(&self.ids, &addresses[..self.ids.len()], places.workspace).map_err(failed)?;
        queue.stream().context().bind_to_thread().map_err(of_driver)?;
        let choice = self.choice_for(alignment)?;
        let next = |skipped| {
            let workspace = self.choice.workspace;
            self.library.choose_convolution(&self.convolution, alignment, workspace, skipped)
        };
        if let Some(other) = self.library.run(queue, choice, &pack, next)? {
            let mut others = lock(&self.others);
            others.retain(|&(of, _)| of != alignment);
            others.push((alignment, other));
        }
        Ok(queue.launched()?)
    }

    /// The choice for tensors at addresses that are multiples of `alignment` bytes.
    fn choice_for(&self, alignment: u32) -> Result<Arc<Choice>, DnnError> {
        let mut others = lock(&self.others);
        if let Some((_, choice)) = others.iter().find(|&&(of, _)| of == alignment) {
            return Ok(choice.clone());
        }
        if alignment == ALIGNMENT {
            return Ok(self.choice.clone());
        }
        let choice = self.library.plan(&self.convolution, alignment, self.choice.workspace)?;
        others.push((alignment, choice.clone()));
        Ok(choice)
    }
}

/// The variant pack of a run: addresses by the unique ids of tensors.
///
/// # Errors
/// If cuDNN rejects the descriptor.
pub(super) fn pack(ids: &[i64], addresses: &[u64], workspace: u64) -> Result<Descriptor, DnnError> {
    let addresses: Vec<Address> = addresses.iter().map(|&at| Address(at)).collect();
    Descriptor::new(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?
        .set(A::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids)?
        .set(A::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &addresses)?
        .set(A::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[Address(workspace)])?
        .finalized()
}

impl Library {
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
            if !error.is_of_engine() {
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
