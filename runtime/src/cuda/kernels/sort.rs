//! Stable sorts of unsigned keys, and the segments of equal keys.
//!
//! A block sorts up to [`SMALL`] keys in shared memory by a bitonic network; the low bits of each key are its
//! position, which makes the sort stable. More keys, and several lists of keys, are sorted by 8-bit digits from the
//! lowest on (LSD radix sort; Satish, Harris & Garland, "Designing efficient sorting algorithms for manycore GPUs",
//! 2009). A digit takes three launches:
//!
//! 1. Each tile of [`TILE`] keys makes a histogram of its digits.
//! 2. A block for each digit scans its counts over the tiles.
//! 3. Each tile writes its keys to their places. Keys with equal digits keep their order: a ballot for each bit of
//!    the digit finds the lanes of a warp that have the digit.
//!
//! Atomic additions are of integers only, so their order does not matter.

use super::Maker;
use super::stage::{Place, Scratch, Source, Stage};
use crate::kernel::{KernelError, Result};

/// The maximum number of keys that one block sorts.
const SMALL: usize = 2048;

/// The number of keys of a tile: 8 for each of 256 threads.
const TILE: usize = 2048;

/// The threads of each block.
const THREADS: usize = 256;

/// The bits of a digit.
const DIGIT: u32 = 8;

/// Stable radix sorts of several lists of keys at once: `keys` is an array of unsigned integers [lists, n], and `ids`
/// an array of u32 [lists, n] that are permuted with the keys. Each pass sorts by a digit, from one buffer to the
/// other.
pub(super) struct Radix {
    lists: usize,
    n: usize,
    /// The C type of keys, `u32` or `u64`.
    key: &'static str,
    /// The number of digits in which keys differ.
    digits: u32,
    /// True if `ids` is given; otherwise the id of a key is its position in its list.
    has_ids: bool,
    keys: [Place; 2],
    ids: [Place; 2],
    counts: Place,
    totals: Place,
}

impl Radix {
    /// Allocates scratch memory to sort `lists` lists of `n` keys of the type `key`, of which the lowest `bits` bits
    /// differ.
    ///
    /// # Errors
    /// If positions do not fit into 32 bits.
    pub(super) fn new(
        [lists, n]: [usize; 2],
        (key, bits): (&'static str, u32),
        has_ids: bool,
        scratch: &mut Scratch,
    ) -> Result<Radix> {
        if i32::try_from(n).is_err() {
            return Err(KernelError::unsupported("a sort of 2^31 or more elements"));
        }
        let size = if key == "u64" { 8 } else { 4 };
        let (all, tiles) = (lists * n, lists * n.div_ceil(TILE));
        Ok(Radix {
            lists,
            n,
            key,
            digits: bits.div_ceil(DIGIT),
            has_ids,
            keys: [scratch.part(all * size), scratch.part(all * size)],
            ids: [scratch.part(all * 4), scratch.part(all * 4)],
            counts: scratch.part((tiles << DIGIT) * 4),
            totals: scratch.part((lists << DIGIT) * 4),
        })
    }

    /// Declares `keys` and `ids`, the arrays to sort, as outputs.
    pub(super) fn declare(&self, source: &mut Source) {
        source.pointer(self.key, "keys", self.keys[0]);
        source.pointer("u32", "ids", self.ids[0]);
    }

    /// The sorted keys and their ids.
    pub(super) fn sorted(&self) -> [Place; 2] {
        let half = self.digits as usize % 2;
        [self.keys[half], self.ids[half]]
    }

    /// The launches of all passes.
    ///
    /// # Errors
    /// If there are too many blocks.
    pub(super) fn stages(&self, maker: &Maker<'_>) -> Result<Vec<Stage>> {
        let mut stages = Vec::new();
        for pass in 0..self.digits {
            stages.push(self.counted(maker, pass)?);
            stages.push(self.added(maker)?);
            stages.push(self.placed(maker, pass)?);
        }
        Ok(stages)
    }

    /// Declares the extents. A block has the tile `tile` of the list `list`, which begins at the key `start`.
    fn tiles(&self, source: &mut Source, pass: u32) {
        source.number("n", self.n);
        source.number("shift", (pass * DIGIT) as usize);
        source.number("tiles", self.n.div_ceil(TILE));
        source.local("const u32 list = blockIdx.x / tiles, tile = blockIdx.x % tiles;");
        source.local("const u64 start = (u64)list * n;");
    }

    fn counted(&self, maker: &Maker<'_>, pass: u32) -> Result<Stage> {
        let mut source = Source::new(0);
        source.pointer(&format!("const {}", self.key), "keys", self.keys[pass as usize % 2]);
        source.pointer("u32", "counts", self.counts);
        self.tiles(&mut source, pass);
        let body = format!(
            "  __shared__ u32 found[{THREADS}];
  found[threadIdx.x] = 0;
  __syncthreads();
  for (u32 k = 0; k < {TILE}; k += blockDim.x) {{
    u32 at = tile * {TILE}u + k + threadIdx.x;
    if (at < n) atomicAdd(&found[(u32)(keys[start + at] >> shift) & 255], 1u);
  }}
  __syncthreads();
  counts[((u64)list * 256 + threadIdx.x) * tiles + tile] = found[threadIdx.x];"
        );
        source.launch(maker, &body, [self.lists * self.n.div_ceil(TILE), THREADS])
    }

    fn added(&self, maker: &Maker<'_>) -> Result<Stage> {
        let mut source = Source::new(0);
        source.function(BLOCK_SCAN);
        source.pointer("u32", "counts", self.counts);
        source.pointer("u32", "totals", self.totals);
        source.number("tiles", self.n.div_ceil(TILE));
        let body = "  u32 sum = 0;
  u32* row = counts + (u64)blockIdx.x * tiles;
  for (u32 low = 0; low < tiles; low += blockDim.x) {
    u32 at = low + threadIdx.x, total;
    u32 before = block_scan(at < tiles ? row[at] : 0, total);
    if (at < tiles) row[at] = sum + before;
    sum += total;
  }
  if (threadIdx.x == 0) totals[blockIdx.x] = sum;";
        source.launch(maker, body, [self.lists << DIGIT, THREADS])
    }

    fn placed(&self, maker: &Maker<'_>, pass: u32) -> Result<Stage> {
        let (from, key) = (pass as usize % 2, self.key);
        let mut source = Source::new(0);
        source.function(BLOCK_SCAN);
        source.pointer(&format!("const {key}"), "keys", self.keys[from]);
        source.pointer("const u32", "ids", self.ids[from]);
        source.pointer(key, "to_keys", self.keys[1 - from]);
        source.pointer("u32", "to_ids", self.ids[1 - from]);
        source.pointer("const u32", "counts", self.counts);
        source.pointer("const u32", "totals", self.totals);
        source.number("has_ids", usize::from(self.has_ids || pass > 0));
        self.tiles(&mut source, pass);
        // Keys past the end have the highest digit, so they follow all others of their tile.
        let body = format!(
            "  __shared__ u32 places[8][256];
  u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, all;
  for (u32 w = 0; w < 8; w++) places[w][threadIdx.x] = 0;
  u64 digit_of = (u64)list * 256 + threadIdx.x;
  u32 place = block_scan(totals[digit_of], all) + counts[digit_of * tiles + tile];
  u32 first_at = tile * {TILE}u + warp * 256 + lane;
  {key} key[8];
  u32 rank[8];
  #pragma unroll
  for (int r = 0; r < 8; r++) key[r] = first_at + r * 32 < n ? keys[start + first_at + r * 32] : ({key})~({key})0;
  #pragma unroll
  for (int r = 0; r < 8; r++) {{
    u32 digit = (u32)(key[r] >> shift) & 255, peers = 0xffffffffu;
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
    u32 at = first_at + r * 32;
    if (at >= n) continue;
    u64 to = start + places[warp][(u32)(key[r] >> shift) & 255] + rank[r];
    to_keys[to] = key[r]; to_ids[to] = has_ids ? ids[start + at] : at;
  }}"
        );
        source.launch(maker, &body, [self.lists * self.n.div_ceil(TILE), THREADS])
    }
}

/// A sort of keys, and the segments of equal keys.
pub(super) struct Sort {
    /// The number of keys.
    n: usize,
    /// Only keys below this number have segments. A key that is not below it equals it.
    rows: usize,
    /// Keys and their ids before and after the sort.
    unsorted: [Place; 2],
    sorted: [Place; 2],
    /// For each row, the positions of its first sorted key and past its last sorted key: two arrays of u32.
    bounds: [Place; 2],
    /// `None` if one block sorts the keys.
    radix: Option<Radix>,
}

/// The exclusive sum over the threads of a block of 256 threads.
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
    /// Allocates scratch memory to sort `n` keys, each less than or equal to `rows`.
    ///
    /// # Errors
    /// If positions or keys do not fit into 32 bits.
    pub(super) fn new(n: usize, rows: usize, scratch: &mut Scratch) -> Result<Sort> {
        if i32::try_from(n).is_err() || i32::try_from(rows).is_err() {
            return Err(KernelError::unsupported("2^31 updates or rows"));
        }
        let bits = rows.max(1).ilog2() + 1;
        let radix = (n > SMALL).then(|| Radix::new([1, n], ("u32", bits), false, scratch)).transpose()?;
        let mut part = |n: usize| scratch.part(n * 4);
        let (unsorted, sorted) = match &radix {
            Some(radix) => ([radix.keys[0], radix.ids[0]], radix.sorted()),
            None => {
                let places = [part(n), part(n)];
                (places, places)
            }
        };
        Ok(Sort { n, rows, unsorted, sorted, bounds: [part(rows), part(rows)], radix })
    }

    /// Declares `keys`, the array of keys to sort, and `begins` and `ends`. The returned statement clears the latter
    /// two for row `i`.
    pub(super) fn declare(&self, source: &mut Source) -> &'static str {
        source.pointer("u32", "keys", self.unsorted[0]);
        source.pointer("u32", "begins", self.bounds[0]);
        source.pointer("u32", "ends", self.bounds[1]);
        "begins[i] = 0; ends[i] = 0;"
    }

    /// Declares the arrays by which sorted keys are read: `sorted`; `ids`, the position of each sorted key before the
    /// sort; `begins` and `ends`.
    pub(super) fn read(&self, source: &mut Source) {
        source.pointer("const u32", "sorted", self.sorted[0]);
        source.pointer("const u32", "ids", self.sorted[1]);
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
        let Some(radix) = &self.radix else { return Ok(vec![self.small(maker)?]) };
        let mut stages = radix.stages(maker)?;
        stages.push(self.bounded(maker)?);
        Ok(stages)
    }

    fn small(&self, maker: &Maker<'_>) -> Result<Stage> {
        let mut source = Source::new(SMALL);
        source.pointer("u32", "keys", self.unsorted[0]);
        source.pointer("u32", "ids", self.unsorted[1]);
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

    fn bounded(&self, maker: &Maker<'_>) -> Result<Stage> {
        let mut source = Source::new(0);
        source.pointer("const u32", "sorted", self.sorted[0]);
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
