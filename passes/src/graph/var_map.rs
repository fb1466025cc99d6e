//! Maps from type variables to data.

use crate::graph::flow::Var;
use ampc_ir::Node;
use ampc_ir::entity::SecondaryMap;
use rustc_hash::FxHashMap;

/// A map from variables. Entries of variable (or port) 0 are in a table by node, all other entries in a hash map,
/// because most nodes have one variable. The order of iteration has no meaning; sort where order matters.
#[derive(Clone, Debug)]
pub(crate) struct VarMap<V> {
    first: SecondaryMap<Node, Option<V>>,
    others: FxHashMap<Var, V>,
    len: usize,
}

impl<V: Clone> Default for VarMap<V> {
    fn default() -> Self {
        VarMap { first: SecondaryMap::default(), others: FxHashMap::default(), len: 0 }
    }
}

impl<V: Clone> VarMap<V> {
    pub(crate) fn get(&self, var: &Var) -> Option<&V> {
        if var.var == 0 { self.first[var.node].as_ref() } else { self.others.get(var) }
    }

    pub(crate) fn contains_key(&self, var: &Var) -> bool {
        self.get(var).is_some()
    }

    /// Sets the entry of a variable, and returns the old entry.
    pub(crate) fn insert(&mut self, var: Var, data: V) -> Option<V> {
        let before =
            if var.var == 0 { self.first[var.node].replace(data) } else { self.others.insert(var, data) };
        self.len += usize::from(before.is_none());
        before
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Var, &V)> {
        let first = self.first.iter().filter_map(|(node, data)| Some((Var { node, var: 0 }, data.as_ref()?)));
        first.chain(self.others.iter().map(|(&var, data)| (var, data)))
    }
}

impl<V: Clone> Extend<(Var, V)> for VarMap<V> {
    fn extend<I: IntoIterator<Item = (Var, V)>>(&mut self, entries: I) {
        for (var, data) in entries {
            self.insert(var, data);
        }
    }
}

impl<V: Clone> FromIterator<(Var, V)> for VarMap<V> {
    fn from_iter<I: IntoIterator<Item = (Var, V)>>(entries: I) -> Self {
        let mut map = VarMap::default();
        map.extend(entries);
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ampc_ir::entity::EntityRef;

    #[test]
    fn first_and_further_variables_are_kept_apart() {
        let var = |node, var| Var { node: Node::new(node), var };
        let mut map: VarMap<&str> =
            [(var(3, 0), "a"), (var(3, 1), "b"), (var(1, 0), "c")].into_iter().collect();
        assert_eq!(map.insert(var(3, 1), "d"), Some("b"));
        assert_eq!(map.insert(var(9, 2), "e"), None);
        assert_eq!(map.len(), 4);
        assert_eq!(
            [var(3, 0), var(3, 1), var(1, 0)].map(|var| map.get(&var).copied()),
            [Some("a"), Some("d"), Some("c")]
        );
        assert!(!map.contains_key(&var(2, 0)) && !map.contains_key(&var(1, 1)));
        let mut all: Vec<(Var, &str)> = map.iter().map(|(var, &data)| (var, data)).collect();
        all.sort_unstable();
        assert_eq!(all, [(var(1, 0), "c"), (var(3, 0), "a"), (var(3, 1), "d"), (var(9, 2), "e")]);
    }
}
