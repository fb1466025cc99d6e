//! Limited allocation of lists whose lengths come from a file, an attribute or an operand.
//!
//! Such a list is allocated by this module. A list above the limit of the run is an error before any allocation, and
//! a failed allocation is an error instead of an abort of the process.

use crate::error::{HostError, KernelError, Result};
use rustc_hash::FxHashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The maximum size of one list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    most: u64,
}

impl Room {
    /// Permits lists of at most `most` bytes.
    pub(crate) fn of(most: u64) -> Room {
        Room { most }
    }

    /// Checks that a list of `n` elements is within the limit.
    pub(crate) fn check<T>(self, n: usize) -> Result<()> {
        check_size(bytes_of::<T>(n), self.most)
    }

    /// An empty list with capacity for `n` elements.
    pub(crate) fn list<T>(self, n: usize) -> Result<Vec<T>> {
        let mut list = Vec::new();
        self.reserve(&mut list, n)?;
        Ok(list)
    }

    /// Reserves capacity for `more` elements.
    pub(crate) fn reserve<T>(self, list: &mut Vec<T>, more: usize) -> Result<()> {
        let n = list.len().saturating_add(more);
        self.check::<T>(n)?;
        let reserved = list.try_reserve_exact(more);
        reserved.map_err(|_| HostError::NoMemory { bytes: bytes_of::<T>(n) }.into())
    }

    /// A list of `n` copies of an element.
    pub(crate) fn filled<T: Clone>(self, n: usize, element: T) -> Result<Vec<T>> {
        let mut list = self.list(n)?;
        list.resize(n, element);
        Ok(list)
    }

    /// Appends an element. The capacity grows by half of the length if necessary.
    pub(crate) fn push<T>(self, list: &mut Vec<T>, element: T) -> Result<()> {
        if list.len() == list.capacity() {
            self.reserve(list, (list.len() / 2).max(16)).or_else(|_| self.reserve(list, 1))?;
        }
        list.push(element);
        Ok(())
    }

    /// Collects the elements of an iterator.
    pub(crate) fn gathered<T>(self, elements: impl IntoIterator<Item = T>) -> Result<Vec<T>> {
        self.try_gathered(elements.into_iter().map(Result::Ok))
    }

    /// Collects the elements of an iterator, or returns its first error.
    pub(crate) fn try_gathered<T>(self, elements: impl IntoIterator<Item = Result<T>>) -> Result<Vec<T>> {
        let elements = elements.into_iter();
        let mut list = self.list(elements.size_hint().0)?;
        for element in elements {
            self.push(&mut list, element?)?;
        }
        Ok(list)
    }

    /// A table with capacity for `n` entries.
    pub(crate) fn table<K: std::hash::Hash + Eq, V>(self, n: usize) -> Result<FxHashMap<K, V>> {
        // A table has one more byte per entry, and its load is at most seven eighths of a power of two.
        let bytes = bytes_of::<(K, V)>(n).saturating_add(n as u64).saturating_mul(2);
        check_size(bytes, self.most)?;
        let mut table = FxHashMap::default();
        table.try_reserve(n).map_err(|_| HostError::NoMemory { bytes })?;
        Ok(table)
    }
}

/// The error of the first piece of work that fails, by the order of pieces and not of time.
#[derive(Default)]
pub(crate) struct FirstError(Mutex<Option<(usize, KernelError)>>);

impl FirstError {
    /// Records the error of a piece, unless an error of this piece or an earlier piece is recorded.
    pub(crate) fn note(&self, piece: usize, result: Result<()>) {
        let Err(error) = result else { return };
        let mut first = self.first();
        if first.as_ref().is_none_or(|&(known, _)| piece < known) {
            *first = Some((piece, error));
        }
    }

    /// True if an earlier piece failed, so that this piece need not be done.
    pub(crate) fn is_before(&self, piece: usize) -> bool {
        self.first().as_ref().is_some_and(|&(failed, _)| failed < piece)
    }

    /// The recorded error, if there is one.
    pub(crate) fn result(self) -> Result<()> {
        self.first().take().map_or(Ok(()), |(_, error)| Err(error))
    }

    fn first(&self) -> MutexGuard<'_, Option<(usize, KernelError)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes_of<T>(n: usize) -> u64 {
    (n as u64).saturating_mul(size_of::<T>() as u64)
}

/// An error if a tensor of this many bytes exceeds the limit.
pub(crate) fn check_size(bytes: u64, most: u64) -> Result<()> {
    if bytes <= most {
        return Ok(());
    }
    // A size that overflows 64 bits saturates.
    let found = match bytes {
        u64::MAX => "2^64 bytes or more for one tensor".to_owned(),
        bytes => format!("{bytes} bytes for one tensor"),
    };
    Err(KernelError::Limit { limit: format!("{most} bytes"), found })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_within_the_limit_are_made() {
        let room = Room::of(64);
        assert_eq!(room.filled(8, 7u64).unwrap(), [7; 8]);
        assert_eq!(room.gathered((0..20u8).filter(|i| i % 2 == 0)).unwrap().len(), 10);
        assert!(room.table::<u8, u8>(8).unwrap().capacity() >= 8);
        let mut list = Vec::new();
        (0..64u8).for_each(|i| room.push(&mut list, i).unwrap());
        assert!(room.push(&mut list, 0).is_err());
    }

    #[test]
    fn lists_beyond_the_limit_are_refused_before_anything_is_taken() {
        let room = Room::of(64);
        let limit = |error| matches!(error, KernelError::Limit { .. });
        assert!(limit(room.filled(9, 7u64).unwrap_err()));
        assert!(limit(room.gathered(0..usize::MAX).unwrap_err()));
        assert!(limit(room.list::<u64>(usize::MAX).unwrap_err()));
        assert!(limit(room.table::<u64, u64>(usize::MAX).unwrap_err()));
    }

    #[test]
    fn what_the_system_refuses_is_an_error() {
        let room = Room::of(u64::MAX);
        let refused = |error: &KernelError| error.is_no_memory();
        assert!(refused(&room.filled(1 << 60, 0u8).unwrap_err()));
        assert!(refused(&room.list::<u64>(usize::MAX).unwrap_err()));
        assert!(refused(&room.table::<u64, u64>(1 << 56).unwrap_err()));
    }
}
