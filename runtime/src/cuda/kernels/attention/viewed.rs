//! Operands of a product as views of earlier tensors.

use super::pattern::{Finder, factor, result};
use crate::cuda::dnn::Strided;
use ampc_ir::op::OpKind;
use ampc_ir::views::{NodeView, TransposeView};
use ampc_ir::{Node, Value};

/// A tensor with the dims and strides of a product's operand.
pub(super) struct Viewed {
    pub(super) value: Value,
    pub(super) dims: Vec<i64>,
    pub(super) strides: Vec<i64>,
    /// The product of the skipped factors.
    pub(super) factor: f64,
    /// The number of times that the operand repeats each head.
    pub(super) repeats: i64,
    pub(super) nodes: Vec<Node>,
}

impl Finder<'_> {
    /// A value without a view.
    pub(super) fn dense(&self, value: Value) -> Option<Viewed> {
        let (_, dims) = self.known(value)?;
        let mut strides = vec![1; dims.len()];
        for axis in (1..dims.len()).rev() {
            strides[axis - 1] = dims[axis].checked_mul(strides[axis])?;
        }
        Some(Viewed { value, dims, strides, factor: 1.0, repeats: 1, nodes: Vec::new() })
    }

    /// Matches an operand of a product as a view of an earlier tensor, and collects the nodes between them.
    /// `is_scaled` is true if a factor may be among them.
    pub(super) fn viewed(&self, value: Value, is_scaled: bool) -> Option<Viewed> {
        let made = self.maker(value).and_then(|(node, view)| {
            let mut inner = match view.kind() {
                OpKind::Transpose => {
                    let mut inner = self.viewed(view.operand(0)?, is_scaled)?;
                    let perm = TransposeView::read(&view).perm(inner.dims.len()).ok()?;
                    if inner.repeats != 1 && perm[1] != 1 {
                        return None;
                    }
                    inner.dims = perm.iter().map(|&axis| inner.dims[axis]).collect();
                    inner.strides = perm.iter().map(|&axis| inner.strides[axis]).collect();
                    inner
                }
                OpKind::Reshape => match self.repeated(&view, is_scaled) {
                    Some(inner) => inner,
                    None => self.reshaped(&view, is_scaled)?,
                },
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

    /// A reshaped view; `None` if no strides give it, or if only a Reshape was skipped, which is free anyway.
    fn reshaped(&self, view: &NodeView<'_>, is_scaled: bool) -> Option<Viewed> {
        let mut inner = self.viewed(view.operand(0)?, is_scaled)?;
        let (_, dims) = self.known(result(view)?)?;
        inner.strides = reshaped(&inner.dims, &inner.strides, &dims)?;
        inner.dims = dims;
        (!inner.nodes.is_empty() && inner.repeats == 1).then_some(inner)
    }

    /// Repeated heads: an axis after the heads that is inserted, expanded, and merged with them.
    fn repeated(&self, joins: &NodeView<'_>, is_scaled: bool) -> Option<Viewed> {
        let (_, joined) = self.known(result(joins)?)?;
        let (expand, expands) = self.maker(joins.operand(0)?)?;
        let (_, expanded) = self.known(joins.operand(0)?)?;
        let (insert, inserts) = self.maker(expands.operand(0)?)?;
        let (_, inserted) = self.known(expands.operand(0)?)?;
        let kinds = [expands.kind(), inserts.kind()];
        let [batch, heads, repeats, positions, size] = expanded[..] else { return None };
        let fits = matches!(kinds, [OpKind::Expand, OpKind::Unsqueeze])
            && joined == [batch, heads * repeats, positions, size]
            && inserted == [batch, heads, 1, positions, size];
        let mut inner = self.viewed(inserts.operand(0)?, is_scaled)?;
        if !fits || inner.repeats != 1 || inner.dims != [batch, heads, positions, size] {
            return None;
        }
        inner.repeats = repeats;
        inner.nodes.extend([insert, expand]);
        Some(inner)
    }
}

/// Dims with an axis of one head inserted, if there is no axis of heads.
pub(super) fn four(dims: &[i64]) -> Option<[i64; 4]> {
    match *dims {
        [n, h, s, d] => Some([n, h, s, d]),
        [n, s, d] => Some([n, 1, s, d]),
        _ => None,
    }
}

/// The strides of a view with four dims.
pub(super) fn strided(of: &Viewed) -> Option<Strided> {
    let (dims, mut strides) = (four(&of.dims)?, four(&of.strides)?);
    // Strides of axes with one index are not used, but belong to the plan's key.
    let around = dims.iter().zip(strides).map(|(&n, step)| n.saturating_mul(step)).max()?;
    for axis in (0..4).filter(|&axis| dims[axis] == 1) {
        strides[axis] = around;
    }
    Some(Strided { dims, strides })
}

/// The strides of a reshaped tensor, with the same elements in row-major order; `None` if there are none.
pub(super) fn reshaped(dims: &[i64], strides: &[i64], to: &[i64]) -> Option<Vec<i64>> {
    if dims.iter().product::<i64>() != to.iter().product::<i64>() || to.contains(&0) {
        return None;
    }
    let mut made = vec![0; to.len()];
    let (mut i, mut j) = (dims.len(), to.len());
    while j > 0 {
        // The smallest sets of axes of both with the same number of elements.
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
        // Positions, batch and heads as one axis: the axis is split.
        assert_eq!(reshaped(&[6, 17, 16], &[16, 96, 1], &[3, 2, 17, 16]), Some(vec![32, 16, 96, 1]));
        assert_eq!(reshaped(&[3, 2, 17, 16], &[32, 16, 96, 1], &[6, 17, 16]), Some(vec![16, 96, 1]));
        // Transposed heads and positions cannot be merged.
        assert_eq!(reshaped(&[2, 3, 4, 8], &[96, 8, 24, 1], &[2, 12, 8]), None);
        assert_eq!(reshaped(&[2, 3, 4, 8], &[96, 8, 24, 1], &[2, 3, 4, 2, 4]), Some(vec![96, 8, 24, 4, 1]));
        assert_eq!(reshaped(&[2, 4], &[4, 1], &[1, 8]).map(|strides| strides[1]), Some(1));
        assert_eq!(reshaped(&[4, 1], &[1, 1], &[4]), Some(vec![1]));
        assert_eq!(reshaped(&[4], &[1], &[1, 4, 1]).map(|strides| strides[1]), Some(1));
    }
}
