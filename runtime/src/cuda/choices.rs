//! The algorithms that libraries chose, by operation. They come from heuristics, so that equal operations on equal devices
//! with equal libraries have the same algorithm; checkpoints record them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The algorithm of each operation that was prepared.
#[derive(Default)]
pub(super) struct Recorded(Mutex<BTreeMap<String, String>>);

impl Recorded {
    /// Records the algorithm of an operation.
    pub(super) fn add(&self, operation: String, algorithm: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(operation, algorithm);
    }

    /// The operations in order, with their algorithms.
    pub(super) fn all(&self) -> Vec<(String, String)> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().map(|(operation, algorithm)| (operation.clone(), algorithm.clone())).collect()
    }
}
