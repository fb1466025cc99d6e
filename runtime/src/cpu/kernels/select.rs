//! Elements chosen by others: Compress, ReverseSequence.

use super::elements::{Cell, Indices, Movement, around, count, made, moved, rows, size};
use super::gather::axis_of;
use super::unique::Picked;
use crate::kernel::{Io, KernelError, Prepare, Prepared, Result, Site};
use ampc_ir::op::OpKind;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Compress => compress,
        OpKind::ReverseSequence => reverse_sequence,
        _ => return None,
    })
}

fn compress(site: &Site<'_>) -> Result<Prepared> {
    let dims = site.dims(0)?;
    let axis = match site.view.attr("axis") {
        Some(_) => Some(axis_of(site, 0, dims.len())?),
        None => None,
    };
    let total = count(&dims)?;
    let (_, n, inner) = axis.map_or((1, total, 1), |axis| around(&dims, axis));
    Ok(Prepared::new(move |io| {
        let tensor = io.tensor(0)?;
        // Conditions behind the end choose nothing.
        let chosen = io.bytes(1)?.iter().take(n).enumerate().filter(|&(_, &c)| c != 0);
        let picks = io.room().gathered(chosen.map(|(i, _)| i))?;
        let mut dims = tensor.dims().to_vec();
        match axis {
            Some(axis) => dims[axis] = picks.len() as u64,
            None => dims = vec![picks.len() as u64],
        }
        let made = made(io, &[tensor], &dims, &Picked { n, inner, picks })?;
        io.emit(0, made)
    }))
}

/// The first elements of sequences in opposite order. One of the first two axes is time, the other the batch.
struct Reversed {
    dims: [usize; 2],
    inner: usize,
    time: usize,
}

fn reverse_sequence(site: &Site<'_>) -> Result<Prepared> {
    let dims = site.dims(0)?;
    count(&dims)?;
    let time = usize::from(site.view.int("time_axis").unwrap_or(0) == 1);
    moved(site, &[0], Reversed { dims: [dims[0], dims[1]], inner: size(&dims[2..]), time })
}

impl Movement for Reversed {
    fn run<T: Cell>(&self, io: &Io<'_>, from: &[&[T]], to: &mut [&mut [T]]) -> Result<()> {
        let (n, most) = (self.dims[1 - self.time], self.dims[self.time]);
        let lengths = Indices::of(io, 1, n)?;
        let length = |i: usize| usize::try_from(lengths.get(i)).ok().filter(|&n| n <= most);
        if let Some(i) = (0..n).find(|&i| length(i).is_none()) {
            return Err(KernelError::value(format!("lengths in [0, {most}]"), lengths.get(i)));
        }
        rows(to[0], self.inner.max(1), |row, column, to| {
            let mut at = [row / self.dims[1], row % self.dims[1]];
            let length = length(at[1 - self.time]).unwrap_or(0);
            if at[self.time] < length {
                at[self.time] = length - 1 - at[self.time];
            }
            let from_row = at[0] * self.dims[1] + at[1];
            let start = from_row * self.inner + column;
            to.copy_from_slice(&from[0][start..start + to.len()]);
        });
        Ok(())
    }
}
