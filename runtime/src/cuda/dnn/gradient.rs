//! The operation graph of the gradients of an attention.

use super::attention::{
    Attention, BIAS, GRADIENT, KEY, KEY_GRADIENT, MASKED, ONE, QUERY, QUERY_GRADIENT, RESULT, SCALE,
    STATISTICS, SUMS, Strided, VALUE, VALUE_GRADIENT, causal,
};
use super::graph::{Graph, data_type};
use super::operations::{Builder, Storage};
use super::{DnnError, MOST_WORKSPACE};
use cudarc::cudnn::sys;
use sys::cudnnDataType_t as DataType;
use sys::cudnnPointwiseMode_t as Mode;

/// The gradients of an attention, from the gradient of its result, the result and the statistics: everything that a
/// plan depends on. Keys and values have a gradient for each query head, also where query heads share them.
///
/// ```text
/// dV = Pᵀ dO    dS = scale · P (dO Vᵀ − Σ dO O)    dQ = dS K    dK = dSᵀ Q
/// ```
///
/// All sums have a fixed order: dS is stored in the workspace, in the element type of the operands.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AttentionGradient {
    /// The attention.
    pub of: Attention,
    /// The gradient of the result.
    pub result: Strided,
    /// The gradients of query, key and value.
    pub gradients: [Strided; 3],
}

impl AttentionGradient {
    /// The names of the tensors of a variant pack.
    pub(super) fn ids(&self) -> Vec<i64> {
        let mut ids: Vec<i64> = (QUERY..=SUMS).collect();
        ids.extend([SCALE, ONE]);
        ids.extend(self.of.bias.is_some().then_some(BIAS));
        ids.extend(self.of.is_causal.then_some(MASKED));
        ids
    }

    /// The operation graph; `handle` is that of the device, if there is one.
    ///
    /// # Errors
    /// If cuDNN rejects a descriptor.
    pub(super) fn graph(&self, handle: Option<sys::cudnnHandle_t>) -> Result<Graph, DnnError> {
        const FLOAT: DataType = DataType::CUDNN_DATA_FLOAT;
        let (of, dims) = (&self.of, self.of.scores());
        let elem = data_type(of.dtype)?;
        let (one, rows) = (Strided::dense([1; 4]), [dims[0], dims[1], dims[2], 1]);
        let [of_query, of_key, of_value] = self.gradients;
        let mut builder = Builder::default();
        let b = &mut builder;
        let query = b.tensor(QUERY, of.query, elem, Storage::Device)?;
        let key = b.tensor(KEY, of.key.transposed(), elem, Storage::Device)?;
        let value = b.tensor(VALUE, of.value.transposed(), elem, Storage::Device)?;
        let result = b.tensor(RESULT, of.result, elem, Storage::Device)?;
        let gradient = b.tensor(GRADIENT, self.result, elem, Storage::Device)?;
        let statistics = b.tensor(STATISTICS, Strided::dense(rows), FLOAT, Storage::Device)?;
        let query_gradient = b.tensor(QUERY_GRADIENT, of_query, elem, Storage::Device)?;
        let key_gradient = b.tensor(KEY_GRADIENT, of_key, elem, Storage::Device)?;
        let value_gradient = b.tensor(VALUE_GRADIENT, of_value, elem, Storage::Device)?;
        let scale = b.tensor(SCALE, one, FLOAT, Storage::Host)?;
        // cuDNN's engines match this pattern: a multiplication by 1, and the sums in memory.
        let number_one = b.tensor(ONE, one, FLOAT, Storage::Host)?;
        let sums = b.tensor(SUMS, Strided::dense(rows), FLOAT, Storage::Device)?;
        let terms = b.computed(Mode::CUDNN_POINTWISE_MUL, &[gradient, result], of.result.dims)?;
        let sum = b.between(rows, FLOAT)?;
        b.reduction(sys::cudnnReduceTensorOp_t::CUDNN_REDUCE_TENSOR_ADD, terms, sum)?;
        b.pointwise(Mode::CUDNN_POINTWISE_MUL, None, &[sum, number_one], sums)?;
        // Recomputes the probabilities.
        let product = b.between(dims, FLOAT)?;
        b.product(query, key, product)?;
        let mut scores = b.computed(Mode::CUDNN_POINTWISE_MUL, &[product, scale], dims)?;
        if let Some((dtype, of)) = of.bias {
            let bias = b.tensor(BIAS, of, data_type(dtype)?, Storage::Device)?;
            scores = b.computed(Mode::CUDNN_POINTWISE_ADD, &[scores, bias], dims)?;
        }
        if of.is_causal {
            scores = causal(b, scores, dims)?;
        }
        let below = b.computed(Mode::CUDNN_POINTWISE_SUB, &[scores, statistics], dims)?;
        let probabilities = b.computed(Mode::CUDNN_POINTWISE_EXP, &[below], dims)?;
        let transposed = b.transposed(probabilities, Strided::dense(dims), elem)?;
        b.product(transposed, gradient, value_gradient)?;
        let of_value = b.between(dims, FLOAT)?;
        b.product(gradient, value, of_value)?;
        let difference = b.computed(Mode::CUDNN_POINTWISE_SUB, &[of_value, sums], dims)?;
        let of_scores = b.computed(Mode::CUDNN_POINTWISE_MUL, &[difference, probabilities], dims)?;
        let scaled = b.computed(Mode::CUDNN_POINTWISE_MUL, &[of_scores, scale], dims)?;
        let transposed = b.transposed(scaled, Strided::dense(dims), elem)?;
        b.product(transposed, query, key_gradient)?;
        let key = b.transposed(key, of.key.transposed(), elem)?;
        b.product(scaled, key, query_gradient)?;
        builder.graph(handle)
    }

    /// The maximum workspace in bytes: at least the size of the f32 scores, which the separate nodes would store.
    pub(super) fn workspace(&self) -> usize {
        let n = self.of.scores().iter().fold(4, |n: i64, &extent| n.saturating_mul(extent));
        MOST_WORKSPACE.max(usize::try_from(n).unwrap_or(usize::MAX))
    }
}
