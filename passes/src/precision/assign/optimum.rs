//! What a choice costs, and the same counted again on the graph that came of it.
//!
//! [`recount`] knows nothing of vertices and terms: it adds up the casts that stand in the graph, the constants that
//! are read in two formats, and the time of what was free. `insert-casts` compares the sum with the cost of the choice.
//!
//! For example, with a cast costing 1 (the objective `casts`), MatMul low and Softmax fp32:
//!
//! ```text
//! the choice                                    the graph
//! a  fp32, read low by b and c, fp32 by d: 1    a.f16 = Cast(a): 1, read by both
//! b  low, read fp32 by d: 1                     b.f32 = Cast(b): 1
//! w  constant, read low by b: 0                 w is converted: 0
//!                                      = 2                              = 2
//! ```
//!
//! Were a cast for each of b and c, the graph would cost 3: a bug of `insert-casts`, or of the choice.

use crate::analysis::cost::{Assumption, CostModel, NodeTime, Objective};
use crate::analysis::fusions::Fusions;
use crate::analysis::values::is_stored;
use crate::graph::flow::{self, Var};
use crate::policy::KeepIo;
use crate::policy::pinned::pin_of_cast;
use crate::target::Profile;
use ampc_ir::module::Provenance;
use ampc_ir::op::OpKind;
use ampc_ir::{DType, GraphId, Module, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What the choice of formats costs.
#[derive(Clone, Debug)]
pub struct Optimum {
    /// What is to be small.
    pub objective: Objective,
    /// What costs how much.
    pub target: Arc<Profile>,
    /// The format that was lowered to.
    pub to: DType,
    /// The cost, in units of 1 / [`scale`](Self::scale).
    pub cost: i64,
    /// What no choice costs less than.
    pub lower_bound: i64,
    /// Whether it is a cheapest choice.
    pub optimal: bool,
    /// How often the main graph counts as run.
    pub scale: i64,
    /// The values assumed for sizes and counts that the model does not determine.
    pub assumptions: Vec<Assumption>,
    /// By how much the casts of the graph cost less: a cast of the author that has become an identity is left out, so
    /// that what it reads and what it makes are cast once.
    pub merged: i64,
    /// The time of the whole model.
    pub predicted: Predicted,
    /// What another policy would leave fp32, if that was asked for and enough is.
    pub elsewhere: Option<Elsewhere>,
    /// The variables whose time is part of the cost, with that time.
    pub(crate) timed: Vec<(Var, NodeTime)>,
    /// Which inputs and outputs keep their types.
    pub(crate) keep_io: KeepIo,
    /// Whether casts have been inserted, and counted.
    pub(crate) counted: bool,
    /// The author's casts that are part of the choice.
    pub(crate) casts: FxHashSet<Node>,
    /// Those of them that serve nobody else.
    pub(crate) alone: FxHashSet<Node>,
    /// Others that take what arrives, and so read nothing that is cast for them.
    pub(crate) apart: FxHashSet<Node>,
    /// What casts of the author make of what is no float, if they can make the format just as well.
    pub(crate) recast: FxHashSet<Value>,
    /// What the target fuses.
    pub(crate) fusions: Fusions,
    /// No cost counts as more.
    pub(crate) limit: i64,
    /// The last sums of gated states that are rounded in each of so many steps.
    pub(crate) rounded: Vec<(Node, usize)>,
}

/// The predicted time of one run of a whole model.
#[derive(Clone, Debug, Default)]
pub struct Predicted {
    /// In picoseconds, for [`scale`](Self::scale) runs, before anything is lowered.
    pub source: i64,
    /// The same once casts are inserted.
    pub rewritten: Option<i64>,
    /// How many runs of the main graph the times are of, so that those of branches stay whole.
    pub scale: i64,
    /// The values assumed for sizes and counts that the model does not determine.
    pub assumptions: Vec<Assumption>,
    pub(super) times: Vec<(Var, Times)>,
    pub(super) fusions: Fusions,
    /// The largest cost: costs beyond it count as this.
    pub(super) limit: i64,
}

/// The time of a variable in each format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Times {
    pub(super) full: i64,
    pub(super) low: i64,
    /// In the 16-bit format that the rewrite does not lower to.
    pub(super) other: i64,
}

impl Times {
    pub(super) fn of(&self, format: Option<DType>, to: DType) -> i64 {
        match format {
            Some(dtype) if dtype == to => self.low,
            Some(dtype) if dtype.is_low() => self.other,
            Some(_) | None => self.full,
        }
    }
}

/// The nodes that another policy would leave fp32.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Elsewhere {
    /// The name of the policy.
    pub policy: String,
    /// The nodes that are left fp32 then, as [`is_left_full`](super::is_left_full) says.
    pub full: FxHashSet<Node>,
}

/// What the casts of a graph cost, constants in two formats, and what was free. Casts of one tensor to one format in
/// one graph are one; so are those that give back the numbers that are there already none.
pub fn recount(module: &Module, optimum: &Optimum) -> i64 {
    let costs = CostModel::new(module, &optimum.target, optimum.to, optimum.objective).limited(optimum.limit);
    timed_cost(module, optimum).saturating_add(casts_cost(module, optimum, &costs, &optimum.fusions))
}

/// [`recount`], which also finds the time that is predicted for the graph.
pub(crate) fn count_rewritten(module: &Module, optimum: &mut Optimum) -> i64 {
    let costs = CostModel::new(module, &optimum.target, optimum.to, optimum.objective).limited(optimum.limit);
    let casts = casts_cost(module, optimum, &costs, &optimum.fusions);
    let cost = timed_cost(module, optimum).saturating_add(casts);
    let time = match optimum.objective {
        Objective::Time => optimum.predicted.of_rewritten(module, optimum, &costs, Some(casts)),
        Objective::Casts | Objective::Bytes => {
            let costs = CostModel::new(module, &optimum.target, optimum.to, Objective::Time);
            let costs = costs.limited(optimum.predicted.limit);
            optimum.predicted.of_rewritten(module, optimum, &costs, None)
        }
    };
    optimum.predicted.rewritten = Some(time);
    cost
}

/// The time of the variables that were free to have either format.
fn timed_cost(module: &Module, optimum: &Optimum) -> i64 {
    let timed = optimum.timed.iter().map(|&(var, time)| {
        let low = flow::decision(module, var).and_then(|d| d.precision) == Some(optimum.to);
        if low { time.low } else { time.full }
    });
    timed.fold(0, i64::saturating_add)
}

/// The cost of the casts of a graph, and of constants that are read in two formats, with these fusions.
pub(super) fn casts_cost(
    module: &Module,
    optimum: &Optimum,
    costs: &CostModel<'_>,
    fusions: &Fusions,
) -> i64 {
    let mut cost: i64 = 0;
    let mut add = |part: i64| cost = cost.saturating_add(part);
    let mut casts: BTreeSet<(Value, DType, GraphId)> = BTreeSet::new();
    // What is cast in the kernel of what makes it and reads it.
    let mut fused: BTreeSet<(Value, DType, Node)> = BTreeSet::new();
    let nodes = flow::nodes(module);
    let (dead, mut roots) = (dead_casts(module, &nodes), FxHashMap::default());
    for node in nodes {
        let Some(Counted { root, to, readers, leaves }) = counted(module, optimum, &dead, node, &mut roots)
        else {
            continue;
        };
        // One with the author's, if nothing else reads what that makes.
        let only = || module.uses(root).count() == 1 && !module.is_output(root);
        if to == optimum.to && optimum.recast.contains(&root) && only() {
            continue;
        }
        let graph = module.node(node).graph;
        let is_alone = |&(reader, slot): &(Node, u32)| !fusions.reads(reader, slot);
        if !optimum.alone.contains(&node) {
            if leaves || readers.iter().any(is_alone) {
                casts.insert((root, to, graph));
            }
            let others = readers.into_iter().filter(|reader| !is_alone(reader));
            fused.extend(others.map(|(reader, _)| (root, to, reader)));
        } else if let Some(from) = module.value(root).ty.dtype().filter(|_| !is_stored(module, root)) {
            add(costs.cast_cost(root, graph, from, to));
        }
    }
    for (root, to, _) in fused {
        let from = module.value(root).ty.dtype().unwrap_or(to);
        add(costs.fused_cast_cost(root, from, to));
    }
    // The formats that a constant is cast to.
    let mut constants: BTreeMap<Value, Vec<DType>> = BTreeMap::new();
    for (root, to, graph) in casts {
        let from = module.value(root).ty.dtype().unwrap_or(to);
        if is_stored(module, root) {
            constants.entry(root).or_default().push(to);
        } else {
            add(costs.cast_cost(root, graph, from, to));
        }
    }
    for (root, mut formats) in constants {
        formats.extend(module.value(root).ty.dtype().filter(|_| is_read_as_it_is(module, root)));
        if formats.contains(&DType::F32) && formats.contains(&optimum.to) {
            add(costs.copy_cost(root));
        }
    }
    cost
}

/// The casts of an earlier run that nothing reads any more but such casts; the nodes are in program order.
fn dead_casts(module: &Module, nodes: &[Node]) -> FxHashSet<Node> {
    let mut dead = FxHashSet::default();
    for &node in nodes.iter().rev() {
        let result = flow::inserted_result(module, node);
        if result.is_some_and(|result| !is_read(module, result, |reader| dead.contains(&reader))) {
            dead.insert(node);
        }
    }
    dead
}

/// A cast that counts.
struct Counted {
    /// The tensor that it is of.
    root: Value,
    /// The format that it makes.
    to: DType,
    /// The operands for which it is cast.
    readers: Vec<(Node, u32)>,
    /// Whether it leaves its graph.
    leaves: bool,
}

/// What a cast is, if it counts.
fn counted(
    module: &Module,
    optimum: &Optimum,
    dead: &FxHashSet<Node>,
    node: Node,
    roots: &mut FxHashMap<Value, Value>,
) -> Option<Counted> {
    let (operand, result) = cast(module, node)?;
    let to = module.value(result).ty.dtype()?;
    let root = root(module, optimum, operand, roots);
    let from = module.value(root).ty.dtype()?;
    let is_ours = |dtype: DType| dtype == DType::F32 || dtype == optimum.to;
    if from == to || !is_ours(to) || !is_ours(from) && !from.is_low() {
        return None;
    }
    let passes_by = |reader| {
        // A cast of what is cast without loss might as well read what is behind it.
        let is_cast = flow::inserted_result(module, reader).is_some()
            || optimum.casts.contains(&reader)
            || optimum.apart.contains(&reader);
        to == DType::F32 && is_cast || dead.contains(&reader)
    };
    let read: Vec<(Node, u32)> = readers(module, result).filter(|&(reader, _)| !passes_by(reader)).collect();
    let leaves = views(module, result).any(|value| module.is_output(value));
    let inserted = module.node(node).provenance == Provenance::Inserted;
    // The author's to the format are there, read or not.
    let is_part = optimum.casts.contains(&node);
    let stays = optimum.alone.contains(&node) || is_part && to == optimum.to;
    let counts = stays || (leaves || !read.is_empty()) && (inserted || is_part);
    // One that is there, read or not, reads for itself.
    let (readers, leaves) = if stays { (vec![(node, 0)], false) } else { (read, leaves) };
    counts.then_some(Counted { root, to, readers, leaves })
}

/// The operand and result of a cast.
fn cast(module: &Module, node: Node) -> Option<(Value, Value)> {
    let data = module.node(node);
    let is_cast = data.schema().is_some_and(|s| s.kind == OpKind::Cast);
    is_cast.then(|| Some((data.operand(0)?, data.result(0)?))).flatten()
}

/// The value behind captures and casts that are exact, but for those of the author that serve nobody else or are no
/// part of the choice. Chains are walked once: what is known of the values on the way is kept.
fn root(module: &Module, optimum: &Optimum, value: Value, known: &mut FxHashMap<Value, Value>) -> Value {
    let mut value = flow::resolve_captures(module, value);
    let mut way = Vec::new();
    while let Some((node, _)) = module.producer(value)
        && let Some((operand, _)) = cast(module, node)
    {
        let (from, to) = (module.value(operand).ty.dtype(), module.value(value).ty.dtype());
        let is_exact = from.zip(to).is_some_and(|(from, to)| from == to || from.is_low() && to == DType::F32);
        // A cast of the author that is no part of the choice makes a tensor of its own.
        let is_part = from == to && pin_of_cast(module, node).is_none()
            || flow::inserted_result(module, node).is_some()
            || optimum.casts.contains(&node) && !optimum.alone.contains(&node);
        if !(is_exact && is_part) {
            break;
        }
        way.push(value);
        value = flow::resolve_captures(module, operand);
        if let Some(&root) = known.get(&value) {
            value = root;
            break;
        }
    }
    known.extend(way.into_iter().map(|on_it| (on_it, value)));
    value
}

/// Whether something reads a value in the format that it has, through casts to that format or not.
fn is_read_as_it_is(module: &Module, value: Value) -> bool {
    let same = |(operand, result): (Value, Value)| {
        module.value(operand).ty.dtype() == module.value(result).ty.dtype()
    };
    let mut work = vec![value];
    let mut seen: FxHashSet<Value> = FxHashSet::default();
    while let Some(value) = work.pop() {
        if !seen.insert(value) {
            continue;
        }
        let is_cast = |reader| cast(module, reader).is_some();
        if is_read(module, value, is_cast) {
            return true;
        }
        let casts = readers(module, value).filter_map(|(reader, _)| cast(module, reader));
        work.extend(casts.filter(|&c| same(c)).map(|(_, result)| result));
    }
    false
}

/// Whether something reads a value, here or in bodies, other than what is passed over.
fn is_read(module: &Module, value: Value, passes_by: impl Fn(Node) -> bool) -> bool {
    views(module, value).any(|value| module.is_output(value))
        || readers(module, value).any(|(reader, _)| !passes_by(reader))
}

/// What reads a value, here or in bodies.
fn readers(module: &Module, value: Value) -> impl Iterator<Item = (Node, u32)> + '_ {
    let is_formal = |&(node, slot): &(Node, u32)| (slot as usize) < module.node(node).n_formal();
    views(module, value).flat_map(move |value| module.uses(value).filter(is_formal))
}

/// A value and what it is in bodies that capture it.
fn views(module: &Module, value: Value) -> impl Iterator<Item = Value> + '_ {
    let mut work = vec![value];
    std::iter::from_fn(move || {
        let value = work.pop()?;
        for (node, slot) in module.uses(value) {
            let bodies = module.node(node).bodies();
            work.extend(bodies.flat_map(|body| module.graph(body).captures_of(slot)).copied());
        }
        Some(value)
    })
}
