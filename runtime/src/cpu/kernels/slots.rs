//! Work in parts that each need their own memory.

use super::parallel::{numbered_pieces, pairs_of_pieces};
use bytemuck::Pod;

/// At most so many parts are worked on at once, whatever the number of threads.
pub(super) const SLOTS: usize = 64;

/// The number of parts for `items` that each need `room` elements of scratch memory: as many as there can be
/// without more than `most` elements in all.
pub(super) fn count(items: usize, room: usize, most: usize) -> usize {
    (most / room.max(1)).clamp(1, SLOTS).min(items.max(1))
}

/// Cuts `out`, items of `unit` elements each, into `slots` parts and calls `work` with the first item, the elements
/// and the scratch memory of each part, in parallel.
pub(super) fn run<T: Pod, W: Pod>(
    out: &mut [T],
    unit: usize,
    room: &mut [W],
    slots: usize,
    work: impl Fn(usize, &mut [T], &mut [W]) + Sync,
) {
    run_parts(out, unit, room, slots, &work);
}

/// The work for each part: its first item, its elements, its scratch memory.
type Work<'a, T, W> = dyn Fn(usize, &mut [T], &mut [W]) + Sync + 'a;

fn run_parts<T: Pod, W: Pod>(
    out: &mut [T],
    unit: usize,
    room: &mut [W],
    slots: usize,
    work: &Work<'_, T, W>,
) {
    if out.is_empty() {
        return;
    }
    let per_slot = (out.len() / unit).div_ceil(slots);
    let per_room = room.len() / slots;
    if slots == 1 {
        work(0, out, room);
    } else if per_room == 0 {
        numbered_pieces(out, per_slot * unit, 1, |i, out| work(i * per_slot, out, &mut []));
    } else {
        let parts = (out, per_slot * unit);
        pairs_of_pieces(parts, (room, per_room), |i, out, room| work(i * per_slot, out, room));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_all_items() {
        for (items, slots) in [(1, 1), (7, 3), (8, 64), (200, 64)] {
            let (mut out, mut room) = (vec![0; items * 2], vec![0u8; slots * 3]);
            run(&mut out, 2, &mut room, slots, |first, out, room| {
                assert_eq!(room.len(), 3);
                out.iter_mut().enumerate().for_each(|(i, y)| *y += first * 2 + i + 1);
            });
            assert!(out.iter().enumerate().all(|(i, &y)| y == i + 1));
        }
    }

    #[test]
    fn memory_bounds_the_parts() {
        assert_eq!((count(1000, 10, 100), count(3, 10, 100), count(5, 1000, 100)), (10, 3, 1));
        assert_eq!(count(1000, 0, 100), SLOTS);
    }
}
