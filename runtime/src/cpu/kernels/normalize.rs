//! Normalisation over groups of elements: LayerNormalization, RMSNormalization, GroupNormalization,
//! InstanceNormalization, LpNormalization, MeanVarianceNormalization, LRN.
//!
//! Variances are means of squared distances from the mean, which is computed first. A mean that is rounded to
//! one number is too far off where elements are near each other and far from 0: it is the sum of that number
//! `m` and of the mean of the distances from it, `r`. Then `(x - m) - r` has all its digits, and the variance
//! is the mean of `(x - m)²` less `r²` (the corrected two-pass algorithm: T. F. Chan, G. H. Golub, R. J.
//! LeVeque, "Algorithms for Computing the Sample Variance", 1983). `stash_type` is the least width of the
//! computation; the result is rounded once, when it is stored.

use super::broadcast::Walk;
use super::fold::{
    CHUNK, Folding, Load, Number, ROW, Sum, SumOfDistances, SumOfMagnitudes, SumOfSquares, fold_run,
    read_floats, spread, transform, write_floats,
};
use super::lanes::{Real, Wide, for_real};
use super::parallel::{PIECE, pairs_of_pieces, pieces};
use super::reduce::{as_float, count_of};
use super::softmax::first;
use crate::kernel::{Dims, Io, KernelError, Prepare, Prepared, Result, Site};
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use ampc_ir::views::norm::{ChannelNormView, LayerNormView, lp_normalization};
use ampc_ir::views::reduce::Axes;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::LayerNormalization
        | OpKind::RMSNormalization
        | OpKind::SimplifiedLayerNormalization
        | OpKind::ContribSkipLayerNormalization
        | OpKind::ContribSkipSimplifiedLayerNormalization => layer_norm,
        OpKind::GroupNormalization | OpKind::InstanceNormalization => channel_norm,
        OpKind::LpNormalization => lp_norm,
        OpKind::MeanVarianceNormalization => mean_variance_norm,
        OpKind::LRN => lrn,
        _ => return None,
    })
}

/// Calls `prepare::<S, T, A>` of a norm, with the types of operands, results and the computation. Elements that
/// cannot be read directly are converted to the type of the computation.
macro_rules! prepare_norm {
    ($norm:expr, $site:expr, $y:expr, $double:expr) => {
        match ($norm.direct, $double, $y) {
            (_, false, DType::F32) => $norm.prepare::<f32, f32, f32>(),
            (true, false, DType::F16) => $norm.prepare::<half::f16, half::f16, f32>(),
            (true, false, DType::BF16) => $norm.prepare::<half::bf16, half::bf16, f32>(),
            (false, false, DType::F16) => $norm.prepare::<f32, half::f16, f32>(),
            (false, false, DType::BF16) => $norm.prepare::<f32, half::bf16, f32>(),
            (_, true, DType::F64) => $norm.prepare::<f64, f64, f64>(),
            (_, true, DType::F32) => $norm.prepare::<f64, f32, f64>(),
            (_, true, DType::F16) => $norm.prepare::<f64, half::f16, f64>(),
            (_, true, DType::BF16) => $norm.prepare::<f64, half::bf16, f64>(),
            _ => return Err($site.no_kernel()),
        }
    };
}

/// The first elements of the rest of a buffer.
fn take<'a, A>(room: &mut &'a mut [A], n: usize) -> &'a mut [A] {
    let (taken, rest) = std::mem::take(room).split_at_mut(n);
    *room = rest;
    taken
}

/// A float operand that is broadcast.
struct Spread {
    operand: usize,
    len: usize,
    walk: Walk,
}

impl Spread {
    /// Operand `operand`, if it is there, for tensors of `dims`.
    fn new(site: &Site<'_>, operand: usize, dims: &[usize]) -> Result<Option<Spread>> {
        if !site.has(operand) {
            return Ok(None);
        }
        let from = site.dims(operand)?;
        let len = from.iter().product();
        let leading = from.len().saturating_sub(dims.len());
        let mut behind = dims[dims.len().saturating_sub(from.len())..].iter().zip(&from[leading..]);
        if from[..leading].iter().any(|&f| f != 1) || behind.any(|(&d, &f)| f != 1 && f != d) {
            let found = format!("{:?}", from.as_slice());
            return Err(
                OpError::operand(operand, format!("a shape that broadcasts to {dims:?}"), found).into()
            );
        }
        Ok(Some(Spread { operand, len, walk: Walk::new(dims, &[&from[leading..]]) }))
    }

    /// How much room it takes.
    fn room(&self) -> usize {
        self.len + if self.walk.is_whole(0) { 0 } else { self.walk.len() }
    }

    fn read<'a, A: Wide>(&self, io: &Io<'_>, room: &mut &'a mut [A]) -> Result<&'a [A]> {
        let from = take(room, self.len);
        read_floats(io.tensor(self.operand)?, from)?;
        if self.walk.is_whole(0) {
            return Ok(from);
        }
        let to = take(room, self.walk.len());
        let step = self.walk.row_stride(0);
        self.walk.rows(0, to.len(), |at, n, begin| {
            let to = to[at..at + n].iter_mut();
            to.enumerate().for_each(|(i, y)| *y = from[begin[0] + i * step]);
        });
        Ok(to)
    }
}

/// `(x - mean) / √(var + epsilon) · scale + bias` row by row, or with 0 and the mean of squares for mean and variance.
struct LayerNorm {
    /// True if elements are read as they are; or they are widened, and others added.
    direct: bool,
    rows: usize,
    /// Elements per row.
    n: usize,
    centered: bool,
    epsilon: f64,
    scale: Option<Spread>,
    bias: Option<Spread>,
    /// True if each row has a scale and a bias of its own.
    per_row: bool,
    addends: Vec<Spread>,
    /// The results that are mean, inverse deviation and sum.
    results: [Option<usize>; 3],
}

/// Which operands are scale, bias and addends, and which results mean, inverse deviation and sum.
struct Places {
    scale: usize,
    bias: Option<usize>,
    addends: &'static [usize],
    results: [Option<usize>; 3],
}

fn places(kind: OpKind) -> Places {
    let (scale, bias, addends, results): (_, _, &[usize], _) = match kind {
        OpKind::LayerNormalization => (1, Some(2), &[], [Some(1), Some(2), None]),
        OpKind::ContribSkipLayerNormalization => (2, Some(3), &[1, 4], [Some(1), Some(2), Some(3)]),
        OpKind::ContribSkipSimplifiedLayerNormalization => (2, None, &[1, 3], [Some(1), Some(2), Some(3)]),
        _ => (1, None, &[], [None, Some(1), None]),
    };
    Places { scale, bias, addends, results }
}

fn layer_norm(site: &Site<'_>) -> Result<Prepared> {
    let view = LayerNormView::read(&site.view)?;
    let dims = site.dims(0)?;
    let axis = view.axis.ok_or(KernelError::NotYet)?;
    let places = places(site.kind());
    let behind = |operand: usize| -> Result<bool> {
        let dims = if site.has(operand) { site.dims(operand)? } else { Dims::new() };
        let leading = (dims.len() + axis).saturating_sub(site.dims(0)?.len());
        Ok(dims[..leading].iter().all(|&d| d == 1))
    };
    let per_row = !(behind(places.scale)? && places.bias.map_or(Ok(true), behind)?);
    let one = if per_row { &dims[..] } else { &dims[axis..] };
    let addends = places.addends.iter().filter_map(|&i| Spread::new(site, i, &dims).transpose());
    let addends = addends.collect::<Result<Vec<_>>>()?;
    let (x, y) = (site.dtype(0)?, site.result_dtype(0)?);
    let double = [x, y, view.stash].contains(&DType::F64);
    let norm = LayerNorm {
        direct: x == y && double == (x == DType::F64) && addends.is_empty(),
        rows: dims[..axis].iter().product(),
        n: dims[axis..].iter().product(),
        centered: matches!(site.kind(), OpKind::LayerNormalization | OpKind::ContribSkipLayerNormalization),
        epsilon: f64::from(view.epsilon),
        scale: Spread::new(site, places.scale, one)?,
        bias: places.bias.map_or(Ok(None), |i| Spread::new(site, i, one))?,
        per_row,
        addends,
        results: places.results,
    };
    Ok(prepare_norm!(norm, site, y, double))
}

impl LayerNorm {
    fn prepare<S: Load<A>, T: Load<A>, A: Wide + Number>(self) -> Prepared {
        let total = if self.direct { 0 } else { self.rows * self.n };
        let spreads = self.addends.iter().chain(&self.scale).chain(&self.bias);
        let room = total + 2 * self.rows + spreads.map(Spread::room).sum::<usize>();
        let in_place: &[usize] = if self.direct { &[0] } else { &[] };
        Prepared::new(move |io| {
            let mut room = io.scratch::<A>();
            let from = if self.direct { first::<S>(io)? } else { Some(self.sum(io, total, &mut room)?) };
            let mut read = |s: &Option<Spread>| s.as_ref().map(|s| s.read(io, &mut room)).transpose();
            let (scale, bias) = (read(&self.scale)?, read(&self.bias)?);
            let statistics = take(&mut room, 2 * self.rows);
            if self.n == 0 {
                statistics.fill(A::nan());
            }
            self.rows::<S, T, A>(from, scale, bias, statistics, io.out(0)?);
            for (i, j) in self.results[..2].iter().enumerate() {
                if let Some(j) = *j {
                    write_floats(io, j, statistics.iter().skip(i).step_by(2).copied())?;
                }
            }
            Ok(())
        })
        .in_place(in_place)
        .scratch(room * size_of::<A>())
    }

    /// Operand 0 and all addends in the type that is computed in, which `S` is then.
    fn sum<'a, S: Load<A>, A: Wide + Number>(
        &self,
        io: &mut Io<'_>,
        total: usize,
        room: &mut &'a mut [A],
    ) -> Result<&'a [S]> {
        let sum = take(room, total);
        read_floats(io.tensor(0)?, sum)?;
        for addend in &self.addends {
            let addend = addend.read(io, room)?;
            sum.iter_mut().zip(addend).for_each(|(x, &y)| *x = *x + y);
        }
        if let Some(j) = self.results[2] {
            write_floats(io, j, sum.iter().copied())?;
        }
        Ok(if sum.is_empty() { &[] } else { bytemuck::cast_slice(sum) })
    }

    fn rows<S: Load<A>, T: Load<A>, A: Wide + Number>(
        &self,
        from: Option<&[S]>,
        scale: Option<&[A]>,
        bias: Option<&[A]>,
        statistics: &mut [A],
        to: &mut [T],
    ) {
        let n = self.n.max(1);
        let rows = (PIECE / n).max(1);
        let epsilon = A::of(self.epsilon);
        let is_wide = from.map_or(T::same(&[]).is_some(), |_| S::same(&[]).is_some());
        let work = |i: usize, to: &mut [T], statistics: &mut [A]| {
            let mut room = (!is_wide && n <= ROW).then(|| [A::default(); ROW]);
            for (j, (to, statistics)) in to.chunks_mut(n).zip(statistics.chunks_mut(2)).enumerate() {
                let row = i * rows + j;
                let from = from.map(|from| &from[row * n..(row + 1) * n]);
                let wide = room.as_mut().map(|room| {
                    let room = &mut room[..n];
                    match from {
                        Some(from) => S::load(from, room),
                        None => T::load(to, room),
                    }
                    room
                });
                let Moments { mean, rest, var } = match (&wide, from) {
                    (Some(wide), _) => Moments::of(wide, self.centered),
                    (None, Some(from)) => Moments::of(from, self.centered),
                    (None, None) => Moments::of(to, self.centered),
                };
                let factor = (var + epsilon).sqrt().recip();
                statistics.copy_from_slice(&[mean + rest, factor]);
                let own = if self.per_row { row * n } else { 0 };
                let (scale, bias) = (scale.map(|s| &s[own..]), bias.map(|b| &b[own..]));
                let scaled = |at: usize, block: &mut [A]| {
                    block.iter_mut().for_each(|x| *x = (*x - mean - rest) * factor);
                    if let Some(scale) = scale {
                        block.iter_mut().zip(&scale[at..]).for_each(|(x, &s)| *x = *x * s);
                    }
                    if let Some(bias) = bias {
                        block.iter_mut().zip(&bias[at..]).for_each(|(x, &b)| *x = *x + b);
                    }
                };
                match wide {
                    Some(wide) => {
                        scaled(0, wide);
                        T::store(wide, to);
                    }
                    None => transform(from, to, scaled),
                }
            }
        };
        pairs_of_pieces((to, rows * n), (statistics, rows * 2), work);
    }
}

/// The mean, in two parts, and the variance.
struct Moments<A> {
    mean: A,
    rest: A,
    var: A,
}

impl<A: Wide + Number> Moments<A> {
    /// The moments of some numbers; if they are not to be centered, 0 and the mean of squares.
    fn of<T: Load<A>>(row: &[T], centered: bool) -> Moments<A> {
        let count: A = as_float(row.len());
        if !centered {
            let var = fold_run(SumOfSquares, row, A::zero()) / count;
            return Moments { mean: A::zero(), rest: A::zero(), var };
        }
        let mean = fold_run(Sum, row, A::zero()) / count;
        let rest = fold_run(SumOfDistances, row, mean) / count;
        let var = variance(fold_run(SumOfSquares, row, mean) / count, rest);
        Moments { mean, rest, var }
    }
}

/// The variance, given the mean of the squared distances from a number that is `rest` below the mean.
pub(super) fn variance<A: Wide>(squares: A, rest: A) -> A {
    let var = squares - rest * rest;
    if var < A::zero() { A::zero() } else { var }
}

/// `(x - mean) / √(var + epsilon) · scale + bias`: mean and variance of each group of channels of each sample, scale
/// and bias of each channel or group.
struct ChannelNorm {
    direct: bool,
    /// Elements of one channel, channels of one group, groups.
    sizes: [usize; 3],
    /// Elements.
    total: usize,
    /// Scales and biases.
    coefficients: usize,
    per_group: bool,
    epsilon: f64,
}

fn channel_norm(site: &Site<'_>) -> Result<Prepared> {
    let view = ChannelNormView::read(&site.view)?;
    let dims = site.dims(0)?;
    let (dtype, channels) = (site.dtype(0)?, dims[1]);
    let groups = view.groups.map_or(channels, |g| usize::try_from(g).unwrap_or(usize::MAX));
    let double = [dtype, view.stash].contains(&DType::F64);
    let norm = ChannelNorm {
        direct: double == (dtype == DType::F64),
        sizes: [dims[2..].iter().product(), channels / groups.max(1), groups],
        total: dims.iter().product(),
        coefficients: if view.per_group { groups } else { channels },
        per_group: view.per_group,
        epsilon: f64::from(view.epsilon),
    };
    Ok(prepare_norm!(norm, site, dtype, double))
}

impl ChannelNorm {
    fn prepare<S: Load<A>, T: Load<A>, A: Wide + Number>(self) -> Prepared {
        let total = if self.direct { 0 } else { self.total };
        let room = total + 2 * self.coefficients;
        let in_place: &[usize] = if self.direct { &[0] } else { &[] };
        Prepared::new(move |io| {
            let mut room = io.scratch::<A>();
            let from = if self.direct {
                first::<S>(io)?
            } else {
                let wide = take(&mut room, total);
                read_floats(io.tensor(0)?, wide)?;
                Some(if wide.is_empty() { &[] } else { bytemuck::cast_slice(wide) })
            };
            let (scale, bias) = (take(&mut room, self.coefficients), take(&mut room, self.coefficients));
            read_floats(io.tensor(1)?, scale)?;
            read_floats(io.tensor(2)?, bias)?;
            self.apply::<S, T, A>(from, scale, bias, io.out(0)?);
            Ok(())
        })
        .in_place(in_place)
        .scratch(room * size_of::<A>())
    }

    fn apply<S: Load<A>, T: Load<A>, A: Wide + Number>(
        &self,
        from: Option<&[S]>,
        scale: &[A],
        bias: &[A],
        to: &mut [T],
    ) {
        let [run, channels, groups] = self.sizes;
        let n = (run * channels).max(1);
        let epsilon = A::of(self.epsilon);
        pieces(to, (PIECE / n).max(1) * n, |start, to| {
            for (i, to) in to.chunks_mut(n).enumerate() {
                let at = start + i * n;
                let group = at / n % groups;
                let from = from.map(|from| &from[at..at + n]);
                let Moments { mean, rest, var } = match from {
                    Some(from) => Moments::of(from, true),
                    None => Moments::of(to, true),
                };
                let deviation = (var + epsilon).sqrt();
                for (j, to) in to.chunks_mut(run).enumerate() {
                    let coefficient = if self.per_group { group } else { group * channels + j };
                    let (factor, bias) = (scale[coefficient] / deviation, bias[coefficient]);
                    transform(from.map(|from| &from[j * run..(j + 1) * run]), to, |_, block| {
                        block.iter_mut().for_each(|x: &mut A| *x = (*x - mean - rest) * factor + bias);
                    });
                }
            }
        });
    }
}

/// The walk over a tensor together with numbers for its elements along some axes.
fn spread_walk(dims: &[usize], is_gone: impl Fn(usize) -> bool) -> Walk {
    let kept: Dims = dims.iter().enumerate().map(|(i, &d)| if is_gone(i) { 1 } else { d }).collect();
    Walk::new(dims, &[&kept])
}

/// `x / ‖x‖` along one axis, 0 where all are 0.
fn lp_norm(site: &Site<'_>) -> Result<Prepared> {
    let dims = site.dims(0)?;
    let (axis, p) = lp_normalization(&site.view)?;
    let axis = axis.ok_or(KernelError::NotYet)?;
    let folding = Folding::new(&dims, |i| i == axis);
    let walk = spread_walk(&dims, |i| i == axis);
    Ok(for_real!(site.dtype(0)?, site, T => divided_by_norm::<T, <T as Real>::Wide>(folding, walk, p)))
}

fn divided_by_norm<T: Load<A>, A: Wide + Number>(folding: Folding, walk: Walk, p: i64) -> Prepared {
    let bytes = folding.results * size_of::<A>();
    Prepared::new(move |io| {
        let from = first::<T>(io)?;
        let to = io.out::<T>(0)?;
        let norms = &mut io.scratch::<A>()[..folding.results];
        let elements = from.unwrap_or(to);
        if p == 1 {
            folding.fold(SumOfMagnitudes, elements, None, norms, &|sum, _| sum);
        } else {
            folding.fold(SumOfSquares, elements, None, norms, &|sum: A, _| sum.sqrt());
        }
        let divide = |x, [norm]: [A; 1]| if norm == A::zero() { A::zero() } else { x / norm };
        spread(&walk, from, [norms], to, divide);
        Ok(())
    })
    .in_place(&[0])
    .scratch(bytes)
}

/// `(x - mean) / (√var + 1e-9)`, as the operator's function body has it.
fn mean_variance_norm(site: &Site<'_>) -> Result<Prepared> {
    let dims = site.dims(0)?;
    let axes = Axes::of(site.view.int_list("axes").unwrap_or(&[0, 2, 3]), dims.len())?;
    let folding = Folding::new(&dims, |axis| axes.has(axis));
    let walk = spread_walk(&dims, |axis| axes.has(axis));
    Ok(for_real!(site.dtype(0)?, site, T => standardized::<T, <T as Real>::Wide>(folding, walk)))
}

fn standardized<T: Load<A>, A: Wide + Number>(folding: Folding, walk: Walk) -> Prepared {
    let bytes = 3 * folding.results * size_of::<A>();
    Prepared::new(move |io| {
        let from = first::<T>(io)?;
        let to = io.out::<T>(0)?;
        let mut room = io.scratch::<A>();
        let mut next = || take(&mut room, folding.results);
        let (means, rests, deviations) = (next(), next(), next());
        let elements = from.unwrap_or(to);
        let (count, epsilon) = (count_of::<A>(&folding), A::of(1e-9));
        folding.fold(Sum, elements, None, means, &|sum, _| sum / count);
        folding.fold(SumOfDistances, elements, Some(means), rests, &|sum, _| sum / count);
        folding.fold(SumOfSquares, elements, Some(means), deviations, &|sum, _| sum / count);
        for (deviation, &rest) in deviations.iter_mut().zip(&*rests) {
            *deviation = variance(*deviation, rest).sqrt() + epsilon;
        }
        let standardize = |x, [mean, rest, deviation]: [A; 3]| (x - mean - rest) / deviation;
        spread(&walk, from, [means, rests, deviations], to, standardize);
        Ok(())
    })
    .in_place(&[0])
    .scratch(bytes)
}

/// `x / (bias + alpha / size · Σ x²)^beta` with the sum over neighbouring channels.
#[derive(Clone, Copy)]
struct Lrn {
    channels: usize,
    /// Elements of one channel.
    run: usize,
    /// Channels before and behind that count.
    reach: (usize, usize),
    /// `alpha / size`, beta, bias
    parameters: [f64; 3],
}

fn lrn(site: &Site<'_>) -> Result<Prepared> {
    let dims = site.dims(0)?;
    let size = site.view.int("size").and_then(|size| usize::try_from(size).ok()).unwrap_or(1).max(1);
    let number = |name, default: f32| f64::from(site.view.float(name).unwrap_or(default));
    let lrn = Lrn {
        channels: dims[1],
        run: dims[2..].iter().product(),
        reach: ((size - 1) / 2, size / 2),
        parameters: [
            number("alpha", 1e-4) / as_float::<f64>(size),
            number("beta", 0.75),
            number("bias", 1.0),
        ],
    };
    Ok(for_real!(site.dtype(0)?, site, T => lrn.prepare::<T, <T as Real>::Wide>()))
}

impl Lrn {
    fn prepare<T: Load<A>, A: Wide + Number>(self) -> Prepared {
        Prepared::new(move |io| {
            let from = io.slice::<T>(0)?;
            let run = self.run.max(1);
            let [alpha, beta, bias] = self.parameters.map(A::of);
            let three_quarters = beta == A::of(0.75);
            pieces(io.out::<T>(0)?, (PIECE / run).max(1) * run, |start, to| {
                let mut sums = [A::zero(); CHUNK];
                for (i, to) in to.chunks_mut(run).enumerate() {
                    let row = start / run + i;
                    for (j, to) in to.chunks_mut(CHUNK).enumerate() {
                        let sums = &mut sums[..to.len()];
                        self.squares(from, row, j * CHUNK, sums);
                        let at = row * run + j * CHUNK;
                        let from = &from[at..at + to.len()];
                        transform(Some(from), to, |_, block| {
                            for (x, &sum) in block.iter_mut().zip(&*sums) {
                                let d = bias + alpha * sum;
                                let power = if three_quarters { (d * d.sqrt()).sqrt() } else { d.powf(beta) };
                                *x = *x / power;
                            }
                        });
                    }
                }
            });
            Ok(())
        })
    }

    /// Sums of squares around some elements of a row, from `at` on; a row is one channel of one sample.
    fn squares<T: Load<A>, A: Wide + Number>(&self, from: &[T], row: usize, at: usize, sums: &mut [A]) {
        let channel = row % self.channels;
        let first = row - channel.min(self.reach.0);
        let last = row + (self.channels - 1 - channel).min(self.reach.1);
        let mut room = [A::zero(); CHUNK];
        sums.fill(A::zero());
        for row in first..=last {
            let at = row * self.run + at;
            let from = &from[at..at + sums.len()];
            let from = T::same(from).unwrap_or_else(|| {
                T::load(from, &mut room[..sums.len()]);
                &room[..sums.len()]
            });
            sums.iter_mut().zip(from).for_each(|(sum, &x)| *sum = *sum + x * x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_have_all_their_digits() {
        let row: Vec<f32> = (0..97u16).map(|i| 40_000.0 + f32::from(i % 7) * 0.25).collect();
        let exact = |f: &dyn Fn(f64) -> f64| row.iter().map(|&x| f(f64::from(x))).sum::<f64>() / 97.0;
        let mean = exact(&|x| x);
        let var = exact(&|x| (x - mean) * (x - mean));
        let found = Moments::<f32>::of(&row, true);
        assert!((f64::from(found.mean) + f64::from(found.rest) - mean).abs() < 1e-9);
        assert!((f64::from(found.var) - var).abs() < 1e-6 * var);
        // Elements that are all alike have no variance, and none below 0.
        let alike = Moments::<f32>::of(&[0.1f32; 97], true);
        assert!(alike.var >= 0.0 && (0.1 - alike.mean - alike.rest).abs() < 1e-14);
    }
}
