//! The axes of the labels of an Einsum, from which every backend plans its products.

use crate::kernel::Dims;
use ampc_ir::views::linear::{Equation, Label};

/// An axis: a letter, or an axis of the ellipsis, counted from the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Axis {
    Letter(u8),
    Hidden(usize),
}

/// The axes of an equation.
pub(crate) struct Axes {
    /// The axes of each operand.
    pub(crate) operands: Vec<Vec<Axis>>,
    /// The axes of the result, including axes with one element.
    pub(crate) result: Vec<Axis>,
    /// The extent of each axis, 1 if it is 1 in every operand.
    pub(crate) extents: Vec<(Axis, usize)>,
}

impl Axes {
    /// The axes of an equation whose operands have these dims.
    pub(crate) fn of(equation: &Equation, dims: &[Dims]) -> Axes {
        let operands: Vec<Vec<Axis>> =
            equation.operands.iter().zip(dims).map(|(labels, dims)| axes(labels, dims.len())).collect();
        let mut extents: Vec<(Axis, usize)> = Vec::new();
        for (axis, &dim) in operands.iter().flatten().zip(dims.iter().flatten()) {
            match extents.iter_mut().find(|(a, _)| a == axis) {
                Some((_, extent)) if *extent == 1 => *extent = dim,
                Some(_) => {}
                None => extents.push((*axis, dim)),
            }
        }
        let hidden = operands.iter().flatten().filter_map(|axis| match axis {
            Axis::Hidden(i) => Some(i + 1),
            Axis::Letter(_) => None,
        });
        let hidden = hidden.max().unwrap_or(0);
        let letters = equation.result.iter().filter(|&&label| label != Label::Ellipsis).count();
        let has_ellipsis = letters < equation.result.len();
        let result = axes(&equation.result, letters + if has_ellipsis { hidden } else { 0 });
        Axes { operands, result, extents }
    }
}

/// The axes of the labels of a term.
fn axes(labels: &[Label], rank: usize) -> Vec<Axis> {
    let hidden = (rank + 1).saturating_sub(labels.len());
    let of = |label: &Label| match label {
        Label::Letter(letter) => vec![Axis::Letter(*letter)],
        Label::Ellipsis => (0..hidden).rev().map(Axis::Hidden).collect(),
    };
    labels.iter().flat_map(of).collect()
}

/// The axes of an operand with more than one element, each once, with their strides. The stride of a repeated axis is
/// that of the diagonal; axes with one element are broadcast.
pub(crate) fn steps(axes: &[Axis], dims: &[usize]) -> Vec<(Axis, usize)> {
    let mut steps: Vec<(Axis, usize)> = Vec::new();
    let mut next = 1usize;
    for (&axis, &dim) in axes.iter().zip(dims).rev() {
        if dim != 1 {
            match steps.iter_mut().find(|(a, _)| *a == axis) {
                Some((_, step)) => *step += next,
                None => steps.push((axis, next)),
            }
        }
        next = next.saturating_mul(dim);
    }
    steps.reverse();
    steps
}
