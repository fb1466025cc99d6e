//! An If whose condition is not known, but whose branches are small and cannot fail: both are computed, and a Where takes the
//! results of the branch that the condition names.
//!
//! ```text
//! %y = If(%c; %x, %k) {                         %t = Neg(%x) : f32[2]
//!   then_branch: graph (%x) {                   %y = Where(%c, %t, %k) : f32[2]
//!     %t = Neg(%x) : f32[2]
//!     output %t
//!   },
//!   else_branch: graph (%k) { output %k }
//! } : f32[2]
//! ```
//!
//! The gradient of a Where is 0 for the operand that is not taken.

use super::unroll::constants_as_nodes;
use super::{Walk, branch};
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::{GraphId, InsertError, Inserter, Module, Node, NodeSpec, Shape, Value};

/// The most nodes of a branch.
const MAX_NODES: usize = 16;

/// An If that becomes a Where.
pub(super) struct Selected {
    branches: [GraphId; 2],
    condition: Value,
    /// True if the condition has no axis.
    is_scalar: bool,
}

/// Reads an If of two small branches that cannot fail. Only an If that a gradient passes through is worth it.
pub(super) fn read(walk: &Walk<'_>, node: Node) -> Option<Selected> {
    let view = NodeView::with_facts(walk.module, node, &walk.facts)?;
    if view.kind() != OpKind::If || view.known_ints(0).is_some() {
        return None;
    }
    let branches = [branch(&view, 1)?, branch(&view, 0)?];
    let results = view.data().results().iter().flatten();
    let is_float = |&value: &Value| walk.module.value(value).ty.dtype().is_some_and(|d| d.is_float());
    let condition = view.operand(0)?;
    let dims = walk.module.value(condition).ty.shape()?.dims()?;
    let is_one = dims.iter().all(|dim| dim.known() == Some(1));
    let is_plain = |&body: &GraphId| is_plain(walk.module, body);
    (is_one
        && results.clone().count() > 0
        && results.into_iter().all(is_float)
        && branches.iter().all(is_plain))
    .then_some(Selected { branches, condition, is_scalar: dims.is_empty() })
}

/// True if a branch is small, and of operators that fail on no operands of their types.
fn is_plain(module: &Module, body: GraphId) -> bool {
    let nodes: Vec<Node> = module.nodes(body).take(MAX_NODES + 1).collect();
    let never_fails = |&node: &Node| match module.node(node).schema().map(|schema| schema.kind) {
        Some(OpKind::If) => module.node(node).bodies().all(|inner| is_plain(module, inner)),
        Some(
            OpKind::Equal | OpKind::Less | OpKind::LessOrEqual | OpKind::Greater | OpKind::GreaterOrEqual,
        ) => broadcasts(module, node),
        Some(kind) => never_fails(kind),
        None => false,
    };
    nodes.len() <= MAX_NODES
        && nodes.iter().all(never_fails)
        && module
            .graph(body)
            .outputs()
            .iter()
            .all(|output| module.value(output.value).ty.shape().and_then(Shape::rank).is_some())
}

/// True if the operands of an elementwise node have shapes that broadcast: all are known, or all but one have one element.
fn broadcasts(module: &Module, node: Node) -> bool {
    let operands = module.node(node).operands().iter().flatten();
    let shapes: Vec<Option<Vec<u64>>> =
        operands.map(|&value| module.value(value).ty.shape().and_then(Shape::to_known)).collect();
    let is_one = |dims: &&Option<Vec<u64>>| dims.as_ref().is_some_and(|dims| dims.iter().all(|&d| d == 1));
    shapes.iter().all(Option::is_some) || shapes.iter().filter(is_one).count() + 1 >= shapes.len()
}

/// True if an operator has a result for all operands of known rank: Slice cuts what is there, and a sum of nothing is 0.
fn never_fails(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Abs
            | OpKind::Cast
            | OpKind::CastLike
            | OpKind::Constant
            | OpKind::Exp
            | OpKind::Identity
            | OpKind::Log
            | OpKind::Neg
            | OpKind::ReduceMax
            | OpKind::ReduceMean
            | OpKind::ReduceMin
            | OpKind::ReduceSum
            | OpKind::Relu
            | OpKind::Sigmoid
            | OpKind::Slice
            | OpKind::Sqrt
            | OpKind::Tanh
    )
}

/// Replaces an If by both branches and a Where for each result. Returns the nodes that took its place, in order.
pub(super) fn select(module: &mut Module, node: Node, of: &Selected) -> Result<Vec<Node>, InsertError> {
    let mut made = Vec::new();
    let [taken, other] = of.branches.map(|body| {
        constants_as_nodes(module, body);
        let (outputs, copied) = module.copy_body(node, body, &[]);
        made.extend(copied);
        outputs
    });
    let mut inserter = Inserter::before(module, node);
    let condition = match of.is_scalar {
        true => of.condition,
        false => {
            let [scalar] = inserter.insert(NodeSpec::new(OpKind::Squeeze, &[of.condition]))?;
            made.extend(inserter.module.producer(scalar).map(|(node, _)| node));
            scalar
        }
    };
    let results: Vec<Option<Value>> = inserter.module.node(node).results().to_vec();
    for ((result, taken), other) in results.into_iter().zip(taken).zip(other) {
        let Some(result) = result else { continue };
        let name = inserter.module.value(result).name.expect("results have names");
        let spec = NodeSpec::new(OpKind::Where, &[condition, taken, other]).result_name(name);
        let [value] = inserter.insert(spec)?;
        made.extend(inserter.module.producer(value).map(|(node, _)| node));
        inserter.module.replace_value(result, value);
    }
    module.erase_node(node);
    Ok(made)
}
