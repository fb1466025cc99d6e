//! Pins that bring the outputs of a rewrite within the tolerance of a verification.
//!
//! The pins are those of a [search](super::search) on the inputs of the verification: the cheapest choice of formats within the
//! bounds of the outputs that it finds. Nodes of an operator whose nodes are all pinned are replaced by the operator. The
//! rewrite with the pins is verified, so the result is always verified.

use super::Inputs;
use super::pinned::with_pins;
use super::search::{Found, Metric, SearchOptions, search};
use super::verify::{Compared, Verification, VerifyOptions, default_tolerance_of, verify_draws};
use crate::error::Error;
use crate::loaded::Model;
use crate::options::RewriteOptions;
use crate::report::{Report, TimeReport};
use ampc_ir::module::{Decision, Rule};
use ampc_ir::op::Class;
use ampc_ir::{DType, Module, Node};
use ampc_passes::Paths;
use ampc_passes::guard::Statistics;
use ampc_passes::policy::node_key;
use rustc_hash::FxHashSet;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The maximal number of rewrites that are measured.
const MOST_CHOICES: usize = 64;

/// The maximal number of rewrites that pin the nodes that are still low.
const MOST_ROUNDS: usize = 8;

/// The result of a search for pins.
#[derive(Clone, Debug, Default)]
pub struct PinSearch {
    /// The nodes to pin to fp32, in the order of the model: paths, or paths with a type variable.
    pub pins: Vec<String>,
    /// Operators to deny, which makes the recommendation shorter: all their nodes are in `pins`. The outputs are within the
    /// tolerance with these operators denied and the pins of `rest`.
    pub deny: Vec<String>,
    /// The pins of nodes whose operators are not in `deny`.
    pub rest: Vec<String>,
    /// True if all outputs are within the tolerance with these pins; otherwise no pins help.
    pub passes: bool,
    /// The low part of the model with these pins, if they help.
    pub pinned: Option<Pinned>,
    /// The number of rewrites that were measured.
    pub tried: usize,
    /// If no pins help: the paths of nodes that are low although all nodes are pinned.
    pub left_low: Vec<String>,
    /// The paths of nodes that the policy pins to 16 bits, if their roundings are beyond the tolerance, and no other pins help.
    pub pinned_low: Vec<String>,
    /// True if the search reached the maximal number of rewrites.
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
/// `options` on these draws of inputs; `None` if the rewrite cannot be computed on them.
///
/// # Errors
/// If `source` cannot be rewritten or run.
pub fn find_pins(
    source: &Module,
    options: &RewriteOptions,
    draws: &[Inputs],
    verify_options: &VerifyOptions,
    rewritten: &Module,
    found: Option<&Verification>,
) -> Result<PinSearch, Error> {
    if lowered(rewritten).is_empty() {
        return Ok(PinSearch { has_low_source: has_low(source), ..PinSearch::default() });
    }
    let (draws, batch_tolerances) = match found {
        Some(found) => failing_first(source, draws, found),
        None => (draws.to_vec(), Vec::new()),
    };
    let tolerance = found.map(|found| found.tolerance).or(verify_options.tolerance);
    let search_options = SearchOptions {
        runtime: verify_options.runtime.clone(),
        metric: Metric::Max,
        tolerance: tolerance.map_or_else(|| default_tolerance_of(options.to), |tolerance| tolerance.of_max),
        tolerances: BTreeMap::new(),
        batch_tolerances,
        choices: MOST_CHOICES,
        holds_out: false,
    };
    let model = Model::from(source.clone());
    let choice = search(&model, options, &draws, &search_options, &mut |_| true)?;
    let mut trials =
        Trials { source, options, draws: &draws, verify_options, statistics: Statistics::default() };
    trials.verified(choice, rewritten)
}

/// The draws on which the source can be computed, with the bounds of the outputs. The draw that failed comes first, so that one
/// draw suffices to reject a rewrite that does not help.
fn failing_first(
    source: &Module,
    draws: &[Inputs],
    found: &Verification,
) -> (Vec<Inputs>, Vec<BTreeMap<String, f64>>) {
    let failing = found.first.as_ref().map_or(0, |first| first.draw);
    let meaningful = (0..draws.len()).filter(|draw| !found.without.contains(draw));
    let mut order: Vec<(usize, &Vec<Compared>)> = meaningful.zip(&found.by_draw).collect();
    order.sort_by_key(|&(draw, _)| draw != failing);
    order.into_iter().map(|(draw, outputs)| (draws[draw].clone(), bounds(source, found, outputs))).unzip()
}

/// The bounds of the outputs on a draw as shares of their largest expected elements; 0 for outputs that are no floats.
fn bounds(source: &Module, found: &Verification, of_draw: &[Compared]) -> BTreeMap<String, f64> {
    let outputs = source.graph(source.main()).outputs();
    let is_float =
        |at: usize| source.value(outputs[at].value).ty.element_dtype().is_some_and(DType::is_float);
    let share = |at: usize, output: &Compared| {
        let compared = &output.agreement.found;
        match compared.max_want {
            most if is_float(at) && most > 0.0 && most.is_finite() => compared.bound() / most,
            _ if is_float(at) => found.tolerance.of_max,
            _ => 0.0,
        }
    };
    of_draw.iter().enumerate().map(|(at, output)| (output.value.clone(), share(at, output))).collect()
}

/// Rewrites that are verified.
struct Trials<'a> {
    source: &'a Module,
    options: &'a RewriteOptions,
    draws: &'a [Inputs],
    verify_options: &'a VerifyOptions,
    /// The statistics of the constants of the source, which all rewrites share.
    statistics: Statistics,
}

impl Trials<'_> {
    /// The pins of a choice that a search found, if the rewrite with them passes.
    fn verified(&mut self, choice: Found, rewritten: &Module) -> Result<PinSearch, Error> {
        let (tried, mut pins) = (choice.measured, choice.pins);
        let mut passes = choice.point.passed() && self.passes(&pins, &[])?;
        let mut left_low = Vec::new();
        if !passes {
            // The bounds of a verification differ from those of a search where a sum cancels.
            (pins, left_low) = self.all(rewritten)?;
            passes = self.passes(&pins, &[])?;
            let pinned_low = pinned_low(rewritten);
            if passes && !choice.point.passed() && !pinned_low.is_empty() {
                return Ok(PinSearch { tried, pinned_low, ..PinSearch::default() });
            }
        }
        if !passes {
            return Ok(PinSearch {
                tried,
                left_low,
                gave_up: choice.is_partial,
                has_low_source: has_low(self.source),
                ..PinSearch::default()
            });
        }
        let (deny, rest) = self.by_operator(&pins, rewritten)?;
        // The recommended rewrite: with the operators denied, if there are any.
        let advised = if deny.is_empty() { &pins } else { &rest };
        let (rewritten, report) = self.rewritten(advised, &deny)?;
        let pinned = Some(Pinned::of(&rewritten, &report));
        Ok(PinSearch { pins, deny, rest, passes: true, pinned, tried, ..PinSearch::default() })
    }

    fn rewritten(&mut self, pins: &[String], deny: &[String]) -> Result<(Module, Report), Error> {
        with_pins(self.source, self.options, pins.iter().map(String::as_str), deny, &mut self.statistics)
    }

    /// True if all outputs are within their bounds with these pins, and with these operators denied.
    fn passes(&mut self, pins: &[String], deny: &[String]) -> Result<bool, Error> {
        let (mut rewritten, _) = self.rewritten(pins, deny)?;
        let mut source = self.source.clone();
        match verify_draws(&mut source, &mut rewritten, self.draws, self.verify_options) {
            Err(Error::Run(finding)) if finding.is_of_values() => Ok(false),
            found => Ok(found?.passed()),
        }
    }

    /// Pins of all nodes that can be low, and the nodes that are low with these pins.
    fn all(&mut self, rewritten: &Module) -> Result<(Vec<String>, Vec<String>), Error> {
        let mut low = lowered(rewritten);
        let mut pins: BTreeSet<String> = BTreeSet::new();
        for _ in 0..MOST_ROUNDS {
            let before = pins.len();
            pins.extend(low.iter().cloned());
            if pins.len() == before {
                break;
            }
            let (rewritten, _) = self.rewritten(&pins.iter().cloned().collect::<Vec<_>>(), &[])?;
            low = lowered(&rewritten);
        }
        let paths = Paths::of(rewritten);
        let in_order = paths.nodes().iter().map(|&node| paths.path(node).to_owned());
        Ok((in_order.filter(|path| pins.contains(path)).collect(), low))
    }

    /// Operators whose nodes are all pinned, and the pins of other nodes, if the outputs are within the tolerance
    /// with these operators denied; otherwise nothing.
    fn by_operator(
        &mut self,
        pins: &[String],
        rewritten: &Module,
    ) -> Result<(Vec<String>, Vec<String>), Error> {
        let source = self.source;
        let paths = Paths::of(source);
        let mut nodes: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        let has_floats = |node: Node| {
            rewritten.node(node).decisions.iter().any(|d| d.precision.is_some_and(DType::is_float))
        };
        for &node in paths.nodes().iter().filter(|&&node| has_floats(node)) {
            if source.node(node).schema().is_some() {
                nodes.entry(node_key(source, node)).or_default().push(paths.path(node));
            }
        }
        let pinned: FxHashSet<&str> = pins.iter().map(String::as_str).collect();
        nodes.retain(|_, of_op| of_op.len() > 1 && of_op.iter().all(|path| pinned.contains(path)));
        let denied: FxHashSet<&str> = nodes.values().flatten().copied().collect();
        let deny: Vec<String> = nodes.into_keys().collect();
        let rest: Vec<String> = pins.iter().filter(|pin| !denied.contains(pin.as_str())).cloned().collect();
        // A list of the user may name the operators; the pins alone are known to pass.
        if deny.is_empty() || !self.passes(&rest, &deny).unwrap_or(false) {
            return Ok((Vec::new(), Vec::new()));
        }
        Ok((deny, rest))
    }
}

/// True if a node was lowered: a 16-bit format was chosen for it that it did not have before.
fn is_lowered(module: &Module, node: Node) -> bool {
    let data = module.node(node);
    let chosen = |d: &Decision| d.class != Class::Fixed && *d.reason.rule() != Rule::AlreadyLow;
    data.is_alive() && data.decisions.iter().any(|d| d.precision.is_some_and(DType::is_low) && chosen(d))
}

/// The paths of the lowered nodes that a pin of the policy makes low.
fn pinned_low(module: &Module) -> Vec<String> {
    let paths = Paths::of(module);
    let is_pinned = |node: Node| {
        let low = module.node(node).decisions.iter().filter(|d| d.precision.is_some_and(DType::is_low));
        low.map(|d| d.reason.rule()).any(|rule| rule.pinned_by().is_some())
    };
    let nodes = paths.nodes().iter().filter(|&&node| is_lowered(module, node) && is_pinned(node));
    nodes.map(|&node| paths.path(node).to_owned()).collect()
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
