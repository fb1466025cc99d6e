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

use super::RuleError;
use super::backward::{Backward, Ruled, signed};
use ampc_ir::op::OpKind;
use ampc_ir::views::norm::{BatchNormView, ChannelNormView, LayerNormView};
use ampc_ir::Value;

/// What the normalised value is made of.
#[derive(Clone, Copy)]
struct Normalized {
    /// x̂
    x: Value,
    /// r
    rate: Value,
}

/// Normalises over axes; without the mean if nothing is subtracted.
fn normalize(b: &mut Backward<'_>, x: Value, axes: &[usize], epsilon: f32, centers: bool) -> Ruled<Normalized> {
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
        return Err(RuleError::Unsupported("statistics per activation (`spatial` = 0) are not differentiated".into()));
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
        let dx = if view.training { through(b, normalized, u, &axes, true)? } else { b.times(u, normalized.rate)? };
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
    let groups = view.groups.ok_or_else(|| RuleError::Unsupported("bug: it has no groups".into()))?;
    let (x, scale, dy) = (b.x(0)?, b.x(1)?, b.dy0()?);
    let (x, dy) = (b.wide(x)?, b.wide(dy)?);
    let rank = b.rank(x)?;
    let shape = [0, super::window::wide(groups), -1];
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
    let first = view.axis.ok_or_else(|| RuleError::Unsupported(format!("its axis of {} is not known", signed(rank))))?;
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
