//! Operators of ai.ampc that train: GradCheck and AdamW.
//!
//! Each computes what its body says (`ir/src/bodies/`), in the order in which the body says it, so that the two agree
//! bit for bit: what depends on scalars alone in f64, elements in f32.

use super::fold::{Fold, Load, fold_run};
use super::lanes::{BLOCK, PIECE, Real, Wide, pieces};
use crate::cpu::kernel::{Io, KernelError, Prepare, Prepared, Result, Site};
use crate::host::Element;
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use ampc_ir::views::optimizer::{AdamWMode, AdamWView};
use half::{bf16, f16};
use rayon::prelude::*;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::AdamW => adam_w,
        OpKind::GradCheck => grad_check,
        _ => return None,
    })
}

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

/// What GradCheck finds in one gradient, given the factor that unscales it: whether an element is not finite, and the
/// sum of squares.
type Check = fn(&Io<'_>, usize, f32) -> Result<(bool, f32)>;

fn grad_check(site: &Site<'_>) -> Result<Prepared> {
    let mut checks: Vec<Check> = site.room.list(site.view.n_operands().saturating_sub(1))?;
    for i in 1..site.view.n_operands() {
        checks.push(for_grad!(site.dtype(i)?, site, T => check::<T>));
    }
    Ok(Prepared::new(move |io| {
        let factor = scalar::<f32>(io, 0)?;
        let (mut found, mut total) = (false, None);
        for (i, check) in checks.iter().enumerate() {
            let (here, sum) = check(io, i + 1, factor)?;
            found |= here;
            total = Some(total.map_or(sum, |total| total + sum));
        }
        if io.wants(0) {
            io.out(0)?.fill(if found { 1f32 } else { 0.0 });
        }
        if io.wants(1) {
            io.out(1)?.fill(total.unwrap_or(0.0));
        }
        Ok(())
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

fn check<T: Load<f32>>(io: &Io<'_>, operand: usize, factor: f32) -> Result<(bool, f32)> {
    let g = io.slice::<T>(operand)?;
    let sum = fold_run(SumOfUnscaledSquares, g, factor);
    // The square of what is not finite is not, nor is a sum with it; but a sum of finite numbers may overflow.
    let found = !sum.is_finite() && fold_run(CountOfWrong, g, factor) > 0.0;
    Ok((found, sum))
}

/// The one element of operand `i`.
fn scalar<T: Element>(io: &Io<'_>, i: usize) -> Result<T> {
    let found = io.slice::<T>(i)?;
    match found {
        &[number] => Ok(number),
        _ => Err(OpError::operand(i, "one element", found.len().to_string()).into()),
    }
}

fn adam_w(site: &Site<'_>) -> Result<Prepared> {
    let view = AdamWView::read(&site.view)?;
    let n: usize = site.dims(0)?.iter().product();
    // What nobody asks for is computed all the same.
    let absent = (0..3).filter(|&j| !site.wants(j)).count();
    let bytes = n.saturating_mul(size_of::<f32>()).saturating_mul(absent);
    Ok(for_grad!(site.dtype(1)?, site, T => Prepared::new(move |io| step::<T>(io, &view, n))).scratch(bytes))
}

fn step<'a, T: Real<Wide = f32>>(io: &mut Io<'a>, view: &AdamWView, n: usize) -> Result<()> {
    let (w, m, v) = (sized(0, io.slice(0)?, n)?, sized(2, io.slice(2)?, n)?, sized(3, io.slice(3)?, n)?);
    let g = sized(1, io.slice::<T>(1)?, n)?;
    let (rate, mult) = (scalar::<f32>(io, 4)?, scalar::<f32>(io, 5)?);
    let (count, found_inf) = (scalar::<i64>(io, 6)?, scalar::<f32>(io, 7)?);
    let mut room = io.scratch::<f32>().chunks_exact_mut(n.max(1));
    let mut result = |io: &mut Io<'a>, j| -> Result<&'a mut [f32]> {
        if io.wants(j) { io.out(j) } else { Ok(room.next().unwrap_or_default()) }
    };
    let (to_w, to_m, to_v) = (result(io, 0)?, result(io, 1)?, result(io, 2)?);
    if found_inf == 0.0 {
        let step = Step::new(view, f64::from(rate), count.wrapping_add(1).max(1));
        let chunks =
            to_w.par_chunks_mut(PIECE).zip(to_m.par_chunks_mut(PIECE)).zip(to_v.par_chunks_mut(PIECE));
        chunks.enumerate().for_each(|(i, ((to_w, to_m), to_v))| {
            let here = i * PIECE..i * PIECE + to_w.len();
            step.piece(
                (&w[here.clone()], &g[here.clone()], &m[here.clone()], &v[here]),
                mult,
                (to_w, to_m, to_v),
            );
        });
    } else {
        to_w.copy_from_slice(w);
        to_m.copy_from_slice(m);
        to_v.copy_from_slice(v);
    }
    match view.w_lo.filter(|_| io.wants(3)) {
        None => {}
        Some(DType::F16) => low(to_w, io.out::<f16>(3)?),
        Some(DType::BF16) => low(to_w, io.out::<bf16>(3)?),
        Some(other) => return Err(KernelError::unsupported(format!("a low copy of {other}"))),
    }
    Ok(())
}

fn sized<T>(i: usize, found: &[T], n: usize) -> Result<&[T]> {
    if found.len() == n {
        return Ok(found);
    }
    Err(OpError::operand(i, format!("{n} elements"), found.len().to_string()).into())
}

fn low<T: Real<Wide = f32>>(from: &[f32], to: &mut [T]) {
    pieces(to, PIECE, |at, to| T::narrow(&from[at..at + to.len()], to));
}

/// One step, with what its scalars give.
struct Step {
    mode: AdamWMode,
    /// 1 − β₁, and β₁.
    new1: f32,
    old1: f32,
    /// 1 − β₂, and β₂.
    new2: f32,
    old2: f32,
    epsilon: f32,
    /// The learning rate, corrected.
    size: f32,
    /// The root of the correction of the second moment.
    root: f32,
    /// 1 − lr · λ, and lr · λ.
    kept: f32,
    decay: f32,
}

impl Step {
    /// Step `t`, 1 for the first.
    fn new(view: &AdamWView, rate: f64, t: i64) -> Step {
        let t = t as f64;
        let correction = |beta: f64| if view.bias_correction { 1.0 - beta.powf(t) } else { 1.0 };
        let (correction1, root) = (correction(view.beta1), correction(view.beta2).sqrt());
        let size = match view.mode {
            AdamWMode::Torch => rate / correction1,
            AdamWMode::Hf => rate * root / correction1,
        };
        let decay = rate * view.weight_decay;
        Step {
            mode: view.mode,
            new1: f32::of(1.0 - view.beta1),
            old1: f32::of(view.beta1),
            new2: f32::of(1.0 - view.beta2),
            old2: f32::of(view.beta2),
            epsilon: f32::of(view.epsilon),
            size: f32::of(size),
            root: f32::of(root),
            kept: f32::of(1.0 - decay),
            decay: f32::of(decay),
        }
    }

    /// Neighbouring elements: of weights, gradient and moments, to the next weights and moments.
    fn piece<T: Real<Wide = f32>>(
        &self,
        (w, g, m, v): (&[f32], &[T], &[f32], &[f32]),
        mult: f32,
        (to_w, to_m, to_v): (&mut [f32], &mut [f32], &mut [f32]),
    ) {
        let mut wide = [0f32; BLOCK];
        for start in (0..w.len()).step_by(BLOCK) {
            let here = start..w.len().min(start + BLOCK);
            let wide = &mut wide[..here.len()];
            T::widen(&g[here.clone()], wide);
            for (i, &g) in here.zip(&*wide) {
                (to_w[i], to_m[i], to_v[i]) = self.element(w[i], g * mult, m[i], v[i]);
            }
        }
    }

    /// The next weight and moments of one element.
    #[inline]
    fn element(&self, w: f32, g: f32, m: f32, v: f32) -> (f32, f32, f32) {
        let m = match self.mode {
            AdamWMode::Torch => m + (g - m) * self.new1,
            AdamWMode::Hf => m * self.old1 + g * self.new1,
        };
        let v = v * self.old2 + g * self.new2 * g;
        let w = match self.mode {
            AdamWMode::Torch => w * self.kept - m * self.size / (v.sqrt() / self.root + self.epsilon),
            AdamWMode::Hf => {
                let w = w - m * self.size / (v.sqrt() + self.epsilon);
                w - w * self.decay
            }
        };
        (w, m, v)
    }
}
