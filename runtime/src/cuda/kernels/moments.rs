//! Means and variances along some axes, in one pass.
//!
//! First, an element of each result is subtracted as a shift, so that a mean much larger than the deviation costs no
//! digits; the moments are those of the distances `d`. A thread keeps the count, the mean, and the sum of squared
//! distances from the mean, `M2`, of its elements. It reads 8 elements at a time and merges their moments with its
//! own; threads and parts merge in the same way (Chan, Golub & LeVeque, "Updating formulae and a pairwise algorithm
//! for computing sample variances", 1979):
//!
//! ```text
//! N = n + c    mean' = mean + (m - mean) · c / N    M2' = M2 + q + (m - mean)² · n · c / N
//! ```
//!
//! The order of merges is fixed and depends on the dims only. The reported mean comes from a plain sum of the
//! distances, which is infinite if the sum of the elements is infinite.

use super::Maker;
use super::fold::{function, wide_float};
use super::reduce::{TILE, axes, parts_of, tiles_of};
use super::stage::{Place, Scratch, Source, Stage};
use crate::cuda::launch::{THREADS, threads_for};
use crate::cuda::text::{Elem, f32_text, f64_text};
use crate::kernel::Result;

/// The moments of operand 0, for each index along the axes that are kept.
pub(super) struct Moments {
    /// The shift: one of the elements, or 0 if that element is not finite.
    shift: Place,
    /// The mean of the distances from the shift.
    rest: Place,
    variance: Place,
}

impl Moments {
    /// Declares the arrays as inputs of the type `acc`.
    pub(super) fn read(&self, source: &mut Source, acc: Elem) {
        source.from("means", acc, self.shift);
        source.from("rests", acc, self.rest);
        source.from("variances", acc, self.variance);
    }
}

/// Statements that load the moments at index `c`: the mean is `mean + rest`.
pub(super) const MOMENTS: &str = "A mean = means[c], rest = rests[c], variance = variances[c];";

/// `State`: the moments of some elements. `merged`: merges two states.
const STATE: &str = r"
struct State { A count, mean, square, sum; };
__device__ __forceinline__ State merged(State a, State b) {
  A count = a.count + b.count, part = count == 0 ? 0 : b.count / count, away = b.mean - a.mean;
  return State{count, a.mean + away * part, a.square + b.square + away * away * a.count * part, a.sum + b.sum};
}
__device__ __forceinline__ State of_few(const A* d, int n) {
  A sum = 0, square = 0;
  #pragma unroll
  for (int m = 0; m < FEW; m++) if (m < n) sum += d[m];
  A mean = sum / (A)n;
  #pragma unroll
  for (int m = 0; m < FEW; m++) if (m < n) square += (d[m] - mean) * (d[m] - mean);
  return State{(A)n, mean, square, sum};
}
";

const BLOCK_STATE: &str = r"
__device__ State block_state(State x) {
  __shared__ State part[32];
  for (int o = 1; o < 32; o <<= 1) {
    State y;
    y.count = __shfl_down_sync(0xffffffffu, x.count, o);
    y.mean = __shfl_down_sync(0xffffffffu, x.mean, o);
    y.square = __shfl_down_sync(0xffffffffu, x.square, o);
    y.sum = __shfl_down_sync(0xffffffffu, x.sum, o);
    if ((threadIdx.x & (2 * o - 1)) == 0) x = merged(x, y);
  }
  __syncthreads();
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = x;
  __syncthreads();
  x = part[0];
  for (u32 w = 1; w < blockDim.x >> 5; w++) x = merged(x, part[w]);
  return x;
}
";

/// The launches that compute the moments of operand 0, whose dims are `dims`.
///
/// # Errors
/// If there are too many blocks or dims.
pub(super) fn moments(
    maker: &Maker<'_>,
    dims: &[usize],
    is_reduced: &dyn Fn(usize) -> bool,
    elem: Elem,
    scratch: &mut Scratch,
    stages: &mut Vec<Stage>,
) -> Result<Moments> {
    let acc = wide_float(elem);
    let ((kept, kept_steps), (gone, gone_steps)) =
        (axes(dims, &|axis| !is_reduced(axis))?, axes(dims, is_reduced)?);
    let (n, count): (usize, usize) = (kept.iter().product(), gone.iter().product());
    let mut part = |n: usize| scratch.part(n * acc.bytes());
    let made = Moments { shift: part(n), rest: part(n), variance: part(n) };
    let are_neighbours =
        kept_steps.steps.last() == Some(&1) && kept.last().is_some_and(|&extent| extent >= TILE / 2);
    let parts = parts_of(tiles_of(n, are_neighbours), count, are_neighbours);
    let partial = part(if parts > 1 { 4 * parts * n } else { 0 });

    let mut source = Source::new(dims.iter().product::<usize>().max(n * parts));
    source.function(&format!("#define FEW 8\ntypedef {} A;\n{STATE}", acc.wide()));
    source.from("from", elem, Place::operand(0));
    written(&mut source, acc, &made);
    source.pointer("State", "states", partial);
    source.number("count", count);
    source.number("parts", parts);
    source.number("n", n);
    let base = source.position(&kept, &kept_steps, "i");
    let place = source.position(&gone, &gone_steps, "k");
    let index = source.index;
    let greatest = if acc == Elem::F64 { f64_text(f64::MAX) } else { f32_text(f32::MAX) };
    let begin = format!(
        "u64 low = (u64)count * part / parts, high = (u64)count * (part + 1) / parts;
  i64 base = {base};
  A shift = count ? (A){} : (A)0;
  if (!({}(shift) <= {greatest})) shift = 0;
  State state = {{0, 0, 0, 0}};",
        elem.load("from[base]"),
        function(acc, "fabs"),
    );
    let read = |first: &str, away: &str| {
        format!(
            "for (u64 start = low + {first}; start < high; start += FEW * {away}) {{
    A d[FEW];
    int many = 0;
    #pragma unroll
    for (int m = 0; m < FEW; m++) {{
      {index} k = start + m * {away};
      if (start + m * {away} < high) {{ d[m] = (A){} - shift; many = m + 1; }}
    }}
    state = merged(state, of_few(d, many));
  }}",
            elem.load(&format!("from[base + {place}]"))
        )
    };
    let end = "if (parts > 1) { states[(u64)part * n + i] = state; return; }
  shifts[i] = shift; rests[i] = state.sum / (A)count; variances[i] = state.square / (A)count;";
    let stage = if are_neighbours {
        let body = format!(
            "  __shared__ State rows[8][32];
  {index} i = blockIdx.x / parts * 32 + (threadIdx.x & 31), part = blockIdx.x % parts;
  u32 row = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const bool is_in = i < n;
  if (!is_in) i = 0;
  {begin}
  {read}
  rows[row][lane] = state;
  __syncthreads();
  if (row || !is_in) return;
  for (u32 r = 1; r < 8; r++) state = merged(state, rows[r][lane]);
  {end}",
            read = read("row", "8")
        );
        source.launch(maker, &body, [n.div_ceil(TILE) * parts, THREADS as usize])?
    } else {
        source.function(BLOCK_STATE);
        let body = format!(
            "  {index} i = blockIdx.x / parts, part = blockIdx.x % parts;
  {begin}
  {read}
  state = block_state(state);
  if (threadIdx.x) return;
  {end}",
            read = read("threadIdx.x", "blockDim.x")
        );
        source.launch(maker, &body, [n * parts, threads_for(count.div_ceil(parts)) as usize])?
    };
    stages.push(stage);
    if parts > 1 {
        let mut source = Source::new(dims.iter().product::<usize>().max(n * parts));
        source.function(&format!("#define FEW 8\ntypedef {} A;\n{STATE}", acc.wide()));
        source.from("from", elem, Place::operand(0));
        written(&mut source, acc, &made);
        source.pointer("const State", "states", partial);
        source.number("count", count);
        source.number("parts", parts);
        let base = source.position(&kept, &kept_steps, "i");
        let body = format!(
            "i64 base = {base};
    A shift = (A){};
    if (!({}(shift) <= {greatest})) shift = 0;
    State state = states[i];
    for (u64 part = 1; part < parts; part++) state = merged(state, states[part * n + i]);
    shifts[i] = shift; rests[i] = state.sum / (A)count; variances[i] = state.square / (A)count;",
            elem.load("from[base]"),
            function(acc, "fabs"),
        );
        stages.push(source.each(maker, n, &body)?);
    }
    Ok(made)
}

/// Declares the arrays as outputs.
fn written(source: &mut Source, acc: Elem, made: &Moments) {
    source.to("shifts", acc, made.shift);
    source.to("rests", acc, made.rest);
    source.to("variances", acc, made.variance);
}
