//! Interned strings: a name costs four bytes wherever it is used.

use crate::entity::{EntityRef, Symbol};
use indexmap::IndexSet;
use rustc_hash::FxBuildHasher;

/// The strings of one module; ids are allocated in order of first use.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    set: IndexSet<Box<str>, FxBuildHasher>,
}

impl Symbols {
    /// The symbol of `text`, added if it is new.
    pub fn intern(&mut self, text: &str) -> Symbol {
        if let Some(index) = self.set.get_index_of(text) {
            return Symbol::new(index);
        }
        let (index, _) = self.set.insert_full(text.into());
        Symbol::new(index)
    }

    /// The symbol of `text`, if it was ever interned.
    pub fn get(&self, text: &str) -> Option<Symbol> {
        self.set.get_index_of(text).map(Symbol::new)
    }

    /// The text of a symbol of this table.
    ///
    /// # Panics
    /// If the symbol comes from another module.
    pub fn text(&self, symbol: Symbol) -> &str {
        &self.set[symbol.index()]
    }
}
