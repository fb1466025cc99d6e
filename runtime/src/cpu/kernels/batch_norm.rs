//! BatchNormalization.
//!
//! `(x - mean) / √(var + epsilon) · scale + bias` per channel. In training, mean and variance are computed from
//! the batch (divided by the number of elements), with all their digits as in `normalize.rs`, and the running
//! statistics become `running · momentum + batch · (1 - momentum)`.

use super::fold::{
    Folding, Load, Number, Sum, SumOfDistances, SumOfSquares, read_floats, transform, write_floats,
};
use super::lanes::{Real, Wide, for_real};
use super::normalize::variance;
use super::parallel::{PIECE, pieces};
use super::reduce::count_of;
use super::softmax::first;
use crate::kernel::{Io, Prepare, Prepared, Result, Site};
use ampc_ir::op::OpKind;
use ampc_ir::views::norm::BatchNormView;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    match kind {
        OpKind::BatchNormalization => Some(batch_norm),
        _ => None,
    }
}

struct BatchNorm {
    view: BatchNormView,
    channels: usize,
    /// Neighbouring elements of one channel.
    run: usize,
    folding: Folding,
}

fn batch_norm(site: &Site<'_>) -> Result<Prepared> {
    let dims = site.dims(0)?;
    let view = BatchNormView::read(&site.view);
    let behind = |axis: usize| dims.get(axis..).unwrap_or_default().iter().product();
    // A vector is a batch with one channel; without `spatial` every element behind the batch is one.
    let (channels, run) = match (view.spatial, dims.get(1)) {
        (true, Some(&channels)) => (channels, behind(2)),
        (true, None) => (1, 1),
        (false, _) => (behind(1), 1),
    };
    let batch = dims.first().copied().unwrap_or(1);
    let folding = Folding::new(&[batch, channels, run], |axis| axis != 1);
    let norm = BatchNorm { view, channels, run, folding };
    Ok(for_real!(site.dtype(0)?, site, T => norm.prepare::<T, <T as Real>::Wide>()))
}

impl BatchNorm {
    fn prepare<T: Load<A>, A: Wide + Number>(self) -> Prepared {
        let bytes = 7 * self.channels * size_of::<A>();
        Prepared::new(move |io| {
            let mut room = io.scratch::<A>().chunks_exact_mut(self.channels.max(1));
            let mut next = || room.next().unwrap_or_default();
            let (factor, bias, mean, var) = (next(), next(), next(), next());
            for (i, to) in [&mut *factor, &mut *bias, &mut *mean, &mut *var].into_iter().enumerate() {
                read_floats(io.tensor(i + 1)?, to)?;
            }
            let from = first::<T>(io)?;
            let to = io.out::<T>(0)?;
            let rest = next();
            if self.view.training {
                self.train(io, from.unwrap_or(to), (mean, var), (next(), next()), rest)?;
            }
            let epsilon = A::of(f64::from(self.view.epsilon));
            factor.iter_mut().zip(&*var).for_each(|(f, &var)| *f = *f / (var + epsilon).sqrt());
            if self.view.training {
                bias.iter_mut().zip(&*factor).zip(&*rest).for_each(|((b, &f), &rest)| *b = *b - rest * f);
            }
            self.apply(from, to, mean, factor, bias);
            Ok(())
        })
        .in_place(&[0])
        .scratch(bytes)
    }

    /// Puts mean and variance of the batch in the place of the running ones, and writes both; `rest` becomes what the
    /// mean is greater than the number that stands for it.
    fn train<T: Load<A>, A: Wide + Number>(
        &self,
        io: &mut Io<'_>,
        from: &[T],
        running: (&mut [A], &mut [A]),
        batch: (&mut [A], &mut [A]),
        rest: &mut [A],
    ) -> Result<()> {
        let count = count_of::<A>(&self.folding);
        self.folding.fold(Sum, from, None, batch.0, &|sum, _| sum / count);
        self.folding.fold(SumOfDistances, from, Some(batch.0), rest, &|sum, _| sum / count);
        self.folding.fold(SumOfSquares, from, Some(batch.0), batch.1, &|sum, _| sum / count);
        batch.1.iter_mut().zip(&*rest).for_each(|(var, &rest)| *var = variance(*var, rest));
        let momentum = A::of(f64::from(self.view.momentum));
        for (j, (running, batch)) in [(running.0, batch.0), (running.1, batch.1)].into_iter().enumerate() {
            let mixed = running.iter().zip(&*batch);
            write_floats(io, 1 + j, mixed.map(|(&r, &b)| r * momentum + b * (A::one() - momentum)))?;
            write_floats(io, 3 + j, batch.iter().copied())?;
            running.copy_from_slice(batch);
        }
        Ok(())
    }

    fn apply<T: Load<A>, A: Wide + Number>(
        &self,
        from: Option<&[T]>,
        to: &mut [T],
        mean: &[A],
        factor: &[A],
        bias: &[A],
    ) {
        // Where elements of one channel are neighbours, they are walked together; else all channels are.
        let length = if self.run == 1 { self.channels } else { self.run };
        pieces(to, (PIECE / length.max(1)).max(1) * length.max(1), |start, to| {
            for (i, to) in to.chunks_mut(length).enumerate() {
                let at = start + i * length;
                let from = from.map(|from| &from[at..at + length]);
                if self.run == 1 {
                    transform(from, to, |at, block| {
                        let here = at..at + block.len();
                        let rest = mean[here.clone()].iter().zip(&factor[here.clone()]).zip(&bias[here]);
                        for (x, ((&mean, &factor), &bias)) in block.iter_mut().zip(rest) {
                            *x = (*x - mean) * factor + bias;
                        }
                    });
                } else {
                    let channel = at / length % self.channels;
                    let (mean, factor, bias) = (mean[channel], factor[channel], bias[channel]);
                    transform(from, to, |_, block| {
                        block.iter_mut().for_each(|x: &mut A| *x = (*x - mean) * factor + bias);
                    });
                }
            }
        });
    }
}
