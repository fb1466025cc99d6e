//! Losses: NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss.
//!
//! The loss of a position is `-w[t] · score[t]` with its class `t`, or 0 where `t` is `ignore_index`; their mean is
//! divided by the weights of the positions that count.

use super::fold::{Load, Number, Sum, fold_run, read_floats, spread, transform};
use super::lanes::{Real, Wide, for_real};
use super::reduce::stored;
use super::softmax::Statistics;
use crate::host::Element;
use crate::kernel::{Io, KernelError, Prepare, Prepared, Result, Site};
use ampc_ir::DType;
use ampc_ir::op::OpKind;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    match kind {
        OpKind::NegativeLogLikelihoodLoss | OpKind::SoftmaxCrossEntropyLoss => Some(loss),
        _ => None,
    }
}

/// Reduction of the losses of all positions.
#[derive(Clone, Copy)]
enum Reduction {
    None,
    Sum,
    Mean,
}

struct Loss {
    /// Scores of each position are along the second of three axes.
    dims: [usize; 3],
    positions: usize,
    reduction: Reduction,
    ignored: Option<i64>,
    /// The statistics that turn scores into logarithms of probabilities, if the input has scores.
    softmax: Option<Statistics>,
    long_classes: bool,
}

fn loss(site: &Site<'_>) -> Result<Prepared> {
    let dims = site.dims(0)?;
    let dims = [dims[0], dims[1], dims[2..].iter().product()];
    let is_softmax = site.kind() == OpKind::SoftmaxCrossEntropyLoss;
    let loss = Loss {
        dims,
        positions: dims[0] * dims[2],
        reduction: match site.view.string("reduction") {
            Some("none") => Reduction::None,
            Some("sum") => Reduction::Sum,
            _ => Reduction::Mean,
        },
        ignored: site.view.int("ignore_index"),
        softmax: is_softmax.then(|| Statistics::new(dims)),
        long_classes: site.dtype(1)? == DType::I64,
    };
    Ok(for_real!(site.dtype(0)?, site, T => loss.prepare::<T, <T as Real>::Wide>()))
}

impl Loss {
    fn prepare<T: Load<A>, A: Wide + Number>(self) -> Prepared {
        let statistics = self.softmax.as_ref().map_or(0, Statistics::bytes::<A>);
        let own = 2 * self.positions + self.dims[1];
        Prepared::new(move |io| {
            let scores = io.slice::<T>(0)?;
            let (room, rest) = io.scratch::<A>().split_at_mut(own);
            let (losses, room) = room.split_at_mut(self.positions);
            let (counts, weights) = room.split_at_mut(self.positions);
            if io.has(2) {
                read_floats(io.tensor(2)?, weights)?;
            } else {
                weights.fill(A::one());
            }
            let stats = self.softmax.as_ref().map(|softmax| softmax.compute(scores, rest, true));
            let score = |at: usize, position: usize| {
                let mut score = [A::zero()];
                T::load(&scores[at..=at], &mut score);
                stats.map_or(score[0], |[max, log_sum]| score[0] - max[position] - log_sum[position])
            };
            if self.long_classes {
                self.each(io.slice::<i64>(1)?, weights, score, losses, counts)?;
            } else {
                self.each(io.slice::<i32>(1)?, weights, score, losses, counts)?;
            }
            self.reduce::<T, A>(io, losses, counts)?;
            if let (Some(softmax), Some(stats), true) = (&self.softmax, stats, io.wants(1)) {
                let log_probability = |x, [max, log_sum]: [A; 2]| x - max - log_sum;
                spread(&softmax.walk, Some(scores), stats, io.out(1)?, log_probability);
            }
            Ok(())
        })
        .scratch(own * size_of::<A>() + statistics)
    }

    /// The losses of all positions, and how much each counts.
    fn each<I: Element + Into<i64>, A: Wide>(
        &self,
        classes: &[I],
        weights: &[A],
        score: impl Fn(usize, usize) -> A,
        losses: &mut [A],
        counts: &mut [A],
    ) -> Result<()> {
        let [_, n, run] = self.dims;
        for (i, &class) in classes.iter().enumerate() {
            let class: i64 = class.into();
            let index = usize::try_from(class).ok().filter(|&c| c < n);
            (losses[i], counts[i]) = match index {
                _ if self.ignored == Some(class) => (A::zero(), A::zero()),
                Some(c) => (-weights[c] * score((i / run * n + c) * run + i % run, i), weights[c]),
                None => return Err(KernelError::value(format!("a class in [0, {n})"), class)),
            };
        }
        Ok(())
    }

    fn reduce<T: Load<A>, A: Wide + Number>(
        &self,
        io: &mut Io<'_>,
        losses: &[A],
        counts: &[A],
    ) -> Result<()> {
        let to = io.out::<T>(0)?;
        if let Reduction::None = self.reduction {
            transform(Some(losses), to, |_, _: &mut [A]| ());
            return Ok(());
        }
        let add = |numbers: &[A]| fold_run(Sum, numbers, A::zero());
        let sum = add(losses);
        let loss = if let Reduction::Mean = self.reduction { sum / add(counts) } else { sum };
        to.fill(stored(loss));
        Ok(())
    }
}
