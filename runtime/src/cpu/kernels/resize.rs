//! Resize and Upsample.
//!
//! Interpolation is separable: an element of the result is a weighted sum of elements along one axis, of sums
//! along the next. The weights of each axis are in a table, made once; axes are gone through from the last one
//! to the first. Nearest elements are moved instead, for any type.
//!
//! Positions and weights follow the operator's text, computed in f64.

use super::convolution::floor;
use super::elements::{copies, texts_of, to_f64};
use super::lanes::{Real, Wide, for_int, for_real};
use super::parallel::{PIECE, pieces};
use crate::host::{Element, HostTensor};
use crate::kernel::{Dims, KernelError, Prepare, Prepared, Result, Site};
use crate::room::Room;
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use ampc_ir::views::resize::{Coordinates, Interpolation, Nearest, ResizeView, SamplingView};
use ampc_ir::{DType, Dim};
use bytemuck::Pod;
use half::{bf16, f16};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Resize | OpKind::Upsample => resize,
        _ => return None,
    })
}

/// Sources of the elements of the result along an axis.
#[derive(Clone, Debug)]
struct Table {
    axis: usize,
    /// Extents of input and result.
    input: usize,
    output: usize,
    /// Elements per element of the result.
    taps: usize,
    /// For each element of the result, which elements of the input.
    indices: Vec<usize>,
    weights: Vec<f64>,
    /// Which elements of the result are outside of the input; empty if none can be.
    outside: Vec<bool>,
}

/// An axis to be resized.
struct Scaling {
    axis: usize,
    input: usize,
    output: usize,
    /// The factor as a fraction.
    factor: (f64, f64),
    /// The region of the input, from 0 to 1.
    region: (f64, f64),
}

impl Scaling {
    /// The position in the input of an element of the result, computed in `W`.
    fn position<W: Wide>(&self, coordinates: Coordinates, index: usize) -> W {
        let [x, input, output] = [index, self.input, self.output].map(|n| W::of(to_f64(n)));
        let (up, down) = (W::of(self.factor.0), W::of(self.factor.1));
        let [zero, half, one] = [0.0, 0.5, 1.0].map(W::of);
        let scaled = input * up / down;
        let half_pixel = (x + half) * down / up - half;
        match coordinates {
            Coordinates::HalfPixel => half_pixel,
            Coordinates::HalfPixelSymmetric => input * half * (one - output / scaled) + half_pixel,
            Coordinates::PytorchHalfPixel if self.output > 1 => half_pixel,
            Coordinates::PytorchHalfPixel => zero,
            Coordinates::Asymmetric => x * down / up,
            Coordinates::HalfPixelForNearest => (x + half) * down / up,
            Coordinates::AlignCorners if scaled == one => zero,
            Coordinates::AlignCorners => x * (input - one) / (scaled - one),
            Coordinates::CropAndResize => {
                let (start, end) = (W::of(self.region.0), W::of(self.region.1));
                let step = if scaled == one { half } else { x / (scaled - one) };
                start * (input - one) + step * (end - start) * (input - one)
            }
        }
    }

    /// The position whose nearest element is chosen, computed in f32 if the model gives a scale, which is an f32. For a scale
    /// of 0.6, element 3 of the result is at 3 / 0.6: 5 in f32, and a little less than 5 in f64, whose floor is 4.
    fn position_for_nearest(&self, coordinates: Coordinates, index: usize) -> f64 {
        const EXACT: usize = 1 << 24;
        if is_one(self.factor.1) && self.input.max(self.output) <= EXACT {
            self.position::<f32>(coordinates, index).to()
        } else {
            self.position(coordinates, index)
        }
    }

    fn is_identity(&self) -> bool {
        let (up, down) = self.factor;
        self.input == self.output && is_one(up / down) && self.region == (0.0, 1.0)
    }

    fn table(&self, sampling: &SamplingView, room: Room) -> Result<Table> {
        let Scaling { axis, input, output, .. } = *self;
        let scale = self.factor.0 / self.factor.1;
        // The factor by which the weights of a smaller result are wider.
        let narrow = if sampling.antialias { scale.min(1.0) } else { 1.0 };
        let reach =
            |support: f64| usize::try_from(-floor(-support / narrow)).unwrap_or(1).clamp(1, MOST_TAPS);
        let taps = match sampling.interpolation {
            Interpolation::Nearest(_) => 1,
            Interpolation::Linear => 2 * reach(1.0),
            Interpolation::Cubic => 2 * reach(2.0),
        };
        let crops = sampling.coordinates == Coordinates::CropAndResize;
        let mut table = Table {
            axis,
            input,
            output,
            taps,
            indices: room.list(taps.saturating_mul(output))?,
            weights: room.list(taps.saturating_mul(output))?,
            outside: room.list(if crops { output } else { 0 })?,
        };
        for index in 0..output {
            let position = match sampling.interpolation {
                Interpolation::Nearest(_) => self.position_for_nearest(sampling.coordinates, index),
                Interpolation::Linear | Interpolation::Cubic => self.position(sampling.coordinates, index),
            };
            table.push(position, narrow, sampling);
        }
        Ok(table)
    }
}

/// More taps than any limit of memory admits, and so few that computing with them does not overflow.
const MOST_TAPS: usize = 1 << 60;

fn is_one(x: f64) -> bool {
    x.to_bits() == 1f64.to_bits()
}

impl Table {
    /// Appends the taps of a position.
    fn push(&mut self, position: f64, narrow: f64, sampling: &SamplingView) {
        let last = self.input - 1;
        if sampling.coordinates == Coordinates::CropAndResize {
            self.outside.push(!(position >= 0.0 && position <= to_f64(last)));
        }
        // An element itself is the upper neighbour of the position.
        let is_element = position.floor().to_bits() == position.to_bits();
        let below = if is_element { floor(position).saturating_sub(1) } else { floor(position) };
        let ratio = if is_element { 1.0 } else { position - position.floor() };
        if let Interpolation::Nearest(nearest) = sampling.interpolation {
            let upper = is_element
                || match nearest {
                    Nearest::RoundPreferFloor => ratio > 0.5,
                    Nearest::RoundPreferCeil => ratio >= 0.5,
                    Nearest::Floor => false,
                    Nearest::Ceil => true,
                };
            self.indices.push(clamp(below.saturating_add(i64::from(upper)), last));
            self.weights.push(1.0);
            return;
        }
        let first = self.weights.len();
        let mut sum = 0.0;
        for tap in 0..self.taps {
            let step =
                i64::try_from(tap).unwrap_or(i64::MAX) + 1 - i64::try_from(self.taps / 2).unwrap_or(i64::MAX);
            let index = below.saturating_add(step);
            let is_outside = usize::try_from(index).map_or(true, |i| i > last);
            #[expect(clippy::cast_precision_loss, reason = "as many taps as there are elements")]
            let distance = (step as f64 - ratio) * narrow;
            let weight = match sampling.interpolation {
                _ if is_outside && sampling.exclude_outside => 0.0,
                Interpolation::Cubic => cubic(distance, f64::from(sampling.cubic_coeff_a)),
                Interpolation::Linear | Interpolation::Nearest(_) => (1.0 - distance.abs()).max(0.0),
            };
            sum += weight;
            self.indices.push(clamp(index, last));
            self.weights.push(weight);
        }
        let is_partial = sampling.exclude_outside || sampling.antialias;
        if is_partial && sum.abs() > 0.0 {
            self.weights[first..].iter_mut().for_each(|w| *w /= sum);
        }
    }
}

fn clamp(index: i64, last: usize) -> usize {
    usize::try_from(index).unwrap_or(0).min(last)
}

/// The cubic of Keys.
pub(super) fn cubic(x: f64, a: f64) -> f64 {
    let x = x.abs();
    if x <= 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    } else {
        0.0
    }
}

fn resize(site: &Site<'_>) -> Result<Prepared> {
    let (x, y) = (site.dims(0)?, site.result_dims(0)?);
    // Tables are as long as the extents of a result: a result that is refused gets none. An element has a byte at least.
    site.room.check::<u8>(y.iter().fold(1usize, |n, &extent| n.saturating_mul(extent)))?;
    let view = ResizeView::read(&site.view, x.len())?;
    let sampling = SamplingView::read(&site.view)?;
    let known: Vec<Dim> = x.iter().map(|&d| Dim::Known(d as u64)).collect();
    let regions = regions(site, &sampling, view.axes.len())?;
    let mut tables = Vec::with_capacity(view.axes.len());
    for (i, &axis) in view.axes.iter().enumerate() {
        let (input, output) = (x[axis], y[axis]);
        let factor = view.factor(i, &known, output as u64);
        let scaling = Scaling { axis, input, output, factor, region: regions[i] };
        if scaling.is_identity() {
            continue;
        }
        if input == 0 && output > 0 {
            return Err(KernelError::value(
                "an input with elements",
                format!("an extent of 0 on axis {axis}"),
            ));
        }
        tables.push(if output == 0 { None } else { Some(scaling.table(&sampling, site.room)?) });
    }
    let Some(mut tables) = tables.into_iter().collect::<Option<Vec<Table>>>() else {
        return nothing(site);
    };
    tables.sort_by_key(|table| std::cmp::Reverse(table.axis));
    let is_move = matches!(sampling.interpolation, Interpolation::Nearest(_))
        && tables.iter().all(|t| !t.outside.contains(&true));
    let dtype = site.dtype(0)?;
    if is_move || tables.is_empty() {
        return moved(site, Moves::of(&x, &y, &tables, site.room)?);
    }
    let plan = Passes::of(&x, &y, tables, f64::from(sampling.extrapolation_value));
    if dtype.is_integer() {
        return Ok(for_int!(dtype, site, T => interpolated::<T>(plan, site.room)?));
    }
    Ok(for_real!(dtype, site, T => interpolated::<T>(plan, site.room)?))
}

/// A result without elements.
fn nothing(site: &Site<'_>) -> Result<Prepared> {
    let dims: Vec<u64> = site.result_dims(0)?.iter().map(|&d| d as u64).collect();
    let dtype = site.dtype(0)?;
    Ok(Prepared::new(move |io| io.emit(0, HostTensor::zeros(dtype, &dims)?)))
}

/// The region of the input for each axis.
fn regions(site: &Site<'_>, sampling: &SamplingView, n: usize) -> Result<Vec<(f64, f64)>> {
    if sampling.coordinates != Coordinates::CropAndResize {
        return Ok(vec![(0.0, 1.0); n]);
    }
    let region = site.floats(1)?.unwrap_or_default();
    if region.len() != 2 * n {
        let expected = format!("{} numbers, start and end of the region", 2 * n);
        return Err(OpError::operand(1, expected, region.len().to_string()).into());
    }
    Ok((0..n).map(|i| (region[i], region[i + n])).collect())
}

/// Which element of the input each element of the result is.
struct Moves {
    /// Extents of the result before the last resized axis, and for each the offsets of its indices in the input.
    outer: Vec<(usize, Option<Vec<usize>>, usize)>,
    /// Offsets in the input along the last resized axis.
    last: Vec<usize>,
    /// Elements that stay together.
    inner: usize,
}

impl Moves {
    fn of(x: &Dims, y: &Dims, tables: &[Table], room: Room) -> Result<Moves> {
        let Some(last) = tables.first() else {
            return Ok(Moves { outer: Vec::new(), last: vec![0], inner: x.iter().product() });
        };
        let inner: usize = x[last.axis + 1..].iter().product();
        let mut outer = Vec::new();
        let mut step = inner * x[last.axis];
        for axis in (0..last.axis).rev() {
            let table = tables.iter().find(|t| t.axis == axis);
            let offsets = table.map(|t| room.gathered(t.indices.iter().map(|i| i * step)));
            outer.push((y[axis], offsets.transpose()?, step));
            step *= x[axis];
        }
        let last = room.gathered(last.indices.iter().map(|i| i * inner))?;
        Ok(Moves { outer, last, inner })
    }

    /// Where in the input a row of the result comes from.
    fn base(&self, row: usize) -> usize {
        let (mut rest, mut base) = (row, 0);
        for (extent, offsets, step) in &self.outer {
            let index = rest % extent;
            base += offsets.as_ref().map_or(index * step, |offsets| offsets[index]);
            rest /= extent;
        }
        base
    }

    fn run<T: Pod + Sync>(&self, x: &[T], to: &mut [T]) {
        let row = self.last.len() * self.inner;
        let rows = (PIECE / row.max(1)).max(1);
        pieces(to, rows * row, |at, to| {
            let mut before = None;
            for i in 0..to.len() / row {
                let base = self.base(at / row + i);
                if before == Some(base) {
                    to.copy_within((i - 1) * row..i * row, i * row);
                    continue;
                }
                before = Some(base);
                let to = &mut to[i * row..(i + 1) * row];
                if self.inner == 1 {
                    to.iter_mut().zip(&self.last).for_each(|(y, offset)| *y = x[base + offset]);
                } else {
                    for (to, offset) in to.chunks_mut(self.inner).zip(&self.last) {
                        to.copy_from_slice(&x[base + offset..base + offset + self.inner]);
                    }
                }
            }
        });
    }
}

fn moved(site: &Site<'_>, moves: Moves) -> Result<Prepared> {
    let dtype = site.dtype(0)?;
    if dtype == DType::String {
        let dims: Vec<u64> = site.result_dims(0)?.iter().map(|&d| d as u64).collect();
        return Ok(Prepared::new(move |io| {
            let x = texts_of(io, 0)?;
            let row = moves.last.len() * moves.inner;
            let n = usize::try_from(dims.iter().product::<u64>()).unwrap_or(usize::MAX);
            let from = io.room().gathered(0..x.len())?;
            io.check_size((n as u64).saturating_mul(16))?;
            let mut to = io.room().filled(n, 0)?;
            if row > 0 {
                moves.run(&from, &mut to);
            }
            let made = copies(io, &dims, to.iter().map(|&i| &x[i]))?;
            io.emit(0, made)
        }));
    }
    Ok(match dtype.bits() {
        Some(8) => moved_elements::<u8>(moves),
        Some(16) => moved_elements::<u16>(moves),
        Some(32) => moved_elements::<u32>(moves),
        Some(64) => moved_elements::<u64>(moves),
        Some(128) => moved_elements::<[u64; 2]>(moves),
        _ => return Err(site.no_kernel()),
    })
}

fn moved_elements<T: bytemuck::Pod + Send + Sync>(moves: Moves) -> Prepared {
    Prepared::new(move |io| {
        let (x, to) = (io.bytes(0)?, io.out_bytes(0)?);
        if !to.is_empty() {
            moves.run::<T>(bytemuck::cast_slice(x), bytemuck::cast_slice_mut(to));
        }
        Ok(())
    })
}

/// An element type with the type of its interpolation.
pub(super) trait Sampled: Element + Send + Sync {
    type Wide: Wide;
    fn load(from: &[Self], to: &mut [Self::Wide]);
    fn store(from: &[Self::Wide], to: &mut [Self]);
    /// Elements as what they are interpolated in, if that is what they are.
    fn direct(from: &[Self]) -> Option<&[Self::Wide]>;
    fn direct_mut(from: &mut [Self]) -> Option<&mut [Self::Wide]>;

    /// One element, as what it is interpolated in.
    fn wide(self) -> Self::Wide {
        let mut wide = [num_traits::Zero::zero()];
        Self::load(&[self], &mut wide);
        wide[0]
    }
    /// One result.
    fn rounded(value: Self::Wide) -> Self {
        let mut to = [bytemuck::Zeroable::zeroed()];
        Self::store(&[value], &mut to);
        to[0]
    }
}

macro_rules! sampled_floats {
    ($($ty:ident),*) => {$(
        impl Sampled for $ty {
            type Wide = <$ty as Real>::Wide;
            fn load(from: &[Self], to: &mut [Self::Wide]) {
                <$ty as Real>::widen(from, to);
            }
            fn store(from: &[Self::Wide], to: &mut [Self]) {
                <$ty as Real>::narrow(from, to);
            }
            fn direct(from: &[Self]) -> Option<&[Self::Wide]> {
                <$ty as Real>::as_wide(from)
            }
            fn direct_mut(from: &mut [Self]) -> Option<&mut [Self::Wide]> {
                <$ty as Real>::as_wide_mut(from)
            }
        }
    )*};
}

macro_rules! sampled_ints {
    ($($ty:ident: $wide:ident),*) => {$(
        impl Sampled for $ty {
            type Wide = $wide;
            #[allow(
                clippy::cast_precision_loss,
                clippy::cast_lossless,
                reason = "exact but for the widest integers, which are rounded"
            )]
            fn load(from: &[Self], to: &mut [$wide]) {
                to.iter_mut().zip(from).for_each(|(y, &x)| *y = x as $wide);
            }
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
            fn store(from: &[$wide], to: &mut [Self]) {
                to.iter_mut().zip(from).for_each(|(y, &x)| *y = x.round_ties_even() as $ty);
            }
            fn direct(_: &[Self]) -> Option<&[$wide]> {
                None
            }
            fn direct_mut(_: &mut [Self]) -> Option<&mut [$wide]> {
                None
            }
        }
    )*};
}

sampled_floats!(f64, f32, f16, bf16);
sampled_ints!(i64: f64, i32: f64, i16: f32, i8: f32, u64: f64, u32: f64, u16: f32, u8: f32);

/// The sums along one axis after another. Pass `i` reads stage `i`.
struct Passes {
    tables: Vec<Table>,
    /// Elements before and after each pass.
    stages: Vec<usize>,
    /// Elements that stay together in each pass.
    inner: Vec<usize>,
    extrapolation: f64,
}

impl Passes {
    fn of(x: &Dims, y: &Dims, tables: Vec<Table>, extrapolation: f64) -> Passes {
        let mut dims = x.clone();
        let mut stages = vec![dims.iter().product()];
        let mut inner = Vec::new();
        for table in &tables {
            dims[table.axis] = y[table.axis];
            inner.push(dims[table.axis + 1..].iter().product());
            stages.push(dims.iter().product());
        }
        Passes { tables, stages, inner, extrapolation }
    }

    /// Scratch elements of even and odd stages; the first and the last may be elsewhere.
    fn rooms(&self, outer_are_elsewhere: bool) -> [usize; 2] {
        let mut rooms = [0, 0];
        let last = self.stages.len() - 1;
        for (i, &n) in self.stages.iter().enumerate() {
            if !(outer_are_elsewhere && (i == 0 || i == last)) {
                rooms[i % 2] = rooms[i % 2].max(n);
            }
        }
        rooms
    }
}

fn interpolated<T: Sampled>(plan: Passes, room: Room) -> Result<Prepared> {
    let is_direct = T::direct(&[]).is_some();
    let rooms = plan.rooms(is_direct);
    let weights = plan.tables.iter().map(|t| room.gathered(t.weights.iter().map(|&w| T::Wide::of(w))));
    let weights = weights.collect::<Result<Vec<Vec<T::Wide>>>>()?;
    let kernel = Prepared::new(move |io| {
        let (x, to) = (io.slice::<T>(0)?, io.out::<T>(0)?);
        let (mut even, mut odd) = io.scratch::<T::Wide>().split_at_mut(rooms[0]);
        if !is_direct {
            T::load(x, &mut even[..x.len()]);
        }
        let last = plan.tables.len() - 1;
        for (i, (table, weights)) in plan.tables.iter().zip(&weights).enumerate() {
            let from = match T::direct(x).filter(|_| i == 0) {
                Some(x) => x,
                None => &even[..plan.stages[i]],
            };
            let pass =
                Pass { table, weights, inner: plan.inner[i], extrapolation: T::Wide::of(plan.extrapolation) };
            match T::direct_mut(to).filter(|_| i == last) {
                Some(to) => pass.run(from, to),
                None => pass.run(from, &mut odd[..plan.stages[i + 1]]),
            }
            std::mem::swap(&mut even, &mut odd);
        }
        if !is_direct {
            let from = &even[..to.len()];
            pieces(to, PIECE, |at, to| T::store(&from[at..at + to.len()], to));
        }
        Ok(())
    });
    Ok(kernel.scratch(rooms[0].saturating_add(rooms[1]).saturating_mul(size_of::<T::Wide>())))
}

/// The sums along one axis.
struct Pass<'a, W> {
    table: &'a Table,
    weights: &'a [W],
    inner: usize,
    extrapolation: W,
}

impl<W: Wide> Pass<'_, W> {
    fn run(&self, from: &[W], to: &mut [W]) {
        let row = if self.inner == 1 { self.table.output } else { self.inner };
        let rows = (PIECE / row.max(1)).max(1);
        pieces(to, rows * row, |at, to| {
            for (row_index, to) in (at / row..).zip(to.chunks_mut(row)) {
                if self.inner == 1 {
                    self.along(&from[row_index * self.table.input..][..self.table.input], to);
                } else {
                    self.across(from, row_index, to);
                }
            }
        });
    }

    /// A row of sums of neighbours in a row.
    fn along(&self, from: &[W], to: &mut [W]) {
        let taps = self.table.taps;
        if taps == 2 {
            let made_of = self.table.indices.chunks_exact(2).zip(self.weights.chunks_exact(2));
            for (y, (i, w)) in to.iter_mut().zip(made_of) {
                *y = from[i[0]] * w[0] + from[i[1]] * w[1];
            }
        } else {
            let made_of = self.table.indices.chunks_exact(taps).zip(self.weights.chunks_exact(taps));
            for (y, (indices, weights)) in to.iter_mut().zip(made_of) {
                *y = indices.iter().zip(weights).fold(W::zero(), |sum, (&i, &w)| sum + from[i] * w);
            }
        }
        for (y, _) in to.iter_mut().zip(&self.table.outside).filter(|(_, outside)| **outside) {
            *y = self.extrapolation;
        }
    }

    /// A row that is a sum of rows.
    fn across(&self, from: &[W], row: usize, to: &mut [W]) {
        let Table { input, output, taps, ref indices, ref outside, .. } = *self.table;
        let (outer, index) = (row / output, row % output);
        if outside.get(index) == Some(&true) {
            to.fill(self.extrapolation);
            return;
        }
        let source =
            |tap: usize| &from[(outer * input + indices[index * taps + tap]) * self.inner..][..to.len()];
        let weight = |tap: usize| self.weights[index * taps + tap];
        if taps == 2 {
            let (a, b, u, v) = (source(0), source(1), weight(0), weight(1));
            to.iter_mut().zip(a).zip(b).for_each(|((y, &a), &b)| *y = a * u + b * v);
            return;
        }
        let n = to.len();
        to.fill(W::zero());
        for tap in 0..taps {
            let from = &from[(outer * input + indices[index * taps + tap]) * self.inner..][..n];
            let w = weight(tap);
            to.iter_mut().zip(from).for_each(|(y, &x)| *y = *y + x * w);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling(interpolation: Interpolation, antialias: bool) -> SamplingView {
        SamplingView {
            interpolation,
            coordinates: Coordinates::HalfPixel,
            antialias,
            cubic_coeff_a: -0.75,
            exclude_outside: false,
            extrapolation_value: 0.0,
        }
    }

    /// Elements that ONNX Runtime and PyTorch choose: 3 / 0.6 is 5 in f32, and less in f64.
    #[test]
    fn nearest_elements_are_chosen_in_f32() {
        let of_scale = |scale: f32, coordinates, nearest, input: usize| {
            let output = usize::try_from(floor(to_f64(input) * f64::from(scale))).unwrap();
            let scaling = Scaling { axis: 0, input, output, factor: (scale.into(), 1.0), region: (0.0, 1.0) };
            let sampling = SamplingView { coordinates, ..sampling(Interpolation::Nearest(nearest), false) };
            scaling.table(&sampling, Room::of(1 << 20)).unwrap().indices
        };
        assert_eq!(of_scale(0.6, Coordinates::Asymmetric, Nearest::Floor, 7), [0, 1, 3, 5]);
        assert_eq!(of_scale(2.0, Coordinates::Asymmetric, Nearest::Floor, 3), [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn weights_sum_to_one() {
        for interpolation in [Interpolation::Linear, Interpolation::Cubic] {
            for antialias in [false, true] {
                for (input, output) in [(4, 7), (7, 4), (9, 2), (1, 3), (5, 1)] {
                    let factor = (to_f64(output), to_f64(input));
                    let scaling = Scaling { axis: 0, input, output, factor, region: (0.0, 1.0) };
                    let table =
                        scaling.table(&sampling(interpolation, antialias), Room::of(1 << 20)).unwrap();
                    for weights in table.weights.chunks(table.taps) {
                        assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{table:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn nearest_elements_of_twice_as_many() {
        let scaling = Scaling { axis: 0, input: 3, output: 6, factor: (6.0, 3.0), region: (0.0, 1.0) };
        let nearest = sampling(Interpolation::Nearest(Nearest::RoundPreferFloor), false);
        let table = scaling.table(&nearest, Room::of(1 << 20)).unwrap();
        assert_eq!(table.indices, [0, 0, 1, 1, 2, 2]);
    }
}
