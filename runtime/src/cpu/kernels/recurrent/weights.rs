//! The weights of a recurrent operator as its tasks use them: packed, and part by part.

use super::cut::Cut;
use super::panels::{Panels, pack};
use super::{Operands, each};
use crate::bytes::AlignedBytes;
use crate::cpu::kernels::lanes::{Real, Wide, widened};
use crate::cpu::kernels::parallel::PIECE;
use crate::host::HostError;
use crate::kernel::{Result, elements_mut};
use crate::room::Room;
use std::sync::OnceLock;

/// One of the matrices W and R of a direction.
#[derive(Clone, Copy)]
pub(super) enum Matrix<'a, W> {
    /// Panels, part by part.
    Packed(&'a [W]),
    /// Rows as they are in the operand.
    Unpacked(&'a [W]),
}

/// The weights of one direction; vectors are part by part.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a, W> {
    pub(super) w: Matrix<'a, W>,
    pub(super) r: Matrix<'a, W>,
    pub(super) bias: &'a [W],
    /// That of the hidden gate of a GRU.
    pub(super) r_bias: &'a [W],
    pub(super) peepholes: &'a [W],
}

impl<'a, W: Wide> Weights<'a, W> {
    /// The weights of direction `d` where they were written.
    pub(super) fn new<T: Real<Wide = W>>(
        cut: &Cut,
        d: usize,
        operands: &Operands<'a, T>,
        matrices: &'a [W],
        vectors: &'a [W],
    ) -> Weights<'a, W> {
        let mut room = &matrices[d * cut.matrices_room(T::IS_WIDE)..];
        let [w, r] = std::array::from_fn(|which| {
            let (own, rest) = room.split_at(cut.matrix_room(which, T::IS_WIDE));
            room = rest;
            let size = cut.it.row() * cut.depth(which);
            match T::as_wide(operands.matrices[which]) {
                _ if !cut.is_unpacked[which] => Matrix::Packed(own),
                Some(wide) => Matrix::Unpacked(&wide[d * size..][..size]),
                None => Matrix::Unpacked(&own[..size]),
            }
        });
        let vectors = &vectors[d * cut.vectors_room()..];
        let (bias, vectors) = vectors.split_at(cut.it.gates * cut.padded);
        let (r_bias, peepholes) = vectors.split_at(cut.padded);
        Weights { w, r, bias, r_bias, peepholes }
    }

    /// The biases of all gates in part `p`.
    pub(super) fn bias(&self, cut: &Cut, p: usize) -> &'a [W] {
        &self.bias[cut.it.gates * p * cut.part..][..cut.it.gates * cut.units(p)]
    }
}

/// Writes W and R of all directions, packed or widened.
pub(super) fn write_matrices<T: Real<Wide = W>, W: Panels>(
    cut: &Cut,
    operands: &Operands<'_, T>,
    to: &mut [W],
) {
    let mut room = to;
    for (d, which) in (0..cut.it.directions).flat_map(|d| [(d, 0), (d, 1)]) {
        let (own, rest) = room.split_at_mut(cut.matrix_room(which, T::IS_WIDE));
        let size = cut.it.row() * cut.depth(which);
        let from = &operands.matrices[which][d * size..][..size];
        if !cut.is_unpacked[which] {
            pack_parts(cut, cut.depth(which), from, own);
        } else if !T::IS_WIDE {
            widened(from, own);
        }
        room = rest;
    }
}

/// Writes the biases and peepholes of all directions, part by part. If `is_apart`, the bias of R of the last gate is not
/// added to that of W.
pub(super) fn write_vectors<T: Real>(
    cut: &Cut,
    operands: &Operands<'_, T>,
    is_apart: bool,
    to: &mut [T::Wide],
) {
    let (it, zero) = (&cut.it, T::Wide::of(0.0));
    for (d, to) in to.chunks_mut(cut.vectors_room().max(1)).enumerate() {
        let (bias, to) = to.split_at_mut(it.gates * cut.padded);
        let (r_bias, peepholes) = to.split_at_mut(cut.padded);
        bias.fill(zero);
        r_bias.fill(zero);
        if let Some(b) = operands.b {
            let (of_w, of_r) = b[d * 2 * it.row()..][..2 * it.row()].split_at(it.row());
            let (of_w, of_r) = (|i: usize| of_w[i].wide(), |i: usize| of_r[i].wide());
            let last = it.row() - it.hidden;
            by_part(cut, it.gates, |i| if is_apart && i >= last { of_w(i) } else { of_w(i) + of_r(i) }, bias);
            by_part(cut, 1, |i| of_r(last + i), r_bias);
        }
        if let Some(p) = operands.peepholes {
            by_part(cut, 3, |i| p[d * 3 * it.hidden + i].wide(), peepholes);
        }
    }
}

/// Packed W and R of all directions, which are constants: written in the first run.
#[derive(Default)]
pub(super) struct Kept(OnceLock<AlignedBytes>);

impl Kept {
    /// The `n` elements, which `write` writes if no run did yet.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub(super) fn get<W: Wide>(&self, n: usize, room: Room, write: impl FnOnce(&mut [W])) -> Result<&[W]> {
        if self.0.get().is_none() {
            room.check::<W>(n)?;
            let bytes = n.saturating_mul(size_of::<W>());
            let made = AlignedBytes::zeroed(bytes);
            let mut made = made.ok_or(HostError::NoMemory { bytes: bytes as u64 })?;
            write(elements_mut(made.as_mut_slice()));
            // The bytes are the same if another session was faster. A lock could deadlock: `write` is parallel, and a thread
            // that waits inside it may take up work of that session.
            let _ = self.0.set(made);
        }
        let bytes = self.0.get().map_or(&[][..], AlignedBytes::as_slice);
        Ok(if bytes.is_empty() { &[] } else { bytemuck::cast_slice(bytes) })
    }
}

/// Packs one of the matrices W and R, part by part.
fn pack_parts<T: Real<Wide = W>, W: Panels>(cut: &Cut, k: usize, from: &[T], to: &mut [W]) {
    let it = &cut.it;
    let row = it.gates * k;
    if row == 0 {
        return;
    }
    each(to, cut.part * row, (cut.part * row, PIECE), |p, to| {
        let units = cut.units(p);
        pack(k, W::lanes(), to, |column| {
            let unit = p * cut.part + column % units;
            (unit < it.hidden).then(|| &from[(column / units * it.hidden + unit) * k..][..k])
        });
    });
}

/// Vectors gate by gate, part by part.
fn by_part<W: Wide>(cut: &Cut, gates: usize, from: impl Fn(usize) -> W, to: &mut [W]) {
    for (p, to) in to.chunks_mut(gates * cut.part).enumerate() {
        for (gate, to) in to.chunks_exact_mut(cut.units(p)).enumerate() {
            for (i, y) in to.iter_mut().enumerate() {
                let unit = p * cut.part + i;
                *y = if unit < cut.it.hidden { from(gate * cut.it.hidden + unit) } else { W::zero() };
            }
        }
    }
}
