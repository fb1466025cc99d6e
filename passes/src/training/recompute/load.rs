//! Live bytes per index as a segment tree with range addition and range maximum, both O(log n).
//!
//! Children of node k are 2k and 2k+1; node 1 is the root; leaf i is node `size` + i. Invariant: `max[k]` = larger of the
//! children's `max` + `added[k]`; the maximum of a subtree is `max[k]` plus the `added` of all ancestors of k.
//!
//! With `size` 4, `add(1..=3, 5)` covers leaf 1 and the subtree of leaves 2 and 3:
//!
//! ```text
//! node        1  2  3  4  5  6  7        leaves 0 to 3 are nodes 4 to 7
//! added       0  0  5  0  5  0  0
//! max         5  5  5  0  5  0  0
//! ```
//!
//! `max(2..=2)` goes down to node 6, finds `max[6]` = 0, and adds `added[3]` and `added[1]` on the way back: 5.

use std::ops::RangeInclusive;

/// Live bytes per index.
#[derive(Debug)]
pub(super) struct Load {
    /// The number of leaves, a power of two.
    size: usize,
    /// Maximum of the subtree, its own `added` included, that of its ancestors not.
    max: Vec<i64>,
    /// Bytes added to every leaf of the subtree and not pushed down.
    added: Vec<i64>,
}

impl Load {
    pub(super) fn new(indices: usize) -> Load {
        let size = indices.max(1).next_power_of_two();
        Load { size, max: vec![0; 2 * size], added: vec![0; 2 * size] }
    }

    /// Adds `bytes` (may be negative) to every index of `range`; nothing if it is empty.
    pub(super) fn add(&mut self, range: RangeInclusive<usize>, bytes: i64) {
        let (first, last) = range.into_inner();
        if first <= last && bytes != 0 {
            self.add_below(1, (0, self.size - 1), (first, last), bytes);
        }
    }

    fn add_below(&mut self, at: usize, (low, high): (usize, usize), range: (usize, usize), bytes: i64) {
        if range.1 < low || high < range.0 {
            return;
        }
        if range.0 <= low && high <= range.1 {
            self.added[at] += bytes;
            self.max[at] += bytes;
            return;
        }
        let middle = usize::midpoint(low, high);
        self.add_below(2 * at, (low, middle), range, bytes);
        self.add_below(2 * at + 1, (middle + 1, high), range, bytes);
        self.max[at] = self.max[2 * at].max(self.max[2 * at + 1]) + self.added[at];
    }

    /// The most live bytes at any index.
    pub(super) fn peak(&self) -> i64 {
        self.max[1]
    }

    /// The most live bytes at an index of `range`; 0 if it is empty.
    pub(super) fn max(&self, range: RangeInclusive<usize>) -> i64 {
        let (first, last) = range.into_inner();
        let max = (first <= last).then(|| self.max_below(1, (0, self.size - 1), (first, last)));
        max.flatten().unwrap_or(0)
    }

    /// The maximum in the subtree of `at`, of the leaves `low` to `high`; `None` if none of them is in the range.
    fn max_below(&self, at: usize, (low, high): (usize, usize), range: (usize, usize)) -> Option<i64> {
        if range.1 < low || high < range.0 {
            return None;
        }
        if range.0 <= low && high <= range.1 {
            return Some(self.max[at]);
        }
        let middle = usize::midpoint(low, high);
        let left = self.max_below(2 * at, (low, middle), range);
        let right = self.max_below(2 * at + 1, (middle + 1, high), range);
        left.max(right).map(|max| max + self.added[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_a_list(
            edits in prop::collection::vec((0usize..20, 0usize..20, -100i64..100), 0..30),
            range in (0usize..20, 0usize..20),
        ) {
            let (mut load, mut list) = (Load::new(32), [0i64; 32]);
            for (first, last, bytes) in edits {
                load.add(first..=last, bytes);
                (first..=last).for_each(|index| list[index] += bytes);
            }
            prop_assert_eq!(load.peak(), list.into_iter().max().unwrap_or(0));
            let wanted = (range.0..=range.1).map(|index| list[index]).max().unwrap_or(0);
            prop_assert_eq!(load.max(range.0..=range.1), wanted);
        }
    }

    #[test]
    fn the_example_is_that_of_the_documentation() {
        let mut load = Load::new(4);
        load.add(1..=3, 5);
        assert_eq!(load.added[1..], [0, 0, 5, 0, 5, 0, 0]);
        assert_eq!(load.max[1..], [5, 5, 5, 0, 5, 0, 0]);
        assert_eq!(load.max(2..=2), 5);
    }
}
