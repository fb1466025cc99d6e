//! Products with preceding transposes, and a following bias and activation:
//!
//! ```text
//! %t = Transpose(%w) {perm=[1, 0]}     %p = MatMul(%x, %t)     %s = Add(%p, %b)     %y = Relu(%s)
//! ```
//!
//! A Transpose of the last two axes is an attribute of the product. The bias is a row that is added to each row of
//! the product. The activation is a ReLU, or for 16-bit results a GELU in the tanh approximation: cuBLASLt does not
//! document the accuracy of its tanh, so f32 does not use it. A GELU by erf is a separate kernel. A Reshape may
//! precede the activation. Products with several matrices in the second operand have neither bias nor activation.

use super::super::Maker;
use super::super::linear::{broadcast, split};
use super::super::matrix::Contraction;
use super::super::stage::{Place, Scratch, staged};
use super::{Activation, Found, Nodes, activation_of, operand_of};
use crate::backend::GroupSite;
use crate::cuda::launch::{operand, queue, result, scratch};
use crate::cuda::products::{Places, Shape};
use crate::cuda::text::{Elem, Steps, Walk};
use crate::kernel::{Dims, Prepared, Result, Site};
use ampc_ir::Value;
use ampc_ir::op::OpKind as K;
use ampc_ir::views::TransposeView;
use ampc_ir::views::linear::GemmView;

/// A product.
pub(super) struct Group {
    pub(super) found: Found,
    operands: [Value; 2],
    bias: Option<Value>,
    /// The product of the last batch axis; `batch` has all batch axes.
    shape: Shape,
    batch: Option<Walk>,
}

impl Group {
    /// Matches the group of the product at `anchor`.
    pub(super) fn read(nodes: &Nodes<'_>, anchor: usize, with_epilogue: bool) -> Option<Group> {
        let site = &nodes.sites[anchor];
        let elem = Elem::float(site.dtype(0).ok()?)?;
        if Elem::float(site.dtype(1).ok()?)? != elem {
            return None;
        }
        let mut passed = vec![anchor];
        let mut operands = [site.view.operand(0)?, site.view.operand(1)?];
        let mut transposed = [false; 2];
        for i in 0..2 {
            if let Some(maker) = nodes.maker(anchor, i, &[K::Transpose]).filter(|&at| turns(&nodes.sites[at]))
            {
                passed.push(maker);
                (operands[i], transposed[i]) = (nodes.sites[maker].view.operand(0)?, true);
            }
        }
        let (a, b) = (site.dims(0).ok()?, site.dims(1).ok()?);
        let (shape, batch, mut bias) = match site.kind() {
            K::Gemm => {
                let (shape, bias) = gemm(site, elem, transposed, [&a, &b])?;
                (shape, None, bias)
            }
            _ => {
                let (shape, batch) = matmul(elem, transposed, [&a, &b])?;
                (shape, batch, None)
            }
        };
        let Shape { m, n, k, .. } = shape;
        if [m, n, k].contains(&0) || batch.as_ref().is_some_and(|batch| batch.len() == 0) {
            return None;
        }
        let (mut last, mut activation) = (anchor, None);
        if with_epilogue && batch.is_none() {
            if bias.is_none()
                && let Some((add, value)) = added_row(nodes, last, n)
            {
                (last, bias) = (add, Some(value));
                passed.push(add);
            }
            if let Some((through, found, row)) = activated(nodes, last, elem, bias.is_none().then_some(n)) {
                passed.extend(&through);
                (activation, bias) = (Some(found), bias.or(row));
                last = *through.last()?;
            }
        }
        passed.sort_unstable();
        let found = Found { nodes: passed, result: nodes.result(last)?, rounds_once: last != anchor };
        let shape = Shape { has_bias: bias.is_some(), activation, ..shape };
        Some(Group { found, operands, bias, shape, batch })
    }

    /// The kernel of the group.
    ///
    /// # Errors
    /// If cuBLASLt has no algorithm.
    pub(super) fn prepare(self, maker: &Maker<'_>, group: &GroupSite<'_>) -> Result<Prepared> {
        let operands = [operand_of(group, self.operands[0])?, operand_of(group, self.operands[1])?];
        let Shape { m, n, k, transposed, elem, .. } = self.shape;
        if let Some(batch) = self.batch {
            let from = operands.map(Place::operand);
            let to = (Place::result(0), elem);
            let product = Contraction { sizes: [m, n, k], transposed, alpha: 1.0, batch, elem, from, to };
            let mut scratch = Scratch::default();
            return Ok(staged(product.stages(maker, &mut scratch)?, &scratch));
        }
        let bias = self.bias.map(|bias| operand_of(group, bias)).transpose()?;
        let product = maker.shared.products.product(&self.shape)?;
        let workspace = product.workspace();
        let prepared = Prepared::new(move |io| {
            let bias = bias.map_or(Ok(0), |bias| operand(io, bias))?;
            let [a, b] = [operand(io, operands[0])?, operand(io, operands[1])?];
            let places = Places { a, b, bias, to: result(io, 0)?, workspace: scratch(io)? };
            product.launch(queue(io)?, &places)
        });
        Ok(prepared.scratch(workspace))
    }
}

/// True if a Transpose exchanges the last two axes and keeps the others.
fn turns(site: &Site<'_>) -> bool {
    let read = || {
        let rank = site.dims(0).ok()?.len();
        let perm = TransposeView::read(&site.view).perm(rank).ok()?;
        let first = rank.checked_sub(2)?;
        Some(perm.into_iter().eq((0..first).chain([first + 1, first])))
    };
    read().unwrap_or(false)
}

/// An unbatched product of matrices of `elem`.
fn single(elem: Elem, [m, n, k]: [usize; 3], transposed: [bool; 2]) -> Shape {
    Shape {
        m,
        n,
        k,
        transposed,
        batch: 1,
        strides: [0, 0],
        alpha: 1.0,
        elem,
        to: elem,
        has_bias: false,
        activation: None,
    }
}

/// The product of a MatMul with these dims, and the batch axes unless one call computes all rows.
fn matmul(elem: Elem, transposed: [bool; 2], [a, b]: [&Dims; 2]) -> Option<(Shape, Option<Walk>)> {
    if a.len() < 2 || b.len() < 2 {
        return None;
    }
    let ((batch_a, [m, k]), (batch_b, [rows, n])) = (split(a), split(b));
    if k != rows {
        return None;
    }
    let count = |batch: &[usize]| batch.iter().product::<usize>();
    let is_single = count(batch_b) == 1 && batch_b.len() <= batch_a.len();
    if is_single && (!transposed[0] || count(batch_a) == 1) {
        return Some((single(elem, [m * count(batch_a), n, k], transposed), None));
    }
    let dims = broadcast(batch_a, batch_b)?;
    let steps = vec![Steps::broadcast(batch_a, &dims)?, Steps::broadcast(batch_b, &dims)?];
    Some((single(elem, [m, n, k], transposed), Some(Walk::new(&dims, steps))))
}

/// The product of a Gemm, and its bias; `None` if the addend is not a row.
fn gemm(
    site: &Site<'_>,
    elem: Elem,
    folded: [bool; 2],
    [a, b]: [&Dims; 2],
) -> Option<(Shape, Option<Value>)> {
    let view = GemmView::read(&site.view);
    let [rows, columns] = <[usize; 2]>::try_from(&a[..]).ok()?;
    let [m, n] = <[usize; 2]>::try_from(&site.result_dims(0).ok()?[..]).ok()?;
    let k = if view.trans_a { rows } else { columns };
    let bias = match site.has(2) && view.beta != 0.0 {
        true if view.beta == 1.0 => Some(row(site, 2, n)?),
        true => return None,
        false => None,
    };
    let transposed = [view.trans_a != folded[0], view.trans_b != folded[1]];
    (b.len() == 2).then_some((Shape { alpha: view.alpha, ..single(elem, [m, n, k], transposed) }, bias))
}

/// Operand `i` of a node, if it is a row: `n` > 1 elements along the last axis.
fn row(site: &Site<'_>, i: usize, n: usize) -> Option<Value> {
    let dims = site.dims(i).ok()?;
    let is_row = n > 1 && dims.last() == Some(&n) && dims.iter().product::<usize>() == n;
    let fits = dims.len() <= site.result_dims(0).ok()?.len();
    site.view.operand(i).filter(|_| is_row && fits)
}

/// The Add that is the only reader of a product, and the row of `n` elements that it adds.
fn added_row(nodes: &Nodes<'_>, product: usize, n: usize) -> Option<(usize, Value)> {
    let (add, value) = (nodes.reader(product)?, nodes.result(product));
    let site = &nodes.sites[add];
    if site.kind() != K::Add {
        return None;
    }
    let other = if site.view.operand(0) == value { 1 } else { 0 };
    // Not every version of Add broadcasts to the last axis.
    let is_whole = site.dims(1 - other).ok()? == site.result_dims(0).ok()? && site.view.since() >= 7;
    Some((add, row(site, other, n).filter(|_| is_whole)?))
}

/// The nodes up to an activation that is the only reader, the activation, and the row that is added before.
fn activated(
    nodes: &Nodes<'_>,
    at: usize,
    elem: Elem,
    row_of: Option<usize>,
) -> Option<(Vec<usize>, Activation, Option<Value>)> {
    let (mut through, mut before) = (vec![nodes.reader(at)?], at);
    if nodes.sites[through[0]].kind() == K::Reshape
        && nodes.sites[through[0]].view.operand(0) == nodes.result(at)
    {
        before = through[0];
        through.push(nodes.reader(before)?);
    }
    let last = &nodes.sites[*through.last()?];
    let (activation, row) = match (last.kind(), last.has(1)) {
        (K::ContribFastGelu, true) => (Activation::GeluTanh, Some(row(last, 1, row_of?)?)),
        _ => (activation_of(last)?, None),
    };
    // A Reshape changes the rows.
    let can_be_epilogue = (row.is_none() || through.len() == 1)
        && last.view.operand(0) == nodes.result(before)
        && last.dims(0).ok()? == last.result_dims(0).ok()?
        && (activation == Activation::Relu || elem != Elem::F32);
    can_be_epilogue.then_some((through, activation, row))
}
