//! Gradients of convolutions.
//!
//! The convolution of x with weights w and strides s, dilations d and padding p is differentiated by convolutions:
//!
//! ```text
//! dx = ConvTranspose(dy, w)       with s, d, p, and so much at the end that the extents of x come out
//! dw = Conv(x, dy)                batch and channels exchanged: dy is the filter, s are its dilations and d the strides
//! db = Σ dy                       over all axes but the channels
//! ```
//!
//! For x [N, C, 9] and w [O, C, 3] with stride 2, dy is [N, O, 4]. x as [C, N, 9] meets dy as O filters [N, 4] with
//! dilation 2: they reach 7 far, so there are 3 positions, one for each element of the window: [C, O, 3].

use super::backward::{Backward, Build, Ruled, signed};
use super::dims::{dim_range, extent, wide};
use crate::pass::training_error::RuleError;
use ampc_ir::op::OpKind;
use ampc_ir::views::window::{ConvView, Padding, TransposedView, WindowView};
use ampc_ir::{AttrValue, Dim, NodeSpec, Value};

/// A value with its padding, where the padding follows from extents that are read when the step runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Padded {
    /// The value with its padding.
    pub(super) value: Value,
    /// The padding before each spatial axis, a list.
    before: Value,
}

impl Padded {
    /// The value padded to the extents that the windows of the result cover.
    pub(super) fn of(
        b: &mut Backward<'_>,
        x: Value,
        (input, output): (Value, Value),
        window: &Window,
        upper: bool,
        fill: f64,
    ) -> Ruled<Padded> {
        let n = window.kernel.len();
        let list = |list: Vec<u64>| -> Vec<i64> { list.into_iter().map(wide).collect() };
        let (strides, reach) =
            (list(window.strides.clone()), list((0..n).map(|axis| window.reach(axis)).collect()));
        let (strides, reach) = (b.ints(&strides), b.ints(&reach));
        let (one, two, zero) = (b.ints(&[1]), b.ints(&[2]), b.ints(&[0]));
        let (input, output) = (dim_list(b, input)?, dim_list(b, output)?);
        let steps = b.minus(output, one)?;
        let steps = b.times(steps, strides)?;
        let covered = b.plus(steps, reach)?;
        let missing = b.minus(covered, input)?;
        let total = b.op(OpKind::Max, &[missing, zero], &[])?;
        let half = b.over(total, two)?;
        let rest = b.minus(total, half)?;
        let (before, after) = if upper { (half, rest) } else { (rest, half) };
        let zeros = b.ints(&[0, 0]);
        let pads = b.op(OpKind::Concat, &[zeros, before, zeros, after], &[("axis", AttrValue::Int(0))])?;
        let fill = b.number_like(fill, x)?;
        let value = b.op(OpKind::Pad, &[x, pads, fill], &[])?;
        Ok(Padded { value, before })
    }

    /// The part of a value of the padded extents that is not padding of `like`.
    pub(super) fn cropped(self, b: &mut Backward<'_>, d: Value, like: Value) -> Ruled<Value> {
        cropped_at(b, d, self.before, like)
    }
}

/// The spatial extents of a value, as a list.
fn dim_list(b: &mut Backward<'_>, x: Value) -> Ruled<Value> {
    dim_range(b, x, 2, None)
}

/// The part of `d` from `before` on that has the spatial extents of `like`.
fn cropped_at(b: &mut Backward<'_>, d: Value, before: Value, like: Value) -> Ruled<Value> {
    let extents = dim_list(b, like)?;
    let ends = b.plus(before, extents)?;
    let axes: Vec<i64> = (2..b.rank(like)?).map(signed).collect();
    let axes = b.ints(&axes);
    b.op(OpKind::Slice, &[d, before, ends, axes], &[])
}

/// A window whose padding is numbers.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) kernel: Vec<u64>,
    pub(super) strides: Vec<u64>,
    pub(super) dilations: Vec<u64>,
    /// Before and after each axis.
    pub(super) pads: Vec<(u64, u64)>,
}

impl Window {
    /// The reach of the window on an axis.
    pub(super) fn reach(&self, axis: usize) -> u64 {
        (self.kernel[axis] - 1) * self.dilations[axis] + 1
    }

    /// The window of a convolution or pool; where its padding follows from extents that are not known, without padding,
    /// and whether more of it is at the end then.
    pub(super) fn of(view: &WindowView, input: &[Dim], output: &[Dim]) -> Ruled<(Window, Option<bool>)> {
        let unknown = || {
            RuleError::Unsupported(
                "the extents of its window have to be known, which are attributes of its gradient".into(),
            )
        };
        let kernel: Option<Vec<u64>> = view.kernel.iter().map(|dim| dim.known()).collect();
        let axes = 0..view.kernel.len();
        let pads = axes.map(|axis| match &view.padding {
            Padding::Explicit(pads) => pads.get(axis).copied(),
            Padding::Same { .. } => {
                Some(view.pads(axis, input.get(axis)?.known()?, output.get(axis)?.known()?))
            }
        });
        let pads: Option<Vec<(u64, u64)>> = pads.collect();
        let open = match &view.padding {
            Padding::Same { upper } if pads.is_none() => Some(*upper),
            _ => None,
        };
        let window = Window {
            kernel: kernel.ok_or_else(unknown)?,
            strides: view.strides.clone(),
            dilations: view.dilations.clone(),
            pads: pads.unwrap_or_else(|| vec![(0, 0); view.kernel.len()]),
        };
        Ok((window, open))
    }

    fn attrs(&self, spec: NodeSpec) -> NodeSpec {
        let ints = |list: &[u64]| AttrValue::Ints(list.iter().map(|&n| wide(n)).collect());
        let pads = self.pads.iter().map(|p| p.0).chain(self.pads.iter().map(|p| p.1)).map(wide).collect();
        spec.attr("strides", ints(&self.strides))
            .attr("dilations", ints(&self.dilations))
            .attr("pads", AttrValue::Ints(pads))
    }
}

/// The transposed convolution of `dy` with weights that has the spatial extents of `x`.
pub(super) fn transposed(
    b: &mut Backward<'_>,
    dy: Value,
    weights: Value,
    window: &Window,
    group: u64,
    x: Value,
) -> Ruled<Value> {
    let (input, output) = (b.shape(x)?[2..].to_vec(), b.shape(dy)?[2..].to_vec());
    let mut fitted = window.clone();
    let mut end = Vec::with_capacity(input.len());
    for axis in 0..input.len() {
        let (Some(input), Some(output)) = (input[axis].known(), output[axis].known()) else {
            if window.strides[axis] == 1 {
                end.push(0);
                continue;
            }
            return transposed_and_cropped(b, dy, weights, window, group, x);
        };
        // All that the windows cover, padding included.
        let covered = (output.max(1) - 1) * window.strides[axis] + window.reach(axis);
        let (before, after) = &mut fitted.pads[axis];
        *after = covered.saturating_sub(*before + input);
        end.push(input + *before + *after - covered);
    }
    let spec =
        NodeSpec::new(OpKind::ConvTranspose, &[dy, weights]).attr("group", AttrValue::Int(wide(group)));
    let end = AttrValue::Ints(end.into_iter().map(wide).collect());
    let [dx] = b.insert(fitted.attrs(spec).attr("output_padding", end))?;
    Ok(dx)
}

/// As [`transposed`] where extents are read when it runs: all that the windows cover, zeros behind it for what none of them
/// reached, and of this what is not padding.
fn transposed_and_cropped(
    b: &mut Backward<'_>,
    dy: Value,
    weights: Value,
    window: &Window,
    group: u64,
    x: Value,
) -> Ruled<Value> {
    let n = window.kernel.len();
    let whole = Window { pads: vec![(0, 0); n], ..window.clone() };
    let spec =
        NodeSpec::new(OpKind::ConvTranspose, &[dy, weights]).attr("group", AttrValue::Int(wide(group)));
    let [all] = b.insert(whole.attrs(spec))?;
    let behind = window.strides.iter().map(|&stride| wide(stride) - 1);
    let pads: Vec<i64> = std::iter::repeat_n(0, 2 + n + 2).chain(behind).collect();
    let (pads, zero) = (b.ints(&pads), b.number_like(0.0, all)?);
    let all = b.op(OpKind::Pad, &[all, pads, zero], &[])?;
    let before: Vec<i64> = window.pads.iter().map(|pads| wide(pads.0)).collect();
    let before = b.ints(&before);
    cropped_at(b, all, before, x)
}

/// The gradient of the weights of a convolution of `x` with the result `dy`.
fn weights(b: &mut Backward<'_>, x: Value, dy: Value, w: Value, window: &Window, group: u64) -> Ruled<Value> {
    let rank = b.rank(x)?;
    let spatial: Vec<usize> = (2..rank).collect();
    let (x, window, fits) = cropped(b, x, dy, window)?;
    // x as [C/g, g·N, ...].
    let exchanged: Vec<usize> = [1, 0].into_iter().chain(spatial.iter().copied()).collect();
    let x = if group == 1 {
        b.transpose(x, &exchanged)?
    } else {
        let grouped = regroup(b, x, group, w)?;
        let perm: Vec<usize> = [2, 1, 0].into_iter().chain(spatial.iter().map(|axis| axis + 1)).collect();
        let grouped = b.transpose(grouped, &perm)?;
        join(b, grouped)?
    };
    let filters = b.transpose(dy, &exchanged)?;
    let turned =
        Window { strides: window.dilations.clone(), dilations: window.strides.clone(), ..window.clone() };
    let spec = NodeSpec::new(OpKind::Conv, &[x, filters]).attr("group", AttrValue::Int(wide(group)));
    let [all] = b.insert(turned.attrs(spec))?;
    if fits {
        return b.transpose(all, &exchanged);
    }
    // Behind the last window there may be elements of x that no window reached.
    let starts = b.ints(&vec![0; spatial.len()]);
    let ends: Vec<i64> = window.kernel.iter().map(|&k| wide(k)).collect();
    let ends = b.ints(&ends);
    let axes: Vec<i64> = spatial.iter().map(|&axis| signed(axis)).collect();
    let axes = b.ints(&axes);
    let cut = b.op(OpKind::Slice, &[all, starts, ends, axes], &[])?;
    b.transpose(cut, &exchanged)
}

/// The part of `x` that windows cover: without the elements behind the last window, and without elements
/// between windows of one element. Also the window over this, and whether nothing else is left; where extents
/// are not known there may be.
fn cropped(b: &mut Backward<'_>, x: Value, dy: Value, window: &Window) -> Ruled<(Value, Window, bool)> {
    let (dims, result) = (b.shape(x)?, b.shape(dy)?);
    let mut window = window.clone();
    let (mut ends, mut steps, mut fits) = (Vec::new(), Vec::new(), true);
    for axis in 0..window.kernel.len() {
        let (Some(input), Some(output)) = (dims[axis + 2].known(), result[axis + 2].known()) else {
            (ends, steps, fits) = ([ends, vec![i64::MAX]].concat(), [steps, vec![1]].concat(), false);
            continue;
        };
        let covered = (output.max(1) - 1) * window.strides[axis] + window.reach(axis);
        let (before, after) = &mut window.pads[axis];
        let end = covered.saturating_sub(*before).max(1).min(input);
        *after = covered.saturating_sub(*before + end);
        fits &= *before + end + *after == covered;
        let is_sparse = window.kernel[axis] == 1 && *before == 0 && *after == 0;
        let step = if is_sparse { std::mem::replace(&mut window.strides[axis], 1) } else { 1 };
        ends.push(if end == input { i64::MAX } else { wide(end) });
        steps.push(wide(step));
    }
    if ends.iter().all(|&end| end == i64::MAX) && steps.iter().all(|&step| step == 1) {
        return Ok((x, window, fits));
    }
    let starts = b.ints(&vec![0; ends.len()]);
    let axes: Vec<i64> = (0..ends.len()).map(|axis| signed(axis + 2)).collect();
    let (ends, axes, steps) = (b.ints(&ends), b.ints(&axes), b.ints(&steps));
    let x = b.op(OpKind::Slice, &[x, starts, ends, axes, steps], &[])?;
    Ok((x, window, fits))
}

/// [N, g·c, ...] as [N, g, c, ...], with as many channels in a group as the weights have.
fn regroup(b: &mut Backward<'_>, x: Value, group: u64, weights: Value) -> Ruled<Value> {
    let dims = b.shape(x)?;
    let per_group = b.shape(weights)?[1].known();
    let mut shape: Vec<i64> = vec![0, wide(group), per_group.map_or(-1, wide)];
    let open = usize::from(per_group.is_none());
    if open + dims[2..].iter().filter(|dim| dim.known().is_none()).count() <= 1 {
        shape.extend(dims[2..].iter().map(|dim| dim.known().map_or(-1, wide)));
        return b.reshape(x, &shape);
    }
    let first = dim_range(b, x, 0, Some(1))?;
    let groups = b.ints(&[wide(group)]);
    let channels = extent(b, weights, 1)?;
    let rest = dim_range(b, x, 2, None)?;
    let shape = b.op(OpKind::Concat, &[first, groups, channels, rest], &[("axis", AttrValue::Int(0))])?;
    b.op(OpKind::Reshape, &[x, shape], &[])
}

/// [c, g, N, ...] as [c, g·N, ...].
fn join(b: &mut Backward<'_>, x: Value) -> Ruled<Value> {
    let dims = b.shape(x)?;
    if dims[3..].iter().all(|dim| dim.known().is_some()) {
        let mut shape: Vec<i64> = vec![0, -1];
        shape.extend(dims[3..].iter().map(|dim| dim.known().map_or(-1, wide)));
        return b.reshape(x, &shape);
    }
    let (first, rest) = (dim_range(b, x, 0, Some(1))?, dim_range(b, x, 3, None)?);
    let free = b.ints(&[-1]);
    let shape = b.op(OpKind::Concat, &[first, free, rest], &[("axis", AttrValue::Int(0))])?;
    b.op(OpKind::Reshape, &[x, shape], &[])
}

/// The gradient of a bias: the sum of `dy` over all axes but the channels.
fn bias(b: &mut Backward<'_>, dy: Value) -> Ruled<Value> {
    let dy = b.wide(dy)?;
    let axes: Vec<usize> = (0..b.rank(dy)?).filter(|&axis| axis != 1).collect();
    b.sum_over(dy, &axes, false)
}

pub(super) fn conv(b: &mut Backward<'_>) -> Ruled {
    let (x, w, dy) = (b.x(0)?, b.x(1)?, b.dy0()?);
    let (x_dims, w_dims, y_dims) = (b.shape(x)?, b.shape(w)?, b.shape(dy)?);
    let view = b.view()?;
    let group = ConvView::read(&view)?.group;
    let window = WindowView::read(&view, x_dims.len() - 2, Some(&w_dims[2..]))?;
    let (window, open) = Window::of(&window, &x_dims[2..], &y_dims[2..])?;
    let padded = open.map(|upper| Padded::of(b, x, (x, dy), &window, upper, 0.0)).transpose()?;
    let around = padded.map_or(x, |padded| padded.value);
    if b.needs(0) {
        let mut d = transposed(b, dy, w, &window, group, around)?;
        if let Some(padded) = padded {
            d = padded.cropped(b, d, x)?;
        }
        b.add(0, d)?;
    }
    if b.needs(1) {
        let d = weights(b, around, dy, w, &window, group)?;
        b.add(1, d)?;
    }
    if b.needs(2) {
        let d = bias(b, dy)?;
        b.add(2, d)?;
    }
    Ok(())
}

/// A transposed convolution is differentiated as the convolution is that it undoes: with x and dy exchanged.
pub(super) fn conv_transpose(b: &mut Backward<'_>) -> Ruled {
    let (x, w, dy) = (b.x(0)?, b.x(1)?, b.dy0()?);
    let (x_dims, w_dims, y_dims) = (b.shape(x)?, b.shape(w)?, b.shape(dy)?);
    let n = x_dims.len() - 2;
    let view = b.view()?;
    let group = ConvView::read(&view)?.group;
    let window = WindowView::read(&view, n, Some(&w_dims[2..]))?;
    let beside = TransposedView::read(&view, n)?;
    let (mut found, _) = Window::of(&window, &[], &[])?;
    let mut open = false;
    for axis in 0..n {
        let (Some(input), Some(output)) = (x_dims[axis + 2].known(), y_dims[axis + 2].known()) else {
            match (&window.padding, &beside.output_shape) {
                // The windows of dy cover what was cut off, but for what was added at the end.
                (Padding::Explicit(pads), None) => {
                    let (before, after) = pads[axis];
                    found.pads[axis] = (before, after.saturating_sub(beside.output_padding[axis]));
                }
                _ if beside.output_padding[axis] > 0 => {
                    return Err(RuleError::Unsupported(
                        "its spatial extents have to be known beside `output_padding` and padding that follows from them"
                            .into(),
                    ));
                }
                _ => open = true,
            }
            continue;
        };
        let before = beside.before(&window, axis, input, output);
        // The convolution of dy with these windows has the extents of x.
        let covered = (input.max(1) - 1) * found.strides[axis] + found.reach(axis);
        found.pads[axis] = (before, covered.saturating_sub(before + output));
    }
    let mut dy_around = dy;
    if open {
        found.pads = vec![(0, 0); n];
        let upper = matches!(window.padding, Padding::Same { upper: true });
        dy_around = Padded::of(b, dy, (dy, x), &found, upper, 0.0)?.value;
    }
    if b.needs(0) {
        let spec = NodeSpec::new(OpKind::Conv, &[dy_around, w]).attr("group", AttrValue::Int(wide(group)));
        let [d] = b.insert(found.attrs(spec))?;
        b.add(0, d)?;
    }
    if b.needs(1) {
        let d = weights(b, dy_around, x, w, &found, group)?;
        b.add(1, d)?;
    }
    if b.needs(2) {
        let d = bias(b, dy)?;
        b.add(2, d)?;
    }
    Ok(())
}
