//! Products of matrices: MatMul, Gemm, Einsum.
//!
//! Operands are widened to f32 (f64 stays) and multiplied there; the result is rounded once. The sum is that of the
//! crate `gemm` in f32, whose own f16 mode rounds between blocks of the sum and is not used.

use super::lanes::{PIECE, Real, Wide, for_int, for_real, pieces, widened};
use crate::cpu::kernel::{Dims, Prepare, Prepared, Result, Site};
use ampc_ir::op::OpKind;
use ampc_ir::views::linear::GemmView;
use num_traits::One;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::MatMul => mat_mul,
        OpKind::Gemm => gemm,
        _ => return None,
    })
}

/// A matrix in memory: elements, and steps from row to row and from column to column.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Matrix<'a, W> {
    pub(in crate::cpu) elements: &'a [W],
    pub(in crate::cpu) row: usize,
    pub(in crate::cpu) column: usize,
}

/// `to = a · b`, or `to = before · to + a · b`, row by row; `to` has `m` rows of `n`, `k` is what is summed.
///
/// Sums are the same for any number of threads.
pub(in crate::cpu) fn multiply<W: Wide>(
    (m, n, k): (usize, usize, usize),
    a: Matrix<'_, W>,
    b: Matrix<'_, W>,
    to: &mut [W],
    before: Option<W>,
) {
    let threads = rayon::current_num_threads();
    let parallelism = if threads > 1 && m.saturating_mul(n).saturating_mul(k) >= SMALL_PRODUCT {
        gemm::Parallelism::Rayon(threads)
    } else {
        gemm::Parallelism::None
    };
    multiply_with((m, n, k), a, b, to, before, parallelism);
}

/// As [`multiply`], without other threads: for pieces of work that are in parallel themselves.
pub(super) fn multiply_alone<W: Wide>(
    sizes: (usize, usize, usize),
    a: Matrix<'_, W>,
    b: Matrix<'_, W>,
    to: &mut [W],
    before: Option<W>,
) {
    multiply_with(sizes, a, b, to, before, gemm::Parallelism::None);
}

fn multiply_with<W: Wide>(
    (m, n, k): (usize, usize, usize),
    a: Matrix<'_, W>,
    b: Matrix<'_, W>,
    to: &mut [W],
    before: Option<W>,
    parallelism: gemm::Parallelism,
) {
    if m == 0 || n == 0 {
        return;
    }
    let last = |m: &Matrix<'_, W>, rows: usize, columns: usize| (rows - 1) * m.row + (columns - 1) * m.column;
    assert!(to.len() >= m * n, "the result has room");
    if k > 0 {
        assert!(last(&a, m, k) < a.elements.len() && last(&b, k, n) < b.elements.len(), "operands are whole");
    }
    let step = |n: usize| isize::try_from(n).expect("offsets in memory fit");
    // SAFETY: rows, columns and steps stay within the slices, as asserted above; `to` is borrowed mutably, so it is
    // apart from both operands.
    #[expect(unsafe_code, reason = "the crate takes pointers and steps")]
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            to.as_mut_ptr(),
            1,
            step(n),
            before.is_some(),
            a.elements.as_ptr(),
            step(a.column),
            step(a.row),
            b.elements.as_ptr(),
            step(b.column),
            step(b.row),
            before.unwrap_or(W::zero()),
            W::one(),
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// Products with fewer multiplications than this are not worth a second thread.
const SMALL_PRODUCT: usize = 1 << 18;

/// MatMul: matrices in the last two axes, all others broadcast.
struct Product {
    m: usize,
    n: usize,
    k: usize,
    /// Offsets of the operands for each product, in elements.
    batch: Vec<(usize, usize)>,
    /// How many rows of A are multiplied at once: all products that have one B.
    sizes: [usize; 3],
}

fn product(site: &Site<'_>) -> Result<Product> {
    let (mut a, mut b, result) = (site.dims(0)?, site.dims(1)?, site.result_dims(0)?);
    let (row, column) = (a.len() == 1, b.len() == 1);
    if row {
        a.insert(0, 1);
    }
    if column {
        b.push(1);
    }
    let sizes = [a.iter().product(), b.iter().product(), result.iter().product()];
    let (m, k, n) = (a[a.len() - 2], a[a.len() - 1], b[b.len() - 1]);
    let outer: Dims = result[..result.len() - usize::from(!row) - usize::from(!column)].into();
    // One B for all: the rows of all As are one matrix.
    if b.len() == 2 {
        let rows = outer.iter().product::<usize>() * m;
        return Ok(Product { m: rows, n, k, batch: vec![(0, 0)], sizes });
    }
    let walk = super::broadcast::Walk::new(&outer, &[&a[..a.len() - 2], &b[..b.len() - 2]]);
    let mut batch = Vec::with_capacity(walk.len());
    let (sa, sb) = (walk.row_stride(0), walk.row_stride(1));
    walk.rows(0, walk.len(), |_, count, from| {
        batch.extend((0..count).map(|i| ((from[0] + i * sa) * m * k, (from[1] + i * sb) * k * n)));
    });
    Ok(Product { m, n, k, batch, sizes })
}

fn mat_mul(site: &Site<'_>) -> Result<Prepared> {
    let p = product(site)?;
    if site.dtype(0)?.is_integer() {
        return Ok(for_int!(site.dtype(0)?, site, T => Prepared::new(move |io| {
            let (a, b) = (io.slice::<T>(0)?, io.slice::<T>(1)?);
            let to = io.out::<T>(0)?;
            for (i, &(at_a, at_b)) in p.batch.iter().enumerate() {
                for row in 0..p.m {
                    for column in 0..p.n {
                        let terms = (0..p.k).map(|k| a[at_a + row * p.k + k].wrapping_mul(b[at_b + k * p.n + column]));
                        to[(i * p.m + row) * p.n + column] = terms.fold(0, T::wrapping_add);
                    }
                }
            }
            Ok(())
        })));
    }
    Ok(for_real!(site.dtype(0)?, site, T => real_product::<T>(p)))
}

fn real_product<T: Real>(p: Product) -> Prepared {
    let words = if T::IS_WIDE { 0 } else { p.sizes.iter().sum() };
    Prepared::new(move |io| {
        let (a, b) = (io.slice::<T>(0)?, io.slice::<T>(1)?);
        let to = io.out::<T>(0)?;
        let room = io.scratch::<T::Wide>();
        let (room_a, room) = room.split_at_mut(if T::IS_WIDE { 0 } else { p.sizes[0] });
        let (room_b, room) = room.split_at_mut(if T::IS_WIDE { 0 } else { p.sizes[1] });
        let (a, b) = (widened(a, room_a), widened(b, room_b));
        write_through::<T>(to, room, |wide| {
            for (to, &(at_a, at_b)) in wide.chunks_mut((p.m * p.n).max(1)).zip(&p.batch) {
                let a = Matrix { elements: &a[at_a..], row: p.k, column: 1 };
                let b = Matrix { elements: &b[at_b..], row: p.n, column: 1 };
                multiply((p.m, p.n, p.k), a, b, to, None);
            }
        });
        Ok(())
    })
    .scratch(words * size_of::<T::Wide>())
}

/// Lets `work` compute a result wide: in place, or in `room` and rounded once at the end.
pub(super) fn write_through<T: Real>(to: &mut [T], room: &mut [T::Wide], work: impl FnOnce(&mut [T::Wide])) {
    if let Some(to) = T::as_wide_mut(to) {
        work(to);
        return;
    }
    let room = &mut room[..to.len()];
    work(room);
    pieces(to, PIECE, |at, to| T::narrow(&room[at..at + to.len()], to));
}

fn gemm(site: &Site<'_>) -> Result<Prepared> {
    let view = GemmView::read(&site.view);
    let (a, b, result) = (site.dims(0)?, site.dims(1)?, site.result_dims(0)?);
    let k = if view.trans_a { a[0] } else { a[1] };
    let (m, n) = (result[0], result[1]);
    let walk = if site.has(2) { Some(super::broadcast::Walk::new(&result, &[&site.dims(2)?])) } else { None };
    let alpha = f64::from(site.view.float("alpha").unwrap_or(1.0));
    let beta = f64::from(site.view.float("beta").unwrap_or(1.0));
    let sizes = [a[0] * a[1], b[0] * b[1], m * n];
    let steps = |transposed: bool, columns: usize| if transposed { (1, columns) } else { (columns, 1) };
    let (step_a, step_b) = (steps(view.trans_a, a[1]), steps(view.trans_b, b[1]));
    if site.dtype(0)?.is_integer() {
        return Err(site.no_kernel());
    }
    Ok(for_real!(site.dtype(0)?, site, T => {
        let words = if <T as Real>::IS_WIDE { 0 } else { sizes.iter().sum() };
        let (alpha, beta) = (<T as Real>::Wide::of(alpha), <T as Real>::Wide::of(beta));
        Prepared::new(move |io| {
            let (a, b) = (io.slice::<T>(0)?, io.slice::<T>(1)?);
            let c = if io.has(2) { Some(io.slice::<T>(2)?) } else { None };
            let to = io.out::<T>(0)?;
            let room = io.scratch::<<T as Real>::Wide>();
            let wide = <T as Real>::IS_WIDE;
            let (room_a, room) = room.split_at_mut(if wide { 0 } else { sizes[0] });
            let (room_b, room) = room.split_at_mut(if wide { 0 } else { sizes[1] });
            let a = Matrix { elements: widened(a, room_a), row: step_a.0, column: step_a.1 };
            let b = Matrix { elements: widened(b, room_b), row: step_b.0, column: step_b.1 };
            write_through::<T>(to, room, |to| {
                multiply((m, n, k), a, b, to, None);
                if alpha != One::one() {
                    to.iter_mut().for_each(|y| *y = *y * alpha);
                }
                let (Some(c), Some(walk)) = (c, &walk) else { return };
                let step = walk.row_stride(0);
                walk.rows(0, m * n, |at, count, from| {
                    for (i, y) in to[at..at + count].iter_mut().enumerate() {
                        *y = *y + beta * c[from[0] + i * step].wide();
                    }
                });
            });
            Ok(())
        })
        .scratch(words * size_of::<<T as Real>::Wide>())
    }))
}
