//! Searches for nodes of a rewritten model that must stay fp32 for its outputs to be within the tolerance.
//!
//! Low nodes, including nodes that only move values (constants that they move are stored low), are ranked by the
//! error that they add. The candidates that add most are pinned, twice as many in each round, until the outputs are
//! within the tolerance or no candidate is low; nodes with bodies and calls come last. After each round, the
//! remaining low nodes are ranked again: low regions end at pinned nodes, so other nodes, which were fp32 before,
//! become low. At the end, halves, quarters and so on of the pins are removed as long as the outputs stay within the
//! tolerance, as in delta debugging (Zeller and Hildebrandt 2002). The number of rewrites of both parts is bounded.
//! Between the two parts, pins without effect are removed: pins of nodes that read no element, and of nodes that are
//! fp32 anyway once the nodes that add more are pinned.

use super::verify::{Compared, Verification, VerifyOptions, verify_draws};
use super::{Inputs, scope};
use crate::error::Error;
use crate::loaded::Model;
use crate::options::RewriteOptions;
use crate::report::{Report, TimeReport};
use crate::rewrite::rewrite_in_place;
use ampc_ir::module::{Decision, Rule};
use ampc_ir::op::{Class, OpKind, reads_only_dims};
use ampc_ir::{DType, Module, Node};
use ampc_passes::policy::{ListedBy, Pin, node_key};
use ampc_passes::{Paths, Policy};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The maximum number of rewrites that search for helpful pins. Fewer pin all nodes, unless new nodes become low.
const MOST_ROUNDS: usize = 32;

/// The maximum number of rewrites that remove pins.
const MOST_TRIES: usize = 32;

/// The result of a search for pins.
#[derive(Clone, Debug, Default)]
pub struct PinSearch {
    /// Paths of nodes to pin to fp32, in the order of the model.
    pub pins: Vec<String>,
    /// Operators to deny, which shortens the request: all their nodes are in `pins`. The outputs are within the
    /// tolerance with these operators denied and the pins of `rest`.
    pub deny: Vec<String>,
    /// The pins of nodes whose operators are not in `deny`.
    pub rest: Vec<String>,
    /// True if all outputs are within the tolerance with these pins; otherwise no pins help.
    pub passes: bool,
    /// The low part of the model with these pins, if they help.
    pub pinned: Option<Pinned>,
    /// The number of rewrites that were run.
    pub tried: usize,
    /// If no pins help: the paths of nodes that are low despite the last pins that were tried.
    pub left_low: Vec<String>,
    /// True if the limit of rewrites left some of these nodes unpinned.
    pub gave_up: bool,
    /// True if the model has 16-bit floats of its own.
    pub has_low_source: bool,
}

/// A rewrite with pins that help.
#[derive(Clone, Debug, Serialize)]
pub struct Pinned {
    /// The number of nodes that are low with the pins.
    pub low: u64,
    /// The number of nodes with floats that are fp32 or low.
    pub nodes: u64,
    /// The predicted speedup over the source, if it is predicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<String>,
    /// True if the rewrite with the pins is predicted to be slower than the source.
    pub is_slower: bool,
    /// True if the rewrite with the pins lowers a node.
    #[serde(skip)]
    pub lowers: bool,
}

impl Pinned {
    fn of(rewritten: &Module, report: &Report) -> Pinned {
        let time = report.time.as_ref();
        Pinned {
            low: report.summary.low,
            nodes: report.summary.low + report.summary.full,
            speed: time.and_then(TimeReport::ratio),
            is_slower: time.is_some_and(TimeReport::is_slower),
            lowers: !lowered(rewritten).is_empty(),
        }
    }
}

/// Searches for nodes that must stay fp32. `found` is the result of [`verify_draws`] for `source` and its rewrite by
/// `options` on these draws of inputs.
///
/// # Errors
/// If a model cannot be rewritten or run.
pub fn find_pins(
    source: &Module,
    options: &RewriteOptions,
    draws: &[Inputs],
    verify_options: &VerifyOptions,
    rewritten: &Module,
    found: &Verification,
) -> Result<PinSearch, Error> {
    let failing = found.first.as_ref().map_or(0, |first| first.draw);
    // The draw that failed comes first, so that one draw suffices to reject a rewrite that does not help.
    let mut order: Vec<usize> = (0..draws.len()).filter(|draw| !found.without.contains(draw)).collect();
    order.sort_by_key(|&draw| draw != failing);
    let mut search = Search { source, options, draws, order, verify_options, tried: 0 };
    let paths = Paths::of(source);
    let mut pins: Vec<Candidate> = Vec::new();
    let mut pinned: FxHashSet<String> = FxHashSet::default();
    let mut last: Option<Trial> = None;
    loop {
        let (now, found) = last.as_ref().map_or((rewritten, found), |last| (&last.rewritten, &last.found));
        let mut new = ranked(source, &paths, now, found);
        new.retain(|candidate| !pinned.contains(&candidate.path));
        if new.is_empty() || search.tried == MOST_ROUNDS {
            return Ok(PinSearch {
                tried: search.tried,
                left_low: lowered(now),
                gave_up: !new.is_empty(),
                has_low_source: has_low(source),
                ..PinSearch::default()
            });
        }
        new.truncate(pins.len().max(1));
        pinned.extend(new.iter().map(|candidate| candidate.path.clone()));
        pins.append(&mut new);
        let trial = search.trial(pins.iter())?;
        if trial.found.passed() {
            break;
        }
        last = Some(trial);
    }
    let pins = search.effective(pins, &paths)?;
    let mut pins = search.needed(&pins)?;
    pins.sort_by_key(|candidate| candidate.at);
    let (deny, rest) = search.by_operator(&pins, &paths, rewritten)?;
    let pins = list(&pins);
    // The recommended rewrite: with the operators denied, if there are any.
    let advised = if deny.is_empty() { &pins } else { &rest };
    let (rewritten, report) = with_pins(source, options, advised.iter().map(String::as_str), &deny)?;
    let pinned = Some(Pinned::of(&rewritten, &report));
    Ok(PinSearch { pins, deny, rest, passes: true, pinned, tried: search.tried, ..PinSearch::default() })
}

fn list(pins: &[&Candidate]) -> Vec<String> {
    pins.iter().map(|candidate| candidate.path.clone()).collect()
}

/// A node that can be pinned.
#[derive(Clone)]
struct Candidate {
    path: String,
    /// The index in program order.
    at: usize,
    adds: f64,
}

/// The nodes that can be pinned, in descending order of the error that they add.
fn ranked(source: &Module, paths: &Paths, rewritten: &Module, found: &Verification) -> Vec<Candidate> {
    let result = Paths::of(rewritten);
    let places: FxHashMap<Node, usize> = paths.nodes().iter().copied().zip(0..).collect();
    let place = |node| places.get(&node).copied().unwrap_or(usize::MAX);
    let mut ranked: Vec<Candidate> = Vec::new();
    let mut index: FxHashMap<&str, usize> = FxHashMap::default();
    for value in found.values.iter().chain(&found.outputs) {
        let (Some(node), path) = (value.node, &value.path) else { continue };
        let now = now(source, paths, rewritten, &result, path, node);
        if now.is_none_or(|now| !is_lowered(rewritten, now)) {
            continue;
        }
        // The error of a node with bodies or a call is added by its inner nodes, which are ranked themselves.
        let adds = if scope::is_nested(source, node) { 0.0 } else { weight(value) };
        match index.get(path.as_str()) {
            Some(&i) => ranked[i].adds = ranked[i].adds.max(adds),
            None => {
                index.insert(path, ranked.len());
                ranked.push(Candidate { path: path.clone(), at: place(node), adds });
            }
        }
    }
    // Nodes whose results were not compared may matter as well.
    let others = paths.nodes().iter().filter(|&&node| is_lowered(rewritten, node));
    let others = others.map(|&node| (node, paths.path(node))).filter(|(_, path)| !index.contains_key(path));
    ranked.extend(others.map(|(node, path)| Candidate { path: path.to_owned(), at: place(node), adds: 0.0 }));
    ranked.sort_by(|a, b| b.adds.total_cmp(&a.adds).then(a.at.cmp(&b.at)));
    ranked
}

/// The node of a rewrite at a path of the source. A path through a call leads to the specialized function of that
/// call; `node` is the node in the function of the source.
fn now(
    source: &Module,
    paths: &Paths,
    rewritten: &Module,
    result: &Paths,
    path: &str,
    node: Node,
) -> Option<Node> {
    match (paths.node(path), paths.by_call(source, path)) {
        (Some(_), _) => Some(node),
        (None, None) => None,
        (None, Some(_)) => Some(result.by_call(rewritten, path).unwrap_or(node)),
    }
}

/// True if rounding the elements that a node reads or produces changes a result of another node. False for operators
/// that read only dims, and for constants, because their readers round them too.
fn has_effect(source: &Module, node: Node) -> bool {
    let kind = source.node(node).schema().map(|schema| schema.kind);
    !kind.is_some_and(|kind| reads_only_dims(kind) || kind == OpKind::Constant)
}

/// The error that a node adds. A result that is NaN in only one model has no measurable error and is ranked first.
fn weight(value: &Compared) -> f64 {
    let adds = value.adds.unwrap_or_else(|| value.agreement.error());
    if adds.is_nan() { f64::INFINITY } else { adds }
}

/// A rewrite with pins, and its errors.
struct Trial {
    rewritten: Module,
    found: Verification,
}

struct Search<'a> {
    source: &'a Module,
    options: &'a RewriteOptions,
    draws: &'a [Inputs],
    /// The draws to compare on, in order.
    order: Vec<usize>,
    verify_options: &'a VerifyOptions,
    tried: usize,
}

impl Search<'_> {
    /// Rewrites with these pins and compares.
    fn trial<'c>(&mut self, pins: impl Iterator<Item = &'c Candidate>) -> Result<Trial, Error> {
        self.trial_with(pins, &[])
    }

    /// Rewrites with these pins, and with these operators denied.
    fn rewritten<'c>(
        &mut self,
        pins: impl Iterator<Item = &'c Candidate>,
        deny: &[String],
    ) -> Result<Module, Error> {
        self.tried += 1;
        with_pins(self.source, self.options, pins.map(|pin| pin.path.as_str()), deny)
            .map(|(module, _)| module)
    }

    fn trial_with<'c>(
        &mut self,
        pins: impl Iterator<Item = &'c Candidate>,
        deny: &[String],
    ) -> Result<Trial, Error> {
        let mut rewritten = self.rewritten(pins, deny)?;
        let mut source = self.source.clone();
        for at in 0..self.order.len() {
            let draw = std::slice::from_ref(&self.draws[self.order[at]]);
            let found = verify_draws(&mut source, &mut rewritten, draw, self.verify_options)?;
            if !found.passed() || at + 1 == self.order.len() {
                self.order[..=at].rotate_right(usize::from(!found.passed()));
                return Ok(Trial { rewritten, found });
            }
        }
        Err(Error::Usage("there are no inputs to compare on".into()))
    }

    /// Removes pins without effect from helpful pins. Pins are taken in descending order of the error that their
    /// nodes add, twice as many in each round; after each round, nodes that are fp32 with the pins taken so far are
    /// removed.
    fn effective(&mut self, pins: Vec<Candidate>, paths: &Paths) -> Result<Vec<Candidate>, Error> {
        let node = |candidate: &Candidate| {
            let by_call = || paths.by_call(self.source, &candidate.path);
            paths.node(&candidate.path).or_else(by_call)
        };
        let mut rest: Vec<Candidate> = pins
            .iter()
            .filter(|&pin| node(pin).is_none_or(|n| has_effect(self.source, n)))
            .cloned()
            .collect();
        rest.sort_by(|a, b| b.adds.total_cmp(&a.adds).then(a.at.cmp(&b.at)));
        let mut taken: Vec<Candidate> = Vec::new();
        while !rest.is_empty() {
            taken.extend(rest.drain(..taken.len().clamp(1, rest.len())));
            if rest.is_empty() {
                break;
            }
            let rewritten = self.rewritten(taken.iter(), &[])?;
            let result = Paths::of(&rewritten);
            rest.retain(|pin| {
                let path = &pin.path;
                let node = paths.node(path).or_else(|| paths.by_call(self.source, path));
                let now = node.and_then(|node| now(self.source, paths, &rewritten, &result, path, node));
                now.is_none_or(|now| is_lowered(&rewritten, now))
            });
        }
        if taken.is_empty() || taken.len() == pins.len() {
            return Ok(pins);
        }
        Ok(if self.trial(taken.iter())?.found.passed() { taken } else { pins })
    }

    /// Operators whose nodes are all pinned, and the pins of other nodes, if the outputs are within the tolerance
    /// with these operators denied; otherwise nothing.
    fn by_operator(
        &mut self,
        pins: &[&Candidate],
        paths: &Paths,
        rewritten: &Module,
    ) -> Result<(Vec<String>, Vec<String>), Error> {
        let source = self.source;
        let mut nodes: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        let has_floats = |node: Node| {
            rewritten.node(node).decisions.iter().any(|d| d.precision.is_some_and(DType::is_float))
        };
        for &node in paths.nodes().iter().filter(|&&node| has_floats(node)) {
            if source.node(node).schema().is_some() {
                nodes.entry(node_key(source, node)).or_default().push(paths.path(node));
            }
        }
        let pinned: FxHashSet<&str> = pins.iter().map(|pin| pin.path.as_str()).collect();
        nodes.retain(|_, of_op| of_op.len() > 1 && of_op.iter().all(|path| pinned.contains(path)));
        let denied: FxHashSet<&str> = nodes.values().flatten().copied().collect();
        let deny: Vec<String> = nodes.into_keys().collect();
        let rest: Vec<&Candidate> =
            pins.iter().copied().filter(|pin| !denied.contains(pin.path.as_str())).collect();
        if deny.is_empty() || !self.trial_with(rest.iter().copied(), &deny)?.found.passed() {
            return Ok((Vec::new(), Vec::new()));
        }
        Ok((deny, list(&rest)))
    }

    /// Reduces helpful pins to the necessary pins, within a bounded number of rewrites.
    fn needed<'c>(&mut self, pins: &'c [Candidate]) -> Result<Vec<&'c Candidate>, Error> {
        let mut pins: Vec<&Candidate> = pins.iter().collect();
        let most = self.tried + MOST_TRIES;
        let mut part = pins.len().div_ceil(2);
        while pins.len() > 1 && self.tried < most {
            let before = pins.len();
            // The pin that adds least is removed first.
            let mut end = pins.len();
            while end > 0 && self.tried < most {
                let start = end.saturating_sub(part);
                let without: Vec<&Candidate> = pins[..start].iter().chain(&pins[end..]).copied().collect();
                if !without.is_empty() && self.trial(without.iter().copied())?.found.passed() {
                    pins = without;
                }
                end = start;
            }
            if part == 1 && pins.len() == before {
                break;
            }
            part = part.min(pins.len()).div_ceil(2);
        }
        Ok(pins)
    }
}

/// Rewrites a model with nodes pinned to fp32, which overrides other pins, and with operators denied.
pub(super) fn with_pins<'c>(
    source: &Module,
    options: &RewriteOptions,
    paths: impl Iterator<Item = &'c str>,
    deny: &[String],
) -> Result<(Module, Report), Error> {
    let mut policy: Policy = (*options.policy).clone();
    for op in deny {
        policy.set_class(op, Class::Deny, ListedBy::Options)?;
    }
    policy.next_layer();
    for path in paths {
        policy.pin(path, Pin::To(DType::F32))?;
    }
    let policy = Arc::new(policy);
    let options = RewriteOptions { policy, alternative: None, explain: Vec::new(), ..options.clone() };
    let mut model = Model::from(source.clone());
    let report = rewrite_in_place(&mut model, &options, &mut ())?;
    Ok((model.module, report))
}

/// True if a node was lowered: a 16-bit format was chosen for it that it did not have before.
fn is_lowered(module: &Module, node: Node) -> bool {
    let data = module.node(node);
    let chosen = |d: &Decision| d.class != Class::Fixed && *d.reason.rule() != Rule::AlreadyLow;
    data.is_alive() && data.decisions.iter().any(|d| d.precision.is_some_and(DType::is_low) && chosen(d))
}

/// The paths of the lowered nodes.
fn lowered(module: &Module) -> Vec<String> {
    let paths = Paths::of(module);
    let nodes = paths.nodes().iter().filter(|&&node| is_lowered(module, node));
    nodes.map(|&node| paths.path(node).to_owned()).collect()
}

/// True if a module has 16-bit floats.
fn has_low(module: &Module) -> bool {
    let is_low = |value| module.value(value).ty.element_dtype().is_some_and(DType::is_low);
    module.graph_ids().any(|graph| module.defined(graph).any(is_low))
}
