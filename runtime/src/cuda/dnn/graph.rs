//! Operation graphs of convolutions.
//!
//! A convolution has three tensors: the *image* `[n, c, …]`, the *filter* `[k, c / groups, …]` and the *grid*
//! `[n, k, …]` of positions of the filter over the image. Each direction computes one of them from the other two,
//! in f32, and rounds once. A bias per channel of the result is added before rounding.

use super::DnnError;
use super::descriptor::{Attribute as A, Descriptor, Kind};
use ampc_ir::DType;
use cudarc::cudnn::sys;
use sys::cudnnPointwiseMode_t as Pointwise;

/// The tensor that a convolution computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// Computes the grid from image and filter.
    Forward,
    /// Computes the image from filter and grid: a transposed convolution.
    DataGradient,
    /// Computes the filter from image and grid.
    FilterGradient,
}

/// The order of a tensor's dims in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Layout {
    /// Batch, channels, spatial dims.
    ChannelsFirst,
    /// Batch, spatial dims, channels.
    ChannelsLast,
}

/// A convolution: everything that a plan depends on.
///
/// The number of groups is the channels of the image divided by the channels of the filter.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Convolution {
    /// The computed tensor.
    pub direction: Direction,
    /// Element type of the operands: f32, f16 or bf16.
    pub dtype: DType,
    /// Element type of the result.
    pub result: DType,
    /// Dims `[n, c, …]` with two or three spatial dims.
    pub image: Vec<i64>,
    /// Dims `[k, c / groups, …]`.
    pub filter: Vec<i64>,
    /// Dims `[n, k, …]`.
    pub grid: Vec<i64>,
    /// Padding before each spatial dim of the image.
    pub before: Vec<i64>,
    /// Padding after each spatial dim of the image.
    pub after: Vec<i64>,
    /// The stride of positions, for each spatial dim.
    pub strides: Vec<i64>,
    /// The dilation of the filter, for each spatial dim.
    pub dilations: Vec<i64>,
    /// True if a bias, one element of the operands' type per channel, is added to the result.
    pub has_bias: bool,
    /// True if a ReLU follows. NaN stays NaN.
    pub has_relu: bool,
    /// The order of dims of all tensors.
    pub layout: Layout,
}

/// Unique ids of tensors in a graph and its variant packs.
pub(super) const IMAGE: i64 = 1;
pub(super) const FILTER: i64 = 2;
pub(super) const GRID: i64 = 3;
pub(super) const BIAS: i64 = 4;
/// The result before the epilogue, a virtual tensor in f32.
const SUM: i64 = 5;
/// The result after the bias and before the activation.
const SHIFTED: i64 = 6;

/// The alignment in bytes of operands and results, which the widest loads require.
pub(super) const ALIGNMENT: u32 = 16;

/// A finalized operation graph, with its descriptors.
pub(super) struct Graph {
    pub(super) descriptor: Descriptor,
    _parts: Vec<Descriptor>,
}

impl Graph {
    /// Builds the graph of operations that refer to `parts`.
    ///
    /// # Errors
    /// If cuDNN rejects the graph.
    pub(super) fn new(
        handle: Option<sys::cudnnHandle_t>,
        operations: Vec<Descriptor>,
        mut parts: Vec<Descriptor>,
    ) -> Result<Graph, DnnError> {
        let mut graph = Descriptor::new(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        if let Some(handle) = handle {
            graph = graph.set(A::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, &[handle])?;
        }
        let all: Vec<&Descriptor> = operations.iter().collect();
        let descriptor = graph.set_descriptors(A::CUDNN_ATTR_OPERATIONGRAPH_OPS, &all)?.finalized()?;
        parts.extend(operations);
        Ok(Graph { descriptor, _parts: parts })
    }
}

pub(super) fn data_type(dtype: DType) -> Result<sys::cudnnDataType_t, DnnError> {
    match dtype {
        DType::F32 => Ok(sys::cudnnDataType_t::CUDNN_DATA_FLOAT),
        DType::F16 => Ok(sys::cudnnDataType_t::CUDNN_DATA_HALF),
        DType::BF16 => Ok(sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16),
        other => Err(DnnError::ElementType(other)),
    }
}

/// The strides of dims in a layout.
fn strides_of(dims: &[i64], layout: Layout) -> Vec<i64> {
    let mut strides = vec![1; dims.len()];
    let order: Vec<usize> = match layout {
        Layout::ChannelsFirst => (0..dims.len()).rev().collect(),
        Layout::ChannelsLast => [1].into_iter().chain((2..dims.len()).rev()).chain([0]).collect(),
    };
    let mut step = 1i64;
    for axis in order {
        strides[axis] = step;
        step = step.saturating_mul(dims[axis]);
    }
    strides
}

fn tensor(
    id: i64,
    dims: &[i64],
    (layout, alignment): (Layout, u32),
    dtype: DType,
    is_virtual: bool,
) -> Result<Descriptor, DnnError> {
    // Virtual tensors are in f32.
    let alignment = i64::from(alignment).max(if dtype == DType::F32 { 4 } else { 2 });
    Descriptor::new(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?
        .set(A::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[id])?
        .set(A::CUDNN_ATTR_TENSOR_DATA_TYPE, &[data_type(dtype)?])?
        .set(A::CUDNN_ATTR_TENSOR_DIMENSIONS, dims)?
        .set(A::CUDNN_ATTR_TENSOR_STRIDES, &strides_of(dims, layout))?
        .set(A::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[alignment])?
        .set(A::CUDNN_ATTR_TENSOR_IS_VIRTUAL, &[is_virtual])?
        .finalized()
}

/// The attributes of an operation: α, β, window, image, filter, grid.
fn attributes(direction: Direction) -> (Kind, [A; 6]) {
    match direction {
        Direction::Forward => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
            [
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
            ],
        ),
        Direction::DataGradient => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
            [
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
            ],
        ),
        Direction::FilterGradient => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
            [
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
            ],
        ),
    }
}

impl Convolution {
    /// The names of the tensors of a variant pack.
    pub(super) fn ids(&self) -> Vec<i64> {
        let mut ids = self.operands().to_vec();
        ids.push(self.computed().0);
        ids.extend(self.has_bias.then_some(BIAS));
        ids
    }

    /// The unique id and dims of the result.
    pub(super) fn computed(&self) -> (i64, &[i64]) {
        match self.direction {
            Direction::Forward => (GRID, &self.grid),
            Direction::DataGradient => (IMAGE, &self.image),
            Direction::FilterGradient => (FILTER, &self.filter),
        }
    }

    /// The unique ids of the two operands: filter after image, grid after filter.
    pub(super) fn operands(&self) -> [i64; 2] {
        match self.direction {
            Direction::Forward => [IMAGE, FILTER],
            Direction::DataGradient => [FILTER, GRID],
            Direction::FilterGradient => [IMAGE, GRID],
        }
    }

    fn window(&self) -> Result<Descriptor, DnnError> {
        let spatial = i64::try_from(self.strides.len()).unwrap_or(i64::MAX);
        Descriptor::new(Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?
            .set(A::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, &[spatial])?
            .set(A::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, &[sys::cudnnDataType_t::CUDNN_DATA_FLOAT])?
            .set(
                A::CUDNN_ATTR_CONVOLUTION_CONV_MODE,
                &[sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION],
            )?
            .set(A::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &self.before)?
            .set(A::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &self.after)?
            .set(A::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &self.strides)?
            .set(A::CUDNN_ATTR_CONVOLUTION_DILATIONS, &self.dilations)?
            .finalized()
    }

    /// The operation graph for tensors whose addresses are multiples of `alignment` bytes; `handle` is that of the
    /// device, if there is one.
    ///
    /// # Errors
    /// If cuDNN rejects a descriptor.
    pub(super) fn graph(
        &self,
        handle: Option<sys::cudnnHandle_t>,
        alignment: u32,
    ) -> Result<Graph, DnnError> {
        let order = (self.layout, alignment);
        let (computed, computed_dims) = self.computed();
        let is_fused = self.has_bias || self.has_relu;
        let part = |id: i64, dims: &[i64]| match (id == computed, is_fused) {
            (true, true) => tensor(SUM, dims, order, DType::F32, true),
            (true, false) => tensor(id, dims, order, self.result, false),
            (false, _) => tensor(id, dims, order, self.dtype, false),
        };
        let (image, filter, grid) =
            (part(IMAGE, &self.image)?, part(FILTER, &self.filter)?, part(GRID, &self.grid)?);
        let window = self.window()?;
        let (kind, [alpha, beta, of_window, of_image, of_filter, of_grid]) = attributes(self.direction);
        let operation = Descriptor::new(kind)?
            .set(alpha, &[1f32])?
            .set(beta, &[0f32])?
            .set_descriptors(of_window, &[&window])?
            .set_descriptors(of_image, &[&image])?
            .set_descriptors(of_filter, &[&filter])?
            .set_descriptors(of_grid, &[&grid])?
            .finalized()?;
        // The index among the parts of the tensor that the next operation reads.
        let mut last = match self.direction {
            Direction::Forward => 2,
            Direction::DataGradient => 0,
            Direction::FilterGradient => 1,
        };
        let mut parts = vec![image, filter, grid, window];
        let mut operations = vec![operation];
        if self.has_bias {
            let mut per_channel = vec![1; computed_dims.len()];
            per_channel[1] = computed_dims[1];
            parts.push(tensor(BIAS, &per_channel, order, self.dtype, false)?);
            let operands = [last, parts.len() - 1];
            operations.push(self.pointwise(
                Pointwise::CUDNN_POINTWISE_ADD,
                &operands,
                (!self.has_relu, alignment),
                &mut parts,
            )?);
            last = parts.len() - 1;
        }
        if self.has_relu {
            operations.push(self.pointwise(
                Pointwise::CUDNN_POINTWISE_RELU_FWD,
                &[last],
                (true, alignment),
                &mut parts,
            )?);
        }
        Graph::new(handle, operations, parts)
    }

    /// Appends an element-wise operation in f32 on one or two of the parts. Its result becomes the last part, and is
    /// stored if the operation is the last.
    fn pointwise(
        &self,
        mode: Pointwise,
        operands: &[usize],
        (is_last, alignment): (bool, u32),
        parts: &mut Vec<Descriptor>,
    ) -> Result<Descriptor, DnnError> {
        let (order, (id, dims)) = ((self.layout, alignment), self.computed());
        let result = match is_last {
            true => tensor(id, dims, order, self.result, false)?,
            false => tensor(SHIFTED, dims, order, DType::F32, true)?,
        };
        let mut description = Descriptor::new(Kind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?
            .set(A::CUDNN_ATTR_POINTWISE_MODE, &[mode])?
            .set(A::CUDNN_ATTR_POINTWISE_MATH_PREC, &[sys::cudnnDataType_t::CUDNN_DATA_FLOAT])?;
        if mode == Pointwise::CUDNN_POINTWISE_RELU_FWD {
            let propagates = sys::cudnnNanPropagation_t::CUDNN_PROPAGATE_NAN;
            description = description.set(A::CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, &[propagates])?;
        }
        let description = description.finalized()?;
        let attributes = [A::CUDNN_ATTR_OPERATION_POINTWISE_XDESC, A::CUDNN_ATTR_OPERATION_POINTWISE_BDESC];
        let mut operation = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?
            .set_descriptors(A::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &[&description])?;
        for (attribute, &operand) in attributes.into_iter().zip(operands) {
            operation = operation.set_descriptors(attribute, &[&parts[operand]])?;
        }
        let operation =
            operation.set_descriptors(A::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &[&result])?.finalized()?;
        parts.extend([description, result]);
        Ok(operation)
    }
}

#[cfg(test)]
mod tests {
    use super::{Layout, strides_of};

    #[test]
    fn strides_of_layouts() {
        assert_eq!(strides_of(&[2, 3, 4, 5], Layout::ChannelsFirst), [60, 20, 5, 1]);
        assert_eq!(strides_of(&[2, 3, 4, 5], Layout::ChannelsLast), [60, 1, 15, 3]);
        assert_eq!(strides_of(&[2, 3, 4, 5, 6], Layout::ChannelsLast), [360, 1, 90, 18, 3]);
    }
}
