//! Reductions: ReduceSum and the like.
//!
//! Following ONNX's operator texts, an empty set reduces to 0 for sums and norms, 1 for products, the least and
//! the greatest number for ReduceMax and ReduceMin, -∞ for logarithms; the mean of an empty set is NaN. Reduced
//! over no axes, each element is a set of its own.

use super::elements::to_f64;
use super::fold::{
    Fold, Folding, Greatest, Least, Load, Number, Product, Sum, SumOfExps, SumOfMagnitudes, SumOfSquares,
    greatest,
};
use super::lanes::{Real, Wide, for_real};
use crate::kernel::{KernelError, Prepare, Prepared, Result, Site};
use crate::layouts::is_reduction;
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::reduce::ReduceView;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    is_reduction(kind).then_some(reduce)
}

fn reduce(site: &Site<'_>) -> Result<Prepared> {
    let dims = site.dims(0)?;
    let axes = ReduceView::read(&site.view)?.axes.ok_or(KernelError::NotYet)?;
    let folding = Folding::new(&dims, |axis| axes.has(axis));
    Ok(match site.dtype(0)? {
        DType::Bool => return bools(site, folding),
        DType::I64 => return integers::<i64>(site, folding, i64::MIN, i64::MAX),
        DType::I32 => return integers::<i32>(site, folding, i32::MIN, i32::MAX),
        DType::U64 => return integers::<u64>(site, folding, u64::MIN, u64::MAX),
        DType::U32 => return integers::<u32>(site, folding, u32::MIN, u32::MAX),
        DType::I8 => return extremes::<i8>(site, folding, i8::MIN, i8::MAX),
        DType::U8 => return extremes::<u8>(site, folding, u8::MIN, u8::MAX),
        dtype => for_real!(dtype, site, T => reals::<T, <T as Real>::Wide>(site, folding)?),
    })
}

fn reals<T: Load<A>, A: Wide + Number>(site: &Site<'_>, folding: Folding) -> Result<Prepared> {
    Ok(match site.kind() {
        OpKind::ReduceL1 => folded::<T, A>(folding, SumOfMagnitudes, |sum| sum),
        OpKind::ReduceL2 => folded::<T, A>(folding, SumOfSquares, A::sqrt),
        OpKind::ReduceLogSum => folded::<T, A>(folding, Sum, A::ln),
        OpKind::ReduceLogSumExp => log_sum_exp::<T, A>(folding),
        OpKind::ReduceMax => folded::<T, A>(folding, greatest(), |x| x),
        OpKind::ReduceMin => folded::<T, A>(folding, Least(A::infinity()), |x| x),
        OpKind::ReduceProd => folded::<T, A>(folding, Product, |x| x),
        OpKind::ReduceSumSquare => folded::<T, A>(folding, SumOfSquares, |sum| sum),
        OpKind::ReduceMean => {
            let count = count_of::<A>(&folding);
            folded::<T, A>(folding, Sum, move |sum| sum / count)
        }
        OpKind::ReduceSum => folded::<T, A>(folding, Sum, |sum| sum),
        _ => return Err(site.no_kernel()),
    })
}

/// Elements per result, as a float.
pub(super) fn count_of<A: Wide>(folding: &Folding) -> A {
    as_float(folding.count)
}

/// A number of elements as a float.
pub(super) fn as_float<A: Wide>(count: usize) -> A {
    A::of(to_f64(count))
}

/// Sums, products and extremes wrap; reductions with a root or a logarithm are computed in f64, a mean exactly,
/// and fractions are cut off.
fn integers<T>(site: &Site<'_>, folding: Folding, least: T, most: T) -> Result<Prepared>
where
    T: Load<T> + Load<f64> + Load<i128> + Number,
{
    Ok(match site.kind() {
        OpKind::ReduceL1 => folded::<T, T>(folding, SumOfMagnitudes, |sum| sum),
        OpKind::ReduceL2 => folded::<T, f64>(folding, SumOfSquares, f64::sqrt),
        OpKind::ReduceLogSum => folded::<T, f64>(folding, Sum, f64::ln),
        OpKind::ReduceLogSumExp => log_sum_exp::<T, f64>(folding),
        OpKind::ReduceMean => {
            let count = i128::try_from(folding.count).unwrap_or(i128::MAX);
            folded::<T, i128>(folding, Sum, move |sum| sum.checked_div(count).unwrap_or(0))
        }
        OpKind::ReduceProd => folded::<T, T>(folding, Product, |x| x),
        OpKind::ReduceSum => folded::<T, T>(folding, Sum, |sum| sum),
        OpKind::ReduceSumSquare => folded::<T, T>(folding, SumOfSquares, |sum| sum),
        _ => return extremes::<T>(site, folding, least, most),
    })
}

fn extremes<T: Load<T> + Number>(site: &Site<'_>, folding: Folding, least: T, most: T) -> Result<Prepared> {
    match site.kind() {
        OpKind::ReduceMax => Ok(folded::<T, T>(folding, Greatest(least), |x| x)),
        OpKind::ReduceMin => Ok(folded::<T, T>(folding, Least(most), |x| x)),
        _ => Err(site.no_kernel()),
    }
}

/// Reduces booleans: "any" for ReduceMax, "all" for ReduceMin.
fn bools(site: &Site<'_>, folding: Folding) -> Result<Prepared> {
    let is_max = match site.kind() {
        OpKind::ReduceMax => true,
        OpKind::ReduceMin => false,
        _ => return Err(site.no_kernel()),
    };
    Ok(Prepared::new(move |io| {
        let (from, to) = (io.bytes(0)?, io.out_bytes(0)?);
        if is_max {
            folding.fold(Greatest(0u8), from, None, to, &|x, _| x);
        } else {
            folding.fold(Least(1u8), from, None, to, &|x, _| x);
        }
        Ok(())
    }))
}

/// A kernel that folds, and stores the results after `finish`.
fn folded<T: Load<A>, A: Number>(
    folding: Folding,
    fold: impl Fold<A> + 'static,
    finish: impl Fn(A) -> A + Send + Sync + 'static,
) -> Prepared {
    Prepared::new(move |io| {
        folding.fold(fold, io.slice::<T>(0)?, None, io.out::<T>(0)?, &|x, _| stored(finish(x)));
        Ok(())
    })
}

/// A number as an element.
pub(super) fn stored<T: Load<A>, A>(x: A) -> T {
    let mut element = [T::zeroed()];
    T::store(&[x], &mut element);
    element[0]
}

/// `ln Σ exp x`, computed as `m + ln Σ exp(x - m)` with the greatest of them, `m`, if it is finite.
fn log_sum_exp<T: Load<A>, A: Wide + Number>(folding: Folding) -> Prepared {
    let bytes = folding.results * size_of::<A>();
    Prepared::new(move |io| {
        let from = io.slice::<T>(0)?;
        let to = io.out::<T>(0)?;
        let shifts = &mut io.scratch::<A>()[..folding.results];
        folding.fold(greatest(), from, None, shifts, &|m: A, _| if m.is_finite() { m } else { A::zero() });
        folding.fold(SumOfExps, from, Some(shifts), to, &|sum: A, shift| stored(sum.ln() + shift));
        Ok(())
    })
    .scratch(bytes)
}
