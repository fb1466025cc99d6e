//! Products and convolutions whose results are not stored by themselves: the code that reads the result takes it while it
//! is in the cache, before it is rounded.

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

/// Takes numbers of a result, from the element of this index on, to the bytes of these elements. The numbers are used up,
/// and so is the last operand, memory that nothing else uses.
pub(crate) type Store<'a, W> = dyn Fn(usize, &mut [W], &mut [u8], &mut [W]) + Sync + 'a;

/// A product that is computed in `W` a part at a time.
pub(crate) trait Parts<W>: Send + Sync {
    /// Bytes of scratch memory.
    fn scratch(&self) -> usize;

    /// Computes all elements and stores each once. `to` is the room for the stored elements, and the bytes of each.
    ///
    /// # Errors
    /// If an operand is absent, or there is no room for a list.
    fn run(
        &self,
        operands: [Option<&[u8]>; OPERANDS],
        scratch: &mut [W],
        to: (&mut [u8], usize),
        room: Room,
        store: &Store<'_, W>,
    ) -> Result<()>;
}

/// A product whose numbers are all there before the first of them is stored.
pub(crate) trait Whole: Send + Sync {
    /// The number of elements of the result.
    fn result(&self) -> usize;

    /// Bytes of scratch memory.
    fn scratch(&self) -> usize;

    /// Computes all numbers, and leaves the scratch memory that it does not need.
    fn run(&self, operands: [Option<&[u8]>; OPERANDS], scratch: &mut [f32], to: &mut [f32]);
}

/// A product whose result other code takes.
pub(crate) enum Product {
    Parts(Box<dyn Parts<f32>>),
    Whole(Box<dyn Whole>),
}

/// The kernel of a product alone: each element is rounded and stored.
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

/// True if other code can take the result of a node.
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
