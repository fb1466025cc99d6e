//! Steps of the optimizers of ai.ampc: Adam, AdamW and SGD.
//!
//! Values that depend on scalars alone are computed in f64 and rounded to f32 once, elements in f32.

use super::scalar;
use crate::cpu::kernels::lanes::{BLOCK, Real, Wide};
use crate::cpu::kernels::parallel::{PIECE, pairs_of_pieces, pieces, triples_of_pieces};
use crate::cpu::kernels::vector::widest;
use crate::kernel::{Io, KernelError, Prepare, Prepared, Result, Site};
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use ampc_ir::views::optimizer::{AdamView, AdamWMode, Momentum, OnOverflow, SgdView};
use half::{bf16, f16};

/// The kernels of optimizers.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Adam | OpKind::AdamW => adam,
        OpKind::SGD => sgd,
        _ => return None,
    })
}

fn adam(site: &Site<'_>) -> Result<Prepared> {
    let view = AdamView::read(&site.view)?;
    let (n, bytes) = sizes(site, 3)?;
    Ok(for_grad!(site.dtype(1)?, site, T => Prepared::new(move |io| adam_step::<T>(io, &view, n)))
        .scratch(bytes)
        .in_place(&[0])
        .others_in_place(&[(1, 2), (2, 3)]))
}

/// The number of elements of a weight, and the bytes of its unused first `states` results, which are
/// computed all the same.
fn sizes(site: &Site<'_>, states: usize) -> Result<(usize, usize)> {
    let n: usize = site.dims(0)?.iter().product();
    let absent = (0..states).filter(|&j| !site.wants(j)).count();
    Ok((n, n.saturating_mul(size_of::<f32>()).saturating_mul(absent)))
}

/// The first `N` results, or scratch memory in place of results that are not requested, with the current values
/// of the states of `operands`; results computed in place have these values already.
fn states<'a, const N: usize>(io: &mut Io<'a>, n: usize, operands: [usize; N]) -> Result<[&'a mut [f32]; N]> {
    let mut room = io.scratch::<f32>().chunks_exact_mut(n.max(1));
    let mut found = [(); N].map(|()| Default::default());
    for (j, (result, operand)) in found.iter_mut().zip(operands).enumerate() {
        *result = if io.wants(j) { io.out(j)? } else { room.next().unwrap_or_default() };
        if io.is_in_place(j) {
            sized(operand, result, n)?;
        } else {
            result.copy_from_slice(sized(operand, io.slice(operand)?, n)?);
        }
    }
    Ok(found)
}

fn adam_step<T: Real<Wide = f32>>(io: &mut Io<'_>, view: &AdamView, n: usize) -> Result<()> {
    let g = sized(1, io.slice::<T>(1)?, n)?;
    let (rate, mult) = (scalar::<f32>(io, 4)?, scalar::<f32>(io, 5)?);
    let (count, found_inf) = (scalar::<i64>(io, 6)?, scalar::<f32>(io, 7)?);
    let [w, m, v] = states(io, n, [0, 2, 3])?;
    if found_inf == 0.0 {
        let step = AdamStep::new(view, f64::from(rate), count.wrapping_add(1).max(1));
        triples_of_pieces((w, m, v), PIECE, &|i, w, m, v| {
            step.piece(&g[i * PIECE..][..w.len()], mult, w, m, v);
        });
    }
    low_copy(io, 3, view.w_lo, w)
}

/// Calls `each` with the index and the unscaled value of every element of a gradient.
fn gradients<T: Real<Wide = f32>>(g: &[T], mult: f32, mut each: impl FnMut(usize, f32)) {
    let mut wide = [0f32; BLOCK];
    for start in (0..g.len()).step_by(BLOCK) {
        let here = start..g.len().min(start + BLOCK);
        let wide = &mut wide[..here.len()];
        T::widen(&g[here.clone()], wide);
        for (i, &g) in here.zip(&*wide) {
            each(i, g * mult);
        }
    }
}

fn sized<T>(i: usize, found: &[T], n: usize) -> Result<&[T]> {
    if found.len() == n {
        return Ok(found);
    }
    Err(OpError::operand(i, format!("{n} elements"), found.len().to_string()).into())
}

/// Result `j`, the weights rounded, if the node makes it and it is requested.
fn low_copy(io: &mut Io<'_>, j: usize, dtype: Option<DType>, w: &[f32]) -> Result<()> {
    match dtype.filter(|_| io.wants(j)) {
        None => {}
        Some(DType::F16) => low(w, io.out::<f16>(j)?),
        Some(DType::BF16) => low(w, io.out::<bf16>(j)?),
        Some(other) => return Err(KernelError::unsupported(format!("a low copy of {other}"))),
    }
    Ok(())
}

fn low<T: Real<Wide = f32>>(from: &[f32], to: &mut [T]) {
    pieces(to, PIECE, |at, to| T::narrow(&from[at..at + to.len()], to));
}

/// One step of Adam or AdamW, with the factors derived from its scalars.
struct AdamStep {
    /// `None` for Adam.
    mode: Option<AdamWMode>,
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
    /// 1 − lr · λ, of `torch`.
    kept: f32,
    /// lr · λ, or λ for Adam.
    decay: f32,
}

impl AdamStep {
    /// Step `t`, 1 for the first.
    fn new(view: &AdamView, rate: f64, t: i64) -> AdamStep {
        let t = t as f64;
        let correction = |beta: f64| if view.bias_correction { 1.0 - beta.powf(t) } else { 1.0 };
        let (correction1, root) = (correction(view.beta1), correction(view.beta2).sqrt());
        let size = match view.mode {
            None | Some(AdamWMode::Torch) => rate / correction1,
            Some(AdamWMode::Hf) => rate * root / correction1,
        };
        let decay = match view.mode {
            None => view.weight_decay,
            Some(AdamWMode::Torch | AdamWMode::Hf) => rate * view.weight_decay,
        };
        AdamStep {
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

    /// Moves elements of a weight and its moments on.
    fn piece<T: Real<Wide = f32>>(&self, g: &[T], mult: f32, w: &mut [f32], m: &mut [f32], v: &mut [f32]) {
        match self.mode {
            None => each_of(g, mult, w, m, v, |w, g, m, v| {
                let g = g + w * self.decay;
                let m = m + (g - m) * self.new1;
                let v = self.second(g, v);
                (w - m * self.size / (v.sqrt() / self.root + self.epsilon), m, v)
            }),
            Some(AdamWMode::Torch) => each_of(g, mult, w, m, v, |w, g, m, v| {
                let m = m + (g - m) * self.new1;
                let v = self.second(g, v);
                (w * self.kept - m * self.size / (v.sqrt() / self.root + self.epsilon), m, v)
            }),
            Some(AdamWMode::Hf) => each_of(g, mult, w, m, v, |w, g, m, v| {
                let m = m * self.old1 + g * self.new1;
                let v = self.second(g, v);
                let w = w - m * self.size / (v.sqrt() + self.epsilon);
                (w - w * self.decay, m, v)
            }),
        }
    }

    /// The next second moment.
    #[inline(always)]
    fn second(&self, g: f32, v: f32) -> f32 {
        v * self.old2 + g * self.new2 * g
    }
}

/// Replaces the elements of a weight and its moments by the results of `next` for them and the unscaled
/// gradient.
#[inline(always)]
fn each_of<T: Real<Wide = f32>>(
    g: &[T],
    mult: f32,
    w: &mut [f32],
    m: &mut [f32],
    v: &mut [f32],
    next: impl Fn(f32, f32, f32, f32) -> (f32, f32, f32),
) {
    let mut wide = [0f32; BLOCK];
    let blocks = w.chunks_mut(BLOCK).zip(m.chunks_mut(BLOCK)).zip(v.chunks_mut(BLOCK)).zip(g.chunks(BLOCK));
    for (((w, m), v), g) in blocks {
        let wide = &mut wide[..g.len()];
        T::widen(g, wide);
        widest(|| {
            for (((w, m), v), &g) in w.iter_mut().zip(m).zip(v).zip(&*wide) {
                (*w, *m, *v) = next(*w, g * mult, *m, *v);
            }
        });
    }
}

fn sgd(site: &Site<'_>) -> Result<Prepared> {
    let view = SgdView::read(&site.view)?;
    let (n, bytes) = sizes(site, if view.direction == Momentum::Plain { 1 } else { 2 })?;
    Ok(for_grad!(site.dtype(1)?, site, T => Prepared::new(move |io| sgd_step::<T>(io, &view, n)))
        .scratch(bytes)
        .in_place(&[0])
        .others_in_place(&[(1, 6)]))
}

fn sgd_step<T: Real<Wide = f32>>(io: &mut Io<'_>, view: &SgdView, n: usize) -> Result<()> {
    let g = sized(1, io.slice::<T>(1)?, n)?;
    let (rate, mult) = (scalar::<f32>(io, 2)?, scalar::<f32>(io, 3)?);
    let (count, found_inf) = (scalar::<i64>(io, 4)?, scalar::<f32>(io, 5)?);
    let proceeds = found_inf == 0.0;
    let step = SgdStep {
        direction: view.direction,
        is_first: count < 1,
        has_gradient: proceeds,
        rate,
        decay: f32::of(view.weight_decay),
        momentum: f32::of(view.momentum),
        new: f32::of(1.0 - view.dampening),
    };
    let skips = !proceeds && view.on_overflow == OnOverflow::Skip;
    let w: &[f32] = if view.direction == Momentum::Plain {
        let [w] = states(io, n, [0])?;
        if !skips {
            pieces(w, PIECE, |at, w| {
                let here = at..at + w.len();
                gradients(&g[here], mult, |i, g| w[i] = step.element(w[i], g, 0.0).0);
            });
        }
        w
    } else {
        let [w, v] = states(io, n, [0, 6])?;
        if !skips {
            pairs_of_pieces((w, PIECE), (v, PIECE), |i, w, v| {
                let here = i * PIECE..i * PIECE + w.len();
                gradients(&g[here], mult, |i, g| (w[i], v[i]) = step.element(w[i], g, v[i]));
            });
        }
        w
    };
    low_copy(io, 2, view.w_lo, w)
}

/// One step of SGD, with the factors derived from its scalars.
struct SgdStep {
    direction: Momentum,
    /// True if there is no momentum yet.
    is_first: bool,
    /// True if the gradient counts; otherwise it is taken as zeros.
    has_gradient: bool,
    rate: f32,
    decay: f32,
    momentum: f32,
    /// 1 − the dampening.
    new: f32,
}

impl SgdStep {
    /// The next weight and momentum of one element.
    #[inline]
    fn element(&self, w: f32, g: f32, v: f32) -> (f32, f32) {
        let g = if self.has_gradient { g } else { 0.0 };
        let g = g + w * self.decay;
        let v = if self.is_first { g } else { v * self.momentum + g * self.new };
        let update = match self.direction {
            Momentum::Plain => g,
            Momentum::Momentum => v,
            Momentum::Nesterov => g + v * self.momentum,
        };
        (w - update * self.rate, v)
    }
}
