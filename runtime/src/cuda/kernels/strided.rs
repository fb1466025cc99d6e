//! Operators whose results are strided elements of one operand: Slice, Split, Tile, DepthToSpace, SpaceToDepth,
//! Trilu, ReverseSequence.

use super::stage::{Place, Scratch, Source, copy_rows, moved, staged};
use super::{Maker, Prepare};
use crate::cuda::text::{Steps, Walk};
use crate::geometry::{self, Range};
use crate::kernel::{Dims, KernelError, Prepared, Result};
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::DepthToSpace => depth_to_space,
        OpKind::ReverseSequence => reverse_sequence,
        OpKind::Slice => slice,
        OpKind::SpaceToDepth => space_to_depth,
        OpKind::Split => split,
        OpKind::Tile => tile,
        OpKind::Trilu => trilu,
        _ => return None,
    })
}

/// The row-major strides of dims, in elements.
fn strides(dims: &[usize]) -> Result<Vec<i64>> {
    let mut steps = vec![0; dims.len()];
    let mut step = 1i64;
    for axis in (0..dims.len()).rev() {
        steps[axis] = step;
        let n = i64::try_from(dims[axis].max(1)).ok();
        step = n.and_then(|n| step.checked_mul(n)).ok_or(KernelError::NotYet)?;
    }
    Ok(steps)
}

/// The kernel of result 0 of `dims`, whose elements are elements of operand 0 at the strides `steps`.
fn at_steps(maker: &Maker<'_>, dims: &[usize], steps: Steps) -> Result<Prepared> {
    let elem = maker.raw(0)?;
    let walk = Walk::new(dims, vec![steps]);
    let stage = moved(maker, &walk, elem, [Place::operand(0), Place::result(0)])?;
    Ok(staged(vec![stage], &Scratch::default()))
}

/// The kernel that permutes the axes of a tensor of these dims.
fn permuted(maker: &Maker<'_>, dims: &[usize], perm: &[usize]) -> Result<Prepared> {
    let own = strides(dims)?;
    let to: Dims = perm.iter().map(|&axis| dims[axis]).collect();
    at_steps(maker, &to, Steps { first: 0, steps: perm.iter().map(|&axis| own[axis]).collect() })
}

fn block_size(maker: &Maker<'_>) -> Result<usize> {
    let size = maker.site.view.int("blocksize").and_then(|b| usize::try_from(b).ok());
    Ok(size.ok_or_else(|| OpError::attr("blocksize", "a size", "none"))?)
}

/// `[N, b, b, C, H, W]` or `[N, C, b, b, H, W]` to `[N, C, H, b, W, b]`.
fn depth_to_space(maker: &Maker<'_>) -> Result<Prepared> {
    let (dims, result) = (maker.site.dims(0)?, maker.site.result_dims(0)?);
    let b = block_size(maker)?;
    let (n, h, w, c) = (dims[0], dims[2], dims[3], result[1]);
    match maker.site.view.string("mode").unwrap_or("DCR") {
        "DCR" => permuted(maker, &[n, b, b, c, h, w], &[0, 3, 4, 1, 5, 2]),
        "CRD" => permuted(maker, &[n, c, b, b, h, w], &[0, 1, 4, 2, 5, 3]),
        other => Err(OpError::attr("mode", "DCR or CRD", other).into()),
    }
}

/// `[N, C, H, b, W, b]` to `[N, b, b, C, H, W]` or `[N, C, b, b, H, W]`.
fn space_to_depth(maker: &Maker<'_>) -> Result<Prepared> {
    let (dims, result) = (maker.site.dims(0)?, maker.site.result_dims(0)?);
    let b = block_size(maker)?;
    let blocks = [dims[0], dims[1], result[2], b, result[3], b];
    match maker.site.view.string("mode").unwrap_or("DCR") {
        "DCR" => permuted(maker, &blocks, &[0, 3, 5, 1, 2, 4]),
        "CRD" => permuted(maker, &blocks, &[0, 1, 3, 5, 2, 4]),
        other => Err(OpError::attr("mode", "DCR or CRD", other).into()),
    }
}

fn tile(maker: &Maker<'_>) -> Result<Prepared> {
    let dims = maker.site.dims(0)?;
    let repeats = geometry::repeats(maker.site)?;
    let (mut to, mut steps) = (Dims::new(), Vec::new());
    for ((&n, &repeat), &step) in dims.iter().zip(&repeats).zip(&strides(&dims)?) {
        to.extend([repeat, n]);
        steps.extend([0, step]);
    }
    at_steps(maker, &to, Steps { first: 0, steps })
}

fn slice(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let (dims, result) = (site.dims(0)?, site.result_dims(0)?);
    let own = strides(&dims)?;
    let mut steps = Steps { first: 0, steps: own.clone() };
    for Range { axis, first, step } in geometry::ranges(site)? {
        steps.first += i64::try_from(first).unwrap_or(0) * own[axis];
        // If there is only one element, the stride is not used.
        steps.steps[axis] = if result[axis] > 1 { own[axis].saturating_mul(step) } else { 0 };
    }
    at_steps(maker, &result, steps)
}

/// Copies each part as rows of the operand.
fn split(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let (axis, sizes) = geometry::parts(site)?;
    let dims = site.dims(0)?;
    let bytes = maker.raw(0)?.bytes();
    let [before, along, behind] = super::around(&dims, axis);
    let stride = along * behind * bytes;
    let mut parts = Vec::new();
    let mut first = 0;
    for (j, &size) in sizes.iter().enumerate() {
        let size = size.min(along - first);
        if site.wants(j) {
            parts.push((j, first * behind * bytes, size * behind * bytes));
        }
        first += size;
    }
    Ok(Prepared::new(move |io| {
        for &(j, offset, len) in &parts {
            copy_rows(io, [0, j], [[offset, stride], [0, len]], [before, len])?;
        }
        Ok(())
    }))
}

fn trilu(maker: &Maker<'_>) -> Result<Prepared> {
    let dims = maker.site.dims(0)?;
    let elem = maker.raw(0)?;
    let &[.., rows, columns] = &dims[..] else {
        return Err(OpError::operand(0, "rank 2 or more", format!("{dims:?}")).into());
    };
    let diagonal = maker.site.ints(1)?.and_then(|k| k.first().copied()).unwrap_or(0);
    let is_upper = maker.site.view.int("upper").unwrap_or(1) != 0;
    let n: usize = dims.iter().product();
    let mut source = Source::new(n);
    source.from("x", elem, Place::operand(0));
    source.to("y", elem, Place::result(0));
    source.number("rows", rows);
    source.number("columns", columns);
    // The diagonal is clamped so that sums fit into 64 bits; no column is farther than an extent from it.
    source.signed("k", diagonal.clamp(-(1 << 62), 1 << 62));
    let order = if is_upper { ">=" } else { "<=" };
    let body = format!(
        "i64 away = (i64)(i % columns) - (i64)(i / columns % rows);\n    y[i] = away {order} k ? x[i] : 0;"
    );
    Ok(staged(vec![source.each(maker, n, &body)?], &Scratch::default()).in_place(&[0]))
}

/// Reverses the first elements of each sequence. One of the first two axes is time, the other the batch.
fn reverse_sequence(maker: &Maker<'_>) -> Result<Prepared> {
    let dims = maker.site.dims(0)?;
    let (elem, index) = (maker.raw(0)?, maker.index(1)?);
    let time = usize::from(maker.site.view.int("time_axis").unwrap_or(0) == 1);
    let n: usize = dims.iter().product();
    let mut source = Source::new(n);
    source.from("x", elem, Place::operand(0));
    source.from("lengths", index, Place::operand(1));
    source.to("y", elem, Place::result(0));
    source.number("columns", dims[1]);
    source.number("inner", dims[2..].iter().product());
    source.signed("most", i64::try_from(dims[time]).unwrap_or(i64::MAX));
    source.fails(maker, format!("lengths in [0, {}]", dims[time]));
    let body = format!(
        "i64 at0 = i / inner / columns, at1 = i / inner % columns;
    i64 length = lengths[{batch}];
    if (length < 0 || length > most) {{ fail(failure, name, length); y[i] = 0; continue; }}
    if ({time} < length) {time} = length - 1 - {time};
    y[i] = x[(at0 * columns + at1) * inner + i % inner];",
        batch = if time == 0 { "at1" } else { "at0" },
        time = if time == 0 { "at0" } else { "at1" },
    );
    Ok(staged(vec![source.each(maker, n, &body)?], &Scratch::default()))
}
