//! Elements written at indices: Scatter, ScatterElements, ScatterND.
//!
//! The updates of each row of the data are a linked list: an array has the first update of each row, another the next
//! update of each update. Threads link updates in any order, so that each list is sorted before its updates are joined:
//! equal runs join them in one order. A thread sorts and joins the list of a row, and a row of several elements is joined
//! by as many threads: a row with n updates takes n·log n steps of one thread. Without a reduction the last update counts,
//! and no list is needed.

use super::indexing::{Tuples, axis_of, check_extents, range_of};
use super::stage::{Place, Scratch, Source, Stage, staged};
use super::{Maker, Prepare, signed};
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

/// How an update changes an element.
struct Update {
    elem: Elem,
    /// A formula of the element `acc` and the update `term`; `None` for the update itself.
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

/// The arrays of the lists.
struct Lists {
    /// Rows of the data, and elements of each.
    rows: usize,
    inner: usize,
    /// Updates.
    n: usize,
    first: Place,
    next: Place,
}

impl Lists {
    fn new([rows, inner, n]: [usize; 3], scratch: &mut Scratch) -> Result<Lists> {
        if i32::try_from(n).is_err() {
            return Err(KernelError::unsupported("2^31 updates"));
        }
        Ok(Lists { rows, inner, n, first: scratch.part(rows * 4), next: scratch.part(n * 4) })
    }

    /// Rows without updates.
    fn cleared(&self, maker: &Maker<'_>) -> Result<Stage> {
        let mut source = Source::new(self.rows);
        source.pointer("int", "first_", self.first);
        source.each(maker, self.rows, "first_[i] = -1;")
    }

    /// Declares the arrays. The text links update `u` to the row `row`.
    fn link(&self, source: &mut Source, update: &Update) -> &'static str {
        source.pointer("int", "first_", self.first);
        source.pointer("int", "next", self.next);
        match update.formula {
            None => "atomicMax(&first_[row], (int)u);",
            Some(_) => "next[u] = atomicExch(&first_[row], (int)u);",
        }
    }

    /// Sorts the lists.
    fn sorted(&self, maker: &Maker<'_>) -> Result<Stage> {
        let mut source = Source::new(self.rows);
        source.function(SORT);
        source.pointer("int", "first_", self.first);
        source.pointer("int", "next", self.next);
        source.each(maker, self.rows, "if (first_[i] >= 0) first_[i] = sorted(first_[i], next);")
    }

    /// Joins elements and their updates.
    fn joined(&self, maker: &Maker<'_>, update: &Update) -> Result<Stage> {
        let total = self.rows * self.inner;
        let mut source = Source::new(total.max(self.n * self.inner));
        let elem = update.elem;
        source.from("x", elem, Place::operand(0));
        source.from("updates", elem, Place::operand(2));
        source.pointer("const int", "first_", self.first);
        source.pointer("const int", "next", self.next);
        source.to("y", elem, Place::result(0));
        source.number("inner", self.inner);
        let index = source.index;
        let begin = format!("{index} column = i % inner; int u = first_[i / inner];");
        let body = match &update.formula {
            None => format!("{begin}\n    y[i] = u < 0 ? x[i] : updates[(u64)u * inner + column];"),
            Some(formula) => format!(
                "{begin}
    {wide} acc = {load};
    for (; u >= 0; u = next[u]) {{ {wide} term = {update}; acc = {formula}; }}
    y[i] = {store};",
                wide = elem.wide(),
                load = elem.load("x[i]"),
                update = elem.load("updates[(u64)u * inner + column]"),
                store = elem.store("acc"),
            ),
        };
        source.each(maker, total, &body)
    }

    /// The kernel, given the launch that links the updates.
    fn prepared(
        &self,
        maker: &Maker<'_>,
        update: &Update,
        linked: Stage,
        scratch: &Scratch,
    ) -> Result<Prepared> {
        let mut stages = vec![self.cleared(maker)?, linked];
        if update.formula.is_some() {
            stages.push(self.sorted(maker)?);
        }
        stages.push(self.joined(maker, update)?);
        Ok(staged(stages, scratch).in_place(&[0]))
    }
}

/// Sorts a list by merging runs of 1, 2, 4 … updates.
const SORT: &str = "__device__ int sorted(int list, int* next) {
  for (i64 size = 1;; size *= 2) {
    int p = list, tail = -1;
    i64 merges = 0;
    list = -1;
    while (p >= 0) {
      int q = p;
      i64 np = 0, nq = size;
      merges++;
      while (np < size && q >= 0) { np++; q = next[q]; }
      while (np > 0 || (nq > 0 && q >= 0)) {
        int e;
        if (np > 0 && (nq == 0 || q < 0 || p < q)) { e = p; p = next[p]; np--; }
        else { e = q; q = next[q]; nq--; }
        if (tail < 0) list = e; else next[tail] = e;
        tail = e;
      }
      p = q;
    }
    next[tail] = -1;
    if (merges <= 1) return list;
  }
}
";

fn scatter_elements(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let (data, dims) = (site.dims(0)?, site.dims(1)?);
    let axis = axis_of(maker, 0, data.len())?;
    check_extents(&data, &dims, axis)?;
    let update = Update::of(maker)?;
    let (rows, n): (usize, usize) = (data.iter().product(), dims.iter().product());
    let mut scratch = Scratch::default();
    let lists = Lists::new([rows, 1, n], &mut scratch)?;
    let mut steps = Steps::broadcast(&data, &data).ok_or(KernelError::NotYet)?;
    steps.steps[axis] = 0;
    let mut source = Source::new(n.max(rows));
    source.from("index", maker.index(1)?, Place::operand(1));
    source.signed("extent", signed(data[axis]));
    source.signed("along", signed(data[axis + 1..].iter().product()));
    source.fails(maker, range_of(data[axis]));
    let place = source.position(&dims, &steps, "i");
    let link = lists.link(&mut source, &update);
    let body = format!(
        "i64 found = index[i], j = found < 0 ? found + extent : found;
    if (j < 0 || j >= extent) {{ fail(failure, name, found); continue; }}
    i64 row = {place} + j * along, u = i;
    {link}"
    );
    let linked = source.each(maker, n, &body)?;
    lists.prepared(maker, &update, linked, &scratch)
}

fn scatter_nd(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let update = Update::of(maker)?;
    let total: usize = site.dims(0)?.iter().product();
    let mut source = Source::new(total.max(site.dims(2)?.iter().product()));
    let Tuples { n, inner, text } = Tuples::of(maker, 0, &mut source, "continue;")?;
    let mut scratch = Scratch::default();
    // Rows without elements have indices all the same.
    let rows = total.checked_div(inner).unwrap_or(0);
    let lists = Lists::new([rows, inner, n], &mut scratch)?;
    let link = if rows == 0 { "" } else { lists.link(&mut source, &update) };
    let body = format!("{} u = i;\n    {text}    {link}", source.index);
    let linked = source.each(maker, n, &body)?;
    lists.prepared(maker, &update, linked, &scratch)
}
