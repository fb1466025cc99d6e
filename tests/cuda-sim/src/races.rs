//! Races: two threads of a launch touch a byte, at least one of them writes, and no barrier is between them.
//!
//! With the setting `races`, kernels are compiled by `g++ -fsanitize=thread`, which calls a function at each access to
//! memory. The hooks of `device.h` take the place of the sanitizer's own, and tell of accesses to device memory and to
//! shared memory. The shadow of a byte has its last writer and its readers, with the number of barriers that their block had
//! passed. Accesses of a block are ordered by its barriers alone, accesses of two blocks never. Atomic operations do not race
//! with each other.
//!
//! Every order of threads finds the races of the accesses that the launch makes. Nothing is found between launches of two
//! streams (`schedule.rs` reorders them), in functions of C that are not inlined, such as `memcpy` of many bytes, and
//! in products and convolutions of libraries.

use crate::{memory, records};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A function that kernels call at each access: address, bytes, and 0 for a read, 1 for a write, 2 for an atomic operation.
pub(crate) type Access = unsafe extern "C" fn(*const c_void, c_uint, c_int);

const PAGE: u64 = 4096;
const READ: c_int = 0;
const ATOMIC: c_int = 2;

/// A thread of the grid, and the barriers that it has passed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Point {
    block: u32,
    thread: u32,
    barriers: u32,
}

impl Point {
    /// True if the two are one thread, or a barrier is between them.
    fn is_ordered(self, other: Point) -> bool {
        self.block == other.block && (self.thread == other.thread || self.barriers != other.barriers)
    }
}

/// The readers of a byte since it was written, by the last of them.
#[derive(Clone, Copy)]
struct Readers {
    last: Point,
    /// True if other threads of the block have read it since the same barrier.
    are_several: bool,
    /// True if other blocks have read it.
    are_blocks: bool,
}

#[derive(Clone, Copy, Default)]
struct Cell {
    writer: Option<(Point, bool)>,
    readers: Option<Readers>,
}

/// The bytes that a launch has touched.
struct Shadow {
    pages: BTreeMap<u64, Box<[Cell]>>,
    now: Point,
    shared: [u64; 2],
    race: Option<String>,
}

static SHADOW: Mutex<Shadow> = Mutex::new(Shadow {
    pages: BTreeMap::new(),
    now: Point { block: 0, thread: 0, barriers: 0 },
    shared: [0; 2],
    race: None,
});

fn shadow() -> MutexGuard<'static, Shadow> {
    SHADOW.lock().unwrap_or_else(PoisonError::into_inner)
}

/// True if kernels are compiled to find races.
pub(crate) fn are_found() -> bool {
    records::setting("races").is_some_and(|races| races != 0)
}

/// A launch begins, of a kernel with this shared memory.
pub(crate) fn begin_launch(shared: [u64; 2]) {
    let mut shadow = shadow();
    shadow.pages.clear();
    shadow.race = None;
    shadow.shared = shared;
}

/// A block begins: its shared memory is another one.
pub(crate) fn begin_block() {
    let mut shadow = shadow();
    let [first, end] = shadow.shared;
    for page in first / PAGE..end.div_ceil(PAGE) {
        if let Some(cells) = shadow.pages.get_mut(&page) {
            let covers = |at: usize| (first..end).contains(&(page * PAGE + at as u64));
            cells
                .iter_mut()
                .enumerate()
                .filter(|(at, _)| covers(*at))
                .for_each(|(_, cell)| *cell = Cell::default());
        }
    }
}

/// The thread that runs from now on.
#[expect(clippy::cast_possible_truncation, reason = "numbers of threads and blocks")]
pub(crate) fn enter(block: usize, thread: usize, barriers: usize) {
    shadow().now = Point { block: block as u32, thread: thread as u32, barriers: barriers as u32 };
}

/// The race that was found since the launch began.
pub(crate) fn found() -> Option<String> {
    shadow().race.take()
}

/// Told of each access by kernels.
pub(crate) unsafe extern "C" fn access(at: *const c_void, bytes: c_uint, kind: c_int) {
    let at = at as u64;
    let mut shadow = shadow();
    let [first, end] = shadow.shared;
    if !(first..end).contains(&at) && !memory::holds(at, bytes as usize) {
        return;
    }
    for byte in at..at + u64::from(bytes) {
        let now = shadow.now;
        let cells =
            shadow.pages.entry(byte / PAGE).or_insert_with(|| vec![Cell::default(); PAGE as usize].into());
        if let Some(other) = cells[(byte % PAGE) as usize].touch(now, kind) {
            if shadow.race.is_none() {
                let did = if kind == READ { "reads" } else { "writes" };
                shadow.race = Some(format!(
                    "a race: thread {} of block {} {did} the byte at {byte:#x} that thread {} of block {} has touched",
                    now.thread, now.block, other.thread, other.block
                ));
                records::add("races", 1);
            }
            return;
        }
    }
}

impl Cell {
    /// Notes an access; returns another thread that it races with.
    fn touch(&mut self, now: Point, kind: c_int) -> Option<Point> {
        let is_atomic = kind == ATOMIC;
        if let Some((writer, was_atomic)) = self.writer
            && !(writer.is_ordered(now) || is_atomic && was_atomic)
        {
            return Some(writer);
        }
        if kind == READ {
            self.readers = Some(match self.readers {
                Some(readers) if readers.last.block != now.block => Readers { are_blocks: true, ..readers },
                Some(readers) if readers.last.barriers == now.barriers => {
                    let are_several = readers.are_several || readers.last.thread != now.thread;
                    Readers { are_several, ..readers }
                }
                Some(readers) => Readers { last: now, are_several: false, ..readers },
                None => Readers { last: now, are_several: false, are_blocks: false },
            });
            return None;
        }
        if let Some(readers) = self.readers {
            let is_ordered = readers.last.is_ordered(now)
                && !(readers.are_several && readers.last.barriers == now.barriers)
                && !readers.are_blocks;
            if !is_ordered {
                return Some(readers.last);
            }
        }
        *self = Cell { writer: Some((now, is_atomic)), readers: None };
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_that_race() {
        let at = |block, thread, barriers| Point { block, thread, barriers };
        let race = |accesses: &[(Point, c_int)]| {
            let mut cell = Cell::default();
            accesses.iter().any(|&(now, kind)| cell.touch(now, kind).is_some())
        };
        let (a, b, other, later) = (at(0, 0, 0), at(0, 1, 0), at(1, 0, 1), at(0, 1, 1));
        assert!(!race(&[(a, 0), (b, 0), (other, 0)]), "reads");
        assert!(race(&[(a, 1), (b, 0)]) && race(&[(a, 0), (b, 1)]) && race(&[(a, 1), (b, 1)]));
        assert!(!race(&[(a, 0), (a, 1), (a, 0)]), "one thread");
        assert!(race(&[(a, 0), (b, 0), (a, 1)]), "a write of one of two readers");
        assert!(!race(&[(a, 0), (b, 0), (later, 1)]) && !race(&[(a, 1), (later, 0)]), "a barrier");
        assert!(race(&[(a, 1), (other, 0)]) && race(&[(a, 0), (other, 1)]), "two blocks");
        assert!(!race(&[(a, 2), (other, 2)]) && race(&[(a, 2), (b, 0)]), "atomic operations");
    }
}
