//! The formulas of losses, as nodes: each returns a scalar of the element type of the prediction.

use crate::training::build::{Build, Nodes, Ruled, without_ignored};
use ampc_ir::op::OpKind;
use ampc_ir::{AttrValue, DType, NodeSpec, Shape, Value};

/// The mean of (p − t)², of two values of one shape.
pub(super) fn squared_error(b: &mut Nodes<'_>, p: Value, t: Value) -> Ruled<Value> {
    let difference = b.minus(p, t)?;
    let square = b.times(difference, difference)?;
    b.mean(square)
}

/// The mean of |p − t|, of two values of one shape.
pub(super) fn absolute_error(b: &mut Nodes<'_>, p: Value, t: Value) -> Ruled<Value> {
    let difference = b.minus(p, t)?;
    let size = b.unary(OpKind::Abs, difference)?;
    b.mean(size)
}

/// The mean of t · softplus(−p) + (1 − t) · softplus(p), of two values of one shape: no logarithm of something that has been
/// rounded to 0.
pub(super) fn binary_cross_entropy(b: &mut Nodes<'_>, p: Value, t: Value) -> Ruled<Value> {
    let negated = b.neg(p)?;
    let positive = b.unary(OpKind::Softplus, negated)?;
    let negative = b.unary(OpKind::Softplus, p)?;
    let rest = b.number_minus(1.0, t)?;
    let first = b.times(t, positive)?;
    let second = b.times(rest, negative)?;
    let each = b.plus(first, second)?;
    b.mean(each)
}

/// Cross-entropy of scores `p` [N, C, …] and class numbers `t` [N, …].
pub(super) struct CrossEntropy {
    pub(super) p: Value,
    pub(super) t: Value,
    /// The weights of classes [C], if there are any.
    pub(super) weights: Option<Value>,
    /// The class number that counts for nothing.
    pub(super) ignore_index: Option<i64>,
    /// ε of label smoothing, from 0 to 1.
    pub(super) smoothing: f64,
}

impl CrossEntropy {
    /// (1 − ε) · hard + ε/C · soft, where hard is the mean of −w\[t\] · log softmax(p)\[t\] and soft that of the sum of
    /// −w\[c\] · log softmax(p)\[c\] over all classes c; both over the sum of all w\[t\].
    pub(super) fn write(&self, b: &mut Nodes<'_>) -> Ruled<Value> {
        let mut operands = vec![self.p, self.t];
        operands.extend(self.weights);
        let spec = NodeSpec::new(OpKind::SoftmaxCrossEntropyLoss, &operands);
        let mut spec = spec.attr("reduction", AttrValue::String(b"mean".as_slice().into()));
        if let Some(ignored) = self.ignore_index {
            spec = spec.attr("ignore_index", AttrValue::Int(ignored));
        }
        let [hard, log_prob] = b.insert(spec)?;
        if self.smoothing == 0.0 {
            return Ok(hard);
        }
        let soft = self.soft(b, log_prob)?;
        let dtype = b.dtype(self.p)?;
        let classes = self.classes(b, dtype)?;
        let soft = b.over(soft, classes)?;
        let (hard_share, soft_share) =
            (b.number(1.0 - self.smoothing, dtype)?, b.number(self.smoothing, dtype)?);
        let hard = b.times(hard, hard_share)?;
        let soft = b.times(soft, soft_share)?;
        b.plus(hard, soft)
    }

    /// The mean over elements that count, by the weights of their labels, of the sum over all classes. With weights and a
    /// label to ignore, for labels [0, 2, −100]:
    ///
    /// ```text
    /// each  = ReduceSum(−log_prob · weights, axis of classes)    [s₀, s₁, s₂]
    /// w     = Where(t = −100, 0, Gather(weights, t))             [w[0], w[2], 0]       s₂ counts as 0 too
    /// soft  = (s₀ + s₁) / (w[0] + w[2])
    /// ```
    fn soft(&self, b: &mut Nodes<'_>, log_prob: Value) -> Ruled<Value> {
        let dtype = b.dtype(self.p)?;
        let (mut safe, mut ignored) = (self.t, None);
        if let Some(index) = self.ignore_index {
            let (others, is_ignored) = without_ignored(b, self.t, index)?;
            (safe, ignored) = (others, Some(is_ignored));
        }
        let mut per_class = b.neg(log_prob)?;
        let mut of_label = None;
        if let Some(weights) = self.weights {
            of_label = Some(b.op(OpKind::Gather, &[weights, safe], &[])?);
            let mut shape = vec![1i64; b.rank(self.p)?];
            shape[1] = -1;
            let along_classes = b.reshape(weights, &shape)?;
            per_class = b.times(per_class, along_classes)?;
        }
        let axes = b.ints(&[1]);
        let mut each = b.op(OpKind::ReduceSum, &[per_class, axes], &[("keepdims", AttrValue::Int(0))])?;
        if of_label.is_none() && ignored.is_none() {
            return b.mean(each);
        }
        let mut weight = match of_label {
            Some(weight) => weight,
            None => b.number(1.0, dtype)?,
        };
        if let Some(ignored) = ignored {
            let zero = b.number(0.0, dtype)?;
            weight = b.select(ignored, zero, weight)?;
            each = b.select(ignored, zero, each)?;
        }
        let (total, weight) = (b.total(each)?, b.total(weight)?);
        b.over(total, weight)
    }

    /// The number of classes, as a float.
    fn classes(&self, b: &mut Nodes<'_>, dtype: DType) -> Ruled<Value> {
        let dims = b.ty(self.p).shape().and_then(Shape::dims);
        match dims.and_then(|dims| dims[1].known()) {
            #[expect(clippy::cast_precision_loss, reason = "a number of classes")]
            Some(n) => b.number(n as f64, dtype),
            None => {
                let spec = NodeSpec::new(OpKind::Shape, &[self.p]);
                let [n] = b.insert(spec.attr("start", AttrValue::Int(1)).attr("end", AttrValue::Int(2)))?;
                let n = b.reshape(n, &[])?;
                b.cast(n, dtype)
            }
        }
    }
}
