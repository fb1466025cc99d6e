//! The weights of products with a constant factor: the numbers by which the elements of the other factor are multiplied
//! and added up to one element of the result.

use super::back::operand;
use super::operators::kind;
use crate::graph::flow;
use ampc_ir::op::OpKind;
use ampc_ir::views::linear::{Equation, GemmView};
use ampc_ir::views::{NodeView, constant_of};
use ampc_ir::{Module, Node};

/// The number of elements of the largest constant factor, statistic or divisor that is read.
pub(super) const MAX_WEIGHTS: u64 = 1 << 16;

/// The weights of a product with a constant factor: a line of weights for each element along the axes of the result that
/// the constant contributes.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Weights {
    /// The slot of the computed factor.
    pub(crate) of: usize,
    /// All weights, in the order of the constant.
    pub(super) numbers: Vec<f64>,
    /// True if a row of the constant is a line, not a column.
    along_rows: bool,
    columns: usize,
}

impl Weights {
    /// The number of lines.
    pub(crate) fn n_lines(&self) -> usize {
        if self.along_rows { self.numbers.len() / self.columns } else { self.columns }
    }

    /// The number of weights in a line.
    pub(crate) fn n_terms(&self) -> usize {
        self.numbers.len() / self.n_lines()
    }

    /// The weights of a line.
    pub(crate) fn line(&self, i: usize) -> impl Iterator<Item = f64> + Clone + '_ {
        let (start, step) = if self.along_rows { (i * self.columns, 1) } else { (i, self.columns) };
        self.numbers[start..].iter().step_by(step).take(self.n_terms()).copied()
    }

    /// All lines.
    pub(crate) fn lines(&self) -> impl Iterator<Item = impl Iterator<Item = f64> + Clone + '_> + '_ {
        (0..self.n_lines()).map(|i| self.line(i))
    }
}

/// The weights of MatMul, Gemm and Einsum with a constant matrix, and of Conv with a constant kernel; `None` for other
/// products, and for constants without elements or with more than [`MAX_WEIGHTS`].
pub(crate) fn weights(module: &Module, node: Node) -> Option<Weights> {
    let constant = |i: usize| constant_of(module, flow::behind_casts(module, operand(module, node, i)?));
    let (data, slot) = match (constant(0), constant(1)) {
        (None, Some(data)) => (data, 1),
        (Some(data), None) => (data, 0),
        _ => return None,
    };
    let view = NodeView::new(module, node)?;
    let shape = data.shape();
    let known = |n: u64| usize::try_from(n).ok();
    let dims: Vec<usize> =
        shape.dims()?.iter().map(|dim| dim.known().and_then(known)).collect::<Option<_>>()?;
    let mut scale = 1.0;
    let along_rows = match (kind(module, node)?, &dims[..]) {
        (OpKind::Conv, [_, ..]) if slot == 1 => true,
        // A row of the first factor, or a column of the second factor, makes one element.
        (OpKind::MatMul, [_, _]) => slot == 0,
        (OpKind::Gemm, [_, _]) => {
            let gemm = GemmView::read(&view);
            scale = f64::from(gemm.alpha);
            if slot == 0 { !gemm.trans_a } else { gemm.trans_b }
        }
        (OpKind::Einsum, [_, _]) => {
            let equation = Equation::read(&view).ok()?;
            let labels = equation.operands.get(slot).filter(|_| equation.operands.len() == 2)?;
            let [first, second] = labels[..] else { return None };
            match [first, second].map(|label| equation.result.contains(&label)) {
                [true, false] => true,
                [false, true] => false,
                _ => return None,
            }
        }
        _ => return None,
    };
    let numbers = data.small_floats(MAX_WEIGHTS).filter(|numbers| !numbers.is_empty())?;
    let rows = *dims.first()?;
    let columns = numbers.len().checked_div(rows).filter(|&columns| columns * rows == numbers.len())?;
    let numbers = if scale == 1.0 { numbers } else { numbers.into_iter().map(|n| scale * n).collect() };
    Some(Weights { of: 1 - slot, numbers, along_rows, columns })
}
