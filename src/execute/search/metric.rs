//! Metrics: the error of an output as a number, and the direction in which it grows.

use ampc_runtime::{Data, HostTensor};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// A function of the wanted elements, the found elements and the dims.
pub type CustomMetric = Arc<dyn Fn(&[f64], &[f64], &[u64]) -> f64 + Send + Sync>;

/// The error of an output. An element that is not finite where the wanted element is finite, or that differs from a wanted
/// NaN or infinity, makes every error infinite.
#[derive(Clone, Default)]
pub enum Metric {
    /// max |d| / max |w|, with the wanted elements w and the differences d.
    #[default]
    Max,
    /// mean |d| / mean |w|.
    Mean,
    /// max (|d| / |w|), with |w| raised to 10⁻³ · max |w| where it is smaller.
    Elementwise,
    /// 1 − cos, with the cosine of the angle between all wanted and all found elements.
    Cosine,
    /// Σ d² / Σ w², the inverse of the signal-to-noise ratio: 10⁻³ is 30 dB.
    Snr,
    /// The share of rows, along the last axis, whose largest element has another index.
    Top1,
    /// A function of the user.
    Custom(CustomMetric),
}

impl fmt::Debug for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The metrics with a name.
const NAMED: [(&str, Metric); 6] = [
    ("max", Metric::Max),
    ("mean", Metric::Mean),
    ("elementwise", Metric::Elementwise),
    ("cosine", Metric::Cosine),
    ("snr", Metric::Snr),
    ("top1", Metric::Top1),
];

/// The error for an unknown name of a metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("expected max, mean, elementwise, cosine, snr or top1")]
pub struct UnknownMetric;

impl FromStr for Metric {
    type Err = UnknownMetric;
    fn from_str(text: &str) -> Result<Metric, UnknownMetric> {
        let named = NAMED.iter().find(|(name, _)| *name == text);
        named.map(|(_, metric)| metric.clone()).ok_or(UnknownMetric)
    }
}

impl Metric {
    /// The names of the metrics.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMED.iter().map(|(name, _)| *name)
    }

    /// The name.
    pub fn as_str(&self) -> &'static str {
        match self {
            Metric::Max => "max",
            Metric::Mean => "mean",
            Metric::Elementwise => "elementwise",
            Metric::Cosine => "cosine",
            Metric::Snr => "snr",
            Metric::Top1 => "top1",
            Metric::Custom(_) => "custom",
        }
    }

    /// The error of `found`, where `wanted` is expected: elements of two tensors with these dims, in row-major order. Infinite
    /// if the lengths differ, or an element is finite in one tensor only.
    pub fn error(&self, wanted: &[f64], found: &[f64], dims: &[u64]) -> f64 {
        let disagrees = |(w, f): (&f64, &f64)| {
            if w.is_finite() { !f.is_finite() } else { !(w == f || w.is_nan() && f.is_nan()) }
        };
        if wanted.len() != found.len() || wanted.iter().zip(found).any(disagrees) {
            return f64::INFINITY;
        }
        let pairs = || wanted.iter().zip(found).filter(|(w, _)| w.is_finite()).map(|(&w, &f)| (w, f - w));
        let largest = pairs().fold(0.0, |most: f64, (w, _)| most.max(w.abs()));
        let sum = |term: &dyn Fn((f64, f64)) -> f64| pairs().map(term).sum::<f64>();
        match self {
            Metric::Max => share(pairs().fold(0.0, |most: f64, (_, d)| most.max(d.abs())), largest),
            Metric::Mean => share(sum(&|(_, d)| d.abs()), sum(&|(w, _)| w.abs())),
            Metric::Elementwise => {
                pairs().fold(0.0, |most: f64, (w, d)| most.max(share(d.abs(), w.abs().max(LEAST * largest))))
            }
            Metric::Cosine => {
                let (ww, ff) = (sum(&|(w, _)| w * w), sum(&|(w, d)| (w + d) * (w + d)));
                let product = (ww * ff).sqrt();
                let dot = sum(&|(w, d)| w * (w + d));
                match product {
                    _ if !product.is_finite() => f64::INFINITY,
                    0.0 => share((ww - ff).abs(), ww),
                    _ => (1.0 - dot / product).max(0.0),
                }
            }
            Metric::Snr => share(sum(&|(_, d)| d * d), sum(&|(w, _)| w * w)),
            Metric::Top1 => top1(wanted, found, dims),
            Metric::Custom(error) => error(wanted, found, dims),
        }
    }

    /// The first-order weights of the elements: the gradient of a p-norm that approximates the metric (p = 4 for the largest
    /// element, 1 for means, 2 otherwise), relative to the wanted elements. Differences that are not finite count as
    /// [`WORST`].
    pub(super) fn weights(&self, wanted: &[f64], found: &[f64]) -> Vec<f32> {
        let largest = wanted.iter().filter(|w| w.is_finite()).fold(0.0, |most: f64, w| most.max(w.abs()));
        let scale = |w: f64| match self {
            _ if largest == 0.0 => 1.0,
            Metric::Elementwise => w.abs().max(LEAST * largest),
            _ => largest,
        };
        let power = match self {
            Metric::Max | Metric::Elementwise => 3,
            Metric::Mean => 0,
            Metric::Cosine | Metric::Snr | Metric::Top1 | Metric::Custom(_) => 1,
        };
        let relative = |(&w, &f): (&f64, &f64)| match w.is_finite() {
            false => 0.0,
            true if f.is_nan() => WORST,
            true => share(f - w, scale(w)).clamp(-WORST, WORST),
        };
        let differences: Vec<f64> = wanted.iter().zip(found).map(relative).collect();
        let most = differences.iter().fold(0.0, |most: f64, d| most.max(d.abs()));
        let terms = differences.iter().map(|d| share(*d, most).signum() * share(d.abs(), most).powi(power));
        let terms: Vec<f64> = terms.zip(&differences).map(|(t, d)| if *d == 0.0 { 0.0 } else { t }).collect();
        let norm: f64 = differences.iter().zip(&terms).map(|(d, t)| share(d.abs(), most) * t.abs()).sum();
        let norm = norm.powf(f64::from(power) / f64::from(power + 1));
        #[expect(clippy::cast_possible_truncation, reason = "weights are of fp32 values")]
        let weight = |(t, &w): (f64, &f64)| if norm > 0.0 { share(t / norm, scale(w)) as f32 } else { 0.0 };
        terms.into_iter().zip(wanted).map(weight).collect()
    }
}

/// Elements below this share of the largest wanted element count as that share.
const LEAST: f64 = 1e-3;

/// The largest difference, as a share of the wanted elements.
const WORST: f64 = 1e3;

/// `part / of`; if `of` is 0, 0 for a part of 0, else infinite.
fn share(part: f64, of: f64) -> f64 {
    if of > 0.0 {
        part / of
    } else if part == 0.0 {
        0.0
    } else {
        f64::INFINITY.copysign(part)
    }
}

fn top1(wanted: &[f64], found: &[f64], dims: &[u64]) -> f64 {
    let row = dims.last().and_then(|&n| usize::try_from(n).ok()).unwrap_or(1).max(1);
    let index = |row: &[f64]| {
        let ranked = row.iter().enumerate().filter(|(_, x)| !x.is_nan());
        ranked.fold((0, f64::NEG_INFINITY), |best, (i, &x)| if x > best.1 { (i, x) } else { best }).0
    };
    let rows = wanted.chunks(row).zip(found.chunks(row));
    let (all, other) =
        rows.fold((0u32, 0u32), |(all, other), (w, f)| (all + 1, other + u32::from(index(w) != index(f))));
    share(f64::from(other), f64::from(all))
}

/// The kind of the elements of an output.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Kind {
    #[default]
    Floats,
    /// Integers and booleans.
    Integers,
    /// Strings, as hashes.
    Strings,
}

/// An output as numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Numbered {
    pub(super) numbers: Vec<f64>,
    pub(super) dims: Vec<u64>,
    kind: Kind,
}

impl Numbered {
    /// The numbers of an output; the elements of a sequence one after the other, each with its dims before it.
    pub(super) fn of(data: &Data) -> Numbered {
        match data {
            Data::Tensor(tensor) => of_tensor(tensor),
            Data::Sequence(sequence) => joined(sequence.items().iter().map(Numbered::of)),
            Data::Optional(maybe) => joined(maybe.value.iter().map(|data| Numbered::of(data))),
            // The outputs of a run are in host memory.
            Data::Device(_) => Numbered::default(),
        }
    }

    /// The output of a model that cannot be computed, where `self` is wanted: it has other dims, so its error is infinite, and
    /// no number.
    pub(super) fn not_computed(&self) -> Numbered {
        let dims = self.dims.iter().copied().chain([0]).collect();
        Numbered { numbers: vec![f64::NAN; self.numbers.len()], dims, kind: self.kind }
    }
}

fn joined(parts: impl Iterator<Item = Numbered>) -> Numbered {
    let mut all = Numbered::default();
    for part in parts {
        all.kind = part.kind;
        all.dims.extend(part.dims);
        all.numbers.extend(part.numbers);
    }
    // The length distinguishes sequences with the same elements and other boundaries.
    all.dims.push(all.numbers.len() as u64);
    all
}

fn of_tensor(tensor: &HostTensor) -> Numbered {
    let dims = tensor.dims().to_vec();
    #[expect(clippy::cast_precision_loss, reason = "large integers and hashes are compared as floats")]
    let (numbers, kind) = match (tensor.f64s(), tensor.ints(), tensor.strings()) {
        (Ok(floats), ..) => (floats.collect(), Kind::Floats),
        (_, Some(ints), _) => (ints.map(|int| int as f64).collect(), Kind::Integers),
        (_, _, Some(strings)) => (strings.iter().map(|text| xxh3_64(text) as f64).collect(), Kind::Strings),
        _ => (Vec::new(), Kind::Floats),
    };
    Numbered { numbers, dims, kind }
}

impl Metric {
    /// The error of an output. Other dims, and any other string, are an infinite error. `top1` of integers, booleans and
    /// strings is the share of other elements; of floats without rows of two elements or more, it is that of `max`.
    pub(super) fn error_of(&self, wanted: &Numbered, found: &Numbered) -> f64 {
        if wanted.dims != found.dims {
            return f64::INFINITY;
        }
        let (w, f) = (&wanted.numbers[..], &found.numbers[..]);
        let others = || w.iter().zip(f).filter(|(w, f)| w != f).count();
        #[expect(clippy::cast_precision_loss, reason = "a share with a few digits")]
        let share_of_others = || share(others() as f64, w.len() as f64);
        match (self, wanted.kind) {
            (Metric::Custom(_), _) => self.error(w, f, &wanted.dims),
            (Metric::Top1, Kind::Integers | Kind::Strings) => share_of_others(),
            (_, Kind::Strings) => {
                if others() > 0 {
                    f64::INFINITY
                } else {
                    0.0
                }
            }
            (Metric::Top1, Kind::Floats) if wanted.dims.last().is_none_or(|&n| n < 2) => {
                Metric::Max.error(w, f, &wanted.dims)
            }
            _ => self.error(w, f, &wanted.dims),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(name: &str, wanted: &[f64], found: &[f64]) -> f64 {
        name.parse::<Metric>().unwrap().error(wanted, found, &[wanted.len() as u64])
    }

    #[test]
    fn errors_are_those_of_their_formulas() {
        let (wanted, found) = ([2.0, -4.0, 0.0, 1.0], [2.5, -4.0, 0.0, 0.5]);
        assert_eq!(error("max", &wanted, &found), 0.125);
        assert_eq!(error("mean", &wanted, &found), 1.0 / 7.0);
        assert_eq!(error("elementwise", &wanted, &found), 0.5);
        assert_eq!(error("snr", &wanted, &found), 0.5 / 21.0);
        assert_eq!(error("top1", &wanted, &found), 0.0);
        assert_eq!(error("top1", &[1.0, 2.0], &[2.0, 1.0]), 1.0);
        let cosine = error("cosine", &wanted, &found);
        assert!((cosine - (1.0 - 21.5 / (21.0f64 * 22.5).sqrt())).abs() < 1e-15, "{cosine}");
        assert!("most".parse::<Metric>().is_err());
    }

    #[test]
    fn elements_that_are_not_finite_make_every_error_infinite() {
        for name in Metric::names() {
            for bad in [f64::NAN, f64::INFINITY] {
                assert_eq!(error(name, &[1.0, 2.0], &[1.0, bad]), f64::INFINITY, "{name}");
                assert_eq!(error(name, &[1.0, bad], &[1.0, 2.0]), f64::INFINITY, "{name}");
                assert_eq!(error(name, &[1.0, bad], &[1.0, bad]), 0.0, "{name}");
            }
        }
        assert_eq!(error("max", &[0.0], &[1.0]), f64::INFINITY);
        assert_eq!(error("max", &[0.0], &[0.0]), 0.0);
    }

    /// Labels and strings are compared one by one.
    #[test]
    fn labels_are_counted() {
        let of = |numbers: &[f64], kind| {
            let dims = vec![numbers.len() as u64, 1];
            Numbered { numbers: numbers.to_vec(), dims, kind }
        };
        let error = |metric: Metric, kind| {
            metric.error_of(&of(&[1.0, 2.0, 3.0, 4.0], kind), &of(&[1.0, 2.0, 0.0, 4.0], kind))
        };
        assert_eq!(error(Metric::Top1, Kind::Integers), 0.25);
        assert_eq!(error(Metric::Top1, Kind::Strings), 0.25);
        assert_eq!(error(Metric::Max, Kind::Strings), f64::INFINITY);
        assert_eq!(error(Metric::Top1, Kind::Floats), 0.75, "rows of one element have no index");
        let other = Numbered { dims: vec![4], ..of(&[1.0; 4], Kind::Floats) };
        assert_eq!(Metric::Max.error_of(&of(&[1.0; 4], Kind::Floats), &other), f64::INFINITY);
    }

    /// The weights of the norm that stands for a metric reproduce the norm: Σ w · d is the p-norm of d / max |wanted|.
    #[test]
    fn weights_are_the_gradient_of_a_norm() {
        let (wanted, found) = ([2.0, -4.0, 0.0, 1.0], [2.5, -4.1, 0.0, 0.5]);
        let d: Vec<f64> = wanted.iter().zip(&found).map(|(w, f)| f - w).collect();
        for (metric, p) in [(Metric::Max, 4.0), (Metric::Mean, 1.0), (Metric::Snr, 2.0)] {
            let weights = metric.weights(&wanted, &found);
            let change: f64 = weights.iter().zip(&d).map(|(&w, d)| f64::from(w) * d).sum();
            let norm = d.iter().map(|d| (d / 4.0).abs().powf(p)).sum::<f64>().powf(1.0 / p);
            assert!((change - norm).abs() < 1e-6, "{metric:?}: {change} {norm}");
        }
    }
}
