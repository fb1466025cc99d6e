//! Invariants of a module between passes, as a set, and their checks.
//!
//! A pass declares the invariants that it requires, revokes and ensures. A pipeline keeps the set of current
//! invariants: it removes those that a pass revokes, adds those that it ensures, and runs the checker of each
//! bit in the set, so that a pass that breaks an invariant is named.
//!
//! ```text
//!                                    valid  classified  assigned  lowered
//! at the start                         x
//! raise-opset  revokes the others      x
//! classify     ensures classified      x        x
//! guard, taint                         x        x
//! assign       ensures assigned        x        x          x
//! insert-casts ensures lowered         x        x          x         x
//! dce                                  x        x          x         x
//! share-functions revokes lowered      x        x          x
//! ```

use crate::graph::flow;
use ampc_ir::infer::Inference;
use ampc_ir::module::Provenance;
use ampc_ir::op::{Class, OpKind};
use ampc_ir::ports::Ports;
use ampc_ir::verify::{Violation, name_of, verify_module};
use ampc_ir::{Module, Node};
use std::fmt;

/// Facts about a module that passes ask for and establish, as a bit set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Invariants(u8);

/// The bits with their names, in the order in which they are established.
const NAMES: [(Invariants, &str); 4] = [
    (Invariants::CORE, "valid"),
    (Invariants::CLASSIFIED, "classified"),
    (Invariants::ASSIGNED, "assigned"),
    (Invariants::LOWERED, "lowered"),
];

impl Invariants {
    /// Nothing.
    pub const NONE: Invariants = Invariants(0);
    /// Structure and types are valid, as the verifier checks.
    pub const CORE: Invariants = Invariants(1);
    /// Every type variable of every node has a class, but for casts that say that a pass inserted them.
    pub const CLASSIFIED: Invariants = Invariants(1 << 1);
    /// Every classified type variable has an element type to be, not necessarily the one it has.
    pub const ASSIGNED: Invariants = Invariants(1 << 2);
    /// Every value has the element type its producer was assigned, and casts stand where readers differ.
    pub const LOWERED: Invariants = Invariants(1 << 3);
    /// Everything that passes decide.
    pub const DECISIONS: Invariants =
        Invariants::CLASSIFIED.with(Invariants::ASSIGNED).with(Invariants::LOWERED);

    /// Everything in either set.
    #[must_use]
    pub const fn with(self, other: Invariants) -> Invariants {
        Invariants(self.0 | other.0)
    }
    /// Everything in this set that is not in the other.
    #[must_use]
    pub const fn without(self, other: Invariants) -> Invariants {
        Invariants(self.0 & !other.0)
    }
    /// The invariants of `wanted` that are not in this set.
    #[must_use]
    pub const fn missing(self, wanted: Invariants) -> Invariants {
        wanted.without(self)
    }
    /// True if everything in `wanted` is in this set.
    pub const fn has(self, wanted: Invariants) -> bool {
        self.missing(wanted).0 == 0
    }

    /// The invariants that a valid module shows: dumps and reproducers are read in the middle of a pipeline. A
    /// module without decisions does not show if it is lowered, and no pass asks for it.
    pub fn of(module: &Module) -> Invariants {
        let mut nodes = module.graph_ids().flat_map(|graph| module.nodes(graph));
        let mut found = Invariants::CORE;
        if !nodes.any(|node| !module.node(node).decisions.is_empty()) {
            return found;
        }
        for bit in [Invariants::CLASSIFIED, Invariants::ASSIGNED] {
            if first_breach(module, bit).is_some() {
                break;
            }
            found = found.with(bit);
        }
        found
    }

    /// Checks everything in the set and returns the inferred types of the module.
    ///
    /// # Errors
    /// The first thing that does not hold.
    pub fn check(self, module: &Module) -> Result<Inference, Breach> {
        let inference = verify_module(module).map_err(|violations| Breach {
            invariant: Invariants::CORE,
            node: violations.first().and_then(|v| v.node),
            what: violations.first().map_or_else(String::new, |v| of_violation(module, v)),
        })?;
        self.breach(module).map_or(Ok(inference), Err)
    }

    /// The first thing in the set that does not hold of a module that is valid.
    pub(crate) fn breach(self, module: &Module) -> Option<Breach> {
        let bits = NAMES.iter().map(|(bit, _)| *bit).filter(|bit| self.has(*bit));
        bits.filter_map(|bit| first_breach(module, bit)).next()
    }
}

impl fmt::Display for Invariants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let present: Vec<&str> =
            NAMES.iter().filter(|(bit, _)| self.has(*bit)).map(|(_, name)| *name).collect();
        f.write_str(&present.join(", "))
    }
}

/// Something that is to hold and does not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not {invariant}: {what}")]
pub struct Breach {
    /// The broken invariant.
    pub invariant: Invariants,
    /// The place of the violation.
    pub node: Option<Node>,
    /// The state found.
    pub what: String,
}

fn of_violation(module: &Module, violation: &Violation) -> String {
    match violation.node {
        Some(node) => format!("{}: {violation}", shown(module, node)),
        None => violation.to_string(),
    }
}

/// A node for a message.
fn shown(module: &Module, node: Node) -> String {
    let data = module.node(node);
    let (_, op, _) = module.op_name(node);
    let name = data.name.map(|name| module.text(name)).filter(|name| !name.is_empty());
    let result = || data.results().iter().flatten().next().map(|&value| name_of(module, value));
    format!("{op} `{}`", name.map(str::to_owned).or_else(result).unwrap_or_default())
}

/// The first node that violates an invariant, given as one bit of a set.
fn first_breach(module: &Module, invariant: Invariants) -> Option<Breach> {
    let look: fn(&Module, Node) -> Option<String> = match invariant {
        Invariants::CLASSIFIED => unclassified,
        Invariants::ASSIGNED => unassigned,
        Invariants::LOWERED => not_lowered,
        // The verifier has looked.
        _ => return None,
    };
    let mut nodes = module.graph_ids().flat_map(|graph| module.nodes(graph));
    nodes.find_map(|node| {
        let what = look(module, node)?;
        Some(Breach { invariant, node: Some(node), what: format!("{}: {what}", shown(module, node)) })
    })
}

/// The problem of a node that does not have exactly one decision per type variable. Casts that passes insert
/// have none, or the decisions of an earlier run.
fn unclassified(module: &Module, node: Node) -> Option<String> {
    let data = module.node(node);
    let (found, expected) = (data.decisions.len(), module.n_vars(node));
    let inserted = data.provenance == Provenance::Inserted && found == 0;
    if data.schema().is_none() || inserted || found == expected {
        return None;
    }
    let by = if data.schema().is_some_and(|s| s.kind == OpKind::Cast) && found == 0 {
        ", and does not say that a pass inserted it"
    } else {
        ""
    };
    Some(format!("expected {expected} decisions, found {found}{by}"))
}

/// The problem of a type variable without an element type although its class leaves a choice.
fn unassigned(module: &Module, node: Node) -> Option<String> {
    let mut decisions = module.node(node).decisions.iter();
    let var = decisions.position(|d| d.class != Class::Fixed && d.precision.is_none())?;
    let name = module.var_names(node).get(var).map_or_else(String::new, ToString::to_string);
    Some(format!("type variable `{name}` has a class and no element type"))
}

/// The problem of a value whose element type differs from the type assigned to its variable.
fn not_lowered(module: &Module, node: Node) -> Option<String> {
    // Calls that share a function may be of different types: what was decided about each is there no more.
    if Ports::of(module, node).is_some_and(|ports| ports.nodes(module).count() > 1) {
        return None;
    }
    let scope = |graph| module.root(graph);
    for var in flow::vars(module, node) {
        let Some(expected) = flow::decision(module, var).and_then(|d| d.precision) else { continue };
        let typed =
            flow::operands_of(module, var).chain(flow::results_of(module, var)).map(|(_, value)| value);
        // The inside of a function has decisions of its own.
        let own = typed.filter(|&value| scope(module.value(value).graph) == scope(module.node(node).graph));
        for value in own {
            let found = module.value(value).ty.element_dtype();
            if let Some(found) = found.filter(|found| *found != expected) {
                let name = name_of(module, value);
                return Some(format!("`{name}` is {found}, but {expected} was assigned"));
            }
        }
    }
    None
}
