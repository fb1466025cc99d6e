//! MatMul and Gemm.

use super::fold::wide_float;
use super::matrix::{Contraction, with_addend};
use super::stage::{Place, Scratch, staged};
use super::{Maker, PART, Prepare};
use crate::cuda::launch::{Kernel, THREADS, blocks_for, operand, operand_or_none, queue, result, scratch};
use crate::cuda::products::{Places, Shape};
use crate::cuda::text::{Elem, HEAD, Steps, Walk, f32_text};
use crate::kernel::{Dims, Prepared, Result};
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use ampc_ir::views::linear::GemmView;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::MatMul => matmul,
        OpKind::Gemm => gemm,
        _ => return None,
    })
}

fn matmul(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let elem = maker.number(0)?;
    if maker.number(1)? != elem {
        return Err(site.no_kernel());
    }
    let (mut a, mut b): (Dims, Dims) = (site.dims(0)?, site.dims(1)?);
    if a.is_empty() || b.is_empty() {
        return Err(site.no_kernel());
    }
    if a.len() == 1 {
        a.insert(0, 1);
    }
    if b.len() == 1 {
        b.push(1);
    }
    let (batch_a, [mut m, k]) = split(&a);
    let (batch_b, [k_b, n]) = split(&b);
    if k != k_b {
        return Err(OpError::operand(1, format!("{k} rows"), k_b.to_string()).into());
    }
    let batch = if batch_b.iter().product::<usize>() == 1 && batch_b.len() <= batch_a.len() {
        // The matrices of the first operand are stacked into one matrix.
        m *= batch_a.iter().product::<usize>();
        Walk::new(&[], vec![Steps { first: 0, steps: Vec::new() }, Steps { first: 0, steps: Vec::new() }])
    } else {
        let dims = broadcast(batch_a, batch_b).ok_or_else(|| site.no_kernel())?;
        let steps = [batch_a, batch_b].map(|batch| Steps::broadcast(batch, &dims));
        Walk::new(&dims, steps.into_iter().collect::<Option<_>>().ok_or_else(|| site.no_kernel())?)
    };
    let product = Contraction {
        sizes: [m, n, k],
        transposed: [false; 2],
        alpha: 1.0,
        batch,
        elem,
        from: [Place::operand(0), Place::operand(1)],
        to: (Place::result(0), elem),
    };
    let mut scratch = Scratch::default();
    Ok(staged(product.stages(maker, &mut scratch)?, &scratch))
}

/// The dims to which both broadcast.
pub(super) fn broadcast(a: &[usize], b: &[usize]) -> Option<Dims> {
    let rank = a.len().max(b.len());
    let at = |dims: &[usize], i: usize| (i + dims.len()).checked_sub(rank).map_or(1, |j| dims[j]);
    let joined = |i: usize| match (at(a, i), at(b, i)) {
        (1, n) | (n, 1) => Some(n),
        (n, other) => (n == other).then_some(n),
    };
    (0..rank).map(joined).collect()
}

/// Splits dims into the batch dims and the last two.
pub(super) fn split(dims: &Dims) -> (&[usize], [usize; 2]) {
    let (batch, last) = dims.split_at(dims.len() - 2);
    (batch, [last[0], last[1]])
}

fn gemm(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let view = GemmView::read(&site.view);
    let elem = maker.real(0)?;
    let (a, b) = (site.dims(0)?, site.dims(1)?);
    if a.len() != 2 || b.len() != 2 {
        return Err(site.no_kernel());
    }
    let ([_, k], to) = (if view.trans_a { [a[1], a[0]] } else { [a[0], a[1]] }, site.result_dims(0)?);
    let c = if site.has(2) && view.beta != 0.0 { Some(site.dims(2)?) } else { None };
    let is_row = |c: &Dims| c.last() == Some(&to[1]) && c.iter().product::<usize>() == to[1];
    let has_bias = c.as_ref().is_some_and(is_row) && view.beta == 1.0 && to[1] > 1;
    let shape = Shape {
        m: to[0],
        n: to[1],
        k,
        transposed: [view.trans_a, view.trans_b],
        batch: 1,
        strides: [0, 0],
        alpha: view.alpha,
        elem,
        to: elem,
        has_bias,
        activation: None,
    };
    if elem == Elem::F64 || to[0] * to[1] * k == 0 {
        let shape = Shape { has_bias: false, ..shape };
        return by_stages(maker, &shape, c.map(|c| (c, view.beta)));
    }
    product(maker, &shape, c.filter(|_| !has_bias).map(|c| (c, view.beta)))
}

/// A product by separate stages: for f64, and for products with empty sums.
fn by_stages(maker: &Maker<'_>, shape: &Shape, addend: Option<(Dims, f32)>) -> Result<Prepared> {
    let elems = shape.m * shape.n;
    let mut scratch = Scratch::default();
    let acc = wide_float(shape.elem);
    let whole = (Place::result(0), shape.elem);
    let none = || Steps { first: 0, steps: Vec::new() };
    let to = if addend.is_some() { (scratch.part(elems * acc.bytes()), acc) } else { whole };
    let product = Contraction {
        sizes: [shape.m, shape.n, shape.k],
        transposed: shape.transposed,
        alpha: shape.alpha,
        batch: Walk::new(&[], vec![none(), none()]),
        elem: shape.elem,
        from: [Place::operand(0), Place::operand(1)],
        to,
    };
    let mut stages = product.stages(maker, &mut scratch)?;
    if let Some((dims, beta)) = addend {
        let to_dims = maker.site.result_dims(0)?;
        let steps = Steps::broadcast(&dims, &to_dims).ok_or_else(|| maker.site.no_kernel())?;
        stages.push(with_addend(maker, to, (2, beta), &Walk::new(&to_dims, vec![steps]), whole)?);
    }
    Ok(staged(stages, &scratch))
}

/// The kernel of a product. A separate kernel adds an addend that is not a row, in f32.
fn product(maker: &Maker<'_>, shape: &Shape, addend: Option<(Dims, f32)>) -> Result<Prepared> {
    let elems = shape.batch * shape.m * shape.n;
    let has_bias = shape.has_bias;
    let Some((dims, beta)) = addend else {
        let product = maker.shared.products.product(shape)?;
        let workspace = product.workspace();
        let prepared = Prepared::new(move |io| {
            let bias = if has_bias { operand_or_none(io, 2)? } else { 0 };
            let (a, b, to) = (operand(io, 0)?, operand(io, 1)?, result(io, 0)?);
            let places = Places { a, b, bias, to, workspace: scratch(io)? };
            product.launch(queue(io)?, &places)
        });
        return Ok(prepared.scratch(workspace));
    };
    let product = maker.shared.products.product(&Shape { to: Elem::F32, ..*shape })?;
    let sum = (elems * 4).next_multiple_of(PART);
    let workspace = product.workspace();
    let to = maker.site.result_dims(0)?;
    let steps = Steps::broadcast(&dims, &to).ok_or_else(|| maker.site.no_kernel())?;
    let own = Steps::broadcast(&to, &to).ok_or_else(|| maker.site.no_kernel())?;
    let walk = Walk::new(&to, vec![own, steps]);
    let elem = shape.elem;
    let text = format!(
        "{HEAD}extern \"C\" __global__ void run(u64 n, const float* x, const {stored}* c, {stored}* y) {{
  for (u64 i = first(); i < n; i += step()) y[i] = {store};
}}
",
        stored = elem.stored(),
        store = elem.store(&format!(
            "x[i] + {} * {}",
            f32_text(beta),
            elem.load(&format!("c[{}]", walk.index(1, "i")))
        )),
    );
    let kernel = Kernel::new(maker.shared, &text, blocks_for(elems), THREADS)?;
    let prepared = Prepared::new(move |io| {
        let start = scratch(io)?;
        let (a, b) = (operand(io, 0)?, operand(io, 1)?);
        let args = [elems as u64, start, operand(io, 2)?, result(io, 0)?];
        let places = Places { a, b, bias: 0, to: start, workspace: start + sum as u64 };
        let queue = queue(io)?;
        product.launch(queue, &places)?;
        kernel.launch(queue, &args)
    });
    Ok(prepared.scratch(sum + workspace))
}
