//! Which variables are low, by a minimum cut: the cheapest casts there can be, with the proof.
//!
//! Every free variable is a vertex that is low or full (fp32), every tensor a term that charges one cast for each
//! format that it is read in and not made in, however many read it, and one operation for each reader that is
//! [fused](crate::fusions) with what makes it; [`cut`](crate::cut) says how the minimum is found.
//! Held are:
//!
//! - low: allow variables, whatever the target's profile says of them, but for [products](super::negligible) that are
//!   next to nothing of the work; what is low already or pinned so; [large constants](super::constants) that are only
//!   moved, in f16;
//! - fp32: inputs and outputs that keep their type, readers without a variable, [sums](super::sums) that loops keep,
//!   what is [outside](super::margins) of the low regions, and every free variable that is connected with nothing that gains by being low, through tensors and constants;
//! - in the other 16-bit format: variables that [take](super::other) the format of their neighbours.
//!
//! Discrete and promote variables are never lowered while something fp32 arrives, and an input that need not keep its
//! type is low only if everything reads it low. Among equally cheap choices the one with most low variables is taken,
//! but for those that are connected, through low ones, with nothing that gains.

mod between;
mod reading;
mod vertices;

use self::reading::ReadingGraphs;
use self::vertices::{Components, Vertices};
use super::constants::Constants;
use super::found::{Found, Held};
use super::margins::margins;
use super::optimum::{Optimum, Predicted};
use super::other::OtherFormats;
use crate::analysis::cost::{CostModel, NodeTime};
use crate::analysis::tensors::{End, Producer, Reading, Tensor, Tensors};
use crate::analysis::values::same_number;
use crate::graph::flow::{self, Var};
use crate::graph::var_map::VarMap;
use crate::policy::pinned::pin_of_cast;
use crate::precision::between::is_between;
use crate::precision::cut::{Contradiction, DEFAULT_BUDGET, Invalid, Label, Place, Problem, Vertex};
use crate::target::Profile;
use ampc_ir::module::reason::Why;
use ampc_ir::op::{Class, Legality};
use ampc_ir::{DType, GraphId, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Something fp32 that is no variable.
const FULL: Vertex = Vertex(0);
/// Something low that is no variable.
const LOW: Vertex = Vertex(1);

/// The choice of a format for every free variable, as a problem.
pub(super) struct Choice<'m> {
    tensors: &'m Tensors<'m>,
    costs: &'m CostModel<'m>,
    constants: &'m Constants,
    other: &'m OtherFormats,
    /// Products that need not be low, with their share of the work.
    negligible: FxHashMap<Var, Why>,
    target: Arc<Profile>,
    all: Vec<Tensor>,
    problem: Problem,
    /// The free variables, of groups the first, and the sources that may change, with their vertices.
    vertices: Vertices,
    held: VarMap<Held>,
    /// What belongs to sums that loops keep.
    sums: FxHashSet<Var>,
    /// What is outside of the low regions, and why it is left so.
    margins: FxHashMap<Var, Why>,
    /// Free variables in program order.
    order: Vec<Var>,
    /// Those of which the time counts.
    timed: Vec<(Var, NodeTime)>,
    /// What casts read that take what arrives.
    arriving: FxHashSet<Var>,
    /// Those of the author.
    casts: FxHashSet<Node>,
    /// Those of them that serve nobody else.
    alone: FxHashSet<Node>,
    /// Others of the author that take what arrives: what they make is a tensor of its own.
    apart: FxHashSet<Node>,
    /// Pairs of vertices: the second is full if the first is full.
    marks: Vec<(Vertex, Vertex)>,
}

/// What reads a tensor, with the graph in which a cast for it stands.
struct Readers {
    read: Vec<(GraphId, Vertex)>,
    /// The same, where the author has cast to fp32 before.
    widened: Vec<(GraphId, Vertex)>,
    /// What casts for itself alone.
    own: Vec<(GraphId, Vertex)>,
    /// What reads in the kernel that makes the tensor, by node.
    fused: BTreeMap<Node, Vec<Vertex>>,
    /// Casts of the author that serve nobody else.
    casts: Vec<(DType, GraphId)>,
}

impl<'m> Choice<'m> {
    /// The choice, with nothing chosen.
    pub(super) fn new(
        tensors: &'m Tensors<'m>,
        costs: &'m CostModel<'m>,
        (constants, other): (&'m Constants, &'m OtherFormats),
        negligible: FxHashMap<Var, Why>,
        sums: FxHashSet<Var>,
        target: Arc<Profile>,
    ) -> Result<Choice<'m>, Invalid> {
        let mut choice = Choice {
            tensors,
            costs,
            constants,
            other,
            negligible,
            target,
            all: tensors.all(),
            problem: Problem::with_vertices(2)?,
            vertices: Vertices::default(),
            held: VarMap::default(),
            sums,
            margins: FxHashMap::default(),
            order: Vec::new(),
            timed: Vec::new(),
            arriving: FxHashSet::default(),
            casts: FxHashSet::default(),
            alone: FxHashSet::default(),
            apart: FxHashSet::default(),
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
            let widens = flow::inserted_result(module, node).is_none() && same_number(module, node).is_some();
            if widens {
                self.casts.insert(node);
            }
            for var in flow::vars(module, node) {
                let End::Var(leader) = self.tensors.end_of(var, None) else { continue };
                self.order.push(var);
                if self.tensors.takes_any(var) {
                    // What a pinned one makes fp32 is a tensor of its own.
                    let result = module.node(node).result(0);
                    let widens = result.and_then(|v| module.value(v).ty.dtype()) == Some(DType::F32);
                    let apart = widens && pin_of_cast(module, node).is_some();
                    if flow::inserted_result(module, node).is_none() {
                        if apart { &mut self.apart } else { &mut self.casts }.insert(node);
                    }
                    if self.tensors.serves_itself(node).is_some() {
                        self.alone.insert(node);
                    }
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
                let time = self.costs.node_time(var);
                self.timed.push((var, time));
                self.problem.unary(vertex, time.full, time.low)?;
                match held {
                    Held::Full if is_new => self.problem.fix(vertex, Label::Full)?,
                    Held::Low if is_new => self.problem.fix(vertex, Label::Low)?,
                    Held::Full | Held::Low | Held::Free | Held::Other(_) => {}
                }
            }
        }
        Ok(())
    }

    /// What is known of a variable, or of its group.
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
            _ if self.is_stored_low(leader) => Held::Low,
            _ if self.negligible.contains_key(&leader) => Held::Free,
            _ if members.iter().any(|var| self.sums.contains(var)) => Held::Full,
            _ if members.iter().any(is_allow) => Held::Low,
            _ => Held::Free,
        }
    }

    /// Whether it moves a large constant, which is stored low for its size.
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

    /// What the casts of a tensor cost.
    fn tensor(&mut self, at: usize) -> Result<(), Invalid> {
        let Tensor { value, producer, ref readers, ref casts } = self.all[at];
        let (to, full, casts) = (self.tensors.to, DType::F32, casts.clone());
        let (mut read, mut widened, mut own) = (Vec::new(), Vec::new(), Vec::new());
        let mut fused: BTreeMap<Node, Vec<Vertex>> = BTreeMap::new();
        for reading in readers.clone() {
            let Some(vertex) = self.of_end(reading.end)? else { continue };
            if let Some(node) = reading.fused {
                fused.entry(node).or_default().push(vertex);
                continue;
            }
            if reading.own && producer != Producer::Constant {
                own.push((reading.graph, vertex));
                continue;
            }
            read.push((reading.graph, vertex));
            widened.push((reading.widened, vertex));
        }
        let end = match producer {
            Producer::Constant => {
                let readers: Vec<Vertex> = read.iter().map(|&(_, vertex)| vertex).collect();
                return self.problem.shared(self.costs.copy_cost(value), &readers);
            }
            Producer::End(end) => end,
        };
        if let Some(format) = self.other(end) {
            let readers = Readers { read, widened, own, fused, casts };
            return self.tensor_of_other(value, format, &readers);
        }
        let Some(producer) = self.of_end(end)? else { return Ok(()) };
        for readers in fused.values() {
            let cost = self.costs.fused_cast_cost(value, full, to);
            self.problem.tensor(producer, cost, cost, readers)?;
        }
        for (result, graph) in casts {
            if result == to {
                self.problem.tensor(producer, self.costs.cast_cost(value, graph, full, to), 0, &[LOW])?;
            } else {
                self.problem.tensor(producer, 0, self.costs.cast_cost(value, graph, to, full), &[FULL])?;
            }
        }
        for (graph, vertex) in own {
            let narrow = self.costs.cast_cost(value, graph, full, to);
            let widen = self.costs.cast_cost(value, graph, to, full);
            self.problem.tensor(producer, narrow, widen, &[vertex])?;
        }
        if read == widened {
            return self.casts_of(producer, value, &read, [Some((full, to)), Some((to, full))]);
        }
        self.casts_of(producer, value, &read, [Some((full, to)), None])?;
        self.casts_of(producer, value, &widened, [None, Some((to, full))])
    }

    /// What the casts of a tensor of another 16-bit format cost. Its producer is neither fp32 nor low, so it counts as
    /// two: one that everything low is cast from, and one that everything fp32 is.
    fn tensor_of_other(&mut self, value: Value, format: DType, readers: &Readers) -> Result<(), Invalid> {
        let (to, full) = (self.tensors.to, DType::F32);
        for fused in readers.fused.values() {
            self.problem.tensor(FULL, self.costs.fused_cast_cost(value, format, to), 0, fused)?;
            self.problem.tensor(LOW, 0, self.costs.fused_cast_cost(value, format, full), fused)?;
        }
        for &(result, graph) in &readers.casts {
            self.problem.tensor(FULL, self.costs.cast_cost(value, graph, format, result), 0, &[LOW])?;
        }
        for &(graph, vertex) in &readers.own {
            self.problem.tensor(FULL, self.costs.cast_cost(value, graph, format, to), 0, &[vertex])?;
            self.problem.tensor(LOW, 0, self.costs.cast_cost(value, graph, format, full), &[vertex])?;
        }
        self.casts_of(FULL, value, &readers.read, [Some((format, to)), None])?;
        self.casts_of(LOW, value, &readers.widened, [None, Some((format, full))])
    }

    /// One cast for what is low and one for what is fp32, each from a type to another, as few and as seldom run as
    /// can be.
    fn casts_of(
        &mut self,
        producer: Vertex,
        value: Value,
        readers: &[(GraphId, Vertex)],
        [narrow, widen]: [Option<(DType, DType)>; 2],
    ) -> Result<(), Invalid> {
        let cost = |graph, cast: Option<(DType, DType)>| {
            cast.map_or(0, |(from, to)| self.costs.cast_cost(value, graph, from, to))
        };
        let scopes = ReadingGraphs::new(self.tensors.module, self.costs, value, readers);
        let places: Vec<Place<'_>> = (0..scopes.graphs.len())
            .map(|i| Place {
                parent: scopes.parents[i],
                narrow: cost(scopes.graphs[i], narrow),
                widen: cost(scopes.graphs[i], widen),
                readers: &scopes.readers[i],
            })
            .collect();
        match places[..] {
            [Place { narrow, widen, readers, .. }] => self.problem.tensor(producer, narrow, widen, readers),
            _ => self.problem.scoped(producer, &places),
        }
    }

    /// Ties the ends of a tensor that never cause a cast to the tensor: operators that take any element type, and sources.
    fn follow(&mut self, at: usize) -> Result<(), Invalid> {
        let Tensor { value, producer, ref readers, .. } = self.all[at];
        for Reading { end, .. } in readers.clone() {
            if let Producer::End(source @ End::Source(_)) = producer {
                let source = self.vertex(source)?;
                match self.of_end(end)? {
                    Some(reader) => self.problem.imply(reader, source)?,
                    None => self.problem.fix(source, Label::Full)?,
                }
            }
            let End::Var(var) = end else { continue };
            if self.held.get(&var) != Some(&Held::Free) || !self.tensors.follows(var) {
                continue;
            }
            let vertex = self.vertex(end)?;
            match producer {
                Producer::Constant if self.tensors.is_exact(value) => {}
                Producer::Constant => self.problem.imply(FULL, vertex)?,
                Producer::End(from) => {
                    let from = self.of_end(from)?.unwrap_or(FULL);
                    self.problem.imply(from, vertex)?;
                }
            }
        }
        Ok(())
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

    /// What is low, whatever is around it, and products that need not be: they gain, too, if only a little.
    fn gaining(&self) -> impl Iterator<Item = Vertex> + '_ {
        let gains = |&(var, held): &(Var, &Held)| *held == Held::Low || self.negligible.contains_key(&var);
        self.held.iter().filter(gains).map(|(var, _)| self.vertices.of(var)).chain([LOW])
    }

    /// What low vertices are connected, through tensors and constants that they share.
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

    /// Chooses.
    ///
    /// Says how many casts there are besides, counted by tensors and formats.
    pub(super) fn solve(&self) -> Result<(Found, Optimum, usize), Contradiction> {
        let mut solution = self.problem.solve(DEFAULT_BUDGET)?;
        self.ground(&mut solution.labels);
        let cost = self.problem.cost(&solution.labels).expect("what is held stays so");
        let mut found = Found::default();
        for &var in &self.order {
            let leader = self.tensors.groups.leader(var);
            let end = if self.arriving.contains(&var) { self.cast_end(var) } else { End::Var(leader) };
            let format = self.format(end, &solution.labels);
            found.low.extend(format.map(|format| (var, format)));
            found.why.extend(self.why(var, leader, format).map(|why| (var, why)));
        }
        let optimum = Optimum {
            objective: self.costs.objective(),
            target: self.target.clone(),
            to: self.tensors.to,
            cost,
            lower_bound: solution.lower_bound,
            merged: 0,
            predicted: Predicted::default(),
            elsewhere: None,
            keep_io: self.tensors.keep_io.clone(),
            counted: false,
            optimal: solution.optimal && cost == solution.lower_bound,
            scale: self.costs.scale(),
            assumptions: self.costs.assumptions(),
            timed: self.timed.clone(),
            casts: self.casts.clone(),
            alone: self.alone.clone(),
            apart: self.apart.clone(),
            recast: self.vertices.sources.keys().filter_map(|&source| self.recast(source)).collect(),
            fusions: self.costs.fusions().clone(),
            limit: self.costs.limit(),
            rounded: Vec::new(),
        };
        Ok((found, optimum, self.casts(&solution.labels)))
    }

    /// The casts of tensors: one for each format that a tensor is read in and not made in.
    fn casts(&self, labels: &[Label]) -> usize {
        let of_tensor = |tensor: &Tensor| {
            let Producer::End(from) = tensor.producer else { return 0 };
            let made = self.format(from, labels);
            let read = tensor.readers.iter().filter(|reading| reading.fused.is_none());
            let formats =
                read.map(|reading| self.format(reading.end, labels)).filter(|&format| format != made);
            formats.collect::<FxHashSet<_>>().len()
        };
        self.all.iter().map(of_tensor).sum()
    }

    /// The reason of the format of a variable, if it does not follow from the class.
    fn why(&self, var: Var, leader: Var, format: Option<DType>) -> Option<Why> {
        let negligible = self.negligible.get(&leader);
        let why = match (self.held.get(&leader)?, format) {
            (Held::Other(_), _) => self.other.get(&leader)?.1?,
            (Held::Low, _) if self.is_stored_low(leader) => Why::StoredLow,
            (Held::Free, None) if let Some(&why) = negligible => why,
            (Held::Free, Some(_)) if negligible.is_some() => return None,
            (Held::Free, _) if self.tensors.follows(leader) => Why::FollowsOperands,
            // The reason that the kernel of the target gives stays.
            (Held::Free, Some(_)) if self.is_between(var) => return None,
            (Held::Free, None) if self.is_between(var) => Why::NotBetween,
            (Held::Free, Some(_)) => Why::CheapestLow,
            (Held::Free, None) => Why::CheapestFull,
            (Held::Full, None) if self.sums.contains(&var) => Why::LoopState,
            (Held::Full, None) => *self.margins.get(&leader)?,
            (Held::Full | Held::Low, _) => return None,
        };
        Some(why)
    }

    fn is_between(&self, var: Var) -> bool {
        flow::decision(self.tensors.module, var).is_some_and(is_between)
    }

    /// A source, if it is what a cast of the author makes.
    fn recast(&self, source: Value) -> Option<Value> {
        self.tensors.module.producer(source).map(|_| source)
    }

    /// The 16-bit format of an end.
    fn format(&self, end: End, labels: &[Label]) -> Option<DType> {
        if let Some(other) = self.other(end) {
            return Some(other);
        }
        let low = match end {
            End::Full | End::Other(_) => false,
            End::Low => true,
            End::Var(_) | End::Source(_) => {
                self.vertices.get(end).is_some_and(|vertex| labels[vertex.index()] == Label::Low)
            }
        };
        low.then_some(self.tensors.to)
    }

    /// What a cast of the author reads as it arrives.
    fn cast_end(&self, var: Var) -> End {
        let operand = flow::operands_of(self.tensors.module, var).next().map(|(_, value)| value);
        match operand.map(|value| self.tensors.producer_of(value)) {
            Some(Producer::End(end)) => end,
            Some(Producer::Constant) | None => End::Full,
        }
    }

    /// Makes low vertices full that are connected, through low ones, with nothing that gains: nothing costs more by
    /// it, or they would not have been low only because that costs no more either.
    fn ground(&self, labels: &mut [Label]) {
        let components = self.components(labels);
        let mut grounded: FxHashSet<usize> = self.gaining().map(|vertex| components.of(vertex)).collect();
        for &(var, time) in &self.timed {
            if time.full > time.low {
                let leader = self.tensors.groups.leader(var);
                grounded.insert(components.of(self.vertices.of(leader)));
            }
        }
        // A cast from another 16-bit format may cost less than one to fp32.
        for tensor in &self.all {
            if matches!(tensor.producer, Producer::End(end) if self.other(end).is_some()) {
                let low = tensor.readers.iter().filter_map(|reading| self.low_vertex(reading.end, labels));
                grounded.extend(low.map(|vertex| components.of(vertex)));
            }
        }
        for vertex in (LOW.0 + 1..self.problem.vertices()).map(Vertex) {
            if !grounded.contains(&components.of(vertex)) {
                labels[vertex.index()] = Label::Full;
            }
        }
    }
}
