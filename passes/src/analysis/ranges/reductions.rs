//! Ranges of reductions, pools and running sums.

use super::At;
use super::range::{LARGEST_EXPONENT, Range, count};
use ampc_ir::op::OpKind as K;
use ampc_ir::views::NodeView;
use ampc_ir::views::reduce::{CumulativeView, ReduceView};

/// The relative and absolute error of a logarithm or root.
const LOOSE: f64 = 1.0 / (1 << 16) as f64;

/// The number of elements that a node makes one element of.
enum Terms {
    /// Known, and not 0.
    Known(u64),
    Unknown,
}

impl Terms {
    fn known(&self) -> Option<u64> {
        match self {
            Terms::Known(n) => Some(*n),
            Terms::Unknown => None,
        }
    }
}

/// The range of a reduction, pool or running sum.
pub(super) fn of_reduction(at: &At<'_>) -> Option<Range> {
    let kind = at.view.kind();
    let computes =
        matches!(at.view.kind(), K::MaxPool | K::GlobalMaxPool | K::TopK | K::ReduceMax | K::ReduceMin);
    let is_integer = at.dtype.is_some_and(ampc_ir::DType::is_integer);
    if !computes && !at.is_wide() && !is_integer {
        return None;
    }
    let x = at.get(0)?;
    match kind {
        K::GlobalMaxPool | K::TopK => Some(greatest(x)),
        K::MaxPool => (!may_be_empty(&at.view)).then(|| greatest(x)),
        K::AveragePool => {
            let pads = at.view.int("count_include_pad").unwrap_or(0) != 0;
            let pads = pads || at.view.int("ceil_mode").unwrap_or(0) != 0;
            let x = if pads { x.hull(Range::ZERO) } else { x };
            (!may_be_empty(&at.view)).then(|| x.averaged(kernel(&at.view)))
        }
        K::GlobalAveragePool => {
            let rank = at.view.rank(0)?;
            Some(x.averaged(at.count(2..rank).filter(|&n| n > 0)))
        }
        K::CumSum => Some(accumulated(at, x)),
        kind => reduced(kind, x, terms(at)?),
    }
}

/// The range of the greatest of several elements. A device that skips NaN may have none left.
fn greatest(x: Range) -> Range {
    if x.may_be_nan() { x.hull(Range::between(f64::NEG_INFINITY, x.hi())) } else { x }
}

fn reduced(kind: K, x: Range, terms: Terms) -> Option<Range> {
    let n = terms.known();
    let square = || x.magnitudes().times(x.magnitudes());
    match kind {
        K::ReduceMax => Some(greatest(x)),
        K::ReduceMin => Some(greatest(x.negated()).negated()),
        K::ReduceMean => Some(x.averaged(n)),
        K::ReduceSum => Some(x.summed(n)),
        K::ReduceL1 => Some(x.magnitudes().summed(n)),
        K::ReduceSumSquare => Some(square().summed(n)),
        K::ReduceL2 => Some(square().summed(n).grown(f64::sqrt).loosened(LOOSE, 0.0)),
        K::ReduceLogSumExp => {
            let fits = x.is_finite() && x.magnitude() < LARGEST_EXPONENT;
            let most = x.hi() + count(n.filter(|_| fits)?).ln();
            Some(Range::between(x.lo(), most).loosened(LOOSE, LOOSE))
        }
        K::ReduceProd => {
            let stays = x.lo() >= 0.0 && x.hi() <= 1.0;
            stays.then(|| Range::UNIT.or_nan(x.may_be_nan()))
        }
        _ => None,
    }
}

/// The elements along the axes of a reduction; `None` if the node is none, or reduces nothing at all.
fn terms(at: &At<'_>) -> Option<Terms> {
    // Devices disagree on a reduction of no axes.
    let reduces = at.view.schema.name.starts_with("Reduce") && at.view.int("noop_with_empty_axes") != Some(1);
    let reduce = ReduceView::read(&at.view).ok().filter(|_| reduces)?;
    let Some(axes) = reduce.axes else { return Some(Terms::Unknown) };
    match at.count(axes.as_slice().iter().copied()) {
        Some(0) => None,
        Some(n) => Some(Terms::Known(n)),
        None => Some(Terms::Unknown),
    }
}

fn accumulated(at: &At<'_>, x: Range) -> Range {
    let axis = CumulativeView::read(&at.view).ok().and_then(|cumulative| cumulative.axis);
    let n = axis.and_then(|axis| at.count([axis]));
    x.hull(Range::ZERO).summed(n)
}

fn kernel(view: &NodeView<'_>) -> Option<u64> {
    let extents = view.int_list("kernel_shape")?;
    extents.iter().try_fold(1u64, |n, &extent| n.checked_mul(u64::try_from(extent).ok()?))
}

/// True if a window of a pool may lie in the padding altogether.
fn may_be_empty(view: &NodeView<'_>) -> bool {
    let dilates = view.int_list("dilations").is_some_and(|list| list.iter().any(|&n| n != 1));
    let pads = view.int_list("pads").is_some_and(|list| list.iter().any(|&n| n != 0));
    let pads = pads || !matches!(view.string("auto_pad"), None | Some("NOTSET" | "VALID"));
    let ceils = view.int("ceil_mode").unwrap_or(0) != 0;
    (dilates && pads) || ceils || exceeds(view)
}

/// True if a padding is as large as the window.
fn exceeds(view: &NodeView<'_>) -> bool {
    let (Some(kernel), Some(pads)) = (view.int_list("kernel_shape"), view.int_list("pads")) else {
        return false;
    };
    pads.iter().enumerate().any(|(i, &pad)| kernel.get(i % kernel.len().max(1)).is_none_or(|&n| pad >= n))
}
