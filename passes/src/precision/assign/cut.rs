//! The choice of the low variables by a minimum cut: the cheapest casts, with a proof.
//!
//! Every free variable is a vertex, low or full (fp32). Every tensor is a term: it charges one cast for each format in which the
//! tensor is read and not made, however many readers there are, and one operation for each reader that is
//! [fused](crate::fusions) with the producer. The module [`cut`](crate::cut) finds the minimum. For example, with a cast
//! costing 1:
//!
//! ```text
//! a = Softmax(x)       full
//! b = Add(a, c)        free      tensor a: 1 if b is low
//! d = MatMul(b, w)     low       tensor b: 1 if b is full
//! e = Exp(b)           full      tensor b: 1 if b is low; so b is full, for one cast instead of two
//! ```
//!
//! Held, before the choice, are:
//!
//! - low: allow variables, whatever the profile of the target says, except [products](super::negligible) that are almost none
//!   of the work; variables that are low already or pinned low; in f16, [large constants](super::constants) that are only moved;
//! - fp32: inputs and outputs that keep their type, readers without a variable, [sums](super::sums) that loops keep, operators
//!   [outside](super::margins) of the low regions, and free variables that no tensor or constant connects with a variable that
//!   gains by being low;
//! - in the other 16-bit format: variables that [take](super::other) the format of their neighbours.
//!
//! Discrete and promote variables are low only if all their operands are low, and an input that need not keep its type is low
//! only if all its readers are low. Among equally cheap choices, the choice with most low variables is taken, except variables
//! that low variables connect with nothing that gains.

mod between;
mod solution;
mod tensors;
mod vertices;

use self::vertices::{Components, Vertices};
use super::constants::Constants;
use super::found::Held;
use super::margins::margins;
use super::other::OtherFormats;
use super::prices::{Prices, rounds};
use crate::analysis::cost::{CostModel, NodeTime};
use crate::analysis::tensors::{End, Producer, Tensor, Tensors};
use crate::graph::flow::{self, Var};
use crate::graph::var_map::VarMap;
use crate::precision::cut::{Invalid, Label, Problem, Vertex};
use ampc_ir::module::reason::Why;
use ampc_ir::op::{Class, Legality};
use ampc_ir::{DType, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// The vertex of everything that is fp32 and no variable.
const FULL: Vertex = Vertex(0);
/// The vertex of everything that is low and no variable.
const LOW: Vertex = Vertex(1);

/// The choice of a format for every free variable, as a problem.
pub(super) struct Choice<'m> {
    tensors: &'m Tensors<'m>,
    costs: &'m CostModel<'m>,
    constants: &'m Constants,
    other: &'m OtherFormats,
    /// The prices of roundings, if error costs something.
    prices: Option<&'m Prices<'m>>,
    /// Products that need not be low, with their share of the work.
    negligible: FxHashMap<Var, Why>,
    all: Vec<Tensor>,
    problem: Problem,
    /// The free variables, of groups the first, and the sources that may change, with their vertices.
    vertices: Vertices,
    held: VarMap<Held>,
    /// The variables of sums that loops keep.
    sums: FxHashSet<Var>,
    /// The variables that gain nothing by being low.
    unprofitable: &'m FxHashSet<Var>,
    /// The variables outside of the low regions, with the reason for fp32.
    margins: FxHashMap<Var, Why>,
    /// Free variables in program order.
    order: Vec<Var>,
    /// The free variables whose time is part of the cost.
    timed: Vec<(Var, NodeTime)>,
    /// The operands of casts that take any format.
    arriving: FxHashSet<Var>,
    /// Pairs of vertices: the second is full if the first is full.
    marks: Vec<(Vertex, Vertex)>,
}

impl<'m> Choice<'m> {
    /// The choice, with nothing chosen.
    pub(super) fn new(
        tensors: &'m Tensors<'m>,
        costs: &'m CostModel<'m>,
        (constants, other, prices): (&'m Constants, &'m OtherFormats, Option<&'m Prices<'m>>),
        negligible: FxHashMap<Var, Why>,
        (sums, unprofitable): (FxHashSet<Var>, &'m FxHashSet<Var>),
    ) -> Result<Choice<'m>, Invalid> {
        let mut choice = Choice {
            tensors,
            costs,
            constants,
            other,
            prices,
            negligible,
            all: tensors.all(),
            problem: Problem::with_vertices(2)?,
            vertices: Vertices::default(),
            held: VarMap::default(),
            sums,
            unprofitable,
            margins: FxHashMap::default(),
            order: Vec::new(),
            timed: Vec::new(),
            arriving: FxHashSet::default(),
            marks: Vec::new(),
        };
        choice.problem.fix(FULL, Label::Full)?;
        choice.problem.fix(LOW, Label::Low)?;
        choice.variables()?;
        for at in 0..choice.all.len() {
            choice.tensor(at)?;
            choice.follow(at)?;
        }
        choice.add_conditions()?;
        choice.hold_margins()?;
        choice.hold_what_gains_nothing()?;
        Ok(choice)
    }

    /// A vertex for each free variable, with what it costs to compute and what is known of it.
    fn variables(&mut self) -> Result<(), Invalid> {
        let module = self.tensors.module;
        for node in flow::nodes(module) {
            for var in flow::vars(module, node) {
                let End::Var(leader) = self.tensors.end_of(var, None) else { continue };
                self.order.push(var);
                if self.tensors.takes_any(var) {
                    self.arriving.insert(var);
                    continue;
                }
                let known = self.held.get(&leader).copied();
                let (held, is_new) = (known.unwrap_or_else(|| self.held(leader)), known.is_none());
                self.held.insert(leader, held);
                let vertex = self.vertex(End::Var(leader))?;
                if matches!(held, Held::Other(_)) {
                    continue;
                }
                let mut time = self.costs.node_time(var);
                if self.unprofitable.contains(&var) {
                    time.low = time.low.max(time.full.saturating_add(1));
                }
                self.timed.push((var, time));
                let [full, low] = self.priced(var);
                self.problem.unary(vertex, time.full.saturating_add(full), time.low.saturating_add(low))?;
                match held {
                    Held::Full if is_new => self.problem.fix(vertex, Label::Full)?,
                    Held::Low if is_new => self.problem.fix(vertex, Label::Low)?,
                    Held::Full | Held::Low | Held::Free | Held::Other(_) => {}
                }
            }
        }
        Ok(())
    }

    /// The costs of a variable beside its time if roundings have a price. In fp32 it costs the casts around a product, so that a
    /// product is low unless errors decide otherwise; in 16 bits it costs the roundings of its results and constants.
    fn priced(&self, var: Var) -> [i64; 2] {
        let (module, to) = (self.tensors.module, self.tensors.to);
        let Some(prices) = self.prices else { return [0, 0] };
        let operands: Vec<Value> = flow::operands_of(module, var).map(|(_, value)| value).collect();
        let results: Vec<Value> = flow::results_of(module, var).map(|(_, value)| value).collect();
        let is_allow = flow::decision(module, var).is_some_and(|decision| decision.class == Class::Allow);
        let graph = module.node(var.node).graph;
        let casts = operands.iter().chain(&results).filter(|_| is_allow || self.is_stored_low(var));
        let casts = casts.map(|&value| self.costs.cast_cost(value, graph, DType::F32, to));
        let constants = operands.iter().filter(|&&value| module.constant(value).is_some());
        let rounded = results.iter().filter(|_| rounds(module, var)).chain(constants);
        let rounded = rounded.map(|&value| prices.of(value));
        [casts.fold(0, i64::saturating_add), rounded.fold(prices.of_low(var), i64::saturating_add)]
    }

    /// The known state of a variable, or of its group.
    fn held(&self, leader: Var) -> Held {
        let (module, to) = (self.tensors.module, self.tensors.to);
        let own = [leader];
        let members = self.tensors.groups.get(leader).map_or(&own[..], |group| &group.members);
        let is_free =
            |&var: &Var| flow::is_free(module, var) && flow::legality(module, var, to) == Legality::Legal;
        let is_allow = |&var: &Var| flow::decision(module, var).is_some_and(|d| d.class == Class::Allow);
        match self.other.get(&leader) {
            Some(&(format, _)) if !self.is_stored_low(leader) => Held::Other(format),
            _ if !members.iter().all(is_free) => Held::Full,
            _ if self.is_stored_low(leader) && self.prices.is_some() => Held::Free,
            _ if self.is_stored_low(leader) => Held::Low,
            _ if self.negligible.contains_key(&leader) => Held::Free,
            _ if members.iter().any(|var| self.sums.contains(var)) => Held::Full,
            _ if members.iter().any(is_allow) => Held::Low,
            _ => Held::Free,
        }
    }

    /// True if a variable moves a large constant, which is stored low for its size.
    fn is_stored_low(&self, leader: Var) -> bool {
        self.constants.stored.contains(&leader)
    }

    fn vertex(&mut self, end: End) -> Result<Vertex, Invalid> {
        if let Some(known) = self.vertices.get(end) {
            return Ok(known);
        }
        let vertex = self.problem.add_vertex()?;
        self.vertices.insert(end, vertex);
        Ok(vertex)
    }

    /// The format that an end is held in, if it is one that is neither fp32 nor the one that is lowered to.
    fn other(&self, end: End) -> Option<DType> {
        match end {
            End::Other(format) => Some(format),
            End::Var(var) => match self.held.get(&var) {
                Some(&Held::Other(format)) => Some(format),
                _ => None,
            },
            End::Source(_) | End::Full | End::Low => None,
        }
    }

    /// The vertex of an end that is fp32 or low.
    fn of_end(&mut self, end: End) -> Result<Option<Vertex>, Invalid> {
        Ok(match end {
            End::Full => Some(FULL),
            End::Low => Some(LOW),
            _ if self.other(end).is_some() => None,
            End::Var(_) | End::Source(_) => Some(self.vertex(end)?),
            End::Other(_) => None,
        })
    }

    /// Keeps fp32 what is outside of the low regions.
    fn hold_margins(&mut self) -> Result<(), Invalid> {
        self.margins = margins(self.tensors, self.constants, &self.held, &self.negligible);
        let mut left: Vec<Var> = self.margins.keys().copied().collect();
        left.sort_unstable();
        for var in left {
            self.problem.fix(self.vertices.of(var), Label::Full)?;
            self.held.insert(var, Held::Full);
        }
        Ok(())
    }

    /// Keeps fp32 what is connected with nothing that gains by being low.
    fn hold_what_gains_nothing(&mut self) -> Result<(), Invalid> {
        let all = vec![Label::Low; self.problem.vertices() as usize];
        let components = self.components(&all);
        let gaining: FxHashSet<usize> = self.gaining().map(|vertex| components.of(vertex)).collect();
        let free = self.held.iter().filter(|(_, held)| **held == Held::Free).map(|(var, _)| var);
        let vertices = free.map(|var| (self.vertices.of(var), var));
        let mut left: Vec<(Vertex, Var)> =
            vertices.filter(|&(vertex, _)| !gaining.contains(&components.of(vertex))).collect();
        left.sort_unstable();
        for (vertex, var) in left {
            self.problem.fix(vertex, Label::Full)?;
            self.held.insert(var, Held::Full);
        }
        Ok(())
    }

    /// The vertices that are held low, and products that are free: these gain too, if only a little.
    fn gaining(&self) -> impl Iterator<Item = Vertex> + '_ {
        let gains = |&(var, held): &(Var, &Held)| *held == Held::Low || self.negligible.contains_key(&var);
        self.held.iter().filter(gains).map(|(var, _)| self.vertices.of(var)).chain([LOW])
    }

    /// The components of low vertices, which are connected through tensors and constants that they share.
    fn components(&self, labels: &[Label]) -> Components {
        let mut components = Components::new(labels.len());
        for tensor in &self.all {
            let from = match tensor.producer {
                Producer::End(end) => Some(end),
                Producer::Constant => None,
            };
            let cast = tensor.casts.iter().any(|&(to, _)| to == self.tensors.to).then_some(End::Low);
            let ends = tensor.readers.iter().map(|reading| reading.end).chain(from).chain(cast);
            let mut low = ends.filter_map(|end| self.low_vertex(end, labels));
            let Some(first) = low.next() else { continue };
            low.for_each(|vertex| components.join(first, vertex));
        }
        // A variable stays low with those that have to be low for its sake.
        let is_low = |vertex: Vertex| labels[vertex.index()] == Label::Low;
        for &(from, to) in self.marks.iter().filter(|&&(from, to)| is_low(from) && is_low(to)) {
            components.join(from, to);
        }
        components
    }

    /// The vertex of an end, if it is one that is low.
    fn low_vertex(&self, end: End, labels: &[Label]) -> Option<Vertex> {
        let vertex = match end {
            End::Low => LOW,
            End::Full | End::Other(_) => return None,
            End::Var(_) | End::Source(_) => self.vertices.get(end)?,
        };
        (labels[vertex.index()] == Label::Low && self.other(end).is_none()).then_some(vertex)
    }
}
