//! Operators that move elements: Transpose, Concat, Split, Slice, Tile, Expand, DepthToSpace, SpaceToDepth,
//! Trilu.

use super::elements::{Cell, Movement, around, count, moved, rows, size, strides};
use super::parallel::{PIECE, pieces};
use super::strided::Strided;
use crate::geometry::{self, Range};
use crate::kernel::{Io, KernelError, Prepare, Prepared, Result, Site};
use ampc_ir::op::OpKind;
use ampc_ir::views::{ConcatView, OpError, Part, TransposeView, normalize_axis};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Concat => concat,
        OpKind::DepthToSpace => depth_to_space,
        OpKind::Expand => expand,
        OpKind::Slice => slice,
        OpKind::SpaceToDepth => space_to_depth,
        OpKind::Split => split,
        OpKind::Tile => tile,
        OpKind::Transpose => transpose,
        OpKind::Trilu => trilu,
        _ => return None,
    })
}

/// A step in memory, where it fits.
fn signed(step: usize) -> Result<isize> {
    let too_far = || KernelError::Limit { limit: "2^63 elements".into(), found: step.to_string() };
    isize::try_from(step).map_err(|_| too_far())
}

/// A tensor of these dims with its axes in another order; nothing where an extent is 0.
fn permuted(dims: &[usize], perm: &[usize]) -> Result<Strided> {
    if count(dims)? == 0 {
        return Ok(Strided::new([], 0));
    }
    let steps = strides(dims);
    let axes = perm.iter().map(|&axis| Ok((dims[axis], signed(steps[axis])?)));
    Ok(Strided::new(axes.collect::<Result<Vec<_>>>()?, 0))
}

fn transpose(site: &Site<'_>) -> Result<Prepared> {
    let dims = site.dims(0)?;
    let perm = TransposeView::read(&site.view).perm(dims.len())?;
    moved(site, &[0], permuted(&dims, &perm)?)
}

/// `[N, b, b, C, H, W]` or `[N, C, b, b, H, W]` to `[N, C, H, b, W, b]`.
fn depth_to_space(site: &Site<'_>) -> Result<Prepared> {
    let (dims, result) = (site.dims(0)?, site.result_dims(0)?);
    let block = block_size(site)?;
    let (n, h, w, c) = (dims[0], dims[2], dims[3], result[1]);
    let movement = match site.view.string("mode").unwrap_or("DCR") {
        "DCR" => permuted(&[n, block, block, c, h, w], &[0, 3, 4, 1, 5, 2])?,
        "CRD" => permuted(&[n, c, block, block, h, w], &[0, 1, 4, 2, 5, 3])?,
        other => return Err(OpError::attr("mode", "DCR or CRD", other).into()),
    };
    moved(site, &[0], movement)
}

/// `[N, C, H, b, W, b]` to `[N, b, b, C, H, W]` or `[N, C, b, b, H, W]`.
fn space_to_depth(site: &Site<'_>) -> Result<Prepared> {
    let (dims, result) = (site.dims(0)?, site.result_dims(0)?);
    let block = block_size(site)?;
    let blocks = [dims[0], dims[1], result[2], block, result[3], block];
    let perm = match site.view.string("mode").unwrap_or("DCR") {
        "DCR" => [0, 3, 5, 1, 2, 4],
        "CRD" => [0, 1, 3, 5, 2, 4],
        other => return Err(OpError::attr("mode", "DCR or CRD", other).into()),
    };
    moved(site, &[0], permuted(&blocks, &perm)?)
}

fn block_size(site: &Site<'_>) -> Result<usize> {
    let size = site.view.int("blocksize").and_then(|b| usize::try_from(b).ok());
    Ok(size.ok_or_else(|| OpError::attr("blocksize", "a size", "none"))?)
}

fn expand(site: &Site<'_>) -> Result<Prepared> {
    let (dims, result) = (site.dims(0)?, site.result_dims(0)?);
    if count(&result)? == 0 {
        return moved(site, &[0], Strided::new([], 0));
    }
    let missing = result.len() - dims.len();
    let steps = strides(&dims);
    let step = |axis: usize| match axis.checked_sub(missing) {
        Some(own) if dims[own] != 1 => signed(steps[own]),
        _ => Ok(0),
    };
    let axes = result.iter().enumerate().map(|(axis, &dim)| Ok((dim, step(axis)?)));
    moved(site, &[0], Strided::new(axes.collect::<Result<Vec<_>>>()?, 0))
}

fn tile(site: &Site<'_>) -> Result<Prepared> {
    let dims = site.dims(0)?;
    let repeats = geometry::repeats(site)?;
    if count(&site.result_dims(0)?)? == 0 {
        return moved(site, &[0], Strided::new([], 0));
    }
    let mut axes = Vec::with_capacity(2 * dims.len());
    for ((&dim, &repeat), &step) in dims.iter().zip(&repeats).zip(&strides(&dims)) {
        axes.extend([(repeat, 0), (dim, signed(step)?)]);
    }
    moved(site, &[0], Strided::new(axes, 0))
}

fn slice(site: &Site<'_>) -> Result<Prepared> {
    let (dims, result) = (site.dims(0)?, site.result_dims(0)?);
    let ranges = geometry::ranges(site)?;
    if count(&result)? == 0 {
        return moved(site, &[0], Strided::new([], 0));
    }
    let strides = strides(&dims);
    let mut start = 0;
    let mut steps = strides.iter().map(|&s| signed(s)).collect::<Result<Vec<isize>>>()?;
    for Range { axis, first, step } in ranges {
        start += first * strides[axis];
        // A step beyond the extent is not taken.
        let step = isize::try_from(step).unwrap_or(isize::MAX);
        steps[axis] = if result[axis] > 1 { steps[axis].saturating_mul(step) } else { 0 };
    }
    moved(site, &[0], Strided::new(result.iter().copied().zip(steps), start))
}

fn split(site: &Site<'_>) -> Result<Prepared> {
    let (axis, sizes) = geometry::parts(site)?;
    moved(site, &[0], Cut::new(&site.dims(0)?, axis, &sizes)?)
}

/// Parts of a tensor along an axis.
pub(super) struct Cut(Vec<Strided>);

impl Cut {
    /// Parts of these sizes; the last part has the remaining elements.
    pub(super) fn new(dims: &[usize], axis: usize, sizes: &[usize]) -> Result<Cut> {
        let (outer, extent, inner) = around(dims, axis);
        if count(dims)? == 0 {
            return Ok(Cut(vec![Strided::new([], 0); sizes.len()]));
        }
        let mut first = 0;
        let mut parts = Vec::with_capacity(sizes.len());
        for &size in sizes {
            let size = size.min(extent - first);
            parts.push(Strided::new([(outer, signed(extent * inner)?), (size * inner, 1)], first * inner));
            first += size;
        }
        Ok(Cut(parts))
    }

    /// The last part alone.
    pub(super) fn last(mut self) -> Cut {
        Cut(self.0.split_off(self.0.len().saturating_sub(1)))
    }
}

impl Movement for Cut {
    fn run<T: Cell>(&self, _: &Io<'_>, from: &[&[T]], to: &mut [&mut [T]]) -> Result<()> {
        self.0.iter().zip(to).for_each(|(part, to)| part.copy(from[0], to));
        Ok(())
    }
}

fn concat(site: &Site<'_>) -> Result<Prepared> {
    let view = ConcatView::read(&site.view)?;
    let operands: Vec<usize> = (0..site.view.n_operands()).filter(|&i| site.has(i)).collect();
    let result = site.result_dims(0)?;
    let axis = normalize_axis(view.axis, result.len(), Part::Attr("axis".into()))?;
    let parts = operands.iter().map(|&i| Ok(size(&site.dims(i)?[axis..]))).collect::<Result<Vec<_>>>()?;
    moved(site, &operands, Joined::new(parts))
}

/// Rows that consist of a row of each operand.
pub(super) struct Joined {
    /// Where the part of each operand ends in a row.
    ends: Vec<usize>,
}

impl Joined {
    /// `parts` are the lengths of rows of operands.
    pub(super) fn new(parts: Vec<usize>) -> Joined {
        let mut end = 0usize;
        let ends = parts.into_iter().map(|part| {
            end = end.saturating_add(part);
            end
        });
        Joined { ends: ends.collect() }
    }
}

impl Movement for Joined {
    fn run<T: Cell>(&self, _: &Io<'_>, from: &[&[T]], to: &mut [&mut [T]]) -> Result<()> {
        let row = self.ends.last().copied().unwrap_or(0);
        rows(to[0], row.max(1), |row, first, to| {
            let mut part = self.ends.partition_point(|&end| end <= first);
            let (mut column, mut to) = (first, to);
            while !to.is_empty() {
                let start = if part == 0 { 0 } else { self.ends[part - 1] };
                let len = self.ends[part] - start;
                let (head, rest) = to.split_at_mut((self.ends[part] - column).min(to.len()));
                let at = row * len + column - start;
                head.copy_from_slice(&from[part][at..at + head.len()]);
                column += head.len();
                (to, part) = (rest, part + 1);
            }
        });
        Ok(())
    }
}

/// A triangle of matrices of `rows` times `columns`; the other elements are zero.
struct Triangle {
    rows: usize,
    columns: usize,
    diagonal: i64,
    upper: bool,
}

fn trilu(site: &Site<'_>) -> Result<Prepared> {
    let dims = site.dims(0)?;
    let &[.., rows, columns] = &dims[..] else {
        return Err(OpError::operand(0, "rank 2 or more", format!("{dims:?}")).into());
    };
    let diagonal = site.ints(1)?.and_then(|k| k.first().copied()).unwrap_or(0);
    let upper = site.view.int("upper").unwrap_or(1) != 0;
    moved(site, &[0], Triangle { rows, columns, diagonal, upper })
}

impl Movement for Triangle {
    fn run<T: Cell>(&self, _: &Io<'_>, from: &[&[T]], to: &mut [&mut [T]]) -> Result<()> {
        let piece = (PIECE / self.columns.max(1)).max(1).saturating_mul(self.columns.max(1));
        pieces(to[0], piece, |at, to| {
            for (i, row) in to.chunks_mut(self.columns).enumerate() {
                let at = at + i * self.columns;
                let line = (at / self.columns) % self.rows;
                let line = i64::try_from(line).unwrap_or(i64::MAX);
                let from = &from[0][at..at + self.columns];
                // Where the upper triangle starts, and the lower one ends.
                let first = line.saturating_add(self.diagonal).saturating_add(i64::from(!self.upper));
                let first = usize::try_from(first.max(0)).unwrap_or(usize::MAX).min(self.columns);
                let (kept, zero) =
                    if self.upper { (first..row.len(), 0..first) } else { (0..first, first..row.len()) };
                row[zero].fill(T::default());
                row[kept.clone()].copy_from_slice(&from[kept]);
            }
        });
        Ok(())
    }
}
