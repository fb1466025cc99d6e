//! Work on pieces of tensors in parallel.
//!
//! The code that starts threads sees bytes and closures behind a reference: it is compiled once, and not for every kernel
//! and element type. Pieces do not depend on the number of threads.

use bytemuck::{Pod, cast_slice_mut};
use rayon::prelude::*;

/// Elements per piece of work that one thread takes.
pub(crate) const PIECE: usize = 1 << 15;

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

/// Calls two functions in parallel.
pub(crate) fn both(a: &mut (dyn FnMut() + Send), b: &mut (dyn FnMut() + Send)) {
    rayon::join(a, b);
}

/// Calls `work` with the numbers below `n`, in parallel.
fn numbers(n: usize, work: &(dyn Fn(usize) + Sync)) {
    (0..n).into_par_iter().for_each(work);
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
    out.par_chunks_mut(piece).enumerate().with_min_len(least).for_each(|(i, out)| work(i, out));
}

fn pairs_of_bytes(
    (a, piece_a): (&mut [u8], usize),
    (b, piece_b): (&mut [u8], usize),
    work: &OnPair<'_, u8, u8>,
) {
    let pairs = a.par_chunks_mut(piece_a).zip(b.par_chunks_mut(piece_b)).enumerate();
    pairs.for_each(|(i, (a, b))| work(i, a, b));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn pieces_cover_all_elements_once() {
        for (n, piece, least) in [(0, 3, 1), (1, 3, 1), (3, 3, 1), (10, 3, 1), (10, 3, 2), (10, 3, 100)] {
            let mut out = vec![0u64; n];
            pieces(&mut out, piece, |at, out| out.iter_mut().zip(at..).for_each(|(y, i)| *y += 1 + i as u64));
            assert!(out.iter().zip(1..).all(|(&y, i)| y == i), "{n} by {piece}: {out:?}");
            let mut out = vec![usize::MAX; n];
            numbered_pieces(&mut out, piece, least, |i, out| out.fill(i));
            assert!(out.iter().enumerate().all(|(at, &i)| i == at / piece), "{n} by {piece}: {out:?}");
        }
    }

    #[test]
    fn pieces_of_two_slices_go_together() {
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
    }

    #[test]
    fn scratch_memory_is_shared_by_no_two_calls() {
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
    }
}
