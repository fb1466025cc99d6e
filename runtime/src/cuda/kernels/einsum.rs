//! Sums of products of labelled axes: Einsum.
//!
//! Operands are contracted pairwise, from the left, as matrix products. *Batch labels* are in both operands and in
//! the result or a later operand. *Contracted labels* are only in both operands. *Free labels* are in one operand,
//! and are the rows and columns. An operand with another axis order is copied, and summed along labels that are
//! neither in another operand nor in the result.

use super::fold::{Fold, wide_float};
use super::matrix::Contraction;
use super::reduce::Reduction;
use super::stage::{Place, Scratch, Stage, converted, staged};
use super::{Maker, Prepare};
use crate::cuda::text::{Elem, Steps, Walk};
use crate::einsum::{self, Axes, Axis};
use crate::kernel::{Dims, Prepared, Result};
use ampc_ir::op::OpKind;
use ampc_ir::views::linear::Equation;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    match kind {
        OpKind::Einsum => Some(prepare),
        _ => None,
    }
}

/// A strided tensor: its axes with more than one element, each once, and their strides.
#[derive(Clone, Debug)]
struct Tensor {
    place: Place,
    elem: Elem,
    steps: Vec<(Axis, i64)>,
}

impl Tensor {
    fn has(&self, axis: Axis) -> bool {
        self.steps.iter().any(|&(a, _)| a == axis)
    }

    fn along(&self, axes: &[Axis]) -> Steps {
        let step = |&axis: &Axis| self.steps.iter().find(|&&(a, _)| a == axis).map_or(0, |&(_, step)| step);
        Steps { first: 0, steps: axes.iter().map(step).collect() }
    }
}

struct Plan<'a> {
    maker: &'a Maker<'a>,
    extents: Vec<(Axis, usize)>,
    /// The accumulator type.
    acc: Elem,
    scratch: Scratch,
    stages: Vec<Stage>,
}

/// The axes of an operand with more than one element, and their strides.
fn steps_of(axes: &[Axis], dims: &[usize]) -> Vec<(Axis, i64)> {
    let signed = |(axis, step)| (axis, super::signed(step));
    einsum::steps(axes, dims).into_iter().map(signed).collect()
}

fn prepare(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let equation = Equation::read(&site.view)?;
    let elem = maker.number(0)?;
    let acc = match elem {
        Elem::Bool => return Err(site.no_kernel()),
        elem if elem.is_float() => wide_float(elem),
        elem => elem,
    };
    let dims = (0..equation.operands.len()).map(|i| site.dims(i)).collect::<Result<Vec<_>>>()?;
    let Axes { operands: named, mut result, extents } = Axes::of(&equation, &dims);
    let (scratch, stages) = (Scratch::default(), Vec::new());
    let mut plan = Plan { maker, extents, acc, scratch, stages };
    result.retain(|&axis| plan.extent(axis) != 1);
    let operand = |i: usize| Tensor { place: Place::operand(i), elem, steps: steps_of(&named[i], &dims[i]) };
    let to = (Place::result(0), elem);
    let mut left = operand(0);
    for i in 1..named.len() {
        let is_kept =
            |axis: Axis| result.contains(&axis) || named[i + 1..].iter().flatten().any(|&a| a == axis);
        let last = (i + 1 == named.len()).then_some(to);
        let Some(made) = plan.pair(&left, &operand(i), &is_kept, &result, last)? else {
            return Ok(staged(plan.stages, &plan.scratch));
        };
        left = made;
    }
    let reduced: Vec<Axis> = left.steps.iter().map(|&(a, _)| a).filter(|a| !result.contains(a)).collect();
    plan.copied(&left, &result, &reduced, to)?;
    Ok(staged(plan.stages, &plan.scratch))
}

impl Plan<'_> {
    fn extent(&self, axis: Axis) -> usize {
        self.extents.iter().find(|(a, _)| *a == axis).map_or(1, |&(_, extent)| extent)
    }

    fn dims(&self, axes: &[Axis]) -> Dims {
        axes.iter().map(|&axis| self.extent(axis)).collect()
    }

    fn size(&self, axes: &[Axis]) -> usize {
        self.dims(axes).iter().product()
    }

    /// Copies a tensor to `to` with its axes in the order `kept`, summed along `reduced`.
    fn copied(&mut self, from: &Tensor, kept: &[Axis], reduced: &[Axis], to: (Place, Elem)) -> Result<()> {
        let order = [kept, reduced].concat();
        let walk = Walk::new(&self.dims(&order), vec![from.along(&order)]);
        let source = (from.place, from.elem);
        if reduced.is_empty() {
            self.stages.push(converted(self.maker, &walk, source, to)?);
            return Ok(());
        }
        let part = (self.scratch.part(walk.len() * from.elem.bytes()), from.elem);
        self.stages.push(converted(self.maker, &walk, source, part)?);
        let wraps = match self.acc {
            Elem::I64 => Elem::U64,
            Elem::I32 | Elem::I16 | Elem::I8 | Elem::U16 | Elem::U8 => Elem::U32,
            acc => acc,
        };
        let reduction = Reduction {
            dims: &[self.size(kept), self.size(reduced)],
            is_reduced: &|axis| axis == 1,
            from: part,
            shift: None,
            to,
        };
        let sum = Fold::sum(wraps, "x", "acc");
        self.stages.extend(reduction.stages(self.maker, &sum, &mut self.scratch)?);
        Ok(())
    }

    /// A dense copy of a tensor with its axes in the order `kept`, in the type `elem`, summed along `reduced`.
    fn packed(&mut self, from: &Tensor, kept: &[Axis], reduced: &[Axis], elem: Elem) -> Result<Place> {
        let walk = Walk::new(&self.dims(kept), vec![from.along(kept)]);
        if reduced.is_empty() && walk.is_plain(0) && from.elem == elem {
            return Ok(from.place);
        }
        let place = self.scratch.part(self.size(kept) * elem.bytes());
        self.copied(from, kept, reduced, (place, elem))?;
        Ok(place)
    }

    /// Contracts two tensors; returns nothing if the product writes the result.
    fn pair(
        &mut self,
        a: &Tensor,
        b: &Tensor,
        is_kept: &dyn Fn(Axis) -> bool,
        result: &[Axis],
        last: Option<(Place, Elem)>,
    ) -> Result<Option<Tensor>> {
        let place = |axis: &Axis| result.iter().position(|r| r == axis).unwrap_or(usize::MAX);
        let choose = |of: &Tensor, other: &Tensor, shared: bool, kept: bool| {
            let mut axes: Vec<Axis> = of.steps.iter().map(|&(axis, _)| axis).collect();
            axes.retain(|&axis| other.has(axis) == shared && is_kept(axis) == kept);
            axes.sort_by_key(place);
            axes
        };
        // Rows come before columns in the result.
        let (rows, columns) = (choose(a, b, false, true), choose(b, a, false, true));
        if let (Some(row), Some(column)) = (rows.first(), columns.first())
            && place(row) > place(column)
        {
            return self.pair(b, a, is_kept, result, last);
        }
        let (batch, inner) = (choose(a, b, true, true), choose(a, b, true, false));
        let alone = [choose(a, b, false, false), choose(b, a, false, false)];
        let elem = if a.elem == b.elem && alone.iter().all(Vec::is_empty) { a.elem } else { self.acc };
        let of_a = self.packed(a, &[&batch[..], &rows, &inner].concat(), &alone[0], elem)?;
        let of_b = self.packed(b, &[&batch[..], &inner, &columns].concat(), &alone[1], elem)?;
        let order = [&batch[..], &rows, &columns].concat();
        let to = match last.filter(|_| order == result) {
            Some(to) => to,
            None => (self.scratch.part(self.size(&order) * self.acc.bytes()), self.acc),
        };
        let one = || Steps { first: 0, steps: vec![1] };
        let product = Contraction {
            sizes: [self.size(&rows), self.size(&columns), self.size(&inner)],
            transposed: [false; 2],
            alpha: 1.0,
            batch: Walk::new(&[self.size(&batch)], vec![one(), one()]),
            elem,
            from: [of_a, of_b],
            to,
        };
        self.stages.extend(product.stages(self.maker, &mut self.scratch)?);
        if last.is_some() && order == result {
            return Ok(None);
        }
        let dims = self.dims(&order);
        Ok(Some(Tensor { place: to.0, elem: to.1, steps: steps_of(&order, &dims) }))
    }
}
