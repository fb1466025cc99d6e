//! Operation graphs of scaled dot-product attention, and the plans of attention and its gradients (`gradient.rs`).
//!
//! ```text
//! S = scale · Q Kᵀ + bias, later keys −∞ if causal    P = exp(S − max S) / sum exp(S − max S)    O = P V
//! ```
//!
//! S and P are virtual tensors: the score matrix is never in memory. Sums and products are in f32. P is rounded to
//! the element type of the operands before the product with V, and O is rounded once.

use super::graph::{ALIGNMENT, Graph, data_type};
use super::launch::ProblemPlan;
use super::operations::{Builder, Storage};
use super::{DnnError, Problem, lock};
use crate::cuda::presence::CudaError;
use crate::cuda::queue::CudaQueue;
use crate::kernel::Result;
use ampc_ir::DType;
use cudarc::cudnn::sys;
use std::sync::atomic::Ordering;
use sys::cudnnDataType_t as DataType;
use sys::cudnnPointwiseMode_t as Mode;

/// A tensor of four dims: batch, heads, positions, elements of a head.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Strided {
    /// The dims.
    pub dims: [i64; 4],
    /// The strides in elements.
    pub strides: [i64; 4],
}

impl Strided {
    /// A dense tensor; the last dim is innermost.
    pub fn dense(dims: [i64; 4]) -> Strided {
        let row = dims[3];
        let head = row.saturating_mul(dims[2]);
        Strided { dims, strides: [head.saturating_mul(dims[1]), head, row, 1] }
    }

    /// The same tensor with its last two dims exchanged.
    pub fn transposed(&self) -> Strided {
        let ([n, h, a, b], [of_n, of_h, of_a, of_b]) = (self.dims, self.strides);
        Strided { dims: [n, h, b, a], strides: [of_n, of_h, of_b, of_a] }
    }
}

/// Scaled dot-product attention: everything that a plan depends on. The scale is an argument of the plan.
///
/// The number of query heads is a multiple of the number of key and value heads (grouped-query attention).
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
    /// The addend of the scores: its element type, and its dims, each that of the scores or 1.
    pub bias: Option<(DType, Strided)>,
    /// True if query `i` attends to keys up to `i` only.
    pub is_causal: bool,
    /// True if the log-sum-exp of each row of scores is stored, in f32: `[batch, heads, positions, 1]`. The gradient
    /// reads it.
    pub has_statistics: bool,
}

/// Unique ids of tensors in a graph and its variant packs.
pub(super) const QUERY: i64 = 1;
pub(super) const KEY: i64 = 2;
pub(super) const VALUE: i64 = 3;
pub(super) const RESULT: i64 = 4;
pub(super) const STATISTICS: i64 = 5;
/// The gradient of the result.
pub(super) const GRADIENT: i64 = 6;
pub(super) const QUERY_GRADIENT: i64 = 7;
pub(super) const KEY_GRADIENT: i64 = 8;
pub(super) const VALUE_GRADIENT: i64 = 9;
/// The sum of gradient times result, for each row.
pub(super) const SUMS: i64 = 10;
/// The number of tensors in device memory, without the bias.
pub(in crate::cuda) const TENSORS: usize = 10;
pub(super) const BIAS: i64 = 11;
pub(super) const SCALE: i64 = 12;
pub(super) const MASKED: i64 = 13;
pub(super) const ONE: i64 = 14;

/// The oldest version of cuDNN that accepts scores of −∞.
const VERSION: usize = 91_002;

/// The oldest version of cuDNN that computes gradients for any number of keys.
const GRADIENT_VERSION: usize = 91_501;

/// The first major compute capability for which cuDNN has no deterministic engine for the gradient.
const GRADIENT_CAPABILITY: i32 = 10;

/// The scores with −∞ for keys after the query.
pub(super) fn causal(b: &mut Builder, scores: usize, dims: [i64; 4]) -> Result<usize, DnnError> {
    let mut index = |axis| {
        let index = b.between(dims, DataType::CUDNN_DATA_INT32)?;
        b.pointwise(Mode::CUDNN_POINTWISE_GEN_INDEX, Some(axis), &[scores], index)?;
        Ok::<_, DnnError>(index)
    };
    let (row, column) = (index(2)?, index(3)?);
    let attends = b.between(dims, DataType::CUDNN_DATA_BOOLEAN)?;
    b.pointwise(Mode::CUDNN_POINTWISE_CMP_GE, None, &[row, column], attends)?;
    let masked = b.tensor(MASKED, Strided::dense([1; 4]), DataType::CUDNN_DATA_FLOAT, Storage::Host)?;
    let kept = b.between(dims, DataType::CUDNN_DATA_FLOAT)?;
    b.pointwise(Mode::CUDNN_POINTWISE_BINARY_SELECT, None, &[scores, masked, attends], kept)?;
    Ok(kept)
}

impl Attention {
    /// The dims of the scores.
    pub(super) fn scores(&self) -> [i64; 4] {
        [self.query.dims[0], self.query.dims[1], self.query.dims[2], self.key.dims[2]]
    }

    /// The operation graph; `handle` is that of the device, if there is one.
    ///
    /// # Errors
    /// If cuDNN rejects a descriptor.
    pub(super) fn graph(&self, handle: Option<sys::cudnnHandle_t>) -> Result<Graph, DnnError> {
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
            scores = causal(b, scores, dims)?;
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
        // The log-sum-exp of each row, which a backward pass would read: its presence selects engines that keep the
        // scores in registers.
        let logarithm = b.between(rows, FLOAT)?;
        b.pointwise(Mode::CUDNN_POINTWISE_LOG, None, &[sum], logarithm)?;
        let statistics = match self.has_statistics {
            true => b.tensor(STATISTICS, Strided::dense(rows), FLOAT, Storage::Device)?,
            false => b.between(rows, FLOAT)?,
        };
        b.pointwise(Mode::CUDNN_POINTWISE_ADD, None, &[most, logarithm], statistics)?;
        let probabilities = b.between(dims, elem)?;
        b.pointwise(Mode::CUDNN_POINTWISE_DIV, None, &[powers, sum], probabilities)?;
        b.product(probabilities, value, result)?;
        builder.graph(handle)
    }

    /// The unique ids of the tensors of a variant pack.
    pub(super) fn ids(&self) -> Vec<i64> {
        let mut ids = vec![QUERY, KEY, VALUE, RESULT, SCALE];
        ids.extend(self.has_statistics.then_some(STATISTICS));
        ids.extend(self.bias.is_some().then_some(BIAS));
        ids.extend(self.is_causal.then_some(MASKED));
        ids
    }
}

/// An attention or its gradient that is ready to run.
pub(in crate::cuda) struct AttentionPlan(ProblemPlan);

/// The addresses of tensors, and the scale.
pub(in crate::cuda) struct AttentionPlaces {
    /// Query, key, value, result and statistics. A gradient also has the gradients of result, query, key and value,
    /// and scratch memory for one f32 per row.
    pub(in crate::cuda) tensors: [u64; TENSORS],
    /// Unused without a bias.
    pub(in crate::cuda) bias: u64,
    pub(in crate::cuda) workspace: u64,
    pub(in crate::cuda) scale: f32,
}

impl AttentionPlan {
    /// The size of the workspace in bytes.
    pub(in crate::cuda) fn workspace(&self) -> usize {
        self.0.workspace()
    }

    /// Enqueues the attention.
    ///
    /// # Errors
    /// If cuDNN fails.
    pub(in crate::cuda) fn launch(&self, queue: &mut CudaQueue, places: &AttentionPlaces) -> Result<()> {
        let (masked, one) = (f32::NEG_INFINITY, 1f32);
        // cuDNN reads the host values before the call returns.
        let address = |&id: &i64| match id {
            BIAS => places.bias,
            SCALE => (&raw const places.scale).addr() as u64,
            MASKED => (&raw const masked).addr() as u64,
            ONE => (&raw const one).addr() as u64,
            id => places.tensors[usize::try_from(id - QUERY).unwrap_or(0)],
        };
        let addresses: Vec<u64> = self.0.ids().iter().map(address).collect();
        self.0.planner().attentions_launched.fetch_add(1, Ordering::Relaxed);
        self.0.launch(queue, &addresses, ALIGNMENT, places.workspace)
    }
}

impl super::Dnn {
    /// The number of attentions enqueued so far.
    pub(in crate::cuda) fn attentions_launched(&self) -> u64 {
        let planner = lock(&self.planner).clone();
        planner.map_or(0, |planner| planner.attentions_launched.load(Ordering::Relaxed))
    }

    /// The plan of an attention or its gradient.
    ///
    /// # Errors
    /// If cuDNN is absent, too old, has no engine, or fails.
    pub(in crate::cuda) fn plan_attention(&self, problem: Problem) -> Result<AttentionPlan, DnnError> {
        let planner = self.planner()?;
        let is_known = match &problem {
            Problem::Gradient(_) => {
                let capability = planner.context.compute_capability().map_err(CudaError::from)?;
                planner.version >= GRADIENT_VERSION && capability.0 < GRADIENT_CAPABILITY
            }
            Problem::Attention(_) | Problem::Convolution(_) => planner.version >= VERSION,
        };
        if !is_known {
            return Err(DnnError::NoEngine { refused: Vec::new() });
        }
        Ok(AttentionPlan(ProblemPlan::new(planner, problem)?))
    }
}
