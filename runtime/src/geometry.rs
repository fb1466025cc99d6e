//! Amounts along the axes of a tensor that a node gives as attributes or constant operands: those of Tile, Slice,
//! Split, Pad and CenterCropPad. All backends plan their kernels from them.

use crate::kernel::{KernelError, Result, Site};
use ampc_ir::infer::Int;
use ampc_ir::views::{
    Axes, OpError, PadView, Part, Parts, SliceView, SplitView, TileView, distinct_axes, normalize_axis,
    slice_range,
};

/// The number of times that Tile repeats each axis of operand 0.
///
/// # Errors
/// If they are not known yet, or one of them is negative.
pub(crate) fn repeats(site: &Site<'_>) -> Result<Vec<usize>> {
    let rank = site.dims(0)?.len();
    let mut repeats = vec![1; rank];
    let times =
        |n: i64| usize::try_from(n).map_err(|_| OpError::operand(1, "repeats of 0 or more", n.to_string()));
    match TileView::read(&site.view) {
        TileView::All(ints) => {
            let ints = ints.ok_or(KernelError::NotYet)?;
            for (repeat, n) in repeats.iter_mut().zip(ints.iter()) {
                *repeat = times(n.known().ok_or(KernelError::NotYet)?)?;
            }
        }
        TileView::One { tiles: Some(n), axis: Some(axis) } => {
            repeats[normalize_axis(axis, rank, Part::Operand(2))?] = times(n)?;
        }
        TileView::One { .. } => return Err(KernelError::NotYet),
    }
    Ok(repeats)
}

/// The elements that Slice takes along an axis.
pub(crate) struct Range {
    pub(crate) axis: usize,
    /// The index of the first element, or 0 if there is none.
    pub(crate) first: usize,
    /// The step between elements. It may exceed the extent if Slice takes one element.
    pub(crate) step: i64,
}

/// The ranges of the axes of operand 0 that Slice cuts.
///
/// # Errors
/// If they are not known yet, or an axis is given twice.
pub(crate) fn ranges(site: &Site<'_>) -> Result<Vec<Range>> {
    let dims = site.dims(0)?;
    let view = SliceView::read(&site.view);
    let known = |list: &[Int]| list.iter().map(|n| n.known()).collect::<Option<Vec<i64>>>();
    let starts = view.starts.as_deref().and_then(known).ok_or(KernelError::NotYet)?;
    let ends = view.ends.as_deref().and_then(known).ok_or(KernelError::NotYet)?;
    let steps = match &view.steps {
        None => return Err(KernelError::NotYet),
        Some(None) => vec![1; starts.len()],
        Some(Some(given)) => known(given).ok_or(KernelError::NotYet)?,
    };
    let axes: Vec<usize> = match &view.axes {
        Axes::Absent => (0..starts.len()).collect(),
        Axes::Known(axes) => distinct_axes(axes, dims.len(), &Axes::part(&site.view, 3))?,
        Axes::Unknown(_) => return Err(KernelError::NotYet),
    };
    let range = |(((axis, start), end), step): (((usize, i64), i64), i64)| {
        let (first, _) = slice_range(dims[axis] as u64, start, end, step);
        Range { axis, first: usize::try_from(first).unwrap_or(0), step }
    };
    Ok(axes.into_iter().zip(starts).zip(ends).zip(steps).map(range).collect())
}

/// The axis of operand 0 that Split divides, and the extents of the parts, whose sum may exceed the extent of the
/// axis.
///
/// # Errors
/// If they are not known yet.
pub(crate) fn parts(site: &Site<'_>) -> Result<(usize, Vec<usize>)> {
    let view = SplitView::read(&site.view)?;
    let dims = site.dims(0)?;
    let axis = normalize_axis(view.axis, dims.len(), Part::Attr("axis".into()))?;
    let n = site.results.len();
    let sizes = match &view.parts {
        Parts::Unknown if n == 1 => vec![dims[axis]],
        Parts::Unknown => return Err(KernelError::NotYet),
        Parts::Equal | Parts::Ceil => vec![dims[axis].div_ceil(n.max(1)); n],
        Parts::Sizes(sizes) => {
            let size = |n: &Int| n.known().and_then(|n| usize::try_from(n).ok());
            site.room.try_gathered(sizes.iter().map(|n| size(n).ok_or(KernelError::NotYet)))?
        }
    };
    Ok((axis, sizes))
}

/// The number of elements that this Pad adds before each axis of operand 0; negative numbers remove elements.
///
/// # Errors
/// If they are not known yet, or an axis is given twice.
pub(crate) fn pads_before(site: &Site<'_>, view: &PadView<'_>) -> Result<Vec<i64>> {
    let rank = site.dims(0)?.len();
    let pads = view.pads.as_ref().ok_or(KernelError::NotYet)?;
    let pads = pads.iter().map(|n| n.known()).collect::<Option<Vec<i64>>>().ok_or(KernelError::NotYet)?;
    let axes = match &view.axes {
        Axes::Absent => (0..rank).collect(),
        Axes::Known(axes) => distinct_axes(axes, rank, &Axes::part(&site.view, 3))?,
        Axes::Unknown(_) => return Err(KernelError::NotYet),
    };
    let mut before = vec![0; rank];
    for (&axis, &n) in axes.iter().zip(&pads) {
        before[axis] = n;
    }
    Ok(before)
}

/// The number of elements that CenterCropPad adds before each axis of operand 0; negative numbers remove elements. If
/// the number of elements to add or remove is odd, the extra element is at the end.
///
/// # Errors
/// If the dims of the result are not known yet.
pub(crate) fn crops_before(site: &Site<'_>) -> Result<Vec<i64>> {
    let (dims, result) = (site.dims(0)?, site.result_dims(0)?);
    let half = |n: usize| i64::try_from(n / 2).unwrap_or(i64::MAX);
    let before = |(&n, &extent): (&usize, &usize)| {
        if extent >= n { half(extent - n) } else { -half(n - extent) }
    };
    Ok(dims.iter().zip(&result).map(before).collect())
}
