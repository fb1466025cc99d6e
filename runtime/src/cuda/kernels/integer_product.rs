//! MatMulInteger: products of 8-bit integers minus zero points, in wrapping 32-bit integers. A thread computes one
//! result.

use super::linear::{broadcast, split};
use super::stage::{Place, Scratch, Source, staged};
use super::{Maker, Prepare};
use crate::cuda::text::{Elem, Steps, Walk};
use crate::kernel::{Dims, Prepared, Result};
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    match kind {
        OpKind::MatMulInteger => Some(mat_mul_integer),
        _ => None,
    }
}

/// Declares the zero point of operand `i`, one for all elements or one for each of `n` rows or columns; returns an
/// expression for the zero point at `at`.
fn zero_point(maker: &Maker<'_>, source: &mut Source, i: usize, n: usize, at: &str) -> Result<String> {
    let site = maker.site;
    if !site.has(i) {
        return Ok("0".into());
    }
    let name = format!("zero{i}");
    source.from(&name, maker.number(i)?, Place::operand(i));
    match site.dims(i)?[..] {
        [] | [1] => Ok(format!("(int){name}[0]")),
        [count] if count == n => Ok(format!("(int){name}[{at}]")),
        _ => Err(site.no_kernel()),
    }
}

fn mat_mul_integer(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let elems = [maker.number(0)?, maker.number(1)?];
    let (a, b): (Dims, Dims) = (site.dims(0)?, site.dims(1)?);
    if a.len() < 2 || b.len() < 2 || elems.iter().any(|elem| !matches!(elem, Elem::I8 | Elem::U8)) {
        return Err(site.no_kernel());
    }
    let (batch_a, [m, k]) = split(&a);
    let (batch_b, [k_b, n]) = split(&b);
    if k != k_b {
        return Err(OpError::operand(1, format!("{k} rows"), k_b.to_string()).into());
    }
    let dims = broadcast(batch_a, batch_b).ok_or_else(|| site.no_kernel())?;
    let steps = [batch_a, batch_b].map(|batch| Steps::broadcast(batch, &dims));
    let batch = Walk::new(&dims, steps.into_iter().collect::<Option<_>>().ok_or_else(|| site.no_kernel())?);
    let total = m * n * batch.len();
    let mut source = Source::new(total.max(a.iter().product()).max(b.iter().product()));
    source.from("a", elems[0], Place::operand(0));
    source.from("b", elems[1], Place::operand(1));
    source.to("y", Elem::I32, Place::result(0));
    for (name, value) in [("m", m), ("columns", n), ("inner", k)] {
        source.number(name, value);
    }
    let zero_a = zero_point(maker, &mut source, 2, m, "row")?;
    let zero_b = zero_point(maker, &mut source, 3, n, "column")?;
    let places = [0, 1].map(|j| source.walked(&batch, j, "matrix"));
    let body = format!(
        "{index} column = i % columns, row = i / columns % m, matrix = i / columns / m;
    const {elem_a}* of_a = a + ((u64){place_a} * m + row) * inner;
    const {elem_b}* of_b = b + (u64){place_b} * inner * columns + column;
    int zero_a = {zero_a}, zero_b = {zero_b};
    u32 sum = 0;
    for (u64 t = 0; t < inner; t++) sum += (u32)(((int)of_a[t] - zero_a) * ((int)of_b[t * columns] - zero_b));
    y[i] = (int)sum;",
        index = source.index,
        elem_a = elems[0].stored(),
        elem_b = elems[1].stored(),
        place_a = places[0],
        place_b = places[1],
    );
    Ok(staged(vec![source.each(maker, total, &body)?], &Scratch::default()))
}
