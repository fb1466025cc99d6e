//! Matches the explicit gradient of an attention that is written as products and a softmax.
//!
//! ```text
//! P = softmax(scores)    A = P as the second product reads it    O = A V
//! dP = dO Vᵀ    dV = Aᵀ dO    M = dP · P    dS = P (dP − Σ M)    E = dS through factors, Where and casts
//! dQ = E Kᵀ    (dKᵀ) = Qᵀ E    factors and a Transpose of each
//! ```
//!
//! Only these nodes may read P, A and the values computed from dP. None of these values is stored: the gradient
//! recomputes P from the statistics of its rows.

use super::pattern::{Finder, Mask, Pattern, factor, is_float, number, result};
use super::viewed::strided;
use crate::cuda::dnn::Strided;
use ampc_ir::op::OpKind;
use ampc_ir::views::reduce::ReduceView;
use ampc_ir::views::{NodeView, TransposeView};
use ampc_ir::{Module, Node, Value};
use rustc_hash::FxHashSet;

/// The largest relative difference between the factor of the scores and that of their gradients.
const FACTOR_TOLERANCE: f64 = 1e-6;

/// True if two factors of scores and their gradients are equal but for their roundings.
pub(super) fn is_same_factor(factor: f64, scale: f64) -> bool {
    (factor - scale).abs() <= FACTOR_TOLERANCE * scale.abs()
}

/// The gradient of an attention.
pub(super) struct Gradient {
    pub(super) nodes: Vec<Node>,
    /// The result of the softmax.
    pub(super) probabilities: Value,
    /// Other values that the attention produces and the gradient reads.
    pub(super) others: Vec<Value>,
    /// The gradient of the result.
    pub(super) result: (Value, Strided),
    /// The gradients of query, key and value.
    pub(super) gradients: [(Value, Strided); 3],
}

/// An attention and its gradient.
pub(super) struct Pair {
    pub(super) forward: Pattern,
    pub(super) gradient: Gradient,
}

/// The nodes of a gradient before the attention is matched.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) nodes: Vec<Node>,
    /// The product of the probabilities and the values.
    pub(super) second: Option<Node>,
    /// The gradient of the result, as the operands of the products.
    pub(super) of_result: Option<Value>,
    pub(super) query: Option<Value>,
    pub(super) key: Option<Value>,
    /// The gradients that the products compute; the gradient of the keys is transposed.
    pub(super) made: [Option<Value>; 3],
    pub(super) factor: f64,
    /// The condition of a Where, and the value of the condition that hides a score.
    pub(super) hides: Option<(Value, bool)>,
}

impl Pair {
    /// Matches the attention around a softmax and its gradient. `is_joinable` is true if only nodes read a value.
    pub(super) fn find(module: &Module, is_joinable: &dyn Fn(Value) -> bool, softmax: Node) -> Option<Pair> {
        let none = FxHashSet::default();
        let alone = Finder { module, is_joinable, others: &none };
        let probabilities = result(&NodeView::new(module, softmax)?)?;
        if !is_joinable(probabilities) {
            return None;
        }
        let mut parts = alone.parts(probabilities)?;
        let mut chains = [None, None, None];
        for (i, chain) in chains.iter_mut().enumerate() {
            *chain = Some(alone.consumed(parts.made[i]?, i == 1)?);
        }
        let [Some(of_query), Some(of_key), Some(of_value)] = chains else { return None };
        for chain in [&of_query, &of_key, &of_value] {
            parts.nodes.extend(&chain.nodes);
        }
        let mut nodes: FxHashSet<Node> = parts.nodes.iter().copied().collect();
        let of_result = Finder { others: &nodes, ..alone }.viewed(parts.of_result?, false)?;
        nodes.extend(&of_result.nodes);
        let finder = Finder { others: &nodes, ..alone };
        let forward = finder.find(softmax)?;
        let operand = |node: Node, i: usize| NodeView::new(module, node)?.operand(i);
        let is_whole = forward.second == parts.second
            && operand(forward.product, 0) == parts.query
            && operand(forward.product, 1) == parts.key
            && forward.repeats == 1
            && of_result.factor == 1.0
            && of_value.factor == 1.0;
        // A Where also hides the gradients of scores.
        let is_hidden = match (&forward.masks[..], parts.hides) {
            (&[Mask::Where { value, hides }], Some(found)) => found == (value, hides),
            (masks, None) => masks.iter().all(|mask| matches!(mask, Mask::Added(_))),
            _ => false,
        };
        let scale = f64::from(forward.scale);
        let is_scaled = |factor: f64| is_same_factor(parts.factor * factor, scale);
        let [of_q, of_k] = forward.factors;
        if !is_whole || !is_hidden || !is_scaled(of_query.factor * of_k) || !is_scaled(of_key.factor * of_q) {
            return None;
        }
        let gradients = [
            (of_query.value, strided(&of_query)?),
            (of_key.value, strided(&of_key)?.transposed()),
            (of_value.value, strided(&of_value)?),
        ];
        let operands = [forward.query.1, forward.key.1, forward.value.1];
        let made = (of_result.value, strided(&of_result)?);
        let has_type = |value: Value| finder.known(value).is_some_and(|(dtype, _)| dtype == forward.dtype);
        let fits = gradients.iter().zip(operands).all(|((_, own), operand)| own.dims == operand.dims)
            && gradients.iter().all(|&(value, own)| has_type(value) && own.strides[3] == 1)
            && made.1.dims == forward.result.1.dims
            && made.1.strides[3] == 1
            && has_type(made.0);
        if !fits || forward.nodes.iter().any(|node| nodes.contains(node)) {
            return None;
        }
        let read: FxHashSet<Value> =
            nodes.iter().flat_map(|&node| module.node(node).operands()).flatten().copied().collect();
        let values = forward.nodes.iter().flat_map(|&node| module.node(node).results()).flatten();
        let others =
            values.copied().filter(|value| *value != probabilities && read.contains(value)).collect();
        let nodes = nodes.into_iter().collect();
        Some(Pair { forward, gradient: Gradient { nodes, probabilities, others, result: made, gradients } })
    }
}

impl Finder<'_> {
    fn view(&self, node: Node) -> Option<NodeView<'_>> {
        NodeView::new(self.module, node)
    }

    /// The nodes that read a value, without duplicates.
    pub(super) fn readers(&self, value: Value) -> Vec<Node> {
        let mut nodes: Vec<Node> = self.module.uses(value).map(|(node, _)| node).collect();
        nodes.dedup();
        nodes
    }

    /// The only reader of a value, if its operator is `kind`.
    pub(super) fn reader_of(&self, value: Value, kind: OpKind) -> Option<NodeView<'_>> {
        self.view(self.reader(value)?).filter(|view| view.kind() == kind)
    }

    /// The operand of a node that transposes matrices; `None` for other nodes.
    pub(super) fn untransposed(&self, node: Node) -> Option<Value> {
        let view = self.view(node).filter(|view| view.kind() == OpKind::Transpose)?;
        let rank = view.rank(0)?;
        let perm = TransposeView::read(&view).perm(rank).ok()?;
        let swapped = (0..rank).map(|axis| match rank - axis {
            1 => rank - 2,
            2 => rank - 1,
            _ => axis,
        });
        (rank >= 2 && perm.iter().copied().eq(swapped)).then(|| view.operand(0))?
    }

    /// The node that transposes matrices for the operand of a product, and the matrices.
    fn transposes(&self, operand: Value) -> Option<(Node, Value)> {
        let (node, _) = self.maker(operand)?;
        Some((node, self.untransposed(node)?))
    }

    /// Matches the gradient of a softmax.
    fn parts(&self, probabilities: Value) -> Option<Parts> {
        let mut parts = Parts { factor: 1.0, ..Parts::default() };
        let readers = self.readers(probabilities);
        let (of_value, mut scores) =
            readers.iter().find_map(|&node| self.softmax_gradient(probabilities, node, &mut parts))?;
        let value = self.of_value(of_value, &mut parts)?;
        // The probabilities as the second product reads them.
        let (mut read, inner) = (probabilities, parts.nodes.clone());
        loop {
            let mut readers = self.readers(read);
            readers.retain(|node| !inner.contains(node));
            if !(self.is_joinable)(read) {
                return None;
            }
            match readers[..] {
                [node] => read = result(&self.passthrough(node)?)?,
                [a, b] => {
                    let is_product = |node: Node| self.view(node).is_some_and(|v| v.kind() == OpKind::MatMul);
                    // The gradient may repeat casts of the forward part.
                    let sides = [self.skip_passthrough(a, read)?, self.skip_passthrough(b, read)?];
                    let [first, other] = sides;
                    let ((second, from, _), (transposed, again, passed)) =
                        if is_product(first.0) { (first, other) } else { (other, first) };
                    let view = self.view(second).filter(|view| view.operand(0) == Some(from))?;
                    if view.kind() != OpKind::MatMul
                        || view.operand(1) != Some(value)
                        || self.untransposed(transposed) != Some(again)
                        || self.known(from)?.0 != self.known(again)?.0
                    {
                        return None;
                    }
                    parts.nodes.extend(passed);
                    let product = self.reader_of(result(&self.view(transposed)?)?, OpKind::MatMul)?;
                    if product.operand(1) != parts.of_result {
                        return None;
                    }
                    parts.nodes.extend([transposed, product.node]);
                    parts.made[2] = result(&product);
                    parts.second = Some(second);
                    break;
                }
                _ => return None,
            }
        }
        // Follows the gradient of the softmax to the products.
        loop {
            if !(self.is_joinable)(scores) {
                return None;
            }
            match self.readers(scores)[..] {
                [node] => {
                    let view = self.view(node)?;
                    match view.kind() {
                        OpKind::Cast if is_float(view.dtype(0)?) => {}
                        OpKind::Mul | OpKind::Div => parts.factor *= factor(&view)?.1,
                        OpKind::Where if parts.hides.is_none() => {
                            let i = if view.operand(1) == Some(scores) { 1 } else { 2 };
                            if number(&view, 3 - i) != Some(0.0) {
                                return None;
                            }
                            parts.hides = Some((view.operand(0)?, i == 2));
                        }
                        _ => return None,
                    }
                    parts.nodes.push(node);
                    let made = result(&view)?;
                    if self.known(made)?.1 != self.known(scores)?.1 {
                        return None;
                    }
                    scores = made;
                }
                [a, b] => {
                    for node in [a, b] {
                        let view = self.view(node).filter(|view| view.kind() == OpKind::MatMul)?;
                        let i = usize::from(view.operand(1) == Some(scores));
                        let (transposed, matrices) = self.transposes(view.operand(1 - i)?)?;
                        parts.nodes.extend([transposed, node]);
                        parts.made[i] = result(&view);
                        *(if i == 0 { &mut parts.key } else { &mut parts.query }) = Some(matrices);
                    }
                    return Some(parts);
                }
                _ => return None,
            }
        }
    }

    /// Skips casts from `node` on, which reads `value`: the first other node, the value that it reads, and the casts.
    fn skip_passthrough(&self, mut node: Node, mut value: Value) -> Option<(Node, Value, Vec<Node>)> {
        let mut passed = Vec::new();
        while let Some(view) = self.passthrough(node) {
            value = result(&view).filter(|&value| (self.is_joinable)(value))?;
            passed.push(node);
            node = self.reader(value)?;
        }
        Some((node, value, passed))
    }

    /// A Cast between floats, or a Dropout that drops no element.
    pub(super) fn passthrough(&self, node: Node) -> Option<NodeView<'_>> {
        let view = self.view(node)?;
        let is_same = match view.kind() {
            OpKind::Cast => is_float(view.dtype(0)?) && is_float(self.known(result(&view)?)?.0),
            OpKind::Dropout => self.drops_nothing(&view),
            _ => false,
        };
        is_same.then_some(view)
    }

    /// The gradients of the probabilities and of the scores, if `node` multiplies the gradient of the probabilities
    /// by the probabilities and its result is summed.
    pub(super) fn softmax_gradient(
        &self,
        probabilities: Value,
        node: Node,
        parts: &mut Parts,
    ) -> Option<(Value, Value)> {
        let other = |view: &NodeView<'_>, one: Value| match (view.operand(0)?, view.operand(1)?) {
            (a, b) if a == one => Some(b),
            (a, b) if b == one => Some(a),
            _ => None,
        };
        let product = self.view(node).filter(|view| view.kind() == OpKind::Mul)?;
        let gradient = other(&product, probabilities)?;
        let sum = self.reader_of(result(&product)?, OpKind::ReduceSum)?;
        let reduced = ReduceView::read(&sum).ok()?;
        if !reduced.keep || reduced.axes?.as_slice() != [sum.rank(0)?.checked_sub(1)?] {
            return None;
        }
        let difference = self.reader_of(result(&sum)?, OpKind::Sub)?;
        if difference.operand(0) != Some(gradient) || difference.operand(1) != result(&sum) {
            return None;
        }
        let scores = self.reader_of(result(&difference)?, OpKind::Mul)?;
        let is_whole = other(&scores, result(&difference)?) == Some(probabilities)
            && (self.is_joinable)(gradient)
            && self.readers(gradient).len() == 2;
        if !is_whole {
            return None;
        }
        parts.nodes.extend([node, sum.node, difference.node, scores.node]);
        Some((gradient, result(&scores)?))
    }

    /// The operand V of the attention, found from the gradient of the probabilities.
    pub(super) fn of_value(&self, mut gradient: Value, parts: &mut Parts) -> Option<Value> {
        loop {
            let (node, _) = self.module.producer(gradient)?;
            let view = self.view(node)?;
            parts.nodes.push(node);
            match view.kind() {
                OpKind::Cast if is_float(view.dtype(0)?) => {
                    gradient = view.operand(0)?;
                    self.reader(gradient)?;
                }
                OpKind::MatMul => {
                    let (transposed, values) = self.transposes(view.operand(1)?)?;
                    parts.nodes.push(transposed);
                    parts.of_result = view.operand(0);
                    return Some(values);
                }
                _ => return None,
            }
        }
    }

    /// The gradient as its readers see it, after factors and a Transpose. `is_transposed` is true if the product
    /// computes the transposed matrices.
    pub(super) fn consumed(&self, made: Value, is_transposed: bool) -> Option<super::viewed::Viewed> {
        let mut found = self.dense(made)?;
        let rank = found.dims.len();
        let innermost = rank.checked_sub(1 + usize::from(is_transposed))?;
        while let Some(view) = self.reader(found.value).and_then(|node| self.view(node)) {
            let to = result(&view)?;
            match view.kind() {
                OpKind::Mul | OpKind::Div if factor(&view).is_some() => {
                    let (i, factor) = factor(&view)?;
                    if view.operand(i) != Some(found.value) || self.known(to)? != self.known(found.value)? {
                        break;
                    }
                    found.factor *= factor;
                }
                OpKind::Transpose => {
                    let perm = TransposeView::read(&view).perm(rank).ok()?;
                    if perm.last() != Some(&innermost) {
                        break;
                    }
                    let dense = self.dense(to)?;
                    perm.iter().zip(dense.strides).for_each(|(&axis, stride)| found.strides[axis] = stride);
                    found.value = to;
                    found.nodes.push(view.node);
                    break;
                }
                _ => break,
            }
            found.value = to;
            found.nodes.push(view.node);
        }
        (found.strides[innermost] == 1).then_some(found)
    }
}
