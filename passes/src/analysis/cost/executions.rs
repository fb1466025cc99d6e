//! The number of executions of each graph in a run of the model.
//!
//! An If takes each branch in half of the runs. To keep counts whole, they are in units of 1 / [`Executions::scale`]:
//! the main graph counts as run `scale` times. The scale is a power of two; its exponent is the depth of nested
//! branches, but at most [`MAX_DEPTH`]. Deeper than that, a branch counts as always taken.
//!
//! Example: a Loop with 5 iterations in a branch of an If. Branches are nested 1 deep, so the scale is 2. The main graph
//! counts 2, the branch 1, and the body of the Loop 5.

use super::extents::{Extents, Sizes};
use ampc_ir::module::GraphOwner;
use ampc_ir::op::OpKind;
use ampc_ir::views::{NodeView, constant_of, resolve_captures};
use ampc_ir::{GraphId, Module, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// The depth to which nested branches are counted.
pub const MAX_DEPTH: u32 = 10;
/// The number at which the executions of a graph are capped.
const MAX: i64 = 1 << 20;

/// The number of executions of the graphs of a module.
#[derive(Clone, Debug)]
pub struct Executions {
    of: FxHashMap<GraphId, i64>,
    scale: i64,
    /// The largest number in `of`, but at least `scale`.
    most: i64,
    /// The number of loops whose number of iterations is unknown.
    pub unknown_loops: usize,
    /// The number of Ifs.
    pub branches: usize,
}

/// Relation of a graph to the graph that runs it.
#[derive(Clone, Copy)]
enum Step {
    Branch,
    Body(i64),
    Call,
}

impl Executions {
    /// Counts all graphs once, for costs that do not depend on the number of executions.
    pub fn once() -> Executions {
        Executions { of: FxHashMap::default(), scale: 1, most: 1, unknown_loops: 0, branches: 0 }
    }

    /// Counts the executions of all graphs.
    pub fn count(module: &Module, sizes: &Sizes) -> Executions {
        let order = outside_in(module);
        let mut depth: FxHashMap<GraphId, u32> = FxHashMap::default();
        for &graph in &order {
            let deepest = parents(module, graph).into_iter().map(|(around, node)| {
                let own = u32::from(node.is_some_and(|node| kind(module, node) == Some(OpKind::If)));
                depth.get(&around).copied().unwrap_or(0).saturating_add(own)
            });
            let deepest = deepest.max().unwrap_or(0);
            depth.insert(graph, deepest);
        }
        let scale = 1 << depth.values().copied().max().unwrap_or(0).min(MAX_DEPTH);
        let mut executions = Executions { scale, most: scale, ..Executions::once() };
        let mut nodes: FxHashSet<Node> = FxHashSet::default();
        for &graph in &order {
            let mut runs: i64 = 0;
            let parents = parents(module, graph);
            for &(around, node) in &parents {
                let step = node.map_or(Step::Call, |node| {
                    executions.step(module, sizes, node, depth[&graph], nodes.insert(node))
                });
                let outer = executions.of(around);
                runs = runs.saturating_add(match step {
                    Step::Branch => outer / 2,
                    Step::Body(trips) => outer.saturating_mul(trips),
                    Step::Call => outer,
                });
            }
            // The main graph, and graphs that nothing runs.
            let runs = if parents.is_empty() { scale } else { runs.min(MAX) };
            executions.of.insert(graph, runs);
            executions.most = executions.most.max(runs);
        }
        executions
    }

    /// The number of executions of a graph, in units of 1 / [`scale`](Self::scale).
    pub fn of(&self, graph: GraphId) -> i64 {
        self.of.get(&graph).copied().unwrap_or(self.scale)
    }

    /// The number of executions of the most frequent graph.
    pub fn most(&self) -> i64 {
        self.most
    }

    /// The number of executions of the main graph.
    pub fn scale(&self) -> i64 {
        self.scale
    }

    fn step(&mut self, module: &Module, sizes: &Sizes, node: Node, depth: u32, is_new: bool) -> Step {
        let assumed = i64::try_from(sizes.trips).unwrap_or(i64::MAX);
        let known = match kind(module, node) {
            Some(OpKind::If) => {
                self.branches += usize::from(is_new);
                return if depth <= MAX_DEPTH { Step::Branch } else { Step::Body(1) };
            }
            Some(OpKind::Loop) => loop_trips(module, node, assumed),
            Some(OpKind::Scan) => scan_trips(module, sizes, node),
            Some(OpKind::SequenceMap) => None,
            _ => Some(1),
        };
        self.unknown_loops += usize::from(is_new && known.is_none());
        Step::Body(known.unwrap_or(assumed))
    }
}

fn kind(module: &Module, node: Node) -> Option<OpKind> {
    module.node(node).schema().map(|schema| schema.kind)
}

/// The graphs that run a graph, with the node if the graph is a body.
fn parents(module: &Module, graph: GraphId) -> Vec<(GraphId, Option<Node>)> {
    match module.graph(graph).owner {
        GraphOwner::Main | GraphOwner::Erased => Vec::new(),
        GraphOwner::Body { node, .. } => vec![(module.node(node).graph, Some(node))],
        GraphOwner::Function(function) => {
            module.calls(function).iter().map(|&call| (module.node(call).graph, None)).collect()
        }
    }
}

/// All graphs, each after the graphs that run it.
fn outside_in(module: &Module) -> Vec<GraphId> {
    let (mut order, mut seen) = (Vec::new(), FxHashSet::default());
    for first in module.graph_ids() {
        // A graph is pushed twice: the second entry is popped after the graphs that run it and appends it to the order.
        let mut work = vec![(first, false)];
        while let Some((graph, left)) = work.pop() {
            if left {
                order.push(graph);
            } else if seen.insert(graph) {
                work.push((graph, true));
                work.extend(parents(module, graph).into_iter().map(|(around, _)| (around, false)));
            }
        }
    }
    order
}

/// The number of iterations of a Loop: its trip count if its condition stays true. With another condition, the trip
/// count is a bound, and counts only if it is below the assumed number.
fn loop_trips(module: &Module, node: Node, assumed: i64) -> Option<i64> {
    let view = NodeView::new(module, node)?;
    let given = match view.known_ints(0)?.as_slice() {
        &[trips] => trips.max(0),
        _ => return None,
    };
    (stays_true(module, node) || given < assumed).then_some(given)
}

/// True if the condition of a Loop is true at the start and passed through by its body.
fn stays_true(module: &Module, node: Node) -> bool {
    let is_true = |value| {
        let data = constant_of(module, value)?;
        Some(data.element_count() == 1 && data.small_ints(1)?.first() == Some(&1))
    };
    let begins = module.node(node).operand(1).is_none_or(|value| is_true(value) == Some(true));
    let goes_on = |body: GraphId| {
        let graph = module.graph(body);
        let Some(output) = graph.outputs().first() else { return false };
        let behind = behind_identities(module, output.value);
        graph.inputs().get(1) == Some(&behind) || is_true(behind) == Some(true)
    };
    begins && module.node(node).bodies().all(goes_on)
}

fn behind_identities(module: &Module, mut value: Value) -> Value {
    loop {
        value = resolve_captures(module, value);
        match module.producer(value) {
            Some((node, _)) if kind(module, node) == Some(OpKind::Identity) => {
                match module.node(node).operand(0) {
                    Some(operand) => value = operand,
                    None => return value,
                }
            }
            Some(_) | None => return value,
        }
    }
}

/// The number of iterations of a Scan: the extent of its last operand along the scanned axis.
fn scan_trips(module: &Module, sizes: &Sizes, node: Node) -> Option<i64> {
    let view = NodeView::new(module, node)?;
    let last = view.n_operands().checked_sub(1)?;
    let dims = view.dims(last)?;
    // Version 8 has the batch as the first axis, and no axes in attributes.
    let axis = view.int_list("scan_input_axes").and_then(|axes| axes.last().copied());
    let axis = axis.unwrap_or(i64::from(view.schema.since < 9));
    let axis = if axis < 0 { axis.checked_add(i64::try_from(dims.len()).ok()?)? } else { axis };
    let dim = *dims.get(usize::try_from(axis).ok()?)?;
    i64::try_from(Extents { module, sizes }.dim(dim)).ok()
}
