//! Descriptors of the operations of an attention: products, reductions, element-wise operations, views.

use super::DnnError;
use super::attention::Strided;
use super::descriptor::{Attribute as A, Descriptor, Kind};
use super::graph::{ALIGNMENT, Graph};
use cudarc::cudnn::sys;
use sys::cudnnDataType_t as DataType;
use sys::cudnnPointwiseMode_t as Mode;

/// The first unique id of virtual tensors.
const VIRTUAL: i64 = 100;

/// The storage of a tensor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Storage {
    Device,
    /// Host memory; the value is read when the plan is executed.
    Host,
    /// Registers and shared memory of the kernel.
    Virtual,
}

/// The descriptors of a graph, by their indices.
#[derive(Default)]
pub(super) struct Builder {
    parts: Vec<Descriptor>,
    operations: Vec<Descriptor>,
    /// The number of virtual tensors.
    n_virtual: i64,
}

impl Builder {
    pub(super) fn tensor(
        &mut self,
        id: i64,
        of: Strided,
        dtype: DataType,
        storage: Storage,
    ) -> Result<usize, DnnError> {
        let alignment = if storage == Storage::Host { 4 } else { i64::from(ALIGNMENT) };
        let tensor = Descriptor::new(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?
            .set(A::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[id])?
            .set(A::CUDNN_ATTR_TENSOR_DATA_TYPE, &[dtype])?
            .set(A::CUDNN_ATTR_TENSOR_DIMENSIONS, &of.dims)?
            .set(A::CUDNN_ATTR_TENSOR_STRIDES, &of.strides)?
            .set(A::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[alignment])?
            .set(A::CUDNN_ATTR_TENSOR_IS_VIRTUAL, &[storage == Storage::Virtual])?
            .set(A::CUDNN_ATTR_TENSOR_IS_BY_VALUE, &[storage == Storage::Host])?
            .finalized()?;
        self.parts.push(tensor);
        Ok(self.parts.len() - 1)
    }

    /// Adds a virtual tensor.
    pub(super) fn between(&mut self, dims: [i64; 4], dtype: DataType) -> Result<usize, DnnError> {
        self.n_virtual += 1;
        self.tensor(VIRTUAL + self.n_virtual, Strided::dense(dims), dtype, Storage::Virtual)
    }

    pub(super) fn pointwise(
        &mut self,
        mode: Mode,
        axis: Option<i64>,
        operands: &[usize],
        result: usize,
    ) -> Result<(), DnnError> {
        let math = if mode == Mode::CUDNN_POINTWISE_CMP_GE {
            DataType::CUDNN_DATA_BOOLEAN
        } else {
            DataType::CUDNN_DATA_FLOAT
        };
        let mut made = Descriptor::new(Kind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?
            .set(A::CUDNN_ATTR_POINTWISE_MODE, &[mode])?
            .set(A::CUDNN_ATTR_POINTWISE_MATH_PREC, &[math])?;
        if let Some(axis) = axis {
            made = made.set(A::CUDNN_ATTR_POINTWISE_AXIS, &[axis])?;
        }
        let made = made.finalized()?;
        let names = [
            A::CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
            A::CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
            A::CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
        ];
        let mut operation = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?
            .set_descriptors(A::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &[&made])?;
        for (name, &operand) in names.into_iter().zip(operands) {
            operation = operation.set_descriptors(name, &[&self.parts[operand]])?;
        }
        let operation = operation
            .set_descriptors(A::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &[&self.parts[result]])?
            .finalized()?;
        self.parts.push(made);
        self.operations.push(operation);
        Ok(())
    }

    pub(super) fn product(&mut self, a: usize, b: usize, result: usize) -> Result<(), DnnError> {
        let made = Descriptor::new(Kind::CUDNN_BACKEND_MATMUL_DESCRIPTOR)?
            .set(A::CUDNN_ATTR_MATMUL_COMP_TYPE, &[DataType::CUDNN_DATA_FLOAT])?
            .finalized()?;
        let operation = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)?
            .set_descriptors(A::CUDNN_ATTR_OPERATION_MATMUL_ADESC, &[&self.parts[a]])?
            .set_descriptors(A::CUDNN_ATTR_OPERATION_MATMUL_BDESC, &[&self.parts[b]])?
            .set_descriptors(A::CUDNN_ATTR_OPERATION_MATMUL_CDESC, &[&self.parts[result]])?
            .set_descriptors(A::CUDNN_ATTR_OPERATION_MATMUL_DESC, &[&made])?
            .finalized()?;
        self.parts.push(made);
        self.operations.push(operation);
        Ok(())
    }

    pub(super) fn reduction(
        &mut self,
        operator: sys::cudnnReduceTensorOp_t,
        x: usize,
        result: usize,
    ) -> Result<(), DnnError> {
        let made = Descriptor::new(Kind::CUDNN_BACKEND_REDUCTION_DESCRIPTOR)?
            .set(A::CUDNN_ATTR_REDUCTION_OPERATOR, &[operator])?
            .set(A::CUDNN_ATTR_REDUCTION_COMP_TYPE, &[DataType::CUDNN_DATA_FLOAT])?
            .finalized()?;
        let operation = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)?
            .set_descriptors(A::CUDNN_ATTR_OPERATION_REDUCTION_DESC, &[&made])?
            .set_descriptors(A::CUDNN_ATTR_OPERATION_REDUCTION_XDESC, &[&self.parts[x]])?
            .set_descriptors(A::CUDNN_ATTR_OPERATION_REDUCTION_YDESC, &[&self.parts[result]])?
            .finalized()?;
        self.parts.push(made);
        self.operations.push(operation);
        Ok(())
    }

    /// Adds a virtual tensor `[n, h, b, a]`: the transposed matrices of `x`, whose layout is `of` and whose element
    /// type is `dtype`.
    pub(super) fn transposed(&mut self, x: usize, of: Strided, dtype: DataType) -> Result<usize, DnnError> {
        self.n_virtual += 1;
        let y = self.tensor(VIRTUAL + self.n_virtual, of.transposed(), dtype, Storage::Virtual)?;
        let operation = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)?
            .set_descriptors(A::CUDNN_ATTR_OPERATION_RESHAPE_XDESC, &[&self.parts[x]])?
            .set_descriptors(A::CUDNN_ATTR_OPERATION_RESHAPE_YDESC, &[&self.parts[y]])?
            .finalized()?;
        self.operations.push(operation);
        Ok(y)
    }

    /// Adds an element-wise operation; its result is a virtual f32 tensor.
    pub(super) fn computed(
        &mut self,
        mode: Mode,
        operands: &[usize],
        dims: [i64; 4],
    ) -> Result<usize, DnnError> {
        let y = self.between(dims, DataType::CUDNN_DATA_FLOAT)?;
        self.pointwise(mode, None, operands, y)?;
        Ok(y)
    }

    /// Finalizes the operation graph.
    ///
    /// # Errors
    /// If cuDNN rejects the graph.
    pub(super) fn graph(self, handle: Option<sys::cudnnHandle_t>) -> Result<Graph, DnnError> {
        Graph::new(handle, self.operations, self.parts)
    }
}
