//! The walk over a module that gives every value its type.

use super::control;
use super::dispatch::infer_fn;
use super::{Facts, Inferred};
use crate::attr::{Attr, AttrValue};
use crate::module::{Def, Op};
use crate::op::{Arity, FormalType, OpSchema};
use crate::views::{NodeView, OpError, Part};
use crate::{DType, FunctionId, GraphId, Module, Node, Shape, Type};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Bodies and calls may nest this deep.
pub(super) const MAX_DEPTH: usize = 256;

/// A node whose types cannot be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct InferError {
    /// The node.
    pub node: Node,
    /// What is wrong.
    #[source]
    pub error: OpError,
}

/// Gives every value reachable from the main graph its type, and the bodies of functions the types of their
/// calls (unknown where calls differ).
///
/// # Errors
/// All nodes whose operands do not fit their operator. Inference goes on behind them with what is known.
pub fn infer_module(module: &mut Module) -> Result<Facts, Vec<InferError>> {
    let mut cx =
        Driver { module, facts: Facts::default(), errors: Vec::new(), calls: FxHashMap::default(), depth: 0 };
    cx.graph(cx.module.main());
    cx.forget_ambiguous_bodies();
    if cx.errors.is_empty() { Ok(cx.facts) } else { Err(cx.errors) }
}

/// What inference says of one node of the operator table, without changing the module; bodies are not entered,
/// their outputs' present types count.
///
/// # Errors
/// If its operands do not fit its operator.
pub fn check_node(module: &Module, node: Node, facts: &Facts) -> Result<Option<Inferred>, OpError> {
    let Some(view) = NodeView::with_facts(module, node, facts) else { return Ok(None) };
    infer_node(&view).map(Some)
}

struct Driver<'m> {
    module: &'m mut Module,
    facts: Facts,
    errors: Vec<InferError>,
    /// Result types per function, operand types and attributes; the function is marked while it is entered.
    calls: FxHashMap<CallKey, Option<Vec<Type>>>,
    depth: usize,
}

type CallKey = (FunctionId, Vec<Type>, String);

impl Driver<'_> {
    fn graph(&mut self, graph: GraphId) {
        let mut next = self.module.graph(graph).first;
        while let Some(node) = next {
            if let Err(error) = self.node(node) {
                self.errors.push(InferError { node, error });
            }
            next = self.module.node(node).next();
        }
    }

    fn node(&mut self, node: Node) -> Result<(), OpError> {
        let inferred = match self.module.node(node).op {
            Op::Custom { .. } => return Ok(()),
            Op::Call(function) => {
                let types = self.call(node, function)?;
                Inferred { types, ints: None }
            }
            Op::Schema(schema) => {
                if control::has_bodies(schema.kind) {
                    self.bodies(node)?;
                }
                let view = NodeView::with_facts(self.module, node, &self.facts).ok_or_else(no_schema)?;
                infer_node(&view)?
            }
        };
        let results: SmallVec<[_; 2]> = self.module.node(node).results().iter().copied().collect();
        for (value, ty) in results.iter().zip(inferred.types) {
            if let Some(value) = value {
                self.module.set_type(*value, ty);
            }
        }
        if let Some(Some(first)) = results.first() {
            // Also where nothing is known: bodies are inferred more than once.
            self.facts.ints[*first] = inferred.ints.map(Into::into);
        }
        Ok(())
    }

    fn enter(&mut self) -> Result<(), OpError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(OpError::node(
                format!("bodies and calls nested at most {MAX_DEPTH} deep"),
                "deeper nesting",
            ));
        }
        Ok(())
    }

    /// Types the formals and captures of the bodies of a node and infers the bodies.
    fn bodies(&mut self, node: Node) -> Result<(), OpError> {
        self.enter()?;
        let bodies: Vec<GraphId> = self.module.node(node).bodies().collect();
        for round in 0..control::rounds(self.module, node) {
            for &body in &bodies {
                let formals = control::body_formals(self.module, &self.facts, node, body, round)?;
                for (value, ty) in self.module.graph(body).inputs.clone().into_iter().zip(formals) {
                    self.module.set_type(value, ty);
                    self.facts.ints[value] = None;
                }
                for value in self.module.graph(body).captures.clone() {
                    let Def::Capture { slot } = self.module.value(value).def else { continue };
                    let outer = self.module.node(node).operands().get(slot as usize).copied().flatten();
                    if let Some(outer) = outer {
                        let ty = self.module.value(outer).ty.clone();
                        self.module.set_type(value, ty);
                    }
                }
                let before = self.errors.len();
                self.graph(body);
                // Only the last round, in which the types of loop state are stable, may report.
                if round + 1 < control::rounds(self.module, node) {
                    self.errors.truncate(before);
                }
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn call(&mut self, node: Node, function: FunctionId) -> Result<SmallVec<[Type; 2]>, OpError> {
        let data = self.module.node(node);
        let graph = self.module.function(function).graph;
        let formals = self.module.graph(graph).inputs.clone();
        if data.n_formal() > formals.len() {
            return Err(OpError::node(
                format!(
                    "at most {} operands in a call of `{}`",
                    formals.len(),
                    self.module.text(self.module.function(function).name)
                ),
                data.n_formal().to_string(),
            ));
        }
        if data.results().len() > self.module.graph(graph).outputs.len() {
            return Err(OpError::node(
                format!("at most {} results of the function", self.module.graph(graph).outputs.len()),
                data.results().len().to_string(),
            ));
        }
        let types: Vec<Type> = (0..formals.len())
            .map(|i| data.operand(i).map_or(Type::Unknown, |v| self.module.value(v).ty.clone()))
            .collect();
        let attrs = self.call_attrs(node, function);
        let n = data.results().len();
        let key = (function, types.clone(), format!("{attrs:?}"));
        let known = match self.calls.get(&key) {
            Some(Some(known)) => known.clone(),
            Some(None) => {
                return Err(OpError::node("a function that does not call itself", "a recursive call"));
            }
            None => {
                self.calls.insert(key.clone(), None);
                self.enter()?;
                for (value, ty) in formals.into_iter().zip(types) {
                    self.module.set_type(value, ty);
                    self.facts.ints[value] = None;
                }
                let outer = std::mem::replace(&mut self.facts.call_attrs, attrs);
                self.graph(graph);
                self.facts.call_attrs = outer;
                self.depth -= 1;
                let outputs = &self.module.graph(graph).outputs;
                let results: Vec<Type> =
                    outputs.iter().map(|o| self.module.value(o.value).ty.clone()).collect();
                self.calls.insert(key, Some(results.clone()));
                results
            }
        };
        Ok(known.into_iter().take(n).collect())
    }

    /// The attributes a call gives its function: those of the node, references resolved, and the defaults.
    fn call_attrs(&self, node: Node, function: FunctionId) -> Vec<Attr> {
        let outer = &self.facts.call_attrs;
        let mut attrs: Vec<Attr> = Vec::new();
        for attr in self.module.node(node).attrs() {
            match &attr.value {
                AttrValue::Reference { name, .. } => {
                    let given = outer.iter().find(|a| a.name == *name);
                    attrs.extend(given.map(|a| Attr { name: attr.name, ..a.clone() }));
                }
                _ => attrs.push(attr.clone()),
            }
        }
        for default in &self.module.function(function).attr_defaults {
            if !attrs.iter().any(|a| a.name == default.name) {
                attrs.push(default.clone());
            }
        }
        attrs
    }

    /// The values of a function that is called with different types have no one type.
    fn forget_ambiguous_bodies(&mut self) {
        let mut signatures: FxHashMap<FunctionId, usize> = FxHashMap::default();
        #[expect(clippy::iter_over_hash_type, reason = "counting does not depend on the order")]
        for (function, ..) in self.calls.keys() {
            *signatures.entry(*function).or_default() += 1;
        }
        let functions: Vec<(FunctionId, GraphId)> =
            self.module.functions().map(|(id, f)| (id, f.graph)).collect();
        for (id, graph) in functions {
            if signatures.get(&id).copied().unwrap_or(0) > 1 {
                forget(self.module, graph);
            }
        }
    }
}

/// Makes the types of everything in a graph and its bodies unknown, constants excepted.
fn forget(module: &mut Module, graph: GraphId) {
    let mut work = vec![graph];
    while let Some(graph) = work.pop() {
        let mut values = module.graph(graph).inputs.clone();
        values.extend(module.graph(graph).captures.clone());
        for node in module.nodes(graph) {
            values.extend(module.node(node).results().iter().flatten());
            work.extend(module.node(node).bodies());
        }
        for value in values {
            module.set_type(value, Type::Unknown);
        }
    }
}

fn no_schema() -> OpError {
    OpError::node("an operator of the table", "another one")
}

/// Types by schema, then by family.
fn infer_node(view: &NodeView<'_>) -> Result<Inferred, OpError> {
    check_counts(view)?;
    let bound = bind(view)?;
    let schema = view.schema;
    let mut inferred = Inferred {
        types: (0..view.n_results()).map(|i| result_type(schema, i, &bound)).collect(),
        ints: None,
    };
    if let Some(infer) = infer_fn(schema.kind) {
        infer(view, &mut inferred)?;
    }
    for (i, ty) in inferred.types.iter().enumerate() {
        let Some(formal) = schema.output(i) else { continue };
        let allowed = schema.types_of(formal);
        if !allowed.admits(ty) {
            return Err(OpError {
                part: Part::Result(i),
                expected: format!(
                    "a type that `{}` of {} {} may have",
                    formal.name, schema.name, schema.since
                ),
                found: describe(ty),
            });
        }
    }
    Ok(inferred)
}

fn check_counts(view: &NodeView<'_>) -> Result<(), OpError> {
    let (schema, n, m) = (view.schema, view.n_operands(), view.n_results());
    let range = |(least, most): (u32, u32)| {
        if least == most {
            least.to_string()
        } else if most > 1 << 20 {
            format!("{least} or more")
        } else {
            format!("{least} to {most}")
        }
    };
    let within = |n: usize, (least, most): (u32, u32)| n >= least as usize && n <= most as usize;
    if !within(n, schema.n_inputs) {
        return Err(OpError::node(
            format!("{} operands of {}", range(schema.n_inputs), schema.name),
            n.to_string(),
        ));
    }
    if !within(m, schema.n_outputs) {
        return Err(OpError::node(
            format!("{} results of {}", range(schema.n_outputs), schema.name),
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
                format!("a type that `{}` of {} {} may have", formal.name, schema.name, schema.since),
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

/// A type for a message.
pub(crate) fn describe(ty: &Type) -> String {
    match ty {
        Type::Unknown => "an unknown type".into(),
        Type::Tensor(t) => match t.shape.dims() {
            Some(dims) => format!("{}{}", t.dtype, super::show(dims)),
            None => format!("{}[*]", t.dtype),
        },
        Type::Sparse(t) => format!("sparse {}", t.dtype),
        Type::Sequence(t) => format!("a sequence of {}", describe(t)),
        Type::Optional(t) => format!("an optional of {}", describe(t)),
        Type::Map { key, value } => format!("a map from {key} to {}", describe(value)),
        Type::Opaque { .. } => "an opaque type".into(),
    }
}
