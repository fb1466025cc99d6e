//! The order of execution, in which the solver visits nodes.

use super::Direction;
use ampc_ir::module::{GraphOwner, Op};
use ampc_ir::ports::Ports;
use ampc_ir::{GraphId, Module, Node};
use rustc_hash::FxHashSet;
use std::collections::BTreeSet;

/// A step of the execution of a module.
#[derive(Clone, Copy)]
pub(super) enum Step {
    /// A node computes its results.
    Compute(Node),
    /// A node with ports passes operands on.
    Enter(Node),
    /// A node with ports takes the outputs of its bodies.
    Leave(Node),
}

/// The steps to visit, in the order of execution or, backward, against it: every step once, and again when its facts
/// changed.
pub(super) struct Worklist {
    n_steps: usize,
    direction: Direction,
    /// The number of steps that were visited once, in the order of visits.
    visited: usize,
    /// The visited steps to visit again, by their number in the order of visits.
    again: BTreeSet<usize>,
}

impl Worklist {
    pub(super) fn new(n_steps: usize, direction: Direction) -> Worklist {
        Worklist { n_steps, direction, visited: 0, again: BTreeSet::new() }
    }

    /// The step at a place in the order of visits, or the place of a step.
    fn turned(&self, at: usize) -> usize {
        match self.direction {
            Direction::Forward => at,
            Direction::Backward => self.n_steps - 1 - at,
        }
    }

    /// Adds a step.
    pub(super) fn insert(&mut self, step: usize) {
        let at = self.turned(step);
        if at < self.visited {
            self.again.insert(at);
        }
    }

    /// Takes the first step.
    pub(super) fn pop(&mut self) -> Option<usize> {
        let first = self.again.pop_first().or_else(|| {
            let is_left = self.visited < self.n_steps;
            self.visited += usize::from(is_left);
            is_left.then(|| self.visited - 1)
        });
        first.map(|at| self.turned(at))
    }
}

/// The nodes through which values enter and leave a graph.
pub(super) fn owners<'a>(module: &'a Module, owner: &'a GraphOwner) -> &'a [Node] {
    match owner {
        GraphOwner::Body { node, .. } => std::slice::from_ref(node),
        GraphOwner::Function(function) => module.calls(*function),
        GraphOwner::Main | GraphOwner::Erased => &[],
    }
}

/// The steps of all graphs in the order of execution: bodies between the two steps of their node, a function within its
/// first call, and functions without calls at the end.
pub(super) fn steps(module: &Module) -> Vec<Step> {
    enum Work {
        Nodes(Node),
        Leave(Node),
    }
    let (mut steps, mut seen) = (Vec::with_capacity(module.n_nodes()), FxHashSet::default());
    let roots = std::iter::once(module.main()).chain(module.functions().map(|(_, data)| data.graph));
    for root in roots {
        let first = |graph: GraphId| module.nodes(graph).next().map(Work::Nodes);
        let mut work: Vec<Work> = seen.insert(root).then(|| first(root)).flatten().into_iter().collect();
        while let Some(next) = work.pop() {
            let node = match next {
                Work::Leave(node) => {
                    steps.push(Step::Leave(node));
                    continue;
                }
                Work::Nodes(node) => node,
            };
            let data = module.node(node);
            work.extend(data.next().map(Work::Nodes));
            let has_ports = Ports::of(module, node).is_some();
            steps.push(if has_ports { Step::Enter(node) } else { Step::Compute(node) });
            work.extend(has_ports.then_some(Work::Leave(node)));
            let called = match data.op {
                Op::Call(function) => Some(module.function(function).graph),
                _ => None,
            };
            let graphs: Vec<GraphId> =
                data.bodies().chain(called).filter(|&graph| seen.insert(graph)).collect();
            work.extend(graphs.into_iter().rev().filter_map(first));
        }
    }
    steps
}
