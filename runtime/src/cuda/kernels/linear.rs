//! MatMul and Gemm.

use super::{Maker, PART, Prepare};
use crate::cuda::launch::{Kernel, THREADS, blocks_for, operand, operand_or_none, queue, result, scratch};
use crate::cuda::products::{Places, Shape};
use crate::cuda::text::{Elem, HEAD, Steps, Walk, f32_text};
use crate::kernel::{Dims, KernelError, Prepared, Result};
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
    let elem = maker.float(0)?;
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
    let (count_a, count_b): (usize, usize) = (batch_a.iter().product(), batch_b.iter().product());
    let (batch, strides) = match (count_a, count_b) {
        // The matrices of the first operand are one below the other.
        (count, 1) => {
            m *= count;
            (1, [0, 0])
        }
        (1, count) => (count, [0, k * n]),
        _ if batch_a == batch_b => (count_a, [m * k, k * n]),
        _ => return Err(KernelError::unsupported("a MatMul whose operands are both broadcast")),
    };
    let shape = Shape {
        m,
        n,
        k,
        transposed: [false; 2],
        batch,
        strides,
        alpha: 1.0,
        elem,
        to: elem,
        has_bias: false,
    };
    product(maker, &shape, None)
}

/// The dims before the last two, and these.
fn split(dims: &Dims) -> (&[usize], [usize; 2]) {
    let (batch, last) = dims.split_at(dims.len() - 2);
    (batch, [last[0], last[1]])
}

fn gemm(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let view = GemmView::read(&site.view);
    let elem = maker.float(0)?;
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
    };
    product(maker, &shape, c.filter(|_| !has_bias).map(|c| (c, view.beta)))
}

/// The kernel of a product. An addend that is no row is added to the product in f32, by a kernel of its own.
fn product(maker: &Maker<'_>, shape: &Shape, addend: Option<(Dims, f32)>) -> Result<Prepared> {
    let elems = shape.batch * shape.m * shape.n;
    if elems == 0 || shape.k == 0 {
        return Err(KernelError::unsupported("products without elements"));
    }
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
