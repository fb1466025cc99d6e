//! Launches: a function, the shape of its grid, and the addresses of operands and results.

use super::Shared;
use super::compile::{self, Compilation};
use super::memory::failed;
use super::names::{self, Label};
use super::queue::{CudaQueue, address};
use crate::device::{DeviceError, Span};
use crate::kernel::{Io, KernelError, Out, Result};
use cudarc::driver::{LaunchConfig, PushKernelArg};
use smallvec::SmallVec;
use std::any::Any;
use std::sync::Arc;

/// The threads of a block, unless a kernel needs another number.
pub(super) const THREADS: u32 = 256;

/// The arguments of a kernel: addresses and 64-bit integers.
pub(super) type Args = SmallVec<[u64; 12]>;

/// A kernel with the shape of its grid.
#[derive(Clone)]
pub(super) struct Kernel {
    compilation: Arc<Compilation>,
    /// The node that the kernel is for, if kernels are dumped.
    label: Option<Arc<Label>>,
    blocks: u32,
    threads: u32,
}

impl Kernel {
    /// A kernel with a number of blocks; a launch of 0 blocks does nothing. The source is compiled when the kernel
    /// becomes part of a plan.
    ///
    /// # Errors
    /// If there are more blocks than a grid permits.
    pub(super) fn new(shared: &Shared, text: &str, blocks: usize, threads: u32) -> Result<Kernel> {
        let blocks = u32::try_from(blocks).ok().filter(|&blocks| i32::try_from(blocks).is_ok());
        let blocks = blocks.ok_or_else(|| KernelError::unsupported("grids of 2^31 blocks"))?;
        let label = names::label();
        let (text, entry) = names::named(text, label.as_deref());
        let compilation = shared.compiler.compilation(&text, entry);
        compile::request(&compilation);
        Ok(Kernel { compilation, label: label.filter(|_| shared.dump.is_some()), blocks, threads })
    }

    /// Enqueues the kernel.
    ///
    /// # Errors
    /// If the compiler rejects the source, the driver rejects the launch, or earlier work failed.
    #[expect(unsafe_code, reason = "the driver cannot check the arguments of a kernel")]
    pub(super) fn launch(&self, queue: &mut CudaQueue, args: &[u64]) -> Result<()> {
        if self.blocks == 0 {
            return Ok(());
        }
        let config = LaunchConfig {
            grid_dim: (self.blocks, 1, 1),
            block_dim: (self.threads, 1, 1),
            shared_mem_bytes: 0,
        };
        if let Some(label) = &self.label {
            queue.note_launch((label, self.compilation.source()), [self.blocks, self.threads])?;
        }
        let stream = queue.stream().clone();
        let mut builder = stream.launch_builder(self.compilation.function()?);
        for arg in args {
            builder.arg(arg);
        }
        // SAFETY: every parameter of our kernels is a pointer or a 64-bit integer, and the same function makes the
        // source and its arguments.
        unsafe { builder.launch(config) }.map_err(failed)?;
        Ok(queue.launched()?)
    }
}

/// The number of blocks for `n` elements, one or more elements per thread.
pub(super) fn blocks_for(n: usize) -> usize {
    n.div_ceil(THREADS as usize).min(1 << 16)
}

/// The threads of a block that iterates over `n` elements: a power of two, and a multiple of the warp size.
pub(super) fn threads_for(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX).clamp(32, THREADS).next_power_of_two()
}

/// The queue of the running kernel.
pub(super) fn queue<'q>(io: &'q mut Io<'_>) -> Result<&'q mut CudaQueue> {
    let queue: &mut dyn Any = io.queue()?;
    queue.downcast_mut().ok_or_else(|| {
        DeviceError::Failed("expected a queue of a CUDA device, found another queue".into()).into()
    })
}

fn start(span: Span<'_>) -> Result<u64> {
    Ok(address(span.memory, span.offset)?)
}

/// The address of operand `i`, even if a result is computed in its place.
pub(super) fn operand(io: &Io<'_>, i: usize) -> Result<u64> {
    start(io.operand_on_device(i)?)
}

/// The address of operand `i`, or 0 if it is absent.
pub(super) fn operand_or_none(io: &Io<'_>, i: usize) -> Result<u64> {
    if io.has(i) { operand(io, i) } else { Ok(0) }
}

/// The address of result `j`, or 0 if it is not requested.
pub(super) fn result(io: &Io<'_>, j: usize) -> Result<u64> {
    match io.results.get(j) {
        None | Some(Out::Absent) => Ok(0),
        Some(_) => start(io.out_on_device(j)?),
    }
}

/// The address of the scratch memory.
pub(super) fn scratch(io: &Io<'_>) -> Result<u64> {
    match io.scratch_on_device() {
        Some(span) => start(span),
        None => Ok(0),
    }
}
