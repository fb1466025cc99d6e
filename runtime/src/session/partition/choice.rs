//! The choice among the groups of a backend by the size of the arena.
//!
//! A group holds all its operands while it runs, and delays early nodes, so it may grow the arena. Groups are kept
//! while the arena is no larger than without groups; on backends that trade memory for traffic, while it grows by no
//! more than the groups save. Other groups are split. Pairs (`pairs.rs`) may grow the arena by the values that they
//! no longer store.

use super::units::Kernels;
use super::{Made, Partitioner};
use crate::backend::{Candidates, alignment};
use crate::plan::{GraphPlan, Group, Index, known_tensor, plan_graph};
use crate::session::pairs::{Bundle, bundles, halves};
use ampc_ir::{GraphId, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;

/// The maximum number of plans that the choice of groups computes.
const MOST_PLANS: usize = 32;

/// The reciprocal of the maximum growth of an arena, without states, by groups that save traffic.
const MOST_GROWTH: usize = 16;

/// [`MOST_PLANS`] for backends that trade memory, which reject fewer sets of groups as a whole.
const MOST_TRADING_PLANS: usize = 96;

impl Partitioner<'_> {
    /// Joins the groups of the backend as long as the arena does not grow, or, on backends that trade memory, grows
    /// by at most the bytes that the groups save.
    ///
    /// A set of groups that grows the arena is halved recursively, down to single groups, and then the nodes of a
    /// single group are halved too.
    ///
    /// ```text
    /// groups A, B, C, D; B grows the arena     A B C D: no     A B: no     C D: yes     A with C D: yes     B: no
    /// ```
    pub(super) fn joined_within(
        &self,
        graph: GraphId,
        made: Vec<Made>,
        folded: &FxHashSet<Value>,
    ) -> Vec<Made> {
        let (pairs, singles) = self.proposed(graph, &self.ready(&made));
        if pairs.is_empty() && singles.is_empty() {
            return made;
        }
        let mut kernels = Kernels::default();
        if self.backend.groups_may_grow() {
            let mut all: Vec<Bundle> = pairs.into_iter().chain(singles).collect();
            return self.joined(graph, &made, &mut all, &mut kernels);
        }
        let without = self.plan(graph, &made, folded);
        let mut most = without.arena;
        let (limit, n_plans) = self.budget(&without, made.len());
        let (mut kept, mut units) = (Vec::new(), made.clone());
        // Pairs come first: the memory that they save may exceed the memory that other groups add.
        let sets = [pairs, singles].into_iter().filter(|set| !set.is_empty());
        let mut open: VecDeque<Vec<Bundle>> = sets.collect();
        for _ in 0..n_plans {
            let Some(set) = open.pop_front() else { break };
            let mut more: Vec<Bundle> = kept.iter().chain(&set).cloned().collect();
            let joined = self.joined(graph, &made, &mut more, &mut kernels);
            if more.len() == kept.len() {
                continue;
            }
            let arena = self.plan(graph, &joined, folded).arena;
            // A pair may grow the arena by the bytes that it no longer stores: if its nodes run separately, the
            // carried values are live from its first group to its second.
            let spared = set.iter().map(|bundle| bundle.spared(self.module)).sum::<usize>();
            if arena <= most.saturating_add(spared)
                || (arena <= limit && arena - most <= self.saved(&set, &kernels))
            {
                most = most.max(arena);
                (kept, units) = (more, joined);
            } else {
                open.extend(halves(set));
            }
        }
        units
    }

    /// The pairs and the single groups that the backend proposes, with the nodes of each group in program order.
    ///
    /// # Panics
    /// If the backend joins a node that is not ready.
    fn proposed(&self, graph: GraphId, ready: &[Node]) -> (Vec<Bundle>, Vec<Bundle>) {
        let channels_last = &self.layouts.channels_last;
        let candidates = Candidates { module: self.module, graph, nodes: ready, channels_last };
        let mut groups = self.backend.join(&candidates);
        if groups.is_empty() {
            return (Vec::new(), Vec::new());
        }
        let position: FxHashMap<Node, usize> =
            ready.iter().enumerate().map(|(at, &node)| (node, at)).collect();
        let carries = self.backend.carries(&candidates, &groups);
        for group in &mut groups {
            let is_ready = group.iter().all(|node| position.contains_key(node));
            assert!(is_ready, "a backend joins a node that is no candidate");
            group.sort_unstable_by_key(|node| position[node]);
        }
        bundles((self.module, graph), self.watch, groups, carries)
    }

    /// The maximum arena with groups, and the maximum number of plans.
    fn budget(&self, without: &GraphPlan, n_units: usize) -> (usize, usize) {
        if !self.backend.groups_trade_memory() {
            return (without.arena, MOST_PLANS);
        }
        // Plans of large graphs take longer.
        let n_plans = (MOST_TRADING_PLANS * 10_000 / n_units.max(1)).clamp(8, MOST_TRADING_PLANS);
        (without.arena + (without.arena - without.state_bytes) / MOST_GROWTH, n_plans)
    }

    /// The bytes that groups with kernels save: a value between nodes of a group is neither written nor read.
    fn saved(&self, bundles: &[Bundle], kernels: &Kernels) -> usize {
        let mut saved = 0usize;
        for nodes in bundles.iter().flat_map(|bundle| &bundle.groups) {
            let Some(Some((interface, _))) = kernels.get(nodes) else { continue };
            let made = nodes.iter().flat_map(|&node| self.module.node(node).results()).flatten();
            for value in made.filter(|value| !interface.results.contains(value)) {
                let bytes = known_tensor(&self.module.value(*value).ty)
                    .and_then(|(dtype, dims)| usize::try_from(dtype.tensor_bytes(&dims)?).ok());
                saved = saved.saturating_add(bytes.unwrap_or(0).saturating_mul(2));
            }
        }
        saved
    }

    fn plan(&self, graph: GraphId, units: &[Made], folded: &FxHashSet<Value>) -> GraphPlan {
        let groups: Vec<Group> = units.iter().map(|unit| unit.group.clone()).collect();
        let mut index = Index::default();
        let is_constant = |value| folded.contains(&value);
        plan_graph(self.module, graph, alignment(self.backend), &mut index, &groups, is_constant)
    }

    /// The nodes whose kernels are ready, and whose operands and results are tensors of known dims.
    fn ready(&self, made: &[Made]) -> Vec<Node> {
        let ready = |made: &&Made| {
            let is_sized = |value: &Value| known_tensor(&self.module.value(*value).ty).is_some();
            let data = self.module.node(made.group.nodes[0]);
            made.kernel.is_some() && data.operands().iter().chain(data.results()).flatten().all(is_sized)
        };
        made.iter().filter(ready).map(|made| made.group.nodes[0]).collect()
    }
}
