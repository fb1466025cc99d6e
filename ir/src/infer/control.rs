//! Control flow: how operands reach the formals of bodies, and body outputs the results of the node.
//!
//! If: no formals; a result is the least upper bound of both branches, or the result of the branch that a known
//! condition takes. Loop: formals are iteration number, condition and state. State may change its shape from
//! iteration to iteration, so a body is inferred until the types of the state are a fixpoint: changing types
//! are joined, and forgotten if they keep changing. Elements of integer state are never followed. Scan passes
//! slices of its inputs; its state keeps its shape. SequenceMap passes elements.

use super::inferred::Inferred;
use crate::attr::AttrValue;
use crate::dtype::DType;
use crate::entity::GraphId;
use crate::facts::Facts;
use crate::int::Int;
use crate::module::{GraphOwner, Module};
use crate::op::OpKind;
use crate::ty::{Dim, Shape, Type, describe};
use crate::views::control::ScanView;
use crate::views::size::shape_error;
use crate::views::{NodeView, OpError, Part, normalize_axis};

/// The type an If, Loop or Scan hands to each formal of a body.
pub(super) fn body_formals(view: &NodeView<'_>, body: GraphId) -> Result<Vec<Type>, OpError> {
    let n = view.module.graph(body).inputs().len();
    let formals = match view.kind() {
        OpKind::Loop => loop_formals(view, body),
        OpKind::Scan => scan_formals(view)?,
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

/// True if a graph is, or is in, a branch that is never taken.
pub(super) fn is_idle(module: &Module, mut graph: GraphId, facts: &Facts) -> bool {
    while let GraphOwner::Body { node, attr } = module.graph(graph).owner {
        let view = NodeView::with_facts(module, node, facts).filter(|v| v.kind() == OpKind::If);
        if let Some([condition]) = view.and_then(|v| v.known_ints(0)).as_deref() {
            let taken = if *condition == 0 { "else_branch" } else { "then_branch" };
            if module.text(attr) != taken {
                return true;
            }
        }
        graph = module.node(node).graph;
    }
    false
}

fn output_type(view: &NodeView<'_>, body: GraphId, i: usize) -> Type {
    let outputs = view.module.graph(body).outputs();
    outputs.get(i).map_or(Type::Unknown, |o| view.type_of(o.value).clone())
}

/// Formals of a Loop's body that are not states: iteration number and condition.
const N_FIXED: usize = 2;
/// From this round on, state that changes loses its shape.
const WIDEN: usize = 2;
/// From this round on, all state loses its type if some changes, and the next round is the last.
const GIVE_UP: usize = 4;

/// The number of the first round of a Loop in so many Loops, itself included. Every level multiplies the number
/// of rounds, so deep levels start with state of unknown shape, and very deep levels with state of unknown
/// type.
pub(super) fn first_round(loops: usize, formals: &mut [Type]) -> usize {
    match loops {
        0..=2 => return 0,
        3..=8 => widen(formals, N_FIXED),
        _ => formals.iter_mut().skip(N_FIXED).for_each(|ty| *ty = Type::Unknown),
    }
    GIVE_UP
}

fn loop_formals(view: &NodeView<'_>, body: GraphId) -> Vec<Type> {
    let formals = view.module.graph(body).inputs();
    // Runtimes accept a body that declares a list of one instead of a scalar.
    let declares_list = |i: usize| {
        let declared = formals.get(i).and_then(|&v| view.module.value(v).ty.shape());
        matches!(declared.and_then(Shape::dims), Some([Dim::Known(1)]))
    };
    let flag = |i: usize| if declares_list(i) { Shape::known(&[1]) } else { Shape::scalar() };
    let condition = match (view.has(1), view.dims(1)) {
        (true, Some([_])) if !declares_list(1) => Shape::unknown(),
        _ => flag(1),
    };
    let mut types = vec![Type::tensor(DType::I64, flag(0)), Type::tensor(DType::Bool, condition)];
    types.extend((2..view.n_operands()).map(|i| view.operand_type(i).cloned().unwrap_or_default()));
    types
}

/// The types of the formals of a Loop's body after one more iteration: the join of `formals` and of the body's
/// results under them. The rounds end: what changes after the first few loses its shape, and in the end its
/// type.
pub(super) fn next_formals(view: &NodeView<'_>, body: GraphId, formals: &[Type], round: usize) -> Vec<Type> {
    let mut next = formals.to_vec();
    for (i, ty) in next.iter_mut().enumerate().skip(N_FIXED) {
        // Other element types are an error of the Loop, found afterwards.
        let joined = ty.join(&output_type(view, body, i - 1)).unwrap_or_else(|| ty.clone());
        if joined != *ty {
            *ty = joined;
            if round >= WIDEN {
                widen(std::slice::from_mut(ty), 0);
            }
        }
    }
    if round >= GIVE_UP && next != formals {
        next.iter_mut().skip(N_FIXED).for_each(|ty| *ty = Type::Unknown);
    }
    next
}

/// Forgets the shapes of all types from the given one on.
pub(super) fn widen(types: &mut [Type], from: usize) {
    for ty in types.iter_mut().skip(from) {
        match ty {
            Type::Tensor(t) | Type::Sparse(t) => t.shape = Shape::unknown(),
            Type::Sequence(t) | Type::Optional(t) => widen(std::slice::from_mut(t), 0),
            Type::Map { value, .. } => widen(std::slice::from_mut(value), 0),
            Type::Unknown | Type::Opaque { .. } => {}
        }
    }
}

fn drop_axes(ty: &Type, batch: usize, axis: i64, operand: usize) -> Result<Type, OpError> {
    let Type::Tensor(t) = ty else { return Ok(ty.clone()) };
    let Some(dims) = t.shape.dims() else { return Ok(ty.clone()) };
    if dims.len() < batch + 1 {
        return Err(shape_error(operand, format!("rank {} or more", batch + 1), dims));
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

fn scan_formals(view: &NodeView<'_>) -> Result<Vec<Type>, OpError> {
    let scan = ScanView::read(view)?;
    let mut formals = Vec::new();
    for i in 0..view.n_operands().saturating_sub(scan.first) {
        let operand = scan.first + i;
        let ty = view.operand_type(operand).cloned().unwrap_or_default();
        if i < scan.n_state {
            formals.push(without_batch(&ty, scan.batch));
        } else {
            let axis = scan.input_axes.get(i - scan.n_state).copied().unwrap_or(0);
            formals.push(drop_axes(&ty, scan.batch, axis, operand)?);
        }
    }
    Ok(formals)
}

/// If: the join of both branches, or the branch that is taken.
pub(super) fn infer_if(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let branch = |name: &str| match view.attr(name) {
        Some(AttrValue::Graph(body)) => Ok(*body),
        _ => Err(OpError::attr(name, "a body", "none")),
    };
    let bodies = [branch("then_branch")?, branch("else_branch")?];
    for body in bodies {
        let n = view.module.graph(body).outputs().len();
        if n != view.n_results() {
            let expected = format!("{} outputs of every branch", view.n_results());
            return Err(OpError::node(expected, n.to_string()));
        }
    }
    let taken = match view.known_ints(0).as_deref() {
        Some(&[condition]) => Some(bodies[usize::from(condition == 0)]),
        _ => None,
    };
    for i in 0..view.n_results() {
        let [then, other] = bodies.map(|body| output_type(view, body, i));
        let joined = then.join(&other).ok_or_else(|| OpError {
            part: Part::Result(i),
            expected: "one element type in both branches".into(),
            found: format!("{} and {}", describe(&then), describe(&other)),
        })?;
        out.ty(i, taken.map_or(joined, |body| output_type(view, body, i)));
    }
    let ints = |body: GraphId| view.ints_of(view.module.graph(body).outputs().first()?.value);
    out.ints = match taken {
        Some(body) => ints(body).map(std::borrow::Cow::into_owned),
        None => match bodies.map(ints) {
            [Some(a), Some(b)] if a.len() == b.len() => {
                Some(a.iter().zip(b.iter()).map(|(a, b)| if a == b { *a } else { Int::Unknown }).collect())
            }
            _ => None,
        },
    };
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
    let trips = trip_count(view, body);
    for i in 0..view.n_results() {
        let after = output_type(view, body, i + 1);
        let ty = if i < n_state {
            let before = view.operand_type(i + 2).cloned().unwrap_or_default();
            join_state(&before, &after, i)?
        } else {
            stacked(&after, trips, 0)
        };
        out.ty(i, ty);
    }
    Ok(())
}

/// The number of iterations of a Loop: known if the trip count is known and nothing ends the Loop earlier.
fn trip_count(view: &NodeView<'_>, body: GraphId) -> Dim {
    let Some(&[most]) = view.known_ints(0).as_deref() else { return Dim::Unknown };
    let starts = !view.has(1) || view.known_ints(1).is_some_and(|c| c == [1]);
    if !starts || !goes_on(view, body) {
        return Dim::Unknown;
    }
    Dim::Known(u64::try_from(most).unwrap_or(0))
}

/// True if the condition that a Loop's body returns is true whenever its condition input is.
fn goes_on(view: &NodeView<'_>, body: GraphId) -> bool {
    let graph = view.module.graph(body);
    let Some(mut value) = graph.outputs().first().map(|o| o.value) else { return false };
    loop {
        if graph.inputs().get(1) == Some(&value) || view.ints_of(value).is_some_and(|c| *c == [Int::Known(1)])
        {
            return true;
        }
        let Some((node, _)) = view.module.producer(value) else { return false };
        let data = view.module.node(node);
        match (data.schema().map(|s| s.kind), data.operand(0)) {
            (Some(OpKind::Identity), Some(operand)) => value = operand,
            _ => return false,
        }
    }
}

fn join_state(before: &Type, after: &Type, i: usize) -> Result<Type, OpError> {
    // State that may be none is there from the first iteration on.
    let found = |before: &Type| match before {
        Type::Optional(element) => element.join(after),
        _ => None,
    };
    before.join(after).or_else(|| found(before)).ok_or_else(|| OpError {
        part: Part::Result(i),
        expected: format!("state of one element type, {} before the first iteration", describe(before)),
        found: describe(after),
    })
}

/// The type of a Scan's state, which every iteration keeps.
fn kept_state(before: &Type, after: &Type, i: usize) -> Result<Type, OpError> {
    before.meet(after).ok_or_else(|| OpError {
        part: Part::Result(i),
        expected: format!("{}, the state before the first iteration", describe(before)),
        found: describe(after),
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
    let scan = ScanView::read(view)?;
    let n_body = view.module.graph(body).outputs().len();
    if n_body != view.n_results() {
        return Err(OpError::node(format!("a body with {} outputs", view.n_results()), n_body.to_string()));
    }
    let extent = scan_extent(view, &scan)?;
    let batch = view.dims(scan.first).and_then(|d| d.first().copied()).unwrap_or(Dim::Unknown);
    for i in 0..view.n_results() {
        let after = output_type(view, body, i);
        let ty = if i < scan.n_state {
            let before = view.operand_type(scan.first + i).cloned().unwrap_or_default();
            let kept = kept_state(&without_batch(&before, scan.batch), &after, i)?;
            if scan.batch > 0 { before } else { kept }
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
    for i in scan.n_state..view.n_operands().saturating_sub(scan.first) {
        let operand = scan.first + i;
        let Some(dims) = view.dims(operand) else { continue };
        let axis = scan.input_axes.get(i - scan.n_state).copied().unwrap_or(0);
        let inner = dims.get(scan.batch..).unwrap_or(&[]);
        let axis = normalize_axis(axis, inner.len(), Part::Operand(operand))?;
        extent = extent
            .meet(inner[axis])
            .ok_or_else(|| shape_error(operand, "scan inputs of one length", dims))?;
    }
    Ok(extent)
}

/// SequenceMap: sequences of the results of the body.
pub(super) fn infer_sequence_map(view: &NodeView<'_>, out: &mut Inferred) -> Result<(), OpError> {
    let Some(body) = view.data().bodies().next() else { return Ok(()) };
    for i in 0..view.n_results() {
        out.ty(i, Type::Sequence(Box::new(output_type(view, body, i))));
    }
    Ok(())
}
