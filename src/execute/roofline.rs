//! Lower bounds on the time of a plan on a target: the roofline model, step by step.
//!
//! ```text
//! least(step)  =  max(bytes / bandwidth, multiplications and additions / rate, operations on elements / rate)
//!                 + launches · launch overhead
//! ```
//!
//! A step reads each operand once and writes each result once, and takes one launch; views and nodes with bodies cost
//! nothing. Operators that only move elements read no more elements than they write. A batch normalization that
//! computes statistics reads its operand twice. The rates are those of a [`Profile`], the work is that of its cost
//! model ([`ampc_passes::cost::amount`]), and the format is that of the first float operand. A real kernel may launch
//! more often and read more: the bound is not a prediction.
//!
//! [`least`] compares the bytes of the plan with the least possible bytes.

mod least;
mod rereads;

pub use least::{LeastBytes, Region, least};

use ampc_ir::op::{OpKind, Work, work};
use ampc_ir::views::NodeView;
use ampc_ir::{DType, GraphId, Module, Node, Value};
use ampc_passes::Profile;
use ampc_passes::cost::{Amount, Executions, Extents, Sizes, amount};
use ampc_passes::target::picoseconds;
use ampc_runtime::plan::{GraphPlan, Step};
use ampc_runtime::session::Plans;
use std::collections::BTreeMap;

/// The resource that determines the lower bound of a step's time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bottleneck {
    /// The bandwidth of the memory.
    Memory,
    /// The rate of products or of operations on elements.
    Arithmetic,
    /// The launch.
    Launch,
    /// The step takes no time: it launches nothing.
    Nothing,
}

impl Bottleneck {
    /// The name of the resource in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Bottleneck::Memory => "memory",
            Bottleneck::Arithmetic => "arithmetic",
            Bottleneck::Launch => "launch",
            Bottleneck::Nothing => "-",
        }
    }
}

/// The work of one or more steps. Sums saturate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Load {
    /// The number of bytes read: each operand from outside of the step once.
    pub read: u64,
    /// The number of bytes written: each result that is read outside of the step once.
    pub written: u64,
    /// The number of multiplications and additions of products and convolutions.
    pub product: u64,
    /// The number of element-wise operations.
    pub elementwise: u64,
    /// The minimum number of launched kernels.
    pub launches: u64,
    /// The minimum time in picoseconds; 0 without a target.
    pub least: u64,
}

impl Load {
    /// The number of bytes read and written.
    pub fn bytes(&self) -> u64 {
        self.read.saturating_add(self.written)
    }

    /// The sum of two loads.
    #[must_use]
    pub fn and(&self, other: &Load) -> Load {
        Load {
            read: self.read.saturating_add(other.read),
            written: self.written.saturating_add(other.written),
            product: self.product.saturating_add(other.product),
            elementwise: self.elementwise.saturating_add(other.elementwise),
            launches: self.launches.saturating_add(other.launches),
            least: self.least.saturating_add(other.least),
        }
    }

    /// This work, multiplied by `of / scale` and rounded down.
    fn times(&self, of: u64, scale: u64) -> Load {
        let times = |n: u64| {
            u64::try_from(u128::from(n) * u128::from(of) / u128::from(scale.max(1))).unwrap_or(u64::MAX)
        };
        Load {
            read: times(self.read),
            written: times(self.written),
            product: times(self.product),
            elementwise: times(self.elementwise),
            launches: times(self.launches),
            least: times(self.least),
        }
    }
}

/// A step of a plan with its lower bound, for one execution of its graph.
#[derive(Clone, Debug)]
pub struct StepBound {
    /// The nodes, as the given module and observers name them, without the copies that advance states.
    pub nodes: Vec<Node>,
    /// The names of the operators.
    pub operators: Vec<String>,
    /// Its work.
    pub load: Load,
    /// The resource that bounds its time.
    pub bottleneck: Bottleneck,
}

/// The steps of a graph with their lower bounds.
#[derive(Clone, Debug)]
pub struct GraphBound {
    /// The graph, of the module of the plans.
    pub graph: GraphId,
    /// The name of the graph.
    pub name: String,
    /// The number of executions per run, rounded up; assumed if it depends on data.
    pub executions: u64,
    /// Its steps, in order.
    pub steps: Vec<StepBound>,
    /// The work of one execution.
    pub total: Load,
}

/// The lower bounds of all plans of a module.
#[derive(Clone, Debug)]
pub struct Roofline {
    /// The executed graphs, including the main graph.
    pub graphs: Vec<GraphBound>,
    /// The work of one run, including all executions of bodies.
    pub total: Load,
}

impl Roofline {
    /// The lower bounds of plans on a target. Without a target, there are no times.
    pub fn of(plans: &Plans, target: Option<&Profile>) -> Roofline {
        let module = plans.module();
        let sizes = Sizes::of(module, &BTreeMap::new());
        let executions = Executions::count(module, &sizes);
        let mut roofline = Roofline { graphs: Vec::new(), total: Load::default() };
        for plan in plans.plans() {
            let (of, scale) = (executions.of(plan.graph).unsigned_abs(), executions.scale().unsigned_abs());
            if of == 0 {
                continue;
            }
            let bounds = StepBounds { plans, plan, sizes: &sizes, target };
            let steps: Vec<StepBound> =
                plan.steps.iter().map(|step| bounds.step(step)).chain(bounds.copies()).collect();
            let total = steps.iter().fold(Load::default(), |sum, step| sum.and(&step.load));
            roofline.total = roofline.total.and(&total.times(of, scale));
            let name = module.text(module.graph(plan.graph).name).to_owned();
            let executions = of.div_ceil(scale.max(1));
            roofline.graphs.push(GraphBound { graph: plan.graph, name, executions, steps, total });
        }
        roofline
    }

    /// The work of one execution of the steps with these nodes: the mean, if the nodes were copied for several calls
    /// of one function.
    pub fn load_of(&self, nodes: &[Node]) -> Option<Load> {
        let same = || self.graphs.iter().flat_map(|graph| &graph.steps).filter(|step| step.nodes == nodes);
        let sum = same().map(|step| step.load).reduce(|sum, load| sum.and(&load))?;
        Some(sum.times(1, same().count() as u64))
    }
}

/// The plan of a graph and the target.
struct StepBounds<'a> {
    plans: &'a Plans,
    plan: &'a GraphPlan,
    sizes: &'a Sizes,
    target: Option<&'a Profile>,
}

impl StepBounds<'_> {
    fn module(&self) -> &Module {
        self.plans.module()
    }

    fn step(&self, step: &Step) -> StepBound {
        let module = self.module();
        let name = |&node: &Node| module.op_name(node).1.to_owned();
        let nodes = step.nodes.iter().map(|&node| self.plans.source(node)).collect();
        let operators = step.nodes.iter().map(name).collect();
        if step.view || step.nodes.iter().any(|&node| is_nested(module, node)) {
            return StepBound { nodes, operators, load: Load::default(), bottleneck: Bottleneck::Nothing };
        }
        let [read, written] = traffic(module, self.plan, step);
        let mut load = Load { read, written, launches: 1, ..Load::default() };
        let (mut products, mut elements) = (0u64, 0u64);
        for &node in &step.nodes {
            let Some(view) = NodeView::new(module, node) else { continue };
            let Amount { product, elementwise } = amount(&view, Extents { module, sizes: self.sizes });
            load.product = load.product.saturating_add(product);
            load.elementwise = load.elementwise.saturating_add(elementwise);
            if let Some(target) = self.target {
                let format = format(&view);
                let inside = if target.is_fp32_inside(view.schema) { DType::F32 } else { format };
                products = products.saturating_add(picoseconds(product, target.matmul.of(format)));
                elements = elements.saturating_add(picoseconds(elementwise, target.elementwise.of(inside)));
            }
        }
        let bottleneck = self.bound(&mut load, products.max(elements));
        StepBound { nodes, operators, load, bottleneck }
    }

    /// The copies of next states to the places of states.
    fn copies(&self) -> Option<StepBound> {
        let copied = self.plan.states.iter().filter(|state| state.copied);
        let bytes = copied.clone().map(|state| bytes_of(self.plan, state.next)).sum();
        let mut load =
            Load { read: bytes, written: bytes, launches: copied.count() as u64, ..Load::default() };
        (load.launches > 0).then(|| {
            let bottleneck = self.bound(&mut load, 0);
            StepBound { nodes: Vec::new(), operators: vec!["copies of states".to_owned()], load, bottleneck }
        })
    }

    /// Sets the minimum time, from the picoseconds of the arithmetic.
    fn bound(&self, load: &mut Load, arithmetic: u64) -> Bottleneck {
        let Some(target) = self.target else { return Bottleneck::Nothing };
        let memory = picoseconds(load.bytes(), target.memory.value);
        let launch = load.launches.saturating_mul(target.node_launch.value);
        load.least = memory.max(arithmetic).saturating_add(launch);
        match (memory.max(arithmetic) > launch, memory >= arithmetic) {
            (false, _) => Bottleneck::Launch,
            (true, true) => Bottleneck::Memory,
            (true, false) => Bottleneck::Arithmetic,
        }
    }
}

/// True if a node has bodies or is a call: other graphs have its work.
fn is_nested(module: &Module, node: Node) -> bool {
    let data = module.node(node);
    data.schema().is_none() || data.bodies().next().is_some()
}

/// The size of a planned value in bytes; 0 if it is unknown before the computation.
fn bytes_of(plan: &GraphPlan, index: u32) -> u64 {
    let tensor = plan.values[index as usize].tensor.as_ref();
    tensor.and_then(|(dtype, dims)| dtype.tensor_bytes(dims)).unwrap_or(0)
}

/// The numbers of bytes that a step reads and writes.
fn traffic(module: &Module, plan: &GraphPlan, step: &Step) -> [u64; 2] {
    let mut operands: Vec<u32> = step.operands.iter().flatten().copied().collect();
    operands.sort_unstable();
    operands.dedup();
    let sum = |of: &mut dyn Iterator<Item = u64>| of.fold(0, u64::saturating_add);
    let written = sum(&mut step.results.iter().flatten().map(|&index| bytes_of(plan, index)));
    let most = moved_elements(module, &step.nodes);
    let read = |index: u32| match (most, &plan.values[index as usize].tensor) {
        (Some(most), Some((dtype, _))) => {
            bytes_of(plan, index).min(dtype.storage_bytes(most).unwrap_or(u64::MAX))
        }
        _ => bytes_of(plan, index),
    };
    let statistics = step.nodes.iter().map(|&node| statistics_bytes(module, node));
    let rereads = std::iter::once(rereads::reread_bytes(module, plan, step));
    let read = sum(&mut operands.into_iter().map(read).chain(statistics).chain(rereads));
    [read, written]
}

/// The maximum number of elements that a node reads of an operand, if it is a single node that only moves elements:
/// the number that it writes.
fn moved_elements(module: &Module, nodes: &[Node]) -> Option<u64> {
    let [node] = nodes else { return None };
    let data = module.node(*node);
    let is_move = data.schema().is_some_and(|schema| work(schema.kind) == Work::Move);
    let elements = data.results().iter().flatten().map(|&value| elements(module, value));
    is_move.then(|| elements.fold(0, u64::saturating_add))
}

/// The number of elements of a tensor with known dims; 0 for other values.
fn elements(module: &Module, value: Value) -> u64 {
    let dims = module.value(value).ty.as_tensor().and_then(|tensor| tensor.shape.to_known());
    dims.map_or(0, |dims| dims.iter().fold(1, |n: u64, &dim| n.saturating_mul(dim)))
}

/// The bytes that a batch normalization reads a second time, because it normalizes with statistics of the same
/// operand.
fn statistics_bytes(module: &Module, node: Node) -> u64 {
    let data = module.node(node);
    let is_norm = data.schema().is_some_and(|schema| schema.kind == OpKind::BatchNormalization);
    let has_statistics = data.results().iter().skip(1).any(Option::is_some);
    let operand = data.operand(0).filter(|_| is_norm && has_statistics);
    operand
        .and_then(|value| module.value(value).ty.as_tensor().and_then(|tensor| tensor.storage_bytes()))
        .unwrap_or(0)
}

/// The format in which a node computes: that of its first float operand, or else of its first float result.
fn format(view: &NodeView<'_>) -> DType {
    let data = view.data();
    let values = data.formal_operands().iter().chain(data.results()).flatten();
    let dtypes = values.filter_map(|&value| view.module.value(value).ty.dtype());
    dtypes.into_iter().find(|dtype| dtype.is_float()).unwrap_or(DType::F32)
}

#[cfg(test)]
mod tests;
