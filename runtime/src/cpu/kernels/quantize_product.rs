//! Products of quantised matrices: MatMulInteger, QLinearMatMul.
//!
//! Operands less their zero points are multiplied and summed in 32-bit integers, which wrap. QLinearMatMul scales the
//! sum by a_scale · b_scale / y_scale and rounds it to the nearest whole number, ties to even, before the zero point
//! is added; of float8 operands the sum is in f32.

use super::broadcast::Walk;
use super::lane::{BLOCK, Encoding, Lane, encode};
use super::quantize::{integer_range, round_into};
use crate::cpu::kernel::{Dims, Io, KernelError, Prepare, Prepared, Result, Site};
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use bytemuck::Pod;
use rayon::prelude::*;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::MatMulInteger => mat_mul_integer,
        OpKind::QLinearMatMul => q_linear_mat_mul,
        _ => return None,
    })
}

/// What products are summed in: i32 of bytes, f32 of float8.
trait Term: Pod + Send + Sync {
    fn minus(self, other: Self) -> Self;
    fn plus_product(self, a: Self, b: Self) -> Self;
    fn to_f64(self) -> f64;
    /// All elements of a tensor.
    fn read(dtype: DType, bytes: &[u8], to: &mut [Self]) -> Result<()>;
}

impl Term for i32 {
    fn minus(self, other: i32) -> i32 {
        self - other
    }
    fn plus_product(self, a: i32, b: i32) -> i32 {
        self.wrapping_add(a.wrapping_mul(b))
    }
    fn to_f64(self) -> f64 {
        self.into()
    }
    fn read(dtype: DType, bytes: &[u8], to: &mut [i32]) -> Result<()> {
        match dtype {
            DType::U8 => to.iter_mut().zip(bytes).for_each(|(y, &x)| *y = x.into()),
            DType::I8 => to.iter_mut().zip(bytes).for_each(|(y, &x)| *y = x.cast_signed().into()),
            _ => return Err(KernelError::unsupported(format!("products of {dtype}"))),
        }
        Ok(())
    }
}

impl Term for f32 {
    fn minus(self, other: f32) -> f32 {
        self - other
    }
    fn plus_product(self, a: f32, b: f32) -> f32 {
        self + a * b
    }
    fn to_f64(self) -> f64 {
        self.into()
    }
    fn read(dtype: DType, bytes: &[u8], to: &mut [f32]) -> Result<()> {
        f32::decode(dtype, bytes, to)
    }
}

/// What there is one of for all elements, one per row (of A) or column (of B), or one per each of each matrix.
#[derive(Clone, Copy)]
struct Parameter {
    operand: usize,
    dtype: DType,
    count: usize,
    /// Rows or columns of a matrix.
    lines: usize,
}

impl Parameter {
    /// Operand `i`, for `matrices` of `lines` rows or columns.
    fn of(site: &Site<'_>, i: usize, lines: usize, matrices: usize) -> Result<Option<Parameter>> {
        if !site.has(i) {
            return Ok(None);
        }
        let count: usize = site.dims(i)?.iter().product();
        if count != 1 && count != lines && count != lines * matrices {
            let expected = format!("1 or {lines} elements, or {lines} for each of {matrices} matrices");
            return Err(OpError::operand(i, expected, count.to_string()).into());
        }
        Ok(Some(Parameter { operand: i, dtype: site.dtype(i)?, count, lines }))
    }

    /// Its elements.
    fn read<T: Term>(self, io: &Io<'_>) -> Result<Vec<T>> {
        let mut elements = vec![T::zeroed(); self.count];
        T::read(self.dtype, io.bytes(self.operand)?, &mut elements)?;
        Ok(elements)
    }

    /// Its elements, floats of any type.
    fn scales(self, io: &Io<'_>) -> Result<Vec<f32>> {
        let mut elements = vec![0.0; self.count];
        f32::decode(self.dtype, io.bytes(self.operand)?, &mut elements)?;
        Ok(elements)
    }

    fn at(self, matrix: usize, line: usize) -> usize {
        match self.count {
            1 => 0,
            count if count == self.lines => line,
            _ => matrix * self.lines + line,
        }
    }
}

/// One of the two operands: matrices of `rows` rows and `columns` columns.
#[derive(Clone, Copy)]
struct Side {
    operand: usize,
    dtype: DType,
    matrices: usize,
    rows: usize,
    columns: usize,
    zero: Option<Parameter>,
    /// Whether zero points are by row; by column if not.
    by_row: bool,
}

impl Side {
    fn count(self) -> usize {
        self.matrices * self.rows * self.columns
    }

    fn lines(self) -> usize {
        if self.by_row { self.rows } else { self.columns }
    }

    /// Its elements less their zero points.
    fn read<T: Term>(self, io: &Io<'_>, to: &mut [T]) -> Result<()> {
        T::read(self.dtype, io.bytes(self.operand)?, to)?;
        let Some(zero) = self.zero else { return Ok(()) };
        let zeros = zero.read::<T>(io)?;
        for (i, row) in to.chunks_mut(self.columns.max(1)).enumerate() {
            let matrix = i / self.rows;
            for (column, x) in row.iter_mut().enumerate() {
                let line = if self.by_row { i % self.rows } else { column };
                *x = x.minus(zeros[zero.at(matrix, line)]);
            }
        }
        Ok(())
    }
}

/// Matrices in the last two axes, all others broadcast.
struct Product {
    a: Side,
    b: Side,
    /// Which matrices are multiplied.
    batch: Vec<(usize, usize)>,
}

impl Product {
    /// The product of two operands, whose zero points are these operands.
    fn of(site: &Site<'_>, [a, b]: [usize; 2], [zero_a, zero_b]: [usize; 2]) -> Result<Product> {
        let (mut dims_a, mut dims_b, result) = (site.dims(a)?, site.dims(b)?, site.result_dims(0)?);
        let (row, column) = (dims_a.len() == 1, dims_b.len() == 1);
        if row {
            dims_a.insert(0, 1);
        }
        if column {
            dims_b.push(1);
        }
        let outer: Dims = result[..result.len() - usize::from(!row) - usize::from(!column)].into();
        let walk = Walk::new(&outer, &[&dims_a[..dims_a.len() - 2], &dims_b[..dims_b.len() - 2]]);
        let steps = [walk.row_stride(0), walk.row_stride(1)];
        let mut batch = Vec::with_capacity(walk.len());
        walk.rows(0, walk.len(), |_, count, from| {
            batch.extend((0..count).map(|i| (from[0] + i * steps[0], from[1] + i * steps[1])));
        });
        let side = |operand: usize, dims: &Dims, zero: usize, by_row: bool| {
            let (outer, inner) = dims.split_at(dims.len() - 2);
            let matrices = outer.iter().product();
            let dtype = site.dtype(operand)?;
            let side =
                Side { operand, dtype, matrices, rows: inner[0], columns: inner[1], zero: None, by_row };
            let zero = Parameter::of(site, zero, side.lines(), matrices)?;
            Ok::<_, KernelError>(Side { zero, ..side })
        };
        Ok(Product { a: side(a, &dims_a, zero_a, true)?, b: side(b, &dims_b, zero_b, false)?, batch })
    }

    /// Elements of both operands and of the result.
    fn sizes(&self) -> [usize; 3] {
        [self.a.count(), self.b.count(), self.batch.len() * self.a.rows * self.b.columns]
    }

    /// Sums of products, row by row.
    fn multiply<T: Term>(&self, a: &[T], b: &[T], to: &mut [T]) {
        let (m, k, n) = (self.a.rows, self.a.columns, self.b.columns);
        to.par_chunks_mut(n.max(1)).enumerate().for_each(|(i, to)| {
            let (at_a, at_b) = self.batch[i / m];
            let (row, b) = (&a[(at_a * m + i % m) * k..][..k], &b[at_b * k * n..][..k * n]);
            to.fill(T::zeroed());
            for (&x, b) in row.iter().zip(b.chunks(n)) {
                to.iter_mut().zip(b).for_each(|(y, &b)| *y = y.plus_product(x, b));
            }
        });
    }
}

fn mat_mul_integer(site: &Site<'_>) -> Result<Prepared> {
    let product = Product::of(site, [0, 1], [2, 3])?;
    let [size_a, size_b, _] = product.sizes();
    let kernel = Prepared::new(move |io| {
        let (a, b) = io.scratch::<i32>().split_at_mut(size_a);
        let b = &mut b[..size_b];
        product.a.read(io, a)?;
        product.b.read(io, b)?;
        product.multiply(a, b, io.out::<i32>(0)?);
        Ok(())
    });
    Ok(kernel.scratch((size_a + size_b) * size_of::<i32>()))
}

/// Operands: A, its scale and zero point, B, its scale and zero point, scale and zero point of the result.
fn q_linear_mat_mul(site: &Site<'_>) -> Result<Prepared> {
    match site.dtype(0)? {
        DType::I8 | DType::U8 => scaled_product::<i32>(site),
        _ => scaled_product::<f32>(site),
    }
}

fn scaled_product<T: Term>(site: &Site<'_>) -> Result<Prepared> {
    let product = Product::of(site, [0, 3], [2, 5])?;
    let parameter = |i: usize, lines: usize, matrices: usize| {
        let found = Parameter::of(site, i, lines, matrices)?;
        found.ok_or_else(|| KernelError::from(OpError::operand(i, "a scale or zero point", "none")))
    };
    let scale_a = parameter(1, product.a.rows, product.a.matrices)?;
    let scale_b = parameter(4, product.b.columns, product.b.matrices)?;
    // Those of the result are by row, as those of A.
    let scale_y = parameter(6, product.a.rows, product.batch.len())?;
    let zero_y = parameter(7, product.a.rows, product.batch.len())?;
    let encoding = Encoding::new(site.result_dtype(0)?);
    let range = integer_range(encoding.to);
    let [size_a, size_b, size_y] = product.sizes();
    let kernel = Prepared::new(move |io| {
        let (a, rest) = io.scratch::<T>().split_at_mut(size_a);
        let (b, sums) = rest.split_at_mut(size_b);
        let sums = &mut sums[..size_y];
        product.a.read(io, a)?;
        product.b.read(io, b)?;
        product.multiply(a, b, sums);
        let [of_a, of_b, of_y] = [scale_a.scales(io)?, scale_b.scales(io)?, scale_y.scales(io)?];
        let zeros = zero_y.scales(io)?;
        let (m, n) = (product.a.rows, product.b.columns.max(1));
        let to = io.out_bytes(0)?;
        for (i, (sums, to)) in sums.chunks(n).zip(to.chunks_mut(n)).enumerate() {
            let (at_a, at_b) = product.batch[i / m];
            let (of_a, of_y) = (of_a[scale_a.at(at_a, i % m)], of_y[scale_y.at(i / m, i % m)]);
            let zero = zeros[zero_y.at(i / m, i % m)];
            for (at, (sums, to)) in sums.chunks(BLOCK).zip(to.chunks_mut(BLOCK)).enumerate() {
                let mut block = [0f32; BLOCK];
                for (j, (y, &sum)) in block.iter_mut().zip(sums).enumerate() {
                    let of_b = of_b[scale_b.at(at_b, at * BLOCK + j)];
                    let scaled = Lane::to_f32(sum.to_f64() * f64::from(of_a * of_b / of_y));
                    *y = range.map_or(scaled + zero, |range| round_into(range, scaled, zero));
                }
                encode(&block[..sums.len()], encoding, to)?;
            }
        }
        Ok(())
    });
    Ok(kernel.scratch((size_a + size_b + size_y) * size_of::<T>()))
}
