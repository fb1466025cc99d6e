//! Elements at indices: Gather, GatherElements, GatherND.
//!
//! Indices below 0 count from the back. An index outside of its axis is an error.

use super::elements::{Cell, Indices, Movement, around, count, moved, rows, size, strides};
use crate::kernel::{Dims, Io, Prepare, Prepared, Result, Site};
use ampc_ir::op::OpKind;
use ampc_ir::views::{OpError, Part, normalize_axis};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Gather => gather,
        OpKind::GatherElements => gather_elements,
        OpKind::GatherND => gather_nd,
        _ => return None,
    })
}

pub(super) fn axis_of(site: &Site<'_>, default: i64, rank: usize) -> Result<usize> {
    Ok(normalize_axis(site.view.int("axis").unwrap_or(default), rank, Part::Attr("axis".into()))?)
}

/// Gather: of `n` blocks of `inner` elements the ones that indices name, `outer` times.
struct Blocks {
    n: usize,
    inner: usize,
    indices: usize,
}

fn gather(site: &Site<'_>) -> Result<Prepared> {
    let dims = site.dims(0)?;
    let (_, n, inner) = around(&dims, axis_of(site, 0, dims.len())?);
    moved(site, &[0], Blocks { n, inner, indices: count(&site.dims(1)?)? })
}

impl Movement for Blocks {
    fn run<T: Cell>(&self, io: &Io<'_>, from: &[&[T]], to: &mut [&mut [T]]) -> Result<()> {
        let indices = Indices::of(io, 1, self.indices)?;
        indices.check(self.n)?;
        pick(self.n, self.inner, self.indices, |i| indices.at(i, self.n), from[0], to[0]);
        Ok(())
    }
}

/// Blocks of `inner` elements: for every `n` of the operand the `m` that `index` names.
pub(super) fn pick<T: Cell>(
    n: usize,
    inner: usize,
    m: usize,
    index: impl Fn(usize) -> usize + Send + Sync,
    from: &[T],
    to: &mut [T],
) {
    rows(to, inner.max(1), |row, column, to| {
        let (outer, i) = if row < m { (0, row) } else { (row / m, row % m) };
        let at = (outer * n + index(i)) * inner + column;
        match to {
            [one] => *one = from[at],
            to => to.copy_from_slice(&from[at..at + to.len()]),
        }
    });
}

/// GatherElements: an index per element of the result, along one axis.
struct Elements {
    /// Extents of the result, with all axes before the last as one axis.
    dims: Dims,
    /// Steps of the operand.
    steps: Dims,
    axis: usize,
    n: usize,
}

fn gather_elements(site: &Site<'_>) -> Result<Prepared> {
    let (data, dims) = (site.dims(0)?, site.dims(1)?);
    let axis = axis_of(site, 0, data.len())?;
    check_extents(&data, &dims, axis)?;
    count(&dims)?;
    moved(site, &[0], Elements { n: data[axis], steps: strides(&data), dims, axis })
}

/// An error unless indices have no larger extents than the data but at their axis.
pub(super) fn check_extents(data: &[usize], indices: &[usize], axis: usize) -> Result<()> {
    let fits = data.iter().zip(indices).enumerate().all(|(i, (data, indices))| i == axis || indices <= data);
    if fits && data.len() == indices.len() {
        return Ok(());
    }
    let expected = format!("at most the extents {data:?} but at axis {axis}");
    Err(OpError::operand(1, expected, format!("{indices:?}")).into())
}

/// Where a row along the last axis starts, the axis of the indices left out.
pub(super) fn row_start(dims: &[usize], steps: &[usize], axis: usize, row: usize) -> usize {
    let (mut rest, mut start) = (row, 0);
    for i in (0..dims.len() - 1).rev() {
        if i != axis {
            start += rest % dims[i] * steps[i];
        }
        rest /= dims[i];
    }
    start
}

impl Movement for Elements {
    fn run<T: Cell>(&self, io: &Io<'_>, from: &[&[T]], to: &mut [&mut [T]]) -> Result<()> {
        let indices = Indices::of(io, 1, to[0].len())?;
        indices.check(self.n)?;
        match indices {
            Indices::Short(indices) => self.take(indices, from[0], to[0]),
            Indices::Long(indices) => self.take(indices, from[0], to[0]),
        }
        Ok(())
    }
}

impl Elements {
    /// Takes the elements at indices that are checked.
    fn take<T: Cell, I: Copy + Into<i64> + Sync>(&self, indices: &[I], from: &[T], to: &mut [T]) {
        let last = self.dims.len() - 1;
        let (width, step) = (self.dims[last].max(1), self.steps[self.axis]);
        let along = usize::from(self.axis != last);
        let n = i64::try_from(self.n).unwrap_or(i64::MAX);
        rows(to, width, |row, column, to| {
            let start = row_start(&self.dims, &self.steps, self.axis, row) + column * along;
            let indices = &indices[row * width + column..][..to.len()];
            for (i, (y, &index)) in to.iter_mut().zip(indices).enumerate() {
                let index: i64 = index.into();
                let front = usize::try_from(if index < 0 { index + n } else { index }).unwrap_or(0);
                *y = from[start + i * along + front * step];
            }
        });
    }
}

/// Tuples of indices, each of which names a block: GatherND and ScatterND.
#[derive(Clone)]
pub(super) struct Tuples {
    /// Extents of the axes that a tuple names, and their steps.
    dims: Dims,
    steps: Dims,
    /// Tuples.
    pub(super) n: usize,
    /// Elements of a block.
    pub(super) inner: usize,
    /// Tuples that share a part of the data, and the elements of that part.
    batch: (usize, usize),
}

impl Tuples {
    /// Operand 1 of a node has tuples for operand 0, whose first `batch` axes are those of the tuples.
    pub(super) fn of(site: &Site<'_>, batch: usize) -> Result<Tuples> {
        let (data, indices) = (site.dims(0)?, site.dims(1)?);
        let (k, outer) =
            indices.split_last().ok_or_else(|| OpError::operand(1, "rank 1 or more", "a scalar"))?;
        let named = data.get(batch..).and_then(|rest| rest.get(..*k));
        let named =
            named.ok_or_else(|| OpError::operand(1, "a last extent for axes of operand 0", k.to_string()))?;
        count(&indices)?;
        Ok(Tuples {
            dims: named.into(),
            steps: strides(&data)[batch..batch + k].into(),
            n: size(outer),
            inner: size(&data[batch + k..]),
            batch: (size(&outer[batch..]).max(1), size(&data[batch..])),
        })
    }

    /// The number of indices.
    pub(super) fn count(&self) -> usize {
        self.n * self.dims.len()
    }

    /// An error unless every index is one of its axis.
    pub(super) fn check(&self, indices: Indices<'_>) -> Result<()> {
        for (i, &n) in self.dims.iter().enumerate() {
            let mut all = (i..indices.len()).step_by(self.dims.len()).map(|at| indices.get(at));
            if let Some(found) = all.find(|&index| super::elements::from_front(index, n).is_none()) {
                return Err(super::elements::out_of_range(n, found));
            }
        }
        Ok(())
    }

    /// The first element of the block that tuple `i` names.
    pub(super) fn start(&self, indices: Indices<'_>, i: usize) -> usize {
        let k = self.dims.len();
        let named = self.dims.iter().zip(&self.steps).enumerate();
        let inside: usize = named.map(|(axis, (&n, &step))| indices.at(i * k + axis, n) * step).sum();
        i / self.batch.0 * self.batch.1 + inside
    }
}

fn gather_nd(site: &Site<'_>) -> Result<Prepared> {
    let batch = site.view.int("batch_dims").unwrap_or(0);
    let batch =
        usize::try_from(batch).map_err(|_| OpError::attr("batch_dims", "0 or more", batch.to_string()))?;
    moved(site, &[0], Tuples::of(site, batch)?)
}

impl Movement for Tuples {
    fn run<T: Cell>(&self, io: &Io<'_>, from: &[&[T]], to: &mut [&mut [T]]) -> Result<()> {
        let indices = Indices::of(io, 1, self.count())?;
        self.check(indices)?;
        rows(to[0], self.inner.max(1), |row, column, to| {
            let at = self.start(indices, row) + column;
            to.copy_from_slice(&from[0][at..at + to.len()]);
        });
        Ok(())
    }
}
