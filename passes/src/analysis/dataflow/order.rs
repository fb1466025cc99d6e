//! The order of execution, in which the solver visits nodes.

use ampc_ir::module::{GraphOwner, Op};
use ampc_ir::ports::Ports;
use ampc_ir::{GraphId, Module, Node};
use rustc_hash::FxHashSet;

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
