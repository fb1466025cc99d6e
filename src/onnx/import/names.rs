//! The value of each name of one graph, as an array over symbols.
//!
//! Graphs are processed one after the other, so one array serves all of them: an entry counts only if it
//! carries the stamp of the current graph. Look-up is an index, and starting over costs nothing.

use ampc_ir::Symbol;
use ampc_ir::entity::EntityRef;

/// A map from the names of the present graph.
pub(super) struct NameTable<T> {
    entries: Vec<Option<(u32, T)>>,
    stamp: u32,
}

impl<T: Copy> NameTable<T> {
    pub(super) fn new() -> NameTable<T> {
        NameTable { entries: Vec::new(), stamp: 0 }
    }

    /// Forgets everything.
    pub(super) fn start(&mut self) {
        self.stamp += 1;
    }

    pub(super) fn get(&self, name: Symbol) -> Option<T> {
        match self.entries.get(name.index()) {
            Some(&Some((stamp, value))) if stamp == self.stamp => Some(value),
            Some(_) | None => None,
        }
    }

    /// Sets the meaning of a name and returns its previous meaning.
    pub(super) fn insert(&mut self, name: Symbol, value: T) -> Option<T> {
        let before = self.get(name);
        if self.entries.len() <= name.index() {
            self.entries.resize(name.index() + 1, None);
        }
        self.entries[name.index()] = Some((self.stamp, value));
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starting_over_forgets() {
        let (a, b) = (Symbol::new(0), Symbol::new(5));
        let mut table = NameTable::new();
        table.start();
        assert_eq!((table.insert(b, 1), table.insert(b, 2)), (None, Some(1)));
        assert_eq!((table.get(a), table.get(b)), (None, Some(2)));
        table.start();
        assert_eq!(table.get(b), None);
    }
}
