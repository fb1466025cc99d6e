//! Positions and running values along an axis: ArgMax, ArgMin, CumSum, CumProd, Hardmax, TopK.
//!
//! The first of equal elements counts, unless the node selects the last. NaN is both the greatest and the least number
//! for ArgMax and ArgMin; for TopK and Hardmax it is the greatest. A thread computes the running values of a row. TopK
//! has a block for each row, which searches it `k` times.

use super::stage::{Place, Scratch, Source, staged};
use super::{Maker, Prepare, around};
use crate::cuda::launch::threads_for;
use crate::cuda::text::Elem;
use crate::kernel::{KernelError, Prepared, Result};
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use ampc_ir::views::norm::{SoftmaxAxes, SoftmaxView};
use ampc_ir::views::reduce::{ArgReduceView, CumulativeView, TopKView};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::ArgMax => |m| arg_reduce(m, ">"),
        OpKind::ArgMin => |m| arg_reduce(m, "<"),
        OpKind::CumProd => |m| cumulative(m, "*"),
        OpKind::CumSum => |m| cumulative(m, "+"),
        OpKind::Hardmax => hardmax,
        OpKind::TopK => top_k,
        _ => return None,
    })
}

/// The order of elements that reductions to a position use.
struct Order {
    greater: &'static str,
    /// True if NaN is before all numbers, whichever the order is.
    nan_is_first: bool,
    last: bool,
}

impl Order {
    /// `comes(a, i, b, j)`: true if element `a` at `i` comes before `b` at `j`; and the first of a block, whose threads
    /// have one element each, or -1 for the position.
    fn functions(&self, elem: Elem) -> String {
        let Order { greater, nan_is_first, last } = *self;
        let before = if last { "i > j" } else { "i < j" };
        let is_first = if nan_is_first || greater == ">" { "x" } else { "y" };
        format!(
            "typedef {wide} T;
__device__ __forceinline__ bool comes(T a, i64 i, T b, i64 j) {{
  bool x = a != a, y = b != b;
  if (x != y) return {is_first};
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

/// The parameters of rows of `n` elements that are `inner` elements apart.
fn rows(source: &mut Source, n: usize, inner: usize) {
    source.number("n", n);
    source.number("inner", inner);
    source.local("u64 start = (u64)(blockIdx.x / inner) * n * inner + blockIdx.x % inner;");
}

/// Statements that find `best` at `place` among the elements of a row that `also` permits.
fn search(elem: Elem, also: &str) -> String {
    format!(
        "T best = {}; i64 place = -1;
  for (u64 k = threadIdx.x; k < n; k += blockDim.x) {{
    T x = {};
    if ({also}(place < 0 || comes(x, k, best, place))) {{ best = x; place = k; }}
  }}
  first_of_block(best, place);",
        elem.load("0"),
        elem.load("x_[start + k * inner]"),
    )
}

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
    source.function(&Order { greater, nan_is_first: true, last: view.last }.functions(elem));
    source.from("x_", elem, Place::operand(0));
    source.to("y", Elem::I64, Place::result(0));
    rows(&mut source, n, inner);
    let body = format!("  {}\n  if (threadIdx.x == 0) y[blockIdx.x] = place;", search(elem, ""));
    let stage = source.launch(maker, &body, [outer * inner, threads_for(n) as usize])?;
    Ok(staged(vec![stage], &Scratch::default()))
}

/// Hardmax: 1 at the first greatest element, 0 elsewhere.
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
    source.function(&Order { greater: ">", nan_is_first: true, last: false }.functions(elem));
    source.from("x_", elem, Place::operand(0));
    source.to("y", elem, Place::result(0));
    rows(&mut source, n, inner);
    let body = format!(
        "  {}\n  for (u64 k = threadIdx.x; k < n; k += blockDim.x) y[start + k * inner] = k == place ? {} : {};",
        search(elem, ""),
        elem.store("1"),
        elem.store("0"),
    );
    let stage = source.launch(maker, &body, [total.checked_div(n).unwrap_or(0), threads_for(n) as usize])?;
    Ok(staged(vec![stage], &Scratch::default()))
}

fn top_k(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let view = TopKView::read(&site.view)?;
    let elem = maker.number(0)?;
    let dims = site.dims(0)?;
    let [outer, n, inner] = around(&dims, view.axis.ok_or(KernelError::NotYet)?);
    let k = view.k.and_then(|k| usize::try_from(k).ok()).ok_or(KernelError::NotYet)?;
    if k > n {
        return Err(view.k_error(format!("at most {n} elements"), k).into());
    }
    let greater = if view.largest { ">" } else { "<" };
    let mut source = Source::new(dims.iter().product());
    source.function(&Order { greater, nan_is_first: false, last: false }.functions(elem));
    source.from("x_", elem, Place::operand(0));
    source.to("values", elem, Place::result(0));
    source.to("indices", Elem::I64, Place::result(1));
    rows(&mut source, n, inner);
    source.number("count", k);
    let body = format!(
        "  u64 to = (u64)(blockIdx.x / inner) * count * inner + blockIdx.x % inner;
  T before = {zero}; i64 last = -1;
  for (u64 j = 0; j < count; j++) {{
  {search}
  before = best; last = place;
  if (threadIdx.x == 0) {{
    if (values) values[to + j * inner] = x_[start + place * inner];
    if (indices) indices[to + j * inner] = place;
  }}
  }}",
        zero = elem.load("0"),
        search = search(elem, "(last < 0 || comes(before, last, x, k)) && "),
    );
    let stage = source.launch(maker, &body, [outer * inner, threads_for(n) as usize])?;
    Ok(staged(vec![stage], &Scratch::default()))
}

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
    let written = if view.exclusive { "sum" } else { "next" };
    let body = format!(
        "u64 start = (u64)(i / inner) * count * inner + i % inner;
    {acc} sum = {first};
    for (u64 k = 0; k < count; k++) {{
      u64 place = start + ({at}) * inner;
      {acc} next = sum {operator} ({acc})({load});
      y[place] = {store};
      sum = next;
    }}",
        first = if operator == "*" { "1" } else { "0" },
        load = elem.load("x[place]"),
        store = elem.store(written),
    );
    Ok(staged(vec![source.each(maker, outer * inner, &body)?], &Scratch::default()).in_place(&[0]))
}
