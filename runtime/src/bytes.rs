//! Bytes that start on a cache line, so that a view of them as any element type is aligned and a vector load
//! does not straddle two lines more often than it must.

use bytemuck::{Pod, Zeroable};

/// The unit of alignment: one cache line, and the widest vector register in use.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

const LINE: usize = 64;

/// A fixed number of aligned bytes.
///
/// The block is larger than asked for, and the bytes begin at its first line. A block of an alignment that the allocator does
/// not give by itself would be zeroed byte by byte. The system gives zeroed pages only once they are used: a tensor whose
/// size a file claims takes as much memory as the file fills.
#[derive(Default)]
pub(crate) struct AlignedBytes {
    block: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    /// Zeroed bytes; `None` if there is not so much memory. Sizes come from files, so running out is an answer.
    pub(crate) fn zeroed(len: usize) -> Option<AlignedBytes> {
        let block: Vec<u8> = bytemuck::allocation::try_zeroed_vec(len.checked_add(LINE - 1)?).ok()?;
        let start = block.as_ptr().align_offset(LINE);
        // The offset is less than a line, unless it cannot be computed.
        (start < LINE).then_some(AlignedBytes { block, start, len })
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        match self.len {
            // Aligned as well, where there is no block.
            0 => bytemuck::cast_slice::<Line, u8>(&[]),
            len => &self.block[self.start..self.start + len],
        }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        match self.len {
            0 => bytemuck::cast_slice_mut::<Line, u8>(&mut []),
            len => &mut self.block[self.start..self.start + len],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_are_aligned() {
        let mut none = AlignedBytes::default();
        assert!(none.as_slice().is_empty() && none.as_slice().as_ptr().align_offset(64) == 0);
        assert!(none.as_mut_slice().is_empty() && none.as_mut_slice().as_ptr().align_offset(64) == 0);
    }

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
