//! The CPU backend: the embedded default, and the ground truth for numerics.
//!
//! Tensors are stored in their declared element types. Every operator computes in f32 (in f64 where an operand is
//! f64) and rounds once, to the element type of its result; products accumulate in f32 from the operands as they are
//! stored. So an overflow of fp16 is an overflow here. Results do not depend on the number of threads: work is cut
//! into pieces by its size alone, and sums are in one order.
//!
//! `cpu/kernels/` has the kernels by family.

pub(crate) mod kernels;
mod pool;

use crate::backend::{Backend, KernelError, Prepared, Site};
use crate::session::Runtime;
use ampc_ir::op::OpKind;
use pool::Pool;
use std::sync::Arc;

/// The CPU backend: its threads.
#[derive(Debug)]
pub struct Cpu(Pool);

impl Cpu {
    /// A backend of so many threads, 0 for as many as there are processors. If the system starts no more, there are
    /// fewer; if it starts none, the thread of the caller does the work. Results are the same.
    pub fn new(threads: usize) -> Cpu {
        Cpu(Pool::new(threads))
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

    fn install(&self, work: &mut (dyn FnMut() + Send)) {
        self.0.install(work);
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
