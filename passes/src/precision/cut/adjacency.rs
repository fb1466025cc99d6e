//! Lists of items by node, in two flat vectors.

/// The items of every node, in the order of the list that the items come from.
#[derive(Debug)]
pub(super) struct Adjacency {
    first: Vec<u32>,
    items: Vec<u32>,
}

impl Adjacency {
    /// Builds the lists from pairs of a node and an item, by counting sort: the pairs are iterated twice.
    pub(super) fn new(nodes: usize, pairs: impl Iterator<Item = (u32, u32)> + Clone) -> Adjacency {
        let mut first = vec![0_u32; nodes + 2];
        for (node, _) in pairs.clone() {
            first[node as usize + 2] += 1;
        }
        for node in 2..first.len() {
            first[node] += first[node - 1];
        }
        let mut items = vec![0; first[nodes + 1] as usize];
        for (node, item) in pairs {
            let place = &mut first[node as usize + 1];
            items[*place as usize] = item;
            *place += 1;
        }
        first.pop();
        Adjacency { first, items }
    }

    pub(super) fn of(&self, node: u32) -> &[u32] {
        let node = node as usize;
        &self.items[self.first[node] as usize..self.first[node + 1] as usize]
    }
}
