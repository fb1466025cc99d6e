//! Gradients of pools.

use super::RuleError;
use super::backward::{Backward, Build, Ruled};
use super::indexing::scatter_flat;
use super::reduce::count;
use super::window::{Window, transposed, wide};
use ampc_ir::op::OpKind;
use ampc_ir::views::window::WindowView;
use ampc_ir::{DType, Dim, TensorData, Type, Value};

/// dy goes to the element that was the maximum: the forward node says which, in its second result.
pub(super) fn max(b: &mut Backward<'_>) -> Ruled {
    if b.view()?.int("storage_order").unwrap_or(0) != 0 {
        return Err(RuleError::Unsupported(
            "its indices are in column-major order: leave `storage_order` out".into(),
        ));
    }
    let (x, y, dy) = (b.x(0)?, b.y(0)?, b.dy0()?);
    let shape = b.ty(y).shape().cloned().unwrap_or_default();
    let indices = b.result_or_new(1, Type::tensor(DType::I64, shape))?;
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
    let window = Window::of(&window, &x_dims[2..], &y_dims[2..])?;
    let (input, output) = (known(&x_dims[2..])?, known(&y_dims[2..])?);
    let mut share = b.wide(dy)?;
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
    let dx = to_windows(b, share, x, &window)?;
    b.add(0, dx)
}

/// The extents of spatial axes.
fn known(dims: &[Dim]) -> Ruled<Vec<u64>> {
    let unknown = || {
        RuleError::Unsupported(
            "its spatial extents have to be known: export the model with fixed ones".into(),
        )
    };
    dims.iter().map(|dim| dim.known()).collect::<Option<_>>().ok_or_else(unknown)
}

/// Elements of results, added up by the elements in their windows, whose spatial extents are known.
fn to_windows(b: &mut Backward<'_>, share: Value, x: Value, window: &Window) -> Ruled<Value> {
    let (x_dims, y_dims) = (b.shape(x)?, b.shape(share)?);
    // Channels are independent: as many images of one channel.
    let mut shape = vec![-1, 1];
    shape.extend(known(&y_dims[2..])?.into_iter().map(wide));
    let share = b.reshape(share, &shape)?;
    let one = b.number_like(1.0, share)?;
    let mut kernel = vec![1, 1];
    kernel.extend(window.kernel.iter().map(|&extent| wide(extent)));
    let kernel = b.ints(&kernel);
    let ones = b.op(OpKind::Expand, &[one, kernel], &[])?;
    let dx = transposed(b, share, ones, window, 1, &x_dims[2..], &y_dims[2..])?;
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
    let window = Window::of(&window, &x_dims[2..], &y_dims[2..])?;
    let share = over_norm(b, p)?;
    let sums = to_windows(b, share, input, &window)?;
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

/// dy, shared equally by the elements that are the maximum
pub(super) fn global_max(b: &mut Backward<'_>) -> Ruled {
    let (x, y, dy) = (b.x(0)?, b.y(0)?, b.dy0()?);
    let dy = b.wide(dy)?;
    let axes = spatial(b, x)?;
    let is_result = b.op(OpKind::Equal, &[x, y], &[])?;
    let mark = b.cast(is_result, b.dtype(dy)?)?;
    let n = b.sum_over(mark, &axes, true)?;
    let share = b.over(dy, n)?;
    let dx = b.times(mark, share)?;
    b.add(0, dx)
}

fn spatial(b: &Backward<'_>, x: Value) -> Ruled<Vec<usize>> {
    Ok((2..b.rank(x)?).collect())
}
