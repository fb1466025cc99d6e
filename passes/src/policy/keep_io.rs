//! Interfaces that stay: inputs and outputs that keep their types.

use std::collections::BTreeSet;

/// The inputs and outputs of the graph that keep their types.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum KeepIo {
    /// All of them.
    #[default]
    All,
    /// None: an input that is read low only is low, an output has the type it is made in.
    None,
    /// These; the others as with [`KeepIo::None`].
    Names(BTreeSet<String>),
}

impl KeepIo {
    /// True if an input or output of this name keeps its type.
    pub fn keeps(&self, name: &str) -> bool {
        match self {
            KeepIo::All => true,
            KeepIo::None => false,
            KeepIo::Names(names) => names.contains(name),
        }
    }
}
