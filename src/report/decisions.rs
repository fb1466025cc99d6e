//! Decisions, gathered while the passes run.

use super::floats::FloatDecisions;
use super::{Before, NodeReport, OptimumReport, TimeReport, VarReport, is_cast, node_report};
use crate::options::{Opset, RewriteOptions};
use ampc_ir::{FunctionId, Module, Node};
use ampc_passes::assign::{Elsewhere, Optimum, time_as_it_stands};
use ampc_passes::flow;
use ampc_passes::move_casts;
use ampc_passes::pipeline::Observer;
use ampc_passes::raise_units::{self, RaisedUnits};
use ampc_passes::share_functions::ShareFunctions;
use ampc_passes::specialize_functions::{SpecializeFunctions, instances};
use ampc_passes::{Changed, Pass, Paths};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;

/// The name of the pass that raises the opset.
const RAISE_OPSET: &str = "raise-opset";

/// Decisions for each call of a function, gathered while the passes run: before functions are specialized the
/// calls are unknown, and after functions are shared again only one of the calls that agree is left.
pub(crate) struct Decisions<'a> {
    before: &'a Before,
    options: &'a RewriteOptions,
    observer: &'a mut dyn Observer,
    /// The time of the source as it was read, with its scale.
    as_read: Option<(i64, i64)>,
    /// The time that passes before the decisions have saved.
    saved: i64,
    /// The nodes that a raised opset or a raised unit needed, with their paths.
    raised: Vec<(Node, String)>,
    /// Casts of the author that stand outside the loop that they were in, with their paths.
    hoisted: Vec<(Node, String)>,
    /// The nodes of functions that one call has for itself.
    instances: Vec<Instance>,
    /// The nodes of the source, nodes of a raised opset, casts that left loops, then nodes of calls that do not
    /// agree.
    nodes: Option<Vec<NodeReport>>,
    time: Option<TimeReport>,
    optimum: Option<OptimumReport>,
    elsewhere: Option<Elsewhere>,
    units: RaisedUnits,
}

/// The decisions so far.
pub(crate) struct Decided {
    pub(super) nodes: Vec<NodeReport>,
    /// The paths of nodes that are not in the source.
    pub(super) instances: FxHashMap<Node, String>,
    pub(super) time: Option<TimeReport>,
    pub(super) optimum: Option<OptimumReport>,
    pub(super) elsewhere: Option<Elsewhere>,
    pub(super) units: RaisedUnits,
}

/// A node of a function that one call has for itself.
struct Instance {
    node: Node,
    /// The node of the source that it stands for.
    source: Node,
    /// Its path by the call.
    path: String,
}

impl<'a> Decisions<'a> {
    pub(crate) fn new(
        before: &'a Before,
        options: &'a RewriteOptions,
        observer: &'a mut dyn Observer,
    ) -> Decisions<'a> {
        Decisions {
            before,
            options,
            observer,
            as_read: None,
            saved: 0,
            raised: Vec::new(),
            hoisted: Vec::new(),
            instances: Vec::new(),
            nodes: None,
            time: None,
            optimum: None,
            elsewhere: None,
            units: RaisedUnits::default(),
        }
    }

    /// Every node of the source and of a raised opset, and casts that left loops.
    fn of_source(&self, module: &Module) -> Vec<NodeReport> {
        let (sources, paths) = (instances(module), &self.before.paths);
        let decisions = FloatDecisions::new(module);
        let nodes = paths.nodes().iter().map(|&node| (node, paths.path(node)));
        let new = self.raised.iter().chain(&self.hoisted).map(|(node, path)| (*node, path.as_str()));
        nodes.chain(new).map(|(node, path)| node_report(&decisions, &sources, path, node)).collect()
    }

    /// Keeps how much time the passes before any decision gain, which raise the opset and units, and move casts.
    fn find_saved(&mut self, pass: &dyn Pass, module: &Module) {
        let may_change = !self.before.casts.is_empty()
            || self.options.opset != Opset::Keep
            || !self.options.raise.is_empty();
        let time = || time_as_it_stands(module, &self.options.target, self.options.to);
        if pass.name() == SpecializeFunctions.name() {
            if let Some((before, scale)) = self.as_read.take() {
                let (now, same) = time();
                self.saved = if same == scale { before.saturating_sub(now) } else { 0 };
            }
        } else if may_change && [RAISE_OPSET, raise_units::NAME, move_casts::NAME].contains(&pass.name()) {
            let found = self.as_read.take().unwrap_or_else(time);
            self.as_read = Some(found);
        }
    }

    /// The nodes that there were before anything was decided.
    fn known(&self) -> FxHashSet<Node> {
        let raised = self.raised.iter().map(|&(node, _)| node);
        self.before.paths.nodes().iter().copied().chain(raised).collect()
    }

    /// Finds the nodes that a raised opset or a raised unit needed.
    fn find_raised(&mut self, module: &Module) {
        let known = self.known();
        let paths = Paths::of(module);
        let new = paths.nodes().iter().filter(|node| !known.contains(node));
        self.raised.extend(new.map(|&node| (node, paths.path(node).to_owned())));
    }

    /// Finds the casts that are not where they were.
    fn find_hoisted(&mut self, module: &Module) {
        let raised = self.raised.iter().map(|(node, _)| node);
        let known: FxHashSet<Node> =
            self.before.casts.iter().map(|(node, _)| node).chain(raised).copied().collect();
        let is_new = |&node: &Node| is_cast(module, node) && !known.contains(&node);
        let mut new = flow::nodes(module).into_iter().filter(is_new).peekable();
        if new.peek().is_some() {
            let paths = Paths::of(module);
            self.hoisted = new.map(|node| (node, paths.path(node).to_owned())).collect();
        }
    }

    /// The content of the report: nodes, and the paths of nodes that are not in the source.
    pub(crate) fn finish(mut self, module: &Module) -> Decided {
        let nodes = self.nodes.take().unwrap_or_else(|| self.of_source(module));
        let copies = self.instances.into_iter().filter(|i| i.node != i.source);
        Decided {
            nodes,
            instances: copies.map(|i| (i.node, i.path)).chain(self.raised).chain(self.hoisted).collect(),
            time: self.time,
            optimum: self.optimum,
            elsewhere: self.elsewhere,
            units: self.units,
        }
    }

    fn find_instances(&mut self, module: &Module) {
        let paths = Paths::of(module);
        let of = instances(module);
        let mut copies: Vec<(FunctionId, FunctionId)> =
            of.iter().map(|(&copy, &source)| (source, copy)).collect();
        copies.sort_unstable();
        // The first call has the function itself.
        let firsts: BTreeSet<FunctionId> = copies.iter().map(|&(source, _)| source).collect();
        copies.extend(firsts.into_iter().map(|source| (source, source)));
        copies.sort_unstable_by_key(|&(source, copy)| (source, copy != source, copy));
        for (source, copy) in copies {
            let nodes = |function| flow::nodes_in(module, module.function(function).graph);
            for (node, source) in nodes(copy).into_iter().zip(nodes(source)) {
                let path = paths.names(node).next().unwrap_or_default().to_owned();
                self.instances.push(Instance { node, source, path });
            }
        }
    }

    /// Decisions for each call, for nodes whose decisions differ between calls.
    fn of_calls(&self, module: &Module) -> Vec<NodeReport> {
        let known = self.known();
        let reports = self.instances.iter().filter(|i| known.contains(&i.source));
        let sources = instances(module);
        let decisions = FloatDecisions::new(module);
        let reports: Vec<(Node, NodeReport)> =
            reports.map(|i| (i.source, node_report(&decisions, &sources, &i.path, i.node))).collect();
        let mut first: FxHashMap<Node, &NodeReport> = FxHashMap::default();
        let mut differ: FxHashSet<Node> = FxHashSet::default();
        for (source, report) in &reports {
            if !first.entry(*source).or_insert(report).agrees(report) {
                differ.insert(*source);
            }
        }
        reports.into_iter().filter(|(source, _)| differ.contains(source)).map(|(_, report)| report).collect()
    }
}

impl Observer for Decisions<'_> {
    fn before(&mut self, pass: &dyn Pass, module: &Module) {
        self.find_saved(pass, module);
        if pass.name() == ShareFunctions.name() && !self.instances.is_empty() {
            let mut nodes = self.of_source(module);
            nodes.extend(self.of_calls(module));
            self.nodes = Some(nodes);
        }
        self.observer.before(pass, module);
    }
    fn after(&mut self, pass: &dyn Pass, module: &Module, changed: Changed) {
        if [RAISE_OPSET, raise_units::NAME].contains(&pass.name()) && changed == Changed::Yes {
            self.find_raised(module);
        }
        if pass.name() == move_casts::NAME && changed == Changed::Yes {
            self.find_hoisted(module);
        }
        if pass.name() == SpecializeFunctions.name() && changed == Changed::Yes {
            self.find_instances(module);
        }
        self.observer.after(pass, module, changed);
    }
    fn chosen(&mut self, optimum: &Optimum) {
        self.time = TimeReport::of(optimum, self.saved);
        self.optimum = Some(OptimumReport::of(optimum));
        self.elsewhere = optimum.elsewhere.clone();
        self.observer.chosen(optimum);
    }
    fn raised_units(&mut self, units: &RaisedUnits) {
        self.units = units.clone();
        self.observer.raised_units(units);
    }
}

impl NodeReport {
    /// True if the decisions are equal, for any reason.
    fn agrees(&self, other: &NodeReport) -> bool {
        let decided = |v: &VarReport| (v.var.clone(), v.class, v.precision.clone());
        self.vars.iter().map(decided).eq(other.vars.iter().map(decided))
    }
}
