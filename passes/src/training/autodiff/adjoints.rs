//! Adjoints: the gradient of a weighted sum of values with respect to every float value before them.
//!
//! The adjoint of a value `v` is `a = ∂s/∂v` of the sum `s = Σₑ Σᵢ wₑ[i] · e[i]` over the *ends* `e` with their weights `wₑ`,
//! inputs that are added to the graph. If each element of `v` changes by `ρ[i]`, then `s` changes by `Σᵢ a[i] · ρ[i]` to first
//! order. For example, with the end `%y`:
//!
//! ```text
//! %h = MatMul(%x, %c)     adjoint of %h: Where(%h > 0, %g, 0)
//! %y = Relu(%h)           adjoint of %y: %g, the input for the weights of %y
//!                         adjoint of %x: MatMul(adjoint of %h, Transpose(%c))
//! ```

use super::backward::{Backward, Build, Unfinished};
use super::reads::Needs;
use super::rules::Rule;
use super::{Autodiff, of_node};
use crate::pass::PassError;
use ampc_ir::infer::Facts;
use ampc_ir::module::Def;
use ampc_ir::op::{OpKind, reads_only_dims};
use ampc_ir::{AttrValue, DType, InsertError, Inserter, Module, Node, NodeSpec, Position, Value};
use rustc_hash::FxHashSet;

/// The values that [`add_adjoints`] has added.
#[derive(Clone, Debug, Default)]
pub struct Adjoints {
    /// Values of the main graph with their adjoints, which have the same shape.
    pub of: Vec<(Value, Value)>,
    /// The inputs for the weights of the ends, in order; each has the type of its end.
    pub weights: Vec<Value>,
}

/// An operator without a gradient.
#[derive(Debug)]
pub struct NoAdjoint {
    /// The node; `None` if the error is not about a node.
    pub node: Option<Node>,
    /// The reason.
    pub error: PassError,
}

/// Adds the adjoints of the results of nodes of the main graph, and of `sources`, which are inputs and constants. No gradient
/// passes through the values in `stops`. The main graph has no calls of functions, and opset 18 or later.
///
/// # Errors
/// If an operator between the sources and the ends has no gradient. The module is then incomplete.
pub fn add_adjoints(
    module: &mut Module,
    facts: &Facts,
    sources: &[Value],
    ends: &[Value],
    stops: &FxHashSet<Value>,
) -> Result<Adjoints, NoAdjoint> {
    let autodiff = Autodiff::default();
    let main = module.main();
    let nodes: Vec<Node> = module.nodes(main).collect();
    let rule = |node: Node| {
        let rule = autodiff.rule(module, node);
        Some((rule.operands()?, rule.reads()))
    };
    let needs = Needs::of(module, facts, sources, stops, rule);
    let mut weights = Vec::with_capacity(ends.len());
    for &end in ends {
        let name = module.fresh_name("adjoint.weight");
        let ty = module.value(end).ty.clone();
        weights.push(module.add_input(main, name, ty, None));
    }
    let mut backward = Backward::new(module, facts, needs, sources);
    backward.record();
    for (&end, &weight) in ends.iter().zip(&weights) {
        backward.add_to(end, weight).map_err(|error| no_adjoint(backward.module(), None, &error))?;
    }
    for node in nodes.into_iter().rev() {
        autodiff
            .differentiate(&mut backward, node)
            .map_err(|error| NoAdjoint { node: backward.place_of_error().or(Some(node)), error })?;
    }
    let mut of = backward.recorded();
    let found = backward
        .finish(sources)
        .map_err(|Unfinished { module, node, error }| no_adjoint(module, node, &error))?;
    of.extend(sources.iter().zip(found).filter_map(|(&source, adjoint)| Some((source, adjoint?))));
    let adjoints: Vec<Value> = of.iter().map(|&(_, adjoint)| adjoint).collect();
    keep(module, &adjoints).map_err(|error| no_adjoint(module, None, &error.into()))?;
    Ok(Adjoints { of, weights })
}

/// Adds an output that sums all of these values, so that a run computes them. It is a scalar, so that no value outlives its
/// readers.
fn keep(module: &mut Module, values: &[Value]) -> Result<(), InsertError> {
    let main = module.main();
    let mut inserter = Inserter::new(module, main, Position::Last);
    let mut totals = Vec::with_capacity(values.len());
    for &value in values {
        let spec = NodeSpec::new(OpKind::ReduceSum, &[value]).attr("keepdims", AttrValue::Int(0));
        let [total] = inserter.insert(spec)?;
        totals.push(total);
    }
    if totals.is_empty() {
        return Ok(());
    }
    let [total] = inserter.insert(NodeSpec::new(OpKind::Sum, &totals))?;
    let ty = module.value(total).ty.clone();
    module.add_output(main, total, ty);
    Ok(())
}

fn no_adjoint(module: &Module, node: Option<Node>, error: &super::RuleError) -> NoAdjoint {
    NoAdjoint { node, error: of_node(module, node, error) }
}

/// The floats of the main graph whose elements are read without a gradient: by operators whose results are in `stops` and, with
/// `decides`, by operators that turn floats into decisions. Constants are left out.
pub fn read_without_gradient(module: &Module, stops: &FxHashSet<Value>, decides: bool) -> Vec<Value> {
    let mut found = Vec::new();
    let mut seen: FxHashSet<Value> = FxHashSet::default();
    for node in module.nodes(module.main()) {
        let data = module.node(node);
        let kind = data.schema().map(|schema| schema.kind);
        let is_stopped = data.results().iter().flatten().any(|result| stops.contains(result));
        let is_stop = || matches!(super::rules::of(module, node), Rule::Stop);
        let is_decision = decides && !kind.is_some_and(reads_only_dims) && is_stop();
        if !is_stopped && !is_decision {
            continue;
        }
        for &value in data.operands().iter().flatten() {
            let is_float = module.value(value).ty.dtype().is_some_and(|dtype| dtype == DType::F32);
            let is_computed = !matches!(module.value(value).def, Def::Constant(_));
            if is_float && is_computed && seen.insert(value) {
                found.push(value);
            }
        }
    }
    found
}
