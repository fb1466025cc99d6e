//! Columns: a row for each channel and tap, a column for each position, zero where the tap is in the padding.
//!
//! With two taps, padding 1 and the channel `a b c d`, the columns of the positions 0..5 are
//!
//! ```text
//! tap 0   0 a b c d
//! tap 1   a b c d 0
//! ```
//!
//! A block of positions reads a *span* of the channel: the part between the first and the last element that it reads, here
//! the whole channel. Elements of 16 bits and integers are converted before they are copied, the whole span at once. If the
//! block reads little of the span, as in images of three axes, rows are converted one by one.

use crate::cpu::kernels::lanes::{Real, Wide};
use crate::cpu::kernels::window::{Axis, Block, Window, zip_strided};
use crate::host::Element;
use std::marker::PhantomData;
use std::ops::Range;

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

/// The most elements that are converted at a time for one of the blocks.
pub(super) fn most_converted(window: &Window, blocks: &[Block]) -> usize {
    let inner = window.inner();
    let of_block = |block: &Block| match is_dense(window, block) {
        true => block.span.len(),
        false => block.rows.iter().map(|columns| inner.met(columns).len()).max().unwrap_or(0),
    };
    blocks.iter().map(of_block).max().unwrap_or(0)
}

/// True if converting the span of a block takes no longer than converting each row once for each tap of the outer axes.
fn is_dense(window: &Window, block: &Block) -> bool {
    let inner = window.inner();
    let rows: usize = block.rows.iter().map(|columns| inner.met(columns).len()).sum();
    block.span.len() <= rows.saturating_mul(block.outer_taps)
}

/// Writes the columns of a block. `x` is the channels of the group; `free` has space for
/// [the elements that are converted](most_converted).
pub(super) fn fill_columns<W: Wide, L: Load<W>>(
    window: &Window,
    block: &Block,
    x: &[L::From],
    load: L,
    free: &mut [W],
    to: &mut [W],
) {
    let (image, n) = (window.image(), block.positions());
    if image == 0 {
        to.fill(W::zero());
        return;
    }
    if x.is_empty() {
        return;
    }
    let (is_identity, is_dense) = (window.is_identity(), is_dense(window, block));
    let taps = block.outer_taps * window.inner().kernel;
    for (x, to) in x.chunks(image).zip(to.chunks_mut(n * taps)) {
        let span = &x[block.span.clone()];
        match L::as_stored(span) {
            Some(span) if is_identity => to.copy_from_slice(span),
            Some(span) => fill_channel(window, block, span, to),
            None if is_identity => load.convert(span, to),
            None if is_dense => {
                let wide = &mut free[..span.len()];
                load.convert(span, wide);
                fill_channel(window, block, wide, to);
            }
            None => fill_by_rows(window, block, x, load, free, to),
        }
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
                let (part, after) = rest.split_at_mut(columns.len());
                rest = after;
                match base {
                    None => part.fill(W::zero()),
                    Some(base) => fill_row(inner, (tap, &met), columns, (x, base, block.span.start), part),
                }
            }
        }
    }
}

/// Writes the columns of a channel `x`, converting one row at a time.
fn fill_by_rows<W: Wide, L: Load<W>>(
    window: &Window,
    block: &Block,
    x: &[L::From],
    load: L,
    free: &mut [W],
    to: &mut [W],
) {
    let (inner, n) = (window.inner(), block.positions());
    for (outer_tap, to) in to.chunks_mut(n * inner.kernel).enumerate() {
        let mut at = 0;
        for (columns, base) in block.rows(outer_tap) {
            let part = at..at + columns.len();
            at = part.end;
            let Some(base) = base else {
                to.chunks_mut(n).for_each(|to| to[part.clone()].fill(W::zero()));
                continue;
            };
            let read = inner.met(columns);
            let wide = &mut free[..read.len()];
            load.convert(&x[base + read.start..base + read.end], wide);
            for (tap, to) in to.chunks_mut(n).enumerate() {
                let met = inner.positions(tap);
                fill_row(inner, (tap, &met), columns, (wide, base, base + read.start), &mut to[part.clone()]);
            }
        }
    }
}

/// Writes some columns of one row and one tap. `x` begins at `start` in the channel, the row of the image at `base`.
#[inline(always)]
fn fill_row<W: Wide>(
    inner: Axis,
    (tap, met): (usize, &Range<usize>),
    columns: &Range<usize>,
    (x, base, start): (&[W], usize, usize),
    to: &mut [W],
) {
    let first = met.start.clamp(columns.start, columns.end);
    let end = met.end.clamp(first, columns.end);
    if first == end {
        to.fill(W::zero());
        return;
    }
    let (padding, part) = to.split_at_mut(first - columns.start);
    let (part, padding_after) = part.split_at_mut(end - first);
    zero_short(padding);
    zero_short(padding_after);
    let from = base + inner.at(first, tap) - start;
    let from = &x[from..from + (part.len() - 1) * inner.stride + 1];
    if inner.stride == 1 {
        copy_row(from, part);
    } else {
        zip_strided(part, from, inner.stride, |y, x| *y = x);
    }
}

/// Zeros, most often none or one.
#[inline(always)]
fn zero_short<W: Wide>(to: &mut [W]) {
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
