//! Images sampled at the positions of a grid: GridSample, AffineGrid.
//!
//! A position is a number from -1 to 1 per axis, the last axis first. The elements and weights of a position
//! are the same for all channels.

use super::convolution::{floor, spatial};
use super::elements::to_f64;
use super::lanes::{Real, Wide, for_int, for_real};
use super::parallel::{PIECE, pieces};
use super::resize::{Sampled, cubic};
use super::tiles::{Tile, TileRows};
use super::window::try_work_through;
use crate::host::TensorRef;
use crate::kernel::{Dims, KernelError, Prepare, Prepared, Result, Site};
use crate::room::Room;
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use half::{bf16, f16};
use num_traits::Zero;
use smallvec::SmallVec;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::GridSample => grid_sample,
        OpKind::AffineGrid => affine_grid,
        _ => return None,
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Nearest,
    Linear,
    Cubic,
}

/// Values outside of the image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outside {
    Zeros,
    Border,
    Reflection,
}

/// How positions become elements and weights.
#[derive(Clone)]
struct Sampler {
    mode: Mode,
    outside: Outside,
    align_corners: bool,
    channels: usize,
    /// Extents of the image and number of positions.
    image: Dims,
    positions: usize,
}

/// Elements and weights along an axis; an absent element is 0.
type Near = SmallVec<[(Option<usize>, f64); 4]>;

fn grid_sample(site: &Site<'_>) -> Result<Prepared> {
    let (x, grid) = (site.dims(0)?, site.dims(1)?);
    let mode = match site.view.string("mode").unwrap_or("linear") {
        "linear" | "bilinear" => Mode::Linear,
        "nearest" => Mode::Nearest,
        "cubic" | "bicubic" => Mode::Cubic,
        other => return Err(OpError::attr("mode", "linear, nearest or cubic", other).into()),
    };
    let outside = match site.view.string("padding_mode").unwrap_or("zeros") {
        "zeros" => Outside::Zeros,
        "border" => Outside::Border,
        "reflection" => Outside::Reflection,
        other => return Err(OpError::attr("padding_mode", "zeros, border or reflection", other).into()),
    };
    let image: Dims = spatial(&x).into();
    if image.contains(&0) && !site.result_dims(0)?.contains(&0) {
        return Err(KernelError::value("an image with elements", "none"));
    }
    let align_corners = site.view.int("align_corners").unwrap_or(0) != 0;
    let positions = grid[1..grid.len() - 1].iter().product();
    let sampler = Sampler { mode, outside, align_corners, channels: x[1], image, positions };
    let dtype = site.dtype(0)?;
    if mode == Mode::Nearest {
        return Ok(match dtype.bits().filter(|_| dtype != DType::String) {
            Some(8) => nearest::<u8>(sampler),
            Some(16) => nearest::<u16>(sampler),
            Some(32) => nearest::<u32>(sampler),
            Some(64) => nearest::<u64>(sampler),
            Some(128) => nearest::<[u64; 2]>(sampler),
            _ => return Err(site.no_kernel()),
        });
    }
    if dtype.is_integer() {
        return Ok(for_int!(dtype, site, T => interpolated::<T>(sampler)));
    }
    Ok(for_real!(dtype, site, T => interpolated::<T>(sampler)))
}

/// The numbers of a grid, of whatever element type.
#[derive(Clone, Copy)]
enum Grid<'a> {
    F64(&'a [f64]),
    F32(&'a [f32]),
    F16(&'a [f16]),
    BF16(&'a [bf16]),
}

impl<'a> Grid<'a> {
    fn of(tensor: TensorRef<'a>) -> Result<Grid<'a>> {
        Ok(match tensor.dtype() {
            DType::F64 => Grid::F64(tensor.as_slice()?),
            DType::F16 => Grid::F16(tensor.as_slice()?),
            DType::BF16 => Grid::BF16(tensor.as_slice()?),
            _ => Grid::F32(tensor.as_slice()?),
        })
    }

    /// The position in an image that a number means, computed in f32 unless the grid is of f64.
    fn position(self, i: usize, extent: usize, align_corners: bool) -> f64 {
        match self {
            Grid::F64(numbers) => denormalized(numbers[i], extent, align_corners),
            Grid::F32(numbers) => denormalized(numbers[i], extent, align_corners).into(),
            Grid::F16(numbers) => denormalized(numbers[i].to_f32(), extent, align_corners).into(),
            Grid::BF16(numbers) => denormalized(numbers[i].to_f32(), extent, align_corners).into(),
        }
    }
}

fn denormalized<W: Wide>(number: W, extent: usize, align_corners: bool) -> W {
    let (extent, one, two) = (W::of(to_f64(extent)), W::one(), W::of(2.0));
    if align_corners { (number + one) / two * (extent - one) } else { ((number + one) * extent - one) / two }
}

/// A position reflected at both borders until it is between them.
fn reflected(x: f64, low: f64, high: f64) -> f64 {
    let range = high - low;
    let beyond = if x < low { low - x } else { x - high };
    if beyond <= 0.0 {
        return x;
    }
    if range <= 0.0 || !beyond.is_finite() {
        return low;
    }
    let times = (beyond / range).trunc();
    let rest = beyond - times * range;
    let from_low = (times % 2.0 == 0.0) == (x < low);
    if from_low { low + rest } else { high - rest }
}

impl Sampler {
    /// The borders of an axis.
    fn borders(&self, extent: usize) -> (f64, f64) {
        let extent = to_f64(extent);
        if self.align_corners { (0.0, extent - 1.0) } else { (-0.5, extent - 0.5) }
    }

    /// The element with an index that may be outside.
    fn element(&self, index: i64, extent: usize) -> Option<usize> {
        let inside = usize::try_from(index).ok().filter(|&i| i < extent);
        match self.outside {
            Outside::Zeros => inside,
            _ if inside.is_some() => inside,
            Outside::Border => Some(if index < 0 { 0 } else { extent - 1 }),
            Outside::Reflection => {
                let (low, high) = self.borders(extent);
                #[expect(clippy::cast_precision_loss, reason = "far outside of any image")]
                let at = reflected(index as f64, low, high);
                Some(usize::try_from(floor(at.max(0.0))).unwrap_or(0).min(extent - 1))
            }
        }
    }

    /// The elements near a position on an axis.
    fn near(&self, position: f64, extent: usize) -> Near {
        let (low, high) = self.borders(extent);
        // No number is outside.
        let mut x = if position.is_nan() { f64::NEG_INFINITY } else { position };
        if self.mode == Mode::Nearest {
            x = x.round_ties_even();
        }
        if x < low || x > high {
            x = match self.outside {
                Outside::Zeros => x,
                // A cubic goes on beyond the border, through elements that are like it.
                Outside::Border if self.mode == Mode::Cubic && x.is_finite() => x,
                Outside::Border => x.clamp(0.0, to_f64(extent) - 1.0),
                Outside::Reflection => reflected(x, low, high),
            };
        }
        let below = floor(x);
        let ratio = x - x.floor();
        let at = |step: i64| self.element(below.saturating_add(step), extent);
        match self.mode {
            // Truncated, for a reflected position may be between elements.
            Mode::Nearest => smallvec::smallvec![(self.element(floor(x.trunc()), extent), 1.0)],
            Mode::Linear => smallvec::smallvec![(at(0), 1.0 - ratio), (at(1), ratio)],
            Mode::Cubic => {
                let weight = |step: f64| cubic(step - ratio, -0.75);
                [(-1, -1.0), (0, 0.0), (1, 1.0), (2, 2.0)].map(|(i, step)| (at(i), weight(step))).into()
            }
        }
    }

    /// Elements per position.
    fn taps(&self) -> usize {
        let per_axis: usize = match self.mode {
            Mode::Nearest => 1,
            Mode::Linear => 2,
            Mode::Cubic => 4,
        };
        self.image.iter().fold(1, |n: usize, _| n.saturating_mul(per_axis))
    }

    /// Positions of a tile, so that their taps fit the first-level cache.
    fn tile(&self) -> usize {
        (2048 / self.taps()).max(8)
    }

    /// The elements of a plane, and their weights, for the positions of a tile.
    fn made_of<T>(
        &self,
        grid: Grid<'_>,
        tile: &Tile<'_, '_, T>,
        room: Room,
    ) -> Result<Vec<(Option<usize>, f64)>> {
        let rank = self.image.len();
        let mut all = room.list(self.taps().saturating_mul(tile.columns.len()))?;
        for position in tile.columns.clone() {
            let numbers = (tile.matrix * self.positions + position) * rank;
            let first = all.len();
            all.push((Some(0), 1.0));
            for (axis, &extent) in self.image.iter().enumerate() {
                let at = grid.position(numbers + rank - 1 - axis, extent, self.align_corners);
                let near = self.near(at, extent);
                let n = all.len() - first;
                // Each so far with each of this axis, from the back so that nothing is read after it is written.
                all.resize(first + n * near.len(), (None, 0.0));
                for i in (0..n).rev() {
                    let (so_far, weight) = all[first + i];
                    for (j, &(index, of_axis)) in near.iter().enumerate().rev() {
                        let element = so_far.zip(index).map(|(so_far, index)| so_far * extent + index);
                        all[first + i * near.len() + j] = (element, weight * of_axis);
                    }
                }
            }
        }
        Ok(all)
    }

    /// Calls `row` with each channel of a tile: the plane's first element, the taps of its positions, and the
    /// results to be written.
    fn run<T: Send + 'static>(
        &self,
        grid: Grid<'_>,
        to: &mut [T],
        room: Room,
        row: impl Fn(usize, &[(Option<usize>, f64)], &mut [T]) + Send + Sync,
    ) -> Result<()> {
        let plane: usize = self.image.iter().product();
        let work = |_: &mut [()], tile: Tile<'_, '_, T>| {
            let made_of = self.made_of(grid, &tile, room)?;
            for (channel, to) in tile.rows.iter_mut().enumerate() {
                row((tile.matrix * self.channels + channel) * plane, &made_of, to);
            }
            Ok(())
        };
        let (matrix, tile) = ((self.channels, self.positions), (self.channels, self.tile()));
        TileRows::default().cut(to, matrix, tile, room, |tiles| try_work_through(tiles, &mut [], 0, work))
    }
}

/// Elements are moved, whatever they are.
fn nearest<T: bytemuck::Pod + Send + Sync>(sampler: Sampler) -> Prepared {
    Prepared::new(move |io| {
        let (x, grid, to) = (io.bytes(0)?, Grid::of(io.tensor(1)?)?, io.out_bytes(0)?);
        if to.is_empty() {
            return Ok(());
        }
        let x: &[T] = bytemuck::cast_slice(x);
        sampler.run(grid, bytemuck::cast_slice_mut(to), io.room(), |plane, made_of, to| {
            for (y, (element, _)) in to.iter_mut().zip(made_of) {
                *y = element.map_or(T::zeroed(), |i| x[plane + i]);
            }
        })
    })
}

fn interpolated<T: Sampled>(sampler: Sampler) -> Prepared {
    let taps = sampler.taps();
    Prepared::new(move |io| {
        let (x, grid, to) = (io.slice::<T>(0)?, Grid::of(io.tensor(1)?)?, io.out::<T>(0)?);
        sampler.run(grid, to, io.room(), |plane, made_of, to| {
            for (y, made_of) in to.iter_mut().zip(made_of.chunks_exact(taps)) {
                let sum = made_of.iter().fold(T::Wide::zero(), |sum, &(element, weight)| match element {
                    Some(i) => sum + x[plane + i].wide() * T::Wide::of(weight),
                    None => sum,
                });
                *y = T::rounded(sum);
            }
        })
    })
}

/// `grid[n, position] = theta[n] · (x, y, 1)`, or `(x, y, z, 1)`.
fn affine_grid(site: &Site<'_>) -> Result<Prepared> {
    let result = site.result_dims(0)?;
    let align_corners = site.view.int("align_corners").unwrap_or(0) != 0;
    let axes: Dims = result[1..result.len() - 1].into();
    if site.dims(0)?[1..] != [axes.len(), axes.len() + 1] {
        return Err(KernelError::value(
            format!("matrices of {} rows", axes.len()),
            format!("{:?}", site.dims(0)?),
        ));
    }
    Ok(for_real!(site.dtype(0)?, site, T => affine_grid_of::<T>(axes, align_corners)))
}

fn affine_grid_of<T: Real>(axes: Dims, align_corners: bool) -> Prepared {
    let rank = axes.len();
    let coordinate = move |i: usize, extent: usize| {
        let (i, extent) = (to_f64(i), to_f64(extent));
        match align_corners {
            true if extent <= 1.0 => 0.0,
            true => 2.0 * i / (extent - 1.0) - 1.0,
            false => (2.0 * i + 1.0) / extent - 1.0,
        }
    };
    let positions: usize = axes.iter().product();
    Prepared::new(move |io| {
        let (theta, to) = (io.slice::<T>(0)?, io.out::<T>(0)?);
        pieces(to, PIECE / rank * rank, |at, to| {
            for (position, to) in (at / rank..).zip(to.chunks_mut(rank)) {
                let theta = &theta[position / positions * rank * (rank + 1)..];
                let mut rest = position % positions;
                let mut base: SmallVec<[f64; 4]> = SmallVec::new();
                for &extent in axes.iter().rev() {
                    base.push(coordinate(rest % extent, extent));
                    rest /= extent;
                }
                base.push(1.0);
                for (row, y) in theta.chunks(rank + 1).zip(to) {
                    let sum: f64 = row.iter().zip(&base).map(|(t, b)| t.wide().to() * b).sum();
                    *y = T::round(T::Wide::of(sum));
                }
            }
        });
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::reflected;

    #[test]
    fn reflections_stay_between_the_borders() {
        let cases = [(-1.0, 0.0), (-2.0, 1.0), (3.0, 2.0), (4.0, 1.0), (9.0, 2.0), (1.0, 1.0)];
        for (x, expected) in cases {
            assert!((reflected(x, -0.5, 2.5) - expected).abs() < 1e-12, "{x}");
        }
        assert!(
            reflected(f64::NEG_INFINITY, -0.5, 2.5).is_finite() && reflected(5.0, 0.0, 0.0).abs() < 1e-12
        );
    }
}
