//! The share of blocks and threads in the elements of a channel group.

use super::items::Space;
use super::state::BATCH;
use crate::cuda::kernels::reduce::{TILE, parts_of, tiles_of};
use crate::cuda::launch::{THREADS, threads_for};

/// The rows of a block that reads neighbouring channels.
const ROWS: usize = THREADS as usize / TILE;

/// The share of a block and of a thread in the elements.
pub(super) struct Form {
    /// True if a block reads 32 neighbouring channels, a warp of it one element of each in a step.
    are_neighbours: bool,
    /// The elements of a vector.
    pub(super) lanes: usize,
    /// The blocks of a part.
    tiles: usize,
    pub(super) parts: usize,
    /// True if no element of a channel is beside another.
    is_last: bool,
}

impl Form {
    /// The form for a space whose widest elements have so many bytes.
    pub(super) fn of(space: &Space, widest: usize) -> Form {
        let (channels, count) = (space.channels, space.count());
        let are_neighbours = space.inner == 1 && channels >= TILE / 2;
        let lanes = match 16 / widest.max(2) {
            lanes if !are_neighbours && space.inner.is_multiple_of(lanes) => lanes,
            _ => 1,
        };
        let tiles = tiles_of(channels, are_neighbours);
        let parts = parts_of(tiles, count, are_neighbours);
        Form { are_neighbours, lanes, tiles, parts, is_last: space.inner == 1 }
    }

    /// The vectors that a thread reads before it merges their moments.
    pub(super) fn steps(&self) -> usize {
        BATCH / self.lanes
    }

    /// The statements that set the channel `c` of a thread and the range of its part.
    pub(super) fn place(&self, index: &str) -> String {
        match self.are_neighbours {
            true => format!(
                "  {index} c = blockIdx.x / parts * {TILE} + (threadIdx.x & 31), part = blockIdx.x % parts;
  const u32 lane = threadIdx.x >> 5, lanes = {ROWS};
  const bool is_in = c < channels;
  if (!is_in) c = 0;
  const u64 low = (u64)count * part / parts, high = is_in ? (u64)count * (part + 1) / parts : 0;\n"
            ),
            false => format!(
                "  const {index} c = blockIdx.x / parts, part = blockIdx.x % parts;
  const u32 lane = threadIdx.x, lanes = blockDim.x;
  const bool is_in = true;
  const u64 low = (u64)(count / {lanes}) * part / parts * {lanes}, high = (u64)(count / {lanes}) * (part + 1) / parts * {lanes};\n",
                lanes = self.lanes
            ),
        }
    }

    /// The position of the element `k` of channel `c`.
    pub(super) fn at(&self, index: &str) -> String {
        match self.is_last {
            true => format!("({index})k * channels + c"),
            false => format!(
                "({index})k + divided(({index})k, inner, inner_by) * ((channels - 1) * inner) + c * inner"
            ),
        }
    }

    /// The statements that merge the states of a block and leave one thread for each channel.
    pub(super) fn end(&self) -> String {
        match self.are_neighbours {
            true => format!(
                "  __shared__ State rows[{ROWS}][{TILE}];
  rows[lane][threadIdx.x & 31] = state;
  __syncthreads();
  if (lane || !is_in) return;
  for (u32 r = 1; r < lanes; r++) state = merged(state, rows[r][threadIdx.x & 31]);\n"
            ),
            false => "  state = block_state(state);\n  if (threadIdx.x) return;\n".into(),
        }
    }

    /// The blocks, and the threads of each, for so many elements of a channel.
    pub(super) fn shape(&self, count: usize) -> [usize; 2] {
        let threads = match self.are_neighbours {
            true => THREADS,
            false => threads_for(count.div_ceil(self.parts * BATCH)),
        };
        [self.tiles * self.parts, threads as usize]
    }
}
