//! Control flow: how operands reach the formals of bodies, and body outputs the results of the node.
//!
//! If: no formals; a result is what holds of both branches.
//! Loop: formals are iteration number (i64 scalar), condition (bool scalar) and state; state types must hold
//! before the first and after every iteration, so a loop body is inferred twice: once with the initial types,
//! once with what the first round widened them to. Scan and SequenceMap hand in slices and elements.

use super::{Facts, Inferred};
use crate::op::OpKind;
use crate::views::{NodeView, OpError, Part, normalize_axis};
use crate::{DType, Dim, GraphId, Module, Node, Shape, Type};

/// Whether nodes of this operator have bodies that inference enters.
pub(super) fn has_bodies(kind: OpKind) -> bool {
    matches!(kind, OpKind::If | OpKind::Loop | OpKind::Scan | OpKind::SequenceMap)
}

/// How often the bodies of a node are inferred.
pub(super) fn rounds(module: &Module, node: Node) -> usize {
    match module.node(node).schema().map(|s| s.kind) {
        Some(OpKind::Loop | OpKind::Scan) => 2,
        _ => 1,
    }
}

/// The type an If, Loop or Scan hands to each formal of a body.
pub(super) fn body_formals(
    module: &Module,
    facts: &Facts,
    node: Node,
    body: GraphId,
    round: usize,
) -> Result<Vec<Type>, OpError> {
    let Some(view) = NodeView::with_facts(module, node, facts) else { return Ok(Vec::new()) };
    let n = module.graph(body).inputs().len();
    let formals = match view.kind() {
        OpKind::Loop => loop_formals(&view, body, round),
        OpKind::Scan => scan_formals(&view, body, round)?,
        OpKind::SequenceMap => (0..view.n_operands())
            .map(|i| match view.operand_type(i) {
                Some(Type::Sequence(element)) => (**element).clone(),
                other => other.cloned().unwrap_or_default(),
            })
            .collect(),
        _ => Vec::new(),
    };
    if formals.len() != n {
        return Err(OpError::node(format!("a body with {} inputs", formals.len()), n.to_string()));
    }
    Ok(formals)
}

fn output_type(module: &Module, body: GraphId, i: usize) -> Type {
    let outputs = module.graph(body).outputs();
    outputs.get(i).map_or(Type::Unknown, |o| module.value(o.value).ty.clone())
}

/// Round 0: the initial types; later: what holds of the initial value and of the body's result.
fn state_type(initial: Option<&Type>, after: &Type, round: usize) -> Type {
    let initial = initial.cloned().unwrap_or_default();
    if round == 0 { initial } else { initial.join(after).unwrap_or(initial) }
}

fn loop_formals(view: &NodeView<'_>, body: GraphId, round: usize) -> Vec<Type> {
    let mut formals =
        vec![Type::tensor(DType::I64, Shape::scalar()), Type::tensor(DType::Bool, Shape::scalar())];
    for i in 2..view.n_operands() {
        formals.push(state_type(view.operand_type(i), &output_type(view.module, body, i - 1), round));
    }
    formals
}

/// Scan at its two versions: 8 has a batch axis and a leading sequence-length operand, 9 and later do not.
struct ScanView {
    first: usize,
    n_state: usize,
    batch: usize,
    input_axes: Vec<i64>,
    output_axes: Vec<i64>,
}

fn scan_view(view: &NodeView<'_>) -> Result<ScanView, OpError> {
    let n_scan = view.int("num_scan_inputs").and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    let (first, batch) = if view.since() < 9 { (1, 1) } else { (0, 0) };
    let n_state = (view.n_operands() - first).checked_sub(n_scan).ok_or_else(|| {
        OpError::attr(
            "num_scan_inputs",
            format!("at most {} scan inputs", view.n_operands() - first),
            n_scan.to_string(),
        )
    })?;
    Ok(ScanView {
        first,
        n_state,
        batch,
        input_axes: view.int_list("scan_input_axes").unwrap_or(&[]).to_vec(),
        output_axes: view.int_list("scan_output_axes").unwrap_or(&[]).to_vec(),
    })
}

fn drop_axes(ty: &Type, batch: usize, axis: i64, operand: usize) -> Result<Type, OpError> {
    let Type::Tensor(t) = ty else { return Ok(ty.clone()) };
    let Some(dims) = t.shape.dims() else { return Ok(ty.clone()) };
    if dims.len() < batch + 1 {
        return Err(super::shape_error(operand, format!("rank {} or more", batch + 1), dims));
    }
    let inner = &dims[batch..];
    let axis = normalize_axis(axis, inner.len(), Part::Operand(operand))?;
    let left = inner.iter().enumerate().filter(|&(i, _)| i != axis).map(|(_, d)| *d);
    Ok(Type::tensor(t.dtype, Shape::of(left)))
}

fn without_batch(ty: &Type, batch: usize) -> Type {
    match ty {
        Type::Tensor(t) if batch > 0 => {
            let dims = t.shape.dims().map(|d| d.iter().skip(batch).copied().collect());
            Type::tensor(t.dtype, Shape(dims))
        }
        other => other.clone(),
    }
}

fn scan_formals(view: &NodeView<'_>, body: GraphId, round: usize) -> Result<Vec<Type>, OpError> {
    let scan = scan_view(view)?;
    let mut formals = Vec::new();
    for i in 0..view.n_operands() - scan.first {
        let operand = scan.first + i;
        let ty = view.operand_type(operand).cloned().unwrap_or_default();
        if i < scan.n_state {
            let inner = without_batch(&ty, scan.batch);
            formals.push(state_type(Some(&inner), &output_type(view.module, body, i), round));
        } else {
            let axis = scan.input_axes.get(i - scan.n_state).copied().unwrap_or(0);
            formals.push(drop_axes(&ty, scan.batch, axis, operand)?);
        }
    }
    Ok(formals)
}

/// If: what holds of both branches.
pub(super) fn infer_if(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let bodies: Vec<GraphId> = view.data().bodies().collect();
    for &body in &bodies {
        let n = view.module.graph(body).outputs().len();
        if n != view.n_results() {
            return Err(OpError::node(
                format!("{} outputs of every branch", view.n_results()),
                n.to_string(),
            ));
        }
    }
    for i in 0..view.n_results() {
        let mut types = bodies.iter().map(|&b| output_type(view.module, b, i));
        let first = types.next().unwrap_or_default();
        let ty = types.try_fold(first, |a, b| {
            a.join(&b).ok_or_else(|| OpError {
                part: Part::Result(i),
                expected: "one element type in both branches".into(),
                found: format!("{} and {}", super::driver::describe(&a), super::driver::describe(&b)),
            })
        })?;
        out.ty(i, ty);
    }
    Ok(())
}

/// Loop: state keeps its type, scan outputs get a leading axis.
pub(super) fn infer_loop(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let Some(body) = view.data().bodies().next() else { return Ok(()) };
    let n_state = view.n_operands().saturating_sub(2);
    let n_body = view.module.graph(body).outputs().len();
    if n_body != view.n_results() + 1 {
        return Err(OpError::node(
            format!("a body with {} outputs", view.n_results() + 1),
            n_body.to_string(),
        ));
    }
    for i in 0..view.n_results() {
        let after = output_type(view.module, body, i + 1);
        let ty = if i < n_state {
            let before = view.operand_type(i + 2).cloned().unwrap_or_default();
            join_state(&before, &after, i)?
        } else {
            stacked(&after, Dim::Unknown, 0)
        };
        out.ty(i, ty);
    }
    Ok(())
}

fn join_state(before: &Type, after: &Type, i: usize) -> Result<Type, OpError> {
    before.join(after).ok_or_else(|| OpError {
        part: Part::Result(i),
        expected: format!(
            "state of one element type, {} before the first iteration",
            super::driver::describe(before)
        ),
        found: super::driver::describe(after),
    })
}

/// A tensor with one more axis; other types are unknown (Loop and Scan stack tensors only).
fn stacked(ty: &Type, extent: Dim, axis: usize) -> Type {
    match ty {
        Type::Tensor(t) => {
            let dims = t.shape.dims().map(|d| {
                let mut dims: crate::Dims = d.iter().copied().collect();
                dims.insert(axis.min(dims.len()), extent);
                dims
            });
            Type::tensor(t.dtype, Shape(dims))
        }
        _ => Type::Unknown,
    }
}

/// Scan: state keeps its type, scan outputs get the scanned axis (and the batch axis below 9).
pub(super) fn infer_scan(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let Some(body) = view.data().bodies().next() else { return Ok(()) };
    let scan = scan_view(view)?;
    let n_body = view.module.graph(body).outputs().len();
    if n_body != view.n_results() {
        return Err(OpError::node(format!("a body with {} outputs", view.n_results()), n_body.to_string()));
    }
    let extent = scan_extent(view, &scan)?;
    let batch = view.dims(scan.first).and_then(|d| d.first().copied()).unwrap_or(Dim::Unknown);
    for i in 0..view.n_results() {
        let after = output_type(view.module, body, i);
        let ty = if i < scan.n_state {
            let before = view.operand_type(scan.first + i).cloned().unwrap_or_default();
            if scan.batch > 0 { before } else { join_state(&before, &after, i)? }
        } else {
            let rank = after.shape().and_then(Shape::rank).map_or(0, |r| r + 1);
            let axis = scan.output_axes.get(i - scan.n_state).copied().unwrap_or(0);
            let axis = if rank == 0 {
                0
            } else {
                normalize_axis(axis, rank, Part::Attr("scan_output_axes".into()))?
            };
            let inner = stacked(&after, extent, axis);
            if scan.batch > 0 { stacked(&inner, batch, 0) } else { inner }
        };
        out.ty(i, ty);
    }
    Ok(())
}

fn scan_extent(view: &NodeView<'_>, scan: &ScanView) -> Result<Dim, OpError> {
    let mut extent = Dim::Unknown;
    for i in scan.n_state..view.n_operands() - scan.first {
        let operand = scan.first + i;
        let Some(dims) = view.dims(operand) else { continue };
        let axis = scan.input_axes.get(i - scan.n_state).copied().unwrap_or(0);
        let inner = dims.get(scan.batch..).unwrap_or(&[]);
        let axis = normalize_axis(axis, inner.len(), Part::Operand(operand))?;
        extent = extent
            .meet(inner[axis])
            .ok_or_else(|| super::shape_error(operand, "scan inputs of one length", dims))?;
    }
    Ok(extent)
}

/// SequenceMap: sequences of what the body gives.
pub(super) fn infer_sequence_map(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let Some(body) = view.data().bodies().next() else { return Ok(()) };
    for i in 0..view.n_results() {
        out.ty(i, Type::Sequence(Box::new(output_type(view.module, body, i))));
    }
    Ok(())
}
