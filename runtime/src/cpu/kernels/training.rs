//! Operators of ai.ampc that train: the check of gradients, the factor by which they are clipped, the loss scale,
//! dropout, and in `steps` the steps of Adam, AdamW and SGD.
//!
//! Each kernel computes like its body (`ir/src/bodies/`), in the order of the body, so that the two agree bit
//! for bit: values that depend on scalars alone in f64, elements in f32.

use super::fold::{Fold, Load, fold_run, halved};
use super::lanes::{BLOCK, Real, Wide};
use super::parallel::{PIECE, pieces};
use super::vector::widest;
use crate::host::Element;
use crate::kernel::{Io, Prepare, Prepared, Result, Site};
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::random::{philox4x32, unit_interval, words};
use ampc_ir::views::OpError;
use ampc_ir::views::broadcast::PhiloxDropoutView;
use ampc_ir::views::loss_scale::{Arith, ClipCoefView, UpdateLossScaleView};
use bytemuck::Pod;
use half::{bf16, f16};
use std::ops::Range;

/// Calls a generic function or expression with `T` bound to the Rust type of an element type that gradients have.
macro_rules! for_grad {
    ($dtype:expr, $site:expr, $T:ident => $work:expr) => {
        match $dtype {
            DType::F32 => {
                type $T = f32;
                $work
            }
            DType::F16 => {
                type $T = f16;
                $work
            }
            DType::BF16 => {
                type $T = bf16;
                $work
            }
            _ => return Err($site.no_kernel()),
        }
    };
}

mod steps;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::ClipCoef => clip_coef,
        OpKind::GradCheck => grad_check,
        OpKind::PhiloxDropout => philox_dropout,
        OpKind::UpdateLossScale => update_loss_scale,
        kind => return steps::find(kind),
    })
}

/// The result of GradCheck for one gradient, given the factor that unscales it: true if an element is not finite, and the
/// sum of squares.
type Check = fn(&Io<'_>, usize, f32) -> Result<(bool, f32)>;

fn grad_check(site: &Site<'_>) -> Result<Prepared> {
    let mut checks: Vec<Check> = site.room.list(site.view.n_operands().saturating_sub(1))?;
    for i in 1..site.view.n_operands() {
        checks.push(
            for_grad!(site.dtype(i)?, site, T => if site.wants(1) { sum_of_squares::<T> } else { has_non_finite::<T> }),
        );
    }
    Ok(Prepared::new(move |io| {
        let factor = scalar::<f32>(io, 0)?;
        let (mut found, mut total) = (false, None);
        for (i, check) in checks.iter().enumerate() {
            let (here, sum) = check(io, i + 1, factor)?;
            found |= here;
            total = Some(total.map_or(sum, |total| total + sum));
        }
        write(io, 0, if found { 1f32 } else { 0.0 })?;
        write(io, 1, total.unwrap_or(0.0))
    }))
}

/// Σ (x · factor)²
#[derive(Clone, Copy)]
struct SumOfUnscaledSquares;

impl Fold<f32> for SumOfUnscaledSquares {
    fn start(self) -> f32 {
        0.0
    }
    #[inline]
    fn term(self, x: f32, factor: f32) -> f32 {
        let unscaled = x * factor;
        unscaled * unscaled
    }
    #[inline]
    fn join(self, a: f32, b: f32) -> f32 {
        a + b
    }
}

/// How many x · factor are not finite, as far as f32 counts.
#[derive(Clone, Copy)]
struct CountOfWrong;

impl Fold<f32> for CountOfWrong {
    fn start(self) -> f32 {
        0.0
    }
    #[inline]
    fn term(self, x: f32, factor: f32) -> f32 {
        if (x * factor).is_finite() { 0.0 } else { 1.0 }
    }
    #[inline]
    fn join(self, a: f32, b: f32) -> f32 {
        a + b
    }
}

/// True if an element is not finite when it is unscaled, and the sum of squares.
fn sum_of_squares<T: Load<f32>>(io: &Io<'_>, operand: usize, factor: f32) -> Result<(bool, f32)> {
    let g = io.slice::<T>(operand)?;
    let sum = fold_run(SumOfUnscaledSquares, g, factor);
    // The square of what is not finite is not, nor is a sum with it; but a sum of finite numbers may overflow.
    let found = !sum.is_finite() && fold_run(CountOfWrong, g, factor) > 0.0;
    Ok((found, sum))
}

/// True if the largest magnitude, unscaled, is not finite; no sum.
fn has_non_finite<T: Real<Wide = f32>>(io: &Io<'_>, operand: usize, factor: f32) -> Result<(bool, f32)> {
    let g = io.slice::<T>(operand)?;
    Ok((!g.is_empty() && !(largest(g).wide() * factor).is_finite(), 0.0))
}

/// The largest magnitude. As integers without the sign, floats have the order of their magnitudes, and NaNs come last.
fn largest<T: Real<Wide = f32>>(g: &[T]) -> T {
    if size_of::<T>() == size_of::<u16>() {
        bytemuck::cast(largest_bits(bytemuck::cast_slice(g), |bits: u16| bits & 0x7fff))
    } else {
        bytemuck::cast(largest_bits(bytemuck::cast_slice(g), |bits: u32| bits & 0x7fff_ffff))
    }
}

/// The largest result of `f`, or 0.
fn largest_bits<B: Pod + Ord + Send + Sync>(all: &[B], f: impl Fn(B) -> B + Sync) -> B {
    let of =
        |range: Range<usize>| widest(|| all[range].iter().fold(B::zeroed(), |most, &bits| most.max(f(bits))));
    halved(0..all.len(), (PIECE, 1), &of, &B::max)
}

/// The one element of operand `i`.
fn scalar<T: Element>(io: &Io<'_>, i: usize) -> Result<T> {
    let found = io.slice::<T>(i)?;
    match found {
        &[number] => Ok(number),
        _ => Err(OpError::operand(i, "one element", found.len().to_string()).into()),
    }
}

fn clip_coef(site: &Site<'_>) -> Result<Prepared> {
    let view = ClipCoefView::read(&site.view)?;
    Ok(Prepared::new(move |io| {
        let (sumsq, inv_scale) = (scalar::<f32>(io, 0)?, scalar::<f32>(io, 1)?);
        let norm = f64::from(sumsq).sqrt();
        let ratio = view.max_norm / (norm + view.epsilon);
        let coefficient = if ratio >= 1.0 { 1.0 } else { ratio };
        write(io, 0, f32::of(f64::from(inv_scale) * coefficient))?;
        write(io, 1, f32::of(norm))
    }))
}

fn update_loss_scale(site: &Site<'_>) -> Result<Prepared> {
    let view = UpdateLossScaleView::read(&site.view)?;
    let counts_bad = site.has(3);
    Ok(Prepared::new(move |io| {
        let (scale, found_inf) = (scalar::<f32>(io, 0)?, scalar::<f32>(io, 2)?);
        let good = scalar::<i32>(io, 1)?;
        let bad = if counts_bad { scalar::<i32>(io, 3)? } else { 0 };
        // A count that is not enough is below an i32, and so it does not overflow.
        let is_enough = |count: i32, needed: i64| i64::from(count) + 1 >= needed;
        let (next, good, bad) = if found_inf == 0.0 {
            let grows = is_enough(good, view.interval);
            (if grows { grown(&view, scale) } else { scale }, if grows { 0 } else { good + 1 }, 0)
        } else {
            let backs = is_enough(bad, view.backoff_every);
            let good = if view.reset_good { 0 } else { good };
            (if backs { backed(&view, scale) } else { scale }, good, if backs { 0 } else { bad + 1 })
        };
        write(io, 0, next)?;
        write(io, 1, good)?;
        write(io, 2, bad)
    }))
}

/// The scale times the factor of growth, as far as it may grow.
fn grown(view: &UpdateLossScaleView, scale: f32) -> f32 {
    let up = product(view, scale, view.growth);
    match view.max.map(f32::of) {
        Some(most) if up > most => most,
        None if !up.is_finite() => scale,
        Some(_) | None => up,
    }
}

/// The scale after an overflow.
fn backed(view: &UpdateLossScaleView, scale: f32) -> f32 {
    let down = product(view, scale, view.backoff);
    match view.min.map(f32::of) {
        Some(least) if down < least => least,
        Some(_) | None => down,
    }
}

fn product(view: &UpdateLossScaleView, scale: f32, factor: f64) -> f32 {
    match view.arith {
        Arith::F32Product => scale * f32::of(factor),
        Arith::F64Product => f32::of(f64::from(scale) * factor),
    }
}

/// The single element of result `j`, if the result is requested.
fn write<T: Element>(io: &mut Io<'_>, j: usize, number: T) -> Result<()> {
    if io.wants(j) {
        io.out(j)?.fill(number);
    }
    Ok(())
}

/// PhiloxDropout: each of four words of a counter decides about an element.
fn philox_dropout(site: &Site<'_>) -> Result<Prepared> {
    let stream = PhiloxDropoutView::read(&site.view)?.stream;
    Ok(for_grad!(site.dtype(0)?, site, T => Prepared::new(move |io| drop_elements::<T>(io, stream))))
}

fn drop_elements<T: Real<Wide = f32>>(io: &mut Io<'_>, stream: u32) -> Result<()> {
    let (from, to) = (io.slice::<T>(0)?, io.out::<T>(0)?);
    let (seed, offset) = (scalar::<u64>(io, 1)?, scalar::<u64>(io, 2)?);
    let ratio = scalar::<f32>(io, 3)?;
    if ratio == 0.0 {
        to.copy_from_slice(from);
        return Ok(());
    }
    let (key, share) = (words(seed), 1.0 - ratio);
    let [low, high] = words(offset);
    // A block begins with the first of four elements.
    const { assert!(PIECE.is_multiple_of(BLOCK) && BLOCK.is_multiple_of(4)) };
    pieces(to, PIECE, |at, to| {
        let mut wide = [0f32; BLOCK];
        for (i, to) in to.chunks_mut(BLOCK).enumerate() {
            let start = at + i * BLOCK;
            let wide = &mut wide[..to.len()];
            T::widen(&from[start..start + to.len()], wide);
            for (j, four) in wide.chunks_mut(4).enumerate() {
                let [counter, _] = words((start / 4 + j) as u64);
                let four_words = philox4x32([counter, stream, low, high], key);
                for (x, word) in four.iter_mut().zip(four_words) {
                    *x = if unit_interval(word) >= ratio { *x / share } else { 0.0 };
                }
            }
            T::narrow(wide, to);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every 16-bit float, and as many f32, alone among zeros, with factors by which finite numbers overflow too.
    #[test]
    fn the_largest_magnitude_shows_what_is_not_finite() {
        fn check<T: Real<Wide = f32>>(of_bits: impl Fn(u16) -> T, factors: &[f32]) {
            for bits in 0..=u16::MAX {
                let x = of_bits(bits);
                let mut g = [of_bits(0); 5];
                g[usize::from(bits) % 5] = x;
                for &factor in factors {
                    let wrong = g.iter().any(|g| !(g.wide() * factor).is_finite());
                    assert_eq!(!(largest(&g).wide() * factor).is_finite(), wrong, "{bits:#x} {factor}");
                }
            }
        }
        let factors = [1.0, -1e38, 6e33, 1e-10, f32::INFINITY, f32::NAN];
        check(f16::from_bits, &factors);
        check(bf16::from_bits, &factors);
        check(|bits| f32::from_bits(u32::from(bits) << 16 | 0x8001), &factors);
    }
}
