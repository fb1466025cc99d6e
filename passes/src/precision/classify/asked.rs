//! Decisions that a graph requests: decisions without a rule, as written by a person or a framework.
//!
//! Decisions of ampc have a rule. So a graph that ampc has written is decided anew, and other graphs are obeyed:
//! `class=deny` or `prec=f32` keeps fp32, `prec=f16` lowers, and any other class replaces the class of the operator.
//! Pins of the command line and of policies outrank a request; lists, reports and the operator table do not.

use crate::graph::flow::Var;
use crate::graph::paths::Paths;
use crate::pass::PassCx;
use crate::policy::{OpClass, Pin};
use ampc_ir::module::reason::{ListedBy, PinnedBy};
use ampc_ir::module::{Decision, Rule};
use ampc_ir::op::Class;
use ampc_ir::{DType, Module, Node};
use smallvec::SmallVec;

/// The rule of a request for an element type.
const REQUESTED: Rule = Rule::Pin(PinnedBy::Graph);

/// A request of a graph for a type variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// An element type.
    To(DType),
    /// A class that leaves the element type open.
    Class(Class),
}

impl Asked {
    pub(super) fn pin(self) -> Option<(Pin, PinnedBy)> {
        match self {
            Asked::To(precision) => Some((Pin::To(precision), PinnedBy::Graph)),
            Asked::Class(_) => None,
        }
    }

    pub(super) fn class(self) -> Option<OpClass> {
        match self {
            Asked::Class(class) => Some(OpClass { class, from: ListedBy::Graph }),
            Asked::To(_) => None,
        }
    }
}

/// Returns the request that a decision expresses, if it expresses one.
fn of_decision(decision: &Decision) -> Option<Asked> {
    match decision.reason.rule() {
        Rule::Request { .. } | Rule::Pin(PinnedBy::Graph) => {}
        Rule::Listed { by: ListedBy::Graph, .. } => return Some(Asked::Class(decision.class)),
        _ => return None,
    }
    match (decision.precision, decision.class) {
        (Some(precision), _) if precision == DType::F32 || precision.is_low() => Some(Asked::To(precision)),
        // Any other element type records a fact.
        (Some(_), _) => None,
        (None, Class::Deny | Class::Fixed) => Some(Asked::To(DType::F32)),
        (None, class) => Some(Asked::Class(class)),
    }
}

/// The request of a graph for a type variable.
pub(super) fn asked(module: &Module, var: Var) -> Option<Asked> {
    let decisions = &module.node(var.node).decisions;
    of_decision(decisions.get(usize::from(var.var))?)
}

/// True if a graph makes a request for a node.
pub(super) fn asks(module: &Module, node: Node) -> bool {
    module.node(node).decisions.iter().any(|decision| of_decision(decision).is_some())
}

/// Returns the contradiction in a request and its handling, as the end of a sentence.
fn contradiction(wanted: &Decision, found: &Decision) -> Option<String> {
    let is_new = matches!(wanted.reason.rule(), Rule::Request { .. });
    let precision = wanted.precision.filter(|_| is_new)?;
    match wanted.class {
        class @ (Class::Deny | Class::Fixed) if precision.is_low() && *found.reason.rule() == REQUESTED => {
            Some(format!(
                "is {precision}, but has class {class}, which stays fp32: the element type is obeyed"
            ))
        }
        _ if found.precision == Some(precision) || precision == DType::F32 || precision.is_low() => None,
        _ => Some(format!(
            "is {precision}, which is neither fp32 nor a 16-bit float: it is decided without the graph"
        )),
    }
}

/// Warns of requests of a graph that are not met, each with the reason.
pub(super) fn warn_of_unmet_decisions(
    wanted: &[(Node, SmallVec<[Decision; 1]>)],
    module: &Module,
    paths: &Paths,
    cx: &mut PassCx<'_>,
) {
    for (node, wanted) in wanted {
        let names = module.var_names(*node);
        let found = &module.node(*node).decisions;
        for ((wanted, found), var) in wanted.iter().zip(found).zip(&names) {
            let place = || format!("`{}` of `{}`", var, paths.path(*node));
            if let Some(contradiction) = contradiction(wanted, found) {
                cx.warn(
                    "decision.unmet",
                    Some(*node),
                    format!("the graph decides that {} {contradiction}", place()),
                );
                continue;
            }
            let Some(Asked::To(precision)) = of_decision(wanted) else { continue };
            let is_other = found.precision.is_some_and(|is| is != precision);
            let is_float = found.precision.is_none_or(|is| is == DType::F32 || is.is_low());
            // A pin outranks the request, and the user who wrote the pin needs no warning.
            let is_outranked = found.reason.rule().pinned_by().is_some_and(|pin| *pin != PinnedBy::Graph);
            if is_other && is_float && !is_outranked {
                let is = found.precision.map_or_else(String::new, |is| format!(", and is {is}"));
                cx.warn(
                    "decision.unmet",
                    Some(*node),
                    format!(
                        "the graph decides that {} is {precision}{is} (rule {})",
                        place(),
                        found.reason.rule()
                    ),
                );
            }
        }
    }
}
