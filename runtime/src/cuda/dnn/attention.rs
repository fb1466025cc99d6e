//! Operation graphs of scaled dot-product attention, and plans of them and of gradients (`gradient.rs`).
//!
//! ```text
//! S = scale · Q Kᵀ + bias, later keys −∞ if causal    P = exp(S − max S) / sum exp(S − max S)    O = P V
//! ```
//!
//! S and P are virtual: no matrix of scores is in memory. Sums and products are in f32. P is rounded to the element type of
//! the operands before the product with V, and O is rounded once.

use super::gradient::AttentionGradient;
use super::graph::{Graph, data_type};
use super::launch::pack;
use super::operations::{Builder, Storage};
use super::plan::{Choice, Conditions};
use super::{Described, DnnError, Library, Properties, known_of, lock, plan};
use crate::cuda::memory::failed as of_driver;
use crate::cuda::presence::CudaError;
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
    /// True if the logarithm of the sum of the exponentials of each row of scores is stored, in f32: `[batch, heads, positions,
    /// 1]`. A gradient reads it.
    pub has_statistics: bool,
}

/// An attention or its gradient.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(in crate::cuda) enum Problem {
    Forward(Box<Attention>),
    Gradient(Box<AttentionGradient>),
}

/// Names of tensors in a graph and its variant packs.
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
/// The sum of gradient times result for each row.
pub(super) const SUMS: i64 = 10;
/// The number of tensors in device memory, without the bias.
pub(in crate::cuda) const TENSORS: usize = 10;
pub(super) const BIAS: i64 = 11;
pub(super) const SCALE: i64 = 12;
const MASKED: i64 = 13;
pub(super) const ONE: i64 = 14;

/// The oldest version of cuDNN that accepts scores of −∞.
const VERSION: usize = 91_002;

/// The oldest version of cuDNN that computes gradients for any number of keys.
const GRADIENT_VERSION: usize = 91_501;

/// The major compute capability from which on cuDNN has no deterministic engine for the gradient.
const GRADIENT_CAPABILITY: i32 = 10;

/// The scores with −∞ for keys behind the query.
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
        // The logarithm of the sum of the powers of each row, which a backward pass would read: engines that keep the scores in
        // registers are chosen by it.
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

    /// The names of the tensors of a variant pack.
    fn ids(&self) -> Vec<i64> {
        let mut ids = vec![QUERY, KEY, VALUE, RESULT, SCALE];
        ids.extend(self.has_statistics.then_some(STATISTICS));
        ids.extend(self.bias.is_some().then_some(BIAS));
        ids.extend(self.is_causal.then_some(MASKED));
        ids
    }
}

impl Problem {
    fn dtype(&self) -> DType {
        match self {
            Problem::Forward(attention) => attention.dtype,
            Problem::Gradient(gradient) => gradient.of.dtype,
        }
    }

    fn graph(&self, handle: Option<sys::cudnnHandle_t>) -> Result<Graph, DnnError> {
        match self {
            Problem::Forward(attention) => attention.graph(handle),
            Problem::Gradient(gradient) => gradient.graph(handle),
        }
    }

    fn conditions(&self) -> Conditions {
        match self {
            Problem::Forward(_) => Conditions::USUAL,
            Problem::Gradient(gradient) => {
                Conditions { workspace: gradient.workspace(), ..Conditions::USUAL }
            }
        }
    }

    /// The names of the tensors of a variant pack.
    fn ids(&self) -> Vec<i64> {
        match self {
            Problem::Forward(attention) => attention.ids(),
            Problem::Gradient(gradient) => {
                let mut ids: Vec<i64> = (QUERY..=SUMS).collect();
                ids.extend([SCALE, ONE]);
                ids.extend(gradient.of.bias.is_some().then_some(BIAS));
                ids.extend(gradient.of.is_causal.then_some(MASKED));
                ids
            }
        }
    }
}

/// An attention that is ready to run.
pub(in crate::cuda) struct AttentionPlan {
    // Plans are destroyed before their handle.
    choice: Arc<Choice>,
    /// The plan that replaces `choice` after its engine failed.
    other: Mutex<Option<Arc<Choice>>>,
    library: Arc<Library>,
    problem: Problem,
    ids: Vec<i64>,
}

/// The addresses of an attention, and its scale.
pub(in crate::cuda) struct AttentionPlaces {
    /// Query, key, value, result and statistics. A gradient also has the gradients of result, query, key and value, and
    /// scratch memory for one f32 per row.
    pub(in crate::cuda) tensors: [u64; TENSORS],
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
        let (masked, one) = (f32::NEG_INFINITY, 1f32);
        // cuDNN reads the values in the host's memory before the call returns.
        let addresses: Vec<u64> = self
            .ids
            .iter()
            .map(|&id| match id {
                BIAS => places.bias,
                SCALE => (&raw const places.scale).addr() as u64,
                MASKED => (&raw const masked).addr() as u64,
                ONE => (&raw const one).addr() as u64,
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
            self.library.choose(self.problem.dtype(), conditions, |handle| self.problem.graph(handle))
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

    /// The plan of an attention or its gradient.
    ///
    /// # Errors
    /// If cuDNN is absent, too old, has no engine, or fails.
    pub(in crate::cuda) fn plan_attention(&self, problem: Problem) -> Result<AttentionPlan, DnnError> {
        let library = self.library()?;
        let is_known = match &problem {
            Problem::Forward(_) => library.version >= VERSION,
            Problem::Gradient(_) => {
                let capability = library.context.compute_capability().map_err(CudaError::from)?;
                library.version >= GRADIENT_VERSION && capability.0 < GRADIENT_CAPABILITY
            }
        };
        if !is_known {
            return Err(DnnError::NoEngine { refused: Vec::new() });
        }
        let known = lock(&library.attentions).get(&problem).cloned();
        let known = match known {
            Some(known) => known,
            None => {
                let conditions = problem.conditions();
                let choose = || library.choose(problem.dtype(), conditions, |handle| problem.graph(handle));
                let known = known_of(library.cached(&problem, conditions, choose))?;
                lock(&library.attentions).insert(problem.clone(), known.clone());
                known
            }
        };
        let choice = known.map_err(|refused| DnnError::NoEngine { refused })?;
        let ids = problem.ids();
        Ok(AttentionPlan { library, choice, other: Mutex::default(), problem, ids })
    }
}

impl Properties {
    /// Makes the plan of an attention for the device.
    ///
    /// # Errors
    /// If cuDNN refuses the graph or has no engine for it.
    pub fn plan_attention(&self, attention: &Attention) -> Result<Described, DnnError> {
        self.plan_problem(&Problem::Forward(Box::new(attention.clone())))
    }

    /// Makes the plan of the gradients of an attention for the device.
    ///
    /// # Errors
    /// If cuDNN refuses the graph or has no engine for it.
    pub fn plan_attention_gradient(&self, gradient: &AttentionGradient) -> Result<Described, DnnError> {
        self.plan_problem(&Problem::Gradient(Box::new(gradient.clone())))
    }

    fn plan_problem(&self, problem: &Problem) -> Result<Described, DnnError> {
        let target = plan::Target::Properties(&self.descriptor);
        let graph = |handle| problem.graph(handle);
        Ok(plan::choose(target, problem.dtype(), problem.conditions(), graph)?.described())
    }
}
