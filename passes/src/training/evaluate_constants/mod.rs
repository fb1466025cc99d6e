//! `evaluate-constants`: a value computed from constants and known extents alone becomes a constant, an If
//! whose condition is known becomes the branch that is taken, a Loop with a known number of iterations is unrolled, and
//! sequences of known elements become tensors. An If of two small branches that cannot fail becomes a Where of both.
//!
//! Gradients are made from the graph as it stands, in which exporters compute values that they could have
//! written as constants: the pads of a Pad by Concat, Reshape, Slice and Transpose, the scales of a Resize by
//! Concat, conditions by comparing extents. The pass goes through the main graph once, in order, and infers
//! behind each constant what is known with it:
//!
//! ```text
//! %s = Concat([1.0, 1.0], [2.0, 2.0])          %s = Constant() [1.0, 1.0, 2.0, 2.0]
//! %y = Resize(%x, _, %s) : f32[?, ?, ?, ?]     %y = Resize(%x, _, %s) : f32[2, 4, 16, 16]
//! ```
//!
//! A node that is computed becomes a Constant in its place, under its names, so that names given by users still
//! exist; `dce` removes unread nodes. A float initializer that a gradient could reach never counts as known,
//! because it may be a weight. The size of each tensor, and of all tensors together, is bounded.

mod lists;
mod select;
mod trips;
mod unroll;

use crate::analysis::evaluate::{Small, evaluate, known_ints};
use crate::pass::options::Spelled;
use crate::pass::{Changed, Pass, PassCx, PassError, sound};
use crate::training::autodiff;
use ampc_ir::entity::SecondaryMap;
use ampc_ir::infer::{Facts, check_node};
use ampc_ir::module::{Def, Op};
use ampc_ir::op::{Lookup, OpKind, OpSchema, lookup};
use ampc_ir::views::{NodeView, constant_of, resolve_captures};
use ampc_ir::{AttrValue, DType, GraphId, Inserter, Module, Node, NodeSpec, Type, Value};
use std::sync::Arc;

/// The pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct EvaluateConstants;

impl Spelled for EvaluateConstants {
    const NAME: &'static str = "evaluate-constants";
    const ABOUT: &'static str = "evaluates constant expressions and inlines known branches";
    fn blank() -> Self {
        EvaluateConstants
    }
}

/// The number of elements that are computed in all; beyond it only lists of a few are.
const MAX_TOTAL: u64 = 1 << 20;

/// The number of elements that a tensor may always have.
const FEW: u64 = 16;

impl Pass for EvaluateConstants {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn renews_facts(&self) -> bool {
        true
    }
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let main = module.main();
        let opset = module.opset(main, "").unwrap_or(1);
        let Lookup::Found(constant) = lookup("", "Constant", opset) else { return Ok(Changed::No) };
        let reached = reached(module);
        let mut walk = Walk {
            facts: cx.facts.clone(),
            reached,
            constant_op: constant,
            total: 0,
            unrolled: 0,
            seen: 0,
            is_newer: SecondaryMap::default(),
            is_fresh: SecondaryMap::default(),
            changed: false,
            module,
        };
        walk.graph();
        Ok(Changed::when(walk.changed))
    }
}

/// The values of the main graph that a gradient could reach from an output.
fn reached(module: &Module) -> SecondaryMap<Value, bool> {
    let main = module.main();
    let mut reached: SecondaryMap<Value, bool> = SecondaryMap::default();
    for output in module.graph(main).outputs() {
        reached[output.value] = true;
    }
    let nodes: Vec<Node> = module.nodes(main).collect();
    for node in nodes.into_iter().rev() {
        let data = module.node(node);
        let may_be_float =
            |value: &Value| module.value(*value).ty.element_dtype().is_none_or(DType::is_float);
        if !data.results().iter().flatten().any(|value| reached[*value] && may_be_float(value)) {
            continue;
        }
        for (slot, operand) in data.operands().iter().enumerate() {
            if let Some(operand) = *operand
                && autodiff::depends_on(module, node, slot)
            {
                reached[operand] = true;
            }
        }
    }
    reached
}

/// The walk through the main graph.
struct Walk<'m> {
    module: &'m mut Module,
    facts: Facts,
    reached: SecondaryMap<Value, bool>,
    /// The operator Constant.
    constant_op: &'static OpSchema,
    /// The number of elements that were computed so far.
    total: u64,
    /// The number of nodes that Loops became so far.
    unrolled: usize,
    /// The number of nodes of sequences that were looked at so far.
    seen: usize,
    /// Values of which more is known than before.
    is_newer: SecondaryMap<Value, bool>,
    /// Nodes of branches that were inlined.
    is_fresh: SecondaryMap<Node, bool>,
    changed: bool,
}

impl Walk<'_> {
    fn graph(&mut self) {
        let main = self.module.main();
        let mut next = self.module.nodes(main).next();
        while let Some(node) = next {
            self.renew(node);
            next = match self.branch_taken(node) {
                Some(body) => self.inline(node, body),
                None => self.unroll_or_compute(node),
            };
        }
    }

    /// Unrolls a Loop with a known trip count, or makes a node a constant if its result is known. Returns the
    /// next node to visit.
    fn unroll_or_compute(&mut self, node: Node) -> Option<Node> {
        let behind = self.module.node(node).next();
        let made = if let Some(found) = unroll::read(self, node) {
            let made = sound(unroll::unroll(self.module, node, &found));
            self.unrolled += made.len();
            made
        } else if let Some(found) = self.selected(node) {
            sound(select::select(self.module, node, &found))
        } else if let Some(made) = lists::of_known_elements(self, node) {
            made
        } else {
            self.compute(node);
            return behind;
        };
        self.changed = true;
        made.iter().for_each(|&node| self.is_fresh[node] = true);
        made.first().copied().or(behind)
    }

    fn selected(&mut self, node: Node) -> Option<select::Selected> {
        select::renew_branches(self, node);
        select::read(self, node)
    }

    /// Replaces an If by a branch. Returns the next node to visit.
    fn inline(&mut self, node: Node, body: GraphId) -> Option<Node> {
        self.changed = true;
        unroll::constants_as_nodes(self.module, body);
        let behind = self.module.node(node).next();
        let first = self.module.inline_body(node, body);
        let mut next = first;
        while next != behind {
            let Some(node) = next else { break };
            self.is_fresh[node] = true;
            next = self.module.node(node).next();
        }
        first
    }

    /// Infers a node again if more is known of its operands than when it was inferred.
    fn renew(&mut self, node: Node) {
        let data = self.module.node(node);
        let is_fresh = self.is_fresh[node];
        if !is_fresh && !data.operands().iter().flatten().any(|&operand| self.is_newer[operand]) {
            return;
        }
        let Ok(Some(inferred)) = check_node(self.module, node, &self.facts) else { return };
        let results: Vec<Option<Value>> = data.results().to_vec();
        for (result, ty) in results.iter().zip(inferred.types) {
            let Some(result) = *result else { continue };
            self.is_newer[result] |= is_fresh;
            let known = &self.module.value(result).ty;
            // Nothing is forgotten: bodies are not entered here.
            if *known != ty && known.meet(&ty).as_ref() == Some(&ty) {
                self.module.set_type(result, ty);
                self.is_newer[result] = true;
            }
        }
        if let (Some(Some(first)), Some(ints)) = (results.first(), inferred.ints)
            && self.facts.ints(*first) != Some(&ints)
        {
            self.facts.set_ints(*first, ints);
            self.is_newer[*first] = true;
        }
    }

    /// The branch of an If whose condition is known.
    fn branch_taken(&self, node: Node) -> Option<GraphId> {
        let view = NodeView::with_facts(self.module, node, &self.facts)?;
        if view.kind() != OpKind::If {
            return None;
        }
        let &[condition] = view.known_ints(0)?.as_slice() else { return None };
        branch(&view, condition)
    }

    /// Makes a node a constant if its result is known.
    fn compute(&mut self, node: Node) {
        let Some(found) = self.known(node) else { return };
        let results: Vec<Option<Value>> = self.module.node(node).results().to_vec();
        let data: Option<Vec<_>> = found.iter().map(Small::to_data).collect();
        let Some(data) = data.filter(|data| data.len() == results.len()) else { return };
        let n: u64 = data.iter().map(ampc_ir::TensorData::element_count).sum();
        if n > FEW && self.total + n > MAX_TOTAL {
            return;
        }
        // A type that is known is that of the constant, or the node is none that makes sense.
        let fits = |(result, data): (&Option<Value>, &ampc_ir::TensorData)| {
            let ty = Type::tensor(data.dtype(), data.shape());
            result.is_none_or(|result| self.module.value(result).ty.meet(&ty).is_some())
        };
        if !results.iter().zip(&data).all(fits) {
            return;
        }
        self.total += n;
        self.changed = true;
        match (&results[..], data.len()) {
            ([Some(result)], 1) => {
                let data = data.into_iter().next().expect("there is one");
                self.becomes_constant(node, *result, data);
            }
            _ => self.become_constants(node, &results, data),
        }
    }

    fn becomes_constant(&mut self, node: Node, result: Value, data: ampc_ir::TensorData) {
        let module = &mut *self.module;
        module.set_formal_operands(node, &[]);
        let names: Vec<_> = module.node(node).attrs().iter().map(|attr| attr.name).collect();
        names.into_iter().for_each(|name| module.remove_attr(node, name));
        module.set_op(node, Op::Schema(self.constant_op));
        let ty = Type::tensor(data.dtype(), data.shape());
        let value = module.intern("value");
        module.set_attr(node, value, AttrValue::Tensor(Arc::new(data)));
        module.set_type(result, ty);
        self.is_newer[result] = true;
    }

    /// The parts of a Split.
    fn become_constants(&mut self, node: Node, results: &[Option<Value>], data: Vec<ampc_ir::TensorData>) {
        let mut inserter = Inserter::before(self.module, node);
        for (result, data) in results.iter().zip(data) {
            let Some(result) = *result else { continue };
            let name = inserter.module.value(result).name.expect("results have names");
            let spec = NodeSpec::new(OpKind::Constant, &[]).result_name(name);
            let [made] = sound(inserter.insert(spec.attr("value", AttrValue::Tensor(Arc::new(data)))));
            inserter.module.replace_value(result, made);
            self.is_newer[made] = true;
        }
        self.module.erase_node(node);
    }

    /// The results of a node, if they are known.
    fn known(&self, node: Node) -> Option<Vec<Small>> {
        let data = self.module.node(node);
        let view = NodeView::with_facts(self.module, node, &self.facts)?;
        if view.kind() == OpKind::Constant || data.bodies().next().is_some() || view.lacks_attributes() {
            return None;
        }
        if let &[Some(result)] = data.results()
            && let Some(found) = known_ints(self.module, &self.facts, result)
        {
            return Some(vec![found]);
        }
        evaluate(&view, &|i| self.operand(&view, i))
    }

    /// An operand that is a small constant, and no weight.
    fn operand(&self, view: &NodeView<'_>, i: usize) -> Option<Small> {
        self.constant(view.operand(i)?)
    }

    /// The elements of a value that is a small constant, and no weight.
    fn constant(&self, value: Value) -> Option<Small> {
        let value = resolve_captures(self.module, value);
        let is_initializer = matches!(self.module.value(value).def, Def::Constant(_));
        let is_float = self.module.value(value).ty.element_dtype().is_none_or(DType::is_float);
        if is_initializer && is_float && self.reached[value] {
            return None;
        }
        let data = constant_of(self.module, value)?;
        Small::read(&data)
    }
}

fn branch(view: &NodeView<'_>, condition: i64) -> Option<GraphId> {
    let name = if condition == 0 { "else_branch" } else { "then_branch" };
    match view.attr(name) {
        Some(AttrValue::Graph(body)) => Some(*body),
        _ => None,
    }
}
