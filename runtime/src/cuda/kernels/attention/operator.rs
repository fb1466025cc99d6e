//! The gradient of the operator Attention, as automatic differentiation writes it.
//!
//! ```text
//! Q, K, V, dO    casts to f32; rank 3: Reshape, Transpose; shared heads: Gather of K and V
//! S = scale · Q Kᵀ, masked    P = softmax(S)    dV = Pᵀ dO    dP = dO Vᵀ    M = dP · P
//! dS = scale · P (dP − Σ M)    dQ = dS K    dK = dSᵀ Q    shared heads: sums of dK and dV
//! dQ, dK, dV     rank 3: Transpose, Reshape; casts to 16 bits; Transpose
//! ```
//!
//! If there are masks, rows whose scores are all −∞ become 0 before the softmax and after it. A mask of later keys is
//! a flag of the graphs of cuDNN (`causal.rs`). P is made from Q and K here, so that all nodes are one group, of which
//! only the three gradients are read elsewhere.

use super::gradient::{Gradient, Pair, Parts, is_same_factor};
use super::pattern::{Finder, Mask, Pattern, Scores, factor, is_over_rows, number, result};
use super::viewed::{Viewed, four, reshaped, strided};
use crate::cuda::dnn::Strided;
use ampc_ir::op::OpKind;
use ampc_ir::views::reduce::ReduceView;
use ampc_ir::views::{NodeView, TransposeView};
use ampc_ir::{DType, Node, Value};
use rustc_hash::FxHashSet;

/// The softmax with the nodes that set rows of −∞ to 0.
struct Rows {
    scores: Value,
    probabilities: Value,
    is_masked: bool,
}

impl Finder<'_> {
    /// The gradient whose probabilities a softmax makes again. The attention has no nodes of its own, and its result is
    /// no value: the gradient of the result stands for it.
    pub(super) fn operator_gradient(&self, softmax: Node) -> Option<Pair> {
        let mut parts = Parts { factor: 1.0, ..Parts::default() };
        let rows = self.rows(softmax, &mut parts)?;
        let value = self.products(rows.probabilities, &mut parts)?;
        let after: FxHashSet<Node> = parts.nodes.iter().copied().collect();
        let scores = Finder { others: &after, ..*self }.scores(rows.scores, false)?;
        let product = NodeView::new(self.module, scores.product)?;
        let (transposed, key) = self.transposed_by(product.operand(1)?)?;
        let fits = [product.operand(0), Some(key)] == [parts.query, parts.key]
            && scores.masks.is_empty() != rows.is_masked
            && is_same_factor(parts.factor, scores.factor);
        if !fits {
            return None;
        }
        parts.nodes.push(transposed);
        parts.nodes.extend(&scores.nodes);
        let operands = [parts.query?, key, value, parts.of_result?];
        let forward = self.attention(operands, scores, &mut parts.nodes)?;
        let of_result = self.widened(parts.of_result?, &mut parts.nodes)?;
        let [of_query, of_key, of_value] = parts.made;
        let gradients = [
            self.narrowed(of_query?, 1, &mut parts.nodes)?,
            self.narrowed(of_key?, forward.repeats, &mut parts.nodes)?,
            self.narrowed(of_value?, forward.repeats, &mut parts.nodes)?,
        ];
        let gradient = Gradient {
            nodes: self.closed(parts.nodes, &gradients)?,
            probabilities: rows.probabilities,
            others: Vec::new(),
            result: (of_result.value, strided(&of_result)?),
            gradients,
        };
        let is_whole = of_result.repeats == 1 && self.is_whole(&forward, &gradient);
        is_whole.then_some(Pair { forward, gradient })
    }

    /// The attention of query, key and value, with the gradient of the result in place of the result.
    fn attention(
        &self,
        [query, key, value, result]: [Value; 4],
        mut scores: Scores,
        nodes: &mut Vec<Node>,
    ) -> Option<Pattern> {
        let [query, key, value, result] = [
            self.widened(query, nodes)?,
            self.widened(key, nodes)?,
            self.widened(value, nodes)?,
            self.widened(result, nodes)?,
        ];
        let (dtype, _) = self.known(query.value)?;
        #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
        let scale = scores.factor as f32;
        let is_shared = [query.repeats, value.repeats] == [1, key.repeats];
        let lengths = [four(&query.dims)?[2], four(&key.dims)?[2]];
        let n_masks = scores.masks.len();
        scores.masks.retain(|mask| match *mask {
            Mask::Where { value, hides } => hides || !self.is_causal(value, lengths),
            Mask::Added(_) => true,
        });
        is_shared.then_some(Pattern {
            nodes: Vec::new(),
            dtype,
            query: (query.value, strided(&query)?),
            key: (key.value, strided(&key)?),
            value: (value.value, strided(&value)?),
            result: (result.value, Strided::dense(four(&result.dims)?)),
            scale,
            is_causal: scores.masks.len() < n_masks,
            masks: scores.masks,
            rank: 4,
            product: scores.product,
            second: None,
            factors: [1.0; 2],
            repeats: key.repeats,
        })
    }

    /// True if the dims and element types of all parts fit.
    fn is_whole(&self, forward: &Pattern, gradient: &Gradient) -> bool {
        let (q, k, v) = (forward.query.1, forward.key.1, forward.value.1);
        let [batch, heads, rows, size] = q.dims;
        let values = [forward.query.0, forward.key.0, forward.value.0, gradient.result.0];
        let made = gradient.gradients.map(|(value, _)| value);
        let has_type = |value: Value| self.known(value).is_some_and(|(dtype, _)| dtype == forward.dtype);
        let of = gradient.gradients.map(|(_, of)| of);
        matches!(forward.dtype, DType::F16 | DType::BF16)
            && values.into_iter().chain(made).all(has_type)
            && k.dims == [batch, k.dims[1], v.dims[2], size]
            && v.dims[..2] == k.dims[..2]
            && k.dims[1] * forward.repeats == heads
            && gradient.result.1.dims == [batch, heads, rows, v.dims[3]]
            && gradient.result.1.strides[3] == 1
            && of.map(|of| of.dims) == [q.dims, k.dims, v.dims]
            && of.iter().all(|of| of.strides[3] == 1)
    }

    /// The nodes in no order, each once; `None` if something else reads a value that is no gradient.
    fn closed(&self, nodes: Vec<Node>, gradients: &[(Value, Strided); 3]) -> Option<Vec<Node>> {
        let nodes: FxHashSet<Node> = nodes.into_iter().collect();
        // Nodes that read dims alone are folded, unless they may be joined.
        let is_folded = |view: &NodeView<'_>| {
            view.kind() == OpKind::Shape && !result(view).is_some_and(|dims| (self.is_joinable)(dims))
        };
        let is_reader = |node: Node| !NodeView::new(self.module, node).is_some_and(|view| is_folded(&view));
        let is_inner = |value: Value| {
            let mut uses = self.module.uses(value).filter(|&(node, _)| is_reader(node));
            (self.is_joinable)(value) && uses.all(|(node, _)| nodes.contains(&node))
        };
        let mut made = nodes.iter().flat_map(|&node| self.module.node(node).results()).flatten();
        made.all(|&value| gradients.iter().any(|&(own, _)| own == value) || is_inner(value))
            .then(|| nodes.iter().copied().collect())
    }

    /// The view of the node of a kind that makes a value.
    fn maker_of(&self, value: Value, kind: OpKind) -> Option<NodeView<'_>> {
        let (node, _) = self.module.producer(value)?;
        NodeView::new(self.module, node).filter(|view| view.kind() == kind)
    }

    /// The node that transposes matrices to make a value, and the matrices.
    fn transposed_by(&self, value: Value) -> Option<(Node, Value)> {
        let (node, _) = self.module.producer(value)?;
        Some((node, self.untransposed(node)?))
    }

    /// The scores before a softmax of their rows, and the probabilities.
    fn rows(&self, softmax: Node, parts: &mut Parts) -> Option<Rows> {
        let view = NodeView::new(self.module, softmax).filter(is_over_rows)?;
        parts.nodes.push(softmax);
        let (before, after) = (view.operand(0)?, result(&view)?);
        let Some(zeroed) = self.reader_of(after, OpKind::Where) else {
            return Some(Rows { scores: before, probabilities: after, is_masked: false });
        };
        let chosen = self.maker_of(before, OpKind::Where)?;
        let (none, scores) = (chosen.operand(0)?, chosen.operand(2)?);
        let equal = self.maker_of(none, OpKind::Equal)?;
        let most = self.maker_of(equal.operand(0)?, OpKind::ReduceMax)?;
        let reduced = ReduceView::read(&most).ok()?;
        let fits = zeroed.operand(0) == Some(none)
            && zeroed.operand(2) == Some(after)
            && [number(&zeroed, 1), number(&chosen, 1)] == [Some(0.0); 2]
            && number(&equal, 1) == Some(f64::NEG_INFINITY)
            && most.operand(0) == Some(scores)
            && reduced.keep
            && reduced.axes?.as_slice() == [most.rank(0)?.checked_sub(1)?];
        parts.nodes.extend([zeroed.node, chosen.node, equal.node, most.node]);
        fits.then_some(Rows { scores, probabilities: result(&zeroed)?, is_masked: true })
    }

    /// The products of the gradient; returns the values.
    fn products(&self, probabilities: Value, parts: &mut Parts) -> Option<Value> {
        let readers = self.readers(probabilities);
        let (of_weights, mut of_scores) =
            readers.iter().find_map(|&node| self.softmax_gradient(probabilities, node, parts))?;
        let value = self.of_value(of_weights, parts)?;
        let turned = readers.iter().copied().find(|&node| self.untransposed(node) == Some(probabilities))?;
        let (of_value, of_result) = self.turned_product(turned)?;
        if parts.of_result != Some(of_result) {
            return None;
        }
        parts.made[2] = result(&of_value);
        parts.nodes.extend([turned, of_value.node]);
        if let [node] = self.readers(of_scores)[..] {
            let scaled = NodeView::new(self.module, node)?;
            let (i, by) = factor(&scaled).filter(|&(i, _)| scaled.operand(i) == Some(of_scores))?;
            let made = result(&scaled)?;
            if self.known(made)? != self.known(scaled.operand(i)?)? {
                return None;
            }
            parts.factor *= by;
            parts.nodes.push(node);
            of_scores = made;
        }
        let [a, b] = self.readers(of_scores)[..] else { return None };
        let (turned, of_query) = if self.untransposed(a) == Some(of_scores) { (a, b) } else { (b, a) };
        let of_query = NodeView::new(self.module, of_query).filter(|view| view.kind() == OpKind::MatMul)?;
        if self.untransposed(turned) != Some(of_scores) || of_query.operand(0) != Some(of_scores) {
            return None;
        }
        let (of_key, query) = self.turned_product(turned)?;
        (parts.query, parts.key) = (Some(query), of_query.operand(1));
        (parts.made[0], parts.made[1]) = (result(&of_query), result(&of_key));
        parts.nodes.extend([turned, of_query.node, of_key.node]);
        Some(value)
    }

    /// The product whose first operand a Transpose makes, and its second operand.
    fn turned_product(&self, turned: Node) -> Option<(NodeView<'_>, Value)> {
        let made = result(&NodeView::new(self.module, turned)?)?;
        let product = self.reader_of(made, OpKind::MatMul).filter(|view| view.operand(0) == Some(made))?;
        let second = product.operand(1)?;
        Some((product, second))
    }

    /// An f32 operand of a product as a view of the 16-bit tensor that it is cast from. The gradient reads most of
    /// these values more than once.
    fn widened(&self, value: Value, nodes: &mut Vec<Node>) -> Option<Viewed> {
        let (node, _) = self.module.producer(value)?;
        let view = NodeView::new(self.module, node)?;
        nodes.push(node);
        let (source, (dtype, dims)) = (view.operand(0)?, self.known(value)?);
        match view.kind() {
            OpKind::Cast if dtype == DType::F32 => {
                let viewed = self.viewed(source, false);
                let is_whole = |of: &Viewed| of.repeats == 1 && of.strides.last() == Some(&1);
                let viewed = viewed.filter(is_whole).or_else(|| self.dense(source))?;
                nodes.extend(&viewed.nodes);
                Some(viewed)
            }
            OpKind::Transpose => {
                let mut inner = self.widened(source, nodes)?;
                let perm = TransposeView::read(&view).perm(inner.dims.len()).ok()?;
                inner.dims = perm.iter().map(|&axis| inner.dims[axis]).collect();
                inner.strides = perm.iter().map(|&axis| inner.strides[axis]).collect();
                (inner.repeats == 1).then_some(inner)
            }
            OpKind::Reshape => {
                let mut inner = self.widened(source, nodes)?;
                inner.strides = reshaped(&inner.dims, &inner.strides, &dims)?;
                inner.dims = dims;
                (inner.repeats == 1).then_some(inner)
            }
            OpKind::Gather if view.int("axis") == Some(1) && dims.len() == 4 => {
                let mut inner = self.widened(source, nodes)?;
                let [_, heads, _, _] = four(&inner.dims)?;
                let indices = view.constant(1)?.small_ints(u64::try_from(dims[1]).ok()?)?;
                let repeats = dims[1].checked_div(heads).filter(|&repeats| repeats > 0)?;
                let is_even = indices.iter().zip(0..).all(|(&index, at)| index == at / repeats);
                inner.repeats = repeats;
                (is_even && repeats * heads == dims[1]).then_some(inner)
            }
            _ => None,
        }
    }

    /// The 16-bit gradient as its readers see it, after the sum over heads that share keys and the nodes that
    /// make rank 3.
    fn narrowed(&self, made: Value, repeats: i64, nodes: &mut Vec<Node>) -> Option<(Value, Strided)> {
        let value = if repeats == 1 { made } else { self.summed(made, repeats, nodes)? };
        let mut of = self.dense(value)?;
        let &[_, heads, length, size] = &of.dims[..] else { return None };
        let turned = self.reader_of(value, OpKind::Transpose);
        let is_packed = turned.is_some();
        if let Some(turned) = turned {
            let packed = self.reader_of(result(&turned)?, OpKind::Reshape)?;
            let perm = TransposeView::read(&turned).perm(4).ok()?;
            of.value = result(&packed)?;
            if perm[..] != [0, 2, 1, 3] || self.known(of.value)?.1 != [of.dims[0], length, heads * size] {
                return None;
            }
            of.strides = vec![length * heads * size, size, heads * size, 1];
            nodes.extend([turned.node, packed.node]);
        }
        let cast = self.reader_of(of.value, OpKind::Cast)?;
        nodes.push(cast.node);
        of.value = result(&cast)?;
        if !is_packed && let Some(consumed) = self.consumed(of.value, false).filter(|of| of.factor == 1.0) {
            nodes.extend(&consumed.nodes);
            return Some((consumed.value, strided(&consumed)?));
        }
        Some((of.value, strided(&of)?))
    }

    /// The sum of the gradients of heads that share keys and values.
    fn summed(&self, made: Value, repeats: i64, nodes: &mut Vec<Node>) -> Option<Value> {
        let (_, dims) = self.known(made)?;
        let &[batch, heads, length, size] = &dims[..] else { return None };
        let apart = self.reader_of(made, OpKind::Reshape)?;
        let sum = self.reader_of(result(&apart)?, OpKind::ReduceSum)?;
        let reduced = ReduceView::read(&sum).ok()?;
        let fits = self.known(result(&apart)?)?.1 == [batch, heads / repeats, repeats, length, size]
            && !reduced.keep
            && reduced.axes?.as_slice() == [2];
        nodes.extend([apart.node, sum.node]);
        fits.then(|| result(&sum))?
    }
}
