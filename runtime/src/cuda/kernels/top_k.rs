//! TopK: the greatest or the least elements of a row, in order. NaN is the greatest number, and the first of equal elements
//! comes first.
//!
//! Each element has an integer as its key; elements come first in the order of their keys. A block has a row:
//!
//! 1. It finds the key of element `k`, digit by digit of 8 bits from the highest on, by counts of the elements that
//!    have the digits found so far (radix select; Alabi et al., "Fast k-selection algorithms for graphics processing
//!    units", 2012).
//! 2. It takes all elements with lower keys, and the first ones with that key.
//! 3. It sorts them by key and place, in a bitonic network: up to 1024 in shared memory, more in scratch memory.

use super::sort::BLOCK_SCAN;
use super::stage::{Place, Scratch, Source, staged};
use super::{Maker, around};
use crate::cuda::text::Elem;
use crate::kernel::{KernelError, Prepared, Result};
use ampc_ir::views::reduce::TopKView;

/// The most elements that are sorted in shared memory.
const SHARED: usize = 1024;

/// The type of keys, and the key of the element `x`, a float or an integer.
fn key(elem: Elem) -> (&'static str, String) {
    let floats = |ty: &str, bits: &str, sign: &str| {
        format!(
            "x != x ? ({ty})~({ty})0 : x == 0 ? ({ty}){sign} : ({bits} & {sign}) ? ({ty})~{bits} : ({ty})({bits} | {sign})"
        )
    };
    match elem {
        Elem::F64 => ("u64", floats("u64", "(u64)__double_as_longlong(x)", "0x8000000000000000ull")),
        Elem::I64 => ("u64", "(u64)x ^ 0x8000000000000000ull".into()),
        Elem::U64 => ("u64", "x".into()),
        elem if elem.is_float() => ("u32", floats("u32", "__float_as_uint(x)", "0x80000000u")),
        elem if elem.is_signed() => ("u32", "(u32)(int)x ^ 0x80000000u".into()),
        _ => ("u32", "(u32)x".into()),
    }
}

pub(super) fn top_k(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let view = TopKView::read(&site.view)?;
    let elem = maker.number(0)?;
    let dims = site.dims(0)?;
    let [outer, n, inner] = around(&dims, view.axis.ok_or(KernelError::NotYet)?);
    let k = view.k.and_then(|k| usize::try_from(k).ok()).ok_or(KernelError::NotYet)?;
    if k > n {
        return Err(view.k_error(format!("at most {n} elements"), k).into());
    }
    if i32::try_from(n).is_err() {
        return Err(KernelError::unsupported("TopK of 2^31 elements and more"));
    }
    if k > 1 << 30 {
        return Err(KernelError::unsupported("TopK with k above 2^30"));
    }
    let rows = outer * inner;
    let (ty, key) = key(elem);
    let size = k.next_power_of_two();
    let mut scratch = Scratch::default();
    let in_scratch = if size > SHARED { rows * size } else { 0 };
    let (keys, ids) = (scratch.part(in_scratch * 8), scratch.part(in_scratch * 4));
    let mut source = Source::new(dims.iter().product());
    source.function(BLOCK_SCAN);
    source.function(&format!(
        "typedef {} T;\ntypedef {ty} Key;\n__device__ __forceinline__ Key key_of(T x) {{ return {}({key}); }}\n",
        elem.wide(),
        if view.largest { "(Key)~" } else { "" },
    ));
    source.from("x", elem, Place::operand(0));
    source.to("values", elem, Place::result(0));
    source.to("indices", Elem::I64, Place::result(1));
    source.pointer("Key", "all_keys", keys);
    source.pointer("u32", "all_ids", ids);
    source.number("n", n);
    source.number("inner", inner);
    source.number("k", k);
    source.number("size", size);
    let load = elem.load("x[start + (u64)at * inner]");
    let body = format!(
        "  __shared__ Key some_keys[{SHARED}];
  __shared__ u32 some_ids[{SHARED}];
  __shared__ u32 counts[256];
  __shared__ u32 found[2];
  __shared__ u32 taken;
  const u64 start = (u64)(blockIdx.x / inner) * n * inner + blockIdx.x % inner;
  Key* keys = size > {SHARED} ? all_keys + (u64)blockIdx.x * size : some_keys;
  u32* ids = size > {SHARED} ? all_ids + (u64)blockIdx.x * size : some_ids;
  const u32 t = threadIdx.x;
  Key prefix = 0, mask = 0;
  u32 need = k, total;
  for (int shift = sizeof(Key) * 8 - 8; shift >= 0; shift -= 8) {{
    counts[t] = 0;
    __syncthreads();
    for (u32 at = t; at < n; at += 256) {{
      Key key = key_of({load});
      if ((key & mask) == prefix) atomicAdd(&counts[(u32)(key >> shift) & 255], 1u);
    }}
    __syncthreads();
    u32 before = block_scan(counts[t], total);
    if (before < need && need <= before + counts[t]) {{ found[0] = t; found[1] = need - before; }}
    __syncthreads();
    prefix |= (Key)found[0] << shift;
    mask |= (Key)255 << shift;
    need = found[1];
    __syncthreads();
  }}
  if (t == 0) taken = 0;
  for (u32 at = k + t; at < size; at += 256) {{ keys[at] = (Key)~(Key)0; ids[at] = 0xffffffffu; }}
  __syncthreads();
  u32 equal = 0;
  for (u32 low = 0; low < n; low += 256) {{
    u32 at = low + t;
    Key key = at < n ? key_of({load}) : (Key)~(Key)0;
    bool is_equal = at < n && key == prefix;
    u32 rank = equal + block_scan(is_equal, total);
    equal += total;
    if (at < n && key < prefix) {{ u32 to = atomicAdd(&taken, 1u); keys[to] = key; ids[to] = at; }}
    if (is_equal && rank < need) {{ keys[k - need + rank] = key; ids[k - need + rank] = at; }}
  }}
  for (u32 run = 2; run <= size; run <<= 1) {{
    for (u32 away = run >> 1; away; away >>= 1) {{
      __syncthreads();
      for (u32 at = t; at < size >> 1; at += 256) {{
        u32 a = 2 * at - (at & (away - 1)), b = a + away;
        Key low = keys[a], high = keys[b];
        u32 i = ids[a], j = ids[b];
        if ((low > high || (low == high && i > j)) == ((a & run) == 0)) {{
          keys[a] = high; keys[b] = low; ids[a] = j; ids[b] = i;
        }}
      }}
    }}
  }}
  __syncthreads();
  const u64 to = (u64)(blockIdx.x / inner) * k * inner + blockIdx.x % inner;
  for (u32 j = t; j < k; j += 256) {{
    u32 at = ids[j];
    if (values) values[to + j * inner] = x[start + (u64)at * inner];
    if (indices) indices[to + j * inner] = at;
  }}"
    );
    let stage = source.launch(maker, &body, [if k == 0 { 0 } else { rows }, 256])?;
    Ok(staged(vec![stage], &scratch))
}
