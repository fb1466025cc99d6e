//! Operators outside of the low regions: before the first product and behind the last product.
//!
//! There, rounding buys no faster product, only a cheaper operator here and there, and what is rounded last is rounded
//! most visibly. So the choice leaves infer variables fp32 that make an output of the graph, that nothing low comes
//! before but constants, or that nothing low comes after. Deny operators do not end a low region: the scores of an
//! attention are between products, with the softmax in between.
//!
//! For example, where MatMul is low and `y` leaves the model in fp32:
//!
//! ```text
//! a = Mul(x, s)        fp32: nothing low comes before it but constants
//! b = MatMul(a, w)     low
//! c = Add(b, s)        free: between two products
//! d = MatMul(c, v)     low
//! e = Tanh(d)          fp32: nothing low comes after it, since y is not
//! y = Add(e, s)        fp32: it makes what leaves in fp32
//! ```
//!
//! The walk forwards from the products meets c, e and y, the walk backwards c and a. What both meet is between products
//! and free, unless it makes an output that keeps its type.

use super::constants::Constants;
use super::found::Held;
use crate::analysis::tensors::{Tensors, kept_outputs};
use crate::graph::flow::{self, Reader, Var};
use crate::graph::var_map::VarMap;
use ampc_ir::entity::SecondaryMap;
use ampc_ir::module::reason::Why;
use ampc_ir::op::{Class, OpKind};
use ampc_ir::ports::Ports;
use ampc_ir::verify::name_of;
use ampc_ir::{DType, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// The free infer variables that stay fp32, and why.
pub(super) fn margins(
    tensors: &Tensors<'_>,
    constants: &Constants,
    held: &VarMap<Held>,
    negligible: &FxHashMap<Var, Why>,
) -> FxHashMap<Var, Why> {
    let kept = kept_outputs(tensors.module, tensors.keep_io);
    let walk = Walk { tensors, constants, held, negligible, kept };
    let products: Vec<At> = walk.products().collect();
    let (behind, before) = (walk.behind(&products), walk.before(&products));
    let free = held.iter().filter(|(_, held)| **held == Held::Free).map(|(var, _)| var);
    let infers = |var| flow::decision(tensors.module, var).is_some_and(|d| d.class == Class::Infer);
    let why = |var| match walk.at(var) {
        _ if walk.is_last(var) => Some(Why::MakesOutput),
        at if !behind.contains(at) => Some(Why::NothingBefore),
        at if !before.contains(at) => Some(Why::NothingBehind),
        _ => None,
    };
    free.filter(|&var| infers(var)).filter_map(|var| Some((var, why(var)?))).collect()
}

/// Where a walk can be: at a node with all its variables, or at a port of a node with bodies or of a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    Node(Node),
    Port(Var),
}

/// Where a walk has been.
#[derive(Default)]
struct Visited {
    nodes: SecondaryMap<Node, bool>,
    ports: FxHashSet<Var>,
}

impl Visited {
    /// Notes a place; whether it is new.
    fn insert(&mut self, at: At) -> bool {
        match at {
            At::Node(node) => !std::mem::replace(&mut self.nodes[node], true),
            At::Port(port) => self.ports.insert(port),
        }
    }
    fn contains(&self, at: At) -> bool {
        match at {
            At::Node(node) => self.nodes[node],
            At::Port(port) => self.ports.contains(&port),
        }
    }
}

struct Walk<'a> {
    tensors: &'a Tensors<'a>,
    constants: &'a Constants,
    held: &'a VarMap<Held>,
    /// Products that need not be low.
    negligible: &'a FxHashMap<Var, Why>,
    /// Outputs of the model that keep their types, as they are or cast to it by an earlier run.
    kept: FxHashSet<Value>,
}

impl Walk<'_> {
    fn at(&self, var: Var) -> At {
        let leader = self.tensors.groups.leader(var);
        let alone = !flow::is_port(self.tensors.module, leader) && self.tensors.groups.get(leader).is_none();
        if alone { At::Node(var.node) } else { At::Port(leader) }
    }

    /// The place of a reader.
    fn of_reader(&self, reader: Reader) -> Option<At> {
        match reader {
            Reader::Operand(node, _) if Ports::of(self.tensors.module, node).is_none() => {
                let var = flow::var_of_reader(self.tensors.module, reader);
                Some(var.map_or(At::Node(node), |var| self.at(var)))
            }
            _ => flow::var_of_reader(self.tensors.module, reader).map(|port| self.at(port)),
        }
    }

    /// The place of the producer of a value.
    fn of_value(&self, value: Value) -> Option<At> {
        let module = self.tensors.module;
        let value = flow::behind_inserted(module, value);
        let node = || module.producer(value).map(|(node, _)| At::Node(node));
        flow::producer_var(module, value).map(|var| self.at(var)).or_else(node)
    }

    /// Adds the floats that are read somewhere.
    fn add_operands(&self, at: At, found: &mut Vec<Value>) {
        let module = self.tensors.module;
        match at {
            At::Node(node) => self.add_floats(module.node(node).formal_operands().iter().flatten(), found),
            At::Port(port) => self.add_floats(&self.tensors.groups.operands(module, port), found),
        }
    }

    /// Adds the floats that are made somewhere.
    fn add_results(&self, at: At, found: &mut Vec<Value>) {
        let module = self.tensors.module;
        match at {
            At::Node(node) => self.add_floats(module.node(node).results().iter().flatten(), found),
            At::Port(port) => self.add_floats(&self.tensors.groups.results(module, port), found),
        }
    }

    fn add_floats<'v>(&self, values: impl IntoIterator<Item = &'v Value>, found: &mut Vec<Value>) {
        let dtype = |value| self.tensors.module.value(value).ty.dtype();
        let is_float = |value: &&Value| dtype(**value).is_none_or(DType::is_float);
        found.extend(values.into_iter().filter(is_float).copied());
    }

    /// Where something computes in 16 bits whatever is chosen, or is a product that need not. What only follows others
    /// does not count, nor what is computed from constants alone: they may be low because an earlier run chose so.
    fn products(&self) -> impl Iterator<Item = At> + '_ {
        let module = self.tensors.module;
        let vars = flow::nodes(module).into_iter().flat_map(|node| flow::vars(module, node));
        let is_cast = move |node: Node| module.node(node).schema().is_some_and(|s| s.kind == OpKind::Cast);
        let low = vars.filter(move |&var| {
            let class = flow::decision(module, var).map(|d| d.class);
            let tied = self.tensors.groups.get(var).is_some();
            let follows = match class {
                Some(Class::Clear | Class::Discrete | Class::Promote | Class::Fixed) => true,
                // Of what is of one element type with others none is left fp32 here.
                Some(Class::Infer) => tied,
                Some(Class::Allow | Class::Deny) | None => false,
            };
            // A cast computes nothing, whatever a pin makes it read.
            let is_product = self.is_low(var) || self.negligible.contains_key(&var);
            !follows && !is_cast(var.node) && is_product && !self.constants.derived.contains(&var)
        });
        low.map(|var| self.at(var))
    }

    /// Whether a variable is low whatever is chosen.
    fn is_low(&self, var: Var) -> bool {
        let decided = flow::decision(self.tensors.module, var).and_then(|d| d.precision);
        let held = self.held.get(&self.tensors.groups.leader(var));
        matches!(held, Some(Held::Low | Held::Other(_))) || decided.is_some_and(|d| d.is_low())
    }

    /// The places behind something low.
    fn behind(&self, products: &[At]) -> Visited {
        let module = self.tensors.module;
        let mut work = Vec::new();
        products.iter().for_each(|&at| self.add_results(at, &mut work));
        let inputs = module.graph(module.main()).inputs();
        work.extend(inputs.iter().filter(|&&input| !self.tensors.keep_io.keeps(&name_of(module, input))));
        let mut found = Visited::default();
        while let Some(value) = work.pop() {
            for reader in flow::readers(module, value) {
                if let Some(at) = self.of_reader(reader).filter(|&at| found.insert(at)) {
                    self.add_results(at, &mut work);
                }
            }
        }
        found
    }

    /// The places before something low. Outputs of the graph that keep their types end the walk, so that what
    /// comes before one of them alone is as it is.
    fn before(&self, products: &[At]) -> Visited {
        let module = self.tensors.module;
        let mut work = Vec::new();
        products.iter().for_each(|&at| self.add_operands(at, &mut work));
        let outputs = module.graph(module.main()).outputs().iter().map(|output| output.value);
        work.extend(outputs.filter(|&output| !self.tensors.keep_io.keeps(&name_of(module, output))));
        let (mut seen, mut found) = (Visited::default(), Visited::default());
        while let Some(value) = work.pop() {
            let at = self.of_value(value).filter(|&at| seen.insert(at) && !self.ends(at));
            if let Some(at) = at {
                found.insert(at);
                self.add_operands(at, &mut work);
            }
        }
        found
    }

    /// Whether what comes before something need not be low for the sake of what comes behind it: it makes an output
    /// itself, or it is state of a loop that is not only read low, which would be rounded in every iteration.
    fn ends(&self, at: At) -> bool {
        let module = self.tensors.module;
        match at {
            At::Node(node) => flow::vars(module, node).any(|var| self.is_last(var)),
            At::Port(port) => {
                let own = [port];
                let group = self.tensors.groups.get(port);
                let members = group.map_or(&own[..], |group| &group.members);
                members.iter().any(|&member| flow::is_state(module, member)) && !self.is_read_low(port)
            }
        }
    }

    /// Whether a free infer variable makes an output that keeps its type.
    fn is_last(&self, var: Var) -> bool {
        let class = flow::decision(self.tensors.module, var).map(|d| d.class);
        self.held.get(&var) == Some(&Held::Free)
            && class == Some(Class::Infer)
            && flow::results_of(self.tensors.module, var).any(|(_, value)| self.kept.contains(&value))
    }

    /// Whether what reads a port, through casts as well, is allow and nothing else. By class, not by precision, which
    /// an earlier run may have chosen.
    fn is_read_low(&self, port: Var) -> bool {
        let module = self.tensors.module;
        let is_allow = |var| flow::decision(module, var).is_some_and(|d| d.class == Class::Allow);
        let mut results = Vec::new();
        self.add_results(At::Port(port), &mut results);
        results.into_iter().all(|value| {
            // Of outputs only those count that keep their type.
            let readers = flow::readers_beyond_casts(module, value);
            let mut operands = readers.into_iter().filter_map(Reader::operand);
            !self.leaves(value)
                && operands.all(|(node, slot)| flow::reader_var(module, node, slot).is_some_and(is_allow))
        })
    }

    /// Whether a value is an output of the model that keeps its type, as it is or cast.
    fn leaves(&self, value: Value) -> bool {
        let module = self.tensors.module;
        let mut work = vec![value];
        while let Some(value) = work.pop() {
            if self.kept.contains(&value) {
                return true;
            }
            work.extend(module.uses(value).filter_map(|(node, _)| flow::float_cast(module, node)));
        }
        false
    }
}
