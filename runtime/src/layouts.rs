//! Images with channels last: dims `[n, spatial…, c]` instead of `[n, c, spatial…]`.
//!
//! A backend chooses the nodes that compute with channels last
//! ([`Backend::channels_last`](crate::Backend::channels_last)), and the session permutes the types of their images in
//! its copy of the module. In this graph, Conv and Relu compute with channels last, and Flatten reads a copy with the
//! dims of the model:
//!
//! ```text
//! %x1 = Transpose(%x)    %y = Conv(%x1, %w1)    %z = Relu(%y)    %z1 = Transpose(%z)    %f = Flatten(%z1)
//! ```
//!
//! [`Roles::of`] determines the nodes that can compute with channels last. All other nodes read and produce images
//! with the dims of the model.

use ampc_ir::op::OpKind as K;
use ampc_ir::views::broadcast::Broadcast;
use ampc_ir::views::expression::Expression;
use ampc_ir::views::norm::BatchNormView;
use ampc_ir::views::reduce::ReduceView;
use ampc_ir::views::{NodeView, TransposeView};
use ampc_ir::{GraphId, Module, Node, Value};

/// The role of an operand or result of a node that computes with channels last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A tensor `[n, c, spatial…]` whose dims are permuted. Filters are images too.
    Image,
    /// A tensor `[c, 1, …]` without the axis of the batch, which becomes `[c]`.
    Channels,
    /// An image that the node reads through a transpose back to channels first, in one group with the node: the
    /// exchange of batch and channels before a weight gradient.
    Back,
    /// A tensor that does not change.
    Fixed,
}

/// The roles of the operands and results of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Roles {
    /// The roles of operands.
    pub operands: Vec<Role>,
    /// The roles of results.
    pub results: Vec<Role>,
}

/// A node that can compute with channels last.
#[derive(Clone, Debug)]
pub struct Image {
    /// The node.
    pub node: Node,
    /// The roles of its operands and results.
    pub roles: Roles,
}

/// The nodes of the main graph that can compute with channels last.
#[derive(Clone, Copy, Debug)]
pub struct Images<'a> {
    /// The module, with the types of all values.
    pub module: &'a Module,
    /// The main graph.
    pub graph: GraphId,
    /// The nodes, in program order.
    pub nodes: &'a [Image],
}

/// The dims of a value, if it is a tensor of known dims.
pub(crate) fn dims_of(module: &Module, value: Value) -> Option<Vec<u64>> {
    module.value(value).ty.shape()?.to_known()
}

/// True if an image has the same element order in both layouts: one channel, or one element per channel.
pub(crate) fn is_same_in_both(dims: &[u64]) -> bool {
    dims[1] == 1 || dims[2..].iter().all(|&extent| extent == 1)
}

impl Roles {
    /// The roles of a node with images of two or three spatial dims; `None` if it cannot compute with channels last.
    pub fn of(module: &Module, node: Node) -> Option<Roles> {
        let view = NodeView::new(module, node)?;
        let first = view.data().result(0)?;
        if is_reduction(view.kind()) {
            return Roles::of_reduction(&view);
        }
        let dims = dims_of(module, first)?;
        if !matches!(dims.len(), 4 | 5) || dims.contains(&0) {
            return None;
        }
        let n = view.n_operands();
        let mut operands = vec![Role::Fixed; n];
        let mut results = vec![Role::Fixed; view.data().results().len()];
        results[0] = Role::Image;
        if view.kind() == K::Transpose {
            let perm = TransposeView::read(&view).perm(dims.len()).ok()?;
            let is_exchange = [1, 0].into_iter().chain(2..dims.len()).eq(perm);
            let is_low = view.dtype(0).is_some_and(|dtype| dtype.is_low());
            let is_same = is_same_in_both(&dims_of(module, view.operand(0)?)?);
            let roles = Roles { operands: vec![Role::Back], results: vec![Role::Fixed] };
            return (is_exchange && is_low && !is_same).then_some(roles);
        }
        let images = match view.kind() {
            K::Conv | K::ConvTranspose => 2,
            K::BatchNormalization if BatchNormView::read(&view).spatial => 1,
            K::AveragePool | K::LpPool | K::Identity => 1,
            K::GlobalAveragePool | K::GlobalLpPool | K::GlobalMaxPool => 1,
            K::MaxPool if view.data().result(1).is_none() => 1,
            K::Concat if view.int("axis").is_some() => n,
            K::Expand => {
                operands[0] = broadcast(&dims_of(module, view.operand(0)?)?, dims.len())?;
                0
            }
            _ => {
                Expression::read(&view)?;
                let last = match view.kind() {
                    K::Clip | K::Cast | K::CastLike => 1,
                    _ => n,
                };
                if !matches!(
                    Broadcast::read(&view),
                    Broadcast::Numpy | Broadcast::Identical | Broadcast::IntoFirst
                ) {
                    return None;
                }
                for (i, role) in operands.iter_mut().enumerate().take(last) {
                    *role = broadcast(&dims_of(module, view.operand(i)?)?, dims.len())?;
                }
                0
            }
        };
        operands[..images].fill(Role::Image);
        for (i, _) in operands.iter().enumerate().filter(|(_, role)| **role == Role::Image) {
            let of_operand = dims_of(module, view.operand(i)?)?;
            if of_operand.len() != dims.len() || of_operand.contains(&0) {
                return None;
            }
        }
        Some(Roles { operands, results })
    }

    /// The roles of a reduction along listed axes whose result has the same axis order in both layouts.
    fn of_reduction(view: &NodeView<'_>) -> Option<Roles> {
        let dims = view.dims(0)?;
        let reduced = ReduceView::read(view).ok()?;
        let axes = reduced.axes.filter(|_| listed_axes(view).is_some_and(|axes| !axes.is_empty()))?;
        let is_empty = dims.iter().any(|dim| dim.known().is_none_or(|extent| extent == 0));
        if !matches!(dims.len(), 4 | 5) || is_empty {
            return None;
        }
        let keeps = |axis: usize| !axes.has(axis);
        if !reduced.keep && keeps(1) && (2..dims.len()).any(keeps) {
            return None;
        }
        let mut operands = vec![Role::Fixed; view.n_operands()];
        operands[0] = Role::Image;
        Some(Roles { operands, results: vec![if reduced.keep { Role::Image } else { Role::Fixed }] })
    }
}

/// True of an operator whose kernel reads [`Site::channels_last`](crate::kernel::Site::channels_last). Other
/// operators depend on dims, and on axes that the session permutes.
pub(crate) fn reads_layout(kind: K) -> bool {
    matches!(
        kind,
        K::AveragePool
            | K::BatchNormalization
            | K::Conv
            | K::ConvTranspose
            | K::GlobalAveragePool
            | K::GlobalLpPool
            | K::GlobalMaxPool
            | K::LpPool
            | K::MaxPool
    )
}

/// True of a reduction along axes.
pub(crate) fn is_reduction(kind: K) -> bool {
    matches!(
        kind,
        K::ReduceL1
            | K::ReduceL2
            | K::ReduceLogSum
            | K::ReduceLogSumExp
            | K::ReduceMax
            | K::ReduceMean
            | K::ReduceMin
            | K::ReduceProd
            | K::ReduceSum
            | K::ReduceSumSquare
    )
}

/// The axes that a reduction lists in its attribute or operand.
pub(crate) fn listed_axes(view: &NodeView<'_>) -> Option<Vec<i64>> {
    match view.schema.attr("axes") {
        Some(_) => view.int_list("axes").map(<[i64]>::to_vec),
        None => view.constant(1)?.small_ints(ampc_ir::views::MAX_INTS),
    }
}

/// The role of an operand that broadcasts to an image of rank `rank`.
fn broadcast(dims: &[u64], rank: usize) -> Option<Role> {
    if dims.len() <= rank && dims.iter().all(|&extent| extent == 1) {
        return Some(Role::Fixed);
    }
    if dims.len() == rank {
        return Some(Role::Image);
    }
    (dims.len() + 1 == rank && dims[1..].iter().all(|&extent| extent == 1)).then_some(Role::Channels)
}

/// The position, with channels last, of an axis of an image.
pub(crate) fn moved_axis(axis: i64, rank: usize) -> i64 {
    let rank = i64::try_from(rank).unwrap_or(i64::MAX);
    match if axis < 0 { axis + rank } else { axis } {
        0 => 0,
        1 => rank - 1,
        axis => axis - 1,
    }
}

/// [`moved_axis`] of each axis, sorted.
pub(crate) fn moved_axes(axes: &[i64], rank: usize) -> Vec<i64> {
    let mut moved: Vec<i64> = axes.iter().map(|&axis| moved_axis(axis, rank)).collect();
    moved.sort_unstable();
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_with_channels_last() {
        assert_eq!([0, 1, 2, 3].map(|axis| moved_axis(axis, 4)), [0, 3, 1, 2]);
        assert_eq!([-4, -3, -2, -1].map(|axis| moved_axis(axis, 4)), [0, 3, 1, 2]);
        assert_eq!([1, 4].map(|axis| moved_axis(axis, 5)), [4, 3]);
    }

    #[test]
    fn operands_that_broadcast() {
        assert_eq!(broadcast(&[1, 3, 1, 1], 4), Some(Role::Image));
        assert_eq!(broadcast(&[3, 1, 1], 4), Some(Role::Channels));
        assert_eq!(broadcast(&[1, 1], 4), Some(Role::Fixed));
        assert_eq!(broadcast(&[3], 4), None);
        assert_eq!(broadcast(&[3, 1, 2], 4), None);
    }
}
