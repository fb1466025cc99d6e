//! The walk over a module that gives every value its type.

mod calls;

use self::calls::Calls;
use super::control;
use super::dispatch::infer_fn;
use super::inferred::{Inference, Inferred};
use crate::dtype::DType;
use crate::entity::{GraphId, Node, Value};
use crate::facts::{Facts, Types};
use crate::module::{Def, Module, Op};
use crate::op::{self, Arity, Formal, FormalType, OpKind, OpSchema};
use crate::ports::has_bodies;
use crate::ty::{Shape, Type, describe};
use crate::views::{Actual, NodeView, OpError, Part};
use smallvec::SmallVec;

/// Bodies and calls may nest this deep.
pub(super) const MAX_DEPTH: usize = 256;

/// A node whose types cannot be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct InferError {
    /// The node.
    pub node: Node,
    /// The error.
    #[source]
    pub error: OpError,
}

/// Infers the type of every value reachable from the main graph, and for the bodies of functions the types of
/// their calls (unknown if calls differ, or without calls); also returns all nodes whose operands do not fit
/// their operator. Inference continues behind such nodes with the known facts.
pub fn infer(module: &Module) -> (Inference, Vec<InferError>) {
    let mut cx = Driver {
        module,
        types: Types::with_room_for(module),
        facts: Facts::default(),
        errors: Vec::new(),
        calls: Calls::default(),
        depth: 0,
        loops: 0,
    };
    cx.graph(cx.module.main());
    cx.join_calls();
    (Inference { types: cx.types, facts: cx.facts }, cx.errors)
}

/// Stores the types that [`infer`] finds in a module, even if some nodes do not fit.
///
/// # Errors
/// All nodes whose operands do not fit their operator.
pub fn infer_module(module: &mut Module) -> Result<Facts, Vec<InferError>> {
    let (Inference { types, facts }, errors) = infer(module);
    types.apply(module);
    if errors.is_empty() { Ok(facts) } else { Err(errors) }
}

/// Infers one node of the operator table without changing the module; bodies are not entered, the present types
/// of their outputs count.
///
/// # Errors
/// If its operands do not fit its operator.
pub fn check_node(module: &Module, node: Node, facts: &Facts) -> Result<Option<Inferred>, OpError> {
    let Some(view) = NodeView::with_facts(module, node, facts) else { return Ok(None) };
    infer_here(&view, facts, infer_node).map(Some)
}

/// Infers a node of the operator table that was just made. Unlike [`check_node`] it makes no exceptions: the
/// attributes have to fit the operator, also in an open domain.
///
/// # Errors
/// If operands, results or attributes do not fit its operator.
pub(crate) fn check_new(module: &Module, node: Node, facts: &Facts) -> Result<Inferred, OpError> {
    let view = NodeView::with_facts(module, node, facts).ok_or_else(no_schema)?;
    infer_here(&view, facts, fitting)
}

/// Like `infer`. In a branch that is never taken, shapes need not fit: a model may test the rank of an input
/// and have a branch for every case.
fn infer_here(
    view: &NodeView<'_>,
    facts: &Facts,
    infer: fn(&NodeView<'_>) -> Result<Inferred, OpError>,
) -> Result<Inferred, OpError> {
    let error = match infer(view) {
        Err(error) if control::is_idle(view.module, view.data().graph, facts) => error,
        done => return done,
    };
    let shapeless = |i: usize| view.operand_type(i).map(without_shape);
    let types: Vec<Option<Type>> = (0..view.n_operands()).map(shapeless).collect();
    let actual = Actual { types: &types, values: &[], call_attrs: facts.call_attrs() };
    infer(&view.with_operands(actual)).map_err(|_| error)
}

/// Infers a node of the operator table with these operands; bodies are not entered.
///
/// # Errors
/// If its operands do not fit its operator.
pub fn infer_actual(module: &Module, node: Node, actual: Actual<'_>) -> Result<Option<Inferred>, OpError> {
    let Some(view) = NodeView::with_actual(module, node, actual) else { return Ok(None) };
    infer_by_schema(&view).map(Some)
}

/// The reason why a node of an open domain ([`op::is_open`]) differs from the operator of its name in the
/// table, if it does: its results are then unknown, and that is not an error.
pub fn misfit(module: &Module, node: Node) -> Option<OpError> {
    let view = NodeView::new(module, node)?;
    if !op::is_open(view.schema.domain) {
        return None;
    }
    fitting(&view).err()
}

/// The walk and its facts so far.
pub(super) struct Driver<'m> {
    pub(super) module: &'m Module,
    pub(super) types: Types,
    pub(super) facts: Facts,
    errors: Vec<InferError>,
    pub(super) calls: Calls,
    /// The number of bodies and calls around the current node.
    depth: usize,
    /// The number of Loops around the current node.
    loops: usize,
}

impl Driver<'_> {
    /// The type of a value, as far as it is known.
    pub(super) fn ty(&self, value: Value) -> &Type {
        self.types.of(self.module, value)
    }

    fn view(&self, node: Node) -> Option<NodeView<'_>> {
        NodeView::with_types(self.module, node, &self.facts, &self.types)
    }

    /// Infers the nodes of a graph in order.
    pub(super) fn graph(&mut self, graph: GraphId) {
        let mut next = self.module.graph(graph).first;
        while let Some(node) = next {
            if let Err(error) = self.node(node) {
                self.errors.push(InferError { node, error });
            }
            next = self.module.node(node).next();
        }
    }

    fn node(&mut self, node: Node) -> Result<(), OpError> {
        let inferred = self.inferred(node);
        let results: SmallVec<[_; 2]> = self.module.node(node).results().iter().copied().collect();
        // Also where nothing is known: bodies are inferred more than once.
        let types = inferred.as_ref().map_or_else(|_| SmallVec::new(), |i| i.types.clone());
        for (i, value) in results.iter().enumerate() {
            if let Some(value) = *value {
                self.types.set(value, types.get(i).cloned().unwrap_or_default());
                self.facts.ints[value] = None;
            }
        }
        let inferred = inferred?;
        if let Some(Some(first)) = results.first() {
            self.facts.ints[*first] = inferred.ints.map(Into::into);
        }
        Ok(())
    }

    fn inferred(&mut self, node: Node) -> Result<Inferred, OpError> {
        match self.module.node(node).op {
            // Its results have the types they were given.
            Op::Custom { .. } => {
                let types = self.module.node(node).results().iter();
                let ty = |v: &Option<Value>| v.map_or(Type::Unknown, |v| self.ty(v).clone());
                Ok(Inferred { types: types.map(ty).collect(), ints: None })
            }
            Op::Call(function) => self.nested(|cx| cx.call(node, function)),
            Op::Schema(schema) => {
                if has_bodies(schema.kind) {
                    self.nested(|cx| cx.bodies(node))?;
                }
                infer_here(&self.view(node).ok_or_else(no_schema)?, &self.facts, infer_node)
            }
        }
    }

    /// Enters a level of nesting.
    fn nested<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, OpError>) -> Result<T, OpError> {
        if self.depth == MAX_DEPTH {
            let expected = format!("bodies and calls nested at most {MAX_DEPTH} deep");
            return Err(OpError::node(expected, "deeper nesting"));
        }
        self.depth += 1;
        let done = work(self);
        self.depth -= 1;
        done
    }

    /// Types the formals and captures of the bodies of a node and infers the bodies; iterates the body of a
    /// Loop until its state is a fixpoint.
    fn bodies(&mut self, node: Node) -> Result<(), OpError> {
        let bodies: Vec<GraphId> = self.module.node(node).bodies().collect();
        let repeats = self.module.node(node).schema().is_some_and(|s| s.kind == OpKind::Loop);
        for &body in &bodies {
            let mut formals = match self.view(node) {
                Some(view) => control::body_formals(&view, body)?,
                None => Vec::new(),
            };
            if !repeats {
                self.body(node, body, formals);
                continue;
            }
            self.loops += 1;
            let before = self.errors.len();
            for round in control::first_round(self.loops, &mut formals).. {
                self.body(node, body, formals.clone());
                // What goes wrong in one round goes wrong in one iteration.
                let next = match self.view(node) {
                    Some(view) => control::next_formals(&view, body, &formals, round),
                    None => break,
                };
                if self.errors.len() > before || next == formals {
                    break;
                }
                formals = next;
            }
            self.loops -= 1;
        }
        Ok(())
    }

    /// Infers a body whose formals have these types.
    fn body(&mut self, node: Node, body: GraphId, formals: Vec<Type>) {
        for (value, ty) in self.module.graph(body).inputs.clone().into_iter().zip(formals) {
            self.types.set(value, ty);
            self.facts.ints[value] = None;
        }
        for value in self.module.graph(body).captures().to_vec() {
            let Def::Capture { slot } = self.module.value(value).def else { continue };
            let outer = self.module.node(node).operands().get(slot as usize).copied().flatten();
            if let Some(outer) = outer {
                let ty = self.ty(outer).clone();
                self.types.set(value, ty);
            }
        }
        self.graph(body);
    }
}

fn no_schema() -> OpError {
    OpError::node("an operator of the table", "another one")
}

/// Types by schema, then by family; no types for a node of an open domain that does not fit the schema.
fn infer_node(view: &NodeView<'_>) -> Result<Inferred, OpError> {
    if !op::is_open(view.schema.domain) {
        return infer_by_schema(view);
    }
    let unknown = || (0..view.n_results()).map(|_| Type::Unknown).collect();
    Ok(fitting(view).unwrap_or_else(|_| Inferred { types: unknown(), ints: None }))
}

/// Infers a node that fits its schema, attributes included: in open domains the verifier does not check
/// attributes.
fn fitting(view: &NodeView<'_>) -> Result<Inferred, OpError> {
    // Signatures say nothing of attributes.
    let attrs = if view.schema.declared.is_some() { &[] } else { view.data().attrs() };
    for attr in attrs {
        let name = view.module.text(attr.name);
        let expected = view.schema.attr(name).map(|a| a.kind);
        if expected != Some(attr.value.kind()) {
            let expected =
                expected.map_or_else(|| "none of this name".to_owned(), |kind| format!("{kind:?}"));
            return Err(OpError::attr(name, expected, format!("{:?}", attr.value.kind())));
        }
    }
    for required in view.schema.attrs.iter().filter(|a| a.required) {
        if !view.data().attrs().iter().any(|a| view.module.text(a.name) == required.name) {
            return Err(OpError::attr(required.name, "a value, it is required", "none"));
        }
    }
    infer_by_schema(view)
}

fn infer_by_schema(view: &NodeView<'_>) -> Result<Inferred, OpError> {
    check_counts(view)?;
    let bound = bind(view)?;
    let schema = view.schema;
    let mut inferred = Inferred {
        types: (0..view.n_results()).map(|i| result_type(schema, i, &bound)).collect(),
        ints: None,
    };
    // The body of a function seen alone: what its attributes are decides the call.
    if view.lacks_attributes() {
        return Ok(inferred);
    }
    if let Some(infer) = infer_fn(schema.kind) {
        infer(view, &mut inferred)?;
    }
    for (i, ty) in inferred.types.iter().enumerate() {
        let Some(formal) = schema.output(i) else { continue };
        if !may_give(schema, formal, ty) {
            return Err(OpError {
                part: Part::Result(i),
                expected: format!("a type that `{}` of {} may have", formal.name, shown(schema)),
                found: describe(ty),
            });
        }
    }
    Ok(inferred)
}

/// True if the formal of a result admits the type. A Constant is of the type of its value at every version:
/// version 1 lists floats only, but exporters wrote shapes and labels with it, which checkers and runtimes
/// take.
fn may_give(schema: &OpSchema, formal: &Formal, ty: &Type) -> bool {
    schema.types_of(formal).admits(ty) || schema.kind == OpKind::Constant && matches!(ty, Type::Tensor(_))
}

fn check_counts(view: &NodeView<'_>) -> Result<(), OpError> {
    let (schema, n, m) = (view.schema, view.n_operands(), view.n_results());
    let range = |(least, most): (u32, u32), what: &str| match (least, most) {
        (1, 1) => format!("1 {what}"),
        _ if least == most => format!("{least} {what}s"),
        _ if most > 1 << 20 => format!("{least} or more {what}s"),
        _ => format!("{least} to {most} {what}s"),
    };
    let within = |n: usize, (least, most): (u32, u32)| n >= least as usize && n <= most as usize;
    if !within(n, schema.n_inputs) {
        return Err(OpError::node(
            format!("{} of {}", range(schema.n_inputs, "operand"), schema.name),
            n.to_string(),
        ));
    }
    if !within(m, schema.n_outputs) {
        return Err(OpError::node(
            format!("{} of {}", range(schema.n_outputs, "result"), schema.name),
            m.to_string(),
        ));
    }
    for (i, formal) in schema.inputs.iter().enumerate() {
        if formal.arity == Arity::Single && i < n && !view.has(i) {
            return Err(OpError::operand(
                i,
                format!("a value for `{}`, which is required", formal.name),
                "none",
            ));
        }
    }
    for (i, formal) in schema.outputs.iter().enumerate() {
        if formal.arity == Arity::Single && i < m && view.data().result(i).is_none() {
            return Err(OpError {
                part: Part::Result(i),
                expected: format!("a name for `{}`, which is required", formal.name),
                found: "none".into(),
            });
        }
    }
    Ok(())
}

/// An operator and the version that it has.
fn shown(schema: &OpSchema) -> String {
    match schema.declared {
        Some(_) => schema.name.to_owned(),
        None => format!("{} {}", schema.name, schema.since),
    }
}

type Bound = SmallVec<[Option<Type>; 4]>;

/// Binds the schema's type variables to the types of the operands.
fn bind(view: &NodeView<'_>) -> Result<Bound, OpError> {
    let schema = view.schema;
    let mut bound: Bound = smallvec::smallvec![None; schema.type_vars.len()];
    let mut binder: SmallVec<[usize; 4]> = smallvec::smallvec![0; schema.type_vars.len()];
    for i in 0..view.n_operands() {
        let (Some(formal), Some(ty)) = (schema.input(i), view.operand_type(i)) else { continue };
        let allowed = schema.types_of(formal);
        if !allowed.admits(ty) {
            return Err(OpError::operand(
                i,
                format!("a type that `{}` of {} may have", formal.name, shown(schema)),
                describe(ty),
            ));
        }
        let heterogeneous = matches!(formal.arity, Arity::Variadic { homogeneous: false, .. });
        let FormalType::Var(var) = formal.ty else { continue };
        if heterogeneous {
            continue;
        }
        let var = usize::from(var);
        match &bound[var] {
            Some(first) if !first.same_kind(ty) => {
                return Err(OpError::operand(
                    i,
                    format!(
                        "{} as operand {} has (both are `{}`)",
                        describe(first),
                        binder[var],
                        schema.type_vars[var].name
                    ),
                    describe(ty),
                ));
            }
            Some(Type::Unknown) | None => {
                bound[var] = Some(ty.clone());
                binder[var] = i;
            }
            Some(_) => {}
        }
    }
    Ok(bound)
}

/// The type of result `i` as far as the schema goes: element type without shape.
fn result_type(schema: &OpSchema, i: usize, bound: &Bound) -> Type {
    let Some(formal) = schema.output(i) else { return Type::Unknown };
    let heterogeneous = matches!(formal.arity, Arity::Variadic { homogeneous: false, .. });
    let ty = match formal.ty {
        FormalType::Var(var) if !heterogeneous => bound[usize::from(var)].clone(),
        FormalType::Var(_) | FormalType::Is(_) => None,
    };
    ty.map_or_else(|| only_type(schema, formal), |t| without_shape(&t))
}

/// The one tensor type a formal admits, if it is one.
fn only_type(schema: &OpSchema, formal: &crate::op::Formal) -> Type {
    let set = schema.types_of(formal);
    let mut dtypes = set.tensor_dtypes();
    let only: Option<DType> = dtypes.next().filter(|_| dtypes.next().is_none());
    let tensors_only =
        set.sequence == 0 && set.optional == 0 && set.optional_sequence == 0 && set.other.is_empty();
    match only {
        Some(dtype) if tensors_only => Type::tensor(dtype, Shape::unknown()),
        _ => Type::Unknown,
    }
}

fn without_shape(ty: &Type) -> Type {
    match ty {
        Type::Tensor(t) => Type::tensor(t.dtype, Shape::unknown()),
        other => other.clone(),
    }
}
