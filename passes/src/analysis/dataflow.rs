//! A solver for monotone dataflow over a module, its bodies and functions.
//!
//! An [`Analysis`] has a [`Lattice`] of facts, a direction, and a transfer function per node. [`solve`] finds the least
//! fact of every value that satisfies all transfer functions (Kildall 1973; Kam and Ullman 1977): it visits nodes from a
//! worklist in the order of execution until no fact changes. The driver knows captures, and the
//! [ports](ampc_ir::ports) of If, Loop, Scan, SequenceMap and calls: an analysis sees operators only. For example, with
//! the smallest and largest number of a value as its fact, widened to infinity:
//!
//! ```text
//! const %one = 1.0             [1, 1]      entry
//! %last = Loop(%n, _, %one) {  [1, inf]    joins %one and %a: the body may never run
//!   input %i                   [0, inf]    entry: no operand reaches it
//!   input %c                   [0, 1]      entry
//!   input %s                   [1, inf]    joins %one and %a: [1, 1], [1, 2], [1, 3] and so on, then widened
//!   %a = Add(%s, %one)         [2, inf]    transfer
//!   output %c, %a
//! }
//! %y = Neg(%last)              [-inf, -1]  transfer
//! ```
//!
//! A function has the join of its calls: its inputs join the operands of all calls. Facts only grow: a new fact is joined
//! to the fact before it. Nodes of a module without loops, and of functions with one call, are visited once; the inputs of
//! bodies and functions are widened after [`PATIENCE`] changes, so the number of visits is bounded if no chain of
//! widened facts is infinite. The result is deterministic.

mod order;

use self::order::{Step, Worklist, owners, steps};
use ampc_ir::entity::SecondaryMap;
use ampc_ir::module::Def;
use ampc_ir::ports::Ports;
use ampc_ir::views::resolve_captures;
use ampc_ir::{Module, Node, Value};
use rustc_hash::FxHashSet;

/// Changes of the fact of an input of a body or function (backward: of an output) before it is widened.
pub const PATIENCE: u8 = 8;

/// Facts in a partial order with least upper bounds.
pub trait Lattice: Clone + PartialEq {
    /// The least fact: the value is not reached.
    fn bottom() -> Self;
    /// The least upper bound of two facts.
    fn join(&self, other: &Self) -> Self;
    /// An upper bound of a fact and a `wider` fact, such that no chain of widened facts is infinite. Lattices of finite
    /// height need none.
    fn widen(&self, wider: &Self) -> Self {
        let _ = self;
        wider.clone()
    }
}

/// The direction in which facts flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From operands to results.
    Forward,
    /// From results to operands.
    Backward,
}

/// A dataflow analysis.
pub trait Analysis {
    /// The facts about values.
    type Fact: Lattice;
    /// The direction of the analysis.
    const DIRECTION: Direction;

    /// The fact of a value that comes from outside. Forward: a constant, an input of the model, and an input of a body or
    /// function that no operand reaches, such as the iteration number of a Loop. Backward: an output of the model, and an
    /// output of a body or function that no result takes, such as the condition of a Loop.
    fn entry(&mut self, module: &Module, value: Value) -> Self::Fact;

    /// The fact of result `slot` of a node from the facts of its operands; backward, the fact of operand `slot` from those
    /// of its results. Nodes with ports are asked backward only, for operands that are no ports: the condition of an If.
    fn transfer(&mut self, module: &Module, node: Node, slot: usize, facts: &Facts<Self::Fact>)
    -> Self::Fact;

    /// The fact that leaves a port if `fact` enters it.
    fn cross(&self, _module: &Module, _ports: &Ports, _port: usize, fact: Self::Fact) -> Self::Fact {
        fact
    }
}

/// The facts of all values.
#[derive(Clone, Debug)]
pub struct Facts<F: Clone>(SecondaryMap<Value, F>);

/// Facts of a module in which no value is reached.
impl<F: Lattice> Default for Facts<F> {
    fn default() -> Self {
        Facts(SecondaryMap::with_default(F::bottom()))
    }
}

impl<F: Lattice> Facts<F> {
    /// The fact of a value; of a capture, that of the captured value.
    pub fn of(&self, module: &Module, value: Value) -> &F {
        &self.0[resolve_captures(module, value)]
    }
}

/// Finds the facts of all values of a module. Constants that no node reads have the least fact.
pub fn solve<A: Analysis>(module: &Module, analysis: &mut A) -> Facts<A::Fact> {
    let mut solver = Solver::new(module, analysis);
    solver.enter();
    while let Some(at) = solver.pending.pop() {
        solver.visit(solver.steps[at]);
    }
    solver.facts
}

struct Solver<'m, 'a, A: Analysis> {
    module: &'m Module,
    analysis: &'a mut A,
    facts: Facts<A::Fact>,
    /// The steps in the order of execution.
    steps: Vec<Step>,
    /// The first and last step of each node.
    places: SecondaryMap<Node, (usize, usize)>,
    pending: Worklist,
    /// How often the fact of a value at a border has changed.
    changes: SecondaryMap<Value, u8>,
    /// The constants whose entry is known.
    read: FxHashSet<Value>,
}

impl<'m, 'a, A: Analysis> Solver<'m, 'a, A> {
    fn new(module: &'m Module, analysis: &'a mut A) -> Self {
        let steps = steps(module);
        let mut places: SecondaryMap<Node, (usize, usize)> = SecondaryMap::default();
        for (at, &step) in steps.iter().enumerate() {
            match step {
                Step::Compute(node) | Step::Enter(node) => places[node] = (at, at),
                Step::Leave(node) => places[node].1 = at,
            }
        }
        let (pending, changes) = (Worklist::new(steps.len(), A::DIRECTION), SecondaryMap::default());
        let (facts, read) = (Facts::default(), FxHashSet::default());
        Solver { module, analysis, facts, steps, places, pending, changes, read }
    }

    /// Sets the facts that come from outside.
    fn enter(&mut self) {
        let module = self.module;
        for &graph in module.program_graphs() {
            let ports = Ports::of_body(module, graph);
            let is_port = |slot: usize| match (&ports, A::DIRECTION) {
                (None, _) => None,
                (Some(ports), Direction::Forward) => ports.of_body_input(slot),
                (Some(ports), Direction::Backward) => ports.of_body_output(slot),
            };
            let data = module.graph(graph);
            let values: Vec<Value> = match A::DIRECTION {
                Direction::Forward => data.inputs().to_vec(),
                Direction::Backward => data.outputs().iter().map(|output| output.value).collect(),
            };
            for (_, value) in values.into_iter().enumerate().filter(|&(slot, _)| is_port(slot).is_none()) {
                let fact = self.analysis.entry(module, value);
                self.push(value, &fact);
            }
        }
    }

    fn visit(&mut self, step: Step) {
        match (step, A::DIRECTION) {
            (Step::Compute(node), Direction::Forward) => self.compute(node),
            (Step::Compute(node), Direction::Backward) => self.compute_operands(node, |_| true),
            (Step::Enter(node), Direction::Forward) => self.enter_bodies(node),
            (Step::Leave(node), Direction::Forward) => self.leave_bodies(node),
            (Step::Enter(node), Direction::Backward) => self.enter_bodies_backward(node),
            (Step::Leave(node), Direction::Backward) => self.leave_bodies_backward(node),
        }
    }

    fn compute(&mut self, node: Node) {
        let data = self.module.node(node);
        for &operand in data.formal_operands().iter().flatten() {
            self.read(operand);
        }
        for (slot, result) in data.results().iter().enumerate() {
            let Some(result) = *result else { continue };
            let fact = self.analysis.transfer(self.module, node, slot, &self.facts);
            self.push(result, &fact);
        }
    }

    fn compute_operands(&mut self, node: Node, asks: impl Fn(usize) -> bool) {
        for (slot, operand) in self.module.node(node).formal_operands().iter().enumerate() {
            let Some(operand) = operand.filter(|_| asks(slot)) else { continue };
            let fact = self.analysis.transfer(self.module, node, slot, &self.facts);
            self.push(operand, &fact);
        }
    }

    /// Passes operands into bodies; the operand of a state is its result if the body never runs.
    fn enter_bodies(&mut self, node: Node) {
        let module = self.module;
        let Some(ports) = Ports::of(module, node) else { return };
        for port in 0..ports.len() {
            let Some(slot) = ports.operand(port) else { continue };
            let fact = module.node(node).operand(slot).map(|operand| self.read(operand));
            for input in ports.body_inputs(module, port) {
                // An absent operand of a call is absent in the function.
                let fact = fact.clone().unwrap_or_else(|| self.analysis.entry(module, input));
                self.cross(&ports, port, input, fact);
            }
            let result = ports.result(port).and_then(|slot| module.node(node).result(slot));
            if let (Some(fact), Some(result)) = (fact, result) {
                self.cross(&ports, port, result, fact);
            }
        }
    }

    /// Passes the outputs of bodies to results, and states to the next run of the body.
    fn leave_bodies(&mut self, node: Node) {
        let module = self.module;
        let Some(ports) = Ports::of(module, node) else { return };
        for port in 0..ports.len() {
            let next: Vec<Value> = match ports.is_state(port) {
                true => ports.body_inputs(module, port).collect(),
                false => Vec::new(),
            };
            let result = ports.result(port).and_then(|slot| module.node(node).result(slot));
            for (body, slot) in ports.body_outputs(module, port) {
                let fact = self.read(module.graph(body).outputs()[slot].value);
                for &value in next.iter().chain(&result) {
                    self.cross(&ports, port, value, fact.clone());
                }
            }
        }
    }

    fn enter_bodies_backward(&mut self, node: Node) {
        let module = self.module;
        let Some(ports) = Ports::of(module, node) else { return };
        self.compute_operands(node, |slot| ports.of_operand(slot).is_none());
        for port in 0..ports.len() {
            let operand = ports.operand(port).and_then(|slot| module.node(node).operand(slot));
            let result = ports.result(port).and_then(|slot| module.node(node).result(slot));
            let Some(operand) = operand else { continue };
            for value in ports.body_inputs(module, port).chain(result) {
                let fact = self.facts.0[value].clone();
                self.cross(&ports, port, operand, fact);
            }
        }
    }

    fn leave_bodies_backward(&mut self, node: Node) {
        let module = self.module;
        let Some(ports) = Ports::of(module, node) else { return };
        for port in 0..ports.len() {
            let result = ports.result(port).and_then(|slot| module.node(node).result(slot));
            let next = ports.body_inputs(module, port).filter(|_| ports.is_state(port));
            let readers: Vec<Value> = next.chain(result).collect();
            for (body, slot) in ports.body_outputs(module, port) {
                for &reader in &readers {
                    let fact = self.facts.0[reader].clone();
                    self.cross(&ports, port, module.graph(body).outputs()[slot].value, fact);
                }
            }
        }
    }

    /// The fact of a value, of a constant its entry.
    fn read(&mut self, value: Value) -> A::Fact {
        let value = resolve_captures(self.module, value);
        let is_constant = matches!(self.module.value(value).def, Def::Constant(_));
        if is_constant && A::DIRECTION == Direction::Forward && self.read.insert(value) {
            self.facts.0[value] = self.analysis.entry(self.module, value);
        }
        self.facts.0[value].clone()
    }

    /// Joins a fact to that of a value behind a port, and widens the fact if it has changed often. Every cycle of values
    /// leads through an input of a body or function, and backward through an output.
    fn cross(&mut self, ports: &Ports, port: usize, to: Value, fact: A::Fact) {
        let fact = self.analysis.cross(self.module, ports, port, fact);
        let to = resolve_captures(self.module, to);
        let before = &self.facts.0[to];
        let mut joined = before.join(&fact);
        if joined == *before {
            return;
        }
        let begins_cycle = match A::DIRECTION {
            Direction::Forward => matches!(self.module.value(to).def, Def::Input { .. }),
            Direction::Backward => true,
        };
        if begins_cycle && self.changes[to] >= PATIENCE {
            joined = before.widen(&joined);
        }
        self.changes[to] = self.changes[to].saturating_add(1);
        self.set(to, joined);
    }

    /// Joins a fact to that of a value.
    fn push(&mut self, value: Value, fact: &A::Fact) {
        let value = resolve_captures(self.module, value);
        let before = &self.facts.0[value];
        let joined = before.join(fact);
        if joined != *before {
            self.set(value, joined);
        }
    }

    fn set(&mut self, value: Value, fact: A::Fact) {
        self.facts.0[value] = fact;
        match A::DIRECTION {
            Direction::Forward => self.visit_readers(value),
            Direction::Backward => self.visit_producer(value),
        }
    }

    fn visit_readers(&mut self, value: Value) {
        let module = self.module;
        let mut work = vec![value];
        while let Some(value) = work.pop() {
            for (node, slot) in module.uses(value) {
                let data = module.node(node);
                if slot as usize >= data.n_formal() {
                    work.extend(data.bodies().flat_map(|body| module.graph(body).captures_of(slot)));
                } else {
                    self.pending.insert(self.places[node].0);
                }
            }
            if module.output_slots(value).next().is_some() {
                for &node in owners(module, &module.graph(module.value(value).graph).owner) {
                    self.pending.insert(self.places[node].1);
                }
            }
        }
    }

    fn visit_producer(&mut self, value: Value) {
        let data = self.module.value(value);
        match &data.def {
            Def::Result { node, .. } => {
                // The result of a state is read by its operand too.
                let (first, last) = self.places[*node];
                self.pending.insert(first);
                self.pending.insert(last);
            }
            Def::Input { .. } => {
                for &node in owners(self.module, &self.module.graph(data.graph).owner) {
                    let (first, last) = self.places[node];
                    self.pending.insert(first);
                    self.pending.insert(last);
                }
            }
            Def::Capture { .. } | Def::Constant(_) | Def::Erased => {}
        }
    }
}

#[cfg(test)]
mod tests;
