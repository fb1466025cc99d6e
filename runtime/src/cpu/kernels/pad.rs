//! Operators that pad or crop a tensor: Pad, CenterCropPad.

use super::elements::{Cell, Movement, moved, rows, strides};
use crate::geometry;
use crate::kernel::{Io, KernelError, Prepare, Prepared, Result, Site};
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::broadcast::Bound;
use ampc_ir::views::{OpError, PadView};
use half::{bf16, f16};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::CenterCropPad => center_crop_pad,
        OpKind::Pad => pad,
        _ => return None,
    })
}

/// Content of the padding.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Constant,
    Edge,
    Reflect,
    Wrap,
}

/// An axis of the result: of the elements `low..high` of the operand the first is element `low + before`.
#[derive(Clone, Copy)]
struct PadAxis {
    /// The extent of the operand.
    n: usize,
    before: i64,
    low: i64,
    high: i64,
    extent: usize,
    stride: usize,
}

impl PadAxis {
    fn new(n: usize, before: i64, extent: usize, stride: usize) -> PadAxis {
        let (all, whole) = (signed(n), signed(extent));
        // What is cut off behind is beyond the result.
        let low = before.saturating_neg().clamp(0, all);
        let high = all.min(whole.saturating_sub(before)).max(low);
        PadAxis { n, before, low, high, extent, stride }
    }

    /// True if the result has the elements of the operand along it, all of them and nothing else.
    fn is_whole(&self) -> bool {
        self.before == 0 && self.extent == self.n
    }

    /// Which element of the operand element `i` of the result is.
    fn source(&self, i: usize, mode: Mode) -> Option<usize> {
        let n = self.high - self.low;
        let inside = signed(i).saturating_sub(self.before).saturating_sub(self.low);
        let found = match mode {
            _ if (0..n).contains(&inside) => inside,
            Mode::Constant => return None,
            Mode::Edge => inside.clamp(0, n - 1),
            Mode::Wrap => inside.rem_euclid(n),
            Mode::Reflect if n == 1 => 0,
            Mode::Reflect => {
                let there = inside.rem_euclid(2 * (n - 1));
                there.min(2 * (n - 1) - there)
            }
        };
        usize::try_from(self.low + found).ok()
    }
}

/// An extent or index in memory, all of which are below 2^63.
fn signed(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Value of the padding.
enum Fill {
    Zero,
    /// The element with these bytes.
    Bytes(Vec<u8>),
    /// The element of the second operand.
    Operand,
}

struct Padding {
    axes: Vec<PadAxis>,
    mode: Mode,
    fill: Fill,
}

impl Padding {
    /// A result whose first element at each axis is `befores` before that of the operand.
    fn new(site: &Site<'_>, befores: &[i64], mode: Mode, fill: Fill) -> Result<Padding> {
        Padding::of(&site.dims(0)?, &site.result_dims(0)?, befores, mode, fill)
    }

    fn of(dims: &[usize], result: &[usize], befores: &[i64], mode: Mode, fill: Fill) -> Result<Padding> {
        let mut axes: Vec<PadAxis> = Vec::with_capacity(dims.len());
        for (axis, &stride) in strides(dims).iter().enumerate() {
            let next = PadAxis::new(dims[axis], befores[axis], result[axis], stride);
            if mode != Mode::Constant && next.high == next.low && !result.contains(&0) {
                let expected = format!("elements to repeat along axis {axis}");
                return Err(KernelError::value(expected, "none"));
            }
            match axes.last_mut() {
                Some(last) if last.is_whole() && next.is_whole() => {
                    let extent = last.extent.saturating_mul(next.extent);
                    *last = PadAxis::new(extent, 0, extent, stride);
                }
                _ => axes.push(next),
            }
        }
        if axes.is_empty() {
            axes.push(PadAxis::new(1, 0, 1, 1));
        }
        Ok(Padding { axes, mode, fill })
    }

    /// Where a row of the operand starts that is `row` of the result; `None` if it is outside.
    fn start_of(&self, row: usize) -> Option<usize> {
        let (mut rest, mut start) = (row, 0);
        for axis in self.axes[..self.axes.len() - 1].iter().rev() {
            start += axis.source(rest % axis.extent, self.mode)? * axis.stride;
            rest /= axis.extent;
        }
        Some(start)
    }
}

impl Movement for Padding {
    fn run<T: Cell>(&self, _: &Io<'_>, from: &[&[T]], to: &mut [&mut [T]]) -> Result<()> {
        let fill = match &self.fill {
            Fill::Zero => T::default(),
            Fill::Bytes(bytes) => bytemuck::pod_read_unaligned(bytes),
            Fill::Operand => {
                let [value] = from[1] else {
                    return Err(OpError::operand(2, "one element", from[1].len().to_string()).into());
                };
                *value
            }
        };
        let last = self.axes[self.axes.len() - 1];
        rows(to[0], last.extent.max(1), |row, first, to| {
            let Some(start) = self.start_of(row) else { return to.fill(fill) };
            let end = signed(first + to.len());
            let inside = (last.low + last.before).max(signed(first)).min(end);
            let behind = (last.high + last.before).clamp(inside, end);
            let index = |i: i64| usize::try_from(i - signed(first)).unwrap_or(0);
            let (inside, behind) = (index(inside), index(behind));
            let outside = |i: usize| match last.source(first + i, self.mode) {
                Some(at) => from[0][start + at],
                None => fill,
            };
            for i in (0..inside).chain(behind..to.len()) {
                to[i] = outside(i);
            }
            if inside < behind {
                let at = start + last.source(first + inside, self.mode).unwrap_or(0);
                to[inside..behind].copy_from_slice(&from[0][at..at + behind - inside]);
            }
        });
        Ok(())
    }
}

fn pad(site: &Site<'_>) -> Result<Prepared> {
    let view = PadView::read(&site.view)?;
    let befores = geometry::pads_before(site, &view)?;
    let mode = match view.mode {
        "constant" => Mode::Constant,
        "edge" => Mode::Edge,
        "reflect" => Mode::Reflect,
        "wrap" => Mode::Wrap,
        other => return Err(OpError::attr("mode", "constant, edge, reflect or wrap", other).into()),
    };
    let (fill, operands): (Fill, &[usize]) = match view.value {
        Bound::Operand(2) if mode == Mode::Constant => (Fill::Operand, &[0, 2]),
        Bound::Number(value) if value != 0.0 => (Fill::Bytes(bytes_of(site, value)?), &[0]),
        Bound::None | Bound::Number(_) | Bound::Operand(_) => (Fill::Zero, &[0]),
    };
    moved(site, operands, Padding::new(site, &befores, mode, fill)?)
}

/// The element that a number is in the type of operand 0.
fn bytes_of(site: &Site<'_>, value: f32) -> Result<Vec<u8>> {
    Ok(match site.dtype(0)? {
        DType::F32 => value.to_le_bytes().to_vec(),
        DType::F64 => f64::from(value).to_le_bytes().to_vec(),
        DType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        _ => return Err(site.no_kernel()),
    })
}

fn center_crop_pad(site: &Site<'_>) -> Result<Prepared> {
    let befores = geometry::crops_before(site)?;
    moved(site, &[0], Padding::new(site, &befores, Mode::Constant, Fill::Zero)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::kernels::tests::{ints, no_io, run};

    /// The elements of an axis of extent `n` along the result: first the cut, then the repetition.
    fn axis(n: i64, before: i64, after: i64, mode: Mode) -> Vec<Option<i64>> {
        let kept: Vec<i64> = ((-before).max(0)..n - (-after).max(0)).collect();
        let len = signed(kept.len());
        let at = |i: i64| match mode {
            Mode::Constant => None,
            Mode::Edge => Some(i.clamp(0, len - 1)),
            Mode::Wrap => Some(i.rem_euclid(len)),
            Mode::Reflect => {
                let mut i = i;
                while !(0..len).contains(&i) {
                    i = if len == 1 {
                        0
                    } else if i < 0 {
                        -i
                    } else {
                        2 * (len - 1) - i
                    };
                }
                Some(i)
            }
        };
        let of = |i: i64| if (0..len).contains(&i) { Some(i) } else { at(i) };
        let kept_at = |i: i64| of(i).map(|i| kept[usize::try_from(i).unwrap()]);
        (-before.max(0)..len + after.max(0)).map(kept_at).collect()
    }

    #[test]
    fn all_signs_on_two_axes() {
        let (dims, amounts) = ([3usize, 4], [-2i64, -1, 0, 1, 5]);
        let from: Vec<u32> = (1..=12).collect();
        let all = |i: usize| [i % 5, i / 5 % 5, i / 25 % 5, i / 125].map(|i| amounts[i]);
        for (pads, mode) in (0..625)
            .flat_map(|i| [Mode::Constant, Mode::Edge, Mode::Reflect, Mode::Wrap].map(|mode| (all(i), mode)))
        {
            let [b0, b1, a0, a1] = pads;
            if 3 + b0.min(0) + a0.min(0) < 1 || 4 + b1.min(0) + a1.min(0) < 1 {
                continue;
            }
            let (rows, columns) = (axis(3, b0, a0, mode), axis(4, b1, a1, mode));
            let element = |row: &Option<i64>, column: &Option<i64>| match (row, column) {
                (Some(row), Some(column)) => from[usize::try_from(row * 4 + column).unwrap()],
                _ => 0,
            };
            let want: Vec<u32> =
                rows.iter().flat_map(|row| columns.iter().map(move |column| element(row, column))).collect();
            let result = [rows.len(), columns.len()];
            let padding = Padding::of(&dims, &result, &[b0, b1], mode, Fill::Zero).unwrap();
            let mut to = vec![99; want.len()];
            padding.run::<u32>(&no_io(), &[&from], &mut [&mut to]).unwrap();
            assert_eq!(to, want, "{pads:?}");
        }
    }

    #[test]
    fn a_constant_is_one_element() {
        let inputs =
            |values: &[i64]| [ints(&[2], &[1, 2]), ints(&[2], &[1, 0]), ints(&[values.len()], values)];
        let y = run("Pad(%0, %1, %2)", &["i64"], &inputs(&[7])).unwrap();
        assert_eq!(y[0].as_slice::<i64>().unwrap(), [7, 1, 2]);
        for values in [&[][..], &[7, 8]] {
            let error = run("Pad(%0, %1, %2)", &["i64"], &inputs(values)).unwrap_err();
            assert!(error.contains("expected one element"), "{error}");
        }
    }
}
