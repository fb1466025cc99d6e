//! Columns: a row for each channel and tap, a column for each position, zero where the tap is in the padding.
//!
//! With two taps, padding 1 and the channel `a b c d`, the columns of the positions 0..5 are
//!
//! ```text
//! tap 0   0 a b c d
//! tap 1   a b c d 0
//! ```
//!
//! A block of positions meets a *span* of each channel, here all of it. Elements that are not stored in the type of the
//! computation are converted a span at a time, once for all taps.

use crate::cpu::kernels::lanes::{Real, Wide};
use crate::cpu::kernels::window::{Block, Window, zip_strided};
use crate::host::Element;
use std::marker::PhantomData;

/// The conversion of elements of the input to the type of the computation.
pub(super) trait Load<W>: Copy + Send + Sync {
    type From: Element;
    /// The elements, if they are stored in the type of the computation.
    fn as_stored(from: &[Self::From]) -> Option<&[W]>;
    fn convert(self, from: &[Self::From], to: &mut [W]);
}

#[derive(Clone, Copy)]
pub(super) struct Widen<T>(pub(super) PhantomData<T>);

impl<T: Real> Load<T::Wide> for Widen<T> {
    type From = T;
    fn as_stored(from: &[T]) -> Option<&[T::Wide]> {
        T::as_wide(from)
    }
    fn convert(self, from: &[T], to: &mut [T::Wide]) {
        T::widen(from, to);
    }
}

/// Elements of a channel that are converted for a block, at most.
pub(super) fn longest_span(blocks: &[Block]) -> usize {
    blocks.iter().map(|block| block.span.len()).max().unwrap_or(0)
}

/// Writes the columns of a block. `x` is the channels of the group; `room` has space for the span of the block, if
/// elements are converted.
pub(super) fn fill_columns<W: Wide, L: Load<W>>(
    window: &Window,
    block: &Block,
    x: &[L::From],
    load: L,
    room: &mut [W],
    to: &mut [W],
) {
    let (image, n) = (window.image(), block.positions());
    if image == 0 {
        to.fill(W::zero());
        return;
    }
    let taps = block.outer_taps * window.inner().kernel;
    // A single tap without steps meets the elements of the span in order, and nothing else without padding.
    let is_span =
        window.axes.iter().all(|axis| axis.kernel == 1 && axis.stride == 1) && block.span.len() == n;
    for (x, to) in x.chunks(image).zip(to.chunks_mut(n * taps)) {
        let x = &x[block.span.clone()];
        if is_span {
            match L::as_stored(x) {
                Some(x) => to.copy_from_slice(x),
                None => load.convert(x, to),
            }
            continue;
        }
        let x = match L::as_stored(x) {
            Some(x) => x,
            None => {
                let room = &mut room[..x.len()];
                load.convert(x, room);
                &*room
            }
        };
        fill_channel(window, block, x, to);
    }
}

/// Writes the columns of a channel, of which `x` is the span of the block.
fn fill_channel<W: Wide>(window: &Window, block: &Block, x: &[W], to: &mut [W]) {
    let inner = window.inner();
    let mut rest = to;
    for outer_tap in 0..block.outer_taps {
        for tap in 0..inner.kernel {
            let met = inner.positions(tap);
            for (columns, base) in block.rows(outer_tap) {
                let Some((part, after)) = rest.split_at_mut_checked(columns.len()) else { return };
                rest = after;
                let first = met.start.clamp(columns.start, columns.end);
                let end = met.end.clamp(first, columns.end);
                let Some(base) = base.filter(|_| first < end) else {
                    part.fill(W::zero());
                    continue;
                };
                let (padding, part) = part.split_at_mut(first - columns.start);
                let (part, padding_after) = part.split_at_mut(end - first);
                fill_few(padding);
                fill_few(padding_after);
                let from = base + inner.at(first, tap) - block.span.start;
                let from = &x[from..from + (part.len() - 1) * inner.stride + 1];
                if inner.stride == 1 {
                    copy_row(from, part);
                } else {
                    zip_strided(part, from, inner.stride, |y, x| *y = x);
                }
            }
        }
    }
}

/// Zeros, most often none or one.
#[inline(always)]
fn fill_few<W: Wide>(to: &mut [W]) {
    match to {
        [] => {}
        [y] => *y = W::zero(),
        _ => to.fill(W::zero()),
    }
}

/// `to.copy_from_slice(from)`, without a call where rows are short.
#[inline(always)]
fn copy_row<W: Copy>(from: &[W], to: &mut [W]) {
    match to.len() {
        8..64 => copy_vectors::<W, 8>(from, to),
        4..8 => copy_vectors::<W, 4>(from, to),
        0..4 => to.iter_mut().zip(from).for_each(|(y, &x)| *y = x),
        _ => to.copy_from_slice(from),
    }
}

/// Copies rows of `N` elements and more; the last vector overlaps the one before.
#[inline(always)]
fn copy_vectors<W: Copy, const N: usize>(from: &[W], to: &mut [W]) {
    if let (Some(from), Some(to)) = (from.last_chunk::<N>(), to.last_chunk_mut::<N>()) {
        *to = *from;
    }
    to.as_chunks_mut::<N>().0.iter_mut().zip(from.as_chunks::<N>().0).for_each(|(y, x)| *y = *x);
}
