//! The bytes that live at each place, as a tree in which a range is raised, and its maximum found, in logarithmic time.

use std::ops::RangeInclusive;

/// A load per place.
#[derive(Debug)]
pub(super) struct Load {
    /// The number of leaves, a power of two.
    size: usize,
    /// The maximum below each inner node and leaf, without what is added above it.
    max: Vec<i64>,
    /// What is added to all below.
    added: Vec<i64>,
}

impl Load {
    pub(super) fn new(places: usize) -> Load {
        let size = places.max(1).next_power_of_two();
        Load { size, max: vec![0; 2 * size], added: vec![0; 2 * size] }
    }

    /// Adds to a range.
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

    /// The largest load of all.
    pub(super) fn peak(&self) -> i64 {
        self.max[1]
    }

    /// The largest load of a range; 0 of an empty one.
    pub(super) fn max(&self, range: RangeInclusive<usize>) -> i64 {
        let (first, last) = range.into_inner();
        if first > last { 0 } else { self.max_below(1, (0, self.size - 1), (first, last)) }
    }

    fn max_below(&self, at: usize, (low, high): (usize, usize), range: (usize, usize)) -> i64 {
        if range.1 < low || high < range.0 {
            return 0;
        }
        if range.0 <= low && high <= range.1 {
            return self.max[at];
        }
        let middle = usize::midpoint(low, high);
        let left = self.max_below(2 * at, (low, middle), range);
        let right = self.max_below(2 * at + 1, (middle + 1, high), range);
        left.max(right) + self.added[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_a_list(
            edits in prop::collection::vec((0usize..20, 0usize..20, 0i64..100), 0..30),
            range in (0usize..20, 0usize..20),
        ) {
            let (mut load, mut list) = (Load::new(20), [0i64; 20]);
            for (first, last, bytes) in edits {
                load.add(first..=last, bytes);
                (first..=last).for_each(|place| list[place] += bytes);
            }
            prop_assert_eq!(load.peak(), list.into_iter().max().unwrap_or(0));
            let wanted = (range.0..=range.1).map(|place| list[place]).max().unwrap_or(0);
            prop_assert_eq!(load.max(range.0..=range.1), wanted);
        }
    }
}
