//! The choice of groups of element-wise nodes: connected nodes whose results have the same dims.
//!
//! Nodes are taken in program order. A node joins the groups whose results it reads: all of them if they can form one
//! group, otherwise the latest that can take it. Nodes can form a group if all groups and single nodes have an order
//! in which every value is produced before it is read. Two rules ensure that.
//!
//! [`Order::First`]: everything that a group reads from outside precedes its first node. Groups run in the order of
//! their first nodes.
//!
//! [`Order::Any`]: each group has the position of one of its nodes, after the positions of all groups and nodes that
//! it reads, and before the positions of all that read it. `{Sigmoid, Mul}` has position 3, because the product at
//! position 2 stands between its nodes:
//!
//! ```text
//! 0 %g = MatMul(%x, %v)    1 %s = Sigmoid(%g)    2 %u = MatMul(%x, %w)    3 %y = Mul(%s, %u)
//! ```

mod index;

pub(crate) use index::GraphIndex;

use crate::backend::Candidates;
use crate::elementwise::Member;
use crate::kernel::{KernelError, Site};
use crate::plan::Interface;
use ampc_ir::Node;
use rustc_hash::FxHashMap;

/// The error of a group whose nodes have no kernel together: the session then splits the group.
pub(crate) fn unsupported_group() -> KernelError {
    KernelError::unsupported("groups of other operators")
}

/// The rule for the nodes between the nodes of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// Everything that a group reads from outside is produced before its first node.
    First,
    /// Groups have positions that order them.
    #[cfg_attr(
        not(all(feature = "cuda", target_os = "linux", target_arch = "x86_64")),
        expect(dead_code, reason = "backends in host memory have the other rule")
    )]
    Any,
}

/// The size limits of groups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) nodes: usize,
    pub(crate) operands: usize,
    pub(crate) results: usize,
    /// The maximum distance in program order between consecutive nodes of a group.
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

/// The element-wise nodes of a graph, which are joined.
pub(crate) struct Joiner<'a> {
    candidates: &'a Candidates<'a>,
    pub(crate) index: &'a GraphIndex<'a>,
    pub(crate) members: FxHashMap<Node, Member>,
    limits: Limits,
}

/// Groups, and the group of each node.
#[derive(Clone, Default)]
pub(crate) struct Groups {
    pub(crate) open: Vec<Open>,
    pub(crate) group_of: FxHashMap<Node, usize>,
}

impl<'a> Joiner<'a> {
    /// Reads the candidates; `read` makes their members.
    pub(crate) fn new(
        candidates: &'a Candidates<'a>,
        index: &'a GraphIndex<'a>,
        limits: Limits,
        mut read: impl FnMut(&Site<'_>) -> Option<Member>,
    ) -> Joiner<'a> {
        let mut members = FxHashMap::default();
        candidates.for_each_site(|site| {
            members.extend(read(site).map(|member| (site.view.node, member)));
        });
        Joiner { candidates, index, members, limits }
    }

    /// Chooses the groups, including groups of single nodes, next to groups of other nodes. `fits` is true of members
    /// for which a kernel with the given interface exists.
    pub(crate) fn groups(&self, mut groups: Groups, fits: impl Fn(&[&Member], &Interface) -> bool) -> Groups {
        for &node in self.candidates.nodes {
            let Some(member) = self.members.get(&node) else { continue };
            let mut near: Vec<usize> =
                self.index.makers_of(node).filter_map(|maker| groups.group_of.get(&maker).copied()).collect();
            near.sort_unstable();
            near.dedup();
            near.retain(|&group| groups.open[group].dims == member.dims[..]);
            // All groups that the node reads merge if they can; otherwise the node joins the latest group that can
            // take it.
            let sets = std::iter::once(near.clone()).chain(near.iter().rev().map(|&group| vec![group]));
            let found = sets.filter(|set| !set.is_empty()).find_map(|set| {
                let mut nodes: Vec<Node> =
                    set.iter().flat_map(|&group| groups.open[group].nodes.clone()).collect();
                nodes.sort_unstable_by_key(|&node| self.index.position(node));
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
                    let position = self.index.position(node);
                    groups.open.push(Open { dims: member.dims.to_vec(), nodes: vec![node], position });
                }
            }
        }
        groups
    }

    /// The position of nodes in program order as a group, if they can form one.
    fn joined(
        &self,
        nodes: &[Node],
        groups: &Groups,
        fits: &impl Fn(&[&Member], &Interface) -> bool,
    ) -> Option<usize> {
        let Limits { nodes: most, operands, results, farthest, order } = self.limits;
        if nodes.len() > most || self.index.has_gap(nodes, farthest) {
            return None;
        }
        let position = match order {
            Order::First => self.first(nodes)?,
            Order::Any => groups.position_between(self.index, nodes, |_| true)?,
        };
        let interface = self.index.interface(nodes);
        if interface.results.len() > results || interface.operands.len() > operands {
            return None;
        }
        let members: Vec<&Member> = nodes.iter().filter_map(|node| self.members.get(node)).collect();
        fits(&members, &interface).then_some(position)
    }

    /// The position of the first node, if everything that the nodes read from outside precedes it.
    fn first(&self, nodes: &[Node]) -> Option<usize> {
        let first = self.index.position(*nodes.first()?);
        let is_early = |maker: Node| self.index.find_position(maker).is_none_or(|at| at < first);
        self.index.makers_outside(nodes).all(is_early).then_some(first)
    }
}

impl Groups {
    /// The last position of one of the nodes, in program order, that is after the groups and nodes that they read and
    /// before those readers for which `runs` is true.
    pub(crate) fn position_between(
        &self,
        index: &GraphIndex<'_>,
        nodes: &[Node],
        runs: impl Fn(Node) -> bool,
    ) -> Option<usize> {
        let position_of = |node: Node| match self.group_of.get(&node) {
            Some(&group) => Some(self.open[group].position),
            None => index.find_position(node),
        };
        index.position_between(nodes, position_of, runs)
    }

    /// Adds a group that no further node joins, at its position.
    #[cfg_attr(
        not(all(feature = "cuda", target_os = "linux", target_arch = "x86_64")),
        expect(dead_code, reason = "backends in host memory have groups of one kind")
    )]
    pub(crate) fn close(&mut self, nodes: &[Node], position: usize) {
        self.group_of.extend(nodes.iter().map(|&node| (node, self.open.len())));
        // No node has such dims, so none joins.
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

    /// The groups with at least two nodes.
    pub(crate) fn into_lists(self) -> Vec<Vec<Node>> {
        self.open.into_iter().map(|open| open.nodes).filter(|nodes| nodes.len() > 1).collect()
    }
}
