//! Gradients of normalisations.
//!
//! All are x̂ = (x − μ)·r with r = 1/√(σ² + ε), μ and σ² over some axes, then γ·x̂ + β. With u = dy·γ and means over the
//! same axes:
//!
//! ```text
//! dx = r · (u − mean(u) − x̂ · mean(u · x̂))         without mean(u) where nothing is subtracted
//! dγ = Σ dy · x̂        dβ = Σ dy                    over the axes along which γ and β are repeated
//! ```
//!
//! (Ioffe and Szegedy, arXiv 1502.03167, for batches; Ba, Kiros and Hinton, arXiv 1607.06450, for layers.) Statistics are
//! computed again from x, in f32 or wider.

use super::backward::{Backward, Build, Ruled, signed};
use crate::pass::training_error::RuleError;
use ampc_ir::op::OpKind;
use ampc_ir::views::Part;
use ampc_ir::views::norm::lp_normalization;
use ampc_ir::views::norm::{BatchNormView, ChannelNormView, LayerNormView};
use ampc_ir::{AttrValue, NodeSpec, Value};

/// Parts of the normalised value.
#[derive(Clone, Copy)]
struct Normalized {
    /// x̂
    x: Value,
    /// r
    rate: Value,
}

/// Normalises over axes; without the mean if nothing is subtracted.
fn normalize(
    b: &mut Backward<'_>,
    x: Value,
    axes: &[usize],
    epsilon: f32,
    centers: bool,
) -> Ruled<Normalized> {
    let centered = if centers {
        let mean = b.mean_over(x, axes, true)?;
        b.minus(x, mean)?
    } else {
        x
    };
    let square = b.times(centered, centered)?;
    let variance = b.mean_over(square, axes, true)?;
    let rate = rate(b, variance, epsilon)?;
    Ok(Normalized { x: b.times(centered, rate)?, rate })
}

/// 1/√(σ² + ε)
fn rate(b: &mut Backward<'_>, variance: Value, epsilon: f32) -> Ruled<Value> {
    let sum = b.plus_number(variance, f64::from(epsilon))?;
    let root = b.unary(OpKind::Sqrt, sum)?;
    b.unary(OpKind::Reciprocal, root)
}

/// dx of x̂ by u.
fn through(b: &mut Backward<'_>, of: Normalized, u: Value, axes: &[usize], centers: bool) -> Ruled<Value> {
    let product = b.times(u, of.x)?;
    let along = b.mean_over(product, axes, true)?;
    let along = b.times(of.x, along)?;
    let rest = if centers {
        let mean = b.mean_over(u, axes, true)?;
        b.minus(u, mean)?
    } else {
        u
    };
    let rest = b.minus(rest, along)?;
    b.times(of.rate, rest)
}

/// A vector of channels as [C, 1, 1 ...], to be broadcast over `rank` axes.
fn per_channel(b: &mut Backward<'_>, vector: Value, rank: usize) -> Ruled<Value> {
    let vector = b.wide(vector)?;
    let axes: Vec<usize> = (1..rank.saturating_sub(1)).collect();
    b.unsqueeze(vector, &axes)
}

/// Adds the gradients of γ and β, operands 1 and 2, which are vectors of channels.
fn add_affine(b: &mut Backward<'_>, dy: Value, normalized: Value) -> Ruled {
    let axes: Vec<usize> = (0..b.rank(dy)?).filter(|&axis| axis != 1).collect();
    if b.needs(1) {
        let product = b.times(dy, normalized)?;
        let d = b.sum_over(product, &axes, false)?;
        b.add(1, d)?;
    }
    if b.needs(2) {
        let d = b.sum_over(dy, &axes, false)?;
        b.add(2, d)?;
    }
    Ok(())
}

pub(super) fn batch(b: &mut Backward<'_>) -> Ruled {
    let view = BatchNormView::read(&b.view()?);
    if !view.spatial {
        return Err(RuleError::Unsupported(
            "statistics per activation (`spatial` = 0) are not differentiated".into(),
        ));
    }
    let (x, scale, dy) = (b.x(0)?, b.x(1)?, b.dy0()?);
    let (x, dy) = (b.wide(x)?, b.wide(dy)?);
    let rank = b.rank(x)?;
    let axes: Vec<usize> = (0..rank).filter(|&axis| axis != 1).collect();
    let scale = per_channel(b, scale, rank)?;
    let scale = b.cast(scale, b.dtype(x)?)?;
    let normalized = if view.training {
        normalize(b, x, &axes, view.epsilon, true)?
    } else {
        let (mean, variance) = (b.x(3)?, b.x(4)?);
        let (mean, variance) = (per_channel(b, mean, rank)?, per_channel(b, variance, rank)?);
        let (mean, variance) = (b.cast(mean, b.dtype(x)?)?, b.cast(variance, b.dtype(x)?)?);
        let centered = b.minus(x, mean)?;
        let rate = rate(b, variance, view.epsilon)?;
        Normalized { x: b.times(centered, rate)?, rate }
    };
    if b.needs(0) {
        let u = b.times(dy, scale)?;
        let dx = if view.training {
            through(b, normalized, u, &axes, true)?
        } else {
            b.times(u, normalized.rate)?
        };
        b.add(0, dx)?;
    }
    add_affine(b, dy, normalized.x)
}

pub(super) fn instance(b: &mut Backward<'_>) -> Ruled {
    let epsilon = ChannelNormView::read(&b.view()?)?.epsilon;
    let (x, scale, dy) = (b.x(0)?, b.x(1)?, b.dy0()?);
    let (x, dy) = (b.wide(x)?, b.wide(dy)?);
    let rank = b.rank(x)?;
    let axes: Vec<usize> = (2..rank).collect();
    let normalized = normalize(b, x, &axes, epsilon, true)?;
    if b.needs(0) {
        let scale = per_channel(b, scale, rank)?;
        let u = b.times(dy, scale)?;
        let dx = through(b, normalized, u, &axes, true)?;
        b.add(0, dx)?;
    }
    add_affine(b, dy, normalized.x)
}

/// Groups of channels as [N, g, all elements of the group].
pub(super) fn group(b: &mut Backward<'_>) -> Ruled {
    let view = ChannelNormView::read(&b.view()?)?;
    let groups = view.groups.ok_or_else(|| RuleError::Internal("it has no groups".into()))?;
    let (x, scale, dy) = (b.x(0)?, b.x(1)?, b.dy0()?);
    let (x, dy) = (b.wide(x)?, b.wide(dy)?);
    let rank = b.rank(x)?;
    let shape = [0, super::dims::wide(groups), -1];
    let grouped = b.reshape(x, &shape)?;
    let normalized = normalize(b, grouped, &[2], view.epsilon, true)?;
    if view.per_group {
        // Below opset 21, γ and β are one number for a group.
        let dy = b.reshape(dy, &shape)?;
        if b.needs(0) {
            let scale = per_channel(b, scale, 3)?;
            let u = b.times(dy, scale)?;
            let dx = through(b, normalized, u, &[2], true)?;
            let dx = b.reshape_as(dx, x)?;
            b.add(0, dx)?;
        }
        return add_affine(b, dy, normalized.x);
    }
    if b.needs(0) {
        let scale = per_channel(b, scale, rank)?;
        let u = b.times(dy, scale)?;
        let u = b.reshape(u, &shape)?;
        let dx = through(b, normalized, u, &[2], true)?;
        let dx = b.reshape_as(dx, x)?;
        b.add(0, dx)?;
    }
    let flat = b.reshape_as(normalized.x, x)?;
    add_affine(b, dy, flat)
}

pub(super) fn layer(b: &mut Backward<'_>) -> Ruled {
    of_last_axes(b, true)
}

pub(super) fn rms(b: &mut Backward<'_>) -> Ruled {
    of_last_axes(b, false)
}

fn of_last_axes(b: &mut Backward<'_>, centers: bool) -> Ruled {
    let view = LayerNormView::read(&b.view()?)?;
    let (x, dy) = (b.x(0)?, b.dy0()?);
    let (x, dy) = (b.wide(x)?, b.wide(dy)?);
    let rank = b.rank(x)?;
    let first = view
        .axis
        .ok_or_else(|| RuleError::Unsupported(format!("its axis of {} is not known", signed(rank))))?;
    let axes: Vec<usize> = (first..rank).collect();
    let normalized = normalize(b, x, &axes, view.epsilon, centers)?;
    if b.needs(0) {
        let u = match b.operand(1) {
            Some(scale) => {
                let scale = b.wide(scale)?;
                let scale = b.cast(scale, b.dtype(x)?)?;
                b.times(dy, scale)?
            }
            None => dy,
        };
        let dx = through(b, normalized, u, &axes, centers)?;
        b.add(0, dx)?;
    }
    if b.needs(1) {
        let product = b.times(dy, normalized.x)?;
        b.add_unbroadcast(1, product)?;
    }
    b.add_unbroadcast(2, dy)
}

/// Gradient of x/n: (dy − y · Σ dy·y) / n for n = √Σx², and with the sign of x instead of the second y for n =
/// Σ|x|. 0 where n is 0.
pub(super) fn lp(b: &mut Backward<'_>) -> Ruled {
    let (axis, p) = lp_normalization(&b.view()?)?;
    let axis = axis.ok_or_else(|| RuleError::Unsupported("its axis is not known".into()))?;
    let (x, y, dy) = (b.x(0)?, b.y(0)?, b.dy0()?);
    let (x, y, dy) = (b.wide(x)?, b.wide(y)?, b.wide(dy)?);
    let norm = b.reduce(if p == 1 { OpKind::ReduceL1 } else { OpKind::ReduceL2 }, x, &[axis], true)?;
    let direction = if p == 1 { b.unary(OpKind::Sign, x)? } else { y };
    let product = b.times(dy, y)?;
    let sum = b.sum_over(product, &[axis], true)?;
    let along = b.times(direction, sum)?;
    let rest = b.minus(dy, along)?;
    let zero = b.number_like(0.0, x)?;
    let is_zero = b.op(OpKind::Equal, &[norm, zero], &[])?;
    let one = b.number_like(1.0, x)?;
    let divisor = b.select(is_zero, one, norm)?;
    let quotient = b.over(rest, divisor)?;
    let dx = b.select(is_zero, zero, quotient)?;
    b.add(0, dx)
}

/// Gradient of (x − μ) / (σ + 10⁻⁹), where 10⁻⁹ counts as 0 beside σ but keeps the divisor from being 0.
pub(super) fn mean_variance(b: &mut Backward<'_>) -> Ruled {
    let (x, y, dy) = (b.x(0)?, b.y(0)?, b.dy0()?);
    let (x, y, dy) = (b.wide(x)?, b.wide(y)?, b.wide(dy)?);
    let rank = b.rank(x)?;
    let axes = b.view()?.int_list("axes").unwrap_or(&[0, 2, 3]).to_vec();
    let axes = ampc_ir::views::distinct_axes(&axes, rank, &Part::Attr("axes".into()))?;
    let mean = b.mean_over(x, &axes, true)?;
    let centered = b.minus(x, mean)?;
    let square = b.times(centered, centered)?;
    let variance = b.mean_over(square, &axes, true)?;
    let root = b.unary(OpKind::Sqrt, variance)?;
    let deviation = b.plus_number(root, 1e-9)?;
    let rate = b.unary(OpKind::Reciprocal, deviation)?;
    let dx = through(b, Normalized { x: y, rate }, dy, &axes, true)?;
    b.add(0, dx)
}

/// Gradient of x · d^−β with d = bias + α/n · Σ x² over n neighbouring channels:
///
/// ```text
/// dx = dy · d^−β − 2αβ/n · x · Σ dy · x · d^(−β−1)       the sum is over the channels in whose d the channel is
/// ```
pub(super) fn local_response(b: &mut Backward<'_>) -> Ruled {
    let view = b.view()?;
    let size = view.int("size").unwrap_or(1).max(1);
    let number = |name, default: f32| f64::from(view.float(name).unwrap_or(default));
    let (alpha, beta, bias) = (number("alpha", 1e-4), number("beta", 0.75), number("bias", 1.0));
    #[expect(clippy::cast_precision_loss, reason = "windows of channels are small")]
    let alpha = alpha / size as f64;
    let (input, dy) = (b.x(0)?, b.dy0()?);
    let (x, dy) = (b.wide(input)?, b.wide(dy)?);
    // Channels are the spatial axis of images of one channel: [N, 1, C, all others].
    let (x, dy) = (b.reshape(x, &[0, 0, -1])?, b.reshape(dy, &[0, 0, -1])?);
    let square = b.times(x, x)?;
    let (before, behind) = ((size - 1) / 2, size / 2);
    let sum = over_channels(b, square, size, (before, behind))?;
    let scaled = b.scaled(sum, alpha)?;
    let base = b.plus_number(scaled, bias)?;
    let exponent = b.number_like(-beta, x)?;
    let power = b.op(OpKind::Pow, &[base, exponent], &[])?;
    let first = b.times(dy, power)?;
    let product = b.times(first, x)?;
    let share = b.over(product, base)?;
    let sum = over_channels(b, share, size, (behind, before))?;
    let sum = b.scaled(sum, 2.0 * alpha * beta)?;
    let second = b.times(x, sum)?;
    let dx = b.minus(first, second)?;
    let dx = b.reshape_as(dx, input)?;
    b.add(0, dx)
}

/// Sums over so many neighbours along the second of three axes, those before and behind that count.
fn over_channels(b: &mut Backward<'_>, x: Value, size: i64, (before, behind): (i64, i64)) -> Ruled<Value> {
    let apart = b.unsqueeze(x, &[1])?;
    let (one, shape) = (b.number_like(1.0, x)?, b.ints(&[1, 1, size, 1]));
    let ones = b.op(OpKind::Expand, &[one, shape], &[])?;
    let pads = AttrValue::Ints(vec![before, 0, behind, 0]);
    let [sums] = b.insert(NodeSpec::new(OpKind::Conv, &[apart, ones]).attr("pads", pads))?;
    b.squeeze(sums, &[1])
}
