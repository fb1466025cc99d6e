//! Bytes that start on a cache line, so that a view of them as any element type is aligned and a vector load
//! does not straddle two lines more often than it must.

use bytemuck::{Pod, Zeroable};

/// The unit of allocation: one cache line, and the widest vector register in use.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A fixed number of aligned bytes.
#[derive(Debug, Default)]
pub(crate) struct AlignedBytes {
    lines: Vec<Line>,
    len: usize,
}

impl AlignedBytes {
    /// Zeroed bytes; `None` if the allocation fails. Sizes come from files, so exhausted memory is a valid outcome.
    pub(crate) fn zeroed(len: usize) -> Option<AlignedBytes> {
        let lines = bytemuck::allocation::try_zeroed_vec(len.div_ceil(size_of::<Line>())).ok()?;
        Some(AlignedBytes { lines, len })
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_on_a_cache_line() {
        for len in [0, 1, 63, 64, 65, 1000] {
            let mut bytes = AlignedBytes::zeroed(len).unwrap();
            assert_eq!(bytes.as_slice(), vec![0; len]);
            bytes.as_mut_slice().fill(7);
            assert_eq!(bytes.as_slice().as_ptr().align_offset(64), 0);
        }
        assert!(AlignedBytes::zeroed(1 << 58).is_none());
    }
}
