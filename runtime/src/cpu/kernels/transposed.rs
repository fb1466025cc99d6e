//! Operators that add windows to an image: ConvTranspose, Col2Im.
//!
//! `y[n, m, i · stride + k · dilation - before] += w[c, m, k] · x[n, c, i]` over all input channels `c`, taps `k` and
//! positions `i`: a product of the transposed weights and the input makes columns, a block of positions at a time,
//! which are added to the image. Col2Im adds columns that it is given.

use super::convolution::spatial;
use super::lanes::{Real, for_int, for_real, widened};
use super::linear::{Matrix, multiply_alone};
use super::window::{Axis, Block, SLOTS, Window, scatter, work_through};
use crate::host::Element;
use crate::kernel::{KernelError, Prepare, Prepared, Result, Site};
use crate::room::Room;
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use ampc_ir::views::image::col2im_window;
use ampc_ir::views::window::{ConvView, TransposedView, WindowView};
use num_traits::{WrappingAdd, Zero};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::ConvTranspose => conv_transpose,
        OpKind::Col2Im => col2im,
        _ => return None,
    })
}

/// The sizes of a transposed convolution, and how it is cut.
struct Transposed {
    groups: usize,
    /// Input and output channels of a group.
    inputs: usize,
    outputs: usize,
    window: Window,
    /// Elements of the operands.
    sizes: [usize; 2],
    /// Output channels and positions at a time.
    channels: usize,
    positions: usize,
    /// The positions at a time.
    blocks: Vec<Block>,
    slots: usize,
}

/// Elements of the columns that fit the second-level cache.
const COLUMNS: usize = 1 << 16;

/// The most positions at a time.
const POSITIONS: usize = 512;

fn conv_transpose(site: &Site<'_>) -> Result<Prepared> {
    let (x, w, y) = (site.dims(0)?, site.dims(1)?, site.result_dims(0)?);
    let n = x.len() - 2;
    let taps: Vec<ampc_ir::Dim> = spatial(&w).iter().map(|&d| ampc_ir::Dim::Known(d as u64)).collect();
    let view = WindowView::read(&site.view, n, Some(&taps))?;
    let transposed = TransposedView::read(&site.view, n)?;
    let window = Window::new(&view, spatial(&y), spatial(&x), |i, image, grid| {
        transposed.before(&view, i, grid, image)
    })?;
    let groups = usize::try_from(ConvView::read(&site.view)?.group).unwrap_or(usize::MAX);
    if !x[1].is_multiple_of(groups) || w[0] != x[1] {
        return Err(KernelError::value(format!("{} channels in {groups} groups", w[0]), x[1]));
    }
    let (kernel, grid, outputs) = (window.kernel(), window.grid(), w[1]);
    let positions = grid.clamp(1, POSITIONS);
    let channels = (COLUMNS / kernel.saturating_mul(positions).max(1)).clamp(1, outputs.max(1));
    let slots = x[0].saturating_mul(groups).saturating_mul(outputs.div_ceil(channels)).clamp(1, SLOTS);
    let sizes = [x.iter().product(), w.iter().product()];
    let inputs = x[1] / groups;
    let has_results = y.iter().all(|&extent| extent > 0);
    let blocks = if has_results { window.blocks(positions, site.room)? } else { Vec::new() };
    let plan = Transposed { groups, inputs, outputs, window, sizes, channels, positions, blocks, slots };
    Ok(for_real!(site.dtype(0)?, site, T => conv_transpose_of::<T>(plan)))
}

fn conv_transpose_of<T: Real>(plan: Transposed) -> Prepared {
    let (image, kernel) = (plan.window.image(), plan.window.kernel());
    let room = |n: usize| if T::IS_WIDE { 0 } else { n };
    let columns = plan.channels.saturating_mul(kernel).saturating_mul(plan.positions);
    let wide = room(plan.channels.saturating_mul(image));
    let slot = columns.saturating_add(wide);
    let words = plan.slots.saturating_mul(slot);
    let words = words.saturating_add(room(plan.sizes[0])).saturating_add(room(plan.sizes[1]));
    Prepared::new(move |io| {
        let bias = if io.has(2) { Some(io.slice::<T>(2)?) } else { None };
        let (x, w) = (io.slice::<T>(0)?, io.slice::<T>(1)?);
        let to = io.out::<T>(0)?;
        if to.is_empty() {
            return Ok(());
        }
        let (room_x, scratch) = io.scratch::<T::Wide>().split_at_mut(room(plan.sizes[0]));
        let (room_w, scratch) = scratch.split_at_mut(room(plan.sizes[1]));
        let (x, w) = (widened(x, room_x), widened(w, room_w));
        let groups = to.chunks_mut(plan.outputs * image).enumerate();
        let tasks = groups.flat_map(|(i, to)| {
            let parts = to.chunks_mut(plan.channels * image).enumerate();
            parts.map(move |(j, to)| (i, j * plan.channels, to))
        });
        work_through(tasks, scratch, slot, |slot, (group, first, to)| {
            let (columns, wide) = slot.split_at_mut(columns);
            let mut add = |to: &mut [T::Wide]| {
                for (channel, plane) in to.chunks_mut(image).enumerate() {
                    let channel = group % plan.groups * plan.outputs + first + channel;
                    plane.fill(bias.map_or(T::Wide::zero(), |b| b[channel].wide()));
                }
                plan.add((group, first), x, w, columns, to);
            };
            if let Some(to) = T::as_wide_mut(to) {
                add(to);
                return;
            }
            let wide = &mut wide[..to.len()];
            add(wide);
            T::narrow(wide, to);
        });
        Ok(())
    })
    .scratch(words.saturating_mul(size_of::<T::Wide>()))
}

impl Transposed {
    /// Adds the contributions of all positions to the planes of output channels from `first` on.
    fn add<W: super::lanes::Wide>(
        &self,
        (group, first): (usize, usize),
        x: &[W],
        w: &[W],
        columns: &mut [W],
        to: &mut [W],
    ) {
        let (image, kernel, grid) = (self.window.image(), self.window.kernel(), self.window.grid());
        let channels = to.len() / image;
        let of_input = self.outputs * kernel;
        for (at, block) in (0..grid).step_by(self.positions).zip(&self.blocks) {
            let n = self.positions.min(grid - at);
            let weights = group % self.groups * self.inputs * of_input + first * kernel;
            let w = Matrix { elements: w.get(weights..).unwrap_or_default(), row: 1, column: of_input };
            let x = x.get(group * self.inputs * grid + at..).unwrap_or_default();
            let x = Matrix { elements: x, row: grid, column: 1 };
            let columns = &mut columns[..channels * kernel * n];
            multiply_alone((channels * kernel, n, self.inputs), w, x, columns, None);
            for (i, row) in columns.chunks(n).enumerate() {
                let plane = &mut to[i / kernel * image..(i / kernel + 1) * image];
                scatter(&self.window, block, i % kernel, row, plane, |y, x| y + x);
            }
        }
    }
}

fn col2im(site: &Site<'_>) -> Result<Prepared> {
    let (columns, result) = (site.dims(0)?, site.result_dims(0)?);
    let image = spatial(&result);
    let view = col2im_window(&site.view, image.len())?;
    let block = site.ints(2)?.ok_or(KernelError::NotYet)?;
    let number = |n: u64| usize::try_from(n).map_err(|_| KernelError::value("a window that fits memory", n));
    let axis = |i: usize| {
        let positive = usize::try_from(block[i]).ok().filter(|&n| n > 0);
        let kernel = positive.ok_or_else(|| OpError::operand(2, "positive extents", block[i].to_string()))?;
        let (stride, dilation) = (number(view.strides[i])?, number(view.dilations[i])?);
        let (before, after) = (number(view.pads[i].0)?, number(view.pads[i].1)?);
        let around = before.saturating_add(after).saturating_add(image[i]);
        let reach = (kernel - 1).saturating_mul(dilation).saturating_add(1);
        let grid = around.checked_sub(reach).map_or(0, |room| room / stride + 1);
        Ok(Axis { image: image[i], grid, kernel, stride, dilation, before })
    };
    let window = Window::of((0..image.len()).map(axis).collect::<Result<Vec<_>>>()?)?;
    if window.grid() != columns[2] {
        // A product that memory cannot have is the greatest number.
        let places = match window.grid() {
            usize::MAX => "more columns than memory has bytes".to_owned(),
            places => format!("{places} columns"),
        };
        let expected = format!("{places}, one for each place of the block");
        return Err(OpError::operand(0, expected, columns[2].to_string()).into());
    }
    if result[1].checked_mul(window.kernel()) != Some(columns[1]) {
        let expected = format!("{} times a number of channels on axis 1", window.kernel());
        return Err(OpError::operand(0, expected, columns[1].to_string()).into());
    }
    let planes = result[0].saturating_mul(result[1]);
    if site.dtype(0)?.is_integer() {
        return Ok(for_int!(site.dtype(0)?, site, T => col2im_of::<T>(window, site.room)?));
    }
    Ok(for_real!(site.dtype(0)?, site, T => col2im_real::<T>(window, planes, site.room)?))
}

/// Columns of integers, whose sums wrap.
fn col2im_of<T: Element + WrappingAdd + Zero + Send + Sync>(window: Window, room: Room) -> Result<Prepared> {
    let blocks = window.blocks(window.grid(), room)?;
    Ok(Prepared::new(move |io| {
        let (x, to) = (io.slice::<T>(0)?, io.out::<T>(0)?);
        if to.is_empty() {
            return Ok(());
        }
        let (grid, kernel) = (window.grid(), window.kernel());
        let block = blocks.first();
        let planes = to.chunks_mut(window.image()).enumerate();
        work_through(planes, &mut [(); 0], 0, |_, (i, plane)| {
            plane.fill(T::zero());
            for tap in 0..kernel {
                let row = &x[(i * kernel + tap) * grid..][..grid];
                if let Some(block) = block {
                    scatter(&window, block, tap, row, plane, |y, x| y.wrapping_add(&x));
                }
            }
        });
        Ok(())
    }))
}

fn col2im_real<T: Real>(window: Window, planes: usize, room: Room) -> Result<Prepared> {
    let blocks = window.blocks(window.grid(), room)?;
    let (grid, kernel, image) = (window.grid(), window.kernel(), window.image());
    let slot = if T::IS_WIDE { 0 } else { grid + image };
    let slots = planes.clamp(1, SLOTS);
    let prepared = Prepared::new(move |io| {
        let (x, to) = (io.slice::<T>(0)?, io.out::<T>(0)?);
        if to.is_empty() {
            return Ok(());
        }
        let block = blocks.first();
        let planes = to.chunks_mut(image).enumerate();
        work_through(planes, io.scratch::<T::Wide>(), slot, |slot, (i, to)| {
            let (row_room, room) = slot.split_at_mut(if T::IS_WIDE { 0 } else { grid });
            let mut add = |plane: &mut [T::Wide]| {
                plane.fill(T::Wide::zero());
                for tap in 0..kernel {
                    let row = &x[(i * kernel + tap) * grid..][..grid];
                    let row = match T::as_wide(row) {
                        Some(row) => row,
                        None => {
                            T::widen(row, row_room);
                            &*row_room
                        }
                    };
                    if let Some(block) = block {
                        scatter(&window, block, tap, row, plane, |y, x| y + x);
                    }
                }
            };
            if let Some(to) = T::as_wide_mut(to) {
                add(to);
                return;
            }
            add(room);
            T::narrow(room, to);
        });
        Ok(())
    });
    Ok(prepared.scratch(slots.saturating_mul(slot).saturating_mul(size_of::<T::Wide>())))
}
