//! The algorithms that the libraries chose, by operation. Heuristics choose them, so equal operations get the same
//! algorithm on equal devices with equal library versions. Checkpoints record the algorithms.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The algorithm of each prepared operation.
#[derive(Default)]
pub(super) struct Recorded(Mutex<BTreeMap<String, String>>);

impl Recorded {
    /// Records the algorithm of an operation.
    pub(super) fn add(&self, operation: String, algorithm: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(operation, algorithm);
    }

    /// All operations with their algorithms, sorted by operation.
    pub(super) fn all(&self) -> Vec<(String, String)> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().map(|(operation, algorithm)| (operation.clone(), algorithm.clone())).collect()
    }
}
