//! Reductions over axes. The order of each sum depends only on the dims.
//!
//! A thread reduces the elements of a result if they are few; otherwise a block does. If neighboring elements belong
//! to different results, a block reduces the elements of 32 neighboring results. Contiguous elements are read 16
//! bytes at a time, and a warp reduces up to 1024 of them. Few results with many elements are reduced in parts, and a
//! second launch reduces the partial results.

use super::fold::{Fold, fold_of, function};
use super::stage::{Place, Scratch, Source, Stage, staged};
use super::{Maker, Prepare};
use crate::cuda::elements::VECTORS;
use crate::cuda::launch::{THREADS, threads_for};
use crate::cuda::text::{Elem, Steps, Walk, f32_text, f64_text};
use crate::kernel::{Dims, KernelError, Prepared, Result};
use crate::layouts::is_reduction;
use ampc_ir::op::OpKind;
use ampc_ir::views::reduce::ReduceView;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    is_reduction(kind).then_some(reduce)
}

/// A tensor, reduced along some axes.
pub(super) struct Reduction<'a> {
    pub(super) dims: &'a [usize],
    /// True for a reduced axis.
    pub(super) is_reduced: &'a dyn Fn(usize) -> bool,
    pub(super) from: (Place, Elem),
    /// The shift of each result, in the accumulator type.
    pub(super) shift: Option<Place>,
    pub(super) to: (Place, Elem),
}

/// The maximum number of elements that one thread reduces.
const MOST_OF_A_THREAD: usize = 64;

/// The maximum number of contiguous elements that one thread, or one warp, reduces.
const MOST_NEIGHBOURS: [usize; 2] = [8, 1024];

/// The minimum number of elements of a part.
const PART_ELEMENTS: usize = 1 << 12;

/// The number of blocks that keeps a device busy.
const MANY_BLOCKS: usize = 256;

/// The number of neighboring results that a block reduces together.
pub(super) const TILE: usize = 32;

/// The chosen axes of a tensor, merged where strides permit: extents and strides.
///
/// # Errors
/// If there are too many elements.
pub(super) fn axes(dims: &[usize], is_chosen: &dyn Fn(usize) -> bool) -> Result<(Dims, Steps)> {
    let own = Steps::broadcast(dims, dims).ok_or(KernelError::NotYet)?;
    let some: Vec<usize> = (0..dims.len()).filter(|&axis| is_chosen(axis)).collect();
    let extents: Dims = some.iter().map(|&axis| dims[axis]).collect();
    let steps = Steps { first: 0, steps: some.iter().map(|&axis| own.steps[axis]).collect() };
    let walk = Walk::new(&extents, vec![steps]);
    Ok((walk.dims, walk.operands.into_iter().next().ok_or(KernelError::NotYet)?))
}

impl Reduction<'_> {
    fn kept(&self) -> Result<(Dims, Steps)> {
        axes(self.dims, &|axis| !(self.is_reduced)(axis))
    }

    fn gone(&self) -> Result<(Dims, Steps)> {
        axes(self.dims, self.is_reduced)
    }

    /// The launches of a reduction.
    ///
    /// # Errors
    /// If the compiler rejects a source.
    pub(super) fn stages(&self, maker: &Maker<'_>, fold: &Fold, scratch: &mut Scratch) -> Result<Vec<Stage>> {
        let (kept, gone) = (self.kept()?, self.gone()?);
        let (n, count): (usize, usize) = (kept.0.iter().product(), gone.0.iter().product());
        let are_neighbours =
            kept.1.steps.last() == Some(&1) && kept.0.last().is_some_and(|&extent| extent >= TILE / 2);
        let parts = parts_of(tiles_of(n, are_neighbours), count, are_neighbours);
        if parts == 1 {
            return Ok(vec![self.launch(maker, fold, [&kept, &gone], 1)?]);
        }
        let place = scratch.part(parts * n * fold.acc.bytes());
        let partial = Fold { end: "acc".into(), ..fold.clone() };
        let first = Reduction { to: (place, fold.acc), ..*self };
        let first = first.launch(maker, &partial, [&kept, &gone], parts)?;
        let dims = [parts, n];
        let rest = Reduction {
            dims: &dims,
            is_reduced: &|axis| axis == 0,
            from: (place, fold.acc),
            shift: self.shift,
            to: self.to,
        };
        let joined = Fold { term: "x".into(), ..fold.clone() };
        let (kept, gone) = (rest.kept()?, rest.gone()?);
        let end = joined.end.replace("count", "whole");
        let last = rest.launch_of(maker, &Fold { end, ..joined }, [&kept, &gone], 1, count)?;
        Ok(vec![first, last])
    }

    fn launch(
        &self,
        maker: &Maker<'_>,
        fold: &Fold,
        axes: [&(Dims, Steps); 2],
        parts: usize,
    ) -> Result<Stage> {
        let count = axes[1].0.iter().product();
        self.launch_of(maker, fold, axes, parts, count)
    }

    /// A launch that reduces each of `parts` parts. `whole` is the number of elements of all parts.
    fn launch_of(
        &self,
        maker: &Maker<'_>,
        fold: &Fold,
        [(kept, kept_steps), (gone, gone_steps)]: [&(Dims, Steps); 2],
        parts: usize,
        whole: usize,
    ) -> Result<Stage> {
        let (n, count): (usize, usize) = (kept.iter().product(), gone.iter().product());
        let mut source = Source::new(self.dims.iter().product::<usize>().max(n * parts).max(whole));
        source.function(&format!(
            "typedef {acc} A;\n__device__ __forceinline__ A join(A acc, A term) {{ return {join}; }}\n",
            acc = fold.acc.wide(),
            join = fold.join,
        ));
        source.from("from", self.from.1, self.from.0);
        if let Some(shift) = self.shift {
            source.from("shifts", fold.acc, shift);
        }
        source.to("y", self.to.1, self.to.0);
        source.number("count", count);
        source.number("whole", whole);
        let base = source.position(kept, kept_steps, "i");
        let place = source.position(gone, gone_steps, "k");
        let index = source.index;
        let shift = if self.shift.is_some() { "A shift = shifts[i];" } else { "" };
        let begin = format!("i64 base = {base}; {shift} A acc = {};", fold.start);
        let step = format!(
            "{{ A x = (A){}; acc = join(acc, (A)({})); }}",
            self.from.1.load(&format!("from[base + {place}]")),
            fold.term
        );
        let end = self.to.1.store(&fold.end);
        let is_row = gone_steps.steps[..] == [1];
        let most = if is_row { MOST_NEIGHBOURS[0] } else { MOST_OF_A_THREAD };
        if count <= most && parts == 1 {
            let body = format!("{begin}\n    for ({index} k = 0; k < count; k++) {step}\n    y[i] = {end};");
            return source.each(maker, n, &body);
        }
        source.number("parts", parts);
        source.number("n", n);
        let range = "u64 low = (u64)count * part / parts, high = (u64)count * (part + 1) / parts;";
        if kept_steps.steps.last() == Some(&1) && kept.last().is_some_and(|&extent| extent >= TILE / 2) {
            source.function("#define ROWS 8\n");
            let body = format!(
                "  __shared__ A rows[ROWS][33];
  {index} i = blockIdx.x / parts * 32 + (threadIdx.x & 31), part = blockIdx.x % parts;
  u32 row = threadIdx.x >> 5;
  {range}
  bool is_in = i < n;
  if (!is_in) i = 0;
  {begin}
  if (is_in) for ({index} k = low + row; k < high; k += ROWS) {step}
  rows[row][threadIdx.x & 31] = acc;
  __syncthreads();
  if (row || !is_in) return;
  for (u32 r = 1; r < ROWS; r++) acc = join(acc, rows[r][threadIdx.x & 31]);
  y[(u64)part * n + i] = {end};"
            );
            return source.launch(maker, &body, [n.div_ceil(TILE) * parts, THREADS as usize]);
        }
        if is_row {
            return self.row(maker, fold, source, [&begin, range, &end], [n, parts, count]);
        }
        source.function(BLOCK_FOLD);
        let body = format!(
            "  {index} i = blockIdx.x / parts, part = blockIdx.x % parts;
  {range}
  {begin}
  #pragma unroll 4
  for ({index} k = low + threadIdx.x; k < high; k += blockDim.x) {step}
  acc = block_fold(acc);
  if (threadIdx.x == 0) y[(u64)part * n + i] = {end};"
        );
        source.launch(maker, &body, [n * parts, threads_for(count.div_ceil(parts)) as usize])
    }
}

impl Reduction<'_> {
    /// The launch that reduces contiguous elements. The elements of a vector have the same thread whether or not they
    /// are read as a vector.
    fn row(
        &self,
        maker: &Maker<'_>,
        fold: &Fold,
        mut source: Source,
        [begin, range, end]: [&str; 3],
        [n, parts, count]: [usize; 3],
    ) -> Result<Stage> {
        let is_of_warps = parts == 1 && count <= MOST_NEIGHBOURS[1];
        let (index, elem) = (source.index, self.from.1);
        source.function(VECTORS);
        source.function(if is_of_warps { WARP_FOLD } else { BLOCK_FOLD });
        let (task, lane, lanes) = match is_of_warps {
            true => ("(blockIdx.x * (u64)8 + (threadIdx.x >> 5))", "(threadIdx.x & 31)", "32"),
            false => ("(u64)blockIdx.x", "threadIdx.x", "blockDim.x"),
        };
        let body = format!(
            "  const int V = {vector};
  const u64 task = {task};
  if (task >= (u64)n * parts) return;
  {index} i = task / parts, part = task % parts;
  {range}
  {begin}
  const {stored}* row = from + base;
  const bool is_vector = ((u64)(row + low) & 15) == 0;
  #pragma unroll 2
  for (u64 k = low + {lane} * V; k < high; k += {lanes} * V) {{
    Vector<{stored}, V> v;
    if (is_vector && k + V <= high) {{
      v = load<V>(row + k);
    }} else {{
      #pragma unroll
      for (int m = 0; m < V; m++) if (k + m < high) v.at[m] = row[k + m];
    }}
    #pragma unroll
    for (int m = 0; m < V; m++) {{
      if (k + m < high) {{ A x = (A){load}; acc = join(acc, (A)({term})); }}
    }}
  }}
  acc = {fold}(acc);
  if ({lane} == 0) y[(u64)part * n + i] = {end};",
            vector = 16 / elem.bytes(),
            stored = elem.stored(),
            load = elem.load("v.at[m]"),
            term = fold.term,
            fold = if is_of_warps { "warp_fold" } else { "block_fold" },
        );
        let shape = match is_of_warps {
            true => [n.div_ceil(8), THREADS as usize],
            false => [n * parts, threads_for(count.div_ceil(parts)) as usize],
        };
        source.launch(maker, &body, shape)
    }
}

/// The reduction over the threads of a warp, in a fixed order; every thread gets the result.
const WARP_FOLD: &str = r"
__device__ __forceinline__ A warp_fold(A x) {
  for (int o = 16; o; o >>= 1) { A y = __shfl_xor_sync(0xffffffffu, x, o); x = join(x, y); }
  return x;
}
";

/// The number of blocks that reduce `n` results in one part: one for each result, or for each tile of neighbours.
pub(super) fn tiles_of(n: usize, are_neighbours: bool) -> usize {
    if are_neighbours { n.div_ceil(TILE) } else { n }
}

/// The number of parts that reduce the `count` elements of each result, if a part has so many `tiles`: more than one if
/// there are few tiles of many elements.
pub(super) fn parts_of(tiles: usize, count: usize, are_neighbours: bool) -> usize {
    let most = if are_neighbours { PART_ELEMENTS / TILE } else { PART_ELEMENTS };
    match tiles < MANY_BLOCKS && count >= 2 * most {
        true => count.div_ceil(most).min(2 * MANY_BLOCKS / tiles.max(1)).max(1),
        false => 1,
    }
}

/// The reduction over the threads of a block, in a fixed order; every thread gets the result.
pub(super) const BLOCK_FOLD: &str = r"
__device__ A block_fold(A x) {
  __shared__ A part[32];
  for (int o = 16; o; o >>= 1) { A y = __shfl_xor_sync(0xffffffffu, x, o); x = join(x, y); }
  __syncthreads();
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = x;
  __syncthreads();
  x = part[0];
  for (u32 w = 1; w < blockDim.x >> 5; w++) x = join(x, part[w]);
  return x;
}
";

fn reduce(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let kind = site.kind();
    let elem = maker.number(0)?;
    let fold = fold_of(kind, elem).ok_or_else(|| site.no_kernel())?;
    let axes = ReduceView::read(&site.view)?.axes.ok_or(KernelError::NotYet)?;
    let dims = site.dims(0)?;
    let mut scratch = Scratch::default();
    let mut reduction = Reduction {
        dims: &dims,
        is_reduced: &|axis| axes.has(axis),
        from: (Place::operand(0), elem),
        shift: None,
        to: (Place::result(0), elem),
    };
    let mut stages = Vec::new();
    if kind == OpKind::ReduceLogSumExp {
        let n: usize = site.result_dims(0)?.iter().product();
        let place = scratch.part(n * fold.acc.bytes());
        let zero = format!("{}(acc) <= {} ? acc : 0", function(fold.acc, "fabs"), greatest_finite(fold.acc));
        let most = Fold { end: zero, ..Fold::greatest(fold.acc) };
        reduction.to = (place, fold.acc);
        stages = reduction.stages(maker, &most, &mut scratch)?;
        reduction.to = (Place::result(0), elem);
        reduction.shift = Some(place);
    }
    stages.extend(reduction.stages(maker, &fold, &mut scratch)?);
    Ok(staged(stages, &scratch))
}

fn greatest_finite(acc: Elem) -> String {
    if acc == Elem::F64 { f64_text(f64::MAX) } else { f32_text(f32::MAX) }
}
