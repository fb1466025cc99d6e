//! Operation graphs of scaled dot-product attention.
//!
//! ```text
//! S = scale · Q Kᵀ + bias, later keys −∞ if causal    P = exp(S − max S) / sum exp(S − max S)    O = P V
//! ```
//!
//! S and P are virtual: no matrix of scores is in memory. Sums and products are in f32. P is rounded to the element type of
//! the operands before the product with V, and O is rounded once.

use super::descriptor::{Attribute as A, Descriptor, Kind};
use super::graph::{ALIGNMENT, Graph, data_type};
use super::launch::pack;
use super::plan::{Choice, Conditions};
use super::{Described, DnnError, Library, Properties, known_of, lock, plan};
use crate::cuda::memory::failed as of_driver;
use crate::cuda::queue::CudaQueue;
use crate::kernel::Result;
use ampc_ir::DType;
use cudarc::cudnn::sys;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use sys::cudnnDataType_t as DataType;
use sys::cudnnPointwiseMode_t as Mode;

/// A tensor of four dims: batch, heads, positions, elements of a head.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Strided {
    /// The extents.
    pub dims: [i64; 4],
    /// The elements from one index of each dim to the next.
    pub strides: [i64; 4],
}

impl Strided {
    /// A tensor without gaps, the last dim innermost.
    pub fn dense(dims: [i64; 4]) -> Strided {
        let row = dims[3];
        let head = row.saturating_mul(dims[2]);
        Strided { dims, strides: [head.saturating_mul(dims[1]), head, row, 1] }
    }

    /// The same tensor with its last two dims in the other order.
    pub fn transposed(&self) -> Strided {
        let ([n, h, a, b], [of_n, of_h, of_a, of_b]) = (self.dims, self.strides);
        Strided { dims: [n, h, b, a], strides: [of_n, of_h, of_b, of_a] }
    }
}

/// Scaled dot-product attention: everything that a plan depends on. The scale is an argument of the plan.
///
/// The heads of query and result are a multiple of those of key and value, which groups of them share.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Attention {
    /// Element type of query, key, value and result: f16 or bf16.
    pub dtype: DType,
    /// The queries.
    pub query: Strided,
    /// The keys.
    pub key: Strided,
    /// The values.
    pub value: Strided,
    /// The result: a row for each query.
    pub result: Strided,
    /// Added to the scores: its element type, and its dims, each that of the scores or 1.
    pub bias: Option<(DType, Strided)>,
    /// True if query `i` attends to keys up to `i` only.
    pub is_causal: bool,
}

/// Names of tensors in a graph and its variant packs.
const QUERY: i64 = 1;
const KEY: i64 = 2;
const VALUE: i64 = 3;
const RESULT: i64 = 4;
const BIAS: i64 = 5;
const SCALE: i64 = 6;
const MASKED: i64 = 7;
/// The version of cuDNN from which on scores may be −∞.
const VERSION: usize = 91_002;

/// The first name of virtual tensors.
const VIRTUAL: i64 = 100;

/// Where a tensor is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Storage {
    Device,
    /// In the host's memory; the value is read when the plan is executed.
    Host,
    /// In registers and shared memory of the kernel.
    Virtual,
}

/// The descriptors of a graph, by their indices.
#[derive(Default)]
struct Builder {
    parts: Vec<Descriptor>,
    operations: Vec<Descriptor>,
    /// The number of virtual tensors.
    n_virtual: i64,
}

impl Builder {
    fn tensor(&mut self, id: i64, of: Strided, dtype: DataType, storage: Storage) -> Result<usize, DnnError> {
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

    /// A virtual tensor.
    fn between(&mut self, dims: [i64; 4], dtype: DataType) -> Result<usize, DnnError> {
        self.n_virtual += 1;
        self.tensor(VIRTUAL + self.n_virtual, Strided::dense(dims), dtype, Storage::Virtual)
    }

    fn pointwise(
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

    fn product(&mut self, a: usize, b: usize, result: usize) -> Result<(), DnnError> {
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

    fn reduction(
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
}

impl Attention {
    /// The dims of the scores.
    fn scores(&self) -> [i64; 4] {
        [self.query.dims[0], self.query.dims[1], self.query.dims[2], self.key.dims[2]]
    }

    /// The operation graph; `handle` is that of the device, if there is one.
    ///
    /// # Errors
    /// If cuDNN refuses a descriptor.
    fn graph(&self, handle: Option<sys::cudnnHandle_t>) -> Result<Graph, DnnError> {
        const FLOAT: DataType = DataType::CUDNN_DATA_FLOAT;
        let (elem, dims) = (data_type(self.dtype)?, self.scores());
        let one = Strided::dense([1; 4]);
        let mut builder = Builder::default();
        let b = &mut builder;
        let query = b.tensor(QUERY, self.query, elem, Storage::Device)?;
        let key = b.tensor(KEY, self.key.transposed(), elem, Storage::Device)?;
        let value = b.tensor(VALUE, self.value, elem, Storage::Device)?;
        let result = b.tensor(RESULT, self.result, elem, Storage::Device)?;
        let product = b.between(dims, FLOAT)?;
        b.product(query, key, product)?;
        let scale = b.tensor(SCALE, one, FLOAT, Storage::Host)?;
        let mut scores = b.between(dims, FLOAT)?;
        b.pointwise(Mode::CUDNN_POINTWISE_MUL, None, &[product, scale], scores)?;
        if let Some((dtype, of)) = self.bias {
            let bias = b.tensor(BIAS, of, data_type(dtype)?, Storage::Device)?;
            let sum = b.between(dims, FLOAT)?;
            b.pointwise(Mode::CUDNN_POINTWISE_ADD, None, &[scores, bias], sum)?;
            scores = sum;
        }
        if self.is_causal {
            let mut index = |axis| {
                let index = b.between(dims, DataType::CUDNN_DATA_INT32)?;
                b.pointwise(Mode::CUDNN_POINTWISE_GEN_INDEX, Some(axis), &[scores], index)?;
                Ok::<_, DnnError>(index)
            };
            let (row, column) = (index(2)?, index(3)?);
            let attends = b.between(dims, DataType::CUDNN_DATA_BOOLEAN)?;
            b.pointwise(Mode::CUDNN_POINTWISE_CMP_GE, None, &[row, column], attends)?;
            let masked = b.tensor(MASKED, one, FLOAT, Storage::Host)?;
            let kept = b.between(dims, FLOAT)?;
            b.pointwise(Mode::CUDNN_POINTWISE_BINARY_SELECT, None, &[scores, masked, attends], kept)?;
            scores = kept;
        }
        let rows = [dims[0], dims[1], dims[2], 1];
        let most = b.between(rows, FLOAT)?;
        b.reduction(sys::cudnnReduceTensorOp_t::CUDNN_REDUCE_TENSOR_MAX, scores, most)?;
        let below = b.between(dims, FLOAT)?;
        b.pointwise(Mode::CUDNN_POINTWISE_SUB, None, &[scores, most], below)?;
        let powers = b.between(dims, FLOAT)?;
        b.pointwise(Mode::CUDNN_POINTWISE_EXP, None, &[below], powers)?;
        let sum = b.between(rows, FLOAT)?;
        b.reduction(sys::cudnnReduceTensorOp_t::CUDNN_REDUCE_TENSOR_ADD, powers, sum)?;
        // The logarithm of the sum of the powers of each row, which a backward pass would read: engines that keep the scores in
        // registers are chosen by it.
        let logarithm = b.between(rows, FLOAT)?;
        b.pointwise(Mode::CUDNN_POINTWISE_LOG, None, &[sum], logarithm)?;
        let statistics = b.between(rows, FLOAT)?;
        b.pointwise(Mode::CUDNN_POINTWISE_ADD, None, &[most, logarithm], statistics)?;
        let shares = b.between(dims, elem)?;
        b.pointwise(Mode::CUDNN_POINTWISE_DIV, None, &[powers, sum], shares)?;
        b.product(shares, value, result)?;
        Graph::new(handle, builder.operations, builder.parts)
    }

    /// The names of the tensors of a variant pack.
    fn ids(&self) -> Vec<i64> {
        let mut ids = vec![QUERY, KEY, VALUE, RESULT, SCALE];
        ids.extend(self.bias.is_some().then_some(BIAS));
        ids.extend(self.is_causal.then_some(MASKED));
        ids
    }
}

/// An attention that is ready to run.
pub(in crate::cuda) struct AttentionPlan {
    // Plans are destroyed before their handle.
    choice: Arc<Choice>,
    /// The plan that replaces `choice` after its engine failed.
    other: Mutex<Option<Arc<Choice>>>,
    library: Arc<Library>,
    attention: Attention,
    ids: Vec<i64>,
}

/// The addresses of an attention, and its scale.
pub(in crate::cuda) struct AttentionPlaces {
    /// Query, key, value, result.
    pub(in crate::cuda) tensors: [u64; 4],
    /// Unused if nothing is added.
    pub(in crate::cuda) bias: u64,
    pub(in crate::cuda) workspace: u64,
    pub(in crate::cuda) scale: f32,
}

impl AttentionPlan {
    /// The bytes of memory that it takes for itself.
    pub(in crate::cuda) fn workspace(&self) -> usize {
        self.choice.workspace
    }

    /// Adds the attention to a queue.
    ///
    /// # Errors
    /// If cuDNN fails.
    pub(in crate::cuda) fn launch(&self, queue: &mut CudaQueue, places: &AttentionPlaces) -> Result<()> {
        let masked = f32::NEG_INFINITY;
        // cuDNN reads the values in the host's memory before the call returns.
        let addresses: Vec<u64> = self
            .ids
            .iter()
            .map(|&id| match id {
                BIAS => places.bias,
                SCALE => (&raw const places.scale).addr() as u64,
                MASKED => (&raw const masked).addr() as u64,
                id => places.tensors[usize::try_from(id - QUERY).unwrap_or(0)],
            })
            .collect();
        self.library.attentions_launched.fetch_add(1, Ordering::Relaxed);
        let failed = |error: DnnError| error.of_call();
        let pack = pack(&self.ids, &addresses, places.workspace).map_err(failed)?;
        queue.stream().context().bind_to_thread().map_err(of_driver)?;
        let choice = lock(&self.other).clone().unwrap_or_else(|| self.choice.clone());
        let next = |skipped| {
            let conditions = Conditions { workspace: self.choice.workspace, skipped, ..Conditions::USUAL };
            self.library.choose(self.attention.dtype, conditions, |handle| self.attention.graph(handle))
        };
        if let Some(other) = self.library.run(queue, choice, &pack, next)? {
            *lock(&self.other) = Some(other);
        }
        Ok(queue.launched()?)
    }
}

impl super::Dnn {
    /// The number of attentions that were added to queues.
    pub(in crate::cuda) fn attentions_launched(&self) -> u64 {
        let library = lock(&self.library).clone();
        library.map_or(0, |library| library.attentions_launched.load(Ordering::Relaxed))
    }

    /// The plan of an attention.
    ///
    /// # Errors
    /// If cuDNN is absent, too old, has no engine, or fails.
    pub(in crate::cuda) fn plan_attention(&self, attention: &Attention) -> Result<AttentionPlan, DnnError> {
        let library = self.library()?;
        if library.version < VERSION {
            return Err(DnnError::NoEngine { refused: Vec::new() });
        }
        let known = lock(&library.attentions).get(attention).cloned();
        let known = match known {
            Some(known) => known,
            None => {
                let graph = |handle| attention.graph(handle);
                let choose = || library.choose(attention.dtype, Conditions::USUAL, graph);
                let known = known_of(library.cached(attention, Conditions::USUAL, choose))?;
                lock(&library.attentions).insert(attention.clone(), known.clone());
                known
            }
        };
        let choice = known.map_err(|refused| DnnError::NoEngine { refused })?;
        Ok(AttentionPlan {
            library,
            choice,
            other: Mutex::default(),
            attention: attention.clone(),
            ids: attention.ids(),
        })
    }
}

impl Properties {
    /// Makes the plan of an attention for the device.
    ///
    /// # Errors
    /// If cuDNN refuses the graph or has no engine for it.
    pub fn plan_attention(&self, attention: &Attention) -> Result<Described, DnnError> {
        let target = plan::Target::Properties(&self.descriptor);
        Ok(plan::choose(target, attention.dtype, Conditions::USUAL, |handle| attention.graph(handle))?
            .described())
    }
}
