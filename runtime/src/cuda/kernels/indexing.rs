//! Elements at indices: GatherElements, GatherND, TensorScatter.

use super::stage::{Place, Scratch, Source, staged};
use super::{Maker, Prepare, around, signed};
use crate::cuda::text::Steps;
use crate::kernel::{KernelError, Prepared, Result};
use ampc_ir::op::OpKind;
use ampc_ir::views::{OpError, Part, normalize_axis};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::GatherElements => gather_elements,
        OpKind::GatherND => gather_nd,
        OpKind::TensorScatter => tensor_scatter,
        _ => return None,
    })
}

pub(super) fn axis_of(maker: &Maker<'_>, default: i64, rank: usize) -> Result<usize> {
    let axis = maker.site.view.int("axis").unwrap_or(default);
    Ok(normalize_axis(axis, rank, Part::Attr("axis".into()))?)
}

/// Checks that the extents of indices do not exceed those of the data, except along `axis`.
pub(super) fn check_extents(data: &[usize], indices: &[usize], axis: usize) -> Result<()> {
    let fits = data.iter().zip(indices).enumerate().all(|(i, (data, indices))| i == axis || indices <= data);
    if fits && data.len() == indices.len() {
        return Ok(());
    }
    let expected = format!("at most the extents {data:?} but at axis {axis}");
    Err(OpError::operand(1, expected, format!("{indices:?}")).into())
}

/// A description of the valid indices along an axis, for error messages.
pub(super) fn range_of(n: usize) -> String {
    format!("an index in [-{n}, {n})")
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

/// Index tuples, each of which selects a row of `inner` elements of the data.
pub(super) struct Tuples {
    /// The number of tuples.
    pub(super) n: usize,
    pub(super) inner: usize,
    /// Statements that compute `row`, the row that tuple `u` selects, or fail.
    pub(super) text: String,
}

impl Tuples {
    /// Reads operand 1 as tuples for operand 0; the first `batch` axes of both are the same.
    pub(super) fn of(maker: &Maker<'_>, batch: usize, source: &mut Source, failed: &str) -> Result<Tuples> {
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
        // All axes share one message: that of the axis with the fewest elements.
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
    let body = format!("{index} u = i / inner;\n    {} y[i] = x[row * (i64)inner + i % inner];", tuples.text);
    Ok(staged(vec![source.each(maker, n, &body)?], &Scratch::default()))
}

/// Writes updates into each sequence of the batch, from the sequence's start position on.
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
        // The last of several updates of an element is used.
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
