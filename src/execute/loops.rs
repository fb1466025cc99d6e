//! Limits of the loops of a model that is compared with another model.
//!
//! A Loop whose condition depends on rounded values may never end, although the Loop of the model in fp32 does. So a rewrite is
//! run with a limit of iterations that follows from the model.

use super::Inputs;
use super::session::{bind_observed, views};
use crate::error::Error;
use crate::run_errors::of_run;
use ampc_ir::op::OpKind;
use ampc_ir::{GraphId, Module, Node};
use ampc_runtime::session::NodeObserver;
use ampc_runtime::{DataRef, Limits, Session};
use rustc_hash::FxHashMap;

/// The largest number of iterations of a Loop in a rewrite, as a multiple of those of all its runs in the model.
const MAX_RATIO: u64 = 16;

/// The least limit of iterations.
const LEAST: u64 = 1024;

/// The limits for rewrites of the model of a session on these inputs: without a limit of iterations in `limits`, a multiple of
/// the iterations of the model. A model without Loop is not run for that.
///
/// # Errors
/// If the model cannot be run.
pub(super) fn limits_of_rewrites(
    session: &mut Session,
    inputs: &[Inputs],
    limits: &Limits,
) -> Result<Limits, Error> {
    let mut limits = limits.clone();
    if limits.max_iterations == u64::MAX && has_loop(session.module()) {
        let most = most_iterations(session, inputs)?;
        limits.max_iterations = most.saturating_mul(MAX_RATIO).max(LEAST);
    }
    Ok(limits)
}

/// True if a module has a Loop.
pub(super) fn has_loop(module: &Module) -> bool {
    let is_loop = |&node: &Node| module.node(node).schema().is_some_and(|schema| schema.kind == OpKind::Loop);
    module.program_nodes().iter().any(is_loop)
}

/// The largest number of times that a run enters the bodies of one node.
fn most_iterations(session: &mut Session, inputs: &[Inputs]) -> Result<u64, Error> {
    let mut most = 0;
    for (draw, inputs) in inputs.iter().enumerate() {
        let mut entered = Entered::default();
        bind_observed(session, &inputs.values)?;
        let ran = session.run_to_observed(&views(&inputs.values), Some(&mut entered), |_, _| {});
        // Comparisons skip random draws after the first on which the model cannot be computed.
        if ran.is_err() && inputs.is_random && draw > 0 {
            continue;
        }
        ran.map_err(|error| of_run(session.module(), &error))?;
        most = entered.0.into_values().max().unwrap_or(0).max(most);
    }
    Ok(most)
}

/// Counts how often each node enters a body.
#[derive(Default)]
struct Entered(FxHashMap<Node, u64>);

impl NodeObserver for Entered {
    fn value(&mut self, _: Node, _: usize, _: DataRef<'_>) {}

    fn enter(&mut self, node: Node, _: GraphId) {
        *self.0.entry(node).or_default() += 1;
    }

    fn leave(&mut self) {}
}
