//! The nodes that may be in a group along rows.

use super::super::expressions::is_known;
use super::super::fold::{Fold, fold_of};
use super::super::random::Dropped;
use crate::cuda::text::Elem;
use crate::elementwise::{Member, Read};
use crate::kernel::{Dims, Site};
use crate::layouts::is_reduction;
use ampc_ir::op::OpKind;
use ampc_ir::views::expression::{Function, Term};
use ampc_ir::views::norm::{LayerNormView, SoftmaxAxes, SoftmaxView};
use ampc_ir::views::reduce::ReduceView;
use ampc_ir::{DType, Value};

/// The computation of a node.
pub(super) enum Op {
    /// An element-wise scalar expression.
    Member(Member),
    /// A copy of the operand, broadcast to the dims of the result.
    Copy,
    /// A view of the operand with other dims.
    View,
    /// A reduction along rows.
    Fold(Fold),
    /// Sums along columns, or means.
    Sums { is_mean: bool },
    /// Softmax or LogSoftmax along rows.
    Softmax { is_log: bool },
    /// A normalization along rows, with a scale and optionally a bias.
    Norm { epsilon: f32, is_centered: bool },
    /// Dropout or PhiloxDropout.
    Dropout(Dropped),
}

/// A result of a node.
#[derive(Clone, Copy)]
pub(super) struct Made {
    pub(super) value: Value,
    pub(super) elem: Elem,
}

/// A node that may be in a group.
pub(super) struct RowNode {
    pub(super) op: Op,
    /// The operands that are read, each with dims that broadcast to those of the node.
    pub(super) reads: Vec<Read>,
    /// The dims of the node's iteration space: those of the operand for a reduction, otherwise those of the result.
    pub(super) dims: Dims,
    /// The results by position; absent results are `None`.
    pub(super) made: Vec<Option<Made>>,
    /// The index space `[rows, n]`, if the node determines it.
    pub(super) space: Option<[usize; 2]>,
}

impl RowNode {
    /// Reads a node; `None` if row groups do not support it.
    pub(super) fn read(site: &Site<'_>) -> Option<RowNode> {
        let mut made = Vec::new();
        for (j, value) in site.view.data().results().iter().enumerate() {
            let Some(value) = *value else {
                made.push(None);
                continue;
            };
            let elem = Elem::number(site.result_dtype(j).ok()?)?;
            made.push(Some(Made { value, elem }));
        }
        if made.iter().flatten().any(|made| made.elem == Elem::F64) {
            return None;
        }
        let dims = site.result_dims(0).ok()?;
        let node = |op, reads, dims, space| Some(RowNode { op, reads, dims, made, space });
        match site.kind() {
            OpKind::Expand => node(Op::Copy, vec![read(site, 0)?], dims, None),
            OpKind::Identity | OpKind::Reshape | OpKind::Flatten | OpKind::Squeeze | OpKind::Unsqueeze => {
                let whole = Read { dims: dims.clone(), ..read(site, 0)? };
                node(Op::View, vec![whole], dims, None)
            }
            OpKind::Dropout | OpKind::PhiloxDropout => {
                let Some(dropped) = Dropped::read(site).ok()? else {
                    return node(Op::View, vec![read(site, 0)?], dims, None);
                };
                let reads: Option<Vec<Read>> = dropped.operands.iter().map(|&(i, _)| read(site, i)).collect();
                let whole =
                    |(at, of): (usize, Read)| if at == 0 { of } else { Read { dims: Dims::new(), ..of } };
                let reads = reads?.into_iter().enumerate().map(whole).collect();
                node(Op::Dropout(dropped), reads, dims, None)
            }
            OpKind::Softmax | OpKind::LogSoftmax => {
                let first = match SoftmaxView::read(&site.view).ok()?.axes? {
                    SoftmaxAxes::One(axis) if axis + 1 == dims.len() => axis,
                    SoftmaxAxes::From(axis) => axis,
                    SoftmaxAxes::One(_) => return None,
                };
                let is_log = site.kind() == OpKind::LogSoftmax;
                let space = around(&dims, first);
                node(Op::Softmax { is_log }, vec![float(site, 0)?], dims, Some(space))
            }
            OpKind::LayerNormalization | OpKind::RMSNormalization | OpKind::SimplifiedLayerNormalization => {
                let view = LayerNormView::read(&site.view).ok()?;
                if view.stash == DType::F64 {
                    return None;
                }
                let is_centered = site.kind() == OpKind::LayerNormalization;
                let mut reads = vec![float(site, 0)?, float(site, 1)?];
                if is_centered && site.has(2) {
                    reads.push(float(site, 2)?);
                }
                let space = around(&dims, view.axis?);
                node(Op::Norm { epsilon: view.epsilon, is_centered }, reads, dims, Some(space))
            }
            _ => match reduction(site) {
                Some((op, dims, space)) => node(op, vec![float(site, 0)?], dims, Some(space)),
                None => {
                    let member = Member::read(site, |dtype| is_known(dtype) && dtype != DType::F64)?;
                    let reads = member.operands.iter().flatten().map(copy_of).collect();
                    let dims = member.dims.clone();
                    node(Op::Member(member), reads, dims, None)
                }
            },
        }
    }

    /// True if the node is a view, which is free outside of a group.
    pub(super) fn is_view(&self) -> bool {
        matches!(self.op, Op::View)
    }

    /// True if the elements are kept in registers rather than recomputed.
    pub(super) fn is_expensive(&self) -> bool {
        let is_long = |term: &Term| match term {
            Term::Apply(function, _) => !matches!(
                function,
                Function::Abs | Function::Neg | Function::Floor | Function::Ceil | Function::Round
            ),
            _ => false,
        };
        match &self.op {
            Op::Member(member) => member.expression.terms().iter().any(is_long),
            Op::Softmax { .. } | Op::Dropout(_) => true,
            _ => false,
        }
    }
}

fn copy_of(read: &Read) -> Read {
    Read { value: read.value, dtype: read.dtype, dims: read.dims.clone() }
}

/// Operand `i`.
fn read(site: &Site<'_>, i: usize) -> Option<Read> {
    let (value, dtype) = (site.view.operand(i)?, site.dtype(i).ok()?);
    Elem::number(dtype).filter(|&elem| elem != Elem::F64)?;
    Some(Read { value, dtype, dims: site.dims(i).ok()? })
}

/// Operand `i`, which must be a float that computes in f32.
fn float(site: &Site<'_>, i: usize) -> Option<Read> {
    read(site, i).filter(|read| Elem::float(read.dtype).is_some())
}

/// The number of elements before an axis, and from the axis on.
fn around(dims: &[usize], axis: usize) -> [usize; 2] {
    [dims[..axis].iter().product(), dims[axis..].iter().product()]
}

/// A reduction over all trailing or all leading axes: the operation, the dims of its operand, and the index space.
fn reduction(site: &Site<'_>) -> Option<(Op, Dims, [usize; 2])> {
    let kind = site.kind();
    if !is_reduction(kind) || matches!(kind, OpKind::ReduceLogSumExp) {
        return None;
    }
    let elem = Elem::float(site.dtype(0).ok()?)?;
    let axes = ReduceView::read(&site.view).ok()?.axes?;
    let dims = site.dims(0).ok()?;
    let long: Vec<usize> = (0..dims.len()).filter(|&axis| dims[axis] != 1).collect();
    let extent = |is_reduced: bool| -> usize {
        long.iter().filter(|&&axis| axes.has(axis) == is_reduced).map(|&axis| dims[axis]).product()
    };
    let first = long.iter().position(|&axis| axes.has(axis) != axes.has(*long.first().unwrap_or(&0)))?;
    let is_one_run = long[first..].iter().all(|&axis| axes.has(axis) == axes.has(long[first]));
    if !is_one_run {
        return None;
    }
    match (axes.has(long[first]), kind) {
        (true, _) => Some((Op::Fold(fold_of(kind, elem)?), dims.clone(), [extent(false), extent(true)])),
        (false, OpKind::ReduceSum | OpKind::ReduceMean) => {
            let op = Op::Sums { is_mean: kind == OpKind::ReduceMean };
            Some((op, dims.clone(), [extent(true), extent(false)]))
        }
        (false, _) => None,
    }
}
