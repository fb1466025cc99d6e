//! A ring of pinned blocks for uploads, so that the host continues while the device copies.
//!
//! Uploads fill blocks in turn. A full block is reused once the device has copied its bytes:
//!
//! ```text
//! upload 3 MiB   block 0  [3 MiB.]                     copied at event a
//! upload 3 MiB   block 1  [3 MiB.]   block 0 is full until event a
//! upload 3 MiB   block 0  if a has happened; otherwise a third block
//! ```

use super::memory::{Pinned, failed};
use crate::backend::DeviceError;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result};
use std::collections::VecDeque;
use std::sync::Arc;

/// The size of a block in bytes.
const BLOCK: usize = 4 << 20;

/// The maximum number of blocks of a queue. If all are in use, an upload waits for the oldest block.
const MOST_BLOCKS: usize = 16;

/// The alignment of uploads in a block.
const ALIGNMENT: usize = 64;

/// The blocks of a queue.
pub(super) struct Staging {
    context: Arc<CudaContext>,
    /// The block that uploads are written to.
    block: Option<Pinned>,
    /// The used bytes of the block.
    taken: usize,
    /// Full blocks, oldest first, each with the event after its last copy.
    full: VecDeque<(CudaEvent, Pinned)>,
}

impl Staging {
    pub(super) fn new(context: Arc<CudaContext>) -> Staging {
        Staging { context, block: None, taken: 0, full: VecDeque::new() }
    }

    /// Starts a copy of bytes to the device address `to`.
    ///
    /// # Errors
    /// If the driver cannot allocate memory, or earlier work of the device failed.
    #[expect(unsafe_code, reason = "a call of the driver")]
    pub(super) fn upload(
        &mut self,
        stream: &CudaStream,
        from: &[u8],
        mut to: u64,
    ) -> Result<(), DeviceError> {
        self.context.bind_to_thread().map_err(failed)?;
        for piece in from.chunks(BLOCK) {
            if self.taken + piece.len() > BLOCK {
                self.fill(stream)?;
            }
            let block = match self.block.take() {
                Some(block) => block,
                None => self.next()?,
            };
            let place = &mut self.block.insert(block).bytes()[self.taken..][..piece.len()];
            place.copy_from_slice(piece);
            // SAFETY: the place is not overwritten before the copy is done, and the target has the same length.
            unsafe { result::memcpy_htod_async(to, place, stream.cu_stream()) }.map_err(failed)?;
            self.taken = (self.taken + piece.len()).next_multiple_of(ALIGNMENT);
            to += piece.len() as u64;
        }
        Ok(())
    }

    /// Resets the block to its beginning. The caller has waited for the stream, so no copy reads the block.
    pub(super) fn reuse_block(&mut self) {
        self.taken = 0;
    }

    /// Appends the block to the full blocks.
    fn fill(&mut self, stream: &CudaStream) -> Result<(), DeviceError> {
        // Copies may read the block until the event, so the block must not be reused without an event.
        let event = stream.record_event(None).map_err(failed)?;
        self.full.extend(self.block.take().map(|block| (event, block)));
        self.taken = 0;
        Ok(())
    }

    /// A block that no copy reads: the oldest full block, or a new one below the maximum.
    fn next(&mut self) -> Result<Pinned, DeviceError> {
        if let Some((event, block)) = self.full.pop_front() {
            if self.full.len() + 1 >= MOST_BLOCKS {
                let waited = event.synchronize();
                if let Err(error) = waited {
                    self.full.push_front((event, block));
                    return Err(failed(error));
                }
                return Ok(block);
            }
            if event.is_complete() {
                return Ok(block);
            }
            self.full.push_front((event, block));
        }
        Pinned::new(&self.context, BLOCK)
    }
}
