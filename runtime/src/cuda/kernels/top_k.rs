//! TopK: the largest or smallest elements of a row, sorted. NaN is the largest number; of equal elements, the first
//! comes first.
//!
//! Each element is mapped to an integer key whose order is the order of the result. A block has a row:
//!
//! 1. It finds the key of element `k`, by 8-bit digits from the highest on, by counts of the elements that have the
//!    digits found so far (radix select; Alabi et al., "Fast k-selection algorithms for graphics processing units",
//!    2012).
//! 2. It takes all elements with lower keys, and the first elements with that key.
//! 3. It sorts up to 1024 of them by key and position, in a bitonic network in shared memory.
//!
//! More elements are sorted by all blocks with a radix sort in linear time ([`Radix`]). If the memory suffices, whole
//! rows are sorted without steps 1 and 2, which use only one block per row.

use super::sort::{BLOCK_SCAN, Radix};
use super::stage::{Place, Scratch, Source, Stage, staged};
use super::{Maker, around};
use crate::cuda::text::Elem;
use crate::kernel::{KernelError, Prepared, Result};
use ampc_ir::views::reduce::TopKView;

/// The maximum number of elements that a block sorts in shared memory.
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

/// TopK: numbers x [outer, n, inner] to values [outer, k, inner] of the same type and indices i64 [outer, k, inner].
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
    let (ty, key) = key(elem);
    let functions = format!(
        "typedef {} T;\ntypedef {ty} Key;\n__device__ __forceinline__ Key key_of(T x) {{ return {}({key}); }}\n",
        elem.wide(),
        if view.largest { "(Key)~" } else { "" },
    );
    let rows = TopK { elem, key: ty, functions, outer, n, inner, k };
    let mut scratch = Scratch::default();
    let stages = match (k <= SHARED, rows.are_sorted_whole()) {
        (true, _) => vec![rows.selected(maker, None)?],
        (false, true) => {
            let radix = Radix::new([rows.count(), n], rows.bits(), false, &mut scratch)?;
            let mut stages = vec![rows.keys(maker, &radix)?];
            stages.extend(radix.stages(maker)?);
            stages.push(rows.written(maker, &radix, n)?);
            stages
        }
        (false, false) => {
            let radix = Radix::new([rows.count(), k], rows.bits(), true, &mut scratch)?;
            let mut stages = vec![rows.selected(maker, Some(&radix))?];
            stages.extend(radix.stages(maker)?);
            stages.push(rows.written(maker, &radix, k)?);
            stages
        }
    };
    Ok(staged(stages, &scratch))
}

/// The rows of an operand: elements [outer, n, inner], of which `k` along the middle axis are results.
struct TopK {
    elem: Elem,
    /// The C type of keys.
    key: &'static str,
    /// The types `T` and `Key`, and the function `key_of`.
    functions: String,
    outer: usize,
    n: usize,
    inner: usize,
    k: usize,
}

/// The maximum number of elements of an operand whose rows are sorted whole, regardless of the number of results.
const SORTED_WHOLE: usize = 1 << 20;

impl TopK {
    fn count(&self) -> usize {
        self.outer * self.inner
    }

    /// The type of keys, and its number of bits.
    fn bits(&self) -> (&'static str, u32) {
        (self.key, if self.key == "u64" { 64 } else { 32 })
    }

    /// True if rows are sorted whole: if they are small, or their memory is proportional to that of the results.
    fn are_sorted_whole(&self) -> bool {
        self.n / 8 <= self.k || self.count() * self.n <= SORTED_WHOLE
    }

    fn source(&self) -> Source {
        let mut source = Source::new(self.count() * self.n);
        source.function(&self.functions);
        source.from("x", self.elem, Place::operand(0));
        source.number("length", self.n);
        source.number("inner", self.inner);
        source
    }

    /// The launch that computes the keys of all elements.
    fn keys(&self, maker: &Maker<'_>, radix: &Radix) -> Result<Stage> {
        let mut source = self.source();
        radix.declare(&mut source);
        let load = self.elem.load("x[(row / inner * length + at) * inner + row % inner]");
        let body = format!("u64 row = i / length, at = i % length;\n    keys[i] = key_of({load});");
        source.each(maker, self.count() * self.n, &body)
    }

    /// Writes the first `k` elements of sorted lists of `length` element indices.
    fn written(&self, maker: &Maker<'_>, radix: &Radix, length: usize) -> Result<Stage> {
        let mut source = self.source();
        let [_, ids] = radix.sorted();
        source.pointer("const u32", "ids", ids);
        source.to("values", self.elem, Place::result(0));
        source.to("indices", Elem::I64, Place::result(1));
        source.number("k", self.k);
        source.number("sorted", length);
        let body = "u64 row = i / k, j = i % k, at = ids[row * sorted + j];
    u64 to = (row / inner * k + j) * inner + row % inner;
    if (values) values[to] = x[(row / inner * length + at) * inner + row % inner];
    if (indices) indices[to] = at;";
        source.each(maker, self.count() * self.k, body)
    }

    /// Selects the elements: writes them to the results in order, or to lists for a sort in the order of their
    /// positions.
    fn selected(&self, maker: &Maker<'_>, radix: Option<&Radix>) -> Result<Stage> {
        let TopK { elem, k, .. } = *self;
        let mut source = self.source();
        source.function(BLOCK_SCAN);
        source.number("k", k);
        let (lists, written) = match radix {
            Some(radix) => {
                radix.declare(&mut source);
                ("  keys += (u64)blockIdx.x * k;\n  ids += (u64)blockIdx.x * k;".to_owned(), String::new())
            }
            None => {
                source.to("values", elem, Place::result(0));
                source.to("indices", Elem::I64, Place::result(1));
                source.number("size", k.next_power_of_two());
                let lists = format!("  __shared__ Key keys[{SHARED}];\n  __shared__ u32 ids[{SHARED}];");
                (lists, SORTED_AND_WRITTEN.to_owned())
            }
        };
        let load = elem.load("x[start + (u64)at * inner]");
        let body = format!(
            "{lists}
  __shared__ u32 counts[256];
  __shared__ u32 found[2];
  const u64 start = (u64)(blockIdx.x / inner) * length * inner + blockIdx.x % inner;
  const u32 t = threadIdx.x;
  Key prefix = 0, mask = 0;
  u32 need = k, total;
  for (int shift = sizeof(Key) * 8 - 8; shift >= 0; shift -= 8) {{
    counts[t] = 0;
    __syncthreads();
    for (u32 at = t; at < length; at += 256) {{
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
  u32 equal = 0, taken = 0;
  for (u32 low = 0; low < length; low += 256) {{
    u32 at = low + t;
    Key key = at < length ? key_of({load}) : (Key)~(Key)0;
    bool is_equal = at < length && key == prefix;
    u32 rank = equal + block_scan(is_equal, total);
    equal += total;
    bool is_taken = at < length && (key < prefix || (is_equal && rank < need));
    u32 to = taken + block_scan(is_taken, total);
    taken += total;
    if (is_taken) {{ keys[to] = key; ids[to] = at; }}
  }}{written}"
        );
        source.launch(maker, &body, [if k == 0 { 0 } else { self.count() }, 256])
    }
}

/// Sorts the list of a block in shared memory, and writes the results.
const SORTED_AND_WRITTEN: &str = r"
  for (u32 at = k + t; at < size; at += 256) { keys[at] = (Key)~(Key)0; ids[at] = 0xffffffffu; }
  for (u32 run = 2; run <= size; run <<= 1) {
    for (u32 away = run >> 1; away; away >>= 1) {
      __syncthreads();
      for (u32 at = t; at < size >> 1; at += 256) {
        u32 a = 2 * at - (at & (away - 1)), b = a + away;
        Key low = keys[a], high = keys[b];
        u32 i = ids[a], j = ids[b];
        if ((low > high || (low == high && i > j)) == ((a & run) == 0)) {
          keys[a] = high; keys[b] = low; ids[a] = j; ids[b] = i;
        }
      }
    }
  }
  __syncthreads();
  const u64 to = (u64)(blockIdx.x / inner) * k * inner + blockIdx.x % inner;
  for (u32 j = t; j < k; j += 256) {
    u32 at = ids[j];
    if (values) values[to + j * inner] = x[start + (u64)at * inner];
    if (indices) indices[to + j * inner] = at;
  }";
