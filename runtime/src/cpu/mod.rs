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

use crate::backend::{Backend, Candidates, GroupSite, KernelError, Load, Prepared, Site};
use crate::session::Runtime;
use ampc_ir::Node;
use ampc_ir::op::OpKind;
use kernels::parallel::alone;
use pool::Pool;
use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};

/// The CPU backend: its threads. Runs at the same time have threads of their own, so that none waits for another.
#[derive(Debug)]
pub struct Cpu {
    threads: usize,
    /// Threads that no run uses.
    idle: Mutex<Vec<Pool>>,
}

thread_local! {
    /// True in a thread that a run has taken.
    static IS_TAKEN: Cell<bool> = const { Cell::new(false) };
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

    fn install(&self, load: Load, work: &mut (dyn FnMut() + Send)) -> bool {
        let is_small = load == Load::Small || load == Load::Flat && self.threads == 1;
        // A part of a run that binds another module is in its threads already.
        if is_small || IS_TAKEN.get() {
            return taken(work);
        }
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = idle().pop();
        let pool = pool.unwrap_or_else(|| Pool::new(self.threads));
        let is_alone = pool.install(|| taken(work));
        idle().push(pool);
        is_alone || self.threads == 1
    }
}

/// Does work of a run in this thread, and returns true if it needs no others.
fn taken(work: &mut (dyn FnMut() + Send)) -> bool {
    /// Gives the thread back when it is dropped, also by a panic.
    struct Taken(bool);
    impl Drop for Taken {
        fn drop(&mut self) {
            IS_TAKEN.set(self.0);
        }
    }
    let _taken = Taken(IS_TAKEN.replace(true));
    alone(work)
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
