//! The CPU backend: the embedded default, and the ground truth for numerics.
//!
//! Tensors are stored in their declared element types. Every operator computes in f32 (in f64 where an operand is
//! f64) and rounds once, to the element type of its result; products accumulate in f32 from the operands as they are
//! stored. So an overflow of fp16 is an overflow here. Results do not depend on the number of threads: work is cut
//! into pieces by its size alone, and sums are in one order.
//!
//! `cpu/kernels/` has the kernels by family, `cpu/groups/` the chains of element-wise operators that one loop computes.

mod groups;
pub(crate) mod kernels;
mod pool;
pub mod statistics;

use crate::backend::{Backend, Candidates, GroupSite, KernelError, Prepared, RunHint, Site};
use crate::session::Runtime;
use ampc_ir::Node;
use ampc_ir::op::OpKind;
use kernels::parallel::{in_pool, runs_sequentially};
use pool::Pool;
use std::sync::{Arc, Mutex, PoisonError};

/// The CPU backend: its threads. Runs at the same time have threads of their own, so that none waits for another.
#[derive(Debug)]
pub struct Cpu {
    threads: usize,
    /// Threads that no run uses.
    idle: Mutex<Vec<Pool>>,
}

impl Cpu {
    /// A backend with this many threads for each run; 0 stands for the number of processors. If the system starts fewer,
    /// the run has fewer; if it starts none, the thread of the caller does the work. Results are the same.
    pub fn new(threads: usize) -> Cpu {
        Cpu { threads, idle: Mutex::default() }
    }
}

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        "CPU"
    }

    fn has_kernel(&self, kind: OpKind) -> bool {
        kernels::find(kind).is_some()
    }

    fn prepare(&self, site: &Site<'_>) -> Result<Prepared, KernelError> {
        let name = site.view.schema.name;
        let prepare = kernels::find(site.kind())
            .ok_or_else(|| KernelError::Unsupported(format!("the operator {name}")))?;
        prepare(site)
    }

    fn has_groups(&self) -> bool {
        true
    }

    fn join(&self, candidates: &Candidates<'_>) -> Vec<Vec<Node>> {
        groups::join(candidates)
    }

    fn prepare_group(&self, group: &GroupSite<'_>) -> Result<Prepared, KernelError> {
        groups::prepare(group)
    }

    fn install(&self, hint: RunHint, work: &mut (dyn FnMut() + Send)) -> bool {
        let stays_here = match hint {
            RunHint::NeedsStack => false,
            RunHint::Parallel => self.threads == 1,
            RunHint::Sequential => true,
        };
        // A part of a run that binds another module is in its threads already.
        if stays_here || in_pool() {
            return runs_sequentially(work);
        }
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = idle().pop();
        let pool = pool.unwrap_or_else(|| Pool::new(self.threads));
        let is_sequential = pool.install(|| runs_sequentially(work));
        idle().push(pool);
        is_sequential
    }
}

impl From<Cpu> for Runtime {
    fn from(cpu: Cpu) -> Runtime {
        Runtime::new(Arc::new(cpu))
    }
}

impl Default for Runtime {
    /// The CPU with as many threads as there are processors, and the default limits.
    fn default() -> Runtime {
        Cpu::new(0).into()
    }
}
