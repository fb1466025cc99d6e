//! Attention that is written as products and a softmax.
//!
//! ```text
//! Transpose · Reshape · factor   of queries, keys and values, each optional
//! MatMul → factors → additive masks, Where with −∞ → Softmax → MatMul → Transpose
//! ```
//!
//! Casts may stand between the nodes from the first MatMul to the second. Factors are constants of one element. Every value
//! but the result has one reader, so that the nodes are one group. Transposes cost nothing: cuDNN reads and writes tensors
//! with any steps between heads and positions.

use crate::cuda::dnn::Strided;
use crate::plan::known_tensor;
use ampc_ir::op::OpKind;
use ampc_ir::views::norm::{SoftmaxAxes, SoftmaxView};
use ampc_ir::views::{NodeView, TransposeView};
use ampc_ir::{DType, Module, Node, Value};

/// A value that is added to the scores, or that says which scores are −∞.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mask {
    /// Added.
    Added(Value),
    /// Of bool: scores are −∞ where it is `hides`.
    Where { value: Value, hides: bool },
}

impl Mask {
    pub(super) fn value(self) -> Value {
        match self {
            Mask::Added(value) | Mask::Where { value, .. } => value,
        }
    }
}

/// A tensor whose dims and strides are those of an operand of a product.
struct Viewed {
    value: Value,
    dims: Vec<i64>,
    strides: Vec<i64>,
    factor: f64,
    nodes: Vec<Node>,
}

/// The nodes of an attention, and its parts.
pub(super) struct Pattern {
    pub(super) nodes: Vec<Node>,
    pub(super) dtype: DType,
    pub(super) query: (Value, Strided),
    pub(super) key: (Value, Strided),
    pub(super) value: (Value, Strided),
    pub(super) result: (Value, Strided),
    pub(super) scale: f32,
    /// In the order of the scores' way to the softmax.
    pub(super) masks: Vec<Mask>,
    /// The rank of the scores, 3 or 4.
    pub(super) rank: usize,
}

/// Finds attentions in a module.
pub(super) struct Finder<'a> {
    pub(super) module: &'a Module,
    /// True if a value is made by a node that may be part of the pattern, and nothing but a node may read it.
    pub(super) is_joinable: &'a dyn Fn(Value) -> bool,
}

/// What stands between the first product and the softmax.
struct Scores {
    product: Node,
    factor: f64,
    masks: Vec<Mask>,
    nodes: Vec<Node>,
}

impl Finder<'_> {
    fn known(&self, value: Value) -> Option<(DType, Vec<i64>)> {
        let (dtype, dims) = known_tensor(&self.module.value(value).ty)?;
        let dims = dims.iter().map(|&n| i64::try_from(n)).collect::<Result<_, _>>().ok()?;
        Some((dtype, dims))
    }

    /// The only reader of a value, which reads it once.
    fn reader(&self, value: Value) -> Option<Node> {
        let mut uses = self.module.uses(value);
        let (node, _) = uses.next()?;
        (uses.next().is_none() && (self.is_joinable)(value)).then_some(node)
    }

    /// The node that makes a value with one reader.
    fn maker(&self, value: Value) -> Option<(Node, NodeView<'_>)> {
        self.reader(value)?;
        let (node, _) = self.module.producer(value)?;
        Some((node, NodeView::new(self.module, node)?))
    }

    /// The attention around a softmax.
    pub(super) fn find(&self, softmax: Node) -> Option<Pattern> {
        let view = NodeView::new(self.module, softmax).filter(|view| view.kind() == OpKind::Softmax)?;
        let last = view.rank(0)?.checked_sub(1)?;
        match SoftmaxView::read(&view).ok()?.axes? {
            SoftmaxAxes::One(axis) | SoftmaxAxes::From(axis) if axis == last => {}
            _ => return None,
        }
        let Scores { product, factor, masks, mut nodes } = self.scores(view.operand(0)?, false)?;
        nodes.push(softmax);
        let mut shares = result(&view)?;
        let second = loop {
            let node = self.reader(shares)?;
            let view = NodeView::new(self.module, node)?;
            nodes.push(node);
            match view.kind() {
                OpKind::Cast if is_float(view.dtype(0)?) => shares = result(&view)?,
                OpKind::MatMul if view.operand(0) == Some(shares) => break view,
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
        // Batches and heads are not broadcast.
        let [batch, heads, rows, size] = q.dims;
        let is_whole = k.dims == [batch, heads, v.dims[2], size]
            && v.dims[..2] == q.dims[..2]
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
            rank: last + 1,
        })
    }

    /// The way from the first product to a value. `is_scaled` is true if a factor follows: masks come behind it.
    fn scores(&self, value: Value, is_scaled: bool) -> Option<Scores> {
        let (node, view) = self.maker(value)?;
        let (dtype, dims) = self.known(value)?;
        if !is_float(dtype) {
            return None;
        }
        // The scores at operand `i`, if they have all dims.
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

    fn dense(&self, value: Value) -> Option<Viewed> {
        let (_, dims) = self.known(value)?;
        let mut strides = vec![1; dims.len()];
        for axis in (1..dims.len()).rev() {
            strides[axis - 1] = dims[axis].checked_mul(strides[axis])?;
        }
        Some(Viewed { value, dims, strides, factor: 1.0, nodes: Vec::new() })
    }

    /// An operand of a product as a view of an earlier tensor, with the nodes between them. `is_scaled` is true if a factor
    /// may be one of them.
    fn viewed(&self, value: Value, is_scaled: bool) -> Option<Viewed> {
        let made = self.maker(value).and_then(|(node, view)| {
            let mut inner = match view.kind() {
                OpKind::Transpose => {
                    let mut inner = self.viewed(view.operand(0)?, is_scaled)?;
                    let perm = TransposeView::read(&view).perm(inner.dims.len()).ok()?;
                    inner.dims = perm.iter().map(|&axis| inner.dims[axis]).collect();
                    inner.strides = perm.iter().map(|&axis| inner.strides[axis]).collect();
                    inner
                }
                OpKind::Reshape => {
                    let mut inner = self.viewed(view.operand(0)?, is_scaled)?;
                    let (_, dims) = self.known(value)?;
                    inner.strides = reshaped(&inner.dims, &inner.strides, &dims)?;
                    inner.dims = dims;
                    // A view by itself costs nothing.
                    if inner.nodes.is_empty() {
                        return None;
                    }
                    inner
                }
                OpKind::Mul | OpKind::Div if is_scaled => {
                    let (i, factor) = factor(&view)?;
                    let operand = view.operand(i)?;
                    let mut inner = self.viewed(operand, true)?;
                    if self.known(operand)?.1 != self.known(value)?.1 {
                        return None;
                    }
                    inner.factor *= factor;
                    inner
                }
                _ => return None,
            };
            inner.nodes.push(node);
            Some(inner)
        });
        made.map_or_else(|| self.dense(value), Some)
    }
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

fn result(view: &NodeView<'_>) -> Option<Value> {
    view.data().results().first().copied().flatten()
}

/// The number that operand `i` is, a constant of one element.
fn number(view: &NodeView<'_>, i: usize) -> Option<f64> {
    match view.constant(i)?.small_floats(1)?[..] {
        [number] => Some(number),
        _ => None,
    }
}

/// The operand that a Mul or Div multiplies by a constant, and the constant.
fn factor(view: &NodeView<'_>) -> Option<(usize, f64)> {
    let (i, factor) = match (view.kind(), number(view, 1)) {
        (OpKind::Div, Some(divisor)) => (0, 1.0 / divisor),
        (OpKind::Mul, Some(factor)) => (0, factor),
        (OpKind::Mul, None) => (1, number(view, 0)?),
        _ => return None,
    };
    factor.is_finite().then_some((i, factor))
}

/// Dims with an axis of one head, if there is none.
pub(super) fn four(dims: &[i64]) -> Option<[i64; 4]> {
    match *dims {
        [n, h, s, d] => Some([n, h, s, d]),
        [n, s, d] => Some([n, 1, s, d]),
        _ => None,
    }
}

fn strided(of: &Viewed) -> Option<Strided> {
    let (dims, mut strides) = (four(&of.dims)?, four(&of.strides)?);
    // Steps of axes with one index are not used, but part of the plan.
    let around = dims.iter().zip(strides).map(|(&n, step)| n.saturating_mul(step)).max()?;
    for axis in (0..4).filter(|&axis| dims[axis] == 1) {
        strides[axis] = around;
    }
    Some(Strided { dims, strides })
}

/// The strides of a tensor with other dims and the same elements in row-major order; `None` if there are none.
fn reshaped(dims: &[i64], strides: &[i64], to: &[i64]) -> Option<Vec<i64>> {
    if dims.iter().product::<i64>() != to.iter().product::<i64>() || to.contains(&0) {
        return None;
    }
    let mut made = vec![0; to.len()];
    let (mut i, mut j) = (dims.len(), to.len());
    while j > 0 {
        // The fewest axes of both that have the same number of elements.
        let (end_i, end_j) = (i, j);
        let (mut own, mut other) = (1, 1);
        while own != other || (i == end_i && j == end_j) {
            if i > 0 && (own <= other || j == 0) {
                i -= 1;
                own *= dims[i];
            } else if j > 0 {
                j -= 1;
                other *= to[j];
            } else {
                return None;
            }
        }
        let long: Vec<usize> = (i..end_i).filter(|&axis| dims[axis] > 1).collect();
        if long.windows(2).any(|pair| strides[pair[0]] != strides[pair[1]] * dims[pair[1]]) {
            return None;
        }
        let mut step = long.last().map_or(1, |&axis| strides[axis]);
        for axis in (j..end_j).rev() {
            made[axis] = step;
            step *= to[axis];
        }
    }
    Some(made)
}

#[cfg(test)]
mod tests {
    use super::reshaped;

    #[test]
    fn strides_of_reshaped_tensors() {
        // Positions, batch and heads as one axis, elements: the axis is split.
        assert_eq!(reshaped(&[6, 17, 16], &[16, 96, 1], &[3, 2, 17, 16]), Some(vec![32, 16, 96, 1]));
        assert_eq!(reshaped(&[3, 2, 17, 16], &[32, 16, 96, 1], &[6, 17, 16]), Some(vec![16, 96, 1]));
        // Heads and positions that are transposed are no axis.
        assert_eq!(reshaped(&[2, 3, 4, 8], &[96, 8, 24, 1], &[2, 12, 8]), None);
        assert_eq!(reshaped(&[2, 3, 4, 8], &[96, 8, 24, 1], &[2, 3, 4, 2, 4]), Some(vec![96, 8, 24, 4, 1]));
        assert_eq!(reshaped(&[2, 4], &[4, 1], &[1, 8]).map(|strides| strides[1]), Some(1));
        assert_eq!(reshaped(&[4, 1], &[1, 1], &[4]), Some(vec![1]));
        assert_eq!(reshaped(&[4], &[1], &[1, 4, 1]).map(|strides| strides[1]), Some(1));
    }
}
