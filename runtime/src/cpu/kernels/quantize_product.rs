//! Products of quantised matrices: MatMulInteger, QLinearMatMul.
//!
//! Operands less their zero points are multiplied and summed in 32-bit integers, which wrap: the products of some
//! neighbours in f32, which holds their sums exactly, and these in integers. QLinearMatMul scales the sum by
//! a_scale · b_scale / y_scale and rounds it to the nearest whole number, ties to even, before the zero point is added;
//! of float8 operands the sum is in f32.

use super::broadcast::Walk;
use super::lane::{BLOCK, Encoding, Lane};
use super::linear::{Matrix, multiply};
use super::parallel::{PIECE, pairs_of_pieces, pieces, try_numbered_pieces};
use super::quantize::{integer_range, round_into, store};
use crate::kernel::{Dims, Io, KernelError, Prepare, Prepared, Result, Site};
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use bytemuck::Pod;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::MatMulInteger => mat_mul_integer,
        OpKind::QLinearMatMul => q_linear_mat_mul,
        _ => return None,
    })
}

/// Accumulator of products: i32 for bytes, which wraps; f32 for float8.
trait Total: Pod + Send + Sync {
    /// The sum with one more, which is that of a block.
    fn plus(self, block: f32) -> Self;
    fn to_f64(self) -> f64;
}

impl Total for i32 {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the sum of a block is a whole number below 2^24")]
    fn plus(self, block: f32) -> i32 {
        self.wrapping_add(block as i32)
    }
    fn to_f64(self) -> f64 {
        self.into()
    }
}

impl Total for f32 {
    #[inline]
    fn plus(self, block: f32) -> f32 {
        self + block
    }
    fn to_f64(self) -> f64 {
        self.into()
    }
}

/// Products that are summed in f32 before they are added to the others. Bytes less their zero points are in
/// [-255, 255], and f32 holds every sum of so many products.
const EXACT: usize = 256;

/// A parameter: one for all elements, one per row (of A) or column (of B), or one per each of each matrix.
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
    fn read(self, io: &Io<'_>) -> Result<Vec<f32>> {
        let mut elements = io.room().filled(self.count, 0.0)?;
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
    /// True if zero points are by row; by column if not.
    by_row: bool,
}

impl Side {
    fn count(self) -> usize {
        self.matrices * self.rows * self.columns
    }

    fn lines(self) -> usize {
        if self.by_row { self.rows } else { self.columns }
    }

    /// Its elements, of a byte each, less their zero points.
    fn read(self, io: &Io<'_>, to: &mut [f32]) -> Result<()> {
        // What cannot be read as a number is an error here, not in every piece.
        f32::decode(self.dtype, &[], &mut [])?;
        let bytes = io.bytes(self.operand)?;
        let zeros = self.zero.map(|zero| Ok::<_, KernelError>((zero, zero.read(io)?))).transpose()?;
        let columns = self.columns.max(1);
        pieces(to, (PIECE / columns).max(1) * columns, |at, to| {
            let is_read = f32::decode(self.dtype, &bytes[at..], to).is_ok();
            let Some((zero, zeros)) = zeros.as_ref().filter(|_| is_read) else { return };
            for (i, row) in to.chunks_mut(columns).enumerate() {
                let (matrix, line) = ((at / columns + i) / self.rows, (at / columns + i) % self.rows);
                if self.by_row || zero.count == 1 {
                    let zero = zeros[zero.at(matrix, line)];
                    row.iter_mut().for_each(|x| *x -= zero);
                } else {
                    row.iter_mut().zip(&zeros[zero.at(matrix, 0)..]).for_each(|(x, zero)| *x -= zero);
                }
            }
        });
        Ok(())
    }
}

/// Matrices in the last two axes, all others broadcast.
struct Product {
    a: Side,
    b: Side,
    /// Which matrices are multiplied.
    batch: Walk,
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
        let batch = Walk::new(&outer, &[&dims_a[..dims_a.len() - 2], &dims_b[..dims_b.len() - 2]]);
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

    /// Sums of products, row by row; `room` is as large as `to`.
    fn multiply<S: Total>(&self, a: &[f32], b: &[f32], room: &mut [f32], to: &mut [S]) {
        let (k, n) = (self.a.columns, self.b.columns);
        // One B for all: the rows of all As are one matrix.
        let is_one = self.b.matrices == 1 && self.a.matrices == self.batch.len();
        let m = if is_one { self.a.matrices * self.a.rows } else { self.a.rows };
        let size = (m * n).max(1);
        pairs_of_pieces((to, size), (room, size), |i, to, room| {
            let at = self.batch.at(i);
            let (a, b) = (&a[at[0] * m * k..], &b[at[1] * k * n..]);
            to.fill(S::zeroed());
            for first in (0..k).step_by(EXACT) {
                let a = Matrix { elements: &a[first..], row: k, column: 1 };
                let b = Matrix { elements: &b[first * n..], row: n, column: 1 };
                multiply((m, n, EXACT.min(k - first)), a, b, room, None);
                pieces(to, PIECE, |at, to| {
                    to.iter_mut().zip(&room[at..]).for_each(|(y, &block)| *y = y.plus(block));
                });
            }
        });
    }
}

fn mat_mul_integer(site: &Site<'_>) -> Result<Prepared> {
    let product = Product::of(site, [0, 1], [2, 3])?;
    let [size_a, size_b, size_y] = product.sizes();
    let kernel = Prepared::new(move |io| {
        let (a, rest) = io.scratch::<f32>().split_at_mut(size_a);
        let (b, room) = rest.split_at_mut(size_b);
        product.a.read(io, a)?;
        product.b.read(io, b)?;
        product.multiply(a, b, &mut room[..size_y], io.out::<i32>(0)?);
        Ok(())
    });
    Ok(kernel.scratch((size_a + size_b + size_y) * size_of::<f32>()))
}

/// Operands: A, its scale and zero point, B, its scale and zero point, scale and zero point of the result.
fn q_linear_mat_mul(site: &Site<'_>) -> Result<Prepared> {
    match site.dtype(0)? {
        DType::I8 | DType::U8 => scaled_product::<i32>(site),
        _ => scaled_product::<f32>(site),
    }
}

fn scaled_product<S: Total>(site: &Site<'_>) -> Result<Prepared> {
    let product = Product::of(site, [0, 3], [2, 5])?;
    let scaling = Scaling::of(site, &product)?;
    let [size_a, size_b, size_y] = product.sizes();
    let kernel = Prepared::new(move |io| {
        let (a, rest) = io.scratch::<f32>().split_at_mut(size_a);
        let (b, rest) = rest.split_at_mut(size_b);
        let (room, sums) = rest.split_at_mut(size_y);
        let sums: &mut [S] = of_same_size(&mut sums[..size_y]);
        product.a.read(io, a)?;
        product.b.read(io, b)?;
        product.multiply(a, b, room, sums);
        scaling.scale(io, &product, sums)
    });
    Ok(kernel.scratch((size_a + size_b + 2 * size_y) * size_of::<f32>()))
}

/// Floats as other elements of 32 bits.
fn of_same_size<S: Pod>(room: &mut [f32]) -> &mut [S] {
    bytemuck::cast_slice_mut(room)
}

/// How sums become elements of the result.
struct Scaling {
    a: Parameter,
    b: Parameter,
    y: Parameter,
    zero: Parameter,
    encoding: Encoding,
}

impl Scaling {
    fn of(site: &Site<'_>, product: &Product) -> Result<Scaling> {
        let parameter = |i: usize, lines: usize, matrices: usize| {
            let found = Parameter::of(site, i, lines, matrices)?;
            found.ok_or_else(|| KernelError::from(OpError::operand(i, "a scale or zero point", "none")))
        };
        let (a, b) = (&product.a, &product.b);
        Ok(Scaling {
            a: parameter(1, a.rows, a.matrices)?,
            b: parameter(4, b.columns, b.matrices)?,
            // Those of the result are by row, as those of A.
            y: parameter(6, a.rows, product.batch.len())?,
            zero: parameter(7, a.rows, product.batch.len())?,
            encoding: Encoding::new(site.result_dtype(0)?),
        })
    }

    fn scale<S: Total>(&self, io: &mut Io<'_>, product: &Product, sums: &[S]) -> Result<()> {
        let [of_a, of_b, of_y] = [self.a.read(io)?, self.b.read(io)?, self.y.read(io)?];
        let zeros = self.zero.read(io)?;
        let range = integer_range(self.encoding.to);
        let (m, n) = (product.a.rows, product.b.columns.max(1));
        try_numbered_pieces(io.out_bytes(0)?, n, (PIECE / n).max(1), |i, to| {
            let sums = &sums[i * n..][..n];
            let (matrix, line) = (i / m, i % m);
            let at = product.batch.at(matrix);
            let (of_a, of_y) = (of_a[self.a.at(at[0], line)], of_y[self.y.at(matrix, line)]);
            let zero = zeros[self.zero.at(matrix, line)];
            let mut block = [0f32; BLOCK];
            for (part, (sums, to)) in sums.chunks(BLOCK).zip(to.chunks_mut(BLOCK)).enumerate() {
                for (j, (y, &sum)) in block.iter_mut().zip(sums).enumerate() {
                    let of_b = of_b[self.b.at(at[1], part * BLOCK + j)];
                    let scaled = Lane::to_f32(sum.to_f64() * f64::from(of_a * of_b / of_y));
                    *y = range.map_or(scaled + zero, |range| round_into(range, scaled, zero));
                }
                store(&block[..sums.len()], self.encoding, to)?;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::HostTensor;
    use crate::cpu::kernels::tests::run;
    use ampc_ir::DType;

    /// A[2, 3, 600] · B[600, 5] of extreme bytes, with a zero point per row and per column.
    #[test]
    fn sums_are_exact() {
        let (m, k, n) = (6usize, 600usize, 5usize);
        let byte = |i: usize| [0u8, 255, 254, 7][i * 7919 % 4];
        let a: Vec<u8> = (0..m * k).map(byte).collect();
        let b: Vec<u8> = (0..k * n).map(|i| if i % n == 0 { 255 } else { byte(i / 3) }).collect();
        let (zeros_a, zeros_b) = ([0u8, 255, 3], [0u8, 255, 1, 128, 0]);
        let tensor = |dims: &[u64], bytes: &[u8]| HostTensor::from_bytes(DType::U8, dims, bytes).unwrap();
        let inputs =
            [tensor(&[2, 3, 600], &a), tensor(&[600, 5], &b), tensor(&[3], &zeros_a), tensor(&[5], &zeros_b)];
        let y = run("MatMulInteger(%0, %1, %2, %3)", &["i32"], &inputs).unwrap();
        let less = |x: u8, zero: u8| i32::from(x) - i32::from(zero);
        for (i, &found) in y[0].as_slice::<i32>().unwrap().iter().enumerate() {
            let (row, column) = (i / n, i % n);
            let term =
                |j: usize| less(a[row * k + j], zeros_a[row % 3]) * less(b[j * n + column], zeros_b[column]);
            assert_eq!(found, (0..k).map(term).sum::<i32>(), "row {row}, column {column}");
        }
    }

    /// B is broadcast, A is not, and the other way round.
    #[test]
    fn matrices_are_broadcast() {
        let tensor = |dims: &[u64], bytes: &[u8]| HostTensor::from_bytes(DType::U8, dims, bytes).unwrap();
        let (two, one) = (tensor(&[2, 1, 2], &[1, 2, 3, 4]), tensor(&[1, 2, 2], &[1, 2, 3, 4]));
        let sums = |a: &HostTensor, b: &HostTensor| {
            let y = run("MatMulInteger(%0, %1)", &["i32"], &[a.clone(), b.clone()]).unwrap();
            (y[0].dims().to_vec(), y[0].as_slice::<i32>().unwrap().to_vec())
        };
        assert_eq!(sums(&two, &one), (vec![2, 1, 2], vec![7, 10, 15, 22]));
        let columns = tensor(&[2, 2, 1], &[1, 2, 3, 4]);
        assert_eq!(sums(&one, &columns), (vec![2, 2, 1], vec![5, 11, 11, 25]));
    }
}
