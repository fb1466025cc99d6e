//! Matches attention that is written as products and a softmax.
//!
//! ```text
//! Transpose, Reshape, factor, repeated heads   of queries, keys and values, each optional
//! MatMul → factors → additive masks, Where with −∞ → Softmax → MatMul → Transpose
//! ```
//!
//! Casts, and Dropouts that drop no element, may stand between the nodes from the first MatMul to the second. Factors
//! are constants with one element. Every value except the result has one reader, so that the nodes form a group.
//! Transposes are free, because cuDNN supports any strides of heads and positions.

use super::viewed::{four, strided};
use crate::cuda::dnn::Strided;
use crate::plan::known_tensor;
use ampc_ir::op::OpKind;
use ampc_ir::views::broadcast::DropoutView;
use ampc_ir::views::norm::{SoftmaxAxes, SoftmaxView};
use ampc_ir::views::{NodeView, TransposeView};
use ampc_ir::{DType, Module, Node, Value};
use rustc_hash::FxHashSet;

/// An addend of the scores, or a condition that sets scores to −∞.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mask {
    /// An addend.
    Added(Value),
    /// A bool mask: scores are −∞ where it equals `hides`.
    Where { value: Value, hides: bool },
}

impl Mask {
    pub(super) fn value(self) -> Value {
        match self {
            Mask::Added(value) | Mask::Where { value, .. } => value,
        }
    }
}

/// The nodes of an attention, and its operands.
pub(super) struct Pattern {
    pub(super) nodes: Vec<Node>,
    pub(super) dtype: DType,
    pub(super) query: (Value, Strided),
    pub(super) key: (Value, Strided),
    pub(super) value: (Value, Strided),
    pub(super) result: (Value, Strided),
    pub(super) scale: f32,
    /// The masks in the order from the scores to the softmax.
    pub(super) masks: Vec<Mask>,
    /// True if query `i` attends to keys up to `i` only.
    pub(super) is_causal: bool,
    /// The rank of the scores, 3 or 4.
    pub(super) rank: usize,
    /// The two products.
    pub(super) product: Node,
    /// The second product; absent if only the gradient is written as nodes.
    pub(super) second: Option<Node>,
    /// The factors of query and key, which belong to the scale.
    pub(super) factors: [f64; 2],
    /// The number of times that each head of keys and values is repeated.
    pub(super) repeats: i64,
}

/// Matches attentions in a module.
#[derive(Clone, Copy)]
pub(super) struct Finder<'a> {
    pub(super) module: &'a Module,
    /// True if a node that may be part of the pattern produces the value, and only nodes may read the value.
    pub(super) is_joinable: &'a dyn Fn(Value) -> bool,
    /// The nodes of the gradient, which also read values of the attention.
    pub(super) others: &'a FxHashSet<Node>,
}

/// The nodes between the first product and the softmax.
pub(super) struct Scores {
    pub(super) product: Node,
    pub(super) factor: f64,
    pub(super) masks: Vec<Mask>,
    pub(super) nodes: Vec<Node>,
}

impl Finder<'_> {
    /// The element type and dims of a tensor, if they are known.
    pub(super) fn known(&self, value: Value) -> Option<(DType, Vec<i64>)> {
        let (dtype, dims) = known_tensor(&self.module.value(value).ty)?;
        let dims = dims.iter().map(|&n| i64::try_from(n)).collect::<Result<_, _>>().ok()?;
        Some((dtype, dims))
    }

    /// The only reader of a value besides the gradient, if it reads the value once.
    pub(super) fn reader(&self, value: Value) -> Option<Node> {
        let mut uses = self.module.uses(value).filter(|(node, _)| !self.others.contains(node));
        let (node, _) = uses.next()?;
        (uses.next().is_none() && (self.is_joinable)(value)).then_some(node)
    }

    /// The producer of a value with at most one reader besides the gradient.
    pub(super) fn maker(&self, value: Value) -> Option<(Node, NodeView<'_>)> {
        let mut uses = self.module.uses(value).filter(|(node, _)| !self.others.contains(node));
        if uses.nth(1).is_some() || !(self.is_joinable)(value) {
            return None;
        }
        let (node, _) = self.module.producer(value)?;
        Some((node, NodeView::new(self.module, node)?))
    }

    /// Matches the attention around a softmax.
    pub(super) fn find(&self, softmax: Node) -> Option<Pattern> {
        let view = NodeView::new(self.module, softmax).filter(is_over_rows)?;
        let last = view.rank(0)?.checked_sub(1)?;
        let Scores { product, factor, masks, mut nodes } = self.scores(view.operand(0)?, false)?;
        nodes.push(softmax);
        let mut probabilities = result(&view)?;
        let second = loop {
            let node = self.reader(probabilities)?;
            let view = NodeView::new(self.module, node)?;
            nodes.push(node);
            match view.kind() {
                OpKind::Cast if is_float(view.dtype(0)?) => probabilities = result(&view)?,
                OpKind::Dropout if self.drops_nothing(&view) => probabilities = result(&view)?,
                OpKind::MatMul if view.operand(0) == Some(probabilities) => break view,
                _ => return None,
            }
        };
        let first = NodeView::new(self.module, product)?;
        let query = self.viewed(first.operand(0)?, true)?;
        let key = self.viewed(first.operand(1)?, true)?;
        let value = self.viewed(second.operand(1)?, false)?;
        let (mut made, mut to) = (result(&second)?, self.dense(result(&second)?)?);
        let dims = four(&to.dims)?;
        let (dtype, _) = self.known(made)?;
        if let Some((node, view)) =
            self.reader(made).and_then(|node| Some((node, NodeView::new(self.module, node)?)))
            && view.kind() == OpKind::Transpose
        {
            let perm = TransposeView::read(&view).perm(to.dims.len()).ok()?;
            if perm.last() == Some(&(perm.len() - 1)) {
                made = result(&view)?;
                let dense = self.dense(made)?;
                perm.iter().zip(dense.strides).for_each(|(&axis, stride)| to.strides[axis] = stride);
                nodes.push(node);
            }
        }
        for viewed in [&query, &key, &value] {
            nodes.extend(&viewed.nodes);
            if self.known(viewed.value)?.0 != dtype {
                return None;
            }
        }
        let scale = factor * query.factor * key.factor;
        let [q, k, v] = [&query, &key, &value].map(strided);
        let (q, k, v, result) = (q?, k?.transposed(), v?, strided(&to)?);
        // Batch and heads are not broadcast.
        let [batch, heads, rows, size] = q.dims;
        let repeats = key.repeats;
        let is_whole = k.dims[0] == batch
            && [query.repeats, value.repeats] == [1, repeats]
            && k.dims[1] * repeats == heads
            && k.dims[2..] == [v.dims[2], size]
            && v.dims[..2] == k.dims[..2]
            && dims == [batch, heads, rows, v.dims[3]]
            && matches!(dtype, DType::F16 | DType::BF16);
        #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
        let scale = scale as f32;
        is_whole.then(|| Pattern {
            nodes,
            dtype,
            query: (query.value, q),
            key: (key.value, k),
            value: (value.value, v),
            result: (made, result),
            scale,
            masks,
            is_causal: false,
            rank: last + 1,
            product,
            second: Some(second.node),
            factors: [query.factor, key.factor],
            repeats,
        })
    }

    /// True if a Dropout drops no element, and its mask is not read.
    pub(super) fn drops_nothing(&self, view: &NodeView<'_>) -> bool {
        let dropout = DropoutView::read(view);
        let ratio = match dropout.ratio_operand {
            Some(i) => number(view, i),
            None => Some(f64::from(view.float("ratio").unwrap_or(0.5))),
        };
        let mask = view.data().results().get(1).copied().flatten();
        let is_unread = |mask: Value| self.module.uses(mask).next().is_none() && (self.is_joinable)(mask);
        (dropout.training == Some(false) || ratio == Some(0.0)) && mask.is_none_or(is_unread)
    }

    /// The nodes from the first product to a value. `is_scaled` is true if a factor follows: the scale precedes
    /// masks.
    pub(super) fn scores(&self, value: Value, is_scaled: bool) -> Option<Scores> {
        let (node, view) = self.maker(value)?;
        let (dtype, dims) = self.known(value)?;
        if !is_float(dtype) {
            return None;
        }
        // The scores at operand `i`, if the operand has all dims.
        let through = |i: usize, is_scaled: bool| {
            let operand = view.operand(i)?;
            if self.known(operand)?.1 != dims {
                return None;
            }
            let mut found = self.scores(operand, is_scaled)?;
            found.nodes.push(node);
            Some(found)
        };
        match view.kind() {
            OpKind::MatMul => {
                Some(Scores { product: node, factor: 1.0, masks: Vec::new(), nodes: vec![node] })
            }
            OpKind::Cast => through(0, is_scaled),
            OpKind::Mul | OpKind::Div => {
                let (i, factor) = factor(&view)?;
                let mut found = through(i, true)?;
                found.factor *= factor;
                Some(found)
            }
            OpKind::Add if !is_scaled => {
                let (i, mut found) = [0, 1].into_iter().find_map(|i| Some((i, through(i, false)?)))?;
                found.masks.push(Mask::Added(view.operand(1 - i)?));
                Some(found)
            }
            OpKind::Where if !is_scaled => {
                let hidden = |i: usize| number(&view, i) == Some(f64::NEG_INFINITY);
                let (i, hides) = if hidden(1) { (2, true) } else { (1, false) };
                if !hidden(3 - i) {
                    return None;
                }
                let mut found = through(i, false)?;
                found.masks.push(Mask::Where { value: view.operand(0)?, hides });
                Some(found)
            }
            _ => None,
        }
    }
}

/// True of a Softmax over the last axis.
pub(super) fn is_over_rows(view: &NodeView<'_>) -> bool {
    let axes = SoftmaxView::read(view).ok().filter(|_| view.kind() == OpKind::Softmax);
    match axes.and_then(|softmax| softmax.axes) {
        Some(SoftmaxAxes::One(axis) | SoftmaxAxes::From(axis)) => view.rank(0) == Some(axis + 1),
        None => false,
    }
}

pub(super) fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// The first result of a node.
pub(super) fn result(view: &NodeView<'_>) -> Option<Value> {
    view.data().results().first().copied().flatten()
}

/// The value of operand `i`, if it is a constant with one element.
pub(super) fn number(view: &NodeView<'_>, i: usize) -> Option<f64> {
    match view.constant(i)?.small_floats(1)?[..] {
        [number] => Some(number),
        _ => None,
    }
}

/// The operand that a Mul or Div multiplies by a constant, and the constant factor.
pub(super) fn factor(view: &NodeView<'_>) -> Option<(usize, f64)> {
    let (i, factor) = match (view.kind(), number(view, 1)) {
        (OpKind::Div, Some(divisor)) => (0, 1.0 / divisor),
        (OpKind::Mul, Some(factor)) => (0, factor),
        (OpKind::Mul, None) => (1, number(view, 0)?),
        _ => return None,
    };
    factor.is_finite().then_some((i, factor))
}
