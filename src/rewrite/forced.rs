//! Cost of a rewrite with another format for a type variable, found by rewriting with such a pin.
//!
//! A pin changes more than the variable: low regions begin and end at pinned nodes, a denied node taints nodes
//! downstream, and variables that loops, branches and sequences tie together change with it. So the cost is
//! found by another rewrite, and equals the cost of giving the pin.

use super::rewrite_in_place;
use crate::loaded::Model;
use crate::options::{Objective, RewriteOptions};
use crate::report::{ForcedReport, MAX_FORCED, NodeReport, Report, precision_name};
use ampc_ir::{DType, Module};
use ampc_passes::Paths;
use ampc_passes::policy::Pin;
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// The cost of the other format for each type variable of the first [`MAX_FORCED`] nodes to explain; `report` is about the rewrite
/// without additional pins. Variables that cannot have the other format are left out.
pub(crate) fn forced(source: &Module, options: &RewriteOptions, report: &Report) -> Vec<ForcedReport> {
    let Some(cost) = Cost::of(report) else { return Vec::new() };
    let paths = Paths::of(source);
    let mut seen: FxHashSet<&str> = FxHashSet::default();
    let mut forced = Vec::new();
    for path in options.explain.iter().filter(|path| seen.insert(path)).take(MAX_FORCED) {
        let Some(node) = listed(report, source, &paths, path) else { continue };
        // A cast that a pin speaks of counts as none, so that the numbers of casts with and without it say nothing.
        if node.op == "Cast" && !cost.is_time {
            continue;
        }
        for var in &node.vars {
            let to = if var.precision == precision_name(DType::F32) { options.to } else { DType::F32 };
            let Some(pinned) = rewritten_with(source, options, &format!("{path}#{}", var.var), to) else {
                continue;
            };
            let precision = precision_name(to);
            let is_met = listed(&pinned, source, &paths, path)
                .is_some_and(|node| node.vars.iter().any(|v| v.var == var.var && v.precision == precision));
            let more = Cost::of(&pinned).filter(|_| is_met).map(|pinned| pinned.more_than(cost));
            forced.extend(more.map(|costs_more| ForcedReport {
                node: path.clone(),
                var: var.var.to_string(),
                precision: precision.into_owned(),
                costs_more,
            }));
        }
    }
    forced
}

/// The entry of a report for a node. A decision that is equal for all calls of a function stands under the name
/// of the function.
fn listed<'r>(report: &'r Report, source: &Module, paths: &Paths, path: &str) -> Option<&'r NodeReport> {
    report.node(path).or_else(|| report.node(paths.path(paths.by_call(source, path)?)))
}

/// The report of a rewrite with one pin more; `None` if there is no such rewrite.
fn rewritten_with(source: &Module, options: &RewriteOptions, pinned: &str, to: DType) -> Option<Report> {
    let mut policy = (*options.policy).clone();
    policy.next_layer();
    policy.pin(pinned, Pin::To(to)).ok()?;
    let options = RewriteOptions {
        policy: Arc::new(policy),
        explain: Vec::new(),
        alternative: None,
        verify_each: false,
        constant_statistics: false,
        ..options.clone()
    };
    rewrite_in_place(&mut Model::from(source.clone()), &options, &mut ()).ok()
}

/// Cost of a rewritten model, in units of 1 / `scale`, comparable between any two rewrites of one model.
#[derive(Clone, Copy)]
struct Cost {
    cost: i64,
    scale: i64,
    is_time: bool,
}

impl Cost {
    /// The predicted time of the whole model, or the casts that stand in it if their number or bytes were to be small.
    fn of(report: &Report) -> Option<Cost> {
        let optimum = report.optimum.as_ref()?;
        if optimum.objective == Objective::Time.as_str() {
            let time = report.time.as_ref()?;
            return Some(Cost { cost: time.rewritten, scale: time.scale, is_time: true });
        }
        let cost = optimum.cost.saturating_sub(optimum.merged);
        Some(Cost { cost, scale: optimum.scale, is_time: false })
    }

    /// The difference, in units of the other one.
    fn more_than(self, other: Cost) -> i64 {
        let same_unit = i128::from(self.cost) * i128::from(other.scale) / i128::from(self.scale.max(1));
        let more = same_unit - i128::from(other.cost);
        i64::try_from(more).unwrap_or(if more > 0 { i64::MAX } else { i64::MIN })
    }
}
