//! Weight gradients of convolutions. A training step expresses them as a convolution with batch and channels
//! exchanged:
//!
//! ```text
//! %a = Transpose(%x) {perm=[1, 0, 2, 3]}      %b = Transpose(%dy) {perm=[1, 0, 2, 3]}
//! %c = Conv(%a, %b)                           %dw = Transpose(%c) {perm=[1, 0, 2, 3]}
//! ```
//!
//! With g groups, `%x` is reshaped to `[N, g, C / g, …]`, transposed to `[C / g, g, N, …]`, and reshaped to
//! `[C / g, g · N, …]`. If the extents of `%x` were unknown when the step was generated, a Slice after the
//! convolution extracts the elements of the window. Casts may stand between the nodes. If `%x` and `%dy` are
//! transposed from images with channels last, the group reads these images.
//!
//! cuDNN has an operation for the gradient. The convolution as written has a filter as large as the image.

use super::super::convolution::moves::Transposition;
use super::super::convolution::{Axis, Sizes};
use super::super::{Maker, PART, signed};
use super::{Found, Nodes, operand_of};
use crate::backend::GroupSite;
use crate::cuda::dnn::{Convolution, Direction, Layout, Places, Plan};
use crate::cuda::launch::{Kernel, THREADS, blocks_for, operand, queue, result, scratch};
use crate::cuda::text::{Elem, HEAD};
use crate::kernel::{Dims, KernelError, Prepared, Result, Site};
use ampc_ir::op::OpKind as K;
use ampc_ir::views::TransposeView;
use ampc_ir::views::window::{ConvView, WindowView};
use ampc_ir::{DType, Dim, Node, Value};

/// A weight gradient.
pub(super) struct Group {
    pub(super) found: Found,
    /// The input of the convolution, `[N, C, …]`.
    image: Value,
    /// The gradient of the convolution's result, `[N, K, …]`.
    grid: Value,
    sizes: Sizes,
    /// The element types of image, grid, sum and result.
    dtypes: [DType; 4],
    /// The nodes that exchange batch and channels of image and grid, without groups and without casts before the
    /// convolution.
    exchanges: Option<[Node; 2]>,
    /// True if image and grid have channels last.
    channels_last: bool,
}

/// A path of nodes, each the only reader of its predecessor's result.
struct Path<'n, 'a> {
    nodes: &'n Nodes<'a>,
    /// The nodes of the path so far.
    visited: Vec<usize>,
}

impl<'a> Path<'_, 'a> {
    fn site(&self, at: usize) -> &'a Site<'a> {
        &self.nodes.sites[at]
    }

    /// The producer of operand `i` of a node, skipping at most one Cast.
    fn producer(&mut self, at: usize, i: usize, kind: K) -> Option<usize> {
        let mut maker = self.nodes.maker(at, i, &[kind, K::Cast])?;
        self.visited.push(maker);
        if self.site(maker).kind() != kind {
            maker = self.nodes.maker(maker, 0, &[kind])?;
            self.visited.push(maker);
        }
        Some(maker)
    }

    /// The reader of a node's result, skipping at most one Cast.
    fn reader(&mut self, at: usize, kind: K) -> Option<usize> {
        let mut reader = self.nodes.reader(at)?;
        if self.site(reader).kind() == K::Cast {
            self.visited.push(reader);
            reader = self.nodes.reader(reader)?;
        }
        if self.site(reader).kind() != kind {
            return None;
        }
        self.visited.push(reader);
        Some(reader)
    }

    /// Fails if more than one of the nodes from `first` on is a Cast: two casts round twice.
    fn has_one_cast(&self, first: usize) -> Option<()> {
        let casts = self.visited[first..].iter().filter(|&&at| self.site(at).kind() == K::Cast);
        (casts.count() <= 1).then_some(())
    }

    /// Checks that a Transpose permutes the first axes as `first`, and keeps the others.
    fn permutes(&self, at: usize, first: &[usize]) -> Option<()> {
        let rank = self.site(at).dims(0).ok()?.len();
        let perm = TransposeView::read(&self.site(at).view).perm(rank).ok()?;
        let axes = first.iter().copied().chain(first.len()..rank);
        (rank >= first.len() && axes.eq(perm)).then_some(())
    }
}

impl Group {
    /// Matches the weight gradient whose convolution is the node `at`.
    pub(super) fn read(nodes: &Nodes<'_>, at: usize) -> Option<Group> {
        let mut path = Path { nodes, visited: vec![at] };
        let conv = path.site(at);
        if conv.has(2) || conv.channels_last {
            return None;
        }
        let group = usize::try_from(ConvView::read(&conv.view).ok()?.group).ok()?;
        let filters = path.producer(at, 1, K::Transpose)?;
        path.permutes(filters, &[1, 0])?;
        let mut grid = path.site(filters).view.operand(0)?;
        path.has_one_cast(0)?;
        let (from, (mut image, channels)) = (path.visited.len(), path.image(at, group)?);
        path.has_one_cast(from)?;
        // The convolution, the exchange of the grid, and the exchange of the image.
        let exchanges = (group == 1 && path.visited.len() == 3).then(|| [path.visited[2], filters]);
        let (from, (last, taps)) = (path.visited.len(), path.result(at)?);
        path.has_one_cast(from)?;

        let (image_dims, grid_dims) = (value_dims(conv, image)?, value_dims(conv, grid)?);
        let result_of = |at: usize| nodes.result(at).and_then(|value| dtype(conv, value));
        let dtypes = [dtype(conv, image)?, dtype(conv, grid)?, result_of(at)?, result_of(last)?];
        // Kernels for channels last have one 16-bit type.
        let is_low = dtypes[0].is_low() && dtypes == [dtypes[0]; 4];
        let exchanges = exchanges.filter(|_| is_low);
        let backs = exchanges.and_then(|[a, b]| Some([path.back(a)?, path.back(b)?]));
        if let Some(backs) = backs {
            path.visited.extend(backs);
            [image, grid] = [nodes.sites[backs[0]].view.operand(0)?, nodes.sites[backs[1]].view.operand(0)?];
        }
        let (filter, result) = (conv.dims(1).ok()?, path.site(last).result_dims(0).ok()?);
        let found_dims = [image_dims[0], filter[0], channels];
        let is_gradient = image_dims.len() == grid_dims.len()
            && image_dims.len() == result.len()
            && [grid_dims[0], grid_dims[1], result[1]] == found_dims
            && image_dims[1] == group * channels
            && filter[0].is_multiple_of(group)
            && !image_dims.iter().chain(&grid_dims).chain(&result).any(|&n| n == 0);
        if !is_gradient || result.len() > 5 {
            return None;
        }
        let sizes = Sizes {
            batch: image_dims[0],
            channels: [image_dims[1], filter[0]],
            groups: group,
            axes: axes(conv, &image_dims[2..], &grid_dims[2..], &taps)?,
        };
        let result = nodes.result(last)?;
        let sum = conv.result_dtype(0).ok()?;
        let dtypes = [dtype(conv, image)?, dtype(conv, grid)?, sum, dtype(conv, result)?];
        if dtypes.iter().any(|&dtype| Elem::float(dtype).is_none()) {
            return None;
        }
        let mut all = path.visited;
        all.sort_unstable();
        let found = Found { nodes: all, result, rounds_once: false };
        let channels_last = backs.is_some();
        let exchanges = exchanges.map(|pair| pair.map(|at| nodes.sites[at].view.node));
        Some(Group { found, image, grid, sizes, dtypes, exchanges, channels_last })
    }

    /// The plan for channels last, whose result is `[K, …, C]`, and the transposition of the result.
    fn last(&self, maker: &Maker<'_>) -> Result<(Plan, Transposition)> {
        let unsupported = || KernelError::unsupported("a weight gradient of this size");
        let [image, grid, sum, to] = self.dtypes;
        if !sum.is_low() || [image, grid, to] != [sum; 3] {
            return Err(unsupported());
        }
        let convolution = self.sizes.convolution(Direction::FilterGradient, sum)?.ok_or_else(unsupported)?;
        let extent = |n: i64| usize::try_from(n).map_err(|_| unsupported());
        let dims = convolution.filter.iter().map(|&n| extent(n)).collect::<Result<Dims>>()?;
        let back = Transposition::new(maker, dims[0], dims[2..].iter().product(), dims[1])?;
        let plan = maker.shared.dnn.plan(&Convolution { layout: Layout::ChannelsLast, ..convolution })?;
        Ok((plan, back))
    }

    /// The nodes that exchange batch and channels, and image, grid and result, if there is a kernel for channels
    /// last.
    pub(super) fn with_channels_last(&self, maker: &Maker<'_>) -> Option<([Node; 2], [Value; 3])> {
        self.last(maker).ok()?;
        Some((self.exchanges?, [self.image, self.grid, self.found.result]))
    }

    /// The kernel for channels last.
    fn prepare_last(&self, maker: &Maker<'_>, group: &GroupSite<'_>) -> Result<Prepared> {
        let (plan, back) = self.last(maker)?;
        let operands = [operand_of(group, self.image)?, operand_of(group, self.grid)?];
        let (part, workspace) = (back.bytes().next_multiple_of(PART), plan.workspace());
        let prepared = Prepared::new(move |io| {
            let start = scratch(io)?;
            let operands = [operand(io, operands[0])?, operand(io, operands[1])?];
            let to = result(io, 0)?;
            let places = Places { operands, result: start, bias: 0, workspace: start + part as u64 };
            let queue = queue(io)?;
            plan.launch(queue, &places)?;
            back.launch(queue, start, to)
        });
        Ok(prepared.scratch(part + workspace))
    }

    /// The kernel of the group.
    ///
    /// # Errors
    /// If cuDNN has no engine, or fails.
    pub(super) fn prepare(&self, maker: &Maker<'_>, group: &GroupSite<'_>) -> Result<Prepared> {
        if self.channels_last {
            return self.prepare_last(maker, group);
        }
        let unsupported = || KernelError::unsupported("a weight gradient of this size");
        let [image, grid, sum, to] = self.dtypes;
        let convolution = self.sizes.convolution(Direction::FilterGradient, sum)?.ok_or_else(unsupported)?;
        let count =
            |dims: &[i64]| dims.iter().try_fold(1usize, |n, &d| n.checked_mul(usize::try_from(d).ok()?));
        let counts = [&convolution.image, &convolution.grid, &convolution.filter].map(|dims| count(dims));
        let [Some(n_image), Some(n_grid), Some(n_filter)] = counts else { return Err(unsupported()) };
        let plan = maker.shared.dnn.plan(&convolution)?;
        let casts = [
            Conversion::new(maker, image, sum, n_image)?,
            Conversion::new(maker, grid, sum, n_grid)?,
            Conversion::new(maker, sum, to, n_filter)?,
        ];
        // Converted operands, and a result to be converted, are in scratch memory.
        let size = Elem::float(sum).map_or(0, Elem::bytes);
        let parts = casts
            .each_ref()
            .map(|cast| cast.as_ref().map_or(0, |cast| (cast.n * size).next_multiple_of(PART)));
        let operands = [operand_of(group, self.image)?, operand_of(group, self.grid)?];
        let workspace = plan.workspace();
        let prepared = Prepared::new(move |io| {
            let start = scratch(io)?;
            let ends = [parts[0], parts[0] + parts[1], parts.iter().sum()].map(|n| start + n as u64);
            let mut from = [operand(io, operands[0])?, operand(io, operands[1])?];
            let to = result(io, 0)?;
            let queue = queue(io)?;
            for (i, place) in [start, ends[0]].into_iter().enumerate() {
                if let Some(cast) = &casts[i] {
                    cast.kernel.launch(queue, &[cast.n as u64, from[i], place])?;
                    from[i] = place;
                }
            }
            let sum = if casts[2].is_some() { ends[1] } else { to };
            plan.launch(queue, &Places { operands: from, result: sum, bias: 0, workspace: ends[2] })?;
            match &casts[2] {
                Some(cast) => cast.kernel.launch(queue, &[cast.n as u64, sum, to]),
                None => Ok(()),
            }
        });
        Ok(prepared.scratch(parts.iter().sum::<usize>() + workspace))
    }
}

impl Path<'_, '_> {
    /// The Transpose from channels last that precedes the exchange of batch and channels `at`.
    fn back(&self, at: usize) -> Option<usize> {
        let maker = self.nodes.maker(at, 0, &[K::Transpose])?;
        let rank = self.site(maker).dims(0).ok()?.len();
        let perm = TransposeView::read(&self.site(maker).view).perm(rank).ok()?;
        let axes = [0, rank - 1].into_iter().chain(1..rank - 1);
        axes.eq(perm).then_some(maker)
    }

    /// The image of the convolution `at`, and its channels per group.
    fn image(&mut self, at: usize, group: usize) -> Option<(Value, usize)> {
        if group == 1 {
            let transposed = self.producer(at, 0, K::Transpose)?;
            self.permutes(transposed, &[1, 0])?;
            return Some((self.site(transposed).view.operand(0)?, self.site(transposed).dims(0).ok()?[1]));
        }
        let joined = self.producer(at, 0, K::Reshape)?;
        let transposed = self.producer(joined, 0, K::Transpose)?;
        self.permutes(transposed, &[2, 1, 0])?;
        let split = self.producer(transposed, 0, K::Reshape)?;
        let (whole, parts) = (self.site(split).dims(0).ok()?, self.site(split).result_dims(0).ok()?);
        let joined = self.site(joined).result_dims(0).ok()?;
        let [n, g, c] = <[usize; 3]>::try_from(parts.get(..3)?).ok()?;
        let regroups_channels = g == group
            && whole.len() >= 2
            && whole[..2] == [n, g * c]
            && whole[2..] == parts[3..]
            && joined[..2] == [c, g * n]
            && joined[2..] == parts[3..];
        if !regroups_channels {
            return None;
        }
        Some((self.site(split).view.operand(0)?, c))
    }

    /// The last node after the convolution `at`, and the extents of the window.
    fn result(&mut self, at: usize) -> Option<(usize, Dims)> {
        let mut last = at;
        let before = self.visited.len();
        if let Some(slice) = self.reader(at, K::Slice) {
            begins_at_zero(self.site(slice))?;
            last = slice;
        } else {
            self.visited.truncate(before);
        }
        let last = self.reader(last, K::Transpose)?;
        self.permutes(last, &[1, 0])?;
        let taps = Dims::from_slice(self.site(last).result_dims(0).ok()?.get(2..)?);
        Some((last, taps))
    }
}

/// Checks that a Slice starts at 0 along the spatial axes.
fn begins_at_zero(slice: &Site<'_>) -> Option<()> {
    let starts = slice.view.known_ints(1)?;
    let steps = if slice.has(4) { slice.view.known_ints(4)? } else { Vec::new() };
    let (from, to) = (slice.dims(0).ok()?, slice.result_dims(0).ok()?);
    let is_first = starts.iter().all(|&start| start == 0) && steps.iter().all(|&step| step == 1);
    (is_first && from.get(..2)? == to.get(..2)?).then_some(())
}

/// The spatial axes of the convolution whose gradient is computed. Its strides are the dilations of the written
/// convolution `conv`, and vice versa.
fn axes(conv: &Site<'_>, image: &[usize], grid: &[usize], taps: &[usize]) -> Option<Vec<Axis>> {
    let known: Vec<Dim> = grid.iter().map(|&n| Dim::Known(n as u64)).collect();
    let window = WindowView::read(&conv.view, grid.len(), Some(&known)).ok()?;
    let made = conv.result_dims(0).ok()?;
    let axis = |i: usize| {
        let before = window.pads(i, image[i] as u64, *made.get(i + 2)? as u64).0;
        Some(Axis {
            image: signed(image[i]),
            taps: signed(taps[i]),
            grid: signed(grid[i]),
            stride: i64::try_from(window.dilations[i]).ok()?,
            dilation: i64::try_from(window.strides[i]).ok()?,
            before: i64::try_from(before).ok()?,
        })
    };
    let mut axes = (0..image.len()).map(axis).collect::<Option<Vec<_>>>()?;
    while axes.len() < 2 {
        axes.insert(0, Axis::ONE);
    }
    axes.iter().all(|axis| axis.padding_after().is_some()).then_some(axes)
}

fn value_dims(site: &Site<'_>, value: Value) -> Option<Dims> {
    let shape = site.view.module.value(value).ty.shape()?.dims()?;
    shape.iter().map(|dim| dim.known().and_then(|n| usize::try_from(n).ok())).collect()
}

fn dtype(site: &Site<'_>, value: Value) -> Option<DType> {
    site.view.module.value(value).ty.dtype()
}

/// A kernel that converts elements.
struct Conversion {
    kernel: Kernel,
    n: usize,
}

impl Conversion {
    fn new(maker: &Maker<'_>, from: DType, to: DType, n: usize) -> Result<Option<Conversion>> {
        if from == to {
            return Ok(None);
        }
        let elem = |dtype| Elem::float(dtype).ok_or_else(|| maker.site.no_kernel());
        let (from, to) = (elem(from)?, elem(to)?);
        let text = format!(
            "{HEAD}extern \"C\" __global__ void run(u64 n, const {}* x, {}* y) {{
  for (u64 i = first(); i < n; i += step()) y[i] = {};
}}
",
            from.stored(),
            to.stored(),
            to.store(&from.load("x[i]")),
        );
        Ok(Some(Conversion { kernel: Kernel::new(maker.shared, &text, blocks_for(n), THREADS)?, n }))
    }
}
