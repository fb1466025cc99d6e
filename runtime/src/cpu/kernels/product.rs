//! Products and convolutions with an epilogue: a callback gets each block of results while the block is in the cache,
//! before the results are rounded, and stores them.

use super::lanes::Real;
use super::{convolution, linear};
use crate::cpu::kernels::elements::of_bytes;
use crate::host::Element;
use crate::kernel::{Io, Prepared, Result, Site, elements_mut};
use crate::room::Room;
use ampc_ir::DType;
use ampc_ir::op::OpKind;

/// The most operands of a product: two matrices, or an image and weights, and a term that is added.
pub(crate) const OPERANDS: usize = 3;

/// An epilogue, called with `(start, block, out, scratch)`. It stores the elements `start..start + block.len()` of the
/// result: it reads them from `block`, not yet rounded, and writes them to the bytes `out`. It may overwrite `block` and
/// `scratch`.
pub(crate) type Epilogue<'a, W> = dyn Fn(usize, &mut [W], &mut [u8], &mut [W]) + Sync + 'a;

/// A product that is computed block by block, in `W`.
pub(crate) trait Parts<W>: Send + Sync {
    /// Bytes of scratch memory.
    fn scratch(&self) -> usize;

    /// Computes the result and calls the epilogue once for each block. `to` is the memory of the stored result, and the
    /// number of bytes of a stored element.
    ///
    /// # Errors
    /// If an operand is absent, or there is no room for a list.
    fn run(
        &self,
        operands: [Option<&[u8]>; OPERANDS],
        scratch: &mut [W],
        to: (&mut [u8], usize),
        room: Room,
        epilogue: &Epilogue<'_, W>,
    ) -> Result<()>;
}

/// A product that is computed as a whole, before the epilogue begins.
pub(crate) trait Whole: Send + Sync {
    /// The number of elements of the result.
    fn result(&self) -> usize;

    /// Bytes of scratch memory.
    fn scratch(&self) -> usize;

    /// Computes the result, in f32 and not rounded, into `to`.
    fn run(&self, operands: [Option<&[u8]>; OPERANDS], scratch: &mut [f32], to: &mut [f32]);
}

/// A product that an epilogue can follow.
pub(crate) enum Product {
    Parts(Box<dyn Parts<f32>>),
    Whole(Box<dyn Whole>),
}

/// The kernel of a product alone: its epilogue rounds and stores each element.
pub(super) fn alone<T: Real + Element>(product: impl Parts<T::Wide> + 'static) -> Prepared {
    let size = size_of::<T>();
    let scratch = product.scratch();
    let kernel = Prepared::new(move |io: &mut Io<'_>| {
        let mut operands = [None; OPERANDS];
        for (i, operand) in operands.iter_mut().enumerate().filter(|(i, _)| io.has(*i)) {
            *operand = Some(io.bytes(i)?);
        }
        let (scratch, room) = (io.scratch(), io.room());
        product.run(operands, scratch, (io.out_bytes(0)?, size), room, &|_, numbers, to, _| {
            T::narrow(numbers, elements_mut(to));
        })
    });
    kernel.scratch(scratch)
}

/// True if an epilogue can follow a node.
pub(crate) fn fits(site: &Site<'_>) -> bool {
    let is_known = |dtype| matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    let is_product = match site.kind() {
        OpKind::Conv => convolution::is_product(site),
        OpKind::Gemm | OpKind::MatMul => true,
        _ => false,
    };
    is_product && site.result_dtype(0).is_ok_and(is_known)
}

/// The product of a node that [fits](fits).
///
/// # Errors
/// If the node is invalid.
pub(crate) fn read(site: &Site<'_>) -> Result<Product> {
    match site.dtype(0)? {
        DType::F32 => of::<f32>(site),
        DType::F16 => of::<half::f16>(site),
        DType::BF16 => of::<half::bf16>(site),
        _ => Err(site.no_kernel()),
    }
}

fn of<T: Real<Wide = f32>>(site: &Site<'_>) -> Result<Product> {
    match site.kind() {
        OpKind::Conv => convolution::product::<T>(site),
        OpKind::Gemm => Ok(Product::Whole(linear::gemm_product::<T>(site)?)),
        OpKind::MatMul => Ok(Product::Whole(linear::matrix_product::<T>(site)?)),
        _ => Err(site.no_kernel()),
    }
}

/// The elements of an operand that may be absent.
pub(super) fn elements<T: bytemuck::Pod>(operand: Option<&[u8]>) -> &[T] {
    operand.map_or(&[], of_bytes)
}
