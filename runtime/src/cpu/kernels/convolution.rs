//! Convolutions: Conv, DeformConv, ConvInteger, QLinearConv.
//!
//! `y[n, m, o] = b[m] + Σ w[m, c, k] · x[n, c, o · stride + k · dilation - before]`, zero in the padding, where
//! `m` and `c` belong to the same group. It is a product of matrices: the weights, and *columns*, which have a
//! row per `(c, k)` and a column per position `o`. They are written a block of positions at a time, as many as
//! fit the second-level cache. Convolutions of one tap in f32 and f64 need none: the input is the columns. Where a
//! group has one input channel there is nothing to multiply, see [`depthwise`](super::depthwise), and where
//! there are more taps than positions the two change places, see [`few_positions`].

mod columns;
mod deformed;
mod few_positions;
mod integers;
#[cfg(test)]
mod tests;

use self::columns::{Widen, fill_columns, most_converted};
use super::lanes::{Real, Wide, for_real, widened};
use super::linear::{Matrix, multiply, multiply_alone};
use super::parallel::numbered_pieces;
use super::product::{Epilogue, OPERANDS, Parts, Product, Whole, alone, elements};
use super::tiles::{Tile, TileRows};
use super::window::{Block, SLOTS, Window, work_through};
use crate::kernel::{Dims, KernelError, Prepare, Prepared, Result, Site};
use crate::room::Room;
use ampc_ir::op::OpKind;
use ampc_ir::views::window::{ConvView, WindowView};
use std::marker::PhantomData;
use std::ops::Range;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Conv => conv,
        OpKind::ConvInteger | OpKind::QLinearConv => integers::conv_integer,
        OpKind::DeformConv => deformed::deform_conv,
        _ => return None,
    })
}

/// The sizes of a convolution.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) groups: usize,
    /// Input channels of a group.
    pub(super) inputs: usize,
    /// Output channels of a group.
    pub(super) outputs: usize,
    pub(super) window: Window,
}

impl Sizes {
    fn of(site: &Site<'_>) -> Result<(Sizes, ConvView)> {
        let conv = ConvView::read(&site.view)?;
        let (x, w, y) = (site.dims(0)?, site.dims(conv.weights)?, site.result_dims(0)?);
        let spatial: Vec<ampc_ir::Dim> = w[2..].iter().map(|&d| ampc_ir::Dim::Known(d as u64)).collect();
        let view = WindowView::read(&site.view, x.len() - 2, Some(&spatial))?;
        let window = Window::new(&view, &x[2..], &y[2..], |i, image, grid| view.pads(i, image, grid).0)?;
        let groups = usize::try_from(conv.group).unwrap_or(usize::MAX);
        if w[1].checked_mul(groups) != Some(x[1]) || !w[0].is_multiple_of(groups) {
            return Err(KernelError::value(
                format!("channels in {groups} groups"),
                format!("{} to {}", x[1], w[0]),
            ));
        }
        let sizes = Sizes { batch: x[0], groups, inputs: w[1], outputs: w[0] / groups, window };
        Ok((sizes, conv))
    }

    /// Rows of the columns: what is summed.
    fn depth(&self) -> usize {
        self.inputs * self.window.kernel()
    }

    fn weights(&self) -> usize {
        self.groups * self.outputs * self.depth()
    }
}

fn conv(site: &Site<'_>) -> Result<Prepared> {
    let (sizes, _) = Sizes::of(site)?;
    Ok(for_real!(site.dtype(0)?, site, T => {
        if few_positions::fits(&sizes) {
            few_positions::conv::<T>(sizes, site.room)?
        } else if super::depthwise::fits(&sizes) {
            alone::<T>(super::depthwise::Depthwise::<T>::new(sizes, site.room)?)
        } else if <T as Real>::IS_WIDE && sizes.window.is_identity() {
            conv_of_one_tap::<T>(sizes)
        } else {
            alone::<T>(ByColumns::<T>::new(sizes, site.room)?)
        }
    }))
}

/// True if an epilogue can follow a Conv: the result has no fewer positions than the kernel has taps, and the planes of a
/// depthwise convolution are large.
pub(super) fn is_product(site: &Site<'_>) -> bool {
    Sizes::of(site).is_ok_and(|(sizes, _)| {
        !few_positions::fits(&sizes)
            && (!super::depthwise::fits(&sizes) || super::depthwise::has_large_planes(&sizes))
    })
}

/// A Conv that an epilogue can follow.
pub(super) fn product<T: Real<Wide = f32>>(site: &Site<'_>) -> Result<Product> {
    let (sizes, _) = Sizes::of(site)?;
    Ok(if super::depthwise::fits(&sizes) {
        Product::Parts(Box::new(super::depthwise::Depthwise::<T>::new(sizes, site.room)?))
    } else if T::IS_WIDE && sizes.window.is_identity() {
        Product::Whole(Box::new(OneTap(sizes)))
    } else {
        Product::Parts(Box::new(ByColumns::<T>::new(sizes, site.room)?))
    })
}

/// The weights times the input. Elements are stored as they are computed in.
fn conv_of_one_tap<T: Real>(sizes: Sizes) -> Prepared {
    Prepared::new(move |io| {
        let (Some(x), Some(w)) = (T::as_wide(io.slice(0)?), T::as_wide(io.slice(1)?)) else { return Ok(()) };
        let bias = if io.has(2) { T::as_wide(io.slice(2)?) } else { None };
        let Some(to) = T::as_wide_mut(io.out(0)?) else { return Ok(()) };
        multiply_one_tap(&sizes, (x, w, bias), to);
        Ok(())
    })
}

fn multiply_one_tap<W: Wide>(sizes: &Sizes, (x, w, bias): (&[W], &[W], Option<&[W]>), to: &mut [W]) {
    let Sizes { groups, inputs, outputs, .. } = *sizes;
    let positions = sizes.window.grid();
    numbered_pieces(to, (outputs * positions).max(1), 1, |i, to| {
        let group = i % groups;
        if let Some(bias) = bias {
            let bias = &bias[group * outputs..(group + 1) * outputs];
            to.chunks_mut(positions).zip(bias).for_each(|(row, &b)| row.fill(b));
        }
        let before = bias.map(|_| W::one());
        let w = Matrix { elements: &w[group * outputs * inputs..], row: inputs, column: 1 };
        let x = Matrix { elements: &x[i * inputs * positions..], row: positions, column: 1 };
        multiply((outputs, positions, inputs), w, x, to, before);
    });
}

/// A convolution of one tap that an epilogue can follow.
struct OneTap(Sizes);

impl Whole for OneTap {
    fn result(&self) -> usize {
        self.0.batch * self.0.groups * self.0.outputs * self.0.window.grid()
    }

    fn scratch(&self) -> usize {
        0
    }

    fn run(&self, operands: [Option<&[u8]>; OPERANDS], _: &mut [f32], to: &mut [f32]) {
        let bias = operands[2].map(|bias| elements(Some(bias)));
        multiply_one_tap(&self.0, (elements(operands[0]), elements(operands[1]), bias), to);
    }
}

/// How a result is cut: output channels and positions at a time.
#[derive(Clone, Copy, Debug)]
struct Cut {
    channels: usize,
    positions: usize,
    slots: usize,
}

/// Elements of the columns that fit the second-level cache, beside the weights and the result.
const COLUMNS: usize = 1 << 16;

/// The fewest columns that a product is efficient with.
const FEW_COLUMNS: usize = 48;

/// Multiplications that are worth a thread.
const WORTH_A_THREAD: usize = 1 << 20;

impl Cut {
    fn of(sizes: &Sizes) -> Cut {
        let (all, depth) = (sizes.window.grid().max(1), sizes.depth().max(1));
        let most = (COLUMNS / depth).clamp(FEW_COLUMNS, 512);
        let positions = all.div_ceil(all.div_ceil(most)).next_multiple_of(16).min(all);
        let matrices = sizes.batch.saturating_mul(sizes.groups).saturating_mul(all.div_ceil(positions));
        let tasks = |channels: usize| matrices.saturating_mul(sizes.outputs.div_ceil(channels));
        let mut channels = sizes.outputs.max(1);
        while tasks(channels) < SLOTS
            && channels >= 64
            && channels.saturating_mul(positions).saturating_mul(depth) >= 2 * WORTH_A_THREAD
        {
            channels = channels.div_ceil(2).next_multiple_of(8);
        }
        let work = matrices.saturating_mul(sizes.outputs).saturating_mul(positions).saturating_mul(depth);
        let slots = tasks(channels).min(work / WORTH_A_THREAD).clamp(1, SLOTS);
        Cut { channels, positions, slots }
    }

    /// The positions of each column of tiles.
    fn blocks(&self, sizes: &Sizes, room: Room) -> Result<Vec<Block>> {
        let has_results = sizes.batch * sizes.groups * sizes.outputs > 0;
        if has_results { sizes.window.blocks(self.positions, room) } else { Ok(Vec::new()) }
    }

    /// Scratch elements of a slot: columns and products. Before the products are computed, their memory holds elements of
    /// the input that are converted, `converted` at most.
    fn slot(&self, depth: usize, converted: usize) -> usize {
        self.positions * depth + converted.max(self.positions * self.channels)
    }
}

/// The products of weights and columns, a tile at a time.
///
/// `fill(matrix, positions, columns, free)` writes the columns of a tile, row by row, and may overwrite `free`.
/// `store(channel, start, products, to, free)` stores products that begin at this channel and at this element of the
/// result: one row of a tile, or all rows if the tile has all positions. It may overwrite `free`, the memory of the
/// columns. A position of the result takes `size` elements of `to`.
fn multiply_columns<W: Wide, T: Send + 'static>(
    (sizes, cut, rows, size): (&Sizes, Cut, &TileRows<T>, usize),
    weights: &[W],
    (scratch, slot): (&mut [W], usize),
    to: &mut [T],
    room: Room,
    fill: impl Fn(usize, Range<usize>, &mut [W], &mut [W]) + Sync + Send,
    store: impl Fn(usize, usize, &mut [W], &mut [T], &mut [W]) + Sync + Send,
) -> Result<()> {
    let (depth, grid) = (sizes.depth(), sizes.window.grid());
    let product = |slot: &'_ mut [W], matrix: usize, row: usize, m: usize, at: Range<usize>| {
        let n = at.len();
        let (columns, products) = slot.split_at_mut(depth * n);
        fill(matrix, at, columns, products);
        let first = matrix % sizes.groups * sizes.outputs + row;
        let a = Matrix { elements: &weights[first * depth..], row: depth, column: 1 };
        let b = Matrix { elements: columns, row: n, column: 1 };
        multiply_alone((m, n, depth), a, b, products, None);
        first
    };
    if cut.positions == grid && grid > 0 {
        let matrices = to.chunks_mut((sizes.outputs * grid * size).max(1)).enumerate();
        let tasks = matrices.flat_map(|(matrix, to)| {
            let parts = to.chunks_mut(cut.channels * grid * size).enumerate();
            parts.map(move |(i, to)| (matrix, i * cut.channels, to))
        });
        work_through(tasks, scratch, slot, |slot, (matrix, row, to)| {
            let m = to.len() / (grid * size);
            let first = product(slot, matrix, row, m, 0..grid);
            let (columns, products) = slot.split_at_mut(depth * grid);
            store(first, (matrix * sizes.outputs + row) * grid, &mut products[..m * grid], to, columns);
        });
        return Ok(());
    }
    let work = |slot: &mut [W], tile: Tile<'_, '_, T>| {
        let (m, at) = (tile.rows.len(), tile.columns.start / size..tile.columns.end / size);
        let n = at.len();
        let first = product(slot, tile.matrix, tile.row, m, at.clone());
        let (columns, products) = slot.split_at_mut(depth * n);
        let plane = tile.matrix * sizes.outputs + tile.row;
        for (i, (row, products)) in tile.rows.iter_mut().zip(products.chunks_mut(n)).enumerate() {
            store(first + i, (plane + i) * grid + at.start, products, row, columns);
        }
    };
    let matrix = (sizes.outputs, grid * size);
    rows.cut(to, matrix, (cut.channels, cut.positions * size), room, |tiles| {
        work_through(tiles, scratch, slot, work);
        Ok(())
    })
}

/// A convolution as a product of weights and columns.
struct ByColumns<T> {
    sizes: Sizes,
    cut: Cut,
    blocks: Vec<Block>,
    rows: TileRows<u8>,
    /// Weights that are widened before.
    weights: usize,
    /// Scratch elements of a slot.
    slot: usize,
    element: PhantomData<fn() -> T>,
}

impl<T: Real> ByColumns<T> {
    fn new(sizes: Sizes, room: Room) -> Result<ByColumns<T>> {
        let cut = Cut::of(&sizes);
        let blocks = cut.blocks(&sizes, room)?;
        let weights = if T::IS_WIDE { 0 } else { sizes.weights() };
        let slot =
            cut.slot(sizes.depth(), if T::IS_WIDE { 0 } else { most_converted(&sizes.window, &blocks) });
        Ok(ByColumns { sizes, cut, blocks, rows: TileRows::default(), weights, slot, element: PhantomData })
    }
}

impl<T: Real> Parts<T::Wide> for ByColumns<T> {
    fn scratch(&self) -> usize {
        let slots = self.cut.slots.saturating_mul(self.slot);
        self.weights.saturating_add(slots).saturating_mul(size_of::<T::Wide>())
    }

    fn run(
        &self,
        operands: [Option<&[u8]>; OPERANDS],
        scratch: &mut [T::Wide],
        (to, size): (&mut [u8], usize),
        memory: Room,
        epilogue: &Epilogue<'_, T::Wide>,
    ) -> Result<()> {
        let ByColumns { sizes, cut, blocks, rows, weights, slot, .. } = self;
        let (x, w) = (elements::<T>(operands[0]), elements::<T>(operands[1]));
        let bias = operands[2].map(|bias| elements::<T>(Some(bias)));
        let (room, scratch) = scratch.split_at_mut(*weights);
        let w = widened(w, room);
        let group = sizes.inputs * sizes.window.image();
        let grid = sizes.window.grid();
        let fill = |matrix: usize, at: Range<usize>, to: &mut [T::Wide], free: &mut [T::Wide]| {
            let block = &blocks[at.start / cut.positions];
            let x = &x[matrix * group..(matrix + 1) * group];
            fill_columns(&sizes.window, block, x, Widen::<T>(PhantomData), free, to);
        };
        multiply_columns(
            (sizes, *cut, rows, size),
            w,
            (scratch, *slot),
            to,
            memory,
            fill,
            |channel, at, sums, to, free| {
                if let Some(bias) = bias {
                    let rows = sums.chunks_mut(grid).zip(&bias[channel..]);
                    rows.for_each(|(row, bias)| add_bias(row, bias.wide()));
                }
                epilogue(at, sums, to, free);
            },
        )
    }
}

/// `row += bias`
fn add_bias<W: Wide>(row: &mut [W], bias: W) {
    if !bias.is_zero() {
        row.iter_mut().for_each(|x| *x = *x + bias);
    }
}

#[expect(clippy::cast_precision_loss, reason = "offsets beyond 2^53 are no positions in an image")]
pub(super) fn to_f64(n: usize) -> f64 {
    n as f64
}

/// The integer below a number that is near an extent.
#[expect(clippy::cast_possible_truncation, reason = "saturates beyond what any extent is")]
pub(super) fn floor(x: f64) -> i64 {
    x.floor() as i64
}

/// The dims of a tensor but for the first two.
pub(super) fn spatial(dims: &Dims) -> &[usize] {
    &dims[2..]
}
