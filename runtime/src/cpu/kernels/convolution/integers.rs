//! Convolutions of integers: ConvInteger, QLinearConv.
//!
//! Integers are computed in f64, which holds every sum of fewer than 2^37 products.

use super::columns::{Load, fill_columns, most_converted};
use super::{Cut, Sizes, multiply_columns};
use crate::cpu::kernels::parallel::{PIECE, pieces};
use crate::cpu::kernels::tiles::TileRows;
use crate::cpu::kernels::window::Block;
use crate::host::Element;
use crate::kernel::{Io, Prepared, Result, Site};
use crate::room::Room;
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use std::marker::PhantomData;
use std::ops::Range;

/// Integers less their zero point.
#[derive(Clone, Copy)]
struct Centered<T>(f64, PhantomData<T>);

impl<T: Element + Into<f64> + Send + Sync> Load<f64> for Centered<T> {
    type From = T;
    fn as_stored(_: &[T]) -> Option<&[f64]> {
        None
    }
    fn convert(self, from: &[T], to: &mut [f64]) {
        to.iter_mut().zip(from).for_each(|(y, &x)| *y = x.into() - self.0);
    }
}

/// An operand that is absent, one number, or one number per output channel.
fn per_channel(io: &Io<'_>, operand: usize, channels: usize) -> Result<Vec<f64>> {
    if !io.has(operand) {
        return Ok(vec![0.0]);
    }
    let (tensor, room) = (io.tensor(operand)?, io.room());
    let numbers: Vec<f64> = match tensor.dtype() {
        DType::I8 => room.gathered(tensor.as_slice::<i8>()?.iter().map(|&x| x.into())),
        DType::U8 => room.gathered(tensor.as_slice::<u8>()?.iter().map(|&x| x.into())),
        _ => room.gathered(tensor.as_slice::<f32>()?.iter().map(|&x| x.into())),
    }?;
    if numbers.len() != 1 && numbers.len() != channels {
        let expected = format!("one number or {channels}");
        return Err(OpError::operand(operand, expected, numbers.len().to_string()).into());
    }
    Ok(numbers)
}

fn of_channel(numbers: &[f64], channel: usize) -> f64 {
    if numbers.len() == 1 { numbers[0] } else { numbers[channel] }
}

pub(super) fn conv_integer(site: &Site<'_>) -> Result<Prepared> {
    let (sizes, conv) = Sizes::of(site)?;
    Ok(match (site.dtype(0)?, site.dtype(conv.weights)?) {
        (DType::I8, DType::I8) => conv_integer_of::<i8, i8>(site, sizes)?,
        (DType::I8, DType::U8) => conv_integer_of::<i8, u8>(site, sizes)?,
        (DType::U8, DType::I8) => conv_integer_of::<u8, i8>(site, sizes)?,
        (DType::U8, DType::U8) => conv_integer_of::<u8, u8>(site, sizes)?,
        _ => return Err(site.no_kernel()),
    })
}

fn conv_integer_of<X, V>(site: &Site<'_>, sizes: Sizes) -> Result<Prepared>
where
    X: Element + Into<f64> + Send + Sync,
    V: Element + Into<f64> + Send + Sync,
{
    let result = site.result_dtype(0)?;
    let is_linear = site.kind() == OpKind::QLinearConv;
    let (weights_operand, zero_points) = if is_linear { (3, [2, 5]) } else { (1, [2, 3]) };
    let cut = Cut::of(&sizes);
    let blocks = cut.blocks(&sizes, site.room)?;
    let slot = cut.slot(sizes.depth(), most_converted(&sizes.window, &blocks));
    let words = sizes.weights().saturating_add(cut.slots.saturating_mul(slot));
    let run = move |io: &mut Io<'_>| {
        let (x, w) = (io.slice::<X>(0)?, io.slice::<V>(weights_operand)?);
        let channels = sizes.groups * sizes.outputs;
        let x_zero = per_channel(io, zero_points[0], 1)?[0];
        let w_zeros = per_channel(io, zero_points[1], channels)?;
        let (centered, scratch) = io.scratch::<f64>().split_at_mut(sizes.weights());
        let (depth, memory) = (sizes.depth(), io.room());
        pieces(centered, PIECE, |at, to| {
            for (i, (y, &w)) in to.iter_mut().zip(&w[at..]).enumerate() {
                *y = w.into() - of_channel(&w_zeros, (at + i) / depth);
            }
        });
        let job = IntegerJob { sizes: &sizes, cut, blocks: &blocks, slot, x, x_zero, weights: centered };
        if !is_linear {
            return job.run(scratch, io.out::<i32>(0)?, memory, |_, x| wrap(x));
        }
        let scale = Rescale::read(io, channels)?;
        match result {
            DType::I8 => {
                job.run(scratch, io.out::<i8>(0)?, memory, |channel, x| saturate_i8(scale.apply(channel, x)))
            }
            _ => {
                job.run(scratch, io.out::<u8>(0)?, memory, |channel, x| saturate_u8(scale.apply(channel, x)))
            }
        }
    };
    Ok(Prepared::new(run).scratch(words.saturating_mul(size_of::<f64>())))
}

struct IntegerJob<'a, X> {
    sizes: &'a Sizes,
    cut: Cut,
    /// The positions of each column of tiles.
    blocks: &'a [Block],
    /// Scratch elements of a slot.
    slot: usize,
    x: &'a [X],
    x_zero: f64,
    weights: &'a [f64],
}

impl<X: Element + Into<f64> + Send + Sync> IntegerJob<'_, X> {
    fn run<T: Copy + Send + 'static>(
        &self,
        scratch: &mut [f64],
        to: &mut [T],
        room: Room,
        store: impl Fn(usize, f64) -> T + Send + Sync,
    ) -> Result<()> {
        let window = &self.sizes.window;
        let group = self.sizes.inputs * window.image();
        let grid = window.grid();
        let fill = |matrix: usize, at: Range<usize>, to: &mut [f64], free: &mut [f64]| {
            let block = &self.blocks[at.start / self.cut.positions];
            let x = &self.x[matrix * group..(matrix + 1) * group];
            fill_columns(window, block, x, Centered::<X>(self.x_zero, PhantomData), free, to);
        };
        let rows = TileRows::default();
        multiply_columns(
            (self.sizes, self.cut, &rows, 1),
            self.weights,
            (scratch, self.slot),
            to,
            room,
            fill,
            |channel, _, sums, to, _| {
                for (i, (to, row)) in to.chunks_mut(grid).zip(sums.chunks(grid)).enumerate() {
                    to.iter_mut().zip(row).for_each(|(y, &x)| *y = store(channel + i, x));
                }
            },
        )
    }
}

/// How QLinearConv makes 8 bits of a sum.
struct Rescale {
    factors: Vec<f64>,
    zero: f64,
    bias: Vec<f64>,
}

impl Rescale {
    fn read(io: &Io<'_>, channels: usize) -> Result<Rescale> {
        let x_scale = per_channel(io, 1, 1)?[0];
        let y_scale = per_channel(io, 6, 1)?[0];
        let factors = per_channel(io, 4, channels)?;
        let factors = io.room().gathered(factors.iter().map(|w| x_scale * w / y_scale))?;
        let bias = if io.has(8) { io.slice::<i32>(8)? } else { &[] };
        let bias = io.room().gathered(bias.iter().map(|&b| b.into()))?;
        Ok(Rescale { factors, zero: per_channel(io, 7, 1)?[0], bias })
    }

    fn apply(&self, channel: usize, sum: f64) -> f64 {
        let sum = sum + self.bias.get(channel).copied().unwrap_or(0.0);
        (sum * of_channel(&self.factors, channel)).round_ties_even() + self.zero
    }
}

/// A sum as i32, which wraps.
#[expect(clippy::cast_possible_truncation, reason = "integers wrap")]
fn wrap(x: f64) -> i32 {
    x as i64 as i32
}

#[expect(clippy::cast_possible_truncation, reason = "saturates")]
fn saturate_i8(x: f64) -> i8 {
    x as i8
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
fn saturate_u8(x: f64) -> u8 {
    x as u8
}
