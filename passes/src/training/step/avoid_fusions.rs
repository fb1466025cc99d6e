//! `avoid-fusions`: rewrites nodes that an optimizer of ONNX Runtime would compute wrong, or refuse, once
//! weights are inputs.
//!
//! | node | becomes | the optimizer (ONNX Runtime 1.31.1) |
//! |---|---|---|
//! | MatMul(A, v), v a vector | Squeeze(MatMul(A, Unsqueeze(v))) | MatmulTransposeFusion gives a wrong result if A is a Transpose |
//! | Sum(a, b) | Add(a, b) | GemmSumFusion refuses a Gemm that reads the third result of a node, such as Split |
//!
//! In a forward model the Transpose or the Split of a weight is computed while the session is made, and neither
//! optimizer finds anything to fuse. In a step the weights are inputs. Other optimizers move nodes first, so
//! neighbouring nodes are ignored: every such node is rewritten, in bodies and functions too. The new nodes
//! cost nothing: Squeeze and Unsqueeze move no element.

use crate::pass::invariants::Invariants;
use crate::pass::options::Spelled;
use crate::pass::training_error::UpdateError;
use crate::pass::{Changed, Pass, PassCx, PassError};
use ampc_ir::inserter::InsertError;
use ampc_ir::module::Op;
use ampc_ir::op::OpKind;
use ampc_ir::{AttrValue, Dim, Inserter, Module, Node, NodeSpec, Shape, Type, Value};

/// The pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct AvoidFusions;

impl Spelled for AvoidFusions {
    const NAME: &'static str = "avoid-fusions";
    const ABOUT: &'static str = "rewrites nodes that optimizers of ONNX Runtime compute wrong";
    fn blank() -> Self {
        AvoidFusions
    }
}

impl Pass for AvoidFusions {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn revokes(&self) -> Invariants {
        Invariants::DECISIONS
    }
    fn run(&self, module: &mut Module, _cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let graphs: Vec<_> = module.graph_ids().collect();
        let nodes: Vec<Node> = graphs.into_iter().flat_map(|graph| module.nodes(graph)).collect();
        let mut changed = false;
        for node in nodes {
            changed |= rewrite(module, node).map_err(UpdateError::Insert)?;
        }
        Ok(Changed::when(changed))
    }
}

/// Rewrites a node if an optimizer would go wrong with it; `false` if not.
fn rewrite(module: &mut Module, node: Node) -> Result<bool, InsertError> {
    let data = module.node(node);
    match data.schema().map(|schema| schema.kind) {
        Some(OpKind::Sum) if data.operands().len() == 2 => {
            let Ok(add) = Inserter::before(module, node).schema(OpKind::Add) else { return Ok(false) };
            let decisions = module.node(node).decisions.clone();
            module.set_op(node, Op::Schema(add));
            *module.node_mut(node).decisions = decisions;
            Ok(true)
        }
        Some(OpKind::MatMul) => match vector(module, node) {
            Some((vector, shape)) => as_column(module, node, vector, shape).map(|()| true),
            None => Ok(false),
        },
        _ => Ok(false),
    }
}

/// The vector that a MatMul multiplies matrices by, and the shape of its result.
fn vector(module: &Module, node: Node) -> Option<(Value, Shape)> {
    let data = module.node(node);
    let (left, right, result) = (data.operand(0)?, data.operand(1)?, data.result(0)?);
    let rank = |value: Value| module.value(value).ty.shape().and_then(Shape::rank);
    let shape = module.value(result).ty.shape()?.clone();
    (rank(left)? >= 2 && rank(right)? == 1 && shape.rank().is_some()).then_some((right, shape))
}

/// Multiplies by a matrix of one column instead of a vector.
fn as_column(module: &mut Module, node: Node, vector: Value, shape: Shape) -> Result<(), InsertError> {
    let Some(old) = module.node(node).result(0) else { return Ok(()) };
    let Some(rank) = shape.rank() else { return Ok(()) };
    let metadata = module.node(node).metadata.clone();
    let mut inserter = Inserter::before(module, node);
    let column = along(&mut inserter, OpKind::Unsqueeze, vector, 1)?;
    module.set_operand(node, 1, Some(column));
    let Some(dtype) = module.value(old).ty.dtype() else { return Ok(()) };
    let dims = shape.dims().unwrap_or_default().iter().copied().chain([Dim::Known(1)]);
    module.set_type(old, Type::tensor(dtype, Shape::of(dims)));
    let mut inserter = Inserter::after(module, node);
    let new = along(&mut inserter, OpKind::Squeeze, old, i64::try_from(rank).unwrap_or(i64::MAX))?;
    module.move_roles(old, new);
    module.replace_value(old, new);
    let made = [column, new].map(|value| module.producer(value).map(|(made, _)| made));
    made.iter().flatten().for_each(|&made| *module.node_mut(made).metadata = metadata.clone());
    // The result of the author keeps its name.
    if let (Some(name), Some(other)) = (module.value(old).name, module.value(new).name) {
        module.set_value_name(old, other);
        module.set_value_name(new, name);
    }
    Ok(())
}

/// A node that puts in or takes out one axis, an operand from opset 13 on.
fn along(inserter: &mut Inserter<'_>, kind: OpKind, value: Value, axis: i64) -> Result<Value, InsertError> {
    let spec = if inserter.schema(kind)?.attr("axes").is_some() {
        NodeSpec::new(kind, &[value]).attr("axes", AttrValue::Ints(vec![axis]))
    } else {
        let axes = inserter.ints("axes", &[axis]);
        NodeSpec::new(kind, &[value, axes])
    };
    let [result] = inserter.insert(spec)?;
    Ok(result)
}
