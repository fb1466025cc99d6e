//! Ranges of reductions, pools and running sums.

use super::At;
use super::range::{LARGEST_EXPONENT, Range, count};
use ampc_ir::DType;
use ampc_ir::op::OpKind as K;
use ampc_ir::views::reduce::{CumulativeView, ReduceView};

/// The relative and absolute error of a logarithm or root.
const LOOSE: f64 = 1.0 / (1 << 16) as f64;

/// The range of a reduction, pool or running sum.
pub(super) fn of_reduction(at: &At<'_>) -> Option<Range> {
    let (kind, x) = (at.view.kind(), at.get(0)?);
    let is_choice = matches!(kind, K::MaxPool | K::GlobalMaxPool | K::TopK | K::ReduceMax | K::ReduceMin);
    if !is_choice && !at.is_wide() && !at.dtype.is_some_and(DType::is_integer) {
        return None;
    }
    match kind {
        K::GlobalMaxPool | K::TopK => Some(greatest(x)),
        K::MaxPool | K::AveragePool => of_pool(at, x),
        K::GlobalAveragePool => Some(x.averaged(at.count(2..at.view.rank(0)?).filter(|&n| n > 0))),
        K::CumSum => {
            let axis = CumulativeView::read(&at.view).ok().and_then(|view| view.axis);
            Some(x.hull(Range::ZERO).summed(axis.and_then(|axis| at.count([axis]))))
        }
        // Devices disagree on a reduction of no axes.
        _ if at.view.int("noop_with_empty_axes") == Some(1) => None,
        kind => {
            let reduces = at.view.schema.name.starts_with("Reduce");
            let axes = ReduceView::read(&at.view).ok().filter(|_| reduces)?.axes;
            let n = axes.and_then(|axes| at.count(axes.as_slice().iter().copied()));
            if n == Some(0) { None } else { reduced(kind, x, n) }
        }
    }
}

/// The range of the greatest of several elements. A device that skips NaN may have none left.
fn greatest(x: Range) -> Range {
    if x.may_be_nan() { x.hull(Range::between(f64::NEG_INFINITY, x.hi())) } else { x }
}

/// The range of what a reduction makes of `n` elements, if their number is known.
fn reduced(kind: K, x: Range, n: Option<u64>) -> Option<Range> {
    let squares = || x.magnitudes().times(x.magnitudes()).summed(n);
    match kind {
        K::ReduceMax => Some(greatest(x)),
        K::ReduceMin => Some(greatest(x.negated()).negated()),
        K::ReduceMean => Some(x.averaged(n)),
        K::ReduceSum => Some(x.summed(n)),
        K::ReduceL1 => Some(x.magnitudes().summed(n)),
        K::ReduceSumSquare => Some(squares()),
        K::ReduceL2 => Some(squares().grown(f64::sqrt).loosened(LOOSE, 0.0)),
        K::ReduceLogSumExp if x.is_finite() && x.magnitude() < LARGEST_EXPONENT => {
            Some(Range::between(x.lo(), x.hi() + count(n?).ln()).loosened(LOOSE, LOOSE))
        }
        K::ReduceProd if x.lo() >= 0.0 && x.hi() <= 1.0 => Some(Range::UNIT.or_nan(x.may_be_nan())),
        _ => None,
    }
}

/// The range of a pool; `None` if a window may lie in the padding altogether.
fn of_pool(at: &At<'_>, x: Range) -> Option<Range> {
    let list = |name| at.view.int_list(name).unwrap_or_default();
    let kernel = list("kernel_shape");
    let overlaps = at.view.int("ceil_mode").unwrap_or(0) == 0
        && list("dilations").iter().all(|&n| n == 1)
        && list("pads").iter().zip(kernel.iter().cycle()).all(|(pad, n)| pad < n);
    let n = kernel.iter().try_fold(1u64, |n, &extent| n.checked_mul(u64::try_from(extent).ok()?));
    let counts_pads = at.view.int("count_include_pad").unwrap_or(0) != 0;
    match at.view.kind() {
        _ if !overlaps => None,
        K::MaxPool => Some(greatest(x)),
        _ if counts_pads => Some(x.hull(Range::ZERO).averaged(n)),
        _ => Some(x.averaged(n)),
    }
}
