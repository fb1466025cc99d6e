//! Convolutions: Conv, DeformConv, ConvInteger, QLinearConv.
//!
//! `y[n, m, o] = b[m] + Σ w[m, c, k] · x[n, c, o · stride + k · dilation - before]`, zero in the padding, where
//! `m` and `c` belong to the same group. It is a product of matrices: the weights, and *columns*, which have a
//! row per `(c, k)` and a column per position `o`. They are written a block of positions at a time, as many as
//! fit the second-level cache. Convolutions of one tap need none, for there the input is the columns. Where a
//! group has one input channel there is nothing to multiply, see [`depthwise`](super::depthwise), and where
//! there are more taps than positions the two change places, see [`few_positions`].
//!
//! Integers are computed in f64, which holds every sum of fewer than 2^37 products.

mod few_positions;

use super::lanes::{Real, Wide, for_real, widened};
use super::linear::{Matrix, multiply, multiply_alone};
use super::parallel::{PIECE, numbered_pieces, pieces};
use super::product::{Epilogue, OPERANDS, Parts, Product, Whole, alone, elements};
use super::tiles::{Tile, TileRows};
use super::window::{Block, SLOTS, Window, work_through, zip_strided};
use crate::host::Element;
use crate::kernel::{Dims, Io, KernelError, Prepare, Prepared, Result, Site};
use crate::room::Room;
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use ampc_ir::views::image::positive_int;
use ampc_ir::views::window::{ConvView, WindowView};
use num_traits::{One, Zero};
use std::marker::PhantomData;
use std::ops::Range;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Conv => conv,
        OpKind::ConvInteger | OpKind::QLinearConv => conv_integer,
        OpKind::DeformConv => deform_conv,
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

    /// True if the input is the columns.
    fn is_product(&self) -> bool {
        let alike =
            |a: &super::window::Axis| a.kernel == 1 && a.stride == 1 && a.before == 0 && a.image == a.grid;
        self.window.axes.iter().all(alike)
    }
}

fn conv(site: &Site<'_>) -> Result<Prepared> {
    let (sizes, _) = Sizes::of(site)?;
    Ok(for_real!(site.dtype(0)?, site, T => {
        if few_positions::fits(&sizes) {
            few_positions::conv::<T>(sizes, site.room)?
        } else if super::depthwise::fits(&sizes) {
            alone::<T>(super::depthwise::Depthwise::<T>::new(sizes, site.room)?)
        } else if <T as Real>::IS_WIDE && sizes.is_product() {
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
    } else if T::IS_WIDE && sizes.is_product() {
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
        Cut { channels, positions, slots: tasks(channels).clamp(1, SLOTS) }
    }

    /// The positions of each column of tiles.
    fn blocks(&self, sizes: &Sizes, room: Room) -> Result<Vec<Block>> {
        let has_results = sizes.batch * sizes.groups * sizes.outputs > 0;
        if has_results { sizes.window.blocks(self.positions, room) } else { Ok(Vec::new()) }
    }

    /// Scratch elements of a slot: columns and their products with the weights.
    fn slot(&self, depth: usize) -> usize {
        self.positions * (depth + self.channels)
    }
}

/// The products of weights and columns, a tile at a time. `fill(matrix, positions, columns)` writes the columns of a tile,
/// row by row. `store(channel, start, products, to, free)` stores products that begin at this channel and at this element
/// of the result: one row of a tile, or all rows if the tile has all positions. It may overwrite `free`, the memory of
/// the columns. A position of the result takes `size` elements of `to`.
fn multiply_columns<W: Wide, T: Send + 'static>(
    (sizes, cut, rows, size): (&Sizes, Cut, &TileRows<T>, usize),
    weights: &[W],
    scratch: &mut [W],
    to: &mut [T],
    room: Room,
    fill: impl Fn(usize, Range<usize>, &mut [W]) + Sync + Send,
    store: impl Fn(usize, usize, &mut [W], &mut [T], &mut [W]) + Sync + Send,
) -> Result<()> {
    let (depth, grid) = (sizes.depth(), sizes.window.grid());
    let product = |slot: &'_ mut [W], matrix: usize, row: usize, m: usize, at: Range<usize>| {
        let n = at.len();
        let (columns, products) = slot.split_at_mut(depth * n);
        fill(matrix, at, columns);
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
        work_through(tasks, scratch, cut.slot(depth), |slot, (matrix, row, to)| {
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
        work_through(tiles, scratch, cut.slot(depth), work);
        Ok(())
    })
}

/// The conversion of elements of the input to the type of the computation.
trait Load<W>: Copy + Send + Sync {
    type From: Element;
    fn row(self, from: &[Self::From], to: &mut [W]);
    fn one(self, from: Self::From) -> W;
}

#[derive(Clone, Copy)]
struct Widen<T>(PhantomData<T>);

impl<T: Real> Load<T::Wide> for Widen<T> {
    type From = T;
    fn row(self, from: &[T], to: &mut [T::Wide]) {
        T::widen(from, to);
    }
    fn one(self, from: T) -> T::Wide {
        from.wide()
    }
}

/// Integers less their zero point.
#[derive(Clone, Copy)]
struct Centered<T>(f64, PhantomData<T>);

impl<T: Element + Into<f64> + Send + Sync> Load<f64> for Centered<T> {
    type From = T;
    fn row(self, from: &[T], to: &mut [f64]) {
        to.iter_mut().zip(from).for_each(|(y, &x)| *y = x.into() - self.0);
    }
    fn one(self, from: T) -> f64 {
        from.into() - self.0
    }
}

/// Writes the columns of a block: a row for each channel and tap. `x` is the channels of the group.
fn fill_columns<W: Wide, L: Load<W>>(window: &Window, block: &Block, x: &[L::From], load: L, to: &mut [W]) {
    let inner = window.inner();
    let image = window.image();
    let n: usize = block.rows.iter().map(std::ops::Range::len).sum();
    if image == 0 {
        to.fill(W::zero());
        return;
    }
    let mut rows = to.chunks_mut(n);
    for x in x.chunks(image) {
        for outer_tap in 0..block.outer_taps {
            for tap in 0..inner.kernel {
                let Some(mut to) = rows.next() else { return };
                let met = inner.positions(tap);
                for (columns, base) in block.rows(outer_tap) {
                    let (part, rest) = to.split_at_mut(columns.len());
                    to = rest;
                    let first = met.start.clamp(columns.start, columns.end);
                    let end = met.end.clamp(first, columns.end);
                    let Some(base) = base.filter(|_| first < end) else {
                        part.fill(W::zero());
                        continue;
                    };
                    let (padding, part) = part.split_at_mut(first - columns.start);
                    let (part, padding_after) = part.split_at_mut(end - first);
                    padding.fill(W::zero());
                    padding_after.fill(W::zero());
                    let from = &x[base + inner.at(first, tap)..base + inner.at(end - 1, tap) + 1];
                    if inner.stride == 1 {
                        load.row(from, part);
                    } else {
                        zip_strided(part, from, inner.stride, |y, x| *y = load.one(x));
                    }
                }
            }
        }
    }
}

/// A convolution as a product of weights and columns.
struct ByColumns<T> {
    sizes: Sizes,
    cut: Cut,
    blocks: Vec<Block>,
    rows: TileRows<u8>,
    /// Weights that are widened before.
    weights: usize,
    element: PhantomData<fn() -> T>,
}

impl<T: Real> ByColumns<T> {
    fn new(sizes: Sizes, room: Room) -> Result<ByColumns<T>> {
        let cut = Cut::of(&sizes);
        let blocks = cut.blocks(&sizes, room)?;
        let weights = if T::IS_WIDE { 0 } else { sizes.weights() };
        Ok(ByColumns { sizes, cut, blocks, rows: TileRows::default(), weights, element: PhantomData })
    }
}

impl<T: Real> Parts<T::Wide> for ByColumns<T> {
    fn scratch(&self) -> usize {
        let slots = self.cut.slots.saturating_mul(self.cut.slot(self.sizes.depth()));
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
        let ByColumns { sizes, cut, blocks, rows, weights, .. } = self;
        let (x, w) = (elements::<T>(operands[0]), elements::<T>(operands[1]));
        let bias = operands[2].map(|bias| elements::<T>(Some(bias)));
        let (room, scratch) = scratch.split_at_mut(*weights);
        let w = widened(w, room);
        let group = sizes.inputs * sizes.window.image();
        let grid = sizes.window.grid();
        let fill = |matrix: usize, at: Range<usize>, to: &mut [T::Wide]| {
            let block = &blocks[at.start / cut.positions];
            let x = &x[matrix * group..(matrix + 1) * group];
            fill_columns(&sizes.window, block, x, Widen::<T>(PhantomData), to);
        };
        multiply_columns(
            (sizes, *cut, rows, size),
            w,
            scratch,
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

fn deform_conv(site: &Site<'_>) -> Result<Prepared> {
    let (sizes, _) = Sizes::of(site)?;
    let offset_groups = positive_int(&site.view, "offset_group", 1)?;
    let channels = sizes.groups * sizes.inputs;
    let offset_groups =
        usize::try_from(offset_groups).ok().filter(|&n| channels.is_multiple_of(n)).ok_or_else(|| {
            OpError::attr("offset_group", format!("a divisor of {channels}"), offset_groups.to_string())
        })?;
    if sizes.window.axes.len() != 2 {
        return Err(KernelError::unsupported("DeformConv of other than two spatial axes"));
    }
    Ok(for_real!(site.dtype(0)?, site, T => deform_conv_of::<T>(sizes, offset_groups)))
}

fn deform_conv_of<T: Real>(sizes: Sizes, offset_groups: usize) -> Prepared {
    let cut = Cut::of(&sizes);
    let weights = if T::IS_WIDE { 0 } else { sizes.weights() };
    let words = weights.saturating_add(cut.slots.saturating_mul(cut.slot(sizes.depth())));
    let rows = TileRows::default();
    Prepared::new(move |io| {
        let (x, w, offsets) = (io.slice::<T>(0)?, io.slice::<T>(1)?, io.slice::<T>(2)?);
        let bias = if io.has(3) { Some(io.slice::<T>(3)?) } else { None };
        let mask = if io.has(4) { Some(io.slice::<T>(4)?) } else { None };
        let to = io.out::<T>(0)?;
        let (room, scratch) = io.scratch::<T::Wide>().split_at_mut(weights);
        let w = widened(w, room);
        let deformed = Deformed { sizes: &sizes, offset_groups, x, offsets, mask };
        let fill = |matrix: usize, at: Range<usize>, to: &mut [T::Wide]| deformed.fill(matrix, at, to);
        let grid = sizes.window.grid();
        multiply_columns(
            (&sizes, cut, &rows, 1),
            w,
            scratch,
            to,
            io.room(),
            fill,
            |channel, _, sums, to, _| {
                if let Some(bias) = bias {
                    let rows = sums.chunks_mut(grid).zip(&bias[channel..]);
                    rows.for_each(|(row, bias)| add_bias(row, bias.wide()));
                }
                T::narrow(sums, to);
            },
        )
    })
    .scratch(words.saturating_mul(size_of::<T::Wide>()))
}

/// The columns of a DeformConv: each tap at each position has an offset, and a factor.
struct Deformed<'a, T> {
    sizes: &'a Sizes,
    offset_groups: usize,
    x: &'a [T],
    offsets: &'a [T],
    mask: Option<&'a [T]>,
}

impl<T: Real> Deformed<'_, T> {
    fn fill(&self, matrix: usize, at: Range<usize>, to: &mut [T::Wide]) {
        let Sizes { groups, inputs, ref window, .. } = *self.sizes;
        let (image, taps, grid) = (window.image(), window.kernel(), window.grid());
        let (batch, group) = (matrix / groups, matrix % groups);
        let channels_per_offset = groups * inputs / self.offset_groups;
        for (row, to) in to.chunks_mut(at.len()).enumerate() {
            let (channel, tap) = (group * inputs + row / taps, row % taps);
            let x = &self.x[(batch * groups * inputs + channel) * image..][..image];
            let cell = (batch * self.offset_groups + channel / channels_per_offset) * taps + tap;
            for (y, o) in to.iter_mut().zip(at.clone()) {
                let offset = |axis: usize| self.offsets[(cell * 2 + axis) * grid + o].wide();
                let value = self.sample(x, tap, o, [offset(0), offset(1)]);
                *y = value * self.mask.map_or(One::one(), |mask| mask[cell * grid + o].wide());
            }
        }
    }

    /// The input between elements, zero outside of it.
    fn sample(&self, x: &[T], tap: usize, o: usize, offset: [T::Wide; 2]) -> T::Wide {
        let axes = &self.sizes.window.axes;
        let of_tap = [tap / axes[1].kernel, tap % axes[1].kernel];
        let of_grid = [o / axes[1].grid, o % axes[1].grid];
        let mut near = [(0i64, T::Wide::zero()); 2];
        for (i, axis) in axes.iter().enumerate() {
            let at = of_grid[i] * axis.stride + of_tap[i] * axis.dilation;
            let at = offset[i].to() + to_f64(at) - to_f64(axis.before);
            // Far outside, or no number: outside.
            if !(at > -1.0 && at < to_f64(axis.image)) {
                return T::Wide::zero();
            }
            near[i] = (floor(at), T::Wide::of(at - at.floor()));
        }
        let element = |row: i64, column: i64| {
            let row = usize::try_from(row).ok().filter(|&r| r < axes[0].image)?;
            let column = usize::try_from(column).ok().filter(|&c| c < axes[1].image)?;
            Some(x[row * axes[1].image + column].wide())
        };
        let [(row, down), (column, right)] = near;
        let mut sum = T::Wide::zero();
        for (i, weight) in [(0, T::Wide::one() - down), (1, down)] {
            for (j, side) in [(0, T::Wide::one() - right), (1, right)] {
                if let Some(x) = element(row + i, column + j) {
                    sum = sum + weight * side * x;
                }
            }
        }
        sum
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

fn conv_integer(site: &Site<'_>) -> Result<Prepared> {
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
    let words = sizes.weights().saturating_add(cut.slots.saturating_mul(cut.slot(sizes.depth())));
    let blocks = cut.blocks(&sizes, site.room)?;
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
        let job = IntegerJob { sizes: &sizes, cut, blocks: &blocks, x, x_zero, weights: centered };
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
        let fill = |matrix: usize, at: Range<usize>, to: &mut [f64]| {
            let block = &self.blocks[at.start / self.cut.positions];
            let x = &self.x[matrix * group..(matrix + 1) * group];
            fill_columns(window, block, x, Centered::<X>(self.x_zero, PhantomData), to);
        };
        let rows = TileRows::default();
        multiply_columns(
            (self.sizes, self.cut, &rows, 1),
            self.weights,
            scratch,
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

/// The dims of a tensor but for the first two.
pub(super) fn spatial(dims: &Dims) -> &[usize] {
    &dims[2..]
}
