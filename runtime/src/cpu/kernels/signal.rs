//! Fourier transforms and windows: DFT, STFT, HannWindow, HammingWindow, BlackmanWindow, MelWeightMatrix.
//!
//! `X[k] = Σ_n x[n] · exp(-2πi·k·n / N)` and its inverse `x[n] = 1/N · Σ_k X[k] · exp(2πi·k·n / N)`, by the
//! crate `rustfft`. Spectra are computed in f64, since bins that should be zero are the rest of sums that are
//! not small; signals, which are divided by their length, in f32 (f64 for f64). Windows and mel weights are
//! made in f64: `w[n] = a0 - a1 · cos(2πn / N) + a2 · cos(4πn / N)` with N the size, or one less for a
//! symmetric window.

use super::lanes::{Real, Wide, for_real};
use super::slots;
use crate::kernel::{Dims, KernelError, Prepare, Prepared, Result, Site};
use crate::room::{FirstError, Room};
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::signal::DftView;
use half::{bf16, f16};
use num_traits::AsPrimitive;
use rustfft::num_complex::Complex;
use rustfft::{Fft, FftNum, FftPlanner};
use std::sync::{Arc, Mutex, OnceLock};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::DFT => dft,
        OpKind::STFT => stft,
        // sin²(x/2) is 0.5 - 0.5 · cos(x).
        OpKind::HannWindow => |s| window(s, [0.5, 0.5, 0.0]),
        OpKind::HammingWindow => |s| window(s, [25.0 / 46.0, 1.0 - 25.0 / 46.0, 0.0]),
        OpKind::BlackmanWindow => |s| window(s, [0.42, 0.5, 0.08]),
        OpKind::MelWeightMatrix => mel_weights,
        _ => return None,
    })
}

/// A Fourier transform of some length, planned when it is first needed: by then there is memory for its result.
struct Transform<W> {
    length: usize,
    inverse: bool,
    plan: OnceLock<Arc<dyn Fft<W>>>,
    /// Memory for transforms that run at the same time. It stays for the next time.
    lines: Mutex<Vec<Line<W>>>,
}

/// The numbers of a transform, and its scratch memory.
struct Line<W> {
    numbers: Vec<Complex<W>>,
    scratch: Vec<Complex<W>>,
}

impl<W: Wide + FftNum> Transform<W> {
    fn new(length: usize, inverse: bool) -> Transform<W> {
        Transform { length, inverse, plan: OnceLock::new(), lines: Mutex::default() }
    }

    /// Transforms as many lines as `count` says: `load` writes one, `store` reads it. Inverses are not divided by
    /// the length.
    fn run(
        &self,
        count: usize,
        room: Room,
        load: impl Fn(usize, &mut [Complex<W>]),
        mut store: impl FnMut(usize, &[Complex<W>]),
    ) -> Result<()> {
        let plan = self.plan(room)?;
        let zero = Complex::new(W::of(0.0), W::of(0.0));
        let spare = self.lines.lock().ok().and_then(|mut lines| lines.pop());
        let mut line = match spare {
            Some(line) => line,
            None => Line {
                numbers: room.filled(self.length, zero)?,
                scratch: room.filled(plan.get_inplace_scratch_len(), zero)?,
            },
        };
        for i in 0..count {
            load(i, &mut line.numbers);
            plan.process_with_scratch(&mut line.numbers, &mut line.scratch);
            store(i, &line.numbers);
        }
        if let Ok(mut lines) = self.lines.lock() {
            room.push(&mut lines, line)?;
        }
        Ok(())
    }

    /// The plan, made when it is first asked for. rustfft allocates infallibly, so the most that it takes is reserved, and
    /// freed again, before.
    fn plan(&self, room: Room) -> Result<&Arc<dyn Fft<W>>> {
        if self.plan.get().is_none() {
            drop(room.list::<Complex<W>>(self.length.saturating_mul(PLANNED))?);
        }
        Ok(self.plan.get_or_init(|| {
            let mut planner = FftPlanner::new();
            if self.inverse {
                planner.plan_fft_inverse(self.length)
            } else {
                planner.plan_fft_forward(self.length)
            }
        }))
    }
}

/// A plan for `n` numbers keeps at most so many for each: a length that is a large prime goes by transforms of more
/// than twice that length, whose factors, with those of their parts, are kept beside the chirp.
const PLANNED: usize = 16;

/// A DFT along one axis of a tensor.
#[derive(Clone, Copy)]
struct Signal {
    /// Elements of the axes behind.
    inner: usize,
    /// Extents of the axis.
    given: usize,
    length: usize,
    wanted: usize,
    /// 2 for complex numbers, 1 for real ones.
    parts_in: usize,
    parts_out: usize,
    /// The input is one side of a symmetric spectrum.
    mirrored: bool,
    inverse: bool,
}

fn dft(site: &Site<'_>) -> Result<Prepared> {
    let (x, y) = (site.dims(0)?, site.result_dims(0)?);
    let rank = x.len();
    if rank < 2 {
        return Err(KernelError::value("a signal of rank 2 or more", format!("rank {rank}")));
    }
    let view = DftView::read(&site.view, rank)?;
    let axis = view.axis.ok_or(KernelError::NotYet)?;
    let length = match view.length.and_then(|n| usize::try_from(n).ok()) {
        Some(length) => length,
        None if view.has_length => return Err(KernelError::NotYet),
        None if view.one_sided && view.inverse => 2 * x[axis].saturating_sub(1),
        None => x[axis],
    };
    let signal = Signal {
        inner: x[axis + 1..rank - 1].iter().product(),
        given: x[axis],
        length,
        wanted: y[axis],
        parts_in: x[rank - 1],
        parts_out: y[rank - 1],
        mirrored: view.one_sided && view.inverse,
        inverse: view.inverse,
    };
    if length == 0 {
        return Ok(Prepared::new(|io| {
            io.out_bytes(0)?.fill(0);
            Ok(())
        }));
    }
    Ok(for_real!(site.dtype(0)?, site, T => {
        if view.inverse { dft_of::<T, <T as Real>::Wide>(signal) } else { dft_of::<T, f64>(signal) }
    }))
}

/// A DFT of `T` that is computed in `W`.
fn dft_of<T: Real, W: Wide + FftNum>(signal: Signal) -> Prepared {
    let transform = Transform::new(signal.length, signal.inverse);
    Prepared::new(move |io| {
        let from = io.slice::<T>(0)?;
        let to = io.out::<T>(0)?;
        let (failed, room) = (FirstError::default(), io.room());
        let unit = signal.wanted * signal.inner * signal.parts_out;
        let each = signal.given * signal.inner * signal.parts_in;
        slots::run::<T, u8>(to, unit, &mut [], slots::SLOTS, |first, to, _| {
            for (i, to) in to.chunks_exact_mut(unit).enumerate() {
                let from = &from[(first + i) * each..][..each];
                let load = |inner: usize, line: &mut [Complex<W>]| signal.load(from, inner, line);
                failed.note(
                    first + i,
                    transform.run(signal.inner, room, load, |inner, line| signal.store(line, inner, to)),
                );
            }
        });
        failed.result()
    })
}

/// A number as another type computes with it.
fn convert<T: Real, W: Wide>(x: T) -> W {
    W::of(x.wide().to())
}

fn round<T: Real, W: Wide>(x: W) -> T {
    T::round_f64(x.to())
}

impl Signal {
    /// The numbers along the axis, cut or filled with zeros.
    fn load<T: Real, W: Wide>(&self, from: &[T], inner: usize, line: &mut [Complex<W>]) {
        let zero = W::zero();
        let sides = if self.mirrored { self.length / 2 + 1 } else { self.length };
        let there = self.given.min(sides);
        for (n, number) in line[..there].iter_mut().enumerate() {
            let at = (n * self.inner + inner) * self.parts_in;
            let imaginary = if self.parts_in > 1 { convert(from[at + 1]) } else { zero };
            *number = Complex::new(convert(from[at]), imaginary);
        }
        line[there..].fill(Complex::new(zero, zero));
        if self.mirrored {
            mirror(line);
        }
    }

    fn store<T: Real, W: Wide>(&self, line: &[Complex<W>], inner: usize, to: &mut [T]) {
        let divisor = W::of(if self.inverse { number(self.length) } else { 1.0 });
        for (k, number) in line[..self.wanted].iter().enumerate() {
            let at = (k * self.inner + inner) * self.parts_out;
            to[at] = round(number.re / divisor);
            if self.parts_out > 1 {
                to[at + 1] = round(number.im / divisor);
            }
        }
    }
}

/// Makes a whole spectrum of one side of it, whose signal is real.
fn mirror<W: Wide>(line: &mut [Complex<W>]) {
    let n = line.len();
    line[0].im = W::zero();
    if n.is_multiple_of(2) {
        line[n / 2].im = W::zero();
    }
    for k in 1..n.div_ceil(2) {
        line[n - k] = Complex::new(line[k].re, -line[k].im);
    }
}

/// An STFT: a DFT of each frame, weighted.
#[derive(Clone, Copy)]
struct Frames {
    samples: usize,
    parts: usize,
    step: usize,
    length: usize,
    /// Frames per signal, and bins of each.
    frames: usize,
    bins: usize,
}

fn stft(site: &Site<'_>) -> Result<Prepared> {
    let (x, y) = (site.dims(0)?, site.result_dims(0)?);
    let positive = |i: usize| -> Result<Option<usize>> {
        let Some(numbers) = site.ints(i)? else { return Ok(None) };
        let number = numbers.first().copied().unwrap_or(0);
        let found = usize::try_from(number).ok().filter(|&n| n > 0);
        found.map(Some).ok_or_else(|| KernelError::value("a positive number", number))
    };
    let step = positive(1)?.ok_or(KernelError::NotYet)?;
    let window: Dims = if site.has(2) { site.dims(2)? } else { Dims::new() };
    let samples = x.get(1).copied().unwrap_or(1);
    let length = positive(3)?.or(window.first().copied()).unwrap_or(samples);
    let frames =
        Frames { samples, parts: x.get(2).copied().unwrap_or(1), step, length, frames: y[1], bins: y[2] };
    if window.first().is_some_and(|&n| n != length) {
        return Err(KernelError::value(format!("a window of {length} elements"), window[0]));
    }
    if !(1..=2).contains(&frames.parts) || frames.frames.saturating_sub(1) * step + length > samples {
        return Err(KernelError::value(
            "a signal of one or two parts and as long as a frame",
            format!("{x:?}"),
        ));
    }
    Ok(for_real!(site.dtype(0)?, site, T => stft_of::<T>(frames)))
}

fn stft_of<T: Real>(it: Frames) -> Prepared {
    let transform = Transform::new(it.length, false);
    Prepared::new(move |io| {
        let from = io.slice::<T>(0)?;
        let window = if io.has(2) { Some(io.slice::<T>(2)?) } else { None };
        let to = io.out::<T>(0)?;
        let (failed, room) = (FirstError::default(), io.room());
        let unit = it.bins * 2;
        slots::run::<T, u8>(to, unit, &mut [], slots::SLOTS, |first, to, _| {
            let load = |i: usize, line: &mut [Complex<f64>]| {
                let (batch, frame) = ((first + i) / it.frames, (first + i) % it.frames);
                let from = &from[(batch * it.samples + frame * it.step) * it.parts..][..it.length * it.parts];
                for (n, (number, x)) in line.iter_mut().zip(from.chunks_exact(it.parts)).enumerate() {
                    let weight = window.map_or(1.0, |w| convert(w[n]));
                    let imaginary = if it.parts > 1 { convert::<T, f64>(x[1]) * weight } else { 0.0 };
                    *number = Complex::new(convert::<T, f64>(x[0]) * weight, imaginary);
                }
            };
            failed.note(
                first,
                transform.run(to.len() / unit, room, load, |i, line| {
                    for (to, number) in to[i * unit..][..unit].chunks_exact_mut(2).zip(line) {
                        to[0] = round(number.re);
                        to[1] = round(number.im);
                    }
                }),
            );
        });
        failed.result()
    })
}

/// A result whose elements are numbers that are made, rounded to its element type: to integers toward zero.
fn made(site: &Site<'_>, make: impl Fn(usize) -> f64 + Send + Sync + 'static) -> Result<Prepared> {
    fn fill<T: crate::host::Element>(
        make: impl Fn(usize) -> f64 + Send + Sync + 'static,
        round: fn(f64) -> T,
    ) -> Prepared {
        Prepared::new(move |io| {
            io.out::<T>(0)?.iter_mut().enumerate().for_each(|(i, y)| *y = round(make(i)));
            Ok(())
        })
    }
    Ok(match site.result_dtype(0)? {
        DType::F64 => fill(make, |x| x),
        DType::F32 => fill::<f32>(make, f64::as_),
        DType::F16 => fill(make, f16::round_f64),
        DType::BF16 => fill(make, bf16::round_f64),
        DType::I64 => fill::<i64>(make, f64::as_),
        DType::I32 => fill::<i32>(make, f64::as_),
        DType::I16 => fill::<i16>(make, f64::as_),
        DType::I8 => fill::<i8>(make, f64::as_),
        DType::U64 => fill::<u64>(make, f64::as_),
        DType::U32 => fill::<u32>(make, f64::as_),
        DType::U16 => fill::<u16>(make, f64::as_),
        DType::U8 => fill::<u8>(make, f64::as_),
        _ => return Err(site.no_kernel()),
    })
}

#[expect(clippy::cast_precision_loss, reason = "what is counted fits in memory")]
fn number(n: usize) -> f64 {
    n as f64
}

fn window(site: &Site<'_>, a: [f64; 3]) -> Result<Prepared> {
    let size = site.result_dims(0)?[0];
    let period = number(size) - if site.view.int("periodic").unwrap_or(1) == 0 { 1.0 } else { 0.0 };
    made(site, move |n| {
        let angle = number(n) * std::f64::consts::TAU / period;
        a[0] - a[1] * angle.cos() + a[2] * (2.0 * angle).cos()
    })
}

/// MelWeightMatrix: triangles that are even on the mel scale, `mel(f) = 2595 · log10(1 + f / 700)`, over the bins of
/// a one-sided spectrum. Edges are the bins below them.
fn mel_weights(site: &Site<'_>) -> Result<Prepared> {
    let int = |i: usize| -> Result<f64> {
        let numbers = site.ints(i)?.unwrap_or_default();
        #[expect(clippy::cast_precision_loss, reason = "the formula is in floats")]
        let first = numbers.first().map(|&n| n as f64);
        first.ok_or_else(|| KernelError::value("one number", "none"))
    };
    let float = |i: usize| -> Result<f64> {
        site.floats(i)?
            .and_then(|f| f.first().copied())
            .ok_or_else(|| KernelError::value("one number", "none"))
    };
    let (length, rate) = (int(1)?, int(2)?);
    let dims = site.result_dims(0)?;
    let (bins, bands) = (dims[0], dims[1]);
    let mel = |f: f64| 2595.0 * (f / 700.0).ln_1p() / std::f64::consts::LN_10;
    let low = mel(float(3)?);
    let step = (mel(float(4)?) - low) / number(bands + 2);
    let edge = move |i: usize| {
        let frequency = 700.0 * ((number(i) * step + low) / 2595.0 * std::f64::consts::LN_10).exp_m1();
        ((length + 1.0) * frequency / rate).floor()
    };
    let (first, last) = (edge(0), edge(bands + 1));
    if !(first >= 0.0 && first <= last && last <= number(bins)) {
        return Err(KernelError::value(
            format!("edges that rise within {bins} bins"),
            format!("bins from {first} to {last}"),
        ));
    }
    made(site, move |i| {
        let (bin, band) = (number(i / bands), i % bands);
        let (left, center, right) = (edge(band), edge(band + 1), edge(band + 2));
        if bin == center {
            1.0
        } else if left <= bin && bin <= center {
            (bin - left) / (center - left)
        } else if center < bin && bin < right {
            (right - bin) / (right - center)
        } else {
            0.0
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spectra_are_mirrored() {
        let of =
            |numbers: &[(f64, f64)]| numbers.iter().map(|&(r, i)| Complex::new(r, i)).collect::<Vec<_>>();
        let mut even = of(&[(1.0, 9.0), (2.0, 3.0), (4.0, 9.0), (0.0, 0.0)]);
        mirror(&mut even);
        assert_eq!(even, of(&[(1.0, 0.0), (2.0, 3.0), (4.0, 0.0), (2.0, -3.0)]));
        let mut odd = of(&[(1.0, 9.0), (2.0, 3.0), (0.0, 0.0)]);
        mirror(&mut odd);
        assert_eq!(odd, of(&[(1.0, 0.0), (2.0, 3.0), (2.0, -3.0)]));
        let mut one = of(&[(1.0, 9.0)]);
        mirror(&mut one);
        assert_eq!(one, of(&[(1.0, 0.0)]));
    }
}
