//! Positions and prefix sums along an axis: ArgMax, ArgMin, CumSum, CumProd, Hardmax, TopK.
//!
//! The first of equal elements is used, unless the node selects the last. For ArgMax, ArgMin and Hardmax, NaN is both
//! the maximum and the minimum. TopK is in [`super::top_k`].
//!
//! A block reduces a contiguous row. If neighboring elements belong to different rows, a block reduces 32 neighboring
//! rows, and each of its warps every eighth element. A block scans a row, unless there are many neighboring rows, of
//! which each thread then scans one.

use super::stage::{Place, Scratch, Source, Stage, staged};
use super::{Maker, Prepare, around};
use crate::cuda::launch::threads_for;
use crate::cuda::text::Elem;
use crate::kernel::{KernelError, Prepared, Result};
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use ampc_ir::views::norm::{SoftmaxAxes, SoftmaxView};
use ampc_ir::views::reduce::{ArgReduceView, CumulativeView};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::ArgMax => |m| arg_reduce(m, ">"),
        OpKind::ArgMin => |m| arg_reduce(m, "<"),
        OpKind::CumProd => |m| cumulative(m, "*"),
        OpKind::CumSum => |m| cumulative(m, "+"),
        OpKind::Hardmax => hardmax,
        OpKind::TopK => super::top_k::top_k,
        _ => return None,
    })
}

/// The order of elements in reductions to a position. NaN precedes all numbers.
struct Order {
    greater: &'static str,
    last: bool,
}

impl Order {
    /// Two device functions. `comes(a, i, b, j)` is true if element `a` at `i` precedes `b` at `j`. `first_of_block`
    /// finds the first element of a block whose threads have one element each, or none at position -1.
    fn functions(&self, elem: Elem) -> String {
        let Order { greater, last } = *self;
        let before = if last { "i > j" } else { "i < j" };
        format!(
            "typedef {wide} T;
__device__ __forceinline__ bool comes(T a, i64 i, T b, i64 j) {{
  bool x = a != a, y = b != b;
  if (x != y) return x;
  return x || a == b ? {before} : a {greater} b;
}}
__device__ void first_of_block(T& x, i64& i) {{
  __shared__ T values[256];
  __shared__ i64 places[256];
  __syncthreads();
  values[threadIdx.x] = x; places[threadIdx.x] = i;
  __syncthreads();
  for (u32 s = blockDim.x >> 1; s; s >>= 1) {{
    if (threadIdx.x < s) {{
      T a = values[threadIdx.x], b = values[threadIdx.x + s];
      i64 j = places[threadIdx.x], k = places[threadIdx.x + s];
      if (k >= 0 && (j < 0 || comes(b, k, a, j))) {{ values[threadIdx.x] = b; places[threadIdx.x] = k; }}
    }}
    __syncthreads();
  }}
  x = values[0]; i = places[0];
}}
",
            wide = elem.wide(),
        )
    }
}

/// Declares the parameters of rows of `n` elements with stride `inner`.
fn rows(source: &mut Source, n: usize, inner: usize) {
    source.number("n", n);
    source.number("inner", inner);
    source.local("u64 start = (u64)(blockIdx.x / inner) * n * inner + blockIdx.x % inner;");
}

/// Statements that find the element `best` of a row, at `place`.
fn search(elem: Elem) -> String {
    format!(
        "T best = {}; i64 place = -1;
  for (u64 k = threadIdx.x; k < n; k += blockDim.x) {{
    T x = {};
    if (place < 0 || comes(x, k, best, place)) {{ best = x; place = k; }}
  }}
  first_of_block(best, place);",
        elem.load("0"),
        elem.load("x_[start + k * inner]"),
    )
}

/// ArgMax and ArgMin: numbers x [outer, n, inner] to i64 y [outer, 1, inner].
fn arg_reduce(maker: &Maker<'_>, greater: &'static str) -> Result<Prepared> {
    let site = maker.site;
    let view = ArgReduceView::read(&site.view)?;
    let elem = maker.number(0)?;
    let dims = site.dims(0)?;
    let [outer, n, inner] = around(&dims, view.axis.ok_or(KernelError::NotYet)?);
    if n == 0 && outer * inner > 0 {
        return Err(OpError::operand(0, "elements along the axis", "none").into());
    }
    let mut source = Source::new(dims.iter().product());
    source.function(&Order { greater, last: view.last }.functions(elem));
    source.from("x_", elem, Place::operand(0));
    source.to("y", Elem::I64, Place::result(0));
    if inner > 1 {
        return Ok(staged(vec![columns(maker, source, elem, [outer, n, inner])?], &Scratch::default()));
    }
    rows(&mut source, n, inner);
    let body = format!("  {}\n  if (threadIdx.x == 0) y[blockIdx.x] = place;", search(elem));
    let stage = source.launch(maker, &body, [outer * inner, threads_for(n) as usize])?;
    Ok(staged(vec![stage], &Scratch::default()))
}

/// The search along rows with stride `inner`: a block searches 32 neighboring rows.
fn columns(
    maker: &Maker<'_>,
    mut source: Source,
    elem: Elem,
    [outer, n, inner]: [usize; 3],
) -> Result<Stage> {
    source.number("n", n);
    source.number("inner", inner);
    source.number("rows", outer * inner);
    let body = format!(
        "  __shared__ T values[8][32];
  __shared__ i64 places[8][32];
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const u64 row = blockIdx.x * 32ull + lane, start = row / inner * n * inner + row % inner;
  T best = {zero}; i64 place = -1;
  for (u64 k = warp; row < rows && k < n; k += 8) {{
    T x = {load};
    if (place < 0 || comes(x, k, best, place)) {{ best = x; place = k; }}
  }}
  values[warp][lane] = best; places[warp][lane] = place;
  __syncthreads();
  if (warp || row >= rows) return;
  for (u32 w = 1; w < 8; w++) {{
    T x = values[w][lane]; i64 k = places[w][lane];
    if (k >= 0 && comes(x, k, best, place)) {{ best = x; place = k; }}
  }}
  y[row] = place;",
        zero = elem.load("0"),
        load = elem.load("x_[start + k * inner]"),
    );
    source.launch(maker, &body, [(outer * inner).div_ceil(32), 256])
}

/// Hardmax, 1 at the first maximum and 0 elsewhere: floats x [outer, n, inner] to y of the same dims and type.
fn hardmax(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let elem = maker.real(0)?;
    let dims = site.dims(0)?;
    let (n, inner): (usize, usize) = match SoftmaxView::read(&site.view)?.axes.ok_or(KernelError::NotYet)? {
        SoftmaxAxes::One(_) if dims.is_empty() => (1, 1),
        SoftmaxAxes::One(axis) => (dims[axis], dims[axis + 1..].iter().product()),
        SoftmaxAxes::From(axis) => (dims[axis..].iter().product(), 1),
    };
    let total: usize = dims.iter().product();
    let mut source = Source::new(total);
    source.function(&Order { greater: ">", last: false }.functions(elem));
    source.from("x_", elem, Place::operand(0));
    source.to("y", elem, Place::result(0));
    rows(&mut source, n, inner);
    let body = format!(
        "  {}\n  for (u64 k = threadIdx.x; k < n; k += blockDim.x) y[start + k * inner] = k == place ? {} : {};",
        search(elem),
        elem.store("1"),
        elem.store("0"),
    );
    let stage = source.launch(maker, &body, [total.checked_div(n).unwrap_or(0), threads_for(n) as usize])?;
    Ok(staged(vec![stage], &Scratch::default()))
}

/// The number of rows that keep a device busy with one thread per row.
const MANY_ROWS: usize = 1 << 12;

/// The number of neighboring rows whose elements a warp reads at once.
const NEIGHBOURS: usize = 16;

/// The inclusive and exclusive scan of a number of each thread of a block. `total` is the total of the block.
const SCAN: &str = r"
__device__ A scan(A x, A& before, A& total) {
  __shared__ A part[32];
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (u32 o = 1; o < 32; o <<= 1) { A y = __shfl_up_sync(0xffffffffu, x, o); if (lane >= o) x = join(y, x); }
  __syncthreads();
  if (lane == 31) part[warp] = x;
  __syncthreads();
  A above = __shfl_up_sync(0xffffffffu, x, 1), all = NONE;
  before = lane ? above : NONE;
  total = NONE;
  for (u32 w = 0; w < blockDim.x >> 5; w++) { if (w == warp) all = total; total = join(total, part[w]); }
  before = join(all, before);
  return join(all, x);
}
";

/// CumSum and CumProd: numbers x [outer, n, inner] to y of the same dims and type.
fn cumulative(maker: &Maker<'_>, operator: &str) -> Result<Prepared> {
    let view = CumulativeView::read(&maker.site.view)?;
    let elem = maker.number(0)?;
    // Integers wrap.
    let acc = match elem {
        Elem::I64 | Elem::U64 => "u64",
        Elem::Bool => return Err(maker.site.no_kernel()),
        elem if elem.is_float() => elem.wide(),
        _ => "u32",
    };
    let dims = maker.site.dims(0)?;
    let [outer, n, inner] = around(&dims, view.axis.ok_or(KernelError::NotYet)?);
    let mut source = Source::new(dims.iter().product());
    source.from("x", elem, Place::operand(0));
    source.to("y", elem, Place::result(0));
    source.number("count", n);
    source.number("inner", inner);
    let at = if view.reverse { "count - 1 - k" } else { "k" };
    let none = if operator == "*" { "1" } else { "0" };
    let load = elem.load("x[place]");
    let is_of_threads = n <= 32 || (outer * inner >= MANY_ROWS && inner >= NEIGHBOURS);
    if is_of_threads {
        let written = if view.exclusive { "sum" } else { "next" };
        let body = format!(
            "u64 start = (u64)(i / inner) * count * inner + i % inner;
    {acc} sum = {none};
    for (u64 k = 0; k < count; k++) {{
      u64 place = start + ({at}) * inner;
      {acc} next = sum {operator} ({acc})({load});
      y[place] = {store};
      sum = next;
    }}",
            store = elem.store(written),
        );
        let stage = source.each(maker, outer * inner, &body)?;
        return Ok(staged(vec![stage], &Scratch::default()).in_place(&[0]));
    }
    source.function(&format!(
        "typedef {acc} A;
#define NONE ((A){none})
__device__ __forceinline__ A join(A a, A b) {{ return a {operator} b; }}
{SCAN}"
    ));
    let written = if view.exclusive { "before" } else { "made" };
    let body = format!(
        "  u64 start = (u64)(blockIdx.x / inner) * count * inner + blockIdx.x % inner;
  A sum = NONE;
  for (u64 low = 0; low < count; low += blockDim.x) {{
    u64 k = low + threadIdx.x, place = start + ({at}) * inner;
    A before, total, made = scan(k < count ? (A)({load}) : NONE, before, total);
    before = join(sum, before);
    made = join(sum, made);
    if (k < count) y[place] = {store};
    sum = join(sum, total);
  }}",
        store = elem.store(written),
    );
    let stage = source.launch(maker, &body, [outer * inner, threads_for(n) as usize])?;
    Ok(staged(vec![stage], &Scratch::default()).in_place(&[0]))
}
