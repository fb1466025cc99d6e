//! Conv and ConvTranspose, by cuDNN.
//!
//! Both are one convolution of an *image*, a *filter* and a *grid* of positions ([`Convolution`]): Conv computes the
//! grid, ConvTranspose the image. Channels precede spatial dims, unless the session stores images with channels last.
//! A 1-D convolution becomes a 2-D convolution of images with one row. Paddings before and after an axis may differ.
//!
//! The bias is added in f32, and the sum is rounded once. The first of these methods for which cuDNN has an engine is
//! used:
//!
//! 1. cuDNN's graph with the bias;
//! 2. for a 16-bit ConvTranspose, cuDNN's graph on tensors transposed to channels last in scratch memory;
//! 3. cuDNN's graph with an f32 result in scratch memory, to which a kernel of ours adds the bias;
//! 4. like 3, with 16-bit operands that are widened to f32 first.
//!
//! The kernel that adds the bias also writes the elements of a ConvTranspose that no filter position covers.

pub(super) mod moves;

use self::moves::{Placement, Transposition, Widening};
use super::{Maker, PART, Prepare};
use crate::cuda::dnn::{Convolution, Direction, DnnError, Layout, Places, Plan};
use crate::cuda::launch::{operand, operand_or_none, queue, result, scratch};
use crate::cuda::text::Elem;
use crate::kernel::{Dims, KernelError, Prepared, Result, Site};
use ampc_ir::op::OpKind;
use ampc_ir::views::window::{ConvView, TransposedView, WindowView};
use ampc_ir::{DType, Dim};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Conv => conv,
        OpKind::ConvTranspose => conv_transpose,
        _ => return None,
    })
}

/// A spatial axis. Position `o` and filter element `k` read the image at `o · stride + k · dilation - before`.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    pub(super) image: i64,
    pub(super) taps: i64,
    pub(super) grid: i64,
    pub(super) stride: i64,
    pub(super) dilation: i64,
    pub(super) before: i64,
}

impl Axis {
    pub(super) const ONE: Axis = Axis { image: 1, taps: 1, grid: 1, stride: 1, dilation: 1, before: 0 };

    /// The padding after the image that gives the grid's number of positions, equal to the padding before it if
    /// possible; `None` if the image is too large for the grid.
    pub(super) fn after(&self) -> Option<i64> {
        let least = self.reached().checked_sub(self.image)?;
        let most = least.checked_add(self.stride - 1)?;
        (most >= 0).then(|| self.before.clamp(least.max(0), most))
    }

    /// The extent of the image up to the last element that a position reads; it may be negative.
    fn reached(&self) -> i64 {
        (self.grid - 1)
            .saturating_mul(self.stride)
            .saturating_add((self.taps - 1).saturating_mul(self.dilation).saturating_add(1))
            .saturating_sub(self.before)
    }
}

/// The sizes of a convolution.
pub(super) struct Sizes {
    pub(super) batch: usize,
    /// Channels of the image and of the grid.
    pub(super) channels: [usize; 2],
    pub(super) groups: usize,
    pub(super) axes: Vec<Axis>,
}

fn int(n: impl TryInto<i64>) -> Result<i64> {
    n.try_into().map_err(|_| KernelError::value("a window that fits memory", "a larger one"))
}

/// The spatial dims of a tensor of at least two dims.
fn spatial<'a>(maker: &Maker<'_>, dims: &'a Dims) -> Result<&'a [usize]> {
    dims.get(2..).ok_or_else(|| maker.site.no_kernel())
}

impl Sizes {
    /// The axes of images, filters and grids with these spatial dims; `before` is the padding before an axis.
    fn axes(
        view: &WindowView,
        [image, taps, grid]: [&[usize]; 3],
        before: impl Fn(usize, u64, u64) -> u64,
    ) -> Result<Vec<Axis>> {
        let axis = |i: usize| {
            Ok(Axis {
                image: int(image[i])?,
                taps: int(taps[i])?,
                grid: int(grid[i])?,
                stride: int(view.strides[i])?,
                dilation: int(view.dilations[i])?,
                before: int(before(i, image[i] as u64, grid[i] as u64))?,
            })
        };
        let mut axes = (0..image.len()).map(axis).collect::<Result<Vec<_>>>()?;
        if axes.iter().any(|axis| axis.taps == 0) {
            return Err(KernelError::value("a window of at least one element", "none"));
        }
        while axes.len() < 2 {
            axes.insert(0, Axis::ONE);
        }
        Ok(axes)
    }

    /// The convolution without a bias; the result has the operands' element type.
    pub(super) fn convolution(&self, direction: Direction, dtype: DType) -> Result<Option<Convolution>> {
        let Some(after) = self.axes.iter().map(Axis::after).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let [c, k] = self.channels;
        let dims = |first: [usize; 2], of: fn(&Axis) -> i64| -> Result<Vec<i64>> {
            let first = first.into_iter().map(int).collect::<Result<Vec<_>>>()?;
            Ok(first.into_iter().chain(self.axes.iter().map(of)).collect())
        };
        let each = |of: fn(&Axis) -> i64| self.axes.iter().map(of).collect();
        Ok(Some(Convolution {
            direction,
            dtype,
            result: dtype,
            image: dims([self.batch, c], |axis| axis.image)?,
            filter: dims([k, c / self.groups], |axis| axis.taps)?,
            grid: dims([self.batch, k], |axis| axis.grid)?,
            before: each(|axis| axis.before),
            after,
            strides: each(|axis| axis.stride),
            dilations: each(|axis| axis.dilation),
            has_bias: false,
            has_relu: false,
            layout: Layout::ChannelsFirst,
        }))
    }
}

/// The window of a node with `n` spatial axes, and the number of groups.
fn window(maker: &Maker<'_>, taps: &[usize]) -> Result<(WindowView, usize)> {
    let view = &maker.site.view;
    let known: Vec<Dim> = taps.iter().map(|&n| Dim::Known(n as u64)).collect();
    let window = WindowView::read(view, taps.len(), Some(&known))?;
    Ok((window, usize::try_from(ConvView::read(view)?.group).unwrap_or(usize::MAX)))
}

fn conv(maker: &Maker<'_>) -> Result<Prepared> {
    let (sizes, is_empty) = forward(maker)?;
    let all: Vec<i64> = sizes.axes.iter().map(|axis| axis.grid).collect();
    finish(maker, Direction::Forward, sizes, &all, is_empty)
}

/// The sizes of a Conv, and true if its sums are empty.
///
/// # Errors
/// If the node is invalid, or its element types are not floats.
pub(super) fn forward(maker: &Maker<'_>) -> Result<(Sizes, bool)> {
    let site = maker.site;
    maker.float(0)?;
    let (x, w, y) = tensors(site)?;
    let parts = [spatial(maker, &x)?, spatial(maker, &w)?, spatial(maker, &y)?];
    let (view, groups) = window(maker, parts[1])?;
    let axes = Sizes::axes(&view, parts, |i, image, grid| view.pads(i, image, grid).0)?;
    if w[1].checked_mul(groups) != Some(x[1]) || !w[0].is_multiple_of(groups) {
        return Err(KernelError::value(
            format!("channels in {groups} groups"),
            format!("{} to {}", x[1], w[0]),
        ));
    }
    let sizes = Sizes { batch: x[0], channels: [x[1], w[0]], groups, axes };
    Ok((sizes, x.contains(&0) || w.contains(&0)))
}

fn conv_transpose(maker: &Maker<'_>) -> Result<Prepared> {
    let (sizes, all, is_empty) = transposed(maker)?;
    finish(maker, Direction::DataGradient, sizes, &all, is_empty)
}

/// The sizes of a ConvTranspose, the spatial dims of its result, and true if its sums are empty.
///
/// # Errors
/// If the node is invalid, or its element types are not floats.
fn transposed(maker: &Maker<'_>) -> Result<(Sizes, Vec<i64>, bool)> {
    let site = maker.site;
    maker.float(0)?;
    let (x, w, y) = tensors(site)?;
    let parts = [spatial(maker, &y)?, spatial(maker, &w)?, spatial(maker, &x)?];
    let (view, groups) = window(maker, parts[1])?;
    let transposed = TransposedView::read(&site.view, parts[1].len())?;
    let mut axes = Sizes::axes(&view, parts, |i, image, grid| transposed.before(&view, i, grid, image))?;
    if !x[1].is_multiple_of(groups) || w[0] != x[1] {
        return Err(KernelError::value(format!("{} channels in {groups} groups", w[0]), x[1]));
    }
    let all: Vec<i64> = axes.iter().map(|axis| axis.image).collect();
    // Elements after the last position do not belong to the convolution.
    for axis in &mut axes {
        if axis.after().is_none() {
            axis.image = axis.reached();
        }
    }
    let is_empty = x.contains(&0) || w.contains(&0) || axes.iter().any(|axis| axis.image < 1);
    let channels = [w[1].saturating_mul(groups), x[1]];
    Ok((Sizes { batch: x[0], channels, groups, axes }, all, is_empty))
}

/// The dims of input, filter and result, with channels before spatial dims.
fn tensors(site: &Site<'_>) -> Result<(Dims, Dims, Dims)> {
    let first = |dims: Result<Dims>| dims.map(|dims| site.channels_first(dims));
    Ok((first(site.dims(0))?, first(site.dims(1))?, first(site.result_dims(0))?))
}

/// The layout of the tensors of a node.
pub(super) fn layout_of(site: &Site<'_>) -> Layout {
    if site.channels_last { Layout::ChannelsLast } else { Layout::ChannelsFirst }
}

/// The convolution of 16-bit tensors with channels last and its plan, if cuDNN has an engine for it including the
/// bias.
pub(in crate::cuda) fn with_channels_last(maker: &Maker<'_>) -> Result<Option<(Convolution, Plan)>> {
    let site = maker.site;
    let (direction, (sizes, is_whole)) = match site.kind() {
        OpKind::Conv => {
            let (sizes, is_empty) = forward(maker)?;
            (Direction::Forward, (sizes, !is_empty))
        }
        _ => {
            let (sizes, all, is_empty) = transposed(maker)?;
            let is_whole = !is_empty && sizes.axes.iter().map(|axis| axis.image).eq(all);
            (Direction::DataGradient, (sizes, is_whole))
        }
    };
    let dtype = site.dtype(0)?;
    if !dtype.is_low() || !is_whole || sizes.axes.len() > 3 {
        return Ok(None);
    }
    let Some(convolution) = sizes.convolution(direction, dtype)? else { return Ok(None) };
    let convolution = Convolution { has_bias: site.has(2), layout: Layout::ChannelsLast, ..convolution };
    Ok(maker.shared.dnn.plan(&convolution).ok().map(|plan| (convolution, plan)))
}

/// The kernel of a convolution whose result has the spatial dims `all`; the convolution itself may cover fewer
/// elements. If its sums are empty, the result is the bias.
fn finish(
    maker: &Maker<'_>,
    direction: Direction,
    sizes: Sizes,
    all: &[i64],
    is_empty: bool,
) -> Result<Prepared> {
    let site = maker.site;
    let (dtype, elem, has_bias) = (site.dtype(0)?, maker.float(0)?, site.has(2));
    if site.channels_last {
        let (_, plan) = with_channels_last(maker)?.ok_or_else(|| site.no_kernel())?;
        return Ok(whole(plan));
    }
    if sizes.axes.len() > 3 {
        return Err(site.no_kernel());
    }
    if site.result_dims(0)?.contains(&0) {
        return Ok(Prepared::new(|_| Ok(())));
    }
    let of_result = |axis: &Axis| if direction == Direction::Forward { axis.grid } else { axis.image };
    let part: Vec<i64> = sizes.axes.iter().map(of_result).collect();
    let placement = |from| Placement::new(maker, from, elem, all, if is_empty { None } else { Some(&part) });
    if is_empty {
        let placement = placement(elem)?;
        return Ok(Prepared::new(move |io| {
            let args = placement.args(0, operand_or_none(io, 2)?, result(io, 0)?);
            placement.kernel.launch(queue(io)?, &args)
        }));
    }
    let convolution = sizes.convolution(direction, dtype)?.ok_or_else(|| site.no_kernel())?;
    let (dnn, is_whole) = (&maker.shared.dnn, part == all);
    if is_whole && has_bias {
        let fused = Convolution { has_bias, ..convolution.clone() };
        match dnn.plan(&fused) {
            Ok(plan) => return Ok(whole(plan)),
            Err(DnnError::NoEngine { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        if direction == Direction::DataGradient && elem != Elem::F32 {
            match dnn.plan(&Convolution { layout: Layout::ChannelsLast, ..fused }) {
                Ok(plan) => return channels_last(maker, plan),
                Err(DnnError::NoEngine { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    if is_whole && !has_bias {
        return Ok(whole(dnn.plan(&convolution)?));
    }
    let (plan, from, read) = match has_bias {
        // Without a bias, elements may be rounded before they are copied to the result.
        false => (dnn.plan(&convolution)?, elem, elem),
        true => {
            let wide = Convolution { result: DType::F32, ..convolution };
            match dnn.plan(&wide) {
                Ok(plan) => (plan, Elem::F32, elem),
                Err(DnnError::NoEngine { .. }) if elem != Elem::F32 => {
                    (dnn.plan(&Convolution { dtype: DType::F32, ..wide })?, Elem::F32, Elem::F32)
                }
                Err(error) => return Err(error.into()),
            }
        }
    };
    let placement = placement(from)?;
    let widens = [Widening::new(maker, 0, read)?, Widening::new(maker, 1, read)?];
    let elements = sizes.batch * sizes.channels[usize::from(direction == Direction::Forward)];
    let elements = part.iter().try_fold(elements, |n, &d| n.checked_mul(usize::try_from(d).ok()?));
    let stored = elements.and_then(|n| n.checked_mul(from.bytes())).ok_or_else(|| site.no_kernel())?;
    let parts = [stored, Widening::bytes(&widens[0]), Widening::bytes(&widens[1])];
    let parts = parts.map(|bytes| bytes.next_multiple_of(PART));
    let workspace = plan.workspace();
    let prepared = Prepared::new(move |io| {
        let start = scratch(io)?;
        let args = placement.args(start, operand_or_none(io, 2)?, result(io, 0)?);
        let mut operands = [operand(io, 0)?, operand(io, 1)?];
        let mut free = start + parts[0] as u64;
        for (i, widening) in widens.iter().enumerate() {
            if let Some(Widening { kernel, n }) = widening {
                kernel.launch(queue(io)?, &[*n as u64, operands[i], free])?;
                operands[i] = free;
                free += parts[i + 1] as u64;
            }
        }
        let operands = in_order(direction, operands);
        let places = Places { operands, result: start, bias: 0, workspace: free };
        let queue = queue(io)?;
        plan.launch(queue, &places)?;
        placement.kernel.launch(queue, &args)
    });
    Ok(prepared.scratch(parts.iter().sum::<usize>() + workspace))
}

/// The kernel of a plan for 16-bit input, filter and result with channels last.
fn channels_last(maker: &Maker<'_>, plan: Plan) -> Result<Prepared> {
    let site = maker.site;
    let split = |dims: &Dims| [dims[0], dims[1], dims[2..].iter().product()];
    let (x, w, y) = (split(&site.dims(0)?), split(&site.dims(1)?), split(&site.result_dims(0)?));
    let around = [
        Transposition::new(maker, x[0], x[1], x[2])?,
        Transposition::new(maker, w[0], w[1], w[2])?,
        Transposition::new(maker, y[0], y[2], y[1])?,
    ];
    let parts = [x, w, y].map(|[n, c, spatial]| (n * c * spatial * 2).next_multiple_of(PART));
    let workspace = plan.workspace();
    let prepared = Prepared::new(move |io| {
        let start = scratch(io)?;
        let places = [start, start + parts[0] as u64, start + (parts[0] + parts[1]) as u64];
        let from = [operand(io, 0)?, operand(io, 1)?];
        let (bias, to) = (operand_or_none(io, 2)?, result(io, 0)?);
        let queue = queue(io)?;
        around[0].launch(queue, from[0], places[0])?;
        around[1].launch(queue, from[1], places[1])?;
        let operands = in_order(plan.direction(), [places[0], places[1]]);
        let workspace = places[2] + parts[2] as u64;
        plan.launch(queue, &Places { operands, result: places[2], bias, workspace })?;
        around[2].launch(queue, places[2], to)
    });
    Ok(prepared.scratch(parts.iter().sum::<usize>() + workspace))
}

/// Reorders the operands of a node, whose second operand is the filter, to image, filter, grid.
fn in_order(direction: Direction, [a, b]: [u64; 2]) -> [u64; 2] {
    if direction == Direction::DataGradient { [b, a] } else { [a, b] }
}

/// The kernel of a plan that computes the whole result of the node.
fn whole(plan: Plan) -> Prepared {
    let workspace = plan.workspace();
    let prepared = Prepared::new(move |io| {
        let places = Places {
            operands: in_order(plan.direction(), [operand(io, 0)?, operand(io, 1)?]),
            result: result(io, 0)?,
            bias: operand_or_none(io, 2)?,
            workspace: scratch(io)?,
        };
        plan.launch(queue(io)?, &places)
    });
    prepared.scratch(workspace)
}

#[cfg(test)]
mod tests {
    use super::Axis;

    fn after(image: i64, taps: i64, grid: i64, stride: i64, before: i64) -> Option<i64> {
        Axis { image, taps, grid, stride, dilation: 1, before }.after()
    }

    #[test]
    fn padding_behind_an_axis() {
        assert_eq!(after(5, 3, 5, 1, 1), Some(1));
        // Equal paddings are preferred if the rounded number of positions permits them.
        assert_eq!(after(224, 7, 112, 2, 3), Some(3));
        assert_eq!(after(224, 3, 112, 2, 0), Some(1));
        assert_eq!(after(3, 1, 2, 2, 0), Some(0));
        // Results of a ConvTranspose with no, one, and three elements after the last position.
        assert_eq!(after(6, 2, 3, 2, 0), Some(0));
        assert_eq!(after(7, 2, 3, 2, 0), Some(0));
        assert_eq!(after(9, 2, 3, 2, 0), None);
    }
}
