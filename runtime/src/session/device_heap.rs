//! The device memory of the graphs of a program, besides constants and inputs: arenas, and heap values, which are
//! allocated outside of arenas while a graph runs.
//!
//! The prediction visits graphs in the order of a run. A running graph keeps an arena for each body and function below
//! it, and frees a heap value after its last reader. For
//!
//! ```text
//! %y = If(%c) {then { %p = Conv(…) output %p }, else { %q = Relu(…) output %q }}
//! ```
//!
//! the prediction has the arenas of both branches, and the larger of %p and %q.

use super::bind::Program;
use super::control::is_control;
use super::walk::is_nested;
use crate::plan::{GraphPlan, Place, Step};
use ampc_ir::module::Op;
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::views::control::ScanView;
use ampc_ir::{DType, GraphId, Node, Type};
use rustc_hash::FxHashMap;

/// The relation of predicted bytes to the bytes that a run allocates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Certainty {
    /// Every run allocates these bytes.
    #[default]
    Exact,
    /// No run allocates more. Branches and numbers of iterations decide the amount.
    AtMost,
    /// Runs may allocate more: sizes or numbers of iterations are known only while a graph runs.
    AtLeast,
}

/// The device memory of graphs, in bytes.
pub(super) struct MemoryPrediction<'a> {
    program: &'a Program,
    arenas: FxHashMap<GraphId, u64>,
    heaps: FxHashMap<GraphId, u64>,
    pub(super) certainty: Certainty,
}

impl<'a> MemoryPrediction<'a> {
    pub(super) fn new(program: &'a Program) -> MemoryPrediction<'a> {
        let (arenas, heaps) = (FxHashMap::default(), FxHashMap::default());
        MemoryPrediction { program, arenas, heaps, certainty: Certainty::Exact }
    }

    /// The arenas of a graph and of all graphs nested in it.
    pub(super) fn arenas(&mut self, graph: GraphId) -> u64 {
        if let Some(&known) = self.arenas.get(&graph) {
            return known;
        }
        let plan = self.program.plan(graph);
        let mut below: Vec<GraphId> =
            plan.steps.iter().flat_map(|step| self.graphs_of(step.node())).collect();
        below.sort_unstable();
        below.dedup();
        let mut bytes = plan.arena as u64;
        for graph in below {
            bytes = bytes.saturating_add(self.arenas(graph));
        }
        self.arenas.insert(graph, bytes);
        bytes
    }

    /// The bodies of a node, or the function that it calls.
    fn graphs_of(&self, node: Node) -> Vec<GraphId> {
        let module = &self.program.module;
        let data = module.node(node);
        match data.op {
            Op::Call(function) => vec![module.function(function).graph],
            Op::Schema(schema) if is_control(schema.kind) => data.bodies().collect(),
            Op::Schema(_) | Op::Custom { .. } => Vec::new(),
        }
    }

    fn is_at_least(&mut self, certainty: Certainty) {
        self.certainty = self.certainty.max(certainty);
    }

    /// The size of a value on the device, in bytes.
    fn bytes(&mut self, plan: &GraphPlan, index: u32) -> u64 {
        let planned = &plan.values[index as usize];
        let module = &self.program.module;
        let bytes = match (&planned.tensor, module.value(planned.value).ty.as_tensor()) {
            // Strings are in host memory.
            (_, Some(ty)) if ty.dtype == DType::String => Some(0),
            (Some((dtype, dims)), _) => dtype.tensor_bytes(dims),
            (None, _) => None,
        };
        if bytes.is_none() {
            self.is_at_least(Certainty::AtLeast);
        }
        bytes.unwrap_or(0)
    }

    /// The peak of bytes outside of arenas while the main graph runs.
    pub(super) fn main(&mut self) -> u64 {
        let graph = self.program.module.main();
        self.steps(self.program.plan(graph), 0).0
    }

    /// The peak of bytes outside of arenas while a body or function runs, including its outputs.
    fn body(&mut self, graph: GraphId) -> u64 {
        if let Some(&known) = self.heaps.get(&graph) {
            return known;
        }
        let plan = self.program.plan(graph);
        let inputs = 0..self.program.module.graph(graph).inputs().len();
        let owned = inputs.filter_map(|at| u32::try_from(at).ok()).filter(|&at| is_on_heap(plan, at));
        let owned: Vec<u64> = owned.map(|at| self.bytes(plan, at)).collect();
        let (most, mut held) = self.steps(plan, owned.iter().sum());
        for (i, &output) in plan.outputs.iter().enumerate() {
            // Heap values are moved, other values are copied.
            if !is_on_heap(plan, output) || plan.outputs[i + 1..].contains(&output) {
                held = held.saturating_add(self.bytes(plan, output));
            }
        }
        let most = most.max(held);
        self.heaps.insert(graph, most);
        most
    }

    /// The peak of heap bytes while the steps of a plan run, starting from `held` bytes, and the heap bytes after
    /// them.
    fn steps(&mut self, plan: &GraphPlan, mut held: u64) -> (u64, u64) {
        let mut most = held;
        for step in &plan.steps {
            if is_nested(&self.program.module, step.node()) {
                let inside = self.nested(plan, step);
                most = most.max(held.saturating_add(inside));
            } else if !step.view && self.program.prepared(step.node()).is_none() && !step.nodes.is_empty() {
                // The kernel is prepared while the graph runs, so its scratch memory is unknown.
                self.is_at_least(Certainty::AtLeast);
            }
            if step.moves(plan) {
                self.is_at_least(Certainty::AtLeast);
            }
            for &result in step.results.iter().flatten().filter(|&&result| is_on_heap(plan, result)) {
                held = held.saturating_add(self.bytes(plan, result));
            }
            most = most.max(held);
            for &value in &step.ends {
                held = held.saturating_sub(self.bytes(plan, value));
            }
        }
        (most, held)
    }

    /// The peak of bytes outside of arenas while a node with bodies or a call runs, including its results.
    fn nested(&mut self, plan: &GraphPlan, step: &Step) -> u64 {
        let program = self.program;
        let node = step.node();
        let Op::Schema(schema) = program.module.node(node).op else {
            return self.graphs_of(node).into_iter().map(|graph| self.body(graph)).max().unwrap_or(0);
        };
        let graphs = self.graphs_of(node);
        match (schema.kind, &graphs[..]) {
            (OpKind::If, _) => {
                self.is_at_least(Certainty::AtMost);
                graphs.into_iter().map(|graph| self.body(graph)).max().unwrap_or(0)
            }
            (OpKind::Loop, &[body]) => self.run_loop(plan, step, body),
            (OpKind::Scan, &[body]) => self.scan(plan, step, body),
            _ => {
                self.is_at_least(Certainty::AtLeast);
                graphs.into_iter().map(|graph| self.body(graph)).max().unwrap_or(0)
            }
        }
    }

    fn run_loop(&mut self, plan: &GraphPlan, step: &Step, body: GraphId) -> u64 {
        let program = self.program;
        let inner = program.plan(body);
        let n_state = step.n_formal.saturating_sub(2);
        let trips = step.operands.first().copied().flatten();
        // A caller may replace the default of an input, although it is a constant.
        let constant = |index: u32| {
            let planned = &plan.values[index as usize];
            (planned.place == Place::Constant).then(|| program.constant_on_host(planned.value))?
        };
        let trips = trips.and_then(constant).and_then(|data| data.tensor()?.ints()?.next());
        // Loops that end by their condition have the maximum number of iterations as trip count.
        let trips = trips.and_then(|trips| u32::try_from(trips.max(0)).ok()).map(u64::from);
        // States that the body does not take over are held during its iteration.
        let carried = (0..n_state).filter(|i| u32::try_from(2 + i).is_ok_and(|at| !is_on_heap(inner, at)));
        let carried: Vec<usize> = carried.map(|i| 1 + i).collect();
        // The iteration number and the condition.
        let scalars = 8 + 1;
        let all = (1..inner.outputs.len()).map(|i| (i, i > n_state)).collect::<Vec<_>>();
        self.iterations(body, trips, scalars, &carried, &all)
    }

    fn scan(&mut self, plan: &GraphPlan, step: &Step, body: GraphId) -> u64 {
        let program = self.program;
        let inner = program.plan(body);
        let view = NodeView::new(&program.module, step.node()).and_then(|view| ScanView::read(&view).ok());
        let Some(scan) = view.filter(|scan| scan.batch == 0) else {
            self.is_at_least(Certainty::AtLeast);
            return self.body(body);
        };
        let mut trips = None;
        let mut slices = 0u64;
        for (i, index) in step.operands[..step.n_formal].iter().enumerate().skip(scan.n_state) {
            let Some(index) = *index else { continue };
            let ty: Option<&Type> = Some(&program.module.value(plan.values[index as usize].value).ty);
            let dims = ty.and_then(Type::as_tensor).and_then(|ty| ty.shape.to_known());
            let axis = scan.input_axes.get(i - scan.n_state).copied().unwrap_or(0);
            let extent = dims.and_then(|dims| {
                let rank = i64::try_from(dims.len()).ok()?;
                let axis = usize::try_from(if axis < 0 { axis + rank } else { axis }).ok()?;
                dims.get(axis).copied()
            });
            trips = trips.or(extent);
            slices = slices.saturating_add(self.bytes(plan, index) / extent.unwrap_or(1).max(1));
        }
        let carried: Vec<usize> = (0..scan.n_state).collect();
        let all: Vec<(usize, bool)> = (0..inner.outputs.len()).map(|i| (i, i >= scan.n_state)).collect();
        self.iterations(body, trips, slices, &carried, &all)
    }

    /// The peak of bytes of iterations. `each` bytes are allocated per iteration, `carried` are the outputs of the
    /// last iteration that the next iteration reads, and `all` has the outputs that stay, with true for stacked
    /// outputs.
    fn iterations(
        &mut self,
        body: GraphId,
        trips: Option<u64>,
        each: u64,
        carried: &[usize],
        all: &[(usize, bool)],
    ) -> u64 {
        let plan = self.program.plan(body);
        let sum = |sizes: &[u64]| sizes.iter().copied().fold(0, u64::saturating_add);
        let mut sizes = |is_stacked: bool| -> Vec<u64> {
            let of_kind = all.iter().filter(|&&(_, stacked)| stacked == is_stacked);
            let outputs: Vec<u32> = of_kind.map(|&(i, _)| plan.outputs[i]).collect();
            outputs.into_iter().map(|output| self.bytes(plan, output)).collect()
        };
        let (states, rows) = (sizes(false), sizes(true));
        let held: Vec<u64> = carried.iter().map(|&i| self.bytes(plan, plan.outputs[i])).collect();
        let row = sum(&rows);
        let is_known = trips.is_some() || row == 0;
        self.is_at_least(if is_known { Certainty::AtMost } else { Certainty::AtLeast });
        let trips = trips.unwrap_or(2);
        let before = if trips > 1 { sum(&held) } else { 0 };
        let made = row.saturating_mul(trips.saturating_sub(1));
        let inside = [each, before, made, self.body(body)].into_iter().fold(0, u64::saturating_add);
        let widest = rows.iter().copied().max().unwrap_or(0);
        let stacked = row.saturating_add(widest).saturating_mul(trips).saturating_add(sum(&states));
        inside.max(stacked)
    }
}

fn is_on_heap(plan: &GraphPlan, index: u32) -> bool {
    plan.values[index as usize].place == Place::Heap
}
