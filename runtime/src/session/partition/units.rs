//! The units of a graph, which are groups and single nodes, and the kernels of groups.

use super::order::ordered;
use super::{Made, Partitioner};
use crate::backend::{Carry, GroupSite, result_types};
use crate::kernel::{KernelError, Prepared, Site};
use crate::plan::Interface;
use crate::session::pairs::Bundle;
use ampc_ir::views::NodeView;
use ampc_ir::{GraphId, Node, Type, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::sync::Arc;

/// The interfaces and kernels of groups, by their nodes; `None` if a group has no kernel.
pub(super) type Kernels = FxHashMap<Vec<Node>, Option<(Interface, Arc<Prepared>)>>;

impl Partitioner<'_> {
    /// The units with these groups joined. Groups without a kernel are removed from the list, and their nodes run
    /// separately; `kernels` caches prepared groups.
    pub(super) fn joined(
        &self,
        graph: GraphId,
        made: &[Made],
        bundles: &mut Vec<Bundle>,
        kernels: &mut Kernels,
    ) -> Vec<Made> {
        loop {
            let groups: Vec<&Vec<Node>> = bundles.iter().flat_map(|bundle| &bundle.groups).collect();
            let mut units = Partitioner::units(made, &groups);
            let carries = bundles.iter().flat_map(|bundle| &bundle.carries);
            let unprepared = self.prepare_units(graph, &mut units, carries, kernels);
            if unprepared.is_empty() {
                return ordered(self.module, units);
            }
            bundles.retain(|bundle| !unprepared.iter().any(|&node| bundle.contains(node)));
        }
    }

    /// The units, with the nodes of each group merged into one unit.
    fn units(made: &[Made], groups: &[&Vec<Node>]) -> Vec<Made> {
        let mut group_of: FxHashMap<Node, usize> = FxHashMap::default();
        for (at, group) in groups.iter().enumerate() {
            for &node in *group {
                assert!(group_of.insert(node, at).is_none(), "a backend has a node in two groups");
            }
        }
        let mut units: Vec<Made> = Vec::new();
        let mut unit_of: FxHashMap<usize, usize> = FxHashMap::default();
        for single in made {
            let node = single.group.nodes[0];
            match group_of.get(&node) {
                None => units.push(single.clone()),
                Some(group) => match unit_of.get(group) {
                    Some(&unit) => units[unit].group.nodes.push(node),
                    None => {
                        unit_of.insert(*group, units.len());
                        units.push(single.clone());
                    }
                },
            }
        }
        units
    }

    /// Sets the kernel of each unit with several nodes; `carries` are the carried values. Returns one node of each
    /// unit without a kernel.
    fn prepare_units<'c>(
        &self,
        graph: GraphId,
        units: &mut [Made],
        carries: impl Iterator<Item = &'c Carry>,
        kernels: &mut Kernels,
    ) -> Vec<Node> {
        let carries: FxHashMap<Value, &Carry> = carries.map(|carry| (carry.value, carry)).collect();
        let readers = self.readers(units);
        let data = self.module.graph(graph);
        let roots: FxHashSet<Value> = data.states.iter().map(|&(_, next)| next).collect();
        let mut unprepared = Vec::new();
        for (at, unit) in units.iter_mut().enumerate().filter(|(_, unit)| unit.group.nodes.len() > 1) {
            let is_read = |value: Value| {
                let outside = readers.get(&value).is_some_and(|readers| readers.iter().any(|&r| r != at));
                outside
                    || self.module.is_output(value)
                    || roots.contains(&value)
                    || self.watch.contains(value)
            };
            let nodes = &unit.group.nodes[..];
            if !kernels.contains_key(nodes) {
                let interface = Interface::of(self.module, nodes, is_read);
                kernels.insert(nodes.to_vec(), self.prepare_unit(nodes, interface, &carries));
            }
            match &kernels[nodes] {
                None => unprepared.push(nodes[0]),
                Some((interface, kernel)) => {
                    unit.group.needs = kernel.needs.clone();
                    unit.group.interface = Some(interface.clone());
                    unit.kernel = Some(kernel.clone());
                }
            }
        }
        unprepared
    }

    /// The interface of a group, with the values that it carries, and its kernel; `None` if it has no kernel.
    fn prepare_unit(
        &self,
        nodes: &[Node],
        mut interface: Interface,
        carries: &FxHashMap<Value, &Carry>,
    ) -> Option<(Interface, Arc<Prepared>)> {
        let Interface { operands, results, .. } = &interface;
        let carried = |values: &[Value]| -> Vec<Carry> {
            values.iter().filter_map(|value| carries.get(value)).copied().cloned().collect()
        };
        let (read, made) = (carried(operands), carried(results));
        // If only folded nodes read a result, the group does not produce it. The pair then gets no kernels.
        let is_whole = made
            .iter()
            .flat_map(|carry| &carry.instead)
            .all(|value| operands.contains(value) || results.contains(value));
        interface.carry(read.into_iter().chain(made).collect());
        // If only folded nodes read the group, its nodes run separately, so that every group has a result.
        if !is_whole || interface.results.is_empty() {
            return None;
        }
        let kernel = self.prepare_group(nodes, &interface).and_then(|kernel| self.checked(kernel)).ok()?;
        Some((interface, Arc::new(kernel)))
    }

    /// Two of the groups that read each value; two suffice to tell if another group reads it.
    fn readers(&self, units: &[Made]) -> FxHashMap<Value, SmallVec<[usize; 2]>> {
        let mut readers: FxHashMap<Value, SmallVec<[usize; 2]>> = FxHashMap::default();
        for (at, unit) in units.iter().enumerate() {
            for &value in
                unit.group.nodes.iter().flat_map(|&node| self.module.node(node).operands()).flatten()
            {
                let readers = readers.entry(value).or_default();
                if readers.last() != Some(&at) && readers.len() < 2 {
                    readers.push(at);
                }
            }
        }
        readers
    }

    fn prepare_group(&self, nodes: &[Node], interface: &Interface) -> Result<Prepared, KernelError> {
        let results: Vec<Vec<Option<Type>>> =
            nodes.iter().map(|&node| result_types(self.module, node)).collect();
        let sites = nodes.iter().zip(&results).filter_map(|(&node, results)| {
            let view = NodeView::with_facts(self.module, node, self.facts)?;
            let channels_last = self.layouts.channels_last.contains(&node);
            Some(Site { view, source: self.source(node), results, channels_last, room: self.room })
        });
        let sites: Vec<Site<'_>> = sites.collect();
        let Interface { operands, results, carries } = interface;
        self.backend.prepare_group(&GroupSite { sites: &sites, operands, results, carries })
    }
}
