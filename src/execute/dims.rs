//! Dims without a number in the model, and their sizes in a run.

use std::collections::BTreeMap;

/// Sizes of open dims, by name; `x[1]` is axis 1 of an input `x` whose dim has no name.
pub type Dims = BTreeMap<String, u64>;

/// A dim without a number in the model, and its size in a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BoundDim {
    /// Its name, or `x[1]` for axis 1 of `x` if it has none.
    pub name: String,
    /// Its size.
    pub size: u64,
    /// True if the user gave the size; otherwise the size is 1.
    pub asked: bool,
}
