//! Execution of plans.

use super::descriptor::{Address, Attribute as A, Descriptor, Kind};
use super::graph::{ALIGNMENT, Convolution, Direction};
use super::plan::Choice;
use super::planner::Planner;
use super::problem::Problem;
use super::{Described, DnnError, lock};
use crate::cuda::memory::failed as of_driver;
use crate::cuda::products::alignment_of;
use crate::cuda::queue::CudaQueue;
use crate::kernel;
use std::sync::{Arc, Mutex};

/// The plan of a problem that is ready to run.
pub(super) struct ProblemPlan {
    // The plan is destroyed before its handle.
    choice: Arc<Choice>,
    /// Choices that replace `choice`, by the alignment of tensors: for smaller alignments, and after an engine
    /// failed.
    others: Mutex<Vec<(u32, Arc<Choice>)>>,
    planner: Arc<Planner>,
    problem: Problem,
    ids: Vec<i64>,
}

impl ProblemPlan {
    /// The plan of a problem with aligned tensors.
    ///
    /// # Errors
    /// If cuDNN has no engine, or fails.
    pub(super) fn new(planner: Arc<Planner>, problem: Problem) -> Result<ProblemPlan, DnnError> {
        let choice = planner.plan(&problem, ALIGNMENT, problem.workspace())?;
        let ids = problem.ids();
        Ok(ProblemPlan { choice, others: Mutex::default(), planner, problem, ids })
    }

    pub(super) fn workspace(&self) -> usize {
        self.choice.workspace
    }

    /// The names of the tensors, in the order of their addresses.
    pub(super) fn ids(&self) -> &[i64] {
        &self.ids
    }

    pub(super) fn planner(&self) -> &Planner {
        &self.planner
    }

    /// Adds the plan to a queue. All addresses of tensors are multiples of `alignment` bytes.
    ///
    /// If the engine fails, the following engines of the heuristics' order are tried. The first that succeeds also
    /// computes later runs.
    ///
    /// # Errors
    /// If every engine fails, or there is none for the alignment and the workspace of the plan.
    pub(super) fn launch(
        &self,
        queue: &mut CudaQueue,
        addresses: &[u64],
        alignment: u32,
        workspace: u64,
    ) -> kernel::Result<()> {
        let failed = |error: DnnError| error.of_call();
        let pack = pack(&self.ids, addresses, workspace).map_err(failed)?;
        queue.stream().context().bind_to_thread().map_err(of_driver)?;
        let choice = self.choice_for(alignment)?;
        let next = |skipped| self.planner.next(&self.problem, alignment, self.choice.workspace, skipped);
        if let Some(other) = self.planner.run(queue, choice, &pack, next)? {
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
        let choice = self.planner.plan(&self.problem, alignment, self.choice.workspace)?;
        others.push((alignment, choice.clone()));
        Ok(choice)
    }
}

/// A prepared convolution.
pub(in crate::cuda) struct Plan {
    plan: ProblemPlan,
    direction: Direction,
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
    /// The plan of a convolution.
    ///
    /// # Errors
    /// If cuDNN has no engine, or fails.
    pub(super) fn new(planner: Arc<Planner>, convolution: &Convolution) -> Result<Plan, DnnError> {
        let plan = ProblemPlan::new(planner, Problem::Convolution(Box::new(convolution.clone())))?;
        Ok(Plan { plan, direction: convolution.direction })
    }

    /// The size of the workspace in bytes.
    pub(in crate::cuda) fn workspace(&self) -> usize {
        self.plan.workspace()
    }

    /// The description of the plan.
    pub(in crate::cuda) fn described(&self) -> Described {
        self.plan.choice.described()
    }

    /// True if the engine uses tensor cores.
    pub(in crate::cuda) fn has_tensor_cores(&self) -> bool {
        self.plan.choice.engine.notes.has_tensor_cores()
    }

    /// The direction of the convolution.
    pub(in crate::cuda) fn direction(&self) -> Direction {
        self.direction
    }

    /// Enqueues the convolution. The addresses of tensors may have an alignment of less than 16 bytes.
    ///
    /// # Errors
    /// If every engine fails, or there is none for the alignment and the workspace of the plan.
    pub(in crate::cuda) fn launch(&self, queue: &mut CudaQueue, places: &Places) -> kernel::Result<()> {
        let [a, b] = places.operands;
        let addresses = [a, b, places.result, places.bias];
        let addresses = &addresses[..self.plan.ids.len()];
        self.plan.launch(queue, addresses, alignment_of(addresses, ALIGNMENT), places.workspace)
    }
}

/// The variant pack of a run: addresses by the unique ids of tensors.
///
/// # Errors
/// If cuDNN rejects the descriptor.
fn pack(ids: &[i64], addresses: &[u64], workspace: u64) -> Result<Descriptor, DnnError> {
    let addresses: Vec<Address> = addresses.iter().map(|&at| Address(at)).collect();
    Descriptor::new(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?
        .set(A::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids)?
        .set(A::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &addresses)?
        .set(A::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[Address(workspace)])?
        .finalized()
}
