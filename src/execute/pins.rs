//! Which nodes of a rewritten model have to stay fp32 for its outputs to be near enough: found by trying.
//!
//! Low nodes, those that only move values too (constants that they move are stored low), are ranked by what they add to
//! the error, and twice as many of them are pinned in each round until the outputs are near enough or all are pinned;
//! nodes with bodies and calls come last. Then halves, quarters and so on of the pins are left out as long as the
//! outputs stay near enough, as in delta debugging (Zeller and Hildebrandt 2002), for a bounded number of rewrites.

use super::verify::{Compared, Verification, VerifyOptions, verify};
use super::{Inputs, scope};
use crate::error::Error;
use crate::model::Model;
use crate::options::RewriteOptions;
use crate::rewrite::rewrite_in_place;
use ampc_ir::module::Decision;
use ampc_ir::op::Class;
use ampc_ir::{DType, Module, Node};
use ampc_passes::classify::ALREADY_LOW;
use ampc_passes::flow;
use ampc_passes::policy::Pin;
use ampc_passes::{Paths, Policy};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Rewrites tried at most to leave pins out.
const MOST_TRIES: usize = 32;

/// What trying pins found.
#[derive(Clone, Debug, Default)]
pub struct PinSearch {
    /// Paths of nodes to pin to fp32, in the order of the model.
    pub pins: Vec<String>,
    /// Whether all outputs are within the tolerance with these pins; otherwise no pins help.
    pub passes: bool,
    /// Rewrites that were run.
    pub tried: usize,
    /// If no pins help: nodes that are low all the same when all that were tried are pinned.
    pub left_low: usize,
    /// Whether the model has 16-bit floats of its own.
    pub has_low_source: bool,
}

/// Looks for nodes that have to stay fp32. `found` is what [`verify`] says of `source` and its rewrite by `options`.
///
/// # Errors
/// If a model cannot be rewritten or run.
pub fn find_pins(
    source: &Module,
    options: &RewriteOptions,
    inputs: &Inputs,
    verify_options: &VerifyOptions,
    rewritten: &Module,
    found: &Verification,
) -> Result<PinSearch, Error> {
    let mut search = Search { source, options, inputs, verify_options, tried: 0, left_low: 0 };
    let ranked = ranked(source, rewritten, found);
    let mut count = 1;
    let mut pins = loop {
        let first: Vec<&Candidate> = ranked.iter().take(count).collect();
        if !first.is_empty() && search.passes(&first)? {
            break first;
        }
        if count >= ranked.len() {
            let left_low = if first.is_empty() { count_lowered(rewritten) } else { search.left_low };
            let has_low_source = has_low(source);
            return Ok(PinSearch { tried: search.tried, left_low, has_low_source, ..PinSearch::default() });
        }
        count *= 2;
    };
    let most = search.tried + MOST_TRIES;
    let mut part = pins.len().div_ceil(2);
    while pins.len() > 1 && search.tried < most {
        let before = pins.len();
        // What adds least goes first.
        let mut end = pins.len();
        while end > 0 && search.tried < most {
            let start = end.saturating_sub(part);
            let without: Vec<&Candidate> = pins[..start].iter().chain(&pins[end..]).copied().collect();
            if !without.is_empty() && search.passes(&without)? {
                pins = without;
            }
            end = start;
        }
        if part == 1 && pins.len() == before {
            break;
        }
        part = part.min(pins.len()).div_ceil(2);
    }
    pins.sort_by_key(|candidate| candidate.at);
    let pins = pins.into_iter().map(|candidate| candidate.path.clone()).collect();
    Ok(PinSearch { pins, passes: true, tried: search.tried, ..PinSearch::default() })
}

/// A node that can be pinned.
struct Candidate {
    path: String,
    /// Where it is among the values that were compared.
    at: usize,
    adds: f64,
}

/// The nodes that can be pinned, what adds most first.
fn ranked(source: &Module, rewritten: &Module, found: &Verification) -> Vec<Candidate> {
    let (paths, result) = (Paths::new(source), Paths::new(rewritten));
    let mut ranked: Vec<Candidate> = Vec::new();
    let mut index: FxHashMap<&str, usize> = FxHashMap::default();
    for (at, value) in found.values.iter().chain(&found.outputs).enumerate() {
        let (Some(node), path) = (value.node, &value.path) else { continue };
        // A path through a call leads to the form of the function that the call has in the rewrite.
        let (is_known, now) = match (paths.node(path), paths.by_call(source, path)) {
            (Some(_), _) | (None, None) => (paths.node(path).is_some(), node),
            (None, Some(_)) => (true, result.by_call(rewritten, path).unwrap_or(node)),
        };
        if !is_known || !is_lowered(rewritten, now) {
            continue;
        }
        // What a node with bodies or a call adds is added by the nodes in it, which are ranked themselves.
        let adds = if scope::is_nested(source, node) { 0.0 } else { weight(value) };
        match index.get(path.as_str()) {
            Some(&i) => ranked[i].adds = ranked[i].adds.max(adds),
            None => {
                index.insert(path, ranked.len());
                ranked.push(Candidate { path: path.clone(), at, adds });
            }
        }
    }
    ranked.sort_by(|a, b| b.adds.total_cmp(&a.adds).then(a.at.cmp(&b.at)));
    ranked
}

/// What a node adds. Of what is not a number on one side only nothing can be said: it is worth looking at first.
fn weight(value: &Compared) -> f64 {
    let adds = value.adds.unwrap_or_else(|| value.agreement.error());
    if adds.is_nan() { f64::INFINITY } else { adds }
}

struct Search<'a> {
    source: &'a Module,
    options: &'a RewriteOptions,
    inputs: &'a Inputs,
    verify_options: &'a VerifyOptions,
    tried: usize,
    /// The nodes that were low in the last rewrite.
    left_low: usize,
}

impl Search<'_> {
    /// Whether the outputs are near enough with these pins.
    fn passes(&mut self, pins: &[&Candidate]) -> Result<bool, Error> {
        self.tried += 1;
        let mut policy: Policy = (*self.options.policy).clone();
        policy.next_layer();
        for pin in pins {
            policy.pin(&pin.path, Pin::To(DType::F32))?;
        }
        let policy = Arc::new(policy);
        let options =
            RewriteOptions { policy, alternative: None, explain: Vec::new(), ..self.options.clone() };
        let mut model = Model::from(self.source.clone());
        rewrite_in_place(&mut model, &options, &mut ())?;
        self.left_low = count_lowered(&model.module);
        let mut source = self.source.clone();
        let found = verify(&mut source, &mut model.module, self.inputs, self.verify_options)?;
        Ok(found.passed())
    }
}

/// Whether a node was lowered: a 16-bit format was chosen for it that it did not have.
fn is_lowered(module: &Module, node: Node) -> bool {
    let data = module.node(node);
    let chosen = |d: &Decision| d.class != Class::Fixed && d.reason.rule != ALREADY_LOW;
    data.is_alive() && data.decisions.iter().any(|d| d.precision.is_some_and(DType::is_low) && chosen(d))
}

fn count_lowered(module: &Module) -> usize {
    flow::nodes(module).into_iter().filter(|&node| is_lowered(module, node)).count()
}

/// Whether a module has 16-bit floats.
fn has_low(module: &Module) -> bool {
    let is_low = |value| module.value(value).ty.element_dtype().is_some_and(DType::is_low);
    module.graph_ids().any(|graph| module.defined(graph).any(is_low))
}
