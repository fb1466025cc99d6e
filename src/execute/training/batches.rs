//! The order of samples, and their batches.

use crate::error::{Error, Finding};
use ampc_ir::random::{philox4x32, words};
use std::ops::Range;

/// The handling of the last samples of an epoch if they do not fill a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Incomplete {
    /// They form a smaller batch.
    Kept,
    /// They are dropped; in a shuffled order, different samples in every epoch.
    Dropped,
}

/// The batches of all epochs.
///
/// An epoch visits all samples once. The samples of a batch depend only on its number, the seed, the number of
/// samples, the batch size and [`Incomplete`], so a resumed run sees the same batches.
#[derive(Clone, Debug)]
pub struct Batches {
    samples: u64,
    size: u64,
    seed: u64,
    is_shuffled: bool,
    per_epoch: u64,
    /// The order of the last batch's epoch and the number of that epoch, if samples are shuffled; otherwise the
    /// samples of that batch.
    order: Vec<u64>,
    epoch: Option<u64>,
}

impl Batches {
    /// Splits `samples` samples into batches of `size`, clamped to 1..=`samples`. An epoch has at least one batch.
    pub fn new(samples: u64, size: u64, incomplete: Incomplete) -> Batches {
        let size = size.clamp(1, samples.max(1));
        let per_epoch = match incomplete {
            Incomplete::Kept => samples.div_ceil(size),
            Incomplete::Dropped => samples / size,
        };
        Batches {
            samples,
            size,
            seed: 0,
            is_shuffled: false,
            per_epoch: per_epoch.max(1),
            order: Vec::new(),
            epoch: None,
        }
    }

    /// The same batches in an order that `seed` shuffles anew in every epoch.
    #[must_use]
    pub fn shuffled(self, seed: u64) -> Batches {
        Batches { seed, is_shuffled: true, epoch: None, ..self }
    }

    /// The number of batches of an epoch.
    pub fn per_epoch(&self) -> u64 {
        self.per_epoch
    }

    /// The number of samples that an epoch drops.
    pub fn left_out(&self) -> u64 {
        self.samples.saturating_sub(self.per_epoch.saturating_mul(self.size))
    }

    /// The samples of batch `step`, counted from 0 over all epochs. A shuffled order takes 8 bytes per sample.
    ///
    /// # Errors
    /// If the allocation of the order fails.
    pub fn samples(&mut self, step: u64) -> Result<&[u64], Error> {
        let (epoch, batch) = (step / self.per_epoch, step % self.per_epoch);
        let start = batch.saturating_mul(self.size).min(self.samples);
        let end = start.saturating_add(self.size).min(self.samples);
        if !self.is_shuffled {
            self.fill(start..end)?;
            return Ok(&self.order);
        }
        if self.epoch != Some(epoch) {
            self.epoch = None;
            self.fill(0..self.samples)?;
            shuffle(&mut self.order, self.seed, epoch);
            self.epoch = Some(epoch);
        }
        let at = |sample: u64| usize::try_from(sample).unwrap_or(usize::MAX);
        Ok(&self.order[at(start)..at(end)])
    }

    /// Sets the list to these samples.
    fn fill(&mut self, samples: Range<u64>) -> Result<(), Error> {
        let count = samples.end - samples.start;
        self.order.clear();
        let reserved = usize::try_from(count).map(|count| self.order.try_reserve(count));
        if !matches!(reserved, Ok(Ok(()))) {
            let message =
                format!("not enough memory for a list of {count} samples, which takes 8 bytes for each");
            let place = "samples".to_owned();
            return Err(Error::NoMemory(Finding {
                code: "no_memory",
                node: None,
                place,
                op: None,
                message,
                label: None,
            }));
        }
        self.order.extend(samples);
        Ok(())
    }
}

/// Shuffles a list (Durstenfeld, "Algorithm 235: Random permutation", CACM 7, 1964): from the last index on, the
/// element is swapped with an element at the same or a lower index.
///
/// The two 64-bit numbers that Philox4x32-10 gives for the counter (k, epoch) and the seed as key are draws 2k and 2k
/// + 1; a draw d chooses index ⌊d · n / 2⁶⁴⌋ of n.
fn shuffle(list: &mut [u64], seed: u64, epoch: u64) {
    let (key, [high0, high1]) = (words(seed), words(epoch));
    let mut drawn = [0u64; 2];
    for (draw, last) in (1..list.len()).rev().enumerate() {
        let (k, half) = (draw / 2, draw % 2);
        if half == 0 {
            let [low0, low1] = words(k as u64);
            let [a, b, c, d] = philox4x32([low0, low1, high0, high1], key);
            drawn = [u64::from(a) | u64::from(b) << 32, u64::from(c) | u64::from(d) << 32];
        }
        let place = (u128::from(drawn[half]) * (last as u128 + 1)) >> 64;
        list.swap(last, usize::try_from(place).unwrap_or(0));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test: what is no list fails it")]
mod tests {
    use super::*;

    fn epoch(batches: &mut Batches, epoch: u64) -> Vec<u64> {
        let steps = epoch * batches.per_epoch()..(epoch + 1) * batches.per_epoch();
        steps.flat_map(|step| batches.samples(step).unwrap().to_vec()).collect()
    }

    #[test]
    fn an_epoch_has_every_sample_once() {
        for (samples, size) in [(1, 1), (10, 3), (12, 4), (5, 9), (1000, 7)] {
            let mut batches = Batches::new(samples, size, Incomplete::Kept).shuffled(3);
            let orders: Vec<Vec<u64>> = (0..3).map(|e| epoch(&mut batches, e)).collect();
            for order in &orders {
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..samples).collect::<Vec<_>>());
            }
            assert!(samples < 9 || orders[0] != orders[1] && orders[1] != orders[2]);
            // A batch requested without the batches before it.
            let mut again = Batches::new(samples, size, Incomplete::Kept).shuffled(3);
            let step = 2 * batches.per_epoch();
            let found = again.samples(step).unwrap();
            assert_eq!(found, &orders[2][..found.len()]);
        }
    }

    #[test]
    fn what_is_left_over_is_dropped_if_asked() {
        let mut batches = Batches::new(10, 4, Incomplete::Dropped);
        assert_eq!((batches.per_epoch(), batches.left_out()), (2, 2));
        assert_eq!(epoch(&mut batches, 0), (0..8).collect::<Vec<_>>());
        let mut kept = Batches::new(10, 4, Incomplete::Kept);
        assert_eq!((kept.per_epoch(), kept.left_out()), (3, 0));
        assert_eq!(kept.samples(5).unwrap(), [8, 9]);
    }

    /// A sequential order takes the memory of one batch; a failed allocation of a shuffled order is an error.
    #[test]
    fn many_samples_take_little_memory_or_are_an_error() {
        let many = 1 << 60;
        let mut batches = Batches::new(many, 4, Incomplete::Kept);
        assert_eq!(batches.samples(many / 4 - 1).unwrap(), [many - 4, many - 3, many - 2, many - 1]);
        assert!(batches.order.capacity() < 100);
        let error = batches.shuffled(1).samples(0).unwrap_err().to_string();
        assert!(error.contains("not enough memory for a list of 1152921504606846976 samples"), "{error}");
    }

    #[test]
    fn places_are_equally_likely() {
        let mut counts = [[0u32; 5]; 5];
        for round in 0..20_000 {
            let mut list = [0, 1, 2, 3, 4];
            shuffle(&mut list, 7, round);
            list.iter().enumerate().for_each(|(at, &v)| counts[at][usize::try_from(v).unwrap_or(0)] += 1);
        }
        // 4,000 expected, with a standard deviation of 57.
        assert!(counts.iter().flatten().all(|n| (3_700..4_300).contains(n)), "{counts:?}");
    }

    /// The order is documented: a change would make resumed runs differ from uninterrupted runs. The expected list
    /// comes from the same formulas in Python.
    #[test]
    fn the_order_is_fixed() {
        let mut list: Vec<u64> = (0..10).collect();
        shuffle(&mut list, 1, 0);
        assert_eq!(list, [2, 1, 5, 0, 7, 3, 4, 9, 6, 8]);
    }
}
