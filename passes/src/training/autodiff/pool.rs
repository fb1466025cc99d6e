//! Gradients of pools.

use super::backward::{Backward, Build, Ruled, signed};
use super::dims::{dim_range, wide};
use super::indexing::scatter_flat;
use super::reduce::count;
use super::resize::joined;
use super::window::{Padded, Window, transposed};
use crate::pass::training_error::RuleError;
use ampc_ir::op::OpKind;
use ampc_ir::views::window::WindowView;
use ampc_ir::{AttrValue, DType, Dim, NodeSpec, TensorData, Type, Value};

/// dy goes to the element that was the maximum: the forward node says which, in its second result; where that counts
/// columns first, another one does.
pub(super) fn max(b: &mut Backward<'_>) -> Ruled {
    let (x, y, dy) = (b.x(0)?, b.y(0)?, b.dy0()?);
    let indices = if b.view()?.int("storage_order").unwrap_or(0) == 0 {
        let shape = b.ty(y).shape().cloned().unwrap_or_default();
        b.result_or_new(1, Type::tensor(DType::I64, shape))?
    } else {
        let spec = b.like_node(&["storage_order"]).operands(&[Some(x)]);
        let [_, indices] = b.insert(spec)?;
        indices
    };
    let dx = scatter_flat(b, x, indices, dy)?;
    b.add(0, dx)
}

/// dy over the number of elements that a window has, to each of them: a transposed convolution with ones.
pub(super) fn average(b: &mut Backward<'_>) -> Ruled {
    let (x, dy) = (b.x(0)?, b.dy0()?);
    let (x_dims, y_dims) = (b.shape(x)?, b.shape(dy)?);
    let n = x_dims.len() - 2;
    let view = b.view()?;
    let counts_padding = view.int("count_include_pad").unwrap_or(0) != 0;
    let window = WindowView::read(&view, n, None)?;
    let (window, open) = Window::of(&window, &x_dims[2..], &y_dims[2..])?;
    let mut share = b.wide(dy)?;
    let (Some(input), Some(output)) = (known(&x_dims[2..]), known(&y_dims[2..])) else {
        let counts = counted(b, &window, open, counts_padding)?;
        let counts = b.cast(counts, b.dtype(share)?)?;
        share = b.over(share, counts)?;
        let dx = to_windows(b, share, x, &window, open)?;
        return b.add(0, dx);
    };
    // The number of elements is a product over the axes.
    for axis in 0..n {
        let counts = elements_in_windows(&window, axis, input[axis], output[axis], counts_padding);
        let mut dims = vec![1u64; n];
        dims[axis] = output[axis];
        #[expect(clippy::cast_precision_loss, reason = "extents of windows are small")]
        let counts: Vec<f32> = counts.into_iter().map(|n| n.max(1) as f32).collect();
        let counts =
            TensorData::from_f32(&dims, &counts).map_err(|error| RuleError::Internal(format!("{error}")))?;
        let counts = b.constant(counts);
        let counts = b.cast(counts, b.dtype(share)?)?;
        share = b.over(share, counts)?;
    }
    let dx = to_windows(b, share, x, &window, open)?;
    b.add(0, dx)
}

/// The numbers of elements of windows, [1, 1, …], where extents are read at run time: a convolution of ones with ones.
fn counted(b: &mut Backward<'_>, window: &Window, open: Option<bool>, with_padding: bool) -> Ruled<Value> {
    let (x, y) = (b.x(0)?, b.y(0)?);
    let n = window.kernel.len();
    let (one, ones) = (b.number(1.0, DType::F32)?, b.ints(&[1, 1]));
    let extents = dim_range(b, x, 2, None)?;
    let shape = joined(b, &[ones, extents])?;
    let mut elements = b.op(OpKind::Expand, &[one, shape], &[])?;
    let fill = if with_padding { 1.0 } else { 0.0 };
    if let Some(upper) = open {
        elements = Padded::of(b, elements, (x, y), window, upper, fill)?.value;
    }
    let around = |of: fn(&(u64, u64)) -> u64| window.pads.iter().map(move |pads| wide(of(pads)));
    let pads: Vec<i64> =
        [0, 0].into_iter().chain(around(|p| p.0)).chain([0, 0]).chain(around(|p| p.1)).collect();
    let (pads, fill) = (b.ints(&pads), b.number(fill, DType::F32)?);
    elements = b.op(OpKind::Pad, &[elements, pads, fill], &[])?;
    let mut kernel = vec![1, 1];
    kernel.extend(window.kernel.iter().map(|&extent| wide(extent)));
    let kernel = b.ints(&kernel);
    let kernel = b.op(OpKind::Expand, &[one, kernel], &[])?;
    // Behind the end there is room for windows that are counted though they are not full.
    let behind = window.strides.iter().map(|&stride| wide(stride) - 1);
    let behind: Vec<i64> = std::iter::repeat_n(0, n).chain(behind).collect();
    let ints = |list: &[u64]| AttrValue::Ints(list.iter().map(|&n| wide(n)).collect());
    let spec = NodeSpec::new(OpKind::Conv, &[elements, kernel])
        .attr("strides", ints(&window.strides))
        .attr("dilations", ints(&window.dilations))
        .attr("pads", AttrValue::Ints(behind));
    let [counts] = b.insert(spec)?;
    let (starts, ends) = (b.ints(&vec![0; n]), dim_range(b, y, 2, None)?);
    let axes: Vec<i64> = (2..n + 2).map(signed).collect();
    let axes = b.ints(&axes);
    let counts = b.op(OpKind::Slice, &[counts, starts, ends, axes], &[])?;
    b.op(OpKind::Max, &[counts, one], &[])
}

/// The extents of spatial axes, if they are known.
fn known(dims: &[Dim]) -> Option<Vec<u64>> {
    dims.iter().map(|dim| dim.known()).collect()
}

/// Elements of results, added up by the elements in their windows.
fn to_windows(
    b: &mut Backward<'_>,
    share: Value,
    x: Value,
    window: &Window,
    open: Option<bool>,
) -> Ruled<Value> {
    // Channels are independent: as many images of one channel.
    let alone = |b: &mut Backward<'_>, a: Value| -> Ruled<Value> {
        if let Some(extents) = known(&b.shape(a)?[2..]) {
            let shape: Vec<i64> = [-1, 1].into_iter().chain(extents.into_iter().map(wide)).collect();
            return b.reshape(a, &shape);
        }
        let (first, extents) = (b.ints(&[-1, 1]), dim_range(b, a, 2, None)?);
        let shape = joined(b, &[first, extents])?;
        b.op(OpKind::Reshape, &[a, shape], &[])
    };
    let share = alone(b, share)?;
    let one = b.number_like(1.0, share)?;
    let mut kernel = vec![1, 1];
    kernel.extend(window.kernel.iter().map(|&extent| wide(extent)));
    let kernel = b.ints(&kernel);
    let ones = b.op(OpKind::Expand, &[one, kernel], &[])?;
    let dx = match open {
        None => transposed(b, share, ones, window, 1, x)?,
        Some(upper) => {
            let padded = Padded::of(b, x, (x, share), window, upper, 0.0)?;
            let d = transposed(b, share, ones, window, 1, padded.value)?;
            padded.cropped(b, d, x)?
        }
    };
    b.reshape_as(dx, x)
}

/// Gradient of (Σ|x|ᵖ)^(1/p): dy · sign(x) · (|x| / y)^(p−1), 0 where y is 0
pub(super) fn global_lp(b: &mut Backward<'_>) -> Ruled {
    let p = exponent(b)?;
    let x = b.x(0)?;
    let x = b.wide(x)?;
    let share = over_norm(b, p)?;
    let slope = magnitude(b, x, p)?;
    let dx = b.times(share, slope)?;
    b.add(0, dx)
}

/// As a norm of all elements, for each window.
pub(super) fn lp(b: &mut Backward<'_>) -> Ruled {
    let p = exponent(b)?;
    let (input, y) = (b.x(0)?, b.y(0)?);
    let (x_dims, y_dims) = (b.shape(input)?, b.shape(y)?);
    let window = WindowView::read(&b.view()?, x_dims.len() - 2, None)?;
    let (window, open) = Window::of(&window, &x_dims[2..], &y_dims[2..])?;
    let share = over_norm(b, p)?;
    let sums = to_windows(b, share, input, &window, open)?;
    let x = b.wide(input)?;
    let slope = magnitude(b, x, p)?;
    let dx = b.times(sums, slope)?;
    b.add(0, dx)
}

fn exponent(b: &Backward<'_>) -> Ruled<f64> {
    let view = b.view()?;
    // Version 1 has a float.
    let p = view.int("p").and_then(|p| u32::try_from(p).ok()).map(f64::from);
    Ok(p.or_else(|| view.float("p").map(f64::from)).unwrap_or(2.0))
}

/// dy / y^(p−1), 0 where y is 0
fn over_norm(b: &mut Backward<'_>, p: f64) -> Ruled<Value> {
    let (y, dy) = (b.y(0)?, b.dy0()?);
    let (y, dy) = (b.wide(y)?, b.wide(dy)?);
    let (zero, one) = (b.number_like(0.0, y)?, b.number_like(1.0, y)?);
    let is_zero = b.op(OpKind::Equal, &[y, zero], &[])?;
    let safe = b.select(is_zero, one, y)?;
    let power = power(b, safe, p - 1.0)?;
    let share = b.over(dy, power)?;
    b.select(is_zero, zero, share)
}

/// sign(x) · |x|^(p−1)
fn magnitude(b: &mut Backward<'_>, x: Value, p: f64) -> Ruled<Value> {
    let sign = b.unary(OpKind::Sign, x)?;
    let size = b.unary(OpKind::Abs, x)?;
    let power = power(b, size, p - 1.0)?;
    b.times(sign, power)
}

fn power(b: &mut Backward<'_>, x: Value, exponent: f64) -> Ruled<Value> {
    let exponent = b.number_like(exponent, x)?;
    b.op(OpKind::Pow, &[x, exponent], &[])
}

/// The number of elements in the windows along an axis: elements of the input, and of the padding if it counts.
fn elements_in_windows(
    window: &Window,
    axis: usize,
    input: u64,
    output: u64,
    with_padding: bool,
) -> Vec<u64> {
    let (before, after) = window.pads[axis];
    let (first, last) = if with_padding { (0, before + input + after) } else { (before, before + input) };
    let in_window = |at: u64| {
        let elements =
            (0..window.kernel[axis]).map(|k| at * window.strides[axis] + k * window.dilations[axis]);
        elements.filter(|position| (first..last).contains(position)).count() as u64
    };
    (0..output).map(in_window).collect()
}

/// dy / n to each of n elements
pub(super) fn global_average(b: &mut Backward<'_>) -> Ruled {
    let (x, dy) = (b.x(0)?, b.dy0()?);
    let dy = b.wide(dy)?;
    let axes = spatial(b, x)?;
    let n = count(b, x, &axes, b.dtype(dy)?)?;
    let share = b.over(dy, n)?;
    let dx = b.expand_as(share, x)?;
    b.add(0, dx)
}

/// dy to the first of the elements that are the maximum, as MaxPool has it
pub(super) fn global_max(b: &mut Backward<'_>) -> Ruled {
    let (x, dy) = (b.x(0)?, b.dy0()?);
    // ArgMax has no 16-bit kernel in ONNX Runtime.
    let (wide, dy) = (b.wide(x)?, b.wide(dy)?);
    let (flat, dy) = (b.reshape(wide, &[0, 0, -1])?, b.reshape(dy, &[0, 0, 1])?);
    let attrs = [("axis", AttrValue::Int(2)), ("keepdims", AttrValue::Int(1))];
    let at = b.op(OpKind::ArgMax, &[flat], &attrs)?;
    let zeros = b.zeros(b.dtype(dy)?, flat)?;
    let dx = b.op(OpKind::ScatterElements, &[zeros, at, dy], &[("axis", AttrValue::Int(2))])?;
    let dx = b.reshape_as(dx, x)?;
    b.add(0, dx)
}

fn spatial(b: &Backward<'_>, x: Value) -> Ruled<Vec<usize>> {
    Ok((2..b.rank(x)?).collect())
}
