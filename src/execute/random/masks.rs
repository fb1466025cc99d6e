//! Masks: rows with some hidden elements, as in batches of texts padded to one length.

use ampc_ir::DType;
use ampc_runtime::float::Format;

/// The rows of a mask, along its last axis.
///
/// In a row of `n > 1` elements, `1 + (w · (n div 2)) div 2^32` elements are hidden: at the end of the row if row
/// number and draw number have the same parity, otherwise at its beginning.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) dims: &'a [u64],
    pub(super) draw: u32,
}

/// The value of an additive mask at hidden positions, by draw: a value that fits 16 bits, a value that overflows in
/// f16, and the lowest f32.
const UNSEEN: [f32; 3] = [-1e4, -1e9, f32::MIN];

/// In the last draw, the first of every this many queries sees nothing.
const BLIND: u64 = 8;

impl Rows<'_> {
    pub(super) fn width(self) -> u64 {
        self.dims.last().copied().unwrap_or(1)
    }

    /// The number of hidden elements of a row.
    fn hidden(width: u64, word: u32) -> u64 {
        let more = (u128::from(word) * u128::from(width / 2)) >> 32;
        if width < 2 { 0 } else { 1 + u64::try_from(more).unwrap_or(0) }
    }

    /// For each element in row order, true if it is visible.
    pub(super) fn seen(self, mut word: impl FnMut() -> u32) -> impl Iterator<Item = bool> {
        let (width, draw) = (self.width(), u64::from(self.draw));
        (0u64..).flat_map(move |row| {
            let hidden = Rows::hidden(width, word());
            let at_end = (row + draw).is_multiple_of(2);
            (0..width).map(move |at| if at_end { at < width - hidden } else { at >= hidden })
        })
    }

    /// An additive mask for scores, row by row: 0 at visible positions. In the last draw, the first of every eight
    /// queries (the second-last axis, of masks with at least three axes) sees nothing at all, like left padding under
    /// a causal mask.
    pub(super) fn additive(self, dtype: DType, word: impl FnMut() -> u32) -> impl Iterator<Item = f32> {
        let width = self.width().max(1);
        let queries = match self.dims {
            [_, .., queries, _] if self.draw as usize == UNSEEN.len() - 1 && *queries > 1 => *queries,
            _ => 0,
        };
        let unseen = lowest(dtype).max(UNSEEN[(self.draw as usize).min(UNSEEN.len() - 1)]);
        (0u64..).zip(self.seen(word)).map(move |(at, seen)| {
            let is_blind = queries > 0 && (at / width % queries).is_multiple_of(BLIND);
            if seen && !is_blind { 0.0 } else { unseen }
        })
    }
}

/// The lowest number of a float type, if f32 has it.
fn lowest(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => -65504.0,
        DType::BF16 => f32::from_bits(0xff7f_0000),
        // Formats of 8 bits or less have a smaller range.
        _ if Format::of(dtype).is_some_and(|format| format.precision < 8) => -1.0,
        _ => f32::MIN,
    }
}
