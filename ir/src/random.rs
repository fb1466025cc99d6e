//! `random(seed, a)` of the text form: its values never change, so that a case with 100 MB of weights takes 20
//! KB.
//!
//! Element `i` is word `i mod 4` of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
//! 3", SC 2011) with counter `i div 4` and the seed as key, both as little-endian u32 words. The value of a
//! word `w` is `((w >> 8) · 2^-23 − 1) · a` in f32, a uniform value in [−a, a), rounded once to the element
//! type.

use crate::convert::{Conversion, can_convert, convert};
use crate::dtype::DType;
use std::ops::ControlFlow;

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Ten rounds of Philox4x32.
pub fn philox4x32(counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let mut c = counter;
    for _ in 0..10 {
        let (hi0, lo0) = mul_hi_lo(MULTIPLIERS[0], c[0]);
        let (hi1, lo1) = mul_hi_lo(MULTIPLIERS[1], c[2]);
        c = [hi1 ^ c[1] ^ key[0], lo1, hi0 ^ c[3] ^ key[1], lo0];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    c
}

fn mul_hi_lo(a: u32, b: u32) -> (u32, u32) {
    let [lo, hi] = words(u64::from(a) * u64::from(b));
    (hi, lo)
}

/// The low and the high word.
pub fn words(n: u64) -> [u32; 2] {
    let b = n.to_le_bytes();
    [u32::from_le_bytes([b[0], b[1], b[2], b[3]]), u32::from_le_bytes([b[4], b[5], b[6], b[7]])]
}

/// Element `index` of the stream of `seed`, in f32.
pub fn uniform(seed: u64, index: u64, amplitude: f32) -> f32 {
    let [lo, hi] = words(index / 4);
    value(philox4x32([lo, hi, 0, 0], words(seed))[(index % 4) as usize], amplitude)
}

fn value(word: u32, amplitude: f32) -> f32 {
    unit(word) * amplitude
}

/// Converts a word to a number of amplitude 1: a uniform value in [−1, 1).
pub fn unit(word: u32) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "24 bits are exact in f32")]
    let number = (word >> 8) as f32;
    number * 2f32.powi(-23) - 1.0
}

/// A word as a uniform value in [0, 1), out of 2^24 values.
pub fn unit_interval(word: u32) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "24 bits are exact in f32")]
    let number = (word >> 8) as f32;
    number * 2f32.powi(-24)
}

/// Visits the bytes of `count` elements, at most `chunk` bytes of f32 at a time; types other than the floats that
/// [`convert`] knows get zeros.
pub(crate) fn visit_uniform(
    dtype: DType,
    count: u64,
    seed: u64,
    amplitude: f32,
    chunk: usize,
    visit: &mut impl FnMut(&[u8]) -> ControlFlow<()>,
) {
    let per_chunk = (chunk / 4) as u64;
    let (mut wide, mut low) = (Vec::new(), Vec::new());
    let mut first = 0;
    while first < count {
        let n = per_chunk.min(count - first);
        wide.clear();
        for index in first..first + n {
            wide.extend_from_slice(&uniform(seed, index, amplitude).to_le_bytes());
        }
        low.clear();
        if can_convert(DType::F32, dtype) {
            convert(DType::F32, Conversion { to: dtype, clamp: false }, &wide, &mut low);
        } else {
            let bytes = dtype.storage_bytes(n).and_then(|b| usize::try_from(b).ok()).unwrap_or(0);
            low.resize(bytes, 0);
        }
        if visit(&low).is_break() {
            return;
        }
        first += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known-answer vectors that the authors of Philox publish with Random123.
    #[test]
    fn known_answers() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn values_are_in_range() {
        for i in 0..1000 {
            let v = uniform(7, i, 2.0);
            assert!((-2.0..2.0).contains(&v));
        }
        assert_eq!(uniform(0, 0, 1.0), ((0x6627_e8d5u32 >> 8) as f32) * 2f32.powi(-23) - 1.0);
    }
}
