//! Runs of plans.

use super::descriptor::{Address, Attribute as A, Descriptor, Kind, check};
use super::graph::{ALIGNMENT, BIAS, Convolution, Direction};
use super::plan::Choice;
use super::{Described, DnnError, Library, lock};
use crate::cuda::memory::failed as of_driver;
use crate::cuda::products::alignment_of;
use crate::cuda::queue::CudaQueue;
use crate::kernel::Result;
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
    pub(in crate::cuda) fn launch(&self, queue: &mut CudaQueue, places: &Places) -> Result<()> {
        let [a, b] = places.operands;
        let addresses = [a, b, places.result, places.bias];
        let alignment = alignment_of(&addresses[..self.ids.len()], ALIGNMENT);
        let failed = |error: DnnError| error.of_call();
        let pack = Descriptor::new(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
            .and_then(|pack| pack.set(A::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &self.ids))
            .and_then(|pack| {
                let addresses = addresses.map(Address);
                pack.set(A::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &addresses[..self.ids.len()])
            })
            .and_then(|pack| pack.set(A::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[Address(places.workspace)]))
            .and_then(Descriptor::finalized)
            .map_err(failed)?;
        queue.stream().context().bind_to_thread().map_err(of_driver)?;
        let mut choice = self.choice_for(alignment)?;
        let mut failure = None;
        while let Err(error) = self.execute(queue, &choice, &pack) {
            if !error.is_of_engine() {
                return Err(failed(failure.unwrap_or(error)).into());
            }
            let failure = failure.get_or_insert(error);
            let next = self.library.choose(&self.convolution, alignment, self.choice.workspace, choice.seen);
            choice = Arc::new(next.map_err(|_| failure.of_call())?);
            let mut others = lock(&self.others);
            others.retain(|&(of, _)| of != alignment);
            others.push((alignment, choice.clone()));
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

    #[expect(unsafe_code, reason = "calls of cuDNN")]
    fn execute(&self, queue: &mut CudaQueue, choice: &Choice, pack: &Descriptor) -> Result<(), DnnError> {
        let stream = queue.stream();
        let handle = lock(&self.library.handle);
        // SAFETY: the handle and the stream are alive, and no other thread uses the handle. The caller gives the addresses
        // of live tensors of the described sizes, and as much workspace as the plan says.
        unsafe {
            check(sys::cudnnSetStream(handle.0, stream.cu_stream().cast()), "cudnnSetStream")?;
            choice.plan.execute(handle.0, pack)
        }
    }
}
