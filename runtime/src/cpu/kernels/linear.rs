//! Products of matrices: MatMul, Gemm, FusedMatMul; determinants.
//!
//! Operands are widened to f32 (f64 stays) and multiplied there; the result is rounded once. The sum is that of the
//! crates `gemm-f32` and `gemm-f64`. The crate `gemm`, which is a front of them, has products of f16 as well, which round
//! between blocks of the sum, and of complex numbers, which take as long to build.

use super::broadcast::{Walk, gather, pairs, zip_parts};
use super::elements::strides;
use super::fold::{Load, Number};
use super::lanes::{BLOCK, Real, Wide, for_int, for_real, widened};
use super::parallel::{PIECE, pieces, threads};
use super::product::{OPERANDS, Whole, elements};
use super::reduce::stored;
use crate::host::Element;
use crate::kernel::{Dims, Prepare, Prepared, Result, Site};
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::linear::GemmView;
use gemm_common::Parallelism;
use std::marker::PhantomData;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::MatMul | OpKind::ContribFusedMatMul | OpKind::ContribTransposeMatMul => mat_mul,
        OpKind::Det => det,
        OpKind::Gemm => gemm,
        _ => return None,
    })
}

/// A matrix in memory: elements, and steps from row to row and from column to column.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, W> {
    pub(crate) elements: &'a [W],
    pub(crate) row: usize,
    pub(crate) column: usize,
}

/// `to = a · b`, or `to = before · to + a · b`, row by row; `to` has `m` rows of `n`, `k` is the summed extent.
///
/// Sums are the same for any number of threads.
pub(crate) fn multiply<W: Wide>(
    (m, n, k): (usize, usize, usize),
    a: Matrix<'_, W>,
    b: Matrix<'_, W>,
    to: &mut [W],
    before: Option<W>,
) {
    let is_small = m.saturating_mul(n).saturating_mul(k) < SMALL_PRODUCT;
    let parallelism = match if is_small { 1 } else { threads() } {
        1 => Parallelism::None,
        threads => Parallelism::Rayon(threads),
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
    multiply_with(sizes, a, b, to, before, Parallelism::None);
}

fn multiply_with<W: Wide>(
    (m, n, k): (usize, usize, usize),
    a: Matrix<'_, W>,
    b: Matrix<'_, W>,
    to: &mut [W],
    before: Option<W>,
    parallelism: Parallelism,
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
    // The crate computes columns of the result: those of its transpose are the rows.
    let turned = |m: Matrix<'_, W>| (m.elements.as_ptr(), step(m.row), step(m.column));
    let as_is = |m: Matrix<'_, W>| (m.elements.as_ptr(), step(m.column), step(m.row));
    let ((m, n), (to_column, to_row), left, right) = match n {
        1 => ((m, n), (1, 1), as_is(a), as_is(b)),
        _ => ((n, m), (step(n), 1), turned(b), turned(a)),
    };
    // SAFETY: rows, columns and steps stay within the slices, as asserted above; `to` is borrowed mutably, so it is
    // apart from both operands.
    #[expect(unsafe_code, reason = "the crate takes pointers and steps")]
    unsafe {
        W::product()(
            m,
            n,
            k,
            to.as_mut_ptr(),
            to_column,
            to_row,
            before.is_some(),
            left.0,
            left.1,
            left.2,
            right.0,
            right.1,
            right.2,
            before.unwrap_or(W::zero()),
            W::one(),
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// A product of matrices: rows, columns and summed extent; the result with its steps from column to column and from row to
/// row, and whether it is read; the left and the right operand with theirs; the factors of the result and of the product;
/// whether each is conjugated; threads.
type ProductOf<W> = unsafe fn(
    usize,
    usize,
    usize,
    *mut W,
    isize,
    isize,
    bool,
    *const W,
    isize,
    isize,
    *const W,
    isize,
    isize,
    W,
    W,
    bool,
    bool,
    bool,
    Parallelism,
);

/// Numbers whose matrices have products for the processor at hand.
pub(crate) trait HasProduct: Sized {
    /// The product.
    fn product() -> ProductOf<Self>;
}

impl HasProduct for f32 {
    fn product() -> ProductOf<f32> {
        gemm_f32::gemm::f32::get_gemm_fn()
    }
}

impl HasProduct for f64 {
    fn product() -> ProductOf<f64> {
        gemm_f64::gemm::f64::get_gemm_fn()
    }
}

/// Products with fewer multiplications than this are not worth a second thread.
const SMALL_PRODUCT: usize = 1 << 18;

/// Numbers whose matrices are multiplied.
pub(super) trait Multiply: Number + Element {
    /// `to = a · b`, as [`multiply`] says.
    fn multiply(sizes: (usize, usize, usize), a: Matrix<'_, Self>, b: Matrix<'_, Self>, to: &mut [Self]);
}

macro_rules! multiply_floats {
    ($($ty:ident),*) => {$(
        impl Multiply for $ty {
            fn multiply(sizes: (usize, usize, usize), a: Matrix<'_, $ty>, b: Matrix<'_, $ty>, to: &mut [$ty]) {
                multiply(sizes, a, b, to, None);
            }
        }
    )*};
}

macro_rules! multiply_integers {
    ($($ty:ident),*) => {$(
        impl Multiply for $ty {
            fn multiply(sizes: (usize, usize, usize), a: Matrix<'_, $ty>, b: Matrix<'_, $ty>, to: &mut [$ty]) {
                multiply_each(sizes, a, b, to);
            }
        }
    )*};
}

multiply_floats!(f32, f64);
multiply_integers!(i64, i32, i16, i8, u64, u32, u16, u8);

/// As [`multiply`], row by row, each the sum of multiples of rows of `b`.
fn multiply_each<W: Number>(
    (_, n, k): (usize, usize, usize),
    a: Matrix<'_, W>,
    b: Matrix<'_, W>,
    to: &mut [W],
) {
    let rows = (PIECE / (n * k).max(1)).max(1);
    pieces(to, rows * n.max(1), |start, to| {
        for (i, to) in to.chunks_mut(n).enumerate() {
            let row = (start / n + i) * a.row;
            to.fill(W::default());
            for j in 0..k {
                let factor = a.elements[row + j * a.column];
                let from = &b.elements[j * b.row..];
                if b.column == 1 {
                    to.iter_mut().zip(from).for_each(|(y, &x)| *y = y.plus(factor.times(x)));
                } else {
                    let from = from.iter().step_by(b.column.max(1));
                    to.iter_mut().zip(from).for_each(|(y, &x)| *y = y.plus(factor.times(x)));
                }
            }
        }
    });
}

/// Products of many matrices, one behind the other: `walk` says where the operands of each begin.
pub(super) fn multiply_all<W: Multiply>(
    (m, n, k): (usize, usize, usize),
    a: Matrix<'_, W>,
    b: Matrix<'_, W>,
    walk: &Walk,
    to: &mut [W],
) {
    if m * n == 0 {
        return;
    }
    let count = (PIECE / (m * n * k).max(1)).max(1);
    let (step_a, step_b) = (walk.row_stride(0), walk.row_stride(1));
    pieces(to, count * m * n, |start, to| {
        let first = start / (m * n);
        let mut products = to.chunks_mut(m * n);
        walk.rows(first, first + products.len(), |_, count, from| {
            for (i, to) in products.by_ref().take(count).enumerate() {
                let (at_a, at_b) = (from[0] + i * step_a, from[1] + i * step_b);
                let a = Matrix { elements: a.elements.get(at_a..).unwrap_or_default(), ..a };
                let b = Matrix { elements: b.elements.get(at_b..).unwrap_or_default(), ..b };
                W::multiply((m, n, k), a, b, to);
            }
        });
    });
}

/// A tensor of matrices: extents, and the steps between elements along each axis.
struct Side {
    dims: Dims,
    steps: Dims,
    len: usize,
}

impl Side {
    fn new(dims: Dims) -> Side {
        let len = dims.iter().product();
        Side { steps: strides(&dims), dims, len }
    }

    /// With the last two axes exchanged, and before that the first one moved before the last one.
    fn turned(mut self, inner: bool, batch: bool) -> Side {
        let n = self.dims.len();
        for axes in [&mut self.dims, &mut self.steps] {
            if batch && n >= 3 {
                axes[..n - 1].rotate_left(1);
            }
            if inner && n >= 2 {
                axes.swap(n - 2, n - 1);
            }
        }
        self
    }

    /// True if elements are contiguous.
    fn is_plain(&self) -> bool {
        let n = self.dims.len();
        let next = |axis: usize| self.steps[axis] == self.steps[axis + 1] * self.dims[axis + 1];
        self.steps[n - 1] == 1 && (0..n - 1).all(|axis| self.dims[axis] == 1 || next(axis))
    }

    fn matrix<'a, W>(&self, elements: &'a [W]) -> Matrix<'a, W> {
        let n = self.steps.len();
        Matrix { elements, row: self.steps[n - 2], column: self.steps[n - 1] }
    }

    /// Steps along the leading axes of a result, 0 where they are broadcast.
    fn batch_steps(&self, rank: usize) -> Dims {
        let own = self.dims.len() - 2;
        let steps = self.dims[..own].iter().zip(&self.steps).map(|(&d, &s)| if d == 1 { 0 } else { s });
        std::iter::repeat_n(0, rank - own).chain(steps).collect()
    }
}

/// MatMul: matrices in the last two axes, all others broadcast.
struct Product {
    sizes: (usize, usize, usize),
    a: Side,
    b: Side,
    /// Where in the operands each product begins.
    batch: Walk,
    alpha: f64,
}

fn product(site: &Site<'_>) -> Result<Product> {
    let flag = |name| site.view.int(name).unwrap_or(0) != 0;
    let (a, b, result) = (site.dims(0)?, site.dims(1)?, site.result_dims(0)?);
    let (row, column) = (a.len() == 1, b.len() == 1);
    let mut a = Side::new(a).turned(flag("transA"), flag("transBatchA"));
    let mut b = Side::new(b).turned(flag("transB"), flag("transBatchB"));
    if row {
        a.dims.insert(0, 1);
        a.steps.insert(0, 0);
    }
    if column {
        b.dims.push(1);
        b.steps.push(1);
    }
    let alpha = f64::from(site.view.float("alpha").unwrap_or(1.0));
    let rank = a.dims.len();
    let (m, k, n) = (a.dims[rank - 2], a.dims[rank - 1], b.dims[b.dims.len() - 1]);
    let outer: Dims = result[..result.len() - usize::from(!row) - usize::from(!column)].into();
    // One B for all: the rows of all As are one matrix.
    if b.dims.len() == 2 && a.is_plain() {
        let rows = outer.iter().product::<usize>() * m;
        let batch = Walk::of_steps(&[], &[Dims::new(), Dims::new()]);
        return Ok(Product { sizes: (rows, n, k), a, b, batch, alpha });
    }
    let strides = [a.batch_steps(outer.len()), b.batch_steps(outer.len())];
    Ok(Product { sizes: (m, n, k), a, b, batch: Walk::of_steps(&outer, &strides), alpha })
}

fn mat_mul(site: &Site<'_>) -> Result<Prepared> {
    let p = product(site)?;
    if site.dtype(0)?.is_integer() {
        return Ok(for_int!(site.dtype(0)?, site, T => Prepared::new(move |io| {
            let (a, b) = (p.a.matrix(io.slice::<T>(0)?), p.b.matrix(io.slice::<T>(1)?));
            multiply_all(p.sizes, a, b, &p.batch, io.out(0)?);
            Ok(())
        })));
    }
    Ok(for_real!(site.dtype(0)?, site, T => real_product::<T, <T as Real>::Wide>(p)))
}

fn real_product<T: Real<Wide = W>, W: Wide + Multiply>(p: Product) -> Prepared {
    let words = wide_operands::<T>([p.a.len, p.b.len]) + if T::IS_WIDE { 0 } else { p.result() };
    Prepared::new(move |io| {
        let (a, b) = (io.slice::<T>(0)?, io.slice::<T>(1)?);
        let to = io.out::<T>(0)?;
        let ([a, b], room) = wide_matrices(a, b, [p.a.len, p.b.len], io.scratch());
        write_through::<T>(to, room, |to| p.compute(a, b, to));
        Ok(())
    })
    .scratch(words * size_of::<W>())
}

/// Elements of scratch memory for operands of these lengths in the type of the computation.
fn wide_operands<T: Real>(lens: [usize; 2]) -> usize {
    if T::IS_WIDE { 0 } else { lens[0] + lens[1] }
}

/// Both operands in the type of the computation, and the rest of the scratch memory.
fn wide_matrices<'a, T: Real>(
    a: &'a [T],
    b: &'a [T],
    lens: [usize; 2],
    room: &'a mut [T::Wide],
) -> ([&'a [T::Wide]; 2], &'a mut [T::Wide]) {
    let lens = if T::IS_WIDE { [0, 0] } else { lens };
    let (room_a, room) = room.split_at_mut(lens[0]);
    let (room_b, room) = room.split_at_mut(lens[1]);
    ([widened(a, room_a), widened(b, room_b)], room)
}

impl Product {
    /// The number of elements of the result.
    fn result(&self) -> usize {
        self.batch.len() * self.sizes.0 * self.sizes.1
    }

    fn compute<W: Wide + Multiply>(&self, a: &[W], b: &[W], to: &mut [W]) {
        multiply_all(self.sizes, self.a.matrix(a), self.b.matrix(b), &self.batch, to);
        scale(to, W::of(self.alpha));
    }
}

/// A MatMul or a Gemm that an epilogue can follow.
struct Taken<T, P> {
    product: P,
    element: PhantomData<fn() -> T>,
}

pub(super) fn matrix_product<T: Real<Wide = f32>>(site: &Site<'_>) -> Result<Box<dyn Whole>> {
    Ok(Box::new(Taken { product: product(site)?, element: PhantomData::<fn() -> T> }))
}

pub(super) fn gemm_product<T: Real<Wide = f32>>(site: &Site<'_>) -> Result<Box<dyn Whole>> {
    Ok(Box::new(Taken { product: Gemm::read(site)?, element: PhantomData::<fn() -> T> }))
}

impl<T: Real<Wide = f32>> Whole for Taken<T, Product> {
    fn result(&self) -> usize {
        self.product.result()
    }

    fn scratch(&self) -> usize {
        wide_operands::<T>([self.product.a.len, self.product.b.len]) * size_of::<f32>()
    }

    fn run(&self, operands: [Option<&[u8]>; OPERANDS], scratch: &mut [f32], to: &mut [f32]) {
        let (a, b) = (elements::<T>(operands[0]), elements(operands[1]));
        let lens = [self.product.a.len, self.product.b.len];
        let ([a, b], _) = wide_matrices(a, b, lens, scratch);
        self.product.compute(a, b, to);
    }
}

impl<T: Real<Wide = f32>> Whole for Taken<T, Gemm> {
    fn result(&self) -> usize {
        self.product.sizes.0 * self.product.sizes.1
    }

    fn scratch(&self) -> usize {
        wide_operands::<T>(self.product.lens) * size_of::<f32>()
    }

    fn run(&self, operands: [Option<&[u8]>; OPERANDS], scratch: &mut [f32], to: &mut [f32]) {
        let [a, b, c] = operands.map(elements::<T>);
        let ([a, b], _) = wide_matrices(a, b, self.product.lens, scratch);
        self.product.compute(a, b, c, to);
    }
}

/// `to = factor · to`
fn scale<W: Wide>(to: &mut [W], factor: W) {
    if factor != W::one() {
        pieces(to, PIECE, |_, to| to.iter_mut().for_each(|y| *y = *y * factor));
    }
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

/// `alpha · A · B + beta · C`
struct Gemm {
    sizes: (usize, usize, usize),
    /// Elements of A and B.
    lens: [usize; 2],
    /// Steps from row to row and column to column.
    steps: [(usize, usize); 2],
    /// C along the result, if it is there and beta is not 0.
    walk: Option<Walk>,
    alpha: f64,
    beta: f64,
}

impl Gemm {
    fn read(site: &Site<'_>) -> Result<Gemm> {
        let view = GemmView::read(&site.view);
        let (a, b, result) = (site.dims(0)?, site.dims(1)?, site.result_dims(0)?);
        let k = if view.trans_a { a[0] } else { a[1] };
        let steps = |transposed: bool, columns: usize| if transposed { (1, columns) } else { (columns, 1) };
        Ok(Gemm {
            sizes: (result[0], result[1], k),
            lens: [a[0] * a[1], b[0] * b[1]],
            steps: [steps(view.trans_a, a[1]), steps(view.trans_b, b[1])],
            // Infinities in C do not matter if beta is 0.
            walk: if site.has(2) && view.beta != 0.0 {
                Some(Walk::new(&result, &[&site.dims(2)?]))
            } else {
                None
            },
            alpha: f64::from(view.alpha),
            beta: f64::from(view.beta),
        })
    }
}

fn gemm(site: &Site<'_>) -> Result<Prepared> {
    let gemm = Gemm::read(site)?;
    Ok(match site.dtype(0)? {
        DType::I64 => gemm.of_integers::<i64>(),
        DType::I32 => gemm.of_integers::<i32>(),
        DType::U64 => gemm.of_integers::<u64>(),
        DType::U32 => gemm.of_integers::<u32>(),
        dtype => for_real!(dtype, site, T => gemm.of_reals::<T, <T as Real>::Wide>()),
    })
}

impl Gemm {
    fn of_reals<T: Real<Wide = W>, W: Wide + Multiply>(self) -> Prepared {
        let (m, n, _) = self.sizes;
        let words = wide_operands::<T>(self.lens) + if T::IS_WIDE { 0 } else { m * n };
        Prepared::new(move |io| {
            let (a, b) = (io.slice::<T>(0)?, io.slice::<T>(1)?);
            let c = if io.has(2) { io.slice::<T>(2)? } else { &[] };
            let to = io.out::<T>(0)?;
            let ([a, b], room) = wide_matrices(a, b, self.lens, io.scratch());
            write_through::<T>(to, room, |to| self.compute(a, b, c, to));
            Ok(())
        })
        .scratch(words * size_of::<W>())
    }

    fn compute<T: Real<Wide = W>, W: Wide + Multiply>(&self, a: &[W], b: &[W], c: &[T], to: &mut [W]) {
        let [a, b] = self.matrices(a, b);
        W::multiply(self.sizes, a, b, to);
        scale(to, W::of(self.alpha));
        self.add_c(c, to);
    }

    /// Products wrap; with factors that are not integers the sum is computed in f64 and cut off.
    fn of_integers<T: Multiply + Load<f64> + Load<i128>>(self) -> Prepared {
        Prepared::new(move |io| {
            let [a, b] = self.matrices(io.slice::<T>(0)?, io.slice::<T>(1)?);
            let c = if io.has(2) { io.slice::<T>(2)? } else { &[] };
            let to = io.out::<T>(0)?;
            T::multiply(self.sizes, a, b, to);
            if let (Some(alpha), Some(beta)) = (whole(self.alpha), whole(self.beta)) {
                let (alpha, beta): (T, T) = (stored(alpha), stored(beta));
                to.iter_mut().for_each(|y| *y = alpha.times(*y));
                self.with_c(c, to, |y, c| y.plus(beta.times(c)));
            } else if self.walk.is_some() {
                self.with_c(c, to, |y, c| self.sum(y, c));
            } else {
                to.iter_mut().for_each(|y| *y = self.sum(*y, T::default()));
            }
            Ok(())
        })
    }

    /// The sum of two integers with factors that are none.
    fn sum<T: Multiply + Load<f64>>(&self, product: T, c: T) -> T {
        let mut numbers = [0.0; 2];
        T::load(&[product, c], &mut numbers);
        stored(self.alpha * numbers[0] + self.beta * numbers[1])
    }

    fn matrices<'a, W>(&self, a: &'a [W], b: &'a [W]) -> [Matrix<'a, W>; 2] {
        let matrix = |elements, (row, column)| Matrix { elements, row, column };
        [matrix(a, self.steps[0]), matrix(b, self.steps[1])]
    }

    /// `to += beta · C`, if there is a C.
    fn add_c<T: Real>(&self, c: &[T], to: &mut [T::Wide]) {
        let Some(walk) = &self.walk else { return };
        let (step, beta) = (walk.row_stride(0), T::Wide::of(self.beta));
        pieces(to, PIECE, |start, to| {
            let mut block = [<T::Wide as num_traits::Zero>::zero(); BLOCK];
            walk.rows(start, start + to.len(), |at, n, from| {
                for (i, to) in to[at - start..][..n].chunks_mut(BLOCK).enumerate() {
                    let block = &mut block[..to.len()];
                    gather(c, from[0] + i * BLOCK * step, step, block);
                    to.iter_mut().zip(&*block).for_each(|(y, &c)| *y = *y + beta * c);
                }
            });
        });
    }

    /// `to = f(to, C)`, if there is a C.
    fn with_c<T: Element + Send + Sync>(&self, c: &[T], to: &mut [T], f: impl Fn(T, T) -> T + Sync) {
        if let Some(walk) = &self.walk {
            zip_parts(walk, (0, None), (0, Some(c)), to, &pairs(f));
        }
    }
}

/// A number that is an integer.
#[expect(clippy::cast_possible_truncation, reason = "integers of so small a size fit")]
fn whole(x: f64) -> Option<i128> {
    (x.fract() == 0.0 && x.abs() < 1e18).then_some(x as i128)
}

/// Determinants of square matrices: the product of the pivots of Gaussian elimination.
fn det(site: &Site<'_>) -> Result<Prepared> {
    let dims = site.dims(0)?;
    let n = *dims.last().unwrap_or(&1);
    Ok(for_real!(site.dtype(0)?, site, T => determinants::<T, <T as Real>::Wide>(n)))
}

fn determinants<T: Load<A>, A: Wide + Number>(n: usize) -> Prepared {
    Prepared::new(move |io| {
        let from = io.slice::<T>(0)?;
        let room = &mut io.scratch::<A>()[..n * n];
        for (i, y) in io.out::<T>(0)?.iter_mut().enumerate() {
            T::load(&from[i * n * n..(i + 1) * n * n], room);
            *y = stored(determinant(room, n));
        }
        Ok(())
    })
    .scratch(n * n * size_of::<A>())
}

/// The determinant of a matrix, whose elements do not stay.
fn determinant<A: Wide>(matrix: &mut [A], n: usize) -> A {
    let mut product = A::one();
    for i in 0..n {
        let size = |row: usize, matrix: &[A]| matrix[row * n + i].abs();
        let pivot =
            (i + 1..n).fold(i, |best, row| if size(row, matrix) > size(best, matrix) { row } else { best });
        if pivot != i {
            let (above, below) = matrix.split_at_mut(pivot * n);
            above[i * n..(i + 1) * n].swap_with_slice(&mut below[..n]);
            product = -product;
        }
        let (above, below) = matrix.split_at_mut((i + 1) * n);
        let row = &above[i * n + i..];
        product = product * row[0];
        if row[0] == A::zero() {
            continue;
        }
        for other in below.chunks_mut(n) {
            let factor = other[i] / row[0];
            other[i..].iter_mut().zip(row).for_each(|(y, &x)| *y = *y - factor * x);
        }
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::kernels::tests::{floats, run};

    /// In more than one piece, with C broadcast in every way.
    #[test]
    fn a_matrix_is_added_to_the_product() {
        let (m, n) = (250usize, 300usize);
        let number = |i: usize| f32::from(u8::try_from(i % 97).unwrap());
        let numbers = |n: usize| (0..n).map(number).collect::<Vec<f32>>();
        let (a, b) = (floats(&[m, 1], &numbers(m)), floats(&[1, n], &numbers(n)));
        for dims in [&[][..], &[n], &[m, 1], &[m, n], &[1, n]] {
            let c = numbers(dims.iter().product());
            let walk = Walk::new(&[m, n], &[dims]);
            let inputs = [a.clone(), b.clone(), floats(dims, &c)];
            let y = run("Gemm(%0, %1, %2) {alpha=2.0, beta=-3.0}", &["f32"], &inputs).unwrap();
            let (a, b) = (numbers(m), numbers(n));
            for (i, &y) in y[0].as_slice::<f32>().unwrap().iter().enumerate() {
                let want = 2.0 * a[i / n] * b[i % n] - 3.0 * c[walk.at(i)[0]];
                assert!((y - want).abs() < 0.5, "{dims:?}, element {i}: {y} and {want}");
            }
        }
    }

    #[test]
    fn gemm_ignores_c_if_beta_is_0() {
        let inputs = [floats(&[1, 1], &[2.0]), floats(&[1, 1], &[3.0]), floats(&[1], &[f32::INFINITY])];
        let y = run("Gemm(%0, %1, %2) {beta=0.0}", &["f32"], &inputs).unwrap();
        assert_eq!(y[0].as_slice::<f32>().unwrap(), [6.0]);
    }

    #[test]
    fn determinants_of_small_matrices() {
        assert_eq!(determinant::<f64>(&mut [], 0), 1.0);
        assert_eq!(determinant(&mut [0.0, 2.0, 3.0, 4.0], 2), -6.0);
        assert_eq!(determinant(&mut [1.0, 2.0, 2.0, 4.0], 2), 0.0);
        assert_eq!(determinant(&mut [0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0], 3), 1.0);
        assert!(determinant(&mut [f32::NAN, 1.0, 1.0, 1.0], 2).is_nan());
    }
}
