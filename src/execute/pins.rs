//! Which nodes of a rewritten model have to stay fp32 for its outputs to be near enough: found by trying.

use super::verify::{Verification, VerifyOptions, verify};
use super::{Inputs, scope};
use crate::error::Error;
use crate::model::Model;
use crate::options::RewriteOptions;
use crate::rewrite::rewrite_in_place;
use ampc_ir::{DType, Module, Node};
use ampc_passes::policy::Pin;
use ampc_passes::{Paths, Policy};
use std::sync::Arc;

/// Rewrites tried at most, beside those that find out which pins are needed.
pub const MOST_PINS: usize = 8;

/// What trying pins found.
#[derive(Clone, Debug, Default)]
pub struct PinSearch {
    /// Paths of nodes to pin to fp32.
    pub pins: Vec<String>,
    /// Whether all outputs are within the tolerance with these pins; otherwise they did not help enough.
    pub passes: bool,
    /// Rewrites that were run.
    pub tried: usize,
}

/// Looks for nodes that have to stay fp32. `found` is what [`verify`] says of `source` and its rewrite by `options`.
/// Each round pins the first low node that diverges, or if none does, the one that adds most, and runs the rewrite
/// again; once the outputs are near enough, pins that are not needed go.
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
    let mut pins: Vec<String> = Vec::new();
    let (mut found, mut rewritten) = (found.clone(), rewritten.clone());
    while !found.passed() && pins.len() < MOST_PINS {
        let Some(pin) = next_pin(source, &rewritten, &found, &pins) else { break };
        pins.push(pin);
        (rewritten, found) = search.run(&pins)?;
    }
    let passes = found.passed();
    if passes && pins.len() > 1 {
        // The last one made the difference; of the others, some may do without.
        for i in (0..pins.len() - 1).rev() {
            let mut without = pins.clone();
            without.remove(i);
            if search.run(&without)?.1.passed() {
                pins = without;
            }
        }
    }
    Ok(PinSearch { pins, passes, tried: search.tried })
}

struct Search<'a> {
    source: &'a Module,
    options: &'a RewriteOptions,
    inputs: &'a Inputs,
    verify_options: &'a VerifyOptions,
    tried: usize,
}

impl Search<'_> {
    fn run(&mut self, pins: &[String]) -> Result<(Module, Verification), Error> {
        self.tried += 1;
        let mut policy: Policy = (*self.options.policy).clone();
        for pin in pins {
            policy.pin(pin, Pin::To(DType::F32))?;
        }
        let options = RewriteOptions { policy: Arc::new(policy), ..self.options.clone() };
        let mut model = Model::from(self.source.clone());
        rewrite_in_place(&mut model, &options, &mut ())?;
        let mut source = self.source.clone();
        let found = verify(&mut source, &mut model.module, self.inputs, self.verify_options)?;
        Ok((model.module, found))
    }
}

/// The node to pin next.
fn next_pin(source: &Module, rewritten: &Module, found: &Verification, pins: &[String]) -> Option<String> {
    let paths = Paths::new(source);
    let beyond = found.values.iter().filter(|value| !value.agreement.passed());
    let candidates = found.first.iter().chain(beyond).chain(found.worst());
    candidates
        .filter(|value| value.node.is_some_and(|node| can_be_pinned(source, rewritten, node)))
        .map(|value| &value.path)
        .find(|path| !pins.contains(path) && is_known(&paths, source, path))
        .cloned()
}

fn is_known(paths: &Paths, source: &Module, path: &str) -> bool {
    paths.node(path).or_else(|| paths.by_call(source, path)).is_some()
}

/// Whether a node of the source is low in the rewrite.
fn can_be_pinned(source: &Module, rewritten: &Module, node: Node) -> bool {
    if scope::is_nested(source, node) || !rewritten.node(node).is_alive() {
        return false;
    }
    let decisions = &rewritten.node(node).decisions;
    decisions.iter().any(|d| matches!(d.precision, Some(DType::F16 | DType::BF16)))
}
