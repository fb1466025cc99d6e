//! Random numbers: RandomNormal, RandomUniform, Bernoulli, Multinomial, Dropout.
//!
//! They depend on the seed and on the index of the element alone, neither on its type nor on threads, and a node makes
//! the same ones each time it runs. Number `i` comes from word `i mod 4` of Philox4x32-10 ([`ampc_ir::random`]) with
//! counter `i div 4`; the key is the attribute `seed` as an f32, or without it a hash of the name of the result (in a function: of the
//! result there, the same for every call).
//!
//! - uniform: u = word · 2^-32, in [0, 1), in f64.
//! - normal: √(−2 ln(1 − u₀)) · (cos 2πu₁, sin 2πu₁) of two neighbouring uniform numbers (Box and Muller, 1958).

use super::lane::{BLOCK, Encoding, Lane, bits_of, block_bytes, encode};
use super::parallel::{PIECE, pieces};
use super::shape::same;
use crate::kernel::{Io, KernelError, Prepare, Prepared, Result, Site};
use crate::random::key;
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::random::philox4x32;
use ampc_ir::views::OpError;
use ampc_ir::views::broadcast::DropoutView;
use std::sync::OnceLock;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Bernoulli => bernoulli,
        OpKind::Dropout => dropout,
        OpKind::Multinomial => multinomial,
        OpKind::RandomNormal | OpKind::RandomNormalLike => random_normal,
        OpKind::RandomUniform | OpKind::RandomUniformLike => random_uniform,
        _ => return None,
    })
}

/// A sequence of random words.
#[derive(Clone, Copy)]
struct Stream {
    key: [u32; 2],
}

impl Stream {
    /// The sequence of a node.
    fn of(site: &Site<'_>) -> Stream {
        Stream { key: key(site) }
    }

    /// Four uniform numbers: those from `4 · counter` on.
    fn four(self, counter: u64) -> [f64; 4] {
        let [a, b, c, d, e, f, g, h] = counter.to_le_bytes();
        let counter = [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]), 0, 0];
        philox4x32(counter, self.key).map(|word| f64::from(word) / 4_294_967_296.0)
    }

    /// The uniform numbers from `start` on, which is a multiple of 4.
    fn uniform(self, start: usize, to: &mut [f64]) {
        for (to, counter) in to.chunks_mut(4).zip(start as u64 / 4..) {
            to.copy_from_slice(&self.four(counter)[..to.len()]);
        }
    }

    /// The normal numbers from `start` on, which is a multiple of 4.
    fn normal(self, start: usize, to: &mut [f64]) {
        for (to, counter) in to.chunks_mut(4).zip(start as u64 / 4..) {
            let [a, b, c, d] = self.four(counter);
            let pair = |u: f64, v: f64| {
                let (size, (sine, cosine)) =
                    ((-2.0 * (-u).ln_1p()).sqrt(), (v * std::f64::consts::TAU).sin_cos());
                [size * cosine, size * sine]
            };
            let [[a, b], [c, d]] = [pair(a, b), pair(c, d)];
            to.copy_from_slice(&[a, b, c, d][..to.len()]);
        }
    }
}

/// Writes blocks of the elements of a result that `make` makes: from which element on, and where to.
fn blocks(
    to: &mut [u8],
    count: usize,
    dtype: DType,
    make: impl Fn(usize, &mut [f64]) -> Result<()> + Send + Sync,
) -> Result<()> {
    let bits = bits_of(dtype)?;
    let failed = OnceLock::new();
    pieces(to, PIECE / 8 * bits, |at, to| {
        let mut block = [0f64; BLOCK];
        let mut start = at * 8 / bits;
        for to in to.chunks_mut(block_bytes(bits)) {
            let block = &mut block[..BLOCK.min(count - start)];
            let made = make(start, block).and_then(|()| encode(block, Encoding::new(dtype), to));
            if let Err(error) = made {
                // Which of several does not matter.
                failed.get_or_init(|| error);
            }
            start += block.len();
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}

fn attr(site: &Site<'_>, name: &str, default: f32) -> f64 {
    f64::from(site.view.float(name).unwrap_or(default))
}

/// A result that `fill` fills with numbers, `scale · number + shift` of each.
fn generated(
    site: &Site<'_>,
    (scale, shift): (f64, f64),
    fill: fn(Stream, usize, &mut [f64]),
) -> Result<Prepared> {
    let (stream, dtype) = (Stream::of(site), site.result_dtype(0)?);
    let count = site.result_dims(0)?.iter().product();
    Ok(Prepared::new(move |io| {
        blocks(io.out_bytes(0)?, count, dtype, |start, to| {
            fill(stream, start, to);
            to.iter_mut().for_each(|x| *x = *x * scale + shift);
            Ok(())
        })
    }))
}

fn random_normal(site: &Site<'_>) -> Result<Prepared> {
    generated(site, (attr(site, "scale", 1.0), attr(site, "mean", 0.0)), Stream::normal)
}

fn random_uniform(site: &Site<'_>) -> Result<Prepared> {
    let (low, high) = (attr(site, "low", 0.0), attr(site, "high", 1.0));
    generated(site, (high - low, low), Stream::uniform)
}

/// 1 where a uniform number is below the probability.
fn bernoulli(site: &Site<'_>) -> Result<Prepared> {
    let (stream, dtype, from) = (Stream::of(site), site.result_dtype(0)?, site.dtype(0)?);
    let count = site.result_dims(0)?.iter().product();
    let bits = bits_of(from)?;
    Ok(Prepared::new(move |io| {
        let probabilities = io.bytes(0)?;
        blocks(io.out_bytes(0)?, count, dtype, |start, to| {
            let mut block = [0f64; BLOCK];
            let probability = &mut block[..to.len()];
            f64::decode(from, &probabilities[start * bits / 8..], probability)?;
            stream.uniform(start, to);
            to.iter_mut().zip(&*probability).for_each(|(u, &p)| *u = f64::from(u8::from(*u < p)));
            Ok(())
        })
    }))
}

/// Samples of classes whose logarithmic probabilities, up to a constant, are the rows of the operand.
fn multinomial(site: &Site<'_>) -> Result<Prepared> {
    let (stream, from, to) = (Stream::of(site), site.dtype(0)?, site.result_dtype(0)?);
    let (dims, samples) = (site.dims(0)?, site.result_dims(0)?);
    let (&[rows, classes], &[_, samples]) = (&dims[..], &samples[..]) else {
        return Err(OpError::operand(0, "rank 2", format!("rank {}", dims.len())).into());
    };
    if classes == 0 && rows * samples > 0 {
        return Err(OpError::operand(0, "at least one class", "none").into());
    }
    let (from_bits, to_bits, encoding) = (bits_of(from)?, bits_of(to)?, Encoding::new(to));
    let kernel = Prepared::new(move |io| {
        let (logarithms, results) = (io.bytes(0)?, io.out_bytes(0)?);
        let (sums, drawn) = io.scratch::<f64>().split_at_mut(classes);
        for (row, to) in results.chunks_mut((samples * to_bits / 8).max(1)).enumerate() {
            f64::decode(from, &logarithms[row * classes * from_bits / 8..], sums)?;
            accumulate(sums);
            for (i, sample) in drawn[..samples].iter_mut().enumerate() {
                let index = row * samples + i;
                let uniform = stream.four(index as u64 / 4)[index % 4];
                let reached = sums.partition_point(|&sum| sum <= uniform * sums[classes - 1]);
                #[expect(clippy::cast_precision_loss, reason = "there are fewer classes")]
                let class = reached.min(classes - 1) as f64;
                *sample = class;
            }
            encode(&drawn[..samples], encoding, to)?;
        }
        Ok(())
    });
    Ok(kernel.scratch((classes + samples) * size_of::<f64>()))
}

/// Running sums of the numbers whose logarithms are given.
fn accumulate(numbers: &mut [f64]) {
    let greatest = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    for number in numbers {
        sum += (*number - greatest).exp();
        *number = sum;
    }
}

/// Dropout: kept elements are scaled by 1 / (1 − ratio).
fn dropout(site: &Site<'_>) -> Result<Prepared> {
    let view = DropoutView::read(&site.view);
    let mask = if site.wants(1) { Some(site.result_dtype(1)?) } else { None };
    if view.training == Some(false) && mask.is_none() {
        return same(site);
    }
    let dtype = site.dtype(0)?;
    let bits = bits_of(dtype)?;
    let kernel = Job {
        stream: Stream::of(site),
        dtype,
        bits,
        mask,
        count: site.dims(0)?.iter().product(),
        training: view.training,
        ratio: match view.ratio_operand {
            Some(i) => Ratio::Operand(i, site.dtype(i)?),
            None => Ratio::Number(attr(site, "ratio", 0.5)),
        },
    };
    Ok(Prepared::new(move |io| kernel.run(io)))
}

enum Ratio {
    Number(f64),
    Operand(usize, DType),
}

/// A Dropout that may drop, or is asked for its mask.
struct Job {
    stream: Stream,
    dtype: DType,
    bits: usize,
    mask: Option<DType>,
    count: usize,
    training: Option<bool>,
    ratio: Ratio,
}

impl Job {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let training = match self.training {
            Some(training) => training,
            None => io.bytes(2)?.first().is_some_and(|&b| b != 0),
        };
        let ratio = if training { self.ratio(io)? } else { 0.0 };
        if let Some(dtype) = self.mask {
            blocks(io.out_bytes(1)?, self.count, dtype, |start, to| {
                self.keep(ratio, start, to);
                Ok(())
            })?;
        }
        let (from, to) = (io.bytes(0)?, io.out_bytes(0)?);
        if ratio == 0.0 {
            to.copy_from_slice(from);
            return Ok(());
        }
        let scale = 1.0 / (1.0 - ratio);
        blocks(to, self.count, self.dtype, |start, to| {
            let mut block = [0f64; BLOCK];
            let keep = &mut block[..to.len()];
            self.keep(ratio, start, keep);
            f64::decode(self.dtype, &from[start * self.bits / 8..], to)?;
            to.iter_mut().zip(&*keep).for_each(|(x, &keep)| *x = *x * keep * scale);
            Ok(())
        })
    }

    /// 1 for kept elements, 0 for dropped elements.
    fn keep(&self, ratio: f64, start: usize, to: &mut [f64]) {
        if ratio == 0.0 {
            to.fill(1.0);
            return;
        }
        self.stream.uniform(start, to);
        to.iter_mut().for_each(|u| *u = f64::from(u8::from(*u >= ratio)));
    }

    fn ratio(&self, io: &Io<'_>) -> Result<f64> {
        let ratio = match self.ratio {
            Ratio::Number(ratio) => ratio,
            Ratio::Operand(i, dtype) => {
                let mut ratio = [0.5f64];
                f64::decode(dtype, io.bytes(i)?, &mut ratio)?;
                ratio[0]
            }
        };
        if (0.0..1.0).contains(&ratio) {
            Ok(ratio)
        } else {
            Err(KernelError::value("a ratio in [0, 1)", ratio))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: Stream = Stream { key: [7, 0] };

    #[test]
    fn moments_are_those_of_the_distributions() {
        let moments = |numbers: &[f64]| {
            let n = numbers.len() as f64;
            let mean = numbers.iter().sum::<f64>() / n;
            (mean, numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n)
        };
        let mut numbers = vec![0.0; 100_000];
        STREAM.uniform(0, &mut numbers);
        let (mean, variance) = moments(&numbers);
        assert!((mean - 0.5).abs() < 0.01 && (variance - 1.0 / 12.0).abs() < 0.001);
        assert!(numbers.iter().all(|u| (0.0..1.0).contains(u)));
        STREAM.normal(0, &mut numbers);
        let (mean, variance) = moments(&numbers);
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02);
    }

    #[test]
    fn a_sequence_can_be_made_in_parts() {
        let (mut whole, mut part) = ([0.0; 11], [0.0; 3]);
        STREAM.normal(0, &mut whole);
        STREAM.normal(8, &mut part);
        assert_eq!(whole[8..], part);
    }
}
