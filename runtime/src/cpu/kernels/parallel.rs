//! Work on pieces of tensors in parallel.
//!
//! The code that starts threads sees bytes and closures behind a reference: it is compiled once, and not for every kernel
//! and element type. Pieces do not depend on the number of threads. Outside of the threads of a pool, where a sequential run
//! is computed ([`runs_sequentially`]), this thread does all pieces.

use crate::kernel::Result;
use crate::room::FirstError;
use bytemuck::{Pod, cast_slice_mut};
use rayon::prelude::*;
use std::cell::Cell;
use std::cmp::Ordering;

/// Elements per piece of work that one thread takes.
pub(crate) const PIECE: usize = 1 << 15;

thread_local! {
    /// True if the current run has had parallel work.
    static HAS_FORKED: Cell<bool> = const { Cell::new(false) };
    /// True in the threads of this backend's pools.
    static IN_POOL: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, and returns true if it had no parallel work.
pub(crate) fn runs_sequentially(work: &mut (dyn FnMut() + Send)) -> bool {
    /// A run within a run: the outer run has had the parallel work of the inner run, also if that panics.
    struct Outer(bool);
    impl Drop for Outer {
        fn drop(&mut self) {
            HAS_FORKED.set(HAS_FORKED.get() || self.0);
        }
    }
    let _outer = Outer(HAS_FORKED.replace(false));
    work();
    !HAS_FORKED.get()
}

/// Marks the current thread as a thread of a pool of this backend.
pub(crate) fn enter_pool() {
    IN_POOL.set(true);
}

/// True in the threads of this backend's pools. Threads of other pools share no work: it would run in them.
pub(crate) fn in_pool() -> bool {
    IN_POOL.get()
}

/// Records that the run has parallel work. Returns true if this thread may share it with other threads.
fn fork_allowed() -> bool {
    HAS_FORKED.set(true);
    in_pool()
}

/// The number of threads for work of several pieces.
pub(crate) fn threads() -> usize {
    if fork_allowed() { rayon::current_num_threads() } else { 1 }
}

/// Calls `work` with every piece of `out` and its first index, in parallel if there are many.
pub(crate) fn pieces<T: Pod>(out: &mut [T], piece: usize, work: impl Fn(usize, &mut [T]) + Sync) {
    pieces_in_order(out, (piece, 1), &|i, out| work(i * piece, out));
}

/// Calls `work` with every piece of `out` and its number, in parallel if there are more than `least` pieces: one thread
/// takes no fewer.
pub(crate) fn numbered_pieces<T: Pod>(
    out: &mut [T],
    piece: usize,
    least: usize,
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    pieces_in_order(out, (piece, least), &work);
}

/// Calls `work` with the pieces of two slices that have the same number, in parallel if there are several. A piece of `a`
/// has `piece_a` elements, a piece of `b` has `piece_b`.
pub(crate) fn pairs_of_pieces<T: Pod, U: Pod>(
    (a, piece_a): (&mut [T], usize),
    (b, piece_b): (&mut [U], usize),
    work: impl Fn(usize, &mut [T], &mut [U]) + Sync,
) {
    pairs_in_order((a, piece_a), (b, piece_b), &work);
}

/// Calls `work` in parallel with each whole piece of `scratch`; if pieces have no elements, `times` times with an empty slice.
pub(crate) fn scratch_pieces<T: Pod>(
    scratch: &mut [T],
    piece: usize,
    times: usize,
    work: &(dyn Fn(&mut [T]) + Sync),
) {
    if piece == 0 {
        return numbers(times, &|_| work(&mut []));
    }
    let whole = scratch.len() / piece * piece;
    bytes(cast_slice_mut(&mut scratch[..whole]), (piece * size_of::<T>(), 1), &|_, scratch| {
        work(cast_slice_mut(scratch));
    });
}

/// The work on three pieces and their number.
type OnTriple<'a, T, U, V> = dyn Fn(usize, &mut [T], &mut [U], &mut [V]) + Sync + 'a;

/// Calls `work` with the pieces of three slices of the same length that have the same number, in parallel if there are
/// several.
pub(crate) fn triples_of_pieces<T: Pod + Send, U: Pod + Send, V: Pod + Send>(
    (a, b, c): (&mut [T], &mut [U], &mut [V]),
    piece: usize,
    work: &OnTriple<'_, T, U, V>,
) {
    triples_from(0, (a, b, c), piece, work);
}

/// As [`triples_of_pieces`], with the number of the first piece. Splits the range in halves down to single pieces.
fn triples_from<T: Pod + Send, U: Pod + Send, V: Pod + Send>(
    first: usize,
    (a, b, c): (&mut [T], &mut [U], &mut [V]),
    piece: usize,
    work: &OnTriple<'_, T, U, V>,
) {
    let n_pieces = a.len().div_ceil(piece);
    if n_pieces <= 1 {
        return work(first, a, b, c);
    }
    let half = n_pieces / 2;
    let ((a, next_a), (b, next_b), (c, next_c)) =
        (a.split_at_mut(half * piece), b.split_at_mut(half * piece), c.split_at_mut(half * piece));
    both(&mut || triples_from(first, (a, b, c), piece, work), &mut || {
        triples_from(first + half, (next_a, next_b, next_c), piece, work);
    });
}

/// As [`numbered_pieces`], of work that may fail.
///
/// # Errors
/// Returns the error of the first piece that fails.
pub(crate) fn try_numbered_pieces<T: Pod>(
    out: &mut [T],
    piece: usize,
    least: usize,
    work: impl Fn(usize, &mut [T]) -> Result<()> + Sync,
) -> Result<()> {
    let failed = FirstError::default();
    numbered_pieces(out, piece, least, |i, out| failed.note(i, work(i, out)));
    failed.result()
}

/// As [`pairs_of_pieces`], of work that may fail.
///
/// # Errors
/// Returns the error of the first pair that fails.
pub(crate) fn try_pairs_of_pieces<T: Pod, U: Pod>(
    a: (&mut [T], usize),
    b: (&mut [U], usize),
    work: impl Fn(usize, &mut [T], &mut [U]) -> Result<()> + Sync,
) -> Result<()> {
    let failed = FirstError::default();
    pairs_of_pieces(a, b, |i, a, b| failed.note(i, work(i, a, b)));
    failed.result()
}

/// Calls two functions in parallel.
pub(crate) fn both(a: &mut (dyn FnMut() + Send), b: &mut (dyn FnMut() + Send)) {
    if fork_allowed() {
        rayon::join(a, b);
    } else {
        a();
        b();
    }
}

/// Calls `work` with every item of a list and its number, in parallel if there are several.
pub(crate) fn each<T: Send>(list: &mut [T], work: &(dyn Fn(usize, &mut T) + Sync)) {
    if list.len() > 1 && fork_allowed() {
        list.par_iter_mut().enumerate().for_each(|(i, item)| work(i, item));
    } else {
        list.iter_mut().enumerate().for_each(|(i, item)| work(i, item));
    }
}

/// True if `is_met` is true of every piece of a list, which are looked at in parallel if there are several.
pub(crate) fn all_pieces<T: Sync>(list: &[T], piece: usize, is_met: &(dyn Fn(&[T]) -> bool + Sync)) -> bool {
    if list.len() > piece && fork_allowed() {
        list.par_chunks(piece).all(is_met)
    } else {
        list.chunks(piece).all(is_met)
    }
}

/// Sorts numbers, in parallel if there are many.
pub(crate) fn sort_unstable_by(list: &mut [usize], order: &(dyn Fn(usize, usize) -> Ordering + Sync)) {
    if list.len() > PIECE && fork_allowed() {
        list.par_sort_unstable_by(|&a, &b| order(a, b));
    } else {
        list.sort_unstable_by(|&a, &b| order(a, b));
    }
}

/// Calls `work` with the numbers below `n`, in parallel if there are several.
fn numbers(n: usize, work: &(dyn Fn(usize) + Sync)) {
    if n > 1 && fork_allowed() {
        (0..n).into_par_iter().for_each(work);
    } else {
        (0..n).for_each(work);
    }
}

fn pieces_in_order<T: Pod>(
    out: &mut [T],
    (piece, least): (usize, usize),
    work: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    if out.len() <= least.saturating_mul(piece) {
        return out.chunks_mut(piece.max(1)).enumerate().for_each(|(i, out)| work(i, out));
    }
    let size = piece.saturating_mul(size_of::<T>());
    bytes(cast_slice_mut(out), (size, least), &|i, out| work(i, cast_slice_mut(out)));
}

/// The work on two pieces and their number.
type OnPair<'a, T, U> = dyn Fn(usize, &mut [T], &mut [U]) + Sync + 'a;

fn pairs_in_order<T: Pod, U: Pod>(
    (a, piece_a): (&mut [T], usize),
    (b, piece_b): (&mut [U], usize),
    work: &OnPair<'_, T, U>,
) {
    if a.len() <= piece_a || b.len() <= piece_b {
        let pairs = a.chunks_mut(piece_a.max(1)).zip(b.chunks_mut(piece_b.max(1))).enumerate();
        return pairs.for_each(|(i, (a, b))| work(i, a, b));
    }
    let (size_a, size_b) = (piece_a * size_of::<T>(), piece_b * size_of::<U>());
    pairs_of_bytes((cast_slice_mut(a), size_a), (cast_slice_mut(b), size_b), &|i, a, b| {
        work(i, cast_slice_mut(a), cast_slice_mut(b));
    });
}

fn bytes(out: &mut [u8], (piece, least): (usize, usize), work: &(dyn Fn(usize, &mut [u8]) + Sync)) {
    if out.len() > piece && fork_allowed() {
        out.par_chunks_mut(piece).enumerate().with_min_len(least).for_each(|(i, out)| work(i, out));
    } else {
        out.chunks_mut(piece).enumerate().for_each(|(i, out)| work(i, out));
    }
}

fn pairs_of_bytes(
    (a, piece_a): (&mut [u8], usize),
    (b, piece_b): (&mut [u8], usize),
    work: &OnPair<'_, u8, u8>,
) {
    if fork_allowed() {
        let pairs = a.par_chunks_mut(piece_a).zip(b.par_chunks_mut(piece_b)).enumerate();
        pairs.for_each(|(i, (a, b))| work(i, a, b));
    } else {
        let pairs = a.chunks_mut(piece_a).zip(b.chunks_mut(piece_b)).enumerate();
        pairs.for_each(|(i, (a, b))| work(i, a, b));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::pool::started;
    use crate::kernel::KernelError;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn pieces_cover_all_elements_once() {
        here_and_in_a_pool(&|| {
            for (n, piece, least) in [(0, 3, 1), (1, 3, 1), (3, 3, 1), (10, 3, 1), (10, 3, 2), (10, 3, 100)] {
                let mut out = vec![0u64; n];
                pieces(&mut out, piece, |at, out| {
                    out.iter_mut().zip(at..).for_each(|(y, i)| *y += 1 + i as u64)
                });
                assert!(out.iter().zip(1..).all(|(&y, i)| y == i), "{n} by {piece}: {out:?}");
                let mut out = vec![usize::MAX; n];
                numbered_pieces(&mut out, piece, least, |i, out| out.fill(i));
                assert!(out.iter().enumerate().all(|(at, &i)| i == at / piece), "{n} by {piece}: {out:?}");
            }
        });
    }

    #[test]
    fn pieces_of_three_slices_go_together() {
        here_and_in_a_pool(&|| {
            for n in [0, 1, 2, 9, 10] {
                let (mut a, mut b, mut c) = (vec![0usize; n], vec![0u8; n], vec![0u16; n]);
                triples_of_pieces((&mut a, &mut b, &mut c), 3, &|i, a, b, c| {
                    a.iter_mut().for_each(|a| *a += i + 1);
                    b.iter_mut().for_each(|b| *b += u8::try_from(2 * i + 1).unwrap());
                    c.iter_mut().for_each(|c| *c += u16::try_from(3 * i + 1).unwrap());
                });
                for at in 0..n {
                    let i = at / 3;
                    assert_eq!((a[at], b[at].into(), c[at].into()), (i + 1, 2 * i + 1, 3 * i + 1));
                }
            }
        });
    }

    #[test]
    fn the_error_of_the_first_piece_counts() {
        here_and_in_a_pool(&|| {
            let work = |i: usize, _: &mut [u8]| match i {
                0..3 => Ok(()),
                _ => Err(KernelError::value("a small number", i)),
            };
            let failed = try_numbered_pieces(&mut [0; 8], 1, 1, work).unwrap_err();
            assert_eq!(failed.to_string(), KernelError::value("a small number", 3).to_string());
            assert!(try_numbered_pieces(&mut [0; 3], 1, 1, work).is_ok());
        });
    }

    /// Outside of a pool this thread does everything, and parallel work is told from other work; the threads of another
    /// pool are not used.
    #[test]
    fn work_of_one_piece_is_sequential() {
        let here = || {
            let here = std::thread::current().id();
            let run = |n: usize| {
                runs_sequentially(&mut || {
                    let is_here = |_: usize, _: &mut [u8]| assert_eq!(std::thread::current().id(), here);
                    numbered_pieces(&mut vec![0u8; n], 2, 1, is_here);
                })
            };
            assert!(run(2) && !run(3) && run(2));
            assert!(!runs_sequentially(&mut || assert_eq!(threads(), 1)));
            assert!(!runs_sequentially(&mut || assert!(!run(3))));
            let panicked =
                |work: &(dyn Fn() + std::panic::RefUnwindSafe)| std::panic::catch_unwind(work).is_err();
            let inner = || {
                runs_sequentially(&mut || {
                    threads();
                    panic!("a kernel");
                });
            };
            assert!(!runs_sequentially(&mut || assert!(panicked(&inner))));
        };
        here();
        let other = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        other.install(here);
        assert_eq!(started(3, 1 << 20).unwrap().install(threads), 3);
    }

    #[test]
    fn pieces_of_two_slices_go_together() {
        here_and_in_a_pool(&|| {
            for n in [0, 1, 2, 9] {
                let (mut a, mut b) = (vec![0u8; n * 3], vec![0u32; n * 2]);
                pairs_of_pieces((&mut a, 3), (&mut b, 2), |i, a, b| {
                    assert_eq!((a.len(), b.len()), (3, 2));
                    a.fill(u8::try_from(i).unwrap());
                    b.fill(u32::try_from(i).unwrap());
                });
                assert!(a.iter().enumerate().all(|(at, &i)| usize::from(i) == at / 3), "{a:?}");
                assert!(b.iter().enumerate().all(|(at, &i)| i as usize == at / 2), "{b:?}");
            }
        });
    }

    #[test]
    fn scratch_memory_is_shared_by_no_two_calls() {
        here_and_in_a_pool(&|| {
            let calls = AtomicUsize::new(0);
            let mut scratch = vec![0u16; 11];
            scratch_pieces(&mut scratch, 3, 5, &|scratch| {
                assert_eq!(scratch, [0; 3]);
                scratch.fill(1);
                calls.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!((calls.load(Ordering::Relaxed), &scratch[9..]), (3, &[0, 0][..]));
            scratch_pieces(&mut scratch, 0, 5, &|scratch| {
                assert!(scratch.is_empty());
                calls.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(calls.load(Ordering::Relaxed), 8);
        });
    }

    /// Does `work` in this thread, and in threads that share it.
    fn here_and_in_a_pool(work: &(dyn Fn() + Sync)) {
        work();
        started(4, 1 << 20).unwrap().install(work);
    }
}
