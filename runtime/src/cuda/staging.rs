//! Pinned memory through which uploads go, so that the host goes on while the device copies.
//!
//! Uploads fill blocks in turn. A full block waits until the device has copied its bytes, and is then used again:
//!
//! ```text
//! upload 3 MiB   block 0  [3 MiB.]                     copied at event a
//! upload 3 MiB   block 1  [3 MiB.]   block 0 behind a
//! upload 3 MiB   block 0  if a has happened; otherwise a third block
//! ```

use super::memory::{Pinned, failed};
use crate::backend::DeviceError;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result};
use std::collections::VecDeque;
use std::sync::Arc;

/// The bytes of a block.
const BLOCK: usize = 4 << 20;

/// The most blocks of a queue: an upload waits if the device has to copy the bytes of all of them.
const MOST_BLOCKS: usize = 16;

/// The alignment of uploads in a block.
const ALIGNMENT: usize = 64;

/// The blocks of a queue.
pub(super) struct Staging {
    context: Arc<CudaContext>,
    /// The block that uploads are written to.
    block: Option<Pinned>,
    /// The bytes of it that are taken.
    taken: usize,
    /// Full blocks with the event behind the last copy of each, the oldest first.
    full: VecDeque<(CudaEvent, Pinned)>,
}

impl Staging {
    pub(super) fn new(context: Arc<CudaContext>) -> Staging {
        Staging { context, block: None, taken: 0, full: VecDeque::new() }
    }

    /// Begins to copy bytes to the address `to` of the device.
    ///
    /// # Errors
    /// If the driver refuses memory, or earlier work of the device failed.
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
            // SAFETY: the place is not written again before the copy is done, and the target is as long.
            unsafe { result::memcpy_htod_async(to, place, stream.cu_stream()) }.map_err(failed)?;
            self.taken = (self.taken + piece.len()).next_multiple_of(ALIGNMENT);
            to += piece.len() as u64;
        }
        Ok(())
    }

    /// Uses the block from its beginning again. The caller has waited for the stream, so no copy reads the block.
    pub(super) fn reuse_block(&mut self) {
        self.taken = 0;
    }

    /// Puts the block behind the full ones.
    fn fill(&mut self, stream: &CudaStream) -> Result<(), DeviceError> {
        // Copies may read the block until the event, so without an event the block stays.
        let event = stream.record_event(None).map_err(failed)?;
        self.full.extend(self.block.take().map(|block| (event, block)));
        self.taken = 0;
        Ok(())
    }

    /// A block that no copy reads: the oldest, or another if there may be more.
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
