//! Numbers as multiples of scales: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear.
//!
//! y = saturate(round(x / scale) + zero point), the quotient rounded to the element type of the scale (or `precision`)
//! and to the nearest whole number, ties to even; a float result is x / scale + zero point rounded once. Back it is
//! (y − zero point) · scale in f32, rounded once.

use super::fold::{Fold, fold_run};
use super::lane::{BLOCK, Encoding, Lane, RoundMode, bits_of, block_bytes, encode};
use super::parallel::{PIECE, pieces};
use crate::kernel::{Io, Prepare, Prepared, Result, Site};
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::{Granularity, OpError, QuantizeView};
use half::{bf16, f16};
use std::sync::OnceLock;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::ContribDequantizeLinear | OpKind::DequantizeLinear => dequantize,
        OpKind::ContribQuantizeLinear | OpKind::QuantizeLinear => quantize,
        OpKind::DynamicQuantizeLinear => dynamic_quantize,
        _ => return None,
    })
}

/// Which scale which element has.
#[derive(Clone, Copy)]
enum Scales {
    /// All the first.
    One,
    /// Runs of `inner` elements share one, and after `extent` of them it is the first again.
    Axis { extent: usize, inner: usize },
    /// `extent` rows of `inner` elements, where `size` neighbouring rows share `inner` scales.
    Blocks { extent: usize, inner: usize, size: usize },
}

impl Scales {
    fn of(site: &Site<'_>, granularity: Granularity) -> Result<Scales> {
        let dims = site.dims(0)?;
        let inner = |axis: usize| dims[axis + 1..].iter().product::<usize>().max(1);
        Ok(match granularity {
            Granularity::Tensor => Scales::One,
            Granularity::Axis(axis) => Scales::Axis { extent: dims[axis], inner: inner(axis) },
            Granularity::Blocks { axis, size } => {
                let size = usize::try_from(size).unwrap_or(usize::MAX);
                Scales::Blocks { extent: dims[axis], inner: inner(axis), size }
            }
            Granularity::Unknown => return Err(crate::kernel::KernelError::NotYet),
        })
    }

    /// The number of scales for this number of elements.
    fn count(self, elements: usize) -> usize {
        match self {
            Scales::One => 1,
            Scales::Axis { extent, .. } => extent,
            Scales::Blocks { extent, size, .. } => {
                elements.checked_div(extent).map_or(0, |rows| rows * extent.div_ceil(size))
            }
        }
    }

    /// The scales of the elements from `start` on.
    fn spread(self, scales: &[f32], start: usize, to: &mut [f32]) {
        let (mut at, end) = (start, start + to.len());
        while at < end {
            // Elements up to `next` have one scale, or one each from `first` on.
            let (next, first, each) = match self {
                Scales::One => (end, 0, false),
                Scales::Axis { extent, inner: 1 } => (at - at % extent + extent, at % extent, true),
                Scales::Axis { extent, inner } => (at - at % inner + inner, at / inner % extent, false),
                Scales::Blocks { extent, inner: 1, size } => {
                    let (row, column) = (at / extent, at % extent);
                    let next = column.saturating_sub(column % size).saturating_add(size).min(extent);
                    (row * extent + next, row * extent.div_ceil(size) + column / size, false)
                }
                Scales::Blocks { extent, inner, size } => {
                    let (row, column) = (at / inner, at % inner);
                    let block = row / extent * extent.div_ceil(size) + row % extent / size;
                    (at - column + inner, block * inner + column, true)
                }
            };
            let to = &mut to[at - start..next.min(end) - start];
            if each {
                to.copy_from_slice(&scales[first..first + to.len()])
            } else {
                to.fill(scales[first])
            }
            at += to.len();
        }
    }
}

/// Scales and zero points.
#[derive(Clone, Copy)]
struct Grid {
    scales: Scales,
    /// The number.
    count: usize,
    scale: DType,
    zero: Option<DType>,
}

impl Grid {
    fn of(site: &Site<'_>, granularity: Granularity) -> Result<Grid> {
        let scales = Scales::of(site, granularity)?;
        let count = scales.count(site.dims(0)?.iter().product());
        for i in (1..3).filter(|&i| site.has(i)) {
            let found: usize = site.dims(i)?.iter().product();
            if found != count {
                return Err(OpError::operand(i, format!("{count} elements"), found.to_string()).into());
            }
        }
        let zero = if site.has(2) { Some(site.dtype(2)?) } else { None };
        Ok(Grid { scales, count, scale: site.dtype(1)?, zero })
    }

    fn scratch(self) -> usize {
        2 * self.count * size_of::<f32>()
    }

    /// All scales and zero points, in scratch memory.
    fn read<'a>(self, io: &mut Io<'a>) -> Result<(&'a [f32], Option<&'a [f32]>)> {
        let (scales, zeros) = io.scratch::<f32>().split_at_mut(self.count);
        f32::decode(self.scale, io.bytes(1)?, scales)?;
        let Some(dtype) = self.zero else { return Ok((scales, None)) };
        f32::decode(dtype, io.bytes(2)?, &mut zeros[..self.count])?;
        Ok((scales, Some(&zeros[..self.count])))
    }

    /// Computes `f(x, scale, zero point)` of every element, a block at a time.
    fn apply(
        self,
        io: &mut Io<'_>,
        (from, encoding): (DType, Encoding),
        f: impl Fn(f32, f32, f32) -> f32 + Send + Sync,
    ) -> Result<()> {
        let (scales, zeros) = self.read(io)?;
        let (source, to) = (io.tensor(0)?, io.out_bytes(0)?);
        let count = usize::try_from(source.element_count()).unwrap_or(usize::MAX);
        let source = io.bytes(0)?;
        let (from_bits, to_bits) = (bits_of(from)?, bits_of(encoding.to)?);
        let failed = OnceLock::new();
        pieces(to, PIECE / 8 * to_bits, |at, to| {
            let mut start = at * 8 / to_bits;
            let (mut x, mut scale, mut zero) = ([0f32; BLOCK], [0f32; BLOCK], [0f32; BLOCK]);
            for to in to.chunks_mut(block_bytes(to_bits)) {
                let n = BLOCK.min(count - start);
                let (x, scale, zero) = (&mut x[..n], &mut scale[..n], &mut zero[..n]);
                let decoded = f32::decode(from, &source[start * from_bits / 8..], x);
                self.scales.spread(scales, start, scale);
                if let Some(zeros) = zeros {
                    self.scales.spread(zeros, start, zero);
                }
                x.iter_mut().zip(&*scale).zip(&*zero).for_each(|((x, &s), &z)| *x = f(*x, s, z));
                if let Err(error) = decoded.and_then(|()| store(x, encoding, to)) {
                    failed.get_or_init(|| error);
                }
                start += n;
            }
        });
        failed.into_inner().map_or(Ok(()), Err)
    }
}

/// The least and the greatest number of a type of at most 16 bits.
pub(super) fn integer_range(dtype: DType) -> Option<(f32, f32)> {
    Some(match dtype {
        DType::U16 => (0.0, 65535.0),
        DType::I16 => (-32768.0, 32767.0),
        DType::U8 => (0.0, 255.0),
        DType::I8 => (-128.0, 127.0),
        DType::U4 => (0.0, 15.0),
        DType::I4 => (-8.0, 7.0),
        DType::U2 => (0.0, 3.0),
        DType::I2 => (-2.0, 1.0),
        _ => return None,
    })
}

/// 1.5 · 2^23: a number added to it is rounded to a whole number, ties to even, which is in the low bits.
const WHOLE: f32 = 12_582_912.0;

/// A number rounded to whole, moved, and put into a range; both ends and `zero` are whole. NaN is as 0.
#[inline]
pub(super) fn round_into((low, high): (f32, f32), x: f32, zero: f32) -> f32 {
    // What is rounded is in the range already, so it is small.
    let x = if x < low - zero { low - zero } else { x };
    let x = if x > high - zero { high - zero } else { x };
    let y = (x + WHOLE) - WHOLE + zero;
    if y.is_nan() { zero } else { y }
}

/// Writes numbers; those of an integer type are whole and in its range.
pub(super) fn store(from: &[f32], encoding: Encoding, to: &mut [u8]) -> Result<()> {
    match encoding.to {
        DType::U8 | DType::I8 => {
            store_bytes(from, to);
            Ok(())
        }
        _ => encode(from, encoding, to),
    }
}

/// Writes whole numbers from -2^22 to 2^22: their low bits.
fn store_bytes(from: &[f32], to: &mut [u8]) {
    to.iter_mut().zip(from).for_each(|(to, &x)| [*to, ..] = (x + WHOLE).to_bits().to_le_bytes());
}

/// The least and the greatest of numbers and 0; NaN is neither.
#[derive(Clone, Copy)]
enum Extreme {
    Least,
    Greatest,
}

impl Fold<f32> for Extreme {
    fn start(self) -> f32 {
        0.0
    }
    #[inline]
    fn term(self, x: f32, _: f32) -> f32 {
        x
    }
    #[inline]
    fn join(self, a: f32, b: f32) -> f32 {
        let is_b = match self {
            Extreme::Least => b < a,
            Extreme::Greatest => b > a,
        };
        if is_b { b } else { a }
    }
}

fn quantize(site: &Site<'_>) -> Result<Prepared> {
    let view = QuantizeView::quantize(&site.view)?;
    let (from, to) = (site.dtype(0)?, site.result_dtype(0)?);
    let grid = Grid::of(site, view.granularity)?;
    let encoding = Encoding { to, saturate: view.saturate, round_mode: RoundMode::Up };
    let divide: fn(f32, f32) -> f32 = match view.compute {
        Some(DType::F16) => |x, scale| f16::from_f32(x / scale).to_f32(),
        Some(DType::BF16) => |x, scale| bf16::from_f32(x / scale).to_f32(),
        _ => |x, scale| x / scale,
    };
    let exactly = matches!(view.compute, Some(DType::F16 | DType::BF16));
    let kernel = match (integer_range(to), exactly) {
        (Some(range), false) => Prepared::new(move |io| {
            grid.apply(io, (from, encoding), |x, scale, zero| round_into(range, x / scale, zero))
        }),
        (Some(range), true) => Prepared::new(move |io| {
            grid.apply(io, (from, encoding), |x, scale, zero| round_into(range, divide(x, scale), zero))
        }),
        (None, _) if to.is_float() => Prepared::new(move |io| {
            grid.apply(io, (from, encoding), |x, scale, zero| divide(x, scale) + zero)
        }),
        (None, _) => return Err(site.no_kernel()),
    };
    Ok(kernel.scratch(grid.scratch()))
}

fn dequantize(site: &Site<'_>) -> Result<Prepared> {
    let view = QuantizeView::dequantize(&site.view)?;
    let (from, encoding) = (site.dtype(0)?, Encoding::new(site.result_dtype(0)?));
    let grid = Grid::of(site, view.granularity)?;
    let kernel =
        Prepared::new(move |io| grid.apply(io, (from, encoding), |x, scale, zero| (x - zero) * scale));
    Ok(kernel.scratch(grid.scratch()))
}

/// To bytes, by the range of the numbers, which is made to have 0 in it.
fn dynamic_quantize(_: &Site<'_>) -> Result<Prepared> {
    Ok(Prepared::new(|io| {
        let from = io.slice::<f32>(0)?;
        let (low, high) = (fold_run(Extreme::Least, from, 0f32), fold_run(Extreme::Greatest, from, 0f32));
        let range = (0.0, 255.0);
        let scale = (high - low) / 255.0;
        let zero = if scale == 0.0 { 0.0 } else { round_into(range, (-low / scale).clamp(0.0, 255.0), 0.0) };
        if let Some(to) = io.out::<f32>(1)?.first_mut() {
            *to = scale;
        }
        store_bytes(&[zero], io.out::<u8>(2)?);
        pieces(io.out::<u8>(0)?, PIECE, |at, to| {
            let mut block = [0f32; BLOCK];
            for (to, from) in to.chunks_mut(BLOCK).zip(from[at..].chunks(BLOCK)) {
                let rounded = block.iter_mut().zip(from);
                rounded.for_each(|(y, &x)| *y = round_into(range, x / scale, zero));
                store_bytes(&block, to);
            }
        });
        Ok(())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_into_their_range() {
        let cases =
            [(0.5, 0.0), (1.5, 2.0), (2.5, 2.0), (-0.5, 0.0), (254.6, 255.0), (1e30, 255.0), (-3.0, 0.0)];
        for (x, want) in cases {
            assert_eq!(round_into((0.0, 255.0), x, 0.0), want, "{x}");
            assert_eq!(round_into((-128.0, 127.0), x, -128.0), want - 128.0, "{x}");
        }
        let of = |x: f32| round_into((-32768.0, 32767.0), x, 5.0);
        assert_eq!([of(f32::NAN), of(f32::INFINITY), of(f32::NEG_INFINITY)], [5.0, 32767.0, -32768.0]);
        let mut bytes = [0; 4];
        store_bytes(&[-128.0, -1.0, 127.0, 255.0], &mut bytes);
        assert_eq!(bytes, [128, 255, 127, 255]);
    }

    #[test]
    fn a_range_leaves_nan_out() {
        let x: Vec<f32> =
            (0..5000u16).map(|i| if i == 7 { f32::NAN } else { f32::from(i) - 100.0 }).collect();
        assert_eq!(fold_run(Extreme::Least, &x, 0f32), -100.0);
        assert_eq!(fold_run(Extreme::Greatest, &x, 0f32), 4899.0);
        assert_eq!(fold_run(Extreme::Least, &x[200..], 0f32), 0.0);
    }

    fn spread(scales: Scales, start: usize, n: usize) -> Vec<f32> {
        let mut to = vec![-1.0; n];
        scales.spread(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0], start, &mut to);
        to
    }

    #[test]
    fn scales_are_spread_along_axes_and_blocks() {
        assert_eq!(spread(Scales::One, 5, 3), [0.0; 3]);
        assert_eq!(spread(Scales::Axis { extent: 3, inner: 2 }, 1, 7), [0.0, 1.0, 1.0, 2.0, 2.0, 0.0, 0.0]);
        assert_eq!(spread(Scales::Axis { extent: 3, inner: 1 }, 1, 5), [1.0, 2.0, 0.0, 1.0, 2.0]);
        // Two rows of five in blocks of two.
        let last = Scales::Blocks { extent: 5, inner: 1, size: 2 };
        assert_eq!(spread(last, 1, 9), [0.0, 1.0, 1.0, 2.0, 3.0, 3.0, 4.0, 4.0, 5.0]);
        // 2 × 3 × 2, blocks of two along the middle.
        let middle = Scales::Blocks { extent: 3, inner: 2, size: 2 };
        assert_eq!(spread(middle, 0, 12), [0., 1., 0., 1., 2., 3., 4., 5., 4., 5., 6., 7.]);
    }
}
