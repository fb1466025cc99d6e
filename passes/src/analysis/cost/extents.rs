//! Sizes of values: numbers for dims that are names or unknown.

use ampc_ir::{Dim, Module, Shape, Type, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Assumed sizes of dims that a model leaves open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Extents of dims by name.
    pub named: BTreeMap<String, u64>,
    /// The size of all other batch dims: the dims of [`batches`](Self::batches), and dims with the name of a batch
    /// (`batch…`, in any case, or `N`).
    pub batch: u64,
    /// The names of dims that are a batch.
    pub batches: BTreeSet<String>,
    /// The size of all other dims, and the number of elements of a tensor of unknown rank.
    pub other: u64,
    /// The assumed trip count of loops of unknown trip count.
    pub trips: u64,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { named: BTreeMap::new(), batch: 1, batches: BTreeSet::new(), other: 128, trips: 8 }
    }
}

impl Sizes {
    /// The sizes of a module in which some dims have a given extent. All batch dims have one extent: the extent given
    /// for the name of one of them holds for all.
    pub fn of(module: &Module, named: &BTreeMap<String, u64>) -> Sizes {
        let batches = batches(module);
        let given = batches.iter().find_map(|name| named.get(name).copied());
        let batch = given.unwrap_or(Sizes::default().batch);
        Sizes { named: named.clone(), batch, batches, ..Sizes::default() }
    }

    /// The extent of a dim with a name.
    pub fn of_name(&self, name: &str) -> u64 {
        match self.named.get(name) {
            Some(&extent) => extent,
            None if self.is_batch(name) => self.batch,
            None => self.other,
        }
    }

    /// True if a dim with this name is a batch.
    pub fn is_batch(&self, name: &str) -> bool {
        self.batches.contains(name) || speaks_of_batch(name)
    }
}

/// True if the name of a dim says that the dim is a batch.
fn speaks_of_batch(name: &str) -> bool {
    name.to_ascii_lowercase().contains("batch") || name.eq_ignore_ascii_case("n")
}

/// The names of batch dims: names that say so, and names of the first axis of an input that occur on no other axis of
/// an input and do not contain a word for a length.
pub(super) fn batches(module: &Module) -> BTreeSet<String> {
    let (mut first, mut behind) = (BTreeSet::new(), BTreeSet::new());
    for &input in module.graph(module.main()).inputs() {
        let dims = module.value(input).ty.shape().and_then(Shape::dims).unwrap_or_default();
        for (axis, dim) in dims.iter().enumerate() {
            let Dim::Sym(name) = *dim else { continue };
            let name = module.text(name);
            let names = if axis == 0 || speaks_of_batch(name) { &mut first } else { &mut behind };
            names.insert(name);
        }
    }
    let is_batch = |name: &&str| speaks_of_batch(name) || !(behind.contains(name) || speaks_of_length(name));
    first.iter().filter(|name| is_batch(name)).map(|&name| name.to_owned()).collect()
}

/// Words in the names of dims that are lengths, not batches.
const LENGTHS: [&str; 14] = [
    "seq", "len", "time", "frame", "token", "step", "point", "node", "edge", "atom", "height", "width",
    "channel", "class",
];

fn speaks_of_length(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["s", "t", "l", "h", "w", "c", "d"].contains(&name.as_str())
        || LENGTHS.iter().any(|word| name.contains(word))
}

/// The sizes of the values of a module. Products saturate.
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

    /// The product of the extents of some axes.
    pub fn product(&self, dims: &[Dim]) -> u64 {
        // A zero extent wins over saturation.
        if dims.iter().any(|&dim| self.dim(dim) == 0) {
            return 0;
        }
        dims.iter().fold(1, |n: u64, &dim| n.saturating_mul(self.dim(dim)))
    }

    /// The number of elements of a tensor of a shape.
    pub fn of_shape(&self, shape: &Shape) -> u64 {
        shape.dims().map_or(self.sizes.other, |dims| self.product(dims))
    }

    /// The number of elements of a value; 0 if it is not a tensor or of unknown type.
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
