//! Runs of plans.

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

/// A convolution that is ready to run.
pub(in crate::cuda) struct Plan {
    // The plan is destroyed before its handle.
    choice: Arc<Choice>,
    /// Choices instead of that one, by the alignment of tensors: where the alignment is less, or an engine has failed.
    others: Mutex<Vec<(u32, Arc<Choice>)>>,
    library: Arc<Library>,
    convolution: Convolution,
    ids: Vec<i64>,
}

/// The addresses of a convolution.
pub(in crate::cuda) struct Places {
    /// The operands in the order of image, filter, grid, without the result.
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

    /// The bytes of memory that it takes for itself.
    pub(in crate::cuda) fn workspace(&self) -> usize {
        self.choice.workspace
    }

    /// The description of the plan.
    pub(in crate::cuda) fn described(&self) -> Described {
        self.choice.described()
    }

    /// True if its engine uses tensor cores.
    pub(in crate::cuda) fn has_tensor_cores(&self) -> bool {
        self.choice.engine.notes.has_tensor_cores()
    }

    /// The tensor that it computes.
    pub(in crate::cuda) fn direction(&self) -> Direction {
        self.convolution.direction
    }

    /// Adds the convolution to a queue. Tensors may be at addresses that are multiples of less than 16 bytes.
    ///
    /// If the engine fails, those behind it in the order of the heuristics are tried, and the first that does not fail
    /// computes later runs too.
    ///
    /// # Errors
    /// If every engine fails, or there is none for the addresses and the workspace of the plan.
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

/// The tensors of a run: addresses by the names of the tensors.
///
/// # Errors
/// If cuDNN refuses the descriptor.
pub(super) fn pack(ids: &[i64], addresses: &[u64], workspace: u64) -> Result<Descriptor, DnnError> {
    let addresses: Vec<Address> = addresses.iter().map(|&at| Address(at)).collect();
    Descriptor::new(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?
        .set(A::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids)?
        .set(A::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &addresses)?
        .set(A::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[Address(workspace)])?
        .finalized()
}

impl Library {
    /// Adds the execution of a plan to a queue. If its engine fails, `next` makes plans of the engines behind the first
    /// `skipped` configurations, until an engine does not fail: returns its plan. The context of the queue is that of the
    /// thread.
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

    /// Adds the execution of a plan to a queue. The context of the queue is that of the thread.
    ///
    /// # Errors
    /// If cuDNN fails.
    #[expect(unsafe_code, reason = "calls of cuDNN")]
    fn execute(&self, queue: &mut CudaQueue, choice: &Choice, pack: &Descriptor) -> Result<(), DnnError> {
        let stream = queue.stream();
        let handle = lock(&self.handle);
        // SAFETY: the handle and the stream are alive, and no other thread uses the handle. The caller gives the addresses
        // of live tensors of the described sizes, and as much workspace as the plan says.
        unsafe {
            check(sys::cudnnSetStream(handle.0, stream.cu_stream().cast()), "cudnnSetStream")?;
            choice.plan.execute(handle.0, pack)
        }
    }
}
