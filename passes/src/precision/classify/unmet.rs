//! Unmet requests of the user: pins that name nothing, lists and reports of other models, nodes that stay unchanged.

use super::other_low;
use crate::graph::keys::node_key;
use crate::graph::paths::Paths;
use crate::pass::{PassCx, PassError};
use crate::policy::{ListedBy, Names, Pin, Pins, Policy};
use crate::spelling::suggest::{did_you_mean, nearest};
use ampc_ir::infer::misfit;
use ampc_ir::module::Rule;
use ampc_ir::{DType, Module, Node};
use rustc_hash::FxHashSet;
use std::collections::BTreeSet;

impl Names for Paths {
    fn has(&self, name: &str) -> bool {
        self.node(name).is_some()
    }
    fn any(&self, test: &dyn Fn(&str) -> bool) -> bool {
        self.nodes().iter().any(|&n| self.names(n).any(test))
    }
}

/// The names of all values, in order.
pub(super) struct ValueNames {
    order: Vec<String>,
    all: FxHashSet<String>,
}

impl ValueNames {
    pub(super) fn new(module: &Module, needed: bool) -> ValueNames {
        let mut order = Vec::new();
        for graph in module.graph_ids().filter(|_| needed) {
            order.extend(
                module.defined(graph).filter_map(|v| module.value_name(v)).map(|s| module.text(s).to_owned()),
            );
        }
        ValueNames { all: order.iter().cloned().collect(), order }
    }
}

impl Names for ValueNames {
    fn has(&self, name: &str) -> bool {
        self.all.contains(name)
    }
    fn any(&self, test: &dyn Fn(&str) -> bool) -> bool {
        self.order.iter().any(|n| test(n))
    }
}

/// Checks that every pin names something. An exact pin that names nothing is a mistake. A glob that matches nothing may
/// be meant for other models, but most often it is a mistake too.
pub(super) fn check_pins(
    policy: &Policy,
    pins: &Pins<'_>,
    module: &Module,
    paths: &Paths,
    values: &ValueNames,
) -> Result<(), PassError> {
    for ((pattern, _), (reading, _)) in policy.pins().iter().zip(&pins.nodes) {
        let Some(reading) = reading else {
            if pattern.is_glob() && paths.nodes().is_empty() {
                continue;
            }
            return Err(PassError::PinMatchesNothing {
                pattern: pattern.text().to_owned(),
                what: "node",
                hint: node_hint(pattern.text(), module, paths),
            });
        };
        let Some(var) = reading.var else { continue };
        let has = |n: Node| module.var_names(n).iter().any(|name| name == var);
        let first = if reading.exact {
            paths.node(reading.text()).filter(|&n| !has(n))
        } else {
            let matches = |&&n: &&Node| paths.names(n).any(|name| reading.matches(name));
            let mut nodes = paths.nodes().iter().filter(matches).peekable();
            let first = nodes.peek().map(|&&n| n);
            first.filter(|_| !nodes.any(|&n| has(n)))
        };
        if let Some(first) = first {
            let has = module.var_names(first);
            return Err(PassError::PinMatchesNothing {
                pattern: format!("{}#{var}", reading.text()),
                what: "type variable",
                hint: format!("; `{}` has {}", paths.path(first), has.join(", ")),
            });
        }
    }
    for ((pattern, _), (reading, _)) in policy.value_pins().iter().zip(&pins.values) {
        if reading.is_none() {
            let near = nearest(pattern.text(), values.order.iter().map(String::as_str));
            return Err(PassError::PinMatchesNothing {
                pattern: pattern.text().to_owned(),
                what: "value",
                hint: did_you_mean(near),
            });
        }
    }
    check_repeated(pins, paths)
}

/// Returns an error if two pins with the same text request different formats, whether or not they decide a variable.
fn check_repeated(pins: &Pins<'_>, paths: &Paths) -> Result<(), PassError> {
    let Some((reading, [first, second])) = pins.repeated() else { return Ok(()) };
    let is_node = |&&node: &&Node| paths.names(node).any(|name| reading.matches(name));
    let node = paths.nodes().iter().find(is_node).map_or(reading.text(), |&node| paths.path(node));
    Err(PassError::PinsContradict { node: node.to_owned(), first, second })
}

/// Returns a suggestion for a name that no node has.
fn node_hint(name: &str, module: &Module, paths: &Paths) -> String {
    if ValueNames::new(module, true).has(name) {
        return "; a value has this name: name the node that makes it, or pin the value".into();
    }
    if name.contains('=') {
        return "; a pin has one name and one format: give the option once for each node".into();
    }
    did_you_mean(paths.nearest(name))
}

/// Warns of a report that is about few of the nodes. Most likely it is a report of another model.
pub(super) fn warn_of_foreign_report(policy: &Policy, paths: &Paths, cx: &mut PassCx<'_>) {
    let (nodes, here) = policy.replayed_nodes(|path| paths.node(path).is_some());
    let all = paths.nodes().len();
    if nodes > 0 && here == 0 {
        let text = format!(
            "none of the {nodes} nodes of the report is among the {all} of the model: nothing is repeated"
        );
        cx.warn("replay.unmatched", None, text);
    } else if here < nodes / 2 {
        let text = format!(
            "of the {nodes} nodes of the report {here} are among the {all} of the model: the rest of the model is \
             decided by the policy of the report"
        );
        cx.warn("replay.partial", None, text);
    }
}

/// Warns of operators that are listed for this run and that the model lacks, which most likely is a mistake. A policy
/// may be for many models, so it may name operators that this model lacks.
pub(super) fn warn_of_unmet_lists(policy: &Policy, module: &Module, paths: &Paths, cx: &mut PassCx<'_>) {
    let present: FxHashSet<&str> = paths.nodes().iter().map(|&node| module.op_name(node).1).collect();
    // An operator may be listed in every domain.
    let name = |key: &str| key.rsplit("::").next().unwrap_or(key).to_owned();
    let listed =
        policy.ops().filter(|(_, listed)| listed.from == ListedBy::Options).map(|(key, _)| name(key));
    let unmet: BTreeSet<String> = listed.filter(|name| !present.contains(name.as_str())).collect();
    for name in unmet {
        cx.warn("list.unmatched", None, format!("{name} is listed, and the model has no {name}"));
    }
}

/// Warns of a node that does not fit the table's operator of its name. The node keeps the types that its author gave
/// it.
pub(super) fn warn_of_misfit(module: &Module, node: Node, cx: &mut PassCx<'_>) {
    if let Some(error) = misfit(module, node) {
        let declared = module.node(node).schema().is_some_and(|s| s.declared.is_some());
        let key = node_key(module, node);
        let text = if declared {
            format!("stays unchanged: it does not fit the signature of {key}: {error}")
        } else {
            format!("stays unchanged: it is not the {key} that ampc knows: {error}")
        };
        cx.warn("operator.signature", Some(node), text);
    }
}

/// Warns of nodes in the other 16-bit format, which keep that format.
pub(super) fn warn_of_other_format(to: DType, module: &Module, paths: &Paths, cx: &mut PassCx<'_>) {
    let other = other_low(to);
    let stays = |&&node: &&Node| {
        let mut decisions = module.node(node).decisions.iter();
        decisions.any(|d| d.precision == Some(other) && *d.reason.rule() == Rule::AlreadyLow)
    };
    let (are, stay) = match paths.nodes().iter().filter(stays).count() {
        0 => return,
        1 => ("1 node of the model is".to_owned(), "stays"),
        count => (format!("{count} nodes of the model are"), "stay"),
    };
    let (other, to) = (Pin::To(other).as_str(), Pin::To(to).as_str());
    let message = format!("{are} already {other} and {stay} {other}: only fp32 nodes are lowered to {to}");
    cx.warn("format.other", None, message);
}

/// Warns of an exact pin to a format that its node cannot have. The node stays as it is.
pub(super) fn warn_of_unmet_pins(pins: &Pins<'_>, module: &Module, paths: &Paths, cx: &mut PassCx<'_>) {
    for (at, &(reading, pin)) in pins.nodes.iter().enumerate() {
        let (Pin::To(to), Some(reading)) = (pin, reading.filter(|r| r.exact)) else { continue };
        let Some(node) = paths.node(reading.text()) else { continue };
        let Some(schema) = module.node(node).schema() else { continue };
        // The variables of the pin for which no later pin counts.
        let names = module.var_names(node);
        let mut named = (names.iter().zip(&module.node(node).decisions))
            .filter(|(var, _)| pins.exact(reading.text(), var) == Some(at));
        if named.clone().any(|(_, d)| d.precision == Some(to)) {
            continue;
        }
        let unmet = |rule: &Rule| to.is_low() || *rule == Rule::AlreadyLow;
        let Some((_, decision)) = named.find(|(_, d)| unmet(d.reason.rule())) else { continue };
        let rule = decision.reason.rule();
        let why = match decision.precision {
            Some(is) if *rule == Rule::AlreadyLow => format!("it is {is} already"),
            _ if schema.declared.is_some() => {
                format!("{} cannot be lowered here ({rule})", schema.name)
            }
            _ => format!("{} of opset {} cannot be lowered here ({rule})", schema.name, schema.since),
        };
        cx.warn("pin.unmet", Some(node), format!("`{}` is pinned to {to}, but {why}", reading.text()));
    }
}
