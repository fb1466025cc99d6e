//! Ranges of normalizations.
//!
//! No one of n numbers with root mean square r is farther from 0 than √n · r. So a normalized number is at most √n,
//! whatever is subtracted from the numbers before they are squared: the mean may be rounded. An epsilon makes sure that
//! squares that vanish do not matter.

use super::range::{LARGEST_EXPONENT, MOST, Range, count, gamma};
use super::{At, producer};
use ampc_ir::op::OpKind as K;
use ampc_ir::views::norm::{BatchNormView, ChannelNormView, LayerNormView, SoftmaxAxes, SoftmaxView};
use ampc_ir::{DType, Module, Value};

/// The least epsilon beside which squares that are flushed to 0 do not count.
const LEAST_EPSILON: f32 = 1e-30;
/// The relative error of a normalized number beside that of the sums.
const LOOSE: f64 = 1.0 / (1 << 12) as f64;
/// Channels of the largest BatchNormalization whose constants are read.
const MAX_CHANNELS: u64 = 1 << 16;

/// The range of a normalization or softmax.
pub(super) fn of_norm(at: &At<'_>) -> Option<Range> {
    let x = at.get(0)?;
    match at.view.kind() {
        K::Softmax => Some(Range::UNIT.or_nan(!x.is_finite())),
        K::Hardmax => Some(Range::UNIT),
        K::LogSoftmax if x.is_finite() => {
            // No tensor has more elements along an axis. The logarithm may be that of a Softmax that vanishes.
            let least = x.lo() - x.hi() - 2f64.powi(40).ln();
            let least = if least > -LARGEST_EXPONENT { least } else { f64::NEG_INFINITY };
            Some(Range::between(least, 0.0).loosened(LOOSE, LOOSE))
        }
        _ if !at.is_wide() => None,
        K::BatchNormalization => of_batch_norm(at, x),
        K::LayerNormalization | K::RMSNormalization | K::SimplifiedLayerNormalization => {
            let norm = LayerNormView::read(&at.view).ok()?;
            let n = at.count(norm.axis?..at.view.rank(0)?)?;
            normalized(at, x, n, (norm.stash, norm.epsilon))
        }
        K::InstanceNormalization | K::GroupNormalization => {
            let norm = ChannelNormView::read(&at.view).ok()?;
            let n = at.count(if norm.groups.is_some() { 1 } else { 2 }..at.view.rank(0)?)?;
            normalized(at, x, n / norm.groups.unwrap_or(1), (norm.stash, norm.epsilon))
        }
        _ => None,
    }
}

/// The range of numbers that are normalized in groups of `n`, then scaled and shifted by operands.
fn normalized(at: &At<'_>, x: Range, n: u64, (stash, epsilon): (DType, f32)) -> Option<Range> {
    if !matches!(stash, DType::F32 | DType::F64) || epsilon < LEAST_EPSILON {
        return None;
    }
    let most = count(n.max(1)).sqrt() * (1.0 + LOOSE + gamma(Some(n)));
    let scale = at.get(1).unwrap_or(Range::between(1.0, 1.0));
    // Sums and squares that overflow make NaN of infinities.
    let squares = 4.0 * count(n) * x.magnitude() * x.magnitude();
    let fits = x.is_finite() && squares < MOST && count(n) * x.magnitude() < MOST / 2.0;
    let scaled = Range::between(-most, most).or_nan(!fits).times(scale).stored(at.dtype);
    Some(scaled.plus(at.get(2).unwrap_or(Range::ZERO)))
}

/// The range of x · a + b with factors a and b of each channel, however they are computed.
fn of_batch_norm(at: &At<'_>, x: Range) -> Option<Range> {
    let norm = BatchNormView::read(&at.view);
    if norm.training || !x.is_finite() {
        return None;
    }
    let numbers = |i| at.view.constant(i)?.small_floats(MAX_CHANNELS);
    let (scale, bias, mean, var) = (numbers(1)?, numbers(2)?, numbers(3)?, numbers(4)?);
    let channels = scale.iter().zip(&bias).zip(mean.iter().zip(&var));
    let mut all: Option<Range> = None;
    for ((&scale, &bias), (&mean, &var)) in channels {
        let factor = scale / (var + f64::from(norm.epsilon)).sqrt();
        let total = factor.abs() * (x.magnitude() + mean.abs()) + bias.abs();
        if !(var >= 0.0 && total * 2.0 < MOST && factor.is_finite()) {
            return None;
        }
        let line = x.minus(Range::between(mean, mean)).scaled(factor).plus(Range::between(bias, bias));
        let range = line.loosened(0.0, total * LOOSE);
        all = Some(all.map_or(range, |all| all.hull(range)));
    }
    all
}

/// True if the elements of a value along its last axis are positive and add up to 1: if a Softmax makes it.
pub(super) fn is_distribution(module: &Module, value: Value) -> bool {
    let Some(view) = producer(module, value).filter(|view| view.kind() == K::Softmax) else { return false };
    let axes = SoftmaxView::read(&view).ok().and_then(|softmax| softmax.axes);
    match (axes, view.rank(0)) {
        (Some(SoftmaxAxes::One(axis) | SoftmaxAxes::From(axis)), Some(rank)) => axis + 1 == rank,
        _ => false,
    }
}
