//! Operators whose results list the values that occur: NonZero, Unique.
//!
//! The sizes of the results are known only after the computation. Unique treats all NaNs as one element, the
//! greatest, as NumPy does.

use super::elements::{Cell, Movement, around, cells, made, strides, texts};
use super::gather::pick;
use super::indexing::Ordered;
use super::lanes::{for_int, for_number, for_real};
use super::parallel::sort_unstable_by;
use crate::host::{Element, HostTensor, TensorRef};
use crate::kernel::{Io, KernelError, Prepare, Prepared, Result, Site};
use crate::room::Room;
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::{Part, normalize_axis};
use std::cmp::Ordering;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::NonZero => non_zero,
        OpKind::Unique => unique,
        _ => return None,
    })
}

/// The indices of elements other than zero, and of strings that are not empty.
fn non_zero(site: &Site<'_>) -> Result<Prepared> {
    let dtype = site.dtype(0)?;
    let bits = dtype.bits();
    if !matches!(bits, Some(8 | 16 | 32 | 64)) && dtype != DType::String {
        return Err(site.no_kernel());
    }
    // -0 is zero.
    let sign = u64::from(dtype.is_float());
    Ok(Prepared::new(move |io| {
        let (tensor, room) = (io.tensor(0)?, io.room());
        let found = match bits {
            Some(8) => indices_of(room, cells::<u8>(&tensor)?, |&x| x != 0),
            Some(16) => indices_of(room, cells::<u16>(&tensor)?, |&x| u64::from(x) << (48 + sign) != 0),
            Some(32) => indices_of(room, cells::<u32>(&tensor)?, |&x| u64::from(x) << (32 + sign) != 0),
            Some(_) => indices_of(room, cells::<u64>(&tensor)?, |&x| x << sign != 0),
            None => indices_of(room, texts(&tensor)?, |s| !s.is_empty()),
        }?;
        let dims = [tensor.dims().len() as u64, found.len() as u64];
        io.check_size(dims[0].saturating_mul(dims[1]).saturating_mul(8))?;
        let strides = strides(tensor.dims());
        let mut made = HostTensor::zeros(DType::I64, &dims)?;
        if !found.is_empty() {
            let bytes = made.bytes_mut().unwrap_or_default();
            let axes = strides.iter().zip(tensor.dims());
            for ((&stride, &dim), to) in axes.zip(bytes.chunks_exact_mut(found.len() * 8)) {
                for (to, &at) in to.chunks_exact_mut(8).zip(&found) {
                    to.copy_from_slice(&(at / stride % dim).to_le_bytes());
                }
            }
        }
        io.emit(0, made)
    }))
}

fn indices_of<T>(room: Room, from: &[T], is_there: impl Fn(&T) -> bool) -> Result<Vec<u64>> {
    room.gathered(from.iter().enumerate().filter(|(_, x)| is_there(x)).map(|(i, _)| i as u64))
}

/// The blocks of an operand that are there once: `outer` times `n` blocks of `inner` elements, of which those with
/// one index are one item.
struct Items {
    axis: Option<usize>,
    sorted: bool,
}

fn unique(site: &Site<'_>) -> Result<Prepared> {
    let rank = site.dims(0)?.len();
    let axis = match site.view.attr("axis") {
        Some(_) => Some(normalize_axis(site.view.int("axis").unwrap_or(0), rank, Part::Attr("axis".into()))?),
        None => None,
    };
    let items = Items { axis, sorted: site.view.int("sorted").unwrap_or(1) != 0 };
    Ok(match site.dtype(0)? {
        DType::String => Prepared::new(move |io| {
            let tensor = io.tensor(0)?;
            items.find(io, tensor, texts(&tensor)?)
        }),
        DType::Bool => Prepared::new(move |io| {
            let tensor = io.tensor(0)?;
            items.find(io, tensor, cells::<u8>(&tensor)?)
        }),
        dtype => for_number!(dtype, site, T => numbers::<T>(items)),
    })
}

fn numbers<T: Element + Ordered>(items: Items) -> Prepared {
    Prepared::new(move |io| {
        let tensor = io.tensor(0)?;
        items.find(io, tensor, tensor.as_slice::<T>()?)
    })
}

impl Items {
    fn find<T: Ordered>(&self, io: &mut Io<'_>, tensor: TensorRef<'_>, from: &[T]) -> Result<()> {
        let extents: Vec<usize> =
            tensor.dims().iter().map(|&d| usize::try_from(d).unwrap_or(usize::MAX)).collect();
        let (outer, n, inner) = self.axis.map_or((1, from.len(), 1), |axis| around(&extents, axis));
        if n > 0 && from.is_empty() {
            return Err(KernelError::value(
                "items of one element or more",
                format!("dims {:?}", tensor.dims()),
            ));
        }
        let item =
            |i: usize| (0..outer).flat_map(move |o| &from[(o * n + i) * inner..(o * n + i + 1) * inner]);
        if (outer, inner) == (1, 1) {
            return self.run(io, tensor, (n, inner), &|a, b| from[a].order(&from[b]));
        }
        self.run(io, tensor, (n, inner), &|a, b| {
            let unequal =
                item(a).zip(item(b)).map(|(a, b)| a.order(b)).find(|&order| order != Ordering::Equal);
            unequal.unwrap_or(Ordering::Equal)
        })
    }

    /// Finds and writes the items. The order of two is behind a reference, so that sorting is compiled once.
    fn run(
        &self,
        io: &mut Io<'_>,
        tensor: TensorRef<'_>,
        (n, inner): (usize, usize),
        order: &(dyn Fn(usize, usize) -> Ordering + Sync),
    ) -> Result<()> {
        let room = io.room();
        let mut all = room.gathered(0..n)?;
        sort_unstable_by(&mut all, &|a, b| order(a, b).then(a.cmp(&b)));
        // Groups of equal items, the first of each at its front.
        let mut groups: Vec<&[usize]> =
            room.gathered(all.chunk_by(|&a, &b| order(a, b) == Ordering::Equal))?;
        if !self.sorted {
            groups.sort_unstable_by_key(|group| group[0]);
        }
        let firsts = room.gathered(groups.iter().map(|group| group[0]))?;
        let mut dims = tensor.dims().to_vec();
        match self.axis {
            Some(axis) => dims[axis] = firsts.len() as u64,
            None => dims = vec![firsts.len() as u64],
        }
        let list = |values: Vec<i64>| HostTensor::from_slice(&[values.len() as u64], &values);
        let number = |i: usize| i64::try_from(i).unwrap_or(i64::MAX);
        io.emit(1, list(room.gathered(firsts.iter().map(|&i| number(i)))?)?)?;
        if io.wants(2) {
            let mut group_of = room.filled(n, 0)?;
            for (g, group) in groups.iter().enumerate() {
                group.iter().for_each(|&i| group_of[i] = number(g));
            }
            io.emit(2, list(group_of)?)?;
        }
        io.emit(3, list(room.gathered(groups.iter().map(|group| number(group.len())))?)?)?;
        let made = made(io, &[tensor], &dims, &Picked { n, inner, picks: firsts })?;
        io.emit(0, made)
    }
}

/// Blocks at indices that were found.
pub(super) struct Picked {
    pub(super) n: usize,
    pub(super) inner: usize,
    pub(super) picks: Vec<usize>,
}

impl Movement for Picked {
    fn run<T: Cell>(&self, _: &Io<'_>, from: &[&[T]], to: &mut [&mut [T]]) -> Result<()> {
        pick(self.n, self.inner, self.picks.len(), |i| self.picks[i], from[0], to[0]);
        Ok(())
    }
}
