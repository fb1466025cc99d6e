//! TopK: the greatest or the least elements along an axis, in order.
//!
//! NaN is the greatest number; of equal elements the first comes first. An element and its index are one integer, an
//! entry, so that one function sorts the elements of all types: a key that is ordered as the elements are, or against
//! their order for the greatest, and below it the index. The greatest two of the elements `[2.0, -1.0, 2.0]` are
//! found like this:
//!
//! ```text
//! element   key           entry by descending elements
//!  2.0      0xc000_0000   0x3fff_ffff_0000_0000   first
//! -1.0      0x407f_ffff   0xbf80_0000_0000_0001
//!  2.0      0xc000_0000   0x3fff_ffff_0000_0002   second
//! ```

use super::elements::{around, count};
use super::lanes::{for_int, for_number, for_real};
use super::window::work_through;
use crate::host::Element;
use crate::kernel::{KernelError, Prepared, Result, Site};
use ampc_ir::views::reduce::TopKView;
use bytemuck::Pod;
use half::{bf16, f16};

/// Elements whose order is that of integers.
trait Ordered: Element + Send + Sync {
    /// The integer of an element and its index.
    type Entry: Entry;
    /// A number that orders the elements; of its bits, as many count as the element has.
    fn key(self) -> u64;
}

/// A key above an index.
trait Entry: Pod + Ord + Send + Sync {
    fn new(key: u64, index: u32) -> Self;
    fn index(self) -> u32;
}

macro_rules! entries {
    ($($ty:ident),*) => {$(
        #[allow(clippy::cast_possible_truncation, reason = "the index is the low bits")]
        impl Entry for $ty {
            fn new(key: u64, index: u32) -> $ty {
                $ty::from(key) << 32 | $ty::from(index)
            }
            fn index(self) -> u32 {
                self as u32
            }
        }
    )*};
}

entries!(u64, u128);

macro_rules! ordered {
    (signed: $($int:ident as $bits:ident in $entry:ident),*; unsigned: $($uint:ident in $uentry:ident),*;
     floats: $($float:ident as $fbits:ident in $fentry:ident),*) => {
        $(impl Ordered for $int {
            type Entry = $entry;
            fn key(self) -> u64 {
                u64::from(self.cast_unsigned() ^ $int::MIN.cast_unsigned())
            }
        })*
        $(impl Ordered for $uint {
            type Entry = $uentry;
            fn key(self) -> u64 {
                u64::from(self)
            }
        })*
        $(impl Ordered for $float {
            type Entry = $fentry;
            /// Negative numbers are ordered against their bits; both zeros are equal, and so are all NaNs.
            fn key(self) -> u64 {
                let (bits, sign) = (self.to_bits(), 1 << ($fbits::BITS - 1));
                let key = match bits {
                    _ if self.is_nan() => $fbits::MAX,
                    bits if bits == sign => sign,
                    bits if bits & sign != 0 => !bits,
                    bits => bits | sign,
                };
                u64::from(key)
            }
        })*
    };
}

ordered!(signed: i64 as u64 in u128, i32 as u32 in u64, i16 as u16 in u64, i8 as u8 in u64;
    unsigned: u64 in u128, u32 in u64, u16 in u64, u8 in u64;
    floats: f64 as u64 in u128, f32 as u32 in u64, f16 as u16 in u64, bf16 as u16 in u64);

/// Parameters of a TopK.
#[derive(Clone, Copy)]
struct Top {
    n: usize,
    inner: usize,
    k: usize,
    largest: bool,
}

/// At most so many rows are searched at a time, each with room of its own.
const ROOMS: usize = 16;

/// Elements are few of those that are more than so many times as many.
const FEW: usize = 16;

pub(super) fn top_k(site: &Site<'_>) -> Result<Prepared> {
    let view = TopKView::read(&site.view)?;
    let dims = site.dims(0)?;
    let axis = view.axis.ok_or(KernelError::NotYet)?;
    let (outer, n, inner) = around(&dims, axis);
    let k = view.k.and_then(|k| usize::try_from(k).ok()).ok_or(KernelError::NotYet)?;
    if k > n {
        return Err(view.k_error(format!("at most {n} elements"), k).into());
    }
    u32::try_from(n).map_err(|_| KernelError::unsupported("TopK of 2^32 elements and more"))?;
    let elements = count(&dims)?;
    let top = Top { n, inner, k, largest: view.largest };
    let rooms = if elements == 0 { 0 } else { outer.min(ROOMS) };
    let entries = rooms.saturating_mul(top.entries());
    Ok(for_number!(site.dtype(0)?, site, T => Prepared::new(move |io| {
        let from = io.slice::<T>(0)?;
        let values = if io.wants(0) { Some(io.out::<T>(0)?) } else { None };
        let indices = if io.wants(1) { Some(io.out::<i64>(1)?) } else { None };
        if k == 0 || from.is_empty() {
            return Ok(());
        }
        top.run(from, values, indices, io.scratch(), outer);
        Ok(())
    })
    .scratch(entries.saturating_mul(size_of::<<T as Ordered>::Entry>()))))
}

impl Top {
    /// The entries that a search needs room for.
    fn entries(&self) -> usize {
        if self.k <= self.n / FEW { self.k } else { self.n }
    }

    fn run<T: Ordered>(
        self,
        from: &[T],
        mut values: Option<&mut [T]>,
        mut indices: Option<&mut [i64]>,
        room: &mut [T::Entry],
        outer: usize,
    ) {
        let share = outer.div_ceil(ROOMS);
        let (read, written) = (share * self.n * self.inner, share * self.k * self.inner);
        let parts =
            from.chunks(read).map(|from| (from, cut(&mut values, written), cut(&mut indices, written)));
        work_through(parts, room, self.entries(), |room, (from, mut values, mut indices)| {
            for (i, from) in from.chunks(self.n * self.inner).enumerate() {
                for column in 0..self.inner {
                    let from = &from[column..];
                    let first = i * self.k * self.inner + column;
                    for (j, found) in self.search(from, room).iter().map(|entry| entry.index()).enumerate() {
                        let at = first + j * self.inner;
                        if let Some(values) = &mut values {
                            values[at] = from[found as usize * self.inner];
                        }
                        if let Some(indices) = &mut indices {
                            indices[at] = i64::from(found);
                        }
                    }
                }
            }
        });
    }

    /// The entries of the elements that are taken, in order.
    fn search<'r, T: Ordered>(&self, from: &[T], room: &'r mut [T::Entry]) -> &'r [T::Entry] {
        let mut entries =
            (0u32..).zip(from.iter().step_by(self.inner)).map(|(i, &x)| self.entry(x, i)).take(self.n);
        room.iter_mut().zip(&mut entries).for_each(|(to, entry)| *to = entry);
        if room.len() == self.n {
            return first(room, self.k);
        }
        // The best so far are a heap with the worst of them on top, which most other elements do not pass.
        last_on_top(room);
        for entry in entries {
            if entry < room[0] {
                room[0] = entry;
                sink(room);
            }
        }
        first(room, self.k)
    }

    fn entry<T: Ordered>(&self, x: T, index: u32) -> T::Entry {
        let bits = u64::MAX >> (64 - 8 * size_of::<T>());
        T::Entry::new(if self.largest { !x.key() & bits } else { x.key() }, index)
    }
}

/// The first `k` entries, in order.
fn first<E: Entry>(entries: &mut [E], k: usize) -> &[E] {
    if k < entries.len() {
        entries.select_nth_unstable(k - 1);
    }
    let taken = &mut entries[..k];
    taken.sort_unstable();
    taken
}

/// Makes entries a heap: none is behind the one above it. From the last one to the first they are a heap.
fn last_on_top<E: Entry>(entries: &mut [E]) {
    entries.sort_unstable();
    entries.reverse();
}

/// Puts the first entry of an otherwise ordered heap to where it belongs.
fn sink<E: Entry>(heap: &mut [E]) {
    let mut at = 0;
    loop {
        let children = [2 * at + 1, 2 * at + 2].into_iter().filter(|&child| child < heap.len());
        let top = children.fold(at, |a, b| if heap[a] < heap[b] { b } else { a });
        if top == at {
            return;
        }
        heap.swap(at, top);
        at = top;
    }
}

/// The first `n` of the remaining elements, or all.
fn cut<'a, T>(left: &mut Option<&'a mut [T]>, n: usize) -> Option<&'a mut [T]> {
    let list = left.take()?;
    let (head, rest) = list.split_at_mut(n.min(list.len()));
    *left = Some(rest);
    Some(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Ordering;

    fn numbers(n: usize) -> Vec<f32> {
        let number = |i: usize| match i * 7919 % 101 {
            0 => f32::NAN,
            1 => -f32::NAN,
            2 => -0.0,
            3 => 0.0,
            x => f32::from(u8::try_from(x).unwrap()) / 3.0 - 10.0,
        };
        (0..n).map(number).collect()
    }

    /// The order of ONNX's text, with NaN behind all numbers.
    fn order(a: f32, b: f32) -> Ordering {
        a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
    }

    #[test]
    fn few_of_many_are_the_first_of_all_in_order() {
        for (n, k, inner) in
            [(1000, 1, 1), (1000, 62, 1), (1000, 63, 1), (400, 25, 3), (16, 1, 1), (40, 40, 1), (1, 1, 2)]
        {
            let from = numbers(n * inner);
            for largest in [true, false] {
                let top = Top { n, inner, k, largest };
                let mut all: Vec<u32> = (0..).take(n).collect();
                all.sort_by(|&a, &b| {
                    let order = order(from[a as usize * inner], from[b as usize * inner]);
                    if largest { order.reverse() } else { order }
                });
                let mut room = vec![0; top.entries()];
                let found: Vec<u32> =
                    top.search(&from, &mut room).iter().map(|entry| entry.index()).collect();
                assert_eq!(found, &all[..k], "{n} {k} {inner} {largest}");
            }
        }
    }

    #[test]
    fn keys_are_ordered_as_elements() {
        fn ascend<T: Ordered + std::fmt::Debug>(elements: &[T]) {
            for pair in elements.windows(2) {
                assert!(pair[0].key() < pair[1].key(), "{pair:?}");
            }
        }
        ascend(&[i64::MIN, -1, 0, 1, i64::MAX]);
        ascend(&[i8::MIN, -1, 0, 1, i8::MAX]);
        ascend(&[0, 1, u32::MAX]);
        ascend(&[f64::NEG_INFINITY, -1.5, -f64::MIN_POSITIVE, 0.0, 5e-324, 1.0, f64::INFINITY, f64::NAN]);
        ascend(&[
            f16::NEG_INFINITY,
            f16::MIN,
            f16::ZERO,
            f16::MIN_POSITIVE,
            f16::MAX,
            f16::INFINITY,
            f16::NAN,
        ]);
        ascend(&[bf16::NEG_INFINITY, bf16::NEG_ONE, bf16::ZERO, bf16::ONE, bf16::INFINITY, bf16::NAN]);
        assert_eq!((-0.0f32).key(), 0.0f32.key());
        assert_eq!((-f16::NAN).key(), f16::NAN.key());
    }
}
