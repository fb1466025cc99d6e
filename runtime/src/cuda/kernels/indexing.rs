//! Elements at indices: GatherElements, GatherND, ScatterElements, ScatterND, TensorScatter.
//!
//! Updates are joined in their order, without atomic operations. A thread of ScatterElements reads the indices along
//! the axis for one element of the result: extent of the axis × elements of the data in all. ScatterND has a block for
//! up to 256 elements of a row of the data, which reads all tuples of indices: rows × tuples in all.

use super::stage::{Place, Scratch, Source, Stage, staged};
use super::{Maker, Prepare, around};
use crate::cuda::launch::{THREADS, threads_for};
use crate::cuda::text::{Elem, Steps};
use crate::kernel::{KernelError, Prepared, Result};
use ampc_ir::op::OpKind;
use ampc_ir::views::{OpError, Part, normalize_axis};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::GatherElements => gather_elements,
        OpKind::GatherND => gather_nd,
        OpKind::Scatter | OpKind::ScatterElements => scatter_elements,
        OpKind::ScatterND => scatter_nd,
        OpKind::TensorScatter => tensor_scatter,
        _ => return None,
    })
}

fn axis_of(maker: &Maker<'_>, default: i64, rank: usize) -> Result<usize> {
    let axis = maker.site.view.int("axis").unwrap_or(default);
    Ok(normalize_axis(axis, rank, Part::Attr("axis".into()))?)
}

/// An error unless indices have no larger extents than the data but at their axis.
fn check_extents(data: &[usize], indices: &[usize], axis: usize) -> Result<()> {
    let fits = data.iter().zip(indices).enumerate().all(|(i, (data, indices))| i == axis || indices <= data);
    if fits && data.len() == indices.len() {
        return Ok(());
    }
    let expected = format!("at most the extents {data:?} but at axis {axis}");
    Err(OpError::operand(1, expected, format!("{indices:?}")).into())
}

/// The values of indices along an axis, for errors.
fn range_of(n: usize) -> String {
    format!("an index in [-{n}, {n})")
}

fn signed(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn gather_elements(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let (data, dims) = (site.dims(0)?, site.dims(1)?);
    let axis = axis_of(maker, 0, data.len())?;
    check_extents(&data, &dims, axis)?;
    let n: usize = dims.iter().product();
    let mut steps = Steps::broadcast(&data, &data).ok_or(KernelError::NotYet)?;
    let along: usize = data[axis + 1..].iter().product();
    steps.steps[axis] = 0;
    let mut source = Source::new(n.max(data.iter().product()));
    let elem = maker.raw(0)?;
    source.from("x", elem, Place::operand(0));
    source.from("index", maker.index(1)?, Place::operand(1));
    source.to("y", elem, Place::result(0));
    source.signed("extent", signed(data[axis]));
    source.signed("along", signed(along));
    source.fails(maker, range_of(data[axis]));
    let place = source.position(&dims, &steps, "i");
    let body = format!(
        "i64 found = index[i], j = found < 0 ? found + extent : found;
    if (j < 0 || j >= extent) {{ fail(failure, name, found); y[i] = 0; continue; }}
    y[i] = x[{place} + j * along];"
    );
    Ok(staged(vec![source.each(maker, n, &body)?], &Scratch::default()))
}

/// Tuples of indices, each of which names a row of `inner` elements of the data.
struct Tuples {
    /// Tuples.
    n: usize,
    inner: usize,
    /// The statements that compute `row`, the row that tuple `u` names, or fail.
    text: String,
}

impl Tuples {
    /// Operand 1 of a node has tuples for operand 0, whose first `batch` axes are those of the tuples.
    fn of(maker: &Maker<'_>, batch: usize, source: &mut Source, failed: &str) -> Result<Tuples> {
        let (data, indices) = (maker.site.dims(0)?, maker.site.dims(1)?);
        let (&k, outer) =
            indices.split_last().ok_or_else(|| OpError::operand(1, "rank 1 or more", "a scalar"))?;
        let named = data.get(batch..).and_then(|rest| rest.get(..k));
        let named =
            named.ok_or_else(|| OpError::operand(1, "a last extent for axes of operand 0", k.to_string()))?;
        source.from("index", maker.index(1)?, Place::operand(1));
        source.number("share", outer.get(batch..).unwrap_or_default().iter().product::<usize>().max(1));
        let mut text = "i64 row = (i64)(u / share);\n".to_owned();
        for (c, &extent) in named.iter().enumerate() {
            source.signed(&format!("extent{c}"), signed(extent));
            text += &format!(
                "    {{ i64 found = index[(u64)u * {k} + {c}], j = found < 0 ? found + extent{c} : found;
      if (j < 0 || j >= extent{c}) {{ fail(failure, name, found); {failed} }} row = row * extent{c} + j; }}\n"
            );
        }
        // One message for all axes: that of the axis with the fewest elements.
        source.fails(maker, range_of(named.iter().copied().min().unwrap_or(0)));
        let n = outer.iter().product();
        Ok(Tuples { n, inner: data[batch + k..].iter().product(), text })
    }
}

fn gather_nd(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let batch = site.view.int("batch_dims").unwrap_or(0);
    let batch =
        usize::try_from(batch).map_err(|_| OpError::attr("batch_dims", "0 or more", batch.to_string()))?;
    let n: usize = site.result_dims(0)?.iter().product();
    let mut source = Source::new(n.max(site.dims(0)?.iter().product()));
    let elem = maker.raw(0)?;
    source.from("x", elem, Place::operand(0));
    source.to("y", elem, Place::result(0));
    let tuples = Tuples::of(maker, batch, &mut source, "y[i] = 0; continue;")?;
    source.number("inner", tuples.inner);
    let index = source.index;
    let body =
        format!("{index} u = i / inner;\n    {} y[i] = x[row * (i64)inner + i % inner];", tuples.text);
    Ok(staged(vec![source.each(maker, n, &body)?], &Scratch::default()))
}

/// The update of an element: the type of its elements, and the formula of `acc` and `term`.
struct Update {
    elem: Elem,
    formula: String,
}

impl Update {
    fn of(maker: &Maker<'_>, updates: usize) -> Result<Update> {
        let site = maker.site;
        let reduction = site.view.string("reduction").unwrap_or("none");
        if site.dtype(updates)? != site.dtype(0)? {
            return Err(site.no_kernel());
        }
        if reduction == "none" {
            return Ok(Update { elem: maker.raw(0)?, formula: "term".into() });
        }
        let elem = maker.any_number(0)?;
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
        Ok(Update { elem, formula })
    }
}

/// A thread for each element of the data walks the updates along the axis.
fn scatter_elements(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let (data, dims) = (site.dims(0)?, site.dims(1)?);
    let axis = axis_of(maker, 0, data.len())?;
    check_extents(&data, &dims, axis)?;
    let Update { elem, formula } = Update::of(maker, 2)?;
    let index = maker.index(1)?;
    let (n, updates): (usize, usize) = (data.iter().product(), dims.iter().product());
    let mut check = Source::new(updates);
    check.from("index", index, Place::operand(1));
    check.signed("extent", signed(data[axis]));
    check.fails(maker, range_of(data[axis]));
    let check = check.each(
        maker,
        updates,
        "i64 found = index[i]; if (found < -extent || found >= extent) fail(failure, name, found);",
    )?;
    let own = Steps::broadcast(&dims, &dims).ok_or(KernelError::NotYet)?;
    let mut source = Source::new(n.max(updates));
    source.from("x", elem, Place::operand(0));
    source.from("index", index, Place::operand(1));
    source.from("updates", elem, Place::operand(2));
    source.to("y", elem, Place::result(0));
    source.signed("extent", signed(data[axis]));
    source.signed("count", signed(dims[axis]));
    let [_, _, behind] = around(&dims, axis);
    source.signed("along", signed(behind));
    let mut body = String::from("i64 start = 0, own = 0; bool is_in = true;\n");
    for a in 0..data.len() {
        source.number(&format!("below{a}"), data[a + 1..].iter().product());
        source.number(&format!("data{a}"), data[a]);
        if a == axis {
            body += &format!("    own = (i64)(i / below{a} % data{a});\n");
        } else {
            source.number(&format!("dims{a}"), dims[a]);
            source.signed(&format!("step{a}"), own.steps[a]);
            body += &format!(
                "    {{ u64 c = i / below{a} % data{a}; is_in = is_in && c < dims{a}; start += (i64)c * step{a}; }}\n"
            );
        }
    }
    body += &format!(
        "    {wide} acc = {load};
    if (is_in) for (i64 j = 0; j < count; j++) {{
      i64 found = index[start + j * along];
      if ((found < 0 ? found + extent : found) == own) {{ {wide} term = {update}; acc = {formula}; }}
    }}
    y[i] = {store};",
        wide = elem.wide(),
        load = elem.load("x[i]"),
        update = elem.load("updates[start + j * along]"),
        store = elem.store("acc"),
    );
    Ok(staged(vec![check, source.each(maker, n, &body)?], &Scratch::default()).in_place(&[0]))
}

/// The first launch computes the row of each tuple, the second joins the updates of each row.
fn scatter_nd(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let Update { elem, formula } = Update::of(maker, 2)?;
    let total: usize = site.dims(0)?.iter().product();
    let updates: usize = site.dims(2)?.iter().product();
    let mut scratch = Scratch::default();
    let mut named = Source::new(total.max(updates));
    let Tuples { n, inner, text } = Tuples::of(maker, 0, &mut named, "rows[u] = -1; continue;")?;
    let rows = scratch.part(n * 8);
    named.to("rows", Elem::I64, rows);
    let body = format!("{} u = i;\n    {text} rows[u] = row;", named.index);
    let mut stages = vec![named.each(maker, n, &body)?];
    stages.push(join_rows(maker, &Rows { elem, formula, n, inner, total, rows, updates: 2 })?);
    Ok(staged(stages, &scratch).in_place(&[0]))
}

/// Updates of rows.
struct Rows {
    elem: Elem,
    formula: String,
    /// Updates.
    n: usize,
    /// Elements of a row.
    inner: usize,
    /// Elements of the data.
    total: usize,
    /// The row of each update.
    rows: Place,
    /// The operand of the updates.
    updates: usize,
}

fn join_rows(maker: &Maker<'_>, of: &Rows) -> Result<Stage> {
    let &Rows { elem, n, inner, total, rows, updates, .. } = of;
    let threads = threads_for(inner.max(n)).min(THREADS) as usize;
    let tiles = inner.div_ceil(threads);
    let mut source = Source::new(total.max(n * inner));
    source.from("x", elem, Place::operand(0));
    source.from("rows", Elem::I64, rows);
    source.from("updates", elem, Place::operand(updates));
    source.to("y", elem, Place::result(0));
    source.number("n", n);
    source.number("inner", inner);
    source.number("tiles", tiles);
    let body = format!(
        "  __shared__ u8 hits[256];
  __shared__ u32 any;
  u64 row = blockIdx.x / tiles, column = blockIdx.x % tiles * (u64)blockDim.x + threadIdx.x;
  bool is_in = column < inner;
  {wide} acc = is_in ? {load} : {zero};
  for (u64 start = 0; start < n; start += blockDim.x) {{
    bool hit = start + threadIdx.x < n && rows[start + threadIdx.x] == (i64)row;
    __syncthreads();
    if (threadIdx.x == 0) any = 0;
    hits[threadIdx.x] = hit;
    __syncthreads();
    if (hit) any = 1;
    __syncthreads();
    if (any && is_in) for (u32 k = 0; k < blockDim.x; k++) if (hits[k]) {{
      {wide} term = {update}; acc = {formula};
    }}
  }}
  if (is_in) y[row * inner + column] = {store};",
        wide = elem.wide(),
        zero = elem.load("0"),
        load = elem.load("x[row * inner + column]"),
        update = elem.load("updates[(start + k) * inner + column]"),
        formula = of.formula,
        store = elem.store("acc"),
    );
    source.launch(maker, &body, [total.checked_div(inner).unwrap_or(0) * tiles, threads])
}

/// For each sequence of the batch a position from which on its updates are.
fn tensor_scatter(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let (dims, update) = (site.dims(0)?, site.dims(1)?);
    let axis = axis_of(maker, -2, dims.len())?;
    let [_, length, inner] = around(&dims, axis);
    let is_circular = match site.view.string("mode").unwrap_or("linear") {
        "linear" => false,
        "circular" => true,
        other => return Err(OpError::attr("mode", "linear or circular", other).into()),
    };
    let elem = maker.raw(0)?;
    if site.dtype(1)? != site.dtype(0)? {
        return Err(site.no_kernel());
    }
    let updates = update[axis];
    let n: usize = dims.iter().product();
    let mut source = Source::new(n);
    source.from("x", elem, Place::operand(0));
    source.from("updates", elem, Place::operand(1));
    source.to("y", elem, Place::result(0));
    source.number("behind", dims[1..].iter().product());
    source.number("inner", inner);
    source.signed("length", signed(length));
    source.signed("count", signed(updates));
    let first = if site.has(2) {
        source.from("firsts", maker.index(2)?, Place::operand(2));
        "firsts[i / behind]"
    } else {
        "0"
    };
    source.fails(
        maker,
        match is_circular {
            true => "a position of 0 or more".into(),
            false => format!("a position from which on {updates} elements are in {length}"),
        },
    );
    let (valid, away) = match is_circular {
        // The last of several updates of an element counts.
        true => (
            "first >= 0",
            "i64 away = (at - first % length + length) % length; if (away < count) away += (count - 1 - away) / length * length;",
        ),
        false => ("first >= 0 && first <= length - count", "i64 away = at - first;"),
    };
    let body = format!(
        "i64 first = {first}, at = i / inner % length;
    if (!({valid})) {{ fail(failure, name, first); y[i] = x[i]; continue; }}
    {away}
    y[i] = away >= 0 && away < count ? updates[(i / inner / length * count + away) * inner + i % inner] : x[i];"
    );
    Ok(staged(vec![source.each(maker, n, &body)?], &Scratch::default()).in_place(&[0]))
}
