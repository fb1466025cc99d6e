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
mod sizes;

pub(super) use self::sizes::{Axis, Sizes};

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

/// The spatial dims of a tensor of at least two dims.
fn spatial<'a>(maker: &Maker<'_>, dims: &'a Dims) -> Result<&'a [usize]> {
    dims.get(2..).ok_or_else(|| maker.site.no_kernel())
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
        if axis.padding_after().is_none() {
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
    let (dtype, elem) = (site.dtype(0)?, maker.float(0)?);
    if site.channels_last {
        let (_, plan) = with_channels_last(maker)?.ok_or_else(|| site.no_kernel())?;
        return Ok(whole(plan));
    }
    if sizes.axes.len() > 3 {
        let (name, axes) = (site.view.schema.name, sizes.axes.len());
        return Err(KernelError::unsupported(format!("{name} over {axes} spatial axes")));
    }
    if site.result_dims(0)?.contains(&0) {
        return Ok(Prepared::new(|_| Ok(())));
    }
    let of_result = |axis: &Axis| if direction == Direction::Forward { axis.grid } else { axis.image };
    let part: Vec<i64> = sizes.axes.iter().map(of_result).collect();
    if is_empty {
        let placement = Placement::new(maker, elem, elem, all, None)?;
        return Ok(Prepared::new(move |io| {
            let args = placement.args(0, operand_or_none(io, 2)?, result(io, 0)?);
            placement.kernel.launch(queue(io)?, &args)
        }));
    }
    let convolution = sizes.convolution(direction, dtype)?.ok_or_else(|| site.no_kernel())?;
    if part == all
        && let Some(prepared) = by_graph(maker, &convolution)?
    {
        return Ok(prepared);
    }
    placed(maker, convolution, all, &part)
}

/// The plan of a convolution; `None` if cuDNN has no engine for it.
fn plan_of(maker: &Maker<'_>, convolution: &Convolution) -> Result<Option<Plan>> {
    match maker.shared.dnn.plan(convolution) {
        Ok(plan) => Ok(Some(plan)),
        Err(DnnError::NoEngine { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The kernel of a convolution that computes the whole result, with the bias in cuDNN's graph; `None` if there is a
/// bias and no such graph has an engine.
fn by_graph(maker: &Maker<'_>, convolution: &Convolution) -> Result<Option<Prepared>> {
    if !maker.site.has(2) {
        return Ok(Some(whole(maker.shared.dnn.plan(convolution)?)));
    }
    let fused = Convolution { has_bias: true, ..convolution.clone() };
    if let Some(plan) = plan_of(maker, &fused)? {
        return Ok(Some(whole(plan)));
    }
    if fused.direction != Direction::DataGradient || maker.float(0)? == Elem::F32 {
        return Ok(None);
    }
    let plan = plan_of(maker, &Convolution { layout: Layout::ChannelsLast, ..fused })?;
    plan.map(|plan| channels_last(maker, plan)).transpose()
}

/// The plan of a convolution whose result is stored in scratch memory, with the element types of the result and of the
/// operands.
fn plan_before_placement(maker: &Maker<'_>, convolution: Convolution) -> Result<(Plan, Elem, Elem)> {
    let (dnn, elem) = (&maker.shared.dnn, maker.float(0)?);
    if !maker.site.has(2) {
        // Without a bias, elements may be rounded before they are copied to the result.
        return Ok((dnn.plan(&convolution)?, elem, elem));
    }
    let wide = Convolution { result: DType::F32, ..convolution };
    match dnn.plan(&wide) {
        Ok(plan) => Ok((plan, Elem::F32, elem)),
        Err(DnnError::NoEngine { .. }) if elem != Elem::F32 => {
            Ok((dnn.plan(&Convolution { dtype: DType::F32, ..wide })?, Elem::F32, Elem::F32))
        }
        Err(error) => Err(error.into()),
    }
}

/// The kernel of a convolution whose result is stored in scratch memory, and then copied with the bias to the spatial
/// dims `all`. `part` are the spatial dims of the convolution's result.
fn placed(maker: &Maker<'_>, convolution: Convolution, all: &[i64], part: &[i64]) -> Result<Prepared> {
    let (site, elem, direction) = (maker.site, maker.float(0)?, convolution.direction);
    let computed = if direction == Direction::Forward { &convolution.grid } else { &convolution.image };
    let elements = computed.iter().try_fold(1usize, |n, &d| n.checked_mul(usize::try_from(d).ok()?));
    let (plan, from, read) = plan_before_placement(maker, convolution)?;
    let placement = Placement::new(maker, from, elem, all, Some(part))?;
    let widens = [Widening::new(maker, 0, read)?, Widening::new(maker, 1, read)?];
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
