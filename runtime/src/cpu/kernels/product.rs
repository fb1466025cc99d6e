//! Products and convolutions whose results are not stored by themselves: the code that reads the result takes it while it
//! is in the cache, before it is rounded.

use super::lanes::{PIECE, Real, pieces};
use super::{convolution, linear};
use crate::cpu::kernels::elements::of_bytes;
use crate::host::Element;
use crate::kernel::{Io, Prepared, Result, Site, elements_mut};
use crate::room::Room;
use ampc_ir::DType;
use ampc_ir::op::OpKind;

/// The most operands of a product: two matrices, or an image and weights, and a term that is added.
pub(crate) const OPERANDS: usize = 3;

/// Takes numbers of a result, from the element of this index on, to the bytes of these elements. The numbers are used up.
pub(crate) type Store<'a, W> = dyn Fn(usize, &mut [W], &mut [u8]) + Sync + 'a;

/// A product that is computed in `W`.
pub(crate) trait Product<W>: Send + Sync {
    /// Bytes of scratch memory, for stored elements of so many bytes.
    fn scratch(&self, size: usize) -> usize;

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

/// The kernel of a product alone: each element is rounded and stored.
pub(super) fn alone<T: Real + Element>(product: impl Product<T::Wide> + 'static) -> Prepared {
    let size = size_of::<T>();
    let scratch = product.scratch(size);
    let kernel = Prepared::new(move |io: &mut Io<'_>| {
        let mut operands = [None; OPERANDS];
        for (i, operand) in operands.iter_mut().enumerate().filter(|(i, _)| io.has(*i)) {
            *operand = Some(io.bytes(i)?);
        }
        let (scratch, room) = (io.scratch(), io.room());
        product.run(operands, scratch, (io.out_bytes(0)?, size), room, &|_, numbers, to| {
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
pub(crate) fn read(site: &Site<'_>) -> Result<Box<dyn Product<f32>>> {
    match site.dtype(0)? {
        DType::F32 => of::<f32>(site),
        DType::F16 => of::<half::f16>(site),
        DType::BF16 => of::<half::bf16>(site),
        _ => Err(site.no_kernel()),
    }
}

fn of<T: Real<Wide = f32>>(site: &Site<'_>) -> Result<Box<dyn Product<f32>>> {
    match site.kind() {
        OpKind::Conv => convolution::product::<T>(site),
        OpKind::Gemm => linear::gemm_product::<T>(site),
        OpKind::MatMul => linear::matrix_product::<T>(site),
        _ => Err(site.no_kernel()),
    }
}

/// The elements of an operand that may be absent.
pub(super) fn elements<T: bytemuck::Pod>(operand: Option<&[u8]>) -> &[T] {
    operand.map_or(&[], of_bytes)
}

/// Numbers that are taken to where they belong at a time.
const BLOCK: usize = 1024;

/// Lets `work` compute a result, and stores it: in its place, where elements are stored as they are computed, otherwise
/// from `room`.
pub(super) fn store_all<W: bytemuck::Pod + Default + Send + Sync>(
    (to, size): (&mut [u8], usize),
    room: &mut [W],
    store: &Store<'_, W>,
    work: impl FnOnce(&mut [W]),
) {
    if size == size_of::<W>() {
        let to: &mut [W] = elements_mut(to);
        work(to);
        pieces(to, PIECE, |start, to| {
            let mut block = [W::default(); BLOCK];
            for (i, to) in to.chunks_mut(BLOCK).enumerate() {
                let block = &mut block[..to.len()];
                block.copy_from_slice(to);
                store(start + i * BLOCK, block, bytemuck::cast_slice_mut(to));
            }
        });
        return;
    }
    let room = &mut room[..to.len() / size];
    work(room);
    let room = &*room;
    pieces(to, PIECE * size, |start, to| {
        let start = start / size;
        let mut block = [W::default(); BLOCK];
        for (i, to) in to.chunks_mut(BLOCK * size).enumerate() {
            let block = &mut block[..to.len() / size];
            block.copy_from_slice(&room[start + i * BLOCK..][..block.len()]);
            store(start + i * BLOCK, block, to);
        }
    });
}
