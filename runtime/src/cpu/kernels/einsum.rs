//! Sums of products of labelled axes: Einsum.
//!
//! Operands are contracted two at a time, from the left. Labels that only one of the two has, and that nothing later
//! needs, are summed over first; of the others, those of both and of the result number the products of matrices, those
//! of both alone are summed over, and the rest are rows and columns. A matrix that the steps of its operand cannot
//! describe is copied first.

use super::broadcast::{Walk, zip};
use super::fold::{Sum, fold_run};
use super::lanes::{Real, for_int, for_real, widened};
use super::linear::{Matrix, Multiply, multiply_all, write_through};
use super::parallel::{PIECE, pieces};
use crate::einsum::{self, Axes, Axis};
use crate::kernel::{Dims, KernelError, Prepare, Prepared, Result, Site};
use ampc_ir::op::OpKind;
use ampc_ir::views::linear::Equation;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    match kind {
        OpKind::Einsum => Some(prepare),
        _ => None,
    }
}

/// Axes of more than one element with the steps between its elements, each once.
type Steps = Vec<(Axis, usize)>;

fn step(steps: &Steps, axis: Axis) -> Option<usize> {
    steps.iter().find(|(a, _)| *a == axis).map(|&(_, step)| step)
}

/// The place of elements: in an operand or, from an offset on, in intermediate results.
#[derive(Clone, Copy, Debug)]
enum Source {
    Operand(usize),
    Room(usize),
}

/// How elements are copied, and some summed over.
#[derive(Debug)]
struct Copied {
    from: Source,
    kept: Walk,
    gone: Walk,
    /// The offset of the copy.
    at: usize,
}

#[derive(Debug)]
enum Combination {
    /// Elementwise, with broadcasting.
    Elements(Walk),
    /// Products of matrices of these sizes, with steps from row to row and column to column.
    Matrices { sizes: (usize, usize, usize), steps: [(usize, usize); 2], batch: Walk },
}

/// Two operands become one.
#[derive(Debug)]
struct Contraction {
    copies: Vec<Copied>,
    sources: [Source; 2],
    combination: Combination,
    /// The offset of the result, which has so many elements; `None` if it is the result of the node.
    at: Option<usize>,
    len: usize,
}

struct Plan {
    extents: Vec<(Axis, usize)>,
    contractions: Vec<Contraction>,
    /// The last operand, which is copied to the result.
    last: Option<Copied>,
    /// Elements of each operand.
    lens: Vec<usize>,
    /// Elements of the result.
    result: usize,
    /// Elements that are computed on the way.
    room: usize,
}

fn prepare(site: &Site<'_>) -> Result<Prepared> {
    let equation = Equation::read(&site.view)?;
    let dims = (0..equation.operands.len()).map(|i| site.dims(i)).collect::<Result<Vec<_>>>()?;
    let plan = Plan::new(&equation, &dims)?;
    if site.dtype(0)?.is_integer() {
        return Ok(for_int!(site.dtype(0)?, site, T => {
            let bytes = plan.bytes::<T>(plan.room)?;
            Prepared::new(move |io| {
                let operands = (0..plan.lens.len()).map(|i| io.slice::<T>(i)).collect::<Result<Vec<_>>>()?;
                plan.run(&operands, io.scratch(), io.out::<T>(0)?);
                Ok(())
            })
            .scratch(bytes)
        }));
    }
    Ok(for_real!(site.dtype(0)?, site, T => reals::<T, <T as Real>::Wide>(plan)?))
}

fn reals<T: Real<Wide = W>, W: Multiply + super::lanes::Wide>(plan: Plan) -> Result<Prepared> {
    let own = if T::IS_WIDE { 0 } else { plan.lens.iter().sum::<usize>() + plan.result };
    let bytes = plan.bytes::<W>(plan.room.saturating_add(own))?;
    Ok(Prepared::new(move |io| {
        let mut room = io.scratch::<W>();
        let mut operands: Vec<&[W]> = Vec::with_capacity(plan.lens.len());
        for (i, &len) in plan.lens.iter().enumerate() {
            let (wide, rest) = room.split_at_mut(if T::IS_WIDE { 0 } else { len });
            room = rest;
            operands.push(widened(io.slice::<T>(i)?, wide));
        }
        let (room, rest) = room.split_at_mut(plan.room);
        write_through::<T>(io.out(0)?, rest, |to| plan.run(&operands, room, to));
        Ok(())
    })
    .scratch(bytes))
}

impl Plan {
    fn new(equation: &Equation, dims: &[Dims]) -> Result<Plan> {
        let Axes { operands: named, mut result, extents } = Axes::of(equation, dims);
        let mut plan = Plan {
            extents,
            contractions: Vec::new(),
            last: None,
            lens: dims.iter().map(|d| d.iter().product()).collect(),
            result: 0,
            room: 0,
        };
        plan.result = plan.size(&result)?;
        result.retain(|&axis| plan.extent(axis) != 1);
        plan.contract(&named, dims, &result)?;
        Ok(plan)
    }

    fn contract(&mut self, named: &[Vec<Axis>], dims: &[Dims], result: &[Axis]) -> Result<()> {
        let mut left = Source::Operand(0);
        let mut steps = einsum::steps(&named[0], &dims[0]);
        for i in 1..named.len() {
            let other = einsum::steps(&named[i], &dims[i]);
            let is_kept =
                |axis: Axis| result.contains(&axis) || named[i + 1..].iter().flatten().any(|&a| a == axis);
            (left, steps) = self.pair(
                (left, &steps),
                (Source::Operand(i), &other),
                is_kept,
                result,
                i + 1 == named.len(),
            )?;
        }
        let is_done = matches!(self.contractions.last(), Some(Contraction { at: None, .. }));
        if !is_done {
            let gone: Vec<Axis> = steps.iter().map(|&(a, _)| a).filter(|a| !result.contains(a)).collect();
            self.last = Some(Copied {
                from: left,
                kept: self.walk(result, &[&steps]),
                gone: self.walk(&gone, &[&steps]),
                at: 0,
            });
        }
        Ok(())
    }

    /// Contracts two operands.
    fn pair(
        &mut self,
        (a, a_steps): (Source, &Steps),
        (b, b_steps): (Source, &Steps),
        is_kept: impl Fn(Axis) -> bool,
        result: &[Axis],
        is_last: bool,
    ) -> Result<(Source, Steps)> {
        let place = |axis: &Axis| result.iter().position(|r| r == axis).unwrap_or(usize::MAX);
        let choose = |steps: &Steps, other: &Steps, shared: bool, kept: bool| {
            let mut axes: Vec<Axis> = steps.iter().map(|&(axis, _)| axis).collect();
            axes.retain(|&axis| step(other, axis).is_some() == shared && is_kept(axis) == kept);
            axes
        };
        let sorted = |mut axes: Vec<Axis>| {
            axes.sort_by_key(place);
            axes
        };
        // Rows come before columns in the result.
        let rows = sorted(choose(a_steps, b_steps, false, true));
        let columns = sorted(choose(b_steps, a_steps, false, true));
        if let (Some(row), Some(column)) = (rows.first(), columns.first())
            && place(row) > place(column)
        {
            return self.pair((b, b_steps), (a, a_steps), is_kept, result, is_last);
        }
        let batch = sorted(choose(a_steps, b_steps, true, true));
        let inner = choose(a_steps, b_steps, true, false);
        let alone = [choose(a_steps, b_steps, false, false), choose(b_steps, a_steps, false, false)];
        let mut copies = Vec::new();
        let mut sources = [a, b];
        let mut steps = [a_steps.clone(), b_steps.clone()];
        let orders = [[&batch, &rows, &inner], [&batch, &inner, &columns]];
        for (i, order) in orders.iter().enumerate() {
            let is_matrix =
                inner.is_empty() || order[1..].iter().all(|axes| self.joined(axes, &steps[i]).is_some());
            if !is_matrix || !alone[i].is_empty() {
                let all: Vec<Axis> = order.iter().flat_map(|axes| axes.iter().copied()).collect();
                let (copy, packed) = self.packed((sources[i], &steps[i]), &all, &alone[i])?;
                (sources[i], steps[i]) = (Source::Room(copy.at), packed);
                copies.push(copy);
            }
        }
        let order: Vec<Axis> = [&batch[..], &rows, &columns].concat();
        let combination = if inner.is_empty() {
            Combination::Elements(self.walk(&order, &[&steps[0], &steps[1]]))
        } else {
            self.matrices(&batch, [&rows, &columns, &inner], &steps)?
        };
        let len = self.size(&order)?;
        let (at, made) = if is_last && order == result {
            (None, Steps::new())
        } else {
            let (at, made) = self.make(&order)?;
            (Some(at), made)
        };
        self.contractions.push(Contraction { copies, sources, combination, at, len });
        Ok((Source::Room(at.unwrap_or(0)), made))
    }

    /// A copy of an operand whose axes are `kept`, in this order, one after the other; it is summed along `gone`.
    fn packed(
        &mut self,
        (from, steps): (Source, &Steps),
        kept: &[Axis],
        gone: &[Axis],
    ) -> Result<(Copied, Steps)> {
        let (at, packed) = self.make(kept)?;
        let (kept, gone) = (self.walk(kept, &[steps]), self.walk(gone, &[steps]));
        Ok((Copied { from, kept, gone, at }, packed))
    }

    /// A product of matrices for each element of `batch`, of operands with such steps.
    fn matrices(
        &self,
        batch: &[Axis],
        [rows, columns, inner]: [&[Axis]; 3],
        steps: &[Steps; 2],
    ) -> Result<Combination> {
        let joined = |axes: &[Axis], i: usize| self.joined(axes, &steps[i]).unwrap_or(0);
        Ok(Combination::Matrices {
            sizes: (self.size(rows)?, self.size(columns)?, self.size(inner)?),
            steps: [(joined(rows, 0), joined(inner, 0)), (joined(inner, 1), joined(columns, 1))],
            batch: self.walk(batch, &[&steps[0], &steps[1]]),
        })
    }

    fn extent(&self, axis: Axis) -> usize {
        self.extents.iter().find(|(a, _)| *a == axis).map_or(1, |&(_, extent)| extent)
    }

    fn size(&self, axes: &[Axis]) -> Result<usize> {
        let size = axes.iter().try_fold(1usize, |n, &axis| n.checked_mul(self.extent(axis)));
        size.ok_or_else(too_large)
    }

    /// Room for a tensor with these axes.
    fn make(&mut self, axes: &[Axis]) -> Result<(usize, Steps)> {
        let at = self.room;
        self.room = at.checked_add(self.size(axes)?).ok_or_else(too_large)?;
        let mut steps = Steps::new();
        let mut next = 1;
        for &axis in axes.iter().rev() {
            steps.push((axis, next));
            next *= self.extent(axis);
        }
        steps.reverse();
        Ok((at, steps))
    }

    /// The walk along axes over tensors with these steps.
    fn walk(&self, axes: &[Axis], tensors: &[&Steps]) -> Walk {
        let dims: Dims = axes.iter().map(|&axis| self.extent(axis)).collect();
        let along = |steps: &Steps| axes.iter().map(|&axis| step(steps, axis).unwrap_or(0)).collect();
        Walk::of_steps(&dims, &tensors.iter().map(|steps| along(steps)).collect::<Vec<Dims>>())
    }

    /// The step along axes that are like one.
    fn joined(&self, axes: &[Axis], steps: &Steps) -> Option<usize> {
        let walk = self.walk(axes, &[steps]);
        (walk.dims.len() == 1).then(|| walk.row_stride(0))
    }

    fn bytes<W>(&self, elements: usize) -> Result<usize> {
        elements.checked_mul(size_of::<W>()).ok_or_else(too_large)
    }

    fn run<W: Multiply + Send + Sync>(&self, operands: &[&[W]], room: &mut [W], to: &mut [W]) {
        for contraction in &self.contractions {
            for copied in &contraction.copies {
                let (before, after) = room.split_at_mut(copied.at);
                copied.run(operands, before, &mut after[..copied.kept.len()]);
            }
            // What is read was made before what is written.
            let (before, after) = room.split_at_mut(contraction.at.unwrap_or(self.room));
            let to = if contraction.at.is_some() { &mut after[..contraction.len] } else { &mut *to };
            let [a, b] = contraction.sources.map(|source| source.elements(operands, before));
            match &contraction.combination {
                Combination::Elements(walk) => zip(walk, a, b, to, W::times),
                Combination::Matrices { sizes, steps: [sa, sb], batch } => {
                    let a = Matrix { elements: a, row: sa.0, column: sa.1 };
                    let b = Matrix { elements: b, row: sb.0, column: sb.1 };
                    multiply_all(*sizes, a, b, batch, to);
                }
            }
        }
        if let Some(copied) = &self.last {
            copied.run(operands, room, to);
        }
    }
}

fn too_large() -> KernelError {
    KernelError::Limit { limit: "what can be counted".into(), found: "more elements on the way".into() }
}

impl Source {
    fn elements<'a, W>(self, operands: &[&'a [W]], room: &'a [W]) -> &'a [W] {
        match self {
            Source::Operand(i) => operands[i],
            Source::Room(at) => &room[at..],
        }
    }
}

impl Copied {
    fn run<W: Multiply + Send + Sync>(&self, operands: &[&[W]], room: &[W], to: &mut [W]) {
        let from = self.from.elements(operands, room);
        let step = self.kept.row_stride(0);
        let is_copy = self.gone.len() == 1;
        let piece = (PIECE / self.gone.len().max(1)).max(1);
        pieces(to, piece, |start, to| {
            self.kept.rows(start, start + to.len(), |at, n, begin| {
                let to = &mut to[at - start..at - start + n];
                for (i, y) in to.iter_mut().enumerate() {
                    let at = begin[0] + i * step;
                    *y = if is_copy { from[at] } else { self.sum(&from[at.min(from.len())..]) };
                }
            });
        });
    }

    /// The sum along the axes that go.
    fn sum<W: Multiply>(&self, from: &[W]) -> W {
        let mut block = [W::default(); 256];
        let (mut sum, step) = (W::default(), self.gone.row_stride(0));
        self.gone.rows(0, self.gone.len(), |_, n, begin| {
            if step == 1 {
                sum = sum.plus(fold_run(Sum, &from[begin[0]..begin[0] + n], W::default()));
                return;
            }
            for start in (0..n).step_by(block.len()) {
                let block = &mut block[..(n - start).min(256)];
                for (i, y) in block.iter_mut().enumerate() {
                    *y = from[begin[0] + (start + i) * step];
                }
                sum = sum.plus(fold_run(Sum, block, W::default()));
            }
        });
        sum
    }
}
