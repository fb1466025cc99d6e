//! How large things are: numbers for dims that are names or unknown.

use ampc_ir::{Dim, Module, Shape, Type, Value};
use std::collections::BTreeMap;

/// Assumed sizes of dims that a model leaves open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Extents of dims by name.
    pub named: BTreeMap<String, u64>,
    /// The size of other dims whose name contains a batch: `batch…`, in any case, or `N`.
    pub batch: u64,
    /// The size of all other dims, and the number of elements of a tensor of unknown rank.
    pub other: u64,
    /// The assumed trip count of loops of unknown trip count.
    pub trips: u64,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { named: BTreeMap::new(), batch: 1, other: 128, trips: 8 }
    }
}

impl Sizes {
    /// The extent of a dim with a name.
    pub fn of_name(&self, name: &str) -> u64 {
        match self.named.get(name) {
            Some(&extent) => extent,
            None if Sizes::is_batch(name) => self.batch,
            None => self.other,
        }
    }

    /// True if the name of a dim speaks of a batch.
    pub fn is_batch(name: &str) -> bool {
        name.to_ascii_lowercase().contains("batch") || name.eq_ignore_ascii_case("n")
    }
}

/// The sizes of the values of a module. A product that does not fit is as large as fits.
#[derive(Clone, Copy, Debug)]
pub struct Extents<'a> {
    /// The module.
    pub module: &'a Module,
    /// The assumed sizes of open dims.
    pub sizes: &'a Sizes,
}

impl Extents<'_> {
    /// The extent of an axis.
    pub fn dim(&self, dim: Dim) -> u64 {
        match dim {
            Dim::Known(extent) => extent,
            Dim::Sym(name) => self.sizes.of_name(self.module.text(name)),
            Dim::Unknown => self.sizes.other,
        }
    }

    /// The product of some axes.
    pub fn product(&self, dims: &[Dim]) -> u64 {
        // Zero wins over what does not fit.
        if dims.iter().any(|&dim| self.dim(dim) == 0) {
            return 0;
        }
        dims.iter().fold(1, |n: u64, &dim| n.saturating_mul(self.dim(dim)))
    }

    /// The number of elements of a tensor of a shape.
    pub fn of_shape(&self, shape: &Shape) -> u64 {
        shape.dims().map_or(self.sizes.other, |dims| self.product(dims))
    }

    /// The number of elements of a value; 0 if it is no tensor or of unknown type.
    pub fn elements(&self, value: Value) -> u64 {
        match &self.module.value(value).ty {
            Type::Tensor(tensor) | Type::Sparse(tensor) => self.of_shape(&tensor.shape),
            Type::Unknown
            | Type::Sequence(_)
            | Type::Optional(_)
            | Type::Map { .. }
            | Type::Opaque { .. } => 0,
        }
    }
}
