//! The margins of the low regions: operators before the first product and after the last product.
//!
//! In the margins, rounding makes no product faster, only an operator cheaper here and there, and the last rounding is
//! the most visible. So the choice leaves an infer variable fp32 if it makes an output of the graph, if nothing low
//! except constants comes before it, or if nothing low comes after it. Deny operators do not end a low region: the
//! scores of an attention are between products, with the softmax in between.
//!
//! For example, where MatMul is low and `y` leaves the model in fp32:
//!
//! ```text
//! a = Mul(x, s)        fp32: nothing low comes before it but constants
//! b = MatMul(a, w)     low
//! c = Add(b, s)        free: between two products
//! d = MatMul(c, v)     low
//! e = Tanh(d)          fp32: nothing low comes after it, since y is not
//! y = Add(e, s)        fp32: it makes an output that leaves in fp32
//! ```
//!
//! The walk forwards from the products visits c, e and y; the walk backwards visits c and a. A variable that both walks
//! visit is between products and free, unless it makes an output that keeps its type.

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

/// Returns the free infer variables that stay fp32, with the reasons.
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

/// A position of a walk: a node with all its variables, or a port of a node with bodies or of a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    Node(Node),
    Port(Var),
}

/// The positions that a walk has visited.
#[derive(Default)]
struct Visited {
    nodes: SecondaryMap<Node, bool>,
    ports: FxHashSet<Var>,
}

impl Visited {
    /// Records a position. Returns true if the position is new.
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
    /// Outputs of the model that keep their types, directly or behind casts of an earlier run.
    kept: FxHashSet<Value>,
}

impl Walk<'_> {
    fn at(&self, var: Var) -> At {
        let leader = self.tensors.groups.leader(var);
        let alone = !flow::is_port(self.tensors.module, leader) && self.tensors.groups.get(leader).is_none();
        if alone { At::Node(var.node) } else { At::Port(leader) }
    }

    /// The position of a reader of a value.
    fn of_reader(&self, reader: Reader) -> Option<At> {
        match reader {
            Reader::Operand(node, _) if Ports::of(self.tensors.module, node).is_none() => {
                let var = flow::var_of_reader(self.tensors.module, reader);
                Some(var.map_or(At::Node(node), |var| self.at(var)))
            }
            _ => flow::var_of_reader(self.tensors.module, reader).map(|port| self.at(port)),
        }
    }

    /// The position of the producer of a value.
    fn of_value(&self, value: Value) -> Option<At> {
        let module = self.tensors.module;
        let value = flow::behind_inserted(module, value);
        let node = || module.producer(value).map(|(node, _)| At::Node(node));
        flow::producer_var(module, value).map(|var| self.at(var)).or_else(node)
    }

    /// Adds the float operands of a position.
    fn add_operands(&self, at: At, found: &mut Vec<Value>) {
        let module = self.tensors.module;
        match at {
            At::Node(node) => self.add_floats(module.node(node).formal_operands().iter().flatten(), found),
            At::Port(port) => self.add_floats(&self.tensors.groups.operands(module, port), found),
        }
    }

    /// Adds the float results of a position.
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

    /// The positions that compute in 16 bits whatever the cut chooses, and the products that need not be low. Variables
    /// that only follow other variables do not count, and neither do variables computed from constants alone: they may
    /// be low because an earlier run chose so.
    fn products(&self) -> impl Iterator<Item = At> + '_ {
        let module = self.tensors.module;
        let vars = flow::nodes(module).into_iter().flat_map(|node| flow::vars(module, node));
        let is_cast = move |node: Node| module.node(node).schema().is_some_and(|s| s.kind == OpKind::Cast);
        let low = vars.filter(move |&var| {
            let class = flow::decision(module, var).map(|d| d.class);
            let tied = self.tensors.groups.get(var).is_some();
            let follows = match class {
                Some(Class::Clear | Class::Discrete | Class::Promote | Class::Fixed) => true,
                // Members of a group have one element type; none of them is left fp32 here.
                Some(Class::Infer) => tied,
                Some(Class::Allow | Class::Deny) | None => false,
            };
            // A cast computes nothing, whatever type a pin makes it read.
            let is_product = self.is_low(var) || self.negligible.contains_key(&var);
            !follows && !is_cast(var.node) && is_product && !self.constants.derived.contains(&var)
        });
        low.map(|var| self.at(var))
    }

    /// True if a variable is low whatever the cut chooses.
    fn is_low(&self, var: Var) -> bool {
        let decided = flow::decision(self.tensors.module, var).and_then(|d| d.precision);
        let held = self.held.get(&self.tensors.groups.leader(var));
        matches!(held, Some(Held::Low | Held::Other(_))) || decided.is_some_and(|d| d.is_low())
    }

    /// Returns the positions that come after something low.
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

    /// Returns the positions that come before something low. Outputs of the graph that keep their types end the walk,
    /// so positions that lead only to such an output are not found.
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

    /// True if the backward walk ends at a position: the position makes an output that keeps its type, or it is the
    /// state of a loop, and not all readers of the state are allow. A low state would be rounded in every iteration.
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

    /// True if a free infer variable makes an output that keeps its type.
    fn is_last(&self, var: Var) -> bool {
        let class = flow::decision(self.tensors.module, var).map(|d| d.class);
        self.held.get(&var) == Some(&Held::Free)
            && class == Some(Class::Infer)
            && flow::results_of(self.tensors.module, var).any(|(_, value)| self.kept.contains(&value))
    }

    /// True if all readers of a port, through casts as well, are allow. The class decides, not the precision, which an
    /// earlier run may have chosen.
    fn is_read_low(&self, port: Var) -> bool {
        let module = self.tensors.module;
        let is_allow = |var| flow::decision(module, var).is_some_and(|d| d.class == Class::Allow);
        let mut results = Vec::new();
        self.add_results(At::Port(port), &mut results);
        results.into_iter().all(|value| {
            // Only outputs that keep their type count as outputs.
            let readers = flow::readers_beyond_casts(module, value);
            let mut operands = readers.into_iter().filter_map(Reader::operand);
            !self.leaves(value)
                && operands.all(|(node, slot)| flow::reader_var(module, node, slot).is_some_and(is_allow))
        })
    }

    /// True if a value, directly or through casts, is an output of the model that keeps its type.
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
