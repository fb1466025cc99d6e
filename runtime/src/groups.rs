//! Groups of element-wise nodes, as backends choose them: nodes that read each other and have results of the same dims.
//!
//! Nodes are taken in program order. A node joins the groups whose results it reads: all of them if they can be one group,
//! otherwise the latest that can take it. Nodes can be a group if there is an order of all groups and single nodes in which
//! every value is made before it is read. Two rules ensure that.
//!
//! [`Order::First`]: everything that a group reads from outside stands before its first node. Groups run in the order of
//! their first nodes.
//!
//! [`Order::Any`]: each group has the position of one of its nodes, behind the positions of all groups and nodes that it
//! reads and before those of all that read it. `{Sigmoid, Mul}` has position 3, because the product at position 2 stands
//! between its nodes:
//!
//! ```text
//! 0 %g = MatMul(%x, %v)    1 %s = Sigmoid(%g)    2 %u = MatMul(%x, %w)    3 %y = Mul(%s, %u)
//! ```

use crate::backend::Candidates;
use crate::elementwise::Member;
use crate::kernel::Site;
use crate::plan::Interface;
use crate::room::Room;
use ampc_ir::views::NodeView;
use ampc_ir::{Node, Type, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// The rule for the nodes between the nodes of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// A group reads nothing that is made behind its first node, but by its own nodes.
    First,
    /// Groups have positions that order them.
    #[cfg_attr(
        not(all(feature = "cuda", target_os = "linux", target_arch = "x86_64")),
        expect(dead_code, reason = "backends in host memory have the other rule")
    )]
    Any,
}

/// The sizes of groups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) nodes: usize,
    pub(crate) operands: usize,
    pub(crate) results: usize,
    /// How far a node may stand from the next node of its group in the program.
    pub(crate) farthest: usize,
    pub(crate) order: Order,
}

/// A group that more nodes may join.
#[derive(Clone)]
pub(crate) struct Open {
    pub(crate) dims: Vec<usize>,
    pub(crate) nodes: Vec<Node>,
    /// The position among groups and single nodes.
    position: usize,
}

/// The element-wise nodes of a graph, with producers and readers.
pub(crate) struct Joiner<'a> {
    candidates: &'a Candidates<'a>,
    pub(crate) members: FxHashMap<Node, Member>,
    /// The positions of nodes in the program.
    pub(crate) position: FxHashMap<Node, usize>,
    /// The nodes that read each value.
    pub(crate) readers: FxHashMap<Value, Vec<Node>>,
    /// Values that are read when all nodes are done.
    pub(crate) roots: FxHashSet<Value>,
    limits: Limits,
}

/// Groups, and the group of each node.
#[derive(Clone, Default)]
pub(crate) struct Groups {
    pub(crate) open: Vec<Open>,
    pub(crate) group_of: FxHashMap<Node, usize>,
}

impl<'a> Joiner<'a> {
    /// The candidates of which `read` makes members.
    pub(crate) fn new(
        candidates: &'a Candidates<'a>,
        limits: Limits,
        mut read: impl FnMut(&Site<'_>) -> Option<Member>,
    ) -> Joiner<'a> {
        let Candidates { module, graph, nodes, channels_last } = candidates;
        let mut position = FxHashMap::default();
        let mut readers: FxHashMap<Value, Vec<Node>> = FxHashMap::default();
        for (at, node) in module.nodes(*graph).enumerate() {
            position.insert(node, at);
            for &value in module.node(node).operands().iter().flatten() {
                readers.entry(value).or_default().push(node);
            }
        }
        let data = module.graph(*graph);
        let next = data.states.iter().map(|&(_, next)| next);
        let roots = data.outputs().iter().map(|output| output.value).chain(next).collect();
        let mut members = FxHashMap::default();
        for &node in *nodes {
            let results: Vec<Option<Type>> =
                module.node(node).results().iter().map(|v| v.map(|v| module.value(v).ty.clone())).collect();
            let Some(view) = NodeView::new(module, node) else { continue };
            let channels_last = channels_last.contains(&node);
            let site = Site { view, source: node, results: &results, channels_last, room: Room::of(0) };
            if let Some(member) = read(&site) {
                members.insert(node, member);
            }
        }
        Joiner { candidates, members, position, readers, roots, limits }
    }

    /// The groups, of single nodes too, beside groups of other nodes. `fits` is true of members that have a kernel with an
    /// interface.
    pub(crate) fn groups(&self, mut groups: Groups, fits: impl Fn(&[&Member], &Interface) -> bool) -> Groups {
        for &node in self.candidates.nodes {
            let Some(member) = self.members.get(&node) else { continue };
            let mut near: Vec<usize> =
                self.makers(node).filter_map(|maker| groups.group_of.get(&maker).copied()).collect();
            near.sort_unstable();
            near.dedup();
            near.retain(|&group| groups.open[group].dims == member.dims[..]);
            // All groups that the node reads become one if they can; otherwise it joins the latest that it can.
            let sets = std::iter::once(near.clone()).chain(near.iter().rev().map(|&group| vec![group]));
            let found = sets.filter(|set| !set.is_empty()).find_map(|set| {
                let mut nodes: Vec<Node> =
                    set.iter().flat_map(|&group| groups.open[group].nodes.clone()).collect();
                nodes.sort_unstable_by_key(|node| self.position[node]);
                nodes.push(node);
                let position = self.joined(&nodes, &groups, &fits)?;
                Some((set, nodes, position))
            });
            match found {
                Some((set, nodes, position)) => {
                    set.iter().for_each(|&group| groups.open[group].nodes.clear());
                    nodes.iter().for_each(|&node| {
                        groups.group_of.insert(node, set[0]);
                    });
                    groups.open[set[0]].nodes = nodes;
                    groups.open[set[0]].position = position;
                }
                None => {
                    groups.group_of.insert(node, groups.open.len());
                    let position = self.position[&node];
                    groups.open.push(Open { dims: member.dims.to_vec(), nodes: vec![node], position });
                }
            }
        }
        groups
    }

    /// The nodes that make the operands of a node.
    pub(crate) fn makers(&self, node: Node) -> impl Iterator<Item = Node> {
        let module = self.candidates.module;
        let operands = module.node(node).operands().iter().flatten();
        operands.filter_map(|&value| module.producer(value).map(|(maker, _)| maker))
    }

    /// The nodes that read results of a node, some of them several times.
    #[cfg_attr(
        not(all(feature = "cuda", target_os = "linux", target_arch = "x86_64")),
        expect(dead_code, reason = "backends in host memory join element-wise nodes only")
    )]
    pub(crate) fn readers_of(&self, node: Node) -> impl Iterator<Item = Node> {
        let results = self.candidates.module.node(node).results().iter().flatten();
        results.filter_map(|value| self.readers.get(value)).flatten().copied()
    }

    /// The position of nodes in program order as a group, if they can be one.
    fn joined(
        &self,
        nodes: &[Node],
        groups: &Groups,
        fits: &impl Fn(&[&Member], &Interface) -> bool,
    ) -> Option<usize> {
        let Limits { nodes: most, operands, results, farthest, order } = self.limits;
        let is_far = |pair: &[Node]| self.position[&pair[1]] - self.position[&pair[0]] > farthest;
        if nodes.len() > most || nodes.windows(2).any(is_far) {
            return None;
        }
        let position = match order {
            Order::First => self.first(nodes)?,
            Order::Any => self.between(nodes, groups)?,
        };
        let interface = self.interface(nodes);
        if interface.results.len() > results || interface.operands.len() > operands {
            return None;
        }
        let members: Vec<&Member> = nodes.iter().filter_map(|node| self.members.get(node)).collect();
        fits(&members, &interface).then_some(position)
    }

    /// The position of the first node, if everything that the nodes read from outside stands before it.
    fn first(&self, nodes: &[Node]) -> Option<usize> {
        let first = self.position[&nodes[0]];
        let is_early =
            |maker: Node| nodes.contains(&maker) || self.position.get(&maker).is_none_or(|&at| at < first);
        nodes.iter().all(|&node| self.makers(node).all(is_early)).then_some(first)
    }

    /// The last position of a node that is behind everything that the nodes read from outside, and before everything outside
    /// that reads them.
    pub(crate) fn between(&self, nodes: &[Node], groups: &Groups) -> Option<usize> {
        self.between_runs(nodes, groups, &|_| true)
    }

    /// As [`between`](Self::between), before those nodes outside for which `runs` is true.
    pub(crate) fn between_runs(
        &self,
        nodes: &[Node],
        groups: &Groups,
        runs: &dyn Fn(Node) -> bool,
    ) -> Option<usize> {
        let position_of = |node: &Node| match groups.group_of.get(node) {
            Some(&group) => Some(groups.open[group].position),
            None => self.position.get(node).copied(),
        };
        let outside = |node: &Node| !nodes.contains(node);
        let makers = nodes.iter().flat_map(|&node| self.makers(node)).filter(outside);
        let behind = makers.filter_map(|maker| position_of(&maker)).max();
        let made = nodes.iter().flat_map(|&node| self.candidates.module.node(node).results()).flatten();
        let readers = made
            .filter_map(|value| self.readers.get(value))
            .flatten()
            .filter(|node| outside(node) && runs(**node));
        let before = readers.filter_map(position_of).min();
        let is_between =
            |at: &usize| behind.is_none_or(|other| other < *at) && before.is_none_or(|other| *at < other);
        nodes.iter().rev().map(|node| self.position[node]).find(is_between)
    }

    /// The values that nodes read from outside, and the values that are read outside.
    pub(crate) fn interface(&self, nodes: &[Node]) -> Interface {
        Interface::of(self.candidates.module, nodes, |value| {
            let outside =
                self.readers.get(&value).is_some_and(|r| r.iter().any(|reader| !nodes.contains(reader)));
            outside || self.roots.contains(&value)
        })
    }
}

impl Groups {
    /// Adds a group that no further node joins, at its position.
    #[cfg_attr(
        not(all(feature = "cuda", target_os = "linux", target_arch = "x86_64")),
        expect(dead_code, reason = "backends in host memory have groups of one kind")
    )]
    pub(crate) fn close(&mut self, nodes: &[Node], position: usize) {
        self.group_of.extend(nodes.iter().map(|&node| (node, self.open.len())));
        // No node has such dims.
        self.open.push(Open { dims: vec![usize::MAX; 2], nodes: Vec::new(), position });
    }

    /// The nodes of groups, with the positions of their groups.
    #[cfg_attr(
        not(all(feature = "cuda", target_os = "linux", target_arch = "x86_64")),
        expect(dead_code, reason = "backends in host memory have groups of one kind")
    )]
    pub(crate) fn positions(&self) -> impl Iterator<Item = (Node, usize)> + '_ {
        self.group_of.iter().map(|(&node, &group)| (node, self.open[group].position))
    }

    /// The groups of two nodes or more.
    pub(crate) fn into_lists(self) -> Vec<Vec<Node>> {
        self.open.into_iter().map(|open| open.nodes).filter(|nodes| nodes.len() > 1).collect()
    }
}
