//! Elements written at indices: Scatter, ScatterElements, ScatterND, TensorScatter.
//!
//! Updates are written one after the other, so the last of several updates of an element counts, and sums are
//! in that order. Floats narrower than f32 are summed up and multiplied in f32 and rounded once, when all
//! updates are in.

use super::elements::{Cell, Indices, Movement, around, count, moved, size, strides};
use super::gather::{Tuples, axis_of, check_extents, row_start};
use super::lanes::{Real, for_int, for_real};
use super::pointwise::{maximum, minimum};
use crate::kernel::{Dims, Io, KernelError, Prepare, Prepared, Result, Site};
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Scatter | OpKind::ScatterElements => scatter_elements,
        OpKind::ScatterND => scatter_nd,
        OpKind::TensorScatter => tensor_scatter,
        _ => return None,
    })
}

/// Where updates go.
trait Places: Send + Sync + 'static {
    /// Calls `put` with first element of the result, first element of the updates and number of elements.
    fn each(&self, io: &Io<'_>, put: impl FnMut(usize, usize, usize)) -> Result<()>;
}

/// Combination of an element and its update.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reduction {
    Add,
    Mul,
    Max,
    Min,
}

/// Scatter and ScatterElements: an index per update, along one axis.
struct Elements {
    dims: Dims,
    /// Steps of the result.
    steps: Dims,
    axis: usize,
    n: usize,
    updates: usize,
}

fn scatter_elements(site: &Site<'_>) -> Result<Prepared> {
    let (data, dims) = (site.dims(0)?, site.dims(1)?);
    let axis = axis_of(site, 0, data.len())?;
    check_extents(&data, &dims, axis)?;
    let updates = count(&dims)?;
    scattered(site, 2, Elements { n: data[axis], steps: strides(&data), dims, axis, updates })
}

impl Places for Elements {
    fn each(&self, io: &Io<'_>, mut put: impl FnMut(usize, usize, usize)) -> Result<()> {
        let indices = Indices::of(io, 1, self.updates)?;
        indices.check(self.n)?;
        let last = self.dims.len() - 1;
        let (width, step) = (self.dims[last], self.steps[self.axis]);
        let along = usize::from(self.axis != last);
        for row in 0..self.updates.checked_div(width).unwrap_or(0) {
            let start = row_start(&self.dims, &self.steps, self.axis, row);
            for column in 0..width {
                let at = row * width + column;
                put(start + column * along + indices.at(at, self.n) * step, at, 1);
            }
        }
        Ok(())
    }
}

fn scatter_nd(site: &Site<'_>) -> Result<Prepared> {
    scattered(site, 2, Tuples::of(site, 0)?)
}

impl Places for Tuples {
    fn each(&self, io: &Io<'_>, mut put: impl FnMut(usize, usize, usize)) -> Result<()> {
        let indices = Indices::of(io, 1, self.count())?;
        self.check(indices)?;
        if self.inner == 0 {
            return Ok(());
        }
        (0..self.n).for_each(|i| put(self.start(indices, i), i * self.inner, self.inner));
        Ok(())
    }
}

/// TensorScatter: for each of `batch` sequences a position from which on its updates are.
struct Cache {
    batch: usize,
    /// Sequences per position.
    heads: usize,
    length: usize,
    updates: usize,
    inner: usize,
    circular: bool,
    has_positions: bool,
}

fn tensor_scatter(site: &Site<'_>) -> Result<Prepared> {
    let (dims, update) = (site.dims(0)?, site.dims(1)?);
    let axis = axis_of(site, -2, dims.len())?;
    let (_, length, inner) = around(&dims, axis);
    let circular = match site.view.string("mode").unwrap_or("linear") {
        "linear" => false,
        "circular" => true,
        other => return Err(OpError::attr("mode", "linear or circular", other).into()),
    };
    let cache = Cache {
        batch: dims[0],
        heads: size(&dims[1..axis]),
        length,
        updates: update[axis],
        inner,
        circular,
        has_positions: site.has(2),
    };
    scattered(site, 1, cache)
}

impl Places for Cache {
    fn each(&self, io: &Io<'_>, mut put: impl FnMut(usize, usize, usize)) -> Result<()> {
        let positions = if self.has_positions { Some(Indices::of(io, 2, self.batch)?) } else { None };
        let (heads, inner) = (self.heads, self.inner);
        if heads == 0 || inner == 0 {
            return Ok(());
        }
        for batch in 0..self.batch {
            let position = positions.map_or(0, |p| p.get(batch));
            let first = usize::try_from(position).ok().filter(|&first| {
                self.circular || first.checked_add(self.updates).is_some_and(|end| end <= self.length)
            });
            let first = first.ok_or_else(|| out_of_cache(self, position))?;
            for head in batch * heads..(batch + 1) * heads {
                for i in 0..self.updates {
                    let at = if self.circular { (first % self.length + i) % self.length } else { first + i };
                    put((head * self.length + at) * inner, (head * self.updates + i) * inner, inner);
                }
            }
        }
        Ok(())
    }
}

fn out_of_cache(cache: &Cache, found: i64) -> KernelError {
    if cache.circular {
        return KernelError::value("a position of 0 or more", found);
    }
    let (updates, length) = (cache.updates, cache.length);
    KernelError::value(format!("a position from which on {updates} elements are in {length}"), found)
}

/// A kernel that writes operand `updates` into operand 0.
fn scattered<P: Places>(site: &Site<'_>, updates: usize, places: P) -> Result<Prepared> {
    let reduction = match site.view.string("reduction").unwrap_or("none") {
        "none" => return moved(site, &[0, updates], Written(places)),
        "add" => Reduction::Add,
        "mul" => Reduction::Mul,
        "max" => Reduction::Max,
        "min" => Reduction::Min,
        other => return Err(OpError::attr("reduction", "none, add, mul, max or min", other).into()),
    };
    let dtype = site.dtype(0)?;
    if site.dtype(updates)? != dtype {
        return Err(site.no_kernel());
    }
    if dtype == DType::Bool {
        return Ok(reduced_flags(updates, places, reduction));
    }
    if dtype.is_integer() {
        return Ok(for_int!(dtype, site, T => {
            let f: fn(T, T) -> T = match reduction {
                Reduction::Add => T::wrapping_add,
                Reduction::Mul => T::wrapping_mul,
                Reduction::Max => Ord::max,
                Reduction::Min => Ord::min,
            };
            Prepared::new(move |io| {
                let from = io.slice::<T>(updates)?;
                let to = start::<T>(io)?;
                places.each(io, |at, i, n| combine(to, at, &from[i..i + n], f))
            }).in_place(&[0])
        }));
    }
    let elements = count(&site.dims(0)?)?;
    Ok(for_real!(dtype, site, T => reduced_reals::<T, P>(updates, places, reduction, elements)))
}

/// Updates that replace elements.
struct Written<P>(P);

impl<P: Places> Movement for Written<P> {
    const IN_PLACE: bool = true;

    fn run<T: Cell>(&self, io: &Io<'_>, from: &[&[T]], to: &mut [&mut [T]]) -> Result<()> {
        let (updates, to) = (from[1], &mut *to[0]);
        if io.in_place.is_none() {
            to.copy_from_slice(from[0]);
        }
        self.0.each(io, |at, i, n| to[at..at + n].copy_from_slice(&updates[i..i + n]))
    }
}

/// Result 0 with the elements of operand 0.
fn start<'a, T: crate::host::Element>(io: &mut Io<'a>) -> Result<&'a mut [T]> {
    let from = if io.in_place.is_none() { Some(io.slice::<T>(0)?) } else { None };
    let to = io.out::<T>(0)?;
    if let Some(from) = from {
        to.copy_from_slice(from);
    }
    Ok(to)
}

fn combine<T: Copy>(to: &mut [T], at: usize, updates: &[T], f: impl Fn(T, T) -> T) {
    to[at..at + updates.len()].iter_mut().zip(updates).for_each(|(y, &x)| *y = f(*y, x));
}

/// Flags: a sum is "or", a product "and".
fn reduced_flags<P: Places>(updates: usize, places: P, reduction: Reduction) -> Prepared {
    let any = matches!(reduction, Reduction::Add | Reduction::Max);
    Prepared::new(move |io| {
        let from = io.bytes(updates)?;
        let before = if io.in_place.is_none() { Some(io.bytes(0)?) } else { None };
        let to = io.out_bytes(0)?;
        if let Some(before) = before {
            to.copy_from_slice(before);
        }
        places.each(io, |at, i, n| combine(to, at, &from[i..i + n], |y, x| if any { y | x } else { y & x }))
    })
    .in_place(&[0])
}

fn reduced_reals<T: Real, P: Places>(
    updates: usize,
    places: P,
    reduction: Reduction,
    elements: usize,
) -> Prepared {
    let f: fn(T::Wide, T::Wide) -> T::Wide = match reduction {
        Reduction::Add => |a, b| a + b,
        Reduction::Mul => |a, b| a * b,
        Reduction::Max => maximum,
        Reduction::Min => minimum,
    };
    let words = if T::IS_WIDE { 0 } else { elements };
    Prepared::new(move |io| {
        let from = io.slice::<T>(updates)?;
        let to = start::<T>(io)?;
        let room = io.scratch::<T::Wide>();
        if let (Some(to), Some(from)) = (T::as_wide_mut(to), T::as_wide(from)) {
            return places.each(io, |at, i, n| combine(to, at, &from[i..i + n], f));
        }
        let wide = &mut room[..to.len()];
        T::widen(to, wide);
        places.each(io, |at, i, n| {
            wide[at..at + n].iter_mut().zip(&from[i..i + n]).for_each(|(y, x)| *y = f(*y, x.wide()));
        })?;
        T::narrow(wide, to);
        Ok(())
    })
    .scratch(words.saturating_mul(size_of::<T::Wide>()))
    .in_place(&[0])
}
