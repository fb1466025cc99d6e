//! Ranges of products of matrices, convolutions and recurrent networks.

use super::constants::{Constants, Layout, Sums};
use super::range::{MOST, Range, gamma, underflow};
use super::{At, constant, is_distribution};
use ampc_ir::op::OpKind as K;
use ampc_ir::views::linear::GemmView;

/// The relative error of a product on a device that multiplies numbers of 11 bits (TF32), or convolves by transforms.
const SHORT: f64 = 1.0 / (1 << 9) as f64;

/// The weights of a product: an operand, how it is laid out, and the terms of an element of the result.
struct Weights {
    operand: usize,
    layout: Layout,
}

/// The range of MatMul, Gemm, Conv or ConvTranspose.
pub(super) fn of_product(at: &At<'_>, constants: &mut Constants<'_>) -> Option<Range> {
    if !at.is_wide() {
        return None;
    }
    match at.view.kind() {
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
    let last = |dims: &[u64], of_columns: bool| match dims {
        &[n] => Some(n),
        &[.., rows, columns] => Some(if of_columns { columns } else { rows }),
        [] => None,
    };
    let (left, right) = (at.extents(0), at.extents(1));
    let terms = left.as_deref().and_then(|dims| last(dims, !transposed[0]));
    let terms = terms.or_else(|| right.as_deref().and_then(|dims| last(dims, transposed[1])));
    // The sums of weights by which the other operand is multiplied.
    let by_columns = right.and_then(|dims| layout(&dims, transposed[1]));
    let by_rows = left.and_then(|dims| layout(&dims, !transposed[0]));
    let sides = [(1, by_columns, a), (0, by_rows, b)];
    for (operand, layout, other) in sides {
        let Some(layout) = layout.filter(|_| other.is_finite()) else { continue };
        if let Some(range) = of_weights(at, constants, &Weights { operand, layout }, other) {
            return Some(range);
        }
    }
    let multiplied = a.times(b).loosened(SHORT, 0.0).summed(terms);
    let is_mean = b.is_finite() && at.view.operand(0).is_some_and(|p| is_distribution(at.view.module, p));
    if !is_mean || at.view.kind() != K::MatMul {
        return Some(multiplied);
    }
    // The weights add up to 1 but for rounding.
    let slack = (2.0 * gamma(terms) + SHORT) * b.magnitude();
    Some(b.loosened(0.0, slack).signed_as(b).or_nan(a.may_be_nan()))
}

/// The layout of a matrix whose rows, or else columns, are summed.
fn layout(dims: &[u64], along_rows: bool) -> Option<Layout> {
    Some(match dims {
        &[n] => Layout { outer: 1, summed: n, inner: 1 },
        [outer @ .., rows, columns] => {
            let outer = product(outer)?;
            match along_rows {
                true => Layout { outer: outer.checked_mul(*rows)?, summed: *columns, inner: 1 },
                false => Layout { outer, summed: *rows, inner: *columns },
            }
        }
        [] => return None,
    })
}

fn product(dims: &[u64]) -> Option<u64> {
    dims.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim))
}

/// The range of the sums of products of constant weights with finite numbers; `None` if the weights are not constant or
/// cannot be read.
fn of_weights(at: &At<'_>, constants: &mut Constants<'_>, weights: &Weights, x: Range) -> Option<Range> {
    let sums = constants.sums(&constant(at, weights.operand)?, weights.layout)?;
    Some(weighted(&sums, x, weights.layout.summed))
}

/// The range of sums of `n` products of weights with numbers.
fn weighted(sums: &[Sums], x: Range, n: u64) -> Range {
    let (mut lo, mut hi, mut total) = (0f64, 0f64, 0f64);
    for (i, sums) in sums.iter().enumerate() {
        let least = sums.positive * x.lo() - sums.negative * x.hi();
        let greatest = sums.positive * x.hi() - sums.negative * x.lo();
        (lo, hi) = if i == 0 { (least, greatest) } else { (lo.min(least), hi.max(greatest)) };
        total = total.max((sums.positive + sums.negative) * x.magnitude());
    }
    let slack = (gamma(Some(n)) + SHORT) * total + underflow(n);
    // Beyond it, sums on the way may be infinite.
    if total + slack < MOST { Range::between(lo - slack, hi + slack) } else { Range::UNKNOWN }
}

fn of_convolution(at: &At<'_>, constants: &mut Constants<'_>) -> Option<Range> {
    // Padding adds zeros, and borders of a ConvTranspose leave terms out.
    let (x, w) = (at.get(0)?.hull(Range::ZERO), at.get(1)?);
    let dims = at.extents(1);
    let transposes = at.view.kind() == K::ConvTranspose;
    let terms = match (dims.as_deref(), transposes) {
        (Some([channels, _, kernel @ ..]), true) => product(kernel).and_then(|n| n.checked_mul(*channels)),
        (Some([_, rest @ ..]), _) => product(rest),
        _ => None,
    };
    let outer = dims.as_ref().and_then(|dims| dims.first().copied());
    let weights = outer
        .zip(terms)
        .filter(|_| !transposes && x.is_finite())
        .map(|(outer, summed)| Weights { operand: 1, layout: Layout { outer, summed, inner: 1 } });
    let by_weights = weights.and_then(|weights| of_weights(at, constants, &weights, x));
    let product =
        by_weights.unwrap_or_else(|| x.times(w.hull(Range::ZERO)).loosened(SHORT, 0.0).summed(terms));
    Some(match at.get(2) {
        Some(bias) => product.stored(at.dtype).plus(bias),
        None => product,
    })
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
