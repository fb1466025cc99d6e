//! Stable sorts of 32-bit keys, and the segments of equal keys.
//!
//! A block sorts up to [`SMALL`] keys in shared memory by a bitonic network, with the position of a key as its low bits.
//! More keys are sorted digit by digit of 8 bits, from the lowest digit on (LSD radix sort; Satish, Harris & Garland,
//! "Designing efficient sorting algorithms for manycore GPUs", 2009). A digit takes three launches:
//!
//! 1. Each tile of [`TILE`] keys is counted by digits.
//! 2. A block for each digit adds its counts up over the tiles.
//! 3. Each tile writes its keys to their places. Keys of one digit keep their order: a ballot for each bit of the digit
//!    finds the lanes of a warp that have it.
//!
//! Atomic additions are of integers, whose sums have no order.

use super::Maker;
use super::stage::{Place, Scratch, Source, Stage};
use crate::kernel::{KernelError, Result};

/// The most keys that one block sorts.
const SMALL: usize = 2048;

/// The keys of a tile: 8 for each of 256 threads.
const TILE: usize = 2048;

/// The threads of each block.
const THREADS: usize = 256;

/// Bits of a digit.
const DIGIT: u32 = 8;

/// Keys that are sorted, and where their segments are.
pub(super) struct Sort {
    /// The number of keys.
    n: usize,
    /// Keys below this number have segments. A greater key is this number.
    rows: usize,
    keys: [Place; 2],
    ids: [Place; 2],
    /// For each row, the position of its first sorted key, and the position behind its last: two arrays of u32.
    bounds: [Place; 2],
    counts: Place,
    totals: Place,
}

/// The exclusive sum of a number of each thread of a block of 256 threads.
pub(super) const BLOCK_SCAN: &str = r"
__device__ u32 block_scan(u32 x, u32& total) {
  __shared__ u32 part[8];
  u32 lane = threadIdx.x & 31, sum = x;
  for (u32 o = 1; o < 32; o <<= 1) { u32 y = __shfl_up_sync(0xffffffffu, sum, o); if (lane >= o) sum += y; }
  __syncthreads();
  if (lane == 31) part[threadIdx.x >> 5] = sum;
  __syncthreads();
  u32 before = 0;
  total = 0;
  for (u32 w = 0; w < 8; w++) { if (w < threadIdx.x >> 5) before += part[w]; total += part[w]; }
  return before + sum - x;
}
";

impl Sort {
    /// Scratch memory for the sort of `n` keys below `rows`, or equal to it.
    ///
    /// # Errors
    /// If positions or keys do not fit into 32 bits.
    pub(super) fn new(n: usize, rows: usize, scratch: &mut Scratch) -> Result<Sort> {
        if i32::try_from(n).is_err() || i32::try_from(rows).is_err() {
            return Err(KernelError::unsupported("2^31 updates or rows"));
        }
        let tiles = if n > SMALL { n.div_ceil(TILE) } else { 0 };
        let mut part = |n: usize| scratch.part(n * 4);
        Ok(Sort {
            n,
            rows,
            keys: [part(n), part(if tiles > 0 { n } else { 0 })],
            ids: [part(n), part(if tiles > 0 { n } else { 0 })],
            bounds: [part(rows), part(rows)],
            counts: part(tiles << DIGIT),
            totals: part(1 << DIGIT),
        })
    }

    /// Declares `keys`, an array that gets the key of each number in order, and `begins` and `ends`, which are cleared by the
    /// statement that is returned, for each row `i`.
    pub(super) fn declare(&self, source: &mut Source) -> &'static str {
        source.pointer("u32", "keys", self.keys[0]);
        source.pointer("u32", "begins", self.bounds[0]);
        source.pointer("u32", "ends", self.bounds[1]);
        "begins[i] = 0; ends[i] = 0;"
    }

    /// Passes over the digits of all keys.
    fn passes(&self) -> u32 {
        if self.n <= SMALL { 0 } else { (self.rows.max(1).ilog2() + 1).div_ceil(DIGIT) }
    }

    /// The half of the buffers that has sorted keys.
    fn sorted(&self) -> usize {
        self.passes() as usize % 2
    }

    /// Declares what sorted keys are read by: `sorted`, `ids`, the number of each sorted key before the sort, `begins` and
    /// `ends`.
    pub(super) fn read(&self, source: &mut Source) {
        source.pointer("const u32", "sorted", self.keys[self.sorted()]);
        source.pointer("const u32", "ids", self.ids[self.sorted()]);
        source.pointer("const u32", "begins", self.bounds[0]);
        source.pointer("const u32", "ends", self.bounds[1]);
    }

    /// The launches that sort the keys and find the segments.
    ///
    /// # Errors
    /// If there are too many blocks.
    pub(super) fn stages(&self, maker: &Maker<'_>) -> Result<Vec<Stage>> {
        if self.n == 0 {
            return Ok(Vec::new());
        }
        if self.n <= SMALL {
            return Ok(vec![self.small(maker)?]);
        }
        let mut stages = Vec::new();
        for pass in 0..self.passes() {
            stages.push(self.counted(maker, pass)?);
            stages.push(self.added(maker)?);
            stages.push(self.placed(maker, pass)?);
        }
        stages.push(self.bounded(maker)?);
        Ok(stages)
    }

    fn small(&self, maker: &Maker<'_>) -> Result<Stage> {
        let mut source = Source::new(SMALL);
        source.pointer("u32", "keys", self.keys[0]);
        source.pointer("u32", "ids", self.ids[0]);
        source.pointer("u32", "begins", self.bounds[0]);
        source.pointer("u32", "ends", self.bounds[1]);
        source.number("n", self.n);
        source.number("rows", self.rows);
        source.number("size", self.n.next_power_of_two());
        let body = format!(
            "  __shared__ u64 items[{SMALL}];
  for (u32 k = threadIdx.x; k < size; k += blockDim.x) items[k] = k < n ? (u64)keys[k] << 32 | k : ~0ull;
  for (u32 run = 2; run <= size; run <<= 1) {{
    for (u32 away = run >> 1; away; away >>= 1) {{
      __syncthreads();
      for (u32 t = threadIdx.x; t < size >> 1; t += blockDim.x) {{
        u32 a = 2 * t - (t & (away - 1)), b = a + away;
        u64 low = items[a], high = items[b];
        if ((low > high) == ((a & run) == 0)) {{ items[a] = high; items[b] = low; }}
      }}
    }}
  }}
  __syncthreads();
  for (u32 k = threadIdx.x; k < n; k += blockDim.x) {{
    u32 key = (u32)(items[k] >> 32);
    keys[k] = key; ids[k] = (u32)items[k];
    if (key >= rows) continue;
    if (k == 0 || (u32)(items[k - 1] >> 32) != key) begins[key] = k;
    if (k + 1 == n || (u32)(items[k + 1] >> 32) != key) ends[key] = k + 1;
  }}"
        );
        source.launch(maker, &body, [1, THREADS])
    }

    fn counted(&self, maker: &Maker<'_>, pass: u32) -> Result<Stage> {
        let tiles = self.n.div_ceil(TILE);
        let mut source = Source::new(0);
        source.pointer("const u32", "keys", self.keys[pass as usize % 2]);
        source.pointer("u32", "counts", self.counts);
        source.number("n", self.n);
        source.number("shift", (pass * DIGIT) as usize);
        source.number("tiles", tiles);
        let body = format!(
            "  __shared__ u32 found[{THREADS}];
  found[threadIdx.x] = 0;
  __syncthreads();
  for (u32 k = 0; k < {TILE}; k += blockDim.x) {{
    u32 at = blockIdx.x * {TILE}u + k + threadIdx.x;
    if (at < n) atomicAdd(&found[keys[at] >> shift & 255], 1u);
  }}
  __syncthreads();
  counts[threadIdx.x * tiles + blockIdx.x] = found[threadIdx.x];"
        );
        source.launch(maker, &body, [tiles, THREADS])
    }

    fn added(&self, maker: &Maker<'_>) -> Result<Stage> {
        let mut source = Source::new(0);
        source.function(BLOCK_SCAN);
        source.pointer("u32", "counts", self.counts);
        source.pointer("u32", "totals", self.totals);
        source.number("tiles", self.n.div_ceil(TILE));
        let body = "  u32 sum = 0;
  for (u32 low = 0; low < tiles; low += blockDim.x) {
    u32 at = low + threadIdx.x, total;
    u32 before = block_scan(at < tiles ? counts[blockIdx.x * tiles + at] : 0, total);
    if (at < tiles) counts[blockIdx.x * tiles + at] = sum + before;
    sum += total;
  }
  if (threadIdx.x == 0) totals[blockIdx.x] = sum;";
        source.launch(maker, body, [1 << DIGIT, THREADS])
    }

    fn placed(&self, maker: &Maker<'_>, pass: u32) -> Result<Stage> {
        let (from, tiles) = (pass as usize % 2, self.n.div_ceil(TILE));
        let mut source = Source::new(0);
        source.function(BLOCK_SCAN);
        source.pointer("const u32", "keys", self.keys[from]);
        source.pointer("const u32", "ids", self.ids[from]);
        source.pointer("u32", "to_keys", self.keys[1 - from]);
        source.pointer("u32", "to_ids", self.ids[1 - from]);
        source.pointer("const u32", "counts", self.counts);
        source.pointer("const u32", "totals", self.totals);
        source.number("n", self.n);
        source.number("shift", (pass * DIGIT) as usize);
        source.number("tiles", tiles);
        // Keys behind the last one have the last digit: they come behind all others of their tile.
        let body = format!(
            "  __shared__ u32 places[8][256];
  u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, all;
  for (u32 w = 0; w < 8; w++) places[w][threadIdx.x] = 0;
  u32 place = block_scan(totals[threadIdx.x], all) + counts[threadIdx.x * tiles + blockIdx.x];
  u32 start = blockIdx.x * {TILE}u + warp * 256 + lane;
  u32 key[8], rank[8];
  #pragma unroll
  for (int r = 0; r < 8; r++) key[r] = start + r * 32 < n ? keys[start + r * 32] : 0xffffffffu;
  #pragma unroll
  for (int r = 0; r < 8; r++) {{
    u32 digit = key[r] >> shift & 255, peers = 0xffffffffu;
    for (u32 bit = 1; bit < 256; bit <<= 1) {{
      u32 with = __ballot_sync(0xffffffffu, (digit & bit) != 0);
      peers &= digit & bit ? with : ~with;
    }}
    u32 before = places[warp][digit], less = __popc(peers & ((1u << lane) - 1));
    __syncwarp();
    if (less == 0) places[warp][digit] = before + __popc(peers);
    __syncwarp();
    rank[r] = before + less;
  }}
  __syncthreads();
  for (u32 w = 0; w < 8; w++) {{ u32 count = places[w][threadIdx.x]; places[w][threadIdx.x] = place; place += count; }}
  __syncthreads();
  #pragma unroll
  for (int r = 0; r < 8; r++) {{
    u32 at = start + r * 32;
    if (at >= n) continue;
    u32 to = places[warp][key[r] >> shift & 255] + rank[r];
    to_keys[to] = key[r]; to_ids[to] = shift ? ids[at] : at;
  }}"
        );
        source.launch(maker, &body, [tiles, THREADS])
    }

    fn bounded(&self, maker: &Maker<'_>) -> Result<Stage> {
        let mut source = Source::new(0);
        source.pointer("const u32", "sorted", self.keys[self.sorted()]);
        source.pointer("u32", "begins", self.bounds[0]);
        source.pointer("u32", "ends", self.bounds[1]);
        source.number("rows", self.rows);
        let body = "u32 key = sorted[i];
    if (key >= rows) continue;
    if (i == 0 || sorted[i - 1] != key) begins[key] = i;
    if (i + 1 == n || sorted[i + 1] != key) ends[key] = i + 1;";
        source.each(maker, self.n, body)
    }
}
