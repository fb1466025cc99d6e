//! Ranges of products of matrices, convolutions and recurrent networks.

use super::At;
use super::constants::{Constants, Layout};
use super::norms::is_distribution;
use super::range::{MOST, Range, gamma, underflow};
use ampc_ir::op::OpKind as K;
use ampc_ir::views::linear::GemmView;

/// The relative error of a product on a device that multiplies numbers of 11 bits (TF32), or convolves by transforms.
const SHORT: f64 = 1.0 / (1 << 9) as f64;

/// The range of MatMul, Gemm, Conv or ConvTranspose.
pub(super) fn of_product(at: &At<'_>, constants: &mut Constants<'_>) -> Option<Range> {
    match at.view.kind() {
        _ if !at.is_wide() => None,
        K::MatMul => of_matrices(at, constants, [false, false]),
        K::Gemm => {
            let gemm = GemmView::read(&at.view);
            let product = of_matrices(at, constants, [gemm.trans_a, gemm.trans_b])?;
            let scaled = product.scaled(gemm.alpha.into()).stored(at.dtype);
            let bias = at.get(2).unwrap_or(Range::ZERO).scaled(gemm.beta.into()).stored(at.dtype);
            // A factor may be scaled before it is multiplied.
            (gemm.alpha == 1.0 || scaled.is_finite()).then(|| scaled.plus(bias))
        }
        _ => of_convolution(at, constants),
    }
}

fn of_matrices(at: &At<'_>, constants: &mut Constants<'_>, transposed: [bool; 2]) -> Option<Range> {
    let (a, b) = (at.get(0)?, at.get(1)?);
    let (left, right) = (extents(at, 0), extents(at, 1));
    let by_rows = left.as_deref().and_then(|dims| layout(dims, !transposed[0]));
    let by_columns = right.as_deref().and_then(|dims| layout(dims, transposed[1]));
    let terms = by_rows.or(by_columns).map(|layout| layout.summed);
    for (operand, layout, other) in [(1, by_columns, a), (0, by_rows, b)] {
        let found = layout.and_then(|layout| of_weights(at, constants, operand, layout, other));
        if found.is_some() {
            return found;
        }
    }
    let is_mean = b.is_finite() && at.view.operand(0).is_some_and(|p| is_distribution(at.view.module, p));
    if !is_mean || at.view.kind() != K::MatMul {
        return Some(a.times(b).loosened(SHORT, 0.0).summed(terms));
    }
    // The weights add up to 1 but for rounding.
    let slack = (2.0 * gamma(terms) + SHORT) * b.magnitude();
    Some(b.loosened(0.0, slack).signed_as(b).or_nan(a.may_be_nan()))
}

/// The extents of an operand, if all are known.
fn extents(at: &At<'_>, i: usize) -> Option<Vec<u64>> {
    at.view.dims(i)?.iter().map(|dim| dim.known()).collect()
}

/// The layout of a matrix whose rows, or else columns, are summed.
fn layout(dims: &[u64], along_rows: bool) -> Option<Layout> {
    match dims {
        [] => None,
        &[n] => Some(Layout { outer: 1, summed: n, inner: 1 }),
        &[ref outer @ .., rows, columns] => {
            let outer = product(outer)?;
            Some(match along_rows {
                true => Layout { outer: outer.checked_mul(rows)?, summed: columns, inner: 1 },
                false => Layout { outer, summed: rows, inner: columns },
            })
        }
    }
}

fn product(dims: &[u64]) -> Option<u64> {
    dims.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim))
}

/// The range of the sums of products of constant weights with finite numbers; `None` if the weights are not constant or
/// cannot be read, and if sums on the way may be infinite.
fn of_weights(
    at: &At<'_>,
    constants: &mut Constants<'_>,
    operand: usize,
    layout: Layout,
    x: Range,
) -> Option<Range> {
    let data = at.view.constant(operand).filter(|_| x.is_finite())?;
    let (sums, n) = (constants.sums(&data, layout)?, layout.summed);
    let (mut lo, mut hi, mut total) = (f64::INFINITY, f64::NEG_INFINITY, 0f64);
    for sums in &*sums {
        lo = lo.min(sums.positive * x.lo() - sums.negative * x.hi());
        hi = hi.max(sums.positive * x.hi() - sums.negative * x.lo());
        total = total.max((sums.positive + sums.negative) * x.magnitude());
    }
    let slack = (gamma(Some(n)) + SHORT) * total + underflow(n);
    (total + slack < MOST).then(|| Range::between(lo - slack, hi + slack))
}

fn of_convolution(at: &At<'_>, constants: &mut Constants<'_>) -> Option<Range> {
    // Padding adds zeros, and borders of a ConvTranspose leave terms out.
    let (x, w) = (at.get(0)?.hull(Range::ZERO), at.get(1)?.hull(Range::ZERO));
    let dims = extents(at, 1);
    let (terms, layout) = match dims.as_deref() {
        Some([channels, _, kernel @ ..]) if at.view.kind() == K::ConvTranspose => {
            (product(kernel).and_then(|n| n.checked_mul(*channels)), None)
        }
        Some(&[outer, ref rest @ ..]) => {
            let summed = product(rest);
            (summed, summed.map(|summed| Layout { outer, summed, inner: 1 }))
        }
        _ => (None, None),
    };
    let by_weights = layout.and_then(|layout| of_weights(at, constants, 1, layout, x));
    let product = by_weights.unwrap_or_else(|| x.times(w).loosened(SHORT, 0.0).summed(terms));
    Some(product.stored(at.dtype).plus(at.get(2).unwrap_or(Range::ZERO)))
}

/// The range of the hidden states of a recurrent network with its own activations: a tanh, scaled by a gate or mixed with
/// the state before.
pub(super) fn of_recurrent(at: &At<'_>) -> Option<Range> {
    let is_recurrent = matches!(at.view.kind(), K::LSTM | K::GRU | K::RNN);
    let hidden = is_recurrent && at.slot < 2 && at.view.attr("activations").is_none();
    let first = at.get(5).unwrap_or(Range::ZERO);
    // The rounding errors of the steps of a GRU stay in the state.
    let slack = 2f64.powi(if at.view.kind() == K::GRU { -4 } else { -12 });
    (hidden && at.is_wide()).then(|| Range::SIGNED_UNIT.hull(first).loosened(slack, 0.0).or_nan(true))
}
