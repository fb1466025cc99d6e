//! Identifiers and the tables they index.
//!
//! Every reference inside a [`Module`](crate::Module) is a `u32` newtype. An id is allocated once and never
//! reused, so an id kept by a pass stays valid or dangles detectably; it never silently names another entity.
//! `Display` of an id is its spelling in diagnostics (`node7`, `value3`, `graph0`).

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;

/// An index into a [`PrimaryMap`].
pub trait EntityRef: Copy + Eq {
    /// The entity with this index.
    ///
    /// # Panics
    /// If `index` is `u32::MAX` or more.
    fn new(index: usize) -> Self;
    /// The index of this entity.
    fn index(self) -> usize;
}

macro_rules! entity {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(NonZeroU32);

        impl EntityRef for $name {
            fn new(index: usize) -> Self {
                let raw = u32::try_from(index + 1).expect("fewer than 2^32 - 1 entities of a kind");
                Self(NonZeroU32::new(raw).expect("index + 1 is not zero"))
            }
            fn index(self) -> usize {
                self.0.get() as usize - 1
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.index())
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

entity!(
    /// A graph: the main graph, a body of a control-flow node, or the body of a function.
    GraphId, "graph"
);
entity!(
    /// A node of some graph.
    Node, "node"
);
entity!(
    /// A value: a graph input, a capture, a constant or a result of a node.
    Value, "value"
);
entity!(
    /// A model-local function.
    FunctionId, "function"
);
entity!(
    /// An interned string: a name of a value, node, dimension, attribute, domain or custom operator.
    Symbol, "symbol"
);

/// Owns the data of every entity of one kind and allocates ids in increasing order.
#[derive(Clone, Debug)]
pub struct PrimaryMap<K, V> {
    items: Vec<V>,
    key: PhantomData<K>,
}

impl<K: EntityRef, V> Default for PrimaryMap<K, V> {
    fn default() -> Self {
        Self { items: Vec::new(), key: PhantomData }
    }
}

impl<K: EntityRef, V> PrimaryMap<K, V> {
    /// Adds an item and returns its id.
    pub fn push(&mut self, item: V) -> K {
        self.items.push(item);
        K::new(self.items.len() - 1)
    }
    /// Makes room for so many items more.
    pub fn reserve(&mut self, additional: usize) {
        self.items.reserve(additional);
    }
    /// The id that the next [`push`](Self::push) will return.
    pub fn next_key(&self) -> K {
        K::new(self.items.len())
    }
    /// The number of items ever added.
    pub fn len(&self) -> usize {
        self.items.len()
    }
    /// True if no item was ever added.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
    /// The item of `key`, or `None` if this map never allocated the key.
    pub fn get(&self, key: K) -> Option<&V> {
        self.items.get(key.index())
    }
    /// All ids in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = K> + use<K, V> {
        (0..self.items.len()).map(K::new)
    }
    /// All ids with their items, in order of the ids.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> {
        self.items.iter().enumerate().map(|(i, v)| (K::new(i), v))
    }
}

impl<K: EntityRef, V> std::ops::Index<K> for PrimaryMap<K, V> {
    type Output = V;
    #[inline]
    fn index(&self, key: K) -> &V {
        &self.items[key.index()]
    }
}

impl<K: EntityRef, V> std::ops::IndexMut<K> for PrimaryMap<K, V> {
    #[inline]
    fn index_mut(&mut self, key: K) -> &mut V {
        &mut self.items[key.index()]
    }
}

/// Data beside a [`PrimaryMap`]: reads of an id that was never written give the default.
#[derive(Clone, Debug)]
pub struct SecondaryMap<K, V> {
    items: Vec<V>,
    default: V,
    key: PhantomData<K>,
}

impl<K: EntityRef, V: Clone + Default> SecondaryMap<K, V> {
    /// A map with room for the ids allocated so far.
    pub fn with_capacity(ids: usize) -> Self {
        Self { items: Vec::with_capacity(ids), default: V::default(), key: PhantomData }
    }
}

impl<K: EntityRef, V: Clone + Default> Default for SecondaryMap<K, V> {
    fn default() -> Self {
        Self::with_capacity(0)
    }
}

impl<K: EntityRef, V: Clone> SecondaryMap<K, V> {
    /// A map that gives `default` for every id not written yet.
    pub fn with_default(default: V) -> Self {
        Self { items: Vec::new(), default, key: PhantomData }
    }
}

impl<K: EntityRef, V> SecondaryMap<K, V> {
    /// All ids up to the last written id, with their entries.
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.items.iter().enumerate().map(|(index, item)| (K::new(index), item))
    }
    /// All ids up to the last written id, with their entries.
    pub fn into_entries(self) -> impl Iterator<Item = (K, V)> {
        self.items.into_iter().enumerate().map(|(index, item)| (K::new(index), item))
    }
}

impl<K: EntityRef, V: Clone> std::ops::Index<K> for SecondaryMap<K, V> {
    type Output = V;
    #[inline]
    fn index(&self, key: K) -> &V {
        self.items.get(key.index()).unwrap_or(&self.default)
    }
}

impl<K: EntityRef, V: Clone> std::ops::IndexMut<K> for SecondaryMap<K, V> {
    #[inline]
    fn index_mut(&mut self, key: K) -> &mut V {
        if self.items.len() <= key.index() {
            self.items.resize(key.index() + 1, self.default.clone());
        }
        &mut self.items[key.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_dense_and_small() {
        let mut map = PrimaryMap::<Node, &str>::default();
        let a = map.push("a");
        let b = map.push("b");
        assert_eq!((a.to_string(), b.to_string()), ("node0".into(), "node1".into()));
        assert_eq!(map[b], "b");
        assert_eq!(size_of::<Option<Node>>(), 4);
    }

    #[test]
    fn secondary_map_defaults() {
        let mut map = SecondaryMap::<Value, u8>::with_default(9);
        map[Value::new(3)] = 1;
        assert_eq!([map[Value::new(0)], map[Value::new(3)], map[Value::new(7)]], [9, 1, 9]);
    }
}
