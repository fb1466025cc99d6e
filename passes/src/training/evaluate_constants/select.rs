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
//! The gradient of a Where is 0 for the operand that is not taken. It must not meet an infinite derivative there, since 0 times
//! infinity is a NaN: a divisor in a branch becomes 1 if the branch is not taken.

use super::unroll::constants_as_nodes;
use super::{Walk, branch};
use ampc_ir::convert::Conversion;
use ampc_ir::infer::check_node;
use ampc_ir::module::Def;
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::{
    AttrValue, DType, GraphId, InsertError, Inserter, Module, Node, NodeSpec, Shape, TensorData, Type, Value,
};
use std::sync::Arc;

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

/// Gives the values of the branches of an If the types that follow from what is known of the values they capture.
pub(super) fn renew_branches(walk: &mut Walk<'_>, node: Node) {
    let is_if =
        |module: &Module, node: Node| module.node(node).schema().is_some_and(|s| s.kind == OpKind::If);
    if !is_if(walk.module, node) {
        return;
    }
    // The bodies, the innermost last.
    let mut bodies: Vec<(Node, GraphId)> = Vec::new();
    let mut work = vec![node];
    while let Some(node) = work.pop() {
        for body in walk.module.node(node).bodies() {
            bodies.push((node, body));
            work.extend(walk.module.nodes(body).filter(|&inner| is_if(walk.module, inner)));
        }
    }
    for &(node, body) in &bodies {
        for capture in walk.module.graph(body).captures().to_vec() {
            let Def::Capture { slot } = walk.module.value(capture).def else { continue };
            let Some(outer) = walk.module.node(node).operands()[slot as usize] else { continue };
            refine(walk.module, capture, walk.module.value(outer).ty.clone());
        }
        for inner in walk.module.nodes(body).collect::<Vec<_>>() {
            let Ok(Some(inferred)) = check_node(walk.module, inner, &walk.facts) else { continue };
            for (result, ty) in walk.module.node(inner).results().to_vec().into_iter().zip(inferred.types) {
                if let Some(result) = result {
                    refine(walk.module, result, ty);
                }
            }
        }
    }
}

/// Gives a value a type that says more than its own.
fn refine(module: &mut Module, value: Value, ty: Type) {
    let known = &module.value(value).ty;
    if *known != ty && known.meet(&ty).as_ref() == Some(&ty) {
        module.set_type(value, ty);
    }
}

/// True if a branch is small, and of operators that fail on no operands of their types.
fn is_plain(module: &Module, body: GraphId) -> bool {
    let nodes: Vec<Node> = module.nodes(body).take(MAX_NODES + 1).collect();
    let never_fails = |&node: &Node| match module.node(node).schema().map(|schema| schema.kind) {
        Some(OpKind::If) => module.node(node).bodies().all(|inner| is_plain(module, inner)),
        Some(OpKind::Div) => is_of_floats(module, node) && broadcasts(module, node),
        Some(kind) if is_binary(kind) => broadcasts(module, node),
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

/// True if a node makes a float.
fn is_of_floats(module: &Module, node: Node) -> bool {
    let dtype = module.node(node).result(0).and_then(|result| module.value(result).ty.dtype());
    dtype.is_some_and(DType::is_float)
}

/// True if an operator is elementwise with two operands, and has a finite derivative everywhere.
fn is_binary(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Add
            | OpKind::Equal
            | OpKind::Greater
            | OpKind::GreaterOrEqual
            | OpKind::Less
            | OpKind::LessOrEqual
            | OpKind::Mul
            | OpKind::Sub
    )
}

/// True if the operands of an elementwise node have shapes that broadcast: all are known, or all but one have one element.
fn broadcasts(module: &Module, node: Node) -> bool {
    let operands = module.node(node).operands().iter().flatten();
    let shapes: Vec<Option<Vec<u64>>> =
        operands.map(|&value| module.value(value).ty.shape().and_then(Shape::to_known)).collect();
    let is_one = |dims: &&Option<Vec<u64>>| dims.as_ref().is_some_and(|dims| dims.iter().all(|&d| d == 1));
    shapes.iter().all(Option::is_some) || shapes.iter().filter(is_one).count() + 1 >= shapes.len()
}

/// True if an operator has a result for all operands of known rank (Slice cuts what is there, and a sum of nothing is 0), and
/// a finite derivative everywhere.
fn never_fails(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Abs
            | OpKind::Cast
            | OpKind::CastLike
            | OpKind::Constant
            | OpKind::Identity
            | OpKind::Neg
            | OpKind::ReduceMax
            | OpKind::ReduceMean
            | OpKind::ReduceMin
            | OpKind::ReduceSum
            | OpKind::Relu
            | OpKind::Sigmoid
            | OpKind::Slice
            | OpKind::Tanh
    )
}

/// Replaces an If by both branches and a Where for each result. Returns the nodes that took its place, in order.
pub(super) fn select(module: &mut Module, node: Node, of: &Selected) -> Result<Vec<Node>, InsertError> {
    let mut made = Vec::new();
    let mut inserter = Inserter::before(module, node);
    let condition = match of.is_scalar {
        true => of.condition,
        false => {
            let [scalar] = inserter.insert(NodeSpec::new(OpKind::Squeeze, &[of.condition]))?;
            made.extend(inserter.module.producer(scalar).map(|(node, _)| node));
            scalar
        }
    };
    let mut branches = Vec::new();
    for (body, is_then) in of.branches.into_iter().zip([true, false]) {
        constants_as_nodes(module, body);
        let (outputs, copied) = module.copy_body(node, body, &[]);
        for copy in copied {
            guard_divisor(module, copy, (condition, is_then), &mut made)?;
            made.push(copy);
        }
        branches.push(outputs);
    }
    let mut inserter = Inserter::before(module, node);
    let results: Vec<Option<Value>> = inserter.module.node(node).results().to_vec();
    let [taken, other] = <[Vec<Value>; 2]>::try_from(branches).expect("an If has two branches");
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

/// Makes the divisor of a Div 1 if its branch is not taken.
fn guard_divisor(
    module: &mut Module,
    node: Node,
    (condition, is_then): (Value, bool),
    made: &mut Vec<Node>,
) -> Result<(), InsertError> {
    let is_division = module.node(node).schema().is_some_and(|schema| schema.kind == OpKind::Div);
    let Some(divisor) = module.node(node).operand(1).filter(|_| is_division && is_of_floats(module, node))
    else {
        return Ok(());
    };
    let one = TensorData::from_f32(&[], &[1.0]).expect("one element");
    let dtype = module.value(divisor).ty.dtype().unwrap_or(DType::F32);
    let one = one.converted(Conversion { to: dtype, clamp: false });
    let mut inserter = Inserter::before(module, node);
    let spec = NodeSpec::new(OpKind::Constant, &[]).attr("value", AttrValue::Tensor(Arc::new(one)));
    let [one] = inserter.insert(spec)?;
    let (taken, other) = if is_then { (divisor, one) } else { (one, divisor) };
    let [guarded] = inserter.insert(NodeSpec::new(OpKind::Where, &[condition, taken, other]))?;
    made.extend([one, guarded].into_iter().filter_map(|value| module.producer(value).map(|(node, _)| node)));
    module.set_operand(node, 1, Some(guarded));
    Ok(())
}
