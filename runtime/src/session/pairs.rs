//! The units in which a session tries groups: a single group, or a pair with the values that it carries.
//!
//! A pair stores a carried value in another form, or not at all, so only its two groups may read the value. A pair is
//! prepared as a whole or not at all, and is not split if the arena grows.

use super::observe::Watch;
use crate::backend::Carry;
use crate::plan::known_tensor;
use ampc_ir::{DType, GraphId, Module, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};

/// Groups that are prepared together or not at all.
#[derive(Clone)]
pub(super) struct Bundle {
    /// One group, or the two of a pair; each has its nodes in program order.
    pub(super) groups: Vec<Vec<Node>>,
    /// The values that a pair carries.
    pub(super) carries: Vec<Carry>,
}

impl Bundle {
    /// True if a node is in one of the groups.
    pub(super) fn contains(&self, node: Node) -> bool {
        self.groups.iter().any(|group| group.contains(&node))
    }

    /// The size in bytes of carried values that are not stored.
    pub(super) fn spared(&self, module: &Module) -> usize {
        let bytes = |tensor: &(DType, Vec<u64>)| {
            let bytes = tensor.0.tensor_bytes(&tensor.1).and_then(|bytes| usize::try_from(bytes).ok());
            bytes.unwrap_or(0)
        };
        let spared = |carry: &Carry| {
            let own = known_tensor(&module.value(carry.value).ty).as_ref().map_or(0, bytes);
            own.saturating_sub(carry.stored.as_ref().map_or(0, bytes))
        };
        self.carries.iter().map(spared).fold(0, usize::saturating_add)
    }
}

/// The groups of a backend, as pairs and as single groups. Both groups of a pair are dropped if another node reads a
/// carried value, or if a carried value is an output, a state or watched; so is a group with two partners.
pub(super) fn bundles(
    (module, graph): (&Module, GraphId),
    watch: &Watch,
    groups: Vec<Vec<Node>>,
    carries: Vec<Carry>,
) -> (Vec<Bundle>, Vec<Bundle>) {
    let mut group_of: FxHashMap<Node, usize> = FxHashMap::default();
    for (at, group) in groups.iter().enumerate() {
        group_of.extend(group.iter().map(|&node| (node, at)));
    }
    let kept: FxHashSet<Value> = module.graph(graph).states.iter().map(|&(_, next)| next).collect();
    let mut pairs: BTreeMap<(usize, usize), Vec<Carry>> = BTreeMap::new();
    let mut broken: BTreeSet<usize> = BTreeSet::new();
    for carry in carries {
        let value = carry.value;
        let of = |node: Node| group_of.get(&node).copied();
        let maker = module.producer(value).and_then(|(node, _)| of(node));
        let readers: BTreeSet<Option<usize>> =
            module.uses(value).map(|(node, _)| of(node)).filter(|&group| group != maker).collect();
        let others: Vec<Option<usize>> = readers.iter().copied().collect();
        let is_seen = module.is_output(value) || kept.contains(&value) || watch.contains(value);
        match (maker, &others[..]) {
            (Some(maker), &[Some(reader)]) if !is_seen => {
                pairs.entry((maker, reader)).or_default().push(carry);
            }
            _ => broken.extend(readers.into_iter().chain([maker]).flatten()),
        }
    }
    let mut partners: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for &(a, b) in pairs.keys() {
        partners.entry(a).or_default().insert(b);
        partners.entry(b).or_default().insert(a);
    }
    let is_sound = |of: &usize| !broken.contains(of) && partners[of].len() == 1;
    let (mut paired, mut single) = (Vec::new(), Vec::new());
    for (&(a, b), carries) in &pairs {
        if is_sound(&a) && is_sound(&b) {
            let groups = vec![groups[a].clone(), groups[b].clone()];
            paired.push(Bundle { groups, carries: carries.clone() });
        }
    }
    for (at, group) in groups.into_iter().enumerate() {
        if !partners.contains_key(&at) && !broken.contains(&at) {
            single.push(Bundle { groups: vec![group], carries: Vec::new() });
        }
    }
    (paired, single)
}

/// Splits a list of groups into halves; a single group is split into two groups. Operands of the first half may die
/// before the second half runs. Single nodes are not groups, and a single pair is not split.
pub(super) fn halves(mut bundles: Vec<Bundle>) -> Vec<Vec<Bundle>> {
    if let [bundle] = &mut bundles[..] {
        let [group] = &mut bundle.groups[..] else { return Vec::new() };
        let rest = group.split_off(group.len() / 2);
        let parts = [std::mem::take(group), rest].into_iter().filter(|nodes| nodes.len() > 1);
        return parts.map(|nodes| vec![Bundle { groups: vec![nodes], carries: Vec::new() }]).collect();
    }
    let rest = bundles.split_off(bundles.len() / 2);
    vec![bundles, rest]
}
