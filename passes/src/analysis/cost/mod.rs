//! Cost model: the time of a node in either precision, and the cost of a cast.
//!
//! This is a model of time, not a measurement. The time of a node is the sum of its work (`work.rs`) divided by the
//! rates of a [`Profile`], its bytes divided by the bandwidth of the profile, and a launch. The model takes the *sum*,
//! not the larger of computing and reading, so that the time of a node is a sum over its type variables, which a
//! minimum cut can minimise: computation is charged to the first float variable of the node, bytes are charged to the
//! variable that types them. All costs are whole numbers, equal on every machine.
//!
//! - Costs of [`node_time`](CostModel::node_time) and [`cast_cost`](CostModel::cast_cost) include the number of
//!   executions of their graph, in units of 1 / [`scale`](CostModel::scale)
//!   ([`executions`](CostModel::executions)).
//! - No cost is larger than [`limit`](CostModel::limit), chosen such that the sum of all costs of a module fits
//!   an i64; larger costs, such as the time of a tensor of petabytes, are clamped to it.
//! - The module has to be inferred: a value of unknown type has no size, and costs nothing.
//! - Open dims of the model get assumed sizes, which are listed ([`assumptions`](CostModel::assumptions)).
//! - Casts of constants are done while the model is written. A constant that is read in both precisions is stored
//!   twice, which [`copy_cost`](CostModel::copy_cost) prices.
//! - Values that the target fuses ([`Fusions`]) stay within kernels: under [`Objective::Time`] such a value is
//!   neither written nor read, and a cast of it costs one operation for each element
//!   ([`fused_cast_cost`](CostModel::fused_cast_cost)).
//! - Sequences and optionals pass without work, and so do values that pass through ports of bodies and calls.

mod executions;
mod extents;
mod open_dims;
mod work;

pub use crate::pass::error::UnknownDim;
pub use executions::{Executions, MAX_DEPTH};
pub use extents::{Extents, Sizes};
pub use open_dims::{BoundInputs, OpenDim, SizeSource};
pub use work::{Amount, amount};

use crate::analysis::fusions::Fusions;
use crate::graph::flow::{self, Var};
use crate::spelling::suggest::{did_you_mean, nearest};
use crate::target::{Profile, picoseconds};
use ampc_ir::op::{OpKind, moves, reads_only_dims};
use ampc_ir::views::{NodeView, resolve_captures};
use ampc_ir::{DType, Dim, GraphId, Module, Shape, Type, Value};
use rustc_hash::FxHashSet;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The objective to minimize.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Objective {
    /// The predicted time, in picoseconds.
    #[default]
    Time,
    /// The number of casts in the model, however often they are run.
    Casts,
    /// The bytes that casts read and write.
    Bytes,
}

impl Objective {
    /// All objectives.
    pub const ALL: [Objective; 3] = [Objective::Time, Objective::Casts, Objective::Bytes];

    /// The word that names the objective.
    pub fn as_str(self) -> &'static str {
        match self {
            Objective::Time => "time",
            Objective::Casts => "casts",
            Objective::Bytes => "bytes",
        }
    }

    /// The unit of the costs.
    pub fn unit(self) -> &'static str {
        match self {
            Objective::Time => "ps",
            Objective::Casts => "casts",
            Objective::Bytes => "bytes",
        }
    }
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that is not an objective.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{found}` is not an objective: expected time, casts or bytes{hint}")]
pub struct UnknownObjective {
    /// The word.
    pub found: String,
    /// The nearest objective.
    pub hint: String,
}

impl FromStr for Objective {
    type Err = UnknownObjective;
    fn from_str(word: &str) -> Result<Objective, UnknownObjective> {
        let words = Objective::ALL.map(Objective::as_str);
        Objective::ALL.into_iter().find(|objective| objective.as_str() == word).ok_or_else(|| {
            UnknownObjective { found: word.to_owned(), hint: did_you_mean(nearest(word, words)) }
        })
    }
}

/// The cost of a type variable in either precision.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeTime {
    /// The cost in fp32.
    pub full: i64,
    /// The cost in the 16-bit format.
    pub low: i64,
}

/// An assumption about a quantity that a model leaves open and costs depend on.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Assumption {
    /// The extent of the axes with this name.
    Named {
        /// The name.
        name: String,
        /// The assumed size.
        extent: u64,
    },
    /// The extent of the axes that are a batch, whatever their names.
    Batch {
        /// The assumed extent.
        extent: u64,
    },
    /// The extent of axes without a name.
    Unnamed {
        /// The number of such axes.
        count: u64,
        /// The assumed size of each.
        extent: u64,
    },
    /// The number of elements of tensors of unknown rank.
    Ranks {
        /// The number of such tensors.
        count: u64,
        /// The assumed number of elements of each.
        elements: u64,
    },
    /// The number of iterations of loops of unknown trip count.
    Trips {
        /// The number of such loops.
        count: usize,
        /// The assumed number of iterations of each.
        trips: u64,
    },
    /// The assumed frequency of branches.
    Branches {
        /// The number of Ifs.
        count: usize,
    },
}

impl fmt::Display for Assumption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Assumption::Named { name, extent } => write!(f, "dimension `{name}` is {extent}"),
            Assumption::Batch { extent } => write!(f, "the batch is {extent}"),
            Assumption::Unnamed { count, extent } => write!(f, "unknown dimensions ({count}) are {extent}"),
            Assumption::Ranks { count, elements } => {
                write!(f, "tensors of unknown rank ({count}) have {elements} elements")
            }
            Assumption::Trips { count, trips } => {
                write!(f, "loops of unknown length ({count}) run {trips} times")
            }
            Assumption::Branches { count } => {
                write!(f, "each branch of an If ({count}) runs every other time")
            }
        }
    }
}

/// The costs of a module on a target.
#[derive(Clone, Debug)]
pub struct CostModel<'a> {
    module: &'a Module,
    /// The module with a number for every open dim of its inputs, if the module has dims without a name.
    measured: Option<Arc<Module>>,
    profile: &'a Profile,
    format: DType,
    objective: Objective,
    sizes: Sizes,
    executions: Executions,
    fusions: Fusions,
    limit: i64,
}

impl<'a> CostModel<'a> {
    /// The costs of lowering to a format, for the [`Sizes`] of the module with the dims of the profile.
    pub fn new(
        module: &'a Module,
        profile: &'a Profile,
        format: DType,
        objective: Objective,
    ) -> CostModel<'a> {
        CostModel::with_sizes(module, profile, format, objective, Sizes::of(module, &profile.dims))
    }

    /// The costs of lowering to a format.
    pub fn with_sizes(
        module: &'a Module,
        profile: &'a Profile,
        format: DType,
        objective: Objective,
        sizes: Sizes,
    ) -> CostModel<'a> {
        let measured = has_unknown_dims(module).then(|| measured(module, &sizes)).flatten();
        let executions = match objective {
            Objective::Time | Objective::Bytes => {
                Executions::count(measured.as_deref().unwrap_or(module), &sizes)
            }
            Objective::Casts => Executions::once(),
        };
        // Casts and their bytes are in the file, whatever kernels a target makes of them.
        let fusions = match objective {
            Objective::Time => Fusions::find(module, profile),
            Objective::Casts | Objective::Bytes => Fusions::default(),
        };
        // With V values, U operands and O outputs of graphs, there are at most these costs: a time for each variable
        // that is read or made, 2 · (V + U); casts at the places of values, 2 · (U + O); casts further inside or fused,
        // 2 · U; casts of values that bodies return, 2 · O.
        let nodes = flow::nodes(module);
        let uses: usize = nodes.iter().map(|&node| module.node(node).operands().len()).sum();
        let outputs: usize =
            flow::graphs(module).iter().map(|&graph| module.graph(graph).outputs().len()).sum();
        let read = uses.saturating_mul(3).saturating_add(outputs.saturating_mul(2));
        let terms = module.n_values().saturating_add(module.n_nodes()).saturating_add(read);
        let terms = i64::try_from(terms).unwrap_or(i64::MAX).saturating_add(1);
        let limit = (i64::MAX / terms.saturating_mul(8)).max(1);
        CostModel { module, measured, profile, format, objective, sizes, executions, fusions, limit }
    }

    /// The number of executions of a graph, in units of 1 / [`scale`](Self::scale); 1 under [`Objective::Casts`].
    pub fn executions(&self, graph: GraphId) -> i64 {
        self.executions.of(graph)
    }
    /// The assumed number of executions of the main graph: costs are this multiple of the costs of one run.
    pub fn scale(&self) -> i64 {
        self.executions.scale()
    }
    /// The upper limit of every cost.
    pub fn limit(&self) -> i64 {
        self.limit
    }
    /// Returns the same model for lowering to another format.
    #[must_use]
    pub fn lowering_to(&self, format: DType) -> CostModel<'a> {
        CostModel { format, ..self.clone() }
    }
    /// The objective to minimize.
    pub fn objective(&self) -> Objective {
        self.objective
    }
    /// The fusions of the target, which count under [`Objective::Time`] only.
    pub fn fusions(&self) -> &Fusions {
        &self.fusions
    }
    /// The assumed sizes of open dims.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// The module whose shapes give the sizes of the values: a dim that is computed from open dims of the inputs is a
    /// number.
    ///
    /// Example: for `--dim N=1`, Reshape of `f32[17, N, 96]` to `[17, -1, 24]` makes `f32[17, 4, 24]`. In the module itself the
    /// dim is unknown, and would count as 128.
    pub fn measured(&self) -> &Module {
        self.measured.as_deref().unwrap_or(self.module)
    }

    /// The sizes of the values.
    pub fn extents(&self) -> Extents<'_> {
        Extents { module: self.measured(), sizes: &self.sizes }
    }

    /// The cost of one run of a graph, times the executions of the graph.
    fn in_graph(&self, graph: GraphId, once: u64) -> i64 {
        self.bounded(once).saturating_mul(self.executions(graph))
    }

    /// A cost of one run, clamped so that it stays below the limit however often it is paid: costs in different graphs
    /// stay in the proportion of their executions.
    fn bounded(&self, once: u64) -> i64 {
        i64::try_from(once).unwrap_or(i64::MAX).min((self.limit / self.executions.most()).max(1))
    }

    /// The time that a type variable adds to its node, in either precision, times the executions of the node. 0 under
    /// objectives other than time.
    pub fn node_time(&self, var: Var) -> NodeTime {
        let data = self.module.node(var.node);
        let view = match NodeView::new(self.module, var.node) {
            Some(view) if self.objective == Objective::Time && !flow::is_port(self.module, var) => view,
            Some(_) | None => return NodeTime::default(),
        };
        if self.profile.is_view(view.schema) || view.kind() == OpKind::Constant {
            return NodeTime::default();
        }
        let (full, low) = self.once(&view, var);
        NodeTime { full: self.in_graph(data.graph, full), low: self.in_graph(data.graph, low) }
    }

    /// The picoseconds of one execution, in fp32 and in the format.
    fn once(&self, view: &NodeView<'_>, var: Var) -> (u64, u64) {
        let values = self.values(var);
        let has_kernel = self.profile.has_kernel(view.schema, self.format);
        let (mut full, mut low) = self.transfers(view, &values);
        if !has_kernel {
            low = full.saturating_add(self.round_trip(view, &values));
        }
        if self.computes(var) {
            let measured = self.measured.as_ref().and_then(|module| NodeView::new(module, view.node));
            let amount = amount(measured.as_ref().unwrap_or(view), self.extents());
            let inside = if has_kernel { self.format } else { DType::F32 };
            full = full.saturating_add(self.computing(view, amount, DType::F32));
            low = low.saturating_add(self.computing(view, amount, inside));
        }
        // Integers and fp64 keep their types.
        let stays = !values.iter().any(|&(_, value)| self.is_lowerable(value));
        (full, if stays { full } else { low })
    }

    /// The launch of a node and its computation.
    fn computing(&self, view: &NodeView<'_>, amount: Amount, format: DType) -> u64 {
        let of_elements = if self.profile.is_fp32_inside(view.schema) { DType::F32 } else { format };
        let product = picoseconds(amount.product, self.profile.matmul.of(format));
        let elementwise = picoseconds(amount.elementwise, self.profile.elementwise.of(of_elements));
        self.profile.node_launch.value.saturating_add(product).saturating_add(elementwise)
    }

    /// True if the computation of a node is charged to this variable: the first variable that types floats, or
    /// else the first.
    fn computes(&self, var: Var) -> bool {
        let types_float = |var: &Var| {
            let typed = flow::operands_of(self.module, *var).chain(flow::results_of(self.module, *var));
            typed.map(|(_, value)| value).any(|value| is_float(self.module, value))
        };
        let first = flow::vars(self.module, var.node).find(types_float);
        first.map_or(var.var == 0, |first| first == var)
    }

    /// The values that a variable types, with their side of the node. A value that is read in several slots comes once.
    fn values(&self, var: Var) -> Vec<(Side, Value)> {
        let operands: SmallVec<[_; 4]> = flow::operands_of(self.module, var).collect();
        let mut seen: FxHashSet<Value> = FxHashSet::default();
        // For few operands, a linear search is faster than a set.
        let is_first = |&(i, &(_, value)): &(usize, &(usize, Value))| match operands.len() {
            0..=8 => operands[..i].iter().all(|&(_, before)| before != value),
            _ => seen.insert(value),
        };
        let read = operands.iter().enumerate().filter(is_first);
        let read = read.map(|(_, &(slot, value))| (Side::Read(slot), value));
        let made = flow::results_of(self.module, var).map(|(_, value)| (Side::Made, value));
        read.chain(made).collect()
    }

    /// True if a value can be lowered: it is fp32, or has the format already.
    fn is_lowerable(&self, value: Value) -> bool {
        self.module.value(value).ty.dtype().is_some_and(|dtype| dtype == DType::F32 || dtype == self.format)
    }

    /// The time to read and write the values that a variable types, in either precision. Operators that move
    /// elements read no more than they write; a value that stays within a kernel is neither read nor written.
    fn transfers(&self, view: &NodeView<'_>, values: &[(Side, Value)]) -> (u64, u64) {
        let extents = self.extents();
        let results = view.data().results().iter().flatten();
        let made = results.map(|&value| extents.elements(value)).fold(0, u64::saturating_add);
        let (mut full, mut low): (u64, u64) = (0, 0);
        for &(side, value) in values {
            let elements = match side {
                _ if self.is_inside(view, side, value) => 0,
                // No runtime reads the elements of a tensor to find its dims.
                Side::Read(_) if reads_only_dims(view.kind()) => 0,
                Side::Read(slot) if moves(view.kind(), slot).is_some() => extents.elements(value).min(made),
                Side::Read(_) | Side::Made => extents.elements(value),
            };
            let Some(dtype) = self.module.value(value).ty.dtype() else { continue };
            let is_lowerable = self.is_lowerable(value);
            let (in_full, in_low) = if is_lowerable { (DType::F32, self.format) } else { (dtype, dtype) };
            full = full.saturating_add(bytes(in_full, elements));
            low = low.saturating_add(bytes(in_low, elements));
        }
        let bandwidth = self.profile.memory.value;
        (picoseconds(full, bandwidth), picoseconds(low, bandwidth))
    }

    /// True if a node reads or makes a value only within a kernel.
    fn is_inside(&self, view: &NodeView<'_>, side: Side, value: Value) -> bool {
        match side {
            Side::Read(slot) => u32::try_from(slot).is_ok_and(|slot| self.fusions.reads(view.node, slot)),
            Side::Made => self.fusions.is_inside(value),
        }
    }

    /// The time to cast all values that a variable types to fp32 and back, as a runtime does around a node for which it
    /// has no kernel. Constants are cast when the model is loaded.
    fn round_trip(&self, view: &NodeView<'_>, values: &[(Side, Value)]) -> u64 {
        let is_cast = |value| self.is_lowerable(value) && !is_constant(self.module, value);
        let casts = values.iter().filter(|&&(_, value)| is_cast(value)).map(|&(side, value)| {
            if self.is_inside(view, side, value) {
                self.fused_cast_once(value)
            } else {
                self.cast_once(value, self.format, DType::F32)
            }
        });
        casts.fold(0, u64::saturating_add)
    }

    fn cast_once(&self, value: Value, from: DType, to: DType) -> u64 {
        let moved = self.cast_bytes(value, from, to);
        self.profile.cast_launch.value.saturating_add(picoseconds(moved, self.profile.memory.value))
    }

    /// The bytes that a cast reads and writes.
    fn cast_bytes(&self, value: Value, from: DType, to: DType) -> u64 {
        let elements = self.extents().elements(value);
        bytes(from, elements).saturating_add(bytes(to, elements))
    }

    /// The cost of a cast of a value in a graph, which is the graph of the value or a body that captures it: 1 under
    /// [`Objective::Casts`], else the cost of one run times the executions of the graph.
    pub fn cast_cost(&self, value: Value, graph: GraphId, from: DType, to: DType) -> i64 {
        if from == to {
            return 0;
        }
        match self.objective {
            Objective::Casts => 1,
            Objective::Bytes => self.in_graph(graph, self.cast_bytes(value, from, to)),
            Objective::Time => self.in_graph(graph, self.cast_once(value, from, to)),
        }
    }

    /// The cost of storing a constant in both precisions: under [`Objective::Bytes`] the bytes of the low copy,
    /// under [`Objective::Time`] the time to read them once, when the model is loaded. It is not a cast.
    pub fn copy_cost(&self, value: Value) -> i64 {
        let copied = bytes(self.format, self.extents().elements(value));
        let once = match self.objective {
            Objective::Time => picoseconds(copied, self.profile.memory.value),
            Objective::Bytes => copied,
            Objective::Casts => 0,
        };
        self.bounded(once).saturating_mul(self.scale())
    }

    /// The cost of a cast that is part of the kernel of the producer and the reader of a value, under
    /// [`Objective::Time`]: an operation on each element, without launch and memory.
    pub fn fused_cast_cost(&self, value: Value, from: DType, to: DType) -> i64 {
        if from == to {
            return 0;
        }
        self.in_graph(self.module.value(value).graph, self.fused_cast_once(value))
    }

    fn fused_cast_once(&self, value: Value) -> u64 {
        picoseconds(self.extents().elements(value), self.profile.elementwise.fp32.value)
    }

    /// The assumptions, in a fixed order.
    pub fn assumptions(&self) -> Vec<Assumption> {
        let (mut names, mut unnamed, mut ranks) = (BTreeMap::new(), 0, 0);
        let mut batch = None;
        let graphs = self.module.graph_ids();
        for value in graphs.flat_map(|graph| self.module.defined(graph)) {
            let Type::Tensor(tensor) = &self.module.value(value).ty else { continue };
            let measured = self.measured().value(value).ty.shape().and_then(Shape::dims);
            let Some(dims) = tensor.shape.dims() else {
                ranks += u64::from(measured.is_none());
                continue;
            };
            for (axis, dim) in dims.iter().enumerate() {
                match *dim {
                    Dim::Known(_) => {}
                    Dim::Sym(name) => {
                        let name = self.module.text(name);
                        let extent = self.sizes.of_name(name);
                        if self.sizes.is_batch(name) && extent == self.sizes.batch {
                            batch = Some(Assumption::Batch { extent });
                        } else {
                            names.insert(name, extent);
                        }
                    }
                    Dim::Unknown => {
                        let size = measured.and_then(|dims| dims.get(axis)?.known());
                        unnamed += u64::from(size.is_none());
                    }
                }
            }
        }
        if self.measured.is_some() {
            let bound = BoundInputs::new(self.module, &self.sizes.named).unwrap_or_default();
            for dim in bound.dims.iter().filter(|dim| !dim.is_named) {
                match dim.source {
                    SizeSource::Given => {}
                    SizeSource::Batch => batch = Some(Assumption::Batch { extent: dim.size }),
                    SizeSource::Assumed => unnamed += 1,
                }
            }
        }
        let named =
            names.into_iter().map(|(name, extent)| Assumption::Named { name: name.to_owned(), extent });
        let mut assumptions: Vec<Assumption> = batch.into_iter().chain(named).collect();
        let (extent, trips) = (self.sizes.other, self.sizes.trips);
        let (loops, branches) = (self.executions.unknown_loops, self.executions.branches);
        assumptions.extend((unnamed > 0).then_some(Assumption::Unnamed { count: unnamed, extent }));
        assumptions.extend((ranks > 0).then_some(Assumption::Ranks { count: ranks, elements: extent }));
        assumptions.extend((loops > 0).then_some(Assumption::Trips { count: loops, trips }));
        assumptions.extend((branches > 0).then_some(Assumption::Branches { count: branches }));
        assumptions
    }
}

/// True if a tensor has an unknown rank or a dim without a name.
fn has_unknown_dims(module: &Module) -> bool {
    let is_open = |value: Value| match &module.value(value).ty {
        Type::Tensor(tensor) => tensor.shape.dims().is_none_or(|dims| dims.contains(&Dim::Unknown)),
        _ => false,
    };
    module.graph_ids().flat_map(|graph| module.defined(graph)).any(is_open)
}

/// The module with a number for every dim of its inputs, if the model fits these numbers.
fn measured(module: &Module, sizes: &Sizes) -> Option<Arc<Module>> {
    let open = BoundInputs::new(module, &BTreeMap::new()).ok()?.dims;
    let sized = open.into_iter().map(|dim| {
        let size = match (sizes.named.get(&dim.name), dim.source) {
            (Some(&size), _) => size,
            (None, _) if dim.is_named => sizes.of_name(&dim.name),
            (None, SizeSource::Batch) => sizes.batch,
            (None, SizeSource::Given | SizeSource::Assumed) => sizes.other,
        };
        (dim.name, size)
    });
    BoundInputs::new(module, &sized.collect()).ok()?.bind(module).map(Arc::new)
}

/// The relation of a node to a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    /// The node reads the value as this operand.
    Read(usize),
    /// The node makes the value.
    Made,
}

/// True if a value is known before the model runs: an initializer, or the result of a Constant.
fn is_constant(module: &Module, value: Value) -> bool {
    let value = resolve_captures(module, value);
    let maker = module.producer(value).and_then(|(node, _)| module.node(node).schema());
    module.constant(value).is_some() || maker.is_some_and(|schema| schema.kind == OpKind::Constant)
}

fn is_float(module: &Module, value: Value) -> bool {
    module.value(value).ty.dtype().is_some_and(DType::is_float)
}

/// The bytes of this number of elements; strings, whose size is unknown, count as 0.
fn bytes(dtype: DType, elements: u64) -> u64 {
    match dtype.bits() {
        Some(_) => dtype.storage_bytes(elements).unwrap_or(u64::MAX),
        None => 0,
    }
}

#[cfg(test)]
mod tests;
