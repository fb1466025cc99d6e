//! Strided copies: transposes, slices, repetitions.
//!
//! Axes are merged where strides permit. Then one of three kernels is used:
//!
//! - Rows: the innermost axis of the result is contiguous in the operand. Each thread copies the widest unit, up to
//!   16 bytes, that divides rows and strides.
//! - Tiles: another axis of the operand is contiguous. A block transposes 32 × 32 elements through shared memory, so
//!   that both reads and writes are coalesced.
//! - Elements: each thread copies one element.

use super::Maker;
use super::stage::{Place, Source, Stage};
use crate::cuda::launch::{THREADS, blocks_for};
use crate::cuda::text::{Elem, Steps, Walk, index_type};
use crate::kernel::{Dims, Result};

/// The extent of a tile in each direction.
const TILE: usize = 32;

/// The minimum extent of both axes for tiles: smaller axes leave most of a tile empty.
const LEAST: usize = 12;

/// The size of the widest unit in bytes.
const UNIT: usize = 16;

/// A launch that copies to each element of `to` the element of `from` that `walk` gives.
///
/// # Errors
/// If there are too many blocks.
pub(super) fn moved(maker: &Maker<'_>, walk: &Walk, elem: Elem, places: [Place; 2]) -> Result<Stage> {
    let steps = &walk.operands[0].steps;
    let last = steps.last().copied().unwrap_or(1);
    let unit_axis = steps.iter().position(|&step| step == 1);
    match unit_axis {
        _ if walk.is_plain(0) || last == 1 => rows(maker, walk, elem, places),
        Some(axis) if walk.dims[axis] >= LEAST && walk.dims[walk.dims.len() - 1] >= LEAST => {
            tiles(maker, walk, axis, elem, places)
        }
        _ => elements(maker, walk, elem, places),
    }
}

fn elements(maker: &Maker<'_>, walk: &Walk, elem: Elem, [from, to]: [Place; 2]) -> Result<Stage> {
    let n = walk.len();
    let mut source = Source::new(n);
    source.from("x", elem, from);
    source.to("y", elem, to);
    let at = source.walked(walk, 0, "i");
    source.each(maker, n, &format!("y[i] = x[{at}];"))
}

/// The largest power of two, at most `most`, that divides all numbers.
fn common_power(most: usize, numbers: impl Iterator<Item = u64>) -> usize {
    numbers.fold(most, |power, n| if n == 0 { power } else { power.min(1 << n.trailing_zeros().min(16)) })
}

fn rows(maker: &Maker<'_>, walk: &Walk, elem: Elem, [from, to]: [Place; 2]) -> Result<Stage> {
    let Steps { first, steps } = &walk.operands[0];
    let outer = steps.len().saturating_sub(1);
    let row = walk.dims.last().copied().unwrap_or(1);
    let numbers = steps[..outer].iter().map(|step| step.unsigned_abs());
    let numbers = numbers.chain([first.unsigned_abs(), row as u64]);
    let unit = common_power(UNIT / elem.bytes(), numbers);
    let signed_unit = super::signed(unit);
    let mut dims: Dims = walk.dims.iter().copied().collect();
    if let Some(last) = dims.last_mut() {
        *last /= unit;
    }
    let mut in_units = Steps { first: first / signed_unit, steps: steps.clone() };
    in_units.steps[..outer].iter_mut().for_each(|step| *step /= signed_unit);
    let n = walk.len() / unit;
    let mut source = Source::new(walk.len());
    let stored = elem.stored();
    source.from("x", elem, from);
    source.to("y", elem, to);
    source.number("n", n);
    if unit == 1 {
        let at = if walk.is_plain(0) { "i".into() } else { source.position(&dims, &in_units, "i") };
        let body = format!(
            "  for (u64 flat = first(); flat < n; flat += step()) {{ {} i = flat; y[i] = x[{at}]; }}",
            source.index
        );
        return source.launch(maker, &body, [blocks_for(n), THREADS as usize]);
    }
    source.function(&format!(
        "#define UNIT {unit}\nstruct alignas(sizeof({stored}) * UNIT) Unit {{ {stored} at[UNIT]; }};\n"
    ));
    let is_plain = walk.is_plain(0);
    let at = if is_plain { "i".to_owned() } else { source.position(&dims, &in_units, "i") };
    // Views may begin at any element: units are used if both addresses are aligned to them.
    let body = format!(
        "  const bool is_aligned = (((u64)x | (u64)y) & (sizeof(Unit) - 1)) == 0;
  for (u64 flat = first(); flat < n; flat += step()) {{
    {index} i = flat;
    i64 at = {at};
    if (is_aligned) {{ ((Unit*)y)[i] = ((const Unit*)x)[at]; continue; }}
    for (int k = 0; k < UNIT; k++) y[(u64)i * UNIT + k] = x[at * UNIT + k];
  }}",
        index = source.index,
    );
    source.launch(maker, &body, [blocks_for(n), THREADS as usize])
}

fn tiles(maker: &Maker<'_>, walk: &Walk, axis: usize, elem: Elem, [from, to]: [Place; 2]) -> Result<Stage> {
    let rank = walk.dims.len();
    let Steps { first, steps } = &walk.operands[0];
    let mut own = vec![1i64; rank];
    for i in (0..rank - 1).rev() {
        own[i] = own[i + 1].saturating_mul(super::signed(walk.dims[i + 1]));
    }
    let others: Vec<usize> = (0..rank - 1).filter(|&i| i != axis).collect();
    let dims: Dims = others.iter().map(|&i| walk.dims[i]).collect();
    let along = |steps: &[i64], first| Steps { first, steps: others.iter().map(|&i| steps[i]).collect() };
    let (from_steps, to_steps) = (along(steps, *first), along(&own, 0));
    let [columns, lines] = [walk.dims[axis], walk.dims[rank - 1]];
    let batch: usize = dims.iter().product();
    let blocks = batch * columns.div_ceil(TILE) * lines.div_ceil(TILE);
    let mut source = Source::new(walk.len());
    source.index = index_type(walk.len().max(blocks));
    source.from("x", elem, from);
    source.to("y", elem, to);
    source.number("columns", columns);
    source.number("lines", lines);
    source.number("across", columns.div_ceil(TILE));
    source.number("down", lines.div_ceil(TILE));
    source.signed("from_line", steps[rank - 1]);
    source.signed("to_column", own[axis]);
    let from_base = source.position(&dims, &from_steps, "b");
    let to_base = source.position(&dims, &to_steps, "b");
    // A line has elements that are contiguous in the operand; columns of lines are contiguous in the result.
    let body = format!(
        "  __shared__ {stored} tile[{TILE}][{TILE} + 1];
  {index} b = blockIdx.x / across / down;
  {index} column = blockIdx.x % across * {TILE}, line = blockIdx.x / across % down * {TILE};
  u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  x += {from_base}; y += {to_base};
  #pragma unroll
  for (u32 r = 0; r < {TILE}; r += 8) {{
    u32 row = r + warp;
    if (column + lane < columns && line + row < lines) tile[row][lane] = x[(i64)(line + row) * from_line + column + lane];
  }}
  __syncthreads();
  #pragma unroll
  for (u32 r = 0; r < {TILE}; r += 8) {{
    u32 row = r + warp;
    if (column + row < columns && line + lane < lines) y[(i64)(column + row) * to_column + line + lane] = tile[lane][row];
  }}",
        stored = elem.stored(),
        index = source.index,
    );
    source.launch(maker, &body, [blocks, 256])
}
