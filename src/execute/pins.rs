//! Which nodes of a rewritten model have to stay fp32 for its outputs to be near enough: found by trying.
//!
//! Low nodes that compute something are ranked by what they add to the error, and twice as many of them are pinned in
//! each round until the outputs are near enough: with all of them pinned hardly anything is low. Then halves, quarters
//! and so on of the pins are left out as long as the outputs stay near enough, as in delta debugging (Zeller and
//! Hildebrandt 2002), for a bounded number of rewrites.

use super::verify::{Compared, Verification, VerifyOptions, verify};
use super::{Inputs, scope};
use crate::error::Error;
use crate::model::Model;
use crate::options::RewriteOptions;
use crate::rewrite::rewrite_in_place;
use ampc_ir::op::{Class, schema_class};
use ampc_ir::{DType, Module, Node};
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
    let mut search = Search { source, options, inputs, verify_options, tried: 0 };
    let ranked = ranked(source, rewritten, found);
    let mut count = 1;
    let mut pins = loop {
        let first: Vec<&Candidate> = ranked.iter().take(count).collect();
        if first.is_empty() {
            return Ok(PinSearch::default());
        }
        if search.passes(&first)? {
            break first;
        }
        if count >= ranked.len() {
            return Ok(PinSearch { tried: search.tried, ..PinSearch::default() });
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
    Ok(PinSearch { pins, passes: true, tried: search.tried })
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
    let paths = Paths::new(source);
    let mut ranked: Vec<Candidate> = Vec::new();
    let mut index: FxHashMap<&str, usize> = FxHashMap::default();
    for (at, value) in found.values.iter().chain(&found.outputs).enumerate() {
        let Some(node) = value.node else { continue };
        if !can_be_pinned(source, rewritten, node) || !is_known(&paths, source, &value.path) {
            continue;
        }
        let adds = weight(value);
        match index.get(value.path.as_str()) {
            Some(&i) => ranked[i].adds = ranked[i].adds.max(adds),
            None => {
                index.insert(&value.path, ranked.len());
                ranked.push(Candidate { path: value.path.clone(), at, adds });
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
        let options = RewriteOptions { policy: Arc::new(policy), ..self.options.clone() };
        let mut model = Model::from(self.source.clone());
        rewrite_in_place(&mut model, &options, &mut ())?;
        let mut source = self.source.clone();
        let found = verify(&mut source, &mut model.module, self.inputs, self.verify_options)?;
        Ok(found.passed())
    }
}

fn is_known(paths: &Paths, source: &Module, path: &str) -> bool {
    paths.node(path).or_else(|| paths.by_call(source, path)).is_some()
}

/// Whether a node of the source is low in the rewrite and computes something.
fn can_be_pinned(source: &Module, rewritten: &Module, node: Node) -> bool {
    if scope::is_nested(source, node) || !rewritten.node(node).is_alive() {
        return false;
    }
    let moves = source.node(node).schema().is_some_and(|s| schema_class(s, DType::F16) == Class::Clear);
    let decisions = &rewritten.node(node).decisions;
    !moves && decisions.iter().any(|d| matches!(d.precision, Some(DType::F16 | DType::BF16)))
}
