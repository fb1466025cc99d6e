//! Writes of elements at indices: Scatter, ScatterElements, ScatterND.
//!
//! With a reduction, the updates are sorted by the row of the data that they change; updates of one row keep their
//! order ([`super::sort`]). A thread reduces the updates of an element, or of a vector of elements in a row, in that
//! order. If a row has more than 256 updates, separate threads reduce parts of 256, and the parts are then reduced in
//! order. So the order of every sum depends only on the indices of its row.
//!
//! Without a reduction, the last update is used. An atomic maximum of the updates' numbers finds it.

use super::indexing::{Tuples, axis_of, check_extents, range_of};
use super::sort::Sort;
use super::stage::{Place, Scratch, Source, Stage, staged};
use super::{Maker, Prepare, signed};
use crate::cuda::elements::VECTORS;
use crate::cuda::launch::{THREADS, blocks_for};
use crate::cuda::text::{Elem, Steps};
use crate::kernel::{KernelError, Prepared, Result};
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Scatter | OpKind::ScatterElements => scatter_elements,
        OpKind::ScatterND => scatter_nd,
        _ => return None,
    })
}

/// The effect of an update on an element.
struct Update {
    elem: Elem,
    /// A formula of the element `acc` and the update `term`; `None` for replacement.
    formula: Option<String>,
}

impl Update {
    fn of(maker: &Maker<'_>) -> Result<Update> {
        let site = maker.site;
        let reduction = site.view.string("reduction").unwrap_or("none");
        if site.dtype(2)? != site.dtype(0)? {
            return Err(site.no_kernel());
        }
        if reduction == "none" {
            return Ok(Update { elem: maker.raw(0)?, formula: None });
        }
        let elem = maker.number(0)?;
        // Integers wrap.
        let wraps = match elem {
            Elem::I64 | Elem::U64 => "(u64)",
            Elem::I32 | Elem::U32 | Elem::U16 => "(u32)",
            _ => "",
        };
        let order = if reduction == "max" { ">" } else { "<" };
        let formula = match (reduction, elem) {
            ("add" | "max", Elem::Bool) => "acc || term".into(),
            ("mul" | "min", Elem::Bool) => "acc && term".into(),
            ("add", _) => format!("{wraps}acc + {wraps}term"),
            ("mul", _) => format!("{wraps}acc * {wraps}term"),
            ("max" | "min", elem) if elem.is_float() => {
                format!("(acc {order} term || acc != acc) ? acc : term")
            }
            ("max" | "min", _) => format!("acc {order} term ? acc : term"),
            (other, _) => return Err(OpError::attr("reduction", "none, add, mul, max or min", other).into()),
        };
        Ok(Update { elem, formula: Some(formula) })
    }
}

/// The number of updates of a row that one thread reduces for an element. More updates are reduced in parts.
const PART: usize = 256;

/// The number of rows of the data, of elements per row, and of updates.
#[derive(Clone, Copy)]
struct Sizes {
    rows: usize,
    inner: usize,
    n: usize,
}

impl Sizes {
    /// A source whose index type fits all operands.
    fn source(self) -> Source {
        Source::new((self.rows * self.inner).max(self.n * self.inner).max(self.n))
    }
}

/// Loads the elements `x` from `place` on into `acc`, in the accumulator type.
const LOADED: &str = "Vector<S, V> loaded = load<V>(x + place);
    A acc[V];
    #pragma unroll
    for (int k = 0; k < V; k++) acc[k] = wide(loaded.at[k]);";

/// Reduces the updates at the sorted positions `q..end` into `acc`.
const JOINED: &str = "#pragma unroll 4
    for (; q < end; q++) {
      Vector<S, V> terms = load<V>(updates + (u64)ids[q] * inner + column);
      #pragma unroll
      for (int k = 0; k < V; k++) acc[k] = join(acc[k], wide(terms.at[k]));
    }";

/// A reduction of updates, sorted by row.
struct Joined<'a> {
    maker: &'a Maker<'a>,
    elem: Elem,
    formula: &'a str,
    sizes: Sizes,
    sort: Sort,
    /// The partial results: two for each [`PART`] sorted updates.
    parts: Place,
}

impl Joined<'_> {
    /// The number of partial results. Between two multiples of [`PART`], at most one part of an earlier long list
    /// begins, and at most one long list begins.
    fn slots(&self) -> usize {
        if self.sizes.n <= PART { 0 } else { 2 * self.sizes.n.div_ceil(PART) }
    }

    /// Declares the operands, and functions for `V` elements of type `S` at a time in the accumulator type `A`.
    fn declare(&self, source: &mut Source, body: &str, call: &str) -> String {
        let Joined { elem, formula, .. } = self;
        source.function(VECTORS);
        source.function(&format!(
            "typedef {} S;
typedef {} A;
__device__ __forceinline__ A join(A acc, A term) {{ return {formula}; }}
__device__ __forceinline__ A wide(S x) {{ return {}; }}
__device__ __forceinline__ S stored(A x) {{ return {}; }}
",
            elem.stored(),
            elem.wide(),
            elem.load("x"),
            elem.store("x"),
        ));
        let index = source.index;
        source.function(&format!(
            "template <int V> __device__ __forceinline__ void joined({index} count, {index} inner, u32 n, u32 rows, const u32* sorted, const u32* ids, const u32* begins, const u32* ends, const S* x, const S* updates, A* parts, S* y) {{
  const {index} columns = inner / V;
  for (u64 flat = first(); flat < (u64)count * columns; flat += step()) {{
    {index} row = ({index})flat / columns, column = ({index})flat % columns * V;
{body}
  }}
}}
"
        ));
        self.sort.read(source);
        source.from("x", *elem, Place::operand(0));
        source.from("updates", *elem, Place::operand(2));
        source.pointer("A", "parts", self.parts);
        source.to("y", *elem, Place::result(0));
        source.number("inner", self.sizes.inner);
        source.number("n", self.sizes.n);
        source.number("rows", self.sizes.rows);
        let lanes = self.lanes();
        let args = format!("{call}, inner, n, rows, sorted, ids, begins, ends, x, updates, parts, y");
        format!(
            "  if (inner % {lanes} == 0 && (((u64)x | (u64)updates | (u64)y) & 15) == 0) joined<{lanes}>({args});
  else joined<1>({args});"
        )
    }

    /// The number of elements that a thread reduces at a time.
    fn lanes(&self) -> usize {
        (16 / self.elem.bytes()).min(8)
    }

    /// The number of blocks for `rows` rows.
    fn blocks(&self, rows: usize) -> usize {
        let inner = self.sizes.inner;
        blocks_for(rows * if inner.is_multiple_of(self.lanes()) { inner / self.lanes() } else { inner })
    }

    /// The launch that reduces the parts of long lists.
    fn partial(&self) -> Result<Stage> {
        let mut source = self.sizes.source();
        let body = format!(
            "    u32 low = row / 2 * {PART}u, high = low + {PART} < n ? low + {PART} : n;
    u32 of = sorted[row % 2 ? high - 1 : low];
    if (of >= rows) continue;
    u32 begin = begins[of], end = ends[of], q = begin;
    if (end - begin <= {PART} || (row % 2 != 0) != (begin > low)) continue;
    if (begin <= low) q += (low - begin + {PART} - 1) / {PART} * {PART};
    if (q >= end || q >= high) continue;
    if (end - q > {PART}) end = q + {PART};
    A acc[V];
    Vector<S, V> front = load<V>(updates + (u64)ids[q] * inner + column);
    #pragma unroll
    for (int k = 0; k < V; k++) acc[k] = wide(front.at[k]);
    q++;
    {JOINED}
    Vector<A, V> part;
    #pragma unroll
    for (int k = 0; k < V; k++) part.at[k] = acc[k];
    store(parts + (u64)row * inner + column, part);"
        );
        source.number("slots", self.slots());
        let body = self.declare(&mut source, &body, "slots");
        source.launch(self.maker, &body, [self.blocks(self.slots()), THREADS as usize])
    }

    /// The launch that reduces elements with their updates or partial results.
    fn whole(&self) -> Result<Stage> {
        let mut source = self.sizes.source();
        let body = format!(
            "    u32 begin = begins[row], end = ends[row], q = begin;
    if (begin == end && x == y) continue;
    u64 place = (u64)row * inner + column;
    {LOADED}
    if (end - begin <= {PART}) {{
    {JOINED}
    }} else {{
      #pragma unroll 4
      for (; q < end; q += {PART}) {{
        u32 slot = q / {PART} * 2 + (begin > q / {PART} * {PART} ? 1 : 0);
        Vector<A, V> part = load<V>(parts + (u64)slot * inner + column);
        #pragma unroll
        for (int k = 0; k < V; k++) acc[k] = join(acc[k], part.at[k]);
      }}
    }}
    Vector<S, V> made;
    #pragma unroll
    for (int k = 0; k < V; k++) made.at[k] = stored(acc[k]);
    store(y + place, made);"
        );
        let body = self.declare(&mut source, &body, "rows");
        source.launch(self.maker, &body, [self.blocks(self.sizes.rows), THREADS as usize])
    }
}

/// The kernel of updates. `row` is text that sets `row`, the row of update `u`, or continues with the next update
/// after an error; `source` has declared its operands.
fn prepared(
    maker: &Maker<'_>,
    update: &Update,
    sizes: Sizes,
    mut source: Source,
    row: &str,
) -> Result<Prepared> {
    let Sizes { rows, inner, n } = sizes;
    let index = source.index;
    let mut scratch = Scratch::default();
    // Without rows, indices are still checked.
    let Some(formula) = update.formula.as_ref().filter(|_| rows > 0) else {
        if i32::try_from(n).is_err() {
            return Err(KernelError::unsupported("2^31 updates"));
        }
        let last = scratch.part(rows * 4);
        source.pointer("int", "last", last);
        let link = if rows == 0 { "" } else { "atomicMax(&last[row], (int)u);" };
        let linked = source.each(maker, n, &format!("{index} u = i;\n    {row}    {link}"))?;
        let mut cleared = sizes.source();
        cleared.pointer("int", "last", last);
        let cleared = cleared.each(maker, rows, "last[i] = -1;")?;
        let mut moved = sizes.source();
        moved.from("x", update.elem, Place::operand(0));
        moved.from("updates", update.elem, Place::operand(2));
        moved.pointer("const int", "last", last);
        moved.to("y", update.elem, Place::result(0));
        moved.number("inner", inner);
        let body = "int u = last[i / inner];
    if (u >= 0) y[i] = updates[(u64)u * inner + i % inner]; else if (x != y) y[i] = x[i];";
        let moved = moved.each(maker, rows * inner, body)?;
        return Ok(staged(vec![cleared, linked, moved], &scratch).in_place(&[0]));
    };
    let sort = Sort::new(n, rows, &mut scratch)?;
    let cleared = sort.declare(&mut source);
    source.number("rows", rows);
    source.number("updates", n);
    let body = format!(
        "if (i < rows) {{ {cleared} }}
    if (i >= updates) continue;
    {index} u = i;
    keys[u] = rows;
    {row}    keys[u] = row;"
    );
    let mut stages = vec![source.each(maker, n.max(rows), &body)?];
    stages.extend(sort.stages(maker)?);
    let elem = update.elem;
    let mut joined = Joined { maker, elem, formula, sizes, sort, parts: Place::operand(0) };
    let size = if matches!(elem, Elem::F16 | Elem::BF16) { 4 } else { elem.bytes() };
    joined.parts = scratch.part(joined.slots() * inner * size);
    if joined.slots() > 0 {
        stages.push(joined.partial()?);
    }
    stages.push(joined.whole()?);
    Ok(staged(stages, &scratch).in_place(&[0]))
}

/// Scatter and ScatterElements: data [d0, …, dr], i64 or i32 indices and updates of the same rank, to a result like
/// the data.
fn scatter_elements(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let (data, dims) = (site.dims(0)?, site.dims(1)?);
    let axis = axis_of(maker, 0, data.len())?;
    check_extents(&data, &dims, axis)?;
    let update = Update::of(maker)?;
    let sizes = Sizes { rows: data.iter().product(), inner: 1, n: dims.iter().product() };
    let mut steps = Steps::broadcast(&data, &data).ok_or(KernelError::NotYet)?;
    steps.steps[axis] = 0;
    let mut source = sizes.source();
    source.from("index", maker.index(1)?, Place::operand(1));
    source.signed("extent", signed(data[axis]));
    source.signed("along", signed(data[axis + 1..].iter().product()));
    source.fails(maker, range_of(data[axis]));
    let place = source.position(&dims, &steps, "i");
    let row = format!(
        "i64 found = index[i], j = found < 0 ? found + extent : found;
    if (j < 0 || j >= extent) {{ fail(failure, name, found); continue; }}
    i64 row = {place} + j * along;
"
    );
    prepared(maker, &update, sizes, source, &row)
}

/// ScatterND: data [d0, …, dr], i64 indices [i0, …, iq, m] and updates [i0, …, iq, dm, …, dr], to a result
/// like the data.
fn scatter_nd(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let update = Update::of(maker)?;
    let total: usize = site.dims(0)?.iter().product();
    let mut source =
        Source::new(total.max(site.dims(2)?.iter().product()).max(site.dims(1)?.iter().product()));
    let Tuples { n, inner, text } = Tuples::of(maker, 0, &mut source, "continue;")?;
    // The indices of rows without elements are checked too.
    let rows = total.checked_div(inner).unwrap_or(0);
    prepared(maker, &update, Sizes { rows, inner, n }, source, &text)
}
